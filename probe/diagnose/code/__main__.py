"""Prints the rows of python.code of one program as JSON: see `reading`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from probe.diagnose.code.reading import rows_of

if __name__ == "__main__":
    script, started_ns, *folders = sys.argv[1:]
    json.dump(rows_of(Path(script), int(started_ns), [Path(folder) for folder in folders]), sys.stdout)
