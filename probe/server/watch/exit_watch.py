"""Exit watch: notices the end of recorded processes, and records how they ended.

Thread `probe-exits` holds a pidfd of each living recorded process and sleeps until one ends. The exit status
comes from the kernel through the pidfd, or from /proc while the process is a zombie. `complete_exit` says how
a process ended, on any thread, and writes nothing. `record_end` writes the end record, then the stacks of a
fatal signal and a verdict; it is called by this thread, and by the sealer before rings are removed. Standard
library, and numpy through the ring reader.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import logging
import os
import select
import struct
import threading
import time
import uuid
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path

from probe.base import clock
from probe.base.errors import RecordingError
from probe.diagnose.finding import Finding
from probe.diagnose.states import DEAD_RANK, NOTICE, OK
from probe.recording import places
from probe.recording.crash import Crash, is_user_path, read_crash, user_frame
from probe.recording.journal import read_journal
from probe.recording.layout import NULL_INTEGER
from probe.recording.process import current_boot_id, life
from probe.recording.reader import open_ring
from probe.server.recordings import end_record, exit_report, server_journal
from probe.server.recordings.end_verdicts import verdict_of_end
from probe.server.recordings.exit_report import OwnReport
from probe.server.recordings.registry import LIVE, Recorded, Registry, Status
from probe.server.runtime import supervision
from probe.server.runtime.supervision import FAILURES, Supervised
from probe.server.watch import job_watch
from probe.server.watch.job_watch import JobWatch
from probe.server.watch.oom import Group, KernelLog, group_of

_log = logging.getLogger("probe.exits")
_GET_INFO = 0xC040FF0B
"""The ioctl PIDFD_GET_INFO of linux/pidfd.h for its first layout, of 64 bytes; since kernel 6.13."""
_INFO_EXIT = 1 << 3
_INFO_BYTES, _EXIT_CODE_AT = 64, 60
_ROUND_S = 1.0
_SCAN_S = 5.0
"""Between scans for new processes; a new control socket is noticed at once."""
_RECENT_S = 4.0
"""The longest time from an OOM kill to the end of the process: freeing tens of gigabytes takes time."""
_IN_CREATE, _IN_NONBLOCK, _IN_CLOEXEC = 0x100, 0o4000, 0o2000000
_MB = 1 << 20
_VERDICTS = "probe.verdicts"


@dataclass
class _Held:
    """A living process: its pidfd and its memory group."""

    recorded: Recorded
    descriptor: int
    group: Group | None


@dataclass
class _Kills:
    """Recent readings of a group's counter, (monotonic seconds, kills), and the kills that are attributed."""

    samples: deque[tuple[float, int]] = field(default_factory=deque)
    explained: list[float] = field(default_factory=list)


class ExitWatch:
    """Watches one registry's processes; `start` and `stop` its thread."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._held: dict[Path, _Held] = {}
        self._kills: dict[Path, _Kills] = {}
        self._lock = threading.RLock()
        """Held only briefly. A verdict takes longer, and a request for a status must not wait for it."""
        self._recording = threading.Lock()
        self._completed: dict[tuple[Path, int], Status] = {}
        """Kept after they are on disk: another thread may have checked the disk just before."""
        self._recorded: set[tuple[Path, int]] = set()
        self._events = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._events.register(self._wake, select.EPOLLIN)
        self._new = _new_sockets(registry.directory / "agents")
        if self._new >= 0:
            self._events.register(self._new, select.EPOLLIN)
        self._log = KernelLog()
        self._jobs = JobWatch(registry)
        self._causes: dict[job_watch.Key, Finding] = {}
        self._stopping = threading.Event()
        self._thread = Supervised("probe-exits", self._run, self._stopping)
        registry.complete_exit = self.complete_exit
        registry.is_held_alive = self.is_held_alive

    def start(self) -> None:
        """Watch all living processes, and start the thread."""
        for recorded in self._registry.live():
            self.hold(recorded)
        self._thread.start()

    def stop(self, wait_s: float) -> None:
        """End the thread within `wait_s`, and close all descriptors."""
        self._stopping.set()
        self._registry.complete_exit = self._registry.is_held_alive = None
        os.eventfd_write(self._wake, 1)
        if not self._thread.stop(wait_s):
            return
        with self._lock:
            for held in self._held.values():
                os.close(held.descriptor)
            self._held.clear()
            self._log.close()
            self._events.close()
            for descriptor in (self._wake, self._new):
                if descriptor >= 0:
                    os.close(descriptor)

    # Watching ---------------------------------------------------------------

    def hold(self, recorded: Recorded) -> None:
        """Watch a living process from now on."""
        with self._lock:
            if recorded.folder in self._held or self._stopping.is_set():
                return
            try:
                descriptor = os.pidfd_open(recorded.meta.pid)
            except OSError:  # it has just ended, or there are no descriptors left
                return
            if not recorded.process_lives:
                os.close(descriptor)
                return
            held = _Held(recorded, descriptor, group_of(recorded.meta.pid))
            self._held[recorded.folder] = held
            if held.group is not None:
                self._sample(held.group, time.monotonic())
            self._events.register(descriptor, select.EPOLLIN)

    def is_held_alive(self, recorded: Recorded) -> bool | None:
        """Whether a process lives, from its pidfd, which costs a fiftieth of reading /proc; None if it is not
        held. Any thread."""
        with self._lock:
            held = self._held.get(recorded.folder)
            if held is None or held.recorded.identity != recorded.identity:
                return None
            poller = select.poll()
            poller.register(held.descriptor, select.POLLIN)
            return not poller.poll(0)

    def _run(self) -> None:
        scan_due = 0.0
        while not self._stopping.is_set():
            try:
                ready = {number for number, _ in self._events.poll(_ROUND_S)}
                if self._stopping.is_set():
                    return
                now = time.monotonic()
                if self._new in ready or now >= scan_due:
                    scan_due = now + (_SCAN_S if self._new >= 0 else _ROUND_S)
                    self._drain_new()
                    self._scan()
                self._handle_ended(ready)
                self._sample_all(now)
            except FAILURES as error:
                supervision.note("probe-exits", error)
                self._stopping.wait(_ROUND_S)

    def _scan(self) -> None:
        """Watch new processes; record ends that no pidfd has reported."""
        found = {recorded.identity: recorded for recorded in self._registry.processes()}
        with self._lock:
            self._recorded &= found.keys()
            self._completed = {one: end for one, end in self._completed.items() if one in found}
        for identity, recorded in found.items():
            if self._registry.lives(recorded):
                self.hold(recorded)
            elif identity not in self._recorded:
                self._try_to_record(recorded)

    def _handle_ended(self, ready: set[int]) -> None:
        with self._lock:
            ended = [held.recorded for held in self._held.values() if held.descriptor in ready]
        for recorded in ended:
            self._registry.status(recorded)  # caches the kernel's exit status, which may go away
            self._release(recorded.folder)
        for recorded in ended:
            self._try_to_record(recorded)

    def _try_to_record(self, recorded: Recorded) -> None:
        try:
            self.record_end(recorded)
        except FAILURES as error:  # a full disk: retried later
            supervision.note("probe-exits", error)

    def _release(self, folder: Path) -> None:
        with self._lock:
            held = self._held.pop(folder, None)
            if held is not None:
                self._events.unregister(held.descriptor)
                os.close(held.descriptor)

    def _drain_new(self) -> None:
        if self._new >= 0:
            with contextlib.suppress(BlockingIOError):
                while os.read(self._new, 1 << 16):
                    pass

    # Out of memory ----------------------------------------------------------

    def _sample_all(self, now: float) -> None:
        with self._lock:
            for held in self._held.values():
                if held.group is not None and held.group.left_by(held.recorded.meta.pid):
                    held.group = group_of(held.recorded.meta.pid) or held.group
            groups = {held.group.folder: held.group for held in self._held.values() if held.group is not None}
            for folder in self._kills.keys() - groups.keys():
                del self._kills[folder]
            for group in groups.values():
                self._sample(group, now)

    def _sample(self, group: Group, now: float) -> _Kills:
        found = self._kills.setdefault(group.folder, _Kills())
        kills = group.kills()
        if kills is not None:
            found.samples.append((now, kills))
        while len(found.samples) > 1 and found.samples[1][0] <= now - _RECENT_S:
            found.samples.popleft()
        found.explained = [at for at in found.explained if at > now - _RECENT_S]
        return found

    def _out_of_memory(self, held: _Held | None, recorded: Recorded) -> list[str]:
        """Evidence that the kernel killed it because of memory; empty without any."""
        meta = recorded.meta
        named: list[str] = []
        if meta.boot_id == current_boot_id() and self._log.names(meta.pid, meta.start_ticks):
            named.append(f"the kernel's log names it: Killed process {meta.pid}")
        if held is None or held.group is None:
            return named
        now = time.monotonic()
        found = self._sample(held.group, now)
        if not found.samples:
            return named
        (since, before), (_, after) = found.samples[0], found.samples[-1]
        if after - before <= len(found.explained):
            return named
        found.explained.append(now)
        return [
            *named,
            f"oom_kill of its cgroup {held.group.folder} rose from {before} to {after} "
            f"within {now - since:.1f} s of its end",
        ]

    # The end of one process -------------------------------------------------

    def complete_exit(self, recorded: Recorded, report: OwnReport, status: Status) -> Status:
        """How a dead process ended. Cached, because the kernel keeps the exit status only for a while; writes
        nothing."""
        with self._lock:
            known = self._completed.get(recorded.identity)
            if known is None:
                known = self._completed[recorded.identity] = self._complete(recorded, report, status)
            return known

    def _complete(self, recorded: Recorded, report: OwnReport, status: Status) -> Status:
        held = self._held.get(recorded.folder)
        exit_status = _exit_status(held, recorded)
        killed = exit_status in (-9, None) and report.end is None
        out_of_memory = self._out_of_memory(held if exit_status else None, recorded) if killed else []
        crash = read_crash(places.crash_file(recorded.folder))
        state, how = exit_report.classify_exit(
            report, exit_status, out_of_memory=bool(out_of_memory),
            crash=None if crash is None else crash.signal, last_step=status.step,
        )
        ended_ns = status.ended_ns if held is None else clock.wall_ns()
        limit_bytes = held.group.limit_bytes() if held is not None and held.group is not None else None
        why = (_seen(exit_status), *out_of_memory, *_memory(recorded, limit_bytes), *_where(report, crash))
        return status._replace(state=state, how=how, exit_status=exit_status, ended_ns=ended_ns, why=why)

    def record_end(self, recorded: Recorded) -> None:
        """Write the end record, the stacks of a fatal signal and a verdict, unless they exist: an earlier
        server may have been killed after any of them. Raises `OSError`."""
        folder, meta = recorded.folder, recorded.meta
        with self._recording:
            if recorded.identity in self._recorded:
                return
            status = self._registry.status(recorded)
            if status.state in LIVE or status.how == exit_report.ENDING:
                self.hold(recorded)
                return
            kept = end_record.is_sealed(folder, meta)
            if not kept:
                end_record.write(folder, meta, status._asdict())
                kept = status.how in exit_report.LIVES_ON or self._write_verdict(recorded, status)
            if kept:
                self._recorded.add(recorded.identity)
            self._release(folder)

    def _write_verdict(self, recorded: Recorded, status: Status) -> bool:
        """Whether the verdict is written, now or before."""
        records = list(read_journal(places.journals(recorded.folder)[1]))
        stacks = server_journal.rows_of(records, "python.stacks")
        capture_ids = [row.get("capture_id") for row in stacks if row.get("reason") == "crash"]
        capture_id = capture_ids[0] if capture_ids else _keep_crash(self._registry, recorded, status)
        # Its time distinguishes it from the verdict that a rank gets while it is exiting.
        if any(row.get("t_ns") == status.ended_ns for row in server_journal.rows_of(records, _VERDICTS)):
            return True
        verdict = self._in_its_job(recorded, verdict_of_end(recorded, status))
        exception = self._registry.own_report(recorded.folder).exception or {}
        capture_id = capture_id or exception.get("capture_id")
        row = verdict.row(status.ended_ns or clock.wall_ns(), status.step, capture_id)
        return server_journal.note_rows(recorded.folder, _VERDICTS, [row])

    def _in_its_job(self, recorded: Recorded, verdict: Finding) -> Finding:
        """The verdict on a rank's end as part of its job: an alarm only for the rank that is the cause. The
        facts are gathered once, when the first rank ends."""
        wanted = job_watch.key(recorded)
        if wanted is None or verdict.severity == OK:
            return verdict
        found = self._causes.get(wanted)
        if found is None:
            try:
                found = self._causes[wanted] = self._jobs.diagnose(wanted, {})
            except FAILURES as error:
                _log.warning("%s: its job was not diagnosed: %s", recorded.folder, error, exc_info=error)
                return verdict
            if found.state != DEAD_RANK:
                self._jobs.note_cause(wanted, found)
        if not found.culprits:
            return verdict
        if recorded.meta.rank in found.culprits and found.state == DEAD_RANK:
            again = job_watch.is_written(recorded, verdict.state)
            severity = NOTICE if again else verdict.severity
            return replace(verdict, severity=severity, why=[*verdict.why, *found.why])
        what = f"{verdict.what}; the cause: {found.what}"
        return replace(verdict, severity=NOTICE, what=what)


def _seen(exit_status: int | None) -> str:
    if exit_status is None:
        return "its exit status was not seen: no server was watching when it ended"
    if exit_status < 0:
        return f"the kernel reports that {exit_report.signal_name(-exit_status)} ended it"
    return f"its exit status is {exit_status}"


def _memory(recorded: Recorded, limit_bytes: int | None) -> list[str]:
    """Its last sample of resident memory, and the limit of its group."""
    try:
        with open_ring(recorded.meta, "process.memory") as ring:
            _, rows = ring.last()
    except (OSError, RecordingError):
        return []
    if not len(rows) or int(rows[-1]["rss_bytes"]) == NULL_INTEGER:
        return []
    text = f"its resident memory was {int(rows[-1]['rss_bytes']) / _MB:,.0f} MB at the last sample"
    limit = "its cgroup has no memory limit that can be seen" if limit_bytes is None else (
        f"the memory limit of its cgroup is {limit_bytes / _MB:,.0f} MB"
    )
    return [f"{text}; {limit}"]


def _where(report: OwnReport, crash: Crash | None) -> list[str]:
    """The innermost frames of the exception or signal that ended it."""
    found = []
    exception = report.exception
    if exception is not None:
        message = str(exception.get("message") or "")
        where = exception.get("where")
        at = f", raised in {where}" if where else ""
        found.append(f"{exception.get('type')} in thread {exception.get('thread_name')}{at}: {message[:500]}")
    if crash is not None:
        for thread in crash.threads:
            frame = user_frame(thread)
            if thread.current and frame is not None:
                inner = thread.frames[0]
                at = f"{inner['func']} ({inner['file']}:{inner['lineno']})"
                if frame is not inner:
                    at += f", called from {frame['func']} ({frame['file']}:{frame['lineno']})"
                found.append(f"{crash.what} in {at}")
    return found


def _keep_crash(registry: Registry, recorded: Recorded, status: Status) -> str | None:
    """Record the stacks of crash.txt as rows of python.stacks; returns the capture's id."""
    crash = read_crash(places.crash_file(recorded.folder))
    if crash is None or not any(thread.frames for thread in crash.threads):
        return None
    training, name = registry.training_ident(recorded)
    threads = [
        {
            "process_id": recorded.meta.pid, "thread_id": None,
            "thread_name": thread.name or (thread.ident == training and name) or f"thread 0x{thread.ident:x}",
            "training": None if training is None else thread.ident == training,
            "frames": [
                {**frame, "frame_type": "Python", "module": None, "is_user": is_user_path(frame["file"])}
                for frame in thread.frames
            ],
        }
        # The thread that crashed comes first: some readers show only the first.
        for thread in sorted(crash.threads, key=lambda thread: not thread.current)
    ]
    capture = {
        "capture_id": uuid.uuid4().hex[:12], "t_ns": status.ended_ns, "step": status.step,
        "phase": None, "threads": threads,
    }
    server_journal.note_capture(recorded.folder, capture, "crash")
    return str(capture["capture_id"])


def _exit_status(held: _Held | None, recorded: Recorded) -> int | None:
    """0 to 255, or the negative number of the signal; None when the kernel no longer has it."""
    for _ in range(2):  # its parent may collect it between the two reads
        code = _from_descriptor(held.descriptor) if held is not None else None
        if code is None:
            code = _from_zombie(recorded)
        if code is not None:
            return exit_report.exit_code(code)
    return None


def _from_descriptor(descriptor: int) -> int | None:
    """Exit code of a process that its parent has collected; kernel 6.15 and later."""
    info = bytearray(_INFO_BYTES)
    struct.pack_into("<Q", info, 0, _INFO_EXIT)
    try:
        fcntl.ioctl(descriptor, _GET_INFO, info)
    except OSError:
        return None
    [mask] = struct.unpack_from("<Q", info, 0)
    if not mask & _INFO_EXIT:
        return None
    code: int = struct.unpack_from("<i", info, _EXIT_CODE_AT)[0]
    return code


def _from_zombie(recorded: Recorded) -> int | None:
    """Exit code of a process that its parent has not collected yet."""
    meta = recorded.meta
    found = life(meta.pid)
    if found is None or found.start_ticks != meta.start_ticks or found.state not in "ZX":
        return None
    try:
        fields = Path(f"/proc/{meta.pid}/stat").read_bytes().rpartition(b")")[2].split()
        # The kernel shows other users a 0 instead.
        return int(fields[49]) if os.getuid() in (found.uid, 0) else None
    except (OSError, IndexError, ValueError):
        return None


def _new_sockets(folder: Path) -> int:
    """An inotify descriptor that is readable when a file is created in `folder`; -1 if there is none."""
    libc = ctypes.CDLL(None, use_errno=True)
    with contextlib.suppress(RecordingError, AttributeError):
        places.make_private(folder)
        descriptor: int = libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC)
        if descriptor >= 0:
            if libc.inotify_add_watch(descriptor, os.fsencode(folder), _IN_CREATE) >= 0:
                return descriptor
            os.close(descriptor)
    return -1
