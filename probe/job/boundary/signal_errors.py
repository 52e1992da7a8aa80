"""Signal errors: tells exceptions raised by a signal's handler, which belong to the training, from others.

Called on the thread that caught the exception. Standard library only.
"""

from __future__ import annotations

import dis
import signal
from collections.abc import Iterator
from types import TracebackType


def from_signal(error: BaseException) -> bool:
    """Whether a signal's handler raised this, and not the snippet: Ctrl-C and SIGTERM are for the
    training."""
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()}
    innermost = None
    for trace in traces(error.__traceback__):
        innermost = trace
        if trace.tb_frame.f_code in handlers:
            return True
    return isinstance(error, KeyboardInterrupt) and innermost is not None and not _raises(innermost)


def traces(trace: TracebackType | None) -> Iterator[TracebackType]:
    """A traceback's entries, the outermost first."""
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _raises(trace: TracebackType) -> bool:
    """Whether a frame was left by its own `raise`: Python's handler of Ctrl-C has no frame."""
    at = [one for one in dis.get_instructions(trace.tb_frame.f_code) if one.offset == trace.tb_lasti]
    return bool(at) and at[0].opname in ("RAISE_VARARGS", "RERAISE")
