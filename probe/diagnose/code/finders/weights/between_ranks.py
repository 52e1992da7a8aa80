"""What ranks give each other: gradients in the steps that need them, and outputs with their gradients. Pure; standard library
only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.backwards import flows, has_gradient
from probe.diagnose.code.traits.held import contents, optimizers, sources
from probe.diagnose.code.traits.updates import backwards, by_count, plain

_FLIPPED = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt"}
_GATHERS = ("all_gather", "all_gather_into_tensor", "_all_gather_base")


def summed_in_the_other_steps(program: Program) -> Iterator[Remark]:
    """The ranks leave their gradients apart in the very passes that an optimizer steps in."""
    computation = computation_of(program)
    for apart in computation.of("no_sync"):
        held = [*apart.where.under, *_choice(computation, apart.node)]
        for step in computation.of("step"):
            tests = [pair for pair in step.where.under if by_count(pair[0])] if step.where.loops == apart.where.loops else []
            meets = next((test for test, holds in tests for other, also in held if _is_one(test, holds, other, also)), None)
            if meets is not None and step.args and step.args[0].op.startswith("torch.optim."):
                yield Remark(apart.node, f"{short(apart.node)} is entered where {short(meets.node)} (line {meets.line}), and {short(step.node)} (line {step.line}) steps in these passes: the gradients of the ranks are averaged in all passes but the ones before a step")
                return


def _choice(computation: Computation, node: ast.AST) -> Iterator[tuple[Value, bool]]:
    """The test of the `a if test else b` that a node is chosen by, and what it says."""
    parent = computation.program.parent.get(node)
    if isinstance(parent, ast.IfExp) and node is not parent.test:
        test, holds = parent.test, node is parent.body
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, holds = test.operand, not holds
        found = [value for target, values in computation.stored.items() if isinstance(test, ast.Name) and target.id == test.id for value in values]
        found += [value for value in computation.values if value.node is test]
        yield from ((value, holds) for value in found)


def _is_one(test: Value, holds: bool, other: Value, also: bool) -> bool:
    """Whether two tests, each true or false, say the same."""
    if holds == also:
        return test is other or same(test, other)
    return _FLIPPED.get(test.op) == other.op and len(test.args) == len(other.args) == 2 and all(same(a, b) for a, b in zip(test.args, other.args, strict=True))


def gathered_without_gradient(program: Program) -> Iterator[Remark]:
    """A loss is computed of what all ranks have gathered, and of nothing else that a network gave: no gradient comes back."""
    computation = computation_of(program)
    trained = {id(part) for one in optimizers(computation) for source in sources(one.argument("params", 0)) or () for part in contents(source.of, computation)}
    for gather in (one for one in computation.values if one.op.rpartition(".")[2] in _GATHERS and "distributed" in one.op and len(one.args) > 1):
        into, given = gather.args[:2]
        runs = [one for one in origins(given) if one.op == "run" and one.args and id(plain(one.args[0])) in trained]
        if not runs or gather.where.no_grad or not has_gradient(given) or any(one.op == "set_item" and one.args[0] is into for one in computation.users(into)):
            continue
        inside = {id(one) for one in runs}
        parts = {id(into), *(id(one) for one in (into.parts if isinstance(into, Many) else []))}
        for start, loss in backwards(computation):
            if start.number > gather.number and any(id(one) in parts for one in origins(loss)) and has_gradient(loss) and not _comes_back(loss, inside):
                yield Remark(gather.node, f"{short(gather.node)} gives numbers without a gradient, and {short(start.node)} (line {start.line}) reaches {short(given.node)} (line {given.line}) by no other way: the network that gives it is not trained by this loss")
                return


def _comes_back(loss: Value, runs: set[int]) -> bool:
    """Whether a gradient of a loss flows to some values."""
    return flows(loss, lambda value: id(value) in runs)
