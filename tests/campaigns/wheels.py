"""Wheel and source distribution, made and used in clean environments: compiled, and plain without a compiler.

`python -m build` makes both. The wheel is installed in an environment of every supported Python on this
machine, where tests/instruments/test_compiled.py holds the compiled hot path against the Python source; the
source distribution in one whose PATH has no compiler, where the plain source must run. `--control` removes
the library from the wheel first, and succeeds when that is noticed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from campaigns.campaign import Campaign
from control.pythons import found_interpreter
from probe.base import versions

ROOT = Path(__file__).resolve().parents[2]
TEST = ROOT / "tests" / "instruments" / "test_compiled.py"
LIBRARY = "probe/base/compiled/_hot.abi3.so"
PLAIN = """
from pathlib import Path
from probe.base import compiled
from probe.recording.ring import Ring
from probe.recording.tables import BY_NAME
ring = Ring(Path("ring"), BY_NAME["python.losses"], 16)
ring.append(1, 0, 2, 0.5, 1, 1.0)
print(compiled.why_plain(), ring.read(1))
"""


def environment(folder: Path, python: str, *words: str, environ: dict[str, str] | None = None) -> Path:
    """A new environment with that installed; its interpreter."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    there = folder / "bin" / "python"
    pip = [str(there), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *words], check=True, env=environ)
    return there


def without_library(wheel: Path) -> None:
    """Take the compiled hot path out of a wheel."""
    kept = wheel.with_suffix(".kept")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(kept, "w") as new:
        for item in old.infolist():
            if item.filename != LIBRARY:
                new.writestr(item, old.read(item))
    kept.replace(wheel)


def try_wheel(campaign: Campaign, folder: Path, wheel: Path, python: str, name: str) -> None:
    """Whether the wheel runs compiled in this Python, and does what the Python source does."""
    there = environment(folder / name, python, "pytest")
    subprocess.run([str(there), "-m", "pip", "install", "-q", "--no-deps", str(wheel)], check=True)
    done = subprocess.run(
        [str(there), "-m", "pytest", "-q", "-rs", "--noconftest", "-c", os.devnull, "--rootdir", str(folder),
         "-p", "no:cacheprovider", str(TEST)],
        cwd=folder, env=clean(), capture_output=True, text=True, check=False,
    )
    said = done.stdout.strip().rpartition("\n")[2]
    print(f"wheel in Python {name}: {said}", flush=True)
    campaign.count("wheels installed")
    if done.returncode or "passed" not in said or "skipped" in said:
        campaign.found(0, f"Python {name}: {done.stdout[-2000:]}")


def try_source(campaign: Campaign, folder: Path, source: Path) -> None:
    """Whether the source distribution installs without a compiler, and runs as Python."""
    programs = folder / "programs"
    programs.mkdir()
    there = environment(
        folder / "source", sys.executable, "--no-deps", str(source),
        environ={**clean(), "PATH": str(programs), "CC": "none"},
    )
    done = subprocess.run(
        [str(there), "-c", PLAIN], cwd=folder, env=clean(), capture_output=True, text=True, check=False
    )
    print(f"source without a compiler: {done.stdout.strip()}", flush=True)
    if done.stdout.strip() != "this installation has no compiled library [1, 0, 2, 0.5, 1, 1.0]":
        campaign.found(0, f"source distribution: {done.stdout}{done.stderr[-2000:]}")


def clean() -> dict[str, str]:
    """This environment without what would bring another probe."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PROBE", "PYTHON"))}


def main() -> int:
    """Make both and try them."""
    campaign = Campaign("wheels", __doc__, rounds=1)
    with tempfile.TemporaryDirectory(prefix="probe-wheels-") as name:
        folder = Path(name)
        builder = environment(folder / "builder", sys.executable, "build")
        subprocess.run(
            [str(builder), "-m", "build", "--outdir", str(folder / "dist"), str(ROOT)],
            check=True, env=clean(), stdout=subprocess.DEVNULL,
        )
        [wheel], [source] = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
        print(wheel.name, source.name, sep="\n", flush=True)
        if campaign.control:
            without_library(wheel)
        for pair in versions.PAIRS:
            interpreter = found_interpreter(pair.python[1])
            if interpreter is not None:
                try_wheel(campaign, folder, wheel, str(interpreter), versions.plain(pair.python))
        if not campaign.control:
            try_source(campaign, folder, source)
    return campaign.end()


if __name__ == "__main__":
    sys.exit(main())
