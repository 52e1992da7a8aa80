"""Masked words, and what is reported of language models. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import meant_by
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    ORDERS,
    argument,
    compares,
    is_binary,
    is_method,
    is_name,
    is_read,
    names_read,
    own,
    own_nodes,
    pairs_of,
    returned,
    short,
    text_of,
)
from probe.diagnose.code.torch_losses import is_loss, loss_name

RULES = Rules("data")
_TOLD = ("torch.nn.CrossEntropyLoss", "torch.nn.NLLLoss", "torch.nn.functional.cross_entropy", "torch.nn.functional.nll_loss")
_LABELS = re.compile(r"^(labels?|tags?|targets?|ys?|tgt|trg|gold)(_\w+)?$", re.I)
_OF_WORDS = ("cross_entropy", "CrossEntropyLoss")


@RULES.add("target-changed-with-input", "the target is what the input was changed to: the model copies it", "keep a copy first: labels = ids.clone()")
def _changed_with_input(program: Program) -> Iterator[Remark]:
    """A target that is a second name for an input, which is then changed in place."""
    flow = flow_of(program)
    for scope in program.scopes():
        for node in own(scope, ast.Assign):
            yield from _one_tensor(program, node)
            for target, value in pairs_of(node):
                if not isinstance(target, ast.Name) or not isinstance(value, ast.Name) or target.id == value.id:
                    continue
                changed = _changed_after(program, node, value.id)
                again = [one for one in flow.bindings(value) if changed is not None and node.lineno < getattr(one.node, "lineno", 0) <= changed.lineno]
                if changed is None or again or len(flow.bindings(target)) != 1:
                    continue
                losses = [one for one in own(scope, ast.Call) if is_loss(program, one) and len(one.args) > 1 and target.id in names_read(one.args[1]) and one.lineno > changed.lineno]
                fed = any(program.family(one.func) == "module" and any(is_read(word, value.id) for word in one.args) for one in own(scope, ast.Call))
                if losses and fed:
                    yield Remark(changed, f"{short(changed)} changes {target.id} too, which is the same tensor (line {node.lineno}) and the target of {short(losses[0], 40)}")


def _one_tensor(program: Program, node: ast.Assign) -> Iterator[Remark]:
    """Labels that share the one tensor of `inputs = labels = ids.clone()`, which is then changed."""
    names = [one.id for one in node.targets if isinstance(one, ast.Name)]
    labels = [name for name in names if re.search(r"label|target", name, re.I)]
    if len(names) < 2 or len(labels) != 1 or not isinstance(node.value, (ast.Call, ast.Subscript)):
        return
    for name in names:
        changed = _changed_after(program, node, name)
        if changed is not None and name != labels[0]:
            yield Remark(changed, f"{short(changed)} changes {labels[0]} too: {short(node)} gives one tensor two names")
            return


def _changed_after(program: Program, node: ast.stmt, name: str) -> ast.stmt | None:
    """The first statement after another one that changes a part of a tensor in place."""
    return next((one for later in program.after(node) for one in ast.walk(later) if isinstance(one, ast.stmt) and _sets_part(one, name)), None)


def _sets_part(node: ast.AST, name: str) -> bool:
    """Whether a statement changes a part of a tensor in place."""
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], ast.Subscript) and is_name(node.targets[0].value, name)
    return isinstance(node, ast.Expr) and is_method(node.value, "masked_fill_", "scatter_", "index_fill_") and is_name(node.value.func.value, name)


@RULES.add("loss-of-unmasked-words", "most of the loss asks for words that stand in the input: it falls as the model learns to copy", "set the labels to -100 where nothing is masked")
def _unmasked(program: Program) -> Iterator[Remark]:
    """Words that are masked at random, and a loss over all of them."""
    if not any("mask" in source.text.lower() and "cross" in source.text.lower() for source in program.sources):
        return
    flow = flow_of(program)
    for scope in program.scopes():
        for node in own_nodes(scope):
            found = _masked(flow, node)
            if found is None:
                continue
            mask, ids = found
            uses = [one for one in own_nodes(scope) if is_read(one, mask)]
            losses = [one for one in own(scope, ast.Call) if loss_name(program, one) in _OF_WORDS and len(one.args) > 1 and _is_all_of(flow, one.args[1], ids)]
            if len(uses) == 1 and losses:
                yield Remark(losses[0], f"{short(losses[0])} asks for all of {ids}, and only what {mask} marks is hidden from the model")
                break


def _masked(flow: Flow, node: ast.AST) -> tuple[str, str] | None:
    """The mask and the words of `x.masked_fill(m, MASK)`, `torch.where(m, MASK, x)` and `x = ids.clone(); x[m] = MASK`."""
    mask = ids = word = None
    if is_method(node, "masked_fill") and len(node.args) == 2:
        mask, word, ids = node.args[0], node.args[1], node.func.value
    elif is_method(node, "where") and flow.program.called(node) == "torch.where" and len(node.args) == 3:
        mask, word, ids = node.args
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        mask, word = node.targets[0].slice, node.value
        made = flow.value(node.targets[0].value)
        ids = made.func.value if is_method(made, "clone") else None
    if not isinstance(mask, ast.Name) or not isinstance(ids, ast.Name) or word is None or "mask" not in text_of(word).lower():
        return None
    drawn = any(compares(one, *ORDERS) and any(is_method(side, "rand", "rand_like") for side in ast.walk(one)) for one in flow.origins(mask))
    return (mask.id, ids.id) if drawn else None


def _is_all_of(flow: Flow, node: ast.AST, name: str) -> bool:
    """Whether an expression is a variable, in whatever shape."""
    while is_method(node, "view", "reshape", "flatten", "long", "contiguous", "clone") and not flow.program.called(node):
        node = node.func.value
    if isinstance(node, ast.Name) and node.id != name:
        value = flow.value(node)
        return value is not node and isinstance(value, ast.expr) and _is_all_of(flow, value, name)
    return is_name(node, name)


@RULES.add("padding-not-ignored", "the loss and the score also count the padding, as if it were of the class that its number stands for", "pad the labels with the number that the loss ignores")
def _not_ignored(program: Program) -> Iterator[Remark]:
    """Labels that are padded with another number than the one that the loss is told to ignore."""
    flow = flow_of(program)
    told = {flow.number(argument(made, "ignore_index", 2 if program.called(made).endswith("CrossEntropyLoss") else 3)) for made in program.calls() if program.called(made) in _TOLD and argument(made, "ignore_index") is not None}
    if not told and not _masks(program):
        yield from _told_nothing(program, flow)
    if len(told) != 1 or None in told:
        return
    ignored = told.pop()
    for call in program.calls():
        if program.called(call) != "torch.nn.utils.rnn.pad_sequence":
            continue
        padding = argument(call, "padding_value", 2)
        number = 0.0 if padding is None else flow.number(padding)
        statement = program.statement(call)
        targets = [target for target, value in pairs_of(statement) if value is call] if isinstance(statement, ast.Assign) else []
        if number is not None and number != ignored and len(targets) == 1 and _LABELS.search(text_of(targets[0])):
            yield Remark(call, f"{short(call)} pads {text_of(targets[0])} with {number:g}, and the loss ignores {ignored:g}")


def _masks(program: Program) -> bool:
    """Whether a program may leave the padding out of its loss in another way than by a number."""
    words = ("ignore_index", "mask", "pack_padded", "-100", "reduction", "nonpad", "non_pad", "weight=")
    return any(word in source.text for source in program.sources for word in words)


def _told_nothing(program: Program, flow: Flow) -> Iterator[Remark]:
    """Labels that are filled up with a class, for a cross-entropy that is told of no padding."""
    for loss in program.calls():
        if loss_name(program, loss) not in _OF_WORDS or len(loss.args) < 2:
            continue
        for one in (part for part in flow.origins(loss.args[1]) if isinstance(part, ast.Name)):
            for made in meant_by(flow, one):
                if not isinstance(made, ast.Call) or program.called(made) != "torch.nn.utils.rnn.pad_sequence":
                    continue
                padding = argument(made, "padding_value", 2)
                number = 0.0 if padding is None else flow.number(padding)
                if number is not None and number >= 0:
                    yield Remark(loss, f"{short(loss)} counts the padding: {short(made, 40)} (line {made.lineno}) fills the labels up with {number:g}, and no ignore_index is given")
                    return


@RULES.add("perplexity-with-smoothing", "what is reported is no perplexity: the smoothed loss is larger, and cannot reach that of a perfect model", "compute the loss of the evaluation without label_smoothing")
def _smoothed(program: Program) -> Iterator[Remark]:
    """exp() of a cross entropy that smooths its labels."""
    flow = flow_of(program)
    for call in program.calls():
        source = (call.args[0] if call.args else call.func.value) if is_method(call, "exp") else None
        if source is None:
            continue
        for one in _behind(flow, program.scope(call), source, 2):
            made = flow.value(one.func) if program.family(one.func) == "loss" else one
            smoothing = flow.number(argument(made, "label_smoothing")) if isinstance(made, ast.Call) and loss_name(program, one) in _OF_WORDS else None
            if smoothing:
                yield Remark(call, f"{short(call)} is taken of {short(one, 40)}, whose labels are smoothed by {smoothing:g}")
                break


def _behind(flow: Flow, scope: ast.AST, node: ast.AST, depth: int) -> Iterator[ast.Call]:
    """The calls whose results an expression is computed from, through sums of a loop and through functions."""
    found = list(flow.origins(node))
    for added in own(scope, ast.AugAssign):
        if is_name(added.target, *(part.id for part in found if isinstance(part, ast.Name)), ""):
            found += flow.origins(added.value)
    for one in found:
        if isinstance(one, ast.Call):
            yield one
            local = flow.program.local_function(one) if depth else None
            for value in returned(local) if local is not None else ():
                if value is not None:
                    yield from _behind(flow, local, value, depth - 1)  # type: ignore[arg-type]


@RULES.add("perplexity-of-each-batch", "the mean of exponentials is larger than the exponential of the mean, and one bad batch decides it", "average the losses over all tokens, and take exp() once")
def _perplexity(program: Program) -> Iterator[Remark]:
    """A perplexity that is computed for each batch and averaged."""
    flow = flow_of(program)
    for node in program.everywhere(ast.AugAssign):
        if not isinstance(node.op, ast.Add) or not isinstance(node.target, ast.Name) or not program.loops(node):
            continue
        powers = [one for one in flow.origins(node.value) if is_method(one, "exp")]
        inner = powers[0] if powers and powers[0] in (node.value, flow.value(node.value)) else None
        source = (inner.args[0] if inner.args else inner.func.value) if isinstance(inner, ast.Call) and is_method(inner, "exp") else None
        of_loss = source is not None and any(loss_name(program, one) in _OF_WORDS for one in flow.origins(source))
        divided = any(is_binary(one, ast.Div) and is_read(one.left, node.target.id) for one in own_nodes(program.scope(node)))
        if of_loss and divided:
            yield Remark(node, f"{short(node)} adds up a perplexity for each batch")
