"""Losses that take all other rows of a batch for opponents. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short

_REPEATED = ("repeat", "repeat_interleave", "tile", "element", "part", "rows", "permutation", "shuffle", "sort")
_GENERATORS = ("default_rng", "RandomState")


def partners_among_the_opponents(program: Program) -> Iterator[Remark]:
    """Each row is to find its partner among those of the batch, and there are fewer different partners than rows."""
    computation = computation_of(program)
    for loss in computation.of("cross_entropy"):
        if len(loss.args) < 2 or bare(loss.args[1]).op != "arange":
            continue
        near = list(origins(loss.args[0], stop=("run", "rows", "matmul")))
        product = next((one for one in near if one.op == "matmul"), None)
        if product is None or any(one.op in ("masked_fill", "where", "eq", "ne", "masked_fill_") for one in near):
            continue
        for side in product.args[:2]:
            batch = batch_size(side)
            for chosen in origins(side) if batch is not None else ():
                kinds = kinds_of(_chosen_by(chosen)) or (_rows_of_table(chosen) if _vectors(side) is chosen else None)
                if batch is not None and kinds is not None and kinds <= batch:
                    yield Remark(loss.node, f"{short(loss.node)} takes all other rows of a batch of {batch:.0f} for opponents, and {short(chosen.node)} (line {chosen.line}) chooses the partners by a label of {kinds:.0f} kinds: rows of one label are pushed apart")
                    return


def _chosen_by(value: Value) -> Value | None:
    """The label by which a row is taken from a table, or a sample from those of one label."""
    if value.op != "part" or len(value.args) != 2:
        return None
    index = bare(value.args[1], "builtins.int")
    if _is_column(index):
        return value.args[1] if not any(one.op == "rows" for one in origins(value.args[0])) else None
    if index.op in ("part", "choice"):  # a draw among those of one label
        pool = bare(index.args[0])
        key = bare(pool.args[1], "builtins.int") if pool.op == "part" and len(pool.args) == 2 else None
        return key if key is not None and _is_column(key) else None
    return None


def _vectors(side: Value) -> Value:
    """The vectors that are compared, before they were turned, scaled or brought to one length."""
    for _ in range(12):
        side = bare(side, "normalize", "t", "T", "mT", "transpose")
        factors = [one for one in side.args if any(each.op == "run" for each in origins(one))] if side.op in ("mul", "div") else []
        if len(factors) != 1:
            break
        side = factors[0]
    return side


def _rows_of_table(value: Value) -> float | None:
    """How many rows a table of embeddings has, of which one is taken for each sample."""
    looked_up = value.op == "run" and len(value.args) == 2 and value.args[0].op == "torch.nn.Embedding"
    return number(value.args[0].argument("num_embeddings", 0)) if looked_up else None


def _is_column(value: Value) -> bool:
    """Whether a value is what a table holds for the sample that is read."""
    return value.op == "part" and len(value.args) == 2 and value.args[1].op in ("index", "@input")


def kinds_of(labels: Value | None) -> float | None:
    """How many different numbers a row of labels holds at most; None where that is unknown."""
    while labels is not None and labels.args:
        labels = bare(labels)
        if labels.op in _REPEATED:
            labels = labels.args[0]
        elif labels.op in ("randint", "integers", "range", "arange"):
            given = [number(one) for one in labels.args if not one.op.endswith(_GENERATORS)][:2]
            if len(given) == 2 and given[0] is not None and given[1] is not None:
                return given[1] - given[0]
            return given[0] if given else None
        elif labels.op == "mod" and len(labels.args) == 2:
            return number(labels.args[1])
        else:
            return None
    return None


def batch_size(side: Value) -> float | None:
    """The size of the batches that a side of the comparison is made of."""
    loader = next((one.named["loader"] for one in origins(side) if one.op == "rows" and "loader" in one.named), None)
    return None if loader is None else number(loader.argument("batch_size", 1))
