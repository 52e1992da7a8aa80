"""Padding that is taken for words: by the table of embeddings, among the words to be guessed, in a loss that is written by hand.
Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import (
    SHAPED,
    Code,
    Instance,
    Many,
    Table,
    Value,
    bare,
    constant,
    is_none,
    number,
    origins,
)
from probe.diagnose.code.finders.data.padding import fills_up, is_tokenizer
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import addends
from probe.diagnose.code.traits.backwards import has_gradient
from probe.diagnose.code.traits.basic import losses
from probe.diagnose.code.traits.numberings import filled_up

FINDERS = Finders()
_MASKS = ("ne", "eq", "gt", "ge", "lt", "invert", "bool", "and", "logical_and", "logical_not")
_DRAWN = ("rand", "rand_like", "bernoulli")
_SIZES = ("shape", "size", "len", "rand_like", "full_like", "zeros_like", "ones_like", "device", "new_zeros", "new_full")
_BLOCKS = ("full_like", "full", "zeros_like", "zeros", "new_full", "ones_like")
_DRAWS = ("randint", "multinomial", "choice", "choices", "integers")


def padding_of_another_number(program: Program) -> Iterator[Remark]:
    """Texts are filled up with one number, and the table of embeddings keeps the row of another one at zero."""
    computation = computation_of(program)
    for read in computation.of("run"):
        table = read.args[0]
        if table.op != "torch.nn.Embedding" or len(read.args) != 2 or (at := table.argument("padding_idx", 2)) is None:
            continue
        kept, found = number(at), filled_up(computation, read.args[1])
        if kept is None or kept < 0 or found is None or found[0] is None or found[0] in (kept, -100):
            continue
        yield Remark(table.node, f"{short(table.node)} keeps the row {kept:g} at zero, and {short(found[2].node)} (line {found[2].line}) fills texts up with {found[0]:g}")
        return


@FINDERS.add("padding-in-the-labels")
def _padding_to_be_guessed(program: Program) -> Iterator[Remark]:
    """Words to be guessed are drawn among all places of a batch, the padding too."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for loss in computation.of("cross_entropy"):
        target = loss.args[1] if len(loss.args) > 1 else loss
        while target.args and target.op in (*SHAPED, "rows", "to", "transpose", "part", "long"):
            target = target.args[0]
        if target.op not in ("set_item", "masked_fill", "where") or len(target.args) != 3 or loss.node in said:
            continue
        mask, words = (target.args[0], target.args[1]) if target.op == "where" else (target.args[1], target.args[0])
        ignored, found = loss.argument("ignore_index", 4), filled_up(computation, words)
        out = number(target.args[2])
        if found is None or found[0] is None or out is None or out != (-100.0 if ignored is None else number(ignored)) or found[0] == out:
            continue
        reached = list(origins(mask, stop=_SIZES))
        if any(one.op in _DRAWN for one in reached) and all(one.op in ("lt", "gt", "le", "ge", "invert", "not", "logical_not", "bool", "full", "full_like", "tuple", "list", "@constant", "@library", "@input", *_DRAWN, *_SIZES) for one in reached):
            said.add(loss.node)
            yield Remark(target.node, f"{short(target.node)} keeps as labels what is drawn among all places, and {short(found[2].node)} (line {found[2].line}) has filled these up with {found[0]:g}: the padding is to be guessed too")


@FINDERS.add("padding-not-ignored")
def _mean_with_padding(program: Program) -> Iterator[Remark]:
    """The mean of the log probabilities of words is taken over all places, and the words are filled up."""
    computation = computation_of(program)
    for _, loss in losses(computation):
        for mean in origins(loss, stop=("run",)):
            if mean.op != "mean" or len(mean.args) != 1 or mean.named:
                continue
            looked_up = _plainly(mean.args[0])
            found = filled_up(computation, looked_up.args[2]) if looked_up is not None else None
            if looked_up is not None and found is not None and found[0] is not None and found[0] >= 0 and has_gradient(looked_up):
                yield Remark(mean.node, f"{short(mean.node)} is the mean of all places, and {short(found[2].node)} (line {found[2].line}) has filled the words of {short(looked_up.node)} (line {looked_up.line}) up with {found[0]:g}: the padding is learned too")
                return


@FINDERS.add("padding-not-ignored")
def _sum_with_padding(program: Program) -> Iterator[Remark]:
    """The log probabilities of the words of a text are added up over all places, and the texts are filled up."""
    computation = computation_of(program)
    for _, loss in losses(computation):
        for total in origins(loss):
            if total.op != "sum" or number(total.argument("dim", 1)) not in (1, -1) or total.where.no_grad:
                continue
            looked_up = _plainly(total.args[0])
            found = filled_up(computation, looked_up.args[2]) if looked_up is not None else None
            if looked_up is not None and found is not None and found[0] is not None and found[0] >= 0 and has_gradient(looked_up):
                yield Remark(total.node, f"{short(total.node)} adds up all places, and {short(found[2].node)} (line {found[2].line}) has filled the words of {short(looked_up.node)} (line {looked_up.line}) up with {found[0]:g}: the padding counts as words")
                return


def _plainly(value: Value, depth: int = 12) -> Value | None:
    """The log probabilities that were looked up for words, of which a value is a multiple, or a sum with others."""
    value = bare(value)
    if depth == 0:
        return None
    while value.op == "part" and len(value.args) == 2 and _is_whole(value.args[1]):
        value = bare(value.args[0])
    if (smoothed := _smoothed(value)) is not None:
        return smoothed
    if value.op == "gather" and len(value.args) > 2 and bare(value.args[0]).op == "log_softmax":
        return value
    if value.op == "neg":
        return _plainly(value.args[0], depth - 1)
    if value.op in ("add", "sub") and len(value.args) == 2:
        return _plainly(value.args[0], depth - 1) or _plainly(value.args[1], depth - 1)
    if value.op == "mul" and len(value.args) == 2 and any(number(one) is not None for one in value.args):
        return _plainly(next(one for one in value.args[::-1] if number(one) is None) if number(value.args[1]) is None or number(value.args[0]) is None else value.args[0], depth - 1)
    return None


def _smoothed(value: Value) -> Value | None:
    """The log probabilities of words, times the shares that smoothed labels give them: as if they were looked up."""
    inner = bare(value.args[0]) if value.op == "sum" and number(value.argument("dim", 1)) in (-1, 2) else None
    if inner is None or inner.op != "mul" or len(inner.args) != 2:
        return None
    for shares, likely in (inner.args, inner.args[::-1]):
        shares = bare(shares)
        if shares.op == "scatter" and len(shares.args) > 2 and bare(shares.args[0]).op in _BLOCKS and bare(likely).op == "log_softmax":
            return Value("gather", (likely, *shares.args[1:3]), node=value.node, where=value.where)
    return None


def _is_whole(index: Value) -> bool:
    """Whether an index takes an axis of one number away, and no place: `[..., 0]`, `[:, :, 0]`."""
    parts = index.parts if isinstance(index, Many) else []
    return len(parts) > 1 and number(parts[-1]) == 0 and all(constant(one) is Ellipsis or (one.op == "slice" and all(is_none(each) for each in one.args)) for one in parts[:-1])


@FINDERS.add("mean-over-padding")
def _mean_of_states(program: Program) -> Iterator[Remark]:
    """What a model of transformers gives for texts that a tokenizer has filled up is averaged over all places."""
    for mean in computation_of(program).of("mean"):
        states = bare(mean.args[0], shapes=False) if mean.args and number(mean.argument("dim", 1)) in (1, -2) else mean
        read = states.op == "last_hidden_state" or (states.op == "part" and len(states.args) == 2 and constant(states.args[1]) in (0, "last_hidden_state"))
        run = states.args[0] if read else states
        if run.op != "run" or not _is_encoder(run.args[0]):
            continue
        filled = next((one for one in origins(run) if one.op == "run" and one is not run and is_tokenizer(one.args[0])), None)
        if filled is not None and (fills_up(filled) or (has_gradient(mean) and _is_of_several(filled))):
            yield Remark(mean.node, f"{short(mean.node)} is a mean over all positions, also over those that {short(filled.node)} (line {filled.line}) has filled up")
            return


def _is_of_several(tokens: Value) -> bool:
    """Whether a tokenizer is to fill up what is not a single text, as far as one can see."""
    texts = tokens.argument("text", 1)
    return constant(tokens.named.get("padding")) in (True, "longest") and texts is not None and texts.op not in ("text", "add", "@constant", "format", "element", "index", "mod")


def _is_encoder(model: Value) -> bool:
    model = bare(model, "eval", "train", "requires_grad_", "compile")
    return model.op.startswith("transformers.") and model.op.endswith("Model.from_pretrained")


@FINDERS.add("padding-in-the-labels")
def _padding_among_labels(program: Program) -> Iterator[Remark]:
    """What gathers the samples for a Trainer of transformers fills the labels up with the number of the padding."""
    computation = computation_of(program)
    trainer = next((one for one in (*computation.of("transformers.Trainer"), *computation.of("transformers.Seq2SeqTrainer")) if "data_collator" in one.named), None)
    gathers = trainer.named["data_collator"] if trainer is not None else None
    name = "__call__" if isinstance(gathers, Instance) else gathers.function.name if isinstance(gathers, Code) and not isinstance(gathers.function, ast.Lambda) else ""
    for given in computation.returned.get(name, ()):
        labels = given.entries.get("labels") if isinstance(given, Table) and "input_ids" in given.entries else None
        at = labels
        while at is not None and at.op in ("set_item", "tensor", "as_tensor") and at.args:
            if at.op == "set_item" and not _is_place(at.args[1]):
                break  # what is chosen by a mask may be the padding
            at = at.args[0]
        found = filled_up(computation, at) if at is not None and labels is not None and at.op not in ("where", "masked_fill", "set_item") else None
        if found is not None and (found[1].op in ("pad_token_id", "eos_token_id") or (found[0] is not None and found[0] >= 0)) and trainer is not None:
            yield Remark(found[2].node, f"{short(found[2].node)} fills the labels that the Trainer of line {trainer.line} gets up with {short(found[1].node)}, and its loss leaves out -100 alone: the padding is learned too")
            return


def _is_place(index: Value) -> bool:
    """Whether an index is places of a row: `[i, :n]`."""
    return all(one.op in ("slice", "@constant", "index", "element") for one in (index.parts if isinstance(index, Many) else [index]))


@FINDERS.add("term-of-the-wrong-sign")
def _drawn_ones_raised(program: Program) -> Iterator[Remark]:
    """The products of words with their neighbours, and with words drawn at random, are raised both."""
    computation = computation_of(program)
    for _, loss in losses(computation):
        raised = [(term, *_tables(term.args[0])) for term, sign in addends(loss) if sign < 0 and term.args and (term.op == "logsigmoid" or (term.op == "log" and bare(term.args[0]).op == "sigmoid"))]
        for term, tables, drawn in raised:
            beside = next((one for one, others, other in raised if others == tables and not other), None)
            if len(tables) == 2 and drawn and beside is not None:
                yield Remark(term.node, f"{short(term.node)} raises the product with words that are drawn at random, as {short(beside.node)} (line {beside.line}) raises that with the neighbours")
                return


def _tables(value: Value) -> tuple[frozenset[int], bool]:
    """The tables of embeddings that a product is made of, and whether a number of a row is drawn for it alone."""
    reads = [one for one in origins(value) if one.op == "run" and len(one.args) == 2 and one.args[0].op == "torch.nn.Embedding"]
    negated = any(one.op == "neg" for one in origins(value, stop=("run",)))
    return frozenset(id(one.args[0]) for one in reads), not negated and any(bare(one.args[1]).op in _DRAWS for one in reads)


@FINDERS.add("padding-not-ignored")
def _ignored_in_the_evaluation(program: Program) -> Iterator[Remark]:
    """The loss of the evaluation leaves out one number of the labels, and that of the training counts it, or the other way round."""
    computation = computation_of(program)
    found = [(one, _ignored(one), _makers(one.args[1])) for one in computation.of("cross_entropy", "nll_loss") if len(one.args) > 1]
    learned = {id(one) for _, loss in losses(computation) for one in origins(loss, stop=("run",))}
    for train, mine, made in found:
        for held, theirs, other in found:
            if id(train) not in learned or id(held) in learned or not held.where.no_grad or mine is None or theirs is None or mine == theirs or max(mine, theirs) < 0 or not made & other:
                continue
            less = train if mine < 0 else held if theirs < 0 else train
            more, left = (held, theirs) if less is train else (train, mine)
            if any(one.op == "masked_select" or (one.op == "part" and len(one.args) == 2 and bare(one.args[1]).op in _MASKS) for one in origins(less.args[1], stop=("run",))):
                continue  # chosen before: labels[labels != PAD]
            yield Remark(less.node, f"{short(less.node)} counts the label {left:g}, and {short(more.node)} (line {more.line}) leaves it out of labels that are made alike")
            return


def _ignored(loss: Value) -> float | None:
    """The number that a loss leaves out; None where that is unknown."""
    given = loss.named.get("ignore_index")
    return -100.0 if given is None else number(given)


def _makers(labels: Value) -> set[ast.AST]:
    """Where the tables are made that labels are filled into: rows of one length, with one number behind their ends."""
    return {one.node for one in origins(labels, stop=("run",)) if one.op in ("full", "zeros", "full_like") or one.op.endswith("pad_sequence")}
