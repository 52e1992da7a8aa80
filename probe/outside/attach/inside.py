"""Runs inside the job once it has the GIL. Sent as text (payload.py), imported nowhere.

`begin` runs on the boot library's thread for a millisecond and starts a thread for the work: a
`threading.Thread` if the job has `threading`, so that no `_DummyThread` stays behind. Before Python 3.13 the
first thread that imports `threading` counts as the main thread; a job that has not imported it has not
imported torch either, and then the work is only to wait for torch. Imports only modules that every
interpreter has loaded at its start, and of probe only the start-up hook, by its path.
"""

from __future__ import annotations

import _thread
import os
import sys
import time
from typing import Any


def begin(descriptor: int, expires_s: float, hook: str, settings: dict[str, str]) -> None:
    """Start the work, which reports its outcome over a copy of `descriptor`.

    `expires_s` is a time of the monotonic clock, which all processes share; later calls do nothing.
    """
    if time.monotonic() > expires_s:
        _report(descriptor, {"state": "expired"})
        return
    own = os.dup(descriptor)
    found = os.fstat(own)
    start = _start_thread()
    start(lambda: _work(own, (found.st_dev, found.st_ino), hook, settings))


def _start_thread() -> Any:
    """A function that starts another one on a daemon thread."""
    threading: Any = sys.modules.get("threading")
    if threading is None and sys.version_info >= (3, 13):
        import threading
    if hasattr(threading, "_main_thread"):  # set last: the module is complete
        return lambda work: threading.Thread(target=work, name="probe-attach", daemon=True).start()
    return lambda work: _thread.start_new_thread(work, ())


def _work(descriptor: int, identity: tuple[int, int], hook: str, settings: dict[str, str]) -> None:
    answer: dict[str, str] = {"error": "the start-up hook did not run"}
    try:
        _take_signals()
        answer = _hook(hook).attach(settings)
    except (ImportError, OSError, SyntaxError, AttributeError) as error:
        answer = {"error": f"{hook} cannot be used in this job: {type(error).__name__}: {error}"}
    finally:
        if _is(descriptor, identity):  # the job may have closed it and reused its number
            _report(descriptor, answer)
        if _is(descriptor, identity):
            os.close(descriptor)
        globals().clear()  # these functions keep each other alive until the next garbage collection


def _is(descriptor: int, identity: tuple[int, int]) -> bool:
    """Whether the descriptor still refers to the same file."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == identity


def _take_signals() -> None:
    """Copy the main thread's signal mask. The server that the agent starts inherits the mask; if it blocked
    all signals, the server could not be ended."""
    import signal

    # /proc/self/status describes the main thread; its tid would be one of another pid namespace.
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        [mask] = [int(line.split()[1], 16) for line in status if line.startswith("SigBlk:")]
    # 32 and 33 belong to the C library.
    blocked = {bit + 1 for bit in range(64) if mask >> bit & 1} - {32, 33}
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _hook(path: str) -> Any:
    """The start-up hook: the one loaded in this job, else the one at `path`."""
    there: Any = sys.modules.get("torch_probe_boot")
    if hasattr(there, "attach"):
        return there
    import importlib.util

    spec = importlib.util.spec_from_file_location("torch_probe_boot", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"no hook at {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if there is None:
        sys.modules["torch_probe_boot"] = module
    return module


def _report(descriptor: int, answer: dict[str, str]) -> None:
    """Report to the command. If it is gone, the job must not get a SIGPIPE."""
    import json
    import signal

    line = ("J" + json.dumps(answer) + "\n").encode()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    try:
        os.write(descriptor, line)
    except OSError:
        if signal.SIGPIPE not in before:
            signal.sigtimedwait({signal.SIGPIPE}, 0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
