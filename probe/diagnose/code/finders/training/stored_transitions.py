"""States, actions, rewards and what followed: what is stored together, and what an action is chosen for. Pure; standard
library only."""

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
from probe.diagnose.code.finders.losses.bootstraps import backups
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import is_run_of_network, networks, product, sides
from probe.diagnose.code.traits.basic import squared, without_small
from probe.diagnose.code.traits.episodes import is_environment_step

FINDERS = Finders()
_TAKEN_OUT = ("pop", "popleft", "clear", "popitem", "remove", "set_item")
_MOVED = ("element", "rows", "builtins.float", "float32")
_PARTS = ("the next state", "the reward", "the end of the episode")
_SUMMED = ("sum", "mean", "squeeze", "unsqueeze", "reshape", "to", "float")


def part_of_step(value: Value) -> tuple[Value, int] | None:
    """What an environment gave that a value is: what `step` gave, and the place in it."""
    value = bare(value, *_MOVED)
    while isinstance(value, Many) and len(value.parts) == 1:
        value = bare(value.parts[0], *_MOVED)
    place = constant(value.args[1]) if value.op == "part" and is_environment_step(value.args[0]) else None
    return (value.args[0], place) if isinstance(place, int) and place < 3 else None


def _before(value: Value, step: Value) -> bool:
    """Whether a value is computed outside of the innermost loop that a step of the environment is in."""
    around, loops = value.where.loops, step.where.loops
    return len(around) < len(loops) and loops[: len(around)] == around


@FINDERS.add("state-out-of-step")
def _first_state_for_all(program: Program) -> Iterator[Remark]:
    """Each action of a loop is chosen for the state that the environment was reset to before it."""
    computation = computation_of(program)
    for step in computation.of("step"):
        if not is_environment_step(step) or not step.where.loops:
            continue
        runs = [one for one in origins(step.args[1]) if one.op == "run" and one.where.loops == step.where.loops]
        seen = [one for run in runs for given in run.args[1:] for one in origins(given)]
        starts = [one for one in seen if one.op == "reset" and one.args and one.args[0] is step.args[0] and _before(one, step)]
        if starts and not any(one.op in ("step", "either", "carried", "unknown") for one in seen) and not _is_carried(computation, seen, step):
            yield Remark(step.node, f"{short(step.node)} takes an action that is chosen for {short(starts[0].node)} (line {starts[0].line}), the state before the loop: no pass goes on with the state that the one before it led to")


def _is_carried(computation: Computation, seen: list[Value], step: Value) -> bool:
    """Whether a name that has one of these values before a loop gets another one in it, or an object keeps one."""
    inside = {id(one) for one in seen}
    outer = {id(one) for one in seen if _before(one, step) and one.op != "@constant"}
    if any(id(one.args[1]) in inside for one in computation.of("set_attribute") if len(one.args) > 1):
        return True
    names = {(target.id, computation.program.scope(target)) for target, given in computation.stored.items() if any(id(one) in outer for one in given)}
    loop = step.where.loops[-1]
    return any(
        (target.id, computation.program.scope(target)) in names and loop in computation.program.parents(target) for target in computation.stored
    )


@FINDERS.add("state-out-of-step")
def _stored_twice(program: Program) -> Iterator[Remark]:
    """A transition has what followed in the place of the state too."""
    computation = computation_of(program)
    for step in computation.of("step"):
        if not is_environment_step(step):
            continue
        for value in (one for each in computation.users(step) if each.op == "part" for one in computation.users(each)):
            kept = value.parts if isinstance(value, Many) else list(value.args[1:]) if value.op in ("add", "push", "store", "append", "remember", "put") else []
            told = [found[1] for one in kept if (found := part_of_step(one)) is not None and found[0] is step]
            acted = any(bare(one) is bare(step.args[1]) for one in kept)
            if len(kept) >= 4 and told.count(0) == 2 and 1 in told and acted and not any(_is_state(computation, one, step) for one in kept):
                yield Remark(value.node, f"{short(value.node)} has the state after {short(step.node)} (line {step.line}) twice: the state that the action was chosen for is lost")
                return


def _is_state(computation: Computation, value: Value, step: Value) -> bool:
    """Whether a value is what the action of a step was chosen for."""
    return part_of_step(value) is None and number(value) is None and bare(value) is not bare(step.args[1]) and any(
        one is bare(value) for one in origins(step.args[1])
    )


@FINDERS.add("fields-in-another-order")
def _fields_in_another_order(program: Program) -> Iterator[Remark]:
    """What is added as a reward, or given to a network as the next state, is another part of what the environment gave."""
    for one in backups(computation_of(program)):
        found = part_of_step(one.reward)
        if found is not None and found[1] != 1:
            yield Remark(one.whole.node, f"{short(one.whole.node)} adds {short(bare(one.reward).node)} as the reward, and it is stored as {_PARTS[found[1]]} (line {found[0].line})")
            continue
        for run in (each for each in origins(one.future, ("run",)) if each.op == "run" and len(each.args) == 2):
            given = part_of_step(run.args[1])
            if given is not None and given[1] != 0:
                yield Remark(run.node, f"{short(run.node)} is to give the value of what follows, and {short(run.args[1].node)} is stored as {_PARTS[given[1]]} (line {given[0].line})")
                break


@FINDERS.add("squashed-without-correction")
def _squashed_without_correction(program: Program) -> Iterator[Remark]:
    """A critic judges tanh of a sample that keeps its gradient, and beside it stands the density of the sample itself."""
    computation = computation_of(program)
    known = networks(computation)
    for density, drawn in _densities_of_samples(computation):
        squashed = [one for one in computation.users(drawn) if one.op == "tanh"]
        if not squashed:
            continue
        beside = list(_beside(computation, density))
        judged = [one for each in beside for one in origins(each, ("run",)) if is_run_of_network(one, known) and any(part is squashed[0] for given in one.args[1:] for part in origins(given))]
        corrected = any(part is drawn or part is squashed[0] for each in beside for part in origins(each, ("run",)))
        if judged and not corrected:
            yield Remark(density.node, f"{short(density.node)} is the density of {short(drawn.node)}, and {short(judged[0].node)} (line {judged[0].line}) judges its tanh (line {squashed[0].line}): what tanh does to the density is left out")


def _densities_of_samples(computation: Computation) -> Iterator[tuple[Value, Value]]:
    """The log densities of samples that keep their gradients, each with the sample: of a distribution, and by hand, as the square
    of (sample - mean) / deviation."""
    for density in computation.of("log_prob"):
        if len(density.args) == 2 and _is_normal(density.args[0]) and _is_drawn_of(drawn := bare(density.args[1]), density.args[0]):
            yield density, drawn
    for value in computation.of("div"):
        gap, spread = bare(value.args[0]), without_small(value.args[1])
        if gap.op == "sub" and len(gap.args) == 2 and _is_noisy(drawn := bare(gap.args[0]), gap.args[1], spread):
            yield from ((user, drawn) for user in computation.users(value) if squared(user) is not None)


def _is_normal(value: Value) -> bool:
    value = value.args[0] if value.op.endswith(".Independent") and value.args else value
    return value.op.startswith("torch.distributions.") and value.op.endswith(".Normal")


def _is_drawn_of(drawn: Value, normal: Value) -> bool:
    """Whether a value is a sample of a normal distribution that keeps its gradient: `normal.rsample()`, `mean + std * noise`."""
    if drawn.op == "rsample":
        return bare(drawn.args[0]) is bare(normal)
    normal = normal.args[0] if normal.op.endswith(".Independent") and normal.args else normal
    mean, spread = normal.argument("loc", 0), normal.argument("scale", 1)
    return mean is not None and spread is not None and _is_noisy(drawn, mean, spread)


def _is_noisy(drawn: Value, mean: Value, spread: Value) -> bool:
    """Whether a value is `mean + spread * noise`."""
    for centre, noise in sides(drawn) if drawn.op == "add" else ():
        above = [bare(one) for one in product(noise).above]
        if same(bare(centre), bare(mean)) and any(same(one, bare(spread)) for one in above) and any(one.op in ("randn", "randn_like", "normal", "sample", "rsample") for one in above):
            return True
    return False


def _beside(computation: Computation, density: Value) -> Iterator[Value]:
    """What is added to a log probability, or it is added to, with what that is added to."""
    waiting, seen = [density], {id(density)}
    while waiting and len(seen) < 60:
        at = waiting.pop()
        for user in computation.users(at):
            if id(user) in seen:
                continue
            seen.add(id(user))
            if user.op in ("add", "sub"):
                yield from (one for one in user.args if one is not at)
                waiting.append(user)
            elif user.op in (*_SUMMED, "mul", "neg", "part") or isinstance(user, (Many, Table)):
                waiting.append(user)


def emptied_after_storing(program: Program) -> Iterator[Remark]:
    """A list is stored as it is in each pass of a loop, and emptied in each pass: all entries of the store are that list."""
    computation = computation_of(program)
    emptied = {id(one.args[0]): one for one in computation.of("clear") if one.args and isinstance(one.args[0], Many) and one.args[0].op == "list"}
    for added in computation.of("append") if emptied else ():
        store, entry = added.args
        loops = [one for one in added.where.loops if one not in store.where.loops]
        for kept in _inside(entry):
            clear = emptied.get(id(kept))
            if clear is None or not loops or loops[0] not in clear.where.loops or loops[0] in kept.where.loops or kept is store:
                continue
            if id(store) in emptied or any(one.op in _TAKEN_OUT for one in computation.users(store)) or any(_is_made_again(computation, one, loops[0]) for one in (kept, store)):
                continue
            name = short(clear.node.func.value) if isinstance(clear.node, ast.Call) and isinstance(clear.node.func, ast.Attribute) else short(kept.node)
            yield Remark(added.node, f"{short(added.node)} keeps the list of line {kept.line} itself, which is {name} in line {clear.line} and is emptied there in each pass: all entries are one list")
            return


def _inside(entry: Value, depth: int = 4) -> Iterator[Many]:
    """The lists that an entry is, or holds as they are."""
    found = entry.made_of() if isinstance(entry, (Many, Table)) else entry.attributes.values() if isinstance(entry, Instance) else ()
    if isinstance(entry, Many) and entry.op == "list":
        yield entry
    for one in found if depth else ():
        yield from _inside(one, depth - 1)


def _is_made_again(computation: Computation, kept: Value, loop: ast.AST) -> bool:
    """Whether a loop gives the names or attributes that hold a list another one."""
    names = {target.id for target, given in computation.stored.items() if any(one is kept for one in given)}
    attributes = {one.data for one in computation.of("set_attribute") if len(one.args) > 1 and one.args[1] is kept}
    return any(one.data in attributes and loop in one.where.loops for one in computation.of("set_attribute")) or any(
        target.id in names and loop in value.where.loops and value is not kept for target, given in computation.stored.items() for value in given
    )
