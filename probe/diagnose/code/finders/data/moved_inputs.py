"""Inputs that are flipped or turned at random beside targets that lie in them. Pure; standard library only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    SHAPED,
    Many,
    Table,
    Value,
    alternatives,
    bare,
    constant,
    is_none,
    number,
    origins,
    same,
)
from probe.diagnose.code.finders.losses.bootstraps import is_squared
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import names_of, names_set, short
from probe.diagnose.code.traits.basic import LOSSES
from probe.diagnose.code.traits.extents import rank
from probe.diagnose.code.traits.pictures import applied
from probe.diagnose.code.traits.sides import Sides, draws_of, is_model, mixed, sides_of

FINDERS = Finders()
_MOVES = ("flip", "fliplr", "flipud", "hflip", "vflip", "rot90", "rotate", "roll", "torchvision.transforms.functional.hflip", "torchvision.transforms.functional.vflip", "torchvision.transforms.functional.rotate")
_RANDOM = ("RandomHorizontalFlip", "RandomVerticalFlip", "RandomRotation", "RandomAffine", "RandomPerspective")
_PLACES = re.compile(r"(^|_)(mask|masks|seg|segmentation|label_map|box|boxes|bbox|bboxes|keypoints?|kpts?|kps?|landmarks?|joints|corners|coords|heatmaps?|depth|centres?|centers?|points|pts|steer|steering|angles?|directions?|gaze|headings?|offsets?|positions?|xy)(_|$)")
"""What targets are called that lie in their input's pixels, or point left and right in it."""
_TAKEN = frozenset({"part", "list", "tuple", "either", "rows", "stack", "cat", "index", "element", "@constant", "slice"}) | KEPT | SHAPED
"""Operations that take places of a target, and leave their numbers as they are."""
_MADE_UP = ("ones", "zeros", "full", "ones_like", "zeros_like", "full_like", "randn", "randn_like", "rand", "rand_like", "normal", "@constant")
"""What no data set holds."""


def mixed_the_other_way(program: Program) -> Iterator[Remark]:
    """The input takes a share of a sample and the rest of another one, and the target takes that share of the other one."""
    computation = computation_of(program)
    found = [(value, parts) for value in computation.of("add", "lerp") if (parts := mixed(value)) is not None and draws_of(parts[0])]
    for sides in sides_of(computation) if len(found) > 1 else ():
        for one, (share, first, second) in found:
            if id(one) not in sides.given or id(one) in sides.beside:
                continue
            for other, (its_share, its_first, its_second) in found:
                if id(other) not in sides.beside or id(other) in sides.given or not same(bare(share), bare(its_share)):
                    continue
                mine, theirs = _order(first, second), _order(its_first, its_second)
                if mine is not None and theirs is not None and mine[0] & theirs[0] and mine[1] != theirs[1]:
                    yield Remark(other.node, f"{short(other.node)} gives the share that {short(one.node)} (line {one.line}) takes of one sample to the target of the other one")
                    return


def _order(first: Value, second: Value) -> tuple[set[int], bool] | None:
    """By which draws one of two rows is another sample than the other one, and whether that is the first of them."""
    drawn = [_asked(first), _asked(second)]
    more = (drawn[0] - drawn[1], drawn[1] - drawn[0])
    return None if bool(more[0]) == bool(more[1]) else (more[0] or more[1], bool(more[0]))


def _asked(value: Value) -> set[int]:
    """The draws that rows are chosen by; of a loss, those of its targets."""
    value = bare(value)
    return draws_of(value.args[1] if value.op in LOSSES and len(value.args) > 1 else value)


@FINDERS.add("moved-alone")
def _moved_target_thrown_away(program: Program) -> Iterator[Remark]:
    """A function moves an input and its target by one draw, and gives back both: the target is thrown away, and what it was
    before is used instead."""
    computation = computation_of(program)
    for node in program.everywhere(ast.Assign):
        names = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else []
        if not isinstance(node.value, ast.Call) or len(names) < 2 or not isinstance(names[0], ast.Name) or not computation.stored.get(names[0]):
            continue
        scope = program.frame(node)
        arguments = [*node.value.args, *(word.value for word in node.value.keywords)]
        for place, name in enumerate(names[1:], 1):
            used = {one.id for one in ast.walk(scope) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load) and one.lineno > node.lineno}
            given = {one.id for one in arguments[place : place + 1] if isinstance(one, ast.Name)} & used
            if not isinstance(name, ast.Name) or name.id in used or not given or given & names_set(node):
                continue
            for image, target in zip(computation.stored[names[0]], computation.stored.get(name, []), strict=False):
                moved = next((one for one in _within(image, target) if _is_move(one) and _under(one) & _changes(target)), None)
                if moved is not None and not any(one.op == "run" for one in origins(image)):  # what a network gives beside its answer
                    yield Remark(node, f"{short(node.value)} moves both by one draw (line {moved.line}), and of the two {names[0].id} alone is taken: {min(given)} stays as it was")
                    break


@FINDERS.add("moved-alone")
def _moved_alone(program: Program) -> Iterator[Remark]:
    """What a network is given is moved by a random draw, and its target, which lies in it, is not."""
    computation = computation_of(program)
    for sides in sides_of(computation):
        moved = [one for one in sides.given.values() if _is_move(one) and id(one) not in sides.beside]
        moved = [one for one in moved if _draws(sides, one)]
        for loss in sides.beside.values() if moved else ():
            target = loss.args[1] if loss.op in LOSSES and len(loss.args) > 1 else _subtracted(computation, loss)
            if target is None or not (_is_named(loss, target) or _is_by_place(loss, target) or _is_box(computation, target)):
                continue
            changed = [one for one in origins(target) if one.op not in _TAKEN]
            drawn = {draw for one in changed for draw in draws_of(one)} | {draw for one in changed for test, _ in one.where.under for draw in draws_of(test)}
            still = [one for one in moved if not _draws(sides, one) & drawn]
            if still and len(still) == len(moved) and not any(map(_is_move, origins(target))) and not _written_by(computation, target, set().union(*(_draws(sides, one) for one in still))):
                named = loss.node.args[1] if isinstance(loss.node, ast.Call) and isinstance(target.node, (ast.Tuple, ast.For)) and len(loss.node.args) > 1 else target.node
                yield Remark(still[0].node, f"{short(still[0].node)} moves what the input shows, and {short(named)} (line {target.line}), which belongs to it, stays as it was")
                return


def _subtracted(computation: Computation, value: Value) -> Value | None:
    """The target of an error that is written out: of `(output - target).abs()` or its square."""
    if value.op != "sub" or len(value.args) != 2 or not any(is_squared(user, value) for user in computation.users(value)):
        return None
    made = [is_model(bare(one)) for one in value.args]
    return value.args[made.index(False)] if sorted(made) == [False, True] else None


def _written_by(computation: Computation, target: Value, draws: set[int]) -> bool:
    """Whether numbers are written into a target by one of these draws."""
    return any(user.op == "set_item" and user.args[0] is one and not draws.isdisjoint(_under(user)) for one in origins(target) for user in computation.users(one))


def _is_move(value: Value) -> bool:
    """Whether a value is another one with its content in other places: flipped, turned, or by a random transform of
    torchvision that is given nothing else."""
    if value.op == "part" and len(value.args) == 2:
        index = value.args[1]
        return any(one.op in ("slice", "arange", "range") and len(one.args) == 3 and number(one.args[2]) == -1 for one in (index.parts if isinstance(index, Many) else [index]))
    return value.op in _MOVES or (applied(value) in _RANDOM and value.op == "run" and len(value.args) == 2 and not value.named)


def _is_named(loss: Value, target: Value) -> bool:
    """Whether a target is called by a word for places, where it is made or where a loss takes it."""
    before = [one for one in _before(target) if not isinstance(one.node, (ast.Tuple, ast.For))]  # `for image, box, label in`
    taken = loss.node.args[1:2] if isinstance(loss.node, ast.Call) else []
    fields = [word for one in before if one.op == "part" and len(one.args) == 2 and isinstance(word := constant(one.args[1]), str)]
    return any(_PLACES.search(name) for node in (*(one.node for one in before), *taken) for name in (*names_of(node), *_own_fields(node), *fields))


def _own_fields(node: ast.AST) -> set[str]:
    """The fields of the object itself that an expression reads: `keypoints` of `self.keypoints[i]`."""
    return {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id == "self"}


def _is_box(computation: Computation, target: Value) -> bool:
    """Whether a target has a middle and a size, or two corners: its first two columns meet its last two in a sum or a
    difference."""
    for one in _before(target):
        halves = {_half(user): user for user in computation.users(one) if user.op == "part"}
        first, second = halves.get("first"), halves.get("second")
        if first is not None and second is not None:
            sums = [user for half in (second, *(user for user in computation.users(second) if user.op in ("div", "mul"))) for user in computation.users(half)]
            if any(user.op in ("add", "sub") and any(given is first for given in user.args) for user in sums):
                return True
    return False


def _half(value: Value) -> str | None:
    """Which half of four columns an index takes: `[..., :2]` the first, `[..., 2:]` the second."""
    index = value.args[1] if len(value.args) == 2 else None
    last = index.parts[-1] if isinstance(index, Many) and len(index.parts) > 1 else None
    if last is None or last.op != "slice" or len(last.args) != 3 or not is_none(last.args[2]):
        return None
    begin, end = (number(one) for one in last.args[:2])
    if end == 2 and begin in (None, 0):
        return "first"
    return "second" if begin == 2 and end in (None, 4) else None


def _is_by_place(loss: Value, target: Value) -> bool:
    """Whether a target has a label for each place of its input: one axis more than the samples, and the labels of one."""
    axes, made = rank(target), rank(loss.args[0])
    if bare(target).op in _MADE_UP:
        return False
    if axes is None:  # of a target of unknown shape, what it is compared with
        return made is not None and made >= 4
    if loss.op not in ("cross_entropy", "nll_loss"):
        return axes >= 3
    return axes >= 2 and made == axes + 1


def _before(value: Value) -> Iterator[Value]:
    """A target and what it was before its batch was made and its shape changed."""
    for _ in range(30):
        yield value
        if not value.args or value.op not in _TAKEN or isinstance(value, Many):
            return
        value = value.args[0]


def _draws(sides: Sides, moved: Value) -> set[int]:
    """The random draws that decide whether, or how far, a value is moved."""
    found = {draw for test, _ in moved.where.under for draw in draws_of(test)} | ({id(moved)} if applied(moved) in _RANDOM else set())
    for one in moved.args[1:]:
        found |= draws_of(one)
    for one in sides.given.values():
        if one.op == "where" and any(each is moved for each in one.args[1:]):
            found |= draws_of(one.args[0])
        elif one.op == "set_item" and len(one.args) > 2 and any(each is moved for each in origins(one.args[2])):
            found |= draws_of(one.args[1])
    return found


def _within(value: Value, beside: Value) -> Iterator[Value]:
    """A value and all that it is made of, in the functions that make another one."""
    yield from (one for one in origins(value) if any(set(one.where.functions) & set(other.where.functions) for other in alternatives(beside)))


def _under(value: Value) -> set[int]:
    """The random draws that decide whether, or how, a value is made."""
    return {draw for test, _ in value.where.under for draw in draws_of(test)} | {draw for one in value.args[1:] for draw in draws_of(one)}


def _changes(target: Value) -> set[int]:
    """The random draws by which a target is changed into a new one; what was written into the old one is there, too."""
    found: set[int] = set()
    for one in origins(target):
        if _is_move(one) or (one.op in ("sub", "add", "mul", "neg") and not isinstance(one.node, ast.AugAssign)):
            found |= _under(one)
    whole = [one for one in alternatives(target) if _under(one)]
    kept = [one for one in whole if _is_written(one)]
    return set() if len(kept) == len(whole) and whole else found


def _is_written(value: Value) -> bool:
    """Whether a value is one of before the function that writes numbers into it, and no copy that this one makes."""
    base = value
    while base.args and (base.op in ("set_item", "part", "from_numpy", "numpy", "asarray") or base.op in SHAPED):
        base = base.args[0]
    written = base is not value and value.op == "set_item"
    return isinstance(value, Table) or (written and len(base.where.functions) < len(value.where.functions))
