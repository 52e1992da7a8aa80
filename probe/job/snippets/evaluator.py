"""Evaluator: classifies a snippet, queues it where it belongs, and makes its one answer.

`take` runs on the agent's thread: it has the guard classify the snippet and adds it to the task queue, so
that snippets keep the order of arrival. The function it returns runs on the request's own thread: it waits
for the training thread's next boundary, or starts the snippet on a thread of its own. Standard library only.
"""

from __future__ import annotations

import ast
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from probe.base.errors import (
    AgentMissing,
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
from probe.job.boundary.task_queue import GRACE_S, Task, TaskQueue
from probe.job.introspection.snippet_names import Scope, names_used
from probe.job.snippets.evaluation import AT_BOUNDARY, AT_ONCE, Evaluation, explained, parse
from probe.job.snippets.guard import rules
from probe.job.snippets.guard.attributes import Finding
from probe.job.snippets.guard.classify import Judgement, classify
from probe.job.snippets.guard.watching import SnippetForbidden, SnippetTimeout

WHEN = ("auto", "now", "step", "reading")
"""`now`: at once, whatever it is; `step`: at a boundary, also when it only reads; `reading`: at once if it
only reads, else not at all."""
_MOST_REASONS = 5

Note = Callable[[Mapping[str, Any]], object]
"""Called with `outcome` and other known columns: writes the audit of a snippet."""


class Snippet(NamedTuple):
    """A request to run a snippet. `force`: also with collectives on one rank, or gradients at any time."""

    code: str
    timeout_s: float
    wait_s: float
    when: str
    force: bool
    client: object = None
    """The caller: snippets of one client run in order. None: unknown."""
    together: str = ""
    """Not empty if all ranks run it at the same boundary: its name, the same on all of them."""
    boundary_s: float | None = None
    """How long it waits for a boundary, if not `wait_s`: the server may know that none will come."""


class Surroundings(NamedTuple):
    """Facts about the job: where names are looked up; whether other ranks wait for this one; whether it is
    held at its end, so that there will be no boundary; what the training thread does; whether one thread does
    all the training."""

    scope: Callable[[], Scope]
    several_ranks: Callable[[], bool]
    held: Callable[[], bool]
    where: Callable[[], str]
    alone: Callable[[], bool]


class Evaluator:
    """Runs snippets for one agent."""

    def __init__(self, surroundings: Surroundings, queue: TaskQueue, output_bytes: int) -> None:
        self._job = surroundings
        self._queue = queue
        self._output_bytes = output_bytes

    def take(self, snippet: Snippet, note: Note) -> Callable[[], dict[str, Any]]:
        """Classify a snippet and queue it; the returned function waits and returns the answer.

        Raises `SnippetRefused`. The answer has the shape of docs/protocols.md; waiting raises
        `EvalBusy`, `EvalTimeout`, `NoBoundary`, `LimitReached`."""
        tree, error = capture(lambda: parse(snippet.code))
        if error is not None:
            note({"outcome": "started"})
            note({"outcome": "raised", "duration_s": 0.0})
            answer = _unparsed(error)
            return lambda: answer
        run, names = self._classified(snippet, tree, note)
        evaluation = run.evaluation
        if self._runs_at_once(snippet, run.judgement):
            run.place = AT_ONCE
            evaluation.names = names  # the ones that were classified: a frame may have changed since
            evaluation.ended = self._queue.ended
        run.note("started")
        task = Task(
            evaluation.run_at_boundary, snippet.client, evaluation if run.place == AT_ONCE else None
        )
        wait = self._beside if run.place == AT_ONCE else self._at_boundary
        _, closed = capture(lambda: self._queue.add(task))
        if closed is not None:
            run.note("cancelled")
            raise closed

        def answer_once() -> dict[str, Any]:
            try:
                return run.answer(lambda: wait(run, task))
            finally:
                self._queue.leave(task)

        return answer_once

    def prepare(self, snippet: Snippet, note: Note) -> Prepared:
        """Classify a snippet that every rank is asked to run; nothing runs, and nothing is noted, yet.

        Its `told` has the class; a snippet that only reads is then run by each rank separately. Raises
        `SnippetRefused`."""
        tree, error = capture(lambda: parse(snippet.code))
        run, _ = self._classified(snippet, ast.Module([], []) if error is not None else tree, note)
        if error is not None:
            run.evaluation.error = explained(error)
        return Prepared(
            told={"class": run.judgement.kind, "why": _reasons(run.judgement)},
            work=run.evaluation.run_at_boundary, take_back=None,
            answer=lambda task: run.answer(lambda: self._at_boundary(run, task)),
            give_up=lambda error: None, announce=lambda: run.note("started"),
        )

    # Where it belongs -------------------------------------------------------

    def _classified(
        self, snippet: Snippet, tree: ast.Module, note: Note
    ) -> tuple[_Run, dict[str, Any]]:
        """A snippet that may run, and the objects that its names referred to when it was classified."""
        names, error = capture(lambda: self._job.scope().resolve(names_used(tree)))
        if error is None:
            judgement = classify(tree, names)
        else:
            names, why = {}, f"names cannot be looked up: {describe(error)}"
            judgement = Judgement(rules.CHANGING, (Finding(rules.CHANGING, 1, "the snippet", why),))
        refusal = self._refusal(snippet, judgement)
        if refusal is not None:
            note({"outcome": "refused", "class": judgement.kind, "place": None})
            raise refusal
        evaluation = Evaluation(
            snippet.code, tree, self._job.scope, self._output_bytes, snippet.timeout_s,
            collectives=snippet.force or not self._job.several_ranks(), together=snippet.together,
        )
        evaluation.leaves_nothing = judgement.only_looks
        return _Run(snippet, judgement, evaluation, note), names

    def _refusal(self, snippet: Snippet, judgement: Judgement) -> SnippetRefused | None:
        why = "; ".join(_reasons(judgement))
        allowed = snippet.force or bool(snippet.together)
        if judgement.kind == rules.COLLECTIVE and self._job.several_ranks() and not allowed:
            return SnippetRefused(
                f"a collective on one rank of several: {why}",
                hint="The other ranks would hang, or match it with their own next collective. `--together`, "
                "with the name of the job, runs it on all ranks at the same step; `--force` runs it on this "
                "rank only.",
            )
        if judgement.kind == rules.BLOCKING and (snippet.when == "step" or snippet.together):
            return SnippetRefused(
                f"it would hold up the training: {why}",
                hint="Without `--at-step` and `--together` it runs on a thread of its own.",
            )
        if snippet.when == "reading" and judgement.kind != rules.READING:
            return SnippetRefused(f"it does more than read: {why}", hint="Without `reading` it may run.")
        hint = self._gradient_race(snippet, judgement)
        if hint:
            return SnippetRefused(f"torch's memory could be corrupted: {why}", hint=hint)
        return SnippetRefused(f"refused: {why}") if judgement.kind == rules.REFUSED else None

    def _gradient_race(self, snippet: Snippet, judgement: Judgement) -> str:
        """The hint if it would read gradients while a backward may write them; else empty."""
        settled = any(one.kind == rules.SETTLED for one in judgement.findings)
        if not settled or snippet.force or self._job.held():
            return ""
        if snippet.when == "now":
            return (
                "Without `--now` it runs between two steps, where that is safe. In a job that makes no more "
                "steps, `--force` runs it anyway."
            )
        if not self._job.alone():
            return (
                "Several threads of this job train: between two steps of one thread, another may be in its "
                "backward. `--force` runs it anyway."
            )
        return ""

    def _runs_at_once(self, snippet: Snippet, judgement: Judgement) -> bool:
        if snippet.when == "step" or snippet.together:
            return False
        harmless = judgement.kind in (rules.READING, rules.BLOCKING)
        return harmless or snippet.when == "now" or self._job.held()

    # Running it: the request's thread ---------------------------------------

    def _at_boundary(self, run: _Run, task: Task) -> float | None:
        """Wait until it has run between two steps; returns how long the training thread was held."""
        snippet = run.snippet
        wait_s = snippet.wait_s if snippet.boundary_s is None else snippet.boundary_s
        self._queue.wait(task, wait_s, self._job.where)
        run.evaluation.step = task.step
        task.outcome()
        return task.held_s

    def _beside(self, run: _Run, task: Task) -> None:
        """Run it on a thread of its own, and wait until it has ended."""
        evaluation = run.evaluation
        self._queue.begin(task, run.snippet.wait_s)
        evaluation.thread.join(run.snippet.timeout_s)
        if evaluation.thread.is_alive():
            evaluation.press(GRACE_S)
        evaluation.finish()

    # The agent's thread, and ends -------------------------------------------

    def insist(self) -> None:
        """Interrupt an overdue snippet once more. On the agent's thread, every second."""
        running = self._queue.running
        if running is not None and time.monotonic() > running.deadline:
            running.interrupt()

    def end(self, wait_s: float) -> None:
        """Stop whatever runs, waiting at most `wait_s`: a thread inside C++ at exit aborts the process."""
        running = self._queue.running
        if running is not None and running.thread is not threading.current_thread():
            running.press(wait_s)


class _Run:
    """One snippet that was classified, and its audit."""

    def __init__(self, snippet: Snippet, judgement: Judgement, evaluation: Evaluation, note: Note) -> None:
        self.snippet = snippet
        self.judgement = judgement
        self.evaluation = evaluation
        self.place = AT_BOUNDARY
        self._note = note

    def note(self, outcome: str, **figures: float | None) -> None:
        """Record its outcome."""
        self._note(
            {"outcome": outcome, **figures, "class": self.judgement.kind, "place": self.place, **self._step()}
        )

    def _step(self) -> dict[str, int]:
        """The step after which it ran; empty if it did not run between two steps."""
        return {} if self.evaluation.step is None else {"step": self.evaluation.step}

    def answer(self, wait: Callable[[], float | None]) -> dict[str, Any]:
        """The answer, once `wait` has returned: how long the training thread was held, or None."""
        evaluation = self.evaluation
        held_s, error = capture(wait)
        if isinstance(error, ProbeError):
            cancelled = isinstance(error, (NoBoundary, NotTogether, EvalBusy, AgentMissing))
            self.note("cancelled" if cancelled else "raised", duration_s=None)
            raise error
        if error is not None:  # from a signal handler: the training thread gets it, too
            self.note("cancelled", duration_s=evaluation.elapsed_s, held_s=held_s)
            raise LimitReached(f"a signal ended the snippet: {describe(error)}")
        self._raise_if_cut_short(held_s)
        outcome = "ok" if evaluation.error is None else "raised"
        self.note(outcome, duration_s=evaluation.elapsed_s, held_s=held_s)
        return {
            "output": evaluation.buffer.text(),
            "dropped_bytes": evaluation.buffer.dropped_bytes,
            "value": evaluation.value,
            "error": evaluation.error,
            "elapsed_ms": (evaluation.elapsed_s or 0.0) * 1e3,
            "class": self.judgement.kind,
            "why": _reasons(self.judgement),
            "where": AT_ONCE if held_s is None else AT_BOUNDARY,
            "held_ms": None if held_s is None else held_s * 1e3,
            "kept": evaluation.kept,
            **self._step(),
        }

    def _raise_if_cut_short(self, held_s: float | None) -> None:
        evaluation = self.evaluation
        ended, cause = not evaluation.thread.is_alive(), evaluation.cut_short
        if ended and cause is None:
            return
        figures = {"duration_s": time.monotonic() - evaluation.started, "held_s": held_s}
        printed = evaluation.buffer.text()[-200:]
        tail = f" It had printed: {printed!r}." if printed else ""
        if ended:
            tail += "".join(f" {one[:1].upper()}{one[1:]}." for one in evaluation.kept)
        if not ended or isinstance(cause, SnippetTimeout):
            self.note("timeout", **figures)
            if ended:
                raise EvalTimeout(f"the snippet was stopped after {self.snippet.timeout_s:g} s.{tail}")
            raise EvalTimeout(
                f"the snippet did not end within {self.snippet.timeout_s:g} s and still runs: it is inside a "
                f"call that cannot be interrupted, or it catches the exception that stops it. probe tries to "
                f"stop it again every second.{tail}"
            )
        if isinstance(cause, SnippetForbidden):
            self.note("refused", **figures)
            raise SnippetRefused(
                f"stopped before it called {cause.what}: {cause.why}.{tail}",
                hint="Its effects up to there stay. docs/guard.md lists the classes of snippets.",
            )
        self.note("raised", **figures)
        raise LimitReached(f"the snippet was stopped: {cause}.{tail}", hint="Use less memory at a time.")


def _reasons(judgement: Judgement) -> list[str]:
    return [
        f"line {one.line}: `{one.what}` {one.why}" for one in judgement.findings[:_MOST_REASONS]
    ]


def _unparsed(error: BaseException) -> dict[str, Any]:
    """The answer to a snippet that cannot be parsed."""
    return {
        "output": "", "dropped_bytes": 0, "value": None, "error": explained(error), "elapsed_ms": 0.0,
        "class": None, "why": [], "where": None, "held_ms": None, "kept": [],
    }
