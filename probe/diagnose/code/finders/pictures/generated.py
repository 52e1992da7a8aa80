"""What a generative model is trained on, and how samples are drawn from it. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import DRAWN, Value, bare, constant, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import TURNED, complement_of, module, sides
from probe.diagnose.code.traits.basic import LOSSES, losses

_NULLS = ("full_like", "full", "zeros_like", "ones_like", "zeros", "ones")


def velocity_backwards(program: Program) -> Iterator[Remark]:
    """A velocity is learned from the end of a path to its beginning, and sampling goes the way of the path."""
    computation = computation_of(program)
    said: set[int] = set()
    for value in computation.of("add"):
        path = _path(value)
        if path is None:
            continue
        start, end, time = path
        for target in computation.of("sub"):
            if target.line in said or len(target.args) != 2 or not (same(bare(target.args[0]), start) and same(bare(target.args[1]), end)):
                continue
            nets = _learned_from(computation, target, value)
            steps = [sign for net in nets for sign in _steps(computation, net)]
            if steps and all(sign == 1 for sign in steps):
                said.add(target.line)
                yield Remark(target.node, f"{short(target.node)} points against the path of {short(value.node)} (line {value.line}), which goes from {short(start.node)} to {short(end.node)} as {short(time.node)} rises, and sampling adds the velocity as the time rises")


def _path(value: Value) -> tuple[Value, Value, Value] | None:
    """Beginning, end and time of (1 - t) * a + t * b, and of a + t * (b - a)."""
    for start, rest in sides(value):
        for moment, way in sides(rest) if rest.op == "mul" else ():
            way = bare(way)
            if way.op == "sub" and len(way.args) == 2 and same(bare(way.args[1]), bare(start)) and _is_time_of_a_path(bare(moment)):
                return bare(start), bare(way.args[0]), bare(moment)
    for one, other in sides(value):
        for weight, start in sides(one) if one.op == "mul" else ():
            time = complement_of(bare(weight))
            for again, end in sides(other) if time is not None and other.op == "mul" else ():
                if time is not None and same(bare(again), bare(time)) and _is_time_of_a_path(bare(time)):
                    return bare(start), bare(end), bare(time)
    return None


def _is_time_of_a_path(value: Value) -> bool:
    """Whether a value is drawn between 0 and 1."""
    return any(one.op in ("rand", "rand_like", "uniform", "sigmoid") for one in origins(value)) and not any(one.op == "run" for one in origins(value))


def _learned_from(computation: Computation, target: Value, path: Value) -> list[Value]:
    """The networks whose output is compared with a target, as layers that give it, of which the path is the input."""
    found = []
    for user in computation.users(target):
        pair = user.args if user.op == "sub" or user.op in LOSSES else ()
        outputs = [bare(one) for one in pair[:2] if one is not target]
        for one in outputs:
            if any(each is path for each in origins(one)) and any(each.op == "run" for each in origins(one)):
                found.append(one)
    return found


def _steps(computation: Computation, output: Value) -> Iterator[int]:
    """The signs with which a network's output times a step is added to a sample, as time rises from 0; 0 where that is not
    known."""
    layer = last_layer(output)
    if layer is None:
        return
    for value in computation.of("add", "sub"):
        if len(value.args) != 2 or not value.where.no_grad or not value.where.loops:
            continue
        step = bare(value.args[1])
        factors = step.args if step.op == "mul" and len(step.args) == 2 else (step.args[:1] if step.op == "div" else ())
        if not any(last_layer(bare(one)) is layer and bare(one) is not output for one in factors):
            continue
        size = [number(one) for one in step.args]
        counts = {_course(one) for factor in factors for one in origins(factor) if one.op in ("index", "linspace")}
        known = all(one is None or one > 0 for one in size) and len(counts) == 1
        yield (1 if value.op == "add" else -1) * counts.pop() if known else 0


def last_layer(value: Value) -> Value | None:
    """The last layer that gives a value."""
    for _ in range(10):
        if value.op == "run" and len(value.args) > 1:
            return module(value.args[0])
        if not value.args:
            return None
        value = bare(value.args[0])
    return None


def _course(value: Value) -> int:
    """1 of a count that goes up, -1 of one that goes down; 0 where that is unknown."""
    known = [number(one) for one in value.args]
    if any(one.op in ("reversed", "flip") for one in origins(value)):
        return 0
    if value.op == "index":
        return 1 if len(known) < 3 else 0 if known[2] is None else 1 if known[2] > 0 else -1
    begin, end = (*known, None, None)[:2]
    return 0 if begin is None or end is None else 1 if begin < end else -1


def guided_away(program: Program) -> Iterator[Remark]:
    """Guidance begins from the prediction with the condition, and goes towards that without it."""
    said: set[int] = set()
    for value in computation_of(program).of("add"):
        for base, push in sides(value):
            for scale, difference in sides(push) if push.op == "mul" else ():
                difference = bare(difference)
                if difference.op != "sub" or len(difference.args) != 2 or value.line in said or not same(bare(difference.args[1]), bare(base)):
                    continue
                free, held = (_condition(bare(one)) for one in difference.args)
                known = number(scale)
                if free is not None and held is not None and _is_null(free) and not _is_null(held) and (known is None or known > 1) and scale.op not in ("neg", "sub"):
                    said.add(value.line)
                    yield Remark(value.node, f"{short(value.node)}: {short(base.node)} is what the network gives for {short(held.node)}, and {short(difference.args[0].node)} what it gives for {short(free.node)}, which stands for no condition")


def _condition(value: Value) -> Value | None:
    """What a prediction is conditioned on: the last thing that a network's embedding table is asked for, or the half of it
    that belongs to this half of a doubled batch."""
    half = None
    if value.op == "part" and len(value.args) == 2 and bare(value.args[0]).op == "chunk":
        half = number(value.args[1])
        value = bare(value.args[0])
    asked = [bare(one.args[1]) for one in origins(value) if one.op == "run" and len(one.args) > 1 and one.args[0].op == "torch.nn.Embedding"]
    found = []
    for one in asked:
        if half is not None:
            parts = one.args[0].parts if one.op == "cat" and one.args and hasattr(one.args[0], "parts") else []
            if len(parts) != 2:
                continue
            one = bare(parts[int(half)])
        found.append(one)
    named = [one for one in found if not _is_time(one)]
    return named[0] if len(named) == 1 else None


def _is_time(value: Value) -> bool:
    """Whether a value counts steps."""
    return any(one.op in ("index", "linspace", "arange") and one.where.loops for one in origins(value)) or any(one.op == "index" for one in origins(value))


def _is_null(value: Value) -> bool:
    return value.op in _NULLS


def codebook_untrained(program: Program) -> Iterator[Remark]:
    """The loss that should move a codebook is computed of what the straight-through estimator gives, which has no gradient
    to the codebook."""
    said: set[int] = set()
    for value in computation_of(program).of("mse_loss", "l1_loss", "smooth_l1_loss", "sub"):
        if len(value.args) < 2 or value.line in said:
            continue
        for moved, kept in (value.args[:2], value.args[1::-1]):
            through, still = _straight_through(moved), _cut(kept)
            if through is None or still is None or not same(bare(through[0]), still):
                continue
            table = any(one.op in ("torch.nn.Embedding", "torch.nn.Parameter") for one in origins(through[1]))
            if table and constant(value.named.get("reduction")) != "none":
                said.add(value.line)
                yield Remark(value.node, f"{short(value.node)} is computed of {short(moved.node)}, which has no gradient to the codebook (line {moved.line}): it moves {short(through[0].node)} alone, away from its code")
                break


def _straight_through(value: Value) -> tuple[Value, Value] | None:
    """x and q of x + (q - x).detach()."""
    if value.op in ("detach",):
        return None
    inner = value
    while inner.op in ("view", "reshape", "permute", "contiguous", "transpose") and inner.args:
        inner = inner.args[0]
    for kept, rest in sides(inner) if inner.op == "add" else ():
        cut = _cut(rest)
        if cut is not None and cut.op == "sub" and len(cut.args) == 2 and same(bare(cut.args[1]), bare(kept)):
            return kept, cut.args[0]
    return None


def _cut(value: Value) -> Value | None:
    """What a value is without its gradient."""
    for _ in range(5):
        if value.op == "detach" and value.args:
            return bare(value.args[0])
        if value.op not in ("view", "reshape", "contiguous", "clone", "data") or not value.args:
            return None
        value = value.args[0]
    return None


def codes_alone(program: Program) -> Iterator[Remark]:
    """A decoder is given the codes themselves: of what the encoder gives only the choice is left in them, which has no gradient."""
    computation = computation_of(program)
    in_losses: dict[int, Value] | None = None
    for value in computation.of("mse_loss", "l1_loss", "smooth_l1_loss", "sub"):
        if len(value.args) < 2:
            continue
        for kept, moved in (value.args[:2], value.args[1::-1]):
            codes, code = bare(_cut(kept) or kept, *TURNED), bare(moved, *TURNED)
            if not _is_chosen(codes) or _cut(moved) is not None or not any(one is code for one in origins(codes)) or not any(one.op == "run" for one in origins(code)):
                continue
            if in_losses is None:
                in_losses = {id(one): one for _, loss in losses(computation) for one in origins(loss)}
            given = [(one, set(map(id, origins(one.args[1], stop=_CHOICES)))) for one in in_losses.values() if one.op == "run" and len(one.args) > 1 and not one.where.no_grad]
            given = [(one, made) for one, made in given if id(codes) in made]
            if given and not any(id(code) in made for _, made in given):
                decoder = min((one for one, _ in given), key=lambda one: one.number)
                yield Remark(decoder.node, f"{short(decoder.node)} is given the codes of {short(codes.node)} (line {codes.line}), in which {short(code.node)} only has the choice: no gradient of what is decoded reaches the encoder")
                return


_CHOICES = ("argmin", "argmax", "min", "max", "topk", "sort", "argsort", "detach", "shape", "size")


def _is_chosen(codes: Value) -> bool:
    """Whether a value is rows of a table that are learned, at the places of the nearest ones."""
    if codes.op == "run" and len(codes.args) > 1:
        table, index = codes.args[0], codes.args[1]
    elif codes.op in ("part", "index_select", "matmul", "embedding") and len(codes.args) > 1:
        table, index = codes.args[0], codes.args[-1]
        if codes.op in ("matmul", "embedding"):
            table, index = index, table
    else:
        return False
    held = any(one.op in ("torch.nn.Embedding", "torch.nn.Parameter", *DRAWN) for one in origins(table)) and not any(one.op == "rows" for one in origins(table))
    return held and any(one.op in ("argmin", "argmax", "min", "topk", "max") for one in origins(index))
