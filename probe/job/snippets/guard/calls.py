"""Calls: applies the rules to uses and calls of values.

Standard library only.
"""

from __future__ import annotations

import ast
import functools
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from probe.job.introspection.snippet_names import Names
from probe.job.snippets.guard import lookup, rules
from probe.job.snippets.guard.attributes import Snippet
from probe.job.snippets.guard.kinds import (
    ANY,
    DATA,
    NOTED,
    NOTHING,
    NUMBER,
    NUMBERS,
    Absent,
    Code,
    Known,
    Method,
    Own,
    Some,
    Value,
    Values,
    known,
)

_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial, *lookup.C_CALLABLES)
_WAITS = "waits for the other ranks"
_BACKWARD = "backward of a model on several ranks waits for the others"


class Arguments(NamedTuple):
    """The arguments of a call, as far as they are known separately."""

    positional: tuple[Values, ...] = ()
    keywords: tuple[tuple[str, Values], ...] = ()
    others: Values = NOTHING
    """From `*` and `**`."""

    def everything(self) -> Values:
        """All of them in one set."""
        return self.others.union(*self.positional, *(values for _, values in self.keywords))

    def named(self, name: str) -> Values:
        """The values of a keyword; empty if it is not given."""
        return dict(self.keywords).get(name, NOTHING)

    def first(self) -> Values:
        """The first one, or those that may be first."""
        return self.positional[0] if self.positional else self.others


ANYTHING = Arguments(others=ANY)
_OF_KEYS = ("list", "tuple", "set", "frozenset", "sorted", "enumerate", "keys")
"""Functions that take the keys of a dictionary."""


class Calls(Snippet):
    """Judges uses and calls of values."""

    def code(self, text: str) -> None:
        """Judge text that the snippet executes; in `classify.py`."""
        raise NotImplementedError

    # -- uses --------------------------------------------------------------------------------

    def touch(self, values: Values, node: ast.AST, names: frozenset[str] = rules.SPECIAL_METHODS) -> None:
        """Note special methods outside the libraries that an operator or a function runs."""
        for value in values:
            if isinstance(value, Known) and type(value.thing) not in lookup.IMMUTABLE:
                own = lookup.own_special(type(value.thing), names)
                if own is not None:
                    self.note(node, f"runs `{own}`, which is not known to be pure")
            elif value is Some.ANY:
                self.note(node, "uses something that is not known here")

    def iterate(self, values: Values, node: ast.AST, *, in_c: bool = True) -> Values:
        """The values that iteration yields. `in_c`: no Python code runs between two items."""
        if in_c:
            self._runs_through(values, node)
        return self.each(values, lambda one: self._iterate_one(one, node))

    def _runs_through(self, values: Values, node: ast.AST) -> None:
        for value in values:
            if isinstance(value, Own) and value.kind == "endless":
                self.note(node, "iterates over something endless in C: nothing can stop it", rules.REFUSED)
            elif isinstance(value, Known) and type(value.thing) is range:
                numbers, most = value.thing, rules.LONGEST_RANGE
                if abs(numbers.stop - numbers.start) // abs(numbers.step) > most:
                    self.note(node, f"iterates over more than {most:,} numbers in C", rules.REFUSED)

    def _iterate_one(self, value: Value, node: ast.AST) -> Values:
        if isinstance(value, Own):
            return self.inside(value)
        if value is Some.ANY:
            return self.note(node, "iterates over something that is not known here")
        if not isinstance(value, Known):
            return NOTED if value is Some.NOTED else NOTHING if isinstance(value, Code | Method) else DATA
        kind = type(value.thing)
        if self.rules.method(kind, "__iter__") is not None or kind is range:
            return self.elements(value.thing)
        if lookup.derives(kind, self.rules.loader):
            return self.note(node, "takes batches from a loader: starts its workers and draws random numbers")
        if lookup.find(kind, "__next__") is not None:
            return self.note(node, "takes from an iterator of the job")
        if lookup.find(kind, "__iter__") is None and lookup.find(kind, "__getitem__") is None:
            return NOTHING
        return self.note(node, f"iterates over a `{lookup.class_name(kind)}`, which is not known to be pure")

    def shown(self, values: Values, node: ast.AST) -> None:
        """Note code outside the libraries that runs when a text is made of values."""
        for value in self._all_in(values):
            own = lookup.own_text(value.thing) if isinstance(value, Known) else None
            if own is not None:
                self.note(node, f"makes a text with `{own}`, which is not known to be pure")
            elif value is Some.ANY:
                self.note(node, "makes a text of something that is not known here")

    def _all_in(self, values: Iterable[Value]) -> set[Value]:
        """Values, and the values inside those that the snippet made."""
        seen: set[Value] = set()
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            if value not in seen:
                seen.add(value)
                waiting.extend(self.get(value) if isinstance(value, Own) else ())
        return seen

    def constant(self, values: Values) -> object:
        """The constant, if a value can be exactly one; else None."""
        if len(values) != 1:
            return None
        (value,) = values
        return value.thing if isinstance(value, Known) and type(value.thing) in lookup.IMMUTABLE else None

    def too_large(self, size: float, node: ast.AST) -> bool:
        """Whether a number or sequence would be absurdly large."""
        if size > rules.LARGEST_RESULT:
            self.note(node, f"would make more than {rules.LARGEST_RESULT:,} bits or elements", rules.REFUSED)
        return size > rules.LARGEST_RESULT

    # -- what is called ----------------------------------------------------------------------

    def call(self, callee: Value, given: Arguments, node: ast.AST) -> Values:
        """The result of calling a value; notes findings."""
        if isinstance(callee, Known):
            return self._call_known(callee, given, node)
        if isinstance(callee, Method):
            return self._call_method(callee, given, node)
        if isinstance(callee, Code):
            return self.run(callee, given, node)
        if isinstance(callee, Absent):
            group = self.rules.dotted(callee.dotted)
            if group is not None:
                return self._apply(group, callee.dotted.rpartition(".")[2], given, node)
            if callee.dotted.startswith(rules.COLLECTIVE_MODULES):
                return self.note(node, _WAITS, rules.COLLECTIVE)
        if isinstance(callee, Own) and callee.kind == "wrapper":
            everything = given.everything()
            return everything | self.each(everything, lambda one: self._members(one, node)) or DATA
        if callee is Some.NOTED:
            return NOTED
        self.may_call(given.everything(), node)
        return self.note(node, "calls something that is not known here")

    def run(self, code: Code, given: Arguments, node: ast.AST, self_: Values = NOTHING) -> Values:
        """Call a function or class of the snippet: bind the arguments to its parameters."""
        if isinstance(code.node, ast.ClassDef):
            instance = self.made(code.node, kind="instance")
            methods = [one for one in code.node.body if isinstance(one, ast.FunctionDef)]
            makers = [one for one in methods if one.name in ("__init__", "__new__")]
            for one in makers:
                self.run(Code(one), given, node, instance)
            if not makers:
                self.may_call(given.everything(), node)
                self.put(next(iter(instance)), given.everything())
            return instance
        positional = ((self_,) if self_ else ()) + given.positional
        parameters = code.node.args
        plain = [one.arg for one in (*parameters.posonlyargs, *parameters.args)]
        rest = given.others.union(*positional[len(plain) :], *(values for _, values in given.keywords))
        for name, values in (*zip(plain, positional, strict=False), *given.keywords):
            self.put(name, values)
        for name in (*plain, *(one.arg for one in parameters.kwonlyargs)):
            self.put(name, given.others)
        for packed in (parameters.vararg, parameters.kwarg):
            if packed is not None:
                self.put(packed.arg, self.made(packed, rest | NUMBERS))
        results = self.get(code)
        if any(isinstance(part, ast.Yield | ast.YieldFrom) for part in ast.walk(code.node)):
            return self.made(code.node, results)
        return results if isinstance(code.node, ast.Lambda) else results | known(None)

    def _call_known(self, callee: Known, given: Arguments, node: ast.AST) -> Values:
        thing = callee.thing
        group = self.rules.of(thing)
        name = lookup.function_name(thing)
        if group is not None:
            if lookup.class_name(type(thing)) == "ufunc" and len(given.positional) > thing.nin:
                self.note(node, "writes its result into something of the job")
            return self._apply(group, name, given, node)
        if type(thing) is types.MethodType:
            if self.rules.of(thing.__func__) is not None and lookup.is_class(thing.__self__):
                return self._call_known(Known(thing.__func__), given, node)
            return self._call_method(Method(Known(thing.__self__), thing.__func__.__name__), given, node)
        if type(thing) is functools.partial:
            self.call(Known(thing.func), ANYTHING, node)
        if type(thing) is types.BuiltinFunctionType and not lookup.is_module(thing.__self__ or sys):
            owner: Any = thing.__self__
            group = self.rules.method(owner, name) if lookup.is_class(owner) else None
            if group is not None:
                return self._apply(group, name, given, node)
            return self._call_method(Method(Known(thing.__self__), name), given, node)
        self.may_call(given.everything(), node)
        if lookup.is_collective(thing):
            return self.note(node, _WAITS, rules.COLLECTIVE)
        if lookup.is_class(thing):
            return self._call_class(thing, given, node)
        if lookup.derives(type(thing), self.rules.module):
            return self._call_module(thing, node)
        return self._unknown(name, "is not known to be pure", node) if callable(thing) else NOTHING

    def _unknown(self, name: str, otherwise: str, node: ast.AST) -> Values:
        if name.endswith("_") and not name.endswith("__"):
            otherwise = "changes something in place"
        return self.note(node, rules.CHANGING_METHODS.get(name, otherwise))

    def _call_module(self, module: Any, node: ast.AST) -> Values:
        parts = lookup.modules_within(module)
        if any(lookup.derives(type(part), self.rules.collective) for part in parts):
            return self.note(node, "runs a model that waits for the other ranks", rules.COLLECTIVE)
        return self.note(node, "runs a model: statistics, random numbers and hooks change")

    def _call_class(self, cls: type, given: Arguments, node: ast.AST) -> Values:
        if lookup.derives(cls, (SystemExit,)):
            return self.note(node, "ends the process", rules.REFUSED)
        if lookup.derives(cls, (BaseException,)) and lookup.library_class(cls):
            self.shown(given.everything(), node)
            return self.made(node, given.everything())
        return self.note(node, f"makes a `{lookup.class_name(cls)}`, which is not known to be pure")

    def call_method(self, receiver: Value, name: str, given: Arguments, node: ast.AST) -> Values:
        """The result of `receiver.name(…)`."""
        if isinstance(receiver, Own) and receiver.kind != "wrapper":
            return self._method_of_own(receiver, name, given, node)
        if not isinstance(receiver, Some):
            return self.each(self.attribute(receiver, name, node), lambda one: self.call(one, given, node))
        self.may_call(given.everything(), node)
        if receiver is Some.DATA and name in rules.PURE_METHODS - rules.CONTAINERS_CHANGE:
            self._check(given, node)
            return self._pure(name, receiver, NOTHING, node)
        if name in rules.COLLECTIVE_METHODS - rules.TENSOR_METHODS_CALLED_ALIKE:
            return self.note(node, _WAITS, rules.COLLECTIVE)
        if name == "backward" and self._ranks_wait():
            return self.note(node, _BACKWARD, rules.COLLECTIVE)
        if receiver is Some.NOTED:
            return NOTED
        return self._unknown(name, f"`.{name}` of something that is not known here", node)

    def _pure(self, name: str, receiver: Value, contents: Values, node: ast.AST) -> Values:
        if name in rules.NEW_TENSOR_METHODS:
            return self.made(node, kind="fresh")
        if receiver is Some.DATA:
            return self.made(node, DATA) if name in rules.FRESH_METHODS else DATA
        if name in ("items", "most_common"):
            return self.made(node, self.made(node, contents | NUMBERS, level=1))
        if name in ("keys", "values", "popitem", "copy", "elements", "union", "difference", "intersection"):
            return self.made(node, contents)
        if name in ("get", "pop", "popleft", "setdefault", "__next__", "__getitem__"):
            return contents
        return self.made(node, kind="fresh")

    def _call_method(self, callee: Method, given: Arguments, node: ast.AST) -> Values:
        thing, name = callee.receiver.thing, callee.name
        kind = type(thing)
        group = self.rules.method(kind, name)
        if (thing is sys.stdout or thing is sys.stderr) and name in rules.STREAM_METHODS:
            self._check(given, node)
            return NUMBERS
        if group is not None:
            with_it = given._replace(positional=(frozenset({callee.receiver}), *given.positional))
            return self._apply(group, name, with_it, node)
        self.may_call(given.everything(), node)
        if name in ("__call__", "forward") and lookup.derives(kind, self.rules.module):
            return self._call_module(thing, node)
        if name == "backward" and self._ranks_wait():
            return self.note(node, _BACKWARD, rules.COLLECTIVE)
        entry = lookup.find(kind, name)
        waits = name in rules.COLLECTIVE_METHODS or name == "step"
        distributed = waits and lookup.derives(kind, self.rules.collective)
        of_ranks = lookup.of_ranks(lookup.module_name(kind if entry is None else entry[0]))
        if (distributed or of_ranks) and name not in ("train", "eval", "zero_grad"):
            return self.note(node, _WAITS, rules.COLLECTIVE)
        return self._unknown(name, f"`{lookup.class_name(kind)}.{name}` is not known to be pure", node)

    def _ranks_wait(self) -> bool:
        if any(lookup.derives(type(thing), self.rules.collective) for thing in list(self.names.values())):
            return True
        asks = lookup.by_name("torch.distributed.is_initialized")
        return type(asks) is types.FunctionType and lookup.library_function(asks) and bool(asks())

    def _method_of_own(self, base: Own, name: str, given: Arguments, node: ast.AST) -> Values:
        inside, everything = self.inside(base), given.everything()
        if base.kind == "instance":
            methods = [one for one in self.of_class(base, name) if isinstance(one, Code)]
            named = [one for one in methods if getattr(one.node, "name", "") == name]
            if not named:
                self.may_call(inside, node, strict=True)
                self.may_call(everything, node)
                return self.note(node, f"`.{name}` is not a method that the snippet defines")
            return NOTHING.union(*(self.run(one, given, node, frozenset({base})) for one in named))
        self._check_targets(given, node)
        self.may_call(given.named("key"), node, given=Arguments((inside,)))
        self.may_call(everything - given.named("key"), node)
        if name in rules.BLOCKING_METHODS and base.kind == "fresh":
            self.note(node, "waits for something outside the job", rules.BLOCKING)
            return self.made(node, kind="fresh")
        in_place = name.endswith("_") and not name.startswith("_") and base.site is not None
        in_place = in_place and base.kind == "fresh" and name not in rules.NEVER_ON_OWN
        if not (name in rules.OWN_METHODS or name in rules.PURE_METHODS or in_place):
            return self._unknown(name, f"`.{name}` is not known to be pure", node)
        self._check(given, node)
        stored = everything
        if name in ("extend", "update", "subtract", "writelines", "extendleft"):
            stored = self.opened(self.each(everything, lambda one: self._members(one, node)))
            stored = stored.union(*(values for _, values in given.keywords))
        if name in rules.OWN_METHODS:
            self.put(base, stored)
            harmless = (one in (NUMBER, Some.DATA) or self.is_constant(one) for one in stored)
            if base.site is None and not all(harmless):  # such as into the result of `json.loads`
                self.note(node, "stores something where the guard cannot follow it")
        return frozenset({base}) if in_place else self._pure(name, base, inside | stored, node)

    # -- rules -------------------------------------------------------------------------------

    def _apply(self, group: rules.Group, name: str, given: Arguments, node: ast.AST) -> Values:
        if group.kind != rules.READING and group.of != "ctypes":
            self.note(node, group.why, group.kind)
        self._check_targets(given, node, group)
        word = name.strip("_") if group.gives == "special" else group.gives
        special: Callable[..., Values] | None = getattr(self, "_gives_" + word, None)
        if special is not None:
            return special(name, given, node)
        everything = given.everything()
        if group.gives == rules.SHOW:
            self.shown(everything, node)
            self._check_stream(name, given, node)
            return NUMBERS
        if group.gives == rules.LOOK:
            self.touch(everything - ANY, node, rules.ASKED_OF_CLASSES)
            return DATA
        if name in ("len", "__len__"):
            self.touch(everything, node)
            return NUMBERS
        if group.gives in (rules.GATHER, rules.CONSUME, rules.PAIR, rules.TAKE):
            return self._gathered(name, group.gives, given, node)
        self.may_call(everything, node)
        self._check(given, node)
        if group.gives == rules.FRESH:
            self._runs_through(everything, node)
            return self.made(node, kind="fresh")
        return DATA

    def _gathered(self, name: str, gives: str, given: Arguments, node: ast.AST) -> Values:
        """The result of a function that iterates over its arguments: an iterator, a container or an item."""
        calls, key = NOTHING, given.named("key")
        if name in ("map", "filter"):
            calls, given = given.first(), given._replace(positional=given.positional[1:])
        given = given._replace(keywords=tuple(one for one in given.keywords if one[0] != "key"))
        everything = given.everything()
        inside = self.each(everything, lambda one: self._members(one, node, only_names=name in _OF_KEYS))
        if name in ("dict", "OrderedDict", "Counter"):  # their pairs, and keyword arguments
            inside = self.opened(inside).union(*(values for _, values in given.keywords))
        members = [self.each(values, lambda one: self._members(one, node)) for values in given.positional]
        several = members if name == "map" else [inside]
        called = self.may_call(calls, node, strict=True, given=Arguments(tuple(several), (), given.others))
        self.may_call(key, node, strict=True, given=Arguments((inside,)))
        if name == "defaultdict":
            for factory in given.first():
                inside |= self.call(factory, Arguments(), node) if factory != Known(None) else NOTHING
        else:
            self.may_call(everything, node)
        self._check(given, node)
        if gives in (rules.CONSUME, rules.TAKE):
            self._runs_through(everything, node)
        if gives == rules.TAKE:
            return inside | everything | NUMBERS
        endless = sum(isinstance(one, Own) and one.kind == "endless" for one in everything)
        ends = name == "islice" or gives == rules.CONSUME or (name == "zip" and endless < len(everything))
        kind = "endless" if endless and not ends else "container"
        if gives == rules.PAIR:
            mappings = (one.thing for one in everything if isinstance(one, Known))
            inside = inside.union(
                *(known(*list(dict.values(one))) for one in mappings if lookup.derives(type(one), (dict,)))
            )
            inside = self.made(node, inside | NUMBERS, level=1)
        level = 2 if name in ("map", "defaultdict") else 0  # the functions they call make something here, too
        return self.made(node, called if name == "map" else inside, kind, level)

    def _members(self, value: Value, node: ast.AST, *, only_names: bool = False) -> Values:
        """The values that a function gets by iterating over one of its arguments; `only_names`: of the job's
        names only the names, not their values."""
        if isinstance(value, Known):
            kind = type(value.thing)
            if only_names and kind is Names:
                return NUMBERS
            if lookup.derives(kind, (dict,)) and self.rules.method(kind, "__iter__"):
                return self.elements(value.thing) | known(*list(dict.values(value.thing)))
            if lookup.find(kind, "__iter__") is None:
                return NOTHING
        return self.iterate(frozenset({value}), node, in_c=False)

    def opened(self, values: Values) -> Values:
        """Values, and the values inside those that are pairs."""
        found = values
        for value in values:
            if isinstance(value, Own) and value.kind == "container":
                found |= self.inside(value)
            elif isinstance(value, Known) and type(value.thing) in (tuple, list):
                found |= known(*value.thing)
        return found

    def _check(self, given: Arguments, node: ast.AST) -> None:
        """Note arguments whose special methods a library's function may run, or that it may consume."""
        everything = frozenset(self._all_in(given.everything()))
        self.touch(everything, node)
        for value in everything:
            if isinstance(value, Known):
                kind = type(value.thing)
                if kind in lookup.CONTAINERS:
                    self.touch(self.elements(value.thing), node)
                if lookup.find(kind, "__next__") is not None or lookup.derives(kind, self.rules.loader):
                    self.note(node, "may take from an iterator of the job")

    def _check_targets(self, given: Arguments, node: ast.AST, group: rules.Group | None = None) -> None:
        """Note arguments that a result is written into."""
        targets = given.named("out") | given.named("inplace")
        library = group.of.partition(".")[0] if group is not None else ""
        if library in ("torch", "numpy") and _has_stars(node):
            targets |= given.others
        if group is not None and group.of == "torch.nn.functional":
            targets |= NOTHING.union(*given.positional[1:]) & known(True)
        if group is not None and library == "numpy" and "where" not in group.names:
            free = NOTHING.union(given.others, given.named("copy"), *given.positional[2:])
            targets |= {one for one in free if not self.is_constant(one) or one == Known(False)}
        harmless = known(None) | (known(False) & given.named("inplace"))
        if any(not isinstance(one, Own) for one in targets - harmless):
            self.note(node, "writes its result into something of the job")

    def is_constant(self, value: Value) -> bool:
        """Whether it is a number, text or other immutable value."""
        return isinstance(value, Known) and type(value.thing) in (*lookup.IMMUTABLE, tuple, frozenset)

    def _check_stream(self, name: str, given: Arguments, node: ast.AST) -> None:
        streams = given.named("file") | given.named("stream")
        if name in ("pprint", "pp"):
            streams = streams.union(*given.positional[1:2])
        for value in streams | given.others if _has_stars(node) else streams:
            standard = isinstance(value, Known) and (
                value.thing is sys.stdout or value.thing is sys.stderr or value.thing is None
            )
            if not standard and not isinstance(value, Own):
                self.note(node, "writes into a file of the job")
        self.may_call(NOTHING.union(*(values for _, values in given.keywords)), node)

    def may_call(
        self, values: Iterable[Value], node: ast.AST, *, strict: bool = False, given: Arguments = ANYTHING
    ) -> Values:
        """Calls of functions among arguments, which the callee may make; returns their results.

        `strict`: it will call them, whatever they are, with `given`."""
        results = NOTHING
        for value in list(values) if strict else self._all_in(values):
            if isinstance(value, Code):
                results |= self.call(value, given, node)
            elif isinstance(value, Known) and strict and value.thing is None:
                results |= given.everything()
            elif isinstance(value, Known):
                if type(value.thing) in _FUNCTIONS or (strict and callable(value.thing)):
                    results |= self.call(value, given if strict else Arguments(), node)
            elif isinstance(value, Method | Absent) or (strict and value != NUMBER):
                results |= self.call(value, given if strict else Arguments(), node)
        return results


def _has_stars(call: ast.AST) -> bool:
    """Whether a call has keywords whose names are not known here."""
    return any(isinstance(one, ast.keyword) and one.arg is None for one in ast.iter_child_nodes(call))
