"""Runs endless, greedy and forbidden snippets under the watch and prints what became of each, as JSON.

For any Python, with or without torch: the watch needs neither."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import sys
import threading
import time
from typing import Any

from probe.base.isolation import capture
from probe.job.snippets.guard.watching import (
    CHECK_NAME,
    SnippetForbidden,
    SnippetMemory,
    SnippetTimeout,
    Watch,
    with_checks,
)

DEADLINE_S = 0.08
FORBIDDEN = "forbidden"
LATE = "late"
ENDLESS = {
    "while": "while True: pass",
    "while on two lines": "while True:\n    x = 1",
    "nested loops that catch everything": (
        "while True:\n    try:\n        while True:\n            try:\n                1 / 0\n"
        "            except BaseException: pass\n    except BaseException: pass"
    ),
    "a loop that catches everything": "while True:\n    try:\n        1 / 0\n    except BaseException: pass",
    "a loop whose every round goes on": "while True:\n    try: pass\n    finally:\n        continue",
    "a loop that suppresses": (
        "import contextlib\nwhile True:\n    with contextlib.suppress(BaseException):\n        1 / 0"
    ),
    "recursion that catches everything": (
        "def f():\n    while True:\n        try: f()\n        except BaseException: f()\nf()"
    ),
    "recursion": "def f(n): return f(n - 1) + f(n - 2) if n > 0 else 1\nf(60)",
    "lambdas": "f = lambda n: f(n - 1) + f(n - 2) if n > 0 else 1\nf(60)",
    "a generator expression": "import itertools\nsum(1 for _ in itertools.count())",
    "a list comprehension": "import itertools\n[0 for _ in itertools.count() if False]",
    "a generator": "def g():\n    while True: yield 1\nfor _ in g(): pass",
    "a for loop": "import itertools\nfor _ in itertools.count(): pass",
    "a function of the job": "spin()",
    "a function of the job that catches everything": "stubborn()",
    "a function of the job that C calls": "list(map(lambda _: spin(), [1]))",
    "a loop that catches what a function of the job raises": (
        "while True:\n    try: spin()\n    except BaseException: pass"
    ),
    "a handler that goes on": "try:\n    spin()\nexcept BaseException:\n    while True: pass",
    "a sort with a key in Python": "sorted(range(10**6), key=lambda n: n)",
}
CALLS = {
    "os._exit": "import os\nos._exit(3)",
    "os._exit by a name that is made": "import os\ngetattr(os, '_ex' + 'it')(3)",
    "sys.exit": "import sys\nsys.exit(3)",
    "exit": "exit()",
    "os.fork": "import os\nos.fork()",
    "os.kill": "import os\nos.kill(os.getpid(), 9)",
    "signal.signal": "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "input": "input()",
    "breakpoint": "import pdb\npdb.set_trace()",
    "sys.settrace": "import sys\nsys.settrace(None)",
    "sys.setprofile": "import sys\nsys.setprofile(None)",
    "sys.setrecursionlimit": "import sys\nsys.setrecursionlimit(10)",
    "time.sleep on the training thread": "import time\ntime.sleep(60)",
    "in a function of the job": "leave()",
    "what was caught": "import os\ntry: os._exit(3)\nexcept BaseException: pass\nwhile True: pass",
    "after too deep a recursion": (
        "import os\ndef f(): f()\ntry: f()\nexcept RecursionError: os._exit(3)"
    ),
    "in a thread's target that is called here": "import os, functools\n(lambda f: f(3))(os._exit)",
}
FINE = {
    "a loop": "for n in range(1000): pass",
    "a thread": "import threading\nt = threading.Thread(target=len, args=('',))\nt.start(); t.join()",
    "a subprocess": "import subprocess\nsubprocess.run(['true'])",
    "an exception": "try: 1 / 0\nexcept ZeroDivisionError: pass",
    "a documented function": "def f():\n    'text'\n    return f.__doc__\nassert f() == 'text'",
    "a comprehension": "assert [n for n in range(9) if n % 2] == [1, 3, 5, 7]",
    "a lambda": "assert (lambda n: n and 2)(1) == 2 and (lambda: None)() is None and (lambda: 0)() == 0",
}


def spin() -> None:
    while True:
        pass


def stubborn() -> None:
    n = 0
    while True:
        with contextlib.suppress(BaseException):
            n += 1
            len("")


def leave() -> None:
    os._exit(3)


def run(code: str, *, deadline_s: float = DEADLINE_S, memory_bytes: int | None = None) -> str:
    """What became of a snippet."""
    tree = with_checks(ast.parse(code))
    watch = Watch(
        time.monotonic() + deadline_s, collectives=False, training_thread=True, memory_bytes=memory_bytes
    )
    names: dict[str, Any] = {"spin": spin, "stubborn": stubborn, "leave": leave, CHECK_NAME: watch.check}

    def watched() -> None:
        with watch:
            exec(compile(tree, "<snippet>", "exec"), names)

    _, error = capture(watched)
    match error:
        case None:
            return "ended"
        case SnippetTimeout():
            return LATE
        case SnippetForbidden():
            return f"{FORBIDDEN}: {error.what} {error.why}"
        case SnippetMemory():
            return "memory"
    return type(error).__name__


def traced(frame: Any, event: str, argument: Any) -> Any:
    """The job's own trace function, as a debugger or a coverage tool has one."""
    SEEN.append(frame.f_code.co_name)
    return None


SEEN: list[str] = []


def mine() -> None:
    """A function that the job's own trace function sees."""


def main() -> None:
    """All of them, each on a thread with a trace function of its own, and what that thread has afterwards."""
    answers: dict[str, dict[str, str]] = {}
    untouched = []
    longest_s = [0.0]

    def all_of_them() -> None:
        for group, snippets in (("endless", ENDLESS), ("calls", CALLS), ("fine", FINE)):
            for name, code in snippets.items():
                sys.settrace(traced)
                sys.setprofile(None)
                began_s = time.monotonic()
                became = run(code, deadline_s=DEADLINE_S if group == "endless" else 30.0)
                longest_s[0] = max(longest_s[0], time.monotonic() - began_s)
                answers.setdefault(group, {})[name] = became
                SEEN.clear()
                mine()
                untouched.append(sys.gettrace() is traced and sys.getprofile() is None and "mine" in SEEN)
                sys.settrace(None)

    thread = threading.Thread(target=all_of_them)
    thread.start()
    thread.join()
    print(json.dumps({"answers": answers, "untouched": all(untouched), "longest_s": longest_s[0]}))


if __name__ == "__main__":
    main()
