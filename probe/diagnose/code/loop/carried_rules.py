"""What a loop carries from one batch to the next, and a training from one run to the next: states, gradients, averages, rates. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import loader_loops, loaders_of
from probe.diagnose.code.finders.objectives.adapted_models import adapted_from_task_to_task
from probe.diagnose.code.finders.objectives.outer_steps import (
    away_from_the_adapted,
    closure_adds_up,
    judged_on_its_support,
    steps_from_one_point,
)
from probe.diagnose.code.finders.objectives.token_means import mean_of_each_micro_batch
from probe.diagnose.code.finders.objects.shared_stores import one_store_for_several
from probe.diagnose.code.finders.runs.attacks import attack_the_wrong_way, gradients_of_the_attack
from probe.diagnose.code.finders.runs.begun_averages import (
    average_begins_at_zero,
    average_trained_too,
    stepped_in_half,
)
from probe.diagnose.code.finders.runs.best_so_far import margin_the_wrong_way, rate_begins_anew
from probe.diagnose.code.finders.runs.compared_outputs import best_of_one_batch
from probe.diagnose.code.finders.runs.cut_in_time import cut_at_each_step
from probe.diagnose.code.finders.runs.first_values import (
    never_given_first_values,
    norms_drawn_around_zero,
)
from probe.diagnose.code.finders.runs.hand_backwards import derivative_left_out, stepped_too_soon
from probe.diagnose.code.finders.runs.judges import (
    adversaries_in_one_loss,
    every_few_the_other_way,
    generator_clamped,
    slope_of_the_whole_batch,
)
from probe.diagnose.code.finders.runs.other_networks import (
    layers_of_its_teacher,
    outputs_of_another_order,
)
from probe.diagnose.code.finders.runs.rate_searches import rate_search_not_undone
from probe.diagnose.code.finders.runs.repeated_trainings import (
    model_kept_across_settings,
    runs_with_one_seed,
)
from probe.diagnose.code.finders.runs.resumed_runs import (
    resumed_at_another_epoch,
    schedule_replayed,
    skipped_in_each_epoch,
)
from probe.diagnose.code.finders.runs.scaled_losses import half_without_scaler
from probe.diagnose.code.finders.runs.turned_signs import (
    classes_averaged,
    decay_outwards,
    gradient_grown,
    least_certain_kept,
    rate_raised,
    slope_rewarded,
    teacher_never_taught,
)
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.loop.step_calls import events_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    argument,
    compares,
    is_binary,
    is_method,
    is_name,
    is_true,
    iterated,
    last_word,
    mentions,
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
            divided = divided or any(is_method(one, "div_", "mul_", "_foreach_div_", "_foreach_mul_") and mentions(one, "grad") for one in program.calls())
            passed = any(isinstance(one, ast.Attribute) and one.attr == "grad" for one in ast.walk(loop))  # to a function that divides
            divided = divided or (passed and any(is_method(one, "div_", "mul_", "_foreach_div_", "_foreach_mul_") for one in program.calls()))
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
    "judged-on-its-support",
    "the start is trained to fit samples that it has just been adapted to: whether it helps with new ones is never asked",
    "take the loss of the adapted weights on the query samples: loss(forward(x_query, fast), y_query)",
)(judged_on_its_support)


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


RULES.add(
    "model-kept-across-settings",
    "each setting goes on from the weights that the ones before have trained: the last one looks best, and the comparison says nothing",
    "make the model anew in each pass, before its optimizer",
)(model_kept_across_settings)


RULES.add(
    "runs-with-one-seed",
    "the spread that is reported is 0, or that of the machine alone: it says nothing of how the result depends on the seed",
    "set another seed in each pass: torch.manual_seed(seed)",
)(runs_with_one_seed)


RULES.add(
    "slope-of-the-whole-batch",
    "the slopes of single samples are held near 1 divided by the root of the batch size: the judge is held far too flat",
    "take the length for each sample: grad.flatten(1).norm(2, dim=1)",
)(slope_of_the_whole_batch)


RULES.add(
    "every-few-the-other-way",
    "what was to happen once in several passes happens in all the others",
    "compare the remainder with 0: if step % n == 0",
)(every_few_the_other_way)


RULES.add(
    "resumed-at-another-epoch",
    "one epoch is trained twice, or never, at each resumption: the rate and the order of the samples no longer go with the epoch",
    "save the number of the next epoch, or begin at the saved one plus 1",
)(resumed_at_another_epoch)


RULES.add(
    "skipped-in-each-epoch",
    "after a resumption the model is trained on the last part of the data alone",
    "set it back to 0 when the first epoch has ended",
)(skipped_in_each_epoch)


RULES.add(
    "attack-the-wrong-way",
    "the samples become easier: training with them makes nothing robust, and a score under this attack is too high",
    "go up the gradient: x + eps * grad.sign()",
)(attack_the_wrong_way)


RULES.add(
    "gradients-of-the-attack",
    "each step is that of the clean loss too, in an unknown mixture with the one that was meant",
    "take the gradient of the input alone: torch.autograd.grad(loss, x), or call zero_grad after the attack",
)(gradients_of_the_attack)


RULES.add(
    "state-cut-at-each-step",
    "the network learns to use the last step, and not to keep what it has read before",
    "cut the state off between batches, and not within a sequence",
)(cut_at_each_step)


RULES.add(
    "rate-search-not-undone",
    "the training begins with weights that the largest rates of the search have thrown about",
    "keep the state before the search, and load it after: model.load_state_dict(before)",
)(rate_search_not_undone)


RULES.add(
    "average-begins-at-zero",
    "until the average has seen many times 1 / (1 - decay) steps, its weights are a fraction of the network's",
    "begin with a copy of the weights, or divide by 1 - decay ** n",
)(average_begins_at_zero)


RULES.add(
    "average-trained-too",
    "what should be a steady average follows the gradients of the batch as well",
    "give the optimizer the other network alone, and run this one under no_grad",
)(average_trained_too)


RULES.add(
    "stepped-in-half",
    "small steps have no effect: weights stay where they began, an average of them does not follow, and the smallest numbers of an optimizer's state are 0",
    "keep the weights, and averages of them, in 32 bit; compute in 16 bit under autocast (with a GradScaler for float16)",
)(stepped_in_half)


RULES.add(
    "best-of-one-batch",
    "what is kept, or when the training ends, follows which batch was easy, and not how good the model is",
    "compare the mean of an epoch, of held-out data if there are any",
)(best_of_one_batch)


RULES.add(
    "margin-the-wrong-way",
    "scores that get worse little by little count as better each time: the training does not stop, and the best score is lost",
    "take the margin away from the best loss: loss < best - min_delta",
)(margin_the_wrong_way)


RULES.add(
    "rate-begins-anew",
    "within each epoch the rate falls or rises as it was meant to over the whole training",
    "count the batches of all epochs: step = epoch * len(loader) + i",
)(rate_begins_anew)


RULES.add(
    "norms-drawn-around-zero",
    "each norm multiplies by numbers near 0, of both signs: hardly anything passes it at first",
    "draw the weights of linear layers and convolutions alone, by their type or p.ndim > 1",
)(norms_drawn_around_zero)


RULES.add(
    "never-given-first-values",
    "the parameter begins with whatever was in memory: with zeros, with huge numbers, or with NaN, another time in each run",
    "give it first values: nn.init.xavier_uniform_(self.weight)",
)(never_given_first_values)


RULES.add(
    "half-without-scaler",
    "small gradients are lost, and the layers that have them stop learning",
    "multiply the loss by a GradScaler, or compute in bfloat16",
)(half_without_scaler)


RULES.add(
    "adversaries-in-one-loss",
    "neither learns to win: what one term asks of the judge and of the generator, the other takes back",
    "two optimizers: the loss of the judge with fake.detach(), and that of the generator for its own parameters alone",
)(adversaries_in_one_loss)


RULES.add(
    "generator-clamped",
    "the critic's slope is not bounded, and the generator can make little else than small numbers",
    "bound the critic's weights: for p in critic.parameters(): p.data.clamp_(-c, c)",
)(generator_clamped)


RULES.add(
    "stepped-too-soon",
    "the layers before it follow a gradient of no loss",
    "compute all gradients first, and step the weights after that",
)(stepped_too_soon)


RULES.add(
    "derivative-left-out",
    "the layers before it follow another gradient: that of a network without the function",
    "multiply by its derivative: d_hidden * (z > 0)",
)(derivative_left_out)


RULES.add(
    "layers-of-its-teacher",
    "the teacher gets worse as its pupil is trained, and what the pupil is asked for changes all the time",
    "copy the layers: copy.deepcopy(teacher.layers[0])",
)(layers_of_its_teacher)


RULES.add(
    "outputs-of-another-order",
    "each sample is taught what was computed for another one",
    "keep the outputs by the numbers of the samples, or compute them in the same pass",
)(outputs_of_another_order)


RULES.add(
    "gradient-grown",
    "the longest gradients become longer still: single batches throw the weights about",
    "multiply by the bound over the length: grad * (bound / norm)",
)(gradient_grown)


RULES.add(
    "decay-outwards",
    "weights grow in each step, the larger ones the faster",
    "add it to the gradient: p.grad += decay * p",
)(decay_outwards)


RULES.add(
    "slope-rewarded",
    "the network becomes as steep as it can: the loss falls without end",
    "add the penalty to the loss",
)(slope_rewarded)


RULES.add(
    "least-certain-kept",
    "the network is taught the labels that are most often wrong, and none of those that it is sure of",
    "keep those above the bound: confidence >= threshold",
)(least_certain_kept)


RULES.add(
    "classes-averaged",
    "a class that no network has chosen can come out, and the score is too low",
    "average the probabilities, or count the votes: torch.mode",
)(classes_averaged)


RULES.add(
    "rate-raised",
    "the rate grows where it was to fall",
    "give the factor below 1: gamma=0.1",
)(rate_raised)


RULES.add(
    "teacher-never-taught",
    "what is distilled is noise: the pupil is worse than without it",
    "load or train the teacher first",
)(teacher_never_taught)


RULES.add(
    "schedule-replayed",
    "after a resumption the schedule is twice as far as the training: the rate is that of a later epoch, or at its end",
    "load the state of the schedule, or make its steps again, and not both",
)(schedule_replayed)
