"""Coordinated steps: work that all ranks of a job do at the same step, or none does. One rank's side of it.

    prepare   agent's thread: validate and build it; nothing is queued yet
    arm       agent's thread: an appointment for the boundary before step S; refused if that is past
    keep      training thread, at that boundary: hold until all ranks have arrived (`CommitVote`), do it, and
              if a rank could not, revert it before the step begins
    outcome   the request's thread: the answer

The server (`server.hosts.coordinator`) coordinates and may be killed at any moment: what is prepared or armed
expires, and at the agreed step the ranks decide by the vote alone. A rank holds for at most
PROBE_RANK_HOLD_S, and not at all unless all are known to be appointed (or the training is paused). Standard
library only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from probe.base.commit_vote import COME, DID, EARLY, GO, STAY, CommitVote, Decision
from probe.base.errors import ActionFailed, ActionUnknown, LimitReached, NotTogether, ProbeError, TooMany
from probe.base.isolation import Isolation, capture, describe
from probe.job.boundary.safe_point import Appointment, SafePoint
from probe.job.boundary.task_queue import Task, as_interrupt
from probe.job.instruments.core.recorder import Recorder

COMING_RATIO = 0.8
"""Share of the longest hold for waiting until all have arrived; the rest is for doing it."""
_PREPARED_S = 12.0
"""Prepared work that is not armed expires after this time: the server that asked is gone."""
_EAGER_S = 0.01
_POLL_S = (0.0002, 0.001)
"""How often a held thread reads the decision: at first, and later on."""
_CHECK_S = 0.02
"""How often to check whether a pending appointment was called off."""
_ANSWER_S = 600.0
"""How long an answer that nobody fetches is kept."""


class Prepared(NamedTuple):
    """Validated work. `work` and `take_back` run on the training thread; `answer` makes the answer, or
    raises; `give_up` releases it; `announce` journals that it is about to begin."""

    told: dict[str, Any]
    """Facts for the server: class, whether it only reads."""
    work: Callable[[], Any]
    take_back: Callable[[], Any] | None
    """Reverts `work` at the same boundary; None if it cannot or need not be reverted."""
    answer: Callable[[Task], dict[str, Any]]
    give_up: Callable[[ProbeError], object]
    announce: Callable[[], object] = lambda: None


class Meeting(Appointment):
    """All ranks at the boundary before one step."""

    def __init__(
        self, prepared: Prepared, vote: CommitVote, name: str, at_step: int, hold_s: float, until_s: float
    ) -> None:
        """`name` is this rank's in the vote; `until_s`, monotonic, is when waiting for the step ends."""
        super().__init__(prepared.work, at_step)
        self.vote = vote
        self.name = name
        self.hold_s = hold_s
        self.until_s = until_s
        self.came = False
        """Whether this rank arrived at the step, regardless of the decision."""
        self.held_anyway = False
        """Whether the training is paused: then it may wait until all ranks are appointed."""
        self._take_back = prepared.take_back
        self._go: Decision | None = None
        self._stay: Decision | None = None
        self._begun = self._over = False

    # The training thread ----------------------------------------------------

    def keep(self) -> None:
        """Hold until it is decided, do it, and keep or revert it as all ranks do.

        An exception of a signal handler in that time belongs to the training (`interrupt`): this rank then
        votes `no`, still follows the decision, and passes the exception on."""
        self.came = True
        begun_s = time.monotonic()
        while not self._over:
            _, error = capture(lambda: self._advance(begun_s))
            found = as_interrupt(error)
            if found is not None:
                self.interrupt = found
            elif error is not None:  # the folder cannot be written
                self._vote_lost(error)

    def _advance(self, begun_s: float) -> None:
        """Continue from where it was interrupted to the end."""
        if self._go is None:
            self._go = self._decided(GO, COME, begun_s + COMING_RATIO * self.hold_s)
        if not self._go.yes:
            self.error = NotTogether(self._go.why)
        elif not self._begun:
            self._begun = True
            self.result, self.error = capture(self.work)
            found = as_interrupt(self.error)
            if found is not None:  # two threads that raise one exception mix up its traceback
                self.interrupt = found
                self.error = InterruptedError(f"a signal handler raised {describe(found)}")
        if self._go.yes and self._take_back is not None:
            self._keep_or_revert(self._take_back, begun_s + self.hold_s)
        self._over = True

    def _keep_or_revert(self, take_back: Callable[[], Any], until_s: float) -> None:
        """It was begun here: keep it if all ranks have done it, else revert it."""
        if self._stay is None and self.error is not None:
            self._stay = self.vote.cast(STAY, False, f"rank {self.name}: {_words(self.error)}")
        elif self._stay is None:
            self._stay = self._decided(STAY, DID, until_s)
        if self._stay.yes or self.error is not None:
            return
        self.error = NotTogether(f"{self._stay.why}; the change here was reverted before the step began")
        _, error = capture(take_back)
        if error is not None:
            self.interrupt = as_interrupt(error) or self.interrupt
            self.error = ActionFailed(f"{self._stay.why}; reverting it here failed: {describe(error)}")

    def _decided(self, question: str, mark: str, until_s: float) -> Decision:
        """Wait for the decision on a question: `yes` if all members have left the mark."""
        while self.vote.members() is None:
            decision = self.vote.decision(question)
            if decision is not None:
                return decision
            if not self.held_anyway or self.interrupt is not None or time.monotonic() >= until_s:
                return self.vote.cast(question, False, EARLY)
            time.sleep(_POLL_S[1])
        self.vote.mark(mark, self.name)
        begun_s = time.monotonic()
        if not self.vote.missing(mark):
            return self.vote.cast(question, True)  # the last to arrive decides
        while True:
            decision = self.vote.decision(question)
            now_s = time.monotonic()
            if decision is not None:
                return decision
            if self.interrupt is not None:
                why = f"rank {self.name}: a signal reached the training ({describe(self.interrupt)})"
                return self.vote.cast(question, False, why)
            if now_s >= until_s:
                return self.vote.cast(question, False, self._late(question, mark))
            time.sleep(_POLL_S[now_s - begun_s > _EAGER_S])

    def _late(self, question: str, mark: str) -> str:
        who = ", ".join(self.vote.missing(mark)) or "?"
        did = "had not reached" if question == GO else "had not finished at"
        return f"rank {who} {did} the agreed step within {self.hold_s:g} s of the others"

    def _vote_lost(self, error: BaseException) -> None:
        """The vote cannot be read or written: decide `no` here; other ranks may decide otherwise."""
        lost = Decision(False, f"rank {self.name}: the vote cannot be read or written: {describe(error)}")
        if self._go is None:
            self._go = lost
        else:
            self._stay = lost

    # Any thread -------------------------------------------------------------

    def passed(self) -> None:
        """See `Appointment.passed`."""
        self.call_off(f"rank {self.name} passed the agreed step without a boundary")

    def call_off(self, why: str) -> None:
        """Vote `no`, unless it is decided; if this rank has not arrived, it will not run here."""
        decision, _ = capture(lambda: self.vote.cast(GO, False, why))
        if self.claim():
            self.error = NotTogether(why if decision is None or decision.yes else decision.why)
            self.done.set()

    def check(self) -> None:
        """Call it off here if another rank has, or if its time is over."""
        decision, _ = capture(lambda: self.vote.decision(GO))
        if decision is not None and not decision.yes:
            self.call_off(decision.why)
        elif time.monotonic() > self.until_s:
            self.call_off(f"the agreed step, {self.at_step}, did not begin in time")


class _Kept:
    """Prepared work, until its answer is fetched."""

    def __init__(self, prepared: Prepared, until_s: float) -> None:
        self.prepared = prepared
        self.until_s = until_s
        self.meeting: Meeting | None = None
        self.answered = threading.Event()
        self.answer: dict[str, Any] = {}

    @property
    def met(self) -> bool:
        """Whether the meeting is over."""
        return self.meeting is not None and self.meeting.done.is_set()


class Coordinated:
    """The work that one agent has prepared or armed. Its methods run on the agent's thread; the functions
    they return, on the request's."""

    def __init__(
        self, safepoint: SafePoint, recorder: Recorder, isolation: Isolation, directory: Path, rank: int,
        where: Callable[[], str],
    ) -> None:
        """`where` describes what the training thread does."""
        self._safepoint = safepoint
        self._recorder = recorder
        self._isolation = isolation
        self._directory = directory
        self._name = str(rank)
        self._where = where
        self._kept: dict[str, _Kept] = {}

    def require_free(self) -> None:
        """Raise `TooMany` while something is prepared or armed: one at a time."""
        busy = next((key for key, one in self._kept.items() if not one.met), None)
        if busy is not None:
            raise TooMany(f"the ranks are still agreeing on {busy}")

    def prepare(self, name: str, prepared: Prepared) -> dict[str, Any]:
        """Keep it until it is armed, or expires."""
        self._kept[name] = _Kept(prepared, time.monotonic() + _PREPARED_S)
        recorder = self._recorder
        return {
            **prepared.told, "can_take_back": prepared.take_back is not None,
            "step": recorder.counted_step, "paused": self._safepoint.paused, "phase": recorder.phase,
        }

    def arm(self, name: str, at_step: int, hold_s: float, wait_s: float) -> dict[str, Any]:
        """Appoint it for the boundary before `at_step`, which must come within `wait_s`."""
        kept = self._find(name)
        vote = CommitVote(self._directory, name)
        until_s = time.monotonic() + wait_s
        kept.meeting = meeting = Meeting(kept.prepared, vote, self._name, at_step, hold_s, until_s)
        meeting.held_anyway = self._safepoint.paused
        kept.prepared.announce()
        # The answer is made and journalled even if nobody fetches it.
        thread = threading.Thread(
            target=self._finish, args=(kept, meeting), name="probe-request", daemon=True
        )
        _, error = capture(thread.start)
        if error is not None:
            self._forget(name, LimitReached(f"the job cannot start another thread: {error}"))
            raise LimitReached(f"the job cannot start another thread: {error}")
        in_time, closed = capture(lambda: self._safepoint.appoint(meeting))
        if not in_time:
            meeting.call_off(EARLY if closed is None else describe(closed))
            self._safepoint.withdraw(meeting)
            raise closed or NotTogether(EARLY)
        return {"step": self._recorder.counted_step}

    def drop(self, name: str, why: str) -> dict[str, Any]:
        """Call it off; does nothing if it is not known any more."""
        kept = self._kept.get(name)
        if kept is not None and kept.meeting is None:
            self._forget(name, NotTogether(why))
        elif kept is not None and kept.meeting is not None:
            kept.meeting.call_off(why)
        return {}

    def outcome(self, name: str, wait_s: float) -> Callable[[], dict[str, Any]]:
        """Returns a function that waits for its answer."""
        kept = self._find(name)

        def answer() -> dict[str, Any]:
            if not kept.answered.wait(wait_s):
                raise LimitReached(f"{name} is not done after {wait_s:g} s")
            self._kept.pop(name, None)
            return kept.answer

        return answer

    def tidy(self) -> None:
        """A round of the agent's thread: forget expired work and answers."""
        now_s = time.monotonic()
        for name, kept in list(self._kept.items()):
            if kept.meeting is None and now_s > kept.until_s:
                self._forget(name, NotTogether("it was prepared but never confirmed: the server may be gone"))
            elif kept.answered.is_set() and now_s > kept.until_s + _ANSWER_S:
                self._kept.pop(name, None)

    def close(self, why: ProbeError) -> None:
        """Probe leaves the process: drop all prepared and armed work."""
        for name, kept in list(self._kept.items()):
            if kept.meeting is None:
                self._forget(name, why)
            else:
                kept.meeting.call_off(f"rank {self._name}: {why.message}")

    def _find(self, name: str) -> _Kept:
        kept = self._kept.get(name)
        if kept is None:
            raise ActionUnknown(f"rank {self._name} has nothing prepared as {name!r}, or it has expired")
        return kept

    def _forget(self, name: str, why: ProbeError) -> None:
        kept = self._kept.pop(name, None)
        if kept is not None:
            self._isolation.attempt("together", lambda: kept.prepared.give_up(why))

    # A thread for each meeting ----------------------------------------------

    def _finish(self, kept: _Kept, meeting: Meeting) -> None:
        """Wait until it was kept or called off, and make the answer."""
        while not meeting.done.wait(_CHECK_S):
            meeting.check()
        self._safepoint.withdraw(meeting)
        where = "" if meeting.came else self._isolation.attempt("together", self._where)
        answer, error = capture(lambda: kept.prepared.answer(meeting))
        kept.answer = {"came": meeting.came, "where": where or "", "step": meeting.step}
        if error is None:
            kept.answer["answer"] = answer
        elif isinstance(error, ProbeError):
            kept.answer.update(error.as_dict())
        else:
            kept.answer.update(ActionFailed(describe(error)).as_dict())
        kept.answer["held_ms"] = None if meeting.held_s is None else meeting.held_s * 1e3
        kept.answered.set()


def _words(error: BaseException) -> str:
    return error.message if isinstance(error, ProbeError) else describe(error)
