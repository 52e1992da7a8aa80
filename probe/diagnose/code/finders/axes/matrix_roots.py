"""Roots of matrices in distances between sets of features. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import TURNED, product, root_of
from probe.diagnose.code.traits.basic import without_small
from probe.diagnose.code.traits.uses import made_from

FINDERS = Finders()
_SUMMED = frozenset({"nan_to_num", "real", "mul", "sub", "add", "neg", "clamp", "numpy", "float", "to", "item", "div", "diagonal", "diag"})
_TRACED = ("trace", "diagonal", "diag", "numpy.trace")
_ROOTS = ("scipy.linalg.sqrtm", "sqrtm", "matrix_power", "scipy.linalg.fractional_matrix_power")


@FINDERS.add("score-by-another-formula")
def _of_each_entry(program: Program) -> Iterator[Remark]:
    """The root of each entry of a product of two covariances is taken for that of the matrix."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for value in computation.of("sqrt", "pow"):
        inner = root_of(value)
        matrix = without_small(bare(inner, "abs", "nan_to_num", "clamp")) if inner is not None else value
        matrix = bare(matrix, "abs", "nan_to_num")
        if matrix.op != "matmul" or len(matrix.args) != 2 or not all(map(_is_covariance, matrix.args)) or value.node in said:
            continue
        if any(one.op in _TRACED for one in made_from(computation, value, _SUMMED)):
            said.add(value.node)
            yield Remark(value.node, f"{short(value.node)} takes the root of each entry of {short(matrix.node)}, and not that of the matrix, whose product with itself it is")


@FINDERS.add("score-by-another-formula")
def _root_once(program: Program) -> Iterator[Remark]:
    """The root of the product of two covariances is subtracted once, and not twice; or the length of the difference of the means
    is added, and not its square."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for value in computation.of("sub"):
        if len(value.args) != 2 or value.node in said:
            continue
        root, both = _untraced(value.args[1]), [_untraced(one) for one in _added(value.args[0])]
        if _is_root_of_product(root) and sum(_is_covariance(one) for one in both) >= 2 and not any(_is_root_of_product(one) for one in both):
            said.add(value.node)
            yield Remark(value.node, f"{short(value.node)} takes {short(value.args[1].node)} away once: the distance of two normal distributions has it twice")
    for value in computation.of("add"):
        for one, other in (value.args, value.args[::-1]) if len(value.args) == 2 else ():
            length = bare(one)
            if length.op != "norm" or not length.args or bare(length.args[0]).op != "sub" or value.node in said:
                continue
            means = [bare(each) for each in bare(length.args[0]).args]
            if len(means) == 2 and all(each.op == "mean" for each in means) and any(_is_root_of_product(each) for each in origins(other)) and any(each.op == "trace" for each in origins(other)):
                said.add(value.node)
                yield Remark(value.node, f"{short(value.node)} adds the length {short(length.node)} of the difference of two means: the distance of two normal distributions has its square")


def _added(value: Value) -> Iterator[Value]:
    inner = bare(value)
    if inner.op == "add" and len(inner.args) == 2:
        for one in inner.args:
            yield from _added(one)
    else:
        yield inner


def _untraced(value: Value) -> Value:
    return bare(value, "trace", "real", "nan_to_num", "part")


def _is_root_of_product(value: Value) -> bool:
    """Whether a value is the matrix root of a product of two covariances; also a part of what gives it and an error."""
    value = bare(value, "real", "part")
    if not value.op.endswith(_ROOTS) or not value.args:
        return False
    inner = without_small(value.args[0])
    return inner.op == "matmul" and len(inner.args) == 2 and all(map(_is_covariance, inner.args))


def _is_covariance(value: Value) -> bool:
    """Whether a value is a matrix of covariances, also with something small on its diagonal."""
    value = without_small(value)
    if value.op == "add" and len(value.args) == 2:
        kept = [one for one in value.args if not any(each.op in ("eye", "identity") for each in origins(one))]
        return len(kept) == 1 and _is_covariance(kept[0])
    if value.op == "cov":
        return True
    made = product(value)
    inner = [bare(one) for one in made.above if number(one) is None]
    if len(inner) != 1 or inner[0].op != "matmul" or len(inner[0].args) != 2:
        return False
    left, right = (bare(one, *TURNED) for one in inner[0].args)
    return left is right or same(left, right)
