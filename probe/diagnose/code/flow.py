"""Which value a variable has where it is read: the assignments of a program, and what follows them.

A use has the value that the statements before it gave it, in a straight line; where two assignments may reach
it, its value is unknown. Pure; standard library only.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import overload

from probe.diagnose.code.program import Binding, Key, Program
from probe.diagnose.code.syntax import (
    Function,
    Loop,
    argument,
    entry_of,
    is_attribute,
    is_call,
    is_method,
    is_name,
    is_negative,
    is_own,
    is_read,
    is_string,
    last_word,
    number_in,
)

DEPTH = 12
"""How many assignments a value is followed through."""
_OPERATIONS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
}
MOST_CALLS = 6
"""Calls of a function that may give the same variable to a parameter."""
SETTINGS = ("args", "config", "cfg", "conf", "opt", "opts", "options", "settings", "flags", "hparams")
"""What people call the settings that the command line or a file gives."""


class Flow:
    """The variables of a program: what gives them values, what is called on them, where they are read. Make
    it with `flow_of`."""

    def __init__(self, program: Program) -> None:
        self.program, self.bound, self.key = program, program.bound, program.key
        self.calls: dict[Key, list[ast.Call]] = {}
        self.reads: dict[Key, list[ast.AST]] = {}
        self.attributes: dict[str, int] = {}
        self._stores: dict[str, int] = {}
        self._sites: dict[Function, list[ast.Call]] = {}
        self._numbers: dict[tuple[ast.AST | None, int], float | None] = {}
        for node in program.everywhere(ast.Call, ast.Name, ast.Attribute):
            if isinstance(node, ast.Call):
                self._called(node)
            elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
                self._read(node)
            elif isinstance(node, ast.Attribute):
                self._stores[node.attr] = self._stores.get(node.attr, 0) + 1

    def _called(self, call: ast.Call) -> None:
        if is_method(call) and (key := self.key(call.func.value)) is not None:
            self.calls.setdefault(key, []).append(call)
        local = self.program.run_by(call)
        if local is not None:
            self._sites.setdefault(local, []).append(call)

    def _read(self, node: ast.Name | ast.Attribute) -> None:
        if isinstance(node, ast.Attribute):
            self.attributes[node.attr] = self.attributes.get(node.attr, 0) + 1
        if (key := self.key(node)) is not None:
            self.reads.setdefault(key, []).append(node)

    # Variables ----------------------------------------------------------------

    def bindings(self, node: ast.AST | None) -> list[Binding]:
        """All places that give a variable a value."""
        key = self.key(node)
        return self.bound.get(key, []) if key is not None else []

    def values(self, key: Key | None) -> list[ast.expr | None]:
        """What a variable is assigned; None for a part of a value, and for what a loop goes over."""
        return [
            one.value if one.place is None else None
            for one in (self.bound.get(key, []) if key is not None else [])
            if one.how in ("assign", "add") or isinstance(one.node, ast.For)
        ]

    def assigned(self) -> Iterator[tuple[Key, list[ast.expr | None]]]:
        """The variables that are assigned anywhere, with their values."""
        return ((key, values) for key in self.bound if (values := self.values(key)))

    def only(self, key: Key | None) -> ast.expr | None:
        """The one expression that a variable is assigned; None where there are more."""
        found = self.values(key)
        return found[0] if len(found) == 1 else None

    def made(self, key: Key | None) -> ast.Call | None:
        """The one call whose result a variable holds; None where it is assigned otherwise or again."""
        value = self.only(key)
        return value if isinstance(value, ast.Call) else None

    def made_for(self, key: Key | None) -> ast.Call | None:
        """The one call whose result a variable holds, also of a parameter: what the one call of its
        function is given, as a variable or written out."""
        key = self.origin(key)
        found = self.bound.get(key, []) if key is not None else []
        given = self.arguments(found[0]) if len(found) == 1 and found[0].how == "parameter" else []
        written = given[0] if len(given) == 1 else None
        return written if isinstance(written, ast.Call) else self.made(key)

    def escapes(self, key: Key) -> list[ast.AST]:
        """Where a variable is read as a whole, or its `x.step` is: it may be changed or called elsewhere."""
        return [
            node
            for node in self.reads.get(key, [])
            if not isinstance(self.program.parent.get(node), ast.Attribute) or self._bound_step(node)
        ]

    def _bound_step(self, node: ast.AST) -> bool:
        """Whether `x.step` is read as a value (`update = x.step`, `compile(x.step)`): it is called elsewhere.
        As a statement of its own it lacks its brackets."""
        around = self.program.parent.get(node)
        if not is_attribute(around, "step"):
            return False
        user = self.program.parent.get(around)
        return not isinstance(user, ast.Expr) and not (isinstance(user, ast.Call) and user.func is around)

    def stores_of(self, attribute: str) -> int:
        """How often an attribute of that name is given a value, or deleted, on whatever object."""
        return self._stores.get(attribute, 0)

    def called_on(self, key: Key | None) -> set[str]:
        """The names of the methods that are called on a variable."""
        return {call.func.attr for call in (self.calls.get(key, []) if key else []) if is_method(call)}

    # Calls of functions of the program ------------------------------------------

    def site(self, function: Function | None) -> ast.Call | None:
        """The one call of a function; None where there is none, or more than one."""
        found = self._sites.get(function, []) if function is not None else []
        return found[0] if len(found) == 1 else None

    def loops(self, node: ast.AST) -> list[Loop]:
        """The loops around a node, innermost first, with those around the one call of its function."""
        found = self.program.loops(node)
        for _ in range(2):
            site = self.site(self.program.function_of(node))
            if site is None:
                break
            found = found + self.program.loops(site)
            node = site
        return found

    def arguments(self, parameter: Binding) -> list[ast.expr]:
        """What the calls of a function give to one of its parameters."""
        function, one = self.program.function_of(parameter.node), parameter.node
        if function is None or not isinstance(one, ast.arg):
            return []
        calls = self._sites.get(function, [])
        given = [self.program.arguments(function, call).get(one.arg) for call in calls]
        return [value for value in given if value is not None]

    def origin(self, key: Key | None) -> Key | None:
        """The variable that a parameter gets at the one call of its function, or that the function that is
        called returns; another variable is itself."""
        for _ in range(4):
            found = self.bound.get(key, []) if key is not None else []
            given = self._from_elsewhere(found[0]) if len(found) == 1 else []
            if len(given) != 1 or (other := self.key(given[0])) is None:
                break
            key = other
        return key

    def _from_elsewhere(self, one: Binding) -> list[ast.AST]:
        """What a variable gets from another function: as a parameter, or as a part of what a call returns."""
        if one.how == "parameter":
            return [*self.arguments(one)]
        if is_name(one.whole) and any(two.how == "parameter" for two in self.bindings(one.whole)):
            return [one.whole]  # self.model = model
        results = self.program.results(one.value) if one.how == "assign" else []
        if one.place is None or len(results) != 1:
            return results
        parts = results[0].elts if isinstance(results[0], ast.Tuple) else []
        return [*parts[one.place : one.place + 1]]

    # Values -------------------------------------------------------------------

    def given(self, use: ast.AST) -> Binding | None:
        """The one binding that a use of a variable reads; None where more than one may be it, and of a
        parameter."""
        key, found = self.key(use), self.bindings(use)
        if len(found) == 1:
            return None if found[0].how == "parameter" else found[0]
        if key is None or is_own(use) or key[0] is not self.program.scope(use):
            return None
        around = [use, *self.program.parents(use)]
        for one in found:
            if isinstance(one.node, ast.comprehension) and self.program.parent.get(one.node) in around:
                return one
        before = [
            one
            for one in found
            if place_of(one.node) < place_of(use) and (one.how == "for" or one.node not in around)
        ]
        last = max(before, key=lambda one: place_of(one.node), default=None)
        if last is None or last.how == "parameter":
            return None
        statement = last.node
        if not isinstance(statement, ast.stmt):
            statement = self.program.parent.get(statement, statement)
        block = self.program.parent.get(statement)
        while isinstance(block, (ast.With, ast.AsyncWith)) and block not in around:
            statement, block = block, self.program.parent.get(block)
        if block not in around or last.how == "add" or not _same_list(block, statement, around):
            return None
        for loop in around:
            if loop is block or loop is last.node:  # a loop sets its target in each turn
                break
            if isinstance(loop, Loop) and any(loop in self.program.parents(one.node) for one in found):
                return None
        return last

    def passed(self, node: ast.AST | None) -> list[ast.expr]:
        """What the calls of a function give to the parameter that an expression is."""
        found = self.bindings(node)
        if len(found) > 1 and node is not None and not self.program.loops(node):
            around = [node, *self.program.parents(node)]  # `x = x.view(-1)` reads the parameter
            found = [one for one in found if place_of(one.node) < place_of(node) and one.node not in around]
        return self.arguments(found[0]) if len(found) == 1 and found[0].how == "parameter" else []

    @overload
    def value(self, node: ast.AST) -> ast.AST: ...

    @overload
    def value(self, node: ast.AST | None) -> ast.AST | None: ...

    def value(self, node: ast.AST | None) -> ast.AST | None:
        """The expression that a variable stands for, also one that all calls of a function give to its
        parameter; the variable where that is unknown, and any other expression as it is."""
        for _ in range(DEPTH):
            if node is None or self.key(node) is None:
                break
            one = self.given(node)
            found = [one.whole] if one is not None else self.passed(node)
            if 1 < len(found) <= MOST_CALLS and self._is_one(found):
                found = found[:1]  # a loss or a model that the training and the evaluation are given
            if len(found) != 1 or found[0] is None:
                break
            node = found[0]
        return node

    def _is_one(self, given: Sequence[ast.expr | None]) -> bool:
        """Whether expressions are one variable, which is assigned once."""
        keys = {self.key(one) for one in given}
        return len(keys) == 1 and len(self.bindings(given[0])) == 1

    def possible(self, node: ast.AST | None, depth: int = 4) -> list[ast.expr]:
        """All expressions that a variable may stand for, over all calls of the function around it."""
        if not isinstance(node, ast.expr):
            return []
        if self.key(node) is None:
            return [node]
        one = self.given(node)
        found = [one.whole] if one is not None else self.passed(node)
        return [value for given in found if depth for value in self.possible(given, depth - 1)]

    def maker(self, call: ast.Call) -> ast.Call | None:
        """The call that made the module which a call runs."""
        found = self.value(call.func)
        return found if isinstance(found, ast.Call) and found is not call else None

    def held(self, node: ast.AST) -> ast.expr | None:
        """The expression that the statement before gave to a variable; None where that is unknown."""
        one = self.given(node)
        return None if one is None else one.whole

    def origins(self, node: ast.AST, depth: int = DEPTH) -> Iterator[ast.AST]:
        """An expression's nodes, and those of the values that its variables were given."""
        waiting, seen = [(node, depth)], {node}
        while waiting:
            at, left = waiting.pop()
            yield at
            following: list[ast.AST] = list(ast.iter_child_nodes(at))
            if left and is_read(at) and (found := self.given(at)) is not None and found.value is not None:
                following.append(found.value)
                left -= 1
            for one in following:
                if one not in seen and not isinstance(one, (ast.expr_context, ast.operator)):
                    seen.add(one)
                    waiting.append((one, left))

    def number(self, node: ast.AST | None, depth: int = DEPTH) -> float | None:
        """The number that an expression is: a literal, a constant of the script, the default of a parameter
        or of a command line option; None where that is not known."""
        if (node, depth) not in self._numbers:  # else calls are followed in all orders
            self._numbers[node, depth] = self._number(node, depth)
        return self._numbers[node, depth]

    def _number(self, node: ast.AST | None, depth: int) -> float | None:
        value = self.value(node)
        if value is None or not depth:
            return None
        if (found := number_in(value)) is not None:
            return found
        if is_negative(value):
            inner = self.number(value.operand, depth - 1)
            return None if inner is None else -inner
        if isinstance(value, ast.BinOp):
            left, right = self.number(value.left, depth - 1), self.number(value.right, depth - 1)
            return None if left is None or right is None else _computed(value.op, left, right)
        if is_call(value, "float") and len(value.args) == 1 and is_string(value.args[0]):
            text = value.args[0].value.lower().removesuffix("inity")
            return float(text) if text in ("inf", "-inf") else None
        if is_attribute(value, "inf", "Inf"):
            known = self.program.dotted(value) in ("torch.inf", "math.inf", "numpy.inf", "numpy.Inf")
            return float("inf") if known else None
        if is_attribute(value) and last_word(value.value) in SETTINGS:
            return self.number(_options(self.program).get(value.attr), depth - 1)
        if isinstance(value, ast.Subscript) and is_string(value.slice):  # CONFIG["epochs"]
            return self.number(entry_of(self.value(value.value), value.slice.value), depth - 1)
        given = {self.number(one, depth - 1) for one in self.passed(value)}
        if len(given) == 1 and (number := given.pop()) is not None:
            return number
        default = self.default(value)
        return None if default is None else self.number(default, depth - 1)

    def default(self, node: ast.AST) -> ast.expr | None:
        """The default of a parameter that nothing else sets; None where there is none."""
        found = self.bindings(node)
        one = found[0].node if len(found) == 1 else None
        return _default_of(self.program.function_of(one), one) if isinstance(one, ast.arg) else None


@lru_cache(maxsize=1)
def flow_of(program: Program) -> Flow:
    """The variables of a program; read once for all rules."""
    return Flow(program)


@lru_cache(maxsize=1)
def _options(program: Program) -> dict[str, ast.expr]:
    """Defaults of command line options, and of fields of classes: where a name has one default."""
    found: dict[str, list[ast.expr]] = {}
    for call in program.calls():
        default = argument(call, "default") if is_method(call, "add_argument") else None
        for one in call.args if default is not None else ():
            if is_string(one) and default is not None:
                found.setdefault(one.value.lstrip("-").replace("-", "_"), []).append(default)
    for node in program.everywhere(ast.AnnAssign):
        if is_name(node.target) and node.value is not None and isinstance(program.parent[node], ast.ClassDef):
            found.setdefault(node.target.id, []).append(node.value)
    return {name: values[0] for name, values in found.items() if len(values) == 1}


def _default_of(function: Function | None, parameter: ast.arg) -> ast.expr | None:
    if function is None:
        return None
    plain = [*function.args.posonlyargs, *function.args.args][::-1]
    found: dict[ast.arg, ast.expr | None] = dict(zip(plain, function.args.defaults[::-1], strict=False))
    found |= zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return found.get(parameter)


_RUN_BY_TORCH = ("forward", "step", "backward", "setup_context", "transform", "__call__")
"""Methods that torch calls of its own classes."""
_PLAIN = ("no_grad", "inference_mode", "enable_grad", "staticmethod", "classmethod", "override", "compile")
"""Decorators that register nothing."""
_NO_LIBRARY = ("", "object", "abc", "ABC", "typing", "Protocol", "Generic")
"""What a class may extend that calls none of its methods by itself."""


def may_be_run(program: Program, method: Function, of: ast.ClassDef) -> bool:
    """Whether a method may run though no call names it: by a library that the class extends, by what a
    decorator registers it with, by another name, or by one that is put together
    (`getattr(callback, "on_" + event)`)."""
    name = method.name
    decorators = [one.func if isinstance(one, ast.Call) else one for one in method.decorator_list]
    if (of.bases and name == "forward") or any(last_word(one) not in _PLAIN for one in decorators):
        return True
    beside = [part for one in of.body if not isinstance(one, Function) for part in ast.walk(one)]
    if any(is_name(one, name) and isinstance(one.ctx, ast.Load) for one in beside):
        return True  # `on_end = restore`
    for base in (one for each in (of, *program.bases(of)) for one in each.bases):
        library, dot, _ = (program.dotted(base) or "").partition(".")
        known = library in _NO_LIBRARY or (not dot and library in program.classes)
        if not known and (library != "torch" or name in _RUN_BY_TORCH):
            return True
    asked = [
        one.args[min(1, len(one.args) - 1)] for one in program.calls()
        if last_word(one.func) in ("getattr", "attrgetter", "methodcaller") and one.args
    ]
    if not any(not isinstance(one, ast.Constant) or one.value == name for one in asked):
        return False
    words = {one.value for one in program.everywhere(ast.Constant) if isinstance(one.value, str)} - {""}
    return name in words or any(
        (word.endswith("_") and name.startswith(word)) or (word.startswith("_") and name.endswith(word))
        for word in words
    )


def _computed(operation: ast.operator, left: float, right: float) -> float | None:
    if type(operation) in _OPERATIONS:
        return _OPERATIONS[type(operation)](left, right)
    if isinstance(operation, ast.Div) and right:
        return left / right
    power = isinstance(operation, ast.Pow) and 0 < left < 1000 and abs(right) < 100
    return float(left**right) if power else None


def place_of(node: ast.AST) -> tuple[int, int]:
    """Where a node stands: its line and column."""
    if isinstance(node, ast.withitem):
        node = node.context_expr
    elif isinstance(node, ast.comprehension):
        node = node.target
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def _same_list(block: ast.AST | None, statement: ast.AST, around: list[ast.AST]) -> bool:
    """Whether a statement stands in the same branch of a block as what is around the use."""
    for name in ("body", "orelse", "finalbody", "handlers"):
        found = getattr(block, name, None)
        if isinstance(found, list) and statement in found:
            return any(one in found for one in around)
    return isinstance(block, (ast.With, ast.AsyncWith))
