"""Acting: carries out actions and undoes them; each change of an action's state is journalled first.

`act` and `undo` run on the agent's thread: they validate, and add a task to the queue. The functions they
return run on the request's thread and wait for the answer. The work itself runs on the training thread at
a boundary (`safe_point`), or on the request's thread if it only reads or `now` was given. Standard library.
"""

from __future__ import annotations

import itertools
import json
import shlex
import threading
import time
from collections.abc import Callable
from typing import Any

from probe.base import clock
from probe.base.errors import (
    ActionFailed,
    ActionRefused,
    ActionUnknown,
    BadRequest,
    EvalBusy,
    NoBoundary,
    NotTogether,
    NotUndoable,
    ProbeError,
    TooMany,
)
from probe.base.isolation import Isolation, capture, describe
from probe.job.actions.action import Action, Site, path_of_rank
from probe.job.agent.action_catalogue import ACTIONS
from probe.job.boundary.coordinated import Prepared
from probe.job.boundary.safe_point import SafePoint
from probe.job.boundary.task_queue import Task

KEPT = 200
"""Actions that are done and can still be undone; older ones are forgotten."""
LONGEST_WAIT_S = 86_400.0
_OVER = {
    "undoing": "being undone already", "undone": "undone already", "failed": "not done: it failed",
    "refused": "not done: it was refused", "cancelled": "not done: it could not begin in time",
}
"""States in which there is nothing to undo."""
_REFUSALS = (ActionRefused, BadRequest)
Answer = Callable[[], dict[str, Any]]


class Entry:
    """One requested action and its state."""

    def __init__(self, action_id: str, action: Action, caller: dict[str, Any]) -> None:
        self.action_id = action_id
        self.action = action
        self.caller = caller
        self.asked_s = time.monotonic()
        self.state = ""
        self.what: str | None = None
        self.step: int | None = None
        self.held_s: float | None = None
        self.task: Task | None = None


class Acting:
    """The actions of one agent. `where` describes what the training thread does, for a request's time-out."""

    def __init__(
        self, site: Site, safepoint: SafePoint, isolation: Isolation, optimizers: Any,
        journal: Callable[..., object], where: Callable[[], str], prefix: str, job: str,
    ) -> None:
        self._site = site
        self._job = job
        self._safepoint = safepoint
        self._queue = safepoint.queue
        self._isolation = isolation
        self._optimizers = optimizers
        self._journal = journal
        self._where = where
        self._numbers = itertools.count(1)
        self._prefix = prefix
        self._entries: list[Entry] = []
        self._standing: list[Entry] = []
        self._changing = threading.Lock()

    # Requests: the agent's thread -------------------------------------------

    def act(self, body: dict[str, Any], caller: dict[str, Any]) -> Answer:
        """Queue an action; the returned function waits for its answer."""
        kind, arguments, site = self._parsed(body, together=bool(body.get("all_ranks")))
        wait_s = self._wait_s(body)
        if body.get("now") and not (kind.begins_anywhere or kind.reading):
            raise BadRequest(f"{kind.name} begins only between two steps", hint="Leave out `now`.")
        action_id = f"{self._prefix}-{next(self._numbers)}"
        action = self._make(kind, arguments, action_id, caller, site)
        entry = Entry(action_id, action, caller)
        self._note(entry, "asked")
        if not action.reading:
            self._remember(entry)
            if not body.get("now"):
                entry.task = self._add(entry)
        return lambda: self._answer(entry, wait_s)

    def undo(self, body: dict[str, Any], caller: dict[str, Any]) -> Answer:
        """Queue the undoing of an action; the returned function waits for its answer."""
        wait_s = self._wait_s(body)
        entry = self._undoable(body.get("id"))
        if entry.action.site.together:
            raise ActionRefused(
                f"{entry.action_id} was done on all ranks at the same step: undoing it on rank "
                f"{self._site.rank} alone would let its replicas drift away from the others",
                hint=f"`{self._undo_command(entry)}` undoes it on all ranks.",
            )
        undone = NoBoundary(f"{entry.action_id} was undone before a step ended")
        if entry.task is not None and entry.task.cancel(undone):
            return lambda: self._undone(entry, None, "it had not begun, and will not begin")
        before, entry.caller = entry.state, caller
        self._note(entry, "undoing")
        # Without a client, so that it does not wait for the client's other tasks.
        task = self._queue.add(Task(lambda: self._undo_now(entry)))
        return lambda: self._undo(entry, task, wait_s, before)

    # With all other ranks: the agent's thread -------------------------------

    def prepare(self, body: dict[str, Any], caller: dict[str, Any], action_id: str) -> Prepared:
        """Validate an action that all ranks will begin at the same step, under one `action_id`."""
        kind, arguments, site = self._parsed(body, together=True)
        site.together_name = action_id
        action = self._make(kind, arguments, action_id, caller, site)
        entry = Entry(action_id, action, caller)
        prepared = {"reading": action.reading, "action": action.name}
        if not action.reading:
            self._note(entry, "asked")
            self._remember(entry)

        def answer(task: Task) -> dict[str, Any]:
            entry.task = task
            return self._answer(entry, 0.0)

        return Prepared(
            prepared, work=lambda: self._begin(entry),
            take_back=(lambda: self._take_back(entry)) if action.can_take_back else None,
            answer=answer, give_up=lambda error: self._give_up(entry, error),
        )

    def _wait_s(self, body: dict[str, Any]) -> float:
        """How long to wait for a boundary: `boundary_s` if the server knows that none will come."""
        return seconds(body, "boundary_s", seconds(body, "wait_s", self._site.settings.act_wait_s))

    def prepare_undo(self, body: dict[str, Any], caller: dict[str, Any]) -> Prepared:
        """Validate the undoing of an action, which all ranks will do at the same step."""
        entry = self._undoable(body.get("id"))
        before, asked_by = entry.state, entry.caller
        if not entry.action.undoable or before == "asked":
            raise NotUndoable(f"{entry.action_id} cannot be undone" if before != "asked" else
                              f"{entry.action_id} is being done")
        entry.caller = caller
        self._note(entry, "undoing")

        def give_up(error: ProbeError) -> None:
            entry.caller = asked_by
            self._note(entry, before)

        return Prepared(
            {"action": entry.action.name}, work=lambda: self._undo_now(entry), take_back=None,
            answer=lambda task: self._undo(entry, task, 0.0, before), give_up=give_up,
        )

    def _parsed(
        self, body: dict[str, Any], *, together: bool
    ) -> tuple[type[Action], dict[str, Any], Site]:
        """The class of a requested action, its arguments, and the job as the action sees it."""
        kind = ACTIONS.get(body.get("action", ""))
        if kind is None:
            raise ActionUnknown(
                f"unknown action {body.get('action')!r}", hint=f"Actions: {', '.join(ACTIONS)}."
            )
        arguments = body.get("arguments") or {}
        if not isinstance(arguments, dict):
            raise BadRequest("`arguments` must be an object")
        if not together:
            return kind, arguments, self._site
        if kind.writes and isinstance(arguments.get(kind.writes), str):
            arguments = {**arguments, kind.writes: path_of_rank(arguments[kind.writes], self._site.rank)}
        return kind, arguments, self._site.of_all_ranks()

    def _undoable(self, wanted: object) -> Entry:
        entry = next((one for one in self._entries if one.action_id == wanted), None)
        if entry is None:
            raise ActionUnknown(
                f"no action of this process has the id {wanted!r}, or it was too long ago",
                hint="`probe PID actions` lists them.",
            )
        if entry.state in _OVER:
            raise NotUndoable(f"{entry.action_id} is {_OVER[entry.state]}")
        return entry

    # What is in force -------------------------------------------------------

    def listing(self) -> dict[str, Any]:
        """Actions in force, and how many wait, for `GET /v1/actions`."""
        return {
            "standing": [
                {
                    "id": entry.action_id, "action": entry.action.name, "step": entry.step,
                    "arguments": entry.action.arguments, "what": entry.what,
                }
                for entry in self._standing if entry.action.standing
            ],
            "waiting": self._queue.waiting, "paused": self._safepoint.paused,
        }

    def tidy(self) -> None:
        """Journal the rows of standing actions, and remove actions that ended by themselves. A round of the
        agent's thread."""
        for entry in list(self._standing):
            self._collect(entry)
        ended = [one for one in list(self._entries) if one.state == "standing" and not one.action.standing]
        if ended:
            self._install()
            for entry in ended:
                self._collect(entry)
                outcome = self._isolation.attempt(f"action {entry.action_id}", entry.action.outcome)
                entry.what = f"{entry.what}: {outcome}" if outcome else entry.what
                self._note(entry, "ended")

    def _collect(self, entry: Entry) -> None:
        if _has(entry.action, "collect"):
            tables = self._isolation.attempt(f"action {entry.action_id}", entry.action.collect)
            for table, rows in (tables or {}).items():
                if table == "python.variables":
                    rows = [{"watch_id": entry.action_id, **row} for row in rows]
                if rows and self._journal({"table": table, "rows": rows}, bulk=True) is False:
                    entry.what = f"{entry.what}; the recording is full"
                    self._isolation.attempt(f"action {entry.action_id}", entry.action.cancel)

    def settle(self, wait_s: float) -> None:
        """Before probe leaves, while there are boundaries: end those that only the training thread can."""
        for entry in list(self._standing):
            action = entry.action
            if action.standing and action.ends_on_training_thread:
                if self._site.recorder.elsewhere():
                    self._queue.add(Task(action.cancel)).done.wait(wait_s)
                else:
                    self._isolation.attempt(f"action {entry.action_id}", action.cancel)

    def close(self, why: ProbeError) -> list[str]:
        """Probe leaves the process: end all standing actions; returns a sentence about each."""
        standing = [one for one in list(self._entries) if one.state == "standing"]
        self._standing = []
        self._optimizers.before_step = self._optimizers.after_step = None
        self._safepoint.close(why)
        for entry in standing:
            self._isolation.attempt(f"action {entry.action_id}", entry.action.cancel)
            self._collect(entry)
            self._note(entry, "ended")
        return [f"{entry.action.name} ({entry.action_id}) ended" for entry in standing]

    # The request's thread ---------------------------------------------------

    def _answer(self, entry: Entry, wait_s: float) -> dict[str, Any]:
        report, error = capture(lambda: self._finish(entry, wait_s))
        if error is not None:
            failure = error
            if not isinstance(failure, ProbeError):
                failure = ActionFailed(f"{entry.action.name} failed: {describe(error)}")
            self._give_up(entry, failure)
            raise failure
        action = entry.action
        entry.what = str(report.pop("what"))
        notes = report.pop("notes", [])
        state = "standing" if action.standing else "done"
        self._collect(entry)  # it may have ended already
        if entry.state == "asked":
            self._note(entry, state)
        return {
            "id": entry.action_id, "action": action.name, "state": state, "step": entry.step,
            "what": entry.what, "notes": [*notes, *self._of_one_rank(action)], "details": report,
            "held_ms": None if entry.held_s is None else entry.held_s * 1e3,
            "undoable": action.undoable and not action.reading,
        }

    def _finish(self, entry: Entry, wait_s: float) -> dict[str, Any]:
        action = entry.action
        if entry.task is None:
            entry.step = self._site.recorder.counted_step
            self._begin(entry)
        else:
            self._queue.wait(entry.task, wait_s, self._where)
            entry.step, entry.held_s = entry.task.step, entry.task.held_s
            entry.task.outcome()
        if action.waits_s:
            action.finished.wait(action.waits_s)
        return action.report()

    def _undo(self, entry: Entry, task: Task, wait_s: float, before: str) -> dict[str, Any]:
        self._queue.wait(task, wait_s, self._where)
        error = task.error
        if error is None:
            return self._undone(entry, task.step, task.result)
        self._note(entry, before)
        if isinstance(error, ProbeError):
            raise error
        raise ActionFailed(f"undoing {entry.action_id} failed: {describe(error)}")

    def _undone(self, entry: Entry, step: int | None, what: str) -> dict[str, Any]:
        entry.step, entry.what = step, what
        self._collect(entry)
        self._install()
        self._note(entry, "undone")
        return {"id": entry.action_id, "step": step, "what": what, "notes": self._of_one_rank(entry.action)}

    def _give_up(self, entry: Entry, error: ProbeError) -> None:
        cancelled = isinstance(error, (NoBoundary, NotTogether, EvalBusy, TooMany))
        self._isolation.attempt(f"action {entry.action_id}", entry.action.cancel)
        self._install()
        entry.what = error.message
        state = "cancelled" if cancelled else "refused" if isinstance(error, _REFUSALS) else "failed"
        if entry.state != "undone":
            self._note(entry, state)

    # Beginning and undoing --------------------------------------------------

    def _make(
        self, kind: type[Action], arguments: dict[str, Any], action_id: str, caller: dict[str, Any],
        site: Site,
    ) -> Action:
        action, error = capture(lambda: kind(arguments, site))
        if error is None:
            made: Action = action
            return made
        if not isinstance(error, ProbeError):
            error = ActionFailed(f"{kind.name} could not be prepared: {describe(error)}")
        refused = Action(arguments, site)
        refused.undoable = False
        entry = Entry(action_id, refused, caller)
        entry.what = error.message
        self._note(entry, "refused", kind.name)
        raise error

    def _remember(self, entry: Entry) -> None:
        """Keep it for undoing; forget the oldest that is over."""
        self._entries.append(entry)
        over = [one for one in self._entries if one.state not in ("asked", "standing", "undoing")]
        if len(over) > KEPT:
            self._entries.remove(over[0])

    def _begin(self, entry: Entry) -> None:
        """On the training thread at a boundary, or on the request's."""
        _, error = capture(entry.action.begin)
        if error is not None:
            entry.action.standing = False
            raise error
        if entry.action.standing:
            with self._changing:
                self._standing.append(entry)
            self._install()

    def _take_back(self, entry: Entry) -> None:
        """Revert it, as another rank could not begin it. On the training thread at the same boundary."""
        entry.action.take_back()
        self._install()

    def _undo_now(self, entry: Entry) -> str:
        """On the training thread at a boundary."""
        what = entry.action.undo()
        entry.action.standing = False
        return what

    def _add(self, entry: Entry) -> Task:
        try:
            return self._queue.add(Task(lambda: self._begin(entry), entry.caller.get("pid")))
        except ProbeError as error:
            self._give_up(entry, error)
            raise

    def _install(self) -> None:
        """Install the hooks of standing actions, and no others. From any thread."""
        with self._changing:
            self._standing = [entry for entry in self._standing if entry.action.standing]
            standing = list(self._standing)
        self._optimizers.before_step = self._hooks(standing, "before_step")
        self._optimizers.after_step = self._hooks(standing[::-1], "after_step")
        residents = [entry for entry in standing if _has(entry.action, "at_boundary")]
        self._safepoint.call_at_boundaries(
            tuple(self._resident(entry) for entry in residents),
            random_states=any(entry.action.needs_random_states for entry in residents),
        )

    def _hooks(self, standing: list[Entry], name: str) -> Callable[[Any], None] | None:
        """One function that calls all their hooks, in this order; None without hooks."""
        hooks = [
            (entry.action, self._isolation.guard(f"action {entry.action_id}", getattr(entry.action, name)))
            for entry in standing if _has(entry.action, name)
        ]
        if not hooks:
            return None

        def call(optimizer: Any) -> None:
            for action, hook in hooks:
                if action.standing:
                    hook(optimizer)

        return call

    def _resident(self, entry: Entry) -> Callable[[], None]:
        def call() -> None:
            if entry.action.standing:
                self._isolation.attempt(f"action {entry.action_id}", entry.action.at_boundary)

        return call

    # Notes ------------------------------------------------------------------

    def _of_one_rank(self, action: Action) -> list[str]:
        if action.reading or action.site.together or not self._site.several_ranks:
            return []
        return [f"this is only rank {self._site.rank} of {self._site.world_size}"]

    def _undo_command(self, entry: Entry) -> str:
        whose = shlex.quote(self._job) if entry.action.site.together else self._prefix
        return f"probe {whose} undo {entry.action_id}"

    def _note(self, entry: Entry, state: str, name: str = "") -> None:
        """Journal a change of state: `asked` before anything is done."""
        if entry.action.reading:
            return
        entry.state = state
        undoable = entry.action.undoable and state in ("done", "standing")
        row = {
            "action_id": entry.action_id, "t_ns": clock.wall_ns(), "step": entry.step,
            "action": name or entry.action.name, "arguments": json.dumps(entry.action.arguments, default=str),
            "state": state, "what": entry.what,
            "undo": self._undo_command(entry) if undoable else None,
            **caller_columns(entry.caller), "held_s": entry.held_s,
            "duration_s": None if state == "asked" else time.monotonic() - entry.asked_s,
        }
        self._journal({"table": "probe.actions", "rows": [row]})


def caller_columns(caller: dict[str, Any]) -> dict[str, Any]:
    """The caller's columns, for rows of the journal."""
    return {f"caller_{name}": caller.get(name) for name in ("uid", "pid", "role")}


def seconds(
    body: dict[str, Any], name: str, default: float | None = None, most: float = LONGEST_WAIT_S
) -> float:
    """A time in a request; raises `BadRequest`."""
    value = body.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
        raise BadRequest(f"`{name}` must be seconds, above 0 and at most {most:g}")
    return float(value)


def _has(action: Action, hook: str) -> bool:
    return getattr(type(action), hook) is not getattr(Action, hook)
