"""Raises at every event of small functions that clean up, and ends snippets by their deadline; prints as JSON
what was not cleaned up. For any Python: the watch needs no torch."""

from __future__ import annotations

import ast
import json
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from probe.base.isolation import capture
from probe.job.snippets.guard.interruptible import leaks
from probe.job.snippets.guard.watching import CHECK_NAME, Watch, with_checks

FORMS = (
    "with Thing():\n    while more(): work()",
    "with Thing():\n    while more(): work(); work()",
    "with Thing():\n    for _ in some: work()",
    "with Thing():\n    for _ in some:\n        work()\n        work()",
    "with Thing():\n    while more():\n        work()\n        if some: continue\n        work()",
    "with Thing():\n    [work() for _ in some]",
    "with Thing():\n    work()\nwork()",
    "with Thing(), Thing():\n    work()",
    "def f():\n    with Thing():\n        return 5\nf()",
    "def f(x):\n    with Thing():\n        return x\nf(some)",
    "for _ in some:\n    with Thing():\n        work()\n        break",
    "with Thing():\n    try:\n        while more(): work()\n    except ZeroDivisionError: pass",
)
ENDLESS = (
    "with Thing():\n    while True: pass", "with Thing():\n    while True: work()",
    "with Thing():\n    while True:\n        work()", "with Thing():\n    for _ in count(): work()",
    "with Thing():\n    spend()\nwork()", "def f():\n    with Thing():\n        return spend()\nf()",
)
"""`spend` outlasts the deadline in C: what comes next is the end of the `with`."""


class Thing:
    """Counts how many are open."""

    open = 0

    def __enter__(self) -> None:
        Thing.open += 1

    def __exit__(self, *_: object) -> None:
        Thing.open -= 1


def names() -> dict[str, Any]:
    left = iter(range(4))
    return {
        "Thing": Thing, "work": lambda: None, "some": [1, 2, 3], "more": lambda: next(left, None) is not None,
    }


def raised_at(form: str, number: int, *, anywhere: bool) -> int | None:
    """How many things are left open when the line event of that number raises; None where there is none."""
    code = compile(form, "<form>", "exec")
    seen = [0]

    def line(frame: FrameType, event: str, _argument: Any) -> Callable[..., Any]:
        if event == "line":
            seen[0] += 1
            if seen[0] == number and (anywhere or frame.f_lasti not in leaks(frame.f_code)):
                raise KeyError
        return line

    def entered(frame: FrameType, _event: str, _argument: Any) -> Callable[..., Any] | None:
        return line if frame.f_code.co_filename == "<form>" else None

    Thing.open = 0
    given = names()

    def run() -> None:
        sys.settrace(entered)
        try:
            exec(code, given)
        finally:
            sys.settrace(None)

    capture(run)
    return Thing.open if seen[0] >= number else None


def every_event(*, anywhere: bool) -> list[tuple[str, int]]:
    """Forms and events after which something was left open."""
    found = []
    for form in FORMS:
        number = 1
        while (left := raised_at(form, number, anywhere=anywhere)) is not None:
            found += [(form, number)] * bool(left)
            number += 1
    return found


def ended(form: str) -> tuple[str, int]:
    """How a snippet that is over its time ended, and what it left open."""
    from itertools import count

    Thing.open = 0
    watch = Watch(time.monotonic() + 0.05, collectives=False, training_thread=False, memory_bytes=None)
    given = {**names(), "count": count, "spend": lambda: sum(map(len, [""] * 4_000_000)),
             CHECK_NAME: watch.check}
    code = compile(with_checks(ast.parse(form)), "<snippet>", "exec")

    def run() -> None:
        with watch:
            exec(code, given)

    return type(capture(run)[1]).__name__, Thing.open


if __name__ == "__main__":
    print(json.dumps({
        "left": every_event(anywhere=False), "without_care": len(every_event(anywhere=True)),
        "ended": {form: ended(form) for form in ENDLESS},
    }))
