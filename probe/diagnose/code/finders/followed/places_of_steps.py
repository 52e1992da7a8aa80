"""Steps of a sampler that goes over a part of the steps: places in its list, and the steps themselves. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import KEPT, SHAPED, Many, Value, bare, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses

_COUNTERS = ("index", "count", "carried")


def place_for_step(program: Program) -> Iterator[Remark]:
    """A sampler goes over a list of some of the steps, takes the amount of noise of one of them, and tells the network the place of
    the step in the list; or the other way round. In the training both are the step."""
    computation = computation_of(program)
    learns = {id(one): one for _, loss in losses(computation) for one in origins(loss)}
    tables = _tables(learns)
    if not tables:
        return
    for filled in computation.of("full", "full_like", "tensor", "as_tensor", "mul"):
        told = _step(filled) if filled.where.no_grad and filled.where.loops and id(filled) not in learns else None
        if told is None:
            continue
        loop = filled.where.loops[-1]
        runs = {id(one) for one in computation.of("run") if loop in one.where.loops and one.number > filled.number and any(part is filled for part in origins(one))}
        taken = [one for one in computation.of("part") if runs and loop in one.where.loops and any(_table(one.args[0]) is each for each in tables) and _is_used_with(computation, one, runs)]
        steps = [_plain(one.args[1]) for one in taken]
        if any(one is told or same(one, told) for one in steps):
            continue
        cut = [one for one in computation.of("part") if runs and loop in one.where.loops and _cut_from(one, tables) is not None and _is_used_with(computation, one, runs)]
        if cut and not taken and _is_counted(told):
            yield Remark(filled.node, f"{short(filled.node)} tells the network the place of a step in the list that the sampler goes over, and {short(cut[0].node)} (line {cut[0].line}) takes the noise of the step that stands there: in the training both are the step")
            return
        for one, step in zip(taken, steps, strict=True):
            if _is_place_in(told, step) or _is_place_in(step, told):
                place, of = (told, step) if _is_place_in(told, step) else (step, told)
                at = filled if place is told else one
                which = f"{short(filled.node)} tells the network" if place is told else f"{short(one.node)} takes the noise of"
                yield Remark(at.node, f"{which} the place of a step in the list that the sampler goes over, and {short((one if place is told else filled).node)} (line {(one if place is told else filled).line}) {'takes the noise of' if place is told else 'tells the network'} the step {short(of.node)} itself: in the training both are the step")
                return


def _tables(learns: dict[int, Value]) -> list[Value]:
    """The tables of which a training takes the entries of drawn steps."""
    found = []
    for one in learns.values():
        if one.op == "part" and len(one.args) == 2 and any(each.op in ("randint", "integers") for each in origins(_plain(one.args[1]))) and any(each.op == "cumprod" for each in origins(one.args[0])):
            found.append(_table(one.args[0]))
    return found


def _cut_from(entry: Value, tables: list[Value]) -> Value | None:
    """The list of some of the steps whose entries of a table an entry is taken from: `table[steps][i]`."""
    rows = _table(entry.args[0])
    if rows.op != "part" or len(rows.args) != 2 or not any(_table(rows.args[0]) is each for each in tables) or not _is_counted(_plain(entry.args[1])):
        return None
    return rows.args[1] if _is_spread(rows.args[1]) else None


def _table(value: Value) -> Value:
    while value.args and (value.op in KEPT or value.op in SHAPED) and not isinstance(value, Many):
        value = value.args[0]
    return value


def _plain(value: Value) -> Value:
    """A step without its type and shape; the number that a tensor is filled with."""
    for _ in range(12):
        value = bare(value, "builtins.int", "int")
        if value.op in ("full", "full_like") and len(value.args) > 1:
            value = value.args[1]
        elif value.op == "mul" and len(value.args) == 2 and any(bare(one).op in ("ones", "ones_like") for one in value.args):
            value = next(one for one in value.args if bare(one).op not in ("ones", "ones_like"))
        elif value.op in ("tensor", "as_tensor", "expand", "repeat") and value.args:
            value = value.args[0]
        elif isinstance(value, Many) and len(value.parts) == 1:
            value = value.parts[0]
        else:
            break
    return value


def _step(value: Value) -> Value | None:
    """The step that a network is told: counted by a loop, or taken from a list of steps; None where it is something else."""
    step = _plain(value)
    return step if _is_counted(step) or _list_of(step) is not None else None


def _is_counted(value: Value) -> bool:
    """Whether a value is where a loop over `range` is, also counted from the end."""
    if value.op in _COUNTERS:
        return True
    if value.op == "element":
        over = bare(value.args[0], "reversed", "tqdm", "list")
        return over.op == "range" and len(over.args) == 1
    return value.op in ("add", "sub") and any(_is_counted(bare(one)) for one in value.args) and all(_is_counted(bare(one)) or number(one) is not None or bare(one).op == "len" for one in value.args)


def _list_of(step: Value) -> Value | None:
    """The list of some of the steps that a step is an entry of."""
    if step.op not in ("part", "element") or not step.args or _is_counted(step):
        return None
    listed = step.args[0]
    return listed if _is_spread(listed) else None


def _is_spread(listed: Value) -> bool:
    """Whether a list holds some of the numbers of a range, as far apart as a step says."""
    made = list(origins(listed))
    spread = any(one.op == "linspace" or (one.op in ("arange", "range") and len(one.args) == 3 and number(one.args[2]) not in (1, -1)) for one in made)
    return spread and not any(one.op in ("run", "cumprod", "randint") for one in made)


def _is_place_in(place: Value, step: Value) -> bool:
    """Whether one value counts the places of a list, and the other one is an entry of such a list."""
    return _is_counted(place) and _list_of(step) is not None


def _is_used_with(computation: Computation, entry: Value, runs: set[int]) -> bool:
    """Whether an entry of a table is computed with what a network says in the same pass."""
    waiting, seen = [entry], {id(entry)}
    while waiting and len(seen) < 40:
        for user in computation.users(waiting.pop()):
            if any(any(id(part) in runs for part in origins(one, ("run",))) for one in user.args):
                return True
            if id(user) not in seen and user.op in ("sqrt", "sub", "pow", "mul", "div", "either", "view", "reshape", "rsqrt", "add"):
                seen.add(id(user))
                waiting.append(user)
    return False
