"""Reads Python stacks of another process with the program py-spy.

py-spy runs in its own session with a time limit. It seizes the threads with ptrace until it ends; with
`nonblocking` it only reads memory, which also works on a process that is stopped, traced or stuck in the
kernel. Runs in the command and in the server, on any thread. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from probe.base.errors import StacksUnavailable
from probe.outside.processes import tasks
from probe.outside.processes.tasks import Task

ATTEMPTS = 3
"""How often to read without stopping the process: it keeps running, so a read may be torn."""
BLOCKING_S = 2.0
"""Limit of a read that stops the process; then one without stopping is tried. 16 times the slowest seen."""
_TERMINATE_S = 1.0
_ROOTS = frozenset({"<module>", "_bootstrap", "_run_module_as_main"})


class ReadFailed(Exception):
    """py-spy ran but returned no stacks; the message is its output."""


def program() -> str:
    """Path of the py-spy program. Raises `StacksUnavailable` when there is none."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    if os.access(beside, os.X_OK):
        return beside
    import shutil  # rarely needed, and not free
    import sysconfig

    found = shutil.which("py-spy", path=sysconfig.get_path("scripts")) or shutil.which("py-spy")
    if found is None:
        raise StacksUnavailable(
            "py-spy, which reads stacks from outside, is not installed for this Python",
            hint=f"Install it: {sys.executable} -m pip install 'py-spy>=0.4.2'.",
        )
    return found


def read(
    pid: int, *, nonblocking: bool, was_stopped: bool, timeout_s: float, locals: bool = False
) -> tuple[list[dict[str, Any]], list[str]]:
    """The threads as in py-spy's JSON (frames innermost first), and notes on the read.

    If a read that stops the process fails, reads without stopping follow. A torn one (a thread's outermost
    frame is not where threads begin) is repeated: with Python 3.10 every eighth is torn while the process
    computes; with 3.11 and later none of 450 was. A process that `was_stopped` before is never continued.
    Raises `ReadFailed` with py-spy's last error, `StacksUnavailable` when py-spy is not installed.
    """
    tool = program()
    deadline = time.monotonic() + timeout_s
    notes: list[str] = []
    found: list[dict[str, Any]] = []
    odd: list[Any] = []
    said = "no time was left"
    for quiet in [True] * ATTEMPTS if nonblocking else [False, *[True] * ATTEMPTS]:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            break
        limit_s = left_s if quiet else min(BLOCKING_S, left_s / 2)
        try:
            found = _dump(pid, _words(tool, pid, quiet, locals), limit_s, was_stopped, notes)
        except ReadFailed as error:
            said = str(error)
            if tasks.name_of(pid) is None:
                break
            if not quiet:
                notes.append(f"py-spy could not stop and read it ({said}); read without stopping")
            continue
        strange = _strange(found)
        if not quiet or not strange:
            return found, notes
        odd.append(strange)
    if not odd:
        raise ReadFailed(said)
    # A thread started by C++ may begin anywhere. Two torn reads were equal by chance in 2 of 1200 (3.10).
    if len(odd) == ATTEMPTS and all(strange == odd[0] for strange in odd):
        return found, notes
    return found, [*notes, "a stack may be torn: the process was running while it was read"]


def _strange(threads: list[dict[str, Any]]) -> list[Any]:
    """The stacks whose outermost frame does not belong to a program or a `threading.Thread`."""
    stacks = [
        [thread["thread_id"], *((frame["name"], frame["line"]) for frame in thread["frames"])]
        for thread in threads
        if thread["frames"]
    ]
    return [stack for stack in stacks if stack[-1][0].rpartition(".")[2] not in _ROOTS]


def _words(tool: str, pid: int, nonblocking: bool, locals: bool) -> list[str]:
    words = [tool, "dump", "--pid", str(pid), "--json", "--full-filenames"]
    return words + ["--nonblocking"] * nonblocking + ["--locals"] * locals


def _dump(
    pid: int, words: list[str], limit_s: float, was_stopped: bool, notes: list[str]
) -> list[dict[str, Any]]:
    code, out, said = run(words, limit_s, pid, was_stopped, notes)
    if code is None:
        raise ReadFailed(f"no answer within {limit_s:.1f} s")
    if code != 0:
        raise ReadFailed(first_words(said))
    try:
        found = json.loads(out)
    except ValueError:
        raise ReadFailed("its output is not JSON") from None
    if not isinstance(found, list) or not found:
        raise ReadFailed("it found no Python thread")
    return found


def run(
    words: list[str], limit_s: float, pid: int, was_stopped: bool, notes: list[str],
    more: Mapping[str, str] | None = None,
) -> tuple[int | None, bytes, str]:
    """Run a tool on `pid` in its own session: exit code (None at the time limit), stdout, stderr.

    At the limit the tool gets SIGTERM, and SIGKILL a second later. If it was killed and left the process
    stopped, the process is continued, unless it `was_stopped` before; a note says so. `more` is added to
    the tool's environment; PROBE is removed, so that the tool has no agent."""
    environ = {name: value for name, value in os.environ.items() if name != "PROBE"}
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**environ, "RUST_BACKTRACE": "0", **(more or {})}, start_new_session=True,
    ) as process:
        try:
            code, out, said = _finish(process, limit_s)
        except BaseException:  # Ctrl-C, which does not reach the tool
            process.kill()
            process.wait()
            continue_if_left_stopped(pid, was_stopped)
            raise
    if code is None or code < 0:
        note = continue_if_left_stopped(pid, was_stopped)
        notes += [note] if note else []
    return code, out, said


def _finish(process: subprocess.Popen[bytes], limit_s: float) -> tuple[int | None, bytes, str]:
    try:
        out, said = process.communicate(timeout=limit_s)
        return process.returncode, out, said.decode(errors="replace")
    except subprocess.TimeoutExpired:
        process.terminate()
    try:
        process.communicate(timeout=_TERMINATE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
    return None, b"", ""


def continue_if_left_stopped(pid: int, was_stopped: bool) -> str | None:
    """Continue a process that a tool left stopped; returns a note if it did.

    SIGCONT is sent only when a stop is in force or pending, was not before, and nobody traces the process:
    the job may have a handler for the signal."""
    if was_stopped or tasks.tracer(pid) or not tasks.stop_pending(pid):
        return None
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGCONT)
    return "the tool left the process stopped; it was continued (SIGCONT)"


def native_ids(
    pid: int, threads: list[dict[str, Any]], kernel: Mapping[int, Task]
) -> list[int | None]:
    """The kernel's thread id of each thread; None where it is unknown, or the thread is another process's.

    The process knows its threads by the ids of its own pid namespace. Before Python 3.11 py-spy reads no
    ids without stopping the process; glibc keeps them in the thread's descriptor, to which `thread_id`
    points. An id counts only if it belongs to exactly one thread of this process."""
    outer = {task.inner_tid: task.tid for task in kernel.values()}
    inner = [thread.get("os_thread_id") for thread in threads]
    if None in inner:
        with contextlib.suppress(OSError), Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
            for place, thread in enumerate(threads):
                if inner[place] is None:
                    inner[place] = _descriptor_tid(memory, thread["thread_id"], outer)
    # The ids that py-spy finds itself (stopping, before 3.11) are those of this process's namespace.
    found = [outer.get(number or 0) or (number if number in kernel else None) for number in inner]
    for place, thread in enumerate(threads):
        if inner[place] is None and thread.get("thread_name") == "MainThread":
            found[place] = pid
    return [number if found.count(number) == 1 else None for number in found]


_TID_OFFSETS = (0x2D0, 0xD0)
"""Offset of `tid` in glibc's `struct pthread`: x86-64, aarch64."""


def _descriptor_tid(memory: Any, address: int, tids: Container[int]) -> int | None:
    for offset in _TID_OFFSETS:
        try:
            memory.seek(address + offset)
            number = int.from_bytes(memory.read(4), sys.byteorder)
        except (OSError, ValueError, OverflowError):
            continue
        if number in tids:
            return number
    return None


def first_words(said: str) -> str:
    """The error without its backtrace, with the innermost cause."""
    lines = [line.strip() for line in said.partition("Stack backtrace")[0].splitlines() if line.strip()]
    if not lines:
        return "no output"
    first = lines[0].removeprefix("Error: ")
    cause = lines[-1].partition(": ")[2] if len(lines) > 1 and lines[-1][:1].isdigit() else ""
    return f"{first} ({cause})" if cause and cause not in first else first
