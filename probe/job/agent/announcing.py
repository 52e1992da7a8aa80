"""Announcing: the hosts of a job tell each other where their servers are.

Only in a job on several hosts. The first rank of each host appends one line to a key of ours in the job's
store, over a connection of its own with a short timeout, and reads the lines of the others: on a thread,
`probe-announce`, from the time the job has its process group until all hosts are known, or for a few minutes.
The trainer's keys, connection and groups are never touched. The result is written beside the recording.
Standard library; torch only once the job has made its process group.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from probe.base import descriptors
from probe.base.isolation import Isolation
from probe.base.rank_sets import as_text
from probe.base.settings import Settings
from probe.job.agent.identity import is_loopback
from probe.job.introspection.snippet_names import process_groups
from probe.recording import announcement, checked
from probe.recording.announcement import Announcement, Peers
from probe.recording.recording import Recording

STORE_TIMEOUT_S = 2.0
"""Time-out of each call to the store; the end of the process waits for the thread about this long."""
SERVER_WAIT_S = 20.0
"""How long to wait for the server's address; after that, announce this host without one."""
LEARNING_S = 300.0
_PAUSES_S = (0.3, 0.5, 1.0, 1.0, 2.0, 2.0, 5.0)
_LAST_PAUSE_S = 10.0
_MOST_HOSTS = 65536
_LONGEST_TOKEN_BYTES = 4096
_TOGETHER_NS = 10 * 10**9
"""The ranks of an attempt begin within this time, as far as the hosts' clocks agree."""


class Announcing:
    """One agent's part; `check` is called on the agent's thread."""

    def __init__(
        self, recording: Recording, directory: Path, settings: Settings, isolation: Isolation
    ) -> None:
        self._recording = recording
        self._directory = directory
        self._settings = settings
        self._isolation = isolation
        self._environ = settings.environ
        self.wanted = recording.meta.local_rank in (0, None)
        self._candidates: list[tuple[str, str]] | None = None
        self._waits_until_s = 0.0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def check(self) -> None:
        """Begin once the job has a process group and this host's server is there, or should be by now."""
        if not self.wanted or self._thread is not None:
            return
        if self._candidates is None:
            self._candidates = candidates(self._environ)
            self._keep([])
        if process_groups() is None:
            return
        now = time.monotonic()
        self._waits_until_s = self._waits_until_s or now + SERVER_WAIT_S
        if self._settings.listen and server_url(self._directory) is None and now < self._waits_until_s:
            return
        self._thread = threading.Thread(target=self._run, name="probe-announce", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the calls to the store: a thread inside torch at the interpreter's end would end the process by
        SIGABRT. Waits for the call under way."""
        self.wanted = False
        self._ended.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(2 * STORE_TIMEOUT_S)

    def _run(self) -> None:
        self._isolation.attempt("announcing", self._try_exchange)

    def _try_exchange(self) -> None:
        try:
            self._exchange()
        except (RuntimeError, OSError, KeyError, ValueError) as error:  # torch's own are RuntimeErrors
            self._recording.journal.append({"event": "not announced", "error": str(error)[:500]})

    def _exchange(self) -> None:
        """Tell the others where this host's server is, and read where theirs are. On `probe-announce`."""
        host, port = store_address(self._environ)
        store: Any = sys.modules["torch.distributed"].TCPStore(
            host, port, is_master=False, timeout=timedelta(seconds=STORE_TIMEOUT_S), wait_for_workers=False
        )
        store.append(self._key(), announcement.signed(self._own(host, port), self._token()) + "\n")
        known: list[str] = []
        until_s = time.monotonic() + LEARNING_S
        pauses = iter(_PAUSES_S)
        while not self._ended.is_set() and time.monotonic() < until_s:
            lines = store.get(self._key()).decode(errors="replace").splitlines()[-_MOST_HOSTS:]
            if lines != known:
                known = lines
                self._keep(lines)
            if self._complete(lines):
                return
            self._ended.wait(next(pauses, _LAST_PAUSE_S))

    def _key(self) -> str:
        """The key of this run, used by probe only. Not per attempt: torchrun counts restarts on each host
        separately."""
        return f"probe/{self._recording.meta.run}/hosts"

    def _own(self, store_host: str, store_port: int) -> Announcement:
        meta = self._recording.meta
        local = self._environ.get("LOCAL_WORLD_SIZE", "")
        ranks = ""
        if local.isdigit() and meta.local_rank == 0 and "GROUP_RANK" in self._environ:
            ranks = as_text(range(meta.rank, meta.rank + int(local)))  # torchrun counts host by host
        url = reachable(server_url(self._directory) or "", store_host, store_port)
        return Announcement(meta.host, url, meta.run, meta.attempt, ranks, meta.started_ns)

    def _complete(self, lines: list[str]) -> bool:
        """Whether every rank is on a host that announced itself since this attempt began: a launcher that
        keeps its store still has the lines of the attempt before."""
        spoken: set[int] = set()
        began_ns = self._recording.meta.started_ns - _TOGETHER_NS
        for line in lines:
            read = announcement.read_line(line)
            if read is not None and read[0].started_ns >= began_ns:
                with contextlib.suppress(ValueError):
                    spoken.update(announcement.ranks_in(read[0].ranks))
        return spoken >= set(range(self._recording.meta.world_size or 1))

    def _keep(self, lines: list[str]) -> None:
        announcement.write(self._recording.process, Peers(lines, self._candidates or []))

    def _token(self) -> str:
        path = self._settings.token_file or self._directory / "token"
        try:
            return checked.read_bytes(Path(path), _LONGEST_TOKEN_BYTES).decode("ascii").strip()
        except (OSError, ValueError):
            return ""


def server_url(directory: Path) -> str | None:
    """The URL of the directory's server, if it listens on TCP."""
    try:
        found: Any = checked.read_sealed(directory / "server.json")["url"]
    except (OSError, ValueError, KeyError):
        return None
    return found if isinstance(found, str) else None


def store_address(environ: Mapping[str, str]) -> tuple[str, int]:
    """Host and port of the job's store: from the store itself, else from the environment.

    Raises `KeyError` or `ValueError` if neither has them."""
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    store: Any = getattr(c10d, "_get_default_store", lambda: None)()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    host, port = getattr(store, "host", None), getattr(store, "port", None)
    if isinstance(host, str) and isinstance(port, int):
        return host, port
    return environ["MASTER_ADDR"], int(environ["MASTER_PORT"])


def reachable(url: str, store_host: str, store_port: int) -> str:
    """The server's URL as other hosts can use it; empty if they cannot.

    For a server on all addresses it has the address from which this host reaches the store."""
    scheme, _, rest = url.partition("://")
    host, _, port = rest.rpartition(":")
    if host not in ("0.0.0.0", "[::]"):
        return "" if is_loopback(host) else url
    if scheme == "https":  # certificates are for names
        return f"{scheme}://{socket.gethostname()}:{port}"
    try:
        found = socket.getaddrinfo(store_host, store_port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with descriptors.Socket(family, kind, protocol) as probe:
            probe.connect(address)  # of a datagram socket: nothing is sent
            own = str(probe.getsockname()[0])
    except OSError:
        own = ""
    if is_loopback(own):
        own = socket.gethostname()
    return f"{scheme}://{f'[{own}]' if ':' in own else own}:{port}"


def candidates(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """The other hosts that the job's environment names, as (name, source)."""
    found: dict[str, str] = {}
    for name in nodes(environ.get("SLURM_STEP_NODELIST", "") or environ.get("SLURM_JOB_NODELIST", "")):
        found.setdefault(name, "slurm")
    master = environ.get("MASTER_ADDR", "")
    if not is_loopback(master):
        found.setdefault(master, "torchelastic")
    own = socket.gethostname().lower()
    names = {own, own.partition(".")[0], os.uname().nodename.lower()}
    return [(name, source) for name, source in found.items() if name.lower() not in names]


def nodes(text: str) -> list[str]:
    """The hosts of a Slurm node list: `gpu[01-03,07],login` has five. Empty if it is not a node list."""
    found: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        names = [""]
        for literal, ranges in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", part):
            more = [literal] if literal else _numbers(ranges)
            if len(names) * len(more) > announcement.MOST_HOSTS:
                return []
            names = [name + one for name in names for one in more]
        found += names
    return found[: announcement.MOST_HOSTS]


def _numbers(ranges: str) -> list[str]:
    """`01-03,07` as 01, 02, 03, 07; empty if it is not a list of ranges."""
    found: list[str] = []
    for part in ranges.split(","):
        first, separator, last = part.partition("-")
        if not first.isdigit() or (separator and not last.isdigit()):
            return []
        count = int(last or first) - int(first) + 1
        if count > announcement.MOST_HOSTS:
            return []
        found += [str(int(first) + one).zfill(len(first)) for one in range(count)]
    return found
