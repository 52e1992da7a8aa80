"""In-batch negatives: detects copies of a positive among its negatives, and pairs made of one view.

HOT PATH on the steps that `loss_functions` samples, on the training thread, for a cross-entropy in which
each row has a column of its own as its target (InfoNCE, NT-Xent, CLIP, two towers). Reads a part of the
scores that the loss function saved, and never waits for a device. torch is passed in.
"""

from __future__ import annotations

from typing import Any

from probe.job.instruments.tensors.loss_figures import kept

FIGURES = 3
LEAST_ROWS, MOST_POSITIVES, MOST_COLUMNS, ANCHORS = 8, 12, 256, 8
"""Rows that are needed, positives and columns that are compared, and rows by which columns are compared.
Fewer than 32768 numbers: from there on torch uses several threads, which may be busy elsewhere."""
MOST_SAMPLES, MOST_VALUES = 256, 120
"""Samples, and values of each, evenly spaced, that are compared to find inputs that are the same."""
LEAST_NUMBERS, LEAST_MEASURES = 4, 16
"""Numbers, such as words, and measures that a sample needs to be told from another: two may share a few. So
many of the values compared must differ from 0: most counts of a bag of words, say, are 0 in each sample."""
MOST_SCORES = 4096
"""Columns of the scores; a loss with more of them has classes or words as its columns."""
EQUAL = 1e-3
"""Difference between two scores of a row that counts as rounding, as a share of the row's deviation. Columns
are the same if they are in all `ANCHORS` rows: by chance that happens to one pair in (1 / EQUAL) ** 8."""
MASKED = -1e3
"""Log-probability below which a score is masked: -inf, -1e9, or the least number of a type."""


def figures(torch: Any, node: Any, inputs: list[Any]) -> Any:
    """Figures of python.loss_functions from `copies_ratio` to `one_view_ratio`, on the target's device, NaN
    for missing ones; None if the targets are not a column for each row. `inputs`: of the first module, and
    the tensors of the loader's batch."""
    scores, target = kept(node, "self"), kept(node, "target")
    if scores is None or scores.dim() != 2 or target is None or target.dim() != 1:
        return None
    rows, columns = scores.shape
    if rows < LEAST_ROWS or columns % rows or columns > MOST_SCORES or target.is_floating_point():
        return None
    if scores.layout is not torch.strided or scores.device != target.device or len(target) != rows:
        return None
    distinct = (target.sort().values.diff() > 0).all()
    if distinct.is_cpu and not distinct:
        return None
    numbers = torch.arange(rows, device=target.device)
    places = torch.arange(columns, device=target.device)
    chosen = slice(None, rows // ANCHORS * ANCHORS, rows // ANCHORS)
    anchors = scores[chosen].double()
    finite = anchors > MASKED
    count = finite.sum(1, keepdim=True)
    centred = anchors - anchors.where(finite, 0.0).sum(1, keepdim=True) / count
    deviation = (centred.square().where(finite, 0.0).sum(1, keepdim=True) / count).sqrt()
    told = distinct & (deviation > 1e-6 * anchors.where(finite, 0.0).abs().amax(1, keepdim=True)).all()
    own = numbers[:MOST_POSITIVES, None]
    positives = target[:MOST_POSITIVES, None].clamp(0, columns - 1).long()
    others = places[:MOST_COLUMNS]
    equal = (anchors[:, positives] - anchors[:, None, others]).abs() <= EQUAL * deviation[:, :, None]
    same = (equal | ~finite[:, positives] | ~finite[:, None, others]).all(0)
    itself = (others == own) & (rows == columns)
    asked = (scores[:MOST_POSITIVES, :MOST_COLUMNS] > MASKED) & (others != positives) & ~itself
    copies = (same & asked).any(1).double().mean()
    alike = _alike(torch, inputs, rows, copies)
    only_itself_masked = (finite | (places == numbers[chosen, None])).all()
    alike = torch.where(only_itself_masked, alike, float("nan"))  # else copies may be masked
    one_view = torch.full_like(copies, float("nan"))
    if rows == columns:
        one_view = _one_view(torch, scores, own[:, 0], deviation.mean(), same & itself)
    return torch.where(told, torch.stack([copies, alike, one_view]), float("nan"))


def _one_view(torch: Any, scores: Any, own: Any, deviation: Any, itself: Any) -> Any:
    """Share of the rows whose positive is their own embedding. Where each row's score with itself is masked,
    the positive's column is the row's own. Elsewhere all scores are products of one set of embeddings with
    itself: then going around three rows one way or the other gives the same sum, however a row is
    normalized."""
    i, j, k = own, (own + 1) % len(scores), (own + 2) % len(scores)
    around = scores[i, j] + scores[j, k] + scores[k, i] - scores[j, i] - scores[k, j] - scores[i, k]
    symmetric = around.abs() <= EQUAL * deviation
    return torch.where(scores[own, own] <= MASKED, itself.any(1), symmetric).double().mean()


def _alike(torch: Any, inputs: list[Any], rows: int, like: Any) -> Any:
    """Largest share of samples that are the same as another one in an input of the model. Masks and kinds
    (two values), inputs of a few numbers, and those that are the same for all samples do not count."""
    found = torch.full_like(like, float("nan"))
    for given in inputs:
        if given.device != like.device or given.layout is not torch.strided or given.dtype is torch.bool:
            continue
        if given.dim() < 2 or len(given) != rows:
            continue
        if given[0].numel() < (LEAST_MEASURES if given.is_floating_point() else LEAST_NUMBERS):
            continue
        values = given[:MOST_SAMPLES].flatten(1)
        values = values[:, :: -(-values.shape[1] // MOST_VALUES)].double()
        weights = torch.arange(1, values.shape[1] + 1, device=like.device).double().sqrt().sin()
        filled = (values != 0).sum(1) >= LEAST_NUMBERS
        sums, order = (values * weights).sum(1).sort()
        equal = sums.diff() == 0
        ends = equal.new_zeros(1)
        share = ((torch.cat([equal, ends]) | torch.cat([ends, equal])) & filled[order]).double().mean()
        plain = ((values != 0) & (values != 1)).any() & (values != values[:1]).any() & filled.any()
        found = torch.fmax(found, torch.where(plain, share, float("nan")))
    return found
