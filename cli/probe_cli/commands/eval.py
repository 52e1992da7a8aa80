"""`probe eval`: run a snippet in the job and show what came of it. The command's main thread."""

from __future__ import annotations

from typing import Any, NamedTuple

from probe.base.errors import ServerUnavailable, UsageError
from probe_cli.core.act_client import alike, by_rank, say_who_is_missing, waiting, where
from probe_cli.core.direct import Question, ask_process
from probe_cli.core.session import Session
from probe_cli.core.terminal import escape_controls

RAISED = 1
"""Exit code when the snippet raised."""
_CLASSES = {
    "blocking": "may block", "settled": "looks at gradients", "changing": "changes the job",
    "collective": "is a collective",
}


class Wanted(NamedTuple):
    """How a snippet is to be run; None leaves a time to the settings."""

    timeout_s: float | None = None
    wait_s: float | None = None
    now: bool = False
    at_step: bool = False
    force: bool = False
    together: bool = False
    """On all ranks at the same step, with collectives."""


def run_snippet(session: Session, code: str, wanted: Wanted) -> int:
    """Write the snippet's output and value; its exception goes to stderr. Returns the exit code."""
    if wanted.now and wanted.at_step:
        raise UsageError("--now and --at-step exclude each other")
    if wanted.now and wanted.together:
        raise UsageError("--now and --together exclude each other")
    settings = session.settings
    timeout_s = settings.eval_timeout_s if wanted.timeout_s is None else wanted.timeout_s
    wait_s = settings.act_wait_s if wanted.wait_s is None else wanted.wait_s
    when = "now" if wanted.now else "step" if wanted.at_step else None
    body = {
        "code": code, "timeout_s": timeout_s, "wait_s": wait_s, "when": when, "force": wanted.force or None,
        "together": wanted.together or None,
    }
    body = {name: given for name, given in body.items() if given is not None}
    with waiting(session, wait_s):
        answer = ask_process(
            session,
            server=Question("POST", "/v1/eval", body={"endpoint": session.address.endpoint, **body}),
            agent=Question("POST", "/v1/eval", body=body),
            timeout_s=wait_s + timeout_s,
        )
    if isinstance(answer.get("answers"), list):
        return _show_ranks(session, answer)
    output, value, error = answer.get("output"), answer.get("value"), answer.get("error")
    if not isinstance(output, str):
        raise ServerUnavailable("the answer to the snippet cannot be read")
    session.out.text(output)
    dropped = answer.get("dropped_bytes")
    if (
        output
        and not output.endswith("\n")
        and (value is not None or error or dropped or session.out.terminal)
    ):
        session.out.line()
    if value is not None:
        session.out.text(f"{value}\n")
    session.out.stream.flush()
    if dropped:
        session.note(f"{dropped:,} bytes of output were dropped (PROBE_EVAL_OUTPUT_BYTES of the job)")
    for line in _where_and_why(answer):
        session.note(line)
    if not error:
        return 0
    _show_exception(session, error)
    return RAISED


def _show_ranks(session: Session, answer: dict[str, Any]) -> int:
    """What each rank said, each line with who said it; ranks that said the same, once."""
    answers = by_rank(answer)
    for ranks, one in alike(answers, lambda one: (one.get("output"), one.get("value"))):
        said = str(one.get("output") or "").splitlines()
        if one.get("value") is not None:
            said += str(one["value"]).splitlines() or [""]
        for line in said:
            session.out.text(f"[{ranks}] {line}\n")
        if one.get("dropped_bytes"):
            session.note(f"{ranks}: {one['dropped_bytes']:,} bytes of output were dropped")
    session.out.stream.flush()
    held_ms = [one["held_ms"] for _, one in answers if one.get("held_ms") is not None]
    together = where({**answer, "held_ms": max(held_ms, default=None)})
    for ranks, one in alike(answers, lambda one: str([one.get(key) for key in ("class", "why", "kept")])):
        if together and one.get("class") != "reading":
            session.note(f"{ranks}: {_because(one)}")
        for sentence in one.get("kept") or ():
            session.note(f"{ranks}: {sentence}")
    if together:
        session.note(together)
    raised = [(rank, one) for rank, one in answers if one.get("error")]
    for ranks, one in alike(raised, lambda one: one["error"].get("traceback")):
        session.err.line(f"{ranks}:")
        _show_exception(session, one["error"])
    missing = say_who_is_missing(session, answer)
    return RAISED if raised else 0 if missing is None else missing.exit_code


def _because(answer: dict[str, Any]) -> str:
    kind = str(answer.get("class") or "reading")
    why = "; ".join(str(one) for one in answer.get("why") or ())
    return f"{_CLASSES.get(kind, kind)}{f' ({why})' if why else ''}"


def _where_and_why(answer: dict[str, Any]) -> list[str]:
    """Sentences on a snippet that did not just read: what it was taken for, where it ran, what was put
    back after it."""
    lines = []
    kind = str(answer.get("class") or "reading")
    because, place = _because(answer), where(answer)
    if place:
        lines.append(place if kind == "reading" else f"{because}: {place}")
    elif kind in ("changing", "settled"):
        lines.append(f"{because}: ran at once, in the middle of a step")
    return lines + [str(one) for one in answer.get("kept") or ()]


def _show_exception(session: Session, error: dict[str, Any]) -> None:
    text = str(error.get("traceback") or f"{error.get('type')}: {error.get('message')}")
    session.err.text(text if text.endswith("\n") else text + "\n")
    if error.get("hint"):
        session.err.line(f"  next: {escape_controls(str(error['hint']))}")
