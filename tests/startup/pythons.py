"""A throw-away Python with our hook in it, a tiny torch, and an agent that only says it was started.

So the hook is tested at real interpreter start-up, in a tenth of a second each.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
BOOT = ROOT / "probe" / "boot"
TORCH = """
import os
value = os.environ.get("FAKE_TORCH_VALUE", "torch")
if "FAKE_TORCH_VERSION" in os.environ:
    __version__ = os.environ["FAKE_TORCH_VERSION"]
print("torch imported")
"""
LIFECYCLE = """
import sys

def start_from_environment(deferred=False):
    print(f"agent deferred={deferred} torch={sys.modules['torch'].value}", flush=True)
"""


class Answer(NamedTuple):
    """How a run ended."""

    code: int
    out: list[str]
    err: list[str]


class Python(NamedTuple):
    """An interpreter; `site` is its site-packages, `home` the folder that runs start in."""

    executable: Path
    site: Path
    home: Path

    def run(self, *arguments: str, cwd: Path | None = None, **environ: str) -> Answer:
        """Run it with nothing of ours in the environment but `environ`."""
        quiet = {
            name: value for name, value in os.environ.items() if not name.startswith(("PROBE", "PYTHON"))
        }
        done = subprocess.run(
            [str(self.executable), *arguments], cwd=cwd or self.home, env={**quiet, **environ},
            capture_output=True, text=True, timeout=120, check=False,
        )
        return Answer(done.returncode, done.stdout.splitlines(), done.stderr.splitlines())

    def code(self, text: str, *options: str, **environ: str) -> Answer:
        """Run code given with -c."""
        return self.run(*options, "-c", text, **environ)

    def script(self, text: str, *, name: str = "train.py", **environ: str) -> Answer:
        """Run a script of its own folder, from another one."""
        folder = self.home / "job"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text)
        return self.run(str(folder / name), **environ)


def copy_probe(into: Path) -> None:
    """Our start-up code, with an agent that only says that it was started."""
    package = into / "probe"
    for folder in ("base", "boot", "job/agent"):
        (package / folder).mkdir(parents=True)
    for file in (
        "__init__.py", "base/__init__.py", "base/versions.py", "boot/__init__.py", "boot/startup.py",
        "job/__init__.py", "job/agent/__init__.py",
    ):
        shutil.copy(ROOT / "probe" / file, package / file)
    (package / "job" / "agent" / "lifecycle.py").write_text(LIFECYCLE)
    shutil.copytree(BOOT / "path", package / "boot" / "path", ignore=shutil.ignore_patterns("__pycache__"))


@functools.cache
def _environment(executable: str) -> Path:
    """An empty virtual environment of that interpreter, to be copied."""
    made = Path(tempfile.mkdtemp(prefix="probe-test-venv-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    command = [executable, "-m", "venv", "--without-pip", "--symlinks", made / "venv"]
    subprocess.run(command, check=True, timeout=120)
    return made / "venv"


def make_python(folder: Path, executable: str = sys.executable) -> Python:
    """A virtual environment of that interpreter with a small torch."""
    shutil.copytree(_environment(executable), folder / "venv", symlinks=True)
    site = next((folder / "venv").glob("lib/python*/site-packages"))
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text(TORCH)
    home = folder / "home"
    home.mkdir()
    return Python(folder / "venv" / "bin" / "python", site, home)


def install_hook(python: Python) -> None:
    """What a wheel puts into site-packages."""
    copy_probe(python.site)
    for file in BOOT.glob("torch_probe*"):
        if file.is_file():
            shutil.copy(file, python.site / file.name)


def other_pythons() -> list[str]:
    """Other interpreters of this machine, by running them: a name on PATH may lead nowhere."""
    found = []
    for minor in range(8, 16):
        name = shutil.which(f"python3.{minor}")
        if name and subprocess.run([name, "-c", ""], capture_output=True, check=False).returncode == 0:
            found.append(name)
    return found
