"""What is fitted to all rows before some of them are held out: directions of the largest spread, and which columns are kept.
Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import KEPT, SHAPED, Many, Value, bare, constant, number, origins
from probe.diagnose.code.finders.rows.cut_in_two import cuts
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import LOSSES, without_small

FINDERS = Finders()
_SPREADS = ("svd", "eigh", "eig", "pca_lowrank", "svd_lowrank", "torch.pca_lowrank", "torch.svd_lowrank", "svdvals", "cov")
_RANKED = ("topk", "argsort", "sort", "argpartition", "gt", "ge", "lt", "le", "argmax", "nonzero", "where", "sorted")
_SCALED = ("sub", "div", "part", "rows", "either", "log", "log1p", "copy", "mul", "add")


@FINDERS.add("scaled-before-the-split")
def _turned_before(program: Program) -> Iterator[Remark]:
    """Rows are turned by the directions of the largest spread of all of them, and cut into parts after that."""
    computation = computation_of(program)
    if not any(True for _ in computation.of(*_SPREADS)):
        return
    for cut, wholes, _ in cuts(computation):
        for one in (each for whole in wholes for each in _before(whole)):
            if one.op != "matmul" or len(one.args) != 2 or one.where.loops:
                continue
            rows = {id(each) for each in _before(one.args[0])}
            fitted = next((each for each in origins(one.args[1]) if each.op in _SPREADS and each.args and _is_of_all(each.args[0], rows)), None)
            if fitted is not None and not _is_cut(one.args[0]):
                yield Remark(fitted.node, f"{short(fitted.node)} takes the directions of all rows, and line {cut.line} cuts held-out rows from what {short(one.node)} (line {one.line}) makes by them")
                return


def columns_chosen_by_all_rows(program: Program) -> Iterator[Remark]:
    """Columns are kept by how they go with the target over all rows, and the rows are cut into parts after that."""
    computation = computation_of(program)
    found = list(cuts(computation))
    targets = {id(one): one for loss in computation.of(*LOSSES) if len(loss.args) > 1 and not loss.where.no_grad for one in _before(loss.args[1]) if found}
    for cut, wholes, _ in found:
        for one in (each for whole in wholes for each in _before(whole)):
            chosen = _kept_columns(one)
            if chosen is None or one.where.loops:
                continue
            asked = next((each for each in _whole_in(chosen, targets) if each.op != "@constant"), None)
            if asked is not None:
                yield Remark(one.node, f"{short(one.node)} keeps columns by how they go with {short(asked.node)} (line {asked.line}), the target, over all rows, and line {cut.line} cuts held-out rows from them")
                return


def _before(value: Value) -> Iterator[Value]:
    """A value and what it was before its rows were taken, and its numbers shifted and scaled."""
    for _ in range(60):
        yield value
        if isinstance(value, Many) and len(value.parts) == 1:
            value = value.parts[0]
        elif value.args and (value.op in _SCALED or value.op in KEPT or value.op in SHAPED):
            value = value.args[0]
        else:
            return


def _is_of_all(value: Value, rows: set[int]) -> bool:
    """Whether a value is made of rows as a whole, and not of some of them alone."""
    waiting, seen = [value], {id(value)}
    while waiting:
        at = waiting.pop()
        if id(at) in rows and not _is_cut(at):
            return True
        if at.op == "part" and id(bare(at.args[0])) in rows:
            continue
        for one in at.made_of():
            if id(one) not in seen:
                seen.add(id(one))
                waiting.append(one)
    return False


def _is_cut(value: Value) -> bool:
    """Whether some rows alone of a value are taken."""
    return any(one.op == "part" and len(one.args) == 2 and (one.args[1].op == "slice" or isinstance(one.args[1], Many) or bare(one.args[1]).op == "part") for one in _before(value))


def _kept_columns(value: Value) -> Value | None:
    """What says which columns of a table are kept: `best` of `x[:, best]`."""
    columns: Value | None = None
    if value.op == "part" and len(value.args) == 2 and isinstance(index := value.args[1], Many) and len(index.parts) == 2 and (index.parts[0].op == "slice" or constant(index.parts[0]) is ...):
        columns = index.parts[1]
    elif value.op in ("index_select", "take", "compress") and value.args:
        axis = value.argument("axis", 2) if value.op != "index_select" else value.argument("dim", 1)
        columns = value.argument("index", 2) if value.op == "index_select" else value.args[min(1, len(value.args) - 1)]
        columns = columns if number(axis if axis is not None else value.named.get("dim")) in (1, -1) else None
    return columns if columns is not None and columns.op not in ("slice", "@constant") and any(one.op in _RANKED for one in origins(columns)) else None


def _whole_in(chosen: Value, targets: dict[int, Value]) -> Iterator[Value]:
    """The targets that a choice is made of as a whole, and not some rows of them alone."""
    waiting, seen = [chosen], {id(chosen)}
    while waiting:
        at = waiting.pop()
        if id(at) in targets:
            if not _is_cut(at):
                yield at
            continue
        if at.op == "part" and id(bare(at.args[0])) in targets:
            continue
        for one in at.made_of():
            if id(one) not in seen:
                seen.add(id(one))
                waiting.append(one)


def is_centred(value: Value) -> bool:
    """Whether a mean or the least of others was taken away from a value, and it was divided."""
    inner = bare(value)
    centred = bare(inner.args[0]) if inner.op == "div" and len(inner.args) == 2 else inner
    level = without_small(centred.args[1]) if centred.op == "sub" and len(centred.args) == 2 else centred
    level = bare(level.args[0]) if level.op == "part" and level.args else level
    return centred.op == "sub" and inner.op == "div" and level.op in ("mean", "min", "median", "amin", "nanmean")


def categories_scaled(program: Program) -> Iterator[Remark]:
    """The numbers of categories are scaled like measurements, and rows of an embedding are looked up by what is left of them."""
    for run in _lookups(computation_of(program)):
        at = run.args[1]
        for _ in range(40):
            if is_centred(at):
                yield Remark(run.node, f"{short(run.node)} looks up rows by what {short(bare(at).node)} (line {bare(at).line}) has scaled: its whole numbers are those of a few deviations, and not of categories")
                return
            if isinstance(at, Many) and len(at.parts) == 1:
                at = at.parts[0]
            elif at.args and (at.op in KEPT or at.op in SHAPED or at.op in ("part", "rows", "element", "abs", "clamp", "round", "unbind", "split")):
                at = at.args[0]
            else:
                break


def _lookups(computation: Computation) -> Iterator[Value]:
    """Where rows of an embedding are looked up."""
    for value in computation.of("run"):
        if len(value.args) == 2 and value.args[0].op in ("torch.nn.Embedding", "torch.nn.EmbeddingBag"):
            yield value
