"""What reading an attribute, using and calling a value of a snippet does.

Objects are never asked for anything: attributes are looked up in their dictionaries. Standard library only.
"""

from __future__ import annotations

import ast
import functools
import sys
import types
from collections.abc import Callable
from typing import Any

from probe.job.snippets.guard import lookup, rules
from probe.job.snippets.guard.kinds import (
    MINE,
    UNSEEN,
    Absent,
    Arguments,
    Kind,
    Known,
    Method,
    Value,
    is_constant,
)
from probe.job.snippets.guard.out_of_sight import OutOfSight

_WAITS = "waits for the other ranks"
_BACKWARD = "backward of a model on several ranks waits for the others"
_WRITES = "writes its result into something of the job"
_UNKNOWN = "is not known here"
_TARGETS = ("out", "inplace", "file", "stream")
_TARGET_PLACES = {"relu": 1, "silu": 1, "normalize": 4, "pprint": 1, "pp": 1, "print_stack": 2}
"""Where functions take by its place what they write into, or whether they do."""
_OF_ARRAYS = ("axis", "dtype", "keepdims")


class Operations(OutOfSight):
    """Judges what a snippet does to values. What is not known to be reading is a finding."""

    # -- attributes --------------------------------------------------------------------------

    def attribute(self, value: Value, name: str, node: ast.AST) -> Value:
        """What `value.name` is; notes what is more than reading in finding it."""
        settled = name in rules.SETTLED_ATTRIBUTES or name.startswith(rules.SETTLED_PREFIXES)
        if settled and _may_be_torchs(value):
            self.note(node, rules.LOOKS_AT_GRADIENTS, rules.SETTLED)
        if name == "f_locals":
            self.note(node, "makes a frame keep a copy of its variables")
        if isinstance(value, Known):
            return self._of_object(value, name, node)
        if isinstance(value, Absent):
            return Absent(f"{value.dotted}.{name}")
        if isinstance(value, Method) or (name == "__call__" and value in (Kind.FUNCTION, Kind.WRAPPER)):
            return value if name == "__call__" else Kind.ANY
        if value is Kind.ANY:
            return self.note(node, f"`.{name}` of something that {_UNKNOWN}")
        if value is not Kind.NOTED:
            if name in rules.REFLECTION:
                return Kind.ANY
            if (name.endswith("_") and not name.endswith("__")) or name in rules.CHANGING_METHODS:
                self.note(node, rules.CHANGING_METHODS.get(name, "changes something in place"))
            elif name in rules.COLLECTIVE_METHODS - rules.TENSOR_METHODS_CALLED_ALIKE:
                self.note(node, _WAITS, rules.COLLECTIVE)
        hidden = self.unseen(self.attribute, name, node)
        return hidden if value is not Kind.NOTED else value

    def any_attribute(self, value: Value, node: ast.AST) -> Kind:
        """Reading an attribute whose name is not known."""
        if _may_be_torchs(value):
            self.note(node, rules.LOOKS_AT_GRADIENTS, rules.SETTLED)
        if value is Kind.ANY or (isinstance(value, Known) and not lookup.library_class(type(value.thing))):
            self.note(node, "reads attributes whose names are not known here, and some may run code")
        if isinstance(value, Known) and not lookup.is_module(value.thing):
            self.hide(Known(lookup.instance_dict(value.thing)), node)
            return Kind.DATA
        known = value is Kind.ANY or isinstance(value, Known)
        return Kind.ANY if known else self.unseen(self.any_attribute, node)

    def _of_object(self, value: Known, name: str, node: ast.AST) -> Value:
        thing, kind = value.thing, type(value.thing)
        if lookup.is_module(thing):
            return self._of_module(thing, name, node)
        if name == "__class__":
            return Known(kind)
        if name == "__call__" and not lookup.is_class(thing):
            return value if callable(thing) else Kind.NOTED
        hook = lookup.find(kind, "__getattribute__")
        if hook is not None and not lookup.library_function(hook[1], hook[0]):
            return self.note(node, f"`{lookup.class_name(hook[0])}` runs code of its own for each attribute")
        is_class = lookup.is_class(thing)
        own: Any = lookup.instance_dict(thing) if not is_class else None
        if name == "__dict__":
            return Kind.DATA if own is None else Known(own)
        entry = lookup.find(thing if is_class else kind, name)
        if entry is None and is_class:
            entry = lookup.find(kind, name)
        computed = entry is not None and lookup.find(type(entry[1]), "__get__") is not None
        stored = computed and entry is not None and lookup.find(type(entry[1]), "__set__") is not None
        for entries in (own or {}, *map((own or {}).get, ("_parameters", "_buffers", "_modules"))):
            if type(entries) in lookup.MAPPINGS and name in entries and not stored:
                return Known(entries[name])
        wrapped = lookup.module_entries(thing).get("_orig_mod") if entry is None else None
        if wrapped is not None:  # what torch.compile gives
            return self._of_object(Known(wrapped), name, node)
        if entry is None:
            hook = lookup.find(kind, "__getattr__")
            if hook is None or lookup.library_class(kind) or hook[0] in self.rules.module:
                return Kind.NOTED
            return self.note(node, f"`{lookup.class_name(hook[0])}` makes `{name}` when it is asked for")
        return self._of_entry(entry, value, name, node) if computed else Known(entry[1])

    def _of_entry(self, entry: tuple[type, Any], value: Known, name: str, node: ast.AST) -> Value:
        """What lies in a class and is computed."""
        kind, is_class = type(entry[1]), lookup.is_class(value.thing)
        if kind is types.MemberDescriptorType and not is_class:
            try:
                return Known(entry[1].__get__(value.thing))
            except AttributeError:  # a slot that is empty
                return Kind.NOTED
        if kind is classmethod:
            cls = value.thing if is_class else type(value.thing)
            return Known(types.MethodType(entry[1].__func__, cls))
        if kind in (staticmethod, types.FunctionType, *lookup.C_CALLABLES):
            bound = not is_class and kind is not staticmethod
            return Method(value, name) if bound else Known(lookup.unwrapped(entry[1]))
        if lookup.library_function(entry[1], entry[0]) and lookup.library_class(kind):
            return Kind.DATA
        where = f"`{lookup.class_name(entry[0])}.{name}`"
        return self.note(node, f"{where} is computed by code that is not known to be pure")

    def _of_module(self, module: Any, name: str, node: ast.AST) -> Value:
        entries = lookup.module_dict(module)
        if name in entries or name == "__dict__":
            return Known(entries.get(name, entries))
        dotted = f"{entries.get('__name__')}.{name}"
        if lookup.library_module(dotted.rpartition(".")[0]) or "__getattr__" not in entries:
            return Absent(dotted)
        return self.note(node, f"the module makes `{name}` when it is asked for")

    # -- uses --------------------------------------------------------------------------------

    def use(self, value: Value, names: frozenset[str], node: ast.AST) -> None:
        """An operator or a function runs the special methods of a value, and of what is in it."""
        if isinstance(value, Known) and is_constant(value) and type(value.thing) in lookup.IMMUTABLE:
            return
        if isinstance(value, Known):
            own = lookup.own_special(type(value.thing), names)
            if own is not None:
                self.note(node, f"runs `{own}`, which is not known to be pure")
            self.hide_all_in(value, node)
        elif value is Kind.ANY:
            self.note(node, f"uses something that {_UNKNOWN}")
        if value not in (Kind.NEW, Kind.ANY):
            self.unseen(self.use, names, node)

    def iterate(self, value: Value, in_c: bool, node: ast.AST) -> Value:
        """What going through a value gives. `in_c`: no Python runs between two of its elements."""
        if value is Kind.ENDLESS and in_c:
            self.note(node, "goes through something endless in C: nothing can stop it", rules.REFUSED)
        if value is Kind.ANY:
            return self.note(node, f"goes through something that {_UNKNOWN}")
        if not isinstance(value, Known):
            return Kind.DATA if value in (*MINE, Kind.ENDLESS) else self.unseen(self.iterate, in_c, node)
        thing, kind = value.thing, type(value.thing)
        long = kind is range and abs(thing.stop - thing.start) // abs(thing.step) > rules.LONGEST_RANGE
        if long and in_c:
            self.note(node, f"goes through more than {rules.LONGEST_RANGE:,} numbers in C", rules.REFUSED)
        if kind in (range, str, bytes):
            return Kind.NEW
        if self.rules.method(kind, "__iter__") is not None:
            self.hide_all_in(value, node)
            return Kind.DATA
        if lookup.derives(kind, self.rules.loader):
            return self.note(node, "takes batches from a loader: starts its workers and draws random numbers")
        if lookup.find(kind, "__next__") is not None:
            return self.note(node, "takes from an iterator of the job")
        if lookup.find(kind, "__iter__") is None and lookup.find(kind, "__getitem__") is None:
            return Kind.NOTED
        return self.note(node, f"goes through a `{lookup.class_name(kind)}`, which is not known to be pure")

    def item(self, base: Value, index: Value, node: ast.AST) -> Value:
        """What `base[index]` is."""
        if base is Kind.ANY:
            return self.note(node, f"looks into something that {_UNKNOWN}")
        if base in MINE:
            return Kind.DATA
        if not isinstance(base, Known):
            return self.unseen(self.item, index, node)
        thing, kind = base.thing, type(base.thing)
        if lookup.is_class(thing) or lookup.find(kind, "__getitem__") is None:
            return Kind.NOTED
        if self.rules.method(kind, "__getitem__") is None:
            return self.note(node, f"looks into a `{lookup.class_name(kind)}`, which is not known to be pure")
        key = index.thing if isinstance(index, Known) and type(index.thing) in lookup.IMMUTABLE else None
        if lookup.derives(kind, (dict,)):
            for one, value in list(dict.items(thing)):
                if type(one) is type(key) and one == key and key is not None:
                    return Known(value)
            if lookup.find(kind, "__missing__") is not None:
                self.note(node, "adds the key when it is missing; `.get` does not")
        sequence = thing if kind in (list, tuple) else lookup.children(thing)
        if type(key) is int and sequence and -len(sequence) <= key < len(sequence):
            return Known(sequence[key])
        self.hide_all_in(base, node)
        return Kind.DATA

    def too_large(self, size: float, node: ast.AST) -> bool:
        """Whether a number or sequence would be absurdly large."""
        if size > rules.LARGEST_RESULT:
            self.note(node, f"would make more than {rules.LARGEST_RESULT:,} bits or elements", rules.REFUSED)
        return size > rules.LARGEST_RESULT

    # -- calls -------------------------------------------------------------------------------

    def call(self, callee: Value, given: Arguments, node: ast.AST) -> Value:
        """What calling a value gives; notes what makes it more than reading."""
        if isinstance(callee, Known):
            return self._call_known(callee.thing, given, node)
        if isinstance(callee, Method):
            return self._call_method(callee.receiver, callee.name, given, node)
        group = self.rules.dotted(callee.dotted) if isinstance(callee, Absent) else None
        if group is not None and isinstance(callee, Absent):
            return self._apply(group, callee.dotted.rpartition(".")[2], given, node)
        self.hide_each(given, node)
        if callee in (Kind.FUNCTION, Kind.WRAPPER):
            wraps = callee is Kind.WRAPPER and Kind.FUNCTION in given.positional
            return Kind.FUNCTION if wraps else Kind.DATA
        if isinstance(callee, Absent) and callee.dotted.startswith(rules.COLLECTIVE_MODULES):
            return self.note(node, _WAITS, rules.COLLECTIVE)
        if callee is not Kind.ANY:
            self.unseen(self.call, given, node)
        return callee if callee is Kind.NOTED else self.note(node, f"calls something that {_UNKNOWN}")

    def hide_each(self, given: Arguments, node: ast.AST) -> None:
        """Arguments go out of sight."""
        for value in given.everything:
            self.hide(value, node)

    def _call_known(self, thing: Any, given: Arguments, node: ast.AST) -> Value:
        group, name, kind = self.rules.of(thing), lookup.function_name(thing), type(thing)
        owner: Any = thing.__self__ if kind in (types.MethodType, types.BuiltinFunctionType) else None
        function = thing.__func__ if kind is types.MethodType else thing
        if group is None and lookup.is_class(owner):
            group = self.rules.method(owner, lookup.function_name(function))
        if group is not None:
            return self._apply(group, name or lookup.function_name(function), given, node)
        if owner is not None and not lookup.is_module(owner):
            return self._call_method(Known(owner), lookup.function_name(function), given, node)
        if kind is functools.partial:
            self._call_known(thing.func, UNSEEN, node)
        self.hide_each(given, node)
        if lookup.is_collective(thing):
            return self.note(node, _WAITS, rules.COLLECTIVE)
        if thing is SystemExit:
            return self.note(node, "ends the process", rules.REFUSED)
        if lookup.is_class(thing) and lookup.derives(thing, (BaseException,)) and lookup.library_class(thing):
            return self.use_all(given, node, Kind.OWN)
        if lookup.is_class(thing):
            return self.note(node, f"makes a `{lookup.class_name(thing)}`, which is not known to be pure")
        if lookup.derives(kind, self.rules.module):
            return self._call_module(thing, node)
        return self._unknown(name, "is not known to be pure", node) if callable(thing) else Kind.NOTED

    def _unknown(self, name: str, otherwise: str, node: ast.AST) -> Kind:
        if name.endswith("_") and not name.endswith("__"):
            otherwise = "changes something in place"
        return self.note(node, rules.CHANGING_METHODS.get(name, otherwise))

    def _call_module(self, module: Any, node: ast.AST) -> Kind:
        if any(lookup.derives(type(part), self.rules.collective) for part in lookup.modules_within(module)):
            return self.note(node, "runs a model that waits for the other ranks", rules.COLLECTIVE)
        return self.note(node, "runs a model: statistics, random numbers and hooks change")

    def method(self, receiver: Value, name: str, given: Arguments, node: ast.AST) -> Value:
        """What `receiver.name(…)` gives."""
        formats = name in ("format", "format_map") and isinstance(receiver, Kind)
        for value in given.everything if formats else ():
            self.any_attribute(value, node)
        if receiver in MINE:
            return self._method_of_own(receiver, name, given, node)
        if receiver is Kind.CONTAINER:
            if any(name in vars(cls) and self.rules.method(cls, name) is None for cls in (list, set, dict)):
                self._unknown(name, f"`.{name}` of something of the job", node)
            return Kind.NOTED
        if not isinstance(receiver, Kind) or receiver in (Kind.FUNCTION, Kind.WRAPPER):
            found = self.attribute(receiver, name, node)
            return found if found is Kind.NOTED else self.call(found, given, node)
        self.hide_each(given, node)
        self.unseen(self.method, name, given, node)
        if receiver is not Kind.ANY and name in rules.PURE_METHODS - rules.IN_PLACE_ELSEWHERE:
            return self.use_all(given, node, _given_by(name))
        if name in rules.COLLECTIVE_METHODS - rules.TENSOR_METHODS_CALLED_ALIKE:
            return self.note(node, _WAITS, rules.COLLECTIVE)
        if name == "backward" and self._ranks_wait():
            return self.note(node, _BACKWARD, rules.COLLECTIVE)
        if receiver is Kind.NOTED:
            return receiver
        return self._unknown(name, f"`.{name}` of something that {_UNKNOWN}", node)

    def _call_method(self, receiver: Known, name: str, given: Arguments, node: ast.AST) -> Value:
        thing, kind = receiver.thing, type(receiver.thing)
        group = self.rules.method(kind, name)
        if (thing is sys.stdout or thing is sys.stderr) and name in rules.STREAM_METHODS:
            return self.use_all(given, node, Kind.NEW)
        if group is not None:
            return self._apply(group, name, given, node, receiver)
        self.hide_each(given, node)
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

    def _method_of_own(self, receiver: Value, name: str, given: Arguments, node: ast.AST) -> Value:
        in_place = name[-1:] == "_" and name[0] != "_" and name not in rules.NEVER_ON_OWN
        blocking = receiver is Kind.NEW and name in rules.BLOCKING_METHODS
        self._check_targets(name, given, node)
        self.hide_each(given, node)
        if blocking:
            self.note(node, "waits for something outside of the job", rules.BLOCKING)
        elif not (in_place or name in rules.OWN_METHODS or name in rules.PURE_METHODS):
            return self._unknown(name, f"`.{name}` is not known to be pure", node)
        if name in rules.OWN_METHODS:
            for value in given.everything:
                self.put(receiver, value, node)
        changed = Kind.NEW if blocking or name in rules.OWN_METHODS else _given_by(name)
        taken = Kind.DATA if name in rules.TAKING_METHODS else changed
        return self.use_all(given, node, receiver if in_place else taken)

    def put(self, receiver: Value, value: Value, node: ast.AST) -> None:
        """A value is put into something that the snippet made."""
        self.hide(value, node)
        plain = value is Kind.NEW or (isinstance(value, Known) and self._is_plain(value.thing))
        if receiver is Kind.NEW and not plain and not is_constant(value):
            self.note(node, "puts something of the job where the guard takes it for new")

    # -- rules -------------------------------------------------------------------------------

    def _apply(
        self, group: rules.Group, name: str, given: Arguments, node: ast.AST, receiver: Value | None = None
    ) -> Value:
        if group.kind != rules.READING and group.of != "ctypes":
            self.note(node, group.why, group.kind)
        if receiver is not None:
            given = given._replace(positional=(receiver, *given.positional))
        self._check_targets(name, given, node, group.of.partition(".")[0])
        word = name.strip("_") if group.gives == "special" else group.gives
        special: Callable[..., Value] | None = getattr(self, "_gives_" + word, None)
        if special is not None:
            return special(name, given, node)
        if group.gives in (rules.LOOK, rules.ASK, rules.SHOW):
            names = rules.ASKED_OF_CLASSES if group.gives == rules.LOOK else rules.SPECIAL_METHODS
            for value in given.everything:
                if group.gives == rules.SHOW or value is not Kind.OWN:
                    self.use(value, names, node)
            for _, value in given.keywords:
                self.hide(value, node)
            return Kind.DATA if group.gives == rules.LOOK else Kind.NEW
        if name in ("map", "filter") and given.positional:
            if given.positional[0] != Known(None):
                each = Arguments((Kind.DATA,) * (len(given.positional) - 1), (), given.unnamed)
                self.hide(self.call(given.positional[0], each, node), node)
            given = given._replace(positional=given.positional[1:])
        lazily = group.gives == rules.LAZY
        self.use_all(given, node, Kind.DATA, lazily=lazily)
        if group.gives in (rules.SOMETHING, rules.OWN) and receiver is None:
            self.hide_each(given, node)
        endless = given.positional.count(Kind.ENDLESS)
        if lazily and endless and name != "islice" and (name != "zip" or endless == len(given.positional)):
            return Kind.ENDLESS
        if lazily or group.gives == rules.OWN:
            return Kind.OWN
        return Kind.NEW if group.gives == rules.NEW else Kind.DATA

    def use_all(self, given: Arguments, node: ast.AST, result: Value, *, lazily: bool = False) -> Value:
        """A library's function gets arguments: it calls `key` with one thing at a time, and may go through
        the others, call them, or run their special methods. `result`: what it gives."""
        for name, value in (*((None, one) for one in given.positional), *given.keywords):
            if name == "key" and value != Known(None):
                self.hide(self.call(value, Arguments((Kind.DATA,)), node), node)
                continue
            if name is not None or isinstance(value, Method | Absent) or (
                isinstance(value, Known) and self._is_called(value.thing)
            ):
                self.hide(value, node)
            self.use(value, rules.SPECIAL_METHODS, node)
            self.iterate(value, not lazily, node)
        return result

    def _check_targets(self, name: str, given: Arguments, node: ast.AST, library: str = "") -> None:
        """Arguments that a result is written into."""
        targets = [value for word, value in given.keywords if word in _TARGETS]
        targets.extend(given.positional[_TARGET_PLACES.get(name, 99) :])
        named = any(isinstance(one, ast.keyword) and one.arg is None for one in ast.iter_child_nodes(node))
        if named and (library in ("torch", "traceback", "pprint", "json") or name == "print"):
            targets.append(Kind.DATA)
        if library == "numpy":
            free = any(word not in _OF_ARRAYS for word, _ in given.keywords) or given.unnamed
            targets += [Kind.DATA] if free else [one for one in given.positional[1:] if not is_constant(one)]
        for one in targets:
            thing = one.thing if isinstance(one, Known) else node
            if one not in MINE and not any(thing is this for this in (None, False, sys.stdout, sys.stderr)):
                self.note(node, _WRITES)


def _given_by(name: str) -> Kind:
    """What a method gives that is reading by its name."""
    if name in rules.NEW_METHODS:
        return Kind.NEW
    return Kind.OWN if name in rules.HOLDING_METHODS else Kind.DATA


def _may_be_torchs(value: Value) -> bool:
    """Whether a value may be a tensor, or a node of the autograd graph."""
    if not isinstance(value, Known):
        return value in MINE or value in (Kind.DATA, Kind.ANY, Kind.NOTED)
    if lookup.is_module(value.thing) or lookup.is_class(value.thing):
        return False
    modules = (lookup.module_name(base) for base in lookup.mro(type(value.thing)))
    return any(name.partition(".")[0] == "torch" for name in modules)
