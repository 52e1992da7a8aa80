"""Sums that loops add up: what is added, in which loop, from which start, and what they are divided by. Pure; standard
library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from probe.diagnose.code.computed.computation import Computation
from probe.diagnose.code.computed.value import Table, Value, bare, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.traits.basic import LOSSES, reduction_of


class Tally(NamedTuple):
    """A sum `total` that the innermost loop around it adds `step` to, from `start` on; `over` is what the loop
    goes over."""

    total: Value
    start: Value
    step: Value
    target: ast.expr

    @property
    def loop(self) -> ast.AST:
        """The loop that adds up."""
        return self.total.where.loops[-1]

    @property
    def turns(self) -> int:
        """How many loops around each other run without a new start."""
        return len(self.total.where.loops) - len(self.start.where.loops)


def tally_of(program: Program, value: Value) -> Tally | None:
    """The tally that a value is; None if it is none."""
    value = _plain(value)
    if value.op != "add" or len(value.args) != 2 or not value.where.loops:
        return None
    target: ast.expr | None = None
    if isinstance(value.node, ast.AugAssign):
        target = value.node.target
    elif isinstance(value.node, ast.BinOp):
        around = program.parent.get(value.node)
        if isinstance(around, ast.Assign) and len(around.targets) == 1 and ast.unparse(around.targets[0]) == ast.unparse(value.node.left):
            target = around.targets[0]
    if target is None:
        return None
    start = _plain(value.args[0])
    first = start.args[0] if start.op == "count" and start.args else start
    while first.op in ("part", "set_item") and first.args:
        first = first.args[0]
    if number(first) is None and first is start and start.op != "zeros":
        return None
    outside = first.where.loops
    if len(outside) >= len(value.where.loops) or value.where.loops[: len(outside)] != outside:
        return None
    return Tally(value, first, value.args[1], target)


def _plain(value: Value) -> Value:
    """A number without what only makes it a number of Python."""
    while value.args and value.op in ("item", "float", "int", "cpu", "detach", "either", "to", "tensor") and value.op != "list":
        value = value.args[0]
    return value


def over_of(computation: Computation, tally: Tally) -> Value | None:
    """What the loop of a tally goes over, without what numbers or shows it."""
    found = None
    for begin, node, over in computation.passes:
        if begin > tally.total.number:
            break
        if node is tally.loop:
            found = over
    while found is not None and found.args and (found.op == "enumerate" or found.op.rpartition(".")[2] in ("tqdm", "track", "islice")):
        found = found.args[0]
    return found


def is_mean_of_batch(value: Value) -> bool:
    """Whether a value is the mean of a batch: a loss that takes means, a mean over all numbers, or their sum over the samples."""
    value = _plain(value)
    if value.op == "div" and len(value.args) == 2:
        total = _plain(value.args[0])
        return total.op == "sum" and len(total.args) == 1 and not total.named and is_size_of_batch(value.args[1])
    if value.op in LOSSES:
        return reduction_of(value) == "mean"
    if value.op == "mul" and len(value.args) == 2:  # in another unit: `(a - b).abs().mean() * scale`
        return any(is_mean_of_batch(one) and len(other.where.loops) < len(one.where.loops) and not is_size_of_batch(other) and bare(other).op != "len" for one, other in (value.args, value.args[::-1]))
    return value.op == "mean" and len(value.args) == 1 and not value.named


def is_sum_of_batch(value: Value) -> bool:
    """Whether a value is the mean of a batch times its size."""
    value = _plain(value)
    return value.op == "mul" and len(value.args) == 2 and any(
        is_mean_of_batch(one) and is_size_of_batch(other) for one, other in (value.args, value.args[::-1])
    )


def is_size_of_batch(value: Value) -> bool:
    """Whether a value says how many samples a batch has."""
    value = _plain(value)
    if value.op == "part" and value.args[0].op == "shape":
        return number(value.args[1]) == 0
    if value.op == "size":
        return len(value.args) > 1 and number(value.args[1]) == 0
    if value.op == "len":
        return bare(value.args[0]).op in ("part", "element", "rows", "run", "either") or bool(value.where.loops)
    return value.op == "numel"


def counts_samples(computation: Computation, program: Program, tally: Tally, value: Value) -> bool:
    """Whether a number counts the samples that a tally has gone over."""
    value = _plain(value)
    while value.op == "max" and value.args:
        value = _plain(value.args[0])
    if value.op == "len":
        return _plain(value.args[0]).op in ("dataset", "sampler") or _is_cut(computation, tally, value)
    if _is_end(computation, tally, value):
        return True
    other = tally_of(program, value)
    if other is None or other.loop is not tally.loop or other.turns != tally.turns:
        return False
    return is_size_of_batch(other.step) or _counts_true(other.step)


def _counts_true(value: Value) -> bool:
    """Whether a value says how many positions of a batch a mask keeps: `(labels != -100).sum()`."""
    value = _plain(value)
    if value.op != "sum" or len(value.args) != 1 or value.named:
        return False
    mask = bare(value.args[0])
    return mask.op == "ne" and len(mask.args) == 2 and number(mask.args[1]) is not None


def _is_cut(computation: Computation, tally: Tally, size: Value) -> bool:
    """Whether a length is that of the rows whose cuts the loop of a tally goes over: `zip(x.split(k), y.split(k))`,
    `range(0, len(x), k)`."""
    over, rows = over_of(computation, tally), bare(size.args[0])
    if over is None:
        return False
    if over.op == "range":
        return _is_end(computation, tally, size) or _cuts_rows(tally, rows)
    cuts = over.args if over.op == "zip" else (over,)
    return any(one.op == "split" and len(one.args) > 1 and number(one.args[1]) != 1 and bare(one.args[0]) is rows for one in cuts)


def _is_end(computation: Computation, tally: Tally, size: Value) -> bool:
    """Whether a number is where the loop of a tally ends, which goes on by more than one: `range(0, n, k)`, `range(n // k)`."""
    over = over_of(computation, tally)
    if over is None or over.op != "range":
        return False
    end, by = (over.args[1], over.args[2]) if len(over.args) == 3 else (over, None)
    if len(over.args) == 1 and (parts := bare(over.args[0])).op == "floordiv" and len(parts.args) == 2:
        end, by = parts.args
    known = number(size)
    return by is not None and number(by) != 1 and (same(bare(end), bare(size)) or (known is not None and known > 1 and known == number(end)))


def _cuts_rows(tally: Tally, rows: Value) -> bool:
    """Whether what a tally adds is computed from slices of rows that begin where its loop is: `x[i:i + k]`."""
    for one in origins(tally.step):
        if one.op == "part" and len(one.args) == 2 and bare(one.args[0]) is rows and one.args[1].op == "slice" and tally.loop in one.where.loops:
            first, last = one.args[1].args[:2]
            if first.op == "index" and last.op == "add" and len(last.args) == 2 and any(each is first for each in last.args) and not any(number(each) == 1 for each in last.args):
                return len(first.args) == 3 and number(first.args[2]) != 1
    return False


def counts_batches(computation: Computation, program: Program, tally: Tally, value: Value) -> bool:
    """Whether a number counts the batches that a tally has gone over."""
    value = _plain(value)
    while value.op == "max" and value.args:
        value = _plain(value.args[0])
    if value.op == "len":
        over = over_of(computation, tally)
        return over is not None and value.args[0] is over and (over.op == "torch.utils.data.DataLoader" or _gives_batches(tally))
    other = tally_of(program, value)
    return other is not None and other.loop is tally.loop and number(other.step) == 1 and other.turns == tally.turns


def _gives_batches(tally: Tally) -> bool:
    """Whether what is added knows a batch: it reads its size."""
    return any(is_size_of_batch(one) for one in _plain(tally.step).args)


def divisions(computation: Computation, program: Program) -> Iterator[tuple[Value, Tally, Value]]:
    """Each division of a tally, with the tally and what it is divided by; also of the tallies in a dict."""
    for value in computation.of("div"):
        if len(value.args) != 2 or value.named:
            continue
        for one in _numerators(value.args[0]):
            tally = tally_of(program, one)
            if tally is not None:
                yield value, tally, value.args[1]


def _numerators(value: Value) -> Iterator[Value]:
    """A value, or the values that are written into the dict that it is taken from."""
    at = _plain(value)
    if at.op != "part" or not at.args:
        yield at
        return
    table = at.args[0]
    while table.op in ("element", "items", "values", "part", "entries") and table.args:
        table = table.args[0]
    while table.op == "set_item":
        yield table.args[2]
        table = table.args[0]
    if table.op == "add":
        yield table  # the sums of several parts in one tensor
    if isinstance(table, Table):
        yield from table.entries.values()


def is_set_in(program: Program, tally: Tally, around: ast.AST) -> bool:
    """Whether the target of a tally is set anew in a loop or, if it is an attribute or entry, anywhere but where its object is
    made: what resets it may be called."""
    texts = {ast.unparse(tally.target)}
    if isinstance(tally.target, (ast.Attribute, ast.Subscript)):
        inner = tally.target.value
        texts.add(ast.unparse(inner) if isinstance(tally.target, ast.Subscript) else f"self.{tally.target.attr}")
    word = tally.target.attr if isinstance(tally.target, ast.Attribute) else ""
    for node in program.everywhere(ast.Assign, ast.AnnAssign, ast.Call):
        if isinstance(node, ast.Call):
            changes = isinstance(node.func, ast.Attribute) and node.func.attr in ("zero_", "fill_", "fill", "clear", "reset", "update", "__init__", "setattr", "reset_")
            if changes and is_inside(program, node, around):
                return True
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]:
            for one in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
                if word and isinstance(one, ast.Attribute) and one.attr == word and program.function_name(node) != "__init__":
                    return True
                every = one.value if isinstance(one, ast.Subscript) and isinstance(one.slice, ast.Slice) else one  # `sums[:] = 0`
                if ast.unparse(every) in texts and is_inside(program, node, around):
                    return True
    return False


def is_inside(program: Program, node: ast.AST, around: ast.AST) -> bool:
    """Whether a node stands in another one."""
    return any(one is around for one in program.parents(node))


