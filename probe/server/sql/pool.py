"""Query pool: disposable worker processes, one query each at a time, with deadlines.

Runs on the server's event loop. A worker that is late is killed a second after its deadline; one that dies
affects only its own query. Standard library only; DuckDB is loaded in the workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from probe.base.errors import QueryTimeout, QueryWorkerDied, TooMany, from_dict
from probe.confined.worker_frames import LENGTH, start

_log = logging.getLogger("probe.query")
Ahead = Callable[[bytes], None]
"""Receives a part of an answer, on the event loop."""
WORKERS = 4
"""Worker processes; further queries wait for one, within their deadline."""
VIEWERS_WORKERS = WORKERS // 2
"""Workers that viewers may use at the same time."""
GRACE_S = 1.0
"""A worker stops its query at the deadline; this much later it is killed."""
_START_S = 15.0
_LEAST_S = 0.5
"""Minimum time of a query, however long it waited for a worker."""
_IDLE_S = 30.0
_LAST_IDLE_S = 600.0
"""The last idle worker stays this long, so that the next query finds one ready."""


class _Worker:
    """One worker process, as the server sees it."""

    def __init__(self, roots: frozenset[Path], memory_bytes: int) -> None:
        self.roots = roots
        self._identities = _identities(roots)
        words = (str(memory_bytes), *map(str, sorted(roots)))
        self.process, self._socket = start("probe.server.sql.worker", words)
        self._socket.setblocking(False)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.ready = False
        self.idle_since = 0.0
        """When it last became idle; 0 for one that never waited for a query."""

    def can_read(self, roots: frozenset[Path]) -> bool:
        """Whether it may read these folders, and they are still the ones it was started with."""
        return roots <= self.roots and self._identities == _identities(self.roots)

    async def warm_up(self) -> None:
        """Wait until it has imported DuckDB; raises `QueryWorkerDied`."""
        if self.ready:
            return
        self._reader, self._writer = await asyncio.open_connection(sock=self._socket, limit=1 << 20)
        try:
            hello = json.loads(await asyncio.wait_for(self._receive(), _START_S))
        except asyncio.TimeoutError:
            raise QueryWorkerDied(
                f"a query process was not ready within {_START_S:g} s",
                hint="The machine is probably busy: try again. The job and the server are not affected.",
            ) from None
        except (asyncio.IncompleteReadError, OSError):
            raise QueryWorkerDied(
                "a query process ended right after its start",
                hint="Try again; `probe doctor` checks this machine. Job and server are not affected.",
            ) from None
        if hello["missing"]:
            _log.warning("query workers run without: %s", ", ".join(hello["missing"]))
        self.ready = True

    async def ask(
        self, request: bytes, parts: Sequence[bytes], ahead: Ahead | None
    ) -> tuple[dict[str, Any], bytes]:
        """Send a request and the rows of other hosts; returns head and body of the answer. `ahead` receives
        the parts that come before it."""
        assert self._writer is not None
        for frame in (request, *parts):
            self._writer.write(LENGTH.pack(len(frame)))
            self._writer.write(frame)
            await self._writer.drain()
        head, body = json.loads(await self._receive()), await self._receive()
        while "ahead" in head:
            if ahead is not None:
                ahead(body)
            head, body = json.loads(await self._receive()), await self._receive()
        return head, body

    async def _receive(self) -> bytes:
        assert self._reader is not None
        (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
        return await self._reader.readexactly(length)

    def kill(self) -> None:
        """Kill the process; `reap` waits for it."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        if self._writer is not None:
            self._writer.close()
        else:
            self._socket.close()

    async def reap(self) -> None:
        """Wait for the killed process, without blocking the loop."""
        await asyncio.to_thread(self.process.wait)


class Pool:
    """The workers; `run` answers one query."""

    def __init__(self, roots: Iterable[Path], memory_bytes: int) -> None:
        self._roots = frozenset(roots)
        self._memory_bytes = memory_bytes
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._slots = asyncio.Semaphore(WORKERS)
        self._viewers_slots = asyncio.Semaphore(VIEWERS_WORKERS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def warm(self) -> None:
        """Start a worker before the first query."""
        if not self._all and not self._closed:
            worker = self._start(self._roots)
            self._spawn(self._warm(worker))

    async def _warm(self, worker: _Worker) -> None:
        try:
            await worker.warm_up()
        except QueryWorkerDied as error:
            _log.error("%s", error.message)
            await self._discard(worker)
        else:
            self._release(worker)

    async def run(
        self, request: dict[str, Any], timeout_s: float, extra_roots: Iterable[Path], gone: Awaitable[None],
        parts: Sequence[tuple[str, bytes]] | None = None, asked_s: float | None = None, *,
        viewer: bool = False, ahead: Ahead | None = None,
    ) -> bytes:
        """The answer: JSON, or packed rows. `parts`: names of other hosts, and their packed rows. `timeout_s`
        counts from now and includes the wait for a worker; `asked_s` is the whole limit, for messages. `gone`
        completes when the caller disconnects; then the query is stopped. `viewer`: whether the caller is a
        viewer. `ahead` receives parts of the answer of a batch, as soon as they are ready.

        Raises a `ProbeError` if there is no answer.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        slots = [self._viewers_slots, self._slots] if viewer else [self._slots]
        async with contextlib.AsyncExitStack() as held:
            for slot in slots:
                try:
                    await asyncio.wait_for(slot.acquire(), max(0.0, deadline - loop.time()))
                except asyncio.TimeoutError:
                    raise TooMany(f"no query process became free within {timeout_s:g} s") from None
                held.callback(slot.release)
            roots = self._roots | frozenset(extra_roots)
            leaving = asyncio.ensure_future(gone)
            try:
                known_s = timeout_s if asked_s is None else asked_s
                return await self._run(request, deadline, known_s, roots, leaving, parts, ahead)
            finally:
                leaving.cancel()

    async def _run(
        self, request: dict[str, Any], deadline: float, asked_s: float, roots: frozenset[Path],
        leaving: asyncio.Future[None], parts: Sequence[tuple[str, bytes]] | None, ahead: Ahead | None,
    ) -> bytes:
        """Run it on a worker. If one that was waiting dies, the query may not be the cause: try a new one."""
        loop = asyncio.get_running_loop()
        for fresh in (False, True):
            worker = await self._take(roots, fresh)
            waited = worker.idle_since > 0
            left_s = max(min(asked_s, _LEAST_S), deadline - loop.time())
            timed = {**request, "timeout_s": left_s, "asked_s": asked_s}
            if parts is not None:
                timed["hosts"] = [host for host, _ in parts]
            if ahead is not None:
                timed["ahead"] = True
            try:
                return await self._ask(worker, timed, [data for _, data in parts or ()], leaving, ahead)
            except (asyncio.IncompleteReadError, OSError):
                if not waited:
                    break
        raise QueryWorkerDied("the process that ran the query died")

    async def _take(self, roots: frozenset[Path], fresh: bool) -> _Worker:
        while self._idle and not fresh:
            worker = self._idle.pop()
            if worker.process.poll() is None and worker.can_read(roots):
                return worker
            self._spawn(self._discard(worker))
        worker = self._start(roots)
        try:
            await worker.warm_up()
        except BaseException:
            self._spawn(self._discard(worker))
            raise
        return worker

    async def _ask(
        self, worker: _Worker, request: dict[str, Any], parts: Sequence[bytes],
        leaving: asyncio.Future[None], ahead: Ahead | None,
    ) -> bytes:
        asking = asyncio.ensure_future(worker.ask(json.dumps(request).encode(), parts, ahead))
        keep = False
        try:
            await asyncio.wait(
                (asking, leaving), timeout=request["timeout_s"] + GRACE_S, return_when=asyncio.FIRST_COMPLETED
            )
            if leaving.done():
                raise QueryWorkerDied("the client disconnected")
            if not asking.done():
                raise QueryTimeout(f"the query was stopped after {request['asked_s']:g} s")
            head, body = asking.result()
            keep = not head["recycle"]
            if "error" in head:
                raise from_dict(head, int(head["status"]))
            return body
        finally:
            asking.cancel()
            if keep:
                self._release(worker)
            else:
                self._spawn(self._replace(worker))

    async def _replace(self, worker: _Worker) -> None:
        await self._discard(worker)
        self.warm()

    async def _discard(self, worker: _Worker) -> None:
        worker.kill()
        await worker.reap()
        self._all.discard(worker)

    def _start(self, roots: frozenset[Path]) -> _Worker:
        # On the loop's thread: PR_SET_PDEATHSIG depends on the thread that forks.
        worker = _Worker(roots, self._memory_bytes)
        self._all.add(worker)
        return worker

    def _release(self, worker: _Worker) -> None:
        if self._closed:
            self._spawn(self._discard(worker))
            return
        worker.idle_since = asyncio.get_running_loop().time()
        self._idle.append(worker)

    def cpu_s(self) -> float:
        """CPU time of all present workers."""
        ticks = sum(_cpu_ticks(worker.process.pid) for worker in self._all)
        return ticks / os.sysconf("SC_CLK_TCK")

    def end_idle(self) -> None:
        """End workers that were idle for a while; called every few seconds."""
        now = asyncio.get_running_loop().time()
        for worker in list(self._idle):
            allowed = _LAST_IDLE_S if len(self._idle) == 1 else _IDLE_S
            if now - worker.idle_since > allowed or worker.process.poll() is not None:
                self._idle.remove(worker)
                self._spawn(self._discard(worker))

    async def close(self) -> None:
        """End all workers."""
        self._closed = True
        for worker in list(self._all):
            await self._discard(worker)
        self._idle.clear()

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _cpu_ticks(pid: int) -> int:
    """User and system time of a process; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return int(fields[11]) + int(fields[12])
    except (OSError, IndexError, ValueError):
        return 0


def _identities(roots: Iterable[Path]) -> dict[Path, tuple[int, int] | None]:
    found: dict[Path, tuple[int, int] | None] = {}
    for root in roots:
        try:
            stat = root.stat()
            found[root] = (stat.st_dev, stat.st_ino)
        except OSError:
            found[root] = None
    return found
