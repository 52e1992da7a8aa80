"""Whatever a snippet does wrong, it is told why, and the training is that of an untouched run."""

from __future__ import annotations

import cProfile
import math
import pstats
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from acting.bystander import PACE, PROGRAM, snippet, undisturbed
from agent.asking import query, tell, without_times
from agent.nursery import Forked, Nursery, forked
from harness import PATIENCE_S, Place
from probe.base.errors import EvalBusy, EvalTimeout, LimitReached, NoBoundary, ProbeError, SnippetRefused
from probe.job.snippets.guard.watching import Watch

OUTPUT_BYTES = 65_536
"""What is kept of a snippet's output, by default."""

RAISING = {
    "1 / 0": "ZeroDivisionError",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "raise GeneratorExit": "GeneratorExit",
    "raise StopIteration": "StopIteration",
    "raise MemoryError": "MemoryError",
    "class Worst(BaseException): pass\nraise Worst('x')": "Worst",
    "class Odd(BaseException):\n    def __str__(self): raise KeyboardInterrupt\nraise Odd": "Odd",
    "class Odd:\n    def __repr__(self): raise KeyboardInterrupt\nOdd()": "KeyboardInterrupt",
    "class Odd:\n    def __del__(self): raise KeyboardInterrupt\nodd = Odd()\ndel odd": None,
    "class Odd:\n    def __del__(self): 1 / 0\nodd = Odd()\nraise ValueError": "ValueError",
    "def deep(): return deep()\ndeep()": "RecursionError",
    "deep = []\nfor _ in range(20_000): deep = [deep]\ndeep": None,
    "def some():\n    try: yield 1\n    finally: raise KeyboardInterrupt\nfor _ in some(): break": None,
    "(": "SyntaxError",
    "return": "SyntaxError",
    "model.no_such_layer": "AttributeError",
    "model(1)": "TypeError",
    "import torch\ntorch.zeros(3) @ torch.zeros(4)": "RuntimeError",
    "import no_such_module": "ModuleNotFoundError",  # waits for the disk: not at a boundary
    "del model": None,
    "del no_such_name": "NameError",
    "import gc\ndel model, optimizer, train_loader, trainer\ngc.collect()": None,
    "async def wait(): pass\nwait()": None,
}

REFUSED = (
    "import os\nos._exit(0)",
    "import sys\nsys.exit()",
    "exit()",
    "quit(3)",
    "raise SystemExit",
    "input()",
    "breakpoint()",
    "import pdb\npdb.set_trace()",
    "import os\nos.abort()",
    "import os\nos.fork()",
    "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "import signal\nsignal.raise_signal(signal.SIGTERM)",
    "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)",
    "import signal\nsignal.alarm(1)",
    "import os\nos.execv('/bin/true', ['true'])",
    "import os\nos.killpg(0, 9)",
    "import pty\npty.fork()",
    "import multiprocessing\nmultiprocessing.Process(target=print).start()",
    "import faulthandler\nfaulthandler._sigsegv()",
    "import ctypes\nctypes.string_at(0)",
    "import sys\nsys.setrecursionlimit(10**9)",
    "import sys\nsys.settrace(None)",
    # by other names
    "import os as system\nsystem._exit(0)",
    "from os import _exit as leave\nleave(0)",
    "import os\nleave = os._exit\nleave(0)",
    "import os\ngetattr(os, '_ex' + 'it')(0)",
    "__import__('o' + 's')._exit(0)",
    "import os\n[found for name, found in vars(os).items() if name == '_exit'][0](0)",
    "import functools, os\nfunctools.partial(os._exit, 0)()",
    "import os\nlist(map(os._exit, [0]))",
    "import os\nsorted([0], key=os._exit)",
    "import operator, os\noperator.methodcaller('_exit', 0)(os)",
    "exec('import os; os._exit(0)')",
    "eval('__import__(\"os\")._exit(0)')",
    "import posix\nposix._exit(0)",
    "import os\nclass Leaving:\n    def __del__(self): os._exit(0)\nleaving = Leaving()\ndel leaving",
    "import os\nclass Leaving:\n    def __repr__(self): os._exit(0)\nLeaving()",
    "import os\nclass Leaving:\n    __getattr__ = lambda self, name: os._exit(0)\nLeaving().x",
    "import os\nos.harmless = os._exit\ntry:\n    os.harmless(0)\nfinally:\n    del os.harmless",
    "import os\ntry:\n    os._exit(0)\nexcept BaseException:\n    pass",
    "import sys\nsys.modules['os'].fork()",
    "import os\ndef leave():\n    yield os._exit(0)\nnext(leave())",
    "import builtins\nbuiltins.input()",
    "import contextlib, os\nwith contextlib.ExitStack() as stack:\n    stack.callback(os._exit, 0)",
    "import posix\ngetattr(posix, '_ex' + 'it')(0)",
)

ENDLESS = (
    "while True: pass",
    "while True:\n    try:\n        1 / 0\n    except BaseException: pass",
    "def loop():\n    while 1:\n        try:\n            yield\n        finally:\n            continue\n"
    "for _ in loop(): pass",
    "import itertools\nfor _ in itertools.count(): pass",
    "def again():\n    try:\n        again()\n    finally:\n        again()\nagain()",
    "while True:\n    print('x' * 1000)",
)


def refusal(place: Place, pid: int, code: str, **wanted: Any) -> ProbeError:
    """What a snippet was answered with instead of an answer."""
    with pytest.raises(ProbeError) as caught:
        print(code, snippet(place, pid, code, **wanted))
    return caught.value


@pytest.mark.parametrize("when", [pytest.param("auto", marks=pytest.mark.campaign), "step"])
def test_what_a_snippet_raises_stays_with_it(nursery: Nursery, place: Place, when: str) -> None:
    with undisturbed(nursery, place) as job:
        for code, error in RAISING.items():
            answer = snippet(place, job.pid, code, when="auto" if "module" in code else when)
            said = answer["error"] and answer["error"]["type"]
            assert (code, said) == (code, error), answer


def test_what_would_end_or_fork_the_process_is_refused_by_whatever_name(
    nursery: Nursery, place: Place
) -> None:
    with undisturbed(nursery, place) as job:
        for code in REFUSED:
            error = refusal(place, job.pid, code)
            assert (code, type(error)) == (code, SnippetRefused)
            assert len(error.message) > 20
        outcomes = query(place, job.pid, "SELECT outcome, count(*) FROM probe.evals GROUP BY outcome")
        assert dict(outcomes)["refused"] == len(REFUSED) and set(dict(outcomes)) <= {"started", "refused"}


@pytest.mark.parametrize("when", ["auto", "step"])
def test_an_endless_snippet_ends_at_its_deadline_and_the_training_goes_on(
    nursery: Nursery, place: Place, when: str
) -> None:
    with undisturbed(nursery, place) as job:
        for code in ENDLESS:
            error = refusal(place, job.pid, code, timeout_s=0.2, when=when)
            assert (code, type(error)) == (code, EvalTimeout)
            assert "was stopped after 0.2 s" in error.message or "It is told again" in error.message
            before = step_once_it_ended(place, job.pid)
            assert int(snippet(place, job.pid, "trainer.current_step", when="step")["value"]) > before


def step_once_it_ended(place: Place, pid: int) -> int:
    """On a machine with much else to do, a snippet that was told to end takes its time."""
    give_up = time.monotonic() + PATIENCE_S
    while True:
        try:
            return int(snippet(place, pid, "trainer.current_step")["value"])
        except EvalBusy:
            assert time.monotonic() < give_up


@pytest.mark.parametrize("last", ["1 / 0", "while True: pass", "model(1)"])
def test_a_mode_that_a_snippet_could_not_set_back_is_set_back_for_it(
    nursery: Nursery, place: Place, last: str
) -> None:
    """A forward in eval mode that fails or takes too long must not leave the training in eval mode."""
    said = "put back as it was: train and eval modes of modules, as the snippet did not run to its end"
    with undisturbed(nursery, place) as job:
        for before in ("model.eval()", "model.dropout.training = False", "model.train(False)"):
            code = f"{before}\n{last}\nmodel.train()"
            try:
                answer = snippet(place, job.pid, code, when="step", timeout_s=0.3)
                assert answer["error"] is not None and said in answer["kept"], answer
            except EvalTimeout as late:
                assert said[1:] in late.message
        assert snippet(place, job.pid, "model.training, model.dropout.training")["value"] == "(True, True)"


def test_a_mode_that_a_snippet_sets_stays(nursery: Nursery, place: Place) -> None:
    with forked(nursery, place, (PROGRAM, "--forever", *PACE, "--hold")) as [job]:
        job.wait_for("READY")
        assert snippet(place, job.pid, "model.eval()", when="step")["kept"] == []
        assert snippet(place, job.pid, "model.training, model.dropout.training")["value"] == "(False, False)"
        assert snippet(place, job.pid, "model.train()", when="step")["error"] is None


def test_a_gigabyte_of_output_is_counted_and_dropped(nursery: Nursery, place: Place) -> None:
    with undisturbed(nursery, place) as job:
        for when, lines in (("auto", 1000), ("step", 100)):
            code = f"for _ in range({lines}): print('x' * 999_999)"
            answer = snippet(place, job.pid, code, when=when, timeout_s=30.0)
            assert answer["output"] == "x" * OUTPUT_BYTES
            assert answer["dropped_bytes"] == lines * 10**6 - OUTPUT_BYTES


HOARDING = (
    "hoard = []\nwhile True: hoard.append(b'x' * 10_000_000)",
    "import torch\nhoard = []\nwhile True: hoard.append(torch.ones(1_000_000))",
    "import torch\ntorch.ones(200_000_000).sum()",
)
PEAK_KIB = "import resource\nresource.getrusage(resource.RUSAGE_SELF).ru_maxrss"
ALLOW_200_MB = """
import probe.job.snippets.evaluation
probe.job.snippets.evaluation.memory_allowance_bytes = lambda: 200 << 20
"""


def test_a_snippet_that_takes_all_memory_is_stopped_before_it_has_it(nursery: Nursery, place: Place) -> None:
    with undisturbed(nursery, place) as job:
        snippet(place, job.pid, ALLOW_200_MB)
        before = int(snippet(place, job.pid, PEAK_KIB)["value"])
        for code in HOARDING:
            for when in ("auto", "step"):
                assert out_of_memory(place, job.pid, code, when), code
        assert int(snippet(place, job.pid, PEAK_KIB)["value"]) < before + 1_000_000


def out_of_memory(place: Place, pid: int, code: str, when: str) -> bool:
    """Whether it was stopped, or an allocation of its own failed."""
    try:
        answer = snippet(place, pid, code, when=when, timeout_s=30.0)
    except LimitReached as error:
        return "memory" in error.message
    return answer["error"]["type"] in ("MemoryError", "RuntimeError")


ENDS = {  # with a method it is in a ring with the snippet's variables: let go where nothing can have got out
    "mark.x = 1": "def __call__(self): pass", "1 / 0": "def __call__(self): pass",
    "while True: pass": "def __call__(self): pass", "import os\ngetattr(os, '_ex' + 'it')(0)": "pass",
}


@pytest.mark.parametrize("when", ["now", "step"])
def test_nothing_of_a_snippet_stays_however_it_ended(nursery: Nursery, place: Place, when: str) -> None:
    found = (
        "import gc\nkinds = [one for one in object.__subclasses__() if one.__name__ == 'Mark']\n"
        "sum(type(one) in kinds for one in gc.get_referrers(*kinds)) if kinds else 0"
    )
    with undisturbed(nursery, place) as job:
        for end, body in ENDS.items():
            with suppress(ProbeError):
                code = f"class Mark:\n    {body}\nmark = Mark()\n{end}"
                snippet(place, job.pid, code, when=when, timeout_s=0.2)
            assert (end, snippet(place, job.pid, found)["value"]) == (end, "0")
        snippet(place, job.pid, "class Mark: pass\nmodel.marked = Mark()", when=when)
        assert snippet(place, job.pid, found)["value"] == "1"
        snippet(place, job.pid, "del model.marked", when=when)


def test_a_snippet_that_no_boundary_came_for_never_runs(nursery: Nursery, place: Place) -> None:
    with forked(nursery, place, (PROGRAM, "--steps", "30", "--pause", "--hold")) as [job]:
        job.wait_for("READY")
        error = refusal(place, job.pid, "trainer.grad_clip = 'gone'", wait_s=0.3)
        assert isinstance(error, NoBoundary)
        assert "no step ended within 0.3 s" in error.message and "ledger.py" in error.message
        assert "--now" in error.hint
        assert snippet(place, job.pid, "trainer.grad_clip")["value"] == "1.0"
        now = snippet(place, job.pid, "trainer.noted = 1", when="now")
        assert (now["where"], now["class"]) == ("at once", "changing")
        tell(job)
        disturbed = without_times(job.result())
        assert snippet(place, job.pid, "trainer.grad_clip, trainer.noted")["value"] == "(1.0, 1)"
        assert (job.let_go(), job.errors()) == (0, "")
    with forked(nursery, place, (PROGRAM, "--steps", "30"), watched=False) as [job]:
        plain = without_times(job.result())
    assert disturbed["losses"] == plain["losses"]
    assert disturbed["parameters_sha256"] == plain["parameters_sha256"]


@pytest.mark.parametrize(
    "phase", ["data", *(pytest.param(one, marks=pytest.mark.campaign) for one in ("forward", "backward"))]
)
def test_where_a_hung_training_is_stands_in_the_answer(nursery: Nursery, place: Place, phase: str) -> None:
    with forked(nursery, place, ("halts_inside_a_step", "--phase", phase, "--steps", "5")) as [job]:
        job.wait_for("READY")
        tell(job)
        job.wait_for("INSIDE")
        error = refusal(place, job.pid, "model[0].noted = 1", wait_s=0.2)
        assert isinstance(error, NoBoundary)
        assert "halt" in error.message and "halts_inside_a_step.py" in error.message
        assert snippet(place, job.pid, "len(model)")["value"] == "3"
        assert snippet(place, job.pid, "model[0].noted = 1", when="now")["where"] == "at once"


def test_ctrl_c_while_a_snippet_runs_means_the_training(nursery: Nursery, place: Place) -> None:
    with forked(nursery, place, (PROGRAM, "--forever", *PACE)) as [job]:
        job.wait_for("READY")
        code = (
            "import os, time\nuntil = time.monotonic() + 20\nprint('x')\n"
            f"open({str(place.directory / 'begun')!r}, 'w').close()\nwhile time.monotonic() < until: pass"
        )
        with ExitStack() as stack:
            pool = stack.enter_context(ThreadPoolExecutor(1))
            asked = pool.submit(refusal_or_end, place, job.pid, code)
            while not (place.directory / "begun").exists():
                assert not asked.done(), asked.result()
            job.signal(signal.SIGINT)
            assert job.wait() in (1, -signal.SIGINT)
            asked.result()
        assert job.errors().rstrip().endswith("KeyboardInterrupt")


def test_a_profile_of_the_jobs_own_goes_on_after_a_snippet() -> None:
    profile = cProfile.Profile()
    profile.enable()
    with Watch(time.monotonic() + 60, collectives=True, training_thread=True, memory_bytes=None):
        pass
    math.cbrt(8) if hasattr(math, "cbrt") else math.exp(8)
    profile.disable()
    seen = {function for _, _, function in pstats.Stats(profile).stats}  # type: ignore[attr-defined]
    assert any("cbrt" in function or "exp" in function for function in seen)


def refusal_or_end(place: Place, pid: int, code: str) -> object:
    """The process may be gone before it has answered."""
    try:
        return snippet(place, pid, code, when="step", timeout_s=30.0)
    except (OSError, ProbeError) as error:
        return error


COLLECTIVES = (
    "import torch, torch.distributed as dist\ndist.all_reduce(torch.ones(1))",
    "import torch\nfrom torch.distributed import all_reduce as harmless\nharmless(torch.ones(1))",
    "import torch, torch.distributed as dist\ngetattr(dist, 'all_' + 'reduce')(torch.ones(1))",
    "import torch, torch.distributed as dist\nreduce = vars(dist)['all_' + 'reduce']\nreduce(torch.ones(1))",
    "import torch.distributed as dist\ndist.barrier()",
    "import torch, torch.distributed as dist\ndist.group.WORLD.allreduce([torch.ones(1)]).wait()",
    "import torch, torch.distributed as dist\ndist.broadcast(torch.ones(1), src=0)",
    "import torch, torch.distributed as dist\ndist.all_gather_object([None, None], 1)",
    """
import torch.distributed as dist
if dist.is_initialized():
    tensor = torch.tensor([ledger.steps])
    dist.all_reduce(tensor)
    print(f'Sum of steps across ranks: {tensor.item()}')""",
)


@contextmanager
def ranks(
    nursery: Nursery, place: Place, meeting: Path, *options: str, watched: bool
) -> Iterator[list[Forked]]:
    command = ("ranks_that_reduce", "--meeting", str(meeting), *options)
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                forked(nursery, place, command, watched=watched, RANK=str(rank), WORLD_SIZE="2")
            )[0]
            for rank in range(2)
        ]


def test_a_collective_on_one_of_two_ranks_is_refused_and_both_train_on(
    nursery: Nursery, place: Place, tmp_path: Path
) -> None:
    with ranks(nursery, place, tmp_path / "watched", "--forever", *PACE, "--hold", watched=True) as both:
        for job in both:
            job.wait_for("READY")
        for number, code in enumerate(COLLECTIVES):
            for when in ("auto", "step", "now"):
                error = refusal(place, both[number % 2].pid, code, when=when)
                assert (code, type(error)) == (code, SnippetRefused), error.message
        for job in both:
            rank = snippet(place, job.pid, "import torch.distributed as dist\ndist.get_rank()")
            assert (rank["where"], rank["value"]) == ("at once", str(both.index(job)))
            assert snippet(place, job.pid, "import torch\ntorch.rand(3)")["where"] == "step boundary"
        tell(both[0])
        found = [without_times(job.result()) for job in both]
        assert [(job.let_go(), job.errors()) for job in both] == [(0, ""), (0, "")]
    steps = str(found[0]["steps"])
    with ranks(nursery, place, tmp_path / "plain", "--steps", steps, watched=False) as both:
        assert found == [without_times(job.result()) for job in both]
