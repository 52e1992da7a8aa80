"""Scores of predictions: what is compared with the labels, by which formula, and what is kept for its score. Pure; standard
library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    SHAPED,
    Many,
    Table,
    Value,
    bare,
    comes_from,
    constant,
    is_none,
    number,
    origins,
    same,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import ORDERS, is_call, is_method, last_word, own, pairs_of, short
from probe.diagnose.code.traits.basic import LOSSES, squared, without_small
from probe.diagnose.code.traits.extents import last
from probe.diagnose.code.traits.pictures import applied, by_network
from probe.diagnose.code.traits.uses import made_from

FINDERS = Finders()
_EACH = frozenset({*KEPT, "sigmoid", "round", "gt", "ge", "lt", "le", "abs", "bool"}) - {"either", "list", "tuple", "stack", "values"}
"""Operations that keep the shape of what they are done on."""
_TWO_CLASSES = ("binary_cross_entropy_with_logits", "binary_cross_entropy", "mse_loss", "l1_loss", "smooth_l1_loss")


def _layer(value: Value) -> Value | None:
    """The layer or network that gives a value, untouched since."""
    inner = bare(value, shapes=False)
    return inner.args[0] if inner.op == "run" and inner.args and applied(inner) is None and inner.args[0].op not in ("unknown", "part", "element") else None


def _flat_layers(computation: Computation) -> set[int]:
    """Layers and networks whose classes lie along the second of two axes: a loss of classes takes what they give as it is."""
    found = set()
    for loss in computation.of("cross_entropy"):
        layer = _layer(loss.args[0]) if loss.args else None
        if layer is not None and (layer.op == "torch.nn.Linear" or ("torchvision.models." in bare(layer).op and "segmentation" not in bare(layer).op)):
            found.add(id(layer))
    return found


def _is_batch(value: Value) -> bool:
    """Whether a value is made of batches of a loader, or of many rows."""
    return any(one.op == "rows" for one in origins(value))


@FINDERS.add("argmax-over-wrong-dimension")
def _wrong_argmax(program: Program) -> Iterator[Remark]:
    """The best class is looked for along the samples, or among one number."""
    computation = computation_of(program)
    flat = _flat_layers(computation)
    columns = {id(bare(loss.args[0], shapes=False)) for loss in computation.of(*_TWO_CLASSES) if len(loss.args) > 1 and _is_column(loss.args[1])}
    for value in computation.of("argmax", "max", "topk"):
        along = value.argument("dim", 1 if value.op != "topk" else 2)
        if not value.args or number(along) is None or number(value.named.get("k")) is not None:
            continue
        given, at = value.args[0], number(along)
        layer = _layer(given)
        if at == 0 and layer is not None and id(layer) in flat and _is_batch(given):
            yield Remark(value.node, f"{short(value.node)} goes over the samples of the batch instead of the classes")
        elif value.op == "argmax" and at in (1, -1) and (id(bare(given, shapes=False)) in columns or (last(given) == 1 and layer is not None)):
            yield Remark(value.node, f"{short(value.node)} looks among a single output for each sample: it is always 0")


def _is_column(value: Value) -> bool:
    """Whether a value is made one column."""
    inner = bare(value, shapes=False)
    if inner.op == "unsqueeze":
        return number(inner.argument("dim", 1)) in (1, -1)
    return inner.op in ("view", "reshape") and [number(one) for one in inner.args[1:]] == [-1, 1]


@FINDERS.add("hits-of-all-pairs")
def _all_pairs(program: Program) -> Iterator[Remark]:
    """A column of predictions is compared with a row of labels that the loss makes a column."""
    computation = computation_of(program)
    for loss in computation.of(*_TWO_CLASSES):
        if len(loss.args) < 2 or not _is_column(loss.args[1]):
            continue
        given, row = bare(loss.args[0], shapes=False), bare(bare(loss.args[1], shapes=False).args[0], shapes=False)
        for value in made_from(computation, given, frozenset(_EACH)):
            if value.op not in ("eq", "ne", "sub") or len(value.args) != 2:
                continue
            sides = [bare(_each(one), shapes=False) for one in value.args]
            base = bare(_each(given), shapes=False)
            if (sides[0] is base and sides[1] is row) or (sides[1] is base and sides[0] is row):
                yield Remark(value.node, f"{short(value.node)} compares a column with a row: the loss in line {loss.line} first makes both columns ({short(loss.args[1].node)}), and here all pairs are counted")


def _each(value: Value) -> Value:
    """What a value was before operations that keep its shape."""
    while value.args and value.op in _EACH:
        value = value.args[0]
    return value


@FINDERS.add("metric-over-ignored")
def _over_ignored(program: Program) -> Iterator[Remark]:
    """A share of right positions counts those that the loss leaves out."""
    computation = computation_of(program)
    left_out: dict[int, Value] = {}
    for loss in computation.of("cross_entropy", "nll_loss"):
        ignored = loss.named.get("ignore_index")
        layer = _network(loss.args[0]) if loss.args else None
        if ignored is not None and number(ignored) is not None and layer is not None:
            left_out[id(layer)] = loss
    said: set[ast.AST] = set()
    for value in computation.of("eq"):
        guess = next((one for one in value.args if bare(one, shapes=False).op == "argmax"), None)
        if guess is None or len(value.args) != 2 or value.node in said:
            continue
        truth = value.args[1] if guess is value.args[0] else value.args[0]
        layer = _network(bare(guess).args[0])
        known = left_out.get(id(layer)) if layer is not None else None
        if known is None or (bare(truth).op in ("part", "masked_select") and bare(truth).args[0].op not in ("element", "rows", "run")) or not _counts_all(computation, value, truth):
            continue
        said.add(value.node)
        yield Remark(value.node, f"{short(value.node)} counts all positions of {short(truth.node)}, and the loss in line {known.line} leaves out those of its ignore_index")


def _network(value: Value) -> Value | None:
    """The layer that gives a value, before what only moves its axes."""
    while value.args and value.op in ("transpose", "permute", "flatten", "view", "reshape", "part", "float", "to", "contiguous") and (value.op != "part" or isinstance(constant(value.args[1]), str)):
        value = value.args[0]
    return value.args[0] if value.op == "run" and value.args else None


def _counts_all(computation: Computation, hits: Value, truth: Value) -> bool:
    """Whether hits are averaged over all positions: by a mean, or by the number of all labels; no mask is asked."""
    if any(one.op in ("ne", "eq", "ge", "gt", "not_equal") and one is not hits and computation.users(one) and bare(one.args[0]) is bare(truth) and one.where.functions == hits.where.functions for one in computation.users(bare(truth))):
        return False
    users = list(made_from(computation, hits, frozenset({"float", "to", "double", "int", "long"})))
    if any(one.op in ("and", "mul", "part", "masked_select", "where") for one in users):
        return False
    if any(one.op == "mean" for one in users):
        return True
    return any(one.op == "sum" for one in users) and any(one.op == "numel" for one in computation.users(bare(truth, shapes=False)))


@FINDERS.add("softmax-for-sigmoid")
def _softmax_for_sigmoid(program: Program) -> Iterator[Remark]:
    """Logits that the loss takes each for itself become one distribution."""
    computation = computation_of(program)
    others = {loss.node for loss in computation.of("cross_entropy", "nll_loss")}  # a criterion that is one or the other
    each = {
        id(layer): loss for loss in computation.of("binary_cross_entropy_with_logits", "multilabel_soft_margin_loss")
        if loss.args and loss.node not in others and (layer := _layer(loss.args[0])) is not None
    }
    for value in computation.of("softmax"):
        layer = _layer(value.args[0]) if value.args else None
        loss = each.get(id(layer)) if layer is not None else None
        called = not value.where.functions or program.class_of(value.where.functions[0]) is None
        if loss is not None and called and last(value.args[0]) != 1 and number(value.argument("dim", 1)) in (1, -1):
            yield Remark(value.node, f"{short(value.node)} makes one distribution of logits that the loss (line {loss.line}) takes each for itself")


@FINDERS.add("softmax-for-sigmoid")
def _softmax_in_the_loss(program: Program) -> Iterator[Remark]:
    """A softmax shares one probability out among labels, and each of them is compared and thresholded for itself."""
    computation = computation_of(program)
    nodes = {one.node for one in computation.of("softmax") if one.args and last(one.args[0]) not in (1, 2)}
    limits = {bare(one.args[0]).node for one in computation.of("gt", "ge") if len(one.args) == 2 and number(one.args[1]) is not None}
    chosen = {bare(one.args[0]).node for one in computation.of("argmax") if one.args}
    for loss in computation.of("binary_cross_entropy"):
        value = bare(loss.args[0]) if len(loss.args) > 1 else loss
        if value.op == "softmax" and value.node in nodes and value.node in limits and value.node not in chosen:
            yield Remark(value.node, f"{short(value.node)} makes one distribution of scores that {short(loss.node)} (line {loss.line}) and a threshold take each for itself")
            return


@FINDERS.add("probabilities-over-the-batch")
def _over_batch(program: Program) -> Iterator[Remark]:
    """The probabilities of classes are made to add up over the samples."""
    computation = computation_of(program)
    flat = _flat_layers(computation)
    for value in computation.of("softmax", "log_softmax"):
        if not value.args or number(value.argument("dim", 1)) != 0:
            continue
        layer = _layer(value.args[0])
        network = layer is not None and bare(layer).op.startswith("torchvision.models.") and bare(layer).op.count(".") == 2
        if layer is not None and (id(layer) in flat or network) and (_is_batch(value.args[0]) or id(layer) in flat):
            yield Remark(value.node, f"{short(value.node)} runs over dimension 0, the samples of the batch, and not over the classes")
    for value in computation.of("div"):
        powers, total = bare(value.args[0]), bare(value.args[-1])
        if powers.op == "exp" and total.op == "sum" and number(total.argument("dim", 1)) == 0 and bare(total.args[0]) is powers:
            inner = bare(powers.args[0])
            logits = bare(inner.args[0]) if inner.op == "sub" else inner
            layer = _layer(logits)
            if layer is not None and id(layer) in flat:
                yield Remark(value.node, f"{short(value.node)} divides by sums over dimension 0, the samples of the batch, and not over the classes")


@FINDERS.add("overlap-halved")
def _halved(program: Program) -> Iterator[Remark]:
    """What two regions share is divided by the sizes of both."""
    computation = computation_of(program)
    for value in computation.of("div"):
        if len(value.args) != 2 or _doubled(computation, value):
            continue
        shared, sizes = _shared(value.args[0]), without_small(value.args[1])
        if shared is None or sizes.op != "add" or len(sizes.args) != 2:
            continue
        parts = [bare(one) for one in sizes.args]
        if all(one.op == "sum" and one.args for one in parts) and all(any(same(bare(one.args[0]), bare(each)) for each in shared) for one in parts) and not same(parts[0], parts[1]):
            yield Remark(value.node, f"{short(value.node)} divides the overlap by the sizes of both: a perfect prediction gives 0.5")


@FINDERS.add("overlap-halved")
def _boxes_halved(program: Program) -> Iterator[Remark]:
    """The area that two boxes share is divided by the areas of both."""
    computation = computation_of(program)
    for value in computation.of("div"):
        area, sizes = (bare(value.args[0]), without_small(value.args[1])) if len(value.args) == 2 else (value, value)
        if sizes.op != "add" or len(sizes.args) != 2 or area.op not in ("mul", "prod") or _doubled(computation, value):
            continue
        ends = [one for one in origins(area, ("run", "part")) if one.op in ("min", "minimum", "max", "maximum") and len(one.args) == 2 and number(one.args[1]) is None]
        boxes = [bare(one) for one in sizes.args]
        if {one.op[:3] for one in ends} == {"min", "max"} and all(one.op in ("mul", "prod") and any(each.op == "sub" for each in origins(one, ("run", "part"))) for one in boxes) and not same(boxes[0], boxes[1]):
            yield Remark(value.node, f"{short(value.node)} divides the overlap by the areas of both: a perfect prediction gives 0.5")
            return


def _shared(value: Value) -> tuple[Value, ...] | None:
    """The two regions whose overlap a value is."""
    value = without_small(value)
    if value.op == "einsum" and len(value.args) == 3:
        return value.args[1:]
    if value.op == "sum" and value.args:
        inner = bare(value.args[0])
        return inner.args if inner.op in ("mul", "and", "logical_and") and len(inner.args) == 2 else None
    return None


def _doubled(computation: Computation, value: Value) -> bool:
    """Whether what is made of a value is multiplied by 2."""
    through = frozenset({"mean", "sum", "add", "sub", "list", "cat", *KEPT})
    return any(one.op == "mul" and any(number(each) == 2 for each in one.args) for one in made_from(computation, value, through))


@FINDERS.add("score-by-another-formula")
def _other_formula(program: Program) -> Iterator[Remark]:
    """F1 without its 2; R2 whose spread is that of the predictions."""
    computation = computation_of(program)
    for value in computation.of("div"):
        if len(value.args) != 2:
            continue
        product, total = without_small(value.args[0]), without_small(value.args[1])
        if product.op == "mul" and total.op == "add" and len(product.args) == len(total.args) == 2:
            one, other = (bare(each) for each in product.args)
            same_parts = {id(one), id(other)} == {id(bare(each)) for each in total.args} and one is not other
            if same_parts and one.op == other.op == "div" and same(without_small(one.args[0]), without_small(other.args[0])) and not _doubled(computation, value):
                yield Remark(value.node, f"{short(value.node)} is half of F1: the product is not taken twice")
        missed, spread = _squares(value.args[0]), _squares(without_small(value.args[1]))
        if missed is None or spread is None or missed.op != "sub" or spread.op != "sub" or bare(spread.args[1]).op != "mean":
            continue
        centred = _origin(spread.args[0])
        others = [one for one in missed.args if not same(_origin(one), centred)]
        if len(others) == 1 and by_network(centred) and not by_network(_origin(others[0])):
            yield Remark(value.node, f"{short(value.node)} divides by the spread of the predictions ({short(spread.node)}), and not by that of the true values")


def _squares(value: Value) -> Value | None:
    """x of a sum or mean of x ** 2."""
    value = bare(value)
    inner = squared(bare(value.args[0])) if value.op in ("sum", "mean") and value.args else None
    return None if inner is None else bare(inner)


def _origin(value: Value) -> Value:
    return bare(value)


@FINDERS.add("threshold-of-another-kind")
def _other_threshold(program: Program) -> Iterator[Remark]:
    """Probabilities are compared with the threshold of logits: all are above 0."""
    computation = computation_of(program)
    for value in computation.of("gt", "ge", "lt", "le"):
        if len(value.args) == 2 and number(value.args[1]) == 0 and bare(value.args[0]).op in ("sigmoid", "softmax") and bare(value.args[0]).where.loops == value.where.loops:
            given = bare(value.args[0])
            guards = [one for one in computation.users(value) if one.op in ("where", "part", "masked_fill", "all", "any")]
            if any(one.op in ("all", "any") or any(other is not value and comes_from(other, given) for other in one.args) for one in guards):
                continue  # a guard: where it is 0, its logarithm is left out
            yield Remark(value.node, f"{short(value.node)} compares probabilities ({short(given.node)}, line {given.line}) with 0, the threshold of logits: all are above it")


@FINDERS.add("threshold-of-another-kind")
def _threshold_of_probabilities(program: Program) -> Iterator[Remark]:
    """Scores that a loss takes for logits are compared with 0.5, the threshold of probabilities."""
    computation = computation_of(program)
    logits = {place: loss for loss in computation.of("binary_cross_entropy_with_logits", "softplus") if loss.args and not loss.where.no_grad for place in _scored_by(loss)}
    for value in computation.of("gt", "ge", "lt", "le", "round"):
        rounded = value.op == "round" and len(value.args) == 1
        given = _joined(value.args[0]) if value.args else value
        if not (rounded or (len(value.args) == 2 and number(value.args[1]) == 0.5)) or given.op != "run":
            continue
        copied = is_call(given.args[0].node, "deepcopy") or is_method(given.args[0].node, "deepcopy")
        loss = logits.get(given.node if copied else given.args[0])
        used = made_from(computation, value, frozenset({*KEPT, *SHAPED, "cat", "extend", "part", "clamp", "clip"})) if rounded else computation.users(value)
        if loss is not None and any(one.op in _COUNTED or (not rounded and one.op in ("float", "mean", "sum")) for one in used):
            does = "rounds logits, which" if rounded else "compares logits, which"
            ends = ", at 0.5" if rounded else ", with 0.5"
            yield Remark(value.node, f"{short(value.node)} {does} {short(loss.node)} (line {loss.line}) takes{ends}: the threshold of a logit is 0")


_COUNTED = ("eq", "ne", "and", "long", "int", "bool", "sklearn.metrics.f1_score", "sklearn.metrics.accuracy_score", "sklearn.metrics.precision_score", "sklearn.metrics.recall_score", "sklearn.metrics.confusion_matrix")
"""What is done with decisions."""


def _joined(value: Value) -> Value:
    """What the results of several batches were before they were joined."""
    value = bare(value, "cat", "concatenate")
    while isinstance(value, Many) and len(value.parts) == 1:
        value = bare(value.parts[0], "cat", "concatenate")
    return value


def _scored_by(loss: Value) -> tuple[object, ...]:
    """The layer whose output a loss takes for logits, and where it runs: also a copy of the network runs there. Of
    `softplus(-s)` only."""
    given = bare(loss.args[0])
    if loss.op == "softplus":
        given = bare(given.args[0]) if given.op == "neg" and given.args else loss
    return (given.args[0], given.node) if given.op == "run" and given.args else ()


@FINDERS.add("score-by-another-formula")
def _other_spread(program: Program) -> Iterator[Remark]:
    """1 less a mean of squared errors over a deviation of the true values, or less their variance over the error."""
    for value in computation_of(program).of("sub"):
        part = bare(value.args[1]) if len(value.args) == 2 and number(value.args[0]) == 1 else value
        if part.op != "div" or len(part.args) != 2:
            continue
        above, below = bare(part.args[0]), bare(without_small(part.args[1]))
        for error, spread, turned in ((above, below, False), (below, above, True)):
            missed = _squares(error) if error.op != "mse_loss" else error
            if missed is None or missed.op not in ("sub", "mse_loss") or spread.op not in ("std", "var") or not spread.args or not by_network_in(missed.args):
                continue
            if any(same(bare(one), bare(spread.args[0])) for one in missed.args) and (turned or spread.op == "std"):
                said = f"divides the spread {short(spread.node)} by the error" if turned else f"divides squared errors by a deviation, {short(spread.node)}, and not by a variance"
                yield Remark(value.node, f"{short(value.node)} {said}: R2 is 1 less the mean squared error over the variance")


def by_network_in(values: tuple[Value, ...]) -> bool:
    """Whether one of two values is what a network gives, and the other is not."""
    return [any(one.op == "run" for one in origins(each)) for each in values[:2]].count(True) == 1


# What a trainer of a library is told to look at -------------------------------------------


def _logged(computation: Computation) -> dict[str, list[Value]]:
    """What is logged under each name: the values, at the calls that log them."""
    found: dict[str, list[Value]] = {}
    for value in computation.of("log", "log_dict"):
        args = value.args[1:]
        if value.op == "log_dict" and args and isinstance(args[0], Table):
            for name, one in args[0].entries.items():
                found.setdefault(str(name), []).append(Value("log", (one,), node=value.node, where=value.where))
        elif len(args) > 1 and isinstance(constant(args[0]), str):
            found.setdefault(constant(args[0]), []).append(Value("log", (args[1],), node=value.node, where=value.where))
    return found


def _watchers(computation: Computation) -> Iterator[tuple[Value, str]]:
    for value in computation.values:
        if value.op.rpartition(".")[2] in ("EarlyStopping", "ModelCheckpoint") and "callbacks" in value.op:
            name = constant(value.argument("monitor", 0 if value.op.endswith("EarlyStopping") else None))
            if isinstance(name, str):
                yield value, name


@FINDERS.add("stopped-the-wrong-way")
def _wrong_way(program: Program) -> Iterator[Remark]:
    """A loss is watched as if more were better, or a share of right answers as if less were."""
    computation = computation_of(program)
    logged = _logged(computation)
    for watcher, name in _watchers(computation):
        mode = watcher.named.get("mode")
        way = "min" if is_none(mode) else constant(mode)
        for log in logged.get(name, ()):
            score = bare(log.args[0])
            if score.op in LOSSES and way == "max":
                yield Remark(watcher.node, f"{short(watcher.node)} looks for the largest {name}, which is a loss (line {score.line}): it takes the worst for the best")
                break
            if way == "min" and score.op == "mean" and score.args and bare(score.args[0]).op == "eq":
                yield Remark(watcher.node, f"{short(watcher.node)} looks for the smallest {name}, which is the share of right answers (line {score.line}): it takes the worst for the best")
                break


@FINDERS.add("chosen-by-the-training")
def _by_training(program: Program) -> Iterator[Remark]:
    """The state that is kept is chosen by what only the training step logs, beside scores of the validation."""
    computation = computation_of(program)
    logged = _logged(computation)
    steps = {name: {getattr(one, "name", "") for log in found for one in log.where.functions} for name, found in logged.items()}
    judged = [name for name, found in steps.items() if "validation_step" in found]
    for watcher, name in _watchers(computation):
        if judged and "training_step" in steps.get(name, ()) and "validation_step" not in steps[name] and watcher.op.endswith("ModelCheckpoint"):
            yield Remark(watcher.node, f"{short(watcher.node)} keeps what fits the training data best, and {judged[0]}, the score of the held-out data, decides nothing")


# What is shown to the model, and what is kept ----------------------------------------------


@FINDERS.add("predictions-for-labels")
def _labels_twice(program: Program) -> Iterator[Remark]:
    """A metric compares the labels with what is made of the labels."""
    for value in computation_of(program).values:
        if not value.op.startswith("sklearn.metrics.") or len(value.args) < 2:
            continue
        sides = [{one.op for one in origins(one)} for one in value.args[:2]]
        if all("label_ids" in side and "predictions" not in side and "run" not in side for side in sides):
            yield Remark(value.node, f"{short(value.node)} scores the labels: both of its arguments are made of label_ids, and predictions is never read")


@FINDERS.add("answer-given-in-the-evaluation")
def _answer_given(program: Program) -> Iterator[Remark]:
    """A decoder that is judged reads the true last step in a part of its steps, by a draw."""
    said: set[ast.AST] = set()
    for value in computation_of(program).of("either"):
        if not value.where.no_grad or not value.where.loops or len(value.args) != 2 or value.node in said:
            continue
        for true, guess in (value.args, value.args[::-1]):
            drawn = next((test for test, holds in true.where.under if holds and _is_drawn(test)), None)
            shown = true.op == "part" and not any(one.op == "run" for one in origins(true))
            if shown and drawn is not None and any(one.op == "run" for one in origins(guess)):
                said.add(value.node)
                call = _call_of(value)
                yield Remark(call, f"{short(call)} evaluates a model that reads the true step by a draw ({short(value.node)}, line {value.line}): it is shown part of the answer")
                break


def _call_of(value: Value) -> ast.AST:
    """The call in the loop over batches that runs a decoder's step."""
    outer = value.where.loops[-2] if len(value.where.loops) > 1 else None
    calls = [one for one in ast.walk(outer) if isinstance(one, ast.Call) and len(one.args) > 1] if outer is not None else []
    return min(calls, key=lambda one: (one.lineno, one.col_offset), default=value.node)


def _is_drawn(test: Value) -> bool:
    """Whether a condition asks a draw alone, with a share above 0."""
    if any(one.op in ("training", "and") for one in origins(test)):
        return False
    asked = [one for one in origins(test) if one.op in ("lt", "le") and len(one.args) == 2 and one.args[0].op in ("random", "rand", "uniform")]
    return len(asked) == 1 and (number(asked[0].args[1]) or 0) > 0


@FINDERS.add("best-set-to-every-score")
def _set_to_every(program: Program) -> Iterator[Remark]:
    """The best score is set to each score, whether it is better or not."""
    for test in program.everywhere(ast.Compare):
        if len(test.ops) != 1 or not isinstance(test.ops[0], ORDERS):
            continue
        function = program.frame(test)
        for best, score in ((test.left, test.comparators[0]), (test.comparators[0], test.left)):
            if not isinstance(best, (ast.Name, ast.Attribute)) or not isinstance(score, (ast.Name, ast.Attribute)) or not _is_best(last_word(best)):
                continue
            sets = [one for node in own(function, ast.Assign) for one in [(node, *pair) for pair in pairs_of(node)] if ast.unparse(one[1]) == ast.unparse(best)]
            to_score = [node for node, _, value in sets if ast.unparse(value) == ast.unparse(score)]
            asked = [node for node in to_score if any(isinstance(one, (ast.If, ast.IfExp)) for one in program.parents(node))]
            later = [node for node in to_score if node.lineno >= test.lineno]
            if later and not asked and not _leaves_before(program, test):
                yield Remark(later[0], f"{short(later[0])} runs whether {short(test)} is true or not: {short(best)} is the score before this one, and not the best")


def _is_best(word: str) -> bool:
    words = word.lower().split("_")
    return bool({"best", "top", "record", "lowest", "highest", "reference"} & {*words}) and not {"prev", "last", "old", "previous"} & {*words}


def _leaves_before(program: Program, test: ast.Compare) -> bool:
    """Whether a branch on a comparison leaves the loop or the function."""
    around = next((one for one in program.parents(test) if isinstance(one, ast.If)), None)
    return around is not None and any(isinstance(one, (ast.Continue, ast.Return, ast.Break, ast.Raise)) for part in (*around.body, *around.orelse) for one in ast.walk(part))
