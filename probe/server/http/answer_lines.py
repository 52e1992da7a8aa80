"""Streams an answer as lines of JSON: parts as soon as they are ready, and last the whole answer.

    {"part": {…}}
    {"part": {…}}
    {…}                                  or {"error": {…}}

An answer without parts is an ordinary one, with its own status. Runs on the server's event loop. May import
fastapi.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from fastapi.responses import StreamingResponse

from probe.base.errors import ProbeError

MEDIA_TYPE = "application/x-ndjson"
Tell = Callable[[dict[str, Any]], None]


async def answer(
    make: Callable[[Tell], Awaitable[dict[str, Any]]], render: Callable[[Any], bytes]
) -> dict[str, Any] | StreamingResponse:
    """The parts that `make` tells, then its result. An error of `make` before its first part is raised."""
    waiting: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
    making = asyncio.ensure_future(make(waiting.put_nowait))
    making.add_done_callback(lambda _: waiting.put_nowait(None))
    try:
        first = await waiting.get()
    except asyncio.CancelledError:
        making.cancel()
        raise
    if first is None:
        return await making

    async def lines() -> AsyncIterator[bytes]:
        part: dict[str, Any] | None = first
        try:
            while part is not None:
                yield render({"part": part}) + b"\n"
                part = await waiting.get()
            try:
                whole = await making
            except ProbeError as error:
                whole = error.as_dict()
            yield render(whole) + b"\n"
        finally:  # also when the client disconnects
            making.cancel()

    return StreamingResponse(lines(), media_type=MEDIA_TYPE)
