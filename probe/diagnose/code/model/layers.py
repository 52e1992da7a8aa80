"""Layers that are not registered, are one layer, or are made anew; weights that start alike. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.model.modules import forwards, module_classes
from probe.diagnose.code.origins import Trace, trace
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rule
from probe.diagnose.code.syntax import (
    Function,
    argument,
    is_attribute,
    is_binary,
    is_call,
    is_method,
    is_name,
    is_own,
    is_true,
    mentions,
    own,
    own_nodes,
    short,
    text_of,
)

_RANDOM = ("Dropout", "AlphaDropout", "FeatureAlphaDropout")
_BY_HAND = ("weight", "bias", "load_state_dict", "train", "eval", "parameters", "training")
"""Attributes of a layer through which a program gives it weights or a mode of its own."""
_MIXES = (
    "Linear",
    "Conv",
    "LSTM",
    "GRU",
    "RNN",
    "Embedding",
    "Bilinear",
    "Transformer",
    "Multihead",
    "LazyLinear",
)
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
            name = program.called(node)
            last = name.removeprefix("torch.nn.")
            if name == f"torch.nn.{last}" and (last.startswith(_MIXES) or last == "Parameter"):
                return True
            other = program.classes[name][0] if depth and name in program.classes else of
            if other is not of and program.is_module_class(other) and _has_layers(program, other, depth - 1):
                return True
    return False


def _unregistered(program: Program) -> Iterator[Remark]:
    for of in module_classes(program):
        nodes = list(ast.walk(of))
        if any(is_attribute(node, "add_module", "register_module") for node in nodes):
            continue
        if any(is_name(node, "setattr") for node in nodes):
            continue
        for node in nodes:
            kept = _kept_in_list(program, node)
            if kept is None:
                continue
            name, layer = kept
            if _given_to_container(program, name):
                continue
            said = (
                f"self.{name} keeps its {layer} layers in a Python list or dict, which does not register them"
            )
            yield Remark(node, said)


def _kept_in_list(program: Program, node: ast.AST) -> tuple[str, str] | None:
    """The attribute of self that is a plain list or dict of new layers, and their class."""
    value: ast.AST | None = None
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and is_own(node.targets[0]):
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
    elif isinstance(node, ast.Expr) and is_method(node.value):
        call = node.value
        assert is_method(call)
        if call.func.attr != "append" or not is_own(call.func.value) or len(call.args) != 1:
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
    """Whether a list of that name is registered after all, or its parameters are given away by hand."""
    for call in program.calls():
        if (program.called(call) in _CONTAINERS or (is_method(call, "parameters"))) and mentions(call, name):
            return True
    for node in program.everywhere(ast.For, ast.comprehension):
        assert isinstance(node, (ast.For, ast.comprehension))
        loops_over = mentions(node.iter, name)
        around = program.parent.get(node, node)
        if loops_over and mentions(around, "parameters"):
            return True
    return False


def _one_layer(program: Program) -> Iterator[Remark]:
    known = trace(program)
    for node in program.everywhere(ast.BinOp, ast.ListComp):
        element: ast.AST | None = None
        if is_binary(node, ast.Mult):
            made = node.left if isinstance(node.left, ast.List) else node.right
            if isinstance(made, ast.List) and len(made.elts) == 1:
                element = made.elts[0]
        elif isinstance(node, ast.ListComp) and isinstance(node.elt, ast.Name):
            targets = {
                one.id
                for part in node.generators
                for one in ast.walk(part.target)
                if isinstance(one, ast.Name)
            }
            over = node.generators[0].iter
            counted = is_call(over, "range")
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
            yield Remark(
                node, f"{short(node)} is one {layer} layer several times: all entries share the same weights"
            )


def _in_container(program: Program, node: ast.AST) -> bool:
    around = program.parent.get(node)
    if isinstance(around, ast.Starred):
        around = program.parent.get(around)
    return program.called(around) in _CONTAINERS


def _made_in_forward(program: Program) -> Iterator[Remark]:
    known = trace(program)
    for method in forwards(program):
        for call in own(method, ast.Call):
            name = program.called(call)
            layer = _layer(program, call)
            random = name.removeprefix("torch.nn.").startswith(_RANDOM) and name.startswith("torch.nn.")
            if layer is None and not random:
                continue
            around = program.parent.get(call)
            applied = isinstance(around, ast.Call) and around.func is call
            kept = around.targets[0] if isinstance(around, ast.Assign) and len(around.targets) == 1 else None
            if isinstance(kept, ast.Name):
                applied = _applied(program, known, method, kept.id)
            elif kept is not None and is_own(kept):
                applied = not any(
                    isinstance(one, (ast.If, ast.Try))
                    for one in program.parents(around or call)
                    if one is not method
                )
            if not applied:
                continue
            if random:
                yield Remark(
                    call,
                    f"{short(call)} is made in {method.name}: a new module is in training mode, "
                    "so it drops in evaluation too",
                )
            else:
                yield Remark(
                    call,
                    f"{layer} is made in {method.name}: it has new random weights in each call, and they "
                    "are in no optimizer",
                )


def _applied(program: Program, known: Trace, method: Function, name: str) -> bool:
    """Whether a local layer is called, and its weights are not set by hand before."""
    used = False
    for node in own_nodes(method):
        if is_call(node, name):
            used = True
        of = node.value if is_attribute(node, *_BY_HAND) else None
        if is_name(of, name):
            return False
    return used and len(known.all(method, name)) == 1


def _dropout_always(program: Program) -> Iterator[Remark]:
    for call in program.calls():
        name = program.called(call)
        if not name.startswith("torch.nn.functional.") or not name.endswith(
            ("dropout", "dropout1d", "dropout2d", "dropout3d")
        ):
            continue
        of = program.class_of(call)
        if of is None or not program.is_module_class(of) or argument(call, "training", 2) is not None:
            continue
        if any(one.arg is None for one in call.keywords) or "training" in text_of(call):
            continue
        guards = [one.test for one in program.parents(call) if isinstance(one, (ast.If, ast.IfExp))]
        if any("training" in text_of(test) for test in guards) or program.function_name(call) in (
            "training_step",
        ):
            continue
        probability = argument(call, "p", 1)
        if isinstance(probability, ast.Constant) and not probability.value:
            continue
        yield Remark(call, f"{short(call)} has no training=self.training: it drops in evaluation too")


def _not_a_parameter(program: Program) -> Iterator[Remark]:
    for of in module_classes(program):
        for node in ast.walk(of):
            if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not is_own(node.targets[0]):
                continue
            target, value = node.targets[0], node.value
            assert isinstance(target, ast.Attribute)
            if program.function_name(node) != "__init__" or _optimized_by_hand(program, target.attr):
                continue
            made = _parameter_inside(program, value)
            if made is not None:
                said = (
                    f"self.{target.attr} = {short(value)} is a tensor computed from a Parameter "
                    "and no Parameter itself"
                )
                yield Remark(node, f"{said}: it is not registered, and the optimizer never sees it")
            elif isinstance(value, ast.Call) and program.called(value).startswith(
                ("torch.", "torch.autograd.Variable")
            ):
                flag = argument(value, "requires_grad")
                if (
                    is_true(flag)
                    and program.family(value) in ("tensor", None)
                    and not program.called(value).startswith("torch.nn.")
                ):
                    yield Remark(
                        node,
                        f"self.{target.attr} is a plain tensor that requires a gradient: it is no "
                        "Parameter, and parameters() leaves it out",
                    )


def _parameter_inside(program: Program, value: ast.AST) -> ast.AST | None:
    """The nn.Parameter(...) that a chain of methods or a product is computed from."""
    at: ast.AST = value
    changed = False
    while True:
        if program.called(at) == "torch.nn.Parameter":
            return at if changed else None
        if is_method(
            at, "cuda", "half", "view", "reshape", "unsqueeze", "double", "expand", "repeat", "t", "transpose"
        ):
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
        if node.attr != name or isinstance(node.ctx, ast.Store):
            continue
        for around in program.parents(node):
            if isinstance(around, (ast.List, ast.Dict)) or (
                isinstance(around, (ast.Return, ast.Yield)) and "param" in (program.function_name(node) or "")
            ):
                return True
            if isinstance(around, ast.Call) and program.called(around).startswith(
                ("torch.optim", "torch.nn.Parameter", "torch.autograd.grad")
            ):
                return True
            if isinstance(around, ast.stmt):
                break
    return False


def _constant_weights(program: Program) -> Iterator[Remark]:
    for call in program.calls():
        name = program.called(call)
        target: ast.AST | None = None
        if name in ("torch.nn.init.zeros_", "torch.nn.init.ones_", "torch.nn.init.constant_") and call.args:
            target = call.args[0]
        elif is_method(call, "fill_", "zero_"):
            target = call.func.value
        while is_attribute(target, "data"):
            target = target.value
        if not is_attribute(target, "weight") or not isinstance(target.value, ast.Name):
            continue
        module = target.value.id
        guard = next((one for one in program.parents(call) if isinstance(one, ast.If)), None)
        if guard is None or call not in [one for part in guard.body for one in ast.walk(part)]:
            continue
        loop = next((one for one in program.parents(guard) if isinstance(one, ast.For)), None)
        if loop is not None and is_method(loop.iter) and not isinstance(loop.iter.func.value, ast.Name):
            continue  # over a part of the model
        classes = _isinstance_of(program, guard.test, module)
        hidden = [one for one in classes if one.removeprefix("torch.nn.").startswith(("Linear", "Conv"))]
        if not hidden or len(hidden) != len(classes):
            continue
        again = [
            one
            for one in program.calls()
            if program.function_of(one) is program.function_of(call)
            and one is not call
            and program.called(one).startswith("torch.nn.init.")
            and any(text_of(arg).startswith(f"{module}.weight") for arg in one.args)
            and one.lineno > call.lineno
            and any(part is guard for part in program.parents(one))
        ]
        made = sum(1 for one in program.calls() if program.called(one) in hidden)
        if made >= 2 and not again:
            yield Remark(
                call,
                f"{short(call)} gives all weights of each {hidden[0].removeprefix('torch.nn.')} "
                "layer the same value, so its units stay equal",
            )


def _isinstance_of(program: Program, test: ast.AST, name: str) -> list[str]:
    if not is_call(test, "isinstance") or len(test.args) != 2:
        return []
    if not is_name(test.args[0], name):
        return []
    of = test.args[1]
    parts = of.elts if isinstance(of, ast.Tuple) else [of]
    while len(parts) == 1 and isinstance(parts[0], ast.BinOp):
        parts = [parts[0].left, parts[0].right]
    return [program.dotted(one) or "" for one in parts]


RULES: tuple[Rule, ...] = (
    Rule(
        "layers-not-registered",
        "model",
        "parameters(), to() and state_dict() leave these layers out: no optimizer trains them",
        "use nn.ModuleList or nn.ModuleDict",
        _unregistered,
    ),
    Rule(
        "one-layer-many-times",
        "model",
        "the model has one layer's parameters where several were meant",
        "make each layer anew: nn.ModuleList([Layer(...) for _ in range(n)])",
        _one_layer,
    ),
    Rule(
        "layer-made-in-forward",
        "model",
        "what it does in one step has nothing to do with the next",
        "make the layer in __init__ and call it in forward",
        _made_in_forward,
    ),
    Rule(
        "dropout-always-on",
        "model",
        "the outputs of evaluation are random, and worse than the model is",
        "give training=self.training, or use nn.Dropout",
        _dropout_always,
    ),
    Rule(
        "not-a-parameter",
        "model",
        "the tensor keeps its first values",
        "write self.x = nn.Parameter(tensor), with what is computed inside the brackets",
        _not_a_parameter,
    ),
    Rule(
        "weights-all-alike",
        "model",
        "all units of a layer compute the same and get the same gradient, so the layer is as wide as one "
        "unit",
        "draw the weights at random; only biases may be constant",
        _constant_weights,
    ),
)
