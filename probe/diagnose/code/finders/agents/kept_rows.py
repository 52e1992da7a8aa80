"""What an agent keeps of its steps, and draws again: rows of several arrays, states beside actions, rewards in their order, and
the entropy of its policy. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Code, Many, Value, bare, constant, number, origins
from probe.diagnose.code.finders.losses.bootstraps import backups
from probe.diagnose.code.finders.training.stored_transitions import part_of_step
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import product
from probe.diagnose.code.traits.basic import losses, terms
from probe.diagnose.code.traits.episodes import array_of, is_environment_step, kept_as, put_into
from probe.diagnose.code.traits.likelihoods import action_of, is_likelihood

FINDERS = Finders()
_DRAWS = ("randint", "integers", "choice", "random_integers", "randperm", "permutation")
_DISTRIBUTION = "torch.distributions."


# Rows of one step ---------------------------------------------------------------------------


@FINDERS.add("shuffled-apart")
def _fields_drawn_apart(program: Program) -> Iterator[Remark]:
    """The state and the action of a loss, or a reward and what followed, are rows of arrays that one step fills together, and
    each is taken at places of its own."""
    computation = computation_of(program)
    for one, other in _together(computation):
        mine, theirs = (next((draw for each in origins(value, ("run", "part")) if (draw := _drawn_by(computation, each)) is not None), None) for value in (one, other))
        if mine is not None and theirs is not None and mine is not theirs and mine.op == theirs.op and mine.where.loops == theirs.where.loops:
            yield Remark(theirs.node, f"{short(theirs.node)} is drawn anew for each of the arrays that a step is kept in: {short(bare(one).node)} (line {one.line}) and {short(bare(other).node)} (line {other.line}) are rows of different steps")
            return


def _together(computation: Computation) -> Iterator[tuple[Value, Value]]:
    """What belongs to one step: a network's input and the action that its output is asked for, a reward and what followed it."""
    for state, action, _ in _asked(computation):
        yield state, action
    for run in _learned(computation):
        joined = bare(run.args[1]) if run.op == "run" and len(run.args) > 1 else run
        given = joined.args[0] if joined.op == "cat" and joined.args else None
        if isinstance(given, Many) and len(given.parts) == 2 and not given.grown:
            yield given.parts[0], given.parts[1]
    for one in backups(computation):
        yield from ((one.reward, given) for run in origins(one.future, ("run",)) if run.op == "run" for given in run.args[1:2])


def _drawn_by(computation: Computation, value: Value) -> Value | None:
    """The draw that says which rows a value is of an array that the program fills."""
    value = bare(value)
    if value.op != "part" or len(value.args) != 2 or not put_into(computation, value.args[0]) or array_of(value.args[0]) is None:
        return None
    index = bare(value.args[1])
    return index if index.op in _DRAWS else None


def _asked(computation: Computation) -> Iterator[tuple[Value, Value, Value]]:
    """Where a loss asks what a network says of an action: what the network is given first, the action, and where."""
    for value in _learned(computation):
        action = action_of(value) if value.op in ("log_prob", "gather", "part") else None
        if action is None or (value.op == "part" and not isinstance(value.args[1], Many)):
            continue
        at: Value | None = value.args[0]
        for _ in range(30):
            at = None if at is None else _inner(at)
            if at is None or at.op == "@input":
                break
            first = at.args[1] if at.op == "run" and len(at.args) > 1 else None
            if first is not None and not _is_answer(first):
                yield first, action, value
                break


def _inner(value: Value) -> Value | None:
    """What a value is computed of first, along a network; the value itself where that is a layer's output of data."""
    if value.op == "run" and len(value.args) > 1 and not _is_answer(value.args[1]):
        return value
    if value.op.startswith(_DISTRIBUTION):
        return next((one for one in (*value.args, *value.named.values()) if any(each.op == "run" for each in origins(one))), None)
    return (value.args[1] if value.op == "run" else value.args[0]) if len(value.args) > (value.op == "run") else None


def _is_answer(value: Value) -> bool:
    """Whether a network computes a value, and not what an environment answers to it."""
    return any(one.op == "run" for one in origins(value, ("step", "reset")))


def _learned(computation: Computation) -> list[Value]:
    """All that the losses are made of."""
    return list({id(one): one for _, loss in losses(computation) for one in origins(loss)}.values())


@FINDERS.add("state-out-of-step")
def _next_state_beside_action(program: Program) -> Iterator[Remark]:
    """A loss asks what a network says of an action in a state, and the state that was kept is the one that the action has led to."""
    computation = computation_of(program)
    for state, action, asked in _asked(computation):
        led = part_of_step(kept_as(computation, state))
        taken = kept_as(computation, action)
        if led is None or led[1] != 0 or asked.where.no_grad:
            continue
        done = kept_as(computation, led[0].args[1])
        if bare(taken) is bare(done) and done.op not in ("@constant", "@input"):
            yield Remark(asked.node, f"{short(asked.node)} asks for the action of {short(led[0].node)} (line {led[0].line}) in {short(state.node)}, and what was kept there is the state that this action has led to")
            return


# Rewards in their order ---------------------------------------------------------------------


@FINDERS.add("returns-in-the-wrong-order")
def _accumulated_forwards(program: Program) -> Iterator[Remark]:
    """`itertools.accumulate` adds up discounted rewards of an episode from its first step on."""
    computation = computation_of(program)
    for value in computation.of("itertools.accumulate"):
        fold = value.argument("func", 1)
        rewards = value.args[0] if value.args else value
        if not isinstance(fold, Code) or not _is_discounting(fold.function) or not isinstance(rewards, Many) or not rewards.grown or len(rewards.parts) != 1:
            continue
        told = part_of_step(rewards.parts[0])
        if told is None or told[1] != 1 or _is_turned(computation, value, rewards):
            continue
        yield Remark(value.node, f"{short(value.node)} runs over {short(value.node.args[0]) if isinstance(value.node, ast.Call) and value.node.args else 'the rewards'} from the start: each return adds up the rewards before it and not those after it")
        return


def _is_discounting(function: ast.AST) -> bool:
    """Whether a function of a sum so far and a reward gives `reward + discount * sum`."""
    body = function.body if isinstance(function, ast.Lambda) else function.body[-1].value if isinstance(function, ast.FunctionDef) and isinstance(function.body[-1], ast.Return) else None
    names = [one.arg for one in function.args.args] if isinstance(function, (ast.Lambda, ast.FunctionDef)) else []
    if not isinstance(body, ast.BinOp) or not isinstance(body.op, ast.Add) or len(names) != 2:
        return False
    plain = [one.id for one in (body.left, body.right) if isinstance(one, ast.Name)]
    scaled = next((one for one in (body.left, body.right) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mult)), None)
    return plain == names[1:] and scaled is not None and any(isinstance(one, ast.Name) and one.id == names[0] for one in (scaled.left, scaled.right))


def _is_turned(computation: Computation, value: Value, rewards: Many) -> bool:
    """Whether rewards are put in front of each other, or turned round before they are added up."""
    turned = ("reversed", "reverse", "insert", "appendleft", "flip", "::-1")
    texts = [ast.unparse(one) for scope in (computation.program.frame(value.node), computation.program.frame(rewards.node)) for one in scope.body if isinstance(one, ast.stmt)] if all(isinstance(getattr(computation.program.frame(one.node), "body", None), list) for one in (value, rewards)) else [ast.unparse(value.node)]
    return any(word in text for text in texts for word in turned)


# The entropy of a policy ----------------------------------------------------------------------


@FINDERS.add("term-of-the-wrong-sign")
def _entropy_minimized(program: Program) -> Iterator[Remark]:
    """A policy that acts in an environment is learned by the probability of its actions, and its entropy, computed by hand, is
    added to what is minimized."""
    computation = computation_of(program)
    if not any(is_environment_step(one) for one in computation.of("step")):
        return
    for _, loss in losses(computation):
        found = list(terms(loss))
        gains = [term for term, _ in found if any(is_likelihood(one) for one in product(_unmeaned(term)).above)]
        for term, factor in found if gains else ():
            sign = _entropy_by_hand(term)
            if factor is not None and sign is not None and factor * sign > 0:
                yield Remark(term.node, f"{short(term.node)} is added to what is minimized: training makes the policy surer of itself instead of letting it explore")
                return


def _unmeaned(value: Value) -> Value:
    """A value without the means, sums and minus signs around it."""
    while value.op in ("mean", "sum", "neg", "stack") and value.args:
        value = value.args[0]
        value = value.parts[0] if isinstance(value, Many) and len(value.parts) == 1 else value
    return value


def _entropy_by_hand(value: Value) -> int | None:
    """1 for -sum(p * log p), -1 for sum(p * log p); None for all else."""
    sign, value = 1, bare(value)
    while value.op in ("mean", "sum", "neg") and value.args:
        sign = -sign if value.op == "neg" else sign
        value = bare(value.args[0])
    if value.op != "mul" or len(value.args) != 2:
        return None
    for one, other in (value.args, value.args[::-1]):
        chance, log = bare(one), bare(other)
        turned = log.op == "neg"
        log = bare(log.args[0]) if turned else log
        of_log = log.op == "log_softmax" and ((chance.op == "exp" and bare(chance.args[0]) is log) or (chance.op == "softmax" and bare(chance.args[0]) is bare(log.args[0])))
        of_chance = log.op == "log" and chance.op == "softmax" and any(bare(part) is chance for part in (log.args[0], *bare(log.args[0]).args) if number(part) is None and constant(part) is None)
        if of_log or of_chance:
            return sign if turned else -sign
    return None
