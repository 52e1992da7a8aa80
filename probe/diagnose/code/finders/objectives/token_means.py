"""Means over the known places of batches that have different numbers of them. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import is_call, short
from probe.diagnose.code.traits.numberings import WORDS, contents, filled_up, marked, written
from probe.diagnose.code.traits.updates import backwards, in_parts_of, optimizer_of


def mean_of_each_micro_batch(program: Program) -> Iterator[Remark]:
    """A step follows several backwards, each of a mean over as many places as its batch has labels for."""
    computation = computation_of(program)
    steps = [one for one in computation.of("step") if optimizer_of(one) is not None]
    divided = [one.args[1] for one in computation.of("div", "mul") if len(one.args) > 1 and bare(one.args[0]).op == "grad"]
    if any(number(one) is None for one in divided):
        return
    for backward, whole in backwards(computation):
        part, by = (whole, divided[0]) if divided else _share(bare(whole))
        if part is None or by is None or any(one.op in ("sum", "numel") for one in origins(by)):
            continue
        mean = _mean_over_labels(computation, bare(part))
        step = next((one for one in steps if in_parts_of(backward, one)), None)
        if mean is not None and step is not None:
            yield Remark(backward.node, f"{short(step.node)} (line {step.line}) follows several batches, and {short(mean.node)} (line {mean.line}) is a mean over the labels of each: a label counts the more, the fewer its batch has")
            return


def _share(loss: Value) -> tuple[Value | None, Value | None]:
    """What a loss is a share of, and the number that says the share: of `x / n` and of `x * (1 / n)`."""
    if loss.op == "div" and len(loss.args) == 2:
        return loss.args[0], loss.args[1]
    for one, other in (loss.args, loss.args[::-1]) if loss.op == "mul" and len(loss.args) == 2 else ():
        if 0 < (number(one) or 0) < 1 or (one.op == "div" and number(one.args[0]) == 1):
            return other, one
    return None, None


def _mean_over_labels(computation: Computation, loss: Value) -> Value | None:
    """The loss that is a mean over places that are not padding."""
    if loss.op in ("cross_entropy", "nll_loss") and len(loss.args) > 1 and constant(loss.named.get("reduction")) in (None, "mean"):
        ignored = number(loss.argument("ignore_index"))
        return loss if (-100.0 if ignored is None else ignored) in _fillings(computation, loss.args[1]) else None
    if loss.op == "div" and len(loss.args) == 2:
        over, mask = bare(loss.args[0]), bare(loss.args[1], "clamp", "maximum", "max")
        losses = [one for one in origins(over) if one.op in ("cross_entropy", "nll_loss") and constant(one.named.get("reduction")) == "none"]
        picked = [one.args[2] for one in origins(over, ("run",)) if one.op == "gather" and len(one.args) > 2 and any(each.op in ("log_softmax", "logsumexp") for each in origins(one.args[0], ("run",)))]
        labels = losses[0].args[1] if losses and len(losses[0].args) > 1 else picked[0] if picked else None
        if over.op == "sum" and mask.op == "sum" and labels is not None:
            joined = _joined_masks(computation, mask.args[0])
            return loss if (any(map(_counts_lengths, joined)) if joined else _fillings(computation, labels)) else None
        if over.op == "sum" and mask.op == "sum" and bare(over.args[0]).op == "mul" and any(bare(one) is bare(mask.args[0]) for one in bare(over.args[0]).args):
            return loss if _is_true_at_words(computation, mask.args[0]) else None
    return None


def _is_true_at_words(computation: Computation, mask: Value, depth: int = 8) -> bool:
    """Whether a mask is true at places of sequences of different lengths: at all of them, or at some."""
    if marked(computation, mask) == WORDS:
        return True
    inner = bare(mask, "part", "rows", "element")
    return depth > 0 and inner.op in ("mul", "and", "logical_and") and any(_is_true_at_words(computation, one, depth - 1) for one in inner.args)


def _joined_masks(computation: Computation, mask: Value) -> list[Many]:
    """The lists of zeros and ones that a mask is put together of: `[0] * m + [1] * n`."""
    return [one for one in contents(computation, mask) if isinstance(one, Many) and {0, 1} <= {constant(part) for part in one.parts}]


def _counts_lengths(mask: Many) -> bool:
    """Whether a list has as many ones as a sample has places that count: `[0] * len(a) + [1] * len(b)`."""
    return any(
        isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and isinstance(node.left, ast.List) and [getattr(each, "value", None) for each in node.left.elts] == [1] and any(is_call(each, "len") for each in ast.walk(node.right))
        for node in ast.walk(mask.node)
    )


def _fillings(computation: Computation, target: Value) -> set[float]:
    """The numbers that stand in a padded target where a sample has no label."""
    found = filled_up(computation, target)
    known = {found[0]} if found is not None and found[0] is not None else set()
    for one in contents(computation, target):
        if one.op in ("full", "full_like", "new_full") and any(True for _ in written(computation, one)):
            known.add(number(one.argument("fill_value", 1)) or 0.0)
    return known
