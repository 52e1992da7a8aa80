"""What attends to what where the next words are asked for: the batch for time, words of the one side asked by the other. Pure;
standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import (
    Many,
    Value,
    bare,
    comes_from,
    is_none,
    number,
    origins,
)
from probe.diagnose.code.finders.sequences.same_words import ahead_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.extents import RECURRENT, batch_first, rank
from probe.diagnose.code.traits.held import is_unsteady
from probe.diagnose.code.traits.likelihoods import alike
from probe.diagnose.code.traits.sides import draws_of

FINDERS = Finders()
_LOSSES = ("cross_entropy", "nll_loss")
_ATTENDING = ("torch.nn.TransformerEncoder", "torch.nn.TransformerEncoderLayer", "torch.nn.TransformerDecoder", "torch.nn.TransformerDecoderLayer", "torch.nn.Transformer", "torch.nn.MultiheadAttention")
_EACH = ("add", "mul", "div", "dropout", "layer_norm", "to", "float", "contiguous", "relu", "gelu")
_LAYERS = ("torch.nn.Dropout", "torch.nn.LayerNorm", "torch.nn.Linear", "torch.nn.ReLU", "torch.nn.GELU")


def _read_by(layer: Value, given: Value, depth: int = 30) -> bool:
    """Whether a value is computed of what was read, place by place, with no axes turned."""
    at = layer
    for _ in range(depth):
        if at is given:
            return True
        if at.op in _EACH and at.args:
            at = next((one for one in at.args if comes_from(one, given)), at.args[0])
        elif at.op == "run" and len(at.args) == 2 and at.args[0].op in _LAYERS:
            at = at.args[1]
        else:
            return False
    return False


@FINDERS.add("attention-over-the-batch")
def _attention_over_the_batch(program: Program) -> Iterator[Remark]:
    """The next words are cut off along axis 1, and attention without batch_first takes axis 0 for the positions."""
    yield from _over_the_batch(program, _ATTENDING)


@FINDERS.add("batch-for-time")
def _read_over_the_batch(program: Program) -> Iterator[Remark]:
    """The next words are cut off along axis 1, and a recurrent layer without batch_first goes along axis 0."""
    yield from _over_the_batch(program, RECURRENT)


def _over_the_batch(program: Program, kinds: tuple[str, ...]) -> Iterator[Remark]:
    for loss in computation_of(program).of(*_LOSSES):
        found = [read for read, places in ahead_of(loss.args[0], loss.args[1]) if places == 1] if len(loss.args) > 1 else []
        cut = _cut_along_1(loss.args[1]) if found else None
        for run in origins(loss.args[0]) if cut is not None else ():
            if run.op != "run" or run.args[0].op not in kinds or len(run.args) < 2 or batch_first(run.args[0]) is not False:
                continue
            read = next((one for arg in run.args[1:3] for one in found if _read_by(arg, one)), None)
            if read is not None and cut is not None and _cut_along_1(read.args[1], read=True) is not None:
                yield Remark(run.node, f"{short(run.args[0].node)} is made without batch_first=True and goes along axis 0, and {short(cut.node)} (line {cut.line}) has the words of a text along axis 1")
                return


def _cut_along_1(words: Value, read: bool = False) -> Value | None:
    """Where words are cut off along axis 1, of rows that are not turned since; of those that are read, also the whole rows."""
    for _ in range(20):
        inner = bare(words)
        if inner is not words and not isinstance(inner, Many):
            words = inner
        elif words.op == "part" and isinstance(words.args[1], Many) and len(words.args[1].parts) == 2 and all(one.op == "slice" for one in words.args[1].parts):
            return words if all(is_none(one) for one in words.args[1].parts[0].args) or read else None
        elif words.op == "rows" and words.args:
            words = words.args[0]
        else:
            return words if read and words.op not in ("t", "transpose", "permute", "T") else None
    return None


def query_and_keys_exchanged(program: Program) -> Iterator[Remark]:
    """The words whose next ones are asked for are the keys of an attention, the other side asks, and the answer is added to these
    words."""
    computation = computation_of(program)
    for run in computation.of("run"):
        if run.args[0].op != "torch.nn.TransformerDecoder" or len(run.args) < 3 or not run.named.keys() & {"tgt_mask", "tgt_is_causal"} or not _is_read_both_ways(run.args[1]):
            continue
        words = [one for one in origins(run.args[2]) if one.op == "run"]
        if words and all(one.args[0].op in ("torch.nn.Embedding", "torch.nn.Dropout", "torch.nn.LayerNorm") for one in words):
            yield Remark(run.node, f"{short(run.node)} is given {short(run.args[1].node)} as the words that ask, with the mask of words, and {short(run.args[2].node)} as what is looked at")
            return
    for loss in computation.of(*_LOSSES):
        found = [read for read, places in ahead_of(loss.args[0], loss.args[1]) if places == 1] if len(loss.args) > 1 else []
        given = found[0] if found else None
        for run in origins(loss.args[0]) if given is not None else ():
            if run.op != "run" or given is None:
                continue
            asks, keys = run.argument("query", 1), run.argument("key", 2)
            if run.args[0].op in ("torch.nn.TransformerDecoder", "torch.nn.TransformerDecoderLayer") and len(run.args) > 2 and comes_from(run.args[2], given) and not comes_from(run.args[1], given):
                yield Remark(run.node, f"{short(run.node)} is given {short(run.args[2].node)} as what is looked at, and the words that are asked for follow those of {short(given.node)} (line {given.line}): these are to ask")
                return
            if run.args[0].op == "torch.nn.MultiheadAttention" and asks is not None and keys is not None and comes_from(keys, given) and not comes_from(asks, given) and _is_added(loss.args[0], run, keys):
                yield Remark(run.node, f"{short(run.node)} asks by {short(asks.node)} about {short(keys.node)}, and what comes back is added to the words of {short(given.node)} (line {given.line}), which are to ask")
                return


def _is_read_both_ways(value: Value) -> bool:
    """Whether a value is what an encoder without a mask gives."""
    value = bare(value)
    return value.op == "run" and value.args[0].op == "torch.nn.TransformerEncoder" and len(value.args) == 2 and not value.named.keys() & {"mask", "is_causal", "**"}


def _is_added(logits: Value, run: Value, looked_at: Value) -> bool:
    """Whether the result of an attention is added to its own keys."""
    for one in origins(logits):
        if one.op == "add" and len(one.args) == 2:
            for answer, base in (one.args, one.args[::-1]):
                inner = bare(answer, "dropout")
                keys = bare(looked_at)
                if inner.op == "part" and inner.args[0] is run and (base is looked_at or (keys.op == "run" and keys.args[0].op == "torch.nn.LayerNorm" and keys.args[-1] is base)):
                    return True
    return False


@FINDERS.add("one-view-twice")
def _same_text_twice(program: Program) -> Iterator[Remark]:
    """Each text is to be found among the others by a second reading of itself, which nothing makes another one: no unit is dropped,
    and nothing is drawn."""
    computation = computation_of(program)
    for loss in computation.of("cross_entropy"):
        target = bare(loss.args[1]) if len(loss.args) > 1 else loss
        if target.op != "arange" or loss.where.no_grad:
            continue
        scores = bare(loss.args[0], "div", "mul")
        if scores.op != "matmul" or len(scores.args) != 2:
            continue
        one, other = bare(scores.args[0], "normalize"), bare(scores.args[1], "t", "T", "transpose", "mT", "permute", "normalize")
        if one is other or not alike(one, other) or draws_of(one) ^ draws_of(other):
            continue
        made = [*origins(one), *origins(other)]
        known = all(each.args[0].op.startswith("torch.nn.") for each in made if each.op == "run" and each.args)
        if known and not any(each.op in ("dropout", "unknown", "@input") or (each.op == "run" and is_unsteady(each.args[0])) or (each.op == "run" and any(is_unsteady(layer) for layer in origins(each.args[0]))) for each in made):
            yield Remark(loss.node, f"{short(scores.node)} compares each text with a second reading of itself, by the same layers and without anything drawn: the two are equal, and {short(loss.node)} (line {loss.line}) asks for that")
            return


@FINDERS.add("softmax-over-another-axis")
def _looked_up_along_another_axis(program: Program) -> Iterator[Remark]:
    """The probabilities of words are looked up along one axis, and add up to 1 along another one."""
    for value in computation_of(program).of("gather"):
        shares = bare(value.args[0], shapes=False) if value.args else value
        index = value.argument("index", 2)
        if index is None or any(one.op in ("expand", "expand_as", "repeat") for one in origins(index)):
            continue  # whole rows are taken, of another axis
        if shares.op not in ("log_softmax", "softmax") or not any(one.op == "run" for one in origins(shares)):
            continue
        along, at = number(shares.argument("dim", 1)), number(value.argument("dim", 1))
        if along is None or at is None or along == at:
            continue
        axes = rank(shares) or rank(value.args[2] if len(value.args) > 2 else value.named.get("index", value))
        three = axes if axes is not None else 3 if at == 2 else None
        if three is not None and along % three != at % three:
            yield Remark(shares.node, f"{short(shares.node)} adds up to 1 along axis {along:g}, and {short(value.node)} (line {value.line}) looks words up along axis {at:g}")
            return


@FINDERS.add("softmax-over-another-axis")
def _drawn_over_another_axis(program: Program) -> Iterator[Remark]:
    """Scores with Gumbel noise go through a softmax over one axis, and the same scores without it through one over another."""
    computation = computation_of(program)
    for drawn in computation.of("softmax"):
        scores = bare(drawn.args[0], "div", "mul") if drawn.args else drawn
        parts = [bare(one) for one in scores.args] if scores.op == "add" and len(scores.args) == 2 else []
        noisy = [one for one in parts if any(each.op in ("rand", "rand_like", "sample") for each in origins(one, ("run",)))]
        plain_ones = [one for one in scores.args if bare(one) not in noisy] if len(noisy) == 1 else []
        for other in computation.of("softmax", "log_softmax") if len(plain_ones) == 1 else ():
            axes = [number(one.argument("dim", 1)) for one in (drawn, other)]
            count = rank(plain_ones[0])
            if other is drawn or not other.args or other.args[0] is not plain_ones[0] or None in axes or count is None:
                continue
            places = {one % count for one in axes if one is not None}
            if len(places) > 1:
                yield Remark(drawn.node, f"{short(drawn.node)} goes over another axis than {short(other.node)} (line {other.line}), which takes the probabilities of the same scores")
                return
