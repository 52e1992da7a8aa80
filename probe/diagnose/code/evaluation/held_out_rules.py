"""Held-out data that an evaluation does not look at, and what it is told of the answer. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import HELD_OUT, LOADER, TRAINING, data_sets, evaluates, trains
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    ORDERS,
    Function,
    argument,
    compares,
    is_attribute,
    is_method,
    is_name,
    is_own,
    is_read,
    is_true,
    iterated,
    last_word,
    names_read,
    own,
    parameters,
    short,
)

RULES = Rules("data")
_FOLDS = frozenset({"KFold", "StratifiedKFold", "GroupKFold", "StratifiedGroupKFold", "ShuffleSplit", "StratifiedShuffleSplit", "TimeSeriesSplit", "RepeatedKFold", "RepeatedStratifiedKFold", "GroupShuffleSplit"})


@RULES.add("held-out-part-never-read", "the score is that of samples that the model was trained on", "give the evaluation the held-out part")
def _never_read(program: Program) -> Iterator[Remark]:
    """An evaluation that is made of the training part, beside a held-out part that nothing reads."""
    flow = flow_of(program)
    yield from _folds(program, flow)
    yield from _other_loader(program, flow)
    for scope in program.scopes():
        made = [(node, node.targets[0]) for node in own(scope, ast.Assign) if len(node.targets) == 1]
        unread = [(name, node) for node, target in made for name in _set_by(target) if _held(name.id) and _is_unread(flow, name)]
        for node, target in made if unread else ():
            if not is_name(target) or not _held(target.id) or not isinstance(node.value, ast.Call):
                continue
            loaders = [name for name, one in unread if program.called(one.value) == LOADER]
            if not _is_data(program, node.value) and not loaders:
                continue
            given = [one.id for one in (*node.value.args, *(word.value for word in node.value.keywords)) if isinstance(one, ast.Name)]
            trained = next((one for one in given if TRAINING.search(one) and not HELD_OUT.search(one)), None)
            earlier = [(name, one) for name, one in unread if name.id != target.id and one.lineno < node.lineno]
            other = next((one for _, one in earlier), None)
            name = next((name.id for name, _ in earlier), "")
            again = trained is not None and any(one is not node and is_name(place) and not _held(place.id) and trained in names_read(one.value) for one, place in made)
            again = again or (bool(loaders) and trained is not None and sum(1 for one in own(scope, ast.Name) if is_read(one, trained)) > 1)
            if other is not None and again and not any(_held(one) for one in given):
                yield Remark(node, f"{target.id} is made of {trained}, and {name} (line {other.lineno}) is never read: the evaluation goes over the training part")


def _folds(program: Program, flow: Flow) -> Iterator[Remark]:
    """Folds whose held-out numbers nothing reads, where the others are read more than once."""
    for loop in program.everywhere(ast.For):
        call = loop.iter.args[0] if isinstance(loop.iter, ast.Call) and loop.iter.args and is_name(loop.iter.func, "enumerate") else loop.iter
        target = loop.target.elts[-1] if isinstance(loop.target, ast.Tuple) and call is not loop.iter else loop.target
        if not is_method(call, "split") or program.called(flow.value(call.func.value)).rpartition(".")[2] not in _FOLDS:
            continue
        if isinstance(target, ast.Tuple) and len(target.elts) == 2 and all(isinstance(one, ast.Name) for one in target.elts):
            trained, held = (sum(1 for one in ast.walk(loop) if is_read(one, name.id)) for name in target.elts if isinstance(name, ast.Name))
            if not held and trained > 1 and not all(is_name(one, "_") for one in target.elts[1:]):
                yield Remark(loop, f"{ast.unparse(target.elts[1])}, the held-out part of each fold, is never read: both parts are taken by {ast.unparse(target.elts[0])}")


def _other_loader(program: Program, flow: Flow) -> Iterator[Remark]:
    """An evaluation over the loader of the training, in a class or function that keeps another one and never reads it."""
    for loop in program.everywhere(ast.For):
        loader = iterated(loop)
        name = last_word(loader)
        if not TRAINING.search(name) or HELD_OUT.search(name) or trains(program, loop) or not evaluates(flow, loop):
            continue
        function, of = program.function_of(loop), program.class_of(loop)
        if function is None or TRAINING.search(function.name):
            continue
        kept: list[str] = []
        if is_own(loader) and of is not None:
            kept = [one[1].removeprefix("self.") for one in flow.bound if one[0] is of and one[1].startswith("self.")]
            kept = [one for one in kept if not flow.attributes.get(one)]
        elif is_name(loader):
            kept = [one.arg for one in parameters(function) if not flow.reads.get((function, one.arg))]
        unread = next((one for one in kept if _held(one) and one.endswith(name.rpartition("_")[2])), None)
        again = any(one is not loop and program.class_of(one) is of and last_word(iterated(one)) == name and trains(program, one) for one in program.everywhere(ast.For))
        if unread is not None and again:
            yield Remark(loop, f"{function.name} goes over {short(loader)}, which is trained on, and {unread} is never read")


def _set_by(target: ast.expr) -> list[ast.Name]:
    return [one for one in (target.elts if isinstance(target, ast.Tuple) else [target]) if isinstance(one, ast.Name)]


def _held(name: str) -> bool:
    return HELD_OUT.search(name) is not None and TRAINING.search(name) is None


def _is_unread(flow: Flow, name: ast.Name) -> bool:
    """Whether nothing reads a variable, which no other file can read either."""
    key, program = flow.key(name), flow.program
    shared = isinstance(program.scope(name), ast.Module) and len(program.sources) > 1
    return key is not None and not flow.reads.get(key) and not shared


def _is_data(program: Program, call: ast.Call) -> bool:
    """Whether a call makes a loader or a data set."""
    of = program.classes.get(program.called(call), [])
    return program.called(call) == LOADER or program.called(call).startswith("torch.utils.data.") or any(one in of for one in data_sets(program))


@RULES.add("evaluation-ends-early", "the score is that of the first batch alone", "move the return out of the loop")
def _ends_early(program: Program) -> Iterator[Remark]:
    """An evaluation whose loop adds up or collects what each batch gives, and ends in its first turn."""
    flow = flow_of(program)
    for loop in program.everywhere(ast.For):
        last = loop.body[-1]
        if isinstance(last, (ast.With, ast.AsyncWith)):
            last = last.body[-1]
        if not isinstance(last, ast.Return) or last.value is None or trains(program, loop) or not evaluates(flow, loop) or any(isinstance(one, ast.Continue) for one in ast.walk(loop)):
            continue
        added = {one.target.id for one in ast.walk(loop) if isinstance(one, ast.AugAssign) and isinstance(one.target, ast.Name)}
        added |= {one.func.value.id for one in ast.walk(loop) if is_method(one, "append", "extend") and isinstance(one.func.value, ast.Name)}
        if kept := added & names_read(last.value):
            yield Remark(last, f"the return stands inside the loop that gathers {sorted(kept)[0]}: the evaluation ends after its first batch")


@RULES.add("held-out-part-resampled", "the score is that of other shares of the classes than the data have", "go over the held-out part as it is: DataLoader(held_out, batch_size)")
def _resampled(program: Program) -> Iterator[Remark]:
    """Held-out data that are drawn by weights, or with replacement."""
    flow = flow_of(program)
    for call in program.calls():
        given = argument(call, "sampler", 3) if program.called(call) == LOADER else None
        sampler = flow.value(given)
        name = program.called(sampler).rpartition(".")[2]
        drawn = name == "WeightedRandomSampler" or (name == "RandomSampler" and isinstance(sampler, ast.Call) and is_true(argument(sampler, "replacement", 1)))
        data = argument(call, "dataset", 0) if drawn else None
        if data is None:
            continue
        statement = program.statement(call)
        names = [last_word(one) for one in statement.targets] if isinstance(statement, ast.Assign) else []
        names += [last_word(one) for one in (data, *flow.passed(data))]
        if any(_held(one) for one in names if one):
            yield Remark(call, f"{short(call)} draws held-out samples by {name}: some are counted often, and others never")


@RULES.add("option-never-read", "both parts are made alike: what the option asks for is not done", "read the option where it should decide, or leave it out")
def _option(program: Program) -> Iterator[Remark]:
    """An option of a data set that its parts are given differently, and that nothing in it reads."""
    for of in data_sets(program):
        start = program.method(of, "__init__")
        if start is None or start.args.kwarg is not None or len(program.classes.get(of.name, [])) != 1:
            continue
        calls = [call for call in program.calls() if program.called(call) == of.name]
        given = [program.arguments(start, call) for call in calls]
        read = {one.id for one in ast.walk(start) if is_read(one)}
        for one in parameters(start)[1:]:
            asked = {ast.dump(words[one.arg]) if one.arg in words else "" for words in given}
            plain = all(isinstance(words.get(one.arg), ast.Constant) for words in given if one.arg in words)
            if one.arg not in read and len(asked) > 1 and plain and "locals" not in read and not one.arg.startswith("_"):
                call = next(call for call, words in zip(calls, given, strict=True) if one.arg in words)
                yield Remark(call, f"{short(call)} gives {one.arg}, which {of.name} never reads: all its parts are made alike")


@RULES.add("answer-given-in-the-evaluation", "the score is that of a model that is shown part of the answer: alone it is worse", "give 0 for the share of steps that are shown the answer, where the model is evaluated")
def _shown(program: Program) -> Iterator[Remark]:
    """A network that takes the true last step at random, called in an evaluation with the share of the training."""
    flow = flow_of(program)
    for of in program.everywhere(ast.ClassDef):
        forward = program.method(of, "forward") if program.is_module_class(of) else None
        share = _drawn_share(forward) if forward is not None else None
        for call in program.calls() if forward is not None and share is not None else ():
            made = flow.value(call.func)
            kind = program.kind(call.func)
            if (kind is None or kind.name != of.name) and program.called(made) != of.name:
                continue
            given = program.arguments(forward, call) if forward is not None else {}
            function = program.function_of(call)
            targets = _targets_of(forward, share.arg) if forward is not None and share is not None else set()
            if share is None or share.arg in given or any(word.arg is None for word in call.keywords) or not targets & given.keys() or _asks_mode(forward):
                continue
            if any(isinstance(given[name], ast.Constant) for name in targets & given.keys()):
                continue
            loop = next(iter(program.loops(call)), function)
            apart = isinstance(loop, ast.For) and trains(program, loop) and not any(is_method(one, "backward") and next(iter(program.loops(one)), None) is loop for one in ast.walk(loop))
            if program.without_gradient(call) and loop is not None and (apart or not trains(program, loop)):
                yield Remark(call, f"{short(call)} leaves {share.arg} as in the training: in part of its steps the model reads the true last step and not its own")


def _drawn_share(forward: Function | None) -> ast.arg | None:
    """The parameter that a random number is compared with, where its default is above 0."""
    if forward is None:
        return None
    defaults = dict(zip([one.arg for one in forward.args.args][::-1], forward.args.defaults[::-1], strict=False))
    for one in ast.walk(forward):
        if not compares(one, *ORDERS):
            continue
        sides = (one.left, one.comparators[0])
        drawn = any(is_method(part, "random", "rand", "uniform") or is_name(part, "random") for side in sides for part in ast.walk(side))
        for parameter in forward.args.args if drawn else ():
            default = defaults.get(parameter.arg)
            number = default.value if isinstance(default, ast.Constant) and isinstance(default.value, (int, float)) else 0
            if any(is_name(side, parameter.arg) for side in sides) and number > 0:
                return parameter
    return None


def _targets_of(forward: Function | None, share: str) -> set[str]:
    """The parameters of which the true last step is taken where the draw says so."""
    found: set[str] = set()
    if forward is None:
        return found
    decided = {target.id for one in own(forward, ast.Assign) if share in names_read(one.value) for target in one.targets if isinstance(target, ast.Name)} | {share}
    for node in ast.walk(forward):
        if isinstance(node, (ast.If, ast.IfExp)) and names_read(node.test) & decided:
            body = node.body if isinstance(node.body, list) else [node.body]
            found |= {one.value.id for part in body for one in ast.walk(part) if isinstance(one, ast.Subscript) and isinstance(one.value, ast.Name)}
    return found & {one.arg for one in forward.args.args}


def _asks_mode(forward: Function | None) -> bool:
    return forward is not None and any(is_attribute(one, "training") for one in ast.walk(forward))
