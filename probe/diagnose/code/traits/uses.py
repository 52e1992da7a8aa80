"""What is made from a value. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation
from probe.diagnose.code.computed.value import Many, Value, bare, is_none, origins, same
from probe.diagnose.code.traits.numberings import contents
from probe.diagnose.code.traits.updates import optimizer_of


def made_from(computation: Computation, value: Value, through: frozenset[str] | None, most: int = 400) -> Iterator[Value]:
    """The values that are made from one, each once: its users, and theirs where their operation is one of
    `through` (None: of all). Not more than `most`."""
    waiting, seen = [value], {id(value)}
    while waiting and len(seen) <= most:
        for user in computation.users(waiting.pop()):
            if id(user) in seen:
                continue
            seen.add(id(user))
            yield user
            if through is None or user.op in through or user.op in ("either", "list", "tuple"):
                waiting.append(user)


def held_apart(computation: Computation, whole: list[Value], trained: set[int]) -> bool:
    """Whether what one thing is made of, `whole`, has rows of data of which a training has other rows: the two are slices of one
    value, or parts of one split."""
    mine = [one for one in whole if _is_of_a_split(one)]
    used = [one for one in computation.of("part") if id(one) in trained and _is_of_a_split(one)]
    for one in mine:
        beside = [each for each in used if each.args[0] is one.args[0]]
        whole_too = any(id(each) in trained and each.args[-1].op != "tuple" and not _is_of_a_split(each) and any(part is one.args[0] for part in each.args) for each in computation.of("part", "run") if each.args)
        if beside and not whole_too and not any(each is one or same(each.args[1], one.args[1]) for each in beside):
            return True
    return False


def _is_of_a_split(value: Value) -> bool:
    """Whether a value is a slice of rows with bounds that no loop moves, or a part of a split."""
    if value.op != "part" or len(value.args) != 2:
        return False
    index, of = value.args[1], value.args[0]
    if of.op.endswith(("train_test_split", "random_split")):
        return True
    return index.op == "slice" and not is_none(index.args[0] if not is_none(index.args[0]) else index.args[1]) and not any(one.op in ("index", "element", "count") for one in origins(index))


def asked_again(computation: Computation, value: Value, inputs: list[Value]) -> bool:
    """Whether a network is asked the same again and again, as for the spread of its answers, or before any step."""
    steps = [one.where.loops for one in computation.of("step") if optimizer_of(one) is not None and (one.number < value.number or one.where.loops[:1] == value.where.loops[:1] != ())]
    loops = value.where.loops
    return not steps or (bool(loops) and not any(one[: len(loops)] == loops for one in steps) and not any(loops[-1] in one.where.loops for one in inputs if one.op in ("index", "element", "rows", "count")))


def holds_outputs(computation: Computation, value: Value) -> bool:
    """Whether a value is read from an array or a list that what a network says was put into, as it is: `values[t + 1]`."""
    inner = bare(value)
    return inner.op in ("part", "either", "element") and any(bare(one).op == "run" for one in contents(computation, inner))


def data_of(value: Value) -> Value:
    """The data that a value is some of: without rows, parts and what only changes its shape or type."""
    for _ in range(20):
        value = bare(value)
        if value.op in ("part", "element", "rows", "index_select") and value.args:
            value = value.args[0]
        elif isinstance(value, Many) and len(value.parts) == 1:
            value = value.parts[0]
        else:
            break
    return value
