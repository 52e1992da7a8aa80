"""Networks that are trained on all parts of the data but one, in turn, and are not made anew for each part. Pure; standard library
only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Instance, Value, bare, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.traits.backwards import CUTS
from probe.diagnose.code.traits.updates import backwards, plain
from probe.diagnose.code.traits.weights import has_parameters

FINDERS = Finders()
_RESETS = (
    "load_state_dict", "reset_parameters", "apply", "deepcopy", "copy", "reset", "init_weights", "copy_", "normal_", "uniform_", "zero_",
    "xavier_uniform_", "kaiming_normal_", "kaiming_uniform_", "xavier_normal_", "constant_", "fill_",
)
_LOOPS = (ast.For, ast.AsyncFor)


@FINDERS.add("model-kept-across-folds")
def _kept_for_the_next_part(program: Program) -> Iterator[Remark]:
    """Each turn of a loop trains a network on all rows but those of its own number, and judges it by these; the network is from
    before the loop."""
    computation = computation_of(program)
    seen: set[tuple[int, ...]] = set()
    for back, loss in backwards(computation):
        ran = [one for one in origins(loss, CUTS) if one.op == "run" and has_parameters(plain(one.args[0]))]
        for around in back.where.loops[:-1]:  # the innermost one goes over batches or epochs
            key = (id(around), *sorted({id(plain(one.args[0])) for one in ran}))
            if not isinstance(around, _LOOPS) or key in seen:
                continue
            seen.add(key)
            kept = [one for one in ran if around not in plain(one.args[0]).where.loops]
            if not ran or len(kept) != len(ran) or any(one.op in _RESETS and around in one.where.loops for one in computation.values):
                continue
            network = plain(kept[0].args[0])
            if not any(_leaves_out(computation, part, around) for one in ran for part in _given(one)):
                continue
            judged = next((
                one for one in computation.of("run") if one.where.no_grad and around in one.where.loops
                and any(plain(each.args[0]) is plain(one.args[0]) for each in ran) and any(_is_of(part, around) for part in _given(one))
            ), None)
            if judged is not None:
                yield Remark(around, f"the network of line {network.line} is made once, before this loop, and each turn trains it further (line {back.line}): it has learned the rows that line {judged.line} judges it by in the turns before")
                return


def _given(run: Value) -> list[Value]:
    """What a layer is given, and all that this and the objects in it are made of."""
    waiting, found, seen = list(run.args[1:]), list[Value](), set[int]()
    while waiting:
        at = waiting.pop()
        if id(at) in seen:
            continue
        seen.add(id(at))
        found.append(at)
        inner = at.attributes.values() if isinstance(at, Instance) else at.made_of()
        waiting += [*inner, *([at.named["loader"]] if "loader" in at.named else [])]
    return found


def _is_of(value: Value, around: ast.AST) -> bool:
    """Whether a value is the number, or the entry, of a turn of a loop."""
    return value.op in ("index", "element") and value.where.loops[-1:] == (around,)


def _has_number(value: Value, around: ast.AST) -> bool:
    return any(_is_of(one, around) for one in origins(value))


def _leaves_out(computation: Computation, value: Value, around: ast.AST) -> bool:
    """Whether a value leaves out the rows of the turn of a loop: all parts but that one, all rows but those of its number."""
    if value.op == "ne":  # a row whose words differ is no row that is left out
        return any(_is_of(bare(one), around) for one in value.args)
    if value.op in ("setdiff1d", "invert", "delete"):
        return _has_number(value, around)
    if value.op == "element" and value.where.loops and around in value.where.loops[:-1] and not isinstance(value.where.loops[-1], _LOOPS):
        return any(one.where.loops == value.where.loops and any(_is_of(each, around) for each in one.args) for one in computation.of("ne", "not_in"))
    if value.op in ("cat", "add"):
        cuts = [one.args[1] for one in origins(value, stop=("slice",)) if one.op == "part" and len(one.args) == 2 and one.args[1].op == "slice"]
        before = any(_has_number(one.args[1], around) and not _has_number(one.args[0], around) for one in cuts)
        behind = any(_has_number(one.args[0], around) and not _has_number(one.args[1], around) for one in cuts)
        return before and behind
    return False
