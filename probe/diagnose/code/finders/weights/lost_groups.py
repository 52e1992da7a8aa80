"""Groups of parameters whose settings come to no optimizer. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Table, Value, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.held import optimizers
from probe.diagnose.code.traits.updates import parameters

_SETTINGS = ("lr", "weight_decay", "momentum", "betas", "eps", "lr_scale", "lr_mult")


def groups_flattened(program: Program) -> Iterator[Remark]:
    """Groups are made with settings of their own, and an optimizer is given the parameters in them and not the groups."""
    computation = computation_of(program)
    made = [(one, inside) for one in optimizers(computation) if (inside := _given(one)) is not None]
    tables = _groups(computation) if made else []
    used = {id(one) for _, inside in made for one in inside} | {id(one) for value in computation.of("add_param_group") for one in origins(value)}
    for optimizer, inside in made:
        known = {id(one) for one in inside}
        for table in tables:
            params = table.entries["params"]
            taken = id(params) in known or (isinstance(params, Many) and bool(params.parts) and all(id(one) in known for one in params.parts))
            name = next((key for key in _SETTINGS if key in table.entries), "")
            if taken and id(table) not in used and not _is_read(computation, table, name):
                yield Remark(optimizer.node, f"{short(optimizer.node)} is given the parameters of the groups of line {table.line} without the groups: the {name!r} of {short(table.node)} reaches nothing")
                return


def _given(optimizer: Value) -> list[Value] | None:
    """All that what an optimizer is given is made of."""
    given = parameters(optimizer)
    return None if given is None else list(origins(given, ("parameters", "named_parameters")))


def _groups(computation: Computation) -> list[Table]:
    """The dicts with parameters and settings of their own that stand in a list."""
    found = {
        id(part): part for value in computation.values if isinstance(value, Many) for part in value.parts
        if isinstance(part, Table) and "params" in part.entries and any(key in part.entries for key in _SETTINGS)
    }
    return list(found.values())


def _is_read(computation: Computation, table: Table, name: str) -> bool:
    """Whether a setting of a group is read, by its name in the source or as a value."""
    setting = table.entries[name]
    if setting.op != "@constant" and any(not isinstance(one, (Many, Table)) for one in computation.users(setting)):
        return True
    return any(isinstance(one.slice, ast.Constant) and one.slice.value == name and isinstance(one.ctx, ast.Load) for one in computation.program.everywhere(ast.Subscript) if isinstance(one, ast.Subscript)) or any(
        isinstance(one.func, ast.Attribute) and one.func.attr in ("get", "pop") and bool(one.args) and getattr(one.args[0], "value", None) == name for one in computation.program.calls()
    )
