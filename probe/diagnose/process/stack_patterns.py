"""Stack patterns: recognize from a Python stack what its thread waits for or does.

Pure functions on frames, innermost first. They match the file names of libraries, which are stable, and the
text of the innermost line for calls without a frame of their own (a lock's `acquire` is C). Standard library
only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import dropwhile

from probe.diagnose.process.evidence import Frame, Thread, Worker
from probe.diagnose.process.kernel_waits import STANDARD_INPUT

Frames = Sequence[Frame]

_DATALOADER = "torch/utils/data/dataloader.py"
_DISTRIBUTED = ("torch/distributed/", "torch/nn/parallel/distributed.py")
_NOT_COLLECTIVE = ("torch/distributed/run.py", "torch/distributed/elastic/", "torch/distributed/launcher/")
_LOGGING = ("c10d_logger.py", "_tools/", "logging_handlers.py")
_BACKWARD = ("torch/autograd/graph.py", "torch/autograd/__init__.py")
_SAVING = ("torch/serialization.py", "safetensors/", "torch/distributed/checkpoint/")
_SAVING_FUNCTION = re.compile(r"save|serialize|write|dump|persistent_id", re.IGNORECASE)
_SYNCING = ("fsync", "fdatasync")
_LOCK_FILES = (
    "threading.py", "queue.py", "multiprocessing/synchronize.py", "multiprocessing/queues.py",
    "concurrent/futures/_base.py",
)
_LOCK_LINE = re.compile(r"^(async )?with\b|\.acquire\(")
_WAIT_LINE = re.compile(r"\.(wait|join|result|get|acquire)\(")
_LOOP_FILES = (
    "asyncio/base_events.py", "socketserver.py", "ipykernel/", "tornado/", "uvicorn/", "http/server.py",
)
_KERNEL_FILES = ("/ipykernel/", "/IPython/core/history.py")
_CHILD_FILES = ("subprocess.py", "multiprocessing/popen_fork.py", "multiprocessing/popen_spawn_posix.py",
                "multiprocessing/connection.py", "multiprocessing/process.py",
                "torch/multiprocessing/spawn.py", "torch/distributed/elastic/")
_CHILD_CALLS = ("wait4", "waitid")
_POOL_WORKERS = ("concurrent/futures/thread.py", "multiprocessing/pool.py", "tqdm/_monitor.py")
_HOLD = "probe/job/agent/endings.py"
_WORKER_LOOP = "torch/utils/data/_utils/worker.py"
_FETCH = "torch/utils/data/_utils/fetch.py"


def innermost(frames: Frames) -> Frame | None:
    """The frame to report: the innermost user frame, else the innermost frame."""
    return next((frame for frame in frames if frame.is_user), frames[0] if frames else None)


def waits_for_data(frames: Frames) -> bool:
    """Whether the stack is inside `next()` of a DataLoader."""
    return any(frame.file.endswith(_DATALOADER) for frame in frames)


def ends_workers(frames: Frames) -> bool:
    """Whether a DataLoader waits for its workers to end: the epoch is over."""
    return any(frame.file.endswith(_DATALOADER) and "_shutdown_workers" in frame.func for frame in frames)


def collective(frames: Frames) -> Frame | None:
    """The call into torch.distributed that the stack is in: the innermost one that is not bookkeeping."""
    for frame in frames:
        inside = any(name in frame.file for name in _DISTRIBUTED)
        if inside and not any(name in frame.file for name in (*_NOT_COLLECTIVE, *_LOGGING)):
            return frame
    return None


def in_backward(frames: Frames) -> bool:
    """Whether the innermost frame is the call into the autograd engine."""
    return bool(frames) and frames[0].file.endswith(_BACKWARD)


def checkpoint(thread: Thread) -> Frame | None:
    """The frame that writes a checkpoint, or that waits for an fsync."""
    for frame in thread.frames:
        if any(name in frame.file for name in _SAVING) and _SAVING_FUNCTION.search(frame.func):
            return frame
    if thread.call in _SYNCING and thread.frames:
        return innermost(thread.frames)
    return None


def lock_wait(thread: Thread) -> bool:
    """Whether it sleeps in a lock, an event, a queue, a future or a join of this process."""
    if not thread.frames or thread.call not in (None, "futex"):
        return False
    first = thread.frames[0]
    if first.file.endswith(_LOCK_FILES):
        return True
    return thread.call == "futex" and first.line is not None and bool(
        _LOCK_LINE.search(first.line) or _WAIT_LINE.search(first.line)
    )


def mutex_wait(thread: Thread) -> bool:
    """Whether it sleeps in a plain lock's `acquire`, not in a condition or queue, which may be signalled."""
    if not lock_wait(thread) or any(frame.file.endswith(_POOL_WORKERS) for frame in thread.frames):
        return False
    first = thread.frames[0]
    if first.file.endswith("threading.py"):
        return "RLock" in first.func and "acquire" in first.func
    return first.line is not None and bool(_LOCK_LINE.search(first.line))


def held(thread: Thread) -> bool:
    """Whether the agent holds the process after an exception."""
    return any(frame.file.endswith(_HOLD) and "at_exit" in frame.func for frame in thread.frames)


def idle(thread: Thread) -> str | None:
    """What an idle thread waits for: input, events of a loop, or at exit other threads; None if not idle."""
    if thread.waits_on == STANDARD_INPUT:
        return "a line on standard input"
    if not thread.frames:
        return "commands (no Python frame)"
    if any(frame.func == "_shutdown" and frame.file.endswith("threading.py") for frame in thread.frames):
        return "its other threads: the main one has ended"
    inner = thread.frames[0].file
    if not inner.endswith("selectors.py") and not any(name in inner for name in _LOOP_FILES):
        return None
    loop = next((frame for frame in thread.frames if any(name in frame.file for name in _LOOP_FILES)), None)
    return None if loop is None else f"events of a loop, {loop}"


def serves_notebook(thread: Thread) -> bool:
    """Whether it is a notebook kernel's own thread (heartbeat, channels, history), without a user frame."""
    inside = any(name in frame.file for frame in thread.frames for name in _KERNEL_FILES)
    return inside and not thread.training and not any(frame.is_user for frame in thread.frames)


def waits_for_children(thread: Thread) -> bool:
    """Whether it waits for child processes."""
    frames = list(dropwhile(lambda frame: frame.file.endswith("selectors.py"), thread.frames))
    return thread.call in _CHILD_CALLS or bool(
        frames and any(name in frames[0].file for name in _CHILD_FILES)
    )


def is_data_worker(worker: Worker) -> bool:
    """Whether it is a worker of a DataLoader."""
    return worker.role == "DataLoader worker" or any(
        frame.file.endswith(_WORKER_LOOP) for frame in worker.frames
    )


def fetching(frames: Frames) -> Frames:
    """The frames inside the dataset or its collate function; empty for a worker without a task."""
    for depth, frame in enumerate(frames):
        if frame.file.endswith(_FETCH):
            return frames[:depth] or frames[: depth + 1]
    return ()
