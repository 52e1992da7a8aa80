"""Patches of an input that a mask hides, and which of them a loss asks for. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import KEPT, SHAPED, Many, Value, bare, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import complement_of, complements, sides
from probe.diagnose.code.traits.basic import LOSSES
from probe.diagnose.code.traits.sides import DRAWS

FINDERS = Finders()
_PLACED = ("torch.nn.Parameter", "@constant", "zeros_like", "zeros", "new_zeros")
_SIZES = ("shape", "size", "len", "device", "dtype", "zeros_like", "ones_like", "zeros", "ones", "full")
_SPREAD = frozenset({"expand", "repeat", "expand_as", "unsqueeze", "repeat_interleave", "interpolate", "bool"})
_ALONG = frozenset({"mean", "sum", "pow", "square", "abs", "mul", "div", "sqrt"})


@FINDERS.add("loss-of-what-is-shown")
def _only_the_shown_patches(program: Program) -> Iterator[Remark]:
    """Patches are hidden by a mask that is drawn, and the loss counts the error at the others alone."""
    computation = computation_of(program)
    hiding = [(value, *found) for value in computation.of("where", "masked_fill", "set_item", "add", "gather") if (found := _hidden_by(value)) is not None]
    hiding = [one for one in hiding if _is_drawn(one[1])]
    asked: list[tuple[Value, Value, Value, bool]] = []
    for value in computation.of("mul", "part", "masked_select") if hiding else ():
        for error, keep in sides(value) if value.op == "mul" else [(value.args[0], value.args[1])] if len(value.args) == 2 else []:
            base, right = _mask(keep)
            if not _is_drawn(base) or not (outputs := _outputs(computation, value, error)):
                continue
            for hides, mask, is_hidden in hiding:
                known = _relation(base, mask)
                if known and any(one is hides for output in outputs for one in origins(output)):
                    asked.append((value, keep, hides, (right == is_hidden) == (known > 0)))
    if asked and not any(of_hidden for *_, of_hidden in asked):
        value, keep, hides, _ = asked[0]
        yield Remark(value.node, f"{short(value.node)} counts the error where {short(keep.node)} is 1, and there {short(hides.node)} (line {hides.line}) shows the network what it is asked for")


def _hidden_by(value: Value) -> tuple[Value, bool] | None:
    """The mask by which a value hides a part of another one, and what it is where something is hidden."""
    if value.op == "where" and len(value.args) == 3:
        placed = [_is_placed(one) for one in value.args[1:]]
        base, right = _mask(value.args[0])
        return (base, right == placed[0]) if placed[0] != placed[1] else None
    if value.op in ("masked_fill", "set_item") and len(value.args) == 3 and not isinstance(value.args[1], Many):
        base, right = _mask(value.args[1])
        return (base, right) if _is_placed(value.args[2]) and value.args[1].op not in ("slice", "index", "@constant", "element") else None
    if value.op == "gather" and value.args:
        index = bare(value.args[-1], *_SPREAD)
        return (index, False) if _first_of_an_order(index) is not None else None
    for one, other in sides(value) if value.op == "add" else ():
        for token, share in sides(one) if one.op == "mul" and other.op == "mul" else ():
            if _is_placed(token) and not _is_placed(share) and any(complements(bare(share), bare(rest)) for rest in other.args):
                return _mask(share)
    return None


def _is_placed(value: Value) -> bool:
    """Whether a value is what is put in the place of something: a token that is learned, or one number."""
    return bare(value, *_SPREAD).op in _PLACED


def _mask(value: Value) -> tuple[Value, bool]:
    """A mask without what only turns it round, and whether the value is the mask itself and not its opposite."""
    right = True
    for _ in range(20):
        value = bare(value, *_SPREAD)
        rest = complement_of(value)
        if rest is not None or (value.op in ("invert", "logical_not") and value.args):
            value, right = rest if rest is not None else value.args[0], not right
        elif value.op == "eq" and len(value.args) == 2 and number(value.args[1]) == 0:
            value, right = value.args[0], not right
        else:
            return value, right
    return value, right


def _first_of_an_order(value: Value) -> Value | None:
    """Where an order that is drawn is cut: the k of `order[:, :k]`."""
    if value.op != "part" or len(value.args) != 2 or bare(value.args[0]).op != "argsort":
        return None
    parts = value.args[1].parts if isinstance(value.args[1], Many) else [value.args[1]]
    last = parts[-1]
    return last.args[1] if last.op == "slice" and len(last.args) == 3 and number(last.args[0]) in (None, 0) and _is_none(last.args[0]) else None


def _is_none(value: Value) -> bool:
    return value.op == "@constant" and (value.data is None or value.data == 0)


def _relation(base: Value, mask: Value) -> int:
    """1 if two masks are one, -1 if the first is 0 where the second has its first places and 1 elsewhere; 0 if neither is known.
    The second may be the first places of an order, which are what is shown."""
    if base is mask or same(base, mask):
        return 1
    kept = _first_of_an_order(mask)
    inner = bare(base.args[0]) if base.op == "gather" and base.args else base
    if kept is None or inner.op != "set_item" or len(inner.args) != 3 or not isinstance(inner.args[1], Many):
        return 0
    restored = bare(base.args[-1], *_SPREAD)
    last = inner.args[1].parts[-1]
    if restored.op != "argsort" or last.op != "slice" or not _is_none(last.args[0]) or not same(last.args[1], kept) or bare(restored.args[0]) is not bare(mask.args[0]):
        return 0
    filled, before = number(inner.args[2]), {"ones": 1, "zeros": 0}.get(bare(inner.args[0]).op)
    return 0 if before is None or filled == before else 1 if filled == 1 else -1


def _is_drawn(mask: Value) -> bool:
    """Whether a mask is drawn at random, and no network has a part in it."""
    found = list(origins(mask, stop=(*DRAWS, *_SIZES)))
    return any(one.op in DRAWS for one in found) and not any(one.op == "run" for one in found)


def _outputs(computation: Computation, value: Value, error: Value) -> tuple[Value, ...]:
    """What a network gives, in the difference or loss of each element that a mask is laid on; or in what is taken by the mask, and
    compared then."""
    for _ in range(10):
        if error.op in LOSSES or (error.op == "sub" and len(error.args) == 2):
            return tuple(one for one in error.args[:2] if any(each.op == "run" for each in origins(one)))
        if not error.args or not (error.op in _ALONG or error.op in KEPT or error.op in SHAPED):
            break
        error = error.args[0]
    compared = [user for user in computation.users(value) if user.op in LOSSES or user.op == "sub"] if value.op != "mul" else []
    return (value.args[0],) if any(len(user.args) > 1 and user.args[0] is not user.args[1] for user in compared) and any(one.op == "run" for one in origins(value.args[0])) else ()
