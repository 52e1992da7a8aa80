"""Inputs and targets that no longer belong together: orders, augmentations and noise that are drawn apart. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

from probe.diagnose.code.data.sample_rules import paired, partners, seeded
from probe.diagnose.code.finders.rows.joined_tables import joined_by_position
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    Function,
    Scope,
    argument,
    blocks_of,
    is_method,
    is_name,
    is_own,
    is_read,
    last_word,
    names_of,
    names_read,
    own,
    own_nodes,
    pairs_of,
    parameters,
    returned,
    says,
    short,
    text_of,
)
from probe.diagnose.code.torch_losses import is_loss

RULES = Rules("data")

_PERMUTATIONS = frozenset({"torch.randperm", "numpy.random.permutation"})
_DRAWS = frozenset({
    "torch.randperm", "torch.randint", "numpy.random.permutation", "numpy.random.randint", "numpy.random.choice",
})
_RANDOM_CALLS = re.compile(r"^(torch\.(rand|randn|randint|randperm|normal|bernoulli)|random\.\w+|numpy\.random\.\w+)(_like)?$")
_TARGETS = re.compile(r"^(target|targets|label|labels|mask|masks|seg|segmentation|gt|truth|annotation|onehot|one_hot)$")
_PLACES = re.compile(r"^(mask|masks|seg|segmentation|label_map|box|boxes|bbox|bboxes|keypoints?|kpts?|kps|landmarks?|joints|corners|points|pts|coords|heatmaps?|depth)$")
"""What targets are called that lie in their input's pixels."""
_MOVES = frozenset({"flip", "fliplr", "flipud", "hflip", "vflip", "rot90", "rotate", "roll", "affine", "crop", "resized_crop", "perspective"})
_CONVERSIONS = frozenset({"from_numpy", "tensor", "as_tensor", "array", "asarray", "float", "long", "to", "astype", "unsqueeze", "contiguous", "copy", "clone", "Tensor", "stack"})
_RANDOM_MOVES = re.compile(r"^Random(HorizontalFlip|VerticalFlip|Rotation|ResizedCrop|Crop|Affine|Perspective)$")
_NOISE = ("torch.randn", "torch.randn_like")


@RULES.add("shuffled-apart", "inputs meet targets of other samples, and nothing can be learned from them", "draw one permutation and index both with it")
def _shuffled_apart(program: Program) -> Iterator[Remark]:
    """Inputs and targets put into another order by two draws, or only one of them."""
    flow = flow_of(program)
    for scope in program.scopes():
        moved: dict[str, list[tuple[ast.AST, str]]] = {}
        for node in own_nodes(scope):
            if isinstance(node, ast.Call) and len(node.args) == 1 and isinstance(node.args[0], ast.Name) and is_method(node):
                if program.called(node) in ("random.shuffle", "numpy.random.shuffle") and isinstance(program.parent.get(node), ast.Expr):
                    moved.setdefault(node.args[0].id, []).append((node, "draw"))
            elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                value = node.value
                if isinstance(value, ast.Subscript) and isinstance(value.slice, (ast.Call, ast.Name)):
                    drawn = flow.value(value.slice)
                    if isinstance(drawn, ast.Call) and program.called(drawn) in _DRAWS:
                        inline = isinstance(value.slice, ast.Call)
                        moved.setdefault(node.targets[0].id, []).append((node, "draw" if inline else f"by {ast.unparse(value.slice)}"))
        if seeded(scope):
            continue
        yield from _orders(program, scope, moved)


def _orders(program: Program, scope: ast.AST, moved: dict[str, list[tuple[ast.AST, str]]]) -> Iterator[Remark]:
    names = list(moved)
    for number, one in enumerate(names):
        for other in names[number + 1 :]:
            drawn = [found[1] for name in (one, other) for found in moved[name]]
            pair = drawn == ["draw", "draw"] and len(moved[one]) == 1
            if pair and (paired(program, scope, one, other) or paired(program, scope, other, one)):
                yield Remark(moved[other][0][0], f"{one} and {other} are drawn at random apart: what belongs together is in two orders")
        if len(moved[one]) != 1:
            continue
        node, how = moved[one][0]
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Subscript):
            continue
        index = how.removeprefix("by ")
        inline = how == "draw"
        if (inline and program.called(node.value.slice) not in _PERMUTATIONS) or one not in names_read(node.value.value):
            continue
        readers = [use for use in ast.walk(scope) if is_read(use, index)]
        if inline or len(readers) == 1:
            for other in partners(program, scope, one):
                if other not in moved:
                    yield Remark(node, f"{one} is put into a random order and {other}, which is paired with it, is not")


@RULES.add("shuffled-apart-in-a-data-set", "inputs meet targets of other samples, and nothing can be learned from them", "draw one permutation and index both with it")
def _order_of_attribute(program: Program) -> Iterator[Remark]:
    """A data set that puts one of the things it takes samples from into a random order, and not the others."""
    for of in program.everywhere(ast.ClassDef):
        getter = program.method(of, "__getitem__")
        if getter is None:
            continue
        taken = {ast.unparse(one.value) for one in ast.walk(getter) if isinstance(one, ast.Subscript) and isinstance(one.slice, ast.Name)}
        moved = [
            node for node in ast.walk(of)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute) and isinstance(node.value, ast.Subscript)
            and program.called(node.value.slice) in _PERMUTATIONS and ast.unparse(node.value.value) == ast.unparse(node.targets[0])
        ]
        names = {ast.unparse(node.targets[0]) for node in moved}
        for node in moved:
            name = ast.unparse(node.targets[0])
            others = sorted(one for one in taken - names if one.startswith("self."))
            if name in taken and others:
                yield Remark(node, f"{name} is put into a random order and {others[0]}, which is paired with it, is not")


@RULES.add("augmented-apart", "inputs meet targets that were changed in another way", "draw once, and do the same to both")
def _augmented_apart(program: Program) -> Iterator[Remark]:
    """A function that draws how it changes what it is given, called once for the input and once for its target."""
    flow = flow_of(program)
    for scope in program.scopes():
        if seeded(scope):
            continue
        for one, other in _beside_each_other(scope):
            function = program.local_function(one) or _given_function(flow, one)
            again = program.local_function(other) or _given_function(flow, other)
            if function is None or function is not again or not one.args or not other.args:
                continue
            if not _is_target(program, other.args[0]) or _is_target(program, one.args[0]):
                continue
            drawn = _draws(flow, function)
            if drawn is not None:
                yield Remark(other, f"{short(one)} and {short(other)} each draw their own {short(drawn)}: the target is changed in another way than its input")


@RULES.add("moved-alone", "the target no longer lies where the input shows it", "do the same to the target, with the same draw")
def _moved_alone(program: Program) -> Iterator[Remark]:
    """An input that is flipped, turned or cut at random, beside a target with places (a mask, boxes) that is not."""
    flow = flow_of(program)
    for scope in program.scopes():
        assigned = [(target.id, value, node) for node in own(scope, ast.Assign) for target, value in pairs_of(node) if is_name(target)]
        parts = [(target.value.id, value, node) for node in own(scope, ast.Assign) for target, value in pairs_of(node) if isinstance(target, ast.Subscript) and is_name(target.value)]
        changed = {name for name, _, _ in parts} | {text_of(node.target).partition("[")[0] for node in own(scope, ast.AugAssign)}
        changed |= {
            one.id for node in own(scope, ast.Assign) for target in node.targets if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Call)
            for one in target.elts if isinstance(one, ast.Name) and one.id in names_read(node.value)
        }  # joints, visible = mirrored(joints, visible)
        assigned += parts  # x[drawn] = x[drawn].flip(-1)
        moved = {name: node for name, value, node in assigned if (_moves(flow, value, name) and _at_random(flow, node)) or _moved_by(flow, value, name)}
        remarked = False
        for together in _given_together(program, scope) if moved else ():
            places = [name for name in together if _PLACES.match(name)]
            inputs = [name for name in together if name in moved and name not in places]
            still = [name for name in places if name not in changed and not _made_of(scope, name, changed) and not any(of == name and _may_move(value, name) for of, value, _ in assigned)]
            if inputs and len(still) == len(places) == 1 and not remarked and not _unpacked_together(scope, inputs[0], still[0]):
                remarked = True
                yield Remark(moved[inputs[0]], f"{short(moved[inputs[0]])} moves what {inputs[0]} shows, and {still[0]}, which belongs to it, stays as it was")


def _made_of(scope: Scope, name: str, changed: set[str]) -> bool:
    """Whether a variable is computed from one that was changed with the input: a mask that is drawn from the boxes."""
    return any(not changed.isdisjoint(names_read(node.value)) for node in own(scope, ast.Assign) for target in node.targets if name in names_of(target))


@RULES.add("filtered-alone", "each input meets the target of another row: from the first row that is left out on, they are shifted against each other", "leave out the same rows of both: x, y = x[kept], y[kept]")
def _filtered_alone(program: Program) -> Iterator[Remark]:
    """Rows that are left out of the inputs of a data set by what they hold, and not out of its targets."""
    flow = flow_of(program)
    for function in program.everywhere(ast.FunctionDef):
        of = program.class_of(function)
        item = program.method(of, "__getitem__") if isinstance(of, ast.ClassDef) else None
        given = {one.arg for one in parameters(function)} - {"self"}
        if item is None or not given:
            continue
        picked = [one for one in own(function, ast.Subscript) if is_name(one.value, *given) and is_name(one.slice)]
        for node in own(function, ast.Assign):
            target, value = node.targets[0], node.value
            if value not in picked or not isinstance(value, ast.Subscript) or not is_name(value.slice) or not is_name(target, text_of(value.value)):
                continue
            name, mask = target.id, value.slice.id
            whole = given - {name} - {text_of(one.value) for one in picked if is_name(one.slice, mask)}
            beside = [one for one in sorted(whole) if _same_row(function, item, name, one)]
            handed_on = any(mask in names_read(one) for one in returned(function) if one is not None)
            if beside and not handed_on and _is_of_values(flow.value(value.slice), name):
                yield Remark(node, f"{short(node)} leaves out rows, and {beside[0]}, which is read beside it, keeps all of its own")


def _is_of_values(mask: ast.AST, name: str) -> bool:
    """Whether an expression picks rows by what a variable holds: a comparison, or isnan and the like."""
    return name in names_read(mask) and any(isinstance(one, (ast.Compare, ast.Invert)) or is_method(one, "isnan", "isfinite", "notna", "any", "all") for one in ast.walk(mask))


def _same_row(function: Function, item: Function, *names: str) -> bool:
    """Whether a data set gives the same element of what was made from each of these variables."""
    assigned = [pair for node in own(function, ast.Assign) for pair in pairs_of(node)]
    kept = {name: {target.attr for target, value in assigned if is_own(target) and name in names_read(value)} for name in names}
    read = {(one.value.attr, text_of(one.slice)) for one in own(item, ast.Subscript) if is_own(one.value)}
    rows = [{index for attribute, index in read if attribute in kept[name]} for name in names]
    return bool(set.intersection(*rows))


@RULES.add("flipped-along-another-axis", "the target no longer lies where the input shows it", "flip both along the same axis")
def _flipped_apart(program: Program) -> Iterator[Remark]:
    """An input and its mask that are flipped together, along axes that cannot be the same."""
    flow = flow_of(program)
    for scope in program.scopes():
        matched: dict[tuple[str, str], dict[_Axis, _Axis]] = {}
        for block in [one for one in own_nodes(scope) if isinstance(one, ast.If)]:
            flips = [(target.id, axis, node) for node in block.body if isinstance(node, ast.Assign) for target, value in pairs_of(node)
                     if is_name(target) and (axis := _flip(flow, value, target.id)) is not None]
            for mask, axis, node in flips:
                other = next((one for one in flips if _PLACES.match(mask) and not _PLACES.match(one[0])), None)
                if other is None or sum(one[0] in (mask, other[0]) for one in flips) != 2:
                    continue
                before = matched.setdefault((other[0], mask), {})
                if _unlike(other[1], axis) or before.get(other[1], axis) != axis or any(b == axis and a != other[1] for a, b in before.items()):
                    yield Remark(node, f"{short(node)} beside {short(other[2])}: the two are flipped along different axes")
                    break
                before[other[1]] = axis


_Axis = str | int


def _flip(flow: Flow, value: ast.AST, name: str) -> _Axis | None:
    """The axis along which an expression flips a variable: a number, or the name of a function that flips along one."""
    while is_method(value, "copy", "contiguous", "clone"):
        value = value.func.value
    if not isinstance(value, ast.Call) or name not in names_read(value):
        return None
    word, free = last_word(value.func), flow.program.called(value) != ""
    if word in ("hflip", "vflip", "fliplr", "flipud"):
        return word
    given = (argument(value, "dims", int(free)) or argument(value, "axis", int(free))) if word == "flip" else None
    only = given.elts[0] if isinstance(given, (ast.Tuple, ast.List)) and len(given.elts) == 1 else given
    number = None if only is None else flow.number(only)
    return None if number is None else int(number)


def _unlike(one: _Axis, mask: _Axis) -> bool:
    """Whether an input and its mask cannot be flipped along these axes alike. A mask may lack the input's first axes."""
    if isinstance(one, int) and isinstance(mask, int):
        return one != mask if one < 0 and mask < 0 else mask > one >= 0
    return isinstance(one, str) and isinstance(mask, str) and one != mask


def _moved_by(flow: Flow, value: ast.AST, name: str) -> bool:
    """Whether a function of the program that gets a variable alone moves its content at random."""
    local = flow.program.local_function(value) if isinstance(value, ast.Call) else None
    given = flow.program.arguments(local, value) if local is not None and isinstance(value, ast.Call) else {}
    own_name = next((word for word, one in given.items() if is_name(one, name)), None)
    if local is None or own_name is None or any(_PLACES.match(one) for word in given for one in (word, *names_read(given[word]))):
        return False
    changes = [(target, value, node) for node in own(local, ast.Assign) for target, value in pairs_of(node) if is_name(target, own_name)]
    return any(_moves(flow, value, own_name) and _at_random(flow, node) for _, value, node in changes)


def _given_together(program: Program, scope: ast.AST) -> Iterator[list[str]]:
    """The names of each tuple or dict that a function returns, and those that one loss and its input read."""
    for value in returned(scope) if isinstance(scope, Function) else ():
        elements = value.values if isinstance(value, ast.Dict) else value.elts if isinstance(value, ast.Tuple) else []
        yield [name for one in elements if one is not None for name in names_read(one)]
    for call in own(scope, ast.Call):
        if is_loss(program, call) and len(call.args) >= 2 and isinstance(call.args[1], ast.Name):
            yield [call.args[1].id, *(name for node in own(scope, ast.Call) if program.family(node.func) == "module" for name in names_read(node))]


def _unpacked_together(scope: ast.AST, one: str, other: str) -> bool:
    """Whether a call changes both: `image, mask = turned(image, mask)`."""
    return any(
        {one, other} <= names_of(target) and isinstance(node.value, ast.Call) and {one, other} & names_read(node.value)
        for node in own(scope, ast.Assign) for target in node.targets if isinstance(target, ast.Tuple)
    )


def _moves(flow: Flow, value: ast.AST, name: str) -> bool:
    """Whether an expression is a variable with its content in other places."""
    for one in ast.walk(value):
        if isinstance(one, ast.Call) and name in names_read(one):
            if last_word(one.func) in _MOVES:
                return True
            composed = flow.value(one.func)
            if any(isinstance(inner, ast.Call) and _RANDOM_MOVES.match(last_word(inner.func)) for inner in ast.walk(composed)):
                return True
        if isinstance(one, ast.Subscript) and is_name(one.value, name) and any(
            isinstance(inner, ast.Slice) and inner.step is not None and text_of(inner.step) == "-1" for inner in ast.walk(one.slice)
        ):
            return True
    return False


def _may_move(value: ast.AST, name: str) -> bool:
    """Whether an expression may be a variable with its content in other places; a conversion is not."""
    calls = [one for one in ast.walk(value) if isinstance(one, ast.Call)]
    computed = any(isinstance(one, ast.BinOp) and name in names_read(one) for one in ast.walk(value))
    return name in names_read(value) and (computed or not (calls and all(last_word(one.func) in _CONVERSIONS for one in calls)))


def _at_random(flow: Flow, node: ast.Assign) -> bool:
    """Whether a draw decides if an assignment runs, or is part of it."""
    program = flow.program
    tests = [one.test for one in program.parents(node) if isinstance(one, ast.If)]
    composed = [flow.value(one.func) for one in ast.walk(node.value) if isinstance(one, ast.Call)]
    return any(
        isinstance(inner, ast.Call) and (
            _RANDOM_CALLS.match(program.called(inner)) or _RANDOM_MOVES.match(last_word(inner.func))
            or (is_method(inner, "random", "uniform", "integers", "choice") and says(inner.func.value, "rng", "generator"))
        )
        for around in [*tests, node.value, *composed] for part in flow.origins(around) for inner in ast.walk(part)
    )


def _is_target(program: Program, node: ast.AST) -> bool:
    """Whether an expression is a target by its name, or by that name's use in a loss."""
    names = names_of(node) | {one.attr for one in ast.walk(node) if is_own(one)}
    encoded = any(is_method(one, "one_hot") for one in ast.walk(node))
    return encoded or any(map(_TARGETS.match, names)) or any(
        is_loss(program, call) and len(call.args) >= 2 and is_name(call.args[1], *names) for call in program.calls() if names
    )


def _given_function(flow: Flow, call: ast.Call) -> Function | None:
    """The function of the program that draws, where an attribute is called that its object was given."""
    program = flow.program
    given = flow.values(flow.key(call.func)) if is_own(call.func) else []
    passed = [one for value in given for one in flow.passed(value)]
    names = [one.id for one in passed if isinstance(one, ast.Name)]
    found = [function for name in names for function in program.functions.get(name, []) if program.class_of(function) is None]
    for made in (flow.value(one) for one in passed):
        classes = program.classes.get(program.called(made), [])
        method = program.method(classes[0], "__call__") if len(classes) == 1 else None
        found += [method] if method is not None else []
    return next((one for one in found if _draws(flow, one) is not None), None)


def _beside_each_other(scope: ast.AST) -> Iterator[tuple[ast.Call, ast.Call]]:
    """Pairs of calls that stand beside each other in a tuple, or whose results two assignments in a row take."""
    for node in own(scope, ast.Tuple):
        calls = [one for one in node.elts if isinstance(one, ast.Call)]
        yield from pairwise(calls)
    around = scope.body if isinstance(scope, Function) else []
    for block in [around, *(block for node in own_nodes(scope) for block in blocks_of(node) if not isinstance(node, Scope))]:
        for one, other in pairwise(block):
            if isinstance(one, ast.Assign) and isinstance(other, ast.Assign) and isinstance(other.value, ast.Call):
                yield from ((call, other.value) for call in ast.walk(one.value) if isinstance(call, ast.Call))


def _draws(flow: Flow, function: Function) -> ast.Call | None:
    """The random numbers that decide how a function changes its first parameter and what it returns."""
    program = flow.program
    calls = [one for one in own(function, ast.Call) if _RANDOM_CALLS.match(program.called(one))]
    given = [one for one in parameters(function) if one.arg != "self"]
    if not calls or not given or argument(calls[0], "generator") is not None:
        return None
    reads = any(is_read(one, given[0].arg) for value in returned(function) if value is not None for one in flow.origins(value))
    return calls[0] if reads else None


@RULES.add("target-of-nothing", "the target cannot be predicted from the input: the best output is its mean", "keep what was drawn, and use it for both")
def _fresh_noise(program: Program) -> Iterator[Remark]:
    """Noise that is drawn as the target of a loss, and that nothing else reads."""
    flow = flow_of(program)
    for scope in program.scopes():
        for node in own(scope, ast.Assign):
            for target, value in pairs_of(node):
                if not is_name(target) or program.called(value) not in _NOISE:
                    continue
                uses = [one for one in own_nodes(scope) if is_read(one, target.id)]
                losses = {call for one in uses if isinstance(call := program.parent.get(one), ast.Call) and is_loss(program, call)}
                compared = [call for call in losses if len(call.args) >= 2 and any(is_name(one, target.id) for one in call.args[:2])]
                rest = [one for call in compared for one in call.args[:2] if not is_name(one, target.id)]
                made = any(isinstance(one, ast.Call) and program.family(one.func) == "module" for value in rest for one in flow.origins(value))
                if uses and len(compared) == len(uses) and (made or all(isinstance(one, (ast.Call, ast.Name)) for one in rest)):
                    yield Remark(node, f"{target.id} is drawn at random, and only {short(compared[0])} reads it: it is in no input")


@RULES.add("one-object-twice", "what looks like two values is one object under two names", "call it once for each: [f(x) for _ in range(2)]")
def _one_object(program: Program) -> Iterator[Remark]:
    """`a, b = [f(x)] * 2`: the call runs once."""
    for node in program.everywhere(ast.Assign):
        value = node.value
        if not isinstance(node.targets[0], ast.Tuple) or not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Mult):
            continue
        listed = next((one for one in (value.left, value.right) if isinstance(one, (ast.List, ast.Tuple))), None)
        if listed is None or len(listed.elts) != 1 or not isinstance(listed.elts[0], ast.Call):
            continue
        call = listed.elts[0]
        if program.local_function(call) is not None or program.family(call) in ("tensor", "array", "module") or is_method(call, "clone", "copy"):
            yield Remark(node, f"{short(value)} calls {short(call.func)} once: {short(node.targets[0])} are the same object")


RULES.add(
    "joined-by-position",
    "inputs stand beside the targets of other rows, wherever the two tables are not in one order",
    "join by name: put both into one order first (order = np.argsort(names)), or look each name up: pandas.merge(left, right, on='id')",
)(joined_by_position)
