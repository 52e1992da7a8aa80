"""The weights by which a sampler draws. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import KEPT, Many, Value, bare, constant, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short

FINDERS = Finders()
_SAMPLER = "WeightedRandomSampler"
_SPLIT = "torch.utils.data.random_split"


def weights_of_other_samples(program: Program) -> Iterator[Remark]:
    """A loader draws from a part of the data, chosen in random order, by weights of the whole in its own order."""
    for loader in computation_of(program).of("torch.utils.data.DataLoader"):
        sampler, part = loader.argument("sampler", 3), loader.argument("dataset", 0)
        weights = sampler.argument("weights", 0) if sampler is not None and sampler.op.endswith(_SAMPLER) else None
        chosen = None if part is None else _chosen(part)
        if weights is None or sampler is None or part is None or chosen is None:
            continue
        asked = list(origins(weights, stop=("len",)))
        looked_up = any(one.op == "part" and len(one.args) == 2 and one.args[1].op != "slice" for one in asked)
        if looked_up and not any(one is part or one is chosen for one in asked):
            yield Remark(sampler.node, f"{short(sampler.node)} takes the weights of the first samples of the whole ({short(weights.node)}, line {weights.line}), and {short(part.node)} (line {part.line}) holds others, in random order")
            return


def _chosen(part: Value) -> Value | None:
    """What a part of the data was chosen by at random: an order, or the split."""
    if part.op == "part" and part.args[0].op == _SPLIT:
        return part.args[0]
    if part.op == "torch.utils.data.Subset" and len(part.args) == 2:
        return next((one for one in origins(bare(part.args[1])) if one.op in ("randperm", "permutation")), None)
    return None


@FINDERS.add("weights-of-classes")
def _few_weights(program: Program) -> Iterator[Remark]:
    """A sampler draws as many samples as a data set has, by a list of weights that are written out, or made one for each number of a short range."""
    for sampler in computation_of(program).values:
        drawn = sampler.argument("num_samples", 1) if sampler.op.endswith(_SAMPLER) else None
        weights = sampler.argument("weights", 0) if drawn is not None and bare(drawn).op == "len" else None
        count = None if weights is None else _length(weights)
        if weights is not None and count is not None and 1 < count <= 200 and drawn is not None and not isinstance(bare(drawn).args[0], Many):
            yield Remark(sampler.node, f"{short(weights.node)} has {count:g} weights, as one for each class (line {weights.line}), and the sampler takes one for each sample: it draws the first few samples only")
            return


def _length(value: Value) -> float | None:
    """How many numbers a list or an array of one axis has, where that is written down."""
    for _ in range(40):
        if isinstance(value, Many):
            return None if value.grown or any(isinstance(one, Many) or one.op == "star" for one in value.parts) else len(value.parts)
        if value.op in ("zeros", "ones", "empty"):
            return number(value.args[0]) if len(value.args) == 1 else None
        if value.op == "set_item" and value.args[1].op not in ("index", "element", "@constant"):
            return None
        if not value.args or value.op not in (*KEPT, "div", "mul", "set_item", "torch.DoubleTensor", "torch.FloatTensor", "sqrt", "reciprocal", "pow") or (value.op in ("div", "mul") and number(value.args[0]) is None and number(value.args[-1]) is None):
            return None
        value = value.args[-1] if value.op in ("div", "mul") and number(value.args[0]) is not None else value.args[0]
    return None


def counts_each_class(value: Value) -> bool:
    """Whether a value says how often each number occurs: the counts that `unique` gives, the values of a Counter, or the sums over
    the samples of codes of one class each; or how often one number of several occurs."""
    if value.op == "part" and len(value.args) == 2 and value.args[0].op == "unique":
        asked = value.args[0].named
        place = sum(constant(asked.get(name)) is True for name in ("return_counts", "return_index", "return_inverse"))
        return constant(asked.get("return_counts")) is True and number(value.args[1]) in (place, -1)
    if value.op in ("values", "element") and value.args:
        return bare(value.args[0]).op == "collections.Counter" or (value.op == "element" and counts_each_class(bare(value.args[0])))
    if value.op == "sum" and value.args:
        inner, axis = bare(value.args[0]), value.argument("dim", 1)
        if inner.op == "one_hot":
            return number(axis) == 0
        tested = inner.args[1] if inner.op == "eq" and len(inner.args) == 2 and axis is None else None
        return tested is not None and (tested.op in ("index", "element") or isinstance(constant(tested), int))
    return False


def lists_in(value: Value | None) -> Iterator[Value]:
    """The list that a value holds the numbers of, each divided or multiplied by one number or not."""
    for _ in range(12 if value is not None else 0):
        if value is not None and isinstance(value, Many):
            yield value
        if value is None or not value.args or value.op not in (*KEPT, "div", "mul", "sqrt", "pow"):
            return
        value = value.args[-1] if value.op in ("div", "mul") and number(value.args[0]) is not None else value.args[0]
