"""Where gradients flow, and where they end. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

from probe.diagnose.code.computed.computation import Computation
from probe.diagnose.code.computed.value import Instance, Many, Table, Value, alternatives, constant, origins
from probe.diagnose.code.traits.updates import plain

CUTS = frozenset({
    "item", "detach", "detach_", "numpy", "tolist", "data", "argmax", "argmin", "argsort", "eq", "ne", "lt", "gt", "le", "ge", "round", "floor",
    "ceil", "sign", "tensor", "as_tensor", "from_numpy", "array", "asarray", "len", "size", "shape", "long", "int", "bool", "multinomial",
    "torch.autograd.Variable", "Variable", "torch.Tensor", "torch.FloatTensor", "FloatTensor", "LongTensor", "isnan", "isfinite", "no_grad", "randn_like",
    "zeros_like", "ones_like", "float64", "invert", "in", "is", "is_not", "not", "new_tensor", "numel", "builtins.float", "train", "eval",
    "new_zeros", "new_ones", "new_full", "new_empty", "full_like", "empty_like", "rand_like", "randint_like",
    "one_hot", "bincount", "histc", "searchsorted", "bucketize", "count_nonzero", "indices",
})
"""Operations whose result has no gradient of what they are done on."""
NUMBERS = frozenset({"item", "numpy", "tolist", "data", "detach", "tensor", "torch.autograd.Variable"})
"""Those of them that give the same numbers."""


def flows(value: Value, starts: Callable[[Value], bool]) -> bool:
    """Whether a gradient of a value may reach a value that `starts`. What is not known may start."""
    known: dict[int, bool] = {}

    def found(one: Value, depth: int) -> bool:
        if id(one) in known:
            return known[id(one)]
        known[id(one)] = False
        if depth == 0 or one.op == "unknown":
            result = True
        elif one.op in CUTS or is_number_of_python(one) or is_place(one) or (one.op in ("element", "rows") and all(part.op == "@input" for part in one.args)) or (one.where.no_grad and one.op not in ("list", "tuple", "@input")):
            result = False
        else:
            result = starts(one) or any(found(part, depth - 1) for part in one.made_of())
        known[id(one)] = result
        return result

    return found(value, 400)


def reached_from(value: Value) -> Iterator[Value]:
    """A value and all that gradients of it may reach: not what they are cut off from, nor what is computed without them."""
    waiting, seen = [value], {id(value)}
    while waiting:
        at = waiting.pop()
        if at.op in CUTS or (at.where.no_grad and at.op not in ("list", "tuple", "@input") and not at.op.startswith("torch.nn.")):
            continue
        yield at
        for one in at.made_of():
            if id(one) not in seen:
                seen.add(id(one))
                waiting.append(one)


def is_number_of_python(value: Value) -> bool:
    """Whether a value is what `float(x)` gives, and not `x.float()`."""
    return value.op == "float" and isinstance(value.node, ast.Call) and isinstance(value.node.func, ast.Name)


def is_place(value: Value) -> bool:
    """Whether a value is the places of the largest or smallest values along an axis: the second part of what `max(dim)` gives."""
    of = value.args[0] if value.op == "part" and len(value.args) == 2 and constant(value.args[1]) == 1 else None
    return of is not None and (of.op in ("topk", "sort", "kthvalue", "mode", "cummax", "cummin") or (of.op in ("max", "min", "median") and isinstance(constant(of.argument("dim", 1)), int)))


def is_learned(value: Value) -> bool:
    """Whether a value is what a network gives, or one of its parameters, or may be."""
    if value.op in ("weight", "bias"):
        return bool(value.args) and value.args[0].op.startswith("torch.nn.")
    return value.op in ("run", "parameters", "named_parameters", "torch.nn.Parameter", "@input")


def has_gradient(value: Value) -> bool:
    """Whether a gradient may flow from a value to parameters."""
    return flows(value, is_learned)


def networks_in(value: Value) -> set[int]:
    """The networks and layers whose results or parameters a value is made of, cut off or not."""
    found = [(plain(one.args[0]), one.op) for one in origins(value) if one.op in ("run", "parameters", "named_parameters") and one.args]
    return {id(layer) for module, op in found for layer in ([module] if op == "run" else layers_of(module))}


def cut_in(value: Value) -> Value | None:
    """The first place where the gradient of a value ends: what is done on a result of a network; sizes only if there is no other."""
    size: Value | None = None
    for one in origins(value, CUTS):
        if (one.op in CUTS or is_number_of_python(one) or is_place(one) or one.where.no_grad) and any(networks_in(part) for part in one.args):
            if one.op not in ("len", "size", "shape", "numel"):
                return one
            size = size or one
    return size


def layers_of(module: Value, depth: int = 6) -> list[Value]:
    """A module and the layers that it is made of."""
    given: Iterable[Value] = module.args if module.op.startswith("torch.nn.") else ()
    if isinstance(module, Instance):
        given = module.attributes.values()
    elif isinstance(module, (Many, Table)):
        given = module.made_of()
    inner = [each for one in given for each in alternatives(one) if each.op.startswith("torch.nn.") or isinstance(each, (Instance, Many, Table))]
    return [module, *(each for one in inner if depth for each in layers_of(one, depth - 1))]


def reaches(computation: Computation, value: Value, ends: Callable[[Value], bool], through: Callable[[Value], bool]) -> bool:
    """Whether what is made of a value, by operations that pass it `through`, comes to an end."""
    waiting, seen = [value], {id(value)}
    while waiting:
        for one in computation.users(waiting.pop()):
            if ends(one):
                return True
            if id(one) not in seen and through(one):
                seen.add(id(one))
                waiting.append(one)
    return False
