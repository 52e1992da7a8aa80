"""Words that a network is scored on or pushed towards at the places where it has read them. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, number, origins, same
from probe.diagnose.code.finders.losses.token_targets import end_of, place_from_end, place_of, within
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.backwards import has_gradient
from probe.diagnose.code.traits.basic import losses

FINDERS = Finders()
_RECURRENT = ("torch.nn.LSTM", "torch.nn.GRU", "torch.nn.RNN")
_LOSSES = ("cross_entropy", "nll_loss")
_DRAWN = ("multinomial", "sample", "generate", "argmax", "topk")


def ahead_of(logits: Value, target: Value) -> Iterator[tuple[Value, float]]:
    """Where a network reads the row that its targets are of, and how many places a target is behind what is read at its
    own place."""
    said, asked = place_of(logits), place_of(target)
    if said is None or asked is None:
        yield from _ahead_from_the_end(logits, target)
        return
    for read in origins(logits):
        if read.op == "run" and len(read.args) == 2 and read.args[0].op == "torch.nn.Embedding":
            given = place_of(read.args[1])
            if given is not None and _is_one_row(given.row, asked.row) and given.unknown + said.unknown == asked.unknown:
                yield read, asked.known - given.known - said.known


def _ahead_from_the_end(logits: Value, target: Value) -> Iterator[tuple[Value, float]]:
    """The same where both begin at a place that is counted from the end: `logits[:, -k:]` and `words[:, -k:]`."""
    said, asked = place_from_end(logits), place_from_end(target)
    if said is None or asked is None or said.unknown != asked.unknown:
        return
    for read in origins(said.row):
        if read.op == "run" and len(read.args) == 2 and read.args[0].op == "torch.nn.Embedding":
            given = end_of(read.args[1])
            if given is not None and _is_one_row(given.row, asked.row):
                yield read, asked.known - said.known - given.known


def _is_one_row(one: Value, other: Value) -> bool:
    return one is other or (_is_known(one) and same(one, other))


def _is_known(row: Value) -> bool:
    """Whether it is known what a row holds: all lists that nothing was seen to fill are alike."""
    return not isinstance(row, Many) or bool(row.parts)


def _gathered(value: Value) -> tuple[Value, Value] | None:
    """The logits and the words of `log_softmax(logits, -1).gather(-1, words)`, of the probabilities instead of their logarithms,
    and of `logits.gather(-1, words) - logits.logsumexp(-1)`."""
    taken, total = (bare(value.args[0]), bare(value.args[1])) if value.op == "sub" and len(value.args) == 2 else (value, None)
    if taken.op == "part" and total is not None:
        taken = bare(taken.args[0])
    if taken.op != "gather" or len(taken.args) < 3:
        return None
    base = taken.args[0]
    if total is not None:
        return (base, taken.args[2]) if total.op == "logsumexp" and same(bare(total.args[0]), bare(base)) else None
    for _ in range(8):
        inner = within(base)
        if bare(base).op in ("log_softmax", "softmax", "sub") and inner is not bare(base):
            return taken.args[0], taken.args[2]
        if inner.op != "part" or not inner.args:
            return None
        base = inner.args[0]
    return None


def score_not_shifted(program: Program) -> Iterator[Remark]:
    """The loss asks for the next word, and a score compares what is predicted with the word that is read at the same place."""
    computation = computation_of(program)
    next_of: set[int] = set()
    for loss in computation.of(*_LOSSES):
        found = list(ahead_of(loss.args[0], loss.args[1])) if len(loss.args) > 1 else []
        if any(ahead != 1 for _, ahead in found):
            return
        next_of |= {id(read.args[0]) for read, _ in found}
    for equal in computation.of("eq") if next_of else ():
        for said, asked in (equal.args, equal.args[::-1]) if len(equal.args) == 2 else ():
            best = bare(said)
            if best.op == "part" and best.args[0].op in ("argmax", "max"):
                continue  # of some places alone
            if best.op != "argmax" or number(best.argument("dim", 1)) not in (-1.0, 2.0):
                continue
            for read, ahead in ahead_of(best.args[0], asked):
                if ahead == 0 and id(read.args[0]) in next_of:
                    yield Remark(equal.node, f"{short(equal.node)} compares what is predicted at each place with the word that {short(read.node)} (line {read.line}) reads there, and the loss asks for the one after it")
                    return


@FINDERS.add("targets-not-shifted")
def _asked_for_the_input(program: Program) -> Iterator[Remark]:
    """The probabilities of words are looked up, or asked for by a loss, where a network that goes from left to right has read
    these words."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for _, loss in losses(computation):
        for value in origins(loss):
            pair = _gathered(value) or ((value.args[0], value.args[1]) if value.op in _LOSSES and len(value.args) > 1 else None)
            if pair is None or value.node in said or not has_gradient(value) or not any(_goes_right(one) for one in origins(pair[0])):
                continue
            near = {id(one) for one in along(pair[0])}
            read = next((read for read, ahead in ahead_of(*pair) if ahead == 0 and id(read) in near and not _is_changed(read.args[1], pair[1])), None)
            if read is not None:
                said.add(value.node)
                yield Remark(value.node, f"{short(value.node)} asks at each place for the word that {short(read.node)} (line {read.line}) reads there, and not for the next one")


def along(value: Value) -> Iterator[Value]:
    """What a value is computed of at its own places: of a layer, what it is given first, and no state."""
    waiting, seen = [value], {id(value)}
    while waiting and len(seen) < 200:
        at = waiting.pop()
        yield at
        if at.op == "run":
            more = list(at.args[1:2])
        elif isinstance(at, Many):
            more = at.parts[:1]
        else:
            more = list(at.args) if at.op in ("add", "cat", "mul", "either", "where") else list(at.args[:1])
        for one in more:
            if id(one) not in seen:
                seen.add(id(one))
                waiting.append(one)


def _is_changed(read: Value, asked: Value) -> bool:
    """Whether some of the words that are read were replaced by others, and are asked for as they were."""
    before = {id(one) for one in origins(asked)}
    return any(one.op in ("masked_fill", "where", "set_item", "bernoulli", "mul") and id(one) not in before for one in origins(read, stop=("run",)))


def _goes_right(value: Value) -> bool:
    """Whether a layer, or its mask, lets each position see only those before it."""
    if value.op == "run" and value.args[0].op in _RECURRENT:
        both = value.args[0].named.get("bidirectional")
        return (both is None or constant(both) is False) and "**" not in value.args[0].named and len(value.args[0].args) < 7
    if value.op == "scaled_dot_product_attention":
        return constant(value.named.get("is_causal")) is True
    return value.op.endswith("generate_square_subsequent_mask") or (value.op == "triu" and number(value.argument("diagonal", 1)) == 1)


@FINDERS.add("end-never-learned")
def _end_left_out(program: Program) -> Iterator[Remark]:
    """What is learned of the words that were generated stops before the end: the mask is 1 where no end has come yet, itself
    left out."""
    computation = computation_of(program)
    for _, loss in losses(computation):
        for product in origins(loss):
            if product.op != "mul" or len(product.args) != 2:
                continue
            for mask, other in (product.args, product.args[::-1]):
                ended = _before_the_end(mask)
                likely = next((one for one in origins(other, stop=("gather",)) if _gathered(one) is not None and has_gradient(one)), None) if ended is not None else None
                if ended is None or likely is None or not _is_place_of(other, likely, ended) or not any(one.op in _DRAWN for one in origins(ended)):
                    continue
                yield Remark(bare(mask).node, f"{short(bare(mask).node)} is 0 at the first {short(ended.node)} (line {ended.line}) too: the end of a text has no part in {short(product.node)} (line {product.line})")
                return


def _before_the_end(mask: Value) -> Value | None:
    """Where words are compared with the end, of `(words == end).cumsum(1) == 0`."""
    mask = bare(mask)
    if mask.op in ("eq", "lt") and len(mask.args) == 2 and number(mask.args[1]) == (0 if mask.op == "eq" else 1):
        counted = bare(mask.args[0])
        ended = bare(counted.args[0], "int") if counted.op == "cumsum" and counted.args else None
        return ended if ended is not None and ended.op == "eq" else None
    return None


def _is_place_of(value: Value, likely: Value, ended: Value) -> bool:
    """Whether the words that are looked up begin where those that are compared with the end begin."""
    pair = _gathered(likely)
    asked, words = (place_of(pair[1]), place_of(ended.args[0])) if pair is not None else (None, None)
    cut = next((one for one in origins(value, stop=("gather",)) if one.op == "part" and any(each is likely for each in origins(one, stop=("gather",)))), None)
    later = place_of(cut) if cut is not None else None
    begin = later.known if later is not None else 0.0
    return asked is not None and words is not None and asked.row is words.row and asked.unknown + (later.unknown if later is not None else 0) == words.unknown and asked.known + begin == words.known
