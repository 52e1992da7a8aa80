"""Axes that two operations disagree about: views that mix dimensions, softmax and sum over different axes,
batch and time of recurrent layers, masks of the wrong kind. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.program import Program, own_nodes
from probe.diagnose.code.rule import Remark, Rule
from probe.diagnose.code.shapes import Shapes
from probe.diagnose.code.tracing import Trace, keyword, trace

_SOFTMAX = ("torch.softmax", "torch.nn.functional.softmax")
_RECURRENT = ("torch.nn.LSTM", "torch.nn.GRU", "torch.nn.RNN")
_SEQUENCE = ("torch.nn.TransformerEncoder", "torch.nn.TransformerEncoderLayer", "torch.nn.TransformerDecoder")
_ATTENTION = ("torch.nn.MultiheadAttention", "torch.nn.Transformer", "torch.nn.TransformerDecoderLayer", *_SEQUENCE)
_PASSES = frozenset("to float half type_as contiguous type bfloat16".split())
LEAST_FILL = -20.0
"""A score that is filled with more than this keeps a share of the softmax that can be seen: exp(-20) is 2e-9."""


def _short(program: Program, node: ast.AST, longest: int = 50) -> str:
    text = program.text(node)
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _made(known: Trace, call: ast.Call) -> ast.Call | None:
    """The call that made the module which a call runs."""
    found = known.value(call.func)
    return found if isinstance(found, ast.Call) and found is not call else None


def _made_name(program: Program, known: Trace, call: ast.Call) -> str:
    made = _made(known, call)
    return (program.dotted(made.func) or "") if made is not None else ""


# Softmax and what is summed -----------------------------------------------------


def _softmax_of(program: Program, known: Trace, node: ast.AST) -> tuple[ast.Call, ast.AST, ast.AST | None] | None:
    """The softmax that a value comes out of (through dropout and casts), its argument and its axis."""
    for _ in range(8):
        node = known.value(node)
        if not isinstance(node, ast.Call):
            return None
        name = program.dotted(node.func) or ""
        if name in _SOFTMAX and node.args:
            return node, node.args[0], keyword(node, "dim", 1)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "softmax" and not name:
            return node, node.func.value, keyword(node, "dim", 0)
        made = _made(known, node)
        of = (program.dotted(made.func) or "") if made is not None else ""
        if made is not None and of == "torch.nn.Softmax" and node.args:
            return node, node.args[0], keyword(made, "dim", 0)
        if name.endswith("functional.dropout") or of == "torch.nn.Dropout":
            if not node.args:
                return None
            node = node.args[0]
        elif isinstance(node.func, ast.Attribute) and node.func.attr in _PASSES:
            node = node.func.value
        else:
            return None
    return None


def _softmax_axis(program: Program) -> Iterator[Remark]:
    known, shapes = trace(program), Shapes(program)
    for node in program.everywhere(ast.Call, ast.BinOp):
        if isinstance(node, ast.Call) and program.dotted(node.func) in ("torch.einsum", "torch.functional.einsum"):
            yield from _einsum_axis(program, known, node)
            continue
        left, dimensions = _contracted(program, node)
        found = _softmax_of(program, known, left) if left is not None else None
        if found is None:
            continue
        call, argument, axis = found
        number = known.number(axis)
        shape = shapes.of(argument)
        dimensions = dimensions or (len(shape) if shape is not None else None)
        if number is None or number == -1 or (number >= 0 and (dimensions is None or number == dimensions - 1)):
            continue
        said = f"{_short(program, call)} normalizes axis {int(number)}, and line {getattr(node, 'lineno', 0)} sums the weights over the last axis"
        yield Remark(call, said)


def _contracted(program: Program, node: ast.AST) -> tuple[ast.AST | None, int | None]:
    """The left operand of a matrix product, and how many dimensions it has where that is certain."""
    if isinstance(node, ast.BinOp):
        return (node.left, None) if isinstance(node.op, ast.MatMult) else (None, None)
    if not isinstance(node, ast.Call):
        return None, None
    name = program.dotted(node.func) or ""
    if name in ("torch.bmm", "torch.matmul") and len(node.args) >= 2:
        return node.args[0], 3 if name == "torch.bmm" else None
    if isinstance(node.func, ast.Attribute) and not name and node.func.attr in ("bmm", "matmul") and node.args:
        return node.func.value, 3 if node.func.attr == "bmm" else None
    return None, None


def _einsum_axis(program: Program, known: Trace, node: ast.Call) -> Iterator[Remark]:
    if len(node.args) != 3 or not isinstance(node.args[0], ast.Constant) or not isinstance(node.args[0].value, str):
        return
    given, arrow, result = node.args[0].value.replace(" ", "").partition("->")
    parts = given.split(",")
    if not arrow or len(parts) != 2 or "." in given:
        return
    for place in (0, 1):
        found = _softmax_of(program, known, node.args[place + 1])
        number = known.number(found[2]) if found is not None else None
        letters, other = parts[place], parts[1 - place]
        if found is None or number is None or not -len(letters) <= number < len(letters):
            continue
        summed = [letter for letter in letters if letter in other and letter not in result]
        letter = letters[int(number)]
        if summed and letter not in summed and letter in result:
            said = f"{_short(program, found[0])} normalizes axis {int(number)} ({letter}), and line {node.lineno} sums over {', '.join(summed)}"
            yield Remark(found[0], said)


def _softmax_of_one(program: Program) -> Iterator[Remark]:
    known = trace(program)
    for call in program.calls():
        found = _softmax_of(program, known, call) if isinstance(call.func, ast.Attribute) else None
        if found is None or found[0] is not call or known.number(found[2]) != -1:
            continue
        value = known.value(found[1])
        made = _made(known, value) if isinstance(value, ast.Call) else None
        if made is not None and program.dotted(made.func) == "torch.nn.Linear" and known.number(keyword(made, "out_features", 1)) == 1:
            yield Remark(call, f"{_short(program, call)} runs over an axis of one value: it is always 1")


# Recurrent layers ----------------------------------------------------------------


def _recurrent(program: Program) -> Iterator[Remark]:
    known = trace(program)
    for node in program.everywhere(ast.Assign):
        assert isinstance(node, ast.Assign)
        if not isinstance(node.value, ast.Call) or len(node.targets) != 1:
            continue
        made = _made(known, node.value)
        name = (program.dotted(made.func) or "") if made is not None else ""
        if made is None or any(one.arg is None for one in made.keywords):
            continue
        if name in _RECURRENT:
            yield from _of_recurrent(program, known, node, made)
        elif name in _SEQUENCE:
            layer = known.value(made.args[0]) if made.args and not name.endswith("Layer") else made
            if isinstance(layer, ast.Call) and (program.dotted(layer.func) or "").startswith("torch.nn.Transformer"):
                yield from _batch_axis(program, known, node, node.targets[0], layer, "a TransformerEncoder")


def _of_recurrent(program: Program, known: Trace, node: ast.Assign, made: ast.Call) -> Iterator[Remark]:
    target = node.targets[0]
    if not isinstance(target, ast.Tuple) or len(target.elts) != 2:
        return
    kind = (program.dotted(made.func) or "").removeprefix("torch.nn.")
    both = _flag(made, "bidirectional")
    batch_first = _flag(made, "batch_first")
    if both is None or batch_first is None:
        return
    yield from _batch_axis(program, known, node, target.elts[0], made, f"the {kind}")
    outputs, hidden = target.elts
    if isinstance(hidden, ast.Tuple) and hidden.elts:
        hidden = hidden.elts[0]
    if both:
        for use in _uses(program, known, node, outputs):
            around = program.parent.get(use)
            if isinstance(around, ast.Subscript) and _taken(around, 1 if batch_first else 0) and not _cut(around):
                said = f"{program.text(around)} takes the last position of a bidirectional {kind}: its backward half has read one element there"
                yield Remark(around, said)
        uses = [around for use in _uses(program, known, node, hidden) if isinstance(around := program.parent.get(use), ast.Subscript)]
        last = [one for one in uses if _taken(one, 0)]
        if last and len(uses) == len(last):
            yield Remark(last[0], f"{program.text(last[0])} is the backward half of the bidirectional {kind} alone")
    layers = known.number(keyword(made, "num_layers", 2)) if keyword(made, "num_layers", 2) is not None else 1
    if layers is not None and layers * (2 if both else 1) > 1:
        for use in _uses(program, known, node, hidden):
            call = program.parent.get(program.parent.get(use, use), use)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.value is use and call.func.attr in ("view", "reshape") and len(call.args) == 2:
                said = f"{_short(program, call)} cuts the {kind}'s state (layers, batch, width) into rows that mix the samples of a batch"
                yield Remark(call, said)


def _flag(made: ast.Call, name: str) -> bool | None:
    """A flag of a layer: None where it is computed."""
    value = keyword(made, name)
    if value is None:
        return False
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, bool) else None


def _uses(program: Program, known: Trace, node: ast.Assign, target: ast.AST) -> Iterator[ast.Name]:
    """Where a variable is read that an assignment gave its value."""
    scope = program.scope(node)
    if isinstance(target, ast.Name) and not isinstance(scope, ast.ClassDef):
        for one in own_nodes(scope):
            if isinstance(one, ast.Name) and one.id == target.id and isinstance(one.ctx, ast.Load):
                given = known.given(one)
                if given is not None and given.at is node:
                    yield one


def _batch_axis(program: Program, known: Trace, node: ast.Assign, target: ast.AST, made: ast.Call, what: str) -> Iterator[Remark]:
    """Remarks on the output of a sequence layer of which one batch element is taken (or a mean over the batch)."""
    batch_first = _flag(made, "batch_first")
    if batch_first is None:
        return
    batch, first = (0, "with") if batch_first else (1, "without")
    for use in _uses(program, known, node, target):
        around = program.parent.get(use)
        if isinstance(around, ast.Subscript) and around.value is use and _taken(around, batch):
            yield Remark(around, f"{program.text(around)} takes the last sample of the batch and not the last position: {what} is made {first} batch_first=True")
        call = program.parent.get(around) if around is not None else None
        if isinstance(call, ast.Call) and isinstance(around, ast.Attribute) and call.func is around and around.attr == "mean":
            if known.number(keyword(call, "dim", 0)) == batch:
                yield Remark(call, f"{program.text(call)} averages over the batch and not over the positions: {what} is made {first} batch_first=True")


def _taken(node: ast.Subscript, axis: int) -> bool:
    """Whether an index takes the last element of an axis, and all of those before it."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if len(parts) <= axis or any(not _all(one) for one in parts[:axis]):
        return False
    one = parts[axis]
    return isinstance(one, ast.UnaryOp) and isinstance(one.op, ast.USub) and isinstance(one.operand, ast.Constant) and one.operand.value == 1


def _all(node: ast.AST) -> bool:
    return isinstance(node, ast.Slice) and node.lower is None and node.upper is None and node.step is None


def _cut(node: ast.Subscript) -> bool:
    """Whether an index takes a part of the features too, or the result is cut afterwards."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return len(parts) > 2 and not _all(parts[2])


# Masks ----------------------------------------------------------------------------


def _buffer(program: Program, node: ast.AST) -> ast.AST | None:
    """What a buffer of self was registered with."""
    of = program.class_of(node)
    if of is None or not isinstance(node, ast.Attribute):
        return None
    for call in ast.walk(of):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "register_buffer" and len(call.args) > 1:
            if isinstance(call.args[0], ast.Constant) and call.args[0].value == node.attr:
                return call.args[1]
    return None


def _triangle(program: Program, known: Trace, node: ast.AST, depth: int = 16) -> tuple[int, bool] | None:
    """What a causal mask marks: 1 the past, -1 the future; and whether it is of truth values (not 0 and 1)."""
    flip, truth = 1, False
    for _ in range(depth):
        node = known.value(node)
        if isinstance(node, ast.Attribute) and (found := _buffer(program, node)) is not None:
            node = found
        elif isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
            node, flip, truth = node.operand, -flip, True
        elif isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.comparators[0], ast.Constant):
            zero, equal = not node.comparators[0].value, isinstance(node.ops[0], (ast.Eq, ast.Is))
            if not equal and not isinstance(node.ops[0], (ast.NotEq, ast.Gt)):
                return None
            node, flip, truth = node.left, flip if equal != zero else -flip, True
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and known.number(node.left) == 1:
            node, flip = node.right, -flip
        elif isinstance(node, ast.Call):
            name, attribute = program.dotted(node.func) or "", node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if attribute in ("tril", "triu"):
                base = node.args[0] if name and node.args else node.func.value if isinstance(node.func, ast.Attribute) else None
                return _of_triangle(program, known, node, base, attribute, flip, truth, of_torch=bool(name))
            if attribute in ("eq", "logical_not", "bitwise_not"):
                if attribute == "eq" and not (node.args and known.number(node.args[0]) == 0):
                    return None
                node, flip, truth = node.args[0] if name and node.args else getattr(node.func, "value", node), -flip, True
            elif attribute in ("transpose", "t") and not name:
                node, flip = getattr(node.func, "value", node), -flip
            elif attribute in ("bool", "view", "unsqueeze", "to", "cuda", "type", "expand", "repeat", "float", "int", "long", "byte", "reshape", "type_as") and not name:
                truth = truth or attribute == "bool" or "bool" in program.text(node).rpartition("(")[2]
                node = getattr(node.func, "value", node)
            else:
                return None
        else:
            return None
    return None


def _of_triangle(
    program: Program, known: Trace, call: ast.Call, base: ast.AST | None, side: str, flip: int, truth: bool, *, of_torch: bool
) -> tuple[int, bool] | None:
    value = known.value(base) if base is not None else None
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in ("to", "bool", "cuda", "view") and program.dotted(value.func) is None:
        truth = truth or "bool" in program.text(value)
        value = known.value(value.func.value)
    if not isinstance(value, ast.Call) or not (program.dotted(value.func) or "").startswith(("torch.ones", "numpy.ones")):
        return None
    truth = truth or "bool" in program.text(value) or "bool" in program.text(call)
    diagonal = known.number(keyword(call, "diagonal", 1 if of_torch else 0) or keyword(call, "k")) if len(call.args) + len(call.keywords) > (1 if of_torch else 0) else 0
    if side == "triu":
        return (-flip, truth) if diagonal == 1 else None
    return (flip, truth) if diagonal == 0 else None


def _is_mask(program: Program, known: Trace, node: ast.AST) -> bool:
    return "mask" in program.text(node).lower() or _triangle(program, known, node) is not None


def _masks(program: Program) -> Iterator[Remark]:
    known = trace(program)
    for call in program.calls():
        found = _softmax_of(program, known, call)
        if found is not None and found[0] is call:
            yield from _before_softmax(program, known, found[1])
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("masked_fill", "masked_fill_") and len(call.args) == 2:
            number = known.number(call.args[1])
            triangle = _triangle(program, known, call.args[0])
            if number is not None and number < LEAST_FILL and triangle is not None and triangle[0] > 0:
                yield Remark(call, f"{_short(program, call)} hides the past and shows the future: the mask marks what may be seen")
        yield from _given_mask(program, known, call)
    for node in program.everywhere(ast.BinOp):
        assert isinstance(node, ast.BinOp)
        if isinstance(node.op, ast.Mult):
            yield from _after_softmax(program, known, node)


def _before_softmax(program: Program, known: Trace, argument: ast.AST) -> Iterator[Remark]:
    value = known.value(argument)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "masked_fill" and len(value.args) == 2:
        number = known.number(value.args[1])
        if number is not None and number > LEAST_FILL:
            yield Remark(value, f"{_short(program, value)} is followed by a softmax: what should be hidden counts as a score of {number:g}")
    elif isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Mult, ast.Add)):
        for one in (value.left, value.right):
            triangle = _triangle(program, known, one)
            if triangle is not None or (isinstance(value.op, ast.Mult) and isinstance(one, ast.Name) and one.id.lower().endswith("mask")):
                done = "multiplied" if isinstance(value.op, ast.Mult) else "added"
                yield Remark(value, f"{_short(program, one)} is {done} to the scores as 0 and 1 before the softmax, so it hides nothing")


def _after_softmax(program: Program, known: Trace, node: ast.BinOp) -> Iterator[Remark]:
    for weights, mask in ((node.left, node.right), (node.right, node.left)):
        found = _softmax_of(program, known, weights)
        if found is None or not _is_mask(program, known, mask) or "drop" in program.text(mask):
            continue
        texts = [program.text(one) for one in known.origins(found[1]) if isinstance(one, (ast.Call, ast.Compare, ast.Name))]
        if any(word in text.lower() for text in texts for word in ("mask", "where", "inf", "bias")):
            continue
        function = program.function_of(node)
        if function is None or any(isinstance(one, ast.Div) or (isinstance(one, ast.Attribute) and one.attr in ("normalize", "div", "div_")) for one in ast.walk(function) if _after(one, node, program)):
            continue
        yield Remark(node, f"{_short(program, node)} masks after the softmax: the weights that are left do not add up to 1")


def _after(one: ast.AST, node: ast.AST, program: Program) -> bool:
    at = one if hasattr(one, "lineno") else program.parent.get(one, one)
    return getattr(at, "lineno", 10**9) >= getattr(node, "lineno", 0)


def _given_mask(program: Program, known: Trace, call: ast.Call) -> Iterator[Remark]:
    name = program.dotted(call.func) or ""
    fused = name.endswith("functional.scaled_dot_product_attention")
    module = "" if fused else _made_name(program, known, call)
    if not fused and module not in _ATTENTION:
        return
    allowed = "True marks what may be seen" if fused else "True marks what is hidden"
    for one in call.keywords:
        if one.arg in ("attn_mask", "mask", "src_mask", "tgt_mask"):
            triangle = _triangle(program, known, one.value)
            if triangle is None:
                continue
            if not triangle[1]:
                yield Remark(call, f"{one.arg}={_short(program, one.value)} is 0 and 1 and is added to the scores, so it hides nothing")
            elif (triangle[0] > 0) != fused:
                yield Remark(call, f"{one.arg}={_short(program, one.value)} shows the future and hides the past: {allowed}")
        elif one.arg is not None and one.arg.endswith("key_padding_mask"):
            value = known.value(one.value)
            if isinstance(value, ast.Compare) and len(value.ops) == 1 and isinstance(value.ops[0], ast.NotEq):
                said = f"{one.arg}={_short(program, one.value)} is {_short(program, value)}, which hides the words and shows the padding: {allowed}"
                yield Remark(call, said)


# Views ------------------------------------------------------------------------------


def _mixed(program: Program) -> Iterator[Remark]:
    shapes = Shapes(program)
    for call in program.calls():
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("view", "reshape") and call.args:
            moved = shapes.moved(call)
            if moved is not None:
                said = f"{_short(program, call)} cuts {moved[1]} into {moved[2]} without a transpose: it mixes {moved[0]} with another axis"
                yield Remark(call, said)


RULES: tuple[Rule, ...] = (
    Rule("view-mixes-axes", "model", "numbers of different samples, positions or channels end up in one row", "transpose or permute before (or after) the view", _mixed),
    Rule("softmax-over-another-axis", "model", "the weights that are summed do not add up to 1, and each depends on what it should not see", "give both the same axis", _softmax_axis),
    Rule("softmax-of-one-value", "model", "it has no gradient, and what computes its input learns nothing", "run the softmax over the axis of the choices, or use a sigmoid", _softmax_of_one),
    Rule("batch-for-time", "model", "the model judges a sequence by another sample, or by a part of what was read", "index the axis of the positions, and take both halves where they have read everything", _recurrent),
    Rule("mask-without-effect", "model", "positions see what they should not see, or the wrong ones", "fill the scores of what is hidden with -inf before the softmax", _masks),
)
