"""Rates of learning that fall from layer to layer. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Table, Value, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.backwards import layers_of
from probe.diagnose.code.traits.held import optimizers
from probe.diagnose.code.traits.updates import plain


def later_layers_slower(program: Program) -> Iterator[Remark]:
    """The rate of each layer is that of the one before it times a number below 1: the first layers change most, and the last ones least."""
    computation = computation_of(program)
    for optimizer in optimizers(computation):
        given = optimizer.argument("params", 0)
        tables = list(_groups(given)) if given is not None else []
        for table in tables:
            falling = _falls_with_its_place(computation, table)
            if falling is not None:
                yield Remark(falling.node, f"{short(falling.node)} is the smaller the later a block comes: the first blocks change most, and the last ones least")
                return
        steps = [(place, rate, lr) for one in tables if (lr := one.entries.get("lr")) is not None and (rate := number(lr)) is not None and (place := _first_run(computation, one)) is not None]
        steps.sort(key=lambda one: one[0])
        ratios = [later[1] / earlier[1] for earlier, later in pairwise(steps) if earlier[1]]
        falls = next((place for place in range(len(ratios) - 2) if 0.2 < ratios[place] < 0.99 and all(abs(one - ratios[place]) < 1e-6 for one in ratios[place : place + 3])), None)
        if len(steps) == len(tables) and len(ratios) == len(steps) - 1 and falls is not None:
            slower = steps[falls + 1][2]
            yield Remark(slower.node, f"{short(slower.node)} is {ratios[falls]:.3g} times the rate of the layer before, in the order in which they are called: the first layers change most, and the last ones least")
            return


def _groups(value: Value, depth: int = 5) -> Iterator[Table]:
    """The groups of parameters in a list, and in the lists that it is made of."""
    if isinstance(value, Table):
        yield value
    elif depth and (isinstance(value, Many) or value.op in ("star", "add", "list", "element")):
        for one in value.made_of():
            yield from _groups(one, depth - 1)


def _falls_with_its_place(computation: Computation, table: Table) -> Value | None:
    """The rate of a group, where it is a power of a number below 1 by the place of its block."""
    rate = table.entries.get("lr")
    for one in origins(rate) if rate is not None else ():
        base = number(one.args[0]) if one.op == "pow" and len(one.args) == 2 else None
        place = one.args[1] if base is not None and 0 < base < 1 else one
        if one.op == "pow" and place.op == "index" and rate is not None and rate.op in ("mul", "pow") and (len(place.args) < 2 or number(place.args[0]) == 0):
            held, loops = table.entries.get("params"), place.where.loops
            over = [each for _, node, each in computation.passes if loops and node is loops[-1]]
            turned = any(each.op in ("reversed", "flip") or (each.op == "slice" and number(each.args[-1]) == -1) for one in over for each in origins(one))
            if held is not None and any(each.op == "parameters" and each.where.loops == loops for each in (held, *held.args)) and over and not turned:
                return rate
    return None


def _first_run(computation: Computation, table: Table) -> int | None:
    """When the layer of a group is first called."""
    held = table.entries.get("params")
    held = held.args[0] if held is not None and held.op in ("list", "tuple") and held.args else held
    layer = held.args[0] if held is not None and held.op == "parameters" and held.args else None
    inner = {id(plain(one)) for one in layers_of(layer)} if layer is not None else set()
    return next((one.number for one in computation.of("run") if one.args and id(plain(one.args[0])) in inner), None)
