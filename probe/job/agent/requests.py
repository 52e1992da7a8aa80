"""Requests: the routes of the agent that run snippets, act and undo.

They run on the agent's thread; the functions they return run on the request's. Standard library only.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from probe.base import clock, wire
from probe.base.errors import AgentMissing, BadRequest, NotTogether
from probe.base.isolation import Isolation
from probe.base.settings import Settings
from probe.job.actions.action import Site, several_ranks
from probe.job.agent.acting import Acting, caller_columns, seconds
from probe.job.boundary.coordinated import Coordinated, Prepared
from probe.job.boundary.safe_point import SafePoint
from probe.job.instruments.installation import Installation
from probe.job.introspection.snippet_names import Scope
from probe.job.snippets.evaluator import WHEN, Evaluator, Note, Snippet, Surroundings
from probe.recording.recording import Recording

LONGEST_SNIPPET_S = 3600.0
PHASES = ("judge", "prepare", "arm", "drop", "outcome")
"""Phases of work that all ranks do at the same step; `judge` only classifies a snippet."""
AT_ONCE = ("reading", "blocking")
"""Classes of snippets that each rank may run for itself."""
Answer = Callable[[], dict[str, Any]]


class Requests:
    """The routes of one agent that change something."""

    def __init__(
        self, instruments: Installation, isolation: Isolation, recording: Recording, settings: Settings,
        scope: Callable[[], Scope], where: Callable[[], str], held: Callable[[], bool],
    ) -> None:
        """`where` describes what the training thread does; `held`: whether the process is held at its end."""
        meta, journal, prefix = recording.meta, recording.journal.append, str(os.getpid())
        self.safepoint = safepoint = SafePoint(instruments.recorder, isolation)
        site = Site(instruments, safepoint, scope, settings, meta.rank, meta.world_size)
        self._acting = Acting(
            site, safepoint, isolation, instruments.optimizers, journal, where, prefix, meta.job
        )
        recorder = instruments.recorder
        job = Surroundings(
            scope, lambda: several_ranks(meta.world_size), held, where, lambda: recorder.alone
        )
        self._evaluator = Evaluator(job, safepoint.queue, settings.eval_output_bytes)
        directory = Path(meta.socket).parent.parent
        self._together = Coordinated(safepoint, recorder, isolation, directory, meta.rank, where)
        self._recorder = recorder
        self._site = site
        self._settings = settings
        self._journal = journal
        self._prefix = prefix
        self._numbers = itertools.count(1)

    # The end, and rounds of the agent's thread ------------------------------

    def tidy(self) -> None:
        """A round of the agent's thread: stop overdue snippets, clean up after ended work."""
        self._evaluator.insist()
        self._acting.tidy()
        self._together.tidy()

    def settle(self, wait_s: float) -> None:
        """Before the hooks are removed: end actions that only the training thread can end."""
        self._acting.settle(wait_s)

    def close(self) -> list[str]:
        """End everything that stands or waits; returns a sentence about each standing action."""
        why = AgentMissing("probe left the process before a step ended", hint="Nothing was changed.")
        self._together.close(why)
        return self._acting.close(why)

    def end(self, wait_s: float) -> None:
        """Stop the snippet that runs, waiting at most `wait_s`."""
        self._evaluator.end(wait_s)

    def abandon(self) -> None:
        """In a forked child."""
        self.safepoint.queue.abandon()

    # Routes -----------------------------------------------------------------

    def evaluate(self, request: wire.Request, peer: wire.Peer) -> Answer:
        """`POST /v1/eval`."""
        body = _body(request)
        caller = caller_of(body, peer)
        snippet = self._snippet(body, caller["pid"])
        note = self._noting(snippet, caller)
        if body.get("all_ranks") and self._evaluator.prepare(snippet, note).told["class"] not in AT_ONCE:
            raise NotTogether("names in the snippet refer to other objects by now", hint="Try again.")
        answer = self._evaluator.take(snippet, note)
        return lambda: self._at_step(answer())

    def _noting(self, snippet: Snippet, caller: dict[str, Any], eval_id: str = "") -> Note:
        """A function that journals the outcome of one snippet."""
        eval_id = eval_id or f"{self._prefix}-e{next(self._numbers)}"

        def note(row: Mapping[str, Any]) -> None:
            whole = {
                "eval_id": eval_id, "t_ns": clock.wall_ns(), "step": self._recorder.counted_step,
                **caller_columns(caller), "code": snippet.code, "duration_s": None, "held_s": None,
                "class": None, "place": None, **row,
            }
            self._journal({"table": "probe.evals", "rows": [whole]})

        return note

    def _at_step(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Add the current step to an answer without one: a snippet that did not run between two steps."""
        answer.setdefault("step", self._recorder.counted_step)
        return answer

    def act(self, request: wire.Request, peer: wire.Peer) -> Answer:
        """`POST /v1/act`."""
        body = _body(request)
        return self._acting.act(body, caller_of(body, peer))

    def undo(self, request: wire.Request, peer: wire.Peer) -> Answer:
        """`POST /v1/undo`."""
        body = _body(request)
        return self._acting.undo(body, caller_of(body, peer))

    def actions(self, _request: wire.Request, _peer: wire.Peer) -> dict[str, Any]:
        """`GET /v1/actions`: the actions in force."""
        return self._acting.listing()

    def together(self, request: wire.Request, peer: wire.Peer) -> Answer:
        """`POST /v1/together`: one phase of work that all ranks do at the same step (`coordinated`)."""
        body = _body(request)
        name, phase = body.get("id"), body.get("phase")
        if not isinstance(name, str) or phase not in PHASES:
            raise BadRequest(f"`id` must be a string, `phase` one of {', '.join(PHASES)}")
        if phase == "outcome":
            return self._together.outcome(name, seconds(body, "wait_s"))
        if phase == "judge":
            found = self._prepared(name, body, caller_of(body, peer)).told
        elif phase == "prepare":
            self._together.require_free()
            prepared = self._together.prepare(name, self._prepared(name, body, caller_of(body, peer)))
            found = {**prepared, "from_start": self._site.from_start, "rank": self._site.rank}
        elif phase == "arm":
            step = body.get("step")
            if not isinstance(step, int):
                raise BadRequest("`step` must be a whole number")
            hold_s = min(seconds(body, "hold_s"), self._settings.rank_hold_s)  # the job's own limit
            found = self._together.arm(name, step, hold_s, seconds(body, "wait_s"))
        else:
            found = self._together.drop(name, str(body.get("why") or "called off"))
        return lambda: found

    def _prepared(self, name: str, body: dict[str, Any], caller: dict[str, Any]) -> Prepared:
        """The work for all ranks: a snippet, an action, or undoing one."""
        if "code" in body:
            snippet = self._snippet(body, caller["pid"])
            if body.get("together"):
                snippet = snippet._replace(together=name)
            return self._evaluator.prepare(snippet, self._noting(snippet, caller, name))
        if "action" in body:
            return self._acting.prepare(body, caller, name)
        return self._acting.prepare_undo({"id": body.get("undo")}, caller)

    def _snippet(self, body: dict[str, Any], client: object) -> Snippet:
        code, when = body.get("code"), body.get("when") or "auto"
        timeout_s = seconds(body, "timeout_s", self._settings.eval_timeout_s, LONGEST_SNIPPET_S)
        wait_s = seconds(body, "wait_s", self._settings.act_wait_s)
        boundary_s = seconds(body, "boundary_s", wait_s)
        if not isinstance(code, str) or when not in WHEN:
            raise BadRequest(f"`code` must be a string, `when` one of {', '.join(WHEN)}")
        return Snippet(code, timeout_s, wait_s, when, bool(body.get("force")), client, boundary_s=boundary_s)


def caller_of(body: dict[str, Any], peer: wire.Peer) -> dict[str, Any]:
    """The caller: as named by the server, which runs as the same user, else the peer itself."""
    named = body.get("caller")
    if not isinstance(named, dict):
        return {"uid": peer.uid, "pid": peer.pid, "role": "owner"}
    uid, pid, role = named.get("uid"), named.get("pid"), named.get("role")
    return {
        "uid": uid if isinstance(uid, int) else None, "pid": pid if isinstance(pid, int) else None,
        "role": role if isinstance(role, str) else "owner",
    }


def _body(request: wire.Request) -> dict[str, Any]:
    return request.body if isinstance(request.body, dict) else {}
