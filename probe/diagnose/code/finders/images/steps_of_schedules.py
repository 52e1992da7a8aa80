"""Steps of a schedule of noise: the one before the first. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, bare, is_none, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import complement_of, product, sides
from probe.diagnose.code.traits.basic import losses

FINDERS = Finders()
_NOISE = ("randn", "randn_like", "normal", "standard_normal")
_GUARDS = ("where", "either", "cat", "pad", "clamp", "maximum", "max")


def before_the_first(program: Program) -> Iterator[Remark]:
    """What is left of the signal is looked up one step before, also at step 0, where Python takes the last one."""
    computation = computation_of(program)
    said: set[int] = set()
    for value in computation.of("part", "gather"):
        index = bare(value.args[-1]) if len(value.args) > 1 else value
        if value.line in said or index.op != "sub" or len(index.args) != 2 or number(index.args[1]) != 1 or not _is_schedule(value.args[0]):
            continue
        step = bare(index.args[0])
        step = bare(step.args[1]) if step.op in ("full", "full_like", "new_full") and len(step.args) > 1 else step
        asked = [test for test, _ in (*value.where.under, *index.where.under) if any(one is step or one is index for one in origins(test))]
        if asked or not _begins_at_0(index.args[0]) or _is_replaced(computation, value):
            continue
        said.add(value.line)
        yield Remark(value.node, f"{short(value.node)} is the entry before that of the step, and the steps go down to 0: there it is the last entry, with the most noise")


@FINDERS.add("noise-without-root")
def _variance_for_deviation(program: Program) -> Iterator[Remark]:
    """A step of the sampling adds noise times the variance of the step, and not times its root."""
    computation = computation_of(program)
    rates = [bare(rest) for one in computation.of("cumprod") if one.args and (rest := complement_of(one.args[0])) is not None]
    said: set[int] = set()
    for value in computation.of("add") if rates else ():
        for noise, kept in sides(value):
            made = product(noise)
            if value.line in said or made.below or not any(bare(one).op in _NOISE for one in made.above):
                continue
            for one in made.above:
                rate = bare(one, "gather", "part")
                sampled = any(part.op == "run" for part in origins(kept))
                if sampled and one is not rate and any(rate is each or same(rate, each) for each in rates):
                    said.add(value.line)
                    yield Remark(value.node, f"{short(value.node)} multiplies the noise by {short(one.node)} itself, which is the variance of the step: its deviation is the root")
                    break


@FINDERS.add("noise-without-root")
def _product_of_what_is_added(program: Program) -> Iterator[Remark]:
    """What is left of the signal is taken for the product of the shares of noise that each step adds."""
    computation = computation_of(program)
    for value in computation.of("cumprod"):
        rates = bare(value.args[0]) if value.args else value
        ends = [known for one in rates.args[:2] if (known := number(one)) is not None] if rates.op == "linspace" else []
        if len(ends) == 2 and max(ends) < 0.5 and any(any(one is value for one in origins(each)) and any(one.op in _NOISE for one in origins(each)) for each in computation.of("add")):
            yield Remark(value.node, f"{short(value.node)} multiplies the shares of noise ({short(rates.node)}, line {rates.line}), all below {max(ends) * 1.01:.2g}: after a few steps nothing of the signal is left")
            return


def sampled_by_another_schedule(program: Program) -> Iterator[Remark]:
    """The samples of the training are mixed with noise by one schedule, and the noise is taken out by another one."""
    computation = computation_of(program)
    mixed = {id(one): one for _, loss in losses(computation) for run in origins(loss) if run.op == "run" and not run.where.no_grad for one in _products_in(run)}
    drawn = {id(one): one for value in computation.of("part", "gather") if value.where.no_grad and value.where.loops and _meets_a_network(computation, value) for one in _products_in(value)}
    if len(mixed) != 1 or len(drawn) != 1 or mixed.keys() & drawn.keys():
        return
    theirs, mine = next(iter(mixed.values())), next(iter(drawn.values()))
    kinds = _kind(theirs), _kind(mine)
    if None not in kinds and kinds[0] != kinds[1]:
        rates = [next((one for one in origins(each) if one.op in ("linspace", "cos")), each) for each in (mine, theirs)]
        yield Remark(mine.node, f"{short(mine.node)} is the schedule that samples are drawn by ({short(rates[0].node)}, line {rates[0].line}), and the network has learned of noise that another one has mixed in ({short(rates[1].node)}, line {rates[1].line})")


def _products_in(value: Value) -> Iterator[Value]:
    """The products of all steps so far that a value is made of, without networks."""
    given = (*value.args[1:], *value.named.values()) if value.op == "run" else (value,)
    yield from (one for part in given for one in origins(part, ("run",)) if one.op == "cumprod" and one.args)


def _meets_a_network(computation: Computation, value: Value) -> bool:
    """Whether an entry of a schedule is a factor or a divisor of what a network gives, or is added to that."""
    waiting, seen = [value], {id(value)}
    while waiting and len(seen) < 40:
        for user in computation.users(waiting.pop()):
            if user.op in ("mul", "div", "add", "sub") and any(one.op == "run" for other in user.args if id(other) not in seen for one in origins(other)):
                return True
            if id(user) not in seen and user.op in ("sqrt", "rsqrt", "pow", "sub", "mul", "div", "view", "reshape", "unsqueeze", "part", "to", "float"):
                seen.add(id(user))
                waiting.append(user)
    return False


def _kind(value: Value) -> tuple[object, ...] | None:
    """What tells a schedule of known numbers from others: a cosine, or the two ends of its rates, and a power of them."""
    found = list(origins(value))
    lines = [one for one in found if one.op == "linspace"]
    if any(one.op in ("@input", "unknown", "load", "element", "run") for one in found):
        return None
    if any(one.op == "cos" for one in found) and any(one.op in ("linspace", "arange") for one in found):
        return ("cos",)
    if len(lines) != 1:
        return None
    ends = [number(lines[0].argument(name, place)) for place, name in enumerate(("start", "end"))]
    return None if None in ends else (*ends, any(one.op in ("pow", "square") for one in found))


def _is_schedule(value: Value) -> bool:
    """Whether a value is a product of all steps so far, or its root or rest; none with an entry put before the first."""
    found = list(origins(value, stop=("run",)))
    steps = [one for one in found if one.op == "cumprod" and one.args]
    rates = any(complement_of(one.args[0]) is not None for one in steps) or any(one.op in ("linspace", "cos", "logspace") for one in found)
    return bool(steps) and rates and not any(one.op in ("cat", "pad", "roll", "insert", "append", "hstack") for one in found)


def _begins_at_0(step: Value) -> bool:
    """Whether a step may be 0: a count from 0, or down to it, or a draw from 0 on."""
    step = bare(step)
    if step.op in ("full", "full_like") and len(step.args) > 1:
        step = bare(step.args[-1])
    if step.op == "mul":  # `torch.ones(n) * i`
        plain = [one for one in step.args if bare(one).op not in ("ones", "ones_like")]
        step = bare(plain[0]) if len(plain) == 1 else step
    if step.op == "randint":
        return len(step.args) > 2 and number(step.args[0]) == 0
    if step.op == "sub" and len(step.args) == 2:  # `T - 1 - i`
        counted = bare(step.args[1])
        last = number(counted.args[0]) if counted.op == "index" and len(counted.args) == 1 else None
        begun = step.args[0].args if step.args[0].op == "sub" else ()
        whole = len(begun) == 2 and number(begun[1]) == 1 and counted.op == "index" and len(counted.args) == 1 and (begun[0] is counted.args[0] or same(begun[0], counted.args[0]))
        return whole or (last is not None and number(step.args[0]) == last - 1)
    while step.op in ("element", "part", "reversed", "builtins.reversed", "tqdm.tqdm", "tqdm.auto.tqdm") and step.args:
        if step.op == "part" and not (step.args[1].op == "slice" and len(step.args[1].args) == 3 and number(step.args[1].args[2]) == -1 and all(is_none(one) for one in step.args[1].args[:2])):
            return False
        step = bare(step.args[0])
    if step.op not in ("index", "range") or step.data == "enumerate":
        return False
    known = [number(one) for one in step.args]
    if len(known) == 3 and known[2] is not None and known[2] < 0:
        return known[1] == -1 and known[2] == -1
    return len(known) == 1 or known[0] == 0


def _is_replaced(computation: Computation, value: Value) -> bool:
    """Whether another value may stand in the place of an entry."""
    waiting, seen = [value], {id(value)}
    while waiting:
        for user in computation.users(waiting.pop()):
            if user.op in _GUARDS:
                return True
            if user.op in ("view", "reshape", "to", "unsqueeze", "float", "sqrt", "part") and id(user) not in seen:
                seen.add(id(user))
                waiting.append(user)
    return False
