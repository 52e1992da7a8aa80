"""Samples that a training takes class by class. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Instance, Many, Value, bare, constant, is_none, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses

FINDERS = Finders()
_FILLED = {"zeros": 0.0, "ones": 1.0, "zeros_like": 0.0, "ones_like": 1.0}


def classes_in_a_row(program: Program) -> Iterator[Remark]:
    """A training goes through its samples in their order, and they lie class by class."""
    computation = computation_of(program)
    for back, loss in losses(computation):
        if not back.where.loops:
            continue
        found = list(origins(loss))
        for loader in {id(one.named["loader"]): one.named["loader"] for one in found if one.op == "rows" and "loader" in one.named}.values():
            data = loader.argument("dataset", 0)
            size = number(loader.argument("batch_size", 1)) or 1
            listed = _listed(computation, program, data, size) if data is not None and _keeps_order(loader) else None
            if listed is not None:
                yield Remark(loader.node, f"{short(loader.node)} gives the samples in their order, and {short(listed.node)} (line {listed.line}) has them class by class: a batch holds one class alone")
                return
        for one in found:
            index = one.args[1] if one.op == "part" and len(one.args) == 2 else None
            first = index.args[0] if index is not None and index.op == "slice" else None
            if first is None or first.op != "index" or len(first.args) != 3 or first.where.loops[:1] != back.where.loops[:1]:
                continue
            listed = _in_blocks(computation, program, one.args[0], number(first.args[2]) or 0)
            if listed is not None:
                yield Remark(one.node, f"{short(one.node)} takes the samples in their order, and {short(listed.node)} (line {listed.line}) has them class by class: a batch holds one class alone")
                return


@FINDERS.add("option-of-other-loader")
def _folders_in_order(program: Program) -> Iterator[Remark]:
    """A training takes the pictures of folders in the order of the folders, each of which is a class."""
    for back, loss in losses(computation_of(program)):
        for loader in {id(one.named["loader"]): one.named["loader"] for one in origins(loss) if one.op == "rows" and "loader" in one.named}.values() if back.where.loops else ():
            data = loader.argument("dataset", 0)
            if data is not None and data.op.startswith("torchvision.") and data.op.endswith((".ImageFolder", ".DatasetFolder")) and _keeps_order(loader):
                yield Remark(loader.node, f"{short(loader.node)} gives what is learned in the order of the files, and {short(data.node)} (line {data.line}) has them class by class")
                return


def _keeps_order(loader: Value) -> bool:
    """Whether a loader gives its samples in the order of the data set."""
    shuffle = loader.argument("shuffle", 2)
    plain = is_none(shuffle) or constant(shuffle) is False
    return plain and not loader.named.keys() & {"sampler", "batch_sampler", "collate_fn", "**"} and len(loader.args) < 4


def _listed(computation: Computation, program: Program, data: Value, size: float) -> Value | None:
    """What lists the samples of a data set class by class."""
    if data.op == "torch.utils.data.ConcatDataset" and data.args and isinstance(data.args[0], Many) and not data.args[0].grown:
        classes = [{found for part in one.args for found in [_filled_with(part)] if found is not None} for one in data.args[0].parts if one.op == "torch.utils.data.TensorDataset"]
        each = [next(iter(one)) for one in classes if len(one) == 1]
        return data if len(each) == len(data.args[0].parts) > 1 and len(set(each)) == len(each) else None
    kept = data.args if data.op == "torch.utils.data.TensorDataset" else data.attributes.values() if isinstance(data, Instance) else ()
    return next((found for one in kept if (found := _in_blocks(computation, program, one, size)) is not None), None)


def _filled_with(value: Value) -> float | None:
    """The number that labels, of one axis, are filled with."""
    value = bare(value)
    size = value.args[0] if value.args else None
    if size is None or len(value.args) > (2 if value.op == "full" else 1) or (isinstance(size, Many) and len(size.parts) != 1):
        return None
    return number(value.args[1]) if value.op == "full" and len(value.args) == 2 else _FILLED.get(value.op)


def _in_blocks(computation: Computation, program: Program, labels: Value, size: float) -> Value | None:
    """What makes labels that come class by class, with more of each than a batch has."""
    value = bare(labels)
    if any(user.op in ("shuffle", "set_item") for one in (labels, value) for user in computation.users(one)):
        return None
    if value.op in ("repeat", "repeat_interleave") and len(value.args) == 2:
        numbers = bare(value.args[0])
        called = program.called(numbers.node) if isinstance(numbers.node, ast.Call) else ""
        each = number(value.args[1])
        apart = value.op == "repeat_interleave" or called == "numpy.arange"
        return value if numbers.op == "arange" and apart and each is not None and each >= 2 * size else None
    parts = value.args[0].parts if value.op in ("cat", "concatenate") and value.args and isinstance(value.args[0], Many) and not value.args[0].grown else []
    filled = [_filled_with(one) for one in parts]
    if len(filled) > 1 and None not in filled and len(set(filled)) == len(filled):
        return value if size < 1000 else None
    return None
