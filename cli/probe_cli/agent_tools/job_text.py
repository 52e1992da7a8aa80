"""Formats answers for an agent: JSON without control characters, reduced to the fields it needs.

Texts chosen by the job (names, logged texts, frames) reach the agent as data. Their form does not
distinguish them from instructions, so the tool descriptions warn about them; invisible characters are
escaped, so that they cannot hide anything. Pure; standard library only.
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
"""Characters; a longer answer only fills the agent's context."""
_OF_FINDING = (
    "recipe", "state", "severity", "what", "why", "next", "step", "rank", "over", "explained_by", "cause",
)
_OF_PROCESS = (
    "job", "run", "attempt", "rank", "world_size", "host", "pid", "state", "how", "step", "lag_steps",
    "last_step_s", "total_steps", "total_source", "left_s", "elapsed_s", "exit_status", "endpoint",
)


def text(answer: object) -> str:
    """An answer as JSON text, cut at `_LONGEST_ANSWER` with a note."""
    found = json.dumps(clean(answer), ensure_ascii=False)
    if len(found) <= _LONGEST_ANSWER:
        return found
    return found[:_LONGEST_ANSWER] + f"… [cut: {len(found):,} characters in all; ask for less]"


def clean(value: Any) -> Any:
    """The value with unprintable characters (control, direction, invisible) escaped as `\\uXXXX`."""
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
    """Rows of `/v1/processes` or `/v1/ranks`, reduced to `_OF_PROCESS`."""
    return [{name: row[name] for name in _OF_PROCESS if name in row} for row in rows]


def diagnosis(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict and the findings, worst first, without their evidence."""
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
    """A finding without empty fields."""
    return {name: one[name] for name in _OF_FINDING if one.get(name) not in (None, "", [], False)}


def stacks(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Stacks as lines, innermost frame first; for a multi-rank job, each place with its ranks."""
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
