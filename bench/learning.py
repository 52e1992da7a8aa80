"""Measures detection of learning faults: plants each in a real small training, with several seeds.

    python bench/faults.py --learning [--seeds N] [--first-seed N] [--only NAME …] [--json OUT]

Each trial runs `probe PID diagnose` and records whether the right recipe was named, with the step or the
parameter if the fault has one, how long after the fault, and the other findings above `info`. Clean trainings
are diagnosed too: any finding above `info` is a false alarm. `probe` is the installed command; a trial takes
10-40 s.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from harness import DEPLOYED, Place, probe_process, running

PROGRAM = "learning_faults"
PAUSE_S = 1.5
"""Pause between two calls of `diagnose`."""


class Fault(NamedTuple):
    """The accepted findings for a fault: one of `recipes`, with a subject that begins with `subject`, and a
    step at most `near` from the fault's."""

    recipes: tuple[str, ...]
    subject: str = ""
    near: int | None = None
    watch_s: float = 40.0
    """A fault not found by then counts as missed."""
    watched: tuple[str, ...] = ()
    """Options of `probe PID watch` for statistics that are only recorded on request."""


NAN = ("nan-origin", "loss-nan")
FAULTS: dict[str, Fault] = {
    "nan-data": Fault(NAN, near=1),
    "nan-log": Fault(NAN, near=1),
    "nan-half": Fault(NAN, near=1),
    "nan-rate": Fault((*NAN, "learning-rate-jump"), near=10),
    "nan-weight": Fault(NAN, near=1),
    "amp-overflow": Fault(("amp-overflow",), near=3),
    "small-eps": Fault(("layer-norm-eps",), "blocks.1"),
    "spike-recovers": Fault(("loss-spike",), near=0),
    "spike-stays": Fault(("loss-spike", "divergence"), near=40),
    "diverges": Fault(("divergence",), near=60),
    "plateau": Fault(("plateau",), watch_s=60.0),
    "oscillates": Fault(("oscillation",)),
    "slow-decrease": Fault(("slow-decrease", "learning-rate-too-low")),
    "overfits": Fault(("validation-rising",), "val/loss"),
    "gap": Fault(("train-validation-gap",), "val/loss"),
    "explodes": Fault(("gradients-exploding",), near=0),
    "explodes-one-layer": Fault(
        ("gradient-exploding-layer",), "blocks.1.mlp.0.weight", near=200, watch_s=60.0,
    ),
    "vanishes": Fault(("gradients-vanishing",), near=200),
    "vanishes-depth": Fault(("gradient-depth",), "0"),
    "dead-units": Fault(("dead-units",), "3", watched=("--activations", "--steps", "3")),
    "saturated-units": Fault(("saturated-units",), "3", watched=("--activations", "--steps", "3")),
    "shifted-gradient": Fault(("gradient-shifted",), "blocks.0.attention.qkv.weight"),
    "frozen-layer": Fault(("frozen-parameters",), "blocks.0"),
    "forgotten": Fault(("parameters-forgotten",), "head"),
    "not-learning": Fault(("layer-not-learning",), "blocks.1.mlp"),
    "no-zero-grad": Fault(("zero-grad-forgotten",)),
    "eval-mode": Fault(("eval-mode",), near=20),
    "rate-too-high": Fault(("learning-rate-too-high",)),
    "rate-too-low": Fault(("learning-rate-too-low",)),
    "flat-schedule": Fault(("learning-rate-flat",)),
    "no-warm-up": Fault(("no-warm-up",)),
    "rate-jumps": Fault(("learning-rate-jump",), near=1),
    "rate-zero": Fault(("learning-rate-zero",), near=1),
    "slow-module": Fault(("slow-module", "slow-step"), near=200),
    "slow-other": Fault(("slow-step",), near=20),
    "throughput": Fault(("throughput-drop",), near=20),
    "input-bound": Fault(("input-bound",), near=50),
    "host-leak": Fault(("host-memory-growth",), watch_s=60.0),
}
CLEAN = (
    "clean", "clean-warmup", "clean-eval-pauses", "clean-checkpoint-pauses", "clean-variable-length",
    "clean-accumulation", "clean-small-lr-decay", "clean-finetune-frozen-backbone", "clean-gan",
    "clean-noisy-small-batch", "clean-amp",
)


@dataclass
class Trial:
    """One planted fault. `verdict_s`: seconds after the fault; None: not found in time."""

    fault: str
    seed: int
    step: int = 0
    verdict_s: float | None = None
    named: str = ""
    said_step: int | None = None
    said: str = ""
    others: list[str] = field(default_factory=list)
    """Other findings above `info` in the answer that named it, or in the last one."""
    asked_s: list[float] = field(default_factory=list)


def ask(place: Place, asked: str) -> tuple[list[dict[str, Any]], float]:
    """The recipes' findings about a PID or a job, and the seconds until the answer."""
    began_s = time.monotonic()
    done = probe_process(place, asked, "diagnose", "--format", "json")
    elapsed_s = time.monotonic() - began_s
    try:
        found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    except (ValueError, LookupError):
        print(f"no answer: {done.stderr[-300:]}", flush=True)
        return [], elapsed_s
    return found, elapsed_s


def fits(found: dict[str, Any], fault: Fault, step: int) -> bool:
    """Whether a finding names the fault."""
    if found["recipe"] not in fault.recipes or not str(found["subject"]).startswith(fault.subject):
        return False
    return fault.near is None or (found["step"] is not None and abs(found["step"] - step) <= fault.near)


def plant(name: str, seed: int) -> Trial:
    """One trial."""
    fault, trial, place = FAULTS[name], Trial(name, seed), Place()
    try:
        with running(place, PROGRAM, "--fault", name, "--seed", str(seed), "--forever", **DEPLOYED) as job:
            _, began_ns, step = job.wait_for("FAULT").split()
            trial.step = int(step)
            if fault.watched:
                probe_process(place, str(job.pid), "watch", *fault.watched)
            while time.time_ns() < int(began_ns) + fault.watch_s * 1e9:
                time.sleep(PAUSE_S)
                found, elapsed_s = ask(place, str(job.pid))
                trial.asked_s.append(round(elapsed_s, 2))
                right = [one for one in found if fits(one, fault, trial.step)]
                others = [one for one in found if one not in right and one["severity"] != "info"]
                trial.others = sorted({f"{one['severity']} {one['recipe']}" for one in others})
                if right:
                    trial.verdict_s = (time.time_ns() - int(began_ns)) / 1e9
                    trial.named, trial.said_step = right[0]["recipe"], right[0]["step"]
                    trial.said = f"{right[0]['severity']}: {right[0]['what']}"
                    break
        place.close()
    finally:
        place.remove()
    return trial


def clean(name: str, seed: int, seconds: float) -> tuple[list[dict[str, Any]], int]:
    """Findings above `info` in a training without a fault, and its last step."""
    place, found = Place(), {}
    step = 0
    try:
        with running(place, PROGRAM, "--fault", name, "--seed", str(seed), "--forever", **DEPLOYED) as job:
            ends_s = time.monotonic() + seconds
            while time.monotonic() < ends_s:
                time.sleep(2 * PAUSE_S)
                for one in ask(place, str(job.pid))[0]:
                    if one["severity"] != "info":
                        found[one["recipe"], one["subject"]] = one
            last = "SELECT MAX(step) FROM python.steps"
            answer = probe_process(place, str(job.pid), "query", last, "--format", "csv").stdout
            step = int(answer.split()[-1] if answer else 0)
        place.close()
    finally:
        place.remove()
    return list(found.values()), step


def table(trials: list[Trial]) -> list[str]:
    """The lines of the table, one per fault."""
    lines = [
        "| fault | named | as | verdict s (median, worst) | also said above `info` |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in dict.fromkeys(trial.fault for trial in trials):
        mine = [trial for trial in trials if trial.fault == name]
        times = [trial.verdict_s for trial in mine if trial.verdict_s is not None]
        shown = f"{statistics.median(times):.1f}, {max(times):.1f}" if times else "missed"
        named = ", ".join(sorted({trial.named for trial in mine if trial.named}))
        others = ", ".join(sorted({other.split()[1] for trial in mine for other in trial.others}))
        lines.append(f"| {name} | {len(times)}/{len(mine)} | {named} | {shown} | {others} |")
    return lines


def main(words: list[str] | None = None) -> int:
    """Run the trials; returns 1 if a fault is missed or a clean training has a finding."""
    as_is = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_is)
    parser.add_argument("--learning", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--seeds", type=int, default=3, help="trials of each fault")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=[*FAULTS, *CLEAN], default=[*FAULTS, *CLEAN])
    parser.add_argument("--clean-seconds", type=float, default=30.0, help="time per clean job")
    parser.add_argument("--json", type=Path, help="file for every trial")
    arguments = parser.parse_args(words)
    trials: list[Trial] = []
    false: list[dict[str, Any]] = []
    cleans: list[str] = []
    for name in arguments.only:
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            if name in CLEAN:
                found, step = clean(name, seed, arguments.clean_seconds)
                cleans.append(f"{name} {seed}")
                false += [{**one, "job": name, "seed": seed} for one in found]
                print(f"{name} {seed}: {len(found)} false alarms in {step} steps", flush=True)
                for one in found:
                    print(f"   {one['severity']} {one['recipe']} {one['step']}: {one['what']}", flush=True)
                continue
            trial = plant(name, seed)
            trials.append(trial)
            after = "never" if trial.verdict_s is None else f"after {trial.verdict_s:.1f} s"
            print(
                f"{name} {seed}: {trial.named or 'MISSED'} at {trial.said_step} (fault {trial.step}) "
                f"{after}, asked {trial.asked_s[-3:]} s: {trial.said} | {trial.others}", flush=True,
            )
    named = sum(trial.verdict_s is not None for trial in trials)
    print("\n".join([
        *(table(trials) if trials else []), "",
        f"named: {named} of {len(trials)} planted faults",
        f"false alarms: {len(false)} in {len(cleans)} clean trainings",
    ]))
    if arguments.json:
        arguments.json.write_text(json.dumps({
            "trials": [asdict(trial) for trial in trials], "false_alarms": false, "clean": cleans,
        }, indent=1))
    return int(named < len(trials) or bool(false))
