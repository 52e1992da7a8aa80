"""When a policy acts at random, and how that falls. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, alternatives, bare, number, origins
from probe.diagnose.code.finders.losses.bootstraps import is_place
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import Function, last_word, parameters, short
from probe.diagnose.code.traits.courses import (
    LARGER,
    SMALLER,
    course_by_steps,
    falls,
    is_fixed,
    is_uniform_draw,
    number_at,
    other_values,
)

FINDERS = Finders()
_ORDERS = {"lt": True, "le": True, "gt": False, "ge": False}
_RANDOM = ("randrange", "randint", "integers", "choice", "random_integers")
_LEARNED = ("run", "argmax", "max", "softmax", "forward", "predict", "values", "counts")
_NEGATED = ("not", "invert")


class Chance(NamedTuple):
    """A number drawn between 0 and 1 is compared with a share."""

    test: Value
    share: Value
    below: bool
    """Whether the test holds where the number is below the share."""
    written: ast.AST
    """The share, as it is written in the test."""


def chances(computation: Computation) -> Iterator[Chance]:
    """Each comparison of a number drawn between 0 and 1 with a share."""
    for test in computation.of(*_ORDERS):
        if len(test.args) != 2:
            continue
        below = _ORDERS[test.op]
        for place, under in ((1, below), (0, not below)):
            drawn, share = test.args[1 - place], test.args[place]
            if is_uniform_draw(drawn) and not any(is_uniform_draw(one) for one in origins(share)):
                sides = [test.node.left, test.node.comparators[0]] if isinstance(test.node, ast.Compare) else [share.node, share.node]
                yield Chance(test, share, under, sides[place])


def is_random_action(value: Value) -> bool:
    """Whether a value is drawn from all actions alike, whatever has been learned."""
    value = bare(value)
    drawn = value.op in _RANDOM or (value.op == "sample" and bool(value.args) and value.args[0].op in ("action_space", "single_action_space"))
    return drawn and "p" not in value.named and not any(one.op in _LEARNED for one in origins(value, ("shape", "size", "len", "dim")) if one is not value)


def is_learned_action(value: Value) -> bool:
    """Whether a value is the action that a network, or a table, says is best."""
    return is_place(bare(value))


def _holds(test: Value, holds: bool, chance: Value) -> bool | None:
    """Whether a comparison is true where a condition is (or, with `holds` False, is not); None where that is open."""
    if test is chance:
        return holds
    if test.op in _NEGATED and test.args:
        return _holds(test.args[0], not holds, chance)
    if test.op in ("and", "or") and holds == (test.op == "and"):
        found = [known for one in test.args if (known := _holds(one, holds, chance)) is not None]
        return found[0] if found else None
    return _holds(bare(test), holds, chance) if bare(test) is not test else None


def _side(value: Value, chance: Chance) -> bool | None:
    """Whether a value is computed only where the number drawn is below the share (True), or only where it is not."""
    for test, holds in value.where.under:
        known = _holds(test, holds, chance.test)
        if known is not None:
            return known == chance.below
    return None


def _choices(computation: Computation, chance: Chance) -> tuple[set[bool | None], set[bool | None]]:
    """Where actions are drawn at random, and where they are the best ones: below the share (True), or not below it."""
    drawn: set[bool | None] = set()
    best: set[bool | None] = set()
    for value in computation.of("where", "set_item"):
        if len(value.args) == 3:
            test, *values = value.args if value.op == "where" else (value.args[1], value.args[2], value.args[0])
            known = _holds(test, True, chance.test)
            for one, holds in zip(values, (True, False), strict=True) if known is not None else ():
                side = (known == holds) == chance.below
                drawn |= {side} if is_random_action(one) else set()
                best |= {side} if is_learned_action(one) else set()
    for value in computation.of(*_RANDOM, "sample"):
        if is_random_action(value):
            drawn |= {_side(value, chance)} - {None}
    for value in computation.of("argmax", "part", "indices"):
        if is_learned_action(value):
            best.add(_side(value, chance))
    if None in best and len(drawn) == 1 and any(_is_choice(one, chance) for one in computation.of("either")):
        best |= {not one for one in drawn}
    return drawn, best


def _is_choice(value: Value, chance: Chance) -> bool:
    """Whether a value is the best action, or the random one that a chance decides on."""
    found = list(alternatives(value))
    return any(is_learned_action(one) for one in found) and any(
        is_random_action(part) and _side(part, chance) is not None for one in found for part in origins(one, ("run",))
    )


@FINDERS.add("exploration-inverted")
def _exploration_inverted(program: Program) -> Iterator[Remark]:
    """The best action is taken where a number drawn is below a share that falls or is small, and a random one where not."""
    computation = computation_of(program)
    for chance in chances(computation):
        drawn, best = _choices(computation, chance)
        if drawn == {False} and True in best and False not in best and _is_for_exploring(computation, chance.share):
            yield Remark(chance.test.node, f"{short(chance.test.node)} takes the best action with the probability {short(chance.written)}, which is small or falls: in all other steps the action is drawn at random")


def _is_for_exploring(computation: Computation, share: Value) -> bool:
    """Whether a share is one of random actions: it falls, or it is small and does not rise."""
    falling = falls(computation, share)
    if falling is not None:
        return falling
    known = [number_at(one, 1.0) for one in alternatives(share) if course_by_steps(one) is None]
    small = bool(known) and all(one is not None and 0 < one < 0.4 for one in known)
    return small and not any(True for one in alternatives(share) for _ in other_values(computation, one))


@FINDERS.add("exploration-never-falls")
def _exploration_never_falls(program: Program) -> Iterator[Remark]:
    """The share of random actions is 1 or more from the first step to the last."""
    computation = computation_of(program)
    if not any(True for _ in computation.of("backward", "manual_backward")):
        return
    for chance in chances(computation):
        leaves = [one for one in origins(chance.share) if number(one) is not None]
        always = number_at(chance.share, 1.0)
        if always is None or always < 1 or any(one.op in ("count", "index", "@input") for one in origins(chance.share)):
            continue
        highest = [one for one in leaves if (number(one) or 0) >= 1]
        drawn, best = _choices(computation, chance)
        always_so = all((number_at(one.share, 1.0) or 0) >= 1 and one.test.where.loops for one in chances(computation) if one.test.node is chance.test.node)
        if drawn == {True} and best & {False, None} and not highest and always_so and _is_of_one_call(program, chance, leaves):
            yield Remark(chance.test.node, f"{short(chance.test.node)} is always true: {short(chance.written)} is {always:g} (line {chance.share.line}), which is computed of the same numbers each time")
        elif drawn == {True} and best & {False, None} and highest and all(is_fixed(computation, one) or (always_so and _is_written_in(program, one)) for one in highest):
            yield Remark(chance.test.node, f"{short(chance.test.node)} is always true: {short(chance.written)} is {always:g} (line {highest[0].line}) and nothing changes it")


def _is_of_one_call(program: Program, chance: Chance, leaves: list[Value]) -> bool:
    """Whether a function of the program computes a share, of what it is called with, which are numbers."""
    inside = chance.share.where.functions
    of = inside[-1] if len(inside) > len(chance.test.where.functions) else None
    names = {one.arg for one in parameters(of)} if isinstance(of, (Function, ast.Lambda)) else set()
    made = [one for one in leaves if isinstance(one.node, (ast.BinOp, ast.UnaryOp))]
    return bool(names) and all(one in made or _is_written_in(program, one) for one in leaves) and all(
        isinstance(each.ctx, ast.Load) and each.id in names for one in made for each in ast.walk(one.node) if isinstance(each, ast.Name)
    )


def _is_written_in(program: Program, value: Value) -> bool:
    """Whether a number is written where it is used, or as what a function takes for an argument: no name holds it."""
    around = program.parent.get(value.node)
    return isinstance(value.node, ast.Constant) and isinstance(around, (ast.Call, ast.BinOp, ast.arguments, ast.keyword))


@FINDERS.add("clamped-on-the-wrong-side")
def _clamped_on_the_wrong_side(program: Program) -> Iterator[Remark]:
    """The smaller one of a value that falls step by step and of its lowest value: it is the lowest one at once."""
    computation = computation_of(program)
    at_first: dict[tuple[str, int], Value] = {}
    for value in computation.of("set_attribute"):
        first = at_first.get((value.data, id(value.args[0])))
        if number(value.args[1]) is not None:
            at_first.setdefault((value.data, id(value.args[0])), value.args[1])
        if first is not None and (said := _at_once(first, value.args[1], value.data)):
            yield Remark(value.args[1].node, said)
    for target, given in computation.stored.items():
        for new in given if any(bare(one).op in (*SMALLER, *LARGER) for one in given) else ():
            old = [one for one in other_values(computation, new) if number(one) is not None]
            if len(old) == 1 and (said := _at_once(old[0], new, target.id)):
                yield Remark(new.node, said)
                break


def _at_once(old: Value, new: Value, name: str) -> str:
    """What is wrong where a value is a step away from an old one, and clamped to a bound that is beyond many steps;
    empty where nothing is."""
    new = bare(new)
    if new.op not in (*SMALLER, *LARGER) or len(new.args) != 2:
        return ""
    for stepped, bound in (new.args, new.args[::-1]):
        before, now, end = number(old), number(stepped), number(bound)
        read = any(last_word(one) == name for one in ast.walk(stepped.node))
        if before is None or now is None or end is None or not read or any(last_word(one) == name for one in ast.walk(bound.node)):
            continue
        if (new.op in SMALLER and 0 <= end < 0.9 * now < now < before) or (new.op in LARGER and end > 1.1 * now > now > before >= 0):
            which = "smaller" if new.op in SMALLER else "larger"
            return f"{short(new.node)} takes the {which} one of {now:.4g} and {end:g}: {name}, which is {before:g} at first, is {end:g} at once and stays there"
    return ""


@FINDERS.add("clamped-on-the-wrong-side")
def _share_clamped_on_the_wrong_side(program: Program) -> Iterator[Remark]:
    """The share of random actions is the smaller one of its lowest value and of one that falls below 0."""
    for chance in chances(computation_of(program)):
        share = bare(chance.share, "builtins.float")
        for falling, bound in (share.args, share.args[::-1]) if share.op in SMALLER and len(share.args) == 2 else ():
            end, course = number(bound), course_by_steps(falling)
            if end is not None and course is not None and 0 < end <= 0.3 and 0.75 <= course[0] <= 1 and course[1] < 0:
                yield Remark(share.node, f"{short(share.node)} takes the smaller one: it is {end:g} from the first step on, and falls below 0 in the end")
