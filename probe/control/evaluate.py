"""Evaluate: run a snippet in the job and give back what it printed, its value, its exception.

Each snippet runs on a thread of its own (`probe-eval`), one at a time; the
agent's thread waits for it no longer than asked. One that is late is told to
stop by an exception in *its own* thread; a C call cannot be cut short, and then
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
import reprlib
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable
from types import CodeType
from typing import Any

from probe.agent.isolation import capture, describe
from probe.control.names import Scope, names_used
from probe.control.output import Buffer, captured
from probe.errors import EvalBusy, EvalTimeout

_FILE = "<probe eval>"
_GRACE_S = 0.5
"""How long a snippet that was told to stop is waited for."""


Note = Callable[[str, "float | None"], object]
"""Called with the outcome and the duration in seconds: the audit of a snippet."""


class SnippetTimeout(BaseException):
    """Raised inside a snippet's own thread at its deadline."""


class Evaluation:
    """One run of one snippet."""

    def __init__(self, code: str, scope: Callable[[], Scope], output_bytes: int) -> None:
        self._code = textwrap.dedent(code).strip("\n")
        self._scope = scope
        self.buffer = Buffer(output_bytes)
        self.value: str | None = None
        self.error: dict[str, str] | None = None
        self.done = threading.Event()
        self.started = time.monotonic()
        self.elapsed_s: float | None = None
        self.thread = threading.Thread(target=self._run, name="probe-eval", daemon=True)

    def _run(self) -> None:
        _, error = capture(self._guarded)
        if error is not None and self.error is None:
            kind = type(error).__name__
            self.error = {"type": kind, "message": describe(error), "traceback": "", "hint": ""}
        self.elapsed_s = time.monotonic() - self.started
        self.done.set()

    def _guarded(self) -> None:
        # A broken __repr__ or a deep recursion surfaces while the result is being
        # described, so that is captured too.
        with captured(self.buffer):
            _, error = capture(self._execute)
            if error is not None:
                self.error = self._explain(error)

    def _execute(self) -> None:
        tree = ast.parse(self._code, _FILE)
        last = tree.body[-1] if tree.body else None
        tail: CodeType | None = None
        if isinstance(last, ast.Expr):
            tree.body.pop()
            tail = compile(ast.Expression(last.value), _FILE, "eval")
        body = compile(tree, _FILE, "exec")
        names: dict[str, Any] = {"__name__": "__probe__", "__builtins__": __builtins__}
        names.update(self._scope().resolve(names_used(ast.parse(self._code))))
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
            name = getattr(error, "name", None) or str(error).split("'")[1:2]
            near = self._scope().near(name if isinstance(name, str) else "".join(name))
            hint = f"names like it: {', '.join(near)}" if near else "no name like it in the script's frames"
        elif isinstance(error, SystemExit):
            hint = "the snippet asked to exit; the job runs on"
        elif isinstance(error, FileNotFoundError):
            hint = _missing_file(str(error.filename))
        text = "".join(traceback.format_exception(type(error), error, trace, limit=50))
        message, kind = str(error)[:2000], type(error).__name__
        return {"type": kind, "message": message, "traceback": text[-16_000:], "hint": hint}

    def interrupt(self) -> None:
        """Raise `SnippetTimeout` in the snippet's thread; takes effect at its next bytecode."""
        if self.thread.ident is not None and not self.done.is_set():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self.thread.ident), ctypes.py_object(SnippetTimeout)
            )


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
            current = self._current
            if current is not None and not current.done.is_set():
                ran = time.monotonic() - current.started
                raise EvalBusy(f"an earlier snippet has been running for {ran:.1f} s")
            evaluation = self._current = Evaluation(code, self._scope, self._output_bytes)
        note("started", None)
        evaluation.thread.start()
        if not evaluation.done.wait(timeout_s):
            self._stop(evaluation, timeout_s, note)
        outcome = "ok" if evaluation.error is None else "raised"
        note(outcome, evaluation.elapsed_s)
        return {
            "output": evaluation.buffer.text(),
            "dropped_bytes": evaluation.buffer.dropped_bytes,
            "value": evaluation.value,
            "error": evaluation.error,
            "elapsed_ms": (evaluation.elapsed_s or 0.0) * 1e3,
        }

    def _stop(self, evaluation: Evaluation, timeout_s: float, note: Note) -> None:
        evaluation.interrupt()
        stopped = evaluation.done.wait(_GRACE_S)
        note("timeout", time.monotonic() - evaluation.started)
        printed = evaluation.buffer.text()[-200:]
        tail = f" It had printed: {printed!r}." if printed else ""
        if stopped:
            raise EvalTimeout(f"the snippet was stopped after {timeout_s:g} s.{tail}")
        raise EvalTimeout(
            f"the snippet did not end within {timeout_s:g} s and still runs: it is inside a call that "
            f"cannot be interrupted.{tail}"
        )


def _missing_file(name: str) -> str:
    if name.startswith("nvidia-"):
        return f"this host has no {name}: most likely no NVIDIA device"
    return f"relative paths start at the job's folder, {os.getcwd()}" if not os.path.isabs(name) else ""


def short_repr(value: Any, buffer: Buffer) -> str:
    """A value as text: tensors by shape and figures when they are large, the rest cut sensibly."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor) and value.numel() > 1000:
        return f"tensor(shape={list(value.shape)}, dtype={value.dtype}, device={value.device})"
    if isinstance(value, str):
        text = value if len(value) <= 10_000 else value[:10_000]
        buffer.dropped_bytes += len(value) - len(text)
        return repr(text)
    if isinstance(value, (list, tuple, dict, set, frozenset)) and len(value) > 1000:
        shortener = reprlib.Repr()
        shortener.maxlist = shortener.maxtuple = shortener.maxdict = shortener.maxset = 100
        return shortener.repr(value)
    text = repr(value)
    if len(text) > 65_536:
        buffer.dropped_bytes += len(text) - 65_536
        text = text[:65_536]
    return text
