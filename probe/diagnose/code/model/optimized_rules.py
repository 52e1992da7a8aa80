"""Parts of a model that no optimizer is given, or that no gradient reaches. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.loop.loss_rules import starts
from probe.diagnose.code.loop.step_calls import is_torch_optimizer
from probe.diagnose.code.model.layers import zeros_of
from probe.diagnose.code.model.modules import module_classes
from probe.diagnose.code.program import Key, Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import is_attribute, is_binary, is_method, is_own, short, text_of

RULES = Rules("model")
_KEPT = ("to", "cuda", "train", "zero_grad", "cpu", "float", "half", "double", "state_dict")
"""Methods that say nothing of whether a module is trained."""
_LEARNED = ("Linear", "Conv", "LSTM", "GRU", "RNN", "Embedding", "Bilinear", "Parameter")
_FROZEN = ("requires_grad", "requires_grad_", "load_state_dict", "from_pretrained", "no_grad", "load", "pretrained")


@RULES.add(
    "in-no-optimizer",
    "its weights stay as they were drawn",
    "give them to the optimizer too: list(model.parameters()) + list(head.parameters())",
)
def _in_no_optimizer(program: Program) -> Iterator[Remark]:
    """A module with weights of its own that the loss goes through, between the trained network and backward."""
    flow = flow_of(program)
    optimizers = [call for call in program.calls() if is_torch_optimizer(program, call)]
    given = {text_of(owner) for call in optimizers for owner in _owners(flow, call)}
    if not optimizers or not all(call.args and _all_known(flow, call) for call in optimizers):
        return
    seen: set[Key] = set()
    for _, loss in starts(program):
        for call in _calls(flow, loss):
            key = flow.key(call.func)
            made = flow.made(key)
            while is_method(made, "to", "cuda", "float") and not program.called(made):
                inner_call = made.func.value
                made = inner_call if isinstance(inner_call, ast.Call) else None
            if key is None or key in seen or made is None or text_of(call.func) in given:
                continue
            seen.add(key)
            inner = any(isinstance(one, ast.Call) and text_of(one.func) in given for argument in call.args for one in flow.origins(argument))
            looked_up = program.called(made) == "torch.nn.Embedding" and len(made.args) > 1
            if (inner or looked_up) and _has_weights(program, made) and not _elsewhere(flow, key) and not program.without_gradient(call):
                yield Remark(call, f"{short(call)} has weights ({short(made)}), and no optimizer is given them: {short(optimizers[0])} (line {optimizers[0].lineno})")


def _owners(flow: Flow, optimizer: ast.Call) -> Iterator[ast.expr]:
    """The modules whose parameters an optimizer is given."""
    for one in flow.origins(optimizer.args[0]) if optimizer.args else ():
        if is_method(one, "parameters", "named_parameters"):
            yield one.func.value


def _all_known(flow: Flow, optimizer: ast.Call) -> bool:
    """Whether an optimizer is given the parameters of one module, and nothing else."""
    whole = flow.value(optimizer.args[0])
    return is_method(whole, "parameters") and not whole.args and flow.key(whole.func.value) is not None


def _calls(flow: Flow, loss: ast.AST) -> Iterator[ast.Call]:
    """The calls of modules that a loss is made of, also behind a detach."""
    for one in list(flow.origins(loss)):
        if isinstance(one, ast.Call) and flow.program.family(one.func) == "module":
            yield one


def _has_weights(program: Program, made: ast.Call) -> bool:
    """Whether a call makes a module with weights that are drawn, and nothing in its class keeps them as they are."""
    name = program.called(made)
    last = name.removeprefix("torch.nn.")
    if name == f"torch.nn.{last}" and last.startswith(_LEARNED):
        return True
    if name == "torch.nn.Sequential":
        return any(isinstance(one, ast.Call) and _has_weights(program, one) for one in made.args)
    of = program.classes.get(name, [])
    if len(of) != 1:
        return False
    nodes = list(ast.walk(of[0]))
    frozen = any(is_attribute(one, *_FROZEN) or (isinstance(one, ast.keyword) and one.arg in ("pretrained", "weights", "requires_grad")) for one in nodes)
    fresh = any(program.called(one).removeprefix("torch.nn.").startswith(_LEARNED) and program.called(one).startswith("torch.nn.") for one in nodes)
    return fresh and not frozen


def _elsewhere(flow: Flow, key: Key) -> bool:
    """Whether a module is used for anything but its calls: given to something, frozen, loaded, put in eval mode."""
    for node in flow.reads.get(key, []):
        around = flow.program.parent.get(node)
        called = isinstance(around, ast.Call) and around.func is node
        if not called and not is_attribute(around, *_KEPT):
            return True
    if key[1].startswith("self."):
        name = key[1].removeprefix("self.")
        return any(one.attr == name and flow.key(one) != key for one in flow.program.everywhere(ast.Attribute))
    return False


@RULES.add(
    "layers-of-zeros",
    "the units between them compute the same, and get the same gradient or none: the model is as wide as one unit",
    "draw them at random: nn.Parameter(torch.randn(n, m) / n ** 0.5)",
)
def _of_zeros(program: Program) -> Iterator[Remark]:
    """Two weights of a module that both start at zero, of which one is applied to what the other gives."""
    flow = flow_of(program)
    for of in module_classes(program):
        zeros = zeros_of(program, of)
        for node in ast.walk(of) if len(zeros) > 1 else ():
            second = _applied(program, node)
            if second is None or second[1] not in zeros:
                continue
            before = [found[1] for one in flow.origins(second[0]) if (found := _applied(program, one)) is not None]
            first = next((name for name in before if name in zeros and name != second[1]), None)
            added = any(is_binary(one, ast.Add, ast.Sub) and not _adds_bias(one) for one in flow.origins(second[0]))
            if first is not None and not added:
                yield Remark(node, f"{short(node)} applies self.{second[1]} to what self.{first} gives, and both start at 0")
                break


def _applied(program: Program, node: ast.AST) -> tuple[ast.expr, str] | None:
    """What a matrix of self is applied to, and its name: `x @ self.w`, `F.linear(x, self.w)`."""
    if is_binary(node, ast.MatMult) and is_own(node.right):
        return node.left, node.right.attr
    linear = isinstance(node, ast.Call) and (program.called(node) in ("torch.nn.functional.linear", "torch.matmul", "torch.mm"))
    if isinstance(node, ast.Call) and linear and len(node.args) > 1 and is_own(node.args[1]):
        return node.args[0], node.args[1].attr
    return None


def _adds_bias(node: ast.BinOp) -> bool:
    """Whether an attribute of self is added: a bias, and not another way round the layers."""
    return is_own(node.left) or is_own(node.right)
