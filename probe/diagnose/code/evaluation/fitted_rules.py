"""Data sets that fit a code, a vocabulary or a scale to what they are given, and are made anew for held-out data. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import HELD_OUT, LOADER, data_sets, names_given
from probe.diagnose.code.finders.evaluation.rollouts import each_step_from_the_data
from probe.diagnose.code.finders.evaluation.temperatures import (
    calibrated_on_the_test,
    calibrated_on_what_was_learned,
)
from probe.diagnose.code.finders.evaluation.unsaved_statistics import statistics_outside_the_state
from probe.diagnose.code.finders.images.absent_classes import absent_class
from probe.diagnose.code.finders.measured.cycles import circle_not_closed, targets_scaled_by_the_batch
from probe.diagnose.code.finders.measured.fitted_before import categories_scaled, columns_chosen_by_all_rows
from probe.diagnose.code.finders.measured.last_passes import (
    columns_left_shuffled,
    first_stretch_alone,
    list_of_the_last_pass,
)
from probe.diagnose.code.finders.weights.untrained import judged_untrained
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    Function,
    argument,
    is_call,
    is_method,
    is_name,
    is_own,
    is_true,
    last_word,
    names_read,
    own_nodes,
    parameters,
    short,
    text_of,
)

RULES = Rules("data")
_STATISTICS = frozenset({"mean", "std", "var", "median", "quantile", "percentile", "nanmean", "nanstd", "std_mean", "amax", "amin"})
_FITS = frozenset({"fit", "fit_transform", "build", "build_vocab", "build_vocabulary", "adapt", "learn", "from_texts", "build_vocab_from_iterator", "factorize"})


@RULES.add(
    "fitted-in-each-data-set",
    "what a number means differs between the two: the held-out data get a code or a scale of their own",
    "make it of the training data once, and hand it to the data set of the held-out data",
)
def _fitted_in_each(program: Program) -> Iterator[Remark]:
    """A data set that fits what it transforms its samples with, made once for a loader that shuffles and once for one that does not."""
    flow = flow_of(program)
    for of in data_sets(program):
        fitted = next(_fitted(program, of), None)
        if fitted is None:
            continue
        made = [call for call in program.calls() if program.called(call) == of.name]
        trained = [call for call in made if _shuffled(program, flow, call) is True]
        for call in made if trained else ():
            alone = program.frame(call) is program.frame(trained[0]) and not (program.loops(call) or program.loops(trained[0]))
            if call in trained or _shuffled(program, flow, call) is not False or not alone or _takes_from(program, trained[0], call):
                continue
            name, what = fitted
            yield Remark(call, f"{short(call)} makes its own {name} ({short(what, 40)}, line {getattr(what, 'lineno', 0)}), and that of {short(trained[0])} (line {trained[0].lineno}) is another one")
            break


def _fitted(program: Program, of: ast.ClassDef) -> Iterator[tuple[str, ast.AST]]:
    """The attributes that a data set fits to all of what it is given, whatever else it is given, and reads again."""
    start = program.method(of, "__init__")
    if start is None:
        return
    data = _data(start)
    for node in start.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if not isinstance(node, ast.Assign) or not is_own(target) or isinstance(node.value, (ast.IfExp, ast.BoolOp)):
            continue
        fits = any(_is_statistic(one, data) or _is_fit(one, data) for one in ast.walk(node.value)) or _is_numbering(program, start, node, data)
        text = text_of(target)
        reads = any(
            text_of(one) == text for way in _ways(program, of, start) for one in own_nodes(way)
            if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Load)
        )
        if fits and reads:
            yield text.removeprefix("self."), node.value


def _ways(program: Program, of: ast.ClassDef, start: Function) -> list[Function]:
    """The methods that make a sample: `__init__`, `__getitem__`, and those that they call."""
    getter = program.method(of, "__getitem__")
    found = [start] if getter is None else [start, getter]
    for way in found:
        called = (program.local_function(one) for one in own_nodes(way) if isinstance(one, ast.Call) and is_own(one.func))
        found += [one for one in called if one is not None and one not in found]
    return found


def _data(start: Function) -> set[str]:
    """The parameters of `__init__`, and what is made of them there."""
    names = {one.arg for one in parameters(start)} - {"self"}
    for node in start.body:
        if isinstance(node, ast.Assign) and names & _read(node.value):
            names |= {text_of(target) for target in node.targets if is_name(target) or is_own(target)}
    return names


def _read(node: ast.AST) -> set[str]:
    return names_read(node) | {text_of(one) for one in ast.walk(node) if is_own(one)}


def _is_statistic(node: ast.AST, data: set[str]) -> bool:
    """Whether a call is a statistic over all samples: over no axis, or over the first one."""
    if not isinstance(node, ast.Call) or last_word(node.func) not in _STATISTICS or not isinstance(node.func, ast.Attribute):
        return False
    free = is_name(node.func.value, "np", "numpy", "torch")
    of = node.args[0] if free and node.args else node.func.value
    axis = argument(node, "axis", int(free)) or argument(node, "dim", int(free))
    first = axis.elts[0] if isinstance(axis, ast.Tuple) and axis.elts else axis
    whole = first is None or (isinstance(first, ast.Constant) and first.value == 0)
    return whole and bool(data & _read(of))


def _is_fit(node: ast.AST, data: set[str]) -> bool:
    """Whether a call fits an object to data: `Vocabulary().build(texts)`, `LabelEncoder().fit(labels)`."""
    return is_method(node, *_FITS) and any(data & _read(one) for one in node.args)


def _is_numbering(program: Program, start: Function, node: ast.Assign, data: set[str]) -> bool:
    """Whether an attribute becomes a dict of numbers of what occurs in the data."""
    name = text_of(node.targets[0])
    if isinstance(node.value, ast.DictComp):
        over = node.value.generators[0].iter
        given = flow_of(program).value(over.args[0]) if is_call(over, "enumerate") and over.args else None
        return given is not None and any(last_word(getattr(one, "func", None)) in ("set", "Counter", "unique", "most_common", "fromkeys") or isinstance(one, ast.SetComp) for one in ast.walk(given)) and bool(data & _read(given))
    if not isinstance(node.value, ast.Dict) or node.value.keys:
        return False
    for one in own_nodes(start):
        counts = is_method(one, "setdefault") and text_of(one.func.value) == name and len(one.args) == 2 and is_call(one.args[1], "len")
        stores = isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Subscript) and text_of(one.targets[0].value) == name and is_call(one.value, "len")
        if counts or stores:
            return True
    return False


def _shuffled(program: Program, flow: Flow, made: ast.Call) -> bool | None:
    """Whether the loader of a data set draws its samples at random; None without a loader."""
    found: list[bool] = []
    for loader in program.calls():
        given = argument(loader, "dataset", 0) if program.called(loader) == LOADER else None
        if given is not None and flow.value(given) is made:
            drawn = is_true(argument(loader, "shuffle", 2)) or argument(loader, "sampler", 3) is not None or argument(loader, "batch_sampler", 4) is not None
            found.append(drawn)
    if not found:
        return False if any(map(HELD_OUT.search, names_given(program, made))) else None
    return all(found) if all(found) == any(found) else None


def _takes_from(program: Program, trained: ast.Call, held: ast.Call) -> bool:
    """Whether the held-out data set is given something of the training one, then or later."""
    names, own = set(names_given(program, trained)), set(names_given(program, held))
    for node in own_nodes(program.frame(held)):
        if isinstance(node, ast.Assign) and any(isinstance(one, ast.Attribute) and is_name(one.value, *own, "") for one in node.targets):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_name(node.func.value, *own, "") and names & names_read(ast.Tuple([*node.args], ast.Load())):
            return True
    return False


RULES.add(
    "calibrated-on-what-was-learned",
    "the network is surer of the samples it has learned than of new ones: the temperature is too low for them, and they stay too sure",
    "fit the temperature on the validation part",
)(calibrated_on_what_was_learned)


RULES.add(
    "rollout-from-the-data",
    "the error that is reported is that of one step: what the model does with its own predictions was never seen",
    "give the model what it predicted: state = model(state)",
)(each_step_from_the_data)


RULES.add(
    "statistics-outside-the-state",
    "the model that is loaded does not scale by what the trained one scaled by: its predictions are of another scale",
    "keep them as buffers: self.register_buffer('mean', torch.zeros(n))",
)(statistics_outside_the_state)


RULES.add(
    "columns-chosen-by-all-rows",
    "of many columns some go with any target by chance, also in the held-out rows: the score is better than on new data",
    "choose the columns by the training rows alone",
)(columns_chosen_by_all_rows)


RULES.add(
    "categories-scaled",
    "most categories fall on one and the same row of the table: which of them a sample has is lost",
    "scale the columns of measurements alone, and look up the numbers as they were",
)(categories_scaled)


RULES.add(
    "absent-class-counts-as-missed",
    "a picture without a class counts as one where it was not found: the fewer classes a picture shows, the lower is its score",
    "leave out classes that are in neither side, or add up the counts of all pictures before dividing",
)(absent_class)


RULES.add(
    "list-of-the-last-pass",
    "the mean that is reported is one number, that of the last fold or run, and its spread is 0",
    "make the list before the loop",
)(list_of_the_last_pass)


RULES.add(
    "columns-left-shuffled",
    "what is said of a column is said of all before it too: importance grows from column to column",
    "mix a copy of the table in each pass",
)(columns_left_shuffled)


RULES.add(
    "first-stretch-alone",
    "all samples lie in the first part of the data, and the rest is never seen",
    "give len(series) - size as the length, or begin each window at i * size",
)(first_stretch_alone)


RULES.add(
    "circle-not-closed",
    "two neighbours of the cycle, its last number and its first one, are one and the same to the model",
    "divide by the length of the cycle: 24 hours, 7 days",
)(circle_not_closed)


RULES.add(
    "targets-scaled-by-the-batch",
    "what a sample is asked for depends on those beside it: the level and the spread of the targets cannot be learned",
    "scale the targets by the mean and deviation of all training targets, once",
)(targets_scaled_by_the_batch)


RULES.add(
    "judged-untrained",
    "the score is that of random weights: nothing of the training is in it",
    "load the saved weights: model.load_state_dict(torch.load(path))",
)(judged_untrained)


RULES.add(
    "calibrated-on-the-test",
    "the temperature is the best one for these labels: the error of calibration that is reported is lower than on new data",
    "fit it to the validation part, and report the error on the test part",
)(calibrated_on_the_test)
