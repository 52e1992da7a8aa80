"""`probe backtrace`: where a process is. The command's main thread."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from probe.errors import AgentUnreachable, ProbeError, ServerUnavailable
from probe_cli.direct import Question, ask_process, only_process
from probe_cli.session import Session
from probe_cli.terminal import Output, escape_controls

_TIMEOUT_S = 15.0
"""The server has its own deadlines: a second for the agent, ten for native frames."""
_LIBRARY_FOLDERS = ("/site-packages/", "/dist-packages/")


class Shown(NamedTuple):
    """What a backtrace is to show beside the Python frames of the training thread."""

    all_threads: bool
    native: bool
    locals: bool
    workers: bool


def show_backtrace(session: Session, shown: Shown, format: Literal["text", "json"]) -> None:
    """Write the stack of the training thread, or of more, innermost frame first."""
    capture = _capture(session, shown)
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


def _capture(session: Session, shown: Shown) -> dict[str, Any]:
    which = {name: "1" for name, wanted in shown._asdict().items() if wanted}
    inside = {name: value for name, value in which.items() if name == "all_threads"}
    try:
        return ask_process(
            session,
            server=Question("GET", "/v1/backtrace", {"endpoint": session.address.endpoint, **which}),
            agent=Question("GET", "/v1/stacks", inside),
            timeout_s=_TIMEOUT_S,
        )
    except (ServerUnavailable, AgentUnreachable) as error:
        return _from_outside(session, shown, error)


def _from_outside(session: Session, shown: Shown, error: ProbeError) -> dict[str, Any]:
    """Without a server: what the command itself can read. Raises `error` where it cannot name a process."""
    address = session.address
    if address.directory is None or session.has_own_transport:
        raise error
    meta = only_process(address.directory, address.endpoint)
    if meta is None and not address.endpoint.isdigit():
        raise error
    from probe.attach.outside import look

    capture = look(int(address.endpoint) if meta is None else meta.pid, **shown._asdict())
    return {**capture, "notes": [error.message, *capture["notes"]]}


def capture_lines(capture: dict[str, Any], out: Output) -> Iterator[str]:
    """Lines of a capture: a header, then each thread, the training thread first."""
    threads = sorted(capture["threads"], key=lambda thread: not thread["training"])
    facts = [
        "innermost frame first",
        "step -" if capture.get("step") is None else f"step {capture['step']:,}",
        f"phase {capture.get('phase') or '-'}",
    ]
    if capture.get("source"):
        tool = f" ({capture['tool']})" if capture.get("tool") else ""
        facts.append(f"from {capture['source']}{tool}")
    facts.append("* user's code")
    yield out.style(escape_controls("  ".join(facts)), "dim")
    processes = capture.get("processes") or []
    if processes:
        yield ""
        yield from _process_lines(processes)
    for thread in threads:
        yield ""
        yield _thread_heading(thread, capture.get("pid"), out)
        yield from _frame_lines(thread["frames"], out)


def _thread_heading(thread: dict[str, Any], pid: object, out: Output) -> str:
    training = ", training" if thread["training"] else ""
    facts = [f"thread {thread['thread_name']} ({thread['thread_id']}{training})"]
    if thread.get("process_id") not in (None, pid):
        facts.insert(0, f"process {thread['process_id']}")
    if thread.get("state"):
        facts.append(thread["state"] + (f" in {thread['wchan']}" if thread.get("wchan") else ""))
    if thread.get("owns_gil"):
        facts.append("holds the GIL")
    if thread.get("waits_for_gil"):
        facts.append("waits for the GIL")
    if thread.get("moving") is not None:
        facts.append("moving" if thread["moving"] else "not moving")
    return out.style(escape_controls("  ".join(facts)), "bold")


def _process_lines(processes: list[dict[str, Any]]) -> Iterator[str]:
    for one in processes:
        facts = (f"process {one['pid']}", one.get("role") or "child", one.get("state"), one["command"])
        yield escape_controls("  ".join(str(fact) for fact in facts if fact))


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
        for variable in frame.get("locals") or ():
            yield escape_controls(f"         {variable['name']} = {variable['value']}")


def place(frame: dict[str, Any]) -> str:
    """`file:line`; of an installed library the part after `site-packages`, of native code the library."""
    file = str(frame["file"])
    if frame.get("frame_type") == "Native":
        file = file.rpartition("/")[2]
        return file if frame["lineno"] is None else f"{file}:{frame['lineno']}"
    if not frame["is_user"]:
        for folder in _LIBRARY_FOLDERS:
            file = file.rpartition(folder)[2]
    return f"{file}:{'?' if frame['lineno'] is None else frame['lineno']}"
