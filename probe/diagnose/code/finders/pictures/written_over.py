"""Places of one array that should exchange what they hold, and read what was just written. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, is_none, number, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import sides
from probe.diagnose.code.traits.extents import at_least

_Key = tuple[int, int, float]
"""A place in an array: along which axis it is counted, in an index of how many parts, and its number."""
_Form = dict[_Key | int, float]
"""A sum: of what places held at first, of other values (by their number), and of 1 (as -1), each with its factor."""


def written_over(program: Program) -> Iterator[Remark]:
    """One of two places of an array is set, and then the other one to what it makes of the first, which has changed."""
    computation = computation_of(program)
    yield from _labels_in_turn(computation)
    blocks: dict[tuple[object, ...], list[Value]] = {}
    for one in computation.of("set_item"):
        if len(one.args) == 3:
            where = one.where
            blocks.setdefault((id(_root(one.args[0])), where.functions, where.loops, tuple((id(test), holds) for test, holds in where.under)), []).append(one)
    said: set[int] = set()
    for block in blocks.values():
        for remark in _of_block(block) if len(block) > 1 else ():
            if remark.node.lineno not in said:  # type: ignore[attr-defined]
                said.add(remark.node.lineno)  # type: ignore[attr-defined]
                yield remark


def _root(value: Value) -> Value:
    """An array before its places are set."""
    while value.op == "set_item" and value.args:
        value = value.args[0]
    return value


def _of_block(block: list[Value]) -> Iterator[Remark]:
    """What the assignments of one block to one array read of what they have just set."""
    root = _root(block[0])
    held: list[tuple[int, _Key, _Form, Value]] = []
    atoms: list[Value] = []
    seen: set[int] = set()
    for one in block:
        key = _key(one.args[1])
        if key is None or id(one.node) in seen:
            return
        seen.add(id(one.node))
        given = one.args[2]
        form = _form(given, one.number, root, held, atoms)
        before = [(at, past) for _, at, _, past in held if at != key and at[:2] == key[:2]]
        if form is None:
            return
        moved = [place for place, factor in form.items() if not isinstance(place, int)]
        unchanged = len(form) == 1 and len(moved) == 1 and form[moved[0]] == 1
        if before and unchanged and given.op == "part" and moved[0] == key and _is_stale(given, one, root, held):
            yield Remark(one.node, f"{short(given.node)} (line {given.line}) is no copy: line {before[-1][1].line} has written over it, and this place gets back what it held")
        elif before and unchanged and not _is_a_copy(given):
            reads = next((past for at, past in before if past.number < given.number and _reads(given, root, at)), None)
            if reads is not None:
                yield Remark(one.node, f"{short(given.node)} reads {short(reads.node)}, which line {reads.line} has set before: what it gives is {'what this place' if moved[0] == key else 'what another place'} held at first")
        held.append((one.number, key, form, one))


def _is_a_copy(value: Value) -> bool:
    """Whether a value is a part of an array, or its copy, as it is."""
    while value.op in ("copy", "clone", "float", "int", "astype", "to", "deepcopy", "array", "item") and value.args:
        value = value.args[0]
    return value.op == "part"


def _is_stale(given: Value, at: Value, root: Value, held: list[tuple[int, _Key, _Form, Value]]) -> bool:
    """Whether a part of an array that is no copy shows what was written after it was taken."""
    key = _key(given.args[1]) if len(given.args) == 2 else None
    view = key is not None and (key[1] > 1 or at_least(root) >= 2)
    return view and _root(given.args[0]) is root and any(given.number < number_of < at.number and place == key for number_of, place, _, _ in held)


def _reads(value: Value, root: Value, key: _Key, depth: int = 8) -> bool:
    """Whether an expression reads a place of an array."""
    if value.op == "part" and len(value.args) == 2 and _root(value.args[0]) is root:
        return _key(value.args[1]) == key
    return bool(depth) and any(_reads(one, root, key, depth - 1) for one in value.args)


def _key(index: Value) -> _Key | None:
    """The one place that an index takes, if it is known."""
    if not isinstance(index, Many):
        known = number(index)
        return None if known is None or known != int(known) else (0, 1, known)
    if index.op != "tuple":
        return None
    whole = [(one.op == "@constant" and one.data is Ellipsis) or (one.op == "slice" and len(one.args) == 3 and all(is_none(end) for end in one.args)) for one in index.parts]
    known_at = [(place, number(one)) for place, one in enumerate(index.parts) if not whole[place]]
    if len(known_at) != 1 or known_at[0][1] is None:
        return None
    return known_at[0][0], len(index.parts), known_at[0][1]


def _form(value: Value, time: int, root: Value, held: list[tuple[int, _Key, _Form, Value]], atoms: list[Value], depth: int = 10) -> _Form | None:
    """A value as a sum of what the places of an array held at first; `time` is when it is read."""
    known = number(value)
    if known is not None:
        return {-1: known} if known else {}
    if not depth:
        return None
    if value.op == "part" and len(value.args) == 2 and _root(value.args[0]) is root:
        key = _key(value.args[1])
        if key is None:
            return None
        taken = time if key[1] > 1 or at_least(root) >= 2 else value.number
        found = [form for at, place, form, _ in held if place == key and at < taken]
        return found[-1] if found else {key: 1.0}

    def inner(one: Value) -> _Form | None:
        return _form(one, value.number, root, held, atoms, depth - 1)

    if value.op in ("add", "sub") and len(value.args) == 2:
        left, right = inner(value.args[0]), inner(value.args[1])
        return None if left is None or right is None else _sum(left, right, 1.0 if value.op == "add" else -1.0)
    if value.op == "neg":
        only = inner(value.args[0])
        return None if only is None else _sum({}, only, -1.0)
    if value.op in ("mul", "div", "floordiv") and len(value.args) == 2:
        for one, other in sides(value)[: 2 if value.op == "mul" else 1]:
            by = number(other)
            if by and (scaled := inner(one)) is not None:
                return _sum({}, scaled, by if value.op == "mul" else 1 / by)
    if value.op in ("copy", "clone", "float", "int", "astype", "to", "deepcopy", "array", "item") and value.args:
        return inner(value.args[0])
    place = next((at for at, one in enumerate(atoms) if same(bare(one), bare(value))), len(atoms))
    if place == len(atoms):
        atoms.append(value)
    return {place: 1.0}


def _sum(one: _Form, other: _Form, factor: float) -> _Form:
    found = dict(one)
    for place, by in other.items():
        found[place] = found.get(place, 0.0) + factor * by
    return {place: by for place, by in found.items() if abs(by) > 1e-9}


# Labels ---------------------------------------------------------------------------


def _labels_in_turn(computation: Computation) -> Iterator[Remark]:
    """All of one label become another, and then all of that one the first: also those that were made just before."""
    said: set[int] = set()
    for second in computation.of("set_item", "where", "masked_fill"):
        found = _replaced(second)
        at = None if found is None or second.line in said else found[0]
        for _ in range(8):
            first = None if at is None else _replaced(bare(at))
            if first is None or found is None or at is None:
                break
            if _equal(first[1], found[2]) and _equal(first[2], found[1]) and not _equal(first[1], first[2]):
                before = bare(at)
                if any(user.op not in ("eq", "set_item", "where", "masked_fill", "full_like", "to", "long", "append", "tuple") for user in computation.users(before)):
                    break
                said.add(second.line)
                yield Remark(second.node, f"{short(second.node)} turns {short(found[1].node)} into {short(found[2].node)} where line {before.line} has turned {short(first[1].node)} into {short(first[2].node)} before: all of both become {short(found[2].node)}")
                break
            at = first[0]


def _replaced(value: Value) -> tuple[Value, Value, Value] | None:
    """What a value was before all of one label in it became another, that label, and what it became."""
    if (value.op == "set_item" and len(value.args) == 3) or (value.op == "masked_fill" and len(value.args) == 3):
        on, mask, new = value.args
    elif value.op == "where" and len(value.args) == 3:
        mask, new, on = value.args
    else:
        return None
    mask, new = bare(mask), bare(new)
    if new.op == "full_like" and len(new.args) > 1:
        new = new.args[1]
    for old, label in sides(mask) if mask.op == "eq" else ():
        if old is on or bare(old) is bare(on):
            return on, label, new
    return None


def _equal(one: Value, other: Value) -> bool:
    known = number(one), number(other)
    return known[0] == known[1] if known[0] is not None and known[1] is not None else one is other or (bare(one).op == "part" and same(bare(one), bare(other)))
