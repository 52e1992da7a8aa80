"""Model facts: parameters and modules of the models that train, as rows, and again what changed of them.

Writes python.parameters, python.modules and facts of kind `model`. Runs on the agent's thread alone, a slice
of half a millisecond at a time: the training thread waits for the GIL no longer than that. Nothing of the
job's is called: modules and optimizers are read from their instances' dictionaries, sizes of tensors
without what a subclass puts around them; of a DTensor both are those of the whole.

The first look is taken once a few steps ended, so that optimizers are there; then one every `AGAIN_S`. Rows
are written for what is new or differs from the last ones: the newest row of a name counts. Flags are read
while the model is in the mode that its steps had, not in the middle of an evaluation.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from probe.base import clock
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
"""Between two looks, at least: a look holds the GIL, and takes at most 0.1 % of the time."""
SOON_S, EVALUATION_S = 0.5, 30.0
"""An evaluation is waited for, looking so often, and so long at most."""
SLICE_S, SLICES, REST_S = 0.0005, 6, 0.0005
"""Longest time at once, how many of them in a round of the agent, and the break between two: others get the
GIL then."""
MOST_ROWS = 5000
"""Rows of each of the two tables; what is beyond is counted in the facts and not listed."""
MOST_BYTES = 12 << 20
"""Text of all rows together; after it nothing is written again, which is said."""
BATCH_ROWS = 40
"""Rows in one record of the journal: what is made and written at once."""
_WRAPPERS = ("DistributedDataParallel", "DataParallel")
_ROW_BYTES = 200
_TRAINING = ("forward", "backward", "optimizer")
_TRAINING_MODE = [column.name for column in BY_NAME["python.steps"].columns].index("training_mode")

Row = dict[str, Any]


class Held(NamedTuple):
    """Who has a parameter: class of the optimizer and number of the group."""

    optimizer: str
    group: int


class ModelFacts:
    """Looks at the models; `step` once a round of the agent's thread."""

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
        self._next_s = self._took_s = 0.0
        self._other_mode_s: float | None = None
        self._whole = False
        self._written: dict[tuple[str, str], tuple[Any, ...]] = {}
        self._facts: dict[str, Any] = {}
        self._bytes = 0
        self._torch: Any = None
        self.totals: dict[str, Any] = {}
        """Of the largest model, by name of the fact; empty before the first look."""

    def step(self) -> None:
        """Go on with the look that was begun, or begin one when it is time."""
        if self._walk is None:
            if not self._is_time():
                return
            self._walk = self._look()
            self._took_s, self._whole = 0.0, False
        for number in range(SLICES):
            if number:
                time.sleep(REST_S)
            began = time.perf_counter()
            over = all(time.perf_counter() < began + SLICE_S for _ in self._walk)
            self._took_s += time.perf_counter() - began
            if over:
                self._walk = None
                rest_s = max(AGAIN_S, SHARE * self._took_s) if self._whole else SOON_S
                self._next_s = time.monotonic() + rest_s
                return

    def _is_time(self) -> bool:
        if self._recorder.step < FIRST_STEPS or not self._names.ready:
            return False
        return time.monotonic() >= self._next_s and self._bytes < MOST_BYTES and self._in_its_mode()

    def _in_its_mode(self) -> bool:
        """Whether the job trains this instant, or the largest model is in the mode that its last step had: no
        evaluation goes on."""
        row, roots = self._recorder.last_row, self._names.roots()
        if not roots:
            return False
        mode = NULL_BOOLEAN if row is None else row[_TRAINING_MODE]
        same = mode == NULL_BOOLEAN or _dictionary(roots[0]).get("training") in (bool(mode), None)
        if same or self._recorder.phase in _TRAINING:
            self._other_mode_s = None
            return True
        if self._other_mode_s is None:
            self._other_mode_s = time.monotonic()
        return time.monotonic() - self._other_mode_s > EVALUATION_S

    # One look -------------------------------------------------------------------

    def _look(self) -> Iterator[None]:
        """Yields between any two pieces of work, each some ten microseconds."""
        self._torch = sys.modules["torch"]
        held: dict[int, Held] = {}
        for _ in self._holders(held):
            yield
        rows: dict[str, list[Row]] = {"python.parameters": [], "python.modules": []}
        largest: dict[str, Any] = {}
        inside: set[int] = set()
        for root in self._names.roots():
            if id(root) in inside:
                continue
            totals: dict[str, Any] = {"class": type(_inner(root)).__name__}
            for _ in self._root(root, held, rows, totals, inside):
                yield
            if totals.get("parameters", 0) >= largest.get("parameters", 1):
                largest = totals
        if self._found_more(held.keys() - inside):
            return  # once more, when their modules have names
        if not self._in_its_mode():
            return  # an evaluation began meanwhile: what was read may be its
        self._whole = True
        for table, found in rows.items():
            for _ in self._write(table, found):
                yield
        self._note(largest)

    def _found_more(self, missing: set[int]) -> bool:
        """Look for the models of the parameters that an optimizer has and no known model does: one that is
        never called first in a step. Whether there are any."""
        roots = self._forward.roots
        found = models_in_frames(self._recorder.thread, self._torch.nn.Module) if missing else []
        fresh = [model for model in found if id(model) not in roots and _has_one_of(model, missing)]
        for model in fresh:
            roots[id(model)] = weakref.ref(model)
        return bool(fresh)

    def _holders(self, held: dict[int, Held]) -> Iterator[None]:
        for optimizer in self._optimizers.alive():
            groups = _dictionary(optimizer).get("param_groups")
            for number, group in enumerate(groups if isinstance(groups, list) else ()):
                for parameter in list(group.get("params", ())):
                    held.setdefault(id(parameter), Held(type(optimizer).__name__, number))
                    yield

    def _root(
        self, root: Any, held: dict[int, Held], rows: dict[str, list[Row]], totals: dict[str, Any],
        inside: set[int],
    ) -> Iterator[None]:
        """Rows of one model, in the order of `named_modules()` and `named_parameters()`."""
        inner = _inner(root)
        prefix = self._prefix(inner, not rows["python.parameters"])
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
            facts = _dictionary(module)
            name = f"{prefix}.{path}".strip(".")
            row: Row = {
                "module": name, "class": type(module).__name__, "training": _boolean(facts.get("training")),
                "parameters": 0, "trainable": 0, "eps": _number(facts.get("eps")),
                "p": _number(facts.get("p")),
            }
            for key, parameter in _items(facts.get("_parameters")):
                if parameter is not None and id(parameter) not in seen:
                    seen.add(id(parameter))
                    inside.add(id(parameter))
                    described = self._parameter(f"{name}.{key}".strip("."), name, parameter, held)
                    described["place"] = totals["count"] = totals.get("count", -1) + 1
                    _add(row, totals, described)
                    parameters.append(described)
                    yield
            own.append(row)
            children = _items(facts.get("_modules"))
            waiting += [(f"{path}.{key}".strip("."), child) for key, child in reversed(children)]
            yield
        if totals.get("parameters") or len(own) > 1:  # a loss is a root, too, when it is called by itself
            modules += own

    def _prefix(self, inner: Any, first: bool) -> str:
        """The names of the first model have none, those of further ones their model's class: as
        python.torch_trace has them."""
        label = type(inner).__name__
        children = _items(_dictionary(inner).get("_modules"))
        paths = (self._names.path(child) for _, child in children if child is not None)
        known = next((path for path in paths if path is not None), None)
        if known is None:
            return "" if first else label
        return label if known.startswith(f"{label}.") else ""

    def _parameter(self, name: str, module: str, parameter: Any, held: dict[int, Held]) -> Row:
        holder = held.get(id(parameter))
        try:
            shape, dtype, needed = self._tensor_facts(parameter)
        except (RuntimeError, TypeError, ValueError):  # not made yet (a lazy module), or no tensor
            return {"param": name, "module": module, "numel": None}
        numel = 1
        for size in shape:
            numel *= size
        return {
            "param": name, "module": module, "shape": str(list(shape)), "numel": numel, "dtype": dtype,
            "requires_grad": needed,
            "optimizer": holder and holder.optimizer, "param_group": holder and holder.group,
        }

    def _tensor_facts(self, parameter: Any) -> tuple[tuple[int, ...], str, bool]:
        """Shape, dtype and whether it needs a gradient, past what a subclass puts around them."""
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
        """Those rows of the first `MOST_ROWS` that are not what was written of their name last."""
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
        """Facts of the largest model, when they are new."""
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
    """A row of probe.facts. `shown` makes the text that may be shown of the value."""
    number = float(value) if isinstance(value, (bool, int, float)) and abs(value) < 1e300 else None
    return {
        "t_ns": clock.wall_ns(), "kind": kind, "name": name, "value": shown(str(value)),
        "number": number,
    }


def _add(row: Row, totals: dict[str, Any], described: Row) -> None:
    """Count a parameter for its module and its model."""
    numel = described["numel"] or 0
    trains = numel if described.get("requires_grad") else 0
    for counted in (row, totals):
        counted["parameters"] = counted.get("parameters", 0) + numel
        counted["trainable"] = counted.get("trainable", 0) + trains
    dtypes = totals.setdefault("dtypes", {})
    if described.get("dtype"):
        dtypes[described["dtype"]] = dtypes.get(described["dtype"], 0) + numel


def _has_one_of(model: Any, wanted: set[int]) -> bool:
    """Whether one of these parameters is in the model."""
    waiting, seen = [model], set()
    while waiting:
        module = waiting.pop()
        if module is not None and id(module) not in seen:
            seen.add(id(module))
            facts = _dictionary(module)
            if any(id(parameter) in wanted for _, parameter in _items(facts.get("_parameters"))):
                return True
            waiting += [child for _, child in _items(facts.get("_modules"))]
    return False


def _inner(root: Any) -> Any:
    """The model itself where it is wrapped for several ranks."""
    if type(root).__name__ in _WRAPPERS:
        return dict(_items(_dictionary(root).get("_modules"))).get("module", root)
    return root


def _dictionary(thing: Any) -> dict[str, Any]:
    """What an instance has, past everything that its class may do when it is asked."""
    try:
        found = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def _items(found: Any) -> list[tuple[str, Any]]:
    """Entries of a dictionary as they are this instant; the training thread may change it."""
    return list(dict.items(found)) if isinstance(found, dict) else []


def _boolean(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _number(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and abs(value) < 1e300 else None
