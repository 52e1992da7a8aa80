"""What the agent writes down at an end, in an interpreter without torch: makes a recording and ends as asked.

Takes a folder and a way to end. Prints the recording's folder. Any Python from 3.10 on.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import os
import sys
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from probe.base.isolation import Isolation
from probe.job.agent.endings import Endings
from records_without_torch import record


class Trouble(ValueError):
    """Its text is nobody's to ask for."""

    def __str__(self) -> str:
        os.write(1, b"ASKED\n")
        return "asked"


class Large:
    """Something that a frame holds."""


HELD: list[weakref.ref[Large]] = []


def trouble() -> None:
    """Raise, caused by something else, with something large at hand."""
    large = Large()
    HELD.append(weakref.ref(large))
    try:
        raise KeyError("the cause")
    except KeyError as error:
        raise Trouble("what is wrong") from error


def in_thread() -> None:
    """Raise in another thread."""
    thread = threading.Thread(target=trouble, name="worker")
    thread.start()
    thread.join()
    if HELD[0]() is not None:
        print("KEPT", flush=True)


WAYS: dict[str, Any] = {
    "exception": trouble, "thread": in_thread, "os._exit": lambda: os._exit(7),
    "SIGSEGV": lambda: ctypes.string_at(0), "abort": os.abort, "sys.exit": lambda: sys.exit(3),
    "stop": lambda: None,
}


def main() -> None:
    folder, way = Path(sys.argv[1]), sys.argv[2]
    process = record(folder)
    print(process, flush=True)
    from probe.recording.journal import Journal

    recorder: Any = SimpleNamespace(
        step=5, counted_step=5, phase="other", thread=threading.main_thread().ident
    )
    recording: Any = SimpleNamespace(process=process, journal=Journal(process / "journal.bin"))
    endings = Endings(recording, Isolation(), recorder, lambda _module: None)
    endings.install()
    assert endings._crashes.ours and not faulthandler.is_enabled()

    def at_exit() -> None:
        endings.at_exit(0.0)
        endings.leave()

    if way == "stop":
        endings.uninstall()
        assert not endings._crashes.ours and isinstance(os._exit, type(len))
    else:
        atexit.register(at_exit)
    WAYS[way]()


if __name__ == "__main__":
    main()
