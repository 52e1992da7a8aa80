"""The socket that an injected thread connects to, and the protocol on it.

The job sends `L` (the injected thread exists) and receives the source, sends `R` when it has the GIL, and at
the end `J` with the outcome or `E` with an error. Messages are lines of text; the source is preceded by its
length. Runs in the command; standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import time
from pathlib import Path

from probe.base import wire

_LEAVING_S = 0.5


class Meeting:
    """Listens at `FOLDER/PID.sock`; answers only the process to attach to."""

    def __init__(self, folder: Path, pid: int, inner_pid: int, source: str) -> None:
        self.path = folder / f"{inner_pid}.sock"
        self.loaded_s: float | None = None
        self.running_s: float | None = None
        self.outcome: dict[str, str] | None = None
        self._pid = pid
        self._source = source.encode()
        self._began = time.monotonic()
        self._listener = wire.listen_unix(self.path)
        self._connection: socket.socket | None = None
        self._unread = b""

    def __enter__(self) -> Meeting:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the socket. A job that still waits for the GIL has the source already."""
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        if self._connection is not None:
            self._connection.close()

    def until_loaded(self, timeout_s: float) -> bool:
        """Wait for the job's connection, and send it the source."""
        deadline = time.monotonic() + timeout_s
        while self.loaded_s is None and self._step(deadline):
            pass
        return self.loaded_s is not None

    def until_running(self, timeout_s: float) -> bool:
        """Wait until the source runs in the job (or has failed there)."""
        deadline = time.monotonic() + timeout_s
        while self.running_s is None and self.outcome is None and self._step(deadline):
            pass
        return self.running_s is not None

    def until_over(self, timeout_s: float) -> bool:
        """Wait for the outcome, and a moment longer until the injected threads are gone."""
        deadline = time.monotonic() + timeout_s
        while self.outcome is None and self._step(deadline):
            pass
        deadline = time.monotonic() + _LEAVING_S
        while self.outcome is not None and self._step(deadline):
            pass
        return self.outcome is not None

    def _step(self, deadline: float) -> bool:
        """Process the next message; False at the deadline or the end of the connection."""
        waited_for = self._connection or self._listener
        left_s = max(0.0, deadline - time.monotonic())
        if not select.select([waited_for], [], [], left_s)[0]:
            return False
        if self._connection is None:
            self._accept()
            return True
        try:
            part = self._connection.recv(1 << 16)
        except OSError:
            part = b""
        self._unread += part
        while b"\n" in self._unread:
            line, _, self._unread = self._unread.partition(b"\n")
            self._take(line.decode(errors="replace"))
        return bool(part)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        if wire.peer_of(connection).pid != self._pid:
            connection.close()
            return
        connection.settimeout(10.0)
        self._connection = connection

    def _take(self, line: str) -> None:
        elapsed_s = time.monotonic() - self._began
        if line == "L":
            self.loaded_s = elapsed_s
            assert self._connection is not None
            with contextlib.suppress(OSError):  # a lost connection is noticed by the next read
                self._connection.sendall(struct.pack("=I", len(self._source)) + self._source)
        elif line == "R":
            self.running_s = elapsed_s
        elif line.startswith("J"):
            with contextlib.suppress(ValueError):
                self.outcome = json.loads(line[1:])
        elif line.startswith("E"):
            self.outcome = {"error": line[1:]}
