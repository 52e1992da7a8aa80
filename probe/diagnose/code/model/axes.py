"""Axes that two operations disagree about: views that mix them, softmax and sum over different ones, batch
and time of recurrent layers. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import meant_by
from probe.diagnose.code.finders.axes.time_and_batch import batch_for_time
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.model.modules import softmax_of
from probe.diagnose.code.model.shapes import Shapes
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    argument,
    is_attribute,
    is_binary,
    is_call,
    is_method,
    is_name,
    is_negative,
    is_string,
    is_true,
    last_word,
    operands,
    own_nodes,
    parameters,
    says,
    short,
    text_of,
)

RULES = Rules("model")

_MAKES = (
    "zeros", "ones", "empty", "full", "randn", "rand", "normal", "uniform", "standard_normal", "integers",
    "randint",
)
_RECURRENT = ("torch.nn.LSTM", "torch.nn.GRU", "torch.nn.RNN")


@RULES.add(
    "softmax-over-another-axis",
    "the weights that are summed do not add up to 1, and each depends on what it should not see",
    "give both the same axis",
)
def _softmax_axis(program: Program) -> Iterator[Remark]:
    flow, shapes = flow_of(program), Shapes(program)
    for node in program.everywhere(ast.Call, ast.BinOp):
        if isinstance(node, ast.Call) and program.called(node) in ("torch.einsum", "torch.functional.einsum"):
            yield from _einsum_axis(program, flow, node)
            continue
        if isinstance(node, ast.Call) and is_attribute(node.func, "sum"):
            yield from _weighted_sum(program, flow, node, node.func.value)
            continue
        left, dimensions = _contracted(program, node)
        found = softmax_of(flow, left) if left is not None else None
        if found is None:
            continue
        call, argument, axis = found
        number = flow.number(axis)
        shape = shapes.of(argument)
        dimensions = dimensions or (len(shape) if shape is not None else None)
        if number is None or number in (-1, (dimensions or 0) - 1) or (number >= 0 and dimensions is None):
            continue
        said = (
            f"{short(call)} normalizes axis {int(number)}, and line {getattr(node, 'lineno', 0)} "
            "sums the weights over the last axis"
        )
        yield Remark(call, said)


def _contracted(program: Program, node: ast.AST) -> tuple[ast.AST | None, int | None]:
    """The left operand of a matrix product, and how many dimensions it has where that is certain."""
    if isinstance(node, ast.BinOp):
        return (node.left, None) if isinstance(node.op, ast.MatMult) else (None, None)
    if not isinstance(node, ast.Call):
        return None, None
    name = program.called(node)
    if name in ("torch.bmm", "torch.matmul") and len(node.args) >= 2:
        return node.args[0], 3 if name == "torch.bmm" else None
    if is_method(node) and not name and node.func.attr in ("bmm", "matmul") and node.args:
        return node.func.value, 3 if node.func.attr == "bmm" else None
    return None, None


def _weighted_sum(program: Program, flow: Flow, node: ast.Call, of: ast.AST) -> Iterator[Remark]:
    """`(weights * x).sum(dim)` over another axis than that of the softmax. Only for scores of a layer: a
    softmax over the classes is also summed over the samples, in losses, and so is one over experts."""
    function = program.called(node) == "torch.sum"
    axis = flow.number(argument(node, "dim", 1 if function else 0))
    product = flow.value(node.args[0] if function and node.args else of)
    if axis is None or axis == 0 or not is_binary(product, ast.Mult):
        return
    for weights, _ in operands(product):
        found = softmax_of(flow, weights)
        over = flow.number(found[2]) if found is not None else None
        if found is None or over is None or over == axis or (over < 0) != (axis < 0):
            continue
        if any(isinstance(one, ast.Call) and flow.maker(one) is not None for one in flow.origins(found[1])):
            said = (
                f"{short(found[0])} normalizes axis {int(over)}, and line {node.lineno} sums over axis "
                f"{int(axis)}"
            )
            yield Remark(found[0], said)


def _einsum_axis(program: Program, flow: Flow, node: ast.Call) -> Iterator[Remark]:
    if len(node.args) != 3 or not is_string(node.args[0]):
        return
    given, arrow, result = node.args[0].value.replace(" ", "").partition("->")
    parts = given.split(",")
    if not arrow or len(parts) != 2 or "." in given:
        return
    for place in (0, 1):
        found = softmax_of(flow, node.args[place + 1])
        number = flow.number(found[2]) if found is not None else None
        letters, other = parts[place], parts[1 - place]
        if found is None or number is None or not -len(letters) <= number < len(letters):
            continue
        summed = [letter for letter in letters if letter in other and letter not in result]
        letter = letters[int(number)]
        if summed and letter not in summed and letter in result and letters[0] in other:
            said = (
                f"{short(found[0])} normalizes axis {int(number)} ({letter}), and line "
                f"{node.lineno} sums over {', '.join(summed)}"
            )
            yield Remark(found[0], said)


@RULES.add(
    "softmax-of-one-value", "it has no gradient, and what computes its input learns nothing",
    "run the softmax over the axis of the choices, or use a sigmoid",
)
def _softmax_of_one(program: Program) -> Iterator[Remark]:
    flow = flow_of(program)
    for call in program.calls():
        found = softmax_of(flow, call) if is_method(call) else None
        if found is None or found[0] is not call or flow.number(found[2]) != -1:
            continue
        value = flow.value(found[1])
        made = flow.maker(value) if isinstance(value, ast.Call) else None
        if made is None or program.called(made) != "torch.nn.Linear":
            continue
        if flow.number(argument(made, "out_features", 1)) == 1:
            yield Remark(call, f"{short(call)} runs over an axis of one value: it is always 1")


@RULES.add(
    "last-position-of-padded",
    "short sequences are judged by what the layer makes of their padding, longer ones are not",
    "index the last position of each sequence, or pack the sequences: pack_padded_sequence(x, lengths, ...)",
)
def _last_of_padded(program: Program) -> Iterator[Remark]:
    """The last output of a recurrent layer over sequences that are padded at their end, not packed."""
    calls = list(program.calls())
    packs = any(program.called(one).endswith("pack_padded_sequence") for one in calls)
    if packs or not _pads_at_the_end(program):
        return
    flow = flow_of(program)
    for call in calls:
        made = flow.maker(call)
        if made is None or program.called(made) not in _RECURRENT or len(call.args) != 1:
            continue
        if not is_true(argument(made, "batch_first", 4)) or is_true(argument(made, "bidirectional")):
            continue
        embedded = [flow.maker(one) for one in flow.origins(call.args[0]) if isinstance(one, ast.Call)]
        if not _is_padded(flow, call.args[0]) and not any(
            one is not None
            and program.called(one) == "torch.nn.Embedding"
            and argument(one, "padding_idx", 2) is not None
            for one in embedded
        ):
            continue
        node = program.parent.get(call)
        targets = node.targets[0] if isinstance(node, ast.Assign) else None
        if not isinstance(targets, ast.Tuple) or len(targets.elts) != 2:
            continue
        output, state = targets.elts
        state = state.elts[0] if isinstance(state, ast.Tuple) and state.elts else state
        for one in own_nodes(program.scope(call)):
            if not isinstance(one, ast.Subscript) or not isinstance(one.value, ast.Name):
                continue
            last = is_name(output, one.value.id) and _is_last(one.slice)
            if last or (is_name(state, one.value.id) and text_of(one.slice) == "-1"):
                yield Remark(
                    one,
                    f"{short(one)} is the output after the padding: sequences are filled up at their end, "
                    f"and {short(call)} reads on to the longest",
                )


@RULES.add(
    "last-position-after-packing",
    "all but the longest sequences of a batch are judged by zeros",
    "take the last state, h_n[-1], or index each sequence at its length minus 1",
)
def _last_of_unpacked(program: Program) -> Iterator[Remark]:
    """The last position of what pad_packed_sequence gives: it is filled up with zeros to the longest."""
    for node in program.everywhere(ast.Assign):
        unpacks = program.called(node.value).endswith("pad_packed_sequence")
        target = node.targets[0].elts[0] if isinstance(node.targets[0], ast.Tuple) else None
        if not unpacks or not isinstance(target, ast.Name) or not isinstance(node.value, ast.Call):
            continue
        first = is_true(argument(node.value, "batch_first", 1))
        for one in own_nodes(program.scope(node)):
            if not isinstance(one, ast.Subscript) or not is_name(one.value, target.id):
                continue
            last = _is_last(one.slice) if first else text_of(one.slice) == "-1"
            if last and one.lineno > node.lineno:
                yield Remark(
                    one,
                    f"{short(one)} is 0 in each sequence that is shorter than the longest of its batch: "
                    f"{target.id} is filled up by pad_packed_sequence (line {node.lineno})",
                )


def _is_padded(flow: Flow, node: ast.AST) -> bool:
    """Whether an expression is made of what a loader's collate function has filled up by pad_sequence."""
    parts = [one for one in flow.origins(node) if isinstance(one, ast.Name)]
    made = (flow.value(one) for part in parts for one in meant_by(flow, part))
    return any(flow.program.called(one).endswith("rnn.pad_sequence") for one in made)


def _is_last(index: ast.AST) -> bool:
    """Whether an index is `[:, -1]` or `[:, -1, :]`."""
    parts = index.elts if isinstance(index, ast.Tuple) else []
    return len(parts) >= 2 and text_of(parts[0]) == ":" and text_of(parts[1]) == "-1"


def _pads_at_the_end(program: Program) -> bool:
    """Whether a program fills up sequences at their end, and none at their start."""
    ends = starts = False
    for node in program.everywhere(ast.Call, ast.Assign, ast.BinOp):
        if isinstance(node, ast.Call) and program.called(node).endswith("rnn.pad_sequence"):
            starts = starts or argument(node, "padding_side", 3) is not None
            ends = True
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            parts = node.targets[0].slice
            last = parts.elts[-1] if isinstance(parts, ast.Tuple) else parts
            if isinstance(last, ast.Slice) and is_call(last.upper, "len") and last.lower is None:
                ends = True  # row[: len(words)] = words
            elif isinstance(last, ast.Slice) and last.upper is None and last.lower is not None:
                starts = starts or is_negative(last.lower)
        elif is_binary(node, ast.Add):  # ids + [PAD] * (length - len(ids))
            ends, starts = ends or _is_padding(node.right), starts or _is_padding(node.left)
    return ends and not starts


def _is_padding(node: ast.AST) -> bool:
    """Whether an expression is `[PAD] * n`."""
    return is_binary(node, ast.Mult) and isinstance(node.left, ast.List) and says(node.left, "pad")


RULES.add(
    "batch-for-time", "the model judges a sequence by another sample, or by a part of what was read",
    "index the axis of the positions, and take both halves where they have read everything",
)(batch_for_time)


@RULES.add(
    "view-mixes-axes", "numbers of different samples, positions or channels end up in one row",
    "transpose or permute before (or after) the view",
)
def _mixed(program: Program) -> Iterator[Remark]:
    shapes = Shapes(program)
    for call in program.calls():
        if is_method(call, "view", "reshape") and call.args:
            moved = shapes.moved(call)
            made = _made_the_other_way(program, call)
            if made is not None:
                said = (
                    f"{short(call)} gives {text_of(call.args[1])} before {_other(call.args[2])} without a "
                    f"transpose, and line {made} makes them in the other order"
                )
                yield Remark(call, said)
            elif moved is not None:
                said = (
                    f"{short(call)} cuts {moved[1]} into {moved[2]} without a transpose: it mixes "
                    f"{moved[0]} with another axis"
                )
                yield Remark(call, said)


def _other(node: ast.AST) -> str:
    return "the rest" if text_of(node) == "-1" else text_of(node)


def _made_the_other_way(program: Program, call: ast.Call) -> int | None:
    """The line that makes arrays of (…, B, A), if a module views its input as (N, A, B) and nothing in the
    program has that order."""
    function = program.function_of(call)
    source = call.func.value if is_method(call) else None
    while is_method(source, "contiguous", "float"):
        source = source.func.value
    if function is None or function.name != "forward" or len(call.args) != 3:
        return None
    if not is_name(source, *(one.arg for one in parameters(function)[1:])):
        return None
    names = tuple(map(last_word, call.args[1:]))
    rest = text_of(call.args[2]) == "-1"
    if not names[0] or names[0] == names[1] or not (names[1] or rest):
        return None
    lines: dict[tuple[str, ...], int] = {}
    for made in program.calls():
        if is_method(made, *_MAKES):
            given = [*made.args, argument(made, "size")]
            shapes = [one.elts for one in given if isinstance(one, (ast.Tuple, ast.List))]
            for shape in [made.args, *shapes]:
                lines.setdefault(tuple(map(last_word, shape[-2:])), made.lineno)
    if rest:
        alike = any(shape[0] == names[0] for shape in lines if len(shape) == 2) or any(
            is_method(one, "transpose", "permute", "swapaxes", "moveaxis", "movedim", "rearrange")
            and getattr(program.function_of(one), "name", "") != "forward"
            for one in program.calls()
        )
        last = (line for shape, line in lines.items() if shape[1:] == names[:1] and shape[0])
        return None if alike else next(last, None)
    return lines.get(names[::-1]) if names not in lines else None
