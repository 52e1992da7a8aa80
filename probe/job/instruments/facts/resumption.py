"""Resumption: records the contents of a checkpoint, and which parts were loaded before the first step.

Wraps `torch.load` and the `load_state_dict` of modules, optimizers and schedulers, which run outside of
training steps: each wrapper notes a few names and numbers and keeps nothing alive. Calls of `torch.load` in
training steps are counted by `file_reads`. `run_facts` writes the facts on the agent's thread. Nothing is
unpickled or called in addition to the job's own calls. torch inside functions.
"""

from __future__ import annotations

import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from probe.base.isolation import Isolation
from probe.job.instruments.core.object_access import attributes, entries
from probe.job.instruments.core.patch import Patches
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.facts.file_reads import FileReads, now_ns
from probe.job.instruments.facts.hyperparameters import Value, plain
from probe.job.instruments.loop.optimizers import Optimizers

LATEST_STEP = 1
"""Last step in which loading counts as a resumption."""
MOST_KEYS, MOST_PARAMETERS, MOST_MODULES, MOST_NAMES = 64, 8, 64, 2000


class _Match(NamedTuple):
    """One load of a module: its class, some of its parameters, the number of entries in the state, how many
    of them it has, how many of its own were missing, and the names that differ by a part only."""

    model: str
    references: list[weakref.ref[Any]]
    given: int
    matched: int
    missing: int
    near: list[tuple[str, str]]


class Resumption:
    """Notes loads of checkpoints and states."""

    def __init__(self, recorder: Recorder, isolation: Isolation, optimizers: Optimizers) -> None:
        self._recorder, self._isolation, self._optimizers = recorder, isolation, optimizers
        self.reads = FileReads(recorder, isolation)
        self._patches = Patches()
        self._found: dict[str, Value] = {}
        self._models: list[tuple[str, list[weakref.ref[Any]]]] = []
        self._matches: dict[int, _Match] = {}
        """Per module, the load with most matches."""

    def install(self) -> None:
        """Wrap the functions; off the hot path."""
        torch = sys.modules["torch"]
        self._tensors = (torch.Tensor, torch.nn.Parameter)
        shared = torch.load is torch.serialization.load  # False if the job has replaced one of them
        self._watch(torch.serialization, "load", self._read)
        if shared:  # keep one function under both names: pickle looks it up by the second
            self._patches.wrap(torch, "load", lambda _: torch.serialization.load)
        else:
            self._watch(torch, "load", self._read)
        self.reads.wrap()
        self._watch(torch.nn.Module, "load_state_dict", self._model, always=True)
        self._watch(torch.optim.Optimizer, "load_state_dict", self._optimizer)
        schedulers = torch.optim.lr_scheduler
        for kind in vars(schedulers).copy().values():
            own = isinstance(kind, type) and kind.__module__ == schedulers.__name__
            if own and "load_state_dict" in vars(kind):
                self._watch(kind, "load_state_dict", self._scheduler)

    def uninstall(self) -> None:
        """Put the originals back."""
        self._patches.undo()
        self.reads.unwrap()
        self._models.clear()

    def facts(self) -> Iterator[tuple[str, Value]]:
        """Names and values of the facts; about a model only if an optimizer trains it."""
        yield from list(self._found.items())
        trained = {id(one) for optimizer in self._optimizers.alive() for one in _held(optimizer)}
        for name, references in list(self._models):
            if any(id(one()) in trained for one in references):
                yield "loaded.model", name
        loads = list(self._matches.values())
        found = [one for one in loads if any(id(ref()) in trained for ref in one.references)]
        if any(one.matched < one.given for one in found):
            worst = min(found, key=lambda one: one.matched / one.given)
            yield "loaded.worst.model", worst.model
            yield "loaded.worst.given", worst.given
            yield "loaded.worst.matched", worst.matched
            yield "loaded.worst.missing", worst.missing
            yield "loaded.worst.near", len(worst.near)
            for given, wanted in worst.near[:1]:
                yield "loaded.worst.near.given", given
                yield "loaded.worst.near.wanted", wanted

    def _watch(self, owner: Any, name: str, note: Callable[..., None], always: bool = False) -> None:
        """Wrap a function; `always`: note its calls after the first steps too."""
        note = self._isolation.guard("resumption", note)
        live, recorder = self._patches.live, self._recorder
        read = self.reads.read if name == "load" else None

        def make(original: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                begun_ns = now_ns()
                result = original(*args, **kwargs)
                if live[0] and (always or recorder.step <= LATEST_STEP):
                    note(result, *args)
                if live[0] and read is not None and args:
                    read(args[0], begun_ns)
                return result

            return call

        self._patches.wrap(owner, name, make)

    def _read(self, result: Any, *_: Any) -> None:
        """A file was loaded: note whether it has the state of an optimizer and of a scheduler."""
        if type(result) is not dict:
            return
        for _, value in entries(result)[:MOST_KEYS]:
            for one in value[:4] if type(value) is list else (value,):
                held = dict(entries(one)[:MOST_KEYS]) if type(one) is dict else {}
                state = held.get("state")
                if "param_groups" in held and type(state) is dict:
                    self._found["checkpoint.optimizer"] = len(state)
                elif "last_epoch" in held and "_step_count" in held:
                    self._found["checkpoint.scheduler"] = plain(held["last_epoch"]) or 0

    def _model(self, result: Any, module: Any, state: Any = None, *_: Any) -> None:
        """A module was loaded. After the first step only loads that left something out are of interest, as
        of a second model that is made of a first one, and loads of what the module has already."""
        unexpected = getattr(result, "unexpected_keys", None)
        early = self._recorder.step <= LATEST_STEP
        if not early:
            self._later(module, state)
        if not early and not (isinstance(unexpected, list) and unexpected):
            return
        references = [weakref.ref(one) for one in _first(module).values()]
        name = type(module).__name__
        if early:
            self._models.append((name, references))
            del self._models[:-MOST_PARAMETERS]
        if isinstance(state, dict) and len(state) and isinstance(unexpected, list):
            matched = len(state) - len(unexpected)
            before = self._matches.get(id(module)) if references else None
            another = before is None or not before.references or before.references[0]() is not references[0]()
            if before is None or another or matched >= before.matched:
                if len(self._matches) >= MOST_MODULES:
                    self._matches.clear()
                near = _near(unexpected, result.missing_keys)
                self._matches[id(module)] = _Match(
                    name, references, len(state), matched, len(result.missing_keys), near
                )

    def _later(self, module: Any, state: Any) -> None:
        """A module was loaded in the course of training: note whether from its own tensors, as a snapshot
        holds them that `state_dict` gave and nobody copied."""
        self._found["loaded.later"] = int(self._found.get("loaded.later", 0)) + 1
        if type(state) is not dict and type(state) is not OrderedDict:
            return
        plain_ones = self._tensors
        pairs: list[tuple[Any, Any]] = [(one, state.get(name)) for name, one in _first(module).items()]
        own = [
            type(one) in plain_ones and type(given) in plain_ones and one.data_ptr() == given.data_ptr()
            for one, given in pairs
        ]
        if len(own) > 1 and all(own):
            self._found["loaded.own.model"] = type(module).__name__
            self._found["loaded.own.step"] = self._recorder.step
            self._found["loaded.own.times"] = int(self._found.get("loaded.own.times", 0)) + 1

    def _optimizer(self, _: Any, optimizer: Any, given: Any = None, *__: Any) -> None:
        if isinstance(given, dict) and not given.get("state"):
            return  # an empty state: Accelerate passes each optimizer its own initial state
        self._found["loaded.optimizer"] = type(optimizer).__name__
        groups = attributes(optimizer).get("param_groups")
        rate = plain(groups[0].get("lr")) if isinstance(groups, list) and groups else None
        if isinstance(rate, float):
            self._found["loaded.optimizer.lr"] = rate

    def _scheduler(self, _: Any, scheduler: Any, *__: Any) -> None:
        self._found["loaded.scheduler"] = type(scheduler).__name__


def _near(unexpected: list[str], missing: list[str]) -> list[tuple[str, str]]:
    """Pairs of names that differ by one part of the path: one that was given, and one that was missing, such
    as `qkv.weight` and `qkv.base.weight`."""
    wanted = set(missing[:MOST_NAMES])
    shorter = {name: longer for longer in missing[:MOST_NAMES] for name in _without_a_part(longer)}
    found = []
    for given in unexpected[:MOST_NAMES]:
        match = shorter.get(given) or next((one for one in _without_a_part(given) if one in wanted), None)
        if match is not None:
            found.append((given, match))
    return found


def _without_a_part(name: str) -> Iterator[str]:
    parts = name.split(".")
    for place in range(len(parts) - 1):  # the last one is the kind of parameter
        yield ".".join(parts[:place] + parts[place + 1 :])


def _first(module: Any) -> dict[str, Any]:
    """A few parameters of a module by their names, without running its code."""
    found: dict[str, Any] = {}
    waiting = [("", module)]
    for path, one in waiting:
        held = attributes(one)
        found |= {path + name: value for name, value in entries(held.get("_parameters")) if value is not None}
        if len(found) >= MOST_PARAMETERS or len(waiting) >= MOST_MODULES:
            break
        children = entries(held.get("_modules"))
        waiting += [(f"{path}{name}.", child) for name, child in children if child is not None]
    return dict(list(found.items())[:MOST_PARAMETERS])


def _held(optimizer: Any) -> Iterator[Any]:
    groups = attributes(optimizer).get("param_groups")
    for group in groups if isinstance(groups, list) else []:
        yield from group.get("params", ())
