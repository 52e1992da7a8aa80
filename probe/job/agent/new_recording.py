"""New recording: chooses where this process records, and collects the facts about it.

On the thread that starts the agent. Standard library only, plus the job's torch for its version.
"""

from __future__ import annotations

import itertools
import os
import platform
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probe.base import clock
from probe.base.errors import NoRoom
from probe.base.isolation import say
from probe.base.settings import SETTINGS, Settings
from probe.job.agent.identity import Identity, counted_attempt
from probe.recording import places
from probe.recording.process import current_boot_id, life, own_pid
from probe.recording.recording import VERSION, Meta, Recording, ring_scale, rings_folders


def make_directory(settings: Settings) -> Path:
    """The folder of recordings. If it is not the usual one, the process that makes it reports so, once."""
    directory = places.make_home(settings)
    elsewhere = places.why_elsewhere(directory, settings)
    if elsewhere and not (directory / "agents").exists():
        say(f"{elsewhere}; the command `probe` finds it there. Set PROBE_DIR to use another folder")
    places.make_private(directory / "agents")
    return directory


def make_recording(directory: Path, identity: Identity, settings: Settings) -> Recording:
    """A new recording of this process. Raises `NoRoom` with the reasons."""
    ring_scale(settings.rings_bytes)
    identity, process = _new_folder(directory, identity, own_pid())
    name = f"{identity.run}.{identity.attempt}.{identity.rank}.{own_pid()}"
    refused: list[str] = []
    places.make_private(process)
    for rings in rings_folders(settings, process, name, refused):
        try:
            return Recording(process, _meta(identity, directory, rings, settings.environ), settings)
        except NoRoom as error:
            refused.append(error.message)
            places.make_private(process)
    shutil.rmtree(process, ignore_errors=True)
    raise NoRoom("; ".join(refused))


def _meta(identity: Identity, directory: Path, rings: Path, environ: Mapping[str, str]) -> Meta:
    pid = own_pid()
    found = life(pid)
    torch: Any = sys.modules.get("torch")
    return Meta(
        version=VERSION, run=identity.run, attempt=identity.attempt, job=identity.job,
        rank=identity.rank, world_size=identity.world_size, local_rank=identity.local_rank,
        host=socket.gethostname(), pid=pid, start_ticks=found.start_ticks if found else 0,
        boot_id=current_boot_id(), uid=os.getuid(), argv=list(sys.argv), cwd=_working_folder(),
        executable=sys.executable, python=platform.python_version(),
        torch=str(getattr(torch, "__version__", "")), started_ns=clock.wall_ns(),
        rings=str(rings), socket=str(places.agent_socket(directory, pid)),
        settings={setting.name: environ.get(setting.env, "") or setting.default for setting in SETTINGS},
    ).without_secrets()


def _working_folder() -> str:
    """The job's folder; empty if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _new_folder(directory: Path, identity: Identity, pid: int) -> tuple[Identity, Path]:
    """A folder without a recording: a second start in the same process is another run."""
    if identity.counted:
        folder = places.make_private(places.recordings(directory)) / f"run={identity.run}"
        identity = identity._replace(attempt=counted_attempt(folder, identity.attempt, identity.rank))
    for count in itertools.count(1):
        run = identity.run if count == 1 else f"{identity.run}.{count}"
        process = (
            places.recordings(directory) / f"run={run}" / f"attempt={identity.attempt}"
            / f"process={identity.rank}-{pid}"
        )
        if not process.exists():
            break
    return identity._replace(run=run), process
