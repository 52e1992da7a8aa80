"""Runs servers in forks of itself, after importing all that a server imports once: one in a tenth of a second
of processor time instead of one and a half. Their query workers are forks of it as well.

    python server_nursery.py LISTENER LIFE               forks servers until LIFE, a pipe, is closed
    python server_nursery.py ask SOCKET PYTHON WORD…     stands for `PYTHON WORD…` where a server is started

`ask` hands its environment and its standard streams to the process that listens at SOCKET, which forks the
server, if WORD… are those of a server and the asker lives as the listener does: same namespaces, limits and
users. In all other cases it becomes PYTHON. A forked server starts its first query worker for the first
query, not ahead of it. A forked worker enters its sandbox when DuckDB is loaded already. Never used for what
depends on how the process of a server or a worker starts.
"""

from __future__ import annotations

# What starts as `ask`, hundreds of times, imports no more than it needs; the nursery itself imports the rest.
import json
import os
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

SERVER = ["-m", "probe.server"]
_SURROUNDINGS = ("Umask:", "Uid:", "Gid:", "Groups:", "Cpus_allowed:", "CapEff:")
"""Lines of /proc/PID/status."""


def ask(address: str, python: str, words: list[str]) -> None:
    """Have the server forked, or become `PYTHON WORD…`."""
    if words != SERVER or forked(address, words, os.environ, [0, 1, 2]) is None:
        os.execv(python, [python, *words])


def forked(address: str, words: list[str], environ: Mapping[str, str], descriptors: list[int]) -> int | None:
    """Have the process at `address` fork what `python WORD…` would be; its pid, None if it does not."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as nursery:
        try:
            nursery.connect(address)
            message = {"words": words, "environ": dict(environ)}
            socket.send_fds(nursery, [json.dumps(message).encode()], descriptors)
            return int(nursery.recv(20) or 0) or None
        except OSError:  # it ended, or nobody can reach it from here
            return None


def surroundings(pid: int | str) -> list[str]:
    """What a fork of this process would not have as another process has it."""
    spaces = [os.readlink(f"/proc/{pid}/ns/{name}") for name in ("mnt", "net", "pid", "user")]
    texts = []
    for name in ("limits", "status", "stat"):
        with open(f"/proc/{pid}/{name}") as file:
            texts.append(file.read())
    limits, status, stat = texts
    lines = [line for line in status.splitlines() if line.startswith(_SURROUNDINGS)]
    return [*spaces, limits, *lines, stat.rpartition(")")[2].split()[16]]


def serve(listener: socket.socket, life: int) -> dict[str, Any] | None:
    """Until `life` is closed. Returns in a fork: the words and the environment of what it is to be, the pid
    of who asked for it, and the descriptors that it was given."""
    import select
    import struct

    ours = surroundings("self")
    imported = False
    while True:
        ready, _, _ = select.select([listener, life], [], [])
        if life in ready:
            return None
        connection, _ = listener.accept()
        with connection:
            message, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 3)
            kept: list[int] = []
            try:
                credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                asker = struct.unpack("3i", credentials)[0]
                wanted: dict[str, Any] = json.loads(message or b"{}")
                a_server = wanted.get("words") == SERVER  # else a worker of one: that lives as we do
                if not wanted or (a_server and surroundings(asker) != ours):
                    continue
                if not imported:
                    import_server(listener.getsockname())
                    imported = True
                child = fork_orphan() if a_server else fork_child()
                if child == 0:
                    listener.close()
                    os.close(life)
                    kept, descriptors = descriptors, []
                    return {**wanted, "asker": asker, "descriptors": kept}
                connection.send(str(child).encode())
            except OSError:  # the asker was killed
                continue
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)


def import_server(address: str) -> None:
    """All that a server and its workers import, frozen: or every fork copies it when it ends. And once what
    they keep: of the types of the routes (FastAPI and pydantic), of the recipes, of the recipes' SQL."""
    import gc
    from unittest.mock import MagicMock

    import probe.fleet.fleet_worker
    import probe.server.__main__
    import probe.server.http.app
    import probe.server.serve
    import probe.server.sql.batch
    import probe.server.sql.pool
    import probe.server.sql.views
    import probe.server.sql.worker
    from probe.confined import reading_sql
    from probe.diagnose.recipes import library

    probe.server.http.app.build(MagicMock(), MagicMock())
    pool: Any = probe.server.sql.pool
    pool.Pool.warm = lambda pool: None
    pool.start = Workers(address, pool.start)
    with reading_sql.database(1 << 28) as connection:
        for recipe in library.installed("").values():
            probe.server.sql.batch._parsed(connection, recipe.statement()[0])
    gc.freeze()


class Workers:
    """Stands for `worker_frames.start` where a server or a command starts its query workers."""

    def __init__(self, address: str, real: Any) -> None:
        self._address = address
        self._real = real

    def __call__(self, module: str, words: Sequence[str]) -> tuple[Any, socket.socket]:
        """A worker, which is a fork of the nursery, or a process if there is none any more; and our end of
        its socket."""
        from probe.confined.worker_frames import environment

        ours, theirs = socket.socketpair()
        with theirs:
            line = ["-m", module, str(theirs.fileno()), str(os.getpid()), *words]
            pid = forked(self._address, line, environment(), [theirs.fileno()])
        if pid is None:
            ours.close()
            return self._real(module, words)
        return Fork(pid), ours


class Fork:
    """As much of `subprocess.Popen` as a pool of workers uses, for a process that is not our child."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def poll(self, timeout_s: float | None = 0) -> int | None:
        """Something once it has ended, None before."""
        import select

        return 0 if select.select([self._descriptor], [], [], timeout_s)[0] else None

    def wait(self) -> int | None:
        """Return once it has ended."""
        return self.poll(None)

    def send_signal(self, number: int) -> None:
        """Raises ProcessLookupError when it has ended."""
        import signal

        signal.pidfd_send_signal(self._descriptor, number)

    def __del__(self) -> None:
        os.close(self._descriptor)


def fork_orphan() -> int:
    """Fork a process whose parent is init; 0 in it."""
    read, write = os.pipe()
    child = os.fork()
    if child:
        os.close(write)
        with open(read, "rb") as said:
            pid = int(said.read())
        os.waitpid(child, 0)
        return pid
    os.close(read)
    os.setsid()
    pid = os.fork()
    if pid:
        os.write(write, str(pid).encode())
        os._exit(0)
    os.close(write)
    return 0


def fork_child() -> int:
    """Fork a child, after waiting for those that have ended; 0 in it."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
    return os.fork()


def be_server(environ: dict[str, str], streams: list[int]) -> int:
    """What `python -m probe.server` does."""
    import importlib

    from probe.base import clock
    from probe.server.__main__ import main

    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environ)
    os.chdir("/")
    importlib.reload(clock)  # it reads the clocks when it is imported
    sys.argv[:] = ["probe.server"]
    return main()


def be_worker(environ: dict[str, str], words: list[str], asker: int, descriptor: int) -> None:
    """What `python -m MODULE FD PARENT_PID WORD…` does, ending with the process that asked."""
    import importlib
    import select
    import threading

    _, module, _, _, *more = words
    worker = importlib.import_module(module)
    with open("/proc/self/statm") as file:  # what this process has mapped for a server is not the query's
        worker.ADDRESS_SPACE_BYTES += int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    parent = os.getppid()
    os.setsid()
    os.chdir("/")
    os.environ.clear()
    os.environ.update(environ)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    life = os.pidfd_open(asker)

    def end_with_asker() -> None:
        select.select([life], [], [])
        os._exit(0)

    threading.Thread(target=end_with_asker, daemon=True).start()
    try:
        worker.main([str(descriptor), str(parent), *more])
    finally:
        os._exit(0)  # as one that is killed


if __name__ == "__main__":
    if sys.argv[1] == "ask":
        ask(sys.argv[2], sys.argv[3], sys.argv[4:])
    else:
        wanted = serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
        if wanted is not None and wanted["words"] == SERVER:
            status = be_server(wanted["environ"], wanted["descriptors"])
            sys.stderr.flush()
            os._exit(status)  # taking down all that was imported takes longer than ending the server
        elif wanted is not None:
            be_worker(wanted["environ"], wanted["words"], wanted["asker"], *wanted["descriptors"])
