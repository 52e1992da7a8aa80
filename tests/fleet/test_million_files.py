"""A million tiny files in an archive: each command answers or refuses soon, within its memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from archive.made import META, parquet
from probe.archive import dataset

pytestmark = pytest.mark.campaign
STEPS, PROCESSES = "python.steps", dataset.PROCESSES.full_name
RUNS, FILES_OF_RUN, LINKS = 1000, 970, 60_000
"""And 30,000 processes; a file has at most 65,000 names."""
MEMORY_BYTES, PROCESSOR_S = 4 << 30, 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    scratch = tmp_path_factory.mktemp("million")
    made, count = scratch / "archive", 0
    source = scratch / "source"
    data = parquet(scratch / "x.parquet", "SELECT 1::BIGINT AS step, 1::BIGINT AS _number, 'p' AS process")

    def link(name: str) -> None:
        nonlocal count
        if count % LINKS == 0:
            source.unlink(missing_ok=True)
            source.write_bytes(data)
        count += 1
        try:
            os.link(source, made / name)
        except FileNotFoundError:
            (made / name).parent.mkdir(parents=True)
            os.link(source, made / name)

    for number in range(RUNS):
        meta = replace(META, run=f"r{number}", pid=number + 1)
        for first in range(1, FILES_OF_RUN + 1):
            link(dataset.file_of(meta, STEPS, first, first, 0).name)
        for rank in range(30):
            one = replace(meta, rank=rank, pid=rank * RUNS + number + 1)
            link(dataset.file_of(one, PROCESSES, 1, 1, 0).name)
    assert count == 1_000_000
    yield made
    subprocess.run(["rm", "-rf", scratch], check=True)


def limited() -> None:
    """In the command and, each for itself, its worker."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_S, PROCESSOR_S))


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (("query", "SELECT count(*) FROM python.steps"), "more than 300,000 files below table=python.steps/"),
        (("query", "SELECT count(*) FROM python.steps", "--run", "r1"), "more than 300,000 files"),
        (("runs",), "30,000 files of archive.processes, at most 20,000 are read"),
        (("hosts",), "30,000 files of archive.processes"),
        (("diagnose",), "30,000 files of archive.processes"),
        (("compare", "r1", "r2"), "30,000 files of archive.processes"),
        (("query", "SELECT count(*) FROM probe.facts"), ""),
    ],
    ids=lambda words: " ".join(words)[:24] if isinstance(words, tuple) else "",
)
def test_a_question_ends_soon_with_an_answer_or_a_refusal_that_says_what_to_do(
    folder: Path, words: tuple[str, ...], refused: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "probe_cli", "fleet", str(folder), *words], preexec_fn=limited, text=True,
        capture_output=True, check=False,
    )
    assert (done.returncode == 0) == (not refused), done.stderr
    assert refused in done.stderr
    assert not refused or "probe archive --compact" in done.stderr


def test_the_status_of_this_host_does_not_list_the_archive(folder: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "probe_cli", "archive", "--status", str(folder)], preexec_fn=limited,
        capture_output=True, check=True,
    )
