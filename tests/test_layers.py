"""The layer table of ARCHITECTURE.md, held against the code's syntax trees."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(ROOT.glob("probe/**/*.py")) + sorted(ROOT.glob("cli/**/*.py"))
LONGEST_LINES = 500

BASE = ("settings", "errors", "wire", "clock", "startup", "launch", "tables", "boot", "rank_sets", "ballot",
        "announcement", "descriptors", "importlib_bootstrap", "redaction", "versions", "__init__",
        "__version__")
RECORDING = (
    "checked", "layout", "mapping", "ring", "strings", "journal", "captures", "crash", "places", "process",
    "recording", "waiting", "__init__",
)


PACKAGES = (
    "probe",
    *(f"probe.{name}" for name in ("recording", "server", "agent", "attach", "diagnose", "cluster")),
)


class Layer(NamedTuple):
    """Which files (by pattern of their path) may import what beside the standard library.

    `ours`: parts of probe, as patterns. `anywhere`: other distributions at module level or in
    functions; `inside`: in functions only.
    """

    files: str
    ours: str
    anywhere: frozenset[str]
    inside: frozenset[str]


def _layer(files: str, ours: str, anywhere: str = "", inside: str = "") -> Layer:
    return Layer(files, ours, frozenset(anywhere.split()), frozenset(inside.split()))


STANDARD = rf"(?:(?:{'|'.join(BASE)})\b|recording(?:$|\.(?:{'|'.join(RECORDING)})\b)|$)"
JOB = rf"(?:{STANDARD}|(?:agent|checkpoint(?:_ranks|_sharded)?|control|instruments)\b)"
OUTSIDE = rf"(?:{STANDARD}|attach\b)"
CLUSTER = rf"(?:{OUTSIDE}|recording\b|diagnose\b|cluster\b)"
SERVER = rf"(?:{CLUSTER}|server\b)"

LAYERS = (
    # The three ways into the job's side: the public names, the hook, and nothing else.
    _layer(r"probe/__init__\.py", r"(?:agent|checkpoint|versions)\b"),
    _layer(r"probe/boot/.*", r"startup\b|$"),
    _layer(r"probe/startup\.py", rf"{STANDARD}|agent\b"),
    _layer(rf"probe/(?:{'|'.join(BASE)})(?:\.py|/.*)", STANDARD),
    _layer(rf"probe/recording/(?:{'|'.join(RECORDING)})\.py", STANDARD),
    _layer(r"probe/recording/(?:reader|segments)\.py", rf"(?:{STANDARD}|recording\b)", "numpy duckdb"),
    _layer(
        r"probe/checkpoint(?:_ranks|_sharded)?\.py",
        rf"{STANDARD}|checkpoint(?:_ranks|_sharded)?\b|control\.random_states\b", "", "torch numpy",
    ),
    _layer(r"probe/(?:instruments|control|agent)/.*", JOB, "", "torch numpy"),
    _layer(r"probe/server/alert_sender\.py", STANDARD, "", "apprise"),
    _layer(r"probe/server/metrics\.py", SERVER, "numpy", "prometheus_client"),
    _layer(r"probe/server/gpu\.py", SERVER, "", "pynvml"),
    _layer(r"probe/server/.*", SERVER, "fastapi starlette uvicorn h11 pydantic duckdb numpy"),
    _layer(r"probe/cluster/.*", CLUSTER, "numpy", "httpx"),
    _layer(r"probe/attach/.*", OUTSIDE, "", "pystack pyinjector"),
    _layer(r"probe/diagnose/.*", rf"(?:{OUTSIDE}|recording\b|diagnose\b)", "numpy duckdb", "tomli"),
    _layer(
        r"cli/probe_cli/docs\.py",
        rf"(?:{OUTSIDE}|(?:diagnose\.(?:verdict|recipes)|control\.guard\.rules)\b)", "", "typer",
    ),
    _layer(r"cli/probe_cli/export\.py", OUTSIDE, "", "tensorboard wandb mlflow"),
    _layer(
        r"cli/probe_cli/.*", rf"(?:{OUTSIDE}|diagnose\.(?:recipes?|local|training_log)\b)",
        "typer click", "httpx rich duckdb",
    ),
)


class Import(NamedTuple):
    """One import statement's target."""

    module: str
    line: int
    inside: bool


def imports_of(file: Path) -> Iterator[Import]:
    """Every module a file imports; what only a type checker sees does not count."""

    def walk(node: ast.AST, inside: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (Import(alias.name, child.lineno, inside) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{file}:{child.lineno}: relative import"
                module = child.module or ""
                # `from probe import startup` imports a module, `from probe.errors import X` does not.
                own = module in PACKAGES
                names = [f"{module}.{alias.name}" if own else module for alias in child.names]
                yield from (Import(name, child.lineno, inside) for name in names)
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                yield from (found for part in child.orelse for found in walk(part, inside))
            else:
                yield from walk(child, inside or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))

    yield from walk(ast.parse(file.read_text(encoding="utf-8")), False)


def layer_of(file: Path) -> Layer:
    """The first layer whose pattern fits the path."""
    path = file.relative_to(ROOT).as_posix()
    for layer in LAYERS:
        if re.fullmatch(layer.files, path):
            return layer
    raise AssertionError(f"{path} is in no layer: add it to ARCHITECTURE.md and to LAYERS here")


def forbidden(file: Path, found: Import) -> bool:
    """Whether the file's layer may not import that."""
    layer = layer_of(file)
    top, _, rest = found.module.partition(".")
    if top == "probe":
        return re.match(layer.ours, rest) is None
    if top == "probe_cli":
        return not layer.files.startswith("cli")
    if top in sys.stdlib_module_names or top in layer.anywhere or top == "sitecustomize":
        return False
    return not (found.inside and top in layer.inside)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_a_file_imports_only_what_its_layer_may(file: Path) -> None:
    wrong = [f"{file}:{found.line}: {found.module}" for found in imports_of(file) if forbidden(file, found)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_a_file_is_short_enough_to_read(file: Path) -> None:
    lines = len(file.read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST_LINES, f"{file} has {lines} lines"


BLIND = frozenset({"Exception", "BaseException"})
MAY_BE_BLIND = frozenset({"probe/agent/isolation.py", "probe/boot/torch_probe_boot.py"})
"""The boot hook runs before isolation can be imported, and inside the job's `import torch`."""


def is_blind(node: ast.AST) -> bool:
    """Whether a node swallows everything: a blind `suppress`, or a blind handler that does not `raise`."""
    if isinstance(node, ast.ExceptHandler):
        caught = BLIND if node.type is None else names_in(node.type)
        ending = node.body[-1]
        return bool(caught & BLIND) and not (isinstance(ending, ast.Raise) and ending.exc is None)
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
        return any(names_in(argument) & BLIND for argument in node.args)
    return False


def names_in(node: ast.AST) -> frozenset[str]:
    """All plain names within a node."""
    return frozenset(part.id for part in ast.walk(node) if isinstance(part, ast.Name))


def test_only_the_isolation_catches_everything() -> None:
    wrong = [
        f"{file}:{node.lineno}"
        for file in FILES
        if file.relative_to(ROOT).as_posix() not in MAY_BE_BLIND
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
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
    ("path", "line", "wrong"),
    [
        ("probe/instruments/data.py", "import torch", True),
        ("probe/instruments/data.py", "def f():\n    import torch", False),
        ("probe/instruments/data.py", "def f():\n    import duckdb", True),
        ("probe/instruments/data.py", "from probe.server import app", True),
        ("probe/wire.py", "from probe.agent import lifecycle", True),
        ("probe/recording/ring.py", "from probe.recording import reader", True),
        ("probe/recording/ring.py", "from probe.recording import layout", False),
        ("probe/server/app.py", "import torch", True),
        ("probe/server/app.py", "from probe.instruments import data", True),
        ("cli/probe_cli/main.py", "import httpx", True),
        ("cli/probe_cli/main.py", "from probe.recording.reader import rows", True),
        ("cli/probe_cli/main.py", "from probe.recording.places import home", False),
    ],
)
def test_the_table_tells_right_from_wrong(path: str, line: str, wrong: bool, tmp_path: Path) -> None:
    written = tmp_path / "file.py"
    written.write_text(line)
    assert [forbidden(ROOT / path, found) for found in imports_of(written)] == [wrong]


RAW = re.compile(
    r"(?:open|io\.open|os\.(?:listdir|scandir|open|fdopen|close|closerange|dup|dup2|pipe2?|pread|read|write|lseek|sendfile)"
    r"|socket\.(?:socket|socketpair|create_connection)|.*\.(?:read_text|read_bytes|write_text|write_bytes|open|iterdir|glob|rglob))"
)
"""Ways to open, use or close a descriptor without a proof that it is ours."""
PROVEN = re.compile(r"(?:descriptors|checked)\.\w+")
IN_THE_JOB = re.compile(
    r"probe/(?:agent|control|instruments)/.*|probe/(?:wire|ballot|launch|announcement|checkpoint\w*)\.py"
    r"|probe/recording/(?:checked|ring|strings|journal|mapping|places|process|captures)\.py"
)
MAY_BE_RAW = {
    "probe/instruments/frozen.py": {"send", "_cut_off", "_replace", "_protect_what_is_shared"},  # a fork's
    "probe/instruments/modules.py": {"_memory"},  # reads what was proven when its step began
    "probe/recording/journal.py": {"read_journal", "read_payloads", "read_on"},  # in the server
    "probe/recording/strings.py": {"read_strings"},
    "probe/recording/places.py": {"process_folders"},  # in the server
    "probe/ballot.py": {"remove_old"},
}


def raw_uses(file: Path) -> Iterator[tuple[str, str]]:
    """Where a file uses a descriptor that nobody proved, and in which function. `os.write(x.fileno(), …)`
    proves in its argument."""
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

    yield from walk(ast.parse(file.read_text(encoding="utf-8")), "")


def test_no_descriptor_is_used_in_the_job_but_by_way_of_the_proof() -> None:
    files = [file for file in FILES if IN_THE_JOB.fullmatch(file.relative_to(ROOT).as_posix())]
    wrong = [
        use for file in files for function, use in raw_uses(file)
        if function not in MAY_BE_RAW.get(file.relative_to(ROOT).as_posix(), set())
    ]
    assert len(files) > 100 and not wrong, "\n".join(wrong)
