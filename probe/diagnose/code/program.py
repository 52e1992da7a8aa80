"""A program's source files, parsed, with what names stand for and what kind of thing an expression gives.

Flow-insensitive and optimistic about nothing: where two assignments disagree, or a value comes from code that
is not part of the program, its kind is unknown (None), and a rule says nothing. Pure; standard library only.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from probe.diagnose.code.syntax import Function, Loop, Node, Scope, blocks_of, is_method, is_self, own_nodes

DEEPEST = 150
"""Expressions within each other: what people write has a tenth of it, and Python allows 1,000 calls within
each other."""
ROUNDS = 4
"""How often kinds are passed on from calls to parameters and from returns to calls: depth of calls."""


class Kind(NamedTuple):
    """What an expression gives: `family` is one of `FAMILIES`, `name` the dotted name of the class or
    function that made it (`torch.optim.adam.Adam` is written as it is imported: `torch.optim.Adam`)."""

    family: str
    name: str


FAMILIES: dict[str, str] = {
    "module": "an nn.Module", "loss": "a loss module of torch.nn", "optimizer": "an optimizer of torch.optim",
    "scheduler": "a learning rate scheduler", "loader": "a DataLoader", "sampler": "a sampler of a loader",
    "dataset": "a dataset", "tensor": "a tensor", "array": "a numpy array", "frame": "a pandas frame",
    "scaler": "a gradient scaler", "distribution": "a distribution of torch.distributions",
    "number": "a Python number", "string": "a str", "function": "a function or class of the program",
    "tuple": "a tuple, list or dict",
}
"""The families of kinds, with what they mean."""
_PREFIXES: tuple[tuple[str, str], ...] = (
    ("torch.optim.lr_scheduler.", "scheduler"), ("torch.optim.swa_utils.AveragedModel", "module"),
    ("torch.optim.swa_utils.SWALR", "scheduler"), ("torch.optim.", "optimizer"),
    ("torch.utils.data.distributed.", "sampler"), ("torch.distributions.", "distribution"),
    ("torch.nn.parallel.", "module"), ("torch.nn.functional.", "tensor"), ("torch.nn.init.", "tensor"),
    ("torch.nn.utils.", "tensor"),
)
_NOT_TENSORS = frozenset({
    "device", "load", "save", "no_grad", "enable_grad", "inference_mode", "autocast", "manual_seed",
    "Generator",
    "set_default_dtype", "set_num_threads", "get_num_threads", "compile", "Size", "is_tensor", "typename",
    "set_grad_enabled", "get_rng_state", "set_rng_state", "finfo", "iinfo", "numel", "allclose", "equal",
})
_SAME_MODULE = frozenset({
    "to", "cuda", "cpu", "train", "eval", "float", "double", "half", "bfloat16", "requires_grad_", "apply",
})
NUMBERS_OF_TENSORS = frozenset({
    "item", "dim", "size", "numel", "tolist", "numpy", "stride", "data_ptr", "ndimension",
})
"""Methods of a tensor that give something else."""

Kinds = dict[tuple[ast.AST, str], set[Kind | None]]
"""Kinds that a name of a scope is given (an attribute: `self.x` of its class); None: one is not known."""


class Source:
    """One file: where it lies, its text by lines, its tree, and what its names are imported from. `failed`
    says why it cannot be read; then the tree may be empty."""

    def __init__(self, path: str, text: str) -> None:
        self.path, self.text, self.lines = path, text, text.split("\n")
        self.imports: dict[str, str] = {}
        self.failed: str | None = None
        try:
            self.tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            self.tree, self.failed = ast.Module([], []), f"{type(error).__name__}: {error}"
        if _deepest(self.tree) > DEEPEST:
            self.failed = "an expression is nested too deeply"


def _deepest(tree: ast.Module) -> int:
    """How deeply the expressions of a file are nested."""
    deepest = 0
    waiting: list[tuple[ast.AST, int]] = [(tree, 0)]
    while waiting:
        node, depth = waiting.pop()
        deepest = max(deepest, depth)
        inner = 0 if isinstance(node, ast.stmt) else depth + 1
        waiting += [(child, inner) for child in ast.iter_child_nodes(node)]
    return deepest


class Program:
    """The parsed files of a program. `files` maps a path to its text, or to what was parsed of it; files that
    cannot be read are in `failed`, with the reason. The first file is the script."""

    def __init__(self, files: Mapping[str, str | Source]) -> None:
        found = [one if isinstance(one, Source) else Source(path, one) for path, one in files.items()]
        self.sources = [source for source in found if source.failed is None]
        self.failed = {source.path: source.failed for source in found if source.failed is not None}
        self.source_of: dict[ast.AST, Source] = {}
        self.parent: dict[ast.AST, ast.AST] = {}
        self._of_type: dict[type[ast.AST], list[ast.AST]] = {}
        self._number: dict[ast.AST, int] = {}
        self.functions: dict[str, list[Function]] = {}
        self.classes: dict[str, list[ast.ClassDef]] = {}
        self._kinds: Kinds = {}
        self._returns: dict[ast.AST, Kind | None] = {}
        self._known: dict[ast.AST, Kind | None] = {}
        for source in self.sources:
            self._index(source)
        for _ in range(ROUNDS):
            self._infer()

    # What stands where ------------------------------------------------------

    def _index(self, source: Source) -> None:
        for node in ast.walk(source.tree):
            self.source_of[node] = source
            self._of_type.setdefault(type(node), []).append(node)
            self._number[node] = len(self._number)
            for child in ast.iter_child_nodes(node):
                self.parent[child] = node
            if isinstance(node, Function):
                self.functions.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.ClassDef):
                self.classes.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.asname or alias.name.partition(".")[0]
                    source.imports[name] = alias.name if alias.asname else name
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    source.imports[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def parents(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, innermost first."""
        at = self.parent.get(node)
        while at is not None:
            yield at
            at = self.parent.get(at)

    def scope(self, node: ast.AST) -> Scope:
        """The function, lambda, class or module whose names a node's own names are."""
        for around in self.parents(node):
            if isinstance(around, Scope):
                return around
        assert isinstance(node, ast.Module)
        return node

    def function_of(self, node: ast.AST) -> Function | None:
        """The function around a node; None at the top of a file."""
        return next((one for one in self.parents(node) if isinstance(one, Function)), None)

    def function_name(self, node: ast.AST) -> str | None:
        """Name of the function around a node; None at the top of a file."""
        function = self.function_of(node)
        return None if function is None else function.name

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """The class whose method a node stands in; None outside of classes."""
        return next((one for one in self.parents(node) if isinstance(one, ast.ClassDef)), None)

    def loops(self, node: ast.AST) -> list[Loop]:
        """The loops around a node within its function, innermost first."""
        found: list[Loop] = []
        for around in self.parents(node):
            if isinstance(around, Loop):
                found.append(around)
            elif isinstance(around, Scope):
                break
        return found

    def block(self, statement: ast.AST) -> list[ast.stmt]:
        """The list of statements that a statement stands in; empty for all else."""
        return next((found for found in blocks_of(self.parent.get(statement)) if statement in found), [])

    def after(self, statement: ast.AST) -> list[ast.stmt]:
        """The statements that follow one in its block."""
        block = self.block(statement)
        return block[block.index(statement) + 1 :] if isinstance(statement, ast.stmt) and block else []

    def everywhere(self, *types: type[Node]) -> Iterator[Node]:
        """All nodes of these types in all files, in order of the files."""
        found = [nodes for kind, nodes in self._of_type.items() if issubclass(kind, types)]
        nodes = found[0] if len(found) == 1 else sorted(chain(*found), key=self._number.__getitem__)
        return (node for node in nodes if isinstance(node, types))

    def calls(self) -> Iterator[ast.Call]:
        """All calls in all files."""
        return self.everywhere(ast.Call)

    # Names --------------------------------------------------------------------

    def dotted(self, node: ast.AST) -> str | None:
        """The full name of a thing that is imported (`F.relu` is `torch.nn.functional.relu`), or of a
        function or class of the program (`Net`); None for all else, such as variables."""
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

    def local_function(self, call: ast.Call) -> Function | None:
        """The one function or method of the program that a call runs, where its name is unique; a module's
        call is its `forward`."""
        func = call.func
        name = func.id if isinstance(func, ast.Name) else getattr(func, "attr", None)
        kind = self.kind(func)
        if kind is not None and kind.family == "module" and kind.name in self.classes:
            return self.method(self.classes[kind.name][0], "forward")
        found = self.functions.get(name or "", [])
        if len(found) != 1:
            return None
        if isinstance(func, ast.Attribute) and self.class_of(found[0]) is None and self.dotted(func) is None:
            return None
        return found[0]

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
            if name not in seen:
                for parent in self.classes.get(name.rpartition(".")[2], []):
                    if parent is not of and self.is_module_class(parent, seen | {of.name}):
                        return True
        return False

    # Kinds --------------------------------------------------------------------

    def kind(self, node: ast.AST | None) -> Kind | None:
        """What an expression gives; None where that is not known."""
        if node is None:
            return None
        if node not in self._known:  # else a chain of calls takes time that doubles with each
            self._known[node] = self._kind_of(node)
        return self._known[node]

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
            one, other = self.kind(node.body), self.kind(node.orelse)
            return one if one == other else None
        return None

    def family(self, node: ast.AST | None) -> str | None:
        """The family of an expression's kind; None where it is not known."""
        kind = self.kind(node)
        return None if kind is None else kind.family

    def _kind_of_name(self, node: ast.Name) -> Kind | None:
        at: ast.AST = node
        while at in self.parent:
            at = self.scope(at)
            found = None if isinstance(at, ast.ClassDef) else self._kinds.get((at, node.id))
            if found is not None:
                return next(iter(found)) if len(found) == 1 else None
        if node.id in self.functions or node.id in self.classes:
            return Kind("function", node.id)
        return None

    def _kind_of_attribute(self, node: ast.Attribute) -> Kind | None:
        of = self.class_of(node)
        if is_self(node.value) and of is not None:
            found = self._kinds.get((of, f"self.{node.attr}"))
            return next(iter(found)) if found is not None and len(found) == 1 else None
        kind = self.kind(node.value)
        if kind is None:
            return None
        if kind.family == "tensor" and node.attr in ("data", "grad", "T", "mT"):
            return Kind("tensor", "")
        if kind.family == "module" and kind.name in self.classes:
            found = self._kinds.get((self.classes[kind.name][0], f"self.{node.attr}"))
            return next(iter(found)) if found is not None and len(found) == 1 else None
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
        for source in self.sources:
            for node in ast.walk(source.tree):
                for target, value in _bindings(node):
                    self._bind(kinds, target, value)
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                    for parameter in ast.walk(node.args):
                        if isinstance(parameter, ast.arg):  # hides a name around it
                            kinds.setdefault((node, parameter.arg), set())
        for call in self.calls():
            self._pass_on(kinds, call)
        self._kinds = kinds
        self._known.clear()
        for functions in self.functions.values():
            for function in functions:
                found = {
                    self.kind(node.value) for node in own_nodes(function) if isinstance(node, ast.Return)
                }
                self._returns[function] = next(iter(found)) if len(found) == 1 else None
        self._known.clear()

    def _bind(self, kinds: Kinds, target: ast.AST, value: ast.AST | None) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            values = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
            together = len(values) == len(target.elts)
            for number, one in enumerate(target.elts):
                self._bind(kinds, one, values[number] if together else None)
        elif isinstance(target, ast.Starred):
            self._bind(kinds, target.value, None)
        elif isinstance(target, ast.Name):
            kinds.setdefault((self.scope(target), target.id), set()).add(self.kind(value))
        elif isinstance(target, ast.Attribute) and is_self(target.value):
            of = self.class_of(target)
            if of is not None:
                kinds.setdefault((of, f"self.{target.attr}"), set()).add(self.kind(value))

    def _pass_on(self, kinds: Kinds, call: ast.Call) -> None:
        """The kinds of a call's arguments are those of the parameters of the function that it runs."""
        name = self.dotted(call.func)
        local = self.local_function(call)
        if name is not None and name in self.classes:
            local = self.method(self.classes[name][0], "__init__")
        if local is None:
            return
        names = [one.arg for one in (*local.args.posonlyargs, *local.args.args)]
        if self.class_of(local) is not None and isinstance(self.parent.get(local), ast.ClassDef):
            names = names[1:]
        for parameter, given in zip(names, call.args, strict=False):
            if isinstance(given, ast.Starred):
                break
            kinds.setdefault((local, parameter), set()).add(self.kind(given))
        for keyword in call.keywords:
            if keyword.arg is not None:
                kinds.setdefault((local, keyword.arg), set()).add(self.kind(keyword.value))


def made_by(name: str) -> Kind | None:
    """What calling an imported name gives."""
    last = name.rpartition(".")[2]
    capital = last[:1].isupper()
    for prefix, family in _PREFIXES:
        if name.startswith(prefix):
            return Kind(family, name) if capital != (family == "tensor") else None
    if name.startswith("torch.utils.data.") and capital:
        family = "loader" if last == "DataLoader" else "sampler" if last.endswith("Sampler") else "dataset"
        return Kind(family, name)
    if name.startswith("torch.nn.") and capital:
        if last == "Parameter":
            return Kind("tensor", name)
        return Kind("loss" if last.endswith("Loss") else "module", name)
    if last == "GradScaler":
        return Kind("scaler", name)
    if name.startswith("torch.") and name.count(".") == 1 and not capital and last not in _NOT_TENSORS:
        return Kind("tensor", name)
    if name.startswith("torch.special."):
        return Kind("tensor", name)
    if name.startswith("numpy.") and not capital and not name.startswith("numpy.random.seed"):
        return Kind("array", name)
    if name.startswith("pandas.") and last in ("DataFrame", "read_csv", "read_parquet", "concat", "merge"):
        return Kind("frame", name)
    return None


def _of_program(program: Program, name: str) -> str:
    """The family of an instance of a class of the program that is no module."""
    for base in program.classes[name][0].bases:
        made = made_by(program.dotted(base) or "")
        if made is not None and made.family in ("dataset", "sampler", "optimizer", "scheduler", "loss"):
            return made.family
    return "object"


def _bindings(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """Names that a node gives a value, with the value (None where it is not an expression of the program)."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield target, node.value
    elif (isinstance(node, ast.AnnAssign) and node.value is not None) or isinstance(node, ast.NamedExpr):
        yield node.target, node.value
    elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        yield node.target, None
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, node.context_expr
    elif isinstance(node, ast.AugAssign) and not isinstance(node.value, ast.Constant):
        yield node.target, node.value  # a sum that began as a number disagrees, so its kind is unknown

