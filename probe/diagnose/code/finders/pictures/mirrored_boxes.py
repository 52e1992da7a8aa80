"""Boxes that are mirrored beside their picture. Pure; standard library only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

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
from probe.diagnose.code.finders.pictures.moved_pixels import length_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import Function, names_of, short
from probe.diagnose.code.traits.extents import rank
from probe.diagnose.code.traits.pictures import applied

FINDERS = Finders()
_BOXES = re.compile(r"(^|_)(box|boxes|bbox|bboxes|xyxy|rois?)(_|$|\d)", re.I)
_SIDEWAYS = re.compile(r"h(orizontal)?_?flip|flip_?(h|hor|horizontal|lr)(_|$)|fliplr|horizontal", re.I)


class _Mirror(NamedTuple):
    """A box some of whose columns are those of another one, subtracted from a length: `columns` says from which column each
    of them comes."""

    box: Value
    root: Value
    columns: dict[int, int]
    about: Value
    at: Value


@FINDERS.add("flipped-along-another-axis")
def _apart_from_its_boxes(program: Program) -> Iterator[Remark]:
    """A picture is flipped along its height, and its boxes are mirrored along its width, or the other way round."""
    computation = computation_of(program)
    flips = [(one, axis) for one in computation.values if one.args and (axis := _flip_axis(one)) is not None]
    for mirror in _mirrors(computation) if flips else ():
        side = {column % 2 for column in mirror.columns}
        beside = [(one, axis) for one, axis in flips if _place(one) == _place(mirror.at)]
        if len(side) != 1 or len(beside) != 1:
            continue
        flip, axis = beside[0]
        wanted = _axis_of(program, computation, mirror, flip, side.pop())
        axes = rank(flip.args[0])
        if wanted is None or (wanted < 0) != (axis < 0):
            wanted, axis = (None if one is None or axes is None or axes < 3 else one % axes for one in (wanted, axis))
        if wanted is not None and axis is not None and wanted != axis:
            yield Remark(flip.node, f"{short(flip.node)} beside {short(mirror.at.node)} (line {mirror.at.line}): the picture and the places in it are flipped along different axes")


def not_swapped(program: Program) -> Iterator[Remark]:
    """Both corners of a box are mirrored, and each stays in its column: the left one is now on the right."""
    computation = computation_of(program)
    said: set[int] = set()
    for mirror in _mirrors(computation):
        pair = next((pair for pair in ((0, 2), (1, 3)) if all(mirror.columns.get(one) == one for one in pair)), None)
        if pair is None or mirror.at.line in said or not (_is_corners(mirror.root) or _is_named(mirror)) or _is_sorted(computation, mirror.box):
            continue
        said.add(mirror.at.line)
        yield Remark(mirror.at.node, f"{short(mirror.at.node)}: columns {pair[0]} and {pair[1]} are mirrored and each stays where it was, so that the smaller one of a box is now the larger one")


def _place(value: Value) -> tuple[object, ...]:
    """Where a value is computed: its functions, and the conditions that hold there."""
    return (value.where.functions, tuple((id(test), holds) for test, holds in value.where.under))


def _flip_axis(value: Value) -> int | None:
    """The axis along which a picture is flipped."""
    name = applied(value) or value.op
    if name in ("hflip", "vflip"):
        return -1 if name == "hflip" else -2
    if name == "cv2.flip":
        code = number(value.argument("flipCode", 1))
        return int(code) if code in (0, 1) else None
    if name == "part" and len(value.args) == 2:
        index = value.args[1]
        cuts = index.parts if isinstance(index, Many) and index.op == "tuple" else [index]
        back = [place for place, one in enumerate(cuts) if one.op == "slice" and len(one.args) == 3 and number(one.args[2]) == -1]
        return back[0] if len(back) == 1 and back[0] < 2 and all(one.op == "slice" for one in cuts) else None
    if name != "flip":
        return None
    over = value.argument("dim", 1)
    over = over.parts[0] if isinstance(over, Many) and len(over.parts) == 1 else over
    known = number(over)
    return None if known is None else int(known)


def _axis_of(program: Program, computation: Computation, mirror: _Mirror, flip: Value, side: int) -> int | None:
    """The axis of a picture along which its boxes are mirrored: that whose length they are subtracted from, or that along
    which the column of the boxes runs."""
    about = bare(mirror.about)
    while about.op in ("sub", "add") and number(about.args[1]) is not None:
        about = bare(about.args[0])
    length = length_of(about)
    if length is not None:
        of = length[0]
        picture = flip.args[-1] if flip.op == "run" else flip.args[0]
        return length[1] if same(of, bare(picture)) or of is bare(flip) else None
    if flip.op != "flip" or program.called(flip.node) not in ("", "torch.flip") or mirror.columns.keys() - {0, 1, 2, 3}:
        return None
    functions = [one.name for one in flip.where.functions if isinstance(one, Function)][-1:]
    sideways = side == 0 and any(_SIDEWAYS.search(one) for one in functions) and _is_named(mirror)
    return (-1 if side == 0 else -2) if sideways or _runs_along_the_last(computation, mirror.root) else None


def _runs_along_the_last(computation: Computation, root: Value) -> bool:
    """Whether the first column of boxes comes from where the last axis of a picture is cut."""
    for one in origins(root):
        if not isinstance(one, Many) or len(one.parts) != 4:
            continue
        first, second = ({id(each) for each in origins(part)} for part in one.parts[:2])
        for index in computation.of("tuple"):
            cuts = index.parts[-2:] if isinstance(index, Many) else []
            if len(cuts) == 2 and all(each.op == "slice" and len(each.args) == 3 and number(each.args[0]) is None and not is_none(each.args[0]) for each in cuts):
                rows, columns = (id(each.args[0]) for each in cuts)
                if columns in first and columns not in second and rows in second and rows not in first:
                    return True
    return False


def _mirrors(computation: Computation) -> Iterator[_Mirror]:
    """All boxes that are mirrored: written column by column, or put together anew."""
    written = {id(one.args[0]) for one in computation.of("set_item") if one.args}
    for value in computation.of("set_item"):
        if id(value) in written and not all(user.op != "set_item" for user in computation.users(value)):
            continue
        chain = [value]
        while chain[-1].args and chain[-1].args[0].op == "set_item":
            chain.append(chain[-1].args[0])
        root = bare(chain[-1].args[0])
        columns: dict[int, int] = {}
        about = at = None
        for one in reversed(chain):
            to = _columns(one.args[1]) if len(one.args) > 2 else None
            if to is None:
                continue
            mirrored = _mirrored(one.args[2])
            for column in to:
                columns.pop(column, None)
            if mirrored is not None and _root(mirrored[0]) is root and len(mirrored[1]) == len(to):
                columns.update(zip(to, mirrored[1], strict=True))
                about, at = mirrored[2], one
        if columns and about is not None and at is not None:
            yield _Mirror(value, root, columns, about, at)
    for value in computation.of("stack", "cat"):
        parts = value.args[0].parts if value.args and isinstance(value.args[0], Many) else []
        found = [_mirrored(part) if part.op == "sub" else None for part in parts] if len(parts) == 4 else []
        sources = [one for one in found if one is not None and len(one[1]) == 1]
        if sources and len({id(_root(one[0])) for one in sources}) == 1:
            columns = {column: one[1][0] for column, one in enumerate(found) if one is not None and len(one[1]) == 1}
            yield _Mirror(value, _root(sources[0][0]), columns, sources[0][2], value)


def _root(value: Value) -> Value:
    """Boxes before their columns are written."""
    value = bare(value)
    while value.op == "set_item" and value.args:
        value = bare(value.args[0])
    return value


def _mirrored(value: Value) -> tuple[Value, tuple[int, ...], Value] | None:
    """The boxes and the columns of them that are subtracted from a length, and the length."""
    value = bare(value)
    if value.op == "sub" and len(value.args) == 2 and bare(value.args[0]).op == "sub" and (number(value.args[1]) is not None or taken_columns(bare(value.args[0]).args[1]) is not None):
        value = bare(value.args[0])  # less a pixel, or the size of the box
    if value.op != "sub" or len(value.args) != 2:
        return None
    taken = taken_columns(value.args[1])
    if taken is None or any(taken_columns(one) is not None and _root(one.args[0]) is _root(taken[0]) for one in origins(value.args[0])):
        return None
    return (*taken, value.args[0])


def taken_columns(value: Value) -> tuple[Value, tuple[int, ...]] | None:
    """The boxes of which a value is some columns, and the columns."""
    value = bare(value)
    if value.op != "part" or len(value.args) != 2:
        return None
    of = value.args[0]
    if of.op in ("unbind", "chunk", "split", "T") and of.args:
        of = of.args[0]
    columns = _columns(value.args[1])
    return None if columns is None else (of, columns)


def _columns(index: Value) -> tuple[int, ...] | None:
    """The columns that an index takes."""
    if isinstance(index, Many) and index.op == "tuple":
        if not index.parts or not all(one.op == "slice" or one.data is Ellipsis for one in index.parts[:-1]):
            return None
        index = index.parts[-1]
    if isinstance(index, Many):
        known = [number(one) for one in index.parts]
        return None if not known or None in known else tuple(int(one) for one in known if one is not None)
    if index.op == "slice" and len(index.args) == 3 and (number(index.args[1]) is not None or (is_none(index.args[1]) and number(index.args[2]) == 2)):
        begin, end, step = (number(one) for one in index.args)
        end = 4 if end is None else end  # boxes[:, 0::2]
        return tuple(range(int(begin or 0), int(end or 0), int(step or 1))) or None
    known_one = number(index)
    return None if known_one is None or not 0 <= known_one < 4 or not isinstance(constant(index), int) else (int(known_one),)


def _is_corners(root: Value) -> bool:
    """Whether boxes are made of one corner and of the same corner and a size."""
    for one in origins(root):
        parts = one.parts if isinstance(one, Many) and len(one.parts) == 4 else []
        if parts and all(end.op == "add" and any(same(bare(begin), bare(each)) for each in end.args) for begin, end in zip(parts[:2], parts[2:], strict=True)):
            return True
        if one.op not in KEPT | SHAPED | {"element", "part", "index", "div", "mul", "list", "tuple", "set_item", "zeros"}:
            continue
    return False


def _is_named(mirror: _Mirror) -> bool:
    """Whether boxes are called so where they are mirrored."""
    given = mirror.root.node.arg if isinstance(mirror.root.node, ast.arg) else ""
    return any(_BOXES.search(name) for one in (mirror.at, mirror.box, mirror.root) for name in (given, *names_of(one.node)))


def _is_sorted(computation: Computation, box: Value) -> bool:
    """Whether the columns of a box are put in order afterwards."""
    waiting, seen = [box], {id(box)}
    while waiting and len(seen) < 200:
        for user in computation.users(waiting.pop()):
            if user.op in ("sort", "min", "max", "minimum", "maximum", "abs", "sorted"):
                if sum(any(each is box for each in origins(one)) for one in user.args) > (0 if user.op in ("sort", "sorted", "abs") else 1):
                    return True
            elif id(user) not in seen and user.op in KEPT | SHAPED | {"part", "unbind", "tuple", "list", "either", "sub"}:
                seen.add(id(user))
                waiting.append(user)
    return False
