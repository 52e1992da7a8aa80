"""Settings of normalization and dropout in another's place, a softmax over another axis than the classes. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.finders.followed.own_statistics import statistics_of_the_scaled
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    Function,
    argument,
    is_call,
    is_method,
    last_word,
    returned,
    short,
    text_of,
)

RULES = Rules("model")
RULES.add(
    "statistics-of-the-scaled",
    "the data stay as they come: no mean and no deviation of theirs is ever found",
    "update the statistics with the data themselves, and scale after that",
)(statistics_of_the_scaled)
_STATISTICS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm", "LazyBatchNorm1d", "LazyBatchNorm2d", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d")
_NORMS = (*_STATISTICS, "LayerNorm", "RMSNorm")
_SOFTMAXES = ("torch.softmax", "torch.log_softmax", "torch.nn.functional.softmax", "torch.nn.functional.log_softmax")
_KEEP = re.compile(r"^keep_?(prob|rate|ratio|p)|^p_?keep|prob_?keep", re.I)
LEAST_EPSILON, MOST_MOMENTUM = 0.05, 0.9
"""What is added to a variance is small, and at most this share of a running mean is replaced in each step."""


@RULES.add(
    "momentum-for-epsilon",
    "it is added to the variance before the root, so nothing is scaled to a deviation of 1, and small features fade",
    "name it: momentum=0.2 (of the new batch), p=0.2 for a dropout; leave eps as it is",
)
def _epsilon(program: Program) -> Iterator[Remark]:
    """A normalization whose second argument, eps, is as large as a momentum."""
    flow = flow_of(program)
    for call in program.calls():
        name = program.called(call).removeprefix("torch.nn.")
        if name not in _NORMS or not program.called(call).startswith("torch.nn."):
            continue
        given = argument(call, "eps", 1)
        number = flow.number(given)
        if number is not None and LEAST_EPSILON <= number < 1:
            yield Remark(call, f"{short(call)} has eps = {number:g}: the second argument is added to the variance")


@RULES.add(
    "statistics-of-the-last-batch",
    "evaluation normalizes by the mean and variance of nearly the last training batch alone, so its scores jump",
    "in torch, momentum is the share of the new batch: 0.99 elsewhere is momentum=0.01 here",
)
def _momentum(program: Program) -> Iterator[Remark]:
    """A BatchNorm with the momentum of another library, where it is the share that stays."""
    flow = flow_of(program)
    for call in program.calls():
        name = program.called(call).removeprefix("torch.nn.")
        number = flow.number(argument(call, "momentum", 2)) if name in _STATISTICS and program.called(call).startswith("torch.nn.") else None
        tracks = not name.startswith("InstanceNorm") or argument(call, "track_running_stats") is not None
        if number is not None and tracks and MOST_MOMENTUM <= number < 1:
            yield Remark(call, f"{short(call)} replaces {number:.4g} of its running statistics in each step")


@RULES.add(
    "softmax-over-the-batch",
    "the probabilities of a sample do not add up to 1, and depend on which others are in its batch",
    "run it over the classes: dim=1, or dim=-1",
)
def _over_the_batch(program: Program) -> Iterator[Remark]:
    """A softmax along axis 0 that is the output of a classifier which a loader feeds."""
    loaders = [call for call in program.calls() if program.called(call) == "torch.utils.data.DataLoader"]
    if not loaders or any(not _batches(call) for call in loaders):
        return
    flow = flow_of(program)
    for call in program.calls():
        if program.called(call) == "torch.nn.Sequential" and len(call.args) > 1:
            last, before = flow.value(call.args[-1]), flow.value(call.args[-2])
            if _is_softmax(program, last) and _wide(program, flow, before) and _is_zero(flow, argument(last, "dim", 0) if isinstance(last, ast.Call) else None):
                yield Remark(last, f"{short(last)} follows {short(before)}, and axis 0 of its output is the batch")
            continue
        scores = _scores(program, flow, call)
        made = flow.maker(scores) if isinstance(scores, ast.Call) else None
        if made is None or scores is None:
            continue
        function = program.function_of(call)
        of = program.class_of(call)
        ends = isinstance(function, Function) and function.name == "forward" and of is not None and [flow.value(one) for one in returned(function)] == [call]
        if ends and _wide(program, flow, made):
            yield Remark(call, f"{short(call)} is what {of.name if of is not None else ''}.forward returns, and axis 0 of {short(scores, 40)} is the batch")


def _batches(loader: ast.Call) -> bool:
    """Whether a loader makes batches of more than one sample."""
    size = argument(loader, "batch_size", 1)
    sampled = argument(loader, "batch_sampler") is not None
    return sampled or not (size is None or (isinstance(size, ast.Constant) and size.value in (1, None)))


def _is_softmax(program: Program, node: ast.AST) -> bool:
    return program.called(node) in ("torch.nn.Softmax", "torch.nn.LogSoftmax")


def _is_zero(flow: Flow, node: ast.AST | None) -> bool:
    return flow.number(node) == 0


def _scores(program: Program, flow: Flow, call: ast.Call) -> ast.AST | None:
    """What a softmax, or its logarithm, along axis 0 is taken of."""
    made = flow.maker(call)
    if made is not None and _is_softmax(program, made) and call.args:
        return flow.value(call.args[0]) if _is_zero(flow, argument(made, "dim", 0)) else None
    if not is_method(call, "softmax", "log_softmax") or is_call(call):
        return None
    free = program.called(call) in _SOFTMAXES
    if not _is_zero(flow, argument(call, "dim", 1 if free else 0)):
        return None
    return flow.value(program.operand(call))


def _wide(program: Program, flow: Flow, made: ast.AST) -> bool:
    """Whether a layer is linear and gives more than one value for each sample."""
    if not isinstance(made, ast.Call) or program.called(made) != "torch.nn.Linear":
        return False
    return flow.number(argument(made, "out_features", 1)) != 1


@RULES.add(
    "kept-for-dropped",
    "nearly all units are dropped in training where nearly all were to be kept",
    "in torch, p is the share that is dropped: nn.Dropout(1 - keep_prob)",
)
def _kept(program: Program) -> Iterator[Remark]:
    """A dropout that is given the probability of keeping a unit."""
    flow = flow_of(program)
    for call in program.calls():
        name = program.called(call)
        place = 1 if name.startswith("torch.nn.functional.") else 0
        if not name.startswith("torch.nn.") or not name.rpartition(".")[2].lower().startswith("dropout"):
            continue
        given = argument(call, "p", place)
        number = flow.number(given)
        if given is not None and _KEEP.search(last_word(given)) and (number is None or number > 0.5):
            yield Remark(call, f"{short(call)} drops with the probability {text_of(given)}, which is named for what is kept")


@RULES.add(
    "softmax-over-the-width",
    "the probabilities of a pixel do not add up to 1, and depend on the other pixels of its row",
    "run it over the channels: dim=1",
)
def _over_the_width(program: Program) -> Iterator[Remark]:
    """A model of classes for each pixel that ends in a softmax along the last axis of a convolution's output."""
    flow = flow_of(program)
    for call in program.calls():
        if program.called(call) == "torch.nn.Sequential" and len(call.args) > 1:
            last, before = flow.value(call.args[-1]), flow.value(call.args[-2])
            if _is_softmax(program, last) and isinstance(last, ast.Call) and _is_last(flow, argument(last, "dim", 0)) and _is_convolution(program, before):
                yield Remark(last, f"{short(last)} follows {short(before)}, and the last axis of its output is the width")
            continue
        function = program.function_of(call)
        if not isinstance(function, Function) or function.name != "forward" or [flow.value(one) for one in returned(function)] != [call]:
            continue
        free = program.called(call) in _SOFTMAXES
        made = flow.maker(call)
        of_module = made is not None and _is_softmax(program, made)
        if not of_module and not (is_method(call, "softmax", "log_softmax") and (free or not program.called(call))):
            continue
        axis = argument(made, "dim", 0) if of_module and made is not None else argument(call, "dim", 1 if free else 0)
        scores = flow.value(call.args[0] if of_module and call.args else program.operand(call))
        if _is_last(flow, axis) and isinstance(scores, ast.Call) and _is_convolution(program, flow.maker(scores)):
            yield Remark(call, f"{short(call)} runs over the width of {short(scores, 40)}, which is (batch, classes, height, width)")


def _is_last(flow: Flow, node: ast.AST | None) -> bool:
    return flow.number(node) in (-1, 2, 3)


def _is_convolution(program: Program, node: ast.AST | None) -> bool:
    return program.called(node) in ("torch.nn.Conv2d", "torch.nn.ConvTranspose2d")
