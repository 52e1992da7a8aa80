"""`probe PID attach` and `probe PID detach`. The command's main thread.

Attaching is done by this process itself, not by the server: it is the person at the
terminal whose rights count, and whom a long wait is told to.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from probe.base.errors import AttachPending, UsageError
from probe.base.settings import SETTINGS, Settings
from probe.recording import places
from probe.recording.waiting import waiting, withdraw
from probe_cli.core.direct import Question, ask_process, only_process
from probe_cli.core.session import Session
from probe_cli.core.terminal import escape_controls

if TYPE_CHECKING:
    from probe.recording.recording import Meta

DETACH_TIMEOUT_S = 12.0
_NOT_FOR_THE_JOB = frozenset({"PROBE", "PROBE_ENDPOINT"})


def attach(session: Session, wait_s: float, name: str | None) -> None:
    """Start an agent in the process that the endpoint names by its pid, or say that one is there."""
    address = session.address
    pid = address.endpoint.strip()
    if not pid.isascii() or not pid.isdigit() or address.directory is None:
        raise UsageError("attach needs the pid of a process on this machine", hint="probe PID attach")
    meta = only_process(address.directory, pid)
    if meta is not None:
        session.out.line(f"{_who(meta)} has an agent already; nothing was done")
        _say_what_next(session, meta)
        return
    if waiting(address.directory, int(pid)) is not None:
        session.out.line(f"{pid} is attached to already and has not imported torch; nothing was done")
        session.err.line(f"  next: recording begins when it does; `probe {pid} detach` withdraws that")
        return
    from probe.outside.attach.attaching import attach as inject

    directory = places.make_private(address.directory)
    settings = settings_for(session.settings, str(directory), name)
    attached = inject(int(pid), settings, directory=directory, wait_s=wait_s, say=session.note)
    meta = None if attached.outcome == "waiting for torch" else only_process(directory, pid)
    if meta is None:
        session.out.line(f"attached to {pid}, which has not imported torch: recording begins when it does")
        session.err.line(f"  next: `probe {pid} detach` withdraws that")
        return
    took = "" if attached.running_s is None else f" in {attached.running_s:.1f} s"
    session.out.line(f"attached to {_who(meta)}{took}; recording from the next step on")
    _say_what_next(session, meta)


def settings_for(settings: Settings, directory: str, name: str | None) -> dict[str, str]:
    """The variables that the agent takes from this command's environment."""
    found = {
        setting.env: settings.environ[setting.env]
        for setting in SETTINGS
        if settings.environ.get(setting.env) and setting.env not in _NOT_FOR_THE_JOB
    }
    found["PROBE_DIR"] = directory
    found.setdefault("PROBE_SERVER_PYTHON", sys.executable)
    if name:
        found["PROBE_NAME"] = name
    return found


def detach(session: Session) -> None:
    """Have the agent leave the process; its recording stays. One that waits for torch will not start."""
    if _withdrawn(session):
        return
    answer: Mapping[str, object] = ask_process(
        session,
        server=Question("POST", "/v1/detach", body={"endpoint": session.address.endpoint}),
        agent=Question("POST", "/v1/stop", body={}),
        timeout_s=DETACH_TIMEOUT_S,
    )
    who = answer.get("name") or session.address.endpoint
    session.out.line(f"detached from {who}: hooks, thread and socket are gone from the process")
    ended = answer.get("ended")
    for what in ended if isinstance(ended, list) else []:
        session.out.line(f"  {escape_controls(str(what))}")
    if answer.get("folder"):
        session.err.line(f"  next: its recording stays: probe {answer['folder']} query …")


def _withdrawn(session: Session) -> bool:
    """Whether the endpoint is a process without an agent in which one would have started later."""
    address = session.address
    pid = address.endpoint.strip()
    if not pid.isascii() or not pid.isdigit() or address.directory is None:
        return False
    if only_process(address.directory, pid) is not None:
        return False
    found = waiting(address.directory, int(pid))
    if found is not None:
        if not withdraw(found):
            raise AttachPending(
                f"process {pid} has just imported torch and starts its agent",
                hint=f"`probe {pid} detach` again in a moment has it leave.",
            )
        session.out.line(f"withdrawn from {pid}: no recording begins when it imports torch")
        return True
    from probe.outside.attach.attaching import is_pending

    if is_pending(int(pid)):
        raise AttachPending(
            f"an attach to process {pid} is loaded and waits for the GIL: it cannot be withdrawn",
            hint=f"Its agent starts as soon as it can; then `probe {pid} detach` has it leave.",
        )
    return False


def _who(meta: Meta) -> str:
    return f"{meta.job}/{meta.rank} (pid {meta.pid})"


def _say_what_next(session: Session, meta: Meta) -> None:
    commands = (f"probe {meta.pid} {command}" for command in ("diagnose", "backtrace", "detach"))
    session.err.line(f"  next: {'  |  '.join(commands)}")
