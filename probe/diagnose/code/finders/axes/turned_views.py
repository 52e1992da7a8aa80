"""Outputs for each pixel of turned pictures that are averaged as they are. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import KEPT, Many, Value, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short

FINDERS = Finders()
_TURNS = ("flip", "rot90", "fliplr", "flipud", "hflip", "vflip", "torchvision.transforms.functional.hflip", "torchvision.transforms.functional.vflip")
_EACH = frozenset({"softmax", "sigmoid", "log_softmax", "exp", "div", "mul", "squeeze", "interpolate", "unsqueeze", "tanh", "relu"}) | KEPT
_WHOLE = ("flatten", "mean", "view", "reshape", "amax", "max")
_CONVOLUTIONS = ("torch.nn.Conv2d", "torch.nn.ConvTranspose2d")


@FINDERS.add("flips-not-undone")
def _turned_views(program: Program) -> Iterator[Remark]:
    """A sum of what one network gives for each pixel of several views of a picture, one of which was turned and is not turned back."""
    computation = computation_of(program)
    for total in computation.of("add", "stack", "cat", "sum_of"):
        parts = _parts(computation, total)
        views = [(one, view) for one in parts if (view := _view(one)) is not None]
        for one, (last, turn) in views:
            if turn is None or not _is_another(turn, [other for each, (layer, other) in views if each is not one and layer is last], [given for each, (layer, other) in views if layer is last and other is None for given in origins(each)]):
                continue
            yield Remark(one.node, f"{short(one.node)} is what the network gives for {short(turn.node)} (line {turn.line}): it is added to that of another view of the picture, and nothing turns it back")
            return


def _parts(computation: Computation, total: Value) -> list[Value]:
    """What a sum, or a list that is averaged, is made of."""
    if total.op in ("stack", "cat", "sum_of"):
        given = total.args[0] if total.args else total
        averaged = total.op == "sum_of" or any(one.op in ("mean", "sum", "max", "median") for one in computation.users(total))
        return given.parts if isinstance(given, Many) and averaged and (number(total.argument("dim", 1)) or 0) == 0 else []
    if any(one.op == "add" for one in computation.users(total)):
        return []
    found, waiting = list[Value](), [total]
    while waiting:
        at = waiting.pop()
        if at.op == "add" and len(at.args) == 2:
            waiting += at.args
        else:
            found.append(at)
    return found


def _view(value: Value) -> tuple[Value, Value | None] | None:
    """The last layer of a network that gives something for each pixel, and the turn of the picture that it was given, if any;
    None where it is another output, or turned back."""
    while value.op in _EACH and value.args and not isinstance(value, Many):
        if value.op in ("div", "mul") and number(value.args[-1]) is None:
            return None
        value = value.args[0]
    if value.op != "run" or value.args[0].op not in _CONVOLUTIONS or len(value.args) != 2:
        return None
    at, turns = value.args[1], list[Value]()
    for _ in range(200):
        if at.op in _TURNS and at.args:
            turns.append(at)
            break
        if at.op in _WHOLE or (at.op == "run" and "Adaptive" in at.args[0].op):
            return None
        inner = at.args[1] if at.op == "run" and len(at.args) > 1 else at.args[0] if at.args and not isinstance(at, Many) else at.parts[0] if isinstance(at, Many) and at.parts else None
        if inner is None or at.op in ("rows", "element", "@input"):
            break
        at = inner
    turn = turns[0] if turns else None
    return None if turn is not None and not _is_of_pixels(turn) else (value.args[0], turn)


def _is_of_pixels(turn: Value) -> bool:
    """Whether a picture is turned in its plane: not the order of the samples or channels."""
    if turn.op not in ("flip", "rot90"):
        return True
    axes = turn.argument("dim", 2 if turn.op == "rot90" else 1)
    found = [number(one) for one in axes.parts] if isinstance(axes, Many) else [number(axes)]
    return all(one in (2, 3, -1, -2) for one in found)


def _is_another(turn: Value, others: list[Value | None], given: list[Value]) -> bool:
    """Whether another view of the same picture is turned otherwise, or not at all."""
    of = turn.args[0]
    if any(one.op in ("index", "element") and one.where.loops for each in (*turn.args[1:], *turn.named.values()) for one in origins(each)):
        return True  # another one in each turn of a loop
    if any(one is of for one in given) and None in others:
        return True
    return any(
        other is not None and other.args[0] is of and not (other.op == turn.op and len(other.args) == len(turn.args) and all(a is b or same(a, b) for a, b in zip(other.made_of(), turn.made_of(), strict=False)))
        for other in others
    )
