"""Metrics: what is counted as right, and which arguments they take. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import (
    SHAPES,
    elsewhere,
    evaluates,
    is_model,
    loader_loops,
    output_of,
    steps_to,
    trains,
)
from probe.diagnose.code.finders.evaluation.ranked_classes import each_class_by_itself
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    ORDERS,
    argument,
    compares,
    is_attribute,
    is_method,
    is_set,
    iterated,
    last_word,
    names_of,
    names_read,
    names_set,
    number_in,
    own,
    own_nodes,
    returned,
    short,
)
from probe.diagnose.code.torch_losses import loss_name

RULES = Rules("data")

Loop = ast.For | ast.AsyncFor | ast.While
_LOGITS = ("BCEWithLogitsLoss", "binary_cross_entropy_with_logits", "MultiLabelSoftMarginLoss")
_PROBABILITIES = ("BCELoss", "binary_cross_entropy")
_OF_CLASSES = ("CrossEntropyLoss", "cross_entropy", "NLLLoss", "nll_loss")
_SCORES = frozenset({"roc_auc_score", "average_precision_score", "roc_curve", "precision_recall_curve"})
_TRUE_FIRST = frozenset({"precision_score", "recall_score", "r2_score", "confusion_matrix", "classification_report",
                         "precision_recall_fscore_support", "mean_absolute_percentage_error", "explained_variance_score"})
_SUMS = frozenset({"sum", "mean", "count_nonzero"})


def _model_name(flow: Flow, output: ast.Call) -> str:
    name = flow.program.kind_name(output.func)
    return name if name in flow.program.classes else ast.unparse(output.func)


def _trained_with(flow: Flow, losses: tuple[str, ...]) -> set[str]:
    """The networks whose outputs go straight into one of these losses."""
    found: set[str] = set()
    for call in flow.program.calls():
        if call.args and loss_name(flow.program, call) in losses:
            output = output_of(flow, call.args[0])
            if output is not None:
                found.add(_model_name(flow, output))
    return found


@RULES.add("threshold-of-another-kind", "the metric counts predictions as wrong that the model has right", "compare logits with 0, or apply sigmoid first")
def _threshold(program: Program) -> Iterator[Remark]:
    """Outputs of one kind compared with the threshold of another."""
    flow = flow_of(program)
    logits, probabilities = _trained_with(flow, _LOGITS), _trained_with(flow, _PROBABILITIES)
    logits, probabilities = logits - probabilities, probabilities - logits
    for node in program.everywhere(ast.Compare, ast.Call):
        if compares(node, *ORDERS):
            limit = flow.number(node.comparators[0])
            output = output_of(flow, node.left)
            if output is None and limit is not None:
                collected = _collected(flow, node.left)
                output = output_of(flow, collected[0]) if len(collected) == 1 else None
            if output is None or limit is None:
                continue
            if limit == 0.5 and _model_name(flow, output) in logits:
                yield Remark(node, f"{short(node)} compares logits, which the loss takes, with the threshold of probabilities: 0.5 is a probability of 0.62")
            elif limit == 0 and _model_name(flow, output) in probabilities:
                yield Remark(node, f"{short(node)} compares probabilities, which the loss takes, with 0: it is always the same")
        elif isinstance(node, ast.Call):
            rounded = node.args[0] if program.called(node) == "torch.round" and node.args else None
            if is_method(node, "round") and not node.args and rounded is None:
                rounded = node.func.value
            output = output_of(flow, rounded)
            if output is not None and _model_name(flow, output) in logits:
                yield Remark(node, f"{short(node)} rounds logits, which the loss takes, as if they were probabilities")


def _picks(flow: Flow, node: ast.AST) -> tuple[ast.Call, ast.expr, float | None] | None:
    """An argmax (or the indices of a max): its call, what it goes over, and its dimension."""
    one = flow.given(node)
    passed = steps_to(flow, one.value if one is not None and one.how == "assign" else node)
    call = passed[-1] if passed else None
    second = one is not None and one.place == 1
    if isinstance(call, ast.Subscript) and number_in(call.slice) == 1:
        call, second = call.value, True
    if not is_method(call, "argmax", "max") or (is_method(call, "max") and not second):
        return None
    free = flow.program.called(call) in ("torch.argmax", "torch.max", "numpy.argmax")
    if free and not call.args:
        return None
    over = call.args[0] if free else call.func.value
    given = argument(call, "dim", int(free)) or argument(call, "axis", int(free))
    if call.func.attr == "max" and given is None:
        return None
    return call, over, flow.number(given)


def _of_trainer(program: Program) -> Iterator[tuple[ast.Call, int]]:
    """What the metrics function of a Trainer takes the argmax of: the call, and 0 for the predictions, 1 for the labels."""
    given = {word.value.id for call in program.calls() for word in call.keywords if word.arg == "compute_metrics" and isinstance(word.value, ast.Name)}
    for name in given:
        function = program.functions.get(name, [None])[0]
        first = function.args.args[0].arg if function is not None and function.args.args else ""
        places: dict[str, int] = {}
        for node in own(function, ast.Assign) if function is not None else ():
            if isinstance(node.targets[0], ast.Tuple) and ast.unparse(node.value) == first:
                places |= {last_word(one): number for number, one in enumerate(node.targets[0].elts)}
        for call in own(function, ast.Call) if function is not None else ():
            over = program.operand(call) if is_method(call, "argmax") else None
            if over is not None and ast.unparse(over) in places:
                yield call, places[ast.unparse(over)]


@RULES.add("predictions-for-labels", "what is scored as predictions are the labels", "predictions, labels = eval_pred")
def _labels_first(program: Program) -> Iterator[Remark]:
    """A metrics function of a Trainer that takes the labels for the predictions: these come first."""
    found = list(_of_trainer(program))
    for call, place in found:
        if place == 1 and all(other == 1 for _, other in found):
            yield Remark(call, f"{short(call)} is taken of the second value that the Trainer gives: that are the labels")


@RULES.add("argmax-over-wrong-dimension", "the accuracy compares other things than predictions with the labels", "take the argmax over the dimension of the classes; compare a single output with a threshold")
def _over_batch(program: Program) -> Iterator[Remark]:
    """Classes picked over the samples of a batch, or from a single output."""
    flow = flow_of(program)
    classes = _trained_with(flow, _OF_CLASSES)
    behind = _classes_behind(flow)
    for call, place in _of_trainer(program):
        axis = argument(call, "axis", int(bool(program.called(call))))
        if place == 0 and axis is not None and flow.number(axis) == 0:
            yield Remark(call, f"{short(call)} goes over the samples instead of the classes")
    for node in program.everywhere(ast.Compare):
        if not compares(node, ast.Eq) or not any(last_word(one.func) in _SUMS for one in program.calls_around(node)):
            continue
        for side, other in ((node.left, node.comparators[0]), (node.comparators[0], node.left)):
            found = _picks(flow, side)
            largest = _largest(flow, side)
            if largest is not None and (output := output_of(flow, largest.args[0] if program.called(largest) and largest.args else program.operand(largest))) is not None and _model_name(flow, output) in classes:
                yield Remark(node, f"{short(node)} compares the largest output itself, and not its place, with {short(other)}: max gives (values, places)")
            if found is None or isinstance(other, ast.Constant) or _picks(flow, other) is not None:
                continue
            call, over, dimension = found
            output = output_of(flow, over)
            if output is None:
                continue
            given = len(call.args) > int(bool(program.called(call))) or bool(call.keywords)
            one = flow.given(output.args[0]) if output.args else None
            in_batches = one is not None and isinstance(one.node, ast.For) and (trains(program, one.node) or evaluates(flow, one.node))
            if not given and in_batches and is_method(call, "argmax") and _model_name(flow, output) in classes:
                yield Remark(call, f"{short(call)} has no dimension: it gives one place in the outputs of the whole batch")
            elif dimension == 1 and _model_name(flow, output) in behind:
                yield Remark(call, f"{short(call)} goes over the positions: the loss takes {short(behind[_model_name(flow, output)])}, so the classes come last")
            elif dimension == 0 and given and _model_name(flow, output) in classes:
                yield Remark(call, f"{short(call)} goes over the samples of the batch instead of the classes")
            elif dimension in (1, -1) and _width(flow, output) == 1:
                yield Remark(call, f"{short(call)} goes over the one output of {short(output.func)}: it is always 0")


def _classes_behind(flow: Flow) -> dict[str, ast.expr]:
    """Networks whose outputs have the classes last: a loss over classes gets them with the last two axes exchanged."""
    found: dict[str, ast.expr] = {}
    for call in flow.program.calls():
        given = flow.value(call.args[0]) if call.args and loss_name(flow.program, call) in _OF_CLASSES else None
        numbers = [flow.number(one) for one in given.args] if isinstance(given, ast.Call) else []
        turned = (is_method(given, "transpose") and numbers in ([1, 2], [2, 1], [-1, -2], [-2, -1])) or (is_method(given, "permute") and numbers == [0, 2, 1])
        output = output_of(flow, given.func.value) if turned and isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute) else None
        if output is not None and isinstance(given, ast.expr):
            found[_model_name(flow, output)] = given
    return found


def _largest(flow: Flow, node: ast.AST) -> ast.Call | None:
    """The max over a dimension whose values, and not whose places, an expression is."""
    last = steps_to(flow, node)[-1:]
    call: ast.AST | None = None
    if last and isinstance(last[0], ast.Subscript) and number_in(last[0].slice) == 0:
        call = flow.value(last[0].value)
    elif last and (one := flow.given(last[0])) is not None and one.place == 0 and one.how == "assign":
        call = one.value
    if not is_method(call, "max", "topk") or flow.number(argument(call, "dim", int(bool(flow.program.called(call))))) is None:
        return None
    return call if call.func.attr == "max" else None


def _width(flow: Flow, output: ast.Call) -> float | None:
    """How many outputs the last layer of a network has, where it is a Linear that ends its forward."""
    of = flow.program.classes.get(flow.program.kind_name(output.func), [])
    if len(of) != 1:
        return _linear(flow, flow.value(output.func))
    forward = flow.program.method(of[0], "forward")
    results = returned(forward) if forward is not None else []
    last = flow.value(results[0]) if len(results) == 1 else None
    if not is_method(last):
        return None
    return _linear(flow, flow.value(last.func))


def _linear(flow: Flow, layer: ast.AST | None) -> float | None:
    name = flow.program.called(layer)
    if name == "torch.nn.Sequential" and isinstance(layer, ast.Call) and layer.args:
        return _linear(flow, flow.value(layer.args[-1]))
    if name == "torch.nn.Linear" and isinstance(layer, ast.Call):
        return flow.number(argument(layer, "out_features", 1))
    return None


def _collected(flow: Flow, node: ast.expr) -> list[ast.expr]:
    """What a name holds: its own value, or what is appended to the list that it is (or was made of)."""
    at: ast.AST | None = node
    for _ in range(6):
        if isinstance(at, ast.Call) and at.args and is_method(at, "cat", "concatenate", "array", "hstack", "vstack", "stack", "tensor", "asarray"):
            at = at.args[0]
        elif is_method(at, "numpy", "cpu", "detach", "tolist") and not at.args:
            at = at.func.value
        elif isinstance(at, ast.expr) and (value := flow.held(at) or elsewhere(flow, at)) is not None:
            if isinstance(value, (ast.List, ast.Call)) and isinstance(at, ast.Name) and (not isinstance(value, ast.Call) or ast.unparse(value) == "list()"):
                return [
                    call.args[0] for call in own_nodes(flow.program.scope(at))
                    if is_method(call, "append", "extend")
                    and len(call.args) == 1 and ast.unparse(call.func.value) == at.id
                ]
            at = value
        else:
            break
    return [at] if isinstance(at, ast.expr) else []


def _hard(flow: Flow, node: ast.expr) -> bool:
    """Whether an expression is a class that a network's output was turned into."""
    found = _picks(flow, node)
    if found is not None:
        return output_of(flow, found[1]) is not None or "softmax" in ast.unparse(found[1])
    last = steps_to(flow, node)[-1] if steps_to(flow, node) else node
    if isinstance(last, ast.Compare) and isinstance(last.ops[0], (ast.Gt, ast.GtE)) and flow.number(last.comparators[0]) is not None:
        return True
    return isinstance(last, ast.Call) and (
        flow.program.called(last) in ("torch.round", "numpy.round")
        or (is_method(last, "round") and not last.args)
    )


@RULES.add("metric-of-wrong-arguments", "the metric is that of another question", "give scores to a metric that ranks, and the true values first")
def _sklearn(program: Program) -> Iterator[Remark]:
    """Metrics of sklearn that are given classes for scores, or their arguments in the wrong order."""
    flow = flow_of(program)
    for call in program.calls():
        name = program.called(call)
        metric = name.rpartition(".")[2]
        if not name.startswith("sklearn.metrics.") or len(call.args) < 2 or (call.keywords and call.keywords[0].arg in ("y_true", "y_pred")):
            continue
        first, second = _collected(flow, call.args[0]), _collected(flow, call.args[1])
        if metric in _SCORES and second and all(_hard(flow, one) for one in second):
            yield Remark(call, f"{metric} is given classes ({short(call.args[1])}) where it ranks scores: its curve has one point")
        if metric in _TRUE_FIRST and first and second:
            predicted = all(_hard(flow, one) or output_of(flow, one) is not None for one in first)
            if predicted and all(_is_target(flow, one) for one in second):
                yield Remark(call, f"{metric} takes the true values first: {short(call.args[0])} and {short(call.args[1])} stand in the wrong order")


def _is_target(flow: Flow, node: ast.expr) -> bool:
    last = steps_to(flow, node)[-1] if steps_to(flow, node) else node
    one = flow.given(last)
    return one is not None and one.how == "for" and one.place != 0


@RULES.add("metric-over-ignored", "predictions where there is nothing to predict count as errors or as hits", "leave out the positions that the loss ignores: (pred == target)[target != ignore_index]")
def _over_ignored(program: Program) -> Iterator[Remark]:
    """A share of right predictions over all targets, beside a loss that leaves some of them out."""
    flow = flow_of(program)
    ignoring: dict[tuple[object, str], ast.Call] = {}
    for call in program.calls():
        made = flow.possible(call.func) if program.family(call.func) == "loss" else [call]
        told = made and all(isinstance(one, ast.Call) and argument(one, "ignore_index") is not None for one in made)
        if told and len(call.args) > 1 and loss_name(program, call) in _OF_CLASSES:
            ignored = _unshaped(program, call.args[1])
            ignoring[program.scope(call), ast.unparse(ignored)] = call
            ignoring[_batch_part(flow, ignored)] = call
    for node in program.everywhere(ast.Compare) if ignoring else ():
        if not compares(node, ast.Eq):
            continue
        for side, other in ((node.left, node.comparators[0]), (node.comparators[0], node.left)):
            target = _unshaped(program, side)
            known: list[tuple[object, str]] = [(program.scope(node), ast.unparse(target)), _batch_part(flow, target), *((program.scope(one), ast.unparse(_unshaped(program, one))) for one in flow.passed(target))]
            found = next((ignoring[one] for one in known if one in ignoring and one[1]), None)
            if found is not None and _picks(flow, other) is not None and (_averages_all(program, node) or _counts_all(program, node, ast.unparse(target))):
                yield Remark(node, f"{short(node)} counts all positions of {short(target)}, and the loss in line {found.lineno} leaves out those of its ignore_index")


def _batch_part(flow: Flow, node: ast.AST) -> tuple[object, str]:
    """Which part of the batches of which loader a variable is."""
    one = flow.given(node)
    if one is None or not isinstance(one.node, ast.For):
        return None, ""
    return one.place, f"of {ast.unparse(iterated(one.node))}"


def _counts_all(program: Program, node: ast.Compare, target: str) -> bool:
    """Whether a comparison is summed up as it is, and the function also counts all elements of the target."""
    around: ast.AST | None = program.parent.get(node)
    while is_attribute(around, "float", "double", "long", "int", "to") or (isinstance(around, ast.Call) and is_attribute(around.func, "float", "double", "long", "int", "to")):
        around = program.parent.get(around)
    whole = is_attribute(around, "sum") or program.called(around) == "torch.sum"
    return whole and any(is_method(one, "numel", "nelement") and ast.unparse(_unshaped(program, one.func.value)) == target for one in ast.walk(program.scope(node)))


def _unshaped(program: Program, node: ast.expr) -> ast.expr:
    while is_method(node, *SHAPES) and program.dotted(node.func) is None:
        node = node.func.value
    return node


@RULES.add("hits-of-all-pairs", "each prediction is compared with the label of every sample of the batch", "bring both to one shape: pred.squeeze(1) == y")
def _all_pairs(program: Program) -> Iterator[Remark]:
    """Predictions of shape (batch, 1) compared with labels of shape (batch,), which the loss brings to one shape."""
    flow = flow_of(program)
    brought: dict[str, ast.Call] = {}
    for call in program.calls():
        if len(call.args) < 2 or loss_name(program, call) not in (*_LOGITS, *_PROBABILITIES, "MSELoss", "mse_loss", "L1Loss", "l1_loss"):
            continue
        (output, reshaped), (target, moved) = _shape_of(flow, call.args[0]), _shape_of(flow, call.args[1])
        if not isinstance(output, ast.Call) or not is_model(flow, output.func) or {reshaped, moved} not in ({"", "squeeze"}, {"", "unsqueeze"}) or reshaped == "unsqueeze" or moved == "squeeze":
            continue
        target_of = flow.given(target) if target is not None else None
        if target_of is not None and target_of.how == "for" and target_of.place == 1:
            brought[_model_name(flow, output)] = call
        for node in own(program.scope(call), ast.Compare, ast.BinOp):
            pair: list[ast.expr] = [node.left, node.comparators[0]] if compares(node, ast.Eq) else []
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
                pair = [node.left, node.right]
            for side, other in (pair, pair[::-1]) if pair else ():
                (one, first), (two, second) = _shape_of(flow, side), _shape_of(flow, other)
                if one is output and two is not None and target is not None and ast.dump(two) == ast.dump(target) and first == second == "":
                    done = f"{short(call.args[0])} and {short(call.args[1])}"
                    yield Remark(node, f"{short(node)} compares shapes that the loss in line {call.lineno} first makes alike ({done}): one of the two is a column, and all pairs are counted")
    yield from _columns(flow, brought)


def _columns(flow: Flow, brought: dict[str, ast.Call]) -> Iterator[Remark]:
    """The same for outputs and labels that are collected over the batches, where the loss is taken elsewhere."""
    for node in flow.program.everywhere(ast.BinOp, ast.Compare):
        pair: list[ast.expr] = [node.left, node.comparators[0]] if compares(node, ast.Eq) else []
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            pair = [node.left, node.right]
        for side, other in (pair, pair[::-1]) if pair else ():
            one, two = _collected(flow, side), _collected(flow, other)
            if len(one) != 1 or len(two) != 1 or one[0] is side or two[0] is other:
                continue
            (output, first), (label, second) = _shape_of(flow, one[0]), _shape_of(flow, two[0])
            given = flow.given(label) if label is not None else None
            named = _model_name(flow, output) if isinstance(output, ast.Call) and is_model(flow, output.func) else ""
            if named in brought and first == second == "" and given is not None and given.how == "for" and given.place == 1:
                yield Remark(node, f"{short(node)} takes what {named} gives as it is, a column, and the labels as they are: the loss in line {brought[named].lineno} first brings them to one shape")
                return


def _shape_of(flow: Flow, node: ast.AST | None) -> tuple[ast.AST | None, str]:
    """What an expression is made of element by element, and how its shape was changed: "squeeze", "unsqueeze", "" where
    it was not; "other" where that is not known."""
    changed = ""
    at: ast.AST | None = node
    for _ in range(20):
        if at is None:
            return None, "other"
        if isinstance(at, (ast.Name, ast.Attribute)) and (held := flow.held(at)) is not None:
            at = held
        elif compares(at, *ORDERS) and number_in(at.comparators[0]) is not None:
            at = at.left
        elif isinstance(at, ast.Call) and flow.program.called(at) in ("torch.sigmoid", "torch.round", "torch.nn.functional.sigmoid") and at.args:
            at = at.args[0]
        elif is_method(at, "squeeze", "flatten", "ravel", "unsqueeze", "view", "reshape") and not flow.program.called(at):
            column = is_method(at, "unsqueeze") or (is_method(at, "view", "reshape") and len(at.args) == 2 and flow.number(at.args[1]) == 1)
            flat = is_method(at, "squeeze", "flatten", "ravel") or (is_method(at, "view", "reshape") and len(at.args) == 1 and flow.number(at.args[0]) == -1)
            if changed or not (column or flat):
                return None, "other"
            changed = "unsqueeze" if column else "squeeze"
            at = at.func.value
        elif is_method(at, "sigmoid", "round", "float", "long", "int", "double", "to", "cpu", "cuda", "detach", "type", "bool", "numpy") and not flow.program.called(at):
            at = at.func.value
        else:
            break
    return at, changed


@RULES.add("softmax-for-sigmoid", "the classes share one probability: what holds together is never found together", "torch.sigmoid(logits): each class was trained to have a probability of its own")
def _softmax_for_sigmoid(program: Program) -> Iterator[Remark]:
    """A softmax over logits that the loss takes one by one."""
    flow = flow_of(program)
    logits = _trained_with(flow, _LOGITS) - _trained_with(flow, _OF_CLASSES)
    for call in program.calls() if logits else ():
        output = output_of(flow, program.operand(call)) if is_method(call, "softmax") else None
        if output is not None and _model_name(flow, output) in logits:
            yield Remark(call, f"{short(call)} makes one distribution of logits that the loss takes each for itself")


@RULES.add("probabilities-over-the-batch", "the probabilities of one sample depend on the samples beside it, and do not add up to 1", "run the softmax over the classes: dim=1")
def _softmax_of_batch(program: Program) -> Iterator[Remark]:
    """A softmax over the samples of a batch of class scores."""
    flow = flow_of(program)
    classes = _trained_with(flow, _OF_CLASSES)
    for call in program.calls() if classes else ():
        if not is_method(call, "softmax", "log_softmax"):
            continue
        free = bool(program.called(call))
        dimension = argument(call, "dim", int(free))
        output = output_of(flow, program.operand(call)) if dimension is not None and flow.number(dimension) == 0 else None
        if output is None or _model_name(flow, output) not in classes or not output.args:
            continue
        given = output.args[0]
        one = flow.given(given)
        batched = (one is not None and isinstance(one.node, ast.For) and evaluates(flow, one.node)) or is_method(flow.value(given), "unsqueeze")
        if batched:
            yield Remark(call, f"{short(call)} runs over dimension 0, the samples of the batch {short(given)}, and not over the classes")


def _averages_all(program: Program, node: ast.AST) -> bool:
    """Whether a comparison goes into a mean as it is, without a mask."""
    around = program.parent.get(node)
    while is_attribute(around, "float", "double", "to", "mean") or (isinstance(around, ast.Call) and is_attribute(around.func, "float", "double", "to")):
        if is_attribute(around, "mean"):
            return isinstance(program.parent.get(around), ast.Call)
        around = program.parent.get(around)
    return isinstance(around, ast.Call) and program.called(around) == "torch.mean"


@RULES.add("value-of-another-loop", "the evaluation does not look at the data it goes over", "compute it from the batch of this loop")
def _stale(program: Program) -> Iterator[Remark]:
    """A loop over held-out batches that adds up, or gives to the network, what another loop left behind."""
    flow = flow_of(program)
    loops = list(loader_loops(flow))
    for loop in loops:
        if trains(flow.program, loop):
            continue
        stored = names_set(loop)
        scope = program.scope(loop)
        others = [one for one in loops if one is not loop and program.scope(one) is scope and loop not in program.parents(one) and one not in program.parents(loop)]
        left = {one.id for other in others for one in ast.walk(other) if is_set(one)}
        targets = names_of(loop.target)
        for node in ast.walk(loop):
            if is_method(node, "item") and isinstance(node.func.value, ast.Name):
                name = node.func.value.id
                if name in left and name not in stored and isinstance(program.parent.get(node), (ast.AugAssign, ast.BinOp, ast.Call)):
                    yield Remark(node, f"{name} is not computed in this loop: {short(node)} is the last value of another loop, the same for every batch")
            elif isinstance(node, ast.Call) and is_model(flow, node.func) and node.args and isinstance(node.args[0], ast.Name):
                name = node.args[0].id
                of_others = {one.id for other in others for one in ast.walk(other.target) if isinstance(one, ast.Name)}
                read = names_read(loop)
                if name in of_others and name not in stored and targets - read - {"_"}:
                    unread = sorted(targets - read - {"_"})[0]
                    yield Remark(node, f"{short(node)} reads {name}, which another loop left behind; {unread}, the batch of this loop, is never read")


RULES.add(
    "sigmoid-for-softmax",
    "labels that hold together compete in the training: raising one lowers the others, and few are ever above the threshold",
    "binary_cross_entropy_with_logits, which learns each label by itself; where only one class holds: argmax",
)(each_class_by_itself)
