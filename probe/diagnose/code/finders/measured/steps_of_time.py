"""Steps of time: hazards after the end, and changes that are taken for states. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, bare, constant, is_none, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import names_read, short
from probe.diagnose.code.traits.arithmetic import complement_of, computed_by_none, of_one_layer
from probe.diagnose.code.traits.basic import LOSSES, losses, without_small

FINDERS = Finders()
_ENTROPIES = ("binary_cross_entropy_with_logits", "binary_cross_entropy")
_KEEPS = ("sum", "mean", "neg", "squeeze", "view")


def hazards_after_the_end(program: Program) -> Iterator[Remark]:
    """The hazard of each interval is asked for, also of those after an event or a cut-off: the target is a one-hot of the last
    interval, and nothing leaves out the rest."""
    computation = computation_of(program)
    survived = [bare(inner) for one in computation.of("cumprod", "cumsum", "prod") if one.args and (inner := _hazard(one.args[0])) is not None]
    for loss in [one for _, whole in losses(computation) for one in origins(whole)] if survived else ():
        if loss.op not in _ENTROPIES or len(loss.args) < 2 or loss.named.keys() & {"weight"}:
            continue
        target = bare(loss.args[1])
        marked = [bare(one) for one in target.args] if target.op == "mul" and len(target.args) == 2 else [target]
        last = next((one for one in marked if one.op == "one_hot"), None)
        scores = bare(loss.args[0], "sigmoid")
        if last is None or not any(of_one_layer(scores, one) for one in survived) or any(_is_masked(user, loss) for user in computation.users(loss)):
            continue
        yield Remark(loss.node, f"{short(loss.node)} asks for a hazard of 0 in all intervals but that of {short(last.node)} (line {last.line}), also in those after it, in which nobody was seen")
        return


def _hazard(value: Value) -> Value | None:
    """What a network gives of whose sigmoid 1 less is taken."""
    value = bare(value)
    value = bare(value.args[0]) if value.op == "log" and value.args else value
    inner = complement_of(without_small(value))
    inner = bare(inner) if inner is not None else None
    if inner is None and value.op in ("logsigmoid", "sigmoid") and value.args and bare(value.args[0]).op == "neg":
        return bare(value.args[0]).args[0]
    return inner.args[0] if inner is not None and inner.op == "sigmoid" and inner.args else None


def _is_masked(user: Value, loss: Value) -> bool:
    """Whether the losses of intervals are multiplied by a mask, or chosen by one."""
    return (user.op in ("mul", "masked_select") or (user.op == "part" and user.args[0] is loss)) and any(one is not loss and number(one) is None for one in user.args)


def change_for_the_state(program: Program) -> Iterator[Remark]:
    """A network that is trained on the change from one state to the next gives, in a loop, the next state itself."""
    computation = computation_of(program)
    changes = []
    for loss in [one for _, whole in losses(computation) for one in origins(whole)]:
        sides = loss.args[:2] if loss.op in LOSSES or loss.op == "sub" else ()
        for made, target in (sides, sides[::-1]) if len(sides) == 2 else ():
            run, change = bare(made), _difference(target)
            if run.op == "run" and change is not None and _reads(run, change.args[1]):
                changes.append((run, change))
    for name, given in computation.stored.items() if changes else ():
        for value in given:
            step = _unscaled(value)
            learned = next(((run, change) for run, change in changes if step.op == "run" and step is not run and of_one_layer(step, run)), None)
            if learned is None or not value.where.no_grad or not value.where.loops or not _goes_on(computation, name, value.where.loops[-1]):
                continue
            yield Remark(value.node, f"{short(value.node)} is given to the network as the next state, and it is trained on {short(learned[1].node)} (line {learned[1].line}): the change from the state before, which is not added")
            return


def _difference(value: Value) -> Value | None:
    """The difference of two rows that a target is, but for its scale."""
    for _ in range(12):
        value = bare(value)
        if value.op == "sub" and len(value.args) == 2:
            if bare(value.args[1]).op in ("mean", "min", "median", "@constant"):
                value = value.args[0]
                continue
            return value if all(computed_by_none(one) for one in value.args) else None
        if value.op in ("div", "part", "rows", "mul") and value.args:
            value = value.args[0]
        else:
            return None
    return None


def _reads(run: Value, state: Value) -> bool:
    """Whether a network is given the state that a change is counted from."""
    return any(one is bare(state) for one in origins(run))


def _unscaled(value: Value) -> Value:
    """What a network gives, without a scale and a mean that are put back."""
    for _ in range(6):
        value = bare(value)
        if value.op in ("add", "mul") and len(value.args) == 2 and bare(value.args[1]).op in ("std", "mean", "@constant", "part"):
            value = value.args[0]
        else:
            return value
    return value


def _goes_on(computation: Computation, target: ast.Name, loop: ast.AST) -> bool:
    """Whether a name, which a loop gives what a network gives, is what the network was given."""
    parents = list(computation.program.parents(target))
    given = next((one for one in parents if isinstance(one, ast.Assign)), None)
    return loop in parents and given is not None and target.id in names_read(given.value)


def popularity_added(program: Program) -> Iterator[Remark]:
    """The logarithm of how often each item is drawn is added to the scores of items that are opponents by being in the batch."""
    computation = computation_of(program)
    for loss in [one for _, whole in losses(computation) for one in origins(whole)]:
        if loss.op != "cross_entropy" or len(loss.args) < 2 or bare(loss.args[1]).op != "arange":
            continue
        scores = bare(loss.args[0])
        scores = bare(scores.args[0]) if scores.op in ("masked_fill", "where") and scores.args else scores
        for one, other in (scores.args, scores.args[::-1]) if scores.op == "add" and len(scores.args) == 2 else ():
            share = _frequency(other)
            if share is not None and any(part.op == "matmul" for part in (bare(one), *bare(one).args)):
                yield Remark(scores.node, f"{short(scores.node)} adds {short(share.node)} (line {share.line}), the logarithm of how often an item occurs, to its score: as opponents of a batch, frequent items are drawn that much more often already")
                return


def _frequency(value: Value) -> Value | None:
    """The logarithm of counts, or of shares of counts, that a value is rows of."""
    value = bare(value)
    for _ in range(6):
        if value.op == "part" and value.args:
            value = bare(value.args[0])
    if value.op != "log" or not value.args or constant(value.args[0]) is not None:
        return None
    made = list(origins(value.args[0], stop=("bincount",)))
    return value if any(one.op == "bincount" for one in made) and not any(one.op == "run" for one in made) else None


@FINDERS.add("future-among-inputs")
def _turned_back(program: Program) -> Iterator[Remark]:
    """A column of the input is a series that is moved so far back that it holds the value that is asked for."""
    computation = computation_of(program)
    for loss in computation.of(*LOSSES):
        if len(loss.args) < 2 or loss.where.no_grad:
            continue
        ahead = _ahead(loss.args[1])
        for one in origins(loss.args[0]) if ahead is not None else ():
            back = number(one.argument("shift", 1) or one.argument("shifts", 1)) if one.op == "roll" and one.args else None
            if ahead is None or back is None or back >= 0 or -back < ahead[1] or bare(one.args[0]) is not ahead[0] or any(each.op == "run" for each in origins(one)):
                continue
            yield Remark(one.node, f"{short(one.node)} puts the value {-back:.0f} further on into each row of the input, and {short(loss.node)} (line {loss.line}) asks for the one {ahead[1]:.0f} further on")
            return


def _ahead(value: Value) -> tuple[Value, float] | None:
    """The series that targets are of, and how many places further on than their row they stand: y[1:], or y rolled back."""
    for _ in range(40):
        value = bare(value)
        if value.op == "part" and len(value.args) == 2:
            index = value.args[1]
            start = number(index.args[0]) if index.op == "slice" and index.args else None
            if start is not None and 0 < start <= 48 and is_none(index.args[1]):
                return bare(value.args[0]), start
            value = value.args[0]
        elif value.op == "roll" and value.args:
            back = number(value.argument("shift", 1) or value.argument("shifts", 1))
            return (bare(value.args[0]), -back) if back is not None and back < 0 else None
        elif value.op in ("sub", "div", "rows", "mul") and value.args:
            value = value.args[0]
        else:
            return None
    return None
