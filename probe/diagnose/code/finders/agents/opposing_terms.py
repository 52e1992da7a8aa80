"""Terms that a judge gives about a network whose output was cut off before. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, origins
from probe.diagnose.code.finders.training.whose_gradients import gradient_reaches
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import module
from probe.diagnose.code.traits.backwards import CUTS
from probe.diagnose.code.traits.basic import terms
from probe.diagnose.code.traits.held import contents, sources
from probe.diagnose.code.traits.updates import backwards, is_optimizer, runs

FINDERS = Finders()


@FINDERS.add("term-without-gradient")
def _judged_cut_off(program: Program) -> Iterator[Remark]:
    """A term of the loss of a generator is what another network says of its output after `detach()`: no step that follows
    changes any of what its gradient reaches, and the generator does not learn from it."""
    computation = computation_of(program)
    for start, loss in backwards(computation):
        held = [one for step in _steps_after(computation.values, start) for one in sources(step.args[0].argument("params", 0)) or []]
        known = list(terms(loss)) if held else []
        inside = {id(part) for one in held for part in contents(one.of, computation)}
        if len(known) < 2 or not any(gradient_reaches(term, held, computation) for term, _ in known):
            continue
        for term, _ in known:
            if gradient_reaches(term, held, computation):
                continue
            judged = any(one.op == "run" and not one.where.no_grad and id(module(one.args[0])) not in inside for one in origins(term, stop=CUTS) if one.op not in CUTS)
            cut = next((one for one in origins(term) if one.op in ("detach", "detach_") and any(each.op == "run" and id(module(each.args[0])) in inside for each in origins(one))), None)
            if judged and cut is not None:
                yield Remark(term.node, f"{short(term.node)} is a term of the loss in line {start.line}, and {short(cut.node)} (line {cut.line}) cuts it off from all that is stepped after it: it trains nothing")
                break


def _steps_after(values: list[Value], start: Value) -> Iterator[Value]:
    """The steps of optimizers that follow a backward, until the next one."""
    for value in values[start.number + 1 :]:
        if value.op == "backward" or runs(value) != runs(start):
            return
        if value.op == "step" and value.args and is_optimizer(value.args[0]) and value.where.loops == start.where.loops:
            yield value
