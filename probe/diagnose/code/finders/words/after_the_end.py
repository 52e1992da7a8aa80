"""Words that stand behind the end of a text, and places that count the padding before it. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import SHAPED, Many, Value, bare, constant, is_none, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.backwards import has_gradient

_DRAWN = ("multinomial", "sample", "argmax", "choice")
_FULL = ("full_like", "full", "zeros_like", "ones_like")
_THROUGH = (*SHAPED, "neg", "sub", "add", "exp", "clamp", "min", "minimum", "div", "to", "float", "detach", "cat", "stack", "part", "mul", "list")
_REDUCED = ("sum", "mean", "sum_of")


def words_behind_the_end(program: Program) -> Iterator[Remark]:
    """The words of texts that have ended are all set to one, and their log probabilities are part of the loss."""
    computation = computation_of(program)
    for likely in computation.of("gather"):
        forced = next((one for one in origins(likely.args[-1]) if _is_forced(one)), None) if has_gradient(likely) else None
        total = _sum_of_all(computation, likely) if forced is not None else None
        if total is not None and forced is not None:
            yield Remark(total.node, f"{short(total.node)} counts the words that {short(forced.node)} (line {forced.line}) puts behind the end of a text as if they had been chosen")
            return


def _is_forced(value: Value) -> bool:
    """Whether a value is words that were drawn, of which those of ended texts are set to one number."""
    if value.op in ("set_item", "masked_fill") and len(value.args) == 3:
        words, places, put = bare(value.args[0]), value.args[1], value.args[2]
    elif value.op == "where" and len(value.args) == 3:
        places = value.args[0]
        words, put = next(((bare(one), bare(other)) for one, other in (value.args[1:], value.args[:0:-1]) if bare(one).op in _DRAWN), (value, value))
    else:
        return False
    fixed = number(put) is not None or put.op in _FULL
    return fixed and words.op in _DRAWN and places.op not in ("slice", "@constant", "index") and not isinstance(places, Many)


def _sum_of_all(computation: Computation, likely: Value) -> Value | None:
    """The first sum or mean of log probabilities, where nothing is left out before it; None where something may be."""
    waiting, seen, found = [likely], {id(likely)}, None
    while waiting:
        at = waiting.pop()
        for user in computation.users(at):
            if id(user) in seen or user.where.no_grad:
                continue
            seen.add(id(user))
            if user.op in _REDUCED:
                found = found or user
                continue
            others = [one for one in user.args if one is not at and number(one) is None and not any(each is likely for each in origins(one))]
            if user.op == "mul" and any(not _is_of_each_text(one) for one in others):
                return None
            if user.op in ("masked_fill", "where", "masked_select", "set_item", "masked_mean") or (user.op == "part" and len(user.args) == 2 and user.args[0] is at and _chooses(user.args[1])):
                return None
            if user.op in _THROUGH or isinstance(user, Many):
                waiting.append(user)
            elif user.op == "run" or user.op.startswith("@"):
                return None
    return found


def _is_of_each_text(value: Value) -> bool:
    """Whether a factor is one number for each text: `advantage[:, None]`."""
    while value.op in ("to", "float", "detach", "clone", "expand"):
        value = value.args[0]
    if value.op == "unsqueeze":
        return number(value.argument("dim", 1)) in (1, -1)
    return value.op == "part" and isinstance(value.args[1], Many) and is_none(value.args[1].parts[-1])


def _chooses(index: Value) -> bool:
    """Whether an index takes some places by a mask."""
    return not isinstance(index, Many) and index.op not in ("slice", "@constant", "index", "count")


# Places ---------------------------------------------------------------------------------------


def places_count_the_padding(program: Program) -> Iterator[Remark]:
    """A network with a code for each place learns from texts that are filled up behind, and generates from texts that are filled up
    in front."""
    learned: dict[int, set[str]] = {}
    asked: list[tuple[int, Value, Value]] = []
    for value in computation_of(program).of("add"):
        words = next((one for one, other in (value.args[:2], value.args[1::-1]) if _looks_up(one) and _is_code_of_places(other)), None) if len(value.args) == 2 else None
        for block in origins(words.args[1], ("run",)) if words is not None else ():
            side = _side(block)
            if side is not None and words is not None and value.where.no_grad:
                asked += [(id(words.args[0]), block, value)] if side == "front" else []
            elif side is not None and words is not None:
                learned.setdefault(id(words.args[0]), set()).add(side)
    for layer, block, value in asked:
        if learned.get(layer) == {"behind"}:
            yield Remark(block.node, f"{short(block.node)} fills texts up in front, and {short(value.node)} (line {value.line}) counts places from there: in the training, the first word of each text has the first place")
            return


def _looks_up(value: Value) -> bool:
    return value.op == "run" and value.args[0].op == "torch.nn.Embedding" and len(value.args) == 2 and bare(value.args[1]).op != "arange"


def _is_code_of_places(value: Value) -> bool:
    """Whether a value is the codes of the places 0, 1, 2 of a row."""
    value = bare(value)
    if value.op == "run" and value.args[0].op == "torch.nn.Embedding" and len(value.args) == 2:
        return bare(value.args[1], "repeat").op == "arange" and not any(one.op in ("run", "cumsum") for one in origins(value.args[1], ("size", "shape", "device", "len")))
    index = value.args[1] if value.op == "part" and len(value.args) == 2 else None
    cuts = [one for one in (index.parts if isinstance(index, Many) else [index]) if one is not None and one.op == "slice" and not is_none(one.args[1])]
    return value.op == "part" and bare(value.args[0]).op in ("torch.nn.Parameter", "register_buffer", "zeros", "set_item") and len(cuts) == 1 and (is_none(cuts[0].args[0]) or number(cuts[0].args[0]) == 0)


def _side(value: Value) -> str | None:
    """On which side a value is filled up; None where it is not, or that is not known."""
    if value.op.endswith("pad_sequence"):
        return "front" if constant(value.argument("padding_side", 3)) == "left" else "behind"
    if value.op == "pad" and len(value.args) > 1 and isinstance(value.args[1], Many) and len(value.args[1].parts) == 2:
        front, behind = (number(one) == 0 for one in value.args[1].parts)
        return "behind" if front and not behind else "front" if behind and not front else None
    if value.op == "cat" and value.args and isinstance(value.args[0], Many) and len(value.args[0].parts) == 2:
        filled = [bare(one).op in ("zeros", "full") and not any(number(size) is not None for size in bare(one).args[:1]) for one in value.args[0].parts]
        return "front" if filled == [True, False] else "behind" if filled == [False, True] else None
    if isinstance(value, Many) and isinstance(value.node, ast.BinOp) and isinstance(value.node.op, ast.Add):
        front, behind = (isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mult) and isinstance(one.left, ast.List) for one in (value.node.left, value.node.right))
        return "front" if front and not behind else "behind" if behind and not front else None
    if value.op == "set_item" and bare(value.args[0]).op in ("full", "zeros", "set_item") and number(value.args[2]) is None:
        index = value.args[1].parts[-1] if isinstance(value.args[1], Many) and value.args[1].parts else value.args[1]
        begin, end = index.args[:2] if index.op == "slice" else (value, value)
        if index.op == "slice" and is_none(end) and not is_none(begin) and number(begin) is None:
            return "front"
        return "behind" if index.op == "slice" and not is_none(end) and (is_none(begin) or number(begin) == 0) else None
    return None
