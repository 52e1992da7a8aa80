"""Merging the stacks of all ranks: against a plain reference on random stacks; the rules of classes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from probe.base import package
from probe.base.rank_sets import as_text, from_text
from probe.server.hosts import merged_stacks

Frame = dict[str, Any]
C10D = "/env/site-packages/torch/distributed/distributed_c10d.py"


def frame(func: str, file: str = "/job/train.py", line: int = 1, user: bool = True) -> Frame:
    return {"func": func, "file": file, "lineno": line, "frame_type": "Python", "module": None,
            "is_user": user, "depth": 0}


def library(func: str, file: str = "/env/site-packages/lib/core.py", line: int = 1) -> Frame:
    return frame(func, file, line, user=False)


def capture(*outermost_first: Frame, state: str = merged_stacks.ALIVE, **more: Any) -> dict[str, Any]:
    frames = list(reversed(outermost_first))
    thread = {"training": True, "thread_id": 7, "thread_name": "MainThread", "frames": frames}
    return {"pid": 7, "step": 5, "phase": "forward", "state": state, "threads": [thread], **more}


def grouped(*captures: dict[str, Any]) -> list[str]:
    """Ranks of each class, the largest first."""
    return [one["ranks"] for one in merged_stacks.merge(dict(enumerate(captures))).classes]


# The tree ---------------------------------------------------------------------


def reference(found: dict[int, list[Frame]]) -> dict[tuple[tuple[str, int], ...], tuple[set[int], set[int]]]:
    """Every prefix of every stack: the ranks that go through it, and those that end there."""
    tree: dict[tuple[tuple[str, int], ...], tuple[set[int], set[int]]] = {}
    for rank, frames in found.items():
        path = tuple((one["func"], one["lineno"]) for one in frames)
        for depth in range(1, len(path) + 1):
            through, ends = tree.setdefault(path[:depth], (set(), set()))
            through.add(rank)
            if depth == len(path):
                ends.add(rank)
    return tree


@pytest.mark.parametrize("seed", range(40))
def test_the_tree_is_that_of_all_prefixes_of_all_stacks(seed: int) -> None:
    chance = random.Random(seed)
    found = {
        rank: [frame(chance.choice("fgh"), line=chance.randint(1, 2)) for _ in range(chance.randint(1, 9))]
        for rank in chance.sample(range(200), chance.randint(1, 60))
    }
    tree = merged_stacks.merge({rank: capture(*frames) for rank, frames in found.items()}).tree
    paths: list[tuple[tuple[str, int], ...]] = []
    for place, node in enumerate(tree):
        parent = node["parent"]
        assert node["node"] == place and (parent is None or parent < place)
        above = () if parent is None else paths[parent]
        paths.append((*above, (node["func"], node["lineno"])))
        assert node["depth"] == len(above)
    expected = reference(found)
    assert len(paths) == len(set(paths)) and set(paths) == set(expected)
    for path, node in zip(paths, tree, strict=True):
        through, ends = expected[path]
        assert set(from_text(node["ranks"])) == through
        assert (node["rank_count"], node["ends"]) == (len(through), len(ends))
    siblings: dict[Any, list[int]] = {}
    for node in tree:
        siblings.setdefault(node["parent"], []).append(node["rank_count"])
    assert all(counts == sorted(counts, reverse=True) for counts in siblings.values())


@pytest.mark.parametrize("seed", range(10))
def test_each_rank_is_in_one_class_whatever_comes_first(seed: int) -> None:
    chance = random.Random(seed)
    found = {
        rank: capture(*(frame(chance.choice("fg"), line=chance.randint(1, 3)) for _ in range(3)))
        for rank in range(50)
    }
    shuffled = list(found.items())
    chance.shuffle(shuffled)
    classes = merged_stacks.merge(found).classes
    assert merged_stacks.merge(dict(shuffled)).classes == classes
    assert sorted(rank for one in classes for rank in from_text(one["ranks"])) == list(range(50))
    for one in classes:
        members = {tuple(f["lineno"] for f in merged_stacks.training_frames(found[rank]))
                   + tuple(f["func"] for f in merged_stacks.training_frames(found[rank]))
                   for rank in from_text(one["ranks"])}
        assert len(members) == 1


# Classes ----------------------------------------------------------------------


def test_ranks_in_one_collective_are_one_class_though_the_backend_differs_by_a_line() -> None:
    main = frame("main", line=80)
    wrapper = library("wrapper", "/env/site-packages/torch/distributed/c10d_logger.py", 83)
    waits = capture(main, wrapper, library("all_reduce", C10D, 3252))
    deeper = capture(main, wrapper, library("all_reduce", C10D, 3250), library("_wait", C10D, 9),
                     library("wait", "/usr/lib/python3.11/threading.py", 327))
    assert grouped(waits, waits, deeper) == ["0-2"]
    assert merged_stacks.merge({0: waits}).classes[0]["stack"] == "all_reduce <- main (train.py:80)"


def test_another_collective_on_the_same_line_is_another_class() -> None:
    main = frame("main", line=80)
    first, second = library("all_reduce", C10D, 3252), library("broadcast", C10D, 2900)
    assert grouped(capture(main, first), capture(main, first), capture(main, second)) == ["0-1", "2"]


def test_a_line_of_the_users_code_tells_classes_apart_and_one_of_a_library_does_not() -> None:
    same = [capture(frame("main", line=80), library("step", line=line)) for line in (1, 2)]
    assert grouped(*same, capture(frame("main", line=81), library("step"))) == ["0-1", "2"]


def test_a_loop_inside_a_library_is_told_apart_by_its_functions() -> None:
    fit = library("fit", "/env/site-packages/trainer/loop.py")
    reads = capture(frame("main"), fit, library("next_batch", "/env/site-packages/trainer/data.py"))
    trains = capture(frame("main"), fit, library("run_step", "/env/site-packages/trainer/loop.py"))
    assert grouped(reads, trains, trains) == ["1-2", "0"]


def test_who_is_stopped_or_has_ended_is_in_no_class_of_the_living() -> None:
    here = frame("main")
    found = merged_stacks.merge(
        {
            0: capture(here), 1: capture(here, state=merged_stacks.STOPPED),
            2: capture(here, state=merged_stacks.ENDED),
        }
    ).classes
    assert {(one["ranks"], one["state"]) for one in found} == {
        ("0", merged_stacks.ALIVE), ("1", merged_stacks.STOPPED), ("2", merged_stacks.ENDED)
    }


def test_a_step_and_phase_of_a_class_are_those_of_all_its_ranks_or_null() -> None:
    (one,) = merged_stacks.merge({0: capture(frame("f"), step=5), 1: capture(frame("f"), step=6)}).classes
    assert (one["step"], one["phase"]) == (None, "forward")


def test_the_main_thread_stands_for_the_training_thread_before_training_begins() -> None:
    thread = {"training": False, "thread_id": 7, "thread_name": "MainThread", "frames": [frame("load")]}
    agent = {"training": False, "thread_id": 8, "thread_name": "probe-agent", "frames": [frame("serve")]}
    captures = {0: {"pid": 7, "threads": [agent, thread]}, 1: {"pid": 7, "threads": []}}
    found = merged_stacks.merge(captures).classes
    assert [(one["ranks"], one["stack"]) for one in found] == [
        ("0", "load (train.py:1)"), ("1", merged_stacks.NOT_TRAINING)
    ]


def test_other_threads_are_told_for_each_class() -> None:
    pin = {"training": False, "thread_id": 9, "thread_name": "pin", "frames": [library("get")]}
    captures = {rank: capture(frame("main", line=rank // 2)) for rank in range(4)}
    for rank in (0, 1, 2):
        captures[rank]["threads"].append(pin)
    classes = merged_stacks.merge(captures, all_threads=True).classes
    assert [(one["ranks"], one["threads"]) for one in classes] == [
        ("0-1", [{"name": "pin", "ranks": "0-1", "stack": "get"}]),
        ("2-3", [{"name": "pin", "ranks": "2", "stack": "get"}]),
    ]


def test_probes_own_hooks_are_in_no_stack() -> None:
    ours = f"{package.FOLDER}job/instruments/comm/collectives.py"
    captures = {0: capture(frame("main"), library("called", ours)), 1: capture(frame("main"))}
    found = merged_stacks.merge(captures)
    assert [node["func"] for node in found.tree] == ["main"]
    assert [(one["ranks"], len(one["frames"])) for one in found.classes] == [("0-1", 1)]


def test_nothing_merged_is_nothing() -> None:
    assert merged_stacks.merge({}) == merged_stacks.Merged([], [])


def test_the_largest_class_comes_first_and_of_equal_ones_that_of_the_lowest_rank() -> None:
    lines = [3, 1, 2, 2, 1, 9]
    assert grouped(*(capture(frame("main", line=line)) for line in lines)) == ["1,4", "2-3", "0", "5"]
    assert as_text([1, 4]) == "1,4"
