"""`probe monitor`: what is shown, and actions that are read when they are configured."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import pytest
from command_harness import Result

INCIDENT: dict[str, Any] = {
    "incident": "ab12-1", "job": "gpt", "run": "gpt-7", "attempt": 0, "pid": 7, "rank": 0, "host": "here",
    "recipe": "loss-nan", "subject": "", "severity": "alarm", "state": "loss is NaN", "step": 7,
    "what": "loss became NaN at step 7", "why": ["…"], "next": ["probe 7 backtrace"],
    "opened_ns": time.time_ns() - 3 * 3600 * 10**9, "found_ns": time.time_ns(), "lives": True,
}
STATE = {
    "monitor": True, "incidents": [INCIDENT],
    "destinations": [{"number": 1, "destination": "slack://…", "least": "alarm", "added": True}],
    "rules": [{"run": "gpt-7", "job": "gpt", "recipe": "loss-nan", "words": "stop", "last": "stopped"}],
}
Command = Callable[..., Result]


class Wire:
    """A transport that answers the same to everything and keeps what was asked."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str, Any]] = []

    def request(self, method: str, target: str, body: Any, timeout_s: float) -> Any:
        self.asked.append((method, target, body))
        return self.answer


def test_what_is_open_who_is_told_and_what_is_done_is_shown(command: Command) -> None:
    wire = Wire(STATE)
    done = command("gpt", "monitor", transport=wire)
    assert wire.asked == [("GET", "/v1/monitor?endpoint=gpt", None)]
    assert done.code == 0
    for text in ("alarm", "loss-nan", "3 h", "loss became NaN at step 7", "probe 7 backtrace", "slack://…",
                 "alarm and above", "gpt: stop", "last: stopped"):
        assert text in done.out, done.out
    assert json.loads(command("monitor", "--format", "json", transport=wire).out) == STATE
    none = command("monitor", "--once", terminal=True, transport=Wire({"monitor": False, "incidents": []}))
    assert "no open incidents" in none.out and "PROBE_MONITOR=0" in none.err


def test_actions_are_read_by_their_own_commands_when_they_are_configured(command: Command) -> None:
    wire = Wire(STATE)
    done = command(
        "gpt", "monitor", "--on", "loss-nan", "skip-nonfinite on", "--on", "near-oom",
        "checkpoint 'my rescue.pt' --now", "--off", "spike", "--notify", "alarm=slack://T/B/C",
        transport=wire,
    )
    assert done.code == 0, done.err
    [(method, target, body)] = wire.asked
    assert (method, target, body["endpoint"], body["off"]) == ("POST", "/v1/monitor", "gpt", ["spike"])
    assert body["notify"] == ["alarm=slack://T/B/C"] and "remove" not in body
    skip, rescue = body["on"]
    assert skip == {
        "recipe": "loss-nan", "words": "skip-nonfinite on", "action": "skip_nonfinite", "arguments": {},
        "now": False,
    }
    assert rescue["now"] is True and rescue["arguments"]["path"] == os.path.abspath("my rescue.pt")


@pytest.mark.parametrize("words", [
    "lr --scale -1", "lr --skale 2", "lr", "nonsense", "checkpoint", "skip-nonfinite", "eval 1",
    "query 'SELECT 1'", "ps", "'unbalanced", "monitor --on a b", "", "actions", "undo 7-1", "lr --help",
])
def test_what_is_no_action_or_is_written_wrongly_is_refused_at_once(command: Command, words: str) -> None:
    wire = Wire(STATE)
    done = command("gpt", "monitor", "--on", "loss-nan", words, transport=wire)
    assert done.code == 2 and done.err.startswith("probe:"), done
    assert wire.asked == [], "nothing was configured, nor done"
