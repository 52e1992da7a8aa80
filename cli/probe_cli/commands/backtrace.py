"""`probe backtrace`: where a process is, or all ranks of a job. The command's main thread."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from probe.base.errors import AgentUnreachable, ProbeError, ServerUnavailable
from probe_cli.core.direct import Question, ask_process, only_process
from probe_cli.core.session import Session
from probe_cli.core.terminal import Output, escape_controls

_TIMEOUT_S = 15.0
"""The server has its own deadlines: a second for the agent, ten for native frames."""
_LIBRARY_FOLDERS = ("/site-packages/", "/dist-packages/")


class Shown(NamedTuple):
    """What a backtrace is to show beside the Python frames of the training thread."""

    all_threads: bool
    native: bool
    locals: bool
    workers: bool


def show_backtrace(
    session: Session, shown: Shown, format: Literal["text", "json"], all_frames: bool = False
) -> None:
    """Write the stack of the training thread, or of more, innermost frame first.

    Of a job of several ranks: where they are, merged; with `all_frames` as the tree of all frames."""
    capture = _capture(session, shown)
    if format == "json":
        text = json.dumps(capture, ensure_ascii=False)
        session.out.line(escape_controls(text) if session.out.terminal else text)
        return
    try:
        if "classes" in capture:
            lines = list(ranks_lines(capture, shown, session.out, all_frames))
        else:
            lines = list(capture_lines(capture, session.out))
    except (KeyError, TypeError) as error:
        raise ServerUnavailable(f"the backtrace cannot be read: {error!r}") from None
    for line in lines:
        session.out.line(line)
    for note in _notes(capture):
        session.note(note)


def _notes(answer: dict[str, Any]) -> Iterator[str]:
    """How stacks were read where that was not from the agent."""
    if "classes" not in answer:
        yield from map(str, answer.get("notes") or ())
        return
    for rank, capture in answer["ranks"].items():
        for note in capture.get("notes") or ():
            yield f"rank {rank}: {note}"


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
    from probe.outside.stacks.outside_view import look

    capture = look(int(address.endpoint) if meta is None else meta.pid, **shown._asdict())
    return {**capture, "notes": [error.message, *capture["notes"]]}


# All ranks of a job -----------------------------------------------------------


def ranks_lines(answer: dict[str, Any], shown: Shown, out: Output, all_frames: bool) -> Iterator[str]:
    """Lines of where all ranks are: those that are in one place together, the fewest first."""
    classes = sorted(answer["classes"], key=lambda one: -int(one["class"]))
    places = "one place" if len(classes) == 1 else f"{len(classes)} places, the fewest ranks first"
    yield out.style(f"{sum(one['rank_count'] for one in classes)} ranks in {places}", "dim")
    for number, one in enumerate(classes):
        odd = number < len(classes) - 1
        yield from _class_lines(one, odd, out)
        for thread in one.get("threads") or ():
            yield escape_controls(f"    {thread['name']} ({_ranks(thread['ranks'])}): {thread['stack']}")
        if shown.locals or shown.native:
            first = answer["ranks"][one["ranks"].partition(",")[0].partition("-")[0]]
            yield from (f"    {line}" if line else "" for line in capture_lines(first, out))
    if all_frames:
        yield ""
        yield from _tree_lines(answer["tree"], out)
    for line in answer.get("missing") or ():
        yield out.style(escape_controls(f"missing: {line}"), "yellow")


def _class_lines(one: dict[str, Any], odd: bool, out: Output) -> Iterator[str]:
    step = "" if one.get("step") is None else f"step {one['step']:,}"
    when = " ".join(filter(None, (step, one.get("phase"))))
    state = {"alive": "", "ended": "ended: the last stack it left"}.get(one["state"], one["state"])
    if one["state"] == "ended" and one["rank_count"] > 1:
        state = "ended: the last stacks they left"
    facts = escape_controls("  ".join(filter(None, (when, state))))
    who = out.style(f"{_ranks(one['ranks'])}:", "bold", *(("yellow",) if odd else ()))
    yield f"{who} {escape_controls(one['stack'])}   {facts}".rstrip()


def _ranks(text: str) -> str:
    return f"{'rank' if text.isdigit() else 'ranks'} {text}"


def _tree_lines(tree: list[dict[str, Any]], out: Output) -> Iterator[str]:
    """All frames, the outermost first; what is below a fork is set in."""
    below: dict[Any, int] = {}
    for node in tree:
        below[node["parent"]] = below.get(node["parent"], 0) + 1
    ends = {node["node"]: node["ends"] for node in tree}
    deep: dict[Any, int] = {None: -1}
    longest = min(24, max((len(node["ranks"]) for node in tree), default=0))
    yield out.style("all frames, the outermost first  * user's code", "dim")
    for node in tree:
        parent = node["parent"]
        forks = below[parent] > 1 or (below[parent] == 1 and bool(ends.get(parent)))
        deep[node["node"]] = deep[parent] + (forks or parent is None)
        mark = "*" if node["is_user"] else " "
        indent = "  " * max(0, deep[node["node"]])
        line = escape_controls(f"{node['ranks']:>{longest}}  {mark} {indent}{node['func']}  {place(node)}")
        yield out.style(line, "bold" if node["is_user"] else "dim")


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
