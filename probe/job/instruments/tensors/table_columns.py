"""Table columns: figures of the columns of an input [N, F], such as constant columns and outliers.

HOT PATH on the steps on which the model's inputs are sampled (`model_inputs`), on the training thread: a few
operations over a part of a batch, and two rows of F numbers kept between samples. Nothing waits for a device.
torch is passed in.
"""

from __future__ import annotations

from typing import Any

MOST_COLUMNS, LEAST_SAMPLES, MOST_ELEMENTS = 64, 8, 8192
"""An input with more columns is hardly a table: images and vectors have positions that are always empty."""
MOST_TABLES = 16
FIGURES = 7
_LEAST_SHARE, _MOST_SHARE = 0.005, 0.5


class TableColumns:
    """The smallest and largest value of each column so far."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, int], tuple[Any, Any, int]] = {}
        """By model and input: smallest and largest values, and number of samples read."""

    def figures(self, torch: Any, key: tuple[int, int], tensor: Any, like: Any) -> Any:
        """Figures of python.model_inputs from `rows_so_far` to `apart_column`, on the device of `like`; NaN
        if the tensor is no table."""
        none = like.new_full((FIGURES,), float("nan"))
        if type(tensor) is not torch.Tensor or not tensor.is_floating_point() or tensor.dim() != 2:
            return none
        samples, columns = tensor.shape
        if not 2 <= columns <= MOST_COLUMNS or samples < LEAST_SAMPLES or tensor.element_size() == 1:
            return none
        some = max(1, MOST_ELEMENTS // columns)
        part = tensor[:: -(-samples // some)].detach().to(like.dtype)
        low, high = part.amin(0), part.amax(0)
        before = self._ends.get(key)
        if before is not None and before[0].shape == low.shape and before[0].device == low.device:
            low, high = torch.minimum(low, before[0]), torch.maximum(high, before[1])
            rows = before[2] + len(part)
        elif len(self._ends) < MOST_TABLES or before is not None:
            rows = len(part)
        else:
            return none
        self._ends[key] = low, high, rows
        still = low == high
        first = still.to(like.dtype).argmax().reshape(1)
        value = torch.where(still.any(), low.index_select(0, first)[0], torch.nan)
        ratio, share, column = _apart(torch, part)
        found = [still.sum(), first[0], value, ratio, share, column]
        return torch.stack([like.new_full((), rows), *(one.to(like.dtype) for one in found)])


def _apart(torch: Any, part: Any) -> tuple[Any, Any, Any]:
    """Find the column whose smallest or largest value is farthest from its other values and occurs in several
    samples. Returns its distance from them as a multiple of their range, its share, and the column."""
    ratios, shares = [], []
    for values in (part, -part):
        end = values.amin(0)
        at_end = values == end
        share = at_end.to(part.dtype).mean(0)
        others = torch.where(at_end, torch.inf, values).amin(0)
        spread = values.amax(0) - others
        ratio = (others - end) / torch.where(spread > 0, spread, torch.inf)
        several = (at_end.sum(0) > 1) & (share >= _LEAST_SHARE) & (share <= _MOST_SHARE)
        ratios.append(torch.where(several & torch.isfinite(ratio), ratio, 0.0))
        shares.append(share)
    ratio, share = torch.cat(ratios), torch.cat(shares)
    place = ratio.argmax().reshape(1)  # `ratio[place]` waits for a device
    column = place[0].remainder(part.shape[1])
    return ratio.index_select(0, place)[0], share.index_select(0, place)[0], column
