"""How sure a network says that it is: confidences that are none, and intervals from what it has learned. Pure; standard
library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, number, origins
from probe.diagnose.code.finders.evaluation.temperatures import learns
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import of_one_layer
from probe.diagnose.code.traits.basic import LOSSES, losses, squared

_LOGITS = ("cross_entropy", "binary_cross_entropy_with_logits")
_QUANTILES = ("quantile", "percentile", "nanquantile", "kthvalue")


def logits_as_confidence(program: Program) -> Iterator[Remark]:
    """The largest logit of each sample is sorted into bins between 0 and 1, or logits are compared with one-hot labels."""
    computation = computation_of(program)
    learned = [value.args[0] for _, loss in losses(computation) for value in origins(loss) if value.op in _LOGITS and len(value.args) > 1]
    for value in computation.of("gt", "ge", "lt", "le", "bucketize", "digitize", "searchsorted") if learned else ():
        for confidence, bound in (value.args[:2], value.args[1::-1]) if len(value.args) > 1 else ():
            best = _largest(confidence)
            if best is not None and _is_bin(bound) and any(of_one_layer(best, one) for one in learned):
                yield Remark(value.node, f"{short(value.node)} asks in which bin between 0 and 1 the largest of {short(best.node)} (line {best.line}) falls: these are logits, which the loss takes the softmax of")
                return
    for value in computation.of("sub", "mse_loss") if learned else ():
        for outputs, labels in (value.args[:2], value.args[1::-1]) if len(value.args) > 1 else ():
            core = bare(outputs)
            if core.op == "run" and bare(labels).op == "one_hot" and core.where.no_grad and any(of_one_layer(core, one) for one in learned):
                yield Remark(value.node, f"{short(value.node)} compares logits with labels of 0 and 1: the loss takes the softmax of {short(core.node)} first")
                return


def _largest(value: Value) -> Value | None:
    """The outputs of a layer whose largest one a value is."""
    value = bare(value)
    if value.op == "values" or (value.op == "part" and constant(value.args[1]) == 0):
        value = value.args[0]
    if value.op in ("element", "rows") and value.args:
        value = bare(value.args[0])
    core = bare(value.args[0]) if value.op in ("max", "amax") and value.args else None
    return core if core is not None and core.op == "run" and core.args[0].op == "torch.nn.Linear" else None


def _is_bin(value: Value) -> bool:
    """Whether a value is one of several bounds between 0 and 1."""
    value = bare(value)
    while value.op in ("part", "element", "index", "add", "rows") and value.args:
        value = bare(value.args[0])
    bounds = [number(one) for one in value.args[:2]]
    return value.op in ("linspace", "arange") and bounds in ([0, 1], [0.0, 1.0])


def interval_from_what_was_learned(program: Program) -> Iterator[Remark]:
    """The width of intervals is a quantile of the errors on the samples that the network has learned."""
    computation = computation_of(program)
    targets = [(value, value.args[1]) for _, loss in losses(computation) for value in origins(loss) if value.op in LOSSES and len(value.args) > 1]
    targets += [(value, one) for _, loss in losses(computation) for value in origins(loss) if (inner := squared(value)) is not None and bare(inner).op == "sub" for one in bare(inner).args if not any(part.op == "run" for part in origins(one))]
    for quantile in computation.of(*_QUANTILES) if targets else ():
        errors = bare(quantile.args[0]) if quantile.args else quantile
        listed = bare(errors.args[0]) if errors.op == "cat" and errors.args else errors
        errors = bare(listed.parts[0]) if isinstance(listed, Many) and len(listed.parts) == 1 else errors
        gap = bare(errors.args[0]) if errors.op == "abs" and errors.args else None
        if gap is None or gap.op != "sub" or len(gap.args) != 2 or not _is_width(computation, quantile):
            continue
        target = next((one for one in gap.args if not any(part.op == "run" for part in origins(one))), None)
        ran = [part for one in gap.args for part in origins(one) if part.op == "run"]
        if target is None or not ran or not all(one.where.no_grad for one in ran):
            continue
        learned = next((value for value, one in targets if learns(one, target)), None)
        if learned is not None:
            yield Remark(quantile.node, f"{short(quantile.node)} is that of the errors on the samples that {short(learned.node)} (line {learned.line}) learns, which are smaller than those on any others")
            return


def _is_width(computation: Computation, quantile: Value) -> bool:
    """Whether a quantile is added to what a network gives, or taken from it."""
    waiting, seen = [quantile], {id(quantile)}
    while waiting and len(seen) < 20:
        at = waiting.pop()
        for user in computation.users(at):
            if user.op in ("add", "sub") and any(one.op == "run" for part in user.args if part is not at for one in origins(part)):
                return True
            if bare(user) is bare(at) and id(user) not in seen:
                seen.add(id(user))
                waiting.append(user)
    return False
