"""Sums and means over the batches of an epoch. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from probe.diagnose.code.data.data_flow import (
    evaluates,
    loader_loops,
    loaders_of,
    trains,
)
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Key, Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    argument,
    is_attribute,
    is_binary,
    is_call,
    is_false,
    is_method,
    is_name,
    is_own,
    is_self,
    is_string,
    is_true,
    iterated,
    last_word,
    number_in,
    operands,
    own,
    own_nodes,
    says,
    short,
)
from probe.diagnose.code.torch_losses import gives_mean

RULES = Rules("data")

Loop = ast.For | ast.AsyncFor | ast.While


def added_of(flow: Flow, given: ast.expr) -> str | None:
    """What a value says of a batch: its "mean", or a "count" of its samples; None where that is not known."""
    value: ast.expr | None = given
    for _ in range(8):
        if is_method(value, "item", "detach", "cpu", "float", "double"):
            value = value.func.value
        elif is_call(value, "float") and value.args:
            value = value.args[0]
        elif isinstance(value, ast.Subscript) and ast.unparse(value.slice) == "0":
            value = value.value
        elif isinstance(value, (ast.Name, ast.Attribute)) and flow.key(value) is not None:
            value = flow.held(value)
        else:
            break
    if not isinstance(value, ast.Call):
        return None
    if is_method(value, "sum", "mean"):
        inner = value.args[0] if flow.program.dotted(value.func) is not None and value.args else value.func.value
        while is_method(inner, "float", "type", "int", "long", "to", "double", "cpu", "data"):
            inner = inner.func.value
        found = flow.value(inner)
        compared = isinstance(found, ast.Compare) and isinstance(found.ops[0], ast.Eq)
        compared = compared or is_method(found, "eq")
        return ("count" if value.func.attr == "sum" else "mean") if compared else None
    return "mean" if gives_mean(flow, value) else None


def _counted(flow: Flow, node: ast.expr, loop: ast.For) -> str | None:
    """What a divisor counts of the loader that a loop goes over: its "batches", or its "samples"."""
    if not is_call(node, "len") or len(node.args) != 1:
        return None
    of, loader = node.args[0], iterated(loop)
    if ast.unparse(of) == ast.unparse(loader):
        return "batches"
    if is_attribute(of, "dataset") and ast.unparse(of.value) == ast.unparse(loader):
        return "samples"
    made = loaders_of(flow, loader)
    return "samples" if len(made) == 1 and made[0].args and ast.unparse(made[0].args[0]) == ast.unparse(of) else None


def _batched(flow: Flow, loader: ast.expr) -> bool:
    """Whether no loader that this may be is known to give one sample at a time."""
    return all(
        ((given := argument(one, "batch_size", 1)) is not None and flow.number(given) != 1)
        or any(word.arg in ("batch_sampler", None) for word in one.keywords)
        for one in loaders_of(flow, loader)
    )


def is_place(node: ast.AST) -> bool:
    """Whether an expression is where a sum is kept: a variable, an attribute of self, or an entry of a dict."""
    return is_name(node) or is_own(node) or (isinstance(node, ast.Subscript) and (is_name(node.value) or is_own(node.value)) and is_string(node.slice))


def divisions(flow: Flow, scope: ast.AST) -> Iterator[tuple[ast.AST, str, ast.expr]]:
    """All divisions of a name in a scope: where, which name, by what."""
    for node in own_nodes(scope):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div) and is_place(node.target):
            yield node, ast.unparse(node.target), node.value
        elif is_binary(node, ast.Div):
            around = flow.program.parent.get(node)
            if is_binary(around, ast.Div) and around.left is node:
                continue
            left = node.left
            while isinstance(left, (ast.BinOp, ast.Call)):
                if isinstance(left, ast.BinOp):
                    sides = [one for one in (left.left, left.right) if flow.number(one) is None]
                    if not isinstance(left.op, ast.Mult) or len(sides) != 1:
                        break
                    left = sides[0]
                elif is_call(left, "float") and left.args:
                    left = left.args[0]
                elif is_method(left, "item", "float", "double") and not left.args:
                    left = left.func.value
                else:
                    break
            if is_place(left):
                yield node, ast.unparse(left), node.right


@RULES.add("average-by-wrong-count", "what is reported, compared or stepped on is not the average that it is called", "divide the sum over samples by the samples that were seen, a sum of means by the batches")
def _averaged(program: Program) -> Iterator[Remark]:
    """Sums over batches that are divided by something else than what was added up."""
    flow = flow_of(program)
    for loop in program.everywhere(ast.For):
        sums = {
            ast.unparse(node.target): node for node in ast.walk(loop)
            if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and is_place(node.target)
        }
        loader = iterated(loop)
        if not sums or not _batched(flow, loader):
            continue
        for node, name, divisor in divisions(flow, program.scope(loop)):
            if name not in sums or getattr(node, "lineno", 0) < loop.lineno:
                continue
            counter = sums.get(ast.unparse(divisor))
            if counter is not None:
                yield from _by_counter(flow, node, sums[name], counter, flow.program.family(loader) == "loader" or bool(loaders_of(flow, loader)))
            if not _is_loader(flow, loader, node):
                continue
            added, counted = added_of(flow, sums[name].value), _counted(flow, divisor, loop)
            if added == "mean" and counted == "samples":
                yield Remark(node, f"{name} adds up a mean for each batch and is divided by the number of samples, {short(divisor)}: it is too small by the size of the batch")
            elif added == "count" and counted == "batches":
                yield Remark(node, f"{name} counts samples and is divided by the number of batches, {short(divisor)}: it is too large by the size of the batch")
            elif added == "count" and counted == "samples":
                why = _fewer(flow, loader)
                if why is not None:
                    yield Remark(node, f"{name} is divided by {short(divisor)}, but {why}")


def _is_loader(flow: Flow, loader: ast.expr, division: ast.AST) -> bool:
    """Whether what a loop goes over is a loader: as it is made, or as its data set is asked for its length."""
    if flow.program.family(loader) == "loader" or loaders_of(flow, loader):
        return True
    right = division.right if isinstance(division, ast.BinOp) else getattr(division, "value", None)
    asked = right.args[0] if is_call(right, "len") and len(right.args) == 1 else None
    return is_attribute(asked, "dataset") and ast.unparse(asked.value) == ast.unparse(loader)


def _by_counter(flow: Flow, node: ast.AST, added: ast.AugAssign, counter: ast.AugAssign, known: bool) -> Iterator[Remark]:
    """A sum divided by what was counted beside it: means by samples, or right answers by batches."""
    if flow.program.loops(added)[:1] != flow.program.loops(counter)[:1]:
        return
    what, name, divisor = added_of(flow, added.value), short(added.target), short(counter.target)
    samples = is_size(flow, counter.value)
    if what == "mean" and samples:
        yield Remark(node, f"{name} adds up a mean for each batch and is divided by {divisor}, which counts samples: it is too small by the size of the batch")
    elif what == "count" and flow.number(counter.value) == 1 and known:
        yield Remark(node, f"{name} counts samples and is divided by {divisor}, which counts batches: it is too large by the size of the batch")


def is_size(flow: Flow, node: ast.AST | None) -> bool:
    """Whether an expression is the number of samples (or words) of a batch: `y.size(0)`, `len(y)`, `y.numel()`."""
    value = flow.value(node)
    if is_method(value, "numel", "nelement"):
        return True
    if is_method(value, "size") and value.args:
        return number_in(value.args[0]) == 0
    if isinstance(value, ast.Subscript):
        return is_attribute(value.value, "shape") and number_in(value.slice) == 0
    return is_call(value, "len") and len(value.args) == 1


def _fewer(flow: Flow, loader: ast.expr) -> str | None:
    """Why a loader gives fewer samples than its data set has."""
    made = loaders_of(flow, loader)
    if made and all(is_true(argument(one, "drop_last", 8)) for one in made):
        return "the loader drops its last batch"
    for one in made:
        sampler = flow.value(argument(one, "sampler"))
        if len(made) == 1 and flow.program.called(sampler).endswith("SubsetRandomSampler"):
            return "the loader draws only the part that its sampler lists"
    return None


@RULES.add("sum-never-reset", "what is reported grows from epoch to epoch whatever the model does", "set it to 0 at the start of each epoch")
def _never_reset(program: Program) -> Iterator[Remark]:
    """Sums over an epoch that are made before the epochs and never set back."""
    flow = flow_of(program)
    known = set(loader_loops(flow))
    for inner in program.everywhere(ast.For):
        outer = next((one for one in program.loops(inner) if isinstance(one, Loop)), None)
        if outer is None or not (inner in known or trains(program, inner) or evaluates(flow, inner)):
            continue
        scope = program.scope(inner)
        for node, name, divisor in divisions(flow, scope):
            if _counted(flow, divisor, inner) is None or outer not in program.parents(node) or inner in program.parents(node):
                continue
            if _entry_never_reset(flow, name, inner, outer):
                yield Remark(node, f"{name} is set to 0 before the loop of line {outer.lineno} and never in it: it holds the sum of all epochs, and {short(divisor)} counts one")
                continue
            found = flow.bound.get((scope, name), [])
            inside = [one for one in found if outer in program.parents(one.node)]
            before = [one for one in found if one not in inside]
            only_added = all(one.how == "add" and inner in program.parents(one.node) for one in inside)
            if inside and before and only_added and isinstance(node, ast.BinOp) and all(flow.number(one.value) == 0 for one in before):
                yield Remark(node, f"{name} is set to 0 before the loop of line {outer.lineno} and never in it: it holds the sum of all epochs, and {short(divisor)} counts one")


    yield from _meters_never_reset(flow)
    yield from _own_sums_never_reset(flow)
    yield from _lists_never_emptied(flow)
    yield from _steps_never_emptied(flow)


def _entry_never_reset(flow: Flow, name: str, inner: ast.For, outer: Loop) -> bool:
    """Whether an entry of a dict, which is made before the epochs, is only added to in them."""
    adds = [one for one in ast.walk(inner) if isinstance(one, ast.AugAssign) and isinstance(one.target, ast.Subscript) and ast.unparse(one.target) == name]
    kept = adds[0].target.value if adds and isinstance(adds[0].target, ast.Subscript) else None
    if not isinstance(kept, ast.Name) or added_of(flow, adds[0].value) is None:
        return False
    made = flow.bindings(kept)
    sets = [one for one in ast.walk(outer) if isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Store) and ast.unparse(one.value) == kept.id and not isinstance(flow.program.parent.get(one), ast.AugAssign)]
    return len(made) == 1 and isinstance(made[0].value, ast.Dict) and outer not in flow.program.parents(made[0].node) and not sets and not flow.called_on(flow.key(kept))


def _meters_never_reset(flow: Flow) -> Iterator[Remark]:
    """Objects that keep a mean, made before the epochs, that nothing in an epoch empties."""
    program = flow.program
    known = set(loader_loops(flow))
    for inner in program.everywhere(ast.For):
        outer = next((one for one in program.loops(inner) if isinstance(one, Loop)), None)
        if not (inner in known or trains(program, inner) or evaluates(flow, inner)):
            continue
        for call in ast.walk(inner) if outer is not None else ():
            key = flow.key(call.func.value) if is_method(call) else None
            made = flow.made(key)
            if outer is None or key is None or made is None or outer in program.parents(made) or not is_method(call) or says(call, "time"):
                continue
            uses = [one for one in flow.calls.get(key, []) if outer in program.parents(one) and is_method(one)]
            asked: list[ast.AST] = [one for one in uses if inner not in program.parents(one)]
            if not asked:
                asked = [at for one in flow.reads.get(key, []) if outer in program.parents(one) and inner not in program.parents(one) and isinstance(at := program.parent.get(one), ast.Attribute)]
            if not asked or _emptied(program, flow, key, made, call, uses, outer) is not False:
                continue
            yield Remark(asked[0], f"{short(call.func.value)} is made before the loop of line {outer.lineno}, and nothing in it sets its sums back: {short(asked[0])} is a mean over all epochs")
            break


def _emptied(program: Program, flow: Flow, key: Key, made: ast.Call, update: ast.Call, uses: Sequence[ast.Call], outer: Loop) -> bool | None:
    """Whether a meter is emptied in each turn of a loop; None where it is no meter, or is given away."""
    if any(outer in program.parents(one) and not isinstance(program.parent.get(one), ast.Attribute) for one in flow.reads.get(key, [])):
        return None
    names = {one.func.attr for one in uses if is_method(one)}
    if program.called(made).startswith(("torchmetrics.", "torcheval.metrics.")):
        return "reset" in names if is_method(update, "update") and "compute" in names else None
    of = program.classes.get(program.called(made), [])
    method = program.method(of[0], update.func.attr) if len(of) == 1 and is_method(update) else None
    if method is None or program.is_module_class(of[0]):
        return None
    sums = {one.target.attr for one in own(method, ast.AugAssign) if isinstance(one.op, ast.Add) and is_own(one.target)}
    quotients = [one for one in ast.walk(of[0]) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Div)]
    if not any(len(_own_names(one.left) & sums) and len((_own_names(one.right) & sums) - _own_names(one.left)) for one in quotients):
        return None
    called = [found for name in names if (found := program.method(of[0], name)) is not None]
    return any(is_own(one) and one.attr in sums and isinstance(one.ctx, ast.Store) and not isinstance(program.parent.get(one), ast.AugAssign) for function in called for one in ast.walk(function)) or any(
        is_method(one) and is_self(one.func.value) for function in called for one in ast.walk(function)
    )


def _own_names(node: ast.AST) -> set[str]:
    """The attributes of self in an expression."""
    return {one.attr for one in ast.walk(node) if is_own(one)}


def _own_sums_never_reset(flow: Flow) -> Iterator[Remark]:
    """Sums of an object that `__init__` sets to 0 alone, in a method that goes over all data and runs repeatedly."""
    program = flow.program
    for loop in program.everywhere(ast.For):
        method, of = program.function_of(loop), program.class_of(loop)
        if method is None or of is None or method.name == "__init__" or program.is_module_class(of) or trains(program, method):
            continue
        sums = [one for one in ast.walk(loop) if isinstance(one, ast.AugAssign) and isinstance(one.op, ast.Add) and is_own(one.target)]
        repeated = [call for call in program.calls() if is_method(call, method.name) and program.loops(call) and program.function_of(call) is not method]
        for node, name, _ in divisions(flow, method) if sums and repeated else ():
            found = flow.bound.get((of, name), [])
            added = next((one for one in sums if ast.unparse(one.target) == name), None)
            started = [one for one in found if one.how != "add"]
            only_first = bool(started) and all(program.function_name(one.node) == "__init__" and flow.number(one.value) == 0 for one in started)
            if added is None or loop in program.parents(node) or not only_first or isinstance(node, ast.AugAssign) or added_of(flow, added.value) is None:
                continue
            if not _set_from_outside(program, name.partition(".")[2]) and getattr(node, "lineno", 0) > loop.lineno:
                yield Remark(node, f"{name} is set to 0 in __init__ alone, and {method.name} adds to it each time it runs: {short(node)} is taken over all runs so far")


def _set_from_outside(program: Program, name: str) -> bool:
    """Whether an attribute is set on another object than self, or by its name in a text."""
    return any(one.attr == name and isinstance(one.ctx, ast.Store) and not is_self(one.value) for one in program.everywhere(ast.Attribute)) or any(
        is_call(one, "setattr") or is_method(one, "__init__", "__dict__") for one in program.calls() if not is_call(getattr(one.func, "value", None), "super")
    )


def _lists_never_emptied(flow: Flow) -> Iterator[Remark]:
    """Lists of what each batch gives, made before the epochs, whose mean is taken in each of them."""
    program = flow.program
    for inner in program.everywhere(ast.For):
        outer = next((one for one in program.loops(inner) if isinstance(one, Loop)), None)
        if outer is None or is_call(iterated(inner), "range") or program.loops(outer):
            continue
        yield from _collected_for_ever(flow, inner, outer)
        for call in ast.walk(inner):
            key = flow.key(call.func.value) if is_method(call, "append") and len(call.args) == 1 else None
            found = flow.bound.get(key, []) if key is not None else []
            if key is None or len(found) != 1 or not is_method(call) or outer in program.parents(found[0].node) or not _is_empty_list(found[0].value):
                continue
            if trains(program, inner) and not re.search(r"epoch|batch", key[1]):
                continue  # it may be meant as the mean of all steps so far
            if program.scope(found[0].node) is not program.scope(inner) or added_of(flow, call.args[0]) is None or flow.called_on(key) - {"append"}:
                continue
            uses = [one for one in flow.reads.get(key, []) if outer in program.parents(one) and inner not in program.parents(one)]
            mean = next((around for one in uses if (around := _mean_around(program, one)) is not None), None)
            deleted = any(isinstance(one, ast.Delete) for one in ast.walk(outer))
            if mean is not None and not deleted:
                yield Remark(mean, f"{key[1]} is made before the loop of line {outer.lineno} and never emptied in it: {short(mean)} is a mean over all epochs so far")
                break


def _collected_for_ever(flow: Flow, inner: ast.For, outer: Loop) -> Iterator[Remark]:
    """Lists of predictions, made before the epochs, that a score is taken of in each of them."""
    program = flow.program
    for node in own(program.scope(inner), ast.Call):
        if not program.called(node).startswith("sklearn.metrics.") or outer not in program.parents(node) or inner in program.parents(node):
            continue
        for given in node.args[:2]:
            key = flow.key(given)
            found = [one for one in flow.bound.get(key, []) if one.how != "add"] if key is not None else []
            if key is None or len(found) != 1 or outer in program.parents(found[0].node) or not _is_empty_list(found[0].value) or flow.called_on(key) - {"append", "extend"}:
                continue
            grown = [one for one in flow.bound.get(key, []) if one.how == "add" and inner in program.parents(one.node)]
            grown_by = [one for one in flow.calls.get(key, []) if inner in program.parents(one)]
            if (grown or grown_by) and not any(isinstance(one, ast.Delete) for one in ast.walk(outer)):
                yield Remark(node, f"{key[1]} is made before the loop of line {outer.lineno} and never emptied in it: {short(node)} is the score of all epochs so far")
                return


def _steps_never_emptied(flow: Flow) -> Iterator[Remark]:
    """Lists of a LightningModule that its steps append to and its end of an epoch reads, and that nothing empties."""
    program = flow.program
    for of in program.everywhere(ast.ClassDef):
        if not any((program.dotted(base) or "").endswith("LightningModule") for base in of.bases):
            continue
        for end in of.body:
            part = re.fullmatch(r"on_(validation|test|train)_epoch_end", end.name) if isinstance(end, ast.FunctionDef) else None
            step = program.method(of, "training_step" if part[1] == "train" else f"{part[1]}_step") if part is not None else None
            for call in ast.walk(step) if step is not None else ():
                key = flow.key(call.func.value) if is_method(call, "append") and is_own(call.func.value) else None
                if key is None or len(flow.bound.get(key, [])) != 1 or flow.called_on(key) - {"append"}:
                    continue
                read = next((one for one in flow.reads.get(key, []) if end in program.parents(one)), None)
                deleted = any(isinstance(one, ast.Delete) for one in ast.walk(of))
                if read is not None and not deleted:
                    yield Remark(read, f"{key[1]} is never emptied: {getattr(end, 'name', '')} reads what all epochs so far have appended in {getattr(step, 'name', '')}")
                    return


def _is_empty_list(node: ast.AST | None) -> bool:
    return (isinstance(node, ast.List) and not node.elts) or (is_call(node, "list") and not node.args)


def _mean_around(program: Program, node: ast.AST) -> ast.AST | None:
    """The mean that is taken of all that a list holds."""
    around = program.parent.get(node)
    if isinstance(around, ast.Call) and node in around.args:
        if last_word(around.func) in ("mean", "fmean", "nanmean"):
            return around
        if is_call(around, "sum") and is_binary(divided := program.parent.get(around), ast.Div) and is_call(divided.right, "len"):
            return divided if ast.unparse(divided.right.args[0]) == ast.unparse(node) else None
        if last_word(around.func) in ("tensor", "array", "stack"):
            mean = program.parent.get(program.parent.get(around, around))
            return mean if is_method(mean, "mean") else None
    return None


@RULES.add("last-batch-counted-full", "the last batch of an epoch is smaller: what is reported is wrong by what it lacks", "count the samples that are there: len(y), or y.size(0)")
def _counted_full(program: Program) -> Iterator[Remark]:
    """A count of samples, or a weight of a batch's mean, that is the size that the loader was told."""
    flow = flow_of(program)
    for loop in loader_loops(flow):
        loader = iterated(loop)
        made = loaders_of(flow, loader)
        if any((drop := argument(one, "drop_last", 8)) is not None and not is_false(drop) for one in made):
            continue
        if any(_may_divide(flow, one) for one in made):
            continue
        sizes = [given for one in made if (given := argument(one, "batch_size", 1)) is not None]
        divided = {name for _, name, _ in divisions(flow, program.scope(loop))}
        divisors = {ast.unparse(one) for _, _, one in divisions(flow, program.scope(loop))}
        for node in ast.walk(loop):
            if not isinstance(node, ast.AugAssign) or not isinstance(node.op, ast.Add):
                continue
            name = ast.unparse(node.target)
            counted = node.value if name in divisors and _is_told_size(flow, node.value, loader, sizes) else None
            if name in divided and is_binary(node.value, ast.Mult):
                counted = next((one for one, other in operands(node.value) if _is_told_size(flow, one, loader, sizes) and added_of(flow, other) == "mean"), None)
            if counted is not None:
                yield Remark(node, f"{short(node)} takes {short(counted)} samples for each batch, and the last one has fewer: the loader keeps it")
                break


def _may_divide(flow: Flow, loader: ast.Call) -> bool:
    """Whether the size of a batch may well divide the size of the data: a round number, or one that is known to."""
    size = flow.number(argument(loader, "batch_size", 1))
    if size is None or size <= 0:
        return False
    made = [one for one in flow.origins(loader.args[0]) if is_method(one, "randn", "rand", "randint", "zeros") and one.args] if loader.args else []
    lengths = [number for one in made if isinstance(one, ast.Call) for given in one.args if (number := flow.number(given)) is not None]
    return 10_000 % size == 0 or any(number % size == 0 and number > size for number in lengths)


def _is_told_size(flow: Flow, node: ast.expr, loader: ast.expr, sizes: Sequence[ast.expr]) -> bool:
    """Whether an expression is the size of batches that a loader was told."""
    if is_attribute(node, "batch_size") and ast.unparse(node.value) == ast.unparse(loader):
        return True
    same = [ast.unparse(one) == ast.unparse(node) for one in sizes]
    return bool(same) and all(same) and not isinstance(node, ast.Constant)


@RULES.add("last-batch-alone", "what is reported, or what chooses the best epoch, is the score of one batch", "add up the batches' values in the loop, and divide after it")
def _last_batch(program: Program) -> Iterator[Remark]:
    """The score of a batch that the next one writes over, and that is read after the loop for that of the data."""
    flow = flow_of(program)
    for loop in program.everywhere(ast.For):
        if any(isinstance(one, (ast.Break, ast.Return, ast.Yield)) for one in ast.walk(loop)) or trains(program, loop) or not evaluates(flow, loop):
            continue
        scope = program.scope(loop)
        for node in ast.walk(loop):
            target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
            if not isinstance(node, ast.Assign) or not isinstance(target, ast.Name) or all(added_of(flow, one) is None for one in _factors(node.value)):
                continue
            if any(isinstance(one, (ast.For, ast.While, ast.If)) and one is not loop for one in _between(program, node, loop)):
                continue
            reads = flow.reads.get((scope, target.id), [])
            within = [one for one in reads if loop in program.parents(one)]
            after = [one for one in reads if getattr(one, "lineno", 0) > (loop.end_lineno or 0)]
            others = [one for one in flow.bound.get((scope, target.id), []) if loop in program.parents(one.node) and one.node is not node]
            first = min(after, key=lambda one: getattr(one, "lineno", 0), default=None)
            again = [one for one in flow.bound.get((scope, target.id), []) if first is not None and (loop.end_lineno or 0) < getattr(one.node, "lineno", 0) < getattr(first, "lineno", 0)]
            if first is not None and not within and not others and not again:
                yield Remark(node, f"{short(node)} is set anew for each batch: line {getattr(first, 'lineno', 0)} reads {target.id} of the last batch alone")


def _factors(node: ast.expr) -> tuple[ast.expr, ...]:
    return (node.left, node.right) if is_binary(node, ast.Mult) else (node,)


def _between(program: Program, node: ast.AST, loop: ast.AST) -> Iterator[ast.AST]:
    for around in program.parents(node):
        if around is loop:
            return
        yield around
