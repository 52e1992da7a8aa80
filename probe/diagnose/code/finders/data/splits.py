"""Training and held-out parts, their loaders, and the order of what belongs together. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    Instance,
    Many,
    Value,
    bare,
    constant,
    is_none,
    number,
    origins,
    same,
    takes_all,
)
from probe.diagnose.code.data.data_flow import KEYS
from probe.diagnose.code.finders.rows.cut_in_two import cuts
from probe.diagnose.code.finders.rows.sampler_weights import is_by_class, lists_in
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import is_call, short
from probe.diagnose.code.traits.basic import LOSSES, losses, without_small
from probe.diagnose.code.traits.extents import is_frame
from probe.diagnose.code.traits.pictures import applied
from probe.diagnose.code.traits.sides import is_simulated_beside
from probe.diagnose.code.traits.uses import made_from

FINDERS = Finders()
_SPLITS = ("sklearn.model_selection.train_test_split", "torch.utils.data.random_split")
_FITTED = ("StandardScaler", "MinMaxScaler", "RobustScaler", "PCA", "TruncatedSVD", "QuantileTransformer", "PowerTransformer", "SelectKBest")
_PIPES = ("make_pipeline", "Pipeline")
_MADE = frozenset({"tuple", "list", "set_attribute", "len", "print", "text", "shape"})
_ORDERS = ("randperm", "permutation", "argsort")


def _is_forward(value: Value) -> bool:
    return any(getattr(one, "name", "") == "forward" for one in value.where.functions)


# Statistics and copies before the split --------------------------------------------------


@FINDERS.add("scaled-before-the-split")
def _scaled_before(program: Program) -> Iterator[Remark]:
    """All rows are scaled by the statistics of all, and held-out rows are cut from them after it."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for cut, wholes, _ in cuts(computation):
        for one in (each for whole in wholes for each in rows_of(whole)):
            if (_is_fitted(one) or is_scaled_by_itself(one) or is_filled_by_itself(one)) and one.node not in said and not one.where.loops and not _is_forward(cut) and not is_cut(_filled(one)) and (one.where.functions == cut.where.functions or not is_simulated_beside(one)):
                said.add(one.node)
                yield Remark(one.node, f"{short(one.node)} takes the statistics of all rows, and line {cut.line} cuts held-out rows from them")


def rows_of(value: Value) -> Iterator[Value]:
    """A whole that is cut, and what it was before, as far as its rows are the same."""
    waiting = [value]
    for _ in range(40):
        if not waiting:
            return
        value = waiting.pop()
        yield value
        inner = bare(value)
        if isinstance(inner, Instance):
            waiting += [one for one in inner.attributes.values() if one.op in KEPT or one.op == "part" or is_scaled_by_itself(one)]
        elif inner.op in ("torch.utils.data.TensorDataset", "cat"):
            waiting += [one for each in inner.args for one in (each.parts if isinstance(each, Many) else [each])]
        elif inner is not value:
            waiting.append(inner)
        elif value.op == "unique" or (value.op == "part" and len(value.args) == 2 and bare(value.args[1]).op in ("randperm", "permutation")):
            waiting.append(value.args[0])
        elif value.op in ("sub", "div") and len(value.args) == 2 and (by := without_small(value.args[1])).op in ("mean", "std", "min", "max", "median") and bare(by.args[0]).op == "part":
            waiting.append(value.args[0])  # scaled by what a part says
        elif value.op in ("unfold", "sliding_window_view", "part", "clamp", "add", "mul", "nan_to_num", "fillna") and value.args and (value.op != "part" or value.args[0].op in ("fit_resample", "part") or _is_window(value) or _is_of_all_rows(value)):
            waiting.append(value.args[0])


def _is_of_all_rows(value: Value) -> bool:
    """Whether a value is some columns of all rows: `table[:, 0]`."""
    index = value.args[1] if len(value.args) == 2 else value
    return isinstance(index, Many) and len(index.parts) == 2 and takes_all(index.parts[0])


def _is_window(value: Value) -> bool:
    """Whether a value is one of many windows of a series, each of which begins at the number of a turn, or a column of them."""
    index = value.args[1] if len(value.args) == 2 else value
    if isinstance(index, Many) and value.args[0].op in ("unfold", "sliding_window_view"):
        return takes_all(index.parts[0])
    index = index.parts[0] if isinstance(index, Many) and index.parts else index
    return index.op == "slice" and any(part.op == "index" for one in index.args[:2] for part in (one, *one.args))


def _filled(value: Value) -> Value:
    """The rows that are scaled, before missing values were filled in: what is filled in may be of the training part alone."""
    rows = bare(bare(value.args[0]).args[0]) if is_scaled_by_itself(value) else value
    return rows.args[2] if rows.op == "where" and len(rows.args) > 2 and bare(rows.args[0]).op == "isnan" else value


def _is_fitted(value: Value) -> bool:
    """Whether a value is what a pipeline with a scaler gives of the rows it is fitted on."""
    if value.op != "fit_transform" or not value.args:
        return False
    made = value.args[0]
    return made.op.rpartition(".")[2] in _PIPES and any(one.op.startswith("sklearn.") and one.op.rpartition(".")[2] in _FITTED for one in origins(made))


def is_scaled_by_itself(value: Value) -> bool:
    """Whether a value is centred and scaled by statistics over its own rows."""
    if value.op != "div" or len(value.args) != 2:
        return False
    centred, by = bare(value.args[0]), without_small(value.args[1])
    if centred.op != "sub" or len(centred.args) != 2:
        return False
    rows = centred.args[0]
    spread = by.op == "sub" and all(_is_statistic(one, rows) for one in by.args)
    return _is_statistic(centred.args[1], rows) and (spread or _is_statistic(by, rows))


def is_filled_by_itself(value: Value) -> bool:
    """Whether missing values were filled in by a statistic of all rows of the same table."""
    if value.op == "set_item" and len(value.args) == 3:
        whole, given = bare(value.args[0]), value.args[2]
    elif value.op == "where" and len(value.args) == 3:
        whole, given = bare(value.args[2]), value.args[1]
        if bare(value.args[0]).op != "isnan":
            return False
    else:
        return False
    given = bare(given)
    statistic = bare(given.args[0]) if given.op in ("part", "take") and given.args else given
    over = statistic.argument("dim", 1)
    named = isinstance(statistic.node, ast.Call) and "nan" in ast.unparse(statistic.node.func)
    return named and bool(statistic.args) and bare(statistic.args[0]) is whole and (over is None or number(over) == 0)


def _is_statistic(value: Value, of: Value) -> bool:
    value = without_small(value)
    if value.op == "part" and value.args[0].op in ("max", "min"):
        value = value.args[0]
    over = value.argument("dim", 1)
    return value.op in ("mean", "std", "min", "max", "median", "var") and bool(value.args) and same(bare(value.args[0]), bare(of)) and (over is None or number(over) == 0)


def is_cut(value: Value) -> bool:
    """Whether a value is made of a part of a whole already."""
    return any(one.op in _SPLITS or (one.op == "part" and len(one.args) > 1 and one.args[1].op == "slice") for one in origins(value))


@FINDERS.add("target-in-a-feature")
def _target_in_feature(program: Program) -> Iterator[Remark]:
    """A column is a mean of the target over all rows, and held-out rows are cut from them after it."""
    computation = computation_of(program)
    found = list(cuts(computation))
    said: set[ast.AST] = set()
    for column in computation.of("set_item"):
        frame, given = column.args[0], column.args[2]
        grouped = [one for one in origins(given) if one.op == "part" and one.args[0].op == "groupby" and isinstance(constant(one.args[1]), str)]
        if not grouped or column.node in said or any(one.op in ("shift", "expanding", "rolling", "cumsum", "cumcount") for one in origins(given)) or is_cut(frame):
            continue
        target = constant(grouped[0].args[1])
        later = [cut for cut, wholes, _ in found if any(one is frame or one is column for whole in wholes for one in origins(whole)) and cut.number > column.number]
        aimed = any(one.op == "part" and constant(one.args[1]) == target and is_cut(one.args[0]) for one in computation.of("part"))
        statistic = any(one.op in ("mean", "median", "transform", "agg", "sum") for one in origins(given))
        if later and aimed and statistic:
            said.add(column.node)
            yield Remark(column.node, f"{short(column.node)} is a mean of {target!r}, the target, over all rows (line {grouped[0].line}), and line {later[0].line} cuts held-out rows from them")


@FINDERS.add("missing-as-number")
def _as_number(program: Program) -> Iterator[Remark]:
    """A far number stands where a value is missing, and nothing says that it does."""
    computation = computation_of(program)
    learned = {id(one) for _, loss in losses(computation) for one in origins(loss, KEYS)}
    said: set[ast.AST] = set()
    for value in computation.of("where", "masked_fill", "nan_to_num"):
        if not value.args or id(value) not in learned or value.node in said:
            continue
        asked = next((one for one in value.args[:2] if bare(one).op == "isnan"), None)
        filled = value.argument("nan", 1) if value.op == "nan_to_num" else value.args[1 if value.op == "where" else 2] if len(value.args) > 2 else None
        filled = filled.args[0] if filled is not None and filled.op in ("float32", "tensor", "float") and filled.args else filled
        far = number(filled)
        told = asked is not None and any(one is not value and id(one) in learned for one in computation.users(bare(asked)))
        if far is not None and abs(far) >= 99 and (asked is not None or value.op == "nan_to_num") and not told:
            said.add(value.node)
            yield Remark(value.node, f"{short(value.node)} puts {far:g} where a value is missing, and nothing takes it out again: to the network it is a number like the others")


# Loaders ----------------------------------------------------------------------------------


def _loaders(values: Iterator[Value]) -> dict[int, Value]:
    found = (one.named["loader"] for value in values for one in origins(value) if one.op == "rows" and "loader" in one.named)
    return {id(one): one for one in found}


def _trained_and_judged(computation: Computation) -> tuple[list[Value], list[Value]]:
    """The loaders whose batches are learned, and those that are only looked at."""
    trained = _loaders(loss for _, loss in losses(computation))
    asked = (value for value in computation.of("eq", "argmax", "abs", "pow", "square", *LOSSES) if value.where.no_grad)
    judged = {key: one for key, one in _loaders(asked).items() if key not in trained}
    for name in ("val_dataloader", "test_dataloader"):
        judged |= {id(one): one for one in computation.returned.get(name, ()) if one.op == "torch.utils.data.DataLoader"}
    return list(trained.values()), list(judged.values())


def _chooses(loader: Value) -> bool:
    """Whether a loader takes its rows in another order than that of the data."""
    given = [loader.argument(name, place) for name, place in (("shuffle", 2), ("sampler", 3), ("batch_sampler", 4))]
    return any(one is not None and not (one.op == "@constant" and not one.data) for one in given)


@FINDERS.add("held-out-part-resampled")
def _resampled(program: Program) -> Iterator[Remark]:
    """Held-out samples are drawn by weights."""
    trained, judged = _trained_and_judged(computation_of(program))
    for loader in judged:
        sampler = loader.argument("sampler", 3)
        if sampler is not None and sampler.op.endswith(".WeightedRandomSampler") and (trained or any(getattr(one, "name", "") == "val_dataloader" for one in loader.where.functions)):
            yield Remark(loader.node, f"{short(loader.node)} draws held-out samples by {short(sampler.node)} (line {sampler.line}): some are counted often, and others never")


@FINDERS.add("option-of-other-loader")
def _other_options(program: Program) -> Iterator[Remark]:
    """The loader that is judged on shuffles or drops rows, and the one that is learned from does not."""
    trained, judged = _trained_and_judged(computation_of(program))
    if not trained or not judged or any(one.argument("dataset", 0) is None or "batch_sampler" in one.named for one in (*trained, *judged)):
        return
    mixed = next((one for one in judged if constant(one.argument("shuffle", 2)) is True), None)
    if mixed is not None and not any(_chooses(one) for one in trained):
        yield Remark(trained[0].node, f"{short(trained[0].node)}, which is trained on, does not shuffle, and {short(mixed.node)} (line {mixed.line}), which is evaluated on, does")
    shorter = next((one for one in judged if constant(one.named.get("drop_last")) is True), None)
    if shorter is not None and not any("drop_last" in one.named and constant(one.named["drop_last"]) is not False for one in trained):
        yield Remark(shorter.node, f"{short(shorter.node)}, which is evaluated on, drops its last batch, and the loader that is trained on does not: a part of the held-out data is never judged")
    whole = next((one for one in judged if constant(one.named.get("drop_last")) is False), None)
    if shorter is not None and whole is not None and not _chooses(shorter):
        yield Remark(shorter.node, f"{short(shorter.node)} drops the last batch of one held-out part, and keeps that of another: a part of the held-out data is never judged")


@FINDERS.add("iterator-made-anew")
def _made_anew(program: Program) -> Iterator[Remark]:
    """Each step takes the first batch of a loader that does not shuffle."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for _, loss in losses(computation):
        for one in origins(loss):
            loader = _first_of(one)
            if loader is None or one.node in said or one.where.loops != loss.where.loops or one.where.under:
                continue
            if not _chooses(loader):
                said.add(one.node)
                yield Remark(one.node, f"{short(one.node)} starts the loader (line {loader.line}) anew in each step, and it does not shuffle: every step gets the same first batch")


def _first_of(value: Value) -> Value | None:
    """The loader whose first batch `next(iter(loader))` gives in a loop."""
    node, loader = value.node, value.named.get("loader")
    if value.op != "rows" or loader is None or loader.op != "torch.utils.data.DataLoader" or not value.where.loops:
        return None
    inner = node.args[0] if isinstance(node, ast.Call) and is_call(node, "next") and node.args else None
    return loader if is_call(inner, "iter") else None


@FINDERS.add("stride-of-batches")
def _stride(program: Program) -> Iterator[Remark]:
    """The number of a batch is taken for the number of its first row."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for value in computation.of("part"):
        index = value.args[1] if len(value.args) == 2 else None
        if index is None or index.op != "slice" or value.node in said:
            continue
        first, end = index.args[0], index.args[1]
        if end.op != "add" or len(end.args) != 2 or not any(one is first for one in end.args):
            continue
        size = end.args[1] if end.args[0] is first else end.args[0]
        if _counts_batches(computation, first, size):
            said.add(value.node)
            yield Remark(value.node, f"{short(value.node)} starts at the number of the batch: neighbours share all rows but one, and most of the data is never seen")


def _counts_batches(computation: Computation, first: Value, size: Value) -> bool:
    """Whether a number counts as many batches of a size as there are."""
    bounds: tuple[Value, ...] = first.args if first.op == "index" and first.data != "enumerate" else ()
    if first.op == "count" and first.where.loops:
        found = [over for _, node, over in computation.passes if node is first.where.loops[-1] and over.op == "range"]
        target = getattr(first.node, "id", None)
        added = [one.value for one in ast.walk(first.where.loops[-1]) if isinstance(one, ast.AugAssign) and getattr(one.target, "id", None) == target]
        by_one = all(isinstance(one, ast.Constant) and one.value == 1 for one in added) and bool(added)
        bounds = found[0].args if found and by_one else ()
    if not bounds or len(bounds) > 2 or (len(bounds) == 2 and number(bounds[0]) != 0):
        return False
    most = bare(bounds[-1])
    if most.op in ("ceil", "int") and most.args:
        most = bare(most.args[0])
    return most.op in ("floordiv", "div") and len(most.args) == 2 and same(most.args[1], size)


@FINDERS.add("held-out-part-never-read")
def _never_read(program: Program) -> Iterator[Remark]:
    """A held-out part is cut off and never read, and two loaders go over the other part."""
    computation = computation_of(program)
    loaders = list(computation.of("torch.utils.data.DataLoader"))
    for cut, _, pieces in cuts(computation):
        unread = [one for one in pieces if not any(_is_read(computation, each) for each in pieces if each is one or same(each, one))]
        if not unread or len(unread) == len(pieces):
            continue
        kept = [one for one in pieces if not any(one is each for each in unread)]
        over = [one for one in loaders if any(each is piece for each in origins(one) for piece in kept)] or _given_instances(loaders, kept)
        plain = [one for one in over if not _chooses(one)]
        mixed = [one for one in over if constant(one.argument("shuffle", 2)) is True]
        if plain and mixed and not any(each is piece or (each.op == piece.op and same(each, piece)) for one in loaders for each in origins(one) for piece in unread):
            yield Remark(plain[0].node, f"{short(plain[0].node)} goes over the same part as {short(mixed[0].node)}, and {short(unread[0].node)} (line {cut.line}) is never read: the evaluation goes over the training part")


def _given_instances(loaders: list[Value], kept: list[Value]) -> list[Value]:
    held = [(one, getattr(one.argument("dataset", 0), "attributes", {})) for one in loaders]
    return [one for one, given in held if any(each is piece for value in given.values() for each in origins(value) for piece in kept)]


def _is_read(computation: Computation, value: Value) -> bool:
    """Whether anything is computed from a value but its length."""
    for one in computation.users(value):
        if one.op not in _MADE or (one.op in ("tuple", "list") and computation.users(one)):
            return True
    return False


# Order -------------------------------------------------------------------------------------


@FINDERS.add("sorted-apart")
def _sorted_apart(program: Program) -> Iterator[Remark]:
    """Inputs are taken in a new order, and their targets in the old one."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for loss in computation.of(*LOSSES):
        if len(loss.args) < 2 or loss.node in said:
            continue
        inputs, targets = list(origins(loss.args[0])), list(origins(loss.args[1]))
        if not any(one.op == "run" and applied(one) is None for one in inputs):
            continue
        known = {id(one) for one in targets}
        for one in inputs:
            order = _order_of(one)
            if order is None or id(order) in known:
                continue
            cut = next((each for each in inputs if each.op == "part" and each.args[0] is one and each.args[1].op in ("slice", "index")), None)
            beside = cut is not None and any(each.op == "part" and (each.args[1] is cut.args[1] or _same_slice(each.args[1], cut.args[1])) for each in targets)
            packed = any(each.op.endswith("pack_padded_sequence") for each in inputs) and order.op == "part"
            if (beside or packed) and not _is_undone(inputs, order, one):
                said.add(loss.node)
                yield Remark(one.node, f"{short(one.node)} takes the inputs in the order of {short(order.node)}, and {short(loss.args[1].node)} (line {loss.line}), their targets, stays in the old one")
                break


def _same_slice(one: Value, other: Value) -> bool:
    return one.op == other.op == "slice" and all(a is b or same(a, b) for a, b in zip(one.args, other.args, strict=False))


def _order_of(value: Value) -> Value | None:
    """The new order in which a value takes rows: a permutation, or what a sort gives."""
    if value.op == "part" and len(value.args) == 2:
        index = bare(value.args[1])
    elif value.op == "index_select" and len(value.args) == 3 and number(value.args[1]) == 0:
        index = bare(value.args[2])
    else:
        return None
    sorts = index.args[0] if index.op == "part" and index.args else index
    if sorts.op in ("sort", "argsort") and sorts.args and bare(sorts.args[0], "part").op in ("sort", "argsort"):
        return None  # the order of an order leads back
    if index.op in _ORDERS:
        return index
    return index if index.op == "part" and index.args[0].op == "sort" and constant(index.args[1]) == 1 and constant(index.args[0].named.get("dim")) is None else None


def _is_undone(inputs: list[Value], order: Value, first: Value) -> bool:
    """Whether the old order is made again: by another index that is made of the new one."""
    for one in inputs:
        index = one.args[1] if one.op == "part" and len(one.args) == 2 else one.args[2] if one.op in ("index_select", "gather") and len(one.args) == 3 else None
        if index is not None and one is not first and bare(index) is not order and any(each is order for each in origins(index)):
            return True
    return any(one.op in ("set_item", "scatter") and any(each is order for part in one.args[1:2] for each in origins(part)) for one in inputs)


@FINDERS.add("weights-of-classes")
def _of_classes(program: Program) -> Iterator[Remark]:
    """A sampler is given one weight for each class where it takes one for each sample."""
    for sampler in computation_of(program).values:
        if not sampler.op.endswith(".WeightedRandomSampler"):
            continue
        given = sampler.argument("weights", 0)
        weights = None if given is None else bare(given)
        while weights is not None and weights.op in ("div", "reciprocal", "pow", "mul", "sqrt") and weights.args:
            weights = bare(weights.args[-1] if weights.op in ("div", "mul") and number(weights.args[-1]) is None and weights.args[-1].op != "sum" else weights.args[0])
        if weights is not None and (weights.op in ("bincount", "sklearn.utils.class_weight.compute_class_weight") or any(map(is_by_class, lists_in(given)))):
            yield Remark(sampler.node, f"{short(given.node) if given is not None else ''} has one weight for each class (line {weights.line}), and the sampler takes one for each sample: it draws the first few samples only")


@FINDERS.add("target-among-inputs")
def _among_inputs(program: Program) -> Iterator[Remark]:
    """All columns of a table are inputs, and one of them is the target."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for loss in computation.of(*LOSSES):
        if len(loss.args) < 2:
            continue
        inputs, targets = list(origins(loss.args[0])), list(origins(loss.args[1]))
        aims = [one for one in targets if one.op == "part" and is_frame(one.args[0]) and isinstance(constant(one.args[1]), str)]
        for aim in aims:
            frame = aim.args[0]
            whole = next((one for one in inputs if one.op in ("to_numpy", "values", "select_dtypes") and one.args[0] is frame), None)
            taken = any(one.op in ("pop", "drop", "set_item") for one in computation.users(frame))
            if whole is not None and not taken and whole.node not in said and not any(one.op in ("drop", "pop", "delete") for one in inputs):
                said.add(whole.node)
                yield Remark(whole.node, f"{short(whole.node)} holds all columns, and {constant(aim.args[1])!r}, the target (line {aim.line}), is among them")


@FINDERS.add("filtered-alone")
def _filtered_alone(program: Program) -> Iterator[Remark]:
    """Rows are left out of the inputs, and the targets of the same table keep all of theirs."""
    computation = computation_of(program)
    for data in computation.of("torch.utils.data.TensorDataset"):
        for one in data.args[:1]:
            inner = list(origins(one))
            left = next((each for each in inner if each.op == "dropna"), None)
            if left is None:
                continue
            frames = {id(each) for each in origins(left) if is_frame(each)}
            for other in data.args[1:]:
                beside = list(_before(other))
                shared = [each for each in beside if each.op == "part" and id(each.args[0]) in frames and isinstance(constant(each.args[1]), str)]
                if shared and not any(each is left or each.op in ("dropna", "loc", "isna", "notna", "reindex", "align") for each in beside):
                    yield Remark(left.node, f"{short(left.node)} leaves out rows, and {short(shared[0].node)} (line {shared[0].line}), which belongs to them, keeps all of its own")


def _before(value: Value) -> Iterator[Value]:
    """A value and what it was before, along what each operation is done on."""
    for _ in range(60):
        yield value
        if not value.args:
            return
        value = value.args[0]


@FINDERS.add("padding-never-set")
def _never_set(program: Program) -> Iterator[Remark]:
    """A part of a block of memory is filled, of another length for each sample, and the rest is never set."""
    computation = computation_of(program)
    for block in computation.of("empty", "new_empty"):
        made = list(made_from(computation, block, frozenset({"part", "element", "zip", "tuple", "set_item"})))
        if any("out" in one.named for one in made) or any(one.op == "set_attribute" for one in computation.users(block)):
            continue
        pieces = [one for one in made if one.op in ("set_item", "copy", "fill", "zero", "normal", "uniform", "masked_fill")]
        written = [one for one in pieces if one.op == "set_item" or (isinstance(one.node, ast.Call) and ast.unparse(one.node.func).endswith("_"))]
        if len({one.node for one in written}) != 1:
            continue
        only = written[0]
        index = only.args[1] if only.op == "set_item" else only.args[0].args[1] if only.op == "copy" and only.args[0].op == "part" else None
        if index is not None and _is_partly(index):
            yield Remark(block.node, f"{short(only.node)} (line {only.line}) fills a part of {short(block.node)}: the rest, the padding, is whatever lay in memory")


def _is_partly(index: Value) -> bool:
    """Whether an index is `[:n]` or `[-n:]`, where n is not written out."""
    if index.op != "slice":
        return False
    ends = index.args[:2]
    open_ends = [one for one in ends if is_none(one)]
    return len(open_ends) == 1 and all(is_none(one) or (constant(one) is None and any(each.op in ("size", "len", "shape") for each in origins(one))) for one in ends)
