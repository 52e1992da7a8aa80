"""Completion in the shell: what is offered, and that a shell asks for it."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from command_harness import TIMEOUT_S, Result

from harness import Job, Place, run_probe
from probe.recording import checked, declared, places
from probe.recording.recording import VERSION, Meta
from probe.recording.tables import TABLES, Column
from probe_cli.command_table import COMMANDS
from probe_cli.commands.completion import SCRIPTS
from probe_cli.core.session import Session
from probe_cli.main import dispatch
from probe_cli.prompts import sql_prompt
from probe_cli.prompts.completions import own_tables


@pytest.mark.parametrize(
    ("words", "offered", "withheld"),
    [
        (("",), {"ps", "diagnose", "completion"}, {"--help", "ls"}),
        (("ba",), {"backtrace"}, {"ps"}),
        (("4242", "qu"), {"query"}, {"ps"}),
        (("4242", "diagnose", ""), {"loss", "nan"}, {"ps"}),
        (("4242", "diagnose", "--e"), {"--exit-code"}, {"--all"}),
        (("4242", "ps", "--format", ""), {"json", "csv", "markdown"}, {"--all"}),
        (("tables", "python.st"), {"python.steps"}, {"python.losses"}),
        (("recipes", "show", "loss-"), {"loss-nan"}, {"show"}),
        (("monitor", "--on", "loss-"), {"loss-nan"}, {"--off"}),
        (("--ver",), {"--version"}, {"ps"}),
        (("4242", "query", "SELECT max(grad_n"), {"SELECT max(grad_norm"}, {"SELECT max(grad_"}),
        (("query", '"SELECT lo'), {'"SELECT loss', '"SELECT logged_step'}, {'"SELECT loss '}),
        (("query", "'FROM python.losses WHERE micro_s"),
         {"'FROM python.losses WHERE micro_step", "'FROM python.losses WHERE micro_step "}, set()),
        (("sql", "SELECT step FROM python.st"), {"SELECT step FROM python.steps"}, {"python.steps"}),
        (("4242", "query", "--format", "c"), {"csv"}, {"COUNT(*)"}),
        (("4242", "plot", "SELECT step, los"), {"SELECT step, loss"}, set()),
        (("4242", "query", "--l"), {"--limit"}, {"LIMIT"}),
    ],
)
def test_what_is_offered_fits(
    command: Callable[..., Result], words: tuple[str, ...], offered: set[str], withheld: set[str]
) -> None:
    done = command("completion", "words", "--", *words)
    found = set(done.out.splitlines())
    assert done.code == 0 and offered <= found and not withheld & found
    assert all(word.startswith(words[-1]) for word in found)


def test_live_jobs_are_offered_and_no_server_is_started(place: Place, start: Callable[..., Job]) -> None:
    job = start("gpt_in_main", "--size", "tiny", "--hold", PROBE_NAME="gpt")
    for words in (("",), ("-t", ""), ("backtrace", "")):
        found = run_probe(place, "completion", "words", "--", *words, server=False).stdout.splitlines()
        assert {"gpt", str(job.pid)} <= set(found), words
    assert place.server_pid() is None
    job.kill()
    assert "gpt" not in run_probe(place, "completion", "words", "--", "", server=False).stdout.splitlines()


def recorded(home: Path, run: str, table: str) -> None:
    """The recording of an ended process that declared a table."""
    folder = places.make_private(home / "recordings" / f"run={run}" / "attempt=0" / "process=0-77")
    meta = Meta(
        version=VERSION, run=run, attempt=0, job="train", rank=0, world_size=1, local_rank=0, host="here",
        pid=77, start_ticks=1, boot_id="another", uid=os.getuid(), argv=["train.py"], cwd="/",
        executable="python", python="3", torch="2", started_ns=1, rings="/gone", socket="/gone", settings={},
    )
    places.write_whole(folder / "meta.json", checked.sealed("meta.json", asdict(meta)))
    declared.write(folder, [declared.user_table(table, "a row", [Column(f"{table}_won", "DOUBLE", "", "")])])


def test_tables_that_a_job_declared_are_offered_with_their_columns(
    command: Callable[..., Result], environment: dict[str, str]
) -> None:
    home = Path(environment["PROBE_DIR"])
    recorded(home, "one", "rewards")
    recorded(home, "two", "games")

    def offered(*words: str) -> list[str]:
        return command("completion", "words", "--", *words).out.splitlines()

    assert offered("one", "query", "SELECT step FROM use") == ["SELECT step FROM user.rewards"]
    assert offered("-t", "two", "query", "FROM user.games SELECT gam") == ["FROM user.games SELECT games_won"]
    assert offered("two", "tables", "user.") == ["user.games"]
    assert offered("tables", "user.") == [], "neither of them lives"
    session = Session(environment, io.StringIO(), io.StringIO(), io.StringIO(), dispatch)
    at_prompt = sql_prompt.candidates("FROM user.rewards SELECT re", own_tables(session, "one"))
    assert ("rewards_won", 2) in list(at_prompt)


def test_the_script_is_written_where_the_shell_looks(command: Callable[..., Result], tmp_path: Path) -> None:
    for shell in SCRIPTS:
        done = command("completion", "install", SHELL=f"/bin/{shell}", HOME=str(tmp_path), XDG_DATA_HOME="",
                       XDG_CONFIG_HOME="")
        path = Path(done.out.removeprefix("written: ").strip())
        assert done.code == 0 and path.read_text() == SCRIPTS[shell] and path.is_relative_to(tmp_path)
        assert command("completion", shell).out == SCRIPTS[shell]
    refused = command("completion", "install", SHELL="/bin/csh")
    assert refused.code == 2 and "probe completion install bash" in refused.err


def test_bash_asks_and_offers_what_fits(environment: dict[str, str], tmp_path: Path) -> None:
    probe = tmp_path / "probe"
    probe.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m probe_cli "$@"\n')
    probe.chmod(0o700)
    asks = 'COMP_WORDS=(probe 4242 tables python.st); COMP_CWORD=3; _probe; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "-c", SCRIPTS["bash"] + asks], capture_output=True, text=True, timeout=TIMEOUT_S, check=True,
        env={**environment, "PATH": f"{tmp_path}:{environment['PATH']}"},
    )
    assert done.stdout.splitlines() == [
        table.full_name for table in TABLES if table.full_name.startswith("python.st")
    ]
    assert "completion" in COMMANDS


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_take_the_script(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = tmp_path / "script"
    path.write_text(SCRIPTS[shell])
    assert subprocess.run([shell, "-n", str(path)], timeout=TIMEOUT_S, check=False).returncode == 0
