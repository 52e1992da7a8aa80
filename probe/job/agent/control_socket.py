"""Control socket: the agent's thread, its requests and its rounds.

One thread, `probe-agent`, sleeps in `poll` on the listening socket; connecting wakes it. If the job closes
the socket, it listens again within one round. It accepts one request at a time, with a deadline; slow
requests are answered on threads of their own. In between it makes rounds: memory sample, governor, names of
new modules. It holds the GIL for well under a millisecond at a time. Standard library only.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import select
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from probe.base import descriptors, wire
from probe.base.errors import BadRequest, LimitReached, NotYours, ProbeError, TooMany
from probe.base.isolation import Isolation, capture, describe

REQUEST_TIMEOUT_S = 5.0
"""A caller that has not sent its request by then is disconnected."""
MOST_WAITING = 192
"""Pending requests, each on a thread of its own."""
_NO_DESCRIPTOR_S = 0.05
_NO_LISTENER_S = 0.25

Handler = Callable[[wire.Request, wire.Peer], Any]


class ControlSocket:
    """Serves `routes` ("METHOD /path" to a handler) at `path`, and calls `rounds` regularly.

    `slow` names routes whose answer takes time: their handler runs on the agent's thread, so in order of
    arrival, and returns a function that makes the answer on a thread of its own. Each of `rounds` is a
    function that gives the interval in seconds, and an action."""

    def __init__(
        self,
        path: Path,
        routes: dict[str, Handler],
        rounds: list[tuple[Callable[[], float], Callable[[], object]]],
        isolation: Isolation,
        *,
        slow: frozenset[str],
        first: Callable[[], object],
    ) -> None:
        self.path = path
        self._routes = routes
        self._slow = slow
        self._isolation = isolation
        self._first = first
        self._rounds = rounds
        self._due = [0.0] * len(rounds)
        self._stopping = False
        self._listener: descriptors.Socket | None = None
        self._connections: set[descriptors.Socket] = set()
        self._aside: set[threading.Thread] = set()
        self.thread = threading.Thread(target=self._run, name="probe-agent", daemon=True)

    def start(self) -> None:
        """Start the thread; it binds the socket itself, so starting costs the caller nothing."""
        self.thread.start()

    def stop(self, *, wait_s: float) -> None:
        """End the thread and remove the socket; waits at most `wait_s`."""
        self._stopping = True
        if threading.current_thread() is not self.thread and self.thread.is_alive():
            with contextlib.suppress(OSError, ProbeError):  # if this fails, it wakes for its next round
                wire.connect_unix(self.path, 0.0).close()
            self.thread.join(wait_s)

    def abandon(self) -> None:
        """In a forked child, where the thread does not exist: close the inherited descriptors."""
        self._stopping = True
        for inherited in (self._listener, *self._connections):
            if inherited is not None:
                inherited.close()

    def _run(self) -> None:
        try:
            self._isolation.attempt("agent", self._serve)
        finally:
            self._close()

    def _serve(self) -> None:
        self._listen_again()
        self._isolation.attempt("agent", self._first)
        while not self._stopping:
            listener = self._wait()
            if listener is not None:
                self._accept(listener)
            if not self._stopping:
                self._make_rounds()

    def _wait(self) -> descriptors.Socket | None:
        """Wait for a connection or the next round; returns the listener if somebody connects."""
        if self._listener is None or not self._listener.ours:
            self._listen_again()
        listener = self._listener
        if listener is None:  # no descriptor is left, or the folder is gone: try again later
            time.sleep(_NO_LISTENER_S)
            return None
        waiting = select.poll()  # select() refuses descriptors above 1023
        waiting.register(listener.fileno(), select.POLLIN)
        return listener if waiting.poll(self._until_next_round_ms()) and not self._stopping else None

    def _listen_again(self) -> None:
        """Listen: at the start, and after the job has closed the socket, whose number is then not ours."""
        if self._listener is not None:
            self._listener.close()
        self._listener = None
        with contextlib.suppress(OSError):
            listener = wire.listen_unix(self.path).kept()
            listener.setblocking(False)
            self._listener = listener

    def _until_next_round_ms(self) -> float:
        now = time.monotonic()
        return max(0.0, min(self._due, default=now + 60.0) - now) * 1e3

    def _make_rounds(self) -> None:
        now = time.monotonic()
        for place, (interval_s, action) in enumerate(self._rounds):
            if now >= self._due[place]:
                self._due[place] = now + interval_s()
                self._isolation.attempt("agent round", action)

    def _accept(self, listener: descriptors.Socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # no descriptor left: the caller waits in the backlog, and we do not spin
            time.sleep(_NO_DESCRIPTOR_S)
            return
        self._connections.add(connection)
        answering = False
        try:
            answering = self._handle(connection)
        except OSError:
            pass
        finally:
            if not answering:
                self._hang_up(connection)

    def _hang_up(self, connection: descriptors.Socket) -> None:
        """Close a connection, also if a forked child inherited it: the caller sees the end."""
        self._connections.discard(connection)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()

    def _handle(self, connection: descriptors.Socket) -> bool:
        """Read one request and answer it; True if a thread of its own will answer."""
        try:
            peer = wire.peer_of(connection)
            if peer.uid not in (os.getuid(), 0):
                raise NotYours("this process belongs to another user")
            request = wire.read_request(connection, REQUEST_TIMEOUT_S)
            route = f"{request.method} {request.path}"
            handler = self._routes.get(route)
            if handler is None:
                raise BadRequest(f"no route {route}", hint=f"routes: {', '.join(self._routes)}")
        except ProbeError as error:
            wire.write_error(connection, error)
            return False
        if route not in self._slow:
            self._answer(connection, lambda: handler(request, peer))
            return False
        if len(self._aside) >= MOST_WAITING:
            wire.write_error(connection, TooMany(f"too many pending requests (limit {MOST_WAITING})"))
            return False
        return self._answer_aside(connection, lambda: handler(request, peer))

    def _answer_aside(self, connection: descriptors.Socket, take: Callable[[], Callable[[], Any]]) -> bool:
        """Handle a request here and answer it on a thread of its own. The thread is started first: a task
        that nobody waits for would block those behind it."""
        taken: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        thread = threading.Thread(
            target=self._answer_and_hang_up, args=(connection, lambda: taken.get()()),
            name="probe-request", daemon=True,
        )
        self._aside.add(thread)
        try:
            thread.start()
        except RuntimeError as error:
            self._aside.discard(thread)
            wire.write_error(connection, LimitReached(f"the job cannot start another thread: {error}"))
            return False
        answer, refusal = capture(take)
        taken.put(answer if refusal is None else functools.partial(_raise, refusal))
        return True

    def _answer_and_hang_up(self, connection: descriptors.Socket, answer: Callable[[], Any]) -> None:
        try:
            with contextlib.suppress(OSError):
                self._answer(connection, answer)
        finally:
            self._hang_up(connection)
            self._aside.discard(threading.current_thread())

    def _answer(self, connection: descriptors.Socket, make: Callable[[], Any]) -> None:
        answer, error = capture(make)
        connection.settimeout(REQUEST_TIMEOUT_S)
        if error is None:
            wire.write_response(connection, 200, answer)
        elif isinstance(error, ProbeError):
            wire.write_error(connection, error)
        else:
            wire.write_error(connection, ProbeError(f"the agent failed: {describe(error)}"))

    def finish(self, wait_s: float) -> None:
        """Give pending requests a moment to be answered before the process ends."""
        until_s = time.monotonic() + wait_s
        for thread in list(self._aside):
            if thread is not threading.current_thread():
                thread.join(max(0.0, until_s - time.monotonic()))

    def _close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            with contextlib.suppress(OSError):
                os.unlink(self.path)


def _raise(error: BaseException) -> None:
    raise error
