"""Grids of times and steps that a sampler goes along. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, bare, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import product, sides
from probe.diagnose.code.traits.basic import losses
from probe.diagnose.code.traits.courses import number_at
from probe.diagnose.code.traits.uses import made_from

FINDERS = Finders()
_NOISE = ("randn", "randn_like", "normal", "standard_normal")
_ROWS = ("linspace", "arange")
_TURNED = ("element", "round", "floor", "rint", "flip", "reversed", "builtins.reversed", "tqdm.tqdm", "tqdm.auto.tqdm", "builtins.int", "rows")


def _turned(value: Value) -> Value:
    """A grid whose numbers were rounded, turned round or gone through one by one."""
    value = bare(value, *_TURNED)
    while value.op == "part" and len(value.args) == 2 and (value.args[1].op in ("index", "slice", "add") or number(value.args[1]) is not None):
        value = bare(value.args[0], *_TURNED)
    return value


def stride_of(value: Value) -> float | None:
    """How far apart the neighbours of an even grid are before they are rounded, if that is known."""
    value = _turned(value)
    if value.op in ("add", "sub") and len(value.args) == 2 and number(value.args[1]) is not None:
        return stride_of(value.args[0])
    if value.op in ("mul", "div") and len(value.args) == 2:
        for one, by in sides(value) if value.op == "mul" else ((value.args[0], value.args[1]),):
            known, inner = number(by), stride_of(one) if number(by) else None
            if known and inner is not None:
                return inner * known if value.op == "mul" else inner / known
        return None
    ends = [number(one) for one in value.args]
    if value.op == "linspace" and "endpoint" not in value.named:
        count = number(value.named.get("steps") or value.named.get("num") or (value.args[2] if len(value.args) > 2 else None))
        if count is not None and count > 1 and len(ends) > 1 and ends[0] is not None and ends[1] is not None:
            return (ends[1] - ends[0]) / (count - 1)
    if value.op in ("arange", "range", "index") and ends and None not in ends[:3]:
        return ends[2] if len(ends) > 2 else 1.0
    return None


@FINDERS.add("step-before-of-another-stride")
def _stride_of_another_grid(program: Program) -> Iterator[Remark]:
    """A sampler goes over the rounded steps of a grid, and takes for the step that comes next the one that lies a whole number
    before, which is not how far apart the steps of the grid are."""
    computation = computation_of(program)
    said: set[int] = set()
    for value in computation.of("part", "gather"):
        if len(value.args) < 2 or value.line in said or not any(one.op == "cumprod" for one in origins(value.args[0], stop=("run",))):
            continue
        index = bare(value.args[-1])
        if index.op in ("max", "clamp", "maximum") and index.args and any(number(one) == 0 for one in (*index.args[1:], *index.named.values())):
            index = bare(index.args[0])
        if index.op != "sub" or len(index.args) != 2:
            continue
        step, by = bare(index.args[0], "builtins.int"), index.args[1]
        apart, taken = stride_of(step), number(by)
        grid = _turned(step)
        if apart is not None and taken is not None:
            wrong, how = abs(apart) > 1 and taken >= 1 and abs(abs(apart) - taken) > 1e-6, f"{abs(apart):.4g} apart"
        else:
            count = grid.argument("steps", 2) or grid.named.get("num")
            wrong, how = by.op == "floordiv" and grid.op == "linspace" and count is not None and same(bare(count), bare(by.args[1])), "further apart: the last of them is the end of the grid"
        if wrong and any(len(one.args) > 1 and one.args[0] is value.args[0] and same(bare(one.args[-1], "builtins.int"), step) for one in computation.of("part", "gather")):
            said.add(value.line)
            yield Remark(value.node, f"{short(value.node)} is taken for the step that comes next, {short(by.node) if taken is None else f'{taken:g}'} before this one, and the steps of {short(grid.node)} (line {grid.line}) are {how}")


# Even steps along an uneven grid ------------------------------------------------------------


def even_steps_on_an_uneven_grid(program: Program) -> Iterator[Remark]:
    """What is sampled goes on by the velocity times one fixed number, and the times that the network is given do not lie evenly."""
    computation = computation_of(program)
    if not any(_is_velocity(one) for _, loss in losses(computation) for one in origins(loss, stop=("run",))):
        return
    for value in computation.of("add", "sub"):
        if not value.where.no_grad or not value.where.loops:
            continue
        for sample, change in sides(value) if value.op == "add" else ((value.args[0], value.args[1]),) if len(value.args) == 2 else ():
            found = _fixed_step(sample, change)
            uneven = _uneven(found[0], value) if found is not None else None
            if found is None or uneven is None or _goes_on(computation, value):
                continue
            yield Remark(value.node, f"{short(value.node)} goes on by one and the same share of the way, {short(found[1].node)}, and the times of {short(uneven.node)} (line {uneven.line}) do not lie evenly: the sample is elsewhere than the network is told")
            return


def _is_velocity(value: Value) -> bool:
    """Whether a value is the way from the data to the noise, or back."""
    if value.op != "sub" or len(value.args) != 2:
        return False
    drawn = [bare(one, "part").op in _NOISE for one in value.args]
    return drawn.count(True) == 1


def _fixed_step(sample: Value, change: Value) -> tuple[Value, Value] | None:
    """What a network gives for a sample, and the fixed number that it is multiplied by."""
    made = product(change)
    moved = [one for one in made.above if any(part.op == "run" for part in origins(one))]
    others = [one for one in (*made.above, *made.below) if not any(one is each for each in moved)]
    fixed = len(others) == 1 and all(part.op in ("@constant", "@input", "div", "len", "neg", "float", "sub", "add") and (part.op != "@input" or not part.where.loops) for part in origins(others[0]))
    if len(moved) != 1 or not fixed or not any(part is bare(sample) or part is sample for part in origins(moved[0])):
        return None
    return moved[0], others[0]


def _uneven(moved: Value, value: Value) -> Value | None:
    """The uneven grid whose entry a network is given in each pass of a loop."""
    for one in origins(moved):
        entry = one.op == "element" or (one.op == "part" and len(one.args) == 2 and any(each.op == "index" for each in origins(one.args[1])))
        if not entry or not one.where.loops or one.where.loops[-1] not in value.where.loops:
            continue
        grid = bare(one.args[0], "flip")
        while grid.op == "part" and len(grid.args) == 2 and grid.args[1].op == "slice":
            grid = bare(grid.args[0], "flip")
        rows = [each for each in origins(grid, stop=("run", *_ROWS)) if each.op in _ROWS]
        if len(rows) != 1 or any(each.op == "run" for each in origins(grid)):
            continue
        ends = [number(each) for each in rows[0].args[:2]] if rows[0].op == "linspace" else [0.0, 1.0]
        begin, end = (ends[0] or 0.0, ends[1]) if len(ends) == 2 and ends[1] is not None else (0.0, 1.0)
        places = [begin + (end - begin) * share for share in (0.05, 0.5, 0.95)]
        known = [number_at(grid, 1.0, given={id(rows[0]): place}) for place in places]
        if None not in known and abs(known[1] - (known[0] + known[2]) / 2) > 0.01 * abs(known[2] - known[0]) > 0:  # type: ignore[operator]
            return grid
    return None


def _goes_on(computation: Computation, value: Value) -> bool:
    """Whether what was computed is no end of a pass: a network is given it again in it, or noise is added to it."""
    for one in made_from(computation, value, None):
        if one.op == "run" and one.where.loops[: len(value.where.loops)] == value.where.loops:
            return True
        if one.op in ("add", "sub") and any(part.op in _NOISE and part.where.loops for other in one.args if other is not value for part in origins(other, stop=("run",))):
            return True
    return False


# Ends that a grid does not reach ---------------------------------------------------------------


def ends_not_reached(program: Program) -> Iterator[Remark]:
    """Levels of noise go from one number to another one by powers that do not undo each other: one of the two is never reached."""
    computation = computation_of(program)
    for value in computation.of("mul", "pow"):
        found = _geometric(value) if value.op == "mul" else _rooted(program, value)
        if found is not None:
            yield Remark(value.node, f"{short(value.node)} {found}")
            return


def _geometric(value: Value) -> str | None:
    """`high ** 2 * (low / high) ** share`: it begins at the square of one end, and ends at the product of both."""
    for first, steps in sides(value):
        if bare(steps).op != "pow" or not any(one.op in (*_ROWS, "index") for one in origins(bare(steps).args[1], stop=("run",))) or not _ends_at_one(bare(steps).args[1]):
            continue
        begin, ratio = _power_in(first.node) or (first.node, "1"), bare(steps).args[0].node
        quotient = ratio.left if isinstance(ratio, ast.BinOp) and isinstance(ratio.op, ast.Pow) else ratio
        if not isinstance(quotient, ast.BinOp) or not isinstance(quotient.op, ast.Div):
            continue
        below, above = _power_in(quotient.right) or (quotient.right, "1"), _power_in(quotient.left) or (quotient.left, "1")
        by = _power_in(ratio)[1] if isinstance(ratio, ast.BinOp) and isinstance(ratio.op, ast.Pow) else "1"  # type: ignore[index]
        if ast.unparse(below[0]) == ast.unparse(begin[0]) and below[1] == above[1] and "1" in (by, below[1]) and begin[1] != (below[1] if by == "1" else by):
            return f"begins at {ast.unparse(begin[0])} to the power {begin[1]}, and is multiplied on the way by {short(ratio)}, which has it to the power {below[1] if by == '1' else by}: {ast.unparse(above[0])} is never reached"
    return None


def _ends_at_one(share: Value) -> bool:
    """Whether a share of the way goes from 0 to 1."""
    share = bare(share)
    if share.op == "linspace":
        return [number(one) for one in share.args[:2]] == [0.0, 1.0]
    return share.op == "div" and len(share.args) == 2 and any(one.op in ("arange", "index", "element") for one in origins(share.args[0]))


def _power_in(node: ast.AST) -> tuple[ast.expr, str] | None:
    """What is raised to a power, and the power as it is written."""
    return (node.left, ast.unparse(node.right)) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) else None


def _said(program: Program, node: ast.AST) -> ast.AST:
    """What a name is given, where that is written once in its function."""
    if not isinstance(node, ast.Name):
        return node
    scope = program.scope(node)
    given = [one.value for one in program.everywhere(ast.Assign) if program.scope(one) is scope and len(one.targets) == 1 and isinstance(one.targets[0], ast.Name) and one.targets[0].id == node.id]
    return given[0] if len(given) == 1 else node


def _rooted(program: Program, value: Value) -> str | None:
    """`(high ** (1 / rho) + share * (low ** rho - high ** (1 / rho))) ** rho`: the roots of the two ends are not of one kind."""
    inner = bare(value.args[0]) if len(value.args) == 2 else value
    ends: list[ast.AST] = []
    if inner.op == "add" and len(inner.args) == 2:
        for first, moved in sides(inner):
            for way, share in sides(bare(moved)) if bare(moved).op == "mul" else ():
                node = way.node
                if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and any(one.op in (*_ROWS, "index") for one in origins(share)):
                    both = [_said(program, one) for one in (node.left, node.right)]
                    ends = [first.node, both[0]] if ast.unparse(both[1]) == ast.unparse(_said(program, first.node)) else ends
    elif inner.op == "linspace":
        ends = [one.node for one in inner.args[:2]]
    powers = [_power_in(_said(program, one)) for one in ends]
    outer = _power_in(value.node)
    if len(powers) != 2 or powers[0] is None or powers[1] is None or outer is None or powers[0][1] == powers[1][1]:
        return None
    roots = [one for one in powers if one is not None and one[1].replace(" ", "") in (f"1/{outer[1]}", f"1.0/{outer[1]}")]
    wrong = next((one for one in powers if one is not None and one not in roots), None)
    if len(roots) != 1 or wrong is None:
        return None
    return f"raises {ast.unparse(wrong[0])} to the power {wrong[1]} first, and {ast.unparse(roots[0][0])} to {roots[0][1]}: {ast.unparse(wrong[0])} is never reached"
