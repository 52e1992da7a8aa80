"""Detects tools that Python calls for each function or line of a thread: profilers, debuggers, coverage.

HOT PATH, on sampled steps only: `here`, which must run on the inspected thread (Python offers no other way).
Only a tool's class or code object is kept. Standard library only.
"""

from __future__ import annotations

import sys
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

OFF = "off"


class Tools(NamedTuple):
    """The tool called for each function, and the one called for each line; None without one."""

    profile: type | CodeType | None
    trace: type | CodeType | None


def here() -> Tools:
    """The calling thread's tools. HOT PATH."""
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
    """Name of the profiler registered with `sys.monitoring` (Python 3.12 and later, all threads); "off"
    without one."""
    events: Any = getattr(sys, "monitoring", None)
    if events is None or not events.get_events(events.PROFILER_ID):
        return OFF
    return str(events.get_tool(events.PROFILER_ID) or OFF)
