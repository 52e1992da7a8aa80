"""Checkpoint files: what is in them, what they refuse, and how a run is continued from one."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset

import probe
from control.saved import Site, left_in, save, trained, values
from probe.base.errors import ActionFailed, ActionRefused, CheckpointInvalid
from probe.checkpoint.file import content_sha256
from probe.checkpoint.random_states import random_states
from probe.job.actions.saving.plain_data import copied, tensors_in

# What is in a file ----------------------------------------------------------------


def test_a_checkpoint_opens_with_plain_torch_load_and_holds_what_is_documented(tmp_path: Path) -> None:
    named = trained()
    answer = save(Site(**named, step=7, epoch=2), tmp_path / "a.pt")
    content = torch.load(tmp_path / "a.pt", weights_only=True)
    assert list(content) == ["model", "optimizer", "scheduler", "probe", "step", "epoch"]
    assert (content["step"], content["epoch"]) == (7, 2)
    assert set(content["probe"]) == {
        "version", "kinds", "steps_counted", "found", "boundary", "rng", "data", "world_size", "rank",
        "torch", "saved_ns", "left_out", "loose_parameters", "content_sha256",
    }
    assert set(content["probe"]["rng"]) == {"python", "numpy", "torch", "devices"}
    for name, thing in named.items():
        assert content_sha256({"state": content[name]}) == values(thing)
    fresh = trained(0)
    fresh["model"].load_state_dict(content["model"])
    fresh["optimizer"].load_state_dict(content["optimizer"])
    fresh["scheduler"].load_state_dict(content["scheduler"])
    assert [values(thing) for thing in fresh.values()] == [values(thing) for thing in named.values()]
    assert answer["verified"] and answer["bytes"] == (tmp_path / "a.pt").stat().st_size
    assert answer["sha256"] == subprocess.check_output(["sha256sum", tmp_path / "a.pt"], text=True).split()[0]
    assert answer["not_found"] == ["scaler", "position in the data"]
    assert left_in(tmp_path) == ["a.pt"]


def test_what_is_loaded_is_what_was_saved_random_states_included(tmp_path: Path) -> None:
    named = trained()
    save(Site(**named), tmp_path / "a.pt")
    expected = (random.random(), numpy.random.rand(), torch.rand(1).item(), random.gauss(0, 1))
    fresh = trained(1)
    state = probe.load_checkpoint(tmp_path / "a.pt", **fresh)
    assert (random.random(), numpy.random.rand(), torch.rand(1).item(), random.gauss(0, 1)) == expected
    assert [values(thing) for thing in fresh.values()] == [values(thing) for thing in named.values()]
    assert (state.step, state.epoch, state.steps_counted) == (7, None, 7)
    before = torch.get_rng_state()
    probe.load_checkpoint(tmp_path / "a.pt", rng=False, **fresh)
    assert torch.equal(torch.get_rng_state(), before)


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda n: 0.9**n),
    "multiplicative": lambda o: lr_scheduler.MultiplicativeLR(o, lambda n: 0.9),
    "step": lambda o: lr_scheduler.StepLR(o, 3),
    "multi": lambda o: lr_scheduler.MultiStepLR(o, [4, 8, 8, 20]),
    "constant": lambda o: lr_scheduler.ConstantLR(o),
    "linear": lambda o: lr_scheduler.LinearLR(o),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "polynomial": lambda o: lr_scheduler.PolynomialLR(o, 30),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 30),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 7),
    "onecycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=40),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 3, cycle_momentum=False),
    "cyclic by a function": lambda o: lr_scheduler.CyclicLR(
        o, 0.01, 0.1, 3, cycle_momentum=False, scale_fn=lambda n: 0.5
    ),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.MultiStepLR(o, [4])], [6]
    ),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=2),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_of_torch_goes_on_as_if_nothing_had_been(name: str, tmp_path: Path) -> None:
    def run(scheduler: Any, optimizer: Any, steps: int) -> list[float]:
        rates = []
        for _ in range(steps):
            optimizer.step()
            scheduler.step(*([1.0] if name == "plateau" else []))
            rates.append(optimizer.param_groups[0]["lr"])
        return rates

    def made() -> tuple[Any, Any]:
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1)
        return optimizer, SCHEDULERS[name](optimizer)

    optimizer, scheduler = made()
    run(scheduler, optimizer, 5)
    save(Site(optimizer=optimizer, scheduler=scheduler), tmp_path / "a.pt")
    expected = run(scheduler, optimizer, 20)
    optimizer, scheduler = made()
    probe.load_checkpoint(tmp_path / "a.pt", optimizer=optimizer, scheduler=scheduler)
    assert run(scheduler, optimizer, 20) == expected


def test_what_is_no_plain_data_is_left_out_and_named(tmp_path: Path) -> None:
    named = trained()
    named["scheduler"].formula = lambda n: n
    named["scheduler"].table = {"names": {1, 2}, "array": numpy.zeros(2), "number": numpy.float64(0.1)}
    itself: list[Any] = []
    itself.append(itself)
    named["scheduler"].itself = itself
    answer = save(Site(**named), tmp_path / "a.pt")
    assert answer["left_out"] == [
        "scheduler.formula (function)", "scheduler.table.names (set)", "scheduler.table.array (ndarray)",
        "scheduler.itself[0] (list)",
    ]
    assert any("scheduler.formula (function)" in note for note in answer["notes"])
    content = torch.load(tmp_path / "a.pt", weights_only=True)
    assert content["scheduler"]["table"] == {"number": 0.1} and "formula" not in content["scheduler"]


def test_models_and_optimizers_bear_the_names_of_the_users_variables(tmp_path: Path) -> None:
    generator, discriminator = nn.Linear(2, 2), nn.Linear(2, 1)
    first = torch.optim.SGD(generator.parameters(), lr=0.1, momentum=0.9)
    site = Site(generator=generator, step=torch.optim.Adam(discriminator.parameters()), opt_g=first)
    site.named["unnamed module"] = discriminator
    save(site, tmp_path / "a.pt")
    content = torch.load(tmp_path / "a.pt", weights_only=True)
    assert content["probe"]["kinds"] == {
        "generator": "module", "model": "module", "step_2": "optimizer", "opt_g": "optimizer",
    }
    assert content["step"] == 7 and content["probe"]["found"] == {"step": "counted by probe"}


def test_only_modules_with_a_state_are_in_it_and_parts_are_not_there_twice(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    ema = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    site = Site(model=model, ema=ema)
    # What a loop calls: parts of the model, one after the other, and a loss.
    site.modules = lambda: [model[0], model[1], nn.MSELoss()]  # type: ignore[method-assign]
    assert list(save(site, tmp_path / "a.pt")["contains"]) == ["model", "ema"]


def test_a_model_that_nobody_has_seen_called_is_found_by_what_its_optimizer_trains(tmp_path: Path) -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = nn.Linear(2, 2), nn.Linear(2, 2)

    both, unrelated = Both(), nn.Linear(2, 2)
    site = Site(optimizer=torch.optim.SGD(both.parameters(), lr=0.1), both=both)
    site.modules = lambda: [both.encoder]  # type: ignore[method-assign]
    answer = save(site, tmp_path / "a.pt")
    assert list(answer["contains"]) == ["both", "optimizer"] and answer["contains"]["both"]["tensors"] == 4
    del unrelated


def test_parameters_that_no_module_has_are_saved_with_their_optimizer(tmp_path: Path) -> None:
    model, temperature = nn.Linear(2, 1), nn.Parameter(torch.tensor(0.07))
    optimizer = torch.optim.SGD([*model.parameters(), temperature], lr=0.1)
    save(Site(model=model, optimizer=optimizer), tmp_path / "a.pt")
    other_model, other = nn.Linear(2, 1), nn.Parameter(torch.tensor(1.0))
    fresh = torch.optim.SGD([*other_model.parameters(), other], lr=0.1)
    probe.load_checkpoint(tmp_path / "a.pt", model=other_model, optimizer=fresh)
    assert torch.equal(other.detach(), temperature.detach())


def test_copies_share_memory_where_the_originals_do_and_only_there() -> None:
    tied = nn.Linear(3, 3).weight.detach()
    part = torch.arange(100_000.0)[5:7]
    strided = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    live = {"a": tied, "b": tied.t(), "part": part, "strided": strided, "empty": torch.empty(0), "none": None}
    live["complex"] = torch.tensor([1 + 2j]).conj()
    live["sparse"] = torch.eye(3).to_sparse()
    copy = copied(live)
    assert content_sha256(copy) == content_sha256(live)
    assert copy["a"].untyped_storage().data_ptr() == copy["b"].untyped_storage().data_ptr() != tied.data_ptr()
    assert copy["part"].untyped_storage().nbytes() == 8
    assert copy["strided"].stride() == strided.stride()
    for tensor in tensors_in(live):
        tensor.zero_()
    assert torch.count_nonzero(copy["a"]) and torch.count_nonzero(copy["sparse"].to_dense())


def test_the_hash_sees_every_difference_and_takes_nan_for_itself() -> None:
    def of(value: Any) -> str:
        return content_sha256({"x": value})

    nan = float("nan")
    assert of(torch.tensor([nan, 1.0])) == of(torch.tensor([nan, 1.0]))
    different = [
        None, 0, False, 0.0, -0.0, "0", b"0", [], (), {}, [0], (0,), {"a": 0}, {"b": 0}, 1j, nan,
        torch.float32, torch.zeros(1), torch.zeros(1, 1), torch.zeros(1, dtype=torch.float64),
        torch.tensor([-0.0]), torch.zeros(2), torch.zeros(1, dtype=torch.int32),
        torch.zeros(2, 2).to_sparse(),
    ]
    assert len({of(value) for value in different}) == len(different)


def test_a_module_that_is_wrapped_now_or_was_then_is_the_same_module(tmp_path: Path) -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(2, 1)

    plain, wrapped = nn.Linear(2, 1), Wrapped()
    save(Site(model=plain), tmp_path / "plain.pt")
    probe.load_checkpoint(tmp_path / "plain.pt", model=wrapped)
    assert values(wrapped.module) == values(plain)
    save(Site(model=wrapped), tmp_path / "wrapped.pt")
    fresh = nn.Linear(2, 1)
    probe.load_checkpoint(tmp_path / "wrapped.pt", model=fresh)
    assert values(fresh) == values(plain)


# Where the run is -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "step", "found"),
    [
        ({"step": 12}, 12, "step"),
        ({"step": torch.zeros(1), "global_step": 12}, 12, "global_step"),
        ({"step": True, "it": iter([])}, 7, "counted by probe"),
        ({"trainer": SimpleNamespace(current_step=4)}, 4, "trainer.current_step"),
        ({"trainer": SimpleNamespace(state=SimpleNamespace(global_step=4))}, 4, "trainer.state.global_step"),
        ({"self": SimpleNamespace(step=4)}, 4, "self.step"),
    ],
)
def test_the_step_is_the_jobs_own_where_it_has_one(
    named: dict[str, Any], step: int, found: str, tmp_path: Path
) -> None:
    answer = save(Site(model=nn.Linear(1, 1), **named), tmp_path / "a.pt")
    assert (answer["step"], answer["found"]["step"]) == (step, found)


def test_a_step_that_nobody_knows_is_none_and_never_runs_the_jobs_code(tmp_path: Path) -> None:
    class Trainer:
        @property
        def global_step(self) -> int:
            raise AssertionError("asked")

    site = Site(model=nn.Linear(1, 1), trainer=Trainer())
    site.from_start = False
    answer = save(site, tmp_path / "a.pt")
    assert answer["step"] is None and "step" in answer["not_found"]


def test_a_batch_drawn_by_hand_is_drawn_again(tmp_path: Path) -> None:
    site = Site(model=nn.Linear(1, 1))
    site.boundary, site.rng_at_step_end = "forward", random_states()  # type: ignore[assignment]
    torch.rand(3)
    save(site, tmp_path / "a.pt")
    saved = torch.load(tmp_path / "a.pt", weights_only=True)["probe"]["rng"]["torch"]
    assert torch.equal(saved, site.rng_at_step_end["torch"])  # type: ignore[index]


class Noisy(Dataset[torch.Tensor]):
    """Samples with noise, drawn where they are made: in the process itself, or in a worker."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), torch.rand(1).item(), random.random()])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("own", [False, True], ids=["global", "own generator"])
def test_the_rest_of_an_epoch_and_what_follows_are_as_they_would_have_been(
    workers: int, own: bool, tmp_path: Path
) -> None:
    def made() -> DataLoader[torch.Tensor]:
        generator = torch.Generator().manual_seed(3) if own else None
        return DataLoader(Noisy(), 4, shuffle=True, num_workers=workers, generator=generator)

    def used(batches: Any) -> list[str]:
        return [content_sha256({"x": batch}) + f"{torch.rand(1)}" for batch in batches]

    loader = made()
    own_state = loader.generator.get_state() if own else None
    position = {"loader": "", "torch_state": torch.get_rng_state(), "generator_state": own_state}
    iterator = iter(loader)
    used([next(iterator), next(iterator)])
    site = Site(model=nn.Linear(1, 1))
    site.position = {**position, "batches": 2, "untouched": False}
    save(site, tmp_path / "a.pt")
    expected = used(iterator) + used(loader)
    torch.manual_seed(99)
    random.seed(99)
    loader = made()
    state = probe.load_checkpoint(tmp_path / "a.pt", model=nn.Linear(1, 1))
    assert used(state.rest_of(loader)) + used(loader) == expected


def test_an_epoch_that_was_over_has_no_rest_and_a_job_without_a_loader_no_position(tmp_path: Path) -> None:
    site = Site(model=nn.Linear(1, 1))
    save(site, tmp_path / "none.pt")
    loader = DataLoader(Noisy(), 4)
    with pytest.raises(CheckpointInvalid, match="no position in the training data"):
        probe.load_checkpoint(tmp_path / "none.pt", model=nn.Linear(1, 1)).rest_of(loader)
    state = torch.get_rng_state()
    site.position = {
        "loader": "", "batches": 6, "torch_state": state, "generator_state": None, "untouched": False,
    }
    save(site, tmp_path / "over.pt")
    loaded = probe.load_checkpoint(tmp_path / "over.pt", model=nn.Linear(1, 1))
    assert list(loaded.rest_of(loader)) == []
    with pytest.raises(CheckpointInvalid, match="has 3 batches, and the saved run had used 6"):
        loaded.rest_of(DataLoader(Noisy(), 8))
    with pytest.raises(CheckpointInvalid, match="has its own generator"):
        loaded.rest_of(DataLoader(Noisy(), 4, generator=torch.Generator()))


# What is not loaded ---------------------------------------------------------------


def test_a_wrong_or_missing_name_is_said_before_anything_is_changed(tmp_path: Path) -> None:
    save(Site(**trained()), tmp_path / "a.pt")
    fresh = trained(1)
    smaller = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    before = [values(thing) for thing in (*fresh.values(), smaller)]
    other = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    wrong = [
        ({**fresh, "scaler": torch.amp.GradScaler("cpu")}, r"has no scaler; it has model \(module\)"),
        ({"model": fresh["model"]}, "also has optimizer and scheduler"),
        ({**fresh, "model": fresh["optimizer"]}, "model of .* is a module, and a AdamW was given"),
        ({**fresh, "scheduler": object()}, "scheduler of .* is a scheduler, and a object was given"),
        ({**fresh, "model": smaller}, r"0.weight has the shape \[8, 4\] in the file and \[4, 4\] here"),
        ({**fresh, "model": nn.Linear(4, 1)}, "weight is not in the file"),
        ({**fresh, "optimizer": other}, r"its groups hold \[6\] parameters in the file and \[1\] here"),
    ]
    random_before = torch.get_rng_state()
    for given, said in wrong:
        with pytest.raises(CheckpointInvalid, match=said):
            probe.load_checkpoint(tmp_path / "a.pt", **given)
    assert [values(thing) for thing in (*fresh.values(), smaller)] == before
    assert torch.equal(torch.get_rng_state(), random_before)
    probe.load_checkpoint(tmp_path / "a.pt", strict=False, model=fresh["model"])
    assert values(fresh["model"]) != before[0]


def test_a_file_that_is_damaged_or_not_ours_is_never_loaded(tmp_path: Path) -> None:
    named = trained()
    path = tmp_path / "a.pt"
    save(Site(**named), path)
    weight = named["model"][0].weight.detach()
    whole = path.read_bytes()
    at = whole.index(weight.numpy().tobytes()[:16])
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(CheckpointInvalid, match="damaged"):
        probe.load_checkpoint(path, **named)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointInvalid, match="damaged"):
        probe.load_checkpoint(path, **named)
    torch.save({"model": named["model"].state_dict()}, path)
    with pytest.raises(CheckpointInvalid, match="not a checkpoint of probe"):
        probe.load_checkpoint(path, **named)
    path.write_text("not even this")
    with pytest.raises(CheckpointInvalid, match="not a checkpoint"):
        probe.load_checkpoint(path, **named)
    with pytest.raises(CheckpointInvalid, match="cannot be opened: No such file"):
        probe.load_checkpoint(tmp_path / "missing.pt", **named)


def test_what_cannot_be_saved_as_it_is_is_refused(tmp_path: Path) -> None:
    class FSDPModule(nn.Linear):
        __module__ = "torch.distributed.fsdp.fully_shard"

    class Engine(nn.Linear):
        __module__ = "deepspeed.runtime.engine"

    class Odd(nn.Linear):
        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("not now")

    class Kind(torch.Tensor):
        pass

    odd = nn.Linear(1, 1)
    odd.register_buffer("kind", torch.zeros(1).as_subclass(Kind))
    for module, said in [
        (FSDPModule(1, 1), r"the model is sharded \(FSDPModule\): every rank has a part"),
        (Engine(1, 1), r"sharded by deepspeed\.runtime\.engine\..*Engine, whose state is collected by"),
        (nn.Linear(1, 1, device="meta"), "model.weight has no values"),
        (odd, "model.kind is a Kind"),
    ]:
        with pytest.raises(ActionRefused, match=said):
            save(Site(model=module), tmp_path / "a.pt")
    with pytest.raises(ActionFailed, match="RuntimeError: not now"):
        save(Site(model=Odd(1, 1)), tmp_path / "a.pt")
    with pytest.raises(ActionRefused, match="no model and no optimizer"):
        save(Site(), tmp_path / "a.pt")
    assert left_in(tmp_path) == []
