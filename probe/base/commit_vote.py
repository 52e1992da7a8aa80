"""Commit vote: how the ranks of one host reach the same decision without a coordinator.

    PROBE_DIR/ballots/ID/members          the participants, written once all are appointed
                         come.NAME        NAME has reached the agreed step
                         did.NAME         NAME has done what was requested
                         go               the first answer to "do it?":    `yes`, or `no WHY`
                         stay             the first answer to "keep it?":  `yes`, or `no WHY`

Each is a symbolic link whose target is its text: made atomically by one system call, only if it does not
exist. The first writer decides, later ones read the decision. A rank, the server or the command may be
killed at any point.

Written by the training thread while it is held at the agreed step (it may block there, with a deadline), by
the agent's threads and by the server. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from probe.base import descriptors
from probe.base.errors import BadRequest

GO, STAY = "go", "stay"
"""The two questions: whether to do it, and whether to keep the result."""
COME, DID = "come", "did"
"""The marks of members: reached the step, done."""
EARLY = "not all ranks were informed in time"
"""Reason when the agreed step came too soon; worth a retry with a later step."""
_LONGEST_NAME = 64
LONGEST_BYTES = 1000
"""Longest reason; a link's target may be four times as long."""
_OLD_S = 24 * 3600.0
"""Abandoned ballots are removed after this time: a stopped rank may still read its ballot."""


class Decision(NamedTuple):
    """The first answer, and for `no` the reason."""

    yes: bool
    why: str


class CommitVote:
    """One vote. Raises `OSError` when its folder cannot be read or written."""

    def __init__(self, directory: Path, name: str) -> None:
        """`directory` is PROBE_DIR; `name` has only letters, digits, `-` and `.`, else raises `BadRequest`:
        it comes from another host's server."""
        plain = name.replace("-", "").replace(".", "")
        if not (plain.isascii() and plain.isalnum()) or name.startswith(".") or len(name) > _LONGEST_NAME:
            raise BadRequest("`id` must be letters, digits, `-` and `.`")
        self.folder = directory / "ballots" / name

    def make(self) -> None:
        """Make the folder, before any rank learns of the vote. Ranks never make it: a rank that was stopped
        for long and finds no folder must not decide alone."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def open(self, members: Iterable[str]) -> None:
        """Open the vote: all members are appointed."""
        self._write("members", ",".join(members))

    def members(self) -> list[str] | None:
        """The participants; None before the vote is open."""
        text = self._read("members")
        return None if text is None else text.split(",")

    def mark(self, what: str, name: str) -> None:
        """Set a member's mark `COME` or `DID`."""
        self._write(f"{what}.{name}", "x")

    def missing(self, what: str) -> list[str]:
        """Members without that mark."""
        with contextlib.suppress(FileNotFoundError):
            there = set(descriptors.names(self.folder))
            return [name for name in self.members() or () if f"{what}.{name}" not in there]
        return []

    def decision(self, question: str) -> Decision | None:
        """The decision; None if there is none yet."""
        text = self._read(question)
        if text is None:
            return None
        word, _, why = text.partition(" ")
        return Decision(word == "yes", why)

    def cast(self, question: str, yes: bool, why: str = "") -> Decision:
        """Answer a question unless it is answered; returns the first answer."""
        short = " ".join(why.split()).encode(errors="replace")[:LONGEST_BYTES].decode(errors="ignore")
        self._write(question, f"{'yes' if yes else 'no'} {short}".strip())
        found = self.decision(question)
        if found is None:
            raise FileNotFoundError(f"{self.folder} was removed during the vote")
        return found

    def remove(self) -> None:
        """Remove the vote once all members have reported."""
        with contextlib.suppress(OSError):
            for name in descriptors.names(self.folder):
                os.unlink(self.folder / name)
            os.rmdir(self.folder)

    def _write(self, name: str, text: str) -> None:
        with contextlib.suppress(FileExistsError):
            os.symlink(text, self.folder / name)

    def _read(self, name: str) -> str | None:
        try:
            return os.readlink(self.folder / name)
        except FileNotFoundError:
            return None


def remove_old(directory: Path) -> None:
    """Remove old ballots of servers that were killed."""
    before_s = time.time() - _OLD_S
    with contextlib.suppress(OSError):
        for folder in (directory / "ballots").iterdir():
            if folder.lstat().st_mtime < before_s:
                CommitVote(directory, folder.name).remove()
