"""All ranks of a job on several hosts: one table, one list, and everything that is missing named."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.imposter import imposters, introduction, reply
from cluster.several import Node, nodes
from probe.base.errors import EndpointUnknown, Forbidden, HostUnreachable
from probe.server.runtime import packed_answers
from ranks import free_port
from server.beside import until

GPT = {"job": "gpt", "run": "run-x", "world_size": 6}
STEPS = "SELECT rank, max(step), count(*) FROM python.steps GROUP BY rank ORDER BY rank"


RECIPE = """\
-- title = "rows are seen"
-- severity = "info"
-- symptoms = ["data"]
-- scope = "{scope}"
-- what = "{{n}} of {{ranks}}"
SELECT count(*) AS n, list(DISTINCT rank ORDER BY rank)::VARCHAR AS ranks FROM python.steps
"""


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    """Three hosts: two with two ranks each of six, one without any."""
    own = tmp_path_factory.mktemp("recipes")
    for scope in ("rank", "job"):
        (own / f"seen-by-{scope}.sql").write_text(RECIPE.format(scope=scope))
    with nodes(3, PROBE_ALLOW_EVAL="1", PROBE_RECIPES=str(own)) as found:
        for number, node in enumerate(found[:2]):
            for local in (0, 1):
                rank = 2 * number + local
                node.record(**GPT, rank=rank, local_rank=local).tell(f"write {10 * (rank + 1)}")
        for node in found:
            node.start()
        yield found


def test_one_statement_sees_the_rows_of_all_ranks_whichever_host_is_asked(trio: list[Node]) -> None:
    expected = [[rank, 10 * (rank + 1) - 1, 10 * (rank + 1)] for rank in range(4)]
    for node in trio:
        answer = node.query("gpt", STEPS)
        assert answer["rows"] == expected
        assert answer["notes"] == ["ranks 4-5: no host known"]


def test_joins_windows_and_every_column_work_over_the_ranks_of_all_hosts(trio: list[Node]) -> None:
    pairs = (
        "SELECT a.rank, b.rank, count(*) FROM python.steps a JOIN python.steps b USING (step) "
        "WHERE a.rank < b.rank GROUP BY ALL ORDER BY ALL"
    )
    assert trio[0].query("gpt", pairs)["rows"] == [
        [0, 1, 10], [0, 2, 10], [0, 3, 10], [1, 2, 20], [1, 3, 20], [2, 3, 30],
    ]
    window = (
        "SELECT DISTINCT rank, max(step) OVER (PARTITION BY pid), count(*) OVER (PARTITION BY step) "
        "FROM python.losses WHERE step = 9 ORDER BY rank"
    )
    assert trio[1].query("gpt", window)["rows"] == [[rank, 9, 4] for rank in range(4)]
    whole = trio[0].query("gpt", "SELECT * EXCLUDE (pid, rank, t_ns) FROM python.steps WHERE step = 3")
    assert len(whole["rows"]) == 4 and all(row == whole["rows"][0] for row in whole["rows"])
    own = trio[0].query("gpt/0", "SELECT * EXCLUDE (pid, rank, t_ns) FROM python.steps WHERE step = 3")
    assert own["rows"] == whole["rows"][:1] and own["columns"] == whole["columns"]
    texts = "SELECT rank, module, count(*) FROM python.torch_trace WHERE step = 0 GROUP BY ALL ORDER BY ALL"
    rows = trio[1].query("gpt", texts)["rows"]
    assert {row[1] for row in rows if row[0] == 0} == {row[1] for row in rows if row[0] == 3} != set()


def test_a_recipe_sees_the_lowest_rank_or_all_of_them_on_whatever_host_they_are(trio: list[Node]) -> None:
    def in_time(node: Node, symptom: str) -> dict[str, Any] | None:
        found: dict[str, Any] = node.call("GET", f"/v1/diagnose?endpoint=gpt{symptom}")
        return None if any("in time" in note for note in found["notes"]) else found

    # One with ranks, but not the lowest, and one without; some recipes, and all of them.
    for node, symptom in ((trio[1], "&symptom=data"), (trio[2], "")):
        answer = until(functools.partial(in_time, node, symptom), "an answer of all hosts")
        assert answer is not None
        seen = {one["recipe"]: one["what"] for one in answer["findings"] if "seen" in one["recipe"]}
        assert seen == {"seen-by-rank": "10 of [0]", "seen-by-job": "100 of [0, 1, 2, 3]"}, answer["unknown"]
        assert "ranks 4-5: no host known" in answer["notes"]


def test_strange_values_arrive_as_they_are(trio: list[Node]) -> None:
    writer = trio[1].record(job="odd", run="run-odd", world_size=2, rank=1)
    writer.tell("strange")
    trio[0].record(job="odd", run="run-odd", world_size=2, rank=0).tell("write 1")
    sql = "SELECT * EXCLUDE (t_ns) FROM python.steps WHERE rank = 1 ORDER BY ALL"
    here, there = trio[1].query("odd/1", sql), trio[0].query("odd", sql)
    assert here["rows"] == there["rows"] and here["rows"]


def test_tables_made_when_asked_come_from_all_hosts(trio: list[Node]) -> None:
    assert trio[0].query("gpt", "SELECT DISTINCT rank FROM python.backtrace ORDER BY 1")["rows"] == [
        [0], [1], [2], [3],
    ]
    for endpoint in ("gpt", "gpt/0", "gpt/3"):
        ranks = trio[0].query(endpoint, "SELECT rank, step, state FROM cluster.ranks ORDER BY rank")["rows"]
        assert ranks == [[rank, 10 * (rank + 1) - 1, "running"] for rank in range(4)], endpoint
    known = "SELECT source, state, url FROM cluster.hosts ORDER BY url NULLS FIRST"
    hosts = trio[2].query("gpt", known)["rows"]
    assert hosts[0] == ["here", "no ranks", None]
    assert sorted(row[2] for row in hosts[1:]) == sorted(f"http://{node.address}" for node in trio[:2])


def test_a_rank_of_another_host_is_answered_by_that_host_through_this_one(trio: list[Node]) -> None:
    pid = trio[1].writers[1].pid
    assert trio[0].query("gpt/3", "SELECT DISTINCT pid FROM python.steps")["rows"] == [[pid]]
    assert trio[2].call("GET", "/v1/backtrace?endpoint=gpt/3")["pid"] == pid
    with pytest.raises(EndpointUnknown, match="no rank '5'"):
        trio[0].query("gpt/5", "SELECT 1")
    with pytest.raises(EndpointUnknown, match="nothing"):
        trio[2].query("nothing", "SELECT 1")


def test_the_list_of_ranks_names_what_is_missing(trio: list[Node]) -> None:
    answer = trio[0].call("GET", "/v1/ranks?endpoint=gpt")
    assert [row["rank"] for row in answer["ranks"]] == [0, 1, 2, 3]
    assert answer["missing"] == ["ranks 4-5: no host known"]
    here = trio[0].call("GET", "/v1/ranks?endpoint=gpt&scope=host")
    assert [row["rank"] for row in here["ranks"]] == [0, 1] and here["missing"] == []


def test_a_job_that_is_whole_on_one_host_asks_no_other(trio: list[Node]) -> None:
    for rank in (0, 1):
        trio[0].record(job="small", run="run-small", world_size=2, rank=rank).tell("write 2")
    answer = trio[0].query("small", "SELECT count(*) FROM python.steps")
    assert (answer["rows"], answer["notes"]) == ([[4]], [])
    assert [row["source"] for row in trio[0].call("GET", "/v1/ranks?endpoint=small")["hosts"]] == ["here"]


def test_fan_out_gives_a_viewer_no_more_than_a_viewer_may(trio: list[Node]) -> None:
    import httpx

    viewer = (trio[0].place.directory / "token.viewer").read_text().strip()
    operator = Path(trio[0].environ["PROBE_TOKEN_FILE"]).read_text().strip()
    snippet = {"endpoint": "gpt/3", "code": "1"}
    url = f"http://{trio[0].address}"

    def ask(token: str, path: str, body: Any, **more: str) -> int:
        headers = {"Authorization": f"Bearer {token}", **more}
        return httpx.post(url + path, json=body, headers=headers, trust_env=False).status_code

    assert ask(viewer, "/v1/query", {"endpoint": "gpt", "sql": STEPS}) == 200
    assert ask(viewer, "/v1/eval", snippet) == 403
    lowered = {"probe-role": "viewer"}
    assert ask(operator, "/v1/eval", snippet, **lowered) == 403
    relayed = {"method": "GET", "path": "/v1/peers", "body": {}, "role": "viewer", "timeout_s": 1.0}
    relayed["hosts"] = []
    assert ask(operator, "/v1/relay", relayed) == 200
    assert ask(viewer, "/v1/relay", relayed) == ask(operator, "/v1/relay", relayed, **lowered) == 403
    for path in ("/v1/relay", "/v1/eval", "/v1/act"):
        assert ask(operator, "/v1/relay", {**relayed, "path": path, "method": "POST"}) == 400, path
    assert ask(operator, "/v1/relay", {**relayed, "hosts": [{"name": "x", "url": "file:///etc"}]}) == 400


def test_a_host_that_is_gone_costs_its_ranks_and_is_named_until_it_is_back() -> None:
    with nodes(2) as (here, gone):
        for number, node in enumerate((here, gone)):
            node.record(job="gpt", run="run-x", world_size=2, rank=number).tell("write 3")
            node.start()
        assert here.query("gpt", STEPS)["rows"] == [[0, 2, 3], [1, 2, 3]]
        pid = gone.place.server_pid()
        assert pid is not None
        os.kill(pid, 9)
        answer = here.query("gpt", STEPS)
        assert answer["rows"] == [[0, 2, 3]]
        (note,) = answer["notes"]
        assert note.startswith("rank 1: host ") and gone.address in note and "does not answer" in note
        assert here.call("GET", "/v1/ranks?endpoint=gpt")["missing"] == [note]
        with pytest.raises(HostUnreachable, match="some hosts do not answer"):
            here.call("GET", "/v1/backtrace?endpoint=gpt/1")
        until(lambda: not Path(f"/proc/{pid}").exists() or gone.start(), "gone")
        gone.start()
        until(lambda: len(here.query("gpt", STEPS)["rows"]) == 2, "back")


def test_a_rank_whose_host_sends_no_rows_is_unknown_not_without_rows(tmp_path: Path) -> None:
    (tmp_path / "seen-by-rank.sql").write_text(RECIPE.format(scope="rank"))
    (tmp_path / "seen-by-job.sql").write_text(RECIPE.format(scope="job"))

    def answers_introductions_alone(path: str) -> bytes:
        return reply(introduction(ranks="0")) if path == "/v1/peers" else b""

    with nodes(1, PROBE_RECIPES=str(tmp_path)) as (here,), imposters() as make:
        other = make(answers_introductions_alone)
        Path(here.environ["PROBE_PEERS"]).write_text(other.address)
        here.record(job="gpt", run="run-x", world_size=2, rank=1).tell("write 3")
        here.start()
        found = here.call("GET", "/v1/diagnose?endpoint=gpt&symptom=data")
        seen = {one["recipe"]: one for one in found["findings"] if "seen" in one["recipe"]}
        assert seen["seen-by-job"]["what"] == "3 of [1]"
        assert "seen-by-rank" not in seen
        (unknown,) = [one for one in found["unknown"] if one["recipe"] == "seen-by-rank"]
        assert "the rows of the lowest rank are missing" in unknown["reason"]
        assert any(other.address in note for note in found["notes"])
        with pytest.raises(HostUnreachable):
            here.query("gpt/0", STEPS)


@pytest.mark.campaign
def test_ranks_of_an_older_larger_attempt_do_not_linger() -> None:
    with nodes(2) as (here, other):
        for node, rank in ((here, 0), (here, 1), (other, 2), (other, 3)):
            node.record(job="gpt", run="run-x", world_size=4, rank=rank).tell("write 3")
        for node in (here, other):
            for writer in node.writers:
                writer.kill()
        for node, rank in ((here, 0), (other, 1)):
            node.record(job="gpt", run="run-x", world_size=2, rank=rank, attempt=1).tell("write 1")
            node.start()
        assert here.query("gpt", STEPS) | {"elapsed_ms": 0} | {"columns": []} == {
            "columns": [], "rows": [[0, 0, 1], [1, 0, 1]], "truncated": False, "elapsed_ms": 0, "notes": [],
        }
        for writer in other.writers[2:]:
            writer.kill()
        third = here.record(job="gpt", run="run-x", world_size=1, rank=0, attempt=2)
        third.tell("write 5")
        until(lambda: other.call("GET", "/v1/peers?run=run-x")["held"]["ended_ns"], "its end")
        until(lambda: here.query("gpt", STEPS)["rows"] == [[0, 4, 5]], "the newest attempt alone")


BAD_ROWS: list[bytes] = [
    b"", b"\xff" * 64, packed_answers.pack({}, []), packed_answers.pack({"tables": {}}, []),
    packed_answers.pack({"tables": {"python.steps": {"rows": -1}}}, []),
    packed_answers.pack({"tables": {"python.steps": {"rows": 1 << 40, "columns": []}}}, []),
    packed_answers.pack(
        {"tables": {"python.steps": {"rows": 3, "columns": [
            {"name": "step", "kind": "BIGINT", "values": [0, 24, 1]}]}}}, [b"\x78\x9c" + b"\0" * 64]),
    packed_answers.pack(
        {"tables": {"python.steps": {"rows": 2, "columns": [
            {"name": "boundary", "kind": "VARCHAR", "texts": ["a"], "values": [0, 8, 0]}]}}},
        [b"\x09\0\0\0" * 2]),
]


def test_a_hostile_host_costs_its_own_part_and_nothing_else() -> None:
    """Garbage, endless and slow answers, redirects, impossible claims, rows that are none."""

    def claims(**held: Any) -> bytes:
        return reply(introduction(**held))

    with nodes(1) as (here,), imposters() as make:
        elsewhere = make(lambda path: claims())
        moved = f"Location: http://{elsewhere.address}/v1/peers\r\n"
        bad = [
            make(lambda path: b"\x16\x03\x01 no HTTP\r\n\r\n"),
            make(lambda path: b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n", endless=True),
            make(lambda path: claims(), slow=True),
            make(lambda path: reply({}, status="302 Found", more=moved)),
            make(lambda path: reply(b"[" * 100_000)),
            make(lambda path: reply({"id": 1, "host": [], "held": {"ranks": "0-9"}, "peers": []})),
            make(lambda path: claims(ranks="0-99999999999")),
            make(lambda path: claims(started_ns="now")),
            make(lambda path: reply({"error": {"code": "token_invalid"}}, status="401 No")),
            make(lambda path: reply(b"\x1f\x8b" + b"0" * 50, more="Content-Encoding: gzip\r\n")),
        ]
        peers = Path(here.environ["PROBE_PEERS"])
        peers.write_text("http://192.0.2.1:7130\n" + "".join(f"{one.address}\n" for one in bad))
        here.record(job="gpt", run="run-x", world_size=2, rank=0).tell("write 3")
        here.start()
        answer = here.query("gpt", STEPS)
        assert answer["rows"] == [[0, 2, 3]]
        assert all(any(one.address in note for note in answer["notes"]) for one in bad)
        assert any("would be sent in clear" in note for note in answer["notes"])
        assert elsewhere.heads == [], "a redirect was followed, with the token"
        for content in BAD_ROWS:
            part = make(
                lambda path, content=content: claims() if path == "/v1/peers"
                else reply(content, kind=packed_answers.MEDIA_TYPE)
            )
            peers.write_text(part.address)
            answer = here.query("gpt", "SELECT rank, boundary, step FROM python.steps ORDER BY step")
            assert [row[2] for row in answer["rows"]] == [0, 1, 2], answer
            assert answer["notes"], content
        ranks = make(
            lambda path: claims() if path == "/v1/peers"
            else reply({"ranks": [7, {}, {"rank": -1}, {"rank": "x"}], "missing": 3, "hosts": None})
        )
        peers.write_text(ranks.address)
        assert [row["rank"] for row in here.call("GET", "/v1/ranks?endpoint=gpt")["ranks"]] == [0]


@pytest.mark.campaign
def test_many_hosts_are_asked_through_some_of_them_and_without_them_when_they_fail() -> None:
    """Forty addresses of two servers and of nobody: more than are asked one by one."""
    with nodes(2) as (here, other):
        for number, node in enumerate((here, other)):
            node.record(job="gpt", run="run-x", world_size=2, rank=number).tell("write 3")
        dead = [f"127.0.0.1:{free_port()}" for _ in range(38)]
        peers = Path(here.environ["PROBE_PEERS"])
        for order in ([other.address, *dead], [*dead[:3], other.address, *dead[3:]], [*dead, other.address]):
            peers.write_text("\n".join(order))
            for node in (here, other):
                node.start()
            answer = here.query("gpt", STEPS)
            assert (answer["rows"], answer["notes"]) == ([[0, 2, 3], [1, 2, 3]], [])


@pytest.mark.campaign
def test_forbidden_is_said_as_such(trio: list[Node]) -> None:
    """The other host's refusal is the answer, with its own hint."""
    with nodes(2) as (here, other):
        for number, node in enumerate((here, other)):
            node.record(job="gpt", run="run-x", world_size=2, rank=number).tell("write 1")
            node.start()
        with pytest.raises(Forbidden, match="not allowed over TCP"):
            here.call("POST", "/v1/eval", {"endpoint": "gpt/1", "code": "1"})


def test_rows_that_do_not_fit_are_the_oldest_and_are_counted(trio: list[Node]) -> None:
    """A host sends at most what it was given room for; the newest of it, and says so."""
    import httpx

    token = Path(trio[1].environ["PROBE_TOKEN_FILE"]).read_text().strip()
    answer = httpx.post(
        f"http://{trio[1].address}/v1/rows", trust_env=False, headers={"Authorization": f"Bearer {token}"},
        json={
            "endpoint": "gpt", "sql": "SELECT step FROM python.steps", "room_bytes": 1000, "timeout_s": 5.0,
        },
    )
    head, _ = packed_answers.unpack(answer.content)
    table = head["tables"]["python.steps"]
    assert table["rows"] < 70 and "only the newest" in json.dumps(head["notes"])
