"""Actions on a job: sends the request, reports what was done, when, and how to undo it.

Every command that acts goes through `act`. Runs in the command's main thread; standard-library layers only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from probe.base.errors import ProbeError, ServerUnavailable, UsageError, from_dict
from probe.base.rank_sets import named
from probe_cli.core.action_progress import look_of
from probe_cli.core.direct import Request, request_process
from probe_cli.core.figures import duration
from probe_cli.core.session import Session
from probe_cli.core.terminal import escape_controls
from probe_cli.core.wait_line import waiting

LONGEST_ACTION_S = 120.0
"""Time limit of the action after waiting for a step to end: enough for a large checkpoint on a slow disk."""


def act(
    session: Session,
    action: str,
    wait_s: float | None,
    output_format: Literal["text", "json"],
    *,
    now: bool = False,
    **arguments: Any,
) -> None:
    """Perform an action and write the result. Arguments that are None or False are left out."""
    show(session, request_action(session, action, wait_s, now=now, **arguments), output_format)


def request_action(
    session: Session, action: str, wait_s: float | None, *, now: bool = False, **arguments: Any
) -> dict[str, Any]:
    """Request an action and return the job's answer; raises its refusal."""
    given = {name: value for name, value in arguments.items() if value is not None and value is not False}
    return _request(session, "/v1/act", {"action": action, "arguments": given, "now": now or None}, wait_s)


def request_undo(session: Session, action_id: str, wait_s: float | None) -> dict[str, Any]:
    """Request an undo and return the job's answer."""
    return _request(session, "/v1/undo", {"id": action_id}, wait_s)


def _request(session: Session, path: str, asked: dict[str, Any], wait_s: float | None) -> dict[str, Any]:
    asked = {**asked, "wait_anyway": wait_s is not None or None}
    wait_s = session.settings.act_wait_s if wait_s is None else wait_s
    body = {name: value for name, value in {**asked, "wait_s": wait_s}.items() if value is not None}
    look = look_of(session, str(asked.get("action")), asked.get("arguments") or {})
    try:
        text = f"waiting for the current step to end, at most {wait_s:g} s; Ctrl-C stops waiting"
        with waiting(session.err, text, look):
            answer = request_process(
                session,
                server=Request("POST", path, body={"endpoint": session.address.endpoint, **body}),
                agent=Request("POST", path, body=body),
                timeout_s=wait_s + LONGEST_ACTION_S,
            )
    except KeyboardInterrupt:
        session.note(f"stopped waiting; the action may still happen: `{typed(session, 'actions')}`")
        raise
    if not isinstance(answer.get("what"), str) and not by_rank(answer):
        raise ServerUnavailable("invalid action response")
    return answer


# Output -----------------------------------------------------------------------


def show(session: Session, answer: dict[str, Any], output_format: Literal["text", "json"]) -> None:
    """Write what was done to stdout; where it ran and what to do next to stderr."""
    if output_format == "json":
        session.out.json(answer)
        return
    for line in _what(answer):
        session.out.line(escape_controls(line))
    session.out.stream.flush()
    place = where(answer)
    if place:
        session.note(place)
    say_who_is_missing(session, answer)
    say_how_to_undo(session, answer)


def _what(answer: dict[str, Any]) -> Iterator[str]:
    """What was done, with notes; grouped by ranks where results differ."""
    if isinstance(answer.get("what"), str):
        yield answer["what"]
        for note in answer.get("notes") or ():
            yield f"  {note}"
        return
    for ranks, one in alike(by_rank(answer), lambda one: (one.get("what"), repr(one.get("notes")))):
        yield f"{ranks}: {one.get('what')}"
        for note in one.get("notes") or ():
            yield f"  {note}"


def by_rank(answer: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """(rank, answer) of a multi-rank job; empty for a single process."""
    found = answer.get("answers")
    if not isinstance(found, list):
        return []
    return [(int(one["rank"]), one["answer"]) for one in found if isinstance(one.get("answer"), dict)]


def alike(
    answers: Sequence[tuple[int, dict[str, Any]]], key: Callable[[dict[str, Any]], object]
) -> list[tuple[str, dict[str, Any]]]:
    """Ranks grouped by equal answers: (`ranks 0,2-3`, the answer of the first)."""
    found: dict[object, list[tuple[int, dict[str, Any]]]] = {}
    for rank, one in answers:
        found.setdefault(key(one), []).append((rank, one))
    return [(named(rank for rank, _ in same), same[0][1]) for same in found.values()]


def say_who_is_missing(session: Session, answer: dict[str, Any]) -> ProbeError | None:
    """Report on stderr which ranks did not answer and why; returns the first error."""
    errors = [
        (int(one["rank"]), from_dict(one, 500)) for one in answer.get("answers") or () if "error" in one
    ]
    for rank, error in errors:
        session.note(f"rank {rank}: {error.message}")
    for sentence in answer.get("missing") or ():
        session.note(str(sentence))
    return errors[0][1] if errors else None


def say_how_to_undo(session: Session, answer: dict[str, Any]) -> None:
    """Report how to undo the action, if that is possible."""
    if answer.get("undoable"):
        words = f"{typed(session, 'undo', str(answer['id']))}  |  {typed(session, 'actions')}"
        session.err.line(f"  next: {escape_controls(words)}")


def where(answer: dict[str, Any]) -> str:
    """At which step boundary an action ran, and for how long training was held."""
    held_ms = answer.get("held_ms")
    held = "" if held_ms is None else duration(held_ms / 1000)
    ranks = by_rank(answer)
    if ranks and answer.get("step") is not None and str(answer.get("id")).startswith("all-"):
        own = {one.get("step") for _, one in ranks if one.get("step") is not None}
        counts = f" (rank {ranks[0][0]}'s count)" if len(own) > 1 else ""
        text = f"on {named(rank for rank, _ in ranks)} before step {answer['step']}{counts}"
        return f"{text}, training held for at most {held}" if held else text
    return f"ran {_between(answer.get('step'))}, training held for {held}" if held else ""


def _between(step: int | None) -> str:
    """The boundary before a step, in words."""
    if step is None:
        return "between two steps"
    return f"between steps {step - 1} and {step}" if step else "before step 0"


def typed(session: Session, *words: str) -> str:
    """The command line of a command on the same endpoint."""
    endpoint = [session.named] if session.named else []
    return " ".join(["probe", *(_quoted(word) for word in [*endpoint, *words])])


def _quoted(word: str) -> str:
    if word.replace("-", "").replace("_", "").replace("/", "").replace(".", "").isalnum():
        return word
    import shlex

    return shlex.quote(word)


# Arguments ------------------------------------------------------------------


def path_for(session: Session, path: str) -> str:
    """A path for the job to write: absolute if the job is on this host.

    Over TCP, or a socket that may be forwarded, it stays relative to the job's own working directory."""
    if session.address.directory is None or session.has_own_transport:
        return path
    try:
        return os.path.abspath(os.path.expanduser(path))
    except OSError as error:
        raise UsageError(
            f"the current directory no longer exists ({error.strerror})", hint="Give an absolute path."
        ) from None


def file_for(session: Session, given: str | None, kind: str, suffix: str) -> str:
    """The path for the job to write: the given one, or a new one in the current directory, such as
    `trace-train-0-20260131-235959.json`."""
    if given is not None:
        return path_for(session, given)
    if session.runs_later:
        hint = 'For example "checkpoint rescue.pt".'
        raise UsageError("an automatic action needs the name of its file", hint=hint)
    import time

    named = f"{kind}-{session.address.endpoint[-40:]}"
    name = "".join(one if one.isalnum() or one in "._" else "-" for one in named).strip("-")
    name += time.strftime("-%Y%m%d-%H%M%S")
    path, number = path_for(session, name + suffix), 2
    while os.path.exists(path):  # a second one within one second
        path, number = path_for(session, f"{name}-{number}{suffix}"), number + 1
    return path


def number(value: float | None, option: str, *, above_zero: bool = False) -> float | None:
    """The value if it is finite and not negative; raises `UsageError` otherwise."""
    if value is None:
        return None
    if not 0 <= value < float("inf") or (above_zero and value == 0):
        least = "above 0" if above_zero else "0 or more"
        raise UsageError(f"{option} {value:g}: must be a finite number, {least}")
    return value


def one_of(**given: object) -> None:
    """Raise `UsageError` unless exactly one of these options, by name, is given (0 counts as given)."""
    options = {f"--{name.replace('_', '-')}": value for name, value in given.items()}
    names = [name for name, value in options.items() if value is not None and value is not False]
    if len(names) > 1:
        raise UsageError(f"{' and '.join(names)} are mutually exclusive")
    if not names:
        raise UsageError(f"missing option: {' or '.join(options)}")
