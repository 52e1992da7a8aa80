"""What is computed and read nowhere, and what is used in its place. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    Instance,
    Many,
    Table,
    Value,
    bare,
    constant,
    number,
    origins,
    same,
)
from probe.diagnose.code.finders.runs.compared_outputs import is_with_itself
from probe.diagnose.code.model.modules import commented, forwards
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import Function, is_call, names_of, names_set, own, returned, short
from probe.diagnose.code.traits.backwards import has_gradient
from probe.diagnose.code.traits.basic import LOSSES, losses
from probe.diagnose.code.traits.uses import made_from

FINDERS = Finders()
_DRAWN = frozenset({
    "randn", "randn_like", "rand", "rand_like", "normal", "poisson", "bernoulli", "randperm", "uniform", "standard_normal", "uniform_",
})
_CHOSEN = _DRAWN | {"randint", "multinomial", "randint_like", "choice", "sample"}
_SIZES = ("shape", "size", "len", "device", "dtype", "numel", "randn_like", "rand_like", "zeros_like")
_LEARNED = (
    "torch.nn.Linear", "torch.nn.Conv", "torch.nn.Embedding", "torch.nn.BatchNorm", "torch.nn.LayerNorm", "torch.nn.MultiheadAttention", "torch.nn.GroupNorm",
    "torch.nn.Transformer",
)
_DISTANCES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")


# Names that nothing reads ---------------------------------------------------


def _unread(program: Program, scope: ast.Module | Function) -> Iterator[tuple[ast.Assign, ast.Name]]:
    """The assignments of a function to names that are read nowhere, or only to set such names."""
    if isinstance(scope, ast.Module) or any(is_call(one, "locals", "eval", "exec", "vars") for one in ast.walk(scope)):
        return
    plain = {node.targets[0]: node for node in own(scope, ast.Assign) if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)}
    others = [node for node in ast.walk(scope) if isinstance(node, ast.Name) and node not in plain]
    within = {id(part): target.id for target, node in plain.items() if isinstance(target, ast.Name) for part in ast.walk(node.value)}
    dead = {target.id for target in plain if isinstance(target, ast.Name) and not target.id.startswith("_")}
    dead -= {name for node in ast.walk(scope) if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names}
    while True:
        alive = {one.id for one in others if one.id in dead and within.get(id(one)) not in dead}
        if not alive:
            break
        dead -= alive
    for target, node in plain.items():
        if isinstance(target, ast.Name) and target.id in dead and not commented(program, scope, target.id):
            yield node, target


@FINDERS.add("layer-output-unread")
def _output_unread(program: Program) -> Iterator[Remark]:
    """What a layer gives in forward reaches nothing that forward returns."""
    computation = computation_of(program)
    for method in forwards(program):
        for node, target in _unread(program, method):
            inside = set(map(id, ast.walk(node.value)))
            values = computation.stored.get(target, ())
            run = any((id(one.node) in inside or _is_within(one, value, method)) and one.op == "run" and one.args[0].op.startswith(_LEARNED) for value in values for one in origins(value))
            if run and any(one is not None and one.lineno > node.lineno for one in returned(method)):
                yield Remark(node, f"{short(node)} reaches nothing that {method.name} returns")


def _is_within(run: Value, value: Value, method: ast.AST) -> bool:
    """Whether a layer is run by the `forward` of a part, called in a method, that gives a value."""
    inner = value.where.functions
    return inner == run.where.functions and method in inner[:-1] and getattr(inner[-1], "name", "") == "forward" and inner[-1] is not method


def _after(value: Value, function: ast.AST) -> bool:
    """Whether a value is computed in a function or by what it calls."""
    return function in value.where.functions


@FINDERS.add("noise-never-given")
def _never_given(program: Program) -> Iterator[Remark]:
    """A value with noise is read nowhere, and a network is given the one without."""
    computation = computation_of(program)
    trains = any(True for _ in losses(computation)) and any(True for _ in computation.of(*_DRAWN))
    for scope in program.scopes() if trains else ():
        for node, target in _unread(program, scope):
            for value in computation.stored.get(target, ()):
                clean = _clean_parts(value)
                given = next((one for one in computation.of("run") if clean and one.number > value.number and _after(one, scope) and any(id(bare(part, shapes=False)) in clean for part in one.args[1:])), None)
                if given is not None:
                    yield Remark(node, f"{short(node)} is read nowhere, and line {given.line} goes on without the noise")
                    break


def _clean_parts(value: Value) -> set[int]:
    """What noise is added to or put in place of in a value; nothing if there is none."""
    value = bare(value, "clamp", shapes=False)
    if value.op not in ("add", "where", "masked_fill", "poisson", "mul", "sub") or not value.args:
        return set()
    parts = [bare(one, "clamp", shapes=False) for one in value.args]
    noisy = [one for one in parts if any(part.op in _DRAWN for part in origins(one, _SIZES))]
    clean = {id(one) for one in parts if one not in noisy and one.op not in ("@constant", "@library")}
    return clean if noisy else set()


@FINDERS.add("loss-never-added")
def _never_added(program: Program) -> Iterator[Remark]:
    """A loss is computed beside another one, and nothing reads it."""
    computation = computation_of(program)
    for scope in program.scopes() if any(True for _ in losses(computation)) else ():
        for node, target in _unread(program, scope):
            for value in computation.stored.get(target, ()):
                if value.where.no_grad or not _is_term(value):
                    continue
                other = next((loss for _, loss in losses(computation) if _after_or_beside(loss, scope, value) and not any(one is value for one in origins(loss))), None)
                if other is not None:
                    yield Remark(node, f"{short(node)} is read nowhere, and {short(other.node)} (line {other.line}) is what is minimized")
                    break


def _after_or_beside(loss: Value, scope: ast.AST, value: Value) -> bool:
    """Whether a loss is made in the same function as a value."""
    return scope in loss.where.functions and not loss.where.no_grad and loss is not value


def _is_term(value: Value) -> bool:
    """Whether a value is a loss, or the mean of something that a network gives and that has a gradient."""
    while value.op in ("mul", "div") and len(value.args) == 2:
        first, second = value.args
        value = second if bare(first).op in ("@constant", "@input") else first
    if value.op in LOSSES:
        return True
    if value.op not in ("mean", "sum") or len(value.args) != 1 or value.named:
        return False
    stops = ("eq", "ne", "lt", "gt", "le", "ge", "argmax")
    found = list(origins(value, (*stops, *_SIZES)))
    return any(one.op in ("run", "grad", "torch.autograd.grad") for one in found) and has_gradient(value) and not any(one.op in stops for one in found) and any(one.op in ("pow", "abs", "square", "norm", "exp", "log") for one in found)


# What is used twice where another one was meant ------------------------------


def _is_free(computation: Computation, value: Value) -> bool:
    """Whether nothing is made of a value but copies and containers."""
    gone = [one for found in computation.returned.values() for one in found if one is value]
    return not gone and not any(one.op not in KEPT and one.op != "dict" for one in made_from(computation, value, KEPT | {"dict"}))


def _beside(computation: Computation, value: Value) -> Iterator[Value]:
    """The other parts of what a value is a part of, and the other members of its tuple or dict."""
    at = value
    while at.op in KEPT and at.args and at.op != "either":
        at = at.args[0]
    if at.op == "part" and constant(at.args[1]) is not None:
        yield from (one for one in computation.users(at.args[0]) if one.op == "part" and constant(one.args[1]) not in (None, constant(at.args[1])) and type(constant(one.args[1])) is type(constant(at.args[1])))
    for user in computation.users(value):
        if isinstance(user, (Many, Table)):
            yield from (one for one in user.made_of() if one is not value)


def _kind(value: Value) -> tuple[str, ...]:
    """How a value is made: its operations down to the layer or the split that it comes out of."""
    found: list[str] = []
    while value.args and len(found) < 8:
        found.append(value.op)
        if value.op in ("run", "part"):
            found.append(value.args[0].op)
            break
        value = value.args[0]
    return tuple(found)


@FINDERS.add("output-in-two-losses")
def _in_two_losses(program: Program) -> Iterator[Remark]:
    """Two targets are compared with one output, and an output that is made the same way is read nowhere."""
    computation = computation_of(program)
    found = [one for one in computation.of(*LOSSES) if len(one.args) > 1 and not one.where.no_grad]
    for place, second in enumerate(found):
        first = next((one for one in found[:place] if one.op == second.op and one.args[0] is second.args[0] and one.node is not second.node and one.where.functions == second.where.functions and not same(one.args[1], second.args[1])), None)
        if first is None:
            continue
        output = second.args[0]
        kind = _kind(output)
        parallel = kind[-2:] in (("part", "unbind"), ("part", "split"), ("part", "chunk"), ("part", "tensor_split")) or (kind and kind[-1].startswith("torch.nn."))
        free = next((one for one in _beside(computation, output) if one is not output and parallel and _kind(one) == kind and _is_free(computation, one)), None)
        if free is not None:
            yield Remark(second.node, f"{short(second.node)} takes {short(output.node)} a second time (the first is in line {first.line}), and {short(free.node)} is read nowhere")


@FINDERS.add("one-term-twice")
def _term_twice(program: Program) -> Iterator[Remark]:
    """Two terms of a loss are the same loss of the same values."""
    computation = computation_of(program)
    found = [one for one in computation.of(*LOSSES) if len(one.args) > 1 and not one.where.no_grad]
    reached = [set(map(id, origins(loss))) for _, loss in losses(computation)]
    for place, second in enumerate(found):
        for first in found[:place]:
            if first.op != second.op or first.node is second.node or first.where.functions != second.where.functions or first.where.loops != second.where.loops or first.where.maybe or second.where.maybe:
                continue
            alike = same(first, second) and _runs(first) == _runs(second) and len(_runs(first)) > 0
            if alike and not is_with_itself(first) and any({id(first), id(second)} <= parts for parts in reached):
                yield Remark(second.node, f"{short(first.node)} (line {first.line}) and {short(second.node)} are the same loss of the same values")
                break


def _runs(value: Value) -> set[int]:
    """The results of networks that a value is made of."""
    return {id(one) for one in origins(value) if one.op == "run"}


@FINDERS.add("one-view-twice")
def _view_twice(program: Program) -> Iterator[Remark]:
    """A network is given one view twice, and the view beside it is read nowhere."""
    computation = computation_of(program)
    seen: dict[tuple[int, int], Value] = {}
    for run in computation.of("run"):
        if len(run.args) != 2 or run.where.no_grad or run.named:
            continue
        key = (id(run.args[0]), id(run.args[1]))
        first = seen.setdefault(key, run)
        if first is run or first.where.loops != run.where.loops or first.where.functions[:1] != run.where.functions[:1] or run.where.functions.count(run.where.functions[-1] if run.where.functions else None) > 1:
            continue
        view = run.args[1]
        free = next((one for one in _beside(computation, view) if _moved(computation, one, view) and _is_free(computation, one)), None)
        if free is not None and _are_compared(computation, first, run):
            yield Remark(run.node, f"{short(run.node)} takes {short(view.node)} a second time (the first is in line {first.line}), and {short(free.node)}, the view beside it, is read nowhere")
            return


def _moved(computation: Computation, one: Value, view: Value) -> bool:
    """Whether what stands beside a view is one too: made by the same code, or the other of a pair within the batch
    that is moved to the same place."""
    made = bare(view, shapes=False)
    if made is not bare(one, shapes=False) and bare(one, shapes=False).op == made.op and made.op not in ("part", "element", "rows", "@input"):
        return True
    pair = one.op == "part" and one.args[0].op == "part"
    return pair and (view.op == "part" or any(user.op == view.op for user in computation.users(one)))


def _are_compared(computation: Computation, first: Value, second: Value) -> bool:
    """Whether one loss is made of two results."""
    return any({id(first), id(second)} <= set(map(id, origins(loss))) for _, loss in losses(computation))


# Noise that is left in the target -------------------------------------------


@FINDERS.add("noise-in-the-target")
def _in_the_target(program: Program) -> Iterator[Remark]:
    """A network's output is compared with its own noisy input, and the clean one is compared with nothing."""
    computation = computation_of(program)
    for loss in computation.of(*_DISTANCES):
        if len(loss.args) < 2 or loss.where.no_grad:
            continue
        for output, target in (loss.args[:2], loss.args[1::-1]):
            given = bare(target, "rows", shapes=False)
            if not _has_noise(given) or not any(one.op == "run" and any(bare(part, "rows", shapes=False) is given for part in one.args[1:]) for one in origins(output)):
                continue
            if not any(one.op == "run" for one in origins(given)) and not _is_drawn_with_its_noise(computation, given, loss):
                yield Remark(loss.node, f"{short(loss.node)} compares the output with {short(target.node)}, which has the noise of line {given.line} in it")
                break


def noise_of_the_data(program: Program, call: ast.Call) -> bool:
    """Whether one of the values that a loss compares was drawn noise and all, as data are that a program makes."""
    computation = computation_of(program)
    found = [(loss, bare(one, "rows", shapes=False)) for loss in computation.of(*_DISTANCES) if loss.node is call for one in loss.args[:2]]
    return any(_is_drawn_with_its_noise(computation, value, loss) for loss, value in found if _has_noise(value))


def _is_drawn_with_its_noise(computation: Computation, value: Value, loss: Value) -> bool:
    """Whether the noise belongs to the data: both are drawn once before the training, or by a function of their own that is
    given no data, and nothing else reads the clean values."""
    if value.op != "add":
        return False
    clean = [one for one in map(bare, value.args) if not any(part.op in ("randn", "randn_like", "normal") for part in (one, *map(bare, one.args if one.op == "mul" else ())))]
    if len(clean) != 1 or any(one is not value and one.op not in _SIZES for one in computation.users(clean[0])):
        return False
    place = value.where.functions
    if len(value.where.loops) < len(loss.where.loops) and loss.where.loops[: len(value.where.loops)] == value.where.loops and place == loss.where.functions[: len(place)]:
        return True
    return len(place) > len(loss.where.functions) and any(one.op in _CHOSEN and one.where.functions == place for one in origins(clean[0]))


def _has_noise(value: Value) -> bool:
    """Whether numbers that are drawn are added to a value, or it is drawn around clean ones."""
    value = bare(value, "clamp", shapes=False)
    if value.op in ("div", "mul") and len(value.args) == 2 and any(number(one) is not None or bare(one).op == "@input" for one in value.args):
        value = bare(value.args[0] if number(value.args[0]) is None else value.args[1])
    if value.op == "poisson":
        return bool(value.args) and bare(value.args[0]).op != "@constant"
    if value.op != "add" or len(value.args) != 2:
        return False
    noise = [bare(one) for one in value.args]
    noise = [one if one.op != "mul" else next((bare(part) for part in one.args if bare(part).op in _DRAWN), one) for one in noise]
    return any(one.op in ("randn", "randn_like", "normal") for one in noise) and not all(one.op in ("randn", "randn_like", "normal") for one in noise)


# Layers and networks that are never called ----------------------------------


@FINDERS.add("layer-in-anothers-place")
def _in_anothers_place(program: Program) -> Iterator[Remark]:
    """A layer is called at two places, and one of the same kind, made beside it, is called at none."""
    computation = computation_of(program)
    for instance in computation.of("@object"):
        if not isinstance(instance, Instance) or instance.of is None or not program.is_module_class(instance.of):
            continue
        layers = {name: value for name, value in instance.attributes.items() if value.op.startswith(_LEARNED)}
        runs = {name: [one for one in computation.users(value) if one.op == "run" and one.args[0] is value] for name, value in layers.items()}
        for idle, layer in layers.items():
            if runs[idle] or any(one.op != "set_attribute" and not _is_spread(computation, one) for one in computation.users(layer)) or _is_read(instance.of, idle):
                continue
            for name, other in layers.items():
                if name == idle or not runs[name]:
                    continue
                places = {id(one.node): one for one in runs[name] if one.where.functions and one.where.functions[-1] in instance.of.body}
                second = list(places.values())[-1]
                meant = any(commented(program, second.where.functions[-1], word) for word in ("same", "shared", idle)) if len(places) > 1 else True
                if not meant and _alike(layer, other):
                    yield Remark(second.node, f"self.{name} is called a second time, and self.{idle}, a {layer.op.rpartition('.')[2]} too, is never called")
                    return


def _is_spread(computation: Computation, value: Value) -> bool:
    """Whether a value is the right side of `a, b = x, y`."""
    return value.op == "tuple" and not computation.users(value)


def _alike(one: Value, other: Value) -> bool:
    """Whether two layers are made with equal arguments."""
    return one.op == other.op and one is not other and len(one.args) == len(other.args) and one.named.keys() == other.named.keys() and all(
        first is second or same(first, second) for first, second in zip((*one.args, *one.named.values()), (*other.args, *other.named.values()), strict=True)
    )


def _is_read(of: ast.ClassDef, name: str) -> bool:
    """Whether a class reads an attribute of its own."""
    return any(isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load) for node in ast.walk(of)) or any(
        is_call(node, "getattr", "vars") or (isinstance(node, ast.Attribute) and node.attr in ("children", "named_children", "modules", "__dict__", "_modules")) for node in ast.walk(of)
    )


_MOVES = frozenset({"load_state_dict", "state_dict", "eval", "train", "to", "cuda", "requires_grad_", "half", "float", "parameters", "modules"})


@FINDERS.add("network-never-called")
def _never_called(program: Program) -> Iterator[Remark]:
    """A network that a class keeps beside those that it trains is moved and loaded, and never called."""
    computation = computation_of(program)
    for value in computation.of("set_attribute"):
        owner, network = value.args
        name = value.data
        if not isinstance(owner, Instance) or owner.of is None or program.is_module_class(owner.of) or not isinstance(value.node, ast.Attribute) or not _is_network(program, network):
            continue
        reads = [node for source in program.sources for node in ast.walk(source.tree) if isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load)]
        moved = [node for node in reads if isinstance(around := program.parent.get(node), ast.Attribute) and around.attr in _MOVES and around.attr != "state_dict"]
        trains = any(node.attr == "backward" for node in ast.walk(owner.of) if isinstance(node, ast.Attribute))
        saved = any(is_call(node, "getattr", "vars", "setattr") or (isinstance(node, ast.Constant) and node.value == name) for source in program.sources for node in ast.walk(source.tree))
        if len(moved) == len(reads) and trains and not saved and not commented(program, owner.of, str(name)) and not _is_passed(computation, network, value):
            yield Remark(value.node, f"{short(value.node)} is made and put in place, and never called: no loss and no output depends on it")


def _is_network(program: Program, value: Value) -> bool:
    """Whether a value is a network that the program makes or copies."""
    if isinstance(value, Instance):
        return value.of is not None and program.is_module_class(value.of)
    return value.op == "torch.nn.Sequential" or (value.op == "deepcopy" and "net" in names_of(value.node))


def _is_passed(computation: Computation, network: Value, place: Value) -> bool:
    """Whether a network is also kept or given to something else, or its parameters are."""
    return any(one is not place and one.op not in _MOVES and not _is_spread(computation, one) and (one.op.startswith("torch.nn.") or not (one.args and network is one.args[0])) for one in computation.users(network)) or any(
        one.op in ("parameters",) and any(user.op != "list" for user in computation.users(one)) for one in computation.users(network)
    )


# Values that are no longer what they were, or that see too much --------------

_IN_PLACE = ("relu", "leaky_relu", "elu", "silu", "hardtanh", "mish", "dropout", "relu6", "celu", "selu", "hardswish")


@FINDERS.add("shared-tensor-changed")
def _changed(program: Program) -> Iterator[Remark]:
    """An activation changes a tensor in place, and it is read again afterwards for what it was."""
    computation = computation_of(program)
    for value in computation.of(*_IN_PLACE):
        if not value.args or constant(value.named.get("inplace")) is not True:
            continue
        before = value.args[0]
        again = next((one for one in computation.users(before) if one.number > value.number and one.op in ("add", "sub", "mul", "cat", "run") and one.where.functions[:1] == value.where.functions[:1]), None)
        if again is not None:
            yield Remark(again.node, f"{short(value.node)} (line {value.line}) changes {short(before.node)} in place: {short(again.node)} reads what it has become")


@FINDERS.add("residual-of-itself")
def _of_itself(program: Program) -> Iterator[Remark]:
    """Two names of one tensor are added."""
    for value in computation_of(program).of("add"):
        node, function = value.node, value.where.functions[-1] if value.where.functions else None
        if len(value.args) != 2 or value.args[0] is not value.args[1] or function is None or not any(one.op == "run" for one in origins(value)):
            continue
        added = [node.left, node.right] if isinstance(node, ast.BinOp) else node.args[:2] if isinstance(node, ast.Call) else []
        names = [one.id for one in added if isinstance(one, ast.Name)]
        for alias in ast.walk(function):
            if isinstance(alias, ast.Assign) and isinstance(alias.value, ast.Name) and len(names) == 2 and names[0] != names[1] and {alias.value.id, *(one.id for one in alias.targets if isinstance(one, ast.Name))} == set(names):
                yield Remark(node, f"{short(node)} adds {names[0]} to itself: line {alias.lineno} has made both the same tensor, after the layers")
                break


@FINDERS.add("only-the-last-parameter")
def _only_the_last(program: Program) -> Iterator[Remark]:
    """A penalty is set anew for each parameter of a loop, and read after the loop."""
    computation = computation_of(program)
    for scope in program.scopes():
        for loop in own(scope, ast.For):
            targets = names_set(loop.target)
            if not _over_parameters(computation, loop) or any(isinstance(one, ast.Break) for one in ast.walk(loop)):
                continue
            for node in ast.walk(loop):
                if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(name := node.targets[0], ast.Name):
                    continue
                reads = [one for one in ast.walk(scope) if isinstance(one, ast.Name) and one.id == name.id and isinstance(one.ctx, ast.Load)]
                inside = set(map(id, ast.walk(loop)))
                later = [one for one in reads if id(one) not in inside and one.lineno > loop.lineno and isinstance(program.parent.get(one), (ast.BinOp, ast.Return, ast.AugAssign))]
                if later and len([one for one in reads if id(one) in inside]) == 0 and names_of(node.value) & targets and _is_reduced(node.value):
                    yield Remark(node, f"{short(node)} is set anew for each parameter, and line {later[0].lineno} reads the last one")


def _over_parameters(computation: Computation, loop: ast.For) -> bool:
    """Whether a loop goes over the parameters or layers of a network."""
    if any(isinstance(one, ast.Attribute) and one.attr in ("parameters", "named_parameters", "modules", "named_modules", "children", "named_children") for one in ast.walk(loop.iter)):
        return True
    values = [value for one in ast.walk(loop.target) if isinstance(one, ast.Name) for value in computation.stored.get(one, ())]
    return any(value.op.startswith(_LEARNED) for value in values)


def _is_reduced(node: ast.AST) -> bool:
    """Whether an expression is a sum, mean or norm."""
    return any(isinstance(one, ast.Attribute) and one.attr in ("sum", "norm", "mean", "square", "abs") for one in ast.walk(node)) and not any(isinstance(one, ast.Attribute) and one.attr == "grad" for one in ast.walk(node))


@FINDERS.add("language-model-without-mask")
def _reads_ahead(program: Program) -> Iterator[Remark]:
    """An encoder without a mask reads all but the last token, and its output is compared with all but the first."""
    computation = computation_of(program)
    for loss in computation.of("cross_entropy", "nll_loss"):
        if len(loss.args) < 2:
            continue
        ahead = [base for one in origins(loss.args[1], ("run",)) if (base := _cut(one, 0)) is not None]
        for run in origins(loss.args[0]) if ahead else ():
            if run.op != "run" or run.args[0].op not in ("torch.nn.TransformerEncoder", "torch.nn.TransformerEncoderLayer") or len(run.args) != 2 or run.named.keys() & {"mask", "src_mask", "is_causal", "**"}:
                continue
            if any((base := _cut(one, 1)) is not None and any(base is other for other in ahead) for one in origins(run.args[1])):
                yield Remark(run.node, f"{short(run.node)} has no mask, and {short(loss.node)} (line {loss.line}) compares what it gives with the tokens one position further on")
                return


def _cut(value: Value, end: int) -> Value | None:
    """x of `x[1:]` (end 0) and `x[:-1]` (end 1), along its last axis."""
    if value.op != "part":
        return None
    index = value.args[1]
    last = index.parts[-1] if isinstance(index, Many) and index.parts else index
    bounds = [number(one) for one in last.args[:2]] if last.op == "slice" else []
    return bare(value.args[0]) if bounds == ([1, None], [None, -1])[end] else None
