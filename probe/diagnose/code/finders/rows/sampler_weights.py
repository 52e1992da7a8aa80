"""The weights by which a sampler draws. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short

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
