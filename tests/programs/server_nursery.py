"""Runs servers in forks of itself, after importing all that a server imports once: one in a tenth of a second
of processor time instead of one and a half.

    python server_nursery.py LISTENER LIFE               forks servers until LIFE, a pipe, is closed
    python server_nursery.py ask SOCKET PYTHON WORD…     stands for `PYTHON WORD…` where a server is started

`ask` hands its environment and its standard streams to the process that listens at SOCKET, which forks the
server, if WORD… are those of a server and the asker lives as the listener does: same namespaces, limits and
users. In all other cases it becomes PYTHON. A forked server starts its first query worker for the first
query, not ahead of it. Never used for what depends on how a server's process starts.
"""

from __future__ import annotations

import json
import os
import re
import select
import socket
import struct
import sys

SERVER = ["-m", "probe.server"]
_SURROUNDINGS = re.compile(r"^(?:Umask|[UG]id|Groups|Cpus_allowed|CapEff):.*$", re.MULTILINE)


def ask(address: str, python: str, words: list[str]) -> None:
    """Have the server forked, or become `PYTHON WORD…`."""
    if words == SERVER:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as nursery:
            try:
                nursery.connect(address)
                socket.send_fds(nursery, [json.dumps(dict(os.environ)).encode()], [0, 1, 2])
                if nursery.recv(1) == b"y":
                    return
            except OSError:  # it ended, or nobody can reach it from here
                pass
    os.execv(python, [python, *words])


def surroundings(pid: int | str) -> list[str]:
    """What a fork of this process would not have as another process has it."""
    spaces = [os.readlink(f"/proc/{pid}/ns/{name}") for name in ("mnt", "net", "pid", "user")]
    texts = []
    for name in ("limits", "status"):
        with open(f"/proc/{pid}/{name}") as file:
            texts.append(file.read())
    with open(f"/proc/{pid}/stat") as file:
        nice = file.read().rpartition(")")[2].split()[16]
    return [*spaces, texts[0], *_SURROUNDINGS.findall(texts[1]), nice]


def serve(listener: socket.socket, life: int) -> dict[str, str] | None:
    """Until `life` is closed. Returns the environment in a fork that is to be a server."""
    ours = surroundings("self")
    imported = False
    while True:
        ready, _, _ = select.select([listener, life], [], [])
        if life in ready:
            return None
        connection, _ = listener.accept()
        with connection:
            message, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 3)
            try:
                credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                if not message or surroundings(struct.unpack("3i", credentials)[0]) != ours:
                    continue
                if not imported:
                    import_server()
                    imported = True
                if fork_orphan():
                    listener.close()
                    os.close(life)
                    for number, descriptor in enumerate(descriptors):
                        os.dup2(descriptor, number)
                    environ: dict[str, str] = json.loads(message)
                    return environ
                connection.send(b"y")
            except OSError:  # the asker was killed
                continue
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)


def import_server() -> None:
    """All that a server imports, frozen: or every fork copies it when it ends."""
    import gc

    import probe.server.__main__
    import probe.server.serve
    import probe.server.sql.pool

    probe.server.sql.pool.Pool.warm = lambda pool: None  # type: ignore[method-assign]
    gc.freeze()


def fork_orphan() -> bool:
    """Fork a process whose parent is init; true in it."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    return True


def be_server(environ: dict[str, str]) -> int:
    """What `python -m probe.server` does."""
    import importlib

    from probe.base import clock
    from probe.server.__main__ import main

    os.environ.clear()
    os.environ.update(environ)
    os.chdir("/")
    importlib.reload(clock)  # it reads the clocks when it is imported
    sys.argv[:] = ["probe.server"]
    return main()


if __name__ == "__main__":
    if sys.argv[1] == "ask":
        ask(sys.argv[2], sys.argv[3], sys.argv[4:])
    else:
        wanted = serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
        if wanted is not None:
            sys.exit(be_server(wanted))
