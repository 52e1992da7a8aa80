"""Held-out rows that a loader leaves out, because they fill no batch. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    Many,
    Value,
    alternatives,
    bare,
    constant,
    number,
    origins,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import LOSSES, losses

FINDERS = Finders()
_LOADER = "torch.utils.data.DataLoader"
_COUNTED = frozenset({"shape", "size", "len", "dim", "numel", "ndim"})
_WITHIN_THE_BATCH = ("diag", "diagonal", "eye", "fill_diagonal_", "jit", "CUDAGraph", "compile", "trace")
"""Operations of what compares the samples of a batch with each other, or is made for batches of one size."""
_COUNTS = ("bincount", "index_add", "index_put", "scatter_add", "set_item", "histogram2d")
_PRODUCTS = ("matmul", "mm", "bmm", "cdist", "einsum", "cosine_similarity")
_MADE = ("zeros", "randn", "empty", "ones", "full", "view", "reshape", "expand", "arange", "repeat")
_STATES = ("zeros", "ones", "empty")
_ROWS = {"MNIST": 10000, "FashionMNIST": 10000, "KMNIST": 10000, "CIFAR10": 10000, "CIFAR100": 10000, "SVHN": 26032, "STL10": 8000}
"""How many rows the test parts of data sets of torchvision have."""


@FINDERS.add("option-of-other-loader")
def _drops_held_out_rows(program: Program) -> Iterator[Remark]:
    """A loader that is only judged keeps the order of its rows, and drops those that fill no batch."""
    computation = computation_of(program)
    dropping = [one for one in computation.of(_LOADER) if _drops(one)]
    if not dropping or any(_is_within_the_batch(one) for one in computation.values):
        return
    trained = {id(one.named["loader"]) for _, loss in losses(computation) for one in origins(loss) if one.op == "rows" and "loader" in one.named}
    said: set[ast.AST] = set()
    for loader in dropping if trained else ():
        size, data = loader.argument("batch_size", 1), loader.argument("dataset", 0)
        most = number(size)
        if id(loader) in trained or loader.node in said or size is None or data is None or most is None or most < 2:
            continue
        if _is_size_of_more(computation, size) or not _is_judged(computation, loader):
            continue
        rows = _rows_of(data)
        if rows is not None and rows % most == 0:
            continue
        said.add(loader.node)
        rest = f"up to {most - 1:g} rows" if rows is None else f"{rows % most:g} of {rows:g} rows"
        yield Remark(loader.node, f"{short(loader.node)}, which is evaluated on, drops what fills no batch of {most:g}: {rest}, always the last ones, are never judged")


def _drops(loader: Value) -> bool:
    """Whether a loader goes over rows in their order, and drops the last ones."""
    mixed = [loader.argument(name, place) for name, place in (("shuffle", 2), ("sampler", 3), ("batch_sampler", 4))]
    plain = all(one is None or (one.op == "@constant" and not one.data) for one in mixed)
    return constant(loader.argument("drop_last", 8)) is True and plain and "**" not in loader.named


def _is_within_the_batch(value: Value) -> bool:
    """Whether a value belongs to what needs whole batches: the samples of a batch are compared with each other."""
    if value.op in ("diag", "diagonal") and any(one.op in _COUNTS for one in origins(value)) and not any(one.op in _PRODUCTS for one in origins(value, ("run",))):
        return False  # of a table of right and wrong answers
    if value.op.rpartition(".")[2] in _WITHIN_THE_BATCH:
        return True
    return value.op in LOSSES and len(value.args) > 1 and bare(value.args[1]).op == "arange"


def _is_size_of_more(computation: Computation, size: Value) -> bool:
    """Whether more than loaders is made for batches of a size: the state of a network, for example."""
    users = computation.users(size)
    listed = [each for one in users if isinstance(one, Many) for each in computation.users(one)]
    states = (part for one in computation.of(*_STATES) for given in one.args for part in (given.parts if isinstance(given, Many) else [given]))
    return any(one.op in _MADE for one in (*users, *listed)) or any(number(one) == number(size) for one in states)


def _is_judged(computation: Computation, loader: Value) -> bool:
    """Whether what a network gives without gradients for the rows of a loader is compared with more of the same rows."""
    rows = [one for one in computation.of("rows") if one.named.get("loader") is loader]
    if not rows or any(isinstance(one, ast.Break) for value in rows for loop in value.where.loops[-1:] for one in ast.walk(loop)):
        return False
    made = _made_from(computation, rows)
    given = [one for one in made.values() if one.op == "run" and one.where.no_grad and any(id(each) in made for each in (*one.args[1:], *one.named.values()))]
    results = _made_from(computation, given)
    return any(_compares(one, made, results) for one in results.values() if not isinstance(one, Many) and one.op not in ("run", "append"))


def _compares(value: Value, made: dict[int, Value], results: dict[int, Value]) -> bool:
    """Whether a value is computed of a result, and of rows that are no result."""
    given = [one for one in value.made_of() if id(one) in made]
    return any(id(one) in results for one in given) and any(id(one) not in results for one in given)


def _made_from(computation: Computation, values: Iterable[Value]) -> dict[int, Value]:
    """Values and all that is made from them, but not how many they are."""
    waiting = list(values)
    found = {id(one): one for one in waiting}
    while waiting:
        for user in computation.users(waiting.pop()):
            if id(user) not in found and user.op not in _COUNTED:
                found[id(user)] = user
                waiting.append(user)
    return found


def _rows_of(data: Value) -> float | None:
    """How many rows a data set has, where that is written out."""
    found = {_length(one) for one in alternatives(data)}
    return found.pop() if len(found) == 1 else None


def _length(data: Value, depth: int = 20) -> float | None:
    """How long the first axis of a tensor is, or a data set of tensors."""
    name = data.op.rpartition(".")[2]
    if depth == 0 or not data.args:
        return None
    if name == "TensorDataset" or data.op in KEPT or name in ("float", "normalize", "relu"):
        return _length(data.args[0], depth - 1) if not isinstance(data, Many) else None
    if data.op.startswith("torchvision.datasets.") and name in _ROWS:
        train, split = constant(data.argument("train", 1)), constant(data.argument("split", 1))
        return _ROWS[name] if train is False or split == "test" else None
    if name == "Subset":
        chosen = data.argument("indices", 1)
        return number(chosen.args[0]) if chosen is not None and chosen.op == "range" and len(chosen.args) == 1 else None
    if data.op in ("zeros", "ones", "empty", "rand", "randn", "full"):
        first = data.args[0].parts[0] if isinstance(data.args[0], Many) and data.args[0].parts else data.args[0]
        return number(first)
    if data.op == "part" and data.args[1].op == "slice":
        whole = _length(data.args[0], depth - 1)
        ends = [constant(one) for one in data.args[1].args[:2]]
        if any(one is not None and not isinstance(one, int) for one in ends) or (None in ends[1:] and whole is None):
            return None
        if whole is None:
            begin, end = ends[0] or 0, ends[1]
            return float(end - begin) if isinstance(end, int) and 0 <= begin < end else None
        return float(len(range(int(whole))[slice(*ends)]))
    return None
