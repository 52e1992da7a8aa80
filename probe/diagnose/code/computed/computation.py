"""Running a program abstractly, once: every call is entered, every loop's body runs once, unknown branches both.

    computation_of(program).of("div")        # all divisions, in the order in which they are computed

What a file reads, a network gives or a user sets is an input of unknown value. After what the script runs, the
functions that it never called run with inputs. Nothing of the program is executed. Pure; standard library only.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, ClassVar

from probe.diagnose.code.computed.entering import Calls
from probe.diagnose.code.computed.frames import Frame, Stop, counted, first_asked
from probe.diagnose.code.computed.value import Code, Instance, Many, Table, Value, cast_by, constant, is_none
from probe.diagnose.code.program import Program
from probe.diagnose.code.source import Source
from probe.diagnose.code.syntax import Function

_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv", ast.Mod: "mod", ast.Pow: "pow",
    ast.MatMult: "matmul", ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor", ast.LShift: "lshift", ast.RShift: "rshift",
    ast.Lt: "lt", ast.Gt: "gt", ast.LtE: "le", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne", ast.Is: "is", ast.IsNot: "is_not",
    ast.In: "in", ast.NotIn: "not_in", ast.USub: "neg", ast.UAdd: "pos", ast.Invert: "invert", ast.Not: "not",
}
_FALLS, _LEAVES = "falls", "leaves"
"""How a block ends: the statements after it run, or they do not."""


class Computation(Calls):
    """All values that a program computes."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.complete = True
        try:
            for source in program.sources:
                self.module(source)
            self._run_the_rest()
        except (Stop, RecursionError):
            self.complete = False
        self._by_op: dict[str, list[Value]] = {}
        self._users: dict[int, list[Value]] = {}
        for value in self.values:
            self._by_op.setdefault(value.op, []).append(value)
            for part in value.made_of():
                self._users.setdefault(id(part), []).append(value)

    def of(self, *ops: str) -> Iterator[Value]:
        """The values of these operations, in the order in which they are computed."""
        found = [value for op in ops for value in self._by_op.get(op, ())]
        return iter(found if len(ops) == 1 else sorted(found, key=lambda value: value.number))

    def users(self, value: Value) -> list[Value]:
        """The values that are made of one directly."""
        return self._users.get(id(value), [])

    # Statements ---------------------------------------------------------------

    def module(self, source: Source) -> Frame:
        """The names of a file, after its statements have run."""
        known = self.modules.get(source.path)
        if known is None:
            known = self.modules[source.path] = Frame(source, None)
            self.block(source.tree.body, known)
        return known

    def block(self, body: Sequence[ast.stmt], frame: Frame) -> str:
        """Run statements; how they end."""
        under, ends = self.where.under, _FALLS
        for statement in body:
            self.step()
            run = self._statements.get(type(statement))
            if run is not None and run(self, statement, frame) == _LEAVES:
                ends = _LEAVES
                break
        if self.where.under is not under:
            self.where = self.where._replace(under=under)
        return ends

    def _expression(self, node: ast.Expr, frame: Frame) -> str:
        if isinstance(node.value, ast.BoolOp) and len(node.value.values) == 2:  # `a or b()` is `if not a: b()`
            first, then = node.value.values
            test = first if isinstance(node.value.op, ast.And) else ast.copy_location(ast.UnaryOp(ast.Not(), first), first)
            return self._if(ast.copy_location(ast.If(test, [ast.copy_location(ast.Expr(then), node)], []), node), frame)
        self.evaluate(node.value, frame)
        return _FALLS

    def _assign(self, node: ast.Assign, frame: Frame) -> str:
        value = self.evaluate(node.value, frame)
        for target in node.targets:
            self.store(target, value, frame)
        return _FALLS

    def _annotated(self, node: ast.AnnAssign, frame: Frame) -> str:
        if node.value is not None:
            self.store(node.target, self.evaluate(node.value, frame), frame)
        return _FALLS

    def _augmented(self, node: ast.AugAssign, frame: Frame) -> str:
        old, value, op = self.evaluate(node.target, frame), self.evaluate(node.value, frame), _OPERATORS[type(node.op)]
        if isinstance(node.target, (ast.Attribute, ast.Subscript)) and isinstance(constant(old), int):
            old = self.new("count", (old,), node.target)
        if isinstance(old, Many) and isinstance(value, Many) and op == "add":
            old.parts += value.parts
            old.grown = old.grown or bool(self.where.loops) or value.grown
        else:
            self.store(node.target, self.operate(op, (old, value), node), frame)
        return _FALLS

    def _return(self, node: ast.Return, frame: Frame) -> str:
        frame.results.append(self.none(node) if node.value is None else self.evaluate(node.value, frame))
        return _LEAVES

    def _leave(self, node: ast.stmt, frame: Frame) -> str:
        return _LEAVES

    def _define(self, node: Function, frame: Frame) -> str:
        frame.set(node.name, Code(node, frame, None, node=node, where=self.where))
        return _FALLS

    def _class(self, node: ast.ClassDef, frame: Frame) -> str:
        frame.set(node.name, Value("@class", node=node, where=self.where, data=node))
        self.homes[node] = frame
        return _FALLS

    def _import(self, node: ast.Import, frame: Frame) -> str:
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            frame.set(name, self.imported(alias.name if alias.asname else name, node))
        return _FALLS

    def _import_from(self, node: ast.ImportFrom, frame: Frame) -> str:
        for alias in node.names:
            full = f"{node.module}.{alias.name}" if node.module else alias.name
            frame.set(alias.asname or alias.name, self.imported(full, node))
        return _FALLS

    def _global(self, node: ast.Global | ast.Nonlocal, frame: Frame) -> str:
        frame.shared.update(node.names)
        return _FALLS

    def _assert(self, node: ast.Assert, frame: Frame) -> str:
        self.evaluate(node.test, frame)
        return _FALLS

    def _if(self, node: ast.If, frame: Frame) -> str:
        test = self.evaluate(node.test, frame)
        known = self.truth(test)
        if known is not None:
            return self.block(node.body if known else node.orelse, frame)
        before = dict(frame.names)
        with self.maybe((test, True)):
            first = self.block(node.body, frame)
            then = frame.names
            frame.names = before
        with self.maybe((test, False)):
            second = self.block(node.orelse, frame)
        if first == _LEAVES or second == _LEAVES:
            if first != second and not isinstance((node.body if first == _LEAVES else node.orelse)[-1], ast.Raise):
                self.where = self.where._replace(under=(*self.where.under, (test, second == _LEAVES)))
            frame.names = then if second == _LEAVES and first != _LEAVES else frame.names
            return _LEAVES if first == second else _FALLS
        for name, value in then.items():
            other = frame.names.get(name)
            frame.names[name] = value if other is None else self.either((value, other), node)
        return _FALLS

    def _loop(self, node: ast.For | ast.AsyncFor, frame: Frame) -> str:
        over = self.evaluate(node.iter, frame)
        with self.inside(node):
            parts, unrolled = self.elements(over, node)
        self.passes.append((len(self.values), node, over))
        for part in parts:
            with self.inside(None if unrolled else node):
                if not unrolled:
                    self._start_counts(node, frame)
                self.store(node.target, part, frame)
                self.block(node.body, frame)
        return self.block(node.orelse, frame)

    def _start_counts(self, loop: ast.AST, frame: Frame) -> None:
        """What a loop counts up is not the number that it starts from."""
        for target in counted(loop):
            if isinstance(target, ast.Name) and isinstance(constant(old := frame.names.get(target.id)), int) and old is not None:
                frame.names[target.id] = self.new("count", (old,), target)
        for name in first_asked(loop):
            if (old := frame.names.get(name)) is not None and old.op == "@constant" and old.data is None:
                frame.names[name] = self.new("carried", (old,), loop)

    def _while(self, node: ast.While, frame: Frame) -> str:
        with self.inside(node):
            known = self.truth(self.evaluate(node.test, frame))
            self._start_counts(node, frame)
            if known is True and isinstance(node.test, ast.Compare) and isinstance(node.test.left, ast.Name):
                self.evaluate(node.test, frame)  # of the count: `step < 400`, which is true at the start
            if known is not False:
                self.block(node.body, frame)
        return self.block(node.orelse, frame)

    def _with(self, node: ast.With | ast.AsyncWith, frame: Frame) -> str:
        before = self.where
        for item in node.items:
            manager = self.evaluate(item.context_expr, frame)
            if item.optional_vars is not None:
                self.store(item.optional_vars, manager, frame)
            off = self.turns_gradients(manager)
            self.where = self.where if off is None else self.where._replace(no_grad=off)
            cast = cast_by(manager)
            self.where = self.where if cast is None else self.where._replace(cast=cast)
        ends = self.block(node.body, frame)
        self.where = self.where._replace(no_grad=before.no_grad, cast=before.cast)
        return ends

    def _try(self, node: ast.Try, frame: Frame) -> str:
        ends = self.block(node.body, frame)
        if ends == _FALLS:
            ends = self.block(node.orelse, frame)
        with self.maybe():
            before = dict(frame.names)
            for handler in node.handlers:
                self.block(handler.body, frame)
            frame.names = {**frame.names, **before}
        return _LEAVES if self.block(node.finalbody, frame) == _LEAVES else ends

    def _delete(self, node: ast.Delete, frame: Frame) -> str:
        for target in (one for one in node.targets if isinstance(one, ast.Name)):
            frame.names.pop(target.id, None)
        return _FALLS

    _statements: ClassVar[dict[type[ast.AST], Callable[[Any, Any, Frame], str]]] = {
        ast.Expr: _expression, ast.Assign: _assign, ast.AnnAssign: _annotated, ast.AugAssign: _augmented, ast.Return: _return,
        ast.Raise: _leave, ast.Continue: _leave, ast.Break: _leave, ast.FunctionDef: _define, ast.AsyncFunctionDef: _define,
        ast.ClassDef: _class, ast.Import: _import, ast.ImportFrom: _import_from, ast.Global: _global, ast.Nonlocal: _global,
        ast.Assert: _assert, ast.If: _if, ast.For: _loop, ast.AsyncFor: _loop, ast.While: _while, ast.With: _with,
        ast.AsyncWith: _with, ast.Try: _try, ast.Delete: _delete,
    }

    def store(self, target: ast.AST, value: Value, frame: Frame) -> None:
        """Give a target of an assignment its value."""
        if isinstance(target, ast.Name):
            frame.set(target.id, value)
            self.stored.setdefault(target, []).append(value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for one, part in zip(target.elts, self.unpacked(value, target), strict=False):
                self.store(one.value if isinstance(one, ast.Starred) else one, part, frame)
        elif isinstance(target, ast.Attribute):
            self.set_attribute(self.evaluate(target.value, frame), target.attr, value, target)
        elif isinstance(target, ast.Subscript):
            self.set_item(target, self.evaluate(target.value, frame), self.evaluate(target.slice, frame), value, frame)

    # Expressions --------------------------------------------------------------

    def evaluate(self, node: ast.AST, frame: Frame) -> Value:
        """The value of an expression."""
        self.step()
        known = self._expressions.get(type(node))
        return self.new("unknown", (), node) if known is None else known(self, node, frame)

    def _constant(self, node: ast.Constant, frame: Frame) -> Value:
        return self.constant(node.value, node)

    def _name(self, node: ast.Name, frame: Frame) -> Value:
        found = frame.find(node.id)
        if found is None and (known := frame.source.imports.get(node.id)) is not None:
            found = self.imported(known, node)
        return self.builtin(node.id, node) if found is None else found

    def _attribute(self, node: ast.Attribute, frame: Frame) -> Value:
        on = self.evaluate(node.value, frame)
        known = [one for one in on.args if not is_none(one)] if on.op == "either" else []
        if known and all(isinstance(one, Instance) for one in known):
            return self.either([self.attribute(one, node.attr, node) for one in known], node)
        return self.attribute(on, node.attr, node)

    def _subscript(self, node: ast.Subscript, frame: Frame) -> Value:
        return self.item(self.evaluate(node.value, frame), self.evaluate(node.slice, frame), node)

    def _slice(self, node: ast.Slice, frame: Frame) -> Value:
        parts = [self.none(node) if one is None else self.evaluate(one, frame) for one in (node.lower, node.upper, node.step)]
        return self.new("slice", parts, node)

    def _call(self, node: ast.Call, frame: Frame) -> Value:
        func = node.func
        on = self.evaluate(func.value, frame) if isinstance(func, ast.Attribute) else None
        called = self.evaluate(func, frame) if not isinstance(func, ast.Attribute) else None
        args, named = self._arguments(node, frame)
        if on is None or not isinstance(func, ast.Attribute):
            return self.call(called, args, named, node, frame)  # type: ignore[arg-type]
        result = self.call_method(on, func.attr, args, named, node, frame)
        changes = func.attr.endswith("_") and not func.attr.startswith("_") and func.attr != "unscale_" and result.args[:1] == (on,)
        if isinstance(place := func.value if changes else node.args[0] if result.op == "numpy.add.at" and node.args else None, (ast.Name, ast.Attribute)):
            self.store(place, result, frame)
        return result

    def _arguments(self, node: ast.Call, frame: Frame) -> tuple[list[Value], dict[str, Value]]:
        args: list[Value] = []
        for one in node.args:
            if not isinstance(one, ast.Starred):
                args.append(self.evaluate(one, frame))
                continue
            value = self.evaluate(one.value, frame)
            parts = self.parts(value)
            args += [self.new("star", (value,), one)] if parts is None or getattr(value, "grown", False) else parts
        named: dict[str, Value] = {}
        for word in node.keywords:
            value = self.evaluate(word.value, frame)
            if word.arg is not None:
                named[word.arg] = value
            elif isinstance(value, Table):
                named |= {name: part for name, part in value.entries.items() if isinstance(name, str)}
                named |= {"**": value} if value.others else {}
            elif isinstance(value, Instance):
                named |= value.attributes
            else:
                named["**"] = value
        return args, named

    def _binary(self, node: ast.BinOp, frame: Frame) -> Value:
        parts = (self.evaluate(node.left, frame), self.evaluate(node.right, frame))
        return self.operate(_OPERATORS[type(node.op)], parts, node)

    def _unary(self, node: ast.UnaryOp, frame: Frame) -> Value:
        value = self.evaluate(node.operand, frame)
        known = constant(value)
        if isinstance(node.op, ast.Not) and (true := self.truth(value)) is not None:
            return self.constant(not true, node)
        if isinstance(node.op, ast.USub) and isinstance(known, (int, float)):
            return self.constant(-known, node)
        return self.new(_OPERATORS[type(node.op)], (value,), node)

    def _bool(self, node: ast.BoolOp, frame: Frame) -> Value:
        ends = isinstance(node.op, ast.Or)
        parts: list[Value] = []
        for one in node.values:
            value = self.evaluate(one, frame)
            true = self.truth(value)
            if true is ends:
                parts.append(value)
                break
            if true is None or one is node.values[-1]:
                parts.append(value)
        return parts[0] if len(parts) == 1 else self.new("or" if ends else "and", parts, node)

    def _compare(self, node: ast.Compare, frame: Frame) -> Value:
        left = self.evaluate(node.left, frame)
        found: list[Value] = []
        for op, one in zip(node.ops, node.comparators, strict=True):
            before, left = left, self.evaluate(one, frame)
            found.append(self.compare(_OPERATORS[type(op)], before, left, node))
        return found[0] if len(found) == 1 else self.new("and", found, node)

    def _either(self, node: ast.IfExp, frame: Frame) -> Value:
        test = self.evaluate(node.test, frame)
        if (known := self.truth(test)) is not None:
            return self.evaluate(node.body if known else node.orelse, frame)
        with self.maybe((test, True)):
            first = self.evaluate(node.body, frame)
        with self.maybe((test, False)):
            second = self.evaluate(node.orelse, frame)
        return self.either((first, second), node)

    def _lambda(self, node: ast.Lambda, frame: Frame) -> Value:
        return Code(node, frame, None, node=node, where=self.where)

    def _many(self, node: ast.List | ast.Tuple | ast.Set, frame: Frame) -> Value:
        parts: list[Value] = []
        grown = False
        for one in node.elts:
            value = self.evaluate(one.value if isinstance(one, ast.Starred) else one, frame)
            inner = self.parts(value) if isinstance(one, ast.Starred) else [value]
            grown = grown or inner is None or (isinstance(one, ast.Starred) and getattr(value, "grown", False))
            parts += [self.new("element", (value,), one)] if inner is None else inner
        return self.many("tuple" if isinstance(node, ast.Tuple) else "list", parts, node, grown=grown)

    def _dict(self, node: ast.Dict, frame: Frame) -> Value:
        entries: dict[Any, Value] = {}
        others: list[tuple[Value, Value]] = []
        for key, one in zip(node.keys, node.values, strict=True):
            value = self.evaluate(one, frame)
            if key is None:
                entries |= value.entries if isinstance(value, Table) else {}
                others += value.others if isinstance(value, Table) else [(value, value)]
            elif isinstance(constant(known := self.evaluate(key, frame)), (str, int, float)):
                entries[known.data] = value
            else:
                others.append((known, value))
        result = Table(entries, node=node, where=self.where)
        result.others = others
        return result

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, frame: Frame) -> Value:
        inner = Frame(frame.source, frame, frame.owner)
        found: list[tuple[Value | None, Value]] = []
        grown = self._generate(node, 0, inner, found)
        if not isinstance(node, ast.DictComp):
            return self.many("set" if isinstance(node, ast.SetComp) else "list", [value for _, value in found], node, grown=grown)
        known = {constant(key): value for key, value in found if isinstance(constant(key), (str, int))}
        result = Table(known, node=node, where=self.where)
        result.others = [(key, value) for key, value in found if key is not None and not isinstance(constant(key), (str, int))]
        self.register(result)
        return result

    def _generate(self, node: Any, place: int, frame: Frame, found: list[tuple[Value | None, Value]]) -> bool:
        """The elements of a comprehension; whether each stands for many."""
        if place == len(node.generators):
            if isinstance(node, ast.DictComp):
                found.append((self.evaluate(node.key, frame), self.evaluate(node.value, frame)))
            else:
                found.append((None, self.evaluate(node.elt, frame)))
            return False
        one: ast.comprehension = node.generators[place]
        over = self.evaluate(one.iter, frame)
        with self.inside(node):
            parts, unrolled = self.elements(over, node)
        self.passes.append((len(self.values), node, over))
        grown = not unrolled
        for part in parts:
            with self.inside(None if unrolled else node):
                self.store(one.target, part, frame)
                tests = [self.truth(self.evaluate(test, frame)) for test in one.ifs]
                if False not in tests:
                    grown = self._generate(node, place + 1, frame, found) or grown or None in tests
        return grown

    def _named(self, node: ast.NamedExpr, frame: Frame) -> Value:
        value = self.evaluate(node.value, frame)
        self.store(node.target, value, frame)
        return value

    def _text(self, node: ast.JoinedStr, frame: Frame) -> Value:
        parts = [self.evaluate(one.value if isinstance(one, ast.FormattedValue) else one, frame) for one in node.values]
        plain = all(not isinstance(one, ast.FormattedValue) or one.format_spec is None for one in node.values)
        if plain and all(isinstance(constant(one), (str, int)) for one in parts):
            return self.constant("".join(str(one.data) for one in parts), node)
        return self.new("text", [one for one in parts if one.op != "@constant"], node)

    def _inner(self, node: ast.Await | ast.Starred, frame: Frame) -> Value:
        return self.evaluate(node.value, frame)

    def _yield(self, node: ast.Yield | ast.YieldFrom, frame: Frame) -> Value:
        value = self.none(node) if node.value is None else self.evaluate(node.value, frame)
        inner = self.elements(value, node)[0] if isinstance(node, ast.YieldFrom) else [value]
        frame.yielded += inner
        return self.none(node)

    _expressions: ClassVar[dict[type[ast.AST], Callable[[Any, Any, Frame], Value]]] = {
        ast.Constant: _constant, ast.Name: _name, ast.Attribute: _attribute, ast.Subscript: _subscript, ast.Slice: _slice,
        ast.Call: _call, ast.BinOp: _binary, ast.UnaryOp: _unary, ast.BoolOp: _bool, ast.Compare: _compare, ast.IfExp: _either,
        ast.Lambda: _lambda, ast.List: _many, ast.Tuple: _many, ast.Set: _many, ast.Dict: _dict, ast.ListComp: _comprehension,
        ast.SetComp: _comprehension, ast.GeneratorExp: _comprehension, ast.DictComp: _comprehension, ast.NamedExpr: _named,
        ast.JoinedStr: _text, ast.Await: _inner, ast.Starred: _inner, ast.Yield: _yield, ast.YieldFrom: _yield,
    }

    # What the script never calls -------------------------------------------------

    def _run_the_rest(self) -> None:
        """Run the functions that nothing has called, with inputs, and the methods of classes on one object each: first
        the functions that no other one calls, so that those get what they are given."""
        self.where = self.where._replace(apart=True)
        called = {one.func.id for one in self.program.calls() if isinstance(one.func, ast.Name)}
        found = [(source, node) for source in self.program.sources for node in ast.walk(source.tree) if isinstance(node, Function)]
        for source, node in sorted(found, key=lambda one: not isinstance(self.program.parent.get(one[1]), ast.Module) or one[1].name in called):
            if node in self.entered:
                continue
            around = self.program.parent.get(node)
            if isinstance(around, ast.ClassDef) and around in self.homes:
                instance = self.instances.get(around) or self.make(around, self.inputs_of(around), {}, around)
                if node not in self.entered and node.name in dir_of(around):
                    self.enter(self.bound_to(node, instance), [], {}, node, inputs=True)
            elif isinstance(around, ast.Module) and (code := self.modules[source.path].names.get(node.name)) is not None and isinstance(code, Code) and code.function is node:
                self.enter(code, [], self._networks_given(node), node, inputs=True)

    def _networks_given(self, function: Function) -> dict[str, Value]:
        """The parameters of a function that nothing calls whose weights it asks for: each is the one network of the program
        that no other code makes."""
        asked = {one.func.value.id for one in ast.walk(function) if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and isinstance(one.func.value, ast.Name) and one.func.attr in ("parameters", "named_parameters")}
        names = [one.arg for one in (*function.args.args, *function.args.kwonlyargs) if one.arg in asked]
        of = self._only_network() if len(names) == 1 else None
        return {} if of is None else {names[0]: self.instances.get(of) or self.make(of, self.inputs_of(of), {}, of)}

    def _only_network(self) -> ast.ClassDef | None:
        """The one class with a `forward` that the program defines and never makes."""
        made = {one.func.id for one in self.program.calls() if isinstance(one.func, ast.Name)}
        found = [one for name, classes in self.program.classes.items() if name not in made for one in classes if "forward" in dir_of(one) and one in self.homes]
        return found[0] if len(found) == 1 else None


def dir_of(of: ast.ClassDef) -> set[str]:
    """The methods that a class defines."""
    return {node.name for node in of.body if isinstance(node, Function)}


@lru_cache(maxsize=1)
def computation_of(program: Program) -> Computation:
    """What a program computes; followed once for all rules."""
    return Computation(program)
