"""Ratios of new and old probabilities: whether both are those of one action, among the same actions; and errors without a
gradient where they are large. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import KEPT, SHAPED, Many, Value, bare, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import is_large
from probe.diagnose.code.traits.basic import losses, squared
from probe.diagnose.code.traits.likelihoods import difference_of
from probe.diagnose.code.traits.updates import plain

_JOINED = ("part", "stack", "cat", "rows", "element", "sum", "squeeze", "next")
_FILLED = ("tensor", "as_tensor", "full", "full_like", "new_full", "new_tensor")
_STEPS = 24


def masked_on_one_side(program: Program) -> Iterator[Remark]:
    """Of the two probabilities of a ratio, one is that among the actions that are allowed, the other that among all."""
    for ratio, new, old in _ratios(computation_of(program)):
        sides = [_logits(one) for one in (new, old)]
        if sides[0] is None or sides[1] is None:
            continue
        if any(_masked(one) is None and bare(one).op != "run" for one in sides if one is not None):
            continue  # something else is done with the scores, which may be a mask
        masks = [_masked(one) for one in sides if one is not None]
        layers = [_layer(one) for one in sides if one is not None]
        if layers[0] is None or layers[0] is not layers[1] or (masks[0] is None) == (masks[1] is None):
            continue
        mask = masks[0] if masks[0] is not None else masks[1]
        if mask is not None:
            where, other = (new, old) if masks[0] is not None else (old, new)
            yield Remark(ratio.node, f"{short(ratio.node)} divides probabilities among different actions: that of {short(where.node)} (line {where.line}) is one among those that {short(mask.node)} (line {mask.line}) leaves, and that of {short(other.node)} (line {other.line}) one among all")
            return


def ratio_of_two_actions(program: Program) -> Iterator[Remark]:
    """The old probability is that of the action that was drawn, the new one that of the action as it was cut or squashed."""
    for ratio, new, old in _ratios(computation_of(program)):
        if len(new.args) < 2 or len(old.args) < 2:
            continue
        drawn = bare(old.args[1])
        changed, at = None, new.args[1]
        for _ in range(_STEPS):
            if isinstance(at, Many) and len(at.parts) == 1:
                at = at.parts[0]
            elif at.args and (at.op in KEPT or at.op in SHAPED or at.op in _JOINED):
                at = at.args[0]
            elif at.args and at.op in ("clamp", "tanh"):
                changed, at = changed or at, at.args[0]
            else:
                break
        if drawn.op in ("sample", "rsample") and bare(at) is drawn and changed is not None and plain(new.args[0]).op == plain(old.args[0]).op:
            yield Remark(ratio.node, f"{short(ratio.node)} divides the probabilities of two actions: {short(old.node)} (line {old.line}) is that of the action that was drawn, and {short(new.node)} (line {new.line}) that of {short(changed.node)} (line {changed.line})")
            return


def _ratios(computation: Computation) -> Iterator[tuple[Value, Value, Value]]:
    """Ratios exp(new - old), with what gives the two log probabilities."""
    for value in computation.of("exp"):
        found = difference_of(value)
        new, old = (_log_prob(one) for one in found) if found is not None else (None, None)
        if new is not None and old is not None and new is not old:
            yield value, new, old


def _log_prob(value: Value) -> Value | None:
    """The log_prob that a value is, after it was stored and rows of it were taken."""
    for _ in range(_STEPS):
        if value.op == "log_prob":
            return value
        if isinstance(value, Many) and len(value.parts) == 1:
            value = value.parts[0]
        elif value.args and (value.op in KEPT or value.op in SHAPED or value.op in _JOINED):
            value = value.args[0]
        else:
            return None
    return None


def _logits(likely: Value) -> Value | None:
    """The scores of the actions that a log probability is made of."""
    dist = likely.args[0] if likely.args else likely
    if not dist.op.endswith(".Categorical"):
        return None
    return dist.named.get("logits") or (dist.named.get("probs") or (dist.args[0] if dist.args else None))


def _masked(scores: Value) -> Value | None:
    """Where scores of actions that are not allowed are made very small."""
    for one in origins(scores, stop=("run",)):
        if one.op in ("masked_fill", "where", "set_item", "index_put", "masked_fill_", "add", "sub", "mul") and any(is_large(part) or (part.op in _FILLED and any(is_large(each) for each in part.args)) for part in one.args):
            return one
    return None


def _layer(scores: Value) -> Value | None:
    """The layer that gives the scores."""
    found = next((one for one in origins(scores, stop=("run",)) if one.op == "run"), None)
    return plain(found.args[0]) if found is not None else None


def large_errors_without_gradient(program: Program) -> Iterator[Remark]:
    """The square of an error is learned from that is cut to a range first: outside of it, the cut one does not change."""
    computation = computation_of(program)
    for loss in {id(one): one for _, one in losses(computation)}.values():
        for value in origins(loss, stop=("run",)):
            inner = squared(value)
            cut = bare(inner) if inner is not None else None
            if cut is None or cut.op != "clamp" or not cut.args:
                continue
            error = bare(cut.args[0])
            low, high = cut.argument("min", 1), cut.argument("max", 2)
            known = [number(one) if one is not None else None for one in (low, high)]
            if error.op != "sub" or len(error.args) != 2 or known[0] is None or known[1] is None or known[0] >= 0 or known[1] <= 0:
                continue
            learned = [any(one.op == "run" and not one.where.no_grad for one in origins(side, stop=("detach",))) for side in error.args]
            if sum(learned) == 1:
                yield Remark(cut.node, f"{short(cut.node)} does not change where {short(error.node)} (line {error.line}) is outside of {known[0]:g} to {known[1]:g}: the largest errors give no gradient, and are never made smaller")
                return
