"""Asking an agent itself, where no server answers and none can be started.

The agent's socket speaks the same HTTP and JSON: what only the process can tell
(`backtrace`, `eval`, actions) needs no server. Nothing is asked twice: a question goes to
the agent only when no server took it. The command's main thread; standard-library
layers only.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from probe.base.errors import AgentUnreachable, EndpointAmbiguous, RecordingError, ServerUnavailable
from probe.recording import places
from probe.recording.process import alive
from probe_cli.core.session import Session
from probe_cli.core.transport import check_size, target

if TYPE_CHECKING:
    from probe.recording.recording import Meta

SERVER_WAIT_S = 5.0
"""How long a server is waited for when the agent itself can answer."""
_GRACE_S = 2.0
"""The agent answers within the deadline it was given; this is for the way back."""
_HEALTH_S = 1.0
"""An agent that does not say within that time (and the way back) that it lives is not waited for."""


class Question(NamedTuple):
    """One question in one of its two forms; `body` without the endpoint, as agents take it."""

    method: str
    path: str
    parameters: Mapping[str, str] = {}
    body: Mapping[str, object] | None = None


def ask_process(session: Session, server: Question, agent: Question, timeout_s: float) -> dict[str, Any]:
    """The answer of one process: through the server, which gets `server`, else from its agent.

    Raises what `Session.ask` raises; `timeout_s` is the deadline of the process itself."""
    check_size(agent.body)
    try:
        session.connect(SERVER_WAIT_S)
    except ServerUnavailable as error:
        return _ask_agent(session, agent, timeout_s, error)
    return session.ask(server.method, server.path, server.parameters, server.body, timeout_s)


def _ask_agent(
    session: Session, question: Question, timeout_s: float, unavailable: ServerUnavailable
) -> dict[str, Any]:
    from probe.base.wire import call

    address = session.address
    meta = None if address.directory is None else only_process(address.directory, address.endpoint)
    if meta is None:
        raise unavailable
    who = f"{meta.job}/{meta.rank} (pid {meta.pid})"
    asked = target(question.path, question.parameters)
    waits_s = min(timeout_s, _HEALTH_S) + _GRACE_S
    try:
        if timeout_s > _HEALTH_S:  # a long wait for a process that is stopped would tell nothing
            call(Path(meta.socket), "GET", "/v1/health", timeout_s=waits_s)
        waits_s = timeout_s + _GRACE_S
        answer = call(Path(meta.socket), question.method, asked, question.body, timeout_s=waits_s)
    except AgentUnreachable:
        raise AgentUnreachable(
            f"{who} did not answer within {waits_s:g} s: it is stopped, something in it holds the GIL, or "
            f"this busy machine has no core for it; and {unavailable.message}",
            hint=unavailable.hint,
        ) from None
    except OSError:
        raise unavailable from None
    if not isinstance(answer, dict):
        raise unavailable
    session.note(f"{who} answered directly, because {unavailable.message}")
    session.err.line(f"  next: {unavailable.hint}")
    return answer


def only_process(directory: Path, endpoint: str) -> Meta | None:
    """The one living process recorded in `directory` that an endpoint means, None when there is none.

    Raises `EndpointAmbiguous` for several."""
    found = [meta for folder, meta in _living(directory) if _is_meant(endpoint, folder, meta)]
    if len(found) > 1:
        names = ", ".join(f"{meta.job}/{meta.rank} (pid {meta.pid})" for meta in found[:8])
        what = f"{endpoint or 'that'} means {len(found)} processes: {names}"
        raise EndpointAmbiguous(
            f"{what}, and there is no server that could ask them all",
            hint="Name one, or see why no server runs: `probe doctor`.",
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
        # Its socket tells a process that was detached, and of two recordings of one process the last.
        if alive(meta.pid, meta.start_ticks, meta.boot_id) and Path(meta.socket).exists():
            found.append((folder, meta))
    latest = {meta.pid: (folder, meta) for folder, meta in sorted(found, key=lambda one: one[1].started_ns)}
    return list(latest.values())


def _is_meant(endpoint: str, folder: Path, meta: Meta) -> bool:
    names = ("", str(meta.pid), meta.job, meta.run, f"{meta.job}/{meta.rank}", f"{meta.run}/{meta.rank}")
    return endpoint in names or (endpoint.startswith("/") and folder.is_relative_to(endpoint))
