"""Where the pixels of a picture go: grids, crops, and ranges that they are cut to. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    Many,
    Value,
    bare,
    constant,
    is_none,
    number,
    origins,
    same,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short

FINDERS = Finders()
_ON_THE_WAY = frozenset({"add", "sub", "mul", "div", "clamp", "unsqueeze", "expand", "repeat", "tile", "contiguous", "expand_as", "view", "reshape", "either"}) | KEPT


def rows_first(program: Program) -> Iterator[Remark]:
    """A grid names the row before the column, and grid_sample reads the column first."""
    said: set[int] = set()
    for value in computation_of(program).of("grid_sample"):
        grid = value.argument("grid", 1)
        for one in _made_of(grid) if grid is not None else ():
            if one.op != "stack" or not one.args or not isinstance(one.args[0], Many) or number(one.argument("dim", 1)) not in (-1, 2, 3):
                continue
            axes = [_axis(part) for part in one.args[0].parts]
            if axes == [0, 1] and value.line not in said:
                said.add(value.line)
                yield Remark(one.node, f"{short(one.node)} names the row of each point before its column, and {short(value.node)} (line {value.line}) reads the column first: the picture is turned over its diagonal")


def _made_of(value: Value) -> Iterator[Value]:
    """A grid, and what it is a sum or a multiple of."""
    waiting, seen = [value], {id(value)}
    while waiting and len(seen) < 60:
        at = waiting.pop()
        yield at
        widened = at.op == "part" and len(at.args) == 2 and at.args[1].op == "@constant" and at.args[1].data is None
        for one in at.args if (at.op in _ON_THE_WAY or widened) and not isinstance(at, Many) else ():
            if id(one) not in seen:
                seen.add(id(one))
                waiting.append(one)


def _axis(value: Value) -> int | None:
    """The axis along which a coordinate of a grid runs."""
    value = bare(value, "mul", "div", "sub", "add")
    if value.op != "part" or value.args[0].op != "meshgrid" or number(value.args[1]) not in (0, 1) or "*" in value.args[0].named:
        return None
    indexing = constant(value.args[0].named.get("indexing"))
    if value.args[0].named.get("indexing") is None:
        name = getattr(getattr(value.args[0].node, "func", None), "value", None)
        indexing = "ij" if getattr(name, "id", None) == "torch" else None
    known = int(number(value.args[1]) or 0)
    return known if indexing == "ij" else 1 - known if indexing == "xy" else None


def crops_apart(program: Program) -> Iterator[Remark]:
    """A small picture and a large one are cut at the same place, counted in pixels, where a pixel of the one is several of
    the other."""
    computation = computation_of(program)
    cuts = [(value, found) for value in computation.of("part") if (found := _cut_out(value)) is not None]
    said: set[int] = set()
    for small, (begin, size) in cuts:
        for large, (again, more) in cuts:
            if small is large or large.line in said or begin[0] is not again[0] or begin[1] is not again[1] or small.where.functions != large.where.functions:
                continue
            factor = _factor(size, more)
            if factor and not same(bare(small.args[0]), bare(large.args[0])) and (not factor[0].isdigit() or _is_shrunk(small)):
                said.add(large.line)
                yield Remark(large.node, f"{short(large.node)} is {factor} the size of {short(small.node)} (line {small.line}), and begins at the same pixel: the two do not show the same place")


@FINDERS.add("crops-of-two-places")
def _sound_cut_by_frames(program: Program) -> Iterator[Remark]:
    """A piece of a spectrogram and a piece of the sound that it was made of begin at the same number, which counts frames in
    the one and samples in the other."""
    computation = computation_of(program)
    cuts = [(value, found) for value in computation.of("part") if (found := _stretch(value)) is not None]
    said: set[int] = set()
    for frames, (begin, size, axes) in cuts:
        for sound, (again, more, only) in cuts:
            if frames is sound or begin is not again or sound.line in said or only >= axes or frames.where.functions != sound.where.functions or same(bare(frames.args[0]), bare(sound.args[0])):
                continue
            known = number(size), number(more)
            times = known[1] / known[0] if known[0] and known[1] else None
            scale = next((b for a, b in (more.args, more.args[::-1]) if same(a, size)), None) if more.op == "mul" and len(more.args) == 2 else None
            if (times is not None and times >= 16 and times == int(times)) or (scale is not None and (number(scale) or 16) >= 16):
                said.add(sound.line)
                yield Remark(sound.node, f"{short(sound.node)} is {f'{times:g}' if times is not None else short(scale.node if scale is not None else more.node)} times as long as {short(frames.node)} (line {frames.line}), and begins at the same number: the two are not of the same time")


def _stretch(value: Value) -> tuple[Value, Value, int] | None:
    """Where a piece begins along the last axis, how long it is, and how many axes the index names."""
    index = value.args[1] if len(value.args) == 2 else value
    parts = index.parts if isinstance(index, Many) and index.op == "tuple" else [index]
    last = parts[-1] if parts else index
    if last.op != "slice" or len(last.args) != 3 or is_none(last.args[0]) or not is_none(last.args[2]) or last.args[0].op == "@constant":
        return None
    if any(one.op != "slice" and not (one.op == "@constant" and one.data is Ellipsis) for one in parts):
        return None
    end = last.args[1]
    if end.op != "add" or len(end.args) != 2 or end.args[0] is not last.args[0]:
        return None
    return last.args[0], end.args[1], len(parts)


def _cut_out(value: Value) -> tuple[tuple[Value, Value], tuple[Value, Value]] | None:
    """Where a piece of a picture begins along two axes, and how long it is."""
    index = value.args[1] if len(value.args) == 2 else None
    pieces = [one for one in index.parts if one.op == "slice" and len(one.args) == 3 and not is_none(one.args[0])] if isinstance(index, Many) and index.op == "tuple" else []
    if len(pieces) != 2 or not all(is_none(one.args[2]) and one.args[0].op != "@constant" for one in pieces):
        return None
    sizes = []
    for one in pieces:
        end = one.args[1]
        if end.op != "add" or len(end.args) != 2 or end.args[0] is not one.args[0]:
            return None
        sizes.append(end.args[1])
    return (pieces[0].args[0], pieces[1].args[0]), (sizes[0], sizes[1])


def _factor(size: tuple[Value, Value], more: tuple[Value, Value]) -> str | None:
    """How many times the sizes of a piece the sizes of another are, if that is a scale."""
    found = []
    for one, other in zip(size, more, strict=True):
        known = number(one), number(other)
        if known[0] and known[1]:
            times = known[1] / known[0]
            found.append(f"{times:g} times" if times > 1 and times == int(times) else "")
        elif other.op == "mul" and len(other.args) == 2:
            scale = next((b for a, b in (other.args, other.args[::-1]) if same(a, one)), None)
            found.append(f"{short(scale.node)} times" if scale is not None and not same(scale, one) else "")
        else:
            found.append("")
    return found[0] if found[0] and found[0] == found[1] else None


def _is_shrunk(small: Value) -> bool:
    """Whether a picture is a smaller one of another."""
    return any(one.op in ("interpolate", "avg_pool2d", "resize", "cv2.resize", "imresize") or one.op.rpartition(".")[2] in ("Resize", "resize") for one in origins(small.args[0]))


def cut_after_normalizing(program: Program) -> Iterator[Remark]:
    """Values that were normalized by a mean and a deviation are cut to the range 0 to 1 that they had before."""
    computation = computation_of(program)
    said: set[int] = set()
    for value in computation.of("clamp"):
        low, high = (number(value.argument(name, place)) for name, place in (("min", 1), ("max", 2)))
        if (low, high) != (0, 1) or value.line in said:
            continue
        found = next((one for one in _pixels(value.args[0]) if _normalizes(one)), None)
        if found is not None:
            said.add(value.line)
            yield Remark(value.node, f"{short(value.node)} cuts all below 0 and above 1 off, and its input was normalized by {short(found.args[0].node)} (line {found.args[0].line}): what is darker than the mean is below 0")
    for value in computation.of("torchvision.transforms.Compose", "torchvision.transforms.v2.Compose"):
        steps = value.args[0].parts if value.args and isinstance(value.args[0], Many) else []
        normal = next((place for place, one in enumerate(steps) if _is_normalize(one)), None)
        for one in steps[normal + 1 :] if normal is not None else ():
            for inner in (one, *(each for each in origins(one) if each.op.startswith("torchvision.transforms."))):
                if _cuts(inner) and inner.line not in said:
                    said.add(inner.line)
                    yield Remark(inner.node, f"{short(inner.node)} comes after {short(steps[normal or 0].node)} (line {steps[normal or 0].line}), and cuts what it gives to the range 0 to 1: what is darker than the mean is below 0")


def _cuts(transform: Value) -> bool:
    """Whether a transform of torchvision blends pictures, which it takes to be of the range 0 to 1."""
    name = transform.op.rpartition(".")[2] if transform.op.startswith("torchvision.transforms.") else ""
    if name == "ColorJitter":
        given = [transform.argument(word, place) for place, word in enumerate(("brightness", "contrast", "saturation"))]
        return any(one is not None and number(one) != 0 for one in given)
    return name in ("RandomAdjustSharpness",)


def _is_normalize(transform: Value) -> bool:
    return transform.op in ("torchvision.transforms.Normalize", "torchvision.transforms.v2.Normalize") and _is_moved(transform)


def _is_moved(transform: Value) -> bool:
    """Whether it takes a mean above 0 away."""
    mean = transform.argument("mean", 0)
    known = [number(one) for one in mean.parts] if isinstance(mean, Many) else []
    return bool(known) and all(one is not None and 0.1 < one < 1 for one in known)


def _normalizes(value: Value) -> bool:
    return value.op == "run" and len(value.args) == 2 and _is_normalize(value.args[0])


def _pixels(value: Value) -> Iterator[Value]:
    """A picture and what it was before steps that add to it or move its pixels; not what is made of it by scaling."""
    waiting, seen = [value], {id(value)}
    while waiting and len(seen) < 80:
        at = waiting.pop()
        yield at
        if _normalizes(at):
            continue
        through = at.op in KEPT or at.op in ("min", "max", "minimum", "maximum", "flip", "unsqueeze", "squeeze", "element", "part", "clamp", "requires_grad_")
        summed = at.op in ("add", "sub") and len(at.args) == 2
        for one in at.args[:1] if through and not isinstance(at, Many) else at.args if summed else ():
            if id(one) not in seen:
                seen.add(id(one))
                waiting.append(one)


def size_of_rows_first(program: Program) -> Iterator[Remark]:
    """OpenCV is given the number of rows before that of columns."""
    said: set[int] = set()
    for value in computation_of(program).of("cv2.resize", "cv2.warpAffine", "cv2.warpPerspective"):
        size = value.argument("dsize", 1 if value.op == "cv2.resize" else 2)
        if size is None or not value.args or value.line in said:
            continue
        if any(one.op in ("T", "transpose", "permute", "rot90", "mT", "swapaxes") for one in origins(value.args[0])):
            continue
        lengths = [length_of(one) for one in size.parts] if isinstance(size, Many) else []
        rows = len(lengths) == 2 and lengths[0] is not None and lengths[1] is not None and lengths[0][0] is lengths[1][0] and (lengths[0][1], lengths[1][1]) == (0, 1)
        if rows or _is_shape(size):
            said.add(value.line)
            yield Remark(value.node, f"{short(size.node)} is the number of rows and that of columns, and {short(value.node)} takes that of columns first")


def length_of(value: Value) -> tuple[Value, int] | None:
    """The array and the axis whose length, or a part or a multiple of it, a number is."""
    for _ in range(6):
        value = bare(value, "int", "round")
        if value.op in ("floordiv", "mul", "div") and len(value.args) == 2:
            value = value.args[1] if value.op == "mul" and number(value.args[0]) is not None else value.args[0]
            continue
        place = number(value.args[1]) if value.op == "part" and len(value.args) == 2 else None
        shape = value.args[0].args[0] if place is not None and _is_shape(value.args[0]) else value.args[0] if value.args else value
        return (bare(shape.args[0]), int(place)) if place is not None and shape.op == "shape" and shape.args else None
    return None


def _is_shape(size: Value) -> bool:
    """Whether a size is the first two lengths of an array, as they are."""
    cut = size.args[1] if size.op == "part" and len(size.args) == 2 and size.args[0].op == "shape" else None
    return cut is not None and cut.op == "slice" and len(cut.args) == 3 and number(cut.args[0]) in (None, 0) and number(cut.args[1]) == 2 and is_none(cut.args[2])
