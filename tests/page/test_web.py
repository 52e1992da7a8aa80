"""`probe JOB web` without a browser: the link, who may ask what, and the end."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
import time
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import pytest

from harness import PATIENCE_S, SERVER, Job, Place
from page.served import served
from probe.base.wire import Reply
from probe.page import gateway
from probe.page.link_keys import LINKS, LinkKeys
from probe.server.runtime import access
from probe.server.sql.pool import VIEWERS_WORKERS, WORKERS
from ranks import free_port

STATIC = Path(gateway.__file__).parent / "static"
UNSAFE = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|createContextualFragment|"
    r"srcdoc|setAttribute\(.?style|javascript:|DOMParser|https?://(?!www\.w3\.org/)|@import|//cdn"
)


def test_the_page_is_served_to_whoever_has_the_link_and_to_nobody_else(
    place: Place, fork: Callable[..., Job]
) -> None:
    job = fork("scheduled", "none", "--until-told", PROBE_NAME="train", PATIENT_REST_S="0.05", **SERVER)
    job.wait_for("READY")
    rows = {"endpoint": "train", "sql": "SELECT max(step) AS step FROM python.steps"}
    with served(place, "train", "web") as page:
        root = page.ask("GET", "/", sec_fetch_site="none")
        assert root.status_code == 200 and root.headers["content-type"].startswith("text/html")
        policy = root.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "train" not in root.text, "the files hold nothing of a job"
        assert page.ask("GET", "/../gateway.py").status_code in (401, 403, 404)

        assert page.ask("POST", "/v1/query", rows).status_code == 401, "no session"
        as_key = page.ask("POST", "/v1/query", rows, authorization=f"Bearer {page.key}")
        assert as_key.status_code == 401, "a link's key is no session's"
        assert page.ask("POST", "/session", {"key": "x" * 43}).status_code == 401
        refused = page.ask("POST", "/session", {"key": page.key}, origin="http://evil.example")
        assert refused.status_code == 403, "no other page can trade the key"
        own = page.session()
        again = page.ask("POST", "/session", {"key": page.key})
        assert again.status_code == 401 and "opened already" in again.json()["error"]["message"]
        answer = page.ask("POST", "/v1/query", rows, **own)
        assert answer.status_code == 200 and answer.json()["rows"][0][0] >= 2
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert page.ask("GET", "/v1/health", **own).json()["role"] == "owner"

        wrong = [
            {"host": "evil.example"}, {"host": "127.0.0.1.evil.example"}, {"host": "127.1"},
            {"host": "0x7f.1:80"}, {"host": "localhost.evil.example:80"},
            {"origin": "http://evil.example"}, {"origin": "null"}, {"origin": "http://localhost:1"},
            {"sec_fetch_site": "cross-site"}, {"sec_fetch_site": "same-site"}, {"sec_fetch_site": "none"},
        ]
        for headers in wrong:
            assert page.ask("POST", "/v1/query", rows, **own, **headers).status_code == 403, headers
            assert page.ask("GET", "/v1/ranks?endpoint=train", **own, **headers).status_code == 403, headers
        assert page.ask("GET", "/main.js", sec_fetch_site="cross-site").status_code == 403
        opened = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
        followed = page.ask("GET", "/", **opened, sec_fetch_dest="document")
        assert followed.status_code == 200, "a link in a chat opens the page"
        assert page.ask("GET", "/", **opened, sec_fetch_dest="iframe").status_code == 403
        assert page.ask("POST", "/v1/query", rows, **own, content_type="text/plain").status_code == 400
        assert page.ask("OPTIONS", "/v1/query", **own).status_code == 403

        for route in ("eval", "detach", "prune", "monitor", "together", "relay", "rows"):
            path = f"/v1/{route}"
            assert page.ask("POST", path, {"endpoint": "train"}, **own).status_code == 403, path
        stop = page.ask("POST", "/v1/act", {"endpoint": "train", "action": "stop"}, **own)
        assert stop.status_code == 403 and "does not offer" in stop.json()["error"]["message"]
        watch = {"histograms": True, "steps": 1, "expressions": "loss"}
        asked = {"endpoint": "train", "action": "watch", "arguments": watch}
        assert page.ask("POST", "/v1/act", asked, **own).status_code == 403, "the page runs no code"
        for whom, seconds, status in (("other", 1, 403), ("train", 60, 400), ("train", "1", 400)):
            sampled = page.ask("POST", "/flamegraph", {"endpoint": whom, "seconds": seconds}, **own)
            assert sampled.status_code == status, (whom, seconds)
        assert page.ask("POST", "/flamegraph", {"endpoint": "train", "seconds": 1}).status_code == 401
        csv = page.ask("POST", "/v1/query", rows, **own, accept="text/csv")
        assert csv.headers["content-type"].startswith("text/csv") and csv.text.startswith("step")
        assert page.ask("POST", "/rows.parquet", rows, **own).content[:4] == b"PAR1"

        took = time.monotonic()
        assert page.end() == 0
        assert time.monotonic() - took < 20
        assert page.process.stderr is not None
        assert page.process.stderr.read().strip().endswith("the page has ended")


def test_a_page_that_may_only_look_cannot_change_anything(place: Place, fork: Callable[..., Job]) -> None:
    address = f"127.0.0.1:{free_port()}"
    place.start_server(PROBE_LISTEN=address)
    job = fork("scheduled", "none", "--until-told", PROBE_NAME="train", PATIENT_REST_S="0.05", **SERVER)
    job.wait_for("READY")
    token = {"PROBE_TOKEN_FILE": str(place.directory / "token.viewer")}
    with served(place, f"{address}/train", "web", **token) as page:
        own = page.session()
        assert page.ask("GET", "/v1/health", **own).json()["role"] == "viewer", "the role of the token"
        act = {"endpoint": "train", "action": "pause", "arguments": {}}
        assert page.ask("POST", "/v1/act", act, **own).status_code == 403
        found = page.ask("POST", "/v1/query", {"endpoint": "train", "sql": "SELECT 1 AS one"}, **own)
        assert found.json()["rows"] == [[1]]
    with served(place, str(job.pid), "web", "--look-only") as page:
        own = page.session()
        assert page.ask("GET", "/v1/health", **own).json()["role"] == "viewer"
        assert page.ask("GET", f"/v1/summary?endpoint={job.pid}", **own).status_code == 200
        change = {"endpoint": str(job.pid), "action": "lr", "arguments": {"scale": 0.5}}
        refused = page.ask("POST", "/v1/act", change, **own)
        assert refused.status_code == 403
        assert "act needs the role operator" in refused.json()["error"]["message"]
        assert page.ask("GET", f"/v1/backtrace?endpoint={job.pid}&locals=1", **own).status_code == 403
        asked = {"endpoint": str(job.pid), "sql": "FROM probe.actions"}
        assert page.ask("POST", "/v1/query", asked, **own).json()["rows"] == []
        server = place.server_pid()
        assert server is not None
        os.kill(server, signal.SIGKILL)
        assert page.ask("GET", "/v1/health", **own).json()["pid"] != server, "it is started again when asked"


def test_a_key_opens_once_and_old_ones_give_way() -> None:
    keys = LinkKeys()
    links = [keys.new_link() for _ in range(LINKS + 1)]
    assert keys.trade(links[0]) is None, "more links than are kept"
    session = keys.trade(links[1])
    assert session and keys.knows(session) and not keys.knows(links[1]) and keys.trade(links[1]) is None
    assert not keys.knows("") and not keys.knows("\ud800")


class Tabs:
    """Requests of several tabs to a gateway, whose server answers when it is told to."""

    def __init__(self, viewer: bool) -> None:
        keys = LinkKeys()
        key = keys.trade(keys.new_link())
        self._headers = [
            (b"host", b"127.0.0.1:1"), (b"content-type", b"application/json"),
            (b"authorization", f"Bearer {key}".encode()),
        ]
        self._app = gateway.Gateway(self.forward, keys, ("job", lambda _: b""), viewer=viewer)
        self._let_go = threading.Semaphore(0)
        self._lock = threading.Lock()
        self.asked: list[str] = []
        self._taken = self.most_taken = 0

    def forward(self, asked: gateway.Asked) -> Reply:
        """What the server does."""
        with self._lock:
            self.asked.append(asked.target)
            self._taken += asked.processes
            self.most_taken = max(self.most_taken, self._taken)
        assert self._let_go.acquire(timeout=PATIENCE_S)
        with self._lock:
            self._taken -= asked.processes
        return Reply(200, {}, b"{}")

    def ask(self, target: str) -> tuple[asyncio.Task[int], asyncio.Event]:
        """The status of an answer to come, and what closes the tab."""
        path, _, query = target.partition("?")
        closed = asyncio.Event()
        messages: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": b"{}"}]
        sent: list[MutableMapping[str, Any]] = []

        async def receive() -> MutableMapping[str, Any]:
            if messages:
                return messages.pop()
            await closed.wait()
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        async def status() -> int:
            scope = {
                "type": "http", "method": "POST" if path == "/v1/query" else "GET", "path": path,
                "query_string": query.encode(), "headers": self._headers,
            }
            await self._app(scope, receive, send)
            return int(sent[0]["status"])

        return asyncio.ensure_future(status()), closed

    def answer(self, times: int) -> None:
        """Let the server answer so many."""
        self._let_go.release(times)


@pytest.mark.parametrize("viewer", [True, False])
def test_tabs_take_no_more_of_the_server_than_it_gives_and_who_has_left_asks_nothing(viewer: bool) -> None:
    async def use(tabs: Tabs) -> list[int]:
        asked = [tabs.ask("/v1/diagnose"), *(tabs.ask(f"/v1/query?{number}") for number in range(4))]
        await asyncio.sleep(0)
        leaver, closed = tabs.ask("/v1/query?left")
        closed.set()
        assert await leaver == 400
        tabs.answer(1)
        state, _ = tabs.ask("/v1/diagnose?part=state")
        tabs.answer(len(asked))
        return [await state, *[await status for status, _ in asked]]

    tabs = Tabs(viewer)
    assert asyncio.run(asyncio.wait_for(use(tabs), PATIENCE_S)) == [200] * 6
    assert "/v1/query?left" not in tabs.asked and len(tabs.asked) == 6
    assert tabs.asked[0] == "/v1/diagnose"
    assert tabs.most_taken == (VIEWERS_WORKERS if viewer else WORKERS - 1), "one is left for other callers"


def test_what_the_page_asks_exists_and_runs_no_code() -> None:
    assert set(access.NEEDS) >= gateway.PASSED
    assert not gateway.PASSED & {"POST /v1/eval", "POST /v1/detach", "POST /v1/prune", "POST /v1/monitor"}


@pytest.mark.parametrize("file", sorted(path.name for path in STATIC.iterdir()))
def test_no_file_of_the_page_makes_markup_of_data_or_loads_from_elsewhere(file: str) -> None:
    text = (STATIC / file).read_text(encoding="utf-8")
    assert not UNSAFE.search(text), UNSAFE.search(text)
    if file.endswith(".html"):
        assert "<script>" not in text and "style=" not in text and not re.search(r"\son\w+=", text)


def test_the_check_for_unsafe_scripts_sees_them() -> None:
    for line in ("x.innerHTML = y", 'import "https://a.b/c.js"', "eval(x)", 'e.setAttribute("style", x)'):
        assert UNSAFE.search(line), line
