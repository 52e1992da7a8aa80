"""What pip puts where: the hook lies in site-packages after a plain and after an editable install."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import probe
from startup.pythons import BOOT, ROOT, Python, make_python

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TRACES = """
import sys
import torch
print(sorted(name for name in sys.modules if name in ("torch_probe_boot", "probe", "probe.boot.startup")))
import probe, probe_cli
print(probe.__version__, probe.__file__)
"""


def pip(python: Python, *words: str) -> None:
    """This environment's pip, working on that one; skips without pip."""
    if find_spec("pip") is None:
        pytest.skip("this environment has no pip")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python.executable), *words],
        capture_output=True, text=True, timeout=300, check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_wheel_gets_every_start_up_file_into_site_packages_and_the_version_has_its_changes() -> None:
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = metadata["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    files = [file for file in BOOT.glob("torch_probe*") if file.is_file()]
    assert included == {str(file.relative_to(ROOT)): file.name for file in files} and len(files) == 3
    assert f"\n## {probe.__version__}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.campaign  # daily: above, `hooked` of the other files, and the environment that tests/run makes
@pytest.mark.parametrize("options", [[], ["--editable"]], ids=["wheel", "editable"])
def test_an_installed_probe_starts_by_itself_reaches_into_others_and_uninstalls_without_trace(
    bare: Python, options: list[str], tmp_path: Path
) -> None:
    before = sorted(path.name for path in bare.site.iterdir())
    pip(bare, "install", "--quiet", "--no-deps", *options, str(ROOT))
    if not options:
        added = {path.name for path in bare.site.iterdir()} - {*before, "__pycache__"}
        [about] = [name for name in added if name.endswith(".dist-info")]
        start_up = {"torch_probe.pth", "torch_probe.start", "torch_probe_boot.py"}
        assert added == {"probe", "probe_cli", *start_up, about}
        assert not [*bare.site.glob("probe*/**/conftest.py"), *bare.site.glob("probe*/**/test_*.py")]
        assert about.removesuffix(".dist-info").endswith(f"-{probe.__version__}")
    places = {"PROBE_DIR": str(tmp_path / "d"), "PROBE_RINGS_DIR": str(tmp_path)}
    off, on = bare.code(TRACES), bare.code(TRACES, PROBE="1", **places)
    home = ROOT if options else bare.site
    assert (off.code, off.err) == (0, [])
    assert off.out[1] == "[]"
    assert off.out[2].endswith(f" {home}/probe/__init__.py")
    assert on.code == 0
    assert on.out[1] == "['probe', 'probe.boot.startup', 'torch_probe_boot']"
    assert on.out[2] == off.out[2]
    assert (bare.site / "torch_probe.start").is_file()
    assert (bare.executable.parent / "probe").is_file()
    if not options:
        reaches_into_another(bare, tmp_path)
    pip(bare, "uninstall", "--quiet", "--yes", "torch-probe")
    assert sorted(path.name for path in bare.site.iterdir() if path.name != "__pycache__") == before


def reaches_into_another(bare: Python, tmp_path: Path) -> None:
    """What is installed in one Python is found by another, by the folder that `probe run` adds."""
    text = "import os\nfrom probe.boot.startup import PATH_FOLDER\nprint(PATH_FOLDER)"
    folder = bare.code(text).out[0]
    (tmp_path / "other").mkdir()
    other = make_python(tmp_path / "other")
    answer = other.code(
        "import sys, torch; print(sys.modules['probe'].__file__)",
        PROBE="1", PROBE_DIR=str(tmp_path / "d"), PROBE_RINGS_DIR=str(tmp_path), PYTHONPATH=folder,
    )
    assert (answer.code, answer.out) == (0, ["torch imported", f"{bare.site}/probe/__init__.py"])
