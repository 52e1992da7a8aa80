"""Rows of a loss that are chosen by the numbers 0 and 1 in place of a mask. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, is_none, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import LOSSES

_ANSWERS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "and", "or", "logical_and", "logical_or", "invert", "not", "logical_not", "isin", "isnan", "isfinite"})
_MOVED = frozenset({"rows", "element", "part", "from_numpy", "to", "cpu", "cuda", "squeeze", "flatten", "view", "reshape", "contiguous", "detach", "clone", "index_select"})
"""What keeps each of the numbers what it is."""
_INTEGERS = ("int", "long")
_MASKS = ("uint8", "bool")
"""Types that torch takes as masks."""
_MADE = ("astype", "type", "to", "tensor", "as_tensor", "array", "asarray", "LongTensor", "stack")
_SAME_EACH = frozenset({"neg", "log", "exp", "abs", "square", "pow", "clamp", "sqrt", "logsigmoid", "softplus", "float", "mul", "div"})


def chosen_by_numbers(program: Program) -> Iterator[Remark]:
    """What networks give for the rows of a batch is indexed by a yes or no of each row that was made a whole number, and
    added up, or compared with what is indexed alike: rows 0 and 1 are taken again and again."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for value in computation.of("part"):
        made = _numbers(value.args[1]) if len(value.args) == 2 and value.node not in said else None
        if made is None or not _is_added_up(computation, value) or bare(value.args[0]).op in ("torch.nn.Parameter", "weight"):
            continue
        if any(one.op in ("run", "torch.nn.Parameter") for one in origins(value.args[0])):
            said.add(value.node)
            yield Remark(value.node, f"{short(value.node)} takes rows by the numbers 0 and 1 that {short(made.node)} (line {made.line}) makes of yes and no: it is no mask, and takes the first two rows alone")


def _is_added_up(computation: Computation, value: Value) -> bool:
    """Whether all that was taken is added up, or compared with what is taken of another value by the same index."""
    waiting = [value]
    for _ in range(8):
        users = computation.users(waiting.pop()) if waiting else []
        for one in users:
            if one.op in ("sum", "mean") and is_none(one.argument("dim", 1)):
                return True
            if one.op in (*LOSSES, "sub") and any(each is not value and each.op == "part" and len(each.args) == 2 and same(each.args[1], value.args[1]) for each in one.args[:2]):
                return True
        waiting += [one for one in users if one.op in _SAME_EACH and all(number(each) is not None for each in one.args[1:])]
    return False


def _numbers(index: Value) -> Value | None:
    """The operation that made whole numbers of answers, where an index holds them unchanged, one for each row."""
    axes = 0
    for _ in range(40):
        if any(_is_mask(one) for one in (*index.args[1:], *index.named.values())) and index.op in _MADE:
            return None
        if isinstance(index, Many) and index.grown and index.op == "list" and index.parts:
            axes, index = axes + 1, index.parts[0]
        elif index.op in _MOVED and index.args:
            axes, index = axes + _added_by(index), index.args[0]
        elif index.op in ("tensor", "as_tensor", "array", "asarray", "LongTensor") and index.args and isinstance(index.args[0], Many):
            index = index.args[0]
        else:
            break
    if index.op in ("long", "int", "LongTensor") or (index.op in _MADE and any(_is_whole(one) for one in (*index.args[1:], *index.named.values()))):
        one_number = index.op == "int" and isinstance(index.node, ast.Call) and isinstance(index.node.func, ast.Name)
        return index if index.args and index.args[0].op in _ANSWERS and (axes > 0 or not one_number) else None
    if index.op in ("either", "where"):
        chosen = index.args if index.op == "either" else index.args[1:]
        whole = [constant(one) for one in chosen if isinstance(constant(one), int) and not isinstance(constant(one), bool)]
        return index if len(chosen) == 2 and sorted(whole) == [0, 1] and (axes > 0 or index.op == "where") else None
    return index if _is_filled(index) else None


def _added_by(value: Value) -> int:
    """How many axes a value has more than what it is taken of: one for a batch, one less for what a number takes."""
    if value.op == "part":
        return -1 if len(value.args) == 2 and (value.args[1].op == "index" or isinstance(constant(value.args[1]), int)) else 0
    return {"rows": 1, "element": -1}.get(value.op, 0)


def _is_filled(index: Value) -> bool:
    """Whether an index is a tensor of zeros, of whole numbers, with 1 at some places."""
    at, filled = index, False
    while at.op == "set_item" and len(at.args) > 2 and constant(at.args[2]) == 1 and isinstance(constant(at.args[2]), (int, bool)):
        at, filled = at.args[0], True
    return filled and at.op in ("zeros", "zeros_like") and "dtype" in at.named and _is_whole(at.named["dtype"])


def _is_mask(kind: Value) -> bool:
    """Whether a type of numbers is one that torch takes as a mask."""
    return _name(kind).endswith(_MASKS)


def _is_whole(kind: Value) -> bool:
    """Whether a type of numbers is one of whole numbers."""
    return any(word in _name(kind) for word in _INTEGERS) and not _is_mask(kind)


def _name(kind: Value) -> str:
    name = constant(kind) if isinstance(constant(kind), str) else kind.data if kind.op == "@library" else ""
    return str(name).lower()
