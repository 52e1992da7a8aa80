"""Objects of a class are found, and no other thread's unfinished tuple is held meanwhile."""

from __future__ import annotations

import ast
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import ROOT
from probe.job.instruments.core.living import living


class Odd(type):
    """A metaclass whose classes have no hash, and an equality that raises."""

    def __eq__(cls, other: object) -> bool:
        raise TypeError("not to be compared")

    __hash__ = None  # type: ignore[assignment]


class Base:
    pass


class Part(Base):
    @property
    def __class__(self) -> type:  # type: ignore[override]
        raise TypeError("not to be asked")


class Strange(Base, metaclass=Odd):
    pass


@pytest.fixture
def broken() -> Iterator[Callable[[Callable[[], object]], int]]:
    """How many tuples two busy threads could not finish while something was called for a third of a second;
    at most one."""
    over, errors = threading.Event(), []

    def make() -> None:
        while not over.is_set():
            try:
                tuple(number for number in range(2000))
            except SystemError as error:
                errors.append(error)

    threads = [threading.Thread(target=make) for _ in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    for thread in threads:
        thread.start()

    def count(call: Callable[[], object]) -> int:
        errors.clear()
        end = time.monotonic() + 1 / 3
        while not errors and time.monotonic() < end:
            call()
        return len(errors)

    yield count
    over.set()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)


def test_every_object_of_a_class_and_its_subclasses_is_found_and_nothing_is_asked() -> None:
    made = [Base(), Part(), Strange()]
    assert sorted(map(id, living(Base))) == sorted(map(id, made))
    assert [type(one) for one in living(Part)] == [Part]
    assert living(type("Unused", (), {})) == []
    del made[:]
    gc.collect()
    assert living(Base) == []


def test_no_tuple_of_another_thread_breaks_meanwhile(broken: Callable[[Callable[[], object]], int]) -> None:
    def naively() -> None:
        for _ in gc.get_objects():
            pass

    assert broken(naively) > 0
    assert broken(lambda: living(Base)) == 0


def test_nothing_of_ours_takes_all_objects_in_hand() -> None:
    asking = []
    for path in sorted((ROOT / "probe").rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "get_objects" in text else ():
            if isinstance(node, ast.Attribute) and node.attr == "get_objects":
                asking.append(path.relative_to(ROOT))
    assert asking == [Path("probe/job/instruments/core/living.py")]
