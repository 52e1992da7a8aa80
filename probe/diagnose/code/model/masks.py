"""Masks of attention: added as 0 and 1, applied after the softmax, of the other convention. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import meant_by
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.model.modules import buffer_of, softmax_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    MethodCall,
    argument,
    compares,
    is_attribute,
    is_binary,
    is_method,
    is_name,
    operands,
    says,
    short,
    text_of,
)

RULES = Rules("model")

_ATTENTION = (
    "torch.nn.MultiheadAttention", "torch.nn.Transformer", "torch.nn.TransformerDecoderLayer",
    "torch.nn.TransformerEncoder", "torch.nn.TransformerEncoderLayer", "torch.nn.TransformerDecoder",
)
_KEEPS = frozenset({
    "bool", "view", "unsqueeze", "to", "cuda", "type", "expand", "repeat", "float", "int", "long", "byte",
    "reshape", "type_as",
})
_MASKS = ("mask", "causal", "future", "bias", "inf", "allowed", "visible")
_FILLED = ("torch.ones", "numpy.ones", "torch.full", "numpy.full")
LEAST_FILL = -20.0
"""A score that is filled with more than this keeps a share of the softmax that matters: exp(-20) is 2e-9."""
IGNORED = -100
"""What labels are filled with where nothing is asked for."""


def _triangle(program: Program, flow: Flow, node: ast.AST, depth: int = 16) -> tuple[int, bool] | None:
    """What a causal mask marks: 1 the past, -1 the future; and whether it holds truth values."""
    flip, truth = 1, False
    for _ in range(depth):
        node = flow.value(node)
        if isinstance(node, ast.Attribute) and (found := buffer_of(program, node)) is not None:
            node = found
        elif isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
            node, flip, truth = node.operand, -flip, True
        elif compares(node, ast.cmpop) and isinstance(node.comparators[0], ast.Constant):
            zero, equal = not node.comparators[0].value, isinstance(node.ops[0], (ast.Eq, ast.Is))
            if not equal and not isinstance(node.ops[0], (ast.NotEq, ast.Gt)):
                return None
            node, flip, truth = node.left, flip if equal != zero else -flip, True
        elif is_binary(node, ast.Sub) and flow.number(node.left) == 1:
            node, flip = node.right, -flip
        elif is_method(node):
            name, attribute = program.called(node), node.func.attr
            if attribute in ("tril", "triu"):
                return _of_triangle(flow, node, flip, truth)
            if attribute in ("eq", "logical_not", "bitwise_not"):
                if attribute == "eq" and not (node.args and flow.number(node.args[0]) == 0):
                    return None
                of = node.args[0] if name and node.args else node.func.value
                node, flip, truth = of, -flip, True
            elif attribute in ("transpose", "t") and not name:
                node, flip = node.func.value, -flip
            elif attribute in _KEEPS and not name:
                truth = truth or attribute == "bool" or "bool" in text_of(node).rpartition("(")[2]
                node = node.func.value
            else:
                return None
        else:
            return None
    return None


def _of_triangle(flow: Flow, call: MethodCall, flip: int, truth: bool) -> tuple[int, bool] | None:
    """The same, of a call of tril or triu whose diagonal ends at each position itself."""
    free = flow.program.called(call) != ""
    value = flow.value(call.args[0] if free and call.args else call.func.value)
    while is_method(value, "to", "bool", "cuda", "view") and flow.program.dotted(value.func) is None:
        truth = truth or "bool" in text_of(value)
        value = flow.value(value.func.value)
    if not flow.program.called(value).startswith(("torch.ones", "numpy.ones")):
        return None
    truth = truth or "bool" in text_of(value) or "bool" in text_of(call)
    given = _diagonal(flow, call)
    diagonal = flow.number(given) if len(call.args) + len(call.keywords) > free else 0
    if call.func.attr == "triu":
        return (-flip, truth) if diagonal == 1 else None
    return (flip, truth) if diagonal == 0 else None


def _diagonal(flow: Flow, call: MethodCall) -> ast.expr | None:
    return argument(call, "diagonal", int(flow.program.called(call) != "")) or argument(call, "k")


@RULES.add(
    "mask-shows-what-follows",
    "each position reads the one that it has to predict: the loss falls, and what is generated stays poor",
    "let a position see itself and what is before it: triu(diagonal=1) is hidden, tril() is seen",
)
def _one_off(program: Program) -> Iterator[Remark]:
    """The triangle of a square mask that leaves positions after the own one visible."""
    flow = flow_of(program)
    for call in program.calls():
        if not is_method(call, "triu", "tril"):
            continue
        given = _diagonal(flow, call)
        if not isinstance(given, ast.Constant) or not isinstance(given.value, int):
            continue  # a number with a name is a look-ahead that is meant
        beyond = given.value - (call.func.attr == "triu")
        if beyond > 0 and _is_square(program, flow, call) and says(program.statement(call), *_MASKS):
            seen = "the next one" if beyond == 1 else f"the next {beyond}"
            yield Remark(call, f"{short(call)} lets each position see {seen}")


def _is_square(program: Program, flow: Flow, call: MethodCall) -> bool:
    """Whether tril or triu is applied to a square of ones."""
    value = flow.value(call.args[0] if program.called(call) and call.args else call.func.value)
    while is_method(value, *_KEEPS) and program.called(value) == "":
        value = flow.value(value.func.value)
    if not isinstance(value, ast.Call) or not program.called(value).startswith(_FILLED):
        return False
    first = value.args[0] if value.args else None
    sizes = first.elts if isinstance(first, (ast.Tuple, ast.List)) else value.args
    return len(sizes) >= 2 and text_of(sizes[-1]) == text_of(sizes[-2])


@RULES.add(
    "mask-without-effect", "positions see what they should not see, or the wrong ones",
    "fill the scores of what is hidden with -inf before the softmax",
)
def _masks(program: Program) -> Iterator[Remark]:
    flow = flow_of(program)
    for call in program.calls():
        found = softmax_of(flow, call)
        if found is not None and found[0] is call:
            yield from _before_softmax(program, flow, found[1], call)
        if is_method(call, "masked_fill", "masked_fill_") and len(call.args) == 2:
            number = flow.number(call.args[1])
            triangle = _triangle(program, flow, call.args[0])
            if number is not None and number < LEAST_FILL and triangle is not None and triangle[0] > 0:
                yield Remark(
                    call,
                    f"{short(call)} hides the past and shows the future: the mask marks what may be seen",
                )
            filled = number is not None and number < LEAST_FILL
            if filled and number != IGNORED and _are_words(flow, call.args[0]):
                yield Remark(
                    call, f"{short(call)} hides the words and shows the padding: {short(call.args[0])} is "
                    "true where a position is within its length"
                )
            words = _compared_with_padding(flow, call.args[0])
            shows = words is not None and not _is_equal(words) and _of_tokens(words)
            if number is not None and number < LEAST_FILL and words is not None and shows:
                said = f"{short(call.args[0])} is {short(words)}"
                yield Remark(call, f"{short(call)} hides the words and shows the padding: {said}")
        yield from _given_mask(program, flow, call)
    for node in program.everywhere(ast.BinOp):
        if isinstance(node.op, ast.Mult):
            yield from _after_softmax(program, flow, node)


def _are_words(flow: Flow, node: ast.AST) -> bool:
    """Whether a mask is true within the lengths of its sequences: arange < lengths."""
    value = flow.value(node)
    while is_method(value, *_KEEPS) and flow.program.called(value) == "":
        value = flow.value(value.func.value)
    values = [value, *(flow.value(given) for given in flow.passed(value))]
    for one in (part for given in values for part in flow.program.results(given) or [given]):
        if compares(one, ast.Lt) and says(one.comparators[0], "len", "count", "num", "size") and any(
            flow.program.called(part).endswith(".arange") for part in flow.origins(one.left)
        ):
            return True
    return False


def _before_softmax(
    program: Program, flow: Flow, argument: ast.AST, call: ast.Call
) -> Iterator[Remark]:
    value = flow.value(argument)
    if is_method(value, "masked_fill") and len(value.args) == 2:
        number = flow.number(value.args[1])
        if number is not None and number > LEAST_FILL:
            yield Remark(
                value,
                f"{short(value)} is followed by a softmax: what should be hidden counts as a "
                f"score of {number:g}",
            )
    elif is_binary(value, ast.Mult, ast.Add):
        for one in (value.left, value.right):
            named = isinstance(value.op, ast.Mult) and is_name(one) and one.id.lower().endswith("mask")
            if named and _masked_again(program, call, text_of(one)):
                continue
            if named or _triangle(program, flow, one) is not None:
                done = "multiplied" if isinstance(value.op, ast.Mult) else "added"
                yield Remark(
                    value,
                    f"{short(one)} is {done} to the scores as 0 and 1 before the softmax, so it "
                    "hides nothing",
                )


def _masked_again(program: Program, call: ast.Call, mask: str) -> bool:
    """Whether a mask is multiplied to the weights too, after their softmax."""
    before = set(ast.walk(call))
    return any(
        is_binary(one, ast.Mult) and one not in before and one.lineno >= call.lineno
        and mask in (text_of(one.left), text_of(one.right))
        for one in ast.walk(program.frame(call))
    )


def _after_softmax(program: Program, flow: Flow, node: ast.BinOp) -> Iterator[Remark]:
    if is_attribute(program.parent.get(node), "sum"):
        return  # one of the probabilities is picked
    for weights, mask in operands(node):
        found = softmax_of(flow, weights)
        if found is None or "drop" in text_of(mask) or _of_rows(mask):
            continue
        if not says(mask, "mask") and _triangle(program, flow, mask) is None:
            continue
        parts = [one for one in flow.origins(found[1]) if isinstance(one, (ast.Call, ast.Compare, ast.Name))]
        function = program.function_of(node)
        if function is None or any(says(one, "mask", "where", "inf", "bias") for one in parts):
            continue
        later = [one for one in ast.walk(function) if _after(one, node, program)]
        if any(isinstance(one, ast.Div) or is_attribute(one, "normalize", "div", "div_") for one in later):
            continue
        yield Remark(
            node, f"{short(node)} masks after the softmax: the weights that are left do not add up to 1"
        )


def _of_rows(mask: ast.AST) -> bool:
    """Whether a mask has length 1 along the last axis: it takes whole rows of weights away, or none."""
    return text_of(mask).replace(" ", "").endswith((",1)", "unsqueeze(-1)", ",None]"))


def _after(one: ast.AST, node: ast.AST, program: Program) -> bool:
    at = one if hasattr(one, "lineno") else program.parent.get(one, one)
    return getattr(at, "lineno", 10**9) >= getattr(node, "lineno", 0)


def _mean_over(program: Program, call: ast.Call, mask: ast.AST) -> ast.AST | None:
    """The mean in the same function that counts the positions where a mask is true."""
    flow, function = flow_of(program), program.function_of(call)
    if function is None or not isinstance(mask, ast.Name):
        return None
    for node in ast.walk(function):
        if not is_binary(node, ast.Div) or not is_method(node.left, "sum"):
            continue
        if not any(is_method(one, "sum") for one in ast.walk(node.right)):
            continue
        parts = list(flow.origins(node.right))
        plain = not any(
            isinstance(one, (ast.Invert, ast.Not, ast.Sub, ast.Compare))
            or is_method(one, "logical_not", "eq")
            for one in parts
        )
        if plain and any(is_name(one, mask.id) for one in parts):
            return node
    return None


def _given_mask(program: Program, flow: Flow, call: ast.Call) -> Iterator[Remark]:
    name = program.called(call)
    fused = name.endswith("functional.scaled_dot_product_attention")
    module = "" if fused else program.called(flow.maker(call))
    if not fused and module not in _ATTENTION:
        return
    allowed = "True marks what may be seen" if fused else "True marks what is hidden"
    for one in call.keywords:
        if one.arg in ("attn_mask", "mask", "src_mask", "tgt_mask"):
            triangle = _triangle(program, flow, one.value)
            if triangle is None:
                padding = _compared_with_padding(flow, one.value) if fused else None
                if padding is not None and _is_equal(padding):
                    said = (
                        f"{one.arg}={short(one.value)} is {short(padding)}, which shows the padding and "
                        f"hides the words: {allowed}"
                    )
                    yield Remark(call, said)
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
            value = flow.value(one.value)
            mean = _mean_over(program, call, one.value)
            if mean is not None:
                said = (
                    f"{one.arg}={short(one.value)} hides where it is true, and {short(mean)} counts these "
                    f"positions alone: {allowed}"
                )
                yield Remark(call, said)
            elif _are_words(flow, one.value):
                said = f"{one.arg}={short(one.value)} hides the words and shows the padding: {allowed}"
                yield Remark(call, said)
            words = value if compares(value, ast.NotEq) else _compared_with_padding(flow, one.value)
            if words is not None and not _is_equal(words):
                said = (
                    f"{one.arg}={short(one.value)} is {short(words)}, which hides the "
                    f"words and shows the padding: {allowed}"
                )
                yield Remark(call, said)


def _bare(flow: Flow, node: ast.AST) -> ast.AST:
    """An expression without the indices and methods that leave its values as they are."""
    while isinstance(node, ast.Subscript) or (is_method(node, *_KEEPS) and flow.program.called(node) == ""):
        node = node.value if isinstance(node, ast.Subscript) else node.func.value
    return node


def _compared_with_padding(flow: Flow, node: ast.AST) -> ast.AST | None:
    """The one comparison with the padding that a mask is, wherever it is made; None if there are several."""
    found: dict[str, ast.AST] = {}
    for made in meant_by(flow, _bare(flow, node)):
        one = _bare(flow, made)
        sides = [one.left, one.comparators[0]] if compares(one, ast.Eq, ast.NotEq) else []
        if is_method(one, "eq", "ne") and len(one.args) == 1:
            sides = [one.func.value, one.args[0]]
        if len(sides) != 2 or not (says(sides[1], "pad") or flow.number(sides[1]) == 0):
            return None
        found[text_of(one)] = one
    return next(iter(found.values())) if len(found) == 1 else None


def _of_tokens(comparison: ast.AST) -> bool:
    """Whether a comparison with 0 asks for the token of the padding, and not what a mask says."""
    return says(comparison, "pad") or not says(comparison, "mask", "keep", "valid", "adj")


def _is_equal(comparison: ast.AST) -> bool:
    return compares(comparison, ast.Eq) or is_method(comparison, "eq")
