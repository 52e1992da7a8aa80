"""Initial weights: all alike, or products of weights that are both zero. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.finders.rows.padding_rows import padding_row_overwritten
from probe.diagnose.code.flow import flow_of
from probe.diagnose.code.model.layers import layer_of
from probe.diagnose.code.model.modules import module_classes
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    is_attribute,
    is_binary,
    is_method,
    is_own,
    short,
    text_of,
    without_data,
)

RULES = Rules("model")
_FILLS = ("normal_", "uniform_", "copy_", "fill_", "kaiming_uniform_", "xavier_uniform_", "load_state_dict")


@RULES.add(
    "layers-of-one-number",
    "the units of a layer compute the same and get the same gradient: the model is as wide as one unit",
    "draw the weights at random; only biases may be constant",
)
def _of_one_number(program: Program) -> Iterator[Remark]:
    """A model all of whose layers get one number for all their weights, each by its name or in one loop."""
    for of in module_classes(program):
        layers = {
            target.attr for node in ast.walk(of) if isinstance(node, ast.Assign) for target in node.targets
            if is_own(target) and program.called(node.value).startswith(("torch.nn.Linear", "torch.nn.Conv"))
        }
        filled = {name: call for call in ast.walk(of) for name in _filled_alike(program, call)}
        constant = [call for name, call in filled.items() if name in layers]
        others = [call for call in ast.walk(of) if layer_of(program, call) and not _is_mixing(program, call)]
        if len(layers) > 1 and layers <= set(filled) and not others:
            said = f"{short(constant[0])}, and the other layers of {of.name} too are filled with one number"
            yield Remark(constant[0], said)
    for loop in program.everywhere(ast.For):
        if not is_method(loop.iter, "parameters") or len(loop.body) != 1 or isinstance(loop.body[0], ast.If):
            continue
        of_loop = text_of(loop.target)
        for call in ast.walk(loop.body[0]):
            target, number = _filling(program, call) or (None, None)
            if target is None or not number or text_of(without_data(target)) != of_loop:
                continue
            made = program.classes.get(program.kind_name(loop.iter.func.value), [])
            if sum(_is_mixing(program, one) for of in made for one in ast.walk(of)) > 1:
                yield Remark(call, f"{short(call)} gives all weights of {made[0].name} the same value")


def _is_mixing(program: Program, node: ast.AST) -> bool:
    return program.called(node).startswith(("torch.nn.Linear", "torch.nn.Conv"))


def _filling(program: Program, call: ast.AST) -> tuple[ast.AST, float | None] | None:
    """The tensor that a call fills with one number, and the number (None: not known)."""
    flow = flow_of(program)
    name = program.called(call)
    if not isinstance(call, ast.Call):
        return None
    if name in ("torch.nn.init.zeros_", "torch.nn.init.ones_") and call.args:
        return call.args[0], float(name.endswith("ones_"))
    if name == "torch.nn.init.constant_" and len(call.args) == 2:
        return call.args[0], flow.number(call.args[1])
    if is_method(call, "fill_") and len(call.args) == 1 and not name:
        return call.func.value, flow.number(call.args[0])
    return (call.func.value, 0.0) if is_method(call, "zero_") and not name else None


def _filled_alike(program: Program, call: ast.AST) -> Iterator[str]:
    """The layer of self whose weight a call fills with one number."""
    found = _filling(program, call)
    target = without_data(found[0]) if found is not None else None
    if is_attribute(target, "weight") and is_own(target.value):
        yield target.value.attr


@RULES.add(
    "product-of-zeros",
    "the gradient of each is the other times something, which is 0: neither ever changes",
    "draw one of the two at random, and start only the other at zero",
)
def _product_of_zeros(program: Program) -> Iterator[Remark]:
    """Two parameters of a module that both start at zero, and of which only the product is used."""
    for of in module_classes(program):
        zeros = zeros_of(program, of)
        own_names = [one for one in ast.walk(of) if is_own(one) and one.attr in zeros]
        reads = [one for one in own_names if isinstance(one.ctx, ast.Load)]
        for node in ast.walk(of) if len(zeros) > 1 else ():
            if not _multiplies(program, node) or _multiplies(program, program.parent.get(node)):
                continue
            factors = [one for one in ast.walk(node) if one in reads]
            names = [one.attr for one in factors if is_own(one)]
            elsewhere = [one for one in reads if one.attr in names and one not in factors]
            if len(names) == len(set(names)) == 2 and not elsewhere and not _adds(node):
                yield Remark(
                    node, f"{short(node)} multiplies self.{names[0]} by self.{names[1]}, and both start at 0"
                )


def _multiplies(program: Program, node: ast.AST | None) -> bool:
    """Whether a node is a product of matrices, as an operator or as a linear layer without a bias."""
    linear = isinstance(node, ast.Call) and program.called(node) == "torch.nn.functional.linear"
    return is_binary(node, ast.MatMult) or (linear and len(node.args) == 2)  # type: ignore[union-attr]


def _adds(node: ast.AST) -> bool:
    return any(is_binary(one, ast.Add, ast.Sub) for one in ast.walk(node))


def zeros_of(program: Program, of: ast.ClassDef) -> set[str]:
    """The attributes of a module that are parameters made of zeros, and that nothing initialises later."""
    made = {
        target.attr for node in ast.walk(of) if isinstance(node, ast.Assign) for target in node.targets
        if is_own(target) and program.called(node.value) == "torch.nn.Parameter"
        and isinstance(node.value, ast.Call) and node.value.args
        and program.called(node.value.args[0]) in ("torch.zeros", "torch.zeros_like")
    }
    given = {
        inner.attr for call in program.calls() for inner in ast.walk(call) if isinstance(inner, ast.Attribute)
        if inner.attr in made
        and (program.called(call).startswith("torch.nn.init.") or is_method(call, *_FILLS))
    }
    return made - given


@RULES.add(
    "layers-of-zeros",
    "the units between them compute the same, and get the same gradient or none: the model is as wide as one unit",
    "draw them at random: nn.Parameter(torch.randn(n, m) / n ** 0.5)",
)
def _of_zeros(program: Program) -> Iterator[Remark]:
    """Two weights of a module that both start at zero, of which one is applied to what the other gives."""
    flow = flow_of(program)
    for of in module_classes(program):
        zeros = zeros_of(program, of)
        for node in ast.walk(of) if len(zeros) > 1 else ():
            second = _applied(program, node)
            if second is None or second[1] not in zeros:
                continue
            before = [found[1] for one in flow.origins(second[0]) if (found := _applied(program, one)) is not None]
            first = next((name for name in before if name in zeros and name != second[1]), None)
            added = any(is_binary(one, ast.Add, ast.Sub) and not _adds_bias(one) for one in flow.origins(second[0]))
            if first is not None and not added:
                yield Remark(node, f"{short(node)} applies self.{second[1]} to what self.{first} gives, and both start at 0")
                break


def _applied(program: Program, node: ast.AST) -> tuple[ast.expr, str] | None:
    """What a matrix of self is applied to, and its name: `x @ self.w`, `F.linear(x, self.w)`."""
    if is_binary(node, ast.MatMult) and is_own(node.right):
        return node.left, node.right.attr
    linear = isinstance(node, ast.Call) and (program.called(node) in ("torch.nn.functional.linear", "torch.matmul", "torch.mm"))
    if isinstance(node, ast.Call) and linear and len(node.args) > 1 and is_own(node.args[1]):
        return node.args[0], node.args[1].attr
    return None


def _adds_bias(node: ast.BinOp) -> bool:
    """Whether an attribute of self is added: a bias, and not another way round the layers."""
    return is_own(node.left) or is_own(node.right)


RULES.add(
    "padding-row-overwritten",
    "each padded position adds one and the same random vector, which is never trained: of a short sample, little else is left",
    "set the row to zero after the initialization: with torch.no_grad(): table.weight[table.padding_idx].zero_()",
)(padding_row_overwritten)
