"""The best score so far: how it begins, and which way it is compared. Pure."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import trains
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Key, Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    ORDERS,
    Function,
    argument,
    compares,
    is_attribute,
    is_binary,
    is_call,
    is_method,
    is_name,
    is_string,
    last_word,
    names_set,
    number_in,
    own_nodes,
    pairs_of,
    parameters,
    returned,
    short,
    text_of,
)
from probe.diagnose.code.torch_losses import is_loss

RULES = Rules("loop")
_TEST = re.compile(r"(x_|X_)?test(_(loader|data|set|dataset|dl|ds|split|x|part))?")


def comparison_above(program: Program, node: ast.AST) -> ast.Compare | None:
    """The comparison of an `if` that decides whether a statement runs, where it asks which of two is larger."""
    for around in program.parents(node):
        for one in ast.walk(around.test) if isinstance(around, ast.If) else ():
            if isinstance(one, ast.Compare) and isinstance(one.ops[0], ORDERS):
                return one
        if isinstance(around, Function):
            return None
    return None


def goes_on_from(program: Program, node: ast.AST, depth: int = 4) -> bool:
    """Whether a count that was loaded is where a training goes on: a range begins there, it is counted further, or it is kept
    with the next checkpoint; not where it is only told."""
    inner, statement = node, node
    for around in program.parents(node):
        if isinstance(around, ast.Call) and inner is not around.func and (last_word(around.func) in _BEGINS or _is_given_to_training(program, around)):
            return True
        if isinstance(around, ast.keyword) and around.arg and _STARTS.search(around.arg):
            return True
        if isinstance(around, ast.Dict) and any(is_method(one, "state_dict") for one in around.values):
            return True
        inner = statement = around
        if isinstance(around, ast.stmt):
            break
    if depth == 0 or not isinstance(statement, ast.stmt):
        return False
    if isinstance(statement, ast.While | ast.AugAssign):
        return True
    if isinstance(statement, ast.Return):
        function = program.function_of(statement)
        calls = [one for one in program.calls() if program.local_function(one) is function and not program.called(one).startswith("torch.")]
        return not calls or any(goes_on_from(program, one, depth - 1) for one in calls)
    given = statement.targets if isinstance(statement, ast.Assign) else [statement.target] if isinstance(statement, ast.AnnAssign) else []
    pairs = pairs_of(statement) if isinstance(statement, ast.Assign) else ()
    targets = [target for target, value in pairs if any(one is node for one in ast.walk(value))] or given
    return any(_is_gone_on_from(program, one, statement, depth) for target in targets for one in (target.elts if isinstance(target, ast.Tuple) else [target]))


def _is_gone_on_from(program: Program, target: ast.expr, statement: ast.stmt, depth: int) -> bool:
    """Whether what a count was assigned to is read, or counted further, where a training goes on."""
    found: list[ast.Name | ast.Attribute]
    if isinstance(target, ast.Name):
        frame = program.frame(statement)
        shared = any(isinstance(one, ast.Global) and target.id in one.names for one in ast.walk(frame))
        places = [one for one in ast.walk(program.source_of[statement].tree if shared else frame) if is_name(one, target.id)]
        places = [one for one in places if program.frame(one) is not frame or one.lineno >= statement.lineno or program.loops(statement)]
        found = [one for one in places if (of := program.function_of(one)) is None or of is frame or target.id not in {*names_set(of), *(each.arg for each in parameters(of))}]
    elif isinstance(target, ast.Attribute):
        if _STARTS.search(target.attr):
            return True
        found = [one for one in program.everywhere(ast.Attribute) if is_attribute(one, target.attr)]
    else:
        return isinstance(target, ast.Subscript) and is_string(target.slice) and bool(_STARTS.search(target.slice.value))
    if any(isinstance(program.parent.get(one), ast.AugAssign) and isinstance(one.ctx, ast.Store) for one in found):
        return True
    return any(isinstance(one.ctx, ast.Load) and goes_on_from(program, one, depth - 1) for one in found)


def _is_given_to_training(program: Program, call: ast.Call) -> bool:
    """Whether a call runs a training of the program, or makes an object of one of its classes."""
    local = program.local_function(call)
    return local is not None and (local.name == "__init__" or trains(program, local))


_BEGINS = ("range", "trange", "count", "islice")
_STARTS = re.compile(r"start|resum|initial|last_epoch|begin|_step_count")


def _scores(program: Program) -> Iterator[tuple[ast.If, ast.Compare, ast.expr, ast.expr, bool]]:
    """Each `if` that compares two values: it, its test, what may be the best so far, the score, and whether a higher
    score is better."""
    for node in program.everywhere(ast.If):
        test = node.test
        if compares(test, *ORDERS):
            higher = isinstance(test.ops[0], (ast.Gt, ast.GtE))
            yield node, test, test.comparators[0], test.left, higher
            yield node, test, test.left, test.comparators[0], not higher


def _infinity(flow: Flow, node: ast.AST | None) -> float | None:
    """The infinity that an expression is."""
    found = flow.number(node)
    return found if found is not None and math.isinf(found) else None


@RULES.add("never-better", "the best state is not the one that is kept", "start from -inf for a score that rises, from inf for a loss, and set it when a better one comes")
def _never_better(program: Program) -> Iterator[Remark]:
    """A best score whose first value no score can beat, or which is never set to a better one."""
    flow = flow_of(program)
    for node, test, best, score, rising in _scores(program):
        key = flow.key(best)
        first, *later = flow.values(key) or [None]
        bound, strict, said = _infinity(flow, first), isinstance(test.ops[0], (ast.Lt, ast.Gt)), short(test)
        if key is None or first is None or any(_infinity(flow, one) not in (None, bound) for one in later):
            continue
        inside = {one for statement in node.body for one in ast.walk(statement)}
        only_here = bool(later) and all(one in inside for one in later)
        if bound is not None and (bound > 0) == rising and strict and only_here:
            yield Remark(node, f"{said} is never true: {key[1]} starts as {short(first)}")
        elif number_in(first) == 0 and not rising and strict:
            same = all(one is not None and ast.dump(one) == ast.dump(score) for one in later)
            if only_here and same and score_direction(program, flow, score) is not None:
                yield Remark(node, f"{said} is never true: {key[1]} starts as 0, and a loss or a share of right answers is never below it")
        elif (bound is not None or number_in(first) == 0) and not later and _saves(program, node) and (
            not isinstance(key[0], ast.ClassDef) and program.loops(node) and not program.loops(first) and flow.key(score) is not None
        ):
            yield Remark(node, f"{key[1]} is never set again after {short(first)}: {said} compares with the first value for ever, and the last state is kept for the best")


def _saves(program: Program, node: ast.If) -> bool:
    """Whether a branch keeps a state."""
    kept = ("state_dict", "save_pretrained")
    return any(program.called(one) == "torch.save" or is_method(one, *kept) for one in ast.walk(node))


def score_direction(program: Program, flow: Flow, node: ast.AST | None, depth: int = 10) -> str | None:
    """`loss` where a number is a loss or a sum or mean of losses, `share` where it is one of right answers; None
    where its computation does not tell."""
    if node is None or depth == 0:
        return None
    if is_loss(program, node):
        return "loss"
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq):
        return "share" if any("argmax" in text_of(side) or "max(" in text_of(side) or _predicted(program, flow, side) for side in (node.left, node.comparators[0])) else None
    if isinstance(node, ast.Call):
        name = program.called(node).rpartition(".")[2]
        if is_method(node, "item", "sum", "mean", "float", "cpu", "detach", "double", "numpy"):
            inner = node.args[0] if program.dotted(node.func) and node.args else node.func.value
            return score_direction(program, flow, inner, depth - 1)
        if is_method(node, "eq") and node.args and _predicted(program, flow, node.func.value):
            return "share"
        if name in ("accuracy_score", "f1_score", "roc_auc_score"):
            return "share"
        if is_call(node, "float", "sum") and node.args:
            return score_direction(program, flow, node.args[0], depth - 1)
        local = program.local_function(node)
        if local is not None:
            found = {score_direction(program, flow, value, depth - 1) for value in returned(local)}
            return found.pop() if len(found) == 1 else None
        return None
    if is_binary(node, ast.Div, ast.Mult):
        right = score_direction(program, flow, node.right, depth - 2) if depth > 2 else None
        return score_direction(program, flow, node.left, depth - 1) if right is None else None
    key = flow.key(node)
    if key is None or not isinstance(node, ast.Name):
        return None
    values = [one for one in flow.values(key) if not (isinstance(one, ast.Constant) and one.value in (0, 0.0))]
    found = {_direction_of_value(program, flow, key, one, depth) for one in values}
    found.discard("self")
    if found == {None}:
        return _unpacked(program, flow, key, depth)
    return found.pop() if len(found) == 1 else None


def _direction_of_value(program: Program, flow: Flow, key: Key, value: ast.AST | None, depth: int) -> str | None:
    if isinstance(value, ast.BinOp) and isinstance(value.left, ast.Name) and flow.key(value.left) == key:
        return "self" if isinstance(value.op, ast.Div) else score_direction(program, flow, value.right, depth - 1)
    parent = program.parent.get(value) if value is not None else None
    if isinstance(parent, ast.AugAssign) and not isinstance(parent.op, ast.Add):
        return "self" if isinstance(parent.op, (ast.Div, ast.Mult)) else None
    return score_direction(program, flow, value, depth - 1)


def _unpacked(program: Program, flow: Flow, key: Key, depth: int) -> str | None:
    """The direction of a variable that takes one place of what a function of the program returns."""
    found: set[str | None] = set()
    for node in ast.walk(key[0]):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Tuple) or not isinstance(node.value, ast.Call):
            continue
        names = [one.id if isinstance(one, ast.Name) else "" for one in node.targets[0].elts]
        local = program.local_function(node.value)
        if key[1] not in names or local is None or program.scope(node) is not key[0]:
            continue
        place = names.index(key[1])
        for value in returned(local):
            parts = value.elts if isinstance(value, ast.Tuple) else []
            found.add(score_direction(program, flow, parts[place], depth - 1) if place < len(parts) else None)
    return found.pop() if len(found) == 1 and not any(flow.values(key)) else None


def _predicted(program: Program, flow: Flow, node: ast.AST) -> bool:
    """Whether a value is the place of a largest output."""
    if "argmax" in text_of(node):
        return True
    if not isinstance(node, ast.Name):
        return False
    if any(value is not None and "argmax" in text_of(value) for value in flow.values(flow.key(node))):
        return True
    return any(
        isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Tuple) and isinstance(one.value, ast.Call)
        and is_name(one.targets[0].elts[-1], node.id) and text_of(one.value.func).endswith((".max", "topk"))
        for one in ast.walk(program.scope(node))
    )


@RULES.add("wrong-way-round", "better is taken for worse", "turn the comparison, or the mode, round")
def _wrong_way_round(program: Program) -> Iterator[Remark]:
    """The worst state kept for the best, or a rate cut because a score improves."""
    flow = flow_of(program)
    for node, test, best, score, rising in _scores(program):
        key = flow.key(best)
        sets = key is not None and any(
            isinstance(one, ast.Assign) and flow.key(one.targets[0]) == key and ast.dump(one.value) == ast.dump(score)
            for one in node.body
        )
        direction = score_direction(program, flow, score) if sets and _saves(program, node) else None
        if (direction == "loss" and rising) or (direction == "share" and not rising):
            what = "a loss, and better is lower" if direction == "loss" else "a share of right answers, and better is higher"
            yield Remark(node, f"{short(score)} is {what}: {short(test)} keeps the worst state")
    for call in program.calls():
        made = flow.made(flow.origin(flow.key(call.func.value))) if is_method(call, "step") and len(call.args) == 1 else None
        if made is None or program.called(made) != "torch.optim.lr_scheduler.ReduceLROnPlateau":
            continue
        mode = argument(made, "mode", 1) or ast.Constant("min")
        direction = score_direction(program, flow, call.args[0])
        if isinstance(mode, ast.Constant) and (direction, mode.value) in (("loss", "max"), ("share", "min")):
            better = "falls" if direction == "loss" else "rises"
            yield Remark(call, f"{short(call)} gives a score that {better} as the model improves to a schedule in mode {mode.value!r}: the rate is cut while all goes well")


@RULES.add("chosen-by-the-test", "the score that is reported is that of the best of many tries on the test data: a new test would give less", "choose by the validation part, and use the test part once, at the end")
def _chosen_by_test(program: Program) -> Iterator[Remark]:
    """A best state that is chosen by the test part, in a program that has a validation part too."""
    flow = flow_of(program)
    if not _has_validation(program):
        return
    yield from _best_of_tests(program, flow)
    for node, test, best, score, _ in _scores(program):
        made = flow.value(score)
        given = [*made.args, *(one.value for one in made.keywords)] if isinstance(made, ast.Call) else []
        on_test = [one for one in given if _TEST.fullmatch(one.value if is_string(one) else one.id if is_name(one) else "")]
        kept = any(is_method(one, "state_dict", "deepcopy") or is_call(one, "deepcopy") or program.called(one) == "torch.save" for part in node.body for one in ast.walk(part))
        if len(on_test) == 1 and kept and isinstance(best, (ast.Name, ast.Attribute, ast.Subscript)) and program.loops(node):
            yield Remark(test, f"{short(test)} keeps what is best on the test part: {short(made) if isinstance(made, ast.Call) else ''}")


def _best_of_tests(program: Program, flow: Flow) -> Iterator[Remark]:
    """The largest of the scores on the test part: `best = max(best, test(model, test_loader))`."""
    for node in program.everywhere(ast.Assign):
        call = node.value
        if not is_call(call, "max", "min") or len(call.args) != 2 or not program.loops(node) or text_of(node.targets[0]) not in {text_of(one) for one in call.args}:
            continue
        score = next((one for one in call.args if text_of(one) != text_of(node.targets[0])), call.args[0])
        made = flow.value(score)
        on_test = [one for one in made.args if _TEST.fullmatch(one.id if is_name(one) else "")] if isinstance(made, ast.Call) else []
        if len(on_test) == 1:
            yield Remark(node, f"{short(node)} reports what is best on the test part: {short(made) if isinstance(made, ast.Call) else ''}")


def _has_validation(program: Program) -> bool:
    """Whether a program has a validation part, by a name or a string of it."""
    words = {one.value for one in program.everywhere(ast.Constant) if isinstance(one.value, str)} | {one.id for one in program.everywhere(ast.Name)}
    return any(re.fullmatch(r"(x_|X_)?(val|valid|validation|dev)(_\w+)?", word) for word in words)


@RULES.add("threshold-of-the-test", "the score that is reported is the best that any threshold gives on these labels: new data would give less", "choose the threshold on the validation part, and apply it to the test part")
def _threshold_of_test(program: Program) -> Iterator[Remark]:
    """A threshold that is chosen where it scores best on the test part, and used to score that part."""
    flow = flow_of(program)
    for node in program.everywhere(ast.Assign) if _has_validation(program) else ():
        call, target = node.value, node.targets[0]
        local = program.local_function(call) if isinstance(call, ast.Call) else None
        if not isinstance(call, ast.Call) or local is None or not _picks_best(local) or len(call.args) < 2:
            continue
        names = {one.id for one in call.args if isinstance(one, ast.Name)}
        chosen = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
        on_test = any(_of_test(flow, one) for one in call.args)
        for later in program.after(node) if on_test and is_name(chosen) and len(names) > 1 else ():
            scored = next((one for one in ast.walk(later) if isinstance(one, ast.Call) and {text_of(part) for part in one.args} >= names | {text_of(chosen)}), None)
            if scored is not None:
                yield Remark(call, f"{short(call)} chooses what scores best on the test part, and {short(scored)} (line {scored.lineno}) scores the same part with it")
                break


def _picks_best(function: Function) -> bool:
    """Whether a function gives the threshold out of a row of them that scores best."""
    text = text_of(function)
    return ("linspace" in text or "arange" in text or "grid" in text or "thresholds" in text) and ("argmax" in text or "max(" in text or " > best" in text)


def _of_test(flow: Flow, node: ast.AST) -> bool:
    """Whether an expression is computed from what is called a test part, here or at the calls of its function."""
    names = [one for one in ast.walk(node) if isinstance(one, ast.Name)]
    for one in list(names):
        given = flow.given(one)
        names += [part for part in ast.walk(given.value) if isinstance(part, ast.Name)] if given is not None and given.value is not None else []
    names += [part for one in names for passed in flow.passed(one) for part in ast.walk(passed) if isinstance(part, ast.Name)]
    return any(_TEST.fullmatch(one.id) for one in names)


@RULES.add("best-never-used", "the model that is kept, scored and saved is the last one", "load it at the end: model.load_state_dict(best)")
def _never_used(program: Program) -> Iterator[Remark]:
    """The best state, which is kept in a variable that nothing reads."""
    flow = flow_of(program)
    for node in dict.fromkeys(found[0] for found in _scores(program)):
        for one in node.body:
            for target, value in pairs_of(one) if isinstance(one, ast.Assign) else ():
                key = flow.key(target)
                state = any(is_method(part, "state_dict") for part in ast.walk(value))
                if state and key is not None and isinstance(target, ast.Name) and program.loops(node) and not flow.reads.get(key) and not any(isinstance(part, ast.Global | ast.Nonlocal) for part in own_nodes(program.scope(node))):
                    yield Remark(one, f"{target.id} is the best state so far, and nothing reads it: what follows uses the weights of the last step")
