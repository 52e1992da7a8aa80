"""Steps of an environment, actions, exploration, and second copies of a network. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.origins import Trace, trace
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rule
from probe.diagnose.code.syntax import (
    Function,
    Loop,
    is_attribute,
    is_binary,
    is_call,
    is_method,
    is_name,
    names_of,
    names_set,
    own,
    short,
    text_of,
)


def _functions(program: Program) -> Iterator[Function | ast.Module]:
    for source in program.sources:
        yield source.tree
    for functions in program.functions.values():
        yield from functions


# Copies of a network --------------------------------------------------------------------


def _averages(program: Program) -> Iterator[Remark]:
    """A slow copy that is a*slow + (1-a)*fast with an `a` near 0 is the fast network itself."""
    known = trace(program)
    for call in program.calls():
        if not is_method(call, "copy_") or len(call.args) != 1:
            continue
        yield from _of_average(program, known, call, call.func.value, call.args[0])
    for node in program.everywhere(ast.Assign):
        if is_attribute(node.targets[0], "data"):
            yield from _of_average(program, known, node, node.targets[0], node.value)
    for call in program.calls():
        if is_method(call, "lerp_") and len(call.args) == 2:
            share = known.number(call.args[1])
            if share is not None and 0.9 <= share < 1:
                yield Remark(
                    call,
                    f"{short(call)} keeps only {1 - share:g} of the old average: decay and share "
                    "of the new weights are the wrong way round",
                )


def _of_average(
    program: Program, known: Trace, node: ast.AST, written: ast.AST, value: ast.AST
) -> Iterator[Remark]:
    if not is_binary(value, ast.Add):
        return
    slow = _bare(program, written)
    shares = []
    for part in (value.left, value.right):
        if not is_binary(part, ast.Mult):
            return
        for factor, tensor in ((part.left, part.right), (part.right, part.left)):
            if known.number(factor) is not None:
                shares.append((known.number(factor), _bare(program, tensor)))
                break
        else:
            return
    kept = [share for share, name in shares if name == slow]
    if len(kept) != 1 or len(shares) != 2 or shares[0][1] == shares[1][1]:
        return
    other = next(share for share, name in shares if name != slow)
    if (
        kept[0] is not None
        and other is not None
        and abs(kept[0] + other - 1) < 1e-6
        and kept[0] <= 0.1
        and other < 1
    ):
        yield Remark(
            node,
            f"{short(node)} keeps only {kept[0]:g} of the old average: decay and share of the new "
            "weights are the wrong way round",
        )


def _bare(program: Program, node: ast.AST) -> str:
    while is_attribute(node, "data"):
        node = node.value
    return text_of(node)


def _from_itself(program: Program) -> Iterator[Remark]:
    """A copy that is updated from itself, and a copy that is no copy."""
    for call in program.calls():
        if is_method(call, "load_state_dict") and call.args and is_method(call.args[0], "state_dict"):
            source = call.args[0]
            assert is_method(source)
            one, other = text_of(call.func.value), text_of(source.func.value)
            if one == other:
                yield Remark(call, f"{short(call)} loads a network's weights into itself")
            else:
                yield from _one_object(program, call, one, other)
    for loop in program.everywhere(ast.For):
        if is_call(loop.iter, "zip") and len(loop.iter.args) == 2:
            first, second = loop.iter.args
            if (
                is_method(first, "parameters")
                and text_of(first) == text_of(second)
                and any(is_method(part, "copy_", "lerp_", "mul_") for part in ast.walk(loop))
            ):
                yield Remark(
                    loop, f"the loop runs over {text_of(first)} twice: the average is updated from itself"
                )


def _one_object(program: Program, call: ast.Call, one: str, other: str) -> Iterator[Remark]:
    assignments = [node for node in program.everywhere(ast.Assign) if isinstance(node, ast.Assign)]
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


def _transitions(program: Program) -> Iterator[Remark]:
    """States that never advance, or that are overwritten before they are stored."""
    for loop in program.everywhere(ast.For, ast.While):
        assert isinstance(loop, Loop)
        for number, node in enumerate(loop.body):
            if (
                not isinstance(node, ast.Assign)
                or not is_method(node.value, "step")
                or not isinstance(node.targets[0], ast.Tuple)
            ):
                continue
            target, call = node.targets[0], node.value
            if (
                len(target.elts) not in (3, 4, 5)
                or not isinstance(target.elts[0], ast.Name)
                or not isinstance(call, ast.Call)
                or len(call.args) != 1
            ):
                continue
            following = target.elts[0].id
            yield from _stale(program, loop, node, following, number)
            yield from _too_late(program, loop, following, number)


def _stale(program: Program, loop: Loop, node: ast.Assign, following: str, number: int) -> Iterator[Remark]:
    state = following.removeprefix("next_").removeprefix("new_").removesuffix("_next").removesuffix("_")
    if state == following or not state or not isinstance(node.value, ast.Call):
        return
    acted = names_of(node.value.args[0])
    chosen = [node.value.args[0]]
    for part in loop.body[:number]:
        chosen += [
            one.value
            for one in ast.walk(part)
            if isinstance(one, ast.Assign)
            and acted & {name for target in one.targets for name in names_of(target)}
        ]
    reads = any(
        is_name(one, state) and isinstance(program.parent.get(one), (ast.Call, ast.keyword))
        for value in chosen
        for one in ast.walk(value)
    )
    written = names_set(loop)
    scope = program.function_of(loop) or program.scope(loop)
    made = state in names_set(scope)
    if reads and made and state not in written:
        yield Remark(
            node,
            f"{state} is never set to {following} in the loop: every action is chosen for the first state",
        )


def _too_late(program: Program, loop: Loop, following: str, number: int) -> Iterator[Remark]:
    moved: tuple[str, ast.stmt] | None = None
    for statement in loop.body[number + 1 :]:
        if (
            isinstance(statement, ast.Assign)
            and isinstance(statement.targets[0], ast.Name)
            and is_name(statement.value, following)
        ):
            moved = statement.targets[0].id, statement
        elif (
            isinstance(statement, ast.Assign)
            and isinstance(statement.targets[0], ast.Tuple)
            and isinstance(statement.value, ast.Tuple)
        ):
            for name, value in zip(statement.targets[0].elts, statement.value.elts, strict=False):
                if isinstance(name, ast.Name) and is_name(value, following):
                    moved = name.id, statement
        elif isinstance(statement, (ast.If, ast.For, ast.While)) and moved is None:
            continue
        elif moved is not None and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            call = statement.value
            given = (
                call.args[0].elts
                if len(call.args) == 1 and isinstance(call.args[0], ast.Tuple)
                else call.args
            )
            names = [one.id for one in given if isinstance(one, ast.Name)]
            if (
                len(given) >= 4
                and moved[0] in names
                and following in names
                and is_method(
                    call,
                    "append",
                    "push",
                    "add",
                    "store",
                    "remember",
                    "store_transition",
                    "put",
                    "cache",
                    "memorize",
                )
            ):
                yield Remark(
                    call,
                    f"{moved[0]} is {following} since line {moved[1].lineno}, so {short(call)} "
                    "stores the state after the action twice",
                )
                return


def _drawn_twice(program: Program) -> Iterator[Remark]:
    """An action is drawn for the environment, and another one for what is learned from."""
    for function in _functions(program):
        draws = [
            one for one in own(function, ast.Call) if is_method(one, "sample", "rsample") and not one.args
        ]
        for call in draws:
            around = program.parent.get(call)
            while is_method(around or call, "detach", "item") and around is not None:
                around = program.parent.get(around)
            assert is_method(call)
            if not isinstance(around, ast.Call) or not is_method(around, "log_prob"):
                continue
            of = text_of(call.func.value)
            if text_of(around.func.value) != of:
                continue
            other = [
                one for one in draws if one is not call and is_method(one) and text_of(one.func.value) == of
            ]
            if other:
                yield Remark(
                    around,
                    f"{short(around)} draws another action than line "
                    f"{getattr(other[0], 'lineno', 0)}: the log probability is not that of the action taken",
                )


def _explores(program: Program, nodes: list[ast.AST]) -> bool:
    for part in nodes:
        for one in ast.walk(part):
            if is_method(one, "randrange", "randint", "choice") or (
                is_method(one, "sample") and "action_space" in text_of(one)
            ):
                return True
    return False


def _exploration(program: Program) -> Iterator[Remark]:
    """The branch for random numbers below epsilon is the one that explores."""
    known = trace(program)
    for node in program.everywhere(ast.If):
        test = node.test
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            continue
        left, right = test.left, test.comparators[0]
        below = isinstance(test.ops[0], (ast.Lt, ast.LtE))
        if not below and not isinstance(test.ops[0], (ast.Gt, ast.GtE)):
            continue
        if "eps" in text_of(left).lower():
            left, right, below = right, left, not below
        if "eps" not in text_of(right).lower() or not any(
            word in text_of(left) for word in ("rand", "sample", "uniform")
        ):
            continue
        number = known.number(right)
        if isinstance(right, ast.BinOp) or (number is not None and number >= 0.5):
            continue  # a threshold of 0.9 that never falls is a probability to be greedy
        rest = list(node.orelse)
        around = getattr(program.parent.get(node), "body", [])
        if not rest and isinstance(around, list) and node in around and isinstance(node.body[-1], ast.Return):
            rest = around[around.index(node) + 1 :]
        greedy = ("argmax", ".max(")
        inside, outside = (" ".join(map(text_of, part)) for part in (node.body, rest))
        first, second = _explores(program, list(node.body)), _explores(program, list(rest))
        if (
            first != second
            and first != below
            and any(word in (outside if first else inside) for word in greedy)
        ):
            yield Remark(
                node,
                f"if {short(test)}: explores with the probability 1 - {text_of(right)} and "
                f"not {text_of(right)}",
            )


def _decays_at_once(program: Program) -> Iterator[Remark]:
    """min() with a floor, or max() with a ceiling: the clamp of a value that decays is on the wrong side."""
    known = trace(program)
    for node in program.everywhere(ast.Assign):
        call = node.value
        if not is_call(call, "min") or len(call.args) != 2:
            continue
        name = text_of(node.targets[0])
        for floor, decayed in (call.args, reversed(call.args)):
            if is_binary(decayed, ast.Mult) and name in (text_of(decayed.left), text_of(decayed.right)):
                factor = known.number(decayed.right if text_of(decayed.left) == name else decayed.left)
                floored = (
                    "min" in text_of(floor).lower()
                    or "end" in text_of(floor).lower()
                    or (known.number(floor) or 9) < 0.5
                )
                if factor is not None and 0 < factor < 1 and floored:
                    yield Remark(
                        node,
                        f"{short(node)} takes the smaller one: {name} falls to "
                        f"{text_of(floor)} at once; max was meant",
                    )


RULES: tuple[Rule, ...] = (
    Rule(
        "average-forgets",
        "rollout",
        "the target is the trained network itself, and no longer steady",
        "write slow * (1 - tau) + fast * tau with a small tau",
        _averages,
    ),
    Rule(
        "copy-of-itself",
        "rollout",
        "the second network never follows the first, or always is the first",
        "make it by copy.deepcopy and update it from the network that is trained",
        _from_itself,
    ),
    Rule(
        "state-out-of-step",
        "rollout",
        "states, actions and what followed do not belong together",
        "store first, then write state = next_state",
        _transitions,
    ),
    Rule(
        "action-drawn-twice",
        "rollout",
        "the policy is rewarded for an action that was not taken",
        "draw once, and use that action for both",
        _drawn_twice,
    ),
    Rule(
        "exploration-inverted",
        "rollout",
        "the agent acts at random when it should use what it has learned, and the other way round",
        "explore where random() < epsilon",
        _exploration,
    ),
    Rule(
        "clamped-on-the-wrong-side",
        "rollout",
        "what should fall slowly is at its last value from the first step on",
        "write max(lowest, value * decay)",
        _decays_at_once,
    ),
)
