"""Losses and scores that are written out: what their formula needs to be the one that it is called. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import SHAPES, is_model, output_of
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.model.modules import softmax_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rollout.terms import exponent_of, terms
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    argument,
    is_attribute,
    is_binary,
    is_method,
    is_negative,
    last_word,
    mentions,
    names_of,
    number_in,
    operands,
    own,
    short,
    text_of,
)
from probe.diagnose.code.torch_losses import gives_mean, is_loss, loss_name

RULES = Rules("loop")
_BOUNDS = re.compile(r"sigmoid|softmax|relu|softplus|clamp|tanh|exp\b", re.I)
"""What a network's output goes through where it cannot be negative, or is bounded."""
_PREDICTED = re.compile(r"pred|output|^out$|_hat$|^yhat$|^logits$", re.I)
_WANTED = re.compile(r"target|true|label|^y$|^t$|actual|gt$", re.I)
_POSITIVE, _NEGATIVE = re.compile(r"(^|_)pos|^ap$|_ap$|positive", re.I), re.compile(r"(^|_)neg|^an$|_an$|negative", re.I)
_DISTANCES = ("pairwise_distance", "norm", "pow", "square", "cdist", "abs", "sqrt")
_SIMILARITIES = ("cosine_similarity", "CosineSimilarity")
_PRODUCTS = ("matmul", "bmm", "einsum", "mm")
_WITH_LOGITS = ("BCEWithLogitsLoss", "binary_cross_entropy_with_logits", "BCELoss", "binary_cross_entropy")


# Weights of samples and overlaps ------------------------------------------------------


@RULES.add("focal-weight", "easy samples weigh as much as hard ones", "take the loss of each sample: ce = F.cross_entropy(..., reduction=\"none\"), p = torch.exp(-ce)")
def _focal(program: Program) -> Iterator[Remark]:
    """A focal loss whose weight is that of the batch, or is computed with the wrong sign."""
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp, ast.Call):
        base = node.left if is_binary(node, ast.Pow) else node.func.value if is_method(node, "pow") and program.dotted(node.func) is None else node.args[0] if is_method(node, "pow") and node.args else None
        if not is_binary(base, ast.Sub) or number_in(base.left) != 1:
            continue
        inner = exponent_of(program, flow.value(base.right))
        loss = flow.value(inner.operand if is_negative(inner) else inner)
        if not isinstance(loss, ast.Call) or not is_loss(program, loss):
            continue
        if not is_negative(inner):
            yield Remark(node, f"{short(node)}: exp of {short(loss)} is the inverse of the probability, so 1 minus it is negative")
        elif gives_mean(flow, loss):
            yield Remark(node, f"{short(node)} is one number for the batch, because {short(loss)} is a mean: no sample gets a weight of its own")


@RULES.add("overlap-of-logits", "logits are unbounded: the loss can fall below any number without a better overlap", "apply sigmoid or softmax before the overlap is computed")
def _overlap(program: Program) -> Iterator[Remark]:
    """A Dice or Jaccard overlap of what a network gives, without the function that makes it a probability."""
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp):
        if not is_binary(node, ast.Div):
            continue
        products = [one for one in _sums(program, flow, node.left) if is_binary(one, ast.Mult)]
        totals = {text_of(one): one for one in _sums(program, flow, node.right)}
        for product in products:
            sides = [one for one in (product.left, product.right) if text_of(one) in totals]
            for side in sides if len(sides) == 2 else ():
                output = output_of(flow, _given_by_all(flow, side))
                if output is not None and not _bounded(program, flow, output):
                    yield Remark(node, f"{short(node)} is the overlap with {text_of(side)}, the output of {short(output)}, which no sigmoid or softmax bounds")
                    break


def _sums(program: Program, flow: Flow, node: ast.AST, depth: int = 4) -> Iterator[ast.expr]:
    """What an expression adds up by `.sum()`."""
    for one in ast.walk(node):
        if is_method(one, "sum"):
            free = program.called(one) == "torch.sum"
            inner = one.args[0] if free and one.args else one.func.value
            yield inner
        elif depth and isinstance(one, ast.Name) and isinstance(held := flow.held(one), (ast.BinOp, ast.Call)):
            yield from _sums(program, flow, held, depth - 1)


def _given_by_all(flow: Flow, node: ast.AST) -> ast.AST:
    """An expression, or what the calls of its function give for it where that is one and the same."""
    value = flow.value(node)
    while is_method(value, *SHAPES) and flow.program.dotted(value.func) is None:
        value = flow.value(value.func.value)
    return value


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
        layers = " ".join(text_of(one)[-80:] for one in ast.walk(known[0]) if isinstance(one, ast.Call) and last_word(one.func) == "Sequential")
        return bool(re.search(r"sigmoid|softmax", ast.unparse(known[0]), re.I)) or bool(_BOUNDS.search(text)) or "Sigmoid" in layers
    last = known[0].args[-1:] if isinstance(known[0], ast.Call) and last_word(known[0].func) == "Sequential" else known
    return bool(not last or _BOUNDS.search(text_of(last[0])))


# Quantiles and triplets ------------------------------------------------------------------


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


@RULES.add("triplet-reversed", "positives are pushed away from the anchor, and negatives pulled towards it", "minimize distance to the positive - distance to the negative + margin")
def _triplet(program: Program) -> Iterator[Remark]:
    """A triplet loss whose positive and negative stand in each other's place."""
    flow = flow_of(program)
    for call in program.calls():
        if loss_name(program, call) in ("TripletMarginLoss", "triplet_margin_loss", "TripletMarginWithDistanceLoss") and len(call.args) > 2:
            if _is_of(call.args[1], _NEGATIVE, _POSITIVE) and _is_of(call.args[2], _POSITIVE, _NEGATIVE):
                yield Remark(call, f"{short(call)} takes the positive second and the negative third")
            continue
        if loss_name(program, call) in ("MarginRankingLoss", "margin_ranking_loss") and len(call.args) > 2:
            wanted = _constant(program, flow, call.args[2])
            places = (_POSITIVE, _NEGATIVE) if wanted == -1 else (_NEGATIVE, _POSITIVE)
            if wanted in (1, -1) and _is_of(call.args[0], *places) and _is_of(call.args[1], *places[::-1]):
                lower, higher = (call.args[1], call.args[0]) if wanted == 1 else (call.args[0], call.args[1])
                yield Remark(call, f"{short(call)} asks for {text_of(higher)} above {text_of(lower)}")
            continue
        inner, ranked = _hinged(program, call), _logistic(program, call)
        if ranked is not None and is_binary(ranked, ast.Sub) and _is_of(ranked.left, _NEGATIVE, _POSITIVE) and _is_of(ranked.right, _POSITIVE, _NEGATIVE):
            around = program.statement(call)
            if any(is_negative(one) and call in ast.walk(one) for one in ast.walk(around)) and not any(_closeness(program, flow, one) == "distance" for one in (ranked.left, ranked.right)):
                yield Remark(call, f"{short(call)} grows with {text_of(ranked.left)}: its negative, which is minimized, ranks negatives above positives")
        if inner is None:
            continue
        signed = list(terms(flow, inner, depth=0))
        positive = [(sign, term) for sign, term in signed if _is_of(term, _POSITIVE, _NEGATIVE)]
        negative = [(sign, term) for sign, term in signed if _is_of(term, _NEGATIVE, _POSITIVE)]
        if len(positive) != 1 or len(negative) != 1 or positive[0][0] != -negative[0][0]:
            continue
        kinds = {_closeness(program, flow, one) for _, one in (positive[0], negative[0])}
        if kinds == {"distance"} and positive[0][0] < 0:
            yield Remark(call, f"{short(call)} falls as the distance {short(positive[0][1], 30)} grows")
        elif kinds == {"similarity"} and positive[0][0] > 0:
            yield Remark(call, f"{short(call)} falls as the similarity {short(positive[0][1], 30)} falls")


def _logistic(program: Program, call: ast.Call) -> ast.expr | None:
    """x of `F.logsigmoid(x)` and `torch.sigmoid(x).log()`."""
    if program.called(call) == "torch.nn.functional.logsigmoid" and call.args:
        return call.args[0]
    inner = (call.args[0] if call.args else None) if program.called(call) == "torch.log" else call.func.value if is_method(call, "log") else None
    if is_binary(inner, ast.Add) and number_in(inner.right) is not None:
        inner = inner.left
    if not isinstance(inner, ast.Call) or not is_method(inner, "sigmoid"):
        return None
    return inner.args[0] if program.dotted(inner.func) is not None and inner.args else inner.func.value


def _is_of(node: ast.AST, words: re.Pattern[str], others: re.Pattern[str]) -> bool:
    names = [last_word(one) for one in ast.walk(node) if isinstance(one, (ast.Name, ast.Attribute))]
    return any(map(words.search, names)) and not any(map(others.search, names))


def _hinged(program: Program, call: ast.Call) -> ast.AST | None:
    """What relu(x), x.relu(), clamp(x, min=0) and x.clamp(min=0) leave positive."""
    if not is_method(call, "relu", "clamp", "clamp_min"):
        return None
    free = program.dotted(call.func) is not None
    if call.func.attr != "relu":
        least = argument(call, "min", int(free))
        if number_in(least) != 0:
            return None
    return (call.args[0] if call.args else None) if free else call.func.value


def _closeness(program: Program, flow: Flow, node: ast.AST) -> str:
    value = flow.value(node)
    calls = [one for one in ast.walk(value) if isinstance(one, ast.Call)]
    if any(last_word(one.func) in _SIMILARITIES or last_word(program.called(one) and one.func) in _SIMILARITIES for one in calls):
        return "" if any(is_binary(one, ast.Sub) and number_in(one.left) == 1 for one in ast.walk(value)) else "similarity"
    squared = any(is_binary(one, ast.Pow) and is_binary(one.left, ast.Sub) for one in ast.walk(value))
    return "distance" if squared or any(is_method(one, *_DISTANCES) for one in calls) else ""


# Temperatures and scales -------------------------------------------------------------------


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
    if not is_method(value, "softmax", "log_softmax"):
        return None
    if program.dotted(value.func) is not None:
        return value.args[0] if value.args else None
    return value.func.value


def _of_network(flow: Flow, node: ast.AST) -> bool:
    """Whether an expression is what a network gives, as it is."""
    return isinstance(node, ast.Call) and is_model(flow, node.func)


def _is_number(flow: Flow, node: ast.AST) -> bool:
    number = flow.number(node)
    return number is not None and number != 1


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


@RULES.add("positive-masked-out", "the entry that is the target can never win: the loss stays at the masked value", "mask the diagonal only where the positives stand elsewhere")
def _positive_masked(program: Program) -> Iterator[Remark]:
    """Targets on the diagonal of a matrix of similarities whose diagonal is filled with a large negative number."""
    flow = flow_of(program)
    for call in program.calls():
        if loss_name(program, call) not in ("cross_entropy", "CrossEntropyLoss") or len(call.args) < 2:
            continue
        labels, scores = flow.value(call.args[1]), flow.value(call.args[0])
        if program.called(labels) != "torch.arange" or not isinstance(labels, ast.Call) or len(labels.args) != 1:
            continue
        masked = is_method(scores, "masked_fill", "masked_fill_") and len(scores.args) == 2 and any(last_word(getattr(one, "func", None)) == "eye" for one in flow.origins(scores.args[0]))
        value = scores.args[1] if masked and isinstance(scores, ast.Call) else _filled(program, call)
        number = flow.number(value) if value is not None else None
        if number is not None and number < -100:
            yield Remark(call, f"the targets {short(labels)} stand on the diagonal of {short(call.args[0])}, which is filled with {text_of(value) if value is not None else ''}")


def _filled(program: Program, call: ast.Call) -> ast.AST | None:
    """What the diagonal of the scores that a loss takes was filled with, in place."""
    names = names_of(call.args[0])
    for one in own(program.frame(call), ast.Call):
        if is_method(one, "fill_diagonal_") and names_of(one.func.value) & names and one.args and one.lineno < call.lineno:
            return one.args[0]
    return None


# Distributions and adversaries --------------------------------------------------------------


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
        drawn = flow.value(action.args[0] if program.called(action) == "torch.tanh" and action.args else action.func.value)
        if is_method(drawn, "rsample", "sample") and text_of(drawn.func.value) == text_of(call.func.value):
            made = flow.value(call.func.value)
            if "Transformed" not in last_word(getattr(made, "func", None)):
                yield Remark(call, f"{short(call)} takes {short(action)}, and {text_of(call.func.value)} is the distribution of what tanh is applied to")


@RULES.add("adversaries-agree", "the generator learns to be recognized: both losses want the same answer for what it makes", "give the generator the label of real samples (or the other sign)")
def _agree(program: Program) -> Iterator[Remark]:
    """A discriminator and a generator whose losses move the answer for generated samples the same way."""
    flow = flow_of(program)
    for scope in program.scopes():
        answers: list[tuple[str, bool, object, ast.Call]] = []
        for call in own(scope, ast.Call):
            if loss_name(program, call) in _WITH_LOGITS and len(call.args) > 1:
                answer, label = flow.value(call.args[0]), _constant(program, flow, call.args[1])
                if isinstance(answer, ast.Call) and answer.args and label is not None and is_model(flow, answer.func):
                    answers.append((text_of(answer.func), _detached(flow, answer.args[0]), label, call))
            elif is_method(call, "backward") and not call.args:
                for sign, term in terms(flow, call.func.value):
                    while is_method(term, *SHAPES):
                        term = term.func.value
                    hinged = _hinged(program, term) if isinstance(term, ast.Call) else None
                    if hinged is not None:
                        parts = [(turn, flow.value(one)) for turn, one in terms(flow, hinged) if not isinstance(one, ast.Constant)]
                        sign, term = (sign * parts[0][0], parts[0][1]) if len(parts) == 1 else (0, term)
                    if sign and isinstance(term, ast.Call) and len(term.args) == 1 and is_model(flow, term.func) and _generated(flow, term.args[0]):
                        answers.append((text_of(term.func), _detached(flow, term.args[0]), -sign, call))
        for judge, detached, wanted, call in answers:
            against = [one for one in answers if one[0] == judge and one[1] and type(one[2]) is type(wanted)]
            if not detached and len(against) == 1 and against[0][2] == wanted and _generated(flow, _judged(flow, call, judge)):
                yield Remark(call, f"{short(call)} wants the same answer of {judge} for generated samples as line {against[0][3].lineno}, where {judge} learns to recognize them")


def _judged(flow: Flow, call: ast.Call, judge: str) -> ast.AST | None:
    """What a network judges for a loss: the argument of its call."""
    origins = flow.origins(call.args[0] if call.args else call.func)
    found = [one for one in origins if isinstance(one, ast.Call) and text_of(one.func) == judge and one.args]
    return found[0].args[0] if found else None


def _generated(flow: Flow, node: ast.AST | None) -> bool:
    """Whether an expression is what a network gives."""
    value = flow.value(node)
    while is_method(value, "detach", *SHAPES):
        value = flow.value(value.func.value)
    return isinstance(value, ast.Call) and is_model(flow, value.func)


def _detached(flow: Flow, node: ast.AST) -> bool:
    value = flow.value(node)
    return mentions(node, "detach") or mentions(value, "detach") or flow.program.without_gradient(value)


def _constant(program: Program, flow: Flow, node: ast.AST) -> float | None:
    """The number that all elements of a tensor are."""
    value = flow.value(node)
    name = program.called(value).rpartition(".")[2]
    if name in ("ones", "ones_like"):
        return 1.0
    if name in ("zeros", "zeros_like"):
        return 0.0
    if is_negative(value):
        inner = _constant(program, flow, value.operand)
        return None if inner is None else -inner
    if name in ("full", "full_like") and isinstance(value, ast.Call) and len(value.args) > 1:
        return flow.number(value.args[1])
    return None


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


def _root_of(program: Program, flow: Flow, node: ast.AST) -> ast.expr | None:
    value = flow.value(node)
    if is_method(value, "sqrt"):
        return value.args[0] if program.dotted(value.func) is not None and value.args else value.func.value
    return value.left if is_binary(value, ast.Pow) and number_in(value.right) == 0.5 else None


@RULES.add("mean-over-padding", "the longer the padding, the smaller the result: the same text in another batch gives another one", "divide by the number of positions that the mask keeps: x.sum(1) / mask.sum(1)")
def _mean_over_padding(program: Program) -> Iterator[Remark]:
    """Positions that are set to 0 by a mask, and averaged together with the others."""
    flow = flow_of(program)
    for call in program.calls():
        if not is_method(call, "mean"):
            continue
        free = program.called(call) == "torch.mean"
        over = argument(call, "dim", int(free))
        source = flow.value(call.args[0] if free and call.args else call.func.value)
        if flow.number(over) not in (1, -2):
            continue
        mask: ast.AST | None = None
        if is_method(source, "masked_fill", "masked_fill_") and len(source.args) == 2 and flow.number(source.args[1]) == 0:
            mask = source.args[0]
        elif is_binary(source, ast.Mult):
            mask = next((one for one in (source.left, source.right) if "mask" in text_of(one).lower()), None)
        if mask is not None and _marks_padding(flow, mask):
            yield Remark(call, f"{short(call)} divides by all positions, also by those that {short(mask, 40)} sets to 0")


def _marks_padding(flow: Flow, mask: ast.AST) -> bool:
    """Whether a mask is a comparison of words or positions, and not drawn at random."""
    origins = list(flow.origins(mask))
    for one in list(origins):
        origins += [found for given in flow.possible(one) for found in ast.walk(given)] if isinstance(one, ast.Name) else []
    compared = any(isinstance(one, ast.Compare) or is_method(one, "eq", "ne", "lt", "gt") for one in origins)
    return compared and not any(is_method(one, "rand", "rand_like", "bernoulli", "bernoulli_", "randn") for one in origins)


@RULES.add("normalized-over-time", "each feature is divided by its norm over the sequence, so vectors of one position have no unit length", "write F.normalize(x, dim=-1)")
def _over_time(program: Program) -> Iterator[Remark]:
    """F.normalize with its default dimension, 1, on what a recurrent or attention layer gives for each position."""
    flow = flow_of(program)
    for call in program.calls():
        if program.called(call) != "torch.nn.functional.normalize" or not call.args or argument(call, "dim", 2) is not None or any(one.arg is None for one in call.keywords):
            continue
        at: ast.AST | None = call.args[0]
        for _ in range(6):
            one = flow.given(at) if at is not None else None
            whole = one.value if one is not None and one.place in (None, 0) else at
            made = flow.maker(whole) if isinstance(whole, ast.Call) else None
            kind = program.called(made).rpartition(".")[2] if made is not None else ""
            if kind in ("GRU", "LSTM", "RNN", "TransformerEncoder", "TransformerEncoderLayer", "MultiheadAttention"):
                first = made is not None and any(word.arg == "batch_first" for word in made.keywords)
                if first or kind == "TransformerEncoder":
                    yield Remark(call, f"{short(call)} works along dimension 1, which for the output of {short(whole, 40) if whole is not None else kind} is the sequence")
                break
            if kind not in ("Linear", "Dropout", "LayerNorm", "ReLU", "GELU", "Tanh") or not isinstance(whole, ast.Call) or not whole.args:
                break
            at = whole.args[0]


# Positions ------------------------------------------------------------------------------------


@RULES.add("positions-of-the-batch", "every position of a sample gets the same encoding, that of the sample's place in the batch", "take the encodings along the sequence: pe[: x.size(1)]")
def _positions(program: Program) -> Iterator[Remark]:
    """Encodings of positions that are taken along the first dimension, with attention that has the batch there."""
    attention = [one for one in program.calls() if program.called(one) in ("torch.nn.TransformerEncoderLayer", "torch.nn.TransformerDecoderLayer", "torch.nn.MultiheadAttention", "torch.nn.Transformer")]
    turned = any(is_method(one, "transpose", "permute", "swapaxes") for one in program.calls())
    first = [argument(one, "batch_first") for one in attention]
    if turned or not first or not all(isinstance(one, ast.Constant) and one.value is True for one in first):
        return
    for function in program.everywhere(ast.FunctionDef):
        if function.name != "forward" or len(function.args.args) < 2:
            continue
        given = function.args.args[1].arg
        for node in own(function, ast.BinOp):
            for _, encoding in operands(node) if is_binary(node, ast.Add) else ():
                at = encoding
                while is_method(at, "unsqueeze", "detach", "to", "requires_grad_"):
                    at = at.func.value
                rows = at.slice if isinstance(at, ast.Subscript) and is_attribute(at.value) else None
                rows = rows.elts[0] if isinstance(rows, ast.Tuple) and rows.elts else rows
                if isinstance(rows, ast.Slice) and rows.lower is None and rows.upper is not None and text_of(rows.upper) in (f"{given}.size(0)", f"{given}.shape[0]", f"len({given})"):
                    yield Remark(encoding, f"{short(encoding)} follows the first dimension of {given}, and batch_first=True makes that the batch")

