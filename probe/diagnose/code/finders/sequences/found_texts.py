"""Texts that are to find each other in a batch: how far their scores reach, which of them belong together, and which stand
there twice. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    SHAPED,
    Many,
    Value,
    bare,
    constant,
    number,
    origins,
)
from probe.diagnose.code.finders.objectives.batch_opponents import batch_size, kinds_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import TURNED
from probe.diagnose.code.traits.backwards import has_gradient
from probe.diagnose.code.traits.basic import losses

FINDERS = Finders()
_MASKS = ("eq", "ne", "isin", "unique", "set", "union1d", "in")


def _in_batch(computation: Computation) -> Iterator[tuple[Value, Value]]:
    """Losses that ask each row for its partner in the batch, and the product of the two sides."""
    for loss in computation.of("cross_entropy"):
        if len(loss.args) > 1 and bare(loss.args[1]).op in ("arange", "range"):
            scores = bare(loss.args[0], *TURNED)
            if scores.op in ("matmul", "cosine_similarity") and len(scores.args) > 1:
                yield loss, scores


def cosines_unscaled(program: Program) -> Iterator[Remark]:
    """A softmax over cosines as they are: of one text with all of a batch."""
    for loss, scores in _in_batch(computation_of(program)):
        unit = scores.op == "cosine_similarity" or all(_is_unit(one) for one in scores.args[:2])
        if unit and has_gradient(scores) and "weight" not in loss.named:
            yield Remark(loss.node, f"{short(loss.node)} takes the softmax of {short(scores.node)} (line {scores.line}), cosines between -1 and 1, which nothing scales: no candidate can get more than 7.4 times the probability of another")
            return


def _is_unit(value: Value) -> bool:
    """Whether the vectors of a value have length 1."""
    value = bare(value, *TURNED)
    if value.op == "normalize":
        return (number(value.named.get("p")) or 2.0) == 2.0
    under = bare(value.args[1], "clamp", "maximum", "add") if value.op == "div" and len(value.args) == 2 else value
    return under.op == "norm" and bool(under.args) and bare(under.args[0]) is bare(value.args[0])


@FINDERS.add("targets-of-another-layout")
def _partners_between_others(program: Program) -> Iterator[Remark]:
    """Each turn of a loop adds one question, and several candidates behind each other; the i-th question is asked for the
    i-th candidate."""
    computation = computation_of(program)
    for loss, scores in _in_batch(computation):
        lists = [_listed(one) for one in scores.args[:2]]
        if lists[0] is None or lists[1] is None:
            continue
        for one, other in (lists, lists[::-1]):
            added = _put_together(computation, other) if one is not None and other is not None and len(one.parts) == 1 and len(other.parts) > 1 and one.grown and other.grown else None
            if added is not None and other is not None:
                yield Remark(loss.node, f"{short(loss.node)} asks each row for the candidate of the same number, and {short(added.node)} (line {added.line}) adds {len(other.parts)} candidates for each row, one behind the other")
                return


def _put_together(computation: Computation, rows: Many) -> Value | None:
    """Where each turn of a loop adds all the parts of a list, one behind the other."""
    for one in computation.users(rows.parts[-1]):
        if isinstance(one, Many) and one is not rows and len(one.where.loops) > len(rows.where.loops) and [id(part) for part in one.parts] == [id(part) for part in rows.parts]:
            return one
    added = [one for one in computation.users(rows) if one.op == "append" and one.args[0] is rows]
    alike = len(added) == len(rows.parts) and len({(one.where.loops, one.where.under) for one in added}) == 1
    return added[-1] if alike and len(added[-1].where.loops) > len(rows.where.loops) else None


def _listed(value: Value) -> Many | None:
    """The list that the rows of a side of a product were made of, each row for itself."""
    for _ in range(40):
        if isinstance(value, Many):
            return value
        if value.op == "run" and len(value.args) > 1:
            value = value.args[1]
        elif value.args and value.op in (*KEPT, *SHAPED, *TURNED, "normalize", "part", "mean", "tanh", "relu") and not isinstance(constant(value.args[-1]), str):
            value = value.args[0]
        else:
            return None
    return None


# Partners that stand in a batch twice ---------------------------------------------------


@FINDERS.add("partners-among-the-opponents")
def _drawn_partners(program: Program) -> Iterator[Remark]:
    """The partners of a batch are looked up by numbers of which there are fewer than rows in a batch."""
    for loss, scores in _in_batch(computation_of(program)):
        for side in scores.args[:2]:
            size, chosen = batch_size(side), _looked_up(side)
            kinds = kinds_of(chosen.args[1]) if chosen is not None and _is_row(chosen.args[1]) else None
            if chosen is not None and size is not None and kinds is not None and kinds < size:
                yield Remark(loss.node, f"{short(loss.node)} takes all other rows of a batch of {size:.0f} for opponents, and {short(chosen.node)} (line {chosen.line}) takes the partners out of {kinds:.0f}: some stand in the batch several times, and are pushed away from rows of their own")
                return


def _looked_up(value: Value) -> Value | None:
    """Where whole rows of one side of a product are looked up by numbers."""
    for _ in range(60):
        if value.op == "part" and len(value.args) == 2 and value.args[1].op in (*KEPT, "part", "randint", "element", "integers", "mod") and constant(value.args[1]) is None:
            return value
        if value.op == "run" and len(value.args) > 1:
            value = value.args[1]
        elif value.args and value.op in (*KEPT, *SHAPED, *TURNED, "normalize", "rows", "part", "div", "relu", "tanh", "mean", "max", "add", "dropout", "gelu", "masked_fill"):
            value = value.args[0]
        else:
            return None
    return None


def _is_row(numbers: Value) -> bool:
    """Whether numbers that were drawn are one for each row, and no table of them."""
    drawn = next((one for one in origins(numbers) if one.op in ("randint", "integers")), None)
    size = None if drawn is None else drawn.argument("size", len(drawn.args) - 1)
    return drawn is None or not isinstance(size, Many) or len(size.parts) == 1


@FINDERS.add("partners-among-the-opponents")
def _opponents_off_the_diagonal(program: Program) -> Iterator[Remark]:
    """A margin is asked of all that stand off the diagonal, and the rows of one side are looked up by a number that several
    rows share."""
    computation = computation_of(program)
    for _, loss in losses(computation):
        near = list(origins(loss, stop=("run", "rows", "matmul")))
        scores = next((bare(one.args[0]) for one in near if one.op in ("diag", "diagonal") and one.args and bare(one.args[0]).op == "matmul"), None)
        margin = any(one.op in ("clamp", "relu") for one in near)
        if scores is None or not margin or len(scores.args) < 2 or any(one.op in _MASKS for one in near):
            continue
        for side in scores.args[:2]:
            chosen = _looked_up(side)
            shared = _shared_by_rows(computation, chosen.args[1]) if chosen is not None else _shared_text(computation, scores, side)
            if shared is not None:
                yield Remark(scores.node, f"{short(scores.node)} takes all rows of a batch but the own one for opponents, and {short(shared.node)} (line {shared.line}) gives several rows one partner: where two of them meet in a batch, it is pushed away from them")
                return


def _shared_by_rows(computation: Computation, numbers: Value) -> Value | None:
    """Where a list of numbers gets one number several times: in an inner loop, or several lines of one turn."""
    at = numbers
    while at.args and (at.op in KEPT or at.op == "part") and not isinstance(at, Many):
        at = at.args[0]
    if not isinstance(at, Many):
        return None
    for added in computation.of("append"):
        of = added.args[0]
        if len(added.args) == 2 and (of is at or of.node is at.node) and added.args[1].op == "index" and 0 < len(added.args[1].where.loops) < len(added.where.loops):
            return added
    return None


def _shared_text(computation: Computation, scores: Value, side: Value) -> Value | None:
    """Where a list of pairs gets several with one number in a turn, and what is compared with them was made once in it."""
    loops = {one.where.loops for one in origins(side) if one.op in ("text", "format", "join") and one.where.loops}
    for cut in computation.of("part"):
        rows = cut.args[0]
        if not isinstance(rows, Many) or len(cut.args) != 2 or cut.args[1].op != "slice" or cut.where.loops != scores.where.loops:
            continue
        pairs = [one for one in rows.parts if isinstance(one, Many) and len(one.parts) == 2]
        for one in pairs if len(pairs) > 1 else ():
            key = one.parts[1]
            alike = [other for other in pairs if other.parts[1] is key and other.parts[0] is not one.parts[0]]
            if key.op == "index" and alike and key.where.loops in loops:
                return next((each for each in computation.users(one) if each.op == "append"), one)
    return None
