"""The agent's own code in an interpreter without torch: makes a recording, evaluates snippets, reads frames.

Takes a folder and a JSON list of snippets on stdin; prints one JSON object. Any Python from 3.10 on.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import threading
from pathlib import Path
from typing import Any

from probe.base import isolation
from probe.base.errors import LimitReached
from probe.base.settings import Settings
from probe.job.agent import control_socket, identity, lifecycle
from probe.job.boundary.task_queue import TaskQueue
from probe.job.introspection import python_frames, snippet_names, thread_stacks
from probe.job.snippets.evaluator import Evaluator, Snippet, Surroundings
from probe.recording.process import current_boot_id, life
from probe.recording.recording import VERSION, Meta, Recording, rings_folders

ROWS = 100
TEXTS = ["plain", "", "ü\ud800\0", "x" * 3000]


def record(folder: Path) -> Path:
    """A whole recording, as the agent makes it."""
    settings = Settings({"PROBE_DIR": str(folder), "PROBE_RINGS_DIR": str(folder)})
    process = folder / f"process=0-{os.getpid()}"
    process.mkdir()
    found = life(os.getpid())
    assert found is not None
    who = identity.identify("job", {})
    meta = Meta(
        version=VERSION, run=who.run, attempt=0, job=who.job, rank=0, world_size=None, local_rank=None,
        host="here", pid=os.getpid(), start_ticks=found.start_ticks, boot_id=current_boot_id(),
        uid=os.getuid(), argv=sys.argv, cwd=os.getcwd(), executable=sys.executable,
        python=platform.python_version(), torch="", started_ns=1, socket="", settings={},
        rings=str(next(rings_folders(settings, process, "rings", []))),
    )
    recording = Recording(process, meta, settings)
    numbers = [recording.strings.intern(text) for text in TEXTS]
    ring = recording.rings["python.scalars"]
    for row in range(ROWS):
        ring.append(row, row * 10, numbers[row % len(TEXTS)], row / 3, row, numbers[0])
    ring.put(7, 6, 60, numbers[0], float("nan"), 6, numbers[0])
    for text in TEXTS:
        recording.journal.append({"text": text})
    recording.close()
    assert ring.append(1, 2, 3, 4, 5, 6) == 0 and recording.strings.intern("late") == 0
    return process


def ask(snippets: list[str]) -> list[dict[str, Any]]:
    """Answers to the snippets, and to one that does not end."""
    main = threading.main_thread().ident
    job = Surroundings(
        lambda: snippet_names.Scope(main, dict), lambda: False, lambda: False, str, lambda: True
    )
    evaluator = Evaluator(job, TaskQueue(lambda: None), 65536)

    def answer(code: str, timeout_s: float) -> dict[str, Any]:
        return evaluator.take(Snippet(code, timeout_s, 60.0, "now", force=False), lambda _row: None)()

    answers = [answer(code, 60.0) for code in snippets]
    try:
        answer("while True: pass", 0.1)
    except LimitReached as error:
        answers.append({"message": error.message})
    return answers


class Look:
    """Reads the variables of a function on another thread while that waits."""

    def __init__(self) -> None:
        self.waiting, self.go_on = threading.Event(), threading.Event()
        self.found: dict[str, Any] = {}
        self.readable = False

    def inside(self) -> None:
        """Called by the function that is looked at."""
        self.waiting.set()
        self.go_on.wait()

    def at(self, function: Any) -> dict[str, Any]:
        """The variables found, as text."""
        thread = threading.Thread(target=function, args=(self,))
        thread.start()
        self.waiting.wait()
        frame = sys._current_frames()[thread.ident or 0]
        own = next(one for one in python_frames.walk(frame) if one.f_code is function.__code__)
        self.readable = python_frames.readable(own)
        found = python_frames.variables(own)
        text = {name: str(found[name]) for name in sorted(found) if name != "look"}
        del own, frame, found
        self.go_on.set()
        thread.join()
        return text


def plain(look: Look) -> None:
    """A function as most are: with a variable of an inner one too."""
    number, shared = 1, 2

    def inner() -> int:
        return shared

    look.inside()
    look.found = {"number": number, "inner": inner()}


def saving(look: Look) -> None:
    """A function that saved its variables before it made more."""
    early = 1
    saved = locals()
    late = 2
    look.inside()
    look.found = {"saved": sorted(saved), "sum": early + late}


def main() -> None:
    folder = Path(sys.argv[1])
    looks: dict[str, Any] = {}
    for function in (plain, saving):
        look = Look()
        text = look.at(function)
        looks[function.__name__] = [look.readable, text.pop("inner", None) is not None, text, look.found]
    main_thread = threading.main_thread().ident
    found = thread_stacks.capture(main_thread, 0, "other", lambda _module: None, all_threads=True)
    print(
        json.dumps(
            {
                "version": list(sys.version_info[:2]),
                "process": str(record(folder)),
                "answers": ask(json.load(sys.stdin)),
                "looks": looks,
                "stack": [frame["func"] for frame in found["threads"][0]["frames"]],
                "modules": [module.__name__ for module in (control_socket, isolation, lifecycle)],
            }
        )
    )


if __name__ == "__main__":
    main()
