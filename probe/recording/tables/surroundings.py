"""Tables of what is around the training: devices, the run, diagnoses, alerts, hosts and ranks, probe itself."""

from __future__ import annotations

from probe.recording.tables.declaration import STEP, T_NS, Column, Table

SURROUNDINGS: tuple[Table, ...] = (
    Table(
        "process", "gpu", "sample of a device of the process, by the server (NVML)", "journal",
        (
            T_NS,
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
            T_NS,
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
            T_NS, STEP,
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
            T_NS,
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
            STEP,
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
