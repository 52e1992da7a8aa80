"""What is reported of texts, and how their words find their numbers. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Table, Value, bare, constant, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses
from probe.diagnose.code.traits.tallies import tally_of

_GUESSED = ("argmax", "multinomial", "topk")
_DISTANCES = ("editdistance.eval", "Levenshtein.distance", "editdistance.distance", "rapidfuzz.distance.Levenshtein.distance", "nltk.edit_distance", "nltk.metrics.distance.edit_distance", "torchaudio.functional.edit_distance")
_CASES = ("lower", "casefold", "upper")


def errors_per_guessed_word(program: Program) -> Iterator[Remark]:
    """The number of edits between a text and what was read is divided by the length of what was read."""
    computation = computation_of(program)
    for rate in computation.of("div"):
        if len(rate.args) != 2:
            continue
        edits, count = (_added(program, one) for one in rate.args)
        if not _is_edits(edits):
            continue
        if count.op in ("max", "maximum", "add") and len(count.args) == 2:
            count = bare(next((one for one in count.args if number(one) is None), count))
        if count.op != "len" or not count.args:
            continue
        by = list(origins(count.args[0]))
        others = [one for one in origins(edits) if one.op in _GUESSED]
        if any(one.op in _GUESSED and any(one is other for other in others) for one in by):
            yield Remark(rate.node, f"{short(rate.node)} divides the edits by the length of {short(count.args[0].node)}, which the network has guessed, and not by that of the text itself")
            return


def _added(program: Program, value: Value) -> Value:
    """What is added up in a loop, or a value itself."""
    inner = bare(value)
    if inner.op == "max" and len(inner.args) == 2 and any(number(one) is not None for one in inner.args):
        inner = bare(next((one for one in inner.args if number(one) is None), inner))
    tally = tally_of(program, inner)
    return inner if tally is None else bare(tally.step)


def _is_edits(value: Value) -> bool:
    """Whether a value is how many edits lie between two texts."""
    value = bare(value)
    if value.op in _DISTANCES:
        return True
    return any(one.op == "min" and len(one.args) > 2 and sum(each.op == "add" for each in one.args) > 1 for one in origins(value))


def perplexity_of_more(program: Program) -> Iterator[Remark]:
    """The exponential is taken of a cross entropy to which a penalty was added."""
    computation = computation_of(program)
    learned = {id(one) for _, loss in losses(computation) for one in origins(loss)}
    for value in computation.of("exp"):
        if id(value) in learned or len(value.args) != 1:
            continue
        total = _unaveraged(program, value.args[0])
        parts = total.args if total.op == "add" and len(total.args) == 2 else ()
        words = [one for one in parts if bare(one).op == "cross_entropy" and len(bare(one).args) > 1]
        more = next((one for one in parts if one not in words), None)
        if len(words) == 1 and more is not None and _is_penalty(more):
            yield Remark(value.node, f"{short(value.node)} is the exponential of {short(total.node)} (line {total.line}), which is more than the loss of the words: {short(more.node)} is added to it")
            return


def _unaveraged(program: Program, value: Value) -> Value:
    """What was added up for a mean."""
    for _ in range(12):
        value = bare(value)
        tally = tally_of(program, value)
        if tally is not None:
            value = tally.step
        elif value.op in ("div", "mul") and len(value.args) == 2 and number(value.args[0]) is None:
            value = value.args[0]
        elif value.op in ("min", "mean", "sum", "sum_of", "part") and value.args:
            value = value.args[0]
            value = value.parts[0] if isinstance(value, Many) and len(value.parts) == 1 else value
        elif isinstance(value, Many) and len(value.parts) == 1:
            value = value.parts[0]
        else:
            return value
    return value


def _is_penalty(value: Value) -> bool:
    """Whether a value is a multiple of a mean or sum of squares or sizes, and no divergence."""
    inner = bare(value)
    weight = [one for one in inner.args if number(one) is not None] if inner.op == "mul" else []
    body = next((one for one in inner.args if one not in weight), inner) if weight else inner
    made = list(origins(body, ("run", "torch.nn.Parameter", "parameters")))
    return bool(weight) and any(one.op in ("pow", "square", "abs", "norm", "vector_norm") for one in made) and not any(one.op in ("exp", "log", "kl_div", "log_softmax", "entropy") for one in made)


def looked_up_as_written(program: Program) -> Iterator[Remark]:
    """A table was filled with words in small letters, and words are looked up in it as they are written."""
    computation = computation_of(program)
    tables = {id(one.args[0]): one.args[0] for one in computation.of("part", "get", "setdefault", "set_item") if one.args and isinstance(one.args[0], Table)}
    for table in tables.values():
        others = table.others if isinstance(table, Table) else []
        keys = [*(key for key, _ in others), *(one.args[1] for one in computation.users(table) if one.op in ("setdefault", "set_item") and len(one.args) > 2)]
        looked = [one for one in computation.users(table) if one.op in ("part", "get") and len(one.args) > 1 and one.args[0] is table and constant(one.args[1]) is None]
        if not keys or any(_case(one) is None for one in keys):
            continue
        for one in looked:
            if _case(one.args[1]) is None and _is_of_texts(one.args[1]) and not any(other.node is one.node or other in origins(one) for other in looked if other is not one and _case(other.args[1]) is not None):
                yield Remark(one.node, f"{short(one.node)} looks words up as they are written, and {short(keys[0].node)} (line {keys[0].line}) puts them in by {_case(keys[0])}()")
                return


def _case(key: Value) -> str | None:
    """The way in which the letters of a word were made alike."""
    for _ in range(12):
        if key.op in _CASES:
            return key.op
        if isinstance(key, Many) and key.parts:
            key = key.parts[0]
            continue
        if not key.args:
            return None
        key = key.args[1] if key.op in ("re.findall", "findall", "re.split", "map") and len(key.args) > 1 else key.args[0]
    return None


def _is_of_texts(key: Value) -> bool:
    """Whether a key is a word of a text that may have large letters."""
    made = list(origins(key))
    texts = [one.data for one in made if one.op == "@constant" and isinstance(one.data, str) and len(one.data) > 1]
    cut = any(one.op in ("split", "findall", "element") for one in made)
    return cut and (any(text != text.lower() for text in texts) or any(one.op in ("read", "readlines", "open", "@input", "pandas.read_csv", "load") for one in made))
