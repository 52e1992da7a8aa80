"""Which rows are trained on and which are held out, how they are drawn, and what is done to them. Pure; standard library only."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Instance, Value, bare, constant, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import is_run_of_network, networks
from probe.diagnose.code.traits.basic import without_small
from probe.diagnose.code.traits.updates import backwards, runs

FINDERS = Finders()
_SPLITS = ("torch.utils.data.random_split", "sklearn.model_selection.train_test_split")
_SEEDS = ("manual_seed", "seed", "seed_everything", "set_seed", "lightning.seed_everything")
_ORDERS = ("permutation", "randperm")
_RANDOM = ("Random", "ColorJitter", "AutoAugment", "RandAugment", "TrivialAugment", "AugMix")
_DRAWN = ("rand", "randint", "random", "uniform", "bernoulli", "choice", "randrange", "integers", "randn", "normal")
_SUMMARIES = ("mean", "std", "var", "sum", "len", "shape", "size", "max", "min", "median")
TRAIN = re.compile(r"(^|_)(train|training|trn|tr)(_|$)|^train", re.I)
HELD = re.compile(r"(^|_)(val|valid|validation|dev|test|heldout|holdout|eval)(_|$)|^(val|test|dev|eval)(set|data|loader|_?x|_?items)?$", re.I)
_JUDGED = ("argmax", "cross_entropy", "topk", "binary_cross_entropy_with_logits", "accuracy")
_LOSSES = (
    "cross_entropy", "mse_loss", "l1_loss", "binary_cross_entropy_with_logits", "nll_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
)


class Roles:
    """What the losses of a training are made of, and what the results that are only looked at are made of."""

    def __init__(self, computation: Computation) -> None:
        self.passes = computation.passes
        known = networks(computation)
        losses = [(value, loss) for value, loss in backwards(computation) if not value.where.no_grad]
        self.in_losses = {id(one) for _, loss in losses for one in origins(loss)}
        self.trained = rows_under((loss for _, loss in losses), (over for value, _ in losses for over in self._loops_of(value)))
        self.looked = [one for one in computation.of("run") if one.where.no_grad and id(one) not in self.in_losses and is_run_of_network(one, known)]
        self.held = rows_under(self.looked, (over for value in self.looked for over in self._loops_of(value)))

    def _loops_of(self, value: Value) -> Iterator[Value]:
        """What the loops around a value go over."""
        for loop in value.where.loops:
            found = [over for count, node, over in self.passes if node is loop and count <= value.number]
            yield from found[-1:]


def rows_under(values: Iterable[Value], gone_over: Iterable[Value]) -> set[int]:
    """The rows that values are made of, and those that loops go over, also by way of the attributes of objects; not those
    that only a mean or a deviation of the inputs, or of what no network has seen, is taken of."""
    waiting = [*((value, False) for value in values), *((value, True) for value in gone_over)]
    seen: set[int] = set()
    while waiting:
        at, inputs = waiting.pop()
        if id(at) in seen or at.op in ("len", "shape", "size") or (at.op in _SUMMARIES and (inputs or not any(one.op == "run" for one in origins(at)))):
            continue
        seen.add(id(at))
        inputs = inputs or at.op == "run" or at.op.startswith("torch.utils.data.")
        waiting += [(one, inputs) for one in (at.attributes.values() if isinstance(at, Instance) else at.made_of())]
    return seen


def is_called_held_out(computation: Computation, value: Value) -> bool:
    """Whether the program gives rows the name of a held-out part."""
    names = [target.id for target, given in computation.stored.items() if any(one is value for one in given)]
    names += [user.data for user in computation.users(value) if user.op == "set_attribute" and isinstance(user.data, str)]
    return any(HELD.search(name) and not TRAIN.search(name) for name in names)


# Rows of both parts ---------------------------------------------------------------


@FINDERS.add("trained-on-the-whole")
def _trained_on_the_whole(program: Program) -> Iterator[Remark]:
    """The loader of the training goes over all rows, and rows split off from them are evaluated."""
    computation = computation_of(program)
    splits = list(computation.of(*_SPLITS))
    roles = Roles(computation) if splits else None
    for split in splits:
        parts = [one for one in computation.users(split) if one.op == "part"]
        fitted = [one for one in parts if constant(one.args[1]) == 0]
        if roles is None or not fitted or not any(id(one) in roles.held for one in parts) or any(id(one) in roles.trained for one in fitted):
            continue
        whole = [one for one in split.args if number(one) is None][: 1 if split.op.endswith("random_split") else 4]
        for loader in computation.of("torch.utils.data.DataLoader"):
            data = loader.argument("dataset", 0)
            if id(loader) not in roles.trained or data is None:
                continue
            tensors = data.args if data.op == "torch.utils.data.TensorDataset" else (data,)
            if tensors and all(any(one is each for each in whole) for one in tensors):
                yield Remark(loader.node, f"{short(loader.node)} goes over all rows, also over those that {short(split.node)} (line {split.line}) holds out")


@FINDERS.add("held-out-rows-trained-on")
def _held_out_rows_trained_on(program: Program) -> Iterator[Remark]:
    """Two parts of the same rows, one trained on and one evaluated, overlap. Rows of the training part alone may be
    evaluated on purpose (its own score, a bank of neighbours, the past of a series), unless they are called held out."""
    computation = computation_of(program)
    parts = [one for one in computation.of("part") if one.args[1].op in ("slice", "le", "ge")]
    # What one function takes for both parts is a table that it looks things up in.
    pairs = [(a, b) for place, a in enumerate(parts) for b in parts[:place] if a.args[0] is b.args[0] and a.node is not b.node and _overlap(a.args[1], b.args[1])]
    roles = Roles(computation) if pairs else None
    for pair in pairs:
        for train, held in (pair, pair[::-1]):
            if roles is None or id(train) not in roles.trained or id(held) not in roles.held or id(train) in roles.held or id(held) in roles.trained:
                continue
            if _begins_earlier(held.args[1], train.args[1]) or _is_axis(held.args[0]):
                continue
            if is_called_held_out(computation, held) or not _within(held.args[1], train.args[1]):
                yield Remark(held.node, f"{short(held.node)} and {short(train.node)} (line {train.line}) share rows: what is evaluated was trained on")


@FINDERS.add("scaled-before-the-split")
def _statistics_of_all(program: Program) -> Iterator[Remark]:
    """The rows of each part are scaled when they are taken, by the statistics of all rows."""
    computation = computation_of(program)
    scaled: dict[int, list[tuple[Value, Value]]] = {}
    for value in computation.of("sub", "div"):
        statistic = without_small(value.args[1]) if len(value.args) == 2 else value
        if statistic.op not in _STATISTICS or not statistic.args or statistic.where.loops or value.where.loops:
            continue
        rows = bare(value.args[0])
        rows = bare(rows.args[0]) if rows.op == "sub" and rows.args else rows
        if rows.op == "part" and bare(rows.args[0]) is bare(statistic.args[0]) and _is_of_rows(rows.args[1]):
            scaled.setdefault(id(statistic), []).append((statistic, rows))
    roles = Roles(computation) if any(len(found) > 1 for found in scaled.values()) else None
    for found in scaled.values() if roles is not None else ():
        assert roles is not None
        train = [rows for _, rows in found if id(rows) in roles.trained and id(rows) not in roles.held]
        held = [rows for _, rows in found if id(rows) in roles.held and id(rows) not in roles.trained]
        if train and held:
            yield Remark(found[0][0].node, f"{short(found[0][0].node)} takes the statistics of all rows, and line {held[0].line} takes held-out rows of them")
            return


_STATISTICS = ("mean", "std", "var", "median", "nanmean", "nanstd", "nanmedian")


def _is_of_rows(index: Value) -> bool:
    """Whether an index takes a part of the rows: the first or last ones, or those of an order that was cut."""
    return index.op == "slice" or (index.op == "part" and index.args[1].op == "slice" and bare(index.args[0]).op in _ORDERS)


def _overlap(one: Value, other: Value) -> bool:
    """Whether two choices of rows certainly have some in common."""
    if {one.op, other.op} == {"le", "ge"}:
        return same(one.args[0], other.args[0]) and same(one.args[1], other.args[1])
    if one.op != "slice" or other.op != "slice":
        return False
    known = [_known(one), _known(other)]
    if None not in known:
        return max(rows[0] for rows in known if rows) < min(rows[1] for rows in known if rows)
    for first, last in ((one, other), (other, one)):
        low, rest = last.args[0], bare(first.args[1])
        from_start = first.args[0].op == "@constant" and first.args[0].data in (None, 0)
        to_end = last.args[1].op == "@constant" and last.args[1].data is None
        if from_start and to_end and rest.op == "sub" and rest.args[1] is low and bare(rest.args[0]).op == "len" and (_share(low) or 1) < 0.5:
            return True
    return False


def _within(one: Value, other: Value) -> bool:
    """Whether a choice of rows has none but those of another one."""
    inner, outer = (_known(each) if each.op == "slice" else None for each in (one, other))
    return inner is not None and outer is not None and outer[0] <= inner[0] and inner[1] <= outer[1]


def _begins_earlier(later: Value, first: Value) -> bool:
    """Whether rows begin some before the end of those before them, as windows with a past do: `x[cut - window:]`."""
    node = later.node.slice if isinstance(later.node, ast.Subscript) else later.node
    low = node.lower if isinstance(node, ast.Slice) else None
    return first.op == "slice" and isinstance(low, ast.BinOp) and isinstance(low.op, ast.Sub) and (isinstance(low.right, (ast.Name, ast.Attribute)) or isinstance(low.left, (ast.Name, ast.Attribute)))


def _is_axis(rows: Value) -> bool:
    """Whether a value is a line of points and no data: `torch.linspace(0, 4, 40)`."""
    return bare(rows).op in ("linspace", "logspace", "geomspace")


def _known(rows: Value) -> tuple[float, float] | None:
    """Where a slice begins and ends, if both are written out and counted from the first row."""
    low, high = (0.0 if rows.args[0].op == "@constant" and rows.args[0].data is None else number(rows.args[0])), number(rows.args[1])
    if rows.args[1].op == "@constant" and rows.args[1].data is None:
        high = math.inf
    plain = len(rows.args) < 3 or (rows.args[2].op == "@constant" and number(rows.args[2]) in (None, 1))
    return (low, high) if plain and low is not None and high is not None and min(low, high) >= 0 else None


def _share(value: Value) -> float | None:
    """The share of the rows that a number of rows is."""
    value = bare(value)
    if value.op != "mul":
        return None
    return next((found for one in value.args if (found := number(one)) is not None and 0 < found < 1), None)


@FINDERS.add("split-drawn-twice")
def _split_drawn_twice(program: Program) -> Iterator[Remark]:
    """The part that is trained on and the part that is held out come from two draws without a seed."""
    computation = computation_of(program)
    draws = [one for one in computation.of(*_SPLITS, *_ORDERS) if not _is_seeded(one)]
    roles = Roles(computation) if len(draws) > 1 else None
    for place, later in enumerate(draws):
        for first in draws[:place]:
            if roles is None or first.op != later.op or not _of_the_same_rows(first, later):
                continue
            if any(one.op in _SEEDS for one in computation.values[first.number : later.number]):
                continue
            sides = {_side(one, computation, roles) for one in (first, later)}
            if sides in ({("first", "trained"), ("last", "held")}, {("last", "trained"), ("first", "held")}):
                yield Remark(later.node, f"{short(later.node)} is drawn twice, once for the rows that are trained on and once for those that are held out: rows of one are in the other")


def _is_seeded(draw: Value) -> bool:
    """Whether a draw is given a seed or a generator."""
    given = [draw.named[name] for name in ("random_state", "generator", "seed") if name in draw.named]
    if any(one.op != "@constant" or one.data is not None for one in given):
        return True
    if draw.op == "torch.utils.data.random_split":
        return len(draw.args) > 2
    return len(draw.args) > 1 and bare(draw.args[0]).op in ("default_rng", "RandomState", "manual_seed", "Generator", "@input") and draw.op in _ORDERS


def _of_the_same_rows(first: Value, later: Value) -> bool:
    """Whether two draws are of the same rows, or of as many."""
    if first.op in _ORDERS:
        return first.node is later.node
    return bool(first.args) and all(a is b or same(a, b) for a, b in zip(first.args[:1], later.args[:1], strict=False))


def _side(draw: Value, computation: Computation, roles: Roles) -> tuple[str, str]:
    """Which side of a draw is used, and what for."""
    used = [one for one in computation.users(draw) if one.op == "part" and (id(one) in roles.trained or id(one) in roles.held)]
    kinds = {"first" if _is_first(one, draw) else "last" for one in used}
    ends = {"trained" if id(one) in roles.trained else "held" for one in used}
    return (kinds.pop(), ends.pop()) if len(kinds) == 1 and len(ends) == 1 else ("", "")


def _is_first(part: Value, draw: Value) -> bool:
    """Whether a part is the first one of a split or of an order."""
    if draw.op in _ORDERS:
        return part.args[1].op == "slice" and part.args[1].args[0].op == "@constant" and part.args[1].args[0].data is None
    return constant(part.args[1]) in (0, 2)


# What is done to the parts -----------------------------------------------------------


@FINDERS.add("held-out-augmented")
def _held_out_augmented(program: Program) -> Iterator[Remark]:
    """What is evaluated has gone through a random transform, once for each sample."""
    computation = computation_of(program)
    if not any(_is_random(one) for one in computation.values):
        return
    roles = Roles(computation)
    for value in roles.looked:
        if not any(user.op in _JUDGED for user in _later(value, computation)):
            continue
        made = list(origins(value))
        once = any(one.op == "rows" and one.where.loops == value.where.loops for one in made)
        drawn = next((one for one in made if one.op == "run" and one.args and _is_random(one.args[0]) and id(one) not in roles.in_losses), None)
        if drawn is None or not once:
            continue
        data = [one for one in origins(drawn) if one.op.startswith("torchvision.datasets.") or isinstance(one, Instance) or one.op == "rows"]
        if not any(id(one) in roles.in_losses for one in data):
            yield Remark(drawn.args[0].node, f"{short(drawn.args[0].node)} is applied to what {short(value.node)} (line {value.line}) evaluates: each evaluation sees other samples")
            return


@FINDERS.add("held-out-augmented")
def _held_out_turned(program: Program) -> Iterator[Remark]:
    """The data set that is evaluated flips, shifts or turns its samples by chance, as the one that is trained on does."""
    computation = computation_of(program)
    turned = [one for one in computation.of("flip", "roll", "rot90", "affine_grid") if any("__getitem__" in getattr(function, "name", "") for function in one.where.functions) and _is_by_chance(one)]
    roles = Roles(computation) if turned else None
    for value in roles.looked if roles is not None else ():
        held = next((one for one in origins(value) if any(one is each for each in turned)), None) if value.op == "run" else None
        if held is None or roles is None or not any(user.op in (*_JUDGED, "sub", "mse_loss") for user in _later(value, computation)):
            continue
        if any(one.node is held.node and id(one) in roles.in_losses for one in turned) and not any(user.op in ("stack", "mean", "cat") for user in computation.users(value)):
            yield Remark(held.node, f"{short(held.node)} moves by chance what {short(value.node)} (line {value.line}) evaluates: each evaluation sees other samples")
            return


def _is_by_chance(value: Value) -> bool:
    """Whether what a value is moved by, or whether it is, is drawn."""
    moves = [*value.args[1:], *value.named.values(), *(test for test, _ in value.where.under)]
    return any(one.op in _DRAWN for each in moves for one in origins(each))


def _is_random(value: Value) -> bool:
    """Whether a value is a transform that draws anew for each sample."""
    name = value.op.rpartition(".")[2]
    return value.op.startswith(("torchvision.transforms.", "albumentations.")) and name.startswith(_RANDOM) and number(value.named.get("p")) not in (0, 1)


def _later(value: Value, computation: Computation) -> Iterator[Value]:
    """What uses a value, also after softmax and the like."""
    for user in computation.users(value):
        yield user
        if user.op in ("softmax", "log_softmax", "sigmoid", "to", "cpu", "float", "squeeze"):
            yield from _later(user, computation)


@FINDERS.add("transform-of-shared-base")
def _transform_of_shared_base(program: Program) -> Iterator[Remark]:
    """Each part is given a setting of its own, on the one data set that is under both."""
    computation = computation_of(program)
    found = [(value, base) for value in computation.of("set_attribute") if (base := _base_of(value.args[0])) is not None and not value.where.loops]
    for place, (later, (part, whole)) in enumerate(found):
        for first, (other, below) in found[:place]:
            alike = later.args[1] is first.args[1] or same(later.args[1], first.args[1])
            used = any(one.op == "run" for one in computation.values[first.number : later.number])
            if whole is below and part is not other and later.data == first.data and not alike and not used and runs(first) == runs(later):
                yield Remark(later.node, f"{short(later.node)} sets {later.data} of the one data set under both parts, also under that of line {first.line}")
    if len(found) == 1:
        value, (part, whole) = found[0]
        loaders = list(computation.of("torch.utils.data.DataLoader"))
        mine = [one for one in loaders if one.argument("dataset", 0) is part and constant(one.argument("shuffle", 2)) is True]
        others = [one for one in loaders if (base := _part_of(one.argument("dataset", 0))) is not None and base[0] is not part and base[1] is whole]
        if mine and others and re.search("aug|transform|jitter|noise|train", str(value.data)) and not (value.args[1].op == "@constant" and not value.args[1].data):
            yield Remark(value.node, f"{short(value.node)} sets {value.data} of the one data set under both parts: {short(others[0].node)} (line {others[0].line}) reads it too")


def _base_of(value: Value) -> tuple[Value, Value] | None:
    """The part, and the data set below it, of `part.dataset`."""
    return _part_of(value.args[0]) if value.op == "dataset" and value.args else None


def _part_of(part: Value | None) -> tuple[Value, Value] | None:
    """A part of a data set, and the whole."""
    if part is not None and part.op == "torch.utils.data.Subset" and part.args:
        return part, part.args[0]
    if part is None:
        return None
    if part.op == "part" and part.args[0].op == "torch.utils.data.random_split":
        return part, part.args[0].args[0]
    return None


@FINDERS.add("shuffled-apart")
def _shuffled_apart(program: Program) -> Iterator[Remark]:
    """Inputs and targets of a loss are put into two orders, each drawn by itself."""
    computation = computation_of(program)
    known = networks(computation)
    for value in computation.of(*_LOSSES) if any(True for _ in computation.of(*_ORDERS)) else ():
        if len(value.args) < 2 or value.where.no_grad:
            continue
        for output, target in (value.args[:2], value.args[1::-1]):
            if not any(is_run_of_network(one, known) for one in origins(output)) or any(one.op == "run" for one in origins(target)):
                continue
            mine, theirs = (_orders(part) for part in (output, target))
            if len(mine) == len(theirs) == 1 and mine[0] is not theirs[0] and _are_alike(mine[0], theirs[0]) and not _are_seeded_alike(mine[0], theirs[0]):
                yield Remark(mine[0].node, f"{short(mine[0].node)} and {short(theirs[0].node)} (line {theirs[0].line}) are two draws: inputs meet targets of other samples")


def _are_alike(one: Value, other: Value) -> bool:
    """Whether two draws are made by the same operation in the same passes."""
    return one.op == other.op and one.where.loops == other.where.loops


def _orders(value: Value) -> list[Value]:
    """The random orders that rows are in, not those that only give their number."""
    return [one for one in origins(value, stop=("len", "shape", "size", "range", "index")) if one.op in _ORDERS]


def _are_seeded_alike(one: Value, other: Value) -> bool:
    """Whether two draws come from two generators that are made with seeds: they may draw alike. One generator does not."""
    mine, theirs = ([part for part in origins(draw) if part.op in ("manual_seed", "default_rng", "RandomState") and any(number(seed) is not None for seed in part.args)] for draw in (one, other))
    return bool(mine and theirs) and not any(part is each for part in mine for each in theirs)


@FINDERS.add("held-out-rows-in-the-loss")
def _rows_in_the_loss(program: Program) -> Iterator[Remark]:
    """A loss is taken over all rows, and results for parts of the same rows, drawn at random, are scored apart."""
    computation = computation_of(program)
    parts = [one for one in computation.of("part") if one.where.no_grad and len(one.args) == 2 and _is_share(one.args[1])]
    for loss in computation.of(*_LOSSES) if parts else ():
        if loss.where.no_grad or len(loss.args) < 2 or constant(loss.named.get("reduction")) == "none" or any(one.op in ("part", "rows") for one in _whole(loss.args[1])):
            continue
        rows = list(_whole(loss.args[1]))[-1]
        if rows.op in ("@constant", "@input", "element") or any(one.op == "part" and _is_share(one.args[1]) for one in origins(loss.args[0]) if len(one.args) == 2):
            continue
        scored = [one for one in parts if any(each is rows for each in origins(one.args[0]))]
        if len({id(bare(one.args[1])) for one in scored}) > 1 or any(bare(one.args[1]).op == "invert" for one in scored):
            yield Remark(loss.node, f"{short(loss.node)} is taken over all rows, also over those that {short(scored[-1].node)} (line {scored[-1].line}) scores as held out")
            return


def _whole(value: Value) -> Iterator[Value]:
    """A target, and what it was before its shape and scale."""
    for _ in range(30):
        yield value
        inner = bare(value)
        if inner is value and inner.op in ("sub", "div", "mul") and inner.args:
            inner = inner.args[0]
        if inner is value:
            return
        value = inner


def _is_share(index: Value) -> bool:
    """Whether an index is a part of a random order, or a mask that was set by one."""
    found = list(origins(index))
    return any(one.op in _ORDERS for one in found) and bare(index).op in ("part", "set_item", "invert", "from_numpy", "element", "zeros")
