"""Policies that learn from scaled observations, and are judged on others. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import KEPT, Value, bare, constant, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses

_PASSED = ("unsqueeze", "clamp", "either", "view", "reshape")


def raw_observations(program: Program) -> Iterator[Remark]:
    """A policy learns from observations of an environment that are centred and scaled, and is judged in another one of the same
    name on observations that are not."""
    computation = computation_of(program)
    learned = [one for _, loss in losses(computation) for one in origins(loss) if one.op == "run" and len(one.args) == 2]
    for trained in {id(one): one for one in learned}.values():
        world, scaled = _observed(trained.args[1])
        if world is None or scaled is None:
            continue
        for judged in computation.of("run"):
            if not judged.where.no_grad or len(judged.args) != 2 or judged.args[0] is not trained.args[0]:
                continue
            other, marks = _observed(judged.args[1])
            if other is not None and other is not world and marks is None and _name(other) == _name(world) and not any(one.args[0] is judged.args[0] and _observed(one.args[1]) == (world, None) for one in computation.of("run") if len(one.args) == 2):
                yield Remark(judged.node, f"{short(judged.node)} is given the observations of {short(other.node)} (line {other.line}) as they are, and those that the network learns from are scaled (line {scaled.line})")
                return


def _observed(value: Value) -> tuple[Value | None, Value | None]:
    """The environment whose observation a value is, and where it is centred and scaled."""
    scaled = None
    while value.args and (value.op in KEPT or value.op in _PASSED or (value.op in ("div", "sub") and len(value.args) == 2)):
        if value.op == "div" and bare(value.args[0]).op == "sub":
            scaled = value
        elif value.op == "div":
            return None, None
        value = value.args[0]
    while value.op == "part" and value.args:
        value = value.args[0]
    made = value.args[0] if value.op in ("reset", "step") and value.args else None
    return (made, scaled) if made is not None and _name(made) is not None else (None, None)


def _name(made: Value) -> str | None:
    """The name that an environment of a library is made by."""
    name = constant(made.args[0]) if made.op in ("gymnasium.make", "gym.make") and len(made.args) == 1 else None
    return name if isinstance(name, str) else None
