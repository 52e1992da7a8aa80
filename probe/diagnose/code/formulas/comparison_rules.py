"""Codes that a loss compares with each other: distillation, mined triplets, two views of a sample. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import unshaped
from probe.diagnose.code.finders.axes.partner_rows import partner_elsewhere
from probe.diagnose.code.finders.axes.turned_axes import over_another_axis
from probe.diagnose.code.finders.objectives.batch_opponents import partners_among_the_opponents
from probe.diagnose.code.finders.objectives.mined_pairs import negatives_of_the_same_class
from probe.diagnose.code.finders.objectives.second_derivatives import (
    mean_before_the_square,
    mixed_second_derivatives,
    no_curvature,
    same_derivative_twice,
    weight_of_the_wrong_sign,
)
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.formulas.ranking_rules import hinged
from probe.diagnose.code.program import Program
from probe.diagnose.code.rollout.terms import terms
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    argument,
    is_attribute,
    is_binary,
    is_method,
    is_own,
    short,
    text_of,
)
from probe.diagnose.code.torch_losses import loss_name

RULES = Rules("model")


@RULES.add(
    "no-stop-gradient",
    "the loss is smallest where all samples have one and the same code, and both branches move there",
    "detach the target: cosine_similarity(p, z.detach())",
)
def _no_stop(program: Program) -> Iterator[Remark]:
    """A predictor's output that is drawn to the code of the other view, with a gradient through both, where the program
    has no other loss that would keep the codes apart."""
    flow = flow_of(program)
    calls = [one for one in program.calls() if program.called(one) == "torch.nn.functional.cosine_similarity" or loss_name(program, one)]
    if any(is_method(one, "logsumexp", "detach", "var", "std") for one in program.calls()):
        return
    found: list[Remark] = []
    for call in calls:
        if len(call.args) < 2 or program.without_gradient(call):
            continue
        one, other = (_two_calls(program, flow, part) for part in call.args[:2])
        for predicted, code in ((one, other), (other, one)):
            if len(predicted) > 1 and code and predicted[1:] == code[: len(predicted) - 1] and predicted[0] not in code:
                found.append(Remark(call, f"{short(call)} compares what {predicted[0]} makes of one code with another code of {code[0]}, and both have a gradient: nothing keeps the codes apart"))
                break
    if len(found) == len(calls):
        yield from found
    if calls and not found and all(program.called(one) == "torch.nn.functional.cosine_similarity" for one in calls):
        yield from _given_back_beside(program)


def _given_back_beside(program: Program) -> Iterator[Remark]:
    """A model that gives back what a part of it makes of each of two codes, and the codes beside it."""
    for node in program.everywhere(ast.Return):
        parts = node.value.elts if isinstance(node.value, ast.Tuple) else []
        of = program.class_of(node)
        if of is None or not program.is_module_class(of) or program.without_gradient(node):
            continue
        made = [one for one in parts if isinstance(one, ast.Call) and is_own(one.func) and len(one.args) == 1]
        codes = {text_of(one) for one in parts if one not in made}
        predicted = [one for one in made if text_of(one.args[0]) in codes]
        if len(predicted) >= 2 and len({text_of(one.func) for one in predicted}) == 1:
            yield Remark(node, f"{short(node)}: {text_of(predicted[0].func)} is trained towards the codes of the other view, and these have a gradient too: nothing keeps the codes apart")
            return


def _two_calls(program: Program, flow: Flow, node: ast.AST) -> list[str]:
    """The networks that a value went through, the last one first."""
    found: list[str] = []
    for _ in range(8):
        node = unshaped(flow, node) or node
        if isinstance(node, ast.Call) and program.called(node) == "torch.nn.functional.normalize" and node.args:
            node = node.args[0]
        elif isinstance(node, ast.Call) and program.family(node.func) == "module" and len(node.args) == 1 and not program.without_gradient(node):
            found.append(text_of(node.func))
            node = node.args[0]
        else:
            break
    return found


@RULES.add(
    "divergence-of-each-class",
    "the mean is taken over the classes too: the term is as many times too small as there are classes",
    'give it reduction="batchmean"',
)
def _of_each_class(program: Program) -> Iterator[Remark]:
    """A distillation term, scaled back by the square of its temperature, that is a mean over all elements."""
    flow = flow_of(program)
    for call in program.calls():
        name = loss_name(program, call)
        made = flow.value(call.func) if name == "KLDivLoss" else call
        if name not in ("kl_div", "KLDivLoss") or len(call.args) < 2 or not isinstance(made, ast.Call):
            continue
        told = argument(made, "reduction")
        averaged = told is None or (isinstance(told, ast.Constant) and told.value == "mean")
        if any(one.arg in (None, "size_average", "reduce") for one in made.keywords) or not averaged:
            continue
        student = flow.value(call.args[0])
        inner = flow.value(program.operand(student)) if is_method(student, "log_softmax") else None
        if is_binary(inner, ast.Div) and _times_square(flow, call, inner.right):
            yield Remark(call, f"{short(call)} is a mean over samples and classes, and is multiplied by the square of {text_of(inner.right)} as a sum over the classes would be")


def _times_square(flow: Flow, call: ast.Call, temperature: ast.AST) -> bool:
    """Whether a term is multiplied by the square of its temperature, in its statement or where it is added."""
    text = text_of(temperature)
    places = [call, *(one for one in flow.reads.get(flow.key(_target(flow.program, call)) or (call, ""), []))]
    for place in places:
        for around in flow.program.parents(place):
            if isinstance(around, ast.stmt):
                break
            if is_binary(around, ast.Mult):
                whole = text_of(around)
                if f"{text} ** 2" in whole or f"{text} * {text}" in whole:
                    return True
    return False


def _target(program: Program, node: ast.AST) -> ast.AST | None:
    around = program.parent.get(node)
    return around.targets[0] if isinstance(around, ast.Assign) else None


@RULES.add(
    "easiest-mined",
    "the pairs that are right already are chosen: the loss is 0 almost from the start",
    "take the farthest positive and the nearest negative",
)
def _easiest(program: Program) -> Iterator[Remark]:
    """A triplet loss of the nearest positive and the farthest negative of each sample."""
    flow = flow_of(program)
    for call in program.calls():
        inner = hinged(program, call)
        signed = [(sign, flow.value(one)) for sign, one in terms(flow, inner)] if inner is not None else []
        near = [one for sign, one in signed if sign > 0 and (found := _extreme(flow, one)) is not None and found[0] == "min"]
        far = [one for sign, one in signed if sign < 0 and (found := _extreme(flow, one)) is not None and found[0] == "max"]
        if len(near) == len(far) == 1 and _same_source(flow, near[0], far[0]):
            yield Remark(call, f"{short(call)} is made of {short(near[0], 50)}, the nearest positive, and {short(far[0], 50)}, the farthest negative")


def _extreme(flow: Flow, node: ast.AST) -> tuple[str, ast.expr] | None:
    """`min` or `max`, and what it is taken of: `d.min(1)[0]`, `d.amin(1)`, `d.min(1).values`."""
    value = node.value if isinstance(node, (ast.Subscript, ast.Attribute)) else node
    value = flow.value(value)
    if not is_method(value, "min", "max", "amin", "amax") or flow.program.called(value):
        return None
    return value.func.attr.removeprefix("a"), value.func.value


def _same_source(flow: Flow, one: ast.AST, other: ast.AST) -> bool:
    """Whether two extremes are those of one matrix of distances."""
    distances = [{part for part in flow.origins(node) if is_method(part, "cdist", "pairwise_distance", "norm", "sqrt", "clamp")} for node in (one, other)]
    return bool(distances[0] & distances[1])


@RULES.add(
    "normalized-over-the-batch",
    "the vectors of the samples have no unit length, and the similarity of two depends on all others in the batch",
    "normalize each sample: F.normalize(z, dim=1)",
)
def _over_batch(program: Program) -> Iterator[Remark]:
    """Similarities of samples, a product over the features, of values that are normalized along axis 0."""
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp):
        turned = is_binary(node, ast.MatMult) and (is_method(node.right, "t", "transpose") or is_attribute(node.right, "T", "mT"))
        value = flow.value(node.left) if turned else None
        if not isinstance(value, ast.Call) or program.called(value) != "torch.nn.functional.normalize" or not value.args:
            continue
        if flow.number(argument(value, "dim", 2)) == 0:
            yield Remark(value, f"{short(value)} divides each feature by its norm over the samples, and {short(node, 50)} compares samples")


RULES.add(
    "cosine-over-another-axis",
    "each feature is compared over the positions, instead of each position over the features",
    "name the axis: F.cosine_similarity(a, b, dim=-1)",
)(over_another_axis)


RULES.add(
    "negatives-of-the-same-class",
    "samples of one class are pushed apart, as the loss of the same pairs pulls them together",
    "mine opponents among other labels only: distances.masked_fill(labels[:, None] == labels[None], float('inf')).amin(1)",
)(negatives_of_the_same_class)


RULES.add(
    "partners-among-the-opponents",
    "several rows of a batch have the same partner, or partners of one label, and the loss pushes each away from those of the others",
    "let a batch hold each label once (a sampler without duplicates), or mask pairs of one label: scores.masked_fill((labels[:, None] == labels[None]) & ~eye, float('-inf'))",
)(partners_among_the_opponents)


RULES.add(
    "partner-elsewhere",
    "each row is pulled to a row of another sample, and its own second view is pushed away with the rest",
    "name the row of the second view: (torch.arange(2 * n) + n) % (2 * n)",
)(partner_elsewhere)


RULES.add(
    "mixed-second-derivatives",
    "the equation that is solved is another one: u_xx + u_xy stands where u_xx was meant",
    "derive each by itself: grad(du[:, i].sum(), x)[0][:, i]",
)(mixed_second_derivatives)
RULES.add(
    "same-derivative-twice",
    "the equation that is solved has a first derivative where the second one belongs",
    "derive the derivative: u_xx = grad(u_x.sum(), x, create_graph=True)[0]",
)(same_derivative_twice)
RULES.add(
    "no-curvature",
    "the term of the second derivative is missing from the equation: no weight is trained by it",
    "take a smooth function between the layers: nn.Tanh(), nn.SiLU(), nn.Softplus() or torch.sin",
)(no_curvature)


RULES.add(
    "weight-of-the-wrong-sign",
    "the loss falls without end as its weights go to 0: in the end nothing is trained",
    "write exp(-s) * loss + s",
)(weight_of_the_wrong_sign)


RULES.add(
    "mean-before-the-square",
    "the loss asks that errors add up to 0, and not that each of them is small: it is 0 for predictions that are all wrong",
    "square first: ((prediction - target) ** 2).mean()",
)(mean_before_the_square)
