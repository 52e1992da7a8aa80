"""Data sets, loaders, splits, augmentation: one thing in two roles, a random choice made twice. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

from probe.diagnose.code.data.data_flow import (
    HELD_OUT,
    LOADER,
    RANDOM_SPLITS,
    SPLIT_ARRAYS,
    TRAINING,
    loader_loops,
    loaders_of,
    output_of,
    steps_to,
    trains,
)
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    argument,
    is_attribute,
    is_binary,
    is_call,
    is_false,
    is_method,
    is_name,
    is_string,
    is_true,
    iterated,
    names_read,
    names_set,
    operands,
    own,
    own_nodes,
    pairs_of,
    short,
    text_of,
)
from probe.diagnose.code.torch_losses import is_loss

RULES = Rules("data")

"""Classes of sklearn that learn statistics of the samples. Those that only number categories are left out."""
_RANDOM = re.compile(
    r"\.(Random(?!Apply$)\w+|ColorJitter|AutoAugment|RandAugment|TrivialAugmentWide|AugMix|HorizontalFlip|VerticalFlip"
    r"|ShiftScaleRotate|CoarseDropout|ElasticTransform)$"
)
_SEEDS = re.compile(r"seed|set_?(rng_)?state$", re.I)


def _split_parts(flow: Flow, node: ast.AST) -> list[str]:
    """The names of the parts that a split gives, where it is unpacked."""
    statement = flow.program.parent.get(node)
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Tuple):
        return [ast.unparse(one) for one in statement.targets[0].elts]
    return []


@RULES.add("split-drawn-twice", "the random choice is another each time", "split once and keep both parts, or give each split the same seeded generator")
def _drawn_twice(program: Program) -> Iterator[Remark]:
    """A random split that is made anew for each part, or for inputs and targets apart."""
    flow = flow_of(program)
    for scope in program.scopes():
        if seeded(scope):
            continue
        kept: dict[str, list[tuple[ast.Call, int, str]]] = {}
        arrays: list[ast.Call] = []
        for node in own(scope, ast.Call):
            name = program.called(node)
            if name in RANDOM_SPLITS and argument(node, "generator", 2) is None and node.args:
                place = _taken(program, node)
                if place is not None:
                    kept.setdefault(_made(flow, node.args[0]), []).append((node, *place))
            elif name == SPLIT_ARRAYS and len(node.args) == 1 and argument(node, "random_state", 9) is None:
                arrays.append(node)
        for found in kept.values():
            for one, other in pairwise(found):
                if one[1] != other[1]:
                    said = f"{one[2]} and {other[2]} come from two random splits: samples of one are in the other"
                    yield Remark(other[0], said)
        for one_call, other_call in pairwise(arrays):
            parts = _split_parts(flow, one_call), _split_parts(flow, other_call)
            of_the_first = is_name(other_call.args[0], *parts[0])
            if parts[0] and parts[1] and not of_the_first and paired(program, scope, parts[0][0], parts[1][0]):
                said = f"{short(one_call.args[0])} and {short(other_call.args[0])} are split at random apart: {parts[0][0]} and {parts[1][0]} hold different rows"
                yield Remark(other_call, said)


def _taken(program: Program, call: ast.Call) -> tuple[int, str] | None:
    """Which one part of a split a statement keeps, and under what name."""
    around = program.parent.get(call)
    if isinstance(around, ast.Subscript) and isinstance(around.slice, ast.Constant) and isinstance(around.slice.value, int):
        statement = program.parent.get(around)
        name = ast.unparse(statement.targets[0]) if isinstance(statement, ast.Assign) else f"part {around.slice.value}"
        return around.slice.value, name
    if isinstance(around, ast.Assign) and isinstance(around.targets[0], ast.Tuple):
        named = [(n, one.id) for n, one in enumerate(around.targets[0].elts) if isinstance(one, ast.Name) and not one.id.startswith("_")]
        if len(named) == 1:
            return named[0]
    return None


def _made(flow: Flow, node: ast.expr) -> str:
    """What a data set is: the call that makes it without its transform, or its own text."""
    value = flow.value(node)
    if isinstance(value, ast.Call):
        given = [ast.unparse(one) for one in value.args]
        given += [f"{one.arg}={ast.unparse(one.value)}" for one in value.keywords if one.arg not in ("transform", "transforms", "target_transform")]
        return f"{ast.unparse(value.func)}({', '.join(given)})"
    return ast.unparse(node)


def paired(program: Program, scope: ast.AST, one: str, other: str) -> bool:
    """Whether two names go side by side into a data set, a loss or a function that pairs them."""
    for node in ast.walk(scope):
        if not isinstance(node, ast.Call):
            continue
        name = program.called(node).rpartition(".")[2]
        data = name in ("TensorDataset", "zip", "train_test_split") or program.family(node) == "dataset"
        if data or is_call(node, "zip"):
            together = {name for given in node.args for name in names_read(given)}
            if {one, other} <= together:
                return True
        loss = is_loss(program, node) or name.endswith(("_loss", "cross_entropy", "binary_cross_entropy_with_logits"))
        if loss and len(node.args) >= 2:
            first, second, flow = node.args[0], node.args[1], flow_of(program)
            names = names_read(first) | {name for step in steps_to(flow, first) for name in names_read(step)}
            names |= {name for step in steps_to(flow, output_of(flow, first)) for name in names_read(step)}
            if one in names and other in names_read(second) and other not in names:
                return True
    return False


@RULES.add("default-argument-grows", "what is reported lags behind, an average over all calls since the start", "make the list inside of the function")
def _grown_default(program: Program) -> Iterator[Remark]:
    """Counts of an evaluation that live in a default argument, which all calls share."""
    flow = flow_of(program)
    loops = list(loader_loops(flow))
    for function in program.everywhere(ast.FunctionDef):
        arguments = [*function.args.posonlyargs, *function.args.args]
        given = [*zip(arguments[len(arguments) - len(function.args.defaults) :], function.args.defaults, strict=True)]
        given += [(one, value) for one, value in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if value is not None]
        own = [one for one in loops if program.scope(one) is function]
        for one, value in given:
            if not isinstance(value, (ast.List, ast.Dict)) or not own or any(
                isinstance(node, ast.Call) and ast.unparse(node.func) == f"{one.arg}.clear" for node in ast.walk(function)
            ):
                continue
            for node in ast.walk(own[0]):
                grown = isinstance(node, ast.Call) and ast.unparse(node.func) in (f"{one.arg}.append", f"{one.arg}.extend")
                grown = grown or (isinstance(node, ast.AugAssign) and ast.unparse(node.target) == one.arg)
                if grown:
                    yield Remark(node, f"{one.arg} is a default argument of {function.name}, made once: it still holds what all calls before have put in")
                    break


@RULES.add("targets-not-shifted", "the model copies its input and learns nothing of the text", "take the targets one token later: ids[i + 1 : i + 1 + length]")
def _not_shifted(program: Program) -> Iterator[Remark]:
    """Targets of a language model that are the very slice that it reads."""
    flow = flow_of(program)
    calls = [program.called(call) for call in program.calls()]
    made = {name.rpartition(".")[2] for name in calls}
    if not {"Embedding"} & made or not {"CrossEntropyLoss", "cross_entropy"} & made:
        return
    for node in program.everywhere(ast.Slice, ast.keyword):
        if isinstance(node, ast.keyword) and node.arg == "labels":
            return
        if isinstance(node, ast.Slice) and (flow.number(node.lower) == 1 or flow.number(node.upper) == -1):
            return
    for node in program.everywhere(ast.Return):
        if not isinstance(node.value, ast.Tuple) or len(node.value.elts) != 2:
            continue
        inputs, targets = (steps_to(flow, one)[-1] for one in node.value.elts)
        if ast.unparse(inputs) == ast.unparse(targets) and any(
            isinstance(one, ast.Slice) and one.lower is not None and one.upper is not None and names_read(one.lower) for one in ast.walk(inputs)
        ):
            yield Remark(node, f"inputs and targets are the same slice, {short(inputs)}: nothing shifts the targets, so each token is to predict itself")


def partners(program: Program, scope: ast.AST, name: str) -> list[str]:
    """The names that stand with this one in a TensorDataset, once each."""
    found: list[str] = []
    for node in ast.walk(scope):
        if isinstance(node, ast.Call) and program.called(node).endswith("TensorDataset"):
            texts = [ast.unparse(one.value if isinstance(one, ast.Subscript) else one) for one in node.args]
            if name in texts:
                found += [one for one in texts if one != name and one.isidentifier()]
    return list(dict.fromkeys(found))


def seeded(scope: ast.AST) -> bool:
    """Whether a seed or a state is set more than once: two shuffles may then be alike on purpose."""
    return sum(_SEEDS.search(ast.unparse(call.func)) is not None for call in own(scope, ast.Call)) > 1


@RULES.add("transform-of-shared-base", "a Subset has no transform of its own: all parts read the one data set below", "make a data set for each role, with its own transform, and cut both by the same indices")
def _shared_base(program: Program) -> Iterator[Remark]:
    """A transform set through one part of a split, which all parts share; or on the part itself, which has none."""
    flow = flow_of(program)
    yield from _set_for_each_part(program, flow)
    for node in program.everywhere(ast.Assign):
        target = node.targets[0]
        if not is_attribute(target, "transform", "transforms", "target_transform", "augment"):
            continue
        base = target.value.value if is_attribute(target.value, "dataset") else target.value
        one = flow.given(base)
        if one is None or not isinstance(one.value, ast.Call) or program.called(one.value) not in RANDOM_SPLITS or one.place is None:
            continue
        if base is target.value:
            yield Remark(node, f"{short(target)} is set on a part of random_split, which reads no {target.attr}: that of the data set it was cut from stays")
        else:
            others = [name for name in _split_parts(flow, one.value) if name not in (ast.unparse(base), "_")]
            if others and not _copied(flow, base):
                yield Remark(node, f"{short(target)} is that of the one data set under {ast.unparse(base)} and {others[0]}: both get the {target.attr} that is set last")


def _set_for_each_part(program: Program, flow: Flow) -> Iterator[Remark]:
    """A function that sets an option of the data set under the part that it is given, called for two parts of one split."""
    for node in program.everywhere(ast.Assign):
        target, function = node.targets[0], program.function_of(node)
        if not isinstance(target, ast.Attribute) or not is_attribute(target.value, "dataset") or not is_name(target.value.value) or function is None:
            continue
        given = [
            (call, flow.given(part), told) for call in program.calls() if program.local_function(call) is function
            if (part := program.arguments(function, call).get(target.value.value.id)) is not None
            for told in [program.arguments(function, call).get(node.value.id if is_name(node.value) else "")]
        ]
        for call, one, told in given:
            for other, again, value in given:
                parts = one is not None and again is not None and one.place != again.place and one.value is again.value and isinstance(one.value, ast.Call)
                if parts and told is not None and value is not None and text_of(told) != text_of(value) and call.lineno < other.lineno:
                    yield Remark(other, f"{short(other)} sets {target.attr} of the one data set under both parts, also under that of {short(call, 40)} (line {call.lineno})")


def _copied(flow: Flow, part: ast.expr) -> bool:
    """Whether the data set under a part was replaced by a copy."""
    text = f"{ast.unparse(part)}.dataset"
    return any(
        isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == text for node in flow.program.everywhere(ast.Assign)
    )


def _is_random(flow: Flow, transform: ast.AST | None) -> str | None:
    """The random augmentation in a transform that is written in the program; None where there is none, or
    where it is not known."""
    value = flow.value(transform)
    if not isinstance(value, ast.Call) or not flow.program.called(value).startswith(("torchvision.", "albumentations.")):
        return None
    for one in ast.walk(value):
        if isinstance(one, ast.Call) and (found := _RANDOM.search("." + flow.program.called(one).rpartition(".")[2])):
            return found.group(1)
    return None


@RULES.add("held-out-augmented", "the score is that of distorted samples, and differs from evaluation to evaluation", "give the held-out data a transform without random parts")
def _augmented(program: Program) -> Iterator[Remark]:
    """Random augmentation that reaches held-out data."""
    flow = flow_of(program)
    for call in program.calls():
        made = _random_of(flow, call)
        if made is None:
            continue
        train = argument(call, "train")
        split = next((one.value for one in call.keywords if one.arg in ("split", "image_set")), None)
        held = is_false(train)
        held = held or (is_string(split) and HELD_OUT.search(split.value) is not None)
        if held and not _trained_on(flow, call):
            yield Remark(call, f"the held-out data of {short(call.func)} get the random {made}: each evaluation sees other images")
    for call, drawn in _changed_by_chance(flow):
        yield Remark(call, f"{short(call)} changes the image that is judged by the random {drawn}: each time another answer is possible")
    for call in program.calls():
        if program.called(call) not in RANDOM_SPLITS or not call.args:
            continue
        value = flow.value(call.args[0])
        made = _random_of(flow, value) if isinstance(value, ast.Call) else None
        parts = [name for name in _split_parts(flow, call) if name != "_"]
        if made is None or len(parts) < 2 or any(f"{name}.dataset" in text for name in parts for text in _texts(program, call)):
            continue
        held_out = next((name for name in parts[1:] if HELD_OUT.search(name.rpartition(".")[2]) or _in_order_beside(program, parts[0], name)), None)
        if held_out is not None:
            yield Remark(call, f"{held_out} is cut from a data set with the random {made}: the held-out samples are augmented like those of the training")


def _changed_by_chance(flow: Flow) -> Iterator[tuple[ast.Call, str]]:
    """The calls of a transform with random parts on an image that is read to be judged: once, without gradients."""
    program = flow.program
    for call in program.calls():
        function = program.function_of(call)
        if function is None or not call.args or program.called(call) or function.name.startswith("__"):
            continue
        random = _is_random(flow, call.func) if program.family(call.func) not in ("module", "tensor") else None
        repeated = any(isinstance(one, (ast.For, ast.While, ast.ListComp, ast.GeneratorExp)) for one in program.parents(call))
        judged = program.without_gradient(call) or any(is_method(one, "eval") for one in own(function, ast.Call))
        if random is not None and not repeated and judged and not trains(program, function) and any(program.called(one) in ("PIL.Image.open", "cv2.imread") for one in flow.origins(call.args[0])):
            yield call, random


def _in_order_beside(program: Program, first: str, name: str) -> bool:
    """Whether a part goes into a loader that does not shuffle, and the first part into one that does."""
    loaders = {ast.unparse(call.args[0]): call for call in program.calls() if program.called(call) == LOADER and call.args}
    if first not in loaders or name not in loaders:
        return False
    other = argument(loaders[name], "shuffle", 2)
    return is_true(argument(loaders[first], "shuffle", 2)) and (other is None or is_false(other))


def _texts(program: Program, node: ast.AST) -> list[str]:
    """The targets of all assignments to attributes in the file of a node."""
    source = program.source_of[node]
    return [
        ast.unparse(one.targets[0]) for one in ast.walk(source.tree)
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Attribute)
    ]


def _random_of(flow: Flow, call: ast.Call) -> str | None:
    given = next((one.value for one in call.keywords if one.arg in ("transform", "transforms")), None)
    return None if given is None else _is_random(flow, given)


def _trained_on(flow: Flow, call: ast.Call) -> bool:
    """Whether a data set, by the name it is given, goes into a loader whose loop trains."""
    for loop in loader_loops(flow):
        for loader in loaders_of(flow, iterated(loop)):
            if loader.args and flow.value(loader.args[0]) is call and trains(flow.program, loop):
                return True
    return False


@RULES.add("trained-on-the-whole", "the validation says nothing about new data", "give the loader the training part")
def _whole_and_part(program: Program) -> Iterator[Remark]:
    """Training on the data set that a held-out part was cut from."""
    flow = flow_of(program)
    for call in program.calls():
        if program.called(call) not in RANDOM_SPLITS or not call.args or not isinstance(call.args[0], ast.Name):
            continue
        statement = program.parent.get(call)
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Tuple):
            continue
        parts = [one for one in statement.targets[0].elts if isinstance(one, ast.Name)]
        if len(parts) < 2 or any(is_name(part, call.args[0].id) for part in parts):
            continue
        scope = program.scope(call)
        loaders = [
            one for one in own_nodes(scope)
            if isinstance(one, ast.Call) and program.called(one) == LOADER and one.args and isinstance(one.args[0], ast.Name)
        ]
        fed = {one.args[0].id: one for one in loaders if isinstance(one.args[0], ast.Name)}
        whole = fed.get(call.args[0].id)
        unread = not any(use.lineno > call.lineno for use in flow.reads.get((scope, parts[0].id), []) if isinstance(use, ast.Name))
        if whole is not None and unread and parts[1].id in fed and is_true(argument(whole, "shuffle", 2)):
            yield Remark(whole, f"the loader goes over all of {call.args[0].id}, {parts[1].id} included, and {parts[0].id} is never read")


@RULES.add("held-out-rows-trained-on", "the validation says nothing about new data", "cut the parts so that they share no row")
def _overlapping(program: Program) -> Iterator[Remark]:
    """Training and held-out slices of one thing that share rows."""
    flow = flow_of(program)
    yield from _drawn_anew(flow)
    for scope in program.scopes():
        cut: list[tuple[ast.Assign, str, str, ast.expr | None, ast.expr | None]] = []
        for node in own_nodes(scope):
            if not isinstance(node, ast.Assign):
                continue
            for target, value in pairs_of(node):
                where = _rows(value)
                if isinstance(target, ast.Name) and where is not None and target.id != where[0]:
                    cut.append((node, target.id, *where))
        for one in cut:
            for other in cut:
                if one[2] != other[2] or not TRAINING.search(one[1]) or not HELD_OUT.search(other[1]) or TRAINING.search(other[1]) or HELD_OUT.search(one[1]):
                    continue
                if TRAINING.sub("", one[1]).strip("_") != HELD_OUT.sub("", other[1]).strip("_"):
                    continue
                between = range(*sorted((one[0].lineno, other[0].lineno)))
                if any(node.lineno in between and node is not one[0] and one[2] in names_set(node) for node in own(scope, ast.Assign)):
                    continue
                if _share_rows(flow, one[3:], other[3:]):
                    yield Remark(other[0], f"{one[1]} and {other[1]} share rows of {one[2]}: what is evaluated on was trained on")


def _drawn_anew(flow: Flow) -> Iterator[Remark]:
    """The two ends of one order, which is drawn once more between them."""
    program = flow.program
    ends: dict[tuple[ast.AST, str], list[tuple[ast.Subscript, ast.Slice]]] = {}
    for node in program.everywhere(ast.Subscript):
        if isinstance(node.value, ast.Name) and isinstance(node.slice, ast.Slice) and isinstance(node.ctx, ast.Load):
            ends.setdefault((program.scope(node), node.value.id), []).append((node, node.slice))
    for (scope, name), found in ends.items():
        for one, first in found:
            for other, second in found:
                if first.lower is not None or first.upper is None or second.lower is None or ast.unparse(first.upper) != ast.unparse(second.lower) or seeded(scope):
                    continue
                made, again = flow.held(one.value), flow.held(other.value)
                drawn = program.called(made) in ("torch.randperm", "numpy.random.permutation") and not any(word.arg == "generator" for word in getattr(made, "keywords", []))
                if made is not None and again is not None and made is not again and drawn and ast.dump(made) == ast.dump(again):
                    yield Remark(other, f"{short(one)} and {short(other)} are parts of two orders: {name} is drawn anew in line {again.lineno}, and both parts share rows")
                    return


def _rows(node: ast.expr) -> tuple[str, ast.expr | None, ast.expr | None] | None:
    """The thing and the bounds of a slice over its first dimension; a plain name is all of it."""
    if isinstance(node, ast.Name):
        return node.id, None, None
    if not isinstance(node, ast.Subscript) or not isinstance(node.value, (ast.Name, ast.Attribute)):
        return None
    part = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
    if not isinstance(part, ast.Slice) or part.step is not None:
        return None
    return ast.unparse(node.value), part.lower, part.upper


def _share_rows(flow: Flow, one: tuple[ast.expr | None, ...], other: tuple[ast.expr | None, ...]) -> bool:
    """Whether two slices overlap for certain, and by half of the shorter one where their lengths are known."""
    (low, high), (from_, to) = one, other
    if low is None and high is None and (from_ is not None or to is not None):
        return True
    if low is None and from_ is None and high is not None and to is not None:
        first, second = flow.number(high), flow.number(to)
        return _both_from_the_start(flow, high, to) or (first is not None and second is not None and (first > 0) == (second > 0))
    if low is None and high is not None and from_ is not None and to is None:
        cut, begin = flow.number(high), flow.number(from_)
        if cut is None or begin is None:
            share, start = _share_of(flow, high), _share_of(flow, from_)
            return share is not None and start is not None and share[0] == start[0] and share[1] > start[1]
        return cut < 0 and begin < 0 and cut > begin / 2
    return False


def _both_from_the_start(flow: Flow, one: ast.expr, other: ast.expr) -> bool:
    """Whether both bounds are counts from the first row on: the same, or each a part of the length."""
    if ast.unparse(one) == ast.unparse(other):
        return True
    counts = [flow.value(bound) for bound in (one, other)]
    negative = any(isinstance(bound, ast.UnaryOp) for bound in counts)
    lengths = [any(is_call(part, "len") or is_attribute(part, "shape") for part in flow.origins(bound)) for bound in (one, other)]
    return all(lengths) and not negative


def _share_of(flow: Flow, bound: ast.expr) -> tuple[str, float] | None:
    """The length and the share of `int(0.8 * n)`."""
    value = flow.value(bound)
    value = flow.value(value.args[0]) if is_call(value, "int") and value.args else value
    for length, share in operands(value) if is_binary(value, ast.Mult) else ():
        number = flow.number(share)
        if number is not None and 0 < number < 1 and flow.number(length) is None:
            return ast.unparse(flow.value(length)), number
    return None
