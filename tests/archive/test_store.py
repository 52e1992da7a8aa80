"""Stores: whole objects or none, under names that stay inside."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from probe.archive.store import FolderStore, open_store
from probe.base.errors import ArchiveUnavailable, ObjectMissing, UsageError


def test_a_folder_lists_reads_and_deletes_what_was_put(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "archive"))
    assert list(store.list()) == [] and store.folders() == []
    store.put("a/b=1/x", b"0123456789")
    large = tmp_path / "large"
    large.write_bytes(b"y" * 5_000_000)
    store.put("a/b=2/y", large)
    (tmp_path / "archive" / "a" / ".putting-abc").write_bytes(b"half")
    (tmp_path / "archive" / "a" / "link").symlink_to(large)
    found = [(one.name, one.size_bytes) for one in store.list("a/")]
    assert found == [("a/b=1/x", 10), ("a/b=2/y", 5_000_000)]
    assert store.folders("a/") == ["b=1/", "b=2/"] and store.folders() == ["a/"]
    assert store.get("a/b=1/x") == b"0123456789" and store.get("a/b=1/x", 3, 4) == b"3456"
    assert store.folder == tmp_path / "archive"
    store.delete(["a/b=1/x", "a/no"])
    with pytest.raises(ObjectMissing):
        store.get("a/b=1/x")
    assert not (tmp_path / "archive" / "a" / "b=1").exists()


def test_of_many_that_create_an_object_one_does(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    created: list[bool] = []
    threads = [
        threading.Thread(target=lambda: created.append(store.create("x/lock", b"locked"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(created) == [False] * 7 + [True]
    assert [one.name for one in store.list()] == ["x/lock"]


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd", "", "a//b", "a/./b", "a\0b"])
def test_a_name_cannot_leave_the_folder(tmp_path: Path, name: str) -> None:
    store = FolderStore(tmp_path / "archive")
    for use in (lambda: store.put(name, b""), lambda: store.get(name), lambda: store.delete([name])):
        with pytest.raises(UsageError):
            use()


def test_what_a_folder_refuses_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArchiveUnavailable, match="cannot be used"):
        FolderStore(tmp_path / "file").put("x", b"")


@pytest.mark.parametrize("url", ["", "ftp://host/x", "s3://key:secret@bucket/x", "s3:///x"])
def test_a_url_that_is_no_archive_is_refused_without_its_secret(url: str) -> None:
    with pytest.raises(UsageError) as raised:
        open_store(url)
    assert "secret@" not in raised.value.message + raised.value.hint
