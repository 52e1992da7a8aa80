"""The vote: the first answer counts, for everybody, whoever is killed meanwhile."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from probe.base.commit_vote import COME, GO, STAY, CommitVote, Decision, remove_old
from probe.base.errors import BadRequest


def test_the_first_answer_is_everybodys(tmp_path: Path) -> None:
    vote = CommitVote(tmp_path, "all-1")
    vote.make()
    assert vote.decision(GO) is None
    assert vote.cast(GO, False, "rank 1 is late\nby far") == Decision(False, "rank 1 is late by far")
    assert vote.cast(GO, True) == Decision(False, "rank 1 is late by far")
    assert CommitVote(tmp_path, "all-1").decision(GO) == Decision(False, "rank 1 is late by far")
    assert vote.decision(STAY) is None
    assert vote.cast(STAY, True) == Decision(True, "")


def test_of_many_that_answer_at_once_all_take_the_same(tmp_path: Path) -> None:
    for number in range(20):
        vote = CommitVote(tmp_path, f"all-{number}")
        vote.make()
        together = threading.Barrier(8)
        taken: list[Decision] = []

        def answer(own: int, vote: CommitVote = vote, together: threading.Barrier = together,
                   taken: list[Decision] = taken) -> None:
            together.wait()
            taken.append(vote.cast(GO, own % 2 == 0, f"says {own}"))

        threads = [threading.Thread(target=answer, args=(own,)) for own in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(taken) == 8 and len(set(taken)) == 1


def test_nobody_is_missing_once_all_have_come_and_nobody_knows_before_it_is_open(tmp_path: Path) -> None:
    vote = CommitVote(tmp_path, "all-1")
    vote.make()
    assert vote.members() is None
    vote.open(["0", "1", "2"])
    assert vote.missing(COME) == ["0", "1", "2"]
    for name in ("2", "0", "2"):
        vote.mark(COME, name)
    assert vote.missing(COME) == ["1"]
    vote.mark(COME, "1")
    assert vote.missing(COME) == []


def test_who_comes_to_one_that_was_removed_does_not_decide_alone(tmp_path: Path) -> None:
    vote = CommitVote(tmp_path, "all-1")
    vote.make()
    vote.open(["0"])
    vote.remove()
    assert vote.members() is None and vote.decision(GO) is None
    for attempt in (lambda: vote.cast(GO, True), lambda: vote.mark(COME, "0")):
        with pytest.raises(OSError):
            attempt()
    assert not vote.folder.exists()


def test_a_long_reason_and_odd_letters_are_no_obstacle_and_a_name_is_no_path(tmp_path: Path) -> None:
    vote = CommitVote(tmp_path, "all-1")
    vote.make()
    assert vote.cast(GO, False, "ä€" * 5000).why.startswith("ä€")
    for name in ("../x", "", ".x", "a/b", "a\x00"):
        with pytest.raises(BadRequest, match="letters, digits"):
            CommitVote(tmp_path, name)


def test_what_a_killed_server_left_is_removed_when_it_is_old(tmp_path: Path) -> None:
    old, new = CommitVote(tmp_path, "all-1"), CommitVote(tmp_path, "all-2")
    for vote in (old, new):
        vote.make()
        vote.open(["0"])
    past_s = time.time() - 30 * 3600
    os.utime(old.folder, (past_s, past_s))
    remove_old(tmp_path)
    assert not old.folder.exists() and new.folder.exists()
