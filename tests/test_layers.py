"""Checks in the code's syntax trees that imports respect the layers of ARCHITECTURE.md.

Every import counts, also those in functions and under TYPE_CHECKING.
"""

from __future__ import annotations

import ast
import gc
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(ROOT.glob("probe/**/*.py")) + sorted(ROOT.glob("cli/**/*.py"))
LONGEST_LINES = 500
MOST_FILES = 16
"""Most files in one folder, not counting its `__init__.py`."""

ORDER = (
    "probe.base",
    "probe.recording",
    "probe.boot.launch",
    "probe.confined",
    "probe.checkpoint",
    "probe.outside",
    "probe.diagnose",
    "probe.bundle",
    "probe.archive",
    "probe.fleet",
    "probe.job.introspection",
    "probe.job.instruments.core",
    "probe.job.instruments.loop",
    "probe.job.instruments.modules",
    "probe.job.instruments.tensors",
    "probe.job.instruments.comm",
    "probe.job.instruments.nan",
    "probe.job.instruments.dependence",
    "probe.job.instruments.facts",
    "probe.job.instruments.updates",
    "probe.job.instruments",
    "probe.job.boundary",
    "probe.job.snippets",
    "probe.job.actions",
    "probe.job.agent",
    "probe.server.runtime",
    "probe.server.recordings",
    "probe.server.sql",
    "probe.server.watch",
    "probe.server.agents",
    "probe.server.peers",
    "probe.server.service",
    "probe.server.hosts",
    "probe.server.answers",
    "probe.server.alerts",
    "probe.server.http",
    "probe.server",
    "probe.boot",
    "probe.client",
    "probe.page",
    "probe_cli.core",
    "probe_cli.render",
    "probe_cli.prompts",
    "probe_cli.agent_tools",
    "probe_cli.commands",
    "probe_cli",
)
"""A module may import from its own entry and earlier ones. Its entry is the longest name that matches."""
READERS = ("probe.recording.reader", "probe.recording.segments")
"""These import numpy and duckdb, which a job may lack and which would slow down a command."""
NEVER: Mapping[str, tuple[str, ...]] = {
    "probe.boot": ("probe.confined", "probe.outside", "probe.diagnose", "probe.server", *READERS),
    "probe.checkpoint": READERS,
    "probe.outside": ("probe.checkpoint", *READERS),
    "probe.diagnose": ("probe.checkpoint",),
    "probe.job": (
        "probe.confined", "probe.outside", "probe.diagnose", "probe.bundle", "probe.archive", "probe.fleet",
        "probe.server", *READERS,
    ),
    "probe.bundle": ("probe.outside", "probe.checkpoint"),
    "probe.archive": ("probe.outside", "probe.checkpoint", "probe.diagnose"),
    "probe.fleet": ("probe.outside", "probe.checkpoint", *READERS),
    "probe.server": ("probe.job", "probe.checkpoint", "probe.fleet"),
    "probe.client": (
        "probe.job", "probe.server", "probe.checkpoint", "probe.outside", "probe.diagnose", *READERS,
    ),
    "probe.page": (
        "probe.job", "probe.server", "probe.checkpoint", "probe.outside", "probe.diagnose", *READERS,
    ),
    "probe_cli": (
        "probe.job", "probe.server", "probe.checkpoint", "probe.diagnose.process", "probe.diagnose.ranks",
        *READERS,
    ),
}
"""Imports that are forbidden although the order allows them: code that runs in another process."""
ENTRIES = ("probe", "probe.__main__")
"""Modules with the public names, which they import on first use."""


class Libraries(NamedTuple):
    """Third-party libraries that files (a path pattern) may import: `anywhere` at module level or in
    functions, `inside` in functions only."""

    files: str
    anywhere: frozenset[str]
    inside: frozenset[str]


def _libraries(files: str, anywhere: str = "", inside: str = "") -> Libraries:
    return Libraries(files, frozenset(anywhere.split()), frozenset(inside.split()))


LIBRARIES = (
    _libraries(r"probe/recording/(?:reader|segments)\.py", "numpy duckdb"),
    _libraries(r"probe/(?:job|checkpoint)/.*", "", "torch numpy"),
    _libraries(r"probe/outside/.*", "", "pystack pyinjector"),
    _libraries(r"probe/diagnose/recipes/recipe(?:_files)?\.py", "pydantic", "tomli"),
    _libraries(r"probe/diagnose/.*", "numpy duckdb"),
    _libraries(r"probe/bundle/.*", "", "duckdb zstandard compression"),
    _libraries(r"probe/fleet/.*", "", "duckdb pyarrow ray"),
    _libraries(r"probe/archive/.*", "", "duckdb obstore"),
    _libraries(r"probe/server/alerts/alert_sender\.py", "", "apprise"),
    _libraries(r"probe/server/http/metrics\.py", "numpy", "prometheus_client"),
    _libraries(r"probe/server/recordings/gpu\.py", "", "pynvml"),
    _libraries(r"probe/confined/.*", "", "duckdb pyarrow"),
    _libraries(r"probe/server/peers/.*", "numpy", "httpx"),
    _libraries(r"probe/server/.*", "fastapi starlette uvicorn h11 pydantic duckdb numpy"),
    _libraries(r"probe/client/notebook\.py", "", "IPython"),
    _libraries(r"probe/client/.*", "", "httpx duckdb"),
    _libraries(r"probe/page/.*", "", "uvicorn"),
    _libraries(r"cli/probe_cli/commands/export\.py", "typer", "tensorboard wandb mlflow"),
    _libraries(r"cli/probe_cli/agent_tools/.*", "", "mcp"),
    _libraries(r"cli/probe_cli/prompts/line_reader\.py", "prompt_toolkit"),
    _libraries(r"cli/probe_cli/render/plot_lines\.py", "", "plotille matplotlib"),
    _libraries(r"cli/probe_cli/.*", "typer click", "httpx rich duckdb pyarrow"),
    _libraries(r".*"),
)


class Import(NamedTuple):
    """The target of one import statement."""

    module: str
    line: int
    inside: bool


def module_of(file: Path) -> str:
    """Dotted name of a file's module."""
    top = ROOT / "cli" if file.is_relative_to(ROOT / "cli") else ROOT
    parts = file.relative_to(top).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


OURS = {module_of(file): file for file in FILES}


@cache
def tree_of(file: Path) -> ast.Module:
    """Syntax tree of a file, without the garbage collector, which would walk all trees again and again."""
    gc.disable()
    try:
        return ast.parse(file.read_text(encoding="utf-8"))
    finally:
        gc.enable()


@cache
def imports_of(file: Path) -> tuple[Import, ...]:
    """Every module that a file imports, at any level."""

    def walk(node: ast.AST, inside: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (Import(alias.name, child.lineno, inside) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{file}:{child.lineno}: relative import"
                module = child.module or ""
                for alias in child.names:  # `from probe.base import wire` imports a module
                    full = f"{module}.{alias.name}"
                    yield Import(full if full in OURS else module, child.lineno, inside)
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                yield from walk(child, True)
            elif not isinstance(child, ast.expr):  # which imports nothing
                yield from walk(child, inside or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))

    return tuple(walk(tree_of(file), False))


def within(module: str, package: str) -> bool:
    """Whether a module is that one or inside it."""
    return module == package or module.startswith(f"{package}.")


def entry_of(module: str) -> str:
    """The longest entry of `ORDER` that contains the module."""
    fitting = [entry for entry in ORDER if within(module, entry)]
    assert fitting, f"{module} is in no layer: add it to ORDER here and to ARCHITECTURE.md"
    return max(fitting, key=len)


def libraries_of(file: Path) -> Libraries:
    """The first entry of `LIBRARIES` that matches the path."""
    path = file.relative_to(ROOT).as_posix()
    return next(found for found in LIBRARIES if re.fullmatch(found.files, path))


def forbidden(module: str, file: Path, found: Import) -> bool:
    """Whether `module` must not import that."""
    if within(found.module, "probe") or within(found.module, "probe_cli"):
        if module in ENTRIES or found.module == "probe":
            return False
        if ORDER.index(entry_of(found.module)) > ORDER.index(entry_of(module)):
            return True
        return any(
            within(module, one) and any(within(found.module, other) for other in others)
            for one, others in NEVER.items()
        )
    top = found.module.partition(".")[0]
    allowed = libraries_of(file)
    if top in sys.stdlib_module_names or top in allowed.anywhere or top == "sitecustomize":
        return False
    return not (found.inside and top in allowed.inside)


def test_a_file_imports_only_what_its_layer_may() -> None:
    wrong = [
        f"{file}:{one.line}: {one.module}"
        for file in FILES for one in imports_of(file) if forbidden(module_of(file), file, one)
    ]
    assert not wrong, "\n".join(wrong)


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Groups of modules that import each other in a cycle (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in graph[module]:
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            group = stack[stack.index(module):]
            del stack[stack.index(module):]
            if len(group) > 1:
                found.append(sorted(group))

    for module in graph:
        if module not in index:
            visit(module)
    return found


def our_imports() -> dict[str, set[str]]:
    """For each of our modules, the modules of ours that it imports."""
    return {
        module: {one.module for one in imports_of(file) if one.module in OURS} - {module, "probe"}
        for module, file in OURS.items()
    }


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles(our_imports()) == []


def test_an_import_that_closes_a_circle_is_seen() -> None:
    graph = our_imports()
    graph["probe.base.errors"].add("probe.server.serve")
    [circle] = circles(graph)
    assert {"probe.base.errors", "probe.server.serve"} <= set(circle)


def test_no_two_modules_have_one_name() -> None:
    names: dict[str, list[str]] = {}
    for module, file in OURS.items():
        if file.stem not in ("__init__", "__main__"):
            names.setdefault(file.stem, []).append(module)
    assert [modules for modules in names.values() if len(modules) > 1] == []


def test_no_folder_holds_more_files_than_one_takes_in() -> None:
    folders: dict[Path, int] = {}
    for file in FILES:
        if file.stem != "__init__" and file.parent.name != "commands":  # one file per command
            folders[file.parent] = folders.get(file.parent, 0) + 1
    assert {str(folder): count for folder, count in folders.items() if count > MOST_FILES} == {}


def test_a_file_is_short_enough_to_read() -> None:
    lines = {str(file): len(file.read_text(encoding="utf-8").splitlines()) for file in FILES}
    assert lines and {file: count for file, count in lines.items() if count > LONGEST_LINES} == {}


BLIND = frozenset({"Exception", "BaseException"})
MAY_BE_BLIND = frozenset({"probe/base/isolation.py", "probe/boot/torch_probe_boot.py"})
"""The boot hook is one of them: it runs in the job's `import torch`, before isolation can be imported."""


def is_blind(node: ast.AST) -> bool:
    """Whether a node swallows all exceptions: a broad `suppress` or a handler that does not `raise`."""
    if isinstance(node, ast.ExceptHandler):
        caught = BLIND if node.type is None else names_in(node.type)
        ending = node.body[-1]
        return bool(caught & BLIND) and not (isinstance(ending, ast.Raise) and ending.exc is None)
    called = getattr(node, "func", None)
    if isinstance(node, ast.Call) and "suppress" in (getattr(called, "id", ""), getattr(called, "attr", "")):
        return any(names_in(argument) & BLIND for argument in node.args)
    return False


def names_in(node: ast.AST) -> frozenset[str]:
    """All plain names in a node."""
    return frozenset(part.id for part in ast.walk(node) if isinstance(part, ast.Name))


def test_only_the_isolation_catches_everything() -> None:
    wrong = [
        f"{file}:{node.lineno}"
        for file in FILES
        if file.relative_to(ROOT).as_posix() not in MAY_BE_BLIND
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.ExceptHandler | ast.Call) and is_blind(node)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("code", "blind"),
    [
        ("try: f()\nexcept: pass", True),
        ("try: f()\nexcept Exception: pass", True),
        ("try: f()\nexcept (OSError, BaseException) as e: g(e)", True),
        ("try: f()\nexcept BaseException:\n    g()\n    raise", False),
        ("try: f()\nexcept OSError: pass", False),
        ("with contextlib.suppress(Exception): f()", True),
        ("with suppress(OSError): f()", False),
    ],
)
def test_a_handler_that_swallows_everything_is_seen(code: str, blind: bool) -> None:
    assert any(is_blind(node) for node in ast.walk(ast.parse(code))) is blind


@pytest.mark.parametrize(
    ("module", "line", "wrong"),
    [
        ("probe.job.instruments.loop.data", "import torch", True),
        ("probe.job.instruments.loop.data", "def f():\n    import torch", False),
        ("probe.job.instruments.loop.data", "def f():\n    import duckdb", True),
        ("probe.job.instruments.loop.data", "from probe.server.http import app", True),
        ("probe.job.instruments.loop.data", "from probe.recording.reader import Rows", True),
        ("probe.job.boundary.safe_point", "if TYPE_CHECKING:\n    from probe.job.agent import acting", True),
        ("probe.base.wire", "def f():\n    from probe.job.agent import lifecycle", True),
        ("probe.recording.ring", "from probe.recording import layout", False),
        ("probe.server.http.app", "import torch", True),
        ("probe.server.http.app", "from probe.job.instruments.loop import data", True),
        ("probe.server.sql.pool", "from probe.server.answers import queries", True),
        ("probe.server.answers.queries", "from probe.server.sql import pool", False),
        ("probe_cli.main", "import httpx", True),
        ("probe_cli.main", "from probe.recording.reader import Rows", True),
        ("probe_cli.main", "from probe.recording.places import home", False),
    ],
)
def test_the_layers_tell_right_from_wrong(module: str, line: str, wrong: bool, tmp_path: Path) -> None:
    written = tmp_path / "file.py"
    written.write_text(line)
    assert [forbidden(module, OURS[module], one) for one in imports_of(written)] == [wrong]


RAW = re.compile(
    r"(?:open|io\.open|os\.(?:listdir|scandir|open|fdopen|close|closerange|dup|dup2|pipe2?|pread|read|write|lseek|sendfile)"
    r"|socket\.(?:socket|socketpair|create_connection)|.*\.(?:read_text|read_bytes|write_text|write_bytes|open|iterdir|glob|rglob))"
)
"""Calls that open, use or close a descriptor without verifying that it is still ours."""
PROVEN = re.compile(r"(?:descriptors|checked)\.\w+")
IN_THE_JOB = re.compile(
    r"probe/(?:job|checkpoint)/.*|probe/base/(?:wire|commit_vote)\.py|probe/boot/launch\.py"
    r"|probe/recording/(?:checked|ring|strings|journal|mapping|places|process|captures|announcement)\.py"
)
MAY_BE_RAW = {
    "probe/job/instruments/nan/forked_probe.py": {  # a fork's
        "send", "_cut_off", "_replace", "_protect_shared_memory",
    },
    "probe/job/instruments/modules/module_times.py": {"_memory"},  # verified when its step began
    "probe/recording/journal.py": {"read_journal", "read_payloads", "read_on"},  # in the server
    "probe/recording/strings.py": {"read_strings"},
    "probe/recording/places.py": {"_listed"},  # in the server
    "probe/recording/process.py": {"is_stopped"},  # in the server
    "probe/base/commit_vote.py": {"remove_old"},
}


def raw_uses(file: Path) -> Iterator[tuple[str, str]]:
    """Places where a file uses an unverified descriptor: call and function. `os.write(x.fileno(), …)` is
    fine, since `fileno` verifies."""
    path = file.relative_to(ROOT).as_posix()

    def walk(node: ast.AST, function: str) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            inner = child.name if isinstance(child, ast.FunctionDef) else function
            if isinstance(child, ast.Call):
                name = ast.unparse(child.func)
                proven = bool(child.args) and ast.unparse(child.args[0]).endswith((".fileno()", "_number()"))
                if RAW.fullmatch(name) and not PROVEN.fullmatch(name) and not proven:
                    yield function, f"{path}:{child.lineno}: {name}"
            yield from walk(child, inner)

    yield from walk(tree_of(file), "")


def test_no_descriptor_is_used_in_the_job_but_by_way_of_the_proof() -> None:
    files = [file for file in FILES if IN_THE_JOB.fullmatch(file.relative_to(ROOT).as_posix())]
    wrong = [
        use for file in files for function, use in raw_uses(file)
        if function not in MAY_BE_RAW.get(file.relative_to(ROOT).as_posix(), set())
    ]
    assert len(files) > 100 and not wrong, "\n".join(wrong)
