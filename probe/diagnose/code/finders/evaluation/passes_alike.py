"""Several passes of a network that all give the same, and pairs that are counted the other way round. Pure; standard
library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import DRAWN, Many, Value, bare, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import of_one_layer
from probe.diagnose.code.traits.basic import losses

_CHANGED = ("softmax", "sigmoid", "exp", "part", "log_softmax", "cat")
_JOINED = (*_CHANGED, "stack", "array", "numpy", "tensor", "view", "reshape", "squeeze", "cpu", "float")
_OTHER_DRAWS = DRAWN - {"dropout"} | {"log_prob", "unknown", "train", "noise", "add_noise"}


def passes_alike(program: Program) -> Iterator[Remark]:
    """The spread of several passes over one input is taken, while dropout, the only thing that is drawn, is off."""
    computation = computation_of(program)
    for spread in computation.of("std", "var", "var_mean", "std_mean"):
        members = spread.args[0] if spread.args else spread
        while members.op in _JOINED and members.args:
            members = members.args[0]
        if not isinstance(members, Many) or not members.grown or len(members.parts) != 1 or bare(members.parts[0], *_CHANGED).op != "run":
            continue
        one = members.parts[0]
        loops = [loop for loop in one.where.loops if loop not in spread.where.loops]
        inside = list(origins(one))
        dropped = next((each for each in inside if each.op == "dropout"), None)
        if dropped is None or not loops or not isinstance(loops[0], (ast.For, ast.comprehension, ast.ListComp, ast.GeneratorExp)):
            continue
        if any(each.op in _OTHER_DRAWS and loops[0] in each.where.loops for each in inside) or any(_always_on(each) for each in inside if each.op == "dropout"):
            continue
        if any(each.op == "run" and not each.args[0].op.startswith("torch.nn.") for each in inside):
            continue
        if any(loops[0] in each.where.loops for each in computation.of("backward", "step", "load_state_dict")):
            continue
        if any(each.op in ("element", "rows", "index") and loops[0] in each.where.loops for each in inside) or _sets_modes(program):
            continue
        off = _mode_before(computation, dropped)
        if off is not None:
            yield Remark(spread.node, f"{short(spread.node)} is the spread of several passes over one input, and {short(off.node)} (line {off.line}) has turned the dropout of line {dropped.line} off: all passes give the same")
            return


def _always_on(value: Value) -> bool:
    """Whether a dropout is a call of a function, which asks for no mode unless it is told."""
    return isinstance(value.node, ast.Call) and "dropout" in ast.unparse(value.node.func).lower().split(".")[-1] and ("functional" in ast.unparse(value.node.func) or ast.unparse(value.node.func).startswith("F."))


def _sets_modes(program: Program) -> bool:
    """Whether a class of the program sets the mode of its layers by itself."""
    return any(isinstance(one, ast.FunctionDef) and one.name in ("train", "eval") for one in program.everywhere(ast.FunctionDef)) or any(
        one.attr == "training" and isinstance(one.ctx, ast.Store) for one in program.everywhere(ast.Attribute)
    )


def _mode_before(computation: Computation, value: Value) -> Value | None:
    """What has turned a network to evaluation last before a value, in the functions that it is computed in; None where
    anything after it, also in a function that was called there, has turned a layer back."""
    for one in reversed(computation.values[: value.number]):
        inside = one.where.functions == value.where.functions[: len(one.where.functions)]
        if one.op in ("train", "apply") or (one.op == "eval" and inside):
            return one if one.op == "eval" and not one.where.maybe else None
    return None


def concordance_reversed(program: Program) -> Iterator[Remark]:
    """Pairs count as right where the one with the lower risk has its event first; the loss asks for the higher risk there."""
    computation = computation_of(program)
    risks = [bare(part) for _, loss in losses(computation) for one in origins(loss) if one.op in ("logcumsumexp", "cumsum", "logsumexp") and one.args for part in origins(one.args[0], ("run",)) if part.op == "run"]
    if not any(one.op in ("logcumsumexp", "cumsum", "logsumexp") for _, loss in losses(computation) for one in origins(loss)):
        return
    for value in computation.of("and", "mul"):
        orders = [found for part in _factors(value) if (found := _compares_pairs(part)) is not None]
        by_risk = next((one for one in orders if any(of_one_layer(_of_rows(one[0]), risk) for risk in risks)), None)
        by_time = next((one for one in orders if by_risk is not None and one is not by_risk and not any(part.op == "run" for part in origins(one[0]))), None)
        if by_risk is None or by_time is None or by_risk[1] != by_time[1]:
            continue
        share = next((one for user in computation.users(value) for each in (user, *computation.users(user)) if each.op == "sum" for one in _ratios(computation, each)), None)
        if share is not None and not any(one.op == "sub" and number(one.args[0]) == 1 for one in computation.users(share)):
            yield Remark(value.node, f"{short(value.node)} counts a pair as right where the lower risk has the earlier time, and the loss gives the higher risk to it: what {short(share.node)} (line {share.line}) gives is 1 less the concordance")
            return


def _factors(value: Value) -> Iterator[Value]:
    """What is asked for at once."""
    value = bare(value)
    if value.op in ("and", "mul") and len(value.args) == 2:
        yield from (one for part in value.args for one in _factors(part))
    else:
        yield value


def _compares_pairs(value: Value) -> tuple[Value, int] | None:
    """What is compared of each two rows, and whether the first row's is the smaller (-1) or the larger (1)."""
    if value.op not in ("lt", "gt", "le", "ge") or len(value.args) != 2:
        return None
    left, right = (_spread_out(one) for one in value.args)
    if left is None or right is None or left[0] is not right[0] or left[1] == right[1]:
        return None
    return left[0], (-1 if value.op in ("lt", "le") else 1) * (1 if left[1] == "rows" else -1) * left[2]


def _spread_out(value: Value) -> tuple[Value, str, int] | None:
    """A vector that is spread out along rows or columns, and whether its sign is turned."""
    sign = 1
    while value.op == "neg":
        value, sign = value.args[0], -sign
    if value.op == "part" and value.args[1].op == "tuple":
        empty = [one.op == "@constant" and one.data is None for one in value.args[1].made_of()]
        where = "rows" if empty == [False, True] else "columns" if empty == [True, False] else None
    elif value.op == "part" and value.args[1].op == "@constant" and value.args[1].data is None:
        where = "columns"
    elif value.op == "unsqueeze":
        where = {1: "rows", -1: "rows", 0: "columns"}.get(int(number(value.argument("dim", 1)) or 0))
    else:
        return None
    inner = value.args[0]
    while inner.op == "neg":
        inner, sign = inner.args[0], -sign
    return (bare(inner), where, sign) if where is not None else None


def _of_rows(value: Value) -> Value:
    """A value without what picks rows or a column of it."""
    while value.op == "part" and value.args:
        value = bare(value.args[0])
    return value


def _ratios(computation: Computation, value: Value) -> Iterator[Value]:
    """The shares that a count is counted in."""
    for one in computation.users(value):
        if one.op == "div" and one.args[0] is value:
            yield one
        elif one.op in ("add", "float", "item"):
            yield from _ratios(computation, one)
