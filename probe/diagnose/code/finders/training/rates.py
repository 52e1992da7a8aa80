"""Rates, schedules and settings of optimizers, and modes of networks, from pass to pass. Pure; standard library only."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.frames import folded
from probe.diagnose.code.computed.value import (
    Instance,
    Many,
    Value,
    alternatives,
    bare,
    comes_from,
    constant,
    number,
    origins,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import mentions, names_set, short
from probe.diagnose.code.traits.arithmetic import product
from probe.diagnose.code.traits.backwards import layers_of, networks_in
from probe.diagnose.code.traits.updates import (
    always_with,
    backwards,
    conditions,
    is_optimizer,
    is_schedule,
    modules,
    optimizer_of,
    plain,
    runs,
)

FINDERS = Finders()
_SETTINGS = frozenset({"lr", "momentum", "weight_decay", "betas", "eps"})
_MISSPELT = frozenset({"require_grad", "requires_gradient", "require_gradient", "required_grad", "requires_grads", "require_grads"})


def _optimizer(schedule: Value) -> Value | None:
    return schedule.argument("optimizer", 0)


def _schedule_steps(computation: Computation) -> Iterator[tuple[Value, Value]]:
    """Each step of a schedule of torch, and the schedule."""
    for value in computation.of("step"):
        if value.args and is_schedule(value.args[0]):
            yield value, value.args[0]


@FINDERS.add("schedule-given-a-score")
def _schedule_given_a_score(program: Program) -> Iterator[Remark]:
    """A schedule that counts its steps is given a loss or a metric in place of a number of them."""
    for value, schedule in _schedule_steps(computation_of(program)):
        word = schedule.op.rpartition(".")[2]
        given = value.argument("epoch", 1)
        if given is None or word == "ReduceLROnPlateau":
            continue
        measured = networks_in(given) or any(one.op.startswith("sklearn.metrics.") for one in origins(given))
        if measured and not any(one.op in ("index", "count") for one in origins(given, ("run", "element", "item"))):
            yield Remark(value.node, f"{short(value.node)} gives {word} a score, which it takes for the number of the epoch")


@FINDERS.add("schedule-of-a-lost-optimizer")
def _schedule_of_a_lost_optimizer(program: Program) -> Iterator[Remark]:
    """A schedule steps on, and its optimizer steps no more: another one for the same network does."""
    computation = computation_of(program)
    steps = [(one, optimizer) for one in computation.of("step") if (optimizer := optimizer_of(one)) is not None]
    seen: set[int] = set()
    for value, schedule in _schedule_steps(computation):
        old = _optimizer(schedule)
        if old is None or not is_optimizer(old) or id(schedule) in seen:
            continue
        for step, new in steps:
            alike = new is not old and new.number > schedule.number and new.number < value.number and runs(step) == runs(value) and step.number > new.number
            kept = any(optimizer is old and one.number > new.number for one, optimizer in steps)
            if alike and not kept and any(a is b or _holds(a, b) for a in modules(new) for b in modules(old)) and not any(
                is_schedule(one) and _optimizer(one) is new for one in computation.users(new)
            ):
                seen.add(id(schedule))
                yield Remark(value.node, f"{short(value.node)} changes the rate of the optimizer of line {old.line}, and that of line {new.line} makes the steps")
                break


def _holds(one: Value, other: Value) -> bool:
    """Whether a network is a part of another one."""
    return any(one is each for each in (*layers_of(other), *origins(other))) or any(other is each for each in (*layers_of(one), *origins(one)))


@FINDERS.add("never-stepped")
def _never_stepped(program: Program) -> Iterator[Remark]:
    """A schedule is made for an optimizer that steps in a loop, and is only read."""
    computation = computation_of(program)
    for schedule in computation.values:
        if not is_schedule(schedule) or (old := _optimizer(schedule)) is None:
            continue
        quiet = all(one.op in ("state_dict", "get_last_lr", "set_attribute", "tuple", "print", "text", "get_lr") for one in computation.users(schedule))
        stepped = any(optimizer_of(one) is old and one.where.loops for one in computation.of("step"))
        if quiet and stepped and not any(isinstance(one, Many) and not _is_unpacked(one, program) for one in computation.users(schedule)):
            yield Remark(schedule.node, f"{short(schedule.node)} is made and never stepped: the rate never changes")


@FINDERS.add("never-stepped")
def _optimizer_never_stepped(program: Program) -> Iterator[Remark]:
    """Of several optimizers one is made (not as the base of an own one), and is read at most, while another one steps in a loop."""
    computation = computation_of(program)
    stepped = [held for one in computation.of("step") if (held := optimizer_of(one)) is not None and one.where.loops]
    nodes = {held.node for held in stepped}  # another object of the same class may be one that is not trained
    for made in computation.values if stepped else ():
        if not is_optimizer(made) or mentions(made.node, "__init__") or made.node in nodes or made.where.maybe or made.where.loops or not any(runs(one) == runs(made) for one in stepped):
            continue
        if computation.users(made) and all(_only_reads(one, computation) for one in computation.users(made)):
            yield Remark(made.node, f"{short(made.node)} is made and never stepped: no parameter of it ever changes")
            return


_ONLY_READ = ("zero_grad", "state_dict", "load_state_dict", "param_groups", "set_attribute", "print", "text")


def _only_reads(value: Value, computation: Computation) -> bool:
    """Whether nothing that is made of an optimizer can step it: a schedule, a state, or a list that is gone over in place."""
    if isinstance(value, Many):
        return not value.grown and not value.where.functions[1:] and all(isinstance(one, Many) and _only_reads(one, computation) for one in computation.users(value))
    return value.op in _ONLY_READ or is_schedule(value)


def _is_unpacked(value: Many, program: Program) -> bool:
    """Whether a tuple is what a function of the program returns, to a call that the program makes."""
    return value.op == "tuple" and isinstance(program.parent.get(value.node), ast.Return) and len(value.where.functions) > 1


@FINDERS.add("schedule-at-the-wrong-level")
def _schedule_at_the_wrong_level(program: Program) -> Iterator[Remark]:
    """A schedule steps with each batch, and brings the rate to nothing within a few hundred of them."""
    computation = computation_of(program)
    for value, schedule in _schedule_steps(computation):
        batches = _passes_to_nothing(schedule)
        optimizer = _optimizer(schedule)
        together = [one for one in computation.of("step") if optimizer_of(one) is optimizer and optimizer is not None and always_with(one, value) and always_with(value, one)]
        loops = value.where.loops
        if batches is None or batches > 400 or not together or len(loops) < 2 or not _counts(loops[-2]) or loops[-2] in schedule.where.loops:
            continue
        if not any(one.node is loops[-1] and (one.op == "rows" or one.args[0].op == "@input") for one in computation.of("element", "rows")):
            continue
        yield Remark(value.node, f"{short(value.node)} runs for each batch: {schedule.op.rpartition('.')[2]} has brought the rate below a thousandth after {batches} of them")


def _counts(loop: ast.AST) -> bool:
    """Whether a loop counts, and does not go through data."""
    over = loop.iter if isinstance(loop, ast.For) else loop.generators[0].iter if isinstance(loop, (ast.ListComp, ast.GeneratorExp)) and len(loop.generators) == 1 else None
    return isinstance(over, ast.Call) and isinstance(over.func, ast.Name) and over.func.id in ("range", "trange")


def _passes_to_nothing(schedule: Value) -> int | None:
    """After how many steps a schedule has brought the rate below a thousandth."""
    word = schedule.op.rpartition(".")[2]
    gamma = number(schedule.argument("gamma", 1 if word == "ExponentialLR" else 2)) or (0.1 if word == "StepLR" else None)
    size = number(schedule.argument("step_size", 1)) if word == "StepLR" else 1.0
    if word not in ("StepLR", "ExponentialLR") or gamma is None or size is None or not 0 < gamma < 1:
        return None
    return int(size * math.ceil(math.log(1e-3) / math.log(gamma)))


@FINDERS.add("two-set-the-rate")
def _two_set_the_rate(program: Program) -> Iterator[Remark]:
    """The rate of an optimizer is set by hand, whatever it was, in the loop that steps its schedule."""
    computation = computation_of(program)
    for value in computation.of("set_item"):
        group, given = value.args[0], value.args[2]
        if constant(value.args[1]) != "lr" or not value.where.loops or any(_is_rate(one) for one in origins(given)):
            continue
        owners = [one.args[0] for one in origins(group) if one.op == "param_groups" and one.args]
        for step, schedule in _schedule_steps(computation):
            alike = any(_optimizer(schedule) is one for one in owners) and runs(step) == runs(value)
            if alike and step.where.loops and value.where.loops[: len(step.where.loops)] == step.where.loops and conditions(value) <= conditions(step):
                yield Remark(value.node, f"{short(value.node)} is set by hand in the loop that steps {short(schedule.node)} (line {step.line}): what the schedule computes is overwritten")
                break


def _is_rate(value: Value) -> bool:
    """Whether a value is read from the groups of an optimizer or from a schedule."""
    return value.op in ("get_last_lr", "get_lr", "param_groups")


@FINDERS.add("rate-as-factor")
def _rate_as_factor(program: Program) -> Iterator[Remark]:
    """LambdaLR multiplies a small rate by a factor that is never larger than that rate."""
    for value in computation_of(program).values:
        if value.op != "torch.optim.lr_scheduler.LambdaLR" or (factor := value.named.get("factor")) is None:
            continue
        optimizer = _optimizer(value)
        rate = number(optimizer.argument("lr", 1)) if optimizer is not None else None
        if rate is None or not 0 < rate <= 0.05:
            continue
        found = [at_step(factor, step) for step in (0.0, 1.0, 10.0, 100.0, 1e3, 1e4)]
        known = [one for one in found if one is not None]
        given = optimizer.argument("lr", 1) if optimizer is not None else None
        factors = [product(one).above for one in alternatives(factor)]
        small = all(any(0 < (number(part) or 0) <= rate * 1.01 for part in above) for above in factors)
        if small and any(part is given for above in factors for part in above):
            yield Remark(value.node, f"LambdaLR multiplies the rate {rate:g} by what its function returns, and the rate is a factor of that: the rate in use is about the square of it")
        elif len(known) >= 3 and None not in found[:3] and 0 < max(known) <= rate * 1.01:
            yield Remark(value.node, f"LambdaLR multiplies the rate {rate:g} by a factor that is {max(known):.2g} at most, a rate itself: the rate in use is about the square of it")


_OF_ONE: dict[str, Callable[[float], float]] = {
    "cos": math.cos, "sin": math.sin, "exp": math.exp, "sqrt": math.sqrt, "neg": operator.neg, "builtins.float": float, "float": float,
}


def at_step(value: Value, step: float, depth: int = 30) -> float | None:
    """The number that a value is in one step, if it can be computed."""
    if (known := number(value)) is not None:
        return known
    if value.op == "index":
        return step
    if value.op == "@library" and str(value.data).endswith(".pi"):
        return math.pi
    if depth == 0:
        return None
    inner = [at_step(one, step, depth - 1) for one in value.args if value.op != "either" or _is_taken(one, step, depth - 1)]
    if any(one is None for one in inner) or not inner:
        return None
    parts = [one for one in inner if one is not None]
    if value.op in ("builtins.min", "builtins.max", "min", "max", "either"):
        return min(parts) if value.op.endswith("min") else max(parts)
    if len(parts) == 1:
        try:
            return _OF_ONE[value.op](parts[0])
        except (KeyError, ValueError, OverflowError):
            return None
    result = folded(value.op, *parts) if len(parts) == 2 else None
    return float(result) if isinstance(result, (int, float)) else None


def _is_taken(value: Value, step: float, depth: int) -> bool:
    """Whether a value that is computed in a branch may be the one of a step: no condition around it is known to be another."""
    for test, holds in value.where.under:
        compare = _COMPARED.get(test.op) if len(test.args) == 2 else None
        left, right = (at_step(one, step, depth) for one in test.args) if compare is not None else (None, None)
        if compare is not None and left is not None and right is not None and compare(left, right) != holds:
            return False
    return True


_COMPARED: dict[str, Callable[[float, float], bool]] = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq}


@FINDERS.add("rate-changed-in-vain")
def _rate_changed_in_vain(program: Program) -> Iterator[Remark]:
    """A number that an optimizer has copied is changed in a loop, and nothing gives it to the optimizer."""
    computation = computation_of(program)
    made = [one for one in computation.values if is_optimizer(one)]
    if len(made) != 1 or any(mentions(source.tree, "param_groups") for source in program.sources):
        return
    rate = made[0].argument("lr", 1)
    for value in computation.of("set_attribute", "set_item"):
        new = value.args[-1]
        if rate is None or value.number < made[0].number or not value.where.loops or not _is_of(value, rate, computation):
            continue
        used = [one for one in computation.users(new) if one.op not in ("set_attribute", "set_item", "print", "text", "either", "dict", "append", "add_scalar")]
        if not used and isinstance(value.node, (ast.Attribute, ast.Subscript)):
            yield Remark(value.node, f"{short(value.node)} is a number that the optimizer of line {made[0].line} has copied: its rate stays as it is")
            return


def _is_of(change: Value, rate: Value, computation: Computation) -> bool:
    """Whether a change gives a new number to the attribute or entry that the rate was read from, made from the old one."""
    parent = computation.program.parent.get(change.node)
    key = change.data if change.op == "set_attribute" else constant(change.args[1])
    last = rate.node.attr if isinstance(rate.node, ast.Attribute) else constant(rate.args[1]) if rate.op == "part" else None
    again = isinstance(parent, ast.AugAssign) or (isinstance(parent, ast.Assign) and any(ast.dump(one) == ast.dump(_read(change.node)) for one in ast.walk(parent.value) if isinstance(one, (ast.Attribute, ast.Subscript))))
    first = any(one.op in ("set_attribute", "set_item") and one.args[-1] is rate and one.args[0] is change.args[0] and (one.op == "set_item" or one.data == key) for one in computation.users(rate))
    held = isinstance(change.args[0], Instance) and change.args[0].op == "@object" and first
    return again and (held or (key is not None and key == last and runs(change) == runs(rate) and comes_from(change.args[-1], rate)))


def _read(target: ast.AST) -> ast.AST:
    """The expression that reads what a target sets."""
    return ast.parse(ast.unparse(target), mode="eval").body


@FINDERS.add("attribute-of-nothing")
def _attribute_of_nothing(program: Program) -> Iterator[Remark]:
    """A setting is written to an optimizer, or to a parameter, under a name that nothing reads."""
    computation = computation_of(program)
    for value in computation.of("set_attribute"):
        if is_optimizer(value.args[0]) and value.data in _SETTINGS and not any(one.args and one.args[0] is value.args[0] for one in computation.of(value.data)):
            yield Remark(value.node, f"{short(value.node)} = ... sets an attribute that the optimizer does not read: its settings are in param_groups")
        elif value.data in _MISSPELT and any(one.op in ("parameters", "named_parameters", "weight", "bias") for one in origins(value.args[0])):
            yield Remark(value.node, f"{short(value.node)} = ... sets an attribute that nothing reads: its name is requires_grad")


@FINDERS.add("set-in-vain")
def _set_in_vain(program: Program) -> Iterator[Remark]:
    """The defaults of an optimizer are set after it was made, or `training` of a network and not of its layers."""
    computation = computation_of(program)
    for value in computation.of("set_item"):
        of = value.args[0]
        if of.op == "defaults" and of.args and is_optimizer(of.args[0]) and constant(value.args[1]) in _SETTINGS:
            yield Remark(value.node, f"{short(value.node)} = ... sets what new groups begin with: the groups that the optimizer has keep their own")
        elif _is_first_rate(value, computation):
            yield Remark(value.node, f"{short(value.node)} = ... is what a schedule begins with, and there is none: the optimizer steps by another entry, 'lr'")
    for value in computation.of("set_attribute"):
        layers = layers_of(value.args[0])[1:] if value.data == "training" else []
        modal = [one for one in layers if "Dropout" in one.op or "BatchNorm" in one.op]
        if modal and not any(one.op in ("train", "eval") and plain(one.args[0]) is value.args[0] for one in computation.of("train", "eval")):
            yield Remark(value.node, f"{short(value.node)} = ... sets the mode of the network alone: its layers, as in line {modal[0].line}, keep theirs")


def _is_first_rate(value: Value, computation: Computation) -> bool:
    """Whether a rate is written into a group of an optimizer in each step as `initial_lr`, in a program without a schedule."""
    group = value.args[0]
    inside = constant(value.args[1]) == "initial_lr" and len(value.where.loops) > 1 and any(one.op == "param_groups" for one in origins(group, stop=("param_groups",)))
    return inside and not any("lr_scheduler" in one.op or one.op in ("get_scheduler", "step_update") for one in computation.values) and not any(
        constant(one.args[1]) in ("lr", "initial_lr") and one is not value for one in computation.of("set_item", "part") if len(one.args) > 1
    )


@FINDERS.add("left-in-eval-mode")
def _left_in_eval_mode(program: Program) -> Iterator[Remark]:
    """A network is put into eval mode after the training part of a loop, and nothing in the loop undoes it."""
    computation = computation_of(program)
    modes = [one for one in computation.of("train", "eval") if one.args]
    if _has_own_modes(program):
        return
    for value in computation.of("eval"):
        if not value.args or len(value.args) > 1 or not value.where.loops:
            continue
        module = plain(value.args[0])
        for step in computation.of("step"):
            optimizer = optimizer_of(step)
            if optimizer is None or step.number > value.number or runs(step) != runs(value) or not any(module is one for one in modules(optimizer)):
                continue
            loops = [a for a, b in zip(step.where.loops, value.where.loops, strict=False) if a is b]
            if not loops or _is_undone(computation, modes, module, loops[0]) or module.where.loops[: 1] == tuple(loops[:1]):
                continue
            if any(one.where.no_grad and one.number > value.number and (plain(one.args[0]) is module or _runs_inside(one, module)) for one in computation.of("run")):
                yield Remark(value.node, f"{short(value.node)} is never undone in the loop of line {getattr(loops[0], 'lineno', 0)}: from its second pass on, {short(step.node)} (line {step.line}) trains in eval mode")
                return


def _has_own_modes(program: Program) -> bool:
    """Whether a network of the program has its own train() or eval()."""
    found = (program.class_of(one) for name in ("train", "eval") for one in program.functions.get(name, ()))
    return any(of is not None and of.bases for of in found)


def _runs_inside(one: Value, module: Value) -> bool:
    """Whether a layer of a network runs."""
    return isinstance(module, Instance) and any(one.args[0] is each for each in layers_of(module))


def _is_undone(computation: Computation, modes: list[Value], module: Value, loop: ast.AST) -> bool:
    """Whether a network, or what it is a part of, may be put into training mode in a loop."""
    for one in modes:
        if one.op != "train" and len(one.args) == 1:
            continue
        of = plain(one.args[0])
        related = of is module or of.op not in ("@input", "@object") or any(module is each for each in layers_of(of)) or isinstance(of, Instance)
        if related and loop in one.where.loops:
            return True
    changed = any(loop in one.where.loops and one.data == "training" for one in computation.of("set_attribute"))
    given = any(loop in one.where.loops and any(plain(each) is module for each in one.args[1:]) for one in computation.of("run"))
    return changed or given


@FINDERS.add("part-left-in-training-mode")
def _part_left_in_training_mode(program: Program) -> Iterator[Remark]:
    """Two networks are put into training mode in a loop, and one of them alone into eval mode for the score."""
    computation = computation_of(program)
    if _has_own_modes(program):
        return
    trained = {id(plain(one.args[0])): plain(one.args[0]) for one in computation.of("train") if len(one.args) == 1 and one.where.loops}
    evals = [one for one in computation.of("eval") if one.args]
    rested = {id(plain(one.args[0])) for one in evals}
    inside = {id(layer) for one in evals for layer in layers_of(plain(one.args[0]))}
    for key, module in trained.items():
        layers = layers_of(module)
        modal = [one for one in layers if "Dropout" in one.op or "BatchNorm" in one.op]
        if key in rested or key in inside or not modal or not rested & trained.keys() or any(id(one) in rested for one in layers):
            continue
        held = {id(one) for one in layers}
        for one in computation.values:
            if one.args and one.where.no_grad and one.where.loops and id(one.args[0]) in held and one.op in ("run", "dropout") and any(each.number < one.number and runs(each) == runs(one) and id(plain(each.args[0])) in trained for each in evals):
                if not any(each.op in ("train", "set_attribute") and each.data == "training" for each in computation.of("set_attribute")) and not any(len(each.args) > 1 for each in computation.of("train")):
                    yield Remark(one.node, f"{short(one.node)} runs for a score while {short(module.node)} is in training mode: eval() in line {evals[-1].line} is not called on it")
                return


@FINDERS.add("hooks-in-the-loop")
def _hooks_in_the_loop(program: Program) -> Iterator[Remark]:
    """A hook is put on a layer or parameter in each pass of a training's loop, and its handle is thrown away."""
    computation = computation_of(program)
    if any(one.op in ("remove", "clear") for one in computation.values):
        return
    backward = [one for one in computation.of("backward") if one.where.loops]
    for value in computation.values:
        if not value.op.startswith("register_") or not value.op.endswith("hook") or computation.users(value) or not value.where.loops:
            continue
        loop = value.where.loops[0]
        fresh = any(one.op == "run" for one in origins(value.args[0])) or any(loop in one.where.loops and one.op not in _WALKS for one in origins(value.args[0]) if one.op not in ("@constant", "tuple"))
        if not fresh and any(loop in one.where.loops and runs(one) == runs(value) and conditions(value) <= conditions(one) for one in backward):
            yield Remark(value.node, f"{short(value.node)} runs again and again in the loop of line {getattr(loop, 'lineno', 0)}, and nothing removes the hooks")
            return


_WALKS = frozenset({"parameters", "named_parameters", "modules", "named_modules", "children", "named_children", "element", "part", "index"})


@FINDERS.add("made-in-the-loop")
def _made_in_the_loop(program: Program) -> Iterator[Remark]:
    """An optimizer that remembers is made anew for each step, or for each epoch, of one network."""
    computation = computation_of(program)
    for step in computation.of("step"):
        optimizer = optimizer_of(step)
        if optimizer is None or not optimizer.where.loops or runs(step) != runs(optimizer) or not _remembers(optimizer):
            continue
        loops, held = optimizer.where.loops, modules(optimizer)
        kept = bool(held) and all(loops[-1] not in one.where.loops and (one.op in ("@input", "@object", "dict") or one.op.startswith("torch.nn.")) for one in held)
        once = any(isinstance(one, ast.If) and "None" in ast.unparse(one.test) for one in program.parents(optimizer.node))
        if not kept or once or _changes_in(computation, loops[-1], optimizer):
            continue
        if step.where.loops == loops and not _counts(loops[-1]):
            yield Remark(optimizer.node, f"{short(optimizer.node)} is made anew for each step (line {step.line}): its moments never build up")
            return
        inner = step.where.loops[len(loops):]
        if len(inner) == 1 and step.where.loops[: len(loops)] == loops and _counts(loops[-1]) and len(loops) == 1 and _same_data(computation, step, loops):
            yield Remark(optimizer.node, f"{short(optimizer.node)} is made anew in each pass of the loop of line {getattr(loops[-1], 'lineno', 0)} over the same data: its moments are lost each time")
            return


def _remembers(optimizer: Value) -> bool:
    """Whether an optimizer keeps moments."""
    word = optimizer.op.rpartition(".")[2]
    return word in ("Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adamax") or (word == "SGD" and (number(optimizer.argument("momentum", 2)) or 0) > 0)


def _changes_in(computation: Computation, loop: ast.AST, optimizer: Value) -> bool:
    """Whether a pass of a loop begins with another network or other settings."""
    given = [*optimizer.args[1:], *optimizer.named.values()]
    moving = any(loop in one.where.loops and one.op in ("index", "part", "element", "count") for part in given for one in origins(part))
    return moving or any(
        loop in one.where.loops and one.op in ("load_state_dict", "reset_parameters", "deepcopy", "requires_grad_", "apply") for one in computation.values
    ) or any(loop in one.where.loops and one.data == "requires_grad" for one in computation.of("set_attribute"))


def _same_data(computation: Computation, step: Value, loops: tuple[ast.AST, ...]) -> bool:
    """Whether the loop around a step goes over data that was made before the outer loop."""
    loop = step.where.loops[-1]
    for one in computation.of("element", "rows"):
        of = one.named.get("loader") or one.args[0]
        if one.where.loops == step.where.loops and one.node is loop and of.where.loops[: len(loops)] != loops:
            return True
    between = [each for value, loss in backwards(computation) if value.where.loops == step.where.loops for each in origins(loss) if each.where.loops == loops]
    return any(each.op == "randperm" for each in between) and all(each.op in _ORDERS for each in between)


_ORDERS = ("randperm", "split", "chunk", "len", "range", "tolist", "tuple", "list", "zip", "view", "reshape", "@constant", "@library")


@FINDERS.add("walked-twice")
def _walked_twice(program: Program) -> Iterator[Remark]:
    """Parameters that can be walked once are used up by an optimizer, and given to a clip after it."""
    computation = computation_of(program)
    for clip in computation.values:
        if not clip.op.startswith("torch.nn.utils.clip_grad") or not clip.args:
            continue
        given = clip.args[0]
        once = isinstance(given.node, ast.GeneratorExp) or given.op in ("filter", "builtins.filter") or _yields(program, given)
        first = [one for one in computation.users(given) if is_optimizer(one) and one.number < clip.number]
        if once and first and (given.node is not first[0].node):
            yield Remark(clip.node, f"{short(clip.args[0].node)} can be walked once: the optimizer of line {first[0].line} has used it up, and {short(clip.node)} finds nothing")


def _yields(program: Program, value: Value) -> bool:
    """Whether a value is what a generator of the program gives."""
    local = program.local_function(value.node) if isinstance(value.node, ast.Call) else None
    return isinstance(value, Many) and local is not None and any(isinstance(one, ast.Yield) for one in ast.walk(local))


@FINDERS.add("parameter-rebound")
def _parameter_rebound(program: Program) -> Iterator[Remark]:
    """A parameter minus a multiple of its gradient is given to the name of a loop, and read by nothing."""
    computation = computation_of(program)
    for value in computation.of("sub", "add"):
        parent = program.parent.get(value.node)
        if computation.users(value) or not isinstance(parent, ast.Assign) or not isinstance(parent.targets[0], ast.Name) or not value.where.loops:
            continue
        weight = value.args[0]
        own = isinstance(value.node, ast.BinOp) and isinstance(value.node.left, ast.Name) and value.node.left.id == parent.targets[0].id
        of_a_loop = any(isinstance(loop, ast.For) and parent.targets[0].id in names_set(loop.target) for loop in program.loops(value.node))
        if own and of_a_loop and any(one.op == "grad" and bare(one.args[0]) is bare(weight) for one in origins(value.args[1])):
            yield Remark(parent, f"{short(parent)} gives the name {parent.targets[0].id} a new tensor: the parameter that it stood for keeps its value")
