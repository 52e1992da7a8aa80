"""Who may ask how often and how many at once over TCP: an operator is shut out by nobody."""

from __future__ import annotations

import asyncio
import contextvars
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from probe.base.errors import TooMany
from probe.server.http import auth, limits
from probe.server.peers.peer_link import ROLE_HEADER, SERVER_HEADER, proof
from probe.server.runtime import access, allowance
from probe.server.runtime.allowance import Allowance, Client, address_of
from probe.server.runtime.threads import Threads
from probe.server.service import IN_FLIGHT
from server.beside import Beside, Writer, until
from server.test_tcp import Tcp

VIEWER, OPERATOR = "v" * 43, "o" * 43
PATH = "/v1/ranks"


def spent(counts: Allowance, asker: Client) -> int:
    """Requests until there are too many."""
    for number in range(10_000):
        try:
            counts.take(asker)
        except TooMany:
            return number
    raise AssertionError("there was no limit")


def test_each_role_address_and_server_has_an_allowance_of_its_own() -> None:
    counts = Allowance()
    here, there = "192.0.2.1", "192.0.2.2"
    assert allowance.BURST <= spent(counts, Client("viewer", here)) < 2 * allowance.BURST
    for asker in (Client("operator", here), Client("viewer", there), Client("operator", there)):
        assert spent(counts, asker) >= allowance.BURST, asker
    servers = Client("viewer", here, server=True), Client("operator", here, server=True)
    for asker in servers:
        assert spent(counts, asker) >= allowance.BURST * allowance.HOSTS_TIMES


def test_a_crowd_of_viewers_has_one_limit_and_leaves_the_operator_its_own() -> None:
    counts = Allowance()
    got = sum(spent(counts, Client("viewer", f"192.0.2.{number}")) for number in range(100))
    assert allowance.BURST * allowance.VIEWERS_TIMES <= got < 100 * allowance.BURST
    assert spent(counts, Client("operator", "192.0.2.1")) >= allowance.BURST


def test_what_is_remembered_of_addresses_is_bounded() -> None:
    counts = Allowance()
    for number in range(3 * allowance.REMEMBERED):
        counts.take(Client("operator", str(number)))
    assert len(counts._left) == allowance.REMEMBERED


def test_an_address_is_a_host_and_not_one_of_its_many_names() -> None:
    assert address_of(("192.0.2.1", 5)) == address_of(("::ffff:192.0.2.1", 6)) == "192.0.2.1"
    assert address_of(("2001:db8::1", 5)) == address_of(("2001:db8::ffff:1", 5))
    assert address_of(("2001:db8::1", 5)) != address_of(("2001:db9::1", 5))
    assert address_of(("fe80::1%eth0", 5)) == address_of(("fe80::2", 5)) and address_of(None) == ""


class Gate:
    """The gate of TCP without a socket."""

    def __init__(self) -> None:
        self.roles: list[str] = []
        self._gate = auth.TcpGate(self._app, {"operator": OPERATOR, "viewer": VIEWER}, "127.0.0.1", 1)

    async def _app(self, scope: Any, _receive: Any, _send: Any) -> None:
        self.roles.append(scope["state"]["role"])
        assert access.role_now.get() == self.roles[-1]

    def answered(self, token: str, count: int, address: str = "192.0.2.1", **more: str) -> int:
        """How many of so many requests are let through."""
        headers = [(b"host", b"127.0.0.1:1"), (b"authorization", f"Bearer {token}".encode())]
        headers += [(name.replace("_", "-").encode(), value.encode()) for name, value in more.items()]
        scope = {"type": "http", "method": "GET", "path": PATH, "headers": headers, "client": (address, 9)}
        before = len(self.roles)

        async def send(_message: Any) -> None:
            pass

        async def ask() -> None:
            for _ in range(count):
                await self._gate(dict(scope), send, send)

        contextvars.copy_context().run(asyncio.run, ask())
        return len(self.roles) - before


def test_the_allowance_of_a_server_is_proven_and_not_claimed() -> None:
    many = 4 * allowance.BURST
    role, said = ROLE_HEADER.replace("-", "_"), SERVER_HEADER.replace("-", "_")
    right = proof(OPERATOR, "operator", "GET", PATH)
    claims: list[tuple[str, dict[str, str]]] = [
        (OPERATOR, {role: "operator"}), (OPERATOR, {role: "operator", said: "1"}),
        (OPERATOR, {role: "operator", said: proof(OPERATOR, "operator", "GET", "/v1/health")}),
        (OPERATOR, {role: "viewer", said: right}),
        (OPERATOR, {role: "operator", said: proof(VIEWER, "operator", "GET", PATH)}),
        (VIEWER, {role: "viewer"}), (VIEWER, {role: "viewer", said: proof(VIEWER, "viewer", "GET", PATH)}),
        (VIEWER, {role: "operator", said: right}),
    ]
    for token, headers in claims:
        assert Gate().answered(token, many, **headers) < many, headers
    gate = Gate()
    assert gate.answered(OPERATOR, many, **{role: "operator", said: right}) == many
    for_a_viewer = proof(OPERATOR, "viewer", "GET", PATH)
    assert gate.answered(OPERATOR, many, **{role: "viewer", said: for_a_viewer}) == many
    assert set(gate.roles) == {"operator", "viewer"}


def test_wrong_tokens_and_viewers_leave_the_operator_of_the_same_address_alone() -> None:
    gate = Gate()
    gate.answered("x" * 43, auth.FAILURES_PER_MINUTE)
    assert gate.answered(VIEWER, 3 * allowance.BURST) < 3 * allowance.BURST
    assert gate.answered(OPERATOR, allowance.BURST) == allowance.BURST


def test_threads_of_viewers_are_apart() -> None:
    threads = Threads(4, "t")
    own = threads.now
    blocked = threading.Event()

    def as_viewer() -> None:
        access.role_now.set("viewer")
        assert threads.now is not own
        for _ in range(20):
            threads.now.submit(blocked.wait, 60)

    contextvars.copy_context().run(as_viewer)
    assert threads.now.submit(lambda: "answered").result(30) == "answered"
    blocked.set()
    threads.close()


@contextmanager
def busy_viewers(tcp: Tcp, endpoint: int, count: int) -> Iterator[list[int]]:
    """Viewers that ask for long queries without end; the statuses of what they were answered."""
    statuses: list[int] = []
    stop = threading.Event()
    token = (tcp.directory / "token.viewer").read_text().strip()

    def ask() -> None:
        sql = "SELECT count(*) FROM range(1000000000000)"
        long = {"endpoint": str(endpoint), "sql": sql, "timeout_s": 2.0}
        headers = tcp.good(Authorization=f"Bearer {token}")
        while not stop.is_set():
            statuses.append(tcp.ask("POST", "/v1/query", headers, long)[0])
            stop.wait(0.05)

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_the_operator_is_answered_while_viewers_take_all_they_can(
    beside: Beside, record: Callable[..., Writer]
) -> None:
    writer = record(job="gpt")
    writer.tell("write 3")
    tcp = Tcp(beside)
    body = {"endpoint": str(writer.pid), "sql": "SELECT count(*) FROM python.steps"}
    with busy_viewers(tcp, writer.pid, 2 * IN_FLIGHT) as statuses:
        until(lambda: 429 in statuses, "viewers take all that they can")
        for _ in range(5):
            status, answer = tcp.ask("POST", "/v1/query", tcp.good(), body)
            assert status == 200 and answer["rows"] == [[3]], (status, answer)
        assert beside.rows(writer.pid, "SELECT 1") == [[1]]
    assert set(statuses) <= {408, 429, 504, 400, 503}, "no query of theirs could end"


def test_connections_that_send_nothing_do_not_keep_the_operator_out(beside: Beside) -> None:
    tcp = Tcp(beside)
    with ExitStack() as stack:
        for _ in range(limits.CONNECTIONS + 20):
            stack.enter_context(socket.create_connection(("127.0.0.1", tcp.port), 60))
        assert tcp.ask("GET", "/v1/health", tcp.good())[0] == 200


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_only_so_many_requests_of_viewers_are_answered_at_once(role: str) -> None:
    counts = Allowance()
    with ExitStack() as stack:
        for _ in range(allowance.VIEWERS_AT_ONCE):
            stack.enter_context(counts.answering(role))
        if role == "operator":
            stack.enter_context(counts.answering(role))
            return
        with pytest.raises(TooMany):
            stack.enter_context(counts.answering(role))
    stack.enter_context(counts.answering(role))
