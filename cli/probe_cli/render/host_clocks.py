"""Estimates clock offsets between hosts from the collectives that their ranks have in common.

No rank leaves an all_reduce, or another collective in `MEETINGS`, before the last one has entered it. So each
of them bounds the offset of two clocks from above and below; the ends of the collective, which are close
together on all ranks, determine the value in between. Pure; standard library only; any thread.
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
    """Bounds on a host's clock offset from its collectives with the reference host, in nanoseconds.

    `low_ns`, `high_ns`: least and largest lead of the host's clock; `usual_ns`: median of the differences
    between the ends; `spread_ns`: largest distance of their middle 90 % from the median."""

    low_ns: int
    high_ns: int
    usual_ns: float
    spread_ns: float
    meetings: int


class Offset(NamedTuple):
    """A host's clock offset from the reference clock (positive: ahead), and its error.

    `consistent` is false if no single offset fits all collectives: a clock was set, or they drift."""

    ahead_ns: int
    error_ns: int
    consistent: bool


def offset(common: Common) -> Offset:
    """The offset that fits the common collectives best, with its error."""
    if common.low_ns > common.high_ns:
        drift_ns = (common.low_ns - common.high_ns) / 2
        return Offset(round(common.usual_ns), round(max(common.spread_ns, drift_ns)), False)
    ahead_ns = round(min(max(common.usual_ns, common.low_ns), common.high_ns))
    return Offset(ahead_ns, max(ahead_ns - common.low_ns, common.high_ns - ahead_ns), True)
