"""Every clean job, watched with a short PROBE_STALL_S: not one alarm."""

from __future__ import annotations

import time

import pytest

from agent.asking import jobs
from diagnose.hung import noted
from harness import SERVER, Place
from probe.diagnose import states
from probe.diagnose.states import ALARM
from probe.server.recordings.registry import Registry

STALL_S = "0.5"
"""A tenth of the default: what would be an alarm of ours at ten times the pace is one here."""
WATCHED_S = 40.0
JOBS: tuple[tuple[str, ...], ...] = (
    ("gpt_in_main", "--size", "medium"),
    ("gpt_in_main", "--size", "tiny", "--workers", "2"),
    ("gpt_at_module_level",),
    ("accumulation_amp_schedule",),
    ("gan_two_optimizers",),
    ("lbfgs_closure",),
    ("inference_without_optimizer",),
    ("inference_without_optimizer", "--plain"),
    ("dataloader_workers", "--workers", "0"),
    ("dataloader_workers", "--workers", "2", "--start", "fork"),
    ("dataloader_workers", "--workers", "2", "--start", "spawn"),
    ("dataloader_workers", "--workers", "4", "--start", "spawn", "--persistent"),
    ("activation_checkpointing",),
    ("compiled_model",),
    ("two_thousand_modules",),
    ("one_millisecond_step",),
    ("changing_modules",),
    ("hooks_of_its_own",),
    ("forks_while_training",),
    ("spawned_ranks",),
    *(("stall_pauses", "--kind", kind, "--length", "5") for kind in (
        "evaluation with a loader", "evaluation", "generation", "checkpoint", "child", "svd", "lengths",
    )),
)


@pytest.mark.alone
@pytest.mark.campaign
@pytest.mark.parametrize("command", JOBS, ids=" ".join)
def test_a_clean_job_gives_no_alarm(place: Place, command: tuple[str, ...]) -> None:
    """Except of a machine that is too busy: that is true, and not of the job's making."""
    with jobs(place, (*command, "--forever"), PROBE_STALL_S=STALL_S, **SERVER) as [job]:
        job.wait_for("READY")
        time.sleep(WATCHED_S)  # what is watched for is that nothing happens
        found = [row for one in Registry(place.directory).processes() for row in noted(one)]
        assert [row for row in found if row["severity"] == ALARM and row["state"] != states.STARVED] == []
