"""Probabilities, densities and noise in losses, whatever they are written like. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    SHAPED,
    Many,
    Value,
    bare,
    comes_from,
    constant,
    number,
    origins,
    same,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short, text_of
from probe.diagnose.code.traits.arithmetic import (
    TURNED,
    addends,
    complement_of,
    complements,
    computed_by_none,
    is_run_of_network,
    linear,
    networks,
    product,
    root_of,
    sides,
    trained,
)
from probe.diagnose.code.traits.basic import LOSSES, losses, squared, without_small

FINDERS = Finders()
_NORMAL = ("randn", "randn_like", "normal", "standard_normal")
_UNIFORM = ("rand", "rand_like", "uniform")


# Cross entropies -------------------------------------------------------------


@FINDERS.add("half-a-cross-entropy")
def _half_a_cross_entropy(program: Program) -> Iterator[Remark]:
    """All that the loss says of a probability is that its logarithm is wanted where the label is 1."""
    computation = computation_of(program)
    known = networks(computation)
    for _, loss in losses(computation):
        logs = {id(one): one for one in origins(loss, stop=("detach", "item")) if _log_of_sigmoid(one) and trained(one, known)}
        if len(logs) != 1:
            continue
        log = next(iter(logs.values()))
        if any(one.op in ("run", "torch.nn.Parameter") for one in origins(loss, without=[log])):
            continue
        for value in linear(loss):
            factors = product(value).above
            labels = [one for one in factors if _is_label(one)]
            if labels and any(bare(one) is log for one in factors):
                yield Remark(value.node, f"{short(value.node)} is all that the loss says of {short(log.node)}: where the label is 0, nothing holds it back")
                break


def _log_of_sigmoid(value: Value) -> bool:
    """Whether a value is the logarithm of a probability of its own, not of one of several classes."""
    if value.op == "logsigmoid":
        return bool(value.args) and bare(value.args[0]).op not in ("neg", "sub", "mul")
    if value.op != "log" or not value.args:
        return False
    inner = bare(without_small(value.args[0]), "clamp")
    return inner.op == "sigmoid" and bare(inner.args[0]).op not in ("neg", "sub", "mul")


def _is_label(value: Value) -> bool:
    """Whether a value is a part of a batch, as it is."""
    if isinstance(value.node, ast.expr) and any(word in text_of(value.node).lower() for word in ("rew", "adv", "weight", "mask", "return")):
        return False
    while value.op in (KEPT | SHAPED) - {"rows", "either"} and value.args:
        value = value.args[0]
    if value.op == "rows":
        return True
    return value.op == "part" and computed_by_none(value) and (value.args[0].op in ("element", "part", "rows") or value.args[1].op == "index")


@FINDERS.add("smoothed-beyond-one")
def _smoothed_beyond_one(program: Program) -> Iterator[Remark]:
    """Each class gets what all of them together should get."""
    computation = computation_of(program)
    for value in computation.of("add"):
        for left, share in sides(value):
            factors = product(left).above
            hot = [one for one in factors if _is_one_hot(one)]
            if len(factors) == 2 and hot and any(complements(one, share) for one in factors if one is not hot[0]) and (number(share) or 0.5) > 0:
                yield Remark(value.node, f"{short(value.node)} gives {short(share.node)} to each class instead of to all of them together")
    for value in computation.of("scatter"):
        if len(value.args) < 4:
            continue
        base, top = bare(value.args[0]), value.args[3]
        spread = base.argument("fill_value", 1) if base.op in ("full", "full_like") else None
        if spread is not None and complements(spread, top) and (number(spread) is None or 0 < (number(spread) or 0.0) < 0.5):
            yield Remark(value.node, f"{short(value.node)} leaves {short(spread.node)} to each of the other classes instead of to all of them together")


def _is_one_hot(value: Value) -> bool:
    value = bare(value, *TURNED)
    if value.op == "part":
        return bare(value.args[0]).op in ("eye", "identity") and not isinstance(value.args[1], Many)
    return value.op == "one_hot" or (value.op == "scatter" and len(value.args) > 3 and number(value.args[3]) == 1 and bare(value.args[0]).op in ("zeros", "zeros_like", "new_zeros"))


# Overlaps ------------------------------------------------------------------------


def _overlaps(loss: Value) -> Iterator[tuple[Value, Value, Value]]:
    """Each quotient that a loss is a sum or multiple of and that has a product of two values above, and one of the
    two below: the quotient, and the two."""
    seen: set[int] = set()
    for value in linear(loss):
        quotient = bare(value)
        if quotient.op != "div" or id(quotient) in seen:
            continue
        seen.add(id(quotient))
        below = [bare(one) for one in linear(quotient.args[1])]
        for one in linear(quotient.args[0]):
            for first, second in _multiplied(one):
                for a, b in ((first, second), (second, first)):
                    if any(_holds(part, bare(a)) for part in below):
                        yield quotient, a, b


def _holds(part: Value, value: Value) -> bool:
    """Whether a part of a sum is a value, or its product with another one."""
    if same(part, value):
        return True
    pairs = [pair for a, b in _multiplied(part) for pair in ((bare(a), bare(b)), (bare(b), bare(a)))]
    return any(same(value, one) and not same(value, other) for one, other in pairs)


def _multiplied(value: Value) -> Iterator[tuple[Value, Value]]:
    """The two values that one is the product of, also summed over axes."""
    value = bare(value)
    if value.op == "mul" and len(value.args) == 2:
        inner = product(value).above
        for place, one in enumerate(inner):
            for other in inner[place + 1 :]:
                yield one, other
    elif value.op == "einsum" and len(value.args) == 3:
        yield value.args[1], value.args[2]


@FINDERS.add("overlap-of-logits")
def _overlap_of_logits(program: Program) -> Iterator[Remark]:
    """The overlap with a target is computed of outputs that nothing bounds."""
    computation = computation_of(program)
    known = networks(computation)
    for _, loss in losses(computation):
        for quotient, output, target in _overlaps(loss):
            output = bare(output)
            if computed_by_none(target) and is_run_of_network(output, known) and _is_of_logits(output, computation):
                yield Remark(quotient.node, f"{short(quotient.node)} is the overlap with {short(output.node)}, which no sigmoid or softmax bounds")


def _is_of_logits(output: Value, computation: Computation) -> bool:
    """Whether an output is the result of a linear layer, or is given to what takes logits."""
    name = output.args[0].op.rpartition(".")[2]
    if name.startswith(("Linear", "Conv")):
        return True
    same_network = [one for one in computation.of("run") if one.args[0] is output.args[0]]
    takes = ("cross_entropy", "binary_cross_entropy_with_logits", "sigmoid", "softmax", "log_softmax")
    return any(user.op in takes and bare(user.args[0]) is one for one in same_network for user in _users(one, computation))


def _users(value: Value, computation: Computation) -> Iterator[Value]:
    """What uses a value, also in another shape or type."""
    for user in computation.users(value):
        yield user
        if bare(user) is bare(value) and user is not value:
            yield from _users(user, computation)


@FINDERS.add("overlap-of-decisions")
def _overlap_of_decisions(program: Program) -> Iterator[Remark]:
    """The loss is an overlap with decisions, which pass no gradient."""
    computation = computation_of(program)
    known = networks(computation)
    for _, loss in losses(computation):
        for quotient, output, target in _overlaps(loss):
            decided = _decided(output)
            if decided is not None and computed_by_none(target) and any(is_run_of_network(one, known) for one in origins(decided)):
                yield Remark(quotient.node, f"{short(quotient.node)} is the overlap with {short(decided.node)} (line {decided.line}): nothing flows back through it")


def _decided(value: Value) -> Value | None:
    """The comparison, rounding or choice that a value is."""
    value = bare(value, *TURNED)
    while value.op in ("one_hot", "scatter", "where") and value.args:
        inside = value.args[2] if value.op == "scatter" and len(value.args) > 2 else value.args[0]
        value = bare(inside, *TURNED)
    return value if value.op in ("gt", "ge", "lt", "le", "round", "argmax", "sign") else None


# Densities ---------------------------------------------------------------------------


@FINDERS.add("mean-of-log-densities")
def _mean_of_log_densities(program: Program) -> Iterator[Remark]:
    """The loss is a mean of the components' log densities, weighted by what the network says of them."""
    computation = computation_of(program)
    known = networks(computation)
    for _, loss in losses(computation):
        for value in linear(loss):
            for weight, density in [pair for a, b in _multiplied(value) for pair in ((a, b), (b, a))]:
                if _is_share(weight) and trained(weight, known) and _is_log_density(density) and trained(density, known) and not comes_from(weight, bare(density)):
                    yield Remark(value.node, f"{short(value.node)} is a mean of log densities, and the density of a mixture is the mean of the densities")


def _is_share(value: Value) -> bool:
    """Whether a value is a softmax, as it is or by way of its logarithm."""
    value = bare(value, shapes=True)
    if value.op == "exp":
        return bare(value.args[0]).op == "log_softmax"
    return value.op == "softmax" and not (number(value.argument("dim", 1)) == 0 and any(one.op == "run" for one in origins(value)))  # over the samples


def _is_log_density(value: Value) -> bool:
    """Whether a value is the logarithm of a normal density."""
    value = bare(value)
    if value.op == "sum" and value.args:
        value = bare(value.args[0])
    if value.op == "log_prob":
        return "Categorical" not in value.args[0].op and bare(value.args[0]).op.startswith("torch.distributions.")
    parts = list(addends(value))
    scaled = [one for one, sign in parts if _is_scaled_square(one)]
    return bool(scaled) and any(not _is_scaled_square(one) and number(one) is None and sign < 0 for one, sign in parts)


def _is_scaled_square(value: Value) -> bool:
    """Whether a value is the square of a difference, or of a quotient, divided by something."""
    factors = product(value)
    tops = [bare(one.args[0]) if one.op == "sum" and one.args else one for one in factors.above]
    squares = [inner for one in tops if (inner := squared(one)) is not None]
    return any(bare(one).op == "div" or (bare(one).op == "sub" and bool(factors.below)) for one in squares)


@FINDERS.add("squashed-log-prob")
def _squashed_log_prob(program: Program) -> Iterator[Remark]:
    """The density of a normal distribution is taken at the tanh of its own sample."""
    computation = computation_of(program)
    for value in computation.of("log_prob"):
        if len(value.args) < 2 or not value.args[0].op.startswith("torch.distributions.") or "Transformed" in value.args[0].op:
            continue
        at = bare(value.args[1])
        drawn = bare(at.args[0]) if at.op == "tanh" and at.args else None
        if drawn is not None and drawn.op in ("rsample", "sample") and drawn.args[0] is value.args[0]:
            yield Remark(value.node, f"{short(value.node)} takes {short(at.node)}, and {short(value.args[0].node)} is the distribution of what tanh is applied to")
    for value in computation.of("div"):
        gap = bare(value.args[0])
        at = bare(gap.args[0]) if gap.op == "sub" else gap
        if gap.op != "sub" or at.op != "tanh" or not any(squared(user) is not None for user in computation.users(value)):
            continue
        raw = bare(at.args[0])
        if raw.op == "add" and any(same(bare(one), bare(gap.args[1])) for one in raw.args) and any(_drawn(one, _NORMAL) for one in raw.args):
            yield Remark(value.node, f"{short(value.node)} takes the density at {short(at.node)}, and the distribution is that of what tanh is applied to (line {at.line})")


@FINDERS.add("squashed-log-prob")
def _squashed_twice(program: Program) -> Iterator[Remark]:
    """The change of the density by tanh is taken at the tanh of the action, which is a tanh itself."""
    computation = computation_of(program)
    said: set[int] = set()
    for value in computation.of("sub"):
        inner = squared(bare(value.args[1])) if len(value.args) == 2 and number(value.args[0]) == 1 else None
        outer = bare(inner) if inner is not None else value
        if outer.op != "tanh" or bare(outer.args[0]).op != "tanh" or id(value.node) in said:
            continue
        drawn = bare(bare(outer.args[0]).args[0])
        densities = [one for one in computation.of("log_prob") if len(one.args) == 2 and bare(one.args[1]) is drawn]
        if densities and any(one.op in ("log", "log1p") for user in computation.users(value) for one in (user, *computation.users(user))):
            said.add(id(value.node))
            yield Remark(value.node, f"{short(value.node)} takes the tanh of {short(outer.args[0].node)}, which is the tanh of the sample already (line {bare(outer.args[0]).line}): what tanh does to the density is taken at another value")


def _drawn(value: Value, ops: tuple[str, ...]) -> bool:
    """Whether a value is noise, scaled or not."""
    return any(_is_noise(one, ops) for one in product(value).above)


def _is_noise(value: Value, ops: tuple[str, ...]) -> bool:
    return bare(value).op in ops


# Noise -----------------------------------------------------------------------------------


@FINDERS.add("noise-without-root")
def _noise_without_root(program: Program) -> Iterator[Remark]:
    """The signal is scaled by the root of a share, and the noise by the rest of the share without a root."""
    for value in computation_of(program).of("add"):
        for signal, noise in sides(value):
            if not _drawn(noise, _NORMAL):
                continue
            rates = [inner for one in product(signal).above if (inner := root_of(_taken(one))) is not None]
            rests = [(one, inner) for one in product(noise).above if (inner := complement_of(_taken(one))) is not None]
            roots = [_taken(one) for one in product(signal).above if root_of(_taken(one)) is not None]
            if any(root_of(_taken(one)) is not None for one in product(noise).above):
                continue  # two shares: the mean of the step before, given the signal
            for one, rest in rests:
                if any(same(_taken(rate), _taken(rest)) for rate in rates) or any(same(root, _taken(rest)) for root in roots):
                    yield Remark(value.node, f"{short(value.node)} scales the signal by a root, and the noise by {short(one.node)} without one")


@FINDERS.add("noise-without-root")
def _shares_of_a_schedule(program: Program) -> Iterator[Remark]:
    """Signal and noise are scaled by what a product of all steps so far leaves, and by the rest of it: not by the roots of the
    two, or each by that of the other."""
    seen: set[ast.AST] = set()
    for value in computation_of(program).of("add"):
        for signal, noise in sides(value):
            if value.node in seen or not _drawn(noise, _NORMAL) or _drawn(signal, _NORMAL) or product(signal).below or product(noise).below:
                continue
            both = [[(one, *_share(one)) for one in product(each).above] for each in (signal, noise)]
            for (one, kept, rest, root), (other, again, rest_too, root_too) in ((a, b) for a in both[0] for b in both[1]):
                if kept is None or again is None or rest == rest_too or not same(kept, again):
                    continue
                said = None
                if rest and root and root_too:
                    said = f"scales the signal by {short(one.node)} and the noise by {short(other.node)}: the two are in each other's place"
                elif not rest and not root:
                    said = f"scales the signal by {short(one.node)}, which is no root" + ("" if root_too else f", and the noise by {short(other.node)}, which is none either")
                if said is not None:
                    seen.add(value.node)
                    yield Remark(value.node, f"{short(value.node)} {said}")


def _share(value: Value) -> tuple[Value | None, bool, bool]:
    """The product of all steps so far that a factor is made of, whether it is what is left of 1, and whether it is a root;
    no product where it is made of something else."""
    value = _taken(value)
    inner = root_of(value)
    share = _taken(inner) if inner is not None else value
    rest = complement_of(share)
    kept = _taken(rest) if rest is not None else share
    steps = kept.op == "cumprod" or (kept.op == "exp" and bool(kept.args) and bare(kept.args[0]).op == "cumsum")
    made = kept.args[0] if steps else kept
    return kept if steps and all(root_of(one) is None for one in origins(made)) else None, rest is not None, inner is not None


def _taken(value: Value) -> Value:
    """A value without the index that takes entries of it."""
    value = bare(value)
    while value.op in ("gather", "part", "index_select", "take") and value.args and not (value.op == "part" and isinstance(constant(value.args[1]), str)):
        value = bare(value.args[0])
    return value


@FINDERS.add("uniform-for-normal-noise")
def _uniform_for_normal_noise(program: Program) -> Iterator[Remark]:
    """A mean and a deviation that a network gives are used with noise between 0 and 1."""
    computation = computation_of(program)
    known = networks(computation)
    for value in computation.of("add", "addcmul"):
        pairs = [(value.args[0], value.args[1:3])] if value.op == "addcmul" else [(a, product(b).above) for a, b in sides(value) if not product(b).below]
        for mean, factors in pairs:
            noise = next((one for one in factors if _is_noise(one, _UNIFORM) and _between_0_and_1(bare(one))), None)
            others = [one for one in factors if one is not noise]
            if noise is None or len(others) != 1:
                continue
            of_normal = bare(mean).op in ("loc", "mean") and bare(others[0]).op in ("scale", "stddev") and bare(mean).args[0] is bare(others[0]).args[0]
            if of_normal or (bare(others[0]).op == "exp" and trained(others[0], known) and trained(mean, known) and not comes_from(others[0], bare(mean))):
                yield Remark(value.node, f"{short(value.node)} takes noise of {short(noise.node)}, which lies between 0 and 1")


def _between_0_and_1(value: Value) -> bool:
    """Whether uniform noise has its usual limits."""
    return value.op != "uniform" or (number(value.argument("from", 1)) in (None, 0) and len(value.args) < 2)


# Weights that are learned ------------------------------------------------------------------------


@FINDERS.add("weight-without-price")
def _weight_without_price(program: Program) -> Iterator[Remark]:
    """An error is weighted by what falls as a trained value rises, and nothing else in the losses depends on that."""
    computation = computation_of(program)
    known = networks(computation)
    found: list[tuple[Value, Value, Value]] = []
    for value in {id(one): one for _, loss in losses(computation) for one in linear(loss)}.values():
        factors = product(value)
        if not any(squared(one) is not None or one.op in LOSSES or one.op in ("abs", "part", "@input") or _is_mean_of_errors(one) or _are_losses(one) for one in factors.above):
            continue
        found += [(value, one, inner) for one in factors.above if (inner := _falls_with(one)) is not None]
        found += [(value, one, inner) for one in factors.below if (inner := _rises_with(one) or _made_positive(one)) is not None]
    weights = [weight for _, weight, _ in found]
    rest = [one for _, loss in losses(computation) for one in origins(loss, stop=("detach",), without=weights)] if found else []
    said: set[int] = set()
    for value, weight, inner in found:
        if id(weight) in said or _is_read_in(rest, inner) or not _is_free(inner, known) or not trained(weight, known):
            continue
        said.add(id(weight))
        if _made_positive(weight) is None or all(one.op == "div" and bare(one.args[1]) is weight for one in rest if any(each is weight for each in one.made_of()) and one.op != "detach"):
            yield Remark(value.node, f"{short(value.node)} is smaller by {short(weight.node)}, and nothing else in the loss depends on {short(inner.node)}")


def _are_losses(value: Value) -> bool:
    """Whether a value is several losses in one tensor."""
    return isinstance(value, Many) and bool(value.parts) and all(one.op in LOSSES for one in value.parts)


def _is_mean_of_errors(value: Value) -> bool:
    """Whether a value is a mean of errors."""
    return value.op in ("mean", "sum") and bool(value.args) and (squared(bare(value.args[0])) is not None or bare(value.args[0]).op == "abs")


def _falls_with(value: Value) -> Value | None:
    """s of exp(-s)."""
    value = bare(value)
    if value.op != "exp" or not value.args:
        return None
    inner = product(value.args[0])
    return inner.above[-1] if inner.sign < 0 and len(inner.above) >= 1 else _of_negative_number(inner.above)


def _of_negative_number(factors: list[Value]) -> Value | None:
    others = [one for one in factors if number(one) is None]
    return others[0] if len(others) == 1 and any((number(one) or 0) < 0 for one in factors) else None


def _rises_with(value: Value) -> Value | None:
    """s of s ** 2 and exp(s)."""
    value = bare(value)
    if (inner := squared(value)) is not None:
        return bare(inner)
    if value.op == "exp" and value.args:
        inner_product = product(value.args[0])
        others = [one for one in inner_product.above if number(one) is None]
        return others[0] if inner_product.sign > 0 and len(others) == 1 else None
    return None


def _is_read_in(values: list[Value], inner: Value) -> bool:
    """Whether a parameter, or one of the numbers that a network gives, is among values; of one of several numbers, whether
    it is taken again, or all of them are."""
    base = _container(inner)
    if base.op != "run":
        parted = base.op in ("unbind", "chunk", "split")
        base = base if not parted else base.args[0]
        if not parted:
            return any(one is base or one is inner for one in values)
    whole = [one for one in values if one.op not in ("part", "unbind", "chunk", "split") and any(bare(each) is base for each in one.made_of())]
    return any(one is inner or same(one, inner) for one in values) or bool(whole)


def _made_positive(value: Value) -> Value | None:
    """s of softplus(s), relu(s) and what adds a small number to it."""
    value = bare(value)
    while value.op in ("add", "clamp") and value.args and (value.op == "clamp" or 0 < (number(value.args[-1]) or 0) < 0.1):
        value = bare(value.args[0])
    return value.args[0] if value.op in ("softplus", "relu") and value.args else None


def _container(value: Value) -> Value:
    """The list of parameters that a value is one of."""
    value = bare(value)
    while value.op in ("part", "element") and value.args:
        value = bare(value.args[0])
    return value


def _is_free(value: Value, known: set[int]) -> bool:
    """Whether a value is a parameter, or what a head of a network gives."""
    inner = bare(value)
    base = _container(inner)
    if base.op in ("torch.nn.Parameter", "torch.nn.ParameterDict", "torch.nn.ParameterList"):
        return True
    inner = base.args[0] if base.op in ("unbind", "chunk", "split") else inner
    return is_run_of_network(bare(inner), known) and not inner.where.no_grad


# Straight through -----------------------------------------------------------------------------------


@FINDERS.add("straight-through-without-detach")
def _straight_through_without_detach(program: Program) -> Iterator[Remark]:
    """What is added is taken away again, in the gradient too."""
    computation = computation_of(program)
    known = networks(computation)
    for value in computation.of("add"):
        for kept, chosen, taken in [(a, b.args[0], b.args[1]) for a, b in sides(value) if b.op == "sub" and len(b.args) == 2]:
            if kept is taken and number(kept) is None and not value.where.no_grad and trained(kept, known) and _is_choice(chosen, known):
                yield Remark(value.node, f"{short(value.node)} is {short(chosen.node)}, and passes no gradient to {short(kept.node)}: detach() is missing around the difference")


def _is_choice(value: Value, known: set[int]) -> bool:
    """Whether no gradient flows through a value: a choice among others is made of it."""
    return any(one.op in ("argmax", "argmin", "round", "topk", "sign", "gt", "ge", "bernoulli", "multinomial", "floor") for one in origins(value))
