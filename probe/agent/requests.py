"""Requests to act: snippets, actions, undoing. From the wire to who does it, with who asked.

Runs on the agent's thread; what it returns runs on the request's. Standard
library only.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from probe import clock, wire
from probe.control.acting import LONGEST_WAIT_S, Acting
from probe.control.evaluator import WHEN, Evaluator, Snippet
from probe.errors import BadRequest
from probe.instruments.recorder import Recorder
from probe.settings import Settings

LONGEST_SNIPPET_S = 3600.0
Answer = Callable[[], dict[str, Any]]


class Requests:
    """The routes of one agent that change something."""

    def __init__(
        self, evaluator: Evaluator, acting: Acting, recorder: Recorder, settings: Settings,
        journal: Callable[[dict[str, Any]], object], prefix: str,
    ) -> None:
        self._evaluator = evaluator
        self._acting = acting
        self._recorder = recorder
        self._settings = settings
        self._journal = journal
        self._prefix = prefix
        self._numbers = itertools.count(1)

    def evaluate(self, request: wire.Request, peer: wire.Peer) -> Answer:
        """`POST /v1/eval`."""
        body = _body(request)
        caller = caller_of(body, peer)
        snippet = self._snippet(body, caller["pid"])
        eval_id = f"{self._prefix}-e{next(self._numbers)}"

        def note(row: Mapping[str, Any]) -> None:
            whole = {
                "eval_id": eval_id, "t_ns": clock.wall_ns(), "step": self._recorder.counted_step,
                "caller_uid": caller["uid"], "caller_pid": caller["pid"], "caller_role": caller["role"],
                "code": snippet.code, "duration_s": None, "held_s": None, "class": None, "place": None, **row,
            }
            self._journal({"table": "probe.evals", "rows": [whole]})

        answer = self._evaluator.take(snippet, note)
        return lambda: self._at_step(answer())

    def _at_step(self, answer: dict[str, Any]) -> dict[str, Any]:
        """With the step it was in, where it ran in no place between two."""
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
        """`GET /v1/actions`: what is in force."""
        return self._acting.listing()

    def _snippet(self, body: dict[str, Any], client: object) -> Snippet:
        code, when = body.get("code"), body.get("when") or "auto"
        timeout_s = body.get("timeout_s") or self._settings.eval_timeout_s
        wait_s = body.get("wait_s") or self._settings.act_wait_s
        if not isinstance(code, str) or not _within(timeout_s, LONGEST_SNIPPET_S):
            raise BadRequest("eval needs `code`, a text, and `timeout_s`, above 0 and at most 3600")
        if not _within(wait_s, LONGEST_WAIT_S) or when not in WHEN:
            raise BadRequest(f"`wait_s` must be above 0, `when` one of {', '.join(WHEN)}")
        return Snippet(code, float(timeout_s), float(wait_s), when, bool(body.get("force")), client)


def caller_of(body: dict[str, Any], peer: wire.Peer) -> dict[str, Any]:
    """Who asked: as the server says, which has the same user as we, or else the peer itself."""
    told = body.get("caller")
    if not isinstance(told, dict):
        return {"uid": peer.uid, "pid": peer.pid, "role": "owner"}
    uid, pid, role = told.get("uid"), told.get("pid"), told.get("role")
    return {
        "uid": uid if isinstance(uid, int) else None, "pid": pid if isinstance(pid, int) else None,
        "role": role if isinstance(role, str) else "owner",
    }


def _body(request: wire.Request) -> dict[str, Any]:
    return request.body if isinstance(request.body, dict) else {}


def _within(value: object, most: float) -> bool:
    return not isinstance(value, bool) and isinstance(value, (int, float)) and 0 < value <= most
