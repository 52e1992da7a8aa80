"""Doing something to a job: ask, and say what came of it, when it took place and how to take it back.

Every command of `action_commands` that acts comes through `act`. The command's
main thread; standard-library layers only.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

from probe.base.errors import ProbeError, ServerUnavailable, UsageError, from_dict
from probe.base.rank_sets import as_text
from probe_cli.core.direct import Question, ask_process
from probe_cli.core.session import Session
from probe_cli.core.terminal import escape_controls

Format = Literal["text", "json"]
LONGEST_ACTION_S = 120.0
"""What an action may take beside its wait for a step's end: a large checkpoint on a slow disk."""
_SILENT_S = 1.0
"""So long nothing is said to somebody who waits at a terminal."""


def act(
    session: Session,
    action: str,
    arguments: dict[str, Any],
    *,
    wait_s: float | None = None,
    now: bool = False,
    format: Format = "text",
) -> None:
    """Do an action and write what came of it. Arguments that are None are left out."""
    show(session, ask_to_act(session, action, arguments, wait_s=wait_s, now=now), format)


def ask_to_act(
    session: Session,
    action: str,
    arguments: dict[str, Any],
    *,
    wait_s: float | None = None,
    now: bool = False,
) -> dict[str, Any]:
    """The job's answer to an action; raises what the job refuses it with."""
    given = {name: value for name, value in arguments.items() if value is not None}
    return _ask(session, "/v1/act", {"action": action, "arguments": given, "now": now or None}, wait_s)


def undo(session: Session, action_id: str, wait_s: float | None, format: Format = "text") -> None:
    """Take back what an action did and write what was put back."""
    show(session, ask_to_undo(session, action_id, wait_s), format)


def ask_to_undo(session: Session, action_id: str, wait_s: float | None) -> dict[str, Any]:
    """The job's answer to an undo."""
    return _ask(session, "/v1/undo", {"id": action_id}, wait_s)


def _ask(session: Session, path: str, asked: dict[str, Any], wait_s: float | None) -> dict[str, Any]:
    wait_s = session.settings.act_wait_s if wait_s is None else wait_s
    body = {name: value for name, value in {**asked, "wait_s": wait_s}.items() if value is not None}
    try:
        with waiting(session, wait_s):
            answer = ask_process(
                session,
                server=Question("POST", path, body={"endpoint": session.address.endpoint, **body}),
                agent=Question("POST", path, body=body),
                timeout_s=wait_s + LONGEST_ACTION_S,
            )
    except KeyboardInterrupt:
        session.note(f"not waited for any more; it may be done all the same: `{command(session, 'actions')}`")
        raise
    if not isinstance(answer.get("what"), str) and not by_rank(answer):
        raise ServerUnavailable("the answer to the action cannot be read")
    return answer


# What is said ---------------------------------------------------------------


def show(session: Session, answer: dict[str, Any], format: Format) -> None:
    """What was done goes to stdout; where it ran and what to do next to stderr."""
    if format == "json":
        text = json.dumps(answer, ensure_ascii=False)
        session.out.line(escape_controls(text) if session.out.terminal else text)
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
    """What was done, with the notes; where that is not the same on all ranks, of each."""
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
    """The answers of a job's ranks, where there are several; empty for the answer of one process."""
    found = answer.get("answers")
    if not isinstance(found, list):
        return []
    return [(int(one["rank"]), one["answer"]) for one in found if isinstance(one.get("answer"), dict)]


def alike(
    answers: Sequence[tuple[int, dict[str, Any]]], key: Callable[[dict[str, Any]], object]
) -> list[tuple[str, dict[str, Any]]]:
    """Ranks that answered the same, as `ranks 0,2-3`, and what the first of them did."""
    found: dict[object, list[tuple[int, dict[str, Any]]]] = {}
    for rank, one in answers:
        found.setdefault(key(one), []).append((rank, one))
    return [(ranks_text(rank for rank, _ in same), same[0][1]) for same in found.values()]


def ranks_text(ranks: Iterable[int]) -> str:
    """`rank 1`, `ranks 0,2-3`."""
    listed = list(ranks)
    return f"rank{'s' if len(listed) > 1 else ''} {as_text(listed)}"


def say_who_is_missing(session: Session, answer: dict[str, Any]) -> ProbeError | None:
    """Which ranks gave no answer and why, on stderr; the first reason."""
    errors = [
        (int(one["rank"]), from_dict(one, 500)) for one in answer.get("answers") or () if "error" in one
    ]
    for rank, error in errors:
        session.note(f"rank {rank}: {error.message}")
    for sentence in answer.get("missing") or ():
        session.note(str(sentence))
    return errors[0][1] if errors else None


def say_how_to_undo(session: Session, answer: dict[str, Any]) -> None:
    """The commands that come next, where the action can be undone."""
    if answer.get("undoable"):
        words = f"{command(session, 'undo', str(answer['id']))}  |  {command(session, 'actions')}"
        session.err.line(f"  next: {escape_controls(words)}")


def where(answer: dict[str, Any]) -> str:
    """Where something ran that waited for a boundary, and for how long training stood still."""
    held_ms = answer.get("held_ms")
    ranks = by_rank(answer)
    if ranks and answer.get("step") is not None and str(answer.get("id")).startswith("all-"):
        held = "" if held_ms is None else f", held for at most {milliseconds(held_ms)}"
        own = {one.get("step") for _, one in ranks if one.get("step") is not None}
        counts = f" (as rank {ranks[0][0]} counts)" if len(own) > 1 else ""
        return f"on {ranks_text(rank for rank, _ in ranks)} before step {answer['step']}{counts}{held}"
    if held_ms is None:
        return ""
    return f"ran {between(answer.get('step'))}, the training thread was held for {milliseconds(held_ms)}"


def between(step: int | None) -> str:
    """The boundary before a step, in words."""
    if step is None:
        return "between two steps"
    return f"between steps {step - 1} and {step}" if step else "before step 0"


def milliseconds(value: float) -> str:
    """`0.8 ms`, `12 ms`, `1.5 s`."""
    if value >= 1000:
        return f"{value / 1000:.1f} s"
    return f"{value:.1f} ms" if value < 9.95 else f"{value:.0f} ms"


def command(session: Session, *words: str) -> str:
    """A command about the same endpoint, as it would be typed."""
    named = [session.named] if session.named else []
    return " ".join(["probe", *(_quoted(word) for word in [*named, *words])])


def _quoted(word: str) -> str:
    if word.replace("-", "").replace("_", "").replace("/", "").replace(".", "").isalnum():
        return word
    import shlex

    return shlex.quote(word)


@contextlib.contextmanager
def waiting(session: Session, wait_s: float) -> Iterator[None]:
    """Say after a moment that the end of a step is waited for: to a person, at a terminal."""
    if not session.err.terminal:
        yield
        return
    import threading

    def say() -> None:
        session.note(f"waiting for the end of a step, at most {wait_s:g} s; Ctrl-C stops the waiting")
        session.err.stream.flush()

    timer = threading.Timer(_SILENT_S, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


# Arguments ------------------------------------------------------------------


def path_for(session: Session, path: str) -> str:
    """A file name for the job to write: of this user's folder, where the job is on this host.

    Over TCP, and over a socket that may be forwarded, it is left to the job: relative to its folder."""
    if session.address.directory is None or session.has_own_transport:
        return path
    try:
        return os.path.abspath(os.path.expanduser(path))
    except OSError as error:
        raise UsageError(
            f"the current folder is gone ({error.strerror})", hint="Give a path that begins with /."
        ) from None


def number(value: float | None, option: str, *, above_zero: bool = False) -> float | None:
    """A number that can be meant: finite, not negative; raises `UsageError`."""
    if value is None:
        return None
    if not 0 <= value < float("inf") or (above_zero and value == 0):
        kind = "above 0" if above_zero else "0 or more"
        raise UsageError(f"{option} {value:g}: it has to be a number, {kind}")
    return value


def _is_given(value: object) -> bool:
    """0 is given: it equals False and is not it."""
    return value is not None and value is not False


def one_of(**given: object) -> None:
    """Raise `UsageError` when several of these options, by their names, are given, or none."""
    names = [f"--{name.replace('_', '-')}" for name, value in given.items() if _is_given(value)]
    every = [f"--{name.replace('_', '-')}" for name in given]
    if len(names) > 1:
        raise UsageError(f"{' and '.join(names)} exclude each other")
    if not names:
        raise UsageError(f"nothing says what to do: {' or '.join(every)}")
