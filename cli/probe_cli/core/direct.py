"""Requests sent directly to an agent, if no server answers and none can be started.

The agent's socket uses the same HTTP and JSON, so `backtrace`, `eval` and actions work
without a server. No request is sent twice: an agent gets it only if no server accepted it.
Runs in the command's main thread; standard-library layers only.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from probe.base.errors import AgentUnreachable, EndpointAmbiguous, RecordingError, ServerUnavailable
from probe.client.transport import check_size, target
from probe.recording import places
from probe.recording.process import alive
from probe_cli.core.session import Session

if TYPE_CHECKING:
    from probe.recording.recording import Meta

SERVER_WAIT_S = 5.0
"""Longest wait for a server if the agent itself can answer."""
_GRACE_S = 2.0
"""Extra time for the response, in addition to the agent's own deadline."""
_HEALTH_S = 1.0
"""Time limit of a health check before a long request."""


class Request(NamedTuple):
    """One request to a server or, without the endpoint, to an agent."""

    method: str
    path: str
    parameters: Mapping[str, str] = {}
    body: Mapping[str, object] | None = None


def request_process(session: Session, server: Request, agent: Request, timeout_s: float) -> dict[str, Any]:
    """The answer of one process: from the server, or else from its agent.

    Raises what `Session.request` raises; `timeout_s` is the deadline of the process itself."""
    check_size(agent.body)
    try:
        session.connect(SERVER_WAIT_S)
    except ServerUnavailable as error:
        return _request_agent(session, agent, timeout_s, error)
    return session.request(server.method, server.path, server.parameters, server.body, timeout_s)


def _request_agent(
    session: Session, question: Request, timeout_s: float, unavailable: ServerUnavailable
) -> dict[str, Any]:
    from probe.base.wire import call

    address = session.address
    meta = None if address.directory is None else only_process(address.directory, address.endpoint)
    if meta is None:
        raise unavailable
    who = name_of(meta)
    asked = target(question.path, question.parameters)
    waits_s = min(timeout_s, _HEALTH_S) + _GRACE_S
    try:
        if timeout_s > _HEALTH_S:  # do not wait long for a stopped process
            call(Path(meta.socket), "GET", "/v1/health", timeout_s=waits_s)
        waits_s = timeout_s + _GRACE_S
        answer = call(Path(meta.socket), question.method, asked, question.body, timeout_s=waits_s)
    except AgentUnreachable:
        raise AgentUnreachable(
            f"{who} did not answer within {waits_s:g} s: it is stopped, something in it holds the GIL, or "
            f"this machine is overloaded; also, {unavailable.message}",
            hint=unavailable.hint,
        ) from None
    except OSError:
        raise unavailable from None
    if not isinstance(answer, dict):
        raise unavailable
    session.note(f"{who} answered directly, because {unavailable.message}")
    session.err.line(f"  next: {unavailable.hint}")
    return answer


def name_of(meta: Meta) -> str:
    """`gpt/0 (pid 4242)`."""
    return f"{meta.job}/{meta.rank} (pid {meta.pid})"


def only_process(directory: Path, endpoint: str) -> Meta | None:
    """The live process recorded in `directory` that an endpoint identifies, if any.

    Raises `EndpointAmbiguous` for several."""
    found = [meta for folder, meta in _living(directory) if _matches(endpoint, folder, meta)]
    if len(found) > 1:
        names = ", ".join(map(name_of, found[:8]))
        what = f"{endpoint or 'no endpoint'} matches {len(found)} processes: {names}"
        raise EndpointAmbiguous(
            f"{what}; querying all of them needs a server",
            hint="Name one, or find out why no server runs: `probe doctor`.",
        )
    return found[0] if found else None


def _living(directory: Path) -> list[tuple[Path, Meta]]:
    from probe.recording.recording import Meta

    found = []
    for folder in places.process_folders(directory):
        try:
            meta = Meta.read(folder)
        except RecordingError:
            continue
        # A detached process has no socket.
        if alive(meta.pid, meta.start_ticks, meta.boot_id) and Path(meta.socket).exists():
            found.append((folder, meta))
    latest = {meta.pid: (folder, meta) for folder, meta in sorted(found, key=lambda one: one[1].started_ns)}
    return list(latest.values())


def _matches(endpoint: str, folder: Path, meta: Meta) -> bool:
    names = ("", str(meta.pid), meta.job, meta.run, f"{meta.job}/{meta.rank}", f"{meta.run}/{meta.rank}")
    return endpoint in names or (endpoint.startswith("/") and folder.is_relative_to(endpoint))
