"""Averages of weights that the training is continued from, or that nothing follows. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Instance, Value, alternatives
from probe.diagnose.code.finders.losses.followers import mixtures, owner, runs_of, settled
from probe.diagnose.code.flow import may_be_run
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.updates import conditions, optimizer_of, plain
from probe.diagnose.code.traits.weights import in_place

FINDERS = Finders()
_AVERAGED = "torch.optim.swa_utils.AveragedModel"


@FINDERS.add("average-never-used")
def _continued_from_the_average(program: Program) -> Iterator[Remark]:
    """The averaged weights are copied into the network in training, and its own are never put back."""
    computation = computation_of(program)
    steps = [one for one in computation.of("step") if optimizer_of(one) is not None]
    kept_up = [
        (average, network, where) for average, network, where in _kept_up(computation)
        if any(step.where.loops == where.where.loops[:len(step.where.loops)] and step.where.loops and conditions(where) <= conditions(step) for step in steps)
    ]
    written = list(_written(computation))
    for average, network, update in kept_up:
        into = [one for one in written if one[1] is network]
        taken = [one for one in into if one[2] is average]
        if not taken or len(taken) != len(into):
            continue
        value = taken[0][0]
        again = value.where.loops and value.where.loops[0] is update.where.loops[0]
        rarer = value.where.loops != update.where.loops or conditions(update) < conditions(value)
        judged = [one for one in runs_of(computation, network) if one.number > value.number and one.where.no_grad]
        if again and rarer and judged:
            yield Remark(value.node, f"{short(value.node)} writes the average of the weights (kept up in line {update.line}) into the network in training, and nothing puts its own weights back: the steps that follow go on from the average")


def _kept_up(computation: Computation) -> Iterator[tuple[Value, Value, Value]]:
    """Averages of weights: the average, the network that it follows, and the value that keeps it up."""
    for one in mixtures(computation):
        others = one.others()
        if len(others) == 1 and one.share_of(one.into) > 0.5 and abs(sum(part.share for part in one.parts) - 1) < 1e-6:
            yield one.into, others[0], one.value
    for value in computation.of("update_parameters"):
        if len(value.args) == 2 and value.args[0].op == _AVERAGED:
            yield value.args[0], plain(value.args[1]), value


def _written(computation: Computation) -> Iterator[tuple[Value, Value, Value | None]]:
    """Where all weights of a network are written over: the value, the network, and whose weights it takes (None: not known)."""
    for value in computation.of("load_state_dict"):
        if len(value.args) > 1:
            yield value, plain(value.args[0]), _store(value.args[1])
    for value in computation.of("copy", "set_attribute"):
        found = owner(value.args[0], value.where) if len(value.args) > 1 and (value.op == "copy" or value.data == "data") else None
        if found is not None:
            source = owner(value.args[1], value.where)
            yield value, found[0], None if source is None else source[0]


def _store(state: Value) -> Value | None:
    """The network, or the kept copy, whose weights a state dict holds."""
    at, kept = state, False
    for _ in range(8):
        if at.op == "state_dict" and at.args:
            of = plain(at.args[0])
            return at if kept else of
        kept = kept or at.op in ("deepcopy", "clone")
        if at.op not in ("deepcopy", "dict", "copy", "builtins.dict") or not at.args:
            return None
        at = at.args[0]
    return None


@FINDERS.add("average-never-used")
def _not_kept_up(program: Program) -> Iterator[Remark]:
    """An average has a function that would move it, which nothing calls; or it is moved towards what it began with."""
    computation = computation_of(program)
    for one in mixtures(computation):
        functions = one.value.where.functions
        others = one.others()
        if not one.value.where.apart or len(functions) != 1 or len(others) != 1 or others[0].op != "@input" or one.share_of(one.into) <= 0.5:
            continue
        holder = next((each for each in computation.of("@object") if isinstance(each, Instance) and any(held is one.into for held in each.attributes.values())), None)
        if holder is None or not isinstance(functions[0], ast.FunctionDef) or _is_called(program, computation, functions[0].name, holder) or (holder.of is not None and may_be_run(program, functions[0], holder.of)):
            continue
        used = runs_of(computation, one.into) or [each for each in computation.of("state_dict") if plain(each.args[0]) is one.into and not each.where.apart]
        if used:
            yield Remark(one.into.node, f"{short(one.into.node)} stays the network as it was when the copy was made: {functions[0].name} (line {functions[0].lineno}), which would move it towards the trained one, is never called (the copy is used in line {used[0].line})")
    for value in computation.of("add", "lerp"):
        yield from _of_itself(computation, value)


def _is_called(program: Program, computation: Computation, name: str, holder: Value) -> bool:
    """Whether a method of an object may be called anywhere: by its name on what may be the object, or as a value."""
    called = {one.func for one in program.everywhere(ast.Call)}
    if any(one.attr == name and one not in called for one in program.everywhere(ast.Attribute)):
        return True
    for one in computation.values:
        if one.op == name and one.args and not one.where.apart:
            receivers = [plain(each) for each in alternatives(one.args[0])]
            if any(each is holder or each.op in ("@input", "element", "part", "attribute") for each in receivers):
                return True
    return False


def _of_itself(computation: Computation, value: Value) -> Iterator[Remark]:
    """An average is moved in place, again and again, towards weights that were copied once and never change."""
    share = value.argument("alpha" if value.op == "add" else "weight", 2)
    if not value.where.loops or not in_place(value) or len(value.args) < 2 or share is None or not 0 < (settled(share) or 0) < 0.5:
        return
    towards, target = value.args[1], value.args[0]
    while target.op in ("mul", "data") and target.args:
        target = target.args[0]
    moved = owner(target, value.where)
    if moved is not None and moved[0] is not moved[1]:
        return  # the network itself, which is pulled to what it began with
    found = owner(towards, value.where)
    if found is None or found[0] is not found[1] or any(one.args[0] is towards and in_place(one) for one in computation.users(towards) if one.args):
        return
    yield Remark(value.node, f"{short(value.node)} moves the average towards {short(towards.node)} (line {towards.line}), the weights as they were copied once: what the network learns never reaches it")
