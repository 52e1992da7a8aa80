"""Predictions that are a column (N, 1), compared with targets that are a row (N). Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import SPLIT_ARRAYS, loaders_of, sample_of
from probe.diagnose.code.flow import DEPTH, Flow, flow_of
from probe.diagnose.code.program import Binding, Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    argument,
    is_attribute,
    is_binary,
    is_method,
    is_string,
    iterated,
    last_word,
    number_in,
    operands,
    returned,
    short,
)
from probe.diagnose.code.torch_losses import loss_name

RULES = Rules("model")
_DIFFERENCES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss")
_FLAT = ("flatten", "ravel", "squeeze")
_CASTS = ("float", "double", "to", "cuda", "cpu", "long", "astype", "type", "clone", "detach", "copy", "contiguous", "numpy", "half")
_WRAPS = ("torch.tensor", "torch.as_tensor", "torch.from_numpy", "torch.FloatTensor", "torch.Tensor", "numpy.array", "numpy.asarray")
_OF_ONE_SIZE = ("numpy.random.rand", "numpy.random.randn", "torch.rand", "torch.randn", "torch.zeros", "torch.ones", "numpy.zeros", "numpy.ones")
_ROWS = ("numpy.linspace", "torch.linspace", "torch.arange", "numpy.arange")
_ELEMENTWISE = ("sin", "cos", "exp", "log", "sqrt", "abs", "tanh", "log1p")
_TARGETS = ("make_regression", "make_friedman1", "load_diabetes", "fetch_california_housing")
"""Functions of sklearn that make a problem of regression with one target."""
_DEPTH = 10


@RULES.add(
    "column-against-targets",
    "each prediction is compared with the target of every sample: the model learns the mean of the targets",
    "give both one shape: model(x).squeeze(1), or y.unsqueeze(1)",
)
def _against_targets(program: Program) -> Iterator[Remark]:
    """A loss of differences between a network's one output for each sample and targets without that axis."""
    flow = flow_of(program)
    for call in program.calls():
        if loss_name(program, call) in _DIFFERENCES and len(call.args) > 1:
            for one, other in (call.args[:2], call.args[1::-1]):
                if _is_column(program, flow, one) and _is_row(program, flow, other):
                    yield Remark(call, f"{short(one, 30)} is a column (N, 1), and {short(other, 30)} a row (N): {short(call)} is a mean over all N * N pairs")
                    break
    for node in program.everywhere(ast.BinOp):
        for one, other in operands(node) if is_binary(node, ast.Sub) else ():
            made = flow.value(other)
            pairs = is_method(made) and flow.value(made.func.value) is flow.value(one)  # a ranking compares each with all on purpose
            if not pairs and not _becomes_weights(program, node) and _is_column(program, flow, one) and _is_row(program, flow, other):
                yield Remark(node, f"{short(one, 30)} is a column (N, 1), and {short(other, 30)} a row (N): {short(node)} has all N * N differences")


def _becomes_weights(program: Program, difference: ast.AST, depth: int = 2) -> bool:
    """Whether differences become weights, exp(-d ** 2 / h): of each sample at each place, as in a soft histogram."""
    for around in program.parents(difference):
        if isinstance(around, ast.Call) and last_word(around.func) in ("exp", "softmax", "log_softmax", "logsumexp", "argmin", "rbf"):
            return True
        if isinstance(around, ast.Assign) and isinstance(around.targets[0], ast.Name) and depth:
            name = around.targets[0].id
            reads = [one for one in ast.walk(program.frame(around)) if isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Load)]
            return any(_becomes_weights(program, one, depth - 1) for one in reads)
        if isinstance(around, ast.stmt):
            return False
    return False


def _is_column(program: Program, flow: Flow, node: ast.AST) -> bool:
    """Whether an expression is what a network gives whose last layer has one output."""
    value = flow.value(node)
    for _ in range(DEPTH):
        if not (is_method(value, *_CASTS) and not program.called(value)):
            break
        value = flow.value(value.func.value)
    return isinstance(value, ast.Call) and _gives_one(program, flow, value, 4)


def _gives_one(program: Program, flow: Flow, call: ast.Call, depth: int) -> bool:
    """Whether a call of a module ends in a linear layer with one output, and nothing changes its shape."""
    of = program.classes.get(program.kind_name(call.func), [])
    if depth and len(of) == 1 and program.family(call.func) == "module":
        forward = program.method(of[0], "forward")
        results = [flow.value(one) for one in returned(forward)] if forward is not None else []
        last = results[0] if len(results) == 1 else None
        return isinstance(last, ast.Call) and _gives_one(program, flow, last, depth - 1)
    name = program.called(call)
    if name in ("torch.relu", "torch.sigmoid", "torch.tanh", "torch.nn.functional.relu") and depth and call.args:
        inner = flow.value(call.args[0])
        return isinstance(inner, ast.Call) and _gives_one(program, flow, inner, depth - 1)
    made: ast.AST | None = flow.maker(call)
    for _ in range(3):
        if program.called(made) != "torch.nn.Sequential" or not isinstance(made, ast.Call) or not made.args:
            break
        parts = [flow.value(one) for one in made.args]
        while parts and program.called(parts[-1]).rpartition(".")[2] in ("ReLU", "Sigmoid", "Tanh", "Softplus", "Identity", "Dropout"):
            parts.pop()
        made = parts[-1] if parts else None
    return program.called(made) == "torch.nn.Linear" and isinstance(made, ast.Call) and flow.number(argument(made, "out_features", 1)) == 1


def _is_row(program: Program, flow: Flow, node: ast.AST, depth: int = 4) -> bool:
    """Whether an expression is a batch of targets, one number for each sample."""
    value = flow.value(node)
    for _ in range(DEPTH):
        if not (is_method(value, *_CASTS) and not program.called(value)):
            break
        value = flow.value(value.func.value)
    if is_method(value, *_FLAT) or (is_method(value, "view", "reshape") and len(value.args) == 1 and flow.number(value.args[0]) == -1):
        return _single(flow, value)
    if _one_axis(program, flow, node):
        return True
    given = flow.given(value) if isinstance(value, ast.Name) else None
    if given is None or (given.place is None and not isinstance(given.node, ast.For)):
        return depth > 0 and any(_is_row(program, flow, one, depth - 1) for one in flow.passed(value)[:1])
    return _from_loader(program, flow, given)


def _single(flow: Flow, node: ast.Call) -> bool:
    """Whether nothing but a batch's own axis is left: view(-1), flatten(), squeeze(), squeeze(1)."""
    axes = [flow.number(one) for one in node.args]
    return axes in ([], [-1], [1]) if is_method(node, "squeeze") else axes in ([], [-1])


def _from_loader(program: Program, flow: Flow, given: Binding) -> bool:
    """Whether a variable is the part of a loader's batch that holds one number for each sample."""
    if not isinstance(given.node, ast.For) or given.place is None:
        return False
    over = iterated(given.node)
    if over is not given.node.iter and last_word(getattr(given.node.iter, "func", None)) == "enumerate":
        pair = given.node.target.elts[1] if isinstance(given.node.target, ast.Tuple) and len(given.node.target.elts) == 2 else None
        if not isinstance(pair, ast.Tuple):
            return False
    loaders = loaders_of(flow, over)
    return bool(loaders) and all(_holds_numbers(program, flow, one, given.place) for one in loaders)


def _holds_numbers(program: Program, flow: Flow, loader: ast.Call, place: int) -> bool:
    if argument(loader, "collate_fn", 7) is not None:
        return False
    held = flow.value(argument(loader, "dataset", 0))
    if program.called(held) == "torch.utils.data.TensorDataset" and isinstance(held, ast.Call):
        return place < len(held.args) and _one_axis(program, flow, held.args[place])
    sample = sample_of(flow, loader)
    part = sample.elts[place] if isinstance(sample, ast.Tuple) and place < len(sample.elts) else None
    return part is not None and _is_number(program, flow, part)


def _is_number(program: Program, flow: Flow, node: ast.AST) -> bool:
    """Whether a part of a sample has no axis: an entry of an array with one."""
    value = _uncast(program, flow, node)
    if isinstance(value, ast.Call) and value.args and last_word(value.func) in ("float32", "float64", "float"):
        return _is_number(program, flow, value.args[0])
    if not isinstance(value, ast.Subscript) or isinstance(value.slice, (ast.Slice, ast.Tuple)) or is_string(value.slice):
        return False
    return _one_axis(program, flow, value.value)


def _uncast(program: Program, flow: Flow, node: ast.AST) -> ast.AST:
    for _ in range(_DEPTH):
        node = flow.value(node)
        if isinstance(node, ast.Call) and program.called(node) in _WRAPS and node.args:
            node = node.args[0]
        elif is_method(node, *_CASTS) and not program.called(node):
            node = node.func.value
        else:
            break
    return node


def _one_axis(program: Program, flow: Flow, node: ast.AST, depth: int = _DEPTH) -> bool:
    """Whether an array or tensor certainly has one axis."""
    node = _uncast(program, flow, node)
    if not depth:
        return False
    if isinstance(node, ast.Name):
        given = flow.given(node)
        return given is not None and given.place is not None and given.value is not None and _part(program, flow, given.value, given.place, depth)
    if isinstance(node, ast.Subscript):
        if isinstance(node.slice, ast.Tuple):
            numbers = [one for one in node.slice.elts if flow.number(one) is not None]
            return len(node.slice.elts) == 2 and len(numbers) == 1 and isinstance(node.slice.elts[0], ast.Slice)
        if is_string(node.slice):
            return program.family(node.value) == "frame"
        return not isinstance(node.slice, ast.Constant) and _one_axis(program, flow, node.value, depth - 1)
    if is_attribute(node, "values"):
        return isinstance(node.value, ast.Subscript) and is_string(node.value.slice)
    if is_attribute(node, "target"):
        return program.called(flow.value(node.value)).rpartition(".")[2] in _TARGETS
    if is_binary(node, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow):
        sides = [_one_axis(program, flow, one, depth - 1) for one in (node.left, node.right)]
        plain = [flow.number(one) is not None for one in (node.left, node.right)]
        return all(a or b for a, b in zip(sides, plain, strict=True)) and any(sides)
    return isinstance(node, ast.Call) and _made_with_one_axis(program, flow, node, depth)


def _made_with_one_axis(program: Program, flow: Flow, node: ast.Call, depth: int) -> bool:
    name = program.called(node)
    if is_method(node, "to_numpy") and not name:
        return isinstance(node.func.value, ast.Subscript) and is_string(node.func.value.slice)
    if name in _OF_ONE_SIZE:
        return len(node.args) == 1 and not isinstance(node.args[0], (ast.Tuple, ast.List, ast.Starred)) and (
            number_in(node.args[0]) is not None or flow.number(node.args[0]) is not None or last_word(node.args[0]).lower().startswith("n")
        )
    if name in _ROWS:
        return True
    if name.rpartition(".")[2] in _ELEMENTWISE and name.startswith(("torch.", "numpy.")) and node.args:
        return _one_axis(program, flow, node.args[0], depth - 1)
    if is_method(node, *_FLAT) and not name:
        return _single(flow, node) and node.func.attr != "squeeze"
    return False


def _part(program: Program, flow: Flow, value: ast.AST, place: int, depth: int) -> bool:
    """The same, of one of the values that a call gives: the parts of a split, the targets of a problem."""
    name = program.called(value)
    if not isinstance(value, ast.Call):
        return False
    if name == SPLIT_ARRAYS and place // 2 < len(value.args):
        return _one_axis(program, flow, value.args[place // 2], depth - 1)
    if name.startswith("sklearn.datasets.") and name.rpartition(".")[2] in _TARGETS and place == 1:
        wide = argument(value, "n_targets")
        return wide is None or flow.number(wide) == 1
    return False


@RULES.add(
    "one-class",
    "the softmax over one value is 1: the loss is 0 from the first step, and nothing is learned",
    "give the layer as many outputs as classes, or take BCEWithLogitsLoss",
)
def _one_class(program: Program) -> Iterator[Remark]:
    """A cross-entropy over the classes of a network that has one output, or a softmax behind it."""
    flow = flow_of(program)
    for call in program.calls():
        if loss_name(program, call) in ("cross_entropy", "CrossEntropyLoss") and call.args and _is_column(program, flow, call.args[0]):
            yield Remark(call, f"{short(call)} is the loss of one class: {short(call.args[0], 30)} has one output for each sample")
        elif program.called(call) == "torch.nn.Sequential" and len(call.args) > 1:
            before, last = flow.value(call.args[-2]), flow.value(call.args[-1])
            if program.called(last) not in ("torch.nn.Softmax", "torch.nn.LogSoftmax") or not isinstance(last, ast.Call):
                continue
            if program.called(before) == "torch.nn.Linear" and isinstance(before, ast.Call) and flow.number(argument(before, "out_features", 1)) == 1 and flow.number(argument(last, "dim", 0)) in (1, -1):
                yield Remark(last, f"{short(last)} follows {short(before)}: it is 1 for each sample")
