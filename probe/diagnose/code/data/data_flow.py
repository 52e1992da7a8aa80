"""What loops, loaders and predictions are: what the rules on data share. Pure; standard library only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import KEPT, SHAPED, Value
from probe.diagnose.code.flow import DEPTH, Flow, flow_of
from probe.diagnose.code.program import Binding, Program
from probe.diagnose.code.syntax import (
    Function,
    argument,
    is_attribute,
    is_call,
    is_method,
    is_name,
    is_negative,
    is_self,
    iterated,
    last_word,
    names_of,
    names_set,
    own,
    pairs_of,
    returned,
    text_of,
)

SHAPES = (
    "squeeze", "unsqueeze", "view", "reshape", "flatten", "detach", "cpu", "cuda", "to", "float", "double",
    "contiguous", "clone", "numpy", "tolist", "ravel", "view_as", "type_as", "requires_grad_", "long", "int",
)
"""Methods that leave the values of a tensor as they are, but for its shape, type or place."""
GENERATORS = frozenset({
    "numpy.random.default_rng", "numpy.random.RandomState", "numpy.random.Generator", "random.Random",
    "torch.Generator",
})
"""What makes a generator of random numbers of its own."""
LOADER = "torch.utils.data.DataLoader"
RANDOM_SPLITS = frozenset({"torch.utils.data.random_split", "torch.utils.data.dataset.random_split"})
SPLIT_ARRAYS = "sklearn.model_selection.train_test_split"
HELD_OUT = re.compile(
    r"(^|_)(val|valid|validation|va|test|testing|te|dev|eval|held_?out|heldout|holdout)(_|$|\d)"
    r"|^(x|y)(val|valid|test)$",
    re.I,
)
"""What is in the names of data that a model is not trained on."""
TRAINING = re.compile(r"(^|_)(train|training|tr)(_|$|\d)|^(x|y)train$", re.I)


@lru_cache(maxsize=1)
def _models(program: Program) -> set[str]:
    """What a program asks for its parameters, or sets the mode of."""
    asked = ("parameters", "eval", "train", "named_parameters")
    return {ast.unparse(one.func.value) for one in program.calls() if is_method(one, *asked) and not one.args}


def is_model(flow: Flow, node: ast.AST) -> bool:
    """Whether an expression is a network: by its kind, or as its parameters or mode are asked for."""
    if is_self(node):
        of = flow.program.class_of(node)
        return of is not None and flow.program.is_module_class(of)
    family = flow.program.family(node)
    if family is None and isinstance(node, (ast.Name, ast.Attribute)):
        return ast.unparse(node) in _models(flow.program)
    return family == "module"


def steps_to(flow: Flow, node: ast.AST | None) -> list[ast.expr]:
    """The expressions that a value passes, from the use back to where it is made, but for its shape, type and
    place."""
    passed: list[ast.expr] = []
    at = node
    while isinstance(at, ast.expr) and len(passed) < 3 * DEPTH:
        passed.append(at)
        if is_method(at, *SHAPES):
            free = flow.program.dotted(at.func) is not None and at.args
            at = at.args[0] if free else at.func.value
        elif is_attribute(at, "data"):
            at = at.value
        else:
            at = flow.held(at) or elsewhere(flow, at)
    return passed


def elsewhere(flow: Flow, node: ast.expr) -> ast.expr | None:
    """What another function gives a value: to a parameter where it is called, or as its result or a part of
    that; None where that is not one expression."""
    if isinstance(node, ast.Call):
        made: list[ast.AST] = [] if is_model(flow, node.func) else flow.program.results(node)
        return made[0] if len(made) == 1 and isinstance(made[0], ast.expr) else None
    one = flow.given(node)
    if one is None:
        given = flow.passed(node)
        return given[0] if len(given) == 1 else None
    parts = parts_at(flow, one)
    return parts[0] if len(parts) == 1 else None


def parts_at(flow: Flow, one: Binding) -> list[ast.expr]:
    """The parts that a variable takes of what a function returns: `loss, logits = self.step(batch)`."""
    if one.how != "assign" or one.place is None:
        return []
    made = flow.program.results(one.value)
    return [
        part.elts[one.place] for part in made
        if isinstance(part, ast.Tuple) and one.place < len(part.elts)
    ]


def sources(flow: Flow, node: ast.AST | None, depth: int = 8) -> Iterator[ast.expr]:
    """The expressions that may make a value, through variables, parameters and functions of the program: over
    all calls of them, and all that they return."""
    if not isinstance(node, ast.expr) or not depth:
        return
    following: list[ast.expr] = []
    if flow.key(node) is not None:
        one = flow.given(node)
        following = flow.passed(node) if one is None else parts_at(flow, one)
        if one is not None and one.whole is not None:
            following = [one.whole]
    elif isinstance(node, ast.Call) and not is_model(flow, node.func):
        following = [made for made in flow.program.results(node) if isinstance(made, ast.expr)]
    if not following and flow.key(node) is None:
        yield node
    for made in following:
        yield from sources(flow, made, depth - 1)


def unshaped(flow: Flow, node: ast.AST | None, *more: str) -> ast.AST | None:
    """What a value is made of, but for its shape, type and place, and for `more` methods."""
    value = flow.value(node)
    for _ in range(DEPTH):
        if not (is_method(value, *SHAPES, *more) and flow.program.dotted(value.func) is None):
            break
        value = flow.value(value.func.value)
    return value


def output_of(flow: Flow, node: ast.AST | None) -> ast.Call | None:
    """The call of a network that an expression is the result of."""
    made = steps_to(flow, node)[-1:]
    if not made or not isinstance(made[0], ast.Call) or not is_model(flow, made[0].func):
        return None
    kind = flow.program.kind(made[0].func)
    name = "" if kind is None else kind.name.rpartition(".")[2]
    return None if name in ("Sigmoid", "Softmax", "LogSoftmax", "Tanh") else made[0]


def loaders_of(flow: Flow, node: ast.AST | None) -> list[ast.Call]:
    """The DataLoaders that an expression may be."""
    found = flow.possible(node)
    return [one for one in found if isinstance(one, ast.Call) and flow.program.called(one) == LOADER]


def meant_by(flow: Flow, node: ast.AST | None, depth: int = 8) -> Iterator[ast.AST]:
    """The expressions that a variable may stand for, over all calls of the functions around it; for a part of
    a loader's batch, what its collate function returns there."""
    if node is None or not depth:
        return
    if flow.key(node) is None:
        yield node
        return
    one = flow.given(node)
    if one is None:
        for given in flow.passed(node):
            yield from meant_by(flow, given, depth - 1)
    elif one.whole is not None:
        yield from meant_by(flow, one.whole, depth - 1)
    elif one.place is not None and isinstance(one.node, ast.For):
        for loader in loaders_of(flow, iterated(one.node)):
            collate = argument(loader, "collate_fn", 7)
            function = _collating(flow, collate)
            for batch in returned(function) if function is not None else ():
                if isinstance(batch, ast.Tuple) and one.place < len(batch.elts):
                    yield from meant_by(flow, batch.elts[one.place], depth - 1)


def _collating(flow: Flow, node: ast.AST | None) -> Function | None:
    """What makes the batches of a loader: a function, a method, or the call of an object of the program."""
    value = flow.value(node)
    name = flow.program.called(value)
    if name in flow.program.classes:
        return flow.program.method(flow.program.classes[name][0], "__call__")
    found = flow.program.functions.get(last_word(value), [])
    return found[0] if len(found) == 1 else None


def sample_of(flow: Flow, loader: ast.Call) -> ast.expr | None:
    """What the `__getitem__` of a loader's data set returns, where the program defines it with one return."""
    of = flow.program.classes.get(flow.program.called(flow.value(argument(loader, "dataset", 0))), [])
    getter = flow.program.method(of[0], "__getitem__") if len(of) == 1 else None
    values = returned(getter) if getter is not None else []
    return values[0] if len(values) == 1 else None


def data_sets(program: Program) -> Iterator[ast.ClassDef]:
    """Classes of the program that have items by number and a length, or are data sets by their base."""
    for node in program.everywhere(ast.ClassDef):
        bases = {(program.dotted(base) or "").rpartition(".")[2] for base in node.bases}
        has_items = all(program.method(node, name) is not None for name in ("__getitem__", "__len__"))
        if bases & {"Dataset", "IterableDataset", "VisionDataset"} or (has_items and not node.bases):
            yield node


def loader_loops(flow: Flow) -> Iterator[ast.For]:
    """All loops over a DataLoader."""
    for node in flow.program.everywhere(ast.For):
        loader = iterated(node)
        if flow.program.family(loader) == "loader" or loaders_of(flow, loader):
            yield node


@lru_cache(maxsize=1 << 12)
def trains(program: Program, node: ast.AST, deep: int = 2) -> bool:
    """Whether a backward runs inside a node, or in a function of the program that it calls."""
    for one in ast.walk(node):
        if is_method(one, "backward", "manual_backward"):
            return True
        local = program.local_function(one) if deep and isinstance(one, ast.Call) else None
        if local is not None and trains(program, local, deep - 1):
            return True
    return False


def filled_with(flow: Flow, node: ast.AST) -> float | None:
    """The number that all elements of a tensor are."""
    key = flow.key(node)
    if "fill_" in flow.called_on(key) or any(is_method(one, "fill_", "zero_") for one in flow.possible(node)):
        return None
    value = flow.value(node)
    name = flow.program.called(value).rpartition(".")[2]
    if name in ("ones", "ones_like"):
        return 1.0
    if name in ("zeros", "zeros_like"):
        return 0.0
    if is_negative(value):
        inner = filled_with(flow, value.operand)
        return None if inner is None else -inner
    if name in ("full", "full_like") and isinstance(value, ast.Call) and len(value.args) > 1:
        return flow.number(value.args[1])
    return None


def evaluates(flow: Flow, loop: ast.For) -> bool:
    """Whether a loop runs a network on each batch, without gradients or in the mode of evaluation."""
    program = flow.program
    # `Load()` is one object in all places: it has no place of its own.
    nodes = [one for one in ast.walk(loop) if isinstance(one, (ast.expr, ast.stmt))]
    quiet = any(program.without_gradient(one) for one in nodes)
    on_batch = any(
        isinstance(one, ast.Call)
        and (is_model(flow, one.func) or (quiet and _is_given(flow, one.func)))
        and any(names_of(part) & names_set(loop) for part in (*one.args, *one.keywords))
        for one in ast.walk(loop)
    )
    ranges = is_call(iterated(loop), "range")
    quiet = quiet or any(is_method(one, "eval") for one in own(program.scope(loop), ast.Call))
    return on_batch and quiet and not ranges


def _is_given(flow: Flow, node: ast.AST) -> bool:
    """Whether a function is a parameter that no call in the program gives."""
    found = flow.bindings(node)
    return len(found) == 1 and found[0].how == "parameter" and not flow.arguments(found[0])


def names_given(program: Program, call: ast.Call) -> list[str]:
    """The variables that an object is given to: `train, val = Texts(a), Texts(b)`."""
    statement = program.statement(call)
    pairs = pairs_of(statement) if isinstance(statement, ast.Assign) else ()
    return [target.id for target, value in pairs if value is call and is_name(target)]


KEYS = frozenset({
    "unique", "lexsort", "argsort", "eq", "ne", "lt", "gt", "le", "ge", "isclose", "allclose", "array_equal",
    "duplicated", "drop_duplicates", "nunique", "value_counts", "hash", "groupby", "isin", "searchsorted",
    "intersect1d", "histogram", "print", "text", "len", "shape", "fit", "predict", "predict_proba", "score",
    "decision_function",
})
"""Operations of whose result the numbers themselves are no part: rows are compared, ordered or counted by
them, or another model (trees) is fitted to them."""
_JOINED = frozenset({
    *KEPT, *SHAPED, "column_stack", "hstack", "vstack", "cat", "concatenate", "c_", "r_", "round", "apply",
    "map", "part", "add", "mul", "div", "sub",
})


def fills_no_input(program: Program, call: ast.Call, value: float) -> bool:
    """Whether what a call fills in for missing values is no input of a network: rows are only told apart by
    it, a loss leaves those targets out, or where it stands is kept beside it."""
    func = call.func
    filled = func.value if is_attribute(func, "fillna") else call.args[0] if call.args else None
    of = text_of(filled) if filled is not None else ""
    for one in program.calls():
        told = next((word.value for word in one.keywords if word.arg == "ignore_index"), None)
        if told is not None and flow_of(program).number(told) == value:
            return True
        asked: ast.expr | None = None
        if is_method(one, "isna", "isnull", "notna", "notnull"):
            asked = one.func.value
        elif last_word(one.func) == "isnan" and one.args:
            asked = one.args[0]
        shown = isinstance(program.parent.get(one), (ast.Attribute, ast.Expr))
        if asked is not None and of and text_of(asked) == of and not shown:
            return True
    computation = computation_of(program)
    made = [one for one in computation.values if one.node is call and computation.users(one)]
    return bool(made) and all(_only_keys(computation, one) for one in made)


def _only_keys(computation: Computation, value: Value, depth: int = 8) -> bool:
    """Whether all that is made of a value goes by way of comparing, ordering or counting."""
    users = computation.users(value)
    return bool(users) and depth > 0 and all(
        one.op in KEYS or (one.op in _JOINED and _only_keys(computation, one, depth - 1)) for one in users
    )
