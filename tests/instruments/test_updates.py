"""What becomes of a gradient: what is lost on its way is named, ordinary ways to train are not accused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent.asking import query, read, without_times
from agent.nursery import Forked
from harness import Place
from probe.diagnose.recipes.library import built_in_folder, load
from probe.server.sql.views import mentioned

Fork = Callable[..., Forked]
WRONG = {
    "cleared": "gradients-cleared",
    "cleared_between": "accumulation-cleared",
    "listed": "parameters-unregistered",
    "kept_back": "weights-put-back",
    "made_anew": "loss-without-parameters",
    "elsewhere": "optimizer-elsewhere",
    "tensor": "parameters-unregistered",
    "constructed": "layer-made-anew",
    "growing": "graph-grows",
    "bounded": "weights-clamped",
    "seeded": "random-state-repeats",
    "reset": "weights-overwritten",
    "linear": "linear-layers-in-a-row",
    "noisy": "gradients-changed",
    "leftovers": "gradients-of-another-loss",
}
"""What is wrong, and the recipe that says so."""
RARELY = (
    "cleared_between", "tensor", "constructed", "bounded", "reset", "noisy", "made_anew", "growing", "linear",
)
"""In the campaign: what is seen as another of them is, what takes many steps, and what other tests of the
instruments see."""
FINE = ("gan", "between", "sam", "accumulate", "reseeded")
LATER = (
    "lookahead", "tied", "frozen", "clamped", "penalized", "unused", "normalized", "copied", "released",
    "swapped", "closure",
)
JUDGES = (
    *WRONG.values(), "schedule-not-followed", "gradient-cut-off", "clipping", "weight-decay",
    "updates-rounded-away", "equal-units", "copy-never-moves", "parameters-forgotten", "layer-not-learning",
    "weights-shrink", "hooks-grow", "freeze-without-effect", "clips-nothing", "clip-after-step",
    "copy-without-buffers",
)
STEPS = {"reset": "200"}
"""Of a kind that is found only where the agent's thread compares between two steps; 16 of all others."""
LIBRARY = load([built_in_folder()])


def found(place: Place, pid: int) -> list[str]:
    """The recipes among `JUDGES` that find something in the recording of a process. All in one statement: a
    thousand questions would take minutes; without a server, whose facts are not what is looked for."""
    parts = []
    for name in sorted(set(JUDGES)):
        sql, parameters = LIBRARY[name].statement()
        for parameter, value in parameters.items():
            sql = sql.replace(f"${parameter}", repr(value))
        parts.append(f"SELECT '{name}' AS name FROM ({sql}) WHERE unknown IS NULL")
    sql = f"SELECT DISTINCT name FROM ({' UNION ALL '.join(parts)}) ORDER BY name"
    return [name for (name,) in read(place, pid, sql, {table.full_name for table in mentioned(sql)})]


def trained(fork: Fork, kinds: tuple[str, ...]) -> dict[str, Forked]:
    """A job of each kind that has made its steps as it does without probe."""
    commands = {kind: ("update_ways", "--kind", kind, "--steps", STEPS.get(kind, "16")) for kind in kinds}
    plain = {kind: fork(*command, watched=False) for kind, command in commands.items()}
    jobs = {kind: fork(*command, "--hold") for kind, command in commands.items()}
    for kind, job in jobs.items():
        result: dict[str, Any] = without_times(job.result())
        assert result == without_times(plain[kind].result()), f"{kind}: trained another way"
    return jobs


@pytest.mark.parametrize(
    "kinds",
    [tuple(kind for kind in WRONG if kind not in RARELY), pytest.param(RARELY, marks=pytest.mark.campaign)],
    ids=("most", "others"),
)
def test_an_update_that_is_lost_or_undone_is_named_by_its_mechanism(
    fork: Fork, place: Place, kinds: tuple[str, ...]
) -> None:
    for kind, job in trained(fork, kinds).items():
        names = found(place, job.pid)
        assert WRONG[kind] in names, f"{kind}: {names}"
        assert set(names) <= {WRONG[kind], "parameters-forgotten"}, kind


@pytest.mark.parametrize(
    "kinds", [FINE, pytest.param(LATER, marks=pytest.mark.campaign)], ids=("most", "others")
)
def test_ordinary_ways_to_train_are_not_accused(fork: Fork, place: Place, kinds: tuple[str, ...]) -> None:
    for kind, job in trained(fork, kinds).items():
        assert found(place, job.pid) == [], kind
        (looked,) = query(place, job.pid, "SELECT count(DISTINCT step) FROM python.updates")
        assert looked[0] >= 3 or kind == "released", f"{kind}: nothing was looked at"
