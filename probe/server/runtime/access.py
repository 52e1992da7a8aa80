"""Callers and their roles. The kernel identifies callers of the unix socket, a token those of TCP.

    owner      unix socket: this user, or root
    operator   TCP with the token: everything except deleting recordings and opening folders by path;
               running code only with PROBE_ALLOW_EVAL=1
    viewer     TCP with the viewer's token: reads, and neither changes nor stops the job

`NEEDS` is the whole table; a route that is not in it needs an operator. Runs on the server's event loop.
Standard library only (and types of starlette).
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from probe.base.errors import BadRequest, Forbidden
from probe.base.settings import Settings

if TYPE_CHECKING:
    from starlette.requests import Request

VIEWER, OPERATOR, OWNER = "viewer", "operator", "owner"
MONITOR = "monitor"
"""The server itself, when it runs an action that the owner configured for an incident."""
role_now: ContextVar[str] = ContextVar("role_now", default=OWNER)
"""The role of the caller of the current request."""
ROLES = (VIEWER, OPERATOR, OWNER)
"""In ascending order; each role includes the ones before it."""

NEEDS: dict[str, str] = {
    "GET /": VIEWER,
    "GET /docs": VIEWER,
    "GET /openapi.json": VIEWER,
    "GET /v1/health": VIEWER,
    "GET /v1/processes": VIEWER,
    "GET /v1/tables": VIEWER,
    "GET /v1/recipes": VIEWER,
    "GET /v1/query": VIEWER,
    "POST /v1/query": VIEWER,
    "GET /v1/backtrace": VIEWER,
    "GET /v1/diagnose": VIEWER,
    "GET /v1/summary": VIEWER,
    "GET /v1/peers": VIEWER,
    "GET /v1/ranks": VIEWER,
    "POST /v1/rows": VIEWER,
    "GET /v1/monitor": VIEWER,
    "GET /metrics": VIEWER,
    "POST /v1/relay": OPERATOR,
    "POST /v1/eval": OPERATOR,
    "POST /v1/act": OPERATOR,
    "POST /v1/undo": OPERATOR,
    "POST /v1/together": OPERATOR,
    "POST /v1/detach": OPERATOR,
    "POST /v1/prune": OWNER,
    "POST /v1/monitor": OWNER,
}
"""The role that a route needs, by method and path."""

Scope = Literal["job", "host"]
"""Ranks that a request covers: `job`, on all hosts; `host`, on this host only."""


class Caller(NamedTuple):
    """The sender of a request. `uid` and `pid` come from the kernel; None over TCP."""

    uid: int | None
    pid: int | None
    via: str
    role: str

    @property
    def tcp(self) -> bool:
        """Whether the request came over TCP."""
        return self.via == "tcp"


def caller(request: Request) -> Caller:
    """The sender of a request. `LimitedProtocol` sets the peer of a unix socket, `TcpGate` the role."""
    state: dict[str, Any] = request.scope.get("state", {})
    if "role" in state:
        return Caller(None, None, "tcp", state["role"])
    peer = state.get("peer")
    if peer is None:  # unknown: the least role
        return Caller(None, None, "tcp", VIEWER)
    return Caller(peer.uid, peer.pid, "unix", OWNER)


def check_route(role: str, method: str, path: str) -> None:
    """Raise `Forbidden` when a route needs more than `role`."""
    require_role(role, NEEDS.get(f"{method} {path}", OPERATOR), path.rpartition("/")[2][:100] or path[:100])


def require_role(role: str, needed: str, what: str) -> None:
    """Raise `Forbidden` when `what` needs more than `role`."""
    if ROLES.index(role) >= ROLES.index(needed):
        return
    hint = "Use it on the host itself, as the user who owns the job."
    if needed == OPERATOR:
        hint = (
            "Set PROBE_TOKEN_FILE to a file with the operator's token: on that host, PROBE_DIR/token "
            "(PROBE_DIR/token.viewer only reads)."
        )
    raise Forbidden(f"{what} needs the role {needed}, and this token has the role {role}", hint=hint)


def require_code(caller: Caller, settings: Settings, what: str) -> None:
    """Raise `Forbidden` for `what`, which runs code, over TCP without PROBE_ALLOW_EVAL=1."""
    if caller.tcp and not settings.allow_eval:
        raise Forbidden(
            f"{what} is not allowed over TCP",
            hint="Use it on the host itself, or set PROBE_ALLOW_EVAL=1 there.",
        )


def endpoint(text: str, caller: Caller) -> str:
    """The endpoint of a request, checked: over TCP only a recorded process or job, not a folder."""
    if caller.tcp and text.strip().startswith("/"):
        raise Forbidden("folders cannot be opened over TCP", hint="Name a pid, a job or job/rank.")
    if "\x00" in text:
        raise BadRequest("the endpoint contains a NUL character")
    return text
