"""Codes that are scaled for a network, and decoded as it gives them. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses
from probe.diagnose.code.traits.updates import plain

_PARTS = ("part", "chunk", "split", "cat", "rows", "element")


def decoded_in_another_scale(program: Program) -> Iterator[Remark]:
    """A network learns of codes that were multiplied by a number, and what it draws is decoded without taking it out."""
    computation = computation_of(program)
    trained = [list(origins(loss)) for _, loss in losses(computation)]
    for scaled in computation.of("mul", "div"):
        code = _code(scaled)
        by = scaled.args[1] if code is not None and (_code_of(scaled.args[0]) is not None or _shifted(scaled.args[0]) is not None) else scaled.args[0]
        if code is None or number(by) == 1:
            continue
        learned = next((one for one in trained if any(each is scaled for each in one)), None)
        if learned is None:
            continue
        first = [one for whole in trained if not any(each is scaled for each in whole) for one in whole if one.op == "run" and len(one.args) > 1 and _is_decoder(one, code)]
        networks = {id(plain(one.args[0])) for one in learned if one.op == "run" and any(each is scaled for each in origins(one))}
        for decoded in computation.of("run"):
            if len(decoded.args) < 2 or not any(plain(decoded.args[0]) is plain(one.args[0]) for one in first) or id(plain(decoded.args[0])) in networks:
                continue
            made = list(origins(decoded.args[1]))
            if not any(one.op == "run" and id(plain(one.args[0])) in networks for one in made) or any(one.op == "run" and plain(one.args[0]) is plain(code.args[0]) for one in made):
                continue
            if not any(_takes_out(one, by) for one in made):
                yield Remark(decoded.node, f"{short(decoded.node)} decodes what was drawn as it is, and the network has learned of codes times a factor: {short(scaled.node)} (line {scaled.line})")
                return


def _code_of(value: Value) -> Value | None:
    """The layer's output that a value is, or a part of it."""
    value = bare(value, *_PARTS)
    return value if value.op == "run" and len(value.args) > 1 else None


def _shifted(value: Value) -> Value | None:
    value = bare(value)
    return _code_of(value.args[0]) if value.op == "sub" and len(value.args) == 2 and not any(one.op == "run" for one in [bare(value.args[1], *_PARTS)]) else None


def _code(value: Value) -> Value | None:
    """The code that a value scales: `code * s`, `(code - mean) / s`."""
    if len(value.args) != 2:
        return None
    for one, other in (value.args, value.args[::-1])[: 2 if value.op == "mul" else 1]:
        found = _code_of(one) or _shifted(one)
        if found is not None and _code_of(other) is None and (number(other) is not None or bare(other).op in ("std", "sqrt", "@input", "clamp", "div", "add")):
            return found
    return None


def _is_decoder(run: Value, code: Value) -> bool:
    """Whether a layer is the first one that is given a code, of the layer that has made one: as it is, or drawn around it."""
    return any(one.op == "run" and plain(one.args[0]) is plain(code.args[0]) for one in _up_to_layers(run.args[1])) and plain(run.args[0]) is not plain(code.args[0])


def _up_to_layers(value: Value) -> Iterator[Value]:
    """What a value is made of, up to the outputs of layers."""
    return origins(value, stop=("run",))


def _takes_out(value: Value, by: Value) -> bool:
    """Whether a value is a factor, or one by it, or has it among what it is made of."""
    if value is by or (value.op == by.op and value.op != "@constant" and same(value, by)):
        return True
    known, factor = number(value), number(by)
    return known is not None and factor is not None and known != 0 and (abs(known - factor) < 1e-9 * abs(factor) or abs(known * factor - 1) < 1e-6)
