"""Decoders that go step by step through a text, and what they read at each step. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    SHAPED,
    Many,
    Value,
    alternatives,
    bare,
    is_none,
    number,
    origins,
    same,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short

FINDERS = Finders()
_CELLS = ("torch.nn.GRUCell", "torch.nn.LSTMCell", "torch.nn.RNNCell", "torch.nn.GRU", "torch.nn.LSTM", "torch.nn.RNN")
_MOVED = frozenset({"transpose", "permute", "log_softmax", "mT"}) | SHAPED | (KEPT - {"stack", "list", "tuple", "either"})


@FINDERS.add("decoder-given-its-labels")
def _own_word_of_the_step(program: Program) -> Iterator[Remark]:
    """A decoder reads at each step the word that it is to say there: `h = cell(embed(target[:, t]), h)`."""
    computation = computation_of(program)
    for loss in computation.of("cross_entropy", "nll_loss"):
        asked = _cut(loss.args[1]) if len(loss.args) > 1 else None
        said = _cut(loss.args[0]) if asked is not None else None
        if asked is None or said is None:
            continue
        for step, place in _steps(said[0]):
            for read in _read(step):
                word = bare(read.args[1])
                index = _index_of_step(word)
                if index is None or not same(bare(word.args[0]), bare(asked[0])):
                    continue
                begin = _begin(index) if place is None else None
                # What is said at place p of the row of results is compared with the word p - said + asked.
                behind = begin + said[1] == asked[1] if begin is not None else place is not None and same(place, index) and said[1] == asked[1]
                if behind:
                    yield Remark(loss.node, f"{short(loss.node)} asks for {short(bare(loss.args[1]).node)}, and {short(read.node)} (line {read.line}) reads at each step the word that is to be said there")
                    return


def _cut(value: Value) -> tuple[Value, float] | None:
    """A row, and how many of its first places are left out: `x[:, 1:]`."""
    value = _plain(value)
    if value.op != "part" or len(value.args) != 2:
        return value, 0.0
    parts = value.args[1].parts if isinstance(value.args[1], Many) else []
    if len(parts) == 2 and parts[0].op in ("element", "randperm", "randint", "@input") and parts[1].op == "slice":  # rows[chosen, 1:]
        begin = 0.0 if is_none(parts[1].args[0]) else number(parts[1].args[0])
        return None if begin is None else (Value("part", (value.args[0], parts[0]), node=value.node, where=value.where), begin)
    if len(parts) < 2 or any(one.op != "slice" for one in parts) or not is_none(parts[0].args[0]) or any(not is_none(one.args[0]) for one in parts[2:]):
        return None
    begin = 0.0 if is_none(parts[1].args[0]) else number(parts[1].args[0])
    return None if begin is None else (_plain(value.args[0]), begin)


def _plain(value: Value) -> Value:
    """A value before its axes were turned or joined."""
    while value.op in _MOVED and value.args and not isinstance(value, Many):
        value = value.args[0]
    return value


def _steps(value: Value) -> Iterator[tuple[Value, Value | None]]:
    """What each step of a loop says, and the place where it is put; None where it is put behind those before it."""
    inner = bare(value.args[0]) if value.op in ("stack", "cat") and value.args else value
    if isinstance(inner, Many) and len(inner.parts) == 1 and inner.parts[0].where.loops:
        yield inner.parts[0], None
    elif value.op == "set_item" and len(value.args) == 3 and isinstance(value.args[1], Many):
        parts = value.args[1].parts
        if len(parts) == 2 and parts[0].op == "slice" and parts[1].op == "index":
            yield value.args[2], parts[1]


def _read(said: Value) -> Iterator[Value]:
    """The tables of embeddings that are read for what a step says, without those of the states before it."""
    for one in origins(said, stop=("torch.nn.Embedding",)):
        if one.op == "run" and one.args[0].op in _CELLS and len(one.args) > 1:
            waiting = [one.args[1]]
            while waiting:
                at = bare(waiting.pop(), "dropout", "relu")
                if at.op == "run" and len(at.args) == 2 and at.args[0].op == "torch.nn.Embedding":
                    yield at
                elif at.op == "run" and len(at.args) == 2 and at.args[0].op in ("torch.nn.Dropout", "torch.nn.LayerNorm"):
                    waiting.append(at.args[1])
                elif at.op == "cat" and isinstance(at.args[0], Many):
                    waiting += at.args[0].parts


def _index_of_step(word: Value) -> Value | None:
    """The step at which a word is read of a row: `t` of `target[:, t]`, also as `target[:, t:t + 1]`."""
    for one in alternatives(word):
        parts = one.args[1].parts if one.op == "part" and len(one.args) == 2 and isinstance(one.args[1], Many) else []
        if one is word and len(parts) == 2 and parts[0].op == "slice" and is_none(parts[0].args[0]):
            at = parts[1].args[0] if parts[1].op == "slice" else parts[1]
            return at if at.op == "index" else None
    return None


def _begin(index: Value) -> float | None:
    """The first number of a loop's steps."""
    return 0.0 if not index.args or (len(index.args) == 1 and index.data != "enumerate") else number(index.args[0])
