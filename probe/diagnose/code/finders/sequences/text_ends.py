"""Numbers that are put behind each text. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation
from probe.diagnose.code.computed.value import Many, Value, bare, constant, number

_FARTHEST = 600
"""Values between a list and the two that it was joined of."""


def ends_of(computation: Computation, row: Value) -> Iterator[tuple[Value, ast.AST]]:
    """What was put behind the words of a text, once, and where: `words + [end]`, `[start] + numbers_of(words)`,
    `[*words, end]`, `ids.append(end)`, `cat([ids, tensor([end])])`; before it is filled up."""
    if not isinstance(row, Many) or len(row.parts) < 2:
        return
    first = number(row.parts[0])
    for end, node in _put_behind(computation, row):
        if number(end) != first:  # else it stands around the words, which it does in labels
            yield end, node


def _put_behind(computation: Computation, row: Many) -> Iterator[tuple[Value, ast.AST]]:
    if (end := _joined(computation, row)) is not None:
        yield end, row.node
    yield from _appended(computation, row)
    if isinstance(row.node, ast.List) and len(row.parts) == len(row.node.elts) and any(one.op in ("cat", "append") for one in computation.users(row)):
        last = row.parts[-1]
        if last.op in ("tensor", "as_tensor", "array", "LongTensor") and constant(inner := bare(last)) is not None and not is_moved(row.parts[-2]):
            yield inner, row.node


def is_moved(words: Value) -> bool:
    """Whether words are those from the second on: what is put behind them is no end, and fills the last place."""
    words = bare(words)
    index = words.args[1] if words.op == "part" and len(words.args) == 2 else None
    last = index.parts[-1] if isinstance(index, Many) and index.parts else index
    return last is not None and last.op == "slice" and (number(last.args[0]) or 0) > 0


def _joined(computation: Computation, row: Many, depth: int = 6) -> Value | None:
    """The last number of a list that was joined of others, without what it was filled up with."""
    node = row.node
    if depth == 0 or not row.parts:
        return None
    if isinstance(node, ast.List):
        spread = len(node.elts) > 1 and any(isinstance(one, ast.Starred) for one in node.elts) and not isinstance(node.elts[-1], ast.Starred)
        written = spread and len(row.parts) > 1 and not any(one.op == "append" and one.args[0] is row for one in computation.users(row))
        return row.parts[-1] if written and constant(row.parts[-1]) is not None else None
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
        return None
    right = None if _repeats(node.right) else _operand(computation, row, -1)
    if right is not None and isinstance(right.node, ast.List) and len(right.node.elts) == len(right.parts) == 1 and len(row.parts) > 1:
        return right.parts[0] if any(constant(one) is None for one in row.parts[:-1]) else None
    if right is not None and not _repeats(right.node):
        return _joined(computation, right, depth - 1)
    left = _operand(computation, row, 1)
    return _joined(computation, left, depth - 1) if left is not None else None


def _repeats(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)


def _operand(computation: Computation, row: Many, side: int) -> Many | None:
    """One of the two lists that a list was joined of: the nearest one before it that it begins with (1) or ends with
    (-1)."""
    for value in computation.values[max(0, row.number - _FARTHEST) : row.number][::-1]:
        if isinstance(value, Many) and 0 < len(value.parts) < len(row.parts) and value.op == row.op:
            own = row.parts[: len(value.parts)] if side > 0 else row.parts[-len(value.parts) :]
            if all(one is other for one, other in zip(own, value.parts, strict=True)):
                return value
    return None


def _appended(computation: Computation, row: Many) -> Iterator[tuple[Value, ast.AST]]:
    """What is added to a list once, behind words of an unknown number."""
    for one in computation.users(row):
        if one.op == "append" and one.args[0] is row and one.where.loops == row.where.loops and constant(end := one.args[1]) is not None:
            places = [place for place, part in enumerate(row.parts) if part is end]
            if places and any(constant(part) is None for part in row.parts[: places[-1]]) and all(constant(part) is not None for part in row.parts[places[-1] :]):
                yield end, one.node
    for part in row.parts:
        for literal in computation.users(part) if constant(part) is not None else ():
            around = computation.program.parent.get(literal.node)
            single = isinstance(literal.node, ast.List) and len(literal.node.elts) == 1 and literal.where.loops == row.where.loops
            if single and isinstance(around, ast.AugAssign) and literal is not row and literal.number > row.number and part is row.parts[-1] and constant(row.parts[0]) is None:
                yield part, around
