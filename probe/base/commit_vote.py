"""CommitVote: how the ranks of one host decide the same, with nobody in between who could be killed.

    PROBE_DIR/ballots/ID/members          who takes part: there once all of them are known to be appointed
                         come.NAME        one for each who has come to the agreed step
                         did.NAME         one for each who has done there what was asked
                         go               the first answer to "do it?":    `yes`, or `no WHY`
                         stay             the first answer to "keep it?":  `yes`, or `no WHY`

Each is a symbolic link whose target is its text: it is made by one system call, only when it is not there
yet, and never half written. Whoever is first has decided; who comes later takes what is there. Nothing
depends on who lives on: a rank, the server or the command may be killed between any two of these.

Written by the training thread while it is held at the agreed step (it may block there, with a deadline),
by the agent's threads and by the server. Standard library only.
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
"""The two questions: whether it is done at all, and whether what was done is kept."""
COME, DID = "come", "did"
"""What members leave behind: that they have come, that they have done it."""
EARLY = "not all ranks were told in time"
"""Why nothing was done where the agreed step came too soon: worth trying again with a later one."""
_LONGEST_NAME = 64
LONGEST_BYTES = 1000
"""Of a reason; the target of a link can have four times as much."""
_OLD_S = 24 * 3600.0
"""Ballots that nobody has removed are removed after so long: who was stopped meanwhile may still ask."""


class Decision(NamedTuple):
    """The answer that was first, and for `no` the reason."""

    yes: bool
    why: str


class CommitVote:
    """One vote. Raises OSError where the folder cannot be read or written."""

    def __init__(self, directory: Path, name: str) -> None:
        """`directory` is PROBE_DIR; `name` is the vote's own, of letters, digits, `-` and `.`.

        Raises `BadRequest` for another: it comes from another host's server."""
        plain = name.replace("-", "").replace(".", "")
        if not (plain.isascii() and plain.isalnum()) or name.startswith(".") or len(name) > _LONGEST_NAME:
            raise BadRequest("`id` must be letters, digits, `-` and `.`")
        self.folder = directory / "ballots" / name

    def make(self) -> None:
        """Make its folder, before anybody is told of it. Only this does: a rank that was stopped for long
        and finds no folder must not decide alone."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def open(self, members: Iterable[str]) -> None:
        """All members are appointed: from now on it can be decided."""
        self._write("members", ",".join(members))

    def members(self) -> list[str] | None:
        """Who takes part; None as long as not all are known to be appointed."""
        text = self._read("members")
        return None if text is None else text.split(",")

    def mark(self, what: str, name: str) -> None:
        """Leave word that a member has come, or has done it."""
        self._write(f"{what}.{name}", "x")

    def missing(self, what: str) -> list[str]:
        """Members without that mark."""
        with contextlib.suppress(FileNotFoundError):
            there = set(descriptors.names(self.folder))
            return [name for name in self.members() or () if f"{what}.{name}" not in there]
        return []

    def decision(self, question: str) -> Decision | None:
        """What was decided; None when nothing was yet."""
        text = self._read(question)
        if text is None:
            return None
        word, _, why = text.partition(" ")
        return Decision(word == "yes", why)

    def cast(self, question: str, yes: bool, why: str = "") -> Decision:
        """Answer a question, unless somebody has: returns the answer that was first."""
        short = " ".join(why.split()).encode(errors="replace")[:LONGEST_BYTES].decode(errors="ignore")
        self._write(question, f"{'yes' if yes else 'no'} {short}".strip())
        found = self.decision(question)
        if found is None:
            raise FileNotFoundError(f"{self.folder} was removed meanwhile")
        return found

    def remove(self) -> None:
        """Take it away, once everybody has said what came of it."""
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
    """Remove ballots that were left behind long ago: by a server that was killed."""
    before_s = time.time() - _OLD_S
    with contextlib.suppress(OSError):
        for folder in (directory / "ballots").iterdir():
            if folder.lstat().st_mtime < before_s:
                CommitVote(directory, folder.name).remove()
