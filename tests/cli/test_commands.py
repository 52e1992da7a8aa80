from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_harness import TIMEOUT_S, FakeServer, Result, Screen

from probe_cli.command_table import COMMANDS, module_of, summary_of
from probe_cli.core.figures import age
from probe_cli.main import run
from probe_cli.render.process_state import time_left_parts


def _process(**changes: Any) -> dict[str, Any]:
    return {
        "job": "gpt-small", "run": "gpt-small-1", "attempt": 0, "rank": 0, "local_rank": 0, "world_size": 2,
        "host": "here", "pid": 41321, "state": "running", "step": 18204, "last_step_s": 0.4,
        "last_seen_s": 0.1, "started_ns": 1, "ended_ns": None, "folder": "/d/x", "argv": ["train.py"],
        **changes,
    }


PROCESSES = [
    _process(),
    _process(rank=1, pid=41322, state="starting", step=None, last_step_s=None),
    _process(job="old", pid=7, state="dead", step=12, last_step_s=7300.0),
]


def test_ps_shows_one_line_per_process(server: FakeServer, command: Callable[..., Result]) -> None:
    server.answers["/v1/processes"] = (200, {"processes": PROCESSES})
    result = command("-t", str(server.path), "ps")
    assert result.out.splitlines() == [
        "JOB        RANK    PID    STEP  LAST STEP  STATE",
        "gpt-small     0  41321  18,204  0.4 s ago  running",
        "gpt-small     1  41322       -  -          starting",
        "old           0      7      12  2 h ago    dead",
    ]
    assert (result.code, result.err) == (0, "")
    assert server.requests[0].query == {"all": "0"}


def test_ps_shows_the_time_left_where_it_is_known_of_any(
    server: FakeServer, command: Callable[..., Result]
) -> None:
    knows = {"total_steps": 20_000, "total_source": "max_steps", "elapsed_s": 60.0}
    listed = [_process(left_s=7830.0, **knows), _process(rank=1, left_s=None)]
    server.answers["/v1/processes"] = (200, {"processes": listed})
    assert command("-t", str(server.path), "ps").out.splitlines() == [
        "JOB        RANK    PID    STEP  LEFT        LAST STEP  STATE",
        "gpt-small     0  41321  18,204  2 h 10 min  0.4 s ago  running",
        "gpt-small     1  41321  18,204  -           0.4 s ago  running",
    ]
    assert time_left_parts(listed[0]) == [
        "step 18,204 of 20,000 (max_steps)", "2 h 10 min left at the usual rate", "60 s so far",
    ]
    assert time_left_parts(_process(elapsed_s=600.0, ended_ns=1)) == ["took 10 min"]
    assert time_left_parts(_process()) == [], "an older server does not say"


def test_ps_of_an_endpoint_shows_its_processes_only(
    server: FakeServer, command: Callable[..., Result]
) -> None:
    server.answers["/v1/processes"] = (200, {"processes": PROCESSES})
    for endpoint, pids in (("gpt-small", [41321, 41322]), ("gpt-small/1", [41322]), ("7", [7]), ("8", [])):
        result = command(f"{server.path}/{endpoint}", "ps", "--all", "--format", "json")
        assert [process["pid"] for process in json.loads(result.out)["processes"]] == pids
    assert server.requests[0].query == {"all": "1"}


def test_ps_without_a_recording_starts_no_server_and_says_how_to_start_a_job(
    command: Callable[..., Result], environment: dict[str, str]
) -> None:
    result = command("ps")
    assert (result.code, result.out) == (0, "")
    assert "probe run python train.py" in result.err
    assert not Path(environment["PROBE_DIR"]).exists()


def test_ps_does_not_look_into_a_folder_that_is_not_ours(
    command: Callable[..., Result], tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    result = command("ps", PROBE_DIR=str(tmp_path / "link"))
    assert result.code == 6 and "is a link" in result.err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"), (0.0, "0.0 s ago"), (-0.01, "0.0 s ago"), (9.94, "9.9 s ago"), (9.96, "10 s ago"),
        (119, "119 s ago"), (120, "2 min ago"), (7199, "119 min ago"), (7200, "2 h ago"), (172800, "2 d ago"),
    ],
)
def test_ages_are_readable(seconds: float | None, text: str) -> None:
    assert age(seconds) == text


def _frame(depth: int, func: str, file: str, is_user: bool, module: str | None = None) -> dict[str, Any]:
    return {
        "depth": depth, "func": func, "file": file, "lineno": 10 + depth, "frame_type": "Python",
        "module": module, "is_user": is_user,
    }


CAPTURE = {
    "capture_id": "c1", "t_ns": 1, "step": 18204, "phase": "forward", "source": "agent",
    "threads": [
        {"thread_id": 2, "thread_name": "probe-agent", "training": False, "frames": []},
        {
            "thread_id": 1, "thread_name": "MainThread", "training": True,
            "frames": [
                _frame(1, "Module._call_impl", "/v/site-packages/torch/nn/modules/module.py", False),
                _frame(0, "Block.forward", "/home/me/model.py", True, "h.0"),
                _frame(2, "main", "/home/me/train.py", True),
            ],
        },
    ],
}


def test_backtrace_tells_the_users_frames_from_the_librarys(
    server: FakeServer, command: Callable[..., Result]
) -> None:
    server.answers["/v1/backtrace"] = (200, CAPTURE)
    result = command(f"{server.path}/gpt/0", "backtrace", "--all-threads")
    assert result.out.splitlines() == [
        "innermost frame first  step 18,204  phase forward  from agent  * user code",
        "",
        "thread MainThread (1, training)",
        "*   0  /home/me/model.py:10           Block.forward  module h.0",
        "    1  torch/nn/modules/module.py:11  Module._call_impl",
        "*   2  /home/me/train.py:12           main",
        "",
        "thread probe-agent (2)",
    ]
    assert server.requests[0].query == {"endpoint": "gpt%2F0", "all_threads": "1"}


def test_backtrace_as_json_is_the_whole_capture(server: FakeServer, command: Callable[..., Result]) -> None:
    server.answers["/v1/backtrace"] = (200, CAPTURE)
    assert json.loads(command(str(server.path), "backtrace", "--format", "json").out) == CAPTURE


def _evaluated(**changes: Any) -> dict[str, Any]:
    return {
        "output": "", "dropped_bytes": 0, "value": None, "error": None, "step": 3, "elapsed_ms": 1.0,
        **changes,
    }


@pytest.mark.parametrize(
    ("answer", "out"),
    [
        (_evaluated(output="0 0.1\n"), "0 0.1\n"),
        (_evaluated(value="{'a': 1}"), "{'a': 1}\n"),
        (_evaluated(output="no line end", value="2"), "no line end\n2\n"),
        (_evaluated(output="raw \x1b[1m"), "raw \x1b[1m"),
        (_evaluated(), ""),
    ],
)
def test_eval_prints_the_output_and_then_the_value(
    server: FakeServer, command: Callable[..., Result], answer: dict[str, Any], out: str
) -> None:
    server.answers["/v1/eval"] = (200, answer)
    assert command(str(server.path), "eval", "x") == Result(0, out, "")


def test_eval_of_a_snippet_that_raises_ends_with_1_and_the_traceback(
    server: FakeServer, command: Callable[..., Result]
) -> None:
    traceback = "Traceback …\nNameError: x\n"
    error = {"type": "NameError", "message": "x", "traceback": traceback, "hint": "Near: y"}
    server.answers["/v1/eval"] = (200, _evaluated(output="before\n", error=error))
    result = command(str(server.path), "eval", "print('before'); x")
    assert result == Result(1, "before\n", f"{traceback}  next: Near: y\n")


def test_eval_says_how_much_output_was_dropped(server: FakeServer, command: Callable[..., Result]) -> None:
    server.answers["/v1/eval"] = (200, _evaluated(output="x" * 10, dropped_bytes=99_999_990))
    result = command(str(server.path), "eval", "print('x' * 10**8)")
    assert result.out == "x" * 10 + "\n"
    assert "99,999,990 bytes of output were dropped" in result.err


def test_eval_takes_a_snippet_of_many_lines_from_wherever_it_is(
    server: FakeServer, command: Callable[..., Result], tmp_path: Path
) -> None:
    server.answers["/v1/eval"] = (200, _evaluated())
    snippet = "\nfor i in range(2):\n    print(i)\n"
    (tmp_path / "s.py").write_text(snippet)
    command(f"{server.path}/j", "eval", snippet, "--timeout", "3")
    command(f"{server.path}/j", "eval", "-f", str(tmp_path / "s.py"))
    command(f"{server.path}/j", "eval", stdin=snippet, PROBE_EVAL_TIMEOUT_S="7")
    assert [request.body for request in server.requests] == [
        {"endpoint": "j", "code": snippet, "timeout_s": 3.0, "wait_s": 30.0},
        {"endpoint": "j", "code": snippet, "timeout_s": 10.0, "wait_s": 30.0},
        {"endpoint": "j", "code": snippet, "timeout_s": 7.0, "wait_s": 30.0},
    ]


def test_the_default_endpoint_is_of_the_environment(
    server: FakeServer, command: Callable[..., Result]
) -> None:
    server.answers["/v1/eval"] = (200, _evaluated())
    command("eval", "1", PROBE_ENDPOINT=f"{server.path}/left")
    command("-t", f"{server.path}/named", "eval", "1", PROBE_ENDPOINT="nobody")
    assert [request.body["endpoint"] for request in server.requests] == ["left", "named"]


def test_any_transport_can_carry_the_questions(command: Callable[..., Result]) -> None:
    asked: list[tuple[Any, ...]] = []

    class InProcess:
        def request(self, method: str, target: str, body: object, timeout_s: float) -> Any:
            asked.append((method, target, body))
            return _evaluated(value="2")

    assert command("gpt", "eval", "1 + 1", transport=InProcess()).out == "2\n"
    body = {"endpoint": "gpt", "code": "1 + 1", "timeout_s": 10.0, "wait_s": 30.0}
    assert asked == [("POST", "/v1/eval", body)]


def test_a_real_terminal_gets_no_control_characters_of_the_job(
    server: FakeServer, environment: dict[str, str]
) -> None:
    server.answers["/v1/eval"] = (200, _evaluated(output="\x1b]52;c;aGk=\x07\n"))
    controller, terminal = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "probe_cli", str(server.path), "eval", "x"],
            stdin=terminal, stdout=terminal, stderr=subprocess.PIPE,
            env={**environment, "TERM": "xterm"}, timeout=TIMEOUT_S, check=False,
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert os.read(controller, 4096) == b"\\u001b]52;c;aGk=\\u0007\r\n"
    finally:
        os.close(terminal)
        os.close(controller)


HEAVY = ("rich", "httpx", "duckdb", "numpy", "pydantic", "http.client", "asyncio", "probe.tables", "ssl")
TYPED_ALL_DAY = ("query", "backtrace", "eval", "ps")
NOT_FOR_THESE = ("typer", "dataclasses", "inspect")
"""What takes longer to import than the command takes."""


@pytest.mark.parametrize("words", [
    ("query", "SELECT 1"), ("backtrace",), ("eval", "1"), ("ps",), ("lr", "--scale", "0.5"), ("actions",),
    ("checkpoint", "x.pt"), ("undo", "7-1"),
])
def test_nothing_heavy_is_imported_for_a_common_command(
    server: FakeServer, process: Callable[..., Result], words: tuple[str, ...]
) -> None:
    server.answers["/v1/query"] = (
        200, {"columns": [], "rows": [], "truncated": False, "elapsed_ms": 1, "notes": []},
    )
    server.answers["/v1/backtrace"] = (200, CAPTURE)
    server.answers["/v1/eval"] = (200, _evaluated())
    server.answers["/v1/processes"] = (200, {"processes": PROCESSES})
    server.answers["/v1/act"] = server.answers["/v1/undo"] = (200, {"id": "7-1", "what": "done"})
    result = process(str(server.path), *words, python=("-X", "importtime"))
    imported = {line.rpartition("|")[2].strip() for line in result.err.splitlines() if "|" in line}
    assert "probe.base.wire" in imported
    assert not imported.intersection(HEAVY)
    assert words[0] not in TYPED_ALL_DAY or not imported.intersection(NOT_FOR_THESE)


def test_without_the_library_of_the_prompt_what_is_typed_until_ctrl_d_is_run(
    server: FakeServer, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers["/v1/eval"] = (200, _evaluated(value="2"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    out, err = Screen(), Screen()
    assert run([str(server.path), "eval"], environment, out, err, Screen("1 + 1")) == 0
    assert out.getvalue() == "2\n" and "pip install prompt_toolkit" in err.getvalue()
    assert server.requests[0].body["code"] == "1 + 1"


def test_the_list_of_commands_is_read_without_importing_them(process: Callable[..., Result]) -> None:
    result = process("--help", python=("-X", "importtime"))
    assert "probe_cli.command_table" in result.err and "probe_cli.commands." not in result.err
    assert "typer" not in result.err and "typer" not in process("--version", python=("-X", "importtime")).err
    for name in COMMANDS:
        assert module_of(name).command.__doc__.startswith(summary_of(name))
        assert name in result.out
