"""What a call in a snippet does: the rules, applied to a callee and its arguments.

Part of the guard: see `guard.py`. Standard library only.
"""

from __future__ import annotations

import ast
import functools
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from probe.job.snippets.guard import lookup
from probe.job.snippets.guard.attributes import State
from probe.job.snippets.guard.rules import (
    BLOCKING,
    BLOCKING_METHODS,
    CHANGING_METHODS,
    COLLECTIVE,
    COLLECTIVE_METHODS,
    COLLECTIVE_MODULES,
    CONSUME,
    ENDING,
    FRESH,
    FRESH_METHODS,
    GATHER,
    LOOK,
    NEW_TENSOR_METHODS,
    OWN_METHODS,
    PAIR,
    PURE_METHODS,
    READING,
    REFUSED,
    SHOW,
    STREAM_METHODS,
    TAKE,
    TENSOR_METHODS_CALLED_ALIKE,
    Group,
)
from probe.job.snippets.guard.tracked import (
    NOTED,
    NOTHING,
    NUMBER,
    NUMBERS,
    OPAQUE,
    PURE,
    Absent,
    Attribute,
    Class,
    Function,
    Known,
    Method,
    Own,
    Some,
    Value,
    Values,
    known,
)
from probe.job.snippets.guard.uses import Uses

_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial, *lookup.C_CALLABLES)
_NAMED = (types.FunctionType, *lookup.C_CALLABLES)


class Arguments(NamedTuple):
    """The arguments of a call, as far as they can be told apart."""

    positional: tuple[Values, ...] = ()
    keywords: tuple[tuple[str, Values], ...] = ()
    others: Values = NOTHING
    """From `*` and `**`."""

    def everything(self) -> Values:
        """All of them in one."""
        named = (values for _, values in self.keywords)
        return NOTHING.union(*self.positional, *named, self.others)

    def named(self, name: str) -> Values | None:
        """A keyword's; None when it is not given."""
        return dict(self.keywords).get(name)


ANYTHING = Arguments(others=OPAQUE)


class Calls(Uses):
    """Judges calls. What needs the syntax tree is in `guard.py`."""

    def run(self, function: Function | Class, given: Arguments, node: ast.AST,
        self_: Values = NOTHING) -> Values:
        """Call a function or class of the snippet."""
        raise NotImplementedError

    def code(self, text: str, node: ast.AST) -> None:
        """Judge text that the snippet executes."""
        raise NotImplementedError

    # -- what is called ----------------------------------------------------------------------

    def call(self, callee: Value, given: Arguments, node: ast.AST) -> Values:
        """What calling a value gives; notes what makes it more than reading."""
        match callee:
            case Known():
                return self._call_known(callee, given, node)
            case Method():
                return self._call_method(callee, given, node)
            case Attribute():
                return self._call_attribute(callee, given, node)
            case Function() | Class():
                return self.run(callee, given, node)
            case Absent():
                return self._call_absent(callee, given, node)
            case Own(kind="wrapper"):
                return given.everything() or PURE
            case Own(kind="getter"):
                return OPAQUE
            case Some.NOTED:
                return NOTED
            case _:
                self.note(node, "calls something that is not known here")
                return NOTED

    def _call_known(self, callee: Known, given: Arguments, node: ast.AST) -> Values:
        thing = callee.thing
        group = self.rules.of(thing)
        if group is not None:
            if lookup.class_name(type(thing)) == "ufunc" and len(given.positional) > thing.nin:
                self.note(node, "writes its result into something of the job")
            return self._apply(group, _name_of(thing), given, node)
        if type(thing) is types.MethodType:
            if self.rules.of(thing.__func__) is not None and lookup.is_class(thing.__self__):
                return self._call_known(Known(thing.__func__), given, node)
            return self._call_method(Method(Known(thing.__self__), thing.__func__.__name__), given, node)
        if type(thing) is functools.partial:
            return self.call(Known(thing.func), ANYTHING, node)
        if type(thing) is types.BuiltinFunctionType and not lookup.is_module(thing.__self__ or sys):
            owner: Any = thing.__self__
            if lookup.is_class(owner):
                group = self.rules.method(owner, thing.__name__)
                if group is not None:
                    return self._apply(group, thing.__name__, given, node)
            return self._call_method(Method(Known(thing.__self__), thing.__name__), given, node)
        if lookup.is_class(thing):
            return self._call_class(thing, given, node)
        if self._is_collective(thing):
            self.note(node, "waits for the other ranks", COLLECTIVE)
        elif lookup.derives(type(thing), self.rules.module):
            self._call_module(thing, node)
        elif not callable(thing):
            return NOTHING
        else:
            self._unknown_call(thing, node)
        return NOTED

    def _unknown_call(self, thing: Any, node: ast.AST) -> None:
        name = _name_of(thing)
        if name.endswith("_") and not name.endswith("__"):
            self.note(node, "changes a tensor in place")
        else:
            self.note(node, CHANGING_METHODS.get(name, "is not known to be pure"))

    def _is_collective(self, thing: Any) -> bool:
        if type(thing) is types.FunctionType:
            module = thing.__globals__.get("__name__")
            module = thing.__module__ if module in (None, "torch.distributed.c10d_logger") else module
        elif type(thing) in lookup.C_CALLABLES:
            module = getattr(thing, "__module__", None) or lookup.module_name(getattr(thing,
                "__objclass__", int))
        else:
            module = lookup.module_name(thing if lookup.is_class(thing) else type(thing))
        return type(module) is str and _is_in(module, COLLECTIVE_MODULES)

    def _call_module(self, module: Any, node: ast.AST) -> None:
        parts = lookup.modules_within(module)
        if any(lookup.derives(type(part), self.rules.collective) for part in parts):
            self.note(node, "runs a model that waits for the other ranks", COLLECTIVE)
        else:
            self.note(node, "runs a model: statistics, random numbers and hooks change")

    def _call_class(self, cls: type, given: Arguments, node: ast.AST) -> Values:
        if lookup.derives(cls, (BaseException,)) and lookup.library_class(cls):
            if lookup.derives(cls, (SystemExit,)):
                self.note(node, "ends the process", REFUSED)
            return frozenset({self.made(node, given.everything())})
        if self._is_collective(cls):
            self.note(node, "waits for the other ranks", COLLECTIVE)
        elif _is_record(cls) and not lookup.own_special(cls):
            return frozenset({self.made(node, given.everything())})
        else:
            self.note(node, f"makes a `{lookup.class_name(cls)}`, which is not known to be pure")
        return NOTED

    def _call_absent(self, callee: Absent, given: Arguments, node: ast.AST) -> Values:
        group = self.rules.dotted(callee.dotted)
        if group is not None:
            return self._apply(group, callee.dotted.rpartition(".")[2], given, node)
        if callee.dotted.startswith(COLLECTIVE_MODULES):
            self.note(node, "waits for the other ranks", COLLECTIVE)
        else:
            self.note(node, "is not known to be pure")
        return NOTED

    def _call_method(self, callee: Method, given: Arguments, node: ast.AST) -> Values:
        thing, name = callee.receiver.thing, callee.name
        receiver = frozenset({callee.receiver})
        kind = type(thing)
        group = self.rules.method(kind, name)
        if (thing is sys.stdout or thing is sys.stderr) and name in STREAM_METHODS:
            self.check(given, node)
            return NUMBERS
        if group is not None:
            with_it = given._replace(positional=(receiver, *given.positional))
            return self._apply(group, name, with_it, node)
        if name in ("__call__", "forward") and lookup.derives(kind, self.rules.module):
            self._call_module(thing, node)
        elif name == "backward" and self._ranks_wait():
            self.note(node, "backward of a model on several ranks waits for the others", COLLECTIVE)
        elif self._collective_method(kind, name):
            self.note(node, "waits for the other ranks", COLLECTIVE)
        else:
            self.note(node, self._why(name, f"`{lookup.class_name(kind)}.{name}` is not known to be pure"))
        return NOTED

    def _collective_method(self, kind: type, name: str) -> bool:
        entry = lookup.find(kind, name)
        definer = kind if entry is None else entry[0]
        if name in ("train", "eval", "zero_grad"):
            return False
        if name in COLLECTIVE_METHODS and lookup.derives(kind, self.rules.collective):
            return True
        module = lookup.module_name(definer)
        return _is_in(module, COLLECTIVE_MODULES) or (
            name == "step" and lookup.derives(kind, self.rules.collective)
        )

    def _ranks_wait(self) -> bool:
        if any(lookup.derives(type(thing), self.rules.collective) for thing in list(self.names.values())):
            return True
        asks = lookup.by_name("torch.distributed.is_initialized")
        return type(asks) is types.FunctionType and lookup.library_function(asks) and bool(asks())

    @staticmethod
    def _why(name: str, otherwise: str) -> str:
        if name.endswith("_") and not name.endswith("__"):
            return "changes something in place"
        return CHANGING_METHODS.get(name, otherwise)

    def _call_attribute(self, callee: Attribute, given: Arguments, node: ast.AST) -> Values:
        base, name = callee.base, callee.name
        if isinstance(base, Own):
            return self._call_own(base, name, given, node)
        if base is Some.PURE and name in PURE_METHODS:
            self._check_targets(given, node)
            self.may_call(given.everything(), node)
            self.check(given, node)
            if name in NEW_TENSOR_METHODS:
                return frozenset({self.made(node, kind="fresh")})
            return frozenset({self.made(node, PURE)}) if name in FRESH_METHODS else PURE
        if name in COLLECTIVE_METHODS - TENSOR_METHODS_CALLED_ALIKE:
            self.note(node, "waits for the other ranks", COLLECTIVE)
        elif name == "backward" and self._ranks_wait():
            self.note(node, "backward of a model on several ranks waits for the others", COLLECTIVE)
        elif base is not Some.NOTED:
            self.note(node, self._why(name, f"`.{name}` of something that is not known here"))
        return NOTED

    def _call_instance(self, base: Own, name: str, given: Arguments, node: ast.AST) -> Values:
        """A method of an instance of a class of the snippet, or something that is called like one."""
        own = frozenset({base})
        results = NOTHING
        found = False
        for one in self.fields.get((base.site, name), set()) | set(self.inside(base)):
            method = isinstance(one, Function) and getattr(one.node, "name", "") == name
            if not method and one not in self.fields.get((base.site, name), ()):
                continue
            found = True
            bound = own if method else NOTHING
            if isinstance(one, Function):
                results |= self.run(one, given, node, bound)
            else:
                results |= self.call(one, given, node)
        self.may_call(self.contents.get((base.site, -1), ()), node)
        if not found:
            self.note(node, f"`.{name}` is not a method that the snippet defines")
            return NOTED
        return results

    def _call_own(self, base: Own, name: str, given: Arguments, node: ast.AST) -> Values:
        inside = self.inside(base)
        if base.kind == "instance":
            return self._call_instance(base, name, given, node)
        self._check_targets(given, node)
        self.may_call(inside - {one for one in inside if isinstance(one, Function)}, node)
        in_place = name.endswith("_") and not name.startswith("_") and base.site != 0
        if name in BLOCKING_METHODS and base.kind == "fresh":
            self.note(node, "waits for something outside of the job", BLOCKING)
            return frozenset({self.made(node, kind="fresh")})
        if not (name in OWN_METHODS or name in PURE_METHODS or (in_place and base.kind == "fresh")):
            self.note(node, self._why(name, f"`.{name}` is not known to be pure"))
            return NOTED
        self.check(given, node)
        everything = given.everything()
        if name in ("extend", "update", "subtract", "writelines", "extendleft"):
            stored = self.opened(NOTHING.union(*(self._members(one, node) for one in everything)), node)
        else:
            stored = everything
        self.may_call(dict(given.keywords).get("key", NOTHING), node, strict=True)
        if name in OWN_METHODS:
            self.put(base, stored)
        if name in ("items", "most_common"):
            return frozenset({self.made(node, frozenset({self.made(node, inside | NUMBERS, level=1)}))})
        if name in ("keys", "values", "copy", "elements", "union", "difference", "intersection"):
            return frozenset({self.made(node, inside | everything)})
        if name in ("get", "pop", "popleft", "popitem", "setdefault", "__next__", "__getitem__"):
            return inside | stored
        return frozenset({base}) if in_place else frozenset({self.made(node, kind="fresh")})

    # -- rules -------------------------------------------------------------------------------

    def _apply(self, group: Group, name: str, given: Arguments, node: ast.AST) -> Values:
        if group.kind != READING and group.gives != "address":
            self.note(node, group.why, group.kind)
        self._check_targets(given, node)
        special: Callable[[str, Group, Arguments, ast.AST], Values] | None
        special = getattr(self, "_gives_" + group.gives, None)
        if special is not None:
            found: Values = special(name, group, given, node)
            return found
        everything = given.everything()
        if group.gives == SHOW:
            self.shown(everything, node)
            self._check_stream(given, node)
            return NUMBERS
        if group.gives == LOOK:
            return PURE
        if group.gives in (GATHER, CONSUME, PAIR, TAKE):
            return self._gathered(name, group.gives, given, node)
        self.may_call(everything, node)
        if name == "len":
            self.touch(everything, node)
            return NUMBERS
        self.check(given, node)
        if group.gives == FRESH:
            self._runs_through(everything, node)
            return frozenset({self.made(node, kind="fresh")})
        return PURE

    def _gathered(self, name: str, gives: str, given: Arguments, node: ast.AST) -> Values:
        """What goes through its arguments gives."""
        everything = given.everything()
        inside = NOTHING.union(*(self._members(one, node) for one in everything))
        if name in ("dict", "OrderedDict", "Counter", "ChainMap"):  # their pairs, and what is named
            inside = self.opened(inside, node).union(*(values for _, values in given.keywords))
        functions = frozenset(one for one in everything if isinstance(one, Function))
        for one in functions | (given.named("key") or NOTHING):
            if one != Known(None):
                self.may_call([one], node, strict=True, given=Arguments((inside,)))
        self.may_call(everything - functions, node)
        self.check(given, node)
        endless = [one for one in everything if isinstance(one, Own) and one.kind == "endless"]
        if gives in (CONSUME, TAKE):
            self._runs_through(everything, node)
        if gives == TAKE:
            return inside | everything | NUMBERS
        if gives == PAIR:
            for one in everything:
                if isinstance(one, Known) and lookup.derives(type(one.thing), (dict,)):
                    inside |= known(*list(dict.values(one.thing)))
            inside = frozenset({self.made(node, inside | NUMBERS, level=1)})
            ends = len(endless) < len(everything) or name in ENDING
        else:
            ends = gives == CONSUME or name in ENDING
        return frozenset({self.made(node, inside, "endless" if endless and not ends else "container")})

    def _members(self, value: Value, node: ast.AST) -> Values:
        """What a function that goes through its arguments gets out of one of them."""
        if isinstance(value, Known) and lookup.derives(type(value.thing), (dict,)):
            both = known(*list(dict.keys(value.thing))) | known(*list(dict.values(value.thing)))
            return both if self.rules.method(type(value.thing),
                "__iter__") else self.iterate(frozenset({value}), node)
        if isinstance(value, Known) and lookup.find(type(value.thing), "__iter__") is None:
            return NOTHING
        return self.iterate(frozenset({value}), node, in_c=False)

    def check(self, given: Arguments, node: ast.AST) -> None:
        """Arguments whose special methods a library's function may run, or which it may use up."""
        everything = given.everything()
        self.touch(everything, node)
        for value in everything:
            if isinstance(value, Known):
                kind = type(value.thing)
                if lookup.find(kind, "__next__") is not None or lookup.derives(kind, self.rules.loader):
                    self.note(node, "may take from an iterator of the job")

    def opened(self, values: Values, node: ast.AST) -> Values:
        """Values, and what is in those that are pairs."""
        found = values
        for value in values:
            if isinstance(value, Own) and value.kind == "container":
                found |= self.inside(value)
            elif isinstance(value, Known) and type(value.thing) in (tuple, list):
                found |= known(*value.thing)
        return found

    def _check_targets(self, given: Arguments, node: ast.AST) -> None:
        """Arguments that a result is written into."""
        for word in ("out", "inplace"):
            target = given.named(word) or NOTHING
            if any(not isinstance(one, Own) and one not in (Known(None), Known(False)) for one in target):
                self.note(node, f"`{word}=` writes into something of the job")

    def may_call(
        self, values: Iterable[Value], node: ast.AST, *, strict: bool = False, given: Arguments = ANYTHING
    ) -> None:
        """Functions among arguments: whoever gets them may call them.

        `strict`: will call them, whatever they are; with `given`."""
        waiting, seen = list(values), set()
        while waiting:
            value = waiting.pop()
            if value in seen:
                continue
            seen.add(value)
            if isinstance(value, Own) and value.site and not (strict and value.kind == "wrapper"):
                waiting.extend(self.contents.get((value.site, value.level), ()))
            elif isinstance(value, Known):
                if type(value.thing) in _FUNCTIONS or (strict and callable(value.thing)):
                    self.call(value, Arguments(), node)
            elif isinstance(value, Method | Function):
                self.call(value, given if isinstance(value, Function) else Arguments(), node)
            elif isinstance(value, Attribute):
                suspect = value.name in CHANGING_METHODS or value.name in COLLECTIVE_METHODS
                if strict or suspect or (value.name.endswith("_") and not value.name.startswith("_")):
                    self.call(value, Arguments(), node)
            elif isinstance(value, Absent) or (strict and isinstance(value, Some | Own) and value != NUMBER):
                self.call(value, Arguments(), node)

    def _check_stream(self, given: Arguments, node: ast.AST) -> None:
        for value in (given.named("file") or NOTHING) | (given.named("stream") or NOTHING):
            known_stream = isinstance(value, Known) and (
                value.thing is sys.stdout or value.thing is sys.stderr or value.thing is None
            )
            if not known_stream and not isinstance(value, Own):
                self.note(node, "writes into a file of the job")
        for name in ("default", "cls", "object_hook"):
            self.may_call(given.named(name) or NOTHING, node, strict=True)

def _is_record(cls: type) -> bool:
    """A named tuple or a dataclass: made without any code of its own."""
    made = ("__new__", "__init__", "__post_init__")
    found = [entry for name in made if (entry := lookup.find(cls, name)) is not None]
    plain = all(lookup.library_function(entry[1], entry[0]) for entry in found)
    named = lookup.derives(cls, (tuple,)) and lookup.find(cls, "_fields") is not None
    return plain and (named or "__dataclass_fields__" in lookup.class_dict(cls))


def _is_in(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == one or module.startswith(one + ".") for one in packages)


def _name_of(thing: Any) -> str:
    if lookup.is_class(thing):
        return lookup.class_name(thing)
    return str(thing.__name__) if type(thing) in _NAMED else ""


def blocking(state: State, node: ast.AST, why: str) -> None:
    """A finding that something waits."""
    state.note(node, why, BLOCKING)


def load(state: State, dotted: str, node: ast.AST) -> Values:
    """What importing a module gives; notes an import of what is not loaded."""
    module = sys.modules.get(dotted)
    state.imported.add(dotted)
    if module is not None:
        return frozenset({Known(module)})
    if dotted.partition(".")[0] not in sys.stdlib_module_names:
        blocking(state, node, f"imports {dotted}, which the job has not loaded")
    return frozenset({Absent(dotted)})


