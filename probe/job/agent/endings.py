"""Endings: records what ends the process, before it is gone.

Exceptions at the top of a thread, `os._exit`, fatal signals (`crashes`), and the wait of PROBE_HOLD_S.
Nothing that the job does or prints changes: no `sys.excepthook` is replaced, no exception or traceback is
kept, no code of the job is called. Runs on the thread that ends; at the interpreter's end on the main
thread; on the agent's thread when the main thread has failed and waits for others. Standard library only.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, TracebackType
from typing import Any

from probe.base.isolation import Isolation, capture, say
from probe.base.redaction import redact
from probe.job.agent.crashes import Crashes
from probe.job.instruments.core.patch import Patches
from probe.job.instruments.core.recorder import Recorder
from probe.job.introspection import python_frames, thread_stacks
from probe.job.introspection.thread_stacks import DEEPEST, describe
from probe.recording import places
from probe.recording.captures import journal_rows
from probe.recording.recording import Recording

LONGEST_MESSAGE = 4000
"""Characters of an exception's text that are kept."""
_LONGEST_ARGUMENT = 200
_MOST_CAUSES = 5
_LARGEST_ARGUMENTS = 1_000_000
"""An exception's text is not made from arguments with more characters than this."""
_PLAIN = (str, bytes, int, float, complex, bool, type(None))
FAILED_THREAD = "MainThread (exception)"
"""Name under which a held process shows the frames of the exception that ended it."""


class Endings:
    """The endings of one agent. `module_path` gives the path of a module, None if it has none."""

    def __init__(
        self, recording: Recording, isolation: Isolation, recorder: Recorder,
        module_path: Callable[[Any], str | None],
    ) -> None:
        self._journal = recording.journal
        self._isolation = isolation
        self._recorder = recorder
        self._module_path = module_path
        self._crashes = Crashes(places.crash_file(recording.process))
        self._patches = Patches()
        self._process = os.getpid()
        self._noting = threading.Lock()
        self._noted = id(_last_error())
        self.holding = False
        """Whether the process waits because of PROBE_HOLD_S."""

    def install(self) -> None:
        """Wrap `threading.excepthook` and `os._exit`; record fatal signals."""
        guard = self._isolation.guard
        failed, leaves = guard("endings", self._thread_failed), guard("endings", self._leaves)

        def wrap_hook(original: Any) -> Any:
            def excepthook(args: Any) -> Any:
                if self._patches.live[0]:
                    failed(args)
                return original(args)

            return excepthook

        def wrap_exit(original: Any) -> Any:
            def _exit(*args: Any, **kwargs: Any) -> Any:
                if self._patches.live[0]:
                    leaves(args, kwargs, sys._getframe(1))
                return original(*args, **kwargs)

            return _exit

        self._patches.wrap(threading, "excepthook", wrap_hook)
        self._patches.wrap(os, "_exit", wrap_exit)
        self._isolation.attempt("crashes", self._crashes.install)

    def uninstall(self) -> None:
        """Put everything back."""
        self._patches.undo()
        self._isolation.attempt("crashes", self._crashes.uninstall)

    def leave(self) -> None:
        """At the interpreter's end: as `uninstall`, but fatal signals are still recorded."""
        self._patches.undo()
        self._isolation.attempt("crashes", self._crashes.leave)

    def abandon(self) -> None:
        """In a forked child."""
        self._patches.undo()
        self._isolation.attempt("crashes", self._crashes.abandon)

    # Exceptions -------------------------------------------------------------

    def check(self) -> None:
        """If the main thread has failed while others still run, record that. On the agent's thread."""
        self._crashes.check()
        if id(_last_error()) == self._noted:
            return
        main = sys._current_frames().get(threading.main_thread().ident or 0)
        outermost = deque(python_frames.walk(main), maxlen=1)
        after: list[CodeType | None] = [threading._shutdown.__code__]  # type: ignore[attr-defined]
        after.append(getattr(sys.excepthook, "__code__", None))
        if outermost and outermost[0].f_code in after:
            self._note_main()

    def at_exit(self, hold_s: float) -> None:
        """On the main thread, before everything is removed: note its exception, and hold for `hold_s`."""
        self._note_main()
        found = main_failure()
        if found is None or hold_s <= 0 or hasattr(sys, "ps1"):
            return
        error, _ = found
        if isinstance(error, KeyboardInterrupt):
            return
        del found
        pid = os.getpid()
        what = f"{type(error).__name__}: {message_of(error)[:_LONGEST_ARGUMENT]}".partition("\n")[0]
        say(
            f"holding for {hold_s:g} s: {what}; inspect it with `probe {pid} backtrace` or "
            f"`probe {pid} eval …`; `kill {pid}` ends it"
        )
        del error
        self.holding = True
        try:
            capture(lambda: threading.Event().wait(hold_s))  # Ctrl-C only ends the wait
        finally:
            self.holding = False

    def failed_frames(self) -> list[FrameType]:
        """Frames of the exception that ended the main thread, innermost first; empty unless it is held."""
        found = main_failure() if self.holding else None
        return [] if found is None else [frame for frame, _ in reversed(list(_walk(found[1])))]

    def failed_thread(self) -> dict[str, Any] | None:
        """The same as a thread of a capture."""
        found = main_failure() if self.holding else None
        if found is None:
            return None
        main = thread_stacks.native_id(threading.main_thread())
        return thread_stacks.thread_entry(main, FAILED_THREAD, True, self._frames_of(found[1]))

    def _note_main(self) -> None:
        """Note the exception that ended the main thread, once."""
        with self._noting:
            found = main_failure()
            if found is None or id(found[0]) == self._noted:
                return
            self._noted = id(found[0])
            self._note(found[0], found[1], threading.main_thread(), main=True)

    def _thread_failed(self, args: Any) -> None:
        if not issubclass(args.exc_type, SystemExit) and os.getpid() == self._process:
            thread = args.thread or threading.current_thread()
            self._note(args.exc_value, args.exc_traceback, thread, main=False)

    def _note(
        self, error: BaseException, trace: TracebackType | None, thread: threading.Thread, *, main: bool
    ) -> None:
        training = thread.ident == self._recorder.thread
        found = self._frames_of(trace)
        taken = self._capture(thread, training, found)
        where = next((frame for frame in found if frame["is_user"]), found[0] if found else None)
        row = {
            "t_ns": taken["t_ns"], "step": taken["step"], "type": type(error).__name__,
            "message": message_of(error), "thread_name": thread.name, "training": training,
            "capture_id": taken["capture_id"], "main": main,
            "where": None if where is None else f"{where['func']} ({where['file']}:{where['lineno']})",
        }
        self._journal.append({"table": "python.stacks", "rows": journal_rows(taken, "exception")})
        self._journal.append({"table": "python.exceptions", "rows": [row]})

    # os._exit ---------------------------------------------------------------

    def _leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any], caller: FrameType) -> None:
        status = args[0] if args else kwargs.get("status")
        if type(status) is not int or os.getpid() != self._process:
            return
        self._note_main()
        thread = threading.current_thread()
        training = thread.ident == self._recorder.thread
        taken = self._capture(thread, training, thread_stacks.frames(caller, self._module_path))
        self._journal.append({"table": "python.stacks", "rows": journal_rows(taken, "exit")})
        self._journal.append({"event": "os._exit", "status": status & 0xFF, "t_ns": taken["t_ns"]})

    # Stacks -----------------------------------------------------------------

    def _frames_of(self, trace: TracebackType | None) -> list[dict[str, Any]]:
        kept = deque(_walk(trace), maxlen=DEEPEST)
        return [
            describe(depth, frame, line, self._module_path)
            for depth, (frame, line) in enumerate(reversed(kept))
        ]

    def _capture(
        self, thread: threading.Thread, training: bool, found: list[dict[str, Any]]
    ) -> dict[str, Any]:
        entry = thread_stacks.thread_entry(thread_stacks.native_id(thread), thread.name, training, found)
        return thread_stacks.captured(self._recorder.counted_step, self._recorder.phase, [entry])


def main_failure() -> tuple[BaseException, TracebackType | None] | None:
    """The exception that ended the main thread, as the interpreter keeps it; None without one.

    A debugger, or a library that runs Python from C, may store its own there: that one did not come from the
    outermost frame of a thread."""
    error = _last_error()
    if not isinstance(error, BaseException) or isinstance(error, SystemExit):
        return None
    trace = error.__traceback__ or getattr(sys, "last_traceback", None)
    if trace is not None and trace.tb_frame.f_back is not None:
        return None
    return error, trace


def _last_error() -> object:
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def _walk(trace: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    """Frames of a traceback and their lines, the outermost first."""
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


# Texts ------------------------------------------------------------------------


def message_of(error: BaseException) -> str:
    """The text of an exception and of its causes, without secrets and without calling code of the job."""
    parts = [_text(error)]
    seen = {id(error)}
    one = error
    while len(parts) <= _MOST_CAUSES:
        cause = one.__cause__
        word = "caused by"
        if cause is None and not one.__suppress_context__:
            cause, word = one.__context__, "while handling"
        if cause is None or id(cause) in seen:
            break
        seen.add(id(cause))
        text = _text(cause)
        parts.append(f"{word} {type(cause).__name__}" + (f": {text}" if text else ""))
        one = cause
    return redact("\n".join(parts)[:LONGEST_MESSAGE])


def _text(error: BaseException) -> str:
    arguments = _arguments(error)
    if len(arguments) == 1 and isinstance(arguments[0], str) and type(error).__str__ is BaseException.__str__:
        return str.__getitem__(arguments[0], slice(0, LONGEST_MESSAGE))
    if _has_safe_text(error) and _size(arguments) <= _LARGEST_ARGUMENTS:
        text, failed = capture(lambda: str(error)[:LONGEST_MESSAGE])
        if failed is None and type(text) is str:
            return text
    return ", ".join(map(_word, arguments[:_MOST_CAUSES]))


def _has_safe_text(error: BaseException) -> bool:
    """Whether C code or a library makes its text, from plain values."""
    code = getattr(type(error).__str__, "__code__", None)
    if code is not None and python_frames.is_user_code(code.co_filename):
        return False
    return all(type(argument) in _PLAIN for argument in _arguments(error))


def _arguments(error: BaseException) -> tuple[Any, ...]:
    """Its `args`, even if its class redefines that name."""
    found: tuple[Any, ...] = BaseException.args.__get__(error)  # type: ignore[attr-defined]
    return found


def _size(arguments: tuple[Any, ...]) -> int:
    return sum(len(argument) for argument in arguments if isinstance(argument, (str, bytes)))


def _word(argument: object) -> str:
    if isinstance(argument, str):
        return str.__getitem__(argument, slice(0, LONGEST_MESSAGE))
    if type(argument) in _PLAIN and not isinstance(argument, bytes):
        return repr(argument)[:_LONGEST_ARGUMENT]
    return f"<{type(argument).__name__}>"
