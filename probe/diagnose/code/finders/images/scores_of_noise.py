"""Scores that are learned of noise, and the way that samples are moved by them. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, origins
from probe.diagnose.code.finders.pictures.generated import last_layer
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import addends, product, sides

_NOISE = ("randn", "randn_like", "normal")


def moved_towards_the_noise(program: Program) -> Iterator[Remark]:
    """A network learns the noise of its input divided by its strength, and samples are moved by what it gives, and not against it."""
    computation = computation_of(program)
    learned = [(layer, value) for value in computation.of("sub", "add", "mse_loss") if not value.where.no_grad and (layer := _learns_noise(value)) is not None]
    for value in computation.of("add") if learned else ():
        parts = list(addends(value)) if value.where.no_grad else []
        if not value.where.loops or not any(bare(one).op in _NOISE and bare(one).where.loops == value.where.loops for part, _ in parts for one in product(part).above):
            continue
        for part, sign in parts:
            made = product(part)
            runs = [one for one in made.above if any(each.op == "run" for each in origins(one, ("run",)))]
            at = next((loss for layer, loss in learned if len(runs) == 1 and last_layer(runs[0]) is layer), None)
            if at is not None and sign * made.sign > 0 and len(made.above) > 1 and not any(bare(one).op == "sub" for one in made.above):
                yield Remark(value.node, f"{short(value.node)} moves the sample along what the network gives, and {short(at.node)} (line {at.line}) teaches it the noise that was added, which leads away from the data")
                return


def _learns_noise(value: Value) -> Value | None:
    """The layer whose output a loss pulls towards noise divided by its strength, of the same sign."""
    if len(value.args) < 2:
        return None
    for output, target in (value.args[:2], value.args[1::-1]):
        wanted, given = product(target), product(output)
        noise = [(one, turned) for one in wanted.above if (turned := _is_noise(one)) is not None]
        runs = [one for one in given.above if any(each.op == "run" for each in origins(one, ("run",)))]
        if len(noise) != 1 or len(runs) != 1 or len(wanted.above) != 1 or not (wanted.below or len(given.above) > 1):
            continue
        alike = wanted.sign * noise[0][1] == given.sign
        drawn = [each for each in origins(noise[0][0]) if each.op in _NOISE]
        if alike == (value.op != "add") and any(each is one for each in origins(runs[0]) for one in drawn):
            return last_layer(runs[0])
    return None


def _is_noise(value: Value) -> int | None:
    """1 for noise and for what it has changed less what was there before, -1 for the opposite of that; None for all else."""
    value = bare(value)
    if value.op in _NOISE:
        return 1
    for noisy, clean, sign in ((value.args[0], value.args[1], 1), (value.args[1], value.args[0], -1)) if value.op == "sub" and len(value.args) == 2 else ():
        if any(bare(one) is bare(clean) and any(bare(each).op in _NOISE for each in product(other).above) for one, other in (sides(bare(noisy)) if bare(noisy).op == "add" else ())):
            return sign
    return None
