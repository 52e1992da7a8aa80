"""Losses that rank one answer above another: triplets, contrasts, adversaries. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import SHAPES, filled_with, is_model, unshaped
from probe.diagnose.code.finders.objectives.chosen_by_numbers import chosen_by_numbers
from probe.diagnose.code.finders.objectives.risk_sets import risk_sets_of_the_events, risk_sets_out_of_order
from probe.diagnose.code.finders.objects.pairwise_ranks import gains_from_the_worst, pairs_ranked_backwards
from probe.diagnose.code.finders.runs.judges import judge_of_one_answer
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rollout.terms import terms
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    argument,
    is_binary,
    is_method,
    is_negative,
    last_word,
    mentions,
    names_of,
    number_in,
    operands,
    own,
    returned,
    short,
    text_of,
)
from probe.diagnose.code.torch_losses import loss_name

RULES = Rules("loop")
_POSITIVE, _NEGATIVE = re.compile(r"(^|_)pos|^ap$|_ap$|positive", re.I), re.compile(r"(^|_)neg|^an$|_an$|negative", re.I)
_DISTANCES = ("pairwise_distance", "norm", "pow", "square", "cdist", "abs", "sqrt")
_SIMILARITIES = ("cosine_similarity", "CosineSimilarity")
_WITH_LOGITS = ("BCEWithLogitsLoss", "binary_cross_entropy_with_logits", "BCELoss", "binary_cross_entropy")


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
            wanted = filled_with(flow, call.args[2])
            places = (_POSITIVE, _NEGATIVE) if wanted == -1 else (_NEGATIVE, _POSITIVE)
            apart = any(closeness(program, flow, one) == "distance" or text_of(one).lower().startswith(("d_", "dist", "gap")) for one in call.args[:2])
            if wanted in (1, -1) and not apart and _is_of(call.args[0], *places) and _is_of(call.args[1], *places[::-1]):
                lower, higher = (call.args[1], call.args[0]) if wanted == 1 else (call.args[0], call.args[1])
                yield Remark(call, f"{short(call)} asks for {text_of(higher)} above {text_of(lower)}")
            continue
        inner, ranked = hinged(program, call), _logistic(program, call)
        if ranked is not None and is_binary(ranked, ast.Sub) and _is_of(ranked.left, _NEGATIVE, _POSITIVE) and _is_of(ranked.right, _POSITIVE, _NEGATIVE):
            around = program.statement(call)
            if any(is_negative(one) and call in ast.walk(one) for one in ast.walk(around)) and not any(closeness(program, flow, one) == "distance" for one in (ranked.left, ranked.right)):
                yield Remark(call, f"{short(call)} grows with {text_of(ranked.left)}: its negative, which is minimized, ranks negatives above positives")
        if inner is None:
            continue
        signed = list(terms(flow, inner, depth=0))
        positive = [(sign, term) for sign, term in signed if _is_of(term, _POSITIVE, _NEGATIVE)]
        negative = [(sign, term) for sign, term in signed if _is_of(term, _NEGATIVE, _POSITIVE)]
        if len(positive) != 1 or len(negative) != 1 or positive[0][0] != -negative[0][0]:
            continue
        kinds = {closeness(program, flow, one) for _, one in (positive[0], negative[0])}
        if kinds == {"distance"} and positive[0][0] < 0:
            yield Remark(call, f"{short(call)} falls as the distance {short(positive[0][1], 30)} grows")
        elif kinds == {"similarity"} and positive[0][0] > 0:
            yield Remark(call, f"{short(call)} falls as the similarity {short(positive[0][1], 30)} falls")


def _logistic(program: Program, call: ast.Call) -> ast.expr | None:
    """x of `F.logsigmoid(x)` and `torch.sigmoid(x).log()`."""
    if program.called(call) == "torch.nn.functional.logsigmoid" and call.args:
        return call.args[0]
    inner = program.operand(call) if is_method(call, "log") else None
    if is_binary(inner, ast.Add) and number_in(inner.right) is not None:
        inner = inner.left
    return program.operand(inner) if is_method(inner, "sigmoid") else None


def _is_of(node: ast.AST, words: re.Pattern[str], others: re.Pattern[str]) -> bool:
    names = [last_word(one) for one in ast.walk(node) if isinstance(one, (ast.Name, ast.Attribute))]
    return any(map(words.search, names)) and not any(map(others.search, names))


def hinged(program: Program, call: ast.Call) -> ast.AST | None:
    """What relu(x), x.relu(), clamp(x, min=0) and x.clamp(min=0) leave positive."""
    if not is_method(call, "relu", "clamp", "clamp_min"):
        return None
    least = argument(call, "min", int(program.dotted(call.func) is not None))
    if call.func.attr != "relu" and number_in(least) != 0:
        return None
    return program.operand(call)


def closeness(program: Program, flow: Flow, node: ast.AST) -> str:
    """What an expression measures of two codes: their `distance`, their `similarity`, or nothing known."""
    value = flow.value(node)
    calls = [one for one in ast.walk(value) if isinstance(one, ast.Call)]
    if any(last_word(one.func) in _SIMILARITIES for one in calls):
        return "" if any(is_binary(one, ast.Sub) and number_in(one.left) == 1 for one in ast.walk(value)) else "similarity"
    squared = any(is_binary(one, ast.Pow) and is_binary(one.left, ast.Sub) for one in ast.walk(value))
    return "distance" if squared or any(is_method(one, *_DISTANCES) for one in calls) else ""


@RULES.add("positive-masked-out", "the entry that is the target can never win: the loss stays at the masked value", "mask the diagonal only where the positives stand elsewhere")
def _positive_masked(program: Program) -> Iterator[Remark]:
    """Targets on the diagonal of a matrix of similarities whose diagonal is filled with a large negative number."""
    flow = flow_of(program)
    for call in program.calls():
        if loss_name(program, call) not in ("cross_entropy", "CrossEntropyLoss") or len(call.args) < 2:
            continue
        labels, scores = flow.value(call.args[1]), flow.value(call.args[0])
        if not _counts_rows(program, flow, labels):
            continue
        masked = is_method(scores, "masked_fill", "masked_fill_") and len(scores.args) == 2 and _holds_diagonal(flow, scores.args[0])
        value = scores.args[1] if masked and isinstance(scores, ast.Call) else _filled(program, call)
        number = flow.number(value) if value is not None else None
        if number is not None and number < -100:
            yield Remark(call, f"the targets {short(labels)} stand on the diagonal of {short(call.args[0])}, which is filled with {text_of(value) if value is not None else ''}")


@RULES.add("zero-is-the-smallest", "the smallest is 0, at an entry that the mask should leave out: there is no hard example, and no gradient from it", "fill the others with a large number first: d.masked_fill(~mask, float('inf')).min(dim=1)")
def _smallest(program: Program) -> Iterator[Remark]:
    """A minimum over distances of which a mask sets those to 0 that should not be taken."""
    flow = flow_of(program)
    for call in program.calls():
        if not is_method(call, "min", "amin", "argmin") or program.called(call) in ("torch.minimum", "min"):
            continue
        source = flow.value(program.operand(call))
        for mask, values in operands(source) if is_binary(source, ast.Mult) else ():
            if _is_mask(flow, mask) and not _is_mask(flow, values):
                yield Remark(call, f"{short(call)}: {short(mask, 40)} sets the entries to 0 that it leaves out, and 0 is smaller than the distances that it keeps")
                break


def _is_mask(flow: Flow, node: ast.AST) -> bool:
    """Whether an expression is true and false for each entry, or 1 and 0."""
    value = flow.value(node)
    while is_method(value, "float", "to", "int", "type", "double", "type_as", "long"):
        value = flow.value(value.func.value)
    if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Invert):
        return _is_mask(flow, value.operand)
    if is_binary(value, ast.BitAnd, ast.BitOr):
        return _is_mask(flow, value.left) or _is_mask(flow, value.right)
    if is_binary(value, ast.Sub) and number_in(value.left) == 1:
        return _is_mask(flow, value.right)
    return isinstance(value, ast.Compare) or is_method(value, "eq", "ne", "lt", "gt", "le", "ge", "logical_not", "isfinite")


def _counts_rows(program: Program, flow: Flow, labels: ast.AST) -> bool:
    """Whether labels are the numbers of their rows: arange(n), or cat([arange(n), arange(n)]), at least in one half."""
    if program.called(labels) in ("torch.cat", "torch.concat") and isinstance(labels, ast.Call) and labels.args:
        parts = labels.args[0].elts if isinstance(labels.args[0], (ast.List, ast.Tuple)) else []
        found = [flow.value(one) for one in parts]
        return len(found) == 2 and all(_counts_rows(program, flow, one) for one in found) and text_of(found[0]) == text_of(found[1])
    return program.called(labels) == "torch.arange" and isinstance(labels, ast.Call) and len(labels.args) == 1


def _holds_diagonal(flow: Flow, mask: ast.AST) -> bool:
    """Whether a mask is made of an identity matrix, and not of all that is off the diagonal."""
    parts = list(flow.origins(mask))
    turned = any(
        isinstance(one, (ast.Invert, ast.Not, ast.NotEq)) or is_binary(one, ast.Sub, ast.BitXor) or is_method(one, "logical_not", "bitwise_not", "ne", "eq", "fill_diagonal_")
        or (isinstance(one, ast.Compare) and isinstance(one.ops[0], ast.Eq)) for one in parts
    )
    return not turned and any(last_word(getattr(one, "func", None)) == "eye" for one in parts)


def _filled(program: Program, call: ast.Call) -> ast.AST | None:
    """What the diagonal of the scores that a loss takes was filled with, in place."""
    names = names_of(call.args[0])
    for one in own(program.frame(call), ast.Call):
        if is_method(one, "fill_diagonal_") and names_of(one.func.value) & names and one.args and one.lineno < call.lineno:
            return one.args[0]
    return None


@RULES.add("adversaries-agree", "the generator learns to be recognized: both losses want the same answer for what it makes", "give the generator the label of real samples (or the other sign)")
def _agree(program: Program) -> Iterator[Remark]:
    """A discriminator and a generator whose losses move the answer for generated samples the same way."""
    flow = flow_of(program)
    for scope in program.scopes():
        answers: list[tuple[str, bool, object, ast.Call]] = []
        for call in own(scope, ast.Call):
            if loss_name(program, call) in _WITH_LOGITS and len(call.args) > 1:
                answer, label = flow.value(call.args[0]), filled_with(flow, call.args[1])
                if isinstance(answer, ast.Call) and answer.args and label is not None and is_model(flow, answer.func):
                    answers.append((text_of(answer.func), _detached(flow, answer.args[0]), label, call))
            elif is_method(call, "backward") and not call.args:
                for sign, term in terms(flow, call.func.value):
                    while is_method(term, *SHAPES):
                        term = term.func.value
                    inside = hinged(program, term) if isinstance(term, ast.Call) else None
                    if inside is not None:
                        parts = [(turn, flow.value(one)) for turn, one in terms(flow, inside) if not isinstance(one, ast.Constant)]
                        sign, term = (sign * parts[0][0], parts[0][1]) if len(parts) == 1 else (0, term)
                    if sign and isinstance(term, ast.Call) and len(term.args) == 1 and is_model(flow, term.func) and _generated(flow, term.args[0]):
                        answers.append((text_of(term.func), _detached(flow, term.args[0]), -sign, call))
        misled: set[str] = set()
        for number, (judge, detached, wanted, call) in enumerate(answers):
            same = [one for one in answers[:number] if one[0] == judge and one[2] == wanted and type(one[2]) is type(wanted)]
            first = next((one[3] for one in same if _real(program, flow, _judged(flow, one[3], judge))), None)
            if detached and first is not None and _generated(flow, _judged(flow, call, judge)) and _one_loss(flow, first, call):
                misled.add(judge)
                yield Remark(call, f"{short(call)} asks {judge} for the same answer for generated samples as {short(first)} (line {first.lineno}) for real ones: it learns to tell nothing apart")
            against = [one for one in answers if one[0] == judge and one[1] and type(one[2]) is type(wanted)]
            if judge not in misled and not detached and len(against) == 1 and against[0][2] == wanted and _generated(flow, _judged(flow, call, judge)) and not any(True for _ in judge_of_one_answer(program)):
                yield Remark(call, f"{short(call)} wants the same answer of {judge} for generated samples as line {against[0][3].lineno}, where {judge} learns to recognize them")


def _real(program: Program, flow: Flow, node: ast.AST | None) -> bool:
    """Whether an expression is a part of what a loop over batches gives, or what a function is given."""
    value = unshaped(flow, node)
    given = flow.given(value) if isinstance(value, ast.Name) else None
    passed = isinstance(value, ast.Name) and given is None and [one.how for one in flow.bindings(value)] == ["parameter"]
    return passed or (given is not None and isinstance(given.node, ast.For))


def _one_loss(flow: Flow, first: ast.Call, second: ast.Call) -> bool:
    """Whether two losses are added up."""
    return any(
        is_binary(node, ast.Add) and {first, second} <= {flow.value(node.left), flow.value(node.right)}
        for node in flow.program.everywhere(ast.BinOp)
    )


def _judged(flow: Flow, call: ast.Call, judge: str) -> ast.AST | None:
    """What a network judges for a loss: the argument of its call."""
    origins = flow.origins(call.args[0] if call.args else call.func)
    found = [one for one in origins if isinstance(one, ast.Call) and text_of(one.func) == judge and one.args]
    return found[0].args[0] if found else None


def _generated(flow: Flow, node: ast.AST | None) -> bool:
    """Whether an expression is what a network gives."""
    value = unshaped(flow, node)
    return isinstance(value, ast.Call) and is_model(flow, value.func)


def _detached(flow: Flow, node: ast.AST) -> bool:
    value = flow.value(node)
    return mentions(node, "detach") or mentions(value, "detach") or flow.program.without_gradient(value)


@RULES.add("pairs-inverted", "pairs of one class are pushed apart, and others pulled together", "give the pull the label of equal pairs: label * d**2 + (1 - label) * relu(margin - d)**2")
def _pairs_inverted(program: Program) -> Iterator[Remark]:
    """A contrastive loss that pushes where the label says equal, or pulls where it says different."""
    flow = flow_of(program)
    labels = [one for getter in program.functions.get("__getitem__", []) for value in returned(getter) if isinstance(value, ast.Tuple) and len(value.elts) == 3 for one in value.elts[2:]]
    meanings = {_meaning(flow, one) for one in labels}
    if len(labels) != 1 or meanings not in ({"same"}, {"different"}):
        return
    for node in program.everywhere(ast.BinOp):
        if not is_binary(node, ast.Add):
            continue
        sides = [_weighted_push(program, flow, one) for one in (node.left, node.right)]
        pushed = [one for one in sides if one is not None]
        if pushed == (["label"] if "same" in meanings else ["rest"]):
            does = "pushes the pairs apart that {} marks as equal" if "same" in meanings else "pulls the pairs together that {} marks as different"
            yield Remark(node, f"{short(node)} {does.format(short(labels[0]))}")


def _meaning(flow: Flow, node: ast.AST) -> str:
    """What a label of 1 says of a pair: `same`, `different`, or nothing that is known."""
    for one in flow.origins(node):
        if isinstance(one, ast.Name) and (found := re.fullmatch(r"(is_)?(same|similar|equal|match)(_class)?|(is_)?(diff|different|dissimilar)", one.id)):
            return "same" if found.group(2) else "different"
        if isinstance(one, ast.Compare) and len(one.ops) == 1 and isinstance(one.ops[0], (ast.Eq, ast.NotEq)) and isinstance(one.left, ast.Subscript):
            return "same" if isinstance(one.ops[0], ast.Eq) else "different"
    return ""


def _weighted_push(program: Program, flow: Flow, node: ast.AST) -> str | None:
    """What a term that pushes pairs apart is weighted by: `label`, or `rest` for 1 - label."""
    for weight, term in operands(node) if is_binary(node, ast.Mult) else ():
        pushes = any(
            isinstance(one, ast.Call) and is_binary(inner := flow.value(hinged(program, one)), ast.Sub) and "margin" in last_word(inner.left).lower()
            for one in flow.origins(term)
        )
        if pushes and isinstance(weight, ast.Name) and flow.given(weight) is None:
            return "label"
        if pushes and is_binary(weight, ast.Sub) and number_in(weight.left) == 1 and isinstance(weight.right, ast.Name):
            return "rest"
    return None


@RULES.add("margin-without-end", "pairs that are far apart already are pulled back to the margin", "stop at the margin: F.relu(margin - distance).pow(2)")
def _margin_without_end(program: Program) -> Iterator[Remark]:
    """A contrastive loss whose margin is not the end of the push."""
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp, ast.Call):
        base = node.left if is_binary(node, ast.Pow) and number_in(node.right) == 2 else node.func.value if is_method(node, "pow", "square") and program.dotted(node.func) is None else None
        difference = flow.value(base)
        if not is_binary(difference, ast.Sub) or "margin" not in last_word(difference.left).lower():
            continue
        distance = flow.value(difference.right)
        squared = text_of(difference.right)
        pulled = [one for one in ast.walk(program.frame(node)) if (is_method(one, "pow", "square") and text_of(one.func.value) == squared) or (is_binary(one, ast.Pow) and text_of(one.left) == squared)]
        if pulled and closeness(program, flow, distance) == "distance":
            yield Remark(node, f"{short(node)} is smallest at {text_of(difference.left)} and grows beyond it")


RULES.add(
    "risk-set-out-of-order",
    "an event is not compared with those who were still at risk when it happened: the scores are learned backwards, or of chance",
    "sort each batch from the longest time to the shortest: order = torch.argsort(time, descending=True)",
)(risk_sets_out_of_order)
RULES.add(
    "risk-set-of-the-events",
    "who lived on without an event is compared with nobody: the scores are those among the events alone, and too high for what goes with a cut-off",
    "sum over all whose time is not over yet, with or without an event, and count the events outside of the logarithm",
)(risk_sets_of_the_events)
RULES.add(
    "numbers-for-a-mask", "two rows of each batch stand for all that were to count", "index by a mask: x[status.bool()], or multiply by it",
)(chosen_by_numbers)


RULES.add(
    "pairs-ranked-backwards",
    "the model learns to put the better one of two below the other: rankings get worse as the loss falls",
    "minimize softplus(-(s_i - s_j)) where i is better than j",
)(pairs_ranked_backwards)


RULES.add(
    "gains-from-the-worst",
    "the number says how well the ranking would do read from its end: it falls as the model improves",
    "sort from large to small: argsort(descending=True), sort(descending=True)",
)(gains_from_the_worst)
