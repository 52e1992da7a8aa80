"""Seeds that were to change with the epoch, and stay; seeds that an evaluation sets for the training too. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, constant, is_none, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import is_attribute, is_own, last_word, own, short
from probe.diagnose.code.traits.basic import losses
from probe.diagnose.code.traits.sides import DRAWS
from probe.diagnose.code.traits.updates import by_count, is_optimizer

FINDERS = Finders()
_SEEDS = ("manual_seed", "default_rng", "RandomState", "Random", "seed")


@FINDERS.add("seeded-in-the-loop")
def _epoch_never_set(program: Program) -> Iterator[Remark]:
    """What is drawn anew for each epoch begins with a seed and the number of the epoch, which nothing ever moves on."""
    called = {last_word(one.func) for one in program.calls()}
    if not called & {*_SEEDS} or not any(len(program.loops(one)) > 0 for one in program.everywhere(ast.For)):
        return
    for frame in program.everywhere(ast.ClassDef):
        methods = [one for one in frame.body if isinstance(one, ast.FunctionDef)]
        first = next((one for one in methods if one.name == "__init__"), None)
        walked = next((one for one in methods if one.name == "__iter__"), None)
        if first is None or walked is None:
            continue
        counts = {one.attr for target, given in _given(first) if isinstance(given, ast.Constant) and given.value in (0, 1) and not isinstance(given.value, bool) for one in [target] if is_own(one)}
        for node in own(walked, ast.BinOp):
            inside = [one for one in (node.left, node.right) if is_own(one)]
            count = next((one for one in inside if one.attr in counts), None)
            if not isinstance(node.op, ast.Add) or len(inside) != 2 or count is None or not _is_given_to_a_call(program, node):
                continue
            moved = [one for one in program.everywhere(ast.Attribute) if one.attr == count.attr and isinstance(one.ctx, ast.Store) and next((each for each in program.parents(one) if isinstance(each, ast.FunctionDef)), None) is not first]
            makers = {next((each.name for each in program.parents(one) if isinstance(each, ast.FunctionDef)), None) for one in moved}
            if all(name is not None and name not in called and name != "__iter__" for name in makers) and "setattr" not in called:
                yield Remark(node, f"{short(node)} is the same in each epoch: nothing moves {short(count)} on, and the order of the samples is that of the first one each time")
                return


def _given(function: ast.FunctionDef) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What is stored in a function, and what is given to it."""
    for node in own(function, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple) and len(target.elts) == len(node.value.elts):
                yield from zip(target.elts, node.value.elts, strict=True)
            else:
                yield target, node.value


def _is_given_to_a_call(program: Program, node: ast.AST) -> bool:
    return isinstance(program.parent.get(node), ast.Call)


# Seeds that an evaluation sets for the training too -------------------------------------------


_STREAMS = {
    "numpy.random.seed": ("numpy.random.",), "random.seed": ("random.",), "torch.manual_seed": ("torch.",), "torch.random.manual_seed": ("torch.",),
    "lightning.seed_everything": ("numpy.random.", "random.", "torch."), "transformers.set_seed": ("numpy.random.", "random.", "torch."),
    "accelerate.utils.set_seed": ("numpy.random.", "random.", "torch."),
}
"""What sets the seed of a whole program, and what the functions begin with that draw by it."""
_STATES = ("fork_rng", "get_rng_state", "set_rng_state", "get_state", "set_state", "getstate", "setstate", "isolate_rng")
_CHANGING = frozenset({"index", "count", "element", "rows", "run", "either", "unknown", "time", "time_ns", "time.time", "time.time_ns", "add", "getrandbits", "urandom"}) | DRAWS
"""What a seed that differs from pass to pass is made of."""


@FINDERS.add("seeded-in-the-loop")
def _seeded_by_an_evaluation(program: Program) -> Iterator[Remark]:
    """An evaluation, without gradients, sets the seed of the whole program to one number, and the passes of the training that
    follow draw by it."""
    if any(is_attribute(one, *_STATES) for one in program.everywhere(ast.Attribute)):
        return
    computation = computation_of(program)
    seeds = [one for one in computation.of("seed", "manual_seed", "seed_everything", "set_seed", *_STREAMS) if program.called(one.node) in _STREAMS]
    for value in seeds:
        if not value.where.loops or not _is_evaluating(computation, value) or not _is_fixed(value) or not all(by_count(test) for test, _ in value.where.under):
            continue
        begins = _STREAMS[program.called(value.node)]
        for backward, loss in losses(computation):
            around = _passes(computation, value, backward)
            other = [one for one in seeds if one is not value and around and one.where.loops[: len(around)] == around and set(_STREAMS[program.called(one.node)]) & set(begins)]
            if not around or not all(map(_is_fixed, other)):
                continue
            drawn = next((one for one in origins(loss) if one.where.loops[: len(around)] == around and not one.where.no_grad and _draws_by(program, one, begins)), None)
            if drawn is not None:
                drawn = drawn.named["loader"] if drawn.op == "rows" else drawn
                yield Remark(value.node, f"{short(value.node)} sets the seed for the training too, in each pass of the loop of line {getattr(around[-1], 'lineno', 0)}: {short(drawn.node)} (line {drawn.line}) draws the same again and again")
                return


def _is_evaluating(computation: Computation, seed: Value) -> bool:
    """Whether a seed is set without gradients, or at the start of a function that computes the rest so and never goes back."""
    if seed.where.no_grad:
        return True
    around = seed.where.functions
    if not around or any(backward.where.functions[: len(around)] == around for backward, _ in losses(computation)):
        return False
    return any(one.where.no_grad and one.where.functions[: len(around)] == around for one in computation.values[seed.number + 1 :])


def _is_fixed(seed: Value) -> bool:
    """Whether a seed is set to the same number each time."""
    given = seed.args[-1] if seed.args else next(iter(seed.named.values()), None)
    return given is not None and not is_none(given) and not any(one.op in _CHANGING for one in origins(given))


def _passes(computation: Computation, seed: Value, backward: Value) -> tuple[ast.AST, ...]:
    """The loops around a seed and a backward, as few of them as make one training: with no optimizer that is made inside."""
    both = [one for one, other in zip(seed.where.loops, backward.where.loops, strict=False) if one is other]
    made = [one.where.loops for one in computation.values if is_optimizer(one)]
    for many in range(1, len(both) + 1):
        if seed.where.loops[:many] == backward.where.loops[:many] and not any(one[:many] == tuple(both[:many]) for one in made):
            return tuple(both[:many])
    return ()


def _draws_by(program: Program, value: Value, begins: tuple[str, ...]) -> bool:
    """Whether a value is drawn, or a batch is chosen, by the generator of the whole program that is meant by how its functions
    begin."""
    if value.op == "rows" and "torch." in begins:
        loader = value.named.get("loader")
        return loader is not None and "generator" not in loader.named and constant(loader.argument("shuffle", 2)) is True
    return value.op in (*DRAWS, "shuffle") and "generator" not in value.named and program.called(value.node).startswith(begins)
