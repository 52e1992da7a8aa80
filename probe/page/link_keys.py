"""Keys of the page: one in a link, which opens the page once, and one for each browser that has opened it.

Only digests are kept. Used on the event loop of `gateway` and on the thread that prints links; standard
library only.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading

LINKS = 16
"""Links that can still be opened; further ones replace the oldest."""
SESSIONS = 64
"""Browsers (tabs, where they do not share storage) with a session; further ones replace the oldest."""


class LinkKeys:
    """The keys of one run of the command; all end with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._links: list[bytes] = []
        self._sessions: list[bytes] = []

    def new_link(self) -> str:
        """A new key of 256 bits that can be exchanged once."""
        with self._lock:
            return _added(self._links, LINKS)

    def trade(self, key: str) -> str | None:
        """Exchange a link's key for a session's, which uses it up; None if there is no such link any more."""
        with self._lock:
            found = _place(self._links, key)
            if found is None:
                return None
            del self._links[found]
            return _added(self._sessions, SESSIONS)

    def knows(self, key: str) -> bool:
        """Whether this is the key of a session."""
        with self._lock:
            return _place(self._sessions, key) is not None


def _added(digests: list[bytes], most: int) -> str:
    key = secrets.token_urlsafe(32)
    digests.append(_digest(key))
    del digests[:-most]
    return key


def _place(digests: list[bytes], key: str) -> int | None:
    """The place of a key; all are compared, so that the time reveals nothing."""
    digest = _digest(key)
    found = [place for place, known in enumerate(digests) if hmac.compare_digest(digest, known)]
    return found[0] if found else None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()
