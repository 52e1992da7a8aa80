"""Settings that are given in the wrong place, set where nothing reads them, or used up: they have no effect. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from difflib import get_close_matches

from probe.diagnose.code.finders.training.lost_settings import overwritten
from probe.diagnose.code.flow import flow_of
from probe.diagnose.code.loop.step_calls import goes_over, is_torch_optimizer, owner_of_group
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    argument,
    is_attribute,
    is_binary,
    is_call,
    is_method,
    is_name,
    is_self,
    is_string,
    last_word,
    short,
    text_of,
)

RULES = Rules("loop")

_SLOTS: dict[str, tuple[str, ...]] = {
    "SGD": ("params", "lr", "momentum", "dampening", "weight_decay", "nesterov"),
    "Adam": ("params", "lr", "betas", "eps", "weight_decay", "amsgrad"),
    "AdamW": ("params", "lr", "betas", "eps", "weight_decay", "amsgrad"),
    "RAdam": ("params", "lr", "betas", "eps", "weight_decay"),
    "NAdam": ("params", "lr", "betas", "eps", "weight_decay"),
    "Adamax": ("params", "lr", "betas", "eps", "weight_decay"),
    "RMSprop": ("params", "lr", "alpha", "eps", "weight_decay", "momentum"),
    "Adagrad": ("params", "lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"),
    "Adadelta": ("params", "lr", "rho", "eps", "weight_decay"),
}
"""The order in which optimizers of torch take their arguments."""
_LARGEST_EPS = 1e-5
"""An eps above this one, given by place, was meant as weight decay: the largest in use is 1e-5 (PPO's Adam)."""
_ONCE = frozenset({"filter", "map", "zip", "iter", "enumerate", "reversed"})
"""Builtins that give an iterator: what walks it a second time finds nothing."""
_ONCE_METHODS = frozenset({"parameters", "named_parameters", "modules", "named_modules", "children", "buffers"})
_WALKS = frozenset({"list", "tuple", "set", "sum", "dict", "sorted", "max", "min"})
_GROUP_KEYS = frozenset(
    ["params", "lr", "betas", "eps", "weight_decay", "momentum", "dampening", "nesterov", "amsgrad", "maximize", "foreach", "capturable", "differentiable", "fused", "initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "alpha", "centered", "rho", "lr_decay", "lambd", "t0", "name", "initial_accumulator_value", "etas", "step_sizes", "tolerance_grad", "decoupled_weight_decay", "momentum_decay", "max_iter"]
)
_MEANT = frozenset({"learning_rate", "learning_rates", "rate", "lrate", "base_lr", "decay", "wd", "l2", "weight_dacay", "regularization", "mom", "beta1", "beta2"})
"""What people call settings that have another name in torch."""
_MISSPELT = frozenset({"require_grad", "required_grad", "requires_grads", "require_grads", "requires_gradient", "require_gradient", "requiresgrad", "requires_gard"})


@RULES.add("argument-in-the-wrong-place", "updates are made with other settings than were meant", "give the settings by name")
def _arguments_in_the_wrong_place(program: Program) -> Iterator[Remark]:
    flow = flow_of(program)
    for call in program.calls():
        name = program.called(call)
        last = name.rpartition(".")[2]
        if not name.startswith("torch.optim.") or last not in _SLOTS or any(isinstance(one, ast.Starred) for one in call.args):
            if name == "torch.optim.lr_scheduler.StepLR":
                size = flow.number(argument(call, "step_size", 1))
                if size is not None and 0 < size < 1:
                    yield Remark(call, f"StepLR takes step_size and then gamma: {short(call)} gives a step_size of {size:g}")
            continue
        given = [*zip(_SLOTS[last], call.args, strict=False), *((word.arg, word.value) for word in call.keywords if word.arg)]
        for slot, value in given[1:]:
            number = flow.number(value)
            called = last_word(value)
            if slot in ("eps", "dampening", "momentum", "lr", "alpha", "rho") and called in ("weight_decay", "wd"):
                yield Remark(call, f"{last} takes {short(value)} as {slot}, not as weight_decay")
            elif slot in ("eps", "dampening", "weight_decay") and called in ("lr", "learning_rate", "momentum"):
                yield Remark(call, f"{last} takes {short(value)} as {slot}")
            elif slot == "eps" and value in call.args and number is not None and number > _LARGEST_EPS:
                yield Remark(call, f"the fourth argument of {last} is eps: {number:g} there outweighs the second moment, and was meant as weight_decay")
            elif slot == "dampening" and value in call.args and number is not None and 0 < number < 0.1:
                yield Remark(call, f"the fourth argument of SGD is dampening, not weight_decay: there is no weight decay, and the momentum is damped by {number:g}")
            elif slot == "betas" and isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == 2:
                betas = flow.number(value.elts[0]), flow.number(value.elts[1])
                if betas[0] is not None and betas[1] is not None and betas[0] > betas[1]:
                    yield Remark(call, f"betas of {last} are swapped: {betas[0]:g} is that of the gradient's mean, {betas[1]:g} that of its square")


@RULES.add("whole-division", "what should change step by step changes at once, or never", "divide with /")
def _whole_division(program: Program) -> Iterator[Remark]:
    """A share of progress that is computed by `//`: it is 0 until the end."""
    for node in program.everywhere(ast.BinOp):
        if not isinstance(node.op, ast.FloorDiv) or isinstance(node.right, ast.Constant):
            continue
        parent = program.parent.get(node)
        share = is_binary(parent, ast.Sub) and parent.right is node and ast.unparse(parent.left) == "1.0"
        if is_call(parent, "min") and len(parent.args) == 2:
            other = parent.args[1] if parent.args[0] is node else parent.args[0]
            share = isinstance(other, ast.Constant) and isinstance(other.value, (int, float)) and other.value <= 1 and (isinstance(other.value, float) or _counts(program, node.left))
        if is_binary(parent, ast.Mult):
            other = parent.left if parent.right is node else parent.right
            share = (program.dotted(other) or "") in ("math.pi", "numpy.pi", "torch.pi")
        if share:
            yield Remark(node, f"{short(node)} is a whole number: it stays 0 until {short(node.left)} reaches {short(node.right)}")


def _counts(program: Program, node: ast.AST) -> bool:
    """Whether a name counts passes: a loop sets it, or adds to it."""
    return isinstance(node, ast.Name) and (
        any(isinstance(one, ast.For) and any(isinstance(each, ast.Name) and each.id == node.id for each in ast.walk(one.target)) for one in program.everywhere(ast.For))
        or any(isinstance(one, ast.AugAssign) and isinstance(one.target, ast.Name) and one.target.id == node.id and isinstance(one.op, ast.Add) for one in program.everywhere(ast.AugAssign))
    )


@RULES.add("rate-changed-in-vain", "the rate never changes", 'set group["lr"] in optimizer.param_groups')
def _rate_changed_in_vain(program: Program) -> Iterator[Remark]:
    """The variable that an optimizer's rate was made of is changed in the loop, and nothing reads it there."""
    flow = flow_of(program)
    for call in program.calls():
        if not is_torch_optimizer(program, call):
            continue
        rate = argument(call, "lr", 1)
        key = flow.key(rate)
        if rate is None or key is None or program.loops(call) or key[0] is not program.scope(call):
            continue
        for node in program.everywhere(ast.AugAssign):
            if flow.key(node.target) != key or not program.loops(node) or node.lineno < call.lineno:
                continue
            reads = [one for one in flow.escapes(key) if getattr(one, "lineno", 0) > call.lineno]
            if all(any(is_call(call, "print") for call in program.calls_around(one)) for one in reads):
                yield Remark(node, f"{short(node)} changes a number that the optimizer of line {call.lineno} has copied: its rate stays as it is")


@RULES.add("walked-twice", "the second use sees nothing, and says nothing", "make it a list")
def _walked_twice(program: Program) -> Iterator[Remark]:
    """An iterator that is used up when it is used again."""
    flow = flow_of(program)
    yield from _kept_to_be_walked(program)
    for key in flow.bound:
        value, reads = flow.only(key), flow.escapes(key)
        if value is None or not _walks_once(program, value) or key[1].startswith("self.") or flow.calls.get(key):
            continue
        how = {node: _how_walked(program, node) for node in reads}
        if not reads or None in how.values() or any(program.scope(node) is not key[0] or _leaves_loop(program, node) for node in reads):
            continue
        again = [node for node in reads if len(program.loops(node)) - _walked_by_for(program, node) > len(program.loops(value)) and how[node] != "next"]
        text = f"{key[1]} = {short(value)} can be walked once"
        walked = [node for node in reads if how[node] == "walk"]
        if len(walked) > 1 and _one_after_the_other(program, walked[0], walked[-1]):
            yield Remark(walked[-1], f"{text}: it is used up in line {getattr(walked[0], 'lineno', 0)}, and {_use(program, walked[-1])} finds nothing")
        elif again and again[0] in walked:
            yield Remark(again[0], f"{text}: it is used up in the first pass of the loop, and {_use(program, again[0])} finds nothing from then on")


def _kept_to_be_walked(program: Program) -> Iterator[Remark]:
    """An iterator that an object keeps, and that one of its methods walks, which a loop calls."""
    for node in program.everywhere(ast.Assign):
        kept, of = node.targets[0], program.class_of(node)
        if of is None or not isinstance(kept, ast.Attribute) or not is_name(kept.value, "self") or not _walks_once(program, node.value):
            continue
        places = [one for one in ast.walk(of) if is_attribute(one, kept.attr) and is_name(one.value, "self") and one is not kept]
        loops = [(one, next((loop for loop in program.loops(one) if isinstance(loop, ast.For) and any(part is one for part in ast.walk(loop.iter))), None)) for one in places]
        if len(loops) != 1 or not isinstance(places[0].ctx, ast.Load) or program.frame(places[0]) is program.frame(node):
            continue
        read, loop = loops[0]
        method = getattr(program.frame(read), "name", "")
        if loop is not None and not _leaves_loop(program, read) and any(is_method(call, method) and program.loops(call) for call in program.calls()):
            yield Remark(read, f"{short(kept)} = {short(node.value)} can be walked once: it is used up when {method}() is called first, and line {loop.lineno} finds nothing from then on")


def _walks_once(program: Program, node: ast.AST) -> bool:
    if program.called(node) in ("itertools.chain", "itertools.islice", "itertools.starmap"):
        return True
    if is_call(node, *_ONCE):
        return node.func.id not in program.functions and node.func.id not in program.classes
    if is_method(node, *_ONCE_METHODS):
        return program.family(node.func.value) == "module" and not node.args
    return isinstance(node, ast.GeneratorExp)


def _how_walked(program: Program, node: ast.AST) -> str | None:
    """`walk` where all of an iterator is taken at a place, `next` where one item is; None for any other use."""
    parent = program.parent.get(node)
    if isinstance(parent, ast.For) and parent.iter is node:
        return None if any(isinstance(one, (ast.Break, ast.Return)) for one in ast.walk(parent)) else "walk"
    if isinstance(parent, ast.comprehension) and parent.iter is node:
        return "walk"
    if isinstance(parent, ast.Call) and node in parent.args:
        name = program.called(parent)
        walks = name.startswith("torch.optim.") or name.rpartition(".")[2] in ("clip_grad_norm_", "clip_grad_value_", "parameters_to_vector")
        if (walks and parent.args[0] is node) or (is_call(parent, *_WALKS) and len(parent.args) == 1):
            return "walk"
        if is_call(parent, "next"):
            return "next"
    return None


def _walked_by_for(program: Program, node: ast.AST) -> bool:
    """Whether the innermost loop around a read is the one that walks it."""
    loops = program.loops(node)
    return bool(loops) and isinstance(loops[0], ast.For) and any(one is node for one in ast.walk(loops[0].iter))


def _leaves_loop(program: Program, node: ast.AST) -> bool:
    return any(isinstance(one, (ast.Return, ast.Break)) for loop in program.loops(node)[:1] for one in ast.walk(loop))


def _one_after_the_other(program: Program, first: ast.AST, second: ast.AST) -> bool:
    """Whether two reads are not in two branches of one `if`, nor before and after a return."""
    branches = [one for one in program.parents(first) if isinstance(one, (ast.If, ast.Try, ast.IfExp))]
    return not branches or (all(one in program.parents(second) for one in branches) and not any(
        any(inner is first for inner in ast.walk(part)) != any(inner is second for inner in ast.walk(part))
        for one in branches if isinstance(one, ast.If) for part in one.body
    ))


def _use(program: Program, node: ast.AST) -> str:
    parent = program.parent.get(node)
    return f"line {getattr(node, 'lineno', 0)}" if not isinstance(parent, ast.Call) else short(parent.func)


@RULES.add("initialised-in-vain", "the weight is computed anew from its parts in each forward: the layer keeps its first values", "initialise the layer first, and normalize its weight then")
def _initialised_in_vain(program: Program) -> Iterator[Remark]:
    """Initial values for the weight of a layer that weight_norm or spectral_norm computes."""
    flow = flow_of(program)
    for call in program.calls():
        given = call.args[0] if call.args else None
        while is_attribute(given, "data"):
            given = given.value
        if not program.called(call).startswith("torch.nn.init.") or not is_attribute(given, "weight"):
            continue
        made = flow.value(given.value)
        name = program.called(made)
        if name.startswith("torch.nn.utils.") and name.rpartition(".")[2] in ("weight_norm", "spectral_norm", "orthogonal"):
            yield Remark(call, f"{short(call)} sets what {name.rpartition('.')[2]} computes from other parameters: {text_of(given.value)} does not keep it")


@RULES.add("set-in-vain", "the training goes on as if it had not been set", "requires_grad_(False) of the module; group[...] of optimizer.param_groups; eval() and train()")
def _set_in_vain(program: Program) -> Iterator[Remark]:
    """An attribute that is set on an object that does not have it."""
    flow = flow_of(program)
    for node in program.everywhere(ast.Assign):
        target = node.targets[0]
        if isinstance(target, ast.Subscript):
            yield from _group_key(program, node, target)
            continue
        if not isinstance(target, ast.Attribute) or is_self(target.value):
            continue
        name, said = target.attr, short(target)
        family, made = program.family(target.value), program.kind_name(target.value)
        reads = flow.attributes.get(name, 0)
        if name in _MISSPELT and not reads and (family != "tensor" or "True" in text_of(node.value)) and (
            family is not None or goes_over(program, target.value, "parameters", "named_parameters") or "True" in text_of(node.value)
        ):
            yield Remark(node, f"{said} is no attribute of torch: requires_grad is, and keeps its value")
        elif name == "requires_grad" and isinstance(node.value, ast.Constant) and (family == "module" or goes_over(program, target.value, "modules", "children", "named_modules", "named_children")):
            yield Remark(node, f"{said} = {short(node.value)} sets an attribute of the module; its parameters keep theirs")
        elif name == "trainable" and not reads and (family == "module" or goes_over(program, target.value, "parameters", "modules", "children")):
            yield Remark(node, f"{said} is an attribute of Keras: torch does not read it, and nothing is frozen")
        elif family == "optimizer" and made.startswith("torch.optim.") and name in ("lr", "learning_rate", "weight_decay", "momentum") and not reads:
            yield Remark(node, f"{said} is set, and the optimizer does not read it: its settings are in param_groups")
        elif made in program.classes and family == "module" and name == "training" and isinstance(node.value, ast.Constant):
            yield Remark(node, f"{said} = {short(node.value)} sets the mode of the outermost module alone: its layers keep theirs")


@RULES.add("unknown-group-setting", "the group is trained with the settings of all others", "give the setting by the name that the optimizer knows")
def _unknown_in_groups(program: Program) -> Iterator[Remark]:
    """A number in a group of parameters under a name that looks like a setting and is none."""
    flow = flow_of(program)
    for call in program.calls():
        if not is_torch_optimizer(program, call) or not program.called(call).startswith("torch.optim."):
            continue
        given = argument(call, "params", 0)
        results = program.results(flow.value(given))
        listed = flow.value(results[0]) if len(results) == 1 else flow.value(given)
        groups = listed.elts if isinstance(listed, (ast.List, ast.Tuple)) else []
        for group in map(flow.value, groups):
            for word, value, node in _entries(group):
                number = flow.number(value) is not None or is_attribute(value) or is_binary(value, ast.Mult, ast.Div)
                if word in _GROUP_KEYS or not number or not (word in _MEANT or get_close_matches(word, sorted(_GROUP_KEYS), 1, 0.8)):
                    continue
                inside = sum(isinstance(one, ast.Constant) and one.value == word for other in groups for one in ast.walk(flow.value(other)))
                quoted = sum(isinstance(one, ast.Constant) and one.value == word for one in program.everywhere(ast.Constant))
                if quoted <= inside:
                    yield Remark(node, f"{last_word(call.func)} knows no setting {word!r}, and takes it without a word: the group has the optimizer's own value")


def _entries(group: ast.AST) -> Iterator[tuple[str, ast.expr, ast.AST]]:
    """The settings of a group of parameters: the word, its value, and where it stands."""
    if isinstance(group, ast.Dict):
        for name, value in zip(group.keys, group.values, strict=True):
            if is_string(name):
                yield name.value, value, value
    elif is_call(group, "dict"):
        for one in group.keywords:
            if one.arg is not None:
                yield one.arg, one.value, one.value


def _group_key(program: Program, node: ast.Assign, target: ast.Subscript) -> Iterator[Remark]:
    held = target.value
    if not is_string(target.slice):
        return
    word = target.slice.value
    if is_attribute(held, "defaults") and program.family(held.value) == "optimizer" and word in ("lr", "weight_decay", "momentum"):
        if not any(is_attribute(one, "add_param_group") for one in program.everywhere(ast.Attribute)):
            yield Remark(node, f"{short(target)} is the default for groups that are added later: the groups that exist keep theirs")
        return
    name = program.kind_name(owner_of_group(program, held))
    if name.startswith("torch.optim.") and word not in _GROUP_KEYS:
        quoted = sum(isinstance(one, ast.Constant) and one.value == word for one in program.everywhere(ast.Constant))
        assigned = [one for one in program.everywhere(ast.Assign) for target in one.targets if any(
            isinstance(inner, ast.Constant) and inner.value == word for inner in ast.walk(target)
        )]
        if quoted == len(set(assigned)):
            yield Remark(node, f"{short(target)} is set, and {name.rpartition('.')[2]} reads no setting of that name")


@RULES.add("setting-lost-to-its-schedule", "what was set is gone after the first step: the number stays near the first one of its schedule, or swings between two", "keep the setting, and give what the schedule makes of it a name of its own")
def _lost_to_its_schedule(program: Program) -> Iterator[Remark]:
    """A setting that is overwritten by what a schedule makes of it at a step."""
    yield from overwritten(program)
