"""The names of a running function, and how its calls give values to its parameters. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from probe.diagnose.code.computed.value import Code, Many, Value
from probe.diagnose.code.source import Source
from probe.diagnose.code.syntax import Function, pairs_of, parameters

BUILTINS = frozenset({
    "len", "range", "zip", "enumerate", "sorted", "reversed", "list", "tuple", "dict", "set", "frozenset", "isinstance", "float", "int", "str",
    "bool", "print", "sum", "min", "max", "abs", "map", "filter", "next", "iter", "getattr", "setattr", "hasattr", "vars", "super", "open",
    "round", "any", "all", "type", "pow", "divmod", "id", "callable", "slice", "input", "hash", "repr", "format", "chr", "ord", "exit",
})
"""Names that Python knows without an import."""
RECOMPUTED = {"torch.utils.checkpoint.checkpoint": 1, "torch.utils.checkpoint.checkpoint_sequential": 2}
"""What runs a layer or function that it is given, and after how many arguments the inputs of that begin."""


class Frame:
    """The names of a function or module that runs: `around` is where its free names are looked up, `results`
    what it returns, `yielded` what it yields."""

    def __init__(self, source: Source, around: Frame | None, owner: ast.ClassDef | None = None) -> None:
        self.source, self.around, self.owner = source, around, owner
        self.names: dict[str, Value] = {}
        self.results: list[Value] = []
        self.yielded: list[Value] = []
        self.shared: set[str] = set()
        """Names that `global` or `nonlocal` makes those of a frame around."""

    def find(self, name: str) -> Value | None:
        """What a name means, here or around."""
        at: Frame | None = self
        while at is not None:
            if name in at.names:
                return at.names[name]
            at = at.around
        return None

    def set(self, name: str, value: Value) -> None:
        """Give a name a value."""
        at: Frame = self
        while name in self.shared and at.around is not None:
            at = at.around
            if name in at.names:
                break
        at.names[name] = value


class Stop(Exception):
    """The program computes more than is worth following."""


def given_to(
    function: Function | ast.Lambda, args: Sequence[Value], named: dict[str, Value],
) -> tuple[dict[str, Value], list[Value], dict[str, Value]]:
    """What a call gives to each parameter; what goes into `*args`; what goes into `**kwargs`."""
    plain = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    found = dict(zip(plain, args, strict=False))
    known = {one.arg for one in parameters(function)}
    found |= {name: value for name, value in named.items() if name in known}
    return found, list(args[len(plain):]), {name: value for name, value in named.items() if name not in known}


def defaults_of(function: Function | ast.Lambda) -> dict[str, ast.expr]:
    """The defaults of parameters."""
    plain = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    found = dict(zip(plain[::-1], function.args.defaults[::-1], strict=False))
    return found | {
        one.arg: value for one, value in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if value is not None
    }


def folded(op: str, left: Any, right: Any) -> Any:
    """What an operator gives on two numbers or strings; None where that is not known."""
    numbers = all(isinstance(one, (int, float)) for one in (left, right))
    try:
        if op == "add" and (numbers or (isinstance(left, str) and isinstance(right, str))):
            return left + right
        if not numbers:
            return None
        return _FOLDS[op](left, right) if op in _FOLDS else None
    except (ArithmeticError, ValueError):
        return None


def _power(left: float, right: float) -> Any:
    return left**right if abs(left) < 1e4 and abs(right) < 100 else None


_FOLDS: dict[str, Callable[[Any, Any], Any]] = {
    "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b, "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b, "pow": _power, "lt": lambda a, b: a < b, "gt": lambda a, b: a > b, "le": lambda a, b: a <= b,
    "ge": lambda a, b: a >= b,
}


@lru_cache(maxsize=1000)
def counted(around: ast.AST) -> tuple[ast.expr, ...]:
    """The names and attributes that a loop or a class counts up or down by a number that is written out: `i += 1`,
    `self.steps = self.steps + 1`."""
    found: list[ast.expr] = []
    for one in ast.walk(around):
        if isinstance(one, ast.AugAssign) and isinstance(one.op, (ast.Add, ast.Sub)) and _is_whole_number(one.value):
            found.append(one.target)
        for target, value in pairs_of(one) if isinstance(one, ast.Assign) else ():
            adds = isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Add, ast.Sub)) and _is_whole_number(value.right)
            if adds and isinstance(value, ast.BinOp) and isinstance(target, (ast.Name, ast.Attribute)) and ast.unparse(target) == ast.unparse(value.left):
                found.append(target)
    return tuple(found)


def _is_whole_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int)


@lru_cache(maxsize=1000)
def _makes_layers(loop: ast.AST) -> bool:
    """Whether a loop makes layers, of sizes that may differ from pass to pass: `nn.Linear(sizes[i], sizes[i + 1])`."""
    called = [one.func for one in ast.walk(loop) if isinstance(one, ast.Call)]
    made = any(isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id == "nn" and one.attr[:1].isupper() for one in called)
    return made and not any(isinstance(one, ast.Attribute) and one.attr in ("backward", "step") for one in called)


@lru_cache(maxsize=1000)
def _takes_columns(loop: ast.AST) -> bool:
    """Whether a comprehension takes one column of rows in each pass: `[stack([rows[i][k] for i in chosen]) for k in range(5)]`."""
    target = loop.generators[0].target if isinstance(loop, (ast.ListComp, ast.GeneratorExp)) else None
    if not isinstance(target, ast.Name) or not isinstance(loop, (ast.ListComp, ast.GeneratorExp)):
        return False
    inner = [one for one in ast.walk(loop.elt) if isinstance(one, (ast.ListComp, ast.GeneratorExp))]
    return any(isinstance(one.elt, ast.Subscript) and isinstance(one.elt.slice, ast.Name) and one.elt.slice.id == target.id for one in inner)


def goes_apart(loop: ast.AST, around: ast.AST | None = None) -> bool:
    """Whether what a loop computes differs from pass to pass by more than its number. `around`: what a comprehension stands in."""
    return _makes_layers(loop) or _takes_columns(loop) or _is_taken_apart(loop, around)


@lru_cache(maxsize=1000)
def first_asked(loop: ast.AST) -> tuple[str, ...]:
    """The names that a loop sets, and compares with None: they are None in its first pass at most."""
    asked = {one.left.id for one in ast.walk(loop) if isinstance(one, ast.Compare) and isinstance(one.left, ast.Name) and isinstance(one.ops[0], (ast.Is, ast.IsNot))}
    return tuple(asked & {one.id for one in ast.walk(loop) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)})


def counts(of: ast.ClassDef, name: str) -> bool:
    """Whether the methods of a class count an attribute up or down, by whatever number: also up to a bound, or round a ring."""
    return any(isinstance(one, ast.Attribute) and one.attr == name for one in _grown(of))


@lru_cache(maxsize=1000)
def _grown(of: ast.ClassDef) -> tuple[ast.expr, ...]:
    """The attributes that a class makes of themselves: `self.size += len(x)`, `self.size = min(self.size + 1, self.most)`,
    `self.full = self.full or self.at == 0`."""
    found: list[ast.expr] = []
    for one in ast.walk(of):
        if isinstance(one, ast.AugAssign) and isinstance(one.op, (ast.Add, ast.Sub)):
            found.append(one.target)
        elif isinstance(one, ast.Assign):
            found += [name for name, value in pairs_of(one) if isinstance(name, ast.Attribute) and _adds_to(value, ast.unparse(name))]
    return tuple(found)


def _adds_to(value: ast.expr, name: str) -> bool:
    for one in ast.walk(value):
        sums = isinstance(one, ast.BinOp) and isinstance(one.op, (ast.Add, ast.Sub)) and ast.unparse(one.left) == name
        if sums or (isinstance(one, ast.BoolOp) and isinstance(one.op, ast.Or) and any(ast.unparse(part) == name for part in one.values)):
            return True
    return False


def whole_of(data: Value) -> Value:
    """The data set that one is a part of."""
    while (data.op.startswith("torch.utils.data.") and data.op.endswith(("Subset", "random_split"))) or (data.op == "part" and data.args[0].op.endswith("random_split")):
        data = data.args[0]
    return data


def sort_keys(run: Any, name: str, args: Sequence[Value], named: dict[str, Value], node: ast.Call, frame: Frame) -> None:
    """Computes what a list is sorted by, of one of its parts: `sorted(beams, key=score)`."""
    key, rows = named.get("key"), args[0] if args else None
    if name == "sorted" and isinstance(key, Code) and isinstance(rows, Many) and rows.parts:
        run.call(key, [rows.parts[-1]], {}, node, frame)


def _is_taken_apart(node: ast.AST, around: ast.AST | None) -> bool:
    """Whether each element of a comprehension gets a name of its own: `a, b, c = (torch.zeros(n) for _ in range(3))`."""
    names = around.targets[0] if isinstance(around, ast.Assign) and len(around.targets) == 1 else None
    comprehended = isinstance(node, ast.ListComp | ast.GeneratorExp) and len(node.generators) == 1
    return comprehended and isinstance(names, ast.Tuple | ast.List) and not any(isinstance(one, ast.Starred) for one in names.elts)
