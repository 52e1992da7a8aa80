"""Attaches without gdb: with pyinjector on one parked thread, in a child process.

pyinjector does not save vector registers, and does not restart a system call that a signal interrupted. So it
is used only on a thread that is not the main one (where signals arrive) and that is in a blocking system
call, checked again after the stop. `inject` runs in the command and starts run_borrowed.py, which calls
`borrow`. That process is never killed half-way: it controls the thread for some tens of milliseconds.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

from probe.outside.attach.gdb import Done
from probe.outside.attach.parked import Parked, where

LIMIT_S = 30.0
"""It takes 0.05 s; after this time the child process is left alone, not killed."""
_TRIES = 5


def available() -> bool:
    """Whether pyinjector is installed for this Python."""
    return importlib.util.find_spec("pyinjector") is not None


def inject(pid: int, parked: list[Parked], library: Path) -> Done:
    """Load `library` on one of the `parked` threads, except the main one, and start the library's thread."""
    others = [found for found in parked if found.tid != pid]
    if not others:
        return Done(problem="no thread but the main one is parked in a system call", kind="Refused")
    plan = {"pid": pid, "parked": [list(found) for found in others], "library": str(library)}
    process = subprocess.Popen(
        [sys.executable, "-I", str(Path(__file__).with_name("run_borrowed.py")), json.dumps(plan)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return Done(problem=f"pyinjector (pid {process.pid}) hangs in the job and was left alone")
    except KeyboardInterrupt:
        process.wait(LIMIT_S)
        raise
    for line in said.splitlines():
        if line.startswith("probe: "):
            return Done(**json.loads(line.removeprefix("probe: ")))
    return Done(problem=f"pyinjector failed: {said.strip()[-300:] or 'no output'}")


def borrow(pid: int, parked: list[Parked], library: str) -> Done:
    """In the child process: try the threads one after the other."""
    from pyinjector.injector import Injector, InjectorException  # type: ignore[import-untyped]

    problem = "the parked threads have resumed"
    for found in parked[:_TRIES]:
        injector = Injector()
        began = time.monotonic()
        try:
            injector.attach(found.tid)
            try:
                if where(pid, found.tid) != found:
                    continue
                injector.call(injector.inject(library.encode()), "probe_spawn")
            finally:
                injector.detach()
        except InjectorException as error:
            problem = f"pyinjector: {error.args[-1] or error}"
            continue
        return Done("a parked thread, without gdb", stopped_s=time.monotonic() - began)
    return Done(problem=problem, kind="Refused" if problem.startswith("the parked") else "")
