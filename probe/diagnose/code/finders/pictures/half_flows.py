"""Flows whose layers all leave the same half of a sample as it is. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, is_none, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import complement_of, sides

FINDERS = Finders()
_Halves = tuple[str, str]
"""What the two halves of a sample are: a half of the first sample as it was ("0" or "1"), or changed ("")."""


def half_never_changed(program: Program) -> Iterator[Remark]:
    """Each layer changes one half of a sample by the other, and it is the same half in all of them."""
    computation = computation_of(program)
    layers = [one for one in computation.of("cat") if _coupled(one) is not None]
    inner = {id(part) for one in layers for part in origins(_before(one) or one)}
    for last in layers:
        if id(last) in inner:
            continue
        first = last
        count = 1
        while (earlier := next((part for part in origins(_before(first) or first) if part is not first and part.op == "cat" and _coupled(part) is not None), None)) is not None and count < 40:
            first, count = earlier, count + 1
        start = _start(first)
        found = None if start is None else _kept(computation, last, start, count)
        if found is not None:
            yield Remark(last.node, f"{short(last.node)} leaves {short(found.node)} as it is, and what each layer leaves is the same half: no layer ever changes it")
            return
    yield from _one_mask(computation)


def _coupled(value: Value) -> tuple[Value, Value] | None:
    """The half of a sample that a layer keeps, and the other one, which it changes by what a network makes of the first."""
    parts = value.args[0].parts if value.args and isinstance(value.args[0], Many) else []
    over = number(value.argument("dim", 1))
    if len(parts) != 2 or over not in (1, -1):
        return None
    for kept, changed in (parts, parts[::-1]):
        if _half(kept) is None or _half(changed) is not None or bare(changed).op not in ("add", "mul", "sub"):
            continue
        runs = [one for one in origins(changed) if one.op == "run"]
        if any(any(part is kept or bare(part) is bare(kept) for part in origins(run)) for run in runs) and any(_half(one) is not None and _whole(one) is _whole(kept) and _half(one) != _half(kept) for one in origins(changed)):
            return kept, changed
    return None


def _half(value: Value) -> int | None:
    """Which half of a sample a value is."""
    if value.op == "either":
        return None
    value = bare(value)
    if value.op != "part" or len(value.args) != 2:
        return None
    on, index = value.args
    if on.op in ("chunk", "split", "tensor_split") and number(index) in (0, 1):
        return int(number(index) or 0)
    cuts = index.parts if isinstance(index, Many) and index.op == "tuple" else []
    last = cuts[1] if len(cuts) == 2 else cuts[-1] if cuts and cuts[0].data is Ellipsis else None
    if last is None or last.op != "slice" or len(last.args) != 3 or not is_none(last.args[2]):
        return None
    begin, end = last.args[:2]
    return 0 if is_none(begin) and not is_none(end) else 1 if is_none(end) and not is_none(begin) else None


def _whole(value: Value) -> Value:
    """The sample that a value is a half of."""
    on = bare(value).args[0]
    return bare(on.args[0]) if on.op in ("chunk", "split", "tensor_split") and on.args else bare(on)


def _before(layer: Value) -> Value | None:
    """The sample that a layer is given."""
    found = _coupled(layer)
    return None if found is None else _whole(found[0])


def _start(layer: Value) -> Value | None:
    """The sample that the first layer is given, without what only turns it."""
    at = _before(layer)
    while at is not None and at.op == "flip" and at.args:
        at = bare(at.args[0])
    return at


def _halves(value: Value, start: Value, given: _Halves, depth: int = 60) -> _Halves | None:
    """What the halves of a sample are; None where that is unknown."""
    if value.op == "either" and value is not start:
        return None
    value = bare(value)
    if value is start:
        return given
    if not depth:
        return None
    if value.op == "flip" and value.args:
        over = value.argument("dim", 1)
        axis = number(over.parts[0] if isinstance(over, Many) and len(over.parts) == 1 else over)
        inner = _halves(value.args[0], start, given, depth - 1) if axis in (1, -1) else None
        return None if inner is None else (inner[1], inner[0])
    parts = value.args[0].parts if value.op == "cat" and value.args and isinstance(value.args[0], Many) else []
    if len(parts) != 2:
        return None
    found = []
    for one in parts:
        half = _half(one)
        if half is None:
            found.append("" if one.op != "either" and bare(one).op in ("add", "mul", "sub") else "?")
            continue
        inner = _halves(_whole(one), start, given, depth - 1)
        found.append("?" if inner is None else inner[half])
    return None if "?" in found else (found[0], found[1])


def _kept(computation: Computation, last: Value, start: Value, count: int) -> Value | None:
    """The half that the last of all layers keeps, if no layer before it has changed it."""
    end = last
    loop = last.where.loops[-1] if last.where.loops else None
    in_loop = count == 1 and any(node is loop for _, node, over in computation.passes if _is_of_layers(over))
    for one in computation.of("flip"):
        if one.args and bare(one.args[0]) is end and one.where.loops == end.where.loops:
            end = one
    if count < 2 and (not in_loop or loop in start.where.loops or not _goes_on(computation, end, loop)):
        return None
    given: _Halves = ("0", "1")
    for _ in range(4 if in_loop else 1):
        found = _halves(end, start, given)
        if found is None:
            return None
        given = found
    kept = _coupled(last)
    return kept[0] if kept is not None and given.count("") == 1 else None


def _goes_on(computation: Computation, end: Value, loop: ast.AST | None) -> bool:
    """Whether a value is what a pass of a loop leaves for the next one."""
    inside = set(ast.walk(loop)) if loop is not None else set()
    names = {target.id for target, given in computation.stored.items() if target in inside and any(one is end for one in given)}
    later = [one for target, given in computation.stored.items() if target in inside and target.id in names for one in given if one.number > end.number]
    return bool(names) and not later


def _is_of_layers(over: Value) -> bool:
    """Whether a loop goes over layers that are made alike."""
    while over.op in ("enumerate", "reversed") and over.args:
        over = over.args[0]
    parts = over.parts if isinstance(over, Many) else list(over.args) if over.op == "torch.nn.ModuleList" else []
    kinds = {getattr(one, "of", None) for one in parts}
    return bool(parts) and (over.data is True or getattr(over, "grown", False)) and None not in kinds


def _one_mask(computation: Computation) -> Iterator[Remark]:
    """Each layer keeps what its mask says, and all layers have one and the same mask."""
    found: list[tuple[Value, Value, Value]] = []
    for value in computation.of("add"):
        for kept, changed in sides(value):
            kept = bare(kept)
            for sample, mask in sides(kept) if kept.op == "mul" else ():
                inside = list(origins(changed, stop=("mul",))) if bare(changed).op == "mul" else []
                if any((rest := complement_of(one)) is not None and bare(rest) is bare(mask) for part in inside for one in part.args) and any(one.op == "exp" for one in origins(changed)) and any(one.op == "run" for one in origins(changed)):
                    found.append((value, bare(sample), bare(mask)))
    ids = {id(value): (value, sample, mask) for value, sample, mask in found}
    chains = [(value, mask, ids[id(sample)][2]) for value, sample, mask in found if id(sample) in ids]
    if len(chains) >= 1 and all(mask is other or same(mask, other) for _, mask, other in chains) and not any(mask.op in ("@input", "either", "unknown", "element", "rand", "randn", "bernoulli") for _, mask, _ in chains):
        value, mask, _ = chains[-1]
        yield Remark(value.node, f"{short(value.node)} leaves what {short(mask.node)} (line {mask.line}) marks as it is, and the mask is the same in all layers: no layer ever changes that part")


@FINDERS.add("whole-division")
def _always_the_first(program: Program) -> Iterator[Remark]:
    """The number of a pass is divided by the number of passes, without the rest: it is 0 in each pass."""
    said: set[int] = set()
    for value in computation_of(program).of("floordiv"):
        counted, by = value.args if len(value.args) == 2 else (value, value)
        if counted.op == "index" and counted.data is None and len(counted.args) == 1 and counted.args[0] is by and value.line not in said:
            said.add(value.line)
            yield Remark(value.node, f"{short(value.node)} is 0 in each pass: the number of a pass stays below that of all passes, which it is divided by")
