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
from probe.diagnose.code.finders.agents.episodes_kept import (
    best_over_the_batch,
    divergence_of_the_wrong_sign,
    logarithm_for_temperature,
    memory_kept_across_episodes,
)
from probe.diagnose.code.finders.agents.ratios import (
    large_errors_without_gradient,
    masked_on_one_side,
    ratio_of_two_actions,
    slope_on_one_side,
)
from probe.diagnose.code.finders.agents.relabelled import reward_of_another_goal
from probe.diagnose.code.finders.agents.rows_in_two_orders import flattened_apart, rows_by_place
from probe.diagnose.code.finders.agents.started_again import exploration_begins_again
from probe.diagnose.code.finders.agents.stored_arrays import (
    drawn_from_the_unfilled,
    stored_as_its_successor,
    stored_by_reference,
)
from probe.diagnose.code.finders.axes.taken_apart import grouped_in_another_order
from probe.diagnose.code.finders.followed.cut_actions import log_prob_of_the_cut
from probe.diagnose.code.finders.followed.lowered_goals import goal_never_lowered
from probe.diagnose.code.finders.followed.next_alone import next_state_alone_scaled, window_across_episodes
from probe.diagnose.code.finders.followed.priorities import error_with_its_sign
from probe.diagnose.code.finders.followed.two_copies import two_copies_of_one
from probe.diagnose.code.finders.sizes.quantile_levels import best_of_each_quantile
from probe.diagnose.code.finders.weights.shares_of_others import others_divided_by_all
from probe.diagnose.code.finders.words.after_the_end import words_behind_the_end
from probe.diagnose.code.rule import Finders, Rules

RULES = Rules("rollout")
FINDERS = Finders()


RULES.add(
    "stored-by-reference",
    "what was stored is lost: each entry shows the last state that the array held",
    "store a copy: states.append(buffer.copy())",
)(stored_by_reference)
RULES.add(
    "next-state-by-reference",
    "each stored state equals the one that follows it: a model of the next state learns to repeat its input, and actions stand beside the state after them",
    "have the environment return a copy: return self.state.copy()",
)(stored_as_its_successor)


RULES.add(
    "two-copies-of-one",
    "both copies become the same: the smaller of the two is no more cautious than either, and one network is never held back",
    "pull each copy towards its own network",
)(two_copies_of_one)
RULES.add(
    "log-prob-of-the-cut",
    "the policy is pushed towards its bounds, or away from them, by draws that it never made there",
    "keep what was drawn for the log probability, and cut off what the environment is given",
)(log_prob_of_the_cut)
RULES.add(
    "error-with-its-sign",
    "half of the rows that the network is wrong about are hardly ever seen again",
    "store its size: priorities[rows] = error.abs() + 1e-5",
)(error_with_its_sign)
RULES.add(
    "goal-never-lowered",
    "the policy is asked for more than can still be had, ever further from what it was trained with",
    "take away what each step has brought: goal = goal - reward",
)(goal_never_lowered)


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
    "best-of-each-quantile",
    "the target is better than any action: values grow, the more the outcomes of the actions differ",
    "take the action whose mean is the largest, and all quantiles of that one",
)(best_of_each_quantile)
RULES.add(
    "next-state-alone-scaled",
    "what follows is judged in another unit than the states that are learned: the network has never been told of such states",
    "scale both by the same numbers, or neither: (next_states - states.mean(0)) / states.std(0)",
)(next_state_alone_scaled)
RULES.add(
    "window-across-episodes",
    "the last steps of an episode are credited with the first ones of the next, and led to a state of it",
    "empty the window where an episode begins: window.clear()",
)(window_across_episodes)
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


FINDERS.add("drawn-from-the-unfilled")(drawn_from_the_unfilled)
FINDERS.add("term-of-the-wrong-sign")(conservative_the_wrong_way)


RULES.add(
    "rows-by-another-order",
    "each sample is learned with what belongs to another one: an action with the reward of others, an input with the answer to another input",
    "take all of them by one index: advantages[batch], as observations[batch]",
)(rows_by_place)


RULES.add(
    "flattened-in-another-order",
    "observations, actions and returns of one row belong to different steps: nothing can be learned from them",
    "turn all of them, or none, before they are flattened",
)(flattened_apart)


RULES.add(
    "grouped-in-another-order",
    "what is averaged, or compared, as one group is made of rows of different ones",
    "take them apart as they were joined: x.repeat(n, 1) gives (n, rows), x.repeat_interleave(n, 0) gives (rows, n)",
)(grouped_in_another_order)


RULES.add(
    "memory-kept-across-episodes",
    "the policy takes the end of the last episode for the past of this one, and gradients or states grow stale",
    "begin each episode with a new state: hidden = policy.initial_state()",
)(memory_kept_across_episodes)


RULES.add(
    "divergence-of-the-wrong-sign",
    "the bound is never met: updates go on however far the policy has moved",
    "estimate it by (old - new).mean(), or ((ratio - 1) - (new - old)).mean()",
)(divergence_of_the_wrong_sign)


RULES.add(
    "logarithm-for-temperature",
    "the policy is pulled away from random actions, or towards them by a weight that nothing adapts",
    "weight by its exponential: log_alpha.exp().detach() * log_prob",
)(logarithm_for_temperature)


RULES.add(
    "best-over-the-batch",
    "the value of what follows is that of the best state of the batch: all values rise towards it",
    "take the best action of each state: q.max(dim=1)",
)(best_over_the_batch)


RULES.add(
    "masked-on-one-side",
    "the ratio is not 1 for a policy that has not changed, and is clipped for what the mask alone has done",
    "mask in both: store the mask of each step, and fill the logits by it in the update too",
)(masked_on_one_side)


RULES.add(
    "ratio-of-two-actions",
    "the ratio is not 1 for a policy that has not changed: actions at the border are clipped, or pushed, for nothing",
    "store the action that was drawn, and cut it for the environment alone; count the slope of what squashes it on both sides, or on neither",
)(ratio_of_two_actions)
FINDERS.add("ratio-of-two-actions")(slope_on_one_side)


RULES.add(
    "large-errors-without-gradient",
    "the worst predictions are the ones that are not learned from",
    "cut the gradient, not the error: F.smooth_l1_loss(prediction, target)",
)(large_errors_without_gradient)


RULES.add(
    "exploration-begins-again",
    "each episode acts at random as the first one did: what is learned is hardly ever tried",
    "set it once, before the loop over the episodes",
)(exploration_begins_again)
RULES.add(
    "reward-of-another-goal",
    "what reaches the new goal is learned to be a failure: the copies teach nothing of it",
    "compute the reward for the new goal: reward = float((next_state == goal).all())",
)(reward_of_another_goal)
RULES.add(
    "words-behind-the-end",
    "words that nobody chose are rewarded and punished: the longer the padding, the less a text's own words count",
    "leave them out: (log_probs * mask).sum() / mask.sum()",
)(words_behind_the_end)
RULES.add(
    "others-divided-by-all",
    "the baseline is too low by a share of itself: answers of an average reward are all reinforced",
    "divide by one less: (rewards.sum(1, keepdim=True) - rewards) / (count - 1)",
)(others_divided_by_all)
