"""Sets of ranks as text, `0,2-7`, in tables, answers and output. Standard library only; any thread."""

from __future__ import annotations

from collections.abc import Iterable


def as_text(ranks: Iterable[int]) -> str:
    """The ranks in order, with ranges: `0,2-7`. Empty for none."""
    parts: list[str] = []
    first = last = None
    for rank in [*sorted(set(ranks)), None]:
        if first is not None and last is not None and rank != last + 1:
            parts.append(str(first) if first == last else f"{first}-{last}")
            first = None
        first = rank if first is None else first
        last = rank
    return ",".join(parts)


def named(ranks: Iterable[int]) -> str:
    """The ranks with the word before them: `rank 1`, `ranks 0,2-3`."""
    found = set(ranks)
    return f"rank{'s' if len(found) > 1 else ''} {as_text(found)}"


def from_text(text: str) -> list[int]:
    """The ranks that `as_text` wrote, in order; raises `ValueError` for anything else."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, separator, last = part.partition("-")
        found.update(range(int(first), int(last if separator else first) + 1))
    return sorted(found)
