"""Launch: starts the server, detached from the process that starts it.

Used by the agent (which does not wait) and by the command (which does). The server becomes a child of init
through a shell that ends soon, so a training process has no child to reap. The job may fork at any time, so
nothing waits for a descriptor to close, and no lock outlives its descriptor. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import site
import sys
import time
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from probe.base import descriptors, wire
from probe.base.errors import AgentUnreachable, ProbeError, ServerUnavailable
from probe.base.settings import Settings
from probe.recording import places

SERVER_NEEDS = ("fastapi", "uvicorn", "duckdb", "numpy")
"""Packages of the server that a job's environment may lack."""
LARGEST_LOG_BYTES = 1 << 20
LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
_SHELL = "/bin/sh"
_SCRIPT = 'cd / && { "$@" & sleep 0.1; }'
"""The shell sleeps: the spawning thread blocks signals during the spawn, and a SIGCHLD in that time would
interrupt a system call of the training thread."""
_SIGNALS = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_HEALTH_TIMEOUT_S = 2.0
_START_AGAIN_S = 1.0
_STARTS = 2
"""Failed starts after which the cause is searched for, if nothing holds the lock."""
_LONGEST_LOOK_BYTES, _LONGEST_WORDS = 1 << 16, 400
_FREE = "Free some space there, or set PROBE_DIR to another folder."
_PROXIES = ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "SSL_CERT_")
_CLOUD_VARIABLES: dict[str, tuple[str, ...]] = {
    "s3": ("AWS_", *_PROXIES), "gs": ("GOOGLE_", *_PROXIES),
    "az": ("AZURE_", *_PROXIES), "abfs": ("AZURE_", *_PROXIES), "abfss": ("AZURE_", *_PROXIES),
}
"""Beginnings of the variables with which an object store is reached, by the scheme of its URLs."""
_KEPT_VARIABLES = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR",
    "LD_LIBRARY_PATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX",
)


def ensure_server(directory: Path, settings: Settings, *, wait_s: float) -> None:
    """Start a server at `directory` unless one answers.

    With `wait_s` 0 (the agent) it does not wait, and a server that accepts connections is enough. Raises
    `ServerUnavailable` when none can be started, or none answers within `wait_s`.
    """
    if wait_s <= 0:
        if not _accepts(directory):
            _start(directory, settings)
        return
    deadline = time.monotonic() + wait_s
    started_at = float("-inf")
    starts, log_bytes = 0, _log_bytes(directory)
    while True:
        problem = _health_problem(directory)
        if problem is None:
            return
        now = time.monotonic()
        if now >= deadline:
            raise _no_answer(directory, f"did not answer within {wait_s:g} s: {problem}", log_bytes)
        # A server that is ending still holds the lock, so one started before its end gives up.
        if now - started_at >= _START_AGAIN_S and not _accepts(directory):
            ended = starts >= _STARTS and not _locked(directory)
            if ended and (places.why_not_writable(directory) or _last_error(directory, log_bytes)):
                raise _no_answer(directory, "ends right after its start", log_bytes)
            _start(directory, settings)
            started_at, starts = now, starts + 1
        time.sleep(0.02)


def _no_answer(directory: Path, what: str, log_bytes: int) -> ServerUnavailable:
    """The error with its cause: the folder's, else the server's last log line after `log_bytes`."""
    unwritable = places.why_not_writable(directory)
    if unwritable:
        return ServerUnavailable(f"the server at {directory} {what}; {unwritable}", hint=_FREE)
    said = _last_error(directory, log_bytes)
    if said:
        return ServerUnavailable(
            f"the server at {directory} {what}; its log: {said}",
            hint=f"{directory / 'server.log'} has more; `probe doctor` checks this machine.",
        )
    return ServerUnavailable(
        f"the server at {directory} {what}; its log has no reason",
        hint="Try again if the machine was busy; `probe doctor` checks this machine.",
    )


def _log_bytes(directory: Path) -> int:
    try:
        return (directory / "server.log").stat().st_size
    except OSError:
        return 0


def _last_error(directory: Path, after_bytes: int) -> str:
    """The last failure in the log after `after_bytes`; empty without one."""
    try:
        with descriptors.reading(directory / "server.log") as file:
            if os.fstat(file.fileno()).st_size < after_bytes:
                after_bytes = 0  # it was truncated
            file.seek(after_bytes)
            lines = file.read(_LONGEST_LOOK_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    if any(line.startswith("Traceback") for line in lines):
        return lines[-1][:_LONGEST_WORDS]
    found = [line for line in lines if " ERROR " in line or not line[:1].isdigit()]
    return found[-1].partition(" ERROR ")[2][:_LONGEST_WORDS] or found[-1][:_LONGEST_WORDS] if found else ""


def lock_path(directory: Path) -> Path:
    """The file that a server keeps locked while it runs."""
    return directory / "server.lock"


def _locked(directory: Path) -> bool:
    """Whether a server process exists here, starting and ending ones included."""
    try:
        lock = descriptors.opened(lock_path(directory), LOCK_FLAGS)
    except OSError:
        return False
    with lock:
        try:
            fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(lock.fileno(), fcntl.LOCK_UN)  # closing is not enough if a child inherited it
        except OSError:
            return True
    return False


def _accepts(directory: Path) -> bool:
    try:
        wire.connect_unix(places.server_socket(directory), 0.5).close()
    except (OSError, ProbeError):
        return False
    return True


def _health_problem(directory: Path) -> str | None:
    """The problem with the server; None if it is healthy."""
    try:
        wire.call(places.server_socket(directory), "GET", "/v1/health", timeout_s=_HEALTH_TIMEOUT_S)
    except AgentUnreachable:
        return "it accepts connections but does not answer: it is stopped, or this machine is busy"
    except ProbeError as error:
        return error.message
    except OSError as error:
        return error.strerror or str(error)
    return None


def _start(directory: Path, settings: Settings) -> None:
    python = settings.server_python or sys.executable
    if not settings.server_python:
        missing = [name for name in SERVER_NEEDS if not _found(name)]
        if missing or not python:
            raise ServerUnavailable(
                f"this Python lacks packages that the server needs: {', '.join(missing) or 'an executable'}",
                hint="The job is recorded anyway. Set PROBE_SERVER_PYTHON to a Python with probe installed, "
                "or run `probe` from one.",
            )
    places.make_private(directory)
    if _locked(directory):
        return
    lack = places.write_refusal(directory) or places.no_room(directory)
    if lack:  # the server could not write this to its log
        raise ServerUnavailable(
            f"the server cannot be started: {directory} {lack}",
            hint="Free some space there, or set PROBE_DIR to another folder of yours on a local disk.",
        )
    try:
        pid = os.posix_spawn(
            _SHELL, [_SHELL, "-c", _SCRIPT, "sh", python, "-m", "probe.server"],
            server_environment(directory, settings, settings.environ),
            file_actions=_streams(_log_of(directory)), setsid=True, setsigmask=(), setsigdef=_SIGNALS,
        )
    except OSError as error:
        raise ServerUnavailable(f"the server could not be started: {error}") from None
    with contextlib.suppress(ChildProcessError):  # the job, which waits for its children, has reaped it
        os.waitpid(pid, 0)


def _streams(log: Path) -> list[tuple[Any, ...]]:
    """File actions of the spawn: close all descriptors of the job, log to stderr."""
    others = [int(name) for name in descriptors.names("/proc/self/fd") if int(name) > 2]
    return [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, str(log), _LOG_FLAGS, 0o600),
        *((os.POSIX_SPAWN_CLOSE, descriptor) for descriptor in others),
    ]


def _log_of(directory: Path) -> Path:
    """The server's log file, truncated when it has grown too long."""
    path = directory / "server.log"
    try:
        with descriptors.opened(path, _LOG_FLAGS) as log:
            if os.fstat(log.fileno()).st_size > LARGEST_LOG_BYTES:
                os.ftruncate(log.fileno(), 0)
    except OSError as error:
        why = places.why_not_writable(directory) or f"{path} cannot be written: {error.strerror or error}"
        raise ServerUnavailable(f"no server can be started: {why}", hint=_FREE) from None
    return path


def server_environment(directory: Path, settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """Environment of the server: probe's settings and the variables that Python needs; no secrets except
    those for the object store in PROBE_ARCHIVE, and no PROBE, so that it starts no agent."""
    own = ("PROBE_", *_CLOUD_VARIABLES.get(settings.archive.partition("://")[0], ()))
    kept = {
        name: value for name, value in environ.items() if name in _KEPT_VARIABLES or name.startswith(own)
    }
    kept["PROBE_DIR"] = str(directory)
    kept["PYTHONSAFEPATH"] = "1"  # cwd is /, and /probe may be anything
    names = ("probe",) if settings.server_python else ("probe", *SERVER_NEEDS)
    paths = import_paths(names)
    if paths:
        kept["PYTHONPATH"] = os.pathsep.join(paths)
    return kept


def import_paths(names: Iterable[str]) -> list[str]:
    """Folders of these packages outside of this interpreter's site-packages."""
    usual = {os.path.realpath(folder) for folder in site.getsitepackages()}
    found: list[str] = []
    for name in names:
        spec = find_spec(name)
        if spec is None or not spec.origin:
            continue
        folder = os.path.dirname(os.path.realpath(spec.origin))
        if spec.submodule_search_locations:
            folder = os.path.dirname(folder)
        if folder not in usual and folder not in found:
            found.append(folder)
    return found


def _found(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False
