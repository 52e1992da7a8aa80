from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_harness import FakeServer, Result

import make_pages
from probe.base.settings import SETTINGS, Settings
from probe.recording.tables import COMMON, TABLES
from probe_cli.command_table import COMMANDS
from probe_cli.commands import doctor


def test_tables_are_described_without_any_server(
    command: Callable[..., Result], environment: dict[str, str]
) -> None:
    result = command("tables")
    assert (result.code, result.err.count("\n")) == (0, 1) and "probe tables NAME" in result.err
    assert [line.split()[0] for line in result.out.splitlines()[1:]] == [table.full_name for table in TABLES]
    for table in TABLES:
        assert f" {table.doc}\n" in result.out
        one = command("tables", table.full_name).out
        assert one.startswith(f"{table.full_name}  one row per {table.doc}\n")
        assert table.example in one and all(column.doc in one for column in table.columns)
    assert not Path(environment["PROBE_DIR"]).exists()


def test_one_table_is_found_with_and_without_its_schema(command: Callable[..., Result]) -> None:
    full, short = command("tables", "python.steps"), command("tables", "steps")
    assert full.out == short.out
    assert full.out.startswith("python.steps  ") and "python.losses" not in full.out
    wrong = command("tables", "python.step")
    assert wrong.code == 2 and "python.steps" in wrong.err


def test_tables_of_an_endpoint_are_asked_of_its_server(
    server: FakeServer, command: Callable[..., Result]
) -> None:
    table = {
        "name": "python.mine", "doc": "thing", "source": "ring", "example": "SELECT 1",
        "columns": [{"name": "a", "type": "BIGINT", "unit": "", "doc": "what it is"}],
    }
    server.answers["/v1/tables"] = (200, {"tables": [table]})
    assert command(str(server.path), "tables", "mine").out.splitlines() == [
        "python.mine  one row per thing",
        "  column  type    unit  meaning",
        "  a       BIGINT        what it is",
        "  example",
        "    SELECT 1",
    ]
    assert json.loads(command(str(server.path), "tables", "--format", "json").out) == {"tables": [table]}


def test_tables_fit_the_terminal(command: Callable[..., Result]) -> None:
    assert max(map(len, command("tables", terminal=True, NO_COLOR="1", COLUMNS="80").out.splitlines())) <= 80
    shown = "".join(
        command("tables", table.name, terminal=True, NO_COLOR="1", COLUMNS="80").out for table in TABLES
    )
    examples = {f"    {table.example}" for table in TABLES}
    described = [line for line in shown.splitlines() if line.startswith("  ") and line not in examples]
    assert described and max(map(len, described)) <= 80


def test_config_lists_every_setting_with_its_value_here(command: Callable[..., Result]) -> None:
    result = command("config", PROBE_BUDGET="2%")
    lines = {line.split()[0]: line for line in result.out.splitlines()}
    assert set(lines) == {"VARIABLE", *(setting.env for setting in SETTINGS)}
    assert lines["PROBE_BUDGET"].split()[1:4] == ["2%", "1%", "ratio"]
    assert result.code == 0


def test_config_names_variables_that_mean_nothing_and_values_that_cannot_be(
    command: Callable[..., Result],
) -> None:
    result = command("config", PROBE_BUGDET="2%", PROBE_LISTEN="", PROBE_DRAIN_INTERVAL_S="fast")
    assert "PROBE_BUGDET is set but is not a setting; did you mean PROBE_BUDGET?" in result.err
    assert "fast (invalid)" in result.out
    assert result.code == 2 and "PROBE_DRAIN_INTERVAL_S='fast'" in result.err


@pytest.mark.parametrize("name", ["config", "doctor", "run"])
def test_commands_about_this_machine_take_no_endpoint(command: Callable[..., Result], name: str) -> None:
    result = command("4242", name, *(["true"] if name == "run" else []))
    assert result.code == 2 and "takes no endpoint" in result.err
    assert f"probe {name}" in result.err


def test_doctor_says_a_level_for_every_subject(command: Callable[..., Result]) -> None:
    result = command("doctor")
    levels = [line.split()[0] for line in result.out.splitlines() if not line.startswith(" ")]
    assert set(levels) <= {"ok", "warn", "fail"}
    assert result.code == (1 if "fail" in levels else 0)
    cures = sum(line.lstrip().startswith("next: ") for line in result.out.splitlines())
    assert cures == sum(level != "ok" for level in levels)


def test_doctor_fails_on_a_folder_of_somebody_or_something_else(
    command: Callable[..., Result], tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    result = command("doctor", PROBE_DIR=str(link))
    assert result.code == 1
    assert "is a link" in result.out and "Set PROBE_DIR" in result.out


def test_doctor_looks_at_the_folder_and_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "home"
    assert doctor.check_directory(folder).level == "ok"
    assert not folder.exists()
    folder.mkdir(mode=0o755)
    found = doctor.check_directory(folder)
    assert found.level == "warn" and found.fix == f"chmod 700 {folder}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    folder.chmod(0o700)
    assert doctor.check_directory(folder).level == "ok"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"f_bavail": 0}, "has 0 KiB free"), ({"f_favail": 0}, "has no inodes left"),
     ({"f_flag": os.ST_RDONLY}, "is on a file system that is mounted read-only")],
)
def test_doctor_says_why_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, int], said: str
) -> None:
    tmp_path.chmod(0o700)
    found = os.statvfs(tmp_path)
    fields = [name for name in dir(found) if name.startswith("f_")]
    full = SimpleNamespace(**{**{name: getattr(found, name) for name in fields}, **wrong})
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    finding = doctor.check_directory(tmp_path)
    assert finding.level == "fail" and finding.text.startswith(f"{tmp_path} {said}")


def test_doctor_says_when_there_is_no_room_for_the_rings(tmp_path: Path) -> None:
    def level(**environ: str) -> str:
        return doctor.check_rings(Settings({"PROBE_DIR": str(tmp_path), **environ})).level

    assert level(PROBE_RINGS_DIR=str(tmp_path / "nowhere")) == "warn"
    assert level(PROBE_RINGS_BYTES="900000T") == "fail"


def test_doctor_says_whether_the_server_runs(tmp_path: Path, server: FakeServer) -> None:
    assert "not running" in doctor.check_server(tmp_path).text
    (tmp_path / "server.sock").symlink_to(server.path)
    health = {"status": "ok", "version": "0.0.0", "pid": 5, "uptime_s": 1.0, "processes": 3}
    server.answers["/v1/health"] = (200, health)
    found = doctor.check_server(tmp_path)
    assert found.level == "warn" and "pid 5, version 0.0.0" in found.text
    server.answers["/v1/health"] = (200, {"something": "else"})
    assert doctor.check_server(tmp_path).level == "fail"


def test_doctor_asks_the_python_of_the_server(tmp_path: Path) -> None:
    assert doctor.check_server_needs(sys.executable).level == doctor.check_server_needs("").level
    assert doctor.check_server_needs(str(tmp_path / "python")).level == "fail"
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(0o700)
    found = doctor.check_server_needs(str(bare))
    assert found.level == "fail" and "duckdb" in found.text


def test_doctor_finds_the_start_up_hook(tmp_path: Path) -> None:
    (tmp_path / "other.pth").write_text("import other\n")
    assert doctor.check_hook([tmp_path, tmp_path / "nowhere"]).level == "warn"
    (tmp_path / "torch_probe.pth").write_bytes(
        (Path(make_pages.__file__).parents[1] / "probe" / "boot" / "torch_probe.pth").read_bytes()
    )
    assert doctor.check_hook([tmp_path]).level == "ok"


def test_doctor_sees_what_hides_probe(tmp_path: Path) -> None:
    assert doctor.check_shadowing(tmp_path).level == "ok"
    assert doctor.check_shadowing(Path(make_pages.__file__).parents[1]).level == "ok"
    (tmp_path / "probe").mkdir()
    assert doctor.check_shadowing(tmp_path).level == "ok"
    (tmp_path / "probe" / "thing.py").touch()
    assert doctor.check_shadowing(tmp_path).level == "warn"
    (tmp_path / "probe.py").touch()
    assert str(tmp_path / "probe.py") in doctor.check_shadowing(tmp_path).text


def test_the_generated_pages_are_up_to_date() -> None:
    assert make_pages.stale() == [], "run `python docs/make_pages.py`"


def test_a_stale_page_is_noticed(tmp_path: Path) -> None:
    for name, text in make_pages.pages().items():
        (tmp_path / name).write_text(text)
    assert make_pages.stale(tmp_path) == []
    (tmp_path / "cli.md").write_text("old")
    (tmp_path / "tables.md").unlink()
    assert make_pages.stale(tmp_path) == ["tables.md", "cli.md"]


def test_the_pages_name_everything() -> None:
    pages = make_pages.pages()
    assert all(f"## {table.full_name}\n" in pages["tables.md"] for table in TABLES)
    assert all(f"`{column.name}`" in pages["tables.md"] for column in COMMON)
    assert all(f"`{setting.env}`" in pages["settings.md"] for setting in SETTINGS)
    assert all(f"### probe {name}\n" in pages["cli.md"] for name in COMMANDS)


def _run(process: Callable[..., Result], *words: str, **variables: str) -> dict[str, Any]:
    program = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv]))"
    result = process("run", *words, sys.executable, "-c", program, "--name", "of the job", **variables)
    assert result.code == 0, result.err
    environ, argv = json.loads(result.out)
    assert argv == ["-c", "--name", "of the job"]
    return dict(environ)


def test_run_switches_probe_on_and_leaves_the_rest(process: Callable[..., Result]) -> None:
    environ = _run(process, OTHER="kept")
    assert (environ["PROBE"], environ["OTHER"]) == ("1", "kept")
    assert environ["PROBE_SERVER_PYTHON"] == sys.executable
    assert "PROBE_NAME" not in environ
    assert _run(process, "--name", "mine")["PROBE_NAME"] == "mine"


def test_run_ends_as_the_command_ends(process: Callable[..., Result]) -> None:
    assert process("run", "sh", "-c", "exit 7").code == 7


def test_run_says_what_to_run_instead(process: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    for word in ("train.py", "./train.py"):
        result = process("run", word, "--epochs", "3", PATH=os.environ["PATH"])
        assert result.code == 2
        assert f"`probe run python {word} --epochs 3`" in result.err
    assert "no such command" in process("run", "no-such-command").err
