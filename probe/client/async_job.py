"""`Job` for asyncio: each request waits in a thread of the event loop's own pool.

Runs in the client's process; standard library.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any, Literal

from probe.client.answer import Answer
from probe.client.job import Job, Rounds, connect


async def connect_async(endpoint: str | int | os.PathLike[str] = "") -> AsyncJob:
    """See `probe.connect`."""
    return AsyncJob(await asyncio.to_thread(connect, endpoint))


class AsyncJob:
    """A job whose methods are coroutines; see `Job` for what each does and raises."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __repr__(self) -> str:
        return repr(self._job)

    async def query(self, sql: str, *, limit: int | None = None, timeout_s: float | None = None) -> Answer:
        """See `Job.query`."""
        return await asyncio.to_thread(self._job.query, sql, limit=limit, timeout_s=timeout_s)

    async def follow(self, sql: str, *, every_s: float = 1.0) -> AsyncIterator[dict[str, Any]]:
        """See `Job.follow`."""
        rounds = Rounds(self._job, sql, every_s)
        while (fresh := await asyncio.to_thread(rounds.next)) is not None:
            for row in fresh:
                yield row
            await asyncio.sleep(every_s)

    async def tables(self) -> Answer:
        """See `Job.tables`."""
        return await asyncio.to_thread(self._job.tables)

    async def ranks(self) -> list[dict[str, Any]]:
        """See `Job.ranks`."""
        return await asyncio.to_thread(self._job.ranks)

    async def diagnose(self, symptom: str | None = None, *, deep: bool = True) -> dict[str, Any]:
        """See `Job.diagnose`."""
        return await asyncio.to_thread(self._job.diagnose, symptom, deep=deep)

    async def backtrace(
        self, *, all_threads: bool = False, native: bool = False, local_variables: bool = False
    ) -> dict[str, Any]:
        """See `Job.backtrace`."""
        return await asyncio.to_thread(
            self._job.backtrace, all_threads=all_threads, native=native, local_variables=local_variables
        )

    async def eval(
        self, code: str, *, when: Literal["auto", "now", "step"] = "auto", together: bool = False,
        force: bool = False, timeout_s: float | None = None, wait_s: float | None = None,
    ) -> dict[str, Any]:
        """See `Job.eval`."""
        return await asyncio.to_thread(
            self._job.eval, code, when=when, together=together, force=force, timeout_s=timeout_s,
            wait_s=wait_s,
        )

    async def act(
        self, action: str, *, wait_s: float | None = None, now: bool = False, **arguments: Any
    ) -> dict[str, Any]:
        """See `Job.act`."""
        return await asyncio.to_thread(self._job.act, action, wait_s=wait_s, now=now, **arguments)

    async def undo(self, action_id: str, *, wait_s: float | None = None) -> dict[str, Any]:
        """See `Job.undo`."""
        return await asyncio.to_thread(self._job.undo, action_id, wait_s=wait_s)
