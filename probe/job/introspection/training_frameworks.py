"""Training frameworks: finds the objects inside a framework's trainer, by the names a user would write.

transformers.Trainer, Lightning, Accelerate and DeepSpeed keep models, optimizers, schedulers, loaders and
counters in objects of their own. `find` looks for such an object in the frames of the training thread;
`TRAINERS` lists where each keeps them. Only instance dictionaries are read: no property and no method of a
framework is called. Agent's threads, or the training thread at a boundary. Standard library only.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple

from probe.job.introspection import python_frames


class Trainer(NamedTuple):
    """A class of a framework."""

    packages: tuple[str, ...]
    """Modules that define it, or the packages they are in."""
    kind: str
    usual: str
    """The variable that usually holds it."""
    holds: dict[str, tuple[str, ...]]
    """The attribute paths of each object, by its usual name; `*` stands for each item of a list."""
    ends: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = ()
    """Limits that end its training: name, paths of numbers whose product is the final count, counters."""


TRAINERS = (
    Trainer(("transformers.trainer",), "Trainer", "trainer", {
        "model": ("model",),
        "optimizer": ("optimizer",),
        "lr_scheduler": ("lr_scheduler",),
        "train_dataloader": ("callback_handler.train_dataloader",),
        "eval_dataloader": ("callback_handler.eval_dataloader",),
        "scaler": ("accelerator.scaler",),
        "accelerator": ("accelerator",),
        "global_step": ("state.global_step",),
        "epoch": ("state.epoch",),
    }, (("max_steps", ("state.max_steps",), ("state.global_step",)),)),
    Trainer(("lightning.pytorch.trainer", "pytorch_lightning.trainer"), "Trainer", "trainer", {
        "model": ("_accelerator_connector.strategy._lightning_module",),
        "optimizer": ("_accelerator_connector.strategy._optimizers.*",),
        "lr_scheduler": ("_accelerator_connector.strategy.lr_scheduler_configs.*.scheduler",),
        "train_dataloader": ("fit_loop._combined_loader._iterables",),
        "val_dataloader": ("fit_loop.epoch_loop.val_loop._combined_loader._iterables",),
        "scaler": ("_accelerator_connector.strategy._precision_plugin.scaler",),
        "global_step": (
            "fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed",
            "fit_loop.epoch_loop.manual_optimization.optim_step_progress.total.completed",
        ),
        "epoch": ("fit_loop.epoch_progress.current.completed",),
    }, (
        ("max_steps", ("fit_loop.epoch_loop.max_steps",), (
            "fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed",
            "fit_loop.epoch_loop.manual_optimization.optim_step_progress.total.completed",
        )),
        ("max_epochs × batches", ("fit_loop.max_epochs", "fit_loop.max_batches"),
         ("fit_loop.epoch_loop.batch_progress.total.ready",)),
    )),
    Trainer(("deepspeed.runtime.engine",), "DeepSpeedEngine", "model_engine", {
        "model": ("module",),
        "optimizer": ("optimizer",),
        "lr_scheduler": ("lr_scheduler",),
        "train_dataloader": ("training_dataloader",),
        "global_step": ("global_steps",),
    }),
    Trainer(("accelerate.accelerator",), "Accelerator", "accelerator", {
        "model": ("_models.*",),
        "optimizer": ("_optimizers.*",),
        "lr_scheduler": ("_schedulers.*",),
        "train_dataloader": ("_dataloaders.*",),
        "scaler": ("scaler",),
    }),
)
"""In order of precedence: a trainer may itself hold a later one."""
ALIASES = {"lr_scheduler": "scheduler", "train_dataloader": "train_loader"}
"""Second names of the objects in a trainer."""
_ROOTS = frozenset(package.partition(".")[0] for trainer in TRAINERS for package in trainer.packages)
_MOST_ITEMS = 8


class Framework:
    """The trainers of one process, those that know most first. Without any, it holds nothing."""

    def __init__(self, found: Iterable[tuple[Trainer, Any]] = ()) -> None:
        self._found = list(found)

    def __bool__(self) -> bool:
        return bool(self._found)

    def held(self, name: str) -> list[Any]:
        """All objects under a usual name, from the first trainer that has any."""
        return next((held for trainer, one in self._found if (held := _held(trainer, one, name))), [])

    def names(self) -> dict[str, Any]:
        """All objects by their usual names; of several, the first."""
        found: dict[str, Any] = {trainer.usual: one for trainer, one in reversed(self._found)}
        for name in [name for trainer, _ in self._found for name in trainer.holds]:
            for first in self.held(name)[:1]:
                found.setdefault(name, unwrapped(first))
                found.setdefault(ALIASES.get(name, name), unwrapped(first))
        return found

    def counter(self, name: str) -> tuple[int, str] | None:
        """`global_step` or `epoch`, and where it was found. An epoch with a fraction is rounded down."""
        for trainer, one in self._found:
            for path in trainer.holds.get(name, ()):
                values = [value for value in _at(one, path) if type(value) in (int, float)]
                if values and (values[0] or path == trainer.holds[name][-1]):
                    package = type(one).__module__.partition(".")[0]
                    return int(values[0]), f"{name} of a {package} {trainer.kind}"
        return None

    def ends(self) -> Iterator[tuple[int, str]]:
        """Steps or batches left until a trainer ends its training, and the limit that says so."""
        for trainer, one in self._found:
            for words, factors, counters in trainer.ends:
                numbers = [value for path in factors for value in _at(one, path)]
                done = max((n for path in counters for n in _at(one, path) if type(n) is int), default=None)
                known = len(numbers) == len(factors) and all(type(n) is int and n > 0 for n in numbers)
                if done is None or not known:
                    continue  # -1, infinity: this does not end it
                total, package = math.prod(numbers), type(one).__module__.partition(".")[0]
                yield total - done, f"{words} = {total:,} of a {package} {trainer.kind}"


def find(frames: Iterable[FrameType]) -> Framework:
    """The trainers in these frames, innermost first: `self` of a framework's methods, and variables of the
    user's functions."""
    if _ROOTS.isdisjoint(sys.modules):
        return Framework()
    found: dict[int, tuple[Trainer, Any]] = {}
    for frame in frames:
        for thing in _candidates(frame):
            for trainer in TRAINERS:
                if _is(thing, trainer):
                    found.setdefault(id(thing), (trainer, thing))
    return Framework(sorted(found.values(), key=lambda pair: TRAINERS.index(pair[0])))


def unwrapped(thing: Any) -> Any:
    """The object inside Accelerate's scheduler, or inside an optimizer that exposes another's groups and
    calls its step (Accelerate and Lightning); anything else itself."""
    if type(thing).__name__ == "AcceleratedScheduler":
        return own_dictionary(thing).get("scheduler", thing)
    for _ in range(_MOST_ITEMS):
        own = own_dictionary(thing) if _is_optimizer(thing) else {}
        inner: Any = next((own[name] for name in ("optimizer", "_optimizer", "optim") if name in own), None)
        if not _is_optimizer(inner) or inner.param_groups is not thing.param_groups:
            break
        thing = inner
    return thing


def _is_optimizer(thing: Any) -> bool:
    known = getattr(sys.modules.get("torch.optim"), "Optimizer", None)
    return known is not None and issubclass(type(thing), known)


def _candidates(frame: FrameType) -> Iterator[Any]:
    module = frame.f_globals.get("__name__")
    method = frame.f_code.co_varnames[:1] == ("self",)
    if method and isinstance(module, str) and module.partition(".")[0] in _ROOTS:
        yield python_frames.variables(frame).get("self")
    elif python_frames.is_user_code(frame.f_code.co_filename):
        variables = python_frames.variables(frame)
        yield from list(variables.values())
        if method:
            yield from list(own_dictionary(variables.get("self")).values())


def _is(thing: Any, trainer: Trainer) -> bool:
    return any(
        base.__name__ == trainer.kind and base.__module__.startswith(trainer.packages)
        for base in type(thing).__mro__
    )


def _held(trainer: Trainer, one: Any, name: str) -> list[Any]:
    found = [value for path in trainer.holds.get(name, ()) for value in _at(one, path)]
    return list({id(value): value for value in found}.values())


def _at(thing: Any, path: str) -> list[Any]:
    """The values at an attribute path; empty if an attribute is missing or None."""
    things = [thing]
    for name in path.split("."):
        if name == "*":
            things = [item for one in things if isinstance(one, (list, tuple)) for item in one[:_MOST_ITEMS]]
        else:
            things = [own_dictionary(one).get(name) for one in things]
        things = [one for one in things if one is not None]
    return things


def own_dictionary(thing: Any) -> dict[str, Any]:
    """An instance's own dictionary itself, without calling any of its code; empty without one."""
    try:
        found = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}
