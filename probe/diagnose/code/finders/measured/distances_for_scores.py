"""Distances that are taken for scores, and likenesses for distances. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, bare, constant, is_none, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import is_distance, root_of
from probe.diagnose.code.traits.basic import losses, squared

FINDERS = Finders()
_FAR, _NEAR = "distance", "likeness"
_SUMMED = ("sum", "mean")
_CHOSEN = frozenset({"part", "indices", "tolist", "item", "cpu", "numpy", "element", "index_select", "gather", "mode", "squeeze", "view", "reshape", "to", "values"})


def distances_for_scores(program: Program) -> Iterator[Remark]:
    """The loss of classes is taken of distances, of which the largest counts as the likeliest class, or of what a likeness
    is turned to."""
    computation = computation_of(program)
    for _, loss in losses(computation):
        for value in origins(loss):
            scores = _scores(value)
            found = None if scores is None else measured(scores)
            if found is None or (found[0] == _FAR) is not (found[2] > 0) or not any(one.op == "run" for one in origins(found[1])):
                continue
            kind, of, _ = found
            what = "grows with the distance" if kind == _FAR else "falls with the likeness"
            yield Remark(value.node, f"{short(value.node)} takes {short(bare(scores or of).node)} for scores of classes, which {what} that {short(of.node)} (line {of.line}) is: the class that is least like a sample counts as the likeliest")
            return
    for value in computation.of("argmax", "argmin", "topk", "max", "min", "argsort"):
        way = _way(value)
        found = measured(value.args[0]) if way and value.args else None
        if found is None or found[2] * way * (1 if found[0] == _FAR else -1) < 0 or not any(one.op == "run" for one in origins(found[1])):
            continue
        asked = _compared(computation, value)
        if asked is not None:
            kind, of, _ = found
            yield Remark(value.node, f"{short(value.node)} chooses the {'largest distance' if kind == _FAR else 'smallest likeness'} of {short(of.node)} (line {of.line}), and {short(asked.node)} (line {asked.line}) compares what is there with the answer: that is the least like of all")
            return


def _scores(value: Value) -> Value | None:
    """What a loss of classes takes the softmax of."""
    if value.op == "cross_entropy" and len(value.args) > 1:
        return value.args[0]
    if value.op == "nll_loss" and value.args:
        inner = bare(value.args[0])
        inner = bare(inner.args[0]) if inner.op == "log" and inner.args else inner
        return inner.args[0] if inner.op in ("log_softmax", "softmax") and inner.args else None
    return None


def measured(value: Value) -> tuple[str, Value, int] | None:
    """Whether a value is a distance or a likeness, what it is, and whether it grows (1) or falls (-1) with it; None where it is
    neither, or is weighted by what is not known."""
    sign = 1
    for _ in range(12):
        value = bare(value)
        if value.op == "neg":
            value, sign = value.args[0], -sign
        elif value.op in ("mul", "div") and len(value.args) == 2:
            known = next((one for one in value.args if number(one) is not None or bare(one).op == "exp"), None)
            other = value.args[0] if known is value.args[1] else value.args[1]
            if known is None or (value.op == "div" and known is value.args[0]):
                return None
            value, sign = other, sign * (-1 if (number(known) or 1) < 0 else 1)
        elif value.op == "sub" and len(value.args) == 2 and number(value.args[0]) is not None:
            value, sign = value.args[1], -sign
        elif (value.op in ("add", "sub") and len(value.args) == 2 and number(value.args[1]) is not None) or (value.op == "clamp" and value.args):
            value = value.args[0]
        else:
            break
    core = squared(value) or root_of(value) or value
    core = bare(core)
    if (is_distance(core) and core.op != "norm") or _is_sum_of_squares(core):
        return _FAR, core, sign
    return (_NEAR, core, sign) if _is_likeness(core) else None


def _is_sum_of_squares(value: Value) -> bool:
    """Whether a value is a distance: squares (or sizes) of differences, added up over the features."""
    if value.op == "norm":
        return bool(value.args) and bare(value.args[0]).op == "sub" and value.argument("dim", 2) is not None
    over = value.argument("dim", 1)
    if value.op not in _SUMMED or not value.args or over is None or number(over) not in (-1, 2):
        return False
    inner = bare(value.args[0], shapes=False)
    of = squared(inner) or (inner.args[0] if inner.op == "abs" and inner.args else None)
    return of is not None and bare(of, shapes=False).op == "sub"


def _is_likeness(value: Value) -> bool:
    """Whether a value is a cosine: a product of two sets of vectors of unit length."""
    if value.op == "cosine_similarity":
        return True
    turned = ("T", "t", "mT", "transpose")
    return value.op == "matmul" and len(value.args) == 2 and all(bare(one, *turned).op == "normalize" for one in value.args)


def _way(value: Value) -> int:
    """Whether a choice takes the largest (1) or the smallest (-1) by its place; 0 where that is not known."""
    if value.op in ("argmax", "argmin"):
        return 1 if value.op == "argmax" else -1
    if value.op == "topk":
        given = value.argument("largest", 3)
        return 0 if given is not None and not isinstance(constant(given), bool) else -1 if given is not None and constant(given) is False else 1
    if value.op == "argsort":
        falls = value.argument("descending", 2)
        return 0 if falls is not None and not isinstance(constant(falls), bool) else 1 if falls is not None and constant(falls) is True else -1
    return 0


def _compared(computation: Computation, chosen: Value) -> Value | None:
    """What asks whether the chosen place, or what stands there, is equal to another value; of a sorting, its first places."""
    waiting, seen = [chosen], {id(chosen)}
    while waiting and len(seen) < 40:
        at = waiting.pop()
        for user in computation.users(at):
            if user.op == "eq" and len(user.args) == 2 and not any(number(one) is not None for one in user.args):
                return user
            first = user.op == "part" and user.args[0] is at and at.op == "argsort"
            if first and not _is_first(user.args[1]):
                continue
            if at.op == "argsort" and not first and user.op not in ("to", "cpu", "numpy"):
                continue
            if id(user) not in seen and user.op in _CHOSEN and not (at.op == "topk" and (user.op == "values" or (user.op == "part" and constant(user.args[1]) == 0))):
                seen.add(id(user))
                waiting.append(user)
    return None


def _is_first(index: Value) -> bool:
    """Whether an index takes the first places of each row."""
    parts = list(index.made_of()) if index.op == "tuple" else [index]
    last = parts[-1] if parts else index
    if last.op == "slice":
        return (constant(last.args[0]) in (None, 0)) and number(last.args[1]) is not None
    return number(last) == 0


@FINDERS.add("support-in-the-query")
def _prototypes_of_all(program: Program) -> Iterator[Remark]:
    """The mean that a sample is compared with is taken over all samples of its class, itself among them."""
    computation = computation_of(program)
    for value in computation.of("cdist", "sub", "matmul"):
        for asked, means in (value.args[:2], value.args[1::-1]) if len(value.args) > 1 else ():
            middle = bare(means, "T", "t", "transpose", "part", "normalize")
            over = middle.argument("dim", 1)
            whole = bare(middle.args[0], shapes=False) if middle.op == "mean" and middle.args and number(over) == 1 else None
            taken = _rest_of(asked, whole) if whole is not None else None
            if taken is not None and any(one.op == "run" for one in origins(taken)):
                yield Remark(middle.node, f"{short(middle.node)} is the mean of all samples of each class, and {short(taken.node)} (line {taken.line}), which are compared with it, are some of them")
                return


def _rest_of(value: Value, whole: Value) -> Value | None:
    """The part of all samples of each class from some place on that a value is."""
    for _ in range(12):
        if value.op == "part" and len(value.args) == 2 and bare(value.args[0], shapes=False) is whole:
            index = list(value.args[1].made_of()) if value.args[1].op == "tuple" else []
            later = len(index) > 1 and index[1].op == "slice" and not is_none(index[1].args[0]) and number(index[1].args[0]) != 0
            return value if later else None
        if not value.args or not (bare(value) is not value or value.op in ("normalize", "part")):
            return None
        value = value.args[0]
    return None
