"""Statistics that a model keeps beside its state. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Instance, Value, alternatives, bare
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import is_method, is_string, short

_FIRST = ("zeros", "ones", "full", "zeros_like", "ones_like")
_FITTED = ("mean", "std", "var", "median", "quantile", "copy_")


def statistics_outside_the_state(program: Program) -> Iterator[Remark]:
    """A model is loaded from a file, and statistics that it scales by were fitted in another object and are no part of
    the state."""
    computation = computation_of(program)
    made = [one for one in computation.values if isinstance(one, Instance)]
    for loaded in computation.of("load_state_dict"):
        for part in _parts(loaded.args[0]) if loaded.args else ():
            for name, value in part.attributes.items():
                if bare(value).op not in _FIRST or part.of is None or _is_registered(part.of, name):
                    continue
                fitted = next((found for one in made if one.of is part.of and one is not part and (found := _fitted(one.attributes.get(name))) is not None), None)
                if fitted is not None:
                    yield Remark(loaded.node, f"{short(loaded.node)} loads a {part.of.name} whose {name} is an attribute and no buffer: what line {fitted.line} fitted in another object is not in the state, and it is {short(value.node)} here")
                    return


def _parts(value: Value, depth: int = 5) -> Iterator[Instance]:
    """An object of the program, and those that it keeps."""
    if isinstance(value, Instance) and depth:
        yield value
        for one in value.attributes.values():
            yield from _parts(one, depth - 1)


def _fitted(value: Value | None) -> Value | None:
    """What statistics of data a value was made of."""
    for one in alternatives(value) if value is not None else ():
        inner = bare(one, "clamp", "clamp_min", "add", "maximum", "sqrt")
        if inner.op in _FITTED or one.op in ("copy", "copy_"):
            return one
    return None


def _is_registered(of: ast.ClassDef, name: str) -> bool:
    """Whether a class says that a name is a part of its state, or saves it by hand."""
    for node in ast.walk(of):
        if is_method(node, "register_buffer", "register_parameter") and any(is_string(one) and one.value == name for one in [*node.args, *(word.value for word in node.keywords)]):
            return True
        if isinstance(node, ast.FunctionDef) and node.name in ("state_dict", "get_extra_state", "_save_to_state_dict"):
            return True
    return False
