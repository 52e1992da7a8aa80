"""What the graph of a loss says about it, and the fingerprints of batches."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from probe.job.instruments.core.delivery import Delivery
from probe.job.instruments.loop.batch_history import Batches, samples_in_pass
from probe.job.instruments.loop.data import content_digest, fingerprint, shuffling
from probe.job.instruments.tensors import loss_figures
from probe.job.instruments.tensors.input_targets import relation
from probe.job.instruments.tensors.loss_functions import (
    Found,
    LossFunctions,
    _before_broadcast,
    _prediction,
    _scalar,
    behind,
    functions_in,
)
from probe.job.instruments.tensors.model_inputs import _neighbours, some_of, thinned
from probe.job.instruments.tensors.output_bounds import Bounds, bounds_of
from probe.recording.layout import NULL_BOOLEAN, NULL_INTEGER
from probe.recording.tables import BY_NAME

LAYER = torch.nn.Linear(4, 5)
INPUT = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
TARGET = torch.arange(8) % 5


def found(loss: Any) -> list[Found]:
    return functions_in(loss.grad_fn)


@pytest.mark.parametrize(("loss", "function", "reduction", "operations"), [
    (lambda out: F.cross_entropy(out, TARGET), "cross_entropy", "mean", ["LogSoftmax"]),
    (lambda out: F.cross_entropy(out.softmax(1), TARGET), "cross_entropy", "mean", ["LogSoftmax", "Softmax"]),
    (lambda out: F.cross_entropy(out.softmax(1).log(), TARGET), "cross_entropy", "mean",
     ["LogSoftmax", "Log", "Softmax"]),
    (lambda out: F.cross_entropy(out, TARGET, reduction="sum"), "cross_entropy", "sum", ["LogSoftmax"]),
    (lambda out: F.cross_entropy(out, TARGET, reduction="sum") / 8, "cross_entropy", "other", ["LogSoftmax"]),
    (lambda out: F.cross_entropy(out, TARGET, reduction="none").mean(), "cross_entropy", "mean",
     ["LogSoftmax"]),
    (lambda out: F.cross_entropy(out, TARGET, reduction="sum") * 2.0, "cross_entropy", "sum", ["LogSoftmax"]),
    (lambda out: F.mse_loss(out.relu(), torch.zeros(8, 5)), "mse_loss", "mean", ["Relu"]),
    (lambda out: (out - torch.zeros(8, 5)).pow(2).mean(), "mse_loss (written out)", "mean", []),
    (lambda out: (torch.zeros(8, 5) - out).abs().sum(), "l1_loss (written out)", "sum", []),
    (lambda out: F.binary_cross_entropy_with_logits(out.view(-1), torch.ones(40)),
     "binary_cross_entropy_with_logits", "mean", []),
])
def test_the_graph_names_the_loss_function_its_reduction_and_what_is_behind_it(
    loss: Callable[[Any], Any], function: str, reduction: str, operations: list[str]
) -> None:
    (one,) = found(loss(LAYER(INPUT)))
    assert (one.function, one.reduction) == (function, reduction)
    made = behind(one.node)
    assert (made.operations, made.layer) == (operations, "Addmm")
    assert made.rows == NULL_INTEGER


def test_dropout_behind_the_last_layer_is_told_from_other_products() -> None:
    output = LAYER(INPUT)
    (dropped,) = found(F.cross_entropy(F.dropout(output, 0.3), TARGET))
    if hasattr(dropped.node, "_raw_saved_target") and loss_figures.kept(dropped.node, "target") is not None:
        assert behind(dropped.node).operations == ["LogSoftmax", "Dropout"]
    for factor in (torch.tensor(2.0), torch.rand(8, 5), torch.ones(8, 5), INPUT[:, :1]):
        (one,) = found(F.cross_entropy(output * factor, TARGET))
        assert behind(one.node).operations == ["LogSoftmax", "Mul"]


@pytest.mark.parametrize(("taken", "used"), [
    (lambda out: (out[:1], TARGET[:1]), 1), (lambda out: (out[0], TARGET[0]), 1),
    (lambda out: (out[2:5], TARGET[2:5]), 3),
])
def test_a_part_of_the_batch_that_alone_reaches_the_loss_is_counted(
    taken: Callable[[Any], Any], used: int
) -> None:
    (one,) = found(F.cross_entropy(*taken(LAYER(INPUT))))
    made = behind(one.node)
    assert (made.rows, made.rows_used) == (8, used)


PIXELS = torch.nn.Conv2d(1, 5, 1)(torch.ones(2, 1, 4, 6))
"""Outputs [N, C, H, W] of a convolution with 5 classes."""
POSITIONS = torch.nn.Linear(3, 5)(torch.ones(2, 7, 3))
"""Outputs [N, T, C] of a layer with 5 classes."""


@pytest.mark.parametrize(("logits", "shape"), [
    (lambda: PIXELS.reshape(-1, 5), (2, 5, 4, 6)),
    (lambda: torch.nn.Conv1d(1, 5, 1)(torch.ones(2, 1, 10)).view(-1, 5), (2, 5, 10)),
    (lambda: POSITIONS.view(2, 5, 7), (2, 7, 5)),
    (lambda: PIXELS.permute(0, 2, 3, 1).reshape(-1, 5), None),
    (lambda: torch.nn.Conv2d(1, 5, 1)(torch.ones(2, 1, 5, 6)).permute(0, 2, 3, 1).reshape(-1, 5), None),
    (lambda: PIXELS.flatten(2), None),
    (lambda: PIXELS[:, :, :1, :1].flatten(1), None),
    (lambda: POSITIONS.view(-1, 5), None),
    (lambda: POSITIONS.transpose(1, 2), None),
    (lambda: torch.nn.Linear(3, 20)(torch.ones(2, 5, 3)).view(-1, 5), None),
    (lambda: PIXELS, None),
])
def test_a_view_that_mixes_the_classes_with_another_axis_is_told_from_one_that_keeps_them(
    logits: Callable[[], Any], shape: tuple[int, ...] | None
) -> None:
    output = logits()
    target = torch.zeros(output.shape[:1] + output.shape[2:], dtype=torch.long)
    (one,) = found(F.cross_entropy(output, target))
    assert behind(one.node).mixed == shape


@pytest.mark.parametrize(("weights", "product"), [
    (torch.rand(6), (6, 6)), (torch.rand(6, 1), None), (torch.rand(1), None), (torch.tensor(2.0), None),
])
@pytest.mark.parametrize("loss", [
    lambda output, target: F.binary_cross_entropy_with_logits(output, target, reduction="none"),
    lambda output, target: (output - target) ** 2,
    lambda output, target: 0.5 * (output - target).abs() + 0.0,
])
def test_weights_that_spread_each_loss_over_all_samples_are_told_from_those_of_its_shape(
    loss: Callable[..., Any], weights: Any, product: tuple[int, ...] | None
) -> None:
    values = loss(torch.nn.Linear(3, 1)(torch.rand(6, 3)), torch.rand(6, 1).round())
    (one,) = found((values * weights).mean())
    assert one.weighted == product


def test_a_difference_that_is_broadcast_is_found_in_a_loss_of_any_form() -> None:
    output, target = torch.nn.Linear(3, 1)(torch.rand(6, 3)), torch.rand(6)
    for error in (output - target, target - output):
        (one,) = found(((1 + error * error).sqrt() - 1).mean())
        assert (one.function, _before_broadcast(one.node)) == ("difference", (6, 1))
    error = output - target[:, None]
    assert found(((1 + error * error).sqrt() - 1).mean()) == []


def test_a_difference_of_two_predictions_is_no_loss_against_a_target() -> None:
    output = LAYER(INPUT)
    assert found((output[:4] - output[4:]).pow(2).mean()) == []


def test_label_smoothing_is_told_from_a_weighted_loss() -> None:
    output = LAYER(INPUT)
    (smoothed,) = found(F.cross_entropy(output, TARGET, label_smoothing=0.9))
    assert smoothed.smoothing == pytest.approx(0.9)
    (weighted,) = found(0.1 * F.cross_entropy(output, TARGET))
    assert weighted.smoothing == 0.0


def test_a_softmax_in_a_loss_of_another_kind_is_found_with_its_dimension() -> None:
    chosen = LAYER(INPUT).softmax(0).log().gather(1, TARGET[:, None])
    (one,) = found(-(chosen * torch.ones(8, 1)).mean())
    assert one.function == "softmax"
    assert one.node._saved_dim == 0


def test_no_hook_of_the_job_runs_when_a_saved_tensor_is_looked_at() -> None:
    ran: list[int] = []

    def unpack(kept: Any) -> Any:
        ran.append(1)
        return kept

    output = LAYER(INPUT)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        hooked = F.cross_entropy(output, TARGET) / torch.tensor(2.0)
    (one,) = found(hooked)
    assert loss_figures.kept(one.node, "target") is None
    assert ran == []
    plain = F.cross_entropy(output, TARGET)
    kept = loss_figures.kept(plain.grad_fn, "target")
    if hasattr(plain.grad_fn._raw_saved_target, "unpack_hook"):  # older versions cannot tell
        assert torch.equal(kept, TARGET)
    else:
        assert kept is None


def test_a_look_changes_neither_gradients_nor_random_numbers() -> None:
    gradients = []
    for look in (False, True):
        torch.manual_seed(3)
        LAYER.zero_grad()
        loss = F.cross_entropy(F.dropout(LAYER(INPUT)), TARGET)
        if look:
            (one,) = found(loss)
            behind(one.node)
            loss_figures.kept(one.node, "self")
        loss.backward()
        gradients.append((LAYER.weight.grad.clone(), torch.rand(3)))
    assert all(torch.equal(left, right) for left, right in zip(*gradients, strict=True))


def test_a_part_of_a_tensor_is_small_and_spread_over_its_samples() -> None:
    tensor = torch.arange(64 * 3 * 200 * 200, dtype=torch.float32).view(64, 3, 200, 200)
    looked_at = thinned(some_of(tensor))
    assert looked_at.numel() <= 4096
    assert looked_at.max() > tensor.numel() // 2
    assert torch.equal(thinned(some_of(torch.arange(10.0))), torch.arange(10.0)[:8])


def test_equal_batches_have_equal_fingerprints_in_every_process_and_others_do_not() -> None:
    drawn = [torch.randperm(10_000)[:256].tolist() for _ in range(500)]
    assert len({fingerprint(one) for one in drawn}) == 500
    assert fingerprint(list(drawn[0])) == fingerprint(drawn[0])
    code = f"import sys; sys.path = {sys.path!r}\n" \
        f"from probe.job.instruments.loop.data import fingerprint; print(fingerprint({drawn[0]!r}))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(said) == fingerprint(drawn[0])
    assert fingerprint(None) == fingerprint(["a", "b"]) == fingerprint([]) == NULL_INTEGER


def test_equal_contents_have_equal_digests_and_what_would_wait_or_cost_has_none() -> None:
    batches = [[torch.randn(8, 4), torch.randint(9, (8,))] for _ in range(100)]
    assert len({content_digest(one) for one in batches}) == 100
    assert content_digest([one.clone() for one in batches[0]]) == content_digest(batches[0])
    zeros, spot = torch.zeros(64, 28, 28), torch.zeros(64, 28, 28)
    spot[31, 13, 14] = 1.0
    assert content_digest([zeros]) != content_digest([spot])
    broken = torch.full((4, 4), float("nan"))
    assert content_digest([broken]) == content_digest([broken.clone()]) != NULL_INTEGER
    without: list[list[Any]] = [
        [], [torch.zeros(1 << 21)], [torch.zeros(4, 4).T[:, 1:]], [torch.empty(4, device="meta")],
        [torch.ones(4).to_sparse()], [torch.ones(4, dtype=torch.complex64)],
    ]
    assert [content_digest(one) for one in without] == [NULL_INTEGER] * len(without)


def test_it_is_known_whether_a_sampler_shuffles() -> None:
    class Own:
        shuffle = "unknown"

    loader: Any = DataLoader(list(range(10)), shuffle=True)
    assert shuffling(loader.sampler) == 1
    assert shuffling(SequentialSampler(range(10))) == 0
    assert shuffling(BatchSampler(RandomSampler(range(10)), 2, drop_last=False)) == NULL_BOOLEAN
    assert shuffling(torch.utils.data.DistributedSampler(range(10), 2, 0, shuffle=True)) == 1
    assert shuffling(Own()) == NULL_BOOLEAN


def compared(inputs: list[Any], loss: Any, ignored: int | None = None) -> dict[str, float]:
    """The relation of inputs and the target that the loss function saved, without what is missing."""
    target = loss_figures.kept(functions_in(loss.grad_fn)[0].node, "target")
    found = relation(torch, inputs, target, ignored, loss.grad_fn)
    names = ("same", "next", "second", "padding", "r", "column", "later")
    known = [] if found is None else found.tolist()
    return {name: value for name, value in zip(names, known, strict=False) if value == value}


class Reader(torch.nn.Module):
    """A language model of one layer of attention."""

    def __init__(self, attend: Callable[[Any], Any]) -> None:
        super().__init__()
        self.tokens, self.head = torch.nn.Embedding(50, 8), torch.nn.Linear(8, 50)
        self.attend = attend

    def forward(self, x: Any) -> Any:
        return self.head(self.attend(self.tokens(x)[:, None]).squeeze(1)).flatten(0, 1)


def written_out(x: Any) -> Any:
    scores = x @ x.transpose(-1, -2)
    closed = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool).triu(1)
    return scores.masked_fill(closed, float("-inf")).softmax(-1) @ x


TEXT = torch.randint(1, 50, (4, 13), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("attend", "later"), [
    (lambda x: F.scaled_dot_product_attention(x, x, x), {"later": 1.0}),
    (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), {"later": 0.0}),
    (lambda x: F.scaled_dot_product_attention(
        x, x, x, attn_mask=torch.ones(12, 12).tril().bool()), {"later": 0.0}),
    (lambda x: (x @ x.transpose(-1, -2)).softmax(-1) @ x, {"later": 1.0}),
    (written_out, {"later": 0.0}),
    (lambda x: x.cumsum(-2), {}),
])
def test_a_language_model_is_known_by_its_targets_and_whether_it_sees_them_by_its_attention(
    attend: Callable[[Any], Any], later: dict[str, float]
) -> None:
    x, y = TEXT[:, :-1], TEXT[:, 1:]
    found = compared([x], F.cross_entropy(Reader(attend)(x), y.reshape(-1)))
    assert found.pop("same") < 0.5
    assert found.pop("second") < 0.5
    assert found == {"next": 1.0, "padding": 0.0, **later}


@pytest.mark.parametrize("turned", [False, True])
def test_targets_that_are_shifted_twice_are_told_from_the_next_tokens(turned: bool) -> None:
    x, y = TEXT[:, :-2], TEXT[:, 2:]
    x, y = (x.T.contiguous(), y.T) if turned else (x, y)
    logits = Reader(lambda one: one)(x)
    found = compared([x], F.cross_entropy(logits, y.reshape(-1)))
    assert found["second"] == 1.0
    assert found["next"] < 0.5


def test_a_loss_that_leaves_out_the_first_positions_is_not_called_shifted_twice() -> None:
    x, y = TEXT[:, :-1], TEXT[:, 2:]
    scores = Reader(lambda one: one)(x).view(*x.shape, -1)
    right = F.cross_entropy(scores[:, 1:].flatten(0, 1), y.flatten())
    assert "second" not in compared([x], right)
    wrong = F.cross_entropy(scores[:, :-1].flatten(0, 1), y.flatten())
    assert compared([x], wrong)["second"] == 1.0


def test_targets_that_are_the_input_are_told_by_place_column_and_padding() -> None:
    x = TEXT[:, :-1]
    logits = Reader(lambda one: one)(x)
    copied = F.cross_entropy(logits, x.reshape(-1))
    assert compared([x], copied)["same"] == 1.0
    behind_a_source = compared([TEXT[:, :10], x], copied)
    assert behind_a_source == {"padding": 0.0}, "a decoder may shift its input itself"
    padded = TEXT.clone()
    padded[2, 9:], padded[3, 4:] = 0, 0  # most rows are full
    x, y = padded[:, :-1], padded[:, 1:]
    logits = Reader(lambda one: one)(x)
    share = compared([x], F.cross_entropy(logits, y.reshape(-1)))["padding"]
    assert share == pytest.approx((4 + 9) / 48)
    for length in (10, 13):  # the source may be as long as the decoder's input and its first target
        of_decoder = compared([TEXT[:, :length], x], F.cross_entropy(logits, y.reshape(-1)))
        assert of_decoder == {"padding": pytest.approx((4 + 9) / 48)}
    left_out = F.cross_entropy(logits, y.reshape(-1), ignore_index=0)
    assert compared([x], left_out, 0)["padding"] == 0.0
    table = torch.randn(64, 5, generator=torch.Generator().manual_seed(2))
    output = torch.nn.Linear(5, 1)(table)
    scaled = compared([table], F.mse_loss(output, 3 * table[:, 2:3] - 1))
    assert scaled == {"r": pytest.approx(1.0), "column": 2.0}
    assert compared([table], F.mse_loss(output, torch.randn(64, 1)))["r"] < 0.9


def test_the_highest_index_of_the_last_batches_is_known_by_loader() -> None:
    batches = Batches()
    for indices in ([5, 90, 3], [7, 8], ["a", "b"], None, [[1, 2]], [6, 999]):
        batches.arrived(indices, None, [], 0, 1, 0, "Rows#0")
    batches.arrived([12], None, [], 0, 1, 0, "Rows#1")
    batches.arrived(None, None, [], 0, 1, 0, "Rows#1")
    assert batches.highest() == {"Rows#0": 999, "Rows#1": 12}


CLASSES, FEATURES = torch.nn.Parameter(torch.randn(5, 4)), torch.randn(8, 4, requires_grad=True)


def cosines() -> Any:
    return F.linear(F.normalize(FEATURES), F.normalize(CLASSES))


@pytest.mark.parametrize(("made", "expected"), [
    (lambda: cosines(), Bounds(-1.0, 1.0, "cosine")),
    (lambda: 16 * cosines(), Bounds(-16.0, 16.0, "cosine")),
    (lambda: cosines() / 0.5, Bounds(-2.0, 2.0, "cosine")),
    (lambda: F.cosine_similarity(FEATURES[:, None], CLASSES[None], dim=-1), Bounds(-1.0, 1.0, "cosine")),
    (lambda: F.normalize(FEATURES.relu()) @ F.normalize(FEATURES * 2)[:5].T,
     Bounds(-1.0, 1.0, "cosine of outputs")),
    (lambda: LAYER(INPUT).tanh(), Bounds(-1.0, 1.0, "Tanh")),
    (lambda: 30 * (LAYER(INPUT) / 30).tanh(), Bounds(-30.0, 30.0, "Tanh")),
    (lambda: F.hardtanh(LAYER(INPUT), -2.0, 3.0), Bounds(-2.0, 3.0, "Hardtanh")),
    (lambda: cosines() * torch.ones((), requires_grad=True), None),
    (lambda: cosines() + LAYER.bias, None),
    (lambda: F.linear(F.normalize(FEATURES), CLASSES), None),
    (lambda: LAYER(INPUT), None),
])
def test_logits_are_bounded_by_what_makes_them_and_by_nothing_that_is_learned(
    made: Callable[[], Any], expected: Bounds | None
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the job would see it
        (one,) = found(F.cross_entropy(made(), TARGET))
        bounds = bounds_of(_prediction(one.node), loss_figures.operation, _scalar)
    assert bounds == expected


@pytest.mark.parametrize("loss", [
    lambda out: F.mse_loss(out, torch.full((8, 5), 300.0)), lambda out: F.l1_loss(out, out.detach() + 300),
    lambda out: ((out - 300) ** 2).mean(), lambda out: (300 - out).abs().mean(),
])
def test_the_error_of_a_regression_is_known_also_where_it_is_written_out(loss: Callable[[Any], Any]) -> None:
    (one,) = found(loss(LAYER(INPUT)))
    with torch.no_grad():
        figures = loss_figures.figures(torch, one.node, loss_figures.kept(one.node, "target"), 0)
    if not hasattr(one.node, "_raw_saved_self") or loss_figures.kept(one.node, "self") is None:
        assert figures is None, "older versions cannot tell hooks"
    else:
        assert float(figures[-1]) == pytest.approx(300, rel=0.02)


def test_a_loss_that_saved_no_target_is_recorded_beside_the_inputs_it_was_made_of() -> None:
    rows: list[tuple[Any, ...]] = []
    ring, pace = SimpleNamespace(append=lambda *row: rows.append(row)), SimpleNamespace(took=lambda _: None)
    recorder: Any = SimpleNamespace(
        step=3, micro_step=0, cost_ns=0, intern=lambda _: 1, rings={"python.loss_functions": ring}
    )
    isolation: Any = SimpleNamespace(guard=lambda _, function: function)
    looking = LossFunctions(recorder, isolation, Delivery(), pace)  # type: ignore[arg-type]
    looking.inputs_of = lambda _: [INPUT]
    looking.sample(((LAYER(INPUT) - 300) ** 2).mean(), False)
    names = [column.name for column in BY_NAME["python.loss_functions"].columns]
    assert [len(row) for row in rows] == [len(names)]
    assert dict(zip(names, rows[0], strict=True))["error_rms"] == pytest.approx(300, rel=0.02)


@pytest.mark.parametrize(("made", "samples"), [
    ({}, 50), ({"shuffle": True}, 50), ({"drop_last": True}, 50), ({"batch_size": None}, NULL_INTEGER),
    ({"sampler": RandomSampler(range(50), num_samples=20)}, 20), ({"sampler": [3, 1, 2]}, NULL_INTEGER),
])
def test_the_samples_of_a_pass_are_known_without_asking_the_data_set(
    made: dict[str, Any], samples: int
) -> None:
    iterator = iter(DataLoader(range(50), **{"batch_size": 8, **made}))  # type: ignore[arg-type]
    for _ in range(2 if made.get("batch_size", 8) else 1):
        if "sampler" not in made or samples != NULL_INTEGER:
            next(iterator)
    assert samples_in_pass(iterator) == samples


def test_the_share_of_targets_at_their_ends_and_the_classes_that_occur_are_known() -> None:
    target = torch.tensor([-2.0, -1.0, 0.5, 0.5, 0.5, 0.5, 0.1, 0.2])
    loss = F.mse_loss(LAYER(INPUT)[:, 0], target)
    figures = loss_figures.figures(torch, loss.grad_fn, target, 0)
    assert figures[9:13].tolist() == [-2.0, 0.5, 0.125, 0.5]
    node = F.cross_entropy(LAYER(INPUT), TARGET).grad_fn
    assert loss_figures.figures(torch, node, TARGET, 5)[13].item() == 5


def test_neighbours_are_alike_in_pictures_and_not_in_noise() -> None:
    row = torch.linspace(0, 1, 32).sin()
    picture = (row[:, None] + row[None]).expand(4, 3, 32, 32)
    noise = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    near, by_channels = _neighbours(torch, picture).tolist()
    assert near > 0.9 and by_channels < near
    assert abs(float(_neighbours(torch, picture + 15 * noise)[0])) < 0.15
    assert _neighbours(torch, picture[:, :1]).isnan().tolist() == [False, True]
    assert _neighbours(torch, noise[:, :, :, :4]) is None and _neighbours(torch, noise[0]) is None


def test_pixels_reshaped_into_planes_resemble_those_as_many_places_apart_as_there_are_channels() -> None:
    row = torch.linspace(0, 3, 32).sin()
    planes = [row[:, None] + row[None], row[:, None] - row[None], -row[:, None] * row[None]]
    images = torch.stack(planes, -1).expand(4, 32, 32, 3)
    near, by_channels = _neighbours(torch, images.reshape(4, 3, 32, 32)).tolist()
    assert by_channels > near + 0.3
    near, by_channels = _neighbours(torch, images.permute(0, 3, 1, 2)).tolist()
    assert by_channels < near
