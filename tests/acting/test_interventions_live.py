"""Interventions on real trainings: bit for bit what the job's own code would have done, not a bit else."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from agent.asking import ask, tell
from agent.nursery import Forked, Nursery, forked
from harness import PATIENCE_S, Place, run_probe
from probe.base.errors import ActionRefused, BadRequest

ENDS, BEGINS_AFTER, UNDONE_AFTER = 70, 5, 45
"""Steps of each training, and where it halts for the intervention and for its undoing."""
HALTS = ("--steps", str(ENDS), "--halt-at", str(BEGINS_AFTER), str(UNDONE_AFTER), "--hold")
STORIES: dict[str, tuple[str, str]] = {
    "clip": ("clip --max-norm 2.0", ""),
    "clip that never clips": ("clip --max-norm 1e9", ""),
    "skip": ("skip-nonfinite on", "--optimizer SGD --nan-at 20 33"),
    "guard": ("spike-guard --threshold 5", "--spike-at 30 60"),
    "loss scale": ("loss-scale --set 1024", "--scaler --optimizer SGD"),
}
"""The command, and the program's options."""
OWN = {"clip": "clip", "skip": "skip", "guard": "guard"}
"""Stories in which the program can do the same by itself, and how it calls that."""


class Story:
    """One training with an intervention, and one of the same steps without probe."""

    def __init__(self, answer: dict[str, Any], undone: dict[str, Any], said: dict[str, Any]) -> None:
        self.answer, self.undone, self.said = answer, undone, said
        self.itself: dict[str, Any] = {}

    @property
    def steps(self) -> range:
        """Those in which the intervention stood."""
        return range(self.answer["step"], self.undone["step"])


def while_halted(place: Place, job: Forked, *words: str) -> dict[str, Any]:
    """The answer to a command that is put in line while the program halts, which then goes on."""
    answers: list[Any] = []
    asked = threading.Thread(
        target=lambda: answers.append(run_probe(place, str(job.pid), *words, "--format", "json"))
    )
    asked.start()
    deadline = time.monotonic() + PATIENCE_S
    while not ask(place, job.pid, "GET", "/v1/actions")["waiting"]:
        assert asked.is_alive() and time.monotonic() < deadline, answers
        time.sleep(0.01)
    tell(job)
    asked.join(PATIENCE_S)
    assert answers[0].returncode == 0, answers[0].stderr
    answer: dict[str, Any] = json.loads(answers[0].stdout)
    return answer


def told(place: Place, job: Forked, name: str) -> Story:
    command, _ = STORIES[name]
    job.wait_for("HALT")
    answer = while_halted(place, job, *command.split())
    job.wait_for("HALT")
    undone = while_halted(place, job, "undo", answer["id"])
    story = Story(answer, undone, job.result())
    assert (job.let_go(), job.errors()) == (0, "")
    return story


@pytest.fixture(scope="module")
def stories(nursery: Nursery) -> Iterator[dict[str, Story]]:
    place = Place()
    try:
        commands = [("intervened", *options.split(), *HALTS) for _, options in STORIES.values()]
        with forked(nursery, place, *commands) as jobs:
            found = {name: told(place, job, name) for name, job in zip(STORIES, jobs, strict=True)}
        same = [
            ("intervened", *options.split(), "--steps", str(ENDS), "--itself",
             f"{OWN.get(name, 'nothing')}:{found[name].steps.start}:{found[name].steps.stop}")
            for name, (_, options) in STORIES.items()
        ]
        with forked(nursery, place, *same, watched=False) as jobs:
            for story, job in zip(found.values(), jobs, strict=True):
                story.itself = job.result()
        yield found
        left = place.close()
        assert not any(left.values()), left
    finally:
        place.remove()


@pytest.mark.parametrize("name", STORIES)
def test_a_run_is_bit_for_bit_the_one_that_does_the_same_by_itself(
    stories: dict[str, Story], name: str
) -> None:
    story = stories[name]
    assert BEGINS_AFTER <= story.steps.start < UNDONE_AFTER <= story.steps.stop < ENDS
    assert story.said["losses"] == story.itself["losses"]
    assert story.said["weights"] == story.itself["weights"]
    assert story.said["parameters_sha256"] == story.itself["parameters_sha256"]


def test_clipping_counts_what_it_clipped(stories: dict[str, Story]) -> None:
    story = stories["clip"]
    norms = [story.said["norms"][step] for step in story.steps]
    clipped = sum(norm > 2.0 for norm in norms)
    assert 0 < clipped < len(norms)
    assert f"it clipped {clipped} of {len(norms)} steps" in story.undone["what"]
    assert f"{max(norms):.4g}" in story.undone["what"]
    assert f"{norms[0]:.4g}" in story.answer["what"]
    assert story.answer["state"] == "standing"


def test_a_skipped_step_changes_nothing_and_the_job_keeps_its_gradients(stories: dict[str, Story]) -> None:
    story = stories["skip"]
    for step in (20, 33):
        assert story.said["weights"][step] == story.said["weights"][step - 1]
    assert story.said["weights"][19] != story.said["weights"][18]
    assert all(story.said["gradients_kept"])
    assert f"it skipped 2 of {len(story.steps)} steps" in story.undone["what"]


def test_a_spike_is_told_with_what_was_usual_and_one_after_undoing_is_let_through(
    stories: dict[str, Story]
) -> None:
    story = stories["guard"]
    assert f"spikes in {len(story.steps)} steps: 1, the last in step 30" in story.undone["what"]
    assert "stay reset" in story.undone["what"]


def test_the_loss_scale_is_set_grows_from_there_and_is_put_back_exactly(stories: dict[str, Story]) -> None:
    story = stories["loss scale"]
    scales, begun, ended = story.said["scales"], story.steps.start, story.steps.stop
    assert scales[begun] == [1024.0, 0]
    assert scales[begun + 9] == [2048.0, 0]
    untouched = story.itself["scales"]
    assert scales[:begun] == untouched[:begun]
    assert scales[ended] == untouched[begun]
    assert story.answer["state"] == "done"
    assert story.answer["details"]["now"] == 1024.0


def test_what_cannot_be_done_in_a_job_is_refused_with_the_reason(nursery: Nursery, place: Place) -> None:
    def act(pid: int, action: str, **arguments: Any) -> Any:
        return ask(place, pid, "POST", "/v1/act", {"action": action, "arguments": arguments})

    with forked(
        nursery, place, ("intervened", "--optimizer", "SGD", "--forever"), ("lbfgs_closure", "--forever")
    ) as [plain, closure]:
        plain.wait_for("READY")
        closure.wait_for("READY")
        with pytest.raises(ActionRefused, match="moments as Adam does \\(SGD\\)"):
            act(plain.pid, "spike_guard")
        with pytest.raises(ActionRefused, match="GradScaler"):
            act(plain.pid, "loss_scale", set=1024)
        with pytest.raises(BadRequest, match="max_norm"):
            act(plain.pid, "clip", max_norm=0)
        with pytest.raises(BadRequest, match="threshold"):
            act(plain.pid, "spike_guard", threshold=1.0)
        for action in ("clip", "skip_nonfinite"):
            with pytest.raises(ActionRefused, match="LBFGS"):
                act(closure.pid, action, **({"max_norm": 1.0} if action == "clip" else {}))
        assert not ask(place, plain.pid, "GET", "/v1/actions")["standing"]
