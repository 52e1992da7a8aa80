"""What tests of acting together ask of a job's ranks, through the server and of the agents themselves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from agent.asking import ask
from harness import PATIENCE_S, Place
from probe.base import wire
from probe.base.errors import ProbeError
from probe.recording import places
from ranks import Ranks


def post(place: Place, path: str, timeout_s: float = PATIENCE_S, **body: Any) -> dict[str, Any]:
    """The server's answer, once there is one; raises the error that it answers with."""
    place.start_server()
    answer: dict[str, Any] = wire.call(
        places.server_socket(place.directory), "POST", path, body, timeout_s=timeout_s
    )
    return answer


def query(place: Place, job: str, sql: str) -> list[list[Any]]:
    """Rows over all ranks."""
    body = {"endpoint": job, "sql": sql, "limit": 1_000_000}
    rows: list[list[Any]] = post(place, "/v1/query", **body)["rows"]
    return rows


def act(place: Place, job: str, action: str, wait_s: float = 30.0, **arguments: Any) -> dict[str, Any]:
    """An action on all ranks."""
    return post(place, "/v1/act", endpoint=job, action=action, arguments=arguments, wait_s=wait_s)


class Asked(threading.Thread):
    """A request that is under way; `outcome` waits for what it brought."""

    def __init__(self, request: Callable[[], dict[str, Any]]) -> None:
        super().__init__(daemon=True)
        self._request = request
        self._answer: dict[str, Any] | None = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Ask."""
        try:
            self._answer = self._request()
        except (OSError, ProbeError) as error:
            self._error = error

    def outcome(self) -> dict[str, Any]:
        """The answer, or what was raised."""
        self.join(PATIENCE_S)
        if self._error is not None:
            raise self._error
        assert self._answer is not None
        return self._answer


def until(fact: Callable[[], bool], what: str) -> None:
    """Wait until it is so."""
    deadline = time.monotonic() + PATIENCE_S
    while not fact():
        assert time.monotonic() < deadline, f"not in {PATIENCE_S:g} s: {what}"
        time.sleep(0.02)


def health(place: Place, ranks: Ranks, rank: int) -> dict[str, Any]:
    """What one rank's agent says of itself."""
    found: dict[str, Any] = ask(place, ranks[rank].pid, "GET", "/v1/health")
    return found


def in_force(place: Place, ranks: Ranks, rank: int) -> list[dict[str, Any]]:
    """The actions that stand on one rank."""
    found: list[dict[str, Any]] = ask(place, ranks[rank].pid, "GET", "/v1/actions")["standing"]
    return found


def first_steps(place: Place, job: str) -> dict[float, dict[int, int]]:
    """By learning rate, the first step of each rank that used it."""
    found: dict[float, dict[int, int]] = {}
    for rank, rate, step in query(
        place, job, "SELECT rank, lr, min(step) FROM python.steps WHERE lr IS NOT NULL GROUP BY rank, lr"
    ):
        found.setdefault(rate, {})[rank] = step
    return found


def last_states(place: Place, job: str) -> dict[int, tuple[str, str]]:
    """By rank, how its latest action stands, and what is said of it."""
    rows = query(
        place, job,
        "SELECT rank, state, what FROM probe.actions"
        " QUALIFY row_number() OVER (PARTITION BY rank ORDER BY t_ns DESC) = 1",
    )
    return {rank: (state, what) for rank, state, what in rows}
