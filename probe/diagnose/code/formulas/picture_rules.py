"""Formulas of pictures and of what is generated: boxes, hidden parts, margins, velocities, codebooks. Pure."""

from __future__ import annotations

from probe.diagnose.code.finders.pictures.generated import (
    codebook_untrained,
    codes_alone,
    guided_away,
    velocity_backwards,
)
from probe.diagnose.code.finders.pictures.half_flows import half_never_changed
from probe.diagnose.code.finders.pictures.hidden_parts import answer_in_the_holes, only_what_is_shown
from probe.diagnose.code.finders.pictures.margins import on_every_class
from probe.diagnose.code.finders.pictures.moved_pixels import rows_first
from probe.diagnose.code.finders.pictures.overlaps import (
    of_another_form,
    of_disjoint_boxes,
    without_the_overlap,
)
from probe.diagnose.code.finders.pictures.pasted import judged_by_another_label, never_moved
from probe.diagnose.code.finders.pictures.rendered import (
    behind_itself,
    counted_in_pixels,
    put_in_order_twice,
)
from probe.diagnose.code.finders.pictures.repeated_noise import (
    bounded_critic,
    clean_cut_to_another_range,
    drawn_once,
    mixed_pixel_by_pixel,
    noise_is_the_prediction,
    step_before_of_another_stride,
    step_on_another_scale,
)
from probe.diagnose.code.finders.pictures.trained_for import (
    next_for_the_last,
    noise_for_the_picture,
    smoothed_outside,
    spread_punished,
    written_to_one_place,
)
from probe.diagnose.code.finders.rows.candidates import (
    angle_of_no_cosine,
    first_is_a_negative,
    matched_to_the_unlikely,
    worst_kept,
)
from probe.diagnose.code.finders.sequences.likeness import divided_by_the_output, likeness_minimized
from probe.diagnose.code.rule import Rules

RULES = Rules("model")

RULES.add(
    "overlap-of-disjoint-boxes",
    "boxes that lie far apart count as if they overlapped, and the farther apart the more: as a loss it drives them away from each other",
    "cut both sides off at 0: (right - left).clamp(min=0) * (bottom - top).clamp(min=0)",
)(of_disjoint_boxes)
RULES.add(
    "hull-without-the-overlap",
    "what the boxes fill themselves counts as empty: boxes that overlap in part are scored worse than they are",
    "subtract the union: iou - (hull - union) / hull",
)(without_the_overlap)
RULES.add(
    "holes-filled-with-the-answer",
    "what is scored or shown is the picture itself where the network should have filled it: the score says nothing of what it fills in",
    "take the output where the input was hidden: mask * picture + (1 - mask) * output",
)(answer_in_the_holes)
RULES.add(
    "loss-of-what-is-shown",
    "the network is only asked for what it is given: it learns to copy",
    "take the error of the hidden parts: (error * (1 - keep)).sum() / (1 - keep).sum()",
)(only_what_is_shown)
RULES.add(
    "margin-of-all-classes",
    "what all scores lose alike changes no comparison: the class of a sample does not have to win by more than the others",
    "take it from the score of the sample's class alone: cos(theta + m * one_hot(y))",
)(on_every_class)
RULES.add(
    "grid-of-rows-first",
    "rows and columns change places: a picture is turned over its diagonal, and what moves it moves it along the other axis",
    "put the column first: torch.stack((xs, ys), dim=-1)",
)(rows_first)
RULES.add(
    "velocity-against-the-path",
    "sampling goes away from the data, as it follows what was learned the other way round",
    "learn the velocity of the path: end - begin for (1 - t) * begin + t * end",
)(velocity_backwards)
RULES.add(
    "guided-away-from-the-condition",
    "the larger the scale, the less the samples have to do with what was asked for",
    "begin without the condition and go towards it: free + scale * (held - free)",
)(guided_away)
RULES.add(
    "codebook-without-its-loss",
    "no code ever moves: the codebook keeps its first values, and the encoder is pushed away from them",
    "take the loss before the straight-through step: mse_loss(q, z.detach()), then q = z + (q - z).detach()",
)(codebook_untrained)
RULES.add(
    "codes-without-a-way-back",
    "the encoder only learns to stay near its codes, and not what should be in them: what is decoded gets no better by it",
    "pass the gradient by: q = z + (q - z).detach()",
)(codes_alone)
RULES.add(
    "boxes-of-another-form",
    "a middle counts as a corner and a size as another one: overlaps are those of other boxes",
    "convert them first: box_convert(boxes, 'cxcywh', 'xyxy')",
)(of_another_form)
RULES.add(
    "noise-for-the-picture",
    "what is scored or sampled is something else than the network gives",
    "take the noise from the input: noisy - net(noisy), or train on what is used",
)(noise_for_the_picture)
RULES.add(
    "spread-punished",
    "the loss is smallest where all samples have one and the same code: what should prevent that asks for it",
    "punish a spread that is too small: relu(1 - std)",
)(spread_punished)
RULES.add(
    "product-of-the-next-step",
    "the variance and the mean of each sampling step are those of no step: variances are above what was added, or below 0",
    "shift the other way: F.pad(alphas_cumprod[:-1], (1, 0), value=1.0)",
)(next_for_the_last)
RULES.add(
    "smoothed-outside-the-fraction",
    "the score is a sum over pixels, and no share: it grows with the object, and the loss falls without end",
    "put brackets around it: (2 * overlap + smooth) / (total + smooth)",
)(smoothed_outside)
RULES.add(
    "written-to-one-place",
    "most of the store keeps what it was made with, and is read as if it were data",
    "move the place: self.ptr = (self.ptr + n) % self.size",
)(written_to_one_place)
RULES.add(
    "judged-by-another-label",
    "the judge learns that no generated sample fits its label, and the generator that its label means nothing",
    "judge it with the label that it was generated for",
)(judged_by_another_label)
RULES.add(
    "center-never-moves",
    "taking zeros away changes nothing: what the centre is there for does not happen",
    "follow the mean of the batches: self.center.mul_(0.9).add_(out.mean(0), alpha=0.1)",
)(never_moved)
RULES.add(
    "half-never-changed",
    "one half of each sample passes through all layers as it is: its distribution is only learned as far as the other half tells it",
    "let the layers take turns: exchange the halves (or the mask) from layer to layer",
)(half_never_changed)
RULES.add(
    "light-behind-the-sample",
    "a sample that lets no light through hides itself: surfaces come out dark, and the field learns fog in their place",
    "begin with 1, and leave the last one out: cumprod(cat([ones, 1 - alpha]))[..., :-1]",
)(behind_itself)
RULES.add(
    "grid-in-pixels",
    "nearly all places that are read lie outside of the picture: what comes back is its border or zeros",
    "bring it to -1 to 1: 2 * x / (width - 1) - 1",
)(counted_in_pixels)
RULES.add(
    "put-in-order-twice",
    "what was made of one row is taken for that of another one: positions, masks and targets do not go with it",
    "undo the order: x[order.argsort()]",
)(put_in_order_twice)
RULES.add(
    "noise-drawn-once",
    "the generator only learns what to make of these few points, and has seen no other when it is asked for new samples",
    "draw it in each pass: z = torch.randn(n, size)",
)(drawn_once)
RULES.add(
    "mixed-pixel-by-pixel",
    "the slope of the judge is held near 1 where no sample lies, and not between the real and the generated ones",
    "draw one share for each sample: torch.rand(n, 1, 1, 1)",
)(mixed_pixel_by_pixel)
RULES.add(
    "step-before-of-another-stride",
    "after each step the sample holds another amount of noise than the network is then told",
    "take the step that comes next: zip(steps[:-1], steps[1:])",
)(step_before_of_another_stride)
RULES.add(
    "clean-cut-to-another-range",
    "half of the range is lost at each step back: what is dark in the data never comes out dark",
    "cut off where the data end: x0.clamp(-1, 1)",
)(clean_cut_to_another_range)
RULES.add(
    "noise-is-the-prediction",
    "the steps back draw nothing: samples lack the spread of the data, and keep noise that should be gone",
    "draw it: x = mean + sigma * torch.randn_like(x)",
)(noise_is_the_prediction)
RULES.add(
    "step-on-another-scale",
    "the network is asked about steps that it has never been given: it removes the wrong amount of noise",
    "give the step on one scale in both places",
)(step_on_another_scale)
RULES.add(
    "first-is-a-negative",
    "each sample is pulled to one of those that it should be unlike, and pushed away from its own partner",
    "put the positive one first: torch.cat([positive, negatives], dim=1)",
)(first_is_a_negative)
RULES.add(
    "angle-of-no-cosine",
    "products above 1 are cut off or have no angle, and the margin is another one for each class",
    "normalize both: F.linear(F.normalize(x), F.normalize(weight))",
)(angle_of_no_cosine)
RULES.add(
    "matched-to-the-unlikely",
    "each target goes to the prediction that is least like it, and that one is trained towards it",
    "take it with a minus, or ask for the largest sum: maximize=True",
)(matched_to_the_unlikely)
RULES.add(
    "worst-box-kept",
    "of all boxes of one thing the least certain one is given, and the best ones are left out",
    "begin with the largest score: scores.argsort(descending=True)",
)(worst_kept)
RULES.add(
    "bounded-critic",
    "the distance between the two is cut off at 1: where the sigmoid is flat, neither the critic nor the generator learns",
    "let the critic end in a linear layer",
)(bounded_critic)
RULES.add(
    "likeness-minimized",
    "training makes the output less like the target",
    "take it with a minus, or 1 - ssim(output, target)",
)(likeness_minimized)
RULES.add(
    "divided-by-the-output",
    "the loss also falls by making the output larger, and an output that is too small costs more than one that is too large",
    "divide by the size of the target",
)(divided_by_the_output)
