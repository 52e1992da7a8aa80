"""The hot path in C does what the Python source does: the same rows, fields and calls, on random steps."""

from __future__ import annotations

import itertools
import math
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probe.base import compiled, isolation
from probe.base.isolation import Isolation
from probe.job.instruments.core import recorder as recording_module
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.loop import losses as losses_module
from probe.job.instruments.loop import optimizers as optimizers_module
from probe.job.instruments.loop.losses import Losses
from probe.job.instruments.loop.optimizers import Optimizers
from probe.recording import layout
from probe.recording.layout import NULL_BOOLEAN, NULL_DOUBLE, NULL_INTEGER
from probe.recording.ring import Ring
from probe.recording.tables import BY_NAME, RINGS

pytestmark = pytest.mark.skipif(
    compiled.library() is None, reason=f"the plain source runs here: {compiled.why_plain()}"
)
EDGES = 3000
FORMS = ("plain", "compiled")


class Loop:
    """A recorder in one of the two forms, with its rings, a clock of its own and a log of what it calls."""

    def __init__(self, folder: Path, form: str, monkeypatch: pytest.MonkeyPatch, *, midway: bool) -> None:
        self.form, self.called = form, []  # type: tuple[str, list[Any]]
        folder.mkdir()
        ticks = itertools.count(1_000_000_000, 997)
        self.clock = lambda: next(ticks)
        for module in (recording_module, losses_module, optimizers_module):
            monkeypatch.setattr(module, "_now", self.clock)
            monkeypatch.setattr(module, "ANCHOR_NS", 10**18, raising=False)
        compiled.library().begin(10**18)
        compiled.library().set_clock(self.clock)
        with monkeypatch.context() as patch:
            if form == "plain":
                patch.setattr(compiled, "library", lambda: None)
            self.rings = {table.full_name: Ring(folder / table.full_name, table, 64) for table in RINGS}
            self.isolation = Isolation(lambda name, text: self.called.append((name, "failed")))
        texts = {"": 0}
        strings = SimpleNamespace(intern=lambda text: texts.setdefault(text, len(texts)))
        self.recorder = self.of(Recorder)(
            SimpleNamespace(rings=self.rings, strings=strings), modules_interval=0, midway=midway
        )
        self.recorder.intervals = SimpleNamespace(trains=self.note("trains"))
        self.recorder.listener = SimpleNamespace(
            step_ended=self.note("ended"), step_begins=self.note("begins")
        )
        self.recorder.arm_forward, self.recorder.disarm_forward = self.note("arm"), self.note("disarm")
        self.recorder.start_sampling = lambda: bool(self.recorder.step % 3)
        self.recorder.stop_sampling = self.note("stop sampling")

    def of(self, kind: Any) -> Any:
        """A class in this form."""
        return kind if self.form == "compiled" else kind.plain

    def note(self, name: str) -> Callable[..., None]:
        return lambda *given: self.called.append((name, *given))

    def fields(self, one: Any) -> dict[str, Any]:
        """What the C struct has, of either form."""
        kind = compiled.library().__dict__[type(one).__name__]
        values = {name: getattr(one, name) for name in vars(kind) if not name.startswith("__")}
        plain = (bool, int, float, str, type(None))
        return {name: repr(+value if isinstance(value, bool) else value) for name, value in values.items()
                if isinstance(value, plain) and name != "thread" and not name.endswith("trainer")}

    def bytes(self) -> dict[str, bytes]:
        """Of the rings that the recorder writes."""
        return {name: self.rings[name].path.read_bytes()
                for name in ("python.steps", "python.losses", "python.pulse")}


@pytest.fixture
def forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Loop]]:
    def made(form: str, *, midway: bool = False) -> Loop:
        return Loop(tmp_path / f"{form} {midway}", form, monkeypatch, midway=midway)

    yield made
    compiled.library().set_clock(None)
    monkeypatch.undo()
    compiled.library().begin(recording_module.ANCHOR_NS)


def some_edge(loop: Loop, chance: random.Random) -> None:
    """One edge of a training loop, or something that another instrument or thread sets."""
    recorder, now = loop.recorder, loop.clock()
    loss = chance.choice([chance.uniform(-5, 5), math.nan, math.inf, 1e300, 3.0, None])
    edges: list[Callable[[], object]] = [
        lambda: recorder.data_begins(now),
        lambda: recorder.data_ends(now, now - 500),
        lambda: recorder.batch_arrived(now, now - 70, chance.choice([NULL_INTEGER, 8]), NULL_INTEGER),
        lambda: recorder.batch_arrived(now, now - 70, 4, 128),
        lambda: recorder.forward_begins(now),
        lambda: recorder.backward_begins(now, loss),
        lambda: recorder.backward_begins(now, loss, chance.choice([0.25, 0.5, 1.0, NULL_DOUBLE])),
        lambda: recorder.backward_ends(now, now - 400),
        lambda: loop.called.append(recorder.optimizer_begins(now)),
        lambda: recorder.optimizer_goes_on(now),
        lambda: recorder.optimizer_ends(now),
        lambda: recorder.communicated(now, now - 90, recorder.comm_ns),
        lambda: recorder.communicated(now, 5, 0),
        recorder.expect_forward,
        lambda: (recorder.hold("paused"), recorder.let_go()),
    ]
    ends = [
        lambda: recorder.end_step(now, "optimizer", 0.1, False),
        lambda: recorder.end_step(now, "optimizer", NULL_DOUBLE, chance.choice([True, NULL_BOOLEAN])),
        lambda: recorder.end_step(now, chance.choice(["call", "batch", "update"]), 0.5, NULL_BOOLEAN),
    ]
    settings: dict[str, list[Any]] = {
        "timed_every": [1, 1, 8], "grad_norm": [1.5, math.nan, NULL_DOUBLE], "clip_scaled": [True, False],
        "clip_norm": [1.0], "training_mode": [True, False], "loader": [3], "next_sample": [recorder.step + 5],
        "end_awaited": [True, False, False], "begin_awaited": [True, False, False],
        "forward_armed": [True, False],
        "interval": [None, None, SimpleNamespace(listens=lambda _: bool(recorder.step % 2))],
        "eval_ns": [700], "checkpoint_ns": [0, 30], "loss_scale": [65536.0], "rss_bytes": [1 << 40],
        "optimizer_ns": [recorder.optimizer_ns + 40], "stale_gradients": [False], "explicit": [True, False],
    }
    kind = chance.random()
    if kind < 0.6:
        chance.choice(edges)()
    elif kind < 0.8:
        chance.choice(ends)()
    else:
        name = chance.choice(list(settings))
        setattr(recorder, name, chance.choice(settings[name]))


def same(found: list[tuple[Any, ...]]) -> Any:
    """That both forms left the same bytes, calls and fields after every edge; returns what else there is."""
    plain, in_c = found
    different = [at for at, both in enumerate(zip(plain[2], in_c[2], strict=True)) if both[0] != both[1]]
    first = different[0] if different else 0
    assert not different, (first, set(plain[2][first].items()) ^ set(in_c[2][first].items()))
    assert plain[0] == in_c[0] and plain[1] == in_c[1] and plain[3] == in_c[3]
    return plain[3]


@pytest.mark.parametrize("midway", [False, True])
def test_a_recorder_of_either_form_writes_the_same_bytes(forms: Callable[..., Loop], midway: bool) -> None:
    found = []
    for form in FORMS:
        loop, chance = forms(form, midway=midway), random.Random(7)
        states = []
        for _ in range(EDGES):
            some_edge(loop, chance)
            states.append(loop.fields(loop.recorder))
        found.append((loop.bytes(), loop.called, states, loop.recorder.recent))
    assert len(same(found)) > 50


class Tensor:
    """As much of a tensor as the hooks look at."""

    def __init__(self, value: Any, *, count: int = 1, is_cpu: bool = True) -> None:
        self.value, self.count, self.is_cpu, self._version = value, count, is_cpu, 0
        self.grad_fn = None

    def numel(self) -> int:
        return self.count

    def item(self) -> Any:
        return self.value

    def detach(self) -> Tensor:
        return self

    def reshape(self, _shape: object) -> Tensor:
        return self


class Hooked:
    """Losses and optimizers of one form, with stand-ins for everything that they call."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        recorder, note = loop.recorder, loop.note
        self.losses = loop.of(Losses)(recorder, loop.isolation, values=True)
        self.losses._tensor = Tensor
        self.losses._delivery = SimpleNamespace(send=lambda figures, _then: loop.called.append(figures.value))
        self.losses._share = SimpleNamespace(of=lambda root: root.value / 7 if root.value else 0.5)
        self.optimizers = loop.of(Optimizers)(recorder, loop.isolation)
        self.optimizers._closure_begins, self.optimizers._closure_ends = note("closure"), note("closed")
        self.parameter = Tensor(0.0)
        self.roots: list[Any] = [  # for good: the id of one that was freed could be another's in one form
            Tensor(0.75), Tensor(3.0), Tensor(math.nan), Tensor(2), Tensor("text"), Tensor(1.0, count=4),
            Tensor(0.5, is_cpu=False), [Tensor(4.0), Tensor(5.0)], (), 3,
        ]
        self.watch = SimpleNamespace(
            leader=0, parameter=lambda: self.parameter, version=0, written=self.first("written")
        )
        self.parts = [
            SimpleNamespace(
                due=0, pace=SimpleNamespace(due=0), sample=self.first("sample"),
                backward_begins=self.first("begins"), backward_ends=note("ends"),
                step_begins=self.first("step begins"), step_ends=self.first("step ends"),
            ) for _ in range(2)
        ]
        self.made = [
            SimpleNamespace(param_groups=[{"lr": 0.25, "params": []}]),
            SimpleNamespace(param_groups=[{"lr": 1, "params": []}], _step_supports_amp_scaling=True),
            SimpleNamespace(param_groups=[]),
        ]
        for one in self.made:
            self.optimizers.seen.append(lambda one=one: one)
        self.edges = {
            "begin": loop.isolation.guard("losses", self.losses._begin, traced=False),
            "end": loop.isolation.guard("losses", self.losses._end, traced=False),
            "before": loop.isolation.guard("optimizers", self.optimizers._before),
            "after": loop.isolation.guard("optimizers", self.optimizers._after),
        }

    def first(self, name: str) -> Callable[..., None]:
        """Notes the call, without the objects of this form."""
        return lambda *given: self.loop.called.append((name, len(given), given[1:2] == (False,)))

    def some_hook(self, chance: random.Random) -> None:
        loop, losses, optimizers, recorder = self.loop, self.losses, self.optimizers, self.loop.recorder
        root = chance.choice(self.roots)
        optimizer, due = chance.choice(self.made), recorder.step + chance.choice([0, 0, 3])
        keywords = chance.choice([{}, {}, {}, {"closure": lambda: None}, {"other": 1}])
        kind = chance.random()
        if kind < 0.2:
            self.edges["begin"](root)
            self.edges["end"]()
        elif kind < 0.5:
            changed = self.edges["before"](optimizer, (optimizer,), keywords)
            loop.called.append(changed is None)
            if chance.random() < 0.1:
                self.edges["before"](optimizer, (optimizer,), {})
                self.edges["after"](optimizer, (optimizer,), {})
            self.edges["after"](optimizer, (optimizer,), keywords)
        elif kind < 0.7:
            some_edge(loop, chance)
        else:
            part = chance.choice([None, *self.parts])
            if part is not None:
                part.due = part.pace.due = due
            owner, name, value = chance.choice([
                (losses, "updates", part), (losses, "sums", part), (losses, "roots", part),
                (losses, "on_backward_begin", chance.choice([None, self.first("bad")])),
                (losses, "on_backward_end", chance.choice([None, loop.note("looked")])),
                (losses, "after_backward", chance.choice([None, loop.note("after")])),
                (losses, "values", chance.random() < 0.8), (losses, "_accumulates", False),
                (losses, "_unscaled", chance.choice([None, (id(root), Tensor(9.0), 0.5)])),
                (optimizers, "updates", part), (optimizers, "sums", part), (optimizers, "seeded", part),
                (optimizers, "put_back", chance.choice([None, self.watch])),
                (self.watch, "leader", id(optimizer)), (self.parameter, "_version", recorder.step),
                (optimizers, "judge", chance.choice([None, loop.note("judge")])),
                (optimizers, "before_step", chance.choice([None, self.first("before")])),
                (optimizers, "after_step", chance.choice([None, self.first("after")])),
                (optimizers, "finish_sample", chance.choice([None, self.first("finish")])),
                (optimizers, "sample", chance.choice([None, self.first("sample")])),
                (optimizers, "sample_from_step", due), (optimizers, "_scaled", chance.random() < 0.5),
                (optimizers, "trace_step", chance.choice([None, loop.note("trace")])),
            ])
            setattr(owner, name, value)


def test_losses_and_optimizers_of_either_form_do_the_same(
    forms: Callable[..., Loop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "PATIENCE", 1 << 30)  # so that no hook is switched off
    monkeypatch.setattr(isolation, "say", lambda text: None)
    monkeypatch.setattr(
        optimizers_module, "weakref", SimpleNamespace(ref=lambda one: lambda: one)
    )
    found = []
    for form in FORMS:
        loop, chance = forms(form), random.Random(11)
        hooked, states = Hooked(loop), []
        for _ in range(EDGES):
            hooked.some_hook(chance)
            parts = (loop.recorder, hooked.losses, hooked.optimizers)
            state = {key: value for part in parts for key, value in loop.fields(part).items()}
            states.append({**state, "_stepping": 0})
        failed = dict(loop.isolation.failures)
        found.append((loop.bytes(), loop.called, states, failed))
    assert same(found)["losses"] > 10, "values that no loss has"


def value_for(code: str, chance: random.Random) -> Any:
    if code == "d":
        return chance.choice([0.0, -0.0, math.nan, math.inf, NULL_DOUBLE, 5e-324, 3, True, chance.random()])
    lowest, highest = {"q": (-(2**63), 2**63 - 1), "I": (0, 2**32 - 1), "b": (-128, 127)}[code]
    return chance.choice([lowest, highest, 0, 1, True, chance.randint(lowest, highest)])


def test_every_table_s_rows_are_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for table in RINGS:
        with monkeypatch.context() as patch:
            patch.setattr(compiled, "library", lambda: None)
            plain = Ring(tmp_path / f"{table.full_name} plain", table, 16)
        in_c = Ring(tmp_path / f"{table.full_name} in c", table, 16)
        assert in_c._writer is not None and plain._writer is None
        codes, chance = layout.row_format(layout.stored_columns(table))[1:-1], random.Random(3)
        first = len(codes) // 2
        for _ in range(60):
            row = [value_for(code, chance) for code in codes]
            number = chance.randint(1, 40)
            for ring in (plain, in_c):
                way = number % 4
                if way == 0:
                    ring.append(*row)
                elif way == 1:
                    ring.append_row(row)
                elif way == 2:
                    ring.put(number, *row)
                else:
                    ring.rest(table.columns[first].name)(number, *row[first:])
        assert plain.path.read_bytes() == in_c.path.read_bytes(), table.full_name
        for ring in (plain, in_c):
            ring.close()
        assert plain.written == in_c.written > 10


@pytest.mark.parametrize("row", [
    ("text", 0, 1, 0.0, 1, 0.0), (1, 0, 1, "text", 1, 0.0), (1, 0, 1, 0.0, 128, 0.0),
    (2**63, 0, 1, 0.0, 1, 0.0), (1.5, 0, 1, 0.0, 1, 0.0), (1, 0, 1, 0.0, 1), (1, 0, 1, 0.0, 1, 0.0, 7),
])
def test_a_value_that_no_row_holds_is_the_same_error_and_uses_up_a_number(tmp_path: Path, row: Any) -> None:
    ring = Ring(tmp_path / "ring", BY_NAME["python.losses"], 16)
    with pytest.raises(struct.error):
        ring.append(*row)
    with pytest.raises(struct.error):
        ring.append_row(list(row))
    assert ring.append(1, 0, 1, 0.0, 1, 0.0) == 3
    ring.close()


def test_what_is_written_down_twice_is_the_same() -> None:
    library = compiled.library()
    names = ("NULL_INTEGER", "NULL_DOUBLE", "NULL_BOOLEAN", "NULL_STRING")
    assert [getattr(library, name) for name in names] == [getattr(layout, name) for name in names]
    for name in ("ROUND", "SHADOW_FIRST", "SHADOW_EVERY", "SHADOW_STEPS"):
        assert getattr(library, name) == getattr(recording_module, name)
    assert library.FIRST_STEPS == losses_module.FIRST_STEPS
    assert {"optimizer", "call"} == set(recording_module.MARKED)
    tables = {"STEP_CODES": "python.steps", "LOSS_CODES": "python.losses", "PULSE_CODES": "python.pulse"}
    for name, table in tables.items():  # with other columns the plain source would run
        assert "<" + getattr(library, name) + "q" == layout.row_format(layout.stored_columns(BY_NAME[table]))


@pytest.mark.parametrize("form", FORMS)
def test_a_guard_of_either_form_lets_nothing_out(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        if form == "plain":
            patch.setattr(compiled, "library", lambda: None)
        reports: list[str] = []
        isolated = Isolation(lambda name, text: reports.append(text))
    said: list[str] = []
    monkeypatch.setattr(isolation, "say", said.append)
    seen: list[Any] = []

    def hook(first: Any, second: Any) -> str:
        seen.append((first, second))
        if first == "raise":
            raise ValueError("a fault")
        if first == "exit":
            raise SystemExit(3)
        return "done"

    guarded = isolated.guard("hook", hook, traced=False)
    assert guarded(1, 2) == guarded(1, 2, 3) == "done" and guarded(1) == "done"
    assert seen == [(1, 2), (1, 2), (1, None)]
    with pytest.raises(SystemExit):
        guarded("exit", 0)
    error = ValueError("of the job's")

    def let_through(_first: Any, _second: Any) -> None:
        isolated.let_through(error)

    with pytest.raises(ValueError, match="of the job's"):
        isolated.guard("other", let_through, traced=False)(1, 2)
    isolated.mute()
    assert guarded(1, 2) is None
    isolated.unmute()
    seen.clear()
    assert [guarded("raise", 0) for _ in range(5)] == [None] * 5 and len(seen) == 3
    assert reports == ["ValueError: a fault"] * 2
    assert said == ["hook failed 3 times and is switched off: ValueError: a fault"]
    assert guarded(1, 2) is None and len(seen) == 3, "it is off"
    isolated.end()
    assert isolated.guard("late", hook, traced=False)(1, 2) is None
