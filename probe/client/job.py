"""`Job`, the Python interface to a job, which `probe.connect` returns.

Each method sends the request of the command with the same name; errors are those of `probe.base.errors`. Runs
in the client's process, on the caller's thread; standard library.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any, Literal

from probe.base.errors import ProbeError, UsageError
from probe.base.settings import Settings
from probe.client.answer import Answer
from probe.client.connection import Connection
from probe.client.endpoints import parse

_DEEP_S = 60.0
"""Time limit of a diagnosis by symptom, which may wait for steps of the job."""
_LONGEST_ACTION_S = 120.0
"""Time limit of an action itself, beyond waiting for a step to end: a large checkpoint on a slow disk."""


class SnippetRaised(ProbeError):
    """The code of an `eval` ran and raised; the command shows its traceback."""

    code = "snippet_raised"
    hint = "The attribute `traceback` of this exception is the snippet's traceback."
    traceback = ""


def connect(endpoint: str | int | os.PathLike[str] = "") -> Job:
    """Connect to a job: by pid, job name, `JOB/RANK`, a recording's folder, `HOST:PORT/JOB`, or no argument
    for the only living one.

    Starts this machine's server if none runs. Raises `EndpointUnknown` and other `EndpointError`s if there
    is no such job or its server cannot be reached, `UsageError` for an invalid endpoint."""
    if isinstance(endpoint, bool) or not isinstance(endpoint, (str, int, os.PathLike)):
        raise UsageError(
            f"an endpoint is a pid, a name or a path, not {type(endpoint).__name__}",
            hint='probe.connect(4242) or probe.connect("train")',
        )
    settings = Settings(os.environ)
    named = os.fspath(endpoint) if isinstance(endpoint, os.PathLike) else str(endpoint)
    if isinstance(endpoint, os.PathLike) and not named.startswith(("/", ".", "~")):
        named = os.path.join(".", named)  # a path, not a job's name
    job = Job(Connection(parse(named or settings.endpoint, settings), settings))
    job.ranks()
    return job


class Rounds:
    """The rounds of `Job.follow`."""

    def __init__(self, job: Job, sql: str, every_s: float) -> None:
        if not every_s > 0:
            raise UsageError(f"every_s is {every_s:g}", hint="Give seconds above 0.")
        self._job = job
        self._sql = sql
        self._before: set[str] = set()

    def next(self) -> list[dict[str, Any]] | None:
        """The rows that are new since the last round; None when no more will come."""
        alive = any(rank.get("ended_ns") is None for rank in self._job.ranks())
        answer = self._job.query(self._sql)
        rows = {repr(row): record for row, record in zip(answer.rows, answer.records(), strict=True)}
        fresh = [record for key, record in rows.items() if key not in self._before]
        self._before = set(rows)
        return fresh if fresh or alive else None


class Job:
    """A running or ended job, one of its ranks, or a recording."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __repr__(self) -> str:
        address = self._connection.address
        place = f" at {address.url}" if address.url else ""
        return f"<probe job {address.endpoint or '(the only one)'}{place}>"

    # Reading ----------------------------------------------------------------

    def query(self, sql: str, *, limit: int | None = None, timeout_s: float | None = None) -> Answer:
        """Run one SELECT over its tables. `limit`: rows at most, the server's own limit without one.

        Raises `SqlInvalid`, `QueryTimeout`, `QueryOutOfMemory`."""
        return Answer.query(self._connection, sql, limit, timeout_s)

    def follow(self, sql: str, *, every_s: float = 1.0) -> Iterator[dict[str, Any]]:
        """The rows of a query as they appear: runs it again every `every_s` seconds and yields each row that
        the last answer did not have. Ends when the job has ended and has no new row.

        Let the SQL select recent rows (`WHERE step > …`, `ORDER BY … DESC LIMIT 100`): each round compares
        whole answers."""
        rounds = Rounds(self, sql, every_s)
        while (fresh := rounds.next()) is not None:
            yield from fresh
            time.sleep(every_s)

    def tables(self) -> Answer:
        """Names of its tables, and what one row of each describes."""
        found = self._connection.request("GET", "/v1/tables", self._asked())["tables"]
        return Answer(
            [("table", "VARCHAR"), ("one row per", "VARCHAR")], [[one["name"], one["doc"]] for one in found]
        )

    def ranks(self) -> list[dict[str, Any]]:
        """Its processes on all hosts, as `GET /v1/ranks` describes them."""
        found: list[dict[str, Any]] = self._connection.request("GET", "/v1/ranks", self._asked())["ranks"]
        return found

    def diagnose(self, symptom: str | None = None, *, deep: bool = True) -> dict[str, Any]:
        """What is wrong, why, and what to do next: `state`, `severity`, `what`, `why`, `next`, `findings` …

        `symptom`: nan, slow, memory, hang, loss, gradients or data; `deep` lets its checks collect statistics
        in the job."""
        asked = self._asked(symptom=symptom or "", deep="1" if deep else "0")
        return self._connection.request(
            "GET", "/v1/diagnose", asked, timeout_s=_DEEP_S if symptom else None
        )

    def backtrace(
        self, *, all_threads: bool = False, native: bool = False, local_variables: bool = False
    ) -> dict[str, Any]:
        """Its stacks: a capture, or `ranks` with a capture of each and the merged `tree`."""
        flags = {"all_threads": all_threads, "native": native, "locals": local_variables}
        asked = self._asked(**{name: "1" if on else "" for name, on in flags.items()})
        return self._connection.request("GET", "/v1/backtrace", asked)

    # Acting -------------------------------------------------------------------

    def eval(
        self, code: str, *, when: Literal["auto", "now", "step"] = "auto", together: bool = False,
        force: bool = False, timeout_s: float | None = None, wait_s: float | None = None,
    ) -> dict[str, Any]:
        """Run Python in the process, or in every rank: `output`, `value` (its repr), `step`, `class` …; for
        several ranks `answers` with one of each.

        Code that only reads runs at once; code that changes the job runs between two steps (`when`). Raises
        `SnippetRefused`, `EvalTimeout`, `NoBoundary`; `SnippetRaised` if the code raised in the only
        process."""
        settings = self._connection.settings
        timeout_s = settings.eval_timeout_s if timeout_s is None else timeout_s
        told = {"code": code, "timeout_s": timeout_s, "when": when, "together": together or None,
                "force": force or None}
        answer = self._tell("/v1/eval", told, wait_s, timeout_s)
        error = answer.get("error")
        if error:
            raised = SnippetRaised(f"{error.get('type')}: {error.get('message')}", hint=error.get("hint"))
            raised.traceback = str(error.get("traceback") or "")
            raise raised
        return answer

    def act(
        self, action: str, *, wait_s: float | None = None, now: bool = False, **arguments: Any
    ) -> dict[str, Any]:
        """Run the action of the command with that name, with its options: `act("lr", scale=0.1)`,
        `act("checkpoint", path="rescue.pt")`. Returns `id`, `what`, `step`, `notes`, `undoable`.

        Raises `ActionUnknown`, `ActionRefused`, `ActionFailed`, `NoBoundary`."""
        told = {"action": action, "arguments": arguments, "now": now or None}
        return self._tell("/v1/act", told, wait_s, _LONGEST_ACTION_S)

    def undo(self, action_id: str, *, wait_s: float | None = None) -> dict[str, Any]:
        """Undo an action by its `id`; raises `NotUndoable`."""
        return self._tell("/v1/undo", {"id": action_id}, wait_s, _LONGEST_ACTION_S)

    def _tell(
        self, path: str, told: dict[str, Any], wait_s: float | None, longest_s: float
    ) -> dict[str, Any]:
        settings = self._connection.settings
        body = {
            "endpoint": self._connection.endpoint, **told, "wait_anyway": wait_s is not None or None,
            "wait_s": settings.act_wait_s if wait_s is None else wait_s,
        }
        return self._connection.request("POST", path, body=body, timeout_s=body["wait_s"] + longest_s)

    def _asked(self, **more: str) -> dict[str, str]:
        return {"endpoint": self._connection.endpoint, **more}
