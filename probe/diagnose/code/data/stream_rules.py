"""Streams of words, candidates and series: what comes before what, and out of which numbers it is drawn; what the
workers of a loader are given. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import DRAWN, number
from probe.diagnose.code.data.data_flow import GENERATORS, HELD_OUT, LOADER, TRAINING, data_sets
from probe.diagnose.code.finders.losses.ctc_lengths import ctc_over_padding
from probe.diagnose.code.finders.pictures.sounds import cut_off_before_scaling, real_part_alone
from probe.diagnose.code.finders.rows.pool_places import place_in_the_pool, surest_chosen
from probe.diagnose.code.finders.rows.scaled_windows import (
    filled_from_the_future,
    mean_alone_divided,
    scaled_with_the_horizon,
)
from probe.diagnose.code.finders.rows.shared_tables import columns_share_rows
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark, Rules
from probe.diagnose.code.syntax import (
    Function,
    argument,
    is_attribute,
    is_binary,
    is_call,
    is_false,
    is_method,
    is_name,
    is_negative,
    is_own,
    is_read,
    is_self,
    is_string,
    is_true,
    last_word,
    names_of,
    names_read,
    names_set,
    number_in,
    own,
    own_nodes,
    parameters,
    returned,
    short,
    text_of,
)

RULES = Rules("data")
FINDERS = Finders()
_SMOOTHERS = ("torch.nn.functional.avg_pool1d", "torch.nn.functional.conv1d")
_BATCH = re.compile(r"^(bsz|bs|batch(_?size)?|n_?batch|b)$", re.I)
_NOISE = ("normal", "randn", "standard_normal", "rand", "uniform", "randn_like")
"""What is smoothed of these is made up, and nothing is read ahead of time."""
_SEEDS = {"numpy.random.seed": ("np.random.", "numpy.random."), "random.seed": ("random.",)}
"""Functions that seed a generator of the whole process, and what draws from it."""
_CHANGES = re.compile(r"epoch|\btime|urandom|initial_seed|get_worker_info|randint|entropy|counter|next\(", re.I)
_FORECAST = re.compile(r"horizon|lookback|look_back|forecast", re.I)


@RULES.add("stream-cut-across", "words that follow each other lie in different samples: no sample is a text", "give each sample a piece of the text: data.view(batch, -1).t()")
def _cut_across(program: Program) -> Iterator[Remark]:
    """A stream of words arranged by `view(-1, batch)`, where each column should be a text."""
    for scope in program.scopes():
        counted = [
            (node, node.value.right.id, names_read(node.value.left)) for node in own(scope, ast.Assign)
            if is_binary(node.value, ast.FloorDiv) and isinstance(node.value.right, ast.Name) and _BATCH.match(node.value.right.id)
            and (is_call(node.value.left, "len") or is_method(node.value.left, "size", "numel"))
        ]
        for _, batch, names in counted:
            for call in own(scope, ast.Call):
                given = [*call.args]
                across = is_method(call, "view", "reshape") and len(given) == 2 and is_negative(given[0]) and is_read(given[1], batch)
                if across and names & names_read(call.func) and not any(is_method(one, "t", "transpose", "permute") or is_attribute(one, "T") for one in program.parents(call)):
                    yield Remark(call, f"{short(call)} puts neighbours of the stream into one row, one in each of the {batch} samples")


@RULES.add("candidates-of-another-kind", "items above that number are never a candidate, and numbers of no item may be", "draw from the number of items")
def _another_kind(program: Program) -> Iterator[Remark]:
    """Negative items that are drawn from the number of users."""
    names = {one.id.lower() for one in program.everywhere(ast.Name)} | {one.attr.lower() for one in program.everywhere(ast.Attribute)}
    items = any("item" in name and re.search(r"^n_|num|count|^n", name) for name in names)
    for node in program.everywhere(ast.Assign) if items else ():
        target = last_word(node.targets[0]).lower()
        draws = [one for one in ast.walk(node.value) if is_method(one, "randint", "randrange", "integers") or is_call(one, "randint", "randrange")]
        for call in draws:
            bounds = [last_word(one).lower() for one in call.args if isinstance(one, (ast.Name, ast.Attribute))] if isinstance(call, ast.Call) else []
            if re.search(r"neg|item", target) and bounds and "user" in bounds[-1] and not any("item" in one for one in bounds):
                yield Remark(node, f"{short(call)} draws an item out of {bounds[-1]}, the number of users")
                return


@RULES.add("blank-is-a-letter", "one letter is taken for the blank of CTC: it is never read, and its places are empty", "number the letters from 1, or give CTCLoss(blank=len(letters))")
def _blank(program: Program) -> Iterator[Remark]:
    """Letters that are numbered from 0 beside a CTC loss whose blank is 0."""
    flow = flow_of(program)
    losses = [call for call in program.calls() if program.called(call) in ("torch.nn.CTCLoss", "torch.nn.functional.ctc_loss")]
    if not losses or any((number := argument(call, "blank", 0 if program.called(call).endswith("CTCLoss") else 4)) is not None and flow.number(number) != 0 for call in losses):
        return
    for made in program.everywhere(ast.DictComp):
        over = made.generators[0]
        if len(made.generators) != 1 or not is_call(over.iter, "enumerate") or len(over.iter.args) != 1 or over.iter.keywords or not isinstance(over.target, ast.Tuple):
            continue
        number, letter = over.target.elts
        letters = flow.value(over.iter.args[0])
        marked = (is_string(letters) and letters.value[:1] in "-_ε<#|") or (isinstance(letters, (ast.List, ast.BinOp)) or "blank" in text_of(letters).lower())
        if is_name(number) and is_name(made.value, number.id) and is_name(letter) and is_name(made.key, letter.id) and not marked:
            yield Remark(made, f"{short(made)} gives the first letter the number 0, which is the blank of {short(losses[0], 40)}")


RULES.add(
    "ctc-over-padding",
    "the loss also aligns the letters with what is filled in behind the end: the model is asked to read letters there",
    "give the length of each sequence behind the layers that shorten it: lengths // 2",
)(ctc_over_padding)


RULES.add(
    "real-part-for-magnitude",
    "how much of a frequency is seen depends on where the wave begins: the same sound gives other numbers each time",
    "take the magnitude of the complex numbers: spec.abs()",
)(real_part_alone)


RULES.add(
    "cut-off-before-scaling",
    "of each wave the sign alone is left: loud and soft, and what lies between two crossings of 0, are the same",
    "divide by 32768 first",
)(cut_off_before_scaling)


@RULES.add("smoothed-with-the-future", "each value of the input holds values that come after it: the forecast knows a part of the answer", "smooth with values of the past alone")
def _with_future(program: Program) -> Iterator[Remark]:
    """A series that is smoothed by a window around each value, in a program that forecasts."""
    if not any(_FORECAST.search(source.text) for source in program.sources):
        return
    for call in program.calls():
        name = program.called(call)
        centred = (name == "numpy.convolve" and _says(argument(call, "mode", 2), "same")) or (is_method(call, "rolling") and is_true(argument(call, "center")))
        if name == "numpy.convolve" and _says(argument(call, "mode", 2), "valid"):
            frame = program.frame(call)
            centred = any(
                program.called(one) == "numpy.pad" and isinstance(one, ast.Call) and len(one.args) > 1 and is_binary(one.args[1], ast.FloorDiv) and number_in(one.args[1].right) == 2
                for one in own_nodes(frame)
            )
        centred = centred or (name in _SMOOTHERS and _padded_on_both_sides(flow_of(program), call))
        if centred and not (call.args and _is_simulated(flow_of(program), call)):
            yield Remark(call, f"{short(call)} takes as many values after each one as before it")


def _is_simulated(flow: Flow, call: ast.Call) -> bool:
    """Whether what a call smooths is noise, or was drawn in the same function: it belongs to how the series is simulated."""
    frame = flow.program.frame(call)
    made = [one for origin in flow.origins(call.args[0]) for one in ast.walk(origin) if isinstance(one, ast.Call) and last_word(one.func) in _NOISE]
    return any(isinstance(frame, ast.FunctionDef) and flow.program.frame(one) is frame for one in made) or (isinstance(whole := flow.value(call.args[0]), ast.Call) and last_word(whole.func) in _NOISE)


def _padded_on_both_sides(flow: Flow, call: ast.Call) -> bool:
    """Whether a moving average outside of a model goes over a series that is padded before and after by about half."""
    of = flow.program.class_of(call)
    padded = flow.value(call.args[0]) if call.args else None
    sides = argument(padded, "pad", 1) if isinstance(padded, ast.Call) and flow.program.called(padded) == "torch.nn.functional.pad" else None
    if (of is not None and flow.program.is_module_class(of)) or not isinstance(sides, ast.Tuple) or len(sides.elts) != 2:
        return False
    return all(flow.number(one) != 0 for one in sides.elts) and any(is_binary(one, ast.FloorDiv) for side in sides.elts for one in flow.origins(side))


def _says(node: ast.AST | None, word: str) -> bool:
    return is_string(node) and node.value == word


@RULES.add("made-for-each-part", "the same thing has another number or scale in the held-out part", "give the held-out part what was made for the training")
def _for_each_part(program: Program) -> Iterator[Remark]:
    """A function that makes what it is not given, called for the held-out part without what the training part made."""
    for trained in program.calls():
        local = program.local_function(trained)
        first = program.statement(trained)
        if not isinstance(local, Function) or not isinstance(first, ast.Assign) or first.value is not trained or not isinstance(first.targets[0], ast.Tuple):
            continue
        kept = _made_if_missing(local)
        values = [one for one in returned(local) if isinstance(one, ast.Tuple)]
        place = next((number for value in values for number, one in enumerate(value.elts) if is_name(one) and one.id in kept), None)
        if place is None or not _is_part(trained, TRAINING) or len(first.targets[0].elts) <= place:
            continue
        name = values[0].elts[place]
        for held in program.calls():
            second = program.statement(held)
            given = program.arguments(local, held) if program.local_function(held) is local else None
            if given is None or held is trained or not isinstance(second, ast.Assign) or not _is_part(held, HELD_OUT) or not is_name(name):
                continue
            if name.id not in given and program.scope(held) is program.scope(trained):
                yield Remark(held, f"{short(held)} makes its own {name.id}, and that of {short(trained)} (line {trained.lineno}) is another one")


def _made_if_missing(function: Function) -> set[str]:
    """The parameters that a function makes itself where they are None."""
    given = {one.arg for one in parameters(function)}
    return {
        one.test.left.id for one in own(function, ast.If)
        if isinstance(one.test, ast.Compare) and isinstance(one.test.left, ast.Name) and one.test.left.id in given
        and isinstance(one.test.ops[0], ast.Is) and any(one.test.left.id in names_set(part) for part in one.body)
    }


def _is_part(call: ast.Call, words: re.Pattern[str]) -> bool:
    return any(words.search(name) for one in call.args for name in names_of(one))


@RULES.add("sorted-without-labels", "inputs meet targets of other samples, and nothing can be learned from them", "take the labels in the same order: labels[order]")
def _without_labels(program: Program) -> Iterator[Remark]:
    """Samples taken in the order of their lengths, and returned beside labels in the old one."""
    for function in program.scopes():
        if not isinstance(function, Function):
            continue
        for node in own(function, ast.Assign):
            target = node.targets[0]
            if not is_method(node.value, "sort") or not isinstance(target, ast.Tuple) or len(target.elts) != 2 or not is_name(target.elts[1]):
                continue
            order = target.elts[1].id
            taken = any(
                (isinstance(one, ast.Subscript) and order in names_read(one.slice)) or (isinstance(one, ast.comprehension) and is_read(one.iter, order))
                for one in own_nodes(function)
            )
            labels = [
                one for value in returned(function) if isinstance(value, ast.Tuple) for one in value.elts
                if isinstance(one, ast.Name) and re.fullmatch(r"(labels?|targets?|ys?|classes)(_t|_batch)?", one.id)
            ]
            for label in labels:
                bound = [one for one in own(function, ast.Assign) if label.id in names_set(one)]
                ordered = any(order in names_read(one) for one in bound) or any(
                    isinstance(one, ast.Subscript) and is_read(one.value, label.id) for one in own_nodes(function)
                )
                made_here = bool(bound) and all(one.lineno < node.lineno for one in bound)
                if taken and made_here and not ordered:
                    yield Remark(label, f"{label.id} stays in the old order, and the samples are taken in that of {order} (line {node.lineno})")


@RULES.add("copied-by-workers", "the workers give the same, not different things", "seed by worker in worker_init_fn, or share the data by torch.utils.data.get_worker_info()")
def _copied_by_workers(program: Program) -> Iterator[Remark]:
    """What each worker of a loader has a copy of: a generator of random numbers, or all of an iterable data set."""
    flow = flow_of(program)
    for of in data_sets(program):
        loaders = [
            call for call in program.calls()
            if program.called(call) == LOADER and program.called(flow.value(argument(call, "dataset", 0))) == of.name and _workers(call, flow)
        ]
        if not loaders or "get_worker_info" in ast.unparse(of) or "persistent_workers" in ast.unparse(loaders[0]):
            continue
        getter, runs = (program.method(of, name) for name in ("__getitem__", "__iter__"))
        if getter is not None:
            for node, name in _generators(program, of, getter):
                yield Remark(node, f"each worker of the loader in line {loaders[0].lineno} has a copy of {name}: they draw the same numbers, and the same again in each epoch")
        elif runs is not None and any(isinstance(one, (ast.For, ast.YieldFrom)) for one in own_nodes(runs)):
            whole = (any(isinstance(one, ast.For) and _goes_over_all(program, flow, one.iter) for one in runs.body) or _gives_each(runs)) and not any("get_worker_info" in source.text for source in program.sources)
            maybe = ("rank", "world", "worker", "queue", "while ", "next(", "super(", *(() if whole else ("random", "rand", "shuffle", "shard", "sampl")))
            if not any(word in ast.unparse(of).replace("super().__init__()", "") for word in maybe):
                yield Remark(loaders[0], f"each worker has a copy of {of.name}, and its __iter__ goes over all of it: every sample comes once for each worker")


def _gives_each(runs: Function) -> bool:
    """Whether an iterator gives the elements of what it goes over, and not as many as it draws."""
    known = {one.id for loop in own(runs, ast.For) if isinstance(loop, ast.For) and any(is_own(part) for part in ast.walk(loop.iter)) for one in ast.walk(loop.target) if isinstance(one, ast.Name)}
    for _ in range(3):
        known |= {one.id for node in own(runs, ast.Assign) if names_read(node.value) & known for one in ast.walk(node.targets[0]) if isinstance(one, ast.Name)}
    if any(True for _ in own(runs, ast.YieldFrom)):
        return True
    return any(one.value is not None and names_read(one.value) & known for one in own(runs, ast.Yield))


def _workers(loader: ast.Call, flow: Flow) -> bool:
    """Whether a loader certainly has workers and does nothing of its own when they start."""
    options: list[tuple[str | None, ast.AST]] = []
    for one in (flow.value(word.value) for word in loader.keywords if word.arg is None):
        if is_call(one, "dict"):
            options += [(word.arg, word.value) for word in one.keywords]
        elif isinstance(one, ast.Dict):
            options += [(key.value, value) for key, value in zip(one.keys, one.values, strict=True) if is_string(key)]
        else:
            return False
    given = dict([*((word.arg, word.value) for word in loader.keywords), *options])
    count = flow.number(argument(loader, "num_workers", 5) or given.get("num_workers"))
    if count is None:
        count = next((number(one.argument("num_workers", 5)) for one in computation_of(flow.program).of(LOADER) if one.node is loader), None)
    return count is not None and count > 0 and "worker_init_fn" not in given


def _generators(program: Program, of: ast.ClassDef, getter: Function) -> Iterator[tuple[ast.AST, str]]:
    """The generators of its own that a data set draws from when it gives a sample, and those of the objects that it
    calls then."""
    called = [local for one in own(getter, ast.Call) if (local := program.local_function(one)) is not None]
    by_sample = "\n".join(text_of(one) for one in (getter, *(one for one in called if program.class_of(one) is of)))
    for owner in dict.fromkeys([of, *(found for one in called if (found := program.class_of(one)) is not None)]):
        start = program.method(owner, "__init__")
        drawing = by_sample if owner is of else text_of(owner)
        for node in own(start, ast.Assign) if start is not None else ():
            name, made = text_of(node.targets[0]), node.value
            if is_method(made, "manual_seed"):
                made = made.func.value
            if program.called(made) in GENERATORS and is_own(node.targets[0]) and drawing.count(name) > int(owner is not of):
                yield node, name


def _goes_over_all(program: Program, flow: Flow, node: ast.AST) -> bool:
    """Whether a loop goes over an attribute of its object, or over what a method gives that does."""
    if is_own(node):
        return True
    local = program.local_function(node) if isinstance(node, ast.Call) and is_own(node.func) else None
    return local is not None and any(
        isinstance(one, ast.For) and any(is_own(part) for part in flow.origins(one.iter)) for one in own_nodes(local)
    )


@RULES.add("workers-keep-the-old", "the workers go on with the data set as it was when they started", "make the loader anew after the change, or share the value: torch.zeros(1).share_memory_()")
def _keep_the_old(program: Program) -> Iterator[Remark]:
    """A data set that is changed between epochs, and whose loader keeps its workers."""
    flow = flow_of(program)
    for of in data_sets(program):
        loader = next((
            one for one in program.calls() if program.called(one) == LOADER and program.called(flow.value(argument(one, "dataset", 0))) == of.name
            and argument(one, "persistent_workers") is not None and not is_false(argument(one, "persistent_workers"))
        ), None)
        getter = program.method(of, "__getitem__")
        if loader is None or getter is None or "share_memory_" in text_of(of):
            continue
        read = {one.attr for one in ast.walk(getter) if is_own(one)}
        for setter in (one for one in of.body if isinstance(one, ast.FunctionDef) and not one.name.startswith("__")):
            changed = sorted({target.attr for node in own(setter, ast.Assign) for target in node.targets if is_own(target)} & read)
            call = next((one for one in program.calls() if is_method(one, setter.name) and not is_self(one.func.value) and program.local_function(one) is setter), None)
            if changed and call is not None:
                yield Remark(call, f"{short(call)} sets {changed[0]} in this process, and the loader of line {loader.lineno} keeps its workers, each with a copy of {of.name} from before")
                break


@RULES.add(
    "workers-seeded-the-same-in-each-epoch",
    "the workers are started anew for each epoch, and draw the same random numbers in all of them",
    "seed with torch.initial_seed() % 2**32, which differs by worker and epoch, or pass persistent_workers=True",
)
def _seeded_the_same(program: Program) -> Iterator[Remark]:
    """A `worker_init_fn` that seeds numpy or random with a constant and the worker's number, where samples are drawn from them."""
    flow = flow_of(program)
    for loader in program.calls():
        if program.called(loader) != LOADER or flow.number(argument(loader, "num_workers", 5)) == 0:
            continue
        kept = argument(loader, "persistent_workers")
        start, bound = _started(program, flow, argument(loader, "worker_init_fn", 9))
        if start is None or not (kept is None or is_false(kept)) or "worker_seed" in text_of(bound):
            continue
        for call in own_nodes(start):
            name = program.called(call) if isinstance(call, ast.Call) else ""
            if not isinstance(call, ast.Call) or name not in _SEEDS or not call.args or _CHANGES.search(text_of(start) + text_of(bound)):
                continue
            constant = names_read(call.args[0]) <= {one.arg for one in parameters(start)} | _constants(program)
            drawn = any(_draws(program, of, _SEEDS[name]) for of in data_sets(program)) or _drawn_in_samples(program, _SEEDS[name])
            if constant and drawn:
                yield Remark(call, f"{short(call)} gives a worker the same seed each time it starts")
                break


def _started(program: Program, flow: Flow, given: ast.AST | None) -> tuple[Function | ast.Lambda | None, ast.AST]:
    """The function of the program that workers run when they start, and how it was given."""
    value = flow.value(given) if given is not None else None
    inner = value
    if isinstance(value, ast.Call) and last_word(value.func) == "partial" and value.args:
        inner = value.args[0]
    if isinstance(inner, ast.Lambda):
        return inner, value or inner
    for node in program.everywhere(ast.FunctionDef):
        if isinstance(inner, ast.Name) and node.name == inner.id:
            return node, value or inner
    return None, ast.Constant("")


def _constants(program: Program) -> set[str]:
    """Names that are assigned once, at the top of a module."""
    found: dict[str, int] = {}
    for node in program.everywhere(ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                found[target.id] = found.get(target.id, 0) + (1 if isinstance(program.scope(node), ast.Module) else 2)
    return {name for name, times in found.items() if times == 1} | {"args", "np", "numpy", "random", "int"}


def _drawn_in_samples(program: Program, prefixes: tuple[str, ...]) -> bool:
    """Whether what runs while a data set gives a sample draws from the generator of the process, wherever it is written."""
    for one in computation_of(program).values:
        if one.op in DRAWN and isinstance(one.node, ast.Call) and any(getattr(function, "name", "") == "__getitem__" for function in one.where.functions) and program.called(one.node).startswith(prefixes):
            return True
    return False


def _draws(program: Program, of: ast.ClassDef, prefixes: tuple[str, ...]) -> bool:
    """Whether a data set draws from the generator of the process when it gives a sample."""
    getter = program.method(of, "__getitem__")
    if getter is None:
        return False
    called = [local for one in own_nodes(getter) if isinstance(one, ast.Call) and (local := program.local_function(one)) is not None]
    text = "\n".join(text_of(one) for one in (getter, *called))
    return any(re.search(rf"(?<![\w.]){re.escape(prefix)}(?!seed|Generator|default_rng)\w", text) for prefix in prefixes)


RULES.add(
    "mean-alone-divided",
    "a quotient comes before a difference: what is large or far from 0 stays so",
    "write brackets: (x - x.mean()) / x.std()",
)(mean_alone_divided)


RULES.add(
    "scaled-with-the-horizon",
    "the input tells of what is to be forecast: the score is better than that of a forecast in use",
    "take the statistics of the input alone: past.mean(), past.std()",
)(scaled_with_the_horizon)


RULES.add(
    "place-in-the-pool",
    "samples are labelled that nobody has chosen, some of them once more: the choice is one at random",
    "look up their numbers: labeled += [unlabeled[i] for i in chosen]",
)(place_in_the_pool)


RULES.add(
    "surest-chosen",
    "labels are spent on what the network knows already: it learns less than from samples at random",
    "take those of the largest entropy, or of the smallest probability of the best class",
)(surest_chosen)


RULES.add(
    "columns-share-rows",
    "values of different columns have one vector, and most rows of the table are never used",
    "add to each column what the columns before it need: x + torch.tensor([0, *sizes[:-1]]).cumsum(0)",
)(columns_share_rows)


FINDERS.add("smoothed-with-the-future")(filled_from_the_future)
