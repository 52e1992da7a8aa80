"""Held-out pairs that the model already gets with its input: in its graph, or in the profile of a user. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import HELD_OUT, TRAINING
from probe.diagnose.code.flow import Flow, flow_of, place_of
from probe.diagnose.code.program import Binding, Key, Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    argument,
    entry_of,
    is_attribute,
    is_binary,
    is_call,
    is_method,
    is_own,
    is_string,
    iterated,
    last_word,
    number_in,
    own,
    pairs_of,
    short,
    text_of,
)

RULES = Rules("data")
_SPARSE = frozenset({"sparse_coo_tensor", "coo_matrix", "csr_matrix", "csc_matrix"})
_EMPTY = frozenset({"zeros", "eye", "zeros_like"})
_JOINS = frozenset({"cat", "stack", "hstack", "vstack", "concatenate", "concat", "tensor", "as_tensor", "array", "asarray", "from_numpy", "LongTensor", "zip", "list", "column_stack"})
_PRODUCTS = frozenset({"mm", "matmul", "spmm", "bmm", "addmm"})
_MOST = 200
"""Expressions that a value is followed through, and places that a matrix is followed to."""
_GRAPH = "the held-out pairs are part of what the model computes with: its score on them says nothing of new ones"


@RULES.add("held-out-pairs-in-the-input", _GRAPH, "make the matrix of the training part alone")
def _held_out_pairs(program: Program) -> Iterator[Remark]:
    """A matrix of all pairs (edges, clicks) that the model takes, where a part of the same pairs is held out."""
    flow = flow_of(program)
    held = {key: part for base, part in _held_parts(program) for key in _roots(flow, base)}
    if not held:
        return
    for node, index in _matrices(program, flow):
        shared = [held[key] for one in index for key in _roots(flow, one) if key in held]
        if shared and _reaches_model(flow, node):
            part = min(shared, key=place_of)
            yield Remark(node, f"{short(node)} is made of all pairs, also of those held out by {short(part)} (line {part.lineno}), and the model computes with it")
            return


def _held_parts(program: Program) -> Iterator[tuple[ast.expr, ast.Subscript]]:
    """What is cut into a part for the training and one that is held out, by their names, with the second one."""
    for scope in program.scopes():
        named = [(name, one) for node in own(scope, ast.Assign, ast.Dict) for name, value in _named(node) for one in (value.args if isinstance(value, ast.Call) else [value])]
        parts = [(name, value) for name, value in named if isinstance(value, ast.Subscript)]
        trained = {text_of(value.value) for name, value in parts if TRAINING.search(name)}
        for name, value in parts:
            if HELD_OUT.search(name) and text_of(value.value) in trained:
                yield value.value, value


def _named(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """The names that values are given: of variables, attributes and entries of a dict."""
    if isinstance(node, ast.Dict):
        yield from ((key.value, value) for key, value in zip(node.keys, node.values, strict=True) if is_string(key))
    for target, value in pairs_of(node) if isinstance(node, ast.Assign) else ():
        at = target.value if isinstance(target, ast.Subscript) else target
        key = target.slice if isinstance(target, ast.Subscript) else None
        yield (key.value if is_string(key) else last_word(at)), value


def _matrices(program: Program, flow: Flow) -> Iterator[tuple[ast.Call | ast.Assign, list[ast.expr]]]:
    """The places that make a matrix with an entry for each pair, with what says where its entries are."""
    for call in program.calls():
        if last_word(call.func) in _SPARSE and call.args:
            first = call.args[0]
            yield call, [first.elts[-1] if isinstance(first, ast.Tuple) else first]
    for node in program.everywhere(ast.Assign):
        target = node.targets[0]
        if not isinstance(target, ast.Subscript) or not isinstance(target.slice, ast.Tuple) or len(node.targets) != 1:
            continue
        places = list(target.slice.elts)
        made = [one.value for one in flow.bindings(target.value)]
        empty = any(isinstance(one, ast.Call) and last_word(one.func) in _EMPTY for one in made)
        if empty and not any(isinstance(one, (ast.Slice, ast.Constant)) for one in places):
            yield node, [*places]


# Where values come from -----------------------------------------------------


def _roots(flow: Flow, node: ast.AST) -> set[Key]:
    """The variables that hold all of the rows of a value: it is one of them, its columns, or their order mixed."""
    waiting, seen, found = [node], set[ast.AST](), set[Key]()
    while waiting and len(seen) < _MOST:
        at = waiting.pop()
        if at not in seen:
            seen.add(at)
            waiting += [one for one in _whole_of(flow, at) if one is not None]
            if (key := flow.key(at)) is not None:
                found.add(key)
    return found


def _whole_of(flow: Flow, node: ast.AST) -> list[ast.AST | None]:
    """What a value has the rows of."""
    if isinstance(node, ast.Subscript):
        entry = _entry(flow, node)
        return [entry] if entry is not None else [node.value] if _keeps_rows(flow, node.slice) else []
    if isinstance(node, (ast.List, ast.Tuple)):
        return [*node.elts]
    if isinstance(node, ast.Starred):
        return [node.value]
    if is_binary(node, ast.Add, ast.Sub):
        return [node.left, node.right]
    if isinstance(node, ast.Call):
        if last_word(node.func) in _JOINS:
            return [*node.args]
        results = flow.program.results(node)
        return [*results] or ([node.func.value] if isinstance(node.func, ast.Attribute) and not node.args else [])
    if flow.key(node) is None:
        return [*_of_object(flow, node)] if isinstance(node, ast.Attribute) else []
    return [one for binding in flow.bindings(node) for one in _given(flow, binding)]


def _given(flow: Flow, binding: Binding) -> list[ast.AST | None]:
    """What a variable gets, at one of its places."""
    if binding.how == "parameter":
        return [*flow.arguments(binding)]
    if isinstance(binding.node, (ast.For, ast.AsyncFor)):
        around = iterated(binding.node)
        if is_call(around, "zip") and binding.place is not None:
            return [*around.args[binding.place : binding.place + 1]]
        return [] if is_method(around, "items") else [around]
    if binding.place is None:
        return [binding.value]
    parts = [one.elts for one in flow.program.results(binding.value) if isinstance(one, ast.Tuple)]
    return [elts[binding.place] for elts in parts if binding.place < len(elts)] or ([binding.value] if not isinstance(binding.value, ast.Call) else [])


def _of_object(flow: Flow, node: ast.Attribute) -> list[ast.AST | None]:
    """What an object of a class of the program holds under a name."""
    kind = flow.program.kind(node.value)
    of = flow.program.classes.get(kind.name) if kind is not None else None
    return [] if not of else [value for value in flow.values((of[0], f"self.{node.attr}")) if value is not None]


def _entry(flow: Flow, node: ast.Subscript) -> ast.AST | None:
    """The value of `graph["edges"]`, where the dict is written out."""
    if not is_string(node.slice):
        return None
    for one in [node.value, *flow.possible(node.value)]:
        for made in [one, *flow.program.results(one)]:
            entry = entry_of(flow.value(made), node.slice.value)
            if entry is not None:
                return entry
    return None


def _keeps_rows(flow: Flow, index: ast.AST) -> bool:
    """Whether an index takes all rows: one column, or a new order."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return all(
        (isinstance(one, ast.Slice) and one.lower is None and one.upper is None) or number_in(one) is not None
        or is_method(flow.value(one), "randperm", "permutation", "argsort")
        for one in parts
    )


# Where a matrix goes --------------------------------------------------------


def _reaches_model(flow: Flow, made: ast.Call | ast.Assign) -> bool:
    """Whether a matrix is multiplied inside a model, is given to one, or is what a data set gives."""
    program = flow.program
    waiting: list[ast.AST] = [made]
    if isinstance(made, ast.Assign) and isinstance(made.targets[0], ast.Subscript):
        waiting = [*_reads(flow, made.targets[0].value)]
    seen: set[ast.AST] = set()
    while waiting and len(seen) < _MOST:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        around = program.parent.get(node)
        if isinstance(around, ast.Subscript) and around.value is node and isinstance(around.ctx, ast.Load):
            waiting.append(around)
        elif isinstance(around, (ast.BinOp, ast.UnaryOp, ast.Tuple, ast.Starred, ast.IfExp)):
            if is_binary(around, ast.MatMult) and _in_module(program, around):
                return True
            waiting.append(around)
        elif isinstance(around, ast.Attribute) and isinstance(program.parent.get(around), ast.Call):
            waiting.append(program.parent[around])  # its method
        elif isinstance(around, (ast.Assign, ast.AnnAssign)):
            for target in around.targets if isinstance(around, ast.Assign) else [around.target]:
                waiting += _reads(flow, target)
        elif isinstance(around, ast.Dict) and node in around.values:
            key = around.keys[around.values.index(node)]
            waiting += [one for one in program.everywhere(ast.Subscript) if is_string(key) and is_string(one.slice) and one.slice.value == key.value]
        elif isinstance(around, ast.Return):
            function = program.function_of(around)
            if function is None or function.name in ("__getitem__", "__iter__"):
                return function is not None
            waiting += [call for call in program.calls() if program.local_function(call) is function]
        elif isinstance(around, (ast.Call, ast.keyword)):
            call = program.parent[around] if isinstance(around, ast.keyword) else around
            if not isinstance(call, ast.Call) or node is call.func:
                continue
            if program.family(call.func) == "module" or (last_word(call.func) in _PRODUCTS and _in_module(program, call)):
                return True
            waiting += _passed_on(flow, call, node)
    return False


def _passed_on(flow: Flow, call: ast.Call, node: ast.AST) -> list[ast.AST]:
    """Where a call puts an argument: its parameter, its buffer, or its result."""
    name = argument(call, "name", 0) if is_method(call, "register_buffer") else None
    if is_string(name):
        of = flow.program.class_of(call)
        return [one for one in flow.program.everywhere(ast.Attribute) if is_own(one) and one.attr == name.value and flow.program.class_of(one) is of]
    function = flow.program.run_by(call)
    if function is None:
        return [call] if last_word(call.func) in (*_JOINS, "to_dense", "normalize", "Tensor") else []
    names = [name for name, value in flow.program.arguments(function, call).items() if value is node]
    return [one for name in names for one in flow.reads.get((function, name), [])]


def _reads(flow: Flow, target: ast.AST) -> list[ast.AST]:
    """Where a variable, or an attribute on whatever object, is read."""
    found = list(flow.reads.get(key, [])) if (key := flow.key(target)) is not None else []
    if is_attribute(target) and flow.stores_of(target.attr) == 1:
        found += [one for one in flow.program.everywhere(ast.Attribute) if one.attr == target.attr and isinstance(one.ctx, ast.Load) and not is_own(one)]
    return found


def _in_module(program: Program, node: ast.AST) -> bool:
    """Whether code stands in a class that is an nn.Module."""
    of = program.class_of(node)
    return of is not None and program.is_module_class(of)
