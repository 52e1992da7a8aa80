"""Every table of probe: columns, types, units, meaning and an example query.

Ring layouts, Parquet schemas, views, `docs/tables.md` and `probe tables` all
derive from `TABLES`. A table's `source` says where its rows come from:

- ``ring``: fixed-width rows written by the training process into a ring; the
  stored columns are the struct fields, in this order.
- ``journal``: rare rows, written as JSON records.
- ``live``: asked from the process, or computed, when a query names the table.

`COMMON` columns are added to every table when it is read. NULL means not
measured. Standard library only; any thread may import it.
"""

from __future__ import annotations

from typing import NamedTuple


class Column(NamedTuple):
    """One column. `type` is the SQL type; `unit` is empty for plain values."""

    name: str
    type: str
    unit: str
    doc: str


class Table(NamedTuple):
    """One table. `rows` is the ring's capacity at the default size (0: not a ring).

    `pending` names the column that says `pending` until the row is complete.
    `hidden` is a condition on rows that are bookkeeping and never shown.
    `sealed` says whether the rows are kept in Parquet segments.
    """

    schema: str
    name: str
    doc: str
    source: str
    columns: tuple[Column, ...]
    example: str
    rows: int = 0
    pending: str = ""
    hidden: str = ""
    sealed: bool = True

    @property
    def full_name(self) -> str:
        """`schema.name`, as SQL writes it."""
        return f"{self.schema}.{self.name}"


COMMON: tuple[Column, ...] = (
    Column("rank", "BIGINT", "", "rank of the process in its job; 0 when the job has one process"),
    Column("run", "VARCHAR", "", "name of the run the row belongs to"),
    Column("attempt", "BIGINT", "", "restart count of the run, from 0"),
    Column("pid", "BIGINT", "", "process id of the training process"),
)

_STEP = Column("step", "BIGINT", "", "optimizer step the row belongs to, counted from 0 since recording began; NULL when no step is counted")
_MICRO = Column("micro_step", "BIGINT", "", "backward calls finished before it within the step (gradient accumulation), from 0")
_T_NS = Column("t_ns", "BIGINT", "ns", "wall time, nanoseconds since 1970, from the monotonic clock")

TABLES: tuple[Table, ...] = (
    Table(
        "python", "steps", "optimizer step, written when it ends", "ring",
        (
            Column("step", "BIGINT", "", "number of the step, from 0 since recording began"),
            Column("boundary", "VARCHAR", "", "what ended the step: `optimizer`, `batch` (a loop that never made an optimizer) or `call` (`probe.step()`)"),
            Column("micro_steps", "BIGINT", "", "backward calls in the step"),
            Column("t_ns", "BIGINT", "ns", "wall time of the step's end, nanoseconds since 1970"),
            Column("wall_s", "DOUBLE", "s", "from the end of the step before to the end of this one; for the first, from the first event seen"),
            Column("data_s", "DOUBLE", "s", "waiting for the DataLoader; NULL when no DataLoader was used in the step"),
            Column("forward_s", "DOUBLE", "s", "from the first module call of each micro step to its backward: forward and loss; NULL when that call could not be seen"),
            Column("backward_s", "DOUBLE", "s", "inside backward; NULL without one"),
            Column("optimizer_s", "DOUBLE", "s", "inside optimizer.step(), all optimizers; an LBFGS step contains its closures' forward and backward, which are then not counted here"),
            Column("comm_s", "DOUBLE", "s", "the training thread inside collectives, sends and receives that Python called, and waiting for them; taken out of the phase it fell into, so that all phases add up; NULL when none was called. What DistributedDataParallel does inside backward is in backward_s"),
            Column("held_s", "DOUBLE", "s", "time that snippets, actions or a pause held the training thread; part of wall_s and of no phase; NULL when nobody did"),
            Column("other_s", "DOUBLE", "s", "the rest of wall_s: logging, clipping, zero_grad, evaluation, checkpoints, and data made without a DataLoader; NULL on shadow steps, where forward could not be told from it"),
            Column("loss", "DOUBLE", "", "mean of the losses given to backward in the step (scaling by a GradScaler removed); NULL when none was a scalar or none could be read yet"),
            Column("grad_norm", "DOUBLE", "", "L2 norm of all gradients together before clipping, scaling by a GradScaler removed: as the job's own `clip_grad_norm_` computed it, else as measured by probe on sampled steps; NULL otherwise"),
            Column("lr", "DOUBLE", "", "learning rate of the leading optimizer's first group, as used by this step"),
            Column("loss_scale", "DOUBLE", "", "factor of the GradScaler at this step; NULL without one, or when it lives on a device"),
            Column("skipped", "BOOLEAN", "", "true when the GradScaler skipped the update because of non-finite gradients"),
            Column("training_mode", "BOOLEAN", "", "`training` of the module that was called first in the step: false when the model trains in eval mode; NULL when that call was not seen"),
            Column("stale_gradients", "BOOLEAN", "", "true when gradients of the step before were still there as the first backward of this one began: zero_grad was forgotten; NULL when not looked at"),
            Column("samples", "BIGINT", "", "samples in the batches fetched: first dimension of the first tensor; NULL when not known"),
            Column("tokens", "BIGINT", "", "elements of the first 2-D integer tensor of each batch; NULL when there is none"),
            Column("rss_bytes", "BIGINT", "bytes", "resident memory of the process at the last sample before the step's end"),
            Column("allocated_bytes", "BIGINT", "bytes", "device memory held by tensors at the last sample; NULL without a device"),
            Column("reserved_bytes", "BIGINT", "bytes", "device memory held by the allocator at the last sample; NULL without a device"),
            Column("peak_allocated_bytes", "BIGINT", "bytes", "highest allocated_bytes since the process started; NULL without a device"),
            Column("sampled", "BOOLEAN", "", "true when modules were recorded on this step"),
            Column("shadow", "BOOLEAN", "", "true when timing was off on this step: to measure what it costs, or to stay inside the budget where steps are short"),
            Column("probe_ns", "BIGINT", "ns", "time spent in probe's own code on the training thread during the step, by its own clock"),
        ),
        "SELECT step, wall_s, data_s, forward_s, backward_s, optimizer_s, other_s, loss FROM python.steps ORDER BY step DESC LIMIT 10",
        rows=8192,
    ),
    Table(
        "python", "losses", "backward call that started from a scalar", "ring",
        (
            _STEP, _MICRO, _T_NS,
            Column("loss", "DOUBLE", "", "value backward was called on, scaling by a GradScaler removed; NaN and infinities are kept as they are"),
            Column("finite", "BOOLEAN", "", "false for NaN and infinities"),
        ),
        "SELECT step, micro_step, loss FROM python.losses WHERE NOT finite ORDER BY step LIMIT 5",
        rows=16384,
    ),
    Table(
        "python", "torch_trace", "module call on a sampled step", "ring",
        (
            _STEP, _MICRO,
            Column("seq", "BIGINT", "", "order within the recording; grows with each row"),
            Column("module", "VARCHAR", "", "path of the module in its root, as `named_modules()` gives it, or the class of the root; the optimizer's class for stage `step`"),
            Column("stage", "VARCHAR", "", "`forward`, `backward` or `step`"),
            Column("allocated", "DOUBLE", "MB", "device memory held by tensors after the call; on a CPU the process's resident memory"),
            Column("max_allocated", "DOUBLE", "MB", "highest `allocated` so far, from the same source"),
            Column("cached", "DOUBLE", "MB", "device memory held by the allocator; NULL on a CPU"),
            Column("max_cached", "DOUBLE", "MB", "highest `cached` so far; NULL on a CPU"),
            Column("time_offset", "DOUBLE", "s", "start of the call after the step's start"),
            Column("duration", "DOUBLE", "s", "length of the call; device time where the module ran on a device. For backward: from the gradient of the module's output to that of its input, or to the end of backward when its input needs no gradient. NULL when the call did not finish"),
            Column("recompute", "BOOLEAN", "", "true for the second forward of an activation checkpoint"),
            _T_NS,
        ),
        "SELECT module, stage, COUNT(*), AVG(duration), SUM(duration) AS total FROM python.torch_trace WHERE step > (SELECT MAX(step) - 5 FROM python.torch_trace) GROUP BY ALL ORDER BY total DESC LIMIT 10",
        rows=32768,
    ),
    Table(
        "python", "batches", "batch asked from a DataLoader, written before the wait", "ring",
        (
            _STEP, _MICRO, _T_NS,
            Column("loader", "VARCHAR", "", "the DataLoader: class of its dataset and a number"),
            Column("fetch_s", "DOUBLE", "s", "time the training loop waited for it; NULL while it waits"),
            Column("samples", "BIGINT", "", "first dimension of the first tensor; NULL when there is none"),
            Column("tokens", "BIGINT", "", "elements of the first 2-D integer tensor; NULL when there is none"),
            Column("shapes", "VARCHAR", "", "shapes of the tensors in the batch, in order"),
            Column("dtypes", "VARCHAR", "", "dtypes of the tensors in the batch, in order"),
            Column("state", "VARCHAR", "", "`pending`, `done` or `failed` (the loader raised)"),
        ),
        "SELECT loader, COUNT(*), AVG(fetch_s), MAX(fetch_s) FROM python.batches GROUP BY ALL",
        rows=8192, pending="state", hidden="state = 'exhausted'",
    ),
    Table(
        "python", "scalars", "value logged with `probe.log`, or by the job's own TensorBoard, W&B and MLflow calls", "ring",
        (
            _STEP, _T_NS,
            Column("name", "VARCHAR", "", "name it was logged under"),
            Column("value", "DOUBLE", "", "the value"),
            Column("logged_step", "BIGINT", "", "the step that the job's own call named; NULL when it named none"),
            Column("source", "VARCHAR", "", "who logged it: `probe`, `tensorboard`, `wandb` or `mlflow`"),
        ),
        "SELECT step, value FROM python.scalars WHERE name = 'accuracy' ORDER BY step DESC LIMIT 10",
        rows=8192,
    ),
    Table(
        "python", "pulse", "change of what the training thread is doing; only the last few are kept", "ring",
        (
            _STEP, _MICRO, _T_NS,
            Column("phase", "VARCHAR", "", "`forward`, `backward`, `optimizer` or `other`: what began at t_ns. Waiting for data is a row of python.batches with state `pending`"),
        ),
        "SELECT step, phase FROM python.pulse ORDER BY t_ns DESC LIMIT 1",
        rows=256, sealed=False,
    ),
    Table(
        "process", "memory", "sample of the process's memory", "ring",
        (
            _STEP, _T_NS,
            Column("rss_bytes", "BIGINT", "bytes", "resident memory"),
            Column("rss_peak_bytes", "BIGINT", "bytes", "highest resident memory since the process started"),
            Column("allocated_bytes", "BIGINT", "bytes", "device memory held by tensors; NULL without a device"),
            Column("reserved_bytes", "BIGINT", "bytes", "device memory held by the allocator; NULL without a device"),
            Column("peak_allocated_bytes", "BIGINT", "bytes", "highest allocated_bytes; NULL without a device"),
            Column("threads", "BIGINT", "", "threads of the process"),
            Column("available_bytes", "BIGINT", "bytes", "host memory that the process could still get: what is free or can be freed, or what its control group has left when that is less; NULL when it cannot be read"),
            Column("limit_bytes", "BIGINT", "bytes", "host memory in all, or the limit of its control group when that is less"),
            Column("device_total_bytes", "BIGINT", "bytes", "memory of the device in all; NULL without a device"),
        ),
        "SELECT t_ns, rss_bytes / 1048576 AS rss_mb FROM process.memory ORDER BY t_ns DESC LIMIT 10",
        rows=4096,
    ),
    Table(
        "probe", "overhead", "look of the governor at what recording costs", "ring",
        (
            _STEP, _T_NS,
            Column("instrument", "VARCHAR", "", "`steps` (everything recorded on every step), `modules` (sampled steps) or `gradients` (sampled steps, with the norms of whole steps)"),
            Column("cost_ns", "DOUBLE", "ns", "cost per step, spread over all steps: for `steps` by its own clock, for `modules` the time a sampled step takes longer than its neighbours"),
            Column("wall_ns", "DOUBLE", "ns", "usual step: median of the plain steps looked at"),
            Column("shadow_wall_ns", "DOUBLE", "ns", "median of the shadow steps, with timing off; NULL when there was none"),
            Column("budget_ratio", "DOUBLE", "ratio", "share of step time that recording may cost"),
            Column("interval_steps", "BIGINT", "steps", "for `modules` and `gradients`: recorded on every so many steps; for `steps`: phases are timed on every so many. NULL when never"),
            Column("action", "VARCHAR", "", "what the governor did: `kept`, `lengthened`, `shortened` or `off`"),
        ),
        "SELECT instrument, cost_ns / wall_ns AS cost_ratio, interval_steps, action FROM probe.overhead ORDER BY t_ns DESC LIMIT 2",
        rows=1024,
    ),
    Table(
        "python", "backtrace", "frame of the training thread, captured when a query names the table", "live",
        (
            Column("depth", "BIGINT", "", "0 is the innermost frame"),
            Column("func", "VARCHAR", "", "qualified name of the function"),
            Column("file", "VARCHAR", "", "file it is in"),
            Column("lineno", "BIGINT", "", "line it is at"),
            Column("frame_type", "VARCHAR", "", "`Python`; `Native` frames need a look from outside"),
            Column("module", "VARCHAR", "", "path of the module when the frame is a module's forward, else NULL"),
            Column("is_user", "BOOLEAN", "", "true for the user's own code, false for libraries"),
            _STEP,
            Column("phase", "VARCHAR", "", "what the training thread was doing, as in python.pulse"),
        ),
        "SELECT depth, func, file, lineno FROM python.backtrace ORDER BY depth LIMIT 10",
    ),
    Table(
        "python", "stacks", "frame of a thread in a capture that is kept", "journal",
        (
            Column("capture_id", "VARCHAR", "", "names the capture"),
            _T_NS,
            Column("reason", "VARCHAR", "", "`request` (somebody asked the process), `external` (somebody asked, and it was read from outside), `stall` (no step came), `exception` (it reached the top), `crash` (a fatal signal), `exit` (`os._exit`)"),
            Column("process_id", "BIGINT", "", "process the thread belongs to: that of a DataLoader worker differs from pid"),
            Column("thread_id", "BIGINT", "", "native thread id; NULL when only the interpreter's own number is known"),
            Column("thread_name", "VARCHAR", "", "name of the thread"),
            Column("state", "VARCHAR", "", "what the kernel says of the thread: `running`, `sleeping`, `uninterruptible`, `stopped`, …; NULL when not looked at from outside"),
            Column("owns_gil", "BOOLEAN", "", "whether the thread held the GIL; NULL when not looked at from outside"),
            Column("moving", "BOOLEAN", "", "whether its frames changed between the looks of the capture; NULL when there was one look"),
            Column("depth", "BIGINT", "", "0 is the innermost frame"),
            Column("func", "VARCHAR", "", "qualified name of the function"),
            Column("file", "VARCHAR", "", "file it is in"),
            Column("lineno", "BIGINT", "", "line it is at"),
            Column("frame_type", "VARCHAR", "", "`Python` or `Native`"),
            Column("module", "VARCHAR", "", "path of the module when the frame is a module's forward; NULL from outside"),
            Column("is_user", "BOOLEAN", "", "true for the user's own code"),
            Column("training", "BOOLEAN", "", "true for the thread that trains"),
            _STEP,
            Column("phase", "VARCHAR", "", "what the training thread was doing"),
        ),
        "SELECT capture_id, reason, thread_name, func, lineno FROM python.stacks WHERE depth = 0",
    ),
    Table(
        "python", "exceptions", "exception that reached the top of a thread", "journal",
        (
            _T_NS, _STEP,
            Column("type", "VARCHAR", "", "class of the exception"),
            Column("message", "VARCHAR", "", "its text, at most 4,000 characters"),
            Column("thread_name", "VARCHAR", "", "thread it ended"),
            Column("training", "BOOLEAN", "", "true for the thread that trains"),
            Column("capture_id", "VARCHAR", "", "its frames in python.stacks, depth 0 being the one that raised"),
        ),
        "SELECT step, type, message FROM python.exceptions ORDER BY t_ns DESC LIMIT 1",
    ),
    Table(
        "probe", "verdicts", "verdict on a process: when it stalled, when it went on, how it ended, and what recipes found while it ran", "journal",
        (
            _T_NS, _STEP,
            Column("state", "VARCHAR", "", "name of the verdict, as `diagnose` prints it"),
            Column("severity", "VARCHAR", "", "`ok`, `info`, `notice` or `alarm`"),
            Column("what", "VARCHAR", "", "what is wrong"),
            Column("why", "VARCHAR", "", "the evidence, a line each"),
            Column("next", "VARCHAR", "", "what to do next, a line each"),
            Column("capture_id", "VARCHAR", "", "stacks that belong to it in python.stacks; NULL without"),
            Column("recipe", "VARCHAR", "", "recipe that found it; NULL for what the watch saw by itself"),
            Column("incident", "VARCHAR", "", "names the incident it belongs to, from its first verdict to the one that says it is over; NULL for what the watch saw"),
        ),
        "SELECT t_ns, state, what, why FROM probe.verdicts ORDER BY t_ns DESC LIMIT 5",
    ),
    Table(
        "probe", "evals", "snippet given to `eval`; written before it runs and again when it ends", "journal",
        (
            Column("eval_id", "VARCHAR", "", "names the snippet's run"),
            _T_NS, _STEP,
            Column("caller_uid", "BIGINT", "", "user id of who asked"),
            Column("caller_pid", "BIGINT", "", "process id of who asked; NULL when asked over TCP"),
            Column("caller_role", "VARCHAR", "", "`owner` (over the unix socket) or `operator` (over TCP, with a token)"),
            Column("code", "VARCHAR", "", "the snippet"),
            Column("class", "VARCHAR", "", "what the guard took it for: `reading`, `blocking`, `changing`, `collective` or `refused`"),
            Column("place", "VARCHAR", "", "where it ran: `at once` (on a thread of its own) or `step boundary` (on the training thread); NULL when it did not run"),
            Column("outcome", "VARCHAR", "", "`started`, then one more row with `ok`, `raised`, `timeout`, `refused` or `cancelled` (never begun: no step ended in time, or an earlier snippet did not end)"),
            Column("duration_s", "DOUBLE", "s", "how long it ran; NULL in the row written before"),
            Column("held_s", "DOUBLE", "s", "how long the training thread was held for it; NULL when it was not"),
        ),
        "SELECT t_ns, code, class, outcome FROM probe.evals ORDER BY t_ns DESC LIMIT 10",
    ),
    Table(
        "probe", "actions", "change of state of an action on the job: written before it is done and after", "journal",
        (
            Column("action_id", "VARCHAR", "", "names the action; what `undo` takes"),
            _T_NS, _STEP,
            Column("action", "VARCHAR", "", "`lr`, `checkpoint`, `clip`, …"),
            Column("arguments", "VARCHAR", "", "what was asked, as JSON"),
            Column("state", "VARCHAR", "", "`asked`, then `done`, `standing` (in force from now on), `failed`, `refused` or `cancelled`; later `ended`, or `undoing` and `undone`"),
            Column("what", "VARCHAR", "", "what came of it, a sentence; NULL while it is asked"),
            Column("undo", "VARCHAR", "", "how to undo it; NULL when it cannot be undone"),
            Column("caller_uid", "BIGINT", "", "user id of who asked"),
            Column("caller_pid", "BIGINT", "", "process id of who asked; NULL when asked over TCP"),
            Column("caller_role", "VARCHAR", "", "`owner` (over the unix socket), `operator` (over TCP, with a token) or `monitor` (the server, as `probe monitor --on` says)"),
            Column("held_s", "DOUBLE", "s", "how long the training thread was held for it; NULL when it was not"),
            Column("duration_s", "DOUBLE", "s", "from the asking to this state; NULL in the row written before"),
        ),
        "SELECT action_id, step, action, arguments, state, what FROM probe.actions ORDER BY t_ns",
    ),
    Table(
        "python", "variables", "expression of `watch` at the end of a step", "journal",
        (
            Column("watch_id", "VARCHAR", "", "the action that watches"),
            _STEP, _T_NS,
            Column("name", "VARCHAR", "", "the expression"),
            Column("value", "DOUBLE", "", "its value when that is a number; else NULL"),
            Column("text", "VARCHAR", "", "its value as text when that is no number, or what it raised"),
        ),
        "SELECT step, name, value FROM python.variables ORDER BY t_ns DESC LIMIT 10",
    ),
    Table(
        "python", "collectives", "collective, send or receive, written before the backend is entered", "ring",
        (
            _STEP, _MICRO, _T_NS,
            Column("pg", "VARCHAR", "", "name of the process group, as torch gives it; `0` is the default group"),
            Column("ranks", "VARCHAR", "", "ranks of the job that are in the group, as `0-3,6`"),
            Column("seq", "BIGINT", "", "number of the collective in its group, from 1, as torch counts it: the same on every rank that is in step; NULL for sends and receives, which torch does not count for the group"),
            Column("op", "VARCHAR", "", "`all_reduce`, `broadcast`, `barrier`, `send` …, the names of torch.distributed"),
            Column("dtype", "VARCHAR", "", "dtype of the tensors; NULL without any"),
            Column("shapes", "VARCHAR", "", "shapes of the tensors that go in"),
            Column("elements", "BIGINT", "", "elements that go in, all tensors together; NULL when not known"),
            Column("bytes", "BIGINT", "bytes", "bytes that go in; NULL when not known"),
            Column("peer", "BIGINT", "", "the root, or the other rank of a send or receive, by its number in the job; NULL where there is none"),
            Column("call_site", "VARCHAR", "", "`file:line function` of the innermost frame outside of torch that called it; NULL when C++ did (DistributedDataParallel inside backward)"),
            Column("asynchronous", "BOOLEAN", "", "true when the call returned before it was complete (`async_op=True`, `isend`)"),
            Column("duration_s", "DOUBLE", "s", "from the call to its completion as the calling thread saw it (its return, or the return of `wait`); NULL while pending, and where completion was not seen"),
            Column("wait_s", "DOUBLE", "s", "time the calling thread spent inside the call and inside `wait`; NULL where that was not seen"),
            Column("state", "VARCHAR", "", "`pending` (called, not known to be complete), `done`, `failed` (it raised) or `unknown` (nobody waited for it)"),
            Column("source", "VARCHAR", "", "`call` (a call from Python, seen by probe) or `flight` (PyTorch's Flight Recorder, for those issued by C++; looked at now and then)"),
        ),
        "SELECT rank, pg, seq, op, bytes, state, call_site FROM python.collectives WHERE state = 'pending' ORDER BY t_ns DESC LIMIT 20",
        rows=4096, pending="state",
    ),
    Table(
        "python", "gradients", "parameter of the optimizer on a sampled step, or on one that was asked for", "ring",
        (
            _STEP, _T_NS,
            Column("param", "VARCHAR", "", "name of the parameter, as `named_parameters()` gives it"),
            Column("place", "BIGINT", "", "place of the parameter in its model, in the order of `named_parameters()`, from 0; where its name is not known, in its optimizer"),
            Column("numel", "BIGINT", "", "elements of the parameter; of a sharded one, of this rank's shard"),
            Column("norm", "DOUBLE", "", "L2 norm of its gradient, before clipping where that could be seen, scaling by a GradScaler removed; NULL when it had none"),
            Column("mean", "DOUBLE", "", "mean of the gradient"),
            Column("std", "DOUBLE", "", "standard deviation of the gradient (of the population)"),
            Column("abs_max", "DOUBLE", "", "largest absolute value of the gradient"),
            Column("nan_count", "BIGINT", "", "NaNs in the gradient"),
            Column("inf_count", "BIGINT", "", "infinities in the gradient"),
            Column("zero_ratio", "DOUBLE", "ratio", "share of the gradient's elements that are exactly 0"),
            Column("weight_norm", "DOUBLE", "", "L2 norm of the parameter before the step"),
            Column("update_norm", "DOUBLE", "", "L2 norm of what the step changed"),
            Column("update_ratio", "DOUBLE", "ratio", "update_norm / weight_norm; NULL when the weight is 0"),
            Column("update_kind", "VARCHAR", "", "`measured` (the parameter was compared before and after) or `estimated` (learning rate times gradient norm); NULL without either"),
            Column("sharded", "BOOLEAN", "", "true when the figures are of this rank's shard alone, false when they are of the whole parameter"),
            Column("reason", "VARCHAR", "", "`sampled` or `asked`"),
        ),
        "SELECT param, norm, update_ratio, zero_ratio FROM python.gradients WHERE step = (SELECT MAX(step) FROM python.gradients) ORDER BY place",
        rows=16384,
    ),
    Table(
        "python", "activations", "output of a module on a step that was asked for, or on a sampled one", "ring",
        (
            _STEP, _MICRO, _T_NS,
            Column("module", "VARCHAR", "", "path of the module"),
            Column("class", "VARCHAR", "", "its class"),
            Column("place", "BIGINT", "", "order of the call within the micro step, from 0"),
            Column("shape", "VARCHAR", "", "shape of the first tensor of the output"),
            Column("mean", "DOUBLE", "", "mean"),
            Column("std", "DOUBLE", "", "standard deviation (of the population)"),
            Column("min", "DOUBLE", "", "smallest value"),
            Column("max", "DOUBLE", "", "largest value"),
            Column("zero_ratio", "DOUBLE", "ratio", "share of elements that are exactly 0"),
            Column("dead_ratio", "DOUBLE", "ratio", "share of units (places of the last dimension, channels of a convolution) that are 0 for the whole batch"),
            Column("saturated_ratio", "DOUBLE", "ratio", "share of elements within 1 % of the bounds of a bounded activation (sigmoid, tanh, softmax …); NULL of others"),
            Column("nan_count", "BIGINT", "", "NaNs"),
            Column("inf_count", "BIGINT", "", "infinities"),
            Column("reason", "VARCHAR", "", "`sampled` or `asked`"),
        ),
        "SELECT module, mean, std, zero_ratio, dead_ratio FROM python.activations WHERE step = (SELECT MAX(step) FROM python.activations) ORDER BY place",
        rows=8192,
    ),
    Table(
        "python", "optimizers", "group of parameters of an optimizer, with the health of its state, on a sampled or asked step", "ring",
        (
            _STEP, _T_NS,
            Column("optimizer", "VARCHAR", "", "class of the optimizer"),
            Column("param_group", "BIGINT", "", "number of the group, from 0"),
            Column("parameters", "BIGINT", "", "elements of all its parameters"),
            Column("lr", "DOUBLE", "", "learning rate"),
            Column("weight_decay", "DOUBLE", "", "weight decay; NULL when it has none"),
            Column("momentum", "DOUBLE", "", "momentum, or beta1; NULL when it has none"),
            Column("eps", "DOUBLE", "", "eps; NULL when it has none"),
            Column("state_steps", "BIGINT", "", "steps that the optimizer's state has seen; NULL when it does not count"),
            Column("momentum_norm", "DOUBLE", "", "L2 norm of the first moments looked at; NULL without any"),
            Column("second_min", "DOUBLE", "", "smallest second moment looked at; NULL without any"),
            Column("second_max", "DOUBLE", "", "largest"),
            Column("eps_floor_ratio", "DOUBLE", "ratio", "share of second moments looked at whose square root is below eps, where eps and not the gradient sets the update"),
            Column("nonfinite_count", "BIGINT", "", "NaNs and infinities in the states looked at"),
            Column("looked_at", "BIGINT", "", "elements of state looked at: a few parameters at a time"),
        ),
        "SELECT step, param_group, lr, eps_floor_ratio, nonfinite_count FROM python.optimizers ORDER BY t_ns DESC LIMIT 5",
        rows=2048,
    ),
    Table(
        "python", "histograms", "distribution of a tensor on a step that was asked for", "journal",
        (
            _STEP, _T_NS,
            Column("kind", "VARCHAR", "", "`gradient`, `weight` or `activation`"),
            Column("name", "VARCHAR", "", "parameter, or path of the module"),
            Column("numel", "BIGINT", "", "finite elements counted: all of up to 32768 elements, of more a sample with a fixed stride"),
            Column("min", "DOUBLE", "", "smallest finite value"),
            Column("p1", "DOUBLE", "", "1st percentile, linear between neighbours"),
            Column("p5", "DOUBLE", "", "5th percentile"),
            Column("p25", "DOUBLE", "", "25th percentile"),
            Column("p50", "DOUBLE", "", "median"),
            Column("p75", "DOUBLE", "", "75th percentile"),
            Column("p95", "DOUBLE", "", "95th percentile"),
            Column("p99", "DOUBLE", "", "99th percentile"),
            Column("max", "DOUBLE", "", "largest finite value"),
            Column("skewness", "DOUBLE", "", "third standardized moment; NULL when all values are equal"),
            Column("kurtosis", "DOUBLE", "", "fourth standardized moment, 3 for a normal distribution; NULL when all values are equal"),
            Column("counts", "VARCHAR", "", "elements in each bin, as `[1, 2]`; CAST(counts AS BIGINT[]) makes a list of it"),
            Column("edges", "VARCHAR", "", "edges of the bins, one more than there are bins"),
        ),
        "SELECT name, p1, p50, p99, kurtosis FROM python.histograms WHERE kind = 'gradient' ORDER BY t_ns DESC LIMIT 20",
    ),
    Table(
        "python", "nonfinite", "first NaN or infinity of an event, traced to where it came from", "journal",
        (
            Column("event_id", "VARCHAR", "", "names the event: all rows of one"),
            _STEP, _MICRO, _T_NS,
            Column("direction", "VARCHAR", "", "where it began: `data`, `forward`, `loss` (after the model, in the loss's own computation), `backward`, `optimizer`, `parameter` (it was in a weight before the step) or `unknown`"),
            Column("kind", "VARCHAR", "", "`nan` or `inf`: what was seen first"),
            Column("module", "VARCHAR", "", "path of the module it began in; NULL when it began in none, or that is not known"),
            Column("param", "VARCHAR", "", "parameter it began in, or the first whose gradient has it; NULL without"),
            Column("op", "VARCHAR", "", "operation it came out of: of a forward that was done again as torch names it (`log`), of the graph as autograd does (`LogBackward0`); NULL when not known"),
            Column("cause", "VARCHAR", "", "likely cause: `data`, `overflow`, `log of zero`, `out of domain` (log or root of a negative number), `division by zero`, `infinite derivative`, `learning rate`, `bad weight`, `from another rank`; NULL when none is likelier than others"),
            Column("evidence", "VARCHAR", "", "what was seen, a line each"),
            Column("seen_by", "VARCHAR", "", "what noticed it: `loss`, `gradient norm`, `gradient`, `scaler`"),
            Column("seen_step", "BIGINT", "", "step in which it was noticed; it may be later than the step it began in"),
            Column("inputs", "VARCHAR", "", "statistics of the inputs just before it, as JSON; NULL when not taken"),
            Column("loader", "VARCHAR", "", "loader of the batch"),
            Column("indices", "VARCHAR", "", "indices of the batch's samples in their dataset, as `[3, 17]`; NULL when not known"),
            Column("bad_samples", "VARCHAR", "", "those of them whose data are not finite, as `[17]`; NULL when not looked at or none"),
            Column("content_hash", "VARCHAR", "", "BLAKE2 of the batch's tensors, in their order; NULL when the batch was gone"),
            Column("lr", "DOUBLE", "", "learning rate at that step"),
            Column("loss_scale", "DOUBLE", "", "factor of the GradScaler; NULL without one"),
        ),
        "SELECT step, micro_step, direction, module, param, cause, indices, evidence FROM python.nonfinite ORDER BY t_ns",
    ),
    Table(
        "python", "inputs", "tensor of a batch that was looked at closely: asked for, or because of an event", "journal",
        (
            _STEP, _MICRO, _T_NS,
            Column("loader", "VARCHAR", "", "the DataLoader: class of its dataset and a number"),
            Column("name", "VARCHAR", "", "key or place of the tensor in the batch"),
            Column("shape", "VARCHAR", "", "its shape"),
            Column("dtype", "VARCHAR", "", "its dtype"),
            Column("mean", "DOUBLE", "", "mean"),
            Column("std", "DOUBLE", "", "standard deviation (of the population)"),
            Column("min", "DOUBLE", "", "smallest value"),
            Column("max", "DOUBLE", "", "largest value"),
            Column("nan_count", "BIGINT", "", "NaNs"),
            Column("inf_count", "BIGINT", "", "infinities"),
            Column("zero_ratio", "DOUBLE", "ratio", "share of elements that are exactly 0"),
            Column("indices", "VARCHAR", "", "indices of the batch's samples in their dataset, as `[3, 17]`; NULL when not known"),
            Column("content_hash", "VARCHAR", "", "BLAKE2 of the whole batch, the same for all its tensors: equal batches have equal hashes"),
            Column("reason", "VARCHAR", "", "`asked` or `event`"),
        ),
        "SELECT step, name, mean, std, nan_count, content_hash FROM python.inputs ORDER BY t_ns DESC LIMIT 10",
    ),
    Table(
        "python", "parameters", "parameter of the models that train, written when they are known and when that changes", "journal",
        (
            _STEP, _T_NS,
            Column("param", "VARCHAR", "", "name of the parameter, as `named_parameters()` gives it"),
            Column("place", "BIGINT", "", "its place there, from 0"),
            Column("module", "VARCHAR", "", "path of the module that has it"),
            Column("shape", "VARCHAR", "", "shape; of a sharded one, of the whole"),
            Column("numel", "BIGINT", "", "elements; of a sharded one, of the whole"),
            Column("dtype", "VARCHAR", "", "dtype"),
            Column("requires_grad", "BOOLEAN", "", "false when it is frozen"),
            Column("optimizer", "VARCHAR", "", "class of the optimizer that has it; NULL when none has"),
            Column("param_group", "BIGINT", "", "number of its group there"),
        ),
        "SELECT param, numel FROM python.parameters WHERE requires_grad AND optimizer IS NULL",
    ),
    Table(
        "python", "modules", "module of the models that train, written when they are known and when that changes", "journal",
        (
            _STEP, _T_NS,
            Column("module", "VARCHAR", "", "path of the module; empty for the root"),
            Column("class", "VARCHAR", "", "its class"),
            Column("training", "BOOLEAN", "", "its `training` flag"),
            Column("parameters", "BIGINT", "", "elements of its own parameters, without those of its children"),
            Column("trainable", "BIGINT", "", "those of them that need a gradient"),
            Column("eps", "DOUBLE", "", "its `eps` (normalization layers); NULL without"),
            Column("p", "DOUBLE", "", "its `p` (dropout layers); NULL without"),
        ),
        "SELECT module, class, eps FROM python.modules WHERE eps IS NOT NULL",
    ),
    Table(
        "process", "gpu", "sample of a device of the process, by the server (NVML)", "journal",
        (
            _T_NS,
            Column("device", "BIGINT", "", "number of the device, as NVML counts"),
            Column("name", "VARCHAR", "", "name of the device"),
            Column("utilization_ratio", "DOUBLE", "ratio", "share of time in which a kernel ran"),
            Column("memory_used_bytes", "BIGINT", "bytes", "device memory in use, by all processes"),
            Column("memory_total_bytes", "BIGINT", "bytes", "device memory in all"),
            Column("power_w", "DOUBLE", "W", "power drawn"),
            Column("temperature_c", "DOUBLE", "°C", "temperature"),
            Column("sm_clock_mhz", "DOUBLE", "MHz", "clock of the multiprocessors"),
            Column("throttled", "VARCHAR", "", "reasons for which the clock is held down; NULL when there are none"),
            Column("ecc_errors", "BIGINT", "", "uncorrected memory errors since the driver was loaded; NULL where they are not counted"),
        ),
        "SELECT device, utilization_ratio, memory_used_bytes, throttled FROM process.gpu ORDER BY t_ns DESC LIMIT 8",
    ),
    Table(
        "probe", "facts", "fact about the run: code, command, packages, hardware, seeds, hyper-parameters", "journal",
        (
            _T_NS,
            Column("kind", "VARCHAR", "", "`git`, `command`, `package`, `hardware`, `environment`, `seed`, `model` or `hyperparameter`"),
            Column("name", "VARCHAR", "", "name of the fact"),
            Column("value", "VARCHAR", "", "its value as text; what looks like a secret is `<redacted>`"),
            Column("number", "DOUBLE", "", "its value when that is a number"),
        ),
        "SELECT kind, name, value FROM probe.facts WHERE kind IN ('git', 'seed', 'hyperparameter')",
    ),
    Table(
        "probe", "checks", "step of a diagnosis: what was looked at and what came of it", "journal",
        (
            Column("diagnosis_id", "VARCHAR", "", "names the diagnosis"),
            _T_NS, _STEP,
            Column("symptom", "VARCHAR", "", "what was asked about: `nan`, `slow`, `memory`, `hang`, `loss`, `gradients`, `data`; NULL when it was everything"),
            Column("number", "BIGINT", "", "place of the check in the diagnosis, from 1"),
            Column("check_name", "VARCHAR", "", "the recipe, or the look that was taken"),
            Column("outcome", "VARCHAR", "", "`found`, `clear` or `unknown` (it could not be judged)"),
            Column("what", "VARCHAR", "", "what was found, or why it could not be judged"),
        ),
        "SELECT number, check_name, outcome, what FROM probe.checks ORDER BY t_ns, number",
    ),
    Table(
        "probe", "alerts", "message about an incident to one destination", "journal",
        (
            _T_NS,
            Column("incident", "VARCHAR", "", "names the incident, as in probe.verdicts"),
            Column("recipe", "VARCHAR", "", "the recipe that found it"),
            Column("severity", "VARCHAR", "", "`info`, `notice` or `alarm`"),
            Column("event", "VARCHAR", "", "`opened`, `raised` (worse than told before), `returned` (it was over and stays) or `resolved`"),
            Column("destination", "VARCHAR", "", "where it went, without what is secret in it"),
            Column("outcome", "VARCHAR", "", "`delivered`, `failed` (given up after the last try) or `dropped` (too many were waiting)"),
            Column("attempts", "BIGINT", "", "how often it was tried"),
            Column("error", "VARCHAR", "", "what went wrong the last time; NULL when it was delivered"),
        ),
        "SELECT t_ns, recipe, event, destination, outcome FROM probe.alerts ORDER BY t_ns DESC LIMIT 10",
    ),
    Table(
        "cluster", "hosts", "host of the job, as far as known", "live",
        (
            Column("host", "VARCHAR", "", "name of the host; where it is not known, its address"),
            Column("url", "VARCHAR", "", "where its server answers; NULL for the host that was asked"),
            Column("source", "VARCHAR", "", "how it is known: `here`, `peers` (PROBE_PEERS), `store` (the job's TCPStore), `torchelastic`, `slurm` or `peer` (another host said so)"),
            Column("state", "VARCHAR", "", "`answers`, or why not: `unreachable`, `refused`, `late`, `no ranks`"),
            Column("error", "VARCHAR", "", "what went wrong; NULL when it answers"),
            Column("elapsed_s", "DOUBLE", "s", "time its answer took; NULL without one"),
        ),
        "SELECT host, url, state, error FROM cluster.hosts",
    ),
    Table(
        "cluster", "stacks", "node of the tree that all ranks' training stacks make together, captured when asked", "live",
        (
            Column("node", "BIGINT", "", "number of the node, in the order of the tree; 0 is an outermost frame"),
            Column("parent", "BIGINT", "", "node of the frame that called it; NULL for an outermost frame"),
            Column("depth", "BIGINT", "", "distance from the outermost frame, which is 0 (python.backtrace counts from the innermost)"),
            Column("func", "VARCHAR", "", "function"),
            Column("file", "VARCHAR", "", "file"),
            Column("lineno", "BIGINT", "", "line; NULL when not known"),
            Column("ranks", "VARCHAR", "", "ranks whose stack goes through this frame, as `0,2-7`"),
            Column("rank_count", "BIGINT", "", "how many those are"),
            Column("ends", "BIGINT", "", "of how many of them it is the innermost frame"),
        ),
        "SELECT depth, func, file, lineno, ranks FROM cluster.stacks ORDER BY node",
    ),
    Table(
        "cluster", "stack_classes", "set of ranks whose training threads are in the same place, captured when asked", "live",
        (
            Column("class", "BIGINT", "", "number of the class, the largest first, from 0"),
            Column("ranks", "VARCHAR", "", "ranks in it, as `0,2-7`"),
            Column("rank_count", "BIGINT", "", "how many those are"),
            Column("state", "VARCHAR", "", "`alive`, `stopped` (by a signal) or `ended` (then it is the last stack that was kept)"),
            Column("stack", "VARCHAR", "", "what it is in, innermost first, joined by ` <- `: the call into a library, then the user's own frames"),
            Column("phase", "VARCHAR", "", "phase the ranks are in; NULL where it is not known or differs"),
            Column("step", "BIGINT", "", "step the ranks are in; NULL where it is not known or differs"),
        ),
        "SELECT ranks, rank_count, stack FROM cluster.stack_classes ORDER BY rank_count",
    ),
    Table(
        "cluster", "ranks", "process of the same job, on every host that answers", "live",
        (
            Column("job", "VARCHAR", "", "name of the job"),
            Column("local_rank", "BIGINT", "", "rank on its host; NULL when not told"),
            Column("world_size", "BIGINT", "", "number of ranks in the job; NULL when not told"),
            Column("host", "VARCHAR", "", "host name"),
            Column("endpoint", "VARCHAR", "", "what to call it in a probe command"),
            _STEP,
            Column("last_step_s", "DOUBLE", "s", "time since its last step ended; NULL before the first"),
            Column("lag_steps", "BIGINT", "", "steps that it is behind the rank that is furthest; NULL where steps cannot be compared"),
            Column("last_seen_s", "DOUBLE", "s", "time since it last wrote a row"),
            Column("state", "VARCHAR", "", "`running`, `idle` (no step yet), `stalled` (no step comes), `paused` (by `probe`, between two steps), `stopped` (by a signal), `finished`, `failed` (an exception, or an exit status other than 0) or `dead` (killed)"),
        ),
        "SELECT rank, step, state FROM cluster.ranks ORDER BY rank",
    ),
    Table(
        "probe", "rings", "ring of the recording", "live",
        (
            Column("table_name", "VARCHAR", "", "table whose rows it holds"),
            Column("rows_written", "BIGINT", "", "rows written since recording began"),
            Column("rows_sealed", "BIGINT", "", "rows in Parquet segments"),
            Column("rows_dropped", "BIGINT", "", "rows overwritten before they were sealed, or removed by retention"),
            Column("capacity_rows", "BIGINT", "", "rows the ring holds"),
        ),
        "SELECT table_name, rows_written, rows_dropped FROM probe.rings",
    ),
    Table(
        "probe", "settings", "setting of the training process", "live",
        (
            Column("name", "VARCHAR", "", "name of the setting"),
            Column("variable", "VARCHAR", "", "environment variable that sets it"),
            Column("value", "VARCHAR", "", "value in force in the training process"),
            Column("unit", "VARCHAR", "", "its unit"),
            Column("meaning", "VARCHAR", "", "what it does"),
        ),
        "SELECT variable, value FROM probe.settings",
    ),
    Table(
        "probe", "tables", "column of a table: this description", "live",
        (
            Column("table_name", "VARCHAR", "", "schema and name"),
            Column("column_name", "VARCHAR", "", "column"),
            Column("type", "VARCHAR", "", "SQL type"),
            Column("unit", "VARCHAR", "", "unit, empty for plain values"),
            Column("meaning", "VARCHAR", "", "what it means"),
        ),
        "SELECT column_name, unit, meaning FROM probe.tables WHERE table_name = 'python.steps'",
    ),
)

BY_NAME: dict[str, Table] = {table.full_name: table for table in TABLES}
RINGS: tuple[Table, ...] = tuple(table for table in TABLES if table.source == "ring")


def columns_of(table: Table) -> tuple[Column, ...]:
    """All columns a query sees: the common ones first."""
    own = {column.name for column in table.columns}
    return (*(column for column in COMMON if column.name not in own), *table.columns)
