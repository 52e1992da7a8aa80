"""Where a process is: asked of its agent, read from outside, or what its recording kept last.

Called on the server's request threads, for at most a few seconds. Standard library
and the stack tools, which run in processes of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import chain
from typing import Any, NamedTuple

from probe.attach import outside
from probe.diagnose.progress import History
from probe.errors import AgentMissing, AgentUnreachable, ProcessDead
from probe.recording import places
from probe.recording.captures import last_capture
from probe.recording.journal import read_journal
from probe.recording.process import life
from probe.server import asking, notes
from probe.server.registry import LIVE, Recorded, Registry

INSIDE_S = 0.7
"""An agent that does not answer by then is not waited for: from outside it takes a tenth of a second."""

OUTSIDE_S, NATIVE_S = 5.0, 10.0
"""Python frames take a tenth of a second; native ones half a second, and longer with hundreds of threads."""


class Want(NamedTuple):
    """What a backtrace is to show, beside the Python frames of the training thread.

    `native`, `locals` and `workers` are always read from outside: inside, locals would run code of
    the job's."""

    all_threads: bool = False
    native: bool = False
    locals: bool = False
    workers: bool = False


def backtrace(registry: Registry, subject: Recorded | int, want: Want) -> dict[str, Any]:
    """A capture of a process, and in `source` and `notes` where it comes from.

    Raises `ProcessDead` for one that left no stacks, and what reading from outside raises."""
    if isinstance(subject, int):
        note = f"process {subject} runs without an agent; `probe {subject} attach` starts one in it"
        return _from_outside(subject, want, None, [note])
    if registry.status(subject).state not in LIVE:
        return _kept(registry, subject)
    return now(registry, subject, want)


def now(registry: Registry, recorded: Recorded, want: Want) -> dict[str, Any]:
    """A capture of a living, recorded process; raises `ProcessDead` when it does not live."""
    why: list[str] = []
    process = life(recorded.meta.pid)
    if process is not None and process.state in "Tt":
        why.append(f"{recorded.name} is stopped and cannot answer: read from outside")
    elif not (want.native or want.locals or want.workers):
        target = f"/v1/stacks?all_threads={int(want.all_threads)}"
        try:
            answer = asking.ask(registry, recorded, "GET", target, None, INSIDE_S)
            return {**answer, "source": "agent", "pid": recorded.meta.pid}
        except (AgentUnreachable, AgentMissing) as error:
            why.append(f"{error.message}: read from outside")
    capture = _from_outside(recorded.meta.pid, want, registry.training_thread(recorded), why)
    progress = History(recorded.meta).read()
    if progress is not None:
        capture["step"], capture["phase"] = progress.steps, progress.phase
    notes.note_capture(recorded.folder, capture, "external")
    return capture


def _from_outside(pid: int, want: Want, training_thread: int | None, why: list[str]) -> dict[str, Any]:
    capture = outside.look(
        pid, all_threads=want.all_threads, native=want.native, locals=want.locals, workers=want.workers,
        training_thread=training_thread, timeout_s=NATIVE_S if want.native else OUTSIDE_S,
    )
    return {**capture, "notes": [*why, *capture.get("notes", [])]}


def _kept(registry: Registry, recorded: Recorded) -> dict[str, Any]:
    """The last stacks that the recording of an ended process holds."""
    status = registry.status(recorded)
    ended = datetime.fromtimestamp((status.ended_ns or 0) * 1e-9).strftime("%Y-%m-%d %H:%M:%S")
    who = f"{recorded.name} (pid {recorded.meta.pid})"
    found = last_capture(_stack_rows(recorded))
    if found is None:
        raise ProcessDead(
            f"{who} ended at about {ended} and left no stacks",
            hint=f"`probe {recorded.meta.pid} diagnose` says how it ended; its recording answers `query`.",
        )
    capture, reason = found
    age_s = max(0.0, ((status.ended_ns or 0) - capture["t_ns"]) * 1e-9)
    note = (
        f"{who} ended at about {ended} ({status.how}); these are the last stacks it left "
        f"(reason: {reason}, {age_s:.1f} s before its end)"
    )
    return {**capture, "source": "recording", "pid": recorded.meta.pid, "notes": [note]}


def _stack_rows(recorded: Recorded) -> Iterator[dict[str, Any]]:
    for record in chain.from_iterable(map(read_journal, places.journals(recorded.folder))):
        if record.get("table") == "python.stacks":
            yield from record["rows"]
