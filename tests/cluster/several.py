"""Several hosts on this one: each a place of its own, its server on a port of its own, one token for all."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import PATIENCE_S, Place
from probe.base import wire
from probe.base.settings import Settings
from probe.boot import launch
from probe.recording import places
from ranks import free_port
from server.beside import Writer


class Node:
    """One host: its place, its server, its recorded processes."""

    def __init__(self, shared: dict[str, str]) -> None:
        self.place = Place()
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.environ = self.place.environ(PROBE_LISTEN=self.address, PROBE_DRAIN_INTERVAL_S="0.1", **shared)
        self.writers: list[Writer] = []

    @property
    def server_socket(self) -> Path:
        return places.server_socket(self.place.directory)

    def start(self, **environ: str) -> None:
        """See that the server runs."""
        self.environ.update(environ)
        launch.ensure_server(self.place.directory, Settings(self.environ), wait_s=PATIENCE_S)

    def record(self, **wanted: Any) -> Writer:
        """A recorded process of this host."""
        writer = Writer(self.place, wanted)
        self.writers.append(writer)
        return writer

    def call(self, method: str, target: str, body: object = None) -> Any:
        """One request on the unix socket; raises the `ProbeError` that is answered."""
        return wire.call(self.server_socket, method, target, body, timeout_s=PATIENCE_S)

    def query(self, endpoint: str, sql: str, **more: object) -> dict[str, Any]:
        """Answer of `POST /v1/query`."""
        found: dict[str, Any] = self.call("POST", "/v1/query", {"endpoint": endpoint, "sql": sql, **more})
        return found

    def close(self) -> None:
        """End everything of this host."""
        for writer in self.writers:
            writer.kill()
        self.place.remove()


@contextlib.contextmanager
def nodes(count: int, **environ: str) -> Iterator[list[Node]]:
    """Hosts that know each other from one peers file; their servers are not started yet."""
    with contextlib.ExitStack() as stack:
        place = Place()
        stack.callback(place.remove)
        token, peers = place.directory / "shared-token", place.directory / "peers"
        token.touch(0o600)
        token.write_text(secrets.token_urlsafe(32))
        shared = {"PROBE_TOKEN_FILE": str(token), "PROBE_PEERS": str(peers), "PROBE_QUERY_TIMEOUT_S": "60",
                  **environ}
        found = []
        for _ in range(count):
            found.append(Node(shared))
            stack.callback(found[-1].close)
        peers.write_text("# all hosts\n" + "".join(f"{node.address}\n" for node in found))
        yield found


def meta(writer: Writer) -> dict[str, Any]:
    """The facts of a recorded process."""
    found: dict[str, Any] = json.loads((writer.folder / "meta.json").read_bytes())
    return found


def nodename() -> str:
    return os.uname().nodename
