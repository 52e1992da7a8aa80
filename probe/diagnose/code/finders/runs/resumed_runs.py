"""Runs that go on from a checkpoint: at which epoch, and with which best score. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Instance, Table, Value, alternatives, constant, number, origins
from probe.diagnose.code.finders.objects.folds import is_start, takes_the_score
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.updates import conditions, is_schedule, optimizer_of

FINDERS = Finders()


def resumptions(computation: Computation) -> Iterator[tuple[ast.AST, Value]]:
    """The loops over epochs that may begin at one that was loaded, each with where it begins."""
    for one in computation.of("range"):
        if len(one.args) < 2 or not any(each.op == "load" for each in origins(one.args[0])):
            continue
        for _, loop, over in computation.passes:
            if over is one or (over.args and over.op in ("enumerate", "tqdm", "tqdm.tqdm", "tqdm.auto.tqdm") and over.args[0] is one):
                yield loop, one.args[0]


@FINDERS.add("resumed-in-part")
def _best_begins_anew(program: Program) -> Iterator[Remark]:
    """A run goes on at the epoch that was saved, and the score that its epochs are compared with is that of a new run."""
    computation = computation_of(program)
    for loop, start in resumptions(computation):
        for test in computation.of("lt", "gt", "le", "ge"):
            if test.where.loops[:1] != (loop,) or len(test.args) != 2:
                continue
            for score, best in (test.args, test.args[::-1]):
                if not is_start(best) or any(one.op == "load" for one in origins(best)) or number(score) is not None or not takes_the_score(computation, test, score, best):
                    continue
                save = next((one for one in computation.of("save") if (id(test), True) in conditions(one) and not _is_of_epoch(one, loop)), None)
                if save is not None:
                    yield Remark(test.node, f"line {start.line} goes on at the epoch that was saved, and {short(test.node)} begins with {short(best.node)} (line {best.line}) again: the first epoch after the resumption counts as the best one, and {short(save.node)} (line {save.line}) writes over the best one")
                    return


def _is_of_epoch(save: Value, loop: ast.AST) -> bool:
    """Whether each epoch is saved under a name of its own."""
    return len(save.args) < 2 or any(one.op in ("index", "element", "item") and loop in one.where.loops for one in origins(save.args[1]))


def resumed_at_another_epoch(program: Program) -> Iterator[Remark]:
    """What was saved after an epoch goes on with the same epoch, or leaves one out."""
    computation = computation_of(program)
    for loop, start in resumptions(computation):
        for save in computation.of("save"):
            table = save.args[0] if save.args else save
            trained = any(one.number < save.number and one.where.loops[:1] == (loop,) and optimizer_of(one) is not None for one in computation.of("step"))
            if not isinstance(table, Table) or save.where.loops != (loop,) or not trained:
                continue
            for begins in alternatives(start):
                read, further = _and_further(begins)
                key = constant(read.args[1]) if read.op == "part" and len(read.args) == 2 and any(one.op == "load" for one in origins(read.args[0])) else None
                kept, beyond = _and_further(table.entries[key]) if key in table.entries else (None, None)
                if kept is None or kept.op != "index" or kept.where.loops != (loop,) or further is None or beyond is None or further + beyond == 1:
                    continue
                what = "is trained once more" if further + beyond < 1 else "is left out"
                which = "the epoch that was saved" if further + beyond < 1 else "the epoch after the one that was saved"
                yield Remark(begins.node, f"line {save.line} saves {short(table.entries[key].node)} under {key!r} when the epoch is trained, and the run goes on at {short(begins.node)}: {which} {what}")
                return


def skipped_in_each_epoch(program: Program) -> Iterator[Remark]:
    """Where a run goes on within an epoch is where each later epoch begins too."""
    computation = computation_of(program)
    for over in computation.of("range"):
        start = over.args[0] if len(over.args) > 1 else over
        loaded = [one for one in origins(start, stop=("len",)) if one.op == "part" and any(each.op == "load" for each in origins(one.args[0]))]
        if not loaded or over.node is None:
            continue
        loop = next((loop for _, loop, each in computation.passes if each is over), None)
        names = {name for one in ast.walk(over.node.args[0]) for name in (_name(one),) if name is not None} if isinstance(over.node, ast.Call) and over.node.args else set()
        function = program.function_of(over.node)
        passes = getattr(function, "name", "") == "__iter__"
        around = [each for each in program.loops(over.node) if each is not loop]
        if loop is None or start.where.loops[-1:] == (loop,) or not (around or passes) or any(one.where.loops and not passes for one in loaded):
            continue
        inside = around[-1] if around else program.class_of(over.node)
        within = [one for one in ast.walk(inside) if isinstance(getattr(one, "ctx", None), ast.Store)] if inside is not None else []
        if isinstance(inside, ast.ClassDef) and any(isinstance(one, Instance) and one.of is inside and one.where.loops for one in computation.of("@object")):
            continue  # made anew in each epoch
        begun = program.method(inside, "__init__") if isinstance(inside, ast.ClassDef) else None
        first = set(map(id, ast.walk(begun))) if begun is not None else set()
        local = {one.id for one in ast.walk(function) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)} if passes and function is not None else set()
        kept = {_name(one) for one in within if id(one) not in first} - local
        if names and not names & kept and not any(isinstance(one, ast.IfExp) for one in ast.walk(over.node)):
            yield Remark(over.node, f"{short(over.node)} begins at what was loaded ({short(loaded[0].node)}, line {loaded[0].line}) in each epoch, and nothing sets it back: what comes before it is never seen again")
            return


@FINDERS.add("skipped-in-each-epoch")
def _passed_over_in_each_epoch(program: Program) -> Iterator[Remark]:
    """The batches before the one where a run goes on are passed over, in each epoch: `if i < first: continue`."""
    computation = computation_of(program)
    for test in computation.of("lt", "le", "gt", "ge"):
        around, loops = program.parent.get(test.node), test.where.loops
        if len(loops) < 2 or not isinstance(around, ast.If) or around.test is not test.node or not isinstance(around.body[-1], ast.Continue):
            continue
        given = [one for one in test.args if one.op != "index"]
        names = {name for one in ast.walk(test.node) if (name := _name(one)) is not None}
        loaded = [one for start in given for one in origins(start) if one.op in ("part", "get") and loops[-2] not in one.where.loops and any(each.op == "load" for each in origins(one.args[0]))]
        counted = [one for one in test.args if one.op == "index" and one.where.loops[-1:] == loops[-1:]]
        within = {name for one in ast.walk(loops[-2]) if isinstance(getattr(one, "ctx", None), ast.Store) and (name := _name(one)) is not None}
        told = {name for one in ast.walk(loops[-1].target) if (name := _name(one)) is not None} if isinstance(loops[-1], ast.For) else set()
        if len(given) == 1 and counted and loaded and names - told and not (names - told) & within:
            yield Remark(test.node, f"{short(test.node)} passes over what comes before the place that was loaded ({short(loaded[0].node)}, line {loaded[0].line}) in each epoch, and nothing sets it back: that is never seen again")
            return


def _name(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def _and_further(value: Value) -> tuple[Value, float | None]:
    """A number without the constant that is added to it, and that constant."""
    value = value.args[0] if value.op in ("int", "builtins.int") and value.args else value
    if value.op in ("add", "sub") and len(value.args) == 2 and number(value.args[1]) is not None:
        by = number(value.args[1]) or 0.0
        return value.args[0], by if value.op == "add" else -by
    return value, 0.0 if value.op in ("index", "part") else None


def steps_alone(computation: Computation) -> Iterator[Value]:
    """The steps of a schedule in loops in which nothing is trained: they make again what a run before has made."""
    for step in computation.of("step"):
        if len(step.args) != 1 or not step.where.loops or not is_schedule(step.args[0]):
            continue
        loop = step.where.loops[-1]
        trains = any(loop in one.where.loops for one in computation.of("backward", "run")) or any(loop in one.where.loops and optimizer_of(one) is not None for one in computation.of("step"))
        if not trains:
            yield step


def schedule_replayed(program: Program) -> Iterator[Remark]:
    """A schedule is given its saved state, and then steps once more for each step that it had made by then."""
    computation = computation_of(program)
    for step in steps_alone(computation):
        schedule, loop = step.args[0], step.where.loops[-1]
        loaded = next((one for one in computation.of("load_state_dict") if one.args and one.args[0] is schedule and one.number < step.number and loop not in one.where.loops and set(conditions(one)) <= set(conditions(step))), None)
        if loaded is not None and loaded.where.functions == step.where.functions:
            yield Remark(step.node, f"{short(step.node)} makes all steps of the loop of line {getattr(loop, 'lineno', 0)} again, and {short(loaded.node)} (line {loaded.line}) has brought {schedule.op.rpartition('.')[2]} to where it was")
            return
