"""Pictures and sounds on their way into a network: boxes, crops, ranges, sampling rates and decibels. Pure."""

from __future__ import annotations

from probe.diagnose.code.finders.data.moved_inputs import mixed_the_other_way
from probe.diagnose.code.finders.pictures.box_columns import (
    into_another_axis,
    scaled_by_another_side,
    split_by_the_rows,
    without_its_size,
)
from probe.diagnose.code.finders.pictures.mirrored_boxes import not_swapped
from probe.diagnose.code.finders.pictures.moved_pixels import (
    crops_apart,
    cut_after_normalizing,
    size_of_rows_first,
)
from probe.diagnose.code.finders.pictures.rendered import shown_below_zero
from probe.diagnose.code.finders.pictures.sounds import (
    decibels,
    joined_at_another_hop,
    joined_by_another_window,
    read_at_another_rate,
    resampled_backwards,
)
from probe.diagnose.code.finders.pictures.trained_for import frames_in_any_order
from probe.diagnose.code.finders.pictures.written_over import written_over
from probe.diagnose.code.finders.rows.candidates import objects_for_background
from probe.diagnose.code.finders.sequences.likeness import decibels_of_the_square
from probe.diagnose.code.finders.sizes.own_peaks import scaled_by_its_own_peak
from probe.diagnose.code.finders.sizes.resized import (
    boxes_of_the_old_size,
    motion_of_the_old_size,
)
from probe.diagnose.code.rule import Rules

RULES = Rules("data")

RULES.add(
    "corners-not-swapped",
    "a mirrored box begins at its right end and ends at its left one: it has a width below 0, and no box overlaps it",
    "the new left end comes from the old right one: box[[0, 2]] = width - box[[2, 0]]",
)(not_swapped)
RULES.add(
    "boxes-of-the-old-size",
    "boxes no longer lie on what they show, and the farther a picture was from the new size, the farther away they are",
    "scale them with it: box * torch.tensor([new_w / w, new_h / h, new_w / w, new_h / h])",
)(boxes_of_the_old_size)
RULES.add(
    "scaled-by-its-own-peak",
    "the network cannot know how loud the answer should be: it learns a mean of many factors",
    "divide both by one number: peak = mix.abs().max(); mix / peak, clean / peak",
)(scaled_by_its_own_peak)
RULES.add(
    "motion-of-the-old-size",
    "the network learns to move each pixel too far, or not far enough: what is moved by its output misses the other picture",
    "scale the motion too: flow * (new_size / old_size)",
)(motion_of_the_old_size)
RULES.add(
    "crops-of-two-places",
    "each input meets a target that shows another place: the best that can be learned is a blur",
    "begin at the same place of both: hr[:, y * scale : (y + size) * scale]",
)(crops_apart)
RULES.add(
    "cut-after-normalizing",
    "all that is darker than the mean becomes one flat colour, and what is far above it another",
    "do it before the normalization, or cut to the range that it gives: (0 - mean) / std to (1 - mean) / std",
)(cut_after_normalizing)
RULES.add(
    "resampled-the-wrong-way",
    "the sound is stretched and its pitch moved the other way, differently for each rate of the files",
    "say first what it has, then what it should get: resample(sound, rate, 16000)",
)(resampled_backwards)
RULES.add(
    "features-of-another-rate",
    "frequencies are taken for others: the filters lie where nothing or something else is",
    "read it at that rate: librosa.load(path, sr=16000)",
)(read_at_another_rate)
RULES.add(
    "decibels-of-the-other-kind",
    "all decibels are twice or half of what they should be, and what is cut off below the loudest is another part",
    "power_to_db for squares (melspectrogram), amplitude_to_db for amplitudes (abs of stft)",
)(decibels)
RULES.add(
    "size-of-rows-first",
    "height and width change places: a picture that is no square is squeezed along one axis and stretched along the other",
    "give the width first: cv2.resize(image, (w, h))",
)(size_of_rows_first)
RULES.add(
    "joined-at-another-hop",
    "the sound is longer or shorter than what was cut, and its frames no longer fit together",
    "use one hop for both",
)(joined_at_another_hop)
RULES.add(
    "frames-in-any-order",
    "there is no motion in what the network sees: the frames of a video come in another order each time",
    "sort the numbers: sorted(random.sample(range(n), k))",
)(frames_in_any_order)
RULES.add(
    "overwritten-before-read",
    "the second of two places is computed from what the first has just become: in the end both hold the same, or one has not changed",
    "keep a copy first: old = boxes.clone(), and compute both from it",
)(written_over)
RULES.add(
    "scaled-by-another-side",
    "boxes are stretched by the wrong factor wherever a picture is no square, and no longer lie on what they show",
    "a picture of PIL has (width, height) as its size, an array (rows, columns, ...) as its shape: x goes with the width",
)(scaled_by_another_side)
RULES.add(
    "split-by-the-rows",
    "row and column are right only where the picture is a square: all else is found in other places",
    "divide by the number of columns: y = place // width, x = place % width",
)(split_by_the_rows)
RULES.add(
    "mirrored-without-its-size",
    "each mirrored box is moved by its own size, beside what it should show",
    "take the size away too: x = width - x - w",
)(without_its_size)
RULES.add(
    "mirrored-into-another-axis",
    "the boxes of mirrored pictures lie elsewhere, and along the axis of the mirror they stay as they were",
    "write rows to rows: boxes[:, 1] = height - old[:, 3]",
)(into_another_axis)
RULES.add(
    "negative-values-cut-off",
    "all that is darker than a middle grey is black in the pictures that are saved",
    "bring it to 0 to 1 first: save_image((x + 1) / 2, path), or normalize=True, value_range=(-1, 1)",
)(shown_below_zero)
RULES.add(
    "decibels-of-the-square",
    "what is reported is twice as many decibels as there are, or half of them",
    "10 * log10(peak ** 2 / mse), or 20 * log10(peak / sqrt(mse))",
)(decibels_of_the_square)
RULES.add(
    "joined-by-another-window",
    "the sound that comes back rises and falls with each frame",
    "give both the same window",
)(joined_by_another_window)
RULES.add(
    "objects-for-background",
    "the detector learns that there is nothing where these objects are",
    "number the classes from 1 on",
)(objects_for_background)
RULES.add(
    "mixed-the-other-way",
    "the more of a sample is seen, the less of its label is asked for",
    "give both the same share: share * x + (1 - share) * x[perm], share * y + (1 - share) * y[perm]",
)(mixed_the_other_way)
