"""Whoever is killed or late between the phases: all ranks agree, no rank is held for long, nothing stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness import ROOT, Place, run_probe
from probe.base.errors import AgentUnreachable, NotTogether, ProbeError
from ranks import Ranks, running_ranks
from together.all_ranks import Asked, act, first_steps, health, last_states, query, until

pytestmark = pytest.mark.alone
HOLD_S = 4.0


class Meeting:
    """A job whose last rank comes last to every step, and stands still before one that others wait at,
    until the test lets it go on."""

    def __init__(self, place: Place, ranks: Ranks) -> None:
        self.place = place
        self.ranks = ranks
        self._let_go = place.directory / "let-go"

    @staticmethod
    def options(place: Place) -> list[str]:
        """Of the program."""
        pattern = str(place.directory / "ballots" / "*" / "come.0")
        return ["--lag-ms", "60", "--stand-while", pattern, "--stand-until", str(place.directory / "let-go")]

    def until_held(self, asked: Asked) -> Path:
        """Until rank 0 is held at the agreed step and the last is not there; the vote."""
        for old in self.place.directory.glob("ballots/*"):  # of a server that was killed
            if (old / "go").is_symlink():
                (old / "come.0").unlink(missing_ok=True)
        self._let_go.unlink(missing_ok=True)

        def votes() -> list[Path]:
            return [one for one in self.place.directory.glob("ballots/*")
                    if (one / "come.0").is_symlink() and not (one / "go").is_symlink()]

        until(lambda: bool(votes()) or not asked.is_alive(), "rank 0 has come to the agreed step")
        assert asked.is_alive(), asked.outcome()
        until(lambda: health(self.place, self.ranks, 0)["phase"] == "acting", "rank 0 is held")
        assert health(self.place, self.ranks, 1)["phase"] != "acting"
        return votes()[0]

    def let_go(self) -> None:
        """The last rank goes on."""
        self._let_go.touch()

    def until_both_have(self, state: str) -> None:
        """Until that is the state of the latest action, as both journals say."""
        until(
            lambda: [found for found, _ in last_states(self.place, self.ranks.name).values()] == [state] * 2,
            f"both ranks say {state}",
        )

    def goes_on(self) -> None:
        """Until both have made some more steps."""
        step = health(self.place, self.ranks, 0)["step"]
        for rank in (0, 1):
            until(lambda rank=rank: health(self.place, self.ranks, rank)["step"] > step + 3, "steps go on")


def kill_server(place: Place) -> None:
    """SIGKILL: nothing of it is cleaned up."""
    pid = place.server_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}").exists(), "the server is gone")
    (place.directory / "server.json").unlink(missing_ok=True)


def test_whoever_is_killed_while_a_rank_is_held_all_ranks_do_the_same(place: Place) -> None:
    options = ["--way", "reduce", "--forever", "--pace-ms", "20", *Meeting.options(place)]
    with running_ranks(place, 2, "parallel", *options, PROBE_RANK_HOLD_S=str(HOLD_S)) as ranks:
        meeting = Meeting(place, ranks)

        # The server, and the late rank comes in time: both do it, without anybody in between.
        asked = Asked(lambda: act(place, ranks.name, "clip", max_norm=1e9))
        meeting.until_held(asked)
        kill_server(place)
        meeting.let_go()
        with pytest.raises((OSError, ProbeError)):
            asked.outcome()
        meeting.goes_on()
        run_probe(place, "ps")  # starts another server
        meeting.until_both_have("standing")
        steps = query(place, ranks.name, "SELECT DISTINCT step FROM probe.actions WHERE state = 'standing'")
        assert len(steps) == 1, "before the same step"

        # The server, and the late rank does not come: neither does it, and who waited was held no longer.
        asked = Asked(lambda: act(place, ranks.name, "lr", scale=0.5))
        vote = meeting.until_held(asked)
        kill_server(place)
        until((vote / "go").is_symlink, "it was decided without the other")
        assert os.readlink(vote / "go").startswith("no rank 1 had not reached the agreed step within")
        meeting.let_go()
        with pytest.raises((OSError, ProbeError)):
            asked.outcome()
        meeting.goes_on()
        run_probe(place, "ps")
        meeting.until_both_have("cancelled")
        (held_s,), = query(place, ranks.name, "SELECT max(held_s) FROM python.steps")
        assert held_s < HOLD_S, "never longer"

        # The command: what it asked for goes its way.
        command = subprocess.Popen(
            [sys.executable, "-m", "probe_cli", ranks.name, "skip-nonfinite", "on"],
            env=place.environ(PYTHONPATH=f"{ROOT}{os.pathsep}{ROOT / 'cli'}"),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        meeting.until_held(Asked(lambda: {"ended": command.wait()}))
        command.kill()
        command.wait()
        meeting.let_go()
        meeting.until_both_have("standing")

        # The rank that the other waits for: it is let go on at once, and nothing is done.
        asked = Asked(lambda: act(place, ranks.name, "lr", scale=0.5))
        meeting.until_held(asked)
        ranks[1].kill()
        with pytest.raises((NotTogether, AgentUnreachable), match="rank 1"):
            asked.outcome()
        assert set(first_steps(place, ranks.name)) == {0.01}
        states = query(place, ranks.name, "SELECT DISTINCT state FROM probe.actions WHERE action = 'lr'")
        assert sorted(state for state, in states) == ["asked", "cancelled"]


@pytest.mark.campaign
def test_ctrl_c_reaches_a_rank_that_is_held_and_nothing_is_done(place: Place) -> None:
    options = ["--way", "reduce", "--forever", "--pace-ms", "20", *Meeting.options(place)]
    with running_ranks(place, 2, "parallel", *options, PROBE_RANK_HOLD_S="60") as ranks:
        meeting = Meeting(place, ranks)
        asked = Asked(lambda: act(place, ranks.name, "clip", max_norm=1.0))
        meeting.until_held(asked)
        ranks[0].signal(signal.SIGINT)
        assert ranks[0].wait() == -signal.SIGINT
        assert "KeyboardInterrupt" in ranks[0].errors()
        meeting.let_go()
        with pytest.raises(NotTogether, match="rank 0: a signal reached the training"):
            asked.outcome()
        states = query(place, ranks.name, "SELECT DISTINCT state FROM probe.actions WHERE action = 'clip'")
        assert sorted(state for state, in states) == ["asked", "cancelled"]
