"""Chooses the step before which all ranks act: the first that no rank reaches before all have been told.

Pure; times are on the wall clock, units as in the names. Standard library only.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from probe.base.errors import NotTogether
from probe.diagnose.ranks.alignment import offsets


class Place(NamedTuple):
    """Where one rank is: its current step, by its own count (None before its first one); number and end time
    of the latest steps; whether it is paused, and whether it was recorded from its start."""

    step: int | None
    ends: Sequence[tuple[int, int]]
    paused: bool
    from_start: bool

    @property
    def usual_ns(self) -> float | None:
        """Median time between the ends of consecutive steps."""
        between = [later - earlier for (_, earlier), (_, later) in pairwise(self.ends)]
        return statistics.median(between) if between else None


class Agreed(NamedTuple):
    """The step, by each rank's own count, and the time until then at the usual pace; None if unknown."""

    steps: dict[int, int]
    in_s: float | None


def agree(places: Mapping[int, Place], lead_s: float, now_ns: int) -> Agreed:
    """The step that begins at least `lead_s` from now on every rank. Raises `NotTogether`."""
    ahead = _ahead(places)
    if all(place.paused for place in places.values()):
        return _paused(places, ahead)
    held = sorted(rank for rank, place in places.items() if place.paused)
    if held:
        raise NotTogether(
            f"rank {held[0]} is paused, and other ranks are not",
            hint=f"Run `probe JOB/{held[0]} resume` to continue it.",
        )
    wanted = max(_next(place, ahead[rank], lead_s, now_ns) for rank, place in places.items())
    waits = [
        wait_s for rank, place in places.items()
        if (wait_s := _until(place, wanted - ahead[rank], now_ns)) is not None
    ]
    steps = {rank: wanted - ahead[rank] for rank in places}
    return Agreed(steps, max(waits) if len(waits) == len(places) else None)


def _ahead(places: Mapping[int, Place]) -> dict[int, int]:
    """The difference between the job's step numbers and each rank's own."""
    unknown = sorted(rank for rank, place in places.items() if place.step is None)
    if unknown:
        raise NotTogether(f"rank {unknown[0]} has not started a step since probe was attached")
    if all(place.from_start for place in places.values()):
        return dict.fromkeys(places, 0)
    found = offsets({rank: place.ends for rank, place in places.items()})
    if found is None:
        raise NotTogether(
            "probe was attached while the ranks were training, and their steps cannot be matched yet",
            hint="Try again after some steps. `probe JOB ranks` shows where each rank is.",
        )
    return found


def _paused(places: Mapping[int, Place], ahead: Mapping[int, int]) -> Agreed:
    """All ranks are paused: the step before which they are paused."""
    steps = {rank: place.step for rank, place in places.items() if place.step is not None}
    if len({step + ahead[rank] for rank, step in steps.items()}) > 1:
        where = ", ".join(f"rank {rank} before step {step}" for rank, step in sorted(steps.items()))
        raise NotTogether(f"the ranks are paused at different steps: {where}")
    return Agreed(steps, 0.0)


def _next(place: Place, ahead: int, lead_s: float, now_ns: int) -> int:
    """The job's number of the first step that starts late enough on this rank."""
    assert place.step is not None
    if place.usual_ns is None or not place.ends:
        return place.step + 2 + ahead
    step = place.step + 1
    wait_s = _until(place, step, now_ns) or 0.0
    if wait_s < lead_s:
        step += -int(-(lead_s - wait_s) * 1e9 // max(place.usual_ns, 1e3))
    return step + ahead


def _until(place: Place, step: int, now_ns: int) -> float | None:
    """Seconds until a step starts at the usual pace; a current step that is overdue is assumed to end now."""
    usual_ns = place.usual_ns
    if usual_ns is None or place.step is None:
        return None
    ends_ns = max(float(now_ns), place.ends[-1][1] + usual_ns)
    return (ends_ns - now_ns + (step - place.step - 1) * usual_ns) / 1e9
