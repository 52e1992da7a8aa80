"""Inputs that are flipped or turned at random beside targets that lie in them. Pure; standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import names_of, short
from probe.diagnose.code.traits.basic import LOSSES
from probe.diagnose.code.traits.sides import DRAWS, Sides, sides_of

FINDERS = Finders()
_MOVES = ("flip", "fliplr", "flipud", "hflip", "vflip", "rot90", "rotate", "roll", "torchvision.transforms.functional.hflip", "torchvision.transforms.functional.vflip", "torchvision.transforms.functional.rotate")
_PLACES = re.compile(r"(^|_)(mask|masks|seg|segmentation|label_map|box|boxes|bbox|bboxes|keypoints?|kpts?|landmarks?|joints|corners|coords|heatmaps?|depth|centre|center|centres|centers)(_|$)")
"""What targets are called that lie in their input's pixels."""


@FINDERS.add("moved-alone")
def _moved_alone(program: Program) -> Iterator[Remark]:
    """What a network is given is moved by a random draw, and its target, which lies in it, is not."""
    for sides in sides_of(computation_of(program)):
        moved = [one for one in sides.given.values() if one.op in _MOVES and id(one) not in sides.beside]
        moved = [one for one in moved if _draws(sides, one)]
        for loss in sides.beside.values() if moved else ():
            target = loss.args[1] if loss.op in LOSSES and len(loss.args) > 1 else None
            if target is None or not any(_PLACES.search(name) for name in names_of(target.node)):
                continue
            made = list(origins(target))
            drawn = _drawn(target) | {id(each) for one in made for test, _ in one.where.under for each in origins(test)}
            still = [one for one in moved if not _draws(sides, one) & drawn]
            if still and len(still) == len(moved) and not any(one.op in _MOVES for one in made):
                yield Remark(still[0].node, f"{short(still[0].node)} moves what the input shows, and {short(target.node)} (line {target.line}), which belongs to it, stays as it was")
                return


def _drawn(value: Value) -> set[int]:
    """The draws that a value is made of: not those that say how much, or of what shape, is drawn."""
    return {id(one) for one in origins(value, stop=DRAWS) if one.op in DRAWS}


def _draws(sides: Sides, moved: Value) -> set[int]:
    """The random draws that decide whether, or how far, a value is moved."""
    found = {draw for test, _ in moved.where.under for draw in _drawn(test)}
    for one in moved.args[1:]:
        found |= _drawn(one)
    for one in sides.given.values():
        if one.op == "where" and any(each is moved for each in one.args[1:]):
            found |= _drawn(one.args[0])
        elif one.op == "set_item" and len(one.args) > 2 and any(each is moved for each in origins(one.args[2])):
            found |= _drawn(one.args[1])
    return found
