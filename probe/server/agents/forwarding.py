"""Forwarding: sends snippets and actions to agents in the order in which they arrived here.

The queue is in the agent (decision 21); this module orders the requests that have not reached it yet. The
process is looked up on a thread, and connecting may have to wait: without ordering here, a later request
could overtake an earlier one of the same client. The number of pending requests is bounded, even if many
agents do not answer.

No thread waits: the sockets belong to the event loop. Answers arrive in any order. If an agent does not
answer, its health route is called: a stopped process is noticed within seconds, even if the answer itself may
take longer. Runs on the server's event loop. Standard library only.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from probe.base import wire
from probe.base.errors import AgentUnreachable, NoBoundary, ProbeError, TooMany
from probe.diagnose.finding import Finding
from probe.diagnose.states import HOLDS_GIL
from probe.recording.process import life
from probe.server.agents import asking
from probe.server.agents.asking import who, why_silent
from probe.server.recordings.registry import Recorded, Status

PENDING = 128
"""Snippets and actions without an answer at once; more are refused with 429."""
SEND_S = 5.0
"""How long a request may take to get into the agent's socket."""
_HEALTH_S = 3.0
"""How long an agent may take to answer its health route: a thread that holds the GIL makes it wait."""
_DYING_S = 0.4
"""The connections of a dying process may close this long before it shows as dead."""
_HELD_S = 1.0
"""How long reading native frames may stop a process: 0.3 s, and longer with many threads."""
_CHECK_AGAIN_S = 10.0
_FULL_QUEUE_S = 0.01
_STALLED_S = 0.2
"""How long a request waits for the end of a step in a job that is known to be stalled: it may have resumed
since the last check."""
_SHUT_OUT_S = 1.0
"""Upper limit of `Request.patient_s` while a thread is known to hold the GIL."""


class Request(NamedTuple):
    """A request to one agent. After `patient_s` without an answer, check whether the agent responds at all;
    after `timeout_s`, give up."""

    target: str
    body: dict[str, Any]
    patient_s: float
    timeout_s: float


class Forwarder:
    """Requests that are being sent to agents or wait for their answers."""

    def __init__(
        self,
        find: Callable[[str], Awaitable[Recorded | None]],
        status: Callable[[Recorded], Awaitable[Status]],
        stall: Callable[[Path], Finding | None],
    ) -> None:
        """`find` gives the one living process of this host that an endpoint means, None when it means
        others or several, or raises. `stall` gives the verdict on a recording's process that is stalled."""
        self._find = find
        self._status = status
        self._stall = stall
        self._finding = asyncio.Lock()
        self._sending: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self.pending = 0

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """One of the `PENDING`, until its answer is there; raises `TooMany`."""
        if self.pending >= PENDING:
            raise TooMany(f"too many pending snippets and actions (limit {PENDING})")
        self.pending += 1
        try:
            yield
        finally:
            self.pending -= 1

    async def forward(self, endpoint: str, request: Request) -> dict[str, Any] | None:
        """The agent's answer; None unless the endpoint means exactly one process of this host. Raises
        `TooMany`, the agent's error, and the errors of `asking.ask`."""
        with self.place():
            # Both locks are first come, first served, and between leaving the first and joining the second
            # nobody else runs: requests are sent in order, however long the lookup took.
            begun = time.monotonic()
            async with self._finding:
                recorded = await self._find(endpoint)
            return None if recorded is None else await self.forward_to(recorded, request, begun)

    async def forward_to(
        self, recorded: Recorded, request: Request, begun: float | None = None
    ) -> dict[str, Any]:
        """The answer of one living process; `begun`, monotonic, is when the request arrived. Raises
        `NoBoundary` early if it needs the end of a step and the process is known to be stalled."""
        begun = time.monotonic() if begun is None else begun
        stall = None if request.body.get("wait_anyway") else self._stall(recorded.folder)
        if stall is not None:
            request = request._replace(body={**request.body, "boundary_s": _STALLED_S})
            if stall.state == HOLDS_GIL:
                request = request._replace(patient_s=min(request.patient_s, _SHUT_OUT_S))
        async with self._sending.setdefault(recorded.meta.socket, asyncio.Lock()):
            await _require_running(recorded)
            connection = await _send(recorded, request, begun + SEND_S)
        try:
            return asking.answer_of(recorded, await self._receive(recorded, connection, request, begun))
        except NoBoundary:
            if stall is not None:
                raise asking.stalled(who(recorded), f"{stall.state}: {stall.what}") from None
            raise
        finally:
            connection.close()

    async def _receive(
        self, recorded: Recorded, connection: socket.socket, request: Request, begun: float
    ) -> Any:
        reading = asyncio.ensure_future(_read_all(connection))
        check_at = begun + request.patient_s
        try:
            while True:
                await asyncio.wait({reading}, timeout=max(0.0, check_at - time.monotonic()))
                if reading.done():
                    return wire.decode_answer(reading.result())
                waited_s = time.monotonic() - begun
                if waited_s > request.timeout_s:
                    raise AgentUnreachable(f"{who(recorded)} did not answer within {waited_s:.0f} s")
                if not await _responds(recorded) and not reading.done():
                    raise _no_answer(recorded, waited_s)
                check_at = time.monotonic() + _CHECK_AGAIN_S
        except OSError as error:
            await self._require_live(recorded)
            what = error.strerror or error
            raise AgentUnreachable(f"{who(recorded)} did not answer ({what})") from None
        finally:
            reading.cancel()
            await asyncio.wait({reading})  # it must release the descriptor before that is closed

    async def _require_live(self, recorded: Recorded) -> None:
        """Raise `ProcessDead` if the process hung up because it dies: its descriptors are closed a moment
        before it shows as dead."""
        until_s = time.monotonic() + _DYING_S
        while time.monotonic() < until_s:
            asking.require_live(recorded, await self._status(recorded))
            await asyncio.sleep(_DYING_S / 20)


async def _require_running(recorded: Recorded) -> None:
    """Raise `AgentUnreachable` for a stopped process: once continued, it would run a request that nobody
    waits for any more. Reading native frames also stops a process for a moment, so wait that long."""
    until_s = time.monotonic() + _HELD_S
    while (process := life(recorded.meta.pid)) is not None and process.state in "Tt":
        if time.monotonic() > until_s:
            raise AgentUnreachable(
                f"{who(recorded)} is stopped by a signal or a debugger; nothing was sent to it",
                hint=f"`kill -CONT {recorded.meta.pid}` continues it; "
                f"`probe {recorded.meta.pid} diagnose` shows what stopped it.",
            )
        await asyncio.sleep(_HELD_S / 20)


def _no_answer(recorded: Recorded, waited_s: float) -> AgentUnreachable:
    return AgentUnreachable(
        f"{who(recorded)} did not answer within {waited_s:.0f} s: {why_silent(recorded)}. It has the "
        "request, and may still carry it out when it can run again",
        hint=f"`probe {recorded.meta.pid} diagnose` shows what blocks it.",
    )


async def _send(recorded: Recorded, request: Request, deadline: float) -> socket.socket:
    """Send the whole request; returns the connection to the agent."""
    path = Path(recorded.meta.socket)
    try:
        connection = await _connect(path, deadline)
    except FileNotFoundError:
        raise asking.without_socket(recorded) from None
    except BlockingIOError:
        raise AgentUnreachable(
            f"{who(recorded)} does not accept requests: {why_silent(recorded)}"
        ) from None
    except OSError as error:
        raise AgentUnreachable(f"{who(recorded)} did not answer ({error.strerror or error})") from None
    data = wire.request_bytes("POST", request.target, request.body)
    left_s = max(0.1, deadline - time.monotonic())
    try:
        await asyncio.wait_for(asyncio.get_running_loop().sock_sendall(connection, data), left_s)
    except (OSError, asyncio.TimeoutError):
        connection.close()
        raise AgentUnreachable(
            f"{who(recorded)} did not read the request: {why_silent(recorded)}"
        ) from None
    return connection


async def _connect(path: Path, deadline: float) -> socket.socket:
    while True:
        try:
            return wire.connect_unix(path, 0.0)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(_FULL_QUEUE_S)


async def _read_all(connection: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    found = bytearray()
    while part := await loop.sock_recv(connection, 1 << 18):
        found += part
        if len(found) > wire.LARGEST_ANSWER_BYTES:
            raise ConnectionError("the answer is too long")
    return bytes(found)


async def _responds(recorded: Recorded) -> bool:
    """Whether the agent answers anything at all."""
    try:
        connection = await _connect(Path(recorded.meta.socket), time.monotonic() + _HEALTH_S)
    except OSError:
        return False
    try:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(connection, wire.request_bytes("GET", "/v1/health"))
        wire.decode_answer(await asyncio.wait_for(_read_all(connection), _HEALTH_S))
    except (OSError, asyncio.TimeoutError, ProbeError):
        return False
    finally:
        connection.close()
    return True
