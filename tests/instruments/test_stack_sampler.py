"""Stacks at a low rate: whose are recorded, that they can be put together again, and that looking keeps
nothing of the program."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probe.job.instruments import stack_sampler
from probe.job.instruments.stack_sampler import StackSampler
from probe.recording.layout import NULL_INTEGER, NULL_STRING
from probe.recording.tables import BY_NAME

RATE_HZ = 1000.0


class Rows:
    """As a ring, and the string table beside it."""

    def __init__(self, texts: list[str], table: str, rows: int) -> None:
        self.columns = BY_NAME[table].columns
        self.texts, self.rows, self.found = texts, rows, list[dict[str, Any]]()

    def append(self, *fields: Any) -> int:
        assert len(fields) == len(self.columns)
        self.found.append({
            column.name: self.texts[value] if column.type == "VARCHAR" else value
            for column, value in zip(self.columns, fields, strict=True)
        })
        return len(self.found)


class Sampled:
    """A sampler whose training thread is the test's, asked from another one, as the agent's is."""

    def __init__(self, most_nodes: int = 4096) -> None:
        self.texts = ["NULL"]
        self.samples = Rows(self.texts, "python.stack_samples", 2048)
        self.nodes = Rows(self.texts, "python.stack_nodes", most_nodes)
        rings = {"python.stack_samples": self.samples, "python.stack_nodes": self.nodes}
        recorder: Any = SimpleNamespace(
            rings=rings, intern=self.intern, step=7, phase="forward", thread=threading.get_ident()
        )
        self.sampler = StackSampler(recorder, RATE_HZ)

    def intern(self, text: str) -> int:
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text)

    def look(self) -> None:
        self.sampler.due_ns = 0
        agent = threading.Thread(target=self.sampler.collect)
        agent.start()
        agent.join()

    def stack(self, sample: dict[str, Any]) -> list[str]:
        """The functions of a sample's stack, outermost first, from the tree."""
        nodes = {one["node"]: one for one in self.nodes.found}
        found, node = [], sample["node"]
        while node != NULL_INTEGER:
            assert nodes[node]["parent"] < node
            found.append(nodes[node]["frame"].partition(" (")[0].rpartition(".")[2])
            node = nodes[node]["parent"]
        return found[::-1]


@contextmanager
def thread(name: str, work: Any) -> Iterator[None]:
    """A thread that does this again and again until the block is left."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            work(over)

    one = threading.Thread(target=run, name=name)
    one.start()
    try:
        yield
    finally:
        over.set()
        one.join()


def spins(_over: threading.Event) -> None:
    sum(range(1000))


def waits(over: threading.Event) -> None:
    over.wait()


def outer(found: Sampled) -> None:
    inner(found)


def inner(found: Sampled) -> None:
    found.look()


def test_the_training_thread_and_busy_threads_are_recorded_and_their_stacks_put_together_again() -> None:
    began_ns = time.monotonic_ns()
    found = Sampled()
    with thread("spins", spins), thread("waits", waits):
        outer(found)
        deadline = time.monotonic() + 60.0
        while not any(one["thread"] == "spins" for one in found.samples.found):
            assert time.monotonic() < deadline
            time.sleep(0.02)
            outer(found)
    ours = [one for one in found.samples.found if one["training"]]
    assert {one["thread"] for one in found.samples.found} == {"MainThread", "spins"}, "waiting is not busy"
    assert {(one["step"], one["phase"]) for one in ours} == {(7, "forward")}
    assert 0 < sum(one["wall_ns"] for one in ours) <= time.monotonic_ns() - began_ns
    assert ours[0]["cpu_ns"] == NULL_INTEGER and all(one["cpu_ns"] >= 0 for one in ours[1:])
    stack = found.stack(ours[0])
    assert stack[stack.index("outer") :][:3] == ["outer", "inner", "look"]
    assert ours[0]["frame"].partition(" (")[0].rpartition(".")[2] == stack[-1]
    [busy] = [one for one in found.samples.found if not one["training"]][:1]
    assert "spins" in found.stack(busy) or found.stack(busy)[-1] == "run"
    known = len(found.nodes.found)
    outer(found)
    assert len(found.nodes.found) - known < len(stack), "a stack is stored once"


@pytest.mark.skipif(not Path("/proc/self/syscall").exists(), reason="the kernel tells no thread's call")
def test_a_call_of_sleep_is_told_from_a_wait_for_another_thread() -> None:
    found, over = Sampled(), threading.Event()

    def looks() -> None:
        deadline = time.monotonic() + 60.0
        while not any(one["asleep"] == 1 for one in found.samples.found) and time.monotonic() < deadline:
            found.look()
        over.set()

    agent = threading.Thread(target=looks)
    agent.start()
    while not over.is_set():
        time.sleep(0.05)
    agent.join()
    assert any(one["asleep"] == 1 for one in found.samples.found)
    outer(found)
    assert found.samples.found[-1]["asleep"] == 0, "it waits for the agent"


def test_a_full_tree_begins_anew_and_its_numbers_are_not_used_again() -> None:
    found = Sampled(most_nodes=2)  # every stack is more than half of it
    for _ in range(3):
        outer(found)
    numbers = [one["node"] for one in found.nodes.found]
    assert numbers == sorted(set(numbers))
    stacks = [found.stack(one) for one in found.samples.found if one["training"]]
    assert len({one["node"] for one in found.samples.found}) == 3
    assert stacks[0][: stacks[0].index("outer") + 3] == stacks[2][: stacks[2].index("outer") + 3]


def test_a_sample_is_taken_when_it_is_due_and_rounds_are_spread() -> None:
    found = Sampled()
    sampler = found.sampler
    sampler._interval_ns = 10**12
    for _ in range(3):
        sampler.collect()
    assert len([one for one in found.samples.found if one["training"]]) == 1
    pauses = [sampler.round_s(0.25) for _ in range(100)]
    assert 0.125 <= min(pauses) < 0.14 and 0.36 < max(pauses) <= 0.375
    assert 0.24 < sum(pauses) / 100 < 0.26


def test_looking_keeps_nothing_alive_and_names_beyond_their_room_are_null(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Tensor:
        pass

    found = Sampled()

    def step() -> weakref.ref[Tensor]:
        held = Tensor()
        found.look()
        return weakref.ref(held)

    assert step()() is None, "a frame that was looked at lets go of its variables when it ends"
    monkeypatch.setattr(stack_sampler, "MOST_TEXT", 0)
    found = Sampled()
    outer(found)
    assert {one["frame"] for one in found.nodes.found} == {found.texts[NULL_STRING]}
