"""Samples that are changed against a network: in which direction, and what the change leaves in its gradients. Pure;
standard library only."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, bare, number, origins, same
from probe.diagnose.code.finders.training.whose_gradients import gradient_reaches
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import LOSSES, terms
from probe.diagnose.code.traits.held import sources
from probe.diagnose.code.traits.updates import backwards, clears, optimizer_of, runs

FINDERS = Finders()
_WEIGHTS = frozenset({"parameters", "named_parameters", "torch.nn.Parameter", "weight", "bias", "param_groups"})


def attack_the_wrong_way(program: Program) -> Iterator[Remark]:
    """A sample is moved along the gradient of its loss so that the loss falls, and is then given as one that is hard."""
    computation = computation_of(program)
    for sign in computation.of("sign"):
        found = _attacked(computation, sign.args[0]) if sign.args else None
        if found is None:
            continue
        attacked, rising = found
        for moved, way in _moved(computation, sign, 1):
            if way * rising > 0:
                continue
            judged = _judged(computation, moved, attacked)
            if judged is not None:
                yield Remark(moved.node, f"{short(moved.node)} goes down the gradient of {short(attacked.node)} (line {attacked.line}): what line {judged.line} is given as an attack is easier than the sample itself")
                return


def _attacked(computation: Computation, gradient: Value) -> tuple[Value, int] | None:
    """The loss that a gradient by an input is of, and whether what it was taken of rises (1) or falls (-1) with it."""
    gradient = bare(gradient, "part")
    if gradient.op.endswith("autograd.grad") and gradient.args:
        loss, by = gradient.args[0], gradient.argument("inputs", 1)
    elif gradient.op == "grad" and gradient.args:
        by = gradient.args[0]
        back = _backward_of(computation, gradient)
        loss = back[1] if back is not None else by
    else:
        return None
    if by is None or loss is by or any(one.op in _WEIGHTS for one in origins(by, ("run",))):
        return None
    found = [(term, factor) for term, factor in terms(loss) if term.op in LOSSES and len(term.args) > 1]
    if len(found) != 1 or found[0][1] is None:
        return None
    return found[0][0], 1 if (found[0][1] or 0) > 0 else -1


def _backward_of(computation: Computation, gradient: Value) -> tuple[Value, Value] | None:
    """The last backward before a gradient is read that has filled it, and its loss."""
    before = [(back, loss) for back, loss in backwards(computation) if back.number < gradient.number and any(one is gradient.args[0] for one in origins(loss))]
    return before[-1] if before else None


def _moved(computation: Computation, value: Value, way: int, depth: int = 6) -> Iterator[tuple[Value, int]]:
    """The sums that a value is added to or taken from, each with its sign there."""
    for user in computation.users(value) if depth else ():
        if user.op in ("mul", "div") and len(user.args) == 2:
            other = user.args[1] if user.args[0] is value else user.args[0]
            yield from _moved(computation, user, way * (-1 if (number(other) or 1) < 0 else 1), depth - 1)
        elif user.op == "neg":
            yield from _moved(computation, user, -way, depth - 1)
        elif user.op in ("add", "sub") and len(user.args) == 2:
            factor = number(user.named.get("alpha")) or 1
            turned = user.op == "sub" and user.args[1] is value
            yield user, way * (-1 if turned else 1) * (1 if factor > 0 else -1)


def _judged(computation: Computation, moved: Value, attacked: Value) -> Value | None:
    """The loss to be trained on, or the comparison that is scored, of what was moved, by the same targets."""
    for back, loss in backwards(computation):
        for term, factor in terms(loss):
            if back.number > moved.number and term.op == attacked.op and term is not attacked and len(term.args) > 1 and (factor or 0) > 0 and same(term.args[1], attacked.args[1]) and any(one is moved for one in origins(term.args[0])):
                return term
    for equal in computation.of("eq"):
        for guess, target in (equal.args, equal.args[::-1]) if len(equal.args) == 2 and equal.number > moved.number else ():
            if same(target, attacked.args[1]) and any(one.op == "argmax" for one in origins(guess)) and any(one is moved for one in origins(guess)):
                return equal
    return None


def gradients_of_the_attack(program: Program) -> Iterator[Remark]:
    """A function runs backward for the gradient of an input, and what that leaves in the network's gradients is stepped with."""
    computation = computation_of(program)
    if any(one.args[-1].op == "@constant" and one.args[-1].data is False for one in computation.of("set_attribute", "requires_grad_") if one.op != "set_attribute" or one.data == "requires_grad"):
        return
    found = list(backwards(computation))
    for gradient in computation.of("grad"):
        first = _backward_of(computation, gradient) if gradient.args and not any(one.op in _WEIGHTS for one in origins(gradient.args[0], ("run",))) else None
        if first is None or not first[0].where.functions:
            continue
        attack, loss = first
        for back, trained in found:
            if back.number < gradient.number or back.where.functions == attack.where.functions or not any(one is gradient for one in origins(trained)):
                continue
            step = next((one for one in computation.of("step") if one.number > back.number and optimizer_of(one) is not None), None)
            optimizer = optimizer_of(step) if step is not None else None
            held = sources(optimizer.argument("params", 0)) if optimizer is not None else None
            if step is None or optimizer is None or not held or not gradient_reaches(loss, held, computation):
                continue
            between = computation.values[attack.number + 1 : step.number]
            if not any(clears(one, optimizer) or one.op in ("zero_grad", "zero_") for one in between):
                yield Remark(step.node, f"{short(step.node)} also uses the gradients that {short(attack.node)} (line {attack.line}) left in the network, which was run for the gradient of its input: nothing clears them in between")
                return


@FINDERS.add("gradients-not-cleared")
def _moved_along_and_kept(program: Program) -> Iterator[Remark]:
    """Between two backwards of one loss the weights are moved along the gradient of the first, which is not cleared."""
    computation = computation_of(program)
    found = list(backwards(computation))
    for (first, loss), (second, again) in itertools.pairwise(found):
        if first.where.loops != second.where.loops or not first.where.loops or runs(first) != runs(second) or first.where.under != second.where.under:
            continue
        between = computation.values[first.number + 1 : second.number]
        moved = next((one for one in between if one.op == "add" and _moves_weights(one) and any(part.op == "grad" for each in one.args[1:] for part in origins(each))), None)
        if moved is None or any(one.op in ("zero_grad", "zero", "zero_", "step", "grad_zero", "fill") or (one.op == "set_attribute" and one.data == "grad") for one in between):
            continue
        step = next((one for one in computation.of("step") if one.number > second.number and optimizer_of(one) is not None), None)
        trained = {id(one.args[0]) for one in origins(loss) if one.op == "run" and one.args}
        if step is not None and trained and trained == {id(one.args[0]) for one in origins(again) if one.op == "run" and one.args} and step.where.loops == second.where.loops:
            yield Remark(second.node, f"{short(second.node)} adds to the gradients of {short(first.node)} (line {first.line}), which line {moved.line} has moved the weights by: {short(step.node)} (line {step.line}) uses both")
            return


def _moves_weights(value: Value) -> bool:
    """Whether something is added to a parameter where it is."""
    target = bare(value.args[0]) if value.args else value
    written = isinstance(value.node, ast.Call) and isinstance(value.node.func, ast.Attribute) and value.node.func.attr == "add_"
    return written and target.op in ("element", "data", "part") and any(one.op in _WEIGHTS for one in origins(target))
