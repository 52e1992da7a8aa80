"""Parts of an input that are hidden, and what a network says of them. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, bare, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import complement_of, complements, product, sides
from probe.diagnose.code.traits.basic import LOSSES

_SHAPES = ("rand_like", "randn_like", "zeros_like", "ones_like", "shape", "size", "device", "dtype", "len", "bernoulli")
_DRAWS = ("rand", "rand_like", "uniform", "random", "bernoulli")


def answer_in_the_holes(program: Program) -> Iterator[Remark]:
    """A picture is completed with the network's output where the network was given the picture, and with the picture itself
    where that was hidden."""
    computation = computation_of(program)
    said: set[int] = set()
    for value in computation.of("add"):
        if value.line in said:
            continue
        for made, kept in sides(value):
            for weight, output in sides(made) if made.op == "mul" else ():
                for other, picture in sides(kept) if kept.op == "mul" else ():
                    if not complements(bare(weight), bare(other)) or not any(one.op == "run" for one in origins(output)) or value.line in said:
                        continue
                    shown = _shown(output, bare(picture), bare(weight))
                    if shown is not None and _is_compared(computation, (value, output), bare(picture)):
                        said.add(value.line)
                        yield Remark(value.node, f"{short(value.node)} takes {short(output.node)} where {short(shown.node)} (line {shown.line}) shows the input, and {short(picture.node)} itself where that is hidden")


def _is_compared(computation: Computation, made: tuple[Value, ...], picture: Value) -> bool:
    """Whether what is made is compared with the picture."""
    for one in made:
        for user in (*computation.users(one), *(other for each in computation.users(one) if each.op in ("clamp", "detach") for other in computation.users(each))):
            if (user.op in LOSSES or user.op in ("sub", "cdist")) and any(same(bare(other), picture) for other in user.args):
                return True
    return False


def _shown(output: Value, picture: Value, weight: Value) -> Value | None:
    """Where a network's input is a picture times this weight; None if it is also given the picture otherwise."""
    found = None
    for one in origins(output):
        if one.op == "mul" and any(same(bare(of), picture) and same(bare(by), weight) for by, of in sides(one)):
            found = one
    if found is None:
        return None
    return found if all(one is not picture for one in origins(output, stop=_SHAPES, without=[found])) else None


def only_what_is_shown(program: Program) -> Iterator[Remark]:
    """Parts of the input are hidden by a draw, and the loss asks for the parts that are shown alone."""
    computation = computation_of(program)
    said: set[int] = set()
    for value in computation.of("mul"):
        for error, keep in sides(value):
            keep = bare(keep)
            if value.line in said or not _is_drawn(computation, keep) or not _is_error(error):
                continue
            hides = next((one for one in origins(error) if one.op == "mul" and one is not value and any(same(bare(by), keep) and number(by) is None for by, _ in sides(one))), None)
            if hides is None or _also_the_rest(computation, keep, value, hides) or not _summed(computation, value):
                continue
            target = next(of for by, of in sides(hides) if same(bare(by), keep))
            if any(_asked_for(bare(one), bare(target)) for one in _error_args(error)):
                said.add(value.line)
                yield Remark(value.node, f"{short(value.node)} counts the error where {short(keep.node)} is 1, and there {short(hides.node)} (line {hides.line}) shows the network what it is asked for")
    for loss in computation.of("mse_loss", "l1_loss", "smooth_l1_loss"):
        both = [bare(one) for one in loss.args[:2]]
        if len(both) != 2 or loss.line in said or not all(one.op == "mul" for one in both):
            continue
        for keep, output in sides(both[0]):
            shown = next((of for by, of in sides(both[1]) if same(bare(by), bare(keep))), None)
            if shown is None or not _is_drawn(computation, bare(keep)) or not any(one.op == "run" for one in origins(output)):
                continue
            hides = next((one for one in origins(output) if one.op == "mul" and any(same(bare(by), bare(keep)) and same(bare(of), bare(shown)) for by, of in sides(one))), None)
            if hides is not None and not _also_the_rest(computation, bare(keep), both[0], hides) and loss.line not in said:
                said.add(loss.line)
                yield Remark(loss.node, f"{short(loss.node)} counts the error where {short(keep.node)} is 1, and there {short(hides.node)} (line {hides.line}) shows the network what it is asked for")


def _is_drawn(computation: Computation, keep: Value) -> bool:
    """Whether a mask is drawn at random, and nothing else is made of the draw."""
    if keep.op == "bernoulli":
        return True
    if keep.op not in ("gt", "lt", "ge", "le") or len(keep.args) != 2:
        return False
    drawn = next((one for one in keep.args if bare(one).op in _DRAWS), None)
    return drawn is not None and len(computation.users(bare(drawn))) == 1


def _is_error(value: Value) -> bool:
    return any(True for _ in _error_args(value))


def _error_args(value: Value) -> tuple[Value, ...]:
    """The two values whose difference is squared, or is a loss of each element."""
    for _ in range(6):
        value = bare(value)
        if value.op in ("mse_loss", "l1_loss", "smooth_l1_loss") and len(value.args) > 1:
            return value.args[:2]
        if value.op in ("mean", "sum", "pow", "square", "abs") and value.args:
            value = value.args[0]
            continue
        return value.args if value.op == "sub" and len(value.args) == 2 and any(one.op == "run" for one in origins(value)) else ()
    return ()


def _asked_for(one: Value, shown: Value) -> bool:
    """Whether a target is what is shown, or what the first layer is given of it."""
    if same(one, shown):
        return not any(each.op == "run" for each in origins(one))
    return shown.op == "run" and len(shown.args) > 1 and same(bare(shown.args[1]), one)


def _also_the_rest(computation: Computation, keep: Value, value: Value, hides: Value) -> bool:
    """Whether the complement of a mask is used, too."""
    return any((of := complement_of(one)) is not None and same(bare(of), keep) for one in computation.of("sub")) or any(
        same(bare(one.args[0]), keep) for one in computation.of("invert") if one.args
    ) or bool(product(hides).below)


def _summed(computation: Computation, value: Value) -> bool:
    return any(user.op in ("sum", "mean") for user in computation.users(value))
