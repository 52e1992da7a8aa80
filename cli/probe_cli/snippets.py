"""`probe eval`: run a snippet in the job and show what came of it. The command's main thread."""

from __future__ import annotations

from typing import Any, NamedTuple

from probe.errors import ServerUnavailable, UsageError
from probe_cli.acting import waiting, where
from probe_cli.direct import Question, ask_process
from probe_cli.session import Session
from probe_cli.terminal import escape_controls

RAISED = 1
"""Exit code when the snippet raised."""
_CLASSES = {"changing": "changes the job", "blocking": "may block", "collective": "is a collective"}


class Wanted(NamedTuple):
    """How a snippet is to be run; None leaves a time to the settings."""

    timeout_s: float | None = None
    wait_s: float | None = None
    now: bool = False
    at_step: bool = False
    force: bool = False


def run_snippet(session: Session, code: str, wanted: Wanted) -> int:
    """Write the snippet's output and value; its exception goes to stderr. Returns the exit code."""
    if wanted.now and wanted.at_step:
        raise UsageError("--now and --at-step exclude each other")
    settings = session.settings
    timeout_s = settings.eval_timeout_s if wanted.timeout_s is None else wanted.timeout_s
    wait_s = settings.act_wait_s if wanted.wait_s is None else wanted.wait_s
    when = "now" if wanted.now else "step" if wanted.at_step else None
    body = {
        "code": code, "timeout_s": timeout_s, "wait_s": wait_s, "when": when, "force": wanted.force or None,
    }
    body = {name: given for name, given in body.items() if given is not None}
    with waiting(session, wait_s):
        answer = ask_process(
            session,
            server=Question("POST", "/v1/eval", body={"endpoint": session.address.endpoint, **body}),
            agent=Question("POST", "/v1/eval", body=body),
            timeout_s=wait_s + timeout_s,
        )
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


def _where_and_why(answer: dict[str, Any]) -> list[str]:
    """Sentences on a snippet that did not just read: what it was taken for, where it ran, what was put
    back after it."""
    lines = []
    kind = str(answer.get("class") or "reading")
    why = "; ".join(str(one) for one in answer.get("why") or ())
    because = f"{_CLASSES.get(kind, kind)}{f' ({why})' if why else ''}"
    place = where(answer)
    if place:
        lines.append(place if kind == "reading" else f"{because}: {place}")
    elif kind == "changing":
        lines.append(f"{because}: ran at once, in the middle of a step")
    return lines + [str(one) for one in answer.get("kept") or ()]


def _show_exception(session: Session, error: dict[str, Any]) -> None:
    text = str(error.get("traceback") or f"{error.get('type')}: {error.get('message')}")
    session.err.text(text if text.endswith("\n") else text + "\n")
    if error.get("hint"):
        session.err.line(f"  next: {escape_controls(str(error['hint']))}")
