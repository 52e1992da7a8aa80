"""A real notebook kernel: its own threads are no suspects, and being shut down is no death."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import pytest

from diagnose.hung import until
from harness import SERVER, Place, run_probe
from probe.diagnose import states

TRAINS = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
"""
PATIENT_S = 120.0


def diagnosis(place: Place, pid: int) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(run_probe(place, str(pid), "diagnose", "--format", "json").stdout)
    return answer


@pytest.mark.parametrize(("restart", "how"), [(False, "shut down"), (True, "restarted")])
def test_a_kernel_that_is_ended_by_its_front_end_has_finished(place: Place, restart: bool, how: str) -> None:
    pytest.importorskip("ipykernel")
    jupyter = pytest.importorskip("jupyter_client")
    kernels = jupyter.manager.KernelManager()
    kernels._kernel_spec = jupyter.kernelspec.KernelSpec(
        argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], language="python"
    )
    kernels.start_kernel(env=place.watched(PROBE_STALL_S="1", **SERVER))
    pid = kernels.provisioner.pid
    try:
        client = kernels.client()
        client.start_channels()
        client.wait_for_ready(timeout=PATIENT_S)
        reply = client.execute_interactive(TRAINS, timeout=PATIENT_S, output_hook=lambda _: None)
        assert reply["content"]["status"] == "ok", reply
        found = until(
            lambda: (one := diagnosis(place, pid))["state"] == states.IDLE and one, "an idle kernel"
        )
        said = "\n".join(found["why"]) if found else ""
        names = {thread["name"] for thread in found["evidence"]["threads"]} if found else set()
        assert {"Heartbeat", "IOPub"} <= names, "they are there"
        own = ("Heartbeat", "IOPub", "Control", "History", "parentpoller")
        assert not any(name in said for name in own), said
        # As a front end does, which then kills what takes long to exit: here at once.
        kernels.request_shutdown(restart=restart)
        deadline = time.monotonic() + PATIENT_S
        while "kernel shutdown" not in journal(place) and kernels.is_alive():
            assert time.monotonic() < deadline, "the request was not seen"
            time.sleep(0.02)
    finally:
        kernels.shutdown_kernel(now=True)
    ended = until(
        lambda: (one := diagnosis(place, pid))["state"] not in (states.IDLE, states.ZOMBIE) and one, "its end"
    )
    assert ended and ended["state"] == states.FINISHED, ended
    assert how in ended["what"] and ended["severity"] == "ok"


def journal(place: Place) -> str:
    """All that the kernel's agent has written down."""
    found = place.directory.glob("recordings/*/*/*/journal.bin")
    return "".join(path.read_bytes().decode(errors="replace") for path in found)
