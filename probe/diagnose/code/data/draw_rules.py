"""Random draws: the same numbers in each step, copies drawn before a split, inputs sorted without their targets. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import GENERATORS, LOADER, data_sets, loaders_of
from probe.diagnose.code.data.window_rules import cut_in_two, parted
from probe.diagnose.code.finders.rows.same_seed import one_seed_for_two_parts
from probe.diagnose.code.finders.rows.support_rows import support_in_the_query
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.loop.loss_rules import backwards
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    Function,
    argument,
    is_attribute,
    is_binary,
    is_call,
    is_method,
    is_name,
    is_own,
    is_true,
    last_word,
    names_read,
    names_set,
    own,
    own_nodes,
    pairs_of,
    parameters,
    returned,
    short,
    text_of,
)

RULES = Rules("data")
_TARGETS = re.compile(r"^(target|targets|label|labels|y|ys|classes|annotations?)$")
_SPLITS = re.compile(r"split|fold", re.I)
_DRAWS = re.compile(r"^(torch\.(rand|randn|randint|randperm|normal|bernoulli)|random\.(?!Random|seed)\w+|numpy\.random\.(?!default_rng|RandomState|seed)\w+)(_like)?$")
_RESAMPLERS = ("fit_resample", "resample", "oversample", "over_sample", "upsample")


@RULES.add("seeded-in-each-draw", "each step gets the same random numbers: most of what could be drawn never is", "make the generator once, outside of the function")
def _seeded_again(program: Program) -> Iterator[Remark]:
    """A function that makes a generator with a fixed seed and draws from it, called in each step of the training."""
    flow = flow_of(program)
    for getter in program.everywhere(ast.FunctionDef):
        made = _generator_of(flow, getter, each=True) if getter.name == "__getitem__" else None
        if made is not None:
            yield Remark(made, f"{short(made)} makes the generator anew for each sample: all samples get the same random numbers")
    seeded = {function: made for function in program.everywhere(ast.FunctionDef) if (made := _fixed_generator(flow, function)) is not None}
    if not seeded:
        return
    remarked: set[ast.AST] = set()
    for collating in _collating(program, flow):
        for one in [collating, *(local for call in own(collating, ast.Call) if (local := program.local_function(call)) is not None)]:
            if isinstance(one, ast.FunctionDef) and one in seeded and one not in remarked:
                remarked.add(one)
                yield Remark(seeded[one], f"{short(seeded[one])} makes the generator anew for each batch ({collating.name} collates them): it draws the same numbers every time")
    for backward, _ in backwards(program):
        for loop in flow.loops(backward)[:1]:
            for call in (one for one in ast.walk(loop) if isinstance(one, ast.Call)):
                function = program.local_function(call)
                if not isinstance(function, ast.FunctionDef) or function not in seeded or function in remarked:
                    continue
                made = seeded[function]
                if program.without_gradient(call) or _now_and_then(program, call, loop):
                    continue
                remarked.add(function)
                yield Remark(made, f"{short(made)} makes the generator anew in each call of {function.name}(), which runs in each step (line {call.lineno}): it draws the same numbers every time")


def _collating(program: Program, flow: Flow) -> Iterator[Function]:
    """The functions, and the `__call__` of objects, that loaders join their samples with."""
    for call in program.calls():
        given = argument(call, "collate_fn", 7) if program.called(call) == LOADER else None
        made = flow.value(given)
        of = program.classes.get(program.called(made), [])
        functions = program.functions.get(made.id, []) if isinstance(made, ast.Name) else []
        found: Function | None = program.method(of[0], "__call__") if len(of) == 1 else functions[0] if len(functions) == 1 else None
        if found:
            yield found


def _fixed_generator(flow: Flow, function: ast.FunctionDef) -> ast.Call | None:
    """A generator with a seed that no argument of the function decides, from which the function draws."""
    return None if function.name.startswith("__") else _generator_of(flow, function)


def _generator_of(flow: Flow, function: ast.FunctionDef, each: bool = False) -> ast.Call | None:
    """The generator; `each`: what is drawn for one sample, which need not depend on an argument."""
    given = {one.arg for one in parameters(function)} - {"self", "cls"}
    for node in own(function, ast.Assign):
        made = node.value
        if not is_name(node.targets[0]) or not isinstance(made, ast.Call):
            continue
        generator = flow.program.called(made.func.value if is_method(made, "manual_seed") else made)
        given_a_seed = is_method(made, "manual_seed") or generator != "torch.Generator"  # which takes a device
        if generator not in GENERATORS or not made.args or not given_a_seed:
            continue
        seed = made.args[0]
        changes = any(is_own(one) and _is_set_again(flow, one) for one in ast.walk(seed))
        told = [seed, *(value for one in own(function, ast.Assign) for target, value in pairs_of(one) if is_name(target) and target.id in names_read(seed))]
        changes = changes or any(names_read(one) & given or any(isinstance(each, ast.Call) for each in ast.walk(one)) for one in told)
        if not changes:
            # What is drawn for each batch; a fixed projection of a size of its own is meant to stay.
            of_batch = given | {target.id for one in own(function, ast.Assign) for target, value in pairs_of(one) if is_name(target) and names_read(value) & given}
            for one in own_nodes(function):
                if isinstance(one, ast.Call) and one is not made and node.targets[0].id in names_read(one) and (names_read(one) & of_batch or (each and _varies(flow.program, one))):
                    return made
    return None


def _varies(program: Program, draw: ast.Call) -> bool:
    """Whether a draw is added to something, or decides or places something: a projection may be drawn once for all."""
    for around in program.parents(draw):
        if isinstance(around, (ast.If, ast.IfExp, ast.Compare, ast.Slice)) or is_binary(around, ast.Add, ast.Sub):
            return True
        if isinstance(around, ast.stmt):
            return False
    return False


def _is_set_again(flow: Flow, node: ast.AST) -> bool:
    """Whether an attribute is given a value in more than one place: then its seed may change."""
    return len(flow.values(flow.key(node))) != 1


def _now_and_then(program: Program, call: ast.AST, loop: ast.AST) -> bool:
    """Whether a call of a loop stands under a condition: an evaluation may well draw the same each time."""
    for around in program.parents(call):
        if around is loop:
            return False
        if isinstance(around, (ast.If, ast.IfExp)):
            return True
    return True


@RULES.add("copied-before-the-split", "copies of one sample are in the training and in the held-out part: the score is that of samples seen", "split first, and resample the training part alone")
def _copied(program: Program) -> Iterator[Remark]:
    """Samples drawn with replacement, or copied and changed, and split into parts only afterwards."""
    flow = flow_of(program)
    for scope in program.scopes():
        for node in own(scope, ast.Assign):
            names = names_set(node)
            if not names or not _with_copies(flow, node.value):
                continue
            for later in program.after(node):
                split = next((one for one in ast.walk(later) if isinstance(one, ast.Call) and _parts(program, one) and names & names_read(one)), None)
                if split is not None:
                    yield Remark(split, f"{short(split)} divides what {short(node.value)} (line {node.lineno}) has copied: copies of one sample fall into both parts")
                    break


@RULES.add("augmentation-cached", "each sample has one random change for the whole training, as if there were none", "cache what is read, and draw the change each time")
def _cached(program: Program) -> Iterator[Remark]:
    """Samples that are changed at random and kept when they are asked for the first time."""
    flow = flow_of(program)
    for of in data_sets(program):
        getter = program.method(of, "__getitem__")
        if getter is None or len(getter.args.args) < 2:
            continue
        index = getter.args.args[1].arg
        for node in own(getter, ast.Assign):
            place = node.targets[0]
            if not isinstance(place, ast.Subscript) or not is_own(place.value) or not is_name(place.slice, index) or not program.parents(node):
                continue
            asked = any(isinstance(around, ast.If) and text_of(place.value) in text_of(around.test) for around in program.parents(node))
            drawn = _random_source(flow, node.value, 4) if asked else None
            if drawn is not None:
                yield Remark(node, f"{short(node)} keeps what {short(drawn)} (line {getattr(drawn, 'lineno', 0)}) has drawn for the first epoch")


def _random_source(flow: Flow, node: ast.AST, depth: int) -> ast.Call | None:
    """The random draw that an expression depends on: in a function or object that is called, or in the data set that
    a sample is taken of."""
    program = flow.program
    for one in flow.origins(node):
        if isinstance(one, ast.Call):
            if _DRAWS.match(program.called(one)) and argument(one, "generator") is None:
                return one
            local = program.local_function(one)
            for part in own(local, ast.Call) if local is not None else ():
                if _DRAWS.match(program.called(part)) and argument(part, "generator") is None:
                    return part
        elif isinstance(one, ast.Subscript) and is_own(one.value) and depth:
            for made in _data_sets_of(flow, one.value, depth):
                of = program.classes.get(program.called(made), [])
                getter = program.method(of[0], "__getitem__") if len(of) == 1 else None
                for inner in own_nodes(getter) if getter is not None else ():
                    drawn = _random_source(flow, inner, depth - 1) if isinstance(inner, (ast.Call, ast.Subscript)) else None
                    if drawn is not None:
                        return drawn
    return None


def _data_sets_of(flow: Flow, node: ast.AST, depth: int) -> list[ast.expr]:
    """All calls whose result an attribute may hold, also where a variable is assigned more than once."""
    found: list[ast.expr] = []
    for one in [*flow.possible(node), *flow.passed(flow.held(node) or node)]:
        if isinstance(one, ast.Name) and depth:
            found += [value for value in flow.values(flow.key(one)) if value is not None]
        else:
            found.append(one)
    return [one for one in found if isinstance(one, ast.Call)]


def _parts(program: Program, call: ast.Call) -> bool:
    """Whether a call divides samples into those of the training and those that are held out."""
    local = program.local_function(call)
    return _splits(call) or cut_in_two(program, call) or (local is not None and parted(program, call, local) is not None)


def _splits(call: ast.Call) -> bool:
    return bool(_SPLITS.search(last_word(call.func))) and not (is_method(call, "split") and (isinstance(call.func.value, ast.Constant) or len(call.args) < 2))


def _with_copies(flow: Flow, value: ast.AST) -> bool:
    """Whether a call makes new samples of those that it is given, by a draw with replacement."""
    if not isinstance(value, ast.Call) or not value.args:
        return False
    function = flow.program.local_function(value)
    if flow.program.called(value) in ("pandas.concat", "numpy.concatenate", "numpy.vstack") and isinstance(value.args[0], (ast.List, ast.Tuple)):
        return any(_drawn_again(flow, one) for one in value.args[0].elts)
    if function is None:
        return is_method(value, "fit_resample") or is_name(value.func, *_RESAMPLERS)
    given = {one.arg for one in parameters(function)}
    if _adds_changed(function, given):
        return True
    return any(
        names_read(one.value) & given and _picks_again(flow, one.slice)
        for made in returned(function) if made is not None for one in ast.walk(made) if isinstance(one, ast.Subscript)
    )


def _drawn_again(flow: Flow, node: ast.expr) -> bool:
    """Whether rows are drawn with replacement: `resample(rows, n_samples=n)`, `rows.sample(n, replace=True)`."""
    call = flow.value(node)
    replaced = argument(call, "replace") if isinstance(call, ast.Call) else None
    if flow.program.called(call) == "sklearn.utils.resample":
        return replaced is None or is_true(replaced)
    return is_method(call, "sample") and replaced is not None and is_true(replaced)


def _adds_changed(function: Function, given: set[str]) -> bool:
    """Whether a function returns what it is given with changed copies behind it, and targets that are repeated."""
    # Targets of the copies are repeated, or all one class.
    joined = [one for value in returned(function) if isinstance(value, ast.Tuple) for one in value.elts if is_method(one, "cat", "concatenate", "concat") and isinstance(one, ast.Call) and one.args]
    repeated = changed = False
    for call in joined:
        parts = _parts_of(function, call.args[0])
        names = [one.id for one in parts if isinstance(one, ast.Name)]
        first = names[0] if names and isinstance(parts[0], ast.Name) and names[0] in given else None
        if first is None or len(parts) < 2:
            continue
        filled = all(is_method(one, "ones", "zeros", "full", "ones_like", "zeros_like", "full_like") for one in parts[1:])
        repeated |= names.count(first) == len(parts) or filled
        changed |= not filled and any(not isinstance(one, ast.Name) or one.id != first for one in parts[1:])
    return repeated and changed


def _parts_of(function: Function, node: ast.AST) -> list[ast.expr]:
    """The elements of a list that is written out, with those that are appended to it."""
    if isinstance(node, (ast.List, ast.Tuple)):
        return node.elts
    if not isinstance(node, ast.Name):
        return []
    begun = [value for one in own(function, ast.Assign) for target, value in pairs_of(one) if is_name(target, node.id) and isinstance(value, ast.List)]
    added = [one.args[0] for one in own(function, ast.Call) if is_method(one, "append") and is_name(one.func.value, node.id) and len(one.args) == 1]
    return [*begun[0].elts, *added] if len(begun) == 1 else []


def _picks_again(flow: Flow, index: ast.AST) -> bool:
    """Whether an index names a row more than once: by a draw with replacement, or by one behind other numbers."""
    parts = list(flow.origins(index))
    joined = any(is_method(one, "cat", "concatenate", "concat", "hstack") for one in parts)
    return any(_replaces(one) or (joined and is_method(one, "randint", "integers")) for one in parts)


def _replaces(node: ast.AST) -> bool:
    """Whether a call picks indices so that one may come more than once."""
    return (is_method(node, "choice") and is_true(argument(node, "replace"))) or is_method(node, "repeat", "repeat_interleave", "tile")


@RULES.add("sorted-apart", "inputs meet targets of other samples, and nothing can be learned from them", "take both in the same order: labels[order]")
def _sorted_apart(program: Program) -> Iterator[Remark]:
    """A function that takes its inputs in a sorted order and keeps their targets in the old one."""
    for function in program.scopes():
        if not isinstance(function, Function):
            continue
        given = {one.arg for one in parameters(function)}
        targets = [name for name in given if _TARGETS.match(name)]
        if len(targets) != 1:
            continue
        for made in own(function, ast.Assign):
            sorts = any(is_method(one, "argsort") for one in ast.walk(made.value))
            order = made.targets[0].id if sorts and is_name(made.targets[0]) else None
            if order is None or any(order in names_read(one) for one in own_nodes(function) if isinstance(one, (ast.Call, ast.Subscript, ast.ListComp)) and targets[0] in names_read(one)):
                continue
            later = program.after(made)
            taken = {name for one in later for name in _in_order(one, order) if name in given}
            kept = next((one for one in later if _keeps(one, targets[0], taken)), None)
            if taken and kept is not None:
                yield Remark(kept, f"{targets[0]} stays in the old order, and {', '.join(sorted(taken))} is taken in that of {order} (line {made.lineno})")


@RULES.add("sorted-alone", "inputs meet targets of other samples, and nothing can be learned from them", "sort the samples before they are taken apart: batch.sort(key=...)")
def _sorted_alone(program: Program) -> Iterator[Remark]:
    """A list that is taken from samples and sorted, beside another list from the same samples that is not."""
    for function in program.scopes():
        if not isinstance(function, Function):
            continue
        parts = {name: source for node in own(function, ast.Assign) for name, source in _taken_apart(node)}
        sorts: dict[str, ast.Call] = {}
        for node in own(function, ast.Call):
            into = program.parent.get(node)
            if is_method(node, "sort") and is_name(node.func.value):
                sorts[node.func.value.id] = node
            elif is_call(node, "sorted") and node.args and is_name(node.args[0]) and isinstance(into, ast.Assign) and is_name(into.targets[0], node.args[0].id):
                sorts[node.args[0].id] = node
        given = [names_read(one) for one in returned(function) if one is not None]
        for name, call in sorts.items():
            source = parts.get(name)
            others = [one for one, of in parts.items() if of == source and one not in sorts and any(one in read and _reaches(function, name, read) for read in given)]
            if source is not None and source not in sorts and others:
                yield Remark(call, f"{short(call)} sorts {name}, and {', '.join(sorted(others))}, taken from the same {source}, keeps the old order")


def _taken_apart(node: ast.Assign) -> Iterator[tuple[str, str]]:
    """The lists that an assignment takes from a list of samples, and that list: `[x for x, y in batch]`, `zip(*batch)`."""
    target, value = node.targets[0], node.value
    starred = value.args[0] if is_call(value, "zip") and value.args else None
    if isinstance(target, ast.Tuple) and isinstance(starred, ast.Starred) and is_name(starred.value):
        yield from ((one.id, starred.value.id) for one in target.elts if is_name(one))
    for made in ast.walk(value):
        source = made.generators[0].iter if isinstance(made, ast.ListComp) and not made.generators[0].ifs else None
        if is_name(target) and is_name(source):
            yield target.id, source.id


def _reaches(function: ast.AST, name: str, read: set[str]) -> bool:
    """Whether one of these variables is that one, or is made from it."""
    if name in read:
        return True
    return any(
        is_name(target) and target.id in read and name in names_read(node.value) and target.id != name
        for node in own(function, ast.Assign) for target in node.targets
    )


def _in_order(statement: ast.stmt, order: str) -> Iterator[str]:
    """The variables that a statement takes in an order: `x[order]`, `[x[i] for i in order]`."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Subscript) and is_name(node.value) and is_name(node.slice, order):
            yield node.value.id
        elif isinstance(node, ast.ListComp) and is_name(node.generators[0].iter, order) and isinstance(node.elt, ast.Subscript) and is_name(node.elt.value):
            yield node.elt.value.id


def _keeps(statement: ast.stmt, target: str, taken: set[str]) -> bool:
    """Whether a statement keeps the targets as they are: as an attribute, or returned beside what was taken."""
    if isinstance(statement, ast.Assign) and is_own(statement.targets[0]):
        value: ast.AST = statement.value
        if isinstance(value, ast.Call) and len(value.args) == 1:
            value = value.args[0]
        return is_name(value, target)
    if isinstance(statement, ast.Return) and isinstance(statement.value, (ast.Tuple, ast.Call)):
        parts = statement.value.elts if isinstance(statement.value, ast.Tuple) else statement.value.args
        return any(is_name(one, target) for one in parts) and any(is_name(one, *taken) or isinstance(one, ast.Subscript) for one in parts)
    return False


@RULES.add("divided-by-the-whole-data-set", "what is reported is too small, by the share of the data set that the sampler draws", "divide by len(loader.sampler), or count the samples that were seen")
def _whole_data_set(program: Program) -> Iterator[Remark]:
    """A sum over the samples that a sampler draws of a part of the data set, divided by the size of all of it."""
    flow = flow_of(program)
    loaders = [one for one in program.calls() if program.called(one) == LOADER]
    parts = [one for one in loaders if program.called(flow.value(argument(one, "sampler"))).endswith("SubsetRandomSampler")]
    if not parts or len(parts) < len(loaders):
        return
    for node in program.everywhere(ast.BinOp):
        right = node.right if isinstance(node.op, ast.Div) else None
        of = right.args[0] if is_call(right, "len") and right.args else None
        if not is_attribute(of, "dataset") or program.family(of.value) not in ("loader", None):
            continue
        added = any(isinstance(one, ast.AugAssign) and text_of(one.target) == text_of(node.left) for one in own_nodes(program.scope(node)))
        if not added or len(loaders_of(flow, of.value)) != 1:  # average-by-wrong-count sees those
            yield Remark(node, f"{short(node)} divides by the size of the whole data set, and the sampler of the loader (line {parts[0].lineno}) draws a part of it")


RULES.add(
    "support-in-the-query",
    "the model is asked about rows that it has just been given with their labels: the episode is easier than it says, and the score is too high",
    "draw both at once without replacement, and cut the draw in two: picked[:shots], picked[shots:]",
)(support_in_the_query)


RULES.add("one-seed-for-two-parts", "what is evaluated begins with the draws of what is trained on: samples of the one are in the other", "give each part a seed of its own")(one_seed_for_two_parts)
