"""Ratios of new and old probabilities: whether both are those of one action, among the same actions, squashed or not; and
errors without a gradient where they are large. Pure; standard library only."""

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
_MANY = 400
_EMPTY = ("zeros", "empty", "full", "zeros_like", "empty_like", "new_zeros", "new_empty")
_SLOPES = ("log", "log1p", "softplus", "logsigmoid")
_SQUASHED = ("tanh", "sigmoid", "atanh", "logit", "softplus", "logsigmoid")
_DRAWS = ("sample", "rsample", "normal", "randn", "randn_like")
_ENDS = ("run", "log_prob", *_DRAWS)
_BOUNDED = ("Beta", "Uniform", "TransformedDistribution", "ContinuousBernoulli", "Kumaraswamy", "VonMises")


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
    computation = computation_of(program)
    for ratio, new, old in _ratios(computation):
        if len(new.args) < 2 or len(old.args) < 2:
            continue
        drawn = bare(old.args[1])
        changed, at = None, new.args[1]
        for _ in range(_STEPS):
            if isinstance(at, Many) and len(at.parts) == 1:
                at = at.parts[0]
            elif (inner := _within(computation, at)) is not None:
                at = inner
            elif at.args and at.op in ("clamp", "tanh"):
                changed, at = changed or at, at.args[0]
            else:
                break
        bounded = changed is not None and changed.op == "clamp" and any(one.op.rpartition(".")[2] in _BOUNDED for one in origins(plain(old.args[0]), stop=("run",)))
        if drawn.op in ("sample", "rsample") and bare(at) is drawn and changed is not None and not bounded and plain(new.args[0]).op == plain(old.args[0]).op:
            yield Remark(ratio.node, f"{short(ratio.node)} divides the probabilities of two actions: {short(old.node)} (line {old.line}) is that of the action that was drawn, and {short(new.node)} (line {new.line}) that of {short(changed.node)} (line {changed.line})")
            return


def slope_on_one_side(program: Program) -> Iterator[Remark]:
    """The slope of what squashes the drawn action is part of one of the two probabilities of a ratio, and not of the other."""
    computation = computation_of(program)
    for ratio in computation.of("exp"):
        terms = [_terms(computation, side) for side in difference_of(ratio) or ()]
        densities = [[one for one in found if _action_in(computation, one) is not None] for found in terms]
        if len(terms) != 2 or not all(len(found) == 1 for found in densities):
            continue
        draws = [_draws_of(computation, found[0]) for found in densities]
        if not draws[0] or draws[0] != draws[1] or _density_of(computation, densities[0][0]) != _density_of(computation, densities[1][0]):
            continue
        others = [[one for one in found if _action_in(computation, one) is None and number(one) is None] for found in terms]
        slopes = [next((one for one in found if _is_slope(computation, one, draws[0])), None) for found in others]
        rest = [sorted(one.op for one in found if not _is_slope(computation, one, draws[0]) and not _is_of_actions(computation, one, draws[0])) for found in others]
        if (slopes[0] is None) == (slopes[1] is None) or rest[0] != rest[1]:
            continue
        slope, other = (slopes[0], densities[1][0]) if slopes[0] is not None else (slopes[1], densities[0][0])
        if slope is not None:
            yield Remark(ratio.node, f"{short(ratio.node)} divides two different densities: one has the slope of what squashes the action ({short(slope.node)}, line {slope.line}), and the other, {short(other.node)} (line {other.line}), is that of the action before it: the slope stays in the ratio as a factor")
            return


def _terms(computation: Computation, side: Value) -> list[Value]:
    """What a log probability is a sum of, after it was stored and rows of it were taken, without signs."""
    waiting: list[Value] = [side]
    found: list[Value] = []
    while waiting and len(found) < _STEPS:
        at = waiting.pop()
        if at.op in ("add", "sub") and len(at.args) == 2 and not at.named:
            waiting += at.args
        elif at.op == "neg" and at.args:
            waiting.append(at.args[0])
        elif isinstance(at, Many) and len(at.parts) == 1:
            waiting.append(at.parts[0])
        elif at.op != "either" and (inner := _within(computation, at)) is not None:
            waiting.append(inner)
        else:
            found.append(at)
    return found


def _action_in(computation: Computation, term: Value) -> Value | None:
    """The action whose density a term is: of log_prob, or of a squared distance from what layers give, written by hand."""
    if term.op == "log_prob" and len(term.args) == 2:
        return term.args[1]
    for one in _made(computation, term):
        inner = squared(one)
        made = _made(computation, inner) if inner is not None else []
        if any(each.op == "run" for each in made) and any(each.op in _DRAWS for each in made):
            return inner
    return None


def _draws_of(computation: Computation, density: Value) -> set[int]:
    """The draws that the action of a density comes from, in whatever way it was squashed and restored since."""
    action = _action_in(computation, density)
    return set() if action is None else {id(one) for one in _made(computation, action) if one.op in _DRAWS}


def _density_of(computation: Computation, density: Value) -> tuple[object, ...]:
    """The kind of a distribution, and the layers that give its numbers; of one that squashes by itself, itself."""
    made = _made(computation, density.args[0] if density.op == "log_prob" else density)
    kinds = sorted({one.op for one in made if one.op.startswith("torch.distributions.")})
    if (density.op == "log_prob" and not kinds) or any("Transform" in one for one in kinds):
        return (id(density),)
    return (*kinds, *sorted({id(plain(one.args[0])) for one in made if one.op == "run"}))


def _is_slope(computation: Computation, term: Value, drawn: set[int]) -> bool:
    """Whether a term is made of a logarithm of the drawn action as it was squashed."""
    logs = (_made(computation, one) for one in _made(computation, term) if one.op in _SLOPES)
    return any({id(one) for one in made} & drawn and any(one.op in _SQUASHED for one in made) for made in logs)


def _is_of_actions(computation: Computation, term: Value, drawn: set[int]) -> bool:
    """Whether a term is made of nothing but drawn actions and known numbers."""
    made = _made(computation, term)
    known = ("@constant", "@library", "math.log", "zeros", "empty")
    return any(id(one) in drawn for one in made) and all(one.op in known or id(one) in drawn for one in made if (not one.args and not one.named and not isinstance(one, Many)) or one.op in _ENDS)


def _made(computation: Computation, value: Value) -> list[Value]:
    """A value and what its numbers are made of: not the places that they are taken from, nor what a draw or a layer is given."""
    waiting: list[Value] = [value]
    found: dict[int, Value] = {}
    while waiting and len(found) < _MANY:
        at = waiting.pop()
        if id(at) in found:
            continue
        found[id(at)] = at
        if at.op in _ENDS and at is not value:
            continue
        inner = _within(computation, at) if at.op in ("set_item", "part", "element", *_EMPTY) else None
        waiting += at.made_of() if inner is None else [inner]
    return list(found.values())


def _within(computation: Computation, value: Value) -> Value | None:
    """What a value is a part, a list or a copy of: of an array that rows were written into, what was written."""
    if value.op == "set_item" and len(value.args) == 3:
        return value.args[2]
    if value.op in _EMPTY:
        written = [one.args[2] for one in computation.users(value) if one.op == "set_item" and one.args[0] is value and one.args[2].op != "@constant"]
        return written[0] if len(written) == 1 else None
    return value.args[0] if value.args and (value.op in KEPT or value.op in SHAPED or value.op in _JOINED) else None


def _ratios(computation: Computation) -> Iterator[tuple[Value, Value, Value]]:
    """Ratios exp(new - old), with what gives the two log probabilities."""
    for value in computation.of("exp"):
        found = difference_of(value)
        new, old = (_log_prob(computation, one) for one in found) if found is not None else (None, None)
        if new is not None and old is not None and new is not old:
            yield value, new, old


def _log_prob(computation: Computation, value: Value) -> Value | None:
    """The log_prob that a value is, after it was stored and rows of it were taken."""
    for _ in range(_STEPS):
        if value.op == "log_prob":
            return value
        if isinstance(value, Many) and len(value.parts) == 1:
            value = value.parts[0]
        elif (inner := _within(computation, value)) is not None:
            value = inner
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
