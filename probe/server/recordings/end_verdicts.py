"""The verdict on a process that has ended: how, at which step, and what to query.

From its status and its files; for `exit_watch`, which records it, and for requests. Any thread of the server.
Standard library only.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from probe.base.errors import RecordingError
from probe.bundle import moment
from probe.diagnose.finding import SEVERITIES, Finding
from probe.diagnose.process import wording
from probe.diagnose.states import ALARM, NOTICE, OK, UNKNOWN
from probe.recording import places
from probe.recording.crash import read_crash
from probe.server.recordings import exit_report
from probe.server.recordings.exit_report import OwnReport
from probe.server.recordings.registry import LIVE, Recorded, Status


def verdict_of_end(recorded: Recorded, status: Status) -> Finding:
    """The verdict on a process that has ended."""
    if status.state in LIVE:
        raise ValueError(f"{recorded.name} has not ended")
    if status.state == moment.STATE:
        return _verdict_of_bundle(recorded)
    why = list(status.why)
    if status.last_step_ns is not None and status.ended_ns:
        ago_s = max(0.0, (status.ended_ns - status.last_step_ns) * 1e-9)
        why.insert(0, f"it finished step {status.step:,}, {wording.seconds(ago_s)} before its end")
    elif status.step is None:
        why.insert(0, "it finished no step")
    at = f"at step {status.step:,}" if status.step is not None else "before its first step ended"
    what = f"{recorded.name} (pid {recorded.meta.pid}) {_words(status)}, {at}"
    report = exit_report.read_own_report(recorded.folder)
    return Finding(status.state, _severity(status), what, why, _next(recorded, status, report))


def _verdict_of_bundle(recorded: Recorded) -> Finding:
    """The verdict on a process that lived when the bundle was made, as it was then."""
    known = moment.read(recorded.folder)
    if known is None or known.verdict is None:
        return Finding(UNKNOWN, OK, f"{recorded.name} (pid {recorded.meta.pid}): the bundle has no verdict")
    try:
        verdict = Finding(**known.verdict)
        if verdict.severity not in SEVERITIES or not all(map(_is_lines, (verdict.why, verdict.next))):
            raise ValueError("no such verdict")
    except (TypeError, ValueError) as error:
        raise RecordingError(f"{recorded.folder / moment.FILE} cannot be used: {error}") from None
    when = datetime.fromtimestamp(known.made_ns * 1e-9).strftime("%Y-%m-%d %H:%M:%S")
    note = f"as it was at {when}, when the bundle was made; the process cannot be reached any more"
    why = [*verdict.why, note]
    pid, asked = f"probe {recorded.meta.pid} ", f"probe {recorded.folder} "
    return replace(verdict, why=why, next=[line.replace(pid, asked) for line in verdict.next])


def _is_lines(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _words(status: Status) -> str:
    how = status.how
    if how == exit_report.ENDING:
        return "has closed its recording and is still exiting"
    if status.state == exit_report.FINISHED:
        if how in ("", exit_report.FINISHED):
            return "finished"
        return f"finished ({how.removeprefix('finished, ')})"
    if how.startswith("exception "):
        return f"failed: {how.removeprefix('exception ')}"
    if how == exit_report.INTERRUPTED:
        return "was interrupted (KeyboardInterrupt)"
    if how in (exit_report.OUT_OF_MEMORY, exit_report.REPLACED):
        return f"was {how}" if how == exit_report.OUT_OF_MEMORY else how
    if status.state == exit_report.DEAD:
        unknown = how == exit_report.UNKNOWN
        return "died for an unknown reason: no server saw it end" if unknown else f"died of {how}"
    return f"failed: {how}"


def _severity(status: Status) -> str:
    if status.state == exit_report.FINISHED:
        return OK
    return NOTICE if status.how in (exit_report.INTERRUPTED, exit_report.REPLACED) else ALARM


def _next(recorded: Recorded, status: Status, report: OwnReport) -> list[str]:
    in_bundle = recorded.meta.boot_id == moment.BOOT
    name = f"probe {recorded.folder if in_bundle else recorded.meta.pid} query"
    if status.state == exit_report.FINISHED:
        return [f'{name} "SELECT step, loss FROM python.steps ORDER BY step DESC LIMIT 5"']
    found: list[str] = []
    if report.exception is not None:
        found.append(f'{name} "SELECT step, type, message FROM python.exceptions"')
    stacks = "SELECT reason, thread_name, depth, func, lineno FROM python.stacks ORDER BY t_ns DESC, depth"
    left_at_once = report.end is not None and report.end.get("event") == "os._exit"
    if report.exception is not None or left_at_once or read_crash(places.crash_file(recorded.folder)):
        found.append(f'{name} "{stacks}"')
    if status.how in (exit_report.OUT_OF_MEMORY, "SIGKILL", exit_report.UNKNOWN):
        found.append(f'{name} "SELECT step, rss_bytes FROM process.memory ORDER BY t_ns DESC LIMIT 10"')
    found.append(f'{name} "SELECT step, wall_s, loss FROM python.steps ORDER BY step DESC LIMIT 5"')
    return found
