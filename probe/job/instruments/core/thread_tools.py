"""What Python calls for each function or line of a thread: profilers, debuggers, measurements of coverage.

HOT PATH, but of sampled steps only: `here`, on the thread in question, which alone can be asked. Nothing of a
tool is kept but its class or code. Standard library only.
"""

from __future__ import annotations

import sys
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

OFF = "off"


class Tools(NamedTuple):
    """The tool called for each function, and the one called for each line; None: there is none."""

    profile: type | CodeType | None
    trace: type | CodeType | None


def here() -> Tools:
    """Those of the calling thread. HOT PATH."""
    return Tools(_kind(sys.getprofile()), _kind(sys.gettrace()))


def _kind(tool: Any) -> type | CodeType | None:
    if tool is None:
        return None
    if type(tool) is MethodType:
        tool = tool.__func__
    return tool.__code__ if type(tool) is FunctionType else type(tool)


def shown(kind: type | CodeType | None) -> str:
    """Name of a tool; "off" without one."""
    if kind is None:
        return OFF
    return kind.co_name if isinstance(kind, CodeType) else kind.__name__


def monitoring() -> str:
    """The profiler that listens to Python's own events, from Python 3.12 on, on all threads."""
    events: Any = getattr(sys, "monitoring", None)
    if events is None or not events.get_events(events.PROFILER_ID):
        return OFF
    return str(events.get_tool(events.PROFILER_ID) or OFF)
