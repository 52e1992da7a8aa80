"""What a call in a snippet does: the rules, applied to what is called and to its arguments.

Standard library only.
"""

from __future__ import annotations

import ast
import functools
import sys
import types
from typing import Any, NamedTuple

from probe.job.snippets.guard import lookup, rules
from probe.job.snippets.guard.attributes import SPECIAL, TEXT, Attributes
from probe.job.snippets.guard.rules import BLOCKING, CHANGING, COLLECTIVE, READING, REFUSED, Group
from probe.job.snippets.guard.tracked import OWN, Absent, Kind, Known, Method, Value

_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial, *lookup.C_CALLABLES)
_LOOKED_AT = frozenset(
    {"__dir__", "__len__", "__instancecheck__", "__subclasscheck__", "__sizeof__", "__class__"}
)
_OF_MODULES = rules.MODULE_METHODS | {
    "_named_members",
    "_save_to_state_dict",
    "__getattr__",
    "__getattribute__",
}
_AT_ONCE = rules.words("list tuple set frozenset dict sorted Counter deque cycle max min sum any all")
"""Functions that go through all of an argument before they return."""
_CALLED = ("key", "default", "default_factory", "func", "repl", "cls", "object_hook", "target")
_TREATED = {
    "builtins": rules.words(
        "getattr hasattr type vars __import__ next iter range pow open exec eval compile"
    ),
    "importlib": rules.words("import_module"),
    "itertools": rules.words("count"),
    "builtins.str": rules.words("format format_map"),
}
"""Functions whose arguments say what they do: each has a method here."""
_NO_ARRAY = frozenset({"where", "clip", "clamp", "get", "quantile"})


class Arguments(NamedTuple):
    """The arguments of a call; what is in those with `*` and `**` comes last."""

    positional: tuple[Value, ...] = ()
    named: tuple[tuple[str, Value], ...] = ()

    def everything(self) -> tuple[Value, ...]:
        """All of them."""
        return (*self.positional, *(value for _, value in self.named))


class Calls(Attributes):
    """Judges calls."""

    def unseen(self, value: Value, node: ast.AST) -> Kind:
        """The kind of a value that goes where it is not followed: what can be called counts as called."""
        if isinstance(value, Method | Absent) or (
            isinstance(value, Known)
            and not lookup.is_class(value.thing)
            and (type(value.thing) in _FUNCTIONS or self.rules.of(value.thing) is not None)
        ):
            self.call(value, Arguments(), node)
            return Kind.DATA
        if isinstance(value, Known):
            return self.kind(value.thing, node)
        if value is Kind.OPAQUE:
            return self.note(node, "uses something that is not known here")
        return value

    def shown(self, value: Value, node: ast.AST) -> Kind:
        """A text is made of a value."""
        if value is Kind.OPAQUE:
            return self.note(node, "makes a text of something that is not known here")
        if isinstance(value, Known | Method):
            self.runs(value.thing, TEXT, node)
        return Kind.FRESH

    def touched(self, value: Value, node: ast.AST) -> None:
        """An operator runs special methods."""
        if isinstance(value, Known):
            self.runs(value.thing, SPECIAL, node)
        elif value is Kind.OPAQUE:
            self.note(node, "uses something that is not known here")

    def parts(self, value: Value, node: ast.AST, *, in_c: bool = True) -> Kind:
        """What going through a value gives. `in_c`: no Python runs between two parts."""
        span = value.thing if isinstance(value, Known) and type(value.thing) is range else range(0)
        if in_c and (
            value is Kind.ENDLESS or abs(span.stop - span.start) // abs(span.step) > rules.LONGEST_RANGE
        ):
            return self.note(
                node, "goes through something that does not end in C, where nothing can stop it", REFUSED
            )
        kind = self.unseen(value, node)
        whole = {Kind.HOLDER: Kind.DATA, Kind.HOLDER_OF_MODULES: Kind.MODULE, Kind.ENDLESS: Kind.DATA}
        return whole.get(kind, kind)

    # -- what is called ------------------------------------------------------------------------

    def call(self, callee: Value, given: Arguments, node: ast.AST) -> Value:
        """What calling a value gives; notes what makes it more than reading."""
        if callee is Kind.NOTED:
            return callee
        if callee is Kind.FUNCTION:
            for value in given.everything():
                if self.unseen(value, node) in (Kind.MODULE, Kind.HOLDER_OF_MODULES):
                    return self.note(node, "gives a module of the job to a function")
            return Kind.DATA
        if isinstance(callee, Absent):
            group = self.rules.dotted(callee.dotted)
            if group is not None:
                return self._apply(group, callee.dotted.rpartition(".")[2], given, node)
            if callee.dotted.startswith(rules.COLLECTIVE_MODULES):
                return self.note(node, "waits for the other ranks", COLLECTIVE)
        elif isinstance(callee, Method):
            return self.method(Known(callee.thing), callee.name, given, node)
        elif isinstance(callee, Known):
            return self._call_known(callee.thing, given, node)
        return self.note(node, "calls something that is not known to be pure")

    def _call_known(self, thing: Any, given: Arguments, node: ast.AST) -> Value:
        function = thing.__func__ if type(thing) is types.MethodType else thing
        group = self.rules.of(thing) or self.rules.of(function)
        name = _name_of(function)
        owner: Any = (
            None if type(thing) not in (types.MethodType, types.BuiltinFunctionType) else thing.__self__
        )
        if group is None and type(thing) is types.BuiltinFunctionType and lookup.is_class(owner):
            group = self.rules.method(owner, name)
        if lookup.class_name(type(thing)) == "ufunc" and len(given.positional) > thing.nin:
            self.note(node, "writes its result into something of the job")
        if group is not None and (
            type(thing) is not types.MethodType or lookup.is_class(owner) or group.kind == REFUSED
        ):
            return self._apply(group, name, given, node)
        if owner is not None and not lookup.is_module(owner):
            return self.method(Known(owner), name, given, node)
        if type(thing) is functools.partial:
            self.call(Known(thing.func), Arguments((Kind.DATA,)), node)
            return self.note(node, "is not known to be pure")
        if lookup.is_class(thing) and lookup.derives(thing, (BaseException,)) and lookup.library_class(thing):
            for value in given.everything():
                self.unseen(value, node)
            return (
                self.note(node, "ends the process", REFUSED)
                if lookup.derives(thing, (SystemExit,))
                else Kind.HOLDER
            )
        if _is_collective(thing):
            return self.note(node, "waits for the other ranks", COLLECTIVE)
        if lookup.is_torch_module(thing):
            return self._call_module(thing, node)
        return self._not_known(name, "is not known to be pure", node) if callable(thing) else Kind.NOTED

    def _call_module(self, module: Any, node: ast.AST) -> Kind:
        if any(_is_distributed(type(part)) for part in lookup.within(module)):
            return self.note(node, "runs a model that waits for the other ranks", COLLECTIVE)
        return self.note(node, "runs a model: statistics, random numbers and hooks change")

    def _not_known(self, name: str, otherwise: str, node: ast.AST) -> Kind:
        if name.endswith("_") and not name.endswith("__"):
            otherwise = "changes something in place"
        return self.note(node, rules.CHANGING_METHODS.get(name, otherwise))

    # -- methods -------------------------------------------------------------------------------

    def method(self, receiver: Value, name: str, given: Arguments, node: ast.AST) -> Value:
        """What `receiver.name(…)` gives."""
        if receiver is Kind.NOTED:
            return receiver
        if isinstance(receiver, Known):
            return self._method_of_known(receiver, name, given, node)
        if name in rules.COLLECTIVE_METHODS - rules.TENSOR_METHODS_CALLED_ALIKE:
            return self.note(node, "waits for the other ranks", COLLECTIVE)
        if name == "backward" and self._ranks_wait():
            return self.note(node, "backward of a model on several ranks waits for the others", COLLECTIVE)
        if receiver in OWN and name in rules.BLOCKING_METHODS:
            self.note(node, "waits for something outside of the job", BLOCKING)
            return Kind.FRESH
        changes = name in rules.GROWING_METHODS or (name in rules.IN_PLACE_METHODS and receiver is Kind.FRESH)
        known = (
            rules.MODULE_METHODS if receiver in (Kind.MODULE, Kind.HOLDER_OF_MODULES) else rules.PURE_METHODS
        )
        if not (name in known and receiver not in (Kind.FUNCTION, Kind.WRAPPER, Kind.OPAQUE)) and not (
            changes and receiver in OWN
        ):
            return self._not_known(name, f"`.{name}` of something that is not known here", node)
        kinds = self._checked(name, given, node, 1)
        if changes and name not in rules.IN_PLACE_METHODS:
            self.stored(receiver, kinds, node)
        if name in rules.IN_PLACE_METHODS:
            return receiver
        if name in rules.TENSOR_METHODS:
            return Kind.HOLDER
        gives = rules.HOLDS if name in rules.HOLDING_METHODS else rules.SHARED
        kinds = [receiver if isinstance(receiver, Kind) else Kind.DATA, *kinds]
        return self._gives(name, rules.FRESH if name in rules.FRESH_METHODS else gives, kinds)

    def stored(self, into: Value, kinds: list[Kind], node: ast.AST) -> None:
        """Something is put into what the snippet made, whose kind must still be right afterwards."""
        for kind in kinds:
            fits = (
                kind in (Kind.FRESH, Kind.NOTED)
                or into is Kind.HOLDER_OF_MODULES
                or (into is Kind.HOLDER and kind in (Kind.DATA, Kind.HOLDER, Kind.FUNCTION))
            )
            if not fits:
                self.note(node, "keeps something of the job in what is taken to hold none of it")

    def _method_of_known(self, receiver: Known, name: str, given: Arguments, node: ast.AST) -> Value:
        thing, kind = receiver.thing, type(receiver.thing)
        group = self.rules.method(kind, name)
        if (thing is sys.stdout or thing is sys.stderr) and name in ("write", "writelines", "flush"):
            self._checked(name, given, node)
            return Kind.FRESH
        module = lookup.is_torch_module(thing)
        if group is not None and module:
            parts = list(lookup.within(thing))
            bases = (
                [base for part in parts for base in lookup.mro(type(part))] if name == "state_dict" else []
            )
            if any("fsdp" in lookup.module_name(base) for base in bases):
                return self.note(node, "the state of a sharded model waits for the other ranks", COLLECTIVE)
            hooked = bases and any(lookup.instance_dict(part).get("_state_dict_hooks") for part in parts)
            if hooked or self.runs(thing, _OF_MODULES, node):
                return self.note(node, "runs code of the job's, which is not known to be pure")
        key = given.positional[0] if given.positional and name == "get" and type(thing) is dict else None
        if isinstance(key, Known) and type(key.thing) is str and key.thing in thing:
            return Known(thing[key.thing])
        if group is not None:
            return self._apply(group, name, given._replace(positional=(receiver, *given.positional)), node)
        if module and name in ("__call__", "forward"):
            return self._call_module(thing, node)
        if name == "backward" and self._ranks_wait():
            return self.note(node, "backward of a model on several ranks waits for the others", COLLECTIVE)
        entry = lookup.find(kind, name)
        of_ranks = _is_in(lookup.module_name(kind if entry is None else entry[0]), rules.COLLECTIVE_MODULES)
        distributed = _is_distributed(kind) and name in (*rules.COLLECTIVE_METHODS, "step")
        if (of_ranks or distributed) and name not in ("train", "eval", "zero_grad"):
            return self.note(node, "waits for the other ranks", COLLECTIVE)
        return self._not_known(name, f"`{lookup.class_name(kind)}.{name}` is not known to be pure", node)

    def _ranks_wait(self) -> bool:
        asks = lookup.by_name("torch.distributed.is_initialized")
        asked = type(asks) is types.FunctionType and lookup.library_function(asks) and bool(asks())
        return asked or any(_is_distributed(type(thing)) for thing in list(self.names.values()))

    # -- rules ---------------------------------------------------------------------------------

    def _apply(self, group: Group, name: str, given: Arguments, node: ast.AST) -> Value:
        address = given.positional[0] if given.positional and group in rules.ADDRESS_GROUPS else None
        low = isinstance(address, Known) and type(address.thing) is int and address.thing < 4096
        if group.kind != READING:
            self.note(node, group.why, CHANGING if group in rules.ADDRESS_GROUPS and not low else group.kind)
        if name in _TREATED.get(group.of, ()):
            found: Value = getattr(self, f"_call_{name.strip('_')}")(given, node)
            return found
        if group.gives == rules.LOOK:
            for value in given.everything():
                if isinstance(value, Known) and lookup.own_code(type(value.thing), _LOOKED_AT):
                    self.note(node, "runs code of the object's own, which is not known to be pure")
            return Kind.FRESH
        if group.gives == rules.SHOW:
            for value in given.everything():
                self.shown(value, node)
            self._checked(name, Arguments((), given.named), node)
            return Kind.FRESH
        if group.gives == rules.ANYTHING:
            return Kind.OPAQUE
        array = group.of.startswith("numpy")  # whose functions take what they write into by its place, too
        if array and isinstance(node, ast.Call) and any(isinstance(one, ast.Starred) for one in node.args):
            self.note(node, "may write its result into something of the job")
        kinds = self._checked(name, given, node, 2 if array else 99, calls=group.gives == rules.CALLS)
        if name in _AT_ONCE or name in ("join", "reduce", "mean", "median") or group.of == "statistics":
            for value in (Kind.ENDLESS if Kind.ENDLESS in kinds else Kind.FRESH, *given.everything()):
                if value is Kind.ENDLESS or (isinstance(value, Known) and type(value.thing) is range):
                    self.parts(value, node)
        return self._gives(name, group.gives, kinds)

    def _gives(self, name: str, gives: str, kinds: list[Kind]) -> Value:
        modules = Kind.MODULE in kinds or Kind.HOLDER_OF_MODULES in kinds
        endless = kinds.count(Kind.ENDLESS)
        if gives == rules.FRESH:
            wraps = name in ("no_grad", "enable_grad", "inference_mode", "itemgetter")
            return Kind.WRAPPER if wraps else Kind.FRESH
        if gives == rules.SHARED:
            module = Kind.MODULE if modules else Kind.DATA
            return module if any(kind is not Kind.FRESH for kind in kinds) or not kinds else Kind.FRESH
        if name in ("wraps", "lru_cache", "cache"):
            return Kind.WRAPPER
        ends = name in ("islice", "takewhile", "zip_longest") or (name == "zip" and endless < len(kinds))
        if name == "cycle" or (name == "repeat" and len(kinds) < 2) or (endless and not ends):
            return Kind.ENDLESS
        return Kind.HOLDER_OF_MODULES if modules and gives != rules.TENSORS else Kind.HOLDER

    def _checked(
        self, name: str, given: Arguments, node: ast.AST, free: int = 99, *, calls: bool = False
    ) -> list[Kind]:
        """The kinds of arguments; notes what is called, and what is written into."""
        kinds = []
        for place, value in enumerate(given.positional):
            constant = isinstance(value, Known) and type(value.thing) in lookup.IMMUTABLE
            if calls and place == 0:
                self._called(value, given.positional[1:], node)
                continue
            kind = self.unseen(value, node)
            if place >= free and not constant and kind is Kind.DATA and name not in _NO_ARRAY:
                self.note(node, "may write its result into something of the job")
            kinds.append(kind)
        for word, value in given.named:
            nothing = isinstance(value, Known) and value.thing in (None, False)
            standard = isinstance(value, Known) and (value.thing is sys.stdout or value.thing is sys.stderr)
            if (
                word in ("out", "inplace", "file", "stream", "where")
                and not nothing
                and not standard
                and value not in OWN
            ):
                self.note(node, f"`{word}=` writes into something of the job")
            elif word in _CALLED and not nothing:
                self._called(value, given.positional, node)
            elif not standard:
                kinds.append(self.unseen(value, node))
        return kinds

    def _called(self, value: Value, others: tuple[Value, ...], node: ast.AST) -> None:
        """A function calls one of its arguments with what it gets out of the others."""
        if value is Kind.FUNCTION:
            if any(self.unseen(one, node) in (Kind.MODULE, Kind.HOLDER_OF_MODULES) for one in others):
                self.note(node, "gives modules of the job to a function")
        elif value is not Kind.WRAPPER and not (isinstance(value, Known) and value.thing is None):
            self.call(value, Arguments(tuple(self.parts(one, node, in_c=False) for one in others)), node)


def _name_of(thing: Any) -> str:
    if lookup.is_class(thing):
        return lookup.class_name(thing)
    return str(thing.__name__) if type(thing) in (types.FunctionType, *lookup.C_CALLABLES) else ""


def _is_in(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == one or module.startswith(one + ".") for one in packages)


def _is_distributed(cls: type) -> bool:
    found = (lookup.by_name(name) for name in rules.COLLECTIVE_CLASSES)
    return any(one is not None and lookup.derives(cls, (one,)) for one in found)


def _is_collective(thing: Any) -> bool:
    if type(thing) is types.FunctionType:
        module = thing.__globals__.get("__name__")
        module = thing.__module__ if module in (None, "torch.distributed.c10d_logger") else module
    elif type(thing) in lookup.C_CALLABLES:
        module = getattr(thing, "__module__", None) or lookup.module_name(getattr(thing, "__objclass__", int))
    else:
        module = lookup.module_name(thing if lookup.is_class(thing) else type(thing))
    return type(module) is str and _is_in(module, rules.COLLECTIVE_MODULES)
