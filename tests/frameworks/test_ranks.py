"""Training loops on two ranks under their own launchers: what probe records, finds and changes there.

As test_programs, whose tests of these names decide the same columns of docs/frameworks.md.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agent.asking import answer
from frameworks.programs import ASKED, QUERIES, figureless
from harness import Job, Place, run_probe

STEPS = 200
TORCHRUN = (
    sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"
)
# With --cpu it starts one process, or mpirun; the program asks for the CPU, and so for gloo.
ACCELERATE = (
    str(Path(sys.executable).parent / "accelerate"), "launch", "--multi_gpu", "--num_processes", "2",
    "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--no_python",
)


class Loop(NamedTuple):
    """A program and what launches it."""

    launcher: tuple[str, ...]
    command: tuple[str, ...]
    needs: str = "torch"
    job: str = ""
    """Its name for probe, where that is not the program's."""


LOOPS = {
    "accelerate launch, 2 processes": Loop(ACCELERATE, ("accelerate_loop",), "accelerate"),
    "DDP tutorial, torchrun": Loop(TORCHRUN, ("ddp_tutorial",)),
    "FSDP tutorial, torchrun": Loop(TORCHRUN, ("ddp_tutorial", "--shard")),
    "DeepSpeed, torchrun": Loop(TORCHRUN, ("deepspeed_loop",), "deepspeed"),
    "DeepSpeed, ZeRO-2": Loop(TORCHRUN, ("deepspeed_loop", "--zero", "2"), "deepspeed"),
    "DeepSpeed, ZeRO-3": Loop(TORCHRUN, ("deepspeed_loop", "--zero", "3"), "deepspeed"),
    "Ray Train": Loop((), ("ray_train",), "ray", job="tiny_ray"),
}


class Ran(NamedTuple):
    """What came of both runs of one program."""

    plain: dict[str, Any]
    plain_errors: str
    watched: dict[str, Any]
    watched_errors: str
    found: dict[str, str]
    changed: dict[str, Any]
    tables: dict[str, list[list[Any]]]


def launched(place: Place, loop: Loop, *options: str, watched: bool, rest_s: str) -> Job:
    name, *words = loop.command
    more = {"OMP_NUM_THREADS": "1", "REST_S": rest_s, "PROBE_MODULES_INTERVAL": "4"}
    environ = place.watched(**more) if watched else place.environ(**more)
    options = (*words, "--steps", str(STEPS), *options)
    return Job(
        f"frameworks/{name}", *options, environ=environ, folder=place.directory, before=loop.launcher
    )


@pytest.fixture(scope="module", params=[pytest.param(name, marks=pytest.mark.campaign) for name in LOOPS])
def ran(request: pytest.FixtureRequest) -> Iterator[Ran]:
    """One program: alone, then watched and asked."""
    loop = LOOPS[str(request.param)]
    if importlib.util.find_spec(loop.needs) is None:
        pytest.skip(f"{loop.needs} is not installed")
    place = Place()
    try:
        job = launched(place, loop, watched=False, rest_s="0")
        plain = job.result()
        assert job.let_go() == 0, job.errors()
        plain_errors = job.errors()
        place.start_server()
        job = launched(place, loop, "--hold", watched=True, rest_s="0.3")
        try:
            job.wait_for("READY")
            name = loop.job or loop.command[0]
            found = {what: run_probe(place, f"{name}/1", "eval", code).stdout for what, code in ASKED.items()}
            changed = answer(place, name, "lr", "--scale", "0.5")
            job.go_on()
            watched = job.result()
            tables = {key: answer(place, name, "query", "--limit", "100000", sql)["rows"]
                      for key, sql in QUERIES.items()}
            assert job.let_go() == 0, job.errors()
        finally:
            job.kill()
        yield Ran(plain, plain_errors, watched, job.errors(), found, changed, tables)
        left = place.close()
        assert not any(left.values()), left
    finally:
        place.remove()


def test_every_step_is_counted(ran: Ran) -> None:
    steps = [row[0] for row in ran.tables["steps"]]
    assert steps == sorted([*range(STEPS), *range(STEPS)])


def test_losses_are_bit_identical_until_something_is_changed(ran: Ran) -> None:
    assert len(ran.plain["losses_of_ranks"]) == 2
    each = len(ran.plain["losses"]) // ran.plain["steps"]
    until = ran.changed["step"] * each
    assert until >= 5, "it was changed so early that little is compared"
    for watched, plain in zip(ran.watched["losses_of_ranks"], ran.plain["losses_of_ranks"], strict=True):
        assert watched[:until] == plain[:until]


def test_it_says_the_same_on_stderr(ran: Ran) -> None:
    assert sorted(figureless(ran.watched_errors).splitlines()) == sorted(
        figureless(ran.plain_errors).splitlines()
    )


def test_modules_have_one_name_and_it_is_that_of_the_model(ran: Ran) -> None:
    named = {row[0] for row in ran.tables["modules"]}
    wrapper = {"DistributedDataParallel", "DeepSpeedEngine"} & named
    assert named - wrapper <= {*ran.watched["modules"], *ran.watched["roots"]}
    assert named >= {name for name in ran.watched["modules"] if name and name != "layers"}


def test_objects_are_found_by_their_usual_names(ran: Ran) -> None:
    assert {what for what in ASKED if not ran.found[what].strip()} == set()


def test_the_rate_can_be_scaled_on_its_schedule(ran: Ran) -> None:
    at = ran.changed["step"] + 2
    used = [row[1] for row in ran.tables["steps"] if row[0] == at]
    assert used == [pytest.approx(ran.plain["rates"][at - 1] / 2, rel=0.01)] * 2
