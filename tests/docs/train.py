"""The `train.py` of the documents: a small GPT, for twenty steps or, with TRAIN_ON=1, until it is killed. Its
rows of its own are those that docs/instrumenting.md shows."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import probe

# The documents' folder holds a link to this file; Python follows it, so the programs are two up.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "programs"))

from gpt_with_schedule import build, main

__all__ = ("build", "main")



@probe.table
@dataclass
class Rollout:
    """rollout that was scored"""

    reward: float
    tokens: int = 0
    judge: str | None = None


if __name__ == "__main__":
    with probe.span("rollout"):
        probe.record(Rollout(0.9, 17, "length"))
    probe.event("checkpoint saved", "/checkpoints/step-100.pt", value=5.2)
    sys.argv[1:] = ["--size", "tiny", *(["--forever"] if os.environ.get("TRAIN_ON") else [])]
    main()
