"""Generates requests as bytes for the campaign `http`, and judges them by a second reading of RFC 9112.

`verdict` is written only from the RFC's grammar, byte by byte, and shares no code with `wire`.
"""

from __future__ import annotations

import json
import string
from typing import Any, NamedTuple

from hypothesis import strategies as st

LARGEST_HEAD, LARGEST_BODY = 16 << 10, 1 << 20
_TOKEN = set(b"!#$%&'*+-.^_`|~" + (string.ascii_letters + string.digits).encode())
_FIELD = set(range(0x21, 0x7F)) | set(range(0x80, 0x100)) | {0x20, 0x09}


class Written(NamedTuple):
    """The bytes of a request, and its JSON body, if any."""

    raw: bytes
    body: Any


_NAMES = st.sampled_from([b"X-A", b"Accept", b"x", b"Cookie", b"Connection", b"TE", b"Expect", b"!#$"])
_VALUES = st.one_of(
    st.sampled_from([b"", b"a", b"chunked", b"close", b"a, b", b"\xe9", b'"q;"', b"100-continue",
    b"Host: b"]),
    st.text(string.printable.strip() + " ", max_size=20).map(lambda text: text.strip().encode()),
)
_LENGTHS = [
    b"+2", b"-2", b"2, 2", b"0x2", b"2.0", b"1_0", b"", b" ", b"\xb2", b"2;a", b"99999999999999999999",
    b"9" * 400, b"1048577", b"two", b"02",
]


@st.composite
def requests(draw: st.DrawFn) -> Written:
    """A valid request with up to two faults."""
    body = draw(st.one_of(st.none(), st.sampled_from([{}, {"a": 1}, [1, 2], "x", 7])))
    content = b"" if body is None else json.dumps(body).encode()
    method = draw(st.sampled_from([b"GET", b"POST", b"PUT", b"X-Y", b"get"]))
    targets = [b"/", b"/v1/health", b"/v1/query?a=1&b=%20", b"/%zz", b"//", b"/?" + b"a" * 500]
    target = draw(st.sampled_from(targets))
    lines = [b" ".join([method, target, draw(st.sampled_from([b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0"]))])]
    headers = [b"Host: a", *(b"%s:%s%s" % (name, draw(_SPACES), value) for name, value in draw(_MORE))]
    if content or draw(st.booleans()):
        headers.append(b"Content-Length: %d" % len(content))
    lines += draw(st.permutations(headers))
    raw = b"\r\n".join(lines) + b"\r\n\r\n" + content
    for _ in range(draw(st.integers(0, 2))):
        raw = draw(st.sampled_from(_WAYS))(draw, raw)
    return Written(raw, body)


_SPACES = st.sampled_from([b" ", b"", b"\t", b"  "])
_MORE = st.lists(st.tuples(_NAMES, _VALUES), max_size=4)


def _insert(draw: st.DrawFn, raw: bytes) -> bytes:
    """Insert a significant byte somewhere."""
    place = draw(st.integers(0, len(raw)))
    piece = draw(st.sampled_from([
        b"\n", b"\r", b"\x00", b"\r\n", b" ", b"\t", b":", b"\x0b", b"\x7f", b"\x1f", b"\x85", b"\r\n ",
        b"\r\n\t", b"\n\n", b"\r\r\n", b"\xff", b"\r\n\r\n", b"\x0c",
    ]))
    return raw[:place] + piece + raw[place:]


def _endings(draw: st.DrawFn, raw: bytes) -> bytes:
    """Change the line end of one line or of all."""
    other = draw(st.sampled_from([b"\n", b"\r", b"\r\r\n", b"\n\r", b"\x0b", b"\x85", b"\r\n "]))
    ends = raw.count(b"\r\n")
    if not ends or draw(st.booleans()):
        return raw.replace(b"\r\n", other)
    parts = raw.split(b"\r\n")
    place = draw(st.integers(1, ends))
    return b"\r\n".join(parts[:place]) + other + b"\r\n".join(parts[place:])


def _header(draw: st.DrawFn, raw: bytes) -> bytes:
    """Add a header, of those that decide where a request ends and whom it is for."""
    line = draw(st.one_of(
        st.sampled_from([
            b"Host: b", b"host:a", b"Content-Length: 2", b"content-length:0", b"Transfer-Encoding: chunked",
            b"Transfer-Encoding : chunked", b"Transfer-Encoding: identity", b"transfer-encoding:\tchunked",
            b"Content-Length : 0", b" Content-Length: 0", b"\tX: a", b"Content-Length\t: 2", b"X\xc3\xa9: a",
            b": a", b"a", b"(x): a", b"X: " + b"a" * LARGEST_HEAD,
        ]),
        st.sampled_from(_LENGTHS).map(lambda length: b"Content-Length: " + length),
    ))
    first, _, rest = raw.partition(b"\r\n")
    return first + b"\r\n" + line + b"\r\n" + rest


def _first_line(draw: st.DrawFn, raw: bytes) -> bytes:
    """Replace the first line."""
    line = draw(st.sampled_from([
        b"GET / HTTP/1.2", b"GET / HTTP/2.0", b"GET / http/1.1", b"GET /", b"GET  / HTTP/1.1",
        b"GET / HTTP/1.1 ",
        b"", b" GET / HTTP/1.1", b"GET\t/ HTTP/1.1", b"G(T / HTTP/1.1", b"GET / HTTP/1.11",
        b"GET /\xe9 HTTP/1.1",
        b"GET / HTTP/01.1", b"GET /a b HTTP/1.1", b"/ HTTP/1.1", b"GET http://a/ HTTP/1.1", b"GET * HTTP/1.1",
        b"CONNECT a:1 HTTP/1.1",
        b"GET / HTTP/1.", b"GET / HTTP/1.\xb9",
    ]))
    return line + b"\r\n" + raw.partition(b"\r\n")[2]


def _cut(draw: st.DrawFn, raw: bytes) -> bytes:
    """Truncate the request."""
    return raw[: draw(st.integers(0, len(raw)))]


def _more(draw: st.DrawFn, raw: bytes) -> bytes:
    """Append bytes after its end."""
    return raw + draw(st.sampled_from([b"GET / HTTP/1.1\r\nHost: b\r\n\r\n", b"\n", b"{}" * 40, b"\x00"]))


def _noise(draw: st.DrawFn, raw: bytes) -> bytes:
    """Replace the request with noise."""
    return draw(st.binary(max_size=200))


_WAYS = [_insert, _insert, _insert, _endings, _header, _header, _first_line, _cut, _more, _noise]


def verdict(raw: bytes) -> str:
    """`taken`, `refused`, `too large`, `not JSON`, or `incomplete` if more bytes could make it valid."""
    lines: list[bytes] = []
    start = place = 0
    while place < len(raw):
        byte = raw[place]
        if place >= LARGEST_HEAD and not raw.startswith(b"\r\n", place):
            return "too large"
        if byte == 0x0A or (byte < 0x20 and byte not in (0x0D, 0x09)) or byte == 0x7F:
            return "refused"
        if byte != 0x0D:
            place += 1
            continue
        if place + 1 == len(raw):
            return "incomplete"
        if raw[place + 1] != 0x0A:
            return "refused"
        line = raw[start:place]
        place += 2
        start = place
        if not line and lines:
            return _whole(lines, raw[place:])
        lines.append(line)
    return "incomplete"


def _whole(lines: list[bytes], rest: bytes) -> str:
    """The verdict on a head whose lines are well-formed."""
    words = lines[0].split(b" ")
    if len(words) != 3 or words[2] not in (b"HTTP/1.0", b"HTTP/1.1"):
        return "refused"
    if not words[0] or not set(words[0]) <= _TOKEN or not words[1].startswith(b"/"):
        return "refused"  # only the origin form: probe is not a proxy
    if not all(0x21 <= byte <= 0x7E for byte in words[1]):
        return "refused"
    fields: list[tuple[bytes, bytes]] = []
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon or not name or not set(name) <= _TOKEN or not set(value) <= _FIELD:
            return "refused"
        fields.append((name.lower(), value.strip(b" \t")))
    hosts = [value for name, value in fields if name == b"host"]
    if len(hosts) > 1 or (not hosts and words[2] == b"HTTP/1.1"):
        return "refused"
    if any(name == b"transfer-encoding" for name, _ in fields):
        return "refused"
    lengths = [value for name, value in fields if name == b"content-length"]
    if len(lengths) > 1 or any(not value or set(value) - set(b"0123456789") for value in lengths):
        return "refused"
    length = int(lengths[0][-30:]) if lengths else 0
    if lengths and (length > LARGEST_BODY or len(lengths[0]) > 18):
        return "too large"
    return _content(rest[:length]) if len(rest) >= length else "incomplete"


def _content(content: bytes) -> str:
    try:
        if content:
            json.loads(content)
    except ValueError:
        return "not JSON"
    return "taken"
