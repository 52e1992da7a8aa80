"""Splits and draws that follow the order of the data, or ignore what they were given. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import HELD_OUT, SPLIT_ARRAYS, TRAINING, data_sets, filled_with
from probe.diagnose.code.finders.data.whole_sets import order_never_used
from probe.diagnose.code.finders.pictures.mirrored_sides import sides_not_exchanged
from probe.diagnose.code.finders.rows.cut_in_two import places_for_rows
from probe.diagnose.code.finders.rows.sampler_weights import weights_of_other_samples
from probe.diagnose.code.finders.runs.twice_balanced import balanced_twice
from probe.diagnose.code.flow import Flow, flow_of, place_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    argument,
    compares,
    is_binary,
    is_call,
    is_false,
    is_method,
    is_name,
    is_own,
    is_read,
    last_word,
    names_read,
    own,
    pairs_of,
    short,
    text_of,
)

RULES = Rules("data")
_INPUTS = re.compile(r"^(x|inputs?|features?|feats)(_(train|all|data|raw))?$", re.I)
_EDGES = re.compile(r"^(pos_)?edges?(_index|_list)?$")


@RULES.add("weights-without-replacement", "each sample is drawn once: the weights only change the order, and the classes stay as rare as they are", "draw with replacement (replacement=True, the default)")
def _without_replacement(program: Program) -> Iterator[Remark]:
    """A weighted sampler that draws as many samples as there are, none of them twice."""
    for call in program.calls():
        if program.called(call).rpartition(".")[2] != "WeightedRandomSampler" or not is_false(argument(call, "replacement", 2)):
            continue
        weights, count = argument(call, "weights", 0), argument(call, "num_samples", 1)
        whole = is_call(count, "len") and len(count.args) == 1
        sized = is_method(count, "numel") or (is_method(count, "size") and len(count.args) == 1)
        if weights is not None and (whole or sized):
            yield Remark(call, f"{short(call)} draws each of {text_of(count) if count is not None else ''} samples once")


@RULES.add("split-by-class", "the held-out part holds classes that the training part has none or few of", "shuffle both by one permutation before the split")
def _by_class(program: Program) -> Iterator[Remark]:
    """Labels that are sorted as they are made, cut in two without a shuffle."""
    flow = flow_of(program)
    for scope in program.scopes():
        for node in own(scope, ast.Assign):
            for target, value in pairs_of(node):
                if not isinstance(target, ast.Name) or not _in_blocks(program, flow, value):
                    continue
                made = [one for one in flow.bindings(target) if one.how == "assign"]
                cuts = [one for one in own(scope, ast.Subscript) if is_read(one.value, target.id) and isinstance(one.slice, ast.Slice) and one.slice.step is None]
                heads = [one for one in cuts if one.slice.lower is None and one.slice.upper is not None]  # type: ignore[attr-defined]
                tails = [one for one in cuts if one.slice.upper is None and one.slice.lower is not None]  # type: ignore[attr-defined]
                whole = [(a, b) for a in heads for b in tails if text_of(a.slice.upper) == text_of(b.slice.lower)]  # type: ignore[attr-defined]
                if len(made) == 1 and whole:
                    yield Remark(whole[0][1], f"{text_of(target)} lists one class after the other ({short(value, 40)}), and {short(whole[0][1])} is its end")


def _in_blocks(program: Program, flow: Flow, value: ast.AST) -> bool:
    """Whether an expression gives one class after the other."""
    value = value.func.value if is_method(value, "long", "float", "int", "astype", "to") else value
    if is_method(value, "repeat_interleave"):
        return program.called(program.operand(value)) in ("torch.arange",)
    name = program.called(value)
    if name == "numpy.repeat" and isinstance(value, ast.Call) and value.args:
        return program.called(value.args[0]) == "numpy.arange"
    if name in ("torch.cat", "numpy.concatenate") and isinstance(value, ast.Call) and value.args and isinstance(value.args[0], (ast.List, ast.Tuple)):
        return len(value.args[0].elts) > 1 and len({_block(flow, one) for one in value.args[0].elts} - {None}) == len(value.args[0].elts)
    return False


def _block(flow: Flow, node: ast.AST) -> float | None:
    """The class that a part of the labels is filled with: `torch.zeros(n)`, `torch.full((n,), 2)`."""
    value = flow.value(node)
    value = flow.value(value.func.value) if is_method(value, "long", "float", "int", "astype", "to") else value
    shape = value.args[0] if isinstance(value, ast.Call) and value.args else None
    flat = shape is not None and not (isinstance(shape, ast.Tuple) and len(shape.elts) > 1)
    return filled_with(flow, value) if flat else None


@RULES.add("held-out-edges-in-the-graph", "the model reads the edges that it is asked to predict: the score is that of a lookup", "pass messages over the training edges alone")
def _held_out_edges(program: Program) -> Iterator[Remark]:
    """Edges split into parts, and a graph that is built of all of them."""
    flow = flow_of(program)
    for scope in program.scopes():
        parts: dict[str, dict[str, ast.Assign]] = {}
        for node in own(scope, ast.Assign):
            for target, value in pairs_of(node):
                if is_name(target) and isinstance(value, ast.Subscript) and isinstance(value.value, ast.Name) and _EDGES.match(value.value.id):
                    parts.setdefault(value.value.id, {})[target.id] = node
        for name, made in parts.items():
            held, trained = [one for one in made if HELD_OUT.search(one)], [one for one in made if TRAINING.search(one)]
            first, last = (choose(one.lineno for one in made.values()) for choose in (min, max))
            again = any(one.how != "parameter" and getattr(one.node, "lineno", 0) >= first for one in flow.bound.get((scope, name), []))
            if not held or not trained or again:
                continue
            for call in own(scope, ast.Call):
                whole = any(is_read(one, name) for one in call.args)
                builds = re.search(r"adj|graph|normali|laplac|encode|message|propag|matrix|degree", last_word(call.func), re.I) or program.family(call.func) == "module"
                if whole and builds and (call.lineno > last or re.search(r"adj|graph|laplac|propag|matrix|degree", last_word(call.func), re.I)):
                    yield Remark(call, f"{short(call)} passes messages over all of {name}, and {held[0]} (line {made[held[0]].lineno}) is a part of it")
                    break


@RULES.add("paired-by-listing", "the operating system lists a folder in any order: an input may meet the target of another one", "sort both lists: sorted(os.listdir(folder))")
def _listing(program: Program) -> Iterator[Remark]:
    """Two listings of folders that are read by one index, or zipped, and are not both sorted."""
    flow = flow_of(program)
    for of in data_sets(program):
        start, getter = program.method(of, "__init__"), program.method(of, "__getitem__")
        if start is None or getter is None or len(getter.args.args) < 2:
            continue
        index = getter.args.args[1].arg
        read = {one.value.attr for one in ast.walk(getter) if isinstance(one, ast.Subscript) and is_own(one.value) and is_name(one.slice, index)}
        listed = [(target.attr, made) for node in own(start, ast.Assign) for target, value in pairs_of(node) if is_own(target) and target.attr in read and (made := _listed(flow, value)) is not None]
        yield from _unsorted(program, listed, {text_of(call.func.value).removeprefix("self.") for call in program.calls() if is_method(call, "sort")})
    for call in program.calls():
        if is_call(call, "zip") and len(call.args) == 2:
            named = [(text_of(one), made) for one in call.args if (made := _listed(flow, one)) is not None]
            yield from _unsorted(program, named, {text_of(one.func.value) for one in program.calls() if is_method(one, "sort")})


def _listed(flow: Flow, node: ast.expr) -> tuple[ast.expr, bool] | None:
    """The listing of a folder that a list is made of, and whether it is sorted."""
    value = flow.value(node)
    ordered = False
    for _ in range(6):
        if is_call(value, "sorted", "list", "natsorted") and value.args:
            ordered = ordered or not is_name(value.func, "list")
            value = flow.value(value.args[0])
        elif isinstance(value, ast.ListComp):
            value = flow.value(value.generators[0].iter)
        else:
            break
    name = flow.program.called(value)
    listing = name in ("os.listdir", "glob.glob", "os.scandir", "glob.iglob") or (is_method(value, "glob", "iterdir", "rglob") and not name)
    return (value, ordered) if listing and isinstance(value, ast.expr) else None


def _unsorted(program: Program, listed: list[tuple[str, tuple[ast.expr, bool]]], later: set[str]) -> Iterator[Remark]:
    loose = [(name, node) for name, (node, ordered) in listed if not ordered and name not in later]
    if len(listed) > 1 and loose:
        other = next(name for name, _ in listed if name != loose[0][0])
        yield Remark(loose[0][1], f"{loose[0][0]} holds the files as {short(loose[0][1])} happens to list them, and is read by one index with {other}")


@RULES.add("aligned-by-index", "pandas puts each value at the row of its number, not at the next row: values land at other rows, or are missing", "assign the array itself, or give the Series the index of the frame")
def _aligned(program: Program) -> Iterator[Remark]:
    """A Series numbered from 0 that becomes a column of rows that were drawn or filtered, and kept their numbers."""
    flow = flow_of(program)
    for node in program.everywhere(ast.Assign):
        target, value = node.targets[0], node.value
        if not isinstance(target, ast.Subscript) or not is_name(target.value) or program.called(value) != "pandas.Series" or not isinstance(value, ast.Call):
            continue
        if argument(value, "index", 1) is not None or not value.args or isinstance(value.args[0], (ast.Dict, ast.Constant)):
            continue
        given = flow.given(target.value)
        if given is not None and _keeps_numbers(program, given.value, target.value.id):
            yield Remark(node, f"{short(node)} numbers its values from 0, and {target.value.id} keeps the numbers that its rows had before line {getattr(given.node, 'lineno', 0)}")


def _keeps_numbers(program: Program, value: ast.AST | None, name: str) -> bool:
    """Whether rows are a random part of a frame, or those that a comparison leaves."""
    if any(is_method(one, "reset_index", "set_index") for one in ast.walk(value)) if value is not None else True:
        return False
    renumbered = any(is_method(call, "reset_index") and is_name(call.func.value, name) for call in program.calls())
    if is_method(value, "copy"):
        value = value.func.value
    drawn = program.called(value) == SPLIT_ARRAYS or is_method(value, "sample")
    filtered = isinstance(value, ast.Subscript) and isinstance(value.slice, (ast.Compare, ast.BinOp)) and any(compares(one, ast.Eq, ast.NotEq) for one in ast.walk(value.slice))
    return (drawn or filtered) and not renumbered


@RULES.add("shuffled-before-windows", "a window holds values of any time: there is nothing to forecast from", "cut the windows first, and put them into a random order afterwards")
def _shuffled_series(program: Program) -> Iterator[Remark]:
    """Rows that are put into a random order, and cut into windows of rows that follow each other."""
    flow = flow_of(program)
    for window in program.everywhere(ast.Subscript):
        piece = window.slice
        if not isinstance(piece, ast.Slice) or not isinstance(piece.lower, ast.Name) or not is_binary(piece.upper, ast.Add) or piece.lower.id not in names_read(piece.upper):
            continue
        counter = flow.given(piece.lower)
        each = getattr(counter.node, "iter", None) if counter is not None and counter.how == "for" else None
        if not is_call(each, "range") or (len(each.args) == 3 and flow.number(each.args[2]) != 1):  # else batches
            continue
        beside = any(isinstance(one, ast.Subscript) and text_of(one.value) == text_of(window.value) and is_binary(one.slice, ast.Add) for one in ast.walk(program.scope(window)))
        beside = beside or program.function_of(window) is not None
        for series in [window.value, *flow.passed(window.value)] if beside else ():
            shuffled = _shuffled(flow, series)
            if shuffled is not None:
                yield Remark(window, f"{short(window)} takes rows that follow each other, and {short(shuffled)} (line {getattr(shuffled, 'lineno', 0)}) has put them into a random order")
                break


def _shuffled(flow: Flow, series: ast.AST) -> ast.AST | None:
    """What puts the rows that an array is made of into a random order."""
    for one in flow.origins(series):
        fraction = argument(one, "frac") if is_method(one, "sample") else None
        if isinstance(one, ast.Call) and fraction is not None and flow.number(fraction) == 1:
            sorted_again = any(is_method(around, "sort_index", "sort_values") for around in flow.origins(series))
            return None if sorted_again else one
        if isinstance(one, ast.Name):
            mixed = next((call for call in flow.program.calls() if flow.program.called(call) in ("numpy.random.shuffle", "random.shuffle") and call.args and flow.key(call.args[0]) == flow.key(one) and flow.key(one) is not None and place_of(call) < place_of(series)), None)
            if mixed is not None:
                return mixed
    return None


@RULES.add("future-among-inputs", "the input holds what is only known later: in use it is missing, and the score is that of a look ahead", "shift inputs forward (shift(1)), and only the target back")
def _future(program: Program) -> Iterator[Remark]:
    """A column that is shifted back in time, among the columns of the input."""
    flow = flow_of(program)
    for node in program.everywhere(ast.Assign):
        column = node.targets[0]
        if not isinstance(column, ast.Subscript) or not isinstance(column.slice, ast.Constant) or not isinstance(column.slice.value, str):
            continue
        back = next((one for one in ast.walk(node.value) if is_method(one, "shift") and (number := flow.number(argument(one, "periods", 0))) is not None and number < 0), None)
        for chosen in program.everywhere(ast.Subscript) if back is not None else ():
            names = flow.value(chosen.slice)
            words = {one.value for one in names.elts if isinstance(one, ast.Constant)} if isinstance(names, ast.List) else set()
            statement = program.statement(chosen)
            inputs = isinstance(statement, ast.Assign) and any(_INPUTS.match(last_word(one)) for one in statement.targets)
            if column.slice.value in words and len(words) > 1 and inputs and text_of(chosen.value) == text_of(column.value):
                yield Remark(node, f"{short(node)} looks ahead, and {column.slice.value!r} is among the inputs of line {chosen.lineno}")
                break


RULES.add(
    "weights-of-other-samples",
    "each sample is drawn by the weight of another one: classes are not balanced, and some samples come far too often",
    "take the weights of the part: weights[part.indices]",
)(weights_of_other_samples)


RULES.add(
    "sides-not-exchanged",
    "half of the samples teach that the left one is the right one: the network learns to point between them",
    "bring them into the order of a mirrored picture: points = points[FLIP_ORDER], with the left and the right of each pair exchanged",
)(sides_not_exchanged)


RULES.add(
    "order-never-used",
    "the samples come in the same order in each epoch: the shuffling that the line stands for does not happen",
    "take the rows by it: x[order[i:i + size]]",
)(order_never_used)


RULES.add(
    "balanced-twice",
    "a rare class counts by the square of how rare it is: it is predicted far too often",
    "use one of the two: the sampler, or the weights of the loss",
)(balanced_twice)


RULES.add(
    "places-for-rows",
    "the parts are made of the first rows of all, held-out ones among them: what was kept apart is trained on, and other rows are never seen",
    "look the numbers up first: rows = numbers[order[:n]], then x[rows]",
)(places_for_rows)
