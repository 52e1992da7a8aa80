"""Predictions of many steps that a model makes from its own predictions. Pure; standard library only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short

FINDERS = Finders()
_OWN = re.compile(r"(^|_)(roll_?outs?|simulat\w*|unroll\w*|generate\w*|free_?run\w*|autoregress\w*|trajector\w*)(_|$)", re.I)
"""Names of functions whose paths are meant to be the model's own."""


def each_step_from_the_data(program: Program) -> Iterator[Remark]:
    """A path that a function calls a rollout begins with the first state of the data, and each further state is predicted
    from a state of the data."""
    computation = computation_of(program)
    for path in computation.values:
        if not isinstance(path, Many) or not path.grown or len(path.parts) != 2:
            continue
        if not any(isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)) and _OWN.search(one.name) for one in path.where.functions):
            continue
        first, later = (bare(one) for one in path.parts)
        if later.op != "run" and not any(one.op == "run" for one in origins(later)):
            continue
        start = _step_of(first)
        given = [found for one in origins(later, stop=("part",)) if (found := _step_of(one)) is not None] if start is not None else []
        if start is None or not later.where.no_grad or not later.where.loops or constant(start[1]) != 0:
            continue
        read = next((one for one in given if one[0] is start[0] and one[1].op == "index"), None)
        if read is not None and all(one[0] is start[0] for one in given) and len(later.where.loops) > len(first.where.loops):
            yield Remark(read[2].node, f"each state is predicted from the one of the data ({short(read[2].node)}), and the path that begins with {short(first.node)} (line {first.line}) is never the model's own: its error is that of one step")
            return


def _step_of(value: Value) -> tuple[Value, Value, Value] | None:
    """What a value is one step of, and which: `states[:, t]`, `states[t]`; and the value."""
    if value.op != "part" or len(value.args) != 2:
        return None
    index = value.args[1]
    if isinstance(index, Many):
        named = [one for one in index.parts if one.op != "slice"]
        index = named[0] if len(named) == 1 else index
    return (bare(value.args[0]), index, value) if index.op in ("@constant", "index") else None


@FINDERS.add("answer-given-in-the-evaluation")
def _true_steps_given(program: Program) -> Iterator[Remark]:
    """A decoder that is judged is given, from its second step on, the true values that its answers are compared with."""
    computation = computation_of(program)
    errors = [one for one in computation.of("sub", "mse_loss", "l1_loss", "smooth_l1_loss") if one.where.no_grad and len(one.args) > 1]
    for name, given in computation.stored.items() if errors else ():
        for step in given:
            found = _step_of(step)
            if found is None or not step.where.no_grad or not step.where.loops or step.where.under or found[1].op != "index":
                continue
            loop = step.where.loops[-1]
            first = [one for other, values in computation.stored.items() if other.id == name.id and loop not in program.parents(other) and program.function_of(other) is program.function_of(name) for one in values]
            if loop not in program.parents(name) or not first or any(any(part is found[0] for part in origins(one)) for one in first) or not _is_read_before(loop, name):
                continue
            error = next((one for one in errors for made, true in (one.args[:2], one.args[1::-1]) if bare(true) is found[0] and any(part.op == "run" and loop in part.where.loops for part in origins(made))), None)
            if error is not None:
                yield Remark(step.node, f"{short(step.node)} gives the network the true value of each step before it answers for the next one, and {short(error.node)} (line {error.line}) compares its answers with the same values: in use they are not known")
                return


def _is_read_before(loop: ast.AST, name: ast.Name) -> bool:
    """Whether a call in a loop is given a name that the loop sets after it."""
    calls = [one for one in ast.walk(loop) if isinstance(one, ast.Call) and one.lineno < name.lineno]
    return any(isinstance(part, ast.Name) and part.id == name.id for one in calls for given in one.args for part in ast.walk(given))
