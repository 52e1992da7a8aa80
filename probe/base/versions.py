"""Which versions of Python and torch are supported, and what the older of them lack.

The one place that says so. The start-up hook keeps its own copy of the oldest Python, because nothing of
ours is imported before it has looked; documents, metadata and the matrix of environments that holds all of
this (`tests/campaigns/matrix.py`) are held against this page by `tests/test_versions.py`. Standard library
only, in the syntax of Python 3.7: an older Python must be able to read why it is declined.
"""

from __future__ import annotations

import re
import sys
from typing import NamedTuple

OLDEST_PYTHON = (3, 10)
OLDEST_TORCH = (2, 6)


class Pair(NamedTuple):
    """Of one Python, the oldest and the newest torch that every release is tried with."""

    python: tuple[int, int]
    oldest_torch: str
    newest_torch: str


PAIRS = (
    Pair((3, 10), "2.6.0", "2.14.1"),
    Pair((3, 11), "2.6.0", "2.15.0"),
    Pair((3, 12), "2.6.0", "2.15.0"),
    Pair((3, 13), "2.6.0", "2.15.0"),
)
"""The oldest torch is the oldest supported one that has a wheel for that Python; 2.15 has none for 3.10."""


class Lack(NamedTuple):
    """What is not there in versions before `since`. Each is found out by looking for what it needs, where it
    is needed; this list is what people are told."""

    of: str
    since: tuple[int, int]
    what: str


LACKS = (
    Lack("torch", (2, 8), "hooks of saved tensors that a snippet leaves on are not taken off again"),
    Lack("torch", (2, 8), "collectives that C++ issues (DDP) have rows on NCCL only, not on gloo"),
    Lack("python", (3, 11), "snippets' collectives by a group's own method are stopped by name alone"),
    Lack("python", (3, 12), "snippets do not see variables of functions that call locals() or exec()"),
)


def lacks(of: str, version: tuple[int, int]) -> list[str]:
    """What this version of `torch` or `python` lacks, a sentence each; empty for a recent one."""
    return [lack.what for lack in LACKS if lack.of == of and version < lack.since]


def number(text: object) -> tuple[int, int] | None:
    """Major and minor version of `2.6.0+cpu`; None for what is no version."""
    found = re.match(r"\s*v?(\d+)\.(\d+)", str(text))
    return (int(found[1]), int(found[2])) if found else None


def plain(version: tuple[int, int]) -> str:
    """`2.6`, for a sentence."""
    return f"{version[0]}.{version[1]}"


NEWEST_PYTHON = max(pair.python for pair in PAIRS)
NEWEST_TORCH = max(number(pair.newest_torch) or OLDEST_TORCH for pair in PAIRS)


def refusal(torch: object = None, python: tuple[int, ...] = sys.version_info[:2]) -> str:
    """Why the agent does not start beside this torch (a version, as torch says it) in this Python; empty
    when it does. A torch that says no version is let in: it is one that somebody built."""
    if python[:2] < OLDEST_PYTHON:
        return f"needs Python {plain(OLDEST_PYTHON)} or newer, this is {plain((python[0], python[1]))}"
    found = number(torch)
    if found is not None and found < OLDEST_TORCH:
        return f"needs torch {plain(OLDEST_TORCH)} or newer, this is {torch}; the job runs without it"
    return ""


def refusal_here() -> str:
    """`refusal` of this process: its Python, and the torch that it has imported."""
    return refusal(getattr(sys.modules.get("torch"), "__version__", None))
