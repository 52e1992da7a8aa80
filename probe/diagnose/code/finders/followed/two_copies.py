"""Copies that are pulled towards networks. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, bare, number
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.updates import plain


class _Pull(NamedTuple):
    """A copy that is moved by a share towards a network, or set to it; where, and by what share."""

    copy: Value
    network: Value
    share: float | None
    at: Value


def two_copies_of_one(program: Program) -> Iterator[Remark]:
    """Two copies, which began as copies of two networks or parts of one, are pulled towards one and the same network by the same
    share, and no copy towards another that is built alike."""
    computation = computation_of(program)
    pulls = list(_pulls(computation))
    for place, second in enumerate(pulls):
        first = next((one for one in pulls[:place] if one.network is second.network and one.copy is not second.copy and one.share == second.share and one.at.where.under == second.at.where.under), None)
        if first is None or any(one.copy is first.copy and one.network is not first.network for one in pulls):
            continue
        left = next((one for one in _trained(computation) if one is not first.network and _is_alike(one, first.network) and one not in (first.copy, second.copy) and not any(each.network is one or each.copy is one for each in pulls)), None)
        if left is not None and _is_alike(first.copy, second.copy):
            yield Remark(second.at.node, f"{short(second.at.node)} pulls the copy of line {second.copy.line} towards the network of line {second.network.line}, as the copy of line {first.copy.line} is: none follows the network of line {left.line}")
            return


def _pulls(computation: Computation) -> Iterator[_Pull]:
    """All copies that are pulled towards networks, parameter by parameter."""
    for value in computation.of("lerp", "add"):
        found: list[tuple[Value, Value, float | None]]
        if value.op == "lerp":
            found = [(value.args[0], value.args[1], number(value.args[2]))] if len(value.args) > 2 else []
        else:
            both = [_weighted(one) for one in value.args] if len(value.args) == 2 else []
            found = [(both[0][0], both[1][0], both[1][1])] if len(both) == 2 and both[0] is not None and both[1] is not None else []
        for copy, network, share in found:
            pair = _module_of(copy), _module_of(network)
            if pair[0] is not None and pair[1] is not None and pair[0] is not pair[1] and share is not None:
                if share > 0.5:
                    pair, share = pair[::-1], 1 - share
                copy_of, of = pair
                if copy_of is not None and of is not None:
                    yield _Pull(copy_of, of, round(share, 9), value)


def _weighted(value: Value) -> tuple[Value, float] | None:
    """A value, and the number that it is multiplied by."""
    value = bare(value)
    if value.op != "mul" or len(value.args) != 2:
        return None
    for one, weight in (value.args, value.args[::-1]):
        if number(weight) is not None:
            return one, float(number(weight) or 0.0)
    return None


def _module_of(value: Value) -> Value | None:
    """The module whose parameters a value is one of."""
    value = bare(value)
    return plain(value.args[0].args[0]) if value.op == "element" and value.args and value.args[0].op == "parameters" and value.args[0].args else None


def _trained(computation: Computation) -> Iterator[Value]:
    """The modules that give something with a gradient."""
    yield from computation.of("torch.nn.Sequential")


def _is_alike(one: Value, other: Value) -> bool:
    """Whether two modules have layers of the same kinds and sizes, in the same order."""
    if one.op != other.op or len(one.args) != len(other.args):
        return False
    return all((a.op == b.op == "@constant" and a.data == b.data) or (a.op != "@constant" and _is_alike(a, b)) for a, b in zip(one.args, other.args, strict=True))
