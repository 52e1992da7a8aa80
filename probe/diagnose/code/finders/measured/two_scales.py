"""What a network learns on one scale, and is judged on another one. Pure; standard library only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import of_one_layer, root_of
from probe.diagnose.code.traits.basic import LOSSES, losses, squared, terms

FINDERS = Finders()
_LOGARITHMS = ("log", "log1p", "log10", "log2")
_ERRORS = ("sub", "mse_loss", "l1_loss", "smooth_l1_loss", "sklearn.metrics.mean_squared_error", "sklearn.metrics.mean_absolute_error", "sklearn.metrics.r2_score", "sklearn.metrics.root_mean_squared_error")
_UNITS = r"(?P<unit>\$|€|£|°C?|dollars?|euros?|USD|EUR|k?MWh?|kWh?|kg|km(/h)?|m/s|mm|cm|mg/dL|ppm|degrees?|people|vehicles|units sold|watts?|hours|minutes|days|years|bpm|mmHg)"
_BEFORE = re.compile(rf"(?:[\[(]{_UNITS}[\])][\s:=]*|[$€£])$")
_BEHIND = re.compile(rf"\s?{_UNITS}(?![\w/])")
_PICKS = ("part", "rows", "element", "cat", "index_select", "concatenate", "unfold", "sliding_window_view")
_LEVELS = ("mean", "min", "median", "amin", "nanmean")
_SAME_UNIT = frozenset({"mean", "sqrt", "pow", "square", "abs", "mse_loss", "l1_loss", "median", "mul"})


class _Learned(NamedTuple):
    """What a network gives in the training, how its target was scaled, what the target is made of, and the column that is taken of what
    the network gives."""

    run: Value
    scaled: Value
    root: Value
    column: Value | None
    kinds: tuple[str, ...]
    """What undoes the steps of the scaling, the last one first."""


@FINDERS.add("compared-on-two-scales")
def _two_scales(program: Program) -> Iterator[Remark]:
    """A network learns a target that was scaled, and one side of an error is on that scale, and the other is not."""
    computation = computation_of(program)
    learned = list(_learned(computation))
    for value in computation.of(*_ERRORS) if learned else ():
        for made, target in (value.args[:2], value.args[1::-1]) if len(value.args) > 1 else ():
            found = _judged(learned, made, target)
            if found is None:
                continue
            one, back, still = found
            left = _left(one, back)
            if back and still is None and left:
                inner = {"exp": "a logarithm", "pow": "a root"}.get(left[-1], "scaled values")
                yield Remark(value.node, f"{short(value.node)} compares {short(target.node)} as it is with {short(bare(made).node)}, which is scaled back by one of two steps: the network learns {short(one.scaled.node)} (line {one.scaled.line}), which is made of {inner}")
                return
            other = _other_inverse(made, one.scaled) if back and still is None and not left else None
            if other is not None:
                yield Remark(value.node, f"{short(value.node)} compares {short(target.node)} as it is with {short(other.node)} (line {other.line}), which is 1 too {'large' if other.op == 'exp' else 'small'}: the network learns {short(one.scaled.node)} (line {one.scaled.line})")
                return
            if back and left == _kinds(target):
                continue
            if not back and still is None:
                yield Remark(value.node, f"{short(value.node)} compares {short(target.node)} as it is with what the network gives, which learns {short(one.scaled.node)} (line {one.scaled.line})")
                return
            if back and still is not None:
                yield Remark(value.node, f"{short(value.node)} compares {short(bare(made).node)}, which is scaled back, with {short(still.node)} (line {still.line}), which is not")
                return
    for value in computation.of("div") if learned else ():
        error = _error_of(value.args[0], learned) if len(value.args) == 2 else None
        level = bare(value.args[1]) if error is not None else value
        level = bare(level.args[0]) if level.op == "abs" and level.args else level
        if error is None or level.op not in ("mean", "median") or not level.args:
            continue
        scaled, root = _scaled(level.args[0])
        if scaled is None and any(one.root is root for one in learned):
            yield Remark(value.node, f"{short(value.node)} divides an error of what was scaled ({short(error.node)}, line {error.line}) by {short(level.node)}, the mean of the values before they were scaled")
            return


def error_with_a_unit(program: Program) -> Iterator[Remark]:
    """An error between outputs and targets that were scaled is told with a unit."""
    computation = computation_of(program)
    learned = list(_learned(computation))
    for told in computation.of("text", "print") if learned else ():
        for value, unit in _with_units(told):
            error = _error_of(value, learned)
            if error is not None:
                scaled = next((one for side in error.args for one in [_scaled(side)[0]] if one is not None), None)
                by = f", which {short(scaled.node)} (line {scaled.line}) has scaled" if scaled is not None else ""
                yield Remark(told.node, f"{short(told.node)} tells in {unit} what is an error of scaled values: {short(error.node)} (line {error.line}){by}")
                return


def _with_units(told: Value) -> Iterator[tuple[Value, str]]:
    """What a text tells with a unit before it in brackets, or behind it."""
    if isinstance(told.node, ast.JoinedStr):
        pieces: list[ast.expr] = list(told.node.values)
        holes = [one for one in pieces if isinstance(one, ast.FormattedValue)]
    elif isinstance(told.node, ast.Call) and not told.node.keywords:
        pieces = list(told.node.args)
        holes = pieces  # type: ignore[assignment]
    else:
        return
    if len(holes) != len(told.args):
        return
    for hole, value in zip(holes, told.args, strict=True):
        place = pieces.index(hole)
        around = [one.value if isinstance(one, ast.Constant) and isinstance(one.value, str) else "" for one in (pieces[place - 1] if place else hole, pieces[place + 1] if place + 1 < len(pieces) else hole)]
        before, behind = _BEFORE.search(around[0]), _BEHIND.match(around[1])
        if before is not None or behind is not None:
            found = before if before is not None else behind
            assert found is not None
            yield value, found.group("unit") or found.group()


def _learned(computation: Computation) -> Iterator[_Learned]:
    """What networks are trained on: targets that were scaled."""
    for made, target in _trained(computation):
        run, back, column = _output(made)
        scaled, root = _scaled(target)
        if run is not None and not back and scaled is not None and not any(one.op == "run" for one in origins(root)):
            yield _Learned(run, scaled, root, column, _kinds(target))


def _trained(computation: Computation) -> Iterator[tuple[Value, Value]]:
    """The two sides of each loss, also of one that is written out: the mean of a squared difference, or of its size."""
    for loss in computation.of(*LOSSES):
        if not loss.where.no_grad and len(loss.args) > 1:
            yield loss.args[0], loss.args[1]
    for _, loss in losses(computation):
        for term, _ in terms(loss):
            inner = bare(term.args[0]) if term.op in ("mean", "sum") and term.args else term
            error = bare(inner.args[0]) if inner.op == "abs" and inner.args else squared(inner)
            error = error if error is None else bare(error)
            if error is not None and error.op == "sub" and len(error.args) == 2:
                yield error.args[0], error.args[1]
                yield error.args[1], error.args[0]


def _left(learned: _Learned, back: tuple[str, ...]) -> tuple[str, ...] | None:
    """What is left of the scaling of a target after some steps were undone; None where these are others."""
    undone = back[::-1]
    return learned.kinds[len(undone):] if learned.kinds[: len(undone)] == undone else None


def _judged(learned: list[_Learned], made: Value, target: Value) -> tuple[_Learned, tuple[str, ...], Value | None] | None:
    """What a network that is judged has learned; whether its output is scaled back, and what has scaled the target."""
    run, back, column = _output(made)
    if run is None:
        return None
    scaled, root = _scaled(target)
    known = [one for one in learned if of_one_layer(one.run, run) and _is_same(one.column, column)]
    found = next((one for one in known if one.root is root or (one.root.node is root.node and one.root.op == root.op)), None)
    return None if found is None or len({id(one.root.node) for one in known}) > 1 else (found, back, scaled)


def _is_same(one: Value | None, other: Value | None) -> bool:
    """Whether two columns are one, or both are none."""
    return one is other or (one is not None and other is not None and same(one, other))


def _output(value: Value) -> tuple[Value | None, tuple[str, ...], Value | None]:
    """What a network gives that a value is, of all batches and in another shape; by what it is scaled back, the last step first, and
    the column that is taken of it."""
    back: tuple[str, ...] = ()
    column = None
    for _ in range(30):
        value = bare(value, "cat", "concatenate", "clamp")
        if isinstance(value, Many) and len(value.parts) == 1:
            value = value.parts[0]
        elif value.op == "run":
            return value, back, column
        elif value.op == "part" and len(value.args) == 2 and column is None and isinstance(index := value.args[1], Many) and isinstance(constant(index.parts[-1]), int):
            value, column = value.args[0], index.parts[-1]
        elif value.op == "add" and len(value.args) == 2 and "add" not in back:
            product = next((one for one in map(bare, value.args) if one.op == "mul" and len(one.args) == 2), None)
            level = next((one for one in map(bare, value.args) if one is not product), None)
            inner = None if product is None else next((one for one in product.args if _output(one)[0] is not None), None)
            if inner is None or level is None or not _is_level(level):
                return None, (), None
            value, back = inner, (*back, "add")
        elif value.op in ("exp", "expm1") and value.args and "exp" not in back:
            value, back = value.args[0], (*back, "exp")
        elif (root := squared(value)) is not None and "pow" not in back:
            value, back = root, (*back, "pow")
        else:
            break
    return None, (), None


def _other_inverse(made: Value, scaled: Value) -> Value | None:
    """What undoes a logarithm of a number and 1 as one of the number itself, or the other way round."""
    given = bare(scaled.args[0]) if scaled.op == "log" and scaled.args else scaled
    plus_one = scaled.op == "log1p" or (given.op == "add" and len(given.args) == 2 and any(number(one) == 1 for one in given.args))
    if scaled.op not in ("log", "log1p") or (given is not scaled and given.op in ("add", "clamp", "maximum") and not plus_one):
        return None
    for _ in range(30):
        made = bare(made, "cat", "concatenate")
        if isinstance(made, Many) and len(made.parts) == 1:
            made = made.parts[0]
        elif made.op in ("exp", "expm1"):
            return made if (made.op == "exp") is plus_one else None
        else:
            return None
    return None


def _kinds(value: Value) -> tuple[str, ...]:
    """What undoes each step of the scaling of a value, the last one first."""
    kinds: list[str] = []
    scaled, root = _scaled(value)
    while scaled is not None:
        kinds.append("exp" if scaled.op in _LOGARITHMS else "add" if scaled.op == "div" else "pow" if root_of(scaled) is not None else scaled.op)
        value = bare(scaled.args[0]).args[0] if scaled.op == "div" else scaled.args[0]
        if value is root or len(kinds) > 4:
            break
        scaled, _ = _scaled(value)
    return tuple(kinds)


def _scaled(value: Value) -> tuple[Value | None, Value]:
    """What has scaled the values that a value is rows of, and what they were before."""
    scaled: Value | None = None
    for _ in range(40):
        value = bare(value)
        if isinstance(value, Many) and len(value.parts) == 1:
            value = value.parts[0]
        elif value.op in (*_LOGARITHMS, "diff") and value.args:
            scaled, value = scaled or value, value.args[0]
            if value.op == "add" and len(value.args) == 2 and sum(number(one) is not None for one in value.args) == 1:
                value = next(one for one in value.args if number(one) is None)  # log(x + 1)
        elif root_of(value) is not None and not any(one.op in ("pow", "square") for one in origins(value.args[0])):
            scaled, value = scaled or value, value.args[0]
        elif value.op == "div" and len(value.args) == 2 and bare(value.args[0]).op == "sub" and _is_level(bare(value.args[0]).args[1]):
            scaled, value = scaled or value, bare(value.args[0]).args[0]
        elif value.op in _PICKS and value.args:
            value = value.args[0]
        elif scaled is None and (before := _before(value)) is not None:
            value = before
        else:
            break
    return scaled, value


def _before(value: Value) -> Value | None:
    """What a value was before it was scaled and scaled back again; None where it was not."""
    if value.op in ("exp", "expm1") and value.args:
        scaled, _ = _scaled(value.args[0])
        return scaled.args[0] if scaled is not None and scaled.op in _LOGARITHMS else None
    if value.op != "add" or len(value.args) != 2:
        return None
    for product, level in (value.args, value.args[::-1]):
        inner = bare(product)
        for one in inner.args if inner.op == "mul" and _is_level(level) else ():
            scaled, _ = _scaled(one)
            if scaled is not None and scaled.op == "div" and same(bare(bare(scaled.args[0]).args[1]), bare(level)):
                return bare(scaled.args[0]).args[0]
    return None


def _is_level(value: Value) -> bool:
    """Whether a value is a mean or the least of others."""
    value = bare(value)
    value = bare(value.args[0]) if value.op == "part" and value.args else value
    return value.op in _LEVELS


def _error_of(value: Value, learned: list[_Learned]) -> Value | None:
    """The difference between an output and its scaled target whose size a value is."""
    for _ in range(20):
        value = bare(value)
        if value.op == "sub" and len(value.args) == 2:
            found = _judged(learned, *value.args) or _judged(learned, *value.args[::-1])
            return value if found is not None and not found[1] and found[2] is not None else None
        if value.op not in _SAME_UNIT or not value.args or (value.op == "mul" and not same(value.args[0], value.args[1])):
            return None
        value = value.args[0]
    return None
