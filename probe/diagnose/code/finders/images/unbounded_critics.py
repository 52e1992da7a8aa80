"""Critics whose answers nothing bounds. Pure; standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import bare, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses, terms

_BOUNDS = re.compile(r"spectral|weight_norm|\bgrad\(|clamp|clip|penalty|parametriz|lipschitz|renorm|\bgp\b|\br1\b", re.I)


def critic_without_a_bound(program: Program) -> Iterator[Remark]:
    """A critic is trained on nothing but the difference of its answers for real and for generated samples, and nothing holds its
    weights or its slope."""
    if any(_BOUNDS.search(source.text) for source in program.sources):
        return
    for _, loss in losses(computation_of(program)):
        parts = [(bare(one), sign) for one, sign in terms(loss)]
        if len(parts) != 2 or {sign for _, sign in parts} != {1.0, -1.0} or not all(one.op == "mean" and one.args for one, _ in parts):
            continue
        answers = [bare(one.args[0]) for one, _ in parts]
        if not all(one.op == "run" for one in answers) or answers[0].args[0] is not answers[1].args[0]:
            continue
        layers = [{id(part.args[0]) for part in origins(one) if part.op == "run" and part.args} for one in answers]
        if layers[0] < layers[1] or layers[1] < layers[0]:  # the one of what is generated also goes through the generator
            yield Remark(loss.node, f"{short(loss.node)} is the difference of the critic's answers alone: it falls without end as the answers grow, and nothing bounds them")
            return
