"""How one process is: its verdict, for `GET /v1/diagnose`.

A living process is looked at for about a second, from outside, so that it answers in every state;
an ended one by what was noted of its end. Blocks: the server's request threads. May import what
`probe.diagnose` may.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from probe.diagnose.evidence import Evidence, gather
from probe.diagnose.state import judge
from probe.diagnose.verdict import Verdict
from probe.server.exits import verdict_of_end
from probe.server.registry import LIVE, Recorded, Registry
from probe.server.watch import Watch


def diagnose(registry: Registry, watch: Watch, subject: Recorded | int) -> dict[str, Any]:
    """The verdict, the facts it was judged from, and the stacks. `evidence` is None for an ended process.

    `watch` knows how the other ranks of the job are: who waits in a collective waits for one of them."""
    if isinstance(subject, int):
        note = f"process {subject} runs without an agent: how its steps get on is not known"
        evidence = gather(subject)
        return _answer(subject, evidence, judge(evidence), [note])
    status = registry.status(subject)
    if status.state not in LIVE:
        return {
            **_who(subject), **verdict_of_end(subject, status).as_dict(),
            "evidence": None, "capture": None, "notes": [],
        }
    thread = registry.training_thread(subject)
    evidence = gather(subject.meta.pid, subject.meta, training_thread=thread, folder=subject.folder)
    step = None if evidence.progress is None else evidence.progress.step
    verdict = watch.beside_others(subject.folder, judge(evidence), step)
    return {**_answer(subject.meta.pid, evidence, verdict, []), **_who(subject)}


def _answer(pid: int, evidence: Evidence, verdict: Verdict, notes: list[str]) -> dict[str, Any]:
    capture = evidence.capture
    facts = asdict(evidence)
    del facts["capture"]
    return {
        "pid": pid, "job": None, "rank": None, **verdict.as_dict(), "evidence": facts,
        "capture": None if capture is None else dict(capture), "notes": [*notes, *evidence.missing],
    }


def _who(recorded: Recorded) -> dict[str, Any]:
    return {"pid": recorded.meta.pid, "job": recorded.meta.job, "rank": recorded.meta.rank}
