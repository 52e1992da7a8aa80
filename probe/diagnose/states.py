"""The states of processes and jobs, and the severities of findings. Standard library only."""

from __future__ import annotations

OK, INFO, NOTICE, ALARM = "ok", "info", "notice", "alarm"
"""`info`: context only. `notice`: worth knowing, may be intended. `alarm`: the run is unlikely to recover by
itself, or its results are useless."""

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
RETRYING = "retrying"
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
    RUNNING: "steps finish as usual",
    SLOW_STEP: "the step takes longer than usual, but the process is working",
    EVALUATION: "an evaluation, prediction or similar runs: batches arrive, but no steps finish",
    CHECKPOINT: "the training thread writes a checkpoint (torch or safetensors)",
    WARM_UP: "the first steps have not finished yet",
    IDLE: "waits for input, an event loop, its children or its other threads",
    HELD: "held for inspection after an exception in its main thread (PROBE_HOLD_S)",
    PAUSED: "`pause` holds training between two steps; `resume` continues it",
    ACTED_ON: "an action or a snippet runs on the training thread, between two steps",
    WAITING_FOR_DATA: "the training thread waits for a batch",
    IN_COLLECTIVE: "the training thread waits for other ranks",
    LOCK_WAIT: "the training thread waits for a lock of this process",
    DEADLOCK: "two or more threads each wait for a lock, and none makes progress",
    HOLDS_GIL: "one thread holds the GIL in C code, so no other Python code runs",
    BLOCKED: "the training thread waits in C code with the GIL released",
    BUSY: (
        "the training thread keeps running in one function, and no step or batch ends: an endless loop, or "
        "long work"
    ),
    RETRYING: "the training thread catches the same exception repeatedly, and no step or batch ends",
    STARVED: "the training thread is ready to run but gets no CPU",
    SWAPPING: "the process is paging in from swap",
    STOPPED: "stopped by a signal (SIGSTOP, Ctrl-Z)",
    TRACED: "stopped by a debugger",
    UNINTERRUPTIBLE: "the process waits in the kernel for a device or file system (D state)",
    ZOMBIE: "it has ended, but its parent has not collected its exit status",
    FINISHED: "it ended normally, or its recording was closed",
    FAILED: "an exception ended it or its training, or its exit status was not 0",
    DEAD: "it was killed by a signal or the kernel, or ended for an unknown reason",
    UNKNOWN: "there is not enough evidence to tell",
    RUNNING_AGAIN: "it continued after a stall",
    MISSING_RANK: "of a job: a rank has not entered the collective, send or receive that others wait in",
    DEAD_RANK: "of a job: a rank died or failed first, and the others failed or hung because of it",
    OP_MISMATCH: "of a job: ranks called different collectives at the same sequence number of a group",
    SIZE_MISMATCH: "of a job: ranks passed tensors of different sizes to the same collective",
    DTYPE_MISMATCH: "of a job: ranks passed tensors of different dtypes to the same collective",
    ORDER_MISMATCH: "of a job: ranks called the same collectives in different orders",
    STRAGGLER: "of a job: one rank takes longer than the others on every step, and they wait for it",
    IMBALANCE: "of a job: the ranks have unequal work, and a different rank is last each time",
    CAUGHT_UP: "of a job: a slow rank has caught up with the others",
}
"""Every state and its meaning."""

HELD_UP = frozenset({
    STOPPED, TRACED, HOLDS_GIL, WAITING_FOR_DATA, CHECKPOINT, EVALUATION, PAUSED, ACTED_ON, DEADLOCK,
    SWAPPING, STARVED, UNINTERRUPTIBLE, HELD, RETRYING,
})
"""States of a rank that is delayed by its own activity and not waiting for others."""
STALLS = frozenset({
    DEADLOCK, LOCK_WAIT, HOLDS_GIL, BLOCKED, BUSY, RETRYING, UNINTERRUPTIBLE, WAITING_FOR_DATA, IN_COLLECTIVE,
    STOPPED, TRACED, UNKNOWN, MISSING_RANK, DEAD_RANK, OP_MISMATCH, SIZE_MISMATCH, DTYPE_MISMATCH,
    ORDER_MISMATCH,
})
"""States in which an alarm means that no further step is expected; a starved or saving job still advances."""
JOINS_LATER = frozenset({CHECKPOINT, EVALUATION, SLOW_STEP, BUSY, WARM_UP, PAUSED, ACTED_ON})
"""States of a rank that joins the collective once it is done or resumed, unless they are an alarm."""
