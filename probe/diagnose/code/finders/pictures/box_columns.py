"""Which length goes with which column of boxes and points. Pure; standard library only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, number, origins, same
from probe.diagnose.code.finders.pictures.mirrored_boxes import taken_columns
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import last_word, names_of, short
from probe.diagnose.code.traits.arithmetic import product

_BOXES = re.compile(r"(^|_)(box|boxes|bbox|bboxes|rois?|annots?|annotations?|xyxy|xywh|cxcywh)(_|$|\d)", re.I)


def side_of(value: Value) -> tuple[int, Value] | None:
    """0 for a width and 1 for a height of a picture, and the picture, where a number is such a length."""
    for _ in range(6):
        value = bare(value, "int", "round")
        if value.op != "part" or len(value.args) != 2 or (place := number(value.args[1])) is None:
            return None
        shape = value.args[0]
        if shape.op == "part" and len(shape.args) == 2 and shape.args[1].op == "slice" and len(shape.args[1].args) == 3:
            begin, end = (number(one) for one in shape.args[1].args[:2])
            whole = shape.args[0]
            if begin == -2 and shape.args[1].args[1].data is None and place >= 0 and whole.op in ("shape", "size"):
                return 1 - int(place), bare(whole.args[0])
            if begin not in (None, 0) or end != 2:
                return None
            shape = whole
        if shape.op in ("shape", "size") and len(shape.args) == 1 and _is_of_pil(shape.args[0]) and shape.op == "size":
            return int(place) if place in (0, 1) else None, bare(shape.args[0])  # type: ignore[return-value]
        if shape.op == "shape" and shape.args and _is_of_cv2(shape.args[0]):
            return (1 - int(place), bare(shape.args[0])) if place in (0, 1) else None
        if shape.op in ("shape", "size") and len(shape.args) == 1 and place in (-1, -2):
            return int(-1 - place), bare(shape.args[0])
        return None
    return None


def _columns(value: Value) -> tuple[Value, tuple[int, ...]] | None:
    """The boxes of which a value is some columns, and the columns; None for a length of a picture."""
    found = taken_columns(value)
    return None if found is None or found[0].op in ("shape", "size") or side_of(value) is not None else found


def _is_of_pil(value: Value) -> bool:
    """Whether a value is a picture of PIL."""
    for _ in range(12):
        if value.op == "PIL.Image.open":
            return True
        if value.op not in ("convert", "crop", "copy", "PIL.ImageOps.exif_transpose", "filter") or not value.args:
            return False
        value = value.args[0]
    return False


def _is_of_cv2(value: Value) -> bool:
    """Whether a value is a picture whose rows are its first axis: as OpenCV reads it, or an array of one of PIL."""
    for _ in range(12):
        if value.op == "cv2.imread":
            return True
        if value.op in ("array", "asarray") and value.args and _is_of_pil(value.args[0]):
            return True
        if value.op not in ("cv2.cvtColor", "astype", "copy", "ascontiguousarray", "div", "float", "float32") or not value.args:
            return False
        value = value.args[0]
    return False


def scaled_by_another_side(program: Program) -> Iterator[Remark]:
    """The columns of boxes that run along the width are scaled by the height of their picture, or the other way round."""
    computation = computation_of(program)
    said: set[object] = set()
    for value in () if _rows_first(program) else computation.of("set_item"):
        given = bare(value.args[2]) if len(value.args) == 3 else value
        if given.op not in ("mul", "div") or value.where.functions in said or not any(_BOXES.search(name) for name in names_of(value.node)):
            continue
        factors = product(given)
        found = [taken for one in factors.above if (taken := _columns(one)) is not None]
        if len(found) != 1 or len({column % 2 for column in found[0][1]}) != 1 or max(found[0][1]) > 3:
            continue
        rest = [one for one in (*factors.above, *factors.below) if _columns(one) is None]
        lengths = [known for one in rest if (known := side_of(one)) is not None]
        wanted = found[0][1][0] % 2
        if len(lengths) == 1 and lengths[0][0] != wanted:
            said.add(value.where.functions)
            length = next(one for one in rest if side_of(one) is not None)
            yield Remark(value.node, f"{short(value.node)}: columns {', '.join(str(one) for one in found[0][1])} run along the {('width', 'height')[wanted]}, and {short(length.node)} (line {length.line}) is the {('width', 'height')[lengths[0][0]]} of the picture")
    if not said and not _rows_first(program):
        yield from _sides_by_name(program)


def _sides_by_name(program: Program) -> Iterator[Remark]:
    """Columns of boxes along both axes are scaled by numbers that are named as the lengths of the other axes."""
    found: dict[object, list[tuple[Value, int, int]]] = {}
    for value in computation_of(program).of("set_item"):
        given = bare(value.args[2]) if len(value.args) == 3 else value
        if given.op not in ("mul", "div") or len(given.args) != 2 or not any(_BOXES.search(name) for name in names_of(value.node)):
            continue
        taken = _columns(given.args[0])
        node = program.parent.get(value.node) if not isinstance(value.node, ast.stmt) else value.node
        by = node.value if isinstance(node, ast.AugAssign) else node.value.right if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) else None
        named = re.fullmatch(r"(?:(?:img|image|im|orig|input)_?)?(?:(w|width)|(h|height))", last_word(by) if by is not None else "", re.I)
        if taken is not None and named is not None and max(taken[1]) <= 3 and len({column % 2 for column in taken[1]}) == 1:
            found.setdefault(value.where.functions, []).append((value, taken[1][0] % 2, 0 if named.group(1) else 1))
    for places in found.values():
        if {wanted for _, wanted, _ in places} == {0, 1} and all(wanted != side for _, wanted, side in places):
            value, wanted, side = places[0]
            yield Remark(value.node, f"{short(value.node)} runs along the {('width', 'height')[wanted]}, and is scaled by what is named as the {('width', 'height')[side]}; so are the columns along the other axis, the other way round")
            return


def _rows_first(program: Program) -> bool:
    """Whether a program names the rows of boxes before their columns."""
    for node in program.everywhere(ast.Tuple, ast.List):
        words = [one.value if isinstance(one, ast.Constant) else getattr(one, "id", "") for one in getattr(node, "elts", ())[:2]]
        if len(words) == 2 and all(isinstance(one, str) and re.fullmatch(rf"{axis}(_?min|_?1|_?0|_?c(enter)?)?", one, re.I) for axis, one in zip("yx", words, strict=True)) and len(getattr(node, "elts", ())) >= 4:
            return True
    return False


def split_by_the_rows(program: Program) -> Iterator[Remark]:
    """The place of the largest value in a picture whose axes were made one is taken apart by the number of its rows, and not
    by how long a row is."""
    said: set[object] = set()
    for value in computation_of(program).of("floordiv", "mod", "remainder", "divmod", "div"):
        if len(value.args) < 2 or value.where.functions in said or (value.op == "div" and "rounding_mode" not in value.named):
            continue
        place = bare(value.args[0])
        of = place.args[0] if place.op in ("argmax", "argmin") and place.args else None
        if place.op == "part" and place.args[0].op in ("max", "min", "topk") and number(place.args[1]) == 1 and place.args[0].args:
            of = place.args[0].args[0]
        whole = None if of is None else _flattened(of)
        length = bare(value.args[1])
        source, axis = _length_of(length)
        if whole is None or axis is None or source is None or not (bare(source, shapes=False) is bare(whole[0], shapes=False) or same(bare(source, shapes=False), bare(whole[0], shapes=False))):
            continue
        axes = whole[1]
        if (axes is not None and axis == axes - 2) or axis == -2:
            said.add(value.where.functions)
            by = value.node.right if isinstance(value.node, ast.BinOp) else length.node
            yield Remark(value.node, f"{short(value.node)} takes the place apart by {short(by)}, which is the number of rows: a row is as long as there are columns")


def _flattened(value: Value) -> tuple[Value, int | None] | None:
    """What a value was before its last two axes were made one, and how many axes it has, if that is known."""
    value = bare(value, "clone", shapes=False)
    if value.op in ("view", "reshape", "flatten") and value.args:
        whole = value.args[0]
        sizes = [one for given in value.args[1:] for one in (given.parts if isinstance(given, Many) else [given])]
        if value.op == "flatten":
            start = value.argument("start_dim", 1)
            known = 0 if start is None else number(start)
            return (whole, None if known is None or known < 0 else int(known) + 2) if known in (-2, 0, 1, 2) else None
        if sizes and number(sizes[-1]) == -1 and all(number(one) != -1 for one in sizes[:-1]):
            return whole, len(sizes) + 1
        lengths = [_axis_of(one, whole) for one in sizes[-1].args] if sizes and sizes[-1].op == "mul" else []
        if len(lengths) == 2 and None not in lengths and {-2, -1} != set(lengths) and abs((lengths[0] or 0) - (lengths[1] or 0)) == 1:
            return whole, int(max(one for one in lengths if one is not None)) + 1
    return None


def _length_of(value: Value) -> tuple[Value | None, float | None]:
    """The tensor and the axis whose length a value is."""
    if value.op == "size" and len(value.args) == 2:
        return value.args[0], number(value.args[1])
    shape = value.args[0] if value.op == "part" and len(value.args) == 2 else value
    place = number(value.args[1]) if shape is not value else None
    if place is not None and place >= 0 and shape.op == "part" and len(shape.args) == 2 and shape.args[1].op == "slice":
        begin = number(shape.args[1].args[0])
        shape, place = shape.args[0], None if begin is None else begin + place
    known = shape is not value and shape.op in ("shape", "size") and len(shape.args) == 1
    return (shape.args[0], place) if known else (None, None)


def _axis_of(value: Value, whole: Value) -> float | None:
    """The axis of a tensor whose length a value is."""
    source, axis = _length_of(value)
    return axis if source is not None and bare(source, shapes=False) is bare(whole, shapes=False) else None


def without_its_size(program: Program) -> Iterator[Remark]:
    """The beginning of a box that is kept with its size is mirrored, and its size is not taken away: the box begins where it
    should end."""
    computation = computation_of(program)
    said: set[int] = set()
    drawn = [cut for one in computation.of("tuple") if isinstance(one, Many) for cut in _stretches(one)]
    for value in computation.of("sub"):
        if len(value.args) != 2 or value.line in said:
            continue
        begin = bare(value.args[1])
        size = next((length for at, length in drawn if _is_of(begin, at) or _is_beside(begin, at, length)), None)
        flipped = [one for one in computation.of("flip", "fliplr") if one.where.functions == value.where.functions and one.where.under == value.where.under and one.where.under]
        flipped += [one for one in computation.of("part") if one.where.under and one.where.under == value.where.under and one.where.functions == value.where.functions and _is_turned(one)]
        beside = [one for one in computation.of("sub") if one is not value and one.where.functions == value.where.functions and one.where.under == value.where.under]
        if size is not None and any(part is size for one in beside for part in origins(one)):
            continue
        length = number(value.args[0]) is not None or bare(value.args[0]).op in ("part", "size", "@input", "width")
        if size is None or not flipped or not length or any(user.op == "sub" and user.args and user.args[0] is value for user in computation.users(value)) or any(_is_of(one, size) for one in origins(value.args[0])):
            continue
        said.add(value.line)
        yield Remark(value.node, f"{short(value.node)} is where the mirrored box ends: it begins its size before, and {short(size.node)} (line {size.line}) is not taken away")


def _stretches(index: Many) -> list[tuple[Value, Value]]:
    """The beginnings and lengths of a piece that is cut out of a picture along two axes: `y:y + h, x:x + w`."""
    found = [(one.args[0], one.args[1].args[1]) for one in index.parts if one.op == "slice" and len(one.args) == 3 and one.args[1].op == "add" and len(one.args[1].args) == 2 and one.args[1].args[0] is one.args[0]]
    return found if len(found) == 2 else []


def _is_beside(begin: Value, at: Value, length: Value) -> bool:
    """Whether a value is a column of boxes that hold a beginning and its length two columns further."""
    index = begin.args[1] if begin.op == "part" and len(begin.args) == 2 else begin
    last = number(index.parts[-1] if isinstance(index, Many) and index.op == "tuple" and index.parts else index)
    if begin.op != "part" or last not in (0, 1):
        return False
    column = int(last or 0)
    rows = [one.parts for one in origins(begin.args[0]) if isinstance(one, Many) and len(one.parts) == 4]
    return any(row[column] is at and row[column + 2] is length for row in rows)


def _is_of(value: Value, other: Value) -> bool:
    return value is other or bare(value) is bare(other)


def _is_turned(value: Value) -> bool:
    """Whether a picture is cut backwards along an axis."""
    index = value.args[1] if len(value.args) == 2 else value
    cuts = index.parts if isinstance(index, Many) and index.op == "tuple" else [index]
    return any(one.op == "slice" and len(one.args) == 3 and number(one.args[2]) == -1 for one in cuts)


def into_another_axis(program: Program) -> Iterator[Remark]:
    """Columns of boxes that run along one axis are set to what columns of the other axis are mirrored to."""
    said: set[object] = {one.where.functions for one in computation_of(program).of("set_item") if len(one.args) == 3 and _turns(one)}
    for value in computation_of(program).of("set_item"):
        if len(value.args) != 3 or value.where.functions in said or not any(_BOXES.search(name) for one in (value, value.args[0], value.args[2]) for name in names_of(one.node)):
            continue
        to = _columns(Value("part", value.args[:2], node=value.node, where=value.where))
        given = bare(value.args[2])
        length = given.args[0] if given.op == "sub" and len(given.args) == 2 else None
        source = _columns(_first_copied(given.args[1])) if length is not None else None
        if to is None or source is None or length is None or len(to[1]) != len(source[1]) or _columns(length) is not None:
            continue
        apart = all(one % 2 != other % 2 for one, other in zip(to[1], source[1], strict=True))
        if apart and max(*to[1], *source[1]) <= 3 and not (length.op in ("add", "sub") and any(_columns(one) is not None for one in length.args)):
            said.add(value.where.functions)
            yield Remark(value.node, f"{short(value.node)} is set to {short(given.node)}: what runs along one axis is written to the place of the other")


def _turns(value: Value) -> bool:
    """Whether columns that run along one axis become those of the other, as they are: the picture is turned by a right angle."""
    to = taken_columns(Value("part", value.args[:2], node=value.node, where=value.where))
    source = _columns(_first_copied(value.args[2]))
    return to is not None and source is not None and len(to[1]) == len(source[1]) and any(one % 2 != other % 2 for one, other in zip(to[1], source[1], strict=True))


def _first_copied(value: Value) -> Value:
    while value.op in ("copy", "clone") and value.args:
        value = value.args[0]
    return value
