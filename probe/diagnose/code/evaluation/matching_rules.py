"""Rules about scores of predictions that are matched with what is there. Pure."""

from __future__ import annotations

from probe.diagnose.code.finders.rankings.found_twice import one_truth_found_twice
from probe.diagnose.code.finders.weights.judged_another import another_network_kept
from probe.diagnose.code.rule import Rules

RULES = Rules("data")


RULES.add(
    "one-truth-found-twice",
    "recall can rise above 1, and a detector that says the same thing many times scores better than one that says it once",
    "mark what was found, and count a second prediction of it as a false one",
)(one_truth_found_twice)


RULES.add(
    "another-network-kept",
    "the score that is kept, and reported, is not that of the weights that are kept: those may be worse than the ones of another epoch",
    "keep the state of the network that was judged: average.state_dict()",
)(another_network_kept)
