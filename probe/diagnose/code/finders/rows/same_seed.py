"""Parts of a synthetic data set that are drawn from one seed. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, is_none, number
from probe.diagnose.code.finders.data.held_out import Roles, rows_under
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short

_SEEDED = ("manual_seed", "default_rng", "RandomState", "random.Random", "Random", "numpy.random.default_rng")


def one_seed_for_two_parts(program: Program) -> Iterator[Remark]:
    """Several parts are drawn by one function, each from a seed of its own, but one that is trained on and one that is
    evaluated from the same one."""
    computation = computation_of(program)
    seeded = [(one, found) for one in computation.of(*_SEEDED) if (found := _seed(one)) is not None and one.where.functions]
    roles = Roles(computation) if len(seeded) > 2 else None
    for place, (one, seed) in enumerate(seeded):
        for other, same in seeded[:place]:
            if roles is None or other.node is not one.node or seed != same or not any(each.node is one.node and found != seed for each, found in seeded):
                continue
            cut = _cut(computation) if other.node is one.node else set()
            if id(one) in cut and id(other) in cut:
                continue
            for train, held in ((one, other), (other, one)):
                if id(train) in roles.trained and id(held) in roles.held and id(held) not in roles.trained:
                    yield Remark(one.node, f"{short(one.node)} gets the seed {seed:g} for a part that is trained on and for one that is evaluated, and another one for other parts: the two begin with the same draws")
                    return


_PARTS = ("torch.utils.data.Subset", "torch.utils.data.random_split")


def _cut(computation: Computation) -> set[int]:
    """What the data sets are made of of which only parts are taken: two of one seed may be the same rows, with other
    augmentation, each for other indices."""
    samplers = [one for one in computation.of("torch.utils.data.DataLoader") if (given := one.argument("sampler", 3)) is not None and not is_none(given)]
    return rows_under([one.args[0] for one in (*computation.of(*_PARTS), *samplers) if one.args], [])


def _seed(value: Value) -> float | None:
    """The number that a generator begins with."""
    given = [one for one in value.args if number(one) is not None]
    return number(given[-1]) if given else number(value.named.get("seed"))
