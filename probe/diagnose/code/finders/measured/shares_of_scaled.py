"""Errors in percent of values that were scaled. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import without_small

_LOGARITHMS = ("log", "log1p", "log10", "log2")
_SCALERS = ("StandardScaler", "MinMaxScaler", "RobustScaler", "PowerTransformer", "QuantileTransformer")
_PICKS = ("part", "unfold", "sliding_window_view", "cat", "index_select", "gather", "element", "columns")


def share_of_scaled(program: Program) -> Iterator[Remark]:
    """The error is divided by a target that was centred, or is a logarithm: a share of the number that stands for it."""
    computation = computation_of(program)
    for value in computation.of("div"):
        if len(value.args) != 2:
            continue
        above, below = bare(value.args[0]), _size(value.args[1])
        whole = any(user.op == "abs" for user in computation.users(value))
        if above.op == "abs" and above.args:
            above = bare(above.args[0])
        elif not whole:
            continue
        if above.op != "sub" or len(above.args) != 2 or not any(same(bare(one), below) for one in above.args):
            continue
        predicted = next((one for one in above.args if not same(bare(one), below)), None)
        scaled = _scaled(below)
        if scaled is None or predicted is None or not any(one.op == "run" for one in origins(predicted)) or not _averaged(computation, value):
            continue
        what = "is a logarithm" if scaled.op in _LOGARITHMS else "has its mean or least value taken away"
        yield Remark(value.node, f"{short(value.node)} is an error as a share of {short(below.node)}, which {what} (line {scaled.line}): it is no share of the value that is forecast")
        return


def _size(value: Value) -> Value:
    """x of `abs(x) + 1e-8`, or of a clamp of it."""
    value = without_small(value)
    value = without_small(value.args[0]) if value.op == "abs" and value.args else value
    return bare(value)


def _scaled(value: Value) -> Value | None:
    """What has scaled the values that rows, windows or columns are taken of; None where nothing has, or it is turned back."""
    for _ in range(30):
        value = bare(value)
        if isinstance(value, Many):
            if len(value.parts) != 1:
                return None
            value = value.parts[0]
        elif value.op in _LOGARITHMS and value.args:
            return value
        elif value.op in ("fit_transform", "transform"):
            made = bare(value.args[0])
            return value if made.op.rpartition(".")[2] in _SCALERS else None
        elif value.op == "div" and len(value.args) == 2:
            centred = bare(value.args[0])
            return value if centred.op == "sub" and len(centred.args) == 2 and _is_level(centred.args[1]) else None
        elif value.op in _PICKS and value.args:
            value = value.args[0]
        else:
            return None
    return None


def _is_level(value: Value) -> bool:
    """Whether a value is a mean or the least of others."""
    value = bare(value)
    value = bare(value.args[0]) if value.op == "part" and value.args else value
    return value.op in ("mean", "min", "median", "amin", "nanmean")


def _averaged(computation: Computation, value: Value) -> bool:
    """Whether the mean, or the sum, of a value is taken."""
    waiting, seen = [value], {id(value)}
    while waiting and len(seen) < 20:
        at = waiting.pop()
        for user in computation.users(at):
            if user.op in ("mean", "sum", "median", "nanmean"):
                return True
            if id(user) not in seen and (user.op in ("abs", "mul") or bare(user) is bare(at)):
                seen.add(id(user))
                waiting.append(user)
    return False
