"""Policies: the memory that they keep, the check of how far they have moved, and the weight of their entropy. Pure; standard
library only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, number, origins
from probe.diagnose.code.finders.losses.bootstraps import errors
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import (
    Loop,
    is_method,
    is_name,
    is_nothing,
    last_word,
    names_of,
    names_set,
    own,
    short,
)
from probe.diagnose.code.traits.arithmetic import addends, product
from probe.diagnose.code.traits.basic import losses
from probe.diagnose.code.traits.likelihoods import is_likelihood
from probe.diagnose.code.traits.uses import made_from

_RECURRENT = ("GRU", "GRUCell", "LSTM", "LSTMCell", "RNN", "RNNCell")
_ENDS = re.compile(r"done|term|mask|first|start|reset|trunc|over|ended|finish", re.IGNORECASE)
_BEGINS = ("zeros", "init_hidden", "initial_state", "init_state", "get_initial_state", "initial_hidden", "init_hidden_state", "reset_hidden")


# The memory --------------------------------------------------------------------------


def memory_kept_across_episodes(program: Program) -> Iterator[Remark]:
    """A recurrent policy begins each episode with the state in which the last one ended: the state is made before the loop over
    episodes, and the environment alone is reset in it."""
    if not any(program.called(call).rpartition(".")[2] in _RECURRENT for call in program.calls()):
        return
    for loop in program.everywhere(ast.For, ast.While):
        resets = [one for one in ast.walk(loop) if is_method(one, "reset") and _innermost(program, one) is loop]
        env = next((one.func.value for one in resets if any(is_method(step, "step") and ast.dump(step.func.value) == ast.dump(one.func.value) for step in ast.walk(loop))), None)
        if env is None:
            continue
        for given in own(loop, ast.Assign):
            name = _carried(program, given)
            around = _innermost(program, given)
            if name is None or around is loop or around is None:
                continue
            others = [one for one in ast.walk(loop) if isinstance(one, ast.Assign) and one is not given and any(name in names_set(target) for target in one.targets)]
            begins = [one for one in own(program.scope(loop), ast.Assign) if one.lineno < loop.lineno and any(is_name(target, name) for target in one.targets) and (_is_beginning(one.value) or _is_begun_by(one.value, given.value))]
            if begins and all(any(is_method(part, "detach") for part in ast.walk(one.value)) for one in others) and not any(_clears(one, name) for one in ast.walk(loop)):
                yield Remark(given, f"{name} is made in line {begins[-1].lineno}, before the loop over the episodes, and {short(env)}.reset() in line {loop.lineno if not resets else resets[0].lineno} begins an episode without it: the policy begins with what it remembers of the last one")
                return
    yield from _kept_in_a_stream(program)


def _kept_in_a_stream(program: Program) -> Iterator[Remark]:
    """The steps of many episodes are taken in one loop, which reads where one ends, and the state is carried over these ends."""
    for given in program.everywhere(ast.Assign):
        loop, name = _innermost(program, given), _carried(program, given)
        around = sorted(program.loops(given), key=lambda one: one.lineno)
        if loop is None or name is None or not around:
            continue
        stepped = [(one, target.elts[2]) for one in own(loop, ast.Assign) if is_method(one.value, "step") and _innermost(program, one) is loop for target in one.targets if isinstance(target, ast.Tuple) and len(target.elts) in (3, 4, 5)]
        resets = [one for one in ast.walk(around[0]) if is_method(one, "reset", "reset_hidden")]
        ends = [(step, end.id) for step, end in stepped if isinstance(end, ast.Name) and _is_an_end(program, around[0], end.id)]
        told = {ends[0][1]} if ends else set()
        told |= {each for one in ast.walk(loop) if isinstance(one, ast.Assign) and told & names_of(one.value) for target in one.targets for each in names_set(target)}
        if not ends or name in told or told & names_of(given.value) or any(not _is_under(one, loop, told) for one in resets):
            continue
        others = [one for one in ast.walk(around[0]) if isinstance(one, ast.Assign) and one is not given and any(name in names_set(target) for target in one.targets)]
        begins = [one for one in own(program.scope(loop), ast.Assign) if one.lineno < around[0].lineno and any(name in names_set(target) for target in one.targets)]
        if begins and all(any(is_method(part, "detach") for part in ast.walk(one.value)) and not told & names_of(one.value) for one in others) and not any(_clears(one, name) for one in ast.walk(around[0])):
            yield Remark(given, f"{name} is carried from step to step, also where {ends[0][1]} of {short(ends[0][0].value)} (line {ends[0][0].lineno}) says that an episode ends: the policy begins the next one with what it remembers of the last one")
            return


def _is_an_end(program: Program, loop: ast.AST, name: str) -> bool:
    """Whether a program takes a name for the end of an episode: it asks `if done`, or multiplies by `1 - done`, also of the list
    that it is put into."""
    kept = {last_word(one.func.value) for one in ast.walk(loop) if is_method(one, "append") and len(one.args) == 1 and name in names_of(one.args[0])}
    kept |= {last_word(target.value) for one in ast.walk(loop) if isinstance(one, ast.Assign) and name in names_of(one.value) for target in one.targets if isinstance(target, ast.Subscript)}
    asked = any(isinstance(one, ast.If) and is_name(one.test, name) and any(is_method(part, "reset") for part in ast.walk(one)) for one in ast.walk(loop))
    read = [one.right for one in program.everywhere(ast.BinOp) if isinstance(one.op, ast.Sub) and isinstance(one.left, ast.Constant) and one.left.value == 1]
    words = {name, *kept} - {""}
    return asked or any(last_word(part) in words for one in read for part in ast.walk(one))


def _is_under(reset: ast.AST, loop: ast.AST, ends: set[str]) -> bool:
    """Whether an environment is reset within a loop, where an episode has ended."""
    return any(isinstance(one, ast.If) and ends & names_of(one.test) and any(part is reset for part in ast.walk(one)) for one in ast.walk(loop))


def _innermost(program: Program, node: ast.AST) -> Loop | None:
    """The loop that a node runs in."""
    found = program.loops(node)
    return max(found, key=lambda one: one.lineno) if found else None


def _carried(program: Program, given: ast.Assign) -> str | None:
    """The name of a state that a call takes and gives back."""
    call = given.value
    if not isinstance(call, ast.Call) or is_method(call, "step", "detach", "reset"):
        return None
    run = program.local_function(call)
    if isinstance(call.func, ast.Name) and run is not None and run.name == call.func.id:
        return None
    given_to = [*call.args, *(one.value for one in call.keywords)]
    if any(_ENDS.search(name) for part in given_to for name in names_of(part)):
        return None  # the network is told of ends, and may forget at them
    read = {one.id for part in given_to for one in (part, *(part.elts if isinstance(part, ast.Tuple) else ())) if isinstance(one, ast.Name)}
    back = {name for target in given.targets for name in names_set(target)}
    return next(iter(sorted(read & back)), None)


def _is_begun_by(node: ast.expr, run: ast.expr) -> bool:
    """Whether a state is what a method of the network gives, that is told of no observation."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not isinstance(run, ast.Call):
        return False
    given = [*node.args, *(one.value for one in node.keywords)]
    network = ast.dump(node.func.value)
    return network in (ast.dump(run.func), ast.dump(run.func.value) if isinstance(run.func, ast.Attribute) else "") and all(isinstance(one, (ast.Constant, ast.Name, ast.Attribute)) for one in given) and not any("obs" in name or "state" in name for one in given for name in names_of(one))


def _is_beginning(node: ast.expr) -> bool:
    """Whether an expression is the state that a recurrent layer begins with."""
    if isinstance(node, ast.Tuple):
        return bool(node.elts) and all(_is_beginning(one) for one in node.elts)
    return is_nothing(node) or (isinstance(node, ast.Call) and last_word(node.func) in _BEGINS) or (is_method(node, "to", "cuda", "float") and _is_beginning(node.func.value))


def _clears(node: ast.AST, name: str) -> bool:
    """Whether a statement changes a state in place, as where it is set to zeros at an end."""
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Subscript) and name in names_of(target.value) for target in node.targets)
    if isinstance(node, ast.AugAssign):
        return name in names_of(node.target)
    return is_method(node, "zero_", "fill_", "mul_") and name in names_of(node.func.value)


# How far the policy has moved -----------------------------------------------------------


def divergence_of_the_wrong_sign(program: Program) -> Iterator[Remark]:
    """What is compared with a bound is the mean of new - old log probabilities, whose negative estimates the divergence."""
    computation = computation_of(program)
    ratios = [bare(one.args[0]) for one in computation.of("exp") if one.args and bare(one.args[0]).op == "sub"]
    ratios = [one for one in ratios if is_likelihood(one.args[0]) and not one.args[0].where.no_grad]
    for test in computation.of("gt", "ge", "lt", "le") if ratios else ():
        if len(test.args) != 2:
            continue
        moved, bound = test.args if test.op in ("gt", "ge") else test.args[::-1]
        mean = bare(moved)
        inner = bare(mean.args[0]) if mean.op == "mean" and mean.args else mean
        known = number(bound)
        if inner.op != "sub" or mean.op != "mean" or (known is not None and known <= 0) or comes_of_likelihood(bound):
            continue
        ratio = next((one for one in ratios if inner is one or all(bare(a) is bare(b) for a, b in zip(inner.args, one.args, strict=True))), None)
        if ratio is not None:
            yield Remark(test.node, f"{short(test.node)} asks for a bound of {short(inner.node)} (line {inner.line}), new less old: its mean falls below 0 as the policy moves away from the old one, and does not come to the bound")
            return


def comes_of_likelihood(value: Value) -> bool:
    """Whether a value is made of log probabilities."""
    return any(one.op == "log_prob" for one in origins(value))


# The weight of the entropy ----------------------------------------------------------------


def logarithm_for_temperature(program: Program) -> Iterator[Remark]:
    """The log probability of an action is weighted by a parameter beside the critic's value, and elsewhere by the exponential of
    that parameter."""
    computation = computation_of(program)
    raised = {id(bare(one.args[0])): one for one in computation.of("exp") if one.args}
    wanted = [loss for _, loss in losses(computation)] + [target for _, _, target in errors(computation)]
    said: set[int] = set()
    for value in [one for each in wanted for one in origins(each) if one.op in ("add", "sub")]:
        if id(value.node) in said:
            continue
        parts = [bare(one) for one, _ in addends(value)]
        for part in parts:
            found = product(part)
            weight = next((one for one in found.above if id(one) in raised and _is_leaf(one)), None)
            likely = [one for one in found.above if is_likelihood(one)]
            if weight is None or len(likely) != 1 or found.below or len(found.above) != 2 or not any(one is not part and _is_worth(one) for one in parts):
                continue
            exponent = raised[id(weight)]
            if any(one.op in ("mul", "sub") for one in made_from(computation, exponent, frozenset({"detach", "item"}), 20)):
                said.add(id(value.node))
                yield Remark(part.node, f"{short(part.node)} weights the log probability by {short(weight.node)} itself, of which {short(exponent.node)} (line {exponent.line}) is the weight elsewhere: at a weight below 1 the sign is turned, and the entropy is held down")
                break


def _is_leaf(value: Value) -> bool:
    return value.op in ("zeros", "ones", "full", "torch.nn.Parameter", "tensor", "log", "requires_grad_")


def _is_worth(value: Value) -> bool:
    """Whether a value is what a critic gives: a run, or the smaller of two."""
    value = bare(value)
    if value.op in ("min", "minimum", "cat") and value.args:
        return any(_is_worth(one) for one in value.made_of())
    if value.op == "part" and value.args[0].op == "min":
        return _is_worth(value.args[0])
    return value.op == "run"


# The best action ---------------------------------------------------------------------------


def best_over_the_batch(program: Program) -> Iterator[Remark]:
    """The best value is looked for over the states of a batch, where the values of the actions that were taken are gathered along
    the second axis."""
    computation = computation_of(program)
    for value, prediction, target in errors(computation):
        taken = next((one for one in origins(prediction, stop=("run",)) if one.op == "gather" and number(one.argument("dim", 1)) in (1, -1)), None)
        if taken is None or not taken.args or bare(taken.args[0]).op != "run":
            continue
        for best in origins(target, stop=("run",)):
            if best.op not in ("max", "amax") or not best.args or best.where.loops != value.where.loops or bare(best.args[0]).op != "run":
                continue
            along = best.argument("dim", 1)
            if (along is None and len(best.args) == 1 and not best.named.keys() & {"axis", "dim"}) or number(along) == 0:
                what = "of all actions in all states" if along is None else "of each action over the states"
                yield Remark(best.node, f"{short(best.node)} is the largest value {what} of the batch, and {short(taken.node)} (line {taken.line}) takes actions along axis 1: the target of a state is made of the values of others")
                return
