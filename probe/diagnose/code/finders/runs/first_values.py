"""Parameters that begin with numbers that nobody chose. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import KEPT, SHAPED, Value, constant, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import last_word, short
from probe.diagnose.code.traits.held import contents
from probe.diagnose.code.traits.updates import plain

_DRAWN = ("normal_", "trunc_normal_", "normal", "trunc_normal")
_NORMS = ("LayerNorm", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "GroupNorm", "RMSNorm", "SyncBatchNorm")
_READS = frozenset({"matmul", "mul", "add", "sub", "div", "einsum", "linear", "bmm", "run", "part", "T", "t", "transpose", "expand", "cat", "softmax", "pow", "view", "reshape", "unsqueeze", "exp", "sigmoid", "relu", "sum", "embedding", "conv2d", "conv1d", "either", "permute", "repeat", "tanh", "baddbmm", "mm", "addmm", "norm", "normalize", "index_select", "gather"})
_HOLDS = frozenset({"set_attribute", "dict", "list", "tuple"})


def norms_drawn_around_zero(program: Program) -> Iterator[Remark]:
    """All weights of a network are drawn around 0, the scales of its norms among them."""
    computation = computation_of(program)
    for value in computation.of(*_DRAWN):
        drawn = value.args[0] if value.args else value
        found = next((one for one in origins(drawn) if one.op in ("parameters", "named_parameters") and one.args), None)
        if found is None or not _is_each(drawn) or not all(_asks_for_weights(test) for test, _ in value.where.under) or not all(holds for _, holds in value.where.under):
            continue
        middle = value.argument("mean", 1)
        if middle is not None and number(middle) not in (0, None):
            continue
        norm = next((one for one in contents(plain(found.args[0]), computation) if one.op.rpartition(".")[2] in _NORMS and constant(one.named.get("elementwise_affine")) is not False and constant(one.named.get("affine")) is not False), None)
        later = any(one.op in ("ones_", "constant_", "fill_", "ones", "fill") and one.number > value.number and one.where.functions == value.where.functions for one in computation.values)
        if norm is not None and not later:
            yield Remark(value.node, f"{short(value.node)} draws every weight around 0, also the scales of {short(norm.node)} (line {norm.line}), which begin at 1")
            return


def _is_each(value: Value) -> bool:
    """Whether a value is one of the parameters that a loop goes over, as it is."""
    while value.args and (value.op in ("data", "detach") or (value.op == "part" and value.args[0].op == "element")):
        value = value.args[0]
    return value.op == "element"


def _asks_for_weights(test: Value) -> bool:
    """Whether a condition asks if the name of a parameter has the word weight in it, and no more."""
    return (test.op == "endswith" and len(test.args) == 2 and constant(test.args[1]) in ("weight", ".weight")) or (test.op == "in" and constant(test.args[0]) in ("weight", ".weight")) or (
        test.op == "requires_grad"
    )


def never_given_first_values(program: Program) -> Iterator[Remark]:
    """A parameter is made of memory as it was found, and nothing writes into it before it is computed with."""
    computation = computation_of(program)
    if any(_fills_all(one) for one in computation.values):
        return
    for value in computation.of("torch.nn.Parameter"):
        made = value.args[0] if value.args else value
        if made.op not in ("empty", "empty_like", "new_empty", "torch.Tensor", "torch.FloatTensor", "FloatTensor") or not made.args or (made.op in ("torch.Tensor", "torch.FloatTensor", "FloatTensor") and not all(number(one) is not None for one in made.args)):
            continue
        users = [*computation.users(value), *computation.users(made)]
        if any(one.op not in _READS and one.op not in _HOLDS and one is not value for one in users):
            continue
        reads = [one for one in computation.users(value) if one.op in _READS]
        if reads and not _is_changed(computation, value):
            yield Remark(value.node, f"{short(made.node)} takes memory as it is, and nothing gives {short(value.node)} its first values before line {reads[0].line} computes with it")
            return


def _fills_all(value: Value) -> bool:
    """Whether an operation may give first values to any parameter: it is done on all of a network, or on what is loaded."""
    if value.op in ("load_state_dict", "from_pretrained", "reset_parameters", "apply", "vector_to_parameters", "update_parameters"):
        return True
    written = isinstance(value.node, ast.Call) and last_word(value.node.func).endswith("_")
    return written and any(one.op in ("parameters", "named_parameters", "modules", "children") for each in value.args[:1] for one in origins(each))


def _is_changed(computation: Computation, parameter: Value) -> bool:
    """Whether anything writes into a parameter."""
    waiting = [parameter]
    for _ in range(64):
        if not waiting:
            return False
        for user in computation.users(waiting.pop()):
            written = (isinstance(user.node, ast.Call) and last_word(user.node.func).endswith("_")) or user.op in ("set_item", "copy", "fill", "normal", "uniform", "zero") or (user.op not in _READS and user.op not in _HOLDS)
            if user.args and written and user.op != "set_attribute":
                return True
            if user.op in KEPT or user.op in SHAPED:
                waiting.append(user)
    return False
