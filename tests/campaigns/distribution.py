"""Checks the distribution: builds sdist and wheel, checks them, installs the wheel into a clean environment.

One round takes minutes and uses the package index: an isolated build of both, `twine check --strict`, a check
of their contents, a clean environment with only the wheel and its dependencies, there `probe --version`, then
`probe run` of a training by a Python with torch but without probe, and `ps`, `query` and `tables` on it.
Needs the extra `release`. The control puts a test into the wheel.
"""

from __future__ import annotations

import email
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

from campaigns.campaign import Campaign
from harness import DEPLOYED, PATIENCE_S, ROOT, Place, end_process, wait_for_end

IN_THE_WHEEL = re.compile(
    r"probe/.+|probe_cli/.+|torch_probe\.(pth|start)|torch_probe_boot\.py|torch_probe-[^/]+\.dist-info/.+"
)
STRAY = re.compile(
    r"(^|/)(tests|bench|__pycache__|\.[a-z][^/]*|.*\.pyc|.*\.orig|.*\.swp|conftest\.py|out|dist|build)(/|$)"
)
"""Files that must not be in a wheel; an sdist has tests and bench."""
NEEDED = (
    "probe/__init__.py", "probe/py.typed", "probe/recipes/", "probe/outside/attach/boot.c", "torch_probe.pth",
)
OF_THE_SDIST = ("tests/", "bench/", "docs/", "recipes/", "hatch_build.py", "pyproject.toml", "CHANGELOG.md")
LARGEST_BYTES = 4 << 20
ASKED = (
    "import torch, probe\n"
    "model = torch.nn.Linear(4, 1)\n"
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
    "for step in range(100_000_000):\n"
    "    optimizer.zero_grad(); model(torch.ones(2, 4)).sum().backward(); optimizer.step()\n"
    "    with probe.span('rest'): __import__('time').sleep(0.02)\n"
    "    step == 3 and print('READY', probe.__file__, flush=True)\n"
)


def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command; the caller checks its outcome."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PROBE", "PYTHON"))}
    return subprocess.run(
        words, env={**environ, **more}, capture_output=True, text=True, timeout=1800, check=False, cwd="/"
    )


def built(folder: Path, control: bool) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it, from a copy of the current sources."""
    sources = folder / "sources"
    unwanted = shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__", "out")
    shutil.copytree(ROOT, sources, ignore=unwanted)
    if control:
        (sources / "probe" / "tests").mkdir()
        (sources / "probe" / "tests" / "conftest.py").touch()
    done = run(sys.executable, "-m", "build", "--outdir", str(folder / "dist"), str(sources))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    [sdist] = (folder / "dist").glob("*.tar.gz")
    [wheel] = (folder / "dist").glob("*.whl")
    return sdist, wheel


def wrong_contents(sdist: Path, wheel: Path) -> list[str]:
    """Files that should not be in them, and missing ones."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [about] = [name for name in names if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(about))
    version = str(metadata["Version"])
    with tarfile.open(sdist) as packed:
        inside = [name.partition("/")[2] for name in packed.getnames()]
    ours = [name for name in names if IN_THE_WHEEL.fullmatch(name) and not STRAY.search(name)]
    wrong = [f"the wheel has {name}" for name in names if name not in ours]
    for what, have, needed in (("wheel", names, NEEDED), ("sdist", inside, OF_THE_SDIST)):
        wrong += [
            f"the {what} lacks {name}" for name in needed if not any(one.startswith(name) for one in have)
        ]
    wrong += [f"the sdist has {name}" for name in inside if re.search(r"\.pyc$|/\.|\.so$", name)]
    wrong += [f"{one.name} takes {one.stat().st_size >> 10} KiB" for one in (sdist, wheel)
              if one.stat().st_size > LARGEST_BYTES]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if f"## {version}\n" not in changes:
        wrong.append(f"CHANGELOG.md has no section {version}")
    if not str(metadata.get_payload()).lstrip().startswith("# probe"):
        wrong.append("the wheel's description is not the README")
    return wrong


def used(wheel: Path, folder: Path) -> list[str]:
    """Problems with the wheel in an environment with only the wheel and its dependencies."""
    clean = folder / "clean"
    venv.create(clean)
    python = str(clean / "bin" / "python")
    done = run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", str(wheel))
    if done.returncode:
        return [f"it cannot be installed: {done.stderr[-2000:]}"]
    probe = str(clean / "bin" / "probe")
    said = run(probe, "--version").stdout
    if wheel.name.split("-")[1] not in said:
        return [f"--version says {said!r}"]
    place = Place()
    environ = {"PROBE_DIR": str(place.directory), "PROBE_RINGS_DIR": str(place.rings), **DEPLOYED}
    environ["PROBE_SERVER_PYTHON"] = python
    (folder / "train.py").write_text(ASKED)
    with subprocess.Popen(
        [probe, "run", with_torch(folder), "train.py"],
        env={**os.environ, **environ, "PYTHONPATH": ""}, stdout=subprocess.PIPE, text=True, cwd=folder,
    ) as job:
        try:
            return answers(job, [probe], environ, clean)
        finally:
            job.kill()
            wait_for_end(job.pid, PATIENCE_S)
            server = place.server_pid()
            if server is not None:
                end_process(server)
            place.close()


def with_torch(folder: Path) -> str:
    """A Python that finds this environment's torch, but neither probe nor its start-up hook."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    venv.create(folder / "job")
    [site] = (folder / "job").glob("lib/python3*/site-packages")
    for path in Path(spec.origin).parents[1].iterdir():
        if "probe" not in path.name and path.suffix != ".pth" and not (site / path.name).exists():
            (site / path.name).symlink_to(path)
    return str(folder / "job" / "bin" / "python")


def answers(
    job: subprocess.Popen[str], probe: Sequence[str], environ: dict[str, str], clean: Path
) -> list[str]:
    """Problems with the answers about a training job."""
    assert job.stdout is not None
    ready = job.stdout.readline()
    if f"{clean}/lib" not in ready:
        return [f"the job has another probe than the one that started it: {ready!r}"]
    asked: dict[tuple[str, ...], str] = {
        ("ps",): str(job.pid),
        (str(job.pid), "query", "SELECT count(*) > 0 AS some FROM python.steps"): "true",
        (str(job.pid), "query", "SELECT DISTINCT name FROM python.spans"): "rest",
        (str(job.pid), "tables"): "python.steps",
        (str(job.pid), "backtrace"): "train.py",
        (str(job.pid), "eval", "type(model).__name__"): "Linear",
        ("recipes",): "loss",
    }
    wrong = []
    for words, expected in asked.items():
        deadline = time.monotonic() + PATIENCE_S
        done = run(*probe, *words, **environ)
        while done.returncode == 3 and time.monotonic() < deadline:  # a server starts slowly
            done = run(*probe, *words, **environ)
        if done.returncode or expected.lower() not in done.stdout.lower():
            said = f"{done.stdout[-500:]}{done.stderr[-500:]}"
            wrong.append(f"probe {' '.join(words)}: exit {done.returncode}, {said}")
    return wrong


def main() -> int:
    """Build, check, install and use the distribution."""
    campaign = Campaign("distribution", __doc__, rounds=1)
    for number in campaign:
        with tempfile.TemporaryDirectory(prefix="probe-distribution-") as name:
            folder = Path(name)
            sdist, wheel = built(folder, campaign.control)
            campaign.measure("wheel, KiB", wheel.stat().st_size / 1024)
            campaign.measure("sdist, KiB", sdist.stat().st_size / 1024)
            wrong = wrong_contents(sdist, wheel)
            done = run(sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel))
            if done.returncode:
                wrong.append(f"twine check: {done.stdout[-1000:]}{done.stderr[-1000:]}")
            for what in wrong if campaign.control else [*wrong, *used(wheel, folder)]:
                campaign.found(number, what)
    return campaign.end()


if __name__ == "__main__":
    sys.exit(main())
