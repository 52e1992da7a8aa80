"""Evaluate: run a snippet in the job and give back what it printed, its value, its exception.

Each snippet runs on a thread of its own (`probe-eval`), one at a time; whoever
asks waits for it no longer than asked. One that is late is told to stop by an
exception in *its own* thread, again and again: a C call cannot be cut short, and
a loop that catches everything ends only when it is told between two rounds; then
the answer says that it still runs. Nothing a snippet raises, SystemExit
included, leaves its thread. Standard library only.

Not done here: running between two steps, telling reading from changing code,
and keeping random state as it was. A snippet that draws random numbers or
changes the model changes the training.
"""

from __future__ import annotations

import ast
import ctypes
import linecache
import os
import textwrap
import threading
import time
import traceback
from collections.abc import Callable
from types import CodeType
from typing import Any

from probe.agent.isolation import capture
from probe.control.names import Scope, names_used
from probe.control.output import Buffer, Diversion
from probe.control.values import short_repr
from probe.errors import EvalBusy, EvalTimeout, LimitReached

_FILE = "<probe eval>"
_GRACE_S = 0.5
"""How long a snippet that was told to stop is waited for."""
_AGAIN_S = 0.05
"""Time between two times of telling it."""

Note = Callable[[str, "float | None"], object]
"""Called with the outcome and the duration in seconds: the audit of a snippet."""


class SnippetTimeout(BaseException):
    """Raised inside a snippet's own thread at its deadline."""


class Evaluation:
    """One run of one snippet."""

    def __init__(self, code: str, scope: Callable[[], Scope], output_bytes: int, timeout_s: float) -> None:
        self._code = textwrap.dedent(code).strip("\n")
        self._scope = scope
        self.buffer = Buffer(output_bytes)
        self.value: str | None = None
        self.error: dict[str, str] | None = None
        self.started = time.monotonic()
        self.deadline = self.started + timeout_s
        self.elapsed_s: float | None = None
        self.thread = threading.Thread(target=self._run, name="probe-eval", daemon=True)
        self._process = os.getpid()
        self._interruptible = False
        self._diversion = Diversion(self.buffer)
        # Who holds it may interrupt. The thread itself takes it at its end and keeps it; a lock that
        # may be taken twice, because the last interrupt may arrive right after it was taken.
        self._interrupts = threading.RLock()

    def _run(self) -> None:
        try:
            self._interruptible = True
            capture(self._work)
            self._seal()
        except SnippetTimeout:  # it arrived just outside of the snippet
            self._seal()
        self.finish()
        if os.getpid() != self._process:  # the snippet forked: this is the child, and nothing of the job's
            os._exit(0)

    def _work(self) -> None:
        self._diversion.begin()
        _, error = capture(self._execute)
        if error is not None:
            self.error = self._explain(error)

    def _seal(self) -> None:
        """From here on no interrupt is sent, and one that was sent does not arrive."""
        self._interrupts.acquire()
        _raise_in(self.thread, None)

    def finish(self) -> None:
        """Give the streams back. By the thread at its end; by others when it cannot any more."""
        self._diversion.end()
        if self.elapsed_s is None:
            self.elapsed_s = time.monotonic() - self.started

    def _execute(self) -> None:
        tree = ast.parse(self._code, _FILE)
        used = names_used(tree)
        last = tree.body[-1] if tree.body else None
        tail: CodeType | None = None
        if isinstance(last, ast.Expr):
            tree.body.pop()
            tail = compile(ast.Expression(last.value), _FILE, "eval")
        body = compile(tree, _FILE, "exec")
        names: dict[str, Any] = {"__name__": "__probe__", "__builtins__": __builtins__}
        names.update(self._scope().resolve(used))
        lines = [line + "\n" for line in self._code.split("\n")]
        linecache.cache[_FILE] = (len(self._code), None, lines, _FILE)
        exec(body, names)
        if tail is not None:
            value = eval(tail, names)
            if value is not None:
                self.value = short_repr(value, self.buffer)

    def _explain(self, error: BaseException) -> dict[str, str]:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != _FILE:
            trace = trace.tb_next
        hint = ""
        if isinstance(error, NameError):
            hint = self._near(error)
        elif isinstance(error, SystemExit):
            hint = "the snippet asked to exit; the job runs on"
        elif isinstance(error, FileNotFoundError):
            hint = _missing_file(str(error.filename))
        message, unprintable = capture(lambda: str(error)[:2000])
        text = "".join(traceback.format_exception(type(error), error, trace, limit=50))
        return {
            "type": type(error).__name__,
            "message": message if unprintable is None else "(its text cannot be made)",
            "traceback": text[-16_000:],
            "hint": hint,
        }

    def _near(self, error: NameError) -> str:
        name = getattr(error, "name", None)
        if not isinstance(name, str):
            name = "".join(str(error).split("'")[1:2])
        scope = self._scope()
        near = scope.near(name)
        hint = f"names like it: {', '.join(near)}" if near else "no name like it in the script's frames"
        if scope.closed:
            hint += (
                f". The variables of {', '.join(scope.closed)} were left alone: it calls locals() or exec(), "
                "and before Python 3.12 reading them would change what those gave it"
            )
        return hint

    def interrupt(self) -> None:
        """Raise `SnippetTimeout` in the snippet's thread; takes effect at its next bytecode."""
        if self._interruptible and self._interrupts.acquire(blocking=False):
            try:
                _raise_in(self.thread, SnippetTimeout)
            finally:
                self._interrupts.release()

    def press(self, wait_s: float) -> bool:
        """Interrupt it until it ends, for at most `wait_s`; whether it has ended."""
        give_up = time.monotonic() + wait_s
        while self.thread.is_alive() and time.monotonic() < give_up:
            self.interrupt()
            self.thread.join(_AGAIN_S)
        return not self.thread.is_alive()

    def abandon(self) -> None:
        """In a forked child: the streams are the job's again, unless the snippet itself forked."""
        if self.thread.ident != threading.get_ident():
            self._diversion.end()


class Evaluator:
    """Runs snippets one at a time for one agent."""

    def __init__(self, scope: Callable[[], Scope], output_bytes: int) -> None:
        self._scope = scope
        self._output_bytes = output_bytes
        self._current: Evaluation | None = None
        self._lock = threading.Lock()

    def run(self, code: str, timeout_s: float, note: Note) -> dict[str, Any]:
        """Run `code` and return the answer in the shape of ARCHITECTURE.md.

        Raises `EvalBusy` while an earlier snippet runs, `EvalTimeout` when this one
        does not end in time. `note` is called before and after with the outcome."""
        with self._lock:
            current = self._running()
            if current is not None:
                ran = time.monotonic() - current.started
                raise EvalBusy(f"an earlier snippet has been running for {ran:.1f} s")
            note("started", None)
            evaluation = Evaluation(code, self._scope, self._output_bytes, timeout_s)
            try:
                evaluation.thread.start()
            except RuntimeError as error:
                note("raised", 0.0)
                raise LimitReached(f"the job cannot start a thread for the snippet: {error}") from None
            self._current = evaluation
        evaluation.thread.join(timeout_s)
        if evaluation.thread.is_alive():
            self._stop(evaluation, timeout_s, note)
        evaluation.finish()
        outcome = "ok" if evaluation.error is None else "raised"
        note(outcome, evaluation.elapsed_s)
        return {
            "output": evaluation.buffer.text(),
            "dropped_bytes": evaluation.buffer.dropped_bytes,
            "value": evaluation.value,
            "error": evaluation.error,
            "elapsed_ms": (evaluation.elapsed_s or 0.0) * 1e3,
        }

    def _running(self) -> Evaluation | None:
        current = self._current
        return current if current is not None and current.thread.is_alive() else None

    def _stop(self, evaluation: Evaluation, timeout_s: float, note: Note) -> None:
        stopped = evaluation.press(_GRACE_S)
        note("timeout", time.monotonic() - evaluation.started)
        printed = evaluation.buffer.text()[-200:]
        tail = f" It had printed: {printed!r}." if printed else ""
        if stopped:
            evaluation.finish()
            raise EvalTimeout(f"the snippet was stopped after {timeout_s:g} s.{tail}")
        raise EvalTimeout(
            f"the snippet did not end within {timeout_s:g} s and still runs: it is inside a call that "
            f"cannot be interrupted, or catches what would end it. It is told again every second.{tail}"
        )

    def insist(self) -> None:
        """Tell a snippet that is over its time to stop, once more. On the agent's thread, every second."""
        current = self._running()
        if current is not None and time.monotonic() > current.deadline:
            current.interrupt()

    def end(self, wait_s: float) -> None:
        """Stop whatever runs, waiting at most `wait_s`: a thread inside C++ at exit aborts the process."""
        current = self._running()
        if current is not None and current.thread is not threading.current_thread():
            current.press(wait_s)

    def abandon(self) -> None:
        """In a forked child: see `Evaluation.abandon`."""
        if self._current is not None:
            self._current.abandon()


def _raise_in(thread: threading.Thread, error: type[BaseException] | None) -> None:
    """Let `error` be raised in a thread; None takes back what has not been raised yet."""
    if thread.ident is not None:
        argument = None if error is None else ctypes.py_object(error)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), argument)


def _missing_file(name: str) -> str:
    if name.startswith("nvidia-"):
        return f"this host has no {name}: most likely no NVIDIA device"
    return f"relative paths start at the job's folder, {os.getcwd()}" if not os.path.isabs(name) else ""
