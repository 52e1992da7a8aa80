"""What a training printed, of whatever kind: read for what it says, and for no more."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import Place, run_probe
from probe.base.errors import LogUnreadable
from probe.diagnose.recipes import training_log
from probe.diagnose.recipes.training_log import Step

GUIDE = "\n".join(
    f"Step {step}: loss={loss}, lr={lr}"
    for step, loss, lr in (
        (10, 2.45, "6.67e-05"), (20, 2.38, "0.000133"), (30, 2.31, "0.0002"), (40, 2.28, "0.0002"),
        (50, 2.26, "0.000175"), (60, 2.24, "0.00015"), (70, 2.23, "0.000125"), (80, 2.22, "0.0001"),
        (90, 2.21, "7.5e-05"),
    )
)
MEGATRON = (
    " iteration       10/     500 | consumed samples:     160 | elapsed time per iteration (ms): 1234.5 |"
    " learning rate: 1.000E-04 | lm loss: 2.300E+00 | loss scale: 65536.0 | grad norm: 1.2 | skipped:   0 |"
)

LINES: list[tuple[str, int, Step]] = [
    ("Step 10: loss=2.45, lr=6.67e-05", 10, Step(2.45, 6.67e-05)),
    ("iter 10: loss 2.3, time 12ms", 10, Step(2.3, wall_s=0.012)),
    (MEGATRON, 10, Step(2.3, 1e-4, 1.2, 65536.0, 1.2345)),
    ("{'loss': 2.3, 'grad_norm': 1.5, 'learning_rate': 1e-4, 'epoch': 0.1}", 0, Step(2.3, 1e-4, 1.5)),
    ("{'loss': nan, 'learning_rate': 1e-4, 'epoch': 0.1, 'step': 40}", 40, Step(math.nan, 1e-4)),
    ('{"step": 5, "train": {"loss": 2.5, "lr": 0.1}, "note": "x"}', 5, Step(2.5, 0.1)),
    ('{"train/loss": -Infinity, "train/global_step": 7}', 7, Step(-math.inf)),
    ("Epoch 3:  42%|████▏     | 42/100 [00:10<00:13,  4.2it/s, v_num=3, train_loss=0.51]", 42, Step(0.51)),
    ("\x1b[32mINFO\x1b[0m 2024-01-01 12:00 step 1,250 loss: 2.5 gnorm=0.3", 1250, Step(2.5, grad_norm=0.3)),
    ("Epoch 2/3 [Step 30/500] Loss: 0.5, Validation Loss: 0.75", 30, Step(0.5)),
    ("epoch 1 | step 3 | aux_loss 0.3 | loss inf", 3, Step(math.inf)),
]


def read(text: str | bytes) -> training_log.Log:
    return training_log.read([text.encode() if isinstance(text, str) else text])


@pytest.mark.parametrize(("line", "number", "step"), LINES, ids=lambda value: str(value)[:24])
def test_a_line_says_what_a_person_reads_in_it(line: str, number: int, step: Step) -> None:
    log = read(line)
    assert repr(log.steps) == repr({number: step})


@pytest.mark.parametrize("line", [
    "the step took 3 s", "lossless 5", "no loss yet", "epoch 3", "learning rate schedule: cosine", "step 10",
    "glossary=4", "{'train_runtime': 3.2, 'train_loss': 2.1, 'epoch': 3.0}", "", "\x00\xff",
])
def test_a_text_without_a_step_or_a_loss_is_refused(line: str) -> None:
    with pytest.raises(LogUnreadable):
        read(line)


def test_other_losses_are_scalars_of_their_own_and_never_the_training_loss() -> None:
    log = read("step 1: train loss 2.0, val loss 2.5\nstep 2: kl_loss=0.1 1,234 tok/s\n")
    assert log.steps == {1: Step(2.0)}
    assert log.scalars == [(1, "val_loss", 2.5), (2, "kl_loss", 0.1), (2, "tokens_per_second", 1234.0)]


def test_lines_that_a_bar_wrote_over_count_and_the_last_word_on_a_step_stands() -> None:
    said = ((1, 3), (1, 2), (2, 1))
    bar = "\r".join(f" {step}%| | {step}/50 [00:01, 9it/s, loss={loss}]" for step, loss in said)
    assert read(bar).steps == {1: Step(2.0), 2: Step(1.0)}


def test_steps_that_begin_anew_in_each_epoch_go_on_and_a_restart_writes_over() -> None:
    epochs = "".join(
        f"Epoch {epoch} step {step}/3 loss {9 - 3 * epoch - step}\n" for epoch in (0, 1) for step in (1, 2, 3)
    )
    assert [step for step, _ in read(epochs).curve()] == [1, 2, 3, 4, 5, 6]
    again = read("step 1 loss 5\nstep 2 loss 4\nstep 3 loss nan\nstep 2 loss 3.5\nstep 3 loss 3\n")
    assert again.curve() == [(1, 5.0), (2, 3.5), (3, 3.0)] and again.went_back == 1


def test_a_step_on_a_line_of_its_own_is_that_of_the_next_and_without_any_they_are_counted() -> None:
    assert read("Step 7:\n  loss: 2.0\nStep 8:\n  loss: 1.5\n").curve() == [(7, 2.0), (8, 1.5)]
    counted = read("{'loss': 3.0}\n{'eval_loss': 3.5}\n{'loss': 2.0}\n")
    assert counted.curve() == [(0, 3.0), (1, 2.0)] and not counted.numbered
    assert counted.scalars == [(0, "eval_loss", 3.5)]


def test_the_tables_hold_what_was_said_and_null_for_the_rest() -> None:
    log = read("step 1 loss 2.0 lr 0.1\nstep 2 loss nan\nstep 3 lr 0.2\nstep 3 val_loss 5\n")
    connection = training_log.tables(log)
    sql = "SELECT step, loss, lr, wall_s, data_s, rank FROM python.steps ORDER BY step"
    rows = connection.sql(sql).fetchall()
    assert repr(rows) == repr([
        (1, 2.0, 0.1, None, None, 0), (2, math.nan, None, None, None, 0), (3, None, 0.2, None, None, 0),
    ])
    assert connection.sql("SELECT step, finite FROM python.losses").fetchall() == [(1, True), (2, False)]
    assert connection.sql("SELECT step, name, value FROM python.scalars").fetchall() == [(3, "val_loss", 5.0)]
    connection.close()


def test_a_log_is_judged_without_a_server_and_what_it_cannot_say_is_said(place: Place) -> None:
    """The example of a practitioners' guide: converging, warm-up, then decay."""
    done = run_probe(place, "diagnose", "--log", "-", "--format", "json", server=False, stdin=GUIDE)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert not [one for one in answer["findings"] if one["severity"] in ("notice", "alarm")]
    own = answer["findings"][-1]
    assert own["state"] == "loss falls" and "2.45 (step 10) to 2.21 (step 90): -9.8%" in own["what"]
    assert "rises from 6.67e-05 at step 10 to 0.0002 at step 30" in own["why"][1]
    assert "falls from 0.0002 at step 40 to 7.5e-05 at step 90" in own["why"][1]
    assert answer["lines"] == 9 and "loss-spike" in {one["recipe"] for one in answer["unknown"]}
    broken = run_probe(place, "diagnose", "--log", "-", server=False, stdin=GUIDE + "\nStep 100: loss=nan\n")
    assert "NaN at step 100" in broken.stdout and "10 lines read" in broken.stderr
    nothing = run_probe(place, "diagnose", "--log", "-", server=False, stdin="hello\n")
    assert nothing.returncode == 2 and "no step or loss" in nothing.stderr
    assert place.server_pid() is None


def test_a_spike_in_a_text_is_found_by_the_recipe_that_finds_it_in_a_recording(place: Place) -> None:
    losses = [3 * math.exp(-step / 80) + 0.01 * ((step * 37) % 11) for step in range(300)]
    losses[250:253] = [9.0, 8.0, 6.0]
    text = "\n".join(f"iter {step}: loss {loss:.4f}" for step, loss in enumerate(losses))
    done = run_probe(place, "diagnose", "--log", "-", "--format", "json", server=False, stdin=text)
    found = {one["recipe"]: one for one in json.loads(done.stdout)["findings"]}
    assert found["loss-spike"]["step"] == 250, done.stdout


PIECES = st.one_of(
    st.text(max_size=40),
    st.sampled_from([
        "\n", "\r", "loss", "Step ", ": ", "=", "nan", "-inf", "1e999", "{", "}", '"loss": ', "|", "\x1b[",
        "epoch", "12/34 [", "lr", "9" * 400, " " * 50, "_", "/", "train_", "val ", "1,234",
    ]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=40), st.binary(max_size=60), st.integers(1, 50))
def test_no_text_breaks_the_reader_and_where_it_is_cut_makes_no_difference(
    parts: list[str], junk: bytes, cut: int
) -> None:
    data = "".join(parts).encode("utf-8", "surrogatepass") + junk

    def taken(pieces: list[bytes]) -> str:
        try:
            log = training_log.read(pieces)
        except LogUnreadable:
            return ""
        training_log.summary(log)
        assert all(0 <= step < 2**54 for step in log.steps)
        return repr(log)

    assert taken([data]) == taken([data[at : at + cut] for at in range(0, len(data), cut)])


@pytest.mark.parametrize("text", [
    "a_" * 40_000, "loss" + " " * 100_000 + "x", "step " * 20_000, "1" * 70_000 + "tok", "loss." * 10_000,
    "loss" * 9000, "tok" + "1," * 30_000, "val " * 9000 + "loss",
], ids=lambda text: text[:6])
def test_a_huge_line_takes_no_longer_than_its_length_is_worth(text: str) -> None:
    with pytest.raises(LogUnreadable):
        read(text)
