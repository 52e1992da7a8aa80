"""Labels that only some tasks have. Pure; standard library only."""

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
from probe.diagnose.code.finders.losses.bootstraps import errors
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import is_method, number_in, short, text_of
from probe.diagnose.code.traits.basic import LOSSES, losses, reduction_of

_ABSENT, _PRESENT = ("isnan", "isna", "isnull"), ("isfinite", "notna", "notnull")
_MASKING = ("part", "where", "masked_fill", "masked_select", "mul", "div", "index_select", "gather", "compress")


def missing_labels_counted(program: Program) -> Iterator[Remark]:
    """A number is put where labels are missing, and the loss counts it as a label like all others."""
    computation = computation_of(program)
    in_losses = {id(one): one for _, loss in losses(computation) for one in origins(loss)}
    told = {id(one.node) for one in in_losses.values()}
    for loss, target in _targets(computation):
        if id(loss) not in in_losses or _is_masked(computation, loss):
            continue
        filled = next((one for one in _data(target) if _source(one) is not None), None)
        if filled is not None and (value := _source(filled)) is not None and _may_be_missing(computation, filled, value, in_losses) and not _is_left_out(loss, filled):
            yield Remark(loss.node, f"{short(loss.node)} counts what {short(filled.node)} (line {filled.line}) puts where labels are missing as if they were labels")
            return
        unseen = _unseen(target)
        asked = next((one for one in computation.of("gt", "ne") if one.where.no_grad and number(one.args[1]) == 0 and (other := _unseen(one.args[0])) is not None and (other.node is unseen.node or other.args[1] is unseen.args[1]) and any(user.op == "part" and user.args[-1] is one for user in computation.users(one))), None) if unseen is not None else None
        if unseen is not None and asked is not None:
            yield Remark(loss.node, f"{short(loss.node)} counts the zeros that {short(unseen.node)} (line {unseen.line}) puts where nothing is known as if they were values, and {short(asked.node)} (line {asked.line}) leaves them out")
            return
        beside = next((found for one in _data(target) if one.op == "set_item" and (found := _marked_beside(program, one)) is not None), None)
        if beside is not None and not any(one.op == "set_item" and same(one.args[0], beside.args[0]) for one in in_losses.values()):
            yield Remark(loss.node, f"{short(loss.node)} counts all of {short(target.node)}, also what is not written there, and leaves {short(beside.node)} (line {beside.line}) aside, which says what is")
            return
        if any(one.op == "run" for one in origins(target, stop=("run",))):
            continue  # a backup, of which no part is a label
        call = next((one for one in _defaults(program, target) if not any(id(node) in told for node in _asks(program, one))), None)
        if call is not None and _asks(program, call):
            yield Remark(loss.node, f"{short(loss.node)} counts what {short(call)} (line {call.lineno}) gives where a label is missing as if it were one, and leaves {short(_asks(program, call)[0])} aside")
            return


def _unseen(target: Value) -> Value | None:
    """Where values are set to 0 that a condition does not choose, which is not about the values themselves."""
    for _ in range(16):
        target = bare(target)
        if target.op == "where" and len(target.args) == 3 and _is_number(target.args[2]) and (number(target.args[2]) or 0) == 0 and _source(target) is None:
            known = bare(target.args[1])
            counted = number(known) is None and known.op not in ("ones", "ones_like", "lt", "le", "gt", "ge", "eq", "ne", "and", "or", "bernoulli", "one_hot")
            return target if counted and not any(one is known for one in origins(target.args[0])) else None
        if isinstance(target, Many) and len(target.parts) == 1:
            target = target.parts[0]
        elif target.args and (target.op in ("rows", "element") or (target.op == "part" and len(target.args) == 2 and target.args[1].op in ("element", "index", "randperm", "randint", "permutation"))):
            target = target.args[0]
        else:
            return None
    return None


def _marked_beside(program: Program, written: Value) -> Value | None:
    """Where a program writes down, in the branch in which it writes a label, that the label is there: `present[i, k] = True`
    beside `labels[i, k] = value`."""
    branch = _branch(program, written.node)
    for one in computation_of(program).of("set_item") if branch is not None else ():
        if _branch(program, one.node) is branch and len(one.args) > 2 and constant(one.args[2]) in (True, 1, 1.0) and one.args[0] is not written.args[0] and same(one.args[1], written.args[1]):
            return one
    return None


def _branch(program: Program, node: ast.AST) -> ast.If | None:
    """The branch that a statement stands in."""
    around = program.parent.get(program.statement(node))
    return around if isinstance(around, ast.If) else None


def _targets(computation: Computation) -> Iterator[tuple[Value, Value]]:
    """Each comparison of a prediction with a target, and its target."""
    for value in computation.of(*LOSSES):
        if len(value.args) > 1 and not value.named.keys() & {"weight", "mask"} and len(value.args) == 2:
            yield value, value.args[1]
    yield from ((value, target) for value, prediction, target in errors(computation) if value.op == "sub" and any(one.op == "run" for one in origins(prediction, stop=("run",))))


def _is_masked(computation: Computation, loss: Value) -> bool:
    """Whether some elements of a loss are left out, or weigh less, before it is averaged over samples."""
    if loss.op in LOSSES and reduction_of(loss) in ("mean", "sum"):
        return False
    waiting, seen = [loss], {id(loss)}
    while waiting:
        at = waiting.pop()
        for user in computation.users(at):
            others = [one for one in user.args if one is not at and number(one) is None]
            if user.op in _MASKING and others and not (user.op == "mul" and all(one is at for one in user.args)):
                return True
            over = user.argument("dim", 1)
            ends = user.op in ("mean", "sum", "backward", "item") and (over is None or number(over) == 0)
            if not ends and id(user) not in seen:
                seen.add(id(user))
                waiting.append(user)
    return False


def _data(target: Value) -> Iterator[Value]:
    """A target, and what it was before a data set gave it, row by row."""
    for _ in range(16):
        yield target
        takes = target.op == "part" and len(target.args) == 2 and (target.args[1].op == "index" or _is_column(target.args[1]))
        if not target.args or target.op in ("either", "stack", "set_item") or not (takes or target.op in KEPT or target.op in SHAPED or target.op == "rows"):
            return
        target = target.args[0]


def _is_column(index: Value) -> bool:
    """Whether an index takes one column of all rows."""
    if not isinstance(index, Many) or len(index.parts) != 2:
        return False
    rows, column = index.parts
    return rows.op == "slice" and all(one.op == "@constant" and constant(one) is None for one in rows.args) and column.op in ("@constant", "index")


def _source(value: Value) -> Value | None:
    """x of a value that is x, and a number where x is missing."""
    if value.op == "nan_to_num" and value.args:
        return value.args[0]
    if value.op in ("masked_fill", "set_item") and len(value.args) == 3 and _is_number(value.args[2]) and _absent(value.args[1], value.args[0]):
        return value.args[0]
    if value.op == "where" and len(value.args) == 3:
        test, first, second = value.args
        if _is_number(first) and _absent(test, second):
            return second
        return first if _is_number(second) and _present(test, first) else None
    return None


def _is_number(value: Value) -> bool:
    return number(value) is not None or bare(value).op in ("zeros_like", "zeros")


def _absent(test: Value, of: Value) -> bool:
    """Whether a condition is that a value is missing."""
    test = bare(test)
    inverted = test.op in ("invert", "not") and bool(test.args)
    return (test.op in _ABSENT and bool(test.args) and same(bare(test.args[0]), bare(of))) or (inverted and _present(test.args[0], of))


def _present(test: Value, of: Value) -> bool:
    test = bare(test)
    inverted = test.op in ("invert", "not") and bool(test.args)
    return (test.op in _PRESENT and bool(test.args) and same(bare(test.args[0]), bare(of))) or (inverted and _absent(test.args[0], of))


def _may_be_missing(computation: Computation, filled: Value, source: Value, in_losses: dict[int, Value]) -> bool:
    """Whether the program says that labels are missing: it sets them so, or asks elsewhere which ones are, and in no loss."""
    made = any(one.op == "set_item" and _is_missing(one.args[2]) for one in origins(source) if len(one.args) == 3)
    asked = [one for one in computation.of(*_ABSENT, *_PRESENT) if not any(one is part for part in origins(filled))]
    return (made or any(_asked_for_rows(computation, one) for one in asked)) and not any(id(one) in in_losses for one in asked)


def _asked_for_rows(computation: Computation, value: Value) -> bool:
    """Whether what is there is chosen by a condition: it is an index, or a factor."""
    waiting, seen = [value], {id(value)}
    while waiting and len(seen) < 200:
        at = waiting.pop()
        for user in computation.users(at):
            if user.op in ("mul", "masked_select", "sum", "and") or (user.op == "part" and user.args[0] is not at and user.args[0].op not in ("dict", "list")):
                return True
            if id(user) not in seen and (user.op in ("invert", "part", "rows", "tuple", "element") or user.op in KEPT or user.op in SHAPED):
                seen.add(id(user))
                waiting.append(user)
    return False


def _is_missing(value: Value) -> bool:
    if value.op == "@library":
        return str(value.data).endswith((".nan", ".NaN"))
    return value.op == "float" and bool(value.args) and str(constant(value.args[0])).lower() == "nan"


def _is_left_out(loss: Value, filled: Value) -> bool:
    """Whether a loss ignores the number that is put where labels are missing."""
    put = filled.named.get("nan") or (filled.args[1] if filled.op == "nan_to_num" and len(filled.args) > 1 else next((one for one in filled.args if number(one) is not None), None))
    ignored = loss.named.get("ignore_index")
    left_out = number(ignored) if ignored is not None else -100.0
    return loss.op in ("cross_entropy", "nll_loss") and left_out is not None and (number(put) if put is not None else 0.0) == left_out


def _defaults(program: Program, target: Value) -> Iterator[ast.Call]:
    """The calls `labels.get(name, 0.0)` whose number a target may hold."""
    for one in origins(target, stop=("run",)):
        call = one.node if isinstance(one.node, ast.Call) else program.parent.get(one.node)
        if not isinstance(call, ast.Call) or not is_method(call, "get") or len(call.args) != 2 or one.node not in (call, call.args[1]):
            continue
        default = call.args[1]
        if number_in(default.operand if isinstance(default, ast.UnaryOp) else default) is not None:
            yield call


def _asks(program: Program, call: ast.Call) -> list[ast.Compare]:
    """The places where a program asks whether a label that `call` gets is there."""
    assert isinstance(call.func, ast.Attribute)
    of, key, scope = text_of(call.func.value), text_of(call.args[0]), program.scope(call)
    return [
        one for one in ast.walk(scope)
        if isinstance(one, ast.Compare) and isinstance(one.ops[0], (ast.In, ast.NotIn)) and text_of(one.comparators[0]) == of and text_of(one.left) == key
    ]
