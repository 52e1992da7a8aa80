"""Likelihoods of flows, and models that are guided without their condition. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import DRAWN, KEPT, SHAPED, Many, Value, bare, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses, squared

_EMPTY = ("full_like", "full", "zeros_like", "zeros", "ones_like", "new_zeros", "new_full", "torch.nn.Parameter", "@constant")
"""What stands for no condition: one number, or a parameter."""
_MADE = ("randint", "integers", "choice", "argmax", "randn", "rand", "normal", "multinomial")
_CHOICES = ("where", "masked_fill", "set_item", "either", "lerp", "index_fill", "masked_scatter", "unknown", "@input")


# Flows ---------------------------------------------------------------------------


def averaged_determinant(program: Program) -> Iterator[Remark]:
    """The log density of what a sample is turned into is a sum over its axes, and the logarithm of the factors that turn it
    is averaged over them."""
    computation = computation_of(program)
    for whole in computation.of("add", "sub"):
        parts = [unscaled(one) for one in added(whole)]
        for density in parts:
            if density.op != "sum" or not over_axes(density) or not is_log_density(density):
                continue
            inside = list(origins(density))
            scales = {id(inner) for one in inside if one.op == "exp" and one.args for inner in cores(one.args[0])}
            factors = {id(bare(each)) for one in inside if one.op in ("mul", "div") for each in one.args}
            for part in parts:
                if part.op == "mean" and over_axes(part) and any(id(one) in scales or (one.op == "log" and id(bare(one.args[0], "abs")) in factors) for one in cores(part.args[0])):
                    yield Remark(part.node, f"{short(part.node)} averages the logarithm of the factors by which a sample is stretched, and {short(density.node)} (line {density.line}) is a sum over its axes")
                    return


def added(value: Value, depth: int = 30) -> Iterator[Value]:
    """What a value is the sum or difference of, each reduced in its own way."""
    inner = bare(value) if value.op != "either" else value
    if inner.op in ("add", "sub", "neg", "either") and depth:
        for one in inner.args:
            yield from added(one, depth - 1)
    else:
        yield inner


def unscaled(value: Value) -> Value:
    """x of 0.5 * x, for a sum x."""
    value = bare(value)
    plain = [one for one in value.args if number(one) is None] if value.op == "mul" else []
    return bare(plain[0]) if len(plain) == 1 and bare(plain[0]).op == "sum" else value


def over_axes(value: Value) -> bool:
    """Whether a reduction keeps one number for each sample."""
    over = value.argument("dim", 1)
    axes = [over] if over is not None and not isinstance(over, Many) else list(over.parts) if isinstance(over, Many) else []
    known = [number(one) for one in axes]
    return bool(known) and None not in known and 0 not in known


def is_log_density(value: Value) -> bool:
    """Whether a value adds up a log density: of a distribution of torch, or squares and a constant."""
    inner = bare(value.args[0])
    while inner.op in ("mul", "div", "neg") and len(inner.args) in (1, 2):
        plain = [one for one in inner.args if number(one) is None]
        if len(plain) != 1:
            break
        inner = bare(plain[0])
    if inner.op == "log_prob":
        return True
    parts = [bare(one) for one in added(inner)] if inner.op in ("add", "sub") else []
    parts += [bare(one) for part in parts if part.op in ("mul", "div") for one in part.args if sum(number(each) is None for each in part.args) == 1 and number(one) is None]
    parts += [bare(part.args[0]) for part in parts if part.op == "div" and len(part.args) == 2]
    return squared(inner) is not None or any(squared(one) is not None for one in parts)


def cores(value: Value, depth: int = 12) -> Iterator[Value]:
    """The values that one is made of by changes of shape and sign, by joining, and by a choice."""
    if not depth:
        return
    if isinstance(value, Many):
        inner = value.parts
    elif value.op in ("cat", "either", "stack"):
        inner = list(value.args)
    elif value.op == "neg" or value.op in KEPT or value.op in SHAPED:
        inner = list(value.args[:1])
    else:
        inner = []
    if not inner and value.op not in ("@constant", "zeros_like", "zeros"):
        yield value
    for one in inner:
        yield from cores(one, depth - 1)


# Guidance -----------------------------------------------------------------------------


def untrained_guidance(program: Program) -> Iterator[Remark]:
    """A model is guided by what it says without its condition, and no loss ever asks it without one."""
    computation = computation_of(program)
    trained: dict[int, list[Value]] | None = None
    for given, empty, place in _guided(computation):
        if trained is None:
            trained = {}
            for one in {id(each): each for _, loss in losses(computation) for each in origins(loss)}.values():
                trained.setdefault(id(one.node), []).append(one)
        halves = _whole(given, empty)
        first = given if halves is None else halves
        asked = [one for one in trained.get(id(first.node), ()) if one.op == first.op and (one.op != "run" or one.args[0] is first.args[0])]
        if not asked or any(one is given or one is empty or one is first for one in asked):
            continue
        found = [_difference(given, empty, one) if halves is None else _doubled(halves, one) for one in asked]
        known = [one for one in found if one is not None]
        if known and len(known) == len(found) and all(_is_empty(without) and _is_data(there) for without, there in known):
            without, there = known[0]
            yield Remark(place.node, f"{short(place.node)} asks the model without its condition too ({short(without.node)}, line {without.line}), and each loss gives it one from the data (line {there.line}): nothing has trained it without")
            return


def _doubled(value: Value, asked: Value) -> tuple[Value, Value] | None:
    """Of a network that runs on a batch twice, with the condition and without: what stands for none, and what a result of the
    same network has in its place."""
    waiting, seen = [(value, asked, 60)], set[tuple[int, int]]()
    while waiting:
        a, b, left = waiting.pop()
        if a is b or not left or (id(a), id(b)) in seen:
            continue
        seen.add((id(a), id(b)))
        if b.op in _CHOICES:
            return None
        joined = a.args[0] if a.op == "cat" and a.args else None
        if isinstance(joined, Many) and len(joined.parts) == 2 and a.node is not b.node:
            empty = [one for one in joined.parts if _is_empty(one)]
            if len(empty) == 1:
                return empty[0], b
        inner = list(a.made_of()), list(b.made_of())
        if a.op == b.op and a.node is b.node and len(inner[0]) == len(inner[1]):
            waiting += [(one, other, left - 1) for one, other in zip(*inner, strict=True)]
    return None


def _guided(computation: Computation) -> Iterator[tuple[Value, Value, Value]]:
    """Each place where two results of one network are told apart and the difference is weighed: both, and the place."""
    for value in computation.of("sub"):
        if len(value.args) != 2:
            continue
        one, other = (bare(each) for each in value.args)
        if one is not other and one.op == other.op and one.node is other.node and any(user.op == "mul" for user in computation.users(value)):
            yield one, other, value
        factors = [[bare(each) for each in side.args if number(each) is None] for side in (one, other) if side.op == "mul"]
        for a, b in ((a, b) for a in factors[0] for b in factors[1]) if len(factors) == 2 else ():
            if a is not b and a.op == b.op == "run" and a.node is b.node:
                yield a, b, value


def _whole(one: Value, other: Value) -> Value | None:
    """The result of a network that two values are the halves of."""
    if one.op != "part" or one.args[0] is not other.args[0] or one.args[0].op not in ("chunk", "split", "tensor_split"):
        return None
    return bare(one.args[0].args[0]) if one.args[0].args else None


def _difference(given: Value, empty: Value, asked: Value, depth: int = 60) -> tuple[Value, Value] | None:
    """Where two results of one network begin to differ: what the second is made of there, and what a third result of the
    same network is made of at that place; None if that is not one place, or the third may choose there."""
    found: list[tuple[Value, Value]] = []
    waiting = [(given, empty, asked, depth)]
    seen: set[tuple[int, int, int]] = set()
    while waiting:
        a, b, c, left = waiting.pop()
        if a is b or (a.op == b.op == "@constant" and a.data == b.data) or (id(a), id(b), id(c)) in seen:
            continue
        seen.add((id(a), id(b), id(c)))
        inner = [list(one.made_of()) for one in (a, b, c)]
        alike = a.op == b.op == c.op and a.node is b.node is c.node and len({len(one) for one in inner}) == 1 and inner[0]
        if c.op in _CHOICES or not left or (c.op == "mul" and any(one.op in DRAWN for part in inner[2] for one in origins(part, stop=("run",)))):
            return None
        if alike:
            waiting += [(*three, left - 1) for three in zip(*inner, strict=True)]
        else:
            found.append((b, c))
    places = {(id(b), id(c)) for b, c in found}
    return found[0] if len(places) == 1 else None


def _is_empty(value: Value) -> bool:
    """Whether a value stands for no condition."""
    return bare(value, "expand", "repeat").op in _EMPTY


def _is_data(value: Value) -> bool:
    """Whether a value is a part of a batch, as it is, or what a layer makes of it; or rows of what was drawn before all loops."""
    picked = False
    for _ in range(12):
        if value.op in ("rows", "element") or (picked and value.op in _MADE and not value.where.loops):
            return True
        picked = picked or value.op == "part"
        layer = value.op == "run" and len(value.args) == 2
        if not value.args or not (layer or value.op in KEPT or value.op in SHAPED or value.op == "part") or value.op in ("either", "stack"):
            return False
        value = value.args[1 if layer else 0]
    return False
