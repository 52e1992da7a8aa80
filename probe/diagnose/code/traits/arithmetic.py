"""Products, sums and what is trained in them. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from probe.diagnose.code.computed.computation import Computation
from probe.diagnose.code.computed.value import (
    Instance,
    Many,
    Value,
    bare,
    constant,
    number,
    origins,
    same,
)

AVERAGED = ("mean", "sum", "sum_of", "nanmean")
TURNED = ("T", "t", "mT", "transpose", "permute", "movedim", "rearrange")
"""Operations that change the order of the axes."""
_KNOWS_PARAMETERS = ("parameters", "named_parameters", "train", "state_dict", "load_state_dict", "zero_grad", "modules", "eval", "requires_grad_")
_MADE_OF_SHAPES = ("dtype", "device", "shape", "size", "dim", "len", "ndim", "type", "new_zeros", "zeros_like", "ones_like")
_SAME_NETWORK = frozenset({
    "to", "cuda", "cpu", "float", "half", "double", "bfloat16", "train", "eval", "requires_grad_", "share_memory", "compile", "either", "apply",
})
_NO_NETWORK = ("torch.nn.utils", "torch.nn.init", "torch.nn.Parameter")


class Product(NamedTuple):
    """What a product is made of: factors, divisors, and its sign."""

    above: list[Value]
    below: list[Value]
    sign: int


def product(value: Value, *, shapes: bool = True) -> Product:
    """The factors of a value, also of its factors; what changes only shape or type is passed through."""
    value = bare(value, shapes=shapes) if value.op != "either" else value
    if value.op in ("mul", "div") and len(value.args) == 2:
        left, right = product(value.args[0], shapes=shapes), product(value.args[1], shapes=shapes)
        above, below = (right.above, right.below) if value.op == "mul" else (right.below, right.above)
        return Product([*left.above, *above], [*left.below, *below], left.sign * right.sign)
    if value.op == "neg":
        inner = product(value.args[0], shapes=shapes)
        return inner._replace(sign=-inner.sign)
    known = number(value)
    if known is not None and abs(known) == 1:
        return Product([], [], int(known))
    return Product([value], [], 1)


def addends(value: Value, sign: int = 1, path: frozenset[int] = frozenset()) -> Iterator[tuple[Value, int]]:
    """What a value is the sum of, each with its sign; means and sums are passed through. `path`: what it is a part of, which a
    list that holds its own sum is again."""
    value = value if value.op == "either" else bare(value)
    inside = path | {id(value)}
    if id(value) in path:
        yield value, sign
    elif value.op in ("add", "sub") and len(value.args) == 2:
        yield from addends(value.args[0], sign, inside)
        yield from addends(value.args[1], sign if value.op == "add" else -sign, inside)
    elif value.op == "neg" or (value.op == "mul" and any(number(one) == -1 for one in value.args)):
        inner = next((one for one in value.args if number(one) is None), value.args[0])
        yield from addends(inner, -sign, inside)
    elif value.op in AVERAGED and value.args and not isinstance(bare(value.args[0]), Many):
        yield from addends(value.args[0], sign, inside)
    else:
        yield value, sign


def linear(value: Value, depth: int = 30) -> Iterator[Value]:
    """A value, and all that it is a sum, a mean, a part or a multiple of; factors that are data count as numbers."""
    yield value
    if depth == 0:
        return
    if value.op in ("add", "sub", "neg", "either", "stack", *AVERAGED) or isinstance(value, Many):
        for one in value.made_of() if isinstance(value, Many) else value.args:
            yield from linear(one, depth - 1)
    elif value.op in ("mul", "div") and len(value.args) == 2:
        for one, other in (value.args, value.args[::-1]):
            if number(other) is not None or computed_by_none(other) or _is_detached(other):
                yield from linear(one, depth - 1)
                break
        else:
            if value.op == "div":
                yield from linear(value.args[0], depth - 1)
    elif value.op == "part" and (value.args[1].op in ("slice", "ge", "gt", "ne", "eq", "lt", "le") or isinstance(value.args[1], Many)):
        yield from linear(value.args[0], depth - 1)
    elif bare(value) is not value:
        yield from linear(bare(value), depth - 1)


def _is_detached(value: Value) -> bool:
    """Whether a value is made of what networks compute, without their gradients: `var.detach() ** 0.5`."""
    found = list(origins(value, stop=("detach", "item")))
    return any(one.op == "detach" for one in found) and not any(one.op in ("run", "torch.nn.Parameter") for one in found)


def sides(value: Value) -> tuple[tuple[Value, Value], ...]:
    """The two values that an operator is done on, in both orders; nothing where there are not two."""
    if len(value.args) != 2 or "alpha" in value.named:
        return ()
    return (value.args[0], value.args[1]), (value.args[1], value.args[0])


def complement_of(value: Value) -> Value | None:
    """x of 1 - x."""
    value = bare(value)
    return value.args[1] if value.op == "sub" and number(value.args[0]) == 1 else None


def root_of(value: Value) -> Value | None:
    """x of x ** 0.5 and sqrt(x)."""
    if value.op == "sqrt" and value.args:
        return value.args[0]
    return value.args[0] if value.op == "pow" and len(value.args) == 2 and number(value.args[1]) == 0.5 else None


def rectified(value: Value) -> Value | None:
    """x of relu(x), x.clamp(min=0), maximum(x, 0) and softplus(x)."""
    value = bare(value)
    if value.op in ("relu", "softplus"):
        return value.args[0]
    low = value.argument("min", 1)
    if value.op == "clamp" and low is not None and number(low) == 0:
        return value.args[0]
    if value.op in ("max", "maximum") and len(value.args) == 2:
        for one, other in (value.args, value.args[::-1]):
            if (number(other) == 0) or bare(other).op == "zeros_like":
                return one
    return None


def is_distance(value: Value) -> bool:
    """Whether a value is a distance: a norm, or the root of a sum of squares; never below 0."""
    value = bare(value)
    if value.op in ("pairwise_distance", "cdist", "norm", "vector_norm", "dist", "torch.nn.PairwiseDistance"):
        return True
    if value.op == "run" and value.args[0].op == "torch.nn.PairwiseDistance":
        return True
    return (inner := root_of(value)) is not None and bare(inner).op in ("sum", "add", "clamp")


def module(value: Value) -> Value:
    """A network without what only moves it or sets its mode; a copy is a network of its own."""
    while value.args and value.op in _SAME_NETWORK:
        value = value.args[0]
    return value


def networks(computation: Computation) -> set[int]:
    """The inputs that are networks: something asks for their parameters or sets their mode."""
    return {id(module(one.args[0])) for one in computation.of(*_KNOWS_PARAMETERS) if one.args}


def is_run_of_network(value: Value, known: set[int]) -> bool:
    """Whether a value is what a network gives."""
    if value.op != "run":
        return False
    called = module(value.args[0])
    if called.op == "element" and called.args:
        called = module(called.args[0])
    called = called.args[0] if called.op == "deepcopy" and called.args and id(called) not in known else called
    return id(called) in known or isinstance(called, Instance) or (called.op.startswith("torch.nn.") and not called.op.startswith(_NO_NETWORK))


def trained(value: Value, known: set[int]) -> bool:
    """Whether gradients flow from a value into what a network computes."""
    return any(
        (is_run_of_network(one, known) or one.op == "torch.nn.Parameter") and not one.where.no_grad
        for one in origins(value, stop=("detach", "item", "numpy", "argmax"))
    )


def of_one_layer(one: Value, other: Value, depth: int = 20) -> bool:
    """Whether two values are one output of a network, of whatever inputs."""
    one, other = bare(one), bare(other)
    if one is other:
        return True
    if not depth or one.op != other.op or not one.args or len(one.args) != len(other.args):
        return False
    if one.op == "run":
        return one.args[0] is other.args[0]
    return of_one_layer(one.args[0], other.args[0], depth - 1) and all(same(a, b) for a, b in zip(one.args[1:], other.args[1:], strict=True))


def computed_by_none(value: Value) -> bool:
    """Whether a value is data: no network, and nothing of unknown kind, computes it."""
    return not any(one.op in ("run", "unknown", "forward", "predict", "log_prob", "torch.nn.Parameter") for one in origins(value, stop=_MADE_OF_SHAPES))


def is_large(value: Value | None) -> bool:
    """Whether a value is a number that stands for plus or minus infinity."""
    if value is None:
        return False
    known = number(value)
    if known is not None:
        return abs(known) >= 100
    if value.op in ("neg", "mul"):
        return any(is_large(one) for one in value.args)
    if value.op == "float" and value.args:
        return "inf" in str(constant(value.args[0]))
    return (value.op == "@library" and str(value.data).endswith("inf")) or (value.op in ("min", "max") and bool(value.args) and value.args[0].op == "finfo")


def complements(one: Value, other: Value) -> bool:
    """Whether two weights add up to 1."""
    numbers = number(bare(one)), number(bare(other))
    if numbers[0] is not None and numbers[1] is not None:
        return abs(numbers[0] + numbers[1] - 1) < 1e-9
    for a, b in ((one, other), (other, one)):
        inner = complement_of(a)
        if inner is not None and same(bare(inner), bare(b)):
            return True
    return False
