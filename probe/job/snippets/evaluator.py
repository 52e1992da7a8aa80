"""Evaluator: snippets in line, each judged, sent to its place, and answered once.

`take` runs on the agent's thread: it judges a snippet (`guard`) and puts it in
line, so that the order is that of arrival. What it returns runs on the request's
own thread and waits: for the snippets in front, of which one at a time runs on a
thread of its own, or for the training thread's next boundary. Standard library
only.
"""

from __future__ import annotations

import ast
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from probe.base.errors import (
    EvalBusy,
    EvalTimeout,
    LimitReached,
    NoBoundary,
    NotTogether,
    ProbeError,
    SnippetRefused,
)
from probe.base.isolation import capture, describe
from probe.job.boundary.coordinated import Prepared
from probe.job.boundary.safe_point import SafePoint, Visit
from probe.job.introspection.snippet_names import Scope, names_used
from probe.job.snippets.evaluation import AT_BOUNDARY, AT_ONCE, Evaluation, explained, parse
from probe.job.snippets.guard import rules
from probe.job.snippets.guard.attributes import Finding
from probe.job.snippets.guard.classify import Judgement, classify
from probe.job.snippets.guard.watching import SnippetForbidden, SnippetTimeout

_GRACE_S = 0.5
"""How long a snippet that was told to stop is waited for."""
WHEN = ("auto", "now", "step")
"""`now`: at once, whatever it is; `step`: at a boundary, also when it only reads."""
_MOST_REASONS = 5

Note = Callable[[Mapping[str, Any]], object]
"""Called with `outcome` and what else is known: the audit of a snippet."""


class Snippet(NamedTuple):
    """What was asked. `force`: also what concerns other ranks."""

    code: str
    timeout_s: float
    wait_s: float
    when: str
    force: bool
    client: object = None
    """Who asked: snippets of one client run in the order in which they came. None: not known."""
    together: str = ""
    """Not empty when every rank runs it at the same boundary: names it alike on all of them."""


class Turn:
    """A snippet's place among those of its client."""

    def __init__(self, place: str, before: Turn | None) -> None:
        self.place = place
        self.entered = threading.Event()
        self.done = threading.Event()
        self._after = None
        if before is not None:
            # Those of one place keep their order by themselves once they are in line there.
            self._after = before.entered if before.place == place else before.done

    def is_free(self) -> bool:
        """Whether nothing of the client's is in front of it."""
        return self._after is None or self._after.is_set()

    def wait(self, wait_s: float) -> None:
        """Until it is free; raises `EvalBusy` when that takes too long."""
        if self._after is not None and not self._after.wait(wait_s):
            raise EvalBusy(f"an earlier snippet of the same client has not run for {wait_s:g} s")


class Surroundings(NamedTuple):
    """Of the job: where names are looked for, whether other ranks wait for this one, whether it trains
    no more (held at its end: there will be no boundary), what the training thread does, and whether one
    thread does all the training."""

    scope: Callable[[], Scope]
    several_ranks: Callable[[], bool]
    held: Callable[[], bool]
    where: Callable[[], str]
    alone: Callable[[], bool]


class Evaluator:
    """Runs snippets for one agent."""

    def __init__(self, surroundings: Surroundings, safepoint: SafePoint, output_bytes: int) -> None:
        self._job = surroundings
        self._safepoint = safepoint
        self._output_bytes = output_bytes
        self._line: deque[Evaluation] = deque()
        self._turn = threading.Condition()
        self._current: Evaluation | None = None
        self._last: dict[object, Turn] = {}

    def take(self, snippet: Snippet, note: Note) -> Callable[[], dict[str, Any]]:
        """Judge a snippet and put it in line; the returned function waits and returns the answer.

        Raises `SnippetRefused`. The answer has the shape of ARCHITECTURE.md; waiting raises
        `EvalBusy`, `EvalTimeout`, `NoBoundary`, `LimitReached`."""
        tree, error = capture(lambda: parse(snippet.code))
        if error is not None:
            note({"outcome": "started"})
            note({"outcome": "raised", "duration_s": 0.0})
            answer = _unparsed(error)
            return lambda: answer
        judgement, names = self._judge(tree)
        self._refuse(snippet, judgement, note)
        at_once = self._place(snippet, judgement) == AT_ONCE
        known = {"class": judgement.kind, "place": AT_ONCE if at_once else AT_BOUNDARY}
        note({"outcome": "started", **known})
        evaluation = Evaluation(
            snippet.code, tree, self._job.scope, self._output_bytes, snippet.timeout_s,
            collectives=snippet.force or not self._job.several_ranks(), together=snippet.together,
        )
        evaluation.leaves_nothing = judgement.only_looks
        if at_once:
            evaluation.names = names  # those that were judged: a frame may have moved on since
        turn = self._turn_of(snippet.client, known["place"])
        run = (self._beside if at_once else self._between)(evaluation, snippet, turn)

        def end(row: Mapping[str, Any]) -> None:
            note({**row, **known, **_at(evaluation)})

        def answer_once() -> dict[str, Any]:
            try:
                return self._answer(evaluation, judgement, run, end, snippet)
            finally:
                turn.entered.set()
                turn.done.set()

        return answer_once

    def prepare(self, snippet: Snippet, note: Note) -> Prepared:
        """Judge a snippet that every rank is asked to run; nothing runs, and nothing is noted, yet.

        Its `told` has the class; what only reads is then taken on each rank for itself. Raises
        `SnippetRefused`."""
        tree, error = capture(lambda: parse(snippet.code))
        if error is not None:
            tree = ast.Module([], [])  # each rank says so itself
        judgement, _ = self._judge(tree)
        self._refuse(snippet, judgement, note)
        known = {"class": judgement.kind, "place": AT_BOUNDARY}
        evaluation = Evaluation(
            snippet.code, tree, self._job.scope, self._output_bytes, snippet.timeout_s,
            collectives=snippet.force or not self._job.several_ranks(), together=snippet.together,
        )
        evaluation.leaves_nothing = judgement.only_looks

        def end(row: Mapping[str, Any]) -> None:
            note({**row, **known, **_at(evaluation)})

        def answer(visit: Visit) -> dict[str, Any]:
            def run() -> float | None:
                evaluation.step = visit.step
                visit.outcome()
                return visit.held_s

            return self._answer(evaluation, judgement, run, end, snippet)

        return Prepared(
            told={"class": judgement.kind, "why": _reasons(judgement)}, work=evaluation.run_at_boundary,
            take_back=None, answer=answer, give_up=lambda error: None,
            announce=lambda: note({"outcome": "started", **known}),
        )

    def _turn_of(self, client: object, place: str) -> Turn:
        """After what this client has asked before."""
        self._last = {who: turn for who, turn in self._last.items() if not turn.done.is_set()}
        turn = Turn(place, self._last.get(client))
        if client is not None:
            self._last[client] = turn
        return turn

    # Where it belongs -------------------------------------------------------

    def _judge(self, tree: ast.Module) -> tuple[Judgement, dict[str, Any]]:
        """The class of a snippet, and the objects its names meant when it was judged."""
        found, error = capture(lambda: self._job.scope().resolve(names_used(tree)))
        if error is None:
            return classify(tree, found), found
        why = f"names cannot be looked up: {describe(error)}"
        return Judgement(rules.CHANGING, (Finding(rules.CHANGING, 1, "the snippet", why),)), {}

    def _refuse(self, snippet: Snippet, judgement: Judgement, note: Note) -> None:
        allowed = snippet.force or bool(snippet.together)
        alone = judgement.kind == rules.COLLECTIVE and self._job.several_ranks() and not allowed
        held_up = judgement.kind == rules.BLOCKING and (snippet.when == "step" or bool(snippet.together))
        torn = self._would_tear(snippet, judgement)
        if judgement.kind != rules.REFUSED and not alone and not held_up and not torn:
            return
        note({"outcome": "refused", "class": judgement.kind, "place": None})
        why = "; ".join(_reasons(judgement))
        if alone:
            raise SnippetRefused(
                f"a collective on one rank of several: {why}",
                hint="The other ranks would wait for it for ever, or take it for their own next one. "
                "`--together`, with the name of the job, runs it on all ranks at the same step; `--force` "
                "runs it here alone all the same.",
            )
        if held_up:
            raise SnippetRefused(
                f"it would hold the training up: {why}",
                hint="Without `--at-step` and `--together` it runs on a thread of its own.",
            )
        if torn:
            raise SnippetRefused(f"torch's memory could break: {why}", hint=torn)
        raise SnippetRefused(f"refused: {why}")

    def _would_tear(self, snippet: Snippet, judgement: Judgement) -> str:
        """What to do instead of looking at gradients while a backward may write them; empty: none may."""
        settled = any(one.kind == rules.SETTLED for one in judgement.findings)
        if not settled or snippet.force or self._job.held():
            return ""
        if snippet.when == "now":
            return (
                "Without `--now` it runs between two steps, where that is safe. In a job that makes no step "
                "any more, `--force` runs it all the same."
            )
        if not self._job.alone():
            return (
                "Several threads of this job train, and between two steps of one another may be in its "
                "backward. `--force` runs it all the same."
            )
        return ""

    def _place(self, snippet: Snippet, judgement: Judgement) -> str:
        if snippet.when == "step" or snippet.together:
            return AT_BOUNDARY
        harmless = judgement.kind in (rules.READING, rules.BLOCKING)
        return AT_ONCE if harmless or snippet.when == "now" or self._job.held() else AT_BOUNDARY

    # Running it -------------------------------------------------------------

    def _between(
        self, evaluation: Evaluation, snippet: Snippet, turn: Turn
    ) -> Callable[[], float | None]:
        """Between two steps; returns what waits, and then how long the training thread was held."""

        def enter() -> Visit:
            visit = self._safepoint.submit(evaluation.run_at_boundary)
            turn.entered.set()
            return visit

        entered = enter() if turn.is_free() else None

        def run() -> float | None:
            turn.wait(snippet.wait_s)
            visit = entered or enter()
            self._safepoint.wait(visit, snippet.wait_s, self._job.where)
            evaluation.step = visit.step
            visit.outcome()
            return visit.held_s

        return run

    def _beside(self, evaluation: Evaluation, snippet: Snippet, turn: Turn) -> Callable[[], None]:
        """On a thread of its own, after those that are in front of it."""
        evaluation.ended = self._next

        def enter() -> None:
            with self._turn:
                self._line.append(evaluation)
            turn.entered.set()

        free = turn.is_free()
        if free:
            enter()

        def run() -> None:
            turn.wait(snippet.wait_s)
            if not free:
                enter()
            self._start(evaluation, snippet)
            evaluation.thread.join(snippet.timeout_s)
            if evaluation.thread.is_alive():
                evaluation.press(_GRACE_S)
            evaluation.finish()

        return run

    def _start(self, evaluation: Evaluation, snippet: Snippet) -> None:
        with self._turn:
            if not self._turn.wait_for(lambda: self._is_next(evaluation), self._patience_s(snippet)):
                self._line.remove(evaluation)
                self._turn.notify_all()
                ran_s = time.monotonic() - self._current.started if self._current else 0.0
                raise EvalBusy(f"an earlier snippet has been running for {ran_s:.1f} s")
            self._line.popleft()
            self._current = evaluation
            _, error = capture(evaluation.start)
        if error is not None:
            self._current = None
            self._next()
            raise LimitReached(f"the job cannot start a thread for the snippet: {error}")

    def _is_next(self, evaluation: Evaluation) -> bool:
        return self._line[0] is evaluation and self._running() is None

    def _patience_s(self, snippet: Snippet) -> float:
        """Not at all behind one that is over its time and does not end."""
        current = self._running()
        late = current is not None and time.monotonic() > current.deadline + _GRACE_S
        return 0.0 if late else snippet.wait_s

    def _next(self) -> None:
        """The running one ends."""
        with self._turn:
            self._current = None
            self._turn.notify_all()

    def _running(self) -> Evaluation | None:
        current = self._current
        return current if current is not None and current.thread.is_alive() else None

    # Answering --------------------------------------------------------------

    def _answer(
        self, evaluation: Evaluation, judgement: Judgement, run: Callable[[], float | None], note: Note,
        snippet: Snippet,
    ) -> dict[str, Any]:
        held_s, error = capture(run)
        if isinstance(error, ProbeError):
            outcome = "cancelled" if isinstance(error, (NoBoundary, NotTogether, EvalBusy)) else "raised"
            note({"outcome": outcome, "duration_s": None})
            raise error
        if error is not None:  # by a signal's handler: the training thread has it
            note({"outcome": "cancelled", "duration_s": evaluation.elapsed_s, "held_s": held_s})
            raise LimitReached(f"a signal ended the snippet: {describe(error)}")
        self._cut_short(evaluation, note, held_s, snippet)
        outcome = "ok" if evaluation.error is None else "raised"
        note({"outcome": outcome, "duration_s": evaluation.elapsed_s, "held_s": held_s})
        return {
            "output": evaluation.buffer.text(),
            "dropped_bytes": evaluation.buffer.dropped_bytes,
            "value": evaluation.value,
            "error": evaluation.error,
            "elapsed_ms": (evaluation.elapsed_s or 0.0) * 1e3,
            "class": judgement.kind,
            "why": _reasons(judgement),
            "where": AT_ONCE if held_s is None else AT_BOUNDARY,
            "held_ms": None if held_s is None else held_s * 1e3,
            "kept": evaluation.kept,
            **_at(evaluation),
        }

    def _cut_short(
        self, evaluation: Evaluation, note: Note, held_s: float | None, snippet: Snippet
    ) -> None:
        """Raise for one that did not come to its end."""
        ended, cause = not evaluation.thread.is_alive(), evaluation.cut_short
        if ended and cause is None:
            return
        timeout = not ended or isinstance(cause, SnippetTimeout)
        row = {"duration_s": time.monotonic() - evaluation.started, "held_s": held_s}
        printed = evaluation.buffer.text()[-200:]
        tail = f" It had printed: {printed!r}." if printed else ""
        if timeout:
            note({"outcome": "timeout", **row})
            if ended:
                raise EvalTimeout(f"the snippet was stopped after {snippet.timeout_s:g} s.{tail}")
            raise EvalTimeout(
                f"the snippet did not end within {snippet.timeout_s:g} s and still runs: it is inside a "
                "call that cannot be interrupted, or catches what would end it. It is told again every "
                f"second.{tail}"
            )
        note({"outcome": "refused" if isinstance(cause, SnippetForbidden) else "raised", **row})
        if isinstance(cause, SnippetForbidden):
            raise SnippetRefused(
                f"stopped before it called {cause.what}: {cause.why}.{tail}",
                hint="What it did before that is done. docs/guard.md says what is classed how.",
            )
        raise LimitReached(f"the snippet was stopped: {cause}.{tail}", hint="Have it make less at a time.")

    # The agent's thread, and ends -------------------------------------------

    def insist(self) -> None:
        """Tell a snippet that is over its time to stop, once more. On the agent's thread, every second."""
        current = self._running()
        if current is not None and time.monotonic() > current.deadline:
            current.interrupt()

    def end(self, wait_s: float) -> None:
        """Stop whatever runs, waiting at most `wait_s`: a thread inside C++ at exit aborts the process."""
        current = self._running()
        if current is not None and current.thread is not threading.current_thread():
            current.press(wait_s)

    def abandon(self) -> None:
        """In a forked child: see `Evaluation.abandon`."""
        if self._current is not None:
            self._current.abandon()


def _at(evaluation: Evaluation) -> dict[str, int]:
    """After which step it ran; empty where it did not run between two."""
    return {} if evaluation.step is None else {"step": evaluation.step}


def _reasons(judgement: Judgement) -> list[str]:
    return [
        f"line {one.line}: `{one.what}` {one.why}" for one in judgement.findings[:_MOST_REASONS]
    ]


def _unparsed(error: BaseException) -> dict[str, Any]:
    """The answer to what is no Python."""
    return {
        "output": "", "dropped_bytes": 0, "value": None, "error": explained(error), "elapsed_ms": 0.0,
        "class": None, "why": [], "where": None, "held_ms": None, "kept": [],
    }
