"""Scores and mixtures on the wrong scale, or along the wrong dimension. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import is_model, unshaped
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.model.modules import softmax_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    is_binary,
    is_method,
    last_word,
    number_in,
    operands,
    returned,
    short,
    text_of,
)
from probe.diagnose.code.torch_losses import loss_name

RULES = Rules("loop")
_TEMPERATURE = re.compile(r"(softmax_)?(temperature|temp|tau|t)", re.I)
_WEIGHTS = re.compile(r"^(pi|pis|mix\w*|weights?|w|alphas?|probs?|coef\w*|gates?)$", re.I)
_PRODUCTS = ("matmul", "bmm", "einsum", "mm")


@RULES.add("temperature-on-one-side", "the student is asked for probabilities that its own scale cannot reach", "divide both logits by the temperature")
def _temperature(program: Program) -> Iterator[Remark]:
    """A distillation loss whose temperature only one of the two distributions has."""
    flow = flow_of(program)
    for call in program.calls():
        if loss_name(program, call) not in ("kl_div", "KLDivLoss") or len(call.args) < 2:
            continue
        student, teacher = (_logits(program, flow, one) for one in call.args[:2])
        if student is None or teacher is None:
            continue
        one, other = flow.value(student), flow.value(teacher)
        if is_binary(other, ast.Div) and _of_network(flow, one) and _is_number(flow, other.right):
            yield Remark(call, f"the targets are softened by {text_of(other.right)} ({short(other, 40)}), and {short(student, 40)} is not")
        elif is_binary(one, ast.Div) and _of_network(flow, other) and _is_number(flow, one.right):
            yield Remark(call, f"{short(one, 40)} is divided by {text_of(one.right)}, and the targets' {short(teacher, 40)} is not")


def _logits(program: Program, flow: Flow, node: ast.AST) -> ast.AST | None:
    """What a softmax or its logarithm is taken of."""
    value = flow.value(node)
    return program.operand(value) if is_method(value, "softmax", "log_softmax") else None


def _of_network(flow: Flow, node: ast.AST) -> bool:
    """Whether an expression is what a network gives, as it is."""
    return isinstance(node, ast.Call) and is_model(flow, node.func)


def _is_number(flow: Flow, node: ast.AST) -> bool:
    number = flow.number(node)
    return number is not None and number != 1


@RULES.add("multiplied-by-temperature", "a temperature below 1 should make the distribution sharper, and makes it flat: all scores are nearly alike", "divide by it: scores / temperature")
def _multiplied(program: Program) -> Iterator[Remark]:
    """Similarities that are multiplied by a temperature below 1."""
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp):
        for factor, scores in operands(node) if is_binary(node, ast.Mult) else ():
            number = flow.number(factor) if _TEMPERATURE.fullmatch(last_word(factor)) else None
            value = flow.value(scores)
            similar = is_binary(value, ast.MatMult) or is_method(value, *_PRODUCTS, "cosine_similarity") or (is_method(value, "sum") and is_binary(flow.value(value.func.value), ast.Mult))
            if number is not None and 0 < number < 1 and similar:
                yield Remark(node, f"{short(node)} multiplies by {text_of(factor)} = {number:g}")


@RULES.add("scores-scaled-up", "the scores grow with the width: softmax is one-hot from the start, and passes hardly any gradient", "divide the scores by the square root of the width")
def _scaled_up(program: Program) -> Iterator[Remark]:
    """Scores of an attention that are multiplied by a root where they should be divided by it."""
    flow = flow_of(program)
    for call in program.calls():
        found = softmax_of(flow, call) if is_method(call, "softmax") or program.family(call.func) == "module" else None
        scores = flow.value(found[1]) if found is not None and found[0] is call else None
        for _ in range(3):
            if is_method(scores, "masked_fill", "masked_fill_"):
                scores = flow.value(scores.func.value)
        if not is_binary(scores, ast.Mult):
            continue
        for factor, product in operands(scores):
            if _is_root(program, flow, factor) and _is_product(program, flow.value(product)):
                yield Remark(scores, f"{short(scores)} multiplies the scores by {short(flow.value(factor), 40)}")


def _is_root(program: Program, flow: Flow, node: ast.AST) -> bool:
    """Whether an expression is the square root of a width: `math.sqrt(d)`, `d ** 0.5`."""
    value = flow.value(node)
    if isinstance(value, ast.Call) and program.called(value) in ("math.sqrt", "numpy.sqrt", "torch.sqrt") and value.args:
        number = flow.number(value.args[0])
        return (number is None or number > 1) and not any(is_binary(one, ast.Div) for one in ast.walk(value))
    return is_binary(value, ast.Pow) and number_in(value.right) == 0.5


def _is_product(program: Program, node: ast.AST) -> bool:
    return is_binary(node, ast.MatMult) or is_method(node, *_PRODUCTS)


@RULES.add("squashed-log-prob", "the entropy and the probabilities are those of other actions", "take log_prob of the value before tanh, and subtract log(1 - tanh(x)**2)")
def _squashed(program: Program) -> Iterator[Remark]:
    """The log probability of an action after tanh, under the distribution that it was drawn from before tanh."""
    flow = flow_of(program)
    for call in program.calls():
        if not is_method(call, "log_prob") or len(call.args) != 1:
            continue
        action = flow.value(call.args[0])
        if not is_method(action, "tanh"):
            continue
        drawn = flow.value(program.operand(action))
        if is_method(drawn, "rsample", "sample") and text_of(drawn.func.value) == text_of(call.func.value):
            made = flow.value(call.func.value)
            if "Transformed" not in last_word(getattr(made, "func", None)):
                yield Remark(call, f"{short(call)} takes {short(action)}, and {text_of(call.func.value)} is the distribution of what tanh is applied to")


@RULES.add("noise-without-root", "the noise has another strength than the schedule says, and the model that removes it is asked for another", "scale the noise by the square root: (1 - a).sqrt() * noise")
def _without_root(program: Program) -> Iterator[Remark]:
    """A mixture of signal and noise whose signal is scaled by a root, and whose noise by the variance itself."""
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp):
        for one, other in operands(node) if is_binary(node, ast.Add) else ():
            if not is_binary(one, ast.Mult) or not is_binary(other, ast.Mult):
                continue
            roots = [inner for factor in (one.left, one.right) if (inner := _root_of(program, flow, factor)) is not None]
            for scale, noise in operands(other):
                rest = flow.value(scale)
                drawn = program.called(flow.value(noise)) in ("torch.randn_like", "torch.randn")
                if roots and drawn and is_binary(rest, ast.Sub) and number_in(rest.left) == 1 and text_of(rest.right) == text_of(roots[0]):
                    yield Remark(node, f"{short(node)} scales the signal by the root of {text_of(roots[0])}, and the noise by {short(rest)} without a root")


@RULES.add("uniform-for-normal-noise", "a sample is never below its mean: the term that compares it with a normal distribution is that of another one", "draw it with torch.randn_like")
def _uniform(program: Program) -> Iterator[Remark]:
    """A sample that is a mean plus a deviation times noise between 0 and 1."""
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp):
        for _, spread in operands(node) if is_binary(node, ast.Add) else ():
            for deviation, noise in operands(spread) if is_binary(spread, ast.Mult) else ():
                drawn = program.called(flow.value(noise)) in ("torch.rand_like", "torch.rand")
                if drawn and is_deviation(program, flow, deviation):
                    yield Remark(node, f"{short(node)} takes noise of {short(flow.value(noise))}, which lies between 0 and 1")


def is_deviation(program: Program, flow: Flow, node: ast.AST) -> bool:
    """Whether an expression is exp(0.5 * x) or exp(x / 2), the deviation of a variance's logarithm."""
    value = flow.value(node)
    if not is_method(value, "exp"):
        return False
    inner = flow.value(program.operand(value))
    if is_binary(inner, ast.Mult):
        return any(flow.number(one) == 0.5 for one in (inner.left, inner.right))
    if is_binary(inner, ast.Div):
        return flow.number(inner.right) == 2
    return is_method(inner, "mul", "div") and bool(inner.args) and flow.number(inner.args[0]) in (0.5, 2)


def _root_of(program: Program, flow: Flow, node: ast.AST) -> ast.expr | None:
    value = flow.value(node)
    if is_method(value, "sqrt"):
        return program.operand(value)
    return value.left if is_binary(value, ast.Pow) and number_in(value.right) == 0.5 else None


@RULES.add("logits-for-log-probabilities", "the loss falls without end as the outputs grow, whatever they say", "give it F.log_softmax(output, dim=-1)")
def _logits_given(program: Program) -> Iterator[Remark]:
    """A loss of log probabilities that is given what a linear layer computes."""
    flow = flow_of(program)
    for call in program.calls():
        name = loss_name(program, call)
        if name not in ("CTCLoss", "ctc_loss", "NLLLoss", "nll_loss") or not call.args:
            continue
        given = unshaped(flow, call.args[0], "permute", "transpose")
        if isinstance(given, ast.Call) and is_model(flow, given.func) and _ends_linear(program, flow, given):
            yield Remark(call, f"{name} takes log probabilities, and {short(call.args[0], 40)} is what the last layer of {text_of(given.func)} computes")


def _ends_linear(program: Program, flow: Flow, output: ast.Call) -> bool:
    """Whether the last thing that a network does is a linear layer or a convolution."""
    classes = program.classes.get(program.kind_name(output.func), [])
    made: ast.AST | None = flow.value(output.func)
    if len(classes) == 1:
        forward = program.method(classes[0], "forward")
        results = [one for one in returned(forward) if one is not None] if forward is not None else []
        last = unshaped(flow, results[0], "permute", "transpose") if len(results) == 1 else None
        made = flow.maker(last) if isinstance(last, ast.Call) else None
    if program.called(made) == "torch.nn.Sequential" and isinstance(made, ast.Call) and made.args:
        made = made.args[-1]
    return program.called(made) in ("torch.nn.Linear", "torch.nn.Conv1d", "torch.nn.Conv2d")


@RULES.add("mean-of-log-densities", "the components do not share the data: each is fitted to all of it, and the weights only pick the widest", "-torch.logsumexp(torch.log(weights) + log_prob, dim=-1)")
def _of_densities(program: Program) -> Iterator[Remark]:
    """A mixture's likelihood as the weighted mean of its components' logarithms."""
    flow = flow_of(program)
    for call in program.calls():
        source = flow.value(program.operand(call)) if is_method(call, "sum") and (call.args or call.keywords) else None
        for weights, logs in operands(source) if is_binary(source, ast.Mult) else ():
            if _WEIGHTS.search(last_word(weights)) and _is_log_density(program, flow, logs, weights) and not _whole_posterior(flow, weights):
                yield Remark(call, f"{short(call)} is a mean of log densities, and the density of a mixture is the mean of the densities")
                break


def _is_log_density(program: Program, flow: Flow, node: ast.AST, weights: ast.AST) -> bool:
    """Whether an expression is the logarithm of a Gaussian's density: a square and a logarithm, or log_prob()."""
    value = flow.value(node)
    local = program.local_function(value) if isinstance(value, ast.Call) else None
    if is_method(value, "log_prob") and local is None:
        return any(is_method(one, "softmax") for one in flow.origins(weights))
    found = [part for one in program.results(value) or [value] for part in flow.origins(one)]
    square = any((is_binary(one, ast.Pow) and number_in(one.right) == 2) or is_method(one, "square", "pow") for one in found)
    return local is not None and square and any(is_method(one, "log") for one in found)


def _whole_posterior(flow: Flow, weights: ast.AST) -> bool:
    """Whether weights are computed from densities here, as the responsibilities of an EM step are."""
    return any(is_method(one, "log_prob", "logsumexp", "detach") for one in flow.origins(weights))
