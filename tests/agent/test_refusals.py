"""Where a recording cannot be made the job runs as ever, and one line on stderr says what to do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agent.asking import query, recorded, tell, without_times
from agent.nursery import Forked, Nursery, forked
from harness import PATIENCE_S, PROGRAMS, SERVER, Place, end_process, run_probe
from probe.recording.recording import Meta

COMMAND = ("one_millisecond_step", "--steps", "20")
"""Where no question is asked: no server has to be found and ended in so many folders."""
NOBODY = 65534


class Case(NamedTuple):
    """One bad place. `said`: words of the one line on stderr; empty when the job is recorded all the same."""

    environ: Callable[[Path], dict[str, str]]
    said: tuple[str, ...] = ()


def folder(path: Path, *, owner: int | None = None) -> str:
    path.mkdir(parents=True)
    if owner is not None:
        os.chown(path, owner, owner)
    return str(path)


def link(path: Path) -> str:
    path.symlink_to(folder(path.parent / "target"))
    return str(path)


def file(path: Path) -> str:
    path.write_text("")
    return str(path)


CASES = {
    "no folder for rings": Case(lambda at: {"PROBE_RINGS_DIR": str(at / "missing" / "shm")}),
    "rings in a file": Case(lambda at: {"PROBE_RINGS_DIR": file(at / "file")}),
    "somebody's folder of rings": Case(
        lambda at: {
            "PROBE_RINGS_DIR": folder(at / "shm" / f"probe-{os.getuid()}", owner=NOBODY).rpartition("/")[0]
        }
    ),
    "a linked folder": Case(lambda at: {"PROBE_DIR": link(at / "link")}, ("is a link", "PROBE_DIR")),
    "somebody's folder": Case(
        lambda at: {"PROBE_DIR": folder(at / "theirs", owner=NOBODY)}, (f"user id {NOBODY}", "PROBE_DIR")
    ),
    "a file": Case(lambda at: {"PROBE_DIR": file(at / "file")}, ("file", "PROBE_DIR")),
    "below a file": Case(
        lambda at: {"PROBE_DIR": file(at / "file") + "/probe"}, ("cannot make", "PROBE_DIR")
    ),
    "little room asked for": Case(
        lambda _: {"PROBE_RINGS_BYTES": "1K"}, ("PROBE_RINGS_BYTES=1024", "bytes are needed")
    ),
    "a budget that is none": Case(
        lambda _: {"PROBE_BUDGET": "cheap"}, ("PROBE_BUDGET='cheap'", "Default: 1%")
    ),
    "a size that is none": Case(
        lambda _: {"PROBE_RINGS_BYTES": "1X"}, ("PROBE_RINGS_BYTES='1X'", "Default: 12M")
    ),
    "instruments that are none": Case(
        lambda _: {"PROBE_INSTRUMENTS": "steps,teeth"}, ("PROBE_INSTRUMENTS", "steps, losses")
    ),
    "a relative path": Case(
        lambda at: {
            "PROBE_DIR": os.path.relpath(at / "probe"),
            "PROBE_RINGS_DIR": os.path.relpath(folder(at / "rings")),
        }
    ),
    "a long path": Case(lambda at: {"PROBE_DIR": str(at.joinpath(*["a" * 60] * 4))}),
    "a path of odd characters": Case(lambda at: {"PROBE_DIR": str(at / "a b\n'ö\udcff\"")}),
    "a name of odd characters": Case(lambda _: {"PROBE_NAME": "../../gpt\n\udcff " + "x" * 300}),
}


def test_the_job_is_as_ever_wherever_it_would_be_recorded(
    nursery: Nursery, place: Place, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        [plain] = stack.enter_context(forked(nursery, place, COMMAND, watched=False))
        started = []
        for number, case in enumerate(CASES.values()):
            (tmp_path / str(number)).mkdir()
            at = tmp_path / str(number)
            environ = {"PROBE_DIR": str(at / "probe"), **case.environ(at)}
            stack.callback(shutil.rmtree, environ["PROBE_DIR"], ignore_errors=True)
            [job] = stack.enter_context(forked(nursery, place, (*COMMAND, "--hold"), **environ))
            started.append((case, environ, job))
        expected = without_times(plain.result())
        for name, (case, environ, job) in zip(CASES, started, strict=True):
            check(name, case, environ, job, expected)


def check(name: str, case: Case, environ: dict[str, str], job: Forked, expected: dict[str, Any]) -> None:
    """The job's result, its one line, and what is left of a recording that was not made."""
    assert (name, without_times(job.result())) == (name, expected)
    at = Path(environ["PROBE_DIR"])
    sockets = list(at.glob("agents/*.sock"))
    assert (name, len(sockets)) == (name, 0 if case.said else 1)
    assert (name, job.let_go()) == (name, 0)
    errors = job.errors()
    if not case.said:
        assert (name, errors) == (name, "")
        [process] = at.glob("recordings/*/*/*")
        meta = Meta.read(process)
        assert (name, Path(meta.rings).is_absolute(), Path(meta.socket).is_absolute()) == (name, True, True)
    else:
        assert (name, errors.count("\n"), errors[:21]) == (name, 1, "probe: not recording:")
        assert (name, [word for word in case.said if word not in errors]) == (name, [])
        assert (name, list(at.glob("recordings/*/*/*"))) == (name, [])


@contextmanager
def tmpfs(path: Path, options: str) -> Iterator[Path]:
    """A small file system of its own; skips where this user may not mount one."""
    path.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "probe-test", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_full_memory_file_system_is_left_for_the_disk(
    fork: Callable[..., Forked], place: Place, tmp_path: Path
) -> None:
    expected = without_times(fork(*COMMAND, watched=False).result())
    for options in ("size=2m", "size=64m,nr_inodes=3"):
        with tmpfs(tmp_path / options, options) as small:
            job = fork(*COMMAND, "--hold", PROBE_RINGS_DIR=str(small))
            assert without_times(job.result()) == expected
            [meta] = [meta for meta in recorded(place) if meta.pid == job.pid]
            assert meta.rings.startswith(str(place.directory))
            assert query(place, job.pid, "SELECT count(*) FROM python.steps") == [[20]]
            assert (job.let_go(), job.errors()) == (0, "")
            assert [path for path in small.rglob("*") if path.is_file()] == []


def test_without_room_anywhere_the_job_is_told_what_to_free(
    fork: Callable[..., Forked], tmp_path: Path
) -> None:
    with tmpfs(tmp_path / "small", "size=2m") as small:
        job = fork(*COMMAND, PROBE_DIR=str(small / "probe"), PROBE_RINGS_DIR=str(small))
        job.result()
        assert job.wait() == 0
        assert job.errors().count("\n") == 1 and "PROBE_RINGS_BYTES" in job.errors()
        assert list(small.glob("**/process=*")) == []


def test_a_read_only_folder_is_refused(fork: Callable[..., Forked], tmp_path: Path) -> None:
    with tmpfs(tmp_path / "small", "size=2m,ro") as small:
        job = fork(*COMMAND, PROBE_DIR=str(small / "probe"))
        job.result()
        assert (job.wait(), job.errors().count("\n")) == (0, 1)
        assert "Read-only file system" in job.errors() and "Set PROBE_DIR" in job.errors()


def fill(path: Path) -> None:
    """Write until there is no room left."""
    with path.open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
        while True:
            filler.write(bytes(4096))


def test_a_disk_that_fills_up_costs_the_job_and_its_rows_nothing(
    fork: Callable[..., Forked], place: Place, tmp_path: Path
) -> None:
    plain = fork("halfway", *COMMAND[1:], watched=False)
    tell(plain)
    with tmpfs(tmp_path / "small", "size=8m") as small:
        full = {"PROBE_DIR": str(small / "probe"), "PROBE_SEAL_INTERVAL_S": "0.05"}
        job = fork("halfway", *COMMAND[1:], "--hold", **full)
        job.wait_for("READY")
        count = ("query", "--format", "csv", "SELECT count(*) FROM python.steps")
        first = run_probe(place, *count, **full)
        server = int(json.loads((small / "probe" / "server.json").read_bytes())["pid"])
        try:
            fill(small / "filler")
            tell(job)
            assert without_times(job.result()) == without_times(plain.result())
            last = run_probe(place, *count, **full)
            assert (first.stdout.split()[-1], last.stdout.split()[-1]) == ("3", "20"), last.stderr
            answer = run_probe(place, "eval", "len(ledger.losses)", **full)
            assert answer.stdout == "20\n", answer.stderr
            assert (job.let_go(), job.errors()) == (0, "")
        finally:
            end_process(server)


@pytest.mark.parametrize(
    "option", ["-B", pytest.param("-O", marks=(pytest.mark.campaign, pytest.mark.alone))]
)
def test_few_descriptors_no_home_and_a_plain_locale_do_not_matter(
    fork: Callable[..., Forked], place: Place, option: str
) -> None:
    """A real interpreter: LANG=C, 64 descriptors, no HOME. (With -O all of torch is compiled anew.)"""
    environ = place.watched(**SERVER)
    for name in ("HOME", "LC_ALL", "PYTHONUTF8"):
        environ.pop(name, None)
    command = [sys.executable, option, str(PROGRAMS / "one_millisecond_step.py"), "--steps", "20"]
    done = subprocess.run(
        ["/bin/sh", "-c", 'ulimit -n 64 && exec "$@"', "sh", *command],
        env={**environ, "LANG": "C"}, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout.partition("RESULT ")[2])
    assert without_times(result) == without_times(fork(*COMMAND, watched=False).result())
    [meta] = recorded(place)
    assert query(place, meta.pid, "SELECT count(*) FROM python.steps") == [[20]]
