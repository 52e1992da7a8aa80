"""Classes and labels: weights that favour what is frequent, labels in another code than the loss takes, rows that
are held out by a mask and trained on. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import HELD_OUT, evaluates, loader_loops, sources, trains
from probe.diagnose.code.finders.objectives.missing_labels import missing_labels_counted
from probe.diagnose.code.finders.weights.class_orders import classes_in_a_row
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    argument,
    compares,
    is_attribute,
    is_binary,
    is_call,
    is_method,
    is_name,
    mentions,
    names_of,
    names_set,
    number_in,
    operands,
    own,
    returned,
    short,
    text_of,
)
from probe.diagnose.code.torch_losses import gives_mean, is_loss, loss_name

RULES = Rules("data")
_SIGNED = ("CosineEmbeddingLoss", "cosine_embedding_loss", "HingeEmbeddingLoss", "hinge_embedding_loss", "SoftMarginLoss", "soft_margin_loss", "MarginRankingLoss", "margin_ranking_loss")
_RATIOS = frozenset({"f1_score", "precision_score", "recall_score", "roc_auc_score", "average_precision_score", "r2_score", "matthews_corrcoef"})
_SCORE = re.compile(r"(binary_|macro_|micro_)?(f1|precision|recall|auc|auroc|average_precision|f_?score|r2|r_?sq(uared)?|explained_variance|pearson(r|_r)?|correlation|concordance)", re.I)
_CASTS = ("float", "to", "long", "int", "type", "cpu", "cuda", "tensor", "as_tensor", "clone", "detach", "view", "reshape")


def _uncast(flow: Flow, node: ast.AST | None) -> ast.AST | None:
    value = flow.value(node)
    for _ in range(6):
        if isinstance(value, ast.Call) and flow.program.called(value) in ("torch.tensor", "torch.as_tensor", "torch.FloatTensor") and value.args:
            inner = value.args[0]
            value = flow.value(inner.elts[0] if isinstance(inner, ast.List) and len(inner.elts) == 1 else inner)
        elif is_method(value, *_CASTS) and flow.program.dotted(value.func) is None:
            value = flow.value(value.func.value)
        else:
            break
    return value


@RULES.add("weights-by-frequency", "frequent classes count even more, and rare ones are ignored", "weight each class by the inverse of its count (pos_weight = negatives / positives)")
def _by_frequency(program: Program) -> Iterator[Remark]:
    """Class weights that grow with the count of the class."""
    flow = flow_of(program)
    yield from _drawn_by_frequency(flow)
    for call in program.calls():
        name = program.called(call).rpartition(".")[2]
        if not program.called(call).startswith("torch.nn."):
            continue
        if name in ("CrossEntropyLoss", "NLLLoss", "cross_entropy", "nll_loss"):
            given = argument(call, "weight", 2 if name.islower() else 0)
            weight = _uncast(flow, next((made for one in sources(flow, given) if is_binary(made := _uncast(flow, one), ast.Div)), given))
            if is_binary(weight, ast.Div) and _counts(flow, weight.left) and not _is_total(flow, weight.left) and not _has_counts(flow, weight.right):
                yield Remark(weight, f"the weights {short(weight)} grow with the number of samples of a class")
        elif name in ("BCEWithLogitsLoss", "binary_cross_entropy_with_logits"):
            weight = _uncast(flow, argument(call, "pos_weight"))
            if is_binary(weight, ast.Div) and _positives(flow, weight.left) is True and _positives(flow, weight.right) is False:
                yield Remark(weight, f"pos_weight is {short(weight)}, positives by negatives: the rarer positives are, the less they count")


def _is_total(flow: Flow, node: ast.AST) -> bool:
    """Whether an expression is the number of all samples: one for all classes."""
    value = _uncast(flow, node)
    return is_method(value, "sum") and not value.args and not value.keywords


def _has_counts(flow: Flow, node: ast.AST, depth: int = 6) -> bool:
    """Whether a divisor rises with the count of each class, also bounded from below: `np.maximum(counts, 1)`."""
    value = _uncast(flow, node)
    if value is None or not depth or is_method(value, "max", "sum", "mean", "min") or is_call(value, "len", "sum", "max") or is_binary(value, ast.Sub):
        return False
    return _counts(flow, value, whole=True) or any(_has_counts(flow, one, depth - 1) for one in ast.iter_child_nodes(value) if isinstance(one, ast.expr))


def _drawn_by_frequency(flow: Flow) -> Iterator[Remark]:
    """Weights of a sampler that are the counts of the classes of its samples."""
    for call in flow.program.calls():
        given = argument(call, "weights", 0) if flow.program.called(call).endswith("data.WeightedRandomSampler") else None
        weights = _uncast(flow, given)
        each = weights.elt if isinstance(weights, (ast.ListComp, ast.GeneratorExp)) else weights
        of = _uncast(flow, each.left) if is_binary(each, ast.Div) and not _counts(flow, each.right) else each
        made = _uncast(flow, of.value) if isinstance(of, ast.Subscript) else None
        if made is not None and isinstance(weights, ast.expr) and (_counts(flow, made) or (isinstance(made, ast.Call) and flow.program.called(made) == "collections.Counter")):
            yield Remark(weights, f"the weights {short(weights)} of the sampler grow with the number of samples of a class")


def _counts(flow: Flow, node: ast.AST, whole: bool = False) -> bool:
    """Whether an expression is the number of samples of each class."""
    value = _uncast(flow, node)
    if whole and is_method(value, "max", "sum", "mean"):
        return False
    return is_method(value, "bincount") or (is_method(value, "sum") and _counts(flow, value.func.value))


def _positives(flow: Flow, node: ast.AST) -> bool | None:
    """True for the number of positive labels, False for that of negative ones."""
    value = _uncast(flow, node)
    if is_method(value, "item"):
        value = _uncast(flow, value.func.value)
    if is_binary(value, ast.Sub):
        counted = _positives(flow, value.right)
        return None if counted is None else not counted
    if not is_method(value, "sum") or value.args:
        return None
    inner = _uncast(flow, value.func.value)
    if compares(inner, ast.Eq):
        number = number_in(inner.comparators[0])
        return None if number not in (0, 1) else number == 1
    if is_binary(inner, ast.Sub) and number_in(inner.left) == 1:
        return False
    return True if isinstance(value.func.value, (ast.Name, ast.Attribute)) else None


@RULES.add("weights-in-another-order", "each class gets the weight of another one", "count by class: torch.bincount(labels, minlength=classes)")
def _another_order(program: Program) -> Iterator[Remark]:
    """Weights of classes that are computed from counts in the order of their size, or of their first occurrence."""
    flow = flow_of(program)
    for call in program.calls():
        name = program.called(call).rpartition(".")[2]
        if name not in ("CrossEntropyLoss", "NLLLoss", "cross_entropy", "nll_loss") or not program.called(call).startswith("torch.nn."):
            continue
        weight = argument(call, "weight", 2 if name.islower() else 0)
        for one in _made_of(flow, weight) if weight is not None else ():
            order = _order_of(flow, one)
            if order is not None:
                yield Remark(one, f"{short(one)} gives the counts in the order of {order}, and {name} takes the weights by class number")
                break


def _made_of(flow: Flow, node: ast.AST, depth: int = 2) -> Iterator[ast.AST]:
    """What an expression is computed from, through functions of the program."""
    for value in (node, flow.value(node)):
        for one in flow.origins(value):
            yield one
            for result in flow.program.results(one) if depth else ():
                yield from _made_of(flow, result, depth - 1)


def _order_of(flow: Flow, node: ast.AST) -> str | None:
    """The order in which an expression gives the counts of classes, where that is not their number."""
    if isinstance(node, ast.ListComp) and len(node.generators) == 1:
        over, target = node.generators[0].iter, node.generators[0].target
        kept = isinstance(target, ast.Tuple) and len(target.elts) == 2 and is_name(target.elts[1]) and text_of(target.elts[0]) not in text_of(node.elt)
        if is_method(over, "most_common") and not over.args and kept:
            return "their size"
    if is_method(node, "values") and not node.args and flow.program.called(flow.value(node.func.value)) == "collections.Counter":
        return "their first occurrence"
    if (is_attribute(node, "values") or is_method(node, "to_numpy", "tolist")) and is_method(node.value if isinstance(node, ast.Attribute) else node.func.value, "value_counts"):
        return "their size"
    return None


@RULES.add("labels-of-another-code", "pairs with the label 0 have no loss at all, or a wrong one", "turn the labels into 1 and -1: 2 * y - 1")
def _another_code(program: Program) -> Iterator[Remark]:
    """Labels of 0 and 1 for a loss that takes -1 and 1."""
    flow = flow_of(program)
    for call in program.calls():
        name = loss_name(program, call)
        if name not in _SIGNED or not call.args:
            continue
        labels = call.args[-1]
        found = _uncast(flow, labels)
        drawn = program.called(found) == "torch.randint" and isinstance(found, ast.Call) and [flow.number(one) for one in found.args[:2]] in ([0, 2], [2, None])
        zeros = is_method(found, "cat", "concatenate") and isinstance(found, ast.Call) and any(mentions(one, "zeros", "zeros_like") for one in found.args)
        if isinstance(found, ast.Compare) or drawn or zeros or program.called(found) == "torch.zeros":
            yield Remark(call, f"{name} takes labels of -1 and 1, and {short(labels, 40)} ({short(found or call, 40)}) are 0 and 1")
    for node in program.everywhere(ast.BinOp):
        product = node.right if is_binary(node, ast.Sub) and number_in(node.left) == 1 else None
        hinged = any(is_method(one, "relu", "clamp", "clamp_min") for one in program.calls_around(node)) or is_method(program.parent.get(program.parent.get(node) or node), "relu", "clamp")
        for label, answer in operands(product) if is_binary(product, ast.Mult) and hinged else ():
            found = _uncast(flow, label)
            computed = any(isinstance(one, ast.Call) and program.family(one.func) == "module" for one in flow.origins(answer))
            if isinstance(found, ast.Compare) and computed:
                yield Remark(node, f"the hinge {short(node)} takes labels of -1 and 1, and {short(label, 30)} ({short(found, 40)}) are 0 and 1")


@RULES.add("held-out-rows-in-the-loss", "the score on the held-out rows is that of rows that were trained on", "take the loss of the training rows: loss(out[train_mask], y[train_mask])")
def _rows_in_the_loss(program: Program) -> Iterator[Remark]:
    """A loss over all rows, and a score of some of the same rows that a mask holds out."""
    flow = flow_of(program)
    for scope in program.scopes():
        for call in own(scope, ast.Call):
            if not is_loss(program, call) or len(call.args) < 2 or not is_name(call.args[1]) or program.without_gradient(call):
                continue
            rows, around = call.args[1], program.loops(call)
            given = flow.given(rows)
            fixed = given is not None and given.how == "assign" and not (set(program.loops(given.node)) & set(around))
            if not around or not fixed or isinstance(flow.value(call.args[0]), ast.Subscript) or any(is_call(one, "zip") for one in program.calls_around(call)):
                continue
            mask = next((one.slice for one in ast.walk(around[0]) if isinstance(one, ast.Subscript) and is_name(one.value, rows.id) and any(HELD_OUT.search(name.id) for name in ast.walk(one.slice) if isinstance(name, ast.Name))), None)
            trained = any(is_method(one, "backward") for one in ast.walk(around[0]))
            if mask is not None and trained and not any(isinstance(one, ast.Subscript) for one in ast.walk(call)) and not _masked_later(program, call):
                yield Remark(call, f"{short(call)} is taken over all rows, and {rows.id}[{text_of(mask)}] is scored as held out")


def _masked_later(program: Program, call: ast.Call) -> bool:
    """Whether a loss without reduction is masked afterwards."""
    return any(one.arg in ("reduction", "weight", None) for one in call.keywords) or isinstance(program.parent.get(call), (ast.Subscript, ast.BinOp))


@RULES.add("score-of-each-batch", "the mean of the batches' scores is not the score of the data: a batch without a positive counts as 0", "collect predictions and labels, or add up the counts, and compute the score once")
def _of_each_batch(program: Program) -> Iterator[Remark]:
    """A precision, recall, F1 or AUC that is computed for each batch and averaged."""
    flow = flow_of(program)
    known = set(loader_loops(flow))
    for loop in program.everywhere(ast.For):
        for call in ast.walk(loop) if (loop in known or evaluates(flow, loop)) and not trains(program, loop) else ():
            root = _root_of_mean(flow, call)
            if not isinstance(call, ast.expr) or not (root or _of_counts(loop, call) or (isinstance(call, ast.Call) and _is_ratio(program, call))):
                continue
            statement = program.statement(call)
            names = names_set(statement) if isinstance(statement, ast.Assign) else set()
            kept = [
                one for one in ast.walk(loop)
                if (isinstance(one, ast.AugAssign) and isinstance(one.op, ast.Add) and (call in ast.walk(one.value) or names & names_of(one.value)))
                or ((is_method(one, "append", "update", "add") or _sums_up(program, one)) and any(call in ast.walk(part) or names & names_of(part) for part in one.args))  # type: ignore[attr-defined]
            ]
            if kept and root:
                yield Remark(call, f"{short(call)} is the root of one batch's mean, and {short(kept[0])} averages the roots: that is less than the root of the mean over all samples")
                break
            if kept:
                yield Remark(call, f"{short(call)} is the score of one batch, and {short(kept[0])} averages it over the batches")
                break


def _sums_up(program: Program, node: ast.AST) -> bool:
    """Whether a call logs a value with a method of the program that adds it up, times its weight."""
    local = program.local_function(node) if is_method(node, "log", "record", "push", "accumulate", "track") else None
    return local is not None and any(is_binary(one, ast.Add) and any(is_binary(part, ast.Mult) for part in (one.left, one.right)) for one in ast.walk(local))


def _of_counts(loop: ast.For, node: ast.AST) -> bool:
    """Whether an expression divides the hits of one batch by these and what is missed or false in it."""
    if not is_binary(node, ast.Div):
        return False
    above, below = names_of(node.left), names_of(node.right)
    counts = {one for one in below if re.search(r"(^|_)(fp|fn)$", one)}
    set_here = {name for one in ast.walk(loop) if isinstance(one, ast.Assign) for name in names_set(one)}
    return bool(counts) and any(re.search(r"(^|_)tp$", one) for one in above) and counts <= set_here


def _root_of_mean(flow: Flow, node: ast.AST, depth: int = 3) -> bool:
    """Whether an expression is the root of a mean squared error."""
    inner = None
    if is_method(node, "sqrt"):
        inner = flow.program.operand(node)
    elif is_binary(node, ast.Pow) and number_in(node.right) == 0.5:
        inner = node.left
    if isinstance(node, ast.Call) and depth and (local := flow.program.local_function(node)) is not None:
        values = returned(local)
        return len(values) == 1 and values[0] is not None and _root_of_mean(flow, values[0], depth - 1)
    value = flow.value(inner)
    while is_method(value, "item", "detach", "cpu"):
        value = flow.value(value.func.value)
    return loss_name(flow.program, value) in ("MSELoss", "mse_loss") and isinstance(value, ast.Call) and gives_mean(flow, value)


def _is_ratio(program: Program, call: ast.Call) -> bool:
    """Whether a call computes a score whose denominator depends on the labels or predictions."""
    name = program.called(call)
    if name.startswith("sklearn.metrics."):
        return name.rpartition(".")[2] in _RATIOS
    local = program.local_function(call)
    results = [one for value in returned(local) if value is not None for one in ast.walk(value) if isinstance(one, ast.Name)] if local is not None else []
    divides = local is not None and any(is_binary(one, ast.Div) for one in ast.walk(local))
    return divides and (any(_SCORE.fullmatch(one.id) for one in results) or (local is not None and _SCORE.fullmatch(local.name.removesuffix("_score")) is not None))


RULES.add(
    "missing-labels-counted",
    "the model learns the number that stands for no label, and most of all for those that are rarely known",
    "leave missing labels out: loss = F.mse_loss(output, y, reduction='none')[known].mean()",
)(missing_labels_counted)


RULES.add(
    "classes-in-a-row",
    "each step pulls the network to the class of its batch, and away from those before: what is learned of one is lost with the next",
    "shuffle the samples of the training: DataLoader(data, batch_size, shuffle=True)",
)(classes_in_a_row)
