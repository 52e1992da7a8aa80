"""One table of vectors for the values of several columns. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import is_call, is_method, short

_CODES = ("codes", "factorize", "pandas.factorize", "sklearn.preprocessing.LabelEncoder", "sklearn.preprocessing.OrdinalEncoder")
_SHIFTS = ("cumsum", "itertools.accumulate", "accumulate")
_MIXED = (
    "weight", "mean", "stack", "list", "index_add", "add", "mul", "div", "matmul", "mm", "spmm", "sparse.mm", "torch.sparse.mm", "relu", "leaky_relu", "dropout", "normalize", "sum", "sum_of", "zeros_like",
)
"""Operations that keep the rows of a table where they are."""
_CHOSEN = ("part", "rows", "element", "long", "to", "tensor", "from_numpy", "view", "reshape", "flatten", "unsqueeze", "as_tensor")


def columns_share_rows(program: Program) -> Iterator[Remark]:
    """A table has a row for each value of each of several columns, and is asked with the numbers that the values have in their own
    columns."""
    computation = computation_of(program)
    yield from _shifted_elsewhere(computation)
    any_coded = next(iter(computation.of(*_CODES)), None)
    if any(True for _ in computation.of(*_SHIFTS)):
        return
    for run in computation.of("run"):
        table = run.args[0]
        if table.op not in ("torch.nn.Embedding", "torch.nn.EmbeddingBag") or len(run.args) < 2:
            continue
        rows = table.argument("num_embeddings", 0)
        given = run.args[1]
        if rows is None or not _is_sum(rows) or _is_one_column(given) or any(one.op in ("add", "sub", "set", "mod") for one in origins(given, stop=("len", "shape", "size"))):
            continue
        coded = any_coded or _drawn_columns(given)
        if coded is None:
            continue
        yield Remark(run.node, f"{short(run.node)} has the rows of all columns, {short(rows.node)} (line {table.line}), and nothing is added to the numbers of {short(coded.node)} (line {coded.line}), which begin at 0 in each column: value 3 of each column has one and the same vector")
        return


def _drawn_columns(given: Value) -> Value | None:
    """Columns of numbers that are drawn from 0 on in each of them."""
    for one in origins(given, stop=("len", "shape", "size")):
        if isinstance(one, Many) and (len(one.parts) > 1 or one.grown) and one.op in ("list", "tuple") and one.parts and all(_is_drawn_from_zero(bare(part)) for part in one.parts):
            return bare(one.parts[0])
    return None


def _is_drawn_from_zero(value: Value) -> bool:
    """Whether a value is whole numbers that are drawn between 0 and a limit."""
    if value.op not in ("integers", "randint"):
        return False
    limits = [one for one in value.args if one.op not in ("default_rng", "random.Random", "numpy.random.RandomState") and not isinstance(one, Many)]
    return len(limits) == 1 or (len(limits) > 1 and number(limits[0]) == 0)


# Numbers of two kinds that one table has rows for ------------------------------------------


def _shifted_elsewhere(computation: Computation) -> Iterator[Remark]:
    """A table has the rows of two kinds of things, one behind the other. The numbers of the second kind are moved behind the first
    where they ask it in one place, and not in another."""
    said: set[int] = set()
    for taken in computation.of("part", "run"):
        table = _table_of(taken)
        index = taken.args[1] if table is not None and len(taken.args) == 2 else None
        if table is None or index is None or taken.line in said:
            continue
        plain = set(map(id, _rows_of(index)))
        for moved in computation.of("add"):
            if len(moved.args) != 2 or moved.line == taken.line or not any(id(one) in plain and not _is_number(one) for one in moved.args):
                continue
            by = next((one for one in moved.args if id(one) not in plain), None)
            if by is None or not _is_a_size(table, by) or not any(_table_of(one) is table and len(one.args) == 2 and any(part is moved for part in origins(one.args[1])) for one in computation.of("part", "run")):
                continue
            said.add(taken.line)
            yield Remark(taken.node, f"{short(taken.node)} takes rows of a table by {short(index.node)}, and {short(moved.node)} (line {moved.line}) moves these numbers by {short(by.node)} before they ask it: here they are rows of the other kind")
            return


def _is_number(value: Value) -> bool:
    return number(value) is not None


def _is_a_size(table: Value, by: Value) -> bool:
    """Whether a table has more rows than a number, by a sum that it is a term of."""
    rows = table.argument("num_embeddings", 0)
    if rows is None or not isinstance(rows.node, ast.BinOp) or not isinstance(rows.node.op, ast.Add):
        return False
    terms = {ast.unparse(one).rpartition(".")[2] for one in ast.walk(rows.node) if isinstance(one, ast.Name | ast.Attribute)}
    known, least = number(rows), number(by)
    return (known is not None and least is not None and 1 < least < known) or (known is None and ast.unparse(by.node).rpartition(".")[2] in terms)


def _table_of(taken: Value) -> Value | None:
    """The table of vectors whose rows a value takes, also after a network has mixed them row by row; None where it has been cut."""
    at = taken.args[0] if taken.args else taken
    waiting, seen = [at], {id(at)}
    for _ in range(60):
        if not waiting:
            return None
        at = waiting.pop()
        if at.op == "torch.nn.Embedding":
            return at
        inner = [one for one in at.made_of() if id(one) not in seen] if at.op in _MIXED else []
        seen |= set(map(id, inner))
        waiting += inner
    return None


def _rows_of(index: Value) -> list[Value]:
    """Numbers of rows, and all that they are a choice of."""
    found = [index]
    while index.args and (index.op in _CHOSEN):
        index = index.args[0]
        found.append(index)
    return found


def _is_sum(rows: Value) -> bool:
    """Whether a number of rows is the sum of a list of sizes."""
    rows = bare(rows)
    if rows.op == "add" and number(rows.args[1]) is not None and not is_call(rows.node, "sum"):
        rows = bare(rows.args[0])
    return is_call(rows.node, "sum") or is_method(rows.node, "sum")


def _is_one_column(given: Value) -> bool:
    """Whether one column is taken out of several."""
    given = bare(given)
    return given.op == "part" and len(given.args) == 2 and isinstance(given.args[1], Many) and given.args[1].op == "tuple"
