"""Points of a left and a right side that are mirrored with their picture. Pure; standard library only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import (
    is_binary,
    is_call,
    is_method,
    last_word,
    number_in,
    own,
    short,
    text_of,
)

_SIDES = {"left": "right", "right": "left", "l": "r", "r": "l"}
_EXCHANGED = re.compile(r"swap|pairs?(_|$)|perm|symm|mirror_?(id|map|order)|flip_?(id|ind|order|map|pair|perm)|opposite|partner", re.I)
_DRAWN = frozenset({"randperm", "permutation", "permute"})
"""Orders of samples, and of axes: no places are exchanged by them."""
_PARTS = re.compile(r"([_\-. ]+|(?<=[a-z])(?=[A-Z]))")
_CLASSES = re.compile(r"^(ys?|yb|y_?batch|m|msk|(seg|label|target|class)?_?(masks?|maps?)|labels?|targets?|seg\w*|parts?|gt|anno\w*)$", re.I)
_HEATMAPS = re.compile(r"^(hms?|heat_?maps?|hmaps?)$", re.I)


def sides_not_exchanged(program: Program) -> Iterator[Remark]:
    """A picture is flipped from left to right and its points with it, which are listed by side, and none changes its place."""
    listed = next((found for node in program.everywhere(ast.List, ast.Tuple) if (found := _both_sides(node)) is not None), None)
    if listed is None or _exchanges(program, len(listed[0].elts)):
        return
    for scope in program.scopes():
        for flip in own(scope, ast.Call, ast.Subscript):
            block = _block(program, flip) if _is_sideways(flip) else None
            mirrored = next((one for statement in block or () if (one := _mirrored(statement, flip)) is not None), None)
            if mirrored is not None:
                yield Remark(mirrored, f"{short(mirrored)} mirrors the points with the picture, and none changes its place: {listed[1]} lies then where {listed[2]} lies in a picture that is not flipped (line {listed[0].lineno})")
                return
            classes = next((one for statement in block or () if (one := _flipped_classes(statement, flip)) is not None), None)
            if classes is not None:
                yield Remark(classes, f"{short(classes)} flips the classes of the pixels with the picture, and none is exchanged: {listed[1]} stands then where {listed[2]} stands in a picture that is not flipped (line {listed[0].lineno})")
                return


def _flipped_classes(statement: ast.stmt, flip: ast.AST) -> ast.expr | None:
    """What flips the classes of each pixel in the same way, beside the flip of a picture."""
    for one in ast.walk(statement):
        if one is flip or not isinstance(one, ast.Call | ast.Subscript) or not _is_sideways(one) or flip in ast.walk(one):
            continue
        words = [{last_word(part) for part in ast.walk(node) if isinstance(part, ast.Name)} for node in (one, flip)]
        if any(_CLASSES.match(word) for word in words[0] - words[1]) and not any(_CLASSES.match(word) for word in words[1] - words[0]):
            return one
    return None


def _both_sides(node: ast.expr) -> tuple[ast.List | ast.Tuple, str, str] | None:
    """A list of names in which a part has a left and a right one: the list, and the two names."""
    if not isinstance(node, ast.List | ast.Tuple):
        return None
    words = [one.value for one in node.elts if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    if len(words) != len(node.elts) or len(words) < 3:
        return None
    for word in words:
        pieces = _PARTS.split(word)
        turned = "".join(_SIDES.get(piece.lower(), piece.lower()) for piece in pieces)
        other = next((one for one in words if one.lower() == turned), None)
        if other is not None and other != word:
            return node, word, other
    return None


def _exchanges(program: Program, count: int) -> bool:
    """Whether a program has an order of the points, or pairs of them."""
    made = [(last_word(one.targets[0]), one.value) for one in program.everywhere(ast.Assign)]
    drawn = {word for word, value in made if isinstance(value, ast.Call) and last_word(value.func) in _DRAWN} | _DRAWN
    drawn |= {word for word, value in made if word.lower() in ("pair", "pairs") and isinstance(value, ast.ListComp | ast.Call)}  # of samples and labels
    if any(_EXCHANGED.search(word) for one in program.everywhere(ast.Name, ast.Attribute) if (word := last_word(one)) not in drawn and _is_used(program, one)):
        return True
    for listed in program.everywhere(ast.List, ast.Tuple):
        numbers = [number_in(one) for one in getattr(listed, "elts", ())]
        if len(numbers) == count and None not in numbers and sorted(one or 0.0 for one in numbers) == list(range(count)):
            return True
    return any("replace" in text_of(one.func) and any(isinstance(arg, ast.Constant) and str(arg.value).lower().strip("_") in _SIDES for arg in one.args) for one in program.calls())


def _is_used(program: Program, node: ast.expr) -> bool:
    """Whether a name is read, and not only kept under the same one."""
    around = program.parent.get(node)
    kept = isinstance(around, ast.Assign) and any(last_word(one) == last_word(node) for one in around.targets)
    return isinstance(getattr(node, "ctx", None), ast.Load) and not kept


def _is_sideways(node: ast.expr) -> bool:
    """Whether something is flipped along its last axis."""
    if isinstance(node, ast.Subscript):
        last = node.slice.elts[-1] if isinstance(node.slice, ast.Tuple) and len(node.slice.elts) > 1 else None
        return isinstance(last, ast.Slice) and last.step is not None and text_of(last.step) == "-1"
    if is_method(node, "fliplr", "hflip") or is_call(node, "hflip", "fliplr"):
        return True
    if not is_method(node, "flip"):
        return False
    given = [*node.args, *(one.value for one in node.keywords)]
    axes = [text_of(one).strip("[](),") for one in given]
    return any(axis in ("-1", "2", "3") for axis in axes)


def _block(program: Program, node: ast.AST) -> list[ast.stmt] | None:
    """The statements beside the one that a node is in."""
    statement = next((one for one in (node, *program.parents(node)) if isinstance(one, ast.stmt)), None)
    around = program.parent.get(statement) if statement is not None else None
    for name in ("body", "orelse"):
        block = getattr(around, name, None)
        if isinstance(block, list) and statement in block:
            return block
    return None


def _mirrored(statement: ast.stmt, flip: ast.AST) -> ast.AST | None:
    """What a statement mirrors beside a flip: a column 0 that is taken off a length, or heat maps."""
    if not isinstance(statement, ast.Assign):
        return None
    for node in ast.walk(statement.value):
        if is_binary(node, ast.Sub) and isinstance(node.right, ast.Subscript) and _is_first_column(node.right):
            return node
        if isinstance(node, ast.Call | ast.Subscript) and node is not flip and _is_sideways(node):
            what = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else node.value if isinstance(node, ast.Subscript) else None
            given = [what, *node.args] if isinstance(node, ast.Call) else [what]
            if any(one is not None and _HEATMAPS.match(last_word(one.value if isinstance(one, ast.Subscript) else one)) for one in given):
                return node
    return None


def _is_first_column(node: ast.Subscript) -> bool:
    """Whether `points[:, 0]` or `points[..., 0]` is taken."""
    return isinstance(node.slice, ast.Tuple) and len(node.slice.elts) > 1 and number_in(node.slice.elts[-1]) == 0
