"""Names in a snippet mean what they mean where the training is; looking them up leaves no trace."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from agent.asking import evaluate, tell
from agent.nursery import Forked
from harness import Place

WIDTH, RATE = "model.in_features", "optimizer.param_groups[0]['lr']"

LOOKS: dict[str, dict[str, Any]] = {
    "local to a function": {
        WIDTH: "11", RATE: "0.11", "len(train_loader)": "3", "where": "'the function'",
        "at_module_level": "'at module level'", "ledger.steps": "0", "batch.shape": "torch.Size([1, 11])",
        # Builtins keep their meaning unless the innermost function has a variable of that name.
        "max(1, 2)": "2", "input.shape": None,
    },
    "in a thread": {WIDTH: "22", RATE: "0.22"},
    "below a library, the callback": {WIDTH: "33", RATE: "0.33", "where": "'the callback'"},
    "in a drawer": {
        "model[0].in_features": "44", RATE: "0.44", "len(train_loader)": "3", "where": "'main'",
        "drawer[0] is model": "True",
    },
    "dropped after a look": {
        WIDTH: "55", RATE: "0.55", "batch.sum()": "tensor(110.)", "len(references)": "3"
    },
    "with saved variables": {"where": "'main'"},
}
"""Situation of the program, and the values of expressions there; None: an error."""


def test_names_are_found_wherever_the_script_has_them(fork: Callable[..., Forked], place: Place) -> None:
    plain, job = fork("names_in_odd_places", watched=False), fork("names_in_odd_places", "--hold")
    for situation, looks in LOOKS.items():
        for one in (plain, job):
            assert one.wait_for("AT") == f"AT {situation}"
        for code, expected in looks.items():
            answer = evaluate(place, job.pid, code, when="now")
            while answer["value"] is None and "drawer" in situation:
                # until the agent has looked at the new model
                answer = evaluate(place, job.pid, code, when="now")
            assert (situation, code, answer["value"]) == (situation, code, expected), answer["error"]
            assert (answer["error"] is None) == (expected is not None)
        near = evaluate(place, job.pid, "optimiser")
        assert "names like it: optimizer" in near["error"]["hint"]
        if situation == "with saved variables":
            check_saved(place, job.pid)
        tell(plain)
        tell(job)
    seen = job.result()["seen"]
    assert seen == plain.result()["seen"]
    assert seen["alive after a look"] == [] and seen["made by exec"] == 66
    assert (job.let_go(), job.errors()) == (0, "")


def check_saved(place: Place, pid: int) -> None:
    """Before Python 3.12 the variables of such a function are not read, and the answer says so."""
    found = evaluate(place, pid, "rate")
    if sys.version_info >= (3, 12):
        assert found["value"] == "0.66"
    else:
        assert "with_saved_variables" in found["error"]["hint"] and "were not read" in found["error"]["hint"]
    # What the instruments have seen is there all the same.
    while (model := evaluate(place, pid, WIDTH, when="now"))["value"] is None:
        assert model["error"]["type"] == "NameError", model
    assert model["value"] == "66"
