"""Targets that no output of a network can reach, and those in numbers of bytes. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import KEPT, SHAPED, Many, Value, bare, number
from probe.diagnose.code.finders.data.scales import numbers_in
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.pictures import applied

FINDERS = Finders()
_REACHES = {"sigmoid": (0.0, 1.0), "softmax": (0.0, 1.0), "tanh": (-1.0, 1.0), "hardtanh": (-1.0, 1.0), "relu": (0.0, float("inf"))}
"""Between which numbers the results of operations lie."""
_DISTANCES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "sub", "binary_cross_entropy", "binary_cross_entropy_with_logits")
_MOVED = frozenset({"part", "rows", "element", "transpose", "permute", "flip", "roll", "cat", *(KEPT - {"either"}), *SHAPED})
_TOO_FAR = 0.3


def targets_out_of_reach(program: Program) -> Iterator[Remark]:
    """What a network gives goes through a function whose results are bounded, and its targets are normalized beyond the bounds."""
    computation = computation_of(program)
    said: set[int] = set()
    for loss in computation.of(*_DISTANCES):
        if len(loss.args) < 2 or loss.line in said or loss.where.no_grad or (loss.op == "sub" and not _is_squared(computation, loss)):
            continue
        for given, wanted in (loss.args[:2], loss.args[1::-1]) if not loss.op.startswith("binary") else (loss.args[:2],):
            output = bare(given)
            reach = (0.0, 1.0) if loss.op.startswith("binary") else _REACHES.get(output.op)
            made = _range_of(wanted) if reach is not None else None
            if reach is None or made is None or not _is_given(output) or (reach[0] - _TOO_FAR < made[1][0] and made[1][1] < reach[1] + _TOO_FAR):
                continue
            said.add(loss.line)
            low, high = made[1]
            what = "takes targets from 0 to 1" if loss.op.startswith("binary") else f"compares {short(output.node)} (line {output.line}), which lies between {reach[0]:g} and {reach[1]:g}"
            yield Remark(loss.node, f"{short(loss.node)} {what}, and {short(made[0].node)} (line {made[0].line}) brings the targets to {low:.2g}…{high:.2g}")
            break


def _is_squared(computation: Computation, value: Value) -> bool:
    return any(user.op in ("pow", "square", "abs", "norm") for user in computation.users(value))


def _is_given(output: Value) -> bool:
    """Whether a value is made of what a layer gives."""
    inner = output
    for _ in range(6):
        if inner.op == "run" and applied(inner) is None:
            return True
        if not inner.args:
            return False
        inner = bare(inner.args[0])
    return False


def _range_of(wanted: Value) -> tuple[Value, tuple[float, float]] | None:
    """Where numbers from 0 to 1 were normalized on their way into a target, and between which numbers they lie then."""
    for _ in range(60):
        if wanted.op == "div" and len(wanted.args) == 2:
            centred = bare(wanted.args[0], shapes=False)
            if centred.op != "sub" or len(centred.args) != 2:
                return None
            means, deviations = numbers_in(centred.args[1]), numbers_in(wanted.args[1])
            return _normalized(wanted, means, deviations)
        if wanted.op == "sub" and len(wanted.args) == 2 and number(wanted.args[1]) == 1:
            doubled = bare(wanted.args[0], shapes=False)
            twice = doubled.op in ("mul", "div") and any(number(one) in (2, 127.5) for one in doubled.args[-2:])
            return (wanted, (-1.0, 1.0)) if twice and (doubled.op == "mul") == any(number(one) == 2 for one in doubled.args) else None
        if applied(wanted) in ("Normalize", "normalize"):
            settings, place = (wanted.args[0], 0) if wanted.op == "run" else (wanted, 1)
            given = settings.argument("mean", place), settings.argument("std", place + 1)
            return None if given[0] is None or given[1] is None else _normalized(settings, numbers_in(given[0]), numbers_in(given[1]))
        if isinstance(wanted, Many) or not wanted.args or wanted.op not in _MOVED or (wanted.op in ("list", "tuple", "stack") and isinstance(wanted, Many)):
            return None
        wanted = wanted.args[0]
        if isinstance(wanted, Many) and len(wanted.parts) == 1:
            wanted = wanted.parts[0]
    return None


def _normalized(value: Value, means: tuple[float, ...], deviations: tuple[float, ...]) -> tuple[Value, tuple[float, float]] | None:
    if not means or not deviations or not 0.05 < min(means) <= max(means) < 1 or not 0 < min(deviations) <= max(deviations) < 1:
        return None
    return value, (min(-means[0] / deviations[0], -means[-1] / deviations[-1]), max((1 - means[0]) / deviations[0], (1 - means[-1]) / deviations[-1]))


@FINDERS.add("values-of-another-range")
def _targets_in_bytes(program: Program) -> Iterator[Remark]:
    """A binary cross-entropy is given a mask of bytes, 0 and 255, for a target."""
    computation = computation_of(program)
    for loss in computation.of("binary_cross_entropy", "binary_cross_entropy_with_logits"):
        target = loss.args[1] if len(loss.args) > 1 else loss
        for _ in range(40):
            found = next((one for one in (target, *computation.users(target)) if _writes_255(one, target)), None)
            if found is not None and target is not loss:
                yield Remark(loss.node, f"{short(loss.node)} takes targets from 0 to 1, and {short(found.node)} (line {found.line}) puts 255 there")
                return
            if isinstance(target, Many) or not target.args or target.op not in (*_MOVED, "set_item"):
                break
            target = target.args[0]
            if isinstance(target, Many) and len(target.parts) == 1:
                target = target.parts[0]


def _writes_255(value: Value, target: Value) -> bool:
    """Whether a value is a mask, the target, with 255 in some places, or numbers from 0 to 1 that were multiplied by 255."""
    if value.op == "set_item" and len(value.args) == 3 and (value is target or value.args[0] is target):
        return number(value.args[2]) == 255 and bare(value.args[0]).op in ("zeros", "zeros_like", "set_item", "full")
    if value is not target or value.op != "mul" or len(value.args) != 2:
        return False
    mask = next((one for one in value.args if number(one) is None), None)
    return mask is not None and any(number(one) == 255 for one in value.args) and bare(mask).op in ("lt", "gt", "le", "ge", "eq", "and")
