"""Second derivatives that mix the variables, and weights of terms of the wrong sign. Pure; standard library only."""

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
    constant,
    number,
    origins,
    same,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import addends, product
from probe.diagnose.code.traits.basic import LOSSES, losses, squared, terms
from probe.diagnose.code.traits.extents import last, rank

_GRADIENT = ("torch.autograd.grad", "grad")


def mixed_second_derivatives(program: Program) -> Iterator[Remark]:
    """The derivatives by all variables are added up, and derived again: the sum holds the mixed derivatives too."""
    computation = computation_of(program)
    for second in computation.of("torch.autograd.grad"):
        if len(second.args) < 2:
            continue
        outputs, by = second.args[0], second.args[1]
        given = second.argument("grad_outputs", 2)
        summed = outputs.op == "sum" and outputs.argument("dim", 1) is None
        whole = bare(outputs.args[0], shapes=False) if summed else bare(outputs, shapes=False)
        if not summed and (given is None or given.op not in ("ones_like", "ones")):
            continue
        first = whole.args[0] if whole.op == "part" and constant(whole.args[1]) == 0 else whole
        if first.op != "torch.autograd.grad" or len(first.args) < 2 or first.args[1] is not by or not _has_columns(computation, by):
            continue
        if _is_used(computation, second):
            yield Remark(second.node, f"{short(second.node)} derives the sum of the derivatives by all variables (line {first.line}): what it gives for one variable also holds the mixed derivatives by the others")
            return


def mean_before_the_square(program: Program) -> Iterator[Remark]:
    """A loss takes the square, or the size, of the mean of differences: those above 0 and those below it cancel."""
    computation = computation_of(program)
    for call, loss in losses(computation):
        if any(one is loss and call is not other for other, one in losses(computation)):
            continue
        found = [one for one, factor in terms(loss) if factor is None or factor > 0]
        for term in found:
            term = bare(term)
            inner = squared(term) or (term.args[0] if term.op == "abs" and term.args else None)
            mean = bare(inner) if inner is not None else None
            if mean is None or mean.op not in ("mean", "sum") or len(mean.args) != 1 or mean.named or mean.where.loops != term.where.loops:
                continue
            error = bare(mean.args[0])
            if _is_residual(error) or (len(found) == 1 and _is_difference(error)):
                yield Remark(term.node, f"{short(term.node)} squares the {'mean' if mean.op == 'mean' else 'sum'} of {short(error.node)} (line {error.line}): errors above 0 and below it cancel, and the loss is 0 where they are equally large")
                return


def _is_residual(value: Value) -> bool:
    """Whether a value is a sum of derivatives of what a network gives and of other terms, which should be 0 at each point."""
    if value.op not in ("add", "sub") or rank(value) == 0:
        return False
    parts = [bare(one) for one, _ in addends(value)]
    derived = [one for one in parts if any(each.op in _GRADIENT for each in origins(one, stop=_GRADIENT))]
    return len(parts) > 1 and bool(derived) and not any(one.op in ("mean", "sum") for one in origins(value, stop=_GRADIENT))


def _is_difference(value: Value) -> bool:
    """Whether a value is the difference between what a network gives and data of the batch."""
    if value.op != "sub" or len(value.args) != 2 or rank(value) == 0:
        return False
    sides = [any(one.op == "run" for one in origins(part)) for part in value.args]
    data = value.args[1] if sides == [True, False] else value.args[0] if sides == [False, True] else None
    return data is not None and any(one.op in ("rows", "element", "part", "randn", "tensor") for one in origins(data)) and not any(one.op in ("mean", "log_prob") for part in value.args for one in origins(part, stop=("run", "rows")))


def _has_columns(computation: Computation, value: Value) -> bool:
    """Whether points have more than one coordinate."""
    known = last(value)
    if known is not None:
        return known > 1
    return any(
        one.op == "run" and len(one.args) == 2 and bare(one.args[1], shapes=False) is value and one.args[0].op == "torch.nn.Linear" and (number(one.args[0].argument("in_features", 0)) or 0) > 1
        for one in computation.users(value)
    )


def _is_used(computation: Computation, value: Value) -> bool:
    """Whether a part of the result, by a column or summed over them, is used."""
    return any(one.op == "part" and computation.users(one) for one in computation.users(value))


def weight_of_the_wrong_sign(program: Program) -> Iterator[Remark]:
    """A loss is multiplied by exp(s), and s is added: both fall with s, without end."""
    computation = computation_of(program)
    for _, loss in losses(computation):
        found = [(bare(one), sign * (1 if factor is None or factor > 0 else -1)) for term, factor in terms(loss) for one, sign in _pieces(term)]
        for value, sign in found:
            shares = product(value)
            grown = next((one for one in shares.above if one.op == "exp" and one.args), None)
            if grown is None or sign * shares.sign != 1 or not any(_is_error(one) for one in shares.above if one is not grown):
                continue
            exponent = product(grown.args[0])
            if exponent.sign != 1 or len(exponent.above) != 1 or any((number(one) or 0) < 0 for one in exponent.above):
                continue
            beside = next((one for one, other in found for inner in [product(one)] if other * inner.sign == 1 and not inner.below[1:] and any(same(part, exponent.above[0]) for part in inner.above) and not any(part.op == "exp" for part in inner.above)), None)
            if beside is not None:
                yield Remark(grown.node, f"{short(grown.node)} multiplies a loss, and {_written(grown, exponent.above[0])} is added to it: both are smaller the further it falls below 0, and nothing holds it")
                return


def _written(exponential: Value, inner: Value) -> str:
    """What stands in an exponential, as it is written there."""
    call = exponential.node
    if isinstance(call, ast.Call) and call.args:
        return short(call.args[0])
    return short(call.func.value) if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) else short(inner.node)


def _pieces(value: Value, sign: int = 1) -> Iterator[tuple[Value, int]]:
    """What a term is the sum of; numbers before a bracket are left out."""
    for one, turned in addends(value, sign):
        inner = bare(one)
        factor = next((other for part, other in (inner.args, inner.args[::-1]) if (number(part) or 0) > 0 and bare(other).op in ("add", "sub")), None) if inner.op == "mul" and len(inner.args) == 2 else None
        if factor is not None:
            yield from _pieces(factor, turned)
        else:
            yield inner, turned


def _is_error(value: Value) -> bool:
    """Whether a value is a loss, or a squared or absolute error: never below 0."""
    value = bare(value)
    return value.op in LOSSES or value.op == "abs" or squared(value) is not None or (value.op in ("mean", "sum") and bool(value.args) and _is_error(value.args[0]))


def same_derivative_twice(program: Program) -> Iterator[Remark]:
    """Two names in one function have the derivative of one value by one input: the second was meant to be that of the first."""
    computation = computation_of(program)
    names = [(target, one) for target, given in computation.stored.items() for one in given]
    taken: dict[tuple[object, ...], list[tuple[ast.Name, Value]]] = {}
    for target, one in names:
        source = bare(one, "part")
        if source.op != "torch.autograd.grad" or len(source.args) < 2 or source.where.no_grad or not _is_used(computation, source):
            continue
        outputs = bare(source.args[0], "sum")
        taken.setdefault((id(outputs), id(source.args[1]), *_columns_taken(one, source)), []).append((target, source))
    for found in taken.values():
        for place, (target, one) in enumerate(found):
            for other, before in found[:place]:
                apart = one is not before and other.id != target.id and program.scope(other) is program.scope(target) and one.where.loops == before.where.loops
                if apart and not isinstance(one.args[1], Many):
                    late, early = (target, other) if one.number > before.number else (other, target)
                    yield Remark(late, f"{late.id} is the derivative that {early.id} is (line {early.lineno}): both are of one value, by one input")
                    return


def _columns_taken(value: Value, source: Value) -> Iterator[object]:
    """Which columns of a derivative a value is: what is told apart by numbers alone."""
    while value is not source and value.args:
        yield from ((one.op, constant(one)) for one in (origins(value.args[1]) if value.op == "part" and len(value.args) == 2 else ()) if one.op in ("@constant", "slice"))
        value = value.args[0]


def no_curvature(program: Program) -> Iterator[Remark]:
    """What a network of straight pieces gives is derived twice by its inputs: the second derivative of each piece is 0."""
    computation = computation_of(program)
    for second in computation.of(*_GRADIENT):
        if len(second.args) < 2 or second.op == "grad":
            continue
        first = _scaled(second.args[0])
        if first.op != "torch.autograd.grad" or len(first.args) < 2 or not computation.users(second) or second.where.no_grad:
            continue
        bends = _straight(first.args[0], first.args[1])
        if bends:
            yield Remark(second.node, f"{short(second.node)} derives by the inputs what is a derivative by them already (line {first.line}), and {short(bends[0].node)} (line {bends[0].line}) is made of straight pieces, as is all that the network computes: the second derivative is 0 everywhere")
            return


_STRAIGHT = ("relu", "leaky_relu", "relu6", "hardtanh", "prelu", "abs")
_LINEAR = frozenset({"sum", "mean", "cat", "part", "dropout", "neg", "identity", "columns", "T", "t", "transpose", "split", "chunk"}) | SHAPED | KEPT
_MADE = ("torch.nn.Linear", "torch.nn.Identity", "torch.nn.Flatten", "torch.nn.Dropout")
_BENT = ("torch.nn.ReLU", "torch.nn.LeakyReLU", "torch.nn.ReLU6", "torch.nn.Hardtanh", "torch.nn.PReLU")


def _scaled(value: Value) -> Value:
    """A derivative, without what takes a column of it, adds it up, or multiplies it by a number."""
    for _ in range(8):
        value = bare(value, "part", "sum", "columns")
        if value.op not in ("mul", "div") or len(value.args) != 2 or number(value.args[1]) is None:
            return value
        value = value.args[0]
    return value


def _straight(outputs: Value, inputs: Value) -> list[Value]:
    """The bends between some inputs and what is computed of them, where all the rest is linear; nothing where it is not, or
    not known."""
    wanted = {id(bare(one)) for one in (inputs.parts if isinstance(inputs, Many) else [inputs])}
    reached: dict[int, bool] = {}

    def depends(value: Value) -> bool:
        if id(value) not in reached:
            reached[id(value)] = False
            reached[id(value)] = id(bare(value)) in wanted or any(depends(one) for one in value.made_of())
        return reached[id(value)]

    bends: list[Value] = []
    layers = 0
    waiting, seen = [outputs], {id(outputs)}
    while waiting:
        at = waiting.pop()
        if id(bare(at)) in wanted:
            continue
        inner = [one for one in at.made_of() if depends(one)]
        by = at.args[0].op if at.op == "run" and at.args else ""
        if at.op in _STRAIGHT or by in _BENT:
            bends.append(at)
        elif by in _MADE or at.op in ("linear", "matmul", "addmm"):
            layers += 1
            if len(inner) != 1:
                return []
        elif at.op in ("mul", "div"):
            if len(inner) != 1 or (at.op == "div" and inner[0] is not at.args[0]):
                return []
        elif at.op not in _LINEAR and at.op not in ("add", "sub") and not isinstance(at, Many):
            return []
        for one in inner:
            if id(one) not in seen:
                seen.add(id(one))
                waiting.append(one)
    return bends if layers > 1 else []
