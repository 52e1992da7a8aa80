"""Returns of several rewards, and the value that follows them. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import is_binary, is_name, last_word, short
from probe.diagnose.code.traits.arithmetic import product, sides

FINDERS = Finders()
_SUMMED = ("sum", "sum_of", "dot", "matmul", "einsum", "inner")


@FINDERS.add("one-discount-for-several-steps")
def _discounted_once(program: Program) -> Iterator[Remark]:
    """Rewards are added up with rising powers of a discount, and the value of the state after them is discounted once."""
    computation = computation_of(program)
    said: set[int] = set()
    for value in computation.of("add"):
        for rewards, follower in sides(value):
            if value.line in said:
                break
            worth = product(bare(follower))
            if worth.below or not any(one.op == "run" for one in origins(follower)) or any(one.op == "pow" for one in origins(follower, stop=("run",))):
                continue
            for power in _powers(rewards):
                if sum(_is_one(one, power.args[0]) for one in worth.above) == 1:
                    said.add(value.line)
                    yield Remark(value.node, f"{short(value.node)} discounts {short(follower.node)} by {short(power.node.left if isinstance(power.node, ast.BinOp) else power.args[0].node)} once, and what it is added to holds the rewards of several steps, discounted by {short(power.node)} (line {power.line})")
                    break
            else:
                folded = _folded(program, value, rewards)
                if folded is not None and sum(last_word(one) == last_word(folded) for one in ast.walk(follower.node) if isinstance(one, (ast.Name, ast.Attribute))) == 1:
                    said.add(value.line)
                    yield Remark(value.node, f"{short(value.node)} discounts {short(follower.node)} by {short(folded)} once, and what it is added to holds the rewards of several steps (line {folded.lineno})")


def _folded(program: Program, value: Value, rewards: Value) -> ast.expr | None:
    """The discount of a sum of rewards that begins with 0 and is made from its end on: `total = reward + discount * total`."""
    rewards = _kept(rewards)
    node = rewards.node
    if rewards.op != "add" or not any(number(one) == 0 for one in rewards.args) or not is_binary(node, ast.Add) or all(one in value.where.loops for one in rewards.where.loops):
        return None
    statement = program.statement(node)
    total = statement.targets[0].id if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name) else None
    for one in (node.left, node.right):
        if total is not None and is_binary(one, ast.Mult):
            for discount, rest in ((one.left, one.right), (one.right, one.left)):
                if is_name(rest, total) and last_word(discount):
                    return discount
    return None


def _is_one(value: Value, discount: Value) -> bool:
    """Whether a factor is a discount."""
    return value is discount or same(bare(value), bare(discount)) or (number(value) is not None and number(value) == number(discount))


def _powers(rewards: Value) -> Iterator[Value]:
    """The powers of a discount, of an exponent that differs from reward to reward, that a sum of rewards is made of."""
    rewards = _kept(rewards)
    added = rewards.op == "add" and isinstance(rewards.node, ast.AugAssign)
    if rewards.op not in _SUMMED and not added:
        return
    terms = rewards.args[1:] if added else rewards.args
    for term in terms:
        for one in origins(term, stop=("run",)):
            if one.op == "pow" and len(one.args) == 2 and number(one.args[1]) is None and constant(one.args[0]) != 2 and bare(one.args[0]).op in ("@constant", "@input", "part", "@library", "either"):
                yield one


def _kept(value: Value) -> Value:
    """A value before it was put into a tensor, a list of rows, or a row of a batch."""
    for _ in range(12):
        value = bare(value)
        if isinstance(value, Many) and len(value.parts) == 1:
            value = value.parts[0]
        else:
            break
    return value
