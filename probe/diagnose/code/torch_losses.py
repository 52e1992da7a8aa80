"""Losses of torch: which call computes one, and whether it gives a mean. Pure; standard library only."""

from __future__ import annotations

import ast

from probe.diagnose.code.flow import Flow
from probe.diagnose.code.program import Program

_MEANS = frozenset({
    "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss",
    "binary_cross_entropy", "binary_cross_entropy_with_logits",
})
"""Functions of torch.nn.functional that give the mean over a batch, unless they are told otherwise."""


def loss_name(program: Program, node: ast.AST | None) -> str:
    """The last word of the loss of torch that a call computes, by a function or a module; else empty."""
    if isinstance(node, ast.Call) and program.family(node.func) == "loss":
        return program.kind_name(node.func).rpartition(".")[2]
    name = program.called(node)
    words = name.endswith("_loss") or "cross_entropy" in name or "kl_div" in name
    return name.rpartition(".")[2] if words and name.startswith("torch.nn.functional.") else ""


def is_loss(program: Program, node: ast.AST | None) -> bool:
    """Whether an expression is a call of a loss of torch, or of a loss module."""
    return loss_name(program, node) != ""


def gives_mean(flow: Flow, call: ast.Call) -> bool:
    """Whether a call computes a loss of torch and gives its mean over the batch."""
    made: ast.AST = call
    if flow.program.family(call.func) == "loss":
        made = flow.value(call.func)
    elif loss_name(flow.program, call) not in _MEANS:
        return False
    told = ("reduction", "size_average", "reduce", None)
    return isinstance(made, ast.Call) and not any(one.arg in told for one in made.keywords)
