"""Snippets, actions and undoing for all ranks of a job: each for itself where that only reads, else together.

What only reads is answered by whoever can answer, and `missing` says who could not; what changes the job is
done by all ranks before the same step, or by none (`together`). Runs on the server's event loop.
"""

from __future__ import annotations

import asyncio
import uuid
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from probe.base.errors import (
    ActionFailed,
    ActionUnknown,
    BadRequest,
    NotTogether,
    ProbeError,
    SnippetRefused,
    from_dict,
)
from probe.server.agents import act_requests
from probe.server.agents.forwarding import Request
from probe.server.hosts import coordinator, fanout
from probe.server.hosts.rank_group import RankGroup, Reply, common
from probe.server.runtime.request_bodies import ActBody, EvalBody, UndoBody

_AT_ONCE = ("reading", "blocking")
"""Classes of snippets that each rank may run for itself."""
_JUDGE_S = 8.0
_turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()


async def evaluate(group: RankGroup, body: EvalBody) -> dict[str, Any]:
    """`POST /v1/eval` for a job of several ranks."""
    service = group.service
    request = act_requests.evaluation(body, group.caller, service.settings)
    if body.scope == "host":
        return _tagged(await group.ask(_for_itself(request)), [])
    if body.when == "now" and not body.together:
        raise BadRequest(
            "`now` is for one rank: a change in the middle of a step would part the replicas",
            hint="Name one rank: JOB/RANK.",
        )
    async with _turn(group):
        judged = await _judge(group, request, collectives=body.together)
        kinds = {str(reply.answer.get("class")) for reply in judged if reply.answer is not None}
        if kinds <= set(_AT_ONCE) and not body.together and body.when != "step":
            return await _each_for_itself(group, "/v1/eval", body.model_dump(), request)
        return await _evaluate_together(group, body, request)


async def _judge(group: RankGroup, request: Request, *, collectives: bool) -> list[Reply]:
    """What the snippet is on each rank. Raises what it is refused with anywhere."""
    asked = {**request.body, "together": collectives}
    judged = await group.phase({"id": "judge", "phase": "judge", "asked": asked, "timeout_s": _JUDGE_S})
    refused = [reply for reply in judged if isinstance(reply.error, (SnippetRefused, BadRequest))]
    if refused:
        raise coordinator.refusal(refused, len(refused))
    if all(reply.error is not None for reply in judged):
        raise coordinator.refusal(judged, len(judged))
    return judged


async def _evaluate_together(group: RankGroup, body: EvalBody, request: Request) -> dict[str, Any]:
    when = "step" if body.together or body.when == "step" else "auto"
    asked = {**request.body, "when": when, "together": body.together}
    wait_s = body.wait_s or group.service.settings.act_wait_s
    outcome = await coordinator.do_together(group, asked, wait_s)
    assert outcome is not None
    tagged = _tagged(coordinator.answers(outcome), [])
    return {"id": outcome.name, "step": coordinator.step_of(outcome), **tagged}


async def act(group: RankGroup, body: ActBody) -> dict[str, Any]:
    """`POST /v1/act` for a job of several ranks."""
    request = act_requests.action(body, group.caller, group.service.settings)
    if body.scope == "host":
        return _tagged(await group.ask(_for_itself(request)), [])
    if body.now and body.action != "checkpoint":
        raise BadRequest(
            "`now` is for one rank: ranks that begin in the middle of a step do not begin together",
            hint="Name one rank: JOB/RANK.",
        )
    async with _turn(group):
        if body.now:
            return await _checkpoint_now(group, body)
        wait_s = body.wait_s or group.service.settings.act_wait_s
        outcome = await coordinator.do_together(group, request.body, wait_s)
        if outcome is None:
            return _merged(await _each_for_itself(group, "/v1/act", body.model_dump(), request))
        return _done(outcome)


async def _checkpoint_now(group: RankGroup, body: ActBody) -> dict[str, Any]:
    """A checkpoint of a job that hangs: each rank takes its part where it is, and none waits for a step."""
    named = {**body.arguments, "name": f"now-{uuid.uuid4().hex[:6]}"}
    body = body.model_copy(update={"arguments": named})
    request = act_requests.action(body, group.caller, group.service.settings)
    return _merged(await _each_for_itself(group, "/v1/act", body.model_dump(), request))


async def undo(group: RankGroup, body: UndoBody) -> dict[str, Any]:
    """`POST /v1/undo` for a job of several ranks: of all of them, or of the one that did it alone."""
    request = act_requests.undoing(body, group.caller, group.service.settings)
    if not body.id.startswith("all-"):
        alone = [one for one in group.here if str(one.meta.pid) == body.id.partition("-")[0]]
        if alone:
            return await group.service.forwarder.forward_to(alone[0], request)
        raise ActionUnknown(
            f"no rank of this job on this host has an action {body.id!r}",
            hint="`probe JOB actions` lists them; `probe JOB/RANK undo` is for what one rank did.",
        )
    async with _turn(group):
        asked = {**request.body, "undo": body.id}
        wait_s = body.wait_s or group.service.settings.act_wait_s
        outcome = await coordinator.do_together(group, asked, wait_s)
        assert outcome is not None
        return {**_done(outcome), "id": body.id}


@asynccontextmanager
async def _turn(group: RankGroup) -> AsyncIterator[None]:
    """One after the other for each job, in order of arrival."""
    with group.service.forwarder.place():
        async with _turns.setdefault(group.found.endpoint or "", asyncio.Lock()):
            yield


async def _each_for_itself(
    group: RankGroup, path: str, body: dict[str, Any], request: Request
) -> dict[str, Any]:
    """What each rank answers; who cannot answer is there with the reason."""
    given = {name: value for name, value in body.items() if name not in ("endpoint", "scope")}
    there = fanout.ask(
        group.service, group.found, group.caller, "POST", path, given, request.timeout_s
    )
    replies, asked = await asyncio.gather(group.ask(_for_itself(request)), there)
    tagged = _tagged(replies, asked.missing)
    for part in asked.parts:
        tagged["answers"] += (part.answer or {}).get("answers") or []
    tagged["answers"].sort(key=lambda one: int(one["rank"]))
    return tagged


def _for_itself(request: Request) -> Request:
    return request._replace(body={**request.body, "all_ranks": True})


def _tagged(replies: Sequence[Reply], missing: list[str]) -> dict[str, Any]:
    return {"answers": [reply.as_dict() for reply in replies], "missing": missing}


def _done(outcome: coordinator.Outcome) -> dict[str, Any]:
    """The answer to what all ranks did. Raises `ActionFailed` when some did not."""
    replies = coordinator.answers(outcome)
    failed = [reply for reply in replies if reply.error is not None]
    if len(failed) == len(replies):
        raise coordinator.refusal(failed, len(replies))
    step = coordinator.step_of(outcome)
    if failed:
        done = coordinator.ranks_text([reply.rank for reply in replies if reply.error is None])
        said = coordinator.refusal(failed, 0).message.removesuffix(coordinator.NOTHING)
        raise ActionFailed(
            f"{said}; done on {done} before step {step} ({outcome.name})",
            hint="`probe JOB actions` says how it stands on each rank.",
        )
    return _merged({"id": outcome.name, "step": step, **_tagged(replies, [])})


def _merged(tagged: dict[str, Any]) -> dict[str, Any]:
    """With what is the same on all ranks; `what` is None where it is not."""
    own = [one["answer"] for one in tagged["answers"] if "answer" in one]
    if not own:
        raise _first_error(tagged)
    held_ms = [one["held_ms"] for one in own if one.get("held_ms") is not None]
    first = own[0]
    return {
        "id": first.get("id"), "action": first.get("action"), "state": first.get("state"),
        "step": first.get("step"), "what": common([str(one.get("what")) for one in own]),
        "notes": first.get("notes") if common([repr(one.get("notes")) for one in own]) else [],
        "held_ms": max(held_ms, default=None), "undoable": bool(first.get("undoable")), **tagged,
    }


def _first_error(tagged: dict[str, Any]) -> ProbeError:
    errors = [from_dict(one, 500) for one in tagged["answers"] if "error" in one]
    return errors[0] if errors else NotTogether("; ".join(tagged["missing"]) or "no rank answered")

