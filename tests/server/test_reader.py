"""Reading rings while somebody writes them, and when they are damaged."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probe.base.errors import RecordingError
from probe.recording import layout, process, reader, segments
from probe.recording.reader import NUMBER, RingFile, pending_rows, sealable
from probe.recording.ring import Ring
from probe.recording.tables import BY_NAME, Column, Table

SMALL = Table(
    "python", "small", "for tests", "ring",
    (Column("step", "BIGINT", "", ""), Column("value", "DOUBLE", "", ""), Column("yes", "BOOLEAN", "", ""),
     Column("state", "VARCHAR", "", "")),
    "", rows=64, pending="state",
)
ROW_BYTES = layout.row_bytes(layout.stored_columns(SMALL))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[int], tuple[Ring, Path]]]:
    made: list[Ring] = []

    def ring(rows: int) -> tuple[Ring, Path]:
        path = tmp_path / f"{len(made)}.ring"
        made.append(Ring(path, SMALL, rows))
        return made[-1], path

    yield ring
    for ring_ in made:
        ring_.close()


def numbers(path: Path, after: int = 0) -> list[int]:
    with RingFile(path) as ring:
        return [int(number) for number in ring.read(after)[NUMBER]]


def overwrite(path: Path, number: int, rows: int, data: bytes, skip: int = 0) -> None:
    with open(path, "r+b") as file:
        file.seek(layout.HEADER_BYTES + (number % rows) * ROW_BYTES + skip)
        file.write(data)


def test_rows_come_in_order_with_their_values(make: Callable[[int], tuple[Ring, Path]]) -> None:
    ring, path = make(64)
    for step in range(10):
        ring.append(step, step / 2, step % 2, 0)
    with RingFile(path) as reader:
        rows = reader.read(4)
        assert list(rows["step"]) == [4, 5, 6, 7, 8, 9]
        assert list(rows["value"]) == [2.0, 2.5, 3.0, 3.5, 4.0, 4.5]
        assert reader.highest() == reader.highest(7) == reader.highest(10) == 10
        assert reader.table == "python.small"


@pytest.mark.parametrize("written", [0, 1, 63, 64, 65, 128, 1000, 100_003])
def test_after_wrapping_the_places_next_in_line_are_left_out(
    make: Callable[[int], tuple[Ring, Path]], written: int
) -> None:
    ring, path = make(64)
    for step in range(written):
        ring.append(step, 0.0, 0, 0)
    expected = list(range(max(1, written - 64 + 8 + 1), written + 1))
    assert numbers(path) == expected
    with RingFile(path) as reader:
        assert reader.highest() == written
        assert reader.highest(written // 2) == written


def test_a_row_torn_in_the_middle_is_not_there(make: Callable[[int], tuple[Ring, Path]]) -> None:
    ring, path = make(64)
    for step in range(100):
        ring.append(step, 1.0, 1, 0)
    overwrite(path, 101, 64, struct.pack("<q", 100))  # the writer died after the first field
    assert numbers(path) == list(range(45, 101))


def test_a_number_without_neighbours_is_damage_and_hides_nothing(
    make: Callable[[int], tuple[Ring, Path]]
) -> None:
    ring, path = make(64)
    for step in range(40):
        ring.append(step, 1.0, 1, 0)
    # One flipped bit: still leads to its own place, and would be the newest row by far.
    overwrite(path, 7, 64, struct.pack("<q", 7 + 2**40), ROW_BYTES - 12)
    assert numbers(path) == [number for number in range(1, 41) if number != 7]


def test_a_gap_is_waited_for_until_a_quarter_of_the_ring_is_past_it(
    make: Callable[[int], tuple[Ring, Path]]
) -> None:
    ring, path = make(64)
    for step in range(20):
        ring.append(step, 1.0, 1, 0)
    overwrite(path, 10, 64, bytes(ROW_BYTES))
    with RingFile(path) as reader:
        rows = reader.read(0)
        assert len(rows) == 19
        assert sealable(rows, 20, 64, None) == 9
        for step in range(20, 27):
            ring.append(step, 1.0, 1, 0)
        rows = reader.read(0)
        assert sealable(rows, 27, 64, None) == 26


def test_a_pending_row_is_waited_for_and_then_given_up(make: Callable[[int], tuple[Ring, Path]]) -> None:
    texts = [None, "pending", "done"]
    ring, path = make(64)
    for step in range(20):
        ring.append(step, 1.0, 1, 1 if step == 4 else 2)
    with RingFile(path) as reader:
        rows = reader.read(0)
        pending = pending_rows(rows, SMALL.pending, texts)
        assert sealable(rows, 20, 64, pending) == 4
        assert sealable(rows, 22, 64, pending) == 20
        ring.put(5, 4, 1.0, 1, 2)
        rows = reader.read(0)
        assert sealable(rows, 20, 64, pending_rows(rows, SMALL.pending, texts)) == 20


def test_what_is_no_ring_says_so(make: Callable[[int], tuple[Ring, Path]], tmp_path: Path) -> None:
    ring, path = make(64)
    ring.append(1, 1.0, 1, 0)
    whole = path.read_bytes()
    for length in (0, 10, layout.HEADER_BYTES - 1, layout.HEADER_BYTES, len(whole) - 1):
        (tmp_path / "cut.ring").write_bytes(whole[:length])
        with pytest.raises(RecordingError):
            RingFile(tmp_path / "cut.ring")
    with pytest.raises(FileNotFoundError):
        RingFile(tmp_path / "nothing.ring")


def test_flipped_bits_are_an_error_or_cost_their_own_rows(
    make: Callable[[int], tuple[Ring, Path]], tmp_path: Path
) -> None:
    ring, path = make(64)
    for step in range(50):
        ring.append(step, 1.0, 1, 0)
    whole = path.read_bytes()
    flip = random.Random(7)
    for _ in range(1000):
        damaged = bytearray(whole)
        place = flip.choice([flip.randrange(layout.HEADER_BYTES), flip.randrange(len(whole))])
        damaged[place] ^= 1 << flip.randrange(8)
        (tmp_path / "flipped.ring").write_bytes(damaged)
        try:
            found = numbers(tmp_path / "flipped.ring")
        except RecordingError:
            continue
        assert len(found) >= 48 and set(found) <= set(range(1, 51)), place


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.integers(-(2**63) + 1, 2**63 - 1) | st.none(),
            st.floats(width=64).filter(lambda value: value != layout.NULL_DOUBLE) | st.none(),
            st.booleans() | st.none(),
            st.integers(0, 2),
        ),
        min_size=1, max_size=60,
    )
)
def test_every_value_survives_sealing(tmp_path: Path, rows: list[tuple[object, ...]]) -> None:
    path = tmp_path / "any.ring"
    path.unlink(missing_ok=True)
    ring = Ring(path, SMALL, 128)
    nulls = (layout.NULL_INTEGER, layout.NULL_DOUBLE, layout.NULL_BOOLEAN)
    for row in rows:
        fields = [null if value is None else value for value, null in zip(row, nulls, strict=False)]
        ring.append(*fields, row[3])  # type: ignore[arg-type]
    texts = [None, "é\x01\N{DUCK}", ""]
    connection = segments.engine()
    with RingFile(path) as reader:
        segments.set_texts(connection, texts)
        sealed = segments.write(connection, tmp_path, 1, reader.read(0), reader.columns)
    ring.close()
    found = connection.execute(f"SELECT step, value, yes, state FROM '{sealed.path}'").fetchall()
    sealed.path.unlink()
    expected = [(*row[:3], texts[row[3]]) for row in rows]  # type: ignore[index]
    np.testing.assert_equal([list(row) for row in found], [list(row) for row in expected])


def test_the_numpy_layout_is_the_writers(make: Callable[[int], tuple[Ring, Path]]) -> None:
    for table in BY_NAME.values():
        if table.source == "ring":
            columns = layout.stored_columns(table)
            dtype = np.dtype([(name, layout.NUMPY[kind]) for name, kind in columns] + [(NUMBER, "<i8")])
            assert dtype.itemsize == struct.calcsize(layout.row_format(columns))


def test_a_hook_that_writes_while_the_ring_is_closed_beside_it_writes_nothing_and_fails_nowhere(
    make: Callable[[int], tuple[Ring, Path]],
) -> None:
    ring, path = make(64)
    append, put, rest = ring.append, ring.put, ring.rest("yes")
    number = append(1, 1.0, True, 1)
    before = path.read_bytes()
    ring.close()
    append(2, 2.0, True, 1)
    put(number, 9, 9.0, False, 2)
    rest(number, False, 2)
    assert ring.read(number) is None
    assert path.read_bytes() == before and ring.written == 1


def test_a_wrong_value_is_an_error_all_the_same(make: Callable[[int], tuple[Ring, Path]]) -> None:
    ring, _ = make(64)
    for write in (ring.append, lambda *fields: ring.put(1, *fields)):
        with pytest.raises(struct.error):
            write("no step", 1.0, True, 1)
    ring.append(1, 1.0, True, 1)
    assert ring.read(1) is None and ring.read(2) == [1, 1.0, True, 1]


@pytest.mark.parametrize("number", [90, 100, 101])
def test_a_row_that_a_live_process_is_writing_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    own = process.life(os.getpid())
    assert own is not None
    ring = Ring(tmp_path / "python.small.ring", SMALL, 64, (own.pid, own.start_ticks))
    for step in range(101):
        ring.append(step, step / 2, 1, 0)
    whole = ring.path.read_bytes()
    overwrite(ring.path, number, 64, b"\xff", ROW_BYTES - layout.CHECK_BYTES - 8)
    waits = []

    def complete(wait_s: float) -> None:
        waits.append(wait_s)
        if len(waits) == 2:
            ring.path.write_bytes(whole)

    monkeypatch.setattr(reader.time, "sleep", complete)
    with RingFile(ring.path) as ring_file:
        numbers = ring_file.read(0)[NUMBER].tolist()
        assert number in [*numbers, 101] and len(waits) == 2 and not ring_file.left_out()
