"""Announcements: how the hosts of a job tell each other where their servers answer.

The agent of each host's first rank puts a line with its server's address into the job's store. Anyone who
reaches the store can write there, and a server sends its token to the addresses it calls, so every line
carries a proof that its writer has the operator's token. Lines read are kept in `peers.json` of the
recording, for when the store is gone. Standard library only; any thread.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from probe.base.rank_sets import from_text
from probe.recording import checked, places

FILE = "peers.json"
LONGEST_LINE_BYTES = 2048
MOST_HOSTS = 4096
MOST_RANKS = 1 << 17
_LONGEST_RANKS = 1 << 16
_FIELDS = ("host", "url", "run", "attempt", "ranks", "started_ns")


class Announcement(NamedTuple):
    """One host of a run. `url`: empty if its server does not listen on TCP; `ranks`: as `0,2-7`, empty if
    unknown; `started_ns`: start of the announcing rank."""

    host: str
    url: str
    run: str
    attempt: int
    ranks: str
    started_ns: int


class Peers(NamedTuple):
    """Other hosts known to a recording: unverified lines from the store, and names from the job's
    environment as (host, source)."""

    lines: list[str]
    candidates: list[tuple[str, str]]


def signed(announcement: Announcement, token: str) -> str:
    """The announcement as a line with its proof; without a token it has no proof and is not trusted."""
    fields = announcement._asdict()
    return json.dumps({**fields, "proof": _proof(fields, token) if token else ""}, separators=(",", ":"))


def read_line(line: str) -> tuple[Announcement, str] | None:
    """The announcement in a line, and its proof; None if invalid."""
    if len(line) > LONGEST_LINE_BYTES:
        return None
    try:
        found: Any = checked.loads(line)
        fields = {name: found[name] for name in _FIELDS}
        proof = found["proof"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    kinds = {name: int if name in ("attempt", "started_ns") else str for name in _FIELDS}
    if not isinstance(proof, str) or any(type(fields[name]) is not kinds[name] for name in _FIELDS):
        return None
    return Announcement(**fields), proof


def proven(announcement: Announcement, proof: str, token: str) -> bool:
    """Whether its writer has this token."""
    expected = _proof(announcement._asdict(), token)
    return bool(token) and hmac.compare_digest(expected.encode(), proof.encode("utf-8", "replace"))


def _proof(fields: dict[str, Any], token: str) -> str:
    text = json.dumps([fields[name] for name in _FIELDS]).encode()
    return hmac.new(token.encode(), b"probe announcement " + text, hashlib.sha256).hexdigest()


def ranks_in(text: str) -> tuple[int, ...]:
    """The ranks in untrusted text; raises `ValueError` if invalid or too many."""
    numbers = re.split("[,-]", text) if text else []
    if len(text) > _LONGEST_RANKS or any(not one.isascii() or not one.isdigit() for one in numbers):
        raise ValueError("not a set of ranks")
    if any(len(one) > 6 or int(one) >= MOST_RANKS for one in numbers):
        raise ValueError(f"a rank of {MOST_RANKS} or more")
    return tuple(from_text(text))


def write(process: Path, peers: Peers) -> None:
    """Write them into the recording; raises `OSError`."""
    places.write_whole(process / FILE, checked.sealed(FILE, peers._asdict()))


def read(process: Path) -> Peers:
    """Read them from a recording; empty if there are none."""
    try:
        found: Any = checked.read_sealed(process / FILE)
        lines = [str(line) for line in found["lines"]][:MOST_HOSTS]
        candidates = [(str(host), str(source)) for host, source in found["candidates"]][:MOST_HOSTS]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return Peers([], [])
    return Peers(lines, candidates)
