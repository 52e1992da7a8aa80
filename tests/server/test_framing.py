"""Requests as the agent and the server read them: what is in doubt is refused, and nothing is waited for."""

from __future__ import annotations

import socket
from contextlib import closing

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.base import wire
from probe.base.errors import BadRequest, ProbeError, TooLarge
from server.beside import Beside
from server.test_http import dial, read_to_end
from server.test_http import server as server  # the fixture

GOOD = (
    b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v1/health HTTP/1.0\r\n\r\n",
    b'POST /v1/query HTTP/1.1\r\nhost:a\r\nContent-Length: 2\r\nX-Odd:\t a b\xe9 \t\r\nEmpty:\r\n\r\n{}',
    b"GET /v1/health?a=1&b=%20 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
)
POST = b"POST /v1/query HTTP/1.1\r\nHost: a\r\n"
IN_DOUBT = {
    "bare LF": b"GET /v1/health HTTP/1.1\nHost: a\n\n",
    "bare LF in a header": b"GET /v1/health HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
    "bare LF before the end": b"GET /v1/health HTTP/1.1\r\nHost: a\r\nX: b\n\r\n",
    "bare CR": b"GET /v1/health HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n",
    "bare CR at the end": b"GET /v1/health HTTP/1.1\r\nHost: a\r\r\n\r\n",
    "NUL": b"GET /v1/health HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n",
    "control character": b"GET /v1/health HTTP/1.1\r\nHost: a\r\nX: a\x1bb\r\n\r\n",
    "folded": b"GET /v1/health HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
    "folded by a tab": b"GET /v1/health HTTP/1.1\r\nHost: a\r\nX: a\r\n\tContent-Length: 5\r\n\r\n",
    "space before the first header": b"GET /v1/health HTTP/1.1\r\n Host: a\r\n\r\n",
    "space before a colon": b"GET /v1/health HTTP/1.1\r\nHost : a\r\n\r\n",
    "length with a space before the colon": POST + b"Content-Length : 2\r\n\r\n{}",
    "no name": b"GET /v1/health HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n",
    "no colon": b"GET /v1/health HTTP/1.1\r\nHost: a\r\nnothing\r\n\r\n",
    "no host": b"GET /v1/health HTTP/1.1\r\nX: a\r\n\r\n",
    "two hosts": b"GET /v1/health HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "two lengths that differ": POST + b"Content-Length: 0\r\nContent-Length: 2\r\n\r\n{}",
    "lengths in a list": POST + b"Content-Length: 2, 2\r\n\r\n{}",
    "length with a sign": POST + b"Content-Length: +2\r\n\r\n{}",
    "negative length": POST + b"Content-Length: -2\r\n\r\n{}",
    "length in hex": POST + b"Content-Length: 0x2\r\n\r\n{}",
    "length of other digits": POST + "Content-Length: ２\r\n\r\n{}".encode(),
    "length with a point": POST + b"Content-Length: 2.0\r\n\r\n{}",
    "length with a line under": POST + b"Content-Length: 1_0\r\n\r\n{}",
    "no length": POST + b"Content-Length:\r\n\r\n{}",
    "chunks": POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks with extensions": POST + b"Transfer-Encoding: chunked\r\n\r\n2;a=\"\n\"\r\n{}\r\n0\r\n\r\n",
    "length and chunks": POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
    "chunks by another spelling": POST + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "two spaces": b"GET  /v1/health HTTP/1.1\r\nHost: a\r\n\r\n",
    "tab for a space": b"GET\t/v1/health HTTP/1.1\r\nHost: a\r\n\r\n",
    "other version": b"GET /v1/health HTTP/1.10\r\nHost: a\r\n\r\n",
    "lower version": b"GET /v1/health http/1.1\r\nHost: a\r\n\r\n",
    "no version": b"GET /v1/health\r\nHost: a\r\n\r\n",
    "letters beyond ASCII": "GET /v1/heälth HTTP/1.1\r\nHost: a\r\n\r\n".encode(),
    "an empty line first": b"\r\nGET /v1/health HTTP/1.1\r\nHost: a\r\n\r\n",
    "nothing": b"\r\n\r\n",
}
HUGE = POST + b"Content-Length: %s\r\n\r\n"
TOO_LARGE = {
    "huge length": HUGE % (b"9" * 5000), "length beyond any number": HUGE % b"99999999999999999999",
    "length": HUGE % str(wire.LARGEST_BODY_BYTES + 1).encode(),
    "head": b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * wire.LARGEST_HEAD_BYTES + b"\r\n\r\n",
    "head without an end": b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 2 * wire.LARGEST_HEAD_BYTES,
}


def read(data: bytes, *, ends: bool = False) -> wire.Request:
    """What the agent's reader makes of these bytes; without `ends` the other side stays and says no more."""
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        theirs.sendall(data)
        if ends:
            theirs.shutdown(socket.SHUT_WR)
        return wire.read_request(ours, 20.0)


@pytest.mark.parametrize("data", GOOD)
def test_a_request_without_doubt_is_read(data: bytes) -> None:
    found = read(data)
    method, target, *_ = data.decode("latin-1").split()
    assert (found.method, found.path) == (method, target.partition("?")[0])
    assert found.body == ({} if data.endswith(b"{}") else None)
    parser = h11.Connection(h11.SERVER)
    parser.receive_data(data)
    assert isinstance(parser.next_event(), h11.Request), "others read it, too"


@pytest.mark.parametrize("name", IN_DOUBT)
def test_a_request_in_doubt_is_refused_by_the_agent_at_once(name: str) -> None:
    with pytest.raises(BadRequest):
        read(IN_DOUBT[name])


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_is_too_large_is_refused_before_it_is_read(name: str) -> None:
    with pytest.raises(TooLarge):
        read(TOO_LARGE[name])


def test_a_request_in_doubt_is_refused_by_the_server(server: Beside) -> None:
    for name, data in {**IN_DOUBT, **TOO_LARGE}.items():
        with dial(server) as connection:
            connection.sendall(data)
            status = read_to_end(connection)[:12]
        assert status == (b"HTTP/1.1 413" if name in TOO_LARGE else b"HTTP/1.1 400"), (name, status)


def test_a_second_request_in_doubt_on_the_same_connection_is_refused(server: Beside) -> None:
    for name, data in IN_DOUBT.items():
        with dial(server) as connection:
            connection.sendall(GOOD[0] + data)
            answers = read_to_end(connection)
        assert answers.count(b"HTTP/1.1 200") == 1 and answers.count(b"HTTP/1.1 400") == 1, (name, answers)


def test_requests_one_after_the_other_are_answered(server: Beside) -> None:
    last = GOOD[0].replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with dial(server) as connection:
        connection.sendall(GOOD[0] * 3 + last)
        assert read_to_end(connection).count(b"HTTP/1.1 200") == 4


@given(st.binary(max_size=300))
def test_no_bytes_make_the_reader_fail_in_another_way(data: bytes) -> None:
    with pytest.raises(ProbeError):
        read(data + b"\r\n\r\n" if data.count(b"\r\n") else data, ends=True)
