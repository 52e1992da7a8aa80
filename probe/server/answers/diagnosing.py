"""`GET /v1/diagnose`: gathers the evidence on a process or a job, and evaluates it with `probe.diagnose`.

Evidence on a living process is gathered from outside for up to a second, so that it works in every state; an
ended one is diagnosed from its end record. A job is diagnosed from the facts of all its ranks, which the
servers of its other hosts send. `answer` runs on the event loop; the rest blocks and runs on request threads.
May import what `probe.diagnose` may.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, NamedTuple

from probe.base.errors import AgentMissing, EndpointUnknown, HostUnreachable, NotYours
from probe.diagnose import states
from probe.diagnose.diagnosis import diagnose
from probe.diagnose.finding import Finding
from probe.diagnose.process.evidence import Evidence, gather
from probe.diagnose.process.process_rules import diagnose_process
from probe.diagnose.process.settled import settled
from probe.diagnose.ranks.job_rules import diagnose_job
from probe.diagnose.ranks.rank_evidence import Facts
from probe.diagnose.ranks.rank_rows import explain_wait
from probe.server.answers.checks import CHECKS, DEEP_S, Options, Part, keep, run_checks
from probe.server.answers.recipe_runs import DEADLINE_S, RecipeRuns
from probe.server.hosts import fanout
from probe.server.recordings import exit_report
from probe.server.recordings.end_verdicts import verdict_of_end
from probe.server.recordings.job_names import launched
from probe.server.recordings.registry import LIVE, Recorded, Registry
from probe.server.runtime import access
from probe.server.runtime.access import Scope
from probe.server.service import Service
from probe.server.watch import rank_facts
from probe.server.watch.stall_watch import Watch

HOSTS_S = 6.0
"""Deadline of the other hosts: gathering evidence takes a second, on a busy machine two."""
_EVERYTHING = Options()


class Examined(NamedTuple):
    """The state of a process or a job, and the other fields and notes of the answer."""

    state: Finding
    about: dict[str, Any]
    notes: list[str]


async def answer(
    service: Service, endpoint: str, caller: access.Caller, scope: Scope, wanted: Options = _EVERYTHING,
    tell: Callable[[Part], None] | None = None,
) -> dict[str, Any]:
    """The answer of `GET /v1/diagnose`, for a whole multi-rank job or one process. `tell` receives the
    findings of the recipes as they arrive. With scope `host`: the facts of this host's ranks."""
    text = access.endpoint(endpoint, caller).strip()
    registry = service.registry
    if not text.isdigit():
        found = await fanout.find(service, endpoint, caller, scope)
        if found.elsewhere is not None:
            body = {"symptom": wanted.symptom, "deep": int(wanted.deep), "part": wanted.part}
            timeout_s = DEADLINE_S + (DEADLINE_S + 2 * DEEP_S if wanted.symptom else 0.0)
            return await fanout.forward(service, found, caller, "GET", "/v1/diagnose", body, timeout_s)
        if scope == "host" and found.whole:
            return {"facts": await service.call_agent(facts, service, found.here)}
        if found.several:
            return await _of_job(service, found, text, caller, wanted, tell)
    subject = await service.call(registry.one if caller.tcp else registry.one_or_pid, text)
    examining = (
        _not_examined() if wanted.part == CHECKS
        else service.call_agent(diagnose_one, registry, service.watch, subject)
    )
    if isinstance(subject, int):
        ending = await service.call(_ending, registry, subject)
        if ending is None:
            alone: Examined = await examining
            return {**alone.about, **alone.state.as_dict(), "notes": alone.notes}
        subject = ending  # the checks use its recording, its state is read from outside
    found = fanout.Found([subject], world_size=subject.meta.world_size)
    called = text or str(subject.meta.pid)
    running = run_checks(service, found, called, caller, wanted, tell)
    examined, ran = await asyncio.gather(examining, running)
    return await _answer(service, found, examined, ran, called, caller, wanted)


def _ending(registry: Registry, pid: int) -> Recorded | None:
    """The recording of an exiting process: the recording is closed, and the process still exists."""
    try:
        found = registry.one(str(pid))
    except (AgentMissing, EndpointUnknown, NotYours):
        return None
    return found if registry.status(found).how == exit_report.ENDING else None


async def _not_examined() -> Examined:
    return Examined(Finding(states.UNKNOWN, states.OK, "only the checks were requested"), {}, [])


async def _of_job(
    service: Service, found: fanout.Found, text: str, caller: access.Caller, wanted: Options,
    tell: Callable[[Part], None] | None,
) -> dict[str, Any]:
    """The answer for all ranks of a job."""
    called = text or (found.here[0].meta.job if found.here else found.endpoint)
    examining = _not_examined() if wanted.part == CHECKS else _examine_ranks(service, found, caller)
    running = run_checks(service, found, called, caller, wanted, tell)
    examined, ran = await asyncio.gather(examining, running)
    return await _answer(service, found, examined, ran, called, caller, wanted)


async def _examine_ranks(service: Service, found: fanout.Found, caller: access.Caller) -> Examined:
    here, others = await asyncio.gather(
        service.call_agent(_facts_here, service, found.here),
        fanout.call_others(service, found, caller, "GET", "/v1/diagnose", {}, HOSTS_S),
    )
    elsewhere = [raw for part in others.parts for raw in (part.answer or {}).get("facts", ())]
    return diagnose_ranks(here, elsewhere, others.missing)


async def _answer(
    service: Service, found: fanout.Found, examined: Examined, ran: RecipeRuns, called: str,
    caller: access.Caller, wanted: Options,
) -> dict[str, Any]:
    diagnosis = diagnose(examined.state, ran.checks, wanted.symptom, called)
    kept = await service.call(keep, service, found, diagnosis, caller)
    return {
        **examined.about, **diagnosis.as_dict(), **kept, "notes": [*examined.notes, *ran.notes],
        "own_recipes": service.settings.recipes,
    }


def diagnose_one(registry: Registry, watch: Watch, subject: Recorded | int) -> Examined:
    """The state of a process with its evidence and stacks; without evidence for an ended one.

    `watch` knows the state of the job's other ranks: a rank that waits in a collective waits for one of
    them."""
    thresholds = registry.stall_thresholds()
    enough = partial(settled, thresholds=thresholds)
    if isinstance(subject, int):
        note = f"process {subject} runs without an agent: its progress is unknown"
        evidence = gather(subject, enough=enough)
        state = diagnose_process(evidence, thresholds)
        about = {"pid": subject, "job": None, "rank": None, **_evidence(evidence)}
        return Examined(state, about, [note, *evidence.missing])
    status = registry.status(subject)
    if status.state not in LIVE:
        about = {**_who(subject), "evidence": None, "capture": None}
        return Examined(verdict_of_end(subject, status), about, [])
    thread = registry.training_thread(subject)
    evidence = gather(
        subject.meta.pid, subject.meta, rested=watch.rested(subject.folder, thread), training_thread=thread,
        folder=subject.folder, enough=enough,
    )
    step = None if evidence.progress is None else evidence.progress.step
    found = diagnose_process(evidence, thresholds)
    state = explain_wait(found, step, watch.other_ranks(subject.folder))
    if step is None:
        state = _with_ranks(state, [one for one in registry.live() if launched(one.meta, subject.meta)])
    return Examined(state, {**_who(subject), **_evidence(evidence)}, list(evidence.missing))


def _with_ranks(state: Finding, ranks: Sequence[Recorded]) -> Finding:
    """The state of a process that started the ranks of a job: it leads to them."""
    if not ranks:
        return state
    job = ranks[0].meta.job
    numbers = ", ".join(str(one.meta.rank) for one in sorted(ranks, key=lambda one: one.meta.rank)[:8])
    why = f"it started {job}'s ranks ({numbers}), which train: ask them"
    return replace(state, why=[why, *state.why], next=[f"probe {shlex.quote(job)} diagnose", *state.next])


def _evidence(evidence: Evidence) -> dict[str, Any]:
    facts = asdict(evidence)
    del facts["capture"]
    return {"evidence": facts, "capture": None if evidence.capture is None else dict(evidence.capture)}


def _who(recorded: Recorded) -> dict[str, Any]:
    return {"pid": recorded.meta.pid, "job": recorded.meta.job, "rank": recorded.meta.rank}


# Multi-rank jobs --------------------------------------------------------------------


def facts(service: Service, ranks: Sequence[Recorded]) -> list[dict[str, Any]]:
    """The facts of this host's ranks, for another host's server."""
    return [one.as_dict() for one in _facts_here(service, ranks)]


def _facts_here(service: Service, ranks: Sequence[Recorded]) -> list[Facts]:
    return rank_facts.of_host(service.registry, ranks, service.watch.rested)


def diagnose_ranks(
    here: Sequence[Facts], elsewhere: Iterable[dict[str, Any]], missing: Sequence[str]
) -> Examined:
    """The state of a job: `elsewhere` are facts of ranks on other hosts, `missing` has notes.

    Raises `HostUnreachable` when nothing is known of any rank."""
    lines = list(missing)
    known = list(here)
    for raw in elsewhere:
        try:
            known.append(Facts.from_dict(raw))
        except (ValueError, TypeError, KeyError) as error:
            lines.append(f"the facts of rank {raw.get('rank')} could not be read: {error}")
    if not known:
        raise HostUnreachable("; ".join(lines) or "no host of the job answers")
    found = diagnose_job(known, lines)
    ranks = [_rank(one) for one in sorted(known, key=lambda one: one.rank)]
    about = {"job": known[0].job, "culprits": list(found.culprits), "missing": lines, "ranks": ranks}
    return Examined(found, about, [])


def _rank(one: Facts) -> dict[str, Any]:
    state = one.state if one.verdict is None else one.verdict.state
    what = one.line() if one.verdict is None else one.verdict.what
    return {
        "rank": one.rank, "pid": one.pid, "host": one.host, "step": one.step, "state": state, "what": what,
    }
