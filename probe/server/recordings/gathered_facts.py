"""Facts about runs that the server gathers: code, command, packages, hardware; and samples of the GPUs.

Thread `probe-facts`. A recording gets its facts once, in the server's journal: most as soon as it is seen,
the packages and the device's peak rate once the process has recorded where it imports from. Every `GPU_S` the
devices of living processes are sampled (`gpu`). No code of the job is run: files are read, and git is called
with everything disabled that it could execute. May import what `probe.diagnose` may.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import platform
import shlex
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probe.base import clock
from probe.base.redaction import redact
from probe.base.settings import BY_NAME
from probe.diagnose.efficiency import peak_tflops
from probe.recording import places
from probe.recording.journal import read_journal
from probe.server.recordings import server_journal
from probe.server.recordings.code_rows import Reading, began_ns, not_read
from probe.server.recordings.git_facts import git_facts
from probe.server.recordings.gpu import Devices
from probe.server.recordings.registry import Recorded, Registry
from probe.server.runtime.supervision import FAILURES, Supervised

_log = logging.getLogger("probe.facts")
ROUND_S, GPU_S = 1.0, 30.0
LATE_S = 120.0
"""A process that started within this time gets facts even if it has ended."""
MODEL_S = 60.0
"""How long to wait for the process to record its model, which the device's peak rate depends on."""
TOGETHER_NS = 10_000_000_000
"""Ranks of a run that began within this time run the same source."""
MOST_PACKAGES = 2000
LONGEST_COMMAND = 4000
_LARGEST_SCRIPT_BYTES = 4 << 20
EVENT, RUN, PACKAGES, CODE = "facts", "run", "packages", "code"
Row = dict[str, Any]
Facts = dict[tuple[str, str], str]
"""Values of facts by kind and name."""


class FactsGatherer:
    """Gathers for one registry, on `thread`; `round` handles every recording once."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.devices = Devices()
        self._have: dict[Path, set[str]] = {}
        self._sizes: dict[Path, int] = {}
        self._program: tuple[object, ...] = ()
        self._began_ns = 0
        self._reading: Reading | None = None
        self._code: list[Row] | None = None
        """Rows of python.code of the program that was read last; None while it is read."""
        self._stopping = threading.Event()
        self.thread = Supervised("probe-facts", self._run, self._stopping)
        self._gpu_s = 0.0

    def _run(self) -> None:
        try:
            while not self._stopping.wait(ROUND_S):
                self.round()
        finally:
            if self._reading is not None:
                self._reading.end()
                self._reading = None

    def round(self) -> None:
        """Gather facts of the recordings that have none yet; sample the devices when that is due."""
        self._read_on()
        listed = self._registry.processes()
        live = [recorded for recorded in listed if self._registry.lives(recorded)]
        folders = {recorded.folder for recorded in live}
        recent = clock.wall_ns() - int(LATE_S * 1e9)
        for recorded in listed:
            if recorded.folder in folders or recorded.meta.started_ns > recent:
                try:
                    self._gather(recorded)
                except FAILURES as error:  # the recording, or a file that it names, was removed or is damaged
                    _log.info("no facts of %s: %s", recorded.name, error)
                if self._stopping.is_set():
                    return
        self._have = {one.folder: self._have[one.folder] for one in listed if one.folder in self._have}
        if live and time.monotonic() >= self._gpu_s:
            self._gpu_s = time.monotonic() + GPU_S
            self.sample_devices(live)

    def sample_devices(self, ranks: Sequence[Recorded]) -> None:
        """Record a sample of the devices that these processes use. Any thread."""
        for recorded in ranks:
            rows = self.devices.rows(recorded.meta.pid, functools.partial(_device_number, recorded))
            if rows:
                server_journal.note_rows(recorded.folder, "process.gpu", rows)

    # Facts ------------------------------------------------------------------

    def _gather(self, recorded: Recorded) -> None:
        have = self._have.get(recorded.folder)
        if have is None:
            have = self._have[recorded.folder] = _gathered(recorded.folder)
        if RUN not in have:
            self._keep(recorded, RUN, run_rows(recorded), have)
        if PACKAGES in have and CODE in have:
            return
        own = places.journals(recorded.folder)[0]
        size = own.stat().st_size
        age_s = (clock.wall_ns() - recorded.meta.started_ns) * 1e-9
        late = age_s > MODEL_S or not self._registry.lives(recorded)
        if size != self._sizes.get(recorded.folder) or (late and CODE not in have):
            self._sizes[recorded.folder] = size
            paths, facts = _own_facts(own)
            if CODE not in have and (late or paths is not None):
                code = self._source_rows(recorded, paths or ())
                if code is None:
                    del self._sizes[recorded.folder]  # it is still being read
                else:
                    self._keep(recorded, CODE, code, have, "python.code")
            if PACKAGES not in have:
                if paths is not None and not late and ("model", "dtype") not in facts:
                    del self._sizes[recorded.folder]  # it will record its model soon
                elif paths is not None:
                    rows = [*package_rows(paths, recorded), *peak_rows(recorded, facts)]
                    self._keep(recorded, PACKAGES, rows, have)

    def _source_rows(self, recorded: Recorded, paths: Sequence[str]) -> list[Row] | None:
        """Rows of python.code; none without a script, None while it or another program is being read. Ranks
        of a run that started together share them: reading takes up to seconds of processor time."""
        meta = recorded.meta
        script = script_of(meta.argv, meta.cwd)
        if script is None:
            return []
        began, program = began_ns(meta), (meta.run, script, meta.cwd, tuple(paths))
        if self._program != program or abs(began - self._began_ns) > TOGETHER_NS:
            if self._reading is not None:
                return None
            self._program, self._began_ns, self._code = program, began, None
            try:
                self._reading = Reading(script, began, meta.cwd, paths)
            except OSError:
                self._code = [not_read(script, "the process that reads it failed")]
            self._read_on()
        return self._code

    def _read_on(self) -> None:
        """Take the rows of the program that is being read, if it has been."""
        if self._reading is not None:
            self._code = self._reading.rows()
            if self._code is not None:
                self._reading = None

    def _keep(
        self, recorded: Recorded, part: str, rows: list[Row], have: set[str], table: str = "probe.facts",
    ) -> None:
        have.add(part)  # also when it cannot be written: the disk is full, or the recording was removed
        if rows and server_journal.note_rows(recorded.folder, table, rows):
            server_journal.note(recorded.folder, {"event": EVENT, "part": part})


def fact(kind: str, name: str, value: object) -> Row:
    """A row of probe.facts."""
    number = float(value) if isinstance(value, (bool, int, float)) else None
    return {"t_ns": clock.wall_ns(), "kind": kind, "name": name, "value": str(value), "number": number}


def _gathered(folder: Path) -> set[str]:
    """The parts that an earlier server has gathered."""
    records = read_journal(places.journals(folder)[1])
    return {str(record.get("part")) for record in records if record.get("event") == EVENT}


def _own_facts(journal: Path) -> tuple[list[str] | None, Facts]:
    """The process's import paths (None before it recorded them), and the facts that it recorded."""
    paths: list[str] | None = None
    facts: Facts = {}
    for record in read_journal(journal):
        if record.get("event") == "import paths":
            paths = [str(path) for path in record.get("paths") or ()]
        elif record.get("table") == "probe.facts":
            for row in record.get("rows") or ():
                facts[(str(row.get("kind")), str(row.get("name")))] = str(row.get("value"))
    return paths, facts


def _device_number(recorded: Recorded) -> int | None:
    """Number of the device on this machine; None if the process did not record which one it uses."""
    _, facts = _own_facts(places.journals(recorded.folder)[0])
    number = facts.get(("hardware", "device_number"))
    if number is None or not number.isdigit():
        return None
    visible = facts.get(("environment", "CUDA_VISIBLE_DEVICES"))
    if visible is None:
        return int(number)
    chosen = [word.strip() for word in visible.split(",")]
    place = int(number)
    return int(chosen[place]) if place < len(chosen) and chosen[place].isdigit() else None


# Facts that do not depend on the process ---------------------------------------


def run_rows(recorded: Recorded) -> list[Row]:
    """Facts of kinds `command`, `hardware`, `package` (Python and torch) and `git`."""
    meta = recorded.meta
    script = script_of(meta.argv, meta.cwd)
    rows = [
        fact("command", "line", shlex.join(meta.argv)[:LONGEST_COMMAND]),
        fact("command", "folder", meta.cwd), fact("command", "executable", meta.executable),
        fact("package", "python", meta.python), fact("package", "torch", meta.torch),
        fact("hardware", "host", meta.host), fact("hardware", "machine", platform.machine()),
        fact("hardware", "kernel", platform.release()),
    ]
    if script is not None:
        rows.append(fact("command", "script", script))
        with contextlib.suppress(OSError):
            if script.stat().st_size <= _LARGEST_SCRIPT_BYTES:
                digest = hashlib.sha256(script.read_bytes()).hexdigest()
                rows.append(fact("command", "script_hash", digest))
    rows += _machine_rows(meta.pid)
    folders = [folder for folder in (script.parent if script else None, Path(meta.cwd)) if folder]
    for folder in folders:
        found = git_facts(folder, script) if meta.cwd and folder.is_dir() else []
        if found:
            rows += [fact("git", name, redact(value)) for name, value in found]
            break
    return rows


def script_of(argv: Sequence[str], folder: str) -> Path | None:
    """The script that runs; None for `python -c` and the like."""
    if not argv or not argv[0] or argv[0].startswith("-"):
        return None
    path = Path(folder, argv[0])
    return path if path.is_absolute() and path.is_file() else None


def _machine_rows(pid: int) -> list[Row]:
    rows: list[Row] = []
    with contextlib.suppress(OSError):
        rows.append(fact("hardware", "cpus", len(os.sched_getaffinity(pid))))
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                rows.append(fact("hardware", "cpu", line.partition(":")[2].strip()))
                break
    with contextlib.suppress(OSError, ValueError, IndexError):
        total = Path("/proc/meminfo").read_text().splitlines()[0].split()
        rows.append(fact("hardware", "memory_bytes", int(total[1]) * 1024))
    return rows


# Facts that depend on what the process recorded ---------------------------------


def package_rows(paths: Sequence[str], recorded: Recorded) -> list[Row]:
    """The distributions on the process's import path; the first of each name counts."""
    found: dict[str, str] = {}
    for path in paths:
        with contextlib.suppress(OSError):
            for entry in sorted(os.listdir(Path(recorded.meta.cwd or "/", path))):
                stem, ending = os.path.splitext(entry)
                name, _, version = stem.partition("-")
                if ending in (".dist-info", ".egg-info") and version:
                    found.setdefault(name.lower().replace("_", "-"), version.partition("-py")[0])
    found.pop("torch", None)  # the process has recorded it
    return [fact("package", name, version) for name, version in sorted(found.items())[:MOST_PACKAGES]]


def peak_rows(recorded: Recorded, facts: Facts) -> list[Row]:
    """The device's peak rate in the job's precision: PROBE_PEAK_TFLOPS, or the known rate of the device."""
    autocast = facts.get(("hyperparameter", "amp.autocast"), "off")
    dtype = facts.get(("model", "dtype")) if autocast == "off" else autocast
    device = facts.get(("hardware", "device"))
    precision = facts.get(("environment", "torch.float32_matmul_precision"))
    configured = _configured_peak(recorded.meta.settings)
    peak = configured or peak_tflops(device, dtype, precision)
    if peak is None:
        return []
    source = "PROBE_PEAK_TFLOPS" if configured else f"known of {device} in {dtype}"
    return [fact("hardware", "peak_tflops", peak), fact("hardware", "peak_source", source)]


def _configured_peak(settings: Mapping[str, str]) -> float | None:
    """PROBE_PEAK_TFLOPS in the process; None where it was not set."""
    setting = BY_NAME["peak_tflops"]
    try:
        return setting.parse(settings.get(setting.name) or setting.default) or None
    except ValueError:
        return None
