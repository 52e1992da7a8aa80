"""In real frameworks: going on from the framework's own checkpoint is the same with and without probe."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agent.asking import answer, query
from harness import Place, run_program, running

STEPS, SAVED = 40, 15


class Own(NamedTuple):
    """A program that saves and resumes by its framework."""

    library: str
    saving: tuple[str, ...]
    checkpoint: str
    """In the folder that it writes to."""
    batches: int
    """Of its training loader, in one pass."""
    each: int
    """Batches of one step."""
    logged: str
    """A value that it logs; none where it also restores no random states, so that no two runs are equal."""


HF = Own(
    "transformers", ("frameworks/hf_trainer", "--save-steps", str(SAVED)), "checkpoint-15", 20, 2, "loss"
)
LIGHTNING = Own(
    "lightning", ("frameworks/lightning_automatic", "--save-every", str(SAVED)), "epoch=1-step=15.ckpt",
    8, 1, "",
)


@pytest.mark.parametrize("own", [HF, LIGHTNING], ids=lambda own: own.library)
def test_a_run_resumed_by_its_framework_is_the_same_and_goes_on_counting(
    place: Place, tmp_path: Path, own: Own
) -> None:
    pytest.importorskip(own.library)
    folders = {watched: str(tmp_path / f"watched-{watched}") for watched in (False, True)}
    results: dict[tuple[str, bool], dict[str, Any]] = {}
    program, *words = own.saving
    for watched, folder in folders.items():
        results["whole", watched], _ = run_program(
            place, program, *words, "--steps", str(STEPS), "--out", folder, watched=watched, REST_S="0"
        )
    resume = ("--steps", str(STEPS), "--resume", str(Path(folders[True], own.checkpoint)))
    out = str(tmp_path / "resumed")
    results["resumed", False], _ = run_program(
        place, program, *words, *resume, "--out", out, watched=False, REST_S="0"
    )
    place.start_server()
    with running(place, program, *words, *resume, "--out", out, "--hold", REST_S="0.2") as job:
        saved = answer(place, job.pid, "checkpoint", str(tmp_path / "saved.pt"))
        job.go_on()
        results["resumed", True] = job.result()
        steps = query(place, job.pid, "SELECT step FROM python.steps ORDER BY step")
        logged = query(place, job.pid, f"SELECT logged_step FROM python.scalars WHERE name = '{own.logged}'")
    for which in ("whole", "resumed"):
        for what in ("losses", "rates", "parameters_sha256"):
            assert results[which, True][what] == results[which, False][what], (which, what)
    whole, resumed = results["whole", False], results["resumed", True]
    assert [row[0] for row in steps] == list(range(STEPS - SAVED))
    # The file's step and epoch are the framework's, which counts on.
    there = saved["details"]
    assert there["step"] == SAVED + saved["step"] > SAVED
    assert there["epoch"] == there["step"] * own.each // own.batches
    if own.logged:
        assert resumed["losses"] == whole["losses"][SAVED:]
        assert resumed["parameters_sha256"] == whole["parameters_sha256"]
        assert [row[0] for row in logged] == list(range(SAVED + 1, STEPS + 1))
