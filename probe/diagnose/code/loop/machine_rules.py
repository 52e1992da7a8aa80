"""Rules about the machinery of a training: scalers, gradients of hand-written functions and optimizers, hooks, folds. Pure."""

from __future__ import annotations

from probe.diagnose.code.finders.objects.drawn_parts import drawn_outside_the_state
from probe.diagnose.code.finders.objects.folds import best_of_another_fold, schedule_made_anew
from probe.diagnose.code.finders.objects.hand_optimizers import decay_of_the_others, moment_not_kept
from probe.diagnose.code.finders.objects.hooks import first_entry_again
from probe.diagnose.code.finders.objects.own_functions import (
    dropped_without_scaling,
    gradient_not_passed_on,
    statistics_never_read,
)
from probe.diagnose.code.finders.objects.scaled_gradients import scaler_updated_between
from probe.diagnose.code.finders.objects.whole_numbers import fractions_cut_off
from probe.diagnose.code.rule import Rules

RULES = Rules("loop")


RULES.add(
    "scaler-updated-between-steps",
    "where the factor has just changed, the second network gets a step that is too large or too small, and an overflow of its gradients is not seen",
    "call update() once, after all steps of the pass",
)(scaler_updated_between)


RULES.add(
    "gradient-not-passed-on",
    "the layers before it get the gradient of another loss: every weight of a loss, and all that follows the function, is left out of it",
    "multiply by it: return grad_output * derivative",
)(gradient_not_passed_on)


RULES.add(
    "dropped-without-scaling",
    "each layer after it gets larger inputs in evaluation than in training, the more the more units are dropped",
    "divide by the share that is kept: x * mask / (1 - p)",
)(dropped_without_scaling)


RULES.add(
    "statistics-never-read",
    "an output depends on which other samples are in the batch, and a batch of one sample gives nothing",
    "normalize by the running statistics where self.training is False",
)(statistics_never_read)


RULES.add(
    "moment-not-kept",
    "each step begins with the moment that the state was made with: there is no momentum, and no scale that follows the gradients",
    "change it in place: exp_avg.mul_(beta).add_(grad, alpha=1 - beta), or put it back into the state",
)(moment_not_kept)


RULES.add(
    "decay-of-the-others",
    "biases and the scales of norms are pulled to 0, and the weights, which the decay was meant for, are not",
    "exchange the two: the group of biases and norms gets weight_decay 0",
)(decay_of_the_others)


RULES.add(
    "first-entry-again",
    "each pass computes with the activations of the first batch, which have nothing to do with its own",
    "empty the list before each forward, or keep the output under a name: store['layer'] = output",
)(first_entry_again)


RULES.add(
    "best-of-another-fold",
    "a fold is judged by the best score of the folds before: its own best epoch is not kept, or it ends too early",
    "set the best score, the count and what stops the training back where each fold begins",
)(best_of_another_fold)


RULES.add(
    "schedule-made-anew",
    "the rate stays what the schedule begins with: it never gets further than one step",
    "make it once, before the loop, beside its optimizer",
)(schedule_made_anew)


RULES.add(
    "fractions-cut-off",
    "what is computed with it are whole numbers: probabilities and means below 1 are all 0",
    "make it of floats: torch.zeros(n), torch.zeros_like(x, dtype=torch.float)",
)(fractions_cut_off)


RULES.add(
    "drawn-outside-the-state",
    "the weights were trained for another draw: what the loaded network gives has little to do with what was trained",
    "keep it in the state: self.register_buffer('B', torch.randn(...))",
)(drawn_outside_the_state)
