"""Similarities of pairs: by what they are multiplied, and which pairs belong together. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, bare, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import is_call, own_nodes, short
from probe.diagnose.code.traits.arithmetic import TURNED, sides
from probe.diagnose.code.traits.uses import made_from

_SCORED = frozenset({"matmul", "mul", "t", "T", "transpose", "einsum", "to", "part", "permute", "mT"})
_LOGS = ("log", "log_softmax", "logsumexp")


def logarithm_for_scale(program: Program) -> Iterator[Remark]:
    """A scale of similarities is learned as its logarithm, and multiplied as it is."""
    computation = computation_of(program)
    for value in computation.of("mul"):
        for scale, _ in sides(value):
            scale = bare(scale)
            if scale.op != "torch.nn.Parameter" or not _is_logarithm(scale) or any(user.op in ("exp", "clamp") for user in _users(computation, scale)):
                continue
            later = [value, *made_from(computation, value, _SCORED)]
            paired = any(one.op in ("matmul", "einsum") for one in (*later, *origins(value, stop=("run",))))
            if paired and any(one.op == "cross_entropy" for one in later):
                yield Remark(value.node, f"{short(value.node)} multiplies by {short(scale.node)} (line {scale.line}), which begins as a logarithm: no exponential of it is taken")
                return


def _users(computation: Computation, value: Value) -> Iterator[Value]:
    for user in computation.users(value):
        yield user
        if user.op in ("clamp", "to", "float"):
            yield from computation.users(user)


def _is_logarithm(parameter: Value) -> bool:
    """Whether a parameter is made as the logarithm of one number."""
    return any(is_call(one, "log") for one in own_nodes(parameter.node)) or any(one.op == "log" for one in origins(parameter))


def own_pair_among_positives(program: Program) -> Iterator[Remark]:
    """A loss averages over all samples of the same label, and each sample is one of its own."""
    computation = computation_of(program)
    said: set[int] = set()
    for value in computation.of("mul"):
        for partners, scores in sides(value):
            labels = bare(partners)
            if value.line in said or labels.op != "eq" or len(labels.args) != 2 or not _is_each_with_each(labels):
                continue
            similar = next((one for one in origins(scores, stop=("run",)) if one.op == "matmul" and _is_with_itself(one)), None)
            logs = any(one.op in _LOGS for one in origins(scores, stop=("matmul", "run")))
            counted = any(user.op == "sum" for user in computation.users(value)) and any(one.op == "sum" for user in computation.users(labels) for one in (user, *computation.users(user)))
            if similar is None or not logs or not counted or any(one.op in ("fill_diagonal", "fill_diagonal_") for one in origins(value)):
                continue
            said.add(value.line)
            yield Remark(value.node, f"{short(value.node)} takes all pairs of one label, and {short(labels.node)} (line {labels.line}) holds each sample with itself: {short(similar.node)} (line {similar.line}) is largest there whatever the network does")


def _is_each_with_each(labels: Value) -> bool:
    """Whether labels are compared with themselves, as a column and a row."""
    one, other = (bare(each, "part", *TURNED) for each in labels.args)
    return one is other or same(one, other)


def _is_with_itself(product: Value) -> bool:
    one, other = (bare(each, "div", *TURNED) for each in product.args[:2])
    return one is other or same(one, other)
