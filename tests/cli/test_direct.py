"""Where no server answers, `backtrace` and `eval` are answered by the agent itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from unittest.mock import patch

import pytest

from harness import PATIENCE_S, ROOT, UNSAID_SERVER, Job, Place, run_probe

WITHOUT_DUCKDB = "import sys; sys.modules['duckdb'] = None\nfrom probe_cli.main import main\nsys.exit(main())"


def ask(place: Place, *words: str) -> subprocess.CompletedProcess[str]:
    """The command, as in a Python that cannot run the server."""
    with patch.dict(sys.modules, duckdb=None):
        return run_probe(place, *words, server=False, **UNSAID_SERVER)


def ask_process(place: Place, *words: str) -> subprocess.CompletedProcess[str]:
    """The same as a process of its own."""
    environ = place.environ(PYTHONPATH=f"{ROOT}{os.pathsep}{ROOT / 'cli'}", **UNSAID_SERVER)
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_DUCKDB, *words], env=environ, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )


@pytest.fixture
def job(start: Callable[..., Job]) -> Job:
    """A GPT that has trained and waits, on a host where no server can be started."""
    job = start("gpt_in_main", "--size", "tiny", "--hold", PROBE_NAME="gpt")
    job.result()
    return job


def test_a_process_answers_directly_by_any_of_its_names_and_says_so(place: Place, job: Job) -> None:
    [folder] = (place.directory / "recordings").glob("run=*/attempt=*/process=*")
    socket = f"{place.directory}/agents/{job.pid}.sock"
    for endpoint in ((), (str(job.pid),), ("gpt",), ("gpt/0",), (str(folder),), (socket,)):
        asked = ask(place, *endpoint, "eval", "trainer.current_step")
        assert (asked.returncode, asked.stdout) == (0, "20\n"), asked.stderr
        assert f"gpt/0 (pid {job.pid}) answered directly" in asked.stderr and "duckdb" in asked.stderr
    shown = ask_process(place, "gpt", "backtrace", "--all-threads")
    assert shown.returncode == 0 and "gpt_in_main.py" in shown.stdout and "probe-agent" in shown.stdout
    assert "answered directly" in shown.stderr
    raised = ask_process(place, "gpt", "eval", "1 / 0")
    assert raised.returncode == 1 and "ZeroDivisionError" in raised.stderr
    assert place.server_pid() is None


def test_a_process_is_acted_on_directly(place: Place, start: Callable[..., Job]) -> None:
    job = start("gpt_in_main", "--size", "tiny", "--forever", PROBE_NAME="gpt")
    scaled = ask(place, "gpt", "lr", "--scale", "0.5", "--format", "json")
    assert scaled.returncode == 0, scaled.stderr
    assert f"gpt/0 (pid {job.pid}) answered directly" in scaled.stderr
    assert ask(place, "gpt", "undo", json.loads(scaled.stdout)["id"]).returncode == 0
    assert ask(place, "gpt", "clip", "--max-norm", "1").returncode == 0
    assert ask(place, "gpt", "clip", "--off").stdout.startswith("clip has ended")
    assert ask(place, "gpt", "clip", "--off").stdout == "clip is not on; nothing to undo\n"
    shown = ask(place, "gpt", "lr")
    assert shown.stdout.startswith("optimizer (AdamW): lr") and "no history:" in shown.stderr
    for words in (("actions",), ("watch", "1")):
        refused = ask(place, "gpt", *words)
        assert (refused.returncode, refused.stdout) == (3, "") and "duckdb" in refused.stderr


def test_only_what_the_process_itself_can_tell_is_asked_of_it(place: Place, job: Job) -> None:
    for words in (("query", "SELECT 1"), ("ps",)):
        refused = ask(place, *words)
        assert (refused.returncode, refused.stdout) == (3, "") and "duckdb" in refused.stderr


def test_a_process_that_is_not_there_is_no_endpoint(
    place: Place, job: Job, start: Callable[..., Job]
) -> None:
    for endpoint in ("other", "gpt/1", str(os.getpid())):
        refused = ask(place, endpoint, "eval", "1")
        assert (refused.returncode, refused.stdout) == (3, "") and "next:" in refused.stderr
    other = start("gpt_in_main", "--size", "tiny", "--hold", PROBE_NAME="other")
    refused = ask(place, "eval", "1")
    assert refused.returncode == 3 and f"(pid {other.pid})" in refused.stderr
    assert f"(pid {job.pid})" in refused.stderr
    other.kill()
    assert ask(place, "eval", "1").stdout == "1\n"
    assert ask(place, "other", "eval", "1").returncode == 3


def test_without_a_server_a_process_without_an_agent_is_read_from_outside(place: Place, job: Job) -> None:
    shown = ask_process(place, str(os.getpid()), "backtrace")
    assert shown.returncode == 0 and "from outside" in shown.stdout and "test_direct.py" in shown.stdout


def test_a_stopped_process_is_said_to_be_stopped(place: Place, job: Job) -> None:
    job.signal(signal.SIGSTOP)
    refused = ask(place, "eval", "--timeout", "0.2", "1")
    assert refused.returncode == 3 and "it is stopped" in refused.stderr


def test_a_server_that_hangs_is_gone_round(place: Place, start: Callable[..., Job]) -> None:
    start("gpt_in_main", "--size", "tiny", "--hold").result()
    assert run_probe(place, "ps").returncode == 0
    server = place.server_pid()
    assert server is not None
    os.kill(server, signal.SIGSTOP)
    try:
        asked = run_probe(place, "eval", "trainer.current_step", server=False)
    finally:
        os.kill(server, signal.SIGCONT)
    assert (asked.returncode, asked.stdout) == (0, "20\n")
    assert "answered directly" in asked.stderr and "it is stopped, or" in asked.stderr
