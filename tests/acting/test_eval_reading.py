"""Snippets that only look are answered at once, and the training never knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from acting.bystander import snippet, undisturbed
from agent.asking import ask, query
from agent.nursery import Nursery, forked
from harness import Place
from probe.base.errors import ActionRefused, SnippetRefused

# What people type, in the words of their examples.
EXAMPLES = (
    """
import threading
for t in threading.enumerate():
    print(f'{t.name}: alive={t.is_alive()}')""",
    """
import torch.utils.data
print(f'DataLoader workers: {train_loader.num_workers}')
print(f'Prefetch factor: {train_loader.prefetch_factor}')""",
    """
import torch.distributed as dist
if dist.is_initialized():
    print(f'Rank: {dist.get_rank()}')
    print(f'Waiting for barrier...')
    # Don't actually call barrier here!""",
    """
print(f'Grad clip value: {getattr(trainer, "grad_clip", None)}')""",
    """
for i, pg in enumerate(optimizer.param_groups):
    print(f'Group {i}: lr={pg["lr"]}, weight_decay={pg.get("weight_decay", 0)}')""",
    "print(f'Rank 0 step: {trainer.current_step}')",
)
LOOKS = (
    *EXAMPLES,
    "model", "print(model)", "optimizer", "scheduler", "train_loader", "trainer.current_step", "loss",
    "float(loss)",
    "[name for name, _ in model.named_modules()]", "len(list(model.parameters()))",
    "sum(p.numel() for p in model.parameters())", "sorted(model.state_dict())",
    "{name: float(p.detach().norm()) for name, p in model.named_parameters()}",
    """
for name, p in model.named_parameters():
    print(name, p.mean().item(), p.std().item(), p.abs().max().item())""",
    "for name, b in model.named_buffers():\n    print(name, b.shape, b.sum().item())",
    "for p, s in optimizer.state.items():\n    print(p.shape, {k: v.shape for k, v in s.items()})",
    "optimizer.param_groups[0]['lr']", "scheduler.get_last_lr()", "model.training", "model.dropout.p",
    "model.into.weight", "model.into.weight[0, :4].tolist()", "model.norm.running_mean", "x.shape, y.dtype",
    "model.into.weight.clone().add_(1).sum()", "(model.out.weight * 2).sum().item()",
    "import torch\ntorch.cuda.is_available()", "import torch\ntorch.get_num_threads()",
    "import torch\nwith torch.no_grad():\n    print(model.into.weight.square().sum())",
    "import torch\ntorch.stack([p.detach().norm() for p in model.parameters()]).norm()",
    "import gc, torch\nlen(gc.get_referrers(torch.Tensor)) > 0", "import gc\ngc.get_count()",
    "import threading\nthreading.active_count()",
    "import resource\nresource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 0",
    "import os\nos.getpid() > 0", "import sys\nlen(sys.modules) > 100",
    "import sys\nsys.getrecursionlimit()", "print('x' * 100_000)", "list(range(1000))", "1 / 0",
    "no_such_name",
    "len(dir(model))", "type(optimizer).__mro__", "import inspect\ninspect.getsource(type(model))",
    "import math\nmath.isfinite(float(loss))",
    "losses = [float(loss) for _ in range(100)]\nmax(losses)",
    "[(n, tuple(p.shape), p.requires_grad) for n, p in model.named_parameters()]",
)
SETTLED = (
    """
import torch
for name, param in model.named_parameters():
    if param.grad is not None:
        has_nan = torch.isnan(param.grad).any().item()
        has_inf = torch.isinf(param.grad).any().item()
        if has_nan or has_inf:
            print(f'{name}: NaN={has_nan}, Inf={has_inf}')""",
    "sum(p.grad is None for p in model.parameters())",
)
"""What looks at gradients."""
WAITING = (
    "print(open('/proc/self/status').readline())",
    """
import subprocess
result = subprocess.run(['nvidia-smi', '--query-gpu=utilization.gpu', '--format=csv,noheader'],
                        capture_output=True, text=True)
print(f'GPU Utilization: {result.stdout.strip()}')""",
    "import subprocess\nsubprocess.run(['true']).returncode",
    "import time\ntime.sleep(0.05)",
)
RAISE = frozenset({"1 / 0", "no_such_name", WAITING[1]})




def test_a_hundred_snippets_that_look_leave_a_training_bit_identical(nursery: Nursery, place: Place) -> None:
    thrown = [*LOOKS, *WAITING, *LOOKS]
    assert len(thrown) >= 100
    with undisturbed(nursery, place) as job:
        again = 0
        for code in thrown:
            answer = snippet(place, job.pid, code)
            while "NoneType" in str(answer["error"]) and code not in RAISE and again < 20:
                again += 1  # the training went on between two lines of it, and cleared the gradients
                answer = snippet(place, job.pid, code)
            said = (code, answer["where"], answer["class"] in ("reading", "blocking"), answer["held_ms"])
            assert said == (code, "at once", True, None), answer
            assert (code, answer["error"] is not None) == (code, code in RAISE), answer
            assert (code, answer["kept"]) == (code, [])
        begun = query(
            place, job.pid, "SELECT class, count(*) FROM probe.evals WHERE outcome = 'started' GROUP BY class"
        )
        assert dict(begun) == {"reading": 2 * len(LOOKS) + again, "blocking": len(WAITING)}


def test_what_looks_may_be_asked_at_a_boundary_and_is_still_not_felt(nursery: Nursery, place: Place) -> None:
    with undisturbed(nursery, place) as job:
        for code in LOOKS:
            answer = snippet(place, job.pid, code, when="step")
            assert (code, answer["where"]) == (code, "step boundary"), answer
            assert answer["held_ms"] >= 0
            assert (code, answer["error"] is not None) == (code, code in RAISE), answer


def test_gradients_are_looked_at_between_two_steps_and_nowhere_else(nursery: Nursery, place: Place) -> None:
    with undisturbed(nursery, place) as job:
        for code in SETTLED:
            for when in ("auto", "step"):
                answer = snippet(place, job.pid, code, when=when)
                said = (answer["where"], answer["class"], answer["error"], answer["kept"])
                assert said == ("step boundary", "settled", None, []), answer
            with pytest.raises(SnippetRefused, match="torch's memory could be corrupted") as refused:
                snippet(place, job.pid, code, when="now")
            assert "Without `--now` it runs between two steps" in refused.value.hint
            assert snippet(place, job.pid, code, force=True)["where"] == "step boundary"


def test_where_two_threads_train_nobody_looks_at_gradients(
    nursery: Nursery, place: Place, tmp_path: Path
) -> None:
    looks = "[p.grad is None for p in model.parameters()]"
    with forked(nursery, place, ("two_trainers", "--steps", "100000000")) as [job]:
        job.wait_for("READY")
        for when in ("auto", "now", "step"):
            with pytest.raises(SnippetRefused, match="torch's memory could be corrupted"):
                snippet(place, job.pid, looks, when=when)
        watch = {"action": "watch", "arguments": {"expressions": looks}}
        with pytest.raises(ActionRefused, match="several threads of this job train"):
            ask(place, job.pid, "POST", "/v1/act", watch)
        path = tmp_path / "memory.pickle"
        told = ask(
            place, job.pid, "POST", "/v1/act",
            {"action": "memory_snapshot", "arguments": {"path": str(path)}, "wait_s": 60.0},
        )
        assert "gradients were not counted" in told["notes"][1]
        assert snippet(place, job.pid, "sum(p.numel() for p in model.parameters())")["value"] == "5"
