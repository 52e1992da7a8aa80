"""What a loss over tokens asks for: padding, ends that are padding, words that were masked before. Pure; standard library
only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    Many,
    Value,
    alternatives,
    bare,
    constant,
    is_none,
    number,
    origins,
    same,
)
from probe.diagnose.code.finders.sequences.text_ends import ends_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.numberings import begins_at
from probe.diagnose.code.traits.sides import draws_of

FINDERS = Finders()
_IGNORED = -100.0
_LOSSES = ("cross_entropy", "nll_loss")
_BLOCKS = ("zeros", "full", "empty", "ones", "zeros_like", "full_like", "empty_like", "ones_like", "new_zeros", "new_full", "new_empty", "new_ones")
_BY_PLACE = ("torch.nn.Linear", "torch.nn.LayerNorm", "torch.nn.RMSNorm", "torch.nn.Dropout")
"""Layers that make of each place of a row what depends on that place alone."""


def _path(value: Value) -> Iterator[Value]:
    """A target and what it was before its shape, its batch and some of its places were set."""
    for _ in range(60):
        yield value
        inner = bare(value)
        if inner is not value:
            value = inner
        elif value.args and value.op in ("rows", "part", "set_item", "masked_fill", "where", "either", "flatten"):
            value = value.args[1 if value.op == "where" else 0]
        else:
            return


def _filled_with(value: Value) -> tuple[Value, float] | None:
    """Where rows of several lengths are filled up, and with which number."""
    if value.op.endswith("pad_sequence") and value.args:
        given = value.argument("padding_value", 2)
        known = 0.0 if given is None else number(given)
        return None if known is None else (value, known)
    return None


def _ignored(loss: Value) -> float | None:
    """The number that a loss leaves out; None where that is unknown."""
    given = loss.argument("ignore_index", 4)
    return _IGNORED if given is None else number(given)


@FINDERS.add("padding-not-ignored")
def _not_ignored(program: Program) -> Iterator[Remark]:
    """Targets are filled up with a number that the loss takes for a class, and nothing leaves these places out."""
    said: set[ast.AST] = set()
    for loss in computation_of(program).of(*_LOSSES):
        if len(loss.args) < 2 or loss.where.no_grad or loss.node in said or "weight" in loss.named or constant(loss.named.get("reduction")) == "none":
            continue
        path = list(_path(loss.args[1]))
        filled = _filled_with(path[-1])
        taken = any(one.op in ("set_item", "masked_fill", "where") or (one.op == "part" and not _is_plain(one.args[1])) for one in path)
        if filled is not None and filled[1] >= 0 and _ignored(loss) not in (None, filled[1]) and not taken:
            said.add(loss.node)
            yield Remark(loss.node, f"{short(loss.node)} counts the padding too: {short(filled[0].node)} (line {filled[0].line}) fills the targets up with {filled[1]:g}, and the loss leaves out {_ignored(loss):g}")


def _is_plain(index: Value) -> bool:
    """Whether an index takes a column, or a slice of places: no mask chooses."""
    parts = index.parts if isinstance(index, Many) else [index]
    return all(one.op in ("slice", "@constant", "index", "element") for one in parts)


@FINDERS.add("end-never-learned")
def _end_ignored(program: Program) -> Iterator[Remark]:
    """Each row ends with a number that is the padding too, and the targets leave out all places with that number."""
    said: set[ast.AST] = set()
    computation = computation_of(program)
    for loss in computation.of(*_LOSSES):
        if len(loss.args) < 2 or loss.node in said:
            continue
        for one in _path(loss.args[1]):
            if one.op not in ("set_item", "masked_fill") or len(one.args) < 3 or number(one.args[2]) != _ignored(loss):
                continue
            asked = bare(one.args[1])
            padding = number(asked.args[1]) if asked.op == "eq" and len(asked.args) == 2 else None
            end = next((row for row in origins(one.args[0]) if _ends_with(row, padding) or any(number(last) == padding for last, _ in ends_of(computation, row))), None) if padding is not None else None
            if end is not None:
                said.add(loss.node)
                yield Remark(one.node, f"{short(one.node)} leaves out all places with {padding:g}: it is the padding, and the end of each row too ({short(end.node)}, line {end.line})")
                break


def _ends_with(row: Value, padding: float | None) -> bool:
    """Whether a row of words, of unknown length, ends with a fixed number."""
    if row.op == "add" and len(row.args) == 2 and isinstance(row.args[1], Many) and len(row.args[1].parts) == 1:
        return number(row.args[1].parts[0]) == padding and not any(isinstance(one, ast.Mult) for one in ast.walk(row.node))
    return isinstance(row, Many) and row.op == "list" and len(row.parts) > 1 and number(row.parts[-1]) == padding and any(number(one) is None for one in row.parts) and not any(isinstance(one, ast.Mult) for one in ast.walk(row.node))


@FINDERS.add("target-changed-with-input")
def _asked_for_the_mask(program: Program) -> Iterator[Remark]:
    """The targets are copied of words some of which have been replaced at random places."""
    said: set[ast.AST] = set()
    for loss in computation_of(program).of(*_LOSSES):
        if len(loss.args) < 2 or loss.node in said:
            continue
        given = {id(one) for one in origins(loss.args[0])}
        path = list(_path(loss.args[1]))
        chosen = [places for one in path if (places := _chosen_places(one, loss)) is not None]
        left_out = {id(_mask(one)) for one in chosen}
        kept = [_all_hold(_mask(one)) for one in chosen if bare(one).op in ("invert", "not", "logical_not")]
        if not any(one.op == "set_item" for one in path) and any(_hidden(one)[0] == _ignored(loss) for one in path):
            left_out, kept = set(), []  # of `loss-of-what-is-shown`
        for one in (each for at in path for each in alternatives(at)):
            put, places, words = _hidden(one)
            if put is None or put < 0 or put == _ignored(loss) or not draws_of(places):
                continue
            asked = id(_mask(places)) in left_out or any(each <= _all_hold(places) for each in kept)
            if (id(one) not in given and id(bare(words)) in given) or (id(one) in given and asked):
                said.add(loss.node)
                yield Remark(one.node, f"{short(one.node)} hides words before the targets are copied: {short(loss.node)} (line {loss.line}) asks for what stands in their place")
                break


def _mask(places: Value) -> Value:
    """A mask, or what it is the opposite of."""
    return bare(places, "invert", "not", "logical_not", "bool")


def _all_hold(places: Value) -> set[int]:
    """The masks that all hold at some places: a and b, of a & b."""
    places = bare(places, "bool")
    inner = places.args if places.op in ("and", "logical_and", "mul", "bitwise_and") else ()
    return {id(places)}.union(*map(_all_hold, inner))


def _hidden(value: Value) -> tuple[float | None, Value, Value]:
    """The number that is written over some words, at which places, and the words."""
    if value.op in ("set_item", "masked_fill") and len(value.args) > 2:
        return number(value.args[2]), value.args[1], value.args[0]
    if value.op == "where" and len(value.args) == 3:
        puts = [one for one in value.args[1:] if number(bare(one)) is not None or bare(one).op in ("full_like", "full")]
        words = next((one for one in value.args[1:] if one not in puts), value)
        put = bare(puts[0]) if len(puts) == 1 else value
        return number(put.args[1]) if put.op in ("full_like", "full") and len(put.args) > 1 else number(put), value.args[0], words
    return None, value, value


def _chosen_places(value: Value, loss: Value) -> Value | None:
    """The places that targets are left out at, or picked at, by a mask."""
    put, places, _ = _hidden(value)
    if put is not None and put == _ignored(loss):
        return places
    return value.args[1] if value.op == "part" and len(value.args) == 2 and not _is_plain(value.args[1]) else None


# How far ahead the targets are -----------------------------------------------------------


class Place(NamedTuple):
    """Where a value begins in a row of words: at which of them (`known` and `unknown` parts of the number), in which row."""

    row: Value
    unknown: int
    known: float


def _beyond(begin: Value) -> tuple[Value, float]:
    """A number without the known numbers that are added to it, and those."""
    at = 0.0
    for _ in range(6):
        known = [number(one) for one in begin.args] if begin.op in ("add", "sub") and len(begin.args) == 2 else []
        if begin.op == "add" and known and known[0] is not None:
            begin, at = begin.args[1], at + known[0]
        elif known and known[1] is not None:
            begin, at = begin.args[0], at + (known[1] if begin.op == "add" else -known[1])
        else:
            break
    return begin, at


def _number_of(value: Value, depth: int = 6) -> int:
    """A number that is the same for equal unknown numbers: also of two comprehensions over one list."""
    inner = bare(value)
    if inner.op == "@constant":
        return hash(inner.data)
    if inner.op == "element" and len(inner.args) == 1:
        return hash(("element", id(bare(inner.args[0]))))
    if depth and (inner.op in ("add", "sub", "mul", "floordiv") or (inner.op == "index" and inner.args and inner.data is None)):
        return hash((inner.op, *(_number_of(one, depth - 1) for one in inner.args)))
    return id(inner)


def within(value: Value) -> Value:
    """A value without what is done with each place of a row by itself: the type, the probabilities of words, a layer of
    weights."""
    inner = bare(value)
    if isinstance(inner, Many) and len(inner.parts) == 1:
        return inner.parts[0]
    if inner.op in ("log_softmax", "softmax") and number(inner.argument("dim", 1)) in (-1.0, 2.0):
        return inner.args[0]
    if inner.op == "sub" and len(inner.args) == 2 and inner.args[1].op == "logsumexp" and same(bare(inner.args[1].args[0]), bare(inner.args[0])):
        return inner.args[0]
    if inner.op == "run" and len(inner.args) == 2 and inner.args[0].op in _BY_PLACE:
        return inner.args[1]
    return inner


def place_from_end(value: Value) -> Place | None:
    """Where a value begins in a row of words, counted from the end of the row; None where it is counted from its start."""
    begun: Place | None = None
    for _ in range(60):
        inner = within(value)
        if inner is not value:
            value = inner
            continue
        index = value.args[1] if value.op == "part" and len(value.args) == 2 else None
        cuts = [one for one in (index.parts if isinstance(index, Many) else [index]) if one is not None and one.op == "slice" and not all(is_none(end) for end in one.args)]
        if index is None or (isinstance(index, Many) and len(index.parts) == 2 and index.parts[0].op != "slice") or (not cuts and index.op != "slice" and not isinstance(index, Many)):
            return begun._replace(row=value) if begun is not None else None
        if len(cuts) > 1 or (isinstance(index, Many) and any(one.op not in ("slice", "@constant") for one in index.parts)):
            return None
        begin, end = (cuts[0].args[0], cuts[0].args[1]) if cuts else (None, None)
        if begun is None and begin is not None and not is_none(begin):
            begun = _before_the_end(value, begin)
            if begun is None:
                return None
        elif begun is not None and end is not None and not is_none(end):
            less = number(end)
            if less is None or less >= 0:
                return None
            begun = begun._replace(known=begun.known + less)
        value = value.args[0]
    return None


def _before_the_end(value: Value, begin: Value) -> Place | None:
    """The place of `-k`, `-k - 1` and `-(k + 1)`."""
    known = number(begin)
    if known is not None:
        return Place(value, 0, known) if known < 0 else None
    begin, at = _beyond(begin)
    if begin.op != "neg" or not begin.args:
        return None
    many, more = _beyond(begin.args[0])
    return Place(value, _number_of(many), at - more)


def end_of(value: Value) -> Place | None:
    """The row that a value is of, and how many words before its end it ends, as a number of 0 or below; None where that is
    unknown."""
    at = 0.0
    while within(value) is not value or value.op == "part":
        if value.op != "part":
            value = within(value)
            continue
        index = value.args[1]
        cuts = index.parts if isinstance(index, Many) else [index]
        if not all(one.op == "slice" or (one.op == "@constant" and one.data in (None, Ellipsis)) for one in cuts):
            break  # rows that are picked, and a row of several
        for end in (one.args[1] for one in cuts if one.op == "slice" and len(one.args) > 1 and not is_none(one.args[1])):
            known = number(end)
            if known is None or known > 0:
                return None
            at += known
        value = value.args[0]
    return Place(value, 0, at)


def place_of(value: Value) -> Place | None:
    """Where a value begins in a row of words."""
    unknown, known = 0, 0.0
    for _ in range(60):
        inner = within(value)
        if inner is not value:
            value = inner
            continue
        index = value.args[1] if value.op == "part" and len(value.args) == 2 else None
        cuts = index.parts[1:2] if isinstance(index, Many) and len(index.parts) == 3 else index.parts if isinstance(index, Many) else [index]
        cut = next((one for one in reversed(cuts) if one is not None and one.op == "slice"), None)
        if isinstance(index, Many) and cut is not None and len(index.parts) == 2 and cut is index.parts[0] and not (index.parts[1].op == "@constant" and index.parts[1].data in (None, Ellipsis)):
            return None  # one word of each row
        if value.op == "set_item" and (bare(value.args[0]).op in _BLOCKS or bare(value.args[2]).op == "part") and (start := begins_at(value.args[1])) is not None:
            known, value = known - start, value.args[2]
        elif value.op == "roll" and (by := number(value.argument("shifts", 1))) is not None:
            known, value = known - by, value.args[0]
        elif value.op == "pad" and isinstance(sides := value.argument("pad", 1), Many) and len(sides.parts) == 2 and (before := number(sides.parts[0])) is not None:
            known, value = known - before, value.args[0]
        elif value.op.endswith("pad_sequence") or value.op in ("rows", "set_item", "masked_fill") or (isinstance(index, Many) and all(one.op == "@constant" and one.data in (None, Ellipsis) for one in index.parts)):
            value = value.args[0]
        elif cut is not None:
            begin = cut.args[0]
            at = 0.0 if is_none(begin) else number(begin)
            if at is not None and at < 0:
                return None  # counted from the end
            if at is None:
                first, at = _beyond(begin)
                if first.op == "neg":
                    return None
                unknown += _number_of(first)
            known, value = known + at, value.args[0]
        else:
            return Place(value, unknown, known)
    return None


@FINDERS.add("labels-shifted-twice")
def _shifted_twice(program: Program) -> Iterator[Remark]:
    """The targets are the words two places after those that the network reads at the same place, and no other loss asks for
    the next one."""
    found: list[tuple[Value, Value, float]] = []
    for loss in computation_of(program).of(*_LOSSES):
        target, logits = (place_of(loss.args[1]), place_of(loss.args[0])) if len(loss.args) > 1 else (None, None)
        if logits is None or logits.unknown:
            continue
        for read in origins(loss.args[0]) if target is not None else ():
            if read.op == "run" and len(read.args) == 2 and read.args[0].op == "torch.nn.Embedding":
                given = place_of(read.args[1])
                if given is not None and target is not None and given.row is target.row and given.unknown == target.unknown:
                    found.append((loss, read, target.known - given.known - logits.known))
    if found and all(ahead == 2 for _, _, ahead in found):
        loss, read, _ = found[0]
        yield Remark(loss.node, f"{short(loss.node)} asks at each place for the word two after the one that {short(read.node)} (line {read.line}) reads there: the targets are shifted twice")


# Neighbours ---------------------------------------------------------------------------


@FINDERS.add("finds-itself")
def _finds_itself(program: Program) -> Iterator[Remark]:
    """The nearest of all samples are looked for by each of them, and each is its own nearest."""
    computation = computation_of(program)
    for best in computation.of("topk", "argmax", "argsort", "sort", "argmin"):
        scores = bare(best.args[0], "div", "mul", "neg") if best.args else best
        if not best.where.no_grad and not _is_judged(computation, best):
            continue
        if not _is_of_itself(scores) or not _chooses_labels(computation, best, {id(one) for one in origins(scores)}):
            continue
        yield Remark(best.node, f"{short(best.node)} looks for the nearest among all samples, the asking one too (line {scores.line}): each finds itself first")
        return


def _is_judged(computation: Computation, value: Value) -> bool:
    """Whether a network's results reach a value without their gradient."""
    return any(one.op == "run" and one.where.no_grad for one in origins(value))


def _is_of_itself(scores: Value) -> bool:
    """Whether samples are compared with themselves, and the diagonal stands as it is."""
    if scores.op == "matmul" and len(scores.args) == 2:
        left, right = bare(scores.args[0]), bare(scores.args[1], "t", "T", "transpose", "mT", "permute")
        return left is right and scores.args[0] is not scores.args[1]
    return scores.op == "cdist" and len(scores.args) > 1 and bare(scores.args[0]) is bare(scores.args[1])


def _chooses_labels(computation: Computation, best: Value, samples: set[int]) -> bool:
    """Whether labels are looked up at the places found, of which none is left out; not the `samples` themselves, which may be
    averaged with their neighbours."""
    waiting, seen, found = [best], {id(best)}, False
    while waiting and len(seen) < 60:
        at = waiting.pop()
        for user in computation.users(at):
            if id(user) in seen:
                continue
            seen.add(id(user))
            if user.op == "part" and len(user.args) == 2 and user.args[0] is at:
                cuts = user.args[1].parts if isinstance(user.args[1], Many) else [user.args[1]]
                if any(one.op == "slice" and not is_none(one.args[0]) for one in cuts):
                    return False
                waiting.append(user)
            elif user.op == "part" and len(user.args) == 2:
                found = found or (id(user.args[0]) not in samples and user.args[0].op != "run")
                waiting.append(user)
            elif user.op == "ne" or (user.op == "sub" and user.args[0] is at and at.op == "sum"):
                return False  # it is left out of the places, or taken from the sum
            elif user.op in ("indices", "tuple", "eq", "float", "int", "long", "sum"):
                waiting.append(user)
    return found
