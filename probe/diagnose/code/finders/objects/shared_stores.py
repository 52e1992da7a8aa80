"""Lists and dicts that are made once and kept by several objects. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import Function, is_method, is_name, last_word, parameters, short

_EMPTY = ("dict", "list", "set", "defaultdict", "OrderedDict", "deque", "Counter")
_GROWS = ("append", "extend", "add", "appendleft", "insert")
_WRITES = ("update", "setdefault", "__setitem__")
_NO_OBJECTS = ("NamedTuple", "Enum", "IntEnum", "BaseModel", "TypedDict", "Protocol", "ABC")


class Store(NamedTuple):
    """An empty list or dict that is made once: where, by what parameter (None: in the class itself), and what it is
    called."""

    node: ast.expr
    parameter: str | None
    name: str
    written: str


def one_store_for_several(program: Program) -> Iterator[Remark]:
    """Objects keep a dict that was made once, as a default or in their class, and each writes over what the others have
    kept; or functions give it back."""
    for classes in program.classes.values():
        for of in classes:
            for store in (*_of_init(program, of), *_of_class(program, of)):
                makes = [call for call in program.calls() if is_name(call.func, of.name) and _leaves_out(call, program.method(of, "__init__"), store.parameter, 1)]
                writes = [one for one in _written(program, store) if one is not None]
                if writes and not _is_memory(program, store) and (pair := _both(program, makes, writes)) is not None:
                    yield _said(store, of.name, pair, writes[0])
            yield from _counted_in_the_class(program, of)
    for function in program.everywhere(ast.FunctionDef):
        if isinstance(function, ast.FunctionDef) and isinstance(program.parent.get(function), ast.Module):
            yield from _given_back(program, function)


def _counted_in_the_class(program: Program, of: ast.ClassDef) -> Iterator[Remark]:
    """Sums that a class keeps for all of its objects, of which several are filled and read."""
    starts = {target.id: node for node in of.body if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Constant) for target in (node.targets if isinstance(node, ast.Assign) else [node.target]) if isinstance(target, ast.Name)}
    for add in ast.walk(of):
        target = add.target if isinstance(add, ast.AugAssign) else None
        if not isinstance(add, ast.AugAssign) or not isinstance(target, ast.Attribute) or target.attr not in starts or isinstance(add.value, ast.Constant):
            continue
        again = [one for one in program.everywhere(ast.Attribute) if one.attr == target.attr and isinstance(one.ctx, ast.Store) and one is not target]
        makes = [call for call in program.calls() if is_name(call.func, of.name)]
        read = any(isinstance(one, ast.Attribute) and one.attr == target.attr and isinstance(one.ctx, ast.Load) for one in ast.walk(of))
        if ast.unparse(target.value) in (of.name, "self.__class__", "type(self)") and len(makes) > 1 and read and not again:
            yield Remark(add, f"{ast.unparse(target)} is one number for all objects of {of.name} (line {starts[target.attr].lineno}): {short(makes[0], 40)} (line {makes[0].lineno}) and {short(makes[1], 40)} (line {makes[1].lineno}) add to the same")
            return


def _said(store: Store, of: str, pair: tuple[ast.Call, ast.Call], write: ast.AST) -> Remark:
    one, other = pair
    both = f"{short(one, 40)} (line {one.lineno}) and {short(other, 40)} (line {other.lineno})" if one is not other else f"all that {short(one, 40)} (line {one.lineno}) makes"
    return Remark(store.node, f"{store.written} is made once, with {of}: {both} share it, and what {short(write, 50)} (line {getattr(write, 'lineno', 0)}) puts into the one is in the other too")


# Stores that are made once ------------------------------------------------------------


def _of_init(program: Program, of: ast.ClassDef) -> Iterator[Store]:
    """Defaults that an object keeps as they are."""
    init = next((one for one in of.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)
    for name, default in _defaults(init) if init is not None else ():
        if init is None or not _is_empty(default) or _is_set(init, name):
            continue
        kept = [one for one in ast.walk(init) if isinstance(one, ast.Assign) and is_name(one.value, name) and len(one.targets) == 1]
        target = kept[0].targets[0] if len(kept) == 1 else None
        if isinstance(target, ast.Attribute) and is_name(target.value, "self") and _times_set(program, target.attr) == 1:
            yield Store(default, name, target.attr, f"{name}={short(default)}")


def _of_class(program: Program, of: ast.ClassDef) -> Iterator[Store]:
    """Variables of a class that no method sets, and that all its objects read as their own."""
    if of.decorator_list or any(last_word(one) in _NO_OBJECTS for one in of.bases):
        return
    for one in of.body:
        target = one.targets[0] if isinstance(one, ast.Assign) and len(one.targets) == 1 else None
        if isinstance(one, ast.Assign) and isinstance(target, ast.Name) and _is_empty(one.value) and _times_set(program, target.id) == 0:
            read = [node.value for node in program.everywhere(ast.Attribute) if isinstance(node, ast.Attribute) and node.attr == target.id]
            if not any(isinstance(on, ast.Name) and (on.id == "cls" or on.id in program.classes) for on in read):
                yield Store(one.value, None, target.id, short(one))


def _defaults(function: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    plain = [*function.args.posonlyargs, *function.args.args]
    yield from ((one.arg, value) for one, value in zip(plain[::-1], function.args.defaults[::-1], strict=False))
    yield from ((one.arg, value) for one, value in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if value is not None)


def _is_empty(node: ast.expr) -> bool:
    """Whether an expression makes an empty list, dict or set."""
    if isinstance(node, ast.Call):
        return last_word(node.func) in _EMPTY and not any(not isinstance(one, (ast.Name, ast.Lambda)) for one in node.args)
    return (isinstance(node, ast.Dict) and not node.keys) or (isinstance(node, ast.List) and not node.elts)


def _is_set(function: ast.AST, name: str) -> bool:
    return any(isinstance(one, ast.Name) and one.id == name and not isinstance(one.ctx, ast.Load) for one in ast.walk(function))


def _times_set(program: Program, name: str) -> int:
    return sum(isinstance(one, ast.Attribute) and one.attr == name and not isinstance(one.ctx, ast.Load) for one in program.everywhere(ast.Attribute))


# What is written into them --------------------------------------------------------------


def _written(program: Program, store: Store) -> Iterator[ast.AST]:
    """Where something is put into a store, after its object was made."""
    for node in program.everywhere(ast.Attribute):
        if isinstance(node, ast.Attribute) and node.attr == store.name and not _is_making(program, node):
            yield from _writing(program, node)


def _writing(program: Program, node: ast.expr) -> Iterator[ast.AST]:
    """What puts something into a list or dict at once: `x[key] = value`, where the key says nothing of an object, and
    `x.append(value)`."""
    around = program.parent.get(node)
    outer = program.parent.get(around) if around is not None else None
    if isinstance(around, ast.Subscript) and around.value is node:
        key = {one.id for one in ast.walk(around.slice) if isinstance(one, ast.Name)}
        if isinstance(around.ctx, ast.Store) and not key & {"self", "id"}:
            yield outer if isinstance(outer, (ast.Assign, ast.AugAssign)) else around
        elif is_method(inner := program.parent.get(outer) if outer is not None else None, *_GROWS) and inner.func is outer:
            yield inner
    elif isinstance(around, ast.Attribute) and is_method(outer, *_GROWS, *_WRITES) and outer.func is around and outer.args:
        of_one = around.attr not in _GROWS and any(is_name(one, "self", "id") for one in ast.walk(outer.args[0]))
        yield from () if of_one else (outer,)


def _is_making(program: Program, node: ast.AST) -> bool:
    """Whether a node runs while its object is made: it stands in `__init__`, and in no function inside of it."""
    function = next((one for one in program.parents(node) if isinstance(one, (*_FUNCTIONS, ast.Lambda))), None)
    return isinstance(function, _FUNCTIONS) and function.name == "__init__"


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _is_memory(program: Program, store: Store) -> bool:
    """Whether a store is asked for what it has already, and gives that back; or is emptied."""
    for node in program.everywhere(ast.Attribute):
        if not isinstance(node, ast.Attribute) or node.attr != store.name:
            continue
        around = program.parent.get(node)
        if isinstance(around, ast.Attribute) and around.attr in ("clear", "get", "pop", "popleft"):
            return True
        function = next((one for one in program.parents(node) if isinstance(one, _FUNCTIONS)), None)
        asked = isinstance(around, ast.Compare) and isinstance(around.ops[0], (ast.In, ast.NotIn))
        gives = function is not None and any(isinstance(one, ast.Return) and one.value is not None and any(isinstance(each, ast.Attribute) and each.attr == store.name for each in ast.walk(one.value)) for one in ast.walk(function))
        written = function is not None and any(isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Store) and isinstance(one.value, ast.Attribute) and one.value.attr == store.name for one in ast.walk(function))
        if ((asked or written) and gives) or (isinstance(around, ast.Delete)) or (isinstance(around, ast.Subscript) and isinstance(around.ctx, ast.Del)):
            return True
    return False


# Who shares them ------------------------------------------------------------------------


def _both(program: Program, makes: list[ast.Call], writes: list[ast.AST]) -> tuple[ast.Call, ast.Call] | None:
    """Two calls that make objects which are kept side by side, or one that makes several. Of a list that grows, the
    second one may come when the first is gone."""
    kept = [one for one in makes if isinstance(program.statement(one), (ast.Assign, ast.AnnAssign, ast.Return))]
    grows = any(is_method(one, *_GROWS) for one in writes)
    many = next((one for one in kept if any(isinstance(each, (ast.ListComp, ast.DictComp)) for each in program.parents(one)) or (grows and _again(program, one))), None)
    if many is not None:
        return many, many
    for place, one in enumerate(kept):
        for other in kept[place + 1 :]:
            together = program.scope(one) is program.scope(other) and (grows or _targets(program, one) != _targets(program, other) or program.statement(one) is program.statement(other))
            if together and not _never_both(program, one, other) and not _words_apart(one, other):
                return one, other
    return None


def _again(program: Program, call: ast.Call) -> bool:
    """Whether a call stands in a loop, or in a function that is called in one."""
    function = program.function_of(call)
    callers = [one for one in program.calls() if isinstance(function, ast.FunctionDef) and last_word(one.func) == function.name]
    return any(program.loops(one) for one in (call, *callers))


def _never_both(program: Program, one: ast.AST, other: ast.AST) -> bool:
    """Whether two nodes stand in the two branches of a condition."""
    for test in program.parents(one):
        if isinstance(test, ast.If) and test in list(program.parents(other)):
            sides = [any(each in part for each in (node, *program.parents(node))) for node in (one, other) for part in (test.body, test.orelse)]
            if sides[0] != sides[2]:
                return True
    return False


def _words_apart(one: ast.Call, other: ast.Call) -> bool:
    """Whether two calls are given texts, and none is the same: keys may be made of them."""
    texts = [{each.value for each in ast.walk(call) if isinstance(each, ast.Constant) and isinstance(each.value, str)} for call in (one, other)]
    return all(texts) and not texts[0] & texts[1]


def _targets(program: Program, call: ast.Call) -> str:
    statement = program.statement(call)
    return " ".join(map(ast.unparse, statement.targets)) if isinstance(statement, ast.Assign) else ast.unparse(statement)


def _leaves_out(call: ast.Call, function: Function | None, name: str | None, bound: int) -> bool:
    """Whether a call gives a parameter no value, and so leaves it at its default."""
    if name is None or function is None:
        return name is None
    if any(isinstance(one, ast.Starred) for one in call.args) or any(word.arg in (None, name) for word in call.keywords):
        return False
    names = [one.arg for one in parameters(function)]
    only = {one.arg for one in function.args.kwonlyargs}
    return name in only or len(call.args) <= names.index(name) - bound


# Functions that give them back ------------------------------------------------------------


def _given_back(program: Program, function: ast.FunctionDef) -> Iterator[Remark]:
    """A function that writes into a default under keys and returns it, and whose results are kept side by side."""
    for name, default in _defaults(function):
        if not isinstance(default, (ast.Dict, ast.Call)) or not _is_empty(default) or _is_set(function, name):
            continue
        gives = any(isinstance(one, ast.Return) and any(is_name(part, name) for part in (one.value.elts if isinstance(one.value, ast.Tuple) else [one.value])) for one in ast.walk(function))
        reads = [one for one in ast.walk(function) if isinstance(one, ast.Name) and one.id == name]
        writes = [write for one in reads for write in _writing(program, one)]
        asked = any(isinstance(around := program.parent.get(one), ast.Compare) or (isinstance(around, ast.Attribute) and around.attr in ("clear", "get", "pop")) for one in reads)
        calls = [one for one in program.calls() if is_name(one.func, function.name) and _leaves_out(one, function, name, 0) and isinstance(program.statement(one), ast.Assign)]
        pair = _both(program, calls, []) if gives and writes and not asked else None
        if pair is not None and pair[0] is not pair[1]:
            yield _said(Store(default, name, name, f"{name}={short(default)}"), function.name, pair, writes[0])
