"""Who this process is: job, run, attempt, rank, from the environment the launcher set.

Order: PROBE_NAME, the scheduler's job name, the script's name. Read once when
the agent starts; standard library only.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Mapping
from typing import NamedTuple

from probe.recording.places import safe_name
from probe.recording.process import life


class Identity(NamedTuple):
    """`world_size` and `local_rank` are None when nobody told."""

    job: str
    run: str
    attempt: int
    rank: int
    world_size: int | None
    local_rank: int | None


def identify(name: str, environ: Mapping[str, str] | None = None) -> Identity:
    """Identity of this process; `name` is PROBE_NAME or what `probe.start` was given."""
    found = os.environ if environ is None else environ
    rank = _integer(found, "RANK", "SLURM_PROCID")
    job = safe_name(name or found.get("SLURM_JOB_NAME", "") or script_name())
    attempt = _integer(found, "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT") or 0
    return Identity(
        job=job,
        run=safe_name(f"{job}-{_run_key(found, rank)}", 120),
        attempt=attempt,
        rank=rank or 0,
        world_size=_integer(found, "WORLD_SIZE", "SLURM_NTASKS"),
        local_rank=_integer(found, "LOCAL_RANK", "SLURM_LOCALID"),
    )


def script_name() -> str:
    """Name of the script or module that runs; `python` when there is none."""
    for flag, value in itertools.pairwise(sys.orig_argv):
        if flag == "-m":
            return value.rpartition(".")[2] or value
    first = sys.argv[0] if sys.argv else ""
    stem = os.path.basename(first).removesuffix(".py")
    if stem in ("__main__", ""):
        stem = os.path.basename(os.path.dirname(os.path.abspath(first))) if first else ""
    return stem if stem not in ("", "-c", "-m") else "python"


def _run_key(environ: Mapping[str, str], rank: int | None) -> str:
    """The same for all ranks of one run on this host, another for every run."""
    elastic = environ.get("TORCHELASTIC_RUN_ID", "")
    if elastic not in ("", "none"):
        return elastic
    if environ.get("SLURM_JOB_ID"):
        return f"{environ['SLURM_JOB_ID']}.{environ.get('SLURM_STEP_ID', '0')}"
    if rank is not None and (parent := life(os.getppid())) is not None:
        return f"{parent.pid}.{parent.start_ticks}"
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def _integer(environ: Mapping[str, str], *names: str) -> int | None:
    for name in names:
        text = environ.get(name, "")
        if text.isascii() and text.isdigit():
            return int(text)
    return None
