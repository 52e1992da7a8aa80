"""Columns (N, 1) and rows (N), by the operations that make them. Pure; standard library only."""

from __future__ import annotations

from probe.diagnose.code.computed.value import Many, Value, alternatives, constant, number
from probe.diagnose.code.traits.extents import last, rank

_PAIRS = ("add", "sub", "mul", "div")
_ALIKE = (
    "float", "to", "detach", "clone", "relu", "tanh", "sigmoid", "neg", "masked_fill", "set_item", "double", "exp", "log", "clamp", "cpu", "cuda",
    "squeeze_", "from_numpy", "numpy", "dropout", "type", "data", "values", "zeros_like", "requires_grad_",
)
_OVER_LAST = (1, -1)


def is_column(value: Value, depth: int = 20) -> bool:
    """Whether a value has one column: a layer, an index or a kept axis makes it."""
    op, args = value.op, value.args
    if depth == 0 or (not args and not isinstance(value, Many)):
        return False
    if op == "either":
        return all(is_column(one, depth - 1) for one in alternatives(value))
    if op == "run":
        return bool(args[0].op == "torch.nn.Linear" and last(value) == 1 and rank(value) != 1)
    if op in _ALIKE:
        return is_column(args[0], depth - 1)
    if op == "gather":
        index = value.argument("index", len(value.args) - 1)
        dim = number(value.named["dim"] if "dim" in value.named else value.args[1])
        return dim in _OVER_LAST and index is not None and _is_made_a_column(index)
    if op in ("max", "min", "amax", "sum", "mean"):
        return constant(value.named.get("keepdim")) is True and number(value.argument("dim", 1)) in _OVER_LAST
    if op == "part" and args[0].op in ("max", "min"):
        return constant(args[1]) == 0 and is_column(args[0], depth - 1)
    if op in _PAIRS and len(args) == 2:
        return any(is_column(one, depth - 1) for one in args) and all(number(one) is not None or is_column(one, depth - 1) for one in args)
    return _is_made_a_column(value)


def _is_made_a_column(value: Value) -> bool:
    """Whether a value gets its column by its shape: `x.unsqueeze(1)`, `x.view(-1, 1)`, `x[:, None]`."""
    while value.op in ("long", "to", "int", "type", "detach", "cuda", "cpu") and value.args:
        value = value.args[0]
    if value.op == "unsqueeze":
        return number(value.argument("dim", 1)) == 1 or (number(value.argument("dim", 1)) == -1 and rank(value.args[0]) == 1)
    if value.op in ("view", "reshape"):
        return [number(one) for one in value.args[1:]] == [-1, 1]
    if value.op == "part" and isinstance(value.args[1], Many) and len(value.args[1].parts) == 2:
        whole, new = value.args[1].parts
        return whole.op == "slice" and new.op == "@constant" and new.data is None
    return value.op == "argmax" and constant(value.named.get("keepdim")) is True and number(value.argument("dim", 1)) == 1


def is_row(value: Value, depth: int = 20) -> bool:
    """Whether a value has one axis: what makes it leaves no other. What a row is added to or multiplied by has no
    column either, or the mistake stands there."""
    op, args = value.op, value.args
    if depth == 0 or is_single(value):
        return False
    if op == "either":
        return all(is_row(one, depth - 1) for one in alternatives(value))
    if rank(value) == 1:
        return True
    if op in _ALIKE and args:
        return is_row(args[0], depth - 1)
    if op in ("max", "min", "amax", "sum", "mean") and args and constant(value.named.get("keepdim")) is not True:
        return number(value.argument("dim", 1)) == 1 and rank(args[0]) in (None, 2) and _comes_of_linear(args[0])
    if op == "part" and args[0].op in ("max", "min"):
        return constant(args[1]) == 0 and is_row(args[0], depth - 1)
    if op == "squeeze":
        return number(value.argument("dim", 1)) == 1 and is_column(args[0])
    if op in ("flatten", "ravel"):
        return len(args) == 1 and not value.named and is_column(args[0])
    if op == "cat":
        return isinstance(args[0], Many) and bool(args[0].parts) and len(args) == 1 and not value.named and all(is_row(one, depth - 1) for one in args[0].parts)
    if op in ("view", "reshape"):
        return len(args) == 2 and number(args[1]) == -1
    if op in _PAIRS and len(args) == 2:
        return any(is_row(one, depth - 1) for one in args) and not any(map(_holds_column, args))
    return False


def _holds_column(value: Value, depth: int = 6) -> bool:
    """Whether a value is a column, or a column meets something in it: it has a second axis then, whatever the rest is."""
    if is_column(value):
        return True
    inner = value.args if value.op in (*_PAIRS, *_ALIKE, "pow") and depth else ()
    return any(_holds_column(one, depth - 1) for one in inner)


def _comes_of_linear(value: Value) -> bool:
    while value.op in _ALIKE and value.args:
        value = value.args[0]
    return value.op == "run" and value.args[0].op == "torch.nn.Linear"


def is_single(value: Value, depth: int = 12) -> bool:
    """Whether a value is a tensor of one number: one that is written out or drawn alone, or made of such and numbers."""
    while value.op in _ALIKE and value.args:
        value = value.args[0]
    if value.op in _PAIRS and len(value.args) == 2 and depth:
        return all(number(one) is not None or one.op == "@library" or is_single(one, depth - 1) for one in value.args)
    if value.op in ("rand", "randn", "randint", "zeros", "ones", "empty"):
        return number(value.args[-1] if value.args else None) == 1 and len(value.args) == 1
    inner = value.args[0] if value.op in ("tensor", "as_tensor", "array", "FloatTensor", "torch.Tensor", "torch.FloatTensor") and value.args else value
    return isinstance(inner, Many) and not inner.grown
