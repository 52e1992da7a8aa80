"""What each pass of the training finds set: the mode of the network, the random numbers, a counter. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from probe.diagnose.code.data.data_flow import HELD_OUT, data_sets, loaders_of, trains
from probe.diagnose.code.finders.sequences.references import noisy_reference, reference_trained
from probe.diagnose.code.flow import SETTINGS, Flow, flow_of
from probe.diagnose.code.loop.kept_rules import trained
from probe.diagnose.code.loop.loss_rules import backwards
from probe.diagnose.code.program import Key, Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    Function,
    is_attribute,
    is_binary,
    is_call,
    is_method,
    is_name,
    is_own,
    is_true,
    iterated,
    last_word,
    names_set,
    number_in,
    short,
    text_of,
)

RULES = Rules("loop")
_MODED = re.compile(r"(Dropout\w*|BatchNorm\w*|SyncBatchNorm|TransformerEncoderLayer|TransformerDecoderLayer|Transformer)$")
"""Layers of torch that do another thing in eval mode."""
_OTHER_SEEDS = {"numpy.random.seed": "numpy.random.", "random.seed": "random."}
"""What sets the seed of other random numbers, and what the functions that draw those begin with."""
_SEEDS = frozenset({"torch.manual_seed", "torch.random.manual_seed", "lightning.seed_everything", "transformers.set_seed", "accelerate.utils.set_seed"})
_DEEPEST = 3


def reached(program: Program, node: ast.AST, depth: int = _DEEPEST) -> list[ast.AST]:
    """A node and the functions of the program that run in it; where a name is that of several, all of them."""
    found, waiting = [node], [(node, depth)]
    while waiting:
        at, left = waiting.pop()
        for call in ast.walk(at) if left else ():
            if not isinstance(call, ast.Call):
                continue
            local = program.run_by(call)
            named = [local] if local is not None else program.functions.get(last_word(call.func), [])
            for one in named:
                if one not in found:
                    found.append(one)
                    waiting.append((one, left - 1))
    return found


# The mode of the network ------------------------------------------------------


def _has_modes(flow: Flow, node: ast.AST | None, depth: int = 4) -> bool:
    """Whether what makes a network makes layers that do another thing in eval mode."""
    program = flow.program
    if node is None or not depth:
        return False
    for one in ast.walk(node):
        if is_own(one) and one.attr == "training":
            return True
        name = program.called(one) if isinstance(one, ast.Call) else ""
        if name.startswith("torch.nn.") and _MODED.search(name) and "functional" not in name:
            return True
        if name.startswith("torchvision.models."):
            return True
        of = program.classes.get(name, []) if name else []
        if of and of[0] is not node and program.is_module_class(of[0]) and _has_modes(flow, of[0], depth - 1):
            return True
        local = program.local_function(one) if isinstance(one, ast.Call) and not of else None
        if local is not None and local is not node and program.family(one) == "module" and _has_modes(flow, local, depth - 1):
            return True
    return False


def _turns_off(node: ast.AST) -> bool:
    """Whether a node may put a network into eval mode."""
    if is_method(node, "train") and (node.args or node.keywords):
        return not (node.args and is_true(node.args[0]))
    return is_attribute(node, "eval") or (is_attribute(node, "training") and isinstance(node.ctx, ast.Store)) or (
        isinstance(node, ast.Constant) and node.value in ("eval", "train")
    )


@RULES.add(
    "evaluated-in-train-mode", "the score is that of a network with dropout, or with the statistics of the batch; batch normalization also learns from the held-out data",
    "call model.eval() before the evaluation, and model.train() before the next epoch",
)
def _in_train_mode(program: Program) -> Iterator[Remark]:
    """An evaluation of the trained network that nothing puts into eval mode."""
    flow = flow_of(program)
    held = trained(flow)
    if not held:
        return
    anywhere = any(_turns_off(node) for node in program.everywhere(ast.Call, ast.Attribute, ast.Constant))
    for call in program.calls() if not anywhere else ():
        if _evaluated_by(flow, call, held):
            yield Remark(call, f"{short(call)} is an evaluation in train mode: nothing in the program calls eval()")
    remarked: set[ast.AST] = set()
    for backward, _ in backwards(program):
        for around in flow.loops(backward):
            parts = reached(program, around)
            if any(_turns_off(one) for part in parts for one in ast.walk(part)):
                continue
            on = any(is_method(one, "train") for part in parts for one in ast.walk(part))
            for loop in (one for part in parts for one in ast.walk(part) if isinstance(one, ast.For)) if on or not anywhere else ():
                judged = _judged(flow, loop, held) if loop not in remarked else None
                if judged is not None:
                    remarked.add(loop)
                    yield Remark(judged, f"{short(judged)} is evaluated in train mode: nothing in the loop of line {around.lineno} calls eval() before it")


def _evaluated_by(flow: Flow, call: ast.Call, held: set[Key]) -> bool:
    """Whether a call under no_grad runs a function of the program, which may train as well, over held-out data with a
    trained network that has modes."""
    program = flow.program
    local = program.local_function(call)
    if local is None or not program.without_gradient(call) or not trains(program, local):
        return False
    given = [*call.args, *(one.value for one in call.keywords)]
    nets = [key for one in given if (key := flow.origin(flow.key(one))) in held and _has_modes(flow, _maker(flow, key))]
    return bool(nets) and any(HELD_OUT.search(one.id) for value in given for one in ast.walk(value) if isinstance(one, ast.Name))


def _judged(flow: Flow, loop: ast.For, held: set[Key]) -> ast.Call | None:
    """The call of a trained network, with layers that have modes, in a loop over batches that is no training."""
    program, over = flow.program, iterated(loop)
    if not (HELD_OUT.search(last_word(over)) or (loaders_of(flow, over) and not trains(program, loop)) or program.family(over) == "loader"):
        return None
    function = program.function_of(loop)
    if trains(program, loop) or (function is not None and re.search(r"mc_|monte|uncertain|bn|adapt|calib", function.name, re.I)):
        return None
    for call in ast.walk(loop):
        if not isinstance(call, ast.Call) or isinstance(program.parent.get(call), ast.Expr) or program.loops(call)[:1] != [loop]:
            continue
        key = flow.origin(flow.key(call.func))
        if key in held and program.without_gradient(call) and _has_modes(flow, _maker(flow, key)):
            return call
    return None


def _maker(flow: Flow, key: Key | None) -> ast.AST | None:
    """The call that made a network, but for wrappers and for where it lies."""
    made = flow.made_for(key)
    for _ in range(4):
        if made is None or not is_method(made, "to", "cuda", "float", "double", "train"):
            break
        inner = flow.value(made.func.value)
        made = inner if isinstance(inner, ast.Call) else None
    return made


@RULES.add("part-back-in-train-mode", "the part that was to stay as it is uses the statistics of the batch, and batch normalization goes on learning", "call eval() of the part after each train() of the whole")
def _back_in_train_mode(program: Program) -> Iterator[Remark]:
    """A part of the model that is put into eval mode once, before a loop that puts the whole into train mode."""
    flow = flow_of(program)
    if any(is_attribute(one, "train") and isinstance(program.parent.get(one), ast.FunctionDef) for one in program.everywhere(ast.Attribute)):
        return
    for call in program.calls():
        part = call.func.value if is_method(call, "eval") and not call.args else None
        if not isinstance(part, ast.Attribute) or program.loops(call) or not isinstance(program.parent.get(call), ast.Expr):
            continue
        whole, name = flow.origin(flow.key(part.value)), text_of(part)
        if whole is None or is_name(part.value, "self") or _overrides(program, flow, part.value) or not _has_modes(flow, _child(flow, part)):
            continue
        for loop in (one for one in ast.walk(program.frame(call)) if isinstance(one, ast.For) and one.lineno > call.lineno):
            parts = reached(program, loop)
            inside = [one for at in parts for one in ast.walk(at) if isinstance(one, ast.Call)]
            on = [one for one in inside if is_method(one, "train") and not (one.args and not is_true(one.args[0])) and flow.origin(flow.key(one.func.value)) == whole]
            off = [one for one in inside if is_method(one, "eval") and (text_of(one.func.value) == name or last_word(one.func.value) == part.attr)]
            if on and not off and trains(program, loop):
                yield Remark(on[0], f"{short(on[0])} puts {name} back into train mode, which {short(call)} (line {call.lineno}) took it out of")
                break


def _child(flow: Flow, part: ast.Attribute) -> ast.AST | None:
    """What makes a part of a network: the assignment in its class."""
    kind = flow.program.kind(part.value)
    of = flow.program.classes.get(kind.name, []) if kind is not None else []
    return flow.made((of[0], f"self.{part.attr}")) if len(of) == 1 else None


def _overrides(program: Program, flow: Flow, node: ast.AST) -> bool:
    """Whether the class of a network has a train() of its own."""
    kind = program.kind(node)
    of = program.classes.get(kind.name, []) if kind is not None else []
    return any(program.method(one, "train") is not None for one in of)


# Random numbers -----------------------------------------------------------------


@RULES.add(
    "seeded-in-the-loop", "each pass draws the same random numbers: the same order of samples, the same noise, the same units dropped",
    "set the seed once, before the loop",
)
def _seeded(program: Program) -> Iterator[Remark]:
    """The seed of torch that is set to one number in every pass of a training."""
    flow = flow_of(program)
    yield from _seeded_for_each(program, flow)
    if not any(program.called(call) in _SEEDS or program.called(call) in _OTHER_SEEDS for call in program.calls()):
        return
    if any(is_attribute(one, "fork_rng", "get_rng_state", "set_rng_state") for one in program.everywhere(ast.Attribute)):
        return
    remarked: set[ast.AST] = set()
    for backward, _ in backwards(program):
        for loop in flow.loops(backward):
            inside = [one for part in reached(program, loop, 2) for one in ast.walk(part) if isinstance(one, ast.Call)]
            if any(program.family(one) in ("module", "optimizer") and program.called(one) for one in inside):
                break  # each pass is a training of its own
            if _steps_its_own(program, backward, loop):
                break
            for call, seed in _seeds(flow, loop, {}, 3):
                if not _draws(program, call, inside):
                    continue
                changes = {one.id for one in ast.walk(seed) if isinstance(one, ast.Name)} & names_set(loop)
                if call not in remarked and not changes and is_constant(flow, seed):
                    remarked.add(call)
                    yield Remark(call, f"{short(call)} runs in each pass of the loop of line {loop.lineno}, with the same seed: all passes draw the same random numbers")


def _steps_its_own(program: Program, backward: ast.AST, loop: ast.AST) -> bool:
    """Whether the function of a backward, which a loop around it calls, steps an optimizer that it has made or been
    given anew by a call."""
    function = program.function_of(backward)
    if function is None or function is program.function_of(loop):
        return False
    stepped = {one.func.value.id for one in ast.walk(function) if is_method(one, "step") and isinstance(one.func.value, ast.Name)}
    return bool(stepped & names_set(function))


def _seeded_for_each(program: Program, flow: Flow) -> Iterator[Remark]:
    """A data set that sets a seed to one number whenever it gives a sample, and draws after that."""
    for of in data_sets(program):
        getter = program.method(of, "__getitem__")
        for call, seed in _seeds(flow, getter, {}, 1) if getter is not None else ():
            inside = [one for part in reached(program, getter, 1) for one in ast.walk(part) if isinstance(one, ast.Call)] if getter is not None else []
            random = [one for one in inside if program.called(one).startswith(("random.", "numpy.random.", "torch.rand", "torchvision.transforms")) and program.called(one) not in _OTHER_SEEDS]
            if random and _draws(program, call, inside) and is_constant(flow, seed):
                yield Remark(call, f"{short(call)} runs for each sample, with the same seed: all samples get the same random numbers")


def _draws(program: Program, call: ast.Call, inside: list[ast.Call]) -> bool:
    """Whether random numbers of the kind that a call seeds are drawn; of torch, where nearly all may be, always."""
    name = program.called(call)
    start = _OTHER_SEEDS.get(name)
    return start is None or any(program.called(one).startswith(start) and program.called(one) != name for one in inside)


def _seeds(flow: Flow, node: ast.AST, given: Mapping[str, ast.expr], depth: int) -> Iterator[tuple[ast.Call, ast.expr]]:
    """The calls that set the seed of torch whenever a node runs, and the seed as it is seen from the loop. `given`:
    what the parameters of the function are there."""
    program = flow.program
    for call in ast.walk(node):
        if not isinstance(call, ast.Call) or not each_time(program, call, node) or program.without_gradient(call):
            continue
        if (program.called(call) in _SEEDS or program.called(call) in _OTHER_SEEDS) and len(call.args) == 1:
            seed = call.args[0]
            yield call, given.get(seed.id, seed) if isinstance(seed, ast.Name) else seed
            continue
        local = program.local_function(call) if depth else None
        if local is not None and local is not node:
            below = dict(defaults(local)) | program.arguments(local, call)
            seen = {name: given.get(value.id, value) if isinstance(value, ast.Name) else value for name, value in below.items()}
            yield from _seeds(flow, local, seen, depth - 1)


def defaults(function: Function) -> Iterator[tuple[str, ast.expr]]:
    """The parameters of a function that have a default, with it."""
    plain = [*function.args.posonlyargs, *function.args.args][::-1]
    for one, value in zip(plain, function.args.defaults[::-1], strict=False):
        yield one.arg, value
    for one, other in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        if other is not None:
            yield one.arg, other


def is_constant(flow: Flow, seed: ast.expr) -> bool:
    """Whether a seed is one number for the whole program."""
    if flow.number(seed) is not None:
        return True
    if is_own(seed):
        return len(flow.values(flow.key(seed))) == 1 and flow.stores_of(seed.attr) == 1
    return isinstance(seed, ast.Attribute) and last_word(seed.value) in SETTINGS and flow.stores_of(seed.attr) == 0


def each_time(program: Program, node: ast.AST, top: ast.AST) -> bool:
    """Whether a node runs in each pass of a loop, or in each call of a function, around it."""
    for around in program.parents(node):
        if around is top:
            return True
        if isinstance(around, (ast.If, ast.IfExp, ast.ExceptHandler, ast.Lambda, Function)):
            return False
    return False


def in_each_pass(flow: Flow, node: ast.AST, loop: ast.AST) -> bool:
    """Whether a node runs in each pass of a loop, perhaps in the one function that is called there."""
    if loop in flow.program.parents(node):
        return each_time(flow.program, node, loop)
    function = flow.program.function_of(node)
    site = flow.site(function)
    return function is not None and site is not None and each_time(flow.program, node, function) and in_each_pass(flow, site, loop)


# Counters -----------------------------------------------------------------------


@RULES.add("counter-never-counted", "what should happen now and then happens in every pass or never, and what should change with the count stays", "count: step += 1 in each pass")
def _never_counted(program: Program) -> Iterator[Remark]:
    """A counter that begins at 0, decides by its remainder or its size what a pass does, and is never changed."""
    flow = flow_of(program)
    named = [one.names for one in program.everywhere(ast.Global)] + [one.names for one in program.everywhere(ast.Nonlocal)]
    said = {name for names in named for name in names}
    for key, values in flow.assigned():
        name = key[1].removeprefix("self.")
        if len(values) != 1 or number_in(values[0]) not in (0, 1) or name in said or name.isupper():
            continue
        if any(one.how != "assign" for one in flow.bound[key]) or isinstance(key[0], ast.ClassDef) is not key[1].startswith("self."):
            continue
        if isinstance(key[0], ast.ClassDef) and (flow.stores_of(name) != 1 or not closed(program, key[0])):
            continue
        start = values[0]
        assert start is not None
        for read in flow.reads.get(key, []):
            use = _counted_by(flow, read)
            again = program.loops(read) or program.function_of(read) is not program.function_of(start)
            if use is not None and again and not (set(program.loops(read)) & set(program.loops(start))):
                yield Remark(read, f"{short(use)} depends on {key[1]}, which is set to {short(start)} in line {start.lineno} and never changed")
                break


def closed(program: Program, of: ast.ClassDef) -> bool:
    """Whether a class is used in the program, and no other class can count for it: it has no bases but object and
    Module, and no class is made of it."""
    if not any(program.called(call) == of.name for call in program.calls()):
        return False
    plain = all(is_name(base, "object") or program.dotted(base) == "torch.nn.Module" for base in of.bases)
    return plain and not any(last_word(base) == of.name for other in program.everywhere(ast.ClassDef) for base in other.bases)


def _counted_by(flow: Flow, read: ast.AST) -> ast.AST | None:
    """The test `x % n == 0`, or the value `exp(-x / n)` or `min(1, x / n)`, that a count decides."""
    inside: ast.AST = read
    for around in flow.program.parents(read):
        if is_binary(around, ast.Mod) and inside is around.left and not isinstance(around.left, ast.Constant):
            test = next((one for one in flow.program.parents(around) if isinstance(one, (ast.If, ast.IfExp, ast.stmt))), None)
            return around if isinstance(test, (ast.If, ast.IfExp)) and any(around is one for one in ast.walk(test.test)) else None
        if isinstance(around, ast.Call):
            ratio = is_binary(inside, ast.Div, ast.Mult) or isinstance(inside, ast.UnaryOp)
            if flow.program.called(around) in ("math.exp", "numpy.exp") and ratio:
                return around
            return around if is_call(around, "min", "max") and is_binary(inside, ast.Div) and len(around.args) == 2 else None
        if not isinstance(around, (ast.BinOp, ast.UnaryOp)):
            return None
        inside = around
    return None


RULES.add(
    "noisy-reference",
    "the targets are those of a network without a random part of its units: they are worse than it is, and other ones each time",
    "call eval() on it once, before the training",
)(noisy_reference)


RULES.add(
    "reference-trained-along",
    "the reference follows the policy: the distance between them says nothing of how far the policy has gone, and holds nothing back",
    "give the optimizer the policy's parameters alone, and compute the reference's answers under no_grad",
)(reference_trained)
