"""The verdict on a job, judged from facts made for it: every rule, and what must not be one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from probe.diagnose import states
from probe.diagnose.finding import Finding
from probe.diagnose.ranks.job_rules import diagnose_job
from probe.diagnose.ranks.rank_evidence import Call, Facts, Step
from probe.diagnose.states import ALARM, NOTICE, OK

SECOND = 10**9
NOW = 1_000_000 * SECOND
WORLD = 3


def call(seq: int | None, **more: Any) -> Call:
    """One row: an all_reduce of the default group that is done."""
    values: dict[str, Any] = {
        "step": seq, "t_ns": NOW - 100 * SECOND + (seq or 0) * 1000, "pg": "0", "ranks": "0-2", "seq": seq,
        "op": "all_reduce", "dtype": "float32", "shapes": "[4]", "elements": 4, "peer": None,
        "call_site": "/home/train.py:10 step", "asynchronous": False, "duration_s": 0.001, "wait_s": 0.001,
        "state": "done", "source": "call",
    }
    return Call(**{**values, **more})


def rank(number: int, *calls: Call, **more: Any) -> Facts:
    """One rank that lives and is quiet for ten seconds, twice as long as it may."""
    usual = Facts(
        number, 1000 + number, "here", "gpt", WORLD, NOW, "running", step=40, last_step_s=10.0,
        usual_step_s=0.1, quiet_s=10.0, late_s=5.0, calls=calls,
    )
    return replace(usual, **more)


def looked(state: str, severity: str = ALARM, what: str = "is there") -> Finding:
    return Finding(state, severity, what, [f"why {state}"], [])


def dead(number: int, how: str, after_s: float, *calls: Call, raised: str | None = None) -> Facts:
    return rank(
        number, *calls, state="failed" if raised else "dead", how=how, raised=raised,
        ended_ns=NOW + int(after_s * SECOND),
    )


HISTORY = tuple(call(seq) for seq in range(1, 41))
WAITS = (*HISTORY, call(41, state="pending", duration_s=None, wait_s=None))


def judged(*ranks: Facts) -> Finding:
    """The verdict, from facts that went over the wire."""
    return diagnose_job([Facts.from_dict(json.loads(json.dumps(one.as_dict()))) for one in ranks])


# Missing ------------------------------------------------------------------------


def test_the_rank_that_is_not_in_the_collective_is_named_and_where_it_is_instead() -> None:
    blocked = looked(states.BLOCKED, what="blocked in read")
    culprit = rank(1, *HISTORY, verdict=blocked, frame="read (data.py:88)")
    found = judged(rank(0, *WAITS), culprit, rank(2, *WAITS))
    assert (found.state, found.severity, found.culprits) == (states.MISSING_RANK, ALARM, (1,))
    assert "rank 1 never joined all_reduce #41 (default group); ranks 0,2 wait in it" in found.what
    assert "data.py:88" in found.what
    assert found.next[0] == "probe gpt/1 backtrace --workers"


@pytest.mark.parametrize(("state", "severity", "expected"), [
    (states.STOPPED, ALARM, ALARM), (states.HOLDS_GIL, ALARM, ALARM), (states.WAITING_FOR_DATA, ALARM, ALARM),
    (states.CHECKPOINT, NOTICE, NOTICE), (states.EVALUATION, NOTICE, NOTICE),
    (states.SLOW_STEP, NOTICE, NOTICE),
])
def test_a_rank_whose_own_state_says_why_gives_the_job_its_verdict(
    state: str, severity: str, expected: str
) -> None:
    found = judged(rank(0, *WAITS), rank(1, *HISTORY, verdict=looked(state, severity)), rank(2, *WAITS))
    assert (found.state, found.severity, found.culprits) == (state, expected, (1,))
    assert "ranks 0,2 wait in it" in found.what


def test_a_rank_that_evaluates_while_the_others_wait_is_no_alarm() -> None:
    """Its batches arrive: it was not even looked at."""
    found = judged(rank(0, *HISTORY, quiet_s=0.05), rank(1, *WAITS), rank(2, *WAITS))
    assert (found.severity, found.culprits) == (NOTICE, (0,))


def test_a_stopped_rank_is_the_cause_even_inside_the_collective() -> None:
    found = judged(rank(0, *WAITS), rank(1, *WAITS, verdict=looked(states.STOPPED)), rank(2, *WAITS))
    assert (found.state, found.culprits) == (states.STOPPED, (1,))


def test_the_others_that_wait_in_backward_are_known_by_their_stacks() -> None:
    waits = looked(states.IN_COLLECTIVE)
    culprit = rank(2, verdict=looked(states.BLOCKED))
    found = judged(rank(0, verdict=waits), rank(1, verdict=waits), culprit)
    assert (found.state, found.culprits) == (states.MISSING_RANK, (2,))


def test_a_wait_in_a_sub_group_leads_through_others_to_the_rank_at_its_end() -> None:
    evens = call(7, pg="1", ranks="0,2", state="pending", call_site="/home/train.py:20 evens")
    found = judged(
        rank(0, *HISTORY, verdict=looked(states.BLOCKED)), rank(1, *WAITS), rank(2, *HISTORY, evens)
    )
    assert (found.state, found.culprits) == (states.MISSING_RANK, (0,))
    assert "group 1 of ranks 0,2" in found.what


def test_a_rank_that_has_finished_is_missing() -> None:
    gone = rank(1, *HISTORY, state="finished", how="finished", ended_ns=NOW)
    failed = dead(0, "exception RuntimeError", 1.0, *HISTORY, WAITS[-1]._replace(state="failed"),
                  raised="RuntimeError: Connection closed by peer")
    found = judged(failed, gone, rank(2, *WAITS))
    assert (found.state, found.culprits) == (states.MISSING_RANK, (1,))
    assert "has finished" in found.what


def test_a_rank_that_left_early_is_the_cause_although_no_row_says_who_waited() -> None:
    # It ends after those that it made fail: it closes its connections first.
    gone = rank(2, *HISTORY, state="finished", how="finished", ended_ns=NOW + 10**9)
    closed = "RuntimeError in step: [gloo] Connection closed by peer"
    failed = dead(1, "exception RuntimeError", 0.5, *HISTORY, raised=closed)
    found = judged(rank(0, *HISTORY, quiet_s=0.1), failed, gone)
    assert (found.state, found.culprits) == (states.MISSING_RANK, (2,))


def test_a_receive_without_a_send_names_the_peer() -> None:
    receives = call(None, op="recv", peer=0, state="pending")
    found = judged(
        rank(0, *HISTORY, verdict=looked(states.BLOCKED)), rank(1, *HISTORY, receives), rank(2, *WAITS)
    )
    assert (found.state, found.culprits) == (states.MISSING_RANK, (0,))
    past = judged(rank(0, *WAITS), rank(1, *HISTORY, receives), rank(2, *WAITS))
    assert (past.state, past.culprits) == (states.MISSING_RANK, (0,))
    assert "rank 0 never sent" in past.what


def test_a_rank_of_which_nothing_is_known_is_named_too() -> None:
    found = diagnose_job([rank(0, *WAITS), rank(2, *WAITS)], ["host b does not answer"])
    assert (found.state, found.severity, found.culprits) == (states.UNKNOWN, ALARM, (1,))
    assert found.what == (
        "ranks 0,2 wait in all_reduce #41 (default group); the reason is unknown: "
        "there is no information about rank 1"
    ), "whether it joined, nobody knows"
    assert "host b does not answer" in found.why


NETWORK = "check the network"


def test_the_network_is_blamed_only_when_every_rank_is_seen_in_the_same_call() -> None:
    found = judged(rank(0, *WAITS), rank(1, *WAITS), rank(2, *WAITS))
    assert (found.state, found.severity) == (states.IN_COLLECTIVE, ALARM) and NETWORK in found.what
    left = (*HISTORY, call(41))  # it has left: a broadcast ends for its source first
    elsewhere = rank(1, *left, verdict=looked(states.BLOCKED), frame="sleep (train.py:7)")
    found = judged(rank(0, *WAITS), elsewhere, rank(2, *WAITS))
    assert (found.state, found.severity) == (states.UNKNOWN, ALARM) and NETWORK not in found.what
    assert "ranks 0,2 wait in all_reduce #41" in found.what and "rank 1 not seen in it" in found.what
    assert any("sleep (train.py:7)" in line for line in found.why)


def test_a_call_that_is_made_this_instant_is_no_hang() -> None:
    on = {"quiet_s": 0.01}
    found = judged(rank(0, *WAITS, **on), rank(1, *HISTORY, **on), rank(2, *WAITS, **on))
    assert (found.state, found.severity) == (states.RUNNING, OK)


# Mismatches -----------------------------------------------------------------------


@pytest.mark.parametrize(("other", "state"), [
    ({"op": "broadcast", "call_site": "/home/train.py:11 step"}, states.OP_MISMATCH),
    ({"elements": 12, "shapes": "[12]"}, states.SIZE_MISMATCH),
    ({"dtype": "float64"}, states.DTYPE_MISMATCH),
])
@pytest.mark.parametrize("world_size", [2, 3])
def test_a_call_that_does_not_fit_is_named_with_both_call_sites(
    other: dict[str, Any], state: str, world_size: int
) -> None:
    """Of two ranks it is the one that did what none did before."""
    ranks = [rank(number, *WAITS, world_size=world_size) for number in range(world_size)]
    ranks[1] = rank(1, *HISTORY, WAITS[-1]._replace(**other), world_size=world_size)
    found = judged(*ranks)
    assert (found.state, found.severity, found.culprits) == (state, ALARM, (1,))
    assert "train.py:10 step" in found.what


def test_what_comes_in_another_order_is_told_from_what_does_not_belong() -> None:
    """Two calls take turns; rank 1 makes the second where the first is due."""
    turns = [
        call(seq, **({} if seq % 2 else {"elements": 9, "call_site": "/home/train.py:30 count"}))
        for seq in range(1, 42)
    ]
    wrong = turns[-2]._replace(seq=41, state="pending", t_ns=turns[-1].t_ns)
    due = turns[-1]._replace(state="pending")
    found = judged(*(rank(one, *turns[:-1], wrong if one == 1 else due, world_size=2) for one in (0, 1)))
    assert (found.state, found.culprits) == (states.ORDER_MISMATCH, (1,))


def test_ranks_that_wait_for_each_other_in_two_groups_have_them_in_different_orders() -> None:
    before = [
        call(seq, pg=pg, ranks="0-2", t_ns=NOW - 50 * SECOND + seq * 10 + int(pg)) for seq in range(1, 9)
        for pg in ("1", "2")
    ]
    first = call(9, pg="1", t_ns=NOW, state="pending")
    second = call(9, pg="2", t_ns=NOW, state="pending")
    found = judged(rank(0, *before, first), rank(1, *before, second), rank(2, *before, first))
    assert (found.state, found.culprits) == (states.ORDER_MISMATCH, (1,))


def test_uneven_gathers_and_finished_calls_of_two_names_are_no_mismatch() -> None:
    on = {"quiet_s": 0.0}
    ranks = [rank(one, *HISTORY, call(41, op="all_gather", elements=4 + one), **on) for one in range(3)]
    assert judged(*ranks).state == states.RUNNING
    ranks = [rank(one, *HISTORY, call(41, op=f"barrier {one}"), **on) for one in range(3)]
    assert judged(*ranks).state == states.RUNNING


# Deaths ------------------------------------------------------------------------------


def test_who_died_first_is_the_cause_and_the_others_are_its_victims() -> None:
    closed = "RuntimeError in step: [gloo] Connection closed by peer"
    failed = WAITS[-1]._replace(state="failed")
    found = judged(
        dead(0, "exception RuntimeError", -0.01, *HISTORY, failed, raised=closed),  # seen before the cause
        dead(1, "SIGKILL", 0.0, *HISTORY), dead(2, "SIGTERM", 2.0, *WAITS),
    )
    assert (found.state, found.severity, found.culprits) == (states.DEAD_RANK, ALARM, (1,))
    assert "SIGKILL" in found.what and "ranks 0,2 ended because of it" in found.what


def test_a_rank_that_gave_up_waiting_is_no_cause() -> None:
    gave_up = WAITS[-1]._replace(state="failed")
    timed_out = dead(0, "exception RuntimeError", 0.0, *HISTORY, gave_up,
                     raised="RuntimeError in step: Timed out waiting 5000ms for recv operation to complete")
    found = judged(timed_out, rank(1, *HISTORY, verdict=looked(states.BLOCKED)), rank(2, *WAITS))
    assert (found.state, found.culprits) == (states.MISSING_RANK, (1,))


def test_a_mismatch_outweighs_the_deaths_that_follow_from_it() -> None:
    wrong = WAITS[-1]._replace(elements=99, state="failed")
    found = judged(
        dead(0, "SIGABRT", 0.0, *WAITS), dead(2, "SIGABRT", 0.6, *WAITS),
        dead(1, "exception", 0.5, *HISTORY, wrong, raised="RuntimeError: gloo"),
    )
    assert (found.state, found.culprits) == (states.SIZE_MISMATCH, (1,))


def test_all_ranks_ended_by_a_launcher_are_nobody_elses_victims() -> None:
    found = judged(*(dead(one, "SIGTERM", one / 10, *HISTORY) for one in range(3)))
    assert found.state == states.DEAD_RANK and "all ranks ended within" in found.what


# Slower ranks -------------------------------------------------------------------------


def steps(
    slow: dict[str, float] | None = None, since: int = 100, *, every: int = 1, waits_s: float = 0.0,
    tokens: int | None = 64,
) -> tuple[Step, ...]:
    """150 steps of 50 ms; from `since` on the phases in `slow` take that much longer, the others wait."""
    found = []
    for number in range(150):
        more = dict(slow or {}) if number >= since and number % every == 0 else {}
        waits = waits_s if number >= since and number % every == 0 else 0.0
        phases = {"data": 0.005, "forward": 0.02, "backward": 0.02, "optimizer": 0.002, "other": 0.001}
        values = {f"{name}_s": base + more.get(name, 0.0) for name, base in phases.items()}
        wall_s = sum(values.values()) + 0.002 + waits
        found.append(Step(
            number, NOW + int(number * 0.1 * SECOND), wall_s, **values, comm_s=0.002 + waits, held_s=None,
            samples=4, tokens=tokens, sampled=False, shadow=False,
        ))
    return tuple(found)


def running(number: int, rows: tuple[Step, ...]) -> Facts:
    return rank(number, quiet_s=0.01, steps=rows)


@pytest.mark.parametrize(
    ("phase", "where"),
    [("data", "waiting for its DataLoader"), ("forward", "in forward"), ("backward", "in backward")],
)
def test_a_slow_rank_is_named_with_the_phase_and_since_when(phase: str, where: str) -> None:
    found = judged(
        running(0, steps(waits_s=0.06)), running(1, steps({phase: 0.06})), running(2, steps(waits_s=0.06))
    )
    assert (found.state, found.severity, found.culprits) == (states.STRAGGLER, NOTICE, (1,))
    assert f", {where}, since step 100, for " in found.what


def late(more_s: float, waits_s: float, since: int) -> tuple[tuple[Step, ...], tuple[Call, ...]]:
    """The last 150 of 2,150 steps whose gradients C++ averages in backward, and the calls of Python's own:
    one a step, while the group counts two. From `since` on the forward takes longer, or backward waits."""
    rows, calls = [], []
    for step in steps({"forward": more_s}, since, waits_s=0.0):
        waits = waits_s if step.step >= since else 0.0
        number = step.step + 2000
        timed = {"backward_s": (step.backward_s or 0.0) + waits, "wall_s": step.wall_s + waits}
        rows.append(step._replace(step=number, **timed))
        calls.append(call(number * 2, step=number, t_ns=step.t_ns, wait_s=0.001))
    return tuple(rows), tuple(calls)


@pytest.mark.parametrize(("since", "said"), [
    (100, "since step 2,100, for"), (0, "since step 2,000 or earlier, for at least 150 steps"),
])
def test_a_rank_that_becomes_slow_late_is_found_although_no_row_of_c_plus_plus_is_left(
    since: int, said: str
) -> None:
    """Its forward is longer, the others wait in backward: the group's numbers show that C++ averages."""
    slow, own = late(0.06, 0.0, since)
    waits, others = late(0.0, 0.06, since)
    found = judged(
        rank(0, *others, quiet_s=0.01, steps=waits), rank(1, *own, quiet_s=0.01, steps=slow),
        rank(2, *others, quiet_s=0.01, steps=waits),
    )
    assert (found.state, found.culprits) == (states.STRAGGLER, (1,)), found
    assert ", in forward, " in found.what and said in found.what, found.what


def test_a_rank_that_is_slow_now_and_then_is_named_so() -> None:
    found = judged(
        running(0, steps(waits_s=0.5, every=10, since=20)), running(1, steps({"forward": 0.5}, 20, every=10))
    )
    assert (found.state, found.culprits) == (states.STRAGGLER, (1,))
    assert "about every 10 steps" in found.what


@pytest.mark.parametrize(("since", "state"), [(128, states.RUNNING), (100, states.STRAGGLER)])
def test_a_rank_that_is_slow_on_every_timed_step_is_not_slow_now_and_then(since: int, state: str) -> None:
    """Phases are known of every fifth step: slow ones are five apart, also if all are slow. C++ averages in
    backward, so only forward says who is slow: four such steps of 0.1 s are too few to be sure."""
    def thinned(rows: tuple[Step, ...]) -> tuple[Step, ...]:
        return tuple(step._replace(shadow=step.step % 5 != 0) for step in rows)

    calls = [call(number * 2, step=number, t_ns=NOW, wait_s=0.001) for number in range(150)]
    slow, waits = thinned(steps({"forward": 0.2}, since)), thinned(steps(waits_s=0.2, since=since))
    found = judged(
        rank(0, *calls, quiet_s=0.01, steps=waits), rank(1, *calls, quiet_s=0.01, steps=slow),
        rank(2, *calls, quiet_s=0.01, steps=waits),
    )
    assert found.state == state, found
    assert "about every" not in found.what


@pytest.mark.parametrize("rows", [
    ((), ()),
    (({"other": 0.5}, 20, 10), (None, 20, 10)),
], ids=["alike", "evaluations and checkpoints on one rank"])
def test_clean_ranks_are_no_stragglers(rows: Any) -> None:
    first, second = rows
    ours = steps(first[0], first[1], every=first[2]) if first else steps()
    theirs = steps(None, second[1], every=second[2], waits_s=0.5) if second else steps()
    assert judged(running(0, ours), running(1, theirs)).state == states.RUNNING


@pytest.mark.parametrize(("waits", "why"), [(0.4, True), (0.05, False), (None, False)])
def test_a_straggler_that_waits_for_a_cpu_is_said_to(waits: float | None, why: bool) -> None:
    """Its steps take 0.06 s more than the usual 0.1 s: 40 % of the time explains all of it, 5 % an eighth."""
    found = judged(
        replace(running(0, steps(waits_s=0.06)), cpu_wait_ratio=0.1),
        replace(running(1, steps({"forward": 0.06})), cpu_wait_ratio=waits),
    )
    assert (found.state, found.culprits) == (states.STRAGGLER, (1,))
    assert ("because it waits for a CPU" in found.what) is why
    assert any("waited for a CPU 40 % of the time (rank 0 10 %)" in line for line in found.why) is why


def test_a_rank_with_more_tokens_has_more_to_do_and_is_not_slow() -> None:
    found = judged(
        running(0, steps({"forward": 0.06, "backward": 0.06}, since=0, tokens=256)),
        running(1, steps(waits_s=0.12, since=0)),
    )
    assert found.state == states.IMBALANCE


def test_ranks_that_count_from_different_steps_are_compared_all_the_same() -> None:
    later = tuple(step._replace(step=step.step - 30) for step in steps({"forward": 0.06}))[30:]
    found = judged(running(0, steps(waits_s=0.06)), running(1, later))
    assert (found.state, found.culprits) == (states.STRAGGLER, (1,))


def test_one_long_step_is_said_and_no_verdict() -> None:
    rows = list(steps())
    rows[140] = rows[140]._replace(forward_s=2.0, wall_s=2.1)
    waits = list(steps())
    waits[140] = waits[140]._replace(comm_s=2.0, wall_s=2.1)
    found = judged(running(0, tuple(waits)), running(1, tuple(rows)))
    assert found.state == states.RUNNING
    assert any("at step 140" in line and "rank 1" in line for line in found.why)
