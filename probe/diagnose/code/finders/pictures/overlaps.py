"""Overlaps of boxes. Pure; standard library only."""

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
    is_none,
    number,
    origins,
    same,
)
from probe.diagnose.code.finders.pictures.mirrored_boxes import taken_columns
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.uses import made_from

_CUT = frozenset({
    "clamp", "relu", "maximum", "max", "where", "lt", "gt", "le", "ge", "masked_fill", "clamp_min", "threshold", "softplus", "any", "all", "nonzero",
})


def of_disjoint_boxes(program: Program) -> Iterator[Remark]:
    """The overlap of two boxes is a width times a height, neither of which is cut off at 0."""
    computation = computation_of(program)
    said: set[int] = set()
    for value in computation.of("mul", "prod"):
        sides = _sides(value)
        if sides is None or value.line in said or not _in_a_fraction(computation, value):
            continue
        ends = [end for side in sides for one in origins(side) if one.op == "sub" for end in one.args if end.op in ("min", "max", "minimum", "maximum")]
        followed = [value, *sides, *(one for side in sides for one in computation.users(side) if one.op == "part")]
        followed += [one for end in ends for one in (end, *(user for user in computation.users(end) if user.op == "part"))]
        if any(user.op in _CUT for one in followed for user in computation.users(one)) or any(part is one for test, _ in value.where.under for part in origins(test) for one in (*sides, *ends)):
            continue
        said.add(value.line)
        yield Remark(value.node, f"{short(value.node)}: of two boxes that lie apart along both axes both factors are below 0, and their product is above 0")


def _sides(value: Value) -> tuple[Value, ...] | None:
    """The sides of which a value is the product: each the smaller end of two boxes less the larger beginning."""
    if value.op == "prod":
        both = value.args[:1]
    else:
        both = value.args
        if len(both) == 2 and all(one.op == "part" and len(one.args) == 2 for one in both) and both[0].args[0] is both[1].args[0] and not same(both[0].args[1], both[1].args[1]):
            both = both[:1][0].args[:1]
        elif len(both) != 2 or same(both[0], both[1]):
            return None
    return tuple(bare(one) for one in both) if both and all(is_side(bare(one)) for one in both) else None


def is_side(value: Value) -> bool:
    """Whether a value is a side of what two boxes share: the smaller end less the larger beginning."""
    if value.op in ("add",) and len(value.args) == 2 and number(value.args[1]) is not None:
        value = bare(value.args[0])
    if value.op != "sub" or len(value.args) != 2:
        return False
    end, begin = (bare(one) for one in value.args)
    return _of_two(end, "min", "minimum") and _of_two(begin, "max", "maximum")


def _of_two(value: Value, *ops: str) -> bool:
    return value.op in ops and len(value.args) == 2 and number(value.args[1]) is None and all(bare(one).op in ("part", "add", "sub") for one in value.args)


def _in_a_fraction(computation: Computation, value: Value) -> bool:
    """Whether a value is divided by what is left of a sum without it."""
    over = [user for user in made_from(computation, value, frozenset({"add", "sub", "clamp", "float", "part", "unsqueeze", "squeeze"}), 60) if user.op == "div"]
    return any(any(one.op == "sub" and any(bare(part) is value for part in one.args[1:]) for one in origins(user.args[1])) for user in over if len(user.args) == 2)


def without_the_overlap(program: Program) -> Iterator[Remark]:
    """From the overlap over the union is taken the share of the hull that is outside of the overlap, and not of the union."""
    computation = computation_of(program)
    said: set[int] = set()
    for value in computation.of("sub"):
        share, outside = (bare(one) for one in value.args) if len(value.args) == 2 else (value, value)
        if share.op != "div" or outside.op != "div" or len(share.args) != 2 or len(outside.args) != 2 or value.line in said:
            continue
        overlap, rest = bare(share.args[0]), bare(outside.args[0])
        union = any(one.op == "sub" and len(one.args) == 2 and same(bare(one.args[1]), overlap) for one in origins(share.args[1]))
        if union and rest.op == "sub" and len(rest.args) == 2 and same(bare(rest.args[1]), overlap) and _holds(outside.args[1], bare(rest.args[0])):
            said.add(value.line)
            yield Remark(value.node, f"{short(value.node)} counts what lies outside of the overlap {short(rest.args[1].node)}, and not of the union")


def _holds(value: Value, part: Value) -> bool:
    """Whether a value is another one, or that and a small number."""
    value = bare(value, "clamp")
    return same(value, part) or (value.op == "add" and any(same(bare(one), part) for one in value.args))


TAKE_CORNERS = tuple(f"torchvision.ops.{name}" for name in (
    "box_iou", "generalized_box_iou", "distance_box_iou", "complete_box_iou", "nms", "batched_nms", "generalized_box_iou_loss", "distance_box_iou_loss",
    "complete_box_iou_loss", "roi_align", "box_area", "clip_boxes_to_image",
))


def of_another_form(program: Program) -> Iterator[Remark]:
    """Boxes of a middle and a size are given to what takes two corners."""
    said: set[int] = set()
    yield from _turned_elsewhere(computation_of(program))
    for value in computation_of(program).of(*TAKE_CORNERS):
        for one in value.args[:2]:
            form = _form(one)
            if form is not None and value.line not in said:
                said.add(value.line)
                yield Remark(value.node, f"{short(value.node)} takes two corners of each box, and {short(one.node)} holds {form[1]} (line {form[0].line})")
    yield from _given_to_own(computation_of(program))


def _given_to_own(computation: Computation) -> Iterator[Remark]:
    """The program computes the overlap of boxes by their corners, of boxes that hold a middle or a corner and a size."""
    for value in computation.of("sub"):
        if not is_side(value):
            continue
        end, begin = (bare(one) for one in value.args)
        for one in end.args:
            ends = taken_corners(one)
            begins = next((taken for each in begin.args if (taken := taken_corners(each)) is not None and ends is not None and taken[0] is ends[0]), None)
            if ends is None or begins is None or tuple(each - 2 for each in ends[1]) != begins[1]:
                continue
            form = _form(ends[0]) or _corner_and_size(computation, ends[0])
            if form is not None:
                yield Remark(value.node, f"{short(value.node)} takes two corners of each box, and those that it is given hold {form[1]}: {short(form[0].node)} (line {form[0].line})")
                return


def taken_corners(value: Value) -> tuple[Value, tuple[int, ...]] | None:
    """The boxes of which a value is some columns, and the columns; also of `boxes[:, 2:]`."""
    value = bare(value)
    index = value.args[1] if value.op == "part" and len(value.args) == 2 else None
    last = index.parts[-1] if isinstance(index, Many) and index.op == "tuple" and index.parts else None
    if last is not None and last.op == "slice" and number(last.args[0]) == 2 and is_none(last.args[1]) and is_none(last.args[2]):
        return value.args[0], (2, 3)
    return taken_columns(value)


def _corner_and_size(computation: Computation, boxes: Value) -> tuple[Value, str] | None:
    """Where boxes are made of a corner and a size: the picture has something in it from the corner on, as long as the size."""
    made = _four_of(computation, boxes)
    if made is None:
        return None
    cut = [pair for one in computation.of("tuple") if isinstance(one, Many) for pair in _lengths(one)]
    for place in (0, 1):
        if not any(bare(begin) is bare(made.parts[place]) and bare(size) is bare(made.parts[place + 2]) for begin, size in cut):
            return None
    return made, "a corner and a size"


def _lengths(index: Many) -> list[tuple[Value, Value]]:
    """The beginnings and lengths of the stretches that an index takes: `x:x + w`."""
    stretches = [one.args for one in index.parts if one.op == "slice" and len(one.args) == 3 and one.args[1].op == "add" and len(one.args[1].args) == 2]
    return [(begin, rest) for begin, end, _ in stretches for one, rest in (end.args, end.args[::-1]) if one is begin]


def _four_of(computation: Computation, boxes: Value) -> Many | None:
    """The four numbers that each row of boxes is made of."""
    for _ in range(30):
        if isinstance(boxes, Many) and len(boxes.parts) == 4 and not boxes.grown:
            return boxes
        if isinstance(boxes, Many) and len(boxes.parts) == 1:
            boxes = boxes.parts[0]
        elif boxes.op == "set_item" and len(boxes.args) == 3:
            boxes = boxes.args[2]
        elif boxes.op in KEPT | SHAPED | {"div", "mul", "element", "rows", "stack", "part"} and boxes.args:
            boxes = boxes.args[0]
        else:
            return None
    return None


def _form(value: Value) -> tuple[Value, str] | None:
    """Where boxes are made that are a middle or a corner and a size, and what they hold."""
    for _ in range(30):
        if value.op.endswith("ops.box_convert"):
            out = constant(value.argument("out_fmt", 2))
            return (value, {"cxcywh": "a middle and a size", "xywh": "a corner and a size"}[out]) if out in ("cxcywh", "xywh") else None
        if isinstance(value, Many) and len(value.parts) == 4:
            middles = [_middle(first, second) for first, second in zip(value.parts[:2], value.parts[2:], strict=True)]
            return (value, "a middle and a size") if all(middles) else None
        if isinstance(value, Many) and len(value.parts) == 1:
            value = value.parts[0]
        elif value.op == "set_item" and len(value.args) == 3 and isinstance(value.args[2], Many):
            value = value.args[2]
        elif value.op == "part" and len(value.args) == 2 and not isinstance(value.args[1], Many) and value.args[1].op != "@constant":
            value = value.args[0]  # rows of them
        elif value.op in KEPT | SHAPED | {"div", "mul", "element", "rows", "stack", "cat", "clamp"} and value.args and not isinstance(value, Many):
            value = value.args[0]
        else:
            return None
    return None


def _middle(middle: Value, size: Value) -> bool:
    """Whether a number is a beginning and half of a size, or the mean of two ends whose difference the size is."""
    while middle.op == "div" == size.op and same(middle.args[1], size.args[1]) and number(middle.args[1]) != 2:
        middle, size = middle.args[0], size.args[0]
    for _, half in ((middle.args[0], middle.args[1]), (middle.args[1], middle.args[0])) if middle.op == "add" and len(middle.args) == 2 else ():
        for whole, by in (half.args, half.args[::-1]) if half.op in ("div", "floordiv", "mul") and len(half.args) == 2 else ():
            if number(by) == (0.5 if half.op == "mul" else 2) and same(bare(whole), bare(size)):
                return True
    inner = bare(middle.args[0]) if middle.op in ("div", "mul") and len(middle.args) == 2 and number(middle.args[1]) in (2, 0.5) else middle
    size = bare(size)
    return inner.op == "add" and size.op == "sub" and all(any(same(bare(one), bare(other)) for other in size.args) for one in inner.args)


def _turned_elsewhere(computation: Computation) -> Iterator[Remark]:
    """The program computes the overlap of boxes by their corners, and elsewhere makes corners of the same boxes, of a middle
    and a size."""
    turned = {source: value for value in computation.of("list", "tuple") for base in (made_corners(value),) if base is not None for source in (_source(base),) if source is not None}
    for value in computation.of("sub") if turned else ():
        if not is_side(value):
            continue
        ends = [(bare(one.args[0]), one.args[1]) for one in bare(value.args[0]).args if one.op == "part" and len(one.args) == 2]
        for base, index in ends:
            first = index.parts[-1] if isinstance(index, Many) and index.parts else index
            source = _source(base)
            if source in turned and first.op == "slice" and number(first.args[0]) == 2:
                made = turned[source]
                yield Remark(value.node, f"{short(value.node)} takes two corners of each box, and {short(base.node)} (line {base.line}) holds a middle and a size: {short(made.node)} (line {made.line}) makes corners of them elsewhere")
                return


def made_corners(value: Value) -> Value | None:
    """The boxes that four numbers are the corners of: the middle less and plus half of the size."""
    if not isinstance(value, Many) or len(value.parts) != 4 or value.grown:
        return None
    bases: list[Value] = []
    for place, one in enumerate(value.parts):
        half = bare(one.args[1]) if one.op == ("sub" if place < 2 else "add") and len(one.args) == 2 else one
        if half.op not in ("div", "mul") or len(half.args) != 2 or number(half.args[1]) != (2 if half.op == "div" else 0.5):
            return None
        middle, size = taken_columns(one.args[0]), taken_columns(half.args[0])
        if middle is None or size is None or (middle[1], size[1]) != ((place % 2,), (place % 2 + 2,)):
            return None
        bases += [bare(middle[0]), bare(size[0])]
    return bases[0] if all(one is bases[0] for one in bases) else None


def _source(boxes: Value) -> object:
    """What tells where boxes come from: the layer that gives them, or the expression that reads them for a batch."""
    for _ in range(20):
        if boxes.op == "run" and boxes.args:
            return id(boxes.args[0])
        if boxes.op == "rows" and boxes.args:
            return boxes.args[0].node
        if not boxes.args or not (boxes.op in KEPT or boxes.op in SHAPED or boxes.op in ("sigmoid", "clamp", "float", "to")):
            return None
        boxes = boxes.args[0]
    return None
