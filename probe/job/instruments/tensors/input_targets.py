"""Input and targets: detects whether a model's input contains its targets (label leakage).

HOT PATH on the training thread, on the steps on which both the model's inputs and the loss function are
sampled (`model_inputs` keeps the inputs, `loss_functions` calls `relation`). Compares the targets that the
loss function saved with the inputs, and checks whether the attentions in the graph see later positions. Uses
a part of the tensors and never waits for a device. torch is passed in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from probe.job.instruments.tensors.loss_figures import signed

MOST_ROWS, MOST_ELEMENTS = 64, 16384
"""Rows and elements of sequences that are compared."""
MOST_COLUMNS, MOST_SAMPLES = 1024, 512
LEAST_SAMPLES, LEAST_TOKENS = 16, 32
MOST_NODES, MOST_ATTENTION = 1024, 4
"""Nodes of the graph searched, and attentions examined, nearest to the loss first."""
MOST_VIEWS = 16
"""Nodes between a loss and the slice that its scores are taken with."""
FIGURES = 7
_BEHIND = 1e-4
"""Share of attention to later positions above which it is not rounding."""


def relation(torch: Any, inputs: list[Any], target: Any, ignored: int | None, root: Any) -> Any:
    """Figures of python.loss_functions from `same_ratio` to `sees_later`, on the target's device; NaN for
    missing figures, None if nothing can be compared. `root`: the loss function's node in the graph."""
    none = _number(torch, float("nan"), target.device)
    tokens = [given for given in inputs if _is_tokens(given, target)]
    # As many as the targets, else one more in each row: the source of a decoder may have that length too.
    of_the_targets = [given for given in tokens if given.numel() == target.numel()] or tokens
    for given in of_the_targets:
        found = token_shares(torch, given, target, ignored)
        if found is None:
            continue
        if given is not tokens[0]:  # a decoder's input; whether it is shifted already cannot be known
            return torch.stack([none, none, none, found.padding, *[none] * 3])
        later = _sees_later(torch, root, set(map(int, given.shape)), target.device)
        shifted = torch.fmax(found.across, found.along)
        second = none if _leaves_out_the_first(root) else found.second
        return torch.stack([found.same, shifted, second, found.padding, none, none, later])
    for given in inputs:
        if given.device != target.device or given.layout is not torch.strided:
            continue
        column = given.is_floating_point() and given.dim() == 2 and target.numel() == len(given)
        if column and target.is_floating_point() and len(given) >= LEAST_SAMPLES:
            return torch.stack([none, none, none, none, *_columns(given, target), none])
    return None


def _is_tokens(given: Any, target: Any) -> bool:
    """Whether an input is a batch of token sequences that may be compared with the targets."""
    whole = not given.is_floating_point() and not target.is_floating_point()
    here = given.device == target.device and given.layout is target.layout
    return here and whole and given.dim() == 2 and given.shape[1] > 1 and given.numel() >= LEAST_TOKENS


def _number(torch: Any, value: float, device: Any) -> Any:
    return torch.full((), value, dtype=torch.float64, device=device)


class TokenShares(NamedTuple):
    """Shares of the counted targets, as tensors. They equal the token at their own position (`same`), the
    next one along the second dimension (`across`) or the first (`along`), or the one after the next
    (`second`). `padding`: they are after the end of a sequence, where the input repeats one token too."""

    same: Any
    across: Any
    along: Any
    second: Any
    padding: Any


def token_shares(torch: Any, given: Any, target: Any, ignored: int | None) -> TokenShares | None:
    """Compare targets with tokens [N, M]; None if their sizes do not match."""
    rows, length = given.shape
    flat = target.reshape(-1)
    if flat.numel() == given.numel():
        wanted = flat.view(rows, length)
    elif flat.numel() == rows * (length - 1):  # the model's own loss leaves out the first token
        wanted = torch.cat([flat.view(rows, length - 1), given[:, :1].to(flat.dtype)], 1)
    else:
        return None
    some = max(1, min(MOST_ROWS, MOST_ELEMENTS // length))
    given, wanted = given[:some], wanted[:some]
    counts = torch.ones_like(wanted, dtype=torch.bool) if ignored is None else wanted != ignored
    if flat.numel() < rows * length:
        counts = counts.clone()
        counts[:, -1] = False
    total = counts.sum().double()
    same = ((given == wanted) & counts).sum().double() / total
    across = ((given[:, 1:] == wanted[:, :-1]) & counts[:, :-1]).sum().double() / counts[:, :-1].sum()
    along = ((given[1:] == wanted[:-1]) & counts[:-1]).sum().double() / counts[:-1].sum()
    second = [
        ((given[2:] == wanted[:-2]) & counted[:-2]).sum().double() / counted[:-2].sum()
        for given, wanted, counted in ((given.T, wanted.T, counts.T), (given, wanted, counts))
    ]
    behind = _tail(torch, wanted) & counts
    uneven = _tail(torch, given).any(1) & ~behind[:, 0]
    padding = (behind & uneven[:, None]).sum().double() / total
    return TokenShares(same, across, along, torch.fmax(*second), padding)


def _leaves_out_the_first(root: Any) -> bool:
    """Whether a loss slices off the first positions of its scores: then its first target belongs to a later
    position, and two places further on in the input may be the next token."""
    node = root
    for _ in range(MOST_VIEWS):
        start = getattr(node, "_saved_start", None) if node.name().startswith("Slice") else None
        if start is not None and signed(start) != 0:
            return True
        if len(node.next_functions) != 1 or node.next_functions[0][0] is None:
            break
        node = node.next_functions[0][0]
    return False


def _tail(torch: Any, tokens: Any) -> Any:
    """Mask of the padding at row ends: repetitions of the token with the longest run at the end of a row."""
    repeated = (tokens == tokens[:, -1:]).flip(1).cumprod(1).sum(1)
    last = tokens[:, -1].index_select(0, repeated.argmax().reshape(1))  # `tokens[place]` waits for a device
    tail = (tokens == last).flip(1).cumprod(1).flip(1)
    return (tail * (tail.sum(1, keepdim=True) > 1)).bool()


def _columns(given: Any, target: Any) -> list[Any]:
    """The input column with the highest correlation with the target: the correlation, and its index."""
    some = given[:MOST_SAMPLES, :MOST_COLUMNS].double()
    wanted = target.reshape(-1)[:MOST_SAMPLES].double()
    some, wanted = some - some.mean(0), wanted - wanted.mean()
    sizes = (some * some).sum(0) * (wanted * wanted).sum()
    together = (some * wanted[:, None]).sum(0).abs() / sizes.sqrt()
    together = together.where(sizes > 0, 0.0)
    place = together.argmax()
    return [together[place], place.double()]


# Attention -------------------------------------------------------------------


def _sees_later(torch: Any, root: Any, lengths: set[int], device: Any) -> Any:
    """1 if every attention over the sequence in the graph lets positions see later ones, 0 if one does not,
    NaN if none was found or one is undecidable."""
    found = [_open(torch, node, lengths) for node in _attention(root, lengths)]
    if not found or any(one is None for one in found):
        return _number(torch, float("nan"), device)
    made = [_number(torch, one, device) if isinstance(one, bool) else one.double() for one in found]
    return torch.stack(made).min()


def _attention(root: Any, lengths: set[int]) -> Iterator[Any]:
    """The nodes of attentions between tokens of the sequence, nearest to the loss first."""
    waiting, seen, count = [root], {root}, 0
    for node in waiting:
        name = node.name()
        attention = name.startswith("ScaledDotProduct")
        made = node._input_metadata if attention or name.startswith("Softmax") else ()
        sizes = [int(one) for one in made[0].shape] if made else []
        if len(sizes) > 2 and sizes[-2] in lengths and (attention or sizes[-1] == sizes[-2]):
            count += 1
            yield node
            if count == MOST_ATTENTION:
                return
        for following, _ in node.next_functions:
            if following is not None and following not in seen and len(seen) < MOST_NODES:
                seen.add(following)
                waiting.append(following)


def _open(torch: Any, node: Any, lengths: set[int]) -> Any:
    """Whether positions see later ones: True, False, a tensor with the answer, or None if unknown."""
    if node.name().startswith("Softmax"):
        weights = _plain(node, "result")
        if weights is None or weights is False:
            return None
        square = weights.reshape(-1, *weights.shape[-2:])[0]
        return square.triu(1).sum() > _BEHIND * square.sum()
    if getattr(node, "_saved_is_causal", None) is not False:
        return False if getattr(node, "_saved_is_causal", None) else None
    masks = [_plain(node, name) for name in ("attn_mask", "attn_bias")]
    if any(one is None for one in masks):
        return None
    given = next((one for one in masks if one is not False), None)
    if given is None:
        return True
    square = given.reshape(-1, *given.shape[-2:])[0]
    if square.shape[0] != square.shape[1]:
        return None
    square = square.isfinite() & (square > -1e4) if square.is_floating_point() else square
    return square.triu(1).any()


def _plain(node: Any, name: str) -> Any:
    """A tensor that a node saved; False without it, None if it cannot be read."""
    raw: Any = getattr(node, f"_raw_saved_{name}", None)
    if raw is None:
        return False
    if getattr(raw, "unpack_hook", raw) is not None:
        return None
    try:
        data = raw.data
    except RuntimeError:  # freed, or changed in place
        return None
    return False if data is None else data
