"""One table of vectors for the values of several columns. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import is_call, is_method, short

_CODES = ("codes", "factorize", "pandas.factorize", "sklearn.preprocessing.LabelEncoder", "sklearn.preprocessing.OrdinalEncoder")
_SHIFTS = ("cumsum", "itertools.accumulate", "accumulate")


def columns_share_rows(program: Program) -> Iterator[Remark]:
    """A table has a row for each value of each of several columns, and is asked with the numbers that the values have in their own
    columns."""
    computation = computation_of(program)
    coded = next(iter(computation.of(*_CODES)), None)
    if coded is None or any(True for _ in computation.of(*_SHIFTS)):
        return
    for run in computation.of("run"):
        table = run.args[0]
        if table.op not in ("torch.nn.Embedding", "torch.nn.EmbeddingBag") or len(run.args) < 2:
            continue
        rows = table.argument("num_embeddings", 0)
        given = run.args[1]
        if rows is None or not _is_sum(rows) or _is_one_column(given) or any(one.op in ("add", "sub", "set", "mod") for one in origins(given, stop=("len", "shape", "size"))):
            continue
        yield Remark(run.node, f"{short(run.node)} has the rows of all columns, {short(rows.node)} (line {table.line}), and nothing is added to the numbers of {short(coded.node)} (line {coded.line}), which begin at 0 in each column: value 3 of each column has one and the same vector")
        return


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
