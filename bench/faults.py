"""Measures fault detection: plants each distributed fault in real jobs of 2-4 gloo ranks, several times.

    python bench/faults.py [--seeds N] [--only NAME …] [--clean-seconds S] [--json OUT]
    python bench/faults.py --learning [--help]         # learning faults: bench/learning.py
    python bench/faults.py --silent [--help]           # silent errors in ordinary programs: bench/silent.py
    python bench/faults.py --silent --former JSON …    # one table of earlier runs: bench/silent_report.py

A seed chooses the number of ranks, the faulty rank, the step, and how gradients are averaged. Each trial
measures how long after the fault the server raised an alarm (detection), when `diagnose` first gave the right
rank and cause (verdict), and whether the first alarm named them. Clean jobs are monitored for alarms and
straggler notices. Prints a table and whether the targets are met: detection within five seconds or five usual
steps (ten seconds if only one step in twelve is slow), the right verdict within 20 s in 95 %, the right rank
in 97.5 %, no false alarm.

One machine, one job at a time; a trial takes 10-20 s.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import learning  # noqa: E402
import silent_report  # noqa: E402

from harness import DEPLOYED, Place  # noqa: E402
from probe.base import wire  # noqa: E402
from probe.base.errors import ProbeError  # noqa: E402
from probe.base.rank_sets import as_text  # noqa: E402
from probe.diagnose import states  # noqa: E402
from probe.recording import places  # noqa: E402
from probe.recording.journal import read_journal  # noqa: E402
from probe.recording.recording import Meta  # noqa: E402
from ranks import Ranks, running_ranks  # noqa: E402

DETECTED_S, DETECTED_STEPS, VERDICT_S = 5.0, 5.0, 20.0
VERDICT_RATIO, RANK_RATIO = 0.95, 0.975
WATCH_S = 25.0
"""A fault not found by then counts as missed."""


class Fault(NamedTuple):
    """One fault and its accepted verdicts. `ways`: how gradients may be averaged."""

    states: tuple[str, ...]
    ways: tuple[str, ...] = ("reduce", "ddp")
    options: tuple[str, ...] = ()
    fewest: int = 2
    even: bool = False
    """Only even ranks: the others are not in the group."""
    not_last: bool = False
    noticed: bool = False
    """A notice is enough: training continues."""
    detected_s: float = DETECTED_S
    """Time for detection, if that is more than five steps."""


DEAD = (states.DEAD_RANK, states.DEAD, states.FAILED)
SLOW = ("--pace-ms", "20", "--length", "0.04")
FAULTS: dict[str, Fault] = {
    "sleep": Fault((states.MISSING_RANK,)),
    "sleep in group": Fault((states.MISSING_RANK,), fewest=3, even=True),
    "leaves": Fault((states.MISSING_RANK,)),
    "no send": Fault((states.MISSING_RANK,), not_last=True),
    "op": Fault((states.OP_MISMATCH,)),
    "shape": Fault((states.SIZE_MISMATCH,)),
    "dtype": Fault((states.DTYPE_MISMATCH,)),
    "order": Fault((states.ORDER_MISMATCH,)),
    "groups": Fault((states.ORDER_MISMATCH,)),
    "kill": Fault(DEAD),
    "segv": Fault(DEAD),
    "exit": Fault(DEAD),
    "exception": Fault(DEAD),
    "stop": Fault((states.STOPPED,)),
    "gil": Fault((states.HOLDS_GIL,)),
    "worker": Fault((states.WAITING_FOR_DATA,)),
    "compute": Fault((states.STRAGGLER,), options=SLOW, noticed=True),
    "backward": Fault((states.STRAGGLER,), ways=("reduce",), options=SLOW, noticed=True),
    "input": Fault((states.STRAGGLER,), options=SLOW, noticed=True),
    # The verdict needs four slow steps. One step in twelve is slow, and as few as every second one is timed.
    "periodic": Fault(
        (states.STRAGGLER,), options=("--pace-ms", "20", "--length", "0.3"), noticed=True, detected_s=10.0
    ),
}
CLEAN: dict[str, tuple[str, ...]] = {
    "none": ("--pace-ms", "10"),
    "evaluation": ("--length", "7"),  # longer than the five seconds after which a hang is noticed
    "checkpoint": ("--length", "7"),
    "lengths": ("--pace-ms", "20"),
    "warm-up": ("--length", "1.0"),
    "one-off": ("--length", "2.0"),
}


@dataclass
class Trial:
    """One planted fault. Times are seconds after the fault; None: not found in time."""

    fault: str
    world_size: int
    way: str
    rank: int
    step: int
    usual_step_s: float | None = None
    detected_s: float | None = None
    verdict_s: float | None = None
    right_rank: bool = False
    right_cause: bool = False
    said: str = ""

    @property
    def in_time(self) -> bool:
        """Whether it was detected within the limit."""
        bar_s = max(FAULTS[self.fault].detected_s, DETECTED_STEPS * (self.usual_step_s or 0.0))
        return self.detected_s is not None and self.detected_s <= bar_s


def rows(place: Place) -> list[dict[str, Any]]:
    """The server's rows of probe.verdicts with their rank, oldest first."""
    found = []
    for folder in places.process_folders(place.directory):
        try:
            rank = Meta.read(folder).rank
        except ProbeError:
            continue
        for record in read_journal(places.journals(folder)[1]):
            if record.get("table") == "probe.verdicts":
                found += [{**row, "rank": rank} for row in record["rows"]]
    return sorted(found, key=lambda row: row["t_ns"])


def diagnose(place: Place, name: str) -> dict[str, Any]:
    """The server's verdict on the job; empty without one."""
    try:
        server = places.server_socket(place.directory)
        answer = wire.call(server, "GET", f"/v1/diagnose?endpoint={name}", None, timeout_s=20.0)
    except (ProbeError, OSError):
        return {}
    return dict(answer) if isinstance(answer, dict) else {}


def is_raised(row: dict[str, Any], fault: Fault) -> bool:
    """Whether a row counts as an alarm for this fault."""
    return row["severity"] == states.ALARM or (fault.noticed and row["state"] == states.STRAGGLER)


def watch(place: Place, ranks: Ranks, fault: Fault, trial: Trial, began_ns: int) -> None:
    """Fill in the server's own alarm and the answers of `diagnose`."""
    first: dict[str, Any] | None = None
    deadline_ns = began_ns + int(WATCH_S * 1e9)
    asked_s = 0.0
    while time.time_ns() < deadline_ns:
        if trial.detected_s is None:
            raised = [row for row in rows(place) if row["t_ns"] >= began_ns and is_raised(row, fault)]
            if raised:
                trial.detected_s = (raised[0]["t_ns"] - began_ns) / 1e9
                first = raised[0]
                trial.said = f"{first['state']} at rank {first['rank']}: {first['what']}"
        if trial.verdict_s is None and time.monotonic() - asked_s > 1.0:
            answer = diagnose(place, ranks.name)
            if answer.get("culprits", [None])[:1] == [trial.rank] and answer["state"] in fault.states:
                trial.verdict_s = (time.time_ns() - began_ns) / 1e9
            asked_s = time.monotonic()
        if trial.verdict_s is not None and trial.detected_s is not None:
            break
        time.sleep(0.1)
    if first is not None:
        trial.right_rank, trial.right_cause = first["rank"] == trial.rank, first["state"] in fault.states


def plant(name: str, seed: int) -> Trial:
    """One trial."""
    fault = FAULTS[name]
    draw = random.Random(f"{name} {seed}")
    world_size = draw.randint(fault.fewest, 4)
    last = world_size - (2 if fault.not_last else 1)
    candidates = [rank for rank in range(last + 1) if not (fault.even and rank % 2)]
    trial = Trial(name, world_size, draw.choice(fault.ways), draw.choice(candidates), draw.randint(15, 45))
    if fault.noticed:
        trial.step = draw.randint(100, 160)
    options = ["--fault", name, "--way", trial.way, "--rank", str(trial.rank), "--at", str(trial.step)]
    options.append("--forever")
    place = Place()
    try:
        place.start_server(**DEPLOYED)  # a job that dies in its first second starts none in time
        with running_ranks(place, world_size, "faulty_ranks", *options, *fault.options, **DEPLOYED) as ranks:
            began_ns = int(ranks[trial.rank].wait_for("FAULT").split()[1])
            watch(place, ranks, fault, trial, began_ns)
            trial.usual_step_s = _usual_step_s(place, ranks)
        place.close()
    finally:
        place.remove()
    return trial


def _usual_step_s(place: Place, ranks: Ranks) -> float | None:
    body = {"endpoint": ranks.name, "sql": "SELECT median(wall_s) FROM python.steps", "limit": 1}
    try:
        answer = wire.call(places.server_socket(place.directory), "POST", "/v1/query", body, timeout_s=20.0)
        return float(answer["rows"][0][0])  # type: ignore[call-overload, index]
    except (ProbeError, OSError, TypeError, LookupError):
        return None


def clean(name: str, seed: int, seconds: float) -> list[dict[str, Any]]:
    """Alarms and straggler notices on a healthy job."""
    draw = random.Random(f"{name} {seed}")
    world_size, way = draw.randint(2, 4), draw.choice(("reduce", "ddp"))
    options = ["--fault", name, "--way", way, "--forever", *CLEAN[name]]
    place = Place()
    try:
        place.start_server(**DEPLOYED)  # a job that dies in its first second starts none in time
        with running_ranks(place, world_size, "faulty_ranks", *options, **DEPLOYED) as ranks:
            ends_s = time.monotonic() + seconds
            asked: list[dict[str, Any]] = []
            while time.monotonic() < ends_s:
                time.sleep(5.0)
                answer = diagnose(place, ranks.name)
                if answer.get("severity") == states.ALARM or answer.get("state") == states.STRAGGLER:
                    asked.append({**answer, "rank": answer["culprits"]})
            bad = (states.STRAGGLER, states.MISSING_RANK)
            found = [row for row in rows(place) if row["severity"] == states.ALARM or row["state"] in bad]
        place.close()
    finally:
        place.remove()
    return found + asked


def table(trials: list[Trial]) -> list[str]:
    """The lines of the table, one per fault."""
    lines = [
        "| fault | trials | ranks | detected s (median, worst) | verdict s (median, worst) | rank | cause |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in dict.fromkeys(trial.fault for trial in trials):
        mine = [trial for trial in trials if trial.fault == name]
        sizes = as_text(trial.world_size for trial in mine)
        lines.append(
            f"| {name} | {len(mine)} | {sizes} | {_times([t.detected_s for t in mine])} "
            f"| {_times([t.verdict_s for t in mine])} | {sum(t.right_rank for t in mine)}/{len(mine)} "
            f"| {sum(t.right_cause for t in mine)}/{len(mine)} |"
        )
    return lines


def _times(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    missed = f", {len(values) - len(known)} missed" if len(known) < len(values) else ""
    return f"{statistics.median(known):.1f}, {max(known):.1f}{missed}" if known else "missed"


def bars(trials: list[Trial], false: int, hours: float) -> list[str]:
    """One line per target: whether it is met."""
    count = max(1, len(trials))
    in_time = sum(trial.in_time for trial in trials)
    verdicts = sum(trial.verdict_s is not None and trial.verdict_s <= VERDICT_S for trial in trials)
    ranks = sum(trial.right_rank for trial in trials)
    causes = sum(trial.right_cause for trial in trials)
    found = []
    if trials:
        enough = _ok(verdicts >= VERDICT_RATIO * count)
        found += [
            f"detected in max(5 s, 5 steps), periodic in 10 s: {in_time}/{count} {_ok(in_time == count)}",
            f"right verdict within {VERDICT_S:g} s: {verdicts}/{count} {enough}",
            f"right rank named first: {ranks}/{count} {_ok(ranks >= RANK_RATIO * count)}",
            f"right cause named first: {causes}/{count}",
        ]
    if hours:
        minutes = f"{hours * 60:.1f} clean minutes"
        found.append(f"false alarms: {false} in {minutes}, {false / hours:.1f}/h {_ok(not false)}")
    return found


def _ok(holds: bool) -> str:
    return "ok" if holds else "MISSED"


def main() -> int:
    """Run the trials; returns 1 if a target is missed."""
    if "--learning" in sys.argv[1:]:
        return learning.main()
    if "--silent" in sys.argv[1:]:
        return silent_report.main()
    as_is = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_is)
    parser.add_argument("--seeds", type=int, default=3, help="trials of each fault")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=[*FAULTS, *CLEAN], default=[*FAULTS, *CLEAN])
    parser.add_argument("--clean-seconds", type=float, default=40.0, help="time per clean job")
    parser.add_argument("--json", type=Path, help="file for every trial")
    arguments = parser.parse_args()
    trials: list[Trial] = []
    false: list[dict[str, Any]] = []
    clean_s = 0.0
    for name in arguments.only:
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            if name in CLEAN:
                found = clean(name, seed, arguments.clean_seconds)
                clean_s += arguments.clean_seconds
                false += found
                for row in found:
                    print(f"FALSE in {name} {seed}: {row['state']}, {row['rank']}: {row['what']}", flush=True)
                print(f"{name} seed {seed}: {len(found)} false alarms", flush=True)
                continue
            try:
                trial = plant(name, seed)
            except AssertionError:  # it could not start: the port was taken
                trial = plant(name, seed)
            trials.append(trial)
            right = "right" if trial.right_rank and trial.right_cause and trial.in_time else "WRONG"
            print(
                f"{name} seed {seed}: {right}, rank {trial.rank} of {trial.world_size} ({trial.way}), "
                f"detected {_times([trial.detected_s])}, verdict {_times([trial.verdict_s])}: "
                f"{trial.said[:300]}",
                flush=True,
            )
    lines = [*(table(trials) if trials else []), "", *bars(trials, len(false), clean_s / 3600)]
    print("\n".join(lines))
    if arguments.json:
        arguments.json.write_text(json.dumps({
            "trials": [asdict(trial) for trial in trials], "false_alarms": false, "clean_s": clean_s,
        }, indent=1))
    return int(any("MISSED" in line for line in lines))


if __name__ == "__main__":
    raise SystemExit(main())
