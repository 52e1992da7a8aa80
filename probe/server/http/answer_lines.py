"""An answer in lines: each a JSON object that is sent as soon as it is there, the last the whole answer.

    {"part": {…}}
    {"part": {…}}
    {…}                                  or {"error": {…}}

Without a part before it, the answer is a plain one, with its status. Runs on the server's event loop. May
import fastapi.
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
    """What `make` returns, and before it what it tells. Raises what it raises before it tells anything."""
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
        finally:  # also when the client goes
            making.cancel()

    return StreamingResponse(lines(), media_type=MEDIA_TYPE)
