"""Averages of weights: what they begin with, and who else changes them. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Table, Value, number, origins
from probe.diagnose.code.finders.losses.followers import mixtures
from probe.diagnose.code.finders.training.whose_gradients import gradient_reaches
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import module, product
from probe.diagnose.code.traits.held import Source, contents, optimizers, sources
from probe.diagnose.code.traits.updates import backwards, optimizer_of, runs
from probe.diagnose.code.traits.weights import bits_of

_ZEROS = ("zeros_like", "zeros", "new_zeros")
_SMALL_RATE = 1 / 8 / 512
_SAME = ("data", "detach", "clone", "float", "to", "cpu", "mul", "element", "part", "items", "values")


def average_begins_at_zero(program: Program) -> Iterator[Remark]:
    """An average of weights begins with zeros, and is used without a correction for what it has not seen."""
    computation = computation_of(program)
    if any(one.op == "sub" and number(one.args[0]) == 1 and len(one.args) == 2 and any(each.op == "pow" for each in origins(one.args[1])) for one in computation.of("sub")):
        return
    for value in computation.of("add", "lerp"):
        found = kept_and_taken(value)
        zeros = _begun_with(computation, found[0]) if found is not None else None
        if found is None or zeros is None or not value.where.loops:
            continue
        of_weights = [one for one in origins(found[1]) if one.op in ("parameters", "named_parameters", "state_dict")]
        if not of_weights or any(one.op == "grad" for one in origins(found[1])):
            continue
        store = store_of(found[0])
        used = next((one for one in computation.of("load_state_dict", "copy", "set_attribute") if one.number > zeros.number and any(part is store for each in one.args[1:] for part in origins(each))), None)
        if used is not None:
            yield Remark(value.node, f"{short(value.node)} moves the average on from zeros ({short(zeros.node)}, line {zeros.line}): after n steps its weights are too small by the factor 1 - decay ** n, and line {used.line} uses them as they are")
            return


def kept_and_taken(value: Value) -> tuple[Value, Value] | None:
    """The old average, and the weights, of `decay * old + (1 - decay) * weights`, however it is written."""
    if value.op == "lerp":
        weight = number(value.argument("weight", 2))
        return (value.args[0], value.args[1]) if weight is not None and 0 < weight < 0.5 and len(value.args) > 1 else None
    if len(value.args) != 2:
        return None
    alpha = number(value.named.get("alpha"))
    for place, (old, new) in enumerate((value.args, value.args[::-1])):
        kept, taken = _share(old), _share(new)
        share = taken * (alpha if alpha is not None and place == 0 else 1.0)
        if 0.5 < kept < 1 and abs(kept + share - 1) < 1e-6:
            return old, new
    return None


def _share(value: Value) -> float:
    """The constant factor of a value."""
    result = 1.0
    for one in product(value).above:
        known = number(one)
        result *= 1.0 if known is None else known
    return result


def store_of(value: Value) -> Value | None:
    """The dict or list that an old average is read from."""
    for _ in range(12):
        if isinstance(value, (Table, Many)) or value.op in ("dict", *_ZEROS):
            return value
        if value.op == "mul" and len(value.args) == 2 and number(value.args[0]) is not None:
            value = value.args[1]
        elif value.op in _SAME and value.args:
            value = value.args[0]
        else:
            return None
    return None


def _begun_with(computation: Computation, value: Value) -> Value | None:
    """The zeros that the store of an average was filled with."""
    store = store_of(value)
    if store is not None and store.op in _ZEROS:
        return store
    if isinstance(store, Table):
        filled = [*(one for _, one in store.others), *store.entries.values()]
    elif isinstance(store, Many):
        filled = store.parts
    else:
        return None
    filled += [one.args[2] for one in computation.of("set_item") if len(one.args) == 3 and one.args[0] is store and not comes_back(one.args[2], store)]
    first = [one for one in filled if not comes_back(one, store)]
    return first[0] if first and all(one.op in _ZEROS for one in first) else None


def comes_back(value: Value, store: Value) -> bool:
    """Whether a value is made of what a store holds."""
    return any(one is store for one in origins(value))


def average_trained_too(program: Program) -> Iterator[Remark]:
    """A network follows the average of another one's weights, and an optimizer steps it with gradients of its own."""
    computation = computation_of(program)
    found = list(backwards(computation))
    stepped = {id(optimizer) for one in computation.of("step") if (optimizer := optimizer_of(one)) is not None}
    frozen = [one for one in computation.of("requires_grad_", "set_attribute") if any(each.op == "@constant" and each.data is False for each in one.args[1:])]
    for one in mixtures(computation):
        others = one.others()
        if len(others) != 1 or one.share_of(one.into) <= 0.5 or not one.value.where.loops:
            continue
        inside = {id(part) for part in contents(module(one.into), computation)}
        if any(id(part) in inside for each in frozen for part in origins(each.args[0])):
            continue
        for optimizer in optimizers(computation):
            held = sources(optimizer.argument("params", 0)) or []
            mine = [source for source in held if id(source.of) in inside or source.of is module(one.into)]
            back = next((back for back, loss in found if gradient_reaches(loss, [Source(module(one.into), False)], computation) and runs(back) == runs(one.value)), None)
            if id(optimizer) in stepped and mine and back is not None and any(source.of is module(others[0]) for source in held):
                yield Remark(optimizer.node, f"{short(optimizer.node)} also holds the parameters of {short(one.into.node)} (line {one.into.line}), which line {one.value.line} moves towards those of the other network: {short(back.node)} (line {back.line}) trains it, and it is no average any more")
                return


def stepped_in_half(program: Program) -> Iterator[Remark]:
    """An optimizer steps weights that are kept in 16 bit, without copies in 32."""
    computation = computation_of(program)
    halved = {id(module(one.args[0])): one for one in computation.of("half", "bfloat16", "to") if one.args and bits_of(one) is not None}
    for step in computation.of("step") if halved else ():
        optimizer = optimizer_of(step)
        if optimizer is None or not optimizer.op.startswith("torch.optim."):
            continue
        for source in sources(optimizer.argument("params", 0)) or []:
            half = halved.get(id(source.of))
            if half is None or (bits_of(half) == "bfloat16" and not _is_small(optimizer)) or source.chosen or half.number > step.number or source.of.op in ("run", "rows", "part", "element"):
                continue
            copied = any(one.op in ("float", "copy", "load_state_dict") and one.args and (one.op != "float" or module(one.args[0]) is source.of or any(each.op == "parameters" for each in origins(one.args[0]))) for one in computation.values)
            if not copied:
                share = "thousandth" if bits_of(half) == "float16" else "five hundredth"
                yield Remark(step.node, f"{short(step.node)} changes weights of 16 bit ({short(half.node)}, line {half.line}): a step below a {share} of a weight is rounded away")
                return


def _is_small(optimizer: Value) -> bool:
    """Whether an optimizer moves each weight by about its rate, and that is lost in bfloat16 (half of whose step is a five
    hundredth of a weight) for all weights above an eighth."""
    rate = number(optimizer.argument("lr", 1))
    return optimizer.op.rpartition(".")[2] in ("Adam", "AdamW", "NAdam", "RAdam", "Adamax") and rate is not None and rate <= _SMALL_RATE
