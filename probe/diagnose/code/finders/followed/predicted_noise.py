"""What a denoising network learns to say, and what its sampler takes it for: the noise, the clean sample or the velocity. Pure;
standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import KEPT, SHAPED, Value, bare, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import complement_of, product, root_of
from probe.diagnose.code.traits.basic import losses, squared
from probe.diagnose.code.traits.sides import draws_of

FINDERS = Finders()
_NOISE = ("randn", "randn_like", "standard_normal")
_COMPARED = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
_LOOKED_UP = KEPT | SHAPED | {"part", "gather", "index_select", "expand", "view_as", "expand_as"}
_CALLED = {"noise": "the noise", "clean": "the clean sample", "velocity": "the velocity, which mixes both"}


def prediction_read_as_another(program: Program) -> Iterator[Remark]:
    """A network is trained to say one of them, and samples are drawn as if it said another one. Only shares of the signal and of
    the noise that are a cumulative product and the rest of it, or a cosine and a sine, are known."""
    computation = computation_of(program)
    learned = {kind: (one, loss) for _, loss in losses(computation) for one in origins(loss) if (kind := _learned(one)) is not None}
    if len(learned) != 1:
        return
    kind, (compared, _) = next(iter(learned.items()))
    read = {taken: one for one in computation.of("sub", "div") if one.where.no_grad and (taken := _read_as(one)) is not None}
    if len(read) == 1 and kind not in read:
        taken, value = next(iter(read.items()))
        yield Remark(value.node, f"{short(value.node)} takes what the network gives for {_CALLED[taken]}, and {short(compared.node)} (line {compared.line}) trains it to give {_CALLED[kind]}")


def _sides(compared: Value) -> tuple[Value, ...]:
    """The two values that are compared element by element."""
    if compared.op in _COMPARED and len(compared.args) > 1:
        return tuple(compared.args[:2])
    inner = squared(compared)
    inner = bare(inner) if inner is not None else compared
    return tuple(inner.args) if compared is not inner and inner.op == "sub" and len(inner.args) == 2 else ()


def _learned(compared: Value) -> str | None:
    """What the output of a network that is given a mix of a sample with noise is compared with."""
    sides = [bare(one) for one in _sides(compared)]
    for given, target in (sides, sides[::-1]) if len(sides) == 2 else ():
        mixed = _mix(given) if given.op == "run" else None
        if mixed is None or target.op == "run":
            continue
        sample, noise = mixed
        if target is noise:
            return "noise"
        if target is sample:
            return "clean"
        shares = [_share(one, other) for one, other in ((target.args[0], noise), (target.args[1], sample))] if target.op == "sub" and len(target.args) == 2 else []
        if shares == ["signal", "noise"]:
            return "velocity"
    return None


def _mix(run: Value) -> tuple[Value, Value] | None:
    """The sample and the noise whose mix a network is given, perhaps by way of its first layers."""
    for whole in origins(run):
        if whole.op != "add" or len(whole.args) != 2:
            continue
        parts = {share: factor for one in whole.args for factor in product(one).above if (share := _share(one, factor)) is not None and _kind(factor) is None}
        if parts.keys() == {"signal", "noise"} and bare(parts["noise"]).op in _NOISE:
            return bare(parts["signal"]), bare(parts["noise"])
    return None


def _read_as(value: Value) -> str | None:
    """What the output of a network is taken for, where it is turned into another one of the three: `(x - s * noise) / a` is the
    sample, `(x - a * sample) / s` the noise, and `a * x - s * velocity` the sample."""
    divisor = _kind(value.args[1]) if value.op == "div" and len(value.args) == 2 else None
    whole = bare(value.args[0]) if divisor is not None else value
    if whole.op != "sub" or len(whole.args) != 2:
        return None
    taken = next((share for factor in product(whole.args[1]).above if _output(factor) and (share := _share(whole.args[1], factor)) is not None), None)
    first = product(whole.args[0])
    own = [_kind(one) for one in first.above if _kind(one) is not None]
    if taken is None or first.below or any(_output(one) for one in first.above):
        return None
    if divisor is not None and not own and len(first.above) == 1:
        return {("noise", "signal"): "noise", ("signal", "noise"): "clean"}.get((taken, divisor))
    return "velocity" if divisor is None and own == ["signal"] and taken == "noise" and len(first.above) == 2 else None


def _output(value: Value) -> bool:
    """Whether a value is what a network gives, within bounds or not."""
    return bare(value, "clamp", "clip").op == "run"


def _share(value: Value, of: Value) -> str | None:
    """What share of another value a product is, if it is that and nothing else: the root of the "signal" or of the "noise"."""
    made = product(value)
    kinds = [_kind(one) for one in made.above if bare(one) is not bare(of)]
    return kinds[0] if not made.below and made.sign > 0 and len(kinds) == 1 and len(made.above) == 2 else None


def _kind(value: Value) -> str | None:
    """Whether a value is the root of what is left of the "signal" at a step, or that of the "noise"."""
    value = _whole(value)
    if value.op in ("cos", "sin"):
        return "signal" if value.op == "cos" else "noise"
    inner = root_of(value)
    inner = _whole(inner) if inner is not None else value
    rest = complement_of(inner)
    if inner is value or (rest is None and inner.op != "cumprod"):
        return None
    return "signal" if rest is None else "noise" if _whole(rest).op == "cumprod" else None


def _whole(value: Value) -> Value:
    """A table, or an entry of it that was looked up, without bounds that only keep a root from being 0."""
    while value.args and (value.op in _LOOKED_UP or (value.op in ("clamp", "clamp_min", "clamp_max", "clip") and all((number(one) or 0) in (0, 1) or abs(number(one) or 1) < 1e-3 for one in (*value.args[1:], *value.named.values())))):
        value = value.args[0]
    return value


@FINDERS.add("augmentation-cached")
def _noise_of_each_sample(program: Program) -> Iterator[Remark]:
    """A network is asked for the noise in a sample, which is mixed in at a strength that is drawn each time, and the noise itself is
    drawn once for each sample, before the training."""
    for back, loss in losses(computation_of(program)):
        for compared in origins(loss) if back.where.loops else ():
            sides = _sides(compared)
            for given, target in (sides, sides[::-1]) if len(sides) == 2 else ():
                noise = _kept_noise(back, bare(target)) if bare(given).op == "run" and bare(target).op != "run" else None
                mixed = _mixed_anew(back, given, noise) if noise is not None else None
                if noise is not None and mixed is not None:
                    yield Remark(noise.node, f"{short(noise.node)} draws the noise of each sample once, before the training: {short(mixed.node)} (line {mixed.line}) mixes the same in at each pass, and it can be learned by heart")
                    return


def _kept_noise(back: Value, target: Value) -> Value | None:
    """The noise that the targets are taken from, if all of it was drawn outside the loops of the training."""
    noise = [one for one in origins(target) if one.op in _NOISE]
    kept = bool(noise) and all(not set(one.where.loops) & set(back.where.loops) and not any(getattr(each, "name", "") in ("__getitem__", "__iter__") for each in one.where.functions) for one in noise)
    return noise[0] if kept else None


def _mixed_anew(back: Value, given: Value, noise: Value) -> Value | None:
    """Where noise is added to samples in the loop of the training, times what is drawn there."""
    around = back.where.loops
    for whole in origins(given):
        if whole.op != "add" or len(whole.args) != 2 or whole.where.loops[: len(around)] != around:
            continue
        for share, sample in (whole.args, whole.args[::-1]):
            share = bare(share)
            taken = share.op == "mul" and any(_row_of(one) is noise for one in share.args)
            drawn = {id(one) for one in origins(share) if one.where.loops[: len(around)] == around} & draws_of(share)
            if taken and drawn and not any(one is noise for one in origins(sample)):
                return whole
    return None


def _row_of(value: Value) -> Value:
    """What a value is a row or a batch of."""
    while value.args and (value.op in KEPT or value.op in SHAPED or value.op in ("part", "element")):
        value = value.args[0]
    return value
