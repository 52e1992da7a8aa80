"""Rows that hold several texts one after the other, and whether attention keeps them apart. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, bare, constant, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import is_binary, is_call, is_method, last_word, own_nodes, short, text_of
from probe.diagnose.code.traits.uses import made_from

_ENCODERS = ("torch.nn.MultiheadAttention", "torch.nn.TransformerEncoder", "torch.nn.TransformerEncoderLayer")
_COMPARED = ("eq", "ne", "gt", "lt", "ge", "le")
_SIZES = frozenset({"shape", "size", "len", "numel", "dim"})
_OF_DATA = ("cumsum", "cat", "rows", "element", "append")
"""What numbers texts, or joins them: no counting of places in it makes a mask one of places."""
_UNKNOWN = frozenset({"@input", "run", "rows", "element", "load", "call"})


def texts_see_each_other(program: Program) -> Iterator[Remark]:
    """Texts are packed into rows, each with positions of its own, and no mask keeps an attention within one of them."""
    counted = next(_counted_anew(program), None) or next(_counted_from_starts(computation_of(program)), None) or next(_counted_beside(computation_of(program)), None)
    if counted is None:
        return
    attends = list(_attentions(computation_of(program)))
    if not attends or any(mask is not None and _tells_apart(mask) for _, masks in attends for mask in masks):
        return
    learned = next((value for value, _ in attends if not value.where.no_grad), None)
    if learned is not None:
        yield Remark(learned.node, f"{short(learned.node)} has no mask that keeps the texts of one row apart, and {short(counted)} (line {counted.lineno}) begins to count positions anew for each of them")


def _attentions(computation: Computation) -> Iterator[tuple[Value, list[Value | None]]]:
    """Each place where positions attend to each other, and the masks it is given, but for those of whole positions."""
    for value in computation.of("scaled_dot_product_attention"):
        yield value, [value.argument("attn_mask", 3)]
    for value in computation.of("run"):
        if value.args and value.args[0].op in _ENCODERS:
            heads = value.args[0].op == _ENCODERS[0]
            given = value.argument("attn_mask", 6) if heads else value.named.get("mask", value.named.get("src_mask", value.args[2] if len(value.args) > 2 else None))
            alike = not heads or len(value.args) < 4 or value.args[1] is value.args[2]
            if alike and "**" not in value.named:
                yield value, [given]
    for value in computation.of("softmax"):
        masks = list(_hidden_by(value))
        if masks:
            yield value, masks


def _hidden_by(softmax: Value) -> Iterator[Value | None]:
    """The masks of what a softmax of products is taken of."""
    at, found, products = softmax.args[0] if softmax.args else softmax, [], False
    for _ in range(12):
        if at.op == "masked_fill" and len(at.args) > 1:
            found.append(at.args[1])
        elif at.op == "where" and len(at.args) == 3:
            found.append(at.args[0])
            at = at.args[1] if number(at.args[1]) is None else at.args[2]
            continue
        elif at.op == "add" and len(at.args) == 2:
            found.append(at.args[1])
        products = products or at.op in ("matmul", "einsum", "bmm")
        if products or not at.args:
            break
        at = at.args[0]
    if products and found:
        yield from found


def _tells_apart(mask: Value, depth: int = 24) -> bool:
    """Whether a mask may depend on which text a position belongs to: it compares two things of the data, or is not known."""
    if depth == 0 or mask.op in _UNKNOWN:
        return True
    if mask.op in _SIZES or mask.op == "@constant":
        return False
    if mask.op in _COMPARED and len(mask.args) == 2:
        known = any(number(one) is not None or constant(one) is not None for one in mask.args)
        return not known and not all(any(each.op == "arange" for each in origins(one, _OF_DATA)) for one in mask.args)
    return any(_tells_apart(one, depth - 1) for one in [*mask.made_of()])


# Where rows are filled ------------------------------------------------------------------


def _counted_from_starts(computation: Computation) -> Iterator[ast.expr]:
    """Where a table of places is read at the distance from the last start of a text: `place - cummax(where(start, place, 0))`."""
    for value in computation.of("sub"):
        largest = bare(value.args[1], "values", "part") if len(value.args) == 2 else value
        if largest.op != "cummax" or not isinstance(value.node, ast.expr) or bare(value.args[0], "expand", "repeat").op != "arange":
            continue
        if any(user.op == "run" and user.args[0].op == "torch.nn.Embedding" for user in made_from(computation, value, frozenset({"clamp", "long", "to"}))):
            yield value.node


def _counted_beside(computation: Computation) -> Iterator[ast.expr]:
    """Where a list gets the numbers 0, 1, 2 … of each text, beside a list of the texts, and is then cut into rows of one length."""
    for put in computation.of("append"):
        numbers = bare(put.args[1]) if len(put.args) > 1 else put
        if numbers.op not in ("arange", "range") or len(numbers.args) != 1 or numbers.args[0].op not in _SIZES or not isinstance(put.node, ast.expr) or not put.where.loops:
            continue
        counted = numbers.args[0].args[0] if numbers.args[0].args else numbers
        beside = any(one.op == "append" and one.args[1] is counted and one.args[0] is not put.args[0] and one.where.loops == put.where.loops for one in computation.of("append"))
        joined = [one for one in computation.of("cat") if one.args and one.args[0] is put.args[0]]
        if beside and any(user.op in ("view", "reshape", "unfold") for one in joined for user in made_from(computation, one, frozenset({"part", "to", "long"}))):
            yield put.node


def _counted_anew(program: Program) -> Iterator[ast.stmt]:
    """Where a row gets the numbers 0, 1, 2 … of the text that it gets as well, as long as there is room for it."""
    for frame in program.scopes():
        nodes = list(own_nodes(frame))
        if not any(isinstance(one, ast.Compare) and len(one.ops) == 1 and isinstance(one.ops[0], (ast.Gt, ast.GtE, ast.Lt, ast.LtE)) and any(is_binary(side, ast.Add) for side in (one.left, *one.comparators)) for one in nodes):
            continue
        for node in nodes:
            if not isinstance(node, ast.stmt) or not program.loops(node):
                continue
            added = list(_added(node))
            around = [each for one in program.block(node) for each in _added(one)]
            if any(_is_counting(one) for one in added) and any(not _is_counting(one) and not _is_repeated(one) for one in around):
                yield node


def _added(statement: ast.stmt) -> Iterator[ast.expr]:
    """What a statement adds at the end of lists, or puts at a place of arrays that moves."""
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add) and not isinstance(statement.value, ast.Constant):
        yield statement.value
    elif isinstance(statement, ast.Expr) and is_method(statement.value, "extend") and len(statement.value.args) == 1:
        yield statement.value.args[0]
    elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target, value = statement.targets[0], statement.value
        pairs = zip(target.elts, value.elts, strict=False) if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) else [(target, value)]
        for one, given in pairs:
            if isinstance(given, ast.BinOp) and isinstance(given.op, ast.Add) and text_of(given.left) == text_of(one):
                yield given.right
            elif isinstance(one, ast.Subscript):
                index = one.slice.elts[-1] if isinstance(one.slice, ast.Tuple) and one.slice.elts else one.slice
                if isinstance(index, ast.Slice) and index.lower is not None and not isinstance(index.lower, ast.Constant):
                    yield given


def _is_counting(node: ast.expr) -> bool:
    """Whether an expression is 0, 1, 2 … up to a length that is not written out."""
    while isinstance(node, ast.Call) and ((is_call(node, "list") and node.args) or is_method(node, "tolist")):
        node = node.func.value if isinstance(node.func, ast.Attribute) else node.args[0]
    if not isinstance(node, ast.Call) or last_word(node.func) not in ("range", "arange"):
        return False
    bounds = node.args
    first = len(bounds) == 1 or (len(bounds) == 2 and isinstance(bounds[0], ast.Constant) and bounds[0].value == 0)
    return first and not isinstance(bounds[-1], ast.Constant)


def _is_repeated(node: ast.expr) -> bool:
    """Whether an expression is one thing many times: `[number] * length`."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and any(isinstance(one, ast.List) for one in (node.left, node.right))
