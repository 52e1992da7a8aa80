"""Tables of devices, the run, diagnoses, alerts, hosts and ranks, and probe itself."""

from __future__ import annotations

from probe.recording.tables.declaration import STEP, T_NS, Column, Table

SURROUNDINGS: tuple[Table, ...] = (
    Table(
        "process", "gpu", "sample of a device of the process, by the server (NVML)", "journal",
        (
            T_NS,
            Column("device", "BIGINT", "", "index of the device in NVML"),
            Column("name", "VARCHAR", "", "name of the device"),
            Column("utilization_ratio", "DOUBLE", "ratio", "fraction of time in which a kernel was running"),
            Column("memory_used_bytes", "BIGINT", "bytes", "device memory in use, by all processes"),
            Column("memory_total_bytes", "BIGINT", "bytes", "total device memory"),
            Column("power_w", "DOUBLE", "W", "power drawn"),
            Column("temperature_c", "DOUBLE", "°C", "temperature"),
            Column("sm_clock_mhz", "DOUBLE", "MHz", "clock rate of the multiprocessors"),
            Column("throttled", "VARCHAR", "", "reasons for a reduced clock rate; NULL without any"),
            Column("ecc_errors", "BIGINT", "", "uncorrected memory errors since the driver was loaded; NULL if not counted"),
        ),
        "SELECT device, utilization_ratio, memory_used_bytes, throttled FROM process.gpu ORDER BY t_ns DESC LIMIT 8",
    ),
    Table(
        "probe", "facts", "fact about the run: code, command, packages, hardware, seeds, hyperparameters", "journal",
        (
            T_NS,
            Column("kind", "VARCHAR", "", "`git`, `command`, `package`, `hardware`, `environment`, `seed`, `model`, `hyperparameter`, `resumption` (what a checkpoint contained, and which parts of it were loaded before the first step) or `data` (`highest_index`: the largest sample index in the last batches of a loader)"),
            Column("name", "VARCHAR", "", "name of the fact"),
            Column("value", "VARCHAR", "", "its value as text; suspected secrets are `<redacted>`"),
            Column("number", "DOUBLE", "", "its value if that is a number"),
        ),
        "SELECT kind, name, value FROM probe.facts WHERE kind IN ('git', 'seed', 'hyperparameter')",
    ),
    Table(
        "probe", "checks", "check of a diagnosis and its result", "journal",
        (
            Column("diagnosis_id", "VARCHAR", "", "id of the diagnosis"),
            T_NS, STEP,
            Column("symptom", "VARCHAR", "", "symptom to be diagnosed: `nan`, `slow`, `memory`, `hang`, `loss`, `gradients`, `data`; NULL for all"),
            Column("number", "BIGINT", "", "position of the check in the diagnosis, from 1"),
            Column("check_name", "VARCHAR", "", "name of the recipe or of the built-in check"),
            Column("outcome", "VARCHAR", "", "`found`, `clear` or `unknown` (it could not be decided)"),
            Column("what", "VARCHAR", "", "what was found, or why it could not be decided"),
        ),
        "SELECT number, check_name, outcome, what FROM probe.checks ORDER BY t_ns, number",
    ),
    Table(
        "probe", "alerts", "message about an incident to one destination", "journal",
        (
            T_NS,
            Column("incident", "VARCHAR", "", "id of the incident, as in probe.verdicts"),
            Column("recipe", "VARCHAR", "", "recipe that found it"),
            Column("severity", "VARCHAR", "", "`info`, `notice` or `alarm`"),
            Column("event", "VARCHAR", "", "`opened`, `raised` (more severe than reported before), `returned` (it had ended, came back and stays) or `resolved`"),
            Column("destination", "VARCHAR", "", "destination of the message, without secrets"),
            Column("outcome", "VARCHAR", "", "`delivered`, `failed` (given up after the last attempt) or `dropped` (too many messages were waiting)"),
            Column("attempts", "BIGINT", "", "number of attempts"),
            Column("error", "VARCHAR", "", "error of the last attempt; NULL when delivered"),
        ),
        "SELECT t_ns, recipe, event, destination, outcome FROM probe.alerts ORDER BY t_ns DESC LIMIT 10",
    ),
    Table(
        "cluster", "hosts", "host of the job, as far as known", "live",
        (
            Column("host", "VARCHAR", "", "name of the host, or its address if the name is unknown"),
            Column("url", "VARCHAR", "", "address of its server; NULL for the host that answers the query"),
            Column("source", "VARCHAR", "", "how it was found: `here`, `peers` (PROBE_PEERS), `store` (the job's TCPStore), `torchelastic`, `slurm` or `peer` (through another host)"),
            Column("state", "VARCHAR", "", "`answers`, or why not: `unreachable`, `refused`, `late`, `no ranks`"),
            Column("error", "VARCHAR", "", "the error; NULL when it answers"),
            Column("elapsed_s", "DOUBLE", "s", "time that its answer took; NULL without one"),
        ),
        "SELECT host, url, state, error FROM cluster.hosts",
    ),
    Table(
        "cluster", "stacks", "node of the merged tree of all ranks' training stacks", "live",
        (
            Column("node", "BIGINT", "", "number of the node, in tree order; 0 is an outermost frame"),
            Column("parent", "BIGINT", "", "node of the calling frame; NULL for an outermost frame"),
            Column("depth", "BIGINT", "", "distance from the outermost frame, from 0 (python.backtrace counts from the innermost frame)"),
            Column("func", "VARCHAR", "", "function"),
            Column("file", "VARCHAR", "", "file"),
            Column("lineno", "BIGINT", "", "line; NULL when unknown"),
            Column("ranks", "VARCHAR", "", "ranks whose stack contains this frame, as `0,2-7`"),
            Column("rank_count", "BIGINT", "", "number of these ranks"),
            Column("ends", "BIGINT", "", "number of ranks whose innermost frame this is"),
        ),
        "SELECT depth, func, file, lineno, ranks FROM cluster.stacks ORDER BY node",
    ),
    Table(
        "cluster", "stack_classes", "set of ranks whose training threads are at the same place in the code", "live",
        (
            Column("class", "BIGINT", "", "index of the class, from 0; the largest class comes first"),
            Column("ranks", "VARCHAR", "", "ranks in the class, as `0,2-7`"),
            Column("rank_count", "BIGINT", "", "number of these ranks"),
            Column("state", "VARCHAR", "", "`alive`, `stopped` (by a signal) or `ended` (with the last recorded stack)"),
            Column("stack", "VARCHAR", "", "its frames, innermost first, joined by ` <- `: the call into a library, then the user's own frames"),
            Column("phase", "VARCHAR", "", "phase of the ranks; NULL when unknown or different"),
            Column("step", "BIGINT", "", "step of the ranks; NULL when unknown or different"),
        ),
        "SELECT ranks, rank_count, stack FROM cluster.stack_classes ORDER BY rank_count",
    ),
    Table(
        "cluster", "ranks", "process of the same job, on every host that answers", "live",
        (
            Column("job", "VARCHAR", "", "name of the job"),
            Column("local_rank", "BIGINT", "", "rank on its host; NULL when unknown"),
            Column("world_size", "BIGINT", "", "number of ranks in the job; NULL when unknown"),
            Column("host", "VARCHAR", "", "host name"),
            Column("endpoint", "VARCHAR", "", "endpoint that names the process in probe commands"),
            STEP,
            Column("last_step_s", "DOUBLE", "s", "time since its last step ended; NULL before the first"),
            Column("lag_steps", "BIGINT", "", "number of steps behind the most advanced rank; NULL if steps cannot be compared"),
            Column("last_seen_s", "DOUBLE", "s", "time since it last wrote a row"),
            Column("state", "VARCHAR", "", "`running`, `starting` (no step yet), `stalled` (no step ends), `paused` (by `probe`, between two steps), `stopped` (by a signal), `finished`, `failed` (an exception, or a nonzero exit status), `dead` (killed) or `bundled` (alive when its bundle was made)"),
        ),
        "SELECT rank, step, state FROM cluster.ranks ORDER BY rank",
    ),
    Table(
        "probe", "rings", "ring of the recording", "live",
        (
            Column("table_name", "VARCHAR", "", "table whose rows the ring holds"),
            Column("rows_written", "BIGINT", "", "rows written since recording began"),
            Column("rows_sealed", "BIGINT", "", "rows in Parquet segments"),
            Column("rows_dropped", "BIGINT", "", "rows overwritten before they were sealed, or removed by retention"),
            Column("capacity_rows", "BIGINT", "", "number of rows that fit in the ring"),
        ),
        "SELECT table_name, rows_written, rows_dropped FROM probe.rings",
    ),
    Table(
        "probe", "settings", "setting of the training process", "live",
        (
            Column("name", "VARCHAR", "", "name of the setting"),
            Column("variable", "VARCHAR", "", "environment variable that sets it"),
            Column("value", "VARCHAR", "", "value in effect in the training process"),
            Column("unit", "VARCHAR", "", "its unit"),
            Column("meaning", "VARCHAR", "", "what it does"),
        ),
        "SELECT variable, value FROM probe.settings",
    ),
    Table(
        "probe", "tables", "column of a table: the contents of this page", "live",
        (
            Column("table_name", "VARCHAR", "", "schema and name"),
            Column("column_name", "VARCHAR", "", "column"),
            Column("type", "VARCHAR", "", "SQL type"),
            Column("unit", "VARCHAR", "", "unit, empty for plain values"),
            Column("meaning", "VARCHAR", "", "meaning of the column"),
        ),
        "SELECT column_name, unit, meaning FROM probe.tables WHERE table_name = 'python.steps'",
    ),
)
