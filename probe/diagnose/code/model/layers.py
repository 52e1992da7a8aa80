"""Layers that are not registered, are one layer, or are made anew. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import origins
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.model.modules import forwards, module_classes
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
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
    names_of,
    own,
    own_nodes,
    short,
    text_of,
)

RULES = Rules("model")

_RANDOM = ("Dropout", "AlphaDropout", "FeatureAlphaDropout")
_BY_HAND = ("weight", "bias", "load_state_dict", "train", "eval", "parameters", "training")
"""Attributes of a layer through which a program gives it weights or a mode of its own."""
_MIXES = (
    "Linear", "Conv", "LSTM", "GRU", "RNN", "Embedding", "Bilinear", "Transformer", "Multihead",
    "LazyLinear",
)
"""Beginnings of the layers of torch.nn whose first weights are drawn at random."""
_NO_PARAMETER = (
    "cuda", "half", "view", "reshape", "unsqueeze", "double", "expand", "repeat", "t", "transpose",
)
"""Methods of a Parameter that give a plain tensor."""
_MAY_BE_ITSELF = ("to", "float", "requires_grad_", "cpu", "contiguous")
"""Methods that give the Parameter itself, where there is nothing to do."""
_CONTAINERS = ("torch.nn.Sequential", "torch.nn.ModuleList", "torch.nn.ModuleDict")


def layer_of(program: Program, node: ast.AST | None) -> str | None:
    """The class of a layer with parameters that a call makes; None for all else."""
    name = program.called(node)
    if name in program.classes:
        of = program.classes[name][0]
        return name if program.is_module_class(of) and _has_layers(program, of, 4) else None
    if name == "torch.nn.Sequential" and isinstance(node, ast.Call):
        return next((found for one in node.args if (found := layer_of(program, one))), None)
    last = name.removeprefix("torch.nn.")
    return last if name == f"torch.nn.{last}" and last.startswith(_MIXES) else None


def _has_layers(program: Program, of: ast.ClassDef, depth: int) -> bool:
    for node in ast.walk(of):
        name = program.called(node)
        last = name.removeprefix("torch.nn.")
        if name == f"torch.nn.{last}" and last.startswith((*_MIXES, "Parameter")):
            return True
        other = program.classes[name][0] if depth and name in program.classes else of
        if other is not of and program.is_module_class(other) and _has_layers(program, other, depth - 1):
            return True
    return False


@RULES.add(
    "layers-not-registered",
    "parameters(), to() and state_dict() leave these layers out: no optimizer trains them",
    "use nn.ModuleList or nn.ModuleDict",
)
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
                f"self.{name} keeps its {layer} in a Python list or dict, which does not register them"
            )
            yield Remark(node, said)


def _kept_in_list(program: Program, node: ast.AST) -> tuple[str, str] | None:
    """The attribute of self that is a plain list or dict of new layers, and their class."""
    target: ast.expr
    elements: list[ast.AST]
    filled = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    if isinstance(node, ast.Assign) and isinstance(filled, ast.Subscript) and is_own(filled.value):
        target, elements = filled.value, [node.value]
        if program.family(target) != "tuple":
            return None
    elif isinstance(node, ast.Assign) and len(node.targets) == 1:
        target, value = node.targets[0], node.value
        elements = []
        if isinstance(value, (ast.List, ast.Tuple)):
            elements = list(value.elts)
        elif isinstance(value, ast.Dict):
            elements = list(value.values)
        elif isinstance(value, ast.ListComp):
            elements = [value.elt]
        elif isinstance(value, ast.DictComp):
            elements = [value.value]
        elif isinstance(value, ast.Name):
            elements = _gathered(program, value)
    elif isinstance(node, ast.Expr) and is_method(node.value, "append") and len(node.value.args) == 1:
        target, elements = node.value.func.value, [*node.value.args]
        if program.family(target) != "tuple":
            return None
    else:
        return None
    kinds = ((layer_of(program, one), _parameter(program, one)) for one in elements)
    layer = next((f"{found} layers" if found else other for found, other in kinds if found or other), None)
    return (target.attr, layer) if layer is not None and is_own(target) else None


def _parameter(program: Program, node: ast.AST) -> str | None:
    plain = program.called(node) == "torch.nn.Parameter" and not getattr(node, "keywords", [])
    return "Parameters" if plain else None


def _gathered(program: Program, node: ast.Name) -> list[ast.AST]:
    """What is in a local list that is only filled and then kept: it is read for nothing else."""
    scope = program.scope(node)
    found: list[ast.AST] = []
    for one in own_nodes(scope):
        if not is_name(one, node.id) or one is node:
            continue
        around = program.parent.get(one)
        call = program.parent.get(around) if around is not None else None
        if isinstance(around, ast.Assign) and isinstance(around.value, (ast.List, ast.ListComp)):
            found += around.value.elts if isinstance(around.value, ast.List) else [around.value.elt]
        elif is_attribute(around, "append") and isinstance(call, ast.Call) and len(call.args) == 1:
            found.append(call.args[0])
        else:
            return []
    return found


def _given_to_container(program: Program, name: str) -> bool:
    """Whether a list of that name is registered after all, or its parameters are given away by hand."""
    for call in program.calls():
        if (program.called(call) in _CONTAINERS or is_method(call, "parameters")) and mentions(call, name):
            return True
    for node in program.everywhere(ast.For, ast.comprehension):
        iterated = isinstance(node, (ast.For, ast.comprehension)) and mentions(node.iter, name)
        if iterated and mentions(program.parent.get(node, node), "parameters"):
            return True
    return False


def _has_weights_beside(program: Program, node: ast.AST) -> bool:
    """Whether the list that an expression fills is gone over together with parameters: one layer run in
    several rounds, each with weights of its own beside it."""
    kept = next((one for one in program.parents(node) if isinstance(one, ast.Assign)), None)
    named = text_of(kept.targets[0]) if kept is not None else ""
    for call in program.calls():
        given = [text_of(one) for one in call.args] if is_call(call, "zip") else []
        if named in given:
            return any(
                program.called(one.value) == "torch.nn.Parameter" and text_of(one.targets[0]) in given
                for one in program.everywhere(ast.Assign)
            )
    return False


@RULES.add(
    "one-layer-many-times", "the model has one layer's parameters where several were meant",
    "make each layer anew: nn.ModuleList([Layer(...) for _ in range(n)])",
)
def _one_layer(program: Program) -> Iterator[Remark]:
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp, ast.ListComp):
        element: ast.AST | None = None
        if is_binary(node, ast.Mult):
            made = node.left if isinstance(node.left, ast.List) else node.right
            if isinstance(made, ast.List) and len(made.elts) == 1:
                element = made.elts[0]
        elif isinstance(node, ast.ListComp) and isinstance(node.elt, ast.Name):
            free = not any(node.elt.id in names_of(part.target) for part in node.generators)
            element = node.elt if free and is_call(node.generators[0].iter, "range") else None
        if element is None:
            continue
        layer = layer_of(program, flow.value(element))
        if layer is None and isinstance(element, ast.Name):
            name = program.kind_name(element)
            of_program = name in program.classes and program.family(element) == "module"
            if of_program and _in_container(program, node):
                layer = name if _has_layers(program, program.classes[name][0], 4) else None
        if layer is not None and not _has_weights_beside(program, node) and not _is_chosen(program, node):
            yield Remark(
                node, f"{short(node)} is one {layer} layer several times: all entries share the same weights"
            )


def _is_chosen(program: Program, node: ast.AST) -> bool:
    """Whether a setting chooses between one layer many times and a layer for each place."""
    for around in program.parents(node):
        branches: list[ast.AST] = []
        if isinstance(around, ast.IfExp):
            branches = [around.body, around.orelse]
        elif isinstance(around, ast.If) and around.orelse:
            branches = [*around.body, *around.orelse]
        parts = [part for branch in branches for part in ast.walk(branch)]
        each = [part.elt for part in parts if isinstance(part, (ast.ListComp, ast.GeneratorExp))]
        if any(isinstance(one, ast.Call) for one in each):
            return True
        if isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
    return False


def _in_container(program: Program, node: ast.AST) -> bool:
    around = program.parent.get(node)
    if isinstance(around, ast.Starred):
        around = program.parent.get(around)
    return program.called(around) in _CONTAINERS


@RULES.add(
    "layer-made-in-forward", "what it does in one step has nothing to do with the next",
    "make the layer in __init__ and call it in forward",
)
def _made_in_forward(program: Program) -> Iterator[Remark]:
    flow = flow_of(program)
    for method in forwards(program):
        for call in own(method, ast.Call):
            name = program.called(call)
            layer = layer_of(program, call)
            random = name.removeprefix("torch.nn.").startswith(_RANDOM) and name.startswith("torch.nn.")
            if layer is None and not random:
                continue
            around = program.parent.get(call)
            applied = isinstance(around, ast.Call) and around.func is call
            kept = around.targets[0] if isinstance(around, ast.Assign) and len(around.targets) == 1 else None
            if isinstance(kept, ast.Name):
                applied = _applied(flow, method, kept.id)
            elif kept is not None and is_own(kept):
                applied = not any(isinstance(one, (ast.If, ast.Try)) for one in program.parents(call))
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


def _applied(flow: Flow, method: Function, name: str) -> bool:
    """Whether a local layer is called, and its weights are not set by hand before."""
    used = False
    for node in own_nodes(method):
        if is_call(node, name):
            used = True
        of = node.value if is_attribute(node, *_BY_HAND) else None
        if is_name(of, name):
            return False
    return used and len(flow.bound.get((method, name), [])) == 1


def _asks_for_training(program: Program, call: ast.Call) -> bool:
    """Whether the share that an attention drops depends on the model's mode, wherever it is computed."""
    attentions = computation_of(program).of("scaled_dot_product_attention")
    shares = [one.argument("dropout_p", 4) for one in attentions if one.node is call]
    return any(each.op == "training" for share in shares if share is not None for each in origins(share))


@RULES.add(
    "dropout-always-on", "the outputs of evaluation are random, and worse than the model is",
    "give training=self.training, or use nn.Dropout",
)
def _dropout_always(program: Program) -> Iterator[Remark]:
    flow = flow_of(program)
    for call in program.calls():
        name = program.called(call)
        attends = name.endswith("scaled_dot_product_attention")
        drops = attends or name.endswith(("dropout", "dropout1d", "dropout2d", "dropout3d"))
        if not drops or not name.startswith("torch.nn.functional."):
            continue
        of = program.class_of(call)
        if of is None or not program.is_module_class(of):
            continue
        if not attends and argument(call, "training", 2) is not None:
            continue
        if any(one.arg is None for one in call.keywords) or "training" in text_of(call):
            continue
        guards = [one.test for one in program.parents(call) if isinstance(one, (ast.If, ast.IfExp))]
        if program.function_name(call) == "training_step" or any(
            "training" in text_of(one) for one in guards
        ):
            continue
        probability = argument(call, "dropout_p", 4) if attends else argument(call, "p", 1)
        if isinstance(probability, ast.Constant) and not probability.value:
            continue
        if not attends:
            yield Remark(call, f"{short(call)} has no training=self.training: it drops in evaluation too")
        elif probability is not None:
            given = [one for one in (probability, *flow.values(flow.key(probability))) if one is not None]
            asks = any("training" in text_of(part) for one in given for part in flow.origins(one))
            if not asks and not _asks_for_training(program, call):
                yield Remark(call, f"{short(call)} drops with {short(probability)} in evaluation too")


@RULES.add(
    "not-a-parameter", "the tensor keeps its first values",
    "write self.x = nn.Parameter(tensor), with what is computed inside the brackets",
)
def _not_a_parameter(program: Program) -> Iterator[Remark]:
    for of in module_classes(program):
        for node in ast.walk(of):
            if not isinstance(node, ast.Assign) or len(node.targets) != 1:
                continue
            target, value = node.targets[0], node.value
            if not is_own(target) or program.function_name(node) != "__init__":
                continue
            if _optimized_by_hand(program, target.attr):
                continue
            if _parameter_inside(program, value):
                said = (
                    f"self.{target.attr} = {short(value)} is a tensor computed from a Parameter "
                    "and no Parameter itself"
                )
                yield Remark(node, f"{said}: it is not registered, and the optimizer never sees it")
            elif isinstance(value, ast.Call) and is_true(argument(value, "requires_grad")):
                name, plain = program.called(value), program.family(value) in ("tensor", None)
                if plain and name.startswith("torch.") and not name.startswith("torch.nn."):
                    yield Remark(
                        node,
                        f"self.{target.attr} is a plain tensor that requires a gradient: it is no "
                        "Parameter, and parameters() leaves it out",
                    )


def _parameter_inside(program: Program, value: ast.AST) -> bool:
    """Whether a chain of methods or products is computed from an nn.Parameter(...)."""
    at, changed = value, False
    while program.called(at) != "torch.nn.Parameter":
        if is_method(at, *_NO_PARAMETER):
            at, changed = at.func.value, True
        elif is_method(at, *_MAY_BE_ITSELF):
            moved = at.func.attr == "to" and len(at.args) == 1 and _is_other_device(program, at.args[0])
            at, changed = at.func.value, changed or moved
        elif isinstance(at, ast.BinOp):
            at, changed = at.left if isinstance(at.left, ast.Call) else at.right, True
        else:
            return False
    return at is not value and changed


def _is_other_device(program: Program, node: ast.AST) -> bool:
    """Whether a device is, or may be, that of a GPU."""
    made = flow_of(program).value(node) if isinstance(node, ast.expr) else None
    words = [one.value for one in ast.walk(made or node) if isinstance(one, ast.Constant)]
    return any(isinstance(one, str) and one.startswith("cuda") for one in words)


def _optimized_by_hand(program: Program, name: str) -> bool:
    """Whether an attribute of that name is registered, or given to an optimizer by name."""
    for node in program.everywhere(ast.Attribute):
        if node.attr != name or isinstance(node.ctx, ast.Store):
            continue
        for around in program.parents(node):
            if program.called(around).startswith(
                ("torch.optim", "torch.nn.Parameter", "torch.autograd.grad")
            ):
                return True
            given = isinstance(around, (ast.Return, ast.Yield)) and "param" in (
                program.function_name(node) or ""
            )
            if given or isinstance(around, (ast.List, ast.Dict)):
                return True
            if isinstance(around, ast.stmt):
                break
    return False


@RULES.add(
    "weights-all-alike",
    "all units of a layer compute the same and get the same gradient, so the layer is as wide as one unit",
    "draw the weights at random; only biases may be constant",
)
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
        again = any(
            isinstance(one, ast.Call)
            and one.lineno > call.lineno
            and program.called(one).startswith("torch.nn.init.")
            and any(text_of(arg).startswith(f"{module}.weight") for arg in one.args)
            for one in ast.walk(guard)
        )
        made = sum(program.called(one) in hidden for one in program.calls())
        if made >= 2 and not again:
            yield Remark(
                call,
                f"{short(call)} gives all weights of each {hidden[0].removeprefix('torch.nn.')} "
                "layer the same value, so its units stay equal",
            )


def _isinstance_of(program: Program, test: ast.AST, name: str) -> list[str]:
    if not is_call(test, "isinstance") or len(test.args) != 2 or not is_name(test.args[0], name):
        return []
    of = test.args[1]
    parts = of.elts if isinstance(of, ast.Tuple) else [of]
    while len(parts) == 1 and isinstance(parts[0], ast.BinOp):
        parts = [parts[0].left, parts[0].right]
    return [program.dotted(one) or "" for one in parts]
