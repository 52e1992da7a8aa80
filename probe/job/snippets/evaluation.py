"""Evaluation: one run of one snippet.

On a thread of its own (`probe-eval`) or, at a boundary, on the training thread. The answer has its output,
its last value and its exception; no exception, SystemExit included, gets out of it. It is watched while it
runs (deadline, memory, calls: `guard.watching`), and accidental changes of state are put back afterwards
(`state_restore`). Standard library only.

If a snippet on its own thread is late in a call (a sleep, a lock), an exception is raised in *its own*
thread, repeatedly, because a C call cannot be interrupted. Never on the training thread: there the exception
could arrive in the training.
"""

from __future__ import annotations

import ast
import ctypes
import functools
import linecache
import os
import textwrap
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import CodeType
from typing import Any, TypeVar

from probe.base.isolation import capture
from probe.base.signal_errors import from_signal
from probe.job.boundary.own_group import carry
from probe.job.introspection.snippet_names import ASK_FOR_NAMES, Names, Scope, names_used
from probe.job.snippets.guard.watching import (
    CHECK_NAME,
    SnippetForbidden,
    SnippetMemory,
    SnippetTimeout,
    Watch,
    memory_allowance_bytes,
    with_checks,
)
from probe.job.snippets.module_modes import ModuleModes, may_change
from probe.job.snippets.output import Buffer, Diversion
from probe.job.snippets.state_restore import Kept
from probe.job.snippets.values import short_repr

FILE = "<probe eval>"
_ROUNDS = 1000
_AGAIN_S = 0.05
"""Time between two interrupts of a snippet that is late."""
CUTS = (SnippetTimeout, SnippetForbidden, SnippetMemory)
"""Exceptions that stop a snippet."""
Cut = TypeVar("Cut", bound=BaseException)
MODES = "put back as it was: train and eval modes of modules, as the snippet did not run to its end"
AT_ONCE, AT_BOUNDARY = "at once", "step boundary"


def parse(code: str) -> ast.Module:
    """The syntax tree of a snippet, which may be indented as a whole."""
    return ast.parse(_dedented(code), FILE)


class Evaluation:
    """One run. `scope` resolves names when it begins; `collectives`: whether it may call them.

    `together` is not empty if all ranks run it at the same boundary, and is the same on all of them: its
    collectives on the default group go to a group of our own (`own_group`)."""

    def __init__(
        self, code: str, tree: ast.Module, scope: Callable[[], Scope], output_bytes: int, timeout_s: float,
        *, collectives: bool, together: str = "",
    ) -> None:
        self._code = _dedented(code)
        self._tree = tree
        self._scope = scope
        self._collectives = collectives
        self._together = together
        self._timeout_s = timeout_s
        self.names: dict[str, Any] | None = None
        """The values of names, if resolved already; else they are looked up when it begins."""
        self.step: int | None = None
        """The step after which it ran, at a boundary."""
        self.leaves_nothing = False
        """Whether it cannot have stored anything in the job, so that its variables can be cleared at once:
        with a function among them they are a cycle, which only the collector would free."""
        self._variables: dict[str, Any] = {}
        self._made, self._unmade = capture(self._make)
        self.buffer = Buffer(output_bytes)
        self.value: str | None = None
        self.error: dict[str, str] | None = None
        self.cut_short: SnippetTimeout | SnippetForbidden | SnippetMemory | None = None
        self.kept: list[str] = []
        """Sentences about state that it had changed and that was put back."""
        self._modes: ModuleModes | None = None
        self.started = time.monotonic()
        self.deadline = self.started + timeout_s
        self.elapsed_s: float | None = None
        self.thread = threading.Thread(target=self._run, name="probe-eval", daemon=True)
        self.ended: Callable[[], object] = _nothing
        """Called when it has ended, on its thread."""
        self._process = os.getpid()
        self._interruptible = self._interrupted = False
        self._diversion = Diversion(self.buffer)
        # Its holder may interrupt. The thread itself takes it at its end and keeps it. Reentrant,
        # because the last interrupt may arrive right after it was taken.
        self._interrupts = threading.RLock()

    # On a thread of its own -------------------------------------------------

    def start(self) -> None:
        """Begin on a thread of its own; raises RuntimeError when there can be none."""
        self._begin_clock()
        self.thread.start()

    def _run(self) -> None:
        try:
            capture(lambda: self._watched(training_thread=False))
            self._seal()
        except SnippetTimeout:  # it arrived just outside of the snippet
            self._seal()
        self.finish()
        if os.getpid() != self._process:  # the snippet forked, and this is the child: not the job
            os._exit(0)
        self.ended()

    # On the training thread -------------------------------------------------

    def run_at_boundary(self) -> None:
        """Run on the calling thread, which trains and is between two steps.

        Raises only an exception of a signal handler in that time: it is for the training."""
        self._begin_clock()
        _, error = capture(lambda: self._watched(training_thread=True))
        self.finish()
        if os.getpid() != self._process:  # must not train on in a forked child
            os._exit(0)
        if error is not None and self.cut_short is None and self.error is None:
            raise error

    # Both -------------------------------------------------------------------

    def _begin_clock(self) -> None:
        self.started = time.monotonic()
        self.deadline = self.started + self._timeout_s

    def _watched(self, *, training_thread: bool) -> None:
        self._diversion.begin()
        kept = Kept(training_thread=training_thread, code=self._code)
        try:
            with kept, self._carried():
                self._attempt(training_thread)
        finally:
            self.names = None  # keep no reference to objects of the job
            self.kept += kept.sentences()

    def _carried(self) -> AbstractContextManager[None]:
        """The context that carries its collectives, if it may call any."""
        if not self._together or self.leaves_nothing:
            return nullcontext()
        return carry(self._together, self._timeout_s, force=self._collectives)

    def _attempt(self, training_thread: bool) -> None:
        watch = Watch(
            self.deadline, collectives=self._collectives, training_thread=training_thread,
            memory_bytes=memory_allowance_bytes(), carried=bool(self._together),
        )
        try:
            with watch:
                self._interruptible = not training_thread
                self._try(watch, training_thread)
                self._seal()
        except SnippetTimeout as late:
            self._seal()
            self.cut_short = _without_frames(late)

    def _try(self, watch: Watch, training_thread: bool) -> None:
        _, error = capture(lambda: self._execute(watch, training_thread))
        try:
            self._conclude(error, training_thread)
        finally:
            del error  # its frames refer to this one, a cycle that only the collector would free
            self._modes = None
            variables, self._variables = self._variables, {}
            if self.leaves_nothing:
                variables.clear()

    def _conclude(self, error: BaseException | None, training_thread: bool) -> None:
        """Set the outcome. Raises an exception of a signal handler of the job."""
        if error is None:
            return
        if self._modes is not None and self._modes.restore():
            self.kept.append(MODES)
        if not isinstance(error, CUTS):
            if training_thread and from_signal(error):
                raise error
            self.error, error = capture(functools.partial(self._explain, error))
        if isinstance(error, CUTS):
            self.cut_short = _without_frames(error)  # they hold the snippet's objects
        del error

    def _seal(self) -> None:
        """Shut out interrupts: from here on none is sent, and none that was sent arrives."""
        if self._interruptible:
            self._interrupts.acquire()
            if self._interrupted:
                _let_arrive(self.thread)

    def finish(self) -> None:
        """Restore the streams. Called by the thread at its end, and by another if it does not end."""
        self._diversion.end()
        if self.elapsed_s is None:
            self.elapsed_s = time.monotonic() - self.started

    def _make(self) -> tuple[set[str], CodeType, CodeType | None]:
        """The names it uses, its code, and that of its last expression. Made before it is watched: watching
        makes this several times slower, and the training thread waits."""
        used = names_used(self._tree)
        tree = with_checks(self._tree)
        last = tree.body[-1] if tree.body else None
        tail: CodeType | None = None
        if isinstance(last, ast.Expr):
            tree.body.pop()
            tail = compile(ast.Expression(last.value), FILE, "eval")
        return used, compile(tree, FILE, "exec"), tail

    def _execute(self, watch: Watch, training_thread: bool) -> None:
        if self._unmade is not None:
            raise self._unmade
        used, body, tail = self._made
        names = self._variables = Names() if used & ASK_FOR_NAMES else {}
        names.update({"__name__": "__probe__", "__builtins__": __builtins__})
        names.update(self._scope().resolve(used) if self.names is None else self.names)
        names[CHECK_NAME] = watch.check
        if training_thread and may_change(self._code):
            self._modes = ModuleModes(names.values())
        lines = [line + "\n" for line in self._code.split("\n")]
        linecache.cache[FILE] = (len(self._code), None, lines, FILE)
        exec(body, names)
        if tail is not None:
            value = eval(tail, names)
            if value is not None:
                self.value = short_repr(value, self.buffer)

    def _explain(self, error: BaseException) -> dict[str, str]:
        hint = ""
        if isinstance(error, NameError):
            hint = self._near(error)
        elif isinstance(error, SystemExit):
            hint = "the snippet called exit; the job continues"
        elif isinstance(error, FileNotFoundError):
            hint = _missing_file(str(error.filename))
        return explained(error, hint)

    def _near(self, error: NameError) -> str:
        name = getattr(error, "name", None)
        if not isinstance(name, str):
            name = "".join(str(error).split("'")[1:2])
        scope = self._scope()
        near = scope.near(name)
        hint = f"names like it: {', '.join(near)}" if near else "no name like it in the script's frames"
        hint += "; `globals()` shows all of them"
        if scope.closed:
            hint += (
                f". The variables of {', '.join(scope.closed)} were not read: it calls locals() or exec(), "
                "and before Python 3.12 reading them would change the results of those"
            )
        return hint

    def interrupt(self) -> None:
        """Raise `SnippetTimeout` in the snippet's thread; takes effect at its next bytecode."""
        if self._interruptible and self._interrupts.acquire(blocking=False):
            try:
                self._interrupted = True
                _raise_in(self.thread)
            finally:
                self._interrupts.release()

    def press(self, wait_s: float) -> bool:
        """Interrupt it until it ends, for at most `wait_s`; returns whether it has ended."""
        give_up = time.monotonic() + wait_s
        while self.thread.is_alive() and time.monotonic() < give_up:
            self.interrupt()
            self.thread.join(_AGAIN_S)
        return not self.thread.is_alive()

    def abandon(self) -> None:
        """In a forked child: the streams are the job's again, unless the snippet itself forked."""
        if self.thread.ident != threading.get_ident():
            self._diversion.abandon()


def explained(error: BaseException, hint: str = "") -> dict[str, str]:
    """An exception of a snippet as the answer shows it: from the snippet's own frame on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != FILE:
        trace = trace.tb_next
    message, unprintable = capture(lambda: str(error)[:2000])
    text = "".join(traceback.format_exception(type(error), error, trace, limit=50))
    return {
        "type": type(error).__name__,
        "message": message if unprintable is None else "(its text cannot be made)",
        "traceback": text[-16_000:],
        "hint": hint,
    }


def _dedented(code: str) -> str:
    return textwrap.dedent(code).strip("\n")


def _without_frames(error: Cut) -> Cut:
    """The exception without its traceback, context and cause."""
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


def _nothing() -> None:
    return None


def _raise_in(thread: threading.Thread) -> None:
    """Let `SnippetTimeout` be raised in a thread."""
    if thread.ident is not None:
        argument = ctypes.py_object(SnippetTimeout)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), argument)


def _let_arrive(thread: threading.Thread) -> None:
    """Let an interrupt that is still pending for the calling thread arrive here.

    Sending NULL would cancel it instead. But up to Python 3.12 the interpreter then still believes that an
    exception is pending: all threads are slower from then on, and in 3.11 a traced thread never gets past the
    beginning of the next function."""
    try:
        _raise_in(thread)
        for _ in range(_ROUNDS):  # it arrives in the first, unless a destructor has swallowed it
            pass
    except SnippetTimeout:
        pass


def _missing_file(name: str) -> str:
    if name.startswith("nvidia-"):
        return f"this host has no {name}: most likely no NVIDIA device"
    return f"relative paths start at the job's folder, {os.getcwd()}" if not os.path.isabs(name) else ""
