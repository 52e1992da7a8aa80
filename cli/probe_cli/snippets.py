"""`probe eval`: run a snippet in the job and show what came of it. The command's main thread."""

from __future__ import annotations

from typing import Any

from probe.errors import ServerUnavailable
from probe_cli.direct import Question, ask_process
from probe_cli.session import Session
from probe_cli.terminal import escape_controls

RAISED = 1
"""Exit code when the snippet raised."""


def run_snippet(session: Session, code: str, timeout_s: float | None) -> int:
    """Write the snippet's output and value; its exception goes to stderr. Returns the exit code."""
    wait_s = session.settings.eval_timeout_s if timeout_s is None else timeout_s
    body = {"code": code, "timeout_s": wait_s}
    answer = ask_process(
        session,
        server=Question("POST", "/v1/eval", body={"endpoint": session.address.endpoint, **body}),
        agent=Question("POST", "/v1/eval", body=body),
        timeout_s=wait_s,
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
    if not error:
        return 0
    _show_exception(session, error)
    return RAISED


def _show_exception(session: Session, error: dict[str, Any]) -> None:
    text = str(error.get("traceback") or f"{error.get('type')}: {error.get('message')}")
    session.err.text(text if text.endswith("\n") else text + "\n")
    if error.get("hint"):
        session.err.line(f"  next: {escape_controls(str(error['hint']))}")
