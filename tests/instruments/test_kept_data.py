"""What is known of the data that a program holds: parts, order, transitions, files that come again."""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy
import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from probe.base.isolation import Isolation
from probe.job.instruments.facts import data_cuts, transitions
from probe.job.instruments.facts.data_contents import checksum, unordered
from probe.job.instruments.facts.file_reads import LEAST_CALLS, FileReads
from probe.job.instruments.tensors.model_inputs import _padding

ROWS, LABELS = torch.randn(600, 3, 4), torch.arange(600) % 7
NAMES = [(f"{number:03}.png", number % 7) for number in range(600)]


class Listing:
    """A data set of the job's own that lists files."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __getitem__(self, place: int) -> Any:
        raise AssertionError("the job's code is not called")


@pytest.mark.parametrize("made", [
    lambda order: TensorDataset(ROWS[order], LABELS[order]), lambda order: [ROWS[place] for place in order],
    lambda order: Listing([NAMES[place] for place in order]),
])
def test_the_sum_over_all_samples_knows_what_they_are_and_not_their_order(made: Any) -> None:
    def rest() -> None:
        """Nobody else has to run."""

    order, same = torch.randperm(600), made(list(range(600)))
    assert unordered(same, rest) == unordered(made(order), rest) is not None
    assert checksum(same) != checksum(made(order))
    assert unordered(made([*range(599), 0]), rest) != unordered(same, rest), "one sample twice, one left out"


def test_samples_with_the_labels_of_others_are_others() -> None:
    mixed = TensorDataset(ROWS, LABELS.flip(0))
    assert unordered(mixed, lambda: None) != unordered(TensorDataset(ROWS, LABELS), lambda: None)


def test_a_part_of_a_data_set_knows_how_much_there_was() -> None:
    assert data_cuts.of_dataset(TensorDataset(ROWS[:20]))[:2] == (20, 600)  # type: ignore[index]
    assert data_cuts.of_dataset(Subset(TensorDataset(ROWS), range(30)))[:2] == (30, 600)  # type: ignore[index]
    flat = TensorDataset(ROWS.view(600, 12)[:20])
    assert data_cuts.of_dataset(flat)[:2] == (20, 600), "another shape of the same rows"  # type: ignore[index]


@pytest.mark.parametrize("whole", [
    ROWS, ROWS[:, :1], ROWS.view(-1, 4), ROWS[:20].clone(), ROWS[0], torch.ones(3),
])
def test_what_has_all_rows_or_copies_of_some_is_no_part(whole: torch.Tensor) -> None:
    assert data_cuts.of_tensor(whole) is None


KEPT: dict[str, torch.Tensor] = {}


def test_a_slice_that_is_another_one_at_each_look_is_a_batch_and_no_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(data_cuts, "named_things", lambda thread: list(KEPT.items()))
    variables = data_cuts.Variables()
    for look in range(3):
        KEPT.update(data=ROWS[:50], batch=ROWS[50 * look : 50 * look + 50])
        found = dict(variables.facts(None))
        assert found == ({} if not look else {"cut.data.rows": 50, "cut.data.whole": 600})


def test_a_held_out_part_beside_the_larger_one_of_the_training_is_no_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = ROWS.clone()
    parts = {"train": ROWS[:480], "val": ROWS[480:540], "test": ROWS[540:], "small": rows[:60]}
    monkeypatch.setattr(data_cuts, "named_things", lambda thread: list(parts.items()))
    variables = data_cuts.Variables()
    assert dict(variables.facts(None)) == {}
    assert dict(variables.facts(None)) == {"cut.small.rows": 60, "cut.small.whole": len(rows)}


def episode(lengths: list[int], *, reset: bool) -> list[tuple[Any, ...]]:
    """Transitions of episodes of these lengths; without a reset each goes on from the end of the former."""
    found, state = [], torch.zeros(4)
    for length in lengths:
        state = torch.randn(4) if reset else state
        for step in range(length):
            following = torch.randn(4)
            found.append((state, 1, -0.05, following, step == length - 1))
            state = following
    return found


def test_transitions_that_are_all_ends_and_go_on_are_told_from_those_of_episodes() -> None:
    assert transitions.counted(episode([1] * 200, reset=False)) == (200, 200, 32, 32)
    assert transitions.counted(episode([1] * 200, reset=True)) == (200, 200, 32, 0), "bandits"
    looked, ended, _, carried_on = transitions.counted(episode([10] * 20, reset=True)) or (0, 0, 0, 9)
    assert (looked, ended, carried_on) == (200, 20, 0)
    arrays = [tuple(one.numpy() if isinstance(one, torch.Tensor) else one for one in entry)
              for entry in episode([1] * 200, reset=False)]
    assert transitions.counted(arrays) == (200, 200, 32, 32)


@pytest.mark.parametrize("entries", [
    [1.0] * 200, [(1, 2, 3, True)] * 200, [(torch.zeros(3), torch.zeros(4), 1, True)] * 200,
    episode([1] * 20, reset=False), [(*one, True) for one in episode([1] * 200, reset=False)],
])
def test_what_is_no_buffer_of_transitions_is_not_counted(entries: list[Any]) -> None:
    assert transitions.counted(entries) is None


def test_a_buffer_is_found_in_an_object_among_the_variables() -> None:
    agent = SimpleNamespace(memory=deque(episode([1] * 300, reset=False), maxlen=256))
    found = dict(transitions.facts(threading.get_ident()))
    looked, ended = found["transitions.agent.memory.looked"], found["transitions.agent.memory.ended"]
    assert looked == ended == len(agent.memory) == 256


def test_a_file_that_is_loaded_again_in_training_steps_is_counted(tmp_path: Path) -> None:
    recorder = SimpleNamespace(step=0, thread=threading.get_ident())
    reads, load = FileReads(cast(Any, recorder), Isolation(lambda *_: None)), numpy.load
    path = tmp_path / "images.npy"
    numpy.save(path, numpy.zeros(100))
    reads.wrap()
    try:
        numpy.load(path)
        recorder.step = 5
        for _ in range(LEAST_CALLS):
            numpy.load(path)
            numpy.load(path, mmap_mode="r")
    finally:
        reads.unwrap()
    assert numpy.load is load
    recorder.step = 9
    found = dict(reads.facts())
    assert (found["reads0.path"], found["reads0.calls"], found["reads0.steps"]) == (str(path), LEAST_CALLS, 4)
    assert 0 < float(found["reads0.spent_ratio"]) < 1 and found["reads0.bytes"] == path.stat().st_size


def test_the_time_in_an_archive_that_is_only_opened_is_unknown(tmp_path: Path) -> None:
    recorder = SimpleNamespace(step=5, thread=threading.get_ident())
    reads, path = FileReads(cast(Any, recorder), Isolation(lambda *_: None)), tmp_path / "images.npz"
    numpy.savez(path, x=numpy.zeros(100))
    reads.wrap()
    try:
        for _ in range(LEAST_CALLS):
            assert numpy.load(path)["x"].shape == (100,)
    finally:
        reads.unwrap()
    found = dict(reads.facts())
    assert found["reads0.calls"] == LEAST_CALLS and "reads0.spent_ratio" not in found


def test_padding_is_measured_at_either_end_and_not_where_only_some_samples_are_short() -> None:
    tokens = torch.randint(1, 50, (8, 64))
    like = torch.zeros(1, dtype=torch.float64)
    padded = tokens.clone()
    padded[:, 24:] = 0
    assert _padding(torch, padded, like).tolist() == pytest.approx([40 / 64, 40 / 64])
    assert _padding(torch, padded.flip(1), like).tolist() == pytest.approx([40 / 64, 40 / 64])
    padded[0] = tokens[0]
    unused, padding = _padding(torch, padded, like).tolist()
    assert unused == 0 and padding == pytest.approx(7 * 40 / 512)
    assert _padding(torch, tokens[:, :8], like).isnan().all() and _padding(torch, ROWS, like).isnan().all()
