"""Streams of samples that several workers draw from copies of one generator. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Instance, Value, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import says, short

FINDERS = Finders()
_LOADER = "torch.utils.data.DataLoader"
_GENERATORS = ("default_rng", "random.Random", "numpy.random.RandomState", "numpy.random.Generator", "torch.Generator")
_SEEDS = ("manual_seed", "seed", "set_state", "setstate")
_SETTLED = frozenset({
    "@constant", "@input", "@object", "add", "sub", "mul", "mod", "xor", "floordiv", "int", "hash", "count", "index", "carried", "either", "part", "element", "range",
})
"""Operations that give the same in each process that starts from the same values."""
_PARTED = ("rank", "worker", "world", "getpid")
"""Words in a data set that knows which process it is in."""


@FINDERS.add("copied-by-workers")
def _same_draws(program: Program) -> Iterator[Remark]:
    """A data set that is gone over draws its samples from a generator that is the same in each worker of its loader."""
    if any("get_worker_info" in source.text for source in program.sources):
        return
    computation = computation_of(program)
    for loader in computation.of(_LOADER):
        data, workers = loader.argument("dataset", 0), number(loader.argument("num_workers", 5))
        if not isinstance(data, Instance) or workers is None or workers < 2 or loader.named.keys() & {"worker_init_fn", "**"} or len(loader.args) > 6:
            continue
        runs: set[ast.AST] = {one for of in _gone_over(program, data) if (one := program.method(of, "__iter__")) is not None}
        draw = next((found for one in computation.values if (found := _drawn_alike(computation, one, runs)) is not None), None) if runs else None
        if draw is not None:
            yield Remark(draw[0].node, f"{short(draw[0].node)} draws from {short(draw[1].node)} (line {draw[1].line}), and each of the {workers:.0f} workers of the loader in line {loader.line} has a copy of it: they all give the same samples")
            return


@FINDERS.add("copied-by-workers")
def _same_draws_of_items(program: Program) -> Iterator[Remark]:
    """A data set that is read by index changes its samples by a generator that it, or a transform of it, was given: the workers
    have copies of it, and start from the same state in each epoch."""
    if "get_worker_info" in "".join(source.text for source in program.sources):
        return
    computation = computation_of(program)
    for loader in computation.of(_LOADER):
        data, workers = loader.argument("dataset", 0), number(loader.argument("num_workers", 5))
        item = program.method(data.of, "__getitem__") if isinstance(data, Instance) and data.of is not None else None
        if item is None or workers is None or workers < 1 or loader.named.keys() & {"worker_init_fn", "persistent_workers", "**"} or len(loader.args) > 6:
            continue
        runs: set[ast.AST] = {item}
        for one in computation.values:
            drawn = _drawn_alike(computation, one, runs)
            if drawn is None or runs.intersection(drawn[1].where.functions) or drawn[1].where.loops or any(each.op in _SEEDS and (each.where.loops or runs.intersection(each.where.functions)) for each in computation.users(drawn[1])):
                continue
            yield Remark(one.node, f"{short(one.node)} draws from {short(drawn[1].node)} (line {drawn[1].line}), and each worker of the loader in line {loader.line} has a copy of it: they draw the same numbers, and the same again in each epoch")
            return


def _gone_over(program: Program, data: Instance, depth: int = 4) -> Iterator[ast.ClassDef]:
    """The class of an iterable data set, and those of the data sets that it is made of."""
    if data.of is None or depth == 0:
        return
    bases = [data.of, *program.bases(data.of)]
    text = "".join(ast.unparse(one).lower() for one in bases)
    if any(says(base, "iterabledataset", "iterdatapipe") for one in bases for base in one.bases) and not any(word in text for word in _PARTED):
        yield from bases
    for one in data.attributes.values():
        if isinstance(one, Instance):
            yield from _gone_over(program, one, depth - 1)


def _drawn_alike(computation: Computation, value: Value, runs: set[ast.AST]) -> tuple[Value, Value] | None:
    """What a value is drawn from: a generator that is the same in each process that goes over a data set."""
    if value.op in _SEEDS or value.op == "set_attribute" or not runs.intersection(value.where.functions):
        return None
    given = [*value.args[:1], *([value.named["generator"]] if "generator" in value.named else [])]
    for one in given:
        made = one.args[0] if one.op == "manual_seed" and one.args else one
        if made.op not in _GENERATORS:
            continue
        inside = bool(runs.intersection(made.where.functions))
        seeds = [each for each in computation.users(made) if each.op in _SEEDS and runs.intersection(each.where.functions)]
        fixed = all(len(each.args) > 1 and _is_settled(each.args[1]) for each in seeds)
        if inside and made.op != "torch.Generator":
            fixed = fixed and bool(made.args or "seed" in made.named) and all(_is_settled(each) for each in made.made_of())
        if fixed:
            return value, made
    return None


def _is_settled(seed: Value) -> bool:
    """Whether a seed is the same in each worker."""
    found = list(origins(seed))
    return all(one.op in _SETTLED for one in found) and not (seed.op == "@constant" and seed.data is None)
