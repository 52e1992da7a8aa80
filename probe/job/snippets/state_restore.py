"""State restore: restores global state that a snippet may have changed by accident.

A snippet that draws a random number, leaves `no_grad` open or changes the working
directory would affect every later step. What it changes on purpose in objects
(weights, parameter groups, `model.eval()`, `os.environ`, `sys.path`, hooks) stays.

On the training thread, everything listed here and in `torch_modes` is read before
the snippet and restored where it differs. On a thread of its own, random states
are not restored, because the training draws at the same time; state of the whole
process is restored only if the snippet's text names it, because otherwise the job
changed it. Nothing here raises, except that an interrupt of the job (Ctrl-C) passes
on after everything is restored. Runs on the snippet's thread. Standard library only;
torch and NumPy if the job has them.
"""

from __future__ import annotations

import _locale
import _signal  # type: ignore[import-not-found]  # ten times as fast as signal's wrapper
import gc
import os
import random
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from probe.base.isolation import capture
from probe.checkpoint.random_states import TensorState, device_generators, numpy_state, set_numpy_state
from probe.job.snippets.torch_modes import State, device_modes, numpy_modes, torch_modes

_SIGNALS = tuple(sorted(int(number) for number in signal.valid_signals()))
_STREAMS = ("stdin", "stdout", "stderr")
_UNREADABLE = object()

_modes_of: dict[str, tuple[Any, list[State]]] = {}
"""Modes by library, with the module object they belong to."""


class Kept:
    """Restores at the end of the block the state that a snippet changed in it.

    `training_thread`: whether the block runs there, between two steps. `code`: the snippet's text. After
    the block, `put_back` names the restored state ("the random state of torch") and `left` the state that
    could not be restored; `sentences` returns both."""

    def __init__(self, *, training_thread: bool, code: str = "") -> None:
        self.put_back: list[str] = []
        self.left: list[str] = []
        self._training_thread = training_thread
        self._code = code
        self._before: list[tuple[State, Any]] = []
        self._interrupt: BaseException | None = None

    def __enter__(self) -> Kept:
        found, error = capture(self._states)
        if error is not None:
            self._failed(error)
        with _plainly():
            for state in found or ():
                value = self._try(state.read)
                if value is not _UNREADABLE:
                    self._before.append((state, value))
        self._let_through()
        return self

    def sentences(self) -> list[str]:
        """The sentences of the answer about it."""
        return [
            *(f"put back as it was: {name}" for name in self.put_back),
            *(f"changed, and could not be put back: {name}" for name in self.left),
        ]

    def __exit__(self, *_: object) -> None:
        with _plainly():
            for state, value in self._before:
                self._restore(state, value)
        self._before = []
        self._let_through()

    def _states(self) -> list[State]:
        if self._training_thread:
            return [*_random(), *_library_modes(), *_interpreter(self._code)]
        every = [*_library_modes(), *_interpreter(self._code)]
        return [
            state for state in every if state.marks and any(mark in self._code for mark in state.marks)
        ]

    def _restore(self, state: State, value: Any) -> None:
        if self._try(lambda: state.read() == value) is True:
            return
        self._try(lambda: state.write(value))
        same = self._try(lambda: state.read() == value) is True
        (self.put_back if same else self.left).append(state.name)

    def _try(self, action: Callable[[], Any]) -> Any:
        value, error = capture(action)
        if error is None:
            return value
        self._failed(error)
        return _UNREADABLE

    def _failed(self, error: BaseException) -> None:
        if not isinstance(error, Exception):  # not ours: the job is being interrupted
            self._interrupt = error

    def _let_through(self) -> None:
        error, self._interrupt = self._interrupt, None
        if error is not None:
            raise error


def _plainly() -> AbstractContextManager[Any]:
    """A context in which the job's torch function modes do not see calls."""
    native: Any = sys.modules.get("torch._C")
    disable = getattr(native, "DisableTorchFunction", None)
    return nullcontext() if disable is None else disable()


def _random() -> list[State]:
    found = [State("the random state of Python", random.getstate, random.setstate)]
    if "numpy.random" in sys.modules:
        found.append(State("the random state of NumPy", _numpy_state, set_numpy_state))
    generator = getattr(sys.modules.get("torch"), "default_generator", None)
    if generator is not None:
        found.append(_of_generator("the random state of torch", generator))
    for number, generator in enumerate(device_generators()):
        found.append(_of_generator(f"the random state of device {number}", generator))
    return found


def _numpy_state() -> Any:
    return numpy_state(lambda array: array.tobytes())


def _of_generator(name: str, generator: Any) -> State:
    return State(
        name, lambda: TensorState(generator.get_state()), lambda state: generator.set_state(state.tensor)
    )


def _library_modes() -> list[State]:
    """State of torch and NumPy, if the job has finished importing them; built once."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    found: list[State] = []
    if hasattr(torch, "set_num_threads") and hasattr(torch, "_tensor_str"):
        found += _made_once("torch", torch, torch_modes)
        found += device_modes()
    if numpy is not None:
        found += _made_once("numpy", numpy, numpy_modes)
    return found


def _made_once(name: str, module: Any, make: Callable[[Any], list[State]]) -> list[State]:
    known = _modes_of.get(name)
    if known is None or known[0] is not module:
        made = make(module)
        if not made:
            return made
        known = _modes_of[name] = (module, made)
    return known[1]


def _interpreter(code: str) -> list[State]:
    """State of the interpreter and the process."""
    found = [
        State("the standard streams", _streams, _set_streams, ("stdin", "stdout", "stderr", "redirect")),
        State("the working folder", os.getcwd, os.chdir, ("chdir",)),
        _warnings_filters(code),
        State("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit, ("setrecursionlimit",)),
        State("the switch interval", sys.getswitchinterval, sys.setswitchinterval, ("setswitchinterval",)),
        State("the garbage collector", _collector, _set_collector, ("gc",)),
        State("the locale", _get_locale, _set_locale, ("setlocale",)),
    ]
    if threading.current_thread() is threading.main_thread():
        found.append(State("signal handlers", _handlers, _set_handlers))
    return found


def _streams() -> tuple[Any, ...]:
    """While a snippet runs, these are stand-ins (`output`); afterwards they are the job's streams again."""
    return tuple(getattr(sys, name, _UNREADABLE) for name in _STREAMS)


def _set_streams(streams: tuple[Any, ...]) -> None:
    for name, stream in zip(_STREAMS, streams, strict=True):
        if stream is not _UNREADABLE:
            _replaced.append(getattr(sys, name, None))
            setattr(sys, name, stream)


_replaced: deque[Any] = deque(maxlen=2 * len(_STREAMS))
"""The latest replaced streams of snippets: a thread of the job may still be inside a `print` to one, and
`print` holds no reference of its own (`output`)."""


def _warnings_filters(code: str) -> State:
    """The content of the list of filters. `catch_warnings` in any other thread replaces the list for a
    while, so the list object itself is only put back after code that names it."""
    listed = warnings.filters
    own = "catch_warnings" in code or "warnings.filters" in code

    def read() -> Any:
        return list(listed), warnings.filters is listed if own else True

    def write(state: Any) -> None:
        listed[:] = state[0]  # type: ignore[index]
        if own:
            warnings.filters = listed
        changed = getattr(warnings, "_filters_mutated_lock_held", None) or warnings._filters_mutated  # type: ignore[attr-defined]
        changed()

    return State("warnings filters", read, write, ("warnings",))


def _collector() -> Any:
    return gc.isenabled(), gc.get_threshold(), gc.get_debug()


def _set_collector(state: Any) -> None:
    enabled, thresholds, debug = state
    (gc.enable if enabled else gc.disable)()
    gc.set_threshold(*thresholds)
    gc.set_debug(debug)


def _get_locale() -> str:
    return _locale.setlocale(_locale.LC_ALL, None)


def _set_locale(name: str) -> None:
    _locale.setlocale(_locale.LC_ALL, name)


def _handlers() -> tuple[Any, ...]:
    return tuple(map(_signal.getsignal, _SIGNALS))


def _set_handlers(handlers: tuple[Any, ...]) -> None:
    """Restore Python handlers; a handler installed in C cannot be restored and stays as it is now."""
    for number, handler in zip(_SIGNALS, handlers, strict=True):
        if handler is not None and _signal.getsignal(number) is not handler:
            _signal.signal(number, handler)
