"""Formulas of metrics, and the values that they compare. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.finders.graphs.raw_candidates import ranked_without_the_norm
from probe.diagnose.code.finders.measured.two_scales import error_with_a_unit
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Key, Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    argument,
    is_binary,
    is_call,
    is_method,
    is_name,
    last_word,
    number_in,
    pairs_of,
    returned,
    short,
    text_of,
)

RULES = Rules("data")
_PREDICTED = re.compile(r"(^|_)(p|pred|preds|prediction|predictions|predicted|output|outputs|out|hat|prob|probs|y_hat|yhat)(_|$)", re.I)
_TRUE = re.compile(r"(^|_)(t|y|target|targets|label|labels|true|truth|gt|mask|masks|actual)(_|$)", re.I)
_MISSED = re.compile(r"(^|_)(fn|false_?neg(ative)?)s?$", re.I)
_FALSE = re.compile(r"(^|_)(fp|false_?pos(itive)?)s?$", re.I)
_HITS = re.compile(r"(^|_)(tp|true_?pos(itive)?)s?$", re.I)
_DIFFERENCES = frozenset({"mean_squared_error", "mean_absolute_error", "r2_score", "root_mean_squared_error", "mse_loss", "l1_loss", "mean_absolute_percentage_error"})


# Overlaps ---------------------------------------------------------------------


@RULES.add("overlap-halved", "a perfect prediction scores 0.5", "2 * intersection / (a + b) for Dice, intersection / (a + b - intersection) for IoU")
def _halved(program: Program) -> Iterator[Remark]:
    """An overlap divided by the sum of both sizes: neither Dice nor IoU."""
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp):
        if not isinstance(node.op, ast.Div):
            continue
        top, bottom = _terms(flow, node.left), _terms(flow, node.right)
        if len(top) != 1 or len(bottom) != 2:
            continue
        if _of_confusion(flow, top[0], bottom) and not _doubled(program, node):
            yield Remark(node, f"{short(node)} divides the hits of each class by the sum of its row and its column, which both hold them: a perfect prediction gives 0.5")
            continue
        both, sizes = _product_in(flow, top[0]), [_summed(flow, one) for one in bottom]
        if both is None or None in sizes or both != {text_of(_root(one)) for one in sizes if one is not None} or len(both) != 2:
            continue
        if not _doubled(program, node):
            yield Remark(node, f"{short(node)} divides the overlap by the sizes of both: a perfect prediction gives 0.5")


def _of_confusion(flow: Flow, hits: ast.expr, sizes: list[ast.expr]) -> bool:
    """Whether a confusion matrix's diagonal is divided by the sum of its rows and of its columns."""
    matrix = _diagonal(flow, hits)
    sums = [one for one in sizes if is_method(one, "sum") and (of := flow.program.operand(one)) is not None and text_of(of) == matrix]
    return matrix != "" and len(sums) == 2 and text_of(sums[0]) != text_of(sums[1])


def _diagonal(flow: Flow, node: ast.AST) -> str:
    """The text of cm of `np.diag(cm)`, `cm.diag()`."""
    value = flow.value(node)
    of = flow.program.operand(value) if is_method(value, "diag", "diagonal") else None
    return "" if of is None else text_of(of)


def _terms(flow: Flow, node: ast.expr, depth: int = 6) -> list[ast.expr]:
    """The terms of a sum, without small constants."""
    value = flow.value(node)
    if not isinstance(value, ast.expr) or not depth:
        return [node]
    if is_method(value, "item", "float") and not value.args:
        return _terms(flow, value.func.value, depth - 1)
    if is_binary(value, ast.Add):
        return _terms(flow, value.left, depth - 1) + _terms(flow, value.right, depth - 1)
    if is_method(value, "clamp", "clip", "clamp_min") and flow.program.dotted(value.func) is None:
        return _terms(flow, value.func.value, depth - 1)
    small = flow.number(value)
    names = last_word(value).lower()
    return [] if (small is not None and small <= 1) or "eps" in names or "smooth" in names else [value]


def _summed(flow: Flow, node: ast.expr) -> ast.expr | None:
    """x of `x.sum()`, `torch.sum(x)`."""
    value = flow.value(node)
    return flow.program.operand(value) if is_method(value, "sum") else None


def _root(node: ast.expr) -> ast.expr:
    """x of `x * x`, `x ** 2`."""
    if is_binary(node, ast.Pow) and number_in(node.right) == 2:
        return node.left
    return node.left if is_binary(node, ast.Mult) and text_of(node.left) == text_of(node.right) else node


def _product_in(flow: Flow, node: ast.expr) -> set[str] | None:
    """The texts of a and b of `(a * b).sum()`, `(a & b).sum()`."""
    inner = flow.value(_summed(flow, node))
    if is_method(inner, "float", "to", "long"):
        inner = inner.func.value
    if is_binary(inner, ast.Mult, ast.BitAnd):
        return {text_of(inner.left), text_of(inner.right)}
    if is_method(inner, "logical_and", "mul") and inner.args:
        sides = [flow.program.operand(inner), inner.args[-1]]
        return {text_of(one) for one in sides if one is not None}
    return None


def _doubled(program: Program, node: ast.BinOp) -> bool:
    """Whether a quotient is multiplied by something, here or where its variable is read."""
    around = program.parent.get(node)
    while isinstance(around, (ast.BinOp, ast.Call, ast.Attribute)):
        if is_binary(around, ast.Mult) or is_binary(around, ast.Div):
            return True
        around = program.parent.get(around)
    if isinstance(around, ast.Assign) and isinstance(around.targets[0], ast.Name):
        name = around.targets[0].id
        return any(is_binary(one, ast.Mult) and name in {text_of(part) for part in ast.walk(one) if isinstance(part, ast.Name)} for one in ast.walk(program.scope(node)))
    if isinstance(around, ast.Return):
        function = program.function_of(node)
        return any(is_binary(program.parent.get(call), ast.Mult) for call in program.calls() if function is not None and program.local_function(call) is function)
    return False


# Precision and recall --------------------------------------------------------------


@RULES.add("precision-for-recall", "each of the two is reported for the other", "precision = tp / (tp + fp), recall = tp / (tp + fn), where fp are predicted and not true")
def _swapped(program: Program) -> Iterator[Remark]:
    """A precision that counts what was missed, or a recall that counts false alarms; or these two counts exchanged."""
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp):
        named = _name_of(program, node)
        recall = any(word in named for word in ("recall", "sensitivity"))
        wrong = _MISSED if "precision" in named or "specificity" in named else _FALSE if recall else None
        if not isinstance(node.op, ast.Div) or wrong is None or ("precision" in named and recall):
            continue
        if "specificity" in named:
            missed = next((one for one in ast.walk(node.right) if isinstance(one, (ast.Name, ast.Attribute)) and _MISSED.search(last_word(one))), None)
            if missed is not None and last_word(node.left).lower().rpartition("_")[2] in ("tn", "negatives"):
                yield Remark(node, f"{named} is {short(node)}: the negatives are what is right of them and the false alarms, not {short(missed)}")
                return
            continue
        found = next(_from_confusion(program, flow, node, named), None)
        if found is not None:
            yield found
            return
        bottom = node.right
        while isinstance(bottom, ast.BinOp) and isinstance(bottom.op, ast.Add) and not (_is_hit(bottom.left) or _is_hit(bottom.right)):
            bottom = bottom.left
        if _is_hit(node.left) and is_binary(bottom, ast.Add):
            other = next((one for one in (bottom.left, bottom.right) if wrong.search(_count(one))), None)
            if other is not None:
                yield Remark(node, f"{named} is {short(node)}: with {short(other)} this is the {'recall' if 'precision' in named else 'precision'}")
                return
    for counted in program.everywhere(ast.stmt):
        added = [(counted.target, counted.value)] if isinstance(counted, ast.AugAssign) else []
        for target, value in pairs_of(counted) if isinstance(counted, ast.Assign) else added:
            name = _count(target)
            if (_FALSE.search(name) or _MISSED.search(name)) and _counts_other(flow, value, bool(_FALSE.search(name))):
                what = "is predicted and not true" if _MISSED.search(name) else "is true and not predicted"
                yield Remark(counted, f"{short(target)} counts what {what}: {short(value)}")
                return


def _from_confusion(program: Program, flow: Flow, node: ast.BinOp, named: str) -> Iterator[Remark]:
    """The diagonal of a confusion matrix divided by the sums over the axis of the other score."""
    matrix = _diagonal(flow, node.left)
    bottom = node.right.left if is_binary(node.right, ast.Add) else node.right
    total = flow.value(bottom)
    of = program.operand(total) if is_method(total, "sum") else None
    if not matrix or of is None or text_of(of) != matrix or not isinstance(total, ast.Call):
        return
    place = int(program.dotted(total.func) is not None)
    axis = flow.number(argument(total, "axis", place) or argument(total, "dim", place))
    true_first = _true_first(program, flow, of)
    if axis in (0, 1) and true_first is not None:
        over_predicted = (axis == 0) == true_first  # columns hold what was predicted as each class
        if over_predicted != ("precision" in named):
            yield Remark(node, f"{named} is {short(node)}: the sums over axis {axis:g} are those of what was {'predicted' if over_predicted else 'true'}, so this is the {'precision' if over_predicted else 'recall'}")


def _true_first(program: Program, flow: Flow, matrix: ast.expr) -> bool | None:
    """Whether the rows of a confusion matrix are the true classes; None where that is not known."""
    if program.called(flow.value(matrix)) == "sklearn.metrics.confusion_matrix":
        return True
    for node in ast.walk(program.scope(matrix)):
        target = node.target if isinstance(node, ast.AugAssign) else None
        if isinstance(target, ast.Subscript) and text_of(target.value) == text_of(matrix) and isinstance(target.slice, ast.Tuple) and len(target.slice.elts) == 2:
            row, column = (last_word(one) for one in target.slice.elts)
            if _TRUE.search(row) and _PREDICTED.search(column) and not _PREDICTED.search(row):
                return True
            if _PREDICTED.search(row) and _TRUE.search(column) and not _PREDICTED.search(column):
                return False
    return None


def _count(node: ast.expr) -> str:
    while isinstance(node, ast.Subscript) or is_method(node, "sum", "item", "float"):
        node = node.value if isinstance(node, ast.Subscript) else node.func.value
    return last_word(node)


def _is_hit(node: ast.expr) -> bool:
    return _HITS.search(_count(node)) is not None


def _name_of(program: Program, node: ast.BinOp) -> str:
    """What a quotient is called: by the variable that it is given to, or by the function that returns it."""
    around = program.parent.get(node)
    while isinstance(around, (ast.IfExp, ast.BinOp)) or (isinstance(around, ast.Call) and last_word(around.func) in ("float", "round", "mean")):
        around = program.parent.get(around)
    if isinstance(around, ast.Assign) and around.value is not None and not isinstance(around.value, ast.Tuple):
        return last_word(around.targets[0]).lower()
    return (program.function_name(node) or "").lower() if isinstance(around, ast.Return) else ""


def _counts_other(flow: Flow, node: ast.expr, false: bool) -> bool:
    """Whether `((pred == 0) & (y == 1)).sum()` stands for what is predicted and not true, or the other way round."""
    inner = node
    while is_method(inner, "sum", "item", "float", "long", "double") and not flow.program.dotted(inner.func):
        inner = inner.func.value
    if isinstance(inner, ast.Call) and last_word(inner.func) in ("sum", "int", "float", "logical_and") and len(inner.args) == 1:
        return _counts_other(flow, inner.args[0], false)
    sides = [inner.left, inner.right] if is_binary(inner, ast.BitAnd, ast.Mult) else inner.args if is_method(inner, "logical_and") and len(inner.args) == 2 else []
    asked: dict[bool, float] = {}
    for one in sides:
        number = number_in(one.comparators[0]) if isinstance(one, ast.Compare) and len(one.ops) == 1 and isinstance(one.ops[0], ast.Eq) else None
        name = last_word(one.left) if isinstance(one, ast.Compare) else ""
        predicted, true = bool(_PREDICTED.search(name)), bool(_TRUE.search(name))
        if number in (0, 1) and number is not None and ("pred" in name.lower() or predicted != true):
            asked["pred" in name.lower() or predicted] = number
    return asked == ({True: 0, False: 1} if false else {True: 1, False: 0})


# Other formulas -----------------------------------------------------------------------


@RULES.add("score-by-another-formula", "the number that is reported is not the score that it is called", "F1 = 2 * p * r / (p + r); R2 = 1 - sum((y - p)**2) / sum((y - mean(y))**2); RMSE = sqrt(mean((y - p)**2))")
def _formula(program: Program) -> Iterator[Remark]:
    """An F1 without its 2, an R2 upside down or around the mean of the predictions, an RMSE without its root."""
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp):
        if is_binary(node, ast.Div):
            yield from _harmonic(program, flow, node)
        elif is_binary(node, ast.Sub) and number_in(node.left) == 1 and is_binary(node.right, ast.Div):
            yield from _explained(flow, node.right)
    for function in program.everywhere(ast.FunctionDef):
        values = returned(function)
        if re.fullmatch(r"(compute_|calc_|calculate_|get_)?rmse(_score|_loss)?", function.name, re.I) and len(values) == 1 and values[0] is not None:
            said = _rootless(flow, values[0])
            if said is not None:
                yield Remark(values[0], f"{function.name} gives {short(values[0])}: {said}")
        if re.fullmatch(r"\w*mape\w*|mean_absolute_percentage_error", function.name, re.I) and len(values) == 1 and values[0] is not None:
            for one in flow.origins(values[0]):
                below = one.right.args[0] if is_binary(one, ast.Div) and is_call(one.right, "abs") and one.right.args else one.right if is_binary(one, ast.Div) else None
                above = {text_of(part) for part in ast.walk(one.left) if is_name(part)} if is_binary(one, ast.Div) else set()
                if is_name(below) and below.id in above and len(above) > 1 and _PREDICTED.search(below.id) and not re.search(r"true|target|label", below.id, re.I):
                    yield Remark(one, f"{function.name} divides by {below.id}, what was predicted: the error is meant in percents of the true value")


def _harmonic(program: Program, flow: Flow, node: ast.BinOp) -> Iterator[Remark]:
    bottom = node.right.left if is_binary(node.right, ast.Add) and (flow.number(node.right.right) or "eps" in last_word(node.right.right).lower()) else node.right
    top = node.left
    sides = {_shown(one) for one in (bottom.left, bottom.right)} if is_binary(bottom, ast.Add, ast.Mult) else set()
    letters = sides == {"p", "r"} and "f" in _name_of(program, node)[:2]
    if not (letters or sides == {"precision", "recall"}) or not is_binary(bottom, ast.Add, ast.Mult):
        return
    if is_binary(bottom, ast.Add) and is_binary(top, ast.Mult) and {_shown(top.left), _shown(top.right)} == sides and not _doubled(program, node):
        yield Remark(node, f"{short(node)} lacks the factor 2 of F1: perfect predictions give 0.5")
    added = top.right if is_binary(top, ast.Mult) and number_in(top.left) == 2 else top
    if is_binary(bottom, ast.Mult) and is_binary(added, ast.Add) and {_shown(added.left), _shown(added.right)} == sides and added is not top:
        yield Remark(node, f"{short(node)} is F1 upside down: it is 4 for perfect predictions, and more for worse ones")


def _shown(node: ast.expr) -> str:
    name = last_word(node).lower()
    return "precision" if name.startswith("prec") else "recall" if name.startswith("rec") else name


def _explained(flow: Flow, node: ast.BinOp) -> Iterator[Remark]:
    """The two sums of `1 - residuals / total`."""
    top, bottom = _squares(flow, node.left), _squares(flow, node.right)
    if top is None or bottom is None:
        return
    around = [_around_mean(flow, one) for one in (top, bottom)]
    if around[0] is not None and around[1] is None:
        yield Remark(node, f"1 - {short(node)} has the variation around the mean on top, and the errors below: R2 upside down")
    elif around[1] is not None and around[0] is None and _PREDICTED.search(around[1]) and not _TRUE.search(around[1]):
        yield Remark(node, f"1 - {short(node)} takes the variation of the predictions, {around[1]}, for that of the true values")


def _squares(flow: Flow, node: ast.expr) -> ast.BinOp | None:
    """a - b of the sum of (a - b)**2."""
    value = flow.value(node)
    if is_binary(value, ast.Add) and flow.number(value.right) is not None:
        value = flow.value(value.left)
    inner = flow.value(flow.program.operand(value)) if is_method(value, "sum", "mean") else None
    if is_method(inner, "pow", "square"):
        inner = flow.program.operand(inner)
    elif is_binary(inner, ast.Pow) and number_in(inner.right) == 2:
        inner = inner.left
    else:
        return None
    return inner if is_binary(inner, ast.Sub) else None


def _around_mean(flow: Flow, node: ast.BinOp) -> str | None:
    """y of `y - y.mean()`."""
    value = flow.value(node.right)
    of = flow.program.operand(value) if is_method(value, "mean") else None
    return text_of(node.left) if of is not None and text_of(of) == text_of(node.left) else None


def _rootless(flow: Flow, node: ast.expr) -> str | None:
    """What an RMSE lacks."""
    value = flow.value(node)
    while is_method(value, "item", "float"):
        value = flow.value(value.func.value)
    inner = flow.value(flow.program.operand(value)) if is_method(value, "mean") else None
    root = is_method(inner, "sqrt")
    squared = flow.value(flow.program.operand(inner)) if isinstance(inner, ast.Call) and root else inner
    square = (is_binary(squared, ast.Pow) and number_in(squared.right) == 2) or is_method(squared, "square") or (is_method(squared, "pow") and number_in(squared.args[-1]) == 2)
    if square and inner is not None:
        return "the root of each square is the absolute error, and its mean the MAE" if root else "the root is missing, it is the MSE"
    whole = flow.program.called(value) in ("torch.nn.functional.mse_loss", "sklearn.metrics.mean_squared_error") and isinstance(value, ast.Call) and not any(word.arg == "squared" for word in value.keywords)
    return "the root is missing, it is the MSE" if whole else None


# Scales ------------------------------------------------------------------------------


@RULES.add("compared-on-two-scales", "the error is that between two units", "give both sides to inverse_transform, or neither")
def _two_scales(program: Program) -> Iterator[Remark]:
    """Predictions that are scaled back, compared with targets that are not."""
    flow = flow_of(program)
    scalers = _scalers(flow)
    for node in program.everywhere(ast.BinOp, ast.Call) if scalers else ():
        sides: list[ast.expr] = []
        if is_binary(node, ast.Sub):
            sides = [node.left, node.right]
        elif isinstance(node, ast.Call) and last_word(node.func) in _DIFFERENCES:
            sides = node.args[:2]
        for one, other in ((sides[0], sides[1]), (sides[1], sides[0])) if len(sides) == 2 else ():
            back = _scaled_back(flow, one)
            if back is not None and back in scalers and _is_scaled(flow, other, back):
                yield Remark(node, f"{short(one)} is scaled back by {back[1]}.inverse_transform, and {short(other)} is still on the scale of {back[1]}.transform")


def _scalers(flow: Flow) -> set[Key]:
    """Objects on which transform (or fit_transform) and inverse_transform are called."""
    return {key for key in flow.calls if "inverse_transform" in (names := flow.called_on(key)) and names & {"transform", "fit_transform"}}


def _scaled_back(flow: Flow, node: ast.expr) -> Key | None:
    value = flow.value(node)
    while is_method(value, "reshape", "flatten", "ravel", "squeeze", "astype", "copy"):
        value = flow.value(value.func.value)
    while isinstance(value, ast.Subscript):
        value = flow.value(value.value)
    return flow.key(value.func.value) if is_method(value, "inverse_transform") else None


def _is_scaled(flow: Flow, node: ast.expr, scaler: Key) -> bool:
    """Whether a value is made of what a scaler has transformed, and of nothing that is transformed otherwise."""
    calls = [one for one in flow.origins(node) if is_method(one, "transform", "fit_transform", "inverse_transform")]
    return bool(calls) and all(is_method(one, "transform", "fit_transform") and flow.key(one.func.value) == scaler for one in calls)


# Results of an evaluation --------------------------------------------------------------


@RULES.add("unpacked-in-another-order", "each value is reported, compared and kept under the name of another", "unpack the values in the order in which the function returns them")
def _unpacked(program: Program) -> Iterator[Remark]:
    """`acc, loss = evaluate()` where the function returns `loss, acc`."""
    for node in program.everywhere(ast.Assign):
        target = node.targets[0]
        results = program.results(node.value) if isinstance(target, ast.Tuple) else []
        if not isinstance(target, ast.Tuple) or not isinstance(node.value, ast.Call) or not results:
            continue
        local = program.local_function(node.value)
        taken = [last_word(one) for one in target.elts]
        if len({tuple(map(_told, one.elts)) for one in results if isinstance(one, ast.Tuple)}) > 1:
            continue  # one way round or the other
        for made in results:
            given = [_told(one) for one in made.elts] if isinstance(made, ast.Tuple) else []
            if len(given) != len(taken) or "" in given or "" in taken or len(set(given)) != len(given):
                break
            places = [[number for number, word in enumerate(given) if name == word or name.endswith(f"_{word}") or word.endswith(f"_{name}")] for name in taken]
            arguments = program.arguments(local, node.value) if local is not None else {}
            if any(word in arguments and text_of(arguments[word]) == text_of(one) for word, one in zip(given, target.elts, strict=True)):
                break
            order = [found[0] if len(found) == 1 else -1 for found in places]
            if sorted(order) == list(range(len(given))) and order != list(range(len(given))) and local is not None and len(returned(local)) == len(results):
                yield Remark(node, f"{short(target)} takes what {local.name} returns as {short(made)} (line {getattr(made, 'lineno', 0)}): the names stand in another order")
                break


def _told(node: ast.expr) -> str:
    """The name of what is returned, also where it is divided by a count."""
    while is_binary(node, ast.Div, ast.Mult):
        node = node.right if number_in(node.left) is not None else node.left
    return node.args[0].id if is_call(node, "float") and node.args and is_name(node.args[0]) else last_word(node)


@RULES.add("rest-never-judged", "the score is that of a part of the data, whichever rows come last", "go over range(0, n, size), whose last part is shorter")
def _rest_never_judged(program: Program) -> Iterator[Remark]:
    """A loop without gradients over `range(n // size)` cuts its rows into parts of `size`, and n is no multiple of it."""
    flow = flow_of(program)
    for loop in program.everywhere(ast.For):
        over = loop.iter if isinstance(loop, ast.For) else None
        parts = over.args[0] if is_call(over, "range") and len(over.args) == 1 else None
        if not is_binary(parts, ast.FloorDiv) or not is_name(loop.target) or not program.without_gradient(loop.body[0]):
            continue
        rows, size = flow.number(parts.left), flow.number(parts.right)
        if rows is None or size is None or size < 1 or rows % size == 0:
            continue
        begins = {f"{loop.target.id} * {text_of(parts.right)}", f"{text_of(parts.right)} * {loop.target.id}"}
        if any(isinstance(one, ast.Slice) and one.lower is not None and text_of(one.lower) in begins for one in ast.walk(loop)):
            yield Remark(loop, f"{short(parts)} parts of {size:g} are {rows - rows % size:g} of {rows:g} rows: the last {rows % size:g} are never judged")


RULES.add(
    "ranked-without-the-norm",
    "long vectors come first whatever the question: the score is not that of what was trained",
    "divide the vectors by their norms: index = F.normalize(index, dim=-1)",
)(ranked_without_the_norm)


RULES.add(
    "scaled-error-with-a-unit",
    "the number is no error in that unit: it counts deviations of the target, and says nothing to who reads it",
    "scale both sides back before the error: (pred * std + mean - target).abs().mean()",
)(error_with_a_unit)
