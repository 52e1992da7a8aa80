"""Sums over the edges of a graph: whose messages they add up, and what they begin with. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, bare, constant, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import is_distance
from probe.diagnose.code.traits.basic import squared, without_small
from probe.diagnose.code.traits.extents import rank
from probe.diagnose.code.traits.uses import made_from

_SUMS = ("index_add", "scatter_add", "scatter_reduce", "scatter_reduce_", "index_reduce_", "index_reduce")
_SHAPES = ("expand", "expand_as", "repeat", "unsqueeze", "view", "reshape", "view_as", "long")
_ROWWISE = frozenset({"relu", "leaky_relu", "elu", "gelu", "tanh", "sigmoid", "dropout", "run", "silu", "layer_norm", "normalize"})
_SIGNED = ("leaky_relu", "elu", "gelu", "tanh", "sub", "log_softmax", "randn", "normal", "randn_like", "silu")


def summed_by_index(value: Value) -> tuple[Value, Value, Value] | None:
    """What a sum by index begins with, the index, and what is added."""
    source = value.argument("src" if value.op.startswith("scatter") else "source", 3)
    index = value.argument("index", 2)
    return (value.args[0], index_of(index), source) if index is not None and source is not None else None


def index_of(value: Value) -> Value:
    """An index without what only repeats it for each column."""
    while value.args and (value.op in _SHAPES or (value.op == "part" and value.args[1].op == "tuple" and any(one.op == "@constant" and one.data is None for one in value.args[1].made_of()))):
        value = value.args[0]
    return value


def is_same_index(one: Value, other: Value) -> bool:
    """Whether two indices are one, also where the row of a pair is taken twice."""
    one, other = index_of(one), index_of(other)
    if one is other:
        return True
    return one.op == other.op == "part" and one.args[0] is other.args[0] and constant(one.args[1]) is not None and constant(one.args[1]) == constant(other.args[1])


def softmax_over_all_edges(program: Program) -> Iterator[Remark]:
    """Weights of edges are a softmax over all edges, and are added up at the nodes that the edges lead to."""
    computation = computation_of(program)
    said: set[int] = set()
    for weights in computation.of("softmax", "div"):
        if id(weights.node) in said or not (_is_share_of_all(weights) if weights.op == "div" else _is_softmax_of_all(weights)):
            continue
        taken = [one.args[1] for one in origins(weights.args[0], _SUMS) if one.op == "part" and len(one.args) == 2]
        made = made_from(computation, weights, frozenset({"unsqueeze", "view", "reshape", "mul", "dropout", "part"}), 60)
        sums = [(value, found) for value in made if value.op in _SUMS and (found := summed_by_index(value)) is not None]
        if any(bare(found[2]) is bare(weights) for _, found in sums):
            continue  # the sum of the weights at each node, by which they may be divided
        for value, found in sums:
            if any(is_same_index(found[1], one) for one in taken):
                said.add(id(weights.node))
                yield Remark(weights.node, f"{short(weights.node)} shares 1 among all edges, and {short(value.node)} (line {value.line}) adds them up at each node: the weights of one node's edges do not add up to 1, and are the smaller the more edges there are")
                break


def _is_softmax_of_all(weights: Value) -> bool:
    """Whether a softmax is taken over all rows."""
    along = number(weights.argument("dim", 1))
    return bool(weights.args) and (along == 0 or (along == -1 and rank(weights.args[0]) == 1))


def _is_share_of_all(weights: Value) -> bool:
    """Whether values above 0 are divided by the sum of all of them, or of all rows."""
    if len(weights.args) != 2:
        return False
    above, total = bare(weights.args[0]), without_small(weights.args[1])
    if above.op not in ("exp", "sigmoid", "softplus", "exp2") or total.op != "sum" or not total.args or bare(total.args[0]) is not above:
        return False
    along = total.argument("dim", 1) or total.named.get("axis")
    return along is None or number(along) == 0 or (number(along) == -1 and rank(above) == 1)


def sent_to_its_sender(program: Program) -> Iterator[Remark]:
    """What is added up at the nodes that edges lead to is taken from these nodes themselves."""
    computation = computation_of(program)
    said: set[int] = set()
    for value in computation.of(*_SUMS):
        found = summed_by_index(value)
        if found is None or id(value.node) in said:
            continue
        _, index, source = found
        taken = _taken(source)
        if taken is None or not is_same_index(taken.args[1], index) or not _is_end(computation, index):
            continue
        if any(one.op in _SUMS for one in origins(taken.args[0], ("run",))):
            continue
        said.add(id(value.node))
        yield Remark(taken.node, f"{short(taken.node)} takes what is sent along an edge from the node that {short(value.node)} (line {value.line}) adds it to: each node hears itself, as often as it has edges, and none of its neighbours")


def _taken(value: Value) -> Value | None:
    """The rows by an index that a value is made of, row by row, of nothing else."""
    while True:
        value = bare(value)
        if value.op == "part" and len(value.args) == 2 and value.args[1].op not in ("@constant", "slice", "tuple"):
            return value
        if value.op == "index_select" and len(value.args) == 3:
            return None
        if value.op not in _ROWWISE or not value.args or (value.op == "run" and len(value.args) != 2):
            return None
        value = value.args[1] if value.op == "run" else value.args[0]


def _is_end(computation: Computation, index: Value) -> bool:
    """Whether an index is one row of a pair of rows, both of which the program takes."""
    if index.op != "part" or constant(index.args[1]) not in (0, 1):
        return False
    other = 1 - constant(index.args[1])
    return any(one.op == "part" and constant(one.args[1]) == other for one in computation.users(index.args[0]) if len(one.args) == 2)


def zeros_in_the_reduction(program: Program) -> Iterator[Remark]:
    """A mean, minimum, product or maximum by index begins with zeros, which count as values."""
    computation = computation_of(program)
    said: set[int] = set()
    for value in computation.of("scatter_reduce", "scatter_reduce_", "index_reduce", "index_reduce_"):
        found = summed_by_index(value)
        kind = constant(value.argument("reduce", 4))
        included = value.named.get("include_self")
        if found is None or id(value.node) in said or (included is not None and constant(included) is not True):
            continue
        begin = bare(found[0])
        if begin.op not in ("zeros", "zeros_like", "new_zeros") or kind not in ("mean", "amax", "amin", "prod"):
            continue
        if (kind == "amax" and not _may_be_negative(found[2])) or (kind == "amin" and not _is_never_negative(found[2])):
            continue
        said.add(id(value.node))
        what = {
            "mean": "the mean of n values is their sum divided by n + 1", "amin": "no minimum is above 0", "amax": "no maximum is below 0", "prod": "every product is 0",
        }[kind]
        yield Remark(value.node, f"{short(value.node)} counts the zeros that it begins with (line {begin.line}) as values: {what}")


def _is_never_negative(value: Value) -> bool:
    """Whether values are at least 0: distances, squares, probabilities."""
    value = bare(value)
    while value.op == "part" and value.args:
        value = bare(value.args[0])
    return value.op in ("abs", "square", "sqrt", "exp", "sigmoid", "softmax", "relu", "softplus", "rand") or is_distance(value) or squared(value) is not None


def _may_be_negative(value: Value) -> bool:
    """Whether values can be below 0: what a linear layer gives, or differences."""
    value = bare(value)
    while value.op == "part" and value.args:
        value = bare(value.args[0])
    return value.op in _SIGNED or (value.op == "run" and value.args[0].op.endswith((".Linear", ".LayerNorm", ".BatchNorm1d")))
