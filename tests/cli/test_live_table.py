"""The lines of `probe top` for answers that a test gives: what is missing, hostile or too long for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_harness import Result, Screen

from probe.base.errors import QueryTimeout
from probe_cli.core.action_progress import look_of
from probe_cli.core.session import Session
from probe_cli.core.terminal import Output, display_width
from probe_cli.core.wait_line import Progress, waiting
from probe_cli.main import dispatch
from probe_cli.render.live_table import stacked

Command = Callable[..., Result]
HOSTILE = "evil\x1b]0;owned\x07\x1b[2J\u202e名"
PROCESS: dict[str, Any] = {
    "job": "gpt", "run": "gpt-1", "attempt": 0, "rank": 0, "world_size": 2, "host": "h", "pid": 7,
    "state": "running", "how": "", "step": 12_345_678_901, "last_step_s": 0.0, "ended_ns": None,
}
NAMES = (
    "rank", "pid", "part", "step_s", "loss", "mean_loss", "rss_bytes", "allocated_bytes", "data", "forward",
    "backward", "optimizer", "comm", "other",
)


class Wire:
    """A transport with the answers of a server, by path; one that is an error is raised."""

    def __init__(self, **more: Any) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, Any] = {
            "ranks": {"ranks": [PROCESS, {**PROCESS, "rank": 1, "pid": 8, "step": None}], "missing": []},
            "query": rows([0, 7, 0, 0.25, "NaN", None, 1 << 30, None, 1.0, 2.0, 1.0, None, None, 0.0]),
            "monitor": {"monitor": True, "incidents": [], "notes": []},
            **more,
        }

    def request(self, method: str, target: str, body: Any, timeout_s: float) -> Any:
        name = target.partition("?")[0].rpartition("/")[2]
        self.asked.append(name)
        answer = self.answers[name]
        if isinstance(answer, Exception):
            raise answer
        return answer


def rows(*found: list[Any]) -> dict[str, Any]:
    """An answer to the query of figures."""
    columns = [{"name": name, "type": "DOUBLE"} for name in NAMES]
    return {"columns": columns, "rows": list(found), "truncated": False, "elapsed_ms": 1.0, "notes": []}


def test_what_was_not_measured_is_a_dash_and_what_hangs_has_no_rate_of_the_past(command: Command) -> None:
    slow = {**PROCESS, "last_step_s": 50.0}
    other = {**PROCESS, "rank": 1, "pid": 8, "step": None}
    wire = Wire(ranks={"ranks": [slow, other], "missing": ["rank 2"]})
    done = command("gpt", "top", transport=wire)
    assert done.code == 0 and "missing: rank 2" in done.err
    _, first, second = done.out.splitlines()
    assert first.split() == [
        "0", "running", "12,345,678,901", "0.0200", "NaN", "dddffffffbbb", "1", "GiB",
    ]
    assert second.split() == ["1", "running", "-", "-", "-", "-", "-"]
    assert set(wire.asked) == {"ranks", "query", "monitor"}, "nothing that looks at a process"
    late = command("gpt", "top", transport=Wire(query=QueryTimeout("stopped after 10 s")))
    assert "stopped after 10 s" in late.err and "running" in late.out and late.code == 0


def test_hostile_text_is_harmless_and_no_line_is_longer_than_the_terminal(command: Command) -> None:
    incident = {
        "run": "gpt-1", "rank": 0, "severity": "alarm", "state": "x", "what": HOSTILE * 9, "opened_ns": 0,
    }
    process = {**PROCESS, "name": HOSTILE, "job": HOSTILE, "how": HOSTILE, "state": "failed"}
    answers = {
        "processes": {"processes": [process], "notes": [HOSTILE]},
        "ranks": {"ranks": [process], "missing": [HOSTILE]},
        "monitor": {"monitor": True, "incidents": [incident], "notes": []},
    }
    for words in (["top"], [HOSTILE, "top", "--once"]):
        for columns in (40, 80, 200):
            wire = Wire(**answers)
            done = command(*words, terminal=True, transport=wire, COLUMNS=str(columns), NO_COLOR="1")
            assert done.code == 0 and done.out.count("\n") == 2, done
            shown = done.out + done.err.replace("\r\x1b[K", "")
            assert not {"\x1b", "\x07", "\u202e"} & set(shown), shown
            assert max(map(display_width, done.out.splitlines())) <= columns, done.out
    assert "alarm: evil\\u001b" in command("gpt", "top", transport=Wire(**answers)).out


@pytest.mark.parametrize("shares", [
    {"data": 1.0}, {"data": 0.5, "other": 0.5}, {"forward": 1 / 3, "backward": 1 / 3, "optimizer": 1 / 3},
    {"data": 0.01, "forward": 0.98, "comm": 0.01}, {"data": 0.999, "other": 0.001},
])
def test_a_bar_of_phases_is_full_and_true_to_a_column(shares: dict[str, float]) -> None:
    for width in (6, 12, 31):
        bar = stacked(shares, width)
        assert len(bar) == width
        for name, share in shares.items():
            assert abs(bar.count("." if name == "other" else name[0]) - share * width) < 1, bar
    assert stacked({}, 12) == "-"


def test_a_long_wait_says_how_far_it_is_on_a_terminal_and_nothing_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("probe_cli.core.wait_line.QUIET_S", 0.0)
    monkeypatch.setattr("probe_cli.core.wait_line._REFRESH_S", 0.001)
    screen, pipe = Screen(), Output(open(tmp_path / "err", "w+"), {"TERM": "xterm"})  # noqa: SIM115
    with waiting(Output(screen, {"TERM": "xterm", "COLUMNS": "80"}), "reading x.log") as progress:
        progress.done, progress.total = 30, 40
        while " 75 % reading x.log" not in screen.getvalue():
            pass
    assert "█" * 15 + "░" * 5 + "  75 %" in screen.getvalue()
    assert screen.getvalue().endswith("\r\x1b[K"), "the line is removed"
    with waiting(pipe, "reading x.log", lambda _: pytest.fail("looked in a pipe")):
        pass
    pipe.stream.seek(0)
    assert pipe.stream.read() == ""
    pipe.stream.close()


def test_the_progress_of_an_action_is_its_steps_or_the_bytes_that_it_has_written(tmp_path: Path) -> None:
    ranks = {"ranks": [dict(PROCESS, step=9), dict(PROCESS, step=9)], "missing": []}
    wire = Wire(ranks=ranks)
    session = Session({"PROBE_DIR": str(tmp_path)}, Screen(), Screen(), Screen(), dispatch, wire)
    steps = look_of(session, "profile", {"steps": 4})
    progress = Progress("waiting")
    assert steps is not None
    for step, said in ((9, "waiting"), (10, "profiling step 1 of 4"), (12, "profiling step 3 of 4")):
        steps._next_s = 0.0  # type: ignore[attr-defined]
        ranks["ranks"][0]["step"] = ranks["ranks"][1]["step"] = step
        steps(progress)
        assert progress.what.startswith(said), progress.what
    assert (progress.done, progress.total) == (2, 4)
    path = tmp_path / "rescue.pt"
    written = look_of(session, "checkpoint", {"path": str(path)})
    assert written is not None
    progress = Progress("waiting")
    written(progress)
    assert progress.what == "waiting"
    (tmp_path / ".rescue.pt.77.tmp").write_bytes(bytes(3 << 20))
    written(progress)
    assert progress.what.startswith("writing rescue.pt: 3 MiB so far") and progress.total is None
    assert look_of(session, "lr", {"scale": 0.5}) is None
