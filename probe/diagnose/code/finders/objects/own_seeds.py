"""Changes of samples that are drawn by a generator of their own number. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import KEPT, Instance, Value, bare, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import LOSSES
from probe.diagnose.code.traits.sides import sides_of
from probe.diagnose.code.traits.uses import made_from

FINDERS = Finders()
_GENERATORS = ("random.Random", "default_rng", "RandomState", "numpy.random.RandomState", "numpy.random.default_rng", "manual_seed")
_SCALED = KEPT | {"mul", "div", "add", "sub", "builtins.float", "builtins.int"}
_CHANGES = ("roll", "mul", "add", "sub", "div", "flip", "rot90", "part", "where", "fliplr", "crop", "clamp")


@FINDERS.add("augmentation-cached")
def _by_its_number(program: Program) -> Iterator[Remark]:
    """What a data set has stored of a sample is changed, for the training, by draws of a generator that is made anew of the number
    of the sample each time."""
    computation = computation_of(program)
    made = [one for one in computation.of(*_GENERATORS) if _is_read(one) and one.args and _is_place(one.args[-1])]
    learned = {id(one) for sides in sides_of(computation) if made for one in sides.given.values()}
    asked = {id(one) for sides in sides_of(computation) if made for loss in sides.beside.values() if loss.op in LOSSES and len(loss.args) > 1 for one in origins(loss.args[1], ("run",))}
    for generator in made:
        draws = [one for one in computation.users(generator) if (one.args and one.args[0] is generator) or generator in one.named.values()]
        for drawn in draws:
            for change in made_from(computation, drawn, _SCALED, most=40):
                stored = next((part for one in change.args if one is not drawn for part in _stored(one) if id(part.args[0]) not in asked), None)
                if change.op in _CHANGES and id(change) in learned and stored is not None:
                    yield Remark(change.node, f"{short(change.node)} is drawn by {short(generator.node)} (line {generator.line}), which is made anew of the number of the sample: each sample has one random change for the whole training")
                    return


def _is_read(value: Value) -> bool:
    return any(getattr(one, "name", "") == "__getitem__" for one in value.where.functions)


def _is_place(value: Value) -> bool:
    """Whether a value is the number of the sample that is asked for, with a fixed number added or not."""
    value = bare(value)
    if value.op in ("add", "mul") and len(value.args) == 2:
        return any(_is_place(one) and other.op == "@constant" for one, other in (value.args, value.args[::-1]))
    return value.op == "index" and len(value.args) == 1 and isinstance(value.args[0], Instance)


def _stored(value: Value) -> Iterator[Value]:
    """The entries of what a data set keeps that a value is computed of."""
    yield from (one for one in origins(value) if one.op == "part" and len(one.args) == 2 and _is_place(one.args[1]))
