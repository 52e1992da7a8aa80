"""Gradients, penalties and masks that are turned round: what should hold the weights drives them on. Pure; standard library
only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    SHAPED,
    Many,
    Value,
    bare,
    constant,
    number,
    origins,
    same,
)
from probe.diagnose.code.finders.losses.followers import mixtures
from probe.diagnose.code.finders.runs.begun_averages import kept_and_taken, store_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import product
from probe.diagnose.code.traits.backwards import has_gradient
from probe.diagnose.code.traits.basic import LOSSES, terms
from probe.diagnose.code.traits.held import contents, optimizers, sources
from probe.diagnose.code.traits.updates import backwards, optimizer_of, plain
from probe.diagnose.code.traits.weights import has_parameters

FINDERS = Finders()
_STEPPED = ("StepLR", "MultiStepLR")


def gradient_grown(program: Program) -> Iterator[Remark]:
    """A gradient that is too long is multiplied by its own length."""
    for value in computation_of(program).of("set_attribute", "mul"):
        made = value.args[1] if value.op == "set_attribute" and value.data == "grad" and len(value.args) > 1 else value
        if made.op != "mul" or not any(test.op in ("gt", "ge") and any(one.op in ("norm", "vector_norm") for one in test.args) for test, holds in value.where.under if holds):
            continue
        factors = product(made)
        lengths = [one for one in factors.above if one.op in ("norm", "vector_norm")]
        if any(one.op == "grad" for one in factors.above) and lengths and not any(one.op in ("norm", "vector_norm") for below in factors.below for one in origins(below)):
            yield Remark(value.node, f"{short(value.node)} multiplies a gradient by its own length ({short(lengths[0].node)}, line {lengths[0].line}) where it is too long")
            return


def decay_outwards(program: Program) -> Iterator[Remark]:
    """A part of each weight is taken from its gradient, so that the step adds it to the weight."""
    for value in computation_of(program).of("sub"):
        if len(value.args) != 2 or bare(value.args[0]).op != "grad" or not bare(value.args[0]).args:
            continue
        weight = bare(bare(value.args[0]).args[0])
        alpha = number(value.named.get("alpha"))
        factors = product(value.args[1])
        constants = [found for one in factors.above if (found := number(one)) is not None]
        others = [one for one in factors.above if number(one) is None]
        positive = all(one > 0 for one in [*constants, *([alpha] if alpha is not None else [])]) and factors.sign > 0 and bool(constants or alpha is not None)
        if positive and not factors.below and len(others) == 1 and bare(others[0]) is weight and any(one.op in ("parameters", "named_parameters", "param_groups") for one in origins(weight)):
            yield Remark(value.node, f"{short(value.node)} takes a part of the weight from its gradient, and a step goes against the gradient: it makes the weight larger")
            return


def slope_rewarded(program: Program) -> Iterator[Remark]:
    """The square of a slope of a network, by its input, is taken from the loss."""
    for _, loss in backwards(computation_of(program)):
        parts = list(terms(loss))
        for term, factor in parts:
            inside = list(origins(term, ("run",)))
            slope = next((one for one in inside if one.op.endswith("autograd.grad") and constant(one.named.get("create_graph")) is True), None)
            squared = any(one.op in ("pow", "square", "norm", "vector_norm") for one in inside)
            if factor is None or factor >= 0 or slope is None or not squared or any(one.op == "log" for one in inside) or len(parts) < 2:
                continue
            by = slope.argument("inputs", 1)
            if by is not None and not any(one.op in ("parameters", "torch.nn.Parameter", "weight") for one in origins(by, ("run",))):
                yield Remark(term.node, f"{short(term.node)} is taken from the loss: the longer the slope {short(slope.node)} (line {slope.line}), the smaller the loss")
                return


def least_certain_kept(program: Program) -> Iterator[Remark]:
    """Labels that a network gives itself count where it is less sure of them than a bound."""
    for _, loss in backwards(computation_of(program)):
        for value in origins(loss):
            if value.op != "mul" or len(value.args) != 2:
                continue
            for given, mask in (value.args, value.args[::-1]):
                losses = bare(given)
                test = bare(mask)
                if losses.op not in LOSSES or test.op not in ("lt", "le") or len(losses.args) < 2 or len(test.args) != 2 or (number(test.args[1]) or 0) < 0.5:
                    continue
                sure, label = bare(test.args[0]), bare(losses.args[1])
                scores = _highest(sure, 0)
                if scores is not None and _highest(label, 1) is not None and same(scores, _highest(label, 1) or label):
                    yield Remark(test.node, f"{short(test.node)} keeps the labels that the network is least sure of, and leaves out those above {number(test.args[1]):g}")
                    return


def _highest(value: Value, which: int) -> Value | None:
    """The probabilities whose highest one (0), or its class (1), a value is."""
    if value.op == "part" and len(value.args) == 2 and value.args[0].op == "max" and number(value.args[1]) == which and value.args[0].args:
        return bare(value.args[0].args[0], "softmax")
    if value.op in (("amax", "max") if which == 0 else ("argmax",)) and value.args:
        return bare(value.args[0], "softmax")
    return None


def classes_averaged(program: Program) -> Iterator[Remark]:
    """The numbers of the classes that several networks choose are averaged, and the mean is taken for a class."""
    for value in computation_of(program).of("eq"):
        for guess in value.args if len(value.args) == 2 else ():
            at, whole = guess, False
            while at.args and (at.op in ("round", "floor", "long", "int", "floordiv") or at.op in SHAPED or at.op in KEPT) and not isinstance(at, Many):
                whole = whole or at.op in ("round", "floor", "long", "int", "floordiv")
                if at.op == "floordiv":
                    break
                at = at.args[0]
            summed = at.args[0] if at.op in ("div", "floordiv") and len(at.args) == 2 else at if at.op == "mean" else None
            votes = list(_added(summed)) if summed is not None else []
            if whole and len(votes) > 1 and all(_is_class(one) for one in votes):
                yield Remark(at.node, f"{short(at.node)} is a mean of the numbers of classes ({short(votes[0].node)}, line {votes[0].line}), and {short(value.node)} (line {value.line}) takes it for a class")
                return


def _added(value: Value) -> Iterator[Value]:
    """What a value is the sum of."""
    value = bare(value)
    if value.op in ("add", "sum_of", "mean", "sum", "stack", "list") and (value.args or isinstance(value, Many)):
        for one in value.made_of():
            yield from _added(one) if one.op != "@constant" else ()
    else:
        yield value


def _is_class(value: Value) -> bool:
    return value.op == "argmax" or (value.op == "part" and value.args[0].op == "max" and number(value.args[1]) == 1)


def rate_raised(program: Program) -> Iterator[Remark]:
    """A schedule that lowers the rate at some epochs multiplies it by more than 1 there."""
    for value in computation_of(program).values:
        word = value.op.rpartition(".")[2]
        gamma = number(value.argument("gamma", 2)) if value.op.startswith("torch.optim.lr_scheduler.") and word in _STEPPED else None
        if gamma is not None and gamma >= 2:
            yield Remark(value.node, f"{short(value.node)} multiplies the rate by {gamma:g} at each of its steps")


def teacher_never_taught(program: Program) -> Iterator[Remark]:
    """A network that is made in the program gives the probabilities that another one learns, and nothing ever trains or loads it."""
    computation = computation_of(program)
    loaded = any(True for _ in computation.of("load_state_dict", "from_pretrained", "load", "copy", "lerp", "zip", "deepcopy", "vector_to_parameters", "pretrained", "update_parameters"))
    held = {id(part) for one in optimizers(computation) for source in sources(one.argument("params", 0)) or [] for part in contents(source.of, computation)}
    known = all(sources(one.argument("params", 0)) for one in optimizers(computation))
    followers = {id(part) for one in mixtures(computation) for part in contents(one.into, computation)}
    for _, loss in backwards(computation) if not loaded and known else ():
        for term, _ in terms(loss):
            if term.op not in ("kl_div", "cross_entropy") or len(term.args) < 2 or not has_gradient(term.args[0]) or has_gradient(term.args[1]):
                continue
            given = [one for one in origins(term.args[1]) if one.op == "run" and one.args and has_parameters(plain(one.args[0]))]
            soft = any(one.op == "softmax" for one in origins(term.args[1], ("run",))) and not any(one.op in ("argmax", "max") for one in origins(term.args[1], ("run",)))
            learned = {id(plain(one.args[0])) for one in origins(term.args[0]) if one.op == "run" and one.args}
            if soft and given and all(id(plain(one.args[0])) not in held and id(plain(one.args[0])) not in learned | followers and plain(one.args[0]).op.startswith("torch.nn.") for one in given):
                layer = plain(given[0].args[0])
                yield Remark(term.node, f"{short(term.node)} teaches what the network with {short(layer.node)} (line {layer.line}) gives, and nothing has trained or loaded that one")
                return


@FINDERS.add("average-never-used")
def _average_left_in(program: Program) -> Iterator[Remark]:
    """A dict with the average of the weights is loaded into the network in training, and nothing loads its own again."""
    computation = computation_of(program)
    steps = [one for one in computation.of("step") if optimizer_of(one) is not None]
    for value in computation.of("add"):
        found = kept_and_taken(value)
        store = store_of(found[0]) if found is not None else None
        network = next((plain(one.args[0]) for one in origins(found[1]) if one.op in ("state_dict", "parameters", "named_parameters") and one.args), None) if found is not None else None
        if store is None or network is None or store.op != "dict":
            continue
        loads = [one for one in computation.of("load_state_dict") if len(one.args) > 1 and plain(one.args[0]) is network]
        again = [one for one in loads if one.where.loops and any(step.where.loops[:1] == one.where.loops[:1] for step in steps)]
        if again and all(any(part is store for part in origins(one.args[1])) for one in loads) and not any(one.op in ("copy", "set_attribute") and one.where.functions == again[0].where.functions for one in computation.of("copy")):
            yield Remark(again[0].node, f"{short(again[0].node)} writes the average of the weights (kept up in line {value.line}) into the network in training, and nothing puts its own weights back: the steps that follow go on from the average")
            return
