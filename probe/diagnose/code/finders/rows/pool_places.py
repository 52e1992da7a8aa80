"""Active learning: which samples of a pool are labelled next. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, is_none, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.uses import made_from

_ORDERS = ("topk", "argsort", "sort")
_PASSED = frozenset({
    "indices", "tolist", "numpy", "cpu", "detach", "list", "tuple", "element", "long", "to", "flip", "copy", "set", "sorted", "builtins.sorted", "builtins.list", "array", "tensor",
})
_JOINS = ("extend", "append", "update", "add", "union", "concatenate", "cat", "or", "hstack", "append_")


def place_in_the_pool(program: Program) -> Iterator[Remark]:
    """The places of the best scores of a part of the pool are taken for the numbers of samples of the whole pool."""
    computation = computation_of(program)
    for order in computation.of(*_ORDERS):
        part = _judged(order)
        if part is None:
            continue
        pool, rows = part
        for chosen in _chosen(computation, order):
            joined = _joined(computation, chosen)
            if joined is not None and _is_of_pool(computation, joined[1], pool) and not any(one.op == "part" and one.args[0] is not order and len(one.args) == 2 and _is_made_of(one.args[1], order) and one not in _chosen(computation, order) for one in made_from(computation, order, None, 200)):
                yield Remark(joined[0].node, f"{short(joined[0].node)} takes places among {short(rows.node)} (line {rows.line}), the part of {short(pool.node)} that was scored, for numbers of samples of all of it: other samples are labelled than those of {short(order.node)} (line {order.line})")
                return


def _judged(order: Value) -> tuple[Value, Value] | None:
    """The pool, and the rows of it that are scored."""
    for one in origins(order.args[0]) if order.args else ():
        loader = one.named.get("loader") if one.op == "rows" else None
        subset = loader.args[0] if loader is not None and loader.args else None
        if subset is not None and subset.op == "torch.utils.data.Subset" and len(subset.args) > 1:
            return subset.args[0], subset.args[1]
    run = next((one for one in origins(order.args[0]) if one.op == "run" and len(one.args) > 1 and bare(one.args[1]).op == "part"), None) if order.args else None
    given = bare(run.args[1]) if run is not None else None
    if given is not None and len(given.args) == 2 and (given.args[1].op in ("list", "nonzero", "where", "invert", "array", "tensor", "setdiff1d") or isinstance(given.args[1], Many)) and given.args[1].op != "tuple":
        return given.args[0], given.args[1]
    return None


def _chosen(computation: Computation, order: Value) -> list[Value]:
    """The places that an order gives for the first or last few."""
    found = [one for one in computation.users(order) if one.op == "indices" or (one.op == "part" and one.args[0] is order and (constant(one.args[1]) == 1 if order.op != "argsort" else one.args[1].op == "slice"))]
    if order.op == "argsort":
        for one in computation.users(order):
            if one.op in ("flip", "tolist", "numpy", "cpu") or (one.op == "part" and one.args[1].op == "slice"):
                found += [each for each in computation.users(one) if each.op == "part" and each.args[0] is one and each.args[1].op == "slice"]
    return found


def _joined(computation: Computation, chosen: Value) -> tuple[Value, Value] | None:
    """Where places are added to a list of numbers as they are: there, and the list."""
    for one in (chosen, *made_from(computation, chosen, _PASSED, 40)):
        for user in computation.users(one):
            if user.op in _JOINS and len(user.args) == 2 and user.args[1] is one and user.args[0] is not one:
                return user, user.args[0]
            if user.op == "set_item" and len(user.args) == 3 and user.args[1] is one and constant(user.args[2]) in (True, False, 1, 0):
                return user, user.args[0]
    return None


def _is_of_pool(computation: Computation, listed: Value, pool: Value) -> bool:
    """Whether the numbers in a list are those of samples of the pool: what is trained on is chosen by them."""
    held = bare(listed)
    for one in computation.of("torch.utils.data.Subset", "part"):
        if len(one.args) == 2 and (one.args[0] is pool or bare(one.args[0]) is bare(pool)) and (one.args[1] is listed or bare(one.args[1]) is held):
            return True
    return False


def _is_made_of(index: Value, order: Value) -> bool:
    return any(one is order for one in origins(index))


# Which are chosen --------------------------------------------------------------------------


def surest_chosen(program: Program) -> Iterator[Remark]:
    """The samples that the network is surest of are labelled next: those of the smallest entropy, or of the largest probability."""
    computation = computation_of(program)
    for order in computation.of(*_ORDERS):
        if not order.args or _judged(order) is None:
            continue
        unsure, measure = _unsureness(order.args[0])
        if unsure is None or measure is None:
            continue
        for chosen in _chosen(computation, order):
            first = _takes_largest(order, chosen)
            if first is None or first == (unsure == 1):
                continue
            pool, _ = _judged(order) or (order, order)
            made = [chosen, *made_from(computation, chosen, frozenset({*_PASSED, "part"}), 60)]
            lists = [joined[1] for one in made if (joined := _joined(computation, one)) is not None] + list(_looked_up(computation, made))
            if any(_is_of_pool(computation, one, pool) for one in lists):
                yield Remark(chosen.node, f"{short(chosen.node)} takes the samples of the {'largest' if first else 'smallest'} {short(measure.node)} (line {measure.line}) to be labelled: those that the network is surest of")
                return


def _looked_up(computation: Computation, places: list[Value]) -> Iterator[Value]:
    """The lists that numbers are added to which are looked up place by place: `labeled += [unlabeled[i] for i in places]`."""
    over = [node for _, node, over in computation.passes if any(over is one for one in places)]
    for user in computation.of(*_JOINS) if over else ():
        if len(user.args) == 2 and any(node in over for node in (user.args[1].node, *user.args[1].where.loops[-1:], *user.where.loops[-1:], *ast.walk(user.args[1].node))):
            yield user.args[0]


def _unsureness(value: Value, sign: int = 1, depth: int = 20) -> tuple[int | None, Value | None]:
    """Whether numbers grow with how unsure a network is (1), or with how sure (-1): entropies, or the largest probability."""
    value = bare(value, "numpy", "cpu")
    if depth == 0:
        return None, None
    if value.op == "neg":
        found, measure = _unsureness(value.args[0], -sign, depth - 1)
        return (found, value if bare(value.args[0]).op == "sum" else measure)
    if isinstance(value, Many):
        return _unsureness(value.parts[0], sign, depth - 1) if len(value.parts) == 1 else (None, None)
    if value.op in ("cat", "concatenate", "hstack", "stack") and value.args:
        return _unsureness(value.args[0], sign, depth - 1)
    if value.op == "sub" and number(value.args[0]) == 1:
        return _unsureness(value.args[1], -sign, depth - 1)
    if value.op == "sum" and value.args:
        inner = bare(value.args[0])
        if inner.op == "neg":
            inner, sign = bare(inner.args[0]), -sign
        if inner.op != "mul" or len(inner.args) != 2:
            return None, None
        logs = [any(one.op in ("log", "log_softmax") for one in origins(part, stop=("softmax", "run"))) for part in inner.args]
        plain = [bare(part).op in ("softmax", "exp", "clamp", "mean", "cat") for part in inner.args]
        turned = [bare(part).op == "neg" for part in inner.args]
        if (logs[0] and plain[1]) or (logs[1] and plain[0]):
            return (-sign if not any(turned) else sign), value
        return None, None
    if value.op == "entropy":
        return sign, value
    if value.op == "values" or (value.op == "part" and constant(value.args[1]) == 0):
        value = value.args[0]
    if value.op in ("max", "amax") and value.args and bare(value.args[0]).op == "softmax" and not is_none(value.argument("dim", 1)):
        return -sign, value
    return None, None


def _takes_largest(order: Value, chosen: Value) -> bool | None:
    """Whether the places of the largest numbers are taken; None where that is unknown."""
    if order.op == "topk":
        largest = order.argument("largest", 3)
        return True if largest is None else constant(largest) if isinstance(constant(largest), bool) else None
    down = order.argument("descending", 2)
    falling = constant(down) is True
    if (down is not None and not isinstance(constant(down), bool)) or chosen.op != "part":
        return None
    index = chosen.args[1]
    if index.op != "slice" or len(index.args) < 2 or (len(index.args) > 2 and not is_none(index.args[2])) or chosen.args[0] is not order:
        return None
    begin, end = index.args[:2]
    if is_none(begin) and not is_none(end) and (number(end) is None or (number(end) or 0) > 0) and end.op != "neg":
        return falling
    if is_none(end) and not is_none(begin) and (begin.op == "neg" or (number(begin) or 0) < 0):
        return not falling
    return None
