"""Gradients that a program computes by hand, layer by layer. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, bare, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short

_TURNED = ("T", "t", "transpose", "mT")
_BENT = frozenset({"relu", "tanh", "sigmoid", "maximum", "where", "exp", "clip", "clamp", "max"})


def stepped_too_soon(program: Program) -> Iterator[Remark]:
    """The gradient of a layer is passed on through weights that the step has changed already."""
    for value in computation_of(program).of("matmul", "dot"):
        changed = _turned(value.args[1]) if len(value.args) == 2 else None
        if changed is None or changed.op != "sub" or len(changed.args) != 2:
            continue
        error = value.args[0]
        step = next((one for one in origins(changed.args[1]) if one.op in ("matmul", "dot") and len(one.args) == 2 and _turned(one.args[0]) is not None and same(bare(one.args[1]), bare(error))), None)
        if step is not None:
            yield Remark(value.node, f"{short(value.node)} passes the gradient on through weights that line {changed.line} has stepped already: it is not the gradient of the loss that was computed")
            return


def derivative_left_out(program: Program) -> Iterator[Remark]:
    """The gradient of a layer that ends in a bent function is passed on as if the function were none."""
    computation = computation_of(program)
    forward = [(one, found) for one in computation.of("matmul", "dot") if len(one.args) == 2 and (found := _bent(one.args[0])) is not None]
    for value in computation.of("matmul", "dot"):
        inputs, error = (_turned(value.args[0]), bare(value.args[1])) if len(value.args) == 2 else (None, value)
        through = _turned(error.args[1]) if inputs is not None and error.op in ("matmul", "dot") and len(error.args) == 2 else None
        if inputs is None or through is None or not _is_stepped(computation, value):
            continue
        for output, (bent, inner) in forward:
            if bare(output.args[1]) is through and any(one.op in ("matmul", "dot") and len(one.args) == 2 and same(bare(one.args[0]), inputs) for one in origins(inner, ("matmul", "dot"))):
                yield Remark(error.node, f"{short(error.node)} is the gradient by {short(bent.node)} (line {bent.line}), and line {value.line} takes it for that by what {bent.op} was computed of: its derivative is left out")
                return


def _turned(value: Value) -> Value | None:
    """x of x.T, also times a number."""
    if value.op == "mul" and len(value.args) == 2:
        return next((found for one in value.args if (found := _turned(one)) is not None), None)
    return bare(value.args[0]) if value.op in _TURNED and value.args else None


def _bent(value: Value) -> tuple[Value, Value] | None:
    """A function without parameters that bends what a layer gives, and what it is given."""
    value = bare(value)
    if value.op in ("relu", "tanh", "sigmoid") and value.args:
        return value, value.args[0]
    if value.op in ("maximum", "max", "clip", "clamp") and len(value.args) > 1:
        return value, value.args[1] if number(value.args[0]) is not None else value.args[0]
    if value.op == "div" and any(one.op == "exp" for one in origins(value.args[1], ("matmul", "dot"))):
        return value, value.args[1]
    return None


def _is_stepped(computation: Computation, gradient: Value) -> bool:
    """Whether weights are stepped against a gradient."""
    waiting = [gradient]
    for _ in range(12):
        if not waiting:
            return False
        for user in computation.users(waiting.pop()):
            if user.op == "sub" and len(user.args) == 2:
                return True
            if user.op in ("mul", "div", "add", "set_item", "set_attribute", "tuple", "dict"):
                waiting.append(user)
    return False
