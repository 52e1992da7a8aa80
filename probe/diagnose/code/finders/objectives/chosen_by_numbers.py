"""Rows of a loss that are chosen by the numbers 0 and 1 in place of a mask. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, constant, is_none, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short

_ANSWERS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "and", "or", "logical_and", "logical_or", "invert", "not", "logical_not", "isin", "isnan", "isfinite"})
_MOVED = frozenset({"rows", "element", "part", "from_numpy", "to", "cpu", "cuda", "squeeze", "flatten", "view", "reshape", "contiguous", "detach", "clone", "index_select"})
"""What keeps each of the numbers what it is."""
_INTEGERS = ("int", "long", "uint8")


def chosen_by_numbers(program: Program) -> Iterator[Remark]:
    """What networks give for the rows of a batch is indexed by a yes or no of each row that was made a whole number, and
    added up: rows 0 and 1 are taken again and again."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for value in computation.of("part"):
        made = _numbers(value.args[1]) if len(value.args) == 2 and value.node not in said else None
        if made is None or not any(one.op in ("sum", "mean") and is_none(one.argument("dim", 1)) for one in computation.users(value)):
            continue
        if any(one.op in ("run", "torch.nn.Parameter") for one in origins(value.args[0])):
            said.add(value.node)
            yield Remark(value.node, f"{short(value.node)} takes rows by the numbers 0 and 1 that {short(made.node)} (line {made.line}) makes of yes and no: it is no mask, and takes the first two rows alone")


def _numbers(index: Value) -> Value | None:
    """The operation that made whole numbers of answers, where an index holds them unchanged."""
    while index.args and index.op in _MOVED:
        if index.op == "to" and any(str(one.data).endswith("bool") for one in index.args[1:]):
            return None
        index = index.args[0]
    whole = index.op in ("long", "int") or (index.op in ("astype", "type", "tensor", "as_tensor") and any(_is_whole(one) for one in (*index.args[1:], *index.named.values())))
    return index if whole and index.args and index.args[0].op in _ANSWERS else None


def _is_whole(kind: Value) -> bool:
    """Whether a type of numbers is one of whole numbers."""
    name = constant(kind) if isinstance(constant(kind), str) else str(kind.data)
    return any(word in str(name).lower() for word in _INTEGERS)
