"""Adapters beside frozen layers: whether they are trained, and whether they are merged as they were trained. Pure; standard
library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Instance, Value, bare, constant, number, origins
from probe.diagnose.code.finders.sequences.references import owner_of, switched
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import TURNED, product
from probe.diagnose.code.traits.backwards import layers_of
from probe.diagnose.code.traits.basic import losses
from probe.diagnose.code.traits.updates import is_optimizer, plain
from probe.diagnose.code.traits.weights import has_parameters


def merged_without_its_scale(program: Program) -> Iterator[Remark]:
    """The product of two matrices is added to the weights of a layer as it is, and the training multiplies it by a number."""
    computation = computation_of(program)
    scaled: dict[frozenset[int], Value] = {}
    for _, loss in losses(computation):
        for value in origins(loss):
            factors = product(value) if value.op == "mul" else None
            by = next((one for one in factors.above if number(one) not in (None, 1)), None) if factors is not None else None
            for one in factors.above if factors is not None and by is not None else ():
                pair = _applied(one)
                if pair is not None:
                    scaled.setdefault(pair, value)
    for merged in computation.of("add", "add_") if scaled else ():
        for weight, change in (merged.args[:2], merged.args[1::-1]) if len(merged.args) == 2 and not merged.named else ():
            pair = _multiplied(change)
            if bare(weight).op == "weight" and pair in scaled and pair is not None:
                yield Remark(merged.node, f"{short(merged.node)} adds {short(change.node)} as it is to the weights, and in the training it is multiplied: {short(scaled[pair].node)} (line {scaled[pair].line})")
                return


def _multiplied(value: Value) -> frozenset[int] | None:
    """The two parameters that a value is the product of."""
    value = bare(value, *TURNED)
    if value.op != "matmul" or len(value.args) != 2:
        return None
    sides = [_parameter(one) for one in value.args]
    return frozenset(id(one) for one in sides if one is not None) if None not in sides else None


def _parameter(value: Value) -> Value | None:
    """The parameter that a value is, or the layer whose weight it is."""
    value = bare(value, *TURNED)
    return value if value.op == "torch.nn.Parameter" else plain(value.args[0]) if value.op == "weight" and value.args else None


def _applied(value: Value) -> frozenset[int] | None:
    """The two parameters, or layers, that an input is multiplied by, one after the other."""
    found: list[int] = []
    for _ in range(8):
        value = bare(value, "dropout")
        if value.op == "run" and len(value.args) == 2 and value.args[0].op == "torch.nn.Linear":
            found.append(id(plain(value.args[0])))
            value = value.args[1]
        elif value.op == "run" and len(value.args) == 2 and value.args[0].op == "torch.nn.Dropout":
            value = value.args[1]
        elif value.op in ("matmul", "linear") and len(value.args) >= 2:
            side = _parameter(value.args[1])
            if side is None:
                both = _multiplied(value.args[1])
                return both if both is not None and not found else None
            found.append(id(side))
            value = value.args[0]
        else:
            break
    return frozenset(found) if len(found) == 2 else None


def adapters_frozen(program: Program) -> Iterator[Remark]:
    """Layers are put round those of a network, and then all of its parameters are frozen, the new ones too."""
    computation = computation_of(program)
    changes = list(switched(computation))
    made = [one for one in computation.values if is_optimizer(one)]
    used = {id(plain(one.args[0])) for _, loss in losses(computation) for one in origins(loss) if one.op == "run" and one.args}
    for put in computation.of("set_attribute", "setattr"):
        adapter, home = plain(put.args[-1]), plain(put.args[0])
        if not isinstance(adapter, Instance) or not isinstance(home, Instance):
            continue
        wrapped = [one for one in adapter.attributes.values() if one.op.startswith("torch.nn.") and has_parameters(one) and one.number < adapter.number]
        new = [one for one in adapter.attributes.values() if one.number > adapter.number and (has_parameters(one) or one.op == "torch.nn.Parameter")]
        frozen = [one for one in changes if constant(one.args[1]) is False and one.number > put.number and (of := owner_of(one)) is not None and any(home is each for each in layers_of(of)) and not one.where.under]
        if not wrapped or not new or not frozen or any(constant(one.args[1]) is not False and _may_touch(one, adapter, new) for one in changes if one.number > frozen[0].number):
            continue
        if made and made[-1].number > frozen[0].number and any(id(one) in used for one in (*wrapped, *new)):
            yield Remark(frozen[0].node, f"{short(frozen[0].node)} freezes all parameters of the network, also those of {short(new[0].node)} (line {new[0].line}), which {short(put.node)} (line {put.line}) has put into it before")
            return


def _may_touch(switch: Value, adapter: Value, new: list[Value]) -> bool:
    """Whether parameters that are thawed may be those of an adapter."""
    owner = owner_of(switch)
    if owner is None or switch.where.under:
        return True  # chosen one by one, by their names or by what they are part of
    return any(one is adapter or any(one is each for each in new) for one in layers_of(owner))
