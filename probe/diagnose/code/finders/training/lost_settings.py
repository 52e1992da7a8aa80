"""Settings that are overwritten by what a schedule makes of them. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Table, Value, alternatives, bare, constant, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short, text_of
from probe.diagnose.code.traits.courses import LARGER, SMALLER, STEPS, number_at

_CURVED = ("div", "exp", "pow", "sqrt")
"""Operations of a schedule: what has none of them may be a number that is only counted."""
_PASSES, _LATE = 1000, 1e7
_SIDES = {"lt": SMALLER, "le": SMALLER, "gt": LARGER, "ge": LARGER}


class _Store(NamedTuple):
    """A name, an attribute or an item of a dict is given a value at `target`."""

    target: ast.expr
    holder: tuple[object, int]
    value: Value
    loops: tuple[ast.AST, ...]
    """The loops around the assignment."""
    under: tuple[tuple[Value, bool], ...]
    number: int


class _Course(NamedTuple):
    """What a setting is: at first (None where that is unknown), after the first step, after many, and what it would then
    be if it had been kept."""

    at_first: float | None
    soon: float
    late: float
    kept: float
    passes: int = _PASSES


def overwritten(program: Program) -> Iterator[Remark]:
    """The limit of a schedule, or what a schedule scales, is given what the schedule makes of it at a step."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    stores = list(_stores(computation))
    for store in stores:
        if store.target in said or not _is_repeated(program, store):
            continue
        others = [one for one in stores if one.holder == store.holder and one.target is not store.target]
        if any(_is_anew(program, one, store) for one in others):
            continue
        for value, old in _readings(program, store, others):
            found = _course(value, old)
            if found is not None:
                said.add(store.target)
                yield Remark(store.target, _said(program, store, found))
                break


def _said(program: Program, store: _Store, found: _Course) -> str:
    name, statement = text_of(store.target), short(program.statement(store.target))
    if found.at_first is None:
        bound = "at most" if found.soon < found.kept else "at least"
        return f"{statement} overwrites what {name} is set to: it is {bound} {found.soon:.4g} from the first step on, and the schedule goes on to {found.kept:.4g}"
    begins = f"{statement} overwrites the {found.at_first:g} that {name} is set to: it is {found.soon:.4g} after the first step"
    if found.soon == found.late:
        return f"{begins} and stays there, where the schedule of {found.at_first:g} gives {found.kept:.4g} after {found.passes}"
    return f"{begins} and {found.late:.4g} after {found.passes}, where the schedule of {found.at_first:g} gives {found.kept:.4g}"


# Where settings are given their values -------------------------------------------------------


def _stores(computation: Computation) -> Iterator[_Store]:
    for one in computation.of("set_attribute", "set_item"):
        if one.op == "set_attribute" and isinstance(one.node, ast.Attribute):
            yield _Store(one.node, (one.data, id(one.args[0])), one.args[1], one.where.loops, one.where.under, one.number)
        elif one.op == "set_item" and isinstance(one.node, ast.Subscript) and isinstance(one.args[0], Table) and isinstance(constant(one.args[1]), str):
            yield _Store(one.node, (constant(one.args[1]), id(one.args[0])), one.args[2], one.where.loops, one.where.under, one.number)
    for target, given in computation.stored.items():
        for value in given:
            scope = computation.program.scope(target)
            yield _Store(target, (target.id, id(scope)), value, tuple(computation.program.loops(target)), (), value.number)


def _is_repeated(program: Program, store: _Store) -> bool:
    """Whether an assignment is run again and again: in a loop, or in a method that counts its calls."""
    function = program.function_of(store.target)
    counts = not isinstance(store.target, ast.Name) and any(one.op == "count" for one in origins(store.value)) and getattr(function, "name", "__init__") != "__init__"
    return bool(store.loops) or counts


def _is_anew(program: Program, one: _Store, store: _Store) -> bool:
    """Whether another assignment gives the setting back in the passes of one, or right before it."""
    if isinstance(store.target, ast.Name):
        return any(loop in program.parents(one.target) for loop in store.loops)
    return any(loop in store.loops for loop in one.loops) or program.function_of(one.target) is program.function_of(store.target)


def _readings(program: Program, store: _Store, others: list[_Store]) -> Iterator[tuple[Value, Value]]:
    """What is stored, and the old value in it, where that is read under the name that is overwritten."""
    name, statement = text_of(store.target), program.statement(store.target)
    olds = [one.value for one in others if one.value is not store.value]
    value = store.value
    for test, holds in store.under:
        sides = _SIDES.get(test.op)
        for place in (0, 1) if sides is not None and len(test.args) == 2 and _reads(test.node, name) else ():
            if test.args[place] is value and sides is not None:
                smaller = (sides is SMALLER) == ((place == 0) == holds)
                old = test.args[1 - place]
                value = Value((SMALLER if smaller else LARGER)[0], (old, value), node=test.node, where=test.where)
                yield value, old
                return
    read_here = isinstance(statement, ast.AugAssign) or _reads(statement, name)
    for one in list(origins(value, STEPS, olds)):
        if one.op in (*SMALLER, *LARGER) and isinstance(one.node, ast.Call) and program.scope(one.node) is program.scope(store.target):
            for node, part in zip(one.node.args, one.args, strict=False):
                if text_of(node) == name and len(one.node.args) == len(one.args):
                    yield value, part
                    return
        read = read_here or (isinstance(store.target, ast.Attribute) and program.class_of(one.node) is program.class_of(store.target) and _reads(one.node, name))
        for part in one.made_of() if read else ():
            if any(part is old for old in olds):
                yield value, part
                return


def _reads(node: ast.AST, name: str) -> bool:
    """Whether an expression or a statement reads what is written as `name`."""
    return any(isinstance(one, (ast.Name, ast.Attribute, ast.Subscript)) and isinstance(one.ctx, ast.Load) and text_of(one) == name for one in ast.walk(node))


# What becomes of them -------------------------------------------------------------------------


def _course(value: Value, old: Value) -> _Course | None:
    """How a setting goes on that is overwritten with a value made of it and of the number of the step; None where it is
    not lost by that."""
    inside = list(origins(value, STEPS, [old]))
    steps = {id(one): one for one in inside if one.op in STEPS}
    if len(steps) != 1 or not any(one.op in _CURVED for one in inside):
        return None
    step = next(iter(steps.values()))
    start = _start(step)
    if start is None:
        return None
    first = next((known for one in alternatives(old) if (known := number(one)) is not None), None)
    settled = None if first is None else number_at(value, _LATE, given={id(old): first})
    if first is None or settled is None or not 0 < first <= 1 or min(abs(settled - first), abs(settled - (1 - first))) > 1e-9:
        return _stuck(value, old, start, first)
    at = first
    soon: float | None = None
    found: _Course | None = None
    for passed in _passes():
        now, kept = (number_at(value, start + passed, given={id(old): one}) for one in (at, first))
        if now is None or kept is None:
            return None
        at, soon = now, now if soon is None else soon
        if found is None and passed >= _PASSES - 1 and _are_apart(at, kept):
            found = _Course(first, soon, at, kept, passed + 1)
    return found if _are_apart(at, settled) else None


def _passes() -> Iterator[int]:
    """The numbers of the passes that are looked at: all of the first thousand, and fewer and fewer of those after."""
    yield from range(_PASSES)
    later = _PASSES
    while later < _LATE:
        yield later
        later += later // 10


def _start(step: Value) -> float | None:
    """The number that steps are counted from; None for what may be another number than that of a step."""
    if step.op == "count":
        return (number(step.args[0]) if step.args else None) or 0.0
    if step.op != "index" or not isinstance(step.node, (ast.For, ast.AsyncFor)) or len(step.args) > 2:
        return None
    first = number(step.args[0]) if step.data == "enumerate" or len(step.args) > 1 else None
    return first or 0.0


def _are_apart(one: float, other: float) -> bool:
    return abs(one - other) > 0.1 * max(abs(one), abs(other)) and abs(one - other) > 1e-6


def _stuck(value: Value, old: Value, start: float, first: float | None) -> _Course | None:
    """The smaller one of the setting and of a share that rises, or the larger one and a share that falls: it stays at what
    it is first."""
    value = bare(value)
    if value.op not in (*SMALLER, *LARGER) or len(value.args) != 2 or not any(one is old for one in value.args):
        return None
    other = value.args[0] if value.args[1] is old else value.args[1]
    found = [number_at(other, start + passed) for passed in (0, 1, 10, 100, 1000, 1e5, 1e7)]
    plain = [one for one in (found if found[0] is not None else found[1:]) if one is not None]
    if len(plain) < len(found) - 1 or not all(0 <= one <= 1 for one in plain) or abs(plain[-1] - plain[0]) < 0.3:
        return None
    rises = value.op in SMALLER
    lost = first is None or (first > 1.1 * plain[0] if rises else 1.1 * first < plain[0])
    return _Course(None, plain[0], plain[0], plain[-1]) if lost and plain == sorted(plain, reverse=not rises) else None
