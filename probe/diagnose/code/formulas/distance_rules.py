"""Distances, errors and likelihoods that are taken for something else. Pure."""

from __future__ import annotations

from probe.diagnose.code.finders.followed.undone_changes import summed_from_the_first
from probe.diagnose.code.finders.measured.censored_rows import survival_of_the_wrong_rows
from probe.diagnose.code.finders.measured.confidences import (
    interval_from_what_was_learned,
    logits_as_confidence,
)
from probe.diagnose.code.finders.measured.distances_for_scores import distances_for_scores
from probe.diagnose.code.finders.measured.scaled_back import another_column
from probe.diagnose.code.finders.measured.shares_of_scaled import share_of_scaled
from probe.diagnose.code.finders.measured.spreads import spread_of_no_density
from probe.diagnose.code.finders.measured.steps_of_time import (
    change_for_the_state,
    hazards_after_the_end,
    popularity_added,
)
from probe.diagnose.code.finders.measured.unused_weights import importance_never_used
from probe.diagnose.code.finders.sizes.energies import both_with_a_plus
from probe.diagnose.code.finders.sizes.quantile_levels import levels_along_the_targets
from probe.diagnose.code.finders.sizes.spread_axes import (
    decayed_value_of_this_step,
    summed_over_the_next,
    weight_for_its_logarithm,
    weights_without_their_sum,
)
from probe.diagnose.code.rule import Rules

RULES = Rules("model")


RULES.add(
    "distances-for-scores",
    "each sample is learned, or judged, to belong where it is farthest from",
    "turn the sign: F.cross_entropy(-distances, labels), or take the smallest distance and the largest likeness",
)(distances_for_scores)


RULES.add(
    "spread-of-no-density",
    "intervals and uncertainties that are made of it are too narrow, or too wide, by a fixed factor",
    "give both the same half: 0.5 * (torch.exp(-log_var) * (y - mean) ** 2 + log_var)",
)(spread_of_no_density)


RULES.add(
    "survival-of-the-wrong-rows",
    "the likelihood is not that of what was seen: times that were cut off say nothing, or the others count twice",
    "take (event * log_density + (1 - event) * log_survival), or event * log_hazard + log_survival",
)(survival_of_the_wrong_rows)


RULES.add(
    "share-of-a-scaled-value",
    "the percentage that is reported says nothing of the values themselves: it is small, or without bound, by how they were scaled",
    "scale predictions and targets back first: torch.exp(pred), pred * std + mean",
)(share_of_scaled)


RULES.add(
    "scaled-back-by-another-column",
    "errors and forecasts are reported in the unit of another column, off by the ratio of the two deviations",
    "take the statistics of the target's own column: pred * std[target] + mean[target]",
)(another_column)


RULES.add(
    "logits-as-confidence",
    "logits lie below 0 and above 1: most samples fall into no bin, and the error of calibration is that of the rest",
    "take the softmax first: F.softmax(logits, dim=1).max(1)",
)(logits_as_confidence)


RULES.add(
    "interval-from-what-was-learned",
    "the network errs less on the samples it has learned than on new ones: intervals are too narrow, and cover less than they say",
    "take the errors of samples that were held out for it",
)(interval_from_what_was_learned)


RULES.add(
    "importance-never-used",
    "what is drawn often counts as often as it is drawn: the values are those of another distribution of transitions",
    "multiply the loss of each sample by its weight before the mean",
)(importance_never_used)


RULES.add(
    "hazards-after-the-end",
    "intervals that nobody was seen in count as survived: all hazards come out too low, the later the more",
    "count the intervals up to the last one alone: (loss * (torch.arange(bins) <= index[:, None])).sum(1)",
)(hazards_after_the_end)


RULES.add(
    "summed-from-the-first",
    "forecasts are off by all that has changed in the window, however good the changes are",
    "add them to the last known value: levels[:, -1:] + changes.cumsum(1)",
)(summed_from_the_first)
RULES.add(
    "change-taken-for-the-state",
    "the second step begins near 0, whatever the state was: what is planned or forecast has nothing to do with the system",
    "add it to the state: state = state + model(state, action)",
)(change_for_the_state)


RULES.add(
    "popularity-added",
    "frequent items are pushed away twice over: rare ones are ranked above those that fit better",
    "take the logarithm of the frequency away: logits - log_q[items]",
)(popularity_added)


RULES.add(
    "levels-along-the-targets",
    "each prediction is pulled by all levels alike: no output is the quantile of its level, and intervals mean nothing",
    "lay the levels along the predictions: tau.view(1, -1, 1)",
)(levels_along_the_targets)


RULES.add(
    "energy-without-the-minus",
    "no energy can move the places and the momenta so: what is learned is no conserved quantity, and its motions do not fit",
    "dq = dH / dp, dp = -dH / dq",
)(both_with_a_plus)


RULES.add(
    "summed-over-the-next",
    "what was carried so far only adds a constant: the likelihood knows nothing of the order of the steps",
    "sum over the axis of the states before: torch.logsumexp(alpha.unsqueeze(2) + table, dim=1)",
)(summed_over_the_next)


RULES.add(
    "weight-for-its-logarithm",
    "all parts count nearly alike, whatever their weights are: the mixture is no density, and its weights are not learned",
    "add the logarithm: torch.logsumexp(F.log_softmax(logits, dim=1) + log_density, dim=1)",
)(weight_for_its_logarithm)


RULES.add(
    "weights-without-their-sum",
    "the loss falls without end as all weights grow: it is no likelihood, and what it reports is none",
    "take log_softmax of them first: torch.logsumexp(F.log_softmax(logits, dim=1) + log_density, dim=1)",
)(weights_without_their_sum)


RULES.add(
    "decayed-value-of-this-step",
    "what stands where nothing was measured is a share of 0, as if it had been: the last measurement is never used",
    "carry the last one on: last = torch.where(mask > 0, x, last), and let that decay",
)(decayed_value_of_this_step)
