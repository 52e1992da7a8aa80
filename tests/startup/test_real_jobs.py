"""The hook with the real torch and the real agent: who is recorded, and what the job notices."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from agent.asking import ask, evaluate, tell, without_times
from agent.nursery import Nursery, forked
from harness import NO_SERVER, PATIENCE_S, PROGRAMS, Job, Place, run_program
from probe.boot.startup import run_environment
from probe.recording.places import process_folders
from startup.pythons import Python


def recorded_pids(place: Place) -> list[int]:
    """Pids of all processes that had an agent."""
    return sorted(
        json.loads((folder / "meta.json").read_bytes())["pid"] for folder in process_folders(place.directory)
    )


@pytest.mark.campaign  # daily without torch: tests/startup/test_shadowing.py
def test_a_job_with_its_own_probe_trains_as_without_us(place: Place, nursery: Nursery) -> None:
    with forked(nursery, place, ("own_probe/train",), watched=False) as [alone]:
        plain = alone.result()
    watched, said = run_program(place, "own_probe/train", watched=True)
    assert without_times(watched) == without_times(plain)
    assert said.count("\n") == 1
    assert str(PROGRAMS / "own_probe" / "probe.py") in said
    assert recorded_pids(place) == []


def test_a_job_says_on_a_terminal_what_is_recorded_and_how_to_see_it(place: Place, nursery: Nursery) -> None:
    """In a pipe it says nothing: the other tests here look at that."""
    controller, terminal = pty.openpty()
    try:
        environ = place.environ(PROBE="1", PROBE_NAME="gpt", **NO_SERVER)
        job = nursery.fork("gpt_in_main", ("--size", "tiny", "--steps", "1"), environ, terminal)
        try:
            assert select.select([controller], [], [], PATIENCE_S)[0]
            said = os.read(controller, 4096).decode()
        finally:
            job.send_signal(signal.SIGKILL)
            job.wait(PATIENCE_S)
            job.stdin.close()
            job.stdout.close()
    finally:
        os.close(controller)
        os.close(terminal)
    what = f"steps, losses, gradients, modules, memory of gpt (pid {job.pid})"
    assert said == f"probe: recording {what}; `probe ps` shows it\r\n"


@pytest.mark.campaign  # daily with a torch of one line: tests/startup/test_roles.py
def test_a_spawned_rank_gets_an_agent_at_its_first_step_and_a_data_worker_none(
    place: Place, nursery: Nursery
) -> None:
    """The script is a fork; what it spawns are interpreters of their own."""
    command = ("spawned_ranks", "--steps", "3", "--ranks", "1", "--worker")
    environ = {name: value for name, value in place.watched().items() if name == "PYTHONPATH"}
    with forked(nursery, place, command, **environ) as [job]:
        result = job.result()
        assert job.let_go() == 0
        said = job.errors()
    assert result["batch_workers"] == [0, 0]
    pids = recorded_pids(place)
    assert set(result["rank_pids"]) < set(pids)
    assert len(pids) == 2
    assert said == ""


def lend_torch(python: Python) -> None:
    """Link torch and what it needs, and nothing else, from this environment into that one."""
    wanted, seen = ["torch"], set()
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        site = Path(str(found.locate_file("")))
        tops = {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            if not (python.site / top).exists():
                (python.site / top).symlink_to(site / top)
        for requirement in found.requires or ():
            if "extra ==" not in requirement:
                wanted.append(re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0])


@pytest.mark.campaign  # daily from the syntax trees: test_a_file_imports_only_what_its_layer_may
def test_in_an_environment_with_torch_alone_nothing_but_the_standard_library_is_imported(
    place: Place, bare: Python, nursery: Nursery
) -> None:
    (bare.site / "torch" / "__init__.py").unlink()
    (bare.site / "torch").rmdir()
    lend_torch(bare)
    quiet = place.environ(**NO_SERVER)
    quiet = {name: value for name, value in quiet.items() if not name.startswith("PYTHON")}
    command = ("refuses_imports", "--steps", "200", "--hold")
    environ = run_environment(quiet, str(bare.executable))
    job = Job(*command, environ=environ, folder=place.directory, python=str(bare.executable))
    try:
        with forked(nursery, place, command, watched=False) as [alone]:
            job.wait_for("ASK")
            assert evaluate(place, job.pid, "print(model)\nmodel.wieght")["error"]["type"] == "AttributeError"
            assert evaluate(place, job.pid, "model")["value"].startswith("Sequential")
            assert ask(place, job.pid, "GET", "/v1/stacks?all_threads=1")["threads"]
            tell(alone)
            tell(job)
            found, expected = without_times(job.result()), without_times(alone.result())
        del expected["modules"]
        modules = {name.partition(".")[0] for name in found.pop("modules")}
        assert found == expected and found["refused"] == []
        assert {"probe", "torch_probe_boot"} <= modules
        assert not modules & {"duckdb", "fastapi", "typer"}
        assert job.let_go() == 0 and "probe:" not in job.errors()
    finally:
        job.kill()
    assert recorded_pids(place) == [job.pid]
