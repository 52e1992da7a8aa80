"""What was computed of the batches of a loader that shuffles, and is put beside its batches of another pass. Pure; standard
library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short

FINDERS = Finders()
_LOADER = "torch.utils.data.DataLoader"
_SAME_ROWS = ("part", "split", "chunk", "element")


@FINDERS.add("predictions-in-another-order")
def _beside_another_pass(program: Program) -> Iterator[Remark]:
    """A loader that shuffles is gone over beside a list of what a network has given for its batches in a pass before."""
    computation = computation_of(program)
    for value in computation.of("zip"):
        loaders = [one for one in value.args if one.op == _LOADER and constant(one.argument("shuffle", 2)) is True]
        for loader in loaders:
            kept = next((one for one in value.args if one is not loader and _is_of_a_pass(one, loader)), None)
            if kept is not None:
                yield Remark(value.node, f"{short(value.node)} puts what was computed in one pass of {short(loader.node)} (line {loader.line}) beside the batches of another one: it shuffles anew in each")
                return


@FINDERS.add("predictions-in-another-order")
def _looked_up_by_batch(program: Program) -> Iterator[Remark]:
    """The batch of a loader that shuffles is put beside the one of the same number in a list of what an earlier pass has given."""
    computation = computation_of(program)
    for value in computation.of("part"):
        index = value.args[1] if len(value.args) == 2 else None
        loop = value.where.loops[-1] if value.where.loops else None
        if index is None or index.op != "index" or index.data != "enumerate" or loop is None:
            continue
        loaders = {id(one): one for count, node, one in computation.passes if node is loop and count <= value.number}
        over = next(iter(loaders.values())) if len(loaders) == 1 else None
        over = over.args[0] if over is not None and over.op == "enumerate" and over.args else over
        if over is not None and over.op == _LOADER and constant(over.argument("shuffle", 2)) is True and _is_of_a_pass(value.args[0], over) and loop not in value.args[0].where.loops:
            yield Remark(value.node, f"{short(value.node)} is what was computed in an earlier pass of {short(over.node)} (line {over.line}), which shuffles anew in each: it is that of other samples")
            return


def _is_of_a_pass(kept: Value, loader: Value) -> bool:
    """Whether a value lists what a network gives for the batches of a loader, one after the other."""
    kept = bare(kept)
    while kept.op in _SAME_ROWS and kept.args:
        kept = bare(kept.args[0])
    if kept.op == "cat" and kept.args:
        kept = kept.args[0]
    if not isinstance(kept, Many) or not kept.grown or kept.where.loops[-1:] == loader.where.loops[-1:] != ():
        return False
    found = list(origins(kept))
    return any(one.op == "run" for one in found) and any(one.op == "rows" and one.named.get("loader") is loader for one in found)
