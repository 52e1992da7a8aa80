"""Losses that are written out: focal weights, overlaps, quantiles. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import SHAPES, output_of, unshaped
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rollout.terms import exponent_of
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    ORDERS,
    compares,
    is_binary,
    is_method,
    is_negative,
    last_word,
    number_in,
    operands,
    short,
    text_of,
)
from probe.diagnose.code.torch_losses import is_loss

RULES = Rules("loop")
_BOUNDS = re.compile(r"sigmoid|softmax|relu|softplus|clamp|tanh|exp\b", re.I)
"""What a network's output goes through where it cannot be negative, or is bounded."""
_PREDICTED = re.compile(r"pred|output|^out$|_hat$|^yhat$|^logits$", re.I)
_WANTED = re.compile(r"target|true|label|^y$|^t$|actual|gt$", re.I)


@RULES.add("focal-weight", "easy samples weigh as much as hard ones", "take the loss of each sample: ce = F.cross_entropy(..., reduction=\"none\"), p = torch.exp(-ce)")
def _focal(program: Program) -> Iterator[Remark]:
    """A focal loss whose weight is computed with the wrong sign."""
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp, ast.Call):
        base = node.left if is_binary(node, ast.Pow) else program.operand(node) if is_method(node, "pow") else None
        if not is_binary(base, ast.Sub) or number_in(base.left) != 1:
            continue
        inner = exponent_of(program, flow.value(base.right))
        loss = flow.value(inner.operand if is_negative(inner) else inner)
        if not isinstance(loss, ast.Call) or not is_loss(program, loss):
            continue
        if not is_negative(inner):
            yield Remark(node, f"{short(node)}: exp of {short(loss)} is the inverse of the probability, so 1 minus it is negative")


@RULES.add("overlap-of-logits", "logits are unbounded: the loss can fall below any number without a better overlap", "apply sigmoid or softmax before the overlap is computed")
def _overlap(program: Program) -> Iterator[Remark]:
    """A Dice or Jaccard overlap of what a network gives, without the function that makes it a probability."""
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp):
        if not is_binary(node, ast.Div):
            continue
        products = [one for one in _sums(program, flow, node.left) if is_binary(one, ast.Mult)]
        totals = {text_of(one) for one in _sums(program, flow, node.right)}
        for product in products:
            sides = [one for one in (product.left, product.right) if text_of(one) in totals]
            for side in sides if len(sides) == 2 else ():
                output = output_of(flow, unshaped(flow, side))
                if output is not None and not _bounded(program, flow, output):
                    yield Remark(node, f"{short(node)} is the overlap with {text_of(side)}, the output of {short(output)}, which no sigmoid or softmax bounds")
                    break


def _sums(program: Program, flow: Flow, node: ast.AST, depth: int = 4) -> Iterator[ast.expr]:
    """What an expression adds up by `.sum()`."""
    for one in ast.walk(node):
        if is_method(one, "sum"):
            if (inner := program.operand(one)) is not None:
                yield inner
        elif depth and isinstance(one, ast.Name) and isinstance(held := flow.held(one), (ast.BinOp, ast.Call)):
            yield from _sums(program, flow, held, depth - 1)


def _bounded(program: Program, flow: Flow, output: ast.Call) -> bool:
    """Whether the network that an output comes from, or what is known of it, may bound it."""
    of = program.classes.get(program.kind_name(output.func), [])
    made = flow.value(output.func)
    known: list[ast.AST] = [*of] or ([made] if isinstance(made, ast.Call) and program.called(made).startswith("torch.nn.") else [])
    if len(known) != 1:
        return True
    if isinstance(known[0], ast.ClassDef):
        forward = program.method(known[0], "forward")
        ends = [one for one in ast.walk(forward) if isinstance(one, ast.Return)] if forward is not None else []
        text = " ".join(text_of(flow.value(one.value)) for one in ends if one.value is not None)
        return bool(re.search(r"sigmoid|softmax", ast.unparse(known[0]), re.I) or _BOUNDS.search(text))
    last = known[0].args[-1:] if isinstance(known[0], ast.Call) and last_word(known[0].func) == "Sequential" else known
    return bool(not last or _BOUNDS.search(text_of(last[0])))


@RULES.add("overlap-of-decisions", "a comparison has no gradient: this term changes the loss and trains nothing", "take the overlap of the probabilities themselves")
def _of_decisions(program: Program) -> Iterator[Remark]:
    """An overlap in a loss that is computed of predictions after their threshold."""
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp):
        function, of = program.function_of(node), program.class_of(node)
        names = [one.name.lower() for one in (function, of) if one is not None]
        if not is_binary(node, ast.Div) or not any("loss" in name for name in names):
            continue
        for product in (one for one in _sums(program, flow, node.left) if is_binary(one, ast.Mult)):
            decided = [one for one in (product.left, product.right) if _is_decided(flow, one)]
            if len(decided) == 1:
                yield Remark(product, f"{short(product)} multiplies {text_of(decided[0])}, which is {short(unshaped(flow, decided[0]) or decided[0], 40)}: nothing flows back through it")
                break


def _is_decided(flow: Flow, node: ast.AST) -> bool:
    """Whether a value is a prediction after its threshold."""
    value = unshaped(flow, node, "type")
    if is_method(value, "round"):
        value = flow.program.operand(value)
        return value is not None and not _WANTED.search(last_word(value))
    if not compares(value, *ORDERS) or flow.number(value.comparators[0]) is None:
        return False
    source = unshaped(flow, value.left)
    return is_method(source, "sigmoid", "softmax") or bool(_PREDICTED.search(last_word(value.left)))


@RULES.add("quantile-reversed", "the network learns the quantile 1 - q", "take the difference target - prediction")
def _quantile(program: Program) -> Iterator[Remark]:
    """The pinball loss of the difference prediction - target."""
    flow = flow_of(program)
    for call in program.calls():
        if program.called(call) not in ("torch.max", "torch.maximum") or len(call.args) != 2:
            continue
        factors = [_share_and_error(flow, one) for one in call.args]
        if None in factors:
            continue
        (first, error), (second, other) = sorted((one for one in factors if one is not None), key=lambda one: len(one[0]))
        if error != other or second.replace(" ", "") not in (f"{first}-1", f"{first}-1.0"):
            continue
        difference = next((value for side in ast.walk(call) if isinstance(side, ast.Name) and side.id == error and is_binary(value := flow.value(side), ast.Sub)), None)
        if difference is not None and _is_prediction(flow, difference.left) and not _is_prediction(flow, difference.right):
            yield Remark(call, f"{short(call)} weights predictions above the target by {first}, and those below it by 1 - {first}, because {error} is {short(difference)}")


def _share_and_error(flow: Flow, node: ast.AST) -> tuple[str, str] | None:
    """The factor and the error of `q * e` and `(q - 1) * e`."""
    product = flow.value(node)
    if not is_binary(product, ast.Mult):
        return None
    for error, share in operands(product):
        if isinstance(error, ast.Name) and is_binary(flow.value(error), ast.Sub):
            return text_of(share), error.id
    return None


def _is_prediction(flow: Flow, node: ast.AST) -> bool:
    at = node
    while isinstance(at, ast.Subscript) or (is_method(at, *SHAPES) and flow.program.dotted(at.func) is None):
        at = at.value if isinstance(at, ast.Subscript) else at.func.value
    if any(output_of(flow, one.value if isinstance(one, ast.Subscript) else one) is not None for one in [at, *flow.possible(at)]):
        return True
    word = last_word(at)
    return bool(_PREDICTED.search(word)) and not _WANTED.search(word)


@RULES.add("half-a-cross-entropy", "the loss is smallest if the answer is always yes", "add the other half: -(y * log(p) + (1 - y) * log(1 - p))")
def _half(program: Program) -> Iterator[Remark]:
    """A binary cross-entropy of a sigmoid without the term for the other class."""
    flow = flow_of(program)
    for call in program.calls():
        probability = _logarithm_of(program, call)
        origin = unshaped(flow, probability, "clamp")
        product = program.parent.get(call)
        if not is_method(origin, "sigmoid") or not is_binary(product, ast.Mult):
            continue
        frame = program.frame(call)
        others = [one for one in ast.walk(frame) if isinstance(one, ast.Call) and one is not call and _logarithm_of(program, one) is not None]
        negated = any(is_negative(one) for one in program.parents(call) if isinstance(one, ast.UnaryOp))
        label = product.right if product.left is call else product.left
        if negated and not others and isinstance(flow.key(label), tuple) and not is_binary(flow.value(label), ast.Sub, ast.Div):
            yield Remark(product, f"{short(product)} is all that the loss says of {text_of(probability) if probability is not None else ''}: where {short(label, 30)} is 0, nothing holds it back")


def _logarithm_of(program: Program, node: ast.AST) -> ast.expr | None:
    """p of `torch.log(p)`, `p.log()` and `torch.log(p + eps)`."""
    if not is_method(node, "log") or program.called(node) not in ("torch.log", ""):
        return None
    inner = program.operand(node)
    return inner.left if is_binary(inner, ast.Add) and number_in(inner.right) is not None else inner


@RULES.add("smoothed-beyond-one", "the targets add up to more than 1: all classes are asked for more than they can have", "write one_hot * (1 - eps) + eps / classes")
def _smoothing(program: Program) -> Iterator[Remark]:
    """Label smoothing of one-hot targets that adds the whole share to each class."""
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp):
        for scaled, added in operands(node) if is_binary(node, ast.Add) else ():
            if not is_binary(scaled, ast.Mult):
                continue
            for hot, rest in operands(scaled):
                keeps = is_binary(rest, ast.Sub) and number_in(rest.left) == 1 and text_of(rest.right) == text_of(added)
                if keeps and any(is_method(one, "one_hot") for one in flow.origins(hot)):
                    yield Remark(node, f"{short(node)} gives {text_of(added)} to each class instead of to all of them together")
