"""`probe flamegraph`: where the training threads spend their time, sampled now or recorded before.

py-spy samples the ranks on this machine by reading their memory. For other ranks, and where py-spy is not
permitted, the command polls the agents for their stacks. Nothing is written into the recording. With --since
it draws the samples that PROBE_SAMPLE_HZ recorded; the job may have ended.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from probe.base import rank_sets
from probe.base.errors import ProbeError, ProcessDead, StacksUnavailable, UsageError
from probe_cli.core.act_client import file_for
from probe_cli.core.figures import count
from probe_cli.core.options import Ranks
from probe_cli.core.parameters import Option
from probe_cli.core.session import Session
from probe_cli.core.wait_line import waiting
from probe_cli.render.flame_graph import Stack, difference, merged, speedscope, svg
from probe_cli.render.row_output import write_file
from probe_cli.render.sampled_stacks import recorded_stacks

if TYPE_CHECKING:
    from probe.outside.stacks.sampling import Request

EXAMPLES = (
    "probe PID flamegraph -o x.svg",
    "probe JOB flamegraph --seconds 2 -o x.speedscope.json",
    "probe JOB flamegraph --since 10 --until 5000",
)
LIVE_S = 5
RATE_HZ = 100
AGENT_HZ = 10
"""Polling rate; an agent holds the GIL for about a millisecond per answer."""
_BIAS = "sampled where threads release the GIL: time in C code that holds it counts for the line after it"
_ENDED = "ended"
_OTHERS = "others"


class Target(NamedTuple):
    """A process to sample: its name in the graph, its rank in a multi-rank job, its PID, the kernel's
    ID of its training thread, and whether it runs on this machine."""

    name: str
    rank: int | None
    pid: int
    thread: int | None
    here: bool


def command(
    session: Session,
    output: Annotated[
        str | None,
        Option(
            "--output", "-o", metavar="FILE",
            help="SVG, or a speedscope file if the name ends in .json (default: a new .svg file here).",
        ),
    ] = None,
    seconds: Annotated[
        int | None, Option("--seconds", metavar="N", min=1, help="How long to sample (default: 5).")
    ] = None,
    since: Annotated[
        int | None,
        Option("--since", metavar="STEP", min=0, help="Draw recorded samples instead, from this step on."),
    ] = None,
    until: Annotated[
        int | None, Option("--until", metavar="STEP", min=0, help="Draw recorded samples up to this step.")
    ] = None,
    threads: Annotated[
        bool, Option("--threads", help="With --since: include other busy threads, each under its own frame.")
    ] = False,
    rank: Ranks = None,
    native: Annotated[
        bool,
        Option("--native", help="Include C and C++ frames (stops the process 100 times a second)."),
    ] = False,
    diff: Annotated[
        str | None,
        Option("--diff", metavar="OTHER", help="Compare --rank with these ranks: a set, or `others`."),
    ] = None,
) -> None:
    """Show where the training spends its time, as a flame graph.

    Samples all ranks at the same time and draws each under its own frame. With --diff, shows where the ranks
    of --rank spend more or less time than the others. Waiting time counts like computing time.
    """
    path = file_for(session, None, "flamegraph", ".svg") if output is None else output
    for_speedscope = path.endswith(".json")
    if diff is not None and for_speedscope:
        raise UsageError("--diff writes SVG only", hint="Give a name that ends in .svg with -o.")
    if diff is not None and rank is None:
        raise UsageError("--diff needs --rank", hint="For example --rank 3 --diff others.")
    if since is None and until is None:
        if threads:
            raise UsageError("--threads needs --since", hint="Only recorded samples have other threads.")
        drawn = _live(session, LIVE_S if seconds is None else seconds, rank, native, diff)
    else:
        if seconds is not None or native:
            raise UsageError("--since draws recorded samples", hint="Leave out --seconds and --native.")
        drawn = _recorded(session, since, until, rank, threads, diff)
    for note in drawn.notes:
        session.note(note)
    endpoint = session.address.endpoint
    title = drawn.of if endpoint.isdigit() else f"{endpoint}: {drawn.of}"
    if for_speedscope:
        text = speedscope(drawn.ours, title, drawn.per_s)
    elif diff is None:
        text = "".join(svg(merged(drawn.ours), title, drawn.about))
    else:
        sides = drawn.of, drawn.others
        root = difference(drawn.ours, drawn.theirs)
        text = "".join(svg(root, f"{title} against {sides[1]}", drawn.about, sides))
    write_file(path, text.encode("utf-8", "backslashreplace"))
    session.out.line(f"{drawn.about} of {drawn.all}: {path}")
    session.out.stream.flush()
    where = "https://www.speedscope.app, read only in the browser" if for_speedscope else "a browser"
    session.err.line(f"  next: open it in {where}")


class Drawn(NamedTuple):
    """The data of one graph: stacks by process or thread, the stacks they are compared with, counts per
    second, a description of the samples, the names of both sides and of all, and notes."""

    ours: dict[str, Counter[Stack]]
    theirs: dict[str, Counter[Stack]]
    per_s: float
    about: str
    of: str
    others: str
    all: str
    notes: list[str]


def _live(session: Session, seconds: int, rank: str | None, native: bool, diff: str | None) -> Drawn:
    """Take samples now."""
    targets = _targets(session)
    chosen = _chosen(targets, rank)
    others = _others(targets, chosen, diff)
    found, notes = _sampled(session, [*chosen, *others], seconds, native)
    ours = {one.name: found[one.name] for one in chosen if found[one.name]}
    theirs = {one.name: found[one.name] for one in others if found[one.name]}
    if not ours or (others and not theirs):
        for note in notes:
            session.note(note)
        raise StacksUnavailable("no stack was sampled", hint="`backtrace` shows why stacks cannot be read.")
    samples = count(sum(one.total() for one in (*ours.values(), *theirs.values())))
    return Drawn(
        ours, theirs, RATE_HZ, f"{samples} samples in {seconds} s", _names(chosen), _names(others),
        _names([*chosen, *others]), notes,
    )


def _recorded(
    session: Session, since: int | None, until: int | None, rank: str | None, threads: bool, diff: str | None
) -> Drawn:
    """Read samples that were recorded while the job ran."""
    if since is not None and until is not None and until < since:
        raise UsageError(f"--until {until} is before step {since}", hint="Give the first step with --since.")
    wanted = None if rank is None else _set(rank)
    every = wanted is None or diff == _OTHERS
    compared = set() if diff is None or diff == _OTHERS else _set(diff)
    with waiting(session.err, "reading the recorded samples"):
        found = recorded_stacks(session, since, until, None if every else (wanted or set()) | compared)
    several = len(found.training) > 1
    chosen = [one for one in found.training if wanted is None or one in wanted]
    others = [] if diff is None else [
        one for one in found.training if one not in chosen and (diff == _OTHERS or one in compared)
    ]
    if not chosen:
        raise UsageError(
            f"there are no samples of {rank_sets.named(wanted or ())} in these steps",
            hint=f"There are samples of {rank_sets.named(found.training)}.",
        )
    if diff is not None and not others:
        raise UsageError("there is no other rank to compare with", hint="Name fewer ranks with --rank.")
    ours = {f"rank {one}": found.training[one] for one in chosen}
    if threads:
        for (one, thread), stacks in found.others.items():
            if one in chosen:
                ours[f"rank {one}: thread {thread}" if several else f"thread {thread}"] = stacks
    notes = [*found.notes, _BIAS]
    if found.older:
        notes.append(f"attempt {found.attempt} only: earlier attempts have samples of these steps too")
    about = f"{count(found.samples)} samples, steps {found.first} to {found.last}"
    return Drawn(
        ours, {f"rank {one}": found.training[one] for one in others}, 1e9, about,
        rank_sets.named(chosen), rank_sets.named(others), rank_sets.named([*chosen, *others]), notes,
    )


# Choosing processes -------------------------------------------------------------


def _targets(session: Session) -> list[Target]:
    """The live processes of the endpoint, from one backtrace request."""
    answer = session.request("GET", "/v1/backtrace", {"endpoint": session.address.endpoint})
    here = session.address.directory is not None and not session.has_own_transport
    if "ranks" not in answer:
        if answer.get("source") == "recording":
            raise _dead(str((answer.get("notes") or ("it ended",))[0]))
        return [Target(f"pid {answer['pid']}", None, answer["pid"], _training(answer), here)]
    host = os.uname().nodename
    found = [
        Target(
            f"rank {rank}", int(rank), capture["pid"], _training(capture),
            here and capture.get("host") in (None, host),
        )
        for rank, capture in answer["ranks"].items()
        if capture.get("state") != _ENDED
    ]
    for missing in answer.get("missing") or ():
        session.note(str(missing))
    if not found:
        raise _dead("all its ranks have ended")
    return sorted(found, key=lambda one: one.rank or 0)


def _dead(what: str) -> ProcessDead:
    return ProcessDead(
        f"no running process can be sampled: {what}",
        hint="`probe JOB flamegraph --since 0` draws the samples recorded while it ran, "
        "`probe JOB backtrace` shows its last stacks.",
    )


def _training(capture: Mapping[str, Any]) -> int | None:
    threads = [one["thread_id"] for one in capture.get("threads") or () if one.get("training")]
    return threads[0] if threads else None


def _set(text: str) -> set[int]:
    try:
        return set(rank_sets.from_text(text))
    except ValueError:
        raise UsageError(f"{text}: not a set of ranks", hint="For example 3, or 0,2-7.") from None


def _chosen(targets: list[Target], text: str | None) -> list[Target]:
    if text is None:
        return targets
    wanted = _set(text)
    found = [one for one in targets if one.rank in wanted]
    if not found:
        raise UsageError(f"none of {rank_sets.named(wanted)} runs here", hint="`probe JOB ranks` lists them.")
    return found


def _others(targets: list[Target], chosen: list[Target], diff: str | None) -> list[Target]:
    if diff is None:
        return []
    found = targets if diff == _OTHERS else _chosen(targets, diff)
    found = [one for one in found if one not in chosen]
    if not found:
        raise UsageError("there is no other rank to compare with", hint="Name fewer ranks with --rank.")
    return found


def _names(targets: Sequence[Target]) -> str:
    ranks = [one.rank for one in targets if one.rank is not None]
    return rank_sets.named(ranks) if ranks else ", ".join(one.name for one in targets)


# Sampling -----------------------------------------------------------------------


def _sampled(
    session: Session, targets: Sequence[Target], seconds: int, native: bool
) -> tuple[dict[str, Counter[Stack]], list[str]]:
    """The stacks of each target by its name, and notes on how they were read."""
    from probe.outside.stacks import sampling

    found: dict[str, Counter[Stack]] = {one.name: Counter() for one in targets}
    by_pyspy, by_agent, notes = _ways(targets, native)
    who = by_pyspy[0][0].name if len(targets) == 1 and by_pyspy else f"{len(targets)} processes"
    requests = [request for _, request in by_pyspy]
    with (
        waiting(session.err, f"sampling {who} for {seconds} s"),
        sampling.sampling(requests, seconds, RATE_HZ) as running,
    ):
        if by_agent:
            notes += _poll_agents(session, by_agent, seconds, found)
        results = running.results()
    for (target, _), samples in zip(by_pyspy, results, strict=True):
        found[target.name] = samples.stacks
        notes += [f"{target.name}: {note}" for note in samples.notes]
    return found, notes


def _ways(
    targets: Sequence[Target], native: bool
) -> tuple[list[tuple[Target, Request]], list[Target], list[str]]:
    """The targets that py-spy samples, with their requests; the targets polled through agents; and why."""
    from probe.outside.processes.target import check_tracing, read_target
    from probe.outside.stacks import pyspy, sampling
    from probe.outside.stacks.outside_view import why_not_stopped

    by_pyspy: list[tuple[Target, Request]] = []
    by_agent: list[Target] = []
    notes = []
    for one in targets:
        if not one.here:
            by_agent.append(one)
            continue
        try:
            pyspy.program()
            check_tracing(read_target(one.pid))
        except ProbeError as error:
            notes.append(f"{one.name}: sampled through its agent: {error.message}")
            by_agent.append(one)
            continue
        why_not = why_not_stopped(one.pid) if native else None
        if why_not:
            notes.append(f"{one.name}: no native frames, because reading them stops the process: {why_not}")
        by_pyspy.append((one, sampling.Request(one.pid, one.thread, native and not why_not)))
    if by_agent and native:
        notes.append(f"{_names(by_agent)}: no native frames: agents see Python frames only")
    return by_pyspy, by_agent, notes


def _poll_agents(
    session: Session, targets: Sequence[Target], seconds: int, found: dict[str, Counter[Stack]]
) -> Iterator[str]:
    """Poll the agents at `AGENT_HZ` and count their stacks in `found`; yields a note."""
    deadline, polls = time.monotonic() + seconds, 0
    names = {one.rank: one.name for one in targets}
    while True:
        began = time.monotonic()
        if began >= deadline:
            break
        polls += 1
        answer = session.request("GET", "/v1/backtrace", {"endpoint": session.address.endpoint})
        captures = answer.get("ranks")
        by_rank: dict[int | None, Any] = {None: answer}
        if captures is not None:
            by_rank = {int(rank): one for rank, one in captures.items()}
        for rank, name in names.items():
            stack = _stack(by_rank.get(rank, {}))
            if stack:
                found[name][stack] += 1
        time.sleep(max(0.0, min(began + 1 / AGENT_HZ, deadline) - time.monotonic()))
    yield (
        f"{_names(targets)}: {polls} samples by their agents, which see a thread where it releases the GIL"
    )


def _stack(capture: Mapping[str, Any]) -> Stack:
    """The training thread's frames of one capture, in py-spy's format."""
    threads = capture.get("threads") or ()
    frames = next((one["frames"] for one in threads if one.get("training")), ())
    return tuple(f"{one['func']} ({_short(str(one['file']))}:{one['lineno']})" for one in reversed(frames))


def _short(file: str) -> str:
    """The file's path below site-packages, or its name."""
    for folder in ("/site-packages/", "/dist-packages/"):
        if folder in file:
            return file.rpartition(folder)[2]
    return file.rpartition("/")[2]
