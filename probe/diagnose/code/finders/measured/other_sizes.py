"""Sums over one part of the data that are divided by the size of another one. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    Instance,
    Many,
    Table,
    Value,
    alternatives,
    bare,
    constant,
    number,
    origins,
    same,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.tallies import Tally, divisions, over_of, tally_of

FINDERS = Finders()
_LOADER = "torch.utils.data.DataLoader"
_SIZES = ("size", "shape")


@FINDERS.add("average-by-wrong-count")
def _size_of_another_part(program: Program) -> Iterator[Remark]:
    """A loop adds up something of the batches of one loader or part of the rows, and the sum is divided by the length of
    another one, which another loop goes over."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    homes: list[Value] | None = None
    for value, tally, by in divisions(computation, program):
        counted = _counted(by)
        if counted is None or value.node in said or tally.turns < 1 or tally.step.op == "@constant":
            continue
        read = _read(computation, tally)
        if not read:
            continue
        homes = _all_read(computation) if homes is None else homes
        if not any(one is counted for one in homes):
            continue
        made = [_made_of(one) for one in read]
        mine = {id(part) for parts in made for part in parts}
        behind = _made_of(counted)
        if id(counted) in mine or any(id(one) in {id(part) for part in behind} for one in read) or _as_long(counted, read):
            continue
        said.add(value.node)
        yield Remark(value.node, f"{short(tally.target)} adds up what the loop of line {getattr(tally.loop, 'lineno', 0)} computes of {short(read[0].node)} (line {read[0].line}), and {short(by.node)} is the size of another part of the data")


def _counted(by: Value) -> Value | None:
    """What a number is the length of: a loader, its data set, or rows."""
    by = bare(by)
    while by.op == "max" and len(by.args) == 2 and number(by.args[1]) == 1:
        by = bare(by.args[0])
    if by.op == "len" or (by.op == "size" and len(by.args) == 2 and number(by.args[1]) == 0):
        of = by.args[0]
    elif by.op == "part" and by.args[0].op == "shape" and number(by.args[1]) == 0:
        of = by.args[0].args[0]
    else:
        return None
    return _home(of)


def _home(value: Value) -> Value | None:
    """A data set or rows, without what only changes their type or place; a loader as the data set that it reads."""
    while value.args and not isinstance(value, (Many, Instance)) and value.op in KEPT and value.op not in ("either", "stack", "list", "tuple"):
        value = value.args[0]
    if value.op == "dataset" and value.args and value.args[0].op == _LOADER:
        value = value.args[0]
    if value.op == _LOADER:
        data = value.argument("dataset", 0)
        return None if data is None or value.argument("sampler", 3) is not None or value.named.get("batch_sampler") is not None else _home(data)
    return None if value.op in ("either", "@constant", "unknown", "range", "enumerate", "count") or value.where.loops else value


def _read(computation: Computation, tally: Tally) -> list[Value]:
    """The data sets and rows whose batches a loop adds up; nothing where one of them is not known."""
    over = over_of(computation, tally)
    if over is None:
        return []
    found: dict[int, Value] = {}
    loaders = [one for one in (over.args if over.op == "zip" else (over,)) if one.op == _LOADER]
    if not loaders:
        found = {id(home): home for home in _homes_of(tally.step, tally.loop)}
    for one in over.args if over.op == "zip" else (over,):
        if one.op == _LOADER:
            home = _home(one)
            if home is None:
                return []
            found[id(home)] = home
        elif any(len(list(alternatives(each))) > 1 for each in origins(one, stop=("len",))):
            return []
    for one in origins(over):
        if one.op in ("len", *_SIZES) and one.args and (home := _home(one.args[0])) is not None:
            found[id(home)] = home
    return list(found.values())


def _homes_of(step: Value, loop: ast.AST) -> Iterator[Value]:
    """The data sets and rows, from before a loop, of which something that it computes takes a part in each turn."""
    for one in origins(step):
        home: Value | None = None
        if one.op == "part" and len(one.args) == 2 and loop in one.where.loops and loop not in one.args[0].where.loops and constant(one.args[1]) is None:
            home = _home(one.args[0])
        if home is not None and home.op not in ("shape", "max", "min", "sort", "topk") and not isinstance(home, Table):
            yield home


def _all_read(computation: Computation) -> list[Value]:
    """All data sets and rows that loops of the program go over in batches, and the arrays that they are made of directly."""
    found: list[Value] = []
    for _, _, over in computation.passes:
        for one in (over, *over.args):
            if one.op == _LOADER and (home := _home(one)) is not None:
                found += [home, *_direct(home)]
        for one in origins(over, stop=("len", *_SIZES)):
            if one.op in ("len", *_SIZES) and one.args and (home := _home(one.args[0])) is not None:
                found.append(home)
    return found


def _direct(data: Value) -> Iterator[Value]:
    """The arrays that a data set is made of."""
    for one in data.attributes.values() if isinstance(data, Instance) else data.args:
        home = _home(one)
        if home is not None and number(home) is None and not isinstance(home, (Table, Instance)):
            yield home


def _made_of(value: Value) -> list[Value]:
    """A value, and all that it and the objects in it are made of."""
    waiting, found, seen = [value], [value], {id(value)}
    while waiting:
        at = waiting.pop()
        for one in at.attributes.values() if isinstance(at, Instance) else at.made_of():
            if id(one) not in seen:
                seen.add(id(one))
                found.append(one)
                waiting.append(one)
    return found


def _as_long(counted: Value, read: list[Value]) -> bool:
    """Whether the rows that are counted are taken by the same places as those that are read: the targets beside the inputs."""
    if counted.op != "part" or len(counted.args) != 2:
        return False
    base, place = counted.args
    for one in (part for home in read for part in (home, *_direct(home))):
        if one.op != "part" or len(one.args) != 2:
            continue
        if one.args[1] is place or (one.args[1].op == place.op == "slice" and all(a is b or same(a, b) for a, b in zip(one.args[1].args, place.args, strict=True))):
            return True
        first, second = constant(one.args[1]), constant(place)
        if one.args[0] is base and first is not None and second is not None and not base.op.endswith("random_split"):
            return first == second or not base.op.endswith("train_test_split") or (isinstance(first, int) and isinstance(second, int) and (first - second) % 2 == 0)
    return False


@FINDERS.add("average-by-wrong-count")
def _added_in_each_epoch(program: Program) -> Iterator[Remark]:
    """A share of what each fold's network gives is added up in each epoch of the fold, where it is one share of as many as there are folds."""
    computation = computation_of(program)
    learned = {loop for one in computation.of("backward") for loop in one.where.loops}
    for value in computation.of("add"):
        tally = tally_of(program, value)
        step = tally.step if tally is not None else value
        if tally is None or tally.turns < 2 or step.op != "div" or len(step.args) != 2 or value.where.loops[-1] not in learned:
            continue
        inner, outer = value.where.loops[-1], value.where.loops[-2]
        epochs, folds = (next((over for _, node, over in computation.passes if node is loop), None) for loop in (inner, outer))
        if epochs is None or folds is None or epochs.op != "range" or (number(epochs.args[-1]) or 0) < 2 or same(epochs.args[-1], step.args[1]):
            continue
        counted = any(same(one, step.args[1]) for one in origins(folds) if one.op in ("@constant", "len") and number(one) not in (0, 1))
        found = list(origins(step.args[0]))
        if counted and any(one.op == "run" and one.where.no_grad for one in found) and not any(one.op in ("rows", "element", "index") and one.where.loops[-1:] == (inner,) for one in found):
            yield Remark(value.node, f"{short(tally.target)} gets a share in each turn of the loop of line {getattr(inner, 'lineno', 0)}, and {short(step.args[1].node)} counts those of the loop of line {getattr(outer, 'lineno', 0)}: the sum is as many times too large as the inner loop has turns")
            return
