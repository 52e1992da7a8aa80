"""What stretches every place of an image alike, and how often its logarithm counts. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, bare, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import addends, product

_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
_PASSED_ON = ("part", "add", "sub", "neg", "sum", "mean", "tuple", "either", "expand", "stack", "list", "return", "repeat", "sum_of")
_MOST_STEPS = 60


def one_place_counted(program: Program) -> Iterator[Remark]:
    """A log determinant of one place of an image, where every place is transformed, is never multiplied by their number."""
    computation = computation_of(program)
    for determinant, used in (*_of_matrices(computation), *_of_scales(computation)):
        if not _is_multiplied(computation, determinant):
            yield Remark(determinant.node, f"{short(determinant.node)} is the logarithm for one place, and {short(used.node)} (line {used.line}) transforms every place of its input: it is not multiplied by the number of places")
            return


def _of_matrices(computation: Computation) -> Iterator[tuple[Value, Value]]:
    """Log determinants of a matrix that a convolution of width 1 applies at each place: both."""
    for value in computation.of("slogdet", "logdet", "det"):
        matrix = bare(value.args[0]) if value.args else None
        for used in computation.of(*_CONVOLUTIONS) if matrix is not None else ():
            weight = bare(used.args[1]) if len(used.args) > 1 else None
            while weight is not None and weight is not matrix and weight.op == "part" and len(weight.args) > 1 and weight.args[1].op == "tuple":
                weight = bare(weight.args[0])  # [:, :, None, None]
            if weight is matrix:
                yield value, used
                break


def _of_scales(computation: Computation) -> Iterator[tuple[Value, Value]]:
    """Sums of the logarithms of scales, one for each channel, and where the scales multiply images: both."""
    scaled = {id(scale): used for used in computation.of("mul", "div") for scale in _scales(used)}
    for value in computation.of("sum") if scaled else ():
        if len(value.args) == 1 and "dim" not in value.named:
            for one, _ in addends(value.args[0]):
                for part in product(one).above:
                    if id(bare(part)) in scaled:
                        yield value, scaled[id(bare(part))]


def _scales(used: Value) -> Iterator[Value]:
    """Parameters with one logarithm for each channel whose exponential multiplies something of four dimensions."""
    for one in used.args:
        exponent = one.args[0] if one.op == "exp" and one.args else None
        held = bare(exponent) if exponent is not None else None
        if exponent is None or held is None or held.op != "torch.nn.Parameter":
            continue
        made = held.args[0] if held.args else held
        shapes = [exponent.args[1:] if exponent.op in ("view", "reshape") else (), made.args if made.op in ("zeros", "ones") else ()]
        if any(len(shape) == 4 and [number(each) for each in shape[2:]] == [1, 1] for shape in shapes):
            yield held


def _is_multiplied(computation: Computation, value: Value) -> bool:
    """Whether a logarithm is multiplied by something, other than a fraction or a sign, before or after it is added up."""
    waiting, seen = [value], {id(value)}
    while waiting and len(seen) < _MOST_STEPS:
        at = waiting.pop()
        for user in computation.users(at):
            if user.op == "mul" and any((number(one) is None or (number(one) or 0) > 1) and one is not at for one in user.args):
                return True
            if id(user) not in seen and (user.op in _PASSED_ON or user.op in ("mul", "abs", "log")):
                seen.add(id(user))
                waiting.append(user)
    return len(seen) >= _MOST_STEPS or any(one.op == "mul" for one in origins(value, stop=("torch.nn.Parameter",)) if one.op != "part" and _by_a_size(one))


def _by_a_size(value: Value) -> bool:
    """Whether a product has a size among its factors."""
    return any(bare(one).op in ("size", "numel") or "shape" in one.op or (one.op == "part" and bool(one.args) and "shape" in one.args[0].op) for one in value.args)
