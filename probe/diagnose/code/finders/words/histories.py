"""What of a row of words or items a model is given, and what of it is asked for. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    Many,
    Value,
    alternatives,
    bare,
    constant,
    is_none,
    number,
    origins,
    same,
)
from probe.diagnose.code.finders.sequences.same_words import ahead_of, along
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.sides import Sides, sides_of, unshaped
from probe.diagnose.code.traits.uses import made_from

FINDERS = Finders()
_ASKED = ("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits")
_FILLS = ("zeros", "full", "ones", "zeros_like", "full_like", "ones_like", "new_zeros", "new_full")
_PADDED = ("pad", "pad_sequence", "torch.nn.utils.rnn.pad_sequence")


@FINDERS.add("target-in-its-window")
def _last_of_what_is_given(program: Program) -> Iterator[Remark]:
    """The target is the last one of a row of items, and the model is given the end of that row."""
    computation = computation_of(program)
    for sides in sides_of(computation):
        if _reads_before(sides):
            continue
        for loss in (one for one in sides.beside.values() if one.op in _ASKED and len(one.args) > 1):
            for target in alternatives(unshaped(loss.args[1])):
                rows, target = _chosen(target)
                home = _row_of_last(target)
                wholes = [whole for run in _first_runs(sides) for one in _wholes(run.args[1]) for whole in (one, *([_chosen(one)[1]] if rows is not None and _chosen(one)[0] is rows else []))]
                given = next((one for one in wholes if _holds_the_end(one, home)), None) if home is not None else None
                if given is not None:
                    yield Remark(target.node, f"{short(target.node)} is the target, and the model is given {short(given.node)} (line {given.line}), which ends with it")
                    return


@FINDERS.add("target-in-its-window")
def _summed_up_to_its_target(program: Program) -> Iterator[Remark]:
    """The target is one value of a series, and what the model is given beside others is computed of a stretch of the series that goes
    on to that value."""
    for sides in sides_of(computation_of(program)):
        for loss in (one for one in sides.beside.values() if one.op in _ASKED and len(one.args) > 1):
            series = [one for one in origins(loss.args[1], ("run",)) if one.op == "part" and len(one.args) == 2 and any(each.op == "index" for each in (one.args[1], *one.args[1].args))]
            for target in series:
                place = target.args[1]
                if place.op != "index" or not place.where.loops or sum(one.args[0] is target.args[0] for one in series) != 1:
                    continue
                for window in sides.given.values():
                    index = window.args[1] if window.op == "part" and len(window.args) == 2 and window.args[0] is target.args[0] else None
                    end = index.args[1] if index is not None and index.op == "slice" else None
                    if end is not None and end.op == "add" and len(end.args) == 2 and end.args[0] is place and (number(end.args[1]) or 0) >= 1:
                        yield Remark(window.node, f"{short(window.node)} goes on to {short(target.node)} (line {target.line}), which is the target")
                        return


@FINDERS.add("target-in-its-window")
def _end_of_what_is_judged(program: Program) -> Iterator[Remark]:
    """The best guesses for a row of items are compared with one of its items, and the model is given the row up to its end."""
    computation = computation_of(program)
    for value in computation.of("eq"):
        if len(value.args) != 2 or not value.where.no_grad:
            continue
        for guess, wanted in (value.args, value.args[::-1]):
            target = _placed(wanted)
            best = bare(guess)
            while best.op in ("indices", "part") and best.args:
                best = bare(best.args[0])
            if target is None or best.op not in ("topk", "argmax", "argsort", "max", "sort"):
                continue
            for run in (one for one in origins(best) if one.op == "run" and len(one.args) > 1):
                given = bare(run.args[1])
                if given.op == "part" and len(given.args) == 2 and given.args[0] is target.args[0] and _goes_to_the_end(given.args[1], target.args[1]) and not _reads_inside(computation, run):
                    yield Remark(given.node, f"{short(given.node)} goes on to {short(target.node)} (line {target.line}), which {short(value.node)} (line {value.line}) asks for: the model is given the answer")
                    return


def _placed(wanted: Value) -> Value | None:
    """One column of rows, in whatever shape."""
    while wanted.op == "part" and len(wanted.args) == 2:
        index = wanted.args[1]
        parts = index.parts if isinstance(index, Many) else []
        if len(parts) == 2 and parts[0].op == "slice" and all(is_none(one) for one in parts[0].args) and isinstance(constant(parts[1]), int):
            return wanted
        if not (isinstance(index, Many) and any(one.data is None and one.op == "@constant" for one in parts)):
            return None
        wanted = bare(wanted.args[0])
    return None


def _goes_to_the_end(index: Value, place: Value) -> bool:
    """Whether columns go from one at or before a place to the last."""
    parts = index.parts if isinstance(index, Many) else []
    if len(parts) != 2 or parts[1].op != "slice" or not is_none(parts[1].args[1]) or not isinstance(place, Many):
        return False
    begin, column = (0.0 if is_none(parts[1].args[0]) else number(parts[1].args[0])), number(place.parts[1])
    return column is not None and begin is not None and (column == -1 or 0 <= begin <= column)


def _reads_inside(computation: Computation, run: Value) -> bool:
    """Whether a place before the last is read of what a layer gives."""
    for one in made_from(computation, run, None, 60):
        places = one.args[1].parts if one.op == "part" and len(one.args) == 2 and isinstance(one.args[1], Many) else []
        if one.op in ("gather", "index_select") or any((number(each) or 0) < -1 or (each.op == "slice" and (number(each.args[1]) or 0) < 0) for each in places):
            return True
    return False


def _chosen(value: Value) -> tuple[Value | None, Value]:
    """The rows that are chosen of a value, and what they are chosen of."""
    if value.op == "part" and len(value.args) == 2 and value.args[1].op not in ("@constant", "slice") and not isinstance(value.args[1], Many):
        return value.args[1], unshaped(value.args[0])
    return None, value


def _first_runs(sides: Sides) -> Iterator[Value]:
    """The calls of layers that are given data."""
    for run in [*sides.runs, *(one for one in sides.given.values() if one.op == "run")]:
        if len(run.args) > 1 and not any(one.op == "run" for one in origins(run.args[1])):
            yield run


def _reads_before(sides: Sides) -> bool:
    """Whether a place before the last is read of what layers give, or all but the last."""
    for one in (*sides.beside.values(), *sides.given.values()):
        if one.op == "part" and len(one.args) == 2 and any(each.op == "run" for each in origins(one.args[0])):
            for index in one.args[1].parts if isinstance(one.args[1], Many) else [one.args[1]]:
                end = index.args[1] if index.op == "slice" else index
                if end.op != "@constant" or (end.data is not None and (number(end) or 0) < (0 if index.op == "slice" else -1)):
                    return True
        elif one.op in ("gather", "index_select", "take_along_dim"):
            return True
    return False


def _row_of_last(target: Value) -> Value | None:
    """x of x[-1], x[:, -1] and x.pop()."""
    if target.op != "part" or len(target.args) != 2:
        return None
    index = target.args[1]
    if isinstance(index, Many):
        if not index.parts or any(one.op != "slice" or not all(is_none(each) for each in one.args) for one in index.parts[:-1]):
            return None
        index = index.parts[-1]
    return unshaped(target.args[0]) if constant(index) == -1 else None


def _wholes(value: Value, depth: int = 12) -> Iterator[Value]:
    """What a model is given, without its padding, its batch and its shape."""
    value = unshaped(value)
    yield value
    if depth == 0:
        return
    if value.op in ("cat", "concatenate", "hstack", "add", "list") or isinstance(value, Many):
        parts = value.parts if isinstance(value, Many) else value.args[0].parts if isinstance(value.args[0], Many) else value.args
        data = [one for one in parts if not _is_fill(one)]
        if len(data) == 1:
            yield from _wholes(data[0], depth - 1)
    elif value.op in _PADDED and value.args:
        yield from _wholes(value.args[0], depth - 1)
    elif value.op == "set_item" and _is_fill(value.args[0]):
        yield from _wholes(value.args[2], depth - 1)


def _is_fill(value: Value) -> bool:
    """Whether a value is made of one number, as padding is."""
    value = unshaped(value)
    if isinstance(value, Many):
        return bool(value.parts) and all(one.op == "@constant" for one in value.parts)
    return value.op in _FILLS or (value.op in ("mul", "cat") and bool(value.args) and _is_fill(value.args[0])) or (value.op == "@constant" and number(value) is not None)


def _holds_the_end(given: Value, home: Value) -> bool:
    """Whether a value is a row as a whole, or its end."""
    if given is home:
        return True
    if given.op != "part" or len(given.args) != 2 or not (unshaped(given.args[0]) is home or same(given.args[0], home)):
        return False
    index = given.args[1].parts[-1] if isinstance(given.args[1], Many) and given.args[1].parts else given.args[1]
    begin, end, *_ = index.args if index.op == "slice" else (None, given)
    return index.op == "slice" and begin is not None and begin.op != "index" and is_none(end) and not any(one.op == "index" for one in origins(begin))


# The answer to a prompt ----------------------------------------------------------------------


def answer_left_out(program: Program) -> Iterator[Remark]:
    """Of a prompt and its answer, put one behind the other, the labels leave out the answer, and ask for the prompt."""
    computation = computation_of(program)
    for sides in sides_of(computation):
        joined = [pair for one in sides.given.values() if (pair := _pair(one)) is not None]
        for loss in (one for one in sides.beside.values() if one.op in ("cross_entropy", "nll_loss") and len(one.args) > 1 and joined):
            left_out = loss.argument("ignore_index", 4)
            ignored = -100.0 if left_out is None else number(left_out)
            for at in _labels(loss.args[1]):
                first = _only_the_first(at, ignored, joined) if ignored is not None else None
                if first is not None:
                    yield Remark(at.node, f"{short(at.node)} leaves out the second part of {short(first.node)} (line {first.line}): {short(loss.node)} (line {loss.line}) asks for the first part alone")
                    return


def _pair(value: Value) -> tuple[Value, Value, Value] | None:
    """The two rows of words that a value joins, and the value; None where one of them is padding, or no data."""
    if value.op in ("cat", "concatenate", "hstack") and value.args and isinstance(value.args[0], Many):
        parts = value.args[0].parts
    elif value.op == "add" and len(value.args) == 2 and not any(one.op in ("run", "torch.nn.Parameter") for one in origins(value)):
        parts = list(value.args)
    else:
        return None
    data = [unshaped(one) for one in parts if not _is_fill(one)]
    known = len(data) == 2 and not any(one.op in ("run", "torch.nn.Parameter", *_FILLS) or one.op.startswith("torch.nn.") for each in data for one in origins(each))
    return (data[0], data[1], value) if known and data[0] is not data[1] else None


def _labels(value: Value) -> Iterator[Value]:
    """What the labels of a loss are, before they were filled up, cut and put into batches."""
    waiting = [value]
    for _ in range(60):
        if not waiting:
            return
        at = waiting.pop()
        yield at
        if isinstance(at, Many):
            waiting += at.parts[:1]
        elif at.op == "set_item":
            waiting += [at.args[2]] if _is_fill(at.args[0]) and number(at.args[2]) is None else [at.args[0]]
        elif at.op in ("cat", "concatenate", "add", "hstack"):
            parts = at.args[0].parts if isinstance(at.args[0], Many) else list(at.args)
            waiting += [one for one in parts if not _is_fill(one)][:1]
        elif at.op == "either":
            waiting += at.args
        elif at.args and (unshaped(at) is not at or at.op in ("part", "masked_fill", *_PADDED)):
            waiting.append(at.args[0])


def _only_the_first(labels: Value, ignored: float, joined: list[tuple[Value, Value, Value]]) -> Value | None:
    """What joins two rows, where labels leave out all that is behind the first."""
    if labels.op == "set_item" and number(labels.args[2]) == ignored:
        index = labels.args[1].parts[-1] if isinstance(labels.args[1], Many) and labels.args[1].parts else labels.args[1]
        of = _length_of(index.args[0]) if index.op == "slice" and is_none(index.args[1]) else None
        inside = {id(one) for one in origins(labels.args[0])}
        return next((whole for first, _, whole in joined if of is not None and _alike(of, first) and (id(whole) in inside or any(id(one) in inside for one in whole.made_of()))), None)
    if labels.op in ("cat", "concatenate", "add", "hstack"):
        parts = labels.args[0].parts if isinstance(labels.args[0], Many) else list(labels.args)
        parts = [unshaped(one) for one in parts]
        for first, second, whole in joined if len(parts) == 2 else ():
            if _alike(parts[0], first) and _is_fill(parts[1]) and any(number(one) == ignored for one in origins(parts[1])) and _is_as_long(parts[1], second):
                return whole
    return None


def _is_as_long(fill: Value, row: Value) -> bool:
    """Whether padding is as long as a row: by its length, or by one that is not known."""
    return (isinstance(fill, Many) and fill.grown) or any((of := _length_of(one)) is not None and _alike(of, row) for one in (fill, *origins(fill)))


def _alike(one: Value, other: Value) -> bool:
    return unshaped(one) is unshaped(other) or same(unshaped(one), unshaped(other))


def _length_of(value: Value) -> Value | None:
    """x of len(x), x.size(0), x.shape[-1], x.numel() and full_like(x, ...)."""
    if value.op == "part" and value.args[0].op in ("shape", "size"):
        value = value.args[0]
    return unshaped(value.args[0]) if value.op in ("len", "size", "numel", "shape", "full_like", "ones_like", "zeros_like") and value.args else None


# Layers that read ahead ------------------------------------------------------------------------


@FINDERS.add("language-model-without-mask")
def _reads_both_ways(program: Program) -> Iterator[Remark]:
    """Each place is asked for the word after it, and a layer on the way reads on both sides of each place: a recurrent one in both
    directions, or a convolution that is filled up on both sides and not cut."""
    for loss in computation_of(program).of("cross_entropy", "nll_loss"):
        reads = [read for read, places in ahead_of(loss.args[0], loss.args[1]) if places == 1] if len(loss.args) > 1 and not loss.where.no_grad else []
        way = list(along(loss.args[0])) if reads else []
        layer = next((one for one in way if _sees_both_sides(one) and any(each is read for each in along(one) for read in reads)), None)
        if layer is not None and not any(map(_is_cut, way)):
            yield Remark(layer.node, f"{short(layer.node)} reads on both sides of each place, and {short(loss.node)} (line {loss.line}) asks at each place for the word after it")
            return


def _sees_both_sides(value: Value) -> bool:
    """Whether a layer reads what follows a place too."""
    if value.op != "run" or not value.args:
        return False
    layer = value.args[0]
    if layer.op in ("torch.nn.LSTM", "torch.nn.GRU", "torch.nn.RNN"):
        return constant(layer.named.get("bidirectional")) is True
    filled, width = layer.argument("padding", 4), number(layer.argument("kernel_size", 2))
    return layer.op == "torch.nn.Conv1d" and width is not None and width > 1 and filled is not None and number(filled) != 0


def _is_cut(value: Value) -> bool:
    """Whether the end of something, or one side of it, is cut off."""
    if value.op in ("chunk", "split", "narrow", "pad", "roll", "flip"):
        return True
    if value.op != "part" or len(value.args) != 2 or not any(one.op == "run" for one in origins(value.args[0])):
        return False
    found = value.args[1].parts if isinstance(value.args[1], Many) else [value.args[1]]
    return any(one.op == "slice" and not (is_none(one.args[0]) and is_none(one.args[1])) for one in found)


# Masks beside a cache -------------------------------------------------------------------------


def past_hidden_by_its_mask(program: Program) -> Iterator[Remark]:
    """The keys are those of a cache and the new ones, and a mask counts the new places from the first key on."""
    computation = computation_of(program)
    for mask in computation.of("tril", "triu"):
        sizes = _sizes_of(mask.args[0]) if mask.args else []
        shifted = mask.argument("diagonal", 1)
        if len(sizes) < 2 or (shifted is not None and number(shifted) is None):
            continue
        keys, asking = _measured(sizes[-1]), _measured(sizes[-2])
        if keys is not None and _is_lengthened(keys) and asking is not keys and not (asking is not None and _is_lengthened(asking)) and mask.where.under == keys.where.under:
            yield Remark(mask.node, f"{short(mask.node)} counts both from 0, and {short(keys.node)} (line {keys.line}) puts what is kept of the words before in front of the new ones: the first new word sees the first key alone")
            return
    for run in computation.of("scaled_dot_product_attention"):
        asks, keys = run.argument("query", 0), run.argument("key", 1)
        if asks is not None and keys is not None and constant(run.argument("is_causal", 5)) is True and _is_lengthened(keys) and not any(map(_is_lengthened, alternatives(asks))):
            yield Remark(run.node, f"{short(run.node)} counts both from 0, and {short(keys.node)} (line {keys.line}) puts what is kept of the words before in front of the new ones: the first new word sees the first key alone")
            return


def _sizes_of(value: Value) -> list[Value]:
    """The sizes that a tensor of one number is made with."""
    value = unshaped(value, "bool")
    if value.op not in ("ones", "full", "zeros"):
        return []
    given = value.args[0].parts if value.args and isinstance(value.args[0], Many) else list(value.args)
    return [one for one in given if one.op != "@library"] if value.op != "full" or isinstance(value.args[0], Many) else []


def _measured(size: Value) -> Value | None:
    """What a size is the size of."""
    if size.op == "part" and size.args[0].op in ("shape", "size"):
        size = size.args[0]
    return size.args[0] if size.op in ("shape", "size", "len") and size.args else None


def _is_lengthened(value: Value) -> bool:
    """Whether a value is what was kept and what is new, one behind the other."""
    if value.op not in ("cat", "concat", "concatenate") or not value.args or not isinstance(value.args[0], Many):
        return False
    return len(value.args[0].parts) == 2 and number(value.argument("dim", 1)) in (1, 2, -2) and any(one.op == "run" for one in origins(value.args[0].parts[1]))
