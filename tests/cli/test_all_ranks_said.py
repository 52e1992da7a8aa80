"""What is said of all ranks of a job: once where they did the same, each by name where they did not."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from command_harness import Result

from cli.test_acting import (
    ACTION_COLUMNS,
    ANSWER,
    CHANGING,
    Wire,
    _evaluated,
    action_row,
    table,
)
from probe.base.errors import ProcessDead


def _of_all(*answers: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The answer for a job of several ranks."""
    tagged = [
        {"rank": rank, "pid": 70 + rank, "host": "node1", **one} for rank, one in enumerate(answers)
    ]
    return {"id": "all-1a2b3c", "step": 812, "answers": tagged, "missing": [], **changes}


SAME = {"answer": {**ANSWER, "id": "all-1a2b3c", "step": 812}}
DEAD = ProcessDead("gpt/2 (pid 72) died").as_dict()


def test_what_all_ranks_did_is_one_line_and_where_they_differ_each_is_named(
    command: Callable[..., Result]
) -> None:
    whole = _of_all(SAME, SAME, SAME, **{**ANSWER, "id": "all-1a2b3c", "step": 812, "held_ms": 3.1})
    result = command("gpt", "lr", "--scale", "0.1", transport=Wire(**{"/v1/act": whole}))
    assert result.out == "lr goes from 0.1 to 0.01\n  the next 3 steps used 0.01\n"
    assert result.err == (
        "probe: on ranks 0-2 before step 812, training held for at most 3.1 ms\n"
        "  next: probe gpt undo all-1a2b3c  |  probe gpt actions\n"
    )
    other = {"answer": {**SAME["answer"], "what": "lr goes from 0.2 to 0.02", "notes": [], "step": 790}}
    parted = {**whole, **_of_all(SAME, other, SAME), "what": None, "notes": []}
    result = command("gpt", "lr", "--scale", "0.1", transport=Wire(**{"/v1/act": parted}))
    assert result.out.splitlines() == [
        "ranks 0,2: lr goes from 0.1 to 0.01", "  the next 3 steps used 0.01",
        "rank 1: lr goes from 0.2 to 0.02",
    ]
    assert "before step 812 (rank 0's count)" in result.err
    wire = Wire(**{"/v1/act": parted})
    found = json.loads(command("gpt", "lr", "--scale", "0.1", "--format", "json", transport=wire).out)
    assert [one["rank"] for one in found["answers"]] == [0, 1, 2]


def test_what_ranks_say_is_tagged_and_who_says_nothing_is_named(command: Callable[..., Result]) -> None:
    said = [{"answer": _evaluated(output=f"{rank}\n", value="7")} for rank in (0, 1)]
    same = {"answer": _evaluated(value="7")}
    wire = Wire(**{"/v1/eval": _of_all(*said, id=None, step=None)})
    assert command("gpt", "eval", "x", transport=wire) == Result(
        0, "[rank 0] 0\n[rank 0] 7\n[rank 1] 1\n[rank 1] 7\n", ""
    )
    wire = Wire(**{"/v1/eval": _of_all(same, same, DEAD, id=None, missing=["host node2 does not answer"])})
    result = command("gpt", "eval", "x", transport=wire)
    assert result.out == "[ranks 0-1] 7\n"
    assert result.err == "probe: rank 2: gpt/2 (pid 72) died\nprobe: host node2 does not answer\n"
    assert result.code == ProcessDead.exit_code
    error = {"type": "ValueError", "message": "no", "traceback": "ValueError: no", "hint": ""}
    wire = Wire(**{"/v1/eval": _of_all(same, {"answer": _evaluated(error=error)}, id=None)})
    result = command("gpt", "eval", "x", transport=wire)
    assert (result.code, result.err) == (1, "rank 1:\nValueError: no\n")
    changed = {"answer": _evaluated(**CHANGING, where="step boundary", held_ms=2.0, step=812)}
    wire = Wire(**{"/v1/eval": _of_all(changed, changed)})
    result = command("gpt", "eval", "--together", "x", transport=wire)
    assert wire.asked[0][1]["together"] is True
    assert "on ranks 0-1 before step 812, training held for at most 2 ms" in result.err
    assert command("gpt", "eval", "--together", "--now", "x", transport=wire).code == 2


def test_what_ranks_did_together_is_listed_once_and_ended_once(command: Callable[..., Result]) -> None:
    rows = [
        *(action_row("all-1a2b3c", "clip", "standing", rank=rank, pid=70 + rank) for rank in range(4)),
        action_row("71-1", "clip", "standing", rank=1, pid=71),
        *(action_row("all-00ff00", "lr", state, rank=rank, pid=70 + rank, what="no")
          for rank, state in enumerate(("cancelled", "refused", "cancelled", "cancelled"))),
    ]
    found = command("gpt", "actions", transport=Wire(**{"/v1/query": table(ACTION_COLUMNS, *rows)}))
    lines = [line.split() for line in found.out.splitlines()]
    assert "RANKS" in lines[0]
    assert [(line[0], [word for word in line if word in ("0-3", "0,2-3", "1")]) for line in lines[1:]] == [
        ("all-1a2b3c", ["0-3"]), ("71-1", ["1"]), ("all-00ff00", ["0,2-3"]), ("all-00ff00", ["1"]),
    ]
    wire = Wire(**{"/v1/query": table(ACTION_COLUMNS, *rows)})
    assert command("gpt", "clip", "--off", transport=wire).code == 0
    undone = [body["id"] for path, body in wire.asked if path == "/v1/undo"]
    assert undone == ["71-1", "all-1a2b3c"]
