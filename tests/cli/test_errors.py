from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_harness import TIMEOUT_S, FakeServer, Result

from probe.base.errors import BY_CODE, ProbeError
from probe_cli.command_table import COMMANDS, summary_of
from probe_cli.core.exit_codes import errors_of, exit_codes


@pytest.mark.parametrize("kind", BY_CODE.values(), ids=BY_CODE)
def test_every_error_has_its_exit_code_its_sentence_and_its_next_step(
    kind: type[ProbeError], server: FakeServer, command: Callable[..., Result]
) -> None:
    server.refuse("/v1/query", kind("what happened"))
    result = command(str(server.path), "query", "SELECT 1")
    next_step = f"  next: {kind.hint}\n" if kind.hint else ""
    assert result == Result(kind.exit_code, "", f"probe: what happened\n{next_step}")


def test_every_error_is_under_a_documented_exit_code() -> None:
    documented = {code for code, _ in exit_codes()}
    assert {kind.exit_code for kind in BY_CODE.values()} <= documented
    listed = [name for code in documented for name in errors_of(code)]
    assert sorted(listed) == sorted(BY_CODE)


def test_the_help_has_every_command_and_exit_code_whole_in_80_columns(command: Callable[..., Result]) -> None:
    helped = command("--help")
    assert (helped.code, helped.err) == (0, "") and helped == command("-h") == command("help")
    lines = helped.out.splitlines()
    assert max(map(len, lines)) <= 80
    for name in COMMANDS:
        assert f"  {name:<17}{summary_of(name)}" in lines
    for code, meaning in exit_codes():
        assert f"  {code:<4}{meaning}" in lines


def test_an_error_that_is_not_ours_is_said_and_no_traceback(
    server: FakeServer, command: Callable[..., Result]
) -> None:
    server.answers["/v1/query"] = (502, "Bad Gateway")
    assert command(str(server.path), "query", "SELECT 1").code == 3
    server.answers["/v1/query"] = (200, ["not", "an", "object"])
    assert command(str(server.path), "query", "SELECT 1").code == 3
    server.answers["/v1/query"] = (200, {"rows": 3})
    assert command(str(server.path), "query", "SELECT 1").code == 3


def test_a_socket_without_a_server_is_an_endpoint_error(
    command: Callable[..., Result], tmp_path: Path
) -> None:
    result = command(f"{tmp_path}/gone.sock", "backtrace")
    assert result.code == 3
    assert "gone.sock" in result.err and "next:" in result.err


def test_a_hostile_message_does_not_reach_a_terminal(
    server: FakeServer, command: Callable[..., Result]
) -> None:
    server.refuse("/v1/query", ProbeError("\x1b]0;title\x07two\nlines", hint="\x9bhint"))
    result = command(str(server.path), "query", "SELECT 1", terminal=True, NO_COLOR="1")
    assert result.err == "probe: \\u001b]0;title\\u0007two\nlines\n  next: \\u009bhint\n"


def test_an_invalid_setting_is_an_error_of_use(command: Callable[..., Result]) -> None:
    result = command("ps", PROBE_QUERY_TIMEOUT_S="soon")
    assert result.code == 2
    assert "PROBE_QUERY_TIMEOUT_S='soon'" in result.err and "next:" in result.err


def test_a_closed_pipe_ends_quietly(environment: dict[str, str]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with open(write_end, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "probe_cli", "tables"], stdout=closed, stderr=subprocess.PIPE,
            env=environment, timeout=TIMEOUT_S, check=False,
        )
    assert (done.returncode, done.stderr) == (141, b"")


def test_ctrl_c_ends_quietly(environment: dict[str, str]) -> None:
    """Interrupted while it waits for stdin: it has started, for it asked for SQL by not answering."""
    running = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "probe_cli", "query"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
        text=True, start_new_session=True,
    )
    assert running.stderr is not None
    for line in running.stderr:
        if line.endswith("probe_cli.render.query_answer\n"):  # imported by the command, right before it reads
            break
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=TIMEOUT_S)
    said = [line for line in err.splitlines() if not line.startswith("import time:")]
    assert (running.returncode, out, said) == (130, "", [])
