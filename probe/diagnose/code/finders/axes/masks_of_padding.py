"""Masks that are to leave the padding out, and do not: filled up with what they hold, or those of the words before. Pure;
standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    SHAPED,
    Many,
    Table,
    Value,
    bare,
    constant,
    is_none,
    number,
    origins,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses, reduction_of
from probe.diagnose.code.traits.numberings import PADDING, WORDS, contents, filled_up, marked
from probe.diagnose.code.traits.uses import made_from

FINDERS = Finders()
_FILLED = ("torch.nn.utils.rnn.pad_sequence", "pad", "full", "new_full", "full_like", "list")
_ONES = ("ones", "ones_like", "new_ones")
_ASKED = frozenset({"eq", "ne", "mul", "masked_fill", "invert", "bool", "not", "where", "logical_not", "gt", "lt", "sub"})
_KEYS = ("src_key_padding_mask", "key_padding_mask", "attention_mask", "attn_mask", "memory_key_padding_mask", "tgt_key_padding_mask")
_WALKED = frozenset(KEPT | SHAPED | {"part", "rows", "set_item", "element", "tuple", "list", "dict"})
_WHOLE = ("cross_entropy", "nll_loss", "binary_cross_entropy_with_logits", "binary_cross_entropy")
_OF_EACH = ("cross_entropy", "nll_loss", "binary_cross_entropy_with_logits", "kl_div")
_TESTS = ("ne", "eq", "gt", "ge", "bool", "invert", "logical_not", "not", "float", "sub")


def padding_shown_by_its_mask(program: Program) -> Iterator[Remark]:
    """A mask holds 1 at each place of a sample, and is filled up with 1 too, or with another number that counts as true."""
    computation = computation_of(program)
    for block in computation.of(*_FILLED):
        found = filled_up(computation, block)
        filled = None if found is None else found[0] if found[0] is not None else _numbered(computation, found[1])
        if found is None or not filled or found[2].node is not block.node or not _holds_ones(computation, block):
            continue
        used = next((one for one in made_from(computation, block, _WALKED) if _leaves_out(one, filled)), None)
        if used is not None:
            yield Remark(block.node, f"{short(block.node)} fills up with {filled:g} what is 1 at each place of a sample: {short(used.node)} (line {used.line}) leaves no padding out")
            return


def _numbered(computation: Computation, given: Value) -> float | None:
    """The number that a table has for a word, which was counted in the order of a list that begins with special words."""
    if given.op != "index" or given.data != "enumerate" or not given.args or (start := number(given.args[0])) is None:
        return None
    for table in computation.of("dict"):
        keys = [key for key, one in table.entries.items() if one is given] if isinstance(table, Table) else []
        for counted in computation.of("enumerate") if keys else ():
            words = [constant(one) for one in counted.args[0].parts] if counted.args and isinstance(counted.args[0], Many) else []
            if keys[0] in words and counted.line == given.line and None not in words[: words.index(keys[0])]:
                return start + words.index(keys[0])
    return None


def _holds_ones(computation: Computation, block: Value) -> bool:
    """Whether all that a padded block holds but its padding is 1."""
    if block.op == "torch.nn.utils.rnn.pad_sequence" or block.op == "pad":
        held = list(contents(computation, block.args[0])) if block.args else []
    elif isinstance(block, Many):
        held = list(block.parts)
    else:
        held = [inner for one in computation.users(block) if one.op == "set_item" and one.args[0] is block and len(one.args) > 2 for inner in contents(computation, one.args[2])]
    leaves = [one for one in held if not isinstance(one, Many) and one.op not in _WALKED]
    return bool(leaves) and all(one.op in _ONES or constant(one) in (1, 1.0, True) or (one.op == "full" and number(one.argument("fill_value", 1)) == 1) for one in leaves)


def _leaves_out(used: Value, filled: float) -> bool:
    """Whether a value asks a mask what to leave out, and takes what it is filled up with for data."""
    if any(name in used.named for name in _KEYS) and used.op not in ("tuple", "dict"):
        return True
    if used.op in ("eq", "ne") and len(used.args) == 2:
        asked = next((known for known in map(number, used.args) if known is not None), None)
        return asked == 0 or (asked == 1 and filled == 1)
    return used.op in _ASKED and filled == 1


@FINDERS.add("padding-not-ignored")
def _labelled_by_the_mask(program: Program) -> Iterator[Remark]:
    """Labels are multiplied by a mask, or filled with 0 where it is padding, and 0 is a class like the others to the loss, which is
    a mean over all places."""
    computation = computation_of(program)
    for loss in [one for _, whole in losses(computation) for one in origins(whole, stop=(*_WHOLE, "run"))]:
        if loss.op not in _WHOLE or len(loss.args) < 2 or loss.named.keys() & {"weight", "pos_weight", "ignore_index"} or len(loss.args) > 2 or reduction_of(loss) != "mean":
            continue
        labels = bare(loss.args[1])
        mask, kept = _mask_in(labels)
        if mask is not None and marked(computation, mask) == kept and not any(each.op == "part" and bare(each.args[-1]).op in ("ne", "bool", "gt") for each in (labels, bare(loss.args[0]))):
            yield Remark(loss.node, f"{short(loss.node)} is the mean over all places, and {short(labels.node)} (line {labels.line}) makes the label of the padding 0, a class like the others")
            return


def _mask_in(labels: Value) -> tuple[Value | None, str]:
    """The mask by which labels are made 0 at some places, and what it has to be true at for these to be the padding."""
    if labels.op == "mul" and len(labels.args) == 2:
        masks = [one for one in labels.args if bare(one).op in ("ne", "eq", "lt", "gt", "invert", "zeros", "full", "set_item")]
        return (masks[-1] if masks else labels.args[1]), WORDS
    if labels.op == "masked_fill" and len(labels.args) == 3 and number(labels.args[2]) == 0:
        return labels.args[1], PADDING
    if labels.op == "where" and len(labels.args) == 3 and number(bare(labels.args[2])) == 0:
        return labels.args[0], WORDS
    return None, WORDS


def mask_of_the_word_before(program: Program) -> Iterator[Remark]:
    """The losses or hits of the words from the second on are weighed, or chosen, by the mask of the words up to the last but one."""
    computation = computation_of(program)
    for value in computation.of("mul", "and", "masked_fill", "where", "part"):
        if len(value.args) < 2:
            continue
        ways = {"mul": ((0, 1), (1, 0)), "and": ((0, 1), (1, 0)), "where": ((1, 0), (2, 0))}.get(value.op, ((0, 1),))
        for one, other in ways:
            if len(value.args) <= max(one, other) or (words := _asked_words(value.args[one])) is None:
                continue
            mask = value.args[other]
            while mask.args and (mask.op in KEPT or mask.op in SHAPED or mask.op in _TESTS) and _cut(mask) is None:
                mask = mask.args[1] if mask.op == "sub" and len(mask.args) == 2 else mask.args[0]
            if _cut(mask) == (0.0, -1.0) and marked(computation, mask) is not None:
                yield Remark(value.node, f"{short(value.node)} asks for {short(words.node)} (line {words.line}) by {short(mask.node)}, the mask of the words before them: behind each text, its first padding counts as a word")
                return


def _asked_words(value: Value) -> Value | None:
    """The words from the second on that a value is the loss of, or compares with others, one for each, or that it is itself."""
    value = bare(value, "neg")
    if value.op in ("eq", "ne") and len(value.args) == 2:
        return next((one for one in map(bare, value.args) if _cut(one) == (1.0, None)), None)
    if value.op in _OF_EACH and len(value.args) > 1 and reduction_of(value) == "none":
        value = bare(value.args[1])
    elif value.op == "gather" and (index := value.argument("index", 2)) is not None:
        value = bare(index)
    return value if _cut(value) == (1.0, None) else None


def _cut(value: Value) -> tuple[float | None, float | None] | None:
    """Where the places that are taken of a value begin and end, along the one axis that is cut; None where nothing is cut."""
    if value.op != "part" or len(value.args) != 2:
        return None
    index = value.args[1]
    slices = [one for one in (index.parts if isinstance(index, Many) else [index]) if one.op == "slice" and not all(map(is_none, one.args))]
    if len(slices) != 1 or not is_none(slices[0].args[2] if len(slices[0].args) > 2 else None):
        return None
    begin, end = slices[0].args[:2]
    return (0.0 if is_none(begin) else number(begin)), (None if is_none(end) else number(end) if number(end) is not None else 0.0)
