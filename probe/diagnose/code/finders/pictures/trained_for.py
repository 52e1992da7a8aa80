"""Whether a network is used for what it was trained for, and losses of how far samples spread. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, is_none, number, origins, same
from probe.diagnose.code.finders.pictures.generated import last_layer
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import addends, complement_of, product, root_of, sides
from probe.diagnose.code.traits.basic import losses, terms

_DISTANCES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "sub")
_OTHERS = {"picture": "its input without noise", "difference": "a difference of the noise and the input without it"}
_NOISE = ("randn", "randn_like", "normal")


def noise_for_the_picture(program: Program) -> Iterator[Remark]:
    """A network learns the noise of its input, and what it gives is scored as the picture without noise; or it learns the
    picture, and sampling takes what it gives for the noise."""
    computation = computation_of(program)
    said: set[int] = set()
    learned = [found for value in computation.of(*_DISTANCES) if (found := _learned(value)) is not None]
    for value in computation.of(*_DISTANCES) if any(kind == "noise" for kind, _, _ in learned) else ():
        for output, other in _pair(value) if value.where.no_grad and value.line not in said else ():
            layer, given = last_layer(output), _noisy(output)
            at = next((loss for kind, of, loss in learned if kind == "noise" and of is layer), None)
            if layer is not None and at is not None and given is not None and same(given[0], bare(other)):
                said.add(value.line)
                yield Remark(value.node, f"{short(value.node)} compares the output of the network with {short(other.node)}, and the network learns to give the noise of its input (line {at.line})")
    for value in computation.of("sub") if any(kind in _OTHERS for kind, _, _ in learned) else ():
        step = bare(value.args[1]) if len(value.args) == 2 and value.where.no_grad and value.line not in said else value
        factors = product(step) if step.op in ("mul", "div") else None
        for output in factors.above if factors is not None else ():
            layer = last_layer(output) if bare(output, "clamp").op == "run" else None
            rest = [one for one in (*factors.above, *factors.below) if one is not output] if factors is not None else []
            kinds = [(kind, loss) for kind, of, loss in learned if of is layer]
            if layer is not None and len({kind for kind, _ in kinds}) == 1 and kinds[0][0] in _OTHERS and any(map(_weighs_noise, rest)) and not (kinds[0][0] == "difference" and _is_scaled(value.args[0])):
                said.add(value.line)
                yield Remark(value.node, f"{short(value.node)} takes what the network gives for the noise, and the network learns to give {_OTHERS[kinds[0][0]]} (line {kinds[0][1].line})")


def _pair(value: Value) -> tuple[tuple[Value, Value], ...]:
    """What a network gives and what it is compared with."""
    both = [bare(one, "clamp") for one in value.args[:2]]
    if len(both) != 2:
        return ()
    return tuple((one, other) for one, other in (both, both[::-1]) if one.op == "run")


def _noisy(output: Value) -> tuple[Value, Value] | None:
    """What a network is given, as something and the noise that is added to it."""
    for one in origins(output):
        for kept, noise in sides(one) if one.op == "add" else ():
            inner = _unscaled(noise)
            if inner.op in _NOISE and _unscaled(kept).op not in ("run", *_NOISE) and not any(each.op == "run" for each in origins(kept)):
                return (bare(kept), bare(noise)) if _unscaled(kept) is bare(kept) or kept.op == "mul" else None
    return None


def _unscaled(value: Value) -> Value:
    """A value without the factors that no data are in: numbers, roots, and rows of a table."""
    for _ in range(6):
        value = bare(value)
        if value.op != "mul" or len(value.args) != 2:
            return value
        inner = [one for one in value.args if number(one) is None and not _is_scale(bare(one))]
        if len(inner) != 1:
            return value
        value = inner[0]
    return value


def _is_scale(value: Value) -> bool:
    """Whether a value is a strength of noise: a root, a draw of uniform numbers, or a row of a schedule."""
    if value.op in ("sqrt", "pow", "@input", "uniform", "rand"):
        return True
    inner = bare(value, "part", "gather")
    return inner.op in ("cumprod", "sqrt", "linspace", "rand", "uniform") or (inner.op == "sub" and any(one.op in ("cumprod", "linspace") for one in origins(inner)))


def _learned(value: Value) -> tuple[str, Value, Value] | None:
    """Whether a network learns the noise or the rest of its input, the layer that gives it, and where."""
    if value.where.no_grad:
        return None
    for output, other in _pair(value):
        given, layer = _noisy(output), last_layer(output)
        if given is None or layer is None:
            continue
        if any(same(bare(other), one) for one in (given[1], _unscaled(given[1]))):
            return "noise", layer, value
        if same(bare(other), given[0]) or same(bare(other), _unscaled(given[0])):
            return "picture", layer, value
        parts = [(_unscaled(one), sign) for one, sign in addends(bare(other))]
        if len(parts) == 2 and parts[0][1] != parts[1][1] and {id(one) for one, _ in parts} == {id(_unscaled(one)) for one in given}:
            return "difference", layer, value
    return None


def _weighs_noise(factor: Value) -> bool:
    """Whether a factor is the root of 1 less a product of all steps, or is divided by that."""
    for one in origins(factor):
        root = root_of(one)
        inside = complement_of(root) if root is not None else None
        if inside is not None and any(each.op == "cumprod" for each in origins(inside)):
            return True
    return False


def _is_scaled(value: Value) -> bool:
    """Whether a value is multiplied by the share of a step that a product of all steps leaves."""
    factors = product(value).above
    return len(factors) > 1 and any(any(each.op == "cumprod" for each in origins(one, ("run",))) for one in factors)


def spread_punished(program: Program) -> Iterator[Remark]:
    """What should keep the samples of a batch apart is above 0 where they are far apart, and 0 where they are alike."""
    computation = computation_of(program)
    said: set[int] = set()
    for _, loss in losses(computation):
        parts = list(terms(loss))
        if not any(one.op in ("mse_loss", "cosine_similarity", "smooth_l1_loss") and sum(any(each.op == "run" for each in origins(arg)) for arg in one.args[:2]) == 2 for one, _ in parts):
            continue
        for one, factor in parts:
            hinge = bare(one, "mean", "sum")
            low = hinge.argument("min", 1) if hinge.op == "clamp" else None
            inner = hinge.args[0] if hinge.op == "relu" or (low is not None and number(low) == 0) else None
            if inner is None or inner.op != "sub" or number(inner.args[1]) is None or (factor is not None and factor < 0) or hinge.line in said:
                continue
            spread = next((each for each in (inner.args[0], *(root_of(bare(inner.args[0])) or inner.args[0],)) if _is_spread(each)), None)
            if spread is not None:
                said.add(hinge.line)
                yield Remark(hinge.node, f"{short(hinge.node)} is above 0 where {short(inner.args[0].node)} is above {short(inner.args[1].node)}, and 0 where all samples are alike")


def _is_spread(value: Value) -> bool:
    """Whether a value is the deviation of what a network gives for the samples of a batch."""
    value = bare(value)
    if value.op == "add" and len(value.args) == 2 and number(value.args[1]) is not None:
        value = bare(value.args[0])
    if value.op not in ("std", "var") or number(value.argument("dim", 1)) != 0:
        return False
    return any(one.op == "run" for one in origins(value.args[0]))


def next_for_the_last(program: Program) -> Iterator[Remark]:
    """The posterior of a step of diffusion is computed of the product up to the step after it, and not up to that before."""
    computation = computation_of(program)
    for value in computation.of("div"):
        below = complement_of(value.args[1]) if len(value.args) == 2 else None
        table = bare(below) if below is not None else None
        if table is None or table.op != "cumprod":
            continue
        for one in origins(value.args[0]):
            other = complement_of(one)
            if other is not None and _is_next(bare(other), table):
                yield Remark(value.node, f"{short(value.node)}: {short(other.node)} (line {other.line}) is {short(table.node)} of the step after each one, and not of the step before it")
                return


def _is_next(value: Value, table: Value) -> bool:
    """Whether a value is a table from its second row on, and something behind it."""
    part = value
    if value.op == "pad" and len(value.args) > 1 and isinstance(value.args[1], Many):
        known = [number(one) for one in value.args[1].parts]
        part = bare(value.args[0]) if known == [0, 1] else value
    elif value.op in ("cat", "append") and value.args:
        parts = value.args[0].parts if isinstance(value.args[0], Many) else list(value.args)
        part = bare(parts[0]) if len(parts) == 2 else value
    if part.op != "part" or len(part.args) != 2 or bare(part.args[0]) is not table or part.args[1].op != "slice" or len(part.args[1].args) != 3:
        return False
    begin, end = part.args[1].args[:2]
    return number(begin) == 1 and is_none(end)


def smoothed_outside(program: Program) -> Iterator[Remark]:
    """The number that smooths a fraction is above the line of a second one: the brackets around the sum above the line lack."""
    said: set[int] = set()
    for value in computation_of(program).of("add"):
        for whole, small in sides(value):
            above = bare(small.args[0]) if small.op == "div" and len(small.args) == 2 else None
            if above is None or number(above) is None or value.line in said or not any(bare(one).op == "sum" and _is_product(bare(one).args[0]) for one in (whole, *whole.args) if bare(one).args):
                continue
            overlap = next(bare(one).args[0] for one in (whole, *whole.args) if bare(one).op == "sum")
            factors = [bare(one) for one in bare(overlap).args]
            summed = [bare(one.args[0]) for one in origins(small.args[1]) if one.op == "sum" and one.args]
            if all(any(_is_of(one, factor) for one in summed) for factor in factors) and not any(each.op == "div" for each in (whole, *whole.args)):
                said.add(value.line)
                yield Remark(value.node, f"{short(value.node)} divides {short(small.args[0].node)} alone: {short(whole.node)} is added to the fraction, and is not above its line")


def _is_product(value: Value) -> bool:
    return bare(value).op == "mul" and len(bare(value).args) == 2


def _is_of(value: Value, factor: Value) -> bool:
    """Whether what is summed is a factor, its square, or a sum with it."""
    if same(value, factor):
        return True
    return value.op in ("pow", "square", "add", "mul") and any(_is_of(bare(one), factor) for one in value.args)


def written_to_one_place(program: Program) -> Iterator[Remark]:
    """A store is written from a place on that nothing ever moves."""
    computation = computation_of(program)
    stores = [one for one in program.everywhere(ast.Attribute) if isinstance(one.ctx, (ast.Store, ast.Del))]
    said: set[int] = set()
    for value in computation.of("set_item"):
        cut = value.args[1] if len(value.args) > 2 else value
        cut = next((one for one in cut.parts if isinstance(one.node, ast.Slice) and isinstance(one.node.lower, ast.Attribute)), cut) if isinstance(cut, Many) else cut
        node = cut.node.lower if isinstance(cut.node, ast.Slice) else None
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name) or cut.op != "slice" or len(cut.args) != 3 or number(cut.args[0]) != 0 or value.line in said:
            continue
        end = cut.args[1]
        moves = end.op == "add" and len(end.args) == 2 and number(end.args[0]) == 0 and number(end.args[1]) is None
        if moves and sum(one.attr == node.attr for one in stores) == 1 and not _set_by_name(program, node.attr):
            said.add(value.line)
            yield Remark(value.node, f"{short(value.node)} begins at {short(node)}, which is 0 and which nothing changes: each batch is written over the one before")


def _set_by_name(program: Program, name: str) -> bool:
    """Whether an attribute may be set by its name, or added to in place."""
    calls = [one for one in program.calls() if isinstance(one.func, ast.Name) and one.func.id == "setattr"]
    return bool(calls) or any(isinstance(one.target, ast.Attribute) and one.target.attr == name for one in program.everywhere(ast.AugAssign))


def frames_in_any_order(program: Program) -> Iterator[Remark]:
    """Frames of a video are picked by numbers that are drawn and not sorted, and a network reads them in that order."""
    computation = computation_of(program)
    read = {id(part): one for one in _in_order(computation) for part in origins(one.args[1])}
    said: set[int] = set()
    for value in computation.of("part"):
        if id(value) not in read or len(value.args) != 2 or value.line in said:
            continue
        drawn = _drawn(bare(value.args[1]))
        whole = bare(value.args[0])
        if drawn is None or not any((one.op == "len" and bare(one.args[0]) is whole) or (one.op in ("shape", "size") and one.args and bare(one.args[0]) is whole) for one in origins(drawn)):
            continue
        if any("read_video" in one.op or "VideoReader" in one.op or "VideoCapture" in one.op for one in origins(whole)):
            said.add(value.line)
            layer = read[id(value)].args[0]
            yield Remark(value.node, f"{short(value.node)} puts the frames in the order in which {short(drawn.node)} draws them, and {short(layer.node)} (line {layer.line}) reads them one after the other")


def _in_order(computation: Computation) -> list[Value]:
    """What layers give for which the order of the frames counts."""
    return [one for one in computation.of("run") if len(one.args) > 1 and one.args[0].op.rpartition(".")[2] in ("Conv3d", "LSTM", "GRU", "RNN")]


def _drawn(index: Value) -> Value | None:
    """The draw without repeats that gives an index, if it is not sorted."""
    if index.op == "part" and len(index.args) == 2 and index.args[1].op == "slice":
        index = bare(index.args[0])
    return index if index.op in ("sample", "randperm", "permutation", "choice", "randint") else None
