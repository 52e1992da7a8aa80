"""Names of an archive: a pure function of the recording, whatever a run is called, and back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from archive.made import META
from probe.archive import dataset
from probe.archive.dataset import Group


@pytest.mark.parametrize(
    "run",
    ["plain", "../x", "..", "", "%", "%2e", "a/b", "a=b", "ä ö\n", "\udc80", "x" * 5000, "run=1", "table"],
)
def test_a_name_can_be_read_back_and_never_leaves_its_folder(run: str) -> None:
    meta = replace(META, run=run, job=run)
    file = dataset.file_of(meta, "python.steps", 1, 20, 0xABCD)
    parts = file.name.split("/")
    assert len(parts) == 7 and all(part not in ("", ".", "..") and len(part) <= 255 for part in parts)
    found = dataset.read_file(file.name)
    assert found is not None and found.name == file.name and found.group.folder == file.group.folder
    assert (found.rank, found.first, found.last, found.merged) == (0, 1, 20, False)
    if run.isprintable() and len(run) < 100:
        assert found == file
    index = file.group.index_name(3)
    read = dataset.read_index(index)
    assert read is not None and read[0].folder == file.group.folder and read[1] == 3
    assert file.group.index_folder == f"index/{file.group.folder}"


def test_two_long_names_stay_two() -> None:
    assert dataset.encoded("x" * 200 + "a") != dataset.encoded("x" * 200 + "b")


def test_the_same_process_has_the_same_names_and_another_has_others() -> None:
    assert dataset.process_id(META) == dataset.process_id(replace(META, settings={"a": "b"}, rings="/other"))
    others = [replace(META, host="b"), replace(META, pid=8), replace(META, started_ns=META.started_ns + 1)]
    assert len({dataset.process_id(one) for one in (META, *others)}) == 4
    assert dataset.group_of(META, "python.steps").date == "2026-03-01"


@pytest.mark.parametrize(
    "name",
    [
        "", "table=a/x.parquet",
        "table=python.steps/date=2026-03-01/job=j/run=r/attempt=0/rank=0/1234-1-2-0.parquet",
        "table=python.steps/date=2026-03-01/job=j/run=../attempt=0/rank=0/0123456789abcdef-1-2-00000000.parquet",
        # FIRST after LAST, digits that `name` would not write, a percent sign that encodes nothing
        "table=t/date=2026-03-01/job=j/run=r/attempt=0/rank=0/0123456789abcdef-000000000002-000000000001-00000000.parquet",
        "table=t/date=2026-03-01/job=j/run=r/attempt=00/rank=0/0123456789abcdef-000000000001-000000000002-00000000.parquet",
        "table=t/date=2026-03-01/job=j/run=%zz/attempt=0/rank=0/0123456789abcdef-000000000001-000000000002-00000000.parquet",
        "table=t/date=2026-03-01/job=j/run=%61/attempt=0/rank=0/0123456789abcdef-000000000001-000000000002-00000000.parquet",
    ],
)
def test_other_names_are_none_of_ours(name: str) -> None:
    assert dataset.read_file(name) is None and dataset.read_index(name) is None


def test_a_merger_is_told_from_a_file_of_one_process() -> None:
    merger = dataset.merger_of(Group("python.steps", "2026-03-01", "j", "r", 0), 7, 1000, 1)
    found = dataset.read_file(merger.name)
    assert found == merger and found.merged and found.generation == 7 and found.rank is None
    unknown = dataset.file_of(META, "python.steps", 1, 2, 0)._replace(rank=None)
    assert "/rank=none/" in unknown.name and dataset.read_file(unknown.name) == unknown
