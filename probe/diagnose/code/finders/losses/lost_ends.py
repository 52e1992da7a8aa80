"""Ends of episodes that an environment of the program has, and that nothing keeps. Pure; standard library only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.frames import counted
from probe.diagnose.code.computed.value import Value, alternatives, bare, constant, number, origins
from probe.diagnose.code.finders.losses.bootstraps import Backup, backups, unmasked
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import is_call, is_method, is_own, own, returned, short

FINDERS = Finders()
_PLACES = ("index", "len", "shape", "size", "count", "range")
"""What the number of a step in a rollout is told by."""
_COUNTED = ("add", "sub", "min", "max", "minimum", "mod", "floordiv", "@constant", "either")
_MASKED = ("invert", "logical_not", "not", "where", "masked_fill")


@FINDERS.add("end-of-episode-ignored")
def _lost_end(program: Program) -> Iterator[Remark]:
    """An environment of the program ends its episodes by what happens in them, and what is learned towards takes the value
    of what follows everywhere."""
    ends = [one for classes in program.classes.values() for of in classes for one in ends_of(program, of)]
    if not ends:
        return
    computation = computation_of(program)
    found = [one for one in backups(computation) if any(part.op == "run" for part in origins(one.future, ("item",)))]
    if found and all(_goes_on(computation, one) for one in found):
        whole = found[0].whole
        yield Remark(whole.node, f"{short(whole.node)} takes the value of what follows an end too: episodes end where {short(ends[0])} (line {ends[0].lineno}), and nothing here depends on it")


def ends_of(program: Program, of: ast.ClassDef) -> Iterator[ast.expr]:
    """Where an environment says that an episode has ended, for another reason than that its time is up."""
    step, anew = program.method(of, "step"), _begins_anew(program, of)
    if step is None or not anew:
        return
    told = [one.elts[2] for one in returned(step) if isinstance(one, ast.Tuple) and 3 <= len(one.elts) <= 5]
    for call in own(step, ast.Call):
        if is_method(call, *anew) and is_own(call.func):
            around = [one.test for one in program.parents(call) if isinstance(one, ast.If) and one in set(ast.walk(step))]
            told += [*call.args[:1], *around]
    clocks = {ast.unparse(one) for one in counted(of)}
    yield from (one for one in told if _is_end(step, one, clocks))


def _begins_anew(program: Program, of: ast.ClassDef) -> set[str]:
    """The methods with which an environment begins an episode: `reset`, or one that it also calls when it is made and in a step."""
    called = []
    for name in ("__init__", "step"):
        function = program.method(of, name)
        called.append({one.func.attr for one in own(function, ast.Call) if isinstance(one.func, ast.Attribute) and is_own(one.func)} if function is not None else set())
    found = called[0] & called[1]
    return {one for one in (*found, "reset") if program.method(of, one) is not None and (one == "reset" or _sets_state(program.method(of, one)))}


def _sets_state(method: ast.AST | None) -> bool:
    """Whether a method gives the attributes of its object new values, or some of their entries."""
    nodes = ast.walk(method) if method is not None else ()
    stored = [one for one in nodes if isinstance(one, (ast.Attribute, ast.Subscript)) and isinstance(one.ctx, ast.Store)]
    return any(is_own(one if isinstance(one, ast.Attribute) else one.value) for one in stored)


def _is_end(step: ast.AST, node: ast.expr, clocks: set[str], depth: int = 5) -> bool:
    """Whether a condition is not only that a clock has run down."""
    if depth == 0:
        return False
    if isinstance(node, (ast.Name, ast.Attribute)):
        given = [one.value for one in own(step, ast.Assign) if any(ast.unparse(target) == ast.unparse(node) for target in one.targets)]
        given += [one.value for one in own(step, ast.AugAssign) if ast.unparse(one.target) == ast.unparse(node)]
        return any(_is_end(step, one, clocks, depth - 1) for one in given)
    if isinstance(node, ast.Compare):
        return not any(ast.unparse(part) in clocks for one in (node.left, *node.comparators) for part in ast.walk(one))
    if isinstance(node, ast.Constant):
        return node.value is True
    inner = node.values if isinstance(node, ast.BoolOp) else [node.left, node.right] if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitOr, ast.BitAnd)) else [*node.args, *([node.func.value] if isinstance(node.func, ast.Attribute) else [])] if isinstance(node, ast.Call) else [node.operand] if isinstance(node, ast.UnaryOp) else []
    return any(_is_end(step, one, clocks, depth - 1) for one in inner)


def _goes_on(computation: Computation, one: Backup) -> bool:
    """Whether the value of what follows is taken everywhere: nothing that it is multiplied by, chosen by or overwritten by
    can be an end."""
    if any(number(factor) is None for factor in one.factors) or unmasked(one.future) is not bare(one.future):
        return False
    if any(constant(part) is not None or not _computed(part) for part in alternatives(one.future)) or _is_masked_before(one.future):
        return False
    chosen = [test for value in (one.whole, *alternatives(one.future)) for test, _ in value.where.under]
    if not all(_is_place(test) for test in chosen):
        return False
    later = computation.users(one.whole)
    return not any(user.op in ("either", "set_item", "where", "masked_fill") for user in later)


def _is_masked_before(future: Value) -> bool:
    """Whether the value of what follows was multiplied by a mask, or chosen by one, when it was kept."""
    return any(one.op in _MASKED for one in origins(future, stop=("run",)))


def _computed(value: Value) -> bool:
    return any(one.op == "run" for one in origins(value))


def _is_place(test: Value) -> bool:
    """Whether a condition asks only for the number of a step."""
    if test.op in ("lt", "le", "gt", "ge") and all(one.op in (*_PLACES, *_COUNTED, test.op) for one in origins(test, stop=_PLACES)):
        return True
    asked = [inner for one in test.args for inner in (one, *one.args)]
    return any(one.op in _PLACES for one in asked) or all(number(one) is not None for one in test.args)


@FINDERS.add("returns-across-episodes")
def _across(program: Program) -> Iterator[Remark]:
    """The rewards of several episodes stand in one list, and are added up from its end without a look at where one ends."""
    computation = computation_of(program)
    for value in computation.of("add"):
        loop = value.where.loops[-1] if value.where.loops else None
        if not isinstance(loop, ast.For) or not _goes_backwards(loop) or any(isinstance(one, (ast.If, ast.IfExp)) for one in ast.walk(loop)) or len(value.args) != 2:
            continue
        reward, rest = value.args
        around = [one for one in reward.where.loops if one not in value.where.loops]
        told = isinstance(loop.iter, ast.Call) and any(is_call(one, "zip") for one in ast.walk(loop.iter))
        several = around[-2] if len(around) > 1 and _of_episodes(around[-2], around[-1]) else around[-1] if around and _goes_on_after_ends(around[-1]) else None
        if several is None or told or rest.op not in ("mul", "@constant") or not _only_discounted(value.node, loop):
            continue
        yield Remark(value.node, f"{short(value.node)} goes on from one episode into the one before it: the loop of line {getattr(several, 'lineno', 0)} puts the rewards of several into one list")
        return


@FINDERS.add("end-of-episode-ignored")
def _kept_and_never_asked(program: Program) -> Iterator[Remark]:
    """The ends of episodes are kept for each step, and what adds up the rewards from the last step on never reads them."""
    for classes in program.classes.values():
        for of in classes:
            kept = [name for name in _kept(of) if _END.search(name) and not _is_read(program, name)]
            sums = [one for loop in ast.walk(of) if isinstance(loop, ast.For) and _runs_down(loop) for one in _carried_on(loop)] if kept else []
            if sums:
                yield Remark(sums[0], f"{short(sums[0].value)} goes on over the ends of episodes: self.{kept[0]} holds them for each step, and nothing reads it")
                return


_END = re.compile(r"(^|_)(dones?|over|ends?|ended|terminals?|terminated|terminations?|finished|deaths?|crashed)(_|$)", re.I)


def _kept(of: ast.ClassDef) -> Iterator[str]:
    """The lists of an object that a method adds to, step by step: `self.over.append(over)`, or one of several that a loop
    goes over."""
    for call in ast.walk(of):
        if not is_method(call, "append"):
            continue
        if is_own(call.func.value):
            yield call.func.value.attr
    for loop in ast.walk(of):
        if isinstance(loop, ast.For) and _only_appends(loop):
            yield from (one.attr for one in ast.walk(loop.iter) if isinstance(one, ast.Attribute) and is_own(one))


def _only_appends(loop: ast.For) -> bool:
    return all(isinstance(one, ast.Expr) and is_method(one.value, "append") for one in loop.body)


def _is_read(program: Program, name: str) -> bool:
    """Whether anything is done with an attribute but to add to it, or to set it."""
    for node in program.everywhere(ast.Attribute):
        if node.attr != name or isinstance(node.ctx, ast.Store):
            continue
        around = program.parent.get(node)
        if isinstance(around, ast.Attribute) and around.attr in ("append", "clear", "extend"):
            continue
        if not any(isinstance(one, ast.For) and _only_appends(one) and node in set(ast.walk(one.iter)) for one in program.parents(node)):
            return True
    return False


def _runs_down(loop: ast.For) -> bool:
    """Whether a loop goes from the last step to the first."""
    down = isinstance(loop.iter, ast.Call) and len(loop.iter.args) == 3 and ast.unparse(loop.iter.args[2]) == "-1"
    return down or _goes_backwards(loop)


def _carried_on(loop: ast.For) -> Iterator[ast.Assign]:
    """The sums of a loop that go on from one pass into the next: `running = delta + gamma * running`."""
    for one in ast.walk(loop):
        name = one.targets[0] if isinstance(one, ast.Assign) and len(one.targets) == 1 else None
        if isinstance(one, ast.Assign) and isinstance(name, ast.Name) and isinstance(one.value, ast.BinOp) and any(isinstance(part, ast.Name) and part.id == name.id for part in ast.walk(one.value)):
            yield one


def _goes_backwards(loop: ast.For) -> bool:
    return any(is_call(one, "reversed") for one in ast.walk(loop.iter))


def _of_episodes(outer: ast.AST, inner: ast.AST) -> bool:
    """Whether a loop begins an episode in each pass, and the loop in it makes the steps of one."""
    inside = set(ast.walk(inner))
    begins = any(is_method(one, "reset") for one in ast.walk(outer) if one not in inside)
    return begins and any(is_method(one, "step") for one in inside)


def _goes_on_after_ends(loop: ast.AST) -> bool:
    """Whether one loop makes the steps of several episodes: it begins a new one where one has ended, and goes on."""
    begins = [one for one in ast.walk(loop) if isinstance(one, (ast.If, ast.IfExp)) and any(is_method(each, "reset") for each in ast.walk(one)) and not any(isinstance(each, ast.Break) for each in ast.walk(one))]
    return bool(begins) and any(is_method(one, "step") for one in ast.walk(loop)) and not any(isinstance(one, (ast.For, ast.While)) for one in ast.walk(loop) if one is not loop)


def _only_discounted(node: ast.AST, loop: ast.For) -> bool:
    """Whether what is carried on in a loop is multiplied by nothing that can be the end of an episode: nothing in the sum
    beside its first part is read at the place of the loop."""
    if not isinstance(node, ast.BinOp) or not isinstance(loop.target, ast.Name):
        return False
    at = loop.target.id
    read = [one for one in ast.walk(node) if isinstance(one, ast.Name) and one.id == at]
    return len(read) <= 1 and sum(isinstance(one, ast.Mult) for one in ast.walk(node)) == 1
