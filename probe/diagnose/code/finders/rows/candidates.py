"""Which candidate a loss, a match or a choice takes: positives among negatives, pairs of a match, boxes that are kept.
Pure; standard library only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    Many,
    Table,
    Value,
    bare,
    constant,
    is_none,
    number,
    origins,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import names_of, short
from probe.diagnose.code.traits.arithmetic import addends, is_distance, product, rectified, root_of
from probe.diagnose.code.traits.basic import squared
from probe.diagnose.code.traits.numberings import first_words

FINDERS = Finders()
_OVERLAPS = ("torchvision.ops.box_iou", "torchvision.ops.generalized_box_iou", "torchvision.ops.boxes.box_iou", "torchvision.ops.distance_box_iou")


def first_is_a_negative(program: Program) -> Iterator[Remark]:
    """The label 0 names the first of the candidates, and the positive one is put behind the others."""
    said: set[int] = set()
    for loss in computation_of(program).of("cross_entropy"):
        target = bare(loss.args[1]) if len(loss.args) > 1 else loss
        if target.op not in ("zeros", "new_zeros") or loss.line in said:
            continue
        for one in (bare(part) for part in product(loss.args[0]).above):
            parts = one.args[0].parts if one.op == "cat" and one.args and isinstance(one.args[0], Many) else []
            if len(parts) == 2 and number(one.argument("dim", 1)) in (1, -1) and _is_one(parts[1]) and not _is_one(parts[0]) and _is_many(parts[0]):
                said.add(loss.line)
                yield Remark(loss.node, f"{short(loss.node)} asks for the first candidate, and {short(one.node)} (line {one.line}) puts the score of the positive one, {short(parts[1].node)}, behind the others")


def _score(value: Value) -> Value:
    """What a score is computed by, without its factors and the axis that it was given."""
    inner = [one for one in product(value).above if number(one) is None]
    at = bare(inner[0]) if len(inner) == 1 else bare(value)
    if at.op == "part" and len(at.args) == 2 and isinstance(at.args[1], Many) and any(one.op == "@constant" and one.data is None for one in at.args[1].parts):
        return bare(at.args[0])  # x[:, None]
    return at


def _axes_left(score: Value) -> int | None:
    """How many axes an einsum leaves; None of all else."""
    pattern = constant(score.args[0]) if score.op == "einsum" and score.args else None
    return len(pattern.split("->")[1].strip()) if isinstance(pattern, str) and "->" in pattern else None


def _is_one(value: Value) -> bool:
    """Whether a value is one score for each row: a sum over products, in a column."""
    at = _score(value)
    return _axes_left(at) == 1 or at.op == "cosine_similarity" or (at.op == "sum" and bare(at.args[0]).op == "mul")


def _is_many(value: Value) -> bool:
    """Whether a value is a row of scores for each row."""
    at = _score(value)
    return _axes_left(at) == 2 or at.op == "matmul"


def angle_of_no_cosine(program: Program) -> Iterator[Remark]:
    """An angle is computed of a product of which one side has no unit length."""
    said: set[int] = set()
    for value in computation_of(program).of("acos", "sqrt", "pow"):
        inner = value.args[0] if value.op == "acos" and value.args else None
        root = root_of(value) if value.op != "acos" else None
        rest = bare(root, "clamp", "relu") if root is not None else None
        if rest is not None:
            parts = [(one, sign) for one, sign in addends(rest) if number(one) is None]
            whole = any(number(one) == 1 for one, _ in addends(rest))
            square = squared(bare(parts[0][0])) if len(parts) == 1 and parts[0][1] < 0 and whole else None
            inner = square
        scores = bare(inner, "clamp", "diag", "diagonal") if inner is not None else None
        if scores is None or scores.op not in ("linear", "matmul") or len(scores.args) < 2 or scores.line in said:
            continue
        units = [_has_unit_length(one) for one in scores.args[:2]]
        free = next((one for one, unit in zip(scores.args[:2], units, strict=True) if not unit), None)
        if sum(units) == 1 and free is not None and _is_free(free):
            said.add(scores.line)
            yield Remark(scores.node, f"{short(scores.node)} is taken for a cosine in line {value.line}, and {short(free.node)} has no unit length")


def _has_unit_length(value: Value) -> bool:
    """Whether vectors are divided by their length, or may be."""
    for one in origins(value, stop=("run", "torch.nn.Parameter", "randn", "empty")):
        if one.op in ("normalize", "renorm", "div", "unknown", "@input", "either") or "norm" in one.op:
            return True
    return False


def _is_free(value: Value) -> bool:
    """Whether a value is a parameter, or what a layer gives, as it is."""
    inner = bare(value, "T", "t", "transpose")
    return inner.op in ("torch.nn.Parameter", "run", "weight")


def matched_to_the_unlikely(program: Program) -> Iterator[Remark]:
    """A match of the smallest cost is made, and what is likely, or overlaps, costs more."""
    said: set[int] = set()
    for value in computation_of(program).of("scipy.optimize.linear_sum_assignment"):
        most = value.argument("maximize", 1)
        if not value.args or value.line in said or (most is not None and constant(most) is not False):
            continue
        for one, sign in addends(value.args[0]):
            factors = product(one)
            for part in factors.above:
                sign = sign * (-1 if (number(part) or 0) < 0 else 1)
            sign *= factors.sign
            liked = [part for part in map(_unrolled, factors.above) if part.op in ("softmax", "sigmoid", "cosine_similarity", *_OVERLAPS)]
            others = [part for part in factors.above if _unrolled(part) not in liked and number(part) is None and bare(part).op not in ("@input",)]
            if len(liked) == 1 and not others and not factors.below and sign > 0 and value.line not in said:
                said.add(value.line)
                yield Remark(value.node, f"{short(value.node)} looks for the smallest sum, and {short(liked[0].node)} (line {liked[0].line}) is added to the cost: what is least alike is matched")


def _unrolled(value: Value) -> Value:
    for _ in range(8):
        value = bare(value, "part", "gather", "index_select")
        if value.op != "part" or not value.args:
            return value
        value = value.args[0]
    return value


def worst_kept(program: Program) -> Iterator[Remark]:
    """Boxes that overlap another one are left out, from the one of the smallest score on."""
    computation = computation_of(program)
    said: set[int] = set()
    for order in computation.of("argsort"):
        given = bare(order.args[0]) if order.args else order
        down = constant(order.argument("descending", 2))
        if down is True or given.op == "neg" or order.line in said or any(user.op in ("flip", "neg", "flipud") or _backwards(user) for user in computation.users(order)):
            continue
        if order.argument("descending", 2) is not None and down is None:
            continue
        loops = [one for one in computation.of("part") if len(one.args) == 2 and bare(one.args[0]) is order and one.where.loops != order.where.loops]
        first = next((one for one in loops if number(one.args[1]) == 0), None)
        rest = next((one for one in loops if one.args[1].op == "slice" and len(one.args[1].args) == 3 and number(one.args[1].args[0]) == 1 and is_none(one.args[1].args[1])), None)
        certain = any(re.search(r"score|conf|prob|certain", one, re.I) for one in names_of(order.node)) or any(one.op in ("sigmoid", "softmax") for one in origins(given))
        if first is None or rest is None or not certain or not _overlaps_between(computation.of("part"), first, rest):
            continue
        said.add(order.line)
        yield Remark(order.node, f"{short(order.node)} begins with the smallest, and {short(first.node)} (line {first.line}) is kept while what overlaps it is left out: of each group the worst stays")


def _backwards(user: Value) -> bool:
    index = user.args[1] if user.op == "part" and len(user.args) == 2 else user
    return index.op == "slice" and len(index.args) == 3 and number(index.args[2]) == -1


def _overlaps_between(parts: Iterator[Value], first: Value, rest: Value) -> bool:
    """Whether one array is read both at the first of an order and at all others of it."""
    read: dict[int, set[int]] = {}
    for one in parts:
        if len(one.args) == 2:
            for inner in origins(one.args[1], stop=("argsort",)):
                if inner is first or inner is rest:
                    read.setdefault(id(one.args[0]), set()).add(id(inner))
    return any(len(found) == 2 for found in read.values())


@FINDERS.add("easiest-mined")
def _farthest_of_several(program: Program) -> Iterator[Remark]:
    """Of all pairs that a margin pushes apart, the ones with the largest distances are taken."""
    computation = computation_of(program)
    said: set[int] = set()
    for choice in computation.of("topk", "argpartition", "argsort"):
        given = choice.args[0] if choice.args else choice
        most = constant(choice.argument("largest" if choice.op == "topk" else "descending", 3))
        largest = most is not False if choice.op == "topk" else most is True
        turned = bare(given)
        if turned.op == "neg" or (turned.op == "mul" and any(number(one) == -1 for one in turned.args)):
            largest = not largest
            turned = turned.args[0] if turned.op == "neg" else next(one for one in turned.args if number(one) is None)
        if not largest or choice.line in said or _backwards_use(computation.users(choice)):
            continue
        source = _distances(turned)
        if source is None or not _asks_labels(turned):
            continue
        if choice.op == "topk":
            pushed = any(inner is not None and any(sign < 0 and any(part is choice for part in origins(one)) for one, sign in addends(inner)) for hinge in computation.of("relu", "clamp") for inner in (rectified(hinge),))
        else:
            pushed = any(_pushes(hinge, choice, source) for hinge in computation.of("relu", "clamp"))
        if pushed:
            said.add(choice.line)
            yield Remark(choice.node, f"{short(choice.node)} takes the largest distances, and a margin pushes those pairs apart: they are the farthest from each other already")


def _backwards_use(users: list[Value]) -> bool:
    """Whether a choice is read from its end."""
    for one in users:
        index = one.args[1] if one.op == "part" and len(one.args) == 2 else one
        if index.op == "slice" and len(index.args) == 3 and (number(index.args[2]) == -1 or (not is_none(index.args[0]) and number(index.args[0]) != 0)):
            return True
    return False


def _distances(value: Value) -> Value | None:
    """The distances that a value holds, where a mask may have replaced some by a small number."""
    for _ in range(6):
        value = bare(value, "part")
        if value.op == "masked_fill" and len(value.args) == 3:
            filled = number(bare(value.args[2]))
            if filled is None or filled > 0:
                return None
            value = value.args[0]
        elif is_distance(value):
            return value
        elif value.op in ("numpy", "detach", "part") and value.args:
            value = value.args[0]
        else:
            return None
    return None


def _asks_labels(value: Value) -> bool:
    return any(one.op in ("eq", "ne") for one in origins(value, stop=("run",)))


def _pushes(hinge: Value, choice: Value, source: Value) -> bool:
    """Whether a margin is compared with a distance between the rows that a choice has picked by their distance."""
    inner = rectified(hinge)
    for one, sign in addends(inner) if inner is not None else ():
        if sign < 0 and any(part is choice for part in origins(one)) and is_distance(one) and any(number(other) is not None or other.op == "@input" for other, by in addends(inner) if by > 0):  # type: ignore[arg-type]
            return True
    return False


_DETECTORS = tuple(
    f"torchvision.models.detection.{name}" for name in (
        "fasterrcnn_resnet50_fpn", "fasterrcnn_resnet50_fpn_v2", "fasterrcnn_mobilenet_v3_large_fpn", "fasterrcnn_mobilenet_v3_large_320_fpn", "maskrcnn_resnet50_fpn",
        "maskrcnn_resnet50_fpn_v2", "keypointrcnn_resnet50_fpn", "FasterRCNN", "MaskRCNN", "ssd300_vgg16", "ssdlite320_mobilenet_v3_large",
    )
)


def objects_for_background(program: Program) -> Iterator[Remark]:
    """A detector of torchvision, which takes the label 0 for the background, is given objects of the label 0."""
    computation = computation_of(program)
    detector = next(computation.of(*_DETECTORS), None)
    if detector is None:
        return
    said: set[int] = set()
    for value, boxes in _targets(computation):
        label = bare(value)
        first = None
        none = boxes is None or bare(boxes).op in ("zeros", "empty", "either") or value.op == "either" or (bool(label.args) and _is_empty(label.args[0]))
        if none:
            continue
        if label.op in ("zeros", "new_zeros") and "int64" in str([one.data for one in (*label.args, *label.named.values()) if one.op == "@library"]):
            first = label
        elif not any(one.op == "add" for one in origins(label, stop=("dict",))) and not _names_background(program):
            numbers = list(first_words(computation, label)) or [found for one in origins(value, stop=("dict",)) if (found := _smallest(one)) is not None]
            if numbers and all(known == 0 for known, _ in numbers):
                first = numbers[0][1]
        if first is not None and boxes is not None and value.line not in said:
            said.add(value.line)
            yield Remark(value.node, f"{short(value.node)} holds the label 0, which {short(first.node)} (line {first.line}) gives to objects, and {short(detector.node)} (line {detector.line}) takes for the background")


def _targets(computation: Computation) -> Iterator[tuple[Value, Value | None]]:
    """The labels and the boxes of each target of a detector."""
    tables = [one for one in computation.values if isinstance(one, Table)]
    tables += [one for given in computation.returned.values() for whole in given for one in origins(whole) if isinstance(one, Table)]
    for table in tables:
        labels, boxes = table.entries.get("labels"), table.entries.get("boxes")
        if labels is not None and boxes is not None:
            yield labels, boxes


def _is_empty(size: Value) -> bool:
    """Whether a size is 0."""
    return number(size.parts[0] if isinstance(size, Many) and size.parts else size) == 0


def _smallest(value: Value) -> tuple[float, Value] | None:
    """The smallest of the numbers that a name may stand for."""
    numbers = [number(one) for one in value.args] if value.op == "either" else []
    known = [one for one in numbers if one is not None]
    return (min(known), value) if len(known) > 1 and len(known) == len(numbers) else None


def _names_background(program: Program) -> bool:
    """Whether a program names what is no object."""
    words = [one.value.lower().strip("_<>[]") for one in program.everywhere(ast.Constant) if isinstance(one.value, str)]
    return any(one in ("background", "bg", "none", "nothing", "pad", "padding", "unlabeled", "n/a") for one in words)
