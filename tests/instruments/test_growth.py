"""What the program keeps more of with every step, by name and size."""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from probe.job.instruments.facts import growth
from probe.job.instruments.facts.growth import Growth

WEIGHT = torch.nn.Parameter(torch.ones(4))


class Looker:
    """`Growth`, asked between the steps of a loop in this thread."""

    def __init__(self) -> None:
        self.recorder: Any = SimpleNamespace(thread=threading.get_ident(), counted_step=0)
        self.rows: list[dict[str, Any]] = []
        self.growth = Growth(self.recorder, None, self)  # type: ignore[arg-type]

    def append(self, record: dict[str, Any]) -> None:
        """As the journal."""
        self.rows += record["rows"]

    def look(self) -> None:
        """A look after a hundred more steps."""
        self.recorder.counted_step += 100
        self.growth._next_s = 0.0
        agent = threading.Thread(target=self.growth.step)
        agent.start()
        agent.join()

    def grown(self, name: str) -> list[tuple[str, int]]:
        """Kind and size of each row of a name."""
        return [(row["kind"], row["count"]) for row in self.rows if row["name"] == name]


def test_what_grows_in_the_frames_of_a_loop_is_found_and_what_stays_is_not() -> None:
    looker = Looker()
    kept = {"images": torch.zeros(0, 64)}
    losses: list[torch.Tensor] = []
    history: list[float] = []
    moved: Any = 0.0
    batch = torch.zeros(64, 64)

    @functools.cache
    def dimmed(index: int) -> int:
        return index

    for look in range(5):
        for step in range(100):
            loss = (WEIGHT * 2.0).sum()
            moved = 0.98 * moved + 0.02 * loss
            losses.append(loss)
            history.append(loss.item())
            kept["images"] = torch.cat([kept["images"], batch[:1]])
            dimmed(1000 * look + step)
        looker.look()
    assert looker.grown("kept['images']") == [("tensor", 6400 * n) for n in range(2, 6)]
    assert looker.grown("losses") == [("container", 100 * n) for n in range(2, 6)]
    assert {row["holds"] for row in looker.rows if row["name"] == "losses"} == {"tensor with its graph"}
    assert {row["holds"] for row in looker.rows if row["name"] == "history"} == {"float"}
    assert looker.grown("dimmed") == [("cache", 100 * n) for n in range(2, 6)]
    assert [kind for kind, _ in looker.grown("moved")] == ["graph"] * 4
    assert looker.grown("batch") == []
    assert looker.grown("loss") == []


class Monitor:
    """An object of the program that keeps what it is given."""

    def __init__(self) -> None:
        self.store: dict[str, list[torch.Tensor]] = defaultdict(list)
        self.batch = torch.zeros(64, 64)


def test_variables_of_one_name_in_several_functions_are_several_things() -> None:
    looker = Looker()

    def batch() -> int:
        x = torch.zeros(2000)
        looker.look()
        return len(x)

    def validation() -> int:
        x = torch.zeros(30_000)
        looker.look()
        return len(x)

    def training_set() -> int:
        x = torch.zeros(90_000)
        looker.look()
        return len(x)

    def grows(length: int) -> int:
        kept = torch.zeros(length)
        looker.look()
        return len(kept)

    for look in range(1, 5):
        _ = batch(), validation(), training_set(), grows(2000 * look)
    assert looker.grown("x") == []
    assert looker.grown("kept") == [("tensor", 2000 * n) for n in range(2, 5)]


def test_what_an_object_of_the_program_keeps_is_found_by_its_attribute() -> None:
    looker = Looker()
    monitor = Monitor()
    for _ in range(4):
        for _ in range(100):
            monitor.store["loss"].append((WEIGHT * 2.0).sum())
        looker.look()
    assert looker.grown("monitor.store['loss']")[0] == ("container", 200)
    assert {row["name"] for row in looker.rows} == {"monitor.store['loss']"}
    assert all(row["holds"] == "tensor with its graph" for row in looker.rows)


def test_a_slice_ends_between_the_attributes_of_an_object() -> None:
    class Keeper:
        def __init__(self) -> None:
            for number in range(40):
                total = WEIGHT.sum()
                for _ in range(200):
                    total = total + 1.0
                setattr(self, f"total{number}", total)

    keeper = Keeper()
    looker = Looker()
    sizes: list[int] = []

    def slices() -> None:
        done = 0
        while done >= 0:
            found, done = looker.growth._slice(done, 0.0)  # no time: one object each
            sizes.append(len(found))

    agent = threading.Thread(target=slices)
    agent.start()
    agent.join()
    assert sum(sizes) >= 40 and max(sizes) == 1
    assert keeper is not None


def test_a_slice_does_not_open_the_objects_of_earlier_slices_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Keeper:
        def __init__(self) -> None:
            self.kept = [0.0] * 32

    keepers = {f"keeper{number}": Keeper() for number in range(30)}
    looker = Looker()
    opened: list[int] = []
    monkeypatch.setattr(looker.growth, "_tables", lambda: iter([("", "", list(keepers.items()))]))
    monkeypatch.setattr(growth, "attributes", lambda one: opened.append(id(one)) or vars(one))
    done, slices, found = 0, 0, 0
    while done >= 0:
        sizes, done = looker.growth._slice(done, 0.0)
        slices, found = slices + 1, found + len(sizes)
    assert found == len(keepers) and len(opened) <= slices


def test_what_a_cycle_keeps_is_seen_also_when_it_is_full_and_a_cycle_of_few_things_is_not() -> None:
    looker = Looker()
    batches = itertools.cycle(torch.zeros(8, 4) for _ in range(40))
    few = itertools.cycle([torch.zeros(8, 4)] * 4)
    for _ in range(3):
        taken = list(itertools.islice(batches, 60))
        next(few)
        looker.look()
    assert len(taken) == 60
    assert looker.grown("batches") == [("cycle", 40)]
    assert [row["holds"] for row in looker.rows if row["name"] == "batches"] == ["tensor"]
    assert looker.grown("few") == []


def test_a_default_argument_that_every_call_adds_to_is_found_by_its_function() -> None:
    looker = Looker()

    def validate(values: int, losses: list[float] = [], *, names: list[str] = []) -> float:  # noqa: B006
        losses += [float(values)] * 20
        return sum(losses) / len(losses) + len(names)

    for _ in range(4):
        validate(1)
        looker.look()
    assert looker.grown("losses of validate") == [("default", 40), ("default", 60), ("default", 80)]
    assert looker.grown("names of validate") == []


def test_what_is_emptied_between_two_looks_begins_again() -> None:
    looker = Looker()
    outputs = [0.0] * 20
    looker.look()
    outputs += [0.0] * 20
    looker.look()
    assert looker.grown("outputs") == [("container", 40)]
    outputs.clear()
    outputs += [0.0] * 20
    looker.look()
    outputs += [0.0] * 10
    looker.look()
    assert looker.grown("outputs") == [("container", 40), ("container", 30)]


def test_nothing_of_the_job_is_kept_alive_by_a_look() -> None:
    looker = Looker()
    large = torch.zeros(4096, requires_grad=True) * 2.0
    watched = weakref.ref(large)
    looker.look()
    del large
    assert watched() is None


class Smoothed:
    """A running mean that keeps what it is given with its graph."""

    def __init__(self) -> None:
        self.value: Any = 0.0

    def add(self, one: torch.Tensor) -> None:
        """Add a value."""
        self.value = 0.9 * self.value + 0.1 * one


def test_graphs_that_objects_in_a_dictionary_and_few_entries_of_a_list_keep_are_found() -> None:
    looker = Looker()
    meters = {"loss": Smoothed()}
    evaluated: list[dict[str, Any]] = []
    for look in range(6):
        for _ in range(100):
            meters["loss"].add((WEIGHT * 2).sum())
        evaluated.append({"step": look, "mean": (WEIGHT * 2).sum()})
        looker.look()
    assert [kind for kind, _ in looker.grown("meters['loss'].value")] == ["graph"] * len(
        looker.grown("meters['loss'].value")
    ) and looker.grown("meters['loss'].value")
    assert [count for _, count in looker.grown("evaluated")] == [5, 6]
