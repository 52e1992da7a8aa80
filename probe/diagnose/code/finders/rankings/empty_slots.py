"""Slots of ranked lists that stay 0 where fewer things are ranked. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, bare, is_none, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import is_call, short
from probe.diagnose.code.traits.numberings import begins_at, written

_WHOLE = ("int64", "long", "int32", "int")
_RANKED = ("topk", "argsort", "sort", "argpartition")
_ASKED = ("eq", "in", "isin", "in1d", "intersection")


def slots_left_at_zero(program: Program) -> Iterator[Remark]:
    """A block of zeros gets as many ranked numbers in each row as there are, and all of its slots are compared with what is right,
    where 0 is the number of one of the ranked things."""
    computation = computation_of(program)
    if _leaves_out_0(computation):
        return
    for block in computation.of("zeros", "new_zeros", "zeros_like"):
        kind = block.named.get("dtype")
        if kind is None or str(kind.data).rpartition(".")[2] not in _WHOLE:
            continue
        for one in written(computation, block):
            ranked = len(one.args) > 2 and begins_at(one.args[1]) == 0 and _ends_open(one.args[1]) and any(each.op in _RANKED or is_call(each.node, "sorted", "nlargest") for each in origins(one.args[2], ("run",)))
            asked = next((each for each in computation.of(*_ASKED) if ranked and each.number > one.number and any(part is block for part in origins(each.args[0], ("run",)))), None)
            if asked is not None and not _is_masked(computation, asked):
                yield Remark(asked.node, f"{short(asked.node)} asks about all slots of {short(block.node)} (line {block.line}), and {short(one.node)} (line {one.line}) fills as many as are ranked: the others stay 0, which is the number of one of them")
                return


def _ends_open(index: Value) -> bool:
    """Whether the last slice of an index ends at a number that is not known."""
    last = index.parts[-1] if hasattr(index, "parts") and index.parts else index
    return last.op == "slice" and not is_none(last.args[1]) and number(last.args[1]) is None and bare(last.args[1]).op in ("len", "size", "part", "min", "builtins.min")


def _is_masked(computation: Computation, asked: Value) -> bool:
    """Whether what is asked counts only where a slot was filled."""
    both = [one for one in computation.users(asked) if one.op in ("and", "mul", "logical_and")]
    return any(bare(part).op in ("lt", "le", "gt", "ge", "ne") or bare(part).op in ("zeros", "set_item") for one in both for part in one.args if part is not asked)


def _leaves_out_0(computation: Computation) -> bool:
    """Whether 0 may be the number of nothing: an embedding or a loss leaves it out, or has one entry more than there are things."""
    for one in computation.of("torch.nn.Embedding", "torch.nn.EmbeddingBag"):
        count, padding = one.argument("num_embeddings", 0), one.argument("padding_idx", 2)
        if (padding is not None and number(padding) == 0) or (count is not None and count.op == "add"):
            return True
    ignored = [one.argument("ignore_index", 4) for one in computation.of("cross_entropy", "nll_loss")]
    return any(one is not None and number(one) == 0 for one in ignored)
