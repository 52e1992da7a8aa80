"""Inputs that are scaled by the mean and deviation of held-out samples. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import (
    HELD_OUT,
    RANDOM_SPLITS,
    SPLIT_ARRAYS,
    TRAINING,
    data_sets,
    parts_at,
)
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    Function,
    argument,
    is_attribute,
    is_binary,
    is_false,
    is_method,
    is_name,
    is_own,
    last_word,
    names_of,
    names_read,
    number_in,
    own,
    own_nodes,
    pairs_of,
    parameters,
    returned,
    short,
    text_of,
)

RULES = Rules("data")
_FITTED = frozenset({
    "StandardScaler", "MinMaxScaler", "RobustScaler", "MaxAbsScaler", "PowerTransformer", "QuantileTransformer",
    "PCA", "TruncatedSVD", "SimpleImputer", "KNNImputer", "SelectKBest", "VarianceThreshold",
})
_APPLIED = ("forward", "transform", "normalize", "encode", "scale", "apply")
_STATISTICS = ("mean", "std", "min", "max", "amin", "amax", "median", "var")


def _scaled(flow: Flow, value: ast.AST | None) -> ast.expr | None:
    """`x` of `(x - x.mean(0)) / x.std(0)`, whose statistics are those of all rows of x."""
    if not is_binary(value, ast.Div):
        return None
    difference = value.left
    if not is_binary(difference, ast.Sub) or not _is_statistic_of(flow, difference.right, difference.left):
        return None
    divisor = flow.value(value.right)
    spread = [one for one in ast.walk(divisor) if isinstance(one, (ast.Call, ast.Name))]
    return difference.left if any(_is_statistic_of(flow, one, difference.left) for one in spread) else None


def _is_statistic_of(flow: Flow, node: ast.AST, of: ast.expr) -> bool:
    """Whether an expression is a statistic of an array over its rows."""
    one = flow.given(node) if isinstance(node, ast.Name) else None
    value = node if one is None or one.value is None else one.value
    if is_binary(value, ast.Add) and number_in(value.right) is not None:
        value = value.left
    while is_method(value, "clamp", "clamp_min", "clip", "values", "item", "astype", "float"):
        value = value.func.value
    if not is_method(value, *_STATISTICS):
        return False
    source, place = flow.program.operand(value), int(flow.program.dotted(value.func) is not None)
    over = next((given for word in ("axis", "dim") if (given := argument(value, word, place)) is not None), None)
    first = over.elts[0] if isinstance(over, ast.Tuple) and over.elts else over
    return source is not None and text_of(source) == text_of(of) and (first is None or number_in(first) == 0)


@RULES.add("scaled-before-the-split", "the held-out rows are in the statistics that scale the training: the score knows more than a new sample would give", "split first, and scale all parts by the statistics of the training part")
def _before_the_split(program: Program) -> Iterator[Remark]:
    """An array that is scaled by its own statistics and split only afterwards."""
    flow = flow_of(program)
    for scope in program.scopes():
        for node in own(scope, ast.Assign):
            scaled = _scaled(flow, node.value)
            if scaled is None or not is_name(node.targets[0]) or _held_or_train(scaled):
                continue
            split = _split_after(program, node, node.targets[0].id)
            if split is not None:
                yield Remark(node, f"{short(node)} takes the statistics of all rows, and line {split.lineno} cuts held-out rows from them")
    for call in program.calls():
        if program.called(call) in RANDOM_SPLITS and call.args:
            fitted = _fitted(program, flow, call.args[0])
            if fitted is not None and program.scope(fitted) is not program.scope(call):
                yield Remark(fitted, f"{short(fitted)} takes the statistics of all rows, and line {call.lineno} cuts held-out rows from them")


@RULES.add("target-in-a-feature", "each row knows a part of its own target, and the held-out rows those of theirs: the score is better than on new data", "split first, and take the means from the training part alone")
def _encoded_target(program: Program) -> Iterator[Remark]:
    """A column that is the mean of the target for each group of rows, made before the rows are split."""
    for scope in program.scopes():
        for node in own(scope, ast.Assign):
            column = _mean_of_groups(node.value)
            if column is None or not isinstance(node.targets[0], ast.Subscript) or not is_name(node.targets[0].value) or not _is_target(program, column):
                continue
            name = node.targets[0].value.id
            reached = {name}
            for later in program.after(node):
                split = next((one for one in ast.walk(later) if isinstance(one, ast.Call) and program.called(one) == SPLIT_ARRAYS and names_of(one) & reached), None)
                if split is not None:
                    yield Remark(node, f"{short(node)} takes the mean of {column!r}, the target, over all rows, and line {split.lineno} cuts held-out rows from them")
                    break
                reached |= {one.id for target, value in (pairs_of(later) if isinstance(later, ast.Assign) else ()) if names_of(value) & reached for one in [target] if isinstance(one, ast.Name)}


def _mean_of_groups(node: ast.expr) -> str | None:
    """The column of `rows.groupby(key)[column].transform("mean")`, or of `rows[key].map(rows.groupby(key)[column].mean())`."""
    if is_method(node, "map") and len(node.args) == 1:
        node = node.args[0]
    told = is_method(node, "transform") and node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value in ("mean", "median")
    if not isinstance(node, ast.Call) or not (told or is_method(node, "mean", "median")) or not is_attribute(node.func):
        return None
    of = node.func.value
    if isinstance(of, ast.Subscript) and is_method(of.value, "groupby") and isinstance(of.slice, ast.Constant) and isinstance(of.slice.value, str):
        return of.slice.value
    return None


def _is_target(program: Program, column: str) -> bool:
    """Whether a column is dropped from the inputs, or taken alone as what is learned."""
    for call in program.calls():
        if is_method(call, "drop") and any(isinstance(one, ast.Constant) and one.value == column for one in ast.walk(call)):
            return True
    return any(
        re.fullmatch(r"y|targets?|labels?", text_of(target), re.I) and isinstance(value, (ast.Subscript, ast.Attribute, ast.Call)) and any(isinstance(one, ast.Constant) and one.value == column for one in ast.walk(value))
        for node in program.everywhere(ast.Assign) for target, value in pairs_of(node)
    )


def _fitted(program: Program, flow: Flow, data: ast.AST) -> ast.expr | None:
    """What scales a data set by the statistics of all its rows, in a function that makes the data set."""
    at: ast.AST | None = data
    for _ in range(8):
        one = flow.given(at) if isinstance(at, (ast.Name, ast.Attribute)) else None
        value, place = (at, None) if one is None else (one.value, one.place)
        if is_method(value, "fit_transform") and value.args and not _held_or_train(value.args[0]):
            return value
        if (scaled := _scaled(flow, value)) is not None:
            return value if isinstance(value, ast.expr) and not _held_or_train(scaled) else None
        if not isinstance(value, ast.Call):
            return None
        results = program.results(value)
        if len(results) == 1:
            at = results[0].elts[place or 0] if isinstance(results[0], ast.Tuple) and len(results[0].elts) > (place or 0) else results[0]
        elif program.called(value).endswith("TensorDataset") and value.args:
            at = value.args[0]
        elif is_method(value, "float", "to", "from_numpy", "tensor", "as_tensor"):
            at = program.operand(value)
        else:
            return None
    return None


def _held_or_train(node: ast.AST) -> bool:
    return any(HELD_OUT.search(name) or TRAINING.search(name) for name in names_of(node))


def _split_after(program: Program, node: ast.Assign, name: str) -> ast.stmt | None:
    """The statement that cuts an array into a training and a held-out part."""
    parts: set[str] = set()
    for later in program.after(node):
        for one in ast.walk(later):
            if isinstance(one, ast.Call) and program.called(one) in (*RANDOM_SPLITS, SPLIT_ARRAYS) and not is_false(argument(one, "shuffle")) and name in names_read(ast.Tuple([*one.args], ast.Load())):
                return later
            if isinstance(one, ast.Assign):
                takes = any(isinstance(part, ast.Subscript) and is_name(part.value, name) for part in ast.walk(one.value))
                given = {target.id for target in ast.walk(ast.Tuple([*one.targets], ast.Load())) if isinstance(target, ast.Name)}
                parts |= given if takes else set()
        if any(map(HELD_OUT.search, parts)) and any(map(TRAINING.search, parts)):
            return later
    return None


@RULES.add("scaled-apart", "training and held-out inputs are on different scales: what the model learned of one does not hold for the other", "keep the mean and deviation of the training part, and use them for all parts")
def _apart(program: Program) -> Iterator[Remark]:
    """A held-out array that is scaled by its own statistics, as the training array is by its."""
    flow = flow_of(program)
    scaling = {scope for scope in program.scopes() if isinstance(scope, Function) and _scales_its_argument(flow, scope)}
    found: list[tuple[ast.AST, ast.expr]] = []
    for node in program.everywhere(ast.Assign):
        scaled = _scaled(flow, node.value)
        if scaled is not None:
            found.append((node, scaled))
    for call in program.calls():
        if call.args and program.local_function(call) in scaling:
            found.append((call, call.args[0]))
    for call, target in _made_with_statistics(program):
        found.append((call, target))
    held = [(at, one) for at, one in found if any(map(HELD_OUT.search, names_of(one)))]
    trained = [one for _, one in found if any(map(TRAINING.search, names_of(one)))]
    for at, one in held if trained else ():
        yield Remark(at, f"{short(at)} scales {short(one, 30)} by its own statistics, and {short(trained[0], 30)} is scaled by others")


def _made_with_statistics(program: Program) -> Iterator[tuple[ast.Call, ast.Name]]:
    """The calls of data sets that scale what they are given by its own statistics in any case, with the variable that
    each is given to."""
    for of in data_sets(program):
        start = program.method(of, "__init__")
        given = {one.arg for one in parameters(start)} - {"self"} if start is not None else set()
        kept = [
            one for one in start.body if isinstance(one, ast.Assign) and is_own(one.targets[0]) and isinstance(one.value, ast.Call)
            and one.value.args and is_name(one.value.args[0], *given, "") and _takes_statistics(program, one.value)
        ] if start is not None else []
        names = [text_of(one.targets[0]) for one in kept]
        used = [
            one for one in ast.walk(of) if isinstance(one, ast.Call)
            and (text_of(one.func) in names or (is_method(one, *_APPLIED) and text_of(one.func.value) in names))
        ]
        parts = [_scaled(flow_of(program), one.value) for one in start.body if isinstance(one, ast.Assign)] if start is not None else []
        for call in program.calls() if used or any(is_name(one, *given, "") for one in parts) else ():
            statement = program.statement(call)
            if program.called(call) == of.name and isinstance(statement, ast.Assign):
                for target, value in pairs_of(statement):
                    if value is call and is_name(target):
                        yield call, target


def _takes_statistics(program: Program, call: ast.Call) -> bool:
    """Whether a call makes an object that keeps the mean and the deviation of its first argument."""
    of = program.classes.get(program.called(call), [])
    start = program.method(of[0], "__init__") if len(of) == 1 else None
    given = [one.arg for one in parameters(start) if one.arg != "self"] if start is not None else []
    return bool(given) and {"mean", "std"} <= {one.func.attr for one in own(start, ast.Call) if is_method(one) and is_name(one.func.value, given[0])}  # type: ignore[arg-type]


def _scales_its_argument(flow: Flow, function: Function) -> bool:
    """Whether a function gives its first argument scaled by the statistics of that argument."""
    given = [one.arg for one in parameters(function) if one.arg != "self"]
    results = [one for one in returned(function) if one is not None]
    scaled = _scaled(flow, flow.value(results[0])) if len(results) == 1 and given else None
    return is_name(scaled, given[0]) if given else False


@RULES.add("divided-by-variance", "inputs are not on the scale of 1: small deviations are blown up, and large ones shrink", "divide by the standard deviation: x.std(0), or the root of the variance")
def _by_variance(program: Program) -> Iterator[Remark]:
    """A difference from the mean that is divided by the variance and not by its root."""
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp):
        if not is_binary(node, ast.Div) or not is_binary(node.left, ast.Sub):
            continue
        of = node.left.left
        divisor: ast.AST = node.right
        if is_binary(divisor, ast.Add) and number_in(divisor.right) is not None:
            divisor = divisor.left
        one = flow.given(divisor) if isinstance(divisor, ast.Name) else None
        value = flow.value(divisor) if one is None or one.place is None else None
        centred = _is_statistic_of(flow, node.left.right, of)
        if centred and is_method(value, "var") and (varied := program.operand(value)) is not None and text_of(varied) == text_of(of):
            yield Remark(node, f"{short(node)} divides by the variance, {short(value)}")


@RULES.add("statistics-of-two-axes", "nothing is on the scale of 1: the mean is that of each row, and the deviation that of each column", "take both statistics over the same axis")
def _two_axes(program: Program) -> Iterator[Remark]:
    """A difference from the mean over one axis that is divided by the deviation over another one."""
    flow = flow_of(program)
    for node, taken, divisor in _scalings(program):
        mean, deviation = _statistic(flow, taken), _statistic(flow, divisor)
        if mean is None or deviation is None or mean[0] != "mean" or deviation[0] != "std" or mean[1] != deviation[1] or None in (mean[2], deviation[2]):
            continue
        if mean[2] != deviation[2]:
            yield Remark(node, f"{short(node)} takes the mean over axis {mean[2]} and the deviation over axis {deviation[2]}")


@RULES.add("mean-for-deviation", "inputs are on no scale that the model was made for", "(x - mean) / deviation")
def _mean_for_deviation(program: Program) -> Iterator[Remark]:
    """The deviation taken away and the mean divided by: the two in each other's place."""
    flow = flow_of(program)
    for node, taken, divisor in _scalings(program):
        centre, divided = _statistic(flow, taken), _statistic(flow, divisor)
        if centre is not None and divided is not None and (centre[0], divided[0]) == ("std", "mean") and centre[1] == divided[1]:
            yield Remark(node, f"{short(node)} takes the deviation away and divides by the mean")
    for call in program.calls():
        mean, deviation = argument(call, "mean", 0), argument(call, "std", 1)
        if program.called(call).rpartition(".")[2] == "Normalize" and mean is not None and deviation is not None and not isinstance(flow.value(mean), (ast.Tuple, ast.List)):
            names = last_word(mean).lower(), last_word(deviation).lower()
            if re.search(r"(^|_)(std|stds|deviation)(_|$)", names[0]) and re.search(r"(^|_)(mean|means|mu)(_|$)", names[1]):
                yield Remark(call, f"{short(call)} is given the deviation for the mean, and the mean for the deviation")


def _scalings(program: Program) -> Iterator[tuple[ast.BinOp, ast.expr, ast.expr]]:
    """Differences that are divided: each whole, what is taken away, and the divisor without what is added to it."""
    for node in program.everywhere(ast.BinOp):
        if is_binary(node, ast.Div) and is_binary(node.left, ast.Sub):
            yield node, node.left.right, node.right.left if is_binary(node.right, ast.Add) else node.right


def _statistic(flow: Flow, node: ast.AST) -> tuple[str, str, str | None] | None:
    """Which statistic an expression is, of what, and over which axis."""
    value = flow.value(node)
    if not is_method(value, "mean", "std"):
        return None
    free = flow.program.dotted(value.func) is not None
    of = flow.program.operand(value)
    axis = argument(value, "axis", int(free)) or argument(value, "dim", int(free))
    return value.func.attr, "" if of is None else text_of(of), None if axis is None else text_of(axis)


@RULES.add("fitted-on-held-out", "the held-out data are not on the scale that the model was trained on, or its score knows more than a new sample would give", "split first; fit on the training part; only transform the other")
def _fitted_again(program: Program) -> Iterator[Remark]:
    """Statistics that are fitted to held-out data, alone or with the rest."""
    flow = flow_of(program)
    for call in program.calls():
        func = call.func
        if not is_attribute(func, "fit_transform", "fit") or not call.args:
            continue
        made = flow.value(func.value)
        name = program.called(made).rpartition(".")[2]
        if name not in _FITTED or not program.called(made).startswith("sklearn."):
            continue
        given = call.args[0]
        if _held_out_part(flow, given) or _fitted_for_each(flow, call, given):
            yield Remark(call, f"{short(func.value)} is fitted to {short(given)}, which is held out: it is scaled by its own statistics, not by those of the training data")
        elif func.attr == "fit_transform":
            statement = program.parent.get(call)
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
                split = _split_of(flow, statement.targets[0], call)
                if split is not None:
                    yield Remark(call, f"{name} is fitted to all of {short(given)} before it is split in line {split.lineno}: the held-out rows are in its statistics")
    yield from _fitted_before_the_cut(flow)


def _fitted_before_the_cut(flow: Flow) -> Iterator[Remark]:
    """Statistics that are fitted to all rows of what is then cut in two: `x[:n]` for the training, `x[n:]` held out."""
    program = flow.program
    told: set[ast.Call] = set()
    for scope in program.scopes():
        cut = [(target, value) for node in own(scope, ast.Assign) for target, value in pairs_of(node) if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice)]
        for target, value in cut:
            piece = value.slice if isinstance(value, ast.Subscript) else None
            if not isinstance(value, ast.Subscript) or not isinstance(piece, ast.Slice) or piece.lower is not None or piece.upper is None or not TRAINING.search(last_word(target)):
                continue
            rest = [
                one for place, one in cut
                if isinstance(one, ast.Subscript) and isinstance(one.slice, ast.Slice) and one.slice.lower is not None
                and ast.unparse(one.value) == ast.unparse(value.value) and HELD_OUT.search(last_word(place))
            ]
            fitted = _fitted_on(flow, value.value) if rest else None
            if fitted is not None and fitted not in told and fitted.args:
                told.add(fitted)
                yield Remark(fitted, f"{short(fitted)} is fitted to all rows, and line {rest[0].lineno} cuts held-out rows from them: they are in its statistics")


def _fitted_on(flow: Flow, node: ast.AST, depth: int = 4) -> ast.Call | None:
    """The call that scales what an array is made of, by statistics of all its rows; None where it is given a part."""
    for one in flow.origins(node):
        if is_method(one, "fit_transform") and one.args:
            made = flow.program.called(flow.value(one.func.value))
            given = one.args[0]
            part = any(_is_row_slice(part) or TRAINING.search(last_word(part)) for part in flow.origins(given))
            return one if made.startswith("sklearn.") and made.rpartition(".")[2] in _FITTED and not part else None
        found = flow.given(one) if isinstance(one, (ast.Name, ast.Attribute)) else None
        parts = parts_at(flow, found) if found is not None else []
        for made_of in [*parts, *flow.passed(one)] if depth else ():
            inner = _fitted_on(flow, made_of, depth - 1)
            if inner is not None:
                return inner
    return None


def _is_row_slice(node: ast.AST) -> bool:
    """Whether an expression takes some of the rows of an array."""
    if not isinstance(node, ast.Subscript):
        return False
    first = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
    return isinstance(first, ast.Slice) and (first.lower is not None or first.upper is not None)


def _fitted_for_each(flow: Flow, call: ast.Call, given: ast.expr) -> bool:
    """Whether what is fitted to held-out rows is also fitted to training rows: by name, or in a function that is called
    for both parts."""
    program = flow.program
    if any(isinstance(one, (ast.If, ast.IfExp, ast.Try)) for one in program.parents(call)) or not isinstance(call.func, ast.Attribute):
        return False
    part = _part_named(given)
    key = flow.key(call.func.value)
    if part == "held" and key is not None:
        fits = [one for one in flow.calls.get(key, []) if one is not call and is_method(one, "fit", "fit_transform") and one.args]
        return any(_part_named(one.args[0]) == "training" for one in fits)
    roots = [one for one in ast.walk(given) if isinstance(one, ast.Name) and any(binding.how == "parameter" for binding in flow.bindings(one))]
    made_here = program.frame(flow.value(call.func.value)) is program.frame(call)
    parts = {_part_named(one) for root in roots for one in flow.passed(root)} if made_here else set()
    return {"held", "training"} <= parts


def _part_named(node: ast.expr) -> str | None:
    """Which part of the data an expression reads, by the names in it."""
    names = [last_word(one) for one in ast.walk(node) if isinstance(one, (ast.Name, ast.Attribute))]
    held, trained = any(HELD_OUT.search(one) for one in names), any(TRAINING.search(one) for one in names)
    return None if held == trained else "held" if held else "training"


def _held_out_part(flow: Flow, node: ast.expr) -> bool:
    """Whether a value is the second part of a split of arrays."""
    while is_method(node, "reshape", "values", "to_numpy"):
        node = node.func.value
    one = flow.given(node)
    return (
        one is not None and one.place is not None and one.place % 2 == 1 and isinstance(one.value, ast.Call)
        and flow.program.called(one.value) == SPLIT_ARRAYS
    )


def _split_of(flow: Flow, name: ast.Name, after: ast.Call) -> ast.Call | None:
    """The call of train_test_split that cuts what a name holds."""
    for node in own_nodes(flow.program.scope(name)):
        folds = is_method(node, "split") and flow.program.called(flow.value(node.func.value)).startswith("sklearn.model_selection.")
        if not isinstance(node, ast.Call) or (flow.program.called(node) != SPLIT_ARRAYS and not folds) or node.lineno <= after.lineno:
            continue
        if any(is_name(given, name.id) and flow.value(given) is after for given in node.args[:1]):
            return node
    return None
