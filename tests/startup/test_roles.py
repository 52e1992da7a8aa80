"""Which processes of a job get an agent: what trains, not what launches, compiles or tracks."""

from __future__ import annotations

import pytest

from probe.boot.startup import Role, role_of
from startup.pythons import Python

SITE = "/venv/lib/python3.11/site-packages"
SPAWN = "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7)"


@pytest.mark.parametrize(
    ("command", "role"),
    [
        ("python train.py", Role.JOB),
        ("python -u -W ignore -X dev train.py -m torch.distributed.run", Role.JOB),
        ("python -m mypackage.train", Role.JOB),
        ("python", Role.JOB),
        ("python -", Role.JOB),
        ("python --check-hash-based-pycs always train.py", Role.JOB),
        ("/venv/bin/python /venv/bin/torchrun --nproc-per-node 2 train.py", Role.HELPER),
        ("python -m torch.distributed.run train.py", Role.HELPER),
        ("python -mtorch.distributed.run train.py", Role.HELPER),
        ("python -um torch.distributed.launch train.py", Role.HELPER),
        (f"python {SITE}/torch/distributed/run.py train.py", Role.HELPER),
        ("python /venv/bin/accelerate launch train.py", Role.HELPER),
        ("python -m accelerate.commands.launch train.py", Role.HELPER),
        ("python /venv/bin/deepspeed train.py", Role.HELPER),
        ("python -u -m deepspeed.launcher.launch train.py", Role.HELPER),
        (f"python {SITE}/torch/_inductor/compile_worker/__main__.py --workers=2", Role.HELPER),
        (f"python {SITE}/torch/_inductor/__autotune_main__.py --parent=1", Role.HELPER),
        (["python", "-c", "from multiprocessing.resource_tracker import main;main(5)"], Role.HELPER),
        (["python", "-s", "-c", "from multiprocessing.forkserver import main; main(4)"], Role.HELPER),
        (["python", "-c", SPAWN, "--multiprocessing-fork"], Role.CHILD),
        ("python -m joblib.externals.loky.backend.popen_loky_posix --process-name x", Role.CHILD),
        (f"python {SITE}/ray/_private/workers/default_worker.py --node-ip-address=10.0.0.1", Role.CHILD),
        (["python", "-c", "import torch; train()"], Role.JOB),
        (["python", "-c", "from torch.distributed.run import main"], Role.JOB),
        ("python /home/me/torch/train.py", Role.JOB),
        ([""], Role.JOB),
        ([], Role.JOB),
    ],
    ids=str,
)
def test_the_command_line_tells_the_role(command: str | list[str], role: Role) -> None:
    assert role_of(command.split() if isinstance(command, str) else command) is role


def test_a_launcher_gets_no_agent_and_its_workers_do(hooked: Python) -> None:
    folder = hooked.site / "torch" / "distributed"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "run.py").write_text("import subprocess, sys\nsubprocess.run([sys.executable, *sys.argv[1:]])")
    worker = hooked.home / "worker.py"
    worker.write_text("import torch")
    answer = hooked.run("-m", "torch.distributed.run", str(worker), PROBE="1", PYTHONUNBUFFERED="1")
    assert answer == (0, ["torch imported", "torch imported", "agent deferred=False torch=torch"], [])


def test_a_spawned_child_starts_at_its_first_step_and_trackers_never(hooked: Python) -> None:
    answer = hooked.script(
        """
import multiprocessing
import torch

def child(lock):
    pass

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    lock = context.Lock()
    process = context.Process(target=child, args=(lock,))
    process.start()
    process.join()
    print(process.exitcode)
""",
        PROBE="1", PYTHONUNBUFFERED="1",
    )
    parent = ["torch imported", "agent deferred=False torch=torch"]
    child = ["torch imported", "agent deferred=True torch=torch"]
    assert answer == (0, [*parent, *child, "0"], [])
