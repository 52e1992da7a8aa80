"""Profile, capture, watch: what they say is so, and the training does not notice them."""

from __future__ import annotations

import errno
import json
import math
import os
import pickle
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agent.asking import ask, query, tell, wait_for_names, without_times
from agent.nursery import Forked
from diagnose.hung import recorded_of, until
from harness import Job, Place
from probe.base.errors import ActionFailed, ActionRefused, BadRequest, NotUndoable
from probe.job.actions.captures.artifact import Artifact
from probe.job.actions.captures.capture import Capture
from probe.job.actions.captures.profile import hottest, waiting_s
from probe.recording import places
from probe.recording.journal import Journal, read_journal

Fork = Callable[..., Forked]
SLOW = ("--forever", "--rest-s", "0.02")


def act(place: Place, job: Job, action: str, **arguments: Any) -> dict[str, Any]:
    """The agent's answer to an action."""
    body = {"action": action, "arguments": arguments, "wait_s": 60.0}
    answer: dict[str, Any] = ask(place, job.pid, "POST", "/v1/act", body, 150.0)
    return answer


def details(answer: dict[str, Any]) -> dict[str, Any]:
    """Details of an answer."""
    found: dict[str, Any] = answer["details"]
    return found


def seen(fork: Fork, *options: str) -> Forked:
    """A training to look into."""
    job = fork("looked_at", *SLOW, *options)
    job.wait_for("READY")
    return job


def assert_as_without_probe(fork: Fork, job: Forked, *options: str) -> dict[str, Any]:
    """End it; a run of as many steps without probe has the same losses and the same weights."""
    tell(job)
    result = job.result()
    plain = fork("looked_at", "--steps", str(result["steps"]), *options, watched=False)
    expected = plain.result()
    assert {**without_times(result), "descriptors": 0} == {**without_times(expected), "descriptors": 0}
    return result


def journalled(place: Place, job: Job, table: str) -> list[dict[str, Any]]:
    """Rows of a table that the agent has written to its journal."""
    journal = places.journals(recorded_of(place, job.pid).folder)[0]
    return [row for record in read_journal(journal) if record.get("table") == table for row in record["rows"]]


def trace_of(path: Path) -> list[dict[str, Any]]:
    """Events of a trace."""
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def test_a_profile_is_a_trace_of_the_steps_it_says(place: Place, fork: Fork, tmp_path: Path) -> None:
    job = seen(fork)
    for wrong in ({"steps": 0}, {"steps": 101}, {"steps": 1.5}, {"step": 3}, {"path": 3}, {"overwrite": 1}):
        with pytest.raises(BadRequest):
            act(place, job, "profile", **{"path": str(tmp_path / "no.json"), **wrong})
    with pytest.raises(ActionRefused, match="there is no folder"):
        act(place, job, "profile", path=str(tmp_path / "nowhere" / "trace.json"))
    with pytest.raises(BadRequest, match="only between two steps"):
        arguments = {"path": str(tmp_path / "no.json")}
        ask(place, job.pid, "POST", "/v1/act", {"action": "profile", "arguments": arguments, "now": True})
    path = tmp_path / "trace.json"
    answer = act(place, job, "profile", steps=4, path=str(path))
    found = details(answer)
    assert found["steps"] == 4 and found["last_step"] - found["first_step"] == 3
    assert found["first_step"] == answer["step"] and found["bytes"] == path.stat().st_size
    assert answer["state"] == "done" and not answer["undoable"]
    events = trace_of(path)
    marks = [event["name"] for event in events if str(event["name"]).startswith("ProfilerStep#")]
    assert sorted(marks) == sorted(f"ProfilerStep#{found['first_step'] + number}" for number in range(4))
    calls = Counter(event["name"] for event in events if event.get("cat") == "cpu_op")
    # Four steps of two micro steps: five linear layers each, the block's once more when it is recomputed.
    assert calls["aten::addmm"] == 4 * 2 * 6
    assert sum("AdamW.step" in str(event["name"]) for event in events) == 4
    assert found["operators"][0]["self_ms"] > 0 and len(found["operators"]) == 5
    with pytest.raises(ActionRefused, match="exists already"):
        act(place, job, "profile", steps=1, path=str(path))
    act(place, job, "profile", steps=1, path=str(path), overwrite=True)
    assert len([one for one in trace_of(path) if str(one["name"]).startswith("ProfilerStep#")]) == 1
    assert [one.name for one in tmp_path.iterdir()] == ["trace.json"]
    assert_as_without_probe(fork, job)


def test_a_profile_makes_way_for_the_jobs_own_and_is_refused_beside_it(
    place: Place, fork: Fork, tmp_path: Path
) -> None:
    job = seen(fork, "--own-profiler-from", "60")
    path = tmp_path / "trace.json"
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(act, place, job, "profile", steps=100, path=str(path))
        job.wait_for("PROFILES")
        answer = asked.result()
    found = details(answer)
    assert found["steps"] < 100 and "the job started a profiler of its own" in "\n".join(answer["notes"])
    assert len(trace_of(path)) > 100
    result = assert_as_without_probe(fork, job, "--own-profiler-from", "60")
    assert result["own_events"] == 1, "the job's profiler saw what it would have seen"


def test_a_profile_that_is_undone_or_left_ends(place: Place, fork: Fork, tmp_path: Path) -> None:
    job = seen(fork)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(act, place, job, "profile", steps=100, path=str(tmp_path / "undone.json"))
        [standing] = until(lambda: ask(place, job.pid, "GET", "/v1/actions")["standing"], "the profiling")
        with pytest.raises(ActionRefused, match="profiler"):
            act(place, job, "profile", steps=1, path=str(tmp_path / "second.json"))
        undone = ask(place, job.pid, "POST", "/v1/undo", {"id": standing["id"]})
        assert "the profiling ended after" in undone["what"]
        answer = asked.result()
        assert details(answer)["steps"] < 100 and "it was undone" in "\n".join(answer["notes"])
        asked = pool.submit(act, place, job, "profile", steps=100, path=str(tmp_path / "left.json"))
        until(lambda: ask(place, job.pid, "GET", "/v1/actions")["standing"], "the profiling")
        ask(place, job.pid, "POST", "/v1/stop")
        assert isinstance(asked.exception(), Exception)
    assert not (tmp_path / "left.json").exists()
    result = assert_as_without_probe(fork, job)
    assert result["profiling_at_end"] is False


def test_a_capture_holds_what_the_module_was_given_and_made(place: Place, fork: Fork, tmp_path: Path) -> None:
    job = seen(fork)
    wait_for_names(place, job.pid)
    path = tmp_path / "twice.pt"
    for wrong in ({"module": 3}, {"module": ""}, {"module": "head", "steps": 21}, {"module": "head", "n": 1}):
        with pytest.raises(BadRequest):
            act(place, job, "capture", path=str(path), **wrong)
    with pytest.raises(ActionRefused, match="there is no module 'twic'") as refused:
        act(place, job, "capture", module="twic", path=str(path))
    assert "twice" in refused.value.hint
    with pytest.raises(ActionFailed, match="never was not called in step"):
        act(place, job, "capture", module="never", path=str(path))
    answer = act(place, job, "capture", module="twice", steps=2, path=str(path))
    kept = torch.load(path, weights_only=True)
    assert kept["module"] == "twice" and kept["class"] == "Linear"
    assert [step["step"] for step in kept["steps"]] == [answer["step"], answer["step"] + 1]
    for step in kept["steps"]:
        weight, bias = step["parameters"]["weight"], step["parameters"]["bias"]
        assert [call["micro_step"] for call in step["calls"]] == [0, 0, 1, 1]
        gradient = torch.zeros_like(weight)
        for call in step["calls"]:
            [given] = call["inputs"]
            assert torch.equal(call["outputs"], torch.nn.functional.linear(given, weight, bias))
            gradient += call["output_grads"][0].T @ given
        assert torch.allclose(step["parameter_grads"]["weight"], gradient, rtol=1e-5, atol=1e-8)
    first, second = kept["steps"][0]["calls"][:2]
    assert torch.equal(second["inputs"][0], first["outputs"]), "calls are in order"

    answer = act(place, job, "capture", module="first", path=str(path), overwrite=True)
    [step] = torch.load(path, weights_only=True)["steps"]
    assert (step["calls"][0]["outputs"] < 0).any(), "as it was before it was changed in place"
    assert step["calls"][0]["output_grads"][0] is not None

    answer = act(place, job, "capture", module="block.0", path=str(path), overwrite=True)
    [step] = torch.load(path, weights_only=True)["steps"]
    assert [call["recompute"] for call in step["calls"]] == [False, True, False, True]
    assert torch.equal(step["calls"][0]["inputs"][0], step["calls"][1]["inputs"][0])
    assert "2 calls are recomputations" in "\n".join(answer["notes"])
    assert_as_without_probe(fork, job)


def test_a_memory_snapshot_says_what_holds_memory(place: Place, fork: Fork, tmp_path: Path) -> None:
    job = seen(fork)
    path = tmp_path / "memory.pickle"
    answer = act(place, job, "memory_snapshot", path=str(path))
    found = pickle.loads(path.read_bytes())
    weights = 4 * (8 * 16 + 16 + 3 * (16 * 16 + 16) + 17)
    assert found["parameters"] == weights and found["resident"] > weights
    trained = weights - 4 * (16 * 16 + 16)  # `never` has no gradient and no state
    steps = 4 * 8  # each state has its own count
    assert found["optimizer_state"] == 2 * trained + steps
    assert "uses no device" in answer["notes"][0] and "parameters 3.9 kB" in answer["what"]
    assert found["gradients"] in (0, trained)  # the job clears them before its next forward
    wanted = {"action": "memory_snapshot", "arguments": {"path": str(tmp_path / "at_once.pickle")}}
    answer = ask(place, job.pid, "POST", "/v1/act", {**wanted, "now": True, "wait_s": 60.0})
    found = pickle.loads((tmp_path / "at_once.pickle").read_bytes())
    assert (found["parameters"], found["gradients"]) == (weights, None)
    assert "gradients were not counted" in answer["notes"][1]
    assert_as_without_probe(fork, job)


def test_a_watch_has_the_values_of_each_step_and_ends_by_itself(place: Place, fork: Fork) -> None:
    job = seen(fork)
    for wrong in ({"expressions": ""}, {"expressions": "loss +"}, {"expressions": []}, {"expressions": [1]},
                  {"expressions": "loss", "steps": 0}, {"expressions": "loss", "every": 0},
                  {"expressions": "loss = 1"}, {"expressions": "loss, loss", "steps": 10_001}):
        with pytest.raises(BadRequest):
            act(place, job, "watch", **wrong)
    for changes in ("optimizer.step()", "loss, model.zero_grad()", "__import__('time').sleep(1)"):
        with pytest.raises(ActionRefused, match="does more than read"):
            act(place, job, "watch", expressions=changes)
    with pytest.raises(ActionRefused, match="name 'los' is not defined") as refused:
        act(place, job, "watch", expressions="los")
    assert "loss" in refused.value.hint
    texts = ["loss * 2", "optimizer.param_groups[0]['lr']", "f'{ledger.steps}, {len(inputs)}'", "1 / 0"]
    answer = act(place, job, "watch", expressions=", ".join(texts), steps=12, every=3)
    assert answer["state"] == "standing" and answer["undoable"]
    assert "1 / 0 gave ZeroDivisionError: division by zero" in answer["notes"]
    assert any("each row of values took" in note for note in answer["notes"])
    of_it = f"_id = '{answer['id']}' ORDER BY t_ns"
    until(lambda: not ask(place, job.pid, "GET", "/v1/actions")["standing"], "its end")
    states = ["asked", "standing", "ended"]
    until(lambda: [row["state"] for row in journalled(place, job, "probe.actions")][-3:] == states, "its end")
    assert len(journalled(place, job, "python.variables")) == 48
    rows = query(place, job.pid, f"SELECT step, name, value, text FROM python.variables WHERE watch{of_it}")
    with pytest.raises(NotUndoable):
        ask(place, job.pid, "POST", "/v1/undo", {"id": answer["id"]})
    result = assert_as_without_probe(fork, job)
    by_name: dict[str, dict[int, Any]] = {}
    for step, name, value, text in rows:
        by_name.setdefault(name, {})[step] = value if text is None else text
    steps = sorted(by_name["loss * 2"])
    assert steps == list(range(steps[0], steps[0] + 36, 3))
    for step in steps:
        assert by_name["loss * 2"][step] == 2 * float.fromhex(result["losses"][2 * step + 1])
        assert by_name[texts[2]][step] == f"'{step + 1}, 4'"
        assert by_name["1 / 0"][step] == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    "shape", ["functional", "drawn", pytest.param("prefetches", marks=pytest.mark.campaign)]
)
def test_every_step_is_looked_at_also_where_a_step_begins_with_nothing_that_is_seen(
    place: Place, fork: Fork, tmp_path: Path, shape: str
) -> None:
    job = fork("loop_shapes", shape, "--steps", "150", "--rest-s", "0.005", "--hold")
    job.wait_for("READY")
    path = tmp_path / "trace.json"
    first = details(act(place, job, "profile", steps=3, path=str(path)))["first_step"]
    names = Counter(str(event["name"]) for event in trace_of(path))
    assert [names[f"ProfilerStep#{first + number}"] for number in range(3)] == [1, 1, 1]
    assert names["Optimizer.zero_grad#AdamW.zero_grad"] == 3
    act(place, job, "watch", expressions="ledger.steps", steps=6)
    until(lambda: not ask(place, job.pid, "GET", "/v1/actions")["standing"], "its end")
    until(lambda: len(journalled(place, job, "python.variables")) == 6, "rows")
    rows = journalled(place, job, "python.variables")
    assert [row["step"] for row in rows] == list(range(rows[0]["step"], rows[0]["step"] + 6))
    behind = 0 if shape == "drawn" else 1  # where the boundary is in the step, the ledger has not counted it
    assert {row["step"] + 1 - row["value"] for row in rows} == {behind}
    job.result()


def test_what_takes_too_long_between_two_steps_is_watched_no_more(place: Place, fork: Fork) -> None:
    job = seen(fork)
    answer = act(place, job, "watch", expressions="sum(x for x in range(10**9)), loss", steps=50)
    until(lambda: not ask(place, job.pid, "GET", "/v1/actions")["standing"], "its end")
    until(lambda: len(journalled(place, job, "probe.actions")) == 3, "its end")
    rows = journalled(place, job, "python.variables")
    assert len(rows) == 6 and all("not within 0.1 s" in row["text"] for row in rows), answer
    assert_as_without_probe(fork, job)


def test_a_capture_of_a_reentrant_checkpoint_has_gradients_in_the_recomputation(
    place: Place, fork: Fork, tmp_path: Path
) -> None:
    job = seen(fork, "--reentrant")
    wait_for_names(place, job.pid)
    path = tmp_path / "block.pt"
    act(place, job, "capture", module="block.0", path=str(path), steps=2)
    for step in torch.load(path, weights_only=True)["steps"]:
        once, again = step["calls"][:2]
        assert (once["recompute"], again["recompute"]) == (False, True)
        assert torch.equal(once["outputs"], again["outputs"])
        assert once["output_grads"] == [None] and again["output_grads"][0] is not None
        assert step["parameter_grads"]["weight"] is not None
    assert_as_without_probe(fork, job, "--reentrant")


# Without a job ----------------------------------------------------------------------


def test_a_file_that_cannot_be_written_whole_is_not_there_and_harms_none_that_was(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("before")

    def full(where: Path) -> None:
        where.write_text("half of i")
        raise OSError(errno.ENOSPC, "No space left on device")

    def silent(where: Path) -> None:
        where.write_text('{"half": ')

    arguments = {"path": str(path), "overwrite": True}
    with pytest.raises(ActionFailed, match="No space left on device") as failed:
        Artifact(arguments).fill(full)
    assert "Free some room" in failed.value.hint
    with pytest.raises(ActionFailed, match="incomplete"):
        Artifact(arguments).fill(silent, ends_with=b"}")
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]
    with pytest.raises(ActionRefused, match="exists already"):
        Artifact({"path": str(path)})
    with pytest.raises(ActionRefused, match=r"free and trace\.json needs"):
        Artifact(arguments).check_room(1 << 60)
    assert Artifact(arguments).fill(lambda where: where.write_text("{}"), ends_with=b"}") == 2
    assert path.read_text() == "{}" and path.stat().st_mode & 0o777 == 0o666 & ~umask()


def test_a_module_that_is_compiled_is_refused() -> None:
    site: Any = SimpleNamespace(compiles=True)
    with pytest.raises(ActionRefused, match=r"torch\.compile"):
        Capture({"module": "head", "path": "head.pt"}, site)


def test_what_comes_in_numbers_leaves_room_for_what_is_rare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probe.recording.journal.BULK_BYTES", 300)
    journal = Journal(tmp_path / "journal.bin")
    kept = [journal.append({"number": number}, bulk=True) for number in range(100)]
    assert kept[0] and not kept[-1]
    assert journal.append({"number": 100}), "what is rare is kept all the same"
    journal.close()
    numbers = [record["number"] for record in read_journal(tmp_path / "journal.bin")]
    assert numbers == [*range(sum(kept)), 100]


def umask() -> int:
    """Of this process."""
    found = os.umask(0)
    os.umask(found)
    return found


def test_an_operators_own_time_is_without_those_inside_it() -> None:
    def event(name: str, start: int, duration: int, thread: int = 1, device: str = "CPU") -> Any:
        return SimpleNamespace(
            name=lambda: name, start_ns=lambda: start, duration_ns=lambda: duration,
            start_thread_id=lambda: thread, device_type=lambda: SimpleNamespace(name=device),
        )

    found, count = hottest([
        event("ProfilerStep#3", 0, 10_000_000), event("outer", 0, 1_000_000),
        event("inner", 100_000, 300_000), event("inner", 500_000, 300_000),
        event("beside", 0, 900_000, thread=2), event("kernel", 0, 5_000_000, device="CUDA"),
    ])
    assert count == 6
    assert [(one["name"], round(one["self_ms"], 3), one["calls"]) for one in found] == [
        ("beside", 0.9, 1), ("inner", 0.6, 2), ("outer", 0.4, 1), ("kernel", 5.0, 1),
    ]


def test_more_steps_than_an_answer_waits_for_are_refused() -> None:
    assert waiting_s(5, None) == 60.0 and waiting_s(5, 0.1) == 60.0 and waiting_s(10, 1.5) == 75.0
    assert math.isclose(waiting_s(40, 1.0), 100.0)
    with pytest.raises(ActionRefused, match="usually take 80 s") as refused:
        waiting_s(80, 1.0)
    assert refused.value.hint == "Ask for 50 steps."
