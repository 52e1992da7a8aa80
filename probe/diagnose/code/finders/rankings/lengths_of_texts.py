"""Texts that are ranked by how likely they are for their length. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import KEPT, SHAPED, Many, Value, bare, is_none, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short

_PASSED = frozenset({"element", "rows", "either", "repeat", "expand", "index_select", "gather", "repeat_interleave", "tile", "part", "add", "cat", "hstack", "concatenate", "tensor", *KEPT, *SHAPED})
_GROWN = ("cat", "hstack", "concatenate", "append", "add")


def prompt_in_the_length(program: Program) -> Iterator[Remark]:
    """What a text scores for the words that were written is divided by the number of all its words, those of the prompt too."""
    computation = computation_of(program)
    for value in computation.of("div"):
        text = _length_of(value.args[1]) if len(value.args) == 2 else None
        if text is None or not _is_likelihood(value.args[0]) or _of_the_whole(value.args[0]):
            continue
        inside = list(_pieces(text))
        if not any(map(_is_written, inside)):
            continue
        prompt = next((one for one in inside if not any(map(_is_written, _pieces(one))) and _is_a_prompt(computation, one)), None)
        if prompt is not None:
            yield Remark(value.node, f"{short(value.node)} divides by the number of all words, also those of {short(prompt.node)} (line {prompt.line}), which the text was begun with, and {short(value.args[0].node)} is the sum over the words that were written behind it")
            return


def _length_of(value: Value) -> Value | None:
    """The text whose length a value is, or a power of it."""
    value = bare(value, "builtins.float")
    if value.op == "pow" and len(value.args) == 2:
        value = bare(value.args[0], "builtins.float")
    if value.op == "len" and value.args:
        return value.args[0]
    if value.op == "part" and len(value.args) == 2 and value.args[0].op in ("shape", "size") and number(value.args[1]) in (1, -1):
        return value.args[0].args[0]
    return value.args[0] if value.op == "size" and len(value.args) == 2 and number(value.args[1]) in (1, -1) else None


def _is_likelihood(value: Value) -> bool:
    """Whether a value is added up of logarithms of probabilities that a network gives."""
    return any(one.op == "log_softmax" or (one.op == "log" and any(each.op == "softmax" for each in origins(one, stop=("run",)))) for one in origins(value, stop=("run",)))


def _of_the_whole(value: Value) -> bool:
    """Whether the probabilities are looked up for a whole text at once, that was written before, and so also for its prompt."""
    for one in origins(value, stop=("run",)):
        asked = one.args[1:] if one.op in ("gather", "cross_entropy", "nll_loss") else one.args[1].parts if one.op == "part" and isinstance(one.args[1], Many) else ()
        if any(_is_written(piece) for each in asked for piece in _pieces(each)):
            return True
    return False


def _is_written(text: Value) -> bool:
    """Whether words that a network has chosen are put behind a text."""
    return text.op in _GROWN and any(one.op in ("log_softmax", "softmax") for one in origins(text, stop=("run",)))


def _pieces(text: Value) -> Iterator[Value]:
    """A text, and the texts that it is put together or taken from."""
    waiting, seen = [text], {id(text)}
    while waiting and len(seen) < 400:
        at = waiting.pop()
        yield at
        inner = list(at.made_of()) if isinstance(at, Many) else list(at.args if at.op in ("either", "add") else at.args[:1]) if at.op in _PASSED else []
        for one in inner:
            if id(one) not in seen:
                seen.add(id(one))
                waiting.append(one)


def _is_a_prompt(computation: Computation, text: Value) -> bool:
    """Whether a text holds more than one word, which the program tells apart from what is written behind it."""
    cut = text.args[1] if text.op == "part" and len(text.args) == 2 else None
    cut = cut.parts[-1] if isinstance(cut, Many) and cut.parts else cut
    if cut is not None and cut.op == "slice":
        ends = [0.0 if is_none(cut.args[0]) else number(cut.args[0]), number(cut.args[1])]
        if ends[0] is not None and ends[1] is not None and ends[1] - ends[0] > 1:
            return True
    for value in computation.of("slice"):
        begun = bare(value.args[0])
        of = begun.args[0] if begun.op in ("len", "numel", "size") and begun.args else begun.args[0].args[0] if begun.op == "part" and begun.args[0].op in ("shape", "size") else None
        if of is not None and (of is text or bare(of) is bare(text) or same(bare(of), bare(text))):
            return True
    return False
