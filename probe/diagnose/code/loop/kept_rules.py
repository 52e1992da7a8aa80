"""What a pass of the training loop leaves behind for the next ones: graphs, hooks, and eval mode. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import NamedTuple

from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.loop.loss_rules import CUT, backwards
from probe.diagnose.code.loop.state_rules import state_of
from probe.diagnose.code.loop.step_calls import goes_over, is_torch_optimizer
from probe.diagnose.code.program import Key, Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    Function,
    is_attribute,
    is_binary,
    is_call,
    is_method,
    is_name,
    is_true,
    iterated,
    last_word,
    mentions,
    names_of,
    returned,
    says,
    short,
    text_of,
)

RULES = Rules("loop")
_DEEPEST = 3
"""How many calls of functions of the program are followed from a loop."""
_HOOKS = (
    "register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook",
    "register_full_backward_pre_hook", "register_backward_hook",
)
"""Methods of a module that add a hook, which stays until its handle is removed."""
_WITH_MODES = ("dropout", "batchnorm", "transformer", "torchvision", "timm")
"""Words of programs whose model may do other things in eval mode."""
_TAKEN_OUT = {"clear", "pop", "popleft"}
_HANDED_OVER = ("parameters", "named_parameters", "state_dict", "load_state_dict", "requires_grad_", "zero_grad", "to")
"""Methods of a network that compute nothing with it."""


# Graphs -----------------------------------------------------------------------


@RULES.add("graph-kept", "memory grows with every batch", "keep loss.item() or loss.detach()")
def _graph_kept(program: Program) -> Iterator[Remark]:
    """Tensors with their graphs, added up or put in a list that lives longer than the loop."""
    flow = flow_of(program)
    starts: dict[Key, ast.Call] = {}
    for call, value in backwards(program):
        key = flow.key(value)
        if key is not None and isinstance(value, ast.Name):
            starts[key] = call
    remarked: set[ast.AST] = set()
    for key, call in starts.items():
        loops = flow.loops(call)
        if not loops:
            continue
        own_loop = program.loops(call)
        for node in ast.walk(own_loop[0] if own_loop else program.frame(call)):
            if node in remarked or program.scope(node) is not program.scope(call):
                continue
            if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.target, ast.Name):
                total = flow.key(node.target)
                plain = node.value.left if is_binary(node.value, ast.Mult) else node.value
                if flow.key(plain) == key and not _is_cut(flow, plain) and total is not None and total not in starts and _outlives(flow, total, loops[0]):
                    remarked.add(node)
                    yield Remark(node, f"{total[1]} adds up {key[1]} with its graph: the graphs of all passes stay in memory")
            elif is_method(node, "append") and len(node.args) == 1:
                held = flow.key(node.func.value)
                if held is None or not _outlives(flow, held, loops[0]) or _joined(flow, held):
                    continue
                given = node.args[0]
                parts = given.elts if isinstance(given, (ast.Tuple, ast.List)) else given.values if isinstance(given, ast.Dict) else [given]
                parts = [one for one in parts if not _is_cut(flow, one)]
                kept = next((one for one in parts if flow.key(one) == key), None) or next(
                    (one for one in parts if _has_graph(flow, one) and _grows(flow, held)), None
                )
                if kept is not None:
                    remarked.add(node)
                    yield Remark(node, f"{held[1]} keeps {short(kept)} with its graph: the graphs of all passes stay in memory")


def _is_cut(flow: Flow, node: ast.AST) -> bool:
    """Whether a variable was given its own numbers, without their graph, last: `loss = loss.detach().cpu()`."""
    last: ast.AST | None = flow.held(node)
    while is_method(last) and last.func.attr not in CUT:
        last = last.func.value
    return is_method(last, *CUT)


def _has_graph(flow: Flow, node: ast.AST) -> bool:
    """Whether an expression is a tensor with a graph, made of what a module gives; nothing in the program is frozen."""
    program = flow.program
    if any(is_attribute(one, "requires_grad", "requires_grad_") for one in program.everywhere(ast.Attribute)):
        return False
    waiting, seen = [node], {node}
    while waiting:
        at = waiting.pop()
        if isinstance(at, ast.Call):
            if program.without_gradient(at):
                continue
            if program.family(at.func) == "module":
                return True
        for one in _made_of(flow, at):
            if one is not None and one not in seen:
                seen.add(one)
                waiting.append(one)
    return False


def _made_of(flow: Flow, node: ast.AST) -> Iterator[ast.AST | None]:
    """What a tensor takes its graph from: operands, arguments, values of variables, and what functions return."""
    if isinstance(node, ast.Call):
        known = flow.program.called(node) or is_call(node, "sum", "abs", "max", "min")
        if last_word(node.func) in CUT or (is_call(node) and not known):
            return
        yield from node.args
        if is_method(node) and flow.program.dotted(node.func) is None:
            yield node.func.value
        local = flow.program.local_function(node)
        yield from returned(local) if local is not None else ()
    elif isinstance(node, ast.BinOp):
        yield from (node.left, node.right)
    elif isinstance(node, ast.Subscript):
        yield node.value
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, (ast.Tuple, ast.List)):
        yield from node.elts
    elif isinstance(node, ast.Name):
        yield from flow.values(flow.key(node)) or flow.passed(node)


def _grows(flow: Flow, key: Key) -> bool:
    """Whether nothing is taken out of a list, and no loop goes over it, whose values may go backward together."""
    program = flow.program
    values = flow.values(key)
    plain = all(isinstance(one, ast.List) or is_call(one, "list") for one in values)
    read = [program.parent.get(node) for node in flow.reads.get(key, [])]
    outer = [program.parent.get(one) if isinstance(one, ast.Subscript) else one for one in read if one is not None]
    gone_over = any(isinstance(one, (ast.For, ast.comprehension, ast.Delete)) for one in outer)
    return plain and not gone_over and not (_TAKEN_OUT & flow.called_on(key))


def _joined(flow: Flow, key: Key) -> bool:
    """Whether a list is read as a whole by torch: its losses may go backward together."""
    for node in flow.escapes(key):
        call = flow.program.parent.get(node)
        if isinstance(call, ast.Call) and (flow.program.called(call).startswith("torch.") or is_call(call, "sum")):
            return True
    return False


def _outlives(flow: Flow, key: Key, loop: ast.AST) -> bool:
    """Whether a variable is made outside of a loop alone."""
    made = [one for one in flow.values(key) if one is not None and isinstance(flow.program.parent.get(one), (ast.Assign, ast.AnnAssign, ast.Tuple))]
    return bool(made) and not any(loop in flow.program.parents(one) for one in made)


# Calls in a pass ----------------------------------------------------------------


class _Reached(NamedTuple):
    """A method call that a pass of a loop may run: the variable it is called on, seen from the loop, and
    whether it runs again and again (not only under a condition that may hold once)."""

    call: ast.Call
    of: Key | None
    again: bool


def _reached(flow: Flow, node: ast.AST, given: Mapping[Key, Key | None], again: bool, depth: int = _DEEPEST) -> Iterator[_Reached]:
    """The method calls in a loop or function, and in the functions of the program that it calls. `given`: what
    the parameters of the function are, seen from the loop."""
    program = flow.program
    for call in ast.walk(node):
        if not isinstance(call, ast.Call):
            continue
        repeats = again and _repeats(program, call, node)
        if is_method(call):
            key = flow.key(call.func.value)
            yield _Reached(call, flow.origin(given.get(key, key) if key is not None else None), repeats)
        local = program.run_by(call) if depth else None
        if local is not None and local is not node:
            arguments = program.arguments(local, call)
            keys = {name: flow.key(value) for name, value in arguments.items()}
            inner: dict[Key, Key | None] = {(local, name): given.get(key, key) if key is not None else None for name, key in keys.items()}
            yield from _reached(flow, local, inner, repeats, depth - 1)


def _repeats(program: Program, call: ast.AST, top: ast.AST) -> bool:
    """Whether a call runs in each pass, or in each n-th one (`if step % n == 0`)."""
    for around in program.parents(call):
        if around is top:
            break
        if isinstance(around, (ast.If, ast.IfExp)) and not is_call(around.test, "isinstance") and not any(is_binary(one, ast.Mod) for one in ast.walk(around.test)):
            return False
    return True


def trained(flow: Flow) -> set[Key]:
    """The modules whose parameters an optimizer of torch holds."""
    program = flow.program
    found = {
        flow.origin(flow.key(one.func.value))
        for call in program.calls() if is_torch_optimizer(program, call) for argument in call.args[:1]
        for one in ast.walk(argument) if is_method(one, "parameters", "named_parameters")
    }
    return {one for one in found if one is not None}


@RULES.add(
    "left-in-eval-mode", "dropout is off, and batch normalization uses and keeps its first statistics, for the rest of the training",
    "call train() at the start of each epoch, or after each evaluation",
)
def _left_in_eval_mode(program: Program) -> Iterator[Remark]:
    """An evaluation that puts the trained model into eval mode, in a loop that never takes it out of it."""
    if not any(word in source.text.lower() for source in program.sources for word in _WITH_MODES):
        return
    flow = flow_of(program)
    held = trained(flow)
    remarked: set[ast.AST] = set()
    for backward, _ in backwards(program):
        for loop in flow.loops(backward):
            reached = list(_reached(flow, loop, {}, True))
            off = [one for one in reached if _evaluates(program, one.call, backward) and one.of in held and one.again]
            if not off:
                continue
            if not _restored(program, reached) and off[0].call not in remarked:
                remarked.add(off[0].call)
                yield Remark(
                    off[0].call,
                    f"{short(off[0].call)} is never undone in the loop of line {loop.lineno}: after the first evaluation, "
                    f"{short(backward)} (line {backward.lineno}) trains the model in eval mode",
                )
            break


def _evaluates(program: Program, call: ast.Call, backward: ast.Call) -> bool:
    """Whether a call puts a module into eval mode for an evaluation, apart from what runs backward."""
    off = is_method(call, "eval") and not call.args
    function = program.function_of(call)
    return off and (
        (function is not None and function is not program.function_of(backward) and not mentions(function, "backward"))
        or any(isinstance(one, ast.With) and says(one.items[0].context_expr, "no_grad", "inference_mode") for one in program.after(program.statement(call)))
    )


def _restored(program: Program, reached: list[_Reached]) -> bool:
    """Whether a pass may put a module back into train mode, also in a function that is not known for certain."""
    names = {last_word(one.call.func) for one in reached}
    functions = [function for name in names for function in program.functions.get(name, [])]
    frames = {program.frame(one.call) for one in reached}
    return any(
        (is_method(one, "train") and (not one.args or not isinstance(one.args[0], ast.Constant) or is_true(one.args[0])))
        or (is_attribute(one, "training") and isinstance(one.ctx, ast.Store))
        for around in [*(one.call for one in reached), *functions, *(one for one in frames if isinstance(one, Function) and mentions(one, "eval"))]
        for one in ast.walk(around)
    )


@RULES.add(
    "hooks-in-the-loop", "each step runs one more of them: steps become slower, and what the hooks keep grows",
    "register the hook once before the loop, or keep its handle and call handle.remove()",
)
def _hooks(program: Program) -> Iterator[Remark]:
    """Hooks that are added to a module again and again, and never removed."""
    flow = flow_of(program)
    if not any(_adds_a_hook(program, call) for call in program.calls()):
        return  # following the calls of each loop costs more
    if any(is_method(call, "remove") and not call.args for call in program.calls()) or (
        any(is_attribute(one, "_forward_hooks", "_backward_hooks") for one in program.everywhere(ast.Attribute))
    ):
        return
    remarked: set[ast.AST] = set()
    for backward, _ in backwards(program):
        for loop in flow.loops(backward):
            reached = list(_reached(flow, loop, {}, True))
            if any(program.family(one) == "module" and program.called(one) for one in ast.walk(loop) if isinstance(one, ast.Call)):
                break  # a model that is made in the loop has no hooks yet
            for one in reached:
                if one.again and one.call not in remarked and _adds_a_hook(program, one.call):
                    remarked.add(one.call)
                    yield Remark(one.call, f"{short(one.call)} runs again and again in the loop of line {loop.lineno}, and nothing removes the hooks: they pile up")


def _adds_a_hook(program: Program, call: ast.Call) -> bool:
    """Whether a call adds a hook to a module or a parameter, which live longer than a step."""
    if is_method(call, *_HOOKS):
        return True
    return is_method(call, "register_hook") and goes_over(program, call.func.value, "parameters", "named_parameters")


@RULES.add("part-left-in-training-mode", "the score is that of a network with dropout, or with the statistics of the batch, in one of its parts", "call eval() on every part that train() is called on")
def _part_left(program: Program) -> Iterator[Remark]:
    """Two networks that are put into training mode, of which an evaluation puts one into eval mode."""
    flow = flow_of(program)
    modes: dict[str, dict[str, list[ast.Call]]] = {"train": {}, "eval": {}}
    for call in program.calls():
        plain = is_method(call, "train") and (not call.args or is_true(call.args[0])) and not call.keywords
        if plain or (is_method(call, "eval") and not call.args):
            modes[call.func.attr].setdefault(_part(program, call.func.value), []).append(call)  # type: ignore[attr-defined]
        elif is_method(call, "train") and call.args:  # train(False), or as a variable says
            modes["eval"].setdefault(_part(program, call.func.value), []).append(call)
    both = [name for name in modes["train"] if name in modes["eval"]]
    for name, calls in modes["train"].items():
        made = flow.only(flow.key(_whole(program, calls[0].func.value))) if is_method(calls[0]) else None
        if name in modes["eval"] or not name or made is None or not _has_modes(program, made):
            continue
        beside = [one for one in both if any(program.scope(a) is program.scope(b) for a in modes["train"][one] for b in calls)]
        for off in (call for one in beside for call in modes["eval"][one] if not name.startswith(f"{one}.") and not one.startswith(f"{name}.")):
            if _used_after(program, off, name):
                yield Remark(off, f"{short(off)} leaves {name} in training mode: {short(calls[0])} (line {calls[0].lineno}) is never undone")
                break


def _used_after(program: Program, off: ast.Call, name: str) -> bool:
    """Whether a network is used after a call, and before it is put into training mode anew; also in a function of the
    program that is called there. A loop that trains it is no such use."""
    later = takewhile(lambda one: not any(_puts_into_training(each, name) for each in ast.walk(one)), program.after(program.statement(off)))
    waiting: list[tuple[ast.AST, int]] = [(one, 2) for one in later]
    while waiting:
        at, depth = waiting.pop()
        for one in ast.walk(at):
            if isinstance(one, (ast.Name, ast.Attribute)) and isinstance(one.ctx, ast.Load) and short(one) == name and not is_method(program.parent.get(program.parent.get(one) or one), "train", *_HANDED_OVER) and not _is_trained_at(program, one, off) and program.family(program.parent.get(one)) != "optimizer":
                return True
            local = program.local_function(one) if depth and isinstance(one, ast.Call) else None
            if local is not None:
                waiting.append((local, depth - 1))
    return False


def _puts_into_training(node: ast.AST, name: str) -> bool:
    return is_method(node, "train") and not node.args and short(node.func.value) == name


def _is_trained_at(program: Program, node: ast.AST, off: ast.Call) -> bool:
    """Whether the innermost loop around a use, which is not around the call before, computes gradients."""
    loop = next(iter(program.loops(node)), None)
    return loop is not None and not any(one is off for one in ast.walk(loop)) and any(is_method(one, "backward") for one in ast.walk(loop))


def _whole(program: Program, node: ast.expr) -> ast.expr:
    """What a loop over a collection of modules goes over: `self.heads` of `for head in self.heads.values()`."""
    for loop in program.loops(node) if isinstance(node, ast.Name) else ():
        if isinstance(loop, ast.For) and text_of(node) in names_of(loop.target):
            over = loop.iter
            return over.func.value if is_method(over, "values", "items", "modules", "children") else over
    return node


def _part(program: Program, node: ast.expr) -> str:
    """The text of a network, or of the collection that a loop takes it from."""
    return short(_whole(program, node))


def _has_modes(program: Program, made: ast.AST) -> bool:
    """Whether what makes a network holds dropout or batch normalization, also in a function or class that it calls."""
    waiting, seen = [made], set[ast.AST]()
    while waiting and len(seen) < 20:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        for one in ast.walk(at):
            if isinstance(one, ast.Call):
                if any(word in program.called(one).lower() for word in ("dropout", "batchnorm")):
                    return True
                local = program.local_function(one)
                classes = program.classes.get(program.called(one), [])
                waiting += [found for found in (local, *classes[:1]) if found is not None]
    return False


@RULES.add("snapshots-alike", "all members are the network as it is now: their average is no better than it", "keep copies: {k: v.clone() for k, v in model.state_dict().items()}")
def _snapshots(program: Program) -> Iterator[Remark]:
    """States of one network that are kept in a list while it trains, without a copy, and loaded one after the other."""
    flow = flow_of(program)
    for call in program.calls():
        if not is_method(call, "append") or len(call.args) != 1 or state_of(program, call.args[0]) is None:
            continue
        key = flow.key(call.func.value)
        for loop in program.everywhere(ast.For):
            over = key is not None and flow.key(iterated(loop)) == key and is_name(loop.target)
            loaded = [one for one in ast.walk(loop) if is_method(one, "load_state_dict") and one.args]
            if over and any(text_of(one.args[0]) == text_of(loop.target) for one in loaded):
                yield Remark(call, f"{short(call)} keeps the weights themselves, and {short(loaded[0])} (line {loaded[0].lineno}) loads each of them as if they had stayed")
                break
