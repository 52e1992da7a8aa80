"""Measures detection of silent errors: plants each of tests/programs/silent, and judges `diagnose`'s answer.

    python bench/silent.py [--half development|held-out] [--only KIND …] [--programs NAME …] [--seeds N]
                           [--again SECONDS] [--json OUT]
    python bench/silent.py --clean [--seconds S]     # unmodified programs, and tests/programs/healthy

A trial repeats `probe PID diagnose` until the mechanism is named or the time is up, and with `--again` once
more some seconds later: a verdict must last as long as the error. Its outcome:

    right     a finding names the mechanism (`place`: and its place, if it has one)
    beside    … and another finding above `info` reports something else
    symptom   only consequences are described
    wrong     findings above `info` report something else, but not the mechanism
    silent    no finding above `info`; correct if no process can know it from within ("honest")

The accepted words are declared with the kinds (plant.py). One job at a time; a trial takes 20-60 s.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "programs" / "silent")]

import plant  # noqa: E402
from learning import ask  # noqa: E402

from harness import Job, Place, run_probe, running  # noqa: E402
from ranks import running_ranks  # noqa: E402

PAUSE_S = 3.0
"""Pause between two calls of `diagnose`."""
RIGHT, SYMPTOM, WRONG, SILENT, HONEST = "right", "symptom", "wrong", "silent", "honest"
OUTCOMES = (RIGHT, HONEST, SYMPTOM, WRONG, SILENT)


@dataclass
class Answer:
    """One answer of `diagnose`, judged."""

    outcome: str = SILENT
    place: bool = False
    """Whether a right finding also names the place; True if there is none to name."""
    said: str = ""
    """The finding that decided the outcome."""
    others: list[str] = field(default_factory=list)
    """Findings above `info` that are neither right, nor explained by a right one, nor a symptom."""
    found: list[str] = field(default_factory=list)
    """All findings, so that a person can judge the answer again."""
    elapsed_s: float = 0.0


@dataclass
class Trial:
    """One kind in one program. `verdict_s`: time until it was named; None: never."""

    kind: str
    program: str
    seed: int
    step: int = 0
    verdict_s: float | None = None
    first: Answer = field(default_factory=Answer)
    later: Answer | None = None


def matches(patterns: list[str], sentence: str) -> bool:
    """Whether any of the regular expressions matches in the sentence."""
    return any(re.search(pattern, sentence, re.IGNORECASE) for pattern in patterns)


class Judge:
    """Judges answers by the declarations of one kind in one program."""

    def __init__(self, name: str, program: str) -> None:
        kind = plant.kinds()[name]
        planted = kind["programs"][program]
        self.knowable: bool = kind["knowable"]
        self.right: list[str] = planted.get("right", kind["right"])
        self.places: list[str] = planted.get("place", kind.get("place", []))
        self.symptoms: list[str] = [*plant.symptoms(), *kind.get("symptom", [])]

    def judged(self, found: list[dict[str, Any]]) -> Answer:
        """Judge an answer."""
        answer, symptoms = Answer(), []
        named, beside = set(), []
        for one in found:
            sentence = f"{one['state']}: {one['what']} ({one['subject']})"
            answer.found.append(f"{one['severity']} {one['recipe']}: {sentence}")
            begins = f"{one['state']}: {one['what'].partition(',')[0]}"  # the rest is its evidence
            if matches(self.right, sentence):
                named.add(one["recipe"])
                placed = not self.places or matches(self.places, sentence)
                if answer.outcome != RIGHT or (placed and not answer.place):
                    answer.outcome, answer.place, answer.said = RIGHT, placed, sentence
            elif one["severity"] == "info":
                continue
            elif matches(self.symptoms, begins):
                symptoms.append(sentence)
            else:
                beside.append((one.get("explained_by"), f"{one['recipe']}: {sentence}"))
        answer.others = [sentence for cause, sentence in beside if cause not in named]
        if answer.outcome == RIGHT:
            return answer
        if answer.others:
            answer.outcome, answer.said = WRONG, answer.others[0]
        elif not self.knowable:
            answer.outcome, answer.said = HONEST, "; ".join(symptoms)
        elif symptoms:
            answer.outcome, answer.said = SYMPTOM, symptoms[0]
        return answer


@contextlib.contextmanager
def started(place: Place, program: str, kind: str, seed: int) -> Iterator[tuple[Job, str]]:
    """Run the program under probe, with the kind planted (empty: unmodified); yields the job and its
    endpoint: the PID, or the job's name if it has two ranks."""
    folder = place.directory / "script"
    folder.mkdir()
    script = plant.write(program, kind, folder, seed)
    path, options = str(script.path.with_suffix("")), ["--seed", str(seed), *script.options]
    if program in plant.DISTRIBUTED:
        name = f"{program}-{uuid.uuid4().hex[:6]}"
        # Not forks of one process: with the same hash seed, sets would have the same order on all ranks.
        with running_ranks(place, 2, path, *options, name=name, interpreters=True) as ranks:
            yield ranks[0], name
    else:
        with running(place, path, *options) as job:
            yield job, str(job.pid)


def trial(kind: str, program: str, seed: int, watch_s: float, again_s: float) -> Trial:
    """Plant the error, diagnose until it is named, and diagnose again later."""
    judge, done, place = Judge(kind, program), Trial(kind, program, seed), Place()
    try:
        with started(place, program, kind, seed) as (job, asked):
            _, began_ns, step = job.wait_for("FAULT").split()
            done.step = int(step)
            found_ns = time.time_ns()
            while time.time_ns() < found_ns + watch_s * 1e9:
                time.sleep(PAUSE_S)
                found, elapsed_s = ask(place, asked)
                done.first = judge.judged(found)
                done.first.elapsed_s = round(elapsed_s, 2)
                if done.first.outcome == RIGHT and done.first.place:
                    done.verdict_s = round((time.time_ns() - int(began_ns)) / 1e9, 1)
                    break
            if again_s:
                time.sleep(again_s)
                found, elapsed_s = ask(place, asked)
                done.later = judge.judged(found)
                done.later.elapsed_s = round(elapsed_s, 2)
        place.close()
    finally:
        place.remove()
    return done


def clean(program: str, seed: int, seconds: float) -> tuple[list[dict[str, Any]], int]:
    """Findings above `info` on a healthy program, and its last step."""
    place, found = Place(), {}
    try:
        with started(place, program, "", seed) as (job, asked):
            ends_s = time.monotonic() + seconds
            while time.monotonic() < ends_s:
                time.sleep(2 * PAUSE_S)
                for one in ask(place, asked)[0]:
                    if one["severity"] != "info":
                        found[one["recipe"], one["subject"]] = {**one, "job": program, "seed": seed}
            last = "SELECT MAX(step) FROM python.steps"
            answer = run_probe(place, str(job.pid), "query", last, "--format", "csv").stdout
        place.close()
    finally:
        place.remove()
    return list(found.values()), int(answer.split()[-1] if answer else 0)


def counted(trials: list[Trial]) -> list[str]:
    """The cells of a row of the table."""
    outcomes = Counter(trial.first.outcome for trial in trials)
    right = [trial.first for trial in trials if trial.first.outcome == RIGHT]
    times = sorted(trial.verdict_s for trial in trials if trial.verdict_s is not None)
    later = Counter(trial.later.outcome for trial in trials if trial.later is not None)
    return [
        *(str(outcomes[outcome]) for outcome in OUTCOMES),
        str(sum(answer.place for answer in right)), str(sum(bool(answer.others) for answer in right)),
        f"{times[len(times) // 2]:.0f}, {times[-1]:.0f}" if times else "",
        ", ".join(f"{count} {outcome}" for outcome, count in later.most_common()),
    ]


def table(trials: list[Trial]) -> list[str]:
    """The lines of the table: one per kind, and one for all."""
    titles = ["kind", "trials", *OUTCOMES, "right place", "wrong beside", "named s (median, worst)", "later"]
    lines = ["| " + " | ".join(titles) + " |", "|" + " --- |" * len(titles)]
    for name in dict.fromkeys(trial.kind for trial in trials):
        mine = [trial for trial in trials if trial.kind == name]
        lines.append("| " + " | ".join([name, str(len(mine)), *counted(mine)]) + " |")
    return [*lines, "| " + " | ".join(["all", str(len(trials)), *counted(trials)]) + " |"]


def write(path: Path | None, result: dict[str, Any]) -> None:
    """Save the results so far."""
    if path:
        path.write_text(json.dumps(result, indent=1))


def run_clean(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the clean programs."""
    false: list[dict[str, Any]] = []
    hours = 0.0
    for program in arguments.programs or (*plant.PROGRAMS, *plant.HEALTHY):
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            found, steps = clean(program, seed, arguments.seconds)
            hours += arguments.seconds / 3600
            false += found
            print(f"{program} {seed}: {len(found)} false alarms in {steps} steps", flush=True)
            for one in found:
                print(f"   {one['severity']} {one['recipe']} {one['step']}: {one['what']}", flush=True)
    print(f"\nfalse alarms: {len(false)} in {hours:.2f} clean hours, {len(false) / hours:.1f} per hour")
    return {"false_alarms": false, "hours": hours}


def run_planted(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the planted trials."""
    trials = []
    for name in arguments.only or plant.kinds(arguments.half):
        for program in plant.kinds()[name]["programs"]:
            if arguments.programs and program not in arguments.programs:
                continue
            for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
                done = trial(name, program, seed, arguments.watch, arguments.again)
                trials.append(done)
                write(arguments.json, {"trials": [asdict(one) for one in trials]})
                after = "" if done.verdict_s is None else f" after {done.verdict_s} s"
                later = f", later {done.later.outcome}" if done.later else ""
                print(
                    f"{name} in {program} {seed}: {done.first.outcome}{after}{later}: {done.first.said}"
                    f" | {done.first.others}", flush=True,
                )
    print("\n" + "\n".join(table(trials)))
    return {"trials": [asdict(one) for one in trials]}


def main() -> None:
    """Run the trials and print the table."""
    as_is = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_is)
    parser.add_argument("--half", choices=[*plant.HALVES, "all"], default="all", help="of the kinds")
    parser.add_argument("--only", nargs="+", choices=list(plant.kinds()), metavar="KIND")
    parser.add_argument("--programs", nargs="+", choices=[*plant.PROGRAMS, *plant.HEALTHY], metavar="NAME")
    parser.add_argument("--seeds", type=int, default=1, help="trials of each kind in each program")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--watch", type=float, default=40.0, help="seconds in which it is to be named")
    parser.add_argument("--again", type=float, default=0.0, help="ask once more, this many seconds later")
    parser.add_argument("--clean", action="store_true", help="nothing is planted")
    parser.add_argument("--seconds", type=float, default=60.0, help="each clean program is asked so long")
    parser.add_argument("--json", type=Path, help="file for every trial")
    arguments = parser.parse_args()
    write(arguments.json, run_clean(arguments) if arguments.clean else run_planted(arguments))


if __name__ == "__main__":
    main()
