"""Means of words that are divided by those of all texts, baselines that are trained along, and pairs that are marked by 0. Pure;
standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, is_none, number, origins, same
from probe.diagnose.code.finders.sequences.preferences import pushed
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.backwards import has_gradient
from probe.diagnose.code.traits.basic import losses, without_small
from probe.diagnose.code.traits.likelihoods import likelihood_sign

FINDERS = Finders()


def divided_by_all_texts(program: Program) -> Iterator[Remark]:
    """The vectors of a text's words are added up, and divided by the number of words in the whole batch."""
    computation = computation_of(program)
    for value in computation.of("div"):
        if len(value.args) != 2:
            continue
        total, count = bare(value.args[0]), without_small(value.args[1])
        weighed = bare(total.args[0]) if total.op == "sum" and _is_along_words(total) else total
        if weighed.op != "mul" or len(weighed.args) != 2 or count.op != "sum" or len(count.args) != 1 or count.named:
            continue
        mask = next((one for one in weighed.args if _for_each_feature(one) and (bare(one) is bare(count.args[0]) or same(bare(one), bare(count.args[0])))), None)
        if mask is not None and not any(one.op in ("sum", "mean") for one in computation.users(value)):
            yield Remark(value.node, f"{short(value.node)} divides the sum over the words of each text ({short(total.node)}, line {total.line}) by {short(count.node)}, the words of all texts of the batch: the same text gives another vector in another batch")
            return


def _is_along_words(total: Value) -> bool:
    axis = total.argument("dim", 1)
    axis = axis.parts[0] if isinstance(axis, Many) and len(axis.parts) == 1 else axis
    return number(axis) in (1, -2)


def _for_each_feature(mask: Value) -> bool:
    """Whether a mask of words is given an axis for their features."""
    for one in origins(mask, stop=("run", "ne", "eq", "lt", "gt")):
        if one.op == "unsqueeze" and number(one.args[-1]) in (-1, 2):
            return True
        index = one.args[1] if one.op == "part" and len(one.args) == 2 else None
        if isinstance(index, Many) and index.op == "tuple" and len(index.parts) > 1 and is_none(index.parts[-1]):
            return True
    return False


def baseline_trained_along(program: Program) -> Iterator[Remark]:
    """The divergence that a reward is compared with, a mean over the batch that is cut off at 0, has a gradient of its own."""
    computation = computation_of(program)
    for _, loss in losses(computation):
        for inside, _, term in _logistic_terms(loss):
            for one in origins(inside, stop=("run", "clamp", "relu", "maximum", "max")):
                mean = bare(one.args[0]) if one.op in ("clamp", "relu", "maximum", "max") and one.args else one
                if mean is one or mean.op != "mean" or len(mean.args) != 1 or mean.named or not has_gradient(one):
                    continue
                difference = bare(mean.args[0])
                if difference.op == "sub" and len(difference.args) == 2 and all(likelihood_sign(each) == 1 for each in difference.args) and not has_gradient(difference.args[1]):
                    yield Remark(one.node, f"{short(one.node)} is what {short(term.node)} (line {term.line}) compares each answer with, and it has a gradient: the loss also falls by moving the policy away from the reference, or back, on all answers alike")
                    return


def _logistic_terms(loss: Value) -> Iterator[tuple[Value, int, Value]]:
    """What stands in the logistic losses of a loss, also where it is chosen between two, or put behind another one."""
    yield from pushed(loss)
    for one in origins(loss, stop=("run",)):
        rows = bare(one.args[0]) if one.op in ("cat", "stack") and one.args else one
        chosen = one.args[1:] if one.op == "where" and len(one.args) == 3 else rows.parts if isinstance(rows, Many) else ()
        for part in chosen:
            yield from pushed(part)


def zero_for_minus_one(program: Program) -> Iterator[Remark]:
    """Scores of pairs are multiplied by marks of 1 and 0 before a logistic loss, which needs 1 and -1."""
    computation = computation_of(program)
    inside = {id(one) for _, loss in losses(computation) for one in origins(loss, stop=("run",))}
    for value in computation.of("logsigmoid", "softplus"):
        scored = bare(value.args[0], "neg") if value.args else value
        if id(value) not in inside or scored.op != "mul" or len(scored.args) != 2:
            continue
        for marks, scores in (scored.args, scored.args[::-1]):
            marked = bare(marks, "neg")
            pairs = marked.op == "eye" or (marked.op == "eq" and len(marked.args) == 2 and not any(one.op == "run" for one in origins(marked)))
            weighed = any(one.op in ("mul", "part", "where", "masked_fill") for one in computation.users(value))
            if pairs and not weighed and any(one.op == "run" for one in origins(scores)):
                yield Remark(value.node, f"{short(value.node)} multiplies the scores by {short(marked.node)}, which is 0 for pairs that do not belong together: they count as a score of 0, whatever the network says, and nothing pushes them apart")
                return


@FINDERS.add("outputs-of-another-order")
def _kept_in_another_order(program: Program) -> Iterator[Remark]:
    """What a network says of all batches of a shuffled loader is kept, and taken out by the number of the batch in a later pass."""
    computation = computation_of(program)
    for _, loss in losses(computation):
        found = list(origins(loss))
        for value in found:
            index = value.args[1] if value.op == "part" and len(value.args) == 2 else value
            begun = bare(index.args[0]) if index.op == "slice" and not is_none(index.args[0]) else index
            kept = bare(value.args[0]) if index is not value else value
            if kept is value or kept.op not in ("cat", "list", "stack", "concatenate") or not any(one.op == "index" for one in origins(begun)):
                continue
            loader = next((one for one in origins(kept) if one.op == "torch.utils.data.DataLoader" and constant(one.argument("shuffle", 2)) is True), None)
            inside = {id(one) for one in origins(kept)}
            beside = any(one.op == "rows" and id(one) not in inside and any(each is loader for each in one.made_of()) for one in found) if loader is not None else False
            rows = any(one.op == "rows" and any(each is loader for each in one.made_of()) for one in origins(kept))
            if loader is not None and beside and rows:
                yield Remark(value.node, f"{short(value.node)} takes what was kept in one pass of {short(loader.node)} (line {loader.line}), which shuffles, beside the rows of another pass: they are other samples")
                return
