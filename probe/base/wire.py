"""Minimal HTTP/1.1 over sockets for the agent, the server and the command.

The agent answers with `read_request` and `write_response`; clients of the agent, and of the server over its
unix socket, use `call`. One request per connection. Own code because `http.client` costs the command 30 ms
at start and `http.server` costs the job memory. Standard library only; never on the hot path.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from probe.base import descriptors
from probe.base.errors import AgentUnreachable, BadRequest, NotYours, ProbeError, TooLarge, from_dict

HERE = re.compile(rb"(?:localhost|127\.0\.0\.1|\[::1\])(?::[0-9]{1,5})?", re.IGNORECASE)
"""A Host header of this machine, on any port: `ssh -L` may forward a different one."""
ROLE_HEADER = "probe-role"
"""This header limits a request to a role, for any sender."""
LARGEST_HEAD_BYTES = 16 << 10
LARGEST_BODY_BYTES = 1 << 20
"""Limit of a request's body."""
LARGEST_ANSWER_BYTES = 256 << 20
_LONGEST_UNIX_PATH = 100
_FULL_QUEUE_S = 0.01
"""Time between two attempts to connect while the socket's queue is full."""


class Request(NamedTuple):
    """A parsed request; `body` is decoded JSON or None."""

    method: str
    path: str
    query: dict[str, str]
    body: Any


class Peer(NamedTuple):
    """The process at the other end of a unix socket."""

    pid: int
    uid: int


def peer_of(connection: socket.socket) -> Peer:
    """The process at the other end, from the kernel."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", data)
    return Peer(pid, uid)


@contextlib.contextmanager
def unix_address(path: Path) -> Iterator[str]:
    """An address for a path of any length."""
    if len(os.fsencode(path)) <= _LONGEST_UNIX_PATH:
        yield str(path)
        return
    with descriptors.opened(path.parent, os.O_PATH | os.O_DIRECTORY) as folder:
        yield f"/proc/self/fd/{folder.fileno()}/{path.name}"


def listen_unix(path: Path, backlog: int = 128) -> descriptors.Socket:
    """A listening socket for this user only; replaces a stale one."""
    listener = descriptors.Socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    # The folder is 0700, so nobody can connect between bind and chmod. A umask would be process-wide and
    # could change the mode of a file that the job makes at the same time.
    try:
        with unix_address(path) as address:
            listener.bind(address)
        os.chmod(path, 0o600)
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


def connect_unix(path: Path, timeout_s: float) -> descriptors.Socket:
    """Connect to the socket at `path`; refuses another user's server. Raises `BlockingIOError` when its
    queue stays full for `timeout_s`."""
    connection = descriptors.Socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout_s)
    try:
        with unix_address(path) as address:
            _connect(connection, address, time.monotonic() + timeout_s)
        if peer_of(connection).uid not in (os.getuid(), 0):
            raise NotYours(f"{path} is served by user id {peer_of(connection).uid}")
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(connection: socket.socket, address: str, deadline: float) -> None:
    """Connect; a full queue is an immediate error on unix sockets, so try again until `deadline`."""
    while True:
        try:
            connection.connect(address)
            return
        except BlockingIOError:
            if time.monotonic() + _FULL_QUEUE_S > deadline:
                raise
            time.sleep(_FULL_QUEUE_S)


def call(
    path: Path, method: str, target: str, body: object = None, *, timeout_s: float
) -> Any:
    """Call the server or agent at a unix socket and return its JSON.

    Raises the `ProbeError` that the answer describes, `AgentUnreachable` without an answer within
    `timeout_s`, `OSError` when nothing listens.
    """
    try:
        answer = exchange(path, request_bytes(method, target, body), timeout_s)
    except TimeoutError:
        raise AgentUnreachable(f"no answer from {path.name} within {timeout_s:g} s") from None
    return decode_answer(answer)


def exchange(path: Path, request: bytes, timeout_s: float) -> bytes:
    """Send a whole request to a unix socket and return the whole answer. Raises `TimeoutError` without an
    answer within `timeout_s`, `OSError` when nothing listens."""
    deadline = time.monotonic() + timeout_s
    with connect_unix(path, timeout_s) as connection:
        connection.sendall(request)
        return _read_all(connection, deadline)


class Reply(NamedTuple):
    """An answer as it came: status, headers by their names in lower case, content."""

    status: int
    headers: dict[str, str]
    content: bytes


def exchange_raw(
    path: Path, method: str, target: str, body: bytes, headers: dict[str, str], timeout_s: float
) -> Reply:
    """As `exchange`, with the caller's headers; returns the answer's, too. Raises `BadRequest` for a target
    or a header that is not one line of ASCII."""
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in {**headers, "Content-Length": str(len(body))}.items()]
    if not all(line.isascii() and line.isprintable() for line in lines):
        raise BadRequest("the address or a header has a character that no request may have")
    answer = exchange(path, "\r\n".join([*lines, "", ""]).encode("ascii") + body, timeout_s)
    status, content = _split_answer(answer)
    head = answer.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
    given = (line.partition(":") for line in head)
    return Reply(status, {name.lower(): value.strip() for name, _, value in given}, content)


def lines(path: Path, target: str, timeout_s: float) -> Iterator[bytes]:
    """GET `target` from the server at a unix socket: the lines of its answer, each as soon as it arrives.

    Raises as `exchange` does, and the `ProbeError` of an answer that is an error."""
    deadline = time.monotonic() + timeout_s
    with connect_unix(path, timeout_s) as connection:
        # HTTP/1.0, so that the answer comes without chunks and ends with the connection.
        connection.sendall(f"GET {target} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode("ascii"))
        data, ended = b"", False
        while b"\r\n\r\n" not in data and not ended:
            part = _some(connection, deadline)
            data, ended = data + part, not part
        if data.split(b" ", 2)[1:2] != [b"200"]:
            decode_answer(data + _read_all(connection, deadline))
            raise ConnectionError("the answer is not a stream of lines")
        data = data.partition(b"\r\n\r\n")[2]
        while not ended:
            *whole, data = data.split(b"\n")
            yield from whole
            part = _some(connection, deadline)
            data, ended = data + part, not part
        yield from data.splitlines()


def request_bytes(method: str, target: str, body: object = None) -> bytes:
    """A whole request that closes its connection."""
    data = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode("ascii") + data


def decode_answer(answer: bytes) -> Any:
    """JSON of a whole answer; raises the `ProbeError` it describes, `ConnectionError` if it is truncated."""
    status, content = _split_answer(answer)
    try:
        decoded = json.loads(content) if content else None
    except ValueError:
        raise from_dict(None, status) from None
    if status >= 400:
        raise from_dict(decoded, status)
    return decoded


def _read_all(connection: socket.socket, deadline: float) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        part = _some(connection, deadline)
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
        if size > LARGEST_ANSWER_BYTES:
            raise TooLarge(f"the answer is longer than {LARGEST_ANSWER_BYTES} bytes")


def _some(connection: socket.socket, deadline: float) -> bytes:
    """The next bytes; empty at the end of the stream. Raises `TimeoutError` after the deadline."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    connection.settimeout(left)
    return connection.recv(1 << 18)


def _split_answer(answer: bytes) -> tuple[int, bytes]:
    head, ended, content = answer.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    if answer and not ended:
        raise ConnectionError("the answer was cut short")
    try:
        status = int(lines[0].split(" ")[1])
    except (IndexError, ValueError):
        raise ConnectionError("the connection was closed without an answer") from None
    headers = [line.lower() for line in lines[1:]]
    if any(line.startswith("transfer-encoding:") and "chunked" in line for line in headers):
        return status, _unchunk(content)
    lengths = [line.partition(":")[2].strip() for line in headers if line.startswith("content-length:")]
    if any(length.isdigit() and int(length) > len(content) for length in lengths):
        raise ConnectionError("the answer was cut short")
    return status, content


def _unchunk(content: bytes) -> bytes:
    parts: list[bytes] = []
    position = 0
    while True:
        end = content.find(b"\r\n", position)
        if end < 0:
            raise ConnectionError("the answer was cut short")
        size = int(content[position:end].split(b";")[0], 16)
        if size == 0:
            return b"".join(parts)
        if end + 2 + size > len(content):
            raise ConnectionError("the answer was cut short")
        parts.append(content[end + 2 : end + 2 + size])
        position = end + 2 + size + 2


class Head(NamedTuple):
    """The head of a request, unambiguous for every reader on the way."""

    method: str
    target: str
    length: int
    """Bytes of the body."""
    size: int
    """Bytes of the head, including the empty line."""


def head_of(data: bytes) -> Head | None:
    """The head of the request that `data` begins with; None while incomplete.

    Raises `TooLarge`, or `BadRequest` for everything that two parsers may read differently (RFC 9112): lines
    that do not end in CR LF or continue in the next, control characters, space before a colon, more than one
    Host or length, a length other than digits, chunked bodies."""
    end = data.find(b"\r\n\r\n")
    head = data[:end] if end >= 0 else data[: LARGEST_HEAD_BYTES + 1]
    if _UNCLEAR.search(head):
        raise BadRequest("a header line does not end in CR LF, or has a control character")
    if len(head) > LARGEST_HEAD_BYTES:
        raise TooLarge(f"the request's headers are longer than {LARGEST_HEAD_BYTES} bytes")
    if end < 0:
        return None
    first, *lines = head.split(b"\r\n")
    words = _REQUEST.fullmatch(first)
    if words is None:
        raise BadRequest("not an HTTP/1.1 request")
    headers: dict[bytes, list[bytes]] = {}
    for line in lines:
        found = _HEADER.fullmatch(line)
        if found is None:
            raise BadRequest("a header is not `Name: value` on one line")
        headers.setdefault(found[1].lower(), []).append(found[2])
    hosts = len(headers.get(b"host", ()))
    if hosts > 1 or (hosts == 0 and words[3] != b"HTTP/1.0"):
        raise BadRequest("a request needs exactly one Host header")
    if b"transfer-encoding" in headers:
        raise BadRequest("chunked bodies are not accepted", hint="Send the body with a Content-Length.")
    length = _length(headers.get(b"content-length", []))
    return Head(words[1].decode(), words[2].decode(), length, end + 4)


_UNCLEAR = re.compile(rb"(?<!\r)\n|\r(?!\n|\Z)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST = re.compile(rb"(" + _TOKEN + rb") (/[!-~]*) (HTTP/1\.[01])")
_HEADER = re.compile(rb"(" + _TOKEN + rb"):[ \t]*((?:[!-~\x80-\xff](?:[ \t]*[!-~\x80-\xff])*)?)[ \t]*")


def _length(given: list[bytes]) -> int:
    if not given:
        return 0
    if len(given) > 1 or not given[0].isdigit():
        raise BadRequest("Content-Length must be one number")
    if len(given[0]) > 18 or int(given[0]) > LARGEST_BODY_BYTES:
        raise TooLarge(f"the body is longer than {LARGEST_BODY_BYTES} bytes")
    return int(given[0])


def read_request(connection: socket.socket, timeout_s: float) -> Request:
    """One request from a connection; raises `BadRequest`, `TooLarge` or `TimeoutError`."""
    deadline = time.monotonic() + timeout_s
    data = b""
    while (head := head_of(data)) is None:
        data += _receive(connection, deadline)
    body = data[head.size :]
    while len(body) < head.length:
        body += _receive(connection, deadline)
    path, _, query_text = head.target.partition("?")
    query = dict(pair.partition("=")[::2] for pair in query_text.split("&") if pair)
    try:
        decoded = json.loads(body[: head.length]) if head.length else None
    except (ValueError, RecursionError):
        raise BadRequest("the body is not JSON") from None
    return Request(head.method, path, query, decoded)


def _receive(connection: socket.socket, deadline: float) -> bytes:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    connection.settimeout(left)
    part = connection.recv(1 << 16)
    if not part:
        raise BadRequest("the request was cut short")
    return part


_REASONS = {200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed"}


def write_response(connection: socket.socket, status: int, body: object) -> None:
    """Answer with JSON and `Connection: close`."""
    data = json.dumps(body).encode()
    head = (
        f"HTTP/1.1 {status} {_REASONS.get(status, 'Error')}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    connection.sendall(head.encode("ascii") + data)


def write_error(connection: socket.socket, error: ProbeError) -> None:
    """Answer with an error."""
    write_response(connection, error.status, error.as_dict())
