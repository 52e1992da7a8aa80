"""Networks that judge samples: what they are asked for, how their slope is held, and whose turn it is. Pure; standard
library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, bare, number, origins
from probe.diagnose.code.finders.losses.adversaries import agree, wishes_of
from probe.diagnose.code.finders.training.whose_gradients import gradient_reaches
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import module
from probe.diagnose.code.traits.basic import losses, squared
from probe.diagnose.code.traits.held import contents, sources
from probe.diagnose.code.traits.updates import backwards, optimizer_of, runs

FINDERS = Finders()


@FINDERS.add("one-label-for-both")
def judge_of_one_answer(program: Program) -> Iterator[Remark]:
    """The judge is asked for one and the same answer for real samples and for generated ones."""
    computation = computation_of(program)
    found = [list(wishes_of(loss)) for _, loss in losses(computation)]
    for wishes in found:
        for fake in wishes:
            for real in wishes:
                made = (fake.cut | fake.through) - (real.cut | real.through)
                if fake is real or fake.judge != real.judge or not made or (real.cut | real.through) - (fake.cut | fake.through) or not agree(fake.wanted, real.wanted):
                    continue
                if any(one.judge == fake.judge and not made & (one.cut | one.through) and not agree(one.wanted, fake.wanted) for one in wishes):
                    continue  # real pairs that do not belong together are to be told apart too
                if any(one.judge == fake.judge and one.term.node is not fake.term.node and made & one.through and not one.cut for other in found if other is not wishes for one in other):
                    yield Remark(fake.term.node, f"{short(fake.term.node)} asks of the judge for generated samples what {short(real.term.node)} (line {real.term.line}) asks for real ones")
                    return


def slope_of_the_whole_batch(program: Program) -> Iterator[Remark]:
    """The length of the gradient of all samples together is pulled to 1, and not that of each one."""
    computation = computation_of(program)
    terms = {id(one) for _, loss in losses(computation) for one in origins(loss)}
    for value in computation.of("sub"):
        if id(value) not in terms or len(value.args) != 2 or number(value.args[1]) != 1:
            continue
        slope = _whole_length(bare(value.args[0], "add", "clamp"))
        grad = bare(slope, "part") if slope is not None else None
        if slope is None or grad is None or not grad.op.endswith("autograd.grad") or not grad.args:
            continue
        by = grad.argument("inputs", 1)
        if by is None or any(one.op in ("parameters", "torch.nn.Parameter", "weight") for one in origins(by, ("run",))) or any("vmap" in one.op for one in computation.values):
            continue
        if any(one.op in ("mul", "add", "sub", "cat", "clone", "detach", "lerp", "where", "rows", "part") for one in origins(by, ("run",))):
            yield Remark(value.node, f"{short(value.args[0].node)} is one length of the gradients of all samples of the batch, and {short(value.node)} pulls it to 1")
            return


def _whole_length(value: Value) -> Value | None:
    """x of `x.norm()`, `x.norm(2)` and `x.pow(2).sum().sqrt()`, over all axes."""
    if value.op in ("norm", "vector_norm") and value.args:
        return value.args[0] if value.argument("dim", 2) is None and "axis" not in value.named and not (value.op == "norm" and isinstance(value.node, ast.Call) and ast.unparse(value.node.func).startswith("vmap")) else None
    inner = value.args[0] if value.args and (value.op == "sqrt" or (value.op == "pow" and number(value.args[-1]) == 0.5)) else None
    inner = bare(inner, "add", "clamp") if inner is not None else None
    if inner is not None and inner.op == "sum" and len(inner.args) == 1 and not inner.named:
        return squared(bare(inner.args[0]))
    return None


def every_few_the_other_way(program: Program) -> Iterator[Remark]:
    """A step that is meant for one pass in several runs in all the others: the condition is the remainder itself."""
    computation = computation_of(program)
    steps = [(one, optimizer) for one in computation.of("step") if (optimizer := optimizer_of(one)) is not None]
    for step, optimizer in steps:
        test = next((test for test, holds in step.where.under if holds and _is_remainder(test)), None)
        by = _remainder(test).args[1] if test is not None else None
        branch = next((one for one in program.parents(step.node) if isinstance(one, ast.If)), None)
        while branch is not None and test is not None and test.node not in ast.walk(branch.test):
            branch = next((one for one in program.parents(branch) if isinstance(one, ast.If)), None)
        if test is None or by is None or branch is None or branch.orelse or (number(by) or 3) < 3:
            continue
        if _in_turns(computation, steps, step, optimizer, test):
            yield Remark(branch, f"{short(branch.test)} holds in all passes but one of {short(by.node)}: {short(step.node)} (line {step.line}) is left out once, and was to run once")
            return


def _is_remainder(test: Value) -> bool:
    return test.op == "mod" or (test.op in ("ne", "gt") and len(test.args) == 2 and test.args[0].op == "mod" and number(test.args[1]) == 0)


def _remainder(test: Value) -> Value:
    return test if test.op == "mod" else test.args[0]


def _in_turns(computation: Computation, steps: list[tuple[Value, Value]], step: Value, optimizer: Value, test: Value) -> bool:
    """Whether another optimizer steps in each pass, or the gradients of each pass are added up for this one."""
    def always(one: Value) -> bool:
        return runs(one) == runs(step) and one.where.loops == step.where.loops and not any(test is each for each, _ in one.where.under)

    if any(other is not optimizer and always(one) for one, other in steps):
        return True
    held = sources(optimizer.argument("params", 0)) or []
    return any(always(back) and gradient_reaches(loss, held, computation) for back, loss in backwards(computation))


def adversaries_in_one_loss(program: Program) -> Iterator[Remark]:
    """One loss asks both answers for generated samples, and its gradients reach the judge and the generator by either term."""
    computation = computation_of(program)
    for _, loss in losses(computation):
        wishes = list(wishes_of(loss))
        for one in wishes:
            for other in wishes:
                made = one.through & other.through
                if one is other or one.judge != other.judge or not isinstance(one.wanted, int) or not isinstance(other.wanted, int) or one.wanted >= other.wanted:
                    continue
                real = [each for each in wishes if each.judge == one.judge and not (each.cut | each.through) - made and (each.cut | each.through) < made]
                if real and not one.cut and not other.cut and one.through == other.through and _learns_both(computation, one.judge, real[0].through, one.through):
                    yield Remark(one.term.node, f"{short(one.term.node)} and {short(other.term.node)} (line {other.term.line}) ask both answers for the same generated samples in one loss: judge and generator are stepped with the sum, and the two cancel")
                    return


def _learns_both(computation: Computation, judge: int, own: set[int], whole: set[int]) -> bool:
    """Whether optimizers step a judge and what it is given, and no operation of the program turns a gradient round."""
    if any(one.op == "apply" or one.op.endswith(("Function.apply", "grad_reverse")) for one in computation.values):
        return False
    held = {id(part) for one in computation.of("step") if (optimizer := optimizer_of(one)) is not None for source in sources(optimizer.argument("params", 0)) or [] for part in contents(source.of, computation)}
    return judge in held and bool((whole - own) & held)


def generator_clamped(program: Program) -> Iterator[Remark]:
    """The weights of the generator are cut off at a bound in each pass, and those of the critic, which judges it, are not."""
    computation = computation_of(program)
    clamped = []
    for value in computation.of("clamp"):
        inside = [one for one in origins(value.args[0]) if one.op in ("parameters", "named_parameters") and one.args] if value.args else []
        if inside and not any(one.op == "grad" for one in origins(value.args[0])) and number(value.argument("min", 1)) is not None and value.where.loops:
            clamped.append((value, module(inside[0].args[0])))
    layers = [({id(part) for part in contents(one, computation)}, value, one) for value, one in clamped]
    for own, value, network in layers:
        judging = [one for one in computation.of("run") if one.args and id(module(one.args[0])) not in own and any(part.op == "run" and id(module(part.args[0])) in own for each in one.args[1:] for part in origins(each)) and value.where.loops[0] in one.where.loops]
        judges = {id(module(one.args[0])) for one in judging}
        backs = any(one.op == "run" and id(module(one.args[0])) in own and any(part.op == "run" and id(module(part.args[0])) in judges for each in one.args[1:] for part in origins(each)) for one in computation.of("run"))
        free = [one for one in computation.of("step") if (optimizer := optimizer_of(one)) is not None and any({id(part) for part in contents(source.of, computation)} & judges for source in sources(optimizer.argument("params", 0)) or [])]
        if judges and not backs and free and len(layers) == 1:
            yield Remark(value.node, f"{short(value.node)} bounds the weights of {short(network.node)} (line {network.line}), whose samples {short(judging[0].node)} (line {judging[0].line}) judges, and nothing bounds those of the judge")
            return
