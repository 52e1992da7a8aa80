"""Snippets that change something run between two steps and say so; only what they mean stays changed."""

from __future__ import annotations

from typing import Any

from acting.bystander import PACE, PROGRAM, alone, snippet, undisturbed
from agent.asking import query, tell, without_times
from agent.nursery import Nursery, forked
from harness import Place

# By what is put back afterwards.
ACCIDENTS: dict[str, tuple[str, ...]] = {
    "the random state of torch": (
        "import torch\ntorch.rand(3)", "import torch\ntorch.manual_seed(7)",
        "import torch\ntorch.nn.Linear(2, 2)", "model.dropout(model.into.weight).shape",
        "next(iter(train_loader.sampler))",
    ),
    "the random state of Python": ("import random\nrandom.random()", "import random\nrandom.seed(7)"),
    "the random state of NumPy": (
        "import numpy as np\nnp.random.rand()", "import numpy\nnumpy.random.normal()",
        "import numpy\nnumpy.random.seed(7)", "next(iter(train_loader))",
    ),
    "grad mode": ("import torch\ntorch.set_grad_enabled(False)",),
    "autocast": (
        "import torch\ntorch.autocast('cpu').__enter__()\nmodel.into(x).shape",
        "import torch\ntorch.set_autocast_enabled('cpu', True)",
    ),
    "the default dtype": ("import torch\ntorch.set_default_dtype(torch.float64)",),
    "modes of torch functions and the default device": ("import torch\ntorch.set_default_device('meta')",),
    "the number of threads": ("import torch\ntorch.set_num_threads(3)",),
    "anomaly detection": ("import torch\ntorch.autograd.set_detect_anomaly(True)",),
    "denormal numbers": ("import torch\ntorch.set_flush_denormal(True)",),
    "the precision of float32 (TF32)": ("import torch\ntorch.set_float32_matmul_precision('high')",),
    "cuDNN's benchmark mode": ("import torch\ntorch.backends.cudnn.benchmark = True",),
    "how tensors are printed": ("import torch\ntorch.set_printoptions(precision=9)",),
    "the working folder": ("import os\nos.chdir('/')",),
    "warnings filters": (
        "import warnings\nwarnings.simplefilter('error')", "import warnings\nwarnings.resetwarnings()",
        "import warnings\nwarnings.catch_warnings().__enter__()\nwarnings.simplefilter('ignore')",
    ),
    "the standard streams": (
        "import sys\nsys.stdout = None\nsys.stderr = None", "import sys\ndel sys.stdout",
        "import contextlib, io\ncontextlib.redirect_stdout(io.StringIO()).__enter__()",
    ),
    "the switch interval": ("import sys\nsys.setswitchinterval(1e-4)",),
    "the garbage collector": ("import gc\ngc.disable()",),
    "NumPy's handling of errors": ("import numpy\nnumpy.seterr(all='raise')",),
}
# A forward pass of theirs, and what a snippet does to objects of its own; none of it is felt.
WITHOUT_TRACE = (
    "model.eval()\nprint(model(x).shape)\nmodel.train()",
    """
import torch
model.eval()
with torch.no_grad(), torch.autocast('cpu'):
    print(model(x).mean())
model.train()
""",
    "import copy\ncopy.deepcopy(model)(x).sum().backward()",
    "import torch\ncopied = torch.nn.Linear(16, 1)\ntorch.optim.SGD(copied.parameters(), 0.1).step()",
    "import sys\nsys.stdout.write('x')\nsys.stdout.flush()",
    "import gc\ngc.collect()",
    "model = None\noptimizer = None",
    "del model",
    "def train():\n    global model\n    model = 3\ntrain()",
    "x.requires_grad",
    "import gc\nimport torch\nmodel.zero_grad(set_to_none=True)\ngc.collect()\n"
    "if torch.cuda.is_available():\n    torch.cuda.empty_cache()\nprint('Cleanup complete')",
    "class Loud:\n    def __del__(self):\n        raise KeyboardInterrupt\nloud = Loud()\ndel loud",
    "raise KeyboardInterrupt",
)


def test_what_a_snippet_changes_by_accident_is_put_back_and_said(nursery: Nursery, place: Place) -> None:
    with undisturbed(nursery, place) as job:
        for name, codes in ACCIDENTS.items():
            for code in codes:
                answer = snippet(place, job.pid, code)
                assert (code, answer["error"]) == (code, None), answer
                assert (code, answer["class"], answer["where"]) == (code, "changing", "step boundary"), answer
                assert answer["why"], answer
                assert (code, f"put back as it was: {name}" in answer["kept"]) == (code, True), answer["kept"]


def test_what_a_snippet_does_to_its_own_objects_is_not_felt(nursery: Nursery, place: Place) -> None:
    with undisturbed(nursery, place) as job:
        for code in WITHOUT_TRACE:
            answer = snippet(place, job.pid, code, when="step")
            assert (code, answer["where"]) == (code, "step boundary"), answer


def test_what_a_snippet_means_to_change_is_what_the_next_step_uses(nursery: Nursery, place: Place) -> None:
    with forked(nursery, place, (PROGRAM, "--forever", *PACE, "--hold")) as [job]:
        job.wait_for("READY")
        first = changed(place, job.pid, "for pg in optimizer.param_groups:\n    pg['lr'] *= 0.1\n"
                        "print(f'New LR: {optimizer.param_groups[0][\"lr\"]}')")
        assert first["output"].startswith("New LR: 0.00")
        asked = snippet(place, job.pid, "optimizer.param_groups[0]['lr']")
        assert float(asked["value"]) < 1e-3
        second = changed(place, job.pid, "import torch\nwith torch.no_grad():\n    model.out.weight.zero_()")
        third = changed(place, job.pid, "trainer.grad_clip = 1e-6\ntrainer.noted = 'by hand'")
        assert snippet(place, job.pid, "trainer.noted")["value"] == "'by hand'"
        rows = query(
            place, job.pid, "SELECT class, place, outcome, held_s > 0, duration_s > 0, step FROM probe.evals "
            "WHERE outcome <> 'started' AND class = 'changing' ORDER BY t_ns"
        )
        assert rows == [
            ["changing", "step boundary", "ok", True, True, one["step"]] for one in (first, second, third)
        ]
        tell(job)
        result = without_times(job.result())
        assert (job.let_go(), job.errors()) == (0, "")
    plain = alone(nursery, place, result["steps"])
    differs = [ours != theirs for ours, theirs in zip(result["losses"], plain["losses"], strict=True)]
    # The boundary after step N: the losses up to that of step N + 1 are those of the untouched run.
    assert not any(differs[: first["step"] + 1])
    assert all(differs[first["step"] + 3 :])
    assert result["surroundings"]["warnings"] == plain["surroundings"]["warnings"]


def changed(place: Place, pid: int, code: str) -> dict[str, Any]:
    answer = snippet(place, pid, code)
    assert (answer["class"], answer["where"], answer["error"]) == ("changing", "step boundary", None), answer
    assert answer["held_ms"] > 0 and answer["why"] and answer["step"] >= 3
    return answer
