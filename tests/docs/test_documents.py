"""Everything that the documents show is run, and what they name exists."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import probe
from browser import CHROMIUM, NEEDED
from docs.documents import (
    DOCUMENTS,
    KINDS,
    ROOT,
    NotRun,
    Shown,
    blocks,
    code_in_text,
    commands_in_text,
    places_in_text,
    shown,
)
from docs.session import (
    CHECKOUT,
    IN_BROWSER,
    ITS_OWN,
    LISTENING,
    LONG,
    OF_RANKS,
    STARTS_INTERPRETERS,
    Session,
    checkout_command,
    in_checkout,
)
from harness import Place
from probe.base.settings import SETTINGS
from probe.recording.tables import BY_NAME, TABLES
from probe.server.sql import compatibility
from probe_cli.command_table import COMMANDS, module_of
from probe_cli.main import run
from server.test_tcp import free_port

RARELY = (
    "accuracy.md", "act.md", "alerts.md", "archive.md", "attach.md", "bundle.md", "checkpoint.md",
    "checkpoint-ranks.md", "cli.md", "coming-from.md", "compare.md", "diagnose.md", "diagnose-ranks.md",
    "export.md", "flamegraphs.md", "fleet.md", "gradients.md", "health.md", "learning.md", "metrics.md",
    "nonfinite.md", "plots.md", "ranks.md", "recipes.md", "traces.md",
)
"""In the campaign: the examples of every command's help, which are on other pages too, and the guides whose
commands other tests give to other jobs every day."""
each_document = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix()
)


@pytest.fixture
def session(document: Path, place: Place, tmp_path: Path) -> Iterator[Session]:
    ranks = 2 if document.name in OF_RANKS else 1
    address = f"127.0.0.1:{free_port()}" if document.name in LISTENING else ""
    made = Session(place, tmp_path, ranks, interpreter=document.name == "README.md", address=address)
    try:
        yield made
    finally:
        made.close()


def commands() -> dict[str, None]:
    """What the documents show to be run in a checkout, each once."""
    return {
        entry: None
        for document in DOCUMENTS
        for block in blocks(document.read_text())
        if block.kind in ("sh", "console")
        for one in shown(block)
        if (entry := checkout_command(one.command)) is not None
    }


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(path, marks=[pytest.mark.campaign] if path.name in RARELY else [])
        for path in DOCUMENTS
    ],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_what_a_document_shows_runs(document: Path, session: Session) -> None:
    for block in blocks(document.read_text()):
        match block.kind:
            case "sql":
                session.query(block.text)
            case "python" | "ipython" if document.name == "python.md":
                continue  # tests/client/test_page runs them, in one process with a job of its own
            case "json":
                assert document.name == "agents.md", "only its configuration is tried"
            case "python":
                session.program(block.text)
            case "sh" | "console":
                for one in shown(block):
                    if checkout_command(one.command) is None and one.command not in STARTS_INTERPRETERS:
                        check_heading(one, session.run(one, block.kind == "console"))
            case "http":
                assert document.name == "protocols.md", "only its routes are compared with the code"
            case _:
                raise AssertionError(f"nobody runs {block}")


@pytest.mark.campaign
@pytest.mark.parametrize("command", STARTS_INTERPRETERS)
@pytest.mark.parametrize("document", [ROOT / "README.md"], ids=["README.md"])
def test_a_job_that_a_document_starts_runs(document: Path, session: Session, command: str) -> None:
    [found] = [
        one for block in blocks(document.read_text()) if block.kind == "sh"
        for one in shown(block) if one.command == command
    ]
    session.run(found, pids_are_numbers=False)


def check_heading(one: Shown, printed: str) -> None:
    """The answers of `ps` and `query` are shown under the headings that they have."""
    if re.match(r"probe (\S+ )?(ps|query)\b", one.command) and one.output:
        assert one.output.splitlines()[0].split() == printed.splitlines()[0].split(), one


def _parameters() -> list[object]:
    rarely = {command for command, (_, takes) in CHECKOUT.items() if takes in (LONG, ITS_OWN)}
    return [
        pytest.param(command, marks=[pytest.mark.campaign] if command in rarely else [])
        for command in commands()
    ]


@pytest.mark.parametrize("command", _parameters())
def test_what_is_run_in_a_checkout_runs(command: str, tmp_path: Path) -> None:
    if CHECKOUT[command][1] == ITS_OWN and Path(sys.prefix) != ROOT / ".venv":
        pytest.skip("makes an environment with torch; run in that environment, by tests/run, it is there")
    if command in IN_BROWSER and CHROMIUM is None:
        pytest.skip(NEEDED)
    in_checkout(command, tmp_path)


def test_nothing_is_listed_that_no_document_shows() -> None:
    assert set(commands()) == set(CHECKOUT)


@each_document
def test_commands_in_the_text_are_ones_that_exist(document: Path) -> None:
    for code in commands_in_text(document.read_text()):
        words = [word for word in shlex.split(code)[1:] if word not in ("…", "...")]
        stands_for = {"ENDPOINT": "1", "PID": "1", "JOB": "gpt", "COMMAND": "ps", "NAME": "python.steps"}
        words = [stands_for.get(word, word) for word in words]
        # Its help instead of its work: options that it has not are refused before.
        place = words.index("run") + 1 if "run" in words else len(words)
        words.insert(place, "--help")
        with contextlib.redirect_stdout(io.StringIO()):
            said = io.StringIO()
            assert run(words, {}, io.StringIO(), said, io.StringIO()) == 0, f"{code}: {said.getvalue()}"


@each_document
def test_links_and_paths_lead_somewhere(document: Path) -> None:
    missing = [text for text, place in places_in_text(document.read_text(), document).items()
               if not place.exists()]
    assert not missing


@functools.cache
def names_of_tests() -> frozenset[str]:
    """Of all that there are."""
    return frozenset(
        name for file in ROOT.glob("tests/**/test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)
    )


@each_document
def test_names_in_the_text_are_ones_that_exist(document: Path) -> None:
    tests = names_of_tests()
    variables = {setting.env for setting in SETTINGS}
    names = {*BY_NAME, *(f"probe.{name}" for name in probe.__all__), *compatibility.NAMES}
    for code in code_in_text(document.read_text()):
        code = code.removesuffix("()")
        assert code in tests or not re.fullmatch(r"test_\w+", code), f"there is no test {code}"
        assert code in variables or not re.fullmatch(r"PROBE_\w+", code), f"there is no setting {code}"
        looks_like_ours = re.fullmatch(r"(python|process|cluster|probe)\.(?!py$)[a-z_]+", code)
        assert code in names or not looks_like_ours, f"there is no {code}"


def test_every_example_of_a_table_is_run() -> None:
    run_here = {block.text for block in blocks((ROOT / "docs" / "tables.md").read_text())}
    assert {table.example for table in TABLES} <= run_here


def test_every_example_of_a_command_is_in_its_help_and_is_run() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    run_here = {one.command for block in blocks(page) for one in shown(block)}
    for command in COMMANDS:
        examples = module_of(command).EXAMPLES
        assert examples
        with contextlib.redirect_stdout(io.StringIO()) as helped:
            run([command, "--help"], os.environ, io.StringIO(), io.StringIO(), io.StringIO())
        assert all(f"  {example}\n" in helped.getvalue() for example in examples)
        assert set(examples) <= run_here


@pytest.mark.parametrize(
    "text",
    ["```\nls\n```", "```text\nls\n```", "```bash\nls\n```", "~~~\nls\n~~~", "text\n\n    ls\n", "\tls",
     "- a\n  ```sh\n  ls\n  ```", "```sh\nls", "<pre>ls</pre>"],
)
def test_code_that_nothing_would_run_is_refused(text: str) -> None:
    with pytest.raises(NotRun):
        blocks(text)


@pytest.mark.parametrize("text", ["```console\nls\n```", "```console\n```"])
def test_a_console_without_a_command_is_refused(text: str) -> None:
    [block] = blocks(text)
    with pytest.raises(NotRun):
        shown(block)


def test_a_command_that_nobody_knows_how_to_run_is_refused() -> None:
    assert checkout_command("probe ps") is None
    assert checkout_command("./bench/demo") == "./bench/demo"
    with pytest.raises(AssertionError, match="CHECKOUT"):
        checkout_command("make install")


def test_commands_are_taken_apart_as_a_shell_would() -> None:
    [console, script] = blocks(
        "a\n```console\n$ one \"x\n>   y\"\nout\n$ two\n```\n"
        "b\n```sh\none  # why\n# all\ntwo \\\n  more\n```\n"
    )
    assert shown(console) == [Shown('one "x\n  y"', "out", 3), Shown("two", "", 6)]
    assert shown(script) == [Shown("one", "", 10), Shown("two \\\n  more", "", 12)]
    assert {console.kind, script.kind} <= set(KINDS)
