"""Builds the wheel and the source distribution and tests both in clean environments.

`python -m build` builds both. The wheel is installed for every supported Python on this machine, and
tests/instruments/test_compiled.py compares the compiled hot path with the Python source there. The source
distribution is installed in an environment without a compiler, where the Python source must run. `--control`
removes the compiled library from the wheel first, and succeeds if the tests notice.
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
    """Create a virtual environment, install `words` with pip, and return its interpreter."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    there = folder / "bin" / "python"
    pip = [str(there), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *words], check=True, env=environ)
    return there


def without_library(wheel: Path) -> None:
    """Remove the compiled hot path from a wheel."""
    kept = wheel.with_suffix(".kept")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(kept, "w") as new:
        for item in old.infolist():
            if item.filename != LIBRARY:
                new.writestr(item, old.read(item))
    kept.replace(wheel)


def try_wheel(campaign: Campaign, folder: Path, wheel: Path, python: str, name: str) -> None:
    """Check that the wheel runs compiled in this Python and behaves like the Python source."""
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
    """Check that the source distribution installs without a compiler and runs as plain Python."""
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
    """This process's environment without variables that could select another probe."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PROBE", "PYTHON"))}


def main() -> int:
    """Build both, test them, and return the exit status."""
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
