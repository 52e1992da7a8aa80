"""Sizes that a network learns as logarithms of ratios, and that its output is read back from. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import module
from probe.diagnose.code.traits.basic import LOSSES

_PASSED = ("part", "unbind", "chunk", "split", "clamp", "cat", "stack", "permute", "transpose", "add", "sub", "index_select", "gather", "masked_select", "minimum", "tensor_split")


def read_on_another_scale(program: Program) -> Iterator[Remark]:
    """A network learns the logarithm of a ratio, divided by a number, and the exponential is taken of its output as it is; or the
    other way round."""
    computation = computation_of(program)
    learned = list(_learned(computation))
    for value in computation.of("exp") if learned else ():
        if not value.args or not any(user.op == "mul" for user in computation.users(value)):
            continue
        layers, factor, scaled = _read(value.args[0])
        known = [(log, by) for log, by, of in learned if of & layers]
        if not known or len({one[1] is None for one in known}) > 1 or any(one[0].number > value.number and one[0] is value for one in known):
            continue
        log, by = known[0]
        if by is not None and not scaled:
            yield Remark(value.node, f"{short(value.node)} takes what the network gives as it is, and the network learns {short(log.node)} (line {log.line}) {'times' if by[0].op == 'mul' else 'divided by'} {short(by[1].node)}")
            return
        if by is None and scaled and factor is not None:
            yield Remark(value.node, f"{short(value.node)} multiplies what the network gives by {short(factor.node)}, and the network learns {short(log.node)} (line {log.line}) as it is")
            return


def _learned(computation: Computation) -> Iterator[tuple[Value, tuple[Value, Value] | None, set[int]]]:
    """Logarithms of ratios that a network learns, with what they are divided by or multiplied with, and the layers that learn them."""
    for loss in computation.of(*LOSSES):
        if loss.where.no_grad or len(loss.args) < 2:
            continue
        for made, target in (loss.args[:2], loss.args[1::-1]):
            layers = _read(made)[0]
            parts = list(origins(target, ("log",))) if layers else []
            if any(one.op == "run" for one in parts):
                continue
            for log in parts:
                if log.op == "log" and log.args and bare(log.args[0]).op == "div":
                    around = [(one, other) for one in parts if one.op in ("div", "mul") for side, other in _sides(one) if any(each is log for each in origins(side, ("log",)))]
                    scales = [(one, other) for one, other in around if _is_scale(other)]
                    if len(around) == len(scales) < 2:
                        yield log, scales[0] if scales else None, layers


def _sides(value: Value) -> list[tuple[Value, Value]]:
    """What a factor may be of, each with the factor; of a quotient, what is divided."""
    if len(value.args) != 2:
        return []
    return [(value.args[0], value.args[1]), *([(value.args[1], value.args[0])] if value.op == "mul" else [])]


def _read(value: Value) -> tuple[set[int], Value | None, bool]:
    """The last layers that give a value, what multiplies their output, and whether anything does; no layers where other things are
    done with it."""
    layers: set[int] = set()
    factor, scaled = None, False
    waiting, seen = [value], set()
    while waiting:
        at = bare(waiting.pop())
        if id(at) in seen:
            continue
        seen.add(id(at))
        if at.op == "run" and len(at.args) > 1:
            layers.add(id(module(at.args[0])))
        elif isinstance(at, Many):
            waiting.extend(at.parts)
        elif at.op in ("mul", "div") and len(at.args) == 2:
            waiting.extend(at.args)
            for one, other in (at.args, at.args[::-1]):
                if any(each.op == "run" for each in origins(one)) and not any(each.op == "run" for each in origins(other)) and number(other) != 1:
                    factor, scaled = other, True
        elif at.op in _PASSED and at.args:
            waiting.extend(at.args if at.op in ("add", "sub") else at.args[:1])
        elif any(one.op == "run" for one in origins(at)):
            return set(), None, False
    return layers, factor, scaled


def _is_scale(value: Value) -> bool:
    """Whether a value is a number, or a few of them, that no data are in."""
    value = bare(value)
    if value.op == "part" and len(value.args) == 2:
        value = bare(value.args[0])
    if number(value) is not None:
        return number(value) not in (0, 1)
    return isinstance(value, Many) and len(value.parts) <= 4 and bool(value.parts) and all(number(one) is not None for one in value.parts) and not all(number(one) == 1 for one in value.parts)
