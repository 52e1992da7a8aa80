"""Inputs that are scaled where a network learns, and not where it is judged. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import KEPT, Value, bare, number, origins
from probe.diagnose.code.finders.data.splits import is_scaled_by_itself
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses
from probe.diagnose.code.traits.pictures import applied, line_of
from probe.diagnose.code.traits.sides import is_simulated_beside

FINDERS = Finders()
_MADE = ("from_numpy", "tensor", "as_tensor", "rand", "randn", "randint", "numpy.load", "torch.load")
"""Operations that begin the data of a program."""


@FINDERS.add("normalized-apart")
def _normalized_apart(program: Program) -> Iterator[Remark]:
    """A network learns from normalized inputs, and is judged on inputs that are not."""
    computation = computation_of(program)
    learned = _learned(computation)
    for trained, judged in _by_network(computation, learned):
        marks = [_normalizes(one) for one in trained]
        if not judged or not all(marks) or any(_normalizes(one.args[1]) for one in judged):
            continue
        sources = {one.op for each in trained for one in origins(each) if one.op.startswith(("torchvision.datasets.", "PIL.Image.open"))}
        raw = {_unscaled(one).node for one in marks if one is not None and one.op == "div"}
        alike = _made_alike(trained, [one.args[1] for one in judged]) and all(map(_centred, trained))
        if alike or (sources and all(any(one.op in sources for one in origins(each.args[1])) for each in judged)) or (raw and all(_unscaled(each.args[1]).node in raw for each in judged)):
            found = next(one for one in marks if one is not None)
            yield Remark(judged[0].node, f"{short(judged[0].node)} is given inputs that are not normalized, and those that the network learns from are (line {found.line})")


@FINDERS.add("normalized-apart")
def _scaled_in_one_place(program: Program) -> Iterator[Remark]:
    """A network learns from numbers of bytes that were brought to 0…1, and is judged on the bytes themselves, or the other
    way round."""
    computation = computation_of(program)
    learned = _learned(computation)
    for trained, judged in _by_network(computation, learned):
        here, there = [_divided(one) for one in trained], [_divided(one.args[1]) for one in judged]
        somewhere = [any(map(_is_divided_in, places)) for places in (trained, [one.args[1] for one in judged])]
        if judged and _made_alike(trained, [one.args[1] for one in judged]) and ((all(here) and not somewhere[1]) or (all(there) and not somewhere[0])):
            found = next(one for one in (*here, *there) if one is not None)
            there_too = "judged" if found in here else "taught"
            yield Remark(judged[0].node, f"{short(found.node)} (line {found.line}) scales the inputs in one place, and those that {short(judged[0].node)} is {there_too} on are not: the two differ by a factor")


def _divided(value: Value) -> Value | None:
    """Where numbers of bytes are divided by the largest."""
    return next((one for one in line_of(value) if _is_by_the_largest(one)), None)


def _is_divided_in(value: Value) -> bool:
    """Whether numbers of bytes are divided by the largest in anything that a value is made of, statistics aside."""
    return any(_is_by_the_largest(one) for one in origins(value, stop=("mean", "std", "var")))


def _is_by_the_largest(value: Value) -> bool:
    return value.op == "div" and len(value.args) == 2 and number(value.args[1]) in (255, 256, 65535)


def _centred(value: Value) -> bool:
    """Whether a value is itself centred and scaled on its way, and not only something beside it."""
    return any(applied(one) in ("Normalize", "normalize") or (one.op == "div" and bare(one.args[0]).op == "sub") for one in line_of(value))


def _made_alike(trained: list[Value], judged: list[Value]) -> bool:
    """Whether all inputs are made by the same statements: of one file, or by one function."""
    made = {one.node for each in trained for one in origins(each) if one.op in _MADE}
    return bool(made) and all(any(one.op in _MADE and one.node in made for one in origins(each)) for each in judged)


def _learned(computation: Computation) -> dict[int, Value]:
    """What the first layers of networks give on the way to a loss, by id."""
    return {id(one): one for _, loss in losses(computation) for one in origins(loss) if _is_first(one)}


def _by_network(computation: Computation, learned: dict[int, Value]) -> Iterator[tuple[list[Value], list[Value]]]:
    """For each network, the inputs that it learns from, and where it, or a copy of it, is judged: a copy's layers are
    called at the same places."""
    for key in {id(one.args[0]): None for one in learned.values()}:
        runs = [one for one in learned.values() if id(one.args[0]) == key]
        places = {one.node for one in runs}
        judged = [one for one in computation.of("run") if one.where.no_grad and one.args and (id(_copied(computation, one.args[0])) == key or one.node in places) and _is_first(one)]
        yield [one.args[1] for one in runs], judged


def _copied(computation: Computation, layer: Value) -> Value:
    """The layer that a copy was made of; the layer itself, where it is none."""
    while id(layer) in computation.copies:
        layer = computation.copies[id(layer)]
    return layer


def _unscaled(value: Value) -> Value:
    """The rows that an input is made of, before they were chosen, put into a batch or centred and scaled."""
    while value.args and (value.op in KEPT or value.op in ("part", "sub", "div")):
        value = value.args[0]
    return value


def _is_first(value: Value) -> bool:
    """Whether a value is what the first layer of a network gives, or a whole network."""
    if value.op != "run" or len(value.args) != 2 or applied(value) is not None:
        return False
    return value.args[0].op not in ("unknown", "part") and not any(one.op == "run" and applied(one) is None for one in origins(value.args[1]))


def _normalizes(value: Value) -> Value | None:
    """Where inputs are normalized; None where they are not."""
    for one in origins(value):
        if applied(one) in ("Normalize", "normalize") or (one.op == "div" and bare(one.args[0]).op == "sub"):
            return one
    return None


@FINDERS.add("scaled-apart")
def _scaled_apart(program: Program) -> Iterator[Remark]:
    """The rows that a network learns from and those that it is judged on are each scaled by statistics of their own."""
    computation = computation_of(program)
    learned = _learned(computation)
    ours = {id(one): one for run in learned.values() for one in origins(run.args[1]) if _is_by_own_statistics(one)}
    nodes = {one.node: one for one in ours.values()}
    for judged in computation.of("run"):
        if not judged.where.no_grad or id(judged) in learned or not _is_first(judged) or not any(one.args[0] is judged.args[0] for one in learned.values()):
            continue
        theirs = next((one for one in origins(judged.args[1]) if one.node in nodes and id(one) not in ours and _is_by_own_statistics(one)), None)
        if theirs is not None and not is_simulated_beside(theirs):
            yield Remark(theirs.node, f"{short(theirs.node)} scales the rows that {short(judged.node)} (line {judged.line}) is judged on by their own statistics, and those that are trained on by theirs")
            return


def _is_by_own_statistics(value: Value) -> bool:
    """Whether a table is scaled by statistics over its own rows, once for all of them."""
    if value.op != "div" or value.where.loops or any(getattr(one, "name", "") in ("forward", "__getitem__") for one in value.where.functions):
        return False
    statistics = [value.args[1], *bare(value.args[0]).args[1:]]
    given = any(one.op == "either" for each in statistics for one in origins(each, stop=("mean", "std", "min", "max", "var")))
    return not given and is_scaled_by_itself(value)
