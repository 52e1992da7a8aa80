"""Terms that count the padding beside others that leave it out. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, number, origins
from probe.diagnose.code.finders.sequences.preferences import leaves_of, pushed
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses, terms

FINDERS = Finders()
_COMPARED = ("eq", "ne", "lt", "gt", "le", "ge", "invert")
_HIDES = ("masked_fill", "where", "set_item")


@FINDERS.add("padding-not-ignored")
def _entropy_of_the_padding(program: Program) -> Iterator[Remark]:
    """One term of a loss counts the words that a mask keeps, and the entropy of the same scores is averaged over all places."""
    for _, loss in losses(computation_of(program)):
        parts = [one for one, _ in terms(loss)]
        masked = next(((one, found) for one in parts if (found := _masked(one)) is not None), None)
        for part in parts if masked is not None else ():
            whole = _plain_mean(part)
            entropy = _entropy(whole) if whole is not None else None
            if entropy is None or masked is None:
                continue
            scores = {id(one) for one in origins(entropy, ("run",)) if one.op in ("log_softmax", "run", "softmax")}
            if any(id(one) in scores for one in origins(masked[0], ("run",))):
                yield Remark(part.node, f"{short(part.node)} averages over all places, also over those that {short(masked[1].node)} (line {masked[1].line}) leaves out of the other term")
                return


def _masked(term: Value) -> Value | None:
    """The mask of a term `(x * mask).sum() / mask.sum()` of probabilities of words."""
    term = bare(term, "neg")
    if term.op != "div" or len(term.args) != 2:
        return None
    total, counted = bare(term.args[0], "neg"), bare(term.args[1], "clamp", "maximum", "max")
    if total.op != "sum" or counted.op != "sum" or len(total.args) != 1 or len(counted.args) != 1 or total.named or counted.named:
        return None
    mask = bare(counted.args[0])
    factors = [bare(one) for one in origins(total.args[0], ("gather", "run", "log_softmax")) if one.op == "mul" for one in one.args]
    likely = any(one.op == "gather" for one in origins(total.args[0], ("gather",)))
    return mask if likely and any(one is mask for one in factors) and _is_made_of_words(mask) else None


def _is_made_of_words(mask: Value) -> bool:
    return mask.op in _COMPARED or (mask.op in ("and", "mul") and any(bare(one).op in _COMPARED for one in mask.args))


def _plain_mean(term: Value) -> Value | None:
    """What a term is the mean of, over all places."""
    term = bare(term, "neg")
    return term.args[0] if term.op == "mean" and len(term.args) == 1 and not term.named else None


def _entropy(value: Value) -> Value | None:
    """The entropy at each place, of the scores of words."""
    value = bare(value, "neg")
    if any(one.op in _HIDES for one in origins(value, ("run",))):
        return None
    if value.op == "sum" and number(value.argument("dim", 1)) in (-1.0, 2.0) and value.args:
        inner = bare(value.args[0])
        kinds = {bare(one).op for one in inner.args} if inner.op == "mul" else set()
        return value if kinds & {"log_softmax"} and kinds & {"exp", "softmax"} else None
    return None


@FINDERS.add("padding-in-the-divisor")
def _mean_of_masked_words(program: Program) -> Iterator[Remark]:
    """What the words of an answer are likely to be is averaged over all places of a row, and a mask has set those of others to 0."""
    for _, loss in losses(computation_of(program)):
        for inside, _, _ in pushed(loss):
            for leaf, _ in leaves_of(inside):
                leaf = bare(leaf)
                product = bare(leaf.args[0]) if leaf.op == "mean" and leaf.args and number(leaf.argument("dim", 1)) in (1.0, -1.0) else leaf
                if product is leaf or product.op != "mul" or len(product.args) != 2:
                    continue
                for likely, mask in (product.args, product.args[::-1]):
                    if bare(likely, "part").op == "gather" and any(one.op in _COMPARED for one in origins(mask)) and not any(one.op == "run" for one in origins(mask)):
                        yield Remark(leaf.node, f"{short(leaf.node)} divides by all places of a row, and {short(mask.node)} (line {mask.line}) keeps those of the answer: the shorter an answer, the nearer to 0 is its mean")
                        return


@FINDERS.add("padding-not-ignored")
def _sum_over_more_than_is_counted(program: Program) -> Iterator[Remark]:
    """A sum over all places is divided by the number of those that a mask keeps."""
    for _, loss in losses(computation_of(program)):
        for value in origins(loss):
            if value.op != "div" or len(value.args) != 2:
                continue
            total, counted = bare(value.args[0], "neg"), value.args[1]
            mask = next((found for one in origins(counted, ("run",)) if one.op == "sum" and one.args and (found := bare(one.args[0], "invert")).op in _COMPARED and len(found.args) == 2 and number(found.args[1]) is not None), None)
            if mask is None or not any(one.op == "sum" and len(one.args) == 1 and not one.named for one in _factors(total)):
                continue
            inside = next(bare(one.args[0]) for one in _factors(total) if one.op == "sum")
            steps = list(origins(inside, ("log_softmax", "run")))
            if any(one.op == "log_softmax" for one in steps) and not any(one.op in (*_HIDES, "part") or (one.op == "mul" and any(any(each is mask for each in origins(side)) for side in one.args)) for one in steps):
                yield Remark(value.node, f"{short(value.node)} adds up all places, and divides by the number of those that {short(mask.node)} (line {mask.line}) tells apart: what is said of the padding counts too")
                return


def _factors(value: Value) -> list[Value]:
    value = bare(value)
    return [each for one in value.args for each in _factors(one)] if value.op == "mul" else [value]
