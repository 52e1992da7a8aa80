"""Streams of samples that several workers draw from copies of one generator. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import DRAWN, Instance, Value, bare, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import says, short
from probe.diagnose.code.traits.basic import losses

FINDERS = Finders()
_LOADER = "torch.utils.data.DataLoader"
_GENERATORS = ("default_rng", "random.Random", "numpy.random.RandomState", "numpy.random.Generator", "torch.Generator")
_SEEDS = ("manual_seed", "seed", "set_state", "setstate")
_SETTLED = frozenset({
    "@constant", "@input", "@object", "add", "sub", "mul", "mod", "xor", "floordiv", "int", "hash", "count", "index", "carried", "either", "part", "element", "range",
})
"""Operations that give the same in each process that starts from the same values."""
_DIVIDES = (".id", "info.num_workers", "worker.num_workers", "worker_id", "get_worker_info().num_workers")
"""What a data set reads to take its own share."""
_ORDERS = ("shuffle", "randperm", "permutation")
_ENDLESS = ("next", "get", "recv", "itertools.cycle", "itertools.count", "itertools.repeat")
_PARTED = ("rank", "worker", "world", "getpid")
"""Words in a data set that knows which process it is in."""


def _with_workers(computation: Computation, least: int) -> Iterator[tuple[Value, Instance, float]]:
    """The loaders of the program's own data sets that have at least so many workers and start all of them alike: the loader, its
    data set, and how many."""
    for loader in computation.of(_LOADER):
        data, workers = loader.argument("dataset", 0), number(loader.argument("num_workers", 5))
        if isinstance(data, Instance) and workers is not None and workers >= least and not loader.named.keys() & {"worker_init_fn", "**"} and len(loader.args) <= 6:
            yield loader, data, workers


@FINDERS.add("seeded-in-each-draw")
def _seeded_for_each_sample(program: Program) -> Iterator[Remark]:
    """What a data set changes a sample by is drawn after the seed was set for that sample: to one number, or to the sample's own, and
    only for the samples that are trained on."""
    computation = computation_of(program)
    seeds = [one for one in computation.of("manual_seed", "seed") if any(_is_getter(each) for each in one.where.functions) and len(one.args) == 1 and one.args[0].op != "torch.Generator"]
    if not seeds:
        return
    learned = {id(one) for _, loss in losses(computation) for one in origins(loss)}
    given = {id(part) for run in computation.of("run") if id(run) in learned for one in run.args[1:] for part in origins(one)}
    judged = [one for run in computation.of("run") if run.where.no_grad for one in origins(run) if id(one) not in learned]
    drawn = [one for one in computation.of(*DRAWN) if any(_is_getter(each) for each in one.where.functions)]
    for seed in seeds:
        ends = next((one.number for one in seeds if one.number > seed.number and one.node is seed.node), 10**9)
        mine = [one for one in drawn if seed.number < one.number < ends and _draws_for(seed, one)]
        asked = next((one for one in mine if id(one) in given), None)
        fixed = number(seed.args[0]) is not None
        getter = next(one for one in seed.where.functions if _is_getter(one))
        plain = any(getter in one.where.functions for one in judged) and not any(one.node is each.node for one in judged for each in mine)
        if asked is not None and not seed.where.under and (fixed or (plain and _is_of_sample(seed.args[0]))):
            said = "all samples get the same random numbers" if fixed else "a sample gets the same random numbers in each epoch"
            yield Remark(seed.node, f"{short(seed.node)} sets the seed anew for each sample, and {short(asked.node)} (line {asked.line}) draws after it: {said}")
            return


def _is_getter(function: ast.AST) -> bool:
    return getattr(function, "name", "") == "__getitem__"


def _draws_for(seed: Value, draw: Value) -> bool:
    """Whether a draw is made by the library whose seed was set."""
    library = "torch" if seed.op == "manual_seed" else "numpy" if any(word in ast.unparse(seed.node) for word in ("np.", "numpy")) else "random"
    text = ast.unparse(draw.node)
    theirs = "numpy" if "np." in text or "numpy" in text else "torch" if "torch" in text else "random" if "random." in text else ""
    return theirs == library


def _is_of_sample(seed: Value) -> bool:
    """Whether a seed is the number of the sample, perhaps with a fixed number: not with that of an epoch."""
    found = list(origins(seed, stop=("index",)))
    return len([one for one in found if one.op == "index"]) == 1 and all(one.op in ("index", "add", "mul", "int", "@constant") for one in found)


@FINDERS.add("copied-by-workers")
def _same_draws(program: Program) -> Iterator[Remark]:
    """A data set that is gone over draws its samples from a generator that is the same in each worker of its loader."""
    if any("get_worker_info" in source.text for source in program.sources):
        return
    computation = computation_of(program)
    for loader, data, workers in _with_workers(computation, 2):
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
    for loader, data, workers in _with_workers(computation, 1):
        item = program.method(data.of, "__getitem__") if data.of is not None else None
        kept = "persistent_workers" in loader.named  # through the epochs
        if item is None or (kept and workers < 2):
            continue
        runs: set[ast.AST] = {item}
        for one in computation.values:
            drawn = _drawn_alike(computation, one, runs)
            if drawn is None or runs.intersection(drawn[1].where.functions) or drawn[1].where.loops or any(each.op in _SEEDS and (each.where.loops or runs.intersection(each.where.functions)) for each in computation.users(drawn[1])):
                continue
            yield Remark(one.node, f"{short(one.node)} draws from {short(drawn[1].node)} (line {drawn[1].line}), and each worker of the loader in line {loader.line} has a copy of it: they draw the same numbers{'' if kept else ', and the same again in each epoch'}")
            return


@FINDERS.add("copied-by-workers")
def _all_of_it(program: Program) -> Iterator[Remark]:
    """A data set that is gone over gives what it holds from the first to the last, or in an order of its own, in each worker: nothing
    asks which worker it is."""
    asking = "".join(text for one in program.everywhere(ast.FunctionDef) if "worker" in (text := ast.unparse(one)))
    if any(word in asking for word in _DIVIDES):
        return
    computation = computation_of(program)
    for loader, data, workers in _with_workers(computation, 2):
        classes = list(_gone_over(program, data, asks=True))
        runs: set[ast.AST] = {one for of in classes if (one := program.method(of, "__iter__")) is not None}
        given = [one for one in computation.values if one.named.get("loader") is loader or (runs.intersection(one.where.functions) and one.op in (*_ENDLESS, *DRAWN))]
        rows = [one for one in given if one.op == "rows"]
        ended = all(one.op in ("rows", *_ORDERS) for one in given) and not any(isinstance(one, ast.While) for of in classes for one in ast.walk(of))
        found = [each for one in rows for each in origins(one, stop=("randperm", "permutation"))]
        stored = any(each.op in ("element", "part") and each.args and _is_of_the_whole(each, data) for each in found)
        if rows and runs and ended and stored and not any(each.op in DRAWN and each.op not in _ORDERS and runs.intersection(each.where.functions) for each in found):
            yield Remark(loader.node, f"each of the {workers:.0f} workers has a copy of {data.of.name if data.of is not None else ''}, and its __iter__ goes over all of it: every sample comes once for each worker")
            return


def _is_of_the_whole(value: Value, data: Instance) -> bool:
    """Whether a value is one of the elements, or a piece, of what a data set keeps, or of a file that it names."""
    kept = [bare(one) for one in data.attributes.values()]
    source = bare(value.args[0])
    if source.op in ("open", "reader", "csv.reader", "csv.DictReader", "gzip.open", "iter_rows"):
        return any(any(part is one for one in kept) for part in origins(source))
    index = value.args[1] if value.op == "part" and len(value.args) == 2 else None
    moved = index is None or any(one.op in ("element", "index") for one in origins(index))
    return moved and any(source is one for one in kept if one.op not in ("@constant", "@input", "@object"))


def _gone_over(program: Program, data: Instance, depth: int = 4, asks: bool = False) -> Iterator[ast.ClassDef]:
    """The class of an iterable data set, and those of the data sets that it is made of. `asks`: also where it asks for its worker, but
    neither for its number nor for how many there are."""
    if data.of is None or depth == 0:
        return
    bases = [data.of, *program.bases(data.of)]
    text = "".join(ast.unparse(one).lower() for one in bases)
    parted = any(word in text for word in ("rank", "world", "getpid", "islice", "queue", *_DIVIDES)) if asks else any(word in text for word in _PARTED)
    if any(says(base, "iterabledataset", "iterdatapipe") for one in bases for base in one.bases) and not parted:
        yield from bases
    for one in data.attributes.values():
        if isinstance(one, Instance):
            yield from _gone_over(program, one, depth - 1, asks)


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
