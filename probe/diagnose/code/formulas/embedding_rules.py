"""Codes, embeddings and what compares them: contrasts, retrieval, quantization, reversed gradients. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.finders.sequences.found_texts import cosines_unscaled
from probe.diagnose.code.finders.weights.shares_of_others import diagonal_among_the_rest
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    Function,
    argument,
    is_attribute,
    is_binary,
    is_method,
    is_name,
    is_negative,
    is_own,
    is_read,
    mentions,
    own,
    own_nodes,
    parameters,
    returned,
    short,
    text_of,
)
from probe.diagnose.code.torch_losses import loss_name

RULES = Rules("loop")
_REVERSAL = re.compile(r"revers|(^|_)(grl|rev)(_|$)|^grl|^grev", re.I)
_SAME = ("view_as", "clone", "view", "reshape")


@RULES.add("straight-through-without-detach", "it is the second value alone, also for the gradient: nothing flows back to the first", "write x + (q - x).detach()")
def _straight_through(program: Program) -> Iterator[Remark]:
    """A straight-through estimate `x + (q - x)` whose difference is not detached."""
    for node in program.everywhere(ast.BinOp):
        difference = node.right
        if not is_binary(node, ast.Add) or not is_binary(difference, ast.Sub) or text_of(node.left) != text_of(difference.right):
            continue
        hard = difference.left
        plain = not mentions(difference, "detach", "data") and program.family(node.left) not in ("number", "array")
        if plain and isinstance(hard, ast.Name) and isinstance(program.parent.get(node), (ast.Assign, ast.Return)) and _is_quantized(program, hard):
            yield Remark(node, f"{short(node)} is {hard.id}, and passes no gradient to {text_of(node.left)}: detach() is missing around the difference")


def _is_quantized(program: Program, value: ast.Name) -> bool:
    """Whether a value is rounded or looked up, which has no gradient to its input."""
    flow = flow_of(program)
    return any(
        is_method(one, "argmin", "argmax", "round", "sign", "floor", "one_hot", "scatter", "scatter_", "topk", "bernoulli", "embedding", "gt", "ge")
        or isinstance(one, ast.Compare)
        for one in flow.origins(value)
    )


@RULES.add("own-key-among-negatives", "each sample is asked to be like its key and unlike it: the loss cannot fall below ln 2", "compute the loss first, and put the keys into the queue after it")
def _own_key(program: Program) -> Iterator[Remark]:
    """Keys that are put into the queue of negatives before the queue is compared with their own queries."""
    flow = flow_of(program)
    for scope in program.scopes():
        for call in own(scope, ast.Call):
            parent = program.parent.get(call)
            function = program.local_function(call) if isinstance(parent, (ast.Expr, ast.Assign)) else None
            if function is None or len(call.args) != 1 or not isinstance(call.args[0], ast.Name):
                continue
            if isinstance(parent, ast.Assign):  # k = self.encode(x), which also puts k into the queue
                results = returned(function)
                if len(results) != 1 or not is_name(results[0]) or not is_name(parent.targets[0]):
                    continue
                queues, keys = _filled_by(function, text_of(results[0])), text_of(parent.targets[0])
            else:
                queues, keys = _filled_by(function), call.args[0].id
            later = [one for after in program.after(parent) for one in ast.walk(after)] if parent is not None else []
            before = [one for one in own_nodes(scope) if getattr(one, "lineno", 0) < call.lineno]
            compared = next((one for one in later if is_own(one) and one.attr in queues and isinstance(one.ctx, ast.Load) and _in_product(program, one)), None)
            positive = any(is_read(one, keys) and _in_product(program, one) for one in [*later, *before] if getattr(one, "lineno", 0) != call.lineno)
            if compared is not None and positive and not any(is_own(one) and one.attr in queues for one in before) and not _marked(flow, compared):
                yield Remark(call, f"{short(call)} puts {keys} into {text_of(compared)} before line {compared.lineno} takes its negatives from there: the positive of each sample is one of them")


def _filled_by(function: Function, result: str = "") -> set[str]:
    """The attributes of self whose slices a function sets to its parameter, or to its result."""
    given = {result} if result else {one.arg for one in parameters(function)} - {"self"}
    return {
        target.value.attr
        for node in own(function, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Subscript) and is_own(target.value) and any(is_read(one, *given) for one in ast.walk(node.value))
    }


def _in_product(program: Program, node: ast.AST) -> bool:
    """Whether a value is multiplied with another one in its statement."""
    for around in program.parents(node):
        if is_binary(around, ast.MatMult, ast.Mult) or is_method(around, "matmul", "mm", "bmm", "einsum", "cosine_similarity"):
            return True
        if isinstance(around, ast.stmt):
            break
    return False


def _marked(flow: Flow, queue: ast.AST) -> bool:
    """Whether a function masks some of the negatives."""
    return mentions(flow.program.frame(queue), "masked_fill", "masked_fill_", "fill_diagonal_", "where")


@RULES.add("finds-itself", "each query finds itself first: the score is high whatever the model does", "exclude it: sim.fill_diagonal_(-inf) before the search, or take the neighbours from the second on")
def _finds_itself(program: Program) -> Iterator[Remark]:
    """Neighbours of samples searched among the samples themselves, with the first one counted."""
    flow = flow_of(program)
    for call in program.calls():
        if not is_method(call, "topk", "argmax", "argsort"):
            continue
        scores = program.operand(call)
        found = flow.value(scores)
        sides = _compared_with_itself(program, flow, found)
        if sides is None or scores is None:
            continue
        frame = program.frame(call)
        names = {text_of(scores), text_of(sides)}
        cleared = any(
            (is_method(one, "fill_diagonal_", "masked_fill_", "masked_fill", "eye", "fill_diagonal", "diag_embed", "diagonal", "diag"))
            or (isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Subscript) and text_of(one.targets[0].value) in names)
            for one in ast.walk(frame)
        )
        labels = any(isinstance(one, ast.Compare) and isinstance(one.ops[0], ast.Eq) and any(isinstance(side, ast.Subscript) for side in ast.walk(one)) for one in ast.walk(frame))
        if not cleared and labels and not _second_on(frame) and not _taken_off(frame):
            yield Remark(call, f"{short(call)} searches the neighbours of {text_of(sides)} in {text_of(sides)} itself: the nearest one is the sample, whose label is right")


def _compared_with_itself(program: Program, flow: Flow, node: ast.AST | None) -> ast.expr | None:
    """x of `x @ x.t()`, `x @ x.T` and `torch.cdist(x, x)`, negated or not."""
    while is_negative(node) or is_binary(node, ast.Div):
        node = flow.value(node.operand if isinstance(node, ast.UnaryOp) else node.left)
    if is_binary(node, ast.MatMult):
        one, other = node.left, node.right
        turned = other.func.value if is_method(other, "t", "transpose") else other.value if is_attribute(other, "T", "mT") else None
        return one if turned is not None and text_of(one) == text_of(turned) else None
    if isinstance(node, ast.Call) and program.called(node) == "torch.cdist" and len(node.args) == 2:
        return node.args[0] if text_of(node.args[0]) == text_of(node.args[1]) else None
    return None


def _second_on(frame: ast.AST) -> bool:
    """Whether a slice leaves out a first column: `[:, 1:]`, `[1:]`."""
    return any(isinstance(one, ast.Slice) and isinstance(one.lower, ast.Constant) and one.lower.value == 1 for one in ast.walk(frame))


def _taken_off(frame: ast.AST) -> bool:
    """Whether each sample itself is taken from a sum over its neighbours, `hits.sum(1) - 1`, or told from them by its place."""
    apart = any(isinstance(one, ast.Compare) and isinstance(one.ops[0], ast.NotEq) and mentions(one, "arange") for one in ast.walk(frame))
    return apart or any(is_binary(one, ast.Sub) and is_method(one.left, "sum") for one in ast.walk(frame))


@RULES.add("standardized-across-features", "the product is no correlation: its diagonal cannot be 1 where the features agree", "take mean and deviation over the batch: dim=0")
def _standardized(program: Program) -> Iterator[Remark]:
    """A correlation of features, a product over the samples, of values that are standardized over the features."""
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp):
        if not is_binary(node, ast.MatMult):
            continue
        turned = node.left.func.value if is_method(node.left, "t") else node.left.value if is_attribute(node.left, "T") else None
        if turned is None or not isinstance(turned, ast.Name) or not isinstance(node.right, ast.Name):
            continue
        for side in (turned, node.right):
            made = flow.value(side)
            local = program.local_function(made) if isinstance(made, ast.Call) else None
            whole = [made] if local is None else [one for one in returned(local) if one is not None]
            if len(whole) == 1 and _standardizes(program, flow, whole[0]) == 1:
                yield Remark(node, f"{short(node)} multiplies over the samples, and {text_of(side)} has its mean and deviation taken over the features of each ({short(whole[0])})")
                break


def _standardizes(program: Program, flow: Flow, node: ast.AST) -> float | None:
    """The dimension over which `(x - x.mean(d)) / x.std(d)` takes both."""
    if not is_binary(node, ast.Div) or not is_binary(node.left, ast.Sub):
        return None
    mean = flow.value(node.left.right)
    spread = next((one for one in flow.origins(node.right) if is_method(one, "std")), None)
    if not is_method(mean, "mean") or spread is None or program.called(mean):
        return None
    over = [flow.number(argument(one, "dim", 0)) for one in (mean, spread) if isinstance(one, ast.Call)]
    return over[0] if len(over) == 2 and over[0] == over[1] else None


@RULES.add("reversal-without-sign", "the features are trained to be told apart by domain, the opposite of what is meant", "return -grad_output * alpha")
def _reversal(program: Program) -> Iterator[Remark]:
    """A gradient reversal whose backward does not change the sign."""
    for of in program.everywhere(ast.ClassDef):
        forward, backward = program.method(of, "forward"), program.method(of, "backward")
        bases = {program.dotted(base) or "" for base in of.bases}
        if not _is_called_reversal(program, of) or not bases & {"torch.autograd.Function", "torch.autograd.function.Function"} or forward is None or backward is None:
            continue
        given = [one.arg for one in parameters(forward)][1:2]
        same = all(
            is_name(one, *given) or (is_method(one, *_SAME) and is_name(one.func.value, *given))
            or (is_binary(one, ast.Mult) and any(is_name(side, *given) for side in (one.left, one.right)) and any(isinstance(side, ast.Constant) and side.value == 1 for side in (one.left, one.right)))
            for one in returned(forward)
        )
        if given and same and not any(_turns(one) for one in ast.walk(of)):
            value = next(iter(returned(backward)), None)
            yield Remark(backward, f"{of.name}.backward returns {short(value, 40) if value is not None else 'None'}: the gradient keeps its sign, and nothing is reversed")


def _is_called_reversal(program: Program, of: ast.ClassDef) -> bool:
    """Whether the name of a class, or of what applies it, says that it reverses."""
    users = [one for call in program.calls() if text_of(call.func) == f"{of.name}.apply" for one in program.parents(call)]
    return any(_REVERSAL.search(one.name) for one in (of, *users) if isinstance(one, (ast.ClassDef, ast.FunctionDef)))


def _turns(node: ast.AST) -> bool:
    """Whether a node changes a sign: -x, a negative number, neg(), a subtraction."""
    return is_negative(node) or is_method(node, "neg", "neg_", "sub", "negative") or is_binary(node, ast.Sub)


@RULES.add("targets-of-another-layout", "each view is asked to be like the view of another sample", "stack and number the views alike: torch.cat([a, b]) with i + n, or interleaved with i ^ 1")
def _layout(program: Program) -> Iterator[Remark]:
    """Views of samples that are interleaved, with targets as if one half followed the other."""
    flow = flow_of(program)
    for call in program.calls():
        if loss_name(program, call) not in ("cross_entropy", "CrossEntropyLoss") or len(call.args) < 2:
            continue
        half = any(is_binary(one, ast.FloorDiv) and isinstance(one.right, ast.Constant) and one.right.value == 2 for one in flow.origins(call.args[1])) and any(is_binary(one, ast.Mod) for one in flow.origins(call.args[1]))
        woven = [one for one in _all_origins(flow, call.args[0]) if is_method(one, "stack") and isinstance(one, ast.Call) and flow.number(argument(one, "dim", 1)) == 1]
        if half and woven and mentions(program.statement(woven[0]), "view", "reshape", "flatten"):
            yield Remark(call, f"{short(woven[0])} puts the two views of a sample beside each other, and the targets of {short(call)} are half of the rows away")
        beside = any(is_binary(one, ast.BitXor) and flow.number(one.right) == 1 for one in flow.origins(call.args[1]))
        halves = [one for one in _all_origins(flow, call.args[0]) if _of_two_halves(program, flow, one)]
        if beside and halves and not half:
            yield Remark(call, f"{short(halves[0])} puts one view of all samples after the other, and the targets of {short(call)} are neighbours")


def _of_two_halves(program: Program, flow: Flow, node: ast.AST) -> bool:
    """Whether an expression puts one tensor after another one."""
    if not isinstance(node, ast.Call) or program.called(node) not in ("torch.cat", "torch.concat", "torch.concatenate") or not node.args:
        return False
    dim, parts = argument(node, "dim", 1), node.args[0]
    return isinstance(parts, (ast.Tuple, ast.List)) and len(parts.elts) == 2 and (dim is None or flow.number(dim) == 0)


def _all_origins(flow: Flow, node: ast.AST) -> Iterator[ast.AST]:
    """An expression's origins, also those that calls give to the parameters that it reads."""
    for one in flow.origins(node):
        yield one
        for given in flow.passed(one) if isinstance(one, ast.Name) else ():
            yield from flow.origins(given)


RULES.add(
    "cosines-unscaled",
    "the loss has a floor near ln of the batch size, and its gradient hardly tells near texts from far ones",
    "divide by a temperature: scores / 0.05, or scores * logit_scale.exp()",
)(cosines_unscaled)


RULES.add(
    "diagonal-among-the-rest",
    "one term pulls the correlations of a feature with itself to 0, which the other pulls to 1: features shrink to a compromise",
    "leave the diagonal out: c.pow(2).sum() - c.diagonal().pow(2).sum()",
)(diagonal_among_the_rest)
