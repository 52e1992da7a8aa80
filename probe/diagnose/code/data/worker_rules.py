"""Workers of a loader: what they are seeded with when they start. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import LOADER, data_sets
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    Function,
    argument,
    is_false,
    last_word,
    names_read,
    own_nodes,
    parameters,
    short,
    text_of,
)

RULES = Rules("data")
_SEEDS = {"numpy.random.seed": ("np.random.", "numpy.random."), "random.seed": ("random.",)}
"""Functions that seed a generator of the whole process, and what draws from it."""
_CHANGES = re.compile(r"epoch|\btime|urandom|initial_seed|get_worker_info|randint|entropy|counter|next\(", re.I)


@RULES.add(
    "workers-seeded-the-same-in-each-epoch",
    "the workers are started anew for each epoch, and draw the same random numbers in all of them",
    "seed with torch.initial_seed() % 2**32, which differs by worker and epoch, or pass persistent_workers=True",
)
def _seeded_the_same(program: Program) -> Iterator[Remark]:
    """A `worker_init_fn` that seeds numpy or random with a constant and the worker's number, where samples are drawn from them."""
    flow = flow_of(program)
    for loader in program.calls():
        if program.called(loader) != LOADER or flow.number(argument(loader, "num_workers", 5)) == 0:
            continue
        kept = argument(loader, "persistent_workers")
        start, bound = _started(program, flow, argument(loader, "worker_init_fn", 9))
        if start is None or not (kept is None or is_false(kept)) or "worker_seed" in text_of(bound):
            continue
        for call in own_nodes(start):
            name = program.called(call) if isinstance(call, ast.Call) else ""
            if not isinstance(call, ast.Call) or name not in _SEEDS or not call.args or _CHANGES.search(text_of(start) + text_of(bound)):
                continue
            constant = names_read(call.args[0]) <= {one.arg for one in parameters(start)} | _constants(program)
            drawn = any(_draws(program, of, _SEEDS[name]) for of in data_sets(program))
            if constant and drawn:
                yield Remark(call, f"{short(call)} gives a worker the same seed each time it starts")
                break


def _started(program: Program, flow: Flow, given: ast.AST | None) -> tuple[Function | ast.Lambda | None, ast.AST]:
    """The function of the program that workers run when they start, and how it was given."""
    value = flow.value(given) if given is not None else None
    inner = value
    if isinstance(value, ast.Call) and last_word(value.func) == "partial" and value.args:
        inner = value.args[0]
    if isinstance(inner, ast.Lambda):
        return inner, value or inner
    for node in program.everywhere(ast.FunctionDef):
        if isinstance(inner, ast.Name) and node.name == inner.id:
            return node, value or inner
    return None, ast.Constant("")


def _constants(program: Program) -> set[str]:
    """Names that are assigned once, at the top of a module."""
    found: dict[str, int] = {}
    for node in program.everywhere(ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                found[target.id] = found.get(target.id, 0) + (1 if isinstance(program.scope(node), ast.Module) else 2)
    return {name for name, times in found.items() if times == 1} | {"args", "np", "numpy", "random", "int"}


def _draws(program: Program, of: ast.ClassDef, prefixes: tuple[str, ...]) -> bool:
    """Whether a data set draws from the generator of the process when it gives a sample."""
    getter = program.method(of, "__getitem__")
    if getter is None:
        return False
    called = [local for one in own_nodes(getter) if isinstance(one, ast.Call) and (local := program.local_function(one)) is not None]
    text = "\n".join(text_of(one) for one in (getter, *called))
    return any(re.search(rf"(?<![\w.]){re.escape(prefix)}(?!seed|Generator|default_rng)\w", text) for prefix in prefixes)
