"""Pictures and sounds on their way into a network: boxes, crops, ranges, sampling rates and decibels. Pure."""

from __future__ import annotations

from probe.diagnose.code.finders.pictures.mirrored_boxes import not_swapped
from probe.diagnose.code.finders.pictures.moved_pixels import (
    crops_apart,
    cut_after_normalizing,
    size_of_rows_first,
)
from probe.diagnose.code.finders.pictures.sounds import (
    decibels,
    joined_at_another_hop,
    read_at_another_rate,
    resampled_backwards,
)
from probe.diagnose.code.finders.pictures.trained_for import frames_in_any_order
from probe.diagnose.code.rule import Rules

RULES = Rules("data")

RULES.add(
    "corners-not-swapped",
    "a mirrored box begins at its right end and ends at its left one: it has a width below 0, and no box overlaps it",
    "the new left end comes from the old right one: box[[0, 2]] = width - box[[2, 0]]",
)(not_swapped)
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
