"""Inputs that are flipped or turned at random beside targets that lie in them. Pure; standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import KEPT, SHAPED, Many, Value, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import names_of, short
from probe.diagnose.code.traits.basic import LOSSES
from probe.diagnose.code.traits.extents import rank
from probe.diagnose.code.traits.sides import Sides, draws_of, sides_of

FINDERS = Finders()
_MOVES = ("flip", "fliplr", "flipud", "hflip", "vflip", "rot90", "rotate", "roll", "torchvision.transforms.functional.hflip", "torchvision.transforms.functional.vflip", "torchvision.transforms.functional.rotate")
_PLACES = re.compile(r"(^|_)(mask|masks|seg|segmentation|label_map|box|boxes|bbox|bboxes|keypoints?|kpts?|landmarks?|joints|corners|coords|heatmaps?|depth|centres?|centers?|points|pts|steer|steering|angles?|directions?|gaze|headings?|offsets?|positions?|xy)(_|$)")
"""What targets are called that lie in their input's pixels, or point left and right in it."""
_TAKEN = frozenset({"part", "list", "tuple", "either", "rows", "stack", "cat", "index", "element", "@constant", "slice"}) | KEPT | SHAPED
"""Operations that take places of a target, and leave their numbers as they are."""


@FINDERS.add("moved-alone")
def _moved_alone(program: Program) -> Iterator[Remark]:
    """What a network is given is moved by a random draw, and its target, which lies in it, is not."""
    for sides in sides_of(computation_of(program)):
        moved = [one for one in sides.given.values() if one.op in _MOVES and id(one) not in sides.beside]
        moved = [one for one in moved if _draws(sides, one)]
        for loss in sides.beside.values() if moved else ():
            target = loss.args[1] if loss.op in LOSSES and len(loss.args) > 1 else None
            named = target is not None and any(_PLACES.search(name) for one in _before(target) for name in names_of(one.node))
            if target is None or not (named or _is_by_place(loss, target)):
                continue
            changed = [one for one in origins(target) if one.op not in _TAKEN]
            drawn = {draw for one in changed for draw in draws_of(one)} | {draw for one in changed for test, _ in one.where.under for draw in draws_of(test)}
            still = [one for one in moved if not _draws(sides, one) & drawn]
            if still and len(still) == len(moved) and not any(one.op in _MOVES for one in origins(target)):
                yield Remark(still[0].node, f"{short(still[0].node)} moves what the input shows, and {short(target.node)} (line {target.line}), which belongs to it, stays as it was")
                return


def _is_by_place(loss: Value, target: Value) -> bool:
    """Whether a target has a label for each place of its input: one axis more than the samples, and the labels of one."""
    axes = rank(target)
    if axes is None or loss.op not in ("cross_entropy", "nll_loss"):
        return axes is not None and axes >= 3
    return axes >= 2 and rank(loss.args[0]) == axes + 1


def _before(value: Value) -> Iterator[Value]:
    """A target and what it was before its batch was made and its shape changed."""
    for _ in range(30):
        yield value
        if not value.args or value.op not in _TAKEN or isinstance(value, Many):
            return
        value = value.args[0]


def _draws(sides: Sides, moved: Value) -> set[int]:
    """The random draws that decide whether, or how far, a value is moved."""
    found = {draw for test, _ in moved.where.under for draw in draws_of(test)}
    for one in moved.args[1:]:
        found |= draws_of(one)
    for one in sides.given.values():
        if one.op == "where" and any(each is moved for each in one.args[1:]):
            found |= draws_of(one.args[0])
        elif one.op == "set_item" and len(one.args) > 2 and any(each is moved for each in origins(one.args[2])):
            found |= draws_of(one.args[1])
    return found
