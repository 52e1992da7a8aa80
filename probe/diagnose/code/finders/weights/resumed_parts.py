"""What a run that goes on from a checkpoint loads, and what it leaves as it begins. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    Instance,
    Table,
    Value,
    alternatives,
    constant,
    is_none,
    origins,
)
from probe.diagnose.code.finders.runs.resumed_runs import resumptions, steps_alone
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.updates import is_optimizer, is_schedule, optimizer_of, plain

FINDERS = Finders()


@FINDERS.add("resumed-in-part")
def _begins_anew(program: Program) -> Iterator[Remark]:
    """A run goes on at the epoch that was saved, with the weights that were saved, and its optimizer or schedule begins anew."""
    computation = computation_of(program)
    for loop, start in resumptions(computation):
        loads = [plain(each) for one in computation.of("load_state_dict") if one.args for each in alternatives(one.args[0])]
        if not any(_is_network(one) for one in loads) or not all(_is_network(one) or is_optimizer(one) or is_schedule(one) or one.op.endswith("Scaler") for one in loads):
            return
        for step in computation.of("step"):
            of = step.args[0] if step.args else step
            if step.where.loops[:1] != (loop,) or any(one is of for one in loads):
                continue
            if is_schedule(of) and not _is_told(computation, of, loop) and not any(one.args[0] is of for one in steps_alone(computation)):
                yield Remark(of.node, f"line {start.line} goes on at the epoch that was saved, and no state of {short(of.node)} is loaded: the schedule starts from its beginning again")
                return
            if optimizer_of(step) is of and _has_moments(of):
                yield Remark(of.node, f"line {start.line} goes on at the epoch that was saved, and no state of {short(of.node)} is loaded: moments and momentum start from 0 again")
                return


@FINDERS.add("loaded-and-not-used")
def _epoch_left_in_the_file(program: Program) -> Iterator[Remark]:
    """A run takes up its network and its optimizer from a file that holds the epoch too, does not read it, and counts from 0."""
    computation = computation_of(program)
    files = {id(one): one for load in computation.of("load_state_dict") if len(load.args) > 1 and is_optimizer(plain(load.args[0])) for one in origins(load.args[1]) if one.op == "load"}
    for file in files.values():
        read = computation.users(file)
        if not read or any(one.op != "part" or not isinstance(constant(one.args[1]), str) for one in read):
            continue
        taken = {constant(one.args[1]) for one in read}
        for save in computation.of("save"):
            table = save.args[0] if save.args else save
            entries = table.entries if isinstance(table, Table) else {}
            key = next((key for key, one in entries.items() if key not in taken and any(each.op == "index" and _begins(each, file) and each.node in save.where.loops[:1] for each in _counts(one))), None)
            steps = any(optimizer_of(one) is not None and one.where.loops[:1] == save.where.loops[:1] for one in computation.of("step"))
            if key is not None and steps and taken <= set(entries) and save.where.loops:
                yield Remark(save.where.loops[0], f"the loop begins at its first pass, and {key!r}, which line {save.line} saves with the weights, is never read from {short(file.node)} (line {file.line})")
                return


def _counts(entry: Value) -> list[Value]:
    """The counts that an entry of a file holds as they are, or one further."""
    inner = list(entry.entries.values()) if isinstance(entry, Table) else [entry]
    return [one.args[0] if one.op == "add" and len(one.args) == 2 and one.args[1].op == "@constant" else one for one in inner]


def _begins(index: Value, file: Value) -> bool:
    """Whether a count begins at a number, after a file was loaded."""
    first = index.args[0] if len(index.args) > 1 else None
    return index.number > file.number and index.node is not None and (first is None or (first.op == "@constant" and first.data in (0, 1)))


def _is_network(value: Value) -> bool:
    return isinstance(value, Instance) or value.op == "dict" or (value.op.startswith(("torch.nn.", "torchvision.", "transformers.")) and not is_optimizer(value))


def _is_told(computation: Computation, schedule: Value, loop: object) -> bool:
    """Whether a schedule is told where it is: when it is made, at its steps, or by steps before the loop."""
    given = schedule.named.get("last_epoch")
    if given is not None and constant(given) != -1:
        return True
    if any(any(each.op == "load" for each in origins(one)) for one in (*schedule.args, *schedule.named.values())):
        return True
    if any(one.data in ("last_epoch", "_step_count") and one.args[0] is schedule for one in computation.of("set_attribute")):
        return True
    steps = [one for one in computation.of("step") if one.args and one.args[0] is schedule]
    return any(one.where.loops[:1] != (loop,) or len(one.args) > 1 or one.named for one in steps)


def _has_moments(optimizer: Value) -> bool:
    """Whether an optimizer keeps more than its parameters."""
    word = optimizer.op.rpartition(".")[2]
    momentum = optimizer.argument("momentum", 2)
    return word != "LBFGS" and (word != "SGD" or (not is_none(momentum) and constant(momentum) != 0))
