"""Candidates that are ranked by another likeness than the one that was trained. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses, without_small
from probe.diagnose.code.traits.updates import plain

_TURNED = ("T", "t", "transpose", "mT", "permute", "element", "rows", "cat", "vstack", "concatenate", "dropout")
_RANKED = ("topk", "argmax", "argsort", "sort", "max")


def ranked_without_the_norm(program: Program) -> Iterator[Remark]:
    """A loss compares the directions of vectors, and candidates are ranked by products with the vectors as they are."""
    computation = computation_of(program)
    learned = [pair for _, loss in losses(computation) for one in origins(loss) if (pair := _compared(one)) is not None]
    if not learned:
        return
    for best in computation.of(*_RANKED):
        scores = bare(best.args[0], "div", "mul") if best.args else best
        pair = _compared(scores) if best.where.no_grad else None
        if pair is None or not scores.where.no_grad or number(best.argument("dim", 2 if best.op == "topk" else 1)) == 0 or any(one.op == "cosine_similarity" for one in computation.values):
            continue
        (_, _), (raw, layers) = pair
        same = [one for one in learned if {id(layer) for _, layer in one} >= {id(layers)} and {id(layer) for _, layer in one} == {id(layer) for _, layer in pair}]
        if raw is False and same and all(normed for one in same for normed, _ in one):
            yield Remark(scores.node, f"{short(scores.node)} ranks by products with vectors of any length, and the loss compares the same vectors after they are divided by their norms")
            return


def _compared(value: Value) -> tuple[tuple[bool, Value], tuple[bool, Value]] | None:
    """Of a product of two rows of vectors: whether each was divided by its norm, and the layer that gives it."""
    if value.op not in ("matmul", "mm") or len(value.args) != 2:
        return None
    first, second = _vector(value.args[0]), _vector(value.args[1])
    return None if first is None or second is None else (first, second)


def _vector(value: Value) -> tuple[bool, Value] | None:
    """Whether a vector was divided by its norm on the way from the layer that gives it, and that layer."""
    normed = False
    for _ in range(30):
        value = bare(value, *_TURNED)
        if isinstance(value, Many):
            if len({id(one.args[0]) for one in value.parts if one.op == "run"}) > 1 or not value.parts:
                return None
            value = value.parts[0]
        elif value.op == "run":
            return normed, plain(value.args[0])
        elif (value.op == "normalize" and value.args) or (value.op == "div" and len(value.args) == 2 and _is_norm(value.args[1])):
            normed, value = True, value.args[0]
        elif value.op == "part" and len(value.args) == 2 and (value.args[1].op == "slice" or isinstance(constant(value.args[1]), int)):
            value = value.args[0]
        else:
            return None
    return None


def _is_norm(value: Value) -> bool:
    return without_small(value).op in ("norm", "linalg.norm", "torch.linalg.norm", "vector_norm", "torch.linalg.vector_norm", "sqrt")


