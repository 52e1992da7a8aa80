"""Outputs and targets of one batch whose rows stand in two orders: one side is sorted, or flattened along another axis first. Pure;
standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Code, Many, Value, bare, comes_from, constant, number, origins
from probe.diagnose.code.finders.losses.token_targets import place_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.extents import view_sizes
from probe.diagnose.code.traits.sides import Sides, sides_of

FINDERS = Finders()
_ORDERS = ("argsort", "sort", "sorted")
_MERGED = ("reshape", "view", "flatten")
_ALIKE = frozenset({
    "to", "float", "long", "contiguous", "clone", "dropout", "relu", "gelu", "tanh", "layer_norm", "div", "detach", "set_item", "masked_fill", "log_softmax", "softmax",
    "cuda", "cpu", "type", "int",
})
_BY_POSITION = ("torch.nn.Linear", "torch.nn.LayerNorm", "torch.nn.Dropout", "torch.nn.Embedding", "torch.nn.ReLU", "torch.nn.GELU", "torch.nn.LSTM", "torch.nn.GRU", "torch.nn.RNN", "torch.nn.TransformerEncoder", "torch.nn.TransformerEncoderLayer", "torch.nn.TransformerDecoder")
_LOSSES = ("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "binary_cross_entropy_with_logits", "smooth_l1_loss")


# One side sorted -----------------------------------------------------------------------------


@FINDERS.add("sorted-without-labels")
def _sorted_without_labels(program: Program) -> Iterator[Remark]:
    """Samples are put in the order of their lengths before a network reads them, and neither the targets nor its outputs are."""
    computation = computation_of(program)
    for sides in sides_of(computation):
        taken = [(value, order) for value in sides.given.values() if (order := _order_of(computation, value)) is not None]
        for value, order in taken:
            beside = [one for one in sides.beside.values() if id(one) not in sides.given]
            if any(_is_order(one) and one is not order for one in beside) or _is_restored(sides, value, order) or any(one.op in ("gather", "scatter", "index_select") for one in beside):
                continue
            targets = [one for one in beside if one.op in _LOSSES and len(one.args) > 1]
            asked = list(origins(targets[0].args[1], ("run",))) if targets else []
            if not asked or any(one is value or _is_order(one) or _order_of(computation, one) is not None or one.op in ("run", "@input") for one in asked):
                continue
            order_said = "the order of their lengths" if order is value else f"the order of {short(order.node)} (line {order.line})"
            yield Remark(value.node, f"{short(value.node)} takes the samples in {order_said}, and {short(targets[0].node)} (line {targets[0].line}) has the targets in the old one")
            return


def _is_restored(sides: Sides, value: Value, order: Value) -> bool:
    """Whether what was computed of sorted samples is brought back into the old order."""
    for one in (*sides.given.values(), *sides.beside.values()):
        if one.op in ("part", "index_select", "set_item", "scatter", "gather", "index_copy") and len(one.args) > 1 and one is not value:
            by, of = ([each for each in one.args if comes_from(each, what)] for what in (order, value))
            if of and any(each not in of or not comes_from(each, value) for each in by):
                return True
    return False


def _is_order(value: Value) -> bool:
    """Whether a value is an order of rows."""
    return value.op in _ORDERS


def _order_of(computation: Computation, value: Value) -> Value | None:
    """The sort by lengths in whose order rows are taken: `x[order]`, `[rows[i] for i in order]`."""
    if value.op == "sorted" and value.args and value.args[0].op not in ("zip", "range", "enumerate") and _is_by_length(value):
        return value
    chosen = _chosen_by(computation, value)
    if chosen is None:
        return None
    index = bare(chosen, "element")
    if index.op == "part" and index.args[0].op == "sort" and constant(index.args[1]) == 1:
        order = index.args[0]
    elif index.op in ("argsort", "sorted"):
        order = index
    else:
        return None
    if any(_is_order(one) for one in origins(order) if one is not order) or (value.args and any(one is bare(value.args[0]) for one in origins(order))):
        return None
    return order if order.args and (_is_lengths(order.args[0]) or (order.op == "sorted" and order.args[0].op == "range" and _is_by_length(order))) else None


def _is_by_length(value: Value) -> bool:
    """Whether what is sorted is sorted by lengths: `sorted(rows, key=len)`."""
    key = value.named.get("key")
    if isinstance(key, Code) and isinstance(key.function, ast.Lambda):
        body = key.function.body.operand if isinstance(key.function.body, ast.UnaryOp) else key.function.body
        return isinstance(body, ast.Call) and isinstance(body.func, ast.Name) and body.func.id == "len"
    return key is not None and key.op == "@library" and str(key.data).rpartition(".")[2] == "len"


def _is_lengths(key: Value) -> bool:
    """Whether a value is the lengths of samples."""
    key = bare(key, "part", "neg", "index_select")
    if isinstance(key, Many):
        return bool(key.parts) and all(_is_lengths(one) for one in key.parts)
    return key.op == "len" or (key.op == "sum" and any(one.op in ("ne", "eq") for one in origins(key, ("run",))))


def _written_by(computation: Computation, value: Value) -> Value | None:
    """The order in which a loop writes rows: `for i, j in enumerate(order): x[i, ...] = rows[j]`."""
    loop = value.where.loops[-1] if value.where.loops else None
    names = loop.target.elts if isinstance(loop, ast.For) and isinstance(loop.target, ast.Tuple) else []
    statement = computation.program.parent.get(value.node)
    written = statement.value if isinstance(statement, ast.Assign) else None
    while isinstance(written, ast.Call) and written.args and not isinstance(written.args[0], ast.Starred):
        written = written.args[0]
    index = value.args[1].parts[0] if isinstance(value.args[1], Many) and value.args[1].parts else value.args[1]
    if len(names) != 2 or index.op != "index" or index.where.loops[-1:] != (loop,) or not isinstance(written, ast.Subscript) or ast.unparse(written.slice) != ast.unparse(names[1]):
        return None
    over = next((over for _, node, over in computation.passes if node is loop and over.op == "enumerate" and over.args), None)
    return over.args[0] if over is not None else None


def _chosen_by(computation: Computation, value: Value) -> Value | None:
    """What says which rows a value is, in which order."""
    if value.op in ("part", "index_select") and len(value.args) > 1:
        return value.args[-1]
    if value.op == "set_item" and len(value.args) == 3:
        return _written_by(computation, value)
    if not isinstance(value, Many) or not isinstance(value.node, ast.ListComp) or any(isinstance(one, Many) for one in value.parts):
        return None
    name, row = value.node.generators[0].target, value.node.elt
    if not isinstance(name, ast.Name) or not isinstance(row, ast.Subscript) or ast.unparse(row.slice) != name.id:
        return None
    return next(iter(computation.stored.get(name, [])[-1:]), None)


# One side turned -------------------------------------------------------------------------------


@FINDERS.add("flattened-in-another-order")
def _flattened_apart(program: Program) -> Iterator[Remark]:
    """The outputs of a network go through time before the samples, or the other way round, and the targets do not, where both are
    made one row of positions."""
    for loss in computation_of(program).of(*_LOSSES):
        if len(loss.args) < 2:
            continue
        merged = [_merged(one) for one in loss.args[:2]]
        if merged[0] is None or merged[1] is None:
            continue
        said, asked = (_layout(one) for one in merged if one is not None)
        if said is None or asked is None or said[1] == asked[1]:
            continue
        first, second = place_of(said[0]), place_of(asked[0])
        if said[0] is asked[0] or (first is not None and second is not None and first.row is second.row) or (_is_batch(said[0]) and _is_batch(asked[0])):
            turned, other = (loss.args[0], loss.args[1]) if said[1] else (loss.args[1], loss.args[0])
            yield Remark(loss.node, f"{short(loss.node)} compares {short(turned.node)}, which goes through the samples of each position, with {short(other.node)}, which goes through the positions of each sample")
            return


def _merged(value: Value) -> Value | None:
    """What is made one row of positions, samples and time together."""
    while value.op in ("long", "to", "float", "contiguous") and value.args:
        value = value.args[0]
    if value.op not in _MERGED or not value.args:
        return None
    if value.op == "flatten":
        ends = [constant(one) for one in value.args[1:]] + [constant(one) for one in value.named.values()]
        return value.args[0] if ends in ([], [0, 1], [1]) else None
    sizes = [number(one) for one in view_sizes(value)]
    return value.args[0] if 0 < len(sizes) < 3 and sizes[0] == -1 else None


def _layout(value: Value, depth: int = 40) -> tuple[Value, bool] | None:
    """What a value is made of, place by place, and whether its first two axes have changed places since."""
    turned = False
    for _ in range(depth):
        if value.op in ("t", "T", "mT") or (value.op in ("transpose", "swapaxes") and sorted(_places(value)) == [0, 1]) or (value.op == "permute" and _places(value)[:2] == [1, 0]):
            turned, value = not turned, value.args[0]
        elif value.op == "permute" and _places(value)[:2] == [0, 1]:
            value = value.args[0]
        elif value.op == "run" and value.args[0].op in _BY_POSITION and len(value.args) > 1:
            value = value.args[1]
        elif value.args and (value.op in _ALIKE or (value.op == "part" and constant(value.args[1]) == 0 and value.args[0].op == "run")):
            value = value.args[0]
        elif value.op in ("add", "mul") and len(value.args) == 2:
            value = value.args[0] if number(value.args[0]) is None else value.args[1]
        elif value.op.endswith("pad_sequence") and value.args:
            return value, turned == (constant(value.argument("batch_first", 1)) is True)
        elif value.op == "part" and isinstance(value.args[1], Many) and len(value.args[1].parts) == 2 and all(one.op == "slice" for one in value.args[1].parts):
            value = value.args[0]
        elif value.op in ("part", "stack", "rows", "randint", "element"):
            return value, turned
        else:
            return None
    return None


def _places(value: Value) -> list[float]:
    given = value.args[1].parts if len(value.args) == 2 and isinstance(value.args[1], Many) else value.args[1:]
    known = [number(one) for one in given]
    return [one for one in known if one is not None] if None not in known else []


def _is_batch(value: Value) -> bool:
    """Whether a value is a batch whose samples are its first axis, or were filled up to one length."""
    if value.op == "stack":
        return number(value.argument("dim", 1)) in (None, 0) and isinstance(value.args[0], Many)
    return value.op == "rows" or value.op.endswith("pad_sequence")
