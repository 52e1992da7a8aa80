"""Recurrent states that a network keeps for itself from one batch to the next. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Instance, constant, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import Function, short

FINDERS = Finders()
_RECURRENT = ("torch.nn.LSTM", "torch.nn.GRU", "torch.nn.RNN", "torch.nn.LSTMCell", "torch.nn.GRUCell", "torch.nn.RNNCell")


@FINDERS.add("state-of-other-samples")
def _kept_by_itself(program: Program) -> Iterator[Remark]:
    """A network begins each batch of a loader that shuffles with the state that it has kept of the one before."""
    computation = computation_of(program)
    for kept in computation.of("set_attribute"):
        of = kept.args[0]
        if not isinstance(of, Instance) or of.of is None or not program.is_module_class(of.of) or not isinstance(kept.node, ast.Attribute):
            continue
        given = [one for one in origins(kept.args[1]) if one.op == "run" and len(one.args) > 1 and one.args[0].op in _RECURRENT]
        loader = next((one.named["loader"] for run in given for one in origins(run.args[1]) if one.op == "rows" and "loader" in one.named), None)
        if loader is None or constant(loader.argument("shuffle", 2)) is not True or not _is_read(program, of.of, kept.node) or _is_begun(program, kept.node):
            continue
        yield Remark(kept.node, f"{short(kept.node)} keeps the state for the next batch, and {short(loader.node)} (line {loader.line}) shuffles the samples: each begins with what an unrelated one has left")
        return


def _is_read(program: Program, of: ast.ClassDef, kept: ast.Attribute) -> bool:
    """Whether a recurrent layer is given, in the same method, what the object has kept."""
    method = program.function_of(kept)
    if not isinstance(method, Function):
        return False
    calls = [one for one in ast.walk(method) if isinstance(one, ast.Call) and len(one.args) > 1]
    names = {kept.attr}
    passed = {one.id for node in ast.walk(method) if isinstance(node, ast.Assign) and any(isinstance(part, ast.Attribute) and part.attr in names for part in ast.walk(node.value)) for one in ast.walk(node.targets[0]) if isinstance(one, ast.Name)}
    return any((isinstance(part, ast.Attribute) and part.attr == kept.attr) or (isinstance(part, ast.Name) and part.id in passed) for one in calls for part in ast.walk(one.args[1]))


def _is_begun(program: Program, kept: ast.Attribute) -> bool:
    """Whether an attribute is set anew where the network is not made: by a method that begins a state, or from outside."""
    method = program.function_of(kept)
    for node in program.everywhere(ast.Attribute):
        if node.attr != kept.attr or not isinstance(node.ctx, ast.Store) or node is kept:
            continue
        function = program.function_of(node)
        if function is not method and getattr(function, "name", "") != "__init__":
            return True
        if function is method and not _depends_on_itself(program, node):
            return True
    return False


def _depends_on_itself(program: Program, node: ast.Attribute) -> bool:
    """Whether an attribute is set in its own method where it is still missing alone: under `is None`, or by another size."""
    return any(isinstance(one, ast.If) and any(isinstance(part, ast.Attribute) and part.attr == node.attr for part in ast.walk(one.test)) for one in program.parents(node))
