"""Columns (N, 1) that meet rows (N). Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, alternatives, bare, comes_from, number, origins
from probe.diagnose.code.finders.losses.bootstraps import errors
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short, text_of
from probe.diagnose.code.traits.basic import losses
from probe.diagnose.code.traits.columns import is_column, is_row, is_single
from probe.diagnose.code.traits.extents import last, rank

FINDERS = Finders()
_BETWEEN = ("add", "sub", "mul", "div")
_AS_PAIRS = ("softmax", "log_softmax", "logsumexp", "matmul", "masked_fill", "argmax", "argmin", "argsort", "sort", "topk", "leaky_relu", "gt", "lt", "ge", "le", "eq")
"""What is done with a table of all pairs on purpose: attention, distances, rankings."""
_OF_BATCHES = ("rows", "stack", "cat", "randperm", "element", "randint", "choice", "sample")
_KEPT = ("relu", "tanh", "sigmoid", "softplus", "clamp", "exp", "detach", "float", "to", "neg", "cpu", "dropout", "identity", "either")


@FINDERS.add("column-against-targets")
def _column_against_targets(program: Program) -> Iterator[Remark]:
    """A column is compared with a row of targets, so that each prediction meets each target."""
    yield from (remark for remark, target in _compared(program) if not _is_backup(target) and not _has_policy(program))


@FINDERS.add("column-against-row")
def _column_against_row(program: Program) -> Iterator[Remark]:
    """A column meets a row in a sum or product, or the backup of a critic that is compared with its column is a row."""
    computation = computation_of(program)
    compared = {id(value) for value, _, _ in errors(computation)}
    for value, column, row in (*_met(computation), *_of_policy(computation), *_weighted(computation)):
        if id(value) not in compared:
            yield Remark(value.node, f"{short(value.node)} has the column {_part_of(column)} (line {column.line}) beside {_told(row)} (line {row.line}): each of one meets each of the other")
    yield from (remark for remark, target in _compared(program) if _is_backup(target) and not _has_policy(program))


@FINDERS.add("values-against-a-row")
def _values_against_a_row(program: Program) -> Iterator[Remark]:
    """The column of a critic is compared with the row of returns, so that each value meets each return."""
    yield from (remark for remark, _ in _compared(program) if _has_policy(program))


def _has_policy(program: Program) -> bool:
    """Whether a program takes the logarithm of what a policy gives."""
    return any(True for _ in computation_of(program).of("log_prob"))


def _is_backup(target: Value) -> bool:
    """Whether a target is made of what a network gives."""
    return any(one.op == "run" and one.args[0].op == "torch.nn.Linear" for one in origins(target))


def _compared(program: Program) -> Iterator[tuple[Remark, Value]]:
    """The comparisons of a column with a row, each with the row; not those that are made of such a sum."""
    computation = computation_of(program)
    met = [value for value, _, _ in _met(computation)]
    said: set[ast.AST] = set()
    for value, column, row in errors(computation):
        if value.node in said:
            continue
        layer = _column_of_layer(column)
        known = is_column(column) and (is_row(row) or _has_squeezed(row)) and not _broadcast(value, column)
        given = _is_given(column) and _is_given(row)
        if _is_kernel(computation, value) or (given and (_is_grid(column) or _is_grid(row) or not any(one.op == "@input" for one in origins(value)))):
            continue  # all pairs are meant
        if (known or (layer is not None and (_is_row_beside(layer, row) or _is_laid(row)))) and not any(comes_from(part, one) for one in met for part in value.args):
            said.add(value.node)
            yield Remark(value.node, f"{short(value.node)} compares the column {short(column.node)} (line {column.line}) with {_told(row)} (line {row.line}): each of one with each of the other"), row


def _is_kernel(computation: Computation, value: Value) -> bool:
    """Whether distances become weights, exp(-d ** 2 / h): of each sample at each place."""
    waiting, depth = [value], 12
    while waiting and depth:
        depth -= 1
        for user in computation.users(waiting.pop()):
            if user.op in ("exp", "softmax", "log_softmax", "logsumexp", "argmin"):
                return True
            if user.op in ("pow", "square", "abs", "neg", "clamp") or (user.op in ("mul", "div") and any(rank(one) == 0 or number(one) is not None for one in user.args)):
                waiting.append(user)
    return False


_PLACES = ("arange", "linspace", "logspace")


def _is_grid(value: Value) -> bool:
    """Whether a value is made of counted places alone: coordinates, bins, steps of time."""
    inner = list(origins(value, stop=_PLACES))
    return any(one.op in _PLACES for one in inner) and all(one.op in _PLACES or one.args or isinstance(one, Many) or one.op == "@constant" for one in inner) and _is_given(value)


def _is_given(value: Value) -> bool:
    """Whether a value is neither predicted nor learned."""
    return not any(one.op in ("run", "matmul", "Parameter") or "." in one.op or "requires_grad" in one.named or one.op == "requires_grad_" for one in origins(value, stop=_PLACES))


def _is_laid(value: Value) -> bool:
    """Whether a value is a list of numbers that was made one row: `returns.unsqueeze(0)`, `returns[None]`."""
    if value.op in ("unsqueeze", "part") and len(value.args) == 2:
        first = value.args[1].parts[0] if isinstance(value.args[1], Many) and value.args[1].parts else value.args[1]
        laid = number(first) == 0 if value.op == "unsqueeze" else first.op == "@constant" and first.data is None
        return laid and rank(value.args[0]) == 1 and not is_single(value.args[0]) and (value.op == "unsqueeze" or not isinstance(value.args[1], Many))
    return value.op in ("float", "to", "detach") and bool(value.args) and _is_laid(value.args[0])


def _met(computation: Computation) -> Iterator[tuple[Value, Value, Value]]:
    """Sums, differences, products and quotients of the column that a layer gives and a row: they, and the two."""
    for value in computation.of(*_BETWEEN):
        if len(value.args) != 2 or (value.where.no_grad and not _is_compared(computation, value)):
            continue
        for column, row in (value.args, value.args[::-1]):
            layer = _column_of_layer(column)
            if layer is not None and _is_row_beside(layer, row) and not _as_pairs(computation, value, layer, row):
                yield value, column, row


def _of_policy(computation: Computation) -> Iterator[tuple[Value, Value, Value]]:
    """Products of what is made of the log probabilities of a batch of actions, as a column, and of a row of what each action
    was worth: they, and the two."""
    for value in computation.of("mul") if any(True for _ in computation.of("log_prob")) else ():
        for column, row in (value.args, value.args[::-1]) if len(value.args) == 2 and not value.where.no_grad else ():
            if rank(column) != 2 or last(column) != 1 or rank(row) != 1 or is_single(row) or _broadcast(value, column):
                continue
            likely = any(one.op == "log_prob" for one in origins(column, stop=("run", "log_prob")))
            if likely and any(one.op in _OF_BATCHES for one in origins(row)) and not _as_pairs(computation, value, column, row):
                yield value, column, row


def _weighted(computation: Computation) -> Iterator[tuple[Value, Value, Value]]:
    """Products of what a network gives for each sample of a batch, as a row, and of a column of data, in a loss that adds them
    up: they, and the two."""
    for loss in {id(one): one for _, one in losses(computation)}.values():
        for value in origins(loss):
            if value.op != "mul" or len(value.args) != 2 or not any(one.op in ("mean", "sum", "neg") for one in computation.users(value)):
                continue
            for column, row in (value.args, value.args[::-1]):
                if rank(column) != 2 or last(column) != 1 or rank(row) != 1 or is_single(row) or _broadcast(value, column):
                    continue
                of_data = any(one.op == "rows" for one in origins(column)) and not any(one.op == "run" for one in origins(column))
                if of_data and any(one.op == "run" for one in origins(row)) and not _as_pairs(computation, value, column, row):
                    yield value, column, row


def _column_of_layer(value: Value, depth: int = 12) -> Value | None:
    """The layer's run that makes a value a column: of one output or of one number for each index."""
    if depth == 0:
        return None
    if value.op == "run" and last(value) == 1 and value.args[0].op in ("torch.nn.Linear", "torch.nn.Embedding") and len(value.args) > 1:
        return value
    if value.op == "either":
        found = [_column_of_layer(one, depth - 1) for one in alternatives(value)]
        return found[0] if all(found) and found else None
    if value.op in _KEPT and value.args:
        return _column_of_layer(value.args[0], depth - 1)
    if value.op in _BETWEEN and len(value.args) == 2:
        layers = [_column_of_layer(one, depth - 1) for one in value.args]
        found = [one for one in layers if one is not None]
        others = [one for one, layer in zip(value.args, layers, strict=True) if layer is None]
        return found[0] if found and all(number(one) is not None or rank(one) == 0 or one.op in ("attribute", "@input") for one in others) else None
    return None


def _is_row_beside(layer: Value, row: Value) -> bool:
    """Whether a value has one axis, where what the layer is run on has those of a batch: samples and features, or indices."""
    if _column_of_layer(row) is not None or number(row) is not None or last(row) == 1:
        return False
    given = layer.args[1]
    axes = 2 if layer.args[0].op == "torch.nn.Linear" else 1
    if (known := rank(given)) is not None:
        return known == axes and (rank(row) == 1 or is_row(row))
    indices = {id(one.args[1]): 1 for one in origins(row) if one.op == "run" and one.args[0].op == "torch.nn.Embedding" and len(one.args) > 1} if axes == 1 else {}
    if axes == 1 and id(given) not in indices and is_row(row):
        return True
    return (axes == 2 or id(given) in indices) and rank(row, 40, {**indices, id(given): axes}) == 1


def _has_squeezed(value: Value, depth: int = 6) -> bool:
    """Whether a column whose axis of length 1 was taken away is added into a value."""
    if value.op == "squeeze" and value.args and last(value.args[0]) == 1 and number(value.argument("dim", 1)) in (-1, 1):
        return True
    return depth > 0 and value.op in ("add", "sub", "mul") and any(_has_squeezed(one, depth - 1) for one in value.args)


def _is_compared(computation: Computation, value: Value) -> bool:
    """Whether a loss is made of what is computed without gradients: a target."""
    return any(any(part is value for part in origins(target)) for error, _, target in errors(computation) if not error.where.no_grad)


def _as_pairs(computation: Computation, value: Value, layer: Value, row: Value) -> bool:
    """Whether a table of all pairs is meant: it is ranked or normalized, or both come of one layer's scores."""
    waiting, seen = [value], {id(value)}
    while waiting:
        for user in computation.users(waiting.pop()):
            if user.op in _AS_PAIRS:
                return True
            if (user.op in _BETWEEN or user.op in _KEPT) and id(user) not in seen:
                seen.add(id(user))
                waiting.append(user)
    return bare(row) is layer or bare(row, "T", "t", "transpose") is layer


def _broadcast(value: Value, column: Value) -> bool:
    """Whether the column is made one in the comparison itself, as where all pairs are meant."""
    made = column.op == "unsqueeze" or (column.op == "part" and "None" in text_of(column.node))
    return made and any(one is column.node for one in ast.walk(value.node))


def _part_of(column: Value) -> str:
    """The expression that a column is written as; for one of several that a loop gives, that it is one of them."""
    return f"that is one of {short(column.node)}" if isinstance(column.node, ast.Tuple) else short(column.node)


def _told(value: Value) -> str:
    """The expression that a value is written as; for what a loop gives, what the loop goes over."""
    return f"a part of {short(value.node.iter)}" if isinstance(value.node, (ast.For, ast.AsyncFor)) else f"the row {short(value.node)}"
