"""Masks of answers: of another answer, and of more rows than count. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, number, origins
from probe.diagnose.code.finders.sequences.preferences import leaves_of, pushed
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import product
from probe.diagnose.code.traits.basic import losses

_COMPARED = frozenset({"eq", "ne", "lt", "gt", "le", "ge", "any", "all", "invert", "and", "or"})
_DRAWN = ("multinomial", "sample", "generate", "argmax")
_SIZES = ("size", "shape", "len", "numel", "ones_like", "zeros_like")
_FILLED = ("ones", "zeros", "full", "ones_like", "zeros_like")


# The mask of another answer ----------------------------------------------------------------------


def mask_of_another_answer(program: Program) -> Iterator[Remark]:
    """The probabilities of the words of one answer are added up where another answer of the pair has its words."""
    for _, loss in losses(computation_of(program)):
        for inside, _, _ in pushed(loss):
            found = [(leaf, *each) for leaf, _ in leaves_of(inside) if (each := _words_and_mask(leaf)) is not None]
            for _, at, words, mask in found:
                for _, _, others, _ in found:
                    mine, theirs = _own(words, others), _own(others, words)
                    made = {id(one) for one in origins(mask, _SIZES)}
                    if mine and theirs and made & theirs and not made & mine:
                        yield Remark(at.node, f"{short(at.node)} takes the words of one answer where {short(bare(mask).node)} (line {bare(mask).line}) is 1, which is made of the words of the other answer alone")
                        return


def _own(words: Value, others: Value) -> set[int]:
    """What one row of words is made of, and the other is not."""
    known = {id(one) for one in origins(others)}
    return {id(one) for one in origins(words) if id(one) not in known and one.op not in ("@constant", "slice", "tuple")}


def _words_and_mask(leaf: Value) -> tuple[Value, Value, Value] | None:
    """Where probabilities of words are multiplied by a mask, in a sum of them; the words, and the mask."""
    for _ in range(6):
        leaf = bare(leaf)
        if leaf.op not in ("sum", "mean", "div") or not leaf.args:
            break
        leaf = leaf.args[0]
    if leaf.op != "mul" or len(leaf.args) != 2:
        return None
    for one, mask in (leaf.args, leaf.args[::-1]):
        looked_up = bare(one, "part")
        if looked_up.op == "gather" and len(looked_up.args) > 2 and not any(each.op == "run" for each in origins(mask)):
            return leaf, looked_up.args[2], mask
    return None


# More rows in the divisor than in the sum ------------------------------------------------------------


def left_out_in_the_divisor(program: Program) -> Iterator[Remark]:
    """A sum leaves out words by two masks, and is divided by the sum of one of them."""
    computation = computation_of(program)
    for value in computation.of("div"):
        if len(value.args) != 2:
            continue
        total, counted = bare(value.args[0], "neg"), bare(value.args[1], "clamp", "maximum", "max")
        if counted.op == "add" and len(counted.args) == 2 and (number(counted.args[1]) or 1) < 1:
            counted = bare(counted.args[0])
        if total.op != "sum" or counted.op != "sum" or not total.args or not counted.args or number(total.argument("dim", 1)) != number(counted.argument("dim", 1)):
            continue
        above, below = _factors(total.args[0]), _factors(counted.args[0])
        if not below or not all(_is_mask(one) for one in below) or not all(any(one is each for each in above) for one in below):
            continue
        rest = [one for one in above if not any(one is each for each in below)]
        more = [one for one in rest if _is_mask(one)]
        if len(rest) == len(more) + 1 and more:
            left = more[0]
            yield Remark(value.node, f"{short(value.node)} adds up what {short(left.node)} (line {left.line}) keeps, and counts also what it leaves out: the divisor is {short(counted.node)} (line {counted.line})")
            return


def _factors(value: Value) -> list[Value]:
    return [_core(one) for one in product(value).above]


def _core(value: Value) -> Value:
    """A mask as it was made, without the axes and the rows that were taken of it."""
    while True:
        inner = bare(value)
        if inner.op == "part" and len(inner.args) == 2 and inner.args[1].op in ("tuple", "slice", "randint"):
            inner = inner.args[0]
        if inner is value:
            return value
        value = inner


def _is_mask(value: Value) -> bool:
    """Whether a value is 0 or 1 in each row, and not by what a network says of it."""
    if any(one.op == "run" for one in origins(value, stop=_DRAWN)):
        return False
    if value.op in _COMPARED:
        return True
    put = value
    while put.op == "set_item" and len(put.args) == 3:
        if number(put.args[2]) not in (0, 1):
            return False
        put = bare(put.args[0])
    return put.op in _FILLED and (put.op.startswith(("ones", "zeros")) or number(put.argument("fill_value", 1)) in (0, 1))
