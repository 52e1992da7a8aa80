"""An answer that ends too early, because who gave it was killed, is never taken for a whole one."""

from __future__ import annotations

import pytest

from probe.base import wire

BODY = b'{"rows": [[1, 2], [3, 4]]}'
WHOLE = {
    "counted": b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY),
    "in pieces": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\n%b\r\n15\r\n%b\r\n0\r\n\r\n" % (BODY[:5], BODY[5:]),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_an_answer_that_was_cut_short_anywhere_is_an_error_and_says_so(kind: str) -> None:
    whole = WHOLE[kind]
    assert wire.decode_answer(whole) == {"rows": [[1, 2], [3, 4]]}
    for cut in range(len(whole)):
        if whole[:cut].endswith((b"\r\n0\r\n", b"\r\n0\r\n\r")):
            continue  # everything is there but the last line's end
        with pytest.raises(ConnectionError, match=r"cut short|without an answer"):
            print(cut, wire.decode_answer(whole[:cut]))
