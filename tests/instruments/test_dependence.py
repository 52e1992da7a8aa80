"""What the outputs depend on: each mistake is measured, and what is meant so is not taken for one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from agent.asking import query, without_times
from agent.nursery import Forked
from harness import Place
from probe.job.instruments.dependence.questions import Row, Scene, _rows
from probe.job.instruments.loop.forward import RootCall

BATCH, LENGTH, WORDS, WIDTH = 6, 10, 20, 8


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """The questions are asked in a process of their own, and put nothing back."""
    path = torch.backends.mha.get_fastpath_enabled()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        state = random.getstate()
        yield
        random.setstate(state)
    torch.backends.mha.set_fastpath_enabled(path)


def asked(model: Any, *args: Any, target: Any = None, samples: int | None = BATCH) -> dict[str, Row]:
    """The rows of an audit by question (and argument)."""
    output = model(*args)
    first = None
    if target is not None:
        classes = output.transpose(1, 2) if output.shape[1] == WORDS else output
        first = F.cross_entropy(classes.reshape(-1, WORDS), target.reshape(-1)).grad_fn
    call = RootCall(model, args, {}, None, None, None)
    scene = Scene(call, first, samples, True, lambda _: None)
    return {f"{row['question']} {row.get('subject') or ''}".strip(): row for row in _rows(torch, scene, 1e18)}


class Reads(nn.Module):
    """Tokens to outputs by `how`, which gets the module and the embedded tokens."""

    def __init__(self, how: Callable[..., torch.Tensor], positions: bool = True) -> None:
        super().__init__()
        self.how = how
        self.embed, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.attend = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.recur = nn.LSTM(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.last = nn.Linear(WIDTH, WORDS)
        self.positions = positions

    def forward(self, tokens: torch.Tensor, *more: Any) -> torch.Tensor:
        x = self.embed(tokens)
        if self.positions:
            x = x + self.places(torch.arange(tokens.shape[1]))
        return self.last(x + self.how(self, x, *more))


def attention(mask: torch.Tensor | None) -> Callable[..., torch.Tensor]:
    return lambda model, x: model.attend(x, x, x, attn_mask=mask, need_weights=False)[0]


def tokens(first: int = 1) -> torch.Tensor:
    return torch.randint(first, WORDS, (BATCH, LENGTH + 1))


LATER = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)


@pytest.mark.parametrize(("mask", "leaks", "after"), [
    (LATER, False, True), (LATER.T, True, False),
    pytest.param(None, True, True, marks=pytest.mark.campaign),
])
def test_a_language_model_that_sees_later_tokens_is_told_from_a_causal_one(
    mask: torch.Tensor | None, leaks: bool, after: bool
) -> None:
    text = tokens()
    row = asked(Reads(attention(mask)), text[:, :-1], target=text[:, 1:], samples=None)["later argument 0"]
    assert (row["leak"] > 0, row["effect_ratio"] > 0) == (leaks, after)
    assert (row["samples"], row["positions"], row["axis"]) == (BATCH, LENGTH, 0)
    assert row.get("module") == ("attend" if leaks else None)


@pytest.mark.parametrize(("left", "leaks"), [(2, False), (1, True)])
def test_a_convolution_whose_classes_come_before_the_positions_is_asked_what_it_sees(
    left: int, leaks: bool
) -> None:
    text = tokens()
    net = nn.Sequential(
        nn.Embedding(WORDS, 8), _Turned(), nn.ConstantPad1d((left, 2 - left), 0.0), nn.Conv1d(8, WORDS, 3)
    )
    row = asked(net, text[:, :-1], target=text[:, 1:], samples=None)["later argument 0"]
    assert (row["leak"] > 0, row["effect"] > 0) == (leaks, True)
    assert row.get("class") == ("Conv1d" if leaks else None)


def test_features_as_many_as_there_are_positions_are_no_positions_beside_the_logits() -> None:
    text = tokens()
    causal = Reads(attention(LATER))
    turned = nn.Linear(WORDS, LENGTH)

    class Summed(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            logits = causal(x)
            return logits, turned(logits).cumsum(1).flip(1)[:, :3]

    logits = causal(text[:, :-1])
    first = F.cross_entropy(logits.reshape(-1, WORDS), text[:, 1:].reshape(-1)).grad_fn
    call = RootCall(Summed(), (text[:, :-1],), {}, None, None, None)
    scene = Scene(call, first, None, True, lambda _: None)
    rows = {row["question"]: row for row in _rows(torch, scene, 1e18)}
    assert rows["later"]["leak"] == 0.0


class _Turned(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2)


def test_time_may_come_first_and_is_no_mixing_of_samples() -> None:
    text = tokens().T.contiguous()
    model = Reads(lambda model, x: model.recur(x)[0], positions=False)
    rows = asked(model, text[:-1], target=text[1:], samples=None)
    assert rows["later argument 0"]["leak"] == 0.0
    assert rows["samples"]["leak"] == 0.0
    assert (rows["samples"]["samples"], rows["samples"]["axis"]) == (BATCH, 1)


def test_only_places_whose_targets_count_must_not_see_later_ones() -> None:
    """A prefix language model: within the prefix each position sees the whole prefix."""
    text = tokens()
    prefix = LENGTH // 2 + 1
    mask = LATER.clone()
    mask[:prefix, :prefix] = False
    target = text[:, 1:].clone()
    target[:, : prefix - 1] = -100
    row = asked(Reads(attention(mask)), text[:, :-1], target=target, samples=None)["later argument 0"]
    assert (row["leak"], row["leak_ratio"]) == (0.0, 0.0)


def test_attention_over_the_batch_is_told_from_other_ways_in_which_samples_meet() -> None:
    text = tokens()[:, :-1]

    def turned(model: Any, x: torch.Tensor) -> Any:
        x = x.transpose(0, 1)
        return model.attend(x, x, x, need_weights=False)[0].transpose(0, 1)

    row = asked(Reads(turned), text)["samples"]
    assert row["leak"] > 0
    assert (row["module"], row["attends"], row["effect_ratio"]) == ("attend", True, 0.0)
    whole = Reads(lambda model, x: x.mean((0, 1)) + attention(None)(model, x))
    row = asked(whole, text)["samples"]
    assert (row["leak"] > 0, row["attends"], row["effect_ratio"]) == (True, False, 1.0)
    assert asked(Reads(attention(None)), text)["samples"]["leak"] == 0.0


class Columns(nn.Module):
    """A token for each column of a table, read by two attentions, and one output for each row."""

    def __init__(self, *first: bool) -> None:
        super().__init__()
        self.columns = nn.ModuleList(nn.Embedding(size, WIDTH) for size in (3, 9, 40, 5))
        self.blocks = nn.ModuleList(nn.MultiheadAttention(WIDTH, 2, batch_first=one) for one in first)
        self.last = nn.Linear(4 * WIDTH, 1)

    def forward(self, table: torch.Tensor) -> torch.Tensor:
        x = torch.stack([column(table[:, at]) for at, column in enumerate(self.columns)], 1)
        for block in self.blocks:
            x = x + block(x, x, x, need_weights=False)[0]
        return self.last(x.flatten(1))


@pytest.mark.parametrize(("first", "leaks", "mixed"), [
    ((False, False), True, 0.0), ((False, True), True, 1.0),
    pytest.param((True, True), False, None, marks=pytest.mark.campaign),
])
def test_attention_over_the_batch_is_told_where_only_the_model_knows_the_positions(
    first: tuple[bool, bool], leaks: bool, mixed: float | None
) -> None:
    table = torch.stack([torch.arange(BATCH) % size for size in (3, 9, 40, 5)], 1)
    found = asked(Columns(*first), table)
    row = found["samples"]
    assert (row["leak"] > 0, row["effect_ratio"]) == (leaks, mixed)
    assert "refused" not in row


def test_a_recurrence_over_the_batch_reads_no_position_before() -> None:
    text = tokens()[:, :-1]
    row = asked(Reads(lambda model, x: model.recur(x)[0]), text)["samples"]
    assert row["leak"] > 0 and (row["class"], row["effect_ratio"]) == ("LSTM", 0.0)
    along = asked(Reads(lambda model, x: model.recur(x.transpose(0, 1))[0].transpose(0, 1)), text)
    assert along["samples"]["leak"] == 0.0


def test_a_question_that_fails_leaves_the_others() -> None:
    class Refuses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.calls = nn.Linear(WIDTH, 1), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            if self.calls == 4:  # the first of the question about the inputs
                raise IndexError("index out of range in self")
            return self.last(x)

    found = asked(Refuses(), torch.randn(BATCH, WIDTH))
    assert found["inputs"]["refused"] == "IndexError: index out of range in self"
    assert found["samples"]["leak"] == 0.0


def test_normalization_by_the_batch_is_no_mixing_of_samples() -> None:
    normed = Reads(lambda model, x: model.norm(x.transpose(1, 2)).transpose(1, 2))
    assert asked(normed, tokens()[:, :-1])["samples"]["leak"] == 0.0


def test_dimensions_that_cannot_be_told_apart_are_not_asked_about() -> None:
    text = tokens()[:, :-1]
    assert "refused" in asked(Reads(attention(None)), text, samples=None)["samples"]
    assert "refused" in asked(Reads(attention(None)), text, samples=BATCH + 7)["samples"]
    assert "refused" in asked(Reads(attention(None), positions=False), text[:, :BATCH])["samples"]


@pytest.mark.parametrize(("invert", "use", "leaks", "effect"), [
    (False, True, False, True), (True, True, True, False), (False, False, True, True),
])
def test_a_padding_mask_that_is_inverted_or_ignored_is_measured(
    invert: bool, use: bool, leaks: bool, effect: bool
) -> None:
    text = tokens()[:, :-1]
    for number in range(BATCH):
        text[number, 4 + number :] = 0

    def attend(model: Any, x: torch.Tensor, mask: torch.Tensor) -> Any:
        hidden: torch.Tensor | None = mask if invert else ~mask
        hidden = hidden if use else None
        return model.attend(x, x, x, key_padding_mask=hidden, need_weights=False)[0].nan_to_num()

    row = asked(Reads(attend), text, text != 0)["padding argument 1"]
    assert (row["leak"] > 0, row["effect"] > 0) == (leaks, effect)


def test_an_order_that_does_not_matter_is_noticed() -> None:
    text = tokens()[:, :-1]
    for positions in (False, True):
        row = asked(Reads(attention(None), positions=positions), text)["order argument 0"]
        assert (row["leak"] > 0.01 * row["effect"]) is positions
        assert (row["leak"] < 1e-4 * row["effect"]) is not positions


def test_a_model_that_gives_the_loss_of_its_batch_is_not_said_to_ignore_its_input() -> None:
    class Twins(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(WIDTH, WIDTH)

        def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            correlation = self.project(one).T @ self.project(other) / len(one)
            return (correlation - torch.eye(WIDTH)).pow(2).sum()

    rows = asked(Twins(), torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH))
    assert rows["input argument 0"]["effect"] > 0 and rows["input argument 1"]["effect"] > 0
    assert "input all arguments" not in rows


def test_an_argument_without_effect_is_noticed() -> None:
    class Conditioned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
            return self.last(x + 0.0 * condition)

    rows = asked(Conditioned(), torch.randn(BATCH, 4), torch.randn(BATCH, 4))
    assert (rows["input argument 0"]["effect"] > 0, rows["input argument 1"]["effect"]) == (True, 0.0)
    assert rows["input argument 1"]["values"]


@pytest.mark.parametrize("kept", [True, False])
def test_dropout_that_is_drawn_anew_in_backward_is_noticed(kept: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 3))

        def forward(self, x: torch.Tensor) -> Any:
            return checkpoint(self.part, x, use_reentrant=False, preserve_rng_state=kept)

    rows = asked(Checkpointed(), torch.randn(BATCH, 4))
    row = next(row for name, row in rows.items() if "recomputed" in name)
    assert (row["leak"] == 0.0) is kept


def test_a_model_that_answers_differently_each_time_is_not_judged() -> None:
    class Counts(nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x * self.calls

    assert list(asked(Counts(), torch.randn(BATCH, 4))) == ["all"]


def test_the_audit_changes_nothing_of_the_training(fork: Callable[..., Forked], place: Place) -> None:
    command = ("dependent_outputs", "--steps", "24", "--inverted")
    plain = fork(*command, watched=False)
    job = fork(*command, "--hold")
    assert without_times(job.result()) == without_times(plain.result())
    sql = (
        "SELECT question, leak > 0, effect > 0, samples, positions FROM python.dependence "
        "WHERE question NOT IN ('input', 'order') ORDER BY question"
    )
    assert query(place, job.pid, sql) == [
        ["gradient", None, True, None, None], ["padding", True, False, 8, 12],
        ["recomputed", False, True, None, None], ["samples", False, True, 8, 12],
    ]
    sql = "SELECT DISTINCT step, refused, held_ms > 0 FROM python.dependence"
    assert query(place, job.pid, sql) == [[8, None, True]]


class _TurnedRound(torch.autograd.Function):
    """The same forwards, the opposite backwards."""

    @staticmethod
    def forward(_ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return -gradient


class _Sign(torch.autograd.Function):
    """A step forwards, a straight line backwards."""

    @staticmethod
    def forward(_ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.sign()

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def _hooked(value: torch.Tensor) -> torch.Tensor:
    if value.requires_grad:
        value.register_hook(torch.neg)
    return value


class Headed(nn.Module):
    """A network with something between its layers and its head, and an adversary if `both`."""

    def __init__(self, between: Callable[[torch.Tensor], torch.Tensor], both: bool = False) -> None:
        super().__init__()
        self.between, self.both = between, both
        self.body = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 16), nn.GELU())
        self.head, self.task = nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, given: torch.Tensor) -> Any:
        value = self.body(given)
        head = self.head(self.between(value))
        return (self.task(value), head) if self.both else head


@pytest.mark.parametrize("between", [_TurnedRound.apply, _hooked, lambda value: 2 * value.detach() - value])
def test_a_gradient_that_is_turned_round_is_told_from_the_right_ones_behind(between: Any) -> None:
    row = asked(Headed(between), torch.randn(BATCH, WIDTH))["gradient body.0.weight"]
    assert row["module"] == "body.2.weight" and row["leak_ratio"] == pytest.approx(2 / 3)
    assert row["leak"] == pytest.approx(-1, abs=0.2) and row["effect"] == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize(("made", "right"), [
    (lambda: Headed(lambda value: value), 1.0), (lambda: Headed(_TurnedRound.apply, both=True), 0.5),
    (lambda: Headed(_Sign.apply), 1 / 3),
])
def test_no_gradient_is_called_turned_round_that_is_right_or_is_so_for_one_output_or_is_no_derivative(
    made: Callable[[], Headed], right: float
) -> None:
    torch.manual_seed(0)  # with some weights a sign is right for all parameters, by chance
    row = asked(made(), torch.randn(BATCH, WIDTH))["gradient"]
    assert row["leak_ratio"] == 0 and row["effect_ratio"] == pytest.approx(right)
