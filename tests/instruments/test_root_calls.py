"""Models that a step calls several times with one input, and what becomes of the outputs."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from probe.job.instruments.modules.root_calls import RootCalls
from probe.recording.tables import BY_NAME

BATCH = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Any) -> tuple[Any, dict[str, Any]]:
        made = self.layer(x)
        mean, deviation = made.tanh(), made.exp()
        return mean * deviation, {"mean": mean, "std": deviation}


def seen(step: Callable[[Callable[[Any], Any]], Any]) -> list[dict[str, Any]]:
    """The rows of a step whose calls of the model are told of, up to its backward."""
    rows: list[dict[str, Any]] = []
    names = [column.name for column in BY_NAME["python.repeated_calls"].columns]
    ring = SimpleNamespace(append=lambda *row: rows.append(dict(zip(names, row, strict=True))))
    recorder: Any = SimpleNamespace(step=5, micro_step=0, rings={"python.repeated_calls": ring})
    calls = RootCalls(recorder, SimpleNamespace(guard=lambda _, function: function))  # type: ignore[arg-type]
    model = Two()

    def call(given: Any) -> Any:
        output = model(given)
        calls.ended(model, 1, given, output, torch.Tensor)
        return output

    step(call).backward()
    recorder.micro_step = 1
    calls.over()
    return rows


@pytest.mark.parametrize(("step", "found"), [
    (lambda call: (call(BATCH)[0].detach() * call(BATCH)[0]).mean(), (2, 1, 0)),
    (lambda call: (call(BATCH)[0] + call(BATCH)[1]["mean"] - call(BATCH)[1]["std"]).mean(), (3, 0, 1)),
    (lambda call: (call(BATCH)[0] - call(BATCH)[0]).square().mean(), (2, 0, 0)),
    (lambda call: (call(BATCH)[0] - call(BATCH)[1]["mean"]).square().mean(), (2, 0, 0)),
], ids=("for the log", "for each output", "compared", "one output of several once more"))
def test_calls_on_one_batch_are_told_apart_by_the_outputs_that_get_a_gradient(
    step: Callable[[Callable[[Any], Any]], Any], found: tuple[int, int, int]
) -> None:
    (row,) = seen(step)
    assert (row["calls"], row["unused"], row["apart"]) == found


def test_other_batches_and_a_batch_that_was_changed_are_not_the_same_input() -> None:
    assert seen(lambda call: (call(BATCH)[0] + call(BATCH.clone())[0]).mean()) == []
    changing, other = BATCH.clone(), torch.ones(1, requires_grad=True)

    def changed(call: Callable[[Any], Any], by: float) -> Any:
        call(changing)
        if by:
            changing.add_(by)
        call(changing)
        return other.sum()

    assert [row["unused"] for row in seen(lambda call: changed(call, 0.0))] == [2]
    assert seen(lambda call: changed(call, 0.1)) == []


def test_a_call_keeps_nothing_of_the_job_alive() -> None:
    given = BATCH.clone()
    reference = weakref.ref(given)
    ring = SimpleNamespace(append=None)
    recorder: Any = SimpleNamespace(step=5, micro_step=0, rings={"python.repeated_calls": ring})
    calls = RootCalls(recorder, SimpleNamespace(guard=lambda _, function: function))  # type: ignore[arg-type]
    model = Two()
    output = model(given)
    calls.ended(model, 1, given, output, torch.Tensor)
    del given, output
    assert reference() is None, "the graph holds it, for the gradient of the weights"
