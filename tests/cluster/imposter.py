"""A server of another host that is not as it should be: answers as a test wants, keeps what it was asked."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ranks import free_port

Answer = Callable[[str], bytes]
"""From the path that is asked to the bytes that are sent."""


class Imposter:
    """Listens on loopback until the test ends."""

    def __init__(self, answer: Answer, *, slow: bool = False, endless: bool = False) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.heads: list[str] = []
        self._answer = answer
        self._slow = slow
        self._endless = endless
        self._ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._ended.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            head = connection.recv(1 << 16).decode(errors="replace")
            self.heads.append(head)
            answer = self._answer(head.split(" ")[1].partition("?")[0] if " " in head else "")
            if not self._slow:
                connection.sendall(answer)
            else:
                for byte in answer:
                    connection.sendall(bytes((byte,)))
                    if self._ended.wait(0.2):
                        return
            while self._endless and not self._ended.is_set():
                connection.sendall(b"x" * (1 << 16))

    def close(self) -> None:
        """Stop listening; talks that go on end soon."""
        self._ended.set()
        self._listener.close()


def reply(body: object, *, status: str = "200 OK", kind: str = "application/json", more: str = "") -> bytes:
    """A whole HTTP answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n{more}\r\n"
    return head.encode() + data


def introduction(**held: Any) -> dict[str, Any]:
    """What `GET /v1/peers` answers, of a host with rank 1 of two."""
    facts = {"run": "run-x", "ranks": "1", "attempt": 0, "world_size": 2, "started_ns": 1, "ended_ns": None}
    return {"id": "imposter", "host": "imposter", "held": {**facts, **held}, "peers": []}


@contextlib.contextmanager
def imposters() -> Iterator[Callable[..., Imposter]]:
    """`make(answer, …)`: one more; all are closed at the end."""
    with contextlib.ExitStack() as stack:

        def make(answer: Answer, **ways: bool) -> Imposter:
            made = Imposter(answer, **ways)
            stack.callback(made.close)
            return made

        yield make
