"""Windows of a series, and what their targets are: overlapping windows split at random, a target that its own window
contains, class numbers that are interpolated. Pure."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import HELD_OUT, RANDOM_SPLITS, SHAPES, SPLIT_ARRAYS, data_sets
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    Function,
    argument,
    is_binary,
    is_call,
    is_false,
    is_method,
    is_name,
    is_own,
    is_string,
    last_word,
    names_of,
    names_read,
    names_set,
    number_in,
    operands,
    own,
    returned,
    short,
)

RULES = Rules("data")
_GROUPS = re.compile(r"patient|subject|speaker|person|participant|session|recording|scene|video|group|site", re.I)
_ORDERS = frozenset({"torch.randperm", "numpy.random.permutation"})
_BETWEEN = ("bilinear", "bicubic", "trilinear", "linear")
_WHOLE = frozenset({"torch.long", "torch.int64"})

Linear = Counter[str]
"""A sum of whole multiples of expressions, by their text; the text of the constant is empty."""


def _linear(flow: Flow, node: ast.AST, sign: int = 1) -> Linear | None:
    """A position in a series as a sum; None where it is none."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        left = _linear(flow, node.left, sign)
        right = _linear(flow, node.right, -sign if isinstance(node.op, ast.Sub) else sign)
        if left is None or right is None:
            return None
        left.update(right)
        return Counter({text: times for text, times in left.items() if times})
    number = number_in(node)
    if number is not None:
        return Counter({"": int(number) * sign}) if number == int(number) else None
    if isinstance(node, ast.Name) and isinstance(held := flow.held(node), ast.BinOp) and isinstance(held.op, (ast.Add, ast.Sub)):
        return _linear(flow, held, sign)
    return Counter({ast.unparse(node): sign}) if isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.BinOp, ast.Subscript)) else None


def _apart(flow: Flow, later: ast.AST, earlier: ast.AST) -> Linear | None:
    """How far two positions are apart."""
    one, other = _linear(flow, later), _linear(flow, earlier)
    if one is None or other is None:
        return None
    one.subtract(other)
    return Counter({text: times for text, times in one.items() if times})


def _rows(node: ast.Subscript, whole: bool) -> ast.expr | None:
    """The rows that a subscript takes. `whole`: None where it takes some columns only."""
    at = node.slice
    if not isinstance(at, ast.Tuple):
        return at
    rest = at.elts[1:]
    if whole and not all(isinstance(one, ast.Slice) and one.lower is None and one.upper is None for one in rest):
        return None
    return at.elts[0] if at.elts else None


def _plain(flow: Flow, node: ast.AST | None) -> ast.AST | None:
    """An element of a sample without what changes its shape or type only."""
    for _ in range(8):
        if is_method(node, *SHAPES, "astype", "copy", "item") and flow.program.dotted(node.func) is None:
            node = node.func.value
        elif isinstance(node, ast.Call) and node.args and (
            flow.program.called(node) in ("torch.tensor", "torch.as_tensor", "torch.from_numpy", "torch.FloatTensor", "numpy.array", "numpy.asarray")
            or is_call(node, "float", "int")
        ):
            node = node.args[0]
        elif node is not None and isinstance(held := flow.held(node), (ast.Subscript, ast.Call)):
            node = held
        else:
            break
    return node


def _window(flow: Flow, node: ast.AST | None) -> tuple[ast.Subscript, ast.expr, ast.expr] | None:
    """A slice of a series with both of its ends."""
    taken = _plain(flow, node)
    rows = _rows(taken, True) if isinstance(taken, ast.Subscript) else None
    if not isinstance(taken, ast.Subscript) or not isinstance(rows, ast.Slice) or rows.step is not None:
        return None
    return (taken, rows.lower, rows.upper) if rows.lower is not None and rows.upper is not None else None


# A window and its target ----------------------------------------------------------


@RULES.add("target-in-its-window", "the answer is the last value of the input: the model copies it, and forecasts nothing", "take the value after the window")
def _target_in_window(program: Program) -> Iterator[Remark]:
    """A window of a series as the input, and the last value of the same window as the target."""
    flow = flow_of(program)
    for first, second in _samples(program, flow):
        whole = flow.value(first)
        last = isinstance(second, ast.Subscript) and flow.number(second.slice) == -1 and ast.unparse(second.value) == ast.unparse(first)
        if last and isinstance(whole, ast.Subscript) and isinstance(whole.slice, ast.Slice) and whole.slice.lower is not None and whole.slice.upper is not None:
            yield Remark(second, f"{short(second)} is the last value of the window {short(whole)} itself: the target is a part of the input")
            continue
        windows = [one for part in _parts_of(flow, first) if (one := _window(flow, part)) is not None]
        target = _plain(flow, second)
        same = [one for one in windows if isinstance(target, ast.Subscript) and ast.unparse(one[0].value) == ast.unparse(target.value)]
        window = same[0] if same else None
        if window is None or not isinstance(target, ast.Subscript):
            continue
        rows = _rows(target, False)
        begins = rows.lower if isinstance(rows, ast.Slice) else rows
        length = _apart(flow, window[2], window[1])
        if begins is None or not length or (length.get("", 0) in (1, 2) and len(length) == 1):
            continue
        if _apart(flow, window[2], begins) == Counter({"": 1}):
            yield Remark(target, f"{short(target)} is the last value of the window {short(window[0])} itself: the target is a part of the input")


def _parts_of(flow: Flow, node: ast.expr) -> list[ast.expr]:
    """An input, or what it is put together from: `torch.cat([x[i:j][None], clock[:, i:j]])`."""
    value = flow.value(node)
    listed = value.args[0] if is_method(value, "cat", "stack", "concatenate", "hstack", "column_stack") and value.args else None
    parts = listed.elts if isinstance(listed, (ast.List, ast.Tuple)) else [node]
    return [one.value if isinstance(one, ast.Subscript) and any(isinstance(part, ast.Constant) and part.value is None for part in ast.walk(one.slice)) else one for one in parts]


def _samples(program: Program, flow: Flow) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The two parts of samples: what a data set returns, lists that one loop fills, comprehensions of one range."""
    for scope in program.scopes():
        if isinstance(scope, Function) and scope.name == "__getitem__":
            for one in returned(scope):
                if isinstance(one, ast.Tuple) and len(one.elts) == 2:
                    yield one.elts[0], one.elts[1]
        made: dict[str, list[ast.expr]] = {}
        for node in own(scope, ast.ListComp):
            if len(node.generators) == 1 and not node.generators[0].ifs:
                made.setdefault(ast.unparse(node.generators[0].iter) + ast.unparse(node.generators[0].target), []).append(node.elt)
        for loop in own(scope, ast.For):
            appended = [one.value for one in loop.body if isinstance(one, ast.Expr)]
            filled = [one for one in appended if is_method(one, "append") and len(one.args) == 1]
            if len(filled) == 2:
                made.setdefault(f"{loop.lineno}", []).extend(one.args[0] for one in filled)
            elif len(filled) == 1 and isinstance(pair := filled[0].args[0], ast.Tuple) and len(pair.elts) == 2:
                yield pair.elts[0], pair.elts[1]
        for parts in made.values():
            if len(parts) == 2:
                yield parts[0], parts[1]


# Overlapping windows ----------------------------------------------------------------


@RULES.add("windows-split-at-random", "each held-out window shares nearly all of its values with windows of the training: the score is that of a memory, not of a forecast", "split the series in time first, and cut windows from each part")
def _windows_split(program: Program) -> Iterator[Remark]:
    """Windows of a series that begin one step after the other, split into parts at random."""
    flow = flow_of(program)
    overlapping = {**dict(_window_lists(program, flow)), **dict(_window_classes(program, flow))}
    for call in program.calls():
        given = _split_at_random(program, flow, call)
        if given is None:
            continue
        window = _cut_one_after_the_other(program, flow, given, overlapping)
        if window is not None:
            yield Remark(call, f"{short(call)} splits windows at random that overlap ({short(window)}, line {window.lineno}): neighbours fall into both parts")


@RULES.add("groups-split-at-random", "samples of one and the same patient (speaker, recording) are in the training and in the held-out part: the score is that of known ones", "draw the groups that are held out, and take all samples of each")
def _groups_split(program: Program) -> Iterator[Remark]:
    """Samples of which several belong to one group, which the data set knows, split into parts at random."""
    flow = flow_of(program)
    grouped = dict(_grouped(program))
    for call in program.calls() if grouped else ():
        given = _split_at_random(program, flow, call)
        passed = flow.passed(given) if given is not None else []
        made = flow.value(passed[0] if len(passed) == 1 else given) if given is not None else None
        found = grouped.get(program.called(made))
        if found is not None:
            yield Remark(call, f"{short(call)} splits samples at random, and {short(found)} (line {found.lineno}) gives several of them to one group")


def _grouped(program: Program) -> Iterator[tuple[str, ast.Call]]:
    """Data sets that keep the group of each sample, where an inner loop adds several samples of one."""
    for of in data_sets(program):
        start = program.method(of, "__init__")
        for call in own(start, ast.Call) if start is not None else ():
            loops = program.loops(call)
            loop = loops[0] if loops else None
            if is_method(call, "extend") and isinstance(loop, ast.For) and isinstance(loop.target, ast.Name):
                given = names_read(call.args[0]) if call.args else set()
                if loop.target.id in given and (loop.target.id == "pid" or _GROUPS.search(loop.target.id)) and is_own(call.func.value):
                    yield of.name, call
            if not is_method(call, "append") or len(call.args) != 1 or len(loops) < 2 or not isinstance(call.args[0], ast.Name):
                continue
            outer = loops[1]
            of_outer = isinstance(outer, ast.For) and call.args[0].id in names_of(outer.target)
            if of_outer and _GROUPS.search(last_word(call.func.value)):
                yield of.name, call


def _split_at_random(program: Program, flow: Flow, call: ast.Call) -> ast.expr | None:
    """What a call splits at random: a data set, or arrays."""
    name = program.called(call)
    if name in RANDOM_SPLITS and call.args:
        return call.args[0]
    if name == SPLIT_ARRAYS and call.args:
        return None if is_false(argument(call, "shuffle")) else call.args[0]
    if name in _ORDERS and len(call.args) == 1 and is_call(call.args[0], "len") and call.args[0].args and cut_in_two(program, call):
        return call.args[0].args[0]
    local = program.local_function(call)
    return parted(program, call, local) if isinstance(local, Function) else None


def parted(program: Program, call: ast.Call, local: Function) -> ast.expr | None:
    """The data set whose length a function is given, which cuts that many numbers in random order into parts."""
    given = {name: value.args[0] for name, value in program.arguments(local, call).items() if is_call(value, "len") and value.args}
    for order in own(local, ast.Call):
        statement = program.statement(order)
        if not _is_order(program, order) or not order.args or not is_name(order.args[0]) or not isinstance(statement, ast.Assign):
            continue
        names = names_set(statement)
        parts = [one for value in returned(local) if isinstance(value, ast.Tuple) for one in value.elts if isinstance(one, ast.Subscript)]
        cut = len(parts) > 1 and all(isinstance(one.slice, ast.Slice) and is_name(one.value, *names, "") for one in parts)
        if cut and order.args[0].id in given and any(HELD_OUT.search(one.id) for one in own(program.frame(call), ast.Name)):
            return given[order.args[0].id]
    return None


def _is_order(program: Program, call: ast.Call) -> bool:
    """Whether a call draws a random order."""
    return program.called(call) in _ORDERS or (is_method(call, "permutation") and len(call.args) == 1)


def cut_in_two(program: Program, order: ast.Call) -> bool:
    """Whether a random order is cut into two parts, one of them held out: `train, val = order[:n], order[n:]`."""
    if not _is_order(program, order):
        return False
    statement = program.statement(order)
    names = names_set(statement) if isinstance(statement, ast.Assign) and not program.loops(order) else set()
    frame = program.frame(order)
    cuts = {
        "from" if taken.slice.lower is not None else "to" for taken in own(frame, ast.Subscript)
        if names & names_of(taken.value) and isinstance(taken.slice, ast.Slice)
    }
    return cuts == {"from", "to"} and any(HELD_OUT.search(one.id) or one.id in ("te", "va") for one in own(frame, ast.Name))


def _window_classes(program: Program, flow: Flow) -> Iterator[tuple[str, ast.Subscript]]:
    """Data sets whose sample number i is a window that begins at i."""
    for name, classes in program.classes.items():
        method = program.method(classes[0], "__getitem__") if len(classes) == 1 else None
        if method is None or len(method.args.args) != 2:
            continue
        index = method.args.args[1].arg
        for taken in own(method, ast.Subscript):
            window = _window(flow, taken)
            if window is not None and is_name(window[1], index) and _longer_than_one(flow, window):
                yield name, taken
                break


def _window_lists(program: Program, flow: Flow) -> Iterator[tuple[str, ast.Subscript]]:
    """Data sets that list where their windows begin, nearer to each other than a window is long."""
    for name, classes in program.classes.items():
        start, method = (program.method(classes[0], one) if len(classes) == 1 else None for one in ("__init__", "__getitem__"))
        if start is None or method is None:
            continue
        loops = [(one.target, one.iter) for one in ast.walk(start) if isinstance(one, (ast.For, ast.comprehension))]
        for target, over in loops:
            between = over.args[2:] if is_call(over, "range") else None
            apart = None if between is None else flow.number(between[0]) if between else 1.0
            listed = is_name(target) and any(
                target.id in names_read(one) for one in ast.walk(start)
                if isinstance(one, ast.Tuple) or is_method(one, "append")
            )
            slices = [*own(method, ast.Subscript), *(one for one in own(start, ast.Subscript) if is_name(target) and target.id in names_read(one))]
            for taken in slices if listed and apart is not None else ():
                lengths = [flow.number(one) for one in _lengths(taken)]
                if any(one is not None and apart is not None and apart < one for one in lengths):
                    yield name, taken


def _lengths(taken: ast.Subscript) -> Iterator[ast.expr]:
    """How long the window is that a subscript takes from a position on: `x[:, start:start + length]`."""
    for at in ast.walk(taken.slice):
        if isinstance(at, ast.Slice) and isinstance(at.lower, ast.Name) and is_binary(at.upper, ast.Add):
            yield from (other for one, other in operands(at.upper) if is_name(one, at.lower.id))


def _longer_than_one(flow: Flow, window: tuple[ast.Subscript, ast.expr, ast.expr]) -> bool:
    length = _apart(flow, window[2], window[1])
    return bool(length) and not (length is not None and set(length) == {""} and length[""] <= 1)


def _cut_one_after_the_other(
    program: Program, flow: Flow, given: ast.expr, overlapping: dict[str, ast.Subscript]
) -> ast.expr | None:
    """The window of what is split, where windows begin one step after the other."""
    passed = flow.passed(given)
    made: ast.AST = passed[0] if len(passed) == 1 else given
    part: int | None = 0
    for _ in range(8):
        one = flow.given(made) if isinstance(made, (ast.Name, ast.Attribute)) else None
        if one is not None and one.value is not None:
            made, part = one.value, one.place
        if not isinstance(made, ast.Call):
            break
        name = program.called(made)
        if name in overlapping:
            return overlapping[name]
        if name.rpartition(".")[2] in ("TensorDataset", "stack", "array", "tensor", "as_tensor", "asarray", "cat", "from_numpy", "FloatTensor") and made.args:
            made = made.args[0]
        elif is_method(made, *SHAPES, "astype") and not name:
            made = made.func.value
        elif (local := program.local_function(made)) is not None and isinstance(local, Function):
            results = [one for one in returned(local) if one is not None]
            whole = results[0] if len(results) == 1 else None
            parts = whole.elts if isinstance(whole, ast.Tuple) else [whole]
            chosen = parts[part or 0] if len(parts) > (part or 0) else None
            if chosen is None:
                return None
            made = chosen
        else:
            break
    if isinstance(made, ast.ListComp) and len(made.generators) == 1:
        return _of_range(flow, made.elt, made.generators[0].target, made.generators[0].iter)
    if isinstance(made, ast.List) and not made.elts and isinstance(given, ast.expr):
        return _appended_windows(program, flow, made)
    return None


def _appended_windows(program: Program, flow: Flow, made: ast.List) -> ast.expr | None:
    """The window that a loop over a range appends to a list."""
    names = names_set(program.statement(made))
    for loop in own(program.frame(made), ast.For):
        for node in ast.walk(loop):
            if is_method(node, "append") and len(node.args) == 1 and is_name(node.func.value, *names) and names:
                value = node.args[0].elts[0] if isinstance(node.args[0], ast.Tuple) and node.args[0].elts else node.args[0]
                return _unfolded(flow, value) or _of_range(flow, value, loop.target, loop.iter)
    return None


def _unfolded(flow: Flow, node: ast.expr) -> ast.expr | None:
    """`x.unfold(dim, size, step)` in what an expression is made of, where windows are longer than they are apart."""
    for one in flow.origins(node):
        if is_method(one, "unfold") and len(one.args) == 3:
            size, step = flow.number(one.args[1]), flow.number(one.args[2])
            if size is not None and step is not None and step < size:
                return one
    return None


def _of_range(flow: Flow, value: ast.expr, index: ast.expr, over: ast.expr) -> ast.Subscript | None:
    """A window that begins at each number of a range without gaps."""
    steps = argument(over, "", 2) if is_call(over, "range") else None
    if not is_call(over, "range") or (steps is not None and flow.number(steps) != 1) or not isinstance(index, ast.Name):
        return None
    window = _window(flow, value)
    return window[0] if window is not None and is_name(window[1], index.id) and _longer_than_one(flow, window) else None


# Class numbers -------------------------------------------------------------------------


@RULES.add("classes-interpolated", "between classes 1 and 3 interpolation finds class 2: the edges of all regions get labels that nobody gave", "resize labels with mode=\"nearest\"")
def _interpolated(program: Program) -> Iterator[Remark]:
    """Class numbers that are resized by averaging neighbours, and made whole again."""
    flow = flow_of(program)
    for call in program.calls():
        whole = is_method(call, "long") or (is_method(call, "to", "type") and call.args and program.dotted(call.args[0]) in _WHOLE)
        if not whole or not is_method(call) or program.dotted(call.func) is not None:
            continue
        made: ast.AST | None = call.func.value
        for _ in range(8):
            if isinstance(made, ast.Subscript):
                made = made.value
            elif is_method(made, *SHAPES, "round") and program.dotted(made.func) is None:
                made = made.func.value
            elif isinstance(made, ast.Call) and made.args and program.called(made) in ("torch.from_numpy", "torch.tensor", "torch.as_tensor", "torch.round"):
                made = made.args[0]
            elif made is not None and (held := flow.held(made)) is not None:
                made = held
            else:
                break
        if isinstance(made, ast.Call) and _averages_neighbours(program, made):
            yield Remark(made, f"{short(made)} averages class numbers of neighbours, and {short(call, 30)} takes the result for classes")


def _averages_neighbours(program: Program, call: ast.Call) -> bool:
    name = program.called(call)
    if name == "torch.nn.functional.interpolate":
        mode = argument(call, "mode", 3)
        return is_string(mode) and mode.value in _BETWEEN
    if name == "torch.nn.functional.grid_sample":
        mode = argument(call, "mode", 2)
        return mode is None or (is_string(mode) and mode.value in _BETWEEN)
    if name == "cv2.resize":
        return argument(call, "interpolation", 5) is None
    if name.startswith("torchvision.transforms.") and name.endswith("functional.resize"):
        mode = argument(call, "interpolation", 2)
        return mode is None or last_word(mode) in ("BILINEAR", "BICUBIC")
    return False
