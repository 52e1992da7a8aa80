"""The hook with the real torch and the real agent: who is recorded, and what the job notices."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from agent.nursery import Nursery, forked
from harness import PATIENCE_S, PROGRAMS, Place, run_program
from probe.boot.startup import run_environment
from probe.recording.places import process_folders
from startup.pythons import Python

TIMES = {"wall_s", "step_wall_s", "step_phases_s"}


def recorded_pids(place: Place) -> list[int]:
    """Pids of all processes that had an agent."""
    return sorted(
        json.loads((folder / "meta.json").read_bytes())["pid"] for folder in process_folders(place.directory)
    )


def without_times(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in TIMES}


def test_a_job_with_its_own_probe_trains_as_without_us(place: Place, nursery: Nursery) -> None:
    with forked(nursery, place, ("own_probe/train",), watched=False) as [alone]:
        plain = alone.result()
    watched, said = run_program(place, "own_probe/train", watched=True)
    assert without_times(watched) == without_times(plain)
    assert said.count("\n") == 1
    assert str(PROGRAMS / "own_probe" / "probe.py") in said
    assert recorded_pids(place) == []


def test_a_job_says_on_a_terminal_what_is_recorded_and_how_to_see_it(place: Place) -> None:
    """In a pipe it says nothing: the other tests here look at that."""
    controller, terminal = pty.openpty()
    try:
        job = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "gpt_in_main.py"), "--size", "tiny", "--steps", "1"],
            env=place.watched(PROBE_NAME="gpt"), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=terminal,
        )
        try:
            assert select.select([controller], [], [], PATIENCE_S)[0]
            said = os.read(controller, 4096).decode()
        finally:
            job.kill()
            job.wait(PATIENCE_S)
    finally:
        os.close(controller)
        os.close(terminal)
    what = f"steps, losses, gradients, modules, memory of gpt (pid {job.pid})"
    assert said == f"probe: recording {what}; `probe ps` shows it\r\n"


def test_a_spawned_data_worker_gets_no_agent(place: Place) -> None:
    options = ("--start", "spawn", "--workers", "1", "--steps", "4")
    result, said = run_program(place, "dataloader_workers", *options, watched=True)
    assert result["batch_workers"] == [0, 0, 0, 0]
    assert len(recorded_pids(place)) == 1
    assert said == ""


def test_a_spawned_rank_gets_an_agent_at_its_first_step(place: Place) -> None:
    result, _ = run_program(place, "spawned_ranks", "--steps", "3", watched=True)
    pids = recorded_pids(place)
    assert set(result["rank_pids"]) < set(pids)
    assert len(pids) == 3


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


def test_in_an_environment_with_torch_alone_nothing_but_the_standard_library_is_imported(
    place: Place, bare: Python
) -> None:
    (bare.site / "torch" / "__init__.py").unlink()
    (bare.site / "torch").rmdir()
    lend_torch(bare)
    code = f"""
import json, runpy, sys
sys.path.insert(0, {str(PROGRAMS)!r})
sys.argv[1:] = ["--steps", "50"]
runpy.run_path({str(PROGRAMS / "one_millisecond_step.py")!r}, run_name="__main__")
print("MODULES", json.dumps(sorted({{name.partition(".")[0] for name in sys.modules}})))
"""

    def modules(environ: dict[str, str]) -> tuple[set[str], str]:
        done = subprocess.run(
            [str(bare.executable), "-c", code], env=environ, cwd=bare.home, capture_output=True,
            text=True, timeout=PATIENCE_S, check=False,
        )
        assert done.returncode == 0, done.stderr
        line = next(line for line in done.stdout.splitlines() if line.startswith("MODULES"))
        return set(json.loads(line.removeprefix("MODULES "))), done.stderr

    quiet = {name: value for name, value in place.environ().items() if not name.startswith("PYTHON")}
    plain, _ = modules(quiet)
    watched, said = modules(run_environment(quiet, str(bare.executable)))
    assert "probe" not in said, said
    assert len(recorded_pids(place)) == 1
    assert watched - plain - set(sys.stdlib_module_names) == {"probe", "torch_probe_boot"}
    assert not plain & {"duckdb", "fastapi", "typer"}
