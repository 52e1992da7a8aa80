"""The files of docs/deploy: they name settings that there are, and work where they are meant to run.

Slurm is started here, of one node, if this machine has it and the tests may: it needs root and munge. A pod's
containers are mount namespaces: volumes, variables and commands are read from the manifest.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import PATIENCE_S, ROOT, Place, run_probe
from probe.base.settings import SETTINGS

FOLDER = ROOT / "docs" / "deploy"
TRAIN = """
import os, time, torch
from torch import distributed, nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
if "RANK" in os.environ:
    distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    x = torch.randn(16, 8)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.02)
"""


def test_every_variable_of_probe_in_the_files_is_a_setting() -> None:
    known = {"PROBE", *(one.env for one in SETTINGS), "PROBE_VIEWER_TOKEN"}  # the last is Grafana's own
    for file in sorted(file for file in FOLDER.rglob("*") if file.is_file() and file.suffix != ".pyc"):
        assert set(re.findall(r"\bPROBE(?:_[A-Z_]+)?\b", file.read_text())) <= known, file


def test_the_batch_script_is_a_script() -> None:
    subprocess.run(["bash", "-n", str(FOLDER / "slurm" / "train.sbatch")], check=True)


def manifests(name: str) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all((FOLDER / "kubernetes" / name).read_text()))


@pytest.mark.campaign
@pytest.mark.parametrize("name", ["sidecar.yaml", "job.yaml"])
def test_kubernetes_knows_every_field_of_the_manifests(name: str) -> None:
    validate: Any = pytest.importorskip("kubernetes_validate")
    for found in manifests(name):
        validate.validate(found, "1.30", strict=True)


def until(condition: Callable[[], Any], what: str) -> Any:
    """Slurm waits two minutes before it starts a requeued job again, Ray half a minute."""
    deadline = time.monotonic() + 180.0 + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.2)
    return found


def running(place: Place, *names: str) -> list[dict[str, Any]]:
    """The ranks that train, once there is one."""
    rows = json.loads(run_probe(place, "ps", "--format", "json", *names).stdout or "[]")
    rows = rows["processes"] if isinstance(rows, dict) else rows
    return [row for row in rows if row["state"] == "running" and row["step"]]


@contextlib.contextmanager
def ending(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Ends it with all of its session."""
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.campaign
@pytest.mark.skipif(os.geteuid() != 0, reason="mount namespaces need root")
def test_a_sidecar_answers_for_a_training_that_has_only_a_copy_of_the_package(place: Place) -> None:
    (pod,) = manifests("sidecar.yaml")
    (train,) = pod["spec"]["containers"]
    agent, sidecar = pod["spec"]["initContainers"]
    node = place.directory
    volumes = {one["name"]: node / one["name"] for one in pod["spec"]["volumes"]}
    for folder in volumes.values():
        folder.mkdir()
    (node / "train.py").write_text(TRAIN)
    site = next(path for path in map(Path, sys.path) if (path / "torch").is_dir())

    def container(described: dict[str, Any], command: list[str], **more: str) -> list[str]:
        """The command in a mount namespace with this container's volumes and variables."""
        # A folder for all mount points: the root of this machine is not the container's to write to.
        lines = ["mount -t tmpfs none /mnt", "mount -t tmpfs none /dev/shm"]
        environ = {"PATH": os.environ["PATH"], "HOME": "/root", **more}
        for mount in described["volumeMounts"]:
            at = "/mnt" + mount["mountPath"]
            lines += [f"mkdir -p {at}", f"mount --bind {volumes[mount['name']]} {at}"]
        for one in described.get("env", []):
            environ[one["name"]] = re.sub(r"(^|:)(?=/(probe|rings)\b)", r"\1/mnt", one["value"])
        environ["PYTHONPATH"] = ":".join(filter(None, [environ.get("PYTHONPATH"), more.get("PYTHONPATH")]))
        words = " ".join(f"{name}={shlex.quote(value)}" for name, value in environ.items())
        lines.append(f"exec env -i {words} {shlex.join(command)}")
        return ["unshare", "--mount", "bash", "-ec", "\n".join(lines)]

    copied = shlex.join(agent["command"]).replace("/probe/agent", "/mnt/probe/agent")
    assert "shutil.copytree" in copied
    subprocess.run(
        container(agent, ["sh", "-c", copied.replace("python ", f"{sys.executable} ", 1)],
                  PYTHONPATH=str(ROOT)),
        check=True,
    )
    beside = {"PYTHONPATH": f"{ROOT}:{ROOT / 'cli'}"}
    bare = f"{sys.base_prefix}/bin/python3"  # its packages and start-up hooks are not this environment's
    with contextlib.ExitStack() as stack:
        for described, command, more in (
            (sidecar, [sys.executable, *sidecar["command"][1:]], beside),
            (train, [bare, str(node / "train.py")],
             {"PYTHONPATH": str(site), "PROBE_SERVER_PYTHON": "/none"}),
        ):
            started = subprocess.Popen(container(described, command, **more), start_new_session=True)
            stack.enter_context(ending(started))

        def probe(*words: str) -> str:
            done = subprocess.run(
                container(sidecar, [sys.executable, "-m", "probe_cli", *words], **beside),
                capture_output=True, text=True, check=False, timeout=PATIENCE_S,
            )
            return done.stdout + done.stderr

        until(lambda: re.search(r"^gpt\b.* running$", probe("ps"), re.MULTILINE), "the training is seen")
        assert probe("gpt", "eval", "optimizer.param_groups[0]['lr']").startswith("0.01")
        assert "0.01 → 0.005" in probe("gpt", "lr", "--scale", "0.5")
        assert "train.py" in probe("gpt", "backtrace")
        assert "count" in probe("gpt", "query", "SELECT count(*) AS count FROM python.steps")


@pytest.fixture
def slurm(place: Place) -> Iterator[dict[str, str]]:
    """A cluster of this node; the environment of its commands."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("slurmctld", "slurmd", "sbatch", "munge"))):
        pytest.skip("needs root, and Slurm and munge of the distribution")
    folder = place.directory / "slurm"
    folder.mkdir()
    ports = []
    for _ in range(2):
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            ports.append(one.getsockname()[1])
    name = socket.gethostname().partition(".")[0]
    (folder / "slurm.conf").write_text(
        f"ClusterName=here\nSlurmctldHost={name}\nAuthType=auth/munge\nSlurmUser=root\nMpiDefault=none\n"
        f"SlurmctldPort={ports[0]}\nSlurmdPort={ports[1]}\nProctrackType=proctrack/linuxproc\n"
        f"StateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool\nTaskPlugin=task/none\n"
        f"SlurmctldPidFile={folder}/c.pid\nSlurmdPidFile={folder}/d.pid\nReturnToService=2\n"
        f"NodeName={name} CPUs=2 State=UNKNOWN\nPartitionName=all Nodes=ALL Default=YES State=UP\n"
    )
    environ = {**place.environ(), "SLURM_CONF": str(folder / "slurm.conf")}
    with contextlib.ExitStack() as stack:
        if subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode != 0:
            Path("/run/munge").mkdir(exist_ok=True)
            shutil.chown("/run/munge", "munge")
            stack.enter_context(ending(subprocess.Popen(
                ["munged", "--foreground"], user="munge", start_new_session=True
            )))
        for command in ("slurmctld", "slurmd"):
            stack.enter_context(ending(subprocess.Popen(
                [command, "-D"], env=environ, start_new_session=True,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )))
        yield environ


@pytest.mark.campaign
def test_slurm_runs_the_script_and_a_requeue_is_a_later_attempt(
    place: Place, slurm: dict[str, str]
) -> None:
    def said(*command: str) -> str:
        return subprocess.run(command, env=slurm, capture_output=True, text=True, check=False).stdout

    until(lambda: "idle" in said("sinfo"), "the cluster is up")
    home = place.directory / "home"
    home.mkdir()
    (home / "train.py").write_text(TRAIN)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    script = (FOLDER / "slurm" / "train.sbatch").read_text()
    for shown, meant in (
        ("--nodes=2", "--nodes=1"), ("#SBATCH --gpus-per-node=8\n", ""), (":7130", f":{port}"),
    ):
        assert shown in script
        script = script.replace(shown, meant)
    (home / "train.sbatch").write_text(script)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {**slurm, "HOME": str(home), "PATH": path, "SLURM_GPUS_ON_NODE": "2", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["sbatch", "train.sbatch", "train.py"], cwd=home, env=environ, capture_output=True, text=True,
        check=True,
    )
    number = done.stdout.split()[-1]
    first = until(lambda: len(found := running(place)) == 2 and found, "two ranks train")
    assert {(row["job"], row["rank"]) for row in first} == {("gpt", 0), ("gpt", 1)}
    assert "0.01 → 0.005" in run_probe(place, "gpt", "lr", "--scale", "0.5").stdout
    (place.directory / "slurm" / "token").write_text((home / ".probe" / "token").read_text())
    (place.directory / "slurm" / "token").chmod(0o600)
    named = {"PROBE_TOKEN_FILE": str(place.directory / "slurm" / "token")}
    ranks = until(
        lambda: run_probe(place, f"127.0.0.1:{port}/gpt", "ranks", **named).stdout, "an answer over TCP"
    )
    assert ranks.count("running") == 2
    said("scontrol", "requeue", number)
    pids = {row["pid"] for row in first}
    again = until(
        lambda: len(found := [row for row in running(place) if row["pid"] not in pids]) == 2 and found,
        "it trains again",
    )
    assert {(row["run"], row["attempt"]) for row in again} == {(first[0]["run"], 1000)}
    assert first[0]["attempt"] == 0
    said("scancel", number)
    until(lambda: not said("squeue", "-h"), "the job has ended")


@pytest.mark.campaign
def test_ray_trains_and_a_worker_that_is_killed_begins_the_next_attempt(place: Place) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed")
    environ = {**place.environ(), "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(FOLDER / "ray" / "train.py"), "--epochs", "500",
               "--storage", str(place.directory / "results")]
    started = subprocess.Popen(
        command, env=environ, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    with ending(started):
        first = until(lambda: len(found := running(place)) == 2 and found, "two workers train")
        assert {(row["job"], row["rank"], row["attempt"]) for row in first} == {("gpt", 0, 0), ("gpt", 1, 0)}
        acted = json.loads(run_probe(place, "gpt", "lr", "--scale", "0.5", "--format", "json").stdout)
        assert len({one["step"] for one in acted["ranks"]} if "ranks" in acted else {acted["step"]}) == 1
        os.kill(next(row["pid"] for row in first if row["rank"] == 1), signal.SIGKILL)
        pids = {row["pid"] for row in first}
        again = until(
            lambda: len(found := [row for row in running(place) if row["pid"] not in pids]) == 2 and found,
            "the workers were replaced",
        )
        assert {(row["run"], row["attempt"]) for row in again} == {(first[0]["run"], 1)}
