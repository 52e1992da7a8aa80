"""What is declared on one page is really there: the failures that CONTRIBUTING's table promises."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from docs.documents import ROOT
from probe.base import errors
from probe.base.errors import BY_CODE
from probe.base.settings import INSTRUMENTS, SETTINGS, Settings
from probe.job.agent.action_catalogue import ACTIONS
from probe.recording.tables import TABLES, Table
from probe.server.sql import compatibility
from probe_cli.command_table import COMMANDS

OURS = sorted((*ROOT.glob("probe/**/*.py"), *ROOT.glob("cli/**/*.py")))
INSTALLATION = ROOT / "probe" / "job" / "instruments" / "installation.py"
WRITERS = {
    "ring": ("probe/job",),
    "journal": ("probe/job", "probe/server"),
    "live": ("probe/server",),
}


@cache
def nodes(file: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))


@cache
def texts(file: Path) -> frozenset[str]:
    """Every text in the code of a file, without docstrings."""
    documented = {id(node.value) for node in nodes(file) if isinstance(node, ast.Expr)}
    return frozenset(
        node.value
        for node in nodes(file)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented
    )


def constants(files: Iterable[Path]) -> set[str]:
    """Every text in the code of some files, without docstrings."""
    return set().union(*map(texts, files))


def names_settings(value: ast.AST) -> bool:
    """Whether it is called `settings`, or ends so, as `self._settings` does."""
    match value:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.endswith("settings")
        case _:
            return False


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.full_name)
def test_every_table_has_somebody_who_fills_it(table: Table) -> None:
    files = [file for folder in WRITERS[table.source] for file in (ROOT / folder).rglob("*.py")]
    assert table.full_name in constants(files), f"nothing in {WRITERS[table.source]} names {table.full_name}"


@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_has_a_command(action: str) -> None:
    command = action.replace("_", "-")
    assert command in COMMANDS
    assert re.search(rf"probe \w+ {command}\b", (ROOT / "docs" / "act.md").read_text(encoding="utf-8"))


def test_every_setting_is_an_attribute_and_every_attribute_a_setting() -> None:
    assert {setting.name for setting in SETTINGS} == set(Settings.__annotations__)


def test_every_setting_changes_something() -> None:
    read = {
        node.attr
        for file in OURS
        for node in nodes(file)
        if isinstance(node, ast.Attribute) and names_settings(node.value)
    }
    read |= {  # of a recorded process, whose settings are texts
        str(node.slice.value)
        for file in OURS
        for node in nodes(file)
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "BY_NAME"
        and isinstance(node.slice, ast.Constant)
    }
    # PROBE itself is read by the start-up hook, before anything of ours is imported.
    assert {setting.name for setting in SETTINGS} - read == {"enabled"}


def test_every_instrument_can_be_chosen_and_is_installed() -> None:
    assert set(INSTRUMENTS) - {"steps"} <= constants([INSTALLATION])
    installed = {
        name.name for node in nodes(INSTALLATION) if isinstance(node, ast.ImportFrom) for name in node.names
    }
    for file in INSTALLATION.parent.rglob("*.py"):
        classes = [node for node in nodes(file) if isinstance(node, ast.ClassDef)]
        instruments = {
            found.name
            for found in classes
            if any(isinstance(part, ast.FunctionDef) and part.name == "uninstall" for part in found.body)
        }
        assert instruments - {"Installation"} <= installed, f"{file} is installed by nobody"


def routes() -> set[str]:
    """`METHOD /path` of every route of server and agent."""
    found = {text for text in constants([ROOT / "probe/job/agent/lifecycle.py"])
             if re.fullmatch(r"(GET|POST) /v1/\w+", text)}
    for file in (ROOT / "probe" / "server" / "http").glob("*.py"):
        for node in nodes(file):
            if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef):
                for decorator in node.decorator_list:
                    match = re.match(r"app\.(get|post|put|delete)\('([^']+)'", ast.unparse(decorator))
                    if match:
                        found.add(f"{match[1].upper()} {match[2]}")
    return found


def test_the_routes_are_those_of_the_document() -> None:
    text = (ROOT / "docs" / "protocols.md").read_text(encoding="utf-8")
    lines = re.findall(r"^ +(GET|POST) +(/v1/\w+|/metrics|/docs|/(?= ))", text, re.M)
    described = {f"{method} {path}" for method, path in lines}
    assert routes() == described


def test_every_table_of_probing_is_on_its_page() -> None:
    page = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
    columns = {name for one in compatibility.ADDED for name in one.columns} | set(compatibility.TAGS)
    assert not [name for name in (*compatibility.NAMES, *columns) if f"`{name}`" not in page]


def test_every_error_is_in_the_tree_that_people_read() -> None:
    drawn = re.findall(r"^ *(?:[│├└─ ]+)?([A-Z]\w+)", (errors.__doc__ or "").split("exit 1 belongs")[0], re.M)
    names = {kind.__name__ for kind in BY_CODE.values()}
    assert {name for name in drawn if name in names or name.endswith("Error")} == names


def test_every_error_is_raised_somewhere() -> None:
    made = {
        ast.unparse(node.func).rpartition(".")[2]
        for file in OURS
        for node in nodes(file)
        if isinstance(node, ast.Call)
    }
    leaves = {kind.__name__ for kind in BY_CODE.values() if not kind.__subclasses__()}
    assert leaves - made == set()
