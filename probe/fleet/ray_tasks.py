"""Runs statements over runs as tasks of a Ray cluster: `probe fleet URL … --ray ADDRESS`.

Each task uses a fleet worker on its own host, in the same sandbox as without Ray, over the files of one run,
and returns the worker's answer. Ray decides where tasks run, repeats them when a node is lost, and limits
their memory. A statement that fails is an answer: it is not repeated. The cluster's nodes need probe, and
credentials of the object store. Imports ray in functions.
"""

from __future__ import annotations

import atexit
import functools
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from probe.archive.store import open_store
from probe.base.errors import PackageMissing, ProbeError, UsageError, from_dict
from probe.fleet.local_files import Found, LocalFiles
from probe.fleet.per_run import Answer, Ask
from probe.fleet.worker_process import WorkerProcess

RETRIES = 3
"""How often a task is repeated whose process or node was lost."""
TASK_MEMORY_BYTES = 1 << 30
"""Memory that Ray reserves for a task, and that its worker may use."""
LOCAL = "local"
"""Instead of an address: a cluster on this host, which ends with the command."""
_POLL_S = 1.0
_CONNECT_S = 5.0

Told = tuple[dict[str, Any], bytes]


class Over:
    """Runs requests on a Ray cluster."""

    def __init__(self, address: str, url: str, timeout_s: float) -> None:
        self._address = address
        self._url = url
        self._timeout_s = timeout_s

    def each(self, asks: Sequence[Ask]) -> Iterator[tuple[int, Answer]]:
        """See `Answering`. Closing it cancels tasks that still run."""
        ray = _ray()
        started = not ray.is_initialized()
        if started:
            _connect(ray, self._address)
        task = ray.remote(num_cpus=1, memory=TASK_MEMORY_BYTES, max_retries=RETRIES)(answered)
        places: dict[Any, int] = {}
        try:
            for place, one in enumerate(asks):
                places[task.remote(self._url, one.request, one.files, self._timeout_s)] = place
            while places:
                done, _ = ray.wait(list(places), num_returns=1, timeout=_POLL_S)
                for one_done in done:
                    place = places.pop(one_done)
                    head, body = _result(ray, one_done)
                    failed = from_dict(head, int(head["status"])) if "error" in head else None
                    yield place, Answer(head, body, failed)
        finally:
            for left in places:
                ray.cancel(left, force=True)
            if started:
                ray.shutdown()


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise PackageMissing("--ray needs ray", hint="pip install 'torch-probe[fleet]'.") from None
    return ray


def _connect(ray: Any, address: str) -> None:
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        if port.isdigit():  # Ray itself tries for minutes
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
        more = {"include_dashboard": False} if address == LOCAL else {}
        ray.init(address=address, log_to_driver=False, logging_level="error", **more)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        what = str(error).partition("\n")[0]
        raise UsageError(
            f"no Ray cluster answers at {address!r}: {what}",
            hint="Use the address that `ray status` shows, `auto`, or `local` for a cluster on this host.",
        ) from None


def _result(ray: Any, reference: Any) -> Told:
    """The result of a task; a task that was lost for good is an error of its run."""
    try:
        told: Told = ray.get(reference)
        return told
    except ray.exceptions.RayError as error:
        what = f"its Ray task was lost: {str(error).partition(chr(10))[0]}"
        return {**ProbeError(what).as_dict(), "status": 500}, b""


# In a Ray worker ------------------------------------------------------------------


def answered(
    url: str, request: Mapping[str, Any], files: Found, timeout_s: float
) -> Told:
    """One task: the answer to a request about one run; an error is an answer too."""
    try:
        local, worker = _here(url)
        return local.read(files, lambda paths: worker.ask({**request, "files": paths}, timeout_s))
    except ProbeError as error:
        return {**error.as_dict(), "status": error.status}, b""


@functools.lru_cache(maxsize=1)
def _here(url: str) -> tuple[LocalFiles, WorkerProcess]:
    """The files of the archive and a worker; cached, because one Ray process runs many tasks in turn."""
    local = LocalFiles(open_store(url))
    worker = WorkerProcess(local.folders, TASK_MEMORY_BYTES, 1)
    atexit.register(local.close)
    atexit.register(worker.close)
    return local, worker
