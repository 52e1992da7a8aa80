"""Returns that are made of advantages before there are any. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import KEPT, SHAPED, Value, bare
from probe.diagnose.code.finders.losses.bootstraps import backups
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short

_BLOCKS = ("zeros", "empty", "zeros_like", "empty_like", "new_zeros")
_READ = frozenset({"part", "either", "flip", "tuple", "list"}) | KEPT | SHAPED
_ONLY_READ = frozenset({
    "add", "sub", "mul", "div", "mean", "sum", "std", "var", "print", "len", "shape", "size", "part", "either", "flip", "zeros_like", "tuple", "list", "dict", "max",
    "min", "neg", "pow", "text", "set_attribute", "element", "append", "clamp", "gt", "lt",
}) | KEPT | SHAPED


def returns_before_advantages(program: Program) -> Iterator[Remark]:
    """The values of the steps are added to a block of zeros that nothing has been put into by then, and an error of one step is
    computed with the same values."""
    computation = computation_of(program)
    judged: dict[int, Value] = {}
    for found in backups(computation):
        taken = [user.args[1] for user in computation.users(found.whole) if user.op == "sub" and len(user.args) == 2 and user.args[0] is found.whole]
        judged |= {id(kept): found.whole for read in (found.future, *found.others, *taken) for kept in _kept(read)}
    for value in computation.of("add") if judged else ():
        for one, other in (value.args, value.args[::-1]) if len(value.args) == 2 else ():
            block, values = bare(one), _block(other)
            if block.op not in _BLOCKS or values is block or id(values) not in judged or _is_filled(computation, block, value.number):
                continue
            if isinstance(value.node, ast.AugAssign) or not any(user.op != "set_item" for user in computation.users(value)):
                continue
            yield Remark(value.node, f"{short(value.node)} adds the values to {short(one.node)} while it holds the zeros of line {block.line}: nothing was put into it before, and the errors of the steps ({short(judged[id(values)].node)}, line {judged[id(values)].line}) are in no return")
            return


def _block(value: Value) -> Value:
    """The block that a value is, whole, also after it was written into."""
    value = bare(value)
    while value.args and (value.op == "set_item" or (value.op == "part" and value.args[1].op == "slice")):
        value = bare(value.args[0])
    return value


def _kept(future: Value) -> Iterator[Value]:
    """The blocks that the value of what follows is read from."""
    waiting, seen = [future], {id(future)}
    while waiting and len(seen) < 40:
        at = waiting.pop()
        if at.op in _BLOCKS:
            yield at
        for one in at.args if at.op == "either" else at.args[:1] if at.op in ("part", "set_item", "mul") or at.op in KEPT or at.op in SHAPED else ():
            if id(one) not in seen:
                seen.add(id(one))
                waiting.append(one)


def _is_filled(computation: Computation, block: Value, before: int) -> bool:
    """Whether something may have written into a block before."""
    waiting, seen = [block], {id(block)}
    while waiting:
        at = waiting.pop()
        for user in computation.users(at):
            if user.number >= before or id(user) in seen:
                continue
            seen.add(id(user))
            in_place = isinstance(user.node, ast.Call) and isinstance(user.node.func, ast.Attribute) and user.node.func.attr.endswith("_")
            if in_place or user.op not in _ONLY_READ or isinstance(user.node, ast.AugAssign):
                return True
            if user.op in _READ:
                waiting.append(user)
    return False
