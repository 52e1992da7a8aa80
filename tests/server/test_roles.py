"""Roles: who may ask what, each role and each route, over the socket and over TCP."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probe.base.errors import BY_CODE, Forbidden, SettingInvalid
from probe.base.settings import Settings
from probe.server.runtime import access
from probe.server.runtime.tokens import load_tokens
from server.beside import Beside, Writer
from server.test_tcp import Tcp

QUERY = {"endpoint": "gpt", "sql": "SELECT 1"}
SNIPPET = {"endpoint": "gpt", "code": "1"}
ACTION = {"endpoint": "gpt", "action": "lr"}
WATCH = {"endpoint": "gpt", "action": "watch", "arguments": {"expressions": ["loss"]}}
DEEP_WATCH = {"endpoint": "gpt", "action": "watch", "arguments": {"gradients": True}}
ROWS = {"endpoint": "nobody", "sql": "SELECT 1", "room_bytes": 1000, "timeout_s": 5.0}
RELAY = {"method": "POST", "path": "/v1/relay", "body": {}, "role": "viewer", "timeout_s": 5.0, "hosts": []}
UNDO = {"endpoint": "gpt", "id": "7-1"}
DROP = {"endpoint": "gpt", "id": "all-1", "phase": "drop", "timeout_s": 5.0}
JUDGE = {**DROP, "phase": "judge", "asked": {"code": "1"}}
NOTHING = {"endpoint": "nobody"}
PRUNE = {"job": "nobody", "dry_run": True}

YES, NO = 200, 403
BAD = 400
"""Allowed, and not passed on: what is answered otherwise is no JSON."""
GONE = 404
"""Allowed, and there is no such process: what is asked must not end the writer for the other roles."""

PAGES = ("/", "/docs")
"""What answers with text."""
TABLE: list[tuple[str, str, Any, dict[str, int]]] = [
    # method, target, body, status by role: `code` is an operator where PROBE_ALLOW_EVAL=1
    ("GET", "/v1/health", None, {"viewer": YES, "operator": YES, "code": YES, "owner": YES}),
    ("GET", "/v1/processes", None, {"viewer": YES, "operator": YES, "code": YES, "owner": YES}),
    ("GET", "/v1/tables", None, {"viewer": YES, "operator": YES, "code": YES, "owner": YES}),
    ("GET", "/openapi.json", None, {"viewer": YES, "operator": YES, "code": YES, "owner": YES}),
    ("GET", "/", None, {"viewer": YES, "operator": YES, "code": YES, "owner": YES}),
    ("GET", "/docs", None, {"viewer": YES, "operator": YES, "code": YES, "owner": YES}),
    ("GET", "/v1/query?endpoint=gpt&sql=SELECT+1", None,
     {"viewer": YES, "operator": YES, "code": YES, "owner": YES}),
    ("GET", "/v1/query?endpoint=/tmp&sql=SELECT+1", None,
     {"viewer": NO, "operator": NO, "code": NO, "owner": GONE}),
    ("POST", "/v1/query", QUERY, {"viewer": YES, "operator": YES, "code": YES, "owner": YES}),
    ("GET", "/v1/diagnose?endpoint=gpt&symptom=hang", None,
     {"viewer": YES, "operator": YES, "code": YES, "owner": YES}),
    ("GET", "/v1/recipes", None, {"viewer": YES, "operator": YES, "code": YES, "owner": YES}),
    ("GET", "/v1/summary?endpoint=gpt", None, {"viewer": YES, "operator": YES, "code": YES, "owner": YES}),
    ("GET", "/v1/backtrace?endpoint=gpt", None, {"viewer": YES, "operator": YES, "code": YES, "owner": YES}),
    ("GET", "/v1/backtrace?endpoint=nobody&all_threads=1&workers=1", None,
     {"viewer": GONE, "operator": GONE, "code": GONE, "owner": GONE}),
    ("GET", "/v1/backtrace?endpoint=nobody&locals=1", None,
     {"viewer": NO, "operator": GONE, "code": GONE, "owner": GONE}),
    ("GET", "/v1/backtrace?endpoint=nobody&native=1", None,
     {"viewer": NO, "operator": GONE, "code": GONE, "owner": GONE}),
    ("GET", "/v1/peers", None, {"viewer": YES, "operator": YES, "code": YES, "owner": YES}),
    ("GET", "/v1/ranks?endpoint=gpt", None, {"viewer": YES, "operator": YES, "code": YES, "owner": YES}),
    ("POST", "/v1/rows", ROWS, {"viewer": GONE, "operator": GONE, "code": GONE, "owner": GONE}),
    ("POST", "/v1/relay", RELAY, {"viewer": NO, "operator": BAD, "code": BAD, "owner": BAD}),
    ("POST", "/v1/act", ACTION, {"viewer": NO, "operator": YES, "code": YES, "owner": YES}),
    ("POST", "/v1/act", WATCH, {"viewer": NO, "operator": NO, "code": YES, "owner": YES}),
    ("POST", "/v1/act", DEEP_WATCH, {"viewer": NO, "operator": YES, "code": YES, "owner": YES}),
    ("POST", "/v1/undo", UNDO, {"viewer": NO, "operator": YES, "code": YES, "owner": YES}),
    ("POST", "/v1/eval", SNIPPET, {"viewer": NO, "operator": NO, "code": YES, "owner": YES}),
    ("POST", "/v1/together", DROP, {"viewer": NO, "operator": YES, "code": YES, "owner": YES}),
    ("POST", "/v1/together", JUDGE, {"viewer": NO, "operator": NO, "code": YES, "owner": YES}),
    ("POST", "/v1/detach", NOTHING, {"viewer": NO, "operator": NO, "code": GONE, "owner": GONE}),
    ("GET", "/v1/monitor", None, {"viewer": YES, "operator": YES, "code": YES, "owner": YES}),
    ("GET", "/metrics", None, {"viewer": YES, "operator": YES, "code": YES, "owner": YES}),
    ("POST", "/v1/monitor", {"notify": []}, {"viewer": NO, "operator": NO, "code": NO, "owner": YES}),
    ("POST", "/v1/prune", PRUNE, {"viewer": NO, "operator": NO, "code": NO, "owner": YES}),
]


class Ways:
    """One server, asked over its socket and over TCP with one token or the other."""

    def __init__(self, beside: Beside, **environ: str) -> None:
        self.beside = beside
        self.tcp = Tcp(beside, **environ)

    def status(self, role: str, method: str, target: str, body: Any) -> tuple[int, Any]:
        if role == "owner" and target in ("/metrics", *PAGES):
            return self.beside.text(target)[::2]
        if role == "owner":
            try:
                return 200, self.beside.call(method, target, body)
            except BY_CODE["error"] as error:
                return error.status, error.as_dict()
        name = "token.viewer" if role == "viewer" else "token"
        token = (self.beside.directory / name).read_text().strip()
        headers = self.tcp.good(Authorization=f"Bearer {token}")
        while True:  # the rate is limited by the second, for all of TCP, and is not what is tested here
            status, answer = self.tcp.ask(method, target, headers, body)
            if status != 429:
                return status, answer


def check(ways: Ways, roles: tuple[str, ...]) -> None:
    """Every cell of these columns."""
    for method, target, body, expected in TABLE:
        for role in roles:
            status, answer = ways.status(role, method, target, body)
            assert status == expected[role], (role, method, target, answer)
            if status == NO:
                assert answer["error"]["code"] == "forbidden" and answer["error"]["hint"]
            if status == NO and role == "viewer" and "endpoint=/" not in target:
                assert "this token has the role viewer" in answer["error"]["message"]
                needed = "owner" if target in ("/v1/prune", "/v1/monitor") else "operator"
                assert f"needs the role {needed}" in answer["error"]["message"]


def test_each_role_may_do_what_the_table_says_and_nothing_else(
    beside: Beside, record: Callable[..., Writer]
) -> None:
    writer = record(job="gpt")
    writer.tell("write 3")
    ways = Ways(beside)
    check(ways, ("viewer", "operator", "owner"))
    assert ways.status("operator", "GET", "/v1/nothing", None)[0] == 404
    assert ways.status("viewer", "GET", "/v1/nothing", None)[0] == 403, "what nobody thought of is no look"
    beside.kill()
    ways = Ways(beside, PROBE_ALLOW_EVAL="1")
    check(ways, ("viewer", "code"))

    _, answer = ways.status("code", "POST", "/v1/act", ACTION)
    assert answer["asked"]["caller"] == {"uid": None, "pid": None, "via": "tcp", "role": "operator"}
    paths = beside.call("GET", "/openapi.json")["paths"]
    every = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    described = every | {"GET /openapi.json", *(f"GET {page}" for page in PAGES)}
    assert described == set(access.NEEDS), "each route says what it needs"
    assert every <= {f"{method} {target.partition('?')[0]}" for method, target, _, _ in TABLE}
    for name in ("token", "token.viewer"):
        assert stat.S_IMODE((beside.directory / name).stat().st_mode) == 0o600


def test_a_request_that_nobody_vouches_for_may_only_look() -> None:
    found = access.caller(SimpleNamespace(scope={"state": {}}))  # type: ignore[arg-type]
    assert found.tcp and found.role == "viewer"


def test_a_role_may_what_those_before_it_may() -> None:
    for route, needed in access.NEEDS.items():
        method, _, path = route.partition(" ")
        allowed = []
        for role in access.ROLES:
            try:
                access.check_route(role, method, path)
                allowed.append(role)
            except Forbidden:
                pass
        assert allowed == list(access.ROLES[access.ROLES.index(needed) :])


def test_the_viewers_token_is_kept_as_the_operators_and_is_another(tmp_path: Path) -> None:
    tokens = load_tokens(Settings({}), tmp_path)
    assert len(set(tokens.values())) == 2 and min(map(len, tokens.values())) >= 43
    assert load_tokens(Settings({}), tmp_path) == tokens, "they stay"
    viewer = tmp_path / "given"
    viewer.write_text("v" * 43)
    viewer.chmod(0o640)
    settings = Settings({"PROBE_VIEWER_TOKEN_FILE": str(viewer)})
    with pytest.raises(SettingInvalid, match="read by others"):
        load_tokens(settings, tmp_path)
    viewer.chmod(0o600)
    assert load_tokens(settings, tmp_path)["viewer"] == "v" * 43
    viewer.write_text(tokens["operator"])
    with pytest.raises(SettingInvalid, match="equals the operator"):
        load_tokens(settings, tmp_path)
    if os.getuid() == 0:
        os.chown(tmp_path / "token.viewer", 65534, 65534)
        with pytest.raises(SettingInvalid, match="others"):
            load_tokens(Settings({}), tmp_path)
