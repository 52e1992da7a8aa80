"""Time limits of environments that the program itself defines, in what values are learned towards. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    SHAPED,
    Many,
    Value,
    alternatives,
    bare,
    constant,
    number,
    origins,
)
from probe.diagnose.code.finders.losses.bootstraps import Backup, backups
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import is_attribute, number_in, short
from probe.diagnose.code.traits.arithmetic import complement_of

FINDERS = Finders()
_KEPT = ("builtins.float", "builtins.int", "builtins.bool", "bool", "float32", "element", "rows", "columns", "flatten")
_EITHER = ("or", "logical_or", "maximum", "max")
_TAKEN = ("tuple", "list", "part", "either", "append", "set_item", "any", "all", "astype", "from_numpy", "invert", "not", *_EITHER, *_KEPT)
"""Operations that take a limit without asking for it alone."""


@FINDERS.add("time-limit-as-end")
def _limit_among_ends(program: Program) -> Iterator[Remark]:
    """The value of what follows is left out at an end that an environment of the program has, and also where its time is up,
    which no observation shows."""
    computation = computation_of(program)
    limits = list(_limits(computation))
    if not limits or _reads_of_limits(program):
        return
    for one in backups(computation):
        for told in _left_out(one):
            ends = list(_ends(told))
            cut = next((limit for limit in limits for end in ends if _is_up(end, limit)), None)
            if cut is not None and any(not any(_is_up(end, limit) for limit in limits) for end in ends) and _asked_with_others(computation, cut):
                yield Remark(one.whole.node, f"{short(one.whole.node)} leaves out the value of what follows also where the time is up ({short(cut.node)}, line {cut.line}), and what is cut there has not ended")
                return


@FINDERS.add("time-limit-taken-for-an-end")
def _limit_joined_to_the_end(program: Program) -> Iterator[Remark]:
    """An environment of the program tells ends and time limits apart, no observation shows its clock, and the value of what follows
    is left out at both."""
    computation = computation_of(program)
    told = [one for one in computation.of("tuple") if isinstance(one, Many) and len(one.parts) in (4, 5) and any(getattr(each, "name", "") == "step" for each in one.where.functions[-1:])]
    apart = [(bare(one.parts[2]), bare(one.parts[3])) for one in told if _counts_unseen(one.parts[3], one.parts[0])]
    if not apart or _reads_of_limits(program) or any(True for _ in _limit_among_ends(program)):
        return
    for one in backups(computation):
        for joined in (each for left in _left_out(one) for each in _ends(left, joined=True)):
            parts = [bare(each) for each in joined.args]
            cut = next((limit for end, limit in apart if any(each is end for each in parts) and any(each is limit for each in parts)), None)
            if cut is not None and _asked_with_others(computation, cut):
                yield Remark(one.whole.node, f"{short(one.whole.node)} leaves out the value of what follows where {short(joined.node)} (line {joined.line}) tells of a time limit too: what is truncated ({short(cut.node)}, line {cut.line}) has not ended")
                return


def _counts_unseen(cut: Value, observation: Value) -> bool:
    """Whether a condition compares a count of steps with a bound, and an observation is not made of that count."""
    counts = {id(one) for one in origins(cut) if one.op == "add" and len(one.args) == 2 and number(one.args[1]) == 1}
    return bool(counts) and bare(cut).op in ("ge", "gt", "eq", "and", "logical_and") and not counts & _shown(observation)


def _shown(observation: Value) -> set[int]:
    """What an observation is made of, without the conditions that say which of its rows are set anew."""
    seen: set[int] = set()
    waiting = [observation]
    while waiting:
        at = waiting.pop()
        if id(at) not in seen:
            seen.add(id(at))
            waiting.extend((at.args[0], *at.args[2:]) if at.op == "set_item" else at.made_of())
    return seen


def _left_out(one: Backup) -> Iterator[Value]:
    """What is true where the value of what follows is left out."""
    for factor in one.factors:
        at, depth = factor, 12
        while depth and complement_of(at) is None and at.op not in ("invert", "not") and at.op != "either" and (at.args or isinstance(at, Many)):
            inner = at.parts if isinstance(at, Many) else at.args[:1] if at.op in KEPT or at.op in SHAPED or at.op in _KEPT or at.op == "part" else ()
            at, depth = (inner[0], depth - 1) if len(inner) == 1 else (at, 0)
        told = complement_of(at) or (at.args[0] if at.op in ("invert", "not") else None)
        if told is not None:
            yield told
    at = bare(one.future)
    if at.op in ("masked_fill", "set_item") and len(at.args) == 3 and constant(at.args[2]) in (0, 0.0):
        yield at.args[1]
    if at.op == "where" and len(at.args) == 3 and (constant(at.args[1]) in (0, 0.0) or bare(at.args[1]).op in ("zeros_like", "zeros")):
        yield at.args[0]


def _limits(computation: Computation) -> Iterator[Value]:
    """Each comparison of a clock of an environment with a bound: of an attribute that each step counts up by 1, and that
    nothing else reads."""
    program = computation.program
    for value in computation.of("ge", "gt", "eq"):
        node = value.node
        clock = node.left if isinstance(node, ast.Compare) else None
        step = value.where.functions[-1] if value.where.functions else None
        of = program.class_of(step) if isinstance(step, ast.FunctionDef) and step.name == "step" else None
        if isinstance(clock, ast.Attribute) and of is not None and step is not None and _is_clock(program, of, step, clock.attr):
            yield value


def _is_clock(program: Program, of: ast.ClassDef, step: ast.AST, name: str) -> bool:
    """Whether an attribute counts all steps, and is read only to be compared or counted on."""
    counted = [one for one in getattr(step, "body", ()) if _counts_on(one, name)]
    set_in_step = any(isinstance(one, ast.Assign) and one not in counted and any(is_attribute(target, name) for target in one.targets) for one in ast.walk(step))
    reads = [one for one in ast.walk(of) if is_attribute(one, name) and isinstance(one.ctx, ast.Load)]
    own = {id(part) for one in counted for part in ast.walk(one)}
    return bool(counted) and not set_in_step and all(id(one) in own or _only_compared(program, one) for one in reads)


def _counts_on(node: ast.AST, name: str) -> bool:
    """Whether a statement adds 1 to an attribute: `self.t += 1`, `self.t = self.t + 1`."""
    if isinstance(node, ast.AugAssign):
        return isinstance(node.op, ast.Add) and is_attribute(node.target, name) and number_in(node.value) == 1
    added = node.value if isinstance(node, ast.Assign) and len(node.targets) == 1 and is_attribute(node.targets[0], name) else None
    if not isinstance(added, ast.BinOp) or not isinstance(added.op, ast.Add):
        return False
    return any(is_attribute(one, name) and number_in(other) == 1 for one, other in ((added.left, added.right), (added.right, added.left)))


def _only_compared(program: Program, node: ast.AST) -> bool:
    """Whether an attribute is read in a comparison, or to set some of its rows."""
    around = program.parent.get(node)
    if isinstance(around, ast.Subscript):
        if isinstance(around.ctx, ast.Store):
            return True
        around = program.parent.get(around)
    return isinstance(around, ast.Compare)


def _ends(value: Value, depth: int = 24, joined: bool = False) -> Iterator[Value]:
    """What tells an end: the conditions that a value is one of, through a store of transitions; `joined`: where they are joined."""
    if depth == 0:
        return
    inner: list[Value] = []
    if isinstance(value, Many):
        inner = list(value.parts) if value.grown or len(value.parts) == 1 else []
    elif value.op == "either":
        if not joined:
            yield value
        inner = [one for one in alternatives(value) if constant(one) is None]
    elif value.op in _EITHER:
        inner = list(value.args)
        if joined:
            yield value
    elif value.op == "set_item" and len(value.args) == 3:
        inner = [value.args[2]]
    elif value.args and (value.op in KEPT or value.op in SHAPED or value.op in _KEPT or value.op == "part"):
        inner = [value.args[0]]
    for one in inner:
        yield from _ends(one, depth - 1, joined)
    if not inner and not joined and value.op in ("gt", "lt", "ge", "le", "and", "eq", "ne", "logical_and", "any", "is", "in"):
        yield value


def _is_up(end: Value, limit: Value) -> bool:
    """Whether a condition is that the time is up: the comparison, it and that nothing else has ended the episode, or True
    where it holds."""
    if end.op == "either" and isinstance(end.node, ast.If):
        return any(constant(one) is True for one in end.args) and limit.node in (end.node.test, *(end.node.test.values if isinstance(end.node.test, ast.BoolOp) else ()))
    inner = [bare(one) for one in end.args] if end.op in ("and", "logical_and") else [end]
    return any(one is limit for one in inner) and all(one is limit or one.op in ("invert", "not") for one in inner)


def _reads_of_limits(program: Program) -> bool:
    """Whether a program reads from what a step tells whether an episode was cut, or its last observation."""
    made = [one.args for one in program.calls() if program.kind_name(one.func) in program.classes]  # what an environment is made with
    settings = {id(one) for given in made for one in given}
    keys = [one.slice for one in program.everywhere(ast.Subscript) if isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Load) and id(one) not in settings]
    keys += [one.args[0] for one in program.calls() if isinstance(one.func, ast.Attribute) and one.func.attr in ("get", "pop") and one.args]
    keys += [one.left for one in program.everywhere(ast.Compare) if isinstance(one, ast.Compare) and isinstance(one.ops[0], (ast.In, ast.NotIn))]
    words = [one.value.lower() for one in keys if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return any(part in word for word in words for part in ("trunc", "final_", "terminal_obs", "timeout", "time_limit", "last_obs"))


def _asked_with_others(computation: Computation, limit: Value) -> bool:
    """Whether nothing outside of the environment asks whether the time is up, and for that alone."""
    waiting, seen = [limit], {id(limit)}
    while waiting:
        at = waiting.pop()
        for user in computation.users(at):
            inside = any(getattr(one, "name", "") == "step" for one in user.where.functions)
            if not inside and user.op not in _TAKEN:
                return False
            if id(user) not in seen and user.op not in _EITHER and (user.op in _TAKEN or user.op == "and") and not isinstance(user, Many):
                seen.add(id(user))
                waiting.append(user)
    tests = {id(test): test for value in computation.values for test, _ in value.where.under if not any(getattr(each, "name", "") == "step" for each in value.where.functions)}
    return not any(ends and all(_is_up(end, limit) for end in ends) for ends in map(list, map(_ends, tests.values())))
