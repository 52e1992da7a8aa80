"""Best scores: whether the state that is kept is that of the best one, by what the scores are called. Pure; standard library
only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import Function, is_call, is_method, is_string, last_word, short, text_of

FINDERS = Finders()
_FALLS = frozenset({"loss", "rmse", "mae", "mse", "nll", "error", "err", "perplexity", "ppl", "wer", "cer", "fid", "bpd", "bpc"})
_RISES = frozenset({"acc", "accuracy", "auc", "auroc", "f1", "iou", "miou", "dice", "ndcg", "recall", "precision", "psnr", "ssim", "bleu"})
_TURNED = frozenset({"neg", "negative", "minus", "inv", "inverse", "delta", "diff", "gap", "drop", "improvement", "reduction", "gain", "reward"})
_EXTREME = re.compile(r"(^|_)(worst|hard|hardest|max|min|maximum|minimum|lowest|highest|largest|smallest|peak|top)(_|$)", re.I)
_LEAST = re.compile(r"(^|_)(lowest|smallest|min|minimum)(_|$)", re.I)
_WAITS = re.compile(r"(^|_)(patience|stale|stall|bad|wait|waited|no_improv\w*|not_improv\w*|since_best|since_improv\w*)(_|$)", re.I)


class _Kept(NamedTuple):
    """A branch that keeps a state where a score is better than the best one so far."""

    node: ast.If
    test: ast.Compare
    score: ast.expr
    best: ast.expr
    rising: bool


def _kept_states(program: Program) -> Iterator[_Kept]:
    for node in program.everywhere(ast.If):
        tests = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
        if not any(program.called(one) == "torch.save" or is_method(one, "state_dict", "deepcopy") or is_call(one, "deepcopy") for part in node.body for one in ast.walk(part)):
            continue
        for test in tests:
            if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], (ast.Lt, ast.Gt, ast.LtE, ast.GtE)):
                continue
            larger = isinstance(test.ops[0], (ast.Gt, ast.GtE))
            for score, best, rising in ((test.left, test.comparators[0], larger), (test.comparators[0], test.left, not larger)):
                own = isinstance(best, ast.Attribute) and isinstance(best.value, ast.Name) and best.value.id == "self"
                if (isinstance(best, ast.Name) or own) and text_of(best) not in {text_of(one) for one in ast.walk(score) if isinstance(one, ast.expr)}:
                    yield _Kept(node, test, score, best, rising)


def _stores(program: Program, best: ast.expr, node: ast.AST) -> list[ast.expr]:
    """Where a name, or an attribute of the program's objects, is given a value."""
    if isinstance(best, ast.Attribute):
        return [one for one in program.everywhere(ast.Attribute) if isinstance(one.ctx, ast.Store) and one.attr == best.attr]
    scope = program.scope(node)
    return [one for one in ast.walk(scope) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store) and isinstance(best, ast.Name) and one.id == best.id]


def _given(program: Program, target: ast.AST) -> ast.expr | None:
    """What an assignment gives a target, also one in a tuple; None where that is not written out."""
    around = program.parent.get(target)
    if isinstance(around, ast.Tuple):
        outer = program.parent.get(around)
        value = outer.value if isinstance(outer, ast.Assign) else None
        return value.elts[around.elts.index(target)] if isinstance(value, ast.Tuple) and len(value.elts) == len(around.elts) else None  # type: ignore[arg-type]
    return around.value if isinstance(around, (ast.Assign, ast.AnnAssign)) else None


@FINDERS.add("best-never-raised")
def _always_none(program: Program) -> Iterator[Remark]:
    """A best score is None before the first pass, and nothing ever gives it a number: each pass is the first one."""
    for kept in _kept_states(program):
        stores = _stores(program, kept.best, kept.node) if isinstance(kept.best, ast.Name) and isinstance(kept.node.test, ast.BoolOp) else []
        given = _given(program, stores[0]) if len(stores) == 1 else kept.best
        asked = f"{text_of(kept.best)} is None" in text_of(kept.node.test)
        shared = any(isinstance(one, (ast.Global, ast.Nonlocal)) and text_of(kept.best) in one.names for one in program.everywhere(ast.Global, ast.Nonlocal))
        if asked and isinstance(given, ast.Constant) and given.value is None and program.loops(kept.node) and not program.loops(given) and not shared:
            yield Remark(kept.test, f"{text_of(kept.best)} stays None (line {given.lineno}): nothing sets it, and {short(kept.node.test)} holds in each pass")


@FINDERS.add("wrong-way-round")
def _worse_is_kept(program: Program) -> Iterator[Remark]:
    """The state is kept where a loss is larger, or a share of what is right smaller, than the best one so far."""
    for kept in _kept_states(program):
        word = last_word(kept.best)
        if not any(isinstance(one, (ast.Name, ast.Attribute)) and isinstance(one.ctx, ast.Store) and text_of(one) == text_of(kept.best) for part in kept.node.body for one in ast.walk(part)):
            continue
        if _LEAST.search(word) and kept.rising:
            yield Remark(kept.test, f"{short(kept.test)} keeps the state where the score is larger, and calls it {text_of(kept.best)}")
            continue
        if _EXTREME.search(word):
            continue
        falls = _falls(program, kept.score, kept.node)
        if falls is not None and falls is kept.rising:
            what = "a loss, and better is lower" if falls else "a share of what is right, and better is higher"
            yield Remark(kept.test, f"{short(kept.score)} is {what}: {short(kept.test)} keeps the worst state")


def _falls(program: Program, score: ast.expr, node: ast.AST) -> bool | None:
    """Whether a score is called one that falls as a model improves (True) or one that rises (False); None where its name
    says neither, or what it is given is turned round."""
    while isinstance(score, ast.Call) and is_method(score, "mean", "item", "sum", "cpu", "detach") and isinstance(score.func, ast.Attribute):
        score = score.func.value
    if isinstance(score, ast.Subscript) and is_string(score.slice):
        return _by_words(str(score.slice.value)) if isinstance(score.slice, ast.Constant) else None
    if not isinstance(score, (ast.Name, ast.Attribute)):
        return None
    given = [_given(program, one) for one in _stores(program, score, node)]
    if any(isinstance(part, (ast.USub, ast.Invert)) or (isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub)) for one in given if one is not None for part in ast.walk(one)):
        return None
    found = _by_words(last_word(score))
    if found is not None or len(given) != 1 or not isinstance(given[0], ast.Call) or program.local_function(given[0]) is None:
        return found
    return _by_words(last_word(given[0].func))


def _by_words(name: str) -> bool | None:
    words = set(name.lower().split("_"))
    if words & _TURNED or bool(words & _FALLS) is bool(words & _RISES):
        return None
    return bool(words & _FALLS)


@FINDERS.add("patience-never-reset")
def _never_back(program: Program) -> Iterator[Remark]:
    """A count of all passes without progress ends the training, and a better score does not set it back."""
    for add in program.everywhere(ast.AugAssign):
        loops = program.loops(add)
        if not loops or program.parent.get(add) is not loops[0] or not isinstance(add.target, ast.Name) or not isinstance(add.op, ast.Add) or not (isinstance(add.value, ast.Constant) and add.value.value == 1):
            continue
        name, inside = add.target.id, list(ast.walk(loops[0]))
        if sum(isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Store) for one in inside) != 1:
            continue
        ends = [one for one in inside if isinstance(one, ast.If) and any(isinstance(part, (ast.Break, ast.Return)) for part in one.body)]
        ends = [one for one in ends if isinstance(one.test, ast.Compare) and any(isinstance(side, ast.Name) and side.id == name for side in (one.test.left, *one.test.comparators))]
        waits = [one for one in ends if isinstance(one.test, ast.Compare) and any(_WAITS.search(last_word(side)) for side in (one.test.left, *one.test.comparators))]
        better = [one for one in _kept_states(program) if one.node in inside]
        if waits and better and not any(isinstance(one, Function) for one in inside):
            yield Remark(add, f"{name} counts every pass, and {short(better[0].test)} (line {better[0].node.lineno}) does not set it back to 0: {short(waits[0].test)} ends the training although it still improves")
            return


@FINDERS.add("wrong-way-round")
def _worst_of_a_list_kept(program: Program) -> Iterator[Remark]:
    """States are kept in a list with their scores, and the better end of the list is removed."""
    for add in program.calls():
        pushed = program.called(add) == "heapq.heappush" and len(add.args) == 2
        if not pushed and not (is_method(add, "append") and len(add.args) == 1):
            continue
        listed, entry = (add.args[0], add.args[1]) if pushed else (add.func.value, add.args[0])  # type: ignore[attr-defined]
        if not isinstance(entry, ast.Tuple) or not entry.elts:
            continue
        turned = isinstance(entry.elts[0], ast.UnaryOp) and isinstance(entry.elts[0].op, ast.USub)
        score = entry.elts[0].operand if isinstance(entry.elts[0], ast.UnaryOp) else entry.elts[0]
        ends = {(one, largest) for one, largest in _removed_from(program, text_of(listed), pushed)}
        falls = _falls_where_called(program, score, add)
        if falls is None or len({largest for _, largest in ends}) != 1:
            continue
        removal, largest = min(ends, key=lambda one: one[0].lineno)
        if (largest is not turned) is not falls:
            what = "a loss, and better is lower" if falls else "a share of what is right, and better is higher"
            yield Remark(removal, f"{short(removal)} takes the {'largest' if largest else 'smallest'} {'-' if turned else ''}{text_of(score)} off the list (filled in line {add.lineno}): it is {what}, so the best are removed and the worst stay")


def _removed_from(program: Program, listed: str, heap: bool) -> Iterator[tuple[ast.expr, bool]]:
    """Where entries are removed from a sorted list, and whether these are the largest."""
    if heap:
        yield from ((one, False) for one in program.calls() if program.called(one) == "heapq.heappop" and one.args and text_of(one.args[0]) == listed)
        return
    reverse = {one for call in program.calls() for one in _sorted_in_reverse(call, listed)}
    if len(reverse) != 1:
        return
    falling = reverse == {True}
    for one in program.everywhere(ast.Call, ast.Subscript):
        if isinstance(one, ast.Call) and is_method(one, "pop") and text_of(one.func.value) == listed:
            place = text_of(one.args[0]) if one.args else "-1"
            if place in ("-1", "0"):
                yield one, (place == "0") is falling
        elif isinstance(one, ast.Subscript) and text_of(one.value) == listed and isinstance(one.slice, ast.Slice) and one.slice.step is None:
            around = program.parent.get(one)
            negative = isinstance(one.slice.lower, ast.UnaryOp)
            if isinstance(around, ast.Assign) and text_of(around.targets[0]) == listed and (one.slice.lower is None or (one.slice.upper is None and negative)):
                yield one, (one.slice.lower is not None) is falling
            elif isinstance(around, ast.Delete) and one.slice.upper is None and not negative:
                yield one, not falling


def _sorted_in_reverse(call: ast.Call, listed: str) -> Iterator[bool]:
    """Whether a call sorts a list by the first of each entry, from the largest (True) or the smallest; nothing where it does not."""
    own = is_method(call, "sort") and text_of(call.func.value) == listed
    if not own and not (is_call(call, "sorted") and call.args and text_of(call.args[0]) == listed):
        return
    words = {one.arg: one.value for one in call.keywords}
    key, reverse = words.get("key"), words.get("reverse")
    first = key is None or (isinstance(key, ast.Lambda) and isinstance(key.body, ast.Subscript) and text_of(key.body.slice) == "0") or (key is not None and text_of(key).endswith("itemgetter(0)"))
    if first and (reverse is None or isinstance(reverse, ast.Constant)):
        yield isinstance(reverse, ast.Constant) and bool(reverse.value)


def _falls_where_called(program: Program, score: ast.expr, node: ast.AST) -> bool | None:
    """As `_falls`, for an argument by what the callers give as well."""
    found = _falls(program, score, node)
    function = program.function_of(node)
    if found is not None or function is None or not isinstance(score, ast.Name):
        return found
    given = {_falls(program, value, call) for call in program.calls() if program.local_function(call) is function for name, value in program.arguments(function, call).items() if name == score.id}
    return given.pop() if len(given) == 1 else None


@FINDERS.add("stopped-the-wrong-way")
def _own_stopper(program: Program) -> Iterator[Remark]:
    """An object of the program that ends the training takes lower scores for better ones, and is given one that rises; or the
    other way round."""
    for of, method, given, test, rising in _stoppers(program):
        place = [one.arg for one in method.args.args].index(given) - 1
        for call in program.calls():
            owner = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == method.name else call.func if method.name == "__call__" else None
            kind = program.kind(owner) if isinstance(owner, ast.expr) else None
            words = {one.arg: one.value for one in call.keywords}
            score = words.get(given) or (call.args[place] if place < len(call.args) else None)
            if kind is None or kind.name != of.name or score is None:
                continue
            falls = _falls(program, score, call)
            if falls is not None and falls is rising:
                what = "a loss, and better is lower" if falls else "a share of what is right, and better is higher"
                yield Remark(call, f"{text_of(score)} is {what}: {short(test)} (line {test.lineno}) takes it the other way round, and {short(call)} ends the training while it goes well")
                return


def _stoppers(program: Program) -> Iterator[tuple[ast.ClassDef, Function, str, ast.Compare, bool]]:
    """The classes of the program that keep the best of the numbers that a method is given: the method, its parameter, the test,
    and whether larger is better."""
    for of in program.everywhere(ast.ClassDef):
        if any(isinstance(one, ast.arg) and one.arg in ("mode", "maximize", "minimize", "higher_is_better", "greater_is_better", "direction") for one in ast.walk(of)):
            continue
        for method in (one for one in of.body if isinstance(one, Function) and one.name != "__init__"):
            names = {one.arg for one in method.args.args[1:]}
            kept = {(text_of(target), value.id) for one in ast.walk(method) if isinstance(one, ast.Assign) and isinstance(value := one.value, ast.Name) for target in one.targets if isinstance(target, ast.Attribute)}
            tests = [one for one in ast.walk(method) if isinstance(one, ast.Compare) and len(one.ops) == 1 and isinstance(one.ops[0], (ast.Lt, ast.Gt, ast.LtE, ast.GtE))]
            found = [(name, one, larger) for one in tests for name, best, larger in _sides_of(one, names) if any(text_of(part) == place and name == value for part in ast.walk(best) if isinstance(part, ast.Attribute) for place, value in kept)]
            if len(found) == 1 and _is_kept_there(method, found[0][1], found[0][0]):
                yield of, method, *found[0]


def _sides_of(test: ast.Compare, names: set[str]) -> Iterator[tuple[str, ast.expr, bool]]:
    """A parameter that a test compares, what with, and whether the test holds for larger ones."""
    larger = isinstance(test.ops[0], (ast.Gt, ast.GtE))
    for one, other, above in ((test.left, test.comparators[0], larger), (test.comparators[0], test.left, not larger)):
        if isinstance(one, ast.Name) and one.id in names:
            yield one.id, other, above


def _is_kept_there(method: Function, test: ast.Compare, name: str) -> bool:
    """Whether the best number is set where a test holds."""
    for node in ast.walk(method):
        if isinstance(node, ast.If) and any(one is test for one in ast.walk(node.test)) and not isinstance(node.test, ast.UnaryOp):
            return any(isinstance(one, ast.Assign) and isinstance(one.value, ast.Name) and one.value.id == name for part in node.body for one in ast.walk(part))
    return False
