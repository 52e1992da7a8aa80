"""The string table's writer: every string gets a number at once, whichever threads add one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from probe.recording.layout import NULL_STRING
from probe.recording.reader import read_strings
from probe.recording.strings import Strings


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads take turns as often as they can."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual_s)


@pytest.mark.usefixtures("switching")
def test_threads_that_add_strings_at_once_lose_none(tmp_path: Path) -> None:
    strings = Strings(tmp_path / "strings", 1 << 20)
    together = threading.Barrier(4)

    def add(worker: int) -> dict[str, int]:
        together.wait()
        texts = [f"layer {place}" for place in range(500)] + [f"of {worker}: {place}" for place in range(500)]
        return {text: strings.intern(text) for text in texts}

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(add, range(4)))
    known = read_strings(strings.path)
    for numbers in found:
        assert {text: known[number] for text, number in numbers.items()} == {text: text for text in numbers}
        assert all(strings.intern(text) == number for text, number in numbers.items())
    strings.close()


def test_what_does_not_fit_is_null_and_so_is_all_after_it(tmp_path: Path) -> None:
    strings = Strings(tmp_path / "strings", 3500)
    assert [strings.intern(text) for text in ("a", "b" * 5000, "c" * 1900)] == [1, 2, NULL_STRING]
    assert [strings.intern(text) for text in ("d", "a", "c" * 1900)] == [NULL_STRING, 1, NULL_STRING]
    assert [len(text or "") for text in read_strings(strings.path)] == [0, 1, 2000]
    strings.close()
    assert strings.intern("e") == NULL_STRING
