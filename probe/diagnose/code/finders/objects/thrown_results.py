"""Results that nothing takes: new tensors where the old ones were to be changed, and attributes that nothing reads. Pure; standard
library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Instance, Value, constant
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import is_method, names_read, names_set, short
from probe.diagnose.code.traits.weights import has_parameters

FINDERS = Finders()
_NEW = frozenset({
    "div", "mul", "add", "sub", "clamp", "clip", "masked_fill", "exp", "log", "sqrt", "abs", "neg", "pow", "detach", "squeeze", "unsqueeze", "permute",
    "transpose", "view", "reshape", "flatten", "lerp", "index_add", "index_fill", "index_copy", "scatter", "scatter_add", "relu", "sigmoid", "softmax",
    "log_softmax", "tanh", "flip", "roll", "addcmul", "addcdiv", "nan_to_num", "masked_scatter",
})
"""What gives a new tensor and leaves the old one as it is."""


@FINDERS.add("result-thrown-away")
def _thrown_away(program: Program) -> Iterator[Remark]:
    """A statement computes a new tensor from a parameter or a gradient, and nothing takes it."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for value in computation.values:
        call = value.node
        if value.op not in _NEW or not isinstance(call, ast.Call) or not isinstance(program.parent.get(call), ast.Expr) or call in said or not value.args:
            continue
        func = call.func
        if isinstance(func, ast.Attribute) and func.attr in _NEW and _is_trained(value.args[0]) and "out" not in value.named and not computation.users(value):
            said.add(call)
            yield Remark(call, f"{short(call)} gives a new tensor, and nothing takes it: {short(func.value)} stays as it is")


def _is_trained(value: Value) -> bool:
    """Whether a value is a parameter, a buffer of a loop over them, or a gradient."""
    if value.op == "element":
        return bool(value.args) and value.args[0].op in ("parameters", "buffers")
    return value.op in ("grad", "torch.nn.Parameter") or (value.op in ("weight", "bias", "data") and bool(value.args))


@FINDERS.add("parameter-rebound")
def _average_rebound(program: Program) -> Iterator[Remark]:
    """In a loop over parameters or buffers, the name of one is given a new tensor that is made of it, and nothing reads it."""
    for loop in program.everywhere(ast.For):
        if not any(is_method(one, "parameters", "buffers", "named_parameters", "named_buffers", "state_dict") for one in ast.walk(loop.iter)):
            continue
        looked_up = [one for one in loop.body if isinstance(one, ast.Assign) and isinstance(one.value, ast.Subscript) and names_set(loop.target) & names_read(one.value.slice)]
        named = is_method(loop.iter, "items", "named_parameters", "named_buffers") and isinstance(loop.target, ast.Tuple)
        own = names_set(loop.target.elts[-1] if named and isinstance(loop.target, ast.Tuple) else loop.target).union(*(names_set(target) for one in looked_up for target in one.targets))
        for place, statement in enumerate(loop.body):
            if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or not isinstance(statement.targets[0], ast.Name):
                continue
            name = statement.targets[0].id
            reads = any(isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Load) for later in loop.body[place + 1 :] for one in ast.walk(later))
            made_of = any(isinstance(one, ast.Name) and one.id == name for one in ast.walk(statement.value))
            if name in own and made_of and not reads and isinstance(statement.value, (ast.BinOp, ast.Call)) and not _is_read_after(program, loop, name):
                yield Remark(statement, f"{short(statement)} gives the name {name} a new tensor: the one that it stood for keeps its value")


def _is_read_after(program: Program, loop: ast.For, name: str) -> bool:
    """Whether a name is read in its function after a loop, before it is set again."""
    later = (one for one in ast.walk(program.scope(loop)) if isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Load) and one.lineno > (loop.end_lineno or loop.lineno))
    return any(not any(isinstance(around, ast.For) and name in names_set(around.target) for around in program.loops(one)) for one in later)


@FINDERS.add("set-in-vain")
def _asked_of_a_module(program: Program) -> Iterator[Remark]:
    """`requires_grad` is set on a layer or a network, and not on its parameters."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for value in computation.of("set_attribute"):
        of = value.args[0]
        named = value.node.value if isinstance(value.node, ast.Attribute) else None
        if value.data != "requires_grad" or value.node in said or not isinstance(constant(value.args[-1]), bool) or (isinstance(named, ast.expr) and program.kind(named) is not None):
            continue
        own = isinstance(of, Instance) and of.of is not None and program.is_module_class(of.of) and not program.method(of.of, "requires_grad")
        if own or (of.op.startswith("torch.nn.") and of.op != "torch.nn.Parameter" and has_parameters(of)):
            said.add(value.node)
            yield Remark(value.node, f"{short(value.node)} = {constant(value.args[-1])} sets an attribute of the module; its parameters keep theirs")
