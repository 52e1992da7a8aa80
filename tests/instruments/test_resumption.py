"""What a checkpoint held and what of it was loaded, as the job's own calls tell."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from probe.base.isolation import Isolation
from probe.job.instruments.facts.resumption import Resumption


class Sealed:
    """What a job has pickled, and that answers only what it knows."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise KeyError(name)


class Training:
    """A model, an optimizer with a state, and a schedule."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1 / (1 + step))

    def save(self, path: Path) -> None:
        for _ in range(4):
            self.model(torch.ones(2, 3)).sum().backward()
            self.optimizer.step()
            self.scheduler.step()
        names = ("model", "optimizer", "scheduler")
        torch.save({name: getattr(self, name).state_dict() for name in names}, path)


@pytest.fixture
def watched() -> Iterator[tuple[Resumption, Training, Any]]:
    training, recorder = Training(), SimpleNamespace(step=-1)
    optimizers = SimpleNamespace(alive=lambda: [training.optimizer])
    resumption = Resumption(cast(Any, recorder), Isolation(lambda *_: None), cast(Any, optimizers))
    originals = torch.load, torch.nn.Module.load_state_dict
    resumption.install()
    yield resumption, training, recorder
    resumption.uninstall()
    assert originals == (torch.load, torch.nn.Module.load_state_dict)


def test_the_reader_is_still_one_function_that_can_be_pickled_unless_the_job_has_replaced_it(
    watched: tuple[Resumption, Training, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    resumption, *_ = watched
    assert pickle.loads(pickle.dumps(torch.load)) is torch.load is torch.serialization.load
    resumption.uninstall()
    read = torch.load

    def of_the_job(*args: Any) -> Any:
        return read(*args, weights_only=False)

    monkeypatch.setattr(torch, "load", of_the_job)
    resumption.install()
    assert vars(torch.load)["__wrapped__"] is of_the_job
    resumption.uninstall()
    assert torch.load is of_the_job
    monkeypatch.undo()


def test_an_optimizer_that_is_handed_its_own_state_before_any_step_has_resumed_nothing(
    watched: tuple[Resumption, Training, Any]
) -> None:
    resumption, training, _ = watched
    state = training.optimizer.state_dict()
    training.optimizer.load_state_dict(state)  # as Accelerate does, to move it to a device
    assert dict(resumption.facts()) == {}


def test_what_is_loaded_before_the_first_step_is_told_from_what_the_file_holds(
    watched: tuple[Resumption, Training, Any], tmp_path: Path
) -> None:
    resumption, training, recorder = watched
    assert dict(resumption.facts()) == {}
    Training().save(tmp_path / "checkpoint.pt")
    state = torch.load(tmp_path / "checkpoint.pt")
    held = {"checkpoint.optimizer": 4, "checkpoint.scheduler": 4}
    assert dict(resumption.facts()) == held
    Training().model.load_state_dict(state["model"])
    assert dict(resumption.facts()) == held  # no optimizer trains that model
    training.model.load_state_dict(state["model"])
    assert dict(resumption.facts()) == {**held, "loaded.model": "Sequential"}
    recorder.step = 5  # a roll-back in the middle of a training is no resumption
    training.optimizer.load_state_dict(state["optimizer"])
    assert "loaded.optimizer" not in dict(resumption.facts())
    recorder.step = 0
    training.optimizer.load_state_dict(state["optimizer"])
    assert "loaded.scheduler" not in dict(resumption.facts())
    training.scheduler.load_state_dict(state["scheduler"])
    assert dict(resumption.facts()) == {
        **held, "loaded.model": "Sequential", "loaded.optimizer": "AdamW",
        "loaded.optimizer.lr": pytest.approx(0.002), "loaded.scheduler": "LambdaLR",
    }


def test_a_load_that_matches_no_name_is_told_and_one_after_it_that_matches_takes_its_place(
    watched: tuple[Resumption, Training, Any]
) -> None:
    resumption, training, _ = watched
    state = training.model.state_dict()
    training.model.load_state_dict({f"module.{name}": value for name, value in state.items()}, strict=False)
    near = {"near": 4, "near.given": "module.0.weight", "near.wanted": "0.weight"}
    worst = {"model": "Sequential", "given": 4, "matched": 0, "missing": 4, **near}
    told = {"loaded.model": "Sequential", **{f"loaded.worst.{name}": value for name, value in worst.items()}}
    assert dict(resumption.facts()) == told
    training.model.load_state_dict(state)
    assert dict(resumption.facts()) == {"loaded.model": "Sequential"}


def test_a_layer_that_was_wrapped_is_told_from_one_that_is_new(
    watched: tuple[Resumption, Training, Any]
) -> None:
    resumption, training, recorder = watched
    state = training.model.state_dict()
    training.model[0] = torch.nn.Sequential(training.model[0])  # its names are one part longer now
    recorder.step = 500  # a second training, made of the first one
    training.model.load_state_dict(state, strict=False)
    facts = dict(resumption.facts())
    assert facts["loaded.worst.near"] == 2 and facts["loaded.worst.matched"] == 2
    assert (facts["loaded.worst.near.given"], facts["loaded.worst.near.wanted"]) == ("0.weight", "0.0.weight")
    assert "loaded.model" not in facts  # nothing was resumed
    less = {"1.weight": state["1.weight"], "new.weight": state["1.bias"]}
    training.model.load_state_dict(less, strict=False)
    assert dict(resumption.facts())["loaded.worst.near"] == 2  # the load with most matches counts


@pytest.mark.parametrize("step", [0, 500])
def test_what_a_job_loads_is_not_asked_for_anything(
    watched: tuple[Resumption, Training, Any], tmp_path: Path, step: int
) -> None:
    _, _, recorder = watched
    recorder.step = step
    torch.save(Sealed(), tmp_path / "own.pt")
    assert type(torch.load(tmp_path / "own.pt", weights_only=False)) is Sealed


def test_a_load_of_the_models_own_tensors_in_the_course_of_the_training_is_told(
    watched: tuple[Resumption, Training, Any]
) -> None:
    resumption, training, recorder = watched
    model = training.model
    best, copied = dict(model.state_dict()), {name: one.clone() for name, one in model.state_dict().items()}
    recorder.step = 500
    model.load_state_dict(copied)
    assert dict(resumption.facts()) == {"loaded.later": 1}
    model.load_state_dict(best)
    own = {"loaded.own.model": "Sequential", "loaded.own.step": 500, "loaded.own.times": 1}
    assert dict(resumption.facts()) == {"loaded.later": 2, **own}
