"""probe does not read, write, shut down or close a descriptor number that the job has closed and reused."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import PATIENCE_S, ROOT
from probe.base import descriptors
from probe.recording.journal import Journal, read_journal
from probe.recording.mapping import map_file


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """`mine(number)`: put a file of the job under this descriptor number; it must stay open and unchanged."""
    taken: list[tuple[int, Path]] = []

    def take(number: int) -> Path:
        path = tmp_path / f"mine-{len(taken)}"
        own = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.write(own, b"as it is")
        if own != number:
            os.dup2(own, number)
            os.close(own)
        taken.append((number, path))
        return path

    yield take
    for number, path in taken:
        assert os.path.samestat(os.fstat(number), path.stat()), f"{number} was closed"
        assert path.read_bytes() == b"as it is"
        os.close(number)


def test_a_file_under_the_number_of_ours_is_not_written_read_or_closed(
    tmp_path: Path, mine: Callable[[int], Path]
) -> None:
    ours = descriptors.opened(tmp_path / "ours", os.O_RDWR | os.O_CREAT, keep=True)
    written = descriptors.writing(ours)
    written.write(b"before")
    mine(ours.fileno())
    with pytest.raises(OSError, match="closed this descriptor"):
        written.flush()
    with pytest.raises(OSError):
        descriptors.File(ours, writable=False).read(1)
    ours.close()
    with pytest.raises(OSError):
        written.close()
    assert (tmp_path / "ours").read_bytes() == b""


def test_a_socket_under_the_number_of_ours_hears_nothing_and_keeps_what_it_was_sent() -> None:
    plain, other = socket.socketpair()
    ours = descriptors.Socket(plain.family, plain.type, plain.proto, plain.detach()).kept()
    mine, theirs = socket.socketpair()
    number = ours.fileno()
    with other, mine, theirs:
        os.dup2(mine.fileno(), number)
        theirs.send(b"for the job")
        for use, argument in ((ours.recv, 10), (ours.sendall, b"x"), (ours.shutdown, socket.SHUT_RDWR)):
            with pytest.raises(OSError):
                use(argument)
        ours.close()
        assert os.read(number, 100) == b"for the job"
        os.close(number)
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)


def test_a_socket_that_is_replaced_while_we_wait_for_it_is_not_read() -> None:
    plain, other = socket.socketpair()
    ours = descriptors.Socket(plain.family, plain.type, plain.proto, plain.detach()).kept()
    mine, theirs = socket.socketpair()
    number = ours.fileno()
    failed: list[OSError] = []

    def wait() -> None:
        try:
            ours.recv(10)
        except OSError as error:
            failed.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while "poll" not in Path(f"/proc/self/task/{waiting.native_id}/wchan").read_text() and waiting.is_alive():
        if Path(f"/proc/self/task/{waiting.native_id}/wchan").read_text() in ("", "0"):
            break  # the kernel does not report it
    with other, mine, theirs:
        os.dup2(mine.fileno(), number)
        theirs.send(b"for the job")
        with contextlib.suppress(BrokenPipeError):  # it was not waiting yet
            other.send(b"x")  # wakes the wait, which still holds the old socket
        other.close()
        waiting.join()
        assert len(failed) == 1
        assert os.read(number, 100) == b"for the job"
        os.close(number)


def test_a_journal_whose_number_was_taken_goes_on_under_another(
    tmp_path: Path, mine: Callable[[int], Path]
) -> None:
    journal = Journal(tmp_path / "journal.bin")
    assert journal.append({"event": "first"})
    for _ in range(3):
        assert journal._file is not None
        mine(journal._file.fileno())
        assert journal.append({"event": "again"})
    journal.close()
    assert [record["event"] for record in read_journal(tmp_path / "journal.bin")] == ["first", *["again"] * 3]


def test_a_map_keeps_no_descriptor_and_closes_none(tmp_path: Path, mine: Callable[[int], Path]) -> None:
    number = os.open(tmp_path / "ring", os.O_RDWR | os.O_CREAT)
    os.truncate(number, 8192)
    before = len(os.listdir("/proc/self/fd"))
    found = map_file(number, 8192)
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(number)
    mine(number)
    found[4096:4100] = b"rows"
    found.close()
    assert (tmp_path / "ring").read_bytes()[4096:4100] == b"rows"
    assert "ring" not in Path("/proc/self/maps").read_text()


def test_what_is_kept_has_a_high_number_where_there_is_one() -> None:
    with descriptors.opened("/dev/null", os.O_RDONLY, keep=True) as kept:
        assert kept.fileno() >= 512 and not os.get_inheritable(kept.fileno())
    with descriptors.opened("/dev/null", os.O_RDONLY) as short:
        assert short.fileno() < 512


def test_names_are_those_in_a_folder(tmp_path: Path) -> None:
    odd = ["a", ".hidden", "two words", "ümlaut", os.fsdecode(b"\xff"), "x" * 255]
    for name in [*odd, *map(str, range(3000))]:  # more than one system call returns
        (tmp_path / name).touch()
    assert sorted(descriptors.names(tmp_path)) == sorted(os.listdir(tmp_path))
    with pytest.raises(FileNotFoundError):
        descriptors.names(tmp_path / "nowhere")
    with pytest.raises(NotADirectoryError):
        descriptors.names(tmp_path / "a")


BESIDE_ONE_THAT_CLOSES_ALL = """
import os, socket, sys, threading
from probe.base import descriptors

def makes_pipes():
    for end in descriptors.pipe():
        end.close()

does = {
    "lists": lambda: descriptors.names("/proc/self/fd"),
    "makes sockets": lambda: descriptors.Socket(socket.AF_UNIX).close(),
    "makes pipes": makes_pipes,
    "creates": lambda: descriptors.opened(sys.argv[1] + "/new", os.O_CREAT | os.O_WRONLY).close(),
}[sys.argv[2]]
done = threading.Event()
count = 0

def go_on():
    global count
    while not done.is_set():
        try:
            does()
            count += 1
        except OSError:
            pass
        if sys.argv[2] == "creates":
            try:
                os.unlink(sys.argv[1] + "/new")
            except OSError:
                pass

threading.Thread(target=go_on).start()
wrong = 0
for _ in range(3000):
    os.closerange(3, 65536)
    opened = [os.open(f"{sys.argv[1]}/{number}", os.O_RDWR | os.O_CREAT) for number in range(4)]
    sum(range(1000))
    for number in opened:
        try:
            os.close(number)
        except OSError:
            wrong += 1
done.set()
print(wrong, count > 0)
"""


@pytest.mark.parametrize("does", ["lists", "makes sockets", "makes pipes", "creates"])
def test_beside_a_thread_that_closes_everything_nothing_of_it_is_closed(tmp_path: Path, does: str) -> None:
    """Fails if probe uses `os.listdir`, or if another thread can run between getting a descriptor number and
    verifying it: then probe closes some of that thread's files."""
    done = subprocess.run(
        [sys.executable, "-c", BESIDE_ONE_THAT_CLOSES_ALL, tmp_path, does], cwd=ROOT, capture_output=True,
        text=True, check=True, timeout=PATIENCE_S,
    )
    assert done.stdout.split() == ["0", "True"], done.stderr


def test_a_folder_that_is_renamed_while_it_is_listed_is_there_or_not(tmp_path: Path) -> None:
    done = threading.Event()

    def rename() -> None:
        names = [tmp_path / "one", tmp_path / "other"]
        while not done.is_set():
            os.rename(*names)
            names.reverse()

    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "inside").touch()
    thread = threading.Thread(target=rename)
    thread.start()
    found = set()
    try:
        for _ in range(3000):
            with contextlib.suppress(FileNotFoundError):
                found.add(tuple(descriptors.names(tmp_path / "one")))
    finally:
        done.set()
        thread.join()
    assert found == {("inside",)}


IMPORTS_LATE = """
import sys
import torch
import probe.job.agent.lifecycle
from probe.job.agent.late_imports import proven_imports
opened = []

def note(event, arguments):
    if event in ("open", "os.listdir", "os.scandir"):
        by = sys._getframe(1)
        while by.f_code.co_filename.startswith("<frozen"):
            by = by.f_back
        opened.append((by.f_code.co_filename.rpartition("/")[2], str(arguments[0])))

sys.addaudithook(note)
finders = list(sys.meta_path)
with proven_imports():
    assert sys.meta_path == finders, "other threads go through it"
    import probe.job.agent.requests
assert sys.meta_path == finders and "_ProvenFinder" not in str(sys.path_importer_cache.values())
print([path for file, path in opened if file != "descriptors.py"])
print(len(opened) > 50, probe.job.agent.requests.__spec__.loader.__class__.__name__)
"""


def test_what_the_agent_imports_later_is_read_by_way_of_the_proof() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS_LATE], cwd=ROOT, capture_output=True, text=True, check=True,
        timeout=PATIENCE_S,
    )
    assert done.stdout.splitlines() == ["[]", "True _ProvenLoader"]
