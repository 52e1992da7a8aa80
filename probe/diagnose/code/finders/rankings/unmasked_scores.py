"""Scores over places that the loss leaves out because there is nothing to predict. Pure; standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import KEPT, Many, Value, bare, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import names_of, short
from probe.diagnose.code.traits.arithmetic import module
from probe.diagnose.code.traits.basic import losses
from probe.diagnose.code.traits.uses import data_of

FINDERS = Finders()
_COMPARED = ("gt", "ge", "lt", "le", "ne", "isnan", "isfinite")
_PICKED = frozenset({"part", "tuple", "rows", "element", "list", "zip", "unsqueeze", "squeeze", *KEPT})
_MASKS = re.compile(r"(^|_)(masks?|valid|vis(ible|ibility)?|known|observed|present|seen)(_|$|\d)", re.I)
_ERRORS = ("sub", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")


@FINDERS.add("metric-over-ignored")
def _holes_judged(program: Program) -> Iterator[Remark]:
    """A loss leaves out the places where the target holds no value, and an error on other rows of the same data counts them."""
    computation = computation_of(program)
    learned = [found for _, loss in losses(computation) for found in _masked(loss)]
    in_losses = {id(one) for _, loss in losses(computation) for one in origins(loss)} if learned else set()
    for value in computation.of(*_ERRORS) if learned else ():
        if id(value) in in_losses or len(value.args) < 2:
            continue
        for made, other in (value.args[:2], value.args[1::-1]):
            root, layers = data_of(other), _layers(made)
            found = next((one for one in learned if one[1].node is root.node and one[1].op == root.op and one[2] & layers), None)
            if found is None or bare(other).op == "sub" or any(one.op == "run" for one in origins(other)) or _asked(computation, root, in_losses):
                continue
            yield Remark(value.node, f"{short(value.node)} counts all places, also those without a value, which the loss leaves out: {short(found[0].node)} (line {found[0].line})")
            return


@FINDERS.add("metric-over-ignored")
def _hidden_judged(program: Program) -> Iterator[Remark]:
    """A loss is a mean over the places of a mask that comes with the data, and an error on other rows of the same data is a mean over
    all places; nothing reads their mask."""
    computation = computation_of(program)
    known = [(loss, *found) for _, loss in losses(computation) for found in _weighed(loss)]
    in_losses = {id(one) for _, loss in losses(computation) for one in origins(loss)} if known else set()
    for loss, product, mask, target, layers in known:
        later = [one for one in computation.values if one.number > loss.number and id(one) not in in_losses]
        if any(data_of(arg).node is mask.node for one in later if one.op not in _PICKED for arg in one.args):
            continue
        for value in later:
            pairs = (value.args[:2], value.args[1::-1]) if value.op in _ERRORS and len(value.args) > 1 else ()
            if any(data_of(other).node is target.node and data_of(other).op == target.op and _layers(made) & layers and bare(other).op != "sub" for made, other in pairs):
                yield Remark(value.node, f"{short(value.node)} counts all places, also those that the loss leaves out by {short(product.node)} (line {product.line}): nothing reads the mask of these rows")
                return


def _weighed(loss: Value) -> Iterator[tuple[Value, Value, Value, set[int]]]:
    """Where errors are multiplied by a mask and divided by its sum: the product, the mask, the target, and the layers that learn it."""
    parts = list(origins(loss))
    for one in parts:
        below = list(origins(one.args[1], ("sum",))) if one.op == "div" and len(one.args) == 2 else []
        masks = [each.args[0] for each in below if each.op == "sum" and each.args]
        for product in origins(one.args[0]) if len(masks) == 1 else ():
            if product.op != "mul" or len(product.args) != 2 or not any(bare(each) is bare(masks[0]) or same(bare(each), bare(masks[0])) for each in product.args):
                continue
            mask = data_of(masks[0])
            error = next((each for each in origins(product) if each.op in _ERRORS and len(each.args) > 1), None)
            target = next((data_of(side) for side in error.args[:2] if not any(each.op == "run" for each in origins(side))), None) if error is not None else None
            if target is not None and target is not mask and not any(each.op == "run" for each in origins(mask)) and (mask.op in (*_COMPARED, "eq", "invert", "bool", "bernoulli") or any(_MASKS.search(name) for name in names_of(product.node))):
                yield product, mask, target, _layers(loss)


def _masked(loss: Value) -> Iterator[tuple[Value, Value, set[int]]]:
    """Where a loss leaves out places by what the target holds: the comparison, the target, and the layers whose output it is compared with."""
    parts = list(origins(loss))
    layers = _layers(loss)
    for one in parts:
        mask = one.args[1] if one.op == "part" and len(one.args) == 2 else None
        masks = [mask] if mask is not None and not isinstance(mask, Many) else list(one.args) if one.op == "mul" else []
        for each in masks:
            inner = bare(each, "invert")
            test = next((part for part in (inner, *map(bare, inner.args)) if part.op in _COMPARED), inner) if inner.op in ("and", "logical_and") else inner
            if test.op in _COMPARED and test.args and (test.op in ("isnan", "isfinite") or (len(test.args) == 2 and _stands_for_none(number(test.args[1])))):
                root = data_of(test.args[0])
                if _all_masked(loss, parts, root) and not any(part.op == "run" for part in origins(root)) and _is_target(parts, root) and root.op not in ("rand", "randn", "rand_like"):
                    yield test, root, layers


def _stands_for_none(known: float | None) -> bool:
    """Whether a number may stand for a place without a value."""
    return known is not None and (known <= 0.01 or known in (255, 1e-2, 999, 9999))


def _all_masked(loss: Value, parts: list[Value], root: Value) -> bool:
    """Whether each error of a target in a loss leaves some of its places out."""
    cuts = [one for one in parts if one.op in ("part", "mul") and len(one.args) == 2 and any(_is_mask(each) for each in one.args)]
    free = {id(one) for one in origins(loss, (), cuts)}
    for one in parts:
        if one.op not in _ERRORS or len(one.args) < 2 or not any(data_of(_unmasked(side)) is root for side in one.args[:2]):
            continue
        if not any(bare(side) in cuts for side in one.args[:2]) and id(one) in free:
            return False
    return True


def _is_mask(value: Value) -> bool:
    """Whether a value is a comparison, or two of them that must both hold."""
    inner = bare(value, "invert")
    return any(part.op in _COMPARED for part in (inner, *map(bare, inner.args if inner.op in ("and", "logical_and") else ())))


def _is_target(parts: list[Value], root: Value) -> bool:
    """Whether what a network gives is compared with some of the values in a loss."""
    return any(one.op in _ERRORS and len(one.args) > 1 and any(data_of(_unmasked(side)) is root for side in one.args[:2]) for one in parts)


def _unmasked(value: Value) -> Value:
    value = bare(value)
    return value.args[0] if value.op == "part" and len(value.args) == 2 else value


def _asked(computation: Computation, root: Value, in_losses: set[int]) -> bool:
    """Whether the program asks outside of its losses where a target holds a value."""
    return any(id(one) not in in_losses and one.args and data_of(one.args[0]).node is root.node for one in computation.of(*_COMPARED, "eq", "nanmean", "nan_to_num"))


def _layers(value: Value) -> set[int]:
    """The last layers that a value is made of."""
    return {id(module(one.args[0])) for one in origins(value, ("run",)) if one.op == "run" and one.args}
