"""Losses whose reduction, sign or arguments are not those that were meant. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import is_model, unshaped
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.formulas.ranking_rules import closeness
from probe.diagnose.code.loop.loss_rules import starts
from probe.diagnose.code.model.modules import commented
from probe.diagnose.code.program import Program
from probe.diagnose.code.rollout.terms import terms
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    is_binary,
    is_method,
    is_name,
    is_read,
    is_string,
    iterated,
    last_word,
    names_of,
    names_read,
    number_in,
    operands,
    own,
    own_nodes,
    parameters,
    says,
    short,
    text_of,
)
from probe.diagnose.code.torch_losses import gives_mean, is_loss, loss_name

RULES = Rules("model")
_MEAN, _VARIANCE = re.compile(r"^(z_)?(mu|mean|loc|m)(_z)?$", re.I), re.compile(r"log_?(var|std|sigma)|^(z_)?(var|std|sigma|scale)(_z)?$", re.I)
_PRESENCE = ("binary_cross_entropy_with_logits", "BCEWithLogitsLoss", "binary_cross_entropy", "BCELoss")
_TAKES_LOGITS = ("binary_cross_entropy_with_logits", "BCEWithLogitsLoss")
_PURE = ("t", "detach", "transpose", "matmul", "mm", "view", "reshape", "float", "long", "squeeze", "unsqueeze", "permute", "flatten", "contiguous", "div", "mul")
"""Methods that give the same tensor each time they are called on the same one."""
_CASTS = ("float", "long", "to", "view", "unsqueeze", "squeeze", "reshape", "type", "double", "cuda", "type_as", "view_as", "flatten")


@RULES.add(
    "weights-after-the-mean",
    "the mean is one number: all samples count alike, and positions that the mask leaves out are in the loss",
    'make the loss with reduction="none", multiply, and take the mean then',
)
def _after_the_mean(program: Program) -> Iterator[Remark]:
    """A mean over the batch that is multiplied by the weights or the mask of its samples, and averaged again."""
    flow = flow_of(program)
    for call in program.calls():
        if not is_method(call, "mean", "sum"):
            continue
        product = flow.value(program.operand(call))
        if is_binary(product, ast.Mult):
            for loss, weights in operands(product):
                made = flow.value(loss)
                if isinstance(made, ast.Call) and gives_mean(flow, made) and _per_sample(program, flow, call, weights):
                    yield Remark(product, f"{short(product)} weights the samples after {short(made, 40)} has taken their mean")
                    break


def _per_sample(program: Program, flow: Flow, call: ast.Call, weights: ast.AST) -> bool:
    """Whether a value has a number for each sample: its sum is divided by, it is a comparison, a part of a
    batch, or a mask by its name."""
    around = program.parent.get(call)
    divided = is_binary(around, ast.Div) and around.left is call and any(
        is_method(one, "sum") and text_of(weights) in text_of(one) for one in flow.origins(around.right)
    )
    value = unshaped(flow, weights)
    given = flow.given(value) if isinstance(value, ast.Name) else None
    of_batch = given is not None and (isinstance(given.node, ast.For) or (isinstance(given.value, ast.Name) and given.place is not None))
    entry = isinstance(value, ast.Subscript) and (
        (isinstance(value.slice, ast.Constant) and isinstance(value.slice.value, str) and says(value.slice, "weight", "mask"))
        or isinstance(flow.value(value.slice), ast.Compare)
    )
    named = isinstance(weights, ast.Name) and ("mask" in weights.id.lower() or weights.id in ("sample_weight", "sample_weights", "weights"))
    return divided or isinstance(value, ast.Compare) or of_batch or entry or named


@RULES.add(
    "overlap-minimized",
    "training makes the overlap smaller: the model learns to miss the target",
    "minimize 1 - overlap",
)
def _overlap_minimized(program: Program) -> Iterator[Remark]:
    """A Dice or Jaccard overlap that is a term of what backward starts from, with a plus."""
    flow = flow_of(program)
    seen: set[ast.AST] = set()
    for _, loss in starts(program):
        for sign, term in _all_terms(flow, loss):
            if sign > 0 and term not in seen and _is_overlap(program, flow, term):
                seen.add(term)
                yield Remark(term, f"{short(term)} is an overlap, which is 1 where prediction and target agree, and it is minimized")


def _all_terms(flow: Flow, node: ast.AST, sign: int = 1, depth: int = 4) -> Iterator[tuple[int, ast.AST]]:
    """The terms of a loss, each with its sign, also those that functions of the program return."""
    for turn, term in terms(flow, node, sign):
        results = [one for one in flow.program.results(term) if isinstance(one, ast.expr)] if depth and turn else []
        if len(results) == 1:
            yield from _all_terms(flow, results[0], turn, depth - 1)
        else:
            yield turn, term


def _is_overlap(program: Program, flow: Flow, node: ast.AST) -> bool:
    """Whether a ratio is an overlap: the sum of a product over sums of both factors."""
    if not is_binary(node, ast.Div):
        return False
    above = [one for one in _summed(program, flow, node.left) if is_binary(one, ast.Mult)]
    below = {text_of(unshaped(flow, one) or one) for one in _summed(program, flow, node.right)}
    return any({text_of(unshaped(flow, one.left) or one.left), text_of(unshaped(flow, one.right) or one.right)} <= below for one in above)


def _summed(program: Program, flow: Flow, node: ast.AST, depth: int = 5) -> Iterator[ast.expr]:
    """What is summed in an expression, through its variables; the squares of a sum count as what is squared."""
    for one in ast.walk(node):
        if is_method(one, "sum") and (inner := program.operand(one)) is not None:
            inner = inner.left if is_binary(inner, ast.Pow) else inner
            yield from (inner.left, inner.right) if is_binary(inner, ast.Add) else (inner,)
        elif depth and isinstance(one, ast.Name) and isinstance(held := flow.held(one), (ast.BinOp, ast.Call)):
            yield from _summed(program, flow, held, depth - 1)


@RULES.add(
    "prediction-and-target-swapped",
    "the data is taken for the prediction: the loss is another one, and its gradient is wrong or unbounded",
    "give the output first, and the target second",
)
def _swapped(program: Program) -> Iterator[Remark]:
    """A binary cross-entropy that is given the target first and the output of a network second."""
    flow = flow_of(program)
    for call in program.calls():
        name = loss_name(program, call)
        if name not in _PRESENCE or len(call.args) < 2:
            continue
        first, second = call.args[:2]
        if _of_batch(flow, first) and _computed(program, flow, second, name):
            yield Remark(call, f"{short(call)} takes {short(first, 30)}, which the batch holds, for the prediction, and {short(second, 30)} for the target")


def _of_batch(flow: Flow, node: ast.AST) -> bool:
    """Whether a value is a part of what a loop over batches gives, but for its type and shape."""
    value = unshaped(flow, node)
    for _ in range(3):
        given = flow.given(value) if isinstance(value, ast.Name) else None
        if given is None:
            break
        if isinstance(given.node, ast.For):
            return not is_method(given.node.iter, "range") and last_word(getattr(given.node.iter, "func", None)) not in ("range", "zip")
        if given.place is None or not isinstance(given.value, ast.Name):
            return False
        bound = flow.bindings(given.value)
        if len(bound) == 1 and bound[0].how == "parameter":
            return given.value.id == "batch"
        value = given.value
    return False


def _computed(program: Program, flow: Flow, node: ast.AST, loss: str) -> bool:
    """Whether a value is what a network gives, after a sigmoid or not."""
    value = unshaped(flow, node)
    if is_method(value, "sigmoid"):
        value = unshaped(flow, program.operand(value))
    given = flow.given(value) if isinstance(value, ast.Name) else None
    if given is not None and given.place is not None and isinstance(given.value, ast.Call):
        value = given.value
    if not isinstance(value, ast.Call) or program.without_gradient(value):
        return False
    return is_model(flow, value.func) and program.family(value.func) != "loss"


@RULES.add(
    "one-term-twice",
    "it counts double, and the term that was meant in its place is not trained at all",
    "compute the second one of what it is for: the other direction, the other output",
)
def _twice(program: Program) -> Iterator[Remark]:
    """A sum of two losses that are the same: the same function of the same tensors."""
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp):
        if not is_binary(node, ast.Add):
            continue
        left, right = (_unweighted(flow, one) for one in (node.left, node.right))
        if left is right or not isinstance(left, ast.Call) or not isinstance(right, ast.Call) or not is_loss(program, left):
            continue
        if len(left.args) > 1 and _meaning(program, flow, left) == _meaning(program, flow, right) != "":
            yield Remark(node, f"{short(left)} (line {left.lineno}) and {short(right)} (line {right.lineno}) are the same loss of the same tensors")


def _unweighted(flow: Flow, node: ast.AST) -> ast.AST:
    """A term without the number that it is multiplied by."""
    value = flow.value(node)
    for factor, rest in operands(value) if is_binary(value, ast.Mult) else ():
        if flow.number(factor) is not None:
            return flow.value(rest)
    return value


def _meaning(program: Program, flow: Flow, node: ast.AST, depth: int = 8) -> str:
    """What an expression computes, as text that is equal for equal values; each call of a network, and each
    variable whose value is not known, stands for itself."""
    if not depth:
        return f"?{id(node)}"
    if isinstance(node, ast.Name):
        given = flow.given(node)
        if given is not None and isinstance(given.whole, (ast.BinOp, ast.Name, ast.Call, ast.Subscript, ast.Attribute)) and _is_pure(program, given.whole):
            return _meaning(program, flow, given.whole, depth - 1)
        bound = flow.bindings(node)
        if given is None and (len(bound) != 1 or bound[0].how != "parameter"):
            return f"?{id(node)}" if len(bound) > 1 else node.id
        return f"{node.id}@{getattr(given.node if given is not None else node, 'lineno', 0) if given is not None else ''}"
    if isinstance(node, ast.Call) and not is_loss(program, node) and not _is_pure(program, node):
        return f"?{id(node)}"
    parts = [_meaning(program, flow, one, depth - 1) for one in ast.iter_child_nodes(node) if not isinstance(one, ast.expr_context)]
    own_text = repr(node.value) if isinstance(node, ast.Constant) else node.attr if isinstance(node, ast.Attribute) else getattr(node, "arg", "")
    return f"{type(node).__name__}{own_text}({','.join(parts)})"


def _is_pure(program: Program, node: ast.AST) -> bool:
    """Whether an expression gives the same value each time."""
    for one in ast.walk(node):
        if isinstance(one, ast.Call):
            name = program.called(one)
            known = is_method(one, *_PURE) or name in ("torch.arange", "torch.matmul", "torch.mm", "len", "torch.ones_like", "torch.zeros_like", "torch.einsum")
            if not known and not is_method(one, "normalize", "size"):
                return False
    return True


@RULES.add(
    "output-in-two-losses",
    "one output is asked for two things, and the other one is never trained",
    "compare the second target with the second output",
)
def _in_two_losses(program: Program) -> Iterator[Remark]:
    """A network with several outputs, of which two losses take one, and none takes another."""
    flow = flow_of(program)
    for scope in program.scopes():
        compared = [one for one in own(scope, ast.Call) if len(one.args) > 1 and is_loss(program, one)]
        for node in own(scope, ast.Assign) if len(compared) > 1 else ():
            target = node.targets[0]
            if not isinstance(target, ast.Tuple) or not all(isinstance(one, ast.Name) for one in target.elts) or not isinstance(node.value, ast.Call):
                continue
            names = [one.id for one in target.elts if isinstance(one, ast.Name)]
            unread = [name for name in names if not name.startswith("_") and not any(is_read(one, name) for one in ast.walk(scope))]
            if not unread or len(set(names)) != len(names):
                continue
            losses: dict[str, list[ast.Call]] = {}
            for call in compared:
                if isinstance(call.args[0], ast.Name) and isinstance(call.args[1], ast.Name):
                    given = flow.given(call.args[0])
                    if given is not None and given.node is node:
                        losses.setdefault(call.args[0].id, []).append(call)
            for name, calls in losses.items():
                targets = {text_of(one.args[1]) for one in calls}
                weighted = any(_is_weighted(flow, one) for one in calls)  # two targets of one output, as mixup has
                if weighted or not any(_alike(name, other) for other in unread):
                    continue
                if len(calls) > 1 and len(targets) == len(calls) and loss_name(program, calls[0]) == loss_name(program, calls[1]):
                    yield Remark(calls[1], f"{short(calls[1])} takes {name} a second time (the first is in line {calls[0].lineno}), and {unread[0]} is read nowhere")


def _is_weighted(flow: Flow, loss: ast.Call) -> bool:
    """Whether a loss is multiplied by something other than a number that is written out."""
    around = flow.program.parent.get(loss)
    target = around.targets[0] if isinstance(around, ast.Assign) else None
    for use in (loss, *(flow.reads.get(flow.key(target) or (loss, ""), []))):
        product = flow.program.parent.get(use)
        if is_binary(product, ast.Mult) and number_in(product.right if product.left is use else product.left) is None:
            return True
    return False


def _alike(name: str, other: str) -> bool:
    """Whether two names differ in a number, or share a word: `o1` and `o2`, `start_logits` and `end_logits`."""
    words = [{one for one in re.split(r"_|\d", text) if one} for text in (name, other)]
    return bool(words[0] & words[1])


@RULES.add(
    "margin-without-hinge",
    "a constant that is added to a loss has no gradient: the margin does nothing, and distances grow without end",
    "cut it off at 0: F.relu(d_pos - d_neg + margin)",
)
def _without_hinge(program: Program) -> Iterator[Remark]:
    """The difference of two distances and a margin, of which the mean is taken with nothing that ends it at 0."""
    flow = flow_of(program)
    for call in program.calls():
        if not is_method(call, "mean", "sum") or (call.func.attr == "sum" and call.args):
            continue
        if any(is_method(one, "relu", "clamp", "clamp_min", "max", "maximum", "softplus", "log1p", "exp") for one in program.calls_around(call)):
            continue
        total = flow.value(program.operand(call))
        if not is_binary(total, ast.Add, ast.Sub):
            continue
        signed = list(terms(flow, total))
        margins = [one for _, one in signed if _is_margin(flow, one)]
        distances = [(sign, one) for sign, one in signed if closeness(program, flow, one) in ("distance", "similarity") and one not in margins]
        kinds = {closeness(program, flow, one) for _, one in distances}
        if len(signed) == 3 and len(margins) == 1 and len(kinds) == 1 and [sign for sign, _ in distances] in ([1, -1], [-1, 1]):
            yield Remark(call, f"{short(call)}: {short(total, 60)} has no relu around it, so {short(margins[0], 30)} is only added to the number")


def _is_margin(flow: Flow, node: ast.AST) -> bool:
    named = isinstance(node, (ast.Name, ast.Attribute)) and "margin" in last_word(node).lower()
    return named or number_in(node) is not None


@RULES.add(
    "only-the-last-parameter",
    "the penalty is that of one layer, often a bias",
    "add them up: reg = reg + p.norm(), from reg = 0 before the loop",
)
def _last_parameter(program: Program) -> Iterator[Remark]:
    """A penalty on the weights that each pass of a loop over the parameters sets anew."""
    for loop in program.everywhere(ast.For):
        over = iterated(loop)
        if not is_method(over, "parameters", "named_parameters") or over.args:
            continue
        names = names_of(loop.target)
        for node in own(loop, ast.Assign):
            target = node.targets[0]
            if not isinstance(target, ast.Name) or not names & names_read(node.value) or target.id in names_read(node.value):
                continue
            if not _is_penalty(node.value) or any(is_read(one, target.id) for one in ast.walk(loop)) or program.loops(node)[0] is not loop:
                continue
            added = [one for later in program.after(loop) for one in ast.walk(later) if (is_binary(one, ast.Add) or isinstance(one, ast.AugAssign)) and target.id in names_read(one)]
            if added and not any(isinstance(one, (ast.Break, ast.Return)) for one in ast.walk(loop)):
                yield Remark(node, f"{short(node)} is set anew for each parameter, and line {getattr(added[0], 'lineno', 0)} adds the last one to the loss")


def _is_penalty(node: ast.AST) -> bool:
    """Whether an expression is a norm, or a sum of squares or of sizes."""
    return any(is_method(one, "norm", "sum") or is_binary(one, ast.Pow) for one in ast.walk(node))


@RULES.add(
    "penalty-subtracted",
    "the weights grow without end, because that makes the loss smaller",
    "add it: loss = loss + lam * penalty",
)
def _penalty_subtracted(program: Program) -> Iterator[Remark]:
    """A norm of the parameters that is a term of what backward starts from, with a minus."""
    flow = flow_of(program)
    seen: set[ast.AST] = set()
    for _, loss in starts(program):
        for sign, term in _all_terms(flow, loss):
            call = term if isinstance(term, ast.Call) else None
            if sign >= 0 or call is None or term in seen or not isinstance(call.func, ast.Name) or call.func.id != "sum" or not call.args:
                continue
            inner = call.args[0]
            over = [one.iter for one in inner.generators] if isinstance(inner, (ast.GeneratorExp, ast.ListComp)) else []
            if any(is_method(one, "parameters") for one in over) and _is_penalty(inner):
                seen.add(term)
                yield Remark(term, f"{short(term)} is subtracted from what is minimized")


@RULES.add(
    "loss-never-added",
    "the model is not trained on it",
    "add it to what is returned, or to what backward starts from",
)
def _never_added(program: Program) -> Iterator[Remark]:
    """A term that is computed in the function of a loss, and that nothing reads."""
    for function in program.everywhere(ast.FunctionDef):
        in_loss = "loss" in function.name.lower() or function.name == "training_step" or any(is_method(one, "backward") for one in own(function, ast.Call))
        for node in own(function, ast.Assign) if in_loss else ():
            target = node.targets[0]
            if len(node.targets) != 1 or not isinstance(target, ast.Name) or target.id.startswith("_"):
                continue
            if not _is_term(program, node.value) or sum(is_name(one, target.id) for one in ast.walk(function)) != 1:
                continue
            ends = [one for one in own(function, ast.Return, ast.Call) if (isinstance(one, ast.Return) and one.value is not None) or is_method(one, "backward")]
            meant = not program.without_gradient(node) and not commented(program, function, target.id)
            if meant and any(one.lineno > node.lineno for one in ends):
                yield Remark(node, f"{short(node)} is read nowhere in {function.name}")


def _is_term(program: Program, node: ast.AST) -> bool:
    """Whether an expression is a loss of torch, or a divergence: a sum or mean with the exponential of a logarithm."""
    if is_loss(program, node):
        return True
    added = any(is_method(one, "sum", "mean") for one in ast.walk(node))
    return added and any(is_method(one, "exp") for one in ast.walk(node)) and any(is_binary(one, ast.Add, ast.Sub) for one in ast.walk(node))


@RULES.add(
    "mean-and-variance-swapped",
    "each is taken for the other: the divergence is that of another distribution",
    "give them in the order of the function's parameters",
)
def _mean_and_variance(program: Program) -> Iterator[Remark]:
    """A call that gives the mean where a function takes the logarithm of the variance, and the other way round."""
    for call in program.calls():
        function = program.run_by(call)
        given = program.arguments(function, call) if function is not None else {}
        swapped = [(name, value) for name, value in given.items() if isinstance(value, ast.Name) and value.id in given and value.id != name and is_name(given[value.id], name)]
        words = {name for name, _ in swapped}
        if len(swapped) == 2 and any(_VARIANCE.search(name) for name in words) and any(_MEAN.search(name) for name in words):
            first, second = sorted(words, key=list(given).index)
            yield Remark(call, f"{short(call)} gives {second} for {first} and {first} for {second}")


@RULES.add(
    "one-view-twice",
    "two codes of one view are alike without any training: the loss is near its smallest from the start",
    "give the second call the second view",
)
def _one_view(program: Program) -> Iterator[Remark]:
    """Two inputs of one kind, of which the networks get one twice, and nothing reads the other."""
    for scope in program.everywhere(ast.For, ast.FunctionDef):
        names: list[str] = []
        if isinstance(scope, ast.For):
            names = [one.id for one in ast.walk(scope.target) if isinstance(one, ast.Name)]
        elif isinstance(scope, ast.FunctionDef) and scope.name in ("forward", "training_step"):
            names = [one.arg for one in parameters(scope)]
        for unread in names if len(names) > 1 else ():
            frame = program.frame(scope) if isinstance(scope, ast.For) else scope
            if unread.startswith("_") or any(is_read(one, unread) for one in ast.walk(frame)):
                continue
            for name in (one for one in names if one != unread and _alike(one, unread) and _without_number(one) == _without_number(unread)):
                calls: dict[str, list[ast.Call]] = {}
                for call in own_nodes(scope):
                    if isinstance(call, ast.Call) and len(call.args) == 1 and is_name(call.args[0], name) and program.called(call) == "" and not is_method(call, *_CASTS):
                        calls.setdefault(text_of(call), []).append(call)
                twice = next((found for found in calls.values() if len(found) > 1), None)
                if twice is not None:
                    yield Remark(twice[1], f"{text_of(twice[1])} is computed a second time (the first is in line {twice[0].lineno}), and {unread} is read nowhere")


def _without_number(name: str) -> str:
    return re.sub(r"\d|_(i|j|a|b|q|k)$", "", name)


@RULES.add(
    "padding-in-the-divisor",
    "the loss is the smaller, and the steps too, the more padding a batch has",
    "divide by the positions that count: (targets != pad).sum()",
)
def _padding_in_the_divisor(program: Program) -> Iterator[Remark]:
    """A sum of a loss that ignores padding, divided by the number of all positions."""
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp):
        loss = flow.value(node.left) if is_binary(node, ast.Div) else None
        if not isinstance(loss, ast.Call) or not _leaves_out(program, flow, loss):
            continue
        targets = unshaped(flow, loss.args[1])
        counted = flow.value(node.right)
        if is_method(counted, "numel", "nelement") and targets is not None and text_of(counted.func.value) in (text_of(loss.args[1]), text_of(targets)):
            yield Remark(node, f"{short(node)} divides by all positions, and {short(loss, 40)} leaves those of the padding out of the sum")
    for loop in program.everywhere(ast.For):
        added = [one for one in own_nodes(loop) if isinstance(one, ast.AugAssign) and isinstance(one.op, ast.Add)]
        for one in added:
            loss = next((call for call in ast.walk(one.value) if isinstance(call, ast.Call) and _leaves_out(program, flow, call)), None)
            if loss is None:
                continue
            judged = {text_of(loss.args[1]), text_of(unshaped(flow, loss.args[1]) or loss.args[1])}
            for other in added:
                counts = is_method(other.value, "numel", "nelement") and text_of(other.value.func.value) in judged
                if counts and any(is_binary(node, ast.Div) and text_of(node.left) == text_of(one.target) and text_of(node.right) == text_of(other.target) for node in program.everywhere(ast.BinOp)):
                    yield Remark(other, f"{short(other)} counts all positions, and {short(loss, 40)} leaves those of the padding out of the sum")


def _leaves_out(program: Program, flow: Flow, call: ast.Call) -> bool:
    """Whether a call adds up a loss of classes without the positions of the padding."""
    if loss_name(program, call) not in ("cross_entropy", "CrossEntropyLoss", "nll_loss", "NLLLoss") or len(call.args) < 2:
        return False
    made = flow.value(call.func) if program.family(call.func) == "loss" else call
    told = {one.arg: one.value for one in made.keywords} if isinstance(made, ast.Call) else {}
    reduction = told.get("reduction")
    return "ignore_index" in told and is_string(reduction) and reduction.value == "sum"
