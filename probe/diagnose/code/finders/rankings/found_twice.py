"""Predictions that are matched with what is there, and matches that are counted. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import iterated, names_of, names_set, short, text_of

_ORDERED = ("lt", "le", "gt", "ge")
_NEARNESS = frozenset({"sub", "cdist", "norm", "dist", "hypot", "cosine_similarity", "torchvision.ops.box_iou", "torchvision.ops.boxes.box_iou", "abs"})
_PAIRS = ("cdist", "torchvision.ops.box_iou", "torchvision.ops.boxes.box_iou", "torchvision.ops.generalized_box_iou")
_LENGTHS = ("len", "size", "shape", "numel")


def one_truth_found_twice(program: Program) -> Iterator[Remark]:
    """Each prediction that is near one of the true things counts as a hit, whether that one was found before or not, and hits are
    divided by how many true things there are."""
    computation = computation_of(program)
    quotients = [one for one in computation.of("div") if len(one.args) == 2]
    for hit in computation.of("add", "set_item", "append") if quotients else ():
        loop = hit.where.loops[-1] if hit.where.loops else None
        if not isinstance(loop, ast.For | ast.AsyncFor) or not (tests := _tests(hit)):
            continue
        truths, said = next((found for test in tests for found in _compared(computation, test, hit, loop)), (None, ""))
        guessed = next((over for count, node, over in computation.passes if node is loop and count < hit.number), None)
        if truths is None or guessed is None or not _is_learned(guessed) or _is_learned(truths) or _remembers(program, loop, truths):
            continue
        share = _share(quotients, hit, truths)
        if share is not None:
            yield Remark(hit.node, f"{short(hit.node)} counts each prediction that is near one of {said}, also the second one that is near the same, and {short(share.node)} (line {share.line}) divides by how many of them there are")
            return
    for share in quotients:
        pairs = _near_in_a_matrix(share.args[0])
        if pairs is None:
            continue
        near, matrix, axis = pairs
        truths = matrix.args[axis]
        if any(one.op in _LENGTHS and one.args and _root(one.args[0]) is _root(truths) for one in origins(share.args[1])) and _is_learned(matrix.args[1 - axis]) and not _is_learned(truths):
            yield Remark(share.node, f"{short(share.node)} divides by how many of {short(truths.node)} there are, and {short(near.node)} (line {near.line}) counts each prediction that is near one of them, also the second one that is near the same")
            return


def _tests(hit: Value) -> list[Value]:
    """What decides whether a value counts one more: `n += 1`, `hits[k] = 1`, `hits.append(1 if near else 0)`, `n += int(near)`."""
    given = hit.args[2] if hit.op == "set_item" and len(hit.args) == 3 else hit.args[1] if len(hit.args) == 2 else None
    if given is None:
        return []
    given = given if given.op == "either" else bare(given)
    if given.op == "@constant":
        return [test for test, _ in hit.where.under] if given.data in (1, 1.0, True) else []
    if given.op == "either":
        one = next((part for part in given.args if part.op == "@constant" and part.data in (1, 1.0, True)), None)
        zero = any(number(part) == 0 or part.data is False for part in given.args if part.op == "@constant")
        return [test for test, _ in one.where.under if not any(test is other for other, _ in hit.where.under)] if one is not None and zero else []
    return [given] if given.op in (*_ORDERED, "any", "and") else []


def _is_learned(value: Value) -> bool:
    """Whether a network gives something of a value, or decides what is in it."""
    parts = list(origins(value))
    return any(one.op == "run" for one in parts) or any(each.op == "run" for one in parts for test, _ in one.where.under for each in origins(test))


def _compared(computation: Computation, test: Value, hit: Value, loop: ast.AST) -> Iterator[tuple[Value, str]]:
    """What a loop inside of the one around a hit goes over, each of which is compared with the prediction, where a bound decides what is
    near; and how the program writes it."""
    parts = list(origins(test))
    if any(one.op in ("eq", "in") for one in parts):
        return
    for count, node, over in computation.passes:
        inside = [one for one in computation.values if node in one.where.loops and loop in one.where.loops and one.number < hit.number]
        if count > hit.number or not inside or node in hit.where.loops or not any(node in one.where.loops for one in parts):
            continue
        ordered = test.op in _ORDERED or any(one.op in _ORDERED for one in inside)
        truths = over.args[0] if over.op in ("enumerate", "zip") and over.args else over
        truths = truths.args[0].args[0] if truths.op == "range" and len(truths.args) == 1 and truths.args[0].op == "len" and truths.args[0].args else truths
        if ordered and any(one.op in _NEARNESS for one in inside) and truths.op not in ("range", "count"):
            over_node = iterated(node) if isinstance(node, ast.For) else getattr(node, "generators", [node])[0]
            yield truths, short(over_node.iter if isinstance(over_node, ast.comprehension) else over_node)


def _remembers(program: Program, loop: ast.For | ast.AsyncFor, truths: Value) -> bool:
    """Whether a loop keeps what was found, or ends at the first hit."""
    own = names_of(loop.target)
    bodies: list[ast.AST] = [*loop.body, *(found for call in ast.walk(loop) if isinstance(call, ast.Call) and (found := program.local_function(call)) is not None)]
    inner = {id(part) for one in ast.walk(loop) if one is not loop and isinstance(one, ast.For | ast.While) for part in ast.walk(one)}
    for node in (node for body in bodies for node in ast.walk(body)):
        if isinstance(node, ast.Break) and id(node) not in inner:
            return True
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) and (isinstance(node.ctx, ast.Del) or not names_of(node.slice) <= own or not names_of(node.slice)):
            return True
        if isinstance(node, ast.Compare) and any(isinstance(one, ast.In | ast.NotIn) for one in node.ops):
            return True
        if isinstance(node, ast.Call) and text_of(node.func).rpartition(".")[2] in ("add", "remove", "pop", "discard", "delete", "fill_", "scatter_", "index_fill_", "linear_sum_assignment", "masked_fill_"):
            return True
        if isinstance(node, ast.Assign) and names_set(node) & names_of(truths.node):
            return True
    return False


def _share(quotients: list[Value], hit: Value, truths: Value) -> Value | None:
    """Where hits are divided by the number of the true things."""
    root = _root(truths)
    for one in quotients:
        if one.number > hit.number and any(part.op in _LENGTHS and part.args and _root(part.args[0]) is root for part in origins(one.args[1])) and any(part is hit or _holds(part, hit) for part in origins(one.args[0])):
            return one
    return None


def _holds(part: Value, hit: Value) -> bool:
    """Whether a value is the list or array that hits are put into."""
    return hit.op in ("append", "set_item") and hit.args[0] is part


def _root(value: Value) -> Value:
    """The things that a value is some of."""
    for _ in range(20):
        value = bare(value)
        if value.op in ("part", "element", "rows", "index_select") and value.args:
            value = value.args[0]
        elif isinstance(value, Many) and value.grown and len(value.parts) == 1:
            value = value.parts[0]
        else:
            break
    return value


def _near_in_a_matrix(value: Value) -> tuple[Value, Value, int] | None:
    """How many rows of a matrix of all pairs have one near: what counts them, the matrix, and the axis of those that are looked through."""
    total = bare(value, "cumsum", "cat")
    near = bare(total.args[0]) if total.op in ("sum", "count_nonzero") and len(total.args) == 1 and not total.named else total
    if near.op == "any":
        compared, axis = bare(near.args[0]), number(near.argument("dim", 1))
        matrix = bare(compared.args[0]) if compared.op in _ORDERED else compared
    elif near.op in _ORDERED:
        best = bare(near.args[0])
        best = bare(best.args[0]) if best.op == "part" and best.args and number(best.args[1]) == 0 else best
        axis = number(best.argument("dim", 1)) if best.op in ("max", "min") else None
        matrix = bare(best.args[0]) if axis is not None else best
    else:
        return None
    if axis not in (0, 1, -1) or matrix.op not in _PAIRS or len(matrix.args) < 2:
        return None
    return near, matrix, 0 if axis == 0 else 1
