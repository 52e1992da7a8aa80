"""Clocks of several hosts, compared by the collectives that their ranks had in common.

No rank leaves an all_reduce, or another collective in `MEETINGS`, before the last one has entered it. So each
of them bounds how far apart two clocks are, from both sides; the ends, which are close together, say where in
between. Pure. Standard library only; any thread.
"""

from __future__ import annotations

from typing import NamedTuple

MEETINGS = (
    "all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_into_tensor", "all_gather_coalesced",
    "all_gather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced",
    "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "barrier",
    "monitored_barrier",
)
"""Collectives that no rank leaves before all have entered. The root of a broadcast may leave at once."""


class Common(NamedTuple):
    """What the meetings of a host with the reference host bound; all in nanoseconds by the two clocks.

    `low_ns`, `high_ns`: how far the host's clock is ahead, at least and at most; `usual_ns` the median of the
    differences between the ends, `spread_ns` the largest distance of the middle 90 % of them from it."""

    low_ns: int
    high_ns: int
    usual_ns: float
    spread_ns: float
    meetings: int


class Offset(NamedTuple):
    """How far a host's clock is ahead of the reference's, and by how much that may be wrong.

    `consistent` is false when no single offset fits all meetings: a clock was set, or they drift apart."""

    ahead_ns: int
    error_ns: int
    consistent: bool


def offset(common: Common) -> Offset:
    """The offset that fits the meetings best, with its error."""
    if common.low_ns > common.high_ns:
        drift_ns = (common.low_ns - common.high_ns) / 2
        return Offset(round(common.usual_ns), round(max(common.spread_ns, drift_ns)), False)
    ahead_ns = round(min(max(common.usual_ns, common.low_ns), common.high_ns))
    return Offset(ahead_ns, max(ahead_ns - common.low_ns, common.high_ns - ahead_ns), True)
