"""Reads the stacks that PROBE_SAMPLE_HZ recorded for the newest attempt, rebuilt from the tree in the tables.

Uses only queries, so it works for live, hung and dead jobs. Standard library only; runs in the command's main
thread.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from probe.base.errors import StacksUnavailable
from probe.client.answer import Answer, Asker
from probe_cli.core.figures import count
from probe_cli.render.flame_graph import Stack

PAGE_ROWS = 20_000
NAMELESS = "(name not recorded)"
"""A frame whose name did not fit into the table of names."""
LOST = "(stack not recorded)"
"""A sample whose frames were deleted, or overwritten while no server ran."""


class Recorded(NamedTuple):
    """Stacks of recorded samples by rank, outermost frame first, weighted by the nanoseconds that each sample
    represents. `others`: stacks of other busy threads, by rank and thread name."""

    training: dict[int, Counter[Stack]]
    others: dict[tuple[int, str], Counter[Stack]]
    samples: int
    first: int
    last: int
    """The first and the last step with a sample."""
    attempt: int
    older: bool
    """Whether an earlier attempt has samples of these steps too."""
    notes: list[str]
    """Notes of the server, such as a host that did not answer."""


def recorded_stacks(
    asker: Asker, since: int | None, until: int | None, ranks: Collection[int] | None
) -> Recorded:
    """The samples from step `since` to step `until`; raises `StacksUnavailable` if there are none."""
    conditions = ["step IS NOT NULL"]
    conditions += [] if since is None else [f"step >= {since}"]
    conditions += [] if until is None else [f"step <= {until}"]
    conditions += [] if ranks is None else [f"rank IN ({', '.join(map(str, sorted(ranks)))})"]
    only = " AND ".join(conditions)
    answer = Answer.query(
        asker,
        "SELECT max(attempt) AS attempt, min(attempt) AS oldest, count(*) AS samples"
        f" FROM python.stack_samples WHERE {only}",
    )
    [whole] = answer.records()
    if not whole["samples"]:
        raise _nothing(asker)
    only += f" AND attempt = {whole['attempt']}"
    nodes = _nodes(asker, only, whole["attempt"])
    training: dict[int, Counter[Stack]] = defaultdict(Counter)
    others: dict[tuple[int, str], Counter[Stack]] = defaultdict(Counter)
    samples, first, last = 0, [], []
    for row in _pages(
        asker,
        "SELECT rank, pid, training, thread, node, sum(wall_ns) AS ns, count(*) AS samples,"
        f" min(step) AS first, max(step) AS last FROM python.stack_samples WHERE {only} GROUP BY ALL"
        " ORDER BY rank, pid, training, thread, node",
    ):
        stack = _stack(nodes, row["rank"], row["pid"], row["node"])
        if row["training"]:
            samples += row["samples"]
            training[row["rank"]][stack] += int(row["ns"])
        else:
            others[row["rank"], str(row["thread"] or "nameless")][stack] += int(row["ns"])
        first.append(row["first"])
        last.append(row["last"])
    older = whole["oldest"] < whole["attempt"]
    return Recorded(
        dict(sorted(training.items())), dict(sorted(others.items())), samples, min(first), max(last),
        whole["attempt"], older, answer.notes,
    )


_Node = tuple[int | None, str]
"""The caller's node and the frame's name."""


def _nodes(asker: Asker, only: str, attempt: int) -> dict[tuple[int, int, int], _Node]:
    """The nodes of the samples and of all their callers, by rank, pid and node number."""
    sql = f"""
        WITH RECURSIVE tree AS (
            SELECT rank, pid, node, parent, frame FROM python.stack_nodes WHERE attempt = {attempt}
        ),
        used(rank, pid, node) AS (
            SELECT DISTINCT rank, pid, node FROM python.stack_samples WHERE {only}
            UNION SELECT t.rank, t.pid, t.parent FROM tree AS t JOIN used USING (rank, pid, node)
                WHERE t.parent IS NOT NULL
        )
        SELECT t.* FROM tree AS t JOIN used USING (rank, pid, node) ORDER BY rank, pid, node"""
    return {
        (row["rank"], row["pid"], row["node"]): (row["parent"], str(row["frame"] or NAMELESS))
        for row in _pages(asker, sql)
    }


def _stack(nodes: dict[tuple[int, int, int], _Node], rank: int, pid: int, node: int | None) -> Stack:
    """The frames above a node, outermost first. A parent must have a lower number, so damaged rows cannot
    form a cycle."""
    found: list[str] = []
    while node is not None:
        parent, frame = nodes.get((rank, pid, node), (None, LOST))
        found.append(frame)
        node = parent if parent is not None and parent < node else None
    return tuple(reversed(found))


def _pages(asker: Asker, sql: str) -> Iterator[dict[str, Any]]:
    offset = 0
    while True:
        answer = Answer.query(asker, f"{sql} LIMIT {PAGE_ROWS} OFFSET {offset}", PAGE_ROWS)
        yield from answer.records()
        offset += len(answer)
        if len(answer) < PAGE_ROWS and not answer.truncated:
            return


def _nothing(asker: Asker) -> StacksUnavailable:
    """The error that explains why there is no sample, and how to get some."""
    [found] = Answer.query(
        asker, "SELECT count(*) AS samples, min(step) AS first, max(step) AS last FROM python.stack_samples"
    ).records()
    if found["samples"]:
        steps = f"of steps {found['first']} to {found['last']}"
        if found["first"] is None:
            steps = "before the first step"
        return StacksUnavailable(
            f"no stack was sampled in these steps: there are {count(found['samples'])} samples, {steps}",
            hint="Choose other steps with --since and --until, or other ranks with --rank.",
        )
    rates = {
        str(row["value"]) for row in Answer.query(
            asker, "SELECT value FROM probe.settings WHERE variable = 'PROBE_SAMPLE_HZ'"
        ).records()
    }
    why = f": it runs with PROBE_SAMPLE_HZ={min(rates)}" if rates else " while it ran"
    return StacksUnavailable(
        f"no stack of this job was sampled{why}",
        hint="PROBE_SAMPLE_HZ=1 in the job's environment records its stacks once a second. Without --since,"
        " `flamegraph` samples a running job now.",
    )
