"""Masks of attention: added as 0 and 1, applied after the softmax, of the other convention. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.model.softmax import made_name, softmax_of
from probe.diagnose.code.origins import Trace, trace
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rule
from probe.diagnose.code.syntax import argument, compares, is_attribute, is_binary, is_method, short, text_of

_ATTENTION = (
    "torch.nn.MultiheadAttention",
    "torch.nn.Transformer",
    "torch.nn.TransformerDecoderLayer",
    "torch.nn.TransformerEncoder",
    "torch.nn.TransformerEncoderLayer",
    "torch.nn.TransformerDecoder",
)
LEAST_FILL = -20.0
"""A score that is filled with more than this keeps a share of the softmax that matters: exp(-20) is 2e-9."""


def _made(known: Trace, call: ast.Call) -> ast.Call | None:
    """The call that made the module which a call runs."""
    found = known.value(call.func)
    return found if isinstance(found, ast.Call) and found is not call else None


def _made_name(program: Program, known: Trace, call: ast.Call) -> str:
    made = _made(known, call)
    return program.called(made) if made is not None else ""


def _buffer(program: Program, node: ast.AST) -> ast.AST | None:
    """What a buffer of self was registered with."""
    of = program.class_of(node)
    if of is None or not isinstance(node, ast.Attribute):
        return None
    for call in ast.walk(of):
        if (
            (is_method(call, "register_buffer") and len(call.args) > 1)
            and isinstance(call.args[0], ast.Constant)
            and call.args[0].value == node.attr
        ):
            return call.args[1]
    return None


def _triangle(program: Program, known: Trace, node: ast.AST, depth: int = 16) -> tuple[int, bool] | None:
    """What a causal mask marks: 1 the past, -1 the future; and whether it holds truth values."""
    flip, truth = 1, False
    for _ in range(depth):
        node = known.value(node)
        if isinstance(node, ast.Attribute) and (found := _buffer(program, node)) is not None:
            node = found
        elif isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
            node, flip, truth = node.operand, -flip, True
        elif (
            isinstance(node, ast.Compare)
            and len(node.ops) == 1
            and isinstance(node.comparators[0], ast.Constant)
        ):
            zero, equal = not node.comparators[0].value, isinstance(node.ops[0], (ast.Eq, ast.Is))
            if not equal and not isinstance(node.ops[0], (ast.NotEq, ast.Gt)):
                return None
            node, flip, truth = node.left, flip if equal != zero else -flip, True
        elif is_binary(node, ast.Sub) and known.number(node.left) == 1:
            node, flip = node.right, -flip
        elif isinstance(node, ast.Call):
            name, attribute = (program.called(node), node.func.attr if is_method(node) else "")
            if attribute in ("tril", "triu"):
                base = node.args[0] if name and node.args else node.func.value if is_method(node) else None
                return _of_triangle(program, known, node, base, attribute, flip, truth, of_torch=bool(name))
            if attribute in ("eq", "logical_not", "bitwise_not"):
                if attribute == "eq" and not (node.args and known.number(node.args[0]) == 0):
                    return None
                node, flip, truth = (
                    node.args[0] if name and node.args else getattr(node.func, "value", node),
                    -flip,
                    True,
                )
            elif attribute in ("transpose", "t") and not name:
                node, flip = getattr(node.func, "value", node), -flip
            elif (
                attribute
                in (
                    "bool",
                    "view",
                    "unsqueeze",
                    "to",
                    "cuda",
                    "type",
                    "expand",
                    "repeat",
                    "float",
                    "int",
                    "long",
                    "byte",
                    "reshape",
                    "type_as",
                )
                and not name
            ):
                truth = truth or attribute == "bool" or "bool" in text_of(node).rpartition("(")[2]
                node = getattr(node.func, "value", node)
            else:
                return None
        else:
            return None
    return None


def _of_triangle(
    program: Program,
    known: Trace,
    call: ast.Call,
    base: ast.AST | None,
    side: str,
    flip: int,
    truth: bool,
    *,
    of_torch: bool,
) -> tuple[int, bool] | None:
    value = known.value(base) if base is not None else None
    while is_method(value, "to", "bool", "cuda", "view") and program.dotted(value.func) is None:
        truth = truth or "bool" in text_of(value)
        value = known.value(value.func.value)
    if not isinstance(value, ast.Call) or not program.called(value).startswith(("torch.ones", "numpy.ones")):
        return None
    truth = truth or "bool" in text_of(value) or "bool" in text_of(call)
    diagonal = (
        known.number(argument(call, "diagonal", 1 if of_torch else 0) or argument(call, "k"))
        if len(call.args) + len(call.keywords) > (1 if of_torch else 0)
        else 0
    )
    if side == "triu":
        return (-flip, truth) if diagonal == 1 else None
    return (flip, truth) if diagonal == 0 else None


def _is_mask(program: Program, known: Trace, node: ast.AST) -> bool:
    return "mask" in text_of(node).lower() or _triangle(program, known, node) is not None


def _masks(program: Program) -> Iterator[Remark]:
    known = trace(program)
    for call in program.calls():
        found = softmax_of(program, known, call)
        if found is not None and found[0] is call:
            yield from _before_softmax(program, known, found[1])
        if is_method(call, "masked_fill", "masked_fill_") and len(call.args) == 2:
            number = known.number(call.args[1])
            triangle = _triangle(program, known, call.args[0])
            if number is not None and number < LEAST_FILL and triangle is not None and triangle[0] > 0:
                yield Remark(
                    call,
                    f"{short(call)} hides the past and shows the future: the mask marks what may be seen",
                )
        yield from _given_mask(program, known, call)
    for node in program.everywhere(ast.BinOp):
        if isinstance(node.op, ast.Mult):
            yield from _after_softmax(program, known, node)


def _before_softmax(program: Program, known: Trace, argument: ast.AST) -> Iterator[Remark]:
    value = known.value(argument)
    if is_method(value, "masked_fill") and len(value.args) == 2:
        number = known.number(value.args[1])
        if number is not None and number > LEAST_FILL:
            yield Remark(
                value,
                f"{short(value)} is followed by a softmax: what should be hidden counts as a "
                f"score of {number:g}",
            )
    elif is_binary(value, ast.Mult, ast.Add):
        for one in (value.left, value.right):
            triangle = _triangle(program, known, one)
            if triangle is not None or (
                isinstance(value.op, ast.Mult)
                and isinstance(one, ast.Name)
                and one.id.lower().endswith("mask")
            ):
                done = "multiplied" if isinstance(value.op, ast.Mult) else "added"
                yield Remark(
                    value,
                    f"{short(one)} is {done} to the scores as 0 and 1 before the softmax, so it "
                    "hides nothing",
                )


def _after_softmax(program: Program, known: Trace, node: ast.BinOp) -> Iterator[Remark]:
    for weights, mask in ((node.left, node.right), (node.right, node.left)):
        found = softmax_of(program, known, weights)
        if found is None or not _is_mask(program, known, mask) or "drop" in text_of(mask):
            continue
        texts = [
            text_of(one)
            for one in known.origins(found[1])
            if isinstance(one, (ast.Call, ast.Compare, ast.Name))
        ]
        if any(word in text.lower() for text in texts for word in ("mask", "where", "inf", "bias")):
            continue
        function = program.function_of(node)
        if function is None or any(
            isinstance(one, ast.Div) or (is_attribute(one, "normalize", "div", "div_"))
            for one in ast.walk(function)
            if _after(one, node, program)
        ):
            continue
        yield Remark(
            node, f"{short(node)} masks after the softmax: the weights that are left do not add up to 1"
        )


def _after(one: ast.AST, node: ast.AST, program: Program) -> bool:
    at = one if hasattr(one, "lineno") else program.parent.get(one, one)
    return getattr(at, "lineno", 10**9) >= getattr(node, "lineno", 0)


def _given_mask(program: Program, known: Trace, call: ast.Call) -> Iterator[Remark]:
    name = program.called(call)
    fused = name.endswith("functional.scaled_dot_product_attention")
    module = "" if fused else made_name(program, known, call)
    if not fused and module not in _ATTENTION:
        return
    allowed = "True marks what may be seen" if fused else "True marks what is hidden"
    for one in call.keywords:
        if one.arg in ("attn_mask", "mask", "src_mask", "tgt_mask"):
            triangle = _triangle(program, known, one.value)
            if triangle is None:
                continue
            if not triangle[1]:
                yield Remark(
                    call,
                    f"{one.arg}={short(one.value)} is 0 and 1 and is added to the scores, so it "
                    "hides nothing",
                )
            elif (triangle[0] > 0) != fused:
                yield Remark(
                    call, f"{one.arg}={short(one.value)} shows the future and hides the past: {allowed}"
                )
        elif one.arg is not None and one.arg.endswith("key_padding_mask"):
            value = known.value(one.value)
            if compares(value, ast.NotEq):
                said = (
                    f"{one.arg}={short(one.value)} is {short(value)}, which hides the "
                    f"words and shows the padding: {allowed}"
                )
                yield Remark(call, said)


RULES: tuple[Rule, ...] = (
    Rule(
        "mask-without-effect",
        "model",
        "positions see what they should not see, or the wrong ones",
        "fill the scores of what is hidden with -inf before the softmax",
        _masks,
    ),
)
