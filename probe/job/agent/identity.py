"""Who this process is: job, run, attempt, rank, from the environment the launcher set.

Order for the name: PROBE_NAME, the name of Ray Train's run, the scheduler's job name, the script's name. Ray
keeps these in an object, not in its workers' environment. A program that starts its ranks itself passes the
rank to init_process_group: then torch.distributed knows it. Read once when the agent starts; standard library
only.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from probe.base import descriptors
from probe.base.redaction import redact
from probe.recording import checked
from probe.recording.places import launch_key, make_private, safe_name
from probe.recording.process import life, own_pid

LAUNCHER = "launcher"
"""File in the folder of an attempt that was counted here; it identifies the launch that started it."""
REQUEUED = 1000
"""Added to the attempt number for each requeue by Slurm: torchrun then counts its restarts from 0 again."""
_ATTEMPT = re.compile(r"attempt=[0-9]{1,9}")
_LONGEST_MARK_BYTES = 256
_RAY_NAME, _RAY_RUN = "ray run's name", "ray run's id"
"""Keys beside the environment's variables, none of which can have such a name."""
_LOOPBACK = re.compile(r"localhost|127(\.\d{1,3}){3}|\[?::1\]?|", re.IGNORECASE)


class Identity(NamedTuple):
    """`world_size` and `local_rank` are None if unknown. `counted`: the launcher may give two starts of the
    run the same number, so starts on this host are counted as attempts."""

    job: str
    run: str
    attempt: int
    rank: int
    world_size: int | None
    local_rank: int | None
    counted: bool = False


def identify(name: str, environ: Mapping[str, str] | None = None) -> Identity:
    """Identity of this process; `name` is PROBE_NAME or the argument of `probe.start`."""
    found = {**process_group(), **os.environ, **_ray_worker()} if environ is None else environ
    rank = _integer(found, "RANK", "SLURM_PROCID")
    given = name or found.get(_RAY_NAME, "") or found.get("SLURM_JOB_NAME", "")
    job = safe_name(redact(given or script_name()))
    restarts = _integer(found, "TORCHELASTIC_RESTART_COUNT")
    requeues = _integer(found, "SLURM_RESTART_COUNT") or 0
    attempt = requeues if restarts is None else restarts + REQUEUED * requeues
    key, counted = _run_key(found, rank)
    return Identity(
        job=job,
        run=safe_name(f"{job}-{key}", 120),
        attempt=attempt,
        rank=rank or 0,
        world_size=_integer(found, "WORLD_SIZE", "SLURM_NTASKS"),
        local_rank=_integer(found, "LOCAL_RANK", "SLURM_LOCALID"),
        counted=counted,
    )


def process_group() -> dict[str, str]:
    """Rank and world size of torch's default process group, under torchrun's variable names; empty while
    there is none, if it has one rank only, or if torch is not imported."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return {}
    if distributed.get_world_size() < 2:
        return {}
    return {"RANK": str(distributed.get_rank()), "WORLD_SIZE": str(distributed.get_world_size())}


def _ray_worker() -> dict[str, str]:
    """The run of a Ray Train worker, under torchrun's variable names; empty in any other process, or if this
    version of Ray keeps it elsewhere."""
    context = getattr(sys.modules.get("ray.train.v2._internal.execution.context"), "_train_context", None)
    run, place = (getattr(context, part, None) for part in ("train_run_context", "distributed_context"))
    values = {
        _RAY_NAME: getattr(getattr(run, "run_config", None), "name", None),
        _RAY_RUN: getattr(run, "run_id", None),
        "RANK": getattr(place, "world_rank", None),
        "LOCAL_RANK": getattr(place, "local_rank", None),
        "WORLD_SIZE": getattr(place, "world_size", None),
        "LOCAL_WORLD_SIZE": getattr(place, "local_world_size", None),
    }
    return {key: str(value) for key, value in values.items() if value is not None}


def script_name() -> str:
    """Name of the script, module or notebook that runs; `python` if there is none."""
    if any("kernel_launcher" in word for word in sys.orig_argv[:4]):
        return _notebook_name()
    for flag, value in itertools.pairwise(sys.orig_argv):
        if flag == "-m":
            return value.rpartition(".")[2] or value
    first = sys.argv[0] if sys.argv else ""
    stem = os.path.basename(first).removesuffix(".py")
    if stem in ("__main__", ""):
        stem = os.path.basename(os.path.dirname(os.path.abspath(first))) if first else ""
    return stem if stem not in ("", "-c", "-m") else "python"


def _notebook_name() -> str:
    """Name for a notebook kernel: the notebook's, from Jupyter's server or VS Code, else its folder's."""
    main = sys.modules.get("__main__")
    path = os.environ.get("JPY_SESSION_NAME") or getattr(main, "__vsc_ipynb_file__", "")
    if isinstance(path, str) and path.endswith(".ipynb"):
        return os.path.basename(path).removesuffix(".ipynb")
    return f"notebook in {os.path.basename(os.getcwd()) or '/'}"


def several_hosts(environ: Mapping[str, str]) -> bool:
    """Whether the job runs on several hosts, according to its launcher."""
    world_size = _integer(environ, "WORLD_SIZE", "SLURM_NTASKS") or 1
    local = _integer(environ, "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
    if local is not None:
        return world_size > local
    nodes = _integer(environ, "SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES")
    if nodes is not None:
        return world_size > 1 and nodes > 1
    return world_size > 1 and not is_loopback(environ.get("MASTER_ADDR", ""))


def is_loopback(host: str) -> bool:
    """Whether a name or address is loopback; an empty one counts as loopback."""
    return _LOOPBACK.fullmatch(host) is not None


def counted_attempt(run: Path, attempt: int, rank: int) -> int:
    """The number of this start of a run on this host: the same for all ranks that a launcher started
    together.

    `run` is the run's folder, `attempt` the launcher's own count: the number is not below it, so that a host
    that joins later gets the same number as the others. If a launcher starts one rank again, as a shell does,
    that counts as a new start of all ranks."""
    mark = f"{_launch()}.{attempt}"
    make_private(run)
    while True:
        named = [name for name in descriptors.names(run) if _ATTEMPT.fullmatch(name)]
        known = {int(name.partition("=")[2]): run / name for name in named}
        newest = max(known, default=-1)
        if newest >= 0 and _mark(known[newest]) == mark and not _taken(known[newest], rank):
            return newest
        number = max(newest + 1, attempt)
        folder = make_private(run / f"attempt={number}")
        try:
            made = descriptors.opened(folder / LAUNCHER, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:  # another rank was first; if it is one of ours, its mark is ours
            if _mark(folder) == mark:
                return number
            continue
        with made:
            os.write(made.fileno(), mark.encode("ascii"))
        return number


def _launch() -> str:
    """A mark that exactly the ranks started together on this host share: torchrun's folder of this launch,
    else the parent process."""
    folder = _launch_folder(os.environ)
    if folder:
        return hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    parent = life(os.getppid())
    return launch_key(os.getppid(), parent.start_ticks if parent else 0)


def _launch_folder(environ: Mapping[str, str]) -> str:
    """The first part of …/RUN_xyz/attempt_0/LOCAL_RANK/error.json, which torchrun makes unique; or ""."""
    folder, found, _ = environ.get("TORCHELASTIC_ERROR_FILE", "").rpartition("/attempt_")
    return folder if found else ""


def _taken(attempt: Path, rank: int) -> bool:
    """Whether another process has had this rank in the attempt."""
    own, beginning = f"process={rank}-{own_pid()}", f"process={rank}-"
    return any(name != own and name.startswith(beginning) for name in descriptors.names(attempt))


def _mark(attempt: Path) -> str:
    """The mark of an attempt; waits a moment for a rank that has made the file but not written it yet."""
    for _ in range(50):
        try:
            text = checked.read_bytes(attempt / LAUNCHER, _LONGEST_MARK_BYTES).decode("ascii")
        except (OSError, ValueError):
            return ""
        if text:
            return text
        time.sleep(0.01)
    return ""


def _run_key(environ: Mapping[str, str], rank: int | None) -> tuple[str, bool]:
    """A key that all ranks of a run share, on all hosts; and whether starts must be counted, because other
    runs may have the same key."""
    if environ.get(_RAY_RUN):
        return environ[_RAY_RUN], True  # Ray restarts the workers of a run without counting
    elastic = environ.get("TORCHELASTIC_RUN_ID", "")
    if elastic not in ("", "none"):
        counted = bool(_launch_folder(environ))  # the id may be used again
        if redact(elastic) == elastic:
            return elastic, counted
        return hashlib.sha256(elastic.encode("utf-8", "surrogateescape")).hexdigest()[:16], counted
    if environ.get("SLURM_JOB_ID"):
        return f"{environ['SLURM_JOB_ID']}.{environ.get('SLURM_STEP_ID', '0')}", False
    if several_hosts(environ) and environ.get("MASTER_ADDR"):
        # The address of rank 0 is all that the hosts have in common.
        return f"{environ['MASTER_ADDR']}-{environ.get('MASTER_PORT', '')}", True
    if rank is not None and (parent := life(os.getppid())) is not None:
        return launch_key(parent.pid, parent.start_ticks), False
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}", False


def _integer(environ: Mapping[str, str], *names: str) -> int | None:
    for name in names:
        text = environ.get(name, "")
        if text.isascii() and text.isdigit():
            return int(text)
    return None
