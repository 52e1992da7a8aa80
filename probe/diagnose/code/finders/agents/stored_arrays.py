"""Arrays that are written anew in each step, and stored as they are. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Instance, Many, Table, Value, bare, number, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short

_MADE = ("zeros", "empty", "ones", "full", "zeros_like", "empty_like", "ones_like", "full_like", "new_zeros", "new_empty")
_SHARED = frozenset({
    "from_numpy", "as_tensor", "asarray", "view", "reshape", "unsqueeze", "squeeze", "detach", "data", "set_item", "either", "flatten", "ravel", "expand",
})
"""Operations whose result is the same memory."""
_VIEWS = _SHARED | {"part", "element", "rows"}
_CHANGES = ("copy", "fill", "zero", "mul", "add", "sub", "div", "clamp", "lerp", "normal", "uniform")
_TAKEN_OUT = ("pop", "popleft", "clear", "popitem", "remove")


def stored_by_reference(program: Program) -> Iterator[Remark]:
    """An array is made once before a loop, written into in each pass, and put into a list in each pass without a copy."""
    computation = computation_of(program)
    written = list(_written(computation))
    for added in computation.of("append") if written else ():
        store, entry = added.args[0], added.args[-1]
        if not isinstance(store, Many) or any(one.op in _TAKEN_OUT and not _is_bound(one, store) for one in computation.users(store)):
            continue
        for kept in _inside(entry):
            made = _memory(kept, _SHARED)
            if made is None or (made is kept and not _is_name(added.node)):
                continue
            loops = [one for one in added.where.loops if one not in store.where.loops and one not in made.where.loops]
            if not loops or _made_again(computation, made, loops[0]):
                continue
            wrote = next((one for base, one in written if base is made and loops[0] in one.where.loops), None)
            if wrote is not None:
                yield Remark(added.node, f"{short(added.node)} keeps the array of line {made.line} itself, and {short(wrote.node)} (line {wrote.line}) writes into it in each pass: all entries are one array, with what the last pass has left in it")
                return


def _is_bound(taken: Value, store: Value) -> bool:
    """Whether a store only gives up its oldest entry, where it has become too long."""
    long = any(test.op in ("gt", "ge") and true and any(one.op == "len" and one.args[0] is store for one in test.args[:1]) for test, true in taken.where.under)
    return long and (taken.op == "popleft" or (taken.op == "pop" and len(taken.args) > 1 and number(taken.args[1]) == 0))


def _is_name(node: ast.AST) -> bool:
    """Whether a call stores what a name or an attribute stands for."""
    return isinstance(node, ast.Call) and bool(node.args) and isinstance(node.args[-1], (ast.Name, ast.Attribute, ast.Tuple, ast.Dict, ast.Call))


def _inside(entry: Value, depth: int = 3) -> Iterator[Value]:
    """The values that an entry is, or holds as they are."""
    yield entry
    found = entry.made_of() if isinstance(entry, (Many, Table)) else entry.attributes.values() if isinstance(entry, Instance) else ()
    for one in found if depth else ():
        yield from _inside(one, depth - 1)


def _memory(value: Value, through: frozenset[str]) -> Value | None:
    """The array, made by a program, whose memory a value is."""
    while value.args and (value.op in through or _in_place(value)):
        if value.op in ("as_tensor", "asarray", "reshape") and (value.named or (len(value.args) > 1 and value.op != "reshape")):
            return None  # another type or order is a copy
        if value.op == "either" and len({id(_memory(one, through)) for one in value.args}) > 1:
            return None
        value = value.args[0]
    return value if value.op in _MADE else None


def _in_place(value: Value) -> bool:
    """Whether a value is what a method has changed in place."""
    return isinstance(value.node, ast.Call) and isinstance(value.node.func, ast.Attribute) and value.node.func.attr.endswith("_") and value.op in _CHANGES


def _written(computation: Computation) -> Iterator[tuple[Value, Value]]:
    """The arrays that something writes into, each with what does."""
    for one in computation.of("set_item", *_CHANGES):
        made = _memory(one.args[0], _VIEWS) if one.args and (one.op == "set_item" or _in_place(one)) else None
        if made is not None:
            yield made, one


def _made_again(computation: Computation, made: Value, loop: ast.AST) -> bool:
    """Whether a loop gives the names or attributes of an array another one."""
    names = {target.id for target, given in computation.stored.items() if any(one is made for one in given)}
    attributes = {one.data for one in computation.of("set_attribute") if len(one.args) > 1 and one.args[1] is made}
    if any(one.data in attributes and loop in one.where.loops and _memory(one.args[1], _SHARED) is not made for one in computation.of("set_attribute") if len(one.args) > 1):
        return True
    return any(
        target.id in names and loop in value.where.loops and _memory(value, _SHARED) is not made for target, given in computation.stored.items() for value in given
    )


# A state and the one that follows it ------------------------------------------------------


class Kept(NamedTuple):
    """An entry that a pass of a loop stores: `value` in the place `to`, and where the program writes it."""

    value: Value
    to: tuple[int, int]
    at: Value


def stored_as_its_successor(program: Program) -> Iterator[Remark]:
    """A pass of a loop stores a state and the one after it, and both are the one array that the step has written into by then."""
    computation = computation_of(program)
    written: list[tuple[Value, Value]] = []
    for one in computation.of("set_item", *_CHANGES):
        changes = one.op == "set_item" or _in_place(one) or isinstance(one.node, ast.AugAssign)
        made = _memory(one.args[0], _VIEWS) if one.args and changes and len(one.where.functions) > 1 else None
        if made is not None:
            written.append((made, one))
    by_loop: dict[ast.AST, list[Kept]] = {}
    for kept in _kept(computation) if written else ():
        by_loop.setdefault(kept.at.where.loops[-1], []).append(kept)
    for loop, entries in by_loop.items():
        held = [(one, *_taken_from(one)) for one in entries]
        for place, (second, made, taken) in enumerate(held):
            first = next(((one, at) for one, other, at in held[:place] if other is made and one.to != second.to), None)
            if made is None or first is None or loop in made.where.loops or _made_again(computation, made, loop):
                continue
            wrote = next((one for base, one in written if base is made and loop in one.where.loops and one.number < min(first[1], taken)), None)
            if wrote is not None:
                yield Remark(second.at.node, f"{short(second.at.node)} stores the array of line {made.line}, and so does {short(first[0].at.node)} (line {first[0].at.line}): {short(wrote.node)} (line {wrote.line}) writes the next state into it before: each stored state equals the one after it")
                return


_COPIES = ("copy", "clone", "tensor", "float", "astype", "array")


def _taken_from(kept: Kept) -> tuple[Value | None, int]:
    """The array whose numbers an entry has, and when they were taken: at its first copy, or where it is stored."""
    value, taken = kept.value, kept.at.number
    while value.args and (value.op in _COPIES or value.op in ("as_tensor", "from_numpy", "to", "asarray")):
        taken = value.number if value.op in _COPIES else taken
        value = value.args[0]
    return _memory(value, _SHARED), taken


def _kept(computation: Computation) -> Iterator[Kept]:
    """What is appended to lists, also as a part of a tuple, or written into a place of an array, within a loop."""
    for added in computation.of("append"):
        entry = added.args[-1]
        parts = entry.parts if isinstance(entry, Many) and not entry.grown else [entry]
        if added.where.loops:
            yield from (Kept(one, (id(added.args[0]), number), added) for number, one in enumerate(parts))
    for one in computation.of("set_item"):
        if one.where.loops and len(one.args) == 3 and one.args[1].op not in ("slice", "tuple", "@constant") and _memory(one.args[0], _SHARED) is not None:
            yield Kept(one.args[2], (id(_memory(one.args[0], _SHARED)), 0), one)


# Places that nothing was put into ---------------------------------------------------------


def drawn_from_the_unfilled(program: Program) -> Iterator[Remark]:
    """Numbers are drawn below the size that arrays were made with, and take rows of arrays that are filled place by place."""
    computation = computation_of(program)
    filled = {id(made): made for made, index in _filled_by_place(computation) if index.op not in _WHOLE}
    if not filled:
        return
    for draw in computation.of("randint", "integers", "choice", "sample", "random_integers"):
        size = _below(draw)
        if size is None or any(test.where.functions == draw.where.functions for test, _ in draw.where.under) or _is_asked_about(computation, size):
            continue
        for taken in computation.of("part", "index_select", "take"):
            made = _memory(taken.args[0], _SHARED) if taken.args else None
            if made is None or id(made) not in filled or len(taken.args) < 2 or bare(taken.args[-1]) is not bare(draw) or not _is_length(made, size):
                continue
            yield Remark(draw.node, f"{short(draw.node)} draws from all {short(size.node)} places of the arrays that line {made.line} makes, also from those that nothing was put into yet")
            return


_WHOLE = ("slice", "index", "tuple", "arange", "lt", "gt", "eq", "ne", "le", "ge", "invert", "randint", "permutation", "element")


def _filled_by_place(computation: Computation) -> Iterator[tuple[Value, Value]]:
    """The arrays that a function of the program writes one place of, each with the place."""
    for one in computation.of("set_item"):
        made = _memory(one.args[0], _SHARED) if one.args else None
        if made is not None and one.where.functions and one.where.functions != made.where.functions and made.op in ("zeros", "empty", "full"):
            yield made, one.args[1]


def _below(draw: Value) -> Value | None:
    """n of a draw of whole numbers from 0 to n, each as often as the others."""
    args = list(draw.args)
    if not isinstance(draw.node, ast.Call) or "p" in draw.named:
        return None
    name = ast.unparse(draw.node.func).rpartition(".")[2]
    if name == "choice" or name == "sample":
        listed = next((one for one in args if one.op in ("range", "arange") and len(one.args) == 1), None)
        return listed.args[0] if listed is not None else args[0] if name == "choice" and args and args[0].op in ("@constant", "@input") else None
    if name == "integers" and args and args[0].op.endswith(("default_rng", "Generator", "RandomState")):
        args = args[1:]
    if "high" in draw.named:
        return draw.named["high"]
    numbers = [one for one in args if not isinstance(one, Many)]
    if len(numbers) > 1 and number(numbers[0]) == 0:
        return numbers[1]
    return numbers[0] if len(numbers) == 1 or (name == "randint" and len(args) == 2 and isinstance(args[1], Many)) else None


def _is_length(made: Value, size: Value) -> bool:
    """Whether an array was made with a number of rows."""
    shape = made.args[0] if made.args else made.named.get("size") or made.named.get("shape")
    rows = shape.parts[0] if isinstance(shape, Many) and shape.parts else shape
    return rows is not None and (rows is size or (number(rows) is not None and number(rows) == number(size)) or (rows.op != "@constant" and same(rows, size)))


def _is_asked_about(computation: Computation, size: Value) -> bool:
    """Whether a program compares anything with the size: it may wait until the store is full."""
    return any(one is size or (number(one) is not None and number(one) == number(size)) for test in computation.of("lt", "gt", "le", "ge", "eq", "ne") for one in test.args)
