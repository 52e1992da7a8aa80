"""A loop whose passes are trainings that are compared or averaged: what they share. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Table, Value, alternatives, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import last_word, names_of, names_read, names_set, short
from probe.diagnose.code.traits.backwards import layers_of
from probe.diagnose.code.traits.basic import terms
from probe.diagnose.code.traits.updates import backwards, is_optimizer, modules, optimizer_of
from probe.diagnose.code.traits.weights import has_parameters

_RESETS = frozenset({"load_state_dict", "reset_parameters", "apply", "deepcopy", "copy", "reset", "init_weights", "copy_", "set_data"})
_DRAWS = ("_uniform_", "_normal_", "normal_", "uniform_", "orthogonal_", "zeros_", "ones_")
_CHOOSES = frozenset({"min", "max", "sorted", "argmin", "argmax", "sort", "idxmin", "idxmax", "nlargest", "nsmallest"})
_AVERAGES = frozenset({"mean", "std", "stdev", "pstdev", "fmean", "var", "sem", "variance"})
_TEXTS = frozenset({"text", "print", "format", "info", "set_description", "str", "tuple", "append", "set_item", "dict", "write", "writerow", "add_scalar"})


class Passes(NamedTuple):
    """A loop, and the values that its passes compute: from `begin` to `end`, by number."""

    loop: ast.For
    begin: int
    end: int

    def holds(self, value: Value) -> bool:
        """Whether a value is computed in the loop."""
        return self.begin <= value.number <= self.end


def _passes(computation: Computation) -> Iterator[Passes]:
    """The loops that train something in each pass, the outermost first; also those that are followed pass by pass."""
    steps = [one for one in computation.of("step") if optimizer_of(one) is not None]
    for begin, loop, _ in computation.passes if steps else ():
        if not isinstance(loop, ast.For):
            continue
        inside = set(ast.walk(loop))
        end = max((one.number for one in computation.values[begin:] if one.node in inside), default=-1)
        if any(begin <= one.number <= end for one in steps):
            yield Passes(loop, begin, end)


def model_kept_across_settings(program: Program) -> Iterator[Remark]:
    """Each pass of a loop trains with another setting and is compared with the others, and all train one network further."""
    computation = computation_of(program)
    for passes in _passes(computation):
        names = names_of(passes.loop.target)
        made = [one for one in computation.values[passes.begin : passes.end] if is_optimizer(one)]
        if not made or not names or not _is_judged(program, passes.loop, names):
            continue
        settings = {id(part) for target, given in computation.stored.items() if target in ast.walk(passes.loop.target) for one in given for part in _parts(one)}
        if not any(id(one) in settings for one in _given(computation, passes)):
            continue
        for optimizer in made:
            for module in modules(optimizer):
                layers = layers_of(module)
                if module.op == "@input" or any(passes.holds(one) for one in layers) or not any(has_parameters(one) for one in layers):
                    continue
                if not any(one.op in _RESETS or one.op.endswith(_DRAWS) for one in computation.values[passes.begin : passes.end]):
                    yield Remark(passes.loop, f"{short(module.node)} (line {module.line}) is one network for all passes of this loop: each pass trains it further (line {optimizer.line}), with another {' and '.join(sorted(names))}")
                    return


def _parts(value: Value) -> Iterator[Value]:
    """A value, and what is listed in it."""
    yield value
    for one in value.made_of() if isinstance(value, (Many, Table)) else ():
        yield from _parts(one)


def _given(computation: Computation, passes: Passes) -> Iterator[Value]:
    """What the trainings of a loop are told: the arguments of their optimizers, loaders and seeds, and the factors of their
    losses."""
    for one in computation.values[passes.begin : passes.end]:
        if is_optimizer(one) or one.op in ("torch.utils.data.DataLoader", "manual_seed"):
            for given in (*one.args[one.op != "manual_seed" :], *one.named.values()):
                yield from (each for part in _parts(given) for each in alternatives(part))
    for back, loss in backwards(computation):
        if passes.holds(back):
            for term, _ in terms(loss):
                for one in origins(term, ("run",)):
                    yield from one.args if one.op in ("mul", "div") else one.named.values()


def _is_judged(program: Program, loop: ast.For, names: set[str]) -> bool:
    """Whether the passes of a loop are compared: the best setting is kept, or chosen from what was kept of all; or their
    scores are averaged."""
    for one in (each for statement in loop.body for each in ast.walk(statement)):
        if isinstance(one, ast.If) and isinstance(one.test, ast.Compare) and any(isinstance(each, ast.Assign) and names & names_read(each.value) and names_set(each) and not any(isinstance(call, ast.Call) for call in ast.walk(each.value)) for each in one.body):
            return True
    return _is_read_by(program, loop, names, _CHOOSES | _AVERAGES)


def _is_read_by(program: Program, loop: ast.For, names: set[str], words: frozenset[str]) -> bool:
    """Whether what the passes of a loop have put into a list or dict goes, after the loop, into one of some functions."""
    kept = set(_kept(loop))
    for statement in program.after(loop):
        for call in ast.walk(statement):
            if isinstance(call, ast.Call) and last_word(call.func) in words and kept & names_of(call):
                return True
    return False


def _kept(loop: ast.For) -> Iterator[str]:
    """The lists and dicts from before a loop that each pass puts something into."""
    for statement in loop.body:
        for one in ast.walk(statement):
            if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr == "append" and isinstance(one.func.value, ast.Name):
                yield one.func.value.id
            elif isinstance(one, ast.Assign):
                yield from (each.value.id for each in one.targets if isinstance(each, ast.Subscript) and isinstance(each.value, ast.Name))


def runs_with_one_seed(program: Program) -> Iterator[Remark]:
    """Trainings whose scores are averaged all begin by setting one and the same seed, and nothing else tells them apart."""
    computation = computation_of(program)
    for passes in _passes(computation):
        inside = computation.values[passes.begin : passes.end + 1]
        seeds = [one for one in inside if one.op == "manual_seed" and one.args and not any(each.op == "torch.Generator" for each in one.args)]
        made = [one for one in inside if has_parameters(one)]
        told = [one for target, given in computation.stored.items() if target in ast.walk(passes.loop.target) for one in given]
        if not seeds or not made or seeds[0].number > made[0].number or any(_changes(one.args[-1], passes) for one in seeds):
            continue
        if len({number(one.args[-1]) for one in seeds}) > 1 or any(id(part) in {id(one.args[-1]) for one in seeds} for one in told for part in _parts(one)):
            continue
        if any(user.op not in _TEXTS and user.number >= passes.begin for one in told for part in _parts(one) for user in computation.users(part)) or not _only_shown(passes.loop, names_of(passes.loop.target), inside):
            continue
        if _draws_elsewhere(program, passes.loop, inside) or not _is_read_by(program, passes.loop, set(), _AVERAGES):
            continue
        yield Remark(seeds[0].node, f"{short(seeds[0].node)} sets the same seed in each pass of the loop of line {passes.loop.lineno}: its trainings are one and the same, and their scores are averaged")
        return


def _changes(value: Value, passes: Passes) -> bool:
    """Whether a number may be another one in each pass: it counts or goes through something there, or a function gives it."""
    return any(one.op in ("run", "unknown", "random", "randint", "next", "time", "count", "element", "index", "part", "add") and (passes.holds(one) or one.op == "count") for one in origins(value))


def _only_shown(loop: ast.For, names: set[str], inside: list[Value]) -> bool:
    """Whether no function that is not known, and no condition, is given what a loop goes over."""
    for one in inside:
        if one.op == "run" and one.args and one.args[0].op in ("@input", "@library", "unknown"):
            return False
    tests = [one.test for statement in loop.body for one in ast.walk(statement) if isinstance(one, (ast.If, ast.IfExp, ast.While))]
    return not any(names & names_read(one) for one in tests)


def _draws_elsewhere(program: Program, loop: ast.For, inside: list[Value]) -> bool:
    """Whether a pass draws numbers of another kind, which the seed of torch does not set."""
    functions = {function for one in inside for function in one.where.functions}
    nodes = [node for part in (loop, *functions) for node in ast.walk(part) if isinstance(node, ast.Call)]
    called = {program.called(one) for one in nodes}
    for seed, start in (("numpy.random.seed", "numpy.random."), ("random.seed", "random.")):
        if seed not in called and any(one.startswith(start) for one in called):
            return True
    return any(one.startswith("sklearn.") for one in called) and "numpy.random.seed" not in called
