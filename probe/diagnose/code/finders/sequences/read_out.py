"""Reading texts out of what a network says: repeats and blanks of CTC, beams that begin alike, the first word. Pure; standard
library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, number, origins, same
from probe.diagnose.code.finders.sequences.same_words import ahead_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.numberings import written

_BLOCKS = ("zeros", "zeros_like", "new_zeros")
_LOSSES = ("cross_entropy", "nll_loss")


def beams_alike(program: Program) -> Iterator[Remark]:
    """The best continuations are looked for among those of several copies of one beginning, which all have the score 0."""
    computation = computation_of(program)
    for best in computation.of("topk"):
        flat = best.args[0] if best.args else best
        if flat.op not in ("view", "reshape", "flatten") or not best.where.loops or not flat.args:
            continue
        total = bare(flat.args[0])
        if total.op != "add" or len(total.args) != 2:
            continue
        for scores, words in (total.args, total.args[::-1]):
            block = bare(scores, "part")
            said = any(one.op == "log_softmax" for one in origins(words, stop=("run",)))
            if block.op in _BLOCKS and said and _is_wide(block, best) and not any(True for _ in written(computation, block)) and not _first_is_alone(best) and not any(one.op == "either" for one in computation.users(best)):
                yield Remark(best.node, f"{short(best.node)} looks among the continuations of all beams, and {short(block.node)} (line {block.line}) gives each the same score at the start: the copies of one beginning stay copies")
                return


def _is_wide(block: Value, best: Value) -> bool:
    """Whether scores are as many as beams are kept."""
    width = best.argument("k", 1)
    sizes = [each for one in block.args for each in (one.parts if isinstance(one, Many) else [one])]
    return width is not None and number(width) != 1 and any(same(one, width) for one in sizes)


def _first_is_alone(best: Value) -> bool:
    """Whether the first turn of a loop may be another one."""
    return bool(best.where.under) or any(one.op in ("where", "masked_fill", "set_item", "either") for one in origins(best.args[0], stop=("run",)))


def begun_with_another_word(program: Program) -> Iterator[Remark]:
    """What is generated begins with another number than what the decoder was trained on begins with."""
    computation = computation_of(program)
    trained: dict[int, set[float | None]] = {}
    for loss in computation.of(*_LOSSES):
        if loss.where.no_grad or not loss.args:
            continue
        decoded = [read for read, ahead in ahead_of(loss.args[0], loss.args[1]) if ahead == 1] if len(loss.args) > 1 else []
        for read in decoded or origins(loss.args[0]):
            if read.op == "run" and len(read.args) == 2 and read.args[0].op == "torch.nn.Embedding":
                trained.setdefault(id(read.args[0]), set()).add(_first_word(computation, read.args[1]))
    for read in computation.of("run"):
        if len(read.args) != 2 or read.args[0].op != "torch.nn.Embedding" or not read.where.no_grad or not read.where.loops:
            continue
        block, firsts = bare(read.args[1], "part"), trained.get(id(read.args[0]), set())
        start = number(block.argument("fill_value", 1)) if block.op == "full" else _single(read.args[1]) if read.args[1].op in ("tensor", "LongTensor") else None
        block = read.args[1] if read.args[1].op in ("tensor", "LongTensor") else block
        grown = any(one.op == "cat" for user in computation.users(block) for one in (user, *computation.users(user)))
        if start is not None and grown and firsts and None not in firsts and start not in firsts:
            known = sorted(one for one in firsts if one is not None)
            yield Remark(block.node, f"{short(block.node)} begins with {start:g} what is generated, and what {short(read.node)} (line {read.line}) reads in the training begins with {known[0]:g}")
            return


def _single(value: Value) -> float | None:
    """The number of `tensor([[n]])`."""
    for _ in range(4):
        value = bare(value)
        if isinstance(value, Many) and len(value.parts) == 1:
            value = value.parts[0]
    return number(value)


def _first_word(computation: Computation, words: Value) -> float | None:
    """The number that all rows of words begin with; None where that is unknown."""
    for _ in range(30):
        if words.op == "part" and len(words.args) == 2:
            index = words.args[1]
            last = index.parts[-1] if isinstance(index, Many) and index.parts else index
            if last.op != "slice" or (number(last.args[0]) or 0) != 0:
                return None
            words = words.args[0]
        elif words.op in ("cat", "concat") and words.args and isinstance(words.args[0], Many) and number(words.argument("dim", 1)) in (1, -1, None) and words.args[0].parts:
            first = words.args[0].parts[0]
            return number(first.argument("fill_value", 1)) if first.op == "full" else _single(first)
        elif words.op.endswith("pad_sequence") and isinstance(words.args[0], Many) and words.args[0].parts:
            words = words.args[0].parts[0]
        elif words.op in ("full", "zeros", "empty"):
            firsts = {number(one.args[2]) for one in written(computation, words) if _is_first(one.args[1])}
            return firsts.pop() if len(firsts) == 1 else None
        elif (words.op == "set_item" and len(words.args) == 3) or (words.args and words.op in ("to", "long", "clone", "contiguous", "rows")):
            words = words.args[0]
        else:
            return None
    return None


def _is_first(index: Value) -> bool:
    """Whether an index is `[i, 0]` or `[:, 0]`."""
    return isinstance(index, Many) and len(index.parts) == 2 and constant(index.parts[1]) == 0 and not isinstance(constant(index.parts[1]), bool)
