"""Builds the requests for snippets, actions and undo that the server sends to an agent, with their timeouts.

The agent enforces the deadlines in a request. The timeouts here are longer: they end only requests that would
never end.
Runs on the server's event loop. Standard library only.
"""

from __future__ import annotations

import json

from probe.base.errors import BadRequest
from probe.base.settings import Settings
from probe.server.agents.forwarding import Request
from probe.server.runtime.access import Caller
from probe.server.runtime.request_bodies import ActBody, EvalBody, UndoBody

RUNS_CODE = frozenset({"watch"})
"""Actions that evaluate expressions: over TCP they need the same permission as `eval`."""
_WAY_BACK_S = 2.0
"""Time for an answer to arrive that the agent sends at its own deadline."""
_ACTION_S = 10.0
"""After this long without an answer, check whether the agent responds at all."""
_LONGEST_ACTION_S = 120.0
"""How long an action may take once it has begun: a large checkpoint on a slow disk."""


def runs_code(action: object, arguments: object) -> bool:
    """Whether an action evaluates expressions: a watch without any does not."""
    return action in RUNS_CODE and not (
        isinstance(arguments, dict) and arguments.get("expressions") is None
    )


def evaluation(body: EvalBody, caller: Caller, settings: Settings) -> Request:
    """The agent's side of `POST /v1/eval`."""
    timeout_s = body.timeout_s or settings.eval_timeout_s
    wait_s = body.wait_s or settings.act_wait_s
    asked = {
        "code": body.code, "timeout_s": timeout_s, "wait_s": wait_s, "when": body.when,
        "force": body.force, "wait_anyway": body.wait_anyway, "caller": caller._asdict(),
    }
    return Request("/v1/eval", asked, timeout_s + _WAY_BACK_S, wait_s + timeout_s + _LONGEST_ACTION_S)


def action(body: ActBody, caller: Caller, settings: Settings) -> Request:
    """The agent's side of `POST /v1/act`. Raises `BadRequest` for NaN and infinity, which JSON lacks."""
    try:
        json.dumps(body.arguments, allow_nan=False)
    except ValueError:
        raise BadRequest("arguments must be finite numbers, not NaN or infinity") from None
    wait_s = body.wait_s or settings.act_wait_s
    asked = {
        "action": body.action, "arguments": body.arguments, "wait_s": wait_s, "now": body.now,
        "force": body.force, "wait_anyway": body.wait_anyway, "caller": caller._asdict(),
    }
    return Request("/v1/act", asked, _ACTION_S, wait_s + _LONGEST_ACTION_S)


def undoing(body: UndoBody, caller: Caller, settings: Settings) -> Request:
    """The agent's side of `POST /v1/undo`."""
    wait_s = body.wait_s or settings.act_wait_s
    asked = {
        "id": body.id, "wait_s": wait_s, "wait_anyway": body.wait_anyway, "caller": caller._asdict(),
    }
    return Request("/v1/undo", asked, _ACTION_S, wait_s + _LONGEST_ACTION_S)
