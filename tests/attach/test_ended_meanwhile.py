"""A job that dies while it is attached to is said to have ended, not to let the agent wait."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from probe.base.errors import AttachFailed
from probe.outside.attach.attaching import _wait_for_start
from probe.outside.processes.target import Target


class Silent:
    """A meeting at which the job says nothing more."""

    outcome = None

    def __init__(self, *, running: bool) -> None:
        self._running = running

    def until_running(self, _timeout_s: float) -> bool:
        return self._running

    def until_over(self, _timeout_s: float) -> bool:
        return False


@pytest.mark.parametrize("running", [True, False])
def test_a_job_that_died_meanwhile_is_not_called_pending(running: bool) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    meeting: Any = Silent(running=running)
    with pytest.raises(AttachFailed, match="ended while probe was attaching"):
        _wait_for_start(Target(process.pid, exists=True), meeting, 0.0)
