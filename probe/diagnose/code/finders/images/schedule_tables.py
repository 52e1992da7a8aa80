"""Tables of a schedule of noise: weights that belong to another prediction, and tables from before the schedule was changed;
codes that are scaled for a network, and decoded as it gives them. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, alternatives, bare, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import complement_of, product, root_of, sides
from probe.diagnose.code.traits.basic import losses, squared
from probe.diagnose.code.traits.updates import plain

_NOISE = ("randn", "randn_like", "normal", "standard_normal")
_LIMITS = ("min", "minimum", "clamp", "where")
_PARTS = ("part", "chunk", "split", "cat", "rows", "element")
_DRAWN = ("randint", "index", "element", "arange", "full", "multinomial", "rows")


# Weights of the loss -----------------------------------------------------------------------


def weight_of_another_prediction(program: Program) -> Iterator[Remark]:
    """The loss asks for the velocity, and is weighed by min(snr, limit) / snr, which belongs to the noise; or the other way
    round."""
    computation = computation_of(program)
    ratios = [one for one in computation.of("div", "pow", "mul") if is_ratio_of_signal(one)]
    for _, loss in losses(computation) if ratios else ():
        for value in origins(loss, stop=("run",)):
            for weighed, weight in sides(value) if value.op == "mul" else ():
                kind, asked = _weight_for(weight), _asked_for(weighed)
                if kind is None or asked is None or kind == asked:
                    continue
                by = "min(snr, limit) / snr, the weight for the noise" if kind == "noise" else "min(snr, limit) / (snr + 1), the weight for the velocity"
                what = "the velocity" if asked == "velocity" else "the noise"
                yield Remark(value.node, f"{short(value.node)} weighs an error by {by} ({short(bare(weight).node)}, line {bare(weight).line}), and the loss asks for {what}")
                return


def is_ratio_of_signal(value: Value) -> bool:
    """Whether a value is what is left of the signal divided by the noise that was mixed in, a / (1 - a), also as the square
    of the ratio of their roots."""
    value = _looked_up(value)
    inner = squared(value)
    value = _looked_up(inner) if inner is not None else value
    if value.op != "div" or len(value.args) != 2:
        return False
    above, below = (_without_power(one) for one in value.args)
    rest = complement_of(below)
    return rest is not None and same(_looked_up(rest), above) and any(one.op in ("cumprod", "cos", "sigmoid", "load", "exp") for one in origins(above))


def _looked_up(value: Value) -> Value:
    """A table, of an entry of it."""
    while bare(value).op in ("part", "gather") and bare(value).args:
        value = bare(value).args[0]
    return bare(value)


def _without_power(value: Value) -> Value:
    """What is looked up, without a root or a square."""
    for _ in range(6):
        value = _looked_up(value)
        inner = root_of(value)
        inner = squared(value) if inner is None else inner
        if inner is None:
            return value
        value = inner
    return value


def _weight_for(value: Value) -> str | None:
    """Of which prediction a limited ratio of signal and noise is the weight."""
    value = bare(value)
    if value.op != "div" or len(value.args) != 2 or not _is_limited(value.args[0]):
        return None
    below = bare(value.args[1])
    if is_ratio_of_signal(below):
        return "noise"
    return "velocity" if below.op == "add" and any(number(one) == 1 and is_ratio_of_signal(other) for one, other in sides(below)) else None


def _is_limited(value: Value) -> bool:
    value = bare(value, "part")
    return value.op in _LIMITS and any(is_ratio_of_signal(one) for one in origins(value, stop=("cumprod",)))


def _asked_for(error: Value) -> str | None:
    """What an error compares the output of a network with: the noise, or the velocity, a * noise - b * signal."""
    for value in origins(error, stop=("run",)):
        pair = value.args[:2] if value.op in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss") else value.args if value.op == "sub" else ()
        if len(pair) != 2 or not any(one.op == "run" for one in origins(value)):
            continue
        kinds = {kind for one in pair if not any(each.op == "run" for each in origins(one)) for kind in map(_kind, alternatives(one))}
        if kinds:
            return kinds.pop() if len(kinds) == 1 else None
    return None


def _kind(target: Value) -> str | None:
    target = bare(target)
    if target.op in _NOISE:
        return "noise"
    if target.op == "sub" and len(target.args) == 2:
        noisy = [any(bare(one).op in _NOISE for one in product(each).above) and len(product(each).above) > 1 for each in target.args]
        return "velocity" if noisy == [True, False] and len(product(target.args[1]).above) > 1 else None
    return None


# Tables from before --------------------------------------------------------------------------


def table_of_the_old_schedule(program: Program) -> Iterator[Remark]:
    """A schedule is moved so that its last step is all noise, and entries of a table that was made before are used beside the
    new ones."""
    computation = computation_of(program)
    for moved in computation.of("sub"):
        steps = _moved_to_its_end(moved)
        if steps is None:
            continue
        old: Value | None = None
        new: Value | None = None
        for value in computation.of("part", "gather"):
            if len(value.args) < 2 or not any(one.op in _DRAWN for one in origins(value.args[-1], stop=_DRAWN)):
                continue
            table = list(origins(value.args[0]))
            if any(one is moved for one in table):
                new = new or value
            elif any(one is steps or (one.op == "cumprod" and same(one.args[0], steps.args[0])) for one in table) and _is_used(computation, value):
                old = old or value
        if old is not None and new is not None:
            made = bare(old.args[0])
            yield Remark(old.node, f"{short(old.node)} looks up {short(made.node)} (line {made.line}), made before {short(moved.node)} (line {moved.line}) moved the schedule: {short(new.node)} (line {new.line}) is an entry of the new one")
            return


def _moved_to_its_end(value: Value) -> Value | None:
    """The product of all steps so far from which its last entry is taken: `root - root[-1]`."""
    if len(value.args) != 2:
        return None
    last = bare(value.args[1])
    if last.op != "part" or len(last.args) != 2 or number(last.args[1]) != -1 or not same(bare(last.args[0]), bare(value.args[0])):
        return None
    return next((one for one in origins(value.args[0]) if one.op == "cumprod"), None)


def _is_used(computation: Computation, value: Value) -> bool:
    """Whether something is computed of an entry."""
    return any(True for _ in computation.users(value))


# Offsets of the noise --------------------------------------------------------------------------


def offset_left_out_of_the_target(program: Program) -> Iterator[Remark]:
    """One number for each sample or channel is added to the noise that is mixed in, and the network is asked for the noise
    without it."""
    computation = computation_of(program)
    for _, loss in losses(computation):
        whole = list(origins(loss))
        for mixed in (one for one in whole if one.op == "add" and len(one.args) == 2):
            for noise, more in sides(mixed):
                if bare(noise).op not in _NOISE or not any(_is_of_one_number(one) for one in product(more).above):
                    continue
                target = next((one for one in whole if one.op in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "sub") and len(one.args) > 1 and any(bare(each) is bare(noise) for each in one.args[:2]) and any(each.op == "run" for each in origins(one))), None)
                used = any(one.op == "mul" and any(bare(each) is mixed for each in one.args) and any(each.op == "run" and any(part is one for part in origins(each)) for each in whole) for one in whole)
                if target is not None and used:
                    yield Remark(target.node, f"{short(target.node)} asks for {short(bare(noise).node)} (line {bare(noise).line}), and what is mixed in has one number more for all places of a sample: {short(mixed.node)} (line {mixed.line})")
                    return


def _is_of_one_number(value: Value) -> bool:
    """Whether noise is drawn once for many places: its last axis has one number."""
    value = bare(value, shapes=False)
    sizes = [size for one in value.args for size in (one.made_of() if one.op in ("tuple", "list") else (one,))]
    return value.op in _NOISE and len(sizes) > 1 and number(sizes[-1]) == 1


# Codes -----------------------------------------------------------------------------------------


def decoded_in_another_scale(program: Program) -> Iterator[Remark]:
    """A network learns of codes that were multiplied by a number, and what it draws is decoded without taking it out."""
    computation = computation_of(program)
    trained = [list(origins(loss)) for _, loss in losses(computation)]
    for scaled in computation.of("mul", "div"):
        code = _code(scaled)
        by = scaled.args[1] if code is not None and (_code_of(scaled.args[0]) is not None or _shifted(scaled.args[0]) is not None) else scaled.args[0]
        if code is None or number(by) == 1:
            continue
        learned = next((one for one in trained if any(each is scaled for each in one)), None)
        if learned is None:
            continue
        first = [one for whole in trained if not any(each is scaled for each in whole) for one in whole if one.op == "run" and len(one.args) > 1 and _is_decoder(one, code)]
        networks = {id(plain(one.args[0])) for one in learned if one.op == "run" and any(each is scaled for each in origins(one))}
        for decoded in computation.of("run"):
            if len(decoded.args) < 2 or not any(plain(decoded.args[0]) is plain(one.args[0]) for one in first) or id(plain(decoded.args[0])) in networks:
                continue
            made = list(origins(decoded.args[1]))
            if not any(one.op == "run" and id(plain(one.args[0])) in networks for one in made) or any(one.op == "run" and plain(one.args[0]) is plain(code.args[0]) for one in made):
                continue
            if not any(_takes_out(one, by) for one in made):
                yield Remark(decoded.node, f"{short(decoded.node)} decodes what was drawn as it is, and the network has learned of codes times a factor: {short(scaled.node)} (line {scaled.line})")
                return


def _code_of(value: Value) -> Value | None:
    """The layer's output that a value is, or a part of it."""
    value = bare(value, *_PARTS)
    return value if value.op == "run" and len(value.args) > 1 else None


def _shifted(value: Value) -> Value | None:
    value = bare(value)
    return _code_of(value.args[0]) if value.op == "sub" and len(value.args) == 2 and not any(one.op == "run" for one in [bare(value.args[1], *_PARTS)]) else None


def _code(value: Value) -> Value | None:
    """The code that a value scales: `code * s`, `(code - mean) / s`."""
    if len(value.args) != 2:
        return None
    for one, other in (value.args, value.args[::-1])[: 2 if value.op == "mul" else 1]:
        found = _code_of(one) or _shifted(one)
        if found is not None and _code_of(other) is None and (number(other) is not None or bare(other).op in ("std", "sqrt", "@input", "clamp", "div", "add")):
            return found
    return None


def _is_decoder(run: Value, code: Value) -> bool:
    """Whether a layer is the first one that is given a code, of the layer that has made one: as it is, or drawn around it."""
    return any(one.op == "run" and plain(one.args[0]) is plain(code.args[0]) for one in _up_to_layers(run.args[1])) and plain(run.args[0]) is not plain(code.args[0])


def _up_to_layers(value: Value) -> Iterator[Value]:
    """What a value is made of, up to the outputs of layers."""
    return origins(value, stop=("run",))


def _takes_out(value: Value, by: Value) -> bool:
    """Whether a value is a factor, or one by it, or has it among what it is made of."""
    if value is by or (value.op == by.op and value.op != "@constant" and same(value, by)):
        return True
    known, factor = number(value), number(by)
    return known is not None and factor is not None and known != 0 and (abs(known - factor) < 1e-9 * abs(factor) or abs(known * factor - 1) < 1e-6)
