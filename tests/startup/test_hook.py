"""The start-up hook: when it starts the agent, when it leaves no trace, and that it breaks nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from startup.pythons import ROOT, Python, install_hook, make_python, other_pythons

STARTED = "agent deferred=False torch=torch"
TRACES = """
import sys
before = sorted(name for name in sys.modules if "probe" in name)
import torch
after = sorted(name for name in sys.modules if "probe" in name)
finders = [type(finder).__name__ for finder in sys.meta_path if "Watch" in type(finder).__name__]
print(before, after, finders, vars(torch.__loader__).keys() - {"name", "path"})
"""


@pytest.mark.parametrize("value", [None, "", "0", "no", "OFF", " false "])
def test_with_probe_off_nothing_of_ours_is_there(hooked: Python, value: str | None) -> None:
    answer = hooked.code(TRACES, **({} if value is None else {"PROBE": value}))
    assert answer == (0, ["torch imported", "[] [] [] set()"], [])


def test_a_run_without_probe_reads_one_variable_and_imports_nothing(hooked: Python) -> None:
    line = (hooked.site / "torch_probe.pth").read_text()
    reads = []

    class Environ(dict[str, str]):
        def get(self, name: str, default: str = "") -> str:  # type: ignore[override]
            reads.append(name)
            return default

    class FakeOs:
        environ = Environ()

    loaded = set(sys.modules)
    exec(line.removeprefix("import os; "), {"os": FakeOs})
    assert reads == ["PROBE"]
    assert set(sys.modules) == loaded


@pytest.mark.parametrize("value", ["1", "yes", "On", "true"])
def test_the_agent_starts_once_torch_has_been_imported(hooked: Python, value: str) -> None:
    answer = hooked.code("print('script')\nimport torch\nprint('on')\nimport torch", PROBE=value)
    assert answer == (0, ["script", "torch imported", STARTED, "on"], [])


def test_a_program_without_torch_gets_no_agent_and_no_import_of_probe(hooked: Python) -> None:
    answer = hooked.code("import sys, json\nprint('probe' in sys.modules)", PROBE="1")
    assert answer == (0, ["False"], [])


def test_the_hook_leaves_the_import_system_as_it_was(hooked: Python) -> None:
    answer = hooked.code(TRACES, PROBE="1")
    assert answer.code == 0
    assert answer.out[-1].endswith(" [] set()")
    assert answer.out[-1].startswith("['torch_probe_boot'] ")


def test_lines_that_run_twice_start_one_agent(hooked: Python) -> None:
    (hooked.site / "once_more.pth").write_text((hooked.site / "torch_probe.pth").read_text() * 2)
    answer = hooked.code("import torch", PROBE="1")
    assert answer == (0, ["torch imported", STARTED], [])


def test_asking_whether_torch_is_there_starts_nothing_and_spoils_nothing(hooked: Python) -> None:
    answer = hooked.code(
        "from importlib.util import find_spec\n"
        "find_spec('torch')\nfind_spec('torch')\nprint('asked')\nimport torch",
        PROBE="1",
    )
    assert answer.out == ["asked", "torch imported", STARTED]


def test_a_torch_that_fails_to_import_fails_as_without_us_and_may_be_tried_again(hooked: Python) -> None:
    text = """
import sys
try:
    import torch
except RuntimeError as error:
    print("failed:", error, "torch" in sys.modules)
open(FILE, "w").write("value = 'mended'")
import importlib; importlib.invalidate_caches()
import torch
"""
    file = hooked.site / "torch" / "__init__.py"
    file.write_text("raise RuntimeError('no driver')")
    answer = hooked.code(text.replace("FILE", repr(str(file))), PROBE="1", PYTHONDONTWRITEBYTECODE="1")
    assert answer == (0, ["failed: no driver False", "agent deferred=False torch=mended"], [])


@pytest.mark.parametrize("torch", [
    "value = 1; import warnings; warnings.warn('old driver', stacklevel=2)",
    "raise ImportError('no driver')", "raise RuntimeError('no driver')",
])
def test_warnings_and_tracebacks_of_the_import_are_as_without_us(hooked: Python, torch: str) -> None:
    (hooked.site / "torch" / "__init__.py").write_text(torch)
    text = "print('before')\nimport torch"
    watched, plain = hooked.code(text, PROBE="1"), hooked.code(text)
    assert watched.err == plain.err and plain.err


def test_a_missing_torch_is_missing_as_without_us(hooked: Python) -> None:
    (hooked.site / "torch" / "__init__.py").unlink()
    (hooked.site / "torch").rmdir()
    text = "import torch"
    watched, plain = hooked.code(text, PROBE="1"), hooked.code(text)
    assert watched == plain
    assert watched.err[-1] == "ModuleNotFoundError: No module named 'torch'"


def test_a_finder_that_searches_through_the_others_does_not_make_us_search_for_ever(hooked: Python) -> None:
    answer = hooked.code(
        """
import sys
class Around:
    def find_spec(self, name, path=None, target=None):
        for finder in sys.meta_path:
            if finder is not self:
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    return spec
sys.meta_path.insert(0, Around())
import torch
""",
        PROBE="1",
    )
    assert answer == (0, ["torch imported", STARTED], [])


def test_a_loader_that_cannot_be_watched_is_said_and_torch_is_imported(hooked: Python) -> None:
    answer = hooked.code(
        """
import sys
from importlib.machinery import ModuleSpec
class Slotted:
    __slots__ = ()
    def create_module(self, spec): return None
    def exec_module(self, module): module.value = "own"
class Finder:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, Slotted()) if name == "torch" else None
sys.meta_path.append(Finder()); sys.path_importer_cache.clear()
sys.path[:] = [entry for entry in sys.path if "site-packages" not in entry]
import torch
print(torch.value)
""",
        PROBE="1",
    )
    assert (answer.code, answer.out) == (0, ["own"])
    assert len(answer.err) == 1
    assert "call probe.start() after it" in answer.err[0]


@pytest.mark.parametrize(
    "broken",
    [
        "raise RuntimeError('first line\\nsecond line')",
        "def start_from_environment(deferred=False): raise OSError('disk')",
        "this is no Python",
        "from probe import nothing_of_that_name",
        None,
    ],
)
def test_a_failure_of_ours_is_one_line_and_the_job_runs(hooked: Python, broken: str | None) -> None:
    lifecycle = hooked.site / "probe" / "job" / "agent" / "lifecycle.py"
    lifecycle.unlink()
    if broken is not None:
        lifecycle.write_text(broken)
    answer = hooked.code("import torch\nprint('trained')", PROBE="1")
    assert (answer.code, answer.out) == (0, ["torch imported", "trained"])
    assert len(answer.err) == 1
    assert answer.err[0].startswith("probe: could not start, the job runs without it: ")


def test_a_failure_of_ours_with_stderr_closed_goes_nowhere(hooked: Python) -> None:
    (hooked.site / "probe" / "job" / "agent" / "lifecycle.py").write_text("raise RuntimeError")
    answer = hooked.run("-c", "import os, sys; sys.stderr = None\nimport torch; print('trained')", PROBE="1")
    assert answer == (0, ["torch imported", "trained"], [])


@pytest.mark.parametrize(
    ("options", "environ"),
    [
        (["-O"], {}), (["-OO"], {}), (["-I"], {}), (["-E"], {}), (["-s"], {}), (["-B"], {}),
        (["-X", "importtime"], {}), (["-W", "error"], {}),
        ([], {"LANG": "C", "LC_ALL": "C"}), ([], {"PYTHONUTF8": "0", "LC_ALL": "POSIX"}),
    ],
    ids=str,
)
def test_the_agent_starts_under_every_way_to_start_python(
    hooked: Python, options: list[str], environ: dict[str, str]
) -> None:
    answer = hooked.code("import torch", *options, PROBE="1", **environ)
    assert (answer.code, answer.out) == (0, ["torch imported", STARTED])


def test_without_site_nothing_starts(hooked: Python) -> None:
    answer = hooked.code(
        f"import sys; sys.path.append({str(hooked.site)!r})\nimport torch", "-S", PROBE="1"
    )
    assert answer == (0, ["torch imported"], [])


def test_a_start_file_of_newer_pythons_names_what_is_there(hooked: Python) -> None:
    module, _, function = (hooked.site / "torch_probe.start").read_text().strip().partition(":")
    text = f"import {module}\n{module}.{function}()\nimport torch"
    assert hooked.code(text, PROBE="1").out == ["torch imported", STARTED]
    assert hooked.code(text).out == ["torch imported"]


def test_other_pythons_start_the_agent_or_decline_in_one_line(tmp_path: Path) -> None:
    others = other_pythons()
    if not others:
        pytest.skip("no other python3.N on PATH")
    for number, executable in enumerate(others):
        (tmp_path / str(number)).mkdir()
        python = make_python(tmp_path / str(number), executable)
        install_hook(python)
        minor = int(executable.rpartition("python3.")[2])
        answer = python.code("import torch\nprint('trained')", PROBE="1")
        assert answer.code == 0
        if minor >= 10:
            assert (answer.out, answer.err) == (["torch imported", STARTED, "trained"], [])
        else:
            assert answer.out == ["torch imported", "trained"]
            assert set(answer.err) == {f"probe: needs Python 3.10 or newer, this is 3.{minor}"}


def test_a_torch_that_is_too_old_is_declined_in_one_line_and_an_odd_one_is_not(hooked: Python) -> None:
    job = "import torch\nprint('trained')"
    old = hooked.code(job, PROBE="1", FAKE_TORCH_VERSION="2.1.2+cu121")
    said = "probe: needs torch 2.6 or newer, this is 2.1.2+cu121; the job runs without it"
    assert old == (0, ["torch imported", "trained"], [said])
    assert hooked.code(job, FAKE_TORCH_VERSION="2.1.2").err == []
    for version in ("2.6.0a0+git1", "2.6.0", "10.0", "built here", ""):
        answer = hooked.code(job, PROBE="1", FAKE_TORCH_VERSION=version)
        assert answer == (0, ["torch imported", STARTED, "trained"], []), version


def test_a_launcher_and_a_child_do_not_repeat_what_the_job_says(hooked: Python) -> None:
    (hooked.site / "torch" / "distributed").mkdir()
    (hooked.site / "torch" / "distributed" / "__init__.py").touch()
    (hooked.site / "torch" / "distributed" / "run.py").touch()
    old = {"PROBE": "1", "FAKE_TORCH_VERSION": "2.1.2"}
    assert hooked.run("-m", "torch.distributed.run", **old) == (0, ["torch imported"], [])
    spawned = hooked.code(
        "import torch\nfrom multiprocessing import get_context\n"
        "if __name__ == '__main__':\n    one = get_context('spawn').Process(target=print, args=('child',))\n"
        "    one.start(); one.join()", **old,
    )
    assert (spawned.code, len(spawned.err)) == (0, 1)


def test_what_attaches_to_a_torch_that_is_too_old_is_refused(hooked: Python) -> None:
    text = (
        "import torch, torch_probe_boot\nfound = torch_probe_boot.attach({})\n"
        "print(found['code'], found['error'], 'probe.job' in __import__('sys').modules)"
    )
    errors = Path("probe") / "base" / "errors.py"
    (hooked.site / errors).write_text((ROOT / errors).read_text())
    answer = hooked.code(text, FAKE_TORCH_VERSION="2.5.1")
    said = "attach_refused needs torch 2.6 or newer, this is 2.5.1; the job runs without it False"
    assert (answer.code, answer.out[-1], answer.err) == (0, said, [])
