"""The one queue of snippets and actions: order, clients, cancelling, and no task lost to a race."""

from __future__ import annotations

import functools
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from probe.base.errors import AgentMissing, EvalBusy, NoBoundary, ProbeError
from probe.base.isolation import Isolation
from probe.job.boundary.safe_point import SafePoint
from probe.job.boundary.task_queue import Task, TaskQueue
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.core.step_listeners import StepListener
from probe.recording.layout import NULL_STRING

PATIENCE_S = 60.0


class Steps:
    """The part of a recorder that the safe point uses; each call of `end` is the end of a step."""

    def __init__(self) -> None:
        self.listener: StepListener
        self.end_awaited = self.begin_awaited = False
        self.step = 0
        self.phase = "other"
        self.fed_by = NULL_STRING

    @property
    def counted_step(self) -> int:
        return self.step

    def await_begin(self) -> None:
        self.begin_awaited = True

    def hold(self, phase: str) -> None:
        self.phase = phase

    def let_go(self) -> None:
        self.phase = "other"

    def end(self, boundary: str = "call") -> None:
        self.step += 1
        if self.end_awaited:
            self.listener.step_ended(boundary)


class Aside:
    """A snippet beside the training that runs until it is told to end."""

    def __init__(self, queue: TaskQueue, name: str, begun: list[str]) -> None:
        self.started = time.monotonic()
        self.deadline = self.started + PATIENCE_S
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self._queue, self._name, self._begun = queue, name, begun

    def _run(self) -> None:
        self._begun.append(self._name)
        self.over.wait(PATIENCE_S)
        self._queue.ended()

    def start(self) -> None:
        self.thread.start()

    def interrupt(self) -> None: ...
    def press(self, wait_s: float) -> bool: ...  # type: ignore[empty-body]
    def abandon(self) -> None: ...


@pytest.fixture
def steps() -> Steps:
    return Steps()


@pytest.fixture
def queue(steps: Steps) -> TaskQueue:
    return SafePoint(cast("Recorder", steps), Isolation()).queue


@pytest.fixture
def restless() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def outcome(queue: TaskQueue, task: Task, wait_s: float = PATIENCE_S) -> Any:
    queue.wait(task, wait_s, lambda: "in forward")
    return task.outcome()


def on_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """A thread of a request, and what came of it."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(work())
        except ProbeError as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, found


def test_tasks_run_at_one_boundary_in_the_order_in_which_they_came(steps: Steps, queue: TaskQueue) -> None:
    ran: list[int] = []
    clients = itertools.cycle((1, 2, None))
    tasks = [queue.add(Task(functools.partial(ran.append, number), next(clients))) for number in range(9)]
    assert (queue.waiting, steps.end_awaited) == (9, True)
    steps.end()
    assert ran == list(range(9)) and {task.step for task in tasks} == {1}
    assert (queue.waiting, steps.end_awaited) == (0, False), "steps are not listened to any more"


def test_what_one_client_asks_for_keeps_its_order_at_both_doors(steps: Steps, queue: TaskQueue) -> None:
    ran: list[str] = []
    snippet = Aside(queue, "snippet", ran)
    reads = queue.add(Task(lambda: None, 1, snippet))
    acts = queue.add(Task(lambda: ran.append("action"), 1))
    queue.add(Task(lambda: ran.append("another client"), 2))
    last = Aside(queue, "last", ran)
    reads_again = queue.add(Task(lambda: None, 1, last))

    queue.begin(reads, PATIENCE_S)
    steps.end()
    assert ran == ["snippet", "another client"] and not steps.end_awaited, "nothing there can begin"
    waits, found = on_thread(lambda: queue.begin(reads_again, PATIENCE_S))
    snippet.over.set()
    snippet.thread.join()
    steps.end()
    assert ran[2:] == [], "it has ended and was not answered"
    queue.leave(reads)
    assert steps.end_awaited
    steps.end()
    assert ran[2:] == ["action"]
    assert outcome(queue, acts) is None
    waits.join(PATIENCE_S)
    assert found == [None] and ran[3:] == ["last"]
    last.over.set()


def test_one_snippet_at_a_time_runs_beside_the_training_and_the_first_to_come_is_the_next(
    queue: TaskQueue,
) -> None:
    begun: list[str] = []
    snippets = [Aside(queue, str(number), begun) for number in range(3)]
    tasks = [queue.add(Task(lambda: None, number, one)) for number, one in enumerate(snippets)]
    late = on_thread(lambda: queue.begin(tasks[2], PATIENCE_S))
    queue.begin(tasks[0], PATIENCE_S)
    with pytest.raises(EvalBusy, match="an earlier snippet has been running for"):
        queue.begin(tasks[1], 0.01)
    assert begun == ["0"]
    queue.leave(tasks[1])
    snippets[0].over.set()
    late[0].join(PATIENCE_S)
    assert late[1] == [None] and begun == ["0", "2"]
    snippets[2].over.set()


def test_what_is_not_reached_in_time_is_cancelled_and_says_what_was_in_front(
    steps: Steps, queue: TaskQueue
) -> None:
    ran: list[int] = []
    snippet = Aside(queue, "snippet", [])
    queue.begin(queue.add(Task(lambda: None, 1, snippet)), PATIENCE_S)
    behind = queue.add(Task(lambda: ran.append(1), 1))
    with pytest.raises(EvalBusy, match="an earlier request of the same client"):
        outcome(queue, behind, 0.01)
    with pytest.raises(NoBoundary, match=r"within 0\.01 s: in forward\. Nothing was"):
        outcome(queue, queue.add(Task(lambda: ran.append(2), 2)), 0.01)
    undone = queue.add(Task(lambda: ran.append(3)))
    assert undone.cancel(NoBoundary("undone")) and not undone.cancel(NoBoundary("again"))
    steps.end()
    assert ran == [] and queue.waiting == 0
    snippet.over.set()


def test_when_probe_leaves_nothing_begins_and_everybody_who_waits_is_told(queue: TaskQueue) -> None:
    begun: list[str] = []
    snippets = [Aside(queue, str(number), begun) for number in range(2)]
    tasks = [queue.add(Task(lambda: None, number, one)) for number, one in enumerate(snippets)]
    queue.begin(tasks[0], PATIENCE_S)
    waits = [
        on_thread(lambda: queue.begin(tasks[1], PATIENCE_S)),
        on_thread(lambda: outcome(queue, queue.add(Task(lambda: None)))),
    ]
    while not queue.waiting:
        time.sleep(0.001)
    why = AgentMissing("probe left the process")
    queue.close(why)
    for thread, found in waits:
        thread.join(PATIENCE_S)
        assert found == [why]
    with pytest.raises(AgentMissing):
        queue.add(Task(lambda: None))
    snippets[0].over.set()
    snippets[0].thread.join(PATIENCE_S)
    assert begun == ["0"]


def test_a_task_that_is_added_right_after_the_queue_was_found_empty_is_not_lost(
    steps: Steps, queue: TaskQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    read, overtaken = queue.next_at_boundary, [False]

    def read_and_be_overtaken() -> Task | None:
        found = read()
        if found is None and ran and not overtaken[0]:
            overtaken[0] = True
            queue.add(Task(lambda: ran.append(2)))
        return found

    monkeypatch.setattr(queue, "next_at_boundary", read_and_be_overtaken)
    queue.add(Task(lambda: ran.append(1)))
    for _ in range(3):
        steps.end()
    assert ran == [1, 2]


@pytest.mark.usefixtures("restless")
def test_no_task_is_lost_while_the_training_thread_stops_listening(steps: Steps, queue: TaskQueue) -> None:
    ran: list[int] = []
    over = threading.Event()

    def train() -> None:
        while not over.is_set():
            steps.end()

    training = threading.Thread(target=train, daemon=True)
    training.start()
    for number in range(2_000):
        outcome(queue, queue.add(Task(functools.partial(ran.append, number), number % 3 or None)))
    over.set()
    training.join(PATIENCE_S)
    assert ran == list(range(2_000))
