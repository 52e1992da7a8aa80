"""A temperature that is fitted to the outputs of a trained network. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, origins
from probe.diagnose.code.finders.training.chosen_scores import TEST, VALIDATION, names_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses


def calibrated_on_what_was_learned(program: Program) -> Iterator[Remark]:
    """A temperature is fitted to the outputs for the samples that the network has learned."""
    computation = computation_of(program)
    found = [loss for _, loss in losses(computation) if len(loss.args) > 1]
    for fitted in found:
        outputs = _divided(fitted.args[0])
        if outputs is None or not all(run.where.no_grad for run in origins(outputs, stop=("detach", "numpy", "tolist")) if run.op == "run"):
            continue
        if not any(len(one.args) > 1 and learns(one.args[1], fitted.args[1]) for one in found):
            continue
        learned = next((one for one in found if learns(one.args[1], fitted.args[1]) and any(run.op == "run" and not run.where.no_grad for run in origins(one.args[0])) and _divided(one.args[0]) is None), None)
        if learned is not None:
            yield Remark(fitted.node, f"{short(fitted.node)} fits a temperature to the samples that {short(learned.node)} (line {learned.line}) learns, for which the network is surer than for any other")
            return


def calibrated_on_the_test(program: Program) -> Iterator[Remark]:
    """A temperature is fitted to outputs for the test samples, and is used on no others: how sure the network is of them is judged
    by what was fitted to them."""
    computation = computation_of(program)
    for _, fitted in losses(computation):
        outputs = _divided(fitted.args[0]) if len(fitted.args) > 1 else None
        runs = [one for one in origins(outputs, stop=("detach", "numpy", "tolist")) if one.op == "run"] if outputs is not None else []
        if outputs is None or not runs or not all(run.where.no_grad for run in runs):
            continue
        leaves = {id(one) for one in origins(fitted.args[0]) if one.op == "torch.nn.Parameter" or _is_leaf(one)}
        scaled = [one for one in computation.of("div", "mul") if len(one.args) == 2 and one.where.functions != fitted.where.functions and any(id(each) in leaves for each in origins(one)) and any(each.op == "run" for each in origins(one))]
        rows = [*_made_of(outputs), *_made_of(fitted.args[1])]
        named = next((name for one in rows for name in names_of(computation, one) if TEST.search(name)), None)
        others = [one for one in scaled if not any(each is run for each in origins(one) for run in runs)]
        if scaled and not others and named is not None and not any(VALIDATION.search(name) for one in rows for name in names_of(computation, one)):
            yield Remark(fitted.node, f"{short(fitted.node)} fits the temperature to {named}, and {short(scaled[0].node)} (line {scaled[0].line}) is all that it is used on: the outputs for the same samples")
            return


def _made_of(value: Value) -> Iterator[Value]:
    """A value and all that it is made of, with the loaders that the samples come from."""
    for one in origins(value):
        yield one
        if one.op == "rows" and "loader" in one.named:
            yield one.named["loader"]


def _divided(value: Value) -> Value | None:
    """The outputs of a network that are divided by a parameter of one number, or multiplied by it."""
    value = bare(value)
    if value.op not in ("div", "mul") or len(value.args) != 2:
        return None
    for outputs, by in (value.args, value.args[::-1]):
        leaves = [one for one in origins(by) if one.op in ("torch.nn.Parameter", "run") or _is_leaf(one)]
        if leaves and all(one.op != "run" for one in leaves) and any(one.op == "run" for one in origins(outputs)):
            return outputs
    return None


def _is_leaf(value: Value) -> bool:
    """Whether a value is a tensor that is made to be trained."""
    return constant(value.named.get("requires_grad")) is True or value.op == "requires_grad_"


def learns(learned: Value, fitted: Value) -> bool:
    """Whether targets that are learned are taken from those, or are of the same loader as those, that something is fitted to."""
    if _tables(learned) & _tables(fitted):
        return True
    whole = bare(fitted)
    if whole.op == "cat" and whole.args and isinstance(listed := bare(whole.args[0]), Many) and len(listed.parts) == 1:
        whole = bare(listed.parts[0])
    whole = bare(whole.args[0]) if whole.op == "part" and len(whole.args) == 2 and whole.args[1].op == "index" else whole
    at = bare(learned)
    for _ in range(8):
        if at is whole and at.op != "@input":
            return True
        if at.op != "part" or len(at.args) != 2:
            return False
        chosen = bare(whole.args[1]) if whole.op == "part" and len(whole.args) == 2 and bare(whole.args[0]) is bare(at.args[0]) else None
        if chosen is not None and chosen.op in ("part", "nonzero", "sort") and any(one is chosen for one in origins(at.args[1])):
            return True
        at = bare(at.args[0])
    return False


def _tables(value: Value) -> set[int]:
    """What the samples are read from that a value is made of: the part of a data set that was split."""
    return {id(bare(one.args[0].args[0])) for one in origins(value) if one.op == "rows" and one.args and one.args[0].op == "part"}
