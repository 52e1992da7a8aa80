"""Boxes and motions of pictures that are resized. Pure; standard library only."""

from __future__ import annotations

import re
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
    same,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import names_of, short
from probe.diagnose.code.traits.basic import losses

_BOXES = re.compile(r"(^|_)(box|boxes|bbox|bboxes|corners?|landmarks?|keypoints?|kpts?|joints?)(_|$|\d)", re.I)
_MOTIONS = re.compile(r"(^|_)(flow|flows|disp|disparity|disparities|motion|displacements?)(_|$|\d)", re.I)
_RESIZES = ("interpolate", "resize")


def _size(value: Value) -> list[Value] | None:
    """The two lengths that a picture is resized to, where they are given."""
    if value.op.rpartition(".")[2] not in _RESIZES or len(value.args) == 0 or "scale_factor" in value.named:
        return None
    given = value.named.get("size") or value.named.get("dsize") or (value.args[1] if len(value.args) > 1 else None)
    if given is None:
        return None
    return list(given.parts) if isinstance(given, Many) and len(given.parts) == 2 else [given, given] if number(given) is not None else None


def _resized(value: Value) -> Value | None:
    """Where a picture is resized, of one that was only moved to another type or place since."""
    for _ in range(30):
        if _size(value) is not None:
            return value
        if isinstance(value, Many) and value.parts:
            value = value.parts[0]
        elif value.args and (value.op in KEPT or value.op in SHAPED or value.op in ("part", "rows", "permute", "transpose", "sub", "div", "mul", "normalize", "element", "cat") or value.op.rpartition(".")[2] in ("to_tensor", "normalize", "ToTensor")):
            value = value.args[0]
        else:
            return None
    return None


# Boxes -------------------------------------------------------------------------------------


def boxes_of_the_old_size(program: Program) -> Iterator[Remark]:
    """A picture is resized, and boxes or points that lie in it as it was are given beside it, or divided by its new size."""
    computation = computation_of(program)
    said: set[int] = set()
    for parts in _samples(computation):
        for picture in parts:
            resized = _resized(picture)
            size = _size(resized) if resized is not None else None
            if resized is None or size is None or resized.line in said:
                continue
            for target in (one for one in parts if one is not picture):
                made = _places(target, size)
                if made is None:
                    continue
                places, divided = made
                drawn = _lies_in(computation, places, resized)
                if (drawn and not _has_the_size(resized.args[0], size)) or (divided is not None and _is_named(places, target)):
                    said.add(resized.line)
                    what = f"and {short(divided.node)} (line {divided.line}) divides by the new size" if divided is not None else "and they are given as they are"
                    yield Remark(resized.node, f"{short(resized.node)} resizes the picture in which {short(places.node)} (line {places.line}) lie as it was, {what}")
                    break


def _samples(computation: Computation) -> Iterator[list[Value]]:
    """What is given together: the parts of a tuple, and what a loader makes batches of."""
    batches: dict[int, list[Value]] = {}
    for one in computation.values:
        if isinstance(one, Many) and one.op == "tuple" and 1 < len(one.parts) < 6:
            yield one.parts
        elif one.op == "rows" and "loader" in one.named and one.args:
            batches.setdefault(id(one.named["loader"]), []).append(one.args[0])
    yield from (parts for parts in batches.values() if len(parts) > 1)


def _places(target: Value, size: list[Value]) -> tuple[Value, Value | None] | None:
    """The coordinates that a target is, with where they are divided by the new size of a picture."""
    divided = None
    for _ in range(20):
        if isinstance(target, Many) and len(target.parts) in (2, 4) and not target.grown and all(not isinstance(one, Many) for one in target.parts):
            return target, divided
        if target.op == "div" and len(target.args) == 2 and divided is None:
            if not any(target.args[1] is one or (number(one) is not None and number(one) == number(target.args[1])) for one in size):
                return None
            divided, target = target, target.args[0]
        elif isinstance(target, Many) and len(target.parts) == 1:
            target = target.parts[0]
        elif target.args and (target.op in KEPT or target.op in SHAPED):
            target = target.args[0]
        else:
            return (target, divided) if target.op in ("part", "element", "@input") else None
    return None


def _lies_in(computation: Computation, places: Value, resized: Value) -> bool:
    """Whether all coordinates are ends of stretches along which a picture was written into before it was resized."""
    ends: list[Value] = []
    for one in origins(resized.args[0]):
        index = one.args[1] if one.op == "set_item" and len(one.args) == 3 else None
        cuts = index.parts if isinstance(index, Many) else []
        ends += [end for cut in cuts if cut.op == "slice" for end in cut.args[:2]]
    found = places.parts if isinstance(places, Many) else []
    return len(found) == 4 and all(any(bare(part) is bare(end) or (bare(part).op != "@constant" and same(bare(part), bare(end))) for end in ends) for part in found)


def _has_the_size(picture: Value, size: list[Value]) -> bool:
    """Whether a picture is made with the size that it is resized to."""
    made = next((one for one in origins(picture) if one.op in ("zeros", "rand", "ones", "full", "empty", "randn", "random", "normal")), None)
    lengths = [each for one in (made.args if made is not None else ()) for each in (one.parts if isinstance(one, Many) else [one])]
    return any(any(one is each or (number(one) is not None and number(one) == number(each)) for each in size) for one in lengths)


def _is_named(places: Value, target: Value) -> bool:
    """Whether what is divided is named as boxes or points."""
    keys = [one for one in (constant(part) for part in places.args[1:]) if isinstance(one, str)]
    return any(_BOXES.search(name) for name in (*keys, *(each for one in (places, target) for each in names_of(one.node))))


# Motions -----------------------------------------------------------------------------------


def motion_of_the_old_size(program: Program) -> Iterator[Remark]:
    """Pictures are resized, and so is the map that says how far each pixel moves, whose numbers stay those of the old size."""
    computation = computation_of(program)
    for _, loss in losses(computation):
        for error in origins(loss, stop=("run",)):
            if error.op not in _ERRORS or len(error.args) < 2:
                continue
            for guess, target in (error.args[:2], error.args[1::-1]):
                run = next((one for one in origins(guess) if one.op == "run" and len(one.args) > 1), None)
                moved = _resized_map(target)
                if run is None or moved is None or not (_is_named_a_motion(moved, target) or _moves_a_grid(computation, run)):
                    continue
                shown = next((found for one in origins(guess) if one.op == "run" and len(one.args) > 1 and (found := _resized(one.args[1])) is not None), None)
                if shown is not None and shown is not moved and _are_alike(_size(moved), _size(shown)):
                    yield Remark(moved.node, f"{short(moved.node)} makes the map smaller or larger and not the motions in it, and {short(shown.node)} (line {shown.line}) resizes the pictures: the motions are pixels of the old size")
                    return


_ERRORS = ("sub", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")


def _are_alike(one: list[Value] | None, other: list[Value] | None) -> bool:
    """Whether two sizes are equal."""
    return one is not None and other is not None and all(a is b or same(a, b) for a, b in zip(one, other, strict=True))


def _resized_map(value: Value) -> Value | None:
    """Where a map is resized whose numbers are as they were before and after it."""
    for _ in range(30):
        if _size(value) is not None:
            before = bare(value.args[0])
            while before.op == "part" and before.args:
                before = bare(before.args[0])
            while before.op == "set_item" and bare(before.args[2]).op not in ("mul", "div"):
                before = bare(before.args[0])
            return value if before.op not in ("mul", "div", "set_item") else None
        if isinstance(value, Many) and len(value.parts) == 1:
            value = value.parts[0]
        elif value.args and (value.op in KEPT or value.op in SHAPED or value.op in ("part", "rows", "element", "permute")):
            value = value.args[0]
        else:
            return None
    return None


def _is_named_a_motion(moved: Value, target: Value) -> bool:
    """Whether a map is named as a flow or a disparity."""
    return any(_MOTIONS.search(name) for one in (moved, moved.args[0], target) for name in names_of(one.node))


def _moves_a_grid(computation: Computation, run: Value) -> bool:
    """Whether what a network gives is added to the places of pixels."""
    given = [one for one in computation.of("run") if one.args[0] is run.args[0]]
    for value in computation.of("add"):
        for place, moved in (value.args, value.args[::-1]) if len(value.args) == 2 else ():
            grid = bare(place)
            grid = bare(grid.args[0]) if grid.op == "part" and grid.args else grid
            if grid.op in ("meshgrid", "arange", "linspace") and any(one is run for one in [bare(moved), *(bare(moved).args[:1])] for run in given):
                return True
    return False
