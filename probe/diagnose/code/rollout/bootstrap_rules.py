"""Targets that are bootstrapped: what value they take, of which state and network, and what reaches the policy. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.loop.kept_rules import trained
from probe.diagnose.code.loop.step_calls import events_of, optimized
from probe.diagnose.code.program import Key, Program
from probe.diagnose.code.rollout.signs import minimized
from probe.diagnose.code.rollout.targets import ENDS, is_bootstrap
from probe.diagnose.code.rollout.terms import factors
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    is_attribute,
    is_binary,
    is_call,
    is_method,
    is_name,
    is_negative,
    is_own,
    is_read,
    last_word,
    names_of,
    number_in,
    says,
    short,
    text_of,
    without_data,
)
from probe.diagnose.code.torch_losses import is_loss

RULES = Rules("rollout")
_SHAPED = ("detach", "squeeze", "unsqueeze", "view", "reshape", "float", "to", "flatten", "cpu", "cuda", "numpy", "item", "long")
_KEPT = ("eval", "train", "to", "cuda", "cpu", "requires_grad_", "float", "double")


def _reward(node: ast.AST) -> bool:
    return any("rew" in one.lower() or one in ("r", "rs") for one in names_of(node)) or any(
        "reward" in one.attr.lower() for one in ast.walk(node) if isinstance(one, ast.Attribute)
    )


def _discounts(flow: Flow, node: ast.AST) -> bool:
    """Whether a factor is a discount: by its name, or a number a little below 1."""
    number = flow.number(node)
    return says(node, "gamma", "discount") or (number is not None and 0.8 <= number < 1)


def _goes_on(node: ast.AST) -> bool:
    """Whether a factor is `1 - done`, or the like."""
    while is_method(node, *_SHAPED):
        node = node.func.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Invert, ast.Not)):
        return last_word(_plain(node.operand)).lower() in ENDS
    return is_binary(node, ast.Sub) and number_in(node.left) == 1 and (last_word(_plain(node.right)).lower() in ENDS or is_name(_plain(node.right), "d", "ds"))


def _plain(node: ast.AST) -> ast.AST:
    while is_method(node, *_SHAPED) or isinstance(node, ast.Subscript):
        node = node.value if isinstance(node, ast.Subscript) else node.func.value
    return node


def _products(program: Program) -> Iterator[tuple[ast.BinOp, list[ast.AST]]]:
    """The products of a program that are no factors of others, with their factors."""
    for node in program.everywhere(ast.BinOp):
        if is_binary(node, ast.Mult) and not is_binary(program.parent.get(node), ast.Mult):
            yield node, list(factors(node))


@RULES.add("index-taken-for-value", "the number of the best action counts as what it is worth: action 3 is always better than action 0", "take the value: q.max(1).values, or q.gather(1, best)")
def _index(program: Program) -> Iterator[Remark]:
    """A discounted target that is made with the number of the best action."""
    flow = flow_of(program)
    for node, parts in _products(program):
        if len(parts) < 2 or not any(says(one, "gamma", "discount") or _goes_on(one) for one in parts):
            continue
        for part in parts:
            if (call := _index_of(flow, part)) is not None:
                yield Remark(node, f"{short(node)} is made with {short(call)}, which gives the number of the best action and not its value")


def _index_of(flow: Flow, node: ast.AST) -> ast.AST | None:
    """The call that gives the place of the largest value, where an expression is that place."""
    one = flow.given(node) if is_name(node) else None
    if one is not None and one.place == 1 and one.how == "assign" and _is_max(one.value):
        return one.value
    value = flow.value(node)
    while is_method(value, *_SHAPED) and flow.program.dotted(value.func) is None:
        if (found := _index_of(flow, value.func.value)) is not None:
            return found
        value = flow.value(value.func.value)
        one = flow.given(value) if is_name(value) else None
    if is_method(value, "argmax"):
        return value
    if (isinstance(value, ast.Subscript) and number_in(value.slice) == 1) or is_attribute(value, "indices"):
        inner = flow.value(value.value)
        return inner if _is_max(inner) else None
    return None


def _is_max(node: ast.AST | None) -> bool:
    """Whether a call gives the largest values along an axis and their places."""
    return is_method(node, "max", "min") and bool(node.args or node.keywords)


@RULES.add("reward-inside-the-product", "the reward is discounted, or lost in the last step of each episode: what ends an episode is never learned", "write reward + gamma * (1 - done) * value")
def _reward_inside(program: Program) -> Iterator[Remark]:
    """A target of one step whose reward is multiplied by the discount or by `1 - done`."""
    flow = flow_of(program)
    for node, parts in _products(program):
        whole = program.parent.get(node)
        running = whole.targets[0] if isinstance(whole, ast.Assign) else None
        for part in parts if len(parts) == 2 and is_name(running) and program.loops(node) else ():
            others = [one for one in parts if one is not part]
            sides = [part.left, part.right] if is_binary(part, ast.Add) else []
            back = [one for one in sides if is_name(one, last_word(running))]
            if len(back) == 1 and any(_reward(one) and one not in back for one in sides) and says(others[0], "gamma", "discount"):
                yield Remark(node, f"{short(node)} multiplies the reward of this step by {short(others[0])} too")
        for part in parts:
            inner = part
            if not is_binary(inner, ast.Add) or not _one_step(flow, inner):
                continue
            others = [one for one in parts if one is not part]
            if any(map(_goes_on, others)):
                yield Remark(node, f"{short(node)} multiplies the reward too: where an episode ends, its last reward counts as 0")
            elif len(others) == 1 and says(others[0], "gamma", "discount") and not says(inner, "gamma", "discount") and _is_target(flow, node):
                yield Remark(node, f"{short(node)} multiplies the reward of this step by {short(others[0])} too")


def _one_step(flow: Flow, node: ast.BinOp) -> bool:
    """Whether a sum is a reward and the value of what follows, by a call of a network."""
    for reward, rest in ((node.left, node.right), (node.right, node.left)):
        if _reward(reward) and isinstance(reward, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)) and not _reward(rest):
            calls = [one for part in factors(rest) for one in flow.origins(part) if isinstance(one, ast.Call) and _runs(flow, one)]
            return bool(calls)
    return False


def _runs(flow: Flow, call: ast.Call) -> bool:
    """Whether a call runs a network: by its kind, or as an attribute or variable that is none of the program's functions."""
    family = flow.program.family(call.func)
    if family is not None:
        return family == "module"
    if not call.args or flow.program.dotted(call.func) is not None or flow.program.local_function(call) is not None:
        return False
    return is_own(call.func) or (isinstance(call.func, ast.Name) and flow.key(call.func) is not None)


def _is_target(flow: Flow, node: ast.AST) -> bool:
    """Whether a loss compares an expression with something."""
    for call in flow.program.calls():
        if is_loss(flow.program, call) and len(call.args) > 1:
            value = flow.value(call.args[1])
            while is_method(value, *_SHAPED):
                value = flow.value(value.func.value)
            if value is node:
                return True
    return False


def compared(flow: Flow) -> Iterator[tuple[ast.AST, ast.AST, ast.AST]]:
    """The losses that compare a prediction with a bootstrapped target, squared differences among them: the loss, the
    prediction, the target."""
    for node in flow.program.everywhere(ast.BinOp):
        around = flow.program.parent.get(node)
        method = flow.program.parent.get(around) if is_attribute(around, "pow", "square") else None
        squared = around if is_binary(around, ast.Pow) and flow.number(around.right) == 2 else method
        if is_binary(node, ast.Sub) and isinstance(squared, (ast.BinOp, ast.Call)):
            for one, other in ((node.left, node.right), (node.right, node.left)):
                if is_bootstrap(flow, other):
                    yield squared, one, other
                    break
    for call in flow.program.calls():
        if is_loss(flow.program, call) and len(call.args) > 1:
            for one, other in ((call.args[0], call.args[1]), (call.args[1], call.args[0])):
                if is_bootstrap(flow, other):
                    yield call, one, other
                    break


def following(flow: Flow, target: ast.AST) -> list[ast.Call]:
    """The calls of networks that the discounted part of a target is made of."""
    value = flow.value(target)
    while is_method(value, *_SHAPED):
        value = flow.value(value.func.value)
    if not is_binary(value, ast.Add):
        return []
    return [one for side in (value.left, value.right) if is_binary(side, ast.Mult) for one in flow.origins(side) if isinstance(one, ast.Call) and _runs(flow, one)]


@RULES.add("target-of-the-same-state", "the value of a state is learned from itself: what follows it is never looked at", "give the target network the next states")
def _same_state(program: Program) -> Iterator[Remark]:
    """A bootstrapped target whose value is that of the state of the prediction."""
    flow = flow_of(program)
    for call, prediction, target in compared(flow):
        here = _outermost(program, [one for one in flow.origins(prediction) if isinstance(one, ast.Call) and _runs(flow, one)])
        there = _outermost(program, following(flow, target))
        sliced = any(isinstance(one, ast.Slice) or is_attribute(one, "roll", "cat", "shift") for one in [*flow.origins(target), *flow.origins(prediction)])
        if len(here) != 1 or len(there) != 1 or sliced or here[0] is there[0]:
            continue
        state, after = here[0].args[0], there[0].args[0]
        if is_read(state) and is_read(after) and text_of(state) == text_of(after) and _one_value(flow, state, after) and len(here[0].args) == len(there[0].args):
            yield Remark(there[0], f"{short(there[0])} is the value of the state that {short(here[0])} predicts: {short(call)} compares a state with itself")


def _outermost(program: Program, calls: list[ast.Call]) -> list[ast.Call]:
    """The calls that stand in no other one's arguments."""
    return [one for one in calls if not any(around in calls for around in program.calls_around(one))]


def _one_value(flow: Flow, one: ast.AST, other: ast.AST) -> bool:
    """Whether two reads of a variable read one value."""
    return len(flow.bindings(one)) == 1 or (flow.given(one) is not None and flow.given(one) is flow.given(other))


# The copy that targets are made with -----------------------------------------------


@RULES.add("target-network-never-updated", "values are learned towards those of the network as it was made: they never see further than one step", "copy the weights now and then: target.load_state_dict(net.state_dict())")
def _never_updated(program: Program) -> Iterator[Remark]:
    """A copy of the trained network that a target is made with, and that is given the weights once, at the start."""
    flow = flow_of(program)
    remarked: set[Key] = set()
    for loss, prediction, target in compared(flow):
        here = {flow.key(one.func) for one in flow.origins(prediction) if isinstance(one, ast.Call)}
        for call in following(flow, target):
            key = flow.key(call.func)
            if key is None or key in here or key in remarked or not _is_copy(flow, key) or not _again(flow, loss):
                continue
            if key[1].startswith("self.") and flow.attributes.get(key[1].removeprefix("self."), 0) > len(flow.reads.get(key, [])):
                continue
            if any(_changes(flow, node) and _again(flow, node) for node in flow.reads.get(key, [])):
                continue
            remarked.add(key)
            yield Remark(call, f"{short(call)} runs a copy that never follows the trained network: nothing after the start changes {key[1]}")


def _is_copy(flow: Flow, key: Key) -> bool:
    """Whether a variable is a copy of a network, or another one that is given its weights."""
    made = flow.made(key)
    if made is None:
        return False
    while isinstance(made.func, ast.Attribute) and made.func.attr in ("requires_grad_", "eval", "to", "cuda") and isinstance(made.func.value, ast.Call):
        made = made.func.value
    if flow.program.called(made) in ("copy.deepcopy", "copy.copy") or last_word(made.func) == "deepcopy":
        return True
    return flow.program.family(made) == "module" and bool(flow.called_on(key) & {"load_state_dict"})


def _changes(flow: Flow, node: ast.AST) -> bool:
    """Whether a read of a network may change its weights."""
    around = flow.program.parent.get(node)
    if isinstance(around, ast.Call) and around.func is node:
        return False
    return not is_attribute(around, *_KEPT)


def _again(flow: Flow, node: ast.AST, depth: int = 5) -> bool:
    """Whether a node may run more than once, or after the start: it stands in a loop, or in a function that does."""
    program = flow.program
    if program.loops(node):
        loop = program.loops(node)[0]
        frozen = isinstance(loop, ast.For) and is_method(loop.iter, "parameters") and "requires_grad" in text_of(loop)
        if not frozen:
            inner = isinstance(loop, ast.For) and ("parameters" in text_of(loop.iter) or "state_dict" in text_of(loop.iter))
            if not inner or program.loops(node)[1:]:
                return True
    function = program.function_of(node)
    if function is None or not depth:
        return False
    if function.name in ("__init__", "_build", "build"):
        return False
    of = program.class_of(function)
    if of is not None and any(not is_name(base, "object") and program.dotted(base) != "torch.nn.Module" for base in of.bases):
        return True
    name = function.name
    calls = [one for one in program.calls() if last_word(one.func) == name]
    mentioned = sum(is_attribute(one, name) or is_name(one, name) for one in (*program.everywhere(ast.Attribute), *program.everywhere(ast.Name)))
    if mentioned > len(calls):
        return True
    return any(_again(flow, one, depth - 1) for one in calls)


@RULES.add("copied-after-each-step", "the target is the trained network itself, and moves with every step", "copy every few hundred steps, or move the copy a little: target * 0.995 + net * 0.005")
def _copied_each_time(program: Program) -> Iterator[Remark]:
    """A target network that is given all weights of the trained one beside each of its optimizer's steps."""
    flow = flow_of(program)
    copies = {flow.key(call.func) for _, prediction, target in compared(flow) for call in following(flow, target)}
    for call in program.calls():
        statement = program.parent.get(call)
        if not is_method(call, "load_state_dict") or flow.key(call.func.value) not in copies - {None} or not isinstance(statement, ast.Expr):
            continue
        given = call.args[0] if call.args else None
        block = program.block(statement)
        steps = [one for one in events_of(flow, block) if one.what == "step" and one.always and one.node.lineno < call.lineno]
        straight = [one for one in steps if program.block(program.statement(one.node)) == block]
        nets = [optimized(flow, one.of) for one in straight]
        if is_method(given, "state_dict") and straight and any(net is not None and flow.origin(net) == flow.origin(flow.key(given.func.value)) for net in nets):
            yield Remark(call, f"{short(call)} follows each {short(straight[-1].node)}: the copy that the targets are made with is always the trained network as it is")


@RULES.add("judged-by-the-trained-network", "the value of the next action comes from the network that is trained, and the copy only chooses: targets move with each step", "choose with the trained network, and take the value of the copy")
def _swapped(program: Program) -> Iterator[Remark]:
    """A double target whose action the copy chooses and whose value the trained network gives."""
    flow = flow_of(program)
    seen: set[ast.AST] = set()
    for _, prediction, target in compared(flow):
        mine = {flow.key(one.func) for one in flow.origins(prediction) if isinstance(one, ast.Call)} - {None}
        for one in flow.origins(target):
            if not is_method(one, "gather") or len(one.args) < 2 or one in seen:
                continue
            value, index = flow.value(one.func.value), one.args[-1]
            chosen = [call for part in flow.origins(index) if is_method(part, "argmax", "max") for call in flow.origins(part.func.value) if isinstance(call, ast.Call) and _runs(flow, call)]
            if isinstance(value, ast.Call) and flow.key(value.func) in mine and chosen and all(flow.key(call.func) not in mine for call in chosen):
                seen.add(one)
                yield Remark(one, f"{short(one)} takes the value of {short(value)}, the network that is trained, for the action that {short(chosen[0])} chooses")


@RULES.add("trained-network-pulled-to-the-copy", "the copy never changes, and each step is undone a little: the network stays near its first weights", "move the copy towards the network: give it as the one that is changed")
def _pulled(program: Program) -> Iterator[Remark]:
    """A soft update that changes the network which an optimizer holds, towards a copy that none holds."""
    flow = flow_of(program)
    held = trained(flow)
    for loop in program.everywhere(ast.For):
        over = loop.iter
        if not is_call(over, "zip") or len(over.args) != 2 or not isinstance(loop.target, ast.Tuple) or not all(is_method(one, "parameters") for one in over.args):
            continue
        names = [last_word(one) for one in loop.target.elts]
        changed = [number for number, name in enumerate(names) if any(_moves(node, name, names[1 - number]) for node in ast.walk(loop))]
        if len(names) != 2 or len(changed) != 1:
            continue
        owners = [one.func.value for one in over.args if is_method(one)]
        mine, other = owners[changed[0]], owners[1 - changed[0]]
        function = program.function_of(loop)
        pairs: list[tuple[ast.AST, ast.AST, ast.AST]] = []
        if function is not None and isinstance(mine, ast.Name) and isinstance(other, ast.Name):
            for call in program.calls():
                given = program.arguments(function, call) if program.run_by(call) is function else {}
                if mine.id in given and other.id in given:
                    pairs.append((given[mine.id], given[other.id], call))
        for one, two, place in pairs or [(mine, other, loop)]:
            first, second = flow.origin(flow.key(one)), flow.origin(flow.key(two))
            copy = flow.made(second)
            if first in held and second not in held and copy is not None and last_word(copy.func) == "deepcopy":
                yield Remark(place, f"{short(one)}, which an optimizer trains, is moved towards {short(two)}, its copy: the copy is what should follow")


def _moves(node: ast.AST, name: str, other: str) -> bool:
    """Whether a node changes a parameter in place by a mixture with another one."""
    if is_method(node, "copy_", "lerp_", "add_") and node.args and last_word(without_data(node.func.value)) == name:
        mixed = is_method(node, "lerp_", "add_") or names_of(node.args[0]) >= {name, other}
        return mixed and other in names_of(node)
    if is_method(node, "add_") and is_method(node.func.value, "mul_") and last_word(without_data(node.func.value.func.value)) == name:
        return other in names_of(node)
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    return is_attribute(target, "data") and last_word(target.value) == name and isinstance(node, ast.Assign) and names_of(node.value) >= {name, other}


# The policy -----------------------------------------------------------------------------


@RULES.add("returns-of-scaled-advantages", "the critic learns values on another scale than the rewards have, and the next advantages are made with those", "compute the returns first: returns = advantages + values, and normalize after that")
def _scaled_returns(program: Program) -> Iterator[Remark]:
    """Returns that are made of advantages after they were normalized."""
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp):
        if not is_binary(node, ast.Add):
            continue
        for one, other in ((node.left, node.right), (node.right, node.left)):
            named = re.search(r"adv|gae", last_word(one), re.I) and re.search(r"(^|_)v(al(ue)?s?)?(_|$|\d)|values?$", last_word(_plain(other)), re.I)
            made = _normalized(flow, one) if named else None
            if made is not None:
                yield Remark(node, f"{short(node)} is to be the returns, and {short(one)} was normalized in line {getattr(made, 'lineno', 0)}: it is no longer on the scale of the rewards")


def _normalized(flow: Flow, node: ast.AST) -> ast.AST | None:
    """What gives a variable a mean of 0 and a deviation of 1."""
    if is_own(node):
        before = [one for one in flow.program.block(flow.program.statement(node)) if isinstance(one, ast.Assign) and text_of(one.targets[0]) == text_of(node) and one.lineno < node.lineno]
        value: ast.AST | None = before[-1].value if before else None
    else:
        value = flow.held(node)
    if not is_binary(value, ast.Div) or not is_binary(value.left, ast.Sub):
        return None
    return value if is_method(value.left.right, "mean") and any(is_method(one, "std") for one in ast.walk(value.right)) else None


@RULES.add("policy-without-gradient", "the policy's loss has no gradient from what its actions were worth: it learns nothing of them", "keep log_prob as it is, and detach the advantage")
def _no_gradient(program: Program) -> Iterator[Remark]:
    """A policy gradient whose log probability is taken out of the graph."""
    flow = flow_of(program)
    seen: set[ast.AST] = set()
    for added, _ in minimized(program, flow):
        for _, term in added:
            parts = [one.operand if is_negative(one) else one for one in factors(term.operand if is_negative(term) else term)]
            worth = [one for one in parts if says(one, "adv", "return", "reward", "delta", "td_err", "gae")]
            for part in parts if len(parts) == 2 and len(worth) == 1 and worth[0] in parts and term not in seen else ():
                if part is not worth[0] and (cut := _cut_log_prob(flow, part)) is not None:
                    seen.add(term)
                    yield Remark(cut, f"{short(cut)} takes the log probability out of the graph, and {short(term)} is to train the policy through it")


def _cut_log_prob(flow: Flow, node: ast.AST) -> ast.AST | None:
    """The call that takes a log probability out of the graph, on the way from where it is made."""
    cut: ast.AST | None = None
    value = flow.value(node)
    for _ in range(6):
        if is_method(value, "log_prob"):
            return cut or (value if flow.program.without_gradient(value) and not flow.program.without_gradient(node) else None)
        if not is_method(value, *_SHAPED, "sum", "mean"):
            return None
        cut = value if value.func.attr in ("detach", "item", "numpy") else cut
        value = flow.value(value.func.value)
    return None
