"""Language models and taggers: rows that were sorted, texts that are searched and drawn, tables of positions. Pure."""

from __future__ import annotations

from probe.diagnose.code.finders.rankings.drafted_words import drawn_anew_from_all
from probe.diagnose.code.finders.rankings.hidden_prompts import hidden_before_the_text
from probe.diagnose.code.finders.rankings.kept_tables import table_of_another_start
from probe.diagnose.code.finders.rankings.lengths_of_texts import prompt_in_the_length
from probe.diagnose.code.finders.rankings.mixtures import mixture_of_logarithms
from probe.diagnose.code.finders.rankings.odds_and_cuts import (
    cut_after_the_norm,
    kept_words_called_replaced,
    odds_of_logarithms,
)
from probe.diagnose.code.finders.rankings.restored_rows import put_back_beside_sorted
from probe.diagnose.code.finders.rankings.tag_transitions import transitions_turned
from probe.diagnose.code.finders.rankings.turned_by_heads import turned_by_heads
from probe.diagnose.code.finders.sizes.means_and_pairs import (
    baseline_trained_along,
    divided_by_all_texts,
    zero_for_minus_one,
)
from probe.diagnose.code.rule import Rules

RULES = Rules("model")

RULES.add(
    "put-back-beside-sorted",
    "what belongs to one row is applied to another: each row is averaged, masked or read by the length of another one",
    "take both in one order: put the lengths back too, or use them as they came",
)(put_back_beside_sorted)
RULES.add(
    "prompt-in-the-length",
    "texts that end early are divided by hardly less than long ones, and score higher the longer the prompt is: the search prefers short texts",
    "divide by the words that were written: score / (len(ids) - len(prompt)) ** alpha",
)(prompt_in_the_length)
RULES.add(
    "drawn-anew-from-all",
    "what is written does not follow the large model: words that the small one likes come too often",
    "draw from what is missing: (p - q).clamp(min=0), divided by its sum",
)(drawn_anew_from_all)
RULES.add(
    "mixture-of-logarithms",
    "what is learned, or reported, is a multiple of the divergences between the two themselves, without the bound of a comparison with their mixture",
    "take the logarithm of the mean: torch.logsumexp(torch.stack([log_p, log_q]), 0) - math.log(2)",
)(mixture_of_logarithms)
RULES.add(
    "transitions-turned",
    "the likelihood compares the steps of a text with those of all texts read backwards: the table is pulled two ways, and what is decoded breaks the order of the tags",
    "read the table one way in all places: table[tags[:, :-1], tags[:, 1:]], and the sum over the first of its axes",
)(transitions_turned)
RULES.add(
    "table-of-another-start",
    "with a cache of keys, all words after the first of them get one and the same place: what is generated differs from what was learned",
    "keep it under both: cache[length, start], or keep one long table and cut it: table[start : start + length]",
)(table_of_another_start)
RULES.add(
    "turned-by-heads",
    "no query and no key knows its place: within a head all words are turned alike, and their order is not seen",
    "turn along the words: put the heads before them first, x.transpose(1, 2), and take as many angles as there are words",
)(turned_by_heads)
RULES.add(
    "odds-of-logarithms",
    "the term is no ratio of odds: it hardly tells the two answers apart beyond their likelihoods themselves",
    "take the exponential first: torch.log1p(-torch.exp(log_p))",
)(odds_of_logarithms)
RULES.add(
    "cut-after-the-norm",
    "vectors that have much of their length in their first numbers win against all queries: the score of the short vectors is lower than it could be",
    "cut first, and divide by the length then: F.normalize(x[:, :width], dim=1)",
)(cut_after_the_norm)
RULES.add(
    "kept-words-called-replaced",
    "the better the generator, the more right words the judge is taught to call wrong",
    "ask where the text was changed: labels = (filled != ids).float()",
)(kept_words_called_replaced)
RULES.add(
    "hidden-before-the-text",
    "the shorter a text is, the more of its prompt the model is trained to write, beside the answer",
    "count from where the text begins: labels[i, start : start + len(prompt)] = -100",
)(hidden_before_the_text)
RULES.add(
    "divided-by-all-texts",
    "what a text gives depends on how many words the texts beside it have, and becomes smaller as batches grow",
    "divide by the words of the text: (h * mask).sum(1) / mask.sum(1)",
)(divided_by_all_texts)
RULES.add(
    "baseline-trained-along",
    "the policy is pulled by the number that should only say where it stands: good answers are pushed down with the baseline",
    "take it without a gradient: kl.mean().detach().clamp(min=0)",
)(baseline_trained_along)
RULES.add(
    "zero-for-minus-one",
    "pairs that do not belong together are never pushed apart: all vectors may come to lie in one place",
    "mark them by -1: 2 * torch.eye(n) - 1",
)(zero_for_minus_one)
