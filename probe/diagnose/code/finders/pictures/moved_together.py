"""What moves a picture at random, and the map or mask that is learned from it. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import DRAWN, Many, Value, bare, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import LOSSES
from probe.diagnose.code.traits.pictures import by_network

FINDERS = Finders()
_WITHOUT_CHANNELS = ("cross_entropy", "nll_loss")
"""Losses whose target lacks the axis of the classes, or channels, that the input of the network has before its rows."""


class _Move(NamedTuple):
    """One flip or turn: what decides about it, the axes that it is done along, and whether a turn goes backwards."""

    value: Value
    key: object
    axes: tuple[int, ...]
    backwards: bool = False


@FINDERS.add("flipped-along-another-axis")
def _moved_another_way(program: Program) -> Iterator[Remark]:
    """The input of a network and the map that it learns are flipped, turned or cut by one draw, and along axes that are not
    the same."""
    said: set[ast.AST] = set()
    for given, target, lacking in _pairs(computation_of(program)):
        inputs, targets = ({id(one): one for one in origins(side)} for side in (given, target))
        mine = [one for key, one in inputs.items() if key not in targets]
        theirs = [one for key, one in targets.items() if key not in inputs]
        for one, other in (*_turned_apart(mine, theirs, lacking), *_cut_apart(mine, theirs)):
            if other.node not in said:
                said.add(other.node)
                yield Remark(other.node, f"{short(other.node)} beside {short(one.node)}: the two are {'cut' if one.op == 'part' else 'turned' if one.op == 'rot90' else 'flipped'} along different axes")


@FINDERS.add("moved-alone")
def _moved_alone(program: Program) -> Iterator[Remark]:
    """The input and the map that a network learns are moved at random, and one of the moves of the input has none beside it."""
    said: set[ast.AST] = set()
    for given, target, _ in _pairs(computation_of(program)):
        known = {id(one) for one in origins(target)}
        mine = [one for one in origins(given) if id(one) not in known]
        theirs = [one for one in origins(target) if _move(one) is not None or _begins(one)]
        keys = {move.key for one in theirs if (move := _move(one)) is not None}
        ours = {move.key for one in mine if (move := _move(one)) is not None}
        apart = {one.op for one in theirs if (move := _move(one)) is not None and move.key not in ours}  # by draws of their own
        for one in mine if theirs else ():
            move = _move(one)
            if move is not None and move.key not in keys and one.op not in apart and one.node not in said and one.node not in {each.node for each in theirs}:
                said.add(one.node)
                yield Remark(one.node, f"{short(one.node)} moves what the input shows, and {short(theirs[0].node)} (line {theirs[0].line}) is all that moves the target: it does not follow")


def _pairs(computation: Computation) -> Iterator[tuple[Value, Value, int]]:
    """What each loss compares, the network's answer and its target, and how many axes the target lacks before its rows."""
    for loss in computation.of(*LOSSES):
        if len(loss.args) > 1 and not loss.where.no_grad and by_network(loss.args[0]) and not by_network(loss.args[1]):
            yield loss.args[0], loss.args[1], int(loss.op in _WITHOUT_CHANNELS)


def _turned_apart(mine: list[Value], theirs: list[Value], lacking: int) -> Iterator[tuple[Value, Value]]:
    """Flips and turns that one draw decides about, of which each side has one, and whose axes differ."""
    ours, others = ([move for one in values if (move := _move(one)) is not None] for values in (mine, theirs))
    for one in ours:
        same = [move for move in others if move.key == one.key and move.value.op == one.value.op]
        if len(same) != 1 or sum(move.key == one.key and move.value.op == one.value.op for move in ours) != 1:
            continue
        other = same[0]
        mixed = len({place < 0 for place in (*one.axes, *other.axes)}) > 1
        shifted = tuple(place - lacking for place in one.axes)  # of a target without the axis of the channels
        if not mixed and (one.backwards != other.backwards or (other.axes != one.axes and other.axes != shifted)):
            yield one.value, other.value


def _move(value: Value) -> _Move | None:
    """The flip or turn that a value is, if a draw decides about it."""
    if (axes := _flipped(value)):
        tests = tuple((id(test), holds) for test, holds in value.where.under if any(one.op in DRAWN for one in origins(test)))
        if tests and axes and None not in axes:
            return _Move(value, (value.where.functions, tests), tuple(sorted(int(place or 0) for place in axes)))
    if value.op == "rot90" and len(value.args) > 1 and any(one.op in DRAWN for one in origins(value.args[1])):
        turns = bare(value.args[1])
        over = value.argument("dims", 2) or value.argument("dim", 2) or value.argument("axes", 2)
        axes = [number(one) for one in over.parts] if isinstance(over, Many) else []
        backwards = turns.op == "neg"
        if axes and None not in axes:
            key = id(bare(turns.args[0])) if backwards else id(turns)
            return _Move(value, key, tuple(int(place or 0) for place in axes), backwards)
    return None


def _flipped(value: Value) -> list[float | None]:
    """The axes that a value is flipped along, however that is written; none of what is no flip."""
    if value.op == "flip" and value.args:
        given = value.args[1:] or [one for name, one in value.named.items() if name == "dim"]
        return [number(place) for one in given for place in (one.parts if isinstance(one, Many) else [one])]
    if value.op in ("fliplr", "flipud") and value.args:
        return [int(value.op == "fliplr")]
    if value.op == "part" and len(value.args) == 2:
        index = value.args[1]
        parts = index.parts if isinstance(index, Many) else [index]
        back = [place for place, one in enumerate(parts) if one.op == "slice" and len(one.args) > 2 and number(one.args[2]) == -1]
        if len(parts) < 3 and all(one.op == "slice" for one in parts):  # a third axis may be that of colours
            return [*back]
    return []


def _cut_apart(mine: list[Value], theirs: list[Value]) -> Iterator[tuple[Value, Value]]:
    """Cuts that begin at the same drawn places, which one side has in another order."""
    others = [(one, _begins(one)) for one in theirs]
    for one in mine:
        begins = _begins(one)
        for other, their in others:
            if len(begins) == 2 and their == begins[::-1] and begins[0] != begins[1]:
                yield one, other


def _begins(value: Value) -> list[int]:
    """Where a cut of a picture begins along its axes, where that is drawn: `x[:, top:top + size, left:left + size]`."""
    index = value.args[1] if value.op == "part" and len(value.args) == 2 else None
    slices = [one for one in index.parts if one.op == "slice"] if isinstance(index, Many) else []
    return [id(one.args[0]) for one in slices if any(each.op in DRAWN for each in origins(one.args[0]))]
