"""`probe attach`: start an agent in a running process.

The command's own process attaches, not the server: so the user's own privileges apply, and the user sees
a long wait.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from probe.base.errors import UsageError
from probe.base.settings import SETTINGS, Settings
from probe.recording import places
from probe.recording.waiting import waiting
from probe_cli.core import wait_line
from probe_cli.core.direct import name_of, only_process
from probe_cli.core.figures import duration
from probe_cli.core.options import JobName
from probe_cli.core.session import Session

if TYPE_CHECKING:
    from probe.recording.recording import Meta

EXAMPLES = ("probe PID attach",)
_NOT_FOR_THE_JOB = frozenset({"PROBE", "PROBE_ENDPOINT"})


def command(
    context: typer.Context,
    wait: Annotated[
        float, typer.Option("--wait", metavar="S", min=0.1, help="Seconds to wait for the process's GIL.")
    ] = 15.0,
    name: JobName = None,
) -> None:
    """Start recording a running process."""
    session: Session = context.obj
    here = session.address.local_pid
    if here is None:
        raise UsageError("attach needs the PID of a process on this machine", hint="probe PID attach")
    directory, pid = here
    meta = only_process(directory, str(pid))
    if meta is not None:
        session.out.line(f"{name_of(meta)} already has an agent; nothing to do")
        _say_what_next(session, meta)
        return
    if waiting(directory, pid) is not None:
        session.out.line(f"already attached to {pid}, which has not imported torch; nothing to do")
        session.err.line(f"  next: wait for it; {_FROM_ITS_START}; `probe {pid} detach` cancels")
        return
    from probe.outside.attach.attaching import attach as inject

    directory = places.make_private(directory)
    settings = settings_for(session.settings, str(directory), name)
    text = f"attaching to {pid}: waiting for its GIL, at most {wait:g} s; Ctrl-C stops"
    with wait_line.waiting(session.err, text):
        attached = inject(pid, settings, directory=directory, wait_s=wait, say=session.note)
    meta = None if attached.outcome == "waiting for torch" else only_process(directory, str(pid))
    if meta is None:
        session.out.line(f"attached to {pid}, which has not imported torch: recording starts when it does")
        session.err.line(f"  next: {_FROM_ITS_START}; `probe {pid} detach` cancels")
        return
    took = "" if attached.running_s is None else f" in {duration(attached.running_s)}"
    session.out.line(f"attached to {name_of(meta)}{took}; recording starts at the next step")
    _say_what_next(session, meta)


_FROM_ITS_START = "`PROBE=1` in a job's environment records it from its start, without attaching"


def settings_for(settings: Settings, directory: str, name: str | None) -> dict[str, str]:
    """The probe variables of this command's environment that are passed to the agent."""
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


def _say_what_next(session: Session, meta: Meta) -> None:
    commands = (f"probe {meta.pid} {command}" for command in ("diagnose", "backtrace", "detach"))
    session.err.line(f"  next: {'  |  '.join(commands)}")
