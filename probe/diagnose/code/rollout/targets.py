"""Returns and bootstrapped targets: their order, the ends of episodes, their shape. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.origins import Trace, trace
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rule
from probe.diagnose.code.syntax import (
    Function,
    argument,
    is_attribute,
    is_binary,
    is_call,
    is_method,
    is_name,
    is_read,
    names_of,
    names_read,
    own,
    own_nodes,
    short,
    text_of,
)

_ENDS = (
    "done",
    "dones",
    "terminated",
    "terminal",
    "terminals",
    "is_done",
    "done_batch",
    "batch_done",
    "dones_batch",
    "done_b",
    "b_done",
)


def _functions(program: Program) -> Iterator[Function | ast.Module]:
    for source in program.sources:
        yield source.tree
    for functions in program.functions.values():
        yield from functions


def _reversed(node: ast.AST) -> bool:
    """Whether a loop runs from the end to the start."""
    for one in ast.walk(node):
        if is_name(one, "reversed"):
            return True
        if isinstance(one, ast.Slice) and isinstance(one.step, ast.UnaryOp):
            return True
        if is_call(one, "range") and len(one.args) == 3:
            return True
        if is_attribute(one, "flip", "flipud"):
            return True
    return False


def _discounted(node: ast.stmt) -> tuple[str, ast.AST] | None:
    """The name and the reward of `R = reward + gamma * R`."""
    if (
        not isinstance(node, ast.Assign)
        or len(node.targets) != 1
        or not isinstance(node.targets[0], ast.Name)
    ):
        return None
    name, value = node.targets[0].id, node.value
    if not is_binary(value, ast.Add):
        return None
    for reward, rest in ((value.left, value.right), (value.right, value.left)):
        if (is_binary(rest, ast.Mult) and name in names_of(rest) and name not in names_of(reward)) and any(
            "rew" in one.lower() or one == "r" for one in names_of(reward)
        ):
            return name, reward
    return None


def _returns(program: Program) -> Iterator[Remark]:
    for loop in program.everywhere(ast.For):
        for number, node in enumerate(loop.body):
            found = _discounted(node)
            if found is None:
                continue
            name, reward = found
            if not (names_of(reward) & names_of(loop.target)) or is_method(loop.iter, "step"):
                continue
            if isinstance(loop.iter, ast.Name) and "revers" in loop.iter.id.lower():
                continue
            if any(is_method(one, "step") for one in ast.walk(loop)):
                continue
            direct = isinstance(loop.iter, (ast.Name, ast.Attribute)) or (
                is_call(loop.iter, "zip", "range", "enumerate")
            )
            if (
                direct
                and not _reversed(loop.iter)
                and isinstance(node, ast.Assign)
                and not _turned(program, loop)
            ):
                yield Remark(
                    node,
                    f"{short(node)} runs over {short(loop.iter, 40)} from the start: "
                    "each return adds up the rewards before it and not those after it",
                )
            elif _reversed(loop.iter):
                yield from _not_turned(program, loop, loop.body[number + 1 :], name)
                yield from _end_unused(program, loop, node)


def _turned(program: Program, loop: ast.For) -> bool:
    """Whether what a loop runs over was turned round before."""
    block = program.function_of(loop) or program.scope(loop)
    names = names_of(loop.iter)
    for one in own_nodes(block):
        if is_method(one, "reverse") and names_of(one.func.value) & names:
            return True
        if isinstance(one, ast.Assign) and names_of(one.targets[0]) & names and _reversed(one.value):
            return True
        if is_method(one, "insert") and names_of(one.func.value) & names:
            return True
    return False


def _not_turned(program: Program, loop: ast.For, rest: list[ast.stmt], name: str) -> Iterator[Remark]:
    for statement in rest:
        if (
            not isinstance(statement, ast.Expr)
            or not is_method(statement.value, "append")
            or not isinstance(statement.value, ast.Call)
        ):
            continue
        call = statement.value
        assert is_method(call)
        if (
            len(call.args) != 1
            or name not in names_of(call.args[0])
            or not isinstance(call.func.value, ast.Name)
        ):
            continue
        kept = call.func.value.id
        around = program.function_of(loop) or program.scope(loop)
        later = [one for one in ast.walk(around) if getattr(one, "lineno", 0) > call.lineno]
        text = [one for one in later if isinstance(one, (ast.Call, ast.Subscript)) and kept in names_of(one)]
        if any(
            _reversed(one) or is_method(one, "reverse", "sort", "index") or is_method(one, "popleft", "pop")
            for one in text
        ):
            continue
        if any(isinstance(one, ast.Return) and kept in names_of(one) for one in later) and not any(
            _is_tensor(program, one) for one in text
        ):
            continue  # whoever called may turn it round
        if any(_is_tensor(program, one) for one in text):
            yield Remark(
                call,
                f"{kept} is filled from the last step to the first and never turned round: each return "
                "belongs to another step",
            )


def _is_tensor(program: Program, node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and program.called(node).startswith(("torch.", "numpy."))


def _end_unused(program: Program, loop: ast.For, node: ast.stmt) -> Iterator[Remark]:
    ends = [one for one in names_of(loop.target) if one in _ENDS]
    read = names_read(loop)
    if len(ends) == 1 and ends[0] not in read:
        yield Remark(
            node,
            f"{short(node)} does not use {ends[0]}, which the loop reads: returns go on from one "
            "episode into the one before it",
        )


def _end_ignored(program: Program) -> Iterator[Remark]:
    """A batch is unpacked with the ends of episodes, and the target of its values does not use them."""
    for function in _functions(program):
        for node in own(function, ast.Assign):
            target = node.targets[0]
            if not isinstance(target, ast.Tuple) or len(target.elts) < 4:
                continue
            names = [one.id for one in target.elts if isinstance(one, ast.Name)]
            ends = [one for one in names if one in _ENDS]
            rewards = [one for one in names if "rew" in one.lower()]
            if len(ends) != 1 or not rewards or is_method(node.value, "step"):
                continue
            later = [one for one in own_nodes(function) if getattr(one, "lineno", 0) > node.lineno]
            read = [one for one in later if is_read(one, ends[0])]
            used = [one for one in read if not _converts(program, one, ends[0])]
            bootstrap = next(
                (one for one in later if is_binary(one, ast.Add) and _bootstraps(program, one, rewards[0])),
                None,
            )
            if bootstrap is not None and not used:
                yield Remark(
                    bootstrap,
                    f"{short(bootstrap)} takes the value of what follows an end too: {ends[0]} is "
                    "unpacked and not used",
                )


def _converts(program: Program, use: ast.Name, name: str) -> bool:
    """Whether a use only makes the variable anew: `done = torch.tensor(done)`."""
    for one in program.parents(use):
        if isinstance(one, ast.stmt):
            return isinstance(one, ast.Assign) and is_name(one.targets[0], name)
    return False


def _bootstraps(program: Program, node: ast.BinOp, reward: str) -> bool:
    for one, rest in ((node.left, node.right), (node.right, node.left)):
        if reward in names_of(one) and is_binary(rest, ast.Mult):
            return any(word in text_of(rest).lower() for word in ("gamma", "discount"))
    return False


def _column(program: Program, known: Trace, node: ast.AST) -> bool:
    """Whether a value is a column (N, 1): gather along axis 1 with a column of indices."""
    value = known.value(node)
    if not is_method(value, "gather") or len(value.args) != 2 or known.number(value.args[0]) not in (1, -1):
        return False
    index = known.value(value.args[1])
    while is_method(index, "long", "to", "type", "int"):
        index = known.value(index.func.value)
    if isinstance(index, ast.Subscript) and text_of(index.slice).strip("()") == ":, None":
        return True
    if not is_method(index):
        return False
    numbers = [known.number(one) for one in index.args]
    return (index.func.attr in ("view", "reshape") and numbers == [-1, 1]) or (
        index.func.attr == "unsqueeze" and numbers in ([1], [-1])
    )


def _row(program: Program, known: Trace, node: ast.AST) -> bool:
    """Whether a value of the next states is a row (N): the largest along axis 1, without keeping it."""
    value = known.value(node)
    while is_method(value, "detach"):
        value = known.value(value.func.value)
    if is_binary(value, ast.Add, ast.Mult):
        return _row(program, known, value.left) or _row(program, known, value.right)
    inner: ast.AST | None = None
    if (isinstance(value, ast.Subscript) and known.number(value.slice) == 0) or (
        is_attribute(value, "values")
    ):
        inner = known.value(value.value)
    if (
        not is_method(inner or node, "max")
        or not isinstance(inner, ast.Call)
        or argument(inner, "keepdim", 1) is not None
    ):
        return False
    return known.number(argument(inner, "dim", 0)) in (1, -1)


def _columns_and_rows(program: Program) -> Iterator[Remark]:
    known = trace(program)
    for node in program.everywhere(ast.BinOp):
        if is_binary(node, ast.Sub):
            for one, other in ((node.left, node.right), (node.right, node.left)):
                if _column(program, known, one) and _row(program, known, other):
                    yield Remark(
                        node,
                        f"{short(node)} subtracts a row (N) from a column (N, 1): each prediction "
                        "is compared with every target",
                    )
    for call in program.calls():
        name = program.called(call).rpartition(".")[2]
        kind = program.kind(call.func)
        if (
            name in ("mse_loss", "smooth_l1_loss", "l1_loss", "huber_loss")
            or (kind is not None and kind.family == "loss")
        ) and len(call.args) >= 2:
            one, other = call.args[:2]
            if (_column(program, known, one) and _row(program, known, other)) or (
                _column(program, known, other) and _row(program, known, one)
            ):
                said = (
                    f"{short(call)} compares a column (N, 1) with a row (N): each prediction is "
                    "compared with every target"
                )
                yield Remark(call, said)


RULES: tuple[Rule, ...] = (
    Rule(
        "returns-in-the-wrong-order",
        "rollout",
        "actions are rewarded for what came before them, or for those of another step",
        "go over reversed(rewards), and insert each return at the front",
        _returns,
    ),
    Rule(
        "end-of-episode-ignored",
        "rollout",
        "the values of last states are estimated as if the episode went on",
        "multiply by (1 - done)",
        _end_ignored,
    ),
    Rule(
        "column-against-row",
        "rollout",
        "the mean over all pairs pulls every value towards the mean of the targets",
        "squeeze the prediction, or unsqueeze the target",
        _columns_and_rows,
    ),
)
