"""Models and loss functions: layers that are not there, are one, or are made anew; values that a loss does not
expect. Axes and masks are in `axes_rules`. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.axes_rules import RULES as AXES
from probe.diagnose.code.program import Function, Program, own_nodes
from probe.diagnose.code.rule import Remark, Rule
from probe.diagnose.code.tracing import Trace, keyword, own, trace

_STATELESS = (
    "ReLU ReLU6 LeakyReLU ELU SELU CELU GELU SiLU Mish Tanh Sigmoid Softmax LogSoftmax Softplus Softsign Hardtanh "
    "Hardswish Hardsigmoid Threshold GLU Identity Flatten Unflatten Upsample PixelShuffle PixelUnshuffle Fold Unfold "
    "ZeroPad2d ReflectionPad2d ReplicationPad2d ConstantPad2d CosineSimilarity PairwiseDistance Softmax2d Softmin"
).split()
_RANDOM = ("Dropout", "AlphaDropout", "FeatureAlphaDropout")
_MIXES = ("Linear", "Conv", "LSTM", "GRU", "RNN", "Embedding", "Bilinear", "Transformer", "Multihead", "LazyLinear")
"""Beginnings of the layers of torch.nn whose first weights are drawn at random."""
_CONTAINERS = ("torch.nn.Sequential", "torch.nn.ModuleList", "torch.nn.ModuleDict")


def _layer(program: Program, node: ast.AST | None) -> str | None:
    """The class of a layer with parameters that a call makes; None for all else."""
    if not isinstance(node, ast.Call):
        return None
    name = program.dotted(node.func)
    if name is None:
        return None
    if name in program.classes:
        of = program.classes[name][0]
        return name if program.is_module_class(of) and _has_layers(program, of, 4) else None
    if name == "torch.nn.Sequential":
        return next((found for one in node.args if (found := _layer(program, one))), None)
    last = name.removeprefix("torch.nn.")
    return last if name == f"torch.nn.{last}" and last.startswith(_MIXES) else None


def _has_layers(program: Program, of: ast.ClassDef, depth: int) -> bool:
    for node in ast.walk(of):
        if isinstance(node, ast.Call):
            name = program.dotted(node.func) or ""
            last = name.removeprefix("torch.nn.")
            if name == f"torch.nn.{last}" and (last.startswith(_MIXES) or last == "Parameter"):
                return True
            if depth and name in program.classes and program.classes[name][0] is not of:
                if program.is_module_class(program.classes[name][0]) and _has_layers(program, program.classes[name][0], depth - 1):
                    return True
    return False


def _module_classes(program: Program) -> Iterator[ast.ClassDef]:
    for classes in program.classes.values():
        yield from (of for of in classes if program.is_module_class(of))


def _is_self(node: ast.AST, name: str | None = None) -> bool:
    return (
        isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
        and (name is None or node.attr == name)
    )


def _short(program: Program, node: ast.AST, longest: int = 60) -> str:
    text = program.text(node)
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


# Layers that are not there ------------------------------------------------------


def _unregistered(program: Program) -> Iterator[Remark]:
    for of in _module_classes(program):
        nodes = list(ast.walk(of))
        if any(isinstance(node, ast.Attribute) and node.attr in ("add_module", "register_module") for node in nodes):
            continue
        if any(isinstance(node, ast.Name) and node.id == "setattr" for node in nodes):
            continue
        for node in nodes:
            kept = _kept_in_list(program, node)
            if kept is None:
                continue
            name, layer = kept
            if _given_to_container(program, name):
                continue
            said = f"self.{name} keeps its {layer} layers in a Python list or dict, which does not register them"
            yield Remark(node, said)


def _kept_in_list(program: Program, node: ast.AST) -> tuple[str, str] | None:
    """The attribute of self that is a plain list or dict of new layers, and their class."""
    value: ast.AST | None = None
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and _is_self(node.targets[0]):
        target, value = node.targets[0], node.value
        elements: list[ast.AST] = []
        if isinstance(value, (ast.List, ast.Tuple)):
            elements = list(value.elts)
        elif isinstance(value, ast.Dict):
            elements = list(value.values)
        elif isinstance(value, ast.ListComp):
            elements = [value.elt]
        elif isinstance(value, ast.DictComp):
            elements = [value.value]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        call = node.value
        assert isinstance(call.func, ast.Attribute)
        if call.func.attr != "append" or not _is_self(call.func.value) or len(call.args) != 1:
            return None
        target, elements = call.func.value, [call.args[0]]
        if program.family(target) != "tuple":
            return None
    else:
        return None
    assert isinstance(target, ast.Attribute)
    layer = next((found for one in elements if (found := _layer(program, one))), None)
    return None if layer is None else (target.attr, layer)


def _given_to_container(program: Program, name: str) -> bool:
    """Whether a list of that name is registered after all, or its layers' parameters are given away by hand."""
    for call in program.calls():
        if program.dotted(call.func) in _CONTAINERS or (isinstance(call.func, ast.Attribute) and call.func.attr == "parameters"):
            if any(isinstance(one, ast.Attribute) and one.attr == name for one in ast.walk(call)):
                return True
    for node in program.everywhere(ast.For, ast.comprehension):
        assert isinstance(node, (ast.For, ast.comprehension))
        loops_over = any(isinstance(one, ast.Attribute) and one.attr == name for one in ast.walk(node.iter))
        around = program.parent.get(node, node)
        if loops_over and any(isinstance(one, ast.Attribute) and one.attr == "parameters" for one in ast.walk(around)):
            return True
    return False


def _one_layer(program: Program) -> Iterator[Remark]:
    known = trace(program)
    for node in program.everywhere(ast.BinOp, ast.ListComp):
        element: ast.AST | None = None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            made = node.left if isinstance(node.left, ast.List) else node.right
            if isinstance(made, ast.List) and len(made.elts) == 1:
                element = made.elts[0]
        elif isinstance(node, ast.ListComp) and isinstance(node.elt, ast.Name):
            targets = {one.id for part in node.generators for one in ast.walk(part.target) if isinstance(one, ast.Name)}
            over = node.generators[0].iter
            counted = isinstance(over, ast.Call) and isinstance(over.func, ast.Name) and over.func.id == "range"
            element = node.elt if counted and node.elt.id not in targets else None
        if element is None:
            continue
        layer = _layer(program, known.value(element))
        if layer is None and isinstance(element, ast.Name):
            kind = program.kind(element)
            if kind is not None and kind.family == "module" and _in_container(program, node):
                of = program.classes.get(kind.name)
                layer = kind.name if of and _has_layers(program, of[0], 4) else None
        if layer is not None:
            yield Remark(node, f"{_short(program, node)} is one {layer} layer several times: all entries share the same weights")


def _in_container(program: Program, node: ast.AST) -> bool:
    around = program.parent.get(node)
    if isinstance(around, ast.Starred):
        around = program.parent.get(around)
    return isinstance(around, ast.Call) and program.dotted(around.func) in _CONTAINERS


def _forwards(program: Program) -> Iterator[Function]:
    """`forward` of each module of the program, and the methods that it calls on self."""
    for of in _module_classes(program):
        waiting, seen = ["forward"], {"__init__"}
        while waiting:
            name = waiting.pop()
            method = None if name in seen else program.method(of, name)
            seen.add(name)
            if method is None:
                continue
            yield method
            for node in own_nodes(method):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_self(node.func):
                    waiting.append(node.func.attr)


def _made_in_forward(program: Program) -> Iterator[Remark]:
    known = trace(program)
    for method in _forwards(program):
        for call in own(method, ast.Call):
            assert isinstance(call, ast.Call)
            name = program.dotted(call.func) or ""
            layer = _layer(program, call)
            random = name.removeprefix("torch.nn.").startswith(_RANDOM) and name.startswith("torch.nn.")
            if layer is None and not random:
                continue
            around = program.parent.get(call)
            applied = isinstance(around, ast.Call) and around.func is call
            kept = around.targets[0] if isinstance(around, ast.Assign) and len(around.targets) == 1 else None
            if isinstance(kept, ast.Name):
                applied = _applied(program, known, method, kept.id)
            elif kept is not None and _is_self(kept):
                applied = not any(isinstance(one, (ast.If, ast.Try)) for one in program.parents(around or call) if one is not method)
            if not applied:
                continue
            if random:
                yield Remark(call, f"{_short(program, call)} is made in {method.name}: a new module is in training mode, so it drops in evaluation too")
            else:
                yield Remark(call, f"{layer} is made in {method.name}: it has new random weights in each call, and they are in no optimizer")


def _applied(program: Program, known: Trace, method: Function, name: str) -> bool:
    """Whether a local layer is called, and its weights are not set by hand before."""
    used = False
    for node in own_nodes(method):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            used = True
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name:
            if node.attr in ("weight", "bias", "load_state_dict", "train", "eval", "parameters", "training"):
                return False
    return used and len(known.all(method, name)) == 1


def _dropout_always(program: Program) -> Iterator[Remark]:
    for call in program.calls():
        name = program.dotted(call.func) or ""
        if not name.startswith("torch.nn.functional.") or not name.endswith(("dropout", "dropout1d", "dropout2d", "dropout3d")):
            continue
        of = program.class_of(call)
        if of is None or not program.is_module_class(of) or keyword(call, "training", 2) is not None:
            continue
        if any(one.arg is None for one in call.keywords) or "training" in program.text(call):
            continue
        guards = [one.test for one in program.parents(call) if isinstance(one, (ast.If, ast.IfExp))]
        if any("training" in program.text(test) for test in guards) or program.function_name(call) in ("training_step",):
            continue
        probability = keyword(call, "p", 1)
        if isinstance(probability, ast.Constant) and not probability.value:
            continue
        yield Remark(call, f"{_short(program, call)} has no training=self.training: it drops in evaluation too")


def _not_a_parameter(program: Program) -> Iterator[Remark]:
    for of in _module_classes(program):
        for node in ast.walk(of):
            if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not _is_self(node.targets[0]):
                continue
            target, value = node.targets[0], node.value
            assert isinstance(target, ast.Attribute)
            if program.function_name(node) != "__init__" or _optimized_by_hand(program, target.attr):
                continue
            made = _parameter_inside(program, value)
            if made is not None:
                said = f"self.{target.attr} = {_short(program, value)} is a tensor computed from a Parameter and no Parameter itself"
                yield Remark(node, f"{said}: it is not registered, and the optimizer never sees it")
            elif isinstance(value, ast.Call) and (program.dotted(value.func) or "").startswith(("torch.", "torch.autograd.Variable")):
                flag = keyword(value, "requires_grad")
                if isinstance(flag, ast.Constant) and flag.value is True and program.family(value) in ("tensor", None):
                    if program.dotted(value.func) != "torch.nn.Parameter" and not (program.dotted(value.func) or "").startswith("torch.nn."):
                        yield Remark(node, f"self.{target.attr} is a plain tensor that requires a gradient: it is no Parameter, and parameters() leaves it out")


def _parameter_inside(program: Program, value: ast.AST) -> ast.AST | None:
    """The nn.Parameter(...) that a chain of methods or a product is computed from."""
    at: ast.AST = value
    changed = False
    while True:
        if isinstance(at, ast.Call) and program.dotted(at.func) == "torch.nn.Parameter":
            return at if changed else None
        if isinstance(at, ast.Call) and isinstance(at.func, ast.Attribute) and at.func.attr in ("cuda", "half", "view", "reshape", "unsqueeze", "double", "expand", "repeat", "t", "transpose"):
            at, changed = at.func.value, True
        elif isinstance(at, ast.BinOp):
            inner = at.left if isinstance(at.left, ast.Call) else at.right
            at, changed = inner, True
            if not isinstance(at, ast.Call):
                return None
        else:
            return None


def _optimized_by_hand(program: Program, name: str) -> bool:
    """Whether an attribute of that name is registered, or given to an optimizer by name."""
    for node in program.everywhere(ast.Attribute):
        assert isinstance(node, ast.Attribute)
        if node.attr != name or isinstance(node.ctx, ast.Store):
            continue
        for around in program.parents(node):
            if isinstance(around, (ast.List, ast.Dict)) or (isinstance(around, (ast.Return, ast.Yield)) and "param" in (program.function_name(node) or "")):
                return True
            if isinstance(around, ast.Call) and (program.dotted(around.func) or "").startswith(("torch.optim", "torch.nn.Parameter", "torch.autograd.grad")):
                return True
            if isinstance(around, ast.stmt):
                break
    return False


def _constant_weights(program: Program) -> Iterator[Remark]:
    for call in program.calls():
        name = program.dotted(call.func) or ""
        target: ast.AST | None = None
        if name in ("torch.nn.init.zeros_", "torch.nn.init.ones_", "torch.nn.init.constant_") and call.args:
            target = call.args[0]
        elif isinstance(call.func, ast.Attribute) and call.func.attr in ("fill_", "zero_"):
            target = call.func.value
        while isinstance(target, ast.Attribute) and target.attr == "data":
            target = target.value
        if not isinstance(target, ast.Attribute) or target.attr != "weight" or not isinstance(target.value, ast.Name):
            continue
        module = target.value.id
        guard = next((one for one in program.parents(call) if isinstance(one, ast.If)), None)
        if guard is None or call not in [one for part in guard.body for one in ast.walk(part)]:
            continue
        loop = next((one for one in program.parents(guard) if isinstance(one, ast.For)), None)
        if loop is not None and isinstance(loop.iter, ast.Call) and isinstance(loop.iter.func, ast.Attribute) and not isinstance(loop.iter.func.value, ast.Name):
            continue  # over a part of the model
        classes = _isinstance_of(program, guard.test, module)
        hidden = [one for one in classes if one.removeprefix("torch.nn.").startswith(("Linear", "Conv"))]
        if not hidden or len(hidden) != len(classes):
            continue
        again = [one for one in program.calls() if program.function_of(one) is program.function_of(call) and one is not call
                 and (program.dotted(one.func) or "").startswith("torch.nn.init.") and any(program.text(arg).startswith(f"{module}.weight") for arg in one.args)
                 and one.lineno > call.lineno and any(part is guard for part in program.parents(one))]
        made = sum(1 for one in program.calls() if program.dotted(one.func) in hidden)
        if made >= 2 and not again:
            yield Remark(call, f"{_short(program, call)} gives all weights of each {hidden[0].removeprefix('torch.nn.')} layer the same value, so its units stay equal")


def _isinstance_of(program: Program, test: ast.AST, name: str) -> list[str]:
    if not isinstance(test, ast.Call) or not isinstance(test.func, ast.Name) or test.func.id != "isinstance" or len(test.args) != 2:
        return []
    if not isinstance(test.args[0], ast.Name) or test.args[0].id != name:
        return []
    of = test.args[1]
    parts = of.elts if isinstance(of, ast.Tuple) else [of]
    while len(parts) == 1 and isinstance(parts[0], ast.BinOp):
        parts = [parts[0].left, parts[0].right]
    return [program.dotted(one) or "" for one in parts]


# What a loss expects ------------------------------------------------------------

_KEEPS = frozenset("view reshape squeeze unsqueeze flatten transpose permute contiguous float to cuda cpu t".split())
_ACTIVATIONS = {
    "softmax": "probabilities", "log_softmax": "log", "sigmoid": "sigmoid", "logsigmoid": "log", "relu": "relu",
    "gumbel_softmax": "probabilities", "softmax2d": "probabilities", "sparsemax": "probabilities",
}
_MODULES = {
    "torch.nn.Softmax": "probabilities", "torch.nn.LogSoftmax": "log", "torch.nn.Sigmoid": "sigmoid",
    "torch.nn.ReLU": "relu", "torch.nn.Softmax2d": "probabilities", "torch.nn.Dropout": "dropout",
}
_WORDS = {
    "probabilities": "the output of a softmax", "sigmoid": "the output of a sigmoid", "log": "the output of a log_softmax",
    "relu": "the output of a ReLU", "dropout": "the output of a Dropout",
}


class _Domains:
    """What range a tensor's values have: that of the activation that was applied last."""

    def __init__(self, program: Program) -> None:
        self.program, self.known = program, trace(program)

    def of(self, node: ast.AST | None, depth: int = 10, index: int | None = None) -> str | None:
        if node is None or not depth:
            return None
        if isinstance(node, (ast.Name, ast.Attribute)):
            given = self.known.given(node)
            if given is None or given.value is None or given.changed or (given.index is not None and index is not None):
                return None
            return self.of(given.value, depth - 1, given.index if given.index is not None else index)
        if isinstance(node, ast.Tuple):
            return self.of(node.elts[index], depth - 1) if index is not None and index < len(node.elts) else None
        if isinstance(node, ast.Subscript):
            if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int) and node.slice.value >= 0:
                return self.of(node.value, depth - 1, node.slice.value) if self._gives_tuple(node.value) else None
            return None
        return self._of_call(node, depth, index) if isinstance(node, ast.Call) else None

    def _gives_tuple(self, node: ast.AST) -> bool:
        value = self.known.value(node)
        method = self._forward(value) if isinstance(value, ast.Call) else None
        return method is not None and any(isinstance(one, ast.Return) and isinstance(one.value, ast.Tuple) for one in own_nodes(method))

    def _of_call(self, call: ast.Call, depth: int, index: int | None) -> str | None:
        name = self.program.dotted(call.func) or ""
        last = name.rpartition(".")[2]
        if name in (f"torch.{last}", f"torch.nn.functional.{last}", f"torch.special.{last}"):
            return self._activation(last, call.args[0] if call.args else None, depth)
        if isinstance(call.func, ast.Attribute) and not name:
            if call.func.attr in _KEEPS:
                return self.of(call.func.value, depth - 1, index)
            if call.func.attr in _ACTIVATIONS and self.program.kind(call.func) is None:
                return self._activation(call.func.attr, call.func.value, depth)
        module = self.known.value(call.func)
        if isinstance(module, ast.Call) and index is None:
            found = self._of_module(module, call.args[0] if call.args else None, depth)
            if found is not None:
                return found
        method = self._forward(call)
        return None if method is None else self._returned(method, depth, index)

    def _activation(self, name: str, argument: ast.AST | None, depth: int) -> str | None:
        found = _ACTIVATIONS.get(name)
        return found if found != "relu" or self._linear(argument) else None

    def _of_module(self, module: ast.Call, argument: ast.AST | None, depth: int) -> str | None:
        name = self.program.dotted(module.func) or ""
        if name == "torch.nn.Sequential" and module.args and not any(isinstance(one, ast.Starred) for one in module.args):
            last = self.known.value(module.args[-1])
            before = self.known.value(module.args[-2]) if len(module.args) > 1 else None
            if isinstance(last, ast.Call):
                found = _MODULES.get(self.program.dotted(last.func) or "")
                if found in ("relu", "dropout"):
                    return found if self._is_linear(before) and self._drops(last) else None
                return found or self._of_module(last, None, depth - 1)
            return None
        found = _MODULES.get(name)
        if found in ("relu", "dropout"):
            return found if self._linear(argument) and self._drops(module) else None
        return found

    def _drops(self, module: ast.Call) -> bool:
        name = self.program.dotted(module.func)
        return name != "torch.nn.Dropout" or not (module.args and self.known.number(module.args[0]) == 0)

    def _is_linear(self, module: ast.AST | None) -> bool:
        return isinstance(module, ast.Call) and self.program.dotted(module.func) == "torch.nn.Linear"

    def _linear(self, node: ast.AST | None) -> bool:
        """Whether a value comes out of nn.Linear."""
        value = self.known.value(node) if node is not None else None
        return isinstance(value, ast.Call) and self._is_linear(self.known.value(value.func))

    def _forward(self, call: ast.Call) -> Function | None:
        if isinstance(call.func, ast.Name) and call.func.id == "self":
            of = self.program.class_of(call)
            return None if of is None else self.program.method(of, "forward")
        return self.program.local_function(call)

    def _returned(self, method: Function, depth: int, index: int | None) -> str | None:
        found = {self.of(node.value, depth - 1, index) for node in own_nodes(method) if isinstance(node, ast.Return)}
        return next(iter(found)) if len(found) == 1 else None


_EXPECTS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "cross_entropy": ("logits", ("probabilities", "sigmoid", "relu", "dropout"), "torch.nn.CrossEntropyLoss"),
    "nll_loss": ("log probabilities", ("probabilities", "sigmoid"), "torch.nn.NLLLoss"),
    "binary_cross_entropy_with_logits": ("logits", ("probabilities", "sigmoid", "relu", "dropout"), "torch.nn.BCEWithLogitsLoss"),
    "kl_div": ("log probabilities", ("probabilities", "sigmoid"), "torch.nn.KLDivLoss"),
    "softmax": ("logits", ("probabilities", "sigmoid"), "torch.nn.Softmax"),
    "log_softmax": ("logits", ("probabilities", "sigmoid"), "torch.nn.LogSoftmax"),
    "gumbel_softmax": ("logits", ("probabilities", "sigmoid"), ""),
    "sigmoid": ("logits", ("probabilities", "sigmoid"), "torch.nn.Sigmoid"),
    "Categorical": ("logits", ("probabilities", "sigmoid"), ""),
    "Bernoulli": ("logits", ("probabilities", "sigmoid"), ""),
}
"""What takes what as its first argument, and which values are none of it."""


def _wrong_range(program: Program) -> Iterator[Remark]:
    domains = _Domains(program)
    by_module = {module: name for name, (_, _, module) in _EXPECTS.items() if module}
    for call in program.calls():
        name = program.dotted(call.func) or ""
        last = name.rpartition(".")[2]
        if name.startswith("torch.distributions."):
            argument = keyword(call, "logits")
        elif name in (f"torch.nn.functional.{last}", f"torch.{last}"):
            argument = call.args[0] if call.args else keyword(call, "input")
        else:
            module = domains.known.value(call.func)
            kind = program.kind(call.func)
            made = program.dotted(module.func) if isinstance(module, ast.Call) else kind.name if kind is not None else None
            last = by_module.get(made or "", "")
            argument = call.args[0] if call.args else keyword(call, "input")
        if last not in _EXPECTS or argument is None:
            continue
        expected, wrong, _ = _EXPECTS[last]
        found = domains.of(argument)
        axis = _axis_of_log(domains, argument) if last == "nll_loss" else None
        if axis == 0:
            yield Remark(call, f"{_short(program, argument, 40)} is normalized over axis 0, the batch, and nll_loss takes classes along axis 1")
        elif found in wrong:
            shown = last if name else program.text(call.func)
            yield Remark(call, f"{shown} takes {expected}, and {_short(program, argument, 40)} is {_WORDS[found]}")
        elif last == "kl_div" and keyword(call, "log_target") is None and name:
            target = call.args[1] if len(call.args) > 1 else keyword(call, "target")
            if domains.of(target) == "log":
                yield Remark(call, f"kl_div takes probabilities as its target without log_target=True, and {_short(program, target or call, 40)} is {_WORDS['log']}")


def _linear_twice(program: Program) -> Iterator[Remark]:
    """Two nn.Linear in a row with nothing in between are one linear map."""
    known = trace(program)
    for call in program.calls():
        pairs: list[tuple[ast.AST, ast.AST, ast.AST]] = []
        if program.dotted(call.func) == "torch.nn.Sequential":
            pairs = [(one, known.value(one), known.value(other)) for one, other in zip(call.args, call.args[1:])]
        elif len(call.args) == 1 and isinstance(call.func, (ast.Name, ast.Attribute)):
            before = known.value(call.args[0])
            if isinstance(before, ast.Call) and len(before.args) == 1:
                pairs = [(call, known.value(before.func), known.value(call.func))]
        for node, first, second in pairs:
            if not isinstance(first, ast.Call) or not isinstance(second, ast.Call) or first is second:
                continue
            if {program.dotted(first.func), program.dotted(second.func)} != {"torch.nn.Linear"} or keyword(first, "bias", 2) is not None:
                continue
            narrow = [known.number(one) for one in (keyword(first, "in_features", 0), keyword(first, "out_features", 1), keyword(second, "out_features", 1))]
            if any(one is None for one in narrow[1:2]) or (narrow[0] is not None and narrow[1] is not None and narrow[1] < narrow[0] and (narrow[2] or 0) > narrow[1]):
                continue
            yield Remark(node, f"{_short(program, first)} is followed by {_short(program, second)} with no activation in between: both are one linear map")


def _axis_of_log(domains: _Domains, node: ast.AST) -> float | None:
    """The axis of the log_softmax that a value comes out of."""
    value = domains.known.value(node)
    if isinstance(value, ast.Call) and (domains.program.dotted(value.func) or "").endswith(".log_softmax"):
        return domains.known.number(keyword(value, "dim", 1))
    return None


# Values that two variables share ---------------------------------------------------


def _alias_changed(program: Program) -> Iterator[Remark]:
    known = trace(program)
    for method in _forwards(program):
        for node in own(method, ast.Assign):
            assert isinstance(node, ast.Assign)
            if len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name) or not isinstance(node.value, ast.Name):
                continue
            kept, source = node.targets[0].id, node.value.id
            block = next((found for name in ("body", "orelse") if isinstance(found := getattr(program.parent[node], name, None), list) and node in found), [])
            changed: ast.stmt | None = None
            for later in block[block.index(node) + 1 :] if node in block else []:
                if changed is not None and any(isinstance(one, ast.Name) and one.id == kept and isinstance(one.ctx, ast.Load) for one in ast.walk(later)):
                    said = f"{kept} and {source} are the same tensor since line {node.lineno}: line {changed.lineno} changes it in place, so {kept} changes too"
                    yield Remark(changed, said)
                    break
                if changed is None and _in_place(program, known, later, source):
                    changed = later
                    if any(isinstance(one, ast.Name) and one.id == kept for one in ast.walk(later)):
                        break  # x += f(x, kept): the sum that was meant
                    continue
                if any(isinstance(one, ast.Name) and one.id in (kept, source) and isinstance(one.ctx, ast.Store) for one in ast.walk(later)):
                    if changed is None or any(isinstance(one, ast.Name) and one.id == kept and isinstance(one.ctx, ast.Store) for one in ast.walk(later)):
                        break


def _in_place(program: Program, known: Trace, statement: ast.stmt, name: str) -> bool:
    """Whether a plain statement changes the tensor of that name in place."""
    if isinstance(statement, ast.AugAssign):
        return isinstance(statement.target, ast.Name) and statement.target.id == name
    if not isinstance(statement, (ast.Expr, ast.Assign)):
        return False
    for call in ast.walk(statement):
        if not isinstance(call, ast.Call):
            continue
        if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name) and call.func.value.id == name:
            if call.func.attr.endswith("_") and not call.func.attr.endswith("__") and call.func.attr not in ("requires_grad_", "detach_", "squeeze_", "unsqueeze_"):
                return True
        if call.args and isinstance(call.args[0], ast.Name) and call.args[0].id == name:
            made = known.value(call.func)
            flag = keyword(call, "inplace") or (keyword(made, "inplace") if isinstance(made, ast.Call) else None)
            if isinstance(flag, ast.Constant) and flag.value is True:
                return True
    return False


RULES: tuple[Rule, ...] = (
    Rule("layers-not-registered", "model", "parameters(), to() and state_dict() leave these layers out: no optimizer trains them", "use nn.ModuleList or nn.ModuleDict", _unregistered),
    Rule("one-layer-many-times", "model", "the model has one layer's parameters where several were meant", "make each layer anew: nn.ModuleList([Layer(...) for _ in range(n)])", _one_layer),
    Rule("layer-made-in-forward", "model", "what it does in one step has nothing to do with the next", "make the layer in __init__ and call it in forward", _made_in_forward),
    Rule("dropout-always-on", "model", "the outputs of evaluation are random, and worse than the model is", "give training=self.training, or use nn.Dropout", _dropout_always),
    Rule("not-a-parameter", "model", "the tensor keeps its first values", "write self.x = nn.Parameter(tensor), with what is computed inside the brackets", _not_a_parameter),
    Rule("weights-all-alike", "model", "all units of a layer compute the same and get the same gradient, so the layer is as wide as one unit", "draw the weights at random; only biases may be constant", _constant_weights),
    Rule("values-of-another-range", "model", "the loss or distribution takes these values for something else, and its gradients are wrong or small", "give it what it takes", _wrong_range),
    Rule("no-activation-between", "model", "the second layer adds no depth to the first", "put an activation in between", _linear_twice),
    Rule("shared-tensor-changed", "model", "what was kept for later (a residual, a shortcut) is no longer what it was", "write x = x + y instead of x += y, or keep x.clone()", _alias_changed),
    *AXES,
)
