"""What runs under the watch ends in time, calls nothing forbidden, takes no more memory than it may; and then
its thread goes on as if nobody had watched."""

from __future__ import annotations

import ast
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from control.pythons import interpreter
from harness import PATIENCE_S, PROGRAMS, ROOT
from probe.job.instruments.core.host_memory import HostMemory
from probe.job.snippets.guard import memory_allowance
from probe.job.snippets.guard.watching import (
    CHECK_NAME,
    SnippetForbidden,
    SnippetMemory,
    SnippetTimeout,
    Watch,
    memory_allowance_bytes,
    with_checks,
)

MINORS = tuple(
    minor if minor in (sys.version_info[1], 13) else pytest.param(minor, marks=pytest.mark.campaign)
    for minor in (10, 11, 12, 13)
)
"""This Python and the newest; the others in the campaign."""
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("minor", MINORS)
def test_in_every_python_a_snippet_ends_and_its_thread_goes_on(minor: int) -> None:
    done = subprocess.run(
        [interpreter(minor), str(PROGRAMS / "watched_snippets.py")], stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    answers = said["answers"]
    assert set(answers["endless"].values()) == {"late"}, answers["endless"]
    assert {name: became for name, became in answers["calls"].items() if "forbidden: " not in became} == {}
    assert "time.sleep would hold the training up" in answers["calls"]["time.sleep on the training thread"]
    assert set(answers["fine"].values()) == {"ended"}, answers["fine"]
    assert said["untouched"] is True


@pytest.mark.parametrize("minor", MINORS)
def test_in_every_python_what_ends_a_snippet_leaves_nothing_open(minor: int) -> None:
    """From Python 3.12 on an error that is raised at a jump back passes by the `with` around it."""
    done = subprocess.run(
        [interpreter(minor), str(PROGRAMS / "watched_cleanup.py")], stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert said["left"] == [] and said["without_care"] > 0
    for form, (how, left_open) in said["ended"].items():  # the last one may have come to its end by itself
        assert (form, left_open) == (form, 0)
        assert how == "SnippetTimeout" or "return spend" in form, (form, how)


class Watched:
    """One snippet, run under a watch."""

    def __init__(self, code: str, names: dict[str, Any] | None = None, **how: Any) -> None:
        settings = {"collectives": False, "training_thread": False, "memory_bytes": None, **how}
        deadline_s = time.monotonic() + settings.pop("within_s", PATIENCE_S)
        self.watch = Watch(deadline_s, **settings)
        self.names = {**(names or {}), CHECK_NAME: self.watch.check}
        self.code = compile(with_checks(ast.parse(code)), "<snippet>", "exec")

    def run(self) -> dict[str, Any]:
        with self.watch:
            exec(self.code, self.names)
        return self.names


def test_a_check_is_no_part_of_what_a_snippet_means() -> None:
    code = (
        "def f():\n    'text'\n    for n in range(3):\n        yield n\n"
        "a = f.__doc__, list(f()), [n for n in range(4) if n % 2], (lambda: 0)(), {k: 1 for k in [1]}\n"
        "b = sum(m for n in range(3) for m in range(n) if m)\n"
        "try: 1 / 0\nexcept ZeroDivisionError as error: c = str(error)\nelse: c = ''\nfinally: d = 1\n"
        "while d < 5: d += 1\nelse: d = -d\n"
    )
    plain: dict[str, Any] = {}
    exec(code, plain)
    found = Watched(code).run()
    assert {name: found[name] for name in "abcd"} == {name: plain[name] for name in "abcd"}


def test_a_deep_tree_gets_its_checks_too() -> None:
    tree: ast.expr = ast.Constant(1)
    for _ in range(5 * sys.getrecursionlimit()):
        tree = ast.UnaryOp(ast.USub(), tree)
    loop = ast.parse("while 0: pass").body[0]
    assert isinstance(loop, ast.While)
    with_checks(ast.Module([ast.Expr(tree), loop], []))
    assert CHECK_NAME in ast.unparse(loop)


def test_the_threads_own_trace_and_profile_functions_come_back() -> None:
    seen: list[str] = []

    def traced(frame: Any, event: str, _: Any) -> Any:
        seen.append(frame.f_code.co_name)
        return None

    def profiled(_frame: Any, event: str, _: Any) -> None:
        seen.append(event)

    def both() -> None:
        for code, error in (("1", None), ("1 / 0", ZeroDivisionError), ("while True: pass", SnippetTimeout)):
            watched = Watched(code, within_s=0.05 if error is SnippetTimeout else PATIENCE_S)
            sys.settrace(traced)
            sys.setprofile(profiled)
            if error is None:
                watched.run()
            else:
                with pytest.raises(error):
                    watched.run()
            now = sys.gettrace(), sys.getprofile()
            seen.clear()
            after()
            sys.settrace(None)
            sys.setprofile(None)
            results.append((now == (traced, profiled), "after" in seen, "call" in seen))

    def after() -> None:
        pass

    results: list[tuple[bool, bool, bool]] = []
    thread = threading.Thread(target=both)
    thread.start()
    thread.join()
    assert results == [(True, True, True)] * 3


def test_other_threads_are_not_watched_and_may_use_what_a_snippet_left() -> None:
    names = Watched("def later():\n    for _ in range(3): pass\n    return gettrace()\n",
    {"gettrace": sys.gettrace}).run()
    assert names["later"]() is sys.gettrace()
    watched = Watched(
        "import threading\nfound = []\n"
        "def loop():\n    for _ in range(3): pass\n    found.append(gettrace())\n"
        "thread = threading.Thread(target=loop)\nthread.start(); thread.join()", {"gettrace": sys.gettrace},
    )
    assert watched.run()["found"] == [None]


def test_what_a_snippet_cleans_up_is_not_cut_short() -> None:
    code = "import torch\nwith torch.no_grad():\n    while True: pass"
    with pytest.raises(SnippetTimeout):
        Watched(code, within_s=0.05).run()
    assert torch.is_grad_enabled()


# Memory ------------------------------------------------------------------------------------------

SOME_BYTES = 64 << 20


@pytest.mark.parametrize(
    "code",
    ["kept = []\nwhile True: kept.append(bytes(1 << 20))", "kept = bytearray(1 << 36)",
     "import torch\nkept = torch.zeros(1 << 34)", "kept = []\nfill(kept)"],
)
def test_a_snippet_takes_no_more_memory_than_it_may(code: str) -> None:
    def fill(kept: list[bytes]) -> None:
        while True:
            kept.append(os.urandom(1 << 20))

    before = resource.getrlimit(resource.RLIMIT_DATA)
    held = memory_allowance.resident_bytes()
    assert held is not None
    watched = Watched(code, {"fill": fill}, memory_bytes=SOME_BYTES)
    with pytest.raises((SnippetMemory, MemoryError, RuntimeError)):
        watched.run()
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    now = memory_allowance.resident_bytes()
    assert now is not None and now - held < 3 * SOME_BYTES


def test_within_its_allowance_a_snippet_may_take_memory() -> None:
    assert len(Watched("kept = bytes(1 << 20)", memory_bytes=SOME_BYTES).run()["kept"]) == 1 << 20


def test_the_allowance_is_a_share_of_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    free = memory_allowance_bytes()
    assert free is not None and 0 < free < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setattr(memory_allowance.HostMemoryReader, "read", lambda _: HostMemory(500 << 20, None))
    assert memory_allowance_bytes() == int((500 << 20) * memory_allowance.SHARE)
    monkeypatch.setattr(memory_allowance.HostMemoryReader, "read", lambda _: HostMemory(None, None))
    assert memory_allowance_bytes() is None


# Collectives ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A process group of one, and what is in a job that has one."""
    meeting = tmp_path_factory.mktemp("ranks") / "meeting"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    x = torch.ones(2)
    yield {"dist": dist, "torch": torch, "x": x, "model": model, "loss": model.module(x).sum(),
           "group": dist.group.WORLD, "calling": lambda call: call()}
    dist.destroy_process_group()


WAITING = (
    "dist.all_reduce(x)", "f = dist.all_reduce\nf(x)", "getattr(dist, 'all_' + 'reduce')(x)",
    "import functools\nfunctools.partial(dist.all_reduce, x)()", "list(map(dist.all_reduce, [x]))",
    "import operator\noperator.methodcaller('all_reduce', x)(dist)", "dist.barrier()", "model(x)",
    "loss.backward()",
    "group.allreduce([x])", "f = group.allreduce\nf([x])", "getattr(group, 'bar' + 'rier')()",
    "dist.send(x, 0)",
    "dist.new_group([0])", "dist.broadcast_object_list([1])", "dist.destroy_process_group()",
    "import torch.distributed._functional_collectives as c\nc.all_reduce(x, 'sum', group)",
    "calling(lambda: dist.all_reduce(x))",
    "try: dist.barrier()\nexcept BaseException: pass\nfor _ in [1]: pass",
)


# These tell a profiler nothing of methods that are bound to an object of C++ (versions.LACKS).
if sys.version_info < (3, 11) or (3, 12) <= sys.version_info < (3, 12, 5):
    WAITING = tuple(code for code in WAITING if "group." not in code and "getattr(group" not in code)


@pytest.mark.parametrize("code", WAITING)
def test_a_collective_is_not_called_under_any_name(code: str, ranks: dict[str, Any]) -> None:
    with pytest.raises(SnippetForbidden) as forbidden:
        Watched(code, ranks).run()
    assert forbidden.value.why == "waits for the other ranks" and forbidden.value.what
    assert ranks["x"].tolist() == [1.0, 1.0] and dist.is_initialized()


def test_asking_a_process_group_is_not_a_collective_and_some_may_call_one(ranks: dict[str, Any]) -> None:
    asked = "a = dist.get_rank(), dist.get_world_size(), dist.get_backend(), group.size()"
    assert Watched(asked, ranks).run()["a"] == (0, 1, "gloo", 1)
    Watched("dist.all_reduce(x); model(x)", ranks, collectives=True).run()


def test_beside_the_training_thread_one_may_sleep() -> None:
    Watched("import time\ntime.sleep(0)").run()
    with pytest.raises(SnippetForbidden, match="would hold the training up"):
        Watched("import time\ntime.sleep(0)", training_thread=True).run()


def test_a_library_may_end_its_own_children() -> None:
    Watched("import subprocess\np = subprocess.Popen(['sleep', '600'])\np.kill()\np.wait()").run()
