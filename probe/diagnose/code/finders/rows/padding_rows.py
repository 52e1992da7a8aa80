"""The row of a table that stands for padding. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    SHAPED,
    Code,
    Many,
    Value,
    bare,
    constant,
    number,
    origins,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.held import contents
from probe.diagnose.code.traits.updates import plain
from probe.diagnose.code.traits.uses import made_from

_TABLE = "torch.nn.Embedding"
_DRAWS = frozenset({
    "normal", "uniform", "xavier_normal_", "xavier_uniform_", "kaiming_normal_", "kaiming_uniform_", "trunc_normal_", "orthogonal_", "xavier_normal",
    "xavier_uniform", "kaiming_normal", "kaiming_uniform",
})
"""Operations that fill a tensor at random, in place."""
_WEIGHTS = ("parameters", "named_parameters", "weight")
_BY_FEATURE = frozenset({
    "div", "mul", "add", "sub", "cat", "normalize", "dropout", "relu", "tanh", "gelu", "silu", "layer_norm", "sqrt", "list", "tuple", "rows", "to", "float",
    "contiguous", "clone", "either",
})
"""Operations that keep the features of a row where they are."""
_FEATURED = ("torch.nn.Linear", "torch.nn.LayerNorm", "torch.nn.BatchNorm1d", "torch.nn.GRUCell", "torch.nn.LSTMCell")
_TELLS = frozenset({
    "eq", "ne", "gt", "lt", "ge", "le", "masked_fill", "where", "@input", "rows", "isin", "not", "invert", "sign", "cumsum", "unknown", "torch.nn.EmbeddingBag",
    "one_hot", "next", "load",
})
"""Operations that may say which positions are padding."""


def padding_row_overwritten(program: Program) -> Iterator[Remark]:
    """An initialization of all weights fills the row of a table for padding, and the rows of all positions are added up."""
    computation = computation_of(program)
    tables = [one for one in computation.of(_TABLE) if number(one.argument("padding_idx", 2)) is not None and "_weight" not in one.named]
    if not tables or _is_set_again(computation):
        return
    for table in tables:
        fill = next((one for one in computation.values if one.op in _DRAWS and _in_place(one) and _fills(computation, one, table)), None)
        total = None if fill is None else next((one for one in computation.of("sum", "mean") if _adds_all(computation, one, table)), None)
        if fill is not None and total is not None:
            row = f"{number(table.argument('padding_idx', 2)):.0f}"
            yield Remark(fill.node, f"{short(fill.node)} also fills row {row} of {short(table.node)} (line {table.line}), which is 0 before and gets no gradient: {short(total.node)} (line {total.line}) adds it for each padded position")
            return


def _is_set_again(computation: Computation) -> bool:
    """Whether a program writes into single rows of weights, or fills rows of padding by itself."""
    if any(True for _ in computation.of("_fill_padding_idx_with_zero")):
        return True
    for value in computation.of("part", "set_item"):
        if bare(value.args[0]).op == "weight" or (value.op == "set_item" and any(one.op in _WEIGHTS for one in origins(value.args[0], ("run",)))):
            return True
    return any(one.op == "padding_idx" for one in computation.values)


def _in_place(value: Value) -> bool:
    """Whether a draw fills what it is given."""
    func = value.node.func if isinstance(value.node, ast.Call) else None
    word = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
    return bool(value.args) and (word.endswith("_") or value.op.startswith(("xavier", "kaiming")))


def _fills(computation: Computation, fill: Value, table: Value) -> bool:
    """Whether a draw certainly fills all of a table, after it was made."""
    target = bare(fill.args[0], "detach", shapes=False)
    while target.op in ("element", "part", "list", "items") and target.args:
        target = target.args[0]
    if target.op not in _WEIGHTS or not target.args:
        return False
    of = plain(target.args[0])
    if of is table:
        return fill.number > table.number and not fill.where.under
    if target.op == "weight" and (whole := _whole(of)) is not None:
        return fill.number > table.number and _holds_for_tables(fill) and any(part is table for part in contents(whole, computation))
    if target.op == "weight":
        applied = next((one for one in computation.of("apply") if len(one.args) > 1 and _runs(one.args[1], fill) and any(part is table for part in contents(plain(one.args[0]), computation))), None)
        return applied is not None and applied.number > table.number and _holds_for_tables(fill)
    return fill.number > table.number and _holds_for_tables(fill) and any(part is table for part in contents(of, computation))


def _whole(module: Value) -> Value | None:
    """The network whose modules a loop goes over, of one of them."""
    while module.op in ("element", "part") and module.args:
        module = module.args[0]
    return plain(module.args[0]) if module.op in ("modules", "named_modules") and module.args else None


def _runs(given: Value, fill: Value) -> bool:
    """Whether a draw is done by a function that is applied to all modules, on the module that it is given."""
    if not isinstance(given, Code) or given.function not in fill.where.functions:
        return False
    asked = plain(bare(fill.args[0], "detach", shapes=False).args[0])
    return asked.op == "@input" and asked.node in [*given.function.args.posonlyargs, *given.function.args.args]


def _holds_for_tables(fill: Value) -> bool:
    """Whether all conditions of a draw are met by the weight of a table."""
    return all(_answer(test) is holds for test, holds in fill.where.under)


def _answer(test: Value) -> bool | None:
    """What a condition on a module or a parameter says of a table and its weight; None where that is unknown."""
    if test.op == "isinstance" and len(test.args) == 2:
        kinds = test.args[1].parts if isinstance(test.args[1], Many) else [test.args[1]]
        names = [str(one.data) for one in kinds if one.op == "@library"]
        if len(names) != len(kinds):
            return None
        return any(name in (_TABLE, "torch.nn.Module") for name in names)
    if test.op in ("gt", "ge", "eq", "ne", "lt", "le") and len(test.args) == 2:
        axes, least = bare(test.args[0]), number(test.args[1])
        known = axes.op in ("dim", "ndim", "ndimension") or (axes.op == "len" and axes.args[0].op in ("shape", "size"))
        if known and least is not None:
            return {"gt": least < 2, "ge": least <= 2, "eq": least == 2, "ne": least != 2, "lt": least > 2, "le": least >= 2}[test.op]
    if test.op in ("in", "not_in") and constant(test.args[0]) in ("weight", "bias"):
        return bool(constant(test.args[0]) == "weight") == (test.op == "in")
    return True if test.op == "requires_grad" or (test.op == "hasattr" and constant(test.args[1]) == "weight") else None


def _adds_all(computation: Computation, total: Value, table: Value) -> bool:
    """Whether a sum over positions has a row of the table for each, whether it is padding or not."""
    over = total.argument("dim", 1)
    if over is None or number(over) not in (1, -2) or not total.args or not _is_zero_with(total.args[0], table):
        return False
    if any(one.op in _TELLS for one in _beside_tables(total.args[0])):
        return False
    used = made_from(computation, total, _BY_FEATURE)
    return any(one.op == "run" and one.args[0].op in _FEATURED and all(_is_wide(each) for each in one.args[1:2]) for one in used)


def _is_wide(value: Value) -> bool:
    """Whether a value has not got its axis of features by an axis that was added to it."""
    return value.op not in ("unsqueeze", "view", "reshape")


def _is_zero_with(value: Value, table: Value, depth: int = 12) -> bool:
    """Whether a value is 0 where the row of a table is: it is the row, or a product with it."""
    if depth == 0 or not value.args:
        return False
    if value.op == "run":
        return value.args[0] is table
    if value.op == "mul":
        return any(_is_zero_with(one, table, depth - 1) for one in value.args)
    return (value.op in ("dropout", "div") or value.op in SHAPED or (value.op in KEPT and value.op not in ("either", "stack"))) and _is_zero_with(value.args[0], table, depth - 1)


def _beside_tables(value: Value) -> Iterator[Value]:
    """What a value is made of, but for what tables are asked for."""
    waiting, seen = [value], {id(value)}
    while waiting:
        at = waiting.pop()
        yield at
        for one in at.args[:1] if at.op == "run" and at.args[0].op == _TABLE else at.made_of():
            if id(one) not in seen:
                seen.add(id(one))
                waiting.append(one)
