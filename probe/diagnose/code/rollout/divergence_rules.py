"""A divergence beside a reconstruction: what each of the two is a sum and a mean of. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import sources
from probe.diagnose.code.finders.losses.reductions import prior_first
from probe.diagnose.code.finders.objects.latent_terms import logarithm_counted_half
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rollout.signs import is_kl
from probe.diagnose.code.rollout.terms import terms
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    argument,
    is_binary,
    is_call,
    is_method,
    is_negative,
    is_string,
    operands,
    says,
    short,
    text_of,
)
from probe.diagnose.code.torch_losses import gives_mean, loss_name

RULES = Rules("rollout")
_UNWEIGHTED = 0.05
"""A smaller factor may be what makes a mean of a sum: with the 0.5 of the divergence, one over ten."""
_BATCH, _SAMPLE = "batch", "sample"
_FULL = 10.0
"""A larger factor may be what makes up for the mean."""
_MANY = 32
"""From so many elements on, a mean over them beside a sum over the code is no choice of weights."""


@RULES.add(
    "sum-beside-a-mean",
    "the divergence outweighs the other loss as many times as there are samples: the code carries nothing",
    "sum over the code, and take the mean over the batch: kl.sum(dim=1).mean()",
)
def _sum_beside_a_mean(program: Program) -> Iterator[Remark]:
    """A divergence that is summed over the whole batch, added to a loss that is a mean over it."""
    for node, mean, total, of in _beside_a_mean(program):
        if of == _BATCH:
            yield Remark(
                node,
                f"{short(node)}: {short(total)} adds up all samples of the batch, and {short(mean)} is "
                "their mean",
            )


@RULES.add(
    "sum-beside-a-mean-over-elements",
    "the divergence outweighs the reconstruction as many times as a sample has elements",
    "sum the reconstruction over the elements of a sample too, and divide both by the number of samples",
)
def _sum_beside_a_mean_over_elements(program: Program) -> Iterator[Remark]:
    """A divergence that is summed over the code of each sample, added to a mean over all pixels."""
    for node, mean, total, of in _beside_a_mean(program):
        name = loss_name(program, mean).lower()
        of_values = name in ("mse_loss", "mseloss", "l1_loss", "l1loss", "smooth_l1_loss", "smoothl1loss")
        many = name.startswith(("binary_cross_entropy", "bce")) or (of_values and _decodes_many(program))
        if many and of == _SAMPLE:
            yield Remark(
                node,
                f"{short(node)}: {short(total)} adds up the code of a sample, and {short(mean)} is a mean "
                "over all elements of a sample",
            )


@RULES.add(
    "mean-beside-a-sum",
    "the divergence counts next to nothing: it is divided by the samples and the elements of the code, and the reconstruction by nothing",
    "sum the divergence too, and divide both by the number of samples",
)
def _mean_beside_a_sum(program: Program) -> Iterator[Remark]:
    """A divergence that is a mean over batch and code, added to a reconstruction that is a sum over all."""
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp):
        for one, other in operands(node) if is_binary(node, ast.Add) else ():
            total = _made(flow, one)
            if not isinstance(total, ast.Call) or not _is_sum(flow, total):
                continue
            inner, factor, averaged, shared = _summed_up(program, flow, _made(flow, other))
            kl = isinstance(inner, ast.BinOp) and is_kl(program, list(terms(flow, inner)))
            if kl and averaged and not shared and factor <= _FULL and not _has_factor(flow, other):
                yield Remark(node, f"{short(node)}: {short(total)} adds up all elements of the batch, and {short(_made(flow, other))} is their mean")


def _is_sum(flow: Flow, call: ast.Call) -> bool:
    """Whether a call is a loss of torch that adds up all elements."""
    program = flow.program
    made = flow.value(call.func) if program.family(call.func) == "loss" else call
    told = argument(made, "reduction") if isinstance(made, ast.Call) and loss_name(program, call) else None
    return is_string(told) and told.value == "sum"


def _has_factor(flow: Flow, node: ast.AST) -> bool:
    """Whether a term is multiplied by something that is no known number."""
    value = flow.value(node)
    return is_binary(value, ast.Mult) and flow.number(value.left) is None and flow.number(value.right) is None


def _decodes_many(program: Program) -> bool:
    """Whether samples are images, or a decoder of the program ends in a linear layer with many outputs."""
    flow = flow_of(program)
    if any(program.called(call).startswith("torch.nn.Conv") for call in program.calls()):
        return True
    for node in program.everywhere(ast.Assign):
        made = node.value
        if not isinstance(made, ast.Call) or program.called(made) != "torch.nn.Sequential":
            continue
        linear = [one for one in made.args if program.called(one) == "torch.nn.Linear"]
        last = linear[-1] if linear and says(node.targets[0], "dec") else None
        width = flow.number(argument(last, "out_features", 1)) if isinstance(last, ast.Call) else None
        if width is not None and width >= _MANY:
            return True
    return False


def _beside_a_mean(program: Program) -> Iterator[tuple[ast.AST, ast.Call, ast.Call, str]]:
    """Sums of a mean that a loss of torch gives and a divergence without a small factor: the sum, the mean,
    the call that sums the divergence up, and whether that is of a batch or, on average, of a sample."""
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp):
        for one, other in operands(node) if is_binary(node, ast.Add) else ():
            mean = _made(flow, one)
            if not isinstance(mean, ast.Call) or not gives_mean(flow, mean):
                continue
            total, factor, averaged, shared = _summed_up(program, flow, _made(flow, other))
            summed = factor >= _UNWEIGHTED and is_method(total, "sum")
            if summed and isinstance(total, ast.Call) and (_is_of_distributions(program, total) or is_kl(program, list(terms(flow, total)))):
                whole = _over_all(program, total)
                of_sample = (averaged and not whole) or (shared and whole)
                of_batch = whole and not averaged and not shared
                yield node, mean, total, _SAMPLE if of_sample else _BATCH if of_batch else ""


def _is_of_distributions(program: Program, total: ast.Call) -> bool:
    """Whether what a call adds up is the divergence between two distributions of torch."""
    return program.called(program.operand(total)) in ("torch.distributions.kl_divergence", "torch.distributions.kl.kl_divergence")


def _made(flow: Flow, node: ast.AST) -> ast.AST:
    """What a term of a loss is computed by, also in a function that returns several."""
    found = list(sources(flow, node))
    return found[0] if len(found) == 1 else flow.value(node)


def _summed_up(program: Program, flow: Flow, node: ast.AST) -> tuple[ast.AST, float, bool, bool]:
    """An expression without signs, factors and means: the rest, the factor, whether there was a mean, and
    whether it was divided by the number of samples."""
    factor, averaged, shared = 1.0, False, False
    while True:
        node = _inside(program, flow.value(node))
        if is_negative(node):
            node = node.operand
        elif is_binary(node, ast.Mult) and (number := flow.number(node.left)) is not None:
            node, factor = node.right, factor * abs(number)
        elif is_binary(node, ast.Mult) and _rises_to_one(flow, node.left):
            node = node.right
        elif is_binary(node, ast.Div) and _counts_samples(node.right):
            node, shared = node.left, True
        elif is_method(node, "mean"):
            free = program.called(node) == "torch.mean"
            node, averaged = node.args[0] if free and node.args else node.func.value, True
        else:
            return node, factor, averaged, shared


def _counts_samples(node: ast.AST) -> bool:
    """Whether an expression is the number of samples: `len(x)`, `x.size(0)` or `x.shape[0]`."""
    text = text_of(node)
    return is_call(node, "len") or text.endswith((".size(0)", ".shape[0]")) or says(node, "batch_size")


def _rises_to_one(flow: Flow, node: ast.AST) -> bool:
    """Whether a factor is `min(1.0, ...)`, as in a warm-up of the divergence."""
    given = [flow.value(node), *flow.passed(node)]
    whole = [flow.value(one) for one in given]
    return any(is_call(one, "min") and any(flow.number(part) == 1 for part in one.args) for one in whole)


def _over_all(program: Program, total: ast.Call) -> bool:
    """Whether a sum is taken over all dimensions."""
    return len(total.args) == int(program.called(total) == "torch.sum") and not total.keywords


def _inside(program: Program, node: ast.AST) -> ast.AST:
    """What the function of the program gives that an expression calls; any other expression as it is."""
    results = program.results(node)
    return results[0] if len(results) == 1 else node


RULES.add(
    "logarithm-counted-half",
    "the divergence is smallest at another spread than that of the prior: codes are narrower or wider than what samples are drawn from",
    "0.5 * (mu ** 2 + sigma ** 2 - 2 * log(sigma) - 1)",
)(logarithm_counted_half)
RULES.add(
    "prior-before-posterior",
    "the code is spread over all that the fixed distribution covers, and the bound is no bound: samples and reconstructions stay poor",
    "put the distribution of the network first: kl_divergence(posterior, prior)",
)(prior_first)
