"""`probe detach`: remove the agent from a process."""

from __future__ import annotations

from collections.abc import Mapping

import typer

from probe.base.errors import AttachPending
from probe.recording.waiting import waiting, withdraw
from probe_cli.core.direct import Request, only_process, request_process
from probe_cli.core.session import Session
from probe_cli.core.terminal import escape_controls

EXAMPLES = ("probe PID detach",)
_TIMEOUT_S = 12.0


def command(context: typer.Context) -> None:
    """Remove probe from a process. The recording is kept."""
    session: Session = context.obj
    if _cancelled(session):
        return
    answer: Mapping[str, object] = request_process(
        session,
        server=Request("POST", "/v1/detach", body={"endpoint": session.address.endpoint}),
        agent=Request("POST", "/v1/stop", body={}),
        timeout_s=_TIMEOUT_S,
    )
    who = answer.get("name") or session.address.endpoint
    session.out.line(f"detached from {who}: hooks, thread and socket removed")
    ended = answer.get("ended")
    for what in ended if isinstance(ended, list) else []:
        session.out.line(f"  {escape_controls(str(what))}")
    if answer.get("folder"):
        session.err.line(f"  next: the recording is kept: probe {answer['folder']} query …")


def _cancelled(session: Session) -> bool:
    """Cancel an attach that still waits for the process to import torch; False if there is none."""
    here = session.address.local_pid
    if here is None:
        return False
    directory, pid = here
    if only_process(directory, str(pid)) is not None:
        return False
    found = waiting(directory, pid)
    if found is not None:
        if not withdraw(found):
            raise AttachPending(
                f"process {pid} has just imported torch and is starting its agent",
                hint=f"Retry `probe {pid} detach` in a moment.",
            )
        session.out.line(f"cancelled for {pid}: no recording starts when it imports torch")
        return True
    from probe.outside.attach.attaching import is_pending

    if is_pending(pid):
        raise AttachPending(
            f"an attach to process {pid} is waiting for the GIL and cannot be cancelled",
            hint=f"Run `probe {pid} detach` once its agent has started.",
        )
    return False
