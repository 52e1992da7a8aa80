"""The values that a program computes, as a graph: what each one is made of, where, and by which operation.

Operations have one name however they are written: `torch.mean(x, 1)`, `x.mean(dim=1)` and `np.mean(x, axis=1)` are
`mean`; `a + b` is `add`; `nn.Softmax(1)(x)` is `softmax`. Pure; standard library only.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

SHAPED = frozenset({
    "view", "reshape", "unsqueeze", "squeeze", "flatten", "contiguous", "expand", "ravel", "atleast_2d", "view_as", "expand_as",
})
"""Operations that keep all numbers, in another shape."""
KEPT = frozenset({
    "to", "float", "double", "half", "bfloat16", "long", "int", "type", "type_as", "cpu", "cuda", "detach", "clone", "copy", "numpy",
    "item", "tolist", "tensor", "as_tensor", "from_numpy", "array", "asarray", "astype", "requires_grad_", "FloatTensor", "LongTensor",
    "to_numpy", "values", "pin_memory", "deepcopy", "ascontiguousarray", "squeeze_", "data", "float32", "float64", "int64", "list", "tuple",
    "rows", "stack", "either",
})
"""Operations that keep all numbers, in another type or place."""


class Where(NamedTuple):
    """Where a value is computed: the loops around it (outermost first), also those of its callers, whether
    gradients are off, the functions that are running (outermost first), whether it is in a branch that may not
    be taken, and the unknown conditions that hold there, each with the value that it has: of the branches around
    it, and of those before it that leave the block."""

    loops: tuple[ast.AST, ...] = ()
    no_grad: bool = False
    functions: tuple[ast.AST, ...] = ()
    maybe: bool = False
    under: tuple[tuple[Value, bool], ...] = ()
    apart: bool = False
    """Whether the outermost function is one that the script never calls: nothing says when it runs."""
    cast: str = ""
    """The type of 16 bits in which autocast has matrices multiplied there, if it is on."""


class Value:
    """One value: the operation `op` on the values `args` and `named`, written at `node`. `data` is what a
    subclass says of it."""

    __slots__ = ("args", "data", "named", "node", "number", "op", "where")

    def __init__(
        self, op: str, args: Sequence[Value] = (), named: dict[str, Value] | None = None, *,
        node: ast.AST, where: Where, data: Any = None,
    ) -> None:
        self.op, self.args, self.named = op, tuple(args), named or {}
        self.node, self.where, self.data = node, where, data
        self.number = 0
        """Its place in the order of what is computed."""

    def __repr__(self) -> str:
        inner = [*map(_brief, self.args), *(f"{name}={_brief(one)}" for name, one in self.named.items())]
        return f"{self.op}({', '.join(inner)})" + (f"<{self.data}>" if self.op in ("@constant", "@input", "@library") else "")

    @property
    def line(self) -> int:
        """Its line in the source."""
        return getattr(self.node, "lineno", 0)

    def made_of(self) -> Iterable[Value]:
        """The values that it is made of directly."""
        return (*self.args, *self.named.values())

    def argument(self, name: str, place: int | None = None) -> Value | None:
        """An argument by its name, or by its place among `args` (0 is what the operation is done on)."""
        found = self.named.get(name)
        return self.args[place] if found is None and place is not None and place < len(self.args) else found


def _brief(value: Value) -> str:
    return value.op if value.op != "@constant" else repr(value.data)


class Many(Value):
    """A list, tuple or set of known length: `parts`. `grown`: a loop of unknown length adds to it, and each of
    its parts stands for many."""

    __slots__ = ("grown", "parts")

    def __init__(self, op: str, parts: Iterable[Value], *, node: ast.AST, where: Where, grown: bool = False) -> None:
        super().__init__(op, node=node, where=where)
        self.parts, self.grown = list(parts), grown

    def made_of(self) -> Iterable[Value]:
        """Its parts."""
        return self.parts


class Table(Value):
    """A dict: `entries` under known keys; `others` under keys that are not known."""

    __slots__ = ("entries", "others")

    def __init__(self, entries: dict[Any, Value], *, node: ast.AST, where: Where) -> None:
        super().__init__("dict", node=node, where=where)
        self.entries = entries
        self.others: list[tuple[Value, Value]] = []

    def made_of(self) -> Iterable[Value]:
        """Its parts."""
        return (*self.entries.values(), *(value for _, value in self.others))


class Instance(Value):
    """An object of a class of the program: `of`; its `attributes` so far."""

    __slots__ = ("attributes", "of")

    def __init__(self, of: ast.ClassDef | None, attributes: dict[str, Value], *, node: ast.AST, where: Where) -> None:
        super().__init__("@object", node=node, where=where)
        self.of, self.attributes = of, attributes

    def made_of(self) -> Iterable[Value]:
        """Its parts."""
        return ()


class Code(Value):
    """A function of the program: `function` is its definition; `frame` what its free names mean; `bound` the
    object that it is a method of; `given` what `functools.partial` has fixed; `off`: whether it runs without
    gradients."""

    __slots__ = ("bound", "frame", "function", "given", "off")

    def __init__(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, frame: Any, bound: Value | None, *,
        node: ast.AST, where: Where,
    ) -> None:
        super().__init__("@function", node=node, where=where)
        self.function, self.frame, self.bound = function, frame, bound
        self.given: tuple[tuple[Value, ...], dict[str, Value]] = ((), {})
        self.off = False

    def without_gradients(self) -> Code:
        """The same function, as `no_grad()(function)` gives it."""
        code = Code(self.function, self.frame, self.bound, node=self.node, where=self.where)
        code.given, code.off = self.given, True
        return code

    def made_of(self) -> Iterable[Value]:
        """Its parts."""
        return ()


# Reading values ---------------------------------------------------------------


def constant(value: Value | None) -> Any:
    """The Python constant that a value is; None for all else (and for None)."""
    return value.data if value is not None and value.op == "@constant" else None


def number(value: Value | None) -> float | None:
    """The number that a value is, if it is known."""
    found = constant(value)
    return float(found) if isinstance(found, (int, float)) and not isinstance(found, bool) else None


def is_none(value: Value | None) -> bool:
    """Whether a value is absent, or None."""
    return value is None or (value.op == "@constant" and value.data is None)


def takes_all(index: Value) -> bool:
    """Whether an index takes all of an axis, as it is: `:`."""
    return index.op == "slice" and all(map(is_none, index.args))


def bare(value: Value, *more: str, shapes: bool = True) -> Value:
    """A value without what only changes its shape (unless `shapes` is False), type or place, and without the
    operations `more`. Of several values that it may be, the first."""
    while value.args and (value.op in KEPT or value.op in more or (shapes and value.op in SHAPED)):
        value = value.args[0]
        if isinstance(value, Many) and len(value.parts) == 1:
            value = value.parts[0]
    return value


def cast_by(manager: Value) -> str | None:
    """The type of 16 bits to which a context manager casts, "" if it turns that off; None for all others."""
    if manager.op.rpartition(".")[2] != "autocast":
        return None
    enabled, given = manager.named.get("enabled"), manager.named.get("dtype")
    if constant(enabled) is False:
        return ""
    if enabled is not None and constant(enabled) is not True:
        return None
    if given is None:
        return {"cuda": "float16", "cpu": "bfloat16"}.get(str(constant(manager.argument("device_type", 0))), "")
    name = str(given.data).rpartition(".")[2] if given.op == "@library" else ""
    return name if name in ("bfloat16", "float16", "half") else ""


def alternatives(value: Value) -> Iterator[Value]:
    """The values that one may be, after branches."""
    if value.op == "either":
        for one in value.args:
            yield from alternatives(one)
    else:
        yield value


def origins(value: Value, stop: Iterable[str] = (), without: Iterable[Value] = ()) -> Iterator[Value]:
    """A value and all that it is made of, each once; not what the operations `stop` are done on, and not the values
    `without` and what only they are made of."""
    ends = frozenset(stop)
    waiting, seen = [value], {id(value), *map(id, without)}
    while waiting:
        at = waiting.pop()
        yield at
        if at.op in ends:
            continue
        for one in at.made_of():
            if id(one) not in seen:
                seen.add(id(one))
                waiting.append(one)


def comes_from(value: Value, other: Value) -> bool:
    """Whether a value is made of another one."""
    return any(one is other for one in origins(value))


def same(one: Value, other: Value, depth: int = 12) -> bool:
    """Whether two values are equal: one value, or the same operation on equal values, none of which is drawn
    at random or read anew."""
    if one is other:
        return True
    if depth == 0 or one.op != other.op or one.op in DRAWN or len(one.args) != len(other.args):
        return False
    if one.op == "@constant":
        return bool(one.data == other.data and type(one.data) is type(other.data))
    if one.op.startswith("torch.nn.") and one.op.rpartition(".")[2].startswith(_OWN_WEIGHTS):
        return False
    if one.op in ("@input", "@library", "@object", "@function", "element", "dict"):
        return one.op == "@library" and one.data == other.data
    if isinstance(one, Many) and isinstance(other, Many):
        return len(one.parts) == len(other.parts) and all(same(a, b, depth - 1) for a, b in zip(one.parts, other.parts, strict=True))
    if one.named.keys() != other.named.keys() or not (one.args or one.named):
        return False
    return all(same(a, b, depth - 1) for a, b in zip(one.args, other.args, strict=True)) and all(
        same(value, other.named[name], depth - 1) for name, value in one.named.items()
    )


_OWN_WEIGHTS = ("Linear", "Conv", "Embedding", "LSTM", "GRU", "RNN", "Bilinear", "Transformer", "Multihead", "Parameter", "Lazy")
"""Layers of which each one has weights of its own."""
DRAWN = frozenset({
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "normal", "uniform", "bernoulli", "multinomial", "dropout", "sample",
    "rsample", "random", "shuffle", "permutation", "choice", "next",
})
"""Operations that give another value each time."""
