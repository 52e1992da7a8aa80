"""Inputs and their targets: whether they belong together, are mixed and changed alike, and hold no more than they may.
Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    SHAPED,
    Instance,
    Many,
    Value,
    bare,
    constant,
    is_none,
    number,
    origins,
    same,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import is_method, short
from probe.diagnose.code.traits.sides import Sides, draws_of, is_model, mixed, sides_of, unshaped

FINDERS = Finders()
_LISTINGS = ("os.listdir", "glob.glob", "glob.iglob", "os.scandir", "glob", "rglob", "iterdir")
_PAIRED = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "cross_entropy", "binary_cross_entropy", "binary_cross_entropy_with_logits", "nll_loss")
_TURNS = ("rot90", "flip", "fliplr", "flipud", "hflip", "vflip", "rotate", "crop", "roll", "torchvision.transforms.functional.hflip", "torchvision.transforms.functional.vflip", "torchvision.transforms.functional.rotate", "torchvision.transforms.functional.crop")
_RANDOM_TURNS = ("RandomCrop", "RandomHorizontalFlip", "RandomVerticalFlip", "RandomRotation", "RandomResizedCrop", "RandomAffine", "RandomPerspective")


# Two orders ----------------------------------------------------------------------------


def _is_shuffled(loader: Value) -> bool:
    """Whether a DataLoader has a random order of its own."""
    if "generator" in loader.named:
        return False
    return constant(loader.argument("shuffle", 2)) is True or loader.named.get("sampler", loader).op.endswith("RandomSampler")


def _loaders(value: Value) -> dict[int, Value]:
    """The shuffled loaders whose batches a value is made of."""
    return {id(one.named["loader"]): one.named["loader"] for one in origins(value) if one.op == "rows" and _is_shuffled(one.named["loader"])}


def _batch(value: Value) -> Value:
    """What a loop over a loader gives, of a value that is a part of it."""
    while value.op != "rows" and value.op in ("part", *KEPT, *SHAPED) and value.args:
        value = value.args[0]
    return value


@FINDERS.add("zipped-apart")
def _zipped_apart(program: Program) -> Iterator[Remark]:
    """A loss compares what a model makes of the batches of one shuffled loader with the batches of another one."""
    computation = computation_of(program)
    for loss in computation.of(*_PAIRED):
        if len(loss.args) < 2:
            continue
        left, right = loss.args[:2]
        first = _loaders(left)
        if _batch(right).op == "rows":
            others = _loaders(right)
        elif bare(right).op == "arange" and bare(left, "t", "transpose", "div", "mul").op == "matmul":
            product = bare(left, "t", "transpose", "div", "mul")
            first, others = _loaders(product.args[0]), _loaders(product.args[1])
        else:
            continue
        if len(first) == len(others) == 1 and not first.keys() & others.keys():
            one, other = next(iter(first.values())), next(iter(others.values()))
            if not same(bare(one.args[0]), bare(other.args[0])):
                yield Remark(loss.node, f"{short(loss.node)} pairs the batches of two loaders (lines {one.line} and {other.line}), each of which shuffles in its own order")
                return


@FINDERS.add("predictions-in-another-order")
def _another_order(program: Program) -> Iterator[Remark]:
    """Predictions are collected in the random order of a loader, and are put beside what stands in the order of the data."""
    computation = computation_of(program)
    for value in computation.values:
        if value.op.startswith("sklearn.metrics.") and len(value.args) > 1:
            pairs = [(value.args[1], value.args[0]), (value.args[0], value.args[1])]
        elif value.op == "set_item" and isinstance(constant(value.args[1]), str):
            pairs = [(value.args[2], value.args[0])]
        else:
            continue
        for collected, beside in pairs:
            loaders = _loaders(collected) if _is_collected(collected) else {}
            if len(loaders) != 1 or _loaders(beside):
                continue
            loader = next(iter(loaders.values()))
            if _is_of_data(beside, loader, value.op == "set_item"):
                yield Remark(value.node, f"{short(value.node)} puts the predictions, in the order in which {short(loader.node)} (line {loader.line}) shuffles, beside what is in the order of the data")
                return


def _is_collected(value: Value) -> bool:
    """Whether a value is what all batches gave, one behind the other."""
    while value.op in ("numpy", "tolist", "cpu", "argmax", "array", "squeeze", "flatten", "float", "tensor") and value.args:
        value = value.args[0]
    return (isinstance(value, Many) and value.grown) or value.op in ("cat", "stack")


def _is_of_data(value: Value, loader: Value, whole: bool) -> bool:
    """Whether a value is a column of the data that a loader reads, in their order (`whole`: the table itself)."""
    data = loader.argument("dataset", 0)
    if data is None:
        return False
    if whole:
        made = {id(one) for one in origins(data)}
        return id(value) in made
    found = bare(value)
    if found.op in ("targets", "labels", "y") and found.args:
        of = found.args[0]
        return of is data or (of.op == "dataset" and bool(of.args) and of.args[0] is loader)
    kept = data.attributes.values() if isinstance(data, Instance) else data.args
    return any(bare(one) is found for one in kept)


@FINDERS.add("paired-by-listing")
def _paired_by_listing(program: Program) -> Iterator[Remark]:
    """Two folders are listed, neither list is sorted, and their files are paired by place."""
    computation = computation_of(program)
    taken: dict[int, list[Value]] = {}
    for value in computation.values:
        pair: list[Value] = []
        if value.op in ("zip", "torch.utils.data.TensorDataset") and len(value.args) > 1:
            pair = [*value.args]
        elif value.op == "part" and len(value.args) > 1 and value.args[1].op not in ("slice", "@constant") and not isinstance(value.args[0], Instance):
            pair = [one.args[0] for one in taken.setdefault(id(value.args[1]), [])]
            taken[id(value.args[1])].append(value)
            pair = [*pair, value.args[0]]
        listed = [_listing(computation, one) for one in pair]
        found = [one for one in listed if one is not None]
        if len(found) > 1 and any(not same(found[0], one) for one in found[1:]):
            yield Remark(found[0].node, f"{short(found[0].node)} lists files in any order, and they are paired by place with those of another folder (line {found[1].line})")
            return


def _listing(computation: Computation, value: Value) -> Value | None:
    """The listing of a folder in whose order a value is; None where it is sorted, or of no or several folders."""
    found = list(origins(value, stop=_LISTINGS))
    if any(one.op in ("sorted", "natsort.natsorted", "sort", "part", "argsort", "dict") for one in found):
        return None
    if any(user.op == "sort" for one in found for user in computation.users(one)):
        return None
    listings = [one for one in found if one.op in _LISTINGS]
    return listings[0] if len(listings) == 1 else None


@FINDERS.add("sorted-without-labels")
def _sorted_alone(program: Program) -> Iterator[Remark]:
    """Of what belongs together in a batch, the inputs are sorted and the targets are not."""
    computation = computation_of(program)
    for sides in sides_of(computation):
        for value in sides.given.values():
            if value.op != "sorted" or value.args[0].op != "part" or value.args[0].args[0].op != "columns":
                continue
            rows = value.args[0].args[0]
            targets = [one for one in sides.beside.values() if one.op == "part" and one.args[0] is rows and not same(one.args[1], value.args[0].args[1])]
            changed = any(one.op in ("sorted", "argsort", "index_select") or (one.op == "part" and one.args[1].op in ("argsort", "list")) for one in sides.beside.values())
            if targets and not changed:
                yield Remark(value.node, f"{short(value.node)} is in the order of its key, and {short(targets[0].node)} (line {targets[0].line}) stays in the old order")
                return


# Mixing and turning -------------------------------------------------------------------


def _mixtures(computation: Computation) -> Iterator[tuple[Value, Value, Value, set[int]]]:
    """Where a sample is mixed with another one that is drawn at random: the mixture, the share, the sample, the draws of
    the other one."""
    for value in computation.of("add", "lerp"):
        parts = mixed(value)
        if parts is None or not draws_of(parts[0]):
            continue
        share, first, second = parts
        for one, other in ((first, second), (second, first)):
            drawn = draws_of(other) - draws_of(one) - draws_of(share)
            rolled = {id(at) for at in origins(other) if at.op == "roll"} - {id(at) for at in origins(one)}
            if drawn or (rolled and bare(other).op == "roll"):
                yield value, share, one, drawn or rolled
                break


@FINDERS.add("mixed-apart")
def _mixed_apart(program: Program) -> Iterator[Remark]:
    """The input is mixed with one random sample and the target, by the same share, with another one."""
    computation = computation_of(program)
    found = list(_mixtures(computation))
    for sides in sides_of(computation) if len(found) > 1 else ():
        for one, share, first, drawn in found:
            for other, its_share, its_first, its_drawn in found:
                if other is one or not same(bare(share), bare(its_share)) or drawn & its_drawn or same(bare(first), bare(its_first)):
                    continue
                if id(one) in sides.given and id(other) in sides.beside and id(other) not in sides.given and id(one) not in sides.beside:
                    yield Remark(other.node, f"{short(other.node)} mixes the target with another sample than {short(one.node)} (line {one.line}) mixes into the input: each draws its own")
                    return


@FINDERS.add("targets-not-mixed")
def _targets_not_mixed(program: Program) -> Iterator[Remark]:
    """The input is mixed with another sample of the batch, and the loss knows one target."""
    computation = computation_of(program)
    found = [(value, first, drawn) for value, _, first, drawn in _mixtures(computation)]
    for value in computation.of("set_item"):
        patch = bare(value.args[2], "part")
        inner = next((one for one in origins(value.args[2]) if one.op == "part" and len(one.args) > 1 and bare(one.args[1]).op in ("randperm", "permutation")), None)
        if inner is not None and patch is not value and same(bare(inner.args[0]), bare(value.args[0])):
            found.append((value, value.args[0], draws_of(inner.args[1])))
    for sides in sides_of(computation) if found else ():
        labels = [one for one in sides.beside.values() if one.op in ("cross_entropy", "binary_cross_entropy_with_logits") and len(one.args) > 1]
        for value, first, drawn in found:
            if not labels or id(value) not in sides.given or not _is_batch(first) or drawn & sides.beside.keys() or value.where.no_grad:
                continue
            if any(draws_of(one.args[1]) or mixed(bare(one.args[1])) for one in labels) or len(labels) > 1 or _used_elsewhere(computation, drawn, first):
                continue
            yield Remark(value.node, f"{short(value.node)} mixes two samples, and {short(labels[0].node)} (line {labels[0].line}) knows the target of one")
            return


def _is_batch(value: Value) -> bool:
    """Whether a value is what a loop over batches gives."""
    return _batch(value).op in ("rows", "element", "star", "@input")


def _used_elsewhere(computation: Computation, drawn: set[int], first: Value) -> bool:
    """Whether the same random order is also used for something else."""
    for value in computation.of("part"):
        if len(value.args) > 1 and any(id(one) in drawn for one in origins(value.args[1])) and not same(bare(value.args[0]), bare(first)):
            return True
    return False


@FINDERS.add("changed-by-two-draws")
def _two_draws(program: Program) -> Iterator[Remark]:
    """The input and the target, which belong together place by place, are each turned or cut by a random draw of their own."""
    computation = computation_of(program)
    for sides in sides_of(computation):
        turned = [one for one in sides.given.values() if _random_turn(one) and id(one) not in sides.beside]
        targets = [one for one in sides.beside.values() if _random_turn(one) and id(one) not in sides.given]
        for one in turned:
            for other in targets:
                if _random_turn(one) & _random_turn(other) and not (draws_of(one) & draws_of(other)) and not same(_turned(one), _turned(other)) and not (_seeds(one) & _seeds(other)) and not _reseeded(computation, one, other):
                    yield Remark(other.node, f"{short(other.node)} changes the target by a draw of its own, and the input is changed by another one (line {one.line})")
                    return


def _seeds(value: Value) -> set[int]:
    """The values that seed the generators which decide how a value is turned: those of one seed draw alike."""
    return {id(one.args[-1]) for given in value.args[1:] for one in origins(given) if one.op in ("manual_seed", "default_rng", "RandomState", "seed") and one.args}


def _reseeded(computation: Computation, one: Value, other: Value) -> bool:
    """Whether the state of the shared generator is set between two values to what it was set to before the first: then they
    draw alike."""
    first, last = sorted((one.number, other.number))
    sets = [each for each in computation.of("seed", "manual_seed", "setstate", "set_rng_state") if each.args and each.number < last]
    return any(same(before.args[-1], between.args[-1]) for before in sets if before.number < first for between in sets if between.number > first)


def _turned(value: Value) -> Value:
    return value.args[1] if value.op == "run" else value.args[0]


def _random_turn(value: Value) -> set[str]:
    """How a value is turned or cut at random: by which operations; empty where it is not."""
    if value.op in _TURNS and len(value.args) > 1:
        return {value.op} if any(draws_of(one) for one in value.args[1:]) else set()
    if value.op == "run" and len(value.args) == 2 and value.args[0].op.startswith("torchvision.transforms."):
        steps = [value.args[0], *(step for one in value.args[0].args for step in (one.parts if isinstance(one, Many) else [one]))]
        return {step.op.rpartition(".")[2] for step in steps if step.op.endswith(_RANDOM_TURNS)}
    return set()


# What targets and inputs hold ---------------------------------------------------------------


_VIEWS = frozenset({"from_numpy", "numpy", "view", "reshape", "detach", "data", "as_tensor", "asarray", "squeeze", "unsqueeze", "flatten", "ravel", "T", "t", "transpose", "view_as"})
"""Operations whose result shares its memory with what they are done on."""


@FINDERS.add("target-changed-with-input")
def _changed_with_input(program: Program) -> Iterator[Remark]:
    """The input is changed in place, and the target is a view of it, or read from it afterwards."""
    computation = computation_of(program)
    changes = [value for value in computation.values if _overwrites(value)]
    for sides in sides_of(computation) if changes else ():
        for change in changes:
            if id(change) not in sides.given or id(change) in sides.beside:
                continue
            late = _read_later(computation, change, sides)
            if late is not None:
                yield Remark(change.node, f"{short(change.node)} also changes the target: {short(late.node)} (line {late.line}) is of the same memory")
                return


def _overwrites(value: Value) -> bool:
    """Whether a value puts a number, or random ones, over some of those of a tensor of data, in place."""
    if value.op == "set_item" and len(value.args) > 2:
        index, put = value.args[1], value.args[2]
        whole = index.op in ("slice", "@constant") or isinstance(index, Many)
        made = bare(value.args[0]).op in ("zeros", "full", "ones", "empty", "zeros_like", "element")
        return not whole and not made and bool(draws_of(index)) and (number(put) is not None or put.op == "mask_token_id" or bool(draws_of(put)))
    if value.op == "masked_fill" and isinstance(value.node, ast.Call) and is_method(value.node, "masked_fill_"):
        return len(value.args) > 2 and bool(draws_of(value.args[1]))
    return False


def _read_later(computation: Computation, change: Value, sides: Sides) -> Value | None:
    """What stands beside the outputs of a model, and is read of the memory that was changed."""
    waiting = [(change.args[0], False)]
    while waiting:
        at, is_view = waiting.pop()
        for one in computation.users(at):
            if one is change or change in one.args:
                continue
            if one.op in _VIEWS:
                waiting.append((one, True))
            elif one.number > change.number and id(one) in sides.beside and id(one) not in sides.given and one.op not in ("shape", "size", "len"):
                return at if is_view else one
    return None


@FINDERS.add("future-among-inputs")
def _holds_its_target(program: Program) -> Iterator[Remark]:
    """The target is an element of the window that the model is given as a whole."""
    computation = computation_of(program)
    for sides in sides_of(computation):
        targets = [unshaped(one.args[1]) for one in sides.beside.values() if one.op in _PAIRED and len(one.args) > 1]
        for target in targets:
            if target.op != "part" or not isinstance(constant(target.args[1]), int):
                continue
            window = bare(target.args[0])
            if window.op == "part" and window.args[1].op == "slice" and any(_given_whole(one, window) for run in (*sides.runs, *filter(is_model, sides.given.values())) for one in run.args[1:]):
                yield Remark(target.node, f"{short(target.node)} is the target, and the model is given all of {short(window.node)} (line {window.line})")
                return


@FINDERS.add("target-in-its-window")
def _up_to_its_target(program: Program) -> Iterator[Remark]:
    """The model is given what comes before a place, and the place itself, which is the target."""
    for sides in sides_of(computation_of(program)):
        targets = [unshaped(one.args[1]) for one in sides.beside.values() if one.op in _PAIRED and len(one.args) > 1]
        for target in (one for one in targets if one.op == "part" and len(one.args) == 2 and one.args[1].op not in ("slice", "@constant", "tuple")):
            for window in sides.given.values():
                index = window.args[1] if window.op == "part" and len(window.args) == 2 and window.args[0] is target.args[0] else None
                end = index.args[1] if index is not None and index.op == "slice" else None
                if end is not None and end.op == "add" and end.args[0] is target.args[1] and (number(end.args[1]) or 0) >= 1:
                    yield Remark(window.node, f"{short(window.node)} goes on to {short(target.node)} (line {target.line}), which is the target")
                    return


def _given_whole(value: Value, window: Value) -> bool:
    """Whether a value is a window, in another shape, type or scale."""
    for _ in range(12):
        value = unshaped(value)
        if value is window:
            return True
        if value.op in ("mul", "div", "sub", "add") and value.args:
            value = value.args[0]
        else:
            return False
    return False


@FINDERS.add("shuffled-before-windows")
def _windows_of_shuffled(program: Program) -> Iterator[Remark]:
    """Rows are put into a random order, and windows of rows that follow each other are cut of them, with what comes next."""
    computation = computation_of(program)
    parts = [value for value in computation.of("part") if len(value.args) > 1 and value.args[1].op == "slice" and value.args[1].args[0].op == "index"]
    for window in parts:
        end = window.args[1].args[1]
        nexts = [one for one in computation.users(window.args[0]) if one is not window and one.op == "part" and _begins_at(one.args[1], end)]
        shuffled = _shuffled(window.args[0]) if end.op == "add" and nexts else None
        if shuffled is not None:
            yield Remark(window.node, f"{short(window.node)} takes rows that follow each other, and {short(shuffled.node)} (line {shuffled.line}) has put them into a random order")
            return
    for window in computation.of("unfold", "sliding_window_view", "lib.stride_tricks.sliding_window_view", "numpy.lib.stride_tricks.sliding_window_view"):
        shuffled = _shuffled(window.args[0])
        if shuffled is not None:
            yield Remark(window.node, f"{short(window.node)} takes rows that follow each other, and {short(shuffled.node)} (line {shuffled.line}) has put them into a random order")
            return


def _begins_at(index: Value, end: Value) -> bool:
    """Whether an index begins where a window ends."""
    begin = index.args[0] if index.op == "slice" else index
    return not is_none(begin) and same(begin, end)


def _shuffled(value: Value) -> Value | None:
    """What puts the rows of a table into a random order, on the way to a value."""
    for _ in range(16):
        value = bare(value, "sub", "div", "mul", "log", "log1p", "reset_index", "fillna", "interpolate", "dropna", shapes=False)
        if value.op in ("sample", "sklearn.utils.shuffle") and (value.op != "sample" or number(value.named.get("frac")) == 1):
            return value
        if value.op != "part" or len(value.args) < 2:
            return None
        if value.args[0].op.endswith("model_selection.train_test_split"):
            return value.args[0] if constant(value.args[0].named.get("shuffle")) is not False else None
        index = bare(value.args[1])
        if index.op in ("randperm", "permutation") and not any(one.op == "slice" for one in (value.args[1],)):
            return index
        value = value.args[0]
    return None


# Other codes and orders ------------------------------------------------------------------


@FINDERS.add("labels-of-another-code")
def _another_code(program: Program) -> Iterator[Remark]:
    """A loss whose labels are -1 and 1 is given what a comparison says: 0 and 1."""
    places = {"margin_ranking_loss": 2, "cosine_embedding_loss": 2, "hinge_embedding_loss": 1, "soft_margin_loss": 1}
    for loss in computation_of(program).of(*places):
        place = places[loss.op]
        label = unshaped(loss.args[place], "part") if len(loss.args) > place else loss
        if label.op in ("eq", "ne", "gt", "lt", "ge", "le"):
            yield Remark(loss.node, f"{short(loss.node)} takes labels of -1 and 1, and {short(label.node)} (line {label.line}) gives 0 and 1")


@FINDERS.add("split-by-class")
def _split_by_class(program: Program) -> Iterator[Remark]:
    """A data set that lists one class after the other is cut in two by place."""
    for value in computation_of(program).of("torch.utils.data.Subset"):
        data, rows = (value.argument("dataset", 0), value.argument("indices", 1))
        if data is None or rows is None or not data.op.endswith((".ImageFolder", ".DatasetFolder")):
            continue
        rows = bare(rows, shapes=False)
        if rows.op in ("range", "arange") and len(rows.args) > 1 and number(rows.args[0]) != 0 and bare(rows.args[1]).op == "len":
            yield Remark(value.node, f"{short(value.node)} is the end of {short(data.node)} (line {data.line}), which lists one class after the other")
            return


@FINDERS.add("sum-keeps-the-last")
def _keeps_the_last(program: Program) -> Iterator[Remark]:
    """Values are added to places of a new tensor by an index in which a place may occur more than once."""
    computation = computation_of(program)
    seen: set[ast.AST] = set()
    for value in computation.of("set_item"):
        if len(value.args) < 3 or value.node in seen:
            continue
        out, index, put = value.args[:3]
        old = put.args[0] if put.op == "add" and len(put.args) == 2 else put
        new = out.op in ("zeros", "zeros_like", "new_zeros") and out.where.loops == value.where.loops
        if new and old.op == "part" and old.args[0] is out and same(old.args[1], index) and _may_repeat(computation, index):
            seen.add(value.node)
            yield Remark(value.node, f"{short(value.node)} is added to once for each place: of the values with one and the same index, the last is kept")


def _may_repeat(computation: Computation, index: Value) -> bool:
    """Whether an index is whole numbers of data, of which some may be alike: one of two ends of edges, or rounded values."""
    parts = index.parts if isinstance(index, Many) else [index]
    for one in parts:
        whole = any(at.op in ("long", "astype", "int", "floor", "digitize", "bucketize") for at in origins(one))
        ends = one.op == "part" and len(one.args) > 1 and isinstance(constant(one.args[1]), int) and any(
            at is not one and at.op == "part" and len(at.args) > 1 and isinstance(constant(at.args[1]), int) and any(user.op == "part" and user.args[1] is at for user in computation.users(at))
            for at in computation.users(one.args[0])
        )
        if any(at.op in ("randperm", "permutation", "unique", "arange", "argsort", "nonzero", "where", "topk", "eq", "gt", "lt", "ne", "bool") for at in origins(one)):
            return False
        if not (whole or ends):
            return False
    return bool(parts)


@FINDERS.add("weights-without-replacement")
def _without_replacement(program: Program) -> Iterator[Remark]:
    """As many are drawn by weights as there are, and each once."""
    for value in computation_of(program).of("choice"):
        drawn = {one.op in ("@library",) for one in value.args[:1]}
        over = value.args[0] if True in drawn or value.args[0].op in ("len", "@input", "part", "arange") or number(value.args[0]) is not None else value.args[1] if len(value.args) > 1 else None
        size, chances = value.named.get("size"), value.named.get("p")
        if over is not None and size is not None and chances is not None and constant(value.named.get("replace")) is False and same(bare(over, "arange"), bare(size)):
            yield Remark(value.node, f"{short(value.node)} draws each of {short(size.node)} samples once: the weights only change the order")


@FINDERS.add("smoothed-with-the-future")
def _smoothed(program: Program) -> Iterator[Remark]:
    """Windows are cut of a series that was smoothed to both sides, and the target comes after the window."""
    computation = computation_of(program)
    parts = [one for one in computation.of("part") if len(one.args) > 1]
    for window in parts:
        begin = window.args[1].args[0] if window.args[1].op == "slice" else window
        smooth = bare(window.args[0], "dropna") if begin.op == "index" else begin
        both = smooth.op in ("mean", "median") and bool(smooth.args) and smooth.args[0].op == "rolling" and constant(smooth.args[0].named.get("center")) is True
        if not both and smooth.op not in ("scipy.signal.savgol_filter", "scipy.signal.filtfilt", "scipy.ndimage.gaussian_filter1d", "scipy.ndimage.uniform_filter1d"):
            continue
        later = next((one for one in parts if one.args[1].op in ("add", "sub") and begin in origins(one.args[1]) and one.where.functions == window.where.functions), None)
        if later is not None:
            yield Remark(smooth.node, f"{short(smooth.node)} takes as many values after each one as before it, and {short(later.node)} (line {later.line}) is to be forecast")
            return
