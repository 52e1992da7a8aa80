"""`probe bundle`: one file with everything recorded about a job, to send to a colleague."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from probe.base.errors import EndpointUnknown, ProbeError, ServerUnavailable, UsageError
from probe.client.answer import Answer
from probe_cli.core.act_client import typed
from probe_cli.core.figures import size
from probe_cli.core.options import Overwrite
from probe_cli.core.parameters import Option
from probe_cli.core.session import Session
from probe_cli.core.wait_line import waiting

if TYPE_CHECKING:
    from probe.bundle.asked import Elsewhere
    from probe.bundle.collecting import Subject

EXAMPLES = (
    "probe JOB bundle",
    "probe JOB bundle -o hang.tar.gz --max-size 20M --since 10",
)
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
_STACKS_S = 20.0
_MOST_NAMED = 8
_OF_RANK = ("rank", "pid", "host", "state", "how", "step")


def command(
    session: Session,
    output: Annotated[
        str | None,
        Option(
            "--output", "-o", metavar="FILE",
            help="Output file, .tar.zst or .tar.gz (default: named after the run and its step, here).",
        ),
    ] = None,
    max_size: Annotated[
        str, Option("--max-size", metavar="SIZE", help="Maximum size of the bundle.")
    ] = "500M",
    since: Annotated[
        int | None, Option("--since", metavar="STEP", min=0, help="Leave out rows of earlier steps.")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write everything recorded about a job into one file.

    Contains the current rows, verdicts, stacks and facts of all ranks, without secrets; for ranks on other
    hosts, what those hosts return. `probe FILE diagnose` opens it on any machine.
    """
    from probe.bundle import archive, making

    if session.address.directory is None:
        raise UsageError(
            "a bundle needs the recording's files: make it on the job's host",
            hint=f"There: `{typed(session, 'bundle')}`.",
        )
    most_bytes = _bytes(max_size)
    listed = session.request("GET", "/v1/ranks", {"endpoint": session.endpoint})
    try:
        rows: list[dict[str, Any]] = listed["ranks"]
        here = [row for row in rows if row.get("folder") and Path(row["folder"], "meta.json").is_file()]
        first = (here or rows)[0]
        several = len(rows) > 1 or (listed["world_size"] or 1) > 1
        others, apart = _others([row for row in rows if row not in here], first)
        missing = [*_elsewhere(apart), *map(str, listed["missing"])]
    except (KeyError, TypeError, IndexError) as error:
        raise ServerUnavailable(f"invalid list of ranks: {error!r}") from None
    if not here:
        raise EndpointUnknown("no rank of this job is recorded on this host", hint=f"{missing[0]}.")
    path = _path(output, here, archive.best_suffix(), overwrite)
    answers, subjects, elsewhere = _answers(session, here, others, several)
    made_ns = subjects[0].moment.made_ns
    about = {
        "made_ns": made_ns, "made": time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(made_ns / 1e9)),
        "job": first["job"], "run": first["run"], "attempt": first["attempt"], "host": first["host"],
        "ranks": [{name: row[name] for name in _OF_RANK} for row in (*here, *others)],
        "missing": missing,
    }
    with waiting(session.err, f"writing {path.name}"):
        made = making.make(path, subjects, answers, about, making.Limits(since, most_bytes), elsewhere)
    ranks = "1 rank" if len(here) + len(others) == 1 else f"{len(here) + len(others)} ranks"
    session.out.line(f"{path}  {size(made.size_bytes)}: {ranks} of {first['job']}")
    for note in (*missing, *_left_out(made.left_out), *made.notes):
        session.note(note)
    if since is not None:
        session.note(f"rows before step {since:,} are left out")
    session.err.line(f"  next: probe {path.name} diagnose  (here, or wherever you send it)")


def _bytes(text: str) -> int:
    """Bytes of `500M`; raises `UsageError`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)B?", text.strip().upper())
    if found is None or not float(found[1]):
        raise UsageError(f"invalid size {text!r}", hint="For example 20M, 500M or 2G.")
    return int(float(found[1]) * _UNITS[found[2]])


def _path(output: str | None, here: Sequence[dict[str, Any]], suffix: str, overwrite: bool) -> Path:
    """The bundle's path; the default name contains run, attempt and last finished step."""
    from probe.bundle import archive

    if output is None:
        steps = [row["step"] for row in here if row.get("step") is not None]
        step = f"-step{max(steps)}" if steps else ""
        attempt = f"-attempt{here[0]['attempt']}" if here[0]["attempt"] else ""
        output = f"{here[0]['run']}{attempt}{step}{suffix}"
    archive.suffix_of(output)
    path = Path(os.path.abspath(os.path.expanduser(output)))
    if not path.parent.is_dir():
        raise UsageError(
            f"no such folder: {path.parent}", hint="Make it first, or name another file with -o."
        )
    if path.exists() and not overwrite:
        raise UsageError(f"{path} exists", hint="Add --overwrite, or name another file with -o.")
    return path


def _answers(
    session: Session, here: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]], several: bool
) -> tuple[dict[str, Any], list[Subject], Elsewhere]:
    """The server's current answers by file name; the ranks on this host; the ranks on other hosts."""
    from probe.bundle.asked import Elsewhere
    from probe.bundle.collecting import Subject
    from probe.bundle.moment import Moment

    endpoint = session.endpoint
    if several and not endpoint.startswith("/"):
        endpoint = str(here[0]["run"])
    diagnosis = session.request("GET", "/v1/diagnose", {"endpoint": endpoint})
    facts: dict[Any, dict[str, Any]] = {}
    if several:
        part = session.request("GET", "/v1/diagnose", {"endpoint": endpoint, "scope": "host"})
        facts = {one.get("pid"): one for one in part.get("facts") or ()}
    answers = {"diagnosis.json": diagnosis}
    stacks: dict[str, Any] = {}
    try:
        stacks = session.request(
            "GET", "/v1/backtrace", {"endpoint": endpoint, "all_threads": "1"}, timeout_s=_STACKS_S
        )
        answers["backtrace.json"] = stacks
    except ProbeError as error:
        session.note(f"the bundle has no stacks: {error.message}")
    made_ns = time.time_ns()
    captures = stacks.get("ranks") or {}
    elsewhere = [
        Subject(Path(), row, Moment(made_ns, None, None, captures.get(str(row["rank"])))) for row in others
    ]
    subjects = []
    for row in here:
        known = facts.get(row["pid"])
        verdict = (known or {}).get("verdict") if several else _verdict(diagnosis)
        capture = (stacks.get("ranks") or {}).get(str(row["rank"])) if several else stacks
        capture = capture if capture and capture.get("threads") is not None else None
        moment = Moment(made_ns, verdict or _nothing_odd(row), known, capture)
        subjects.append(Subject(Path(row["folder"]), row, moment))
    return answers, subjects, Elsewhere(elsewhere, lambda sql, most: Answer.query(session, sql, most))


def _others(
    rows: Sequence[dict[str, Any]], first: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The ranks on other hosts that can be queried (of the same attempt), and those that cannot."""
    asked = [row for row in rows if all(row[name] == first[name] for name in ("job", "run", "attempt"))]
    return asked, [row for row in rows if row not in asked]


def _verdict(diagnosis: dict[str, Any]) -> dict[str, Any]:
    return {name: diagnosis.get(name) for name in ("state", "severity", "what", "why", "next")}


def _nothing_odd(row: dict[str, Any]) -> dict[str, Any]:
    """The verdict on a rank that was not examined, because it made progress."""
    step = "no step finished yet" if row["step"] is None else f"step {row['step']:,} was the last finished"
    what = f"{row['job']}/{row['rank']} (pid {row['pid']}) made progress: {step}"
    return {"state": row["state"], "severity": "ok", "what": what, "why": [], "next": []}


def _elsewhere(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Notes on the ranks on other hosts, and how to get them."""
    from probe.base.rank_sets import named

    hosts: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        hosts.setdefault(str(row.get("host")), []).append(row)
    return [
        f"{named(row['rank'] for row in found)} on {host}: not in the bundle, run "
        f"`probe {found[0]['run']} bundle` there"
        for host, found in sorted(hosts.items())
    ]


def _left_out(found: Sequence[dict[str, Any]]) -> list[str]:
    """Notes on tables that did not fit, largest first."""
    largest = sorted(found, key=lambda one: -int(one["bytes"]))
    said = [
        f"left out for --max-size: {one['table']} of rank {one['rank']}, rows {one['first_row']:,} to "
        f"{one['last_row']:,} ({size(one['bytes'])})"
        for one in largest[:_MOST_NAMED]
    ]
    more = len(largest) - _MOST_NAMED
    return said + ([f"left out for --max-size: and parts of {more} other tables"] if more > 0 else [])
