"""How one process is, or a job of several ranks: the verdict, for `GET /v1/diagnose`; `examining` adds what
the recipes find.

A living process is looked at for about a second, from outside, so that it answers in every state;
an ended one by what was noted of its end. A job is judged from the facts of all its ranks, which the
servers of its other hosts send. `answer` runs on the event loop, the rest blocks: the server's request
threads. May import what `probe.diagnose` may.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from probe.base.errors import HostUnreachable
from probe.diagnose.finding import Finding
from probe.diagnose.process.evidence import Evidence, gather
from probe.diagnose.process.process_rules import diagnose_process
from probe.diagnose.ranks.job_rules import diagnose_job
from probe.diagnose.ranks.rank_evidence import Facts
from probe.server.answers.examining import DEEP_S, Wanted, add, examine, keep
from probe.server.answers.recipe_runs import DEADLINE_S
from probe.server.hosts import fanout
from probe.server.recordings.end_verdicts import verdict_of_end
from probe.server.recordings.registry import LIVE, Recorded, Registry
from probe.server.runtime import access
from probe.server.runtime.access import Scope
from probe.server.service import Service
from probe.server.watch import rank_facts
from probe.server.watch.stall_watch import Watch

HOSTS_S = 6.0
"""Deadline of the other hosts: a look takes a second, on a busy machine two."""
_EVERYTHING = Wanted()


async def answer(
    service: Service, endpoint: str, caller: access.Caller, scope: Scope, wanted: Wanted = _EVERYTHING
) -> dict[str, Any]:
    """The answer of `GET /v1/diagnose`: of a job of several ranks as a whole, else of one process; and what
    the recipes say of it.

    With the scope `host`: the facts of this host's ranks."""
    text = access.endpoint(endpoint, caller).strip()
    registry = service.registry
    if not text.isdigit():
        found = await fanout.find(service, endpoint, caller, scope)
        if found.elsewhere is not None:
            body = {"symptom": wanted.symptom, "deep": int(wanted.deep)}
            timeout_s = DEADLINE_S + (DEADLINE_S + 2 * DEEP_S if wanted.symptom else 0.0)
            return await fanout.forward(service, found, caller, "GET", "/v1/diagnose", body, timeout_s)
        if scope == "host" and found.whole:
            return {"facts": await service.ask(facts, registry, found.here)}
        if found.several:
            return await _of_job(service, found, text, caller, wanted)
    subject = await service.call(registry.one if caller.tcp else registry.subject, text)
    look = service.ask(diagnose, registry, service.watch, subject)
    if isinstance(subject, int):
        return await look
    found = fanout.Found([subject], world_size=subject.meta.world_size)
    called = text or str(subject.meta.pid)
    said, examined = await asyncio.gather(look, examine(service, found, called, caller, wanted))
    return await _kept(service, found, add(said, examined), caller)


async def _of_job(
    service: Service, found: fanout.Found, text: str, caller: access.Caller, wanted: Wanted
) -> dict[str, Any]:
    """The answer for all ranks of a job."""
    called = text or (found.here[0].meta.job if found.here else found.endpoint)
    here, asked, examined = await asyncio.gather(
        service.ask(rank_facts.of_host, service.registry, found.here),
        fanout.ask(service, found, caller, "GET", "/v1/diagnose", {}, HOSTS_S),
        examine(service, found, called, caller, wanted),
    )
    elsewhere = [raw for part in asked.parts for raw in (part.answer or {}).get("facts", ())]
    said = add(job_answer(here, elsewhere, asked.missing), examined)
    return await _kept(service, found, said, caller)


async def _kept(
    service: Service, found: fanout.Found, said: dict[str, Any], caller: access.Caller
) -> dict[str, Any]:
    await service.call(keep, service, found, said, caller)
    return said


def diagnose(registry: Registry, watch: Watch, subject: Recorded | int) -> dict[str, Any]:
    """The verdict, the facts it was judged from, and the stacks. `evidence` is None for an ended process.

    `watch` knows how the other ranks of the job are: who waits in a collective waits for one of them."""
    if isinstance(subject, int):
        note = f"process {subject} runs without an agent: how its steps get on is not known"
        evidence = gather(subject)
        return _answer(subject, evidence, diagnose_process(evidence), [note])
    status = registry.status(subject)
    if status.state not in LIVE:
        return {
            **_who(subject), **verdict_of_end(subject, status).as_dict(),
            "evidence": None, "capture": None, "notes": [],
        }
    thread = registry.training_thread(subject)
    evidence = gather(subject.meta.pid, subject.meta, training_thread=thread, folder=subject.folder)
    step = None if evidence.progress is None else evidence.progress.step
    verdict = watch.beside_others(subject.folder, diagnose_process(evidence), step)
    return {**_answer(subject.meta.pid, evidence, verdict, []), **_who(subject)}


def _answer(pid: int, evidence: Evidence, verdict: Finding, notes: list[str]) -> dict[str, Any]:
    capture = evidence.capture
    facts = asdict(evidence)
    del facts["capture"]
    return {
        "pid": pid, "job": None, "rank": None, **verdict.as_dict(), "evidence": facts,
        "capture": None if capture is None else dict(capture), "notes": [*notes, *evidence.missing],
    }


def _who(recorded: Recorded) -> dict[str, Any]:
    return {"pid": recorded.meta.pid, "job": recorded.meta.job, "rank": recorded.meta.rank}


# A job of several ranks -------------------------------------------------------------


def facts(registry: Registry, ranks: Sequence[Recorded]) -> list[dict[str, Any]]:
    """The facts of this host's ranks, as another host's server asks for them."""
    return [one.as_dict() for one in rank_facts.of_host(registry, ranks)]


def job_answer(
    here: Sequence[Facts], elsewhere: Iterable[dict[str, Any]], missing: Sequence[str]
) -> dict[str, Any]:
    """The verdict on a job: `elsewhere` are facts of ranks on other hosts, `missing` says what is not known.

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
    return {
        "job": known[0].job, **found.as_dict(),
        "culprits": list(found.culprits), "missing": lines,
        "ranks": [_rank(one) for one in sorted(known, key=lambda one: one.rank)],
    }


def _rank(one: Facts) -> dict[str, Any]:
    state = one.state if one.verdict is None else one.verdict.state
    what = one.line() if one.verdict is None else one.verdict.what
    return {
        "rank": one.rank, "pid": one.pid, "host": one.host, "step": one.step, "state": state, "what": what,
    }
