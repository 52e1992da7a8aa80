"""Stack sampler: samples the stacks of this process's threads at a low rate, for flame graphs of past time.

Runs on the agent's thread, within its usual round: the main cost for the training thread is to hand over the
GIL and to be scheduled again, not the sample itself. `sys._current_frames()` needs the GIL, so a thread is
sampled where it releases the GIL: time in C code that keeps the GIL is attributed to the line after it, and
while no thread releases it there is no sample. The sample after such a gap stands for the whole gap
(`wall_ns`). Only the code of frames is read, never their variables. Writes python.stack_samples, and
python.stack_nodes for each new frame in the tree of stacks. Standard library only.
"""

from __future__ import annotations

import platform
import sys
import threading
import time
from types import CodeType, FrameType

from probe.base import descriptors, package
from probe.base.clock import wall_ns
from probe.job.instruments.core.recorder import Recorder
from probe.job.introspection import python_frames
from probe.job.introspection.thread_stacks import native_id
from probe.recording.layout import NULL_BOOLEAN, NULL_INTEGER, NULL_STRING

DEEPEST = 128
"""Frames kept of a stack, counted from the outermost."""
BUSY_RATIO = 0.1
"""Other threads are recorded if they used this fraction of a core since the last sample, …"""
BESIDE_RATIO, LEAST_RATIO = 0.5, 0.01
"""… or, on an overloaded machine, this fraction of the training thread's CPU time, and of a core."""
MOST_THREADS = 64
"""With more threads than this, only the training thread is sampled: each costs a system call."""
ANEW_S = 3600.0
"""Interval at which the tree is started anew: its nodes are then about as old as the samples that refer to
them, and are deleted with them when disk space runs out."""
MOST_TEXT = 192 << 10
"""Maximum characters of names, in the string table of a megabyte that all instruments share. A program that
creates functions at run time has any number of names; further ones are NULL."""
_GOLDEN_RATIO = 0.6180339887498949
_SLEEPS, _SELECTS = {
    "x86_64": ({"35", "230"}, {"23", "270"}), "aarch64": ({"101", "115"}, {"72"}),
}.get(platform.machine(), (set(), set()))
"""System call numbers of nanosleep and clock_nanosleep; and of select and pselect6, with which Python before
3.11 sleeps, without descriptors."""
_CPU_TIME_OF_A_THREAD = 6
"""CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED of the kernel."""


class StackSampler:
    """Takes samples; the agent's thread calls `collect` in every round."""

    def __init__(self, recorder: Recorder, rate_hz: float) -> None:
        self._recorder = recorder
        self._interval_ns = round(1e9 / rate_hz)
        self.due_ns = 0
        self._append_sample = recorder.rings["python.stack_samples"].append
        nodes = recorder.rings["python.stack_nodes"]
        self._append_node, self._most_nodes = nodes.append, nodes.rows // 2
        self._place = 0.0
        self._sampled_ns = time.monotonic_ns()
        self._cpu_ns: dict[int, int] = {}
        self._texts: set[str] = set()
        self._text = 0
        self._nodes = 0
        """Number of the newest node; numbers are never reused."""
        self._begin_anew()

    def round_s(self, usual_s: float) -> float:
        """The pause before the agent's next round: 0.5 to 1.5 times the usual one, evenly distributed, so
        that samples do not synchronize with a loop. Uses no random generator: it belongs to the job."""
        self._place = (self._place + _GOLDEN_RATIO) % 1.0
        return min(usual_s, self._interval_ns / 1e9) * (0.5 + self._place)

    def collect(self) -> None:
        """Take a sample, if due."""
        now_ns = time.monotonic_ns()
        if now_ns >= self.due_ns:
            late_ns = now_ns - self.due_ns
            self.due_ns = now_ns + self._interval_ns - (late_ns if late_ns < self._interval_ns else 0)
            self._sample(now_ns, wall_ns())

    def _sample(self, now_ns: int, t_ns: int) -> None:
        """Write a row for the training thread, and one for every other busy thread."""
        passed_ns, self._sampled_ns = now_ns - self._sampled_ns, now_ns
        full = self._nodes - self._first_node >= self._most_nodes
        if full or now_ns - self._began_ns > ANEW_S * 1e9:
            self._begin_anew()
        recorder = self._recorder
        step, phase = recorder.step, recorder.intern(recorder.phase)
        threads = {thread.ident: thread for thread in threading.enumerate()}
        used_ns: dict[int, int] = {}
        least_ns = BUSY_RATIO * passed_ns
        # The training thread first: its CPU time sets the threshold for the others.
        for ident, frame in sorted(self._stacks(len(threads)), key=lambda one: one[0] != recorder.thread):
            thread = threads.get(ident)
            number = None if thread is None else native_id(thread)
            spent_ns = None if number is None else self._spent_ns(number, used_ns)
            training = ident == recorder.thread
            if training and spent_ns is not None:
                least_ns = min(least_ns, max(BESIDE_RATIO * spent_ns, LEAST_RATIO * passed_ns))
            if training or (spent_ns or 0) >= least_ns:
                node, innermost = self._node(frame)
                name = self._number(thread.name) if thread is not None else NULL_STRING
                self._append_sample(
                    step, t_ns, phase, name, training, passed_ns,
                    NULL_INTEGER if spent_ns is None else spent_ns, node, innermost,
                    self._asleep(number, frame) if training else NULL_BOOLEAN, self._place_of(frame),
                )
        self._cpu_ns = used_ns

    def _stacks(self, threads: int) -> list[tuple[int, FrameType]]:
        """Ident and innermost frame of the threads to sample."""
        training, own = self._recorder.thread, threading.get_ident()
        return [
            (ident, frame) for ident, frame in sys._current_frames().items()
            if ident == training or (threads <= MOST_THREADS and ident != own)
        ]

    def _spent_ns(self, number: int, used_ns: dict[int, int]) -> int | None:
        """CPU time of a thread since the last sample, by its kernel id; None at first, or if the kernel does
        not report it. Unlike pthread_getcpuclockid, this is safe for a thread that has ended."""
        try:
            now_ns = used_ns[number] = time.clock_gettime_ns(~number << 3 | _CPU_TIME_OF_A_THREAD)
        except OSError:
            return None
        before_ns = self._cpu_ns.get(number)
        return None if before_ns is None or now_ns < before_ns else now_ns - before_ns

    def _asleep(self, number: int | None, frame: FrameType) -> int:
        """Whether a thread sleeps for a fixed time, called from the program's own code; NULL if the kernel
        does not report it."""
        if not _SLEEPS or number is None:
            return NULL_BOOLEAN
        try:
            call = descriptors.read_text(f"/proc/self/task/{number}/syscall").split()
        except OSError:
            return NULL_BOOLEAN
        sleeps = call[:1] and (call[0] in _SLEEPS or (call[0] in _SELECTS and call[1:2] == ["0x0"]))
        return int(bool(sleeps) and python_frames.is_user_code(frame.f_code.co_filename))

    def _place_of(self, frame: FrameType) -> int:
        """Function and line of the innermost frame of the program's own code; NULL without one."""
        for one in python_frames.walk(frame):
            if python_frames.is_user_code(one.f_code.co_filename):
                name = python_frames.code_name(one.f_code)
                return self._number(f"{name} ({_short(one.f_code.co_filename)}:{one.f_lineno})")
        return NULL_STRING

    def _node(self, frame: FrameType) -> tuple[int, int]:
        """The node of a stack, and the name of its innermost frame."""
        codes = [one.f_code for one in python_frames.walk(frame)]
        node, tree = 0, self._tree
        for depth, code in enumerate(reversed(codes[-DEEPEST:])):
            found = tree.get((node, id(code)))
            if found is None:
                self._nodes = found = self._nodes + 1
                tree[node, id(code)] = found
                self._append_node(found, node or NULL_INTEGER, depth, self._name(code))
            node = found
        return node, self._name(codes[0])

    def _name(self, code: CodeType) -> int:
        """String number of `function (file:line)`, with the line at which the function begins."""
        known = self._names.get(id(code))
        if known is None:
            text = f"{python_frames.code_name(code)} ({_short(code.co_filename)}:{code.co_firstlineno})"
            known = self._names[id(code)] = code, self._number(text)
        return known[1]

    def _number(self, text: str) -> int:
        if text not in self._texts:
            if self._text + len(text) > MOST_TEXT:
                return NULL_STRING
            self._texts.add(text)
            self._text += len(text)
        return self._recorder.intern(text)

    def _begin_anew(self) -> None:
        self._tree: dict[tuple[int, int], int] = {}
        """Node, by the caller's node and the code's id."""
        self._names: dict[int, tuple[CodeType, int]] = {}
        """By the code's id, which is not reused while the code is kept here."""
        self._first_node = self._nodes
        self._began_ns = time.monotonic_ns()


def _short(file: str) -> str:
    """Path of a file below site-packages, or else its name."""
    for folder in ("/site-packages/", "/dist-packages/"):
        if folder in file:
            return package.without_detour(file.rpartition(folder)[2])
    return file.rpartition("/")[2]
