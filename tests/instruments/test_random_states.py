"""A training that begins again with the same random numbers, and evaluations in which numbers are drawn."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.nn import functional

from probe.base.isolation import Isolation
from probe.job.instruments.facts.random_generators import RandomStates
from probe.recording.tables import BY_NAME

COLUMNS = [column.name for column in BY_NAME["python.random_states"].columns]


class Watched:
    """The instrument, and its rows."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.recorder = SimpleNamespace(
            step=0, cost_ns=0, intern=lambda text: text, elsewhere=lambda: False,
            sampling=False, timing=True, rings={"python.random_states": SimpleNamespace(append=self.append)},
        )
        self.optimizers = SimpleNamespace(seeded=None, made_count=1)
        self.armed = 0
        self.forward: Any = SimpleNamespace(draws=None, roots={}, arm=self.arm)
        names = SimpleNamespace(path=lambda module: type(module).__name__)
        self.states = RandomStates(
            cast(Any, self.recorder), Isolation(lambda *_: None), cast(Any, self.optimizers),
            cast(Any, self.forward), cast(Any, names),
        )

    def append(self, *values: Any) -> None:
        self.rows.append(dict(zip(COLUMNS, values, strict=True)))

    def arm(self) -> None:
        self.armed += 1

    def step(self) -> None:
        """An optimizer steps."""
        if self.optimizers.seeded is not None:
            self.optimizers.seeded.step_begins()
        self.recorder.step += 1

    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        """Evaluate twice, as the first call of the model and the beginning of the second are looked at."""
        self.forward.roots = {id(model): model}
        self.states._next_s = 0.0
        self.recorder.step = max(1, self.recorder.step)
        self.states.collect()
        model.eval()
        draws = self.forward.draws
        handle = nn.modules.module.register_module_forward_pre_hook(lambda module, _: draws(module))
        with torch.no_grad():
            for _ in range(2):
                if self.forward.draws is not None:
                    model(torch.ones(4, 3))
                else:
                    break
        handle.remove()
        return self.rows[-1]


@pytest.fixture
def watched() -> Iterator[Watched]:
    originals = torch.manual_seed, random.seed
    found = Watched()
    found.states.install()
    yield found
    found.states.uninstall()
    assert originals == (torch.manual_seed, random.seed)


def test_a_state_that_returns_is_told_from_one_that_was_restored(watched: Watched) -> None:
    torch.manual_seed(3)
    watched.step()
    assert watched.rows == []  # before the first step everybody seeds
    for _ in range(2):
        torch.manual_seed(3)
        torch.randn(5)
        watched.step()
    for _ in range(2):
        kept = torch.get_rng_state()
        torch.manual_seed(3)
        torch.set_rng_state(kept)
        torch.randn(5)
        watched.step()
    states = [row["state"] for row in watched.rows]
    assert states[0] == states[1] and len(set(states)) == 3
    assert watched.rows[0]["drawn"] is True and watched.rows[0]["seed"] == 3
    assert watched.rows[0]["place"].startswith("test_random_states.py:")
    random.seed(1)
    watched.step()
    assert (watched.rows[-1]["generator"], watched.rows[-1]["drawn"]) == ("random", False)


def test_the_function_that_seeds_is_still_one_that_can_be_pickled(watched: Watched) -> None:
    ours = torch.random.manual_seed
    assert pickle.loads(pickle.dumps(ours)) is ours
    shared = vars(torch.manual_seed)["__wrapped__"] is vars(ours)["__wrapped__"]
    assert (torch.manual_seed is ours) == shared  # torch.compile makes two functions of it


class Model(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first, self.last, self.drop = kind, nn.Linear(3, 8), nn.Linear(8, 2), nn.Dropout(0.5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.first(inputs)
        if self.kind == "function":
            hidden = functional.dropout(hidden, 0.5)
        elif self.kind == "constructed":
            hidden = nn.Dropout(0.5)(hidden)
        else:
            hidden = self.drop(hidden)
        return self.last(hidden)


def test_a_dropout_that_stays_on_in_evaluation_is_seen_and_an_ordinary_one_is_not(watched: Watched) -> None:
    row = watched.evaluate(Model("function"))
    assert (row["reason"], row["drawn"], row["dropout"]) == ("evaluation", True, 0)
    assert row["place"] == "Linear and Linear"
    row = watched.evaluate(Model("constructed"))
    assert (row["place"], row["drawn"], row["dropout"]) == ("Dropout", True, 1)
    assert watched.evaluate(Model("module"))["drawn"] is False
    assert watched.armed == 3
    Model("module").eval()
    assert watched.armed == 3  # nothing is to be looked into


def test_numbers_drawn_between_two_models_are_not_those_of_an_evaluation(watched: Watched) -> None:
    model, teacher = Model("module"), Model("module")
    watched.forward.roots = {id(model): model}
    watched.recorder.step = 1
    watched.states.collect()
    draws = watched.forward.draws
    handle = nn.modules.module.register_module_forward_pre_hook(lambda module, _: draws(module))
    with torch.no_grad():
        model.eval()(torch.ones(4, 3))
        teacher.eval()(torch.randn(4, 3))
    handle.remove()
    assert watched.rows == [] and watched.forward.draws is None
