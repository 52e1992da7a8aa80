"""Model facts: lists the parameters and modules of the models being trained, and their changes.

Writes python.parameters, python.modules and facts of kind `model`. Runs on the agent's thread, half a
millisecond at a time: the training thread waits for the GIL no longer than that. Calls no code of the job
(`object_access`); for a DTensor, shape and size are those of the whole tensor.

The first walk comes after a few steps, when optimizers exist, then one every `AGAIN_S`. Only new and changed
rows are written: the newest row of a name is valid. Flags are read in the mode of the training steps, not
during an evaluation. If that mode changes or another optimizer leads, one walk comes before it is due: what
was frozen by then may be released soon.
"""

from __future__ import annotations

import math
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from probe.base import clock
from probe.job.instruments.core.object_access import attributes, entries, unwrapped
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.facts.hyperparameters import models_in_frames
from probe.job.instruments.loop.forward import Forward
from probe.job.instruments.loop.optimizers import Optimizers
from probe.job.instruments.modules.module_names import ModuleNames
from probe.recording.journal import Journal
from probe.recording.layout import NULL_BOOLEAN
from probe.recording.tables import BY_NAME

FIRST_STEPS = 2
AGAIN_S, SHARE = 10.0, 1000
"""Minimum seconds between two walks, and minimum pause as a multiple of a walk's duration: a walk holds the
GIL, at most 0.1 % of the time."""
SOON_S, EVALUATION_S = 0.5, 30.0
"""During an evaluation, interval at which a walk is retried, and the longest time to wait for its end."""
MOST_TRIES = 100
"""Walks that are given up because a call had replaced parameters by tensors. Later ones leave these out."""
SLICE_S, SLICES, REST_S = 0.0005, 6, 0.0005
"""Length of a slice, slices per round of the agent, and the break between two slices, without the GIL."""
MOST_ROWS = 5000
"""Maximum rows per table; further parameters are counted in the facts, not listed."""
MOST_BYTES = 12 << 20
"""Maximum size of all rows; then a journal event reports it and nothing more is written."""
BATCH_ROWS = 40
"""Rows in one record of the journal."""
_ROW_BYTES = 200
_TRAINING = ("forward", "backward", "optimizer")
_TRAINING_MODE = [column.name for column in BY_NAME["python.steps"].columns].index("training_mode")

_HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
)
"""Attributes of a module that contain its hooks."""
MANY_HOOKS = 8
_MISSPELT = (
    "require_grad", "require_grads", "requires_grads", "required_grad", "requiresGrad", "requires_gradient",
)
"""Attributes set on a parameter by mistake instead of `requires_grad`: torch does not read them."""
_STEPS_LATELY = 50
"""An optimizer that has not stepped for this many steps does not count as a holder of its parameters."""

Row = dict[str, Any]


class Held(NamedTuple):
    """Optimizer class and group number of a parameter, and the optimizers that step it."""

    optimizer: str
    group: int
    owners: set[int]
    """Ids of the optimizers that step it."""


class ModelFacts:
    """Walks the models; `step` is called once per round of the agent's thread."""

    def __init__(
        self, recorder: Recorder, names: ModuleNames, optimizers: Optimizers, forward: Forward,
        journal: Journal,
    ) -> None:
        self._recorder = recorder
        self._forward = forward
        self._names = names
        self._optimizers = optimizers
        self._journal = journal
        self._walk: Iterator[None] | None = None
        self._next_s = self._early_s = self._took_s = 0.0
        self._mode = NULL_BOOLEAN
        """Mode of the training steps at the last walk."""
        self._leader: weakref.ref[Any] | None = None
        """The leading optimizer at the last walk."""
        self._early = False
        """Whether the walk under way began before its time."""
        self._other_mode_s: float | None = None
        self._whole = False
        self._replaced = False
        """Whether the walk under way met a tensor in the place of a parameter."""
        self._tries = 0
        """Walks that were given up because of that."""
        self._written: dict[tuple[str, str], tuple[Any, ...]] = {}
        self._facts: dict[str, Any] = {}
        self._bytes = 0
        self._torch: Any = None
        self._memory: dict[tuple[int, ...], tuple[str, int]] = {}
        """For one walk: the first parameter at each memory location."""
        self.totals: dict[str, Any] = {}
        """Facts of the largest model by name; empty before the first walk."""

    def step(self) -> None:
        """Continue the current walk, or start one if due."""
        if self._walk is None:
            if not self._is_time():
                return
            self._walk = self._walk_models()
            self._took_s, self._whole = 0.0, False
            self._early = time.monotonic() < self._next_s
        for number in range(SLICES):
            if number:
                time.sleep(REST_S)
            began = time.perf_counter()
            over = all(time.perf_counter() < began + SLICE_S for _ in self._walk)
            self._took_s += time.perf_counter() - began
            if over:
                self._walk = None
                rest_s = max(AGAIN_S, SHARE * self._took_s) if self._whole else SOON_S
                now = time.monotonic()
                self._next_s = now + rest_s
                self._early_s = now + rest_s if self._early else max(self._early_s, now + SOON_S)
                return

    def _is_time(self) -> bool:
        if self._recorder.step < FIRST_STEPS or not self._names.ready:
            return False
        now = time.monotonic()
        changed = self._steps_mode() not in (self._mode, NULL_BOOLEAN)  # NULL: a step that was not timed
        if self._leader is not None and self._optimizers.leader() is not self._leader():
            changed = True
        due = now >= self._next_s or (now >= self._early_s and changed)
        return due and self._bytes < MOST_BYTES and self._in_its_mode()

    def _steps_mode(self) -> int:
        """`training_mode` of the last step."""
        row = self._recorder.last_row
        return NULL_BOOLEAN if row is None else row[_TRAINING_MODE]

    def _in_its_mode(self) -> bool:
        """Whether no evaluation is running: the job is inside a training phase, or nothing else is under way
        and the largest model is in the mode of its last step. The mode alone does not tell: if the step's
        first module is a frozen part, it is in eval mode as the whole model is during an evaluation."""
        mode, roots = self._steps_mode(), self._names.roots()
        if not roots:
            return False
        same = mode == NULL_BOOLEAN or attributes(roots[0]).get("training") in (bool(mode), None)
        if self._recorder.phase in _TRAINING or (same and self._recorder.interval is None):
            self._other_mode_s = None
            return True
        if self._other_mode_s is None:
            self._other_mode_s = time.monotonic()
        return time.monotonic() - self._other_mode_s > EVALUATION_S

    # One walk -------------------------------------------------------------------

    def _walk_models(self) -> Iterator[None]:
        """One walk; yields between pieces of work of some ten microseconds each."""
        self._torch = sys.modules["torch"]
        leader = self._optimizers.leader()
        held: dict[int, Held] = {}
        for _ in self._holders(held):
            yield
        rows: dict[str, list[Row]] = {"python.parameters": [], "python.modules": []}
        largest: dict[str, Any] = {}
        inside: set[int] = set()
        self._memory, self._replaced = {}, False
        for root in self._names.roots():
            if id(root) in inside:
                continue
            totals: dict[str, Any] = {"class": type(unwrapped(root)).__name__}
            for _ in self._root(root, held, rows, totals, inside):
                yield
            if totals.get("parameters", 0) >= largest.get("parameters", 1):
                largest = totals
        if self._replaced and self._tries < MOST_TRIES:
            self._tries += 1
            return  # walk again: `functional_call` had put tensors in the place of parameters
        if self._found_more(held.keys() - inside):
            return  # walk again once their modules have names
        if not self._in_its_mode():
            return  # an evaluation began during the walk: the flags may be from it
        self._whole, mode = True, self._steps_mode()
        self._leader = leader and weakref.ref(leader)
        self._mode = self._mode if mode == NULL_BOOLEAN else mode
        for table, found in rows.items():
            for _ in self._write(table, found):
                yield
        self._note(largest)

    def _found_more(self, missing: set[int]) -> bool:
        """Find the models of parameters that an optimizer has but no known model: models that are never
        called first in a step. Returns whether there are any."""
        roots = self._forward.roots
        found = models_in_frames(self._recorder.thread, self._torch.nn.Module) if missing else []
        fresh = [model for model in found if id(model) not in roots and has_one_of(model, missing)]
        for model in fresh:
            roots[id(model)] = weakref.ref(model)
        return bool(fresh)

    def _holders(self, held: dict[int, Held]) -> Iterator[None]:
        owners = self._owners()
        for optimizer in self._optimizers.alive():
            groups = attributes(optimizer).get("param_groups")
            owner = owners.get(id(optimizer))
            for number, group in enumerate(groups if isinstance(groups, list) else ()):
                for parameter in list(group.get("params", ())):
                    known = held.setdefault(id(parameter), Held(type(optimizer).__name__, number, set()))
                    if owner is not None:
                        known.owners.add(owner)
                    yield

    def _owners(self) -> dict[int, int]:
        """Map the id of each optimizer that stepped lately to the id of its outermost optimizer: one inside
        another (SAM, Lookahead, a framework's wrapper) is a part of it, and shares its parameters."""
        optimizers, step = self._optimizers, self._recorder.step
        alive = optimizers.alive()
        held = {id(one): attributes(one) for one in alive}
        outer = {id(value): id(one) for one in alive for value in held[id(one)].values() if id(value) in held}
        first: dict[int, int] = {}
        owners: dict[int, int] = {}
        for number, one in enumerate(alive):
            last = step if number == 0 else optimizers.others_stepped.get(id(one), step - _STEPS_LATELY)
            if last > step - _STEPS_LATELY:
                groups = id(held[id(one)].get("param_groups"))
                owners[id(one)] = first.setdefault(groups, outer.get(id(one), id(one)))
        return owners

    def _root(
        self, root: Any, held: dict[int, Held], rows: dict[str, list[Row]], totals: dict[str, Any],
        inside: set[int],
    ) -> Iterator[None]:
        """Rows of one model, in the order of `named_modules()` and `named_parameters()`."""
        inner = unwrapped(root)
        prefix = self._names.prefix(inner, first=not rows["python.parameters"])
        seen: set[int] = set()
        waiting: list[tuple[str, Any]] = [("", inner)]
        inside.update((id(root), id(inner)))
        modules, parameters = rows["python.modules"], rows["python.parameters"]
        own: list[Row] = []
        while waiting:
            path, module = waiting.pop()
            if module is None or id(module) in seen:
                continue
            seen.add(id(module))
            inside.add(id(module))
            facts = attributes(module)
            name = f"{prefix}{path}".strip(".")
            row: Row = {
                "module": name, "class": type(module).__name__, "training": _boolean(facts.get("training")),
                "parameters": 0, "trainable": 0, "eps": _number(facts.get("eps")),
                "p": _number(facts.get("p")), "momentum": _number(facts.get("momentum")),
                "estimated": self._estimated(facts.get("_buffers")),
                "hooks": _hooks(facts), "requires_grad": _boolean(facts.get("requires_grad")),
            }
            for key, parameter in entries(facts.get("_parameters")):
                if parameter is not None and id(parameter) not in seen:
                    seen.add(id(parameter))
                    if not isinstance(parameter, self._torch.nn.Parameter):
                        self._replaced = True
                        continue
                    inside.add(id(parameter))
                    described = self._parameter(f"{name}.{key}".strip("."), name, parameter, held)
                    described["place"] = totals["count"] = totals.get("count", -1) + 1
                    _add(row, totals, described)
                    parameters.append(described)
                    yield
            own.append(row)
            children = entries(facts.get("_modules"))
            waiting += [(f"{path}.{key}".strip("."), child) for key, child in reversed(children)]
            yield
        if totals.get("parameters") or len(own) > 1:  # else a loss module called directly
            modules += own

    def _parameter(self, name: str, module: str, parameter: Any, held: dict[int, Held]) -> Row:
        holder = held.get(id(parameter))
        try:
            shape, dtype, needed = self._tensor_facts(parameter)
        except (RuntimeError, TypeError, ValueError):  # of a lazy module, or not a tensor
            return {"param": name, "module": module, "numel": None}
        return {
            "param": name, "module": module, "shape": str(list(shape)), "numel": math.prod(shape),
            "dtype": dtype, "requires_grad": needed,
            "optimizer": holder and holder.optimizer, "param_group": holder and holder.group,
            "optimizers": holder and len(holder.owners),
            "misspelt": next((one for one in _MISSPELT if one in attributes(parameter)), None),
            "same_memory": self._same_memory(name, parameter),
        }

    def _same_memory(self, name: str, parameter: Any) -> str | None:
        """Name of an earlier parameter, another object, with its values at the same memory location."""
        torch = self._torch
        if type(parameter) is not torch.nn.Parameter or parameter.layout is not torch.strided:
            return None
        if not parameter.numel() or parameter.is_meta:
            return None
        storage = parameter.untyped_storage()._cdata  # its address; `data_ptr` may first copy the values
        place = (storage, parameter.storage_offset(), parameter.numel())
        first, known = self._memory.setdefault(place, (name, id(parameter)))
        return None if first == name or known == id(parameter) else first

    def _estimated(self, buffers: Any) -> bool | None:
        """Whether running statistics were ever updated, from torch's count `num_batches_tracked`."""
        count = dict(entries(buffers)).get("num_batches_tracked")
        if count is None or type(count) is not self._torch.Tensor or not count.is_cpu or count.numel() != 1:
            return None
        return int(count) > 0

    def _tensor_facts(self, parameter: Any) -> tuple[tuple[int, ...], str, bool]:
        """Shape, dtype and requires_grad, without running a subclass's code."""
        torch = self._torch
        if type(parameter) is torch.nn.Parameter:
            return tuple(parameter.shape), str(parameter.dtype)[6:], parameter.requires_grad
        with torch._C.DisableTorchFunctionSubclass():
            kind = torch.Tensor
            shape, dtype, needed = (
                getattr(kind, name).__get__(parameter) for name in ("shape", "dtype", "requires_grad")
            )
        return tuple(map(int, shape)), str(dtype)[6:], bool(needed)

    # Writing --------------------------------------------------------------------

    def _write(self, table: str, found: list[Row]) -> Iterator[None]:
        """Write those of the first `MOST_ROWS` rows that differ from the last row of their name."""
        key = "param" if table == "python.parameters" else "module"
        waiting: list[Row] = []
        for row in found[:MOST_ROWS]:
            values = tuple(row.values())
            if self._written.get((table, row[key])) != values:
                self._written[(table, row[key])] = values
                waiting.append(row)
            if len(waiting) >= BATCH_ROWS:
                self._append(table, waiting)
                waiting = []
            yield
        self._append(table, waiting)

    def _append(self, table: str, rows: list[Row]) -> None:
        if rows and self._bytes < MOST_BYTES:
            step, t_ns = self._recorder.counted_step, clock.wall_ns()
            stamped = [{"step": step, "t_ns": t_ns, **row} for row in rows]
            self._bytes += _ROW_BYTES * len(rows)
            self._journal.append({"table": table, "rows": stamped}, bulk=True)
            if self._bytes >= MOST_BYTES:
                self._journal.append({"event": "models change too often to be listed again", "t_ns": t_ns})

    def _note(self, totals: dict[str, Any]) -> None:
        """Write the facts of the largest model if they have changed."""
        count = totals.pop("count", -1) + 1
        if not totals.get("parameters"):
            return
        if count > MOST_ROWS:
            totals["tensors_not_listed"] = count - MOST_ROWS
        dtypes = totals.pop("dtypes", {})
        totals["dtype"] = max(dtypes, key=lambda name: dtypes[name], default=None)
        self.totals = totals
        if totals != self._facts:
            self._facts = totals
            self._journal.append({
                "table": "probe.facts",
                "rows": [fact("model", name, value) for name, value in totals.items()],
            })


def fact(kind: str, name: str, value: Any, shown: Callable[[str], str] = str) -> Row:
    """A row of probe.facts. `shown` redacts the value's text."""
    number = float(value) if isinstance(value, (bool, int, float)) and abs(value) < 1e300 else None
    return {
        "t_ns": clock.wall_ns(), "kind": kind, "name": name, "value": shown(str(value)),
        "number": number,
    }


def _add(row: Row, totals: dict[str, Any], described: Row) -> None:
    """Count a parameter in its module and its model."""
    numel = described["numel"] or 0
    trains = numel if described.get("requires_grad") else 0
    for counted in (row, totals):
        counted["parameters"] = counted.get("parameters", 0) + numel
        counted["trainable"] = counted.get("trainable", 0) + trains
    dtypes = totals.setdefault("dtypes", {})
    if described.get("dtype"):
        dtypes[described["dtype"]] = dtypes.get(described["dtype"], 0) + numel


def has_one_of(model: Any, wanted: set[int]) -> bool:
    """Whether a model has one of these parameters."""
    waiting, seen = [model], set()
    while waiting:
        module = waiting.pop()
        if module is not None and id(module) not in seen:
            seen.add(id(module))
            facts = attributes(module)
            if any(id(parameter) in wanted for _, parameter in entries(facts.get("_parameters"))):
                return True
            waiting += [child for _, child in entries(facts.get("_modules"))]
    return False


def _hooks(facts: dict[str, Any]) -> int:
    """Number of a module's hooks; above `MANY_HOOKS` rounded down to a power of two, so that a number that
    grows with every step changes the row only a few times."""
    count = sum(len(facts[name]) for name in _HOOKS if isinstance(facts.get(name), dict))
    return count if count <= MANY_HOOKS else 1 << (count.bit_length() - 1)


def _boolean(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _number(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and abs(value) < 1e300 else None
