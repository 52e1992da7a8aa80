from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from command_harness import TIMEOUT_S, Result

from probe.base.errors import Forbidden, TokenInvalid
from probe.client.transport import TcpTransport

TOKEN = "a-token-of-this-test"


class _Handler(BaseHTTPRequestHandler):
    server: _Far

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "null")
        self.server.asked.append((self.path, body))
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            error = TokenInvalid("wrong token")
            self._answer(error.status, json.dumps(error.as_dict()))
        else:
            self._answer(*self.server.answer)

    do_GET = do_POST

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", f"http://localhost:{self.server.server_port}/elsewhere")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        pass


class _Far(HTTPServer):
    """A server on loopback, on a port of the system's choice."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, Any]] = []
        self.answer = (200, json.dumps({"output": "", "dropped_bytes": 0, "value": "2", "error": None}))
        self.thread = threading.Thread(target=self.serve_forever, args=(0.02,), name="far-server")

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A refused handshake is what some tests are about."""


@pytest.fixture
def far() -> Iterator[_Far]:
    made = _Far()
    made.thread.start()
    yield made
    made.shutdown()
    made.server_close()
    made.thread.join(TIMEOUT_S)
    assert not made.thread.is_alive()


@pytest.fixture
def token(tmp_path: Path) -> str:
    path = tmp_path / "far-token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o600)
    return str(path)


def test_tcp_asks_with_the_token(far: _Far, token: str, command: Callable[..., Result]) -> None:
    result = command(f"127.0.0.1:{far.server_port}/gpt/1", "eval", "1 + 1", PROBE_TOKEN_FILE=token)
    assert result == Result(0, "2\n", "")
    body = {"endpoint": "gpt/1", "code": "1 + 1", "timeout_s": 10.0, "wait_s": 30.0}
    assert far.asked == [("/v1/eval", body)]


def test_a_proxy_of_the_environment_never_sees_the_token(
    far: _Far, token: str, process: Callable[..., Result]
) -> None:
    nowhere = "http://127.0.0.1:9"
    result = process(
        f"127.0.0.1:{far.server_port}", "eval", "1", PROBE_TOKEN_FILE=token,
        HTTP_PROXY=nowhere, http_proxy=nowhere, ALL_PROXY=nowhere, NO_PROXY="", no_proxy="",
    )
    assert result == Result(0, "2\n", "")


def test_without_a_token_nothing_is_asked(far: _Far, command: Callable[..., Result]) -> None:
    result = command(f"127.0.0.1:{far.server_port}", "eval", "1")
    assert (result.code, far.asked) == (4, [])
    assert "cannot read the token" in result.err and "PROBE_TOKEN_FILE" in result.err


def test_a_wrong_token_is_an_access_error(far: _Far, token: str, command: Callable[..., Result]) -> None:
    Path(token).write_text("another")
    result = command(f"127.0.0.1:{far.server_port}", "eval", "1", PROBE_TOKEN_FILE=token)
    assert result.code == 4 and "wrong token" in result.err


def test_a_viewer_is_told_its_role_and_what_it_takes(
    far: _Far, token: str, command: Callable[..., Result]
) -> None:
    refused = Forbidden(
        "act needs the role operator, and this token has the role viewer", hint="Name a file with …"
    )
    far.answer = (refused.status, json.dumps(refused.as_dict()))
    result = command(f"127.0.0.1:{far.server_port}", "lr", "--scale", "0.5", PROBE_TOKEN_FILE=token)
    said = f"probe: {refused.message}\n  next: Name a file with …\n"
    assert result == Result(4, "", said)


def test_over_tcp_a_file_name_is_the_jobs_to_place(
    far: _Far, token: str, command: Callable[..., Result]
) -> None:
    far.answer = (200, json.dumps({"id": "7-1", "what": "saved"}))
    command(f"127.0.0.1:{far.server_port}", "checkpoint", "rescue.pt", PROBE_TOKEN_FILE=token)
    [(path, body)] = far.asked
    assert (path, body["arguments"]) == ("/v1/act", {"path": "rescue.pt"})


def test_the_token_does_not_follow_a_redirect(far: _Far, token: str, command: Callable[..., Result]) -> None:
    far.answer = (307, "")
    result = command(f"127.0.0.1:{far.server_port}", "eval", "1", PROBE_TOKEN_FILE=token)
    assert result.code == 3 and "status 307" in result.err
    assert [path for path, _ in far.asked] == ["/v1/eval"]


def test_a_port_where_nothing_listens_is_an_endpoint_error(
    token: str, command: Callable[..., Result]
) -> None:
    closed = _Far()
    closed.server_close()
    result = command(f"127.0.0.1:{closed.server_port}", "eval", "1", PROBE_TOKEN_FILE=token)
    assert result.code == 3 and "PROBE_LISTEN" in result.err


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_tls_is_spoken_and_the_certificate_is_checked(
    far: _Far, token: str, command: Callable[..., Result], tmp_path: Path
) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate,
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "1"],
        check=True, capture_output=True, timeout=TIMEOUT_S,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    far.socket = context.wrap_socket(far.socket, server_side=True)
    endpoint = f"localhost:{far.server_port}"

    plain = command(f"http://{endpoint}", "eval", "1", PROBE_TOKEN_FILE=token)
    assert plain.code == 3 and "https://" in plain.err
    unknown = command(f"https://{endpoint}", "eval", "1", PROBE_TOKEN_FILE=token)
    assert unknown.code == 3 and "PROBE_TLS_CERTIFICATE" in unknown.err
    assert far.asked == []
    known = {"PROBE_TOKEN_FILE": token, "PROBE_TLS_CERTIFICATE": str(certificate)}
    assert command(endpoint, "eval", "1", **known) == Result(0, "2\n", "")
    other = command(f"https://127.0.0.1:{far.server_port}", "eval", "1", **known)
    assert other.code == 3, "the certificate is for another name"
    missing = command(endpoint, "eval", "1", **{**known, "PROBE_TLS_CERTIFICATE": "/nowhere.pem"})
    assert missing.code == 2 and "PROBE_TLS_CERTIFICATE=/nowhere.pem" in missing.err


def test_the_parts_of_an_answer_come_over_tcp_too(far: _Far) -> None:
    far.answer = (200, '{"part": {"findings": []}}\n{"findings": []}\n')
    url = f"http://127.0.0.1:{far.server_port}"
    followed = TcpTransport(url, TOKEN, "").follow("/v1/diagnose?follow=1", TIMEOUT_S)
    assert list(followed) == [{"part": {"findings": []}}, {"findings": []}]
    assert far.asked == [("/v1/diagnose?follow=1", None)]
    with pytest.raises(TokenInvalid):
        list(TcpTransport(url, "another", "").follow("/v1/diagnose?follow=1", TIMEOUT_S))
    far.answer = (200, '{"part": {}}\n{"error": {"code": "forbidden", "message": "no more"}}\n')
    with pytest.raises(Forbidden, match="no more"):
        list(TcpTransport(url, TOKEN, "").follow("/v1/diagnose?follow=1", TIMEOUT_S))
