"""Lifecycle: the agent of this process, from start to stop. `_agent` is the only global of probe,
beside the tables that the job declared (`own_tables.HERE`).

`start` runs on the thread that imports torch (or calls `probe.start()`): it makes the recording, installs the
instruments and starts the agent's thread, which binds the socket and starts the server. A forked child has no
agent: everything is removed there and nothing is written. Standard library, and torch inside the instruments.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.base import clock, versions, wire
from probe.base.errors import ProbeError, UsageError
from probe.base.isolation import Isolation, harmless, quietly, say
from probe.base.settings import Settings
from probe.base.signal_errors import from_signal
from probe.boot import launch
from probe.job.agent import new_recording
from probe.job.agent.control_socket import ControlSocket
from probe.job.agent.deleted import Deleted
from probe.job.agent.endings import Endings
from probe.job.agent.handling import Handling
from probe.job.agent.identity import identify, process_group, several_hosts
from probe.job.agent.kernel_shutdown import KernelShutdown
from probe.job.agent.late_imports import proven_imports
from probe.job.agent.tracing import name_tracer
from probe.job.instruments.comm.flight_recorder import keep_entries
from probe.job.instruments.core.patch import Patches
from probe.job.instruments.installation import Installation
from probe.job.instruments.own_tables import HERE, Live
from probe.job.introspection.snippet_names import Scope, place_in_job
from probe.job.introspection.thread_stacks import capture, native_id, whereabouts
from probe.recording.captures import journal_rows

if TYPE_CHECKING:
    from probe.job.agent.announcing import Announcing
    from probe.job.agent.requests import Requests

_agent: Agent | None = None
_changing = threading.RLock()
"""Held while the agent starts or stops. A child forked in that time gets a new lock."""
_EXIT_WAIT_S, _STOP_WAIT_S = 0.1, 2.0
_SNIPPET_WAIT_S = 3.0
"""How long the agent's stop waits for a running snippet: torch ends the process by SIGABRT if a thread is
inside its code when the interpreter ends."""
_ANSWERS_WAIT_S = 1.0
_SETTLE_WAIT_S = 2.0
"""How long to wait for the end of a step if an action stands that only the training thread can end."""
_ROUND_S = 0.25
_EAGER_S, _EAGER_ROUND_S = 10.0, 0.02
_SERVER_LOOK_S = 5.0
_INSIST_S = 1.0


class Agent:
    """Everything of ours in this process."""

    def __init__(self, settings: Settings, name: str, *, midway: bool = False) -> None:
        self.settings = settings
        self.pid = os.getpid()
        self.directory = new_recording.make_directory(settings)
        self.identity = identify(name or settings.name)
        self.recording = new_recording.make_recording(self.directory, self.identity, settings)
        try:
            self._assemble(settings, midway)
        except BaseException:
            self.recording.discard()
            raise

    def _assemble(self, settings: Settings, midway: bool) -> None:
        self.isolation = Isolation(self._note_failure)
        self.instruments = Installation(self.recording, settings, self.isolation, midway=midway)
        if self.instruments.nan_detector is not None:
            self.instruments.nan_detector.passes = from_signal
        self.endings = Endings(
            self.recording, self.isolation, self.instruments.recorder, self.instruments.module_path
        )
        self.ended_actions: list[str] = []
        self._requests: Requests | None = None
        self._training_thread: int | None = None
        self._server_warned = False
        self._tracer = 0
        self._deleted = Deleted(self.recording, self._leave_deleted)
        whole = {**process_group(), **settings.environ}
        self.announcing = self._to_announce() if several_hosts(whole) else None
        self._kernel_shutdown = KernelShutdown(self.recording.journal.append)
        self.control = ControlSocket(
            Path(self.recording.meta.socket),
            {
                "GET /v1/health": self._health,
                "GET /v1/stacks": self._stacks,
                "GET /v1/actions": lambda request, peer: self._to_act().actions(request, peer),
                "POST /v1/eval": lambda request, peer: self._to_act().evaluate(request, peer),
                "POST /v1/act": lambda request, peer: self._to_act().act(request, peer),
                "POST /v1/undo": lambda request, peer: self._to_act().undo(request, peer),
                "POST /v1/together": lambda request, peer: self._to_act().together(request, peer),
                "POST /v1/stop": self._stop_requested,
            },
            [
                (self._round_s, self.instruments.collect),
                (lambda: _ROUND_S, self._kernel_shutdown.check),
                (lambda: settings.memory_interval_s, self.instruments.sample_memory),
                (lambda: _SERVER_LOOK_S, self._ensure_server),
                (lambda: _SERVER_LOOK_S, self._deleted.check),
                (lambda: _INSIST_S, self._note_training_thread),
                (lambda: _INSIST_S, self.endings.check),
                (lambda: _INSIST_S, Handling(self.instruments.recorder, self.recording.journal.append).check),
                (lambda: _INSIST_S, self._tidy_requests),
                *([(lambda: _INSIST_S, self.announcing.check)] if self.announcing else []),
            ],
            self.isolation,
            slow=frozenset(
                f"POST /v1/{name}" for name in ("eval", "act", "undo", "together", "stop")
            ),
            first=self._note_start,
        )

    def _to_announce(self) -> Announcing:
        """Lets the hosts of a job find each other; loaded only if there are several."""
        from probe.job.agent.announcing import Announcing

        return Announcing(self.recording, self.directory, self.settings, self.isolation)

    def _to_act(self) -> Requests:
        """The routes that act on the job. Loaded at the first such request, on the agent's thread: a job that
        is only watched saves 7 MB and 35 ms."""
        if self._requests is None:
            with proven_imports():
                from probe.job.agent.requests import Requests

            self._requests = Requests(
                self.instruments, self.isolation, self.recording, self.settings, self._scope,
                self._whereabouts, lambda: self.endings.holding,
            )
        return self._requests

    def _tidy_requests(self) -> None:
        if self._requests is not None:
            self._requests.tidy()

    def start(self, *, late: bool) -> None:
        """Start everything, the instruments first: the job's next line may already train."""
        try:
            self.instruments.install(late=late)
            self.endings.install()
            self.control.start()
            HERE.attach(Live(self.recording, self.instruments.recorder, self.isolation))
        except BaseException:
            self.endings.uninstall()
            self.instruments.uninstall()
            self.control.abandon()
            self.recording.discard()
            raise

    def stop(self, event: str, *, wait_s: float) -> None:
        """Remove everything; the recording stays."""
        if self.announcing is not None:
            self.announcing.close()
        requests = self._requests
        if requests is not None:
            requests.settle(_SETTLE_WAIT_S)
        self.isolation.end()
        HERE.detach()
        if requests is not None:
            self.ended_actions = requests.close()
        self._kernel_shutdown.check()
        if event == "exit":
            self.endings.leave()
        else:
            self.endings.uninstall()
        self.instruments.uninstall()
        if requests is not None:
            requests.end(_SNIPPET_WAIT_S)
        self.control.finish(_ANSWERS_WAIT_S)
        self.control.stop(wait_s=wait_s)
        rows = self.recording.end_rows()
        self.recording.journal.append({"event": event, "t_ns": clock.wall_ns(), "rows": rows})
        self.recording.close()

    def forget(self) -> None:
        """In a forked child: remove hooks and descriptors, and write nothing to the parent's files."""
        self.isolation.end()
        HERE.detach(forked=True)
        self.endings.abandon()
        self.instruments.uninstall()
        self.control.abandon()
        if self._requests is not None:
            self._requests.abandon()
        self.recording.close()

    # Requests, on the agent's thread ----------------------------------------

    def _health(self, _request: wire.Request, _peer: wire.Peer) -> dict[str, Any]:
        recorder = self.instruments.recorder
        meta = self.recording.meta
        return {
            "pid": meta.pid, "job": meta.job, "run": meta.run, "attempt": meta.attempt, "rank": meta.rank,
            "step": recorder.counted_step, "phase": recorder.phase,
            "uptime_s": (clock.wall_ns() - meta.started_ns) / 1e9,
            "failures": dict(self.isolation.failures), "withheld": dict(self.isolation.withheld),
        }

    def _stacks(self, request: wire.Request, _peer: wire.Peer) -> dict[str, Any]:
        recorder = self.instruments.recorder
        found = capture(
            recorder.thread, recorder.counted_step, recorder.phase, self.instruments.module_path,
            all_threads=request.query.get("all_threads") == "1",
        )
        failed = self.endings.failed_thread()
        if failed is not None:  # the process is held: where it failed, not where it waits
            others = [
                {**thread, "training": False} for thread in found["threads"]
                if thread["thread_id"] != failed["thread_id"] or request.query.get("all_threads") == "1"
            ]
            found["threads"] = [failed, *others]
        self.recording.journal.append({"table": "python.stacks", "rows": journal_rows(found, "request")})
        return found

    def _stop_requested(self, _request: wire.Request, _peer: wire.Peer) -> Callable[[], dict[str, Any]]:
        def leave() -> dict[str, Any]:
            stop()
            return {"stopped": True, "ended": self.ended_actions}

        return leave

    # Notes ------------------------------------------------------------------

    def _round_s(self) -> float:
        """Interval of the rounds; short at first: names are needed as soon as the first model was called."""
        age_s = (clock.wall_ns() - self.recording.meta.started_ns) / 1e9
        named = self.instruments.names.ready
        round_s = _ROUND_S if named or age_s > _EAGER_S else _EAGER_ROUND_S
        sampler = self.instruments.stack_sampler
        return round_s if sampler is None else sampler.round_s(round_s)

    def _whereabouts(self) -> str:
        """Where the training thread is, for a request whose wait for the end of a step timed out."""
        recorder = self.instruments.recorder
        if not self.instruments.installed:
            return "steps are not recorded (PROBE_INSTRUMENTS)"
        taken = capture(
            recorder.thread, recorder.counted_step, recorder.phase, self.instruments.module_path,
            all_threads=False,
        )
        return whereabouts(taken)

    def _scope(self) -> Scope:
        recorder = self.instruments.recorder
        meta = self.recording.meta
        return Scope(
            recorder.thread, self.instruments.seen, self.endings.failed_frames(),
            job=lambda: place_in_job(meta.rank, meta.world_size),
        )

    def _note_failure(self, name: str, text: str) -> None:
        self.recording.journal.append(
            {"event": "failure", "instrument": name, "error": text, "t_ns": clock.wall_ns()}
        )

    def _note_training_thread(self) -> None:
        """Journal the kernel's number of the training thread, for reading the process from outside."""
        ident = self.instruments.recorder.thread
        if ident != self._training_thread:
            self._training_thread = ident
            thread = next((one for one in threading.enumerate() if one.ident == ident), None)
            self.recording.journal.append(
                {
                    "event": "training thread", "ident": ident,
                    "native_id": None if thread is None else native_id(thread),
                    "name": None if thread is None else thread.name,
                }
            )

    def _note_start(self) -> None:
        """Journal the start; called first on the agent's thread."""
        midway = not self.instruments.from_start
        self.recording.journal.append({"event": "start", "t_ns": clock.wall_ns(), "midway": midway})

    def _leave_deleted(self, what: str) -> None:
        """Nobody can read the recording any more: free its memory, on a thread that may wait for this one."""
        say(f"not recording any more: {what}. `probe {self.pid} attach` starts a new recording")
        rings = self.recording.meta.rings

        def leave() -> None:
            stop()
            shutil.rmtree(rings, ignore_errors=True)  # no server knows of them any more

        threading.Thread(target=leave, name="probe-request", daemon=True).start()

    def _ensure_server(self) -> None:
        """Start the server if there is none; a job without one still records. Not after a change of root:
        the server's files would land among the job's."""
        if self._deleted.elsewhere:
            return
        self._tracer = name_tracer(self.directory, self._tracer)
        try:
            launch.ensure_server(self.directory, self.settings, wait_s=0.0)
        except ProbeError as error:  # also a folder that another user's process may not enter
            if not self._server_warned:
                self._server_warned = True
                self.recording.journal.append({"event": "no server", "error": error.message})


@harmless
def start(name: str | None = None) -> None:
    """Start recording in this process. Does nothing if it is on already.

    Imports torch if the program has not done so yet. If recording is not possible, the program continues
    without it and one line on stderr says why."""
    quietly(lambda: _start_here(name), "not recording")


def _start_here(name: str | None) -> None:
    if not (name is None or isinstance(name, str)):
        raise UsageError(f"a job's name is text, not {type(name).__name__}", hint='probe.start("evaluation")')
    import torch  # noqa: F401

    refusal = versions.refusal_here()
    if refusal:
        say(refusal)
        return
    _keep_flight_entries()
    _start(name or "", late=True)


def _start(name: str, *, late: bool, settings: Settings | None = None, midway: bool = False) -> bool:
    """Start an agent unless there is one; returns whether it did. `midway`: the job trains already."""
    global _agent
    _watch_forks()
    with _changing:
        if _agent is not None:
            return False
        agent = Agent(settings or Settings(), name, midway=midway)
        _agent = agent  # set before it starts, so that a child forked during the start removes everything
        try:
            agent.start(late=late)
        except BaseException:
            _agent = None
            raise
        atexit.register(_at_exit)
    return True


def start_from_environment(deferred: bool = False) -> None:
    """Start because of PROBE=1; never raises. `deferred`: only once the process has an optimizer."""
    _keep_flight_entries()
    if deferred:
        quietly(_start_with_first_optimizer, "not recording")
    elif quietly(lambda: _start("", late=False), "not recording"):
        quietly(_greet, "not recording")


def _greet() -> None:
    """Print one line on the terminal, on the first rank of a host; nothing into a pipe or a log."""
    agent = _agent
    if agent is None or agent.identity.local_rank or sys.stderr is None or not sys.stderr.isatty():
        return
    chosen = [name for name in _RECORDED if name in agent.settings.instruments]
    what = ", ".join(chosen) or "snippets and actions"
    say(f"recording {what} of {agent.identity.job} (pid {agent.pid}); `probe ps` shows it")


_RECORDED = ("steps", "losses", "gradients", "modules", "memory")
"""The instruments that the line may name: those that most people look for."""


def _keep_flight_entries() -> None:
    """Set the Flight Recorder's size before the first process group, when torch reads it. A rank made by
    multiprocessing makes its groups before its optimizer, and so before it has an agent."""
    with contextlib.suppress(ProbeError):  # reported when the agent starts
        settings = Settings()
        if "collectives" in settings.instruments:
            keep_entries(settings.flight_entries, os.environ)


def start_attached(environ: Mapping[str, str], *, midway: bool) -> bool:
    """Start because of an attach; returns whether there was no agent before.

    `environ` is the job's with the settings of the user who attached. Raises `ProbeError`, and unexpected
    errors of ours, for the user to see."""
    import torch  # noqa: F401 - waits for the thread that imports it just now

    return _start("", late=True, settings=Settings(environ), midway=midway)


@harmless
def stop() -> None:
    """Stop recording: remove hooks, thread and socket, keep the recording. Does nothing if it is off."""
    global _agent
    with _changing:
        agent, _agent = _agent, None
        if agent is not None:
            atexit.unregister(_at_exit)
            quietly(lambda: agent.stop("stop", wait_s=_STOP_WAIT_S), "stopping")


@harmless
def log(name: str, value: float) -> None:
    """Record a value under a name at the current step (python.scalars). Does nothing if recording is off.

    A value that is not a number, or a name that is not a text, is ignored; one line on stderr reports the
    first."""
    agent = _agent
    if agent is not None:
        agent.isolation.attempt("log", lambda: agent.instruments.recorder.log(name, value), said_at=1)


@harmless
def step() -> None:
    """Mark the end of a step, in a loop without an optimizer. From then on only this counts steps."""
    agent = _agent
    if agent is not None:
        agent.isolation.attempt("step", agent.instruments.recorder.call_step)


def agent_here() -> Agent | None:
    """The agent of this process; None if nothing is recorded."""
    return _agent


def _start_with_first_optimizer() -> None:
    """Start when the first optimizer is made, in children of multiprocessing and Ray's actors: a data worker
    has no optimizer, a rank makes or unpickles one.

    Not at its first step: torch then iterates over its hook tables, which must not change."""
    from torch.optim.optimizer import Optimizer

    patches = Patches()

    def wrap(original: Any) -> Any:
        def begin(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            if patches.live[0]:
                patches.undo()
                quietly(lambda: _start("", late=True), "not recording")

        return begin

    patches.wrap(Optimizer, "__init__", wrap)
    patches.wrap(Optimizer, "__setstate__", wrap)


@functools.cache
def _watch_forks() -> None:
    """Register the fork hook, once per process: it cannot be removed."""
    os.register_at_fork(after_in_child=_in_child)


def _in_child() -> None:
    global _agent, _changing
    _changing = threading.RLock()
    agent, _agent = _agent, None
    if agent is not None:
        quietly(agent.forget, "after fork")


def _at_exit() -> None:
    agent = _agent
    if agent is not None and agent.pid == os.getpid():
        quietly(lambda: agent.endings.at_exit(agent.settings.hold_s), "at exit")
        quietly(lambda: agent.stop("exit", wait_s=_EXIT_WAIT_S), "at exit")

