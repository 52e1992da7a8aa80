"""Handing requests to agents: in the order in which they came, and answered however late.

A snippet or an action may wait for the end of a step, behind others. No thread
waits here: the sockets belong to the event loop. Requests for one process are sent
one after the other in order of arrival (the agent's socket accepts them in that
order); the answers come as they come. An agent that does not answer is asked
whether it hears at all, so that a stopped process is noticed in seconds however
long the answer may take. Runs on the server's event loop. Standard library only.
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
from probe.base.errors import AgentMissing, AgentUnreachable, ProbeError, TooMany
from probe.recording.process import life
from probe.server.agents.asking import require_live, who, why_silent
from probe.server.recordings.registry import Recorded, Status

WAITING = 128
"""Snippets and actions that are waited for at once; more are refused with 429."""
HAND_OVER_S = 5.0
"""How long a request may take to get into the agent's socket."""
_HEALTH_S = 3.0
"""How long an agent may take to say that it hears: a thread that holds the GIL makes it wait."""
_DYING_S = 0.4
"""Between the end of a process's connections and its own."""
_HELD_S = 1.0
"""How long a process may be stopped by who reads its native frames: 0.3 s, and longer with many threads."""
_LOOK_AGAIN_S = 10.0
_FULL_QUEUE_S = 0.01


class Request(NamedTuple):
    """What one agent is asked. `patient_s`: from then on it is looked whether the agent hears;
    `timeout_s`: from then on the answer is not waited for any more."""

    target: str
    body: dict[str, Any]
    patient_s: float
    timeout_s: float


class AgentQueue:
    """Requests that wait for their agents."""

    def __init__(
        self,
        find: Callable[[str], Awaitable[Recorded | None]],
        status: Callable[[Recorded], Awaitable[Status]],
    ) -> None:
        """`find` gives the one living process of this host that an endpoint means, None when it means
        others or several, or raises."""
        self._find = find
        self._status = status
        self._finding = asyncio.Lock()
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self.waiting = 0

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """One of the `WAITING`, for as long as something is waited for; raises `TooMany`."""
        if self.waiting >= WAITING:
            raise TooMany(f"{WAITING} snippets and actions are waited for already")
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    async def ask(self, endpoint: str, request: Request) -> dict[str, Any] | None:
        """The agent's answer; None when not one process of this host is meant. Raises `TooMany`, what the
        agent answers, and what `asking.ask` raises."""
        with self.place():
            # Both locks are queues, and between leaving the first and joining the second nobody else runs:
            # whoever came first is sent first, however long it took to find out who is meant.
            begun = time.monotonic()
            async with self._finding:
                recorded = await self._find(endpoint)
            return None if recorded is None else await self.ask_process(recorded, request, begun)

    async def ask_process(
        self, recorded: Recorded, request: Request, begun: float | None = None
    ) -> dict[str, Any]:
        """The answer of one living process; `begun`, monotonic, is when it was first asked for."""
        begun = time.monotonic() if begun is None else begun
        turn = self._turns.setdefault(recorded.meta.socket, asyncio.Lock())
        async with turn:
            await _require_running(recorded)
            connection = await _send(recorded, request, begun + HAND_OVER_S)
        try:
            answer = await self._receive(recorded, connection, request, begun)
        finally:
            connection.close()
        if not isinstance(answer, dict):
            raise AgentUnreachable(f"{who(recorded)} gave no answer that can be understood")
        return answer

    async def _receive(
        self, recorded: Recorded, connection: socket.socket, request: Request, begun: float
    ) -> Any:
        reading = asyncio.ensure_future(_read_all(connection))
        look_at = begun + request.patient_s
        try:
            while True:
                await asyncio.wait({reading}, timeout=max(0.0, look_at - time.monotonic()))
                if reading.done():
                    return wire.decode_answer(reading.result())
                waited_s = time.monotonic() - begun
                if waited_s > request.timeout_s:
                    raise AgentUnreachable(f"{who(recorded)} did not answer within {waited_s:.0f} s")
                if not await _hears(recorded) and not reading.done():
                    raise _deaf(recorded, waited_s)
                look_at = time.monotonic() + _LOOK_AGAIN_S
        except OSError as error:
            await self._require_live(recorded)
            what = error.strerror or error
            raise AgentUnreachable(f"{who(recorded)} did not answer ({what})") from None
        finally:
            reading.cancel()
            await asyncio.wait({reading})  # it must have let go of the socket's number before that is closed


    async def _require_live(self, recorded: Recorded) -> None:
        """Raise `ProcessDead` for a process that hung up because it dies: its descriptors are closed a
        moment before it is seen to be dead."""
        until_s = time.monotonic() + _DYING_S
        while time.monotonic() < until_s:
            require_live(recorded, await self._status(recorded))
            await asyncio.sleep(_DYING_S / 20)


async def _require_running(recorded: Recorded) -> None:
    """Raise `AgentUnreachable` for a stopped process: it would do, whenever it goes on, what nobody waits
    for any more. Whoever reads native frames stops it for a moment, too: that is waited for."""
    until_s = time.monotonic() + _HELD_S
    while (process := life(recorded.meta.pid)) is not None and process.state in "Tt":
        if time.monotonic() > until_s:
            raise AgentUnreachable(
                f"{who(recorded)} is stopped by a signal or a debugger; nothing was asked of it",
                hint=f"`kill -CONT {recorded.meta.pid}` lets it go on; "
                f"`probe {recorded.meta.pid} diagnose` says who holds it.",
            )
        await asyncio.sleep(_HELD_S / 20)


def _deaf(recorded: Recorded, waited_s: float) -> AgentUnreachable:
    return AgentUnreachable(
        f"{who(recorded)} did not answer within {waited_s:.0f} s: {why_silent(recorded)}. It was asked, and "
        "may do it when it can run again",
        hint=f"`probe {recorded.meta.pid} diagnose` says what holds it.",
    )


async def _send(recorded: Recorded, request: Request, deadline: float) -> socket.socket:
    """A connection to the agent over which the whole request has gone."""
    path = Path(recorded.meta.socket)
    try:
        connection = await _connect(path, deadline)
    except FileNotFoundError:
        raise AgentMissing(
            f"{who(recorded)} lives and its agent has no socket (it starts, or was stopped)"
        ) from None
    except BlockingIOError:
        raise AgentUnreachable(
            f"{who(recorded)} takes no more requests: {why_silent(recorded)}"
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
            f"{who(recorded)} did not take the request: {why_silent(recorded)}"
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


async def _hears(recorded: Recorded) -> bool:
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
