"""The command's side of a fleet worker: starts it, sends requests, and kills it when it is late.

    with WorkerProcess(folders, memory_bytes, threads) as worker:
        head, body = worker.ask({"ask": "plan", …}, timeout_s=60)

A worker is used by one thread at a time. If it dies, the next request starts another. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeVar

from probe.base.errors import QueryTimeout, QueryWorkerDied, from_dict
from probe.confined.worker_frames import receive, send, start

GRACE_S = 2.0
"""A worker stops its statement at the deadline; this much later it is killed."""
_START_S = 60.0
_T = TypeVar("_T")
_R = TypeVar("_R")


class WorkerProcess:
    """One worker, started by its first request."""

    def __init__(self, folders: Sequence[Path], memory_bytes: int, threads: int) -> None:
        self._words = [str(memory_bytes), str(threads), *map(str, folders)]
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._processes: bytes | None = None
        self._greeted = False
        self.missing: list[str] = []
        """Restrictions of the sandbox that this kernel does not have."""

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def knows(self, processes: bytes) -> None:
        """Send it the rows of archive.processes, as JSON; a replacement receives them too."""
        self._processes = processes
        if self._greeted:
            self._ask({"ask": "processes_are"}, processes, _START_S)

    def ask(
        self, request: dict[str, Any], timeout_s: float, content: bytes = b""
    ) -> tuple[dict[str, Any], bytes]:
        """Head and body of the answer; raises a `ProbeError` if there is none."""
        self.start()
        if not self._greeted:
            self.missing = list(self._answer(_START_S)[0]["missing"])
            self._greeted = True
            if self._processes is not None:
                self.knows(self._processes)
        return self._ask(request, content, timeout_s)

    def start(self) -> None:
        """Start it unless it runs, without waiting: its imports take as long as listing the files."""
        if self._process is not None:
            return
        self._process, self._socket = start("probe.fleet.fleet_worker", self._words)

    def _ask(
        self, request: dict[str, Any], content: bytes, timeout_s: float
    ) -> tuple[dict[str, Any], bytes]:
        assert self._socket is not None
        try:
            self._socket.settimeout(timeout_s + GRACE_S)
            send(self._socket, json.dumps({**request, "timeout_s": timeout_s}).encode())
            send(self._socket, content)
        except OSError:
            self.close()
            raise QueryWorkerDied("the process that runs the query ended") from None
        head, body = self._answer(timeout_s)
        if "error" in head:
            error = from_dict(head, int(head["status"]))
            error.about = str(head.get("about", ""))  # type: ignore[attr-defined]
            raise error
        return head, body

    def _answer(self, timeout_s: float) -> tuple[dict[str, Any], bytes]:
        assert self._socket is not None
        try:
            self._socket.settimeout(timeout_s + GRACE_S)
            head, body = receive(self._socket), receive(self._socket)
        except TimeoutError:
            self.close()
            raise QueryTimeout(f"the query was stopped after {timeout_s:g} s") from None
        except OSError:
            head = body = None
        if head is None or body is None:
            self.close()
            raise QueryWorkerDied(
                "the process that ran the query died",
                hint="It needed too much memory, or a file is damaged. Nothing else is affected.",
            )
        return json.loads(head), body

    def close(self) -> None:
        """End it."""
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        self._socket = self._process = None
        self._greeted = False


def in_workers(
    make: Callable[[], WorkerProcess], count: int, ask: Callable[[WorkerProcess, _T], _R],
    things: Iterable[_T],
) -> Iterator[tuple[_T, _R]]:
    """Run `ask` for many things in several workers; yields each thing with its answer, as they
    come. The workers end with the iterator."""
    listed = list(things)
    workers = [make() for _ in range(max(1, min(count, len(listed))))]
    idle: queue.SimpleQueue[WorkerProcess] = queue.SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def answered(one: _T) -> tuple[_T, _R]:
        worker = idle.get()
        try:
            return one, ask(worker, one)
        finally:
            idle.put(worker)

    pool = ThreadPoolExecutor(len(workers), "probe-fleet")
    try:
        for done in as_completed([pool.submit(answered, one) for one in listed]):
            yield done.result()
    finally:  # also on Ctrl-C: end running workers instead of waiting for them
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.close()
        pool.shutdown()
