"""HTTP as strangers speak it: limits hold, errors have one shape, nothing is given away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from harness import Place
from probe.base import wire
from probe.base.errors import BY_CODE
from probe.recording import places
from probe.recording.process import life
from probe.server.agents import forwarding
from probe.server.http import limits
from probe.server.runtime.access import NEEDS
from server.beside import Beside, Writer, until

LEAKS = re.compile(r"Traceback|File \"|/site-packages/|line \d+, in ")


@pytest.fixture
def server(beside: Beside) -> Beside:
    beside.start()
    return beside


def dial(server: Beside) -> socket.socket:
    return wire.connect_unix(places.server_socket(server.directory), 60)


def read_to_end(connection: socket.socket) -> bytes:
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def send(server: Beside, data: bytes) -> bytes:
    """Send raw bytes and read until the server closes."""
    with dial(server) as connection:
        with contextlib.suppress(BrokenPipeError):
            connection.sendall(data)
        return read_to_end(connection)


def provoke(server: Beside, data: bytes) -> bytes:
    """Send raw bytes, wait a moment for an answer, say that nothing more comes; what was read."""
    with dial(server) as connection:
        first = b""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(data)
            ready, _, _ = select.select([connection], [], [], 0.1)
            first = connection.recv(1 << 16) if ready else b""
            connection.shutdown(socket.SHUT_WR)
        return first + read_to_end(connection)


def status_and_error(answer: bytes) -> tuple[int, dict[str, Any]]:
    """Status of an answer that has to be an error in the one shape."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 "), answer[:200]
    found = json.loads(body)
    assert set(found) == {"error"} and set(found["error"]) == {"code", "message", "hint"}
    assert found["error"]["code"] in BY_CODE and found["error"]["message"]
    assert not LEAKS.search(body.decode()), body
    return int(head.split(b" ")[1]), found["error"]


def request(method: str, target: str, body: bytes = b"", **headers: str) -> bytes:
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    lines = {"Host": "localhost", "Connection": "close", "Content-Length": str(len(body)), **more}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode() + body


def post(target: str, body: bytes) -> bytes:
    return request("POST", target, body, Content_Type="application/json")


def test_all_errors_have_one_shape(server: Beside, record: Callable[..., Writer]) -> None:
    record(job="gpt")

    def query(**body: object) -> bytes:
        return request("POST", "/v1/query", json.dumps(body).encode(), Content_Type="application/json")

    expected = {
        404: [
            request("GET", "/v2"), request("GET", "/v2/health"), request("GET", "/docs/oauth2-redirect"),
            query(sql="x", endpoint="y"), request("GET", "/v1/backtrace?endpoint=nothing"),
            request("GET", "/v1/health/"), request("GET", "/../../etc/passwd"), request("GET", "/%2e%2e/%00"),
        ],
        405: [
            request("PUT", "/v1/query"), request("GET", "/v1/eval"), request("TRACE", "/v1/health"),
            request("OPTIONS", "/v1/query"),
        ],
        400: [
            request("POST", "/v1/query"), request("POST", "/v1/query", b'{"sql": "SELECT 1"}'),
            post("/v1/query", b"{"), post("/v1/query", b"\xff"), post("/v1/query", b"[" * 100_000),
            post("/v1/query", b'{"sql": 1e999}'), post("/v1/query", b'{"sql": NaN}'),
            query(), query(sql=None), query(sql="SELCT", endpoint="gpt"), query(sql="SELECT 1", limit=-1),
            request("GET", "/v1/processes?all=x"),
            post("/v1/eval", b'{"code": "1", "timeout_s": "soon"}'),
            post("/v1/eval", b'{"code": "1", "when": "later"}'),
            post("/v1/eval", b'{"code": "1", "wait_s": 0}'),
            post("/v1/eval", b'{"code": "1", "caller": {"uid": 0}}'),
            post("/v1/act", b'{}'), post("/v1/act", b'{"action": ""}'),
            post("/v1/act", b'{"action": "lr", "arguments": [1]}'),
            post("/v1/act", b'{"action": "lr", "arguments": {"set": NaN}}'),
            post("/v1/act", b'{"action": "lr", "arguments": {"set": [1e999]}}'),
            post("/v1/act", b'{"action": "lr", "now": 1}'),
            post("/v1/act", b'{"action": "lr", "wait_s": 1e9}'),
            post("/v1/act", b'{"action": "lr", "caller": {"role": "owner"}}'),
            post("/v1/undo", b'{}'), post("/v1/undo", b'{"id": 3}'),
        ],
    }
    for status, requests in expected.items():
        for raw in requests:
            answer = send(server, raw)
            assert answer.partition(b"\r\n\r\n")[2], (raw[:100], answer[:200])
            assert status_and_error(answer)[0] == status, (raw[:100], answer[:200])


MALFORMED = [
    b"\r\n\r\n", b"GET\r\n\r\n", b"GET /\r\n\r\n", b"GET / HTTP/0.9\r\n\r\n", b"GET / HTTP/3.0\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), b"\x00" * 100, b"SSH-2.0-x\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\nHost localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\n: empty\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\n folded\x00: x\r\n\r\n", b"GET  /  HTTP/1.1\r\nHost: a\r\n\r\n",
    b"G\xc3\x89T / HTTP/1.1\r\nHost: a\r\n\r\n", b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x10\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\n",
]


def test_what_is_no_http_is_refused_or_dropped_and_the_server_goes_on(server: Beside) -> None:
    whole = post("/v1/query", b'{"sql": "SELECT 1"}')
    cut = [whole[:length] for length in range(1, len(whole), 3)]
    flipped = [whole[:place] + bytes([whole[place] ^ 0x80]) + whole[place + 1 :] for place in range(60)]
    repeated = [whole.replace(b"\r\n", ending) for ending in (b"\r", b"\r\n\r\n", b"\x0b", b"")]
    assert len([*MALFORMED, *cut, *flipped, *repeated]) >= 120
    for raw in [*MALFORMED, *cut, *flipped, *repeated]:
        answer = provoke(server, raw)
        assert not LEAKS.search(answer.decode("latin-1")), raw[:80]
        if answer:
            assert re.match(rb"HTTP/1\.1 (4\d\d|503) ", answer), (raw[:80], answer[:200])
    assert server.call("GET", "/v1/health")["status"] == "ok"
    assert "Traceback" not in server.log()


def test_heads_and_bodies_beyond_the_limits_are_refused_without_being_kept(server: Beside) -> None:
    def resident() -> int:
        status = Path(f"/proc/{server.place.server_pid()}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) << 10

    server.call("GET", "/v1/processes")
    before = resident()
    status, error = status_and_error(send(server, request("GET", "/v1/health", X="x" * 200_000)))
    assert (status, error["code"]) == (413, "too_large")
    declared = request("POST", "/v1/query", b"", Content_Length=str(300 << 20))
    assert status_and_error(send(server, declared))[0] == 413
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    head = b"POST /v1/query HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert status_and_error(send(server, head + chunk * 800))[0] == 400
    both = request("POST", "/v1/query", b"2\r\n{}\r\n0\r\n\r\n", Transfer_Encoding="chunked")
    assert status_and_error(send(server, both))[0] == 400
    packed = request("POST", "/v1/query", b"x", Content_Encoding="gzip")
    assert status_and_error(send(server, packed))[0] == 400
    assert resident() - before < 16 << 20


def closed_within(connections: list[socket.socket], seconds: float) -> int:
    """How many of the connections the other side closes in time."""
    deadline = time.monotonic() + seconds
    closed = 0
    for connection in connections:
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            while connection.recv(1 << 16):
                pass
            closed += 1
        except ConnectionResetError:
            closed += 1
        except TimeoutError:
            pass
    return closed


def test_slow_clients_are_shed_and_others_are_served_meanwhile(server: Beside) -> None:
    with contextlib.ExitStack() as stack:
        slow = []
        for place in range(40):
            connection = stack.enter_context(dial(server))
            if place % 2:
                connection.sendall(b"GET /v1/health HTTP/1.1\r\nHost: ")
            slow.append(connection)
        assert server.call("GET", "/v1/health")["status"] == "ok"
        assert closed_within(slow, limits.HEAD_TIMEOUT_S + 30) == 40


def test_a_slow_body_is_given_up(server: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    with dial(server) as connection:
        connection.sendall(b"POST /v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        status, _ = status_and_error(read_to_end(connection))
    assert status == 400


def test_connections_that_say_nothing_keep_nobody_out(server: Beside) -> None:
    with contextlib.ExitStack() as stack:
        many = [stack.enter_context(dial(server)) for _ in range(limits.CONNECTIONS)]
        until(lambda: _descriptors(server) > limits.CONNECTIONS, "all accepted")
        assert server.call("GET", "/v1/health")["status"] == "ok"
        assert read_to_end(many[0]) == b"", "the oldest had to go"


def test_connections_beyond_the_limit_are_told_so_when_all_are_at_work() -> None:
    loop = asyncio.new_event_loop()
    config = uvicorn.Config(_never_answers, http=limits.LimitedProtocol, interface="asgi3", lifespan="off")
    config.load()
    state = ServerState()
    taken: list[_Transport] = []

    async def connect() -> None:
        for _ in range(limits.CONNECTIONS + 1):
            protocol = limits.LimitedProtocol(config=config, server_state=state, app_state={})
            taken.append(_Transport())
            protocol.connection_made(taken[-1])
            if not taken[-1].is_closing():
                protocol.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await asyncio.sleep(0)
        refused = [one for one in taken if one.written or one.is_closing()]
        assert refused == taken[-1:] and taken[-1].written.startswith(b"HTTP/1.1 429")
        for task in state.tasks:
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)

    loop.run_until_complete(connect())
    loop.close()


async def _never_answers(_scope: Any, _receive: Any, _send: Any) -> None:
    await asyncio.get_running_loop().create_future()


class _Transport(asyncio.Transport):
    """The server's end of a connection that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self._closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True

    abort = close

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def _descriptors(server: Beside) -> int:
    """How many it has open, but for rings, which it opens when it first looks at them."""
    found = 0
    for one in Path(f"/proc/{server.place.server_pid()}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found += not os.readlink(one).startswith(str(server.place.rings))
    return found


def test_clients_that_vanish_leave_nothing_behind(server: Beside, record: Callable[..., Writer]) -> None:
    writer = record()
    writer.tell("write 3")
    server.rows(writer.pid, "SELECT 1")
    before = _descriptors(server)
    endless = {"endpoint": str(writer.pid), "sql": "SELECT count(*) FROM range(1000000000000)"}
    large = {"endpoint": str(writer.pid), "sql": "SELECT repeat('x', 30000000)"}
    for place in range(60):
        with dial(server) as connection:
            body = json.dumps(large if place % 20 == 0 else {"sql": "SELECT 1"}).encode()
            connection.sendall(post("/v1/query", body))
            if place % 2:
                connection.recv(100)
    for _ in range(3):
        with dial(server) as connection:
            connection.sendall(post("/v1/query", json.dumps(endless).encode()))
            time.sleep(0.05)
    until(lambda: _descriptors(server) <= before + 2, "descriptors are given back")
    assert server.rows(writer.pid, "SELECT count(*) FROM python.steps") == [[3]]


def test_what_an_agent_is_asked_says_who_asks_as_the_kernel_knows_it(
    server: Beside, record: Callable[..., Writer]
) -> None:
    writer = record(job="gpt")
    caller = {"uid": os.getuid(), "pid": os.getpid(), "via": "unix", "role": "owner"}
    acted = server.call("POST", "/v1/act", {"endpoint": "gpt", "action": "lr", "arguments": {"scale": 0.5}})
    assert (acted["id"], acted["what"]) == (f"{writer.pid}-1", "said"), "the answer is the agent's"
    assert acted["asked"] == {
        "action": "lr", "arguments": {"scale": 0.5}, "wait_s": 30.0, "now": False, "force": False,
        "wait_anyway": False, "caller": caller,
    }
    undone = server.call("POST", "/v1/undo", {"endpoint": "gpt", "id": "7-1", "wait_s": 2})
    assert undone["asked"] == {"id": "7-1", "wait_s": 2.0, "wait_anyway": False, "caller": caller}


def test_an_agent_that_does_not_hear_is_noticed_before_the_answer_is_due(
    server: Beside, record: Callable[..., Writer]
) -> None:
    writer = record(job="gpt")
    body = {"endpoint": "gpt", "code": "1", "timeout_s": 0.5, "wait_s": 1000}
    writer.tell("busy")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.call, "POST", "/v1/eval", body)
        until(lambda: int(writer.tell("asked").split()[1]) == 1, "the agent was asked")
        writer.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(BY_CODE["agent_unreachable"], match=r"stopped.* may still carry it out when"):
                asked.result()
        finally:
            writer.process.send_signal(signal.SIGCONT)


def test_a_stopped_process_is_asked_nothing(server: Beside, record: Callable[..., Writer]) -> None:
    writer = record(job="gpt")
    body = {"endpoint": "gpt", "code": "1", "timeout_s": 0.5, "wait_s": 1000}
    assert server.call("POST", "/v1/eval", body)["value"] == "1"
    asked = writer.tell("asked")
    writer.process.send_signal(signal.SIGSTOP)
    until(lambda: found.state == "T" if (found := life(writer.process.pid)) else False, "it is stopped")
    try:
        with pytest.raises(BY_CODE["agent_unreachable"], match="is stopped by a signal"):
            server.call("POST", "/v1/eval", body)
    finally:
        writer.process.send_signal(signal.SIGCONT)
    assert writer.tell("asked") == asked
    assert server.call("POST", "/v1/eval", body)["value"] == "1"


def test_a_process_that_dies_while_it_is_asked_is_said_to_be_dead(
    server: Beside, record: Callable[..., Writer]
) -> None:
    writer = record(job="gpt")
    writer.tell("busy")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.call, "POST", "/v1/act", {"endpoint": "gpt", "action": "lr"})
        until(lambda: int(writer.tell("asked").split()[1]) == 1, "the agent was asked")
        writer.kill()
        with pytest.raises(BY_CODE["process_dead"]):
            asked.result()


def test_a_hundred_requests_of_ten_callers_reach_the_agent_once_and_in_order(
    server: Beside, record: Callable[..., Writer]
) -> None:
    writer = record(job="gpt")
    writer.tell("busy")
    expected = [(client, number) for client in range(10) for number in range(10)]

    def send(client: int, number: int) -> socket.socket:
        connection = dial(server)
        body = {"endpoint": "gpt", "action": "note", "arguments": {"client": client, "number": number}}
        connection.sendall(post("/v1/act", json.dumps(body).encode()))
        return connection

    def client_sends(client: int) -> list[socket.socket]:
        return [send(client, number) for number in range(10)]

    with contextlib.ExitStack() as stack, ThreadPoolExecutor(10) as pool:
        sent = [stack.enter_context(one) for found in pool.map(client_sends, range(10)) for one in found]
        until(lambda: int(writer.tell("asked").split()[1]) == 100, "all have been handed over")
        assert server.call("GET", "/v1/processes")["processes"], "others are answered meanwhile"
        with contextlib.ExitStack() as more:
            few = [more.enter_context(send(0, number)) for number in range(forwarding.PENDING - 100)]
            with send(0, 0) as one_more:
                assert status_and_error(read_to_end(one_more))[0] == 429
            writer.tell("hear")
            answers = [json.loads(read_to_end(one).partition(b"\r\n\r\n")[2]) for one in [*sent, *few]]
    notes = [(one["asked"]["arguments"]["client"], one["asked"]["arguments"]["number"]) for one in answers]
    assert notes[:100] == expected, "each is answered with what it asked"
    arrived = sorted((one["arrived"], note) for one, note in zip(answers[:100], notes[:100], strict=True))
    for client in range(10):
        assert [number for _, (who, number) in arrived if who == client] == list(range(10))


def test_several_requests_on_one_connection_are_answered_in_order(server: Beside) -> None:
    one = b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = request("GET", "/v1/nothing")
    answer = send(server, one + one + last)
    assert [line.split()[1] for line in re.findall(rb"HTTP/1.1 \d+", answer)] == [b"200", b"200", b"404"]


def test_the_socket_is_private_and_its_peers_are_checked(server: Beside, place: Place) -> None:
    path = places.server_socket(place.directory)
    assert path.stat().st_mode & 0o777 == 0o600
    assert place.directory.stat().st_mode & 0o777 == 0o700
    if os.getuid() != 0:
        pytest.skip("needs root to become another user")
    code = (
        "import os, socket, sys\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "connection = socket.socket(socket.AF_UNIX); connection.settimeout(30)\n"
        "try: connection.connect(sys.argv[1])\n"
        "except PermissionError: sys.exit('refused')\n"
        "try:\n"
        "    connection.sendall(b'GET /v1/health HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n')\n"
        "    sys.exit('answered' if connection.recv(100) else 'dropped')\n"
        "except OSError: sys.exit('dropped')\n"
    )

    def other_user() -> str:
        found = subprocess.run(
            [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False, cwd="/"
        )
        return found.stderr.strip().splitlines()[-1]

    assert other_user() == "refused"
    place.directory.chmod(0o755)
    path.chmod(0o666)
    assert other_user() == "dropped"


def test_openapi_names_every_route_and_its_errors(server: Beside) -> None:
    found = server.call("GET", "/openapi.json")
    pages = {"/", "/docs", "/openapi.json"}
    assert set(found["paths"]) == {needed.partition(" ")[2] for needed in NEEDS} - pages
    for route in found["paths"].values():
        for operation in route.values():
            assert operation["description"]
            assert {"400", "404", "429", "500"} <= set(operation["responses"])


def test_the_answer_to_a_foreign_server_is_refused_by_the_caller(place: Place) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root to become another user")
    place.directory.chmod(0o777)
    path = place.directory / "server.sock"
    code = (
        "import os, socket, sys\n"
        "os.setuid(65534); listener = socket.socket(socket.AF_UNIX); listener.bind(sys.argv[1])\n"
        "listener.listen(); os.chmod(sys.argv[1], 0o666); print('ready', flush=True); sys.stdin.read()\n"
    )
    impostor = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/"
    )
    try:
        assert impostor.stdout is not None and impostor.stdout.readline() == b"ready\n"
        with pytest.raises(BY_CODE["not_yours"]):
            wire.call(path, "GET", "/v1/health", timeout_s=5)
    finally:
        impostor.communicate(b"")
        path.unlink(missing_ok=True)
        place.directory.chmod(0o700)
