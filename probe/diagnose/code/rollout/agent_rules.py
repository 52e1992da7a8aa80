"""Agents: what their critics are learned towards, and what their stores hold. Pure."""

from __future__ import annotations

from probe.diagnose.code.finders.agents.critics import (
    centred_over_the_batch,
    conservative_the_wrong_way,
    importance_upside_down,
    mass_lost_between,
    smaller_error_taken,
)
from probe.diagnose.code.finders.agents.dimensions import dimensions_not_summed
from probe.diagnose.code.finders.agents.stored_arrays import stored_by_reference
from probe.diagnose.code.rule import Finders, Rules

RULES = Rules("rollout")
FINDERS = Finders()


RULES.add(
    "stored-by-reference",
    "what was stored is lost: each entry shows the last state that the array held",
    "store a copy: states.append(buffer.copy())",
)(stored_by_reference)


RULES.add(
    "centred-over-the-batch",
    "the values of a state change with the batch that it is in, and targets with them",
    "take the mean over the actions: advantage.mean(dim=1, keepdim=True)",
)(centred_over_the_batch)


RULES.add(
    "mass-lost-at-whole-numbers",
    "probabilities no longer add up to 1, and what falls on a place exactly is learned not at all",
    "give all of it to that place where the two are equal: (upper + (lower == upper) - b)",
)(mass_lost_between)


RULES.add(
    "smaller-error-of-two",
    "values run away from the old ones, which the bound should keep them near to",
    "take the larger: torch.max(error, clipped_error).mean()",
)(smaller_error_taken)


RULES.add(
    "importance-upside-down",
    "what is drawn often counts twice over, and what is drawn rarely hardly at all",
    "weight by (n * p) ** -beta",
)(importance_upside_down)


RULES.add(
    "log-prob-of-each-dimension",
    "each dimension of an action counts as an action of its own: ratios and entropies are those of one dimension",
    "sum over the dimensions of the action: dist.log_prob(action).sum(-1, keepdim=True)",
)(dimensions_not_summed)


FINDERS.add("term-of-the-wrong-sign")(conservative_the_wrong_way)
