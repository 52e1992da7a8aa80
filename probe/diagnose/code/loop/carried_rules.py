"""What a loop carries from one batch to the next: a recurrent state, gradients that are added up. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import loader_loops, loaders_of
from probe.diagnose.code.finders.objectives.adapted_models import adapted_from_task_to_task
from probe.diagnose.code.finders.objectives.outer_steps import (
    away_from_the_adapted,
    closure_adds_up,
    steps_from_one_point,
)
from probe.diagnose.code.finders.objectives.token_means import mean_of_each_micro_batch
from probe.diagnose.code.finders.objects.shared_stores import one_store_for_several
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.loop.step_calls import events_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    argument,
    compares,
    is_binary,
    is_name,
    is_true,
    iterated,
    last_word,
    names_read,
    pairs_of,
    short,
)

RULES = Rules("loop")


@RULES.add("state-of-other-samples", "each sample begins with the state that an unrelated one has left", "begin each batch without a state, or do not shuffle")
def _state_of_others(program: Program) -> Iterator[Remark]:
    """A recurrent state that is handed from one batch to the next of a loader that shuffles."""
    flow = flow_of(program)
    for loop in loader_loops(flow):
        made = loaders_of(flow, iterated(loop))
        if len(made) != 1 or not is_true(argument(made[0], "shuffle", 2)):
            continue
        for node in ast.walk(loop):
            call = node.value if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) else None
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            if call is None or not isinstance(target, ast.Tuple) or program.family(call.func) != "module" or len(call.args) < 2:
                continue
            state = call.args[1]
            if not is_name(state) or not any(is_name(one, state.id) for one in target.elts[1:]):
                continue
            begun = any(is_name(one, state.id) and state.id not in names_read(value) for other in ast.walk(loop) if isinstance(other, ast.Assign) and other is not node for one, value in pairs_of(other))
            if not begun:
                yield Remark(node, f"{short(node)} hands {state.id} from batch to batch, and {short(made[0])} (line {made[0].lineno}) shuffles the samples")


@RULES.add("sum-over-micro-steps", "the gradient is that of a sum: the step, and what clipping compares, grow with the number of batches", "divide the loss by the number of batches that one step adds up")
def _not_divided(program: Program) -> Iterator[Remark]:
    """Gradients of several batches that are added up by SGD without a division."""
    flow = flow_of(program)
    for loop in loader_loops(flow):
        for node in loop.body:
            count = _each(flow, node.test) if isinstance(node, ast.If) else None
            if count is None or not isinstance(node, ast.If):
                continue
            inner, outer = events_of(flow, node.body), events_of(flow, [one for one in loop.body if one is not node])
            steps = [one for one in inner if one.what == "step" and one.of is not None]
            backwards = [one for one in outer if one.what == "backward"]
            if len(steps) != 1 or len(backwards) != 1 or any(one.what in ("zero", "step") for one in outer) or not any(one.what == "zero" for one in inner):
                continue
            made = flow.made(flow.origin(steps[0].of))
            plain = last_word(made.func) == "SGD" if made is not None else False
            clips = any(one.what == "clip" for one in inner)
            func = backwards[0].node.func
            loss = func.value if isinstance(func, ast.Attribute) else None
            divided = loss is None or any(is_binary(one, ast.Div, ast.Mult) or isinstance(one, ast.AugAssign) for one in flow.origins(loss))
            divided = divided or any(isinstance(one, ast.AugAssign) and isinstance(one.op, (ast.Div, ast.Mult)) for one in ast.walk(loop))
            if (plain or clips) and not divided:
                yield Remark(backwards[0].node, f"{short(backwards[0].node)} adds up the gradients of {short(count)} batches for one step, and nothing divides by {short(count)}")


def _each(flow: Flow, test: ast.expr) -> ast.expr | None:
    """n of `(i + 1) % n == 0`, where n is more than 1."""
    if not compares(test, ast.Eq) or not is_binary(test.left, ast.Mod):
        return None
    number = flow.number(test.left.right)
    return test.left.right if number is not None and number > 1 else None


RULES.add(
    "adapted-from-task-to-task",
    "each task begins with the weights that the tasks before it have left: the mean is not that of models adapted to one task",
    "adapt a copy for each task: learner = copy.deepcopy(model)",
)(adapted_from_task_to_task)


RULES.add(
    "mean-of-each-micro-batch",
    "the update is not that of the whole batch: labels of short samples weigh more than those of long ones",
    "add up the losses (reduction='sum') and divide by the number of labels of all micro-batches",
)(mean_of_each_micro_batch)


RULES.add(
    "away-from-the-adapted",
    "each task moves the start away from what helps it: after some tasks the model is worse than a new one",
    "move towards it: p.add_(eps * (adapted - p)), or p.grad = p - adapted",
)(away_from_the_adapted)


RULES.add(
    "steps-from-one-point",
    "however many steps are asked for, the adaptation is one step",
    "compute the loss with the new weights, and step from them",
)(steps_from_one_point)


RULES.add(
    "closure-adds-up",
    "the search goes by sums of gradients of different points: it steps too far, and its curvature is wrong",
    "clear them in the closure: optimizer.zero_grad() before backward",
)(closure_adds_up)


RULES.add(
    "one-store-for-several",
    "what the one keeps is lost or mixed with that of the other: what is compared or averaged of both is that of one",
    "make it for each object: def __init__(self, store=None): self.store = {} if store is None else store",
)(one_store_for_several)
