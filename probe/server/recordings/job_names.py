"""Names by which users address jobs: the script's, and its folder's where two jobs share one.

Pure; any thread of the server.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from probe.recording.recording import Meta


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
    """By run, the shortest name that tells its job from those of other folders."""
    found = list(found)
    folders: dict[str, set[Path]] = {}
    for meta in found:
        folders.setdefault(meta.job, set()).add(script_folder(meta))
    return {meta.run: name_with_folder(meta) if len(folders[meta.job]) > 1 else meta.job for meta in found}
