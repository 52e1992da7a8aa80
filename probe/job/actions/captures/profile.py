"""Profile: whole steps under torch's profiler, as a trace for Perfetto.

The training thread starts and stops it at boundaries, because the profiler sees the thread that started it
and its backward; the request's thread writes the file. If the job starts its own profiler, ours ends first,
so that the job's works as usual. Standard library only; torch inside functions.
"""

from __future__ import annotations

import gc
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from probe.base import accelerator
from probe.base.errors import ActionFailed, ActionRefused, NotUndoable
from probe.job.actions.action import Action, Site, whole_number
from probe.job.actions.captures.artifact import Artifact
from probe.job.instruments.core.patch import Patches

MOST_STEPS = 100
DEFAULT_STEPS = 5
SHORTEST_WAIT_S, LONGEST_WAIT_S = 60.0, 100.0
"""How long to wait for the steps; the server waits 120 s for an action's work after its boundary."""
SLOWER = 5.0
"""The profile is given up if its steps are slower than this factor."""
SAME = 1.02
"""Ratios up to this count as equal."""
MARK = "ProfilerStep#"
"""Prefix of the range around each step, by which trace viewers recognize it."""
LOOKED_AT = 50_000
"""Events that the sums of operators cover; more would keep the GIL from the training for seconds."""
_AT_ONCE, _REST_S = 200, 0.001
"""After this many events, leave the GIL to the training for a moment."""
_MOST_OPERATORS = 5
_STEP_BYTES = 4 << 20
"""Disk space required for each step: a trace has about 260 bytes an event."""


class Profile(Action):
    """Profile the next `steps` steps and write the trace to `path`."""

    name = "profile"
    takes = ("steps", "path", "overwrite")
    writes = "path"
    ends_on_training_thread = True

    def __init__(self, arguments: dict[str, Any], site: Site) -> None:
        super().__init__(arguments, site)
        self._wanted = whole_number(arguments, "steps", DEFAULT_STEPS, least=1, most=MOST_STEPS)
        self._usual_s = usual_step_s(site)
        self.waits_s = waiting_s(self._wanted, self._usual_s)
        self._artifact = Artifact(arguments)
        self._artifact.check_room(self._wanted * _STEP_BYTES)
        _refuse_beside_another()
        self._module: Any = sys.modules["torch.autograd.profiler"]
        self._patches = Patches()
        self._running = False
        self._given_up = False
        self._first: int | None = None
        self._done = 0
        self._mark: Any = None
        self._results: Any = None
        self._ended_by = ""
        self._walls: list[float] = []
        self._held_s = 0.0
        self._stopping_s = 0.0

    # The training thread ----------------------------------------------------

    def begin(self) -> None:
        """Start it. Refused while a profiler runs on this thread."""
        torch: Any = sys.modules["torch"]
        begun_s = time.monotonic()
        if torch.autograd._profiler_enabled():
            raise ActionRefused(
                "the job's own profiler is running",
                hint="Only one can run at a time: try again when it has ended.",
            )
        self._first = self.site.recorder.counted_step
        profiler = self._module.profile(use_cpu=True, use_kineto=True, use_device=_device())
        profiler._prepare_trace()
        profiler._start_trace()
        self._running = True
        for name in ("_prepare_profiler", "_enable_profiler"):
            self._patches.wrap(self._module, name, self._ending_ours_first)
        self.standing = True
        self._begin_step()
        self._held_s = time.monotonic() - begun_s

    def at_boundary(self) -> None:
        """A step has ended: the next one, or the end."""
        if not self._running:
            self.standing = False
            return
        fresh = self._fresh_steps()
        if not fresh and not self._given_up:
            return
        self._end_step(fresh)
        if self._given_up or self._done >= self._wanted:
            self._stop()
        else:
            self._begin_step()

    def _begin_step(self) -> None:
        if self._first is None:  # attached in the middle of a step, which has no number
            self._first = self.site.recorder.counted_step
        self._mark = self._module.record_function(f"{MARK}{(self._first or 0) + self._done}")
        self._mark.__enter__()

    def _fresh_steps(self) -> int:
        """Steps since the last boundary."""
        step, first = self.site.recorder.counted_step, self._first
        return 1 if step is None or first is None else step - first - self._done

    def _end_step(self, fresh: int) -> None:
        self._mark.__exit__(None, None, None)
        self._mark = None
        recent = self.site.recorder.recent
        walls = [wall_ns / 1e9 for wall_ns, _, _, _ in recent[len(recent) - fresh :]]
        if not self._done and walls:
            walls[0] -= self._held_s
        self._walls += walls
        self._done += fresh

    def _stop(self) -> None:
        begun_s = time.monotonic()
        self._running = False
        self._patches.undo()
        device = accelerator.current()
        if device is not None:
            device.synchronize()
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None
        results = self._module._disable_profiler()
        self._results = None if self._given_up else results
        stopped: Any = getattr(self._module, "_run_on_profiler_stop", None)
        if stopped is not None:
            stopped()
        self._stopping_s = time.monotonic() - begun_s
        self.standing = self.undoable = False
        self.finished.set()

    def _ending_ours_first(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the start of a profiler: if the job starts its own within a step, end ours first."""

        def start(*args: Any, **kwargs: Any) -> Any:
            if self._running and not self.site.recorder.elsewhere():
                self._ended_by = "the job started a profiler of its own"
                self._stop()
            return original(*args, **kwargs)

        return start

    # The request's thread ---------------------------------------------------

    def report(self) -> dict[str, Any]:
        """Write the trace; report which steps it covers and which operators took the time."""
        if not self.finished.is_set():
            raise ActionFailed(
                f"{self._done} of {self._wanted} steps ended within {self.waits_s:.0f} s; the profiling ends "
                "at the end of the next step, and no file is written",
                hint="`probe PID diagnose` says what the training is doing.",
            )
        results, self._results = self._results, None
        if results is None:
            raise ActionFailed("the profiling was ended before there was a trace; no file was written")
        size_bytes = self._artifact.fill(lambda path: results.save(str(path)), ends_with=b"}")
        operators, events = hottest(results.events())
        covered = f"step {self._first}" if self._done == 1 else f"steps {self._first} to {self._last}"
        return {
            "what": f"profiled {covered} into {self._artifact}",
            "notes": [*_most(operators), *self._notes(events)],
            "path": str(self._artifact.path), "bytes": size_bytes,
            "steps": self._done, "first_step": self._first, "last_step": self._last, "events": events,
            "operators": operators, "step_s": _median(self._walls), "usual_step_s": self._usual_s,
            "slower": self._slower(), "stopping_s": self._stopping_s,
        }

    @property
    def _last(self) -> int | None:
        return None if self._first is None else self._first + max(0, self._done - 1)

    def _slower(self) -> float | None:
        profiled = _median(self._walls)
        return profiled / self._usual_s if profiled and self._usual_s else None

    def _notes(self, events: int) -> list[str]:
        notes = []
        if self._done < self._wanted:
            why = self._ended_by or "it was ended"
            notes.append(f"{self._done} of {self._wanted} steps: {why}")
        slower = self._slower()
        if slower is not None:
            times = f"{slower:.2f} times as long as" if slower > SAME else "no longer than"
            notes.append(f"profiled steps took {times} usual")
        if self._stopping_s >= 0.1:
            notes.append(
                f"the training thread was held for {self._stopping_s:.1f} s while the trace was collected"
            )
        if events > LOOKED_AT:
            notes.append(
                f"operators are from the first {LOOKED_AT} of {events} events; the file has all events"
            )
        return notes

    # Ends -------------------------------------------------------------------

    def undo(self) -> str:
        """End it at once; the steps profiled so far are still written."""
        if not self._running:
            raise NotUndoable("the profiling has ended; its file stays")
        self._ended_by = "it was undone"
        self._end_now()
        return f"the profiling ended after {self._done} of {self._wanted} steps"

    def _end_now(self) -> None:
        """On the training thread."""
        if self._running:
            self._stop()

    def cancel(self) -> None:
        """End it at the next boundary, since only the training thread can; without boundaries, when probe
        leaves the process, at the next call of a module."""
        self._given_up = True
        if not self._running:
            self.standing = False
        elif not self.site.recorder.elsewhere():
            self._end_now()
        elif self.site.safepoint.closed:
            self._end_at_next_call()

    def _end_at_next_call(self) -> None:
        hooks: Any = sys.modules["torch.nn.modules.module"]._global_forward_pre_hooks
        key: Any = f"probe profile {id(self)}"
        trains = self.site.recorder.thread

        def end(_module: Any, _args: Any) -> None:
            if threading.get_ident() == trains:
                hooks.pop(key, None)
                self._end_now()

        hooks[key] = end


def usual_step_s(site: Site) -> float | None:
    """Median time of recent steps in seconds; None before there are any."""
    walls = [wall_ns / 1e9 for wall_ns, sampled, _, _ in site.recorder.recent[-64:] if not sampled]
    return _median(walls)


def waiting_s(steps: int, usual_s: float | None) -> float:
    """How long to wait for this many slowed-down steps; raises `ActionRefused` for too many."""
    needed_s = steps * (usual_s or 0.0)
    if needed_s > LONGEST_WAIT_S / 2:
        most = int(LONGEST_WAIT_S / 2 / (usual_s or 1.0))
        raise ActionRefused(
            f"{steps} steps usually take {needed_s:.0f} s; the limit is {LONGEST_WAIT_S / 2:.0f} s",
            hint=f"Ask for {most} steps." if most else "Its steps are too long to wait for.",
        )
    return min(LONGEST_WAIT_S, max(SHORTEST_WAIT_S, SLOWER * needed_s))


def hottest(events: Iterable[Any]) -> tuple[list[dict[str, Any]], int]:
    """The operators with the most self time, on the host and on the device; and the number of events."""
    listed = list(events)
    by_thread: dict[tuple[bool, int], list[tuple[int, int, str]]] = {}
    for number, event in enumerate(listed[:LOOKED_AT]):
        if number % _AT_ONCE == 0:
            time.sleep(_REST_S)
        on_host = event.device_type().name == "CPU"
        who = (on_host, event.start_thread_id() if on_host else number)
        by_thread.setdefault(who, []).append((event.start_ns(), event.duration_ns(), event.name()))
    own_ns: dict[tuple[bool, str], list[int]] = {}
    for (on_host, _), spans in by_thread.items():
        for name, duration_ns in _own_times(spans):
            if not name.startswith(MARK):
                own_ns.setdefault((on_host, name), []).append(duration_ns)
    ranked = sorted(own_ns.items(), key=lambda one: -sum(one[1]))
    found = [
        {
            "name": name, "where": "host" if on_host else "device", "self_ms": sum(times) / 1e6,
            "calls": len(times),
        }
        for (on_host, name), times in ranked
    ]
    hosts = [one for one in found if one["where"] == "host"][:_MOST_OPERATORS]
    return hosts + [one for one in found if one["where"] == "device"][:_MOST_OPERATORS], len(listed)


def _most(operators: list[dict[str, Any]]) -> list[str]:
    """A sentence on the host's operators, and one on the device's."""
    found = []
    for where in ("host", "device"):
        listed = [f"{one['name']} {one['self_ms']:.3g} ms" for one in operators if one["where"] == where]
        if listed:
            found.append(f"most time of the {where}: {', '.join(listed)}")
    return found


def _own_times(spans: list[tuple[int, int, str]]) -> list[tuple[str, int]]:
    """Self times: the spans of one thread, each without those inside it."""
    found: list[tuple[str, int]] = []
    open_spans: list[list[Any]] = []

    def close(before_ns: float) -> None:
        while open_spans and open_spans[-1][0] <= before_ns:
            _, name, own_ns = open_spans.pop()
            found.append((name, own_ns))

    for start_ns, duration_ns, name in sorted(spans, key=lambda one: (one[0], -one[1])):
        close(start_ns)
        if open_spans:
            open_spans[-1][2] -= duration_ns
        open_spans.append([start_ns + duration_ns, name, duration_ns])
    close(float("inf"))
    return found


def _refuse_beside_another() -> None:
    """Refuse if the job's own profiler is running, or prepared and not started: ours would break it."""
    kind = sys.modules["torch.autograd.profiler"].profile
    for one in gc.get_referrers(kind):
        if type(one) is kind and one.entered and one.kineto_results is None:
            raise ActionRefused(
                "the job's own profiler is running or about to start",
                hint="Only one can run at a time: try again when it has ended.",
            )


def _device() -> str | None:
    device = accelerator.current()
    return None if device is None else device.kind


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None
