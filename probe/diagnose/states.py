"""The states of processes and jobs, by their names, and the severities of findings. Standard library only."""

from __future__ import annotations

OK, INFO, NOTICE, ALARM = "ok", "info", "notice", "alarm"
"""`info`: a fact beside others. `notice`: worth knowing, may be as meant. `alarm`: it will not go on by
itself, or hardly, or what comes out of it is worth nothing."""

RUNNING = "running"
SLOW_STEP = "slow step"
EVALUATION = "evaluation"
CHECKPOINT = "checkpoint"
WARM_UP = "warm-up"
IDLE = "idle"
HELD = "held"
PAUSED = "paused"
ACTED_ON = "acted on"
WAITING_FOR_DATA = "waiting for data"
IN_COLLECTIVE = "in a collective"
LOCK_WAIT = "lock wait"
DEADLOCK = "deadlock suspected"
HOLDS_GIL = "holds the GIL"
BLOCKED = "blocked in C"
BUSY = "busy without a step"
STARVED = "starved of CPU"
SWAPPING = "swapping"
STOPPED = "stopped"
TRACED = "traced"
UNINTERRUPTIBLE = "uninterruptible"
ZOMBIE = "zombie"
FINISHED = "finished"
FAILED = "failed"
DEAD = "dead"
UNKNOWN = "unknown"
RUNNING_AGAIN = "running again"
MISSING_RANK = "missing rank"
DEAD_RANK = "dead rank"
OP_MISMATCH = "op mismatch"
SIZE_MISMATCH = "size mismatch"
DTYPE_MISMATCH = "dtype mismatch"
ORDER_MISMATCH = "order mismatch"
STRAGGLER = "straggler"
IMBALANCE = "imbalance"
CAUGHT_UP = "caught up"

STATES: dict[str, str] = {
    RUNNING: "steps come as usual",
    SLOW_STEP: "this step takes longer than usual, and the process works",
    EVALUATION: "no step, and batches arrive",
    CHECKPOINT: "the training thread writes a file of torch's or safetensors'",
    WARM_UP: "the first steps are not done yet",
    IDLE: "waits to be told what to do: input, an event loop, its children, its other threads",
    HELD: "an exception ended its main thread; it waits to be looked at (PROBE_HOLD_S)",
    PAUSED: "probe holds the training between two steps, because somebody asked for it; `resume` ends it",
    ACTED_ON: "an action or a snippet of probe runs on the training thread, between two steps",
    WAITING_FOR_DATA: "the training thread waits for a batch",
    IN_COLLECTIVE: "the training thread waits for other ranks",
    LOCK_WAIT: "the training thread waits for a lock of this process",
    DEADLOCK: "two threads or more wait for locks and none moves",
    HOLDS_GIL: "one thread keeps the GIL inside C, no other Python runs",
    BLOCKED: "the training thread waits inside C with the GIL released",
    BUSY: "it runs and runs, and neither a step nor a batch comes of it",
    STARVED: "it wants to run and does not get the CPU",
    SWAPPING: "its memory is being read back from swap",
    STOPPED: "stopped by a signal (SIGSTOP, Ctrl-Z)",
    TRACED: "held by a debugger",
    UNINTERRUPTIBLE: "the kernel waits for a device or file system on its behalf (D)",
    ZOMBIE: "it has ended and its parent has not asked how",
    FINISHED: "it ended as it should, or its recording was closed",
    FAILED: "an exception ended it or its training, or its exit status is not 0",
    DEAD: "it was killed: by a signal, by the kernel, or nobody knows how",
    UNKNOWN: "it could not be looked at well enough",
    RUNNING_AGAIN: "it went on after a stall",
    MISSING_RANK: "of a job: a rank is not in the collective, or at the send or receive, that others wait in",
    DEAD_RANK: "of a job: a rank died or failed first; what the others did after that follows from it",
    OP_MISMATCH: "of a job: ranks called different collectives at the same place in the sequence of a group",
    SIZE_MISMATCH: "of a job: ranks gave tensors of different sizes to one collective",
    DTYPE_MISMATCH: "of a job: ranks gave tensors of different dtypes to one collective",
    ORDER_MISMATCH: "of a job: ranks called the same collectives in different orders",
    STRAGGLER: "of a job: one rank works longer than the others on every step, and they wait for it",
    IMBALANCE: "of a job: ranks have unequal work, and it is another one that comes last each time",
    CAUGHT_UP: "of a job: a rank that was slower than the others is so no more",
}
"""Every state and what it means."""

JOINS_LATER = frozenset({CHECKPOINT, EVALUATION, SLOW_STEP, WARM_UP, PAUSED, ACTED_ON})
"""States of a rank that will join a collective when it is done, or let go."""
