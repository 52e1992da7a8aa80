"""The `train.py` of the documents: a small GPT, for twenty steps or, with TRAIN_ON=1, until it is killed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# The documents' folder holds a link to this file; Python follows it, so the programs are two up.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "programs"))

from gpt_with_schedule import build, main

__all__ = ("build", "main")

if __name__ == "__main__":
    sys.argv[1:] = ["--size", "tiny", *(["--forever"] if os.environ.get("TRAIN_ON") else [])]
    main()
