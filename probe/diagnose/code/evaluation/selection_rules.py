"""The best epoch and early stopping: which score decides, and what is kept of it. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import HELD_OUT, TRAINING, trains
from probe.diagnose.code.finders.objects.best_scores import (
    best_never_set,
    copy_never_follows,
    test_never_read,
)
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.loop.best_rules import score_direction
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    ORDERS,
    compares,
    is_call,
    is_method,
    is_name,
    is_own,
    last_word,
    number_in,
    pairs_of,
    short,
    text_of,
)

RULES = Rules("data")
_BEST = re.compile(r"(^|_)(best|lowest|highest|min|max|minimum|maximum)(_|$)", re.I)


@RULES.add("patience-never-reset", "training ends too early", "set the count to 0 where the score has improved")
def _patience(program: Program) -> Iterator[Remark]:
    """A count of epochs without progress that progress does not set back."""
    flow = flow_of(program)
    for node in program.everywhere(ast.If):
        tests = [one for one in ast.walk(node.test) if compares(one, *ORDERS)]
        compared = {text_of(part) for one in tests for part in ast.walk(one) if isinstance(part, (ast.Name, ast.Attribute))}
        ends = isinstance(node.body[-1], (ast.Return, ast.Continue))
        otherwise = node.orelse or (program.after(node) if ends else [])
        for better, worse in ((node.body, otherwise), (otherwise, node.body)):
            if not compared & {text_of(target) for one in better for target, _ in _set_in(one)}:
                continue
            for add in worse:
                counter = _counted_up(flow, add)
                if counter is not None and _counts_for_ever(program, flow, node, counter, add):
                    yield Remark(add, f"{short(counter)} counts every epoch without progress and is never set back to 0: the run stops although it still improves now and then")


def _set_in(node: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr]]:
    return pairs_of(node) if isinstance(node, ast.Assign) else iter(())


def _counted_up(flow: Flow, node: ast.AST) -> ast.expr | None:
    """The counter to which a statement adds 1."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and flow.number(node.value) == 1:
        return node.target
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Add) and number_in(node.value.right) == 1:
        return node.targets[0] if text_of(node.targets[0]) == text_of(node.value.left) else None
    return None


def _counts_for_ever(program: Program, flow: Flow, node: ast.If, counter: ast.expr, add: ast.AST) -> bool:
    """Whether a counter decides when to stop, and nothing but its first value sets it."""
    found = flow.bindings(counter)
    if is_own(counter):
        of, method = program.class_of(node), program.function_name(node)
        started = [one for one in found if one.node is not add]
        elsewhere = any(one.attr == counter.attr and isinstance(one.ctx, ast.Store) and not is_own(one) for one in program.everywhere(ast.Attribute))
        asked = of is not None and any(compares(one, *ORDERS, ast.Eq) and text_of(counter) in {text_of(one.left), text_of(one.comparators[0])} for one in ast.walk(of))
        first = all(program.function_name(one.node) == "__init__" for one in started)
        return asked and first and not elsewhere and method != "__init__" and bool(started)
    loops = program.loops(node)
    inside = [one for one in found if loops and loops[0] in program.parents(one.node)]
    return len(inside) == 1 and any(
        isinstance(one, ast.If) and any(isinstance(inner, (ast.Break, ast.Return)) for inner in ast.walk(one))
        and text_of(counter) in {text_of(part) for part in ast.walk(one.test) if isinstance(part, ast.expr)}
        for one in ast.walk(loops[0])
    )


@RULES.add("best-set-to-every-score", "each score is compared with the one before it, and not with the best", "set the best score only where the new one is better")
def _set_to_every(program: Program) -> Iterator[Remark]:
    """A best score that is set where the new one is not better, too."""
    flow = flow_of(program)
    for node in program.everywhere(ast.If):
        if not compares(node.test, *ORDERS) or not _keeps(flow, node):
            continue
        sides = (node.test.left, node.test.comparators[0])
        for best, score in (sides, sides[::-1]):
            inside = {text_of(target) for part in node.body for one in ast.walk(part) if isinstance(one, ast.stmt) for target, _ in _set_in(one)}
            if not _BEST.search(last_word(best)) or _BEST.search(last_word(score)) or text_of(best) in inside or flow.key(best) is None:
                continue
            later = [(one, target) for one in (*node.orelse, *program.after(node)) for target, value in _set_in(one) if text_of(target) == text_of(best) and text_of(value) == text_of(score)]
            if later:
                yield Remark(later[0][0], f"{short(later[0][0])} also runs where {short(node.test)} is false: {short(best)} is the score before this one, and not the best")


def _keeps(flow: Flow, node: ast.If) -> bool:
    """Whether a branch keeps a state or sets a counter to 0, and does not end the loop."""
    inside = [one for part in node.body for one in ast.walk(part)]
    if any(isinstance(one, ast.Break) for one in inside):
        return False
    saved = any(flow.program.called(one) == "torch.save" or is_method(one, "state_dict", "save_pretrained", "deepcopy") or is_call(one, "deepcopy") for one in inside)
    return saved or any(number_in(value) == 0 for one in node.body for _, value in _set_in(one))


@RULES.add("chosen-by-the-training", "the state that is kept is the one that fits the training data best, however it does on others", "choose by the score of the held-out part")
def _chosen_by_training(program: Program) -> Iterator[Remark]:
    """A best state that is chosen by the score of the training, beside a score of held-out data that decides nothing."""
    flow = flow_of(program)
    for node in program.everywhere(ast.If):
        loop = next(iter(program.loops(node)), None)
        if loop is None or not compares(node.test, *ORDERS) or not any(flow.program.called(one) == "torch.save" or is_method(one, "state_dict") for part in node.body for one in ast.walk(part)):
            continue
        sides = (node.test.left, node.test.comparators[0])
        for score, best in (sides, sides[::-1]):
            kept = any(text_of(target) == text_of(best) and text_of(value) == text_of(score) for one in node.body for target, value in _set_in(one))
            of = score.value if isinstance(score, ast.Subscript) else score
            if not kept or not isinstance(of, ast.Name) or _part_of(flow, of) != "training":
                continue
            held = [name for one in ast.walk(loop) if isinstance(one, ast.Assign) for name in ast.walk(one.targets[0]) if isinstance(name, ast.Name) and text_of(name) != text_of(best) and _part_of(flow, name) == "held out"]
            deciding = [one for around in ast.walk(loop) if isinstance(around, (ast.If, ast.IfExp, ast.While)) for one in ast.walk(around.test)]
            deciding += [one for call in ast.walk(loop) if is_method(call, "step", "update", "report") or is_call(call) for part in call.args for one in ast.walk(part) if not is_call(call, "print")]
            used = {one.id for one in deciding if isinstance(one, ast.Name)}
            if held and not any(name.id in used for name in held):
                yield Remark(node, f"{short(node.test)} keeps what fits the training data best, and {held[0].id} (line {held[0].lineno}), the score of the held-out data, decides nothing")


def _part_of(flow: Flow, name: ast.Name) -> str | None:
    """Which data a score is of: by what its function does and is given, or by its own name."""
    found = flow.given(name) if isinstance(name.ctx, ast.Load) else next((one for one in flow.bindings(name) if name in ast.walk(one.node)), None)
    call = found.value if found is not None else None
    words = {last_word(one) for one in ast.walk(call) if isinstance(one, (ast.Name, ast.Attribute))} if isinstance(call, ast.Call) else set()
    words |= {name.id}
    held, trained = any(HELD_OUT.search(one) for one in words), any(TRAINING.search(one) for one in words)
    local = flow.program.local_function(call) if isinstance(call, ast.Call) else None
    if held != trained:
        return "held out" if held else "training"
    fits = local is not None and any(flow.program.called(one).startswith("torch.optim.") for one in ast.walk(local))  # a probe of its own
    return "training" if local is not None and not held and not fits and trains(flow.program, local) else None


@RULES.add("stopped-the-wrong-way", "the training stops while it goes well, and the worst state counts as the best", "compare a loss by <, and a share of right answers by >")
def _wrong_way(program: Program) -> Iterator[Remark]:
    """An object that keeps the best score by one direction, and is given scores of the other one."""
    flow = flow_of(program)
    for node in program.everywhere(ast.If):
        method, of = program.function_of(node), program.class_of(node)
        if method is None or of is None or not compares(node.test, *ORDERS) or len(method.args.args) < 2:
            continue
        score, rising = method.args.args[1].arg, isinstance(node.test.ops[0], (ast.Gt, ast.GtE))
        left, right = node.test.left, node.test.comparators[0]
        if is_name(right, score):
            left, right, rising = right, left, not rising
        best = next((text_of(one) for one in ast.walk(right) if is_own(one)), "")
        sets = any(text_of(target) == best and is_name(value, score) for one in node.body for target, value in _set_in(one))
        if not is_name(left, score) or not best or not sets:
            continue
        for call in program.calls():
            made = program.called(flow.made(flow.key(call.func.value))) if is_method(call, method.name) else program.called(flow.value(call.func)) if method.name == "__call__" else ""
            direction = score_direction(program, flow, call.args[0]) if made == of.name and call.args else None
            if (direction == "loss" and rising) or (direction == "share" and not rising):
                what = "a loss, and better is lower" if direction == "loss" else "a share of right answers, and better is higher"
                yield Remark(call, f"{short(call.args[0])} is {what}: {short(node.test)} (line {node.lineno}) takes the worst for the best")


RULES.add("best-never-raised", "every epoch counts as the best: what is kept is the last state, and nothing ever stops early", "set the best score where the score is better: best = score")(best_never_set)
RULES.add("copy-never-follows", "what is scored, and kept as the best, is the network as it was before the training", "move the copy after each step: copy.lerp_(weight, 1 - decay) for each pair of weights")(copy_never_follows)
RULES.add("test-never-read", "what is reported as the score of the test is that of the part that has chosen the epoch: a new test would give less", "score the part that was held out for the test")(test_never_read)
