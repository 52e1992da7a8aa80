"""Splits and draws that follow the order of the data, or ignore what they were given. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import HELD_OUT, TRAINING, filled_with
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    argument,
    is_call,
    is_false,
    is_method,
    is_name,
    is_read,
    last_word,
    own,
    pairs_of,
    short,
    text_of,
)

RULES = Rules("data")
_EDGES = re.compile(r"^(pos_)?edges?(_index|_list)?$")


@RULES.add("weights-without-replacement", "each sample is drawn once: the weights only change the order, and the classes stay as rare as they are", "draw with replacement (replacement=True, the default)")
def _without_replacement(program: Program) -> Iterator[Remark]:
    """A weighted sampler that draws as many samples as there are, none of them twice."""
    for call in program.calls():
        if program.called(call).rpartition(".")[2] != "WeightedRandomSampler" or not is_false(argument(call, "replacement", 2)):
            continue
        weights, count = argument(call, "weights", 0), argument(call, "num_samples", 1)
        whole = is_call(count, "len") and len(count.args) == 1
        sized = is_method(count, "numel") or (is_method(count, "size") and len(count.args) == 1)
        if weights is not None and (whole or sized):
            yield Remark(call, f"{short(call)} draws each of {text_of(count) if count is not None else ''} samples once")


@RULES.add("split-by-class", "the held-out part holds classes that the training part has none or few of", "shuffle both by one permutation before the split")
def _by_class(program: Program) -> Iterator[Remark]:
    """Labels that are sorted as they are made, cut in two without a shuffle."""
    flow = flow_of(program)
    for scope in program.scopes():
        for node in own(scope, ast.Assign):
            for target, value in pairs_of(node):
                if not isinstance(target, ast.Name) or not _in_blocks(program, flow, value):
                    continue
                made = [one for one in flow.bindings(target) if one.how == "assign"]
                cuts = [one for one in own(scope, ast.Subscript) if is_read(one.value, target.id) and isinstance(one.slice, ast.Slice) and one.slice.step is None]
                heads = [one for one in cuts if one.slice.lower is None and one.slice.upper is not None]  # type: ignore[attr-defined]
                tails = [one for one in cuts if one.slice.upper is None and one.slice.lower is not None]  # type: ignore[attr-defined]
                whole = [(a, b) for a in heads for b in tails if text_of(a.slice.upper) == text_of(b.slice.lower)]  # type: ignore[attr-defined]
                if len(made) == 1 and whole:
                    yield Remark(whole[0][1], f"{text_of(target)} lists one class after the other ({short(value, 40)}), and {short(whole[0][1])} is its end")


def _in_blocks(program: Program, flow: Flow, value: ast.AST) -> bool:
    """Whether an expression gives one class after the other."""
    value = value.func.value if is_method(value, "long", "float", "int", "astype", "to") else value
    if is_method(value, "repeat_interleave"):
        return program.called(program.operand(value)) in ("torch.arange",)
    name = program.called(value)
    if name == "numpy.repeat" and isinstance(value, ast.Call) and value.args:
        return program.called(value.args[0]) == "numpy.arange"
    if name in ("torch.cat", "numpy.concatenate") and isinstance(value, ast.Call) and value.args and isinstance(value.args[0], (ast.List, ast.Tuple)):
        return len(value.args[0].elts) > 1 and len({_block(flow, one) for one in value.args[0].elts} - {None}) == len(value.args[0].elts)
    return False


def _block(flow: Flow, node: ast.AST) -> float | None:
    """The class that a part of the labels is filled with: `torch.zeros(n)`, `torch.full((n,), 2)`."""
    value = flow.value(node)
    value = flow.value(value.func.value) if is_method(value, "long", "float", "int", "astype", "to") else value
    shape = value.args[0] if isinstance(value, ast.Call) and value.args else None
    flat = shape is not None and not (isinstance(shape, ast.Tuple) and len(shape.elts) > 1)
    return filled_with(flow, value) if flat else None


@RULES.add("held-out-edges-in-the-graph", "the model reads the edges that it is asked to predict: the score is that of a lookup", "pass messages over the training edges alone")
def _held_out_edges(program: Program) -> Iterator[Remark]:
    """Edges split into parts, and a graph that is built of all of them."""
    flow = flow_of(program)
    for scope in program.scopes():
        parts: dict[str, dict[str, ast.Assign]] = {}
        for node in own(scope, ast.Assign):
            for target, value in pairs_of(node):
                if is_name(target) and isinstance(value, ast.Subscript) and isinstance(value.value, ast.Name) and _EDGES.match(value.value.id):
                    parts.setdefault(value.value.id, {})[target.id] = node
        for name, made in parts.items():
            held, trained = [one for one in made if HELD_OUT.search(one)], [one for one in made if TRAINING.search(one)]
            first, last = (choose(one.lineno for one in made.values()) for choose in (min, max))
            again = any(one.how != "parameter" and getattr(one.node, "lineno", 0) >= first for one in flow.bound.get((scope, name), []))
            if not held or not trained or again:
                continue
            for call in own(scope, ast.Call):
                whole = any(is_read(one, name) for one in call.args)
                builds = re.search(r"adj|graph|normali|laplac|encode|message|propag|matrix|degree", last_word(call.func), re.I) or program.family(call.func) == "module"
                if whole and builds and (call.lineno > last or re.search(r"adj|graph|laplac|propag|matrix|degree", last_word(call.func), re.I)):
                    yield Remark(call, f"{short(call)} passes messages over all of {name}, and {held[0]} (line {made[held[0]].lineno}) is a part of it")
                    break
