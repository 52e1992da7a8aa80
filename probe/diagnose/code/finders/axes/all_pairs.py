"""Scores that compare each prediction with the label of every sample. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, bare, constant, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import LOSSES
from probe.diagnose.code.traits.columns import is_column, is_single
from probe.diagnose.code.traits.extents import last, rank

FINDERS = Finders()
_EACH = frozenset({"sigmoid", "round", "gt", "ge", "lt", "le", "abs", "bool", "float", "double", "int", "long", "to", "detach", "cpu", "numpy", "type", "astype", "clone", "identity", "data", "tanh"})
"""Operations that keep the shape of what they are done on."""
_COUNTED = ("float", "double", "sum", "mean", "to", "int", "long", "item", "cpu", "numpy", "astype")


@FINDERS.add("hits-of-all-pairs")
def _column_of_hits(program: Program) -> Iterator[Remark]:
    """The column that a layer of one output gives is compared with the labels of the batch, which have no column: in the loss, one
    of the two was brought to the shape of the other."""
    computation = computation_of(program)
    flat = {id(_root(loss.args[1])): loss for loss in computation.of(*LOSSES) if len(loss.args) > 1 and _meets(loss)}
    for value in computation.of("eq", "ne"):
        for given, labels in (value.args, value.args[::-1]) if len(value.args) == 2 else ():
            column, row = _before(given), _before(labels)
            if column.op != "run" or column.args[0].op != "torch.nn.Linear" or not is_column(column) or is_single(row) or number(labels) is not None:
                continue
            loss = flat.get(id(_root(row)))
            known = rank(row) == 1 and rank(column) == 2 and any(one.op == "rows" for one in origins(row))
            if not _is_of_rows(row) or is_column(row) or (loss is None and not known) or not _is_counted(computation, value):
                continue
            beside = f": the loss in line {loss.line} first brings both to one shape" if loss is not None else ""
            yield Remark(value.node, f"{short(value.node)} compares the column {short(column.node)} (line {column.line}) with a row of labels, each of one with each of the other{beside}")
            return


@FINDERS.add("hits-of-all-pairs")
def _best_few_beside_labels(program: Program) -> Iterator[Remark]:
    """The numbers of the best few classes of each sample are compared with the row of labels, which stands along the few."""
    computation = computation_of(program)
    for value in computation.of("eq"):
        for given, labels in (value.args, value.args[::-1]) if len(value.args) == 2 else ():
            best = given.args[0] if given.op == "part" and len(given.args) == 2 and constant(given.args[1]) == 1 else given
            row = _before(labels)
            along = number(best.argument("dim", 2)) if best.op == "topk" else None
            if best is given or best.op != "topk" or along not in (1, -1) or not best.args or best.args[0].op != "run" or rank(best.args[0]) != 2:
                continue
            if rank(row) == 1 and _is_of_rows(row) and _is_counted(computation, value):
                yield Remark(value.node, f"{short(value.node)} lays the labels along the best classes of one sample ({short(best.node)}, line {best.line}): each is compared with the label of another sample")
                return


def _meets(loss: Value) -> bool:
    """Whether a loss takes a column that was made a row, or a row of labels that was made a column."""
    output, target = (bare(one, shapes=False) for one in loss.args[:2])
    squeezed = output.op == "squeeze" or (output.op in ("view", "reshape", "flatten") and (len(output.args) == 1 or number(output.args[-1]) == -1)) or (output.op == "part" and output.args[0].op == "run")
    raised = target.op == "unsqueeze" or (target.op in ("view", "reshape") and len(target.args) == 3 and number(target.args[2]) == 1)
    inner = output.args[0] if squeezed and output.args else output
    return inner.op == "run" and inner.args[0].op == "torch.nn.Linear" and last(inner) == 1 and squeezed is not raised and (raised or not _is_reshaped(target))


def _is_reshaped(target: Value) -> bool:
    return bare(target) is not bare(target, shapes=False)


def _before(value: Value) -> Value:
    """What a value was before operations that keep its shape."""
    while value.args and value.op in _EACH:
        value = value.args[0]
    return value


def _root(value: Value) -> Value:
    """What the labels of a batch are taken of, whichever loader gives the batch."""
    value = bare(value)
    for _ in range(6):
        if value.op not in ("rows", "part", "element") or not value.args or (value.op == "part" and constant(value.args[1]) is not None):
            break
        value = bare(value.args[0])
    return value


def _is_of_rows(row: Value) -> bool:
    """Whether a value is the labels of a batch as they are."""
    return row.op in ("rows", "element") or (row.op == "part" and len(row.args) == 2)


def _is_counted(computation: Computation, value: Value) -> bool:
    """Whether what is right is counted over all places."""
    waiting, seen = [value], 0
    while waiting and seen < 12:
        for user in computation.users(waiting.pop()):
            seen += 1
            if user.op in ("sum", "mean") and "dim" not in user.named and len(user.args) == 1:
                return True
            if user.op in _COUNTED or (user.op == "part" and user.args[0].op == "eq"):
                waiting.append(user)
    return False
