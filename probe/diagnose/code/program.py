"""The names of a program: what gives variables a value, what calls run, what expressions give.

Kinds do not depend on the order of statements: where two assignments disagree, or a value comes from code
that is not part of the program, its kind is unknown (None), and a rule says nothing. Pure.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from itertools import chain, takewhile
from typing import NamedTuple

from probe.diagnose.code.library_kinds import Kind, made_by
from probe.diagnose.code.parsed import Parsed
from probe.diagnose.code.source import Source
from probe.diagnose.code.syntax import (
    Function,
    is_method,
    is_nothing,
    is_own,
    is_self,
    parameters,
    returned,
)

ROUNDS = 4
"""How often kinds are passed on from calls to parameters and from returns to calls: depth of calls."""
Key = tuple[ast.AST, str]
"""A variable: the function, class or module that holds it, and its name there (`x`, `self.x` of a class)."""
_SAME_MODULE = frozenset({
    "to", "cuda", "cpu", "train", "eval", "float", "double", "half", "bfloat16", "requires_grad_", "apply",
})
_LAYERS = ("torch.nn.ModuleList", "torch.nn.Sequential")
NUMBERS_OF_TENSORS = frozenset({
    "item", "dim", "size", "numel", "tolist", "numpy", "stride", "data_ptr", "ndimension",
})
"""Methods of a tensor that give something else."""

_NOT_OF_PROGRAM = frozenset({"optimizer", "scheduler", "scaler", "loader", "tensor", "array"})
"""Families of objects whose methods are torch's or numpy's."""

Kinds = dict[Key, set[Kind | None]]
"""Kinds that a variable is given; None: one is not known."""


class Binding(NamedTuple):
    """One place that gives a variable a value. `how`: `assign`, `add` (+= and the like), `for`, `with`,
    `parameter`; what a loop goes over is no `value`. `place` counts the element of `value` that it takes."""

    node: ast.AST
    value: ast.expr | None
    place: int | None
    how: str

    @property
    def whole(self) -> ast.expr | None:
        """The expression whose value the variable has from here on."""
        return self.value if self.how == "assign" and self.place is None else None


class Program(Parsed):
    """The names, variables and kinds of a program, beside what stands where."""

    def __init__(self, files: Mapping[str, str | Source]) -> None:
        super().__init__(files)
        self._kinds: Kinds = {}
        self._returns: dict[ast.AST, Kind | None] = {}
        self._known: dict[ast.AST, Kind | None] = {}
        self.bound: dict[Key, list[Binding]] = {}
        self._full_names: dict[ast.AST, str | None] = {}
        self._run: dict[ast.Call, Function | None] = {}
        for node in self.everywhere(ast.AST):
            self._assigned(node)
        for _ in range(ROUNDS):
            self._infer()

    # Names --------------------------------------------------------------------

    def dotted(self, node: ast.AST) -> str | None:
        """The full name of a thing that is imported (`F.relu` is `torch.nn.functional.relu`), or of a
        function or class of the program (`Net`); None for all else, such as variables."""
        if not isinstance(node, (ast.Name, ast.Attribute)):
            return None
        if node not in self._full_names:
            self._full_names[node] = self._full_name(node)
        return self._full_names[node]

    def _full_name(self, node: ast.AST) -> str | None:
        words: list[str] = []
        at = node
        while isinstance(at, ast.Attribute):
            words.append(at.attr)
            at = at.value
        if not isinstance(at, ast.Name):
            return None
        source = self.source_of.get(node)
        start = source.imports.get(at.id) if source else None
        if start is None:
            if words or (at.id not in self.functions and at.id not in self.classes):
                return None
            start = at.id
        return ".".join([start, *reversed(words)])

    def called(self, node: ast.AST | None) -> str:
        """The full name of what a call runs, where it is imported or of the program; empty for all else."""
        return (self.dotted(node.func) or "") if isinstance(node, ast.Call) else ""

    def operand(self, call: ast.Call) -> ast.expr | None:
        """x of `torch.f(x)` and `x.f()`."""
        if isinstance(call.func, ast.Attribute) and self.dotted(call.func) is None:
            return call.func.value
        return call.args[0] if call.args else None

    def local_function(self, call: ast.Call) -> Function | None:
        """The one function or method of the program that a call runs: a method by the class of its object,
        where that is known, and all else by its name, if it is unique. A module's call is its `forward`, and
        another object's its `__call__`."""
        if call not in self._run:
            self._run[call] = self._function_of_call(call)
        return self._run[call]

    def _function_of_call(self, call: ast.Call) -> Function | None:
        func = call.func
        name = func.id if isinstance(func, ast.Name) else getattr(func, "attr", None)
        if isinstance(func, ast.Attribute):
            if self.family(func.value) in _NOT_OF_PROGRAM:
                return None
            if (method := self._method_of(func)) is not None:
                return method
        kind = self.kind(func)
        if kind is not None and kind.family in ("module", "object") and kind.name in self.classes:
            run = "forward" if kind.family == "module" else "__call__"
            return self.method(self.classes[kind.name][0], run)
        found = self.functions.get(name or "", [])
        if len(found) != 1:
            return None
        of, full = self.class_of(found[0]), self.dotted(func)
        other = full is None if of is None else full not in (None, f"{of.name}.{name}")
        return None if other and isinstance(func, ast.Attribute) else found[0]

    def _method_of(self, func: ast.Attribute) -> Function | None:
        """The method that an object of the program has, or inherits; None where its class is not known, or
        where a class that inherits it has one of its own."""
        kind = self.kind(func.value)
        own = self.class_of(func) if is_self(func.value) else None
        if own is None and kind is not None and kind.family in ("module", "object"):
            own = next(iter(self.classes.get(kind.name, [])), None)
        found = None if own is None else self._inherited(own, func.attr)
        others = (self.class_of(one) for one in self.functions.get(func.attr, []) if one is not found)
        return None if any(one is not None and own in self.bases(one) for one in others) else found

    def bases(self, of: ast.ClassDef) -> list[ast.ClassDef]:
        """The classes of the program that a class names as its bases."""
        names = [(self.dotted(base) or "").rpartition(".")[2] for base in of.bases]
        return [one for name in names for one in self.classes.get(name, []) if one is not of]

    def _inherited(self, of: ast.ClassDef, name: str, depth: int = 4) -> Function | None:
        """A method that a class or one of its bases in the program defines."""
        found = self.method(of, name)
        for parent in self.bases(of) if depth and found is None else ():
            found = found or self._inherited(parent, name, depth - 1)
        return found

    def results(self, node: ast.AST | None) -> list[ast.AST]:
        """What the function of the program that an expression calls may return; empty for all else."""
        local = self.local_function(node) if isinstance(node, ast.Call) else None
        return [] if local is None else [one for one in returned(local) if one is not None]

    def run_by(self, call: ast.Call) -> Function | None:
        """The function, method or `__init__` of the program that a call runs."""
        of = self.classes.get(self.called(call))
        return self.local_function(call) if of is None else self.method(of[0], "__init__")

    def arguments(self, function: Function, call: ast.Call) -> dict[str, ast.expr]:
        """What a call gives to the parameters of a function, by their names."""
        names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
        if isinstance(self.parent.get(function), ast.ClassDef):
            names = names[1:]
        plain = takewhile(lambda one: not isinstance(one, ast.Starred), call.args)
        named = {one.arg: one.value for one in call.keywords if one.arg is not None}
        return dict(zip(names, plain, strict=False)) | named

    @staticmethod
    def method(of: ast.ClassDef, name: str) -> Function | None:
        """A method that a class itself defines."""
        for node in of.body:
            if isinstance(node, Function) and node.name == name:
                return node
        return None

    def is_module_class(self, of: ast.ClassDef, seen: frozenset[str] = frozenset()) -> bool:
        """Whether a class of the program is an nn.Module (or a LightningModule) by its bases."""
        for base in of.bases:
            name = self.dotted(base) or ""
            if name.startswith(("torch.nn.", "lightning.", "pytorch_lightning.", "transformers.")):
                return name.startswith("torch.nn.") or name.endswith(("Module", "Model"))
        later = seen | {of.name}
        return any(one.name not in seen and self.is_module_class(one, later) for one in self.bases(of))

    # Variables ----------------------------------------------------------------

    def key(self, node: ast.AST | None) -> Key | None:
        """The variable that an expression is; None for all but names and attributes of `self`."""
        if is_own(node):
            of = self.class_of(node)
            return None if of is None else (of, f"self.{node.attr}")
        if not isinstance(node, ast.Name):
            return None
        own: ast.AST = self.scope(node)
        if isinstance(node.ctx, ast.Store):
            return own, node.id
        at = own
        while (at, node.id) not in self.bound or (at is not own and isinstance(at, ast.ClassDef)):
            if isinstance(at, ast.Module):
                return None
            at = self.scope(at)
        return at, node.id

    def _assigned(self, node: ast.AST) -> None:
        """Keep what a node gives to variables."""
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind(target, node, node.value, "assign")
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
            how = "add" if isinstance(node, ast.AugAssign) else "assign"
            if node.value is not None:
                self._bind(node.target, node, node.value, how)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            self._bind(node.target, node, None, "for")
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._bind(node.optional_vars, node, node.context_expr, "with")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            rest = [one for one in (node.args.vararg, node.args.kwarg) if one is not None]
            for one in (*parameters(node), *rest):
                self.bound.setdefault((node, one.arg), []).append(Binding(one, None, None, "parameter"))

    def _bind(
        self, target: ast.AST, node: ast.AST, value: ast.expr | None, how: str, place: int | None = None
    ) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            given = value.elts if isinstance(value, (ast.Tuple, ast.List)) and place is None else []
            starred = any(isinstance(one, ast.Starred) for one in (*target.elts, *given))
            for number, one in enumerate(target.elts):
                if len(given) == len(target.elts) and not starred:
                    self._bind(one, node, given[number], how)
                elif place is None and not starred:
                    self._bind(one, node, value, how, number)
                else:
                    self._bind(one, node, None, how)
        elif isinstance(target, ast.Starred):
            self._bind(target.value, node, None, how)
        elif (key := self.key(target)) is not None:
            self.bound.setdefault(key, []).append(Binding(node, value, place, how))

    # Kinds --------------------------------------------------------------------

    def kind(self, node: ast.AST | None) -> Kind | None:
        """What an expression gives; None where that is not known."""
        if node is not None and node not in self._known:  # else a chain of calls takes twice as long
            self._known[node] = self._kind_of(node)
        return None if node is None else self._known[node]

    def _kind_of(self, node: ast.AST) -> Kind | None:
        if isinstance(node, ast.Constant):
            if isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
                return Kind("number", "")
            return Kind("string", "") if isinstance(node.value, str) else None
        if isinstance(node, (ast.Tuple, ast.List, ast.Dict, ast.ListComp, ast.DictComp, ast.Set)):
            return Kind("tuple", "")
        if isinstance(node, ast.Name):
            return self._kind_of_name(node)
        if isinstance(node, ast.Attribute):
            return self._kind_of_attribute(node)
        if isinstance(node, ast.Call):
            return self._kind_of_call(node)
        if isinstance(node, ast.BinOp):
            kinds = [self.kind(node.left), self.kind(node.right)]
            for family in ("tensor", "array"):
                if any(kind is not None and kind.family == family for kind in kinds):
                    return Kind(family, "")
            return kinds[0] if kinds[0] == kinds[1] else None
        if isinstance(node, ast.UnaryOp):
            return self.kind(node.operand)
        if isinstance(node, ast.Subscript):
            kind = self.kind(node.value)
            return Kind(kind.family, "") if kind is not None and kind.family in ("tensor", "array") else None
        if isinstance(node, ast.IfExp):
            sides = {self.kind(one) for one in (node.body, node.orelse) if not is_nothing(one)}
            return sides.pop() if len(sides) == 1 else None
        return None

    def family(self, node: ast.AST | None) -> str | None:
        """The family of an expression's kind; None where it is not known."""
        kind = self.kind(node)
        return None if kind is None else kind.family

    def kind_name(self, node: ast.AST | None) -> str:
        """The name of an expression's kind; empty where it is not known."""
        kind = self.kind(node)
        return "" if kind is None else kind.name

    def _kind_of_variable(self, key: Key | None) -> Kind | None:
        found = self._kinds.get(key, set()) if key is not None else set()
        return next(iter(found)) if len(found) == 1 else None

    def _kind_of_name(self, node: ast.Name) -> Kind | None:
        if (key := self.key(node)) is not None:
            return self._kind_of_variable(key)
        if node.id in self.functions or node.id in self.classes:
            return Kind("function", node.id)
        return None

    def _kind_of_attribute(self, node: ast.Attribute) -> Kind | None:
        if is_own(node):
            return self._kind_of_variable(self.key(node))
        kind = self.kind(node.value)
        if kind is None:
            return None
        if kind.family == "tensor" and node.attr in ("data", "grad", "T", "mT"):
            return Kind("tensor", "")
        if kind.family == "module" and kind.name in self.classes:
            return self._kind_of_variable((self.classes[kind.name][0], f"self.{node.attr}"))
        return None

    def _kind_of_call(self, call: ast.Call) -> Kind | None:
        name = self.dotted(call.func)
        if name is not None and name in self.classes:
            is_module = self.is_module_class(self.classes[name][0])
            return Kind("module" if is_module else _of_program(self, name), name)
        if name is not None and (made := made_by(name)) is not None:
            if made.family == "module" and made.name.startswith("torch.nn.parallel") and call.args:
                return self.kind(call.args[0]) or made
            return made
        if name == "torch.compile" and call.args:
            return self.kind(call.args[0])
        local = self.local_function(call)
        if is_method(call):
            of = self.kind(call.func.value)
            if of is not None and of.family == "module" and call.func.attr in _SAME_MODULE:
                return of
            if of is not None and of.family == "tensor":
                return None if call.func.attr in NUMBERS_OF_TENSORS else Kind("tensor", call.func.attr)
            if of is not None and of.family == "distribution":
                return Kind("tensor", call.func.attr)
        if local is not None:
            return self._returns.get(local)
        called = self.kind(call.func)
        if called is not None and called.family in ("module", "loss") and called.name not in self.classes:
            return Kind("tensor", called.name)
        return None

    def _infer(self) -> None:
        """One round: assignments, parameters from calls, and what functions return."""
        kinds: Kinds = {}
        for key, bindings in self.bound.items():
            kinds[key] = {
                self.kind(one.value) if one.value is not None and one.place is None else self._element(one)
                for one in bindings
                if one.how != "parameter" and not (one.how == "add" and isinstance(one.value, ast.Constant))
            }
        for call in self.calls():
            if (function := self.run_by(call)) is not None:
                for name, given in self.arguments(function, call).items():
                    kinds.setdefault((function, name), set()).add(self.kind(given))
        self._kinds = kinds
        self._forget()
        for function in chain(*self.functions.values()):
            found = set(map(self.kind, returned(function)))
            self._returns[function] = next(iter(found)) if len(found) == 1 else None
        self._forget()

    def _forget(self) -> None:
        """What follows from kinds is found anew once they are known better."""
        self._known.clear()
        self._run.clear()

    def _element(self, binding: Binding) -> Kind | None:
        """What a part of a call's results is, and what a loop over layers, one ModuleList, gives."""
        if binding.place is not None:
            results = self.results(binding.value) if binding.how == "assign" else []
            parts = results[0].elts if len(results) == 1 and isinstance(results[0], ast.Tuple) else []
            return self.kind(parts[binding.place]) if binding.place < len(parts) else None
        key = self.key(getattr(binding.node, "iter", None))
        found = self.bound.get(key, []) if key is not None else []
        made = found[0].value if len(found) == 1 and found[0].place is None else None
        if not isinstance(made, ast.Call) or self.dotted(made.func) not in _LAYERS or not made.args:
            return None
        inner = made.args[0].value if isinstance(made.args[0], ast.Starred) else made.args[0]
        return self.kind(inner.elt) if isinstance(inner, (ast.ListComp, ast.GeneratorExp)) else None


def _of_program(program: Program, name: str) -> str:
    """The family of an instance of a class of the program that is no module."""
    for base in program.classes[name][0].bases:
        made = made_by(program.dotted(base) or "")
        if made is not None and made.family in ("dataset", "sampler", "optimizer", "scheduler", "loss"):
            return made.family
    return "object"
