"""Damages every kind of file that probe reads: no crash, no hang, no wrong value without a note.

Real jobs make recordings once, tested in two states: with the rows still in the rings, as after a kill
without a server, and ended and sealed. Each round damages one file, queries, compares with the answers of the
intact recordings, and restores the file. Rows may be missing if a note says so; a returned row must have been
written. Occasionally a real server is started on the damaged files.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import shutil
import signal
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from campaigns.campaign import Campaign
from campaigns.damaged_recording import LONG_AGO_S, PARTS, Asked, Recordings
from probe.server.runtime.supervision import FAILURES

ROUND_S = 240
"""A round that takes longer counts as hanging: SIGALRM ends it."""
SERVER_EVERY = 100
KINDS = ("flip", "flip", "flip", "truncate", "zero", "swap", "replay", "overwrite", "remove", "pipe", "grow")


class Damage(NamedTuple):
    """The damage done to a file."""

    part: str
    path: Path
    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind} of {self.part} ({self.path.name}): {self.detail}"


class Hangs(Exception):
    """A round took too long."""


def main() -> int:
    """Run the rounds; returns the exit status."""
    campaign = Campaign("damage", __doc__, rounds=2000)
    signal.signal(signal.SIGALRM, _hangs)
    logging.disable()  # damage is also reported in the log
    with Recordings(control=campaign.control) as recordings:
        stopping: list[int] = []
        signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
        for number in campaign:
            if stopping:
                campaign.count("stopped before its end")
                break
            _round(campaign, recordings, number)
            if number % 100 == 99:
                print(f"round {number + 1}", flush=True)
    return campaign.end()


def _hangs(_number: int, _frame: object) -> None:
    raise Hangs


def _round(campaign: Campaign, recordings: Recordings, number: int) -> None:
    dice = campaign.dice(number)
    wanted = ("ring", "segment") if campaign.control else tuple(PARTS)
    part = campaign.part or dice.choice(wanted)
    path = dice.choice(recordings.files(part))
    began_s = time.monotonic()
    signal.alarm(ROUND_S)
    try:
        with damaged(recordings, part, path, dice) as damage:
            campaign.count(f"{damage.kind} of {damage.part}")
            verdict = recordings.ask(part, path, dice)
            _judge(campaign, number, damage, verdict)
            if number % SERVER_EVERY == SERVER_EVERY - 1 and not campaign.control:
                signal.alarm(2 * ROUND_S)
                for what in recordings.ask_server(part, path):
                    campaign.found(number, f"{damage}: {what}")
                campaign.count("a server over the damaged recording")
    except Hangs:
        campaign.found(number, f"damage of {path}: hangs")
    except (*FAILURES, struct.error, MemoryError) as error:  # no reader may raise these
        campaign.found(number, f"damage of {part} {path}: {type(error).__name__}: {error}")
    finally:
        signal.alarm(0)
    campaign.measure("s per round", time.monotonic() - began_s)


def _judge(campaign: Campaign, number: int, damage: Damage, verdict: Asked) -> None:
    if verdict.wrong:
        said = f"{len(verdict.notes)} notes: {verdict.notes[:2]}"
        campaign.found(number, f"{damage}: {verdict.wrong[0]}; {said}")
    elif verdict.missing and not verdict.notes:
        # Rows missing after the newest of a ring that is not full look the same as if the process had been
        # killed earlier.
        if damage.part in ("ring", "journal") and damage.kind != "flip" and verdict.is_prefix:
            campaign.count("rows missing at the end, as if the process had been killed earlier: no note")
        else:
            campaign.found(number, f"{damage}: {verdict.missing} without a note")
    elif verdict.notes:
        campaign.count("said in a note")
    else:
        campaign.count("nothing that was asked for is different")


# Damages -----------------------------------------------------------------------------


@contextlib.contextmanager
def damaged(recordings: Recordings, part: str, path: Path, dice: random.Random) -> Iterator[Damage]:
    """Damage one file, and restore it afterwards."""
    kind = dice.choice(KINDS)
    before = {path: path.read_bytes()}
    try:
        detail = _DAMAGES[kind](recordings, part, path, before, dice)
        yield Damage(part, path, kind, detail)
    finally:
        for one, content in before.items():
            if one.is_dir():
                shutil.rmtree(one)
            one.unlink(missing_ok=True)
            one.write_bytes(content)
            one.chmod(0o600)
            os.utime(one, (LONG_AGO_S, LONG_AGO_S))  # a fresh journal would count as a recording being made


Before = dict[Path, bytes]
Doing = Callable[[Recordings, str, Path, Before, random.Random], str]


def _place(content: bytes, dice: random.Random) -> int:
    """A random offset, mostly in the used part: rings and string tables are larger than their contents."""
    used = len(content.rstrip(b"\0"))
    return dice.randrange(max(1, used if dice.random() < 0.9 else len(content)))


def _flip(_all: Recordings, _part: str, path: Path, before: Before, dice: random.Random) -> str:
    content = bytearray(before[path])
    places = [_place(before[path], dice) for _ in range(dice.choice((1, 1, 1, 2, 8)))]
    for place in places if content else []:
        content[place] ^= 1 << dice.randrange(8)
    path.write_bytes(content)
    return f"bits at {places}"


def _truncate(_all: Recordings, _part: str, path: Path, before: Before, dice: random.Random) -> str:
    length = dice.choice((0, _place(before[path], dice), max(0, len(before[path]) - dice.randrange(1, 64))))
    path.write_bytes(before[path][:length])
    return f"to {length} of {len(before[path])} bytes"


def _zero(_all: Recordings, _part: str, path: Path, before: Before, dice: random.Random) -> str:
    content = bytearray(before[path])
    start, length = _place(before[path], dice), dice.choice((1, 8, 100, 512, 4096, len(content)))
    content[start : start + length] = bytes(len(content[start : start + length]))
    path.write_bytes(content)
    return f"{length} bytes from {start}"


def _overwrite(_all: Recordings, _part: str, path: Path, before: Before, dice: random.Random) -> str:
    content = bytearray(before[path])
    start, length = _place(before[path], dice), dice.choice((1, 8, 100, 4096))
    content[start : start + length] = dice.randbytes(len(content[start : start + length]))
    path.write_bytes(content)
    return f"{length} bytes from {start}"


def _swap(all_: Recordings, part: str, path: Path, before: Before, dice: random.Random) -> str:
    other = dice.choice(all_.beside(part, path))
    before[other] = other.read_bytes()
    path.write_bytes(before[other])
    other.write_bytes(before[path])
    return f"with {other}"


def _replay(all_: Recordings, part: str, path: Path, before: Before, dice: random.Random) -> str:
    older = all_.older(path)
    if older is None:
        return _swap(all_, part, path, before, dice)
    path.write_bytes(older)
    return f"{len(older)} bytes of before"


def _remove(_all: Recordings, part: str, path: Path, before: Before, dice: random.Random) -> str:
    if part in ("segment", "journal", "ring", "monitor"):  # removing these is a deliberate deletion
        return _zero(_all, part, path, before, dice)
    path.unlink()
    return "removed"


def _pipe(_all: Recordings, part: str, path: Path, before: Before, dice: random.Random) -> str:
    path.unlink()
    if dice.random() < 0.5:
        os.mkfifo(path, 0o600)
        return "a pipe in its place"
    path.mkdir()
    return "a folder in its place"


def _grow(_all: Recordings, _part: str, path: Path, before: Before, dice: random.Random) -> str:
    added = dice.randbytes(dice.choice((1, 7, 300)))
    path.write_bytes(before[path] + added)
    return f"{len(added)} bytes more"


_DAMAGES: dict[str, Doing] = {
    "flip": _flip, "truncate": _truncate, "zero": _zero, "overwrite": _overwrite, "swap": _swap,
    "replay": _replay, "remove": _remove, "pipe": _pipe, "grow": _grow,
}
