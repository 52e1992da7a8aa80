"""Registry: which recordings exist, which processes live, and which processes an endpoint means.

It only caches the contents of files: a server that started a second ago knows as much as one that has run for
days. Used by several threads at once. Standard library, and numpy through the ring reader.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from probe.base import clock
from probe.base.errors import AgentMissing, EndpointAmbiguous, EndpointUnknown, NotYours, RecordingError
from probe.diagnose.stall_parameters import StallThresholds
from probe.recording import places
from probe.recording.journal import read_journal
from probe.recording.process import alive, life
from probe.recording.reader import Rows
from probe.recording.recording import Meta
from probe.recording.waiting import waiting
from probe.server.recordings import end_record, exit_report, job_names
from probe.server.recordings.exit_report import OwnReport
from probe.server.recordings.newest_rows import NewestRows

_log = logging.getLogger("probe.registry")
LIVE = ("running", "starting")
"""States of a process whose agent can be called."""
NO_STEP_BACKWARDS = 32
"""After this many backward passes, a job without a finished step is reported to have no optimizer step. Few
jobs accumulate gradients over as many."""
_MAKING_S = 10.0
"""A recording is created in much less time, its meta.json last."""
_LISTED_NS = 24 * 3600 * 10**9
"""Ended processes are listed for a day."""


@dataclass(frozen=True)
class Recorded:
    """A recorded process: its folder and the facts in it."""

    folder: Path
    meta: Meta

    @property
    def name(self) -> str:
        """`job/rank`."""
        return f"{self.meta.job}/{self.meta.rank}"

    @property
    def identity(self) -> tuple[Path, int]:
        """Distinguishes it from an earlier recording in the same folder."""
        return self.folder, self.meta.started_ns

    @property
    def attempt(self) -> tuple[str, int]:
        """Its run, and the attempt of that run."""
        return self.meta.run, self.meta.attempt

    @property
    def process_lives(self) -> bool:
        """Whether its process lives, recorded or not."""
        return alive(self.meta.pid, self.meta.start_ticks, self.meta.boot_id)


class Status(NamedTuple):
    """The state of a process. Times are wall nanoseconds; None where nothing is known."""

    state: str
    step: int | None
    last_step_ns: int | None
    last_seen_ns: int | None
    ended_ns: int | None
    how: str = ""
    """How it ended, in a few words; while it lives, what is odd about it, or empty."""
    exit_status: int | None = None
    """0 to 255, or the negative number of the signal; None while it lives, or if it was not observed."""
    why: tuple[str, ...] = ()
    """Evidence for how it ended."""


class Registry:
    """The recordings of one PROBE_DIR."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._known: dict[str, tuple[int, Recorded]] = {}
        self._found: list[Recorded] = []
        """All recordings that can be read, in order of their folders, as of the last call of `processes`."""
        self._oldest_first: list[Recorded] = []
        """The same, oldest first."""
        self._ended: dict[tuple[Path, int], Status] = {}
        self._own_reports: dict[Path, tuple[int, OwnReport]] = {}
        self._newest: dict[int, int] = {}
        """Start of the latest recording of each pid: an agent may be stopped and started again."""
        self._latest: dict[tuple[int, int, str], int] = {}
        """Start of the latest recording of each life of a pid: a process may execute another program."""
        self._newest_rows = NewestRows()
        self._damage: dict[Path, tuple[list[object], list[str]]] = {}
        self.unreadable: dict[Path, str] = {}
        """Recordings that cannot be read, and why."""
        self._lock = threading.Lock()
        self.complete_exit: Callable[[Recorded, OwnReport, Status], Status] | None = None
        """Adds facts to a status that only `exit_watch` has seen; writes nothing."""
        self.is_held_alive: Callable[[Recorded], bool | None] | None = None
        """Whether a process lives, if `exit_watch` holds a descriptor of it; None for other processes."""
        self.stall_thresholds: Callable[[], StallThresholds] = StallThresholds
        """The thresholds in force for the processes recorded here; set by the server."""

    # Recordings -------------------------------------------------------------

    def processes(self) -> list[Recorded]:
        """All recordings that can be read, oldest first."""
        found = self._read(places.process_paths(self.directory))
        with self._lock:
            if self.unreadable:
                self.unreadable = {one: why for one, why in list(self.unreadable.items()) if one.exists()}
            if found != self._found:
                self._take(found)
            return list(self._oldest_first)

    def _take(self, found: list[Recorded]) -> None:
        """Update the caches: there are new recordings, or some are gone. The caller has the lock."""
        newest: dict[int, int] = {}
        for recorded in found:
            began = recorded.meta.started_ns
            newest[recorded.meta.pid] = max(newest.get(recorded.meta.pid, 0), began)
        self._newest = newest
        gone = self._known.keys() - {str(recorded.folder) for recorded in found}
        for path in gone:
            _, recorded = self._known.pop(path)
            self._damage.pop(recorded.folder, None)
            self._own_reports.pop(recorded.folder, None)
            self._ended.pop(recorded.identity, None)
            self._newest_rows.forget(recorded.meta)
        if gone:
            self._latest = {}
            for _, recorded in self._known.values():
                self._note_life(recorded.meta)
        self._found = found
        self._oldest_first = sorted(found, key=lambda recorded: recorded.meta.started_ns)

    def _read(self, folders: Iterable[str]) -> list[Recorded]:
        """The recordings in these folders that can be read; a meta.json that has not changed is not read
        again."""
        found: list[Recorded] = []
        for path in folders:
            try:
                written_ns = os.stat(f"{path}/meta.json").st_mtime_ns
                known = self._known.get(path)
                if known is None or known[0] != written_ns:
                    folder = Path(path)
                    known = (written_ns, Recorded(folder, _meta(folder)))
                    with self._lock:
                        self._known[path] = known
                        self._note_life(known[1].meta)
            except FileNotFoundError:
                if _is_left(Path(path)):
                    self._cannot_be_read(Path(path), RecordingError(f"{path} has no meta.json any more"))
                continue
            except (OSError, RecordingError) as error:
                self._cannot_be_read(Path(path), error)
                continue
            if self.unreadable:
                self.unreadable.pop(known[1].folder, None)
            found.append(known[1])
        return found

    def _cannot_be_read(self, folder: Path, error: OSError | RecordingError) -> None:
        what = error.message if isinstance(error, RecordingError) else f"{folder}: {error.strerror}"
        if self.unreadable.get(folder) != what:
            _log.warning("%s", what)
            self.unreadable[folder] = what

    def damage_notes(self, recorded: Recorded) -> list[str]:
        """Notes about damage in a recording, apart from rows that a query reads. Cached until its journals or
        end.json change."""
        ended = not self.lives(recorded)
        own, beside = places.journals(recorded.folder)
        state: list[object] = [ended]
        for path in (own, beside, end_record.path_of(recorded.folder)) if ended else (beside,):
            try:
                stat = path.stat()
                state += [stat.st_size, stat.st_mtime_ns]
            except OSError:
                state.append(None)
        with self._lock:
            known = self._damage.get(recorded.folder)
        if known is None or known[0] != state:
            known = (state, exit_report.damage_notes(recorded.folder, recorded.meta, ended=ended))
            with self._lock:
                self._damage[recorded.folder] = known
        return known[1]

    def _note_life(self, meta: Meta) -> None:
        key = meta.pid, meta.start_ticks, meta.boot_id
        self._latest[key] = max(self._latest.get(key, 0), meta.started_ns)

    def live(self) -> list[Recorded]:
        """The processes that are being recorded now."""
        return [recorded for recorded in self.processes() if self.lives(recorded)]

    def listed(self, everything: bool) -> list[Recorded]:
        """The recordings that `ps` shows: those of living processes, and of each job the newest run if it
        ended less than a day ago; all recordings with `everything`."""
        found = self.processes()
        if everything:
            return found
        newest = {recorded.meta.job: recorded.meta.run for recorded in found}
        kept: list[Recorded] = []
        for recorded in found:
            status = self.status(recorded)
            recent = clock.wall_ns() - (status.ended_ns or 0) < _LISTED_NS
            if status.state in LIVE or (recent and newest[recorded.meta.job] == recorded.meta.run):
                kept.append(recorded)
        return kept

    def made_here(self, recorded: Recorded) -> bool:
        """Whether a recording was made in this PROBE_DIR, or moved here from one that no longer exists.

        A copy shares its rings with the original: they are read, not removed."""
        home = Path(recorded.meta.socket).parent.parent
        return recorded.folder.is_relative_to(self.directory) and (
            os.path.realpath(home) == os.path.realpath(self.directory)
            or not home.exists()
            or Path(recorded.meta.rings).is_relative_to(recorded.folder)
        )

    # Status -----------------------------------------------------------------

    def status(self, recorded: Recorded) -> Status:
        """State, last finished step and last sign of life, from its files and /proc. Writes nothing."""
        meta = recorded.meta
        with self._lock:
            known = self._ended.get(recorded.identity)
        if known is None:
            known = _recorded_end(recorded)
        if known is not None:
            with self._lock:
                self._ended[recorded.identity] = known
            self._newest_rows.forget(meta)
            return known
        lives, superseded, report = self._liveness(recorded)
        step, last_step_ns, last_seen_ns = self._newest_rows.progress(meta)
        if lives and report.end is None:
            if step is None and (backwards := self._newest_rows.backwards(meta)) >= NO_STEP_BACKWARDS:
                what = f"{backwards} backwards, no optimizer step seen"
                return Status("running", step, last_step_ns, last_seen_ns, None, what)
            return Status("starting" if step is None else "running", step, last_step_ns, last_seen_ns, None)
        ended_ns = (report.end or {}).get("t_ns") or last_seen_ns
        state, how = exit_report.classify_exit(report, None, last_step=step)
        if lives and how != exit_report.STOPPED:
            return Status(state, step, last_step_ns, last_seen_ns, ended_ns, exit_report.ENDING)
        if superseded and report.end is None:
            state, how = exit_report.DEAD, exit_report.REPLACED
        found = Status(state, step, last_step_ns, last_seen_ns, ended_ns or meta.started_ns, how)
        if how in exit_report.LIVES_ON:
            return found
        older = end_record.read_from_journal(recorded.folder)
        if older is not None:
            ended_ns = older["ended_ns"] or found.ended_ns
            return found._replace(**{**older, "ended_ns": ended_ns, "why": tuple(older["why"])})
        return found if self.complete_exit is None else self.complete_exit(recorded, report, found)

    def lives(self, recorded: Recorded) -> bool:
        """Whether it is being recorded now: as `status`, without reading its rings."""
        known = self._ended.get(recorded.identity)
        if known is not None:
            return known.state in LIVE
        if end_record.exists(recorded.folder):
            return self.status(recorded).state in LIVE
        lives, _, report = self._liveness(recorded)
        return lives and report.end is None

    def _liveness(self, recorded: Recorded) -> tuple[bool, bool, OwnReport]:
        """Whether the process lives and this is its present recording; whether the same process began another
        one later (it stopped and started again, or executed another program); and its own report of its end,
        which is read only where there may be one."""
        meta = recorded.meta
        with self._lock:
            latest_ns = self._latest.get((meta.pid, meta.start_ticks, meta.boot_id), 0)
        superseded = latest_ns > meta.started_ns
        held = None if self.is_held_alive is None else self.is_held_alive(recorded)
        lives = not superseded and (recorded.process_lives if held is None else held)
        report = OwnReport(None, None)
        if not lives or self._newest.get(meta.pid, 0) > meta.started_ns or not os.path.exists(meta.socket):
            report = self.own_report(recorded.folder)
        return lives, superseded, report

    def own_report(self, folder: Path) -> OwnReport:
        """The process's own records about its end. Cached until its journal grows."""
        try:
            size = places.journals(folder)[0].stat().st_size
        except OSError:
            return OwnReport(None, None)
        with self._lock:
            known = self._own_reports.get(folder)
        if known is None or known[0] != size:
            known = (size, exit_report.read_own_report(folder))
            with self._lock:
                self._own_reports[folder] = known
        return known[1]

    def last_steps(self, recorded: Recorded, count: int, after: int | None = None) -> Rows | None:
        """See `NewestRows.steps`."""
        return self._newest_rows.steps(recorded.meta, count, after)

    def noted(self, recorded: Recorded) -> int:
        """A number that grows with its journals and with each new row of python.intervals."""
        intervals = self._newest_rows.count(recorded.meta, "python.intervals")
        return places.journal_bytes(recorded.folder) + intervals

    # Endpoints --------------------------------------------------------------

    def resolve(self, endpoint: str) -> list[Recorded]:
        """The processes an endpoint means, in order of rank; at least one.

        Raises `EndpointUnknown`, `EndpointAmbiguous`, `AgentMissing` or `NotYours`.
        """
        text = endpoint.strip()
        if not text:
            return self._only_live()
        if text.isascii() and text.isdigit():
            return [self._by_pid(int(text))]
        if text.startswith("/"):
            return self._by_folder(Path(text))
        return self._by_name(text)

    def one(self, endpoint: str) -> Recorded:
        """The one process an endpoint means; raises `EndpointAmbiguous` for several."""
        found = self.resolve(endpoint)
        if len(found) > 1:
            ranks = ", ".join(recorded.name for recorded in found[:8])
            raise EndpointAmbiguous(
                f"{endpoint or 'that'} matches {len(found)} processes: {ranks}",
                hint="Name one rank: JOB/RANK.",
            )
        return found[0]

    def same_attempt(self, sources: Sequence[Recorded]) -> list[Recorded]:
        """All ranks recorded here of the same runs and attempts, in order of rank."""
        wanted = {recorded.attempt for recorded in sources}
        known = {recorded.folder: recorded for recorded in [*self.processes(), *sources]}
        return latest_ranks(one for one in known.values() if one.attempt in wanted)

    def one_or_pid(self, endpoint: str) -> Recorded | int:
        """The one process an endpoint means; its pid when it is not recorded.

        Raises `EndpointUnknown`, `EndpointAmbiguous` or `NotYours`."""
        text = endpoint.strip()
        if not (text.isascii() and text.isdigit()):
            return self.one(endpoint)
        try:
            found = self.one(endpoint)
        except AgentMissing:
            return int(text)
        except NotYours:
            if os.getuid() != 0:
                raise
            return int(text)
        detached = self.status(found).state not in LIVE and found.process_lives
        return found.meta.pid if detached else found

    def training_thread(self, recorded: Recorded) -> int | None:
        """Native id of the training thread, as the process recorded it last."""
        native_id: int | None = _training_thread(recorded).get("native_id")
        return native_id

    def training_ident(self, recorded: Recorded) -> tuple[int | None, str]:
        """Python's ident and the name of the training thread, as the process recorded them last."""
        noted = _training_thread(recorded)
        return noted.get("ident"), str(noted.get("name") or "")

    def _only_live(self) -> list[Recorded]:
        live = job_names.without_launchers(self.live())
        if not live:
            raise EndpointUnknown(
                "no process is being recorded",
                hint="Start one with PROBE=1, or name an ended one: `probe ps --all` lists them.",
            )
        if len({(recorded.meta.job, recorded.attempt) for recorded in live}) > 1:
            names = ", ".join(f"{recorded.name} (pid {recorded.meta.pid})" for recorded in live[:8])
            raise EndpointAmbiguous(f"{len(live)} processes are being recorded: {names}", hint="Name one.")
        return latest_ranks(live)

    def _by_pid(self, pid: int) -> Recorded:
        found = [recorded for recorded in self.processes() if recorded.meta.pid == pid]
        if found:
            return max(found, key=lambda one: (self.status(one).state in LIVE, one.meta.started_ns))
        process = life(pid) if pid < 2**31 else None
        if process is None or process.state in "ZX":
            raise EndpointUnknown(f"there is no process {pid}, and no recording of one")
        if process.uid != os.getuid():
            raise NotYours(f"process {pid} belongs to user id {process.uid}")
        if waiting(self.directory, pid) is not None:
            raise AgentMissing(
                f"process {pid} is attached but has not imported torch: its agent starts when it does",
                hint=f"`probe {pid} detach` cancels this.",
            )
        raise AgentMissing(f"process {pid} runs without an agent")

    def _by_folder(self, path: Path) -> list[Recorded]:
        """Recordings at or below a folder, of this or another PROBE_DIR."""
        patterns = (".", "process=*", "attempt=*/process=*", "run=*/attempt=*/process=*",
                    "recordings/run=*/attempt=*/process=*")
        try:
            owner = path.stat().st_uid
        except OSError as error:
            raise EndpointUnknown(f"{path} cannot be read: {error.strerror}") from None
        if owner not in (os.getuid(), 0):
            raise NotYours(f"{path} belongs to user id {owner}")
        for pattern in patterns:
            folders = [path] if pattern == "." else sorted(path.glob(pattern))
            found = self._read(str(folder) for folder in folders if (folder / "meta.json").is_file())
            if found:
                return sorted(found, key=lambda recorded: (recorded.meta.rank, recorded.meta.started_ns))
        raise EndpointUnknown(f"{path} holds no recording")

    def _by_name(self, text: str) -> list[Recorded]:
        everything = self.processes()
        job, separator, rank = text.rpartition("/")
        if not separator:
            job, rank = text, ""
        found = job_names.without_launchers(one for one in everything if job_names.answers_to(one.meta, job))
        if not found:
            hint = job_names.near(job, [recorded.meta for recorded in everything])
            raise EndpointUnknown(f"there is no job {job!r}", hint=hint)
        newest = self._newest_of_one_job(job, found).meta
        attempts = [recorded for recorded in found if recorded.meta.run == newest.run]
        attempt = max(recorded.meta.attempt for recorded in attempts)
        ranks = latest_ranks(recorded for recorded in attempts if recorded.meta.attempt == attempt)
        if not separator:
            return ranks
        chosen = [recorded for recorded in ranks if str(recorded.meta.rank) == rank]
        if not chosen:
            known = ", ".join(str(recorded.meta.rank) for recorded in ranks[:32])
            raise EndpointUnknown(f"job {job!r} has no rank {rank!r} here", hint=f"Ranks here: {known}.")
        return chosen

    def _newest_of_one_job(self, name: str, found: list[Recorded]) -> Recorded:
        """The newest of the processes that a name means. Raises `EndpointAmbiguous` if it means several
        running jobs, or only ended ones of several folders."""
        live = [recorded for recorded in found if self.lives(recorded)]
        newest = (live or found)[-1]
        metas = [recorded.meta for recorded in live or found]
        if job_names.several_runs(metas) if live else job_names.several_folders(metas):
            raise job_names.ambiguous(name, metas, "running" if live else "ended")
        return newest


def latest_ranks(processes: Iterable[Recorded]) -> list[Recorded]:
    """The newest process of each rank, in order of rank, without ranks beyond the newest world size: those
    belong to an earlier start with more ranks."""
    latest: dict[int, Recorded] = {}
    world_size: int | None = None
    for recorded in sorted(processes, key=lambda recorded: recorded.meta.started_ns):
        latest[recorded.meta.rank] = recorded
        world_size = recorded.meta.world_size
    return [
        latest[rank] for rank in sorted(latest)
        if world_size is None or rank < world_size or (latest[rank].meta.world_size or 0) <= world_size
    ]


def _meta(folder: Path) -> Meta:
    """The facts of a recording; rings in its folder are found wherever that folder is now."""
    meta = Meta.read(folder)
    beside = folder / "rings"
    return replace(meta, rings=str(beside)) if beside.is_dir() else meta


def _is_left(folder: Path) -> bool:
    """Whether a folder without meta.json is neither being created nor being removed right now."""
    try:
        return time.time() - places.journals(folder)[0].stat().st_mtime > _MAKING_S
    except OSError:
        return False


def _training_thread(recorded: Recorded) -> dict[str, Any]:
    records = read_journal(places.journals(recorded.folder)[0])
    return next((one for one in reversed([*records]) if one.get("event") == "training thread"), {})


def _recorded_end(recorded: Recorded) -> Status | None:
    """The status in the end record; None where there is no usable one."""
    try:
        facts = end_record.read(recorded.folder, recorded.meta)
        noted = facts if "why" in facts else end_record.read_from_journal(recorded.folder) or {}
        return Status(
            facts["state"], facts["step"], facts["last_step_ns"], facts["last_seen_ns"], facts["ended_ns"],
            facts.get("how", ""), facts.get("exit_status"), tuple(map(str, noted.get("why", ()))),
        )
    except (OSError, ValueError, KeyError):
        return None
