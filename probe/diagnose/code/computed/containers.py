"""Lists, dicts, tuples and what loops go over; operators; and making values. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from probe.diagnose.code.computed.frames import Frame, Stop, counts, folded, goes_apart, whole_of
from probe.diagnose.code.computed.operation_names import method
from probe.diagnose.code.computed.value import Code, Instance, Many, Table, Value, Where, constant
from probe.diagnose.code.program import Program

MOST_STEPS = 60_000
"""Statements and expressions that are followed: some tenths of a second."""
MOST_PASSES = 8
"""Passes of a loop over known elements that are followed one by one."""
MOST_PARTS = 3
"""Things of a comprehension that are made one by one."""
MOST_EITHER = 6
"""Values that one may be, of which the rest are left out."""
_LOADER = "torch.utils.data.DataLoader"
SEQUENCES = ("torch.nn.Sequential", "torch.nn.ModuleList")
_SETTLED = (
    "@object", "@function", "@class", "@module", "list", "tuple", "named", "dict", "@library", "rows", "from_numpy", "randn", "randn_like", "stack",
    "cat", "zeros", "zeros_like", "full", "full_like", "arange", "randint",
)
"""Operations whose result is never None."""


class Containers:
    """The values so far, and operations on values that no program defines."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.values: list[Value] = []
        self.copies: dict[int, Value] = {}
        """What each layer that is a copy was copied from, by its identity."""
        self.where = Where()
        self._steps = 0
        self._running: set[str] = set()

    def call(self, called: Value, args: list[Value], named: dict[str, Value], node: Any, frame: Frame) -> Value:
        """Provided by a subclass."""
        raise NotImplementedError

    def enter(self, code: Code, args: Sequence[Value], named: dict[str, Value], node: ast.AST, *, inputs: bool = False) -> Value:
        """Provided by a subclass."""
        raise NotImplementedError

    def of_class(self, of: ast.ClassDef, name: str, instance: Value | None, node: ast.AST, depth: int = 5) -> Value | None:
        """Provided by a subclass."""
        raise NotImplementedError

    def attribute(self, on: Value, name: str, node: ast.AST) -> Value:
        """Provided by a subclass."""
        raise NotImplementedError

    def evaluate(self, node: ast.AST, frame: Frame) -> Value:
        """Provided by a subclass."""
        raise NotImplementedError

    # Making values ----------------------------------------------------------------------

    def step(self) -> None:
        """Count one step."""
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise Stop

    def register(self, value: Value) -> None:
        """Give a value its place in the order."""
        value.number = len(self.values)
        self.values.append(value)

    def new(self, op: str, args: Sequence[Value], node: ast.AST, named: dict[str, Value] | None = None, data: Any = None) -> Value:
        """A new value."""
        value = Value(op, args, named, node=node, where=self.where, data=data)
        self.register(value)
        return value

    def constant(self, data: Any, node: ast.AST) -> Value:
        """A constant."""
        return Value("@constant", node=node, where=self.where, data=data)

    def none(self, node: ast.AST) -> Value:
        """None."""
        return self.constant(None, node)

    def many(self, op: str, parts: Sequence[Value], node: ast.AST, *, grown: bool = False) -> Many:
        """A list or tuple."""
        value = Many(op, parts, node=node, where=self.where, grown=grown)
        self.register(value)
        return value

    def either(self, found: Sequence[Value], node: ast.AST) -> Value:
        """One of several values."""
        flat = [part for one in found for part in (one.args if one.op == "either" else (one,))]
        different = list({id(one): one for one in flat}.values())[:MOST_EITHER]
        if len({(one.data, type(one.data)) for one in different if one.op == "@constant"}) == 1 and all(one.op == "@constant" for one in different):
            return different[0]
        if len(different) > 1 and all(isinstance(one, Many) and one.op == "tuple" for one in different):
            sizes = {len(one.parts) for one in different if isinstance(one, Many)}
            if len(sizes) == 1:
                rows = [one.parts for one in different if isinstance(one, Many)]
                return self.many("tuple", [self.either(column, node) for column in zip(*rows, strict=True)], node)
        if len(different) > 1 and all(isinstance(one, Table) and not one.others and one.entries.keys() == different[0].entries.keys() != set() for one in different):  # type: ignore[attr-defined]
            made = Table({key: self.either([one.entries[key] for one in different if isinstance(one, Table)], node) for key in different[0].entries}, node=node, where=self.where)  # type: ignore[attr-defined]
            self.register(made)
            return made
        return different[0] if len(different) == 1 else self.new("either", different, node)

    # Reading values ---------------------------------------------------------------------

    def parts(self, value: Value) -> list[Value] | None:
        """The elements of a value, where they are known."""
        if isinstance(value, Many):
            return value.parts
        if isinstance(value, Table):
            return [self.constant(key, value.node) for key in value.entries]
        if isinstance(letters := constant(value), str) and letters.isalnum() and len(letters) <= MOST_PASSES:
            return [self.constant(one, value.node) for one in letters]
        if isinstance(value, Instance) and value.of is not None and any(ast.unparse(one).endswith("NamedTuple") for one in value.of.bases):
            return [value.attributes[name] for name in value.data or () if name in value.attributes]
        return list(value.args) if value.op in SEQUENCES and not value.data else None

    def truth(self, value: Value) -> bool | None:
        """Whether a value is true; None where that is unknown."""
        if value.op == "@constant":
            return bool(value.data)
        if isinstance(value, Many):
            return None if value.grown and not value.parts else bool(value.parts) or None
        return True if value.op in ("@object", "@function", "@class", "@module") else None

    def elements(self, over: Value, node: ast.AST) -> tuple[list[Value], bool]:
        """What a loop over a value gives to its target, and whether that is each pass (True), or one pass that
        stands for all."""
        parts = self.parts(over)
        if parts is not None:
            if isinstance(over, Many) and over.grown:
                return list(parts[:MOST_PASSES]), False
            return list(parts[:MOST_PASSES]), len(parts) <= MOST_PASSES
        if (over.op in ("either", "iter", "itertools.cycle") and over.args) or (over.op in ("list", "tuple") and over.args and over.args[0].op in ("zip", "enumerate", _LOADER)):
            return self.elements(over.args[0], node)
        if over.op in SEQUENCES:
            return list(over.args[:MOST_PASSES]), False
        if over.op == "enumerate":
            inner, unrolled = self.elements(over.args[0], node)
            first = over.argument("start", 1) or self.constant(0, node)
            begin = first.data if isinstance(constant(first), int) else 0
            return [self.many("tuple", [self.constant(begin + place, node) if unrolled else self.new("index", (first,), node, data="enumerate"), part], node) for place, part in enumerate(inner)], unrolled
        if over.op == "zip":
            columns = [self.elements(one, node) for one in over.args]
            unrolled = all(one[1] for one in columns)
            rows = zip(*(one[0] for one in columns), strict=False)
            return [self.many("tuple", row, node) for row in rows], unrolled
        if over.op == "range":
            bounds = [constant(one) for one in over.args]
            if all(isinstance(one, int) for one in bounds) and 0 < len(passes := range(*bounds)) <= MOST_PASSES and (goes_apart(node, self.program.parent.get(node)) or _is_of_few_parts(node, len(passes))):
                return [self.constant(place, node) for place in passes], True
            return [self.new("index", over.args, node)], False
        if over.op == "chunk" and isinstance(count := constant(over.argument("chunks", 1)), int) and 0 < count <= MOST_PASSES:
            return [self.new("part", (over, self.constant(place, node)), node) for place in range(count)], True
        if over.op == _LOADER:
            return [self.batch(over, node)], False
        if isinstance(over, Instance) and over.of is not None:
            return [self.sample(over, node)], False
        return [self.new("element", (over,), node)], False

    # Batches ----------------------------------------------------------------------------

    def batch(self, loader: Value, node: ast.AST) -> Value:
        """A batch of a DataLoader: what its collate function makes of a sample of its data set."""
        data = loader.argument("dataset", 0)
        if data is None:
            return self.new("element", (loader,), node)
        sample = self.sample(data, node)
        collate = loader.argument("collate_fn", 6)
        frame = Frame(self.program.sources[0], None)
        if collate is not None and (isinstance(collate, (Code, Instance)) or collate.op == "@partial"):
            samples = self.many("list", [sample], node, grown=True)
            return self.call(collate, [samples], {}, node, frame)
        return self._batched(sample, loader, node)

    def _batched(self, sample: Value, loader: Value, node: ast.AST) -> Value:
        if isinstance(sample, Many):
            return self.many(sample.op, [self._batched(one, loader, node) for one in sample.parts], node)
        if isinstance(sample, Table):
            return Table({key: self._batched(one, loader, node) for key, one in sample.entries.items()}, node=node, where=self.where)
        return self.new("rows", (sample,), node, {"loader": loader})

    def sample(self, data: Value, node: ast.AST) -> Value:
        """One sample of a data set, or one element of an object that can be gone through."""
        data = whole_of(data)
        if data.op == "torch.utils.data.TensorDataset":
            return self.many("tuple", [self.new("part", (one, self.new("index", (), node)), node) for one in data.args], node)
        if isinstance(data, Many) and data.parts:
            return data.parts[0]
        if data.op.startswith("torchvision.datasets."):
            return self._transformed(data, node)
        if data.op == "zip" or (data.op in ("list", "tuple") and data.args and data.args[0].op == "zip"):
            return self.elements(data if data.op == "zip" else data.args[0], node)[0][0]
        if isinstance(data, Instance) and data.of is not None:
            for name in ("__getitem__", "__iter__"):
                found = self.of_class(data.of, name, data, node)
                if isinstance(found, Code):
                    given = [self.new("index", (data,), node)] if name == "__getitem__" else []
                    result = self.enter(found, given, {}, node)
                    return self.elements(result, node)[0][0] if name == "__iter__" else result
        return self.new("element", (data,), node)

    def _transformed(self, data: Value, node: ast.AST) -> Value:
        """A sample of a data set of torchvision: an input and a target, each after its transform."""
        whole = self.new("element", (data,), node)
        sample = [self.new("part", (whole, self.constant(place, node)), node) for place in (0, 1)]
        places = (1, 2) if data.op.endswith(("ImageFolder", "DatasetFolder")) else (2, 3)
        for at, (name, place) in enumerate(zip(("transform", "target_transform"), places, strict=True)):
            given = data.argument(name, place)
            if given is not None and given.op != "@constant":
                sample[at] = self.call(given, [sample[at]], {}, node, Frame(self.program.sources[0], None))
        return self.many("tuple", sample, node)

    # Items and attributes -----------------------------------------------------------------

    def item(self, on: Value, index: Value, node: ast.AST) -> Value:
        """`on[index]`."""
        known = constant(index)
        parts = list(on.args[0].args) if on.op == "tensors" and on.args[0].op.endswith(".TensorDataset") else self.parts(on)
        if on.op == "@library" and on.data == "numpy.r_" and isinstance(index, Many):
            return self.new("cat", (index,), node)
        if isinstance(on, Table) and isinstance(known, (str, int, float)) and known in on.entries:
            return on.entries[known]
        if isinstance(on, Table) and on.data is not None:
            return self._made_for_key(on, index, node)
        if isinstance(on, Table) and known is None and on.entries and len(on.entries) <= MOST_PASSES and not on.others:
            return self.either(list(on.entries.values()), node)
        if on.op in SEQUENCES and on.data and on.args and index.op != "slice":
            return on.args[known] if known in (0, -1) else on.args[0]
        if parts is not None and not isinstance(on, Table):
            if isinstance(known, int) and -len(parts) <= known < len(parts) and not getattr(on, "grown", False):
                return parts[known]
            if isinstance(on, Many) and on.grown and len(parts) == 1 and isinstance(known, int):
                return parts[0]
            bounds = [constant(one) for one in index.args] if index.op == "slice" else []
            if isinstance(on, Many) and on.grown and bounds == [None, None, -1]:
                return self.many(on.op, parts[::-1], node, grown=True)
            if bounds and not getattr(on, "grown", False) and all(one is None or isinstance(one, int) for one in bounds) and len(on.args or parts) == len(parts):
                kept = parts[slice(*bounds)]
                return self.many(on.op, kept, node) if isinstance(on, Many) else self.new(on.op, kept, node)
            if isinstance(on, Many) and index.op != "slice" and 0 < len(parts) <= MOST_PASSES:
                return self.either(parts, node)
        if isinstance(on, Instance) and on.of is not None:
            found = self.of_class(on.of, "__getitem__", on, node)
            if isinstance(found, Code):
                return self.enter(found, [index], {}, node)
        if on.op == "step" and index.op == "slice" and isinstance(begin := constant(index.args[0]), int) and begin > 1:
            return self.many("tuple", [self.new("part", (on, self.constant(place, node)), node) for place in range(5)[begin : constant(index.args[1])]], node)
        at = on
        while isinstance(known, str) and at.op in ("set_item", "to") and len(at.args) > 1:
            if at.op == "set_item" and constant(at.args[1]) == known:
                return at.args[2]  # what was kept under that key
            at = at.args[0]
        return self.new("part", (on, index), node)

    def _made_for_key(self, on: Table, index: Value, node: ast.AST) -> Value:
        """What a `defaultdict` has under a key that it may not have yet: lists under keys that are not known are one."""
        known = constant(index)
        if on.data != "list":
            return self.new("part", (on, index), node) if on.others or known is None else self.constant(0, node)
        found = next((one for _, one in on.others), None)
        if found is None:
            found = self.many("list", [], node, grown=True)
            found.where = on.where
            if isinstance(known, (str, int, float)):
                on.entries[known] = found
            else:
                on.others.append((index, found))
        return found

    def reference(self, on: Value, name: str, node: ast.AST) -> Value:
        """`on.name` of an object of a library: its method, where it is one that is known and may be called later."""
        known = (name in ("step", "zero_grad") and on.op.startswith("torch.optim.")) or (name == "backward" and not on.op.startswith("@") and on.op not in ("part", "element", "unknown"))
        return Value("@method", (on,), node=node, where=self.where, data=name) if known else self.new(method(name), (on,), node)

    def unpacked(self, value: Value, target: ast.Tuple | ast.List) -> list[Value]:
        """The parts that `a, b = value` gives."""
        parts = self.parts(value)
        if isinstance(value, Many) and value.grown and len(value.parts) == 1:
            value, parts = value.parts[0], None  # each of many: `a, b = map(np.array, zip(*batch))`
        if isinstance(value, Table):
            return [self.constant(key, target) for key in value.entries]
        star = next((place for place, one in enumerate(target.elts) if isinstance(one, ast.Starred)), None)
        if star is not None and (value.op == "step" or (parts is not None and len(parts) >= len(target.elts) - 1)):
            whole = parts or [self.new("part", (value, self.constant(place, target)), target) for place in range(5)]
            end = len(whole) + star + 1 - len(target.elts)
            return [*whole[:star], self.many("list", whole[star:end], target), *whole[end:]]
        if parts is not None and len(parts) >= len(target.elts):
            return parts
        if value.op == "range":  # `PAD, BOS, EOS = range(3)`
            bounds = [constant(one) for one in value.args]
            if bounds and all(isinstance(one, int) for one in bounds) and len(places := range(*bounds)) == len(target.elts):
                return [self.constant(place, target) for place in places]
        if isinstance(value, Instance) and value.data and isinstance(value.data, list):
            return [value.attributes.get(name) or self.new("unknown", (), target) for name in value.data]
        return [self.new("part", (value, self.constant(place, target)), target) for place in range(len(target.elts))]

    def set_attribute(self, on: Value, name: str, value: Value, node: ast.AST) -> None:
        """`on.name = value`."""
        if isinstance(on, Instance):
            if on.of is not None and isinstance(value.data, int) and constant(value) is not None and counts(on.of, name):
                value = self.new("count", (value,), node)
            old = on.attributes.get(name)
            changed = old is not None and self.where.maybe and old is not value
            on.attributes[name] = self.either((value, old), node) if changed and old is not None else value
        elif on.op == "@module":
            on.data.set(name, value)
        elif on.op == "dataset" and on.args and isinstance(whole := whole_of(on.args[0]), Instance):
            whole.attributes[name] = value  # of the one data set under its parts
        self.new("set_attribute", (on, value), node, data=name)

    def set_item(self, target: ast.Subscript, on: Value, index: Value, value: Value, frame: Frame) -> None:
        """`on[index] = value`."""
        known = constant(index)
        if isinstance(on, Table) and isinstance(known, (str, int, float)):
            on.entries[known] = value
        elif isinstance(on, Table):
            on.others.append((index, value))
        elif isinstance(on, Many) and isinstance(known, int) and -len(on.parts) <= known < len(on.parts):
            on.parts[known] = value
        elif on.op in SEQUENCES and on.args and index.op == "index":  # each layer of a list, in a loop
            on.args = (value,) * len(on.args)
        result = self.new("set_item", (on, index, value), target)
        if isinstance(target.value, ast.Name) and not isinstance(on, (Table, Many, Instance)) and frame.names.get(target.value.id) is on:
            frame.names[target.value.id] = result
        elif isinstance(target.value, ast.Attribute) and isinstance(constant(value), bool):  # a mask that an object keeps
            of = self.evaluate(target.value.value, frame)
            if isinstance(of, Instance) and of.attributes.get(target.value.attr) is on and not isinstance(on, (Table, Many, Instance)):
                of.attributes[target.value.attr] = result

    # Operators ------------------------------------------------------------------------------

    def operate(self, op: str, parts: tuple[Value, Value], node: ast.AST) -> Value:
        """`left op right`."""
        left, right = parts
        if (known := folded(op, constant(left), constant(right))) is not None:
            return self.constant(known, node)
        if isinstance(left, Many) and isinstance(right, Many) and op == "add":
            return self.many(left.op, [*left.parts, *right.parts], node, grown=left.grown or right.grown)
        if isinstance(left, Many) and op == "mul":
            times = constant(right)
            if isinstance(times, int) and len(left.parts) * times <= MOST_PASSES:
                return self.many(left.op, left.parts * times, node)
            return self.many(left.op, left.parts, node, grown=True)
        return self.new(op, parts, node)

    def compare(self, op: str, left: Value, right: Value, node: ast.AST) -> Value:
        """`left op right` of a comparison."""
        if op in ("is", "is_not") and right.op == "@constant" and right.data is None:
            if left.op == "@constant" or left.op in _SETTLED:
                return self.constant((left.op == "@constant" and left.data is None) == (op == "is"), node)
        elif left.op == "@constant" and right.op == "@constant" and op in ("eq", "ne"):
            return self.constant((left.data == right.data) == (op == "eq"), node)
        elif op in ("in", "not_in") and isinstance(right, Table) and not right.others and isinstance(constant(left), (str, int)):
            return self.constant((left.data in right.entries) == (op == "in"), node)
        known = folded(op, constant(left), constant(right))
        return self.new(op, (left, right), node) if known is None else self.constant(known, node)

    # Builtins and methods of containers -------------------------------------------------------

    def builtin_call(self, name: str, args: list[Value], named: dict[str, Value], node: ast.Call, frame: Frame) -> Value | None:
        """A call of a builtin; None for those that are plain operations."""
        first = args[0] if args else None
        parts = None if first is None else self.parts(first)
        if name == "super":
            at: Frame | None = frame
            while at is not None and at.owner is None:
                at = at.around
            bound = None if at is None else at.names.get("self") or next(iter(at.names.values()), None)
            return self.new("@super", (), node, data=(bound, at.owner)) if at is not None and at.owner is not None else None
        if name in ("list", "tuple") and parts is not None and first is not None:
            found = self.many(name, parts, node, grown=getattr(first, "grown", False))
            found.data = "set" if first.op == "set" else None
            return found
        if name in ("list", "tuple", "dict", "set") and first is None:
            return Table(dict(named), node=node, where=self.where) if name == "dict" else self.many("list", [], node)
        if name == "defaultdict":
            made = Table({}, node=node, where=self.where)
            made.data = first.data.rpartition(".")[2] if first is not None and first.op == "@library" and first.data else None
            return made if made.data in ("list", "int", "float") else None
        if name == "dict" and isinstance(first, Table):
            return Table({**first.entries, **named}, node=node, where=self.where)
        if name == "dict" and isinstance(first, Many) and (first.parts or not first.grown) and all(isinstance(one, Many) and len(one.parts) == 2 and isinstance(constant(one.parts[0]), str) for one in first.parts):
            return Table({**{constant(one.parts[0]): one.parts[1] for one in first.parts if isinstance(one, Many)}, **named}, node=node, where=self.where)
        if name in ("reversed", "sorted") and isinstance(first, Many):
            return self.many(first.op, first.parts[::-1] if name == "reversed" else first.parts, node, grown=first.grown)
        if name == "len" and parts is not None and self.may_grow(first):
            return None
        if name == "len" and parts is not None and not getattr(first, "grown", False):
            return self.constant(len(parts), node)
        if name in ("float", "int") and first is not None and isinstance(constant(first), (int, float)):
            return self.constant(float(first.data) if name == "float" else int(first.data), node)
        if name == "zip" and len(args) == 1 and first is not None and first.op == "star":
            return self._columns(first.args[0], node)
        if name == "zip" and args and all(isinstance(one, Many) and not one.grown for one in args):
            rows = zip(*(self.parts(one) or () for one in args), strict=False)
            return self.many("list", [self.many("tuple", row, node) for row in rows], node)
        if name == "map" and len(args) > 1:
            columns = [self.elements(one, node) for one in args[1:]]
            return self.many("list", [self.call(args[0], list(row), {}, node, frame) for row in zip(*(one[0] for one in columns), strict=False)], node, grown=not all(one[1] for one in columns))
        if name == "getattr" and len(args) > 1 and isinstance(args[0], Instance) and isinstance(known := constant(args[1]), str):
            return self.attribute(args[0], known, node)
        if name == "setattr" and len(args) == 3 and isinstance(first, Instance) and isinstance(known := constant(args[1]), str):
            self.set_attribute(first, known, args[2], node)
            return self.none(node)
        if name == "vars" and isinstance(first, Instance):
            return Table(dict(first.attributes), node=node, where=self.where)
        if name == "sum" and isinstance(first, Many) and first.parts:
            at_value = first.parts[0]
            for one in first.parts[1:]:
                at_value = self.operate("add", (at_value, one), node)
            return self.new("sum_of", (at_value,), node) if first.grown else at_value
        if name == "next" and first is not None:
            inner, _ = self.elements(first, node)
            return inner[0] if inner else None
        return None

    def may_grow(self, value: Value | None) -> bool:
        """Whether a list or dict has more than is known: of unknown keys, or still empty in a loop."""
        if isinstance(value, Table) and value.others:
            return True
        return isinstance(value, (Table, Many)) and not self.parts(value) and self.where.loops != value.where.loops

    def _columns(self, rows: Value, node: ast.AST) -> Value:
        """`zip(*rows)`."""
        if isinstance(rows, Many) and rows.parts:
            inner = [self.parts(one) for one in rows.parts]
            if all(one is not None for one in inner):
                columns = zip(*(one for one in inner if one is not None), strict=False)
                return self.many("list", [self.many("tuple", column, node, grown=rows.grown) for column in columns], node)
        return self.new("columns", (rows,), node)

    def container_method(self, on: Value, name: str, args: list[Value], named: dict[str, Value], node: ast.Call) -> Value | None:
        """A method of a list or dict; None for all others."""
        if isinstance(on, Many):
            if name in ("append", "add") and args:
                on.parts.append(args[0])
                on.grown = on.grown or (bool(self.where.loops) and self.where.loops != on.where.loops)
                self.new("append", (on, args[0]), node)
                return self.none(node)
            if name == "insert" and len(args) == 2:
                return self.container_method(on, "append", args[1:], named, node)
            if name in ("appendleft", "extendleft") and args:
                return self.container_method(on, name.removesuffix("left"), args, named, node)
            if name == "extend" and args:
                inner, unrolled = self.elements(args[0], node)
                on.parts += inner
                on.grown = on.grown or not unrolled
                return self.none(node)
            if name == "pop" and on.parts and not on.grown:
                return on.parts[-1]
            if name == "_asdict":
                return Table(dict(zip(on.data, on.parts, strict=False)), node=node, where=self.where)
        if on.op == "torch.nn.ModuleList" and name == "append" and args:
            on.args, on.data = (*on.args, args[0]), bool(on.data) or (bool(self.where.loops) and self.where.loops != on.where.loops)
            return self.new("append", (on, args[0]), node)
        if isinstance(on, Table):
            if name == "items":
                rows = [self.many("tuple", [self.constant(key, node), one], node) for key, one in on.entries.items()]
                rows += [self.many("tuple", pair, node) for pair in on.others]
                return self.many("list", rows, node, grown=bool(on.others))
            if name in ("values", "keys"):
                found = [*on.entries.values(), *(one for _, one in on.others)] if name == "values" else [*(self.parts(on) or []), *(key for key, _ in on.others)]
                return self.many("list", found, node, grown=bool(on.others))
            if name in ("get", "pop", "setdefault") and args and constant(args[0]) in on.entries:
                return on.entries.pop(constant(args[0])) if name == "pop" else on.entries[constant(args[0])]
            if name == "setdefault" and len(args) > 1:
                if isinstance(args[1], Many) and self.where.loops != on.where.loops:
                    args[1].grown, args[1].where = True, on.where  # a list of its own for each key, made in the first of many passes
                if isinstance(key := constant(args[0]), (str, int, float)):
                    on.entries[key] = args[1]
                else:
                    on.others.append((args[0], args[1]))
                return args[1]
            if name == "get" and len(args) > 1 and not on.others:
                return args[1]
            if name == "update":
                on.entries |= args[0].entries if args and isinstance(args[0], Table) else {}
                on.others += [] if not args else args[0].others if isinstance(args[0], Table) else [(args[0], args[0])]
                on.entries |= named
                return self.none(node)
            if name == "copy":
                return Table(dict(on.entries), node=node, where=self.where)
        return None


def _is_of_few_parts(node: ast.AST, count: int) -> bool:
    """Whether a comprehension makes a few things of data, one for each number: the rows of three splits. Objects of one
    class, which are alike, are made once."""
    called = [one.func for one in ast.walk(node) if isinstance(one, ast.Call)] if isinstance(node, (ast.ListComp, ast.GeneratorExp)) else None
    return called is not None and 1 < count <= MOST_PARTS and not any((getattr(one, "id", "") or getattr(one, "attr", ""))[:1].isupper() for one in called)
