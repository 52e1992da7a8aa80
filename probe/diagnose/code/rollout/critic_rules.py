"""Critics that learn from a loss that is not theirs. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.loop.loss_rules import CUT
from probe.diagnose.code.program import Program
from probe.diagnose.code.rollout.targets import with_graph
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    is_binary,
    is_method,
    is_name,
    last_word,
    operands,
    own,
    returned,
    short,
    text_of,
)

RULES = Rules("rollout")


@RULES.add("error-shared-with-the-critic", "the policy's loss moves the values to where that loss falls, away from the returns", "take it out of the graph for the policy: log_prob * error.detach()")
def _shared_error(program: Program) -> Iterator[Remark]:
    """One difference of returns and values that is squared for the critic and weights the log probabilities too."""
    flow = flow_of(program)
    for scope in program.scopes():
        yield from _of_scope(program, flow, scope)


def _of_scope(program: Program, flow: Flow, scope: ast.AST) -> Iterator[Remark]:
    squared = {text_of(one.func.value) for one in own(scope, ast.Call) if is_method(one, "pow", "square")}
    squared |= {text_of(one.left) for one in own(scope, ast.BinOp) if is_binary(one, ast.Pow) and flow.number(one.right) == 2}
    for node in own(scope, ast.BinOp):
        for one, other in operands(node) if is_binary(node, ast.Mult) else ():
            given = flow.given(other) if is_name(other) and other.id in squared else None
            if given is None or not re.match(r"log_?p", last_word(one), re.I):
                continue
            local = program.local_function(given.value) if isinstance(given.value, ast.Call) and given.place is not None else None
            results = [value for value in returned(local) if isinstance(value, ast.Tuple)] if local is not None else []
            value = results[0].elts[given.place or 0] if len(results) == 1 and len(results[0].elts) > (given.place or 0) else given.whole
            error = with_graph(flow, value) if value is not None else None
            cut = error is None or any(is_method(part, *CUT) for part in flow.origins(error.right)) or program.without_gradient(error)
            if error is not None and not cut and _of_values(flow, error.right):
                yield Remark(node, f"{short(node)} is differentiated by the values too: {short(other)} is {short(error)}, with the critic's graph")


def _of_values(flow: Flow, node: ast.AST) -> bool:
    """Whether an expression is what a module gives, alone or as one of several results."""
    given = flow.given(node) if is_name(node) else None
    made = given.value if given is not None else flow.value(node)
    return isinstance(made, ast.Call) and (flow.program.family(made.func) == "module" or "value" in text_of(made.func).lower() or is_name(made.func, "net", "model", "agent"))
