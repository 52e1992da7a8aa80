"""Held-out parts that are rows of what is trained on, or begin with them. Pure; standard library only."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, bare, is_none, origins
from probe.diagnose.code.finders.data.held_out import HELD, TRAIN, Roles, is_called_held_out
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import Function, last_word, short, text_of

FINDERS = Finders()
_ORDERS = ("permutation", "randperm")
_SEEDS = ("Random", "manual_seed", "default_rng", "RandomState", "seed", "seed_everything", "set_seed", "PRNGKey", "SeedSequence", "Generator")
_SIZES = re.compile(r"^(n|num|size|count|length|len|samples|rows|total|amount)$|^(n|num)_|_(n|num|size|count|length|samples|rows)$|^n[A-Z]?[a-z]*$", re.I)
_CHANGES = re.compile(r"aug|transform|shuffle|jitter|flip|device|dtype|batch", re.I)
_UNSEEDED = ("rand", "randn", "randint", "randperm", "normal", "uniform", "choice", "permutation", "random", "shuffle", "rand_like", "randn_like", "multinomial", "bernoulli")


# Rows of the training that are evaluated ------------------------------------------------


@FINDERS.add("held-out-rows-trained-on")
def _rows_of_the_whole(program: Program) -> Iterator[Remark]:
    """The rows that are evaluated are cut from rows that the training goes over as a whole."""
    computation = computation_of(program)
    cuts = [one for one in computation.of("part") if len(one.args) == 2 and one.args[1].op == "slice" and not one.where.loops and not is_none(one.args[1].args[0] if is_none(one.args[1].args[1]) else one.args[1].args[1])]
    roles = Roles(computation) if cuts else None
    for cut in cuts:
        if not is_called_held_out(computation, cut):
            continue
        if roles is None or id(cut) not in roles.held or id(cut) in roles.trained or any(id(one) in roles.in_losses for one in computation.users(cut)):
            continue
        rows = cut.args[0]
        whole = next((one for one in _taken_whole(computation, rows) if id(one) in roles.in_losses), None)
        if whole is not None and _has_rows(rows):
            yield Remark(cut.node, f"{short(cut.node)} is evaluated, and {short(whole.node)} (line {whole.line}) trains on all rows of {short(cut.args[0].node)}: what is evaluated was trained on")
            return


def _has_rows(rows: Value) -> bool:
    """Whether a value is data, and not an order or a number of rows."""
    return bare(rows).op not in (*_ORDERS, "arange", "range", "@library", "@constant", "shape")


def _taken_whole(computation: Computation, rows: Value) -> Iterator[Value]:
    """The parts of rows that loops take which in all go over every row: by an order of all of them, cut in a loop."""
    for user in computation.users(rows):
        if user.op == "part" and len(user.args) == 2 and user.where.loops:
            index = bare(user.args[1])
            order = bare(index.args[0]) if index.op in ("part", "element") and index.args else index
            order = bare(order.args[0]) if order.op in ("split", "chunk") and order.args else order
            if order.op in _ORDERS and order.args and _counts(order.args[-1], rows) and (index.op != "part" or index.args[1].op != "slice" or any(one.op in ("index", "element") for one in origins(index.args[1]))):
                yield user
        elif user.op == "torch.utils.data.TensorDataset" or user.op == "torch.utils.data.DataLoader":
            yield from (one for one in computation.of("rows") if any(each is user for each in origins(one)))


def _counts(value: Value, rows: Value) -> bool:
    """Whether a number is that of all rows."""
    value = bare(value)
    if value.op in ("len", "size") and value.args:
        return bare(value.args[0]) is bare(rows)
    return value.op == "part" and value.args[0].op == "shape" and bare(value.args[0].args[0]) is bare(rows)


# Scores of one part that are called those of another --------------------------------------


@FINDERS.add("kept-under-another-name")
def _called_held_out(program: Program) -> Iterator[Remark]:
    """A score is called that of held-out data, and is computed of the training part alone."""
    names = {one.id for one in program.everywhere(ast.Name)}
    if not any(HELD.search(one) for one in names):
        return
    for node in program.everywhere(ast.Assign):
        call, targets = node.value, [one for target in node.targets for one in (target.elts if isinstance(target, ast.Tuple) else [target])]
        if not isinstance(call, ast.Call) or program.local_function(call) is None or not all(isinstance(one, ast.Name) and HELD.search(one.id) and not TRAIN.search(one.id) for one in targets):
            continue
        given = [one for one in (*call.args, *(word.value for word in call.keywords)) if isinstance(one, (ast.Name, ast.Attribute, ast.Subscript))]
        words = [last_word(one.value if isinstance(one, ast.Subscript) else one) for one in given]
        trained = [one for one, word in zip(given, words, strict=True) if TRAIN.search(word) and not HELD.search(word)]
        told = [word for one in (*call.args, *(word.value for word in call.keywords), call.func) for part in ast.walk(one) for word in [last_word(part) if isinstance(part, (ast.Name, ast.Attribute)) else str(part.value) if isinstance(part, ast.Constant) else ""] if HELD.search(word)]
        said = [word for word in told if word != last_word(call.func)]
        if len(trained) == 1 and not said and program.loops(node) and not _is_changed(program, node, targets):
            yield Remark(call, f"{text_of(targets[0])} is what {short(call)} gives, and that is computed of {short(trained[0])}: the score of the training stands for that of held-out data")


def _is_changed(program: Program, node: ast.AST, targets: list[ast.expr]) -> bool:
    """Whether the names are given something else too."""
    words = {text_of(one) for one in targets}
    return sum(isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store) and one.id in words for one in ast.walk(program.scope(node))) > len(words)


# The same draws for both parts -----------------------------------------------------------


@FINDERS.add("one-seed-for-two-parts")
def _same_seeds(program: Program) -> Iterator[Remark]:
    """The part that is trained on and a held-out one are drawn by one function from the same seed: one begins as the other does."""
    made: dict[Function, list[tuple[ast.Call, str]]] = {}
    for call in program.calls():
        drawn = _drawing(program, call)
        name = _name_of(program, call)
        if drawn is not None and name is not None:
            made.setdefault(drawn, []).append((call, name))
    for function, calls in made.items():
        for (one, first), (other, second) in itertools.combinations(calls, 2):
            roles = {_role(first), _role(second)}
            if len(roles) < 2 or None in roles or program.scope(one) is not program.scope(other) or (one.lineno == other.lineno and program.loops(one)):
                continue
            seed = _same_seed(program, function, one, other)
            if seed is not None:
                later, earlier = (other, one) if other.lineno >= one.lineno else (one, other)
                yield Remark(later, f"{short(later)} draws from seed {short(seed)}, as {short(earlier)} (line {earlier.lineno}) does: {second} begins with what {first} begins with")
                break


def _role(name: str) -> str | None:
    held = HELD.search(name)
    if held is None:
        return "train" if TRAIN.search(name) else None
    word = (held.group(2) or held.group(4) or "").lower()
    return None if TRAIN.search(name) else "test" if word == "test" else "held"


def _name_of(program: Program, call: ast.Call) -> str | None:
    """What the program calls what a call gives, alone, in a tuple or in a loader."""
    at: ast.AST = call
    for around in program.parents(call):
        if isinstance(around, ast.Assign):
            target = around.targets[0]
            if isinstance(target, ast.Tuple) and isinstance(around.value, ast.Tuple) and at in around.value.elts and len(target.elts) == len(around.value.elts):
                target = target.elts[around.value.elts.index(at)]
            elif isinstance(target, ast.Tuple):
                target = target.elts[0]
            return last_word(target) if isinstance(target, (ast.Name, ast.Attribute)) else None
        if not isinstance(around, (ast.Tuple, ast.Call, ast.keyword)) or (isinstance(around, ast.Call) and program.local_function(around) is not None):
            return None
        at = around
    return None


def _drawing(program: Program, call: ast.Call) -> Function | None:
    """The function of the program that a call runs, or the `__init__` of the class that it makes, if it draws."""
    found = program.local_function(call)
    if found is None and isinstance(call.func, ast.Name):
        made = program.classes.get(call.func.id, [])
        found = program.method(made[0], "__init__") if len(made) == 1 else None
    return found


def _same_seed(program: Program, drawn: Function, one: ast.Call, other: ast.Call) -> ast.expr | None:
    """The seed that two calls of a function share, where they differ at most in how much is drawn of it, and all draws are
    of a generator that is seeded by it."""
    given = [program.arguments(drawn, call) for call in (one, other)]
    if any(not _CHANGES.search(name) for name in given[0].keys() ^ given[1].keys()) or any(isinstance(part, ast.Starred) for call in (one, other) for part in call.args):
        return None
    seeds = [name for name in given[0].keys() & given[1].keys() if _seeds_by(drawn, name)]
    if len(seeds) != 1 or any(ast.dump(pair[0]) != ast.dump(pair[1]) for pair in [[each[seeds[0]] for each in given]]):
        return None
    seed = given[0][seeds[0]]
    for name in (given[0].keys() & given[1].keys()) - set(seeds):
        if ast.dump(given[0][name]) != ast.dump(given[1][name]) and not _SIZES.search(name) and not _CHANGES.search(name):
            return None
    return None if _draws_otherwise(drawn) or any(isinstance(part, ast.Call) for part in ast.walk(seed)) else seed


def _seeds_by(function: Function, name: str) -> bool:
    """Whether a function makes a generator from a parameter as it is."""
    return any(
        isinstance(one, ast.Call) and last_word(one.func) in _SEEDS and len(one.args) + len(one.keywords) == 1
        and any(isinstance(part, ast.Name) and part.id == name for part in (*one.args, *(word.value for word in one.keywords)))
        for one in ast.walk(function)
    )


def _draws_otherwise(function: Function) -> bool:
    """Whether a function also draws from a generator of the library that it does not seed itself, or picks rows by where they stand."""
    sets_all = any(isinstance(one, ast.Call) and text_of(one.func) in ("torch.manual_seed", "np.random.seed", "numpy.random.seed", "random.seed") for one in ast.walk(function))
    for one in ast.walk(function):
        if isinstance(one, ast.Call) and last_word(one.func) in _UNSEEDED and isinstance(one.func, ast.Attribute):
            of_library = text_of(one.func.value) in ("torch", "np.random", "numpy.random", "random")
            if of_library and not sets_all and not any(word.arg == "generator" for word in one.keywords):
                return True
    return False


# An order that nothing follows ------------------------------------------------------------


def order_never_used(program: Program) -> Iterator[Remark]:
    """An order of the rows is drawn for each epoch, and nothing but its length is read, where rows are cut one after another."""
    computation = computation_of(program)
    for order in computation.of(*_ORDERS):
        users = computation.users(order)
        lengths = [one for one in users if one.op in ("len", "size", "shape", "numel")]
        given_on = any(one is order for given in computation.returned.values() for one in given)
        if not lengths or len(lengths) != len(users) or given_on or not (order.where.loops or order.where.functions):
            continue
        cut = next((one for one in computation.of("part") if len(one.args) == 2 and one.args[1].op == "slice" and one.where.loops and any(each is length for each in _around(computation, one) for length in lengths)), None)
        if cut is not None:
            yield Remark(order.node, f"{short(order.node)} draws an order of the rows, and only its length is read: {short(cut.node)} (line {cut.line}) takes the rows as they lie")
            return


def _around(computation: Computation, value: Value) -> Iterator[Value]:
    """What says how far the loops around a value run."""
    for _, node, over in computation.passes:
        if node in value.where.loops and over.op == "range":
            yield from (one for part in over.args for one in origins(part))
