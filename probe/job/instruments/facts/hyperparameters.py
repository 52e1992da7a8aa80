"""Hyperparameters: reads and flattens the variables of a training script that usually hold them.

Runs on the agent's thread. Reads plain dictionaries and those of instances and classes (`object_access`),
and runs no code of the job. Standard library only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import PurePath
from types import FrameType, ModuleType
from typing import Any

from probe.job.instruments.core.object_access import attributes, entries
from probe.job.introspection import python_frames

Value = bool | int | float | str
NAMES = frozenset({
    "args", "arguments", "config", "conf", "cfg", "hparams", "hyperparameters", "hps", "opt", "opts",
    "options", "params", "settings", "training_args", "model_args", "data_args", "train_args", "train_config",
    "model_config", "training_config", "flags", "FLAGS",
})
"""Variables that hold hyperparameters."""
LOOSE = frozenset({
    "seed", "random_seed", "manual_seed", "batch_size", "micro_batch_size", "lr", "learning_rate", "max_lr",
    "min_lr", "weight_decay", "epochs", "num_epochs", "max_epochs", "max_steps", "max_iters", "num_steps",
    "warmup_steps", "warmup_iters", "lr_decay_iters", "gradient_accumulation_steps", "accumulation_steps",
    "grad_accum", "num_workers", "block_size", "seq_len", "max_seq_len", "dropout", "grad_clip",
    "max_grad_norm", "clip_norm", "momentum", "beta1", "beta2", "hidden_size", "n_layer", "n_head", "n_embd",
})
"""Variables that are hyperparameters themselves."""
MOST_VALUES = 200
DEEPEST = 4
LONGEST_TEXT = 200
_MOST_ITEMS = 16


def from_frames(thread: int | None) -> Iterator[tuple[str, Value]]:
    """Names and values in the frames of the training thread, innermost first, each name once."""
    own = _user_frames(thread)
    layers = [python_frames.variables(one) for one in own]
    layers += [one.f_globals for one in {id(one.f_globals): one for one in own}.values()]
    main = sys.modules.get("__main__")
    if main is not None:
        layers.append(vars(main))
    seen: set[str] = set()
    count = 0
    for layer in layers:
        for name, thing in list(layer.items()):
            if name in seen or not (name in NAMES or name in LOOSE):
                continue
            found = flat(name, thing) if name in NAMES else loose(name, thing)
            for path, value in found:
                seen.add(name)
                count += 1
                if count > MOST_VALUES:
                    return
                yield path, value


def named_things(thread: int | None) -> Iterator[tuple[str, Any]]:
    """Names and values of the variables in the user's frames of a thread, of the attributes of `self`, and of
    globals; an object with two names comes twice."""
    own = _user_frames(thread)
    spaces = {id(one.f_globals): one.f_globals for one in own}
    main = sys.modules.get("__main__")
    if main is not None:
        spaces.setdefault(id(vars(main)), vars(main))
    for one in own:
        variables = python_frames.variables(one) if one.f_code.co_name != "<module>" else {}
        yield from variables.items()
        yield from ((f"self.{name}", value) for name, value in attributes(variables.get("self")).items())
    for space in spaces.values():
        for name, value in entries(space):
            if not name.startswith("__") and not isinstance(value, (ModuleType, type)):
                yield name, value


def models_in_frames(thread: int | None, kind: type) -> list[Any]:
    """Instances of a class in the user's frames of a thread: variables, globals and attributes of `self`."""
    layers: list[dict[str, Any]] = []
    for one in _user_frames(thread):
        variables = python_frames.variables(one)
        layers += [variables, one.f_globals, attributes(variables.get("self"))]
    found = [thing for layer in layers for thing in list(layer.values()) if issubclass(type(thing), kind)]
    return list({id(thing): thing for thing in found}.values())


def _user_frames(thread: int | None) -> list[FrameType]:
    frame = None if thread is None else sys._current_frames().get(thread)
    return [one for one in python_frames.walk(frame) if python_frames.is_user_code(one.f_code.co_filename)]


def loose(name: str, thing: Any) -> Iterator[tuple[str, Value]]:
    """The variable, if it is a number or a bool."""
    if type(thing) in (int, float, bool):
        yield name, thing


def flat(path: str, thing: Any, depth: int = 0) -> Iterator[tuple[str, Value]]:
    """The plain values in a container, by path: `cfg.model.width`."""
    value = plain(thing)
    if value is not None:
        if depth:
            yield path, value
        return
    if depth >= DEEPEST or (callable(thing) and not isinstance(thing, type)):
        return
    for name, inner in _entries(thing, depth):
        if isinstance(name, str) and not name.startswith("_"):
            yield from flat(f"{path}.{name}", inner, depth + 1)


def _entries(thing: Any, depth: int) -> list[tuple[Any, Any]]:
    """The contents of a container; empty for anything else."""
    kind = type(thing)
    if issubclass(kind, dict):
        return list(dict.items(thing))
    if issubclass(kind, (list, tuple, set, str, bytes)):
        return []
    if issubclass(kind, ModuleType) or issubclass(kind, type):
        return [(name, inner) for name, inner in entries(vars(thing)) if plain(inner) is not None]
    found = attributes(thing)
    content = found.get("_content", found.get("_fields"))  # OmegaConf, ml_collections
    if isinstance(content, dict):
        return [(name, attributes(inner).get("_val", inner)) for name, inner in entries(content)]
    if depth and not hasattr(kind, "__dataclass_fields__") and kind.__name__ not in _CONTAINERS:
        return []  # some other object of the job
    of_class = [entry for base in reversed(kind.__mro__[:-1]) for entry in entries(vars(base))]
    values = {name: inner for name, inner in of_class if plain(inner) is not None}
    return list({**values, **found}.items())


_CONTAINERS = frozenset({"Namespace", "SimpleNamespace", "DictConfig", "ConfigDict", "Config"})


def plain(thing: Any) -> Value | None:
    """The value if it is a number, bool, short text, path, dtype or device, or a short list of numbers or
    texts; None for anything else."""
    kind = type(thing)
    if kind in (bool, int, float):
        return thing if kind is not int or abs(thing) < 1 << 63 else str(thing)[:LONGEST_TEXT]
    if kind is str:
        return thing if len(thing) <= LONGEST_TEXT else None
    if thing is None:
        return None
    if issubclass(kind, PurePath):
        return str(thing)[:LONGEST_TEXT]
    if kind.__module__ == "torch" and kind.__name__ in ("dtype", "device"):
        return str(thing)
    if kind in (list, tuple) and len(thing) <= _MOST_ITEMS and thing:
        if all(type(one) in (bool, int, float) for one in thing):
            return str(list(thing))[:LONGEST_TEXT]
        if all(type(one) is str for one in thing):
            return ", ".join(thing)[:LONGEST_TEXT]
    return None
