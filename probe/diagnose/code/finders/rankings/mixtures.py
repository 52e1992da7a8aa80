"""Mixtures of two distributions. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short


def mixture_of_logarithms(program: Program) -> Iterator[Remark]:
    """Two distributions are each compared with the mean of their logarithms, as if that were the logarithm of their mean."""
    computation = computation_of(program)
    compared: dict[int, tuple[Value, set[int]]] = {}
    for value in computation.of("kl_div", "sub"):
        if len(value.args) < 2:
            continue
        mixture, one = (value.args[1], value.args[0]) if value.op == "sub" else (value.args[0], value.args[1])
        mixture = _whole(mixture)
        parts = _parts(mixture)
        if len(parts) == 2 and (mine := _logarithm(one, parts)) is not None:
            first, seen = compared.setdefault(id(mixture), (value, set()))
            seen.add(id(mine))
            if len(seen) == 2:
                yield Remark(mixture.node, f"{short(mixture.node)} is the mean of two logarithms, and {short(first.node)} (line {first.line}) compares each of the two with it: the mean of the distributions themselves is another one")
                return


def _whole(value: Value) -> Value:
    """A value without an exponential and a logarithm that undo each other."""
    value = bare(value)
    while value.op == "log" and value.args and bare(value.args[0]).op == "exp":
        value = bare(bare(value.args[0]).args[0])
    return value


def _parts(mixture: Value, depth: int = 8) -> list[Value]:
    """The logarithms of probabilities that a value is a weighted sum of."""
    value = bare(mixture)
    if value.op in ("log_softmax", "logsoftmax") or (value.op == "log" and value.args and bare(value.args[0]).op == "softmax"):
        return [value] if depth < 8 else []
    if depth == 0 or value.named.keys() - {"dim"}:
        return []
    if value.op == "add" and len(value.args) == 2:
        left, right = (_parts(one, depth - 1) for one in value.args)
        return [*left, *right] if left and right else []
    if value.op in ("mul", "div") and len(value.args) == 2:
        inner = [(one, by) for one, by in (value.args, value.args[::-1])[: 2 if value.op == "mul" else 1] if not any(each.op in ("run", "log_softmax") for each in origins(by)) and (number(by) is None or (number(by) or 0) > 0)]
        return _parts(inner[0][0], depth - 1) if len(inner) == 1 else []
    if value.op in ("mean", "sum") and value.args and isinstance(rows := bare(value.args[0]), Many):
        found = [_parts(one, depth - 1) for one in rows.parts]
        return [one for each in found for one in each] if all(found) else []
    if value.op in ("mean", "sum") and value.args and bare(value.args[0]) is not value.args[0]:
        return _parts(value.args[0], depth - 1)
    return []


def _logarithm(value: Value, parts: list[Value]) -> Value | None:
    """Which of two logarithms a value is, or is the exponential of, or has the probabilities of."""
    value = bare(value)
    for one in parts:
        if value is one or (value.op == "exp" and value.args and bare(value.args[0]) is one) or (one.op == "log" and value is bare(one.args[0])):
            return one
        if value.op == "softmax" and one.op == "log_softmax" and value.args and value.args[0] is one.args[0]:
            return one
    return None
