"""Names by which users address jobs: the script's name, with its folder's if two jobs share it.

Pure; any thread of the server.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from probe.base.errors import EndpointAmbiguous
from probe.recording.places import launch_key
from probe.recording.recording import Meta


class _Process(Protocol):
    @property
    def meta(self) -> Meta:
        """The facts of its recording."""


Process = TypeVar("Process", bound=_Process)


def script_folder(meta: Meta) -> Path:
    """The folder of the program that runs; its working directory if it has no file."""
    program = meta.argv[0] if meta.argv else ""
    folder = Path(meta.cwd)
    return folder if program in ("", "-c", "-m") else (folder / program).parent


def name_with_folder(meta: Meta) -> str:
    """`main@mnist`: the job's name and the folder of its program."""
    return f"{meta.job}@{script_folder(meta).name}"


def answers_to(meta: Meta, text: str) -> bool:
    """Whether `text` names this job or run."""
    return text in (meta.job, meta.run, name_with_folder(meta))


def shown_names(found: Iterable[Meta]) -> dict[str, str]:
    """By run, the shortest name that distinguishes its job from jobs in other folders."""
    found = list(found)
    folders: dict[str, set[Path]] = {}
    for meta in found:
        folders.setdefault(meta.job, set()).add(script_folder(meta))
    return {meta.run: name_with_folder(meta) if len(folders[meta.job]) > 1 else meta.job for meta in found}


def launched(one: Meta, by: Meta) -> bool:
    """Whether a process is a rank that another one started, as with torch.multiprocessing.spawn: its run is
    named after that process."""
    return _started_by(one) == (by.host, launch_key(by.pid, by.start_ticks))


def _started_by(meta: Meta) -> tuple[str, str]:
    """The host of a process, and the key of the one that started it, if its run is named after that."""
    return meta.host, meta.run.rpartition("-")[2]


def without_launchers(found: Iterable[Process]) -> list[Process]:
    """The processes without those that started others of them and only wait for these."""
    found = list(found)
    launchers = {_started_by(one.meta) for one in found}
    keys = [(one.meta.host, launch_key(one.meta.pid, one.meta.start_ticks)) for one in found]
    return [one for one, key in zip(found, keys, strict=True) if key not in launchers]


def several_runs(found: Sequence[Meta]) -> bool:
    """Whether processes belong to different runs."""
    return len({meta.run for meta in found}) > 1


def several_folders(found: Sequence[Meta]) -> bool:
    """Whether the programs of processes of one host lie in different folders."""
    return len({script_folder(meta) for meta in found}) > 1 and len({meta.host for meta in found}) == 1


def ambiguous(name: str, found: Sequence[Meta], what: str) -> EndpointAmbiguous:
    """The error for a name that means several `running` or `ended` jobs, with names that tell them apart."""
    by_run = {meta.run: meta for meta in found}
    apart = several_folders(found)
    choices = [f"{name_with_folder(meta) if apart else run} (pid {meta.pid})" for run, meta in by_run.items()]
    return EndpointAmbiguous(
        f"{name} matches {len(by_run)} {what} jobs: {', '.join(choices[-8:])}",
        hint="Use one of these names, or a pid.",
    )


def near(job: str, everything: Iterable[Meta]) -> str:
    """A hint for a name that no job has."""
    names = list(dict.fromkeys(meta.job for meta in reversed([*everything])))
    close = difflib.get_close_matches(job, names, 3) or names[:5]
    if not close:
        return "Nothing is recorded here yet: start a job with PROBE=1."
    return f"Recorded here: {', '.join(close)}. `probe ps --all` lists everything."
