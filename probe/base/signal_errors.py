"""Signal errors: recognizes exceptions raised by the job's signal handlers, which belong to the training.

A handler runs wherever the main thread is, including inside our hooks. Called only on the thread that caught
the exception. Standard library only.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` makes enums of its numbers at import
import functools
from collections.abc import Iterator
from itertools import pairwise
from types import CodeType, FunctionType, MethodType, TracebackType
from typing import Any

_MOST_ARGUMENTS = 3
"""Arguments of a handler: `self`, the number, the frame."""
_VARARGS = 0x04
"""`inspect.CO_VARARGS`, without that import."""


def from_signal(error: BaseException) -> bool:
    """Whether a signal handler raised this (Ctrl-C, SIGTERM, an alarm), and neither a snippet nor a hook."""
    handlers = {_code_of(_signal.getsignal(number)) for number in _signal.valid_signals()}
    before = None
    for trace in traces(error.__traceback__):
        if trace.tb_frame.f_code in handlers or (before is not None and _handles(trace, before)):
            return True
        before = trace
    return isinstance(error, KeyboardInterrupt) and before is not None and not _raises(before)


def traces(trace: TracebackType | None) -> Iterator[TracebackType]:
    """A traceback's entries, the outermost first."""
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _code_of(handler: Any) -> CodeType | None:
    """The code object of a handler; None if it has none, as SIG_DFL and SIG_IGN. Reads an object's class, not
    its own attributes: those are the job's and may raise."""
    while type(handler) is functools.partial:
        handler = handler.func
    if type(handler) is MethodType:
        handler = handler.__func__
    if type(handler) is not FunctionType:
        handler = getattr(type(handler), "__call__", None)  # noqa: B004 - of an object that is a handler
    return handler.__code__ if type(handler) is FunctionType else None


def _handles(trace: TracebackType, before: TracebackType) -> bool:
    """Whether a frame belongs to a handler that has been replaced since: its arguments include a number and
    the frame that it interrupted."""
    code = trace.tb_frame.f_code
    given: list[Any] = []
    if code.co_argcount <= _MOST_ARGUMENTS:
        found = trace.tb_frame.f_locals
        for name in code.co_varnames[: code.co_argcount + bool(code.co_flags & _VARARGS)]:
            value = found.get(name)
            given += value if type(value) is tuple else (value,)
    return any(type(one) is int and two is before.tb_frame for one, two in pairwise(given))


def _raises(trace: TracebackType) -> bool:
    """Whether a frame ended with its own `raise`. Python's handler of Ctrl-C has no frame, so no `raise`."""
    import dis  # torch has imported it

    at = [one for one in dis.get_instructions(trace.tb_frame.f_code) if one.offset == trace.tb_lasti]
    return bool(at) and at[0].opname in ("RAISE_VARARGS", "RERAISE")
