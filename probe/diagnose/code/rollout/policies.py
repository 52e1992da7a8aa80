"""Policies and second networks: a ratio of a policy to itself, actions that are never drawn, a copy that is
never called. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Key, Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    argument,
    is_attribute,
    is_binary,
    is_call,
    is_false,
    is_method,
    is_name,
    names_of,
    names_read,
    own,
    short,
    text_of,
)

RULES = Rules("rollout")
_PASSED = ("detach", "sum", "mean", "squeeze", "view", "reshape", "item", "unsqueeze", "float", "to", "cpu")
"""Methods that a log probability, or an action, goes through."""
_GIVING_ITSELF = ("eval", "train", "to", "cuda", "cpu", "requires_grad_", "half", "float")
"""Methods that give the network itself: where that is used, it may be called there."""
_MAINTAINED = frozenset({
    "load_state_dict", "parameters", "named_parameters", "buffers", "named_buffers", "eval", "train", "to",
    "requires_grad_", "cuda", "cpu", "float",
})
"""Methods of a network that compute no output and save nothing."""


def _call_of(flow: Flow, node: ast.AST, name: str) -> ast.Call | None:
    """The call of a method that a log probability, or an action, comes from."""
    for _ in range(8):
        if is_method(node, name):
            return node
        if is_method(node, *_PASSED):
            node = node.func.value
        elif (held := flow.held(node)) is not None:
            node = held
        else:
            return None
    return None


def _written(flow: Flow, call: ast.Call) -> str:
    """A log probability with the distribution that it is of written out."""
    assert isinstance(call.func, ast.Attribute)
    return _made(flow, call.func.value) + text_of(ast.Tuple(call.args, ast.Load()))


def _made(flow: Flow, node: ast.AST) -> str:
    """What a value is made by, and which part: `d` of `d, v = net(x)` and `net(x)[0]` are the same."""
    one = flow.given(node)
    if one is not None and one.how == "assign" and one.value is not None and one.place is not None:
        return f"{text_of(one.value)}[{one.place}]"
    value = flow.value(node)
    return text_of(node if isinstance(value, ast.Call) and flow.program.family(value) == "module" else value)


@RULES.add(
    "ratio-of-itself", "the ratio is always 1: clipping has no effect, and nothing holds the policy back",
    "keep the log probabilities that the actions had when they were drawn",
)
def _ratio_of_itself(program: Program) -> Iterator[Remark]:
    """A probability ratio whose two sides the same network computes between the same two of its steps."""
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp):
        exponent = any(is_method(one, "exp") for one in _around(program, flow, node))
        if not is_binary(node, ast.Sub) or not exponent:
            continue
        new, old = (_call_of(flow, one, "log_prob") for one in (node.left, node.right))
        if new is None or old is None or new is old or _written(flow, new) != _written(flow, old):
            continue
        loops = program.loops(new)[:1]
        steps = [one for one in ast.walk(loops[0]) if is_method(one, "step")] if loops else []
        first, last = sorted((new.lineno, old.lineno))
        between = [one for one in steps if first < one.lineno < last]
        if loops and loops == program.loops(old)[:1] and steps and not between:
            yield Remark(
                node,
                f"{short(node)} compares the policy with itself: {short(old, 40)} (line {old.lineno}) is "
                "computed by the same weights",
            )


@RULES.add(
    "old-policy-recomputed",
    "the ratio is 1 in each minibatch: clipping has no effect, and nothing holds the policy back",
    "keep the log probabilities that the actions had when they were drawn",
)
def _recomputed(program: Program) -> Iterator[Remark]:
    """A generator of minibatches that computes the old log probabilities with the policy as it is by then."""
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp):
        exponent = any(is_method(one, "exp") for one in _around(program, flow, node))
        new = _call_of(flow, node.left, "log_prob") if is_binary(node, ast.Sub) and exponent else None
        loops = [one for one in program.loops(node) if isinstance(one, ast.For)] if new is not None else []
        loop = next((one for one in loops if isinstance(one.target, ast.Tuple)), None)
        if loop is None or not any(is_method(one, "step") for one in ast.walk(loop)):
            continue
        if not isinstance(loop.target, ast.Tuple) or not isinstance(loop.iter, ast.Call):
            continue
        names = [text_of(one) for one in loop.target.elts]
        places = [number for number, name in enumerate(names) if name == text_of(node.right)]
        function = program.local_function(loop.iter)
        for given in own(function, ast.Yield) if function is not None and places else ():
            parts = given.value.elts if isinstance(given.value, ast.Tuple) else []
            old = _call_of(flow, parts[places[0]], "log_prob") if len(parts) > places[0] else None
            if old is not None and program.loops(old)[:1] == program.loops(given)[:1] != []:
                yield Remark(
                    node,
                    f"{short(node)} compares the policy with itself: {short(old, 40)} (line {old.lineno}) is "
                    "computed anew for each minibatch, by the weights that the last one left",
                )
                break


def _around(program: Program, flow: Flow, node: ast.AST) -> Iterator[ast.AST]:
    """What is done with a value at once: the call around it, or calls of the variable that it is given to."""
    around = program.parent.get(node)
    yield from (one for one in (around, program.parent.get(around) if around is not None else None) if one)
    if isinstance(around, ast.Assign) and is_name(around.targets[0]):
        for read in flow.reads.get((program.scope(node), around.targets[0].id), []):
            user = program.parent.get(read)
            yield from (one for one in (user, program.parent.get(user) if user is not None else None) if one)


@RULES.add(
    "greedy-actions", "the policy never tries another action, so it never learns that one is better",
    "draw the action: dist.sample()",
)
def _greedy(program: Program) -> Iterator[Remark]:
    """The most probable action is taken, and learned from by its log probability."""
    flow = flow_of(program)
    for scope in program.scopes():
        taken = [
            one for one in own(scope, ast.Call)
            if is_method(one, "step") and one.args
            and program.family(one.func.value) not in ("optimizer", "scheduler")
        ]
        for call in own(scope, ast.Call):
            if not is_method(call, "log_prob") or len(call.args) != 1 or program.without_gradient(call):
                continue
            action = call.args[0]
            greedy = _call_of(flow, action, "argmax")
            acted = names_of(action) and any(names_of(action) & names_of(one.args[0]) for one in taken)
            if greedy is not None and acted:
                yield Remark(
                    greedy,
                    f"{short(greedy)} is the action that is taken, and {short(call)} learns from it: the "
                    "most probable action is never compared with another",
                )


@RULES.add(
    "copy-never-called", "what the copy is for is computed by the trained network",
    "compute the targets with the copy",
)
def _never_called(program: Program) -> Iterator[Remark]:
    """A copy of a network that is kept up to date, and neither called nor saved."""
    flow = flow_of(program)
    for key, values in flow.assigned():
        made = values[0] if len(values) == 1 else None
        copied = made is not None and _is_copy(program, made)
        if not isinstance(made, ast.Call) or not (copied or program.family(made) == "module"):
            continue
        uses = [_use(program, node) for node in flow.reads.get(key, [])]
        name = key[1].removeprefix("self.")
        if isinstance(key[0], ast.ClassDef) and flow.attributes.get(name, 0) != len(uses):
            continue  # another class may read it
        if not uses or not all(uses) or not _follows(program, flow, key, copied):
            continue
        if _weights_used(program, flow, key):
            continue
        if copied and program.family(made.args[0]) != "module":
            continue
        yield Remark(
            made,
            f"{key[1]} is kept up to date ({', '.join(sorted({str(one) for one in uses}))}) and never called",
        )


def _use(program: Program, node: ast.AST) -> str | None:
    """The method that a use of a network calls, if it only maintains it, and what it gives is not used."""
    around = program.parent.get(node)
    user = program.parent.get(around) if around is not None else None
    if not is_attribute(around, *_MAINTAINED) or not isinstance(user, ast.Call) or user.func is not around:
        return None
    if around.attr in _GIVING_ITSELF and not isinstance(outer := program.parent.get(user), ast.Expr):
        return around.attr if is_attribute(outer) and _use(program, user) else None
    return around.attr


def _weights_used(program: Program, flow: Flow, key: Key) -> bool:
    """Whether the weights of a network change more than themselves: they are in a distance, or copied."""
    for node in flow.reads.get(key, []):
        pairs = next((one for one in program.calls_around(node) if is_call(one, "zip")), None)
        user = program.parent.get(pairs) if pairs is not None else None
        target = user.target if isinstance(user, (ast.For, ast.comprehension)) else None
        if pairs is None or user is None or not isinstance(target, ast.Tuple):
            continue
        place = next((number for number, one in enumerate(pairs.args) if node in ast.walk(one)), None)
        names = names_of(target.elts[place]) if place is not None and place < len(target.elts) else set()
        if isinstance(user, ast.For):
            inside = [one for part in user.body for one in ast.walk(part)]
            if any(_reads_for_another(one, names) for one in inside):
                return True
            continue
        beside = [one for one in ast.iter_child_nodes(program.parent[user]) if one is not user]
        if any(names & names_read(one) for one in beside):
            return True
    return False


def _reads_for_another(node: ast.AST, names: set[str]) -> bool:
    """Whether a statement reads names and changes what is not of them."""
    if isinstance(node, ast.Assign):
        changed, given = [*node.targets], [node.value]
    elif isinstance(node, ast.AugAssign):
        changed, given = [node.target], [node.value]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        call = node.value
        changed, given = [call.func], [*call.args, *(word.value for word in call.keywords)]
    else:
        return False
    written = {one.id for part in changed for one in ast.walk(part) if isinstance(one, ast.Name)}
    return not names & written and any(names & names_read(one) for one in given)


def _follows(program: Program, flow: Flow, key: Key, copied: bool) -> bool:
    """Whether a network gets the weights of another one in a loop: by loading them, or by copying each."""
    for node in flow.reads.get(key, []):
        around = program.parent.get(node)
        loads = is_attribute(around, "load_state_dict")
        call = program.parent.get(around) if around is not None else None
        given = call.args[0] if loads and isinstance(call, ast.Call) and call.args else None
        if is_method(given, "state_dict") and flow.loops(node):
            return True
        paired = any(is_call(one, "zip") for one in program.calls_around(node))
        if copied and is_attribute(around, "parameters") and paired:
            return True
    return False


@RULES.add(
    "average-without-buffers",
    "the average is evaluated with the running statistics that the copy was made with",
    "copy the buffers too: for b, a in zip(average.buffers(), model.buffers()): b.copy_(a)",
)
def _without_buffers(program: Program) -> Iterator[Remark]:
    """An average of a model with batch normalization that takes its parameters only, and is in eval mode."""
    flow = flow_of(program)
    if not _has_statistics(program):
        return
    for loop in program.everywhere(ast.For):
        pairs = loop.iter.args if is_call(loop.iter, "zip") and len(loop.iter.args) == 2 else [loop.iter]
        if not all(is_method(one, "parameters", "named_parameters") for one in pairs):
            continue
        moved = [one for one in ast.walk(loop) if is_method(one, "mul_", "lerp_")]
        if len(pairs) == 1:  # what else it takes stands in the loop's body
            added = [one for one in moved if is_attribute(program.parent.get(one), "add_")]
            moved = [one for one in moved if is_method(one, "lerp_")] + added
        if not any(names_read(one.func.value) & names_of(loop.target) for one in moved):
            continue
        average = pairs[0].func.value if is_method(pairs[0]) else loop
        key = flow.origin(flow.key(average))
        made, calls = flow.only(key), flow.called_on(key)
        copied = [one for one in ast.walk(made) if _is_copy(program, one)] if made is not None else []
        in_eval = "eval" in calls or is_method(made, "eval")
        if copied and in_eval and not calls & {"train", "load_state_dict"}:
            yield Remark(
                loop,
                f"the loop over {short(pairs[0])} leaves out the running statistics of the batch "
                f"normalizations: those of {text_of(average)} stay as they were when it was copied",
            )


@RULES.add(
    "released-without-buffers",
    "the network is evaluated with the running statistics that it was made with",
    "keep the state_dict of the network, buffers included, and load it whole",
)
def _released(program: Program) -> Iterator[Remark]:
    """The parameters alone, loaded into a network with batch normalization that was just made."""
    flow = flow_of(program)
    if not _has_statistics(program):
        return
    for call in program.calls():
        strict = argument(call, "strict", 1) if is_method(call, "load_state_dict") and call.args else None
        made = flow.held(call.func.value) if is_false(strict) and is_method(call) else None
        state = flow.only(flow.key(call.args[0])) if isinstance(made, ast.Call) else None
        given = state.generators[0].iter if isinstance(state, ast.DictComp) else None
        if made is None or not is_method(given, "named_parameters") or _loaded_too(program, call):
            continue
        if _in_eval(program, call):
            yield Remark(
                call,
                f"{short(call)} fills {short(made, 40)} with {short(given)} alone, without the running "
                "statistics of its batch normalizations",
            )


def _loaded_too(program: Program, call: ast.Call) -> bool:
    """Whether other weights are loaded into the network of a call too."""
    same = (one for one in program.calls() if one is not call and is_method(one, "load_state_dict"))
    return is_method(call) and any(text_of(one.func) == text_of(call.func) for one in same)


def _has_statistics(program: Program) -> bool:
    """Whether a program has batch normalizations, and neither reads nor computes their buffers by itself."""
    names = {program.called(call).rpartition(".")[2] for call in program.calls()}
    read = any(is_attribute(one, "buffers", "named_buffers") for one in program.everywhere(ast.Attribute))
    normalized = any(name.startswith(("BatchNorm", "SyncBatchNorm")) for name in names)
    return normalized and not read and "update_bn" not in names


def _in_eval(program: Program, loaded: ast.Call) -> bool:
    """Whether the function around a call puts its object into eval mode."""
    of = loaded.func.value if is_method(loaded) else None
    frame = program.frame(loaded)
    return of is not None and any(
        is_method(one, "eval") and text_of(one.func.value) == text_of(of) for one in ast.walk(frame)
    )


def _is_copy(program: Program, node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and program.called(node) == "copy.deepcopy" and bool(node.args)
