"""What a training keeps: states, best scores, checkpoints, modes and seeds. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    Instance,
    Many,
    Table,
    Value,
    bare,
    constant,
    number,
    origins,
    same,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import Function, is_method, names_of, own_nodes, parameters, short, text_of
from probe.diagnose.code.traits.arithmetic import module, networks
from probe.diagnose.code.traits.backwards import CUTS
from probe.diagnose.code.traits.basic import LOSSES, squared
from probe.diagnose.code.traits.held import contents, is_unsteady
from probe.diagnose.code.traits.updates import backwards, is_optimizer, runs
from probe.diagnose.code.traits.uses import asked_again, held_apart

FINDERS = Finders()
_COPIES = ("clone", "deepcopy", "cpu", "to", "half", "numpy")
_VIEWS = ("dict", "collections.OrderedDict", "copy", "items", "element", "part", "detach", "data", "list", "values", "tuple")
_SETS = ("append", "set_item", "set_attribute")
_LARGER, _SMALLER = ("gt", "ge"), ("lt", "le")


# States -------------------------------------------------------------------------


@FINDERS.add("snapshots-alike")
def _snapshots_alike(program: Program) -> Iterator[Remark]:
    """A loop that trains a network collects its state, not copies of it."""
    computation = computation_of(program)
    steps = [value for value in computation.of("step") if value.args and is_optimizer(value.args[0])]
    for value in computation.of("append", "set_item"):
        loops = value.where.loops
        holder, kept = value.args[0], value.args[-1]
        if not loops or loops[-1] in holder.where.loops or constant(value.args[1]) is not None:
            continue
        network = _state_of(kept)
        if network is None or any(loop in network.where.loops for loop in loops) or any(one.node in loops for one in origins(network)):
            continue
        if any(step.where.loops[: len(loops)] == loops and runs(step) == runs(value) for step in steps):
            yield Remark(value.node, f"{short(value.node)} keeps the weights of {short(network.node)} themselves, not a copy: the training in the loop changes all entries")


def _state_of(value: Value, depth: int = 12) -> Value | None:
    """The network whose weights a value is, not a copy of them."""
    if depth == 0:
        return None
    if value.op == "state_dict" and value.args:
        network = module(value.args[0])
        return network if network.op == "@input" or isinstance(network, Instance) or network.op.startswith("torch.nn.") else None
    if isinstance(value, Table):
        inner = [*value.entries.values(), *(one for _, one in value.others)]
        found = [_state_of(one, depth - 1) for one in inner]
        return found[0] if found and None not in found else None
    return _state_of(value.args[0], depth - 1) if value.op in _VIEWS and value.args and not value.named else None


@FINDERS.add("best-is-the-same-model")
def _best_is_the_same_model(program: Program) -> Iterator[Remark]:
    """Where a score is better, a second name is given to the network that is trained on."""
    computation = computation_of(program)
    known = networks(computation)
    steps = [value for value in computation.of("step") if value.args and is_optimizer(value.args[0])]
    for value, kept in _kept_when_better(computation):
        network = module(kept)
        if id(network) not in known or not (network.op == "@input" or isinstance(network, Instance) or network.op.startswith("torch.nn.")):
            continue
        loops = value.where.loops
        if not loops or any(loop in network.where.loops for loop in loops) or any(one.node in loops for one in origins(network)):
            continue
        if any(step.where.loops[: len(loops)] == loops and runs(step) == runs(value) for step in steps):
            yield Remark(value.node, f"{short(value.node)} gives {short(network.node, 40)} (line {network.line}) a second name: the epochs after the best one change it too")


def _kept_when_better(computation: Computation) -> Iterator[tuple[Value, Value]]:
    """What is kept where a score is better than the best so far, and the value that keeps it."""
    tests = _better(computation)
    saved = {id(test) for value in computation.of("save") for test, holds in value.where.under if holds}
    for value in computation.of("set_attribute", "set_item", "tuple"):
        if (test := _under_one(value, tests)) is not None and id(test) not in saved:
            yield from ((value, one) for one in (value.parts if isinstance(value, Many) and len(value.parts) == 2 else value.args[1:]))
    nodes = {test.node for test in tests if id(test) not in saved}
    for value in computation.of("either"):
        if isinstance(value.node, ast.If) and value.node.test in nodes and len(value.args) == 2 and value.args[1].op == "@constant":
            yield value, value.args[0]


def _better(computation: Computation) -> list[Value]:
    """The comparisons of scores where the score is kept that is larger or smaller."""
    return [value for value in computation.of(*_LARGER, *_SMALLER) if any(_is_recorded(one, value, computation) for one in value.args)]


def _under_one(value: Value, tests: list[Value]) -> Value | None:
    """The comparison of these that a value is computed under."""
    found = [test for test, holds in value.where.under[-1:] if holds]
    return next((one for one in tests if found and one is found[0]), None)


# Best scores --------------------------------------------------------------------------


_HUGE = 1e5
"""No score is that far from 0."""


@FINDERS.add("never-better")
def _never_better(program: Program) -> Iterator[Remark]:
    """A score is compared with a first value that it can never be better than."""
    computation = computation_of(program)
    for value in computation.of(*_LARGER, *_SMALLER):
        if len(value.args) != 2 or not value.where.loops:
            continue
        score, first = value.args
        start = number(first)
        if start is None or value.op not in ("lt", "gt"):
            continue
        least = value.op == "lt"
        never = start <= 0 and _never_below_0(score) if least else start >= 1 and _never_above_1(score)
        beyond = start <= -_HUGE if least else start >= _HUGE
        if (never or beyond) and _is_recorded(score, value, computation):
            what = "never below 0" if least else "at most 1"
            yield Remark(value.node, f"{short(value.node)} is never true: {f'{short(score.node)} is {what}, and ' if never else ''}the best so far starts as {start:g}")


def _is_recorded(score: Value, test: Value, computation: Computation) -> bool:
    """Whether a score is kept where a comparison holds."""
    for user in computation.users(score):
        if user.op in (*_SETS, "update", "tuple") and any(one is test and holds for one, holds in user.where.under):
            return True
        if user.op == "either" and isinstance(user.node, ast.If) and user.node.test is test.node and _keeps(user.node):
            return True
    return False


def _keeps(branch: ast.If) -> bool:
    """Whether what a condition compares is assigned where it holds, and not where it does not."""
    compared = {ast.unparse(one) for one in ast.iter_child_nodes(branch.test)}
    return any(isinstance(one, ast.Assign) and ast.unparse(one.value) in compared for one in branch.body)


def _never_below_0(value: Value, depth: int = 12) -> bool:
    """Whether a value is an error, a norm, a count, or a sum or quotient of these."""
    value = bare(value)
    if depth == 0:
        return False
    known = number(value)
    if known is not None:
        return known >= 0
    if value.op in LOSSES - {"nll_loss", "gaussian_nll_loss", "poisson_nll_loss", "kl_div", "ctc_loss"}:
        return True
    if value.op in _COMPARED or (value.op == "sum" and len(value.args) == 1 and not value.named and bare(value.args[0]).op in ("and", "or")):
        return True
    if value.op in ("exp", "abs", "norm", "len", "numel", "size", "square", "sqrt", "eq", "ne", "count") or squared(value) is not None or value.op.endswith(("mean_squared_error", "mean_absolute_error", "accuracy_score")):
        return True
    if value.op in ("add", "mul", "div", "mean", "sum", "sum_of", "cat", "pow") and value.args:
        inner = [part for one in value.args for part in (one.parts if isinstance(one, Many) else [one])]
        over = inner[:1] if value.op in ("mean", "sum", "pow") else inner
        return bool(over) and all(_never_below_0(one, depth - 1) for one in over)
    return False


_COMPARED = ("gt", "lt", "ge", "le")


def _never_above_1(value: Value) -> bool:
    """Whether a value is a share of what is right."""
    value = bare(value)
    if value.op.endswith((".accuracy_score", ".f1_score", ".roc_auc_score", ".balanced_accuracy_score", ".average_precision_score", ".jaccard_score")):
        return constant(value.named.get("normalize")) is not False
    inner = bare(value.args[0]) if value.op == "mean" and value.args else value
    inner = bare(inner.args[0], "cat") if inner.op == "cat" else inner
    while isinstance(inner, Many) and inner.parts:
        inner = bare(inner.parts[0])
    return value.op == "mean" and inner.op in ("eq", "ne", "lt", "gt", "le", "ge")


@FINDERS.add("best-never-used")
def _best_never_used(program: Program) -> Iterator[Remark]:
    """The state is copied where a score is better, and nothing ever reads the copy."""
    for test in program.everywhere(ast.If):
        if not _compares_scores(test.test) or (not program.loops(test) and not _is_called_in_a_loop(program, test)):
            continue
        for one in (inner for part in test.body for inner in ast.walk(part) if isinstance(inner, ast.Assign)):
            target = one.targets[0]
            of = program.class_of(target) if isinstance(target, ast.Attribute) else None
            if isinstance(target, ast.Attribute) and (of is None or not any(text_of(call.func) == of.name for call in program.calls())):
                continue
            copied = any(is_method(inner, "state_dict") for inner in ast.walk(one.value)) and not any(is_method(inner, "save") for inner in ast.walk(one.value))
            if copied and isinstance(target, (ast.Name, ast.Attribute)) and not _is_read(program, target):
                yield Remark(one, f"{short(target)} is the best state so far, and nothing reads it: what follows uses the weights of the last step")


def _compares_scores(test: ast.expr) -> bool:
    return any(isinstance(one, ast.Compare) and isinstance(one.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) for one in ast.walk(test))


def _is_called_in_a_loop(program: Program, node: ast.AST) -> bool:
    name = program.function_name(node)
    return name is not None and any(program.loops(call) for call in program.calls() if isinstance(call.func, (ast.Name, ast.Attribute)) and text_of(call.func).split(".")[-1] == name)


def _is_read(program: Program, target: ast.Name | ast.Attribute) -> bool:
    """Whether anything reads a variable in its function, or an attribute anywhere."""
    if isinstance(target, ast.Attribute):
        reads = any(one.attr == target.attr and isinstance(one.ctx, ast.Load) for one in program.everywhere(ast.Attribute))
        return reads or any(isinstance(one, ast.Constant) and one.value == target.attr for one in program.everywhere(ast.Constant)) or any(
            text_of(call.func) in ("vars", "pickle.dump") for call in program.calls()
        )
    function = program.function_of(target)
    if function is None:
        return True
    return any(
        (isinstance(one, ast.Name) and one.id == target.id and not isinstance(one.ctx, ast.Store)) or (isinstance(one, (ast.Global, ast.Nonlocal)) and target.id in one.names)
        or (isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id in ("locals", "eval", "exec"))
        for one in ast.walk(function)
    )


@FINDERS.add("best-overwritten")
def _best_overwritten(program: Program) -> Iterator[Remark]:
    """A state is saved where a score is better, and a later one is saved to the same file whatever its score."""
    computation = computation_of(program)
    saves = [value for value in computation.of("save") if len(value.args) > 1]
    tests = _better(computation) if len(saves) > 1 else []
    for best in saves:
        if not best.where.loops or _under_one(best, tests) is None:
            continue
        path = best.args[1]
        for other in saves:
            if other.number < best.number or runs(other) != runs(best) or _under_one(other, tests) is not None or any(test is best.where.under[-1][0] for test, _ in other.where.under):
                continue
            paths = [one for one in (best, other) if isinstance(one.node, ast.Call) and len(one.node.args) > 1]
            if len(paths) != 2 or text_of(best.node.args[1]) != text_of(other.node.args[1]) or not (path is other.args[1] or same(path, other.args[1])):  # type: ignore[attr-defined]
                continue
            if any(one.op == "index" for one in origins(path)) or any(best.number < one.number < other.number for one in computation.of("load_state_dict")):
                continue
            yield Remark(other.node, f"{short(other.node)} writes to the file in which line {best.line} kept the best state: nothing of that is left")


# Checkpoints --------------------------------------------------------------------------


@FINDERS.add("loaded-and-not-used")
def _loaded_and_not_used(program: Program) -> Iterator[Remark]:
    """A training takes the epoch or step out of a checkpoint that it goes on from, and counts from 0."""
    computation = computation_of(program)
    loops = {runs(value): value.where.loops for value in computation.of("backward") if value.where.loops}
    for value in computation.of("part"):
        if constant(value.args[1]) not in ("epoch", "step", "global_step", "iteration", "start_epoch", "iter") or bare(value.args[0]).op != "load":
            continue
        used = loops.get(runs(value))
        resumed = any(one.op == "load_state_dict" and is_optimizer(one.args[0]) for one in computation.of("load_state_dict") if runs(one) == runs(value))
        holder = program.parent.get(value.node)
        kept = isinstance(holder, (ast.Return, ast.BinOp)) or (isinstance(holder, ast.Assign) and not (used and names_of(holder.targets[0]) & _targets(used)))
        if used and resumed and kept and not _is_needed(value, computation, program) and isinstance(loop := used[0], (ast.For, ast.While)) and (
            isinstance(loop, ast.For) or any(one.node is loop.test and one.args[0].op in ("count", "@constant") for one in computation.of("lt", "le", "ne"))
        ):
            yield Remark(value.node, f"{short(value.node)} is taken from the checkpoint, and nothing counts on from it: the loop of line {loop.lineno} begins at its first pass")


def _targets(loops: tuple[ast.AST, ...]) -> set[str]:
    """The names that loops set."""
    return {name for loop in loops if isinstance(loop, ast.For) for name in names_of(loop.target)}


def _is_needed(value: Value, computation: Computation, program: Program) -> bool:
    """Whether more is done with a value than to print it."""
    for user in computation.users(value):
        if user.op in ("text", "print", "tuple"):
            continue
        if user.op in ("either", "add", "int"):
            if _is_needed(user, computation, program):
                return True
        elif user.op == "set_attribute":
            name = user.data
            if any(one.attr == name and isinstance(one.ctx, ast.Load) for one in program.everywhere(ast.Attribute)):
                return True
        else:
            return True
    return False


# Modes ----------------------------------------------------------------------------------------


@FINDERS.add("evaluated-in-train-mode")
def _evaluated_in_train_mode(program: Program) -> Iterator[Remark]:
    """Other data than those of the training go through dropout or batch normalization, and nothing ever calls eval()."""
    computation = computation_of(program)
    if any(True for _ in computation.of("eval")) or any(value.data == "training" for value in computation.of("set_attribute")) or any(len(value.args) > 1 or value.named for value in computation.of("train")):
        return
    trained: dict[tuple[ast.AST, ...], set[int]] = {}
    for value, loss in backwards(computation):
        trained.setdefault(runs(value), set()).update(id(one) for one in origins(loss))
    for value in computation.of("dropout", "run"):
        if not value.where.no_grad or "training" in value.named or id(value) in trained.get(runs(value), set()) or runs(value) not in trained:
            continue
        layer = value.args[0]
        unsteady = value.op == "dropout" or layer.op.startswith("torch.nn.BatchNorm") or layer.op.startswith("torchvision.models.")
        inputs = value.args if value.op == "dropout" else value.args[1:]
        whole = [one for part in inputs for one in origins(part, stop=("state_dict",))]
        sources = {id(one) for one in whole if one.op in ("element", "rows")} or {id(one) for one in whole if one.op in ("tensor", "from_numpy")}
        others = bool(value.where.loops and sources and not sources & trained[runs(value)]) or (not sources & trained[runs(value)] and not asked_again(computation, value, whole) and held_apart(computation, whole, trained[runs(value)]))
        if unsteady and others and _also_trained(value, computation, trained[runs(value)]):
            yield Remark(value.node, f"{short(value.node)} is an evaluation in train mode: nothing in the program calls eval()")
            return


def _also_trained(value: Value, computation: Computation, trained: set[int]) -> bool:
    """Whether the same layer, or the same line, also works for a loss."""
    if value.op == "dropout":
        around = {id(one.args[0]) for one in origins(value) if one.op == "run" and one.where.no_grad and one.args}
        return any(id(one) in trained and (one.node is value.node or (one.op == "run" and id(one.args[0]) in around)) for one in computation.of("dropout", "run"))
    return any((id(one) in trained and one.node is value.node) or (value.op == "run" and one.op == "run" and one.args[0] is value.args[0] and id(one) in trained) for one in computation.of(value.op))


@FINDERS.add("part-back-in-train-mode")
def _part_back_in_train_mode(program: Program) -> Iterator[Remark]:
    """Each epoch puts the whole network into train mode, also the part that was put into eval mode before."""
    computation = computation_of(program)
    evals = [value for value in computation.of("eval") if value.args]
    for value in evals:
        if value.where.loops and not isinstance(value.where.loops[-1], ast.For):
            continue
        if _is_of_an_evaluation(value, computation):
            continue
        part = _evaluated_part(value.args[0])
        for train in computation.of("train"):
            whole = module(train.args[0]) if train.args else value
            if train.number < value.number or len(train.args) != 1 or train.named or not isinstance(whole, Instance) or whole is part or not _in_a_training_loop(train, computation):
                continue
            if program.function_of(train.node) is program.function_of(value.node) and value.line > train.line:
                continue
            inside = {id(one) for one in contents(whole, computation)}
            again = any(_evaluated_part(one.args[0]) is part and one.number > train.number and one.where.loops[: len(train.where.loops)] == train.where.loops for one in evals)
            if id(part) in inside and not again and _is_unsteady(part, value.args[0], computation):
                yield Remark(train.node, f"{short(train.node)} puts {short(part.node, 40)} back into train mode, which {short(value.node)} (line {value.line}) took out of it")
                return


def _is_of_an_evaluation(value: Value, computation: Computation) -> bool:
    """Whether the function that calls eval() runs a network after it, and trains none."""
    functions = value.where.functions
    after = {one.op for one in computation.values[value.number:] if functions and one.where.functions[: len(functions)] == functions}
    return "run" in after and "backward" not in after


def _in_a_training_loop(train: Value, computation: Computation) -> bool:
    return any(one.where.loops[: len(train.where.loops)] == train.where.loops and one.number > train.number for one in computation.of("backward") if train.where.loops)


def _evaluated_part(value: Value) -> Value:
    """The network that eval() is called on, or whose modules it is called on one by one."""
    value = module(value)
    while value.op in ("element", "modules", "children", "part", "named_modules") and value.args:
        value = module(value.args[0])
    return value


def _is_unsteady(part: Value, called: Value, computation: Computation) -> bool:
    """Whether a network has layers that work otherwise in train mode, or may have."""
    return bare(called).op == "element" or any(
        is_unsteady(one) or one.op in ("@input", "element", "star") or one.op.startswith(("torchvision.", "timm."))
        for one in origins(part)
    ) or any(is_unsteady(one) or one.op == "@input" for one in contents(part, computation))


# Seeds -------------------------------------------------------------------------------------------


@FINDERS.add("seeded-in-the-loop")
def _seeded_in_the_loop(program: Program) -> Iterator[Remark]:
    """Each pass of a training makes a generator with the same seed, and draws what its loss is made of with it."""
    computation = computation_of(program)
    reported: set[ast.AST] = set()
    for value, loss in backwards(computation):
        loops = value.where.loops
        for one in origins(loss, stop=CUTS) if loops else ():
            if one.op not in ("manual_seed", "default_rng", "RandomState", "PRNGKey") or one.where.loops != loops or one.node in reported:
                continue
            seed = one.args[-1] if one.args else None
            if seed is not None and number(seed) is not None:
                reported.add(one.node)
                yield Remark(one.node, f"{short(one.node)} runs in each pass of the loop, with the same seed: all passes draw the same random numbers")


# Functions that keep more than they should ------------------------------------------------------------


@FINDERS.add("loop-variable-in-a-closure")
def _late_in_a_comprehension(program: Program) -> Iterator[Remark]:
    """A list or dict of functions that all read the variable of the comprehension that makes them."""
    for made in program.everywhere(ast.ListComp, ast.SetComp, ast.DictComp):
        if not isinstance(made, (ast.ListComp, ast.SetComp, ast.DictComp)):
            continue
        function = made.value if isinstance(made, ast.DictComp) else made.elt
        if isinstance(function, ast.Lambda):
            own = {one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)}
            late = sorted({name for one in made.generators for name in names_of(one.target)} & (names_of(function.body) - own))
            if late:
                yield Remark(function, f"{short(made)} keeps functions that read {late[0]} when they are called: then {late[0]} is the last one for all of them")


@FINDERS.add("default-argument-grows")
def _default_grows(program: Program) -> Iterator[Remark]:
    """A list that is made once, as a default, gets more in each call, and what is given back is made of it."""
    for function in program.everywhere(ast.FunctionDef):
        for name, default in _defaults(function):
            lists = [default] if isinstance(default, ast.List) else list(default.values) if isinstance(default, ast.Dict) else []
            if not lists or not all(isinstance(one, ast.List) and not one.elts for one in lists) or _begins_anew(function, name):
                continue
            grows = [one for one in own_nodes(function) if is_method(one, "append", "extend") and _root(one.func.value) == name]
            given = any(isinstance(one, ast.Return) and one.value is not None and name in names_of(one.value) for one in own_nodes(function))
            omitted = any(_leaves_out(call, function, name) for call in program.calls())
            if grows and given and omitted:
                yield Remark(grows[0], f"{name} is a default argument of {function.name}, made once: it still holds what all calls before have put in")
                break


def _defaults(function: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    plain = [*function.args.posonlyargs, *function.args.args]
    yield from ((one.arg, value) for one, value in zip(plain[::-1], function.args.defaults[::-1], strict=False))
    yield from ((one.arg, value) for one, value in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if value is not None)


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _begins_anew(function: Function, name: str) -> bool:
    """Whether a function gives a parameter another value, or empties it."""
    return any(
        (isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, (ast.Store, ast.Del))) or (is_method(one, "clear", "pop") and _root(one.func.value) == name)
        for one in own_nodes(function)
    )


def _leaves_out(call: ast.Call, function: Function, name: str) -> bool:
    """Whether a call of a function gives a parameter no value."""
    if text_of(call.func).split(".")[-1] != function.name or any(isinstance(one, ast.Starred) for one in call.args) or any(word.arg in (None, name) for word in call.keywords):
        return False
    names = [one.arg for one in parameters(function)]
    place = names.index(name) - (1 if names[:1] == ["self"] else 0)
    return len(call.args) <= place


# Weights that are moved for one gradient -----------------------------------------------------------------


@FINDERS.add("perturbation-kept")
def _perturbation_kept(program: Program) -> Iterator[Remark]:
    """The weights are moved along their gradient for a second gradient, and nothing in the program moves them back."""
    computation = computation_of(program)
    moves = [value for value in computation.of("add") if _is_in_place(value, "add_") and len(value.args) > 1 and "alpha" not in value.named and _is_weight(value.args[0])]
    moves = [value for value in moves if any(one.op == "grad" for one in origins(value.args[1])) and not any(one.op == "neg" for one in origins(value.args[1]))]
    if not moves or any(
        (_is_in_place(value, "sub_", "copy_", "add_", "set_") and value.args and _is_weight(value.args[0]) and all(value is not one and value.node is not one.node for one in moves))
        or (value.op == "set_attribute" and value.data == "data" and all(value.args[1] is not one for one in moves)) or value.op in ("load_state_dict", "vector_to_parameters", "sub_", "_foreach_sub_", "swap")
        for value in computation.values
    ):
        return
    for value in moves:
        before = [one for one in computation.of("backward") if one.number < value.number and runs(one) == runs(value)]
        after = [one for one in computation.of("backward", "step") if one.number > value.number and runs(one) == runs(value)]
        if before and [one.op for one in after[:2]] == ["backward", "step"]:
            yield Remark(value.node, f"{short(value.node)} moves the weights for the gradient of line {after[0].line}, and nothing moves them back before {short(after[1].node)} (line {after[1].line})")
            return


def _is_in_place(value: Value, *names: str) -> bool:
    """Whether a value is what a method leaves that changes a tensor in place."""
    return is_method(value.node, *names)


def _is_weight(value: Value) -> bool:
    """Whether a value is one of the parameters of a network."""
    value = bare(value)
    while value.op in ("part", "element", "zip", "add") and value.args:
        value = bare(value.args[0])
    return value.op in ("parameters", "named_parameters", "param_groups", "torch.nn.Parameter")
