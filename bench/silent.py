"""Plants each silent error of tests/programs/silent in ordinary programs and judges what `diagnose` says.

    python bench/silent.py [--half development|held-out] [--only KIND …] [--programs NAME …] [--seeds N]
                           [--again SECONDS] [--json OUT]
    python bench/silent.py --clean [--seconds S]     # as they stand, and those of tests/programs/healthy

A trial asks `probe PID diagnose` again and again until the mechanism is named or the time is up, and with
`--again` once more some seconds later: a verdict holds as long as what it found. Its outcome:

    right     a finding names the mechanism (`place`: and where it is, if it is anywhere)
    beside    … and another finding above `info` says something else
    symptom   only what follows from it is described
    wrong     something else is said above `info`, and the mechanism is not
    silent    nothing is said above `info`; right where no process can know it from within ("honest")

The words that count are declared with the kinds (plant.py). One job at a time; a trial takes 20-60 s.
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
"""Between two questions."""
RIGHT, SYMPTOM, WRONG, SILENT, HONEST = "right", "symptom", "wrong", "silent", "honest"
OUTCOMES = (RIGHT, HONEST, SYMPTOM, WRONG, SILENT)


@dataclass
class Answer:
    """One answer of `diagnose`, judged."""

    outcome: str = SILENT
    place: bool = False
    """Whether a right finding says where, too; True where there is nothing to be named."""
    said: str = ""
    """The finding that decided it."""
    others: list[str] = field(default_factory=list)
    """Findings above `info` that are neither right, nor explained by what is, nor a symptom."""
    found: list[str] = field(default_factory=list)
    """All findings, so that an answer can be judged again by eye."""
    elapsed_s: float = 0.0


@dataclass
class Trial:
    """One kind in one program. `verdict_s`: from its beginning until it was named; None: never."""

    kind: str
    program: str
    seed: int
    step: int = 0
    verdict_s: float | None = None
    first: Answer = field(default_factory=Answer)
    later: Answer | None = None


def matches(patterns: list[str], sentence: str) -> bool:
    """Whether one of the regular expressions is in the sentence."""
    return any(re.search(pattern, sentence, re.IGNORECASE) for pattern in patterns)


class Judge:
    """What is declared of one kind in one program."""

    def __init__(self, name: str, program: str) -> None:
        kind = plant.kinds()[name]
        planted = kind["programs"][program]
        self.knowable: bool = kind["knowable"]
        self.right: list[str] = planted.get("right", kind["right"])
        self.places: list[str] = planted.get("place", kind.get("place", []))
        self.symptoms: list[str] = [*plant.symptoms(), *kind.get("symptom", [])]

    def judged(self, found: list[dict[str, Any]]) -> Answer:
        """What an answer is worth."""
        answer, symptoms = Answer(), []
        named, beside = set(), []
        for one in found:
            sentence = f"{one['state']}: {one['what']} ({one['subject']})"
            answer.found.append(f"{one['severity']} {one['recipe']}: {sentence}")
            begins = f"{one['state']}: {one['what'].partition(',')[0]}"  # what comes later is its evidence
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
    """The program under probe, with the kind planted (none: as it stands), and what to ask about: its pid,
    or the job's name when it has two ranks."""
    folder = place.directory / "script"
    folder.mkdir()
    script = plant.write(program, kind, folder, seed)
    path, options = str(script.path.with_suffix("")), ["--seed", str(seed), *script.options]
    if program in plant.DISTRIBUTED:
        name = f"{program}-{uuid.uuid4().hex[:6]}"
        # Not forks of one process, which have one hash seed: sets would have one order on all ranks.
        with running_ranks(place, 2, path, *options, name=name, interpreters=True) as ranks:
            yield ranks[0], name
    else:
        with running(place, path, *options) as job:
            yield job, str(job.pid)


def trial(kind: str, program: str, seed: int, watch_s: float, again_s: float) -> Trial:
    """Plant, ask until it is named, and ask again later."""
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
    """What is said above `info` of a program in which nothing is wrong, and at which step it was left."""
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
    """The cells of a line of the table."""
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
    """A line for each kind, and one for all."""
    titles = ["kind", "trials", *OUTCOMES, "right place", "wrong beside", "named s (median, worst)", "later"]
    lines = ["| " + " | ".join(titles) + " |", "|" + " --- |" * len(titles)]
    for name in dict.fromkeys(trial.kind for trial in trials):
        mine = [trial for trial in trials if trial.kind == name]
        lines.append("| " + " | ".join([name, str(len(mine)), *counted(mine)]) + " |")
    return [*lines, "| " + " | ".join(["all", str(len(trials)), *counted(trials)]) + " |"]


def write(path: Path | None, result: dict[str, Any]) -> None:
    """Keep what is known so far."""
    if path:
        path.write_text(json.dumps(result, indent=1))


def run_clean(arguments: argparse.Namespace) -> dict[str, Any]:
    """The clean programs."""
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
    """The planted ones."""
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
