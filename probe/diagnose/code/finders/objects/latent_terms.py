"""The divergence of what an encoder gives from a standard normal distribution, and the likelihood of the data, as terms of a
loss. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses, squared, without_small
from probe.diagnose.code.traits.updates import optimizer_of

FINDERS = Finders()
_NOISE = ("randn", "randn_like", "normal", "rsample")


def _scaled(value: Value, factor: float = 1.0, depth: int = 16) -> Iterator[tuple[float, Value]]:
    """What a value is a sum of, each with the number that it is multiplied by; sums, means and divisors of unknown size are
    passed through."""
    value = bare(value)
    if depth and value.op in ("add", "sub") and len(value.args) == 2:
        yield from _scaled(value.args[0], factor, depth - 1)
        yield from _scaled(value.args[1], factor if value.op == "add" else -factor, depth - 1)
    elif depth and value.op == "neg":
        yield from _scaled(value.args[0], -factor, depth - 1)
    elif depth and value.op in ("sum", "mean") and value.args:
        yield from _scaled(value.args[0], factor, depth - 1)
    elif depth and value.op in ("mul", "div") and len(value.args) == 2:
        known = number(value.args[0]), number(value.args[1])
        if known[1]:
            yield from _scaled(value.args[0], factor * (known[1] if value.op == "mul" else 1 / known[1]), depth - 1)
        elif known[0] and value.op == "mul":
            yield from _scaled(value.args[1], factor * known[0], depth - 1)
        elif value.op == "div" and bare(value.args[1]).op in ("len", "size", "part", "numel"):
            yield from _scaled(value.args[0], factor, depth - 1)
        else:
            yield factor, value
    else:
        yield factor, value


def _divergence(terms: list[tuple[float, Value]]) -> tuple[float, Value] | None:
    """The exponential in a divergence from a standard normal distribution, and the number that it is multiplied by."""
    for factor, term in terms:
        if term.op != "exp" or not term.args:
            continue
        inner = list(_scaled(term.args[0]))
        if len(inner) != 1:
            continue
        times, log = inner[0]
        linear = any(abs(by + factor * times) < 1e-6 and same(one, log) for by, one in terms)
        mean = any(abs(by - factor) < 1e-6 and squared(one) is not None for by, one in terms)
        if linear and mean and any(one.op == "run" for one in origins(log)):
            return factor, term
    return None


@FINDERS.add("term-of-the-wrong-sign")
def _divergence_maximized(program: Program) -> Iterator[Remark]:
    """The divergence from a standard normal distribution is taken away from what is minimized."""
    for _, loss in losses(computation_of(program)):
        found = _divergence(list(_scaled(loss)))
        taken = next((term for factor, term in _scaled(loss) if factor < 0 and term.op == "torch.distributions.kl_divergence" and _is_from_a_prior(term)), None)
        if taken is not None:
            yield Remark(taken.node, f"{short(taken.node)} stands with a minus in what is minimized: the divergence from the prior grows")
            return
        if found is not None and found[0] < 0:
            yield Remark(found[1].node, f"{short(found[1].node)} (line {found[1].line}) is part of the divergence from a standard normal distribution, and stands with a minus in what is minimized: the divergence grows")
            return


def _is_from_a_prior(value: Value) -> bool:
    """Whether a divergence is that of what a network gives, of which a sample is drawn with its gradient, from what no network gives."""
    if len(value.args) != 2:
        return False
    mine, theirs = (any(part.op == "run" for part in origins(one)) for one in value.args)
    return mine and not theirs


def logarithm_counted_half(program: Program) -> Iterator[Remark]:
    """In the divergence from a standard normal distribution, the logarithm of a deviation counts once beside its square, of which
    the logarithm is twice that; or the logarithm of a variance twice."""
    computation = computation_of(program)
    trained = {id(one) for _, loss in losses(computation) for one in origins(loss)}
    for value in computation.of("add", "sub"):
        if id(value) not in trained or any(one.op in ("add", "sub") for one in computation.users(value)):
            continue
        found = _mismatched(list(_scaled(value)))
        if found is not None:
            spread, log, share = found
            belongs = "twice that, which is the logarithm of" if share < 1.5 else "it once: it is the logarithm of"
            yield Remark(value.node, f"{short(value.node)} counts {short(log.node)} {'once' if share < 1.5 else 'twice'} in a divergence from a standard normal distribution, and beside {short(spread.node)} belongs {belongs} {short(spread.node)}")
            return


def _mismatched(terms: list[tuple[float, Value]]) -> tuple[Value, Value, float] | None:
    """The variance and the logarithm that are terms of a divergence with factors that do not belong together, and how often the
    logarithm counts where it should count twice (or, of a variance, once)."""
    for factor, term in terms:
        mean = any(abs(by - factor) < 1e-6 and one is not term and squared(one) is not None for by, one in terms)
        rest = any((known := number(one)) is not None and abs(by * known + factor) < 1e-6 for by, one in terms)
        if not mean or not rest or not any(one.op == "run" for one in origins(term)):
            continue
        root = squared(term)
        root = bare(root) if root is not None else None
        plain = bare(without_small(root)) if root is not None and root.op != "exp" else None
        logs = [(by, one) for by, one in terms if plain is not None and one.op == "log" and one.args and same(bare(without_small(one.args[0])), plain)]
        if logs and abs(sum(by for by, _ in logs) + factor) < 1e-6:
            return term, logs[0][1], 1.0
        exponent = term if term.op == "exp" else root if root is not None and root.op == "exp" else None
        inner = list(_scaled(exponent.args[0])) if exponent is not None and exponent.args else []
        times = (inner[0][0] if len(inner) == 1 else 0.0) * (2 if exponent is root and exponent is not term else 1)
        linear = [(by, one) for by, one in terms if inner and one is not term and same(one, inner[0][1])]
        share = -sum(by for by, _ in linear) / factor if factor else 0.0
        if linear and {round(share, 6), times} == {1.0, 2.0}:
            return term, linear[0][1], share
    return None


@FINDERS.add("loss-never-added")
def _divergence_left_out(program: Program) -> Iterator[Remark]:
    """The divergence of what noise is added to is computed beside the loss, and is in no loss."""
    computation = computation_of(program)
    trained = {id(one): one for _, loss in losses(computation) for one in origins(loss)}
    noised = [one for one in trained.values() if one.op == "mul" and len(one.args) == 2 and any(bare(part).op in _NOISE for part in one.args) and any(part.op == "exp" for part in origins(one))]
    if not noised:
        return
    for value in computation.of("sum", "mean"):
        if id(value) in trained or value.where.no_grad or not any(value.where.functions[:1] == one.where.functions[:1] for one in noised):
            continue
        found = _divergence(list(_scaled(value)))
        if found is None:
            continue
        log = next(iter(_scaled(found[1].args[0])))[1]
        sampled = any(part is log for one in noised for part in origins(one))
        if sampled and not any(id(one) in trained for one in computation.of("sum", "mean") if one is not value and _divergence(list(_scaled(one))) is not None):
            yield Remark(value.node, f"{short(value.node)} is the divergence of what the noise is added to (line {noised[0].line}), and it is in no loss that a backward is called on")
            return


@FINDERS.add("term-of-the-wrong-sign")
def _likelihood_minimized(program: Program) -> Iterator[Remark]:
    """All that is minimized is the log probability of what the data are: of words, classes or labels, with no weight but a mask."""
    computation = computation_of(program)
    steps = [one for one in computation.of("step") if optimizer_of(one) is not None and one.where.loops]
    for call, loss in losses(computation):
        if steps and not any(call.where.loops[: len(one.where.loops)] == one.where.loops for one in steps):
            continue  # its gradients are read, and nothing is minimized
        whole = bare(loss)
        whole = bare(whole.args[0]) if whole.op == "div" and len(whole.args) == 2 and not any(one.op == "run" for one in origins(whole.args[1])) else whole
        terms = list(_scaled(whole))
        if len(terms) != 1 or terms[0][0] <= 0:
            continue
        factors = [bare(one) for one in (terms[0][1].args if terms[0][1].op == "mul" else [terms[0][1]])]
        probable = [one for one in factors if _is_of_the_data(one)]
        if len(probable) == 1 and all(one is probable[0] or _is_mask(one) for one in factors):
            yield Remark(call.node, f"{short(call.node)} minimizes {short(probable[0].node)} (line {probable[0].line}), the log probability of the data, without a minus: the data become less likely")
            return


def _is_of_the_data(value: Value) -> bool:
    """Whether a value is the logarithm of the probability that a network gives to what the data are."""
    if value.op not in ("gather", "part") or len(value.args) < 2:
        return False
    under = bare(value.args[0])
    logs = under.op == "log_softmax" or (under.op == "log" and bool(under.args) and bare(under.args[0]).op == "softmax")
    index = list(origins(value.args[-1]))
    return logs and any(one.op == "run" for one in origins(under)) and not any(one.op in ("sample", "multinomial", "run", "argmax", "topk") for one in index[:60]) and value.op == "gather"


def _is_mask(value: Value) -> bool:
    """Whether a value is 0 or 1 at each place: a comparison, or zeros that ones are written into."""
    while value.op in ("part", "to", "float", "view", "reshape", "squeeze") and value.args:
        value = bare(value.args[0])
    if value.op == "set_item" and len(value.args) == 3:
        return number(value.args[2]) == 1 and _is_mask(bare(value.args[0]))
    return value.op in ("ne", "eq", "gt", "lt", "ge", "le", "zeros", "zeros_like", "invert")
