"""`probe eval`: run a snippet in the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from probe.base.errors import ProbeError, ServerUnavailable, UsageError
from probe.client.endpoints import names_agent
from probe_cli.core.act_client import alike, by_rank, say_who_is_missing, where
from probe_cli.core.action_log import COMPLETION
from probe_cli.core.direct import Request, request_process
from probe_cli.core.options import File, Timeout, Wait
from probe_cli.core.parameters import Argument, Option
from probe_cli.core.session import Session
from probe_cli.core.terminal import escape_controls
from probe_cli.core.wait_line import waiting

EXAMPLES = (
    "probe PID eval \"optimizer.param_groups[0]['lr']\"",
    "probe JOB eval -f look.py",
    'probe JOB eval "print(rank, world_size)"',
    'probe PID eval --at-step "sum(p.grad.norm() for p in model.parameters() if p.grad is not None)"',
)
_NAMES_S = 2.0
RAISED = 1
"""Exit code if the snippet raised."""
_CLASSES = {
    "blocking": "may block", "settled": "reads gradients", "changing": "changes the job",
    "collective": "is a collective",
}


def is_endpoint(word: str, _words: Sequence[str], session: Session) -> bool:
    """Whether the only argument is an endpoint and not code: `probe eval PID`."""
    return names_agent(word, session.address)


def command(
    session: Session,
    code: Annotated[
        str | None,
        Argument(
            metavar="[CODE]", help="Python code (`-`: read from stdin; omitted: a prompt, or stdin)."
        ),
    ] = None,
    file: File = None,
    timeout: Timeout = None,
    now: Annotated[
        bool, Option("--now", help="Run immediately on a separate thread, even if it changes the job.")
    ] = False,
    at_step: Annotated[
        bool, Option("--at-step", help="Run between two steps, even if it only reads.")
    ] = False,
    together: Annotated[
        bool, Option("--together", help="Run on all ranks at the same step; allows collectives.")
    ] = False,
    force: Annotated[bool, Option("--force", help="Allow collectives on this rank alone.")] = False,
    wait: Wait = None,
) -> int:
    """Run Python in the process or in every rank.

    Prints the output and the last value. Read-only code runs immediately; code that changes the job runs
    between two steps, at the same step on every rank. Without CODE: a prompt in a terminal, else code from
    stdin.
    """
    if now and (at_step or together):
        raise UsageError(f"--now and {'--at-step' if at_step else '--together'} are mutually exclusive")
    timeout_s = session.settings.eval_timeout_s if timeout is None else timeout
    wait_s = session.settings.act_wait_s if wait is None else wait
    options = {
        "when": "now" if now else "step" if at_step else None,
        "force": force or None, "together": together or None, "wait_anyway": wait is not None or None,
    }

    def run(snippet: str) -> int:
        text = f"waiting for the snippet, or a step to end, at most {wait_s:g} s; Ctrl-C stops waiting"
        with waiting(session.err, text):
            answer = _request(session, snippet, timeout_s, wait_s, options)
        return (_show_ranks if isinstance(answer.get("answers"), list) else _show)(session, answer)

    if code is None and file is None and session.may_prompt():
        from probe_cli.prompts.python_prompt import PythonPrompt

        PythonPrompt(session, run, lambda expression: names_in_job(session, expression)).run()
        return 0
    return run(session.read_text(code, file, "Python"))


def _request(
    session: Session, snippet: str, timeout_s: float, wait_s: float, options: Mapping[str, object]
) -> dict[str, Any]:
    asked = {"code": snippet, "timeout_s": timeout_s, "wait_s": wait_s, **options}
    body = {name: value for name, value in asked.items() if value is not None}
    return request_process(
        session,
        server=Request("POST", "/v1/eval", body={"endpoint": session.address.endpoint, **body}),
        agent=Request("POST", "/v1/eval", body=body),
        timeout_s=wait_s + timeout_s,
    )


def names_in_job(session: Session, expression: str) -> list[str]:
    """Completions after an expression and a dot; for an empty expression, the names that a snippet sees.

    Empty if `dir` of the expression would do more than read, or takes too long for a completion."""
    what = f"dir({expression})" if expression else "__names__"
    snippet = f"print(*{what}, sep='\\n'){COMPLETION}"
    try:
        answer = _request(session, snippet, _NAMES_S, _NAMES_S, {"when": "reading"})
    except ProbeError:
        return []
    ranks = by_rank(answer)
    one = ranks[0][1] if ranks else answer
    return [] if one.get("error") else str(one.get("output") or "").split()


def _show(session: Session, answer: dict[str, Any]) -> int:
    """Write output and value to stdout, an exception to stderr; returns the exit code."""
    output, value, error = answer.get("output"), answer.get("value"), answer.get("error")
    if not isinstance(output, str):
        raise ServerUnavailable("invalid eval response")
    session.out.text(output)
    dropped = answer.get("dropped_bytes")
    followed = value is not None or error or dropped or session.out.terminal
    if output and not output.endswith("\n") and followed:
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
    """Write the output of each rank with its number, grouping ranks with equal output."""
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
    """Notes on a snippet that did more than read: its class, where it ran, what probe restored."""
    lines = []
    kind = str(answer.get("class") or "reading")
    because, place = _because(answer), where(answer)
    if place:
        lines.append(place if kind == "reading" else f"{because}: {place}")
    elif kind in ("changing", "settled"):
        lines.append(f"{because}: ran immediately, in the middle of a step")
    return lines + [str(one) for one in answer.get("kept") or ()]


def _show_exception(session: Session, error: dict[str, Any]) -> None:
    text = str(error.get("traceback") or f"{error.get('type')}: {error.get('message')}")
    session.err.text(text if text.endswith("\n") else text + "\n")
    if error.get("hint"):
        session.err.line(f"  next: {escape_controls(str(error['hint']))}")
