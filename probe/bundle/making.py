"""Makes a bundle: copies of recordings, answers of the server and a manifest, in one archive of limited size.

    made = making.make(Path("x.tar.zst"), subjects, answers, about, limits)

Works in a temporary folder next to the recordings, so that files can be linked instead of copied. Runs in the
client's process; duckdb and numpy through `collecting`.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import probe
from probe.base.errors import NoRoom, RecordingError, TooLarge
from probe.bundle import archive, asked, cleaning
from probe.bundle.asked import Elsewhere
from probe.bundle.collecting import Chosen, Collected, Subject, archived_bytes, chosen, collect

_WORKING = ".bundling-"
_STALE_S = 24 * 3600.0
_LOG_BYTES = 256 << 10
_SPARE = 0.99
"""Share of the size that is filled: incompressible data grows by some bytes in each block."""
_README = """\
A recording of the training job {job}, made by `probe bundle` on {host} at {made}.

    pip install torch-probe
    probe {name} diagnose
    probe {name} health
    probe {name} backtrace
    probe {name} query "SELECT step, loss, wall_s FROM python.steps ORDER BY step DESC LIMIT 10"

diagnosis.json and backtrace.json are what probe said at that time; manifest.json lists what is in here and
what was left out. The rows are Parquet files, readable by anything that reads Parquet. Secrets were replaced
by <redacted> where they could be recognized.
"""


class Limits(NamedTuple):
    """The limits of a bundle: rows from step `since` on, as many as fit into `most_bytes`."""

    since: int | None
    most_bytes: int


class Made(NamedTuple):
    """A bundle: its size, the rows that did not fit, and notes."""

    size_bytes: int
    left_out: list[dict[str, Any]]
    notes: list[str]


def make(
    path: Path, subjects: Sequence[Subject], answers: Mapping[str, Any], about: Mapping[str, Any],
    limits: Limits, elsewhere: Elsewhere | None = None,
) -> Made:
    """Write the bundle. `answers`: the server's, by their names in the archive; `about`: for the manifest;
    `elsewhere`: processes on other hosts.

    Raises `RecordingError`, `TooLarge` or `PackageMissing`; then there is no new file."""
    archive.suffix_of(path.name)
    home = _home(subjects[0].process)
    try:
        working = _working_folder(home)
    except OSError as error:
        raise NoRoom(f"no room for a bundle in {home}: {error.strerror}") from None
    try:
        return _make(path, working, home, subjects, answers, about, limits, elsewhere)
    except OSError as error:
        raise RecordingError(f"{path} cannot be written: {error.strerror or error}",
                             hint="Choose a file on a disk with more space with -o.") from None
    finally:
        shutil.rmtree(working, ignore_errors=True)


def _make(
    path: Path, working: Path, home: Path, subjects: Sequence[Subject], answers: Mapping[str, Any],
    about: Mapping[str, Any], limits: Limits, elsewhere: Elsewhere | None,
) -> Made:
    collected = collect(subjects, working, limits.since)
    if elsewhere is not None:
        asked.collect(elsewhere, working, limits.since, collected)
    files = [*collected.files, *_beside(working, path.name, home, subjects, answers, about)]
    fitting = _fitting(collected, files, limits)
    told = {
        **cleaning.plain(dict(about)), "probe": probe.__version__, "since_step": limits.since,
        "left_out": fitting.left_out, "notes": cleaning.plain(collected.notes),
    }
    everything = [*files, *(piece.path for piece in fitting.kept)]
    names = {file.relative_to(working).as_posix(): file for file in everything}
    size = archive.write(path, names, told)
    return Made(size, fitting.left_out, collected.notes)


def _fitting(collected: Collected, files: Sequence[Path], limits: Limits) -> Chosen:
    fixed = sum(archived_bytes(file.stat().st_size) for file in files)
    budget = int(limits.most_bytes * _SPARE) - fixed
    if budget < 0:
        raise TooLarge(
            f"facts, journals and stacks alone take {fixed:,} bytes, the limit is {limits.most_bytes:,}",
            hint="Raise --max-size.",
        )
    return chosen(collected.pieces, budget)


def _beside(
    working: Path, name: str, home: Path, subjects: Sequence[Subject], answers: Mapping[str, Any],
    about: Mapping[str, Any],
) -> list[Path]:
    """The other files: the server's answers and log, and a README."""
    found = []
    for file, answer in answers.items():
        found.append(working / file)
        found[-1].write_text(json.dumps(cleaning.plain(answer), indent=1), encoding="utf-8")
    readme = working / "README.txt"
    readme.write_text(_README.format(name=name, **about), encoding="utf-8")
    words = {word for one in subjects for word in (str(one.row.get("run")), f"pid {one.row.get('pid')}")}
    log = cleaning.log_lines(home / "server.log", words, _LOG_BYTES)
    if log:
        (working / "server.log").write_text(log + "\n", encoding="utf-8")
        found.append(working / "server.log")
    return [*found, readme]


def _home(process: Path) -> Path:
    """The PROBE_DIR of a recording; of one that lies elsewhere, the folder that holds it."""
    above = process.parents
    return above[3] if len(above) > 3 and above[2].name == "recordings" else above[0]


def _working_folder(home: Path) -> Path:
    """A new private folder in PROBE_DIR; removes those of commands that were killed."""
    for left in home.glob(f"{_WORKING}*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE_S:
                shutil.rmtree(left, ignore_errors=True)
    try:
        return Path(tempfile.mkdtemp(prefix=_WORKING, dir=home))
    except OSError:  # the recording of another, or a read-only folder
        return Path(tempfile.mkdtemp(prefix=_WORKING))
