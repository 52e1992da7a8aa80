"""Noise, steps and shares that generative models are trained with and sample by. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import addends, module, product, root_of, sides
from probe.diagnose.code.traits.basic import losses
from probe.diagnose.code.traits.sides import mixed

_NOISE = ("randn", "randn_like", "normal", "rand", "standard_normal")


def drawn_once(program: Program) -> Iterator[Remark]:
    """What a generator is trained on is drawn before the loop over the batches, and never again."""
    computation = computation_of(program)
    said: set[int] = set()
    trained = list(losses(computation))
    for back, loss in trained:
        for run in origins(loss):
            noise = bare(run.args[1]) if run.op == "run" and len(run.args) == 2 and not run.where.no_grad else run
            if run is noise or noise.op not in _NOISE or noise.line in said or not back.where.loops or _loops_left(back, noise) or len(back.where.loops) <= len(noise.where.loops) or noise.where.functions != back.where.functions[: len(noise.where.functions)]:
                continue
            layer = id(module(run.args[0]))
            others = [one for one in computation.of("run") if len(one.args) == 2 and id(module(one.args[0])) == layer and one.where.loops and not one.where.no_grad]
            fresh = any(bare(one.args[1]) is not noise for one in others)
            reports = any(one.op == "set_item" or "normal_" in one.op for one in computation.users(noise))
            if not fresh and not reports and not _is_redrawn(computation, noise) and _judges_data(computation, run, noise, trained):
                said.add(noise.line)
                yield Remark(run.node, f"{short(run.node)} is trained on {short(noise.node)}, which line {noise.line} draws once before the loop: the generator never gets another one")


def _loops_left(back: Value, noise: Value) -> bool:
    """Whether noise is drawn in a loop that the backward is not in, or in all that it is in."""
    return noise.where.loops != back.where.loops[: len(noise.where.loops)] or noise.where.loops == back.where.loops


def _is_redrawn(computation: Computation, noise: Value) -> bool:
    """Whether the same name is given another value in a loop, or noise is drawn into it in place."""
    for target, given in computation.stored.items():
        if any(one is noise or bare(one) is noise for one in given):
            name = target.id
            if any(other.id == name and other is not target for other in computation.stored):
                return True
    return any(one.args and bare(one.args[0]) is noise for one in computation.of("normal", "uniform", "copy_", "resize_", "data"))


def _judges_data(computation: Computation, run: Value, noise: Value, trained: list[tuple[Value, Value]]) -> bool:
    """Whether a network that is given what was generated is also given data without that noise, and is trained too: a judge."""
    inside = {id(part) for part in origins(run)}
    for one in computation.of("run"):
        if len(one.args) == 2 and id(one) not in inside and any(part is run for part in origins(one.args[1])) and _in_losses(trained, one.args[0]) > 1 and _has_another_input(computation, one, noise):
            return True
    return False


def _in_losses(trained: list[tuple[Value, Value]], judge: Value) -> int:
    """The number of losses in which a network runs."""
    return sum(any(one.op == "run" and one.args and one.args[0] is judge for one in origins(loss)) for loss in {id(loss): loss for _, loss in trained}.values())


def _has_another_input(computation: Computation, judge: Value, noise: Value) -> bool:
    return any(
        other is not judge and len(other.args) == 2 and other.args[0] is judge.args[0] and not any(part is noise for part in origins(other.args[1]))
        for other in computation.of("run")
    )


def mixed_pixel_by_pixel(program: Program) -> Iterator[Remark]:
    """The points at which the penalty of a gradient is taken are mixed pixel by pixel, and lie on no line between a real and a
    generated sample."""
    computation = computation_of(program)
    asked = [bare(given) for one in computation.of("torch.autograd.grad", "grad") if (given := one.argument("inputs", 1)) is not None]
    said: set[int] = set()
    for value in asked:
        inner = bare(value, "requires_grad_", "torch.autograd.Variable", "Variable")
        inner = inner.parts[0] if isinstance(inner, Many) and len(inner.parts) == 1 else inner
        found = mixed(inner)
        share = bare(found[0]) if found is not None else None
        if found is None:
            for one, product in sides(inner) if inner.op == "add" else ():
                for weight, difference in sides(bare(product)) if bare(product).op == "mul" else ():
                    if bare(difference).op == "sub" and any(same(bare(one), bare(part)) for part in bare(difference).args):
                        share, found = bare(weight), (weight, one, difference)
        if share is None or found is None or share.op not in ("rand", "rand_like", "uniform") or inner.line in said:
            continue
        like = share.args[0] if share.op == "rand_like" and share.args else None
        sizes = share.args[0] if share.op == "rand" and len(share.args) == 1 else None
        if sizes is not None and sizes.op in ("shape", "size") and len(sizes.args) == 1:
            like = sizes.args[0]
        mixes = [bare(found[1]), bare(found[2])]
        if like is not None and any(same(bare(like), one) or any(bare(like) is part for part in one.args) for one in mixes) and _is_a_picture(mixes):
            said.add(inner.line)
            yield Remark(share.node, f"{short(share.node)} draws a share for each number of a sample, and {short(inner.node)} (line {inner.line}) mixes with it: what it gives lies on no line between the two")


def _is_a_picture(mixes: list[Value]) -> bool:
    return any(one.op not in ("@constant",) for one in mixes)


def step_before_of_another_stride(program: Program) -> Iterator[Remark]:
    """A sampler goes over every so many steps, and takes the step just before each one for the one that it goes to."""
    computation = computation_of(program)
    said: set[int] = set()
    for value in computation.of("part"):
        if len(value.args) != 2 or value.line in said or not any(one.op == "cumprod" for one in origins(value.args[0], stop=("run",))):
            continue
        index = bare(value.args[1])
        if index.op in ("max", "clamp", "maximum") and index.args and any(number(one) == 0 for one in (*index.args[1:], *index.named.values())):
            index = bare(index.args[0])  # max(t - 1, 0)
        step = bare(index.args[0]) if index.op == "sub" and len(index.args) == 2 and number(index.args[1]) == 1 else None
        bounds = None if step is None else _bounds(step)
        if step is None or bounds is None or len(bounds) != 3:
            continue
        stride = abs(number(bounds[2]) or 0)
        known = stride > 1 or (number(bounds[2]) is None and bounds[2].op in ("floordiv", "@input"))
        if known and any(same(bare(one.args[1]), step) and one.args[0] is value.args[0] for one in computation.of("part") if len(one.args) == 2):
            said.add(value.line)
            by = short(bounds[2].node) if stride <= 1 else f"{stride:g}"
            yield Remark(value.node, f"{short(value.node)} is the product one step before, and the loop goes to the step {by} before: the sample is taken for less noisy or more noisy than it is")


def noise_is_the_prediction(program: Program) -> Iterator[Remark]:
    """A step back takes a share of the predicted noise away, as the mean of what was before, and adds the same prediction where it
    should add noise that is drawn."""
    computation = computation_of(program)
    for value in computation.of("add"):
        for mean, spread in sides(value):
            added = _root_times(spread)
            share = _taken_away(mean) if added is not None else None
            if added is None or share is None or not any(one is share for one in _may_be(added)) or share.op != "run":
                continue
            yield Remark(spread.node, f"{short(spread.node)} adds what the network predicts, which {short(mean.node)} takes away: nothing is drawn, and each step puts a part of the noise that it has found back")
            return


def clean_cut_to_another_range(program: Program) -> Iterator[Remark]:
    """The picture that a step back finds under the noise is cut off below 0, and the pictures of the training reach from -1 to 1."""
    computation = computation_of(program)
    centred = next((found for one in computation.of("add") if len(one.args) == 2 for found in (_noised_centred(one),) if found is not None), None)
    for value in computation.of("clamp", "clip") if centred is not None else ():
        low = value.named.get("min") or value.named.get("a_min") or (value.args[1] if len(value.args) > 1 else None)
        clean = product(value.args[0]) if value.args else None
        known = number(low)
        if clean is None or centred is None or known is None or known < 0 or not value.where.no_grad or len(clean.below) != 1 or root_of(bare(clean.below[0])) is None or not _is_rest_of_product(clean.below[0]):
            continue
        if any(bare(one).op == "sub" and any(each.op == "run" for each in origins(bare(one).args[1])) for one in clean.above):
            yield Remark(value.node, f"{short(value.node)} cuts off what is below {known:g}, and {short(centred.node)} (line {centred.line}), which the network learned to find, reaches down to -1")
            return


def _noised_centred(value: Value) -> Value | None:
    """Pictures that reach from -1 to 1, where noise is added to a share of them."""
    for one, other in (value.args, value.args[::-1]):
        shares = product(one).above
        if len(shares) != 2 or not any(bare(each).op in _NOISE for each in product(other).above):
            continue
        for picture in shares:
            for _ in range(12):
                picture = bare(picture)
                if isinstance(picture, Many) and len(picture.parts) == 1:
                    picture = picture.parts[0]
                elif picture.op in ("rows", "element", "part", "split", "chunk") and picture.args and (picture.op != "part" or picture.args[1].op not in ("tuple", "@constant")):
                    picture = picture.args[0]
                else:
                    break
            if picture.op == "sub" and len(picture.args) == 2 and number(picture.args[1]) == 1 and any(number(each) == 2 for each in product(picture.args[0]).above):
                return picture
    return None


def _may_be(value: Value) -> Iterator[Value]:
    """The values that one is, in another shape, or may be, after a branch or a factor that is 0 at the last step."""
    value = bare(value) if value.op != "either" else value
    yield value
    if value.op == "either":
        for one in value.args:
            yield from _may_be(one)
    elif value.op == "where" and len(value.args) == 3:
        yield from (bare(one) for one in value.args[1:])


def _root_times(value: Value) -> Value | None:
    """What a root of a variance (or the exponential of half its logarithm) is multiplied by."""
    factors = [bare(one) for one in product(value, shapes=False).above] if value.op == "mul" else []
    spread = next((one for one in factors if root_of(one) is not None or one.op in ("sqrt", "exp") or (one.op == "part" and one.args and (root_of(bare(one.args[0])) is not None or bare(one.args[0]).op == "sqrt"))), None)
    rest = [one for one in factors if one is not spread and not (one.op in ("gt", "ne", "ge") or number(one) is not None)]
    return rest[0] if spread is not None and len(rest) == 1 else None


def _taken_away(mean: Value) -> Value | None:
    """eps of (x - beta / sqrt(1 - product) * eps) / sqrt(alpha): the mean of the step before, also of 1 / sqrt(alpha) * (...)."""
    bare_mean = bare(mean)
    if bare_mean.op == "sub" and len(bare_mean.args) == 2:
        kept, gone = (product(one).above for one in bare_mean.args)
        made = [one for one in gone if one.op == "run"]
        shares = [one for one in gone if one.op != "run"]
        if len(made) == 1 and len(kept) > 1 and shares and any(_is_rest_of_product(one) for one in shares) and not any(_is_rest_of_product(one) for one in kept):
            return made[0]
    parts = product(mean)
    difference = next((bare(one) for one in parts.above if bare(one).op == "sub"), None)
    if difference is None or len(difference.args) != 2 or len(parts.above) + len(parts.below) < 2:
        return None
    weight = product(difference.args[1])
    if not weight.below or not any(root_of(bare(one)) is not None or bare(one).op == "sqrt" or _is_rest_of_product(one) for one in weight.below):
        return None
    made = [bare(one) for one in weight.above if bare(one).op == "run"]
    return made[0] if len(made) == 1 else None


def _is_rest_of_product(value: Value) -> bool:
    """Whether a value is taken of the root of 1 less a running product."""
    return any(one.op == "cumprod" for one in origins(value))


def step_on_another_scale(program: Program) -> Iterator[Remark]:
    """A network is trained with the number of the step divided by that of all steps, and samples with the number itself."""
    computation = computation_of(program)
    learned: dict[int, list[tuple[bool, Value]]] = {}
    asked: dict[int, list[tuple[bool, Value]]] = {}
    learns = {id(one) for _, loss in losses(computation) for one in origins(loss)}
    for run in computation.of("run"):
        found = _step_of(run)
        if found is not None and (run.where.no_grad or id(run) in learns):
            (asked if run.where.no_grad else learned).setdefault(id(run.args[0]), []).append(found)
    for layer, steps in asked.items():
        before = learned.get(layer, [])
        kinds, kinds_before = {kind for kind, _ in steps}, {kind for kind, _ in before}
        if len(kinds) == len(kinds_before) == 1 and kinds != kinds_before:
            (scaled, step), (_, past) = steps[0], before[0]
            yield Remark(step.node, f"{short(step.node)} is {'divided by a number' if scaled else 'the number of the step itself'}, and the network is trained with {short(past.node)} (line {past.line}), which is {'not' if scaled else 'divided'}")
            return


def _bounds(step: Value) -> tuple[Value, ...] | None:
    """The bounds of the range that a number is counted in by a loop, forwards or backwards."""
    if step.op == "index" and step.data is None:
        return step.args
    listed = bare(step.args[0], "list") if step.op == "part" and len(step.args) == 2 else step
    if listed.op in ("range", "arange") and len(listed.args) == 3 and bare(step.args[1]).op in ("index", "element"):
        return listed.args  # steps[i], of a list of them
    over = step.args[0] if step.op == "element" and step.args else None
    over = bare(over.args[0]) if over is not None and over.op == "reversed" and over.args else over
    return over.args if over is not None and over.op in ("range", "arange") else None


def _step_of(run: Value) -> tuple[bool, Value] | None:
    """Whether the step that a layer is given beside a sample, or joined to it, is divided; and the step."""
    given = list(run.args[1:])
    joined = bare(run.args[1]) if len(run.args) == 2 else run
    if joined.op == "cat" and joined.args and isinstance(joined.args[0], Many) and len(joined.args[0].parts) in (2, 3):
        given = joined.args[0].parts[1:]
    for one in given if len(given) in (1, 2) else ():
        step = _stripped(one)
        scaled = step.op in ("div", "mul") and len(step.args) == 2
        inner = _stripped(step.args[0]) if scaled else step
        if (inner.op == "full" and len(inner.args) > 1) or inner.op in ("full_like",):
            inner = _stripped(inner.args[1])
            if inner.op in ("div",) and len(inner.args) == 2:
                scaled, inner = True, _stripped(inner.args[0])
        if inner.op == "tensor" and inner.args:
            inner = _stripped(inner.args[0])
        if inner.op == "randint" or _bounds(inner) is not None:
            return scaled, step
    return None


def _stripped(value: Value) -> Value:
    """A value without its shape and type; one of a list of one."""
    for _ in range(10):
        value = bare(value, "part", "repeat")
        if value.op == "part" or (isinstance(value, Many) and len(value.parts) == 1):
            value = value.parts[0] if isinstance(value, Many) else value
        elif value.op == "mul" and len(value.args) == 2 and any(bare(one).op in ("ones", "ones_like") for one in value.args):
            value = next(one for one in value.args if bare(one).op not in ("ones", "ones_like"))
        else:
            return value
    return value


def bounded_critic(program: Program) -> Iterator[Remark]:
    """A critic is trained on the difference of its mean answers, and its answers are cut to 0…1 by a sigmoid."""
    computation = computation_of(program)
    said: set[int] = set()
    for back, loss in losses(computation):
        found = []
        for term, sign in addends(loss):
            answer = bare(term)
            if answer.op == "sigmoid" and answer.args and bare(answer.args[0]).op == "run":
                found.append((answer, sign))
        made = any(one.op == "run" for answer, _ in found for one in origins(bare(answer.args[0]).args[1]) if _is_generated(bare(answer.args[0])))
        if made and len(found) == 2 and {sign for _, sign in found} == {1, -1} and bare(found[0][0].args[0]).args[0] is bare(found[1][0].args[0]).args[0] and back.line not in said:
            said.add(back.line)
            yield Remark(back.node, f"{short(back.node)} pulls two mean answers of the critic apart, and {short(found[0][0].node)} (line {found[0][0].line}) keeps all answers between 0 and 1")


def _is_generated(judged: Value) -> bool:
    """Whether a network is given what is made of noise."""
    return any(one.op in _NOISE for one in origins(judged.args[1])) if len(judged.args) > 1 else False
