"""`probe backtrace`: the current stack of a process, or of all ranks of a job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from probe.base.errors import AgentUnreachable, ProbeError, ServerUnavailable
from probe_cli.core.direct import Request, only_process, request_process
from probe_cli.core.figures import count
from probe_cli.core.options import TextFormat
from probe_cli.core.parameters import Option
from probe_cli.core.session import Session
from probe_cli.core.terminal import Output, escape_controls
from probe_cli.core.wait_line import waiting
from probe_cli.render.verdict_lines import wrapped

EXAMPLES = (
    "probe PID backtrace",
    "probe PID backtrace --native --all-threads --workers --locals",
    "probe JOB backtrace --all-frames",
)
_TIMEOUT_S = 15.0
"""The server has its own deadlines: a second for the agent, ten for native frames."""
_IMPORTING = "<frozen importlib."
"""File prefix of import-machinery frames: omitted in text output, present in JSON."""
_LIBRARY_FOLDERS = ("/site-packages/", "/dist-packages/")


def command(
    session: Session,
    all_threads: Annotated[
        bool, Option("--all-threads", help="Include all threads, not only the training thread.")
    ] = False,
    native: Annotated[
        bool,
        Option("--native", help="Include C and C++ frames (stops the process for up to 0.3 s)."),
    ] = False,
    variables: Annotated[
        bool, Option("--locals", help="Include local variables, without likely secrets.")
    ] = False,
    workers: Annotated[
        bool, Option("--workers", help="Include DataLoader workers and other child processes.")
    ] = False,
    all_frames: Annotated[
        bool, Option("--all-frames", help="For a multi-rank job: show every frame, as a tree.")
    ] = False,
    output_format: TextFormat = "text",
    json: Annotated[bool, Option("--json", help="Same as --format json.")] = False,
) -> None:
    """Show the current stack of a process.

    Works on any Python process, recorded or not. For a multi-rank job, groups the ranks by stack, smallest
    group first.
    """
    wanted = {"all_threads": all_threads, "native": native, "locals": variables, "workers": workers}
    capture = _capture(session, wanted)
    if json or output_format == "json":
        session.out.json(capture)
        return
    try:
        if "classes" in capture:
            details = variables or native
            lines = list(_rank_lines(capture, session.out, details=details, all_frames=all_frames))
        else:
            lines = list(_capture_lines(capture, session.out))
    except (KeyError, TypeError) as error:
        raise ServerUnavailable(f"invalid backtrace: {error!r}") from None
    session.out.lines(lines)
    for note in _notes(capture):
        session.note(note)


def _notes(answer: dict[str, Any]) -> Iterator[str]:
    """Notes on how the stacks were read, if not by the agent."""
    if "classes" not in answer:
        yield from map(str, answer.get("notes") or ())
        return
    for rank, capture in answer["ranks"].items():
        for note in capture.get("notes") or ():
            yield f"rank {rank}: {note}"


def _capture(session: Session, wanted: dict[str, bool]) -> dict[str, Any]:
    which = {name: "1" for name, is_wanted in wanted.items() if is_wanted}
    inside = {name: value for name, value in which.items() if name == "all_threads"}
    try:
        return request_process(
            session,
            server=Request("GET", "/v1/backtrace", {"endpoint": session.address.endpoint, **which}),
            agent=Request("GET", "/v1/stacks", inside),
            timeout_s=_TIMEOUT_S,
        )
    except (ServerUnavailable, AgentUnreachable) as error:
        return _from_outside(session, wanted, error)


def _from_outside(session: Session, wanted: dict[str, bool], error: ProbeError) -> dict[str, Any]:
    """Stacks read by the command itself, without a server; raises `error` if no process is identified."""
    address = session.address
    if address.directory is None or session.has_own_transport:
        raise error
    meta = only_process(address.directory, address.endpoint)
    if meta is None and not address.endpoint.isdigit():
        raise error
    from probe.outside.stacks.outside_view import read_stacks

    with waiting(session.err, "reading the stacks from outside"):
        capture = read_stacks(int(address.endpoint) if meta is None else meta.pid, **wanted)
    return {**capture, "notes": [error.message, *capture["notes"]]}


# All ranks of a job -----------------------------------------------------------


def _rank_lines(
    answer: dict[str, Any], out: Output, *, details: bool, all_frames: bool
) -> Iterator[str]:
    """All ranks, grouped by stack, smallest group first; `details`: one whole stack per group."""
    classes = sorted(answer["classes"], key=lambda one: -int(one["class"]))
    places = "one place" if len(classes) == 1 else f"{len(classes)} places, the fewest ranks first"
    yield out.style(f"{sum(one['rank_count'] for one in classes)} ranks in {places}", "dim")
    for number, one in enumerate(classes):
        odd = number < len(classes) - 1
        yield from _class_lines(one, odd, out)
        for thread in one.get("threads") or ():
            yield escape_controls(f"    {thread['name']} ({_ranks(thread['ranks'])}): {thread['stack']}")
        if details:
            first = answer["ranks"][one["ranks"].partition(",")[0].partition("-")[0]]
            yield from (f"    {line}" if line else "" for line in _capture_lines(first, out))
    if all_frames:
        yield ""
        yield from _tree_lines(answer["tree"], out)
    for line in answer.get("missing") or ():
        yield out.style(escape_controls(f"missing: {line}"), "yellow")


def _class_lines(one: dict[str, Any], odd: bool, out: Output) -> Iterator[str]:
    step = "" if one.get("step") is None else f"step {one['step']:,}"
    when = " ".join(filter(None, (step, one.get("phase"))))
    state = {"alive": "", "ended": "ended: its last stack"}.get(one["state"], one["state"])
    if one["state"] == "ended" and one["rank_count"] > 1:
        state = "ended: their last stacks"
    facts = escape_controls("  ".join(filter(None, (when, state))))
    who = out.style(f"{_ranks(one['ranks'])}:", "bold", *(("yellow",) if odd else ()))
    plain = f"{_ranks(one['ranks'])}:"
    first, *more = wrapped(f"{plain} {escape_controls(one['stack'])}   {facts}".rstrip(), out, "    ")
    yield who + first[len(plain) :]
    yield from more


def _ranks(text: str) -> str:
    return f"{'rank' if text.isdigit() else 'ranks'} {text}"


def _tree_lines(tree: list[dict[str, Any]], out: Output) -> Iterator[str]:
    """All frames, outermost first; indented below each fork."""
    below: dict[Any, int] = {}
    for node in tree:
        below[node["parent"]] = below.get(node["parent"], 0) + 1
    ends = {node["node"]: node["ends"] for node in tree}
    deep: dict[Any, int] = {None: -1}
    longest = min(24, max((len(node["ranks"]) for node in tree), default=0))
    yield out.style("all frames, outermost first  * user code", "dim")
    for node in tree:
        parent = node["parent"]
        forks = below[parent] > 1 or (below[parent] == 1 and bool(ends.get(parent)))
        deep[node["node"]] = deep[parent] + (forks or parent is None)
        mark = "*" if node["is_user"] else " "
        indent = "  " * max(0, deep[node["node"]])
        line = escape_controls(f"{node['ranks']:>{longest}}  {mark} {indent}{node['func']}  {_place(node)}")
        yield out.style(line, "bold" if node["is_user"] else "dim")


def _capture_lines(capture: dict[str, Any], out: Output) -> Iterator[str]:
    """One capture: a header, then each thread, the training thread first."""
    threads = sorted(capture["threads"], key=lambda thread: not thread["training"])
    facts = [
        "innermost frame first",
        f"step {count(capture.get('step'))}",
        f"phase {capture.get('phase') or '-'}",
    ]
    if capture.get("source"):
        tool = f" ({capture['tool']})" if capture.get("tool") else ""
        facts.append(f"from {capture['source']}{tool}")
    facts.append("* user code")
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
    ordered = sorted(frames, key=lambda frame: int(frame["depth"]))
    telling = [one for one in ordered if not str(one["file"]).startswith(_IMPORTING)]
    shown = [(frame, _place(frame)) for frame in telling]
    longest = max((len(where) for _, where in shown), default=0)
    if out.width is not None:
        longest = min(longest, out.width // 2)
    for frame, where in shown:
        mark = "*" if frame["is_user"] else " "
        module = f"  module {frame['module']}" if frame.get("module") else ""
        line = escape_controls(f"{mark} {frame['depth']:>3}  {where:<{longest}}  {frame['func']}{module}")
        for part in wrapped(line, out, " " * 10):
            yield out.style(part, "bold" if frame["is_user"] else "dim")
        for variable in frame.get("locals") or ():
            yield escape_controls(f"         {variable['name']} = {variable['value']}")
    if len(telling) < len(ordered):
        left_out = len(ordered) - len(telling)
        yield out.style(f"       {left_out} frames of Python's import system are left out", "dim")


def _place(frame: dict[str, Any]) -> str:
    """`file:line`; for installed packages below `site-packages`, for native code the library's name."""
    file = str(frame["file"])
    if frame.get("frame_type") == "Native":
        file = file.rpartition("/")[2]
        return file if frame["lineno"] is None else f"{file}:{frame['lineno']}"
    if not frame["is_user"]:
        for folder in _LIBRARY_FOLDERS:
            file = file.rpartition(folder)[2]
    return f"{file}:{'?' if frame['lineno'] is None else frame['lineno']}"
