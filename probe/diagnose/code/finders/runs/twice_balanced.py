"""Classes that are made to count alike twice. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.updates import backwards

_SAMPLER = "torch.utils.data.WeightedRandomSampler"
_INVERSE = ("div", "reciprocal", "pow", "sklearn.utils.class_weight.compute_class_weight")


def balanced_twice(program: Program) -> Iterator[Remark]:
    """A sampler draws the rare classes as often as the others, and the loss of the same batches weighs them by how rare they are."""
    computation = computation_of(program)
    samplers = [one for one in computation.of(_SAMPLER) if one.args or one.named]
    for _, loss in backwards(computation) if samplers else ():
        inside = list(origins(loss))
        weights = [given for one in inside for name in ("weight", "pos_weight") if (given := one.named.get(name)) is not None and one.op in ("cross_entropy", "nll_loss", "binary_cross_entropy_with_logits")]
        loaders = [one for one in inside if one.op == "torch.utils.data.DataLoader"] or [one.named["loader"] for one in inside if one.op == "rows" and "loader" in one.named]
        for sampler in samplers:
            used = any(any(part is sampler for part in origins(one)) for one in loaders)
            drawn = sampler.argument("weights", 0)
            for weight in weights:
                counted = _counts(weight) & _counts(drawn) if drawn is not None else set()
                if used and counted:
                    yield Remark(weight.node, f"{short(weight.node)} weighs the classes by how rare they are, and {short(sampler.node)} (line {sampler.line}) has drawn them by the same counts: rare classes count as much more as common ones did before")
                    return


def _counts(value: Value) -> set[int]:
    """The labels that a weight counts, if it is larger the fewer there are."""
    found = list(origins(value))
    if not any(one.op in _INVERSE and not (one.op == "pow" and (number(one.args[-1]) or 0) > 0) for one in found):
        return set()
    counts = [one for one in found if one.op in ("bincount", "sum", "unique", "collections.Counter", "Counter", "count", "compute_class_weight", "len", _INVERSE[-1])]
    return {id(part) for one in counts for each in one.made_of() for part in origins(each) if part.op not in ("@constant", "@library", "eq")}
