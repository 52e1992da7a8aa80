"""Isolation: catches every exception of probe's own code, so that none reaches the job.

`Isolation.guard` wraps a hook. A hook that failed three times is switched off for good, with one line on
stderr and one journal record, and the training continues without it. Runs on the thread that calls the
hook; standard library only.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import BuiltinMethodType
from typing import Any, ParamSpec

from probe.base import compiled
from probe.base.errors import ProbeError
from probe.base.signal_errors import from_signal

_Parameters = ParamSpec("_Parameters")

PATIENCE = 3
"""Failures after which a hook is switched off."""

_TAKES_ANY = 0x04 | 0x08
"""`inspect.CO_VARARGS | inspect.CO_VARKEYWORDS`, without that import."""
_passing = [0]
"""Id of the exception that passes every guard: one that a signal handler of the job raised while the training
thread was held. One raised while a hook runs is recognized by its traceback."""


class Isolation:
    """Guards of one agent; `report(name, text)` is called for each hook that is switched off."""

    def __init__(self, report: Callable[[str, str], object] | None = None) -> None:
        self.failures: dict[str, int] = {}
        self.withheld: dict[str, str] = {}
        """Operations that the job or the machine prevented, with the last reason."""
        self.tracing: list[Callable[[], bool] | None] = [None]
        """A function that says whether hooks must do nothing, as while torch.compile traces this call; None
        in a job that does not compile."""
        self._report = report
        self._library = compiled.library()
        self.untraced_frames = 1 if self._library is None else 0
        """Python frames of a guard that is never traced."""
        self._ended = False
        self._before_mute: Callable[[], bool] | None = None

    def guard(self, name: str, hook: Callable[..., Any], *, traced: bool = True) -> Callable[..., Any]:
        """`hook`, but returning None instead of raising an `Exception`. HOT PATH.

        Does nothing while torch.compile traces it: only the job is compiled. `traced`: whether that can
        happen; a guard that is never traced is in C if the library is loaded (`base/compiled/guard.c`)."""
        live = hook
        tracing, passing = self.tracing, _passing

        def failed(error: Exception) -> bool:
            """Whether to raise the error: it came from a signal handler of the job, not from the hook."""
            nonlocal live
            if id(error) == passing[0] or from_signal(error):
                return True
            if self._failed(name, error, "is switched off"):
                live = _nothing
            return False

        if not traced and self._library is not None:

            def failed_compiled(error: Exception) -> Any:
                """As `failed`; or the function to call from now on, if the hook is switched off."""
                return failed(error) or (live if live is _nothing else None)

            made: Callable[..., Any] = self._library.guard(
                hook, _arguments_of(hook), tracing, failed_compiled
            )
            return made

        # One for each number of arguments: packing them into a tuple costs as much as the rest of a guard.
        # A wrong number of arguments must not raise, so each takes any number.
        def guarded(*args: Any) -> Any:
            asks = tracing[0]
            if asks is not None and asks():
                return None
            try:
                return live(*args)
            except Exception as error:
                if failed(error):
                    raise
                return None

        def guarded_0(*_more: Any) -> Any:
            asks = tracing[0]
            if asks is not None and asks():
                return None
            try:
                return live()
            except Exception as error:
                if failed(error):
                    raise
                return None

        def guarded_1(one: Any = None, *_more: Any) -> Any:
            asks = tracing[0]
            if asks is not None and asks():
                return None
            try:
                return live(one)
            except Exception as error:
                if failed(error):
                    raise
                return None

        def guarded_2(one: Any = None, two: Any = None, *_more: Any) -> Any:
            asks = tracing[0]
            if asks is not None and asks():
                return None
            try:
                return live(one, two)
            except Exception as error:
                if failed(error):
                    raise
                return None

        def guarded_3(one: Any = None, two: Any = None, three: Any = None, *_more: Any) -> Any:
            asks = tracing[0]
            if asks is not None and asks():
                return None
            try:
                return live(one, two, three)
            except Exception as error:
                if failed(error):
                    raise
                return None

        of_each = {0: guarded_0, 1: guarded_1, 2: guarded_2, 3: guarded_3}
        return of_each.get(_arguments_of(hook), guarded)

    def end(self) -> None:
        """Make every guarded hook do nothing from now on, even one called while it is being removed."""
        self._ended = True
        self.tracing[0] = _always

    def let_through(self, error: BaseException) -> None:
        """Raise an exception that a signal handler of the job raised while the training thread was held, so
        that it passes every guard."""
        _passing[0] = id(error)
        raise error

    def mute(self) -> None:
        """Make every guarded hook do nothing until `unmute`: a forward or step in code that runs between two
        steps is not part of the training."""
        _passing[0] = 0
        self._before_mute, self.tracing[0] = self.tracing[0], _muted

    def unmute(self) -> None:
        """Ends `mute`."""
        if self.tracing[0] is _muted:
            self.tracing[0] = self._before_mute
        if self._ended:
            self.tracing[0] = _always

    def attempt(self, name: str, action: Callable[[], Any], *, said_at: int = PATIENCE) -> Any:
        """Run `action`; None when it fails. For start, stop and the agent's own rounds.

        `said_at`: which failure is written to stderr; 1 for the job's errors. Failures caused by the job or
        the machine (no descriptors, another root or user) are only noted in `withheld`."""
        try:
            return action()
        except Exception as error:
            if id(error) == _passing[0] or from_signal(error):
                raise
            if isinstance(error, OSError | ImportError):
                self.withheld[name] = describe(error)
            else:
                self._failed(name, error, "will not be reported again", said_at)
            return None

    def _failed(self, name: str, error: Exception, consequence: str, said_at: int = PATIENCE) -> bool:
        count = self.failures[name] = self.failures.get(name, 0) + 1
        if count == said_at:
            times = f" {count} times" if count > 1 else ""
            say(f"{name} failed{times} and {consequence}: {describe(error)}")
        if count in (1, PATIENCE) and self._report is not None:
            try:
                self._report(name, describe(error))
            except Exception as nested:
                say(f"could not record a failure of {name}: {describe(nested)}")
        return count >= PATIENCE


def harmless(function: Callable[_Parameters, None]) -> Callable[_Parameters, None]:
    """Wrap a function that the job calls, so that it never raises an `Exception`.

    The first failure, wrong arguments included, is one line on stderr: a call that only records something
    must not end a training."""
    said = False

    @functools.wraps(function)
    def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> None:
        nonlocal said
        try:
            function(*args, **kwargs)
        except Exception as error:
            if id(error) == _passing[0] or from_signal(error):
                raise
            if not said:
                said = True
                say(f"probe.{function.__name__} did nothing: {_words(error)}. This is reported only once")

    return call


def quietly(action: Callable[[], Any], what: str) -> Any:
    """Run `action`; on failure write one line with `what` and the hint, and return None."""
    try:
        return action()
    except ProbeError as error:
        say(f"{what}: {error.message}. {error.hint}")
    except Exception as error:
        say(f"{what}: {describe(error)}")
    return None


def capture(action: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Run any code; returns its result and the exception it raised, SystemExit and KeyboardInterrupt
    included."""
    try:
        return action(), None
    except BaseException as error:
        return None, error


def describe(error: BaseException) -> str:
    """`Type: message`, even if making the message fails."""
    try:
        return f"{type(error).__name__}: {error}"[:500]
    except Exception:
        return type(error).__name__


def _words(error: Exception) -> str:
    return f"{error.message}. {error.hint}".rstrip(". ") if isinstance(error, ProbeError) else describe(error)


def say(text: str) -> None:
    """Write one line to the job's stderr, if there is one."""
    try:
        sys.stderr.write(f"probe: {' '.join(text.split())}\n")
    except Exception:
        return


def _arguments_of(hook: Callable[..., Any]) -> int:
    """How many arguments a hook takes; -1 if it takes any number, or if unknown."""
    function = getattr(hook, "__func__", hook)
    if isinstance(hook, BuiltinMethodType):  # a method of a class in its compiled form
        plain = getattr(type(hook.__self__), compiled.TAKEN + hook.__name__, None)
        return _arguments_of(plain) - 1 if plain is not None else -1
    code = getattr(function, "__code__", None)
    if code is None or code.co_flags & _TAKES_ANY or code.co_kwonlyargcount or function.__defaults__:
        return -1
    return int(code.co_argcount) - (function is not hook)


def _nothing(*_args: Any) -> None:
    return None


def _always() -> bool:
    return True


def _muted() -> bool:
    return True
