"""Layers and parameters of a model: what they start with, and whether an optimizer sees them. Pure; standard library only."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    Instance,
    Many,
    Value,
    bare,
    constant,
    is_none,
    number,
    origins,
    same,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import Function, is_call, last_word, short

FINDERS = Finders()
_LEARNED = ("Linear", "Conv", "Bilinear", "LSTM", "GRU", "RNN", "Embedding", "MultiheadAttention", "Transformer", "BatchNorm", "LayerNorm", "GroupNorm")
_UNITS = ("torch.nn.Linear", "torch.nn.Conv")
_BETWEEN = ("relu", "gelu", "silu", "tanh", "sigmoid", "leaky_relu", "elu", "softplus", "dropout", "hardtanh", "mish", "transpose", "t", "permute")
_TURNED = ("part", "t", "transpose", "permute", "matrix_transpose", "mT", "T", "float", "mul_scalar")
_MADE = frozenset({"zeros", "ones", "rand", "randn", "full", "empty", "tensor", "eye", "zeros_like", "ones_like", "randn_like", "rand_like", "linspace", "arange", "normal"})
_STARTED = ("normal", "uniform", "trunc_normal_", "xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_", "orthogonal_", "eye_", "dirac_", "sparse_", "zero", "fill", "constant_", "zeros_", "ones_", "copy")
"""Operations that give a weight its first values."""
_DRAWS = ("rand", "rand_like", "bernoulli", "uniform", "random")


def _is_learned(value: Value, depth: int = 5) -> bool:
    """Whether a layer, or one of its parts, has weights."""
    if isinstance(value, Instance):
        return depth > 0 and any(_is_learned(one, depth - 1) for one in value.attributes.values() if one is not value)
    if value.op in ("torch.nn.Sequential", "torch.nn.ModuleList"):
        return depth > 0 and any(_is_learned(one, depth - 1) for one in value.args)
    return value.op.startswith("torch.nn.") and value.op[9:].startswith(_LEARNED)


def _name_of(layer: Value) -> str:
    """What a layer is called."""
    return layer.of.name if isinstance(layer, Instance) and layer.of is not None else layer.op.removeprefix("torch.nn.")


# Layers that are made in the wrong place ----------------------------------------


@FINDERS.add("one-layer-many-times")
def _many_times(program: Program) -> Iterator[Remark]:
    """A container is filled in a loop with a layer that was made before the loop."""
    computation = computation_of(program)
    for container in computation.of("torch.nn.Sequential", "torch.nn.ModuleList"):
        if not isinstance(container.node, ast.Call) or last_word(container.node.func) not in ("Sequential", "ModuleList"):
            continue  # a copy
        for listed in [one.args[0] for one in container.args if one.op in ("star", "collections.OrderedDict")] or [container]:
            parts = listed.parts if isinstance(listed, Many) else listed.args
            grown = listed.grown if isinstance(listed, Many) else bool(listed.data)
            parts = [one.parts[1] if isinstance(one, Many) and len(one.parts) == 2 and listed is not container else one for one in parts]  # a name and a layer
            if not grown or len(parts) != 1 or parts[0].where.loops != listed.where.loops or not _is_layer(program, parts[0]):
                continue
            if any(one.op == "zip" and any(each.op == "torch.nn.Parameter" for each in one.args) for one in computation.users(container)):
                continue  # one layer that is run in several rounds, each with weights of its own beside it
            if _is_learned(parts[0]) and _is_added_in_a_loop(parts[0], container, computation) and not any(one.op == "set_attribute" and one.args[1] is parts[0] for one in computation.users(parts[0])):
                yield Remark(container.node, f"{short(container.node)} holds one {_name_of(parts[0])} many times: it is made once, in line {parts[0].line}")


def _is_added_in_a_loop(part: Value, container: Value, computation: Computation) -> bool:
    """Whether a loop appends a layer, or a list or a comprehension repeats it."""
    appended = [one for one in computation.users(part) if one.op == "append"]
    repeated = (ast.BinOp, ast.ListComp, ast.GeneratorExp)
    lists = [one.node for one in computation.users(part) if isinstance(one, Many)]
    return any(one.where.loops != part.where.loops for one in appended) or (
        not appended and any(isinstance(one, repeated) for one in [*lists, *ast.walk(container.node)])
    )


def _is_layer(program: Program, value: Value) -> bool:
    """Whether a value is a layer, of torch or of the program."""
    if isinstance(value, Instance):
        return value.of is not None and program.is_module_class(value.of)
    return value.op.startswith("torch.nn.")


@FINDERS.add("layer-made-in-forward")
def _made_in_forward(program: Program) -> Iterator[Remark]:
    """A layer with weights is made while a model runs, is applied, and is kept nowhere."""
    computation = computation_of(program)
    seen: set[ast.AST] = set()
    for used in computation.of("run"):
        layer = used.args[0]
        running = [one for one in layer.where.functions if isinstance(one, Function) and one.name == "forward" and _of_module(program, one)]
        if not running or layer.node in seen or layer.where.no_grad or not layer.op.startswith("torch.nn.") or not _is_learned(layer):
            continue
        if any(isinstance(one, Function) and one.name == "__init__" for one in layer.where.functions[layer.where.functions.index(running[0]):]):
            continue
        if {one.op for one in computation.users(layer)} <= {"run", "to", "cuda", "type", "float", "half"}:
            seen.add(layer.node)
            yield Remark(layer.node, f"{short(layer.node)} is made each time that {running[0].name} runs: its weights are new each time, and no optimizer has them")


def _of_module(program: Program, function: Function) -> bool:
    of = program.class_of(function)
    return of is not None and program.is_module_class(of)


@FINDERS.add("not-a-parameter")
def _not_a_parameter(program: Program) -> Iterator[Remark]:
    """A module keeps a tensor that asks for a gradient, is no Parameter, and is given to no optimizer."""
    computation = computation_of(program)
    optimizers = [value for value in computation.values if value.op.startswith("torch.optim.") and value.args]
    if not optimizers:
        return
    given = {id(one) for optimizer in optimizers for one in origins(optimizer)}
    seen: set[ast.AST] = set()
    for kept in computation.of("set_attribute"):
        on, value = kept.args[0], kept.args[1]
        if not isinstance(on, Instance) or on.of is None or not program.is_module_class(on.of) or kept.node in seen or not _wants_gradient(value):
            continue
        if id(value) in given or any(one.op in ("grad", "register_buffer", "torch.nn.Parameter", "torch.nn.ParameterList", "setattr") for one in computation.users(value)):
            continue
        if any(id(bare(one)) == id(value) for one in computation.of("grad") for one in one.made_of()):
            continue
        seen.add(kept.node)
        yield Remark(kept.node, f"{short(kept.node)} is a plain tensor that asks for a gradient (line {value.line}): parameters() leaves it out")


def _wants_gradient(value: Value) -> bool:
    """Whether a value is a new tensor that was told to keep its gradient."""
    wants, at = False, value
    while at.args:
        if at.op == "torch.nn.Parameter":
            return False
        wants = wants or constant(at.named.get("requires_grad")) is True or (at.op == "requires_grad_" and (len(at.args) < 2 or constant(at.args[1]) is not False) and not at.named)
        if at.op in _MADE:
            return wants
        if at.op not in ("requires_grad_", "to", "float", "double", "cuda", "mul", *_STARTED) or (at.op == "mul" and wants):
            return False
        at = at.args[1] if at.op == "mul" and number(at.args[0]) is not None else at.args[0]
    return False


# Dropout ------------------------------------------------------------------------------


@FINDERS.add("dropout-always-on")
def _always_drops(program: Program) -> Iterator[Remark]:
    """A model multiplies by a random mask and divides by the share that is kept, whether it trains or not."""
    computation = computation_of(program)
    asks = {function for value in computation.of("training") for function in value.where.functions}
    seen: set[ast.AST] = set()
    for value in computation.of("div", "mul"):
        inside = [one for one in value.where.functions if isinstance(one, Function) and _of_module(program, one)]
        if len(value.args) != 2 or not inside or inside[-1].name != "forward" or asks & {*value.where.functions} or value.where.maybe or value.node in seen:
            continue
        masks = [mask for mask in _factors(value.args[0]) if _is_drawn_mask(mask)]
        by = bare(value.args[1])
        if masks and value.op == "div" and by.op in ("sub", "@constant", "attribute", "keep") and not _mentions_rate_only_here(by):
            seen.add(value.node)
            yield Remark(value.node, f"{short(value.node)} drops at random (line {masks[0].line}) and does not ask whether the model is training")


@FINDERS.add("dropout-always-on")
def _drops_in_a_function(program: Program) -> Iterator[Remark]:
    """A function that a model calls drops at random, and is not told whether the model is training."""
    computation = computation_of(program)
    asks = {function for value in computation.of("training") for function in value.where.functions}
    seen: set[ast.AST] = set()
    for value in computation.of("dropout", "scaled_dot_product_attention"):
        node, inside = value.node, [one for one in value.where.functions if isinstance(one, Function) and _of_module(program, one)]
        if not isinstance(node, ast.Call) or not program.called(node).startswith("torch.nn.functional.") or program.class_of(node) is not None or node in seen:
            continue
        attends = value.op != "dropout"
        told = value.argument("training", 2) is not None or any(one.arg is None for one in node.keywords) or number(value.argument("p", 1)) == 0
        told = not number(value.argument("dropout_p", 4)) if attends else told
        if inside and inside[-1].name == "forward" and not told and not asks & {*value.where.functions} and not value.where.maybe:
            seen.add(node)
            yield Remark(node, f"{short(node)} {'drops' if attends else 'has no training=: it drops'} in evaluation too")


def _mentions_rate_only_here(by: Value) -> bool:
    """Whether what is divided by is no share that is kept: 1 - p, or a number below 1."""
    share = number(by)
    if share is not None:
        return not 0 < share < 1
    return not (by.op == "sub" and number(by.args[0]) == 1)


def _factors(value: Value) -> Iterator[Value]:
    """The factors of a product."""
    value = bare(value)
    if value.op == "mul" and len(value.args) == 2:
        for one in value.args:
            yield from _factors(one)
    else:
        yield value


def _is_drawn_mask(value: Value) -> bool:
    """Whether a value is 0 or 1 at random."""
    value = bare(value)
    if value.op in ("lt", "gt", "le", "ge") and len(value.args) == 2:
        return any(bare(one).op in ("rand", "rand_like", "uniform") for one in value.args)
    return value.op == "bernoulli" or (value.op == "floor" and any(one.op in ("rand", "rand_like") for one in origins(value)))


# First values ------------------------------------------------------------------------------


def _first_values(computation: Computation) -> dict[int, tuple[Value, float | None, Value]]:
    """What layers and parameters start with, by their identity: the layer, the one number of all its weights (None:
    they differ; nan: not known), and where they get it."""
    found: dict[int, tuple[Value, float | None, Value]] = {}
    for value in computation.values:
        if value.op == "torch.nn.Parameter" and value.args:
            found[id(value)] = (value, _one_number(value.args[0]) if _is_table(value.args[0]) else None, value)
        elif value.op in _STARTED and value.args:
            owner = _owner(value.args[0])
            if owner is not None:
                found[id(owner)] = (owner, None if value.where.maybe and not owner.where.maybe else _one_number(value), value)
        elif value.op == "set_attribute" and value.data == "weight" and value.args[0].op.startswith("torch.nn."):
            owner = value.args[0]
            found[id(owner)] = (owner, None if value.where.maybe and not owner.where.maybe else _one_number(value.args[1]), value)
        elif value.op == "load_state_dict":
            return {}
    return found


def _owner(target: Value) -> Value | None:
    """The parameter, or the layer whose weight, a value is."""
    target = bare(target)
    if target.op == "weight" and target.args:
        return target.args[0]
    return target if target.op == "torch.nn.Parameter" else None


def _is_table(value: Value) -> bool:
    """Whether a new tensor has two axes or more, as far as its making shows."""
    value = bare(value, "mul", "div")
    sizes = value.args if len(value.args) != 1 and value.op in ("zeros", "ones", "rand", "randn", "empty") else ()
    if value.args and isinstance(value.args[0], Many):
        sizes = tuple(value.args[0].parts)
    return len(sizes) >= 2 and not (len(sizes) == 2 and any(constant(one) == 1 for one in sizes)) and not (len(sizes) > 2 and constant(sizes[0]) == 1)


def _one_number(value: Value) -> float | None:
    """The one number that a tensor is filled with; nan where it is not known; None for a tensor of several."""
    if value.op == "copy" and len(value.args) > 1:
        return _one_number(value.args[1])
    value = bare(value)
    if value.op in ("zeros", "zeros_like", "zero", "zeros_", "ones", "ones_like", "ones_"):
        return float(value.op.startswith("ones"))
    if value.op in ("full", "full_like", "fill", "constant_"):
        given = value.named.get("fill_value") or value.named.get("val") or value.named.get("value") or value.argument("fill_value", 1)
        return None if is_none(given) else math.nan if number(given) is None else number(given)
    if value.op == "torch.nn.Parameter":
        return _one_number(value.args[0])
    if value.op in ("mul", "div") and len(value.args) == 2:
        tensor, factor = value.args if number(value.args[1]) is not None else value.args[::-1]
        alike, by = _one_number(tensor), number(factor)
        return None if alike is None or not by else alike * by if value.op == "mul" else alike / by
    return None


def _weighted(value: Value) -> tuple[Value, Value] | None:
    """The weights of a layer that is applied, and what it is applied to."""
    if value.op == "run" and len(value.args) > 1 and value.args[0].op.startswith(_UNITS):
        return value.args[0], value.args[1]
    if value.op == "matmul" and len(value.args) == 2 and (root := _root(value.args[1])) is not None:
        return root, value.args[0]
    if value.op == "linear" and len(value.args) > 1 and (root := _root(value.args[1])) is not None:
        return root, value.args[0]
    return None


def _root(value: Value) -> Value | None:
    """The parameter, or the layer, that a value is a part of or looks up in."""
    value = bare(value, *_TURNED)
    if value.op == "run" and value.args[0].op == "torch.nn.Embedding":
        return value.args[0]
    return _owner(value)


@FINDERS.add("layers-of-one-number")
def _layers_of_one_number(program: Program) -> Iterator[Remark]:
    """A layer whose weights are all one number works on the outputs of another such layer."""
    computation = computation_of(program)
    first = _first_values(computation)
    alike = {key: one for key, one in first.items() if one[1] is not None}
    seen: set[ast.AST] = set()
    for value in computation.of("run", "matmul", "linear") if len(alike) > 1 else ():
        applied = _weighted(value)
        if applied is None or id(applied[0]) not in alike:
            continue
        below = _weighted(_before(applied[1]))
        if below is None or id(below[0]) not in alike or below[0] is applied[0]:
            continue
        one, other = alike[id(below[0])], alike[id(applied[0])]
        if other[1] == 0 or one[1] == 0 or one[2].node in seen:
            continue  # zeros: what is learned first is the bias, or nothing
        seen.add(one[2].node)
        yield Remark(one[2].node, f"{short(one[2].node)} gives all weights of a layer one number, and so are those of the layer behind it (line {other[2].line})")


def _before(value: Value) -> Value:
    """What an activation, a normalization or the adding of a bias is done on."""
    for _ in range(8):
        value = bare(value, *_BETWEEN)
        if value.op == "add" and len(value.args) == 2:
            value = value.args[0]
        elif value.op == "run" and value.args[0].op.startswith("torch.nn.") and value.args[0].op[9:].startswith(("BatchNorm", "LayerNorm", "MaxPool", "AvgPool", "PReLU", "GroupNorm")):
            value = value.args[1]
        else:
            break
    return value


@FINDERS.add("product-of-zeros")
def _product_of_zeros(program: Program) -> Iterator[Remark]:
    """Two parameters that start at 0 and are used in their product alone."""
    computation = computation_of(program)
    zero = {key: one for key, one in _first_values(computation).items() if one[1] == 0}
    seen: set[ast.AST] = set()
    for value in computation.of("mul", "matmul", "run") if len(zero) > 1 else ():
        pair = _multiplied(value)
        if pair is None or not {id(pair[0]), id(pair[1])} <= zero.keys() or pair[0] is pair[1] or value.node in seen:
            continue
        if all(_only_in_products(computation, one, zero) for one in pair):
            seen.add(value.node)
            lines = " and ".join(str(zero[id(one)][2].line) for one in pair)
            yield Remark(value.node, f"{short(value.node)} multiplies two parameters that both start at 0 (lines {lines})")


def _multiplied(value: Value) -> tuple[Value, Value] | None:
    """The two parameters whose product a value is: as factors, or as two linear layers without bias in a row."""
    if value.op == "run" and len(value.args) > 1:
        upper, inner = value.args[0], bare(value.args[1])
        if inner.op != "run" or len(inner.args) < 2:
            return None
        lower = inner.args[0]
        plain = all(one.op == "torch.nn.Linear" and constant(one.argument("bias", 2)) is False for one in (upper, lower))
        return (lower, upper) if plain else None
    if len(value.args) != 2:
        return None
    left, right = (_root(one) for one in value.args)
    if left is None and bare(value.args[0]).op == "matmul":
        left = _root(bare(value.args[0]).args[1])
    return None if left is None or right is None else (left, right)


def _only_in_products(computation: Computation, parameter: Value, zero: dict[int, tuple[Value, float | None, Value]]) -> bool:
    """Whether all that is done with a parameter is to multiply it by another one that is 0."""
    waiting = list(computation.users(parameter))
    while waiting:
        at = waiting.pop()
        if at.op in ("set_attribute", "register_parameter", "tuple", "list", *_STARTED) or (at.op == "weight" and not computation.users(at)):
            continue
        if at.op in _TURNED or at.op in ("weight", "data") or (at.op == "run" and at.args[0].op == "torch.nn.Embedding"):
            waiting += computation.users(at)
            continue
        applied = at.op == "run" and at.args[0] is parameter
        applied = applied or (at.op == "matmul" and len(at.args) == 2 and _root(at.args[1]) is parameter and _root(at.args[0]) is None)
        pairs = [_multiplied(one) for one in (at, *(computation.users(at) if applied else ()))]
        if not any(pair is not None and {id(pair[0]), id(pair[1])} <= zero.keys() for pair in pairs):
            return False
    return True


# Ensembles and adversaries -----------------------------------------------------------------


@FINDERS.add("members-alike")
def _members_alike(program: Program) -> Iterator[Remark]:
    """Each round of a loop seeds alike before it makes a model, and the models are collected."""
    computation = computation_of(program)
    for listed in computation.values:
        member = listed.parts[0] if isinstance(listed, Many) and listed.grown and len(listed.parts) == 1 else None
        if member is None or not _is_layer(program, member) or not _is_learned(member) or not member.where.loops:
            continue
        loop = member.where.loops[-1]
        over = loop.generators[0] if isinstance(loop, ast.ListComp) else None
        if not isinstance(loop, ast.ListComp) or over is None or not isinstance(over.target, ast.Name) or not is_call(over.iter, "range") or (_is_read(loop, over.target.id) and any(computation.users(one) for one in computation.stored.get(over.target, ()))):
            continue
        for seed in computation.of("manual_seed"):
            if loop in seed.where.loops and seed.number < member.number and len(seed.args) == 1 and not any(one.op in ("index", "element", *_DRAWS) for one in origins(seed.args[0])):
                yield Remark(loop.elt, f"{short(loop.elt)} is the same in each round, and {short(seed.node)} (line {seed.line}) starts all members alike")
                return


def _is_read(loop: ast.AST, name: str) -> bool:
    """Whether a loop uses the number of its round."""
    return any(isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Load) for one in ast.walk(loop))


@FINDERS.add("adversary-of-another-range")
def _another_range(program: Program) -> Iterator[Remark]:
    """One network judges samples of a generator and real ones, and one of the two is never below 0."""
    computation = computation_of(program)
    judged: dict[int, list[tuple[Value, Value]]] = {}
    for value in computation.of("run"):
        if len(value.args) > 1 and value.args[0].op.startswith(_UNITS) and (found := _range(value.args[1])) is not None:
            judged.setdefault(id(value.args[0]), []).append(found)
    for pairs in judged.values():
        made = [one for one in pairs if one[0].op in ("tanh", "sigmoid") and any(at.op in ("randn", "randn_like", "rand", "normal") for at in origins(one[0]))]
        real = [one for one in pairs if one[0].op not in ("tanh", "sigmoid") and not any(at.op == "run" and at.args[0].op.startswith("torch.nn.") for at in origins(one[0]))]
        for fake in made:
            for true in real:
                if number(fake[1]) != number(true[1]):
                    low = [f"{number(one[1]):g}" for one in (true, fake)]
                    yield Remark(true[0].node, f"{short(true[0].node)} is from {low[0]} to 1, and the samples of {short(fake[0].node)} (line {fake[0].line}) are from {low[1]} to 1: one network judges both")
                    return


def _range(value: Value) -> tuple[Value, Value] | None:
    """What gives a value its range, and the lower end of it (the upper one is 1)."""
    moved = ("rows", "flip", "permute", "transpose", "roll")
    value = bare(value, *moved)
    while value.op == "part" and len(value.args) > 1 and not isinstance(constant(value.args[1]), str):
        value = bare(value.args[0], *moved)
    low: float | None = None
    if value.op in ("tanh", "sigmoid"):
        low = -1.0 if value.op == "tanh" else 0.0
    elif value.op == "run" and value.args[0].op.startswith("torchvision.transforms."):
        low = 0.0 if value.args[0].op.endswith("ToTensor") else None
    elif value.op == "div" and (number(value.args[1]) == 255 or _is_from_least_to_most(value)):
        low = 0.0
    elif value.op == "sub" and number(value.args[1]) == 1 and any(number(one) == 2 for one in _factors_of(value.args[0])):
        low = -1.0
    return None if low is None else (value, Value("@constant", node=value.node, where=value.where, data=low))


def _is_from_least_to_most(value: Value) -> bool:
    """Whether a quotient is (x - min) / (max - min)."""
    above, below = bare(value.args[0]), bare(value.args[1])
    return above.op == below.op == "sub" and bare(above.args[1]).op in ("min", "amin") and bare(below.args[0]).op in ("max", "amax") and same(bare(above.args[1]), bare(below.args[1]))


def _factors_of(value: Value) -> Iterator[Value]:
    """The factors of a product, also of one that is divided."""
    value = bare(value)
    if value.op in ("mul", "div") and len(value.args) == 2:
        yield from _factors_of(value.args[0])
        if value.op == "mul":
            yield from _factors_of(value.args[1])
    else:
        yield value
