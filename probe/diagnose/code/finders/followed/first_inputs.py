"""What each layer says of the first input, while the input goes on from layer to layer. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, origins
from probe.diagnose.code.finders.objectives.densities_and_guidance import (
    added,
    is_log_density,
    over_axes,
    unscaled,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short

_LOGARITHMS = ("log", "log1p", "logdet", "slogdet", "tanh", "sum")


def determinant_at_the_first_input(program: Program) -> Iterator[Remark]:
    """A loop turns a sample layer by layer, and adds up what each layer says of the sample as it was before the loop; the sum
    is added to a log density."""
    computation = computation_of(program)
    wholes = [one for one in computation.of("add", "sub") if any(_is_density(part) for part in added(one))]
    for loop in program.everywhere(ast.For) if wholes else ():
        assert isinstance(loop, ast.For)
        layers = {one.id for one in ast.walk(loop.target) if isinstance(one, ast.Name)}
        carried = _carried(loop, layers)
        for call, name in _asked(loop, layers, {target for target, _ in carried}):
            onward = next((node for target, node in carried if _began_as(program, loop, target, name)), None)
            if onward is None or not _is_added(computation, loop, call, wholes):
                continue
            yield Remark(call, f"{short(call)} asks each layer about {name}, the sample as it is before the loop, and {short(onward)} (line {onward.lineno}) gives the layer what the layers before have made of it")
            return


def _is_density(value: Value) -> bool:
    """Whether a value is a log density of each sample, or a mean of such."""
    value = unscaled(value)
    if value.op == "mean" and len(value.args) == 1:
        return any(_is_density(one) for one in added(value.args[0]))
    return value.op == "log_prob" or (value.op == "sum" and over_axes(value) and is_log_density(value))


def _carried(loop: ast.For, layers: set[str]) -> list[tuple[str, ast.expr]]:
    """The names that each pass sets to what a layer makes of them."""
    found = list[tuple[str, ast.expr]]()
    for one in ast.walk(loop):
        if not isinstance(one, ast.Assign) or len(one.targets) != 1:
            continue
        first = one.targets[0].elts[0] if isinstance(one.targets[0], ast.Tuple) and one.targets[0].elts else one.targets[0]
        if isinstance(first, ast.Name) and isinstance(one.value, ast.Call) and _is_of_a_layer(one.value, layers) and [first.id] == [arg.id for arg in one.value.args if isinstance(arg, ast.Name)][:1]:
            found.append((first.id, one.value))
    return found


def _is_of_a_layer(call: ast.Call, layers: set[str]) -> bool:
    return any(isinstance(one, ast.Name) and one.id in layers for one in ast.walk(call.func))


def _asked(loop: ast.For, layers: set[str], carried: set[str]) -> Iterator[tuple[ast.Call, str]]:
    """Calls of a layer with one name alone that no pass sets."""
    set_here = {one.id for one in ast.walk(loop) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    for call in ast.walk(loop) if carried else ():
        if isinstance(call, ast.Call) and _is_of_a_layer(call, layers) and len(call.args) == 1 and isinstance(call.args[0], ast.Name) and call.args[0].id not in set_here:
            yield call, call.args[0].id


def _began_as(program: Program, loop: ast.For, target: str, name: str) -> bool:
    """Whether a name is given another one before a loop: `z = z0`."""
    before = [one for one in ast.walk(program.frame(loop)) if isinstance(one, ast.Assign) and one.lineno < loop.lineno]
    mine = [one for one in before if any(isinstance(each, ast.Name) and each.id == target for goal in one.targets for each in ast.walk(goal))]
    if not mine:
        return False
    last = max(mine, key=lambda one: one.lineno)
    both = any(isinstance(each, ast.Name) and each.id == name for goal in last.targets for each in ast.walk(goal)) and len(last.targets) > 1
    goal, given = last.targets[0], last.value
    if isinstance(goal, ast.Tuple) and isinstance(given, ast.Tuple) and len(goal.elts) == len(given.elts):
        given = next((value for one, value in zip(goal.elts, given.elts, strict=True) if isinstance(one, ast.Name) and one.id == target), given)
    if isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute) and given.func.attr in ("clone", "detach", "copy"):
        given = given.func.value
    return both or (isinstance(given, ast.Name) and given.id == name)


def _is_added(computation: Computation, loop: ast.For, call: ast.Call, wholes: list[Value]) -> bool:
    """Whether what a call in a loop gives is part of a sum with a log density, by a name that the loop adds to."""
    inside = set(ast.walk(loop))
    statement = next((one for one in loop.body if call in set(ast.walk(one))), None)
    names = {one.id for one in ast.walk(statement) if isinstance(one, ast.Name)} if statement is not None else set()
    sums = [value for target, given in computation.stored.items() if target in inside and target.id in names for value in given]
    lists = [one.args[1] for one in computation.of("append") if one.node in inside and len(one.args) > 1]
    parts = {id(one): one for whole in wholes for one in origins(whole)}
    return any(id(one) in parts and any(each.op in _LOGARITHMS for each in origins(one)) for one in (*sums, *lists))
