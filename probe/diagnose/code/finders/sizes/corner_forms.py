"""Boxes of a middle and a size beside boxes of two corners, in one overlap. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, is_none, number
from probe.diagnose.code.finders.pictures.overlaps import (
    TAKE_CORNERS,
    is_side,
    made_corners,
    taken_corners,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short

FINDERS = Finders()
_DISTANCES = ("l1_loss", "smooth_l1_loss", "mse_loss", "huber_loss")
_RISING = ("sqrt", "log", "clamp", "square", "clamp_min", "log1p")
"""What both sides of a distance may go through."""


@FINDERS.add("boxes-of-another-form")
def _beside_converted(program: Program) -> Iterator[Remark]:
    """Of two boxes that are compared as they are, only one is made corners of before their overlap is taken; or corners are made
    elsewhere of what the same layers give."""
    computation = computation_of(program)
    overlaps = list(_overlaps(computation))
    compared = list(_compared(computation)) if overlaps else []
    elsewhere = {key: base for value in computation.of("cat", "stack", "list", "tuple", "torchvision.ops.box_convert") for base in (_middles_of(value),) if base is not None for key in (_key(base),) if key is not None} if overlaps else {}
    for value, boxes in overlaps:
        plain = [one for one in boxes if _middles_of(one) is None]
        converted = [(one, base) for one in boxes if (base := _middles_of(one)) is not None]
        for one in plain:
            base = _whole(one)
            beside = next((corners for corners, other in converted if any({id(a), id(b)} == {id(base), id(_whole(other))} for a, b in compared)), None)
            made = None if (key := _key(one)) is None else elsewhere.get(key)
            if beside is not None:
                yield Remark(value.node, f"{short(value.node)} takes two corners of each box: {short(beside.node)} (line {beside.line}) makes them of a middle and a size, and {short(one.node)} (line {one.line}), which is compared with these column by column elsewhere, is given as it is")
                return
            if made is not None:
                yield Remark(value.node, f"{short(value.node)} takes two corners of each box, and {short(one.node)} (line {one.line}) holds a middle and a size: of {short(made.node)} (line {made.line}), of the same layers, corners are made elsewhere")
                return


def _overlaps(computation: Computation) -> Iterator[tuple[Value, list[Value]]]:
    """Where the overlap of boxes is taken by their corners, and the two kinds of boxes."""
    for value in computation.of(*TAKE_CORNERS):
        yield value, [one for one in value.args[:2] if not is_none(one)]
    for value in computation.of("sub"):
        if not is_side(value):
            continue
        end, begin = (bare(one) for one in value.args)
        ends = [taken for one in end.args if (taken := taken_corners(one)) is not None]
        begins = [taken for one in begin.args if (taken := taken_corners(one)) is not None]
        boxes = [of for of, columns in ends if any(other is of and tuple(each + 2 for each in first) == columns for other, first in begins)]
        if len(boxes) == len(ends) == 2:
            yield value, boxes


def _compared(computation: Computation) -> Iterator[tuple[Value, Value]]:
    """Boxes, or what else, whose columns are each compared with the same columns of others."""
    for value in computation.of(*_DISTANCES, "sub"):
        if len(value.args) != 2 or (value.op == "sub" and is_side(value)):
            continue
        both = [bare(one, *_RISING) for one in value.args]
        taken = [None if one.op == "part" and constant(one.args[-1]) is not None else taken_corners(one) for one in both]  # `batch[1]` is no column
        if taken[0] is not None and taken[1] is not None and taken[0][1] == taken[1][1]:
            yield _whole(taken[0][0]), _whole(taken[1][0])
        elif taken[0] is None and taken[1] is None:
            yield _whole(both[0]), _whole(both[1])


def _whole(boxes: Value) -> Value:
    """Boxes without what takes some rows of them."""
    for _ in range(20):
        boxes = bare(boxes)
        if boxes.op != "part" or len(boxes.args) != 2 or taken_corners(boxes) is not None or constant(boxes.args[1]) is not None:
            break
        boxes = boxes.args[0]
    return boxes


def _middles_of(boxes: Value) -> Value | None:
    """The boxes of a middle and a size that others are the corners of."""
    boxes = _whole(boxes)
    if boxes.op.endswith("ops.box_convert"):
        forms = constant(boxes.argument("in_fmt", 1)), constant(boxes.argument("out_fmt", 2))
        return boxes.args[0] if forms == ("cxcywh", "xyxy") and boxes.args else None
    if boxes.op in ("cat", "stack", "concatenate") and boxes.args:
        boxes = boxes.args[0]
    if not isinstance(boxes, Many) or boxes.grown:
        return None
    if len(boxes.parts) == 4:
        return made_corners(boxes)
    bases: list[Value] = []
    for one, op in zip(boxes.parts, ("sub", "add"), strict=False) if len(boxes.parts) == 2 else ():
        one = bare(one)
        half = bare(one.args[1]) if one.op == op and len(one.args) == 2 else one
        by = next((place for place, each in enumerate(half.args) if number(each) == (0.5 if half.op == "mul" else 2)), None) if half.op in ("mul", "div", "floordiv") and len(half.args) == 2 else None
        if by is None or (by == 0 and half.op != "mul"):
            return None
        middle, size = _half(one.args[0]), _half(half.args[1 - by])
        if middle is None or size is None or (middle[1], size[1]) != (0, 1):
            return None
        bases += [bare(middle[0]), bare(size[0])]
    return bases[0] if bases and all(one is bases[0] for one in bases) else None


def _half(value: Value) -> tuple[Value, int] | None:
    """The boxes of which a value is the first two columns (0) or the last two (1)."""
    value = bare(value)
    place = number(value.args[1]) if value.op == "part" and len(value.args) == 2 else None
    cut = value.args[0] if place in (0, 1) else value
    if cut.op in ("chunk", "split", "tensor_split") and number(cut.argument("split_size", 1)) == 2 and place is not None:
        return cut.args[0], int(place)
    taken = taken_corners(value)
    return None if taken is None or taken[1] not in ((0, 1), (2, 3)) else (taken[0], taken[1][0] // 2)


def _key(boxes: Value) -> tuple[int, int] | None:
    """What tells boxes that a network gives from others, in each pass anew: where they are put together, and the layer that they
    are made of."""
    boxes = _whole(boxes)
    at = boxes
    for _ in range(30):
        if at.op == "run" and at.args:
            return id(boxes.node) if boxes is not at else 0, id(at.args[0])
        inner = at.parts if isinstance(at, Many) else at.args
        if not inner or at.op in ("@input", "element", "rows"):
            return None
        at = inner[0]
    return None
