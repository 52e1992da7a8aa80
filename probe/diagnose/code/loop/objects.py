"""Which object of a program a name stands for, and what is called on it, in which order. Pure."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from probe.diagnose.code.program import Program
from probe.diagnose.code.syntax import (
    Function,
    Loop,
    Scope,
    is_attribute,
    is_method,
    is_negative,
    is_own,
    is_set,
)

Key = tuple[ast.AST, str]
"""A variable: the function, class or module that holds it, and its name there (`x`, `self.x` of a class)."""
_CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm")
_FUNCTIONS = Scope


class Event(NamedTuple):
    """A call that a training step is made of. `what` is zero, backward, step, clip, unscale or
    update; `of` is the optimizer (of zero: the optimizer or the module; of update: the scaler).
    `always`: whether it runs whenever its block does; `scaled`: whether a gradient scaler takes part."""

    what: str
    of: Key | None
    node: ast.Call
    always: bool
    scaled: bool


class Objects:
    """The variables of a program: what each is assigned, what is called on it, and where else it is read."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.values: dict[Key, list[ast.AST | None]] = {}
        self.calls: dict[Key, list[ast.Call]] = {}
        self.escapes: dict[Key, list[ast.AST]] = {}
        self.attributes: dict[str, int] = {}
        self._bound: dict[Key, None] = {}
        self._sites: dict[ast.AST, list[ast.Call]] = {}
        nodes = [node for source in program.sources for node in ast.walk(source.tree)]
        for node in nodes:
            self._bind(node)
        for node in nodes:
            self._read(node)

    def _bind(self, node: ast.AST) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            arguments = node.args
            for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                self._bound[(node, one.arg)] = None
        elif is_set(node):
            self._bound[(self.program.scope(node), node.id)] = None
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, node.value)
        elif isinstance(node, (ast.AugAssign, ast.For, ast.NamedExpr)):
            self._assign(node.target, None if isinstance(node, ast.For) else node.value)

    def _assign(self, target: ast.AST, value: ast.AST | None) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            values = value.elts if isinstance(value, (ast.Tuple, ast.List)) else ()
            for number, one in enumerate(target.elts):
                self._assign(one, values[number] if len(values) == len(target.elts) else None)
            return
        scope = self.program.scope(target)
        if isinstance(target, ast.Name):
            self.values.setdefault((scope, target.id), []).append(value)
        elif (key := self.key(target)) is not None:
            self.values.setdefault(key, []).append(value)

    def _read(self, node: ast.AST) -> None:
        if isinstance(node, ast.Call):
            if is_method(node) and (key := self.key(node.func.value)) is not None:
                self.calls.setdefault(key, []).append(node)
            local = self.program.local_function(node)
            if local is not None:
                self._sites.setdefault(local, []).append(node)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            self.attributes[node.attr] = self.attributes.get(node.attr, 0) + 1
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            key = self.key(node)
            if key is not None and (
                not isinstance(self.program.parent.get(node), ast.Attribute) or self._bound_step(node)
            ):
                self.escapes.setdefault(key, []).append(node)

    def _bound_step(self, node: ast.AST) -> bool:
        """Whether `x.step` is read as a value (`update = x.step`, `compile(x.step)`): it is called elsewhere.
        As a statement of its own it lacks its brackets."""
        around = self.program.parent.get(node)
        if not is_attribute(around, "step"):
            return False
        user = self.program.parent.get(around)
        return not isinstance(user, ast.Expr) and not (isinstance(user, ast.Call) and user.func is around)

    def key(self, node: ast.AST | None) -> Key | None:
        """The variable that an expression is; None for all but names and attributes of `self`."""
        if isinstance(node, ast.Name):
            at: ast.AST = node
            while at in self.program.parent:
                at = self.program.scope(at)
                if (at, node.id) in self._bound and not isinstance(at, ast.ClassDef):
                    return (at, node.id)
            return None
        if is_own(node):
            of = self.program.class_of(node)
            return None if of is None else (of, f"self.{node.attr}")
        return None

    def site(self, function: Function | None) -> ast.Call | None:
        """The one call of a function; None where there is none, or more than one."""
        found = self._sites.get(function, []) if function is not None else []
        return found[0] if len(found) == 1 else None

    def origin(self, key: Key | None, depth: int = 3) -> Key | None:
        """The variable that a parameter gets at the one call of its function; another variable is itself."""
        while key is not None and depth and key not in self.values and isinstance(key[0], Function):
            depth -= 1
            site = self.site(key[0])
            names = [one.arg for one in key[0].args.args]
            if isinstance(self.program.parent.get(key[0]), ast.ClassDef):
                names = names[1:]
            if site is None:
                return key
            given = {word.arg: word.value for word in site.keywords if word.arg}
            given |= dict(
                zip(names, (one for one in site.args if not isinstance(one, ast.Starred)), strict=False)
            )
            found = self.key(given.get(key[1]))
            if found is None:
                return key
            key = found
        return key

    def made(self, key: Key | None) -> ast.Call | None:
        """The one call whose result a variable holds; None where it is assigned otherwise or again."""
        found = self.values.get(key, []) if key is not None else []
        return found[0] if len(found) == 1 and isinstance(found[0], ast.Call) else None

    def loops(self, node: ast.AST) -> list[Loop]:
        """The loops around a node, innermost first, with those around the one call of its function."""
        found = self.program.loops(node)
        for _ in range(2):
            function = self.program.function_of(node)
            site = self.site(function)
            if site is None:
                break
            found = found + self.program.loops(site)
            node = site
        return found

    # The calls of a step ----------------------------------------------------

    def events(self, block: Sequence[ast.stmt]) -> list[Event]:
        """What a list of statements does to gradients and parameters, in order, without nested functions."""
        found: list[Event] = []
        for statement in block:
            for call, always in calls_in(statement):
                event = self._event(call, always)
                if event is not None:
                    found.append(event)
        return found

    def _event(self, call: ast.Call, always: bool) -> Event | None:
        func = call.func
        name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
        if name in _CLIPS:
            return Event("clip", self.key(first_module(call)), call, always, False)
        if not isinstance(func, ast.Attribute):
            return None
        if name == "zero_grad":
            return Event("zero", self.key(func.value), call, always, False)
        if name in ("backward", "manual_backward"):
            return Event("backward", None, call, always, self.scaled(func.value))
        if name == "step":
            if len(call.args) == 1 and (
                self.program.family(func.value) == "scaler" or self.is_optimizer(call.args[0])
            ):
                return Event("step", self.key(call.args[0]), call, always, True)
            return (
                Event("step", self.key(func.value), call, always, False)
                if self.is_optimizer(func.value)
                else None
            )
        if name == "unscale_" and call.args:
            return Event("unscale", self.key(call.args[0]), call, always, False)
        if name == "update" and self.program.family(func.value) == "scaler":
            return Event("update", self.key(func.value), call, always, False)
        return None

    def scaled(self, node: ast.AST, depth: int = 2) -> bool:
        """Whether an expression is a loss that a gradient scaler has multiplied."""
        if is_method(node, "scale", "scale_loss"):
            return True
        key = self.key(node)
        return (
            depth > 0
            and key is not None
            and any(value is not None and self.scaled(value, depth - 1) for value in self.values.get(key, []))
        )

    def is_optimizer(self, node: ast.AST) -> bool:
        """Whether an expression is an optimizer: by its kind, or because it is both stepped and zeroed."""
        family = self.program.family(node)
        if family is not None:
            return family == "optimizer"
        key = self.key(node)
        called = {call.func.attr for call in self.calls.get(key, []) if is_method(call)} if key else set()
        return {"step", "zero_grad"} <= called and "forward" not in called

    def optimized(self, key: Key | None) -> Key | None:
        """The one module whose parameters an optimizer was made with."""
        made = self.made(self.origin(key))
        return self.key(first_module(made)) if made is not None else None


def first_module(call: ast.Call) -> ast.AST | None:
    """`m` in `f(m.parameters(), ...)`; None where the first argument is something else."""
    first = (
        call.args[0]
        if call.args
        else next((word.value for word in call.keywords if word.arg in ("params", "parameters")), None)
    )
    if is_method(first, "parameters"):
        return first.func.value
    return None


def calls_in(node: ast.AST, always: bool = True) -> Iterator[tuple[ast.Call, bool]]:
    """The calls of a statement in order of the text, and whether each runs whenever the statement does."""
    waiting: list[tuple[ast.AST, bool]] = [(node, always)]
    while waiting:
        at, sure = waiting.pop(0)
        if isinstance(at, _FUNCTIONS):
            continue
        if isinstance(at, ast.Call):
            yield at, sure
        inside = sure and not isinstance(
            at, (ast.If, ast.For, ast.While, ast.Try, ast.IfExp, ast.BoolOp, ast.AsyncFor, ast.Match)
        )
        waiting[:0] = [(child, inside) for child in ast.iter_child_nodes(at)]


@functools.lru_cache(maxsize=1)
def objects_of(program: Program) -> Objects:
    """The variables of a program; made once for all rules."""
    return Objects(program)


def constant(objects: Objects, node: ast.AST | None) -> float | None:
    """The number that an expression is, by itself or through variables assigned once; None where unknown."""
    for _ in range(3):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, (int, float))
            and not isinstance(node.value, bool)
        ):
            return float(node.value)
        if is_negative(node):
            inner = constant(objects, node.operand)
            return None if inner is None else -inner
        key = objects.key(node)
        found = objects.values.get(key, []) if key is not None else []
        if len(found) != 1:
            return None
        node = found[0]
    return None


def goes_over(program: Program, node: ast.AST, methods: tuple[str, ...]) -> bool:
    """Whether a variable goes through what one of these methods gives."""
    if not isinstance(node, ast.Name):
        return False
    for around in program.parents(node):
        if isinstance(around, ast.For) and is_method(around.iter):
            names = [one.id for one in ast.walk(around.target) if isinstance(one, ast.Name)]
            if names[-1:] == [node.id] and around.iter.func.attr in methods:
                return True
    return False


def is_torch_optimizer(program: Program, call: ast.Call) -> bool:
    """Whether a call makes an optimizer of torch."""
    kind = program.kind(call)
    return kind is not None and kind.family == "optimizer" and kind.name.startswith("torch.optim.")
