"""What a gain is compared with. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, is_none, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import argument, is_call, is_true, short

_CUT = ("topk", "argsort", "sort", "sorted", "builtins.sorted", "argpartition", "nlargest")


def ideal_of_what_is_shown(program: Program) -> Iterator[Remark]:
    """A discounted gain is divided by that of the same items in their best order: of the first k of a ranking, not of all that
    are relevant."""
    computation = computation_of(program)
    in_order = [one for one in computation.values if isinstance(one, Many) and one.parts and is_call(one.node, "sorted") and is_true(argument(one.node, "reverse"))]
    for ratio in computation.of("div"):
        if len(ratio.args) != 2 or not all(any(one.op in ("log2", "log") for one in origins(side)) for side in ratio.args):
            continue
        above, below = ([*origins(side)] for side in ratio.args)
        listed = [one for one in in_order if one.number < ratio.args[1].number and all(any(each is one.parts[0] for each in side) for side in (above, below))]
        for ordered in (*below, *listed):
            if not (ordered in listed or _is_best_order(ordered)) or any(one is ordered for one in above):
                continue
            gains = ordered if ordered in listed else ordered.args[0]
            gains = bare(gains).args[0] if bare(gains).op == "sort" and ordered.op in ("part", "flip", "flipud") else gains
            cut = next((one for one in _items(gains) if _is_cut(one)), None)
            shown = bare(gains)
            of_both = any(one is shown or (isinstance(shown, Many) and any(one is part for part in shown.parts)) for one in above)
            if cut is not None and of_both and not _is_one_item(gains):
                yield Remark(ordered.node, f"{short(ordered.node)} is the best order of those that {short(cut.node)} (line {cut.line}) has chosen: relevant ones that were not chosen are not in it, and {short(ratio.node)} (line {ratio.line}) is 1 for whatever stands in a good order among them")
                return


def _is_best_order(value: Value) -> bool:
    """Whether a value is the gains in falling order."""
    if not value.args:
        return False
    if value.op in ("sorted", "builtins.sorted"):
        return constant(value.named.get("reverse")) is True
    if value.op in ("flip", "flipud"):
        return bare(value.args[0]).op == "sort"
    if value.op == "sort":
        return constant(value.argument("descending", 2)) is True
    return value.op == "part" and bare(value.args[0]).op == "sort" and value.args[1].op == "slice" and len(value.args[1].args) > 2 and number(value.args[1].args[2]) == -1


def _items(gains: Value) -> Iterator[Value]:
    """What gains are taken for, item by item: also what is asked where they are 1 or 0."""
    inner = [gains, *(gains.parts if isinstance(gains, Many) else ())]
    for one in inner:
        yield from origins(one)  # gains by an index, or of items of a list
        for each in origins(one, stop=("run",)):
            if each.op == "either":
                for test, _ in [pair for part in each.args for pair in part.where.under]:
                    yield from origins(test)
        yield from (each for test, _ in one.where.under for each in origins(test))


def _is_cut(value: Value) -> bool:
    """Whether a value is the first k of a ranking."""
    if value.op == "topk":
        k = value.argument("k", 1)
        return k is not None and number(k) != 1 and not any(one.op in ("len", "size", "shape", "numel") for one in origins(k))
    if value.op != "part" or len(value.args) != 2:
        return False
    index = value.args[1].parts[-1] if isinstance(value.args[1], Many) and value.args[1].parts else value.args[1]
    if index.op != "slice" or len(index.args) < 2 or is_none(index.args[1]) or not (is_none(index.args[0]) or number(index.args[0]) == 0):
        return False
    return any(one.op in _CUT for one in (bare(value.args[0]), *bare(value.args[0], "part", "neg").args[:1]))


def _is_one_item(gains: Value) -> bool:
    """Whether items are compared with a single one that is relevant."""
    return any(one.op == "eq" for one in _items(gains))


def divided_by_the_other_count(program: Program) -> Iterator[Remark]:
    """What is called recall is the hits among the first k divided by k, or what is called precision those divided by the relevant
    items."""
    computation = computation_of(program)
    for target, given in computation.stored.items():
        name = getattr(target, "id", "").lower()
        if ("recall" in name) == ("precision" in name):
            continue
        for value in given:
            ratio = bare(value)
            ratio = bare(ratio.args[0]) if ratio.op == "mean" and ratio.args else ratio
            hits = bare(ratio.args[0]) if ratio.op == "div" and len(ratio.args) == 2 else None
            if hits is None or hits.op != "sum" or not hits.args:
                continue
            relevant = bare(hits.args[0])
            top = next((one for one in origins(relevant) if one.op == "topk"), None) if relevant.op == "gather" else None
            if top is None:
                continue
            below = ratio.args[1]
            by_shown = _is_count(below, top)
            inner = bare(below)
            of_all = inner.op == "sum" and bool(inner.args) and bare(inner.args[0]) is bare(relevant.args[0])
            if (by_shown and "recall" in name) or (of_all and "precision" in name):
                yield Remark(ratio.node, f"{name} is {short(ratio.node)}: hits divided by {'how many are shown' if by_shown else 'how many are relevant'}, which is the {'precision' if by_shown else 'recall'}")
                return


def _is_count(value: Value, top: Value) -> bool:
    """Whether a value is how many a topk gives."""
    k = top.argument("k", 1)
    return k is not None and (value is k or (number(value) is not None and number(value) == number(k)))
