"""Segments: their names say everything, compaction loses nothing, any tool reads them."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pytest

from probe.recording import layout, places, segments
from probe.recording.reader import NUMBER
from probe.recording.segments import Segment
from probe.recording.tables import BY_NAME

COLUMNS = (("step", "BIGINT"), ("loss", "DOUBLE"))
DTYPE = np.dtype([("step", "<i8"), ("loss", "<f8"), (NUMBER, "<i8")])


@pytest.fixture(scope="module")
def engine() -> duckdb.DuckDBPyConnection:
    return segments.engine()


def write(engine: duckdb.DuckDBPyConnection, folder: Path, first: int, last: int, pid: int = 42) -> Segment:
    rows = np.zeros(last - first + 1, DTYPE)
    rows[NUMBER] = np.arange(first, last + 1)
    rows["step"] = rows[NUMBER] - 1
    rows["loss"] = 1 / rows[NUMBER]
    return segments.write(engine, folder, pid, rows, COLUMNS)


def steps(found: list[Segment]) -> list[int]:
    files = [str(segment.path) for segment in found]
    return [row[0] for row in duckdb.execute(f"SELECT step FROM read_parquet({files}) ORDER BY 1").fetchall()]


def test_names_are_the_only_state(engine: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    write(engine, tmp_path, 1, 10)
    write(engine, tmp_path, 11, 12)
    write(engine, tmp_path, 1, 99, pid=7)
    (tmp_path / "something.parquet").write_bytes(b"")
    found = segments.listing(tmp_path, 42)
    assert [(segment.first, segment.last) for segment in found] == [(1, 10), (11, 12)]
    assert segments.watermark(found) == 12
    assert segments.watermark(segments.listing(tmp_path / "nothing", 42)) == 0
    assert steps(found) == list(range(12))


def test_a_file_inside_anothers_range_does_not_count() -> None:
    def segment(first: int, last: int) -> Segment:
        return Segment(Path(f"{first}-{last}"), 1, first, last, 1)

    small = [segment(1, 3), segment(4, 6), segment(7, 9)]
    assert segments.visible(small) == small
    assert segments.visible([*small, segment(1, 9)]) == [segment(1, 9)]
    assert segments.visible([*small, segment(1, 6)]) == [segment(1, 6), segment(7, 9)]
    assert segments.visible([segment(4, 9), *small]) == [segment(1, 3), segment(4, 9)]


def test_sixteen_small_neighbours_become_one_and_a_crash_in_between_changes_nothing(
    engine: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    for place in range(15):
        write(engine, tmp_path, place * 10 + 1, place * 10 + 10)
    assert segments.compact(engine, tmp_path, segments.listing(tmp_path, 42)) is None
    write(engine, tmp_path, 151, 160)
    before = segments.listing(tmp_path, 42)
    merged = segments.compact(engine, tmp_path, before)
    assert merged is not None and (merged.first, merged.last) == (1, 160)
    # Killed right here: the small ones are still there, and do not count.
    after = segments.listing(tmp_path, 42)
    assert len(after) == 17 and segments.visible(after) == [merged]
    assert steps(segments.visible(after)) == list(range(160))
    written_s = merged.path.stat().st_mtime
    assert segments.leftovers(after, 30, written_s + 1) == []
    assert {one.path for one in segments.leftovers(after, 30, written_s + 31)} == {one.path for one in before}
    assert merged.size_bytes < sum(segment.size_bytes for segment in before)


def test_a_half_written_file_is_removed_and_never_seen(
    engine: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    sealed = write(engine, tmp_path, 1, 10)
    (tmp_path / ".sealing-42-000000000011-000000000020.parquet").write_bytes(b"PAR1 half")
    assert segments.watermark(segments.listing(tmp_path, 42)) == 10
    segments.remove_temporaries(tmp_path)
    assert list(tmp_path.iterdir()) == [sealed.path]


def test_any_tool_reads_the_dataset_by_its_folders(
    engine: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    for rank in (0, 1):
        process = places.recordings(tmp_path) / "run=20260101" / "attempt=2" / f"process={rank}-42"
        write(engine, places.segments_folder(process, "python.steps", rank), 1, 5)
    found = duckdb.execute(
        f"SELECT rank, attempt, run, \"table\", pid, sum(step) FROM read_parquet('{tmp_path}/**/*.parquet', "
        "hive_partitioning = true) GROUP BY ALL ORDER BY rank"
    ).fetchall()
    assert [(row[0], row[1], str(row[2]), row[3], row[4], row[5]) for row in found] == [
        (0, 2, "20260101", "python.steps", 42, 10),
        (1, 2, "20260101", "python.steps", 42, 10),
    ]


def test_a_full_disk_leaves_nothing_half_written(
    engine: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises((OSError, duckdb.Error)):
        write(engine, tmp_path / "file" / "below", 1, 10)
    with pytest.raises((OSError, duckdb.Error)):
        write(engine, Path("/proc/self"), 1, 10)
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_step_takes_at_most_520_bytes_sealed_as_small_as_a_slow_job_seals(
    engine: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    """One step a second for 40 minutes, sealed every minute; 200 modules on every 50th step."""
    noise = np.random.default_rng(1)
    per_step = {"python.steps": 1.0, "python.losses": 1.0, "python.batches": 1.0, "process.memory": 1.0,
                "python.torch_trace": 4.0, "probe.overhead": 0.04}
    segments.set_texts(engine, [None, *(f"transformer.h.{place}.mlp" for place in range(100))])
    total = 0
    for name, rate in per_step.items():
        columns = layout.stored_columns(BY_NAME[name])
        dtype = np.dtype([(column, layout.NUMPY[kind]) for column, kind in columns] + [(NUMBER, "<i8")])
        for minute in range(40):
            rows = np.zeros(max(1, int(60 * rate)), dtype)
            rows[NUMBER] = np.arange(len(rows)) + minute * len(rows) + 1
            for column, kind in columns:
                if kind == "DOUBLE":
                    rows[column] = noise.random(len(rows))
                elif kind == "VARCHAR":
                    rows[column] = noise.integers(1, 100, len(rows))
                elif kind == "BIGINT":
                    grows = column in ("step", "seq")
                    rows[column] = rows[NUMBER] if grows else noise.integers(0, 10**6, len(rows))
                    if column.endswith(("cpu_ns", "idle_ns")):  # counters of 10 ms
                        rows[column] = (rows[NUMBER] * 100 + rows[column] % 100) * 10**7
            jitter = noise.integers(0, 10**7, len(rows))
            rows["t_ns"] = 1_700_000_000_000_000_000 + rows[NUMBER] * 10**9 + jitter
            segments.write(engine, tmp_path / name, 42, rows, columns)
            segments.compact(engine, tmp_path / name, segments.listing(tmp_path / name, 42))
        total += sum(one.size_bytes for one in segments.visible(segments.listing(tmp_path / name, 42)))
    assert total / (40 * 60) <= 520, total / (40 * 60)
