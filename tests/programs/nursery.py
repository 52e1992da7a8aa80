"""Runs programs in forks of itself, after importing torch and the agent once: a job in a tenth of a second.

Asked over the socket whose number is its argument: a JSON text with `program`, `options` and `environ`,
and four descriptors for stdin, stdout, stderr and the status. With PROBE=1 in the environment the start-up
hook is called as it is after an import of torch. On the status go the pid and, at the end, the status that
`waitpid` gave. Never used for what depends on how an interpreter starts.

A fork that ends by itself ends as Python does, but for the C++ destructors of torch that come after Python's
end: they cost a fifth of a second of processor time. With WHOLE_END in the environment they run.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import torch
import torch.utils.data

PROGRAMS = Path(__file__).resolve().parent
AGENT = ("lifecycle",)
"""What of the agent is imported before the forks: with everything that it imports, a fifth of a second."""


def serve(requests: socket.socket) -> dict[str, Any] | None:
    """Until the socket is closed. Returns in a fork that is to run what it returns."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, 4)
        if not message:
            return None
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the minders
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            wanted: dict[str, Any] = json.loads(message)
            mind(descriptors)
            return wanted
        for descriptor in descriptors:
            os.close(descriptor)


def mind(descriptors: list[int]) -> None:
    """Fork the job, in which this returns; wait for it and say how it ended."""
    *streams, status = descriptors
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.write(status, f"{os.getpid()}\n".encode())
        os.close(status)
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
            os.close(descriptor)
        return
    for descriptor in streams:
        os.close(descriptor)
    for number in range(3):
        os.close(number)
    os.write(status, f"{os.waitpid(pid, 0)[1]}\n".encode())
    os._exit(0)


def run(wanted: dict[str, Any]) -> None:
    """Be that program."""
    os.environ.clear()
    os.environ.update(wanted["environ"])
    if "OMP_NUM_THREADS" in os.environ:  # OpenMP read it when torch was imported
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if "WHOLE_END" not in os.environ:
        libc = ctypes.CDLL(None)
        libc.on_exit(libc._exit, None)
    path = PROGRAMS / f"{wanted['program']}.py"
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


if __name__ == "__main__":
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])  # the first one imports a second's worth of torch
    for name in AGENT:
        importlib.import_module(f"probe.job.agent.{name}")
    gc.freeze()  # or every fork copies all of torch when it ends
    chosen = serve(socket.socket(fileno=int(sys.argv[1])))
    if chosen is not None:
        run(chosen)
