"""Checks that a verdict lasts as long as its fault: planted faults, diagnosed early, late and after death.

    python bench/lasting.py [--steps 20000] [--fault NAME …]

Each job runs 2,000 steps of about a millisecond, with the fault from step 400 on, and is diagnosed; again
after `--steps` more, and again after it was killed. `ok`: the same cause with the same step each time; a past
event is still named with its step.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path.insert(0, str(TESTS))
from harness import Job, Place, run_probe, running  # noqa: E402

AT, EARLY = 400, 2_000
PROGRESS = 500
"""Steps between progress lines of the program: on a busy machine all steps may take minutes."""
PATIENCE_S = 30.0


class Lasting(NamedTuple):
    """A fault: the recipe that finds it, and how far the recipe's step may be from the fault's."""

    recipe: str
    near: int
    symptom: str = "loss"
    passes: bool = False
    """Whether it is an event that ends: named with its step, but not a later cause."""
    early: int = EARLY
    """The step of the first question: by then what the recipe needs must have been sampled."""


FAULTS = {
    "nan": Lasting("nan-origin", 0, "nan"),
    # `info` until an optimizer is sampled after the jump; at steps of a millisecond that takes thousands.
    "rate-jumps": Lasting("learning-rate-jump", 1, early=8_000),
    "no-zero-grad": Lasting("zero-grad-forgotten", 20, "gradients"),
    "eval-mode": Lasting("eval-mode", 20),
    "spike-recovers": Lasting("loss-spike", 0, passes=True),
}


class Said(NamedTuple):
    """The result of one diagnosis for a fault: its step (None: not found), the cause, the other findings."""

    when: str
    step: int | None
    over: bool | None
    severity: str
    cause: str
    others: list[str]


def said(place: Place, job: Job, fault: Lasting, when: str) -> Said:
    """Diagnose until the recipe has found the fault: some rows arrive only with the agent's next round."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        words = (str(job.pid), "diagnose", fault.symptom, "--no-watch", "--format", "json")
        done = run_probe(place, *words)
        answer: dict[str, Any] = json.loads(done.stdout)
        own = [one for one in answer["findings"] if one["recipe"] == fault.recipe]
        if own or time.monotonic() > deadline_s:
            break
        time.sleep(0.2)
    first = own[0] if own else {"step": None, "over": None, "severity": ""}
    serious = {one["recipe"] for one in answer["findings"] if one["severity"] != "info"}
    others = sorted(serious - {fault.recipe})
    cause = str(answer["conclusion"]["cause"] or answer["conclusion"]["state"])
    return Said(when, first["step"], first["over"], first["severity"], cause, others)


def wrong(fault: Lasting, answers: list[Said]) -> list[str]:
    """The problems; empty if the verdict held."""
    found = []
    for one in answers:
        if one.step is None or abs(one.step - AT) > fault.near or one.step != answers[0].step:
            found.append(f"{one.when}: step {one.step}")
        if not fault.passes and (one.over or one.cause != fault.recipe):
            found.append(f"{one.when}: over {one.over}, cause {one.cause}")
    if fault.passes and not answers[-1].over:
        found.append("the event is not over")
    return found


def ask(place: Place, name: str, later: int) -> list[Said]:
    """The answers about one fault: early, late, and after the job was killed."""
    fault = FAULTS[name]
    words = ("--fault", name, "--at", str(AT), "--rests", str(fault.early), str(fault.early + later))
    with running(place, "lasting_faults", *words) as job:
        place.start_server()
        job.wait_for("REST")
        answers = [said(place, job, fault, "early")]
        job.go_on()
        for _ in range((fault.early + later - 1) // PROGRESS - (fault.early - 1) // PROGRESS):
            job.wait_for("STEP")
        job.wait_for("REST")
        answers.append(said(place, job, fault, "late"))
        job.kill()
        answers.append(said(place, job, fault, "dead"))
    return answers


def main() -> int:
    """Print one line per answer."""
    parser = argparse.ArgumentParser(description="Faults asked for early, late and after death.")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--fault", nargs="*", choices=FAULTS, default=list(FAULTS))
    arguments = parser.parse_args()
    failures = 0
    for name in arguments.fault:
        place = Place()
        try:
            began_s = time.monotonic()
            answers = ask(place, name, arguments.steps)
            problems = wrong(FAULTS[name], answers)
            failures += bool(problems)
            took_s = time.monotonic() - began_s
            print(f"{name:<15} {'; '.join(problems) or 'ok'}  ({took_s:.0f} s)", flush=True)
            for one in answers:
                about = f"step {one.step}, {one.severity}{', over' if one.over else ''}"
                others = ", ".join(one.others) or "-"
                print(f"    {one.when:<6} {about}; cause {one.cause}; also {others}", flush=True)
        finally:
            place.close()
            place.remove()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
