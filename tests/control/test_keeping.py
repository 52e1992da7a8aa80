"""What a snippet may change by accident is put back, and nothing else is."""

from __future__ import annotations

import _locale
import contextlib
import gc
import io
import os
import random
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from probe.checkpoint.random_states import random_states, restore_random_states
from probe.job.snippets.state_restore import Kept

pytestmark = pytest.mark.filterwarnings("ignore:Anomaly Detection")

Change = Callable[[], object]

_open: list[Any] = []
"""Contexts that were entered and never left; as in a snippet's names, they live on."""


def _enter(context: Any) -> None:
    context.__enter__()
    _open.append(context)


def _fp32_by_operation() -> None:
    torch._C._set_fp32_precision_setter("cuda", "matmul", "tf32")


CHANGES: dict[str, list[Change]] = {
    "the random state of Python": [random.random, lambda: random.seed(3)],
    "the random state of NumPy": [numpy.random.rand, lambda: numpy.random.seed(3), numpy.random.normal],
    "the random state of torch": [lambda: torch.rand(3), lambda: torch.manual_seed(3),
                                  lambda: nn.functional.dropout(torch.ones(3)), lambda: nn.Linear(2, 2)],
    "grad mode": [lambda: torch.set_grad_enabled(False), lambda: _enter(torch.no_grad())],
    "inference mode": [lambda: _enter(torch.inference_mode())],
    "autocast": [
        lambda: _enter(torch.autocast("cpu")), lambda: torch.set_autocast_cache_enabled(False),
        lambda: torch.set_autocast_dtype("cuda", torch.bfloat16), torch.autocast_increment_nesting,
    ],
    "forward-mode gradients": [lambda: torch._C._set_fwd_grad_enabled(False)],
    "threads of the backward pass": [lambda: torch._C._set_multithreading_enabled(False)],
    "hooks of saved tensors": [lambda: _enter(torch.autograd.graph.save_on_cpu())],
    "modes of torch functions and the default device": [
        lambda: torch.set_default_device("meta"), lambda: _enter(torch.device("meta")),
        lambda: _enter(TorchFunctionMode()),
    ],
    "dispatch modes": [lambda: _enter(TorchDispatchMode())],
    "denormal numbers": [lambda: torch.set_flush_denormal(True)],
    "the default dtype": [lambda: torch.set_default_dtype(torch.float64)],
    "deterministic algorithms": [
        lambda: torch._C._set_deterministic_algorithms(True, warn_only=False),
        lambda: torch._C._set_deterministic_algorithms(False, warn_only=True),
    ],
    "the precision of float32 (TF32)": [
        lambda: torch.set_float32_matmul_precision("high"), _fp32_by_operation,
        lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
        lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    ],
    "the number of threads": [lambda: torch.set_num_threads(torch.get_num_threads() + 1)],
    "anomaly detection": [lambda: torch.autograd.set_detect_anomaly(True),
                          lambda: _enter(torch.autograd.detect_anomaly(check_nan=False))],
    "warnings that are always given": [lambda: torch.set_warn_always(True)],
    "how tensors are printed": [lambda: torch.set_printoptions(precision=9, sci_mode=True)],
    "the use of cuDNN": [lambda: setattr(torch.backends.cudnn, "enabled", False)],
    "cuDNN's benchmark mode": [lambda: setattr(torch.backends.cudnn, "benchmark", True)],
    "cuDNN's deterministic mode": [lambda: setattr(torch.backends.cudnn, "deterministic", True)],
    "the use of oneDNN": [lambda: torch._C._set_mkldnn_enabled(False)],
    "filling of uninitialised memory": [
        lambda: setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
    ],
    "reduced precision of BF16 sums": [
        lambda: setattr(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False)
    ],
    "the math kernel of attention": [lambda: torch.backends.cuda.enable_math_sdp(False)],
    "NumPy's handling of errors": [lambda: numpy.seterr(all="raise")],
    "how NumPy prints": [lambda: numpy.set_printoptions(precision=2)],
    "the standard streams": [lambda: setattr(sys, "stdout", None), lambda: delattr(sys, "stderr"),
                             lambda: _enter(contextlib.redirect_stdout(io.StringIO()))],
    "the working folder": [lambda: os.chdir("/")],
    "warnings filters": [lambda: warnings.simplefilter("error"), warnings.resetwarnings,
                         lambda: warnings.filterwarnings("ignore", "x")],
    "the recursion limit": [lambda: sys.setrecursionlimit(5000)],
    "the switch interval": [lambda: sys.setswitchinterval(0.5)],
    "the garbage collector": [gc.disable, lambda: gc.set_threshold(3), lambda: gc.set_debug(gc.DEBUG_STATS)],
    "the locale": [lambda: _locale.setlocale(_locale.LC_ALL, "C.UTF-8")],
    "signal handlers": [lambda: signal.signal(signal.SIGUSR1, lambda *_: None),
                        lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)],
}
if not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"):  # torch 2.7 and older
    del CHANGES["hooks of saved tensors"]
if not hasattr(torch._C, "_set_fp32_precision_setter"):
    CHANGES["the precision of float32 (TF32)"].remove(_fp32_by_operation)
CASES = [
    pytest.param(name, change, id=f"{name}-{number}")
    for name, changes in CHANGES.items() for number, change in enumerate(changes)
]


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """Other tests run in this process."""
    folder, states, threads = os.getcwd(), random_states(), torch.get_num_threads()
    locale = _locale.setlocale(_locale.LC_ALL, None)
    _locale.setlocale(_locale.LC_ALL, "C")
    torch.set_num_threads(1)
    yield
    _locale.setlocale(_locale.LC_ALL, locale)
    torch.set_num_threads(threads)
    os.chdir(folder)
    restore_random_states(states)


@pytest.mark.parametrize(("name", "change"), CASES)
def test_what_a_snippet_changes_is_put_back_and_said(name: str, change: Change) -> None:
    with Kept(training_thread=True) as kept, Kept(training_thread=True) as inner:
        change()
    assert name in inner.put_back
    assert (inner.left, kept.put_back, kept.left) == ([], [], [])


def test_every_state_has_a_snippet_that_changes_it() -> None:
    with Kept(training_thread=True) as kept:
        states = {state.name for state, _ in kept._before}
    rarely = {"oneDNN's deterministic mode", "reduced precision of FP16 sums", "accumulation in FP16",
              "the order of attention kernels", "the flash kernel of attention",
              "the mem_efficient kernel of attention", "the cudnn kernel of attention"}
    assert states - rarely == set(CHANGES)


def test_where_torch_does_not_list_its_devices_autocast_is_kept_without_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As torch 2.6; the functions without a device are deprecated, and the job would be told so."""
    monkeypatch.delattr(torch._C, "_autocast_supported_devices", raising=False)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with Kept(training_thread=True) as kept:
            _enter(torch.autocast("cpu", dtype=torch.bfloat16))
        assert not torch.is_autocast_enabled("cpu")
    assert (kept.put_back, kept.left, said) == (["autocast"], [], [])


def test_what_nothing_changed_is_not_put_back() -> None:
    before = random_states()
    with Kept(training_thread=True) as kept:
        pass
    assert (kept.put_back, kept.left) == ([], [])
    assert _comparable(random_states()) == _comparable(before)


def test_a_snippet_that_raises_leaves_nothing_changed() -> None:
    before = random_states()
    kept = Kept(training_thread=True)
    with pytest.raises(SystemExit), kept:
        torch.set_default_dtype(torch.float16)
        torch.rand(3)
        raise SystemExit
    assert kept.put_back == ["the random state of torch", "the default dtype"]
    assert _comparable(random_states()) == _comparable(before)


def test_what_is_done_to_objects_stays() -> None:
    model = nn.Linear(2, 2)
    with Kept(training_thread=True) as kept:
        model.eval()
        model.requires_grad_(False)
        os.environ["PROBE_TEST_WAS_HERE"] = "1"
    assert not model.training and not model.weight.requires_grad
    assert os.environ.pop("PROBE_TEST_WAS_HERE") == "1"
    assert (kept.put_back, kept.left) == ([], [])


def test_beside_the_training_random_states_are_the_trainings_own() -> None:
    before = random_states()

    def snippet() -> None:
        with Kept(training_thread=False, code="torch.rand(3)") as kept:
            torch.rand(3)
            random.random()
            numpy.random.rand()
        assert (kept.put_back, kept.left) == ([], [])

    _on_a_thread(snippet)
    after = random_states()
    assert all(after[name] != before[name] for name in ("python", "numpy"))
    assert not torch.equal(after["torch"], before["torch"])


def test_beside_the_training_only_what_the_snippet_names_is_put_back(tmp_path: Any) -> None:
    def unnamed() -> None:
        with Kept(training_thread=False, code="print(model)") as kept:
            os.chdir(tmp_path)  # as the job might, on its own thread
        assert kept.put_back == []
        assert os.getcwd() == str(tmp_path)

    def named() -> None:
        with Kept(training_thread=False, code="import os; os.chdir('/')") as kept:
            os.chdir("/")
        assert kept.put_back == ["the working folder"]
        assert os.getcwd() == str(tmp_path)

    _on_a_thread(unnamed)
    _on_a_thread(named)


def test_catch_warnings_of_another_thread_is_left_to_that_thread() -> None:
    listed = warnings.filters
    with Kept(training_thread=True, code="model(x)") as kept:
        _enter(warnings.catch_warnings())
        warnings.simplefilter("ignore")
    assert warnings.filters is not listed
    assert kept.put_back == []
    _open.pop().__exit__(None, None, None)
    with Kept(training_thread=True, code="warnings.catch_warnings().__enter__()") as kept:
        _enter(warnings.catch_warnings())
        warnings.simplefilter("ignore")
    assert warnings.filters is listed
    assert kept.put_back == ["warnings filters"]


def test_an_interrupt_of_the_jobs_own_passes_once_everything_is_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(_folder: str) -> None:
        raise KeyboardInterrupt

    folder = os.getcwd()
    kept = Kept(training_thread=True)
    with pytest.raises(KeyboardInterrupt), kept:
        os.chdir("/")
        sys.setrecursionlimit(5000)
        torch.set_default_dtype(torch.float64)
        for number, (state, value) in enumerate(kept._before):
            if state.name == "the working folder":
                kept._before[number] = (state._replace(write=interrupted), value)
    os.chdir(folder)
    assert sys.getrecursionlimit() != 5000
    assert torch.get_default_dtype() == torch.float32
    assert kept.left == ["the working folder"]


def test_what_cannot_be_put_back_is_said(tmp_path: Any) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    with Kept(training_thread=True) as kept:
        os.chdir("/")
        gone.rmdir()
        sys.setrecursionlimit(5000)
    assert (kept.put_back, kept.left) == (["the recursion limit"], ["the working folder"])
    assert kept.sentences() == [
        "put back as it was: the recursion limit", "changed, and could not be put back: the working folder",
    ]


def test_a_folder_that_is_gone_hinders_nothing(tmp_path: Any) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    with Kept(training_thread=True) as kept:
        torch.rand(3)
    assert kept.put_back == ["the random state of torch"]


def test_modes_that_the_job_is_in_are_its_own_afterwards() -> None:
    class Counts(TorchFunctionMode):
        calls = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Counts.calls += 1
            return func(*args, **(kwargs or {}))

    with Counts(), torch.no_grad(), torch.autocast("cpu"), torch.device("meta"):
        Counts.calls = 0
        with Kept(training_thread=True) as kept:
            torch._C._set_grad_enabled(True)
            torch._C._pop_torch_function_stack()
        seen = Counts.calls
        assert not torch.is_grad_enabled() and torch.is_autocast_enabled("cpu")
        assert torch.ones(2).is_meta
        assert torch._C._len_torch_function_stack() == 2
    assert seen <= 1  # the snippet's own call at most
    assert kept.put_back == ["grad mode", "modes of torch functions and the default device"]
    with torch.inference_mode():
        with Kept(training_thread=True) as kept:
            torch.rand(3)
            _enter(torch.inference_mode(False))
        assert torch.is_inference_mode_enabled() and not torch.is_grad_enabled()
    assert "inference mode" in kept.put_back
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


def test_an_autocast_left_open_leaves_no_cast_weight_behind() -> None:
    layer, x = nn.Linear(4, 4), torch.ones(1, 4)
    with Kept(training_thread=True):
        _enter(torch.autocast("cpu"))
        layer(x)
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.zero_()
    with torch.autocast("cpu"):
        assert layer(x).abs().sum() == 0


def _train(between: Callable[[int], object], *, kept: bool) -> list[str]:
    """Losses and parameters of a training with dropout, in hexadecimal."""
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for step in range(len(CASES)):
        x = torch.randn(8, 8) * random.random() + float(numpy.random.rand())
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()).hex())
        with Kept(training_thread=True) if kept else contextlib.nullcontext():
            between(step)
    weights = nn.utils.parameters_to_vector(model.parameters()).tolist()
    return losses + [weight.hex() for weight in weights]


def test_a_training_is_bit_identical_whatever_is_drawn_and_left_open_between_its_steps() -> None:
    every = [change for changes in CHANGES.values() for change in changes]
    plain = _train(lambda _step: None, kept=False)
    assert _train(lambda step: every[step](), kept=True) == plain
    assert _train(lambda _step: torch.rand(1), kept=False) != plain


def test_random_states_come_back_from_a_file(tmp_path: Any) -> None:
    numpy.random.normal()  # half of a pair is kept for the next draw
    states = random_states()
    first = (random.random(), torch.rand(2).tolist(), numpy.random.normal(), numpy.random.rand())
    path = tmp_path / "states.pt"
    torch.save(states, path)
    restore_random_states(torch.load(path, weights_only=True))
    assert (random.random(), torch.rand(2).tolist(), numpy.random.normal(), numpy.random.rand()) == first
    assert states["devices"] == {} and not torch.cuda.is_initialized()


def test_nothing_is_imported_for_it() -> None:
    """Where the job has neither torch nor NumPy."""
    code = (
        "import sys, os; from probe.checkpoint.random_states import random_states, restore_random_states\n"
        "from probe.job.snippets.state_restore import Kept\n"
        "with Kept(training_thread=True) as kept: os.chdir('/')\n"
        "states = random_states(); restore_random_states(states)\n"
        "print(kept.put_back, states['torch'], states['numpy'], {'torch', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['the working folder'] None None set()\n"


def _on_a_thread(work: Callable[[], None]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def _comparable(states: dict[str, Any]) -> dict[str, Any]:
    return {**states, "torch": states["torch"].tolist()}
