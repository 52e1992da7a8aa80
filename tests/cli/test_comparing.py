"""What `compare` and `health` make of two summaries: noise, causes, what is not known."""

from __future__ import annotations

import io
import random
from typing import Any

from probe.diagnose.summary import STATEMENTS, spread, summarize, trend
from probe_cli.commands.health import lines
from probe_cli.core import figures
from probe_cli.core.terminal import Output
from probe_cli.render.comparison import compare

FACTS = {
    ("hyperparameter", "loader.num_workers"): "4", ("hyperparameter", "optimizer.lr"): "0.0003",
    ("package", "torch"): "2.13.0", ("hardware", "cpus"): "8", ("git", "commit"): "a" * 40,
    ("model", "parameters"): "1000000", ("hardware", "peak_tflops"): "312.0",
}


def summary(
    seed: int, *, data_s: float = 0.0004, work_s: float = 0.04, loss: float = 2.0, steps: int = 300,
    facts: dict[tuple[str, str], str] | None = None, **changed: Any,
) -> dict[str, Any]:
    """The summary of a run with steps of that length and a falling loss, both with noise."""
    noise = random.Random(seed)
    rows = []
    for step in range(steps):
        data, work = (base * (1 + 0.1 * abs(noise.gauss(0, 1))) for base in (data_s, work_s))
        rows.append({
            "step": step, "t_ns": step, "wall_s": data + work, "data_s": data, "forward_s": work * 0.3,
            "backward_s": work * 0.6, "optimizer_s": work * 0.1, "comm_s": None, "other_s": 0.0,
            "held_s": None, "loss": loss + 3 / (1 + step) + noise.gauss(0, 0.05), "grad_norm": None,
            "lr": 3e-4, "loss_scale": None, "skipped": False, "training_mode": True, "samples": 8,
            "tokens": 8192, "sampled": step % 50 == 0, "shadow": False, **changed,
        })
    best = min(rows, key=lambda row: row["loss"])
    return summarize({
        "steps": list(reversed(rows[-256:])),
        "run": [{
            "first_step": 0, "last_step": steps - 1, "steps": steps, "best_loss": best["loss"],
            "best_step": best["step"], "skipped": 0, "nonfinite": 0,
        }],
        "facts": [
            {"kind": kind, "name": name, "value": value}
            for (kind, name), value in (FACTS if facts is None else facts).items()
        ],
    })


def conclusion(a: dict[str, Any], b: dict[str, Any]) -> str:
    return compare(a, b, (a, b), ("good", "bad")).conclusion


def test_a_slower_run_is_laid_at_its_phase_and_at_the_setting_that_belongs_to_it() -> None:
    facts = {**FACTS, ("hyperparameter", "loader.num_workers"): "0", ("git", "commit"): "b" * 40}
    said = conclusion(summary(1), summary(2, data_s=0.013, facts=facts))
    assert "bad is 3" in said and "% slower" in said and "; loader.num_workers 4 → 0" in said, said
    assert "data_s 0.4" in said and "commit" not in said and "higher" not in said, said


def test_runs_that_differ_by_chance_alone_do_not_differ() -> None:
    for seed in range(20):
        said = conclusion(summary(seed), summary(seed + 100))
        assert said == "no difference in step time or loss beyond noise", (seed, said)


def test_a_worse_loss_at_the_same_step_names_the_rate_that_differs() -> None:
    facts = {**FACTS, ("hyperparameter", "optimizer.lr"): "0.003"}
    said = conclusion(summary(1), summary(2, loss=2.4, facts=facts))
    assert "bad has a higher loss at step 299" in said and "optimizer.lr 0.0003 → 0.003" in said, said


def test_what_one_run_does_not_know_is_unknown_and_no_difference() -> None:
    a, b = summary(1), summary(2, facts={}, tokens=None)
    found = {line.name: line for line in compare(a, b, (a, b), ("a", "b")).lines}
    for name in ("tokens_per_s", "mfu", "loader.num_workers", "torch"):
        assert found[name].differs is None and found[name].b == "unknown", found[name]
    assert found["gradient norm"].differs is False
    empty = summarize({})
    assert "step time and loss are not known" in conclusion(empty, empty)


def test_speed_leaves_out_sampled_and_first_steps_and_what_held_the_thread() -> None:
    found = summary(1, steps=10, wall_s=5.0, held_s=4.0, data_s=0.5)["speed"]
    assert found["step_s"]["median"] == 1.0 and found["step_s"]["size"] == 7
    assert found["samples_per_s"] == 8.0 and found["tokens_per_s"] == 8192.0
    assert found["mfu"] == 6 * 1e6 * 8192 / 312e12
    assert found["phases"]["comm_s"] is None and found["phases"]["data_s"]["share"] > 0


def test_a_trend_is_said_only_when_it_is_beyond_the_noise() -> None:
    noise = random.Random(5)
    high = spread([3 + noise.gauss(0, 0.1) for _ in range(32)])
    low = spread([2 + noise.gauss(0, 0.1) for _ in range(32)])
    again = spread([2 + noise.gauss(0, 0.1) for _ in range(32)])
    assert (trend(low, high), trend(high, low), trend(low, again), trend(low, None)) == (
        "falling", "rising", "flat", None,
    )


def test_the_screen_fits_its_width_and_says_unknown_for_what_is_not() -> None:
    answer = {
        **summary(1), "name": "gpt/0", "pid": 7, "state": "running", "verdict": None, "judged": "now",
        "findings": [{
            "state": "loss is NaN", "severity": "alarm", "what": "loss became NaN at step 7\x1b[2J",
            "why": ["lr 3"], "next": ["probe 7 lr --scale 0.1"],
        }],
    }
    text = list(lines(answer, Output(io.StringIO(), {})))
    assert max(len(line) for line in text) <= 100 and "\x1b" not in "".join(text)
    assert any(line.startswith("LOSS IS NAN") for line in text) and any("probe 7 lr" in line for line in text)
    slow = {"state": "slow step", "severity": "notice", "what": "a long step", "why": [], "next": []}
    both = lines({**answer, "verdict": slow, "position": 1}, Output(io.StringIO(), {}))
    assert [line for line in both if line.isupper() or line[:4] in ("LOSS", "SLOW")] == [
        "LOSS IS NAN (alarm)  loss became NaN at step 7\\u001b[2J", "SLOW STEP (notice)  a long step",
    ]
    assert any("norm unknown   update ratio unknown" in line for line in text)
    assert any("MFU 0.4 %" in line and "estimated" in line for line in text), text
    blank = {**summarize({}), "name": "gpt/0", "pid": 7, "state": "starting", "verdict": None, "findings": []}
    text = list(lines(blank, Output(io.StringIO(), {})))
    assert [line.strip() for line in text] == [
        "gpt/0  pid 7  starting  no step yet", "memory     unknown", "",
        "TOO EARLY  no step has finished yet: nothing can be judged so far",
        "next   probe 7 backtrace", "probe 7 diagnose",
    ]
    unread = list(lines({**blank, "unread": ["steps", "run"]}, Output(io.StringIO(), {})))
    assert unread[0].split() == ["gpt/0", "pid", "7", "starting"] and "norm unknown" in unread[2]
    assert unread[-1] == "UNKNOWN  the recording could not be read in time: try again"


def test_times_of_one_list_have_one_unit_and_a_small_share_is_not_nothing() -> None:
    assert figures.durations([0.00076, 0.132, None]) == ["0.76 ms", "132 ms", "unknown"]
    assert figures.durations([1.25, 0.0005]) == ["1,250 ms", "0.5 ms"]
    assert figures.durations([12.5, 0.25, 0]) == ["12.5 s", "0.25 s", "0 s"]
    assert [figures.share(one) for one in (0, 0.004, 0.015, None)] == ["0 %", "<1 %", "2 %", "unknown"]


def test_figures_keep_the_digits_that_count() -> None:
    shown = [figures.figure(value) for value in (0.0003, 2.3741, 18_512.4, 1e-7, 0, "NaN", None, 34_688)]
    assert shown == ["3.00e-4", "2.374", "18,512", "1.00e-7", "0", "NaN", "unknown", "34,688"]
    assert (figures.duration(0.00021), figures.duration(0.0061), figures.duration(2.5)) == (
        "0.21 ms", "6.1 ms", "2.5 s",
    )
    assert figures.size(344_313_856) == "328 MiB" and figures.short(18_501) == "18.5 k"
    assert figures.sparkline([1.0, 2.0, float("nan"), 3.0], 10) == "▁▄█" and figures.bar(0.5, 4) == "██"


def test_every_statement_of_a_summary_reads_tables_that_exist() -> None:
    import duckdb

    from probe.diagnose.recipes.local_query import make_tables
    from probe.diagnose.summary import statements_for

    connection = duckdb.connect(":memory:")
    make_tables(connection)
    for name, (sql, parameters) in zip(STATEMENTS, statements_for(None, 7), strict=True):
        rows = connection.execute(sql, parameters).fetchall()
        assert len(rows) <= 1, name
