"""HTTP for people, scripts and dashboards: forms of answers, pages, refusals that help, and no web pages."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from email.parser import BytesHeaderParser
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote, urlencode

import pyarrow
import pytest

from harness import PATIENCE_S
from probe.base import wire
from probe.base.errors import BadRequest
from probe.recording import places
from probe.server.http import json_answers
from probe.server.http.query_routes import ARROW, CSV, JSON, LONGEST_NOTES, _told, accepted
from probe.server.runtime.access import NEEDS
from server.beside import Beside, Writer

ROWS = "SELECT step, loss FROM python.steps ORDER BY step"


class Answer:
    """An answer as it is: status, headers, body."""

    def __init__(self, data: bytes) -> None:
        head, _, self.body = data.partition(b"\r\n\r\n")
        first, _, lines = head.partition(b"\r\n")
        self.status = int(first.split()[1])
        self.headers = BytesHeaderParser().parsebytes(lines)

    @property
    def error(self) -> dict[str, str]:
        """The error that it is."""
        found: dict[str, str] = json.loads(self.body)["error"]
        return found


def ask(
    beside: Beside, target: str, body: bytes | None = None, method: str | None = None, **headers: str
) -> Answer:
    """A request on the unix socket with these headers (`_` for `-`)."""
    lines = {"Host": "localhost", "Connection": "close", "Content-Length": str(len(body or b"")), **headers}
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
    first = f"{method or ('POST' if body else 'GET')} {target} HTTP/1.1\r\n"
    answer = bytearray()
    with wire.connect_unix(places.server_socket(beside.directory), PATIENCE_S) as connection:
        connection.sendall(f"{first}{head}\r\n".encode() + (body or b""))
        while part := connection.recv(1 << 16):
            answer += part
    return Answer(bytes(answer))


@pytest.fixture
def training(beside: Beside, record: Callable[..., Writer]) -> Writer:
    """A process that has written three steps, one with a NaN and one without a loss, and a server."""
    writer = record(job='<b>gpt</b>"')
    writer.tell("write 1")
    writer.tell("strange")
    beside.start()
    return writer


def query(writer: Writer, sql: str, **more: object) -> str:
    return f"/v1/query?{urlencode({'endpoint': writer.pid, 'sql': sql, **more})}"


@pytest.mark.one_server
def test_a_query_is_answered_in_the_form_that_is_accepted(beside: Beside, training: Writer) -> None:
    as_json = ask(beside, query(training, ROWS))
    assert as_json.headers["content-type"] == JSON and as_json.headers["cache-control"] == "no-store"
    rows = json.loads(as_json.body)["rows"]
    assert rows == beside.rows(training.pid, ROWS) and rows[1][1] == "NaN" and rows[4][1] is None
    as_csv = ask(beside, query(training, ROWS, limit=2), Accept="text/csv;q=0.9, */*;q=0.1")
    assert as_csv.headers["content-type"].startswith(CSV)
    assert as_csv.body == b"step,loss\n0,1.0\n1,NaN\n"
    assert as_csv.headers["probe-truncated"] == "true", "a form without a place for it says it in a header"
    body = json.dumps({"endpoint": str(training.pid), "sql": ROWS}).encode()
    as_arrow = ask(beside, "/v1/query", body, Accept=ARROW, Content_Type=JSON)
    assert as_arrow.headers["content-type"] == ARROW and as_arrow.headers["probe-truncated"] == "false"
    table = pyarrow.ipc.open_stream(io.BytesIO(as_arrow.body)).read_all()
    assert table.schema.field("step").type == pyarrow.int64()
    losses = table.column("loss").to_pylist()
    assert losses[0] == 1.0 and losses[1] != losses[1] and losses[4] is None, "NaN is NaN, NULL is null"
    cut = ask(beside, query(training, "FROM range(5000)", limit=3000), Accept=ARROW)
    assert pyarrow.ipc.open_stream(io.BytesIO(cut.body)).read_all().num_rows == 3000
    assert cut.headers["probe-truncated"] == "true"
    words = "SELECT 'a,\"b' AS \"x,y\", '' AS e, NULL AS n, [1, NULL] AS l, true AS t, ' é' AS s"
    assert ask(beside, query(training, words), Accept=CSV).body.decode() == (
        '"x,y",e,n,l,t,s\n"a,""b","",,"[1, null]",true," é"\n'
    )
    mapped = ask(beside, query(training, "SELECT role FROM python.comm_collective"), Accept=CSV)
    [note] = json.loads(mapped.headers["probe-notes"])
    assert mapped.body == b"role\n" and "NULL: role" in note


def test_json_is_what_a_client_without_a_wish_gets_and_other_wishes_are_refused() -> None:
    for headers, expected in (
        ([], JSON), (["*/*"], JSON), ([""], JSON), (["text/html,application/xml;q=0.9,*/*;q=0.8"], JSON),
        (["text/csv"], CSV), (["TEXT/CSV; charset=utf-8"], CSV), (["text/*"], CSV), ([ARROW], ARROW),
        (["application/json;q=0.2, text/csv"], CSV), (["application/json;q=0", "text/csv;q=0.1"], CSV),
    ):
        assert accepted(headers) == expected, headers
    for refused in (["application/xml"], ["text/csv;q=0"], ["*/*;q=none"], ["text/html"]):
        with pytest.raises(BadRequest, match="cannot be returned"):
            accepted(refused)


def test_notes_that_do_not_fit_into_a_header_are_counted() -> None:
    notes = [f"note {place} " + "ä\n" * 50 for place in range(200)]
    told = _told({"truncated": False, "elapsed_ms": 1.5, "notes": notes})
    assert all(value.isascii() and value.isprintable() for value in told.values())
    kept = json.loads(told["probe-notes"])
    assert len(told["probe-notes"]) < LONGEST_NOTES + 100 and f"and {201 - len(kept)} more" in kept[-1]


@pytest.mark.one_server
def test_a_refusal_says_what_to_send(beside: Beside, training: Writer) -> None:
    body = json.dumps({"sql": "SELECT 1", "endpoint": str(training.pid)}).encode()
    for kind in ({}, {"Content_Type": "application/x-www-form-urlencoded"}, {"Content_Type": "text/plain"}):
        refused = ask(beside, "/v1/query", body, **kind)
        assert refused.status == 400 and "Content-Type" in refused.error["message"]
        assert "Content-Type: application/json" in refused.error["hint"]
    assert ask(beside, "/v1/query", body, Content_Type="Application/JSON; charset=utf-8").status == 200
    missing = ask(beside, "/v1/query")
    assert missing.status == 400 and missing.error["message"].startswith("sql: ")
    assert ask(beside, query(training, "DELETE FROM python.steps")).error["code"] == "sql_invalid"
    wish = ask(beside, query(training, "SELECT 1"), Accept="image/png")
    assert wish.status == 400 and ARROW in wish.error["hint"]
    assert ask(beside, query(training, "SELECT nothing"), Accept=CSV).headers["content-type"] == JSON


@pytest.mark.one_server
def test_no_web_page_reaches_the_socket_through_a_forwarded_port(beside: Beside, training: Writer) -> None:
    for host in ("localhost", "localhost:8080", "LOCALHOST:1", "127.0.0.1:8080", "[::1]:8080"):
        assert ask(beside, "/v1/health", Host=host).status == 200, host
    for host in (
        "evil.invalid", "evil.invalid:8080", "localhost.evil.invalid", "127.0.0.1.nip.io:80", "127.1",
        "0x7f.1", "2130706433", "0", "localhost6", "evil@localhost", "localhost:8080.evil.invalid", "",
        "localhost:", "::1", "127.0.0.1:8080:1",
    ):
        assert ask(beside, "/v1/health", Host=host).status == 403, host
    target = query(training, "SELECT 1")
    assert ask(beside, target, Sec_Fetch_Site="none").status == 200, "typed by a person"
    assert ask(beside, target, Sec_Fetch_Site="same-origin").status == 200, "a link or form of our own page"
    for site in ("cross-site", "same-site", "x"):
        assert ask(beside, target, Sec_Fetch_Site=site).status == 403, site
    for origin in ("null", "http://evil.invalid", "http://localhost"):
        assert ask(beside, target, Origin=origin).status == 403, origin
    own = {"Sec_Fetch_Site": "same-origin", "Content_Type": JSON}
    assert ask(beside, "/v1/eval", b'{"code": "1"}', **own).status == 403, "no page may change anything"
    assert ask(beside, "/v1/query", b'{"sql": "SELECT 1"}', **own).status == 403


class _Page(HTMLParser):
    """The tags of a page, with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.one_server
def test_the_pages_are_for_people_and_need_nothing_from_elsewhere(beside: Beside, training: Writer) -> None:
    for target in ("/", "/docs"):
        answer = ask(beside, target, Accept="text/html,*/*;q=0.8", Sec_Fetch_Site="none")
        policy = answer.headers["content-security-policy"]
        assert answer.status == 200 and "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        text = answer.body.decode()
        page = _Page(text)
        assert {tag for tag, _ in page.tags}.isdisjoint({"script", "img", "link", "iframe", "b"})
        for _, found in page.tags:
            links = [found[name] for name in ("href", "src", "action") if name in found]
            assert all(link and re.match(r"[/#](?!/)", link) for link in links), links
            assert not [name for name in found if name.startswith("on") or name == "style"]
        style = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
        assert len(style) == 1 and "style-src 'sha256-" in policy
        if target == "/":
            assert '<b>gpt</b>"' in page.text, "shown, and never markup"
            links = [str(found["href"]) for tag, found in page.tags if tag == "a"]
            for link in [link for link in links if "metrics" not in link and "docs" not in link]:
                assert ask(beside, link, Sec_Fetch_Site="same-origin").status == 200, link
        else:
            for needed in NEEDS:
                assert needed in page.text or needed.partition(" ")[2] in ("/", "/docs", "/openapi.json")
            named = {str(found.get("id")) for _, found in page.tags}
            shapes = {str(found["href"])[1:] for tag, found in page.tags
                      if tag == "a" and str(found["href"]).startswith("#")}
            assert shapes and shapes <= named
    plain = ask(beside, "/")
    assert plain.headers["content-type"].startswith("text/plain")
    assert f"pid {training.pid}" in plain.body.decode() and "/v1/query?endpoint=PID" in plain.body.decode()


@pytest.mark.one_server
def test_every_answer_has_the_shape_that_is_described(
    beside: Beside, training: Writer, record: Callable[..., Writer]
) -> None:
    endpoint = f"endpoint={training.pid}"
    models: dict[str, Any] = {
        "/v1/health": json_answers.Health, "/v1/processes?all=1": json_answers.Processes,
        "/v1/tables": json_answers.Tables, "/v1/recipes": json_answers.Recipes,
        query(training, ROWS): json_answers.Rows, f"/v1/backtrace?{endpoint}": json_answers.Capture,
        f"/v1/monitor?{endpoint}": json_answers.Monitoring, f"/v1/ranks?{endpoint}": json_answers.Ranks,
        f"/v1/diagnose?{endpoint}": json_answers.Diagnosis,
        f"/v1/diagnose?{endpoint}&symptom=nan": json_answers.Diagnosis,
        f"/v1/summary?{endpoint}&findings=1": json_answers.Summary,
        f"/v1/peers?run={quote(str(training.pid))}": json_answers.Peers,
    }
    for rank in range(2):
        record(job="ddp", run="r", rank=rank, world_size=2).tell("write 2")
    models |= {
        "/v1/backtrace?endpoint=ddp": json_answers.Capture, "/v1/ranks?endpoint=ddp": json_answers.Ranks,
        "/v1/diagnose?endpoint=ddp": json_answers.Diagnosis,
    }
    for target, model in models.items():
        answer = ask(beside, target)
        assert answer.status == 200, answer.body
        model.model_validate_json(answer.body)
    merged = json_answers.Capture.model_validate_json(ask(beside, "/v1/backtrace?endpoint=ddp").body)
    assert merged.ranks and merged.tree and merged.classes and merged.classes[0].ranks == "0-1"
    asked: dict[str, tuple[Any, dict[str, object]]] = {
        "/v1/eval": (json_answers.Evaluated, {"endpoint": str(training.pid), "code": "1"}),
        "/v1/prune": (json_answers.Pruned, {"job": "ddp", "dry_run": True}),
    }
    for target, (model, body) in asked.items():
        answer = ask(beside, target, json.dumps(body).encode(), Content_Type=JSON)
        assert answer.status == 200, answer.body
        model.model_validate_json(answer.body)
    described = json.loads(ask(beside, "/openapi.json").body)
    for path, operations in described["paths"].items():
        for operation in operations.values():
            kinds = operation["responses"]["200"]["content"]
            assert JSON not in kinds or kinds[JSON]["schema"], f"the answer of {path} is not described"
