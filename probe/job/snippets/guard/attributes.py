"""What an attribute of a value is, found without asking the object for it, and whose a value is.

Standard library only.
"""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

from probe.job.snippets.guard import lookup, rules
from probe.job.snippets.guard.rules import CHANGING, SETTLED
from probe.job.snippets.guard.tracked import Absent, Kind, Known, Method, Value, rulebook

SPECIAL = frozenset(f"__{name}__" for name in rules.SPECIAL_METHODS)
TEXT = frozenset({"__repr__", "__str__", "__format__", "__getattribute__", "extra_repr"})
_BY_NAME = SPECIAL | TEXT | rules.PURE_METHODS | rules.PLAIN_ATTRIBUTES
_OF_MODULES = (
    SPECIAL | TEXT | rules.MODULE_METHODS | rules.PLAIN_ATTRIBUTES | {"_named_members", "_save_to_state_dict"}
)
_STORED = (types.GetSetDescriptorType, types.MemberDescriptorType)
_LONGEST_SOURCE = 60


class Finding(NamedTuple):
    """One thing in a snippet that makes it more than reading."""

    kind: str
    line: int
    what: str
    """Its source text, cut."""
    why: str


class Attributes:
    """Judges attributes, and what is used out of sight."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self.names = names
        self.rules = rulebook()
        self.found: dict[Finding, None] = {}
        self._seen: dict[tuple[int, frozenset[str]], Any] = {}
        """What was looked at already and runs nothing; kept, for it is known by its identity."""

    def note(self, node: ast.AST, why: str, kind: str = CHANGING) -> Kind:
        """A finding at `node`."""
        what = " ".join(ast.unparse(node).split())
        if len(what) > _LONGEST_SOURCE:
            what = what[: _LONGEST_SOURCE - 1] + "…"
        self.found[Finding(kind, getattr(node, "lineno", 1), what, why)] = None
        return Kind.NOTED

    def runs(self, thing: Any, names: frozenset[str], node: ast.AST) -> bool:
        """Whether something in an object may run somebody's own code of those names; notes it."""
        if (id(thing), names) in self._seen:
            return False
        classes: set[int] = set()
        for one in lookup.within(thing):
            own = None if id(type(one)) in classes else lookup.own_code(type(one), names)
            classes.add(id(type(one)))
            if own is not None:
                self.note(node, f"runs `{own}`, which is not known to be pure")
                return True
        self._seen[id(thing), names] = thing
        return False

    def kind(self, thing: Any, node: ast.AST) -> Kind:
        """Whose an object is and what may be done with it by name; notes what is not known to be plain."""
        if type(thing) in lookup.IMMUTABLE or lookup.is_class(thing):
            return (
                Kind.FRESH
                if not lookup.own_code(type(thing), SPECIAL)
                else self.note(node, "uses a class whose class is somebody's own")
            )
        if lookup.is_torch_module(thing):
            named: list[Any] = [
                lookup.instance_dict(one).get("_modules") or () for one in lookup.within(thing)
            ]
            if any(rules.MODULE_METHODS.intersection(one) for one in named):
                return self.note(node, "has a part that is called like a method")
            return Kind.NOTED if self.runs(thing, _OF_MODULES, node) else Kind.MODULE
        if self.runs(thing, _BY_NAME, node):
            return Kind.NOTED
        for one in lookup.within(thing):
            kind = type(one)
            if lookup.is_loader(kind):
                return self.note(
                    node, "takes batches from a loader: starts its workers and draws random numbers"
                )
            if lookup.find(kind, "__next__") is not None:
                return self.note(node, "takes from an iterator of the job")
            hidden = rules.PURE_METHODS.intersection(lookup.instance_dict(one))
            if hidden or lookup.is_module(one) or lookup.is_torch_module(one):
                return self.note(node, f"uses a `{lookup.class_name(kind)}` of the job out of sight")
        return Kind.DATA

    def attribute(self, value: Value, name: str, node: ast.AST) -> Value:
        """What `value.name` is; notes what is more than reading in finding it."""
        settled = name in rules.SETTLED_ATTRIBUTES or name.startswith(rules.SETTLED_PREFIXES)
        if settled and (not isinstance(value, Known) or lookup.is_tensor_like(value.thing)):
            self.note(node, rules.LOOKS_AT_GRADIENTS, SETTLED)
            return Kind.DATA
        if isinstance(value, Absent):
            return Absent(f"{value.dotted}.{name}")
        bound = isinstance(value, Known) and type(value.thing) in (types.FunctionType, *lookup.C_CALLABLES)
        if name == "__call__" and (bound or isinstance(value, Method) or value is Kind.FUNCTION):
            return value
        if isinstance(value, Known):
            return self._of_known(value.thing, name, node)
        if value is Kind.NOTED or (name in rules.PLAIN_ATTRIBUTES and value in _HAVE_ATTRIBUTES):
            return Kind.DATA if value is not Kind.NOTED else value
        return self.note(node, f"`.{name}` of something that is not known here")

    def _of_known(self, thing: Any, name: str, node: ast.AST) -> Value:
        if lookup.is_module(thing):
            return self._of_python_module(thing, name, node)
        if name == "__class__":
            return Known(type(thing))
        kind = type(thing)
        own = lookup.own_code(kind, frozenset({"__getattribute__", name}))
        entry = lookup.find(kind, name)
        held = lookup.instance_dict(thing)
        if entry is None or (
            type(entry[1]) is not property and lookup.find(type(entry[1]), "__set__") is None
        ):
            for table in (held, *(held.get(one) for one in ("_parameters", "_buffers", "_modules"))):
                if type(table) is dict and name in table:
                    return Known(table[name])
        if lookup.is_class(thing):
            return self._of_class(thing, name, node)
        if name == "__dict__":
            return Known(held)
        if own is not None and (entry is None or type(entry[1]) is not types.FunctionType):
            return self.note(node, f"`{own}` is computed by code that is not known to be pure")
        if entry is None:
            hook = lookup.find(kind, "__getattr__")
            if hook is None or hook[0] is lookup.by_name("torch.nn.Module"):
                return Kind.NOTED
            return self.note(node, f"`{lookup.class_name(hook[0])}` makes `{name}` when it is asked for")
        if type(entry[1]) is types.MethodType or type(entry[1]) in (
            types.FunctionType,
            classmethod,
            *lookup.C_CALLABLES,
        ):
            return Method(thing, name)
        computed = lookup.find(type(entry[1]), "__get__") is not None
        if computed and type(entry[1]) is not staticmethod:
            read = type(entry[1]) in _STORED or lookup.library_function(entry[1], entry[0])
            if type(thing) is types.MethodType and name in ("__self__", "__func__"):
                return Known(thing.__self__ if name == "__self__" else thing.__func__)
            if type(thing) is types.FunctionType and name == "__globals__":
                return Known(thing.__globals__)
            if type(entry[1]) is types.MemberDescriptorType:
                return Kind.OPAQUE
            return (
                Kind.DATA
                if read and name not in ("f_locals", "gi_frame")
                else self.note(node, "is not known to be pure")
            )
        return Known(lookup.unwrapped(entry[1]))

    def _of_python_module(self, module: Any, name: str, node: ast.AST) -> Value:
        entries = lookup.module_dict(module)
        if name in entries or name == "__dict__":
            return Known(entries.get(name, entries))
        dotted = f"{entries.get('__name__')}.{name}"
        if dotted in sys.modules or lookup.library_module(dotted):
            return Known(sys.modules[dotted]) if dotted in sys.modules else Absent(dotted)
        if type(module) is types.ModuleType and "__getattr__" not in entries:
            return Kind.NOTED
        return self.note(node, f"the module makes `{name}` when it is asked for")

    def _of_class(self, cls: type, name: str, node: ast.AST) -> Value:
        entry = lookup.find(cls, name)
        if entry is None or name in (
            "__name__",
            "__qualname__",
            "__module__",
            "__mro__",
            "__dict__",
            "__doc__",
        ):
            return (
                Kind.DATA
                if not lookup.own_code(type(cls), _HOOKS)
                else self.note(node, "is made when asked for")
            )
        if type(entry[1]) is classmethod:
            return Known(types.MethodType(entry[1].__func__, cls))
        if type(entry[1]) in (types.FunctionType, staticmethod, property, *_STORED, *lookup.C_CALLABLES):
            return Known(lookup.unwrapped(entry[1]))
        if lookup.find(type(entry[1]), "__get__") is not None and not lookup.library_function(
            entry[1], entry[0]
        ):
            return self.note(node, "is computed by code that is not known to be pure")
        return Known(entry[1])


_HOOKS = frozenset({"__getattr__", "__getattribute__"})
_HAVE_ATTRIBUTES = (Kind.FRESH, Kind.HOLDER, Kind.HOLDER_OF_MODULES, Kind.DATA, Kind.MODULE)
