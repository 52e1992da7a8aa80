"""Commands that act: what each asks for, what it refuses by itself, and how it says what came of it."""

from __future__ import annotations

import io
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_harness import TIMEOUT_S, FakeServer, Result, Screen

from probe.base.errors import NoBoundary, ProcessDead, SnippetRefused
from probe_cli.core.act_client import _between
from probe_cli.core.figures import duration
from probe_cli.main import run

ANSWER: dict[str, Any] = {
    "id": "7-3", "action": "lr", "state": "done", "step": 42, "what": "lr goes from 0.1 to 0.01",
    "notes": ["the next 3 steps used 0.01"], "details": {}, "held_ms": 0.84, "undoable": True,
}
EMPTY = {"columns": [], "rows": [], "truncated": False, "elapsed_ms": 1.0, "notes": []}


class Wire:
    """A transport that answers from a list by path and keeps what was asked."""

    def __init__(self, **answers: Any) -> None:
        self.answers = {"/v1/act": ANSWER, "/v1/undo": ANSWER, **answers}
        self.asked: list[tuple[str, Any]] = []

    def request(self, method: str, target: str, body: Any, timeout_s: float) -> Any:
        self.asked.append((target, body))
        answer = self.answers[target]
        if isinstance(answer, BaseException):
            raise answer
        return answer(body) if callable(answer) else answer


def table(names: str, *rows: list[Any]) -> dict[str, Any]:
    columns = [{"name": name, "type": "VARCHAR"} for name in names.split()]
    return {**EMPTY, "columns": columns, "rows": list(rows)}


ACTION_COLUMNS = (
    "action_id t_ns step action arguments state what undo caller_uid caller_pid caller_role held_s duration_s"
    " rank pid"
)


def action_row(action_id: str, action: str, state: str, **changes: Any) -> list[Any]:
    found = {
        "action_id": action_id, "t_ns": time.time_ns() - 90 * 10**9, "step": 42, "action": action,
        "arguments": "{}", "state": state, "what": "is so", "undo": None, "caller_uid": 0,
        "caller_pid": 812, "caller_role": "owner", "held_s": 0.001, "duration_s": 0.01, "rank": 0, "pid": 7,
        **changes,
    }
    return [found[name] for name in ACTION_COLUMNS.split()]


# (words, name on the wire, arguments, what else is in the body)
ASKED: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("lr --scale 0.1", "lr", {"scale": 0.1}, {}),
    ("lr --set 0", "lr", {"set": 0.0}, {}),
    ("lr --set 3e-5 --group 1 --optimizer generator --force", "lr",
     {"set": 3e-5, "group": 1, "optimizer": "generator", "force": True}, {}),
    ("lr --scale 2 --wait 5", "lr", {"scale": 2.0}, {"wait_s": 5.0, "wait_anyway": True}),
    ("checkpoint rescue.pt", "checkpoint", {"path": "rescue.pt"}, {}),
    ("checkpoint /abs/rescue.pt --now --overwrite", "checkpoint",
     {"path": "/abs/rescue.pt", "overwrite": True}, {"now": True}),
    ("checkpoint kept --every 100", "checkpoint", {"folder": "kept", "every": 100}, {}),
    ("checkpoint kept --every 100 --keep 3 --best loss", "checkpoint",
     {"folder": "kept", "every": 100, "keep": 3, "best": "loss"}, {}),
    ("clip --max-norm 1", "clip", {"max_norm": 1.0}, {}),
    ("clip --max-norm 0.5 --norm-type 1", "clip", {"max_norm": 0.5, "norm_type": 1.0}, {}),
    ("skip-nonfinite on", "skip_nonfinite", {}, {}),
    ("spike-guard --threshold 5", "spike_guard", {"threshold": 5.0}, {}),
    ("loss-scale --set 1024", "loss_scale", {"set": 1024.0}, {}),
    ("pause", "pause", {}, {}),
    ("pause --for 2.5", "pause", {"for_s": 2.5}, {}),
    ("resume", "resume", {}, {}),
    ("stop", "stop", {}, {}),
    ("stop --checkpoint last.pt --exit-code 0 --force", "stop",
     {"checkpoint": "last.pt", "exit_code": 0, "force": True}, {}),
    ("profile -o trace.json", "profile", {"steps": 3, "path": "trace.json"}, {}),
    ("profile --steps 1 --output /t.json", "profile", {"steps": 1, "path": "/t.json"}, {}),
    ("capture blocks.3.attn -o attn.pt", "capture",
     {"module": "blocks.3.attn", "steps": 1, "path": "attn.pt"}, {}),
    ("capture head --steps 4 -o attn.pt", "capture", {"module": "head", "steps": 4, "path": "attn.pt"}, {}),
]


@pytest.mark.parametrize(("words", "action", "arguments", "more"), ASKED, ids=[one[0] for one in ASKED])
def test_a_command_asks_for_its_action(
    command: Callable[..., Result], words: str, action: str, arguments: dict[str, Any], more: dict[str, Any]
) -> None:
    wire = Wire()
    result = command("gpt", *words.split(), transport=wire)
    assert result.code == 0, result.err
    body = {"endpoint": "gpt", "action": action, "arguments": arguments, "wait_s": 30.0, **more}
    assert wire.asked == [("/v1/act", body)]
    as_json = command("gpt", *words.split(), "--format", "json", transport=wire)
    assert (json.loads(as_json.out), as_json.err) == (ANSWER, "")


@pytest.mark.parametrize(
    "words",
    [
        "lr --scale 0", "lr --scale -1", "lr --scale nan", "lr --scale inf", "lr --scale x", "lr --scale",
        "lr --set -1", "lr --set nan", "lr --set inf", "lr --scale 1 --set 1", "lr --set 1 --group -1",
        "lr --set 1 --group x", "lr --set 1 --wait 0", "lr --set 1 --wait -1", "lr 3e-5",
        "checkpoint --every 5", "checkpoint x --every 0", "checkpoint x --every 1.5", "checkpoint x --keep 2",
        "checkpoint x --best loss", "checkpoint x --every 5 --keep 0", "checkpoint x --every 5 --now",
        "checkpoint x --every 5 --overwrite", "checkpoint a b",
        "clip", "clip --max-norm 0", "clip --max-norm -1", "clip --max-norm nan", "clip --max-norm inf",
        "clip --max-norm 1 --off", "clip --max-norm 1 --norm-type 0",
        "skip-nonfinite", "skip-nonfinite yes", "skip-nonfinite on off",
        "spike-guard", "spike-guard --threshold nan", "spike-guard --threshold -5",
        "spike-guard --threshold 0", "spike-guard --threshold 5 --off",
        "loss-scale --set 0", "loss-scale --set nan", "loss-scale --set -4",
        "pause --for 0", "pause --for nan", "pause --for -1", "pause --for inf", "pause 5", "resume now",
        "stop --exit-code 256", "stop --exit-code -1", "stop --exit-code x",
        "profile 3", "profile -o x --steps 0", "capture -o x", "capture head -o x --steps -1",
        "watch", "watch loss --steps 0", "watch loss --every 0", "watch loss --steps x",
        "undo 7-1 7-2", "actions all", "eval --now --at-step 1", "eval --wait 0 1",
    ],
)
def test_what_cannot_be_meant_is_an_error_of_use_and_nothing_is_asked(
    command: Callable[..., Result], words: str
) -> None:
    wire = Wire()
    result = command("gpt", *words.split(), transport=wire)
    assert (result.code, result.out, wire.asked) == (2, "", []), result
    assert "next:" in result.err and "Traceback" not in result.err


def test_a_file_name_is_of_the_folder_of_who_asks_where_the_job_is_on_this_host(
    command: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir(mode=0o700)
    monkeypatch.chdir(tmp_path)
    home = FakeServer(tmp_path / "home" / "server.sock")
    try:
        home.answers = {"/v1/act": (200, ANSWER), "/v1/health": (200, {})}
        for words in (
            ("checkpoint", "rescue.pt"), ("checkpoint", "sub/../rescue.pt"), ("profile", "-o", "t.json"),
            ("stop", "--checkpoint=~/last.pt"), ("checkpoint", "kept", "--every", "5"),
        ):
            assert command(f"{home.path}/gpt", *words).code == 0
        asked = [request.body["arguments"] for request in home.requests if request.path == "/v1/act"]
    finally:
        home.close()
    here = str(tmp_path)
    assert [found.get("path") for found in asked[:3]] == [f"{here}/rescue.pt"] * 2 + [f"{here}/t.json"]
    assert asked[3]["checkpoint"] == os.path.expanduser("~/last.pt")
    assert asked[4]["folder"] == f"{here}/kept"


def test_an_action_says_what_came_of_it_where_it_ran_and_what_undoes_it(
    command: Callable[..., Result],
) -> None:
    said = (
        "probe: ran between steps 41 and 42, training held for 0.84 ms\n"
        "  next: probe gpt/0 undo 7-3  |  probe gpt/0 actions\n"
    )
    shown = Result(0, "lr goes from 0.1 to 0.01\n  the next 3 steps used 0.01\n", said)
    assert command("gpt/0", "lr", "--scale", "0.1", transport=Wire()) == shown
    unnamed = command("lr", "--scale", "0.1", transport=Wire())
    assert "next: probe undo 7-3  |  probe actions\n" in unnamed.err
    final = Wire(**{"/v1/act": {**ANSWER, "undoable": False, "held_ms": None, "notes": []}})
    stopped = command("my job", "stop", transport=final)
    assert stopped == Result(0, "lr goes from 0.1 to 0.01\n", "")
    hostile = Wire(**{"/v1/act": {**ANSWER, "what": "a\x1b]0;b\x07", "notes": ["\x9b"]}})
    escaped = command("gpt", "resume", transport=hostile, terminal=True)
    assert escaped.out == "a\\u001b]0;b\\u0007\n  \\u009b\n"


def test_an_undo_names_the_action_and_says_what_was_put_back(command: Callable[..., Result]) -> None:
    wire = Wire(**{"/v1/undo": {"id": "7-3", "step": 50, "what": "lr 0.1 again", "notes": []}})
    assert command("7", "undo", "7-3", "--wait", "2", transport=wire) == Result(0, "lr 0.1 again\n", "")
    assert wire.asked == [("/v1/undo", {"endpoint": "7", "id": "7-3", "wait_s": 2.0, "wait_anyway": True})]


def test_the_error_of_an_action_is_said_with_its_exit_code(command: Callable[..., Result]) -> None:
    wire = Wire(**{"/v1/act": NoBoundary("no step ended within 30 s", hint="--now")})
    refused = Result(5, "", "probe: no step ended within 30 s\n  next: --now\n")
    assert command("gpt", "clip", "--max-norm", "1", transport=wire) == refused
    for answer in ({}, {"what": 3}, ["what"]):
        assert command("gpt", "resume", transport=Wire(**{"/v1/act": answer})).code == 3


def test_who_stops_waiting_is_told_that_it_may_happen_all_the_same(environment: dict[str, str]) -> None:
    err = io.StringIO()
    wire = Wire(**{"/v1/act": KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):  # `main` makes exit code 130 of it
        run(["gpt", "pause"], environment, io.StringIO(), err, io.StringIO(), wire)
    assert "the action may still happen: `probe gpt actions`" in err.getvalue()


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ("profile", r"trace-gpt-0-\d{8}-\d{6}\.json"),
        ("memory-snapshot", r"memory-gpt-0-\d{8}-\d{6}\.pickle"),
        ("capture blocks.0", r"capture-blocks\.0-gpt-0-\d{8}-\d{6}\.pt"),
        ("save-batch", r"batch-gpt-0-\d{8}-\d{6}\.pt"), ("checkpoint", r"checkpoint-gpt-0-\d{8}-\d{6}\.pt"),
    ],
)
def test_a_file_that_nobody_named_gets_a_name(command: Callable[..., Result], words: str, path: str) -> None:
    wire = Wire(**{"/v1/processes?all=0": {"processes": []}})
    assert command("gpt/0", *words.split(), transport=wire).code == 0
    _, body = wire.asked[-1]
    assert re.fullmatch(path, body["arguments"]["path"]), body


def test_a_checkpoint_of_several_ranks_that_nobody_named_goes_into_a_folder(
    command: Callable[..., Result],
) -> None:
    ranks = [{"job": "gpt", "rank": rank, "pid": 7 + rank, "ended_ns": None} for rank in (0, 1)]
    wire = Wire(**{"/v1/processes?all=0": {"processes": ranks}})
    assert command("gpt", "checkpoint", transport=wire).code == 0
    assert wire.asked[-1][1]["arguments"]["path"] == "."


def test_undo_offers_the_last_action_at_a_terminal_and_names_it_in_a_pipe(
    environment: dict[str, str], command: Callable[..., Result]
) -> None:
    rows = [
        action_row("7-1", "clip", "standing", undo="probe 7 undo 7-1"),
        action_row("7-2", "lr", "done", arguments='{"scale": 0.5}', undo="probe 7 undo 7-2"),
        action_row("7-3", "checkpoint", "done"),
    ]
    wire = Wire(**{"/v1/query": table(ACTION_COLUMNS, *rows)})
    refused = command("gpt", "undo", transport=wire)
    assert refused.code == 2 and "7-2: lr scale=0.5" in refused.err and "probe gpt undo 7-2" in refused.err
    for said, done in (("y\n", True), ("\n", False), ("", False)):
        wire.asked.clear()
        stdin, err = Screen(said), Screen()
        assert run(["gpt", "undo"], environment, Screen(), err, stdin, wire) == 0
        assert "undo 7-2: lr scale=0.5" in err.getvalue() and "[y/N]" in err.getvalue()
        assert [path for path, _ in wire.asked if path == "/v1/undo"] == (["/v1/undo"] if done else [])
    wire = Wire(**{"/v1/query": table(ACTION_COLUMNS, rows[2])})
    assert "no action that can be undone" in command("gpt", "undo", transport=wire).err


def test_a_person_who_waits_is_told_for_what(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probe_cli.core.wait_line.QUIET_S", 0.0)
    terminal, pipe = Screen(), io.StringIO()

    def answer(_body: Any) -> Any:
        """Not before it was said."""
        deadline = time.monotonic() + TIMEOUT_S
        while err is terminal and "waiting for the current step" not in terminal.getvalue():
            assert time.monotonic() < deadline, "nothing was said"
        return ANSWER

    for err in (terminal, pipe):
        run(["gpt", "pause"], environment, io.StringIO(), err, io.StringIO(), Wire(**{"/v1/act": answer}))
    assert "at most 30 s; Ctrl-C stops waiting" in terminal.getvalue()
    shown = terminal.getvalue().partition("\r\x1b[K")[2]
    assert " s: waiting" in shown and "\r\x1b[K" in shown, "it is said, and removed"
    assert "waiting" not in pipe.getvalue(), "scripts are not told what they did not ask"


@pytest.mark.parametrize(
    ("step", "text"), [(None, "between two steps"), (0, "before step 0"), (1, "between steps 0 and 1")]
)
def test_a_boundary_has_a_name(step: int | None, text: str) -> None:
    assert _between(step) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0 ms"), (0.00084, "0.84 ms"), (0.00996, "9.96 ms"), (0.9994, "999 ms"), (1.54, "1.54 s")],
)
def test_times_are_readable(value: float, text: str) -> None:
    assert duration(value) == text


# lr -----------------------------------------------------------------------------

LR_SHOWN = {
    "id": "7-4", "what": "optimizer (AdamW): lr 0.0003; CosineAnnealingLR", "notes": [], "held_ms": None,
    "step": 9, "details": {
        "groups": [
            {"group": 0, "lr": 0.0003, "initial_lr": 0.001, "scheduled": 0.0003, "weight_decay": 0.1,
             "tensors": 28, "elements": 30208},
            {"group": 1, "lr": 3e-05, "initial_lr": None, "scheduled": 3e-05, "weight_decay": None,
             "tensors": 1, "elements": 4},
        ],
        "schedulers": [
            {"class": "SequentialLR", "numbers": {"last_epoch": 9}, "inner": [
                {"class": "LinearLR", "numbers": {"start_factor": 0.1}, "inner": []},
            ]},
        ],
    },
}


def changed(*rows: list[Any]) -> dict[str, Any]:
    return table("step action_id action arguments state", *rows)


def _history(sql_answers: list[Any]) -> Callable[[Any], Any]:
    left = list(sql_answers)
    return lambda body: left.pop(0)


def test_lr_shows_groups_schedulers_and_what_the_rates_were(command: Callable[..., Result]) -> None:
    scaled = ["7-1", "lr", '{"scale": 0.1}']
    changes = changed([5, *scaled, "done"], [9, *scaled, "undone"])
    ranges = table("a b c d", [0, 4, 0.003, 0.003], [5, 8, 0.0003, 0.0003])
    wire = Wire(**{"/v1/act": LR_SHOWN, "/v1/query": _history([changes, ranges] * 2)})
    result = command("gpt", "lr", transport=wire)
    assert result.out.splitlines() == [
        "optimizer (AdamW): lr 0.0003; CosineAnnealingLR",
        "GROUP      LR  INITIAL LR  SCHEDULED  WEIGHT DECAY  TENSORS  ELEMENTS",
        "    0  0.0003       0.001     0.0003           0.1       28    30,208",
        "    1   3e-05           -      3e-05             -        1         4",
        "SequentialLR: last_epoch 9",
        "  LinearLR: start_factor 0.1",
        "history",
        "  steps 0 to 4: 0.003",
        "  from step 5 on: 7-1 lr scale=0.1",
        "  steps 5 to 8: 0.0003",
        "  from step 9 on: 7-1 undone",
    ]
    assert (result.code, result.err) == (0, "")
    assert wire.asked[0] == ("/v1/act", {"endpoint": "gpt", "action": "lr", "arguments": {}, "wait_s": 30.0})
    found = json.loads(command("gpt", "lr", "--format", "json", transport=wire).out)
    assert found["details"] == LR_SHOWN["details"] and found["history"][1]["first_step"] == 5
    assert [change["state"] for change in found["changes"]] == ["done", "undone"]


def test_lr_of_a_schedule_that_moves_each_step_is_told_between_the_changes(
    command: Callable[..., Result],
) -> None:
    many = table("a b c d", *([step, step, 0.1 / (step + 1), 0.1 / (step + 1)] for step in range(13)))
    few = table("a b c d", [0, 4, 0.1, 0.02], [5, 5, 0.001, 0.001])
    changes = changed([5, "7-1", "lr", "{}", "done"])
    wire = Wire(**{"/v1/act": LR_SHOWN, "/v1/query": _history([changes, many, few])})
    lines = command("gpt", "lr", transport=wire).out.splitlines()
    assert lines[-3:] == ["  steps 0 to 4: 0.1 … 0.02", "  from step 5 on: 7-1 lr", "  step 5: 0.001"]
    assert "step >= 5" in wire.asked[-1][1]["sql"]


def test_lr_of_a_job_that_has_ended_is_its_history(command: Callable[..., Result]) -> None:
    ranges = table("a b c d", [0, 4, 0.003, 0.003])
    wire = Wire(
        **{"/v1/act": ProcessDead("gpt/0 (pid 7) died"), "/v1/query": _history([EMPTY, ranges])}
    )
    result = command("gpt", "lr", transport=wire)
    assert result == Result(0, "history\n  steps 0 to 4: 0.003\n", "probe: gpt/0 (pid 7) died\n")


def test_loss_scale_shows_what_the_steps_have_used(command: Callable[..., Result]) -> None:
    changes = changed([3, "7-1", "loss_scale", '{"set": 2048.0}', "done"])
    ranges = table("a b c d", [0, 2, 65536.0, 65536.0], [3, 9, 2048.0, 2048.0])
    wire = Wire(**{"/v1/query": _history([changes, ranges] * 2)})
    assert command("gpt", "loss-scale", transport=wire).out.splitlines() == [
        "loss scale 2048", "history", "  steps 0 to 2: 65536", "  from step 3 on: 7-1 loss_scale set=2048.0",
        "  steps 3 to 9: 2048",
    ]
    found = json.loads(command("gpt", "loss-scale", "--format", "json", transport=wire).out)
    assert found["loss_scale"] == 2048.0
    none = command("gpt", "loss-scale", transport=Wire(**{"/v1/query": EMPTY}))
    assert none.out.startswith("no step used a loss scale")


# actions, off ---------------------------------------------------------------------


def test_actions_are_a_line_each_with_how_to_undo_them(command: Callable[..., Result]) -> None:
    rows = [
        action_row("7-1", "lr", "undone", arguments='{"scale": 0.1}'),
        action_row(
            "7-2", "checkpoint", "failed", arguments='{"path": "/a/b/rescue.pt", "overwrite": false}',
            step=None, caller_pid=None, caller_role="operator", what="full",
        ),
        action_row("7-3", "clip", "standing", undo="probe 7 undo 7-3", arguments='{"max_norm": 1.0}'),
    ]
    wire = Wire(**{"/v1/query": table(ACTION_COLUMNS, *rows)})
    assert command("gpt", "actions", transport=wire).out.splitlines() == [
        " ID  WHEN      STEP  ACTION                       BY         UNDO      STATE",
        "7-1  90 s ago    42  lr scale=0.1                 owner 812  -         undone",
        "7-2  90 s ago     -  checkpoint path=…/rescue.pt  operator   -         failed: full",
        "7-3  90 s ago    42  clip max_norm=1.0            owner 812  undo 7-3  standing",
    ]
    found = json.loads(command("gpt", "actions", "--format", "json", transport=wire).out)["actions"]
    assert found[2]["arguments"] == {"max_norm": 1.0} and found[1]["caller_pid"] is None
    none = command("gpt", "actions", transport=Wire(**{"/v1/query": table(ACTION_COLUMNS)}))
    assert (none.code, none.out) == (0, "") and "no actions" in none.err


@pytest.mark.parametrize(
    ("words", "action"),
    [("clip --off", "clip"), ("skip-nonfinite off", "skip_nonfinite"), ("spike-guard --off", "spike_guard")],
)
def test_off_undoes_what_stands_of_that_name_and_nothing_else(
    command: Callable[..., Result], words: str, action: str
) -> None:
    rows = [
        action_row("7-1", action, "standing"), action_row("7-2", action, "undone"),
        action_row("7-3", "pause", "standing"), action_row("7-4", action, "standing"),
    ]
    wire = Wire(**{"/v1/query": table(ACTION_COLUMNS, *rows)})
    assert command("gpt", *words.split(), transport=wire).code == 0
    assert [body.get("id") for path, body in wire.asked if path == "/v1/undo"] == ["7-4", "7-1"]
    nothing = Wire(**{"/v1/query": table(ACTION_COLUMNS, *rows[1:3])})
    result = command("gpt", *words.split(), transport=nothing)
    assert result == Result(0, f"{action.replace('_', '-')} is not on; nothing to undo\n", "")
    assert [path for path, _ in nothing.asked] == ["/v1/query"]


# watch ----------------------------------------------------------------------------


def _watched(rounds: list[tuple[str, str, list[list[Any]]]]) -> Callable[[Any], Any]:
    """Answers to the two questions of each look: (state of the action, of the process, rows)."""
    left = list(rounds)

    def answer(body: Any) -> Any:
        if "python.variables" not in body["sql"]:
            return table("what state", ["action", left[0][0]], ["process", left[0][1]])
        rows = left[0][2] if len(left) == 1 else left.pop(0)[2]
        return table(
            "t_ns step rank name value text", *([row[0] or 40, row[0], 0, *row[1:]] for row in rows)
        )

    return answer


ROUNDS = [
    ("standing", "running", []),
    ("standing", "running", [[None, "loss", 3.5, None], [None, "x", None, None]]),
    ("standing", "running", [[41, "loss", 2.5, None], [41, "x", None, "tensor(3)"]]),
    ("ended", "running", []),
    ("ended", "running", [[42, "loss", 2.25, None], [42, "x", None, "NameError: x"]]),
]


def test_watch_writes_what_comes_until_it_has_ended(command: Callable[..., Result]) -> None:
    wire = Wire(**{"/v1/act": {**ANSWER, "notes": ["it is slow"]}, "/v1/query": _watched(ROUNDS)})
    result = command("gpt", "watch", "loss, x", "--steps", "2", "--every", "1", transport=wire)
    assert result.out.splitlines() == [
        "    STEP        loss           x",
        "       -         3.5           -",
        "      41         2.5   tensor(3)",
        "      42        2.25  NameError…",
    ]
    assert (result.code, result.err) == (0, "probe: it is slow\n")
    asked = {"expressions": "loss, x", "steps": 2, "every": 1}
    assert wire.asked[0][1]["arguments"] == asked
    assert "t_ns > 41" in [body["sql"] for path, body in wire.asked if path == "/v1/query"][-1]
    wire = Wire(**{"/v1/query": _watched(ROUNDS)})
    lines = command("gpt", "watch", "loss", "--format", "ndjson", transport=wire).out.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"step": None, "t_ns": 40, "values": {"loss": 3.5, "x": None}},
        {"step": 41, "t_ns": 41, "values": {"loss": 2.5, "x": "tensor(3)"}},
        {"step": 42, "t_ns": 42, "values": {"loss": 2.25, "x": "NameError: x"}},
    ]


def test_watch_ends_with_its_process(command: Callable[..., Result]) -> None:
    rounds = [("standing", "dead", [[41, "loss", 2.5, None]]), ("standing", "dead", [])]
    wire = Wire(**{"/v1/query": _watched(rounds)})
    result = command("gpt", "watch", "loss", transport=wire)
    assert result.code == 0 and "2.5" in result.out and "ended: dead" in result.err


def test_ctrl_c_ends_a_watch_in_the_job_too(
    command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    wire = Wire(**{"/v1/query": _watched(ROUNDS)})
    monkeypatch.setattr("probe_cli.commands.act_watch.time.sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):  # `main` makes exit code 130 of it
        command("gpt", "watch", "loss", transport=wire)
    assert wire.asked[-1][0] == "/v1/undo" and wire.asked[-1][1]["id"] == "7-3"


# eval -----------------------------------------------------------------------------


def _evaluated(**changes: Any) -> dict[str, Any]:
    return {
        "output": "", "dropped_bytes": 0, "value": None, "error": None, "step": 42, "elapsed_ms": 1.0,
        "class": "reading", "why": [], "where": "at once", "held_ms": None, "kept": [], **changes,
    }


CHANGING = {"class": "changing", "why": ["line 2: `pg['lr'] *= 0.1` assigns an item"]}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (_evaluated(), ""),
        (_evaluated(**CHANGING, where="step boundary", held_ms=0.84),
         "probe: changes the job (line 2: `pg['lr'] *= 0.1` assigns an item): ran between steps 41 and 42, "
         "training held for 0.84 ms\n"),
        (_evaluated(where="step boundary", held_ms=12.4),
         "probe: ran between steps 41 and 42, training held for 12.4 ms\n"),
        (_evaluated(**CHANGING),
         "probe: changes the job (line 2: `pg['lr'] *= 0.1` assigns an item): ran immediately, in the "
         "middle of a step\n"),
        (_evaluated(kept=["the random state of torch was put back"]),
         "probe: the random state of torch was put back\n"),
        (_evaluated(**{**CHANGING, "class": "blocking"}), ""),
    ],
)
def test_eval_says_what_a_snippet_was_taken_for_when_it_did_not_just_read(
    command: Callable[..., Result], answer: dict[str, Any], said: str
) -> None:
    wire = Wire(**{"/v1/eval": answer})
    assert command("gpt", "eval", "x", transport=wire) == Result(0, "", said)


@pytest.mark.parametrize(
    ("words", "more"),
    [
        ("", {}), ("--now", {"when": "now"}), ("--at-step", {"when": "step"}), ("--force", {"force": True}),
        ("--wait 2 --timeout 3", {"wait_s": 2.0, "wait_anyway": True, "timeout_s": 3.0}),
    ],
)
def test_eval_asks_for_the_place_that_is_wanted(
    command: Callable[..., Result], words: str, more: dict[str, Any]
) -> None:
    wire = Wire(**{"/v1/eval": _evaluated()})
    command("gpt", "eval", "x", *words.split(), transport=wire)
    body = {"endpoint": "gpt", "code": "x", "timeout_s": 10.0, "wait_s": 30.0, **more}
    assert wire.asked == [("/v1/eval", body)]


def test_a_snippet_that_is_refused_ends_with_4_and_the_line(command: Callable[..., Result]) -> None:
    wire = Wire(**{"/v1/eval": SnippetRefused("line 1: `os._exit` ends the process")})
    result = command("gpt", "eval", "import os; os._exit(1)", transport=wire)
    assert result.code == 4 and "line 1: `os._exit`" in result.err and "next:" in result.err
