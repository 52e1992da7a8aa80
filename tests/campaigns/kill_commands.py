"""Kills commands in the middle of an action, and starts many at once without a server."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from agent.asking import ask, tell
from agent.nursery import Forked, Nursery, forked
from campaigns.campaign import Campaign
from campaigns.kill_ledger import KILLS_OF_A_ROUND, UNHURRIED, Server, ground
from harness import DEPLOYED, PATIENCE_S, ROOT, Place, end_process
from probe.base.errors import ProbeError
from probe.recording import places
from probe.recording.journal import read_journal

PACE_MS = 30
"""Step time, long enough that an action waits for the end of a step."""
AT_ONCE = 20
_LEASE_S = 0.4


def start(place: Place, *words: str, **environ: str) -> subprocess.Popen[str]:
    """Start the command `probe` without waiting for it."""
    installed = Path(sys.executable).parent / "probe"
    command = [str(installed)] if installed.exists() else [sys.executable, "-m", "probe_cli"]
    paths = os.pathsep.join((str(ROOT), str(ROOT / "cli")))
    return subprocess.Popen(
        [*command, *words], env=place.environ(PYTHONPATH=paths, **environ), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )


def _words(dice: random.Random, place: Place, pid: int, number: int) -> list[str]:
    """The words of a random command that acts on the job."""
    chosen = dice.choice(("lr", "lr", "checkpoint", "eval", "eval at a step", "pause"))
    if chosen == "lr":
        return [str(pid), "lr", "--scale", dice.choice(("0.5", "2"))]
    if chosen == "checkpoint":
        return [str(pid), "checkpoint", str(place.directory / f"saved-{number}.pt")]
    if chosen == "pause":
        return [str(pid), "pause", "--for", str(_LEASE_S)]
    code = "import time\ntime.sleep(0.2)\n1" if chosen == "eval" else "optimizer.mark = 1"
    return [str(pid), "eval", code]


def kill_commands(campaign: Campaign, number: int, nursery: Nursery) -> None:
    """Kill each command at a random moment. Then nothing may wait or hold, the journal must be complete, and
    the losses must equal a training with the rates that the job noted."""
    dice = campaign.dice(number)
    with ground(campaign, number) as place:
        server = Server(place)
        file = place.directory / "steps"
        options = ("--forever", "--hold", "--pace-ms", str(PACE_MS), "--file", str(file))
        with forked(nursery, place, ("rates_on_file", *options), **DEPLOYED, **UNHURRIED) as [job]:
            job.wait_for("READY")
            server.states()
            for one in range(KILLS_OF_A_ROUND):
                before = _asked(place)
                command = start(place, *_words(dice, place, job.pid, one))
                if dice.random() < 0.8:
                    while command.poll() is None and _asked(place) == before:
                        time.sleep(0.005)
                    time.sleep(dice.uniform(0.0, 0.03))
                else:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        command.wait(dice.uniform(0.1, 1.2))
                begun = "after the job had begun" if _asked(place) > before else "before it was asked"
                killed = command.poll() is None
                campaign.count(f"commands killed {begun}" if killed else "commands that were faster")
                command.kill()
                command.communicate()
            if campaign.control:  # a lease that stays armed
                ask(place, job.pid, "POST", "/v1/act", {"action": "pause", "arguments": {"for_s": 600}})
            for line in _still_held(place, job):
                campaign.found(number, line)
            if campaign.control:
                ask(place, job.pid, "POST", "/v1/act", {"action": "resume", "arguments": {}})
            rows, _ = server.query(
                job.pid, "SELECT action_id, action, state, step FROM probe.actions ORDER BY t_ns"
            )
            evals, _ = server.query(job.pid, "SELECT eval_id, outcome FROM probe.evals ORDER BY t_ns")
            tell(job)
            result = job.result()
            for line in _ended(rows, evals, file):
                campaign.found(number, line)
            for saved in place.directory.glob("*saved-*"):
                campaign.count("checkpoints whole" if _whole(saved) else "checkpoints torn")
                if not _whole(saved):
                    campaign.found(number, f"{saved.name} is left and is no whole checkpoint")
            if (job.let_go(), job.errors()) != (0, ""):
                campaign.found(number, f"the job ended with {job.wait()}: {job.errors()}")
            again = ("rates_on_file", "--replay", str(file), "--file", str(place.directory / "again"))
            with forked(nursery, place, again, watched=False) as [plain]:
                expected = plain.result()
                plain.let_go()
            for name in ("losses", "parameters_sha256"):
                if result[name] != expected[name]:
                    campaign.found(number, f"{name} differ from those of a training without probe")


def _asked(place: Place) -> int:
    """Number of actions and snippets in the job's journal; each is noted before it runs."""
    [process] = places.process_folders(place.directory)
    records = read_journal(places.journals(process)[0])
    return sum(record.get("table") in ("probe.actions", "probe.evals") for record in records)


def _still_held(place: Place, job: Forked) -> list[str]:
    """Holds that remain after the commands are gone and their actions had time to end."""
    deadline = time.monotonic() + 20.0
    while True:
        try:
            listed: dict[str, Any] = ask(place, job.pid, "GET", "/v1/actions")
            health: dict[str, Any] = ask(place, job.pid, "GET", "/v1/health")
        except (OSError, ProbeError) as error:
            return [f"the agent does not answer: {error}"]
        held = listed["paused"] or listed["waiting"] or health["phase"] in ("acting", "paused")
        if not held:
            break
        if time.monotonic() > deadline:
            return [f"still held: {listed}, phase {health['phase']}"]
        time.sleep(0.05)
    until = time.monotonic() + PATIENCE_S
    while ask(place, job.pid, "GET", "/v1/health")["step"] <= health["step"] + 2:
        if time.monotonic() > until:
            return [f"no step after step {health['step']}"]
        time.sleep(0.02)
    time.sleep(1.5)  # a round of the agent's thread journals actions that ended by themselves
    return []


def _ended(rows: list[list[Any]], evals: list[list[Any]], file: Path) -> list[str]:
    """Problems in the journal: an action without an end, a rate that changed without an action."""
    wrong = []
    last: dict[str, tuple[str, str]] = {}
    steps: dict[str, int | None] = {}
    for action_id, action, state, step in rows:
        last[action_id] = (action, state)
        steps[action_id] = step
    for action_id, (action, state) in last.items():
        if state in ("asked", "undoing") or (state == "standing" and action == "pause"):
            wrong.append(f"{action} {action_id} is {state} for ever")
    outcomes = dict(evals)
    wrong += [f"the snippet {one} is {said}" for one, said in outcomes.items() if said == "started"]
    rates = [float.fromhex(line.split()[2]) for line in file.read_text().splitlines()]
    changed = [step for step in range(1, len(rates)) if rates[step] != rates[step - 1]]
    done = sorted(
        int(step) for action_id, step in steps.items()
        if step is not None and last[action_id][0] == "lr" and last[action_id][1] in ("done", "standing")
    )
    for step in set(changed) ^ set(done):
        if done.count(step) != 2:  # two actions before one step: halved and doubled
            wrong.append(f"rates changed before steps {changed}, the journal says {done}")
            break
    return wrong


def _whole(path: Path) -> bool:
    """Whether the file is a checkpoint that can be read and verified."""
    from probe.checkpoint.file import read_checkpoint

    try:
        read_checkpoint(str(path))
    except (ProbeError, OSError, ValueError):
        return False
    return True


# Many at once -----------------------------------------------------------------


def start_at_once(campaign: Campaign, number: int, nursery: Nursery) -> None:
    """Start many commands without a server: all must be answered, by one server."""
    with ground(campaign, number) as place:
        command = ("steps_on_file", "--steps", "50", "--file", str(place.directory / "one"))
        with forked(nursery, place, command, PROBE_SERVER_PYTHON="/nonexistent") as [job]:
            job.result()
            job.let_go()
        commands = [start(place, "ps", "--all", "--format", "json") for _ in range(AT_ONCE)]
        answers = [(*command.communicate(timeout=PATIENCE_S), command.returncode) for command in commands]
        for out, err, status in answers:
            campaign.count("commands at once")
            if status != 0 or [one["pid"] for one in json.loads(out)["processes"]] != [job.pid]:
                campaign.found(number, f"exit status {status}: {out} {err}")
        if campaign.control:
            _server_beside_the_lock(place)
        servers = _servers(place)
        campaign.count("servers of them all", len(servers))
        if len(servers) != 1 or int(servers[0].split()[0]) != place.server_pid():
            campaign.found(number, f"servers: {servers}, server.json says {place.server_pid()}")
            for one in servers:
                if int(one.split()[0]) != place.server_pid():
                    end_process(int(one.split()[0]))


def _servers(place: Place) -> list[str]:
    """The server processes, after those that lost the race have ended."""
    deadline = time.monotonic() + 30.0
    while True:
        found = [
            one for one in place.processes()
            if "probe.server" in one and ".worker" not in one and "/bin/sh" not in one and " sh -c" not in one
        ]
        if len(found) == 1 or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def _server_beside_the_lock(place: Place) -> None:
    """For the control: start a server with a different lock, wait until it serves. `Place.close` ends it."""
    code = (
        "import sys\nfrom probe.boot import launch\n"
        "launch.lock_path = lambda folder: folder / 'another.lock'\n"
        "sys.argv = ['probe.server']\nfrom probe.server.__main__ import main\nmain()"
    )
    first = place.server_pid()
    subprocess.Popen(
        [sys.executable, "-c", code], env=place.environ(PYTHONPATH=str(ROOT)), stderr=subprocess.DEVNULL
    )
    while place.server_pid() == first:
        time.sleep(0.05)
