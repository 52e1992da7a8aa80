"""Numbers that lose their fraction, or are reported without what they were divided by. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, constant, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import root_of, trained
from probe.diagnose.code.traits.basic import LOSSES, reduction_of
from probe.diagnose.code.traits.updates import backwards

FINDERS = Finders()
_FRACTIONS = frozenset({"sigmoid", "softmax", "mean", "div", "exp", "sqrt", "tanh", "log", "log_softmax", "rand", "randn", "std", "var", "norm", "cosine_similarity"})
_PASSES = frozenset({"item", "detach", "cpu", "numpy", "part", "squeeze", "float", "tolist", "clone", "double", "reshape", "view", "flatten"})
_WHOLE = ("int", "int64", "int32", "int8", "int16", "uint8", "long", "short", "bool", "intp")
_QUIET = frozenset({"print", "text", "mod", "log", "add_scalar", "info", "write", "format", "append", "wandb.log", "tuple", "dict", "item"})


def fractions_cut_off(program: Program) -> Iterator[Remark]:
    """A fraction is put into an array of whole numbers, which keeps what stands before the point."""
    computation = computation_of(program)
    for value in computation.of("set_item"):
        if len(value.args) != 3:
            continue
        home = value.args[0]
        while home.op == "set_item" and home.args:
            home = home.args[0]
        made = _whole(home)
        if made is None or not _is_place(value.args[1]) or not _is_fraction(value.args[2]) or (made == "torch" and isinstance(program.parent.get(value.node), ast.AugAssign)):
            continue
        yield Remark(value.node, f"{short(value.node)} puts the fraction {short(value.args[2].node)} into {short(home.node)} (line {home.line}), which holds whole numbers: all between 0 and 1 becomes 0")
        return


def _is_place(index: Value) -> bool:
    """Whether an index is one place, or one in each axis: a mask or a list of places would be refused."""
    if isinstance(index, Many):
        return bool(index.parts) and all(_is_place(one) for one in index.parts)
    return index.op in ("index", "count", "slice") or isinstance(constant(index), int) or (index.op == "add" and any(one.op in ("index", "count") for one in index.args))


def _is_fraction(value: Value) -> bool:
    while value.op in _PASSES and value.args:
        value = value.args[0]
    if value.op == "div":
        return len(value.args) == 2 and not _is_text(value)
    return value.op in _FRACTIONS and not isinstance(value, Many)


def _is_text(value: Value) -> bool:
    """Whether a quotient is a path: `folder / name`."""
    return any(isinstance(constant(one), str) or one.op.startswith("pathlib") for one in origins(value))


def _whole(value: Value) -> str | None:
    """Which library made an array of whole numbers; None where it is of other numbers or not known."""
    library = "numpy" if "np." in ast.unparse(value.node)[:40] or "numpy" in ast.unparse(value.node)[:40] else "torch"
    kind = value.named.get("dtype")
    if kind is not None:
        name = str(kind.data) if kind.op == "@library" else str(constant(kind))
        return library if value.op in ("zeros", "ones", "empty", "full", "zeros_like", "ones_like", "empty_like", "full_like") and name.rpartition(".")[2] in _WHOLE else None
    if value.op in ("long", "int") and value.args and value.args[0].op in ("zeros", "ones", "empty", "zeros_like"):
        return "torch"
    if value.op in ("zeros_like", "empty_like", "ones_like", "full_like") and len(value.args) <= 2 and value.args:
        of = value.args[0]
        while of.op in ("clone", "cpu", "detach", "to", "squeeze", "view", "reshape", "rows", "part") and of.args and len(of.args) <= 2 and "dtype" not in of.named and (of.op != "to" or len(of.args) == 1):
            of = of.args[0]
        return library if of.op in ("long", "int", "argmax", "argmin", "randint", "argsort", "randperm", "arange") and "dtype" not in of.named and (of.op != "arange" or all(isinstance(number(one), float) and float(number(one) or 0).is_integer() for one in of.args)) else None
    if value.op == "full" and len(value.args) == 2 and isinstance(constant(value.args[1]), int) and not isinstance(constant(value.args[1]), bool):
        return library
    return None


@FINDERS.add("average-by-wrong-count")
def _share_reported(program: Program) -> Iterator[Remark]:
    """The share of a loss that one of several backwards starts from is added up in each pass, and the sum is divided by the
    number of passes."""
    computation = computation_of(program)
    for back, loss in backwards(computation):
        parts = loss.args[1] if loss.op == "div" and len(loss.args) == 2 else None
        if parts is None or number(parts) in (0, 1) or not back.where.loops or not any(len(one.args) == 2 and (one.args[1] is parts or same(one.args[1], parts)) for one in computation.of("mod")):
            continue
        for mean in computation.of("div"):
            total, count = mean.args if len(mean.args) == 2 else (mean, mean)
            added = total.args[1] if total.op == "add" and len(total.args) == 2 and number(total.args[0]) == 0 else None
            while added is not None and added.op in ("item", "detach", "cpu", "float") and added.args:
                added = added.args[0]
            if added is loss and count.op == "len" and count.args and count.args[0].op.endswith("DataLoader") and back.where.loops[: len(mean.where.loops)] == mean.where.loops and not any(one.op in ("mul", "div") for one in computation.users(mean)):
                yield Remark(mean.node, f"{short(mean.node)} divides by all batches what was divided by {short(parts.node)} before (line {loss.line}): it is the mean loss divided by that number once more")
                return


def sum_of_ranks(program: Program) -> Iterator[Remark]:
    """A mean of one rank is summed over the ranks and shown, and nothing divides it by their number."""
    computation = computation_of(program)
    for call in computation.of("torch.distributed.all_reduce"):
        how = call.argument("op", 1)
        if not call.args or (how is not None and not (how.op == "@library" and str(how.data).endswith("SUM"))) or not _is_mean(call.args[0]):
            continue
        mean = call.args[0]
        shown = _shown(computation, mean, call.number)
        if shown is not None:
            yield Remark(call.node, f"{short(call.node)} adds up the means of all ranks, and {short(shown.node)} (line {shown.line}) shows the sum: it is as many times too large as there are ranks")
            return


def _is_mean(value: Value) -> bool:
    while value.op in ("tensor", "detach", "clone", "to", "cuda", "item", "as_tensor", "float") and value.args:
        value = value.args[0]
    if value.op == "div":
        return len(value.args) == 2 and (value.args[1].op == "len" or number(value.args[1]) is not None) and any(one.op in LOSSES for one in origins(value.args[0]))
    return value.op in LOSSES and reduction_of(value) == "mean"


def _shown(computation: Computation, value: Value, after: int) -> Value | None:
    """Where a value is shown as it is; None where anything is computed with it, or nothing shows it."""
    waiting, found = [value], None
    while waiting:
        for user in computation.users(waiting.pop()):
            if user.number <= after:
                continue
            if user.op in ("item", "float", "text", "tuple", "detach", "cpu", "round", "format"):
                waiting.append(user)
            elif user.op in ("print", "info", "add_scalar", "write"):
                found = found or user
            elif user.op in ("div", "mul", "sub", "add", "torch.distributed.all_reduce", "backward", "set_attribute", "set_item"):
                return None
    return found


@FINDERS.add("infinite-gradient")
def _behind_a_where(program: Program) -> Iterator[Remark]:
    """A root, logarithm or quotient that `where` leaves out where it is not finite: its gradient there is 0 times infinity."""
    computation = computation_of(program)
    whole = {id(one) for _, loss in backwards(computation) for one in origins(loss, ("detach", "item", "numpy"))}
    for value in computation.of("where"):
        if id(value) not in whole or len(value.args) != 3 or value.where.no_grad:
            continue
        test, taken = value.args[0], value.args[1]
        asked = test.args[0] if test.op in ("gt", "ne", "ge") and len(test.args) == 2 and abs(number(test.args[1]) or 0) <= 1e-3 and number(test.args[1]) is not None else None
        inner = root_of(taken) or (taken.args[0] if taken.op == "log" and taken.args else taken.args[1] if taken.op == "div" and len(taken.args) == 2 else None)
        if asked is None or inner is None or not (inner is asked or same(inner, asked)):
            continue
        roots = root_of(taken) is not None
        may_be_zero = inner.op in ("relu", "abs", "clamp", "square", "norm") or (inner.op == "clamp" and number(inner.argument("min", 1)) == 0) or (roots and inner.op in ("run", "sub", "pow"))
        bounded = inner.op == "clamp" and (number(inner.argument("min", 1)) or 0) > 0
        if may_be_zero and not bounded and trained(inner, set()):
            yield Remark(taken.node, f"{short(taken.node)} is left out by {short(value.node)} where {short(inner.node)} is 0, and its gradient is not: 0 times infinity gives NaN there")
            return
