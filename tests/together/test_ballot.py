"""The ballot: the first answer counts, for everybody, whoever is killed meanwhile."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from probe.base.commit_vote import COME, GO, STAY, Ballot, Decision, remove_old
from probe.base.errors import BadRequest


def test_the_first_answer_is_everybodys(tmp_path: Path) -> None:
    ballot = Ballot(tmp_path, "all-1")
    ballot.make()
    assert ballot.decision(GO) is None
    assert ballot.cast(GO, False, "rank 1 is late\nby far") == Decision(False, "rank 1 is late by far")
    assert ballot.cast(GO, True) == Decision(False, "rank 1 is late by far")
    assert Ballot(tmp_path, "all-1").decision(GO) == Decision(False, "rank 1 is late by far")
    assert ballot.decision(STAY) is None
    assert ballot.cast(STAY, True) == Decision(True, "")


def test_of_many_that_answer_at_once_all_take_the_same(tmp_path: Path) -> None:
    for number in range(20):
        ballot = Ballot(tmp_path, f"all-{number}")
        ballot.make()
        together = threading.Barrier(8)
        taken: list[Decision] = []

        def answer(own: int, ballot: Ballot = ballot, together: threading.Barrier = together,
                   taken: list[Decision] = taken) -> None:
            together.wait()
            taken.append(ballot.cast(GO, own % 2 == 0, f"says {own}"))

        threads = [threading.Thread(target=answer, args=(own,)) for own in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(taken) == 8 and len(set(taken)) == 1


def test_nobody_is_missing_once_all_have_come_and_nobody_knows_before_it_is_open(tmp_path: Path) -> None:
    ballot = Ballot(tmp_path, "all-1")
    ballot.make()
    assert ballot.members() is None
    ballot.open(["0", "1", "2"])
    assert ballot.missing(COME) == ["0", "1", "2"]
    for name in ("2", "0", "2"):
        ballot.mark(COME, name)
    assert ballot.missing(COME) == ["1"]
    ballot.mark(COME, "1")
    assert ballot.missing(COME) == []


def test_who_comes_to_one_that_was_removed_does_not_decide_alone(tmp_path: Path) -> None:
    ballot = Ballot(tmp_path, "all-1")
    ballot.make()
    ballot.open(["0"])
    ballot.remove()
    assert ballot.members() is None and ballot.decision(GO) is None
    for attempt in (lambda: ballot.cast(GO, True), lambda: ballot.mark(COME, "0")):
        with pytest.raises(OSError):
            attempt()
    assert not ballot.folder.exists()


def test_a_long_reason_and_odd_letters_are_no_obstacle_and_a_name_is_no_path(tmp_path: Path) -> None:
    ballot = Ballot(tmp_path, "all-1")
    ballot.make()
    assert ballot.cast(GO, False, "ä€" * 5000).why.startswith("ä€")
    for name in ("../x", "", ".x", "a/b", "a\x00"):
        with pytest.raises(BadRequest, match="letters, digits"):
            Ballot(tmp_path, name)


def test_what_a_killed_server_left_is_removed_when_it_is_old(tmp_path: Path) -> None:
    old, new = Ballot(tmp_path, "all-1"), Ballot(tmp_path, "all-2")
    for ballot in (old, new):
        ballot.make()
        ballot.open(["0"])
    past_s = time.time() - 30 * 3600
    os.utime(old.folder, (past_s, past_s))
    remove_old(tmp_path)
    assert not old.folder.exists() and new.folder.exists()
