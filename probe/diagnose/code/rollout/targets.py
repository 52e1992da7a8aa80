"""Returns and bootstrapped targets: their order, the ends of episodes, their shape. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.origins import Trace, is_method, keyword, names_of, own, trace
from probe.diagnose.code.program import Function, Program, own_nodes
from probe.diagnose.code.rule import Remark, Rule, short

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
        if isinstance(one, ast.Name) and one.id == "reversed":
            return True
        if isinstance(one, ast.Slice) and isinstance(one.step, ast.UnaryOp):
            return True
        if (
            isinstance(one, ast.Call)
            and isinstance(one.func, ast.Name)
            and one.func.id == "range"
            and len(one.args) == 3
        ):
            return True
        if isinstance(one, ast.Attribute) and one.attr in ("flip", "flipud"):
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
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
        return None
    for reward, rest in ((value.left, value.right), (value.right, value.left)):
        if (
            isinstance(rest, ast.BinOp)
            and isinstance(rest.op, ast.Mult)
            and name in names_of(rest)
            and name not in names_of(reward)
        ) and any("rew" in one.lower() or one == "r" for one in names_of(reward)):
            return name, reward
    return None


def _returns(program: Program) -> Iterator[Remark]:
    for loop in program.everywhere(ast.For):
        assert isinstance(loop, ast.For)
        for number, node in enumerate(loop.body):
            found = _discounted(node)
            if found is None:
                continue
            name, reward = found
            if not (names_of(reward) & names_of(loop.target)) or is_method(loop.iter, "step"):
                continue
            if isinstance(loop.iter, ast.Name) and "revers" in loop.iter.id.lower():
                continue
            if any(
                isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr == "step"
                for one in ast.walk(loop)
            ):
                continue
            direct = isinstance(loop.iter, (ast.Name, ast.Attribute)) or (
                isinstance(loop.iter, ast.Call)
                and isinstance(loop.iter.func, ast.Name)
                and loop.iter.func.id in ("zip", "range", "enumerate")
            )
            if (
                direct
                and not _reversed(loop.iter)
                and isinstance(node, ast.Assign)
                and not _turned(program, loop)
            ):
                yield Remark(
                    node,
                    f"{short(program, node)} runs over {short(program, loop.iter, 40)} from the start: "
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
        if (
            is_method(one, "reverse")
            and isinstance(one, ast.Call)
            and isinstance(one.func, ast.Attribute)
            and names_of(one.func.value) & names
        ):
            return True
        if isinstance(one, ast.Assign) and names_of(one.targets[0]) & names and _reversed(one.value):
            return True
        if (
            isinstance(one, ast.Call)
            and is_method(one, "insert")
            and isinstance(one.func, ast.Attribute)
            and names_of(one.func.value) & names
        ):
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
        assert isinstance(call.func, ast.Attribute)
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
    return isinstance(node, ast.Call) and (program.dotted(node.func) or "").startswith(("torch.", "numpy."))


def _end_unused(program: Program, loop: ast.For, node: ast.stmt) -> Iterator[Remark]:
    ends = [one for one in names_of(loop.target) if one in _ENDS]
    read = {one.id for one in ast.walk(loop) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}
    if len(ends) == 1 and ends[0] not in read:
        yield Remark(
            node,
            f"{short(program, node)} does not use {ends[0]}, which the loop reads: returns go on from one "
            "episode into the one before it",
        )


def _end_ignored(program: Program) -> Iterator[Remark]:
    """A batch is unpacked with the ends of episodes, and the target of its values does not use them."""
    for function in _functions(program):
        for node in own(function, ast.Assign):
            assert isinstance(node, ast.Assign)
            target = node.targets[0]
            if not isinstance(target, ast.Tuple) or len(target.elts) < 4:
                continue
            names = [one.id for one in target.elts if isinstance(one, ast.Name)]
            ends = [one for one in names if one in _ENDS]
            rewards = [one for one in names if "rew" in one.lower()]
            if len(ends) != 1 or not rewards or is_method(node.value, "step"):
                continue
            later = [one for one in own_nodes(function) if getattr(one, "lineno", 0) > node.lineno]
            read = [
                one
                for one in later
                if isinstance(one, ast.Name) and one.id == ends[0] and isinstance(one.ctx, ast.Load)
            ]
            used = [one for one in read if not _converts(program, one, ends[0])]
            bootstrap = next(
                (
                    one
                    for one in later
                    if isinstance(one, ast.BinOp)
                    and isinstance(one.op, ast.Add)
                    and _bootstraps(program, one, rewards[0])
                ),
                None,
            )
            if bootstrap is not None and not used:
                yield Remark(
                    bootstrap,
                    f"{short(program, bootstrap)} takes the value of what follows an end too: {ends[0]} is "
                    "unpacked and not used",
                )


def _converts(program: Program, use: ast.Name, name: str) -> bool:
    """Whether a use only makes the variable anew: `done = torch.tensor(done)`."""
    for one in program.parents(use):
        if isinstance(one, ast.stmt):
            return (
                isinstance(one, ast.Assign)
                and isinstance(one.targets[0], ast.Name)
                and one.targets[0].id == name
            )
    return False


def _bootstraps(program: Program, node: ast.BinOp, reward: str) -> bool:
    for one, rest in ((node.left, node.right), (node.right, node.left)):
        if reward in names_of(one) and isinstance(rest, ast.BinOp) and isinstance(rest.op, ast.Mult):
            return any(word in program.text(rest).lower() for word in ("gamma", "discount"))
    return False


def _column(program: Program, known: Trace, node: ast.AST) -> bool:
    """Whether a value is a column (N, 1): gather along axis 1 with a column of indices."""
    value = known.value(node)
    if (
        not is_method(value, "gather")
        or not isinstance(value, ast.Call)
        or len(value.args) != 2
        or known.number(value.args[0]) not in (1, -1)
    ):
        return False
    index = known.value(value.args[1])
    while (
        is_method(index, "long", "to", "type", "int")
        and isinstance(index, ast.Call)
        and isinstance(index.func, ast.Attribute)
    ):
        index = known.value(index.func.value)
    if isinstance(index, ast.Subscript) and program.text(index.slice).strip("()") == ":, None":
        return True
    if not isinstance(index, ast.Call) or not isinstance(index.func, ast.Attribute):
        return False
    numbers = [known.number(one) for one in index.args]
    return (index.func.attr in ("view", "reshape") and numbers == [-1, 1]) or (
        index.func.attr == "unsqueeze" and numbers in ([1], [-1])
    )


def _row(program: Program, known: Trace, node: ast.AST) -> bool:
    """Whether a value of the next states is a row (N): the largest along axis 1, without keeping it."""
    value = known.value(node)
    while (
        is_method(value, "detach") and isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)
    ):
        value = known.value(value.func.value)
    if isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Add, ast.Mult)):
        return _row(program, known, value.left) or _row(program, known, value.right)
    inner: ast.AST | None = None
    if (isinstance(value, ast.Subscript) and known.number(value.slice) == 0) or (
        isinstance(value, ast.Attribute) and value.attr == "values"
    ):
        inner = known.value(value.value)
    if (
        not is_method(inner or node, "max")
        or not isinstance(inner, ast.Call)
        or keyword(inner, "keepdim", 1) is not None
    ):
        return False
    return known.number(keyword(inner, "dim", 0)) in (1, -1)


def _columns_and_rows(program: Program) -> Iterator[Remark]:
    known = trace(program)
    for node in program.everywhere(ast.BinOp):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            for one, other in ((node.left, node.right), (node.right, node.left)):
                if _column(program, known, one) and _row(program, known, other):
                    yield Remark(
                        node,
                        f"{short(program, node)} subtracts a row (N) from a column (N, 1): each prediction "
                        "is compared with every target",
                    )
    for call in program.calls():
        name = (program.dotted(call.func) or "").rpartition(".")[2]
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
                    f"{short(program, call)} compares a column (N, 1) with a row (N): each prediction is "
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
