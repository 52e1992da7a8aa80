"""Snippets, actions and undo, for the one process that an endpoint means or for all ranks of a job.

In a multi-rank job, a request that only reads is run by each rank on its own, and `missing` lists the ranks
that could not; one that changes the job is done by all ranks before the same step, or by none
(`coordinator`). Runs on the server's event loop.
"""

from __future__ import annotations

import asyncio
import uuid
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from probe.base import rank_sets
from probe.base.errors import (
    ActionFailed,
    ActionUnknown,
    BadRequest,
    NotTogether,
    SnippetRefused,
    from_dict,
)
from probe.server.agents import act_requests
from probe.server.agents.forwarding import Request
from probe.server.hosts import coordinator, fanout
from probe.server.hosts.rank_group import RankGroup, Reply, common
from probe.server.runtime import access
from probe.server.runtime.request_bodies import ActBody, EvalBody, UndoBody
from probe.server.service import Service

_AT_ONCE = ("reading", "blocking")
"""Classes of snippets that each rank may run on its own."""
_CLASSIFY_S = 8.0
_turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()


async def evaluate(service: Service, body: EvalBody, caller: access.Caller) -> dict[str, Any]:
    """`POST /v1/eval`."""
    access.require_code(caller, service.settings, "eval")
    request = act_requests.evaluation(body, caller, service.settings)
    return await _on_one_or_all(service, body, caller, request, _evaluate_on_all)


async def act(service: Service, body: ActBody, caller: access.Caller) -> dict[str, Any]:
    """`POST /v1/act`; also for the monitor."""
    if act_requests.runs_code(body.action, body.arguments):
        access.require_code(caller, service.settings, body.action)
    request = act_requests.action(body, caller, service.settings)
    return await _on_one_or_all(service, body, caller, request, _act_on_all)


async def undo(service: Service, body: UndoBody, caller: access.Caller) -> dict[str, Any]:
    """`POST /v1/undo`."""
    request = act_requests.undoing(body, caller, service.settings)
    return await _on_one_or_all(service, body, caller, request, _undo_on_all)


_B = TypeVar("_B", EvalBody, ActBody, UndoBody)


async def _on_one_or_all(
    service: Service, body: _B, caller: access.Caller, request: Request,
    on_all: Callable[[RankGroup, _B, Request], Awaitable[dict[str, Any]]],
) -> dict[str, Any]:
    """Send it to the one process that is meant, here or on another host, or to all ranks of the job."""
    endpoint = access.endpoint(body.endpoint, caller)
    answer = await service.forwarder.forward(endpoint, request)
    if answer is not None:
        return answer
    found = await fanout.find(service, endpoint, caller, body.scope)
    if found.elsewhere is not None:
        path, timeout_s = request.target, request.timeout_s
        return await fanout.forward(service, found, caller, "POST", path, body.model_dump(), timeout_s)
    return await on_all(RankGroup(service, found, caller), body, request)


# All ranks of a job -------------------------------------------------------------


async def _evaluate_on_all(group: RankGroup, body: EvalBody, request: Request) -> dict[str, Any]:
    if body.scope == "host":
        return _tagged(await group.ask(_alone(request)), [])
    if body.when == "now" and not body.together:
        raise BadRequest(
            "`now` works on one rank only: a change in the middle of a step would make the replicas differ",
            hint="Name one rank: JOB/RANK.",
        )
    async with _turn(group):
        classified = await _classify(group, request, collectives=body.together)
        kinds = {str(reply.answer.get("class")) for reply in classified if reply.answer is not None}
        if kinds <= set(_AT_ONCE) and not body.together and body.when != "step":
            return await _each_alone(group, "/v1/eval", body.model_dump(), request)
        return await _evaluate_together(group, body, request)


async def _classify(group: RankGroup, request: Request, *, collectives: bool) -> list[Reply]:
    """The snippet's class on each rank. Raises the refusal of any rank."""
    asked = {**request.body, "together": collectives}
    replies = await group.phase({"id": "judge", "phase": "judge", "asked": asked, "timeout_s": _CLASSIFY_S})
    refused = [reply for reply in replies if isinstance(reply.error, (SnippetRefused, BadRequest))]
    if refused:
        raise coordinator.refusal(refused, len(refused))
    if all(reply.error is not None for reply in replies):
        raise coordinator.refusal(replies, len(replies))
    return replies


async def _evaluate_together(group: RankGroup, body: EvalBody, request: Request) -> dict[str, Any]:
    when = "step" if body.together or body.when == "step" else "auto"
    asked = {**request.body, "when": when, "together": body.together}
    wait_s = body.wait_s or group.service.settings.act_wait_s
    outcome = await coordinator.do_together(group, asked, wait_s)
    assert outcome is not None
    tagged = _tagged(coordinator.answers(outcome), [])
    return {"id": outcome.name, "step": coordinator.step_of(outcome), **tagged}


async def _act_on_all(group: RankGroup, body: ActBody, request: Request) -> dict[str, Any]:
    if body.scope == "host":
        return _tagged(await group.ask(_alone(request)), [])
    if body.now and body.action != "checkpoint":
        raise BadRequest(
            "`now` works on one rank only: ranks cannot start together in the middle of a step",
            hint="Name one rank: JOB/RANK.",
        )
    async with _turn(group):
        if body.now:
            return await _checkpoint_now(group, body)
        wait_s = body.wait_s or group.service.settings.act_wait_s
        outcome = await coordinator.do_together(group, request.body, wait_s)
        if outcome is None:
            return _merged(await _each_alone(group, "/v1/act", body.model_dump(), request))
        return _done(outcome)


async def _checkpoint_now(group: RankGroup, body: ActBody) -> dict[str, Any]:
    """A checkpoint of a job that hangs: each rank saves its part at once, without waiting for a step."""
    named = {**body.arguments, "name": f"now-{uuid.uuid4().hex[:6]}"}
    body = body.model_copy(update={"arguments": named})
    request = act_requests.action(body, group.caller, group.service.settings)
    return _merged(await _each_alone(group, "/v1/act", body.model_dump(), request))


async def _undo_on_all(group: RankGroup, body: UndoBody, request: Request) -> dict[str, Any]:
    """On all ranks, or on the one rank that ran the action."""
    if not body.id.startswith("all-"):
        alone = [one for one in group.here if str(one.meta.pid) == body.id.partition("-")[0]]
        if alone:
            return await group.service.forwarder.forward_to(alone[0], request)
        raise ActionUnknown(
            f"no rank of this job on this host has an action {body.id!r}",
            hint="`probe JOB actions` lists them; `probe JOB/RANK undo` undoes an action of one rank.",
        )
    async with _turn(group):
        asked = {**request.body, "undo": body.id}
        wait_s = body.wait_s or group.service.settings.act_wait_s
        outcome = await coordinator.do_together(group, asked, wait_s)
        assert outcome is not None
        return {**_done(outcome), "id": body.id}


@asynccontextmanager
async def _turn(group: RankGroup) -> AsyncIterator[None]:
    """One request at a time for each job, in order of arrival."""
    with group.service.forwarder.place():
        async with _turns.setdefault(group.found.endpoint or "", asyncio.Lock()):
            yield


async def _each_alone(
    group: RankGroup, path: str, body: dict[str, Any], request: Request
) -> dict[str, Any]:
    """Each rank's answer, or why it gave none."""
    given = {name: value for name, value in body.items() if name not in ("endpoint", "scope")}
    there = fanout.call_others(
        group.service, group.found, group.caller, "POST", path, given, request.timeout_s
    )
    replies, others = await asyncio.gather(group.ask(_alone(request)), there)
    tagged = _tagged(replies, others.missing)
    for part in others.parts:
        tagged["answers"] += (part.answer or {}).get("answers") or []
    tagged["answers"].sort(key=lambda one: int(one["rank"]))
    return tagged


def _alone(request: Request) -> Request:
    return request._replace(body={**request.body, "all_ranks": True})


def _tagged(replies: Sequence[Reply], missing: list[str]) -> dict[str, Any]:
    return {"answers": [reply.as_dict() for reply in replies], "missing": missing}


def _done(outcome: coordinator.Outcome) -> dict[str, Any]:
    """The answer for a coordinated request. Raises `ActionFailed` when it failed on some ranks."""
    replies = coordinator.answers(outcome)
    failed = [reply for reply in replies if reply.error is not None]
    if len(failed) == len(replies):
        raise coordinator.refusal(failed, len(replies))
    step = coordinator.step_of(outcome)
    if failed:
        done = rank_sets.named(reply.rank for reply in replies if reply.error is None)
        said = coordinator.refusal(failed, 0).message.removesuffix(coordinator.NOTHING)
        raise ActionFailed(
            f"{said}; done on {done} before step {step} ({outcome.name})",
            hint="`probe JOB actions` shows its state on each rank.",
        )
    return _merged({"id": outcome.name, "step": step, **_tagged(replies, [])})


def _merged(tagged: dict[str, Any]) -> dict[str, Any]:
    """The answers, and what they have in common; `what` is None where they differ."""
    own = [one["answer"] for one in tagged["answers"] if "answer" in one]
    if not own:
        errors = [from_dict(one, 500) for one in tagged["answers"] if "error" in one]
        raise errors[0] if errors else NotTogether("; ".join(tagged["missing"]) or "no rank answered")
    held_ms = [one["held_ms"] for one in own if one.get("held_ms") is not None]
    first = own[0]
    return {
        "id": first.get("id"), "action": first.get("action"), "state": first.get("state"),
        "step": first.get("step"), "what": common([str(one.get("what")) for one in own]),
        "notes": first.get("notes") if common([repr(one.get("notes")) for one in own]) else [],
        "held_ms": max(held_ms, default=None), "undoable": bool(first.get("undoable")), **tagged,
    }
