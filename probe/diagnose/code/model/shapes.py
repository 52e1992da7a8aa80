"""Shapes of tensors as products of names, and whether a view keeps the order of axes. Pure.

`B, T, C = x.shape` says what the axes of x are; layers, views and transposes of known
shapes give known shapes. Where anything is not known, a shape is None.
"""

from __future__ import annotations

import ast
from fractions import Fraction
from functools import reduce
from typing import NamedTuple

from probe.diagnose.code.flow import flow_of
from probe.diagnose.code.program import Binding, Program
from probe.diagnose.code.syntax import (
    argument,
    is_attribute,
    is_binary,
    is_call,
    is_method,
    last_word,
    number_in,
    text_of,
)

_SAME = frozenset({
    "contiguous", "to", "float", "half", "cuda", "cpu", "clone", "detach", "relu", "tanh", "sigmoid",
    "softmax", "type_as", "masked_fill", "mul", "add", "div",
})
_SAME_MODULES = (
    "Dropout", "LayerNorm", "ReLU", "GELU", "Tanh", "Sigmoid", "Softmax", "SiLU", "Identity", "BatchNorm",
)


class Size(NamedTuple):
    """The length of an axis: a number times names to whole powers."""

    factor: Fraction
    powers: frozenset[tuple[str, int]]


Shape = tuple[Size, ...]
ONE = Size(Fraction(1), frozenset())


def times(one: Size, other: Size, power: int = 1) -> Size:
    """The product of two sizes; `power` -1 divides."""
    powers = dict(one.powers)
    for name, number in other.powers:
        powers[name] = powers.get(name, 0) + power * number
    return Size(
        one.factor * other.factor**power,
        frozenset((name, number) for name, number in powers.items() if number),
    )


class Shapes:
    """Shapes of the expressions of a program."""

    def __init__(self, program: Program) -> None:
        self.program, self.flow = program, flow_of(program)
        self._unpacked: dict[tuple[ast.AST, str], list[ast.Assign]] = {}
        self._seen: dict[ast.AST, Shape | None] = {}
        self._names: dict[str, str] = {}
        for node in program.everywhere(ast.Assign):
            of = _shape_of(node.value)
            if of is not None and isinstance(of, ast.Name) and isinstance(node.targets[0], ast.Tuple):
                self._unpacked.setdefault((program.scope(node), of.id), []).append(node)

    def of(self, node: ast.AST, depth: int = 24) -> Shape | None:
        """The shape of an expression."""
        if node in self._seen:
            return self._seen[node]
        if not depth:
            return None
        self._seen[node] = None
        found = self._of(node, depth - 1)
        self._seen[node] = found
        return found

    def moved(self, call: ast.Call) -> tuple[str, str, str] | None:
        """An axis that a view moves: its name, and both shapes; None where all keep their order."""
        if not is_method(call):
            return None
        before, after = self.of(call.func.value), self.of(call)
        if before is None or after is None or len(before) == len(after) == 1:
            return None
        if times(_product(before), _product(after), -1) in [one for one in before if one.powers]:
            return None  # that axis is left out, so its length is 1
        for place, size in enumerate(before):
            if not size.powers or before.count(size) != 1 or after.count(size) != 1:
                continue
            ratio = times(_product(before[:place]), _product(after[: after.index(size)]), -1)
            powers = [number for _, number in ratio.powers]
            up = all(number > 0 for number in powers) and ratio.factor >= 1
            down = all(number < 0 for number in powers) and ratio.factor <= 1
            if ratio != ONE and (up or down):
                return self._written(size), self.written(before), self.written(after)
        return None

    def written(self, shape: Shape) -> str:
        """A shape in the names that the program has for it: `(B, T, H*D)`."""
        return f"({', '.join(map(self._written, shape))})"

    def _written(self, size: Size) -> str:
        over = [self._names.get(name, name) for name, power in sorted(size.powers) for _ in range(power)]
        under = [self._names.get(name, name) for name, power in sorted(size.powers) for _ in range(-power)]
        text = "*".join(([] if size.factor == 1 and over else [str(size.factor)]) + over)
        return text + "".join(f"/{name}" for name in under)

    def size(self, node: ast.AST, depth: int = 12) -> Size | None:
        """The length that an expression gives."""
        if not depth:
            return None
        if (number := number_in(node)) is not None:
            return Size(Fraction(number), frozenset()) if isinstance(number, int) and number > 0 else None
        if is_binary(node, ast.Mult, ast.FloorDiv, ast.Div):
            left, right = self.size(node.left, depth - 1), self.size(node.right, depth - 1)
            if left is None or right is None:
                return None
            return times(left, right, 1 if isinstance(node.op, ast.Mult) else -1)
        if is_call(node, "int") and len(node.args) == 1:
            return self.size(node.args[0], depth - 1)
        axis = self._axis(node)
        if axis is not None:
            return axis
        if isinstance(node, (ast.Name, ast.Attribute)):
            given = self.flow.given(node)
            if given is None:
                text = text_of(node)  # a parameter or a setting: a size of its own name
                return _unit(text.removeprefix("self.")) if "(" not in text else None
            if isinstance(given.whole, (ast.Constant, ast.BinOp, ast.Name, ast.Attribute, ast.Call)):
                return self.size(given.whole, depth - 1)
            of = _shape_of(given.value) if given.value is not None else None
            if of is not None and given.place is not None:
                return self._axis_of(of, given.place)
        return None

    def _axis(self, node: ast.AST) -> Size | None:
        """`x.size(0)` or `x.shape[0]`."""
        if is_method(node, "size") and len(node.args) == 1:
            number, of = self.flow.number(node.args[0]), node.func.value
        elif isinstance(node, ast.Subscript) and is_attribute(node.value, "shape"):
            number, of = self.flow.number(node.slice), node.value.value
        else:
            return None
        return self._axis_of(of, int(number)) if number is not None and number == int(number) else None

    def _axis_of(self, of: ast.AST, axis: int) -> Size | None:
        shape = self.of(of) if isinstance(of, ast.Name) and self.flow.given(of) is not None else None
        if shape is not None and -len(shape) <= axis < len(shape):
            return shape[axis]
        name = self._identity(of)
        if name is None:
            return None
        if axis < 0:
            axis += len(self._parts(of))
        self._names.setdefault(f"{name}.{axis}", f"{getattr(of, 'id', '')}.size({axis})")
        return _unit(f"{name}.{axis}")

    def _identity(self, of: ast.AST) -> str | None:
        if not isinstance(of, ast.Name):
            return None
        given = self.flow.given(of)
        bound = self.flow.bound.get((self.program.scope(of), of.id), [])
        around = set(self.program.parents(of))  # `x = self.proj(x)` reads what x was before
        later = [one for one in bound if one.how == "for" or one.node not in around]
        assigned = [getattr(one.node, "lineno", 0) for one in later if one.how != "parameter"]
        if given is None and assigned and min(assigned) <= of.lineno:
            return None
        line = getattr(given.node, "lineno", 0) if given is not None else "in"
        return f"{of.id}@{line}@{id(self.program.scope(of))}"

    def _parts(self, of: ast.AST) -> list[ast.expr]:
        """`B, T, C` in `B, T, C = x.shape`, of the same x; empty where there is none."""
        for node in self._unpacked.get((self.program.scope(of), last_word(of)), []):
            source, target = _shape_of(node.value), node.targets[0]
            if source is not None and self._identity(source) == self._identity(of):
                return target.elts if isinstance(target, ast.Tuple) else []
        return []

    def _of(self, node: ast.AST, depth: int) -> Shape | None:
        if isinstance(node, ast.Name):
            given = self.flow.given(node)
            found = self._given(given, depth) if given is not None else None
            return found if found is not None else self._declared(node)
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.MatMult):
                return self._product(node.left, node.right, depth)
            left, right = self.of(node.left, depth), self.of(node.right, depth)
            scalar = left is not None and (self.size(node.right) is not None or self._is_scalar(node.right))
            return left if left == right or scalar else None
        return self._of_call(node, depth) if isinstance(node, ast.Call) else None

    def _is_scalar(self, node: ast.AST) -> bool:
        """Whether a value is one number: a root of the math module, a power of a size."""
        value = self.flow.value(node)
        if is_binary(value, ast.Pow):
            return self.size(value.left) is not None and self.flow.number(value.right) is not None
        return self.program.called(value).startswith("math.")

    def _given(self, given: Binding, depth: int) -> Shape | None:
        if isinstance(given.node, ast.comprehension):
            over = given.node.iter
            return self.of(over.elts[0], depth) if isinstance(over, ast.Tuple) and over.elts else None
        value = given.value
        if value is None or given.how == "add":
            return None
        if given.place is None:
            return self.of(value, depth)
        if isinstance(value, (ast.GeneratorExp, ast.ListComp)):
            return self.of(value.elt, depth)
        if is_method(value, "split", "chunk") and value.args:
            axis = self.flow.number(argument(value, "dim", 1) or ast.Constant(0))
            shape, part = self.of(value.func.value, depth), self.size(value.args[0])
            if shape is None or axis is None or part is None or not -len(shape) <= axis < len(shape):
                return None
            place = int(axis) % len(shape)
            size = part if value.func.attr == "split" else times(shape[place], part, -1)
            return (*shape[:place], size, *shape[place + 1 :])
        return None

    def _declared(self, node: ast.Name) -> Shape | None:
        """The shape that `B, T, C = x.shape` gives names to."""
        parts, name = self._parts(node), self._identity(node)
        if not parts or any(isinstance(part, ast.Starred) for part in parts):
            return None
        for axis, part in enumerate(parts):
            hidden = isinstance(part, ast.Name) and part.id.startswith("_")
            self._names[f"{name}.{axis}"] = f"{node.id}.size({axis})" if hidden else text_of(part)
        return tuple(_unit(f"{name}.{axis}") for axis in range(len(parts)))

    def _product(self, left: ast.AST, right: ast.AST, depth: int) -> Shape | None:
        one, other = self.of(left, depth), self.of(right, depth)
        if one is None or other is None or not len(one) == len(other) > 1:
            return None
        return (*one[:-1], other[-1])

    def _of_call(self, call: ast.Call, depth: int) -> Shape | None:
        name = self.program.called(call)
        last = name.rpartition(".")[2]
        if name in ("torch.matmul", "torch.bmm") and len(call.args) == 2:
            return self._product(call.args[0], call.args[1], depth)
        of_torch = name in (f"torch.{last}", f"torch.nn.functional.{last}")
        if of_torch and last in (*_SAME, "dropout", "scaled_dot_product_attention") and call.args:
            return self.of(call.args[0], depth)
        made = self.flow.maker(call)
        if made is not None and len(call.args) == 1:
            module = self.program.called(made).removeprefix("torch.nn.")
            shape = self.of(call.args[0], depth)
            if module == "Linear" and shape is not None:
                return self._linear(made, shape)
            return shape if module.startswith(_SAME_MODULES) else None
        if is_method(call) and not name:
            return self._of_method(call, call.func, depth)
        return None

    def _linear(self, made: ast.Call, shape: Shape) -> Shape | None:
        """Through nn.Linear; what goes in has the length that the layer was made with, whatever its name."""
        out, into = argument(made, "out_features", 1), argument(made, "in_features", 0)
        if out is None or into is None:
            return None
        if text_of(out) == text_of(into):
            return shape
        given, size = self.size(into), self.size(out)
        if given is None or size is None:
            return None
        return (*shape[:-1], times(times(shape[-1], given, -1), size))

    def _of_method(self, call: ast.Call, func: ast.Attribute, depth: int) -> Shape | None:
        shape = self.of(func.value, depth)
        if shape is None:
            return None
        numbers = [self.flow.number(one) for one in call.args]
        within = [one for one in numbers if one is not None and -len(shape) <= one < len(shape)]
        axes = [int(one) % len(shape) for one in within]
        if func.attr in _SAME:
            return shape
        if func.attr in ("matmul", "bmm") and len(call.args) == 1:
            return self._product(func.value, call.args[0], depth)
        if func.attr == "transpose" and len(axes) == len(numbers) == 2:
            swapped = list(shape)
            swapped[axes[0]], swapped[axes[1]] = shape[axes[1]], shape[axes[0]]
            return tuple(swapped)
        if func.attr == "permute" and len(axes) == len(numbers) == len(shape):
            return tuple(shape[axis] for axis in axes)
        if func.attr in ("view", "reshape"):
            only = call.args[0] if len(call.args) == 1 else None
            return self._viewed(shape, only.elts if isinstance(only, (ast.Tuple, ast.List)) else call.args)
        return None

    def _viewed(self, shape: Shape, given: list[ast.expr]) -> Shape | None:
        open_ends = [place for place, one in enumerate(given) if self.flow.number(one) == -1]
        found = [ONE if place in open_ends else self.size(one) for place, one in enumerate(given)]
        sizes = [size for size in found if size is not None]
        if len(sizes) != len(found) or len(open_ends) > 1:
            return None
        for place in open_ends:
            left = times(_product(shape), _product(tuple(sizes)), -1)
            if left.factor.denominator != 1 or any(number < 0 for _, number in left.powers):
                return None
            sizes[place] = left
        return tuple(sizes)


def _product(sizes: Shape) -> Size:
    return reduce(times, sizes, ONE)


def _unit(name: str) -> Size:
    return Size(Fraction(1), frozenset({(name, 1)}))


def _shape_of(node: ast.AST | None) -> ast.AST | None:
    """x of `x.shape` or `x.size()`."""
    if is_attribute(node, "shape"):
        return node.value
    if is_method(node, "size") and not node.args:
        return node.func.value
    return None
