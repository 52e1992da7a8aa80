"""Columns that are means of the target: of rows that are held out later, or of the row itself. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    SHAPED,
    Many,
    Value,
    bare,
    constant,
    origins,
    same,
)
from probe.diagnose.code.finders.losses.bootstraps import is_squared
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import LOSSES, losses
from probe.diagnose.code.traits.extents import is_frame

FINDERS = Finders()
_SCALED = ("sub", "div", "part", "rows", "either", "log", "log1p", "column_stack")
_EACH = (
    "log", "log1p", "log10", "log2", "sqrt", "apply", "map", "gt", "ge", "lt", "le", "eq", "mul", "div", "add", "sub", "pow", "clip", "clamp", "qcut", "cut", "pandas.cut",
    "pandas.qcut", "rank", "abs", "round", "exp", "expm1", "where",
)
"""What makes one number of one number."""
_STATISTICS = ("mean", "std", "min", "max", "amax", "amin", "part", "sub")
_ORDERS = ("permutation", "randperm", "shuffle")


@FINDERS.add("target-in-a-feature")
def _encoded(program: Program) -> Iterator[Remark]:
    """A table of means of the target by category is made of all rows, a network is given its entries, and the rows are
    divided after that."""
    computation = computation_of(program)
    for loss in computation.of(*LOSSES):
        if len(loss.args) < 2 or loss.where.no_grad:
            continue
        targets = list(_before(loss.args[1]))
        known = {id(one) for one in targets}
        drawn = {id(one) for one in origins(loss.args[1]) if one.op in _ORDERS}
        for one in origins(loss.args[0]) if drawn else ():
            of = _mean_by_category(one)
            if of is None or not any(id(each) in known for each in _before(of)) or any(id(each) in drawn for each in origins(one)):
                continue
            cut = next(each for each in origins(loss.args[1]) if each.op in _ORDERS)
            yield Remark(one.node, f"{short(one.node)} takes means of {short(of.node)}, the target, over all rows, and line {cut.line} divides them into parts after it")
            return


@FINDERS.add("target-in-a-feature")
def _less_its_own_mean(program: Program) -> Iterator[Remark]:
    """Means of the target by category over all rows are taken away from it, and the rows are divided after that."""
    computation = computation_of(program)
    aimed = {id(one): one for _, loss in losses(computation) for one in origins(loss)}
    for value in computation.of("sub"):
        if id(value) not in aimed or len(value.args) != 2 or value.where.loops or any(one.op in _ORDERS for one in origins(value)):
            continue
        table = next((one for one in origins(value.args[1], stop=("run",)) if (of := _mean_by_category(one)) is not None and bare(of) is bare(value.args[0])), None)
        cut = next((each for one in aimed.values() if one.op == "part" and len(one.args) == 2 and any(part is value for part in _before(one.args[0])) for each in origins(one.args[1]) if each.op in _ORDERS and any(user.op == "part" and user.args[0] is each and user.args[1].op == "slice" for user in computation.users(each))), None) if table is not None else None
        if table is not None and cut is not None:
            yield Remark(table.node, f"{short(table.node)} takes means of {short(value.args[0].node)}, the target, over all rows, and line {cut.line} divides them into parts after it")
            return


def _before(value: Value) -> Iterator[Value]:
    """A value and what it was before its rows were taken, and its numbers shifted and scaled."""
    for _ in range(60):
        yield value
        if not value.args or (value.op not in _SCALED and value.op not in KEPT and value.op not in SHAPED):
            return
        value = value.args[0]


def _mean_by_category(value: Value) -> Value | None:
    """What a value adds up by category."""
    if value.op == "bincount":
        return value.argument("weights", 1)
    if value.op == "numpy.add.at" and len(value.args) == 3:
        return value.args[2] if value.args[2].op != "@constant" else None
    if value.op in ("sum", "mean") and value.args and value.args[0].op == "part" and len(value.args[0].args) > 1 and value.args[0].args[1].op == "eq":
        return value.args[0].args[0]
    return None


@FINDERS.add("target-in-a-feature")
def _mean_of_the_row(program: Program) -> Iterator[Remark]:
    """A network is given the mean of a whole row of values, and asked for one of these values; the rows of the network are divided
    by their place after that."""
    computation = computation_of(program)
    means = [one for one in computation.of("mean", "median", "max", "std") if one.args and not one.where.loops and isinstance(constant(one.argument("dim", 1)), int)]
    for loss in computation.of(*LOSSES) if means else ():
        if len(loss.args) < 2 or loss.where.no_grad:
            continue
        wanted, masks = _one_of(loss.args[1])
        if wanted is None or not masks:
            continue
        run = next((one for one in origins(loss.args[0]) if one.op == "run" and len(one.args) > 1 and not any(each.op == "run" for each in origins(one.args[1]))), None)
        for one in _joined(run.args[1]) if run is not None else ():
            given = next((mean for mean in means if mean is one and bare(mean.args[0]) is wanted), None)
            if given is not None:
                yield Remark(given.node, f"{short(given.node)} takes what the network is asked for into a number that it is given: of all places of a row, also of those that {short(masks[0].node)} (line {masks[0].line}) holds out")
                return


def _one_of(value: Value) -> tuple[Value | None, list[Value]]:
    """The table that a target is one entry of, and the comparisons by which rows were chosen."""
    masks: list[Value] = []
    for _ in range(40):
        value = bare(value)
        if isinstance(value, Many) and len(value.parts) == 1:
            value = value.parts[0]
        elif value.op == "part" and len(value.args) == 2:
            index = value.args[1]
            if isinstance(index, Many) and index.op == "tuple" and len(index.parts) == 2 and all(one.op == "index" for one in index.parts):
                return bare(value.args[0]), masks
            if index.op in ("lt", "le", "gt", "ge"):
                masks.append(index)
            value = value.args[0]
        elif value.op in ("sub", "div") and value.args:
            value = value.args[0]
        else:
            break
    return None, masks


def _joined(value: Value) -> Iterator[Value]:
    """What a network is given, column by column, before rows were taken and scaled."""
    waiting = [value]
    for _ in range(80):
        if not waiting:
            return
        at = bare(waiting.pop())
        yield at
        if isinstance(at, Many):
            waiting += at.parts
        elif at.op in ("cat", "stack", "concatenate", "part", "sub", "div", "rows", "element") and at.args:
            waiting.append(at.args[0])


@FINDERS.add("target-in-a-feature")
def _summed_with_itself(program: Program) -> Iterator[Remark]:
    """A network is given, for each row, the sum of the targets up to and with that of the row."""
    computation = computation_of(program)
    totals = [one for one in computation.of("cumsum") if one.args]
    for loss in computation.of(*LOSSES) if totals else ():
        if len(loss.args) < 2 or loss.where.no_grad:
            continue
        steps = list(_rows_before(loss.args[1]))
        wanted, taken = bare(steps[-1]), {id(one.args[1]) for one in steps if one.op == "part"}
        own = [one for one in totals if _is_of(one.args[0], wanted)]
        given = next((one for one in own if _reaches(loss.args[0], one, wanted, taken)), None)
        if given is not None and wanted.op not in ("@constant", "@input", "unknown"):
            yield Remark(given.node, f"{short(given.node)} adds up {short(wanted.node)} up to each row and with it, and {short(loss.node)} (line {loss.line}) asks the model that is given it for the same row")
            return


def _rows_before(value: Value) -> Iterator[Value]:
    """A value, and what it was before some of its rows were taken by an index."""
    for _ in range(40):
        yield value
        takes = value.op == "part" and len(value.args) == 2 and value.args[1].op not in ("slice", "tuple", "@constant")
        if not value.args or value.op in ("either", "stack") or not (takes or value.op == "rows" or value.op in KEPT or value.op in SHAPED):
            return
        value = value.args[0]


def _is_of(value: Value, wanted: Value) -> bool:
    """Whether a value is another one, or its square, in whatever shape."""
    inner = bare(value)
    return inner is wanted or (inner.op in ("pow", "square") and bool(inner.args) and bare(inner.args[0]) is wanted)


_MOVED = ("roll", "shift", "pad", "insert", "flip", "delete", "diff")


def _reaches(value: Value, total: Value, wanted: Value, taken: set[int]) -> bool:
    """Whether a value is made of a running sum of the same rows, and nothing moves it on or takes the last summand away."""
    waiting, seen = [value], {id(value)}
    while waiting:
        at = waiting.pop()
        if at is total:
            return True
        index = at.args[1] if at.op == "part" and len(at.args) == 2 else None
        if at.op in _MOVED or (at.op == "sub" and any(_is_of(one, wanted) for one in at.args)) or (index is not None and not _keeps_rows(index, taken)):
            continue
        for one in at.made_of():
            if id(one) not in seen and one is not index:
                seen.add(id(one))
                waiting.append(one)
    return False


def _keeps_rows(index: Value, taken: set[int]) -> bool:
    """Whether an index takes the rows that the target has too, or columns alone."""
    if id(index) in taken or index.op == "@constant":
        return True
    if isinstance(index, Many) and index.op == "tuple" and index.parts:
        first = index.parts[0]
        return id(first) in taken or (first.op == "slice" and all(one.op == "@constant" and constant(one) is None for one in first.args) and all(one.op == "@constant" for one in index.parts[1:]))
    return False


@FINDERS.add("target-among-inputs")
def _in_another_form(program: Program) -> Iterator[Remark]:
    """The target is a column that is made of another one, and all columns but the target are inputs: the other one among them."""
    computation = computation_of(program)
    for made in computation.of("set_item"):
        name = constant(made.args[1]) if len(made.args) == 3 else None
        of = _made_of_one(made.args[2]) if isinstance(name, str) else None
        source = constant(of.args[1]) if of is not None else None
        if of is None or not isinstance(source, str) or source == name or not is_frame(_table(made.args[0])) or _table(of.args[0]) is not _table(made.args[0]):
            continue
        own = {id(one) for one in ast.walk(program.parent.get(made.node, made.node))}
        if any(id(one) not in own for one in program.everywhere(ast.Constant) if one.value == source):
            continue
        for _, loss in losses(computation):
            inner = next((one for one in origins(loss) if one.op in LOSSES and len(one.args) > 1), loss)
            if len(inner.args) < 2 or not any(one.op == "part" and constant(one.args[1]) == name for one in origins(inner.args[1])):
                continue
            whole = next((one for one in origins(inner.args[0]) if _is_all_but(one, made)), None)
            if whole is not None:
                yield Remark(whole.node, f"{short(whole.node)} keeps {source!r} among the inputs, and {name!r}, the target, is made of it (line {made.line})")
                return


def _made_of_one(value: Value) -> Value | None:
    """The one column of a table that another one is made of, number by number."""
    found = [one for one in origins(value) if one.op == "part" and len(one.args) == 2 and isinstance(constant(one.args[1]), str)]
    by_number = all(one.op in (*_EACH, *KEPT, "part") or one is found[0] for one in origins(value, stop=("part",)) if one.op not in ("@constant", "@library", "@function", "@class")) if found else False
    return found[0] if len(found) == 1 and by_number else None


def _table(value: Value) -> Value:
    """The table that one was before columns were added and rows left out."""
    while value.args and value.op in ("set_item", "dropna", "copy", "reset_index", "fillna", "sample", "select_dtypes"):
        value = value.args[0]
    return value


def _is_all_but(value: Value, made: Value) -> bool:
    """Whether a value is all columns of a table but those that are named."""
    if not value.args or not any(one is made for one in origins(value.args[0])):
        return False
    if value.op == "drop":
        return "columns" in value.named or constant(value.named.get("dim")) == 1 or constant(value.named.get("axis")) == 1
    index = value.args[1] if value.op == "part" and len(value.args) == 2 else None
    chosen = index.parts[0] if isinstance(index, Many) and index.grown and len(index.parts) == 1 else None
    if chosen is not None and chosen.op == "element":
        return chosen.args[0].op == "columns"
    return index is not None and bare(index).op in ("drop", "difference") and bool(bare(index).args) and bare(index).args[0].op == "columns"


@FINDERS.add("target-among-inputs")
def _column_of_the_input(program: Program) -> Iterator[Remark]:
    """A layer is given all columns of a table, and the target is one of these columns, of the same rows."""
    computation = computation_of(program)
    for _, loss in losses(computation):
        inner = next((one for one in origins(loss) if (one.op in LOSSES or (one.op == "sub" and any(is_squared(user, one) for user in computation.users(one)))) and len(one.args) > 1), loss)
        for output, target in (inner.args[:2], inner.args[1::-1]) if len(inner.args) > 1 else ():
            runs = [one for one in origins(output) if one.op == "run" and len(one.args) > 1]
            first = next((one for one in runs if not any(each.op == "run" for each in origins(one.args[1]))), None)
            if first is None or first.where.no_grad or first.args[0].op != "torch.nn.Linear" or any(one.op == "run" for one in origins(target)):
                continue
            given, asked = _picked(first.args[1]), _picked(target)
            if given[0] is not asked[0] or given[0].op in ("@input", "@constant") or given[2] or len(asked[2]) != 1 or len(given[1]) != len(asked[1]):
                continue
            if all(one is other or same(one, other) or _are_turns(one, other) for one, other in zip(given[1], asked[1], strict=True)):
                yield Remark(inner.node, f"{short(inner.node)} asks for {short(asked[2][0].node)} (line {asked[2][0].line}), a column of what {short(first.node)} (line {first.line}) is given, with all others: the input holds the answer")
                return


def _are_turns(one: Value, other: Value) -> bool:
    """Whether two indices are those that one loader draws, or one loop gives."""
    return one.op == other.op == "index" and one.where.loops == other.where.loops and [id(each) for each in one.args] == [id(each) for each in other.args]


def _picked(value: Value) -> tuple[Value, list[Value], list[Value]]:
    """The table that a value is rows or columns of, as it is or scaled by its statistics: what picks the rows, and what picks columns."""
    rows: list[Value] = []
    columns: list[Value] = []
    for _ in range(40):
        value = bare(value)
        if isinstance(value, Many) and len(value.parts) == 1:
            value = value.parts[0]
        elif value.args and (value.op == "rows" or (value.op in ("sub", "div") and len(value.args) == 2 and bare(value.args[1], "clamp", "add", "max").op in _STATISTICS)):
            value = value.args[0]
        elif value.op == "part" and len(value.args) == 2:
            index = value.args[1]
            if isinstance(index, Many) or constant(index) is not None or (index.op == "slice" and _is_of_one_row(value)):
                columns.append(value)
            else:
                rows.append(index)
            value = value.args[0]
        else:
            break
    return value, rows, columns


def _is_of_one_row(value: Value) -> bool:
    """Whether what a slice is taken of is one row of a table: `row[-1:]`."""
    inner = bare(value.args[0])
    return inner.op == "part" and len(inner.args) == 2 and inner.args[1].op in ("index", "@input")
