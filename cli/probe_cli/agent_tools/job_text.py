"""Answers as text for an agent: JSON without control characters, and only what helps to decide.

What a job chose itself (names, logged texts, frames) is data that an agent reads. It cannot be told from
instructions by its form, so the tools say so; but it cannot hide anything in characters that nobody sees.
Pure; standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MOST_FINDINGS = 20
MOST_FRAMES = 60
MOST_THREADS = 64
_LONGEST_TEXT = 4000
_LONGEST_ANSWER = 120_000
"""Characters; what is longer does not help, and fills an agent's memory."""
_OF_FINDING = (
    "recipe", "state", "severity", "what", "why", "next", "step", "rank", "over", "explained_by", "cause",
)
_OF_PROCESS = (
    "job", "run", "attempt", "rank", "world_size", "host", "pid", "state", "how", "step", "lag_steps",
    "last_step_s", "total_steps", "total_source", "left_s", "elapsed_s", "exit_status", "endpoint",
)


def text(answer: object) -> str:
    """An answer as JSON in one text. What was cut is said in it."""
    found = json.dumps(clean(answer), ensure_ascii=False)
    if len(found) <= _LONGEST_ANSWER:
        return found
    return found[:_LONGEST_ANSWER] + f"… [cut: {len(found):,} characters in all; ask for less]"


def clean(value: Any) -> Any:
    """The same with characters that are not printed (control, direction, invisible) shown as `\\uXXXX`."""
    if isinstance(value, str):
        if len(value) > _LONGEST_TEXT:
            value = value[:_LONGEST_TEXT] + "…"
        return value if value.isprintable() else "".join(map(_visible, value))
    if isinstance(value, Mapping):
        return {clean(str(name)): clean(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(one) for one in value]
    return value


def _visible(sign: str) -> str:
    return sign if sign.isprintable() or sign in "\n\t" else f"\\u{ord(sign):04x}"


def processes(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of `/v1/processes` or `/v1/ranks`."""
    return [{name: row[name] for name in _OF_PROCESS if name in row} for row in rows]


def diagnosis(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict and the findings, the worst first, without the evidence behind them."""
    found = {name: answer[name] for name in _OF_FINDING if name in answer}
    findings = [finding(one) for one in answer.get("findings") or () if one.get("severity") != "info"]
    found["findings"] = findings[:MOST_FINDINGS]
    if len(findings) > MOST_FINDINGS:
        found["more_findings"] = len(findings) - MOST_FINDINGS
    for name in ("culprits", "missing", "notes", "judged"):
        if answer.get(name):
            found[name] = answer[name]
    if "conclusion" in answer:
        found["conclusion"] = finding(answer["conclusion"] or {})
        found["checks"] = [
            {name: one.get(name) for name in ("check_name", "outcome", "what")} for one in answer["checks"]
        ]
    return found


def finding(one: Mapping[str, Any]) -> dict[str, Any]:
    """A finding without fields that say nothing."""
    return {name: one[name] for name in _OF_FINDING if one.get(name) not in (None, "", [], False)}


def stacks(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Stacks as lines, innermost frame first; of a job, each place with the ranks that are there."""
    if "classes" in answer:
        places = [
            {name: one.get(name) for name in ("ranks", "state", "step", "phase", "stack")}
            for one in answer["classes"]
        ]
        return {"places": places, "missing": answer.get("missing") or []}
    ordered = sorted(answer.get("threads") or (), key=lambda one: not one.get("training"))
    found = {name: answer.get(name) for name in ("pid", "step", "phase", "source", "notes")}
    threads = [
        {
            "name": one.get("thread_name"), "training": one.get("training"), "state": one.get("state"),
            "frames": frames(one.get("frames") or ()),
        }
        for one in ordered[:MOST_THREADS]
    ]
    return {**found, "threads": threads, "more_threads": max(0, len(ordered) - MOST_THREADS)}


def frames(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """`forward (gpt.py:42) *`; the star marks the user's own code."""
    ordered = sorted(found, key=lambda frame: int(frame.get("depth") or 0))
    lines = [
        f"{frame.get('func')} ({frame.get('file')}:{frame.get('lineno')})"
        + (" *" if frame.get("is_user") else "")
        for frame in ordered[:MOST_FRAMES]
    ]
    return lines + ([f"… {len(ordered) - MOST_FRAMES} more"] if len(ordered) > MOST_FRAMES else [])
