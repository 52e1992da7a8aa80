"""Steps of an environment, actions, exploration, and second copies of a network. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    ORDERS,
    Function,
    Loop,
    argument,
    compares,
    is_attribute,
    is_binary,
    is_call,
    is_method,
    is_name,
    is_own,
    last_word,
    names_of,
    names_set,
    operands,
    own,
    pairs_of,
    returned,
    says,
    short,
    text_of,
    without_data,
)

RULES = Rules("rollout")

_STORES = ("append", "push", "add", "store", "remember", "store_transition", "put", "cache", "memorize")
"""What the methods are called by which a step goes into a memory."""


# Copies of a network --------------------------------------------------------------------


@RULES.add(
    "average-forgets", "the target is the trained network itself, and no longer steady",
    "write slow * (1 - tau) + fast * tau with a small tau",
)
def _averages(program: Program) -> Iterator[Remark]:
    """A slow copy that is a*slow + (1-a)*fast with an `a` near 0 is the fast network itself."""
    flow = flow_of(program)
    for call in program.calls():
        if is_method(call, "copy_") and len(call.args) == 1:
            yield from _of_average(flow, call, call.func.value, call.args[0])
    for node in program.everywhere(ast.Assign):
        stored = isinstance(node.targets[0], ast.Subscript) and any(
            isinstance(one, ast.For) and is_method(one.iter, "named_parameters", "state_dict")
            for one in program.parents(node)
        )
        if is_attribute(node.targets[0], "data") or stored:
            yield from _of_average(flow, node, node.targets[0], node.value)
    for call in program.calls():
        share = None
        if is_method(call, "lerp_") and len(call.args) == 2:
            share = flow.number(call.args[1])
        elif is_method(call, "add_") and call.args:
            share = _added(flow, call)
        if share is not None and 0.9 <= share < 1:
            yield _wrong_way_round(call, 1 - share)


def _added(flow: Flow, call: ast.Call) -> float | None:
    """The share of the new weights in `slow.mul_(a).add_(fast, alpha=1 - a)`, also as two statements."""
    slow, new = call.func.value if is_method(call) else call, call.args[0]
    if not is_method(slow, "mul_"):
        block = flow.program.block(flow.program.statement(call))
        written = text_of(without_data(slow))
        for one in block:
            before = one.value if isinstance(one, ast.Expr) and one.lineno < call.lineno else None
            if is_method(before, "mul_") and text_of(without_data(before.func.value)) == written:
                slow = before
    share = flow.number(argument(call, "alpha"))
    if share is None and is_binary(new, ast.Mult):
        shares = map(flow.number, (new.left, new.right))
        share = next((found for found in shares if found is not None), None)
    kept = flow.number(slow.args[0]) if is_method(slow, "mul_") and slow.args else None
    return share if share is not None and kept is not None and abs(kept + share - 1) < 1e-6 else None


def _wrong_way_round(node: ast.AST, kept: float) -> Remark:
    return Remark(
        node,
        f"{short(node)} keeps only {kept:g} of the old average: decay and share of the new weights are the "
        "wrong way round",
    )


def _of_average(flow: Flow, node: ast.AST, written: ast.AST, value: ast.AST) -> Iterator[Remark]:
    if not is_binary(value, ast.Add):
        return
    slow = text_of(without_data(written))
    shares = []
    for part in (value.left, value.right):
        if not is_binary(part, ast.Mult):
            return
        for factor, tensor in operands(part):
            if (share := flow.number(factor)) is not None:
                shares.append((share, text_of(without_data(tensor))))
                break
    kept = [share for share, name in shares if name == slow]
    if len(kept) != 1 or len(shares) != 2 or shares[0][1] == shares[1][1]:
        return
    other = next(share for share, name in shares if name != slow)
    if abs(kept[0] + other - 1) < 1e-6 and kept[0] <= 0.1 and other < 1:
        yield _wrong_way_round(node, kept[0])


@RULES.add(
    "copy-of-itself", "the second network never follows the first, or always is the first",
    "make it by copy.deepcopy and update it from the network that is trained",
)
def _from_itself(program: Program) -> Iterator[Remark]:
    """A copy that is updated from itself, and a copy that is no copy."""
    for call in program.calls():
        if is_method(call, "load_state_dict") and call.args and is_method(call.args[0], "state_dict"):
            one, other = text_of(call.func.value), text_of(call.args[0].func.value)
            if one == other and says(call.func.value, "optim", "sched"):
                continue  # a check of what is saved
            if one == other:
                yield Remark(call, f"{short(call)} loads a network's weights into itself")
            else:
                yield from _one_object(program, call, one, other)
    for loop in program.everywhere(ast.For):
        if is_call(loop.iter, "zip") and len(loop.iter.args) == 2:
            first, second = loop.iter.args
            same = is_method(first, "parameters") and text_of(first) == text_of(second)
            if same and any(is_method(part, "copy_", "lerp_", "mul_") for part in ast.walk(loop)):
                yield Remark(
                    loop, f"the loop runs over {text_of(first)} twice: the average is updated from itself"
                )


def _one_object(program: Program, call: ast.Call, one: str, other: str) -> Iterator[Remark]:
    assignments = list(program.everywhere(ast.Assign))
    for node in assignments:
        texts = [text_of(target) for target in node.targets]
        if len(texts) == 2 and {one, other} == set(texts) and isinstance(node.value, ast.Call):
            yield Remark(
                node, f"{short(node)} makes one network with two names: {short(call)} changes nothing"
            )
        pair = (text_of(node.value), texts[0]) if isinstance(node.value, (ast.Name, ast.Attribute)) else None
        if pair not in ((one, other), (other, one)) or program.class_of(node) is not program.class_of(call):
            continue
        inside = program.class_of(node) is not None or program.function_of(node) is program.function_of(call)
        if inside and sum(1 for again in assignments if text_of(again.targets[0]) == texts[0]) == 1:
            said = (
                f"{text_of(node)} makes no copy: both are the same network, and {short(call)} changes nothing"
            )
            yield Remark(node, said)


# Steps of an environment --------------------------------------------------------------------


@RULES.add(
    "state-out-of-step", "states, actions and what followed do not belong together",
    "store first, then write state = next_state",
)
def _transitions(program: Program) -> Iterator[Remark]:
    """States that never advance, or that are overwritten before they are stored."""
    for loop in program.everywhere(ast.For, ast.While):
        assert isinstance(loop, Loop)
        for number, node in enumerate(loop.body):
            call = node.value if isinstance(node, ast.Assign) else None
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            if not is_method(call, "step") or len(call.args) != 1 or not isinstance(target, ast.Tuple):
                continue
            if len(target.elts) in (3, 4, 5) and is_name(target.elts[0]):
                yield from _stale(program, loop, node, call.args[0], target.elts[0].id)
                yield from _too_late(loop.body[number + 1 :], target.elts[0].id)


def _stale(
    program: Program, loop: Loop, node: ast.stmt, action: ast.expr, following: str
) -> Iterator[Remark]:
    derived = following.removeprefix("next_").removeprefix("new_").removesuffix("_next").removesuffix("_")
    begun = _begun_with(program, loop, node)
    before = [one for part in loop.body[: loop.body.index(node)] for one in ast.walk(part)]
    chosen = [action] + [
        one.value
        for one in before
        if isinstance(one, ast.Assign) and any(names_of(action) & names_of(target) for target in one.targets)
    ]
    for state in [derived] if derived not in ("", following) else sorted(begun - {following}):
        around = (ast.Call, ast.keyword) if state == derived else (ast.AST,)
        reads = any(
            is_name(one, state) and isinstance(program.parent.get(one), around)
            for value in chosen
            for one in ast.walk(value)
        )
        made = state in names_set(program.frame(loop))
        if reads and made and state not in names_set(loop) and not _written_into(loop, state):
            said = f"{state} is never set to {following} in the loop"
            yield Remark(node, f"{said}: every action is chosen for the first state")
            return


def _begun_with(program: Program, loop: Loop, node: ast.stmt) -> set[str]:
    """Names that the environment gave a first state before the loop, but not one that it writes in."""
    step = node.value if isinstance(node, ast.Assign) else None
    called = step.func if isinstance(step, ast.Call) else None
    found: set[str] = set()
    if not isinstance(called, ast.Attribute) or _is_own_array(program):
        return found
    for one in own(program.frame(loop), ast.Assign):
        if one.lineno >= loop.lineno or loop in program.parents(one) or not is_method(one.value, "reset"):
            continue
        if text_of(one.value.func.value) == text_of(called.value):
            firsts = [part.elts[0] if isinstance(part, ast.Tuple) else part for part in one.targets]
            found |= {first.id for first in firsts if isinstance(first, ast.Name)}
    return found


def _is_own_array(program: Program) -> bool:
    """Whether an environment gives its own array, which its next step may write in."""
    for of in program.everywhere(ast.ClassDef):
        assert isinstance(of, ast.ClassDef)
        reset = program.method(of, "reset")
        given = returned(reset) if reset is not None and program.method(of, "step") is not None else []
        if any(is_own(one) for one in given if one is not None):
            return True
    return False


def _written_into(loop: Loop, name: str) -> bool:
    """Whether a loop writes into the array that a name stands for."""
    for one in ast.walk(loop):
        if isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Store) and is_name(one.value, name):
            return True
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute):
            changed = one.args[:1] if one.func.attr == "copyto" else [one.func.value]
            if one.func.attr.endswith(("_", "copyto")) and any(is_name(given, name) for given in changed):
                return True
    return False


def _too_late(rest: list[ast.stmt], following: str) -> Iterator[Remark]:
    moved: tuple[str, ast.stmt] | None = None
    for statement in rest:
        if isinstance(statement, ast.Assign):
            for name, value in pairs_of(statement):
                if is_name(name) and is_name(value, following):
                    moved = name.id, statement
        call = statement.value if isinstance(statement, ast.Expr) else None
        if moved is not None and is_method(call, *_STORES):
            only = call.args[0] if len(call.args) == 1 else None
            given = only.elts if isinstance(only, ast.Tuple) else call.args
            if len(given) >= 4 and {moved[0], following} <= {last_word(one) for one in given if is_name(one)}:
                yield Remark(
                    call,
                    f"{moved[0]} is {following} since line {moved[1].lineno}, so {short(call)} "
                    "stores the state after the action twice",
                )
                return


@RULES.add(
    "state-changed-after-it-was-returned",
    "a state and the one that follows it are one array: each transition leads from a state to itself",
    "return self.state.copy(), or write self.state = self.state + change",
)
def _same_array(program: Program) -> Iterator[Remark]:
    """An environment that returns the array in which its next step writes; a loop that keeps two states."""
    for of in program.everywhere(ast.ClassDef):
        step = program.method(of, "step")
        if step is None:
            continue
        for name, given in _own_results(step):
            views = _views_of(step, name)
            writes = [
                one for one in ast.walk(step)
                if _writes_into(program, one, name)
                or (isinstance(one, ast.AugAssign) and is_name(one.target, *views) and bool(views))
            ]
            anew = any(
                is_own(target) and target.attr == name
                for one in own(step, ast.Assign) for target in one.targets
            )
            kept = _kept_together(program, of, name) if writes and not anew else None
            if kept is not None:
                changed, stored = (getattr(one, "lineno", 0) for one in (writes[0], kept))
                yield Remark(
                    given,
                    f"step() of {of.name} returns self.{name} itself and writes into it (line {changed}); "
                    f"in {short(kept)} (line {stored}) both states are the same array",
                )


def _own_results(step: Function) -> Iterator[tuple[str, ast.expr]]:
    """Attributes of self that a method returns as they are, first or alone."""
    for value in returned(step):
        first = value.elts[0] if isinstance(value, ast.Tuple) and value.elts else value
        if is_own(first):
            yield first.attr, first


def _views_of(step: Function, name: str) -> list[str]:
    """Variables that are slices of an attribute of self, and so share its memory."""
    return [
        target.id for node in own(step, ast.Assign) for target, value in pairs_of(node)
        if is_name(target) and isinstance(value, ast.Subscript) and is_own(value.value)
        and value.value.attr == name and any(isinstance(one, ast.Slice) for one in ast.walk(value.slice))
    ]


def _writes_into(program: Program, node: ast.AST, name: str) -> bool:
    """Whether a statement or call changes the array that an attribute of self holds."""
    if isinstance(node, ast.Call):
        out = argument(node, "out")
        return is_own(out) and out.attr == name
    if not isinstance(node, (ast.AugAssign, ast.Assign)):
        return False
    for target in [node.target] if isinstance(node, ast.AugAssign) else node.targets:
        at = target.value if isinstance(target, ast.Subscript) else target
        if is_own(at) and at.attr == name:
            array = isinstance(node, ast.AugAssign) and program.family(node.value) in ("array", "tensor")
            return isinstance(target, ast.Subscript) or array
    return False


def _kept_together(program: Program, of: ast.ClassDef, name: str) -> ast.AST | None:
    """The call or tuple of a loop that takes the state before a step and the one after it."""
    reset = program.method(of, "reset")
    resets = reset is not None and any(own_name == name for own_name, _ in _own_results(reset))
    for call in program.calls():
        node = program.parent.get(call)
        if not is_method(call, "step") or program.kind_name(call.func.value) != of.name:
            continue
        if not isinstance(node, ast.Assign):
            continue
        target = node.targets[0]
        after = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
        before = {
            target.id for one in ast.walk(program.scope(call)) if isinstance(one, ast.Assign)
            for target, value in pairs_of(one) if is_name(target)
            and (is_name(value, last_word(after)) or (resets and is_method(value, "reset")))
        }
        for one in program.after(node):
            for inner in ast.walk(one):
                names = {at.id for at in _elements(inner) if is_name(at)}
                if last_word(after) in names and before & names:
                    return inner
    return None


def _elements(node: ast.AST) -> list[ast.expr]:
    """The arguments of a call, and the elements of a tuple that is read."""
    if isinstance(node, ast.Call):
        return node.args
    return node.elts if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load) else []


@RULES.add(
    "action-drawn-twice", "the policy is rewarded for an action that was not taken",
    "draw once, and use that action for both",
)
def _drawn_twice(program: Program) -> Iterator[Remark]:
    """An action is drawn for the environment, and another one for what is learned from."""
    for function in program.scopes():
        calls = own(function, ast.Call)
        draws = [
            (one, text_of(one.func.value))
            for one in calls
            if is_method(one, "sample", "rsample") and not one.args
        ]
        for call, of in draws:
            around = program.parent.get(call)
            while is_method(around, "detach", "item"):
                around = program.parent.get(around)
            other = [one for one, text in draws if one is not call and text == of]
            if other and is_method(around, "log_prob") and text_of(around.func.value) == of:
                yield Remark(
                    around,
                    f"{short(around)} draws another action than line "
                    f"{getattr(other[0], 'lineno', 0)}: the log probability is not that of the action taken",
                )
            elif not other and is_method(around, "log_prob") and text_of(around.func.value) == of:
                worth = _worth(program, around)
                if worth is not None:
                    yield Remark(
                        around,
                        f"{short(around)} draws a new action, and {short(worth, 30)} is what another one "
                        "was worth",
                    )


def _worth(program: Program, log_prob: ast.AST) -> ast.AST | None:
    """What the log probability of an action is multiplied by, where that is an advantage or a return."""
    flow = flow_of(program)
    statement = program.statement(log_prob)
    uses: list[ast.AST] = [log_prob]
    if isinstance(statement, ast.Assign) and is_name(statement.targets[0]):
        uses += [one for one in own(program.frame(log_prob), ast.Name) if flow.held(one) is statement.value]
    for use in uses:
        at, around = use, program.parent.get(use)
        while isinstance(around, (ast.Attribute, ast.Call)):
            at, around = around, program.parent.get(around)
        for one, other in operands(around) if is_binary(around, ast.Mult) else ():
            named = [part for part in flow.origins(other) if is_name(part)]
            if one is at and any(says(part, "adv", "return", "reward", "delta", "gae") for part in named):
                return other
    return None


def _explores(nodes: list[ast.stmt]) -> bool:
    return any(
        is_method(one, "randrange", "randint", "choice")
        or (is_method(one, "sample") and "action_space" in text_of(one))
        for part in nodes
        for one in ast.walk(part)
    )


@RULES.add(
    "exploration-inverted",
    "the agent acts at random when it should use what it has learned, and the other way round",
    "explore where random() < epsilon",
)
def _exploration(program: Program) -> Iterator[Remark]:
    """The branch for random numbers below epsilon is the one that explores."""
    flow = flow_of(program)
    for node in program.everywhere(ast.If):
        test = node.test
        if not compares(test, *ORDERS):
            continue
        left, right = test.left, test.comparators[0]
        below = isinstance(test.ops[0], (ast.Lt, ast.LtE))
        if says(left, "eps"):
            left, right, below = right, left, not below
        if not says(right, "eps") or not says(left, "rand", "sample", "uniform"):
            continue
        number = flow.number(right)
        if isinstance(right, ast.BinOp) or (number is not None and number >= 0.5):
            continue  # a threshold of 0.9 that never falls is a probability to be greedy
        returns = isinstance(node.body[-1], ast.Return)
        rest = node.orelse or (program.after(node) if returns else [])
        greedy = ("argmax", ".max(")
        inside, outside = (" ".join(map(text_of, part)) for part in (node.body, rest))
        first, second = _explores(node.body), _explores(rest)
        acts = outside if first else inside
        if first != second and first != below and any(word in acts for word in greedy):
            yield Remark(
                node,
                f"if {short(test)}: explores with the probability 1 - {text_of(right)} and "
                f"not {text_of(right)}",
            )


@RULES.add(
    "clamped-on-the-wrong-side", "what should fall slowly is at its last value from the first step on",
    "write max(lowest, value * decay)",
)
def _decays_at_once(program: Program) -> Iterator[Remark]:
    """min() with a floor, or max() with a ceiling: the clamp of a value that decays is on the wrong side."""
    flow = flow_of(program)
    for node in program.everywhere(ast.Assign):
        call = node.value
        if not is_call(call, "min") or len(call.args) != 2:
            continue
        name = text_of(node.targets[0])
        for floor, decayed in (call.args, reversed(call.args)):
            if is_binary(decayed, ast.Mult) and name in (text_of(decayed.left), text_of(decayed.right)):
                factor = flow.number(decayed.right if text_of(decayed.left) == name else decayed.left)
                floored = says(floor, "min", "end") or (flow.number(floor) or 9) < 0.5
                if factor is not None and 0 < factor < 1 and floored:
                    yield Remark(
                        node,
                        f"{short(node)} takes the smaller one: {name} falls to "
                        f"{text_of(floor)} at once; max was meant",
                    )
