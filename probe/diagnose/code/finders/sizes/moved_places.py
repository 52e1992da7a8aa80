"""Places that are learned on a coarser grid, moved with a crop, or lie on a circle. Pure; standard library only."""

from __future__ import annotations

import math
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import module
from probe.diagnose.code.traits.basic import LOSSES
from probe.diagnose.code.traits.uses import data_of

_PLACES = ("argmax", "argmin", "max", "topk")
_APART = ("mod", "remainder", "floordiv", "divmod", "unravel_index", "div")
_TURNED = ("minimum", "maximum", "mod", "remainder", "fmod", "where", "sin", "cos", "atan2", "angle", "unwrap", "min", "either")


def left_on_the_coarse_grid(program: Program) -> Iterator[Remark]:
    """A network learns places divided by a number, and the place of its largest output is compared with places as they are."""
    computation = computation_of(program)
    learned: list[tuple[Value, Value, set[int]]] | None = None
    for value in computation.of("sub", "cdist", "mse_loss", "l1_loss"):
        for made, other in (value.args[:2], value.args[1::-1]) if len(value.args) > 1 else ():
            parts = list(origins(made, (*_PLACES, "shape", "size", "run")))
            if not any(one.op in _APART and one.args and _is_place(one.args[0]) for one in parts) or any(one.op in ("mul", "interpolate") for one in parts):
                continue
            layers = _layers(made)
            learned = list(_divided(computation)) if learned is None else learned
            root = data_of(other)
            found = next((one for one in learned if one[2] & layers and one[1].op == root.op and one[1].node is root.node), None)
            if found is not None and root.op not in ("div", "floordiv", "mul") and not any(one.op in ("interpolate", "upsample") or "Upsample" in one.op for one in origins(made)):
                by = found[0].args[1]
                yield Remark(value.node, f"{short(value.node)} compares places as they are with {short(made.node)}, a place in the output of the network, which learns {short(found[0].node)} (line {found[0].line}): nothing multiplies it by {short(by.node)}")
                return


def _is_place(value: Value) -> bool:
    value = bare(value)
    return value.op in ("argmax", "argmin") or (value.op == "part" and len(value.args) == 2 and value.args[0].op in ("max", "topk") and number(value.args[1]) == 1)


def _layers(value: Value) -> set[int]:
    """The last layers that a value is made of."""
    return {id(module(one.args[0])) for one in origins(value, ("run",)) if one.op == "run" and one.args}


def _divided(computation: Computation) -> Iterator[tuple[Value, Value, set[int]]]:
    """Quotients of points that a target is made of: the quotient, the points, and the layers that learn it."""
    for loss in computation.of(*LOSSES):
        if loss.where.no_grad or len(loss.args) < 2:
            continue
        for made, target in (loss.args[:2], loss.args[1::-1]):
            layers = _layers(made)
            parts = list(origins(target)) if layers else []
            for one in parts if not any(each.op == "run" for each in parts) else ():
                if one.op in ("div", "floordiv") and len(one.args) == 2 and (number(one.args[1]) or 0) >= 2 and data_of(one.args[0]).op not in ("sub", "pow", "square", "neg"):
                    yield one, data_of(one.args[0]), layers


def moved_against_the_crop(program: Program) -> Iterator[Remark]:
    """A picture is cut from a place on, and the place is added to its points or boxes, from which it has to be taken away."""
    computation = computation_of(program)
    drawn = {id(one.args[1]) for one in computation.of("set_item") if len(one.args) > 1}
    crops = [(one, begins) for one in computation.of("part") if (begins := _begins(one)) and id(one.args[1]) not in drawn]
    for value in computation.of("add") if crops else ():
        for points, offset in (value.args[:2], value.args[1::-1]) if len(value.args) > 1 else ():
            if bare(points).op not in ("part", "element", "@input") or data_of(points).op in ("shape", "size", "len", "randint", "range", "@constant") or any(one.op == "run" for one in origins(points)):
                continue
            parts = _numbers(offset)
            if len(parts) < 2 and not any(user.op == "set_item" and len(user.args) == 3 and user.args[2] is value and data_of(user.args[0]) is data_of(points) for user in computation.users(value)):
                continue
            crop = next((one for one, begins in crops if parts and all(id(each) in begins for each in parts) and one.where.functions == value.where.functions and one.where.loops == value.where.loops), None)
            if crop is not None and not any(one is crop for one in origins(points)) and _go_together(computation, crop, value):
                yield Remark(value.node, f"{short(value.node)} adds where {short(crop.node)} (line {crop.line}) begins: in the piece that is cut out, each place lies that much nearer to the beginning, and not farther away")
                return


def _begins(value: Value) -> set[int]:
    """Where a piece that is cut out of a picture begins along two axes, if that is drawn or computed."""
    index = value.args[1] if len(value.args) == 2 else value
    cuts = [one for one in index.parts if one.op == "slice" and len(one.args) == 3] if isinstance(index, Many) else []
    begun = [bare(one.args[0]) for one in cuts if one.args[1].op == "add" and any(bare(side) is bare(one.args[0]) for side in one.args[1].args)]
    return {id(one) for one in begun} if len(begun) == 2 and all(number(one) is None for one in begun) else set()


def _numbers(value: Value) -> list[Value]:
    """A number, or those in a list or array."""
    value = bare(value)
    return [bare(one) for one in value.parts] if isinstance(value, Many) else [value]


def _go_together(computation: Computation, crop: Value, moved: Value) -> bool:
    """Whether a piece and the moved points are given away as one sample."""
    given = [one for found in computation.returned.values() for one in found]
    for one in (*computation.of("tuple", "list"), *given):
        parts = list(one.made_of()) if one.where.functions == crop.where.functions else []
        if any(_has(part, crop) for part in parts) and any(_has(part, moved) and not _has(part, crop) for part in parts):
            return True
    return False


def _has(value: Value, other: Value) -> bool:
    return any(one is other for one in origins(value))


def straight_through_the_circle(program: Program) -> Iterator[Remark]:
    """Angles that are brought to one turn are subtracted, and the size of the difference is the error: two angles on both sides of 0
    are nearly a turn apart."""
    computation = computation_of(program)
    for value in computation.of("sub", "l1_loss", "mse_loss"):
        if len(value.args) < 2 or not (value.where.no_grad or not any(one.op == "backward" and _has(one, value) for one in computation.of("backward"))):
            continue
        turn = next((found for one in value.args[:2] if (found := _one_turn(one)) is not None), None) if not any(number(one) is not None for one in value.args[:2]) else None
        if turn is None or (value.op == "sub" and not any(user.op in ("abs", "pow", "square", "norm") for user in computation.users(value))):
            continue
        if not _is_turned_back(computation, value):
            yield Remark(value.node, f"{short(value.node)} takes the difference of two angles as it is, and {short(turn.node)} (line {turn.line}) brings them to one turn: just above 0 and just below the whole turn are almost a turn apart")
            return


def _one_turn(value: Value) -> Value | None:
    """Where an angle is brought to one whole turn: `atan2(y, x) % 360`, or a turn is added to what is below 0."""
    for _ in range(8):
        value = bare(value, "rad2deg", "degrees", "deg2rad") if value.op != "either" else value
        if value.op not in ("mul", "div") or len(value.args) != 2 or not (number(value.args[1]) is not None or value.args[1].op == "@library"):
            break
        value = value.args[0]
    if not any(one.op in ("atan2", "angle", "arctan2") for one in origins(value)):
        return None
    if value.op in ("mod", "remainder") and len(value.args) == 2 and _is_whole_turn(value.args[1]):
        return value
    if value.op == "set_item" and len(value.args) == 3 and value.args[1].op in ("lt", "le") and value.args[2].op == "add":
        return value if any(map(_is_whole_turn, value.args[2].args)) else None
    if value.op == "where" and len(value.args) == 3 and value.args[0].op in ("lt", "ge", "gt", "le"):
        added = [one for one in value.args[1:] if one.op == "add" and any(map(_is_whole_turn, one.args))]
        return value if len(added) == 1 else None
    return None


def _is_whole_turn(value: Value) -> bool:
    """Whether a number is 360, or twice the number pi."""
    known = number(value)
    if known is not None:
        return any(abs(known - one) < 0.01 for one in (360.0, 2 * math.pi))
    factors = list(value.args) if value.op == "mul" and len(value.args) == 2 else []
    return any(number(one) == 2 for one in factors) and any(one.op == "@library" and str(one.data).rpartition(".")[2] == "pi" for one in factors)


def _is_turned_back(computation: Computation, value: Value, depth: int = 6) -> bool:
    """Whether anything that is done with a difference takes the shorter way round."""
    for user in computation.users(value) if depth else ():
        if user.op in _TURNED or (user.op == "sub" and any(number(one) is not None for one in user.args)) or _is_turned_back(computation, user, depth - 1):
            return True
    return False


def border_not_taken_away(program: Program) -> Iterator[Remark]:
    """A network learns places that were scaled and moved by a border, and its output is divided by the scale alone."""
    computation = computation_of(program)
    learned = list(_scaled_and_moved(computation))
    for moved, scale, layers in learned:
        back = [one for one in computation.of("div") if len(one.args) == 2 and bare(one.args[1]).node is scale.node and bare(one.args[1]).op == scale.op and _layers(one.args[0]) & layers]
        if back and not any(_is_moved_back(computation, one) for one in back):
            offset = next(side for side in moved.args if not any(bare(part) is scale for part in bare(side).args))
            yield Remark(back[0].node, f"{short(back[0].node)} takes back the scale alone, and the network learns {short(moved.node)} (line {moved.line}): {short(offset.node)} is not taken away")
            return


def _scaled_and_moved(computation: Computation) -> Iterator[tuple[Value, Value, set[int]]]:
    """Sums of scaled places and a border that a target is made of: the sum, the scale, and the layers that learn it."""
    for loss in computation.of(*LOSSES):
        for made, target in (loss.args[:2], loss.args[1::-1]) if len(loss.args) > 1 and not loss.where.no_grad else ():
            layers = _layers(made)
            parts = list(origins(target)) if layers else []
            for one in parts if not any(each.op == "run" for each in parts) else ():
                if one.op != "add" or len(one.args) != 2:
                    continue
                for product, offset in (one.args, one.args[::-1]):
                    inner = bare(product)
                    scale = next((bare(each) for each in inner.args if bare(each).op in ("div", "min", "minimum")), None) if inner.op == "mul" and len(inner.args) == 2 else None
                    if scale is not None and number(scale) is None and number(offset) is None and bare(offset) is not scale and not any(bare(each) is scale or each.op in ("randn", "randn_like", "normal") for each in origins(offset, ("round", "int", "shape"))):
                        yield one, scale, layers


def _is_moved_back(computation: Computation, value: Value) -> bool:
    """Whether anything is taken away from an output before it is divided, or from the quotient."""
    return any(one.op in ("sub", "set_item", "neg") for one in origins(value.args[0], ("run",))) or any(
        user.op == "set_item" or (user.op == "sub" and any(one.op == "div" and one is not value and bare(one.args[1]).node is bare(value.args[1]).node for side in user.args for one in origins(side, ("run",))))
        for user in computation.users(value)
    )
