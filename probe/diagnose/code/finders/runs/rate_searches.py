"""Searches for a rate that leave their weights to the training. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, constant, number, origins
from probe.diagnose.code.finders.training.rates import at_step
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import is_read, is_string, mentions, names_set, short
from probe.diagnose.code.traits.updates import is_schedule, modules, optimizer_of, plain

FINDERS = Finders()
_RESTORES = ("load_state_dict", "copy_", "copy", "apply", "reset_parameters", "set_attribute")


def rate_search_not_undone(program: Program) -> Iterator[Remark]:
    """An optimizer whose rate is multiplied up with each batch steps a network, which another optimizer then trains on."""
    computation = computation_of(program)
    steps = [(one, optimizer) for one in computation.of("step") if (optimizer := optimizer_of(one)) is not None]
    for search, risen in _raised(computation):
        tried = [one for one, optimizer in steps if optimizer is search]
        for step, optimizer in steps:
            if optimizer is search or not tried or optimizer.number < tried[-1].number or not set(map(id, modules(optimizer))) & set(map(id, modules(search))):
                continue
            between = computation.values[tried[-1].number + 1 : step.number]
            known = {id(one) for one in modules(search)}
            if not any(one.op in _RESTORES and one.args and (id(plain(one.args[0])) in known or one.op == "copy") for one in between):
                yield Remark(optimizer.node, f"{short(optimizer.node)} goes on with the weights that {short(tried[-1].node)} (line {tried[-1].line}) has left, where {short(risen.node)} (line {risen.line}) raises the rate with each batch")
                return


def _raised(computation: Computation) -> Iterator[tuple[Value, Value]]:
    """The optimizers whose rate is multiplied by more than 1 in each pass, and where."""
    for value in computation.of("set_item"):
        if len(value.args) != 3 or constant(value.args[1]) != "lr" or not value.where.loops:
            continue
        group, given = value.args[0], value.args[2]
        owner = next((one.args[0] for one in origins(group) if one.op == "param_groups" and one.args), None)
        if owner is not None and _rises(given):
            yield owner, value
    for value in computation.values:
        if not is_schedule(value):
            continue
        gamma, factor = number(value.argument("gamma", 1)), value.named.get("factor")
        rises = (gamma or 0) > 1 if value.op.endswith("ExponentialLR") else factor is not None and _rises(factor)
        optimizer = value.argument("optimizer", 0)
        if rises and optimizer is not None:
            yield optimizer, value


def _rises(value: Value) -> bool:
    """Whether a rate is multiplied by a number above 1 from pass to pass."""
    if value.op == "mul" and len(value.args) == 2:
        for old, by in (value.args, value.args[::-1]):
            if any(one.op == "param_groups" for one in origins(old)) and not any(one.op == "param_groups" for one in origins(by)):
                base, power = (at_step(one, 1.0) for one in by.args) if by.op == "pow" and len(by.args) == 2 else (at_step(by, 1.0), 1.0)
                return (base or 0) > 1 and (power or 0) > 0
    if any(one.op == "pow" and any(each.op in ("index", "count") for each in origins(one.args[1])) for one in origins(value) if len(one.args) == 2):
        first, later = at_step(value, 0.0), at_step(value, 50.0)
        return first is not None and later is not None and first > 0 and later > 1.5 * first
    return False


@FINDERS.add("rate-changed-in-vain")
def _name_for_the_rate(program: Program) -> Iterator[Remark]:
    """A loop over the groups of an optimizer reads the rate into a name, and gives another one to the name alone."""
    for loop in program.everywhere(ast.For):
        group = loop.target.elts[-1] if isinstance(loop.target, ast.Tuple) and loop.target.elts else loop.target
        if not mentions(loop.iter, "param_groups") or not isinstance(group, ast.Name):
            continue
        inside = [one for statement in loop.body for one in ast.walk(statement)]
        if any(isinstance(one, ast.Call) or (isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Store)) for one in inside):
            continue
        read = {name: one for one in inside if isinstance(one, ast.Assign) and isinstance(one.value, ast.Subscript) and is_string(one.value.slice) and ast.unparse(one.value.slice) == "'lr'" and isinstance(one.value.value, ast.Name) and one.value.value.id == group.id for name in names_set(one)}
        for one in inside:
            name = next(iter(names_set(one) & set(read)), None) if isinstance(one, (ast.Assign, ast.AugAssign)) else None
            if name is None or one in read.values() or getattr(one, "lineno", 0) < read[name].lineno:
                continue
            later = [each for each in ast.walk(program.frame(loop)) if is_read(each, name) and getattr(each, "lineno", 0) > getattr(one, "lineno", 0)]
            if not later:
                yield Remark(one, f"{short(one)} gives the name {name} another number: {short(read[name].value)} (line {read[name].lineno}), the rate of the group, stays as it is")
                return
