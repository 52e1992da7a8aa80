"""Returns and bootstrapped targets: their order, the ends of episodes, their shape. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.loop.loss_rules import CUT
from probe.diagnose.code.program import Program
from probe.diagnose.code.rollout.terms import factors
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    Function,
    argument,
    is_attribute,
    is_binary,
    is_call,
    is_method,
    is_name,
    is_own,
    is_read,
    is_string,
    last_word,
    names_of,
    names_read,
    number_in,
    operands,
    own,
    own_nodes,
    parameters,
    says,
    short,
    text_of,
)
from probe.diagnose.code.torch_losses import is_loss

RULES = Rules("rollout")

ENDS = (
    "done", "dones", "terminated", "terminal", "terminals", "is_done", "done_batch", "batch_done",
    "dones_batch", "done_b", "b_done",
)
_GOES_ON = ("mask", "done", "terminal", "alive", "contin")
"""Words in the names of what is 0 at the end of an episode."""


def _reversed(node: ast.AST) -> bool:
    """Whether a loop runs from the end to the start."""
    return any(
        is_name(one, "reversed")
        or (isinstance(one, ast.Slice) and isinstance(one.step, ast.UnaryOp))
        or (is_call(one, "range") and len(one.args) == 3)
        or is_attribute(one, "flip", "flipud")
        for one in ast.walk(node)
    )


def _discounted(node: ast.stmt) -> tuple[str, ast.AST] | None:
    """The name and the reward of `R = reward + gamma * R`."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not is_binary(node.value, ast.Add):
        return None
    name = last_word(node.targets[0]) if is_name(node.targets[0]) else ""
    for reward, rest in operands(node.value):
        names = names_of(reward)
        rewards = any("rew" in one.lower() or one == "r" for one in names)
        if rewards and name not in names and is_binary(rest, ast.Mult) and name in names_of(rest):
            return name, reward
    return None


@RULES.add(
    "returns-in-the-wrong-order",
    "actions are rewarded for what came before them, or for those of another step",
    "go over reversed(rewards), and insert each return at the front",
)
def _returns(program: Program) -> Iterator[Remark]:
    for loop in program.everywhere(ast.For):
        yield from _estimated_forwards(program, loop)
        for number, node in enumerate(loop.body):
            found = _discounted(node)
            if found is None:
                continue
            name, reward = found
            if not (names_of(reward) & names_of(loop.target)) or is_method(loop.iter, "step"):
                continue
            if is_name(loop.iter) and "revers" in loop.iter.id.lower():
                continue
            if any(is_method(one, "step") for one in ast.walk(loop)):
                continue
            counted = is_call(loop.iter, "zip", "range", "enumerate")
            direct = counted or isinstance(loop.iter, (ast.Name, ast.Attribute))
            if direct and not _reversed(loop.iter) and not _turned(program, loop):
                yield Remark(
                    node,
                    f"{short(node)} runs over {short(loop.iter, 40)} from the start: "
                    "each return adds up the rewards before it and not those after it",
                )
            elif _reversed(loop.iter):
                yield from _not_turned(program, loop, loop.body[number + 1 :], name)
                yield from _end_unused(loop, node)


def _estimated_forwards(program: Program, loop: ast.For) -> Iterator[Remark]:
    """A generalized advantage that is added up from the first step on."""
    summed = _sums_up(loop)
    counted = is_call(loop.iter, "range", "enumerate", "zip") and not _reversed(loop.iter)
    if summed is None or not counted or not isinstance(summed, ast.Assign) or not says(summed, "lam", "tau"):
        return
    differences = [
        one for one in own(loop, ast.Assign)
        if is_binary(one.value, ast.Sub) and says(one, "gamma", "discount")
        and _last_names(one) & names_of(summed)
    ]
    steps = any(is_method(one, "step") for one in ast.walk(loop))
    if differences and not steps and not _turned(program, loop):
        said = "each advantage adds up the errors before it and not those after it"
        yield Remark(summed, f"{short(summed)} runs over {short(loop.iter, 40)} from the start: {said}")


def _last_names(node: ast.Assign) -> set[str]:
    return {target.id for target in node.targets if isinstance(target, ast.Name)}


def _turned(program: Program, loop: ast.For) -> bool:
    """Whether what a loop runs over was turned round before."""
    block = program.frame(loop)
    names = names_of(loop.iter)
    for one in own_nodes(block):
        if is_method(one, "reverse", "insert") and names_of(one.func.value) & names:
            return True
        if isinstance(one, ast.Assign) and names_of(one.targets[0]) & names and _reversed(one.value):
            return True
    return False


def _not_turned(program: Program, loop: ast.For, rest: list[ast.stmt], name: str) -> Iterator[Remark]:
    for statement in rest:
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not is_method(call, "append") or len(call.args) != 1:
            continue
        if names_of(call.args[0]) - {"torch", "float", "np"} != {name}:  # a term of a loss, of its own step
            continue
        if not is_name(call.func.value):
            continue
        kept = call.func.value.id
        around = program.frame(loop)
        later = [one for one in ast.walk(around) if getattr(one, "lineno", 0) > call.lineno]
        text = [one for one in later if isinstance(one, (ast.Call, ast.Subscript)) and kept in names_of(one)]
        turns = ("reverse", "sort", "index", "popleft", "pop")
        if any(_reversed(one) or is_method(one, *turns) for one in text):
            continue
        if any(program.called(one).startswith(("torch.", "numpy.")) for one in text):
            yield Remark(
                call,
                f"{kept} is filled from the last step to the first and never turned round: each return "
                "belongs to another step",
            )


def _end_unused(loop: ast.For, node: ast.stmt) -> Iterator[Remark]:
    ends = [one for one in names_of(loop.target) if one in ENDS]
    if len(ends) == 1 and ends[0] not in names_read(loop):
        yield Remark(
            node,
            f"{short(node)} does not use {ends[0]}, which the loop reads: returns go on from one "
            "episode into the one before it",
        )


@RULES.add(
    "end-of-episode-ignored", "the values of last states are estimated as if the episode went on",
    "multiply by (1 - done)",
)
def _end_ignored(program: Program) -> Iterator[Remark]:
    """A batch is unpacked with the ends of episodes, and the target of its values does not use them."""
    for function in program.scopes():
        for node in own(function, ast.Assign):
            target = node.targets[0]
            if not isinstance(target, ast.Tuple) or len(target.elts) < 4:
                continue
            names = [one.id for one in target.elts if isinstance(one, ast.Name)]
            rewards = [one for one in names if "rew" in one.lower() or one in ("r", "rs")]
            ends = [one for one in names if one in ENDS or (one in ("d", "ds") and rewards)]
            if len(ends) != 1 or not rewards or is_method(node.value, "step"):
                continue
            later = [one for one in own_nodes(function) if getattr(one, "lineno", 0) > node.lineno]
            used = any(is_read(one, ends[0]) and not _converts(program, one, ends[0]) for one in later)
            sums = [one for one in later if is_binary(one, ast.Add) and _bootstraps(one, rewards[0])]
            for bootstrap in sums[:1] if not used else ():
                yield Remark(
                    bootstrap,
                    f"{short(bootstrap)} takes the value of what follows an end too: {ends[0]} is "
                    "unpacked and not used",
                )
            if not sums:
                yield from _ends_not_passed(program, later, rewards[0], ends[0])
        yield from _ends_given(function)
    yield from _ends_kept(program)


def _ends_not_passed(
    program: Program, later: list[ast.AST], reward: str, end: str
) -> Iterator[Remark]:
    """A function that is given the rewards, and adds up values without the ends beside them."""
    flow = flow_of(program)
    for call in (one for one in later if isinstance(one, ast.Call)):
        function = program.local_function(call)
        given = program.arguments(function, call) if function is not None else {}
        names = [name for name, value in given.items() if is_name(value, reward)]
        if function is None or not names or any(is_name(one, end) for one in flow.origins(call)):
            continue
        for node in own(function, ast.BinOp):
            if is_binary(node, ast.Add) and any(_bootstraps(node, name) for name in names):
                said = f"{function.name}() is not given {end}, which stands beside {reward}"
                yield Remark(node, f"{short(node)} takes the value of what follows an end too: {said}")
                return


def _ends_kept(program: Program) -> Iterator[Remark]:
    """Ends of episodes that a memory keeps under a name which nothing reads, beside its rewards."""
    kept = {one.value for one in program.everywhere(ast.Constant) if is_string(one) and one.value in ENDS}
    kept |= {
        one.target.id for one in program.everywhere(ast.AnnAssign)
        if is_name(one.target, *ENDS) and isinstance(program.parent.get(one), ast.ClassDef)
    }
    read = {
        one.attr for one in program.everywhere(ast.Attribute)
        if isinstance(one.ctx, ast.Load) and not isinstance(program.parent.get(one), ast.Subscript)
    }
    read |= {
        one.slice.value for one in program.everywhere(ast.Subscript)
        if is_string(one.slice) and isinstance(one.ctx, ast.Load)
    }
    if len(kept) != 1 or kept & read:
        return
    for node in program.everywhere(ast.BinOp):
        for one, rest in operands(node) if is_binary(node, ast.Add) else ():
            entry = _entry(one)
            discounts = is_binary(rest, ast.Mult) and says(rest, "gamma", "discount")
            if "rew" in entry.lower() and discounts and not says(rest, *_GOES_ON):
                said = f"{min(kept)!r} is kept beside {entry!r}, and nothing reads it"
                yield Remark(node, f"{short(node)} takes the value of what follows an end too: {said}")
                return


def _entry(node: ast.AST) -> str:
    """The name of an entry of a batch: `batch["rew"]`, `batch.rew`; empty for all else."""
    if isinstance(node, ast.Subscript):
        return node.slice.value if is_string(node.slice) else ""
    return node.attr if is_attribute(node) and not is_own(node) else ""


def _ends_given(function: ast.AST) -> Iterator[Remark]:
    """A function that is given the ends of episodes, or lists them, and adds up returns without them."""
    if not isinstance(function, Function):
        return
    nodes = list(own_nodes(function))
    listed = {one.func.value for one in nodes if is_method(one, "append")}
    names = {one.arg for one in parameters(function)} | {one.id for one in listed if is_name(one, *ENDS)}
    unused = [
        name for name in ENDS
        if name in names and not any(is_read(one, name) and one not in listed for one in nodes)
    ]
    if len(unused) != 1:
        return
    for loop in nodes:
        summed = _sums_up(loop) if isinstance(loop, ast.For) and _reversed(loop.iter) else None
        if summed is not None and not says(loop, *_GOES_ON):
            yield Remark(
                summed,
                f"{short(summed)} goes on from one episode into the one before it: {unused[0]} is known to "
                f"{function.name}() and not used",
            )
            return


def _sums_up(loop: ast.For) -> ast.stmt | None:
    """The statement of a loop that adds up discounted values: `running = delta + gamma * lam * running`."""
    for node in loop.body:
        if isinstance(node, ast.Assign) and is_name(node.targets[0]) and is_binary(node.value, ast.Add):
            name = node.targets[0].id
            for one, rest in operands(node.value):
                discounts = is_binary(rest, ast.Mult) and says(rest, "gamma", "discount", "lam")
                if discounts and name in names_of(rest) and name not in names_of(one):
                    return node
    return None


def _converts(program: Program, use: ast.Name, name: str) -> bool:
    """Whether a use only makes the variable anew: `done = torch.tensor(done)`."""
    statement = program.statement(use)
    return isinstance(statement, ast.Assign) and is_name(statement.targets[0], name)


def _bootstraps(node: ast.BinOp, reward: str) -> bool:
    for one, rest in operands(node):
        if reward in names_of(one) and is_binary(rest, ast.Mult):
            return says(rest, "gamma", "discount")
    return False


def _column(flow: Flow, node: ast.AST) -> bool:
    """Whether a value is a column (N, 1): gather along axis 1 with a column of indices."""
    value = flow.value(node)
    if not is_method(value, "gather") or len(value.args) != 2 or flow.number(value.args[0]) not in (1, -1):
        return False
    index = flow.value(value.args[1])
    while is_method(index, "long", "to", "type", "int"):
        index = flow.value(index.func.value)
    if isinstance(index, ast.Subscript) and text_of(index.slice).strip("()") == ":, None":
        return True
    if not is_method(index):
        return False
    numbers = [flow.number(one) for one in index.args]
    if is_method(index, "view", "reshape"):
        return numbers == [-1, 1]
    return is_method(index, "unsqueeze") and numbers in ([1], [-1])


def _row(program: Program, flow: Flow, node: ast.AST) -> bool:
    """Whether a value of the next states is a row (N): the largest along axis 1, without keeping it."""
    value = flow.value(node)
    while is_method(value, "detach"):
        value = flow.value(value.func.value)
    if is_binary(value, ast.Add, ast.Mult):
        return _row(program, flow, value.left) or _row(program, flow, value.right)
    first = isinstance(value, ast.Subscript) and flow.number(value.slice) == 0
    inner = flow.value(getattr(value, "value", None)) if first or is_attribute(value, "values") else None
    if not is_method(inner, "max") or argument(inner, "keepdim", 1) is not None:
        return False
    return flow.number(argument(inner, "dim", 0)) in (1, -1)


SAME_GRAPH = ("mean", "squeeze", "unsqueeze", "view", "reshape", "flatten", "float", "sum")


def with_graph(flow: Flow, node: ast.AST) -> ast.BinOp | None:
    """The difference that a value is, where it was not taken out of the graph."""
    for _ in range(6):
        if is_binary(node, ast.Sub):
            return node
        if is_binary(node, ast.Div):
            node = node.left
        elif is_method(node, *SAME_GRAPH):
            node = node.func.value
        elif is_name(node) and (held := flow.held(node)) is not None:
            if flow.program.without_gradient(held):
                return None
            node = held
        else:
            return None
    return None


def from_module(flow: Flow, name: ast.AST) -> bool:
    """Whether a variable is the output of a module, with its graph."""
    held = flow.held(name)
    if held is None or flow.program.without_gradient(held):
        return False
    if any(is_method(one, *CUT) for one in ast.walk(held)):
        return False
    return any(isinstance(one, ast.Call) and flow.maker(one) is not None for one in ast.walk(held))


@RULES.add(
    "end-of-episode-inverted", "values are bootstrapped at the ends of episodes, and nowhere else",
    "multiply by (1 - done)",
)
def _end_inverted(program: Program) -> Iterator[Remark]:
    """A bootstrapped target that is multiplied by the end of the episode itself; where `0.0 if done else 1.0`
    is put under whatever name, nothing is said."""
    flow = flow_of(program)
    choices = [(number_in(one.body), number_in(one.orelse)) for one in program.everywhere(ast.IfExp)]
    if (0, 1) in choices:
        return
    for node in program.everywhere(ast.BinOp):
        for reward, rest in operands(node) if is_binary(node, ast.Add) else ():
            multiplied = list(factors(rest))
            if not any("rew" in one.lower() or one in ("r", "rs") for one in names_of(reward)) and not any(
                isinstance(part, ast.Call) and program.family(part.func) == "module"
                for one in multiplied for part in flow.origins(one)
            ):
                continue
            discounts = any(says(one, "gamma", "discount") or flow.number(one) for one in multiplied)
            if len(multiplied) < 3 or not discounts:
                continue
            for end in multiplied:
                bare = _without_casts(end)
                if last_word(bare).lower() in ENDS and not _goes_on_in(flow, bare):
                    yield Remark(
                        node,
                        f"{short(node)} takes the value of what follows only where {text_of(end)} is 1",
                    )


def _without_casts(node: ast.AST) -> ast.AST:
    while is_method(node, "float", "to", "unsqueeze", "squeeze", "view", "long"):
        node = node.func.value
    return node


def _goes_on_in(flow: Flow, node: ast.AST) -> bool:
    """Whether a variable named for ends may hold their opposite: `done = 1 - done`."""
    return any(
        value is not None and any(
            isinstance(one, (ast.Not, ast.Invert, ast.Sub)) for one in ast.walk(value)
        )
        for value in flow.values(flow.key(node))
    )


@RULES.add(
    "best-action-trained", "the reward of one action is learned for another one",
    "take the value of the action that was done: q(states).gather(1, actions)",
)
def _best_action(program: Program) -> Iterator[Remark]:
    """A bootstrapped target compared with the largest value of the state, whatever action was taken."""
    flow = flow_of(program)
    for call in program.calls():
        if not is_loss(program, call) or len(call.args) < 2:
            continue
        predicted, target = call.args[:2]
        best = _largest(flow, predicted)
        if best is None or not is_bootstrap(flow, target):
            continue
        if any(isinstance(one, ast.Call) and program.family(one.func) == "module" for one in ast.walk(best)):
            yield Remark(
                call,
                f"{short(call)} compares the reward of the action that was taken with {short(best)}, the "
                "value of the best one",
            )


def _largest(flow: Flow, node: ast.AST) -> ast.AST | None:
    """The largest value along an axis that an expression is."""
    value = flow.value(node)
    while is_method(value, "squeeze", "view", "unsqueeze"):
        value = flow.value(value.func.value)
    first = isinstance(value, ast.Subscript) and flow.number(value.slice) == 0
    inner = flow.value(getattr(value, "value", None)) if first or is_attribute(value, "values") else value
    along = isinstance(inner, ast.Call) and bool(inner.args or inner.keywords)
    if is_method(inner, "amax") or (is_method(inner, "max") and inner is not value and along):
        return flow.value(inner.func.value)
    return None


def is_bootstrap(flow: Flow, node: ast.AST) -> bool:
    """Whether an expression is a reward and a discounted value."""
    value = flow.value(node)
    while is_method(value, "detach", "unsqueeze", "squeeze", "view", "float"):
        value = flow.value(value.func.value)
    if not is_binary(value, ast.Add):
        return False
    return any(
        any("rew" in name.lower() or name in ("r", "rs") for name in names_of(reward))
        and is_binary(rest, ast.Mult)
        for reward, rest in operands(value)
    )



@RULES.add(
    "column-against-row", "the mean over all pairs pulls every value towards the mean of the targets",
    "squeeze the prediction, or unsqueeze the target",
)
def _columns_and_rows(program: Program) -> Iterator[Remark]:
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp):
        if is_binary(node, ast.Sub):
            for one, other in operands(node):
                if _column(flow, one) and _row(program, flow, other):
                    yield Remark(
                        node,
                        f"{short(node)} subtracts a row (N) from a column (N, 1): each prediction "
                        "is compared with every target",
                    )
    for call in program.calls():
        if is_loss(program, call) and len(call.args) >= 2:
            one, other = call.args[:2]
            if (_column(flow, one) and _row(program, flow, other)) or (
                _column(flow, other) and _row(program, flow, one)
            ):
                said = (
                    f"{short(call)} compares a column (N, 1) with a row (N): each prediction is "
                    "compared with every target"
                )
                yield Remark(call, said)
