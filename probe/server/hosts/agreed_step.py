"""Which step all ranks are told to act before: the first that none of them has reached when the last is told.

Pure; times are seconds or nanoseconds of the wall clock, as their names say. Standard library only.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from probe.base.errors import NotTogether
from probe.diagnose.ranks.alignment import offsets


class Place(NamedTuple):
    """Where one rank is: the step that runs, by its own number (None before the first that it saw begin),
    and when the latest steps ended; whether it is paused between two, and whether it was watched from its
    start."""

    step: int | None
    ends: Sequence[tuple[int, int]]
    paused: bool
    from_start: bool

    @property
    def usual_ns(self) -> float | None:
        """Median time between the ends of neighbouring steps."""
        between = [later - earlier for (_, earlier), (_, later) in pairwise(self.ends)]
        return statistics.median(between) if between else None


class Agreed(NamedTuple):
    """The step, by each rank's own number, and how long it is until then by the ranks' usual steps; None
    where that is not known."""

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
            hint=f"`probe JOB/{held[0]} resume` lets it go on.",
        )
    wanted = max(_next(place, ahead[rank], lead_s, now_ns) for rank, place in places.items())
    waits = [
        wait_s for rank, place in places.items()
        if (wait_s := _until(place, wanted - ahead[rank], now_ns)) is not None
    ]
    steps = {rank: wanted - ahead[rank] for rank in places}
    return Agreed(steps, max(waits) if len(waits) == len(places) else None)


def _ahead(places: Mapping[int, Place]) -> dict[int, int]:
    """What to add to each rank's own number of a step to get the job's."""
    unknown = sorted(rank for rank, place in places.items() if place.step is None)
    if unknown:
        raise NotTogether(f"rank {unknown[0]} has not begun a step since probe is in it")
    if all(place.from_start for place in places.values()):
        return dict.fromkeys(places, 0)
    found = offsets({rank: place.ends for rank, place in places.items()})
    if found is None:
        raise NotTogether(
            "probe came to the ranks while they trained, and which of their steps are the same is not clear",
            hint="It becomes clear after some steps. `probe JOB ranks` shows where each rank is.",
        )
    return found


def _paused(places: Mapping[int, Place], ahead: Mapping[int, int]) -> Agreed:
    """All are held: at the step that they are held before."""
    steps = {rank: place.step for rank, place in places.items() if place.step is not None}
    if len({step + ahead[rank] for rank, step in steps.items()}) > 1:
        where = ", ".join(f"rank {rank} before step {step}" for rank, step in sorted(steps.items()))
        raise NotTogether(f"the ranks are paused at different steps: {where}")
    return Agreed(steps, 0.0)


def _next(place: Place, ahead: int, lead_s: float, now_ns: int) -> int:
    """The job's number of the first step that begins late enough on this rank."""
    assert place.step is not None
    if place.usual_ns is None or not place.ends:
        return place.step + 2 + ahead
    step = place.step + 1
    wait_s = _until(place, step, now_ns) or 0.0
    if wait_s < lead_s:
        step += -int(-(lead_s - wait_s) * 1e9 // max(place.usual_ns, 1e3))
    return step + ahead


def _until(place: Place, step: int, now_ns: int) -> float | None:
    """Seconds until a step begins, if steps go on as usual and the one that runs ends no later than now."""
    usual_ns = place.usual_ns
    if usual_ns is None or place.step is None:
        return None
    ends_ns = max(float(now_ns), place.ends[-1][1] + usual_ns)
    return (ends_ns - now_ns + (step - place.step - 1) * usual_ns) / 1e9
