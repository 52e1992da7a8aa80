"""Supported versions of Python and torch, and what the older ones lack.

`tests/test_versions.py` compares documents, metadata and `tests/campaigns/matrix.py` with this module; the
start-up hook has its own copy of the oldest Python, because it checks before it imports anything of ours.
Standard library only, in the syntax of Python 3.7: an older Python must be able to read the refusal.
"""

from __future__ import annotations

import re
import sys
from typing import NamedTuple

OLDEST_PYTHON = (3, 10)
OLDEST_TORCH = (2, 6)


class Pair(NamedTuple):
    """The oldest and the newest torch that every release is tested with, for one Python."""

    python: tuple[int, int]
    oldest_torch: str
    newest_torch: str


PAIRS = (
    Pair((3, 10), "2.6.0", "2.14.1"),
    Pair((3, 11), "2.6.0", "2.15.0"),
    Pair((3, 12), "2.6.0", "2.15.0"),
    Pair((3, 13), "2.6.0", "2.15.0"),
)
"""torch 2.15 has no wheel for Python 3.10."""


class Lack(NamedTuple):
    """A feature missing from versions between `first` and `since`. Only for messages: code tests for the
    feature itself."""

    of: str
    since: tuple[int, ...]
    what: str
    first: tuple[int, ...] = ()


_BY_NAME = "collectives that snippets call as methods of a group are recognized only by name"
"""`sys.setprofile` does not report calls of C functions that are bound as Python methods, as pybind11's are:
Python 3.10 never did, and 3.12 does since 3.12.5 (gh-122029)."""


LACKS = (
    Lack("torch", (2, 8), "saved-tensor hooks that a snippet leaves registered are not removed"),
    Lack("torch", (2, 8), "collectives issued from C++ (DDP) are recorded on NCCL only, not on gloo"),
    Lack("python", (3, 11), _BY_NAME),
    Lack("python", (3, 12, 5), _BY_NAME, first=(3, 12)),
    Lack("python", (3, 12), "snippets do not see variables of functions that call locals() or exec()"),
)


def lacks(of: str, version: tuple[int, ...]) -> list[str]:
    """The features that a version of `torch` or `python` lacks, a sentence each; empty for a recent one."""
    return [lack.what for lack in LACKS if lack.of == of and lack.first <= version < lack.since]


def number(text: object) -> tuple[int, int] | None:
    """Major and minor version of a text such as `2.6.0+cpu`; None if it is not a version."""
    found = re.match(r"\s*v?(\d+)\.(\d+)", str(text))
    return (int(found[1]), int(found[2])) if found else None


def plain(version: tuple[int, ...]) -> str:
    """As text: `2.6`."""
    return ".".join(map(str, version))


NEWEST_PYTHON = max(pair.python for pair in PAIRS)
NEWEST_TORCH = max(number(pair.newest_torch) or OLDEST_TORCH for pair in PAIRS)


def refusal(torch: object = None, python: tuple[int, ...] = sys.version_info[:2]) -> str:
    """Why the agent does not start with this torch version in this Python; empty if it does. A torch without
    a version, such as a custom build, is accepted."""
    if python[:2] < OLDEST_PYTHON:
        return f"needs Python {plain(OLDEST_PYTHON)} or newer, this is {plain((python[0], python[1]))}"
    found = number(torch)
    if found is not None and found < OLDEST_TORCH:
        return f"needs torch {plain(OLDEST_TORCH)} or newer, this is {torch}; the job runs without it"
    return ""


def refusal_here() -> str:
    """`refusal` for this process."""
    return refusal(getattr(sys.modules.get("torch"), "__version__", None))
