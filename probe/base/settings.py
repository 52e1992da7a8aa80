"""All settings of probe.

A setting is an environment variable with a default, a unit and one line of meaning. `docs/settings.md` and
`probe config` derive from this list, and `probe doctor` reports other variables that start with ``PROBE_``.
Read once, when a process starts; imports only `os`, so the start-up hook may use it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from probe.base.errors import SettingInvalid


class Setting(NamedTuple):
    """One setting: `env` is the variable, `default` its text, `unit` may be empty."""

    name: str
    env: str
    default: str
    unit: str
    help: str
    parse: Callable[[str], Any]


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError("must not be negative")
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError("must be a positive number")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError("must be a number and not negative")
    return value


def _ratio(text: str) -> float:
    text = text.strip()
    value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    if not 0 < value <= 1:
        raise ValueError("must be above 0 and at most 1 (or 100%)")
    return value


FASTEST_HZ = 100.0
"""Limit of PROBE_SAMPLE_HZ: for a higher rate, `probe JOB flamegraph` costs less."""


def _rate(text: str) -> float:
    value = float(text)
    if not 0 <= value <= FASTEST_HZ:
        raise ValueError(f"must be 0 or a rate up to {FASTEST_HZ:g}")
    return value


_SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def _bytes(text: str) -> int:
    """A size: digits with an optional K, M, G or T (powers of 1024)."""
    cleaned = text.strip().upper().removesuffix("IB").removesuffix("B")
    suffix = cleaned[-1:] if cleaned[-1:] in "KMGT" else ""
    value = float(cleaned.removesuffix(suffix) if suffix else cleaned)
    if not 0 <= value < float("inf"):
        raise ValueError("must be a size of at least 0")
    return int(value * _SIZES[suffix])


def _text(text: str) -> str:
    return text


def _switch(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in ("", "0", "no", "off", "false"):
        return False
    if lowered in ("1", "yes", "on", "true"):
        return True
    raise ValueError("must be 1 or 0")


NAN_TRACES = ("on", "off", "wait")
"""Values of PROBE_NAN_TRACE."""


def _nan_trace(text: str) -> str:
    chosen = text.strip().lower()
    if chosen not in NAN_TRACES:
        raise ValueError(f"must be one of {', '.join(NAN_TRACES)}")
    return chosen


INSTRUMENTS = ("steps", "losses", "modules", "memory", "data", "collectives", "gradients", "nonfinite", "dependence", "scalars", "facts")
"""Values of PROBE_INSTRUMENTS, besides `default`, `all` and `none`."""


def _instruments(text: str) -> frozenset[str]:
    chosen: set[str] = set()
    for word in text.replace(",", " ").split():
        if word in ("default", "all"):
            chosen.update(INSTRUMENTS)
        elif word in INSTRUMENTS:
            chosen.add(word)
        elif word != "none":
            raise ValueError(f"accepts {', '.join(INSTRUMENTS)}, default, all and none")
    return frozenset(chosen)


SETTINGS: tuple[Setting, ...] = (
    Setting("enabled", "PROBE", "0", "", "1 starts the agent in every Python process of the job that imports torch.", _switch),
    Setting("name", "PROBE_NAME", "", "", "Job name. Default: the scheduler's job name, else the name of the script.", _text),
    Setting("directory", "PROBE_DIR", "", "", "Folder for recordings and sockets, on a local disk. Default: a private folder of the user under /tmp.", _text),
    Setting("rings_directory", "PROBE_RINGS_DIR", "/dev/shm", "", "Memory-backed folder for the rings. If it has no room, PROBE_DIR is used.", _text),
    Setting("rings_bytes", "PROBE_RINGS_BYTES", "12M", "bytes", "Limit for the memory of one process's rings.", _bytes),
    Setting("instruments", "PROBE_INSTRUMENTS", "default", "", f"What is recorded: default, none, all, or a list of {', '.join(INSTRUMENTS)}.", _instruments),
    Setting("budget_ratio", "PROBE_BUDGET", "1%", "ratio", "Fraction of step time that recording may cost; details are sampled less often to stay within it.", _ratio),
    Setting("modules_interval", "PROBE_MODULES_INTERVAL", "0", "steps", "Record modules on every N-th step; 0: as often as the budget allows.", _count),
    Setting("total_steps", "PROBE_TOTAL_STEPS", "0", "steps", "Number of steps that this process will make, used to estimate the remaining time; 0: the number that its trainer, loops or schedule give, if any.", _count),
    Setting("nan_trace", "PROBE_NAN_TRACE", "on", "", "Trace a NaN to its module by repeating the step in which it appeared: on, off, or wait. `wait` waits for the device before every optimizer step, so that no NaN on the device is missed.", _nan_trace),
    Setting("memory_interval_s", "PROBE_MEMORY_INTERVAL_S", "1", "s", "Time between samples of process and device memory.", _positive),
    Setting("sample_hz", "PROBE_SAMPLE_HZ", "1", "Hz", "How often the stacks of the training thread and of other busy threads are recorded, for `probe JOB flamegraph --since STEP`; 0: never.", _rate),
    Setting("listen", "PROBE_LISTEN", "", "host:port", "TCP address to listen on, with a token. Default: only the unix socket.", _text),
    Setting("allow_eval", "PROBE_ALLOW_EVAL", "0", "", "1 allows `eval` over TCP.", _switch),
    Setting("token_file", "PROBE_TOKEN_FILE", "", "", "File with the TCP token, mode 0600. Default: PROBE_DIR/token, created when needed.", _text),
    Setting("viewer_token_file", "PROBE_VIEWER_TOKEN_FILE", "", "", "File with the read-only TCP token, mode 0600. Default: PROBE_DIR/token.viewer, created when needed.", _text),
    Setting("tls_certificate", "PROBE_TLS_CERTIFICATE", "", "", "PEM certificate for TCP; required to listen beyond loopback.", _text),
    Setting("tls_key", "PROBE_TLS_KEY", "", "", "PEM key of PROBE_TLS_CERTIFICATE.", _text),
    Setting("insecure_no_tls", "PROBE_INSECURE_NO_TLS", "0", "", "1 allows TCP beyond loopback without TLS. The token is then sent unencrypted.", _switch),
    Setting("server_python", "PROBE_SERVER_PYTHON", "", "", "Python interpreter that runs the server, if the job's own lacks duckdb and fastapi.", _text),
    Setting("server_linger_s", "PROBE_SERVER_LINGER_S", "300", "s", "How long the server keeps running after its last agent has left and its last request has been answered.", _positive),
    Setting("drain_interval_s", "PROBE_DRAIN_INTERVAL_S", "1", "s", "Time between two reads of the rings by the server.", _positive),
    Setting("seal_interval_s", "PROBE_SEAL_INTERVAL_S", "60", "s", "Rows older than this are sealed into Parquet segments; with many ranks, some wait up to five times as long. A host that loses power loses the rows that are not sealed.", _positive),
    Setting("retention_bytes", "PROBE_RETENTION_BYTES", "2G", "bytes", "Size limit for the segments on disk; the oldest are deleted first.", _bytes),
    Setting("archive", "PROBE_ARCHIVE", "", "", "Folder or URL (s3://, gs://, az://) of the archive to which the server ships recordings. A value set for a job takes precedence for that job's recordings.", _text),
    Setting("archive_interval_s", "PROBE_ARCHIVE_INTERVAL_S", "3600", "s", "Longest time between two shipments of a running process. A process that started recently or has a new verdict is shipped sooner; one that has ended is shipped at once.", _positive),
    Setting("archive_rate_bytes_s", "PROBE_ARCHIVE_RATE", "20M", "bytes/s", "Maximum rate at which the server sends to the archive.", _bytes),
    Setting("archive_cpu_ratio", "PROBE_ARCHIVE_CPU", "5%", "ratio", "Fraction of one core that shipping may use.", _ratio),
    Setting("query_timeout_s", "PROBE_QUERY_TIMEOUT_S", "5", "s", "Deadline of one SQL query.", _positive),
    Setting("query_memory_bytes", "PROBE_QUERY_MEMORY_BYTES", "512M", "bytes", "Memory limit of one SQL query.", _bytes),
    Setting("eval_timeout_s", "PROBE_EVAL_TIMEOUT_S", "10", "s", "How long `eval` waits for a snippet.", _positive),
    Setting("eval_output_bytes", "PROBE_EVAL_OUTPUT_BYTES", "64K", "bytes", "Limit for the output of one snippet; the rest is counted and dropped.", _bytes),
    Setting("act_wait_s", "PROBE_ACT_WAIT_S", "30", "s", "How long actions, and snippets that change the job, wait for the end of a step.", _positive),
    Setting("rank_hold_s", "PROBE_RANK_HOLD_S", "5", "s", "How long a rank waits for the others at the agreed step before a coordinated action is dropped on all ranks.", _positive),
    Setting("flight_entries", "PROBE_FLIGHT_ENTRIES", "256", "", "Number of collectives that PyTorch's Flight Recorder keeps (sets TORCH_FR_BUFFER_SIZE, unless the job does); 0 leaves it unchanged.", _count),
    Setting("peers", "PROBE_PEERS", "", "", "File that lists the servers of the job's other hosts, one HOST:PORT per line. Default: discovered through the job.", _text),
    Setting("hold_s", "PROBE_HOLD_S", "0", "s", "How long a process waits after an exception ended its main thread, so that it can be inspected.", _seconds),
    Setting("stall_s", "PROBE_STALL_S", "4", "s", "A step counts as stalled after this time, or after four times the usual step time if that is longer.", _positive),
    Setting("recipes", "PROBE_RECIPES", "", "", "Folder with your own recipes; a recipe with the name of a built-in one replaces it.", _text),
    Setting("monitor", "PROBE_MONITOR", "1", "", "1: the server runs the recipes while jobs run; 0: only `diagnose` runs them.", _switch),
    Setting("monitor_interval_s", "PROBE_MONITOR_INTERVAL_S", "4", "s", "Minimum time between two runs of the recipes on a job; longer if they take long.", _positive),
    Setting("notify", "PROBE_NOTIFY", "", "", "Alert destinations: Apprise URLs, e.g. slack://…, mailto://…, pagerduty://… or json://…, separated by spaces; `probe monitor --notify json://host` adds more.", _text),
    Setting("peak_tflops", "PROBE_PEAK_TFLOPS", "0", "TFLOP/s", "Peak rate of one device in the precision used, for MFU; 0: use the built-in value, which exists for common devices only.", _seconds),
    Setting("compiled", "PROBE_COMPILED", "1", "", "0 runs the per-step hooks in Python even if their compiled form could be loaded.", _switch),
    Setting("endpoint", "PROBE_ENDPOINT", "", "", "Default endpoint of `probe`.", _text),
)

BY_NAME: dict[str, Setting] = {setting.name: setting for setting in SETTINGS}


class Settings:
    """Values of all settings from one environment, as attributes.

    Raises `SettingInvalid` for an invalid value, with the variable and what it accepts.
    """

    enabled: bool
    name: str
    directory: str
    rings_directory: str
    rings_bytes: int
    instruments: frozenset[str]
    budget_ratio: float
    modules_interval: int
    total_steps: int
    nan_trace: str
    memory_interval_s: float
    sample_hz: float
    listen: str
    allow_eval: bool
    token_file: str
    viewer_token_file: str
    tls_certificate: str
    tls_key: str
    insecure_no_tls: bool
    server_python: str
    server_linger_s: float
    drain_interval_s: float
    seal_interval_s: float
    retention_bytes: int
    archive: str
    archive_interval_s: float
    archive_rate_bytes_s: int
    archive_cpu_ratio: float
    query_timeout_s: float
    query_memory_bytes: int
    eval_timeout_s: float
    eval_output_bytes: int
    act_wait_s: float
    rank_hold_s: float
    flight_entries: int
    peers: str
    hold_s: float
    stall_s: float
    recipes: str
    monitor: bool
    monitor_interval_s: float
    notify: str
    peak_tflops: float
    compiled: bool
    endpoint: str

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        source = os.environ if environ is None else environ
        object.__setattr__(self, "_environ", source)
        for setting in SETTINGS:
            text = source.get(setting.env, "")
            try:
                value = setting.parse(text if text.strip() else setting.default)
            except ValueError as error:
                raise SettingInvalid(
                    f"{setting.env}={text!r}: {error}",
                    hint=f"{setting.help} Default: {setting.default or 'empty'}.",
                ) from None
            object.__setattr__(self, setting.name, value)

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment they were read from."""
        found: Mapping[str, str] = vars(self)["_environ"]
        return found

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("settings are read once and do not change")


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Variables that start with ``PROBE_`` and are not settings: most likely typing errors."""
    known = {setting.env for setting in SETTINGS}
    return sorted(name for name in environ if name.startswith("PROBE_") and name not in known)
