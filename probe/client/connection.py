"""A connection to one server, about one endpoint. Runs in the client's process, on the caller's thread.

The server of this machine is started when the first request needs it. Standard library; the transport over
TCP imports httpx.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from probe.base.errors import ServerUnavailable
from probe.base.settings import Settings
from probe.client import transport as transports
from probe.client.endpoints import Address

SPARE_S = 10.0
"""Added to the server's deadline when waiting for its response."""
PATIENCE_S = 60.0
"""Deadline assumed for requests without one."""


class Connection:
    """Sends requests to the server at `address`."""

    def __init__(
        self, address: Address, settings: Settings, transport: transports.Transport | None = None
    ) -> None:
        self.address = address
        self.settings = settings
        self._transport = transport

    @property
    def endpoint(self) -> str:
        """See `Asker`."""
        return self.address.endpoint

    def open(self, wait_s: float | None = None) -> transports.Transport:
        """Find the server, or start it and wait up to `wait_s`; raises `ServerUnavailable`.

        No request has been sent if this raises."""
        if self._transport is None:
            self._transport = transports.open_transport(self.address, self.settings, wait_s)
        return self._transport

    def request(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str] | None = None,
        body: Mapping[str, object] | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """The server's response to one request.

        `timeout_s` is the server's deadline, None for its default. Entries of `body` that are None are
        left out.
        """
        sent = None if body is None else {name: value for name, value in body.items() if value is not None}
        if sent is not None:
            transports.check_size(sent)
        transport = self.open()
        wait_s = max(PATIENCE_S, self.settings.query_timeout_s) if timeout_s is None else timeout_s
        target = transports.target(path, parameters or {})
        answer = transport.request(method, target, sent, wait_s + SPARE_S)
        if not isinstance(answer, dict):
            raise ServerUnavailable(f"the response to {path} is not a JSON object")
        return answer

    def follow(self, path: str, parameters: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """The parts of the server's response to a GET as they arrive, `{"part": …}`, then the response."""
        transport = self.open()
        if not isinstance(transport, transports.Following):
            yield self.request("GET", path, parameters)
            return
        wait_s = max(PATIENCE_S, self.settings.query_timeout_s) + SPARE_S
        one: Any = None
        for one in transport.follow(transports.target(path, {**parameters, "follow": "1"}), wait_s):
            if not isinstance(one, dict):
                raise ServerUnavailable(f"a line of the response to {path} is not a JSON object")
            yield one
        if one is None or "part" in one:
            raise ServerUnavailable(f"the response to {path} was cut short")
