"""Formulas of pictures, sounds and pairs: ranges of targets, schedules, inverses, scales. Pure."""

from __future__ import annotations

from probe.diagnose.code.finders.images.inverses import inverse_that_stretches_again
from probe.diagnose.code.finders.images.kept_boxes import overlapping_kept
from probe.diagnose.code.finders.images.loudness import power_for_amplitude
from probe.diagnose.code.finders.images.pair_scales import logarithm_for_scale, own_pair_among_positives
from probe.diagnose.code.finders.images.schedule_tables import (
    decoded_in_another_scale,
    offset_left_out_of_the_target,
    table_of_the_old_schedule,
    weight_of_another_prediction,
)
from probe.diagnose.code.finders.images.steps_of_schedules import before_the_first
from probe.diagnose.code.finders.images.target_ranges import targets_out_of_reach
from probe.diagnose.code.finders.images.unbounded_critics import critic_without_a_bound
from probe.diagnose.code.rule import Rules

RULES = Rules("model")

RULES.add(
    "targets-out-of-reach",
    "no output can meet a part of the targets: the loss keeps a floor, and what lies beyond the bound is drawn to it",
    "end the network with a function of the same range: tanh for -1…1, or none at all; or leave the targets in 0…1",
)(targets_out_of_reach)
RULES.add(
    "step-before-the-first",
    "the last step of the sampling puts the sample back among the noise: what is drawn is noise",
    "take 1 before the first step: abar[t - 1] if t > 0 else 1",
)(before_the_first)
RULES.add(
    "inverse-that-stretches-again",
    "what is drawn has gone through other layers than those that were trained: samples lie where the data does not",
    "undo it: (y - t) * exp(-s)",
)(inverse_that_stretches_again)
RULES.add(
    "power-for-amplitude",
    "the noise has another loudness than the decibels say, and far more or less of it than was meant",
    "take the root: noise * (power / (noise_power * 10 ** (snr / 10))) ** 0.5",
)(power_for_amplitude)
RULES.add(
    "logarithm-for-scale",
    "similarities are multiplied by a number near 2 or 3, and not by ten times as much: the loss stays near ln of the batch size",
    "multiply by its exponential: logit_scale.exp() * a @ b.T",
)(logarithm_for_scale)
RULES.add(
    "own-pair-among-positives",
    "the network is asked to be most like itself, which it is: a part of each sample's loss says nothing, and is counted as one more partner",
    "take the diagonal out: mask = (y[:, None] == y[None]) & ~torch.eye(len(y), dtype=torch.bool)",
)(own_pair_among_positives)
RULES.add(
    "overlapping-kept",
    "each thing is found many times over, and all others are lost",
    "go on with those that overlap it less: order = rest[iou <= threshold]",
)(overlapping_kept)
RULES.add(
    "critic-without-a-bound",
    "its answers are no distance: they grow without end, and so do the gradients that the generator gets",
    "clip its weights after each step, add a gradient penalty, or use spectral_norm in its layers",
)(critic_without_a_bound)
RULES.add(
    "weight-of-another-prediction",
    "the steps count in another proportion than was meant: some of them are learned hardly at all, or nearly alone",
    "for the velocity divide by snr + 1: torch.clamp(snr, max=gamma) / (snr + 1); for the noise by snr",
)(weight_of_another_prediction)
RULES.add(
    "table-of-the-old-schedule",
    "two parts of the program take the same step for two different amounts of noise",
    "move the schedule first, and compute all tables of it after that",
)(table_of_the_old_schedule)
RULES.add(
    "decoded-in-another-scale",
    "the decoder is given codes that are as many times too small or too large as they were scaled: what is drawn looks like none of the data",
    "take the factor out before: decode(z / scale)",
)(decoded_in_another_scale)
RULES.add(
    "offset-left-out-of-the-target",
    "the network is punished for the offset that it sees: it learns to take it for a part of the picture, and not to take it out",
    "ask for the noise that was mixed in, with its offset",
)(offset_left_out_of_the_target)
