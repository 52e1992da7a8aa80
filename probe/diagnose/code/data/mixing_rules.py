"""Mixtures of two samples, and of their targets. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    is_binary,
    is_name,
    names_of,
    number_in,
    operands,
    own,
    short,
    text_of,
)
from probe.diagnose.code.torch_losses import is_loss

RULES = Rules("data")


@RULES.add("targets-not-mixed", "the loss asks for the wrong share of each target", "lam * loss(out, y) + (1 - lam) * loss(out, y[order])")
def _not_mixed(program: Program) -> Iterator[Remark]:
    """Inputs that are mixed with a permutation of themselves, and targets that are not, or the other way round."""
    flow = flow_of(program)
    for node in program.everywhere(ast.Assign):
        mixture = _mixture(flow, node.value)
        loops = program.loops(node)
        if mixture is None or not loops:
            continue
        share, order = mixture
        losses = [one for one in ast.walk(loops[0]) if isinstance(one, ast.Call) and is_loss(program, one) and len(one.args) > 1 and one.lineno > node.lineno]
        batches = names_of(loops[0].target) if isinstance(loops[0], ast.For) else set()
        plain = [one for one in losses if isinstance(one.args[1], ast.Name) and one.args[1].id in batches]
        ordered = any(isinstance(one, ast.Subscript) and text_of(one.slice) == order and names_of(one.value) & batches and not names_of(one.value) & names_of(node.value) for one in ast.walk(loops[0]))
        if plain and not ordered and order not in " ".join(text_of(one.args[1]) for one in losses):
            yield Remark(plain[0], f"{short(plain[0])} knows one target of each input, and {short(node)} mixes two")
        for one in ast.walk(loops[0]):
            if plain and ordered and is_binary(one, ast.Add) and (turned := _turned(flow, one, share, order)) is not None:
                yield Remark(one, f"{short(turned)} is the share of the sample that {short(node.value)} weights by 1 - {share}")


def _mixture(flow: Flow, node: ast.AST) -> tuple[str, str] | None:
    """The share and the order of `lam * x + (1 - lam) * x[order]`."""
    for first, second in operands(node) if is_binary(node, ast.Add) else ():
        if not is_binary(first, ast.Mult) or not is_binary(second, ast.Mult):
            continue
        for share, one in operands(first):
            for rest, other in operands(second):
                whole = is_binary(rest, ast.Sub) and number_in(rest.left) == 1 and text_of(rest.right) == text_of(share)
                if whole and isinstance(other, ast.Subscript) and text_of(other.value) == text_of(one) and isinstance(other.slice, ast.Name):
                    drawn = flow.program.called(flow.value(other.slice))
                    if drawn in ("torch.randperm", "numpy.random.permutation"):
                        return text_of(share), text_of(other.slice)
    return None


def _turned(flow: Flow, node: ast.BinOp, share: str, order: str) -> ast.AST | None:
    """The term of a loss that gives the first sample's share to the target of the second."""
    for term in (node.left, node.right):
        for factor, loss in operands(term) if is_binary(term, ast.Mult) else ():
            wanted = loss.args[1] if isinstance(loss, ast.Call) and is_loss(flow.program, loss) and len(loss.args) > 1 else None
            target = flow.value(wanted)
            if text_of(factor) == share and isinstance(target, ast.Subscript) and text_of(target.slice) == order:
                return term
    return None


@RULES.add("mixed-apart", "half of the loss asks for the labels of other samples than those that were mixed in", "draw one permutation, and take inputs and targets by it")
def _mixed_apart(program: Program) -> Iterator[Remark]:
    """Inputs that are mixed by one permutation, and targets that are taken by another."""
    flow = flow_of(program)
    for scope in program.scopes():
        for node in own(scope, ast.BinOp):
            mixed = _mixed_with_itself(flow, node)
            if mixed is None:
                continue
            taken = [
                one for one in own(scope, ast.Subscript)
                if one is not mixed and program.loops(one)[:1] == program.loops(node)[:1] and text_of(one.value) != text_of(mixed.value) and _drawn(flow, one.slice) is not None and is_name(one.value) and is_name(mixed.value)
            ]
            together = [one for one in taken if _belong(flow, one.value, mixed.value)]
            same = [one for one in together if _drawn(flow, one.slice) is _drawn(flow, mixed.slice)]
            if together and not same:
                yield Remark(together[0], f"{short(together[0])} is in another random order than {short(mixed)}, which {short(node)} mixes in")


def _mixed_with_itself(flow: Flow, node: ast.BinOp) -> ast.Subscript | None:
    """x[order] of `lam * x + (1 - lam) * x[order]`."""
    for first, second in operands(node) if is_binary(node, ast.Add) else ():
        if is_binary(first, ast.Mult) and is_binary(second, ast.Mult):
            plain = {text_of(side) for side in (first.left, first.right)}
            for other in (second.left, second.right):
                if isinstance(other, ast.Subscript) and text_of(other.value) in plain and _drawn(flow, other.slice) is not None:
                    return other
    return None


def _drawn(flow: Flow, order: ast.AST) -> ast.AST | None:
    """The call that draws a permutation which an index is."""
    value = flow.value(order)
    return value if flow.program.called(value) in ("torch.randperm", "numpy.random.permutation") else None


def _belong(flow: Flow, one: ast.AST, other: ast.AST) -> bool:
    """Whether two variables come as parameters of one function, or from one batch."""
    first, second = (flow.bindings(side)[:1] for side in (one, other))
    together = [(a, b) for a in first for b in second if a.how == b.how]
    return any((a.how == "parameter" and flow.program.scope(a.node) is flow.program.scope(b.node)) or (a.how == "for" and a.node is b.node) for a, b in together)
