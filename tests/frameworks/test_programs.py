"""Real training frameworks: what probe records, finds, saves and changes there, and that it changes no more.

Each program runs alone, then under probe, where it is asked for things, then from probe's checkpoint on. The
campaign `frameworks` makes the table of docs/frameworks.md from what these tests say.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agent.asking import answer, query, tell
from agent.nursery import Nursery, forked
from frameworks.programs import ASKED, QUERIES, figureless
from harness import PATIENCE_S, Job, Place, run_probe, running

STEPS = 120


class Program(NamedTuple):
    """A program, what it needs, and what it has."""

    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    scheduler: bool = True
    loader: bool = True
    scalars: str = ""
    """A value that the framework logs without a logger."""
    heavy: bool = False
    """In the campaign: another is daily that differs from it in nothing that probe sees."""
    resumes: bool = True
    """Whether its step ends where its loop does: of two optimizers the leading one may come first."""
    trainer: bool = False
    """Whether a trainer knows when it ends."""


HF = ("transformers", "accelerate")
PROGRAMS = {
    "transformers Trainer": Program(("hf_trainer",), HF, scalars="loss", trainer=True),
    "transformers Trainer, bf16": Program(
        ("hf_trainer", "--bf16"), HF, scalars="loss", heavy=True, trainer=True
    ),
    "PEFT": Program(("hf_trainer", "--lora"), (*HF, "peft"), scalars="loss", trainer=True),
    "TRL SFTTrainer": Program(("trl_sft",), (*HF, "trl", "datasets"), scalars="loss", trainer=True),
    "Accelerate": Program(("accelerate_loop",), ("accelerate",)),
    "Lightning, automatic": Program(
        ("lightning_automatic",), ("lightning",), scalars="train_loss", trainer=True
    ),
    "Lightning, manual": Program(
        ("lightning_gan",), ("lightning",), scheduler=False, scalars="d_loss", resumes=False
    ),
    "torchvision's loop": Program(("torchvision_loop",)),
    "LBFGS": Program(("lbfgs_loop",), scheduler=False, loader=False, heavy=True),
    "REINFORCE, no loader": Program(("reinforce",), scheduler=False, loader=False, heavy=True),
    "nanoGPT": Program(("nano_gpt", "--no-compile"), scheduler=False, loader=False, heavy=True),
    "nanoGPT, compiled": Program(("nano_gpt",), scheduler=False, loader=False, heavy=True),
}
"""By the name that the table has for it."""


LOSSES = ("CrossEntropyLoss", "MSELoss")
"""Modules that are no part of a model."""


class Ran(NamedTuple):
    """What came of the runs of one program."""

    program: Program
    plain: dict[str, Any]
    plain_errors: str
    watched: dict[str, Any]
    watched_errors: str
    resumed: dict[str, Any]
    saved: dict[str, Any]
    found: dict[str, str]
    changed: dict[str, Any]
    tables: dict[str, list[list[Any]]]


@contextlib.contextmanager
def started(
    nursery: Nursery, place: Place, program: Program, *options: str, watched: bool = True, **environ: str
) -> Iterator[Job]:
    """The program: in a fork where it needs torch alone, whose import takes two seconds of processor time."""
    name, *words = program.command
    command = (f"frameworks/{name}", *words, "--steps", str(STEPS), *options)
    if not program.needs:
        with forked(nursery, place, command, watched=watched, **environ) as [job]:
            yield job
        return
    environment = place.watched(**environ) if watched else place.environ(**environ)
    job = Job(*command, environ=environment, folder=place.directory)
    try:
        yield job
    finally:
        job.kill()


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=(pytest.mark.campaign, pytest.mark.alone)) if one.heavy else name
            for name, one in PROGRAMS.items()],
)
def ran(request: pytest.FixtureRequest, nursery: Nursery) -> Iterator[Ran]:
    """One program: alone, watched and asked, and from the checkpoint on."""
    program = PROGRAMS[str(request.param)]
    for module in program.needs:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    start = functools.partial(started, nursery, place := Place(), program)
    try:
        with start(watched=False, REST_S="0") as job:
            plain = job.result()
            assert job.let_go() == 0, job.errors()
            plain_errors = job.errors()
        path = str(Path(place.directory, "saved.pt"))
        place.start_server()
        with start("--hold", REST_S="0.2", PROBE_MODULES_INTERVAL="4") as job:
            job.wait_for("READY")
            saved = answer(place, job.pid, "checkpoint", path)
            pid = str(job.pid)
            found = {what: run_probe(place, pid, "eval", code).stdout for what, code in ASKED.items()}
            changed = answer(place, job.pid, "lr", "--scale", "0.5")
            tell(job)
            watched = job.result()
            tables = {key: answer(place, job.pid, "query", "--limit", "100000", sql)["rows"]
                      for key, sql in QUERIES.items()}
            watched_errors = job.errors()
            assert job.let_go() == 0
        with start("--resume", path, REST_S="0") as job:
            resumed = job.result()
            assert job.let_go() == 0, job.errors()
        yield Ran(
            program, plain, plain_errors, watched, watched_errors, resumed, saved, found, changed, tables
        )
        left = place.close()
        assert not any(left.values()), left
    finally:
        place.remove()


def test_every_step_is_counted(ran: Ran) -> None:
    assert [row[0] for row in ran.tables["steps"]] == list(range(ran.watched["steps"]))


def test_losses_are_bit_identical_until_something_is_changed(ran: Ran) -> None:
    each = len(ran.plain["losses"]) // ran.plain["steps"]
    until = ran.changed["step"] * each
    assert until > 0, "it was changed before its first step: nothing is compared"
    assert ran.watched["losses"][:until] == ran.plain["losses"][:until]


def test_it_says_the_same_on_stderr(ran: Ran) -> None:
    assert figureless(ran.watched_errors) == figureless(ran.plain_errors)


def test_modules_have_one_name_and_it_is_that_of_the_model(ran: Ran) -> None:
    named = {row[0] for row in ran.tables["modules"]}
    assert named
    assert named <= {*ran.watched["modules"], *ran.watched["roots"], "GPT (compiled)", *LOSSES}


def test_objects_are_found_by_their_usual_names(ran: Ran) -> None:
    wanted = set(ASKED)
    wanted -= set() if ran.program.scheduler else {"scheduler", "lr_scheduler"}
    wanted -= set() if ran.program.loader else {"train_dataloader"}
    assert {what for what in wanted if not ran.found[what].strip()} == set()


def test_a_checkpoint_has_everything_or_says_what_it_lacks(ran: Ran) -> None:
    details = ran.saved["details"]
    kinds = {one["kind"] for one in details["contains"].values()}
    assert kinds == {"module", "optimizer"} | ({"scheduler"} if ran.program.scheduler else set())
    assert details["left_out"] == []
    if ran.program.loader:
        assert "position in the data" not in details["not_found"]
        assert "epoch" not in details["not_found"]
    set_by_hand = any("no scheduler was found" in note for note in ran.saved["notes"])
    assert set_by_hand == (not ran.program.scheduler and len(set(ran.watched["rates"])) > 1)


def test_a_run_resumed_from_the_checkpoint_has_the_losses_of_the_whole_one(ran: Ran) -> None:
    if not ran.program.resumes:
        pytest.skip("its checkpoint is taken between its two optimizers, and says so")
    each = len(ran.plain["losses"]) // ran.plain["steps"]
    step = ran.saved["step"]
    rest = len(ran.plain["losses"]) - step * each
    assert step > 0
    assert ran.resumed["losses"][:rest] == ran.plain["losses"][step * each :]


def test_the_rate_can_be_scaled_on_its_schedule(ran: Ran) -> None:
    at = ran.changed["step"] + 2
    rates = ran.plain["rates"]
    used = {row[0]: row[1] for row in ran.tables["steps"]}
    if rates:
        before = used[ran.changed["step"] - 2]
        near = [rate for rate in rates if rate == pytest.approx(before)]
        assert near
    assert used[at] is not None
    assert "0.5" in ran.changed["what"] or ran.program.scheduler is False
    if ran.program.scheduler:
        assert "keeps its shape" in ran.changed["what"]


def test_what_the_framework_logs_is_recorded_without_a_logger(ran: Ran) -> None:
    if not ran.program.scalars:
        pytest.skip("it logs nothing by itself")
    assert ran.program.scalars in {row[0] for row in ran.tables["scalars"]}


def test_when_it_ends_is_what_the_trainer_was_told(ran: Ran) -> None:
    if not ran.program.trainer:
        pytest.skip("it has no trainer that knows")
    assert ran.tables["plan"], "nothing was said"
    said = {(total, source.partition(" ")[0]) for total, source in ran.tables["plan"]}
    assert said == {(STEPS, "max_steps")}


def test_parts_that_are_tried_before_or_made_during_the_training_have_one_name(place: Place) -> None:
    """`0` of the module that was tried out, and `Sequential` of the one that was new, stood in the rows."""
    pytest.importorskip("lightning")
    place.start_server()
    with running(place, "frameworks/lightning_parts", "--hold", PROBE_MODULES_INTERVAL="1") as job:
        job.result()
        wanted = {f"{part}{inner}" for part, inner in itertools.product(
            ("backbone", "head", "late"), ("", ".0", ".1")) if part + inner != "head.1"}
        deadline = time.monotonic() + PATIENCE_S
        named: set[str] = set()
        while not wanted <= named and time.monotonic() < deadline:
            named |= {row[0] for row in query(place, job.pid, QUERIES["modules"])}
        given = query(place, job.pid, "SELECT DISTINCT module FROM python.model_inputs")
        parameters = query(place, job.pid, "SELECT DISTINCT param FROM python.gradients")
        [[late, steps]] = query(
            place, job.pid,
            "SELECT count(*) FILTER (module = 'late.0'), count(*) FILTER (module = 'head.0' AND step >= 16) "
            "FROM python.torch_trace WHERE stage = 'forward'",
        )
    assert named == {*wanted, "CrossEntropyLoss"}
    assert {row[0] for row in given} == {"backbone", "batch"}
    assert {row[0].rpartition(".")[0] for row in parameters} <= wanted
    assert late == steps > 0
