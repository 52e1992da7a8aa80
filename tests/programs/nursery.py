"""Runs programs in forks of itself, after importing torch and the agent once: a job in a tenth of a second.

    python nursery.py LISTENER LIFE      forks jobs until LIFE, a pipe, is closed

Whoever connects to LISTENER sends a JSON text with `program`, `options` and `environ`, and four descriptors
for stdin, stdout, stderr and the status. With PROBE=1 in the environment the start-up hook is called as it is
after an import of torch. On the status go the pid and, at the end, the status that `waitpid` gave. torch is
imported for the first job. Never used for what depends on how an interpreter starts.

A fork whose program returns ends after its threads, its exit functions and a flush: Python's taking down of
torch, and torch's own destructors after it, cost a third of a second of processor time. After an exception or
`sys.exit` only the destructors are left out. With WHOLE_END in the environment it ends as any process does.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

AGENT = ("lifecycle",)
"""What of the agent is imported before the forks: with everything that it imports, a fifth of a second."""


def serve(listener: socket.socket, life: int) -> dict[str, Any] | None:
    """Until `life` is closed. Returns in a fork that is to run what it returns."""
    import select

    running: dict[int, tuple[int, int]] = {}  # by pidfd: the pid, and where its status goes
    imported = False
    while True:
        ready, _, _ = select.select([listener, life, *running], [], [])
        if life in ready:
            return None
        for descriptor in running.keys() & ready:
            tell_status(*running.pop(descriptor))
            os.close(descriptor)
        if listener not in ready:
            continue
        wanted, descriptors = request(listener)
        if not wanted:
            continue
        if not imported:
            import_torch_and_agent()
            imported = True
        *streams, status = descriptors
        pid = os.fork()
        if pid == 0:
            for descriptor in (life, status, *running, *(other for _, other in running.values())):
                os.close(descriptor)
            listener.close()
            become_job(streams)
            return wanted
        for descriptor in streams:
            os.close(descriptor)
        os.write(status, f"{pid}\n".encode())
        running[os.pidfd_open(pid)] = pid, status


def request(listener: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """What somebody wants, and the four descriptors for it; nothing from who was killed before asking."""
    import json
    import socket

    connection, _ = listener.accept()
    with connection:
        message, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 4)
    return json.loads(message or b"{}"), descriptors


def tell_status(pid: int, status: int) -> None:
    """Wait for a job that has ended, and say how."""
    import contextlib

    ended = os.waitpid(pid, 0)[1]
    with contextlib.suppress(BrokenPipeError):  # the test ended first
        os.write(status, f"{ended}\n".encode())
    os.close(status)


def become_job(streams: list[int]) -> None:
    """A session of its own, with these streams."""
    os.setsid()
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)


def import_torch_and_agent() -> None:
    """All that a job imports, frozen: or every fork copies it when it ends."""
    import gc
    import importlib

    import torch
    import torch.utils.data

    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])  # the first one imports a second's worth of torch
    for name in AGENT:
        importlib.import_module(f"probe.job.agent.{name}")
    gc.freeze()


def run(wanted: dict[str, Any]) -> None:
    """Be that program."""
    import ctypes
    import importlib
    import runpy
    from pathlib import Path

    import torch

    os.environ.clear()
    os.environ.update(wanted["environ"])
    if "OMP_NUM_THREADS" in os.environ:  # OpenMP read it when torch was imported
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if "WHOLE_END" not in os.environ:
        libc = ctypes.CDLL(None)
        libc.on_exit(libc._exit, None)
    path = Path(__file__).resolve().parent / f"{wanted['program']}.py"
    sys.argv = [str(path), *wanted["options"]]
    sys.path[0] = str(path.parent)
    if os.environ.get("PROBE") == "1":
        from probe.base import clock
        from probe.boot import torch_probe_boot

        importlib.reload(clock)  # it reads the clocks when it is imported
        torch_probe_boot.begin()
    else:
        for name in [name for name in sys.modules if name.partition(".")[0] == "probe"]:
            del sys.modules[name]
    runpy.run_path(str(path), run_name="__main__")
    if "WHOLE_END" not in os.environ:
        end()


def end() -> None:
    """What Python does first when a program has returned, and no more."""
    import atexit
    import contextlib
    import threading

    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # there is none, or it was closed
            stream.flush()
    os._exit(0)


def main() -> dict[str, Any] | None:
    """Serve whoever connects to the socket whose number is the first argument."""
    import socket

    return serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))


if __name__ == "__main__":
    chosen = main()
    if chosen is not None:
        run(chosen)
