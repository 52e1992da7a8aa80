"""`probe backtrace`: where a process is. The command's main thread."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

from probe.errors import ServerUnavailable
from probe_cli.direct import Question, ask_process
from probe_cli.session import Session
from probe_cli.terminal import Output, escape_controls

_TIMEOUT_S = 5.0
"""A process that does not show its stack by then will not: it is stopped, or its GIL is held."""
_LIBRARY_FOLDERS = ("/site-packages/", "/dist-packages/")


def show_backtrace(session: Session, all_threads: bool, format: Literal["text", "json"]) -> None:
    """Write the stack of the training thread, or of all threads, innermost frame first."""
    which = {"all_threads": "1" if all_threads else "0"}
    capture = ask_process(
        session,
        server=Question("GET", "/v1/backtrace", {"endpoint": session.address.endpoint, **which}),
        agent=Question("GET", "/v1/stacks", which),
        timeout_s=_TIMEOUT_S,
    )
    if format == "json":
        text = json.dumps(capture, ensure_ascii=False)
        session.out.line(escape_controls(text) if session.out.terminal else text)
        return
    try:
        lines = list(capture_lines(capture, session.out))
    except (KeyError, TypeError) as error:
        raise ServerUnavailable(f"the backtrace cannot be read: {error!r}") from None
    for line in lines:
        session.out.line(line)
    for note in capture.get("notes") or ():
        session.note(str(note))


def capture_lines(capture: dict[str, Any], out: Output) -> Iterator[str]:
    """Lines of a capture: a header, then each thread, the training thread first."""
    threads = sorted(capture["threads"], key=lambda thread: not thread["training"])
    facts = [
        "innermost frame first",
        "step -" if capture.get("step") is None else f"step {capture['step']:,}",
        f"phase {capture.get('phase') or '-'}",
    ]
    if capture.get("source"):
        facts.append(f"from {capture['source']}")
    facts.append("* user's code")
    yield out.style(escape_controls("  ".join(facts)), "dim")
    for thread in threads:
        yield ""
        yield _thread_heading(thread, out)
        yield from _frame_lines(thread["frames"], out)


def _thread_heading(thread: dict[str, Any], out: Output) -> str:
    what = ", training" if thread["training"] else ""
    return out.style(escape_controls(f"thread {thread['thread_name']} ({thread['thread_id']}{what})"), "bold")


def _frame_lines(frames: list[dict[str, Any]], out: Output) -> Iterator[str]:
    shown = [(frame, place(frame)) for frame in sorted(frames, key=lambda frame: int(frame["depth"]))]
    longest = max((len(where) for _, where in shown), default=0)
    if out.width is not None:
        longest = min(longest, out.width // 2)
    for frame, where in shown:
        mark = "*" if frame["is_user"] else " "
        module = f"  module {frame['module']}" if frame.get("module") else ""
        line = escape_controls(f"{mark} {frame['depth']:>3}  {where:<{longest}}  {frame['func']}{module}")
        yield out.style(line, "bold") if frame["is_user"] else out.style(line, "dim")


def place(frame: dict[str, Any]) -> str:
    """`file:line`; of an installed library the part after `site-packages`."""
    file = str(frame["file"])
    if not frame["is_user"]:
        for folder in _LIBRARY_FOLDERS:
            file = file.rpartition(folder)[2]
    return f"{file}:{'?' if frame['lineno'] is None else frame['lineno']}"
