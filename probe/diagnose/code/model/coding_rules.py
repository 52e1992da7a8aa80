"""Rules about stores, codes and places that are written and read back, and about the rates of layers. Pure."""

from __future__ import annotations

from probe.diagnose.code.finders.followed.moved_stores import moved_by_one
from probe.diagnose.code.finders.rankings.rates_of_depths import later_layers_slower
from probe.diagnose.code.finders.sizes.coded_boxes import read_on_another_scale
from probe.diagnose.code.finders.sizes.moved_places import (
    border_not_taken_away,
    left_on_the_coarse_grid,
    moved_against_the_crop,
    straight_through_the_circle,
)
from probe.diagnose.code.finders.sizes.rows_of_places import compared_rows_first
from probe.diagnose.code.rule import Rules

RULES = Rules("model")


RULES.add(
    "rows-overwritten-by-the-next",
    "of each batch one row is left in the store: what is read back are few batches, or the numbers that it was made with",
    "move the place on by the number of rows: (start + len(rows)) % size",
)(moved_by_one)


RULES.add(
    "sizes-read-on-another-scale",
    "boxes come out too large or too small by a power of what they should be, though the loss is low",
    "undo each step of the code: anchor * exp(output * variance), where log(box / anchor) / variance is learned",
)(read_on_another_scale)


RULES.add(
    "places-of-rows-first",
    "a place counts as right only where row and column are alike: the error that is reported says nothing of what the network finds",
    "put both in one order: x is the column (index % width), and y the row (index // width)",
)(compared_rows_first)


RULES.add(
    "left-on-the-coarse-grid",
    "the places that are found lie near the corner of the picture: the error that is reported is that of another scale",
    "multiply by the stride: found * stride",
)(left_on_the_coarse_grid)


RULES.add(
    "moved-against-the-crop",
    "the target does not lie where the input shows it, and is twice as far away as if it had not been moved at all",
    "take the beginning of the piece away: points - (left, top)",
)(moved_against_the_crop)


RULES.add(
    "straight-through-the-circle",
    "angles that are nearly alike count as the largest errors: what is reported is larger than the error is",
    "take the shorter way: d = abs(a - b) % 360, then min(d, 360 - d)",
)(straight_through_the_circle)


RULES.add(
    "later-layers-slower",
    "what was learned before, in the first layers, is changed most, and the last ones, which the new task needs, hardly learn",
    "let the rate rise with the depth: rate * decay ** (depth - place)",
)(later_layers_slower)


RULES.add(
    "border-not-taken-away",
    "what is found lies as far beside the true place as the border is wide: the score is that of moved boxes",
    "take the border away before dividing: (found - border) / scale",
)(border_not_taken_away)
