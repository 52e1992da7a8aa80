"""Samples that are copied before they are divided. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    Instance,
    Many,
    Value,
    bare,
    constant,
    number,
    origins,
    same,
    takes_all,
)
from probe.diagnose.code.finders.data.splits import is_cut, rows_of
from probe.diagnose.code.finders.rows.cut_in_two import cuts
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import is_call, short
from probe.diagnose.code.traits.basic import without_small

FINDERS = Finders()
_NOISE = ("randn", "randn_like", "normal", "standard_normal", "rand_like", "uniform")
_MIRRORED = ("flip", "fliplr", "flipud", "roll", "rot90", "clamp")


@FINDERS.add("copied-before-the-split")
def _copied_before(program: Program) -> Iterator[Remark]:
    """Samples are copied, and copies of one fall into both parts."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for cut, wholes, pieces in cuts(computation):
        if any(map(_is_by_group, (cut, *pieces))):
            continue
        for one in (each for whole in wholes for each in _rows(_unscaled(whole))):
            copies = one.op == "fit_resample" and one.args[0].op.rpartition(".")[2] in ("RandomOverSampler", "SMOTE", "ADASYN", "BorderlineSMOTE", "SMOTEENN", "SMOTETomek")
            copies = copies or (one.op == "repeat_interleave" and len(one.args) > 1 and constant(one.args[1]) is None)
            copies = copies or (one.op == "cat" and not one.named.get("dim") and len(one.args) == 1 and _holds_twice(one.args[0]) and not is_call(one.node, "hstack"))
            copies = copies or (one.op == "part" and len(one.args) == 2 and _adds_drawn_again(bare(one.args[1])))
            copies = copies or (isinstance(one, Many) and one.grown and (_holds_changed_copy(one.parts) or _holds_drawn_again(one.parts)))
            if copies and one.node not in said and not _is_cut(computation, one) and not (cut.where.loops and one.where.loops):
                said.add(one.node)
                what = f"the list of line {one.line}, to which samples are added with copies of them" if isinstance(one.node, ast.List) else f"what {short(one.node)} (line {one.line}) has copied"
                yield Remark(cut.node, f"{short(cut.node)} divides {what}: copies of one sample fall into both parts")
                break


def _is_by_group(piece: Value) -> bool:
    """Whether rows are chosen by what they are copies of: by a mask made of numbers that are repeated for each copy."""
    if piece.op != "part" or len(piece.args) != 2:
        return False
    asked = [one for one in origins(piece.args[1]) if one.op in ("isin", "in1d") and one.args]
    return any(each.op in ("repeat", "repeat_interleave", "tile") for one in asked for each in origins(one.args[0]))


def _is_cut(computation: Computation, rows: Value) -> bool:
    """Whether rows, or all that are joined to them, are made of a part of a whole already."""
    given = rows.args[0] if rows.op == "cat" and len(rows.args) == 1 else None
    parts = [one for one in given.parts if bare(one).op not in ("ones", "zeros", "full")] if isinstance(given, Many) else []
    return all(_is_one_of_several(computation, one) for one in parts or [rows])


def _rows(whole: Value) -> Iterator[Value]:
    """What the rows of a whole are, also where a data set of the program joins them."""
    for one in rows_of(whole):
        yield one
        if isinstance(inner := bare(one), Instance):
            yield from (each for each in inner.attributes.values() if each.op == "cat")


def _is_one_of_several(computation: Computation, value: Value) -> bool:
    """Whether a value is made of a part of a whole of which another part is used too."""
    if not is_cut(value):
        return False
    pieces = [one for one in origins(value) if one.op == "part" and len(one.args) > 1 and one.args[1].op == "slice"]
    return not pieces or any(
        other.op == "part" and other.args[0] is one.args[0] and other.args[-1].op == "slice" and not same(other.args[-1], one.args[-1])
        for one in pieces for other in computation.users(one.args[0])
    )


def _unscaled(whole: Value) -> Value:
    """Rows before a mean was taken away and a deviation divided by."""
    for _ in range(6):
        inner = bare(whole)
        if inner.op not in ("sub", "div") or len(inner.args) != 2 or without_small(inner.args[1]).op not in ("mean", "std", "min", "max", "sub", "@constant"):
            return whole
        whole = inner.args[0]
    return whole


def _holds_changed_copy(parts: list[Value]) -> bool:
    """Whether a list to which a loop adds gets a sample, and others that are the same one, changed a little."""
    return any(_is_changed_copy(one, bare(other)) or _has_changed_copy(one, other) for one in parts for other in parts if one is not other and bare(one) is not bare(other))


def _holds_drawn_again(parts: list[Value]) -> bool:
    """Whether a list gets the samples of a group, and some drawn from the group once more."""
    for one in parts:
        pool = _drawn_from(one.args[0]) if one.op == "element" and one.args else None
        held = [bare(each) for each in pool.parts] if isinstance(pool, Many) else []
        if pool is not None and any(other is not one and (any(bare(other) is each for each in held) or (other.op == "element" and bare(other.args[0]) is bare(pool))) for other in parts):
            return True
    return False


def _has_changed_copy(sample: Value, of: Value) -> bool:
    """Whether a sample of several things is another one with one of them changed a little, and the rest the same."""
    if not isinstance(sample, Many) or not isinstance(of, Many) or len(sample.parts) != len(of.parts) or len(of.parts) < 2:
        return False
    other = [(one, two) for one, two in zip(sample.parts, of.parts, strict=True) if bare(one) is not bare(two)]
    return len(other) == 1 and _is_changed_copy(other[0][0], bare(other[0][1]))


def _holds_twice(rows: Value) -> bool:
    """Whether the same labels or samples stand several times among what is joined."""
    parts = [bare(one) for one in rows.parts] if isinstance(rows, Many) else []
    return any(one.op != "@constant" and (one is other or _is_changed_copy(one, other) or _is_changed_copy(other, one)) for place, one in enumerate(parts) for other in parts[:place])


def _is_changed_copy(value: Value, of: Value) -> bool:
    """Whether a value is another one, mirrored, shifted or with noise."""
    for _ in range(12):
        value = bare(value)
        if value is of:
            return of.op not in ("@constant", "zeros", "ones", "arange", "linspace")
        if value.op == "add" and len(value.args) == 2 and (start := _between(value)) is not None:
            value = _chosen_of(start)
        elif value.op in ("add", "mul") and len(value.args) == 2:
            noisy = [one for one in value.args if bare(one).op in _NOISE] or [one for one in value.args if any(part.op in _NOISE for part in bare(one).args)]
            value = next((one for one in value.args if len(noisy) == 1 and one is not noisy[0]), value.args[0])
            if len(noisy) != 1:
                return False
        elif value.args and (value.op in _MIRRORED or _swaps_columns(value) or (value.op == "set_item" and _is_column(value.args[1]))):
            value = value.args[0]
        else:
            return False
    return False


def _swaps_columns(value: Value) -> bool:
    """Whether a value is rows with their columns in another order: `pairs[:, [1, 0]]`."""
    index = value.args[1] if value.op == "part" and len(value.args) == 2 else None
    if not isinstance(index, Many) or len(index.parts) != 2 or index.parts[0].op != "slice" or not isinstance(order := bare(index.parts[1]), Many):
        return False
    numbers = [known for one in order.parts if (known := number(one)) is not None]
    return numbers != sorted(numbers) and sorted(numbers) == list(range(len(order.parts)))


def _is_column(index: Value) -> bool:
    """Whether an index is one column of all rows: `[:, 1]`."""
    return isinstance(index, Many) and len(index.parts) == 2 and takes_all(index.parts[0]) and number(index.parts[1]) is not None


def _between(value: Value) -> Value | None:
    """The row that a sum of a row and a drawn share of the way to another one begins at."""
    for start, way in (value.args, value.args[::-1]):
        way = bare(way)
        factors = [bare(one) for one in way.args] if way.op == "mul" and len(way.args) == 2 else []
        steps = [one for one in factors if one.op == "sub" and len(one.args) == 2 and same(bare(one.args[1]), bare(start))]
        if steps and any(one.op in (*_NOISE, "random", "rand", "beta") for one in factors):
            return start
    return None


def _chosen_of(row: Value) -> Value:
    """The rows that one, or those of one class, are taken of."""
    for _ in range(6):
        row = bare(row)
        if row.op not in ("part", "element") or not row.args:
            return row
        row = row.args[0]
    return row


def _adds_drawn_again(rows: Value) -> bool:
    """Whether an order of rows holds all of some, and others drawn from these once more."""
    rows = bare(rows.args[-1]) if rows.op in ("permutation", "sorted", "sort") and rows.args else rows
    given = rows.args[0] if rows.op == "cat" and rows.args else None
    parts = given.parts if isinstance(given, Many) else []
    pools = {id(bare(pool)) for one in parts if (pool := _drawn_from(bare(one))) is not None}
    all_rows = any(bare(one).op in ("arange", "range") for one in parts)
    return any(id(bare(one)) in pools for one in parts) or (all_rows and bool(pools))


def _drawn_from(value: Value) -> Value | None:
    """What a value is drawn from with replacement."""
    if value.op == "choices" and value.args:  # of the standard library: always with replacement
        return value.args[1] if value.args[0].op.endswith("Random") and len(value.args) > 1 else value.args[0]
    if value.op == "choice" and value.args:
        given = value.args[1:] if value.args[0].op.endswith(("default_rng", "RandomState")) else value.args
        again = value.named.get("replace") or (given[2] if len(given) > 2 else None)
        return given[0] if given and (again is None or constant(again) is not False) else None
    if value.op == "part" and len(value.args) == 2 and bare(value.args[1]).op in ("randint", "integers"):
        return value.args[0]
    return None
