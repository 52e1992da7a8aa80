"""Recurrent states that lose their gradient from step to step. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import SHAPED, Many, Value, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import names_of, names_set, short
from probe.diagnose.code.traits.backwards import CUTS
from probe.diagnose.code.traits.updates import backwards, plain, runs

_CELLS = frozenset(f"torch.nn.{name}{kind}" for name in ("GRU", "LSTM", "RNN") for kind in ("", "Cell"))
_ENDS = ("detach", "data", "numpy", "detach_")


def cut_at_each_step(program: Program) -> Iterator[Remark]:
    """A loop over the positions of a sequence takes the gradient from the state at each of them, and backward comes after it."""
    computation = computation_of(program)
    found = [(back, {id(one) for one in origins(loss)}, {id(one) for one in origins(loss, CUTS)}) for back, loss in backwards(computation)]
    for run in computation.of("run"):
        loops = run.where.loops
        if len(run.args) < 3 or plain(run.args[0]).op not in _CELLS or not loops or run.where.no_grad or not isinstance(loops[-1], ast.For):
            continue
        loop = loops[-1]
        over_time = any(one.op in ("index", "element", "part") and loop in one.where.loops for one in origins(run.args[1], ("run",)))
        judged = [back for back, whole, reached in found if id(run) in whole and id(run) in reached and loop not in back.where.loops and runs(back) == runs(run)]
        cut = _cut_before(run, loop) or _cut_after(program, [one for one in computation.of(*_ENDS) if one.where.loops == loops and one.where.under == run.where.under and one.number > run.number], run)
        if over_time and judged and cut is not None:
            yield Remark(cut.node, f"{short(cut.node)} takes the gradient from the state at each position of the loop of line {loop.lineno}, and {short(judged[0].node)} (line {judged[0].line}) comes after all of them: nothing before the last position is learned from")
            return


def _states(value: Value) -> list[Value]:
    """The states that a recurrent layer is given."""
    found = value.parts if isinstance(value, Many) else [value]
    for place, one in enumerate(found):
        while one.op in (*SHAPED, "clone") and one.args:
            one = one.args[0]
        found = [*found[:place], one, *found[place + 1 :]]
    return found


def _cut_before(run: Value, loop: ast.AST) -> Value | None:
    """Where the state is cut off as the layer is given it, if the layer's output takes its place."""
    states = _states(run.args[2])
    cut = next((one for one in states if one.op in _ENDS and loop in one.where.loops and one.where.under == run.where.under), None)
    if cut is None or any(one.op not in _ENDS for one in states):
        return None
    return cut if _names_around(loop, run.node) & names_of(cut.node) else None


def _names_around(loop: ast.AST, node: ast.AST) -> set[str]:
    """The names that the statement of a loop around a node gives a value."""
    return {name for one in ast.walk(loop) if isinstance(one, ast.Assign) and node in ast.walk(one) for target in one.targets for name in names_set(target)}


def _cut_after(program: Program, cuts: list[Value], run: Value) -> Value | None:
    """Where the layer's output is cut off and takes the place of the state."""
    given = names_of(run.node)
    for cut in cuts:
        statement = program.statement(cut.node)
        inner = cut.args[0] if cut.args else cut
        while inner.op == "part" and inner.args:
            inner = inner.args[0]
        if inner is run and isinstance(statement, ast.Assign) and names_set(statement) & given and names_set(statement) <= names_of(statement.value):
            return cut
    return None
