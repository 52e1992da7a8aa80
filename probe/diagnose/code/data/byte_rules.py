"""Arithmetic on bytes: images of unsigned 8-bit numbers, whose sums wrap around past 255. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import loaders_of, sample_of
from probe.diagnose.code.flow import DEPTH, Flow, flow_of, place_of
from probe.diagnose.code.program import Binding, Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    argument,
    is_binary,
    is_method,
    is_string,
    last_word,
    names_of,
    number_in,
    operands,
    returned,
    short,
)

RULES = Rules("data")
_LARGEST = 255
_CUTS = ("clip", "clamp", "clamp_", "minimum")
_SAME_BYTES = (
    "numpy", "copy", "clone", "contiguous", "flip", "fliplr", "flipud", "rot90", "roll", "pad", "stack", "concatenate",
    "cat", "transpose", "permute", "reshape", "view", "squeeze", "unsqueeze", "repeat", "from_numpy", "array", "asarray",
)
"""Functions and methods that give numbers of the type that they are given."""
_TIMES = re.compile(r"(^|[ _.])(times?|timestamps?|ts|stamps?|unix|epoch_s)($|[ _])", re.I)
_DRAWS = ("randint", "integers", "choice", "normal", "uniform", "poisson", "random")


@RULES.add("bytes-wrap-around", "bright values become dark ones and the other way round", "compute in a wider type first: x.astype(np.float32), or x.float()")
def _wraps(program: Program) -> Iterator[Remark]:
    """A sum, difference or product of bytes that is cut to 0…255 only afterwards, or whose other side is drawn."""
    if not any("uint8" in source.text or ".byte()" in source.text for source in program.sources):
        return
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp):
        if not is_binary(node, ast.Add, ast.Sub, ast.Mult):
            continue
        for one, other in operands(node):
            below = is_binary(node, ast.Sub) and one is node.left and flow.number(other) is None and _is_widened(flow, node)
            if (below or _is_drawn(flow, other) or _is_cut(flow, node)) and _may_wrap(flow, node, one, other) and _is_bytes(flow, one):
                wraps = f"what is below 0 wraps around to {_LARGEST}" if below else f"what passes {_LARGEST} wraps around to 0"
                yield Remark(node, f"{short(node)} is computed in unsigned 8-bit numbers: {wraps}")
                break


def _may_wrap(flow: Flow, node: ast.BinOp, one: ast.expr, other: ast.expr) -> bool:
    """Whether the other side keeps the type, and may take the value out of 0…255."""
    number = flow.number(other)
    if number is None:
        return _is_bytes(flow, other)
    if number != int(number) or isinstance(number_in(flow.value(other)), float):
        return False
    return number > 1 if is_binary(node, ast.Mult) else 0 < number < _LARGEST and not (is_binary(node, ast.Sub) and one is node.right)


def _is_cut(flow: Flow, node: ast.BinOp) -> bool:
    """Whether the result is at once cut to the values of a byte."""
    call = flow.program.parent.get(node)
    if isinstance(call, ast.Attribute):
        call = flow.program.parent.get(call)
    return isinstance(call, ast.Call) and last_word(call.func) in _CUTS and any(
        number_in(one) == _LARGEST for one in [*call.args, *(word.value for word in call.keywords)]
    )


def _is_widened(flow: Flow, node: ast.BinOp) -> bool:
    """Whether a difference is made a floating-point number only afterwards."""
    waiting: list[ast.AST] = [node]
    for use in waiting:
        around = flow.program.parent.get(use)
        if isinstance(around, ast.Assign) and (key := flow.key(around.targets[0])) is not None and len(waiting) < DEPTH:
            waiting += flow.reads.get(key, [])
        elif isinstance(around, ast.List) and last_word(getattr(joined := flow.program.parent.get(around), "func", None)) in ("stack", "cat", "concatenate"):
            waiting += [joined] if joined is not None else []
        if isinstance(around, ast.Attribute) and around.attr in ("float", "double", "astype", "to", "type"):
            return True
        if is_binary(around, ast.Div) and around.left is use:
            return True
    return False


def _is_drawn(flow: Flow, node: ast.AST) -> bool:
    found = flow.value(node)
    return isinstance(found, ast.Call) and any(
        isinstance(one, ast.Call) and last_word(one.func) in _DRAWS for one in ast.walk(found)
    )


def _says_bytes(node: ast.AST | None) -> bool:
    return last_word(node) in ("uint8", "ubyte") or (is_string(node) and node.value == "uint8")


def _is_bytes(flow: Flow, node: ast.AST | None, depth: int = DEPTH) -> bool:
    """Whether an expression is known to be an array or tensor of unsigned 8-bit numbers."""
    if node is None or not depth:
        return False
    program = flow.program
    found = flow.value(node)
    if isinstance(found, ast.Subscript):
        return _is_bytes(flow, found.value, depth - 1)
    if is_binary(found, ast.Add, ast.Sub, ast.Mult):
        return _is_bytes(flow, found.left, depth - 1) and _is_bytes(flow, found.right, depth - 1)
    if isinstance(found, ast.Call):
        if is_method(found, "astype", "to", "type") and found.args:
            return any(map(_says_bytes, found.args))
        if is_method(found, "byte") or (typed := argument(found, "dtype")) is not None:
            return is_method(found, "byte") or _says_bytes(typed)
        local = program.local_function(found)
        if local is not None:
            values = returned(local)
            return bool(values) and all(_is_bytes(flow, one, depth - 1) for one in values)
        if last_word(found.func) in _SAME_BYTES:
            given = found.func.value if is_method(found) and not program.called(found) else next(iter(found.args), None)
            if isinstance(given, ast.ListComp):
                given = given.elt
            return _is_bytes(flow, given, depth - 1)
        return _says_bytes(found.func)
    before = flow.given(found)
    if before is not None:
        return _elements_are_bytes(flow, before, depth - 1)
    around = list(program.parents(found))
    reaching = [one for one in flow.bindings(found) if place_of(one.node) < place_of(found) and one.node not in around]
    given_to = [value for one in reaching for value in flow.arguments(one)]
    return bool(given_to) and all(one.how == "parameter" for one in reaching) and all(_is_bytes(flow, one, depth - 1) for one in given_to)


def _elements_are_bytes(flow: Flow, binding: Binding, depth: int) -> bool:
    """Whether what a loop takes one by one are arrays of bytes."""
    over = binding.node.iter if binding.how == "for" and isinstance(binding.node, (ast.For, ast.comprehension)) else None
    if isinstance(over, (ast.Tuple, ast.List)):
        return bool(over.elts) and all(_is_bytes(flow, one, depth) for one in over.elts)
    for loader in loaders_of(flow, over):
        value = sample_of(flow, loader)
        if isinstance(value, ast.Tuple) and binding.place is not None and binding.place < len(value.elts):
            value = value.elts[binding.place]
        return argument(loader, "collate_fn") is None and _is_bytes(flow, value, depth)
    return over is not None and binding.place is None and _is_bytes(flow, over, depth)


@RULES.add("times-in-float32", "seconds since 1970 are 64 to 128 apart in float32: shorter differences are lost", "take the differences in int64 or float64, and convert them")
def _times(program: Program) -> Iterator[Remark]:
    """Differences of points in time that were made float32 before."""
    flow = flow_of(program)
    epoch = any(isinstance(one.value, (int, float)) and not isinstance(one.value, bool) and 1e9 <= one.value < 1e10 for one in program.everywhere(ast.Constant))
    for node in program.everywhere(ast.Assign) if epoch else ():
        value, target = node.value, node.targets[0]
        if not isinstance(value, ast.Call) or not isinstance(target, ast.Name) or not _to_float32(program, value) or not _TIMES.search(" ".join(names_of(value))):
            continue
        if any(is_binary(one, ast.Sub) for one in flow.origins(value)):
            continue  # counted from a nearer point
        for use in flow.reads.get((program.scope(target), target.id), []):
            around = program.parent.get(use)
            taken = program.parent.get(around) if isinstance(around, ast.Subscript) and around.value is use else around
            if flow.held(use) is not value:
                continue
            if (isinstance(around, ast.Call) and last_word(around.func) in ("diff", "ediff1d")) or is_binary(taken, ast.Sub):
                yield Remark(node, f"{short(node)} rounds the times, and line {getattr(use, 'lineno', 0)} takes their differences")
                break


def _to_float32(program: Program, call: ast.Call) -> bool:
    """Whether a call gives single precision."""
    typed = argument(call, "dtype") or (call.args[0] if is_method(call, "to", "astype", "type") and call.args else None)
    if is_method(call, "float") and not program.called(call):
        return True
    return last_word(typed) in ("float32", "float") or (is_string(typed) and typed.value == "float32")
