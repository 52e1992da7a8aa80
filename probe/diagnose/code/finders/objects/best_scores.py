"""What is kept of the best epoch, and what is judged in its place. Pure; standard library only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Instance, Many, Table, Value, constant, origins, same
from probe.diagnose.code.finders.training.chosen_scores import TEST, VALIDATION
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import (
    ORDERS,
    compares,
    is_call,
    is_method,
    is_negative,
    number_in,
    pairs_of,
    short,
    text_of,
)
from probe.diagnose.code.traits.basic import losses
from probe.diagnose.code.traits.updates import backwards

FINDERS = Finders()
_BEST = re.compile(r"(^|_)(best|lowest|highest)(_|$)", re.I)
_HUGE = 1e5


# The best score so far ---------------------------------------------------------------


def best_never_set(program: Program) -> Iterator[Remark]:
    """A state is kept where a score is better than the best so far, and nothing ever changes that best score."""
    for node in program.everywhere(ast.If):
        kept = next((one for part in node.body for one in ast.walk(part) if _keeps_a_state(program, one)), None)
        if kept is None:
            continue
        for test in (one for one in ast.walk(node.test) if compares(one, *ORDERS)):
            for side in (test.left, test.comparators[0]):
                best = side.left if isinstance(side, ast.BinOp) and isinstance(side.op, (ast.Add, ast.Sub)) else side
                start = _only_start(program, node, best)
                if start is None or isinstance(program.parent.get(node.test), ast.While):
                    continue
                first = _number(start)
                named = _BEST.search(text_of(best).rpartition(".")[2]) is not None
                if first is not None and (abs(first) >= _HUGE or (named and first in (0.0, -1.0, 1.0))):
                    yield Remark(test, f"{short(best)} stays {short(start)} (line {start.lineno}): nothing sets it, and {short(kept)} (line {getattr(kept, 'lineno', 0)}) keeps the newest state, not the best")


def _keeps_a_state(program: Program, node: ast.AST) -> bool:
    """Whether a call copies or saves a state, itself or in a function of the program."""
    if not isinstance(node, ast.Call):
        return False
    local = program.local_function(node)
    if local is not None and any(is_method(one, "save") and any(is_method(part, "state_dict") for part in ast.walk(one)) for one in ast.walk(local)):
        return True
    return any(is_method(one, "state_dict") for one in ast.walk(node)) or is_call(node, "deepcopy") or is_method(node, "deepcopy", "save_pretrained")


def _only_start(program: Program, node: ast.If, best: ast.expr) -> ast.expr | None:
    """What a variable or attribute is set to before the loop, if nothing else in the program sets it."""
    function = program.function_of(node)
    if isinstance(best, ast.Name):
        scope = function or program.frame(node)
        if any(isinstance(one, (ast.Global, ast.Nonlocal)) and best.id in one.names for one in program.everywhere(ast.Global, ast.Nonlocal)):
            return None
        places: list[ast.AST] = [one for one in ast.walk(scope) if isinstance(one, ast.Name) and one.id == best.id and isinstance(one.ctx, (ast.Store, ast.Del))]
        around = program.loops(node)
        if not around or any(isinstance(one, ast.arg) and one.arg == best.id for one in ast.walk(scope)):
            return None
        inside = {id(one) for one in ast.walk(around[-1])}
        if any(id(one) in inside for one in places):
            return None
    elif isinstance(best, ast.Attribute) and text_of(best.value) == "self":
        of = program.class_of(node)
        if of is None or of.bases or any(is_call(one, "setattr", "vars") for one in program.calls()):
            return None
        places = [one for one in program.everywhere(ast.Attribute) if one.attr == best.attr and isinstance(one.ctx, (ast.Store, ast.Del))]
        if any(getattr(program.function_of(one), "name", "") != "__init__" for one in places) or any(one.attr == "__dict__" for one in program.everywhere(ast.Attribute)):
            return None
    else:
        return None
    if len(places) != 1:
        return None
    at = next((one for one in program.parents(places[0]) if isinstance(one, ast.stmt)), None)
    if not isinstance(at, ast.Assign):
        return None
    return next((value for target, value in pairs_of(at) if any(one is places[0] for one in ast.walk(target))), None)


def _number(node: ast.expr) -> float | None:
    text = text_of(node).replace("'", '"')
    if text in ('float("inf")', "math.inf", "np.inf", "torch.inf", "numpy.inf", 'float("infinity")'):
        return float("inf")
    if text in ('float("-inf")', "-math.inf", "-np.inf", "-torch.inf", '-float("inf")'):
        return float("-inf")
    return -inner if is_negative(node) and (inner := number_in(node.operand)) is not None else number_in(node)


_REPORTS = frozenset({"tuple", "mod", "text", "print", "format", "item", "round"})
"""What only shows a number."""


@FINDERS.add("best-never-used")
def _weights_left_in_the_file(program: Program) -> Iterator[Remark]:
    """A file that the program has saved weights to is loaded, and nothing reads the weights in it."""
    computation = computation_of(program)
    saved = [one for one in computation.of("save") if len(one.args) > 1]
    for load in computation.of("load"):
        mine = [one for one in saved if one.where.loops and load.args and not load.where.loops and one.number < load.number and (one.args[1] is load.args[0] or same(one.args[1], load.args[0]))]
        if not is_method(load.node, "load") or text_of(load.node.func.value) != "torch" or not mine:
            continue
        keys = {key for one in mine if isinstance(one.args[0], Table) for key, value in one.args[0].entries.items() if value.op == "state_dict"}
        used = list(computation.users(load))
        if any(one.op != "part" or not isinstance(constant(one.args[1]), str) for one in used) or _is_given_on(program, load.node):
            continue
        if not used and not any(one.args[0].op == "state_dict" or any(each.op == "state_dict" for each in one.args[0].made_of() if isinstance(one.args[0], Table)) for one in mine):
            continue
        if any(constant(one.args[1]) in keys or any(user.op not in _REPORTS for user in computation.users(one)) for one in used if computation.users(one)) or (used and not keys):
            continue
        yield Remark(load.node, f"{short(load.node)} is read, and nothing is done with the weights in it: what follows uses those of the last step")


def _is_given_on(program: Program, load: ast.AST) -> bool:
    """Whether what is loaded leaves its function, or is kept in an object."""
    around = next((one for one in program.parents(load) if isinstance(one, ast.stmt)), None)
    return isinstance(around, (ast.Return, ast.With)) or (isinstance(around, ast.Assign) and not all(isinstance(one, ast.Name) for one in around.targets))


# What is judged ------------------------------------------------------------------------


def copy_never_follows(program: Program) -> Iterator[Remark]:
    """A copy of the trained network is the only one that is evaluated, and nothing of the training ever goes into it."""
    computation = computation_of(program)
    learned = {id(one) for _, loss in losses(computation) for one in origins(loss)}
    if not any(True for _ in backwards(computation)):
        return
    runs = [one for one in computation.of("run") if one.where.no_grad and id(one) not in learned and one.args[0].op.startswith("torch.nn.")]
    copies = {one.args[0].node for one in runs if is_call(one.args[0].node, "deepcopy") or is_method(one.args[0].node, "deepcopy")}
    in_training = [one for one in computation.of("run") if id(one) in learned]
    for node in copies:
        whole = [one for one in computation.values if one.node is node]
        judged = [one for one in runs if one.args[0].node is node]
        others = [one for one in runs if one.args[0].node is not node]
        if others or any(one.args[0].node is node for one in in_training) or not any(one.where.loops for one in judged) or not in_training:
            continue
        inside = {id(one) for one in whole}
        if all(_leaves_it(computation, one, inside) for one in whole) and not program.loops(node):
            yield Remark(node, f"{short(node)} is what {short(judged[-1].node)} (line {judged[-1].line}) and all the evaluation run, and nothing of the training ever goes into it: it keeps its first weights")


_LEAVES = frozenset({"eval", "train", "requires_grad_", "run", "set_attribute", "tuple", "to", "list", "dict", "print", "text", "save"})


def _leaves_it(computation: Computation, value: Value, inside: set[int]) -> bool:
    """Whether nothing that is done with a network or layer may change its weights."""
    for one in computation.users(value):
        if id(one) in inside or (one.op in _LEAVES and not isinstance(one, Many)) or isinstance(one, Instance):
            continue
        if one.op == "state_dict" and all(user.op in ("dict", "save") for user in computation.users(one)):
            continue
        if one.op == "load_state_dict" and len(one.args) > 1 and any(part.op == "load" for part in origins(one.args[1])):
            continue
        return False
    return True


def test_never_read(program: Program) -> Iterator[Remark]:
    """The part for the test is never read, and the part that is scored in the training is scored once more after it."""
    for made in program.everywhere(ast.Assign):
        parts = [one for target in made.targets for one in _names_in(target)]
        unread = [one for one in parts if TEST.search(text_of(one).rpartition(".")[2]) and not _is_read(program, one)]
        if not unread or program.loops(made):
            continue
        for again in program.calls():
            held = [one for one in _given(again) if VALIDATION.search(text_of(one).rpartition(".")[2])]
            if program.loops(again) or not held or any(TEST.search(text_of(one).rpartition(".")[2]) for one in _given(again)):
                continue
            before = [one for one in program.calls() if one is not again and text_of(one.func) == text_of(again.func) and any(text_of(part) == text_of(held[0]) for part in _given(one))]
            first = next((one for one in before if program.loops(one) or program.frame(one) is not program.frame(again)), None)
            if first is not None and first.lineno < again.lineno and not _is_a_constructor(text_of(again.func)):
                yield Remark(again, f"{short(again)} scores the part that line {first.lineno} scores in the training, and {short(unread[0])} (line {made.lineno}) is never read")
                return


def _is_a_constructor(name: str) -> bool:
    return name.rpartition(".")[2][:1].isupper() or name in ("len", "print", "range", "str", "enumerate", "zip", "list", "sum", "next", "iter")


def _given(call: ast.Call) -> list[ast.expr]:
    """The variables and attributes that a call is given, also a part of them."""
    found = [one.value if isinstance(one, ast.Subscript) else one for one in (*call.args, *(each.value for each in call.keywords))]
    return [one for one in found if isinstance(one, (ast.Name, ast.Attribute))]


def _names_in(target: ast.expr) -> list[ast.expr]:
    if isinstance(target, (ast.Tuple, ast.List)):
        return [one for part in target.elts for one in _names_in(part)]
    return [target] if isinstance(target, ast.Name) or (isinstance(target, ast.Attribute) and text_of(target.value) == "self") else []


def _is_read(program: Program, target: ast.expr) -> bool:
    """Whether anything may read a variable or attribute, whatever it belongs to."""
    if any((is_call(one, "locals", "globals", "vars") and not one.args) or (is_call(one, "getattr") and len(one.args) > 1 and not isinstance(one.args[1], ast.Constant)) for one in program.calls()):
        return True
    if isinstance(target, ast.Attribute):
        return any(one.attr == target.attr and not isinstance(one.ctx, ast.Store) for one in program.everywhere(ast.Attribute))
    return any(one.id == text_of(target) and not isinstance(one.ctx, ast.Store) for one in program.everywhere(ast.Name))
