"""A server on a unix socket that says what it is told, and what a run of the command leaves."""

from __future__ import annotations

import io
import socket
import threading
from pathlib import Path
from typing import NamedTuple

from probe.base import wire
from probe.base.errors import ProbeError

TIMEOUT_S = 60.0


class Result(NamedTuple):
    """What a run of the command left."""

    code: int
    out: str
    err: str


class Screen(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


class FakeServer:
    """A server on a unix socket; `answers` holds (status, body) by path, `requests` what was asked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers: dict[str, tuple[int, object]] = {}
        self.requests: list[wire.Request] = []
        self._listener = wire.listen_unix(path)
        self._thread = threading.Thread(target=self._serve, name="fake-server")
        self._thread.start()

    def refuse(self, path: str, error: ProbeError) -> None:
        self.answers[path] = (error.status, error.as_dict())

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                request = wire.read_request(connection, TIMEOUT_S)
                self.requests.append(request)
                wire.write_response(connection, *self.answers[request.path])

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()
        self.path.unlink()
