"""What calls give: functions and classes of the program are entered; objects of torch are run as the operations
that they are. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from probe.diagnose.code.computed.containers import SEQUENCES, Containers
from probe.diagnose.code.computed.frames import BUILTINS, RECOMPUTED, Frame, defaults_of, given_to, sort_keys
from probe.diagnose.code.computed.operation_names import LAYERS, NAMED, SAME_OBJECT, method, operation
from probe.diagnose.code.computed.value import KEPT, Code, Instance, Many, Table, Value, constant
from probe.diagnose.code.program import Program
from probe.diagnose.code.source import Source
from probe.diagnose.code.syntax import Function, parameters, says

DEEPEST = 14
"""Calls within each other that are followed."""
_COMMON = frozenset({
    "step", "reset", "backward", "append", "update", "train", "eval", "to", "get", "items", "keys", "values", "copy", "close", "write", "read",
    "mean", "std", "sum", "max", "min", "size", "view", "reshape", "state_dict", "load_state_dict", "parameters", "zero_grad", "forward",
    "add", "clear", "numpy", "cpu", "float", "item", "sample", "fit", "transform", "predict", "save", "load", "log", "render", "put",
})
"""Names of methods that many libraries have."""
_BASE = "@base"
"""What an object of the program keeps that its library base makes."""
_DRAWS = ("random.sample", "random.choices", "itertools.islice", "itertools.cycle")
_PASSED_ON = ("tqdm", "trange", "list", "tuple", "iter", "reversed", "sorted", "compile", "DataParallel", "DistributedDataParallel", "prepare", "script")


class Calls(Containers):
    """Calls of functions, classes, layers and libraries."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.modules: dict[str, Frame] = {}
        """Names of the files that have run, by path."""
        self.homes: dict[ast.ClassDef, Frame] = {}
        """Where each class is defined."""
        self.entered: set[ast.AST] = set()
        """Functions that have run."""
        self.instances: dict[ast.ClassDef, Instance] = {}
        """The first object of each class."""
        self.unset: dict[str, Value] = {}
        """Names that the program gives no value, each of which is one input."""
        self.passes: list[tuple[int, ast.AST, Value]] = []
        """Each loop that has run, by the number of values before it: its node, and what it goes over."""
        self.stored: dict[ast.Name, list[Value]] = {}
        """What each assignment to a name has given it."""
        self.returned: dict[str, list[Value]] = {}
        """What functions have given, by their names."""

    def module(self, source: Source) -> Frame:
        """Provided by a subclass."""
        raise NotImplementedError

    def block(self, body: Sequence[ast.stmt], frame: Frame) -> str:
        """Provided by a subclass."""
        raise NotImplementedError

    # Names of libraries and of other files ------------------------------------------

    def imported(self, dotted: str, node: ast.AST) -> Value:
        """What an imported name means: a thing of another file of the program, or of a library."""
        words = dotted.split(".")
        for source in self.program.sources:
            path = source.path.removesuffix(".py").removesuffix("/__init__").split("/")
            for cut in (len(words), len(words) - 1):
                if cut and path[-cut:] == words[:cut] and source.path not in self._running:
                    self._running.add(source.path)
                    frame = self.module(source)
                    self._running.discard(source.path)
                    if cut == len(words):
                        return Value("@module", node=node, where=self.where, data=frame)
                    if (found := frame.names.get(words[-1])) is not None:
                        return found
        return Value("@library", node=node, where=self.where, data=dotted)

    def builtin(self, name: str, node: ast.AST) -> Value:
        """What a name that is given no value means: a builtin, or an input."""
        if name == "__name__":
            return Value("@constant", node=node, where=self.where, data="__main__")
        if name in BUILTINS:
            return Value("@library", node=node, where=self.where, data=f"builtins.{name}")
        return self.unset.setdefault(name, Value("@input", node=node, where=self.where, data=name))

    # Attributes -----------------------------------------------------------------------

    def attribute(self, on: Value, name: str, node: ast.AST) -> Value:
        """`on.name`."""
        if on.op == "@library":
            return Value("@library", node=node, where=self.where, data=f"{on.data}.{name}")
        if on.op == "@module":
            names: dict[str, Value] = on.data.names
            return names.get(name) or self.new("unknown", (), node)
        if on.op == "@class":
            return self.of_class(on.data, name, None, node) or self.new(name, (on,), node)
        if on.op == "@super":
            instance, of = on.data
            found = next((one for base in self.program.bases(of) if (one := self.of_class(base, name, instance, node))), None)
            return found or Value("@library", node=node, where=self.where, data=f"builtins.super.{name}")
        if isinstance(on, Instance):
            if name in on.attributes:
                return on.attributes[name]
            found = None if on.of is None else self.of_class(on.of, name, on, node)
            if found is not None:
                return found
            if name in ("module", "_orig_mod") and on.of is not None:
                return on  # of a wrapper, which is the model itself here
        if isinstance(on, Many) and on.op == "named" and name in on.data:
            place: int = on.data.index(name)
            return on.parts[place]
        return on.named[name] if name in on.named and on.op.startswith("torch_geometric.data.") else self.reference(on, name, node)

    def of_class(self, of: ast.ClassDef, name: str, instance: Value | None, node: ast.AST, depth: int = 5) -> Value | None:
        """A method or a variable of a class or of its bases."""
        for one in reversed(of.body):
            if isinstance(one, Function) and one.name == name:
                return self._method(one, of, instance, node)
            target = one.targets[0] if isinstance(one, ast.Assign) else one.target if isinstance(one, ast.AnnAssign) else None
            if isinstance(target, ast.Name) and target.id == name and isinstance(one, (ast.Assign, ast.AnnAssign)) and one.value is not None:
                return self.evaluate(one.value, self.homes.get(of) or self.modules[self.program.source_of[of].path])
        for base in self.program.bases(of) if depth else ():
            if (found := self.of_class(base, name, instance, node, depth - 1)) is not None:
                return found
        return None

    def _method(self, function: Function, of: ast.ClassDef, instance: Value | None, node: ast.AST) -> Value:
        marks = [ast.unparse(one) for one in function.decorator_list]
        bound = None if "staticmethod" in marks else Value("@class", node=of, where=self.where, data=of) if "classmethod" in marks else instance
        code = self.bound_to(function, bound)
        if instance is not None and any(mark.endswith(("property", "property")) for mark in marks):
            return self.enter(code, [], {}, node)
        return code

    def bound_to(self, function: Function, bound: Value | None) -> Code:
        """A method of an object."""
        of = self.program.class_of(function)
        frame = (self.homes.get(of) if of is not None else None) or self.modules[self.program.source_of[function].path]
        return Code(function, frame, bound, node=function, where=self.where)

    # Calls ----------------------------------------------------------------------------

    def call(self, called: Value, args: list[Value], named: dict[str, Value], node: ast.Call, frame: Frame) -> Value:
        """`called(*args, **named)`."""
        if isinstance(called, Code):
            return self.enter(called, args, named, node)
        if called.op == "@class":
            return self.make(called.data, args, named, node)
        if called.op == "@fields":
            return self.fields(called, args, named, node)
        if called.op == "@library":
            return self.library(called.data, args, named, node, frame)
        if called.op == "@method":
            return self.call_method(called.args[0], called.data, args, named, node, frame)
        if called.op == "@partial":
            return self.call(called.args[0], [*called.args[1:], *args], {**called.named, **named}, node, frame)
        if called.op == "either":
            return self.either([self.call(one, args, named, node, frame) for one in called.args], node)
        if isinstance(called, Instance) and called.of is not None:
            run = "forward" if self.program.is_module_class(called.of) else "__call__"
            found = self.of_class(called.of, run, called, node)
            if isinstance(found, Code):
                return self.enter(found, args, named, node)
        return self.layer(called, args, named, node, frame)

    def layer(self, called: Value, args: list[Value], named: dict[str, Value], node: ast.Call, frame: Frame) -> Value:
        """What an object of a library gives when it is called."""
        inner = list(called.args) if called.op == "torch.nn.Sequential" else None
        if called.op.startswith("torchvision.transforms.") and called.op.endswith(".Compose") and called.args:
            inner = self.parts(called.args[0])
        if isinstance(called, Instance) and isinstance(called.data, list) and all(isinstance(one, Value) for one in called.data):
            inner = called.data
        if inner is not None and len(args) == 1:
            for one in inner:
                args = [self.call(one, args, {}, node, frame)]
            return args[0]
        word = called.op.rpartition(".")[2]
        if word in ("no_grad", "inference_mode") and len(args) == 1 and isinstance(args[0], Code):
            return args[0].without_gradients()
        if called.op.startswith("torch.nn.") and word in LAYERS:
            settings = dict(called.named)
            if word in ("Softmax", "LogSoftmax", "CosineSimilarity") and called.args:
                settings["dim"] = called.args[0]
            if word == "Flatten":
                settings = {"start_dim": called.argument("start_dim", 0) or self.constant(1, node)}
            return self.new(LAYERS[word], args, node, {**settings, **named})
        return self.new("run", (called, *args), node, named)

    def call_method(self, on: Value, name: str, args: list[Value], named: dict[str, Value], node: ast.Call, frame: Frame) -> Value:
        """`on.name(*args, **named)`."""
        if on.op in ("@library", "@module", "@class", "@super"):
            return self.call(self.attribute(on, name, node), args, named, node, frame)
        if isinstance(on, Instance):
            found = on.attributes.get(name) or (self.of_class(on.of, name, on, node) if on.of is not None else None)
            if found is not None:
                return self.call(found, args, named, node, frame)
            if _BASE in on.attributes:
                return self.call_method(on.attributes[_BASE], name, args, named, node, frame)
            return self.of_module(on, name, args, named, node)
        if on.op == "@input" and (code := self._only_method(name, node)) is not None:
            return self.enter(code, args, named, node)
        if on.op == "either":
            return self.either([self.call_method(one, name, args, named, node, frame) for one in on.args], node)
        known = self.container_method(on, name, args, named, node)
        if known is not None:
            return known
        if on.op.startswith("torch.nn.") or on.op in ("@parser", "dict"):
            return self.of_module(on, name, args, named, node)
        if name == "step" and isinstance(closure := named.get("closure") or (args[0] if args else None), Code):
            self.enter(closure, [], {}, node)
        if name in ("add", "sub") and len(args) == 1 and "alpha" in named:
            args, named = [self.operate("mul", (named["alpha"], args[0]), node)], {}
        return self.new(method(name), (on, *args), node, _plain(named))

    def _only_method(self, name: str, node: ast.AST) -> Code | None:
        """The method of that name, of the one class of the program that has it: of an input's class."""
        found = self.program.functions.get(name, [])
        of = self.program.parent.get(found[0]) if len(found) == 1 else None
        if not isinstance(of, ast.ClassDef) or of not in self.homes or name in _COMMON:
            return None
        instance: Value | None = self.instances.get(of)
        if instance is None:  # it was made before the loops around
            before, self.where = self.where, self.where._replace(loops=())
            instance = self.make(of, self.inputs_of(of), {}, node)
            self.where = before
        code = self.of_class(of, name, instance, node)
        return code if isinstance(code, Code) else None

    def of_module(self, on: Value, name: str, args: list[Value], named: dict[str, Value], node: ast.Call) -> Value:
        """A method that an object of the program inherits from a library: mostly of torch.nn.Module."""
        result = self.new(method(name), (on, *args), node, _plain(named))
        if on.op == "@parser":
            return self.parse(on, name, args, named, node) or result
        if name in SAME_OBJECT:
            return on
        if isinstance(on, Instance) and name in ("register_buffer", "register_parameter", "add_module", "__setattr__"):
            key, value = constant(args[0] if args else named.get("name")), args[1] if len(args) > 1 else named.get("tensor")
            if isinstance(key, str) and value is not None:
                on.attributes[key] = value
        return result

    def spread(self, args: list[Value], function: Function | ast.Lambda, node: ast.AST) -> list[Value]:
        """The arguments of a call that ends in `*many`: one for each parameter that still needs one."""
        if not args or args[-1].op != "star" or function.args.vararg is not None:
            return args
        many = args[-1].args[0]
        plain = [*function.args.posonlyargs, *function.args.args]
        missing = range(len(plain) - len(function.args.defaults) - len(args) + 1)
        if isinstance(many, Many) and len(many.parts) == 1:
            return [*args[:-1], *(many.parts[0] for _ in missing)]
        return [*args[:-1], *(self.new("part", (many, self.constant(place, node)), node) for place in missing)]

    def enter(self, code: Code, args: Sequence[Value], named: dict[str, Value], node: ast.AST, *, inputs: bool = False) -> Value:
        """Run a function of the program, and give what it returns. With `inputs` its parameters are unknown."""
        function = code.function
        running = self.where.functions
        if len(running) >= DEEPEST or running.count(function) > 1:
            return self.new("unknown", args, node)
        self.entered.add(function)
        frame = Frame(self.program.source_of[function], code.frame, self.program.class_of(function) if code.bound is not None else None)
        args = self.spread([*([code.bound] if code.bound is not None else []), *code.given[0], *args], function, node)
        given, more, others = given_to(function, args, {**code.given[1], **named})
        for one in parameters(function):
            default = defaults_of(function).get(one.arg)
            if one.arg in given:
                frame.names[one.arg] = given[one.arg]
            elif default is not None and not (inputs and isinstance(default, ast.Constant) and default.value is None):
                frame.names[one.arg] = self.evaluate(default, code.frame)
            elif "**" in others:
                frame.names[one.arg] = self.new("part", (others["**"], self.constant(one.arg, node)), node)
            else:
                frame.names[one.arg] = self.new("@input", (), one, data=one.arg)
        if function.args.vararg is not None:
            frame.names[function.args.vararg.arg] = self.many("tuple", more, node, grown=inputs)
        if function.args.kwarg is not None:
            frame.names[function.args.kwarg.arg] = Table(dict(others), node=node, where=self.where)
        before, off = self.where, code.off or (isinstance(function, Function) and any(says(one, "no_grad", "inference_mode") for one in function.decorator_list))
        self.where = before._replace(functions=(*running, function), no_grad=before.no_grad or off)
        if isinstance(function, ast.Lambda):
            frame.results.append(self.evaluate(function.body, frame))
        else:
            self.block(function.body, frame)
        self.where = before
        if frame.yielded:
            return self.many("list", frame.yielded, node, grown=True)
        found = [one for one in frame.results if one.op != "@constant" or one.data is not None] or frame.results
        if isinstance(function, Function):
            self.returned.setdefault(function.name, []).extend(found)
        return self.either(found, node) if found else self.none(node)

    def make(self, of: ast.ClassDef, args: Sequence[Value], named: dict[str, Value], node: ast.AST) -> Value:
        """An object of a class of the program."""
        instance = Instance(of, {}, node=node, where=self.where)
        self.register(instance)
        self.instances.setdefault(of, instance)
        init = self.of_class(of, "__init__", instance, node)
        if isinstance(init, Code):
            self.enter(init, args, named, node)
            return instance
        fields = [one for one in of.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]
        for place, one in enumerate(fields):
            assert isinstance(one.target, ast.Name)
            name = one.target.id
            if name in named or place < len(args):
                instance.attributes[name] = named[name] if name in named else args[place]
            elif one.value is not None:
                instance.attributes[name] = self._field(one.value, of)
        instance.data = [one.target.id for one in fields if isinstance(one.target, ast.Name)]
        for name, value in named.items():
            instance.attributes.setdefault(name, value)
        after = self.of_class(of, "__post_init__", instance, node)
        if isinstance(after, Code):
            self.enter(after, [], {}, node)
        return instance

    def _field(self, default: ast.expr, of: ast.ClassDef) -> Value:
        """The default of a dataclass's field."""
        frame = self.homes.get(of) or self.modules[self.program.source_of[of].path]
        if isinstance(default, ast.Call) and says(default.func, "field"):
            given = {word.arg: word.value for word in default.keywords}
            if "default" in given:
                return self.evaluate(given["default"], frame)
            factory = given.get("default_factory")
            if isinstance(factory, ast.Lambda):
                return self.evaluate(factory.body, frame)
            return self.many("list", [], default) if factory is not None and says(factory, "list") else self.new("unknown", (), default)
        return self.evaluate(default, frame)

    def inputs_of(self, of: ast.ClassDef) -> list[Value]:
        """An input for each parameter of a class that has no default."""
        init = self.program._inherited(of, "__init__")
        if init is None:
            return []
        plain = [*init.args.posonlyargs, *init.args.args][1:]
        needed = plain[: len(plain) - len(init.args.defaults)] if init.args.defaults else plain
        return [self.new("@input", (), one, data=one.arg) for one in needed]

    # Libraries --------------------------------------------------------------------------

    def library(self, dotted: str, args: list[Value], named: dict[str, Value], node: ast.Call, frame: Frame) -> Value:
        """A call of a function or class of a library."""
        last = dotted.rpartition(".")[2]
        if dotted.startswith("builtins."):
            sort_keys(self, last, args, named, node, frame)
            if (found := self.builtin_call(last, args, named, node, frame)) is not None:
                return found
        like = {"collections.OrderedDict": "dict", "collections.defaultdict": "defaultdict", "dataclasses.asdict": "vars"}.get(dotted)
        if like is not None and (found := self.builtin_call(like, args, named, node, frame)) is not None:
            return found
        if dotted == "functools.partial" and args:
            if isinstance(args[0], Code):
                code = Code(args[0].function, args[0].frame, args[0].bound, node=node, where=self.where)
                code.given, code.off = ((*args[0].given[0], *args[1:]), {**args[0].given[1], **named}), args[0].off
                return code
            return self.new("@partial", args, node, named)
        if dotted in ("collections.namedtuple", "typing.NamedTuple") and len(args) > 1:
            return self.new("@fields", (), node, data=self._names(args[1]))
        if dotted in ("copy.deepcopy", "copy.copy") and args:
            return self.copied(args[0] if dotted == "copy.deepcopy" else self.new(dotted, (args[0],), node).args[0], node)
        if last == "LambdaLR" and isinstance(factor := named.get("lr_lambda") or (args[1] if len(args) > 1 else None), Code):
            named = {**named, "factor": self.call(factor, [self.new("index", (), node)], {}, node, frame)}
        if dotted in ("builtins.max", "builtins.min") and args and isinstance(key := named.get("key"), Code):
            named = {**named, "key": self.call(key, [self.new("element", (args[0],), node)], {}, node, frame)}
        if dotted in ("torch.add", "torch.sub") and "alpha" in named and len(args) == 2:
            args, named = [args[0], self.operate("mul", (named.pop("alpha"), args[1]), node)], named
        if dotted == "functools.reduce" and len(args) > 1 and isinstance(args[1], Many) and not args[1].grown and (known := [*args[2:], *args[1].parts]):
            for one in known[1:]:
                known[0] = self.call(args[0], [known[0], one], {}, node, frame)
            return known[0]
        if dotted == "argparse.ArgumentParser":
            return self.new("@parser", (), node, data={})
        if dotted in RECOMPUTED and len(args) > 1:
            return self.call(self.new(dotted, args, node, named).args[0], args[RECOMPUTED[dotted]:], {}, node, frame)
        if dotted in SEQUENCES:
            return self.sequence(dotted, args, node)
        if dotted == "torch.nn.ModuleDict" and args and isinstance(args[0], Table):
            return args[0]
        if last in ("spawn", "start_processes", "Process", "Thread") and (run := named.get("target") or (args[0] if args else None)) is not None and isinstance(run, Code):
            given = self.parts(named.get("args") or (args[1] if len(args) > 1 else self.many("tuple", [], node))) or []
            self.enter(run, [self.new("@input", (), node, data="rank"), *given] if "spawn" in last or "start" in last else given, {}, node)
        if dotted == "builtins.super.__init__" and (made := frame.names.get("self")) is not None and isinstance(made, Instance) and args and made.of is not None:
            base = next((name for one in made.of.bases if (name := self.program.dotted(one) or "").startswith("torch.optim.")), None)
            if base is not None:  # a schedule or an optimizer of the program's own
                made.attributes[_BASE] = self.library(base, args, named, node, frame)
            else:
                made.data = list(self.sequence("torch.nn.Sequential", args, node).args)  # the layers of a subclass of Sequential
        if dotted in ("types.SimpleNamespace", "argparse.Namespace"):
            self.register(made := Instance(None, dict(named), node=node, where=self.where))
            return made
        if dotted == "collections.deque":
            inner, unrolled = self.elements(args[0], node) if args else ([], True)
            return self.many("list", inner, node, grown=not unrolled)
        if dotted == "itertools.chain" and args and all(isinstance(one, Many) for one in args):
            inner = [part for one in args for part in self.parts(one) or ()]
            return self.many("list", inner, node, grown=any(getattr(one, "grown", False) for one in args))
        if dotted in _DRAWS and args and isinstance(args[0], Many) and args[0].parts:
            self.new(operation(dotted), args, node, named)
            return self.many("list", args[0].parts, node, grown=True)
        if last in _PASSED_ON and args and not dotted.startswith("builtins."):
            self.new(operation(dotted), args, node, named)
            return args[0]
        listed = len(args) == 1 and (isinstance(args[0], Many) or args[0].op in KEPT or args[0].op in ("set_item", "div"))
        return self.new(operation(dotted, listed), args, node, _plain(named))

    def sequence(self, dotted: str, args: list[Value], node: ast.AST) -> Value:
        """Sequential or ModuleList: `data` is True where it has more layers than are known."""
        layers: list[Value] = []
        more = False
        for one in args:
            inside = one.args[0] if one.op == "star" else one
            spread = isinstance(inside, (Many, Table)) and (one.op == "star" or len(args) == 1)
            more = more or (spread and getattr(inside, "grown", False)) or (one.op == "star" and not spread)
            layers += list(inside.made_of()) if spread else [one]
        return self.new(dotted, layers, node, data=more)

    def _names(self, value: Value) -> list[str]:
        """The field names that namedtuple is given."""
        return known.replace(",", " ").split() if isinstance(known := constant(value), str) else [str(constant(one)) for one in self.parts(value) or ()]

    def fields(self, called: Value, args: list[Value], named: dict[str, Value], node: ast.AST) -> Value:
        """A named tuple."""
        if len(args) == 1 and args[0].op == "star":
            args = [self.new("part", (args[0].args[0], self.constant(place, node)), node) for place in range(len(called.data))]
        parts = [named.get(name) or (args[place] if place < len(args) else self.none(node)) for place, name in enumerate(called.data)]
        found = self.many("named", parts, node)
        found.data = called.data
        return found

    def copied(self, value: Value, node: ast.AST, made: dict[int, Value] | None = None) -> Value:
        """A copy: an object of the program gets attributes and layers of its own."""
        made = {} if made is None else made
        if id(value) in made:
            return made[id(value)]
        if isinstance(value, Instance):
            self.register(copy := Instance(value.of, {}, node=node, where=self.where))
            made[id(value)], copy.data = copy, value
            copy.attributes = {name: self.copied(one, node, made) if _is_of_modules(one) else one for name, one in value.attributes.items()}
            return copy
        if isinstance(value, Many) and _is_of_modules(value):
            return self.many(value.op, [self.copied(one, node, made) for one in value.parts], node, grown=value.grown)
        if value.op.startswith("torch.nn."):
            found = made[id(value)] = self.new(value.op, [self.copied(one, node, made) for one in value.args], node, value.named, value.data)
            self.copies[id(found)] = value
            return found
        return value if value.op == "@constant" else self.new("deepcopy", (value,), node)

    def parse(self, parser: Value, name: str, args: list[Value], named: dict[str, Value], node: ast.AST) -> Value | None:
        """argparse: the options with their defaults."""
        if name == "add_argument":
            words = [constant(one) for one in args if isinstance(constant(one), str)]
            word = constant(named.get("dest")) or next((one for one in words if one.startswith("--")), words[0] if words else "")
            off = constant(named.get("action")) == "store_true"
            given = named.get("default")
            value = given if (given is not None and constant(given) not in (None, "")) or isinstance(given, (Many, Table)) else (self.constant(False, node) if off else self.new("@input", (), node, data=word))
            parser.data[str(word).lstrip("-").replace("-", "_")] = value
            return self.none(node)
        if name in ("parse_args", "parse_known_args"):
            found = Instance(None, dict(parser.data), node=node, where=self.where)
            return self.many("tuple", [found, self.many("list", [], node)], node) if name == "parse_known_args" else found
        return parser if name in ("add_argument_group", "add_mutually_exclusive_group") else None

    def turns_gradients(self, manager: Value) -> bool | None:
        """Whether a context manager turns gradients off (True) or on (False); None for all others."""
        if manager.op in ("no_grad", "inference_mode"):
            return True
        if manager.op == "enable_grad":
            return False
        if manager.op == "set_grad_enabled" and manager.args and (known := self.truth(manager.args[0])) is not None:
            return not known
        return None

    # Where ------------------------------------------------------------------------------

    @contextmanager
    def inside(self, loop: ast.AST | None) -> Iterator[None]:
        """Within the body of a loop; of none, if its passes are followed one by one."""
        before = self.where
        if loop is not None:
            self.where = before._replace(loops=(*before.loops, loop))
        yield
        self.where = self.where._replace(loops=before.loops)

    @contextmanager
    def maybe(self, *under: tuple[Value, bool]) -> Iterator[None]:
        """Within a branch that may not be taken, where the conditions `under` hold."""
        before = self.where
        self.where = before._replace(maybe=True, under=(*before.under, *under))
        yield
        self.where = self.where._replace(maybe=before.maybe, under=before.under)


def _is_of_modules(value: Value) -> bool:
    """Whether a value is a module, an object of the program, or a list of them."""
    return value.op.startswith("torch.nn.") or isinstance(value, Instance) or (isinstance(value, Many) and any(one.op.startswith("torch.nn.") for one in value.parts))


def _plain(named: dict[str, Value]) -> dict[str, Value]:
    return {NAMED.get(name, name): value for name, value in named.items()}
