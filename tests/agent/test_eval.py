"""eval: whatever a snippet does, the caller gets an answer and the job goes on as if nobody had asked."""

from __future__ import annotations

import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from agent.asking import ask, evaluate, query, tell, without_times
from agent.nursery import Forked, Nursery, forked
from harness import PATIENCE_S, Place
from probe.base.errors import BadRequest, EvalBusy, EvalTimeout, LimitReached
from probe.job.boundary.task_queue import TaskQueue
from probe.job.introspection.snippet_names import Scope
from probe.job.snippets.evaluator import Evaluator, Snippet, Surroundings

OUTPUT_BYTES = 64 << 10


class Said(NamedTuple):
    """What an answer is to hold. `error` is a type; `part` is somewhere in its message, hint or traceback."""

    output: str = ""
    value: str | None = None
    error: str | None = None
    part: str = ""
    dropped_bytes: int = 0


CLASS = "class Bad{base}:\n    def {method}(self, *_):\n        {body}\n"


def bad(method: str, body: str, base: str = "") -> str:
    return CLASS.format(base=base, method=method, body=body)


LEAVES = "raise getattr(__import__('builtins'), 'Exit'.join(['System', '']))(9)"
"""SystemExit as the guard cannot know it."""

ANSWERS: dict[str, Said] = {
    # statements, expressions, the value of the last one
    "1 + 1": Said(value="2"),
    "": Said(),
    "# nothing": Said(),
    "None": Said(),
    "'text'": Said(value="'text'"),
    "x = 1\nx += 2\nprint(x)\nx * 2": Said("3\n", "6"),
    "    indented = 5\n    indented": Said(value="5"),
    "\n\n7\n\n": Said(value="7"),
    "for number in range(3):\n    print(number)": Said("0\n1\n2\n"),
    "def twice(n):\n    return 2 * n\n\ntwice(twice(4))": Said(value="16"),
    "total = 0\ndef add():\n    global total\n    total += 2\nadd(); add()\ntotal": Said(value="4"),
    "[parameter.shape for parameter in model.parameters()][0]": Said(value="torch.Size([1, 4])"),
    "(lambda: model.training)()": Said(value="True"),
    "for i, group in enumerate(optimizer.param_groups): print(i, group['lr'])": Said("0 0.01\n"),
    "import sys\nprint('loud', file=sys.stderr)": Said("loud\n"),
    "import sys\nsys.stdout.writelines(['a', 'b'])\nsys.stdout.flush()": Said("ab"),
    "model\ndel model\n'model' in dir()": Said(value="False"),
    "{'model', 'optimizer', 'torch'} <= set(globals()) & set(dir()) & set(locals())": Said(value="True"),
    "len(globals()['model'].weight)": Said(value="1"),
    # errors
    "1 / 0": Said(error="ZeroDivisionError", part='File "<probe eval>", line 1'),
    "print('before')\nraise KeyError('k')": Said("before\n", error="KeyError", part="line 2"),
    "def": Said(error="SyntaxError", part="line 1"),
    "return 1": Said(error="SyntaxError", part="outside function"),
    "x = (": Said(error="SyntaxError"),
    "modle": Said(error="NameError", part="names like it: model; `globals()` shows all of them"),
    "qwxyz": Said(error="NameError", part="no name like it"),
    "model.wieght": Said(error="AttributeError", part="wieght"),
    "open('missing.txt')": Said(error="FileNotFoundError", part="relative paths start at"),
    "raise KeyboardInterrupt": Said(error="KeyboardInterrupt"),
    "raise GeneratorExit": Said(error="GeneratorExit"),
    "class Own(BaseException): pass\nraise Own('mine')": Said(error="Own", part="mine"),
    "def deep(): deep()\ndeep()": Said(error="RecursionError"),
    "raise ValueError('x' * 10**7)": Said(error="ValueError", part="xxx"),
    bad("__repr__", LEAVES) + "Bad()": Said(error="SystemExit"),
    bad("__repr__", "raise KeyboardInterrupt") + "Bad()": Said(error="KeyboardInterrupt"),
    bad("__repr__", "return repr(self)") + "Bad()": Said(error="RecursionError"),
    bad("__repr__", "return 3") + "Bad()": Said(error="TypeError"),
    bad("__str__", LEAVES, "(Exception)") + "raise Bad()": Said(
        error="Bad", part="cannot be made"
    ),
    bad("__del__", LEAVES) + "Bad()\n4": Said(value="4", part=""),
    # code that no parser likes
    "(" * 100_000: Said(error="SyntaxError|MemoryError|RecursionError"),
    "-" * 100_000 + "1": Said(error="SyntaxError|MemoryError|RecursionError"),
    "model" + ".a" * 50_000: Said(error="SyntaxError|MemoryError|RecursionError"),
    "1" + " + 1" * 50_000: Said(error="SyntaxError|MemoryError|RecursionError"),
    "print(1)\0": Said(error="ValueError|SyntaxError", part="null"),
    "'\ud800'": Said(error="UnicodeEncodeError"),
    # nothing to read, nothing to close
    "import sys\nsys.stdin.read(), sys.stdin.readline(), list(sys.stdin)": Said(value="('', '', [])"),
    "import sys\nsys.stdout.close()\nprint('still here')": Said("still here\n"),
    "import sys\ndel sys.stdout": Said(),
    # a great deal
    "for _ in range(1000): print('x' * 99_999)": Said(
        "x" * OUTPUT_BYTES, dropped_bytes=10**8 - OUTPUT_BYTES
    ),
    "'x' * 10**8": Said(value=repr("x" * 10_000), dropped_bytes=10**8 - 10_000),
    "b'x' * 10**8": Said(value=repr(b"x" * 10_000), dropped_bytes=10**8 - 10_000),
    "list(range(3))": Said(value="[0, 1, 2]"),
    "list(range(10**6))": Said(value=repr(list(range(100)))[:-1] + ", ...]"),
    "[[0] * 10**6] * 3": Said(value="[" + ", ".join(["[" + "0, " * 100 + "...]"] * 3) + "]"),
    "import torch\ntorch.zeros(1000, 1001)": Said(
        value="tensor(shape=[1000, 1001], dtype=torch.float32, device=cpu)"
    ),
    "import torch\ntorch.tensor([1.5, float('nan')])": Said(value="tensor([1.5000,    nan])"),
}


def test_a_snippet_is_answered_and_the_job_goes_on(fork: Callable[..., Forked], place: Place) -> None:
    plain, job = fork("halfway", watched=False), fork("halfway", "--hold")
    tell(plain)
    job.wait_for("READY")
    for code, said in ANSWERS.items():
        answer = evaluate(place, job.pid, code, when="now")
        shown = code[:60]
        assert (shown, answer["value"]) == (shown, said.value), answer
        if "__del__" not in code:
            assert (shown, answer["output"]) == (shown, said.output)
        assert (shown, answer["dropped_bytes"]) == (shown, said.dropped_bytes)
        error = answer["error"] or {"type": None, "message": "", "hint": "", "traceback": ""}
        assert error["type"] is None if said.error is None else error["type"] in said.error.split("|"), answer
        assert said.part in error["message"] + error["hint"] + error["traceback"], answer
        assert len(error["message"]) <= 2000 and len(error["traceback"]) <= 16_000
    outcomes = query(place, job.pid, "SELECT outcome, count(*) FROM probe.evals GROUP BY ALL")
    failed = sum(said.error is not None for said in ANSWERS.values())
    assert dict(outcomes) == {"started": len(ANSWERS), "ok": len(ANSWERS) - failed, "raised": failed}
    tell(job)
    assert without_times(job.result()) == without_times(plain.result())
    assert (job.let_go(), job.errors()) == (0, "")


def test_what_other_threads_print_during_a_snippet_goes_where_it_belongs(
    fork: Callable[..., Forked], place: Place
) -> None:
    job = fork("halfway", "--hold")
    job.wait_for("READY")
    threaded = """
import functools, logging, sys, threading
logging.getLogger("kept").addHandler(logging.StreamHandler(sys.stdout))
def elsewhere(target, *arguments):
    thread = threading.Thread(target=target, args=arguments)
    thread.start()
    thread.join()
elsewhere(functools.partial(print, "BESIDE the snippet", flush=True))
print("within")
"""
    assert evaluate(place, job.pid, threaded, when="now")["output"] == "within\n"
    assert job.wait_for("BESIDE") == "BESIDE the snippet"
    # A stream that a snippet left somewhere is the job's afterwards, but for what snippets themselves print.
    log = "import logging\nlogging.getLogger('kept').warning('KEPT {}')\n"
    beside = "import threading\nthread = threading.Thread(target=lambda: {})\nthread.start()\nthread.join()"
    for number in range(3):
        assert evaluate(place, job.pid, log.format("here"), when="now")["output"] == "KEPT here\n"
        logs = f"logging.getLogger('kept').warning('KEPT {number}')"
        assert not evaluate(place, job.pid, "import logging\n" + beside.format(logs), when="now")["output"]
        assert job.wait_for("KEPT") == f"KEPT {number}"
    thread = "import threading\nthreading.Thread(target=lambda: 1 / 0).start()"
    raising = evaluate(place, job.pid, thread, when="now")
    assert raising["error"] is None
    tell(job)
    job.result()
    assert job.let_go() == 0
    assert job.errors().splitlines()[-1] == "ZeroDivisionError: division by zero"


def refused(place: Place, pid: int, code: str, timeout_s: float) -> str:
    with pytest.raises(EvalTimeout) as caught:
        evaluate(place, pid, code, timeout_s, when="now")
    return caught.value.message


def until_it_ends(place: Place, pid: int) -> int:
    """How often an eval was refused because the last one still ran."""
    deadline = time.monotonic() + PATIENCE_S
    for times in range(10**9):
        try:
            assert evaluate(place, pid, "1")["value"] == "1"
            return times
        except EvalBusy as error:
            assert "an earlier snippet has been running for" in error.message
            assert time.monotonic() < deadline
            threading.Event().wait(0.05)
    raise AssertionError


def test_a_snippet_that_does_not_end_is_stopped_or_named(fork: Callable[..., Forked], place: Place) -> None:
    plain, job = fork("halfway", watched=False), fork("halfway", "--hold")
    tell(plain)
    job.wait_for("READY")
    endless = refused(place, job.pid, "print('so far')\nwhile True: pass", 0.2)
    assert "was stopped after 0.2 s" in endless and "so far" in endless
    assert until_it_ends(place, job.pid) == 0
    stubborn = "while True:\n    try:\n        1 / 0\n    except BaseException: pass"
    refused(place, job.pid, stubborn, 0.2)
    until_it_ends(place, job.pid)
    asleep = refused(place, job.pid, "import time\ntime.sleep(1.5)", 0.2)
    assert "still runs" in asleep
    with pytest.raises(EvalBusy):
        evaluate(place, job.pid, "1")
    stacks = ask(place, job.pid, "GET", "/v1/stacks?all_threads=1")
    assert "probe-eval" in {thread["thread_name"] for thread in stacks["threads"]}
    until_it_ends(place, job.pid)
    ended = "SELECT outcome FROM probe.evals WHERE outcome NOT IN ('started', 'ok', 'cancelled')"
    ends = query(place, job.pid, ended)
    assert ends == [["timeout"]] * 3
    tell(job)
    assert without_times(job.result()) == without_times(plain.result())
    assert (job.let_go(), job.errors()) == (0, "")


def test_a_snippet_that_a_job_did_not_survive_is_on_record(
    fork: Callable[..., Forked], place: Place
) -> None:
    job = fork("halfway")
    job.wait_for("READY")
    # Nobody can keep a snippet from that.
    code = "import ctypes\nkill = ctypes.CDLL(None)['kil' + 'l']\nkill(ctypes.CDLL(None).getpid(), 9)"
    with pytest.raises(ConnectionError):
        evaluate(place, job.pid, code, when="now")
    assert job.wait() == -signal.SIGKILL
    found = query(place, job.pid, "SELECT code, class, outcome, duration_s, step FROM probe.evals")
    assert found == [[code, "changing", "started", None, 3]]


NO_THREAD_ONCE = """
import threading
real = threading.Thread.start
def start(thread):
    if thread.name == "probe-request":
        threading.Thread.start = real
        raise RuntimeError("can't start new thread")
    real(thread)
threading.Thread.start = start
"""


def test_a_request_that_got_no_thread_stands_in_nobodys_way(
    fork: Callable[..., Forked], place: Place
) -> None:
    job = fork("halfway")
    job.wait_for("READY")
    assert evaluate(place, job.pid, NO_THREAD_ONCE, when="now")["error"] is None
    with pytest.raises(LimitReached, match="cannot start another thread"):
        evaluate(place, job.pid, "1")
    body = {"code": "1 + 1", "timeout_s": 30.0, "wait_s": 5.0}
    assert ask(place, job.pid, "POST", "/v1/eval", body)["value"] == "2"


READING = (
    "[name for name, _ in model.named_modules()]", "optimizer.param_groups[0]['lr']", "len(train_loader)",
    "model", "trainer.current_step", "sum(parameter.numel() for parameter in model.parameters())",
    "model.head.weight.norm()", "model.state_dict().keys()", "optimizer", "tokens.shape", "print(size)",
)


def test_reading_while_it_trains_changes_nothing(fork: Callable[..., Forked], place: Place) -> None:
    command = ("gpt_in_main", "--size", "tiny", "--steps", "300")
    plain, job = fork(*command, watched=False), fork(*command, "--hold")
    job.wait_for("READY")
    answered = [0] * len(READING)
    while (answers := [evaluate(place, job.pid, code) for code in READING])[4]["value"] != "300":
        for number, answer in enumerate(answers):
            answered[number] += answer["error"] is None
    assert min(answered) > 0
    assert without_times(job.result()) == without_times(plain.result())
    assert (job.let_go(), job.errors()) == (0, "")


def test_a_thread_that_prints_while_snippets_run_does_not_crash_the_job(
    fork: Callable[..., Forked], place: Place
) -> None:
    job = fork("prints_all_the_time")
    job.wait_for("READY")
    assert [evaluate(place, job.pid, "print(1 + 1)")["output"] for _ in range(6)] == ["2\n"] * 6
    job.go_on()
    job.result()
    assert (job.let_go(), job.errors()) == (0, "")


@pytest.mark.parametrize(
    "body",
    [None, [], "text", {}, {"code": 3}, {"code": "1", "timeout_s": "soon"}, {"code": "1", "timeout_s": -1},
     {"code": "1", "timeout_s": 1e9}, {"code": "1", "timeout_s": float("nan")}, {"code": ["1"]}],
    ids=str,
)
def test_a_request_without_a_snippet_is_refused(asked: tuple[Place, int], body: Any) -> None:
    place, pid = asked
    with pytest.raises(BadRequest, match=r"`code` must be a string|must be seconds"):
        ask(place, pid, "POST", "/v1/eval", body)


@pytest.fixture(scope="module")
def asked(nursery: Nursery) -> Iterator[tuple[Place, int]]:
    """A job that is asked."""
    place = Place()
    try:
        with forked(nursery, place, ("halfway",)) as [job]:
            job.wait_for("READY")
            yield place, job.pid
        assert not any(place.close().values())
    finally:
        place.remove()


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns after every bytecode or so."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def timed(evaluator: Evaluator, code: str) -> float:
    begun_s = time.monotonic()
    snippet = Snippet(code, 5.0, 5.0, "now", force=False)
    assert evaluator.take(snippet, lambda _row: None)()["value"] == "19900"
    return time.monotonic() - begun_s


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the snippet's own
@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("times", [250, pytest.param(1000, marks=pytest.mark.campaign)])
def test_a_deadline_at_the_very_end_of_a_snippet_harms_nothing(
    monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    code = "print('x')\nsum(number for number in range(200))"
    escaped: list[object] = []
    monkeypatch.setattr(threading, "excepthook", escaped.append)
    job = Surroundings(lambda: Scope(None, dict), lambda: False, lambda: False, str, lambda: True)
    evaluator = Evaluator(job, TaskQueue(lambda: None), OUTPUT_BYTES)
    streams = (sys.stdin, sys.stdout, sys.stderr)
    chance = random.Random(0)
    usual_s = statistics.median(timed(evaluator, code) for _ in range(20))
    outcomes = set()
    for _ in range(times):
        try:
            snippet = Snippet(code, chance.uniform(0.2, 2) * usual_s, 5.0, "now", force=False)
            answer = evaluator.take(snippet, lambda _row: None)()
            assert (answer["output"], answer["value"], answer["error"]) == ("x\n", "19900", None)
            outcomes.add("answered")
        except EvalTimeout:
            outcomes.add("late")
        assert (sys.stdin, sys.stdout, sys.stderr) == streams
    assert outcomes == {"answered", "late"}
    assert escaped == []
    assert "probe-eval" not in {thread.name for thread in threading.enumerate()}
