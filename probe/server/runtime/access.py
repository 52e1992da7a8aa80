"""Who asks and what they may: the kernel names callers of the unix socket, a token those of TCP.

    owner      the unix socket: this user, or root
    operator   TCP, with the token: everything but deleting recordings and opening folders by path;
               code only where PROBE_ALLOW_EVAL=1
    viewer     TCP, with the viewer's token: looks, and neither changes nor holds the job

`NEEDS` is the whole table; a route that is not in it needs an operator. Runs on
the server's event loop. Standard library only (and types of starlette).
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
"""Not a caller's: the server itself, which does what the owner has told it to do when something is found."""
role_now: ContextVar[str] = ContextVar("role_now", default=OWNER)
"""The role of whoever sent the request that is being answered."""
ROLES = (VIEWER, OPERATOR, OWNER)
"""From the least to the most; each may do what those before it may."""

NEEDS: dict[str, str] = {
    "GET /openapi.json": VIEWER,
    "GET /v1/health": VIEWER,
    "GET /v1/processes": VIEWER,
    "GET /v1/tables": VIEWER,
    "GET /v1/recipes": VIEWER,
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
"""The least role that a route answers, by method and path."""

Scope = Literal["job", "host"]
"""Whom a request is about: `job`, its ranks on all hosts; `host`, those of the host that is asked."""


class Caller(NamedTuple):
    """Who asks. `uid` and `pid` are the kernel's word; None over TCP, where nobody vouches for them."""

    uid: int | None
    pid: int | None
    via: str
    role: str

    @property
    def tcp(self) -> bool:
        """Whether the request came over TCP."""
        return self.via == "tcp"


def caller(request: Request) -> Caller:
    """Who sent a request. `LimitedProtocol` notes the peer of a unix socket, `TcpGate` the role."""
    state: dict[str, Any] = request.scope.get("state", {})
    if "role" in state:
        return Caller(None, None, "tcp", state["role"])
    peer = state.get("peer")
    if peer is None:  # nobody vouches for it: then it may only look
        return Caller(None, None, "tcp", VIEWER)
    return Caller(peer.uid, peer.pid, "unix", OWNER)


def check_route(role: str, method: str, path: str) -> None:
    """Raise `Forbidden` when a route needs more than `role`."""
    needed = NEEDS.get(f"{method} {path}", OPERATOR)
    if ROLES.index(role) < ROLES.index(needed):
        raise _forbidden(path.rpartition("/")[2][:100] or path[:100], role, needed)


def require_role(caller: Caller, needed: str, what: str) -> None:
    """Raise `Forbidden` when `what` needs more than the caller's role."""
    if ROLES.index(caller.role) < ROLES.index(needed):
        raise _forbidden(what, caller.role, needed)


def require_code(caller: Caller, settings: Settings, what: str) -> None:
    """Raise `Forbidden` for `what`, which runs code, over TCP without PROBE_ALLOW_EVAL=1."""
    if caller.tcp and not settings.allow_eval:
        raise Forbidden(
            f"{what} is not answered over TCP",
            hint="Use it on the host itself, or set PROBE_ALLOW_EVAL=1 there.",
        )


def _forbidden(what: str, role: str, needed: str) -> Forbidden:
    hint = "Use it on the host itself, as the user who owns the job."
    if needed == OPERATOR:
        hint = (
            "Name a file with the operator's token in PROBE_TOKEN_FILE: on that host it is PROBE_DIR/token, "
            "and PROBE_DIR/token.viewer is the one that only looks."
        )
    return Forbidden(f"{what} needs the role {needed}, and this token has the role {role}", hint=hint)


def endpoint(text: str, caller: Caller) -> str:
    """The endpoint of a request; over TCP only what the registry knows, not any folder of the host."""
    if caller.tcp and text.strip().startswith("/"):
        raise Forbidden("folders are not opened over TCP", hint="Name a pid, a job or job/rank.")
    if "\x00" in text:
        raise BadRequest("the endpoint contains a NUL character")
    return text
