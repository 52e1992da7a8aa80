"""`load_checkpoint`: continue a run from a checkpoint.

    state = probe.load_checkpoint("rescue.pt", model=model, optimizer=optimizer)
    for x, y in state.rest_of(train_loader): ...

`file` describes the format. Runs on the calling thread; standard library only, torch and numpy inside
functions.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from probe.base.errors import CheckpointInvalid
from probe.checkpoint.all_ranks import RanksFolder, is_shard, shards_in
from probe.checkpoint.file import read_checkpoint, torch_module
from probe.checkpoint.random_states import random_states, restore_random_states
from probe.checkpoint.sharded import flat_state, holds_flat

_OWN_KEYS = ("step", "epoch", "probe")
_PREFIXES = ("module.", "_orig_mod.")
"""Prefixes of parameter names by DistributedDataParallel and torch.compile."""


class Checkpoint:
    """The loaded checkpoint, and the position of its run."""

    def __init__(
        self, path: str, content: Mapping[str, Any], rng: bool, folder: RanksFolder | None = None
    ) -> None:
        own = content["probe"]
        self.path = path
        self.step: int | None = content["step"]
        """The job's own step counter if found, else the steps counted; None if unknown."""
        self.epoch: int | None = content["epoch"]
        self.steps_counted: int | None = own["steps_counted"]
        """Optimizer steps counted by probe."""
        self.names = names_in(content)
        """Names of the models, optimizers, … in the file."""
        self._others = folder is not None and not folder.fits
        self.data: dict[str, Any] | None = None if self._others else own["data"]
        """Position in the training data: `loader`, `batches` fetched, random states at the epoch's start.
        None without a DataLoader, or if the saved run had another number of ranks: each had other data."""
        self.left_out: list[str] = own["left_out"]
        """Names left out of the file because their values are not plain data."""
        self._states = _for_this_machine(own["rng"]) if rng and not self._others else None

    def __repr__(self) -> str:
        return f"<Checkpoint {self.path}: step {self.step}, {', '.join(self.names)}>"

    def rest_of(self, loader: Any) -> Iterator[Any]:
        """An iterator over the rest of the interrupted epoch, possibly empty.

        `loader`: made as in the saved run. Its batches up to the saved position are fetched again and
        dropped, so that workers are where they were; then the random states are restored."""
        torch = torch_module()

        if self.data is None:
            why = "it had another number of ranks" if self._others else "it used no DataLoader when saved"
            raise CheckpointInvalid(
                f"{self.path} has no position in the training data: {why}",
                hint="Skip the data already used in the run's own way; `.step` is the position.",
            )
        generator, state = getattr(loader, "generator", None), self.data["generator_state"]
        if (generator is None) != (state is None):
            raise CheckpointInvalid(
                "this loader has its own generator, and the saved run's had none" if state is None
                else "this loader has no generator, and the saved run's had its own",
                hint="Make the loader as in the saved run.",
            )
        if self.data.get("untouched") and self._states is not None:
            # An iterator that is a generator (Accelerate's) draws its order at the first fetch, others here:
            # both from the state before.
            restore_random_states({**self._states, "torch": self.data["torch_state"]})
            if generator is not None:
                generator.set_state(state)
            return iter(loader)
        after = random_states() if self._states is None else self._states
        torch.set_rng_state(self.data["torch_state"])
        if generator is not None:
            generator.set_state(state)
        iterator: Iterator[Any] = iter(loader)
        for number in range(self.data["batches"]):
            if next(iterator, _ENDED) is _ENDED:
                used = self.data["batches"]
                raise CheckpointInvalid(
                    f"this loader has {number} batches, and the saved run had used {used}",
                    hint="Make the loader as in the saved run.",
                )
        restore_random_states(after)
        return iterator


_ENDED = object()


def load_checkpoint(
    path: str | os.PathLike[str], /, *, rng: bool = True, strict: bool = True, **objects: Any
) -> Checkpoint:
    """Load the objects given by keyword from a checkpoint, then the random states.

    `load_checkpoint("rescue.pt", model=model, optimizer=optimizer)`. `path` is a file, or a folder with one
    or several checkpoints of all ranks (the newest is used); then every rank calls this, before or after
    wrapping its models, and gets its own part. Hash, names and shapes are checked before anything changes.
    `strict`: every object in the file must be given; otherwise objects that are not named, and parameters
    that only one side has, are skipped. `rng=False` keeps the current random states. Raises
    `CheckpointInvalid`."""
    path = os.fspath(path)
    folder = RanksFolder(path) if os.path.isdir(path) else None
    if folder is None:
        content = read_checkpoint(path)
    else:
        path, content = str(folder.folder), folder.content()
    _compare_names(path, content, objects, strict)
    states = {name: _fitting(name, thing, content, strict) for name, thing in objects.items()}
    loaded: list[str] = []
    _load_loose_parameters(path, content, objects)
    for name in sorted(objects, key=lambda name: _ORDER.get(content["probe"]["kinds"].get(name, ""), 0)):
        _load(path, name, objects[name], states[name], strict, loaded, folder)
    checkpoint = Checkpoint(path, content, rng, folder)
    if checkpoint._states is not None:
        restore_random_states(checkpoint._states)
    return checkpoint


def _for_this_machine(states: dict[str, Any]) -> dict[str, Any]:
    """The random states. Imports NumPy if they include its state: only imported libraries get theirs."""
    if states["numpy"] is not None:
        with contextlib.suppress(ImportError):
            import numpy  # noqa: F401
    return states


_ORDER = {"module": 0, "optimizer": 1, "scheduler": 2, "scaler": 3}


def _load_loose_parameters(path: str, content: Mapping[str, Any], objects: Mapping[str, Any]) -> None:
    """Load parameters that belong to no module of the file through the optimizers that train them."""
    torch = torch_module()
    for name, loose in content["probe"]["loose_parameters"].items():
        if name not in objects:
            continue
        own = [one for group in objects[name].param_groups for one in group["params"]]
        wrong = [number for number, value in loose.items() if _shape(own[number]) != _shape(value)]
        if wrong:
            raise CheckpointInvalid(
                f"parameter {wrong[0]} of {name} has another shape in {path} than here",
                hint="Build it as in the saved run. Nothing was loaded.",
            )
        with torch.no_grad():
            for number, value in loose.items():
                own[number].copy_(value)


def _load(
    path: str, name: str, thing: Any, state: Any, strict: bool, loaded: list[str], folder: RanksFolder | None
) -> None:
    torch = torch_module()

    if folder is not None and next(shards_in(state), None) is not None:
        if isinstance(thing, torch.nn.Module):
            state = folder.module_state(state, thing.state_dict())
        else:
            state = folder.optimizer_state(state, thing)
    try:
        if isinstance(thing, torch.nn.Module) and holds_flat(thing):
            _fill(flat_state(thing), state)
        elif isinstance(thing, torch.nn.Module):
            thing.load_state_dict(state, strict=strict)
        else:
            thing.load_state_dict(state)
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        done = f"{' and '.join(loaded)} is loaded already" if loaded else "nothing else is loaded yet"
        raise CheckpointInvalid(
            f"{name} of {path} does not fit the given {type(thing).__name__}: {error}; {done}",
            hint="Build it as in the saved run. Restart before training: it may be half loaded.",
        ) from error
    loaded.append(name)


def _fill(own: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Copy a state into a module's own tensors."""
    with torch_module().no_grad():
        for key in [key for key in state if key in own]:
            own[key].copy_(state[key])


def names_in(content: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the models, optimizers, … in a checkpoint."""
    return tuple(name for name in content if name not in _OWN_KEYS)


def _compare_names(path: str, content: Mapping[str, Any], objects: Mapping[str, Any], strict: bool) -> None:
    kinds = content["probe"]["kinds"]
    held = names_in(content)
    listed = ", ".join(f"{name} ({kinds.get(name, 'state')})" for name in held)
    unknown = [name for name in objects if name not in held]
    if unknown:
        raise CheckpointInvalid(
            f"{path} has no {' and no '.join(unknown)}; it has {listed}",
            hint="Name each object as in the file. Nothing was loaded.",
        )
    missing = [name for name in held if name not in objects]
    if strict and missing:
        raise CheckpointInvalid(
            f"{path} also has {' and '.join(missing)}; all its objects: {listed}",
            hint=f"Add {', '.join(f'{name}=…' for name in missing)}, or strict=False to skip it. "
            "Nothing was loaded.",
        )
    for name, thing in objects.items():
        if _kind_given(thing) not in ("", kinds.get(name)):
            raise CheckpointInvalid(
                f"{name} of {path} is a {kinds.get(name)}, and a {type(thing).__name__} was given; "
                f"it has {listed}",
                hint="Nothing was loaded.",
            )


def _kind_given(thing: Any) -> str:
    """Kind of an object by its type; empty if any kind may fit."""
    torch = torch_module()

    if isinstance(thing, torch.nn.Module):
        return "module"
    if isinstance(thing, torch.optim.Optimizer):
        return "optimizer"
    return "" if hasattr(thing, "load_state_dict") else "thing without load_state_dict"


def _fitting(name: str, thing: Any, content: Mapping[str, Any], strict: bool) -> Any:
    """The state to load into `thing`, checked against it; raises `CheckpointInvalid`."""
    torch = torch_module()

    state = content[name]
    wrong: list[str] = []
    if isinstance(thing, torch.nn.Module):
        own = flat_state(thing) if holds_flat(thing) else thing.state_dict()
        state = _renamed(state, own)
        if strict:
            wrong += [f"{key} is not in the file" for key in own if key not in state]
            wrong += [f"{key} is only in the file" for key in state if key not in own]
        plain = [key for key in state if not is_shard(state[key])]
        for key in [key for key in plain if key in own and not torch.nn.parameter.is_lazy(own[key])]:
            there, here = _shape(state[key]), _shape(own[key])
            if there != here:
                wrong.append(f"{key} has the shape {there} in the file and {here} here")
    elif isinstance(thing, torch.optim.Optimizer):
        there, here = _group_sizes(state.get("param_groups", ())), _group_sizes(thing.param_groups)
        if there != here:
            wrong.append(f"its groups hold {there} parameters in the file and {here} here")
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise CheckpointInvalid(
            f"{name} does not fit: {'; '.join(wrong[:3])}{more}",
            hint="Build it as in the saved run. Nothing was loaded.",
        )
    return state


def _shape(value: Any) -> list[int] | None:
    shape = getattr(value, "shape", None)
    return None if shape is None else list(shape)


def _group_sizes(groups: Iterable[Any]) -> list[int]:
    return [len(group["params"]) for group in groups]


def _renamed(state: Mapping[str, Any], own: Mapping[str, Any]) -> Mapping[str, Any]:
    """A module's state renamed for this module, wrapped or not."""
    if not own or state.keys() == own.keys():
        return state
    for prefix in _PREFIXES:
        for here, there in ((prefix, ""), ("", prefix)):
            if all(key.startswith(there) for key in state):
                renamed = {here + key[len(there) :]: value for key, value in state.items()}
                if renamed.keys() == own.keys():
                    return renamed
    return state
