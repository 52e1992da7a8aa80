"""Learning rates, groups and schedulers as text and plain JSON. Any thread; standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from probe.job.actions.rates import schedules
from probe.job.actions.rates.rate_watch import Written
from probe.job.actions.rates.schedules import to_float


def kinds(schedulers: Sequence[Any]) -> str:
    """Their classes."""
    return " and ".join(type(one).__name__ for one in schedulers)


def listed(rates: Sequence[float]) -> str:
    """One number where all are the same."""
    words = [f"{rate:.6g}" for rate in rates]
    return words[0] if len(set(words)) == 1 else ", ".join(words)


def used_in_words(used: Sequence[tuple[int | None, list[float]]]) -> str:
    """The rates that the watched steps used."""
    if not used:
        return "no step has been seen since, so this is not verified"
    first, last = listed(used[0][1]), listed(used[-1][1])
    rates = first if first == last else f"{first} … {last}"
    return f"the next {len(used)} steps used {rates}" if len(used) > 1 else f"the next step used {rates}"


def first_of_each_group(found: Sequence[Written]) -> list[Written]:
    """The first rate written in each group."""
    first: dict[int, Written] = {}
    for written in found:
        first.setdefault(written.group, written)
    return list(first.values())


def written(found: Sequence[Written]) -> str:
    """The rates written, and when: `0.1 in group 0, 0.2 in group 1, at step 7`."""
    rates = ", ".join(f"{one.rate:.6g} in group {one.group}" for one in found)
    return f"{rates}, at step {found[0].step}"


def of_group(group: dict[str, Any]) -> dict[str, Any]:
    """A group, apart from its rate."""
    initial, decay = group.get("initial_lr"), group.get("weight_decay")
    return {
        "initial_lr": None if initial is None else to_float(initial),
        "weight_decay": None if decay is None else to_float(decay),
        "tensors": len(group["params"]),
        "elements": sum(parameter.numel() for parameter in group["params"]),
    }


def of_scheduler(scheduler: Any) -> dict[str, Any]:
    """Its class, its plain numbers, and the schedulers inside it."""
    own = vars(scheduler)
    inner = own.get("_schedulers")
    numbers = {name: value for name, value in own.items() if not name.startswith("_") and _is_plain(value)}
    return {
        "class": type(scheduler).__name__,
        "known": schedules.is_known(scheduler),
        "numbers": numbers,
        "inner": [of_scheduler(one) for one in inner] if isinstance(inner, (list, tuple)) else [],
    }


def _is_plain(value: Any) -> bool:
    return isinstance(value, (int, float, str)) and not isinstance(value, bool)
