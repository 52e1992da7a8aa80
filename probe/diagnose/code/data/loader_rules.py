"""What a data set gives and how it is batched: loaders, iterators, samplers, padding, scales, types. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeGuard

from probe.diagnose.code.data.data_flow import data_sets, fills_no_input, loader_loops, loaders_of, trains
from probe.diagnose.code.flow import DEPTH, Flow, flow_of
from probe.diagnose.code.program import Binding, Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    argument,
    is_attribute,
    is_binary,
    is_call,
    is_false,
    is_method,
    is_name,
    is_own,
    is_string,
    is_true,
    iterated,
    names_read,
    own_nodes,
    pairs_of,
    returned,
    short,
)

RULES = Rules("data")
_EACH = ("float", "double", "to", "tensor", "as_tensor", "FloatTensor", "DoubleTensor", "reciprocal", "astype", "from_numpy", "sqrt", "pow", "clamp", "clamp_min", "clip", "maximum")
"""Methods and functions that give as many numbers as they are given."""

_ORDERED = frozenset({"torchvision.datasets.ImageFolder", "torchvision.datasets.DatasetFolder"})
_WRITES = frozenset({
    "add_", "sub_", "mul_", "div_", "clamp_", "clip_", "fill_", "zero_", "masked_fill_", "random_", "normal_", "neg_",
    "pow_", "sqrt_", "log_", "copy_", "index_fill_",
})
_STATISTICS: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...] = (
    ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), ((0.1307,), (0.3081,)),
    ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)), ((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)),
    ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
)
"""Means and deviations that are in general use: of ImageNet, MNIST, CIFAR-10 and CIFAR-100."""
_MEMORY = ("tensor", "array")
SENTINEL = 99
"""A fill value of at least this size stands for "missing"; one below may be a typical value of a column."""


@RULES.add("iterator-made-anew", "the model learns one batch by heart", "make the iterator once before the loop, or loop over the loader")
def _iterator_anew(program: Program) -> Iterator[Remark]:
    """A first batch that is taken again in each step, from a loader that does not shuffle."""
    flow = flow_of(program)
    for call in program.calls():
        inner = call.args[0] if call.args else None
        if not is_call(call, "next") or not is_call(inner, "iter") or not inner.args:
            continue
        loops = program.loops(call)
        made = loaders_of(flow, inner.args[0])
        if not loops or not made or not trains(flow.program, loops[0]) or any(not _in_order(flow, one) for one in made):
            continue
        yield Remark(call, f"{short(call)} starts the loader anew in each step, and it does not shuffle: every step gets the same first batch")


def _in_order(flow: Flow, loader: ast.Call) -> bool:
    """Whether a loader certainly gives its samples in the order of the data set."""
    shuffle = argument(loader, "shuffle", 2)
    constant = shuffle is None or (is_false(shuffle))
    samples = [one for one in loader.keywords if one.arg in ("sampler", "batch_sampler", None)]
    return constant and not samples and len(loader.args) < 4 and not _iterable(flow, loader)


def _iterable(flow: Flow, loader: ast.Call) -> bool:
    """Whether the data set of a loader may be one that is only iterated."""
    made = flow.value(argument(loader, "dataset", 0))
    name = flow.program.called(made)
    of = flow.program.classes.get(name, [])
    if len(of) == 1:
        return flow.program.method(of[0], "__iter__") is not None or flow.program.method(of[0], "__getitem__") is None
    return not name.startswith(("torchvision.datasets.", "torch.utils.data.TensorDataset", "torch.utils.data.Subset"))


def _loops_of(flow: Flow) -> tuple[dict[ast.Call, ast.For], dict[ast.Call, ast.For]]:
    """The loaders whose loops train, and those whose loops only evaluate."""
    trained: dict[ast.Call, ast.For] = {}
    evaluated: dict[ast.Call, ast.For] = {}
    for loop in loader_loops(flow):
        kept = trained if trains(flow.program, loop) else evaluated
        for made in loaders_of(flow, iterated(loop)):
            kept.setdefault(made, loop)
    return trained, evaluated


@RULES.add("option-of-other-loader", "batches come in the order of the files, or a part of the held-out data is never judged", "shuffle (and drop the last batch) where you train, and not where you evaluate")
def _wrong_loader(program: Program) -> Iterator[Remark]:
    """Options that stand at the loader of the evaluation and not at that of the training."""
    flow = flow_of(program)
    trained, evaluated = _loops_of(flow)
    train = [one for one in trained if one not in evaluated]
    held = [one for one in evaluated if one not in trained]
    for one in train:
        made = flow.value(argument(one, "dataset", 0))
        if program.called(made) in _ORDERED and _in_order(flow, one) and _reads_label(trained[one]):
            yield Remark(one, f"the loader that is trained on does not shuffle, and {short(made) if made else 'the folder'} lists one class after the other: each batch holds one class")
    if len(train) != 1 or len(held) != 1:
        return
    if _in_order(flow, train[0]) and is_true(argument(held[0], "shuffle", 2)):
        yield Remark(train[0], f"the loader that is trained on does not shuffle, and that of line {held[0].lineno}, which is evaluated on, does")
    if is_true(argument(held[0], "drop_last", 8)) and argument(train[0], "drop_last", 8) is None and not any(one.arg in ("batch_sampler", None) for one in train[0].keywords):
        yield Remark(held[0], f"the loader that is evaluated on drops its last batch, and that of line {train[0].lineno}, which is trained on, does not")


def _reads_label(loop: ast.For) -> bool:
    """Whether a loop reads the second part of what it unpacks."""
    target = loop.target
    if isinstance(target, ast.Tuple) and isinstance(target.elts[-1], ast.Tuple):
        target = target.elts[-1]
    last = target.elts[-1] if isinstance(target, ast.Tuple) else None
    return isinstance(last, ast.Name) and last.id in names_read(loop)


@RULES.add("stride-of-batches", "most of the data is never seen", "write range(0, n, size) with rows i : i + size")
def _stride(program: Program) -> Iterator[Remark]:
    """Batches cut by hand with the number of the batch taken for its first row, or the other way round."""
    for loop in program.everywhere(ast.For):
        call = loop.iter
        if not isinstance(loop.target, ast.Name) or not is_call(call, "range"):
            continue
        at = loop.target.id
        cuts = [
            one for one in ast.walk(loop)
            if isinstance(one, ast.Slice) and one.lower is not None and one.upper is not None and at in names_read(one.lower)
        ]
        if any(isinstance(one, ast.AugAssign) and ast.unparse(one.target) == at for one in ast.walk(loop)):
            continue
        count = call.args[-1] if len(call.args) <= 2 else None
        if is_binary(count, ast.FloorDiv):
            size = ast.unparse(count.right)
            for cut in cuts:
                if ast.unparse(cut.lower or cut) == at and ast.unparse(cut.upper or cut) in (f"{at} + {size}", f"{size} + {at}"):
                    yield Remark(cut, f"batch {at} is rows {ast.unparse(cut)}: {at} counts batches of {size}, so that neighbours share all rows but one and most of the data is never seen")
                    break
        elif len(call.args) == 3:
            size = ast.unparse(call.args[2])
            for cut in cuts:
                if size not in ("1", "-1") and ast.unparse(cut.lower or cut) in (f"{at} * {size}", f"{size} * {at}"):
                    yield Remark(cut, f"batch {at} is rows {ast.unparse(cut)}: {at} goes in steps of {size} already, so that all but every {size}th batch is left out and later ones are empty")
                    break


# Data sets -------------------------------------------------------------------------


def _is_stored(node: ast.AST, flow: Flow, index: str, *, array: bool = False) -> TypeGuard[ast.Subscript]:
    """Whether `self.x[index]` takes an item of tensors or arrays in memory, which have rows of their own; `array`: it
    is known to be one."""
    if not isinstance(node, ast.Subscript) or not is_own(node.value):
        return False
    if not is_name(node.slice, index) and not (isinstance(node.slice, ast.Slice) and index in names_read(node.slice)):
        return False
    found = flow.bindings(node.value)
    return array or (bool(found) and all(_in_memory(flow, one, node.value) for one in found))


@RULES.add("sample-changed-in-place", "the data drift away from what was loaded, further in each epoch", "copy the sample first: .clone() or .copy()")
def _changed_in_place(program: Program) -> Iterator[Remark]:
    """A stored sample that is changed where it lies when it is asked for."""
    flow = flow_of(program)
    for of in data_sets(program):
        getter = program.method(of, "__getitem__")
        if getter is None or not getter.args.args[1:]:
            continue
        index = getter.args.args[1].arg
        views: dict[str, ast.Subscript] = {}
        given = [one.args[0] for one in ast.walk(getter) if isinstance(one, ast.Call) and program.called(one) == "torch.from_numpy" and one.args]
        arrays = {one.id for one in given if isinstance(one, ast.Name)}
        for node in own_nodes(getter):
            pairs = pairs_of(node) if isinstance(node, ast.Assign) and len(node.targets) == 1 else ()
            written = node.value if isinstance(node, ast.Assign) else None
            for name in [name for name in views if written is not None and (_written_by_object(flow, written, name) or _written_by(program, written, name))]:
                yield Remark(node, f"{short(node)} changes {short(views.pop(name))} where it is stored: the sample is changed once more each time it is drawn")
            stored = isinstance(written, ast.Subscript) and is_own(written.value) and is_name(written.slice, index)
            if isinstance(written, ast.Subscript) and stored and program.called(flow.value(written.value)) == "torch.utils.data.TensorDataset":
                views |= {one.id: written for target, _ in pairs for one in getattr(target, "elts", ()) if is_name(one)}
            for target, value in ((one.id, value) for one, value in pairs if is_name(one)):
                array = target in arrays
                if program.called(value) == "torch.from_numpy" and isinstance(value, ast.Call) and value.args:
                    value, array = value.args[0], True  # it shares the memory
                if _is_stored(value, flow, index, array=array):
                    views[target] = value
                else:
                    views.pop(target, None)
            if is_method(node, *_WRITES):
                item = node.func.value
                if _is_stored(item, flow, index):
                    yield Remark(node, f"{short(node)} changes {short(item)} where it is stored: the sample is changed once more each time it is drawn")
            changed = _writes(node) or next((name for name in views if _written_by(program, node, name) or _written_by_object(flow, node, name)), "")
            if changed in views:
                text = short(views[changed])
                yield Remark(node, f"{short(node)} changes {text} where it is stored: the sample is changed once more each time it is drawn")
                views.pop(changed)


def _written_by(program: Program, call: ast.AST, name: str) -> bool:
    """Whether a function of the program that gets a tensor writes into it, before it gives the name another value."""
    local = program.local_function(call) if isinstance(call, ast.Call) else None
    given = program.arguments(local, call) if local is not None and isinstance(call, ast.Call) else {}
    parameter = next((word for word, value in given.items() if is_name(value, name)), "")
    for node in own_nodes(local) if local is not None and parameter else ():
        if _writes(node) == parameter:
            return True
        if isinstance(node, ast.Assign) and any(is_name(one, parameter) for one, _ in pairs_of(node)):
            return False
    return False


def _written_by_object(flow: Flow, call: ast.AST, name: str) -> bool:
    """Whether an object of the program that is called with a tensor writes into it, or the first of the objects that
    it is made of does."""
    program = flow.program
    if not isinstance(call, ast.Call) or not is_own(call.func) or not call.args or not is_name(call.args[0], name):
        return False
    for made in flow.possible(call.func):
        for _ in range(3):
            classes = program.classes.get(program.called(made), [])
            method = program.method(classes[0], "__call__") if len(classes) == 1 else None
            first = method.args.args[1].arg if method is not None and len(method.args.args) > 1 else ""
            if method is not None and any(is_method(one, *_WRITES) and is_name(one.func.value, first) for one in own_nodes(method)):
                return True
            if not isinstance(made, ast.Call) or not made.args or not isinstance(made.args[0], ast.Call):
                break
            made = made.args[0]
    return False


def _writes(node: ast.AST) -> str:
    """The name of the tensor or array that a node writes into; empty where it writes into none."""
    target: ast.AST | None = None
    if isinstance(node, ast.AugAssign):
        target = node.target.value if isinstance(node.target, ast.Subscript) else node.target
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        target = node.targets[0].value
    elif is_method(node, *_WRITES):
        target = node.func.value
    return target.id if isinstance(target, ast.Name) else ""


def _in_memory(flow: Flow, one: Binding, attribute: ast.expr) -> bool:
    value = one.value
    if one.place is not None:
        local = flow.program.local_function(value) if isinstance(value, ast.Call) else None
        returns = returned(local) if local is not None else []
        parts = [node.elts[one.place] for node in returns if isinstance(node, ast.Tuple) and one.place < len(node.elts)]
        return bool(parts) and len(parts) == len(returns) and all(flow.program.family(part) in _MEMORY for part in parts)
    if isinstance(value, ast.BinOp) or (isinstance(value, ast.Call) and ast.unparse(value.func).startswith(ast.unparse(attribute))):
        return True  # computed from what it held before
    given = flow.possible(value)
    if given:
        return all(flow.program.family(part) in _MEMORY for part in given)
    passed = [flow.given(part) for part in flow.passed(value)]
    return bool(passed) and all(part is not None and part.place is not None and _in_memory(flow, part, attribute) for part in passed)


@RULES.add("weights-of-classes", "nearly all samples are never drawn", "give each sample the weight of its class: weights[labels]")
def _weights_of_classes(program: Program) -> Iterator[Remark]:
    """A sampler that is given one weight for each class where it takes one for each sample."""
    flow = flow_of(program)
    for call in program.calls():
        if program.called(call) != "torch.utils.data.WeightedRandomSampler":
            continue
        given = argument(call, "weights", 0)
        if given is not None and _one_for_each_class(flow, given):
            yield Remark(call, f"{short(given)} has one weight for each class, and the sampler takes one for each sample: it draws the first few samples only")


def _one_for_each_class(flow: Flow, node: ast.AST, depth: int = DEPTH) -> bool:
    """Whether an expression is made of the counts of the classes, one by one."""
    found = flow.value(node)
    if not depth:
        return False
    if isinstance(found, ast.Name) and (part := flow.given(found)) is not None and isinstance(part.value, ast.Call):
        return part.place is not None and is_method(part.value, "unique") and argument(part.value, "return_counts") is not None
    if isinstance(found, ast.BinOp):
        return any(_one_for_each_class(flow, one, depth - 1) for one in (found.left, found.right))
    if is_method(found, "bincount"):
        return True
    if isinstance(found, ast.Call) and flow.program.local_function(found) is not None:
        results = flow.program.results(found)
        return bool(results) and all(_one_for_each_class(flow, one, depth - 1) for one in results)
    if is_method(found, *_EACH):
        inner = found.args[0] if flow.program.called(found).startswith(("torch.", "numpy.")) and found.args else found.func.value
        return _one_for_each_class(flow, inner, depth - 1)
    return False


@RULES.add("lengths-after-padding", "the padding is read as if it were data", "count the lengths before pad_sequence")
def _lengths_of_padded(program: Program) -> Iterator[Remark]:
    """Lengths that are counted after the padding: all are that of the longest."""
    flow = flow_of(program)
    for node in program.everywhere(ast.ListComp):
        one, element = node.generators[0], node.elt
        if len(node.generators) != 1 or one.ifs or not isinstance(one.target, ast.Name):
            continue
        padded = flow.value(one.iter)
        made = [part for value in program.results(padded) for part in flow.origins(value)] or [padded]
        if any(program.called(part) == "torch.nn.utils.rnn.pad_sequence" for part in made) and ast.unparse(element) in (
            f"len({one.target.id})", f"{one.target.id}.size(0)", f"{one.target.id}.shape[0]",
        ):
            yield Remark(node, f"{short(node)} counts the rows of what is padded already: all lengths are the same")


@RULES.add("padding-never-set", "inputs and metrics hold random bytes, NaN among them", "start with torch.zeros or torch.full")
def _unfilled(program: Program) -> Iterator[Remark]:
    """Memory that is not set and only filled up to a length."""
    flow = flow_of(program)
    for scope in program.scopes():
        for node in own_nodes(scope):
            if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name) or program.called(node.value) not in ("torch.empty", "numpy.empty", "torch.empty_like", "numpy.empty_like"):
                continue
            name = node.targets[0].id
            if len(flow.bound.get((scope, name), [])) != 1:
                continue
            uses = flow.reads.get((scope, name), [])
            filled, other = [], []
            for use in uses:
                around = program.parent.get(use)
                statement = program.parent.get(around) if around is not None else None
                if isinstance(around, ast.Subscript) and isinstance(around.ctx, ast.Store) and isinstance(statement, ast.Assign):
                    filled.append(around)
                elif isinstance(around, (ast.Attribute, ast.Subscript, ast.AugAssign)):
                    other.append(around)
            if filled and not other and all(_prefix(one) for one in filled):
                yield Remark(filled[0], f"{short(filled[0])} fills a part of {name}, which {short(node.value)} leaves unset: the rest, the padding, is whatever lay in memory")


def _prefix(node: ast.Subscript) -> bool:
    """Whether a subscript takes the first few entries of a row, as many as a thing has."""
    if not isinstance(node.slice, ast.Tuple) or not isinstance(node.slice.elts[0], ast.Name):
        return False
    last = node.slice.elts[1]
    return isinstance(last, ast.Slice) and last.lower is None and last.step is None and last.upper is not None and not isinstance(last.upper, ast.UnaryOp) and (
        "len(" in ast.unparse(last.upper) or ".size(" in ast.unparse(last.upper) or ".shape[" in ast.unparse(last.upper)
    )


# Scales and columns ----------------------------------------------------------------


def _numbers(flow: Flow, node: ast.AST | None) -> tuple[float, ...] | None:
    value = flow.value(node)
    if isinstance(value, (ast.Tuple, ast.List)):
        found = [flow.number(one) for one in value.elts]
        return tuple(one for one in found if one is not None) if None not in found else None
    return None


@RULES.add("normalized-by-wrong-constants", "the inputs are on another scale than the network is made for", "normalize once, by the mean and the deviation of values from 0 to 1")
def _normalized(program: Program) -> Iterator[Remark]:
    """Constants of a normalization that are not on the scale of what they are applied to."""
    flow = flow_of(program)
    for call in program.calls():
        if program.called(call) not in ("torchvision.transforms.Normalize", "torchvision.transforms.v2.Normalize"):
            continue
        mean, deviation = _numbers(flow, argument(call, "mean", 0)), _numbers(flow, argument(call, "std", 1))
        if mean is None or deviation is None:
            continue
        if any(_near(mean, std) and _near(deviation, average) for average, std in _STATISTICS):
            yield Remark(call, f"{short(call)} has mean and deviation in each other's place")
        steps = program.parent.get(call)
        before = steps.elts[: steps.elts.index(call)] if isinstance(steps, ast.List) and call in steps.elts else []
        names = [program.called(one).rpartition(".")[2] for one in before]
        if "ToTensor" in names and "" not in names and not {"Lambda", "PILToTensor", "ConvertImageDtype", "ToDtype"} & set(names):
            if all(one > 1 for one in mean) and all(one > 1 for one in deviation):
                yield Remark(call, f"{short(call)} is made for values of 0 to 255, and ToTensor has scaled them to 0 to 1: all pixels come out nearly the same")
            elif "Normalize" in names:
                yield Remark(call, f"{short(call)} is the second Normalize of one transform: the images are normalized twice")


def _near(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return len(one) == len(other) and all(abs(a - b) < 0.002 for a, b in zip(one, other, strict=True))


@RULES.add("normalized-apart", "the model is judged on inputs of another scale than it was trained on", "give both the same Normalize")
def _normalized_apart(program: Program) -> Iterator[Remark]:
    """Training and held-out images that are normalized differently."""
    flow = flow_of(program)
    made: dict[str, dict[bool, tuple[ast.Call, list[tuple[float, ...] | None]]]] = {}
    for call in program.calls():
        name = program.called(call)
        train = argument(call, "train")
        given = flow.value(argument(call, "transform"))
        if not name.startswith("torchvision.datasets.") or not isinstance(train, ast.Constant) or not isinstance(given, ast.Call):
            continue
        steps = given.args[0].elts if program.called(given).endswith(".Compose") and given.args and isinstance(given.args[0], ast.List) else [given]
        names = [program.called(one).rpartition(".")[2] for one in steps]
        if "" in names or "Lambda" in names or "ToTensor" not in names or not program.called(given).startswith("torchvision."):
            continue
        norms = [one for one in steps if program.called(one).endswith(".Normalize")]
        values = [_numbers(flow, argument(one, word, place)) for one in norms if isinstance(one, ast.Call) for place, word in ((0, "mean"), (1, "std"))]
        if train.value in made.setdefault(name, {}):
            made[name].clear()
            break
        made[name][bool(train.value)] = call, values
    for parts in made.values():
        if len(parts) == 2 and None not in parts[True][1] and None not in parts[False][1] and parts[True][1] != parts[False][1]:
            first, second = ("are normalized" if parts[one][1] else "are not" for one in (True, False))
            said = f"the training images {first} and the held-out images {second}" if bool(parts[True][1]) != bool(parts[False][1]) else "training and held-out images are normalized by different constants"
            yield Remark(parts[False][0], said)


@RULES.add("missing-as-number", "the sentinel outweighs all real values and the gradients that they give", "fill with the mean of the training rows, and add a column that says what was missing")
def _missing(program: Program) -> Iterator[Remark]:
    """Numbers that stand for missing values and are fed to a network."""
    flow = flow_of(program)
    if not any(program.is_module_class(of) for found in program.classes.values() for of in found) and not any(
        program.called(call).startswith("torch.nn.") for call in program.calls()
    ):
        return
    for call in program.calls():
        func = call.func
        given: ast.expr | None = None
        if is_attribute(func, "fillna"):
            given = argument(call, "value", 0)
        elif program.called(call) == "numpy.nan_to_num":
            given = argument(call, "nan", 2)
        elif program.called(call) == "sklearn.impute.SimpleImputer":
            given = argument(call, "fill_value")
        value = flow.number(given)
        if value is None or not SENTINEL <= abs(value) < 1e6 or not isinstance(given, ast.expr):
            continue
        text = ast.unparse(given)
        compared = any(
            isinstance(one, ast.Compare) and any(flow.number(part) == value for part in (one.left, *one.comparators))
            for one in program.everywhere(ast.Compare)
        )
        if not compared and not fills_no_input(program, call, value):
            yield Remark(call, f"{short(call)} puts {text} where a value is missing, and nothing takes it out again: to the network it is a number like the others")


@RULES.add("target-among-inputs", "the model copies the target, and knows nothing without it", "drop the column of the target")
def _target_column(program: Program) -> Iterator[Remark]:
    """A target that is among the inputs: a column of a table."""
    flow = flow_of(program)
    for scope in program.scopes():
        targets: dict[tuple[str, str], ast.Assign] = {}
        for node in own_nodes(scope):
            if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
                continue
            value: ast.expr = node.value
            while True:
                if is_method(value, "to_numpy", "astype", "copy"):
                    value = value.func.value
                elif is_attribute(value, "values"):
                    value = value.value
                else:
                    break
            if isinstance(value, ast.Subscript) and isinstance(value.value, ast.Name) and is_string(value.slice):
                if program.family(value.value) == "frame":
                    targets[value.value.id, value.slice.value] = node
            else:
                for (frame, column), target in list(targets.items()):
                    if _with_column(flow, value, frame, column) and node.lineno > target.lineno and _side_by_side(scope, node, target) and value is not node.value:
                        yield Remark(node, f"{short(node.targets[0])} holds all columns of {frame} but those dropped, {column!r}, the target, among them")


def _with_column(flow: Flow, value: ast.expr, frame: str, column: str) -> bool:
    """Whether an expression is all of a table, or what is left of it, with this column."""
    for one in flow.program.everywhere(ast.Call, ast.Delete):
        if isinstance(one, ast.Delete) and frame in ast.unparse(one):
            return False
        called = ast.unparse(one.func) if isinstance(one, ast.Call) else ""
        inplace = isinstance(one, ast.Call) and any(word.arg == "inplace" for word in one.keywords)
        if called == f"{frame}.pop" or (called == f"{frame}.drop" and inplace):
            return False
    if isinstance(value, ast.Name):
        return value.id == frame and len([one for key, found in flow.bound.items() for one in found if key[1] == frame]) == 1
    if not isinstance(value, ast.Call) or ast.unparse(value.func) != f"{frame}.drop":
        return False
    given = next((one.value for one in value.keywords if one.arg in ("columns", "labels")), None) or (value.args[0] if value.args else None)
    listed = [flow.value(one) for one in given.elts] if isinstance(given, ast.List) else [flow.value(given)]
    return bool(listed) and all(isinstance(one, ast.Constant) and one.value != column for one in listed)


def _side_by_side(scope: ast.AST, inputs: ast.Assign, targets: ast.Assign) -> bool:
    """Whether inputs and targets go into one call as two of its arguments."""
    one, other = ast.unparse(inputs.targets[0]), ast.unparse(targets.targets[0])
    for node in ast.walk(scope):
        if isinstance(node, ast.Call) and len(node.args) >= 2:
            first, second = names_read(node.args[0]), names_read(node.args[1])
            if one in first and other in second and other not in first:
                return True
    return False
