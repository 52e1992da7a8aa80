"""What is made once where each fold, and what is made in each epoch where one was meant. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Instance, Value, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.backwards import CUTS, layers_of
from probe.diagnose.code.traits.held import contents, optimizers
from probe.diagnose.code.traits.updates import (
    backwards,
    conditions,
    is_schedule,
    modules,
    optimizer_of,
    plain,
    runs,
)
from probe.diagnose.code.traits.weights import has_parameters

FINDERS = Finders()
_COMPARES = ("lt", "gt", "le", "ge")
_LONG = (
    "StepLR", "MultiStepLR", "CosineAnnealingLR", "OneCycleLR", "ReduceLROnPlateau", "LambdaLR", "LinearLR", "CosineAnnealingWarmRestarts", "PolynomialLR",
    "ConstantLR", "SequentialLR",
)
"""Schedules that begin anew where they are made anew."""


def best_of_another_fold(program: Program) -> Iterator[Remark]:
    """A network is made in each round of a loop, and its epochs are compared with the best score of all rounds before."""
    computation = computation_of(program)
    made = {
        id(layer): module.where.loops for step in computation.of("step") if (optimizer := optimizer_of(step)) is not None
        for module in modules(optimizer) if module.where.loops and len(step.where.loops) > len(module.where.loops) for layer in layers_of(module)
    }
    for test in computation.of(*_COMPARES) if made else ():
        for score, best in (test.args, test.args[::-1]) if len(test.args) == 2 else ():
            rounds = next((made[id(plain(one.args[0]))] for one in origins(score) if one.op == "run" and id(plain(one.args[0])) in made), None)
            if rounds is None or not is_start(best) or rounds[-1] in best.where.loops or len(test.where.loops) <= len(rounds) or test.where.loops[: len(rounds)] != rounds:
                continue
            if not takes_the_score(computation, test, score, best):
                continue
            used = _used_in_each(computation, test, rounds)
            if used is not None:
                yield Remark(test.node, f"{short(test.node)} compares each fold's epochs with the best of all folds before (line {best.line} is outside the loop of line {getattr(rounds[-1], 'lineno', 0)}): {used}")
                return


def is_start(value: Value) -> bool:
    """Whether a value is what a best score begins with."""
    return number(value) is not None or value.op == "float" or (value.op in ("neg", "@library", "either") and "inf" in f"{value!r}{value.args}{getattr(value, 'data', '')}")


def takes_the_score(computation: Computation, test: Value, score: Value, best: Value) -> bool:
    """Whether the branch of a comparison puts the score in the place of the best one."""
    kept = [one for one in computation.of("set_attribute") if one.args[1] is score and (id(test), True) in conditions(one)]
    homes = {(id(one.args[0]), one.data) for one in kept}
    if any((id(one.args[0]), one.data) in homes for one in computation.of("set_attribute") if one.args[1] is best):
        return True
    return any(any(part is score for part in one.args) and any(part is best for part in one.args) for one in computation.of("either"))


def _used_in_each(computation: Computation, test: Value, rounds: tuple[ast.AST, ...]) -> str | None:
    """What each round does with its own best: it loads it after its epochs, saves it under its own name, or ends by it."""
    inside = [one for one in computation.values if one.where.loops[: len(rounds)] == rounds]
    for one in inside:
        if one.op == "load_state_dict" and one.where.loops == rounds and one.number > test.number and any(
            part.op in ("state_dict", "deepcopy") and (id(test), True) in conditions(part) for part in origins(one.args[-1])
        ):
            return f"a fold that is never better goes on with what {short(one.node)} (line {one.line}) loads, which is not its best epoch"
        named = one.args[1] if one.op == "save" and len(one.args) > 1 else None
        if named is not None and (id(test), True) in conditions(one) and any(part.op in ("index", "element", "part") and part.where.loops == rounds for part in origins(named)):
            return f"a fold that is never better saves nothing (line {one.line})"
    loop = test.where.loops[len(rounds)]
    stops = [one for one in ast.walk(loop) if isinstance(one, ast.If) and any(isinstance(each, ast.Break) for each in one.body)]
    counted = [
        one for one in inside if one.op in ("ge", "gt") and one.where.loops == test.where.loops and one is not test
        and any(part.op == "count" and any(rounds[-1] not in each.where.loops for each in part.args or (part,)) for part in origins(one))
    ]
    outside = [one for one in counted if not _counted_anew(computation, one, rounds)]
    return f"a fold that is never better is stopped (line {stops[0].lineno})" if stops and outside else None


def _counted_anew(computation: Computation, test: Value, rounds: tuple[ast.AST, ...]) -> bool:
    """Whether a count that ends a round is set back when the round begins."""
    homes = [one.args[0] for one in computation.of("set_attribute") if any(part is one.args[1] for part in origins(test))]
    if any(isinstance(home, Instance) and rounds[-1] in home.where.loops for home in homes):
        return True
    return any(one.op == "set_attribute" and one.where.loops == rounds and any(one.args[0] is home for home in homes) for one in computation.of("set_attribute"))


def schedule_made_anew(program: Program) -> Iterator[Remark]:
    """A schedule is made in each pass of a loop, for an optimizer from before the loop, and steps once in that pass."""
    computation = computation_of(program)
    for step in computation.of("step"):
        schedule = step.args[0] if step.args and is_schedule(step.args[0]) else None
        word = schedule.op.rpartition(".")[2] if schedule is not None else ""
        if schedule is None or word not in _LONG or step.where.loops != schedule.where.loops or not step.where.loops or runs(step) != runs(schedule):
            continue
        optimizer = schedule.argument("optimizer", 0)
        again = optimizer is not None and optimizer.op.startswith("torch.optim.") and step.where.loops[-1] not in optimizer.where.loops
        told = "last_epoch" in schedule.named or any(one.args and one.args[0] is schedule for one in computation.of("load_state_dict"))
        changing = any(part.op in ("index", "count") and schedule.where.loops[-1] in part.where.loops for one in (*schedule.args[1:], *(given for name, given in schedule.named.items() if name != "factor")) for part in origins(one, ("len",)))
        if again and not told and not changing and number(schedule.named.get("step_size")) != 1 and conditions(step) == conditions(schedule):
            yield Remark(schedule.node, f"{short(schedule.node)} is made anew in each pass of the loop of line {getattr(step.where.loops[-1], 'lineno', 0)}, and {short(step.node)} (line {step.line}) steps it once: it is always at its beginning")
            return


@FINDERS.add("replaced-after-the-optimizer")
def _another_network(program: Program) -> Iterator[Remark]:
    """The loss is computed with a network that was made after the only optimizer, and in place of the one that it holds."""
    computation = computation_of(program)
    made = optimizers(computation)
    if len({one.node for one in made}) != 1 or any(True for _ in computation.of("add_param_group", "load_state_dict")):
        return
    for back, loss in backwards(computation):
        step = next((one for one in computation.values[back.number :] if (optimizer := optimizer_of(one)) is not None and runs(one) == runs(back)), None)
        optimizer = optimizer_of(step) if step is not None else None
        held = modules(optimizer) if optimizer is not None else []
        if optimizer is None or step is None or not held or step.where.loops != back.where.loops or not back.where.loops:
            continue
        inside = {id(part) for one in held for part in contents(one, computation)}
        layers = [plain(one.args[0]) for one in origins(loss, CUTS) if one.op == "run" and has_parameters(plain(one.args[0]))]
        twin = {one.node for module in held for one in layers_of(module) if has_parameters(one)}
        if layers and all(one.number > optimizer.number and id(one) not in inside for one in layers) and all(one.node in twin for one in layers):
            yield Remark(step.node, f"{short(step.node)} steps the network of line {held[0].line}, and {short(back.node)} (line {back.line}) gives gradients to another one, made in its place after the optimizer of line {optimizer.line}")
            return
