"""Requests that an agent answers at once (stacks, detach), and the errors of all requests to agents.

Runs on the server's request threads: `ask` blocks for at most its timeout. Requests that may wait for the end
of a step go through `forwarding`. Standard library only.
"""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Any

from probe.base import wire
from probe.base.errors import AgentMissing, AgentUnreachable, NoBoundary, ProcessDead
from probe.bundle import moment
from probe.recording.process import alive, life
from probe.server.recordings import exit_report
from probe.server.recordings.registry import LIVE, Recorded, Registry, Status

DETACH_TIMEOUT_S = 10.0
"""A running snippet, or a step that is inside probe's hooks, may have to end first."""


def who(recorded: Recorded) -> str:
    """`gpt/0 (pid 4242)`."""
    return f"{recorded.name} (pid {recorded.meta.pid})"


def why_silent(recorded: Recorded) -> str:
    """Why the agent of a living process may not answer."""
    process = life(recorded.meta.pid)
    if process is not None and process.state in "Tt":
        return "it is stopped"
    return "something in it holds the GIL, or it gets no CPU on this busy machine"


def require_live(recorded: Recorded, status: Status) -> None:
    """Raise `ProcessDead` for a process that has ended, `AgentMissing` for one whose recording has."""
    if status.state in LIVE:
        return
    meta = recorded.meta
    if status.how == exit_report.STOPPED and alive(meta.pid, meta.start_ticks, meta.boot_id):
        raise AgentMissing(f"the recording of {who(recorded)} was stopped: it runs without an agent")
    ended = datetime.fromtimestamp((status.ended_ns or 0) * 1e-9).strftime("%Y-%m-%d %H:%M:%S")
    if meta.boot_id == moment.BOOT:
        raise ProcessDead(
            f"{who(recorded)} is a recording in a bundle: its process is not reachable from here",
            hint="`diagnose`, `health`, `backtrace`, `query`, `ranks` and `tables` answer from the bundle.",
        )
    how = "ended" if status.state == "finished" else "died"
    raise ProcessDead(
        f"{who(recorded)} {how} at about {ended}",
        hint=f"Its recording can still be queried: probe {recorded.meta.pid} query …",
    )


def ask(
    registry: Registry, recorded: Recorded, method: str, target: str, body: object, timeout_s: float
) -> dict[str, Any]:
    """Ask a live process's agent; raises `ProcessDead`, `AgentMissing` or `AgentUnreachable`."""
    require_live(recorded, registry.status(recorded))
    name = who(recorded)
    started = time.monotonic()
    try:
        answer = wire.call(Path(recorded.meta.socket), method, target, body, timeout_s=timeout_s)
    except AgentUnreachable:
        raise AgentUnreachable(
            f"{name} did not answer within {timeout_s:g} s: {why_silent(recorded)}"
        ) from None
    except FileNotFoundError:
        raise without_socket(recorded) from None
    except OSError as error:
        waited_s = time.monotonic() - started
        what = error.strerror or error
        raise AgentUnreachable(f"{name} did not answer ({what}, {waited_s:.1f} s)") from None
    return answer_of(recorded, answer)


def answer_of(recorded: Recorded, answer: object) -> dict[str, Any]:
    """An agent's answer; raises `AgentUnreachable` if it is not a JSON object."""
    if not isinstance(answer, dict):
        raise AgentUnreachable(f"{who(recorded)} sent an answer that is not a JSON object")
    return answer


def without_socket(recorded: Recorded) -> AgentMissing:
    """The error about a living process whose agent has no socket."""
    return AgentMissing(
        f"{who(recorded)} is alive, but its agent has no socket (it is starting, or was stopped)"
    )


def stalled(name: str, why: str) -> NoBoundary:
    """The error for a request that needs the end of a step in a stalled job; `why`: the verdict."""
    return NoBoundary(
        f"{name} finishes no steps, so probe does not wait for one: {why}. Nothing was changed",
        hint="Commands that only read still work: `diagnose`, `backtrace --native --all-threads`, `query`, "
        "`eval` of an expression. `--now` (eval, checkpoint) does not wait for a step; `--wait S` waits "
        "anyway.",
    )


def detach(registry: Registry, recorded: Recorded) -> dict[str, Any]:
    """Have the agent leave its process; raises `AgentUnreachable` if it does not confirm in time."""
    try:
        answer = ask(registry, recorded, "POST", "/v1/stop", {}, DETACH_TIMEOUT_S)
    except AgentUnreachable as error:
        raise AgentUnreachable(
            f"{error.message}. It was told to detach, and will do so when it can run again",
            hint=f"`probe {recorded.meta.pid} diagnose` shows what blocks it.",
        ) from None
    return {
        "pid": recorded.meta.pid, "name": recorded.name, "folder": str(recorded.folder),
        "ended": answer.get("ended", []),
    }
