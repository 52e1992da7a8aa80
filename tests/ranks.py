"""Jobs of several ranks for tests. Each rank is a fork or a new interpreter, with torchrun's environment.

No launcher is used, because it would end the other ranks when one dies. The ranks rendezvous at a store on a
free local port, which rank 0 hosts.
"""

from __future__ import annotations

import contextlib
import socket
import uuid
from collections.abc import Collection, Iterator

from agent.nursery import forked, shared
from harness import Job, Place


class Ranks:
    """All ranks of one job, in order. `name` is the job's name in probe commands."""

    def __init__(self, name: str, jobs: list[Job]) -> None:
        self.name = name
        self.jobs = jobs

    def __getitem__(self, rank: int) -> Job:
        return self.jobs[rank]

    def wait_for(self, word: str) -> None:
        """Wait until every rank has printed it."""
        for job in self.jobs:
            job.wait_for(word)

    def tell(self, text: str = "") -> None:
        """Write a line to rank 0's stdin; most programs end after it."""
        stdin = self.jobs[0]._process.stdin
        assert stdin is not None
        stdin.write(f"{text}\n".encode())
        stdin.flush()


def rank_environment(rank: int, world_size: int, port: int, run_id: str, name: str = "") -> dict[str, str]:
    """The environment variables torchrun sets for one rank of a single-host job."""
    found = {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size), "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": run_id, "TORCHELASTIC_RESTART_COUNT": "0",
        "OMP_NUM_THREADS": "1",
    }
    return {**found, "PROBE_NAME": name} if name else found


def free_port() -> int:
    """A TCP port that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextlib.contextmanager
def running_ranks(
    place: Place, world_size: int, program: str, *options: str, watched: bool = True, ready: str = "READY",
    name: str = "", interpreters: bool = False, unrecorded: Collection[int] = (), **environ: str,
) -> Iterator[Ranks]:
    """Start all ranks of a program and wait until each prints `ready` (empty: no wait); killed at the end.
    Ranks in `unrecorded` run without probe."""
    name = name or f"{program}-{uuid.uuid4().hex[:6]}"
    port, run_id = free_port(), uuid.uuid4().hex
    jobs: list[Job] = []
    with contextlib.ExitStack() as stack:
        for rank in range(world_size):
            more = {**rank_environment(rank, world_size, port, run_id, name), **environ}
            if interpreters:
                environment = place.watched(**more) if watched else place.environ(**more)
                jobs.append(Job(program, *options, environ=environment, folder=place.directory))
                stack.callback(jobs[-1].kill)
            else:
                command = (program, *options)
                with_probe = watched and rank not in unrecorded
                jobs += stack.enter_context(forked(shared(), place, command, watched=with_probe, **more))
        ranks = Ranks(name, jobs)
        if ready:
            ranks.wait_for(ready)
        yield ranks
