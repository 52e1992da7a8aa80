"""Prints the rows of python.code of one program as JSON: see `reading`. Run by path, not by name, so that the
standard library comes before all packages; a program's source cannot take more than the limits here."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path

MEMORY_BYTES, CPU_S = 1 << 30, 15
"""The most that reading may take: 5,000 lines take 100 MB and four seconds. Beyond them this process ends."""
FAST_S = 2.0
"""Processor time at normal priority, enough for most programs: at low priority, with a hundredth of a busy
machine, it would take minutes, and the server would give up. After it the training goes first."""


def main() -> None:
    """Read the program that the command line names: SCRIPT STARTED_NS FOLDER IMPORT_PATH..."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, lambda *_: os.nice(10))
    signal.setitimer(signal.ITIMER_PROF, FAST_S)
    sys.path.append(str(Path(__file__).parents[3]))
    from probe.diagnose.code.reading import rows_of

    script, started_ns, folder, *paths = sys.argv[1:]
    json.dump(rows_of(Path(script), int(started_ns), Path(folder), paths), sys.stdout)


if __name__ == "__main__":
    main()
