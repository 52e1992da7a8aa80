"""Pause, resume and stop: training stands still between two steps, and goes on or ends as if by itself."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agent.asking import ask, evaluate, query, states, tell
from agent.nursery import Forked
from diagnose.hung import alarms, look, noted, recorded_of, until
from harness import SERVER, Job, Place, run_probe
from probe.base.errors import ActionRefused, BadRequest, ProbeError
from probe.diagnose.process.progress import History
from probe.diagnose.states import NOTICE, PAUSED

Fork = Callable[..., Forked]
STALL_S = 0.5


def act(place: Place, job: Job, action: str, **arguments: Any) -> dict[str, Any]:
    """The agent's answer to an action."""
    body = {"action": action, "arguments": arguments, "wait_s": 60.0}
    answer: dict[str, Any] = ask(place, job.pid, "POST", "/v1/act", body, 120.0)
    return answer


def steps_of(place: Place, job: Job) -> int:
    """Steps that the agent has counted."""
    return int(ask(place, job.pid, "GET", "/v1/health")["step"])


def paused(place: Place, job: Job) -> bool:
    """Whether the agent says that the training is paused."""
    return bool(ask(place, job.pid, "GET", "/v1/actions")["paused"])


def is_as_without_probe(fork: Fork, losses: list[str]) -> bool:
    """Whether a run of as many steps without probe has these losses, bit by bit."""
    with_nothing = fork("held", "--rest-s", "0", "--steps", str(len(losses)), watched=False)
    plain: list[str] = with_nothing.result()["losses"]
    return plain == losses and len(losses) > 3


def test_while_the_training_is_paused_what_changes_something_runs_at_once_and_nothing_else_changes(
    place: Place, fork: Fork
) -> None:
    job = fork("held", "--forever", PROBE_STALL_S=str(STALL_S), **SERVER)
    job.wait_for("READY")
    with pytest.raises(ActionRefused, match="not paused"):
        act(place, job, "resume")
    for wrong in ({"for_s": 0}, {"for_s": "long"}, {"for_s": True}, {"seconds": 3}):
        with pytest.raises(BadRequest):
            act(place, job, "pause", **wrong)
    with pytest.raises(ActionRefused, match="at most 86400 s"):
        act(place, job, "pause", for_s=1e6)
    assert act(place, job, "pause", for_s=600)["state"] == "standing"
    step = steps_of(place, job)
    for number in range(3):
        answer = evaluate(place, job.pid, f"optimizer.seen_{number} = len(optimizer.param_groups)")
        assert answer["error"] is None and answer["where"] == "step boundary" and answer["step"] == step
    with ThreadPoolExecutor(4) as pool:  # several at once
        values = list(pool.map(lambda one: evaluate(place, job.pid, f"loss.mark = {one}\nloss.mark")["value"],
                               range(8)))
    assert values == [str(one) for one in range(8)]
    assert steps_of(place, job) == step and paused(place, job)

    # Nobody takes it for a stall, however long it is.
    recorded = recorded_of(place, job.pid)
    evidence, verdict = look(place, job)
    assert (verdict.state, verdict.severity) == (PAUSED, NOTICE)
    assert evidence.progress is not None and evidence.progress.phase == "paused"
    done = run_probe(place, str(job.pid), "diagnose")
    assert "PAUSED (notice)  paused by probe (action " in done.stdout
    assert f"probe {job.pid} resume" in done.stdout
    until(lambda: states(place)[job.pid] == "paused", "ps says paused")
    assert noted(recorded) == []

    assert act(place, job, "resume")["what"] == "the training continues"
    until(lambda: steps_of(place, job) > step + 50, "steps after the pause")
    assert not paused(place, job)
    found = History(recorded.meta).read()
    [[longest_s]] = query(place, job.pid, "SELECT max(wall_s - coalesce(held_s, 0)) FROM python.steps")
    assert found is not None and found.longest_pause_s is not None
    assert found.longest_pause_s <= longest_s + 1e-6, "the time that it was held is none of it"
    until(lambda: states(place)[job.pid] == "running", "ps says running again")
    assert alarms(place, job.pid) == []
    tell(job)
    result = job.result()
    assert is_as_without_probe(fork, result["losses"])
    assert job.let_go() == 0, job.errors()
    rows = query(place, job.pid, "SELECT action, state FROM probe.actions ORDER BY t_ns")
    last = [["pause", "standing"], ["resume", "asked"], ["resume", "done"], ["pause", "ended"]]
    assert sorted(rows[-4:]) == sorted(last)
    [[held, wall]] = query(place, job.pid, f"SELECT held_s, wall_s FROM python.steps WHERE step = {step}")
    assert 0.9 * wall < held <= wall, "the step says that it was held"
    assert job.errors() == ""


def test_a_pause_ends_by_itself_and_by_undoing_and_when_probe_leaves(place: Place, fork: Fork) -> None:
    job = fork("held", "--forever")
    job.wait_for("READY")
    began = time.monotonic()
    act(place, job, "pause", for_s=0.3)
    until(lambda: not paused(place, job), "the end of the pause")
    assert time.monotonic() - began >= 0.3
    answer = act(place, job, "pause")
    step = steps_of(place, job)
    undone = ask(place, job.pid, "POST", "/v1/undo", {"id": answer["id"]})
    assert undone["what"] == "the training continues"
    until(lambda: steps_of(place, job) > step, "steps after the undoing")
    with pytest.raises(ProbeError, match="undone already"):
        ask(place, job.pid, "POST", "/v1/undo", {"id": answer["id"]})
    act(place, job, "pause")
    assert any("pause" in one for one in ask(place, job.pid, "POST", "/v1/stop")["ended"])
    tell(job)
    assert is_as_without_probe(fork, job.result()["losses"]), "it goes on without probe"
    assert job.let_go() == 0 and job.errors() == ""


INTERRUPTED = (signal.SIGINT, (), "CAUGHT KeyboardInterrupt", -signal.SIGINT)
ASKED = (signal.SIGTERM, ("--handler",), "CAUGHT Asked", 0)
ASKED_WITHIN = (signal.SIGTERM, ("--handler", "--own-steps"), "CAUGHT Asked", 0)


@pytest.mark.parametrize(("number", "options", "says", "code", "during"), [
    (*INTERRUPTED, "pause"), (*ASKED, "snippet"), (*ASKED_WITHIN, "pause"),
    pytest.param(*INTERRUPTED, "snippet", marks=pytest.mark.campaign),
    pytest.param(*ASKED, "pause", marks=pytest.mark.campaign),
    pytest.param(*ASKED_WITHIN, "snippet", marks=pytest.mark.campaign),
])
def test_a_signal_reaches_the_training_that_is_held(
    place: Place, fork: Fork, during: str, number: signal.Signals, options: tuple[str, ...], says: str,
    code: int,
) -> None:
    job = fork("held", "--forever", *options)
    job.wait_for("READY")
    with ThreadPoolExecutor(1) as pool:
        if during == "pause":
            act(place, job, "pause")
        else:
            code_text = "optimizer.beats = 0\nwhile True: optimizer.beats += 1"
            pool.submit(lambda: evaluate(place, job.pid, code_text))
            until(lambda: ask(place, job.pid, "GET", "/v1/health")["phase"] == "acting", "the snippet runs")
        job.signal(number)
        assert job.wait_for("CAUGHT") == says
        losses = job.result()["losses"]
        job.wait_for("FINALLY")
        job.wait_for("ATEXIT")
        assert job.wait() == code
    assert is_as_without_probe(fork, losses)


def test_stop_ends_the_training_between_two_steps_as_sys_exit_would(
    place: Place, fork: Fork
) -> None:
    job = fork("held", "--forever")
    job.wait_for("READY")
    with pytest.raises(BadRequest):
        act(place, job, "stop", exit_code=256)
    answer = act(place, job, "stop", exit_code=3)
    assert answer["what"] == "the training stops: the process ends with exit code 3"
    assert answer["undoable"] is False
    assert job.wait_for("CAUGHT") == "CAUGHT SystemExit 3"
    result = job.result()
    job.wait_for("FINALLY")
    job.wait_for("ATEXIT")
    assert job.wait() == 3
    assert is_as_without_probe(fork, result["losses"])
    # Its exit status is seen only by a server that is faster than its parent.
    until(lambda: states(place)[job.pid] in ("failed", "finished"), "ps says that it ended by itself")
    states_of = query(place, job.pid, "SELECT state FROM probe.actions ORDER BY t_ns")
    assert states_of == [["refused"], ["asked"], ["done"]]
    assert "Traceback" not in job.errors()


def test_stop_of_a_paused_training_ends_it_and_of_a_thread_ends_the_thread(place: Place, fork: Fork) -> None:
    held, threaded = fork("held", "--forever"), fork("held", "--forever", "--thread")
    held.wait_for("READY")
    threaded.wait_for("READY")
    act(place, held, "pause")
    act(place, held, "stop")
    assert held.wait_for("CAUGHT") == "CAUGHT SystemExit 0"
    held.wait_for("ATEXIT")
    assert held.wait() == 0
    until(lambda: states(place)[held.pid] == "finished", "ps says finished")
    answer = act(place, threaded, "stop")
    assert "its thread ends" in answer["what"] and "continues without it" in answer["notes"][0]
    threaded.wait_for("JOINED")
    assert ask(place, threaded.pid, "GET", "/v1/health")["pid"] == threaded.pid
    assert threaded.let_go() == 0 and threaded.errors() == ""
