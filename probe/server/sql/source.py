"""Source: one recorded process, as a query reads it. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from probe.recording.layout import NOBODY, Owner


@dataclass(frozen=True)
class Source:
    """One recorded process as a query's source. `rings` may be gone already."""

    folder: Path
    rings: Path
    run: str
    attempt: int
    rank: int
    pid: int
    owner: Owner = NOBODY
    """Whose rings these must be."""
