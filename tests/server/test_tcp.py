"""TCP: nobody without the token, no web page, no other name, nothing in clear beyond this host."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import shutil
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import ROOT, Place
from probe.base.errors import SettingInvalid
from probe.base.settings import Settings
from probe.server.http import auth
from probe.server.runtime import tokens
from probe.server.runtime.allowance import BURST
from server.beside import Beside, Writer, until


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class Tcp:
    """The server's TCP side, asked with whatever headers a test wants."""

    def __init__(self, beside: Beside, **environ: str) -> None:
        self.port = free_port()
        beside.start(PROBE_LISTEN=f"127.0.0.1:{self.port}", **environ)
        self.directory = beside.directory

    @property
    def token(self) -> str:
        return (self.directory / "token").read_text().strip()

    def ask(self, method: str, target: str, headers: dict[str, str], body: object = None) -> tuple[int, Any]:
        """(status, JSON) of a request with exactly these headers."""
        data = b"" if body is None else json.dumps(body).encode()
        lines = {"Connection": "close", "Content-Length": str(len(data)), **headers}
        if data:
            lines["Content-Type"] = "application/json"
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        with socket.create_connection(("127.0.0.1", self.port), 60) as connection:
            connection.sendall(f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode() + data)
            answer = b""
            while part := connection.recv(1 << 16):
                answer += part
        head_bytes, _, content = answer.partition(b"\r\n\r\n")
        assert b"access-control" not in head_bytes.lower()
        is_json = b"content-type: application/json" in head_bytes.lower()
        return int(head_bytes.split()[1]), json.loads(content) if is_json else content.decode()

    def good(self, **more: str) -> dict[str, str]:
        return {"Host": f"127.0.0.1:{self.port}", "Authorization": f"Bearer {self.token}", **more}


def test_the_right_token_asks_everything_but_eval_and_folders(
    beside: Beside, record: Callable[..., Writer]
) -> None:
    writer = record(job="gpt")
    writer.tell("write 3")
    tcp = Tcp(beside)
    assert stat.S_IMODE((beside.directory / "token").stat().st_mode) == 0o600
    assert len(tcp.token) >= 43
    for target in ("/v1/health", "/v1/processes", "/v1/tables", "/v1/backtrace?endpoint=gpt"):
        assert tcp.ask("GET", target, tcp.good())[0] == 200, target
    query = {"endpoint": "gpt/0", "sql": "SELECT count(*) FROM python.steps"}
    status, answer = tcp.ask("POST", "/v1/query", tcp.good(), query)
    assert (status, answer["rows"]) == (200, [[3]])
    snippet = {"endpoint": "gpt", "code": "1"}
    assert tcp.ask("POST", "/v1/eval", tcp.good(), snippet)[0] == 403
    folder = {**query, "endpoint": str(writer.folder)}
    assert tcp.ask("POST", "/v1/query", tcp.good(), folder)[0] == 403
    assert beside.call("POST", "/v1/eval", snippet)["value"] == "1", "the unix socket is not affected"
    beside.kill()
    tcp = Tcp(beside, PROBE_ALLOW_EVAL="1")
    assert tcp.ask("POST", "/v1/eval", tcp.good(), snippet)[0] == 200
    everywhere = beside.log() + "".join(beside.place.processes())
    for process in beside.place.processes():
        everywhere += Path(f"/proc/{process.split()[0]}/environ").read_bytes().decode(errors="replace")
    assert tcp.token not in everywhere


def test_a_server_that_was_there_first_listens_once_a_living_job_asks_for_it(
    beside: Beside, record: Callable[..., Writer]
) -> None:
    """`probe ps` starts a server without PROBE_LISTEN; the job that has it comes later."""
    beside.start()
    pid = beside.call("GET", "/v1/health")["pid"]
    port = free_port()
    record({"PROBE_LISTEN": "0.0.0.0:0"}, job="bare")  # without TLS: that is refused, and said
    until(lambda: "TCP stays off, though a job asks for 0.0.0.0" in beside.log(), "the refusal")
    record({"PROBE_LISTEN": f"127.0.0.1:{port}", "PROBE_ALLOW_EVAL": "1"}, job="gpt").tell("write 3")
    facts = beside.directory / "server.json"
    until(lambda: json.loads(facts.read_text())["url"] == f"http://127.0.0.1:{port}", "a server that listens")
    assert beside.call("GET", "/v1/health")["pid"] == pid
    tcp = Tcp.__new__(Tcp)
    tcp.port, tcp.directory = port, beside.directory
    query = {"endpoint": "gpt/0", "sql": "SELECT count(*) FROM python.steps"}
    assert tcp.ask("POST", "/v1/query", tcp.good(), query)[1]["rows"] == [[3]]
    assert tcp.ask("POST", "/v1/eval", tcp.good(), {"endpoint": "gpt", "code": "1"})[0] == 200
    assert tcp.ask("POST", "/v1/query", {"Host": f"127.0.0.1:{port}"}, query)[0] == 401


def test_wrong_tokens_are_refused_and_slowed_and_cannot_lock_the_right_one_out(beside: Beside) -> None:
    tcp = Tcp(beside)
    token = tcp.token
    host = {"Host": f"localhost:{tcp.port}"}
    wrong = [
        "", "Bearer", "Bearer ", "Bearer x", f"Bearer {token[:-1]}", f"Bearer {token}x", f"Bearer  {token}",
        f"Basic {token}", token, f"Bearer {token.swapcase()}", "Bearer é\U0001f986", f"bearer\t{token}",
    ]
    statuses = [tcp.ask("GET", "/v1/health", {**host, "Authorization": value})[0] for value in wrong]
    statuses.append(tcp.ask("GET", "/v1/health", host)[0])
    # Headers that are no HTTP at all are refused before anybody looks at the token.
    assert set(statuses) <= {400, 401, 429} and statuses.count(401) >= 8 and 429 in statuses
    status, answer = tcp.ask("GET", f"/v1/health?token={token}", host)
    assert status in (401, 429) and answer["error"]["hint"]
    assert tcp.ask("GET", "/v1/health", tcp.good())[0] == 200
    assert tcp.ask("GET", "/v1/health", {**tcp.good(), "Authorization": f"bearer {token}"})[0] == 200


def test_a_request_without_a_token_is_told_how_to_send_one(beside: Beside) -> None:
    tcp = Tcp(beside)
    with socket.create_connection(("127.0.0.1", tcp.port), 60) as connection:
        connection.sendall(f"GET / HTTP/1.1\r\nHost: localhost:{tcp.port}\r\n\r\n".encode())
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 401 ") and b'www-authenticate: Bearer realm="probe"' in head
    error = json.loads(body)["error"]
    assert error["message"] == "the request has no token" and "`Authorization: Bearer TOKEN`" in error["hint"]


def test_the_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []

    def compare(left: bytes, right: bytes) -> bool:
        seen.append((len(left), len(right)))
        return hmac.compare_digest(left, right)

    class Hmac:
        compare_digest = staticmethod(compare)

    async def nothing(*_: Any) -> Any:
        return None

    monkeypatch.setattr(auth, "hmac", Hmac)
    gate = auth.TcpGate(nothing, {"operator": "t" * 43, "viewer": "v" * 43}, "127.0.0.1", 1)
    for token in (b"x", b"t" * 43, b"v" * 43, b"t" * 42):
        headers = [(b"host", b"127.0.0.1:1"), (b"authorization", b"Bearer " + token)]
        scope = {"type": "http", "method": "GET", "path": "/v1/health", "headers": headers}
        asyncio.run(gate(scope, nothing, nothing))
    assert seen == [(32, 32)] * 2 * 4, "both are compared, whichever is right"


def test_only_its_own_names_are_a_host(beside: Beside) -> None:
    tcp = Tcp(beside)
    port = tcp.port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"LOCALHOST:{port}", f"[::1]:{port}"):
        assert tcp.ask("GET", "/v1/health", tcp.good(Host=host))[0] == 200, host
    names = (
        "", "localhost", "127.0.0.1", "127.0.0.1:80", f"localhost6:{port}", f"0:{port}", f"0x7f.1:{port}",
        f"127.1:{port}", f"017700000001:{port}", f"2130706433:{port}", f"localhost.:{port}",
        f"localhost.evil:{port}", f"evil.localhost:{port}", f"evil@localhost:{port}",
        f"localhost@evil:{port}",
        f"localhost:{port}.evil", f"localhost:{port}:80", f"localhost:0{port}", f"localhost:+{port}",
        f"localhost: {port}", f"[::1%25lo]:{port}", f"::1:{port}", f"[0:0:0:0:0:0:0:1]:{port}",
        f"[::ffff:127.0.0.1]:{port}", f"127.0.0.2:{port}", f"0.0.0.0:{port}", f"example.invalid:{port}",
        f"localhost#:{port}", f"localhost/:{port}", f"localhost,evil:{port}", f"http://localhost:{port}",
        f"ｌocalhost:{port}", f"localhost\t:{port}", f"*:{port}", f"127.0.0.1.nip.io:{port}",
        f"%6c%6fcalhost:{port}", f"localhost:{port}, localhost:{port}", f"127.0.0.1:{port} ", "localhost:",
        ":", f":{port}",
    )
    accepted = [host for host in names if tcp.ask("GET", "/v1/health", tcp.good(Host=host))[0] == 200]
    assert accepted in ([], [f"127.0.0.1:{port} "]), "space around a header's value is no part of it"
    assert len(names) >= 40


def test_requests_of_web_pages_are_refused(beside: Beside) -> None:
    tcp = Tcp(beside)
    own = f"http://127.0.0.1:{tcp.port}"
    for origin in ("null", "http://evil.invalid", own, "", "file://", "chrome-extension://x", "*"):
        assert tcp.ask("GET", "/v1/health", tcp.good(Origin=origin))[0] == 403, origin
        assert tcp.ask("OPTIONS", "/v1/query", tcp.good(Origin=origin))[0] == 403, origin
    refused = dict.fromkeys(("cross-site", "same-site", "same-origin", "x"), 403)
    for site, status in {**refused, "none": 200}.items():
        assert tcp.ask("GET", "/v1/health", tcp.good(**{"Sec-Fetch-Site": site}))[0] == status, site


def test_a_storm_of_requests_is_told_to_wait(beside: Beside) -> None:
    tcp = Tcp(beside)
    statuses = [tcp.ask("GET", "/v1/tables", tcp.good())[0] for _ in range(200)]
    assert set(statuses) == {200, 429} and statuses[:BURST] == [200] * BURST


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({"PROBE_LISTEN": "127.0.0.1:7130"}, ""),
        ({"PROBE_LISTEN": "localhost:7130"}, ""),
        ({"PROBE_LISTEN": "[::1]:7130"}, ""),
        ({"PROBE_LISTEN": "0.0.0.0:7130"}, "no TLS"),
        ({"PROBE_LISTEN": "[::]:7130"}, "no TLS"),
        ({"PROBE_LISTEN": "192.0.2.7:7130"}, "no TLS"),
        ({"PROBE_LISTEN": "gpu-host.invalid:7130"}, "no TLS"),
        ({"PROBE_LISTEN": "0.0.0.0:7130", "PROBE_INSECURE_NO_TLS": "1"}, ""),
        ({"PROBE_LISTEN": "0.0.0.0:7130", "PROBE_TLS_CERTIFICATE": "/c", "PROBE_TLS_KEY": "/k"}, ""),
        ({"PROBE_LISTEN": "127.0.0.1:7130", "PROBE_TLS_CERTIFICATE": "/c"}, "must be set together"),
        ({"PROBE_LISTEN": "127.0.0.1"}, "not host:port"),
        ({"PROBE_LISTEN": ":7130"}, "not host:port"),
        ({"PROBE_LISTEN": "127.0.0.1:http"}, "not host:port"),
        ({"PROBE_LISTEN": "127.0.0.1:99999"}, "not host:port"),
    ],
)
def test_beyond_loopback_it_refuses_to_start_in_clear(environ: dict[str, str], problem: str) -> None:
    if not problem:
        auth.check_listen(Settings(environ))
        return
    with pytest.raises(SettingInvalid, match=problem):
        auth.check_listen(Settings(environ))


def test_a_server_that_may_not_listen_ends_with_the_status_of_a_bad_setting(place: Place) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "probe.server"],
        env=place.environ(PYTHONPATH=str(ROOT), PROBE_LISTEN="0.0.0.0:0"), capture_output=True, check=False,
    )
    assert found.returncode == 2 and b"TLS" in found.stderr and b"Traceback" not in found.stderr


def test_a_token_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    token = tmp_path / "token"
    with pytest.raises(SettingInvalid, match="cannot be read"):
        tokens.load_token(str(token), tmp_path / "usual")
    token.write_text("t" * 43 + "\n")
    for mode in (0o644, 0o640, 0o604, 0o660):
        token.chmod(mode)
        with pytest.raises(SettingInvalid, match="read by others"):
            tokens.load_token(str(token), tmp_path / "usual")
    token.chmod(0o600)
    assert tokens.load_token(str(token), tmp_path / "usual") == "t" * 43
    for content in ("", "short", "é" * 60, "t" * 20 + " " + "t" * 30):
        token.write_text(content)
        with pytest.raises(SettingInvalid, match="too short"):
            tokens.load_token(str(token), tmp_path / "usual")
    link = tmp_path / "link"
    link.symlink_to(token)
    with pytest.raises(SettingInvalid, match="cannot be read"):
        tokens.load_token(str(link), tmp_path / "usual")


def test_a_taken_port_costs_tcp_and_not_the_server(beside: Beside) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        beside.start(PROBE_LISTEN=f"127.0.0.1:{taken.getsockname()[1]}")
        assert beside.call("GET", "/v1/health")["status"] == "ok"
        until(lambda: "TCP is off" in beside.log(), "it says so")


def test_tls_protects_the_token(beside: Beside, tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl to make a certificate")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True, env={**os.environ, "RANDFILE": str(tmp_path / "rnd")},
    )
    tcp = Tcp(beside, PROBE_TLS_CERTIFICATE=str(certificate), PROBE_TLS_KEY=str(key))
    context = ssl.create_default_context(cafile=str(certificate))
    with (
        socket.create_connection(("127.0.0.1", tcp.port), 60) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        head = f"GET /v1/health HTTP/1.1\r\nHost: localhost:{tcp.port}\r\nConnection: close\r\n"
        connection.sendall(f"{head}Authorization: Bearer {tcp.token}\r\n\r\n".encode())
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
    with socket.create_connection(("127.0.0.1", tcp.port), 60) as plain:
        plain.sendall(b"GET /v1/health HTTP/1.1\r\n\r\n")
        assert not plain.recv(1 << 16).startswith(b"HTTP/1.1 200")
