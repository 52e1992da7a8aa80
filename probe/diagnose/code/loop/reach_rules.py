"""What the backward calls of a program reach: a network in an optimizer whose output always leaves the graph. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.finders.axes.recomputed import recomputed_without_gradient
from probe.diagnose.code.finders.objects.frozen_in_loop import frozen_in_the_loop
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.loop.loss_rules import OF_TENSORS, Gradients, backwards
from probe.diagnose.code.loop.step_calls import is_torch_optimizer
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    argument,
    is_attribute,
    is_false,
    is_method,
    is_name,
    is_read,
    is_true,
    last_word,
    own,
    returned,
    short,
    text_of,
)

RULES = Rules("loop")


@RULES.add("cut-off-from-the-loss", "the network gets no gradient, so its optimizer has nothing to step with", "leave out the detach() in the loss that trains it")
def _cut_off(program: Program) -> Iterator[Remark]:
    """A network that an optimizer steps, and whose output is detached in every loss that uses it."""
    flow = flow_of(program)
    losses = [call.func.value for call in program.calls() if is_method(call, "backward") and not is_method(call.func.value, "scale")]
    if not losses:
        return
    reached = {text_of(one.func) for loss in losses for one in modules_called(flow, loss, through=False)}
    known = [one for loss in losses for one in modules_called(flow, loss, through=True)]
    behind = {text_of(one.func): one for one in known}
    for call in program.calls():
        if not is_torch_optimizer(program, call):
            continue
        given = (one for argument in call.args[:1] for one in ast.walk(argument))
        for name in dict.fromkeys(text_of(one.func.value) for one in given if is_method(one, "parameters")):
            used = behind.get(name)
            if used is None or name in reached or not _all_known(program, name, known):
                continue
            yield Remark(used, f"{short(used)} is detached in every loss, and the optimizer in line {call.lineno} steps {name}")


def modules_called(flow: Flow, loss: ast.AST, through: bool = False) -> Iterator[ast.Call]:
    """The calls of modules that a loss is made of; without those behind a detach() or no_grad, unless `through`."""
    waiting, seen = [loss], {loss}
    while waiting:
        at = waiting.pop()
        if isinstance(at, ast.Call) and flow.program.family(at.func) == "module":
            yield at
        following: list[ast.AST] = list(ast.iter_child_nodes(at))
        if not through and (is_method(at, "detach", "item", "numpy") or is_attribute(at, "data")):
            following = []
        local = flow.program.local_function(at) if isinstance(at, ast.Call) and flow.program.family(at.func) != "module" else None
        if local is not None:
            following += [one for one in returned(local) if one is not None and (through or not flow.program.without_gradient(one))]
        value = found.value if is_read(at) and (found := flow.given(at)) is not None else None
        if value is not None and (through or not flow.program.without_gradient(value)):
            following.append(value)
        for one in following:
            if one not in seen and not isinstance(one, (ast.expr_context, ast.operator)):
                seen.add(one)
                waiting.append(one)


def _all_known(program: Program, name: str, known: list[ast.Call]) -> bool:
    """Whether each use of a network is a call that a loss is made of, or has no gradient, or maintains it."""
    maintained = ("parameters", "named_parameters", "zero_grad", "train", "eval", "to", "state_dict", "load_state_dict", "requires_grad_", "buffers", "apply")
    for node in program.everywhere(ast.Name, ast.Attribute):
        if not isinstance(getattr(node, "ctx", None), ast.Load) or text_of(node) != name:
            continue
        around = program.parent.get(node)
        called = isinstance(around, ast.Call) and around.func is node and (around in known or program.without_gradient(around))
        copied = isinstance(around, ast.Call) and last_word(around.func) == "deepcopy"
        if not called and not copied and not is_attribute(around, *maintained):
            return False
    return True


@RULES.add("gradient-asked-of-the-loss", "backward has nothing to go back through: no parameter gets a gradient, and the error that would say so is silenced", "leave it out, and keep the graph from the model to the loss: no tensor(...), item() or no_grad on the way")
def _asked_of_the_loss(program: Program) -> Iterator[Remark]:
    """`loss.requires_grad = True` for a loss that is made of numbers, or of a network without gradients."""
    flow = flow_of(program)
    for call, value in backwards(program):
        if not isinstance(value, ast.Name):
            continue
        asked: list[tuple[ast.stmt | ast.Call, ast.expr]] = [(one, one.targets[0]) for one in own(program.scope(call), ast.Assign) if is_attribute(one.targets[0], "requires_grad") and is_true(one.value)]
        asked += [(one, one.func) for one in own(program.scope(call), ast.Call) if is_method(one, "requires_grad_") and not any(map(is_false, one.args))]
        for node, target in asked:
            if not is_attribute(target) or not is_name(target.value, value.id) or node.lineno > call.lineno:
                continue
            nodes = list(flow.origins(target.value))
            made = [one for one in nodes if isinstance(one, ast.Call) and program.called(one).rpartition(".")[2] in OF_TENSORS and one.args and not isinstance(one.args[0], ast.Constant)]
            frozen = [one for one in nodes if isinstance(one, ast.Call) and program.family(one.func) == "module" and _frozen(program, text_of(one.func))]
            runs = [one for one in nodes if is_method(one, "log_prob") or (isinstance(one, ast.Call) and program.family(one.func) == "module" and one not in frozen and not program.without_gradient(one))]
            cut = Gradients(flow, program.scope(call)).cut(target.value)
            if cut is not None or ((made or frozen) and not runs):
                why = cut or (short(made[0], 40) if made else f"{short(frozen[0].func)}, which is frozen")
                yield Remark(node, f"{short(target)} asks for a gradient of a loss that has no graph ({why}): backward reaches no parameter")


def _frozen(program: Program, name: str) -> bool:
    """Whether all parameters of a network are frozen, and nothing gives any a gradient again."""
    off = False
    for node in program.calls():
        if not is_method(node, "requires_grad_"):
            continue
        loops = [one.iter for one in program.loops(node) if isinstance(one, ast.For)]
        whole = [text_of(one.func.value) for one in loops if is_method(one, "parameters")]
        if any(map(is_false, node.args)):
            off = off or name in (*whole, text_of(node.func.value))
        elif whole or program.family(node.func.value) == "module":
            return False
    for one in program.everywhere(ast.Assign):
        if is_attribute(one.targets[0], "requires_grad"):
            over = [loop.iter for loop in program.loops(one) if isinstance(loop, ast.For)]
            walked = [text_of(it.func.value) for it in over if is_method(it, "parameters")]
            if not is_false(one.value) and walked:
                return False
            off = off or (is_false(one.value) and name in walked and not any(isinstance(around, ast.If) for around in program.parents(one)))
    return off


@RULES.add("loss-made-anew", "nothing is learned", "call backward on the loss as it was computed")
def _made_anew(program: Program) -> Iterator[Remark]:
    flow = flow_of(program)
    for call in program.calls():
        name = program.called(call)
        last = name.rpartition(".")[2]
        wants = argument(call, "requires_grad")
        if not name.startswith("torch.") or last not in (*OF_TENSORS, "Variable") or not call.args:
            continue
        if not is_true(wants):
            continue
        inner = call.args[0]
        if not isinstance(inner, (ast.Constant, ast.List, ast.Tuple)) and _goes_backward(program, flow, call):
            yield Remark(call, f"{short(call)} makes a new tensor of the loss: backward ends there, and no parameter gets a gradient")


def _goes_backward(program: Program, flow: Flow, node: ast.AST) -> bool:
    parent = program.parent.get(node)
    target = parent.targets[0] if isinstance(parent, ast.Assign) else None
    key = flow.key(target)
    return any(value is node or (key is not None and flow.key(value) == key) for _, value in backwards(program))


RULES.add("frozen-in-the-loop", "from the second pass on the network gets no gradient: its optimizer steps with nothing", "thaw it again at the end of the pass: network.requires_grad_(True)")(frozen_in_the_loop)
RULES.add("recomputed-without-gradient", "none of the recomputed layers is ever trained", "give use_reentrant=False, or let the input have a gradient: x.requires_grad_()")(recomputed_without_gradient)
