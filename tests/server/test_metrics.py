"""`/metrics`: valid for Prometheus and OpenMetrics, what is there is measured, and what is not is absent."""

from __future__ import annotations

import math
from collections.abc import Callable

from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain

from probe.server.http import metrics
from server.beside import Beside, Writer, until

OPEN = "application/openmetrics-text; version=1.0.0"


def samples(text: str) -> dict[tuple[str, str], float]:
    """Values of all runs but the one called `two`, by (name, rank or what is told apart otherwise)."""
    found = {}
    for family in plain(text):
        for sample in family.samples:
            labels = sample.labels
            if labels.get("run") == "two":
                continue
            told_apart = ("phase", "quantile", "severity", "outcome", "rank")
            key = sample.name, "/".join(labels[name] for name in told_apart if name in labels)
            assert key not in found
            found[key] = sample.value
    return found


def test_what_is_scraped_is_what_was_recorded_and_null_is_absent(
    beside: Beside, record: Callable[..., Writer]
) -> None:
    writer = record(job='odd "name"\\\n')
    beside.start(PROBE_MONITOR="0")
    writer.tell("write 10")
    status, kind, text = beside.text("/metrics")
    assert status == 200 and kind.startswith("text/plain")
    found = samples(text)
    assert found["probe_up", "0"] == 1
    assert found["probe_training_steps_total", "0"] == 10
    assert found["probe_tokens_total", "0"] == 5120 and found["probe_samples_total", "0"] == 80
    assert math.isclose(found["probe_loss", "0"], 1 / 10)
    assert math.isclose(found["probe_step_duration_seconds", "0.5/0"], 0.01)
    assert math.isclose(found["probe_step_duration_seconds_sum", "0"], 0.1)
    assert math.isclose(found["probe_step_phase_ratio", "backward/0"], 0.4)
    assert ("probe_step_phase_ratio", "comm/0") not in found, "no collective was called"
    assert not [name for name, _ in found if name in ("probe_gradient_norm", "probe_loss_scale")]
    assert found["probe_skipped_steps_total", "0"] == 0, "measured: none was skipped"
    writer.tell("write 5")
    again = samples(beside.text("/metrics")[2])
    assert again["probe_training_steps_total", "0"] == 15 and again["probe_tokens_total", "0"] == 15 * 512
    writer.tell("strange")
    assert samples(beside.text("/metrics")[2])["probe_loss", "0"] == -math.inf, "the last that was no NULL"


def test_openmetrics_is_answered_where_it_is_asked_for_and_is_valid(
    beside: Beside, record: Callable[..., Writer]
) -> None:
    writers = [record(job="gpt", run="one", rank=rank, world_size=3) for rank in range(3)]
    record(job="gpt", run="two")
    beside.start(PROBE_MONITOR="0")
    for writer in writers:
        writer.tell("write 3")
    _, kind, text = beside.text("/metrics", OPEN)
    assert kind.startswith("application/openmetrics-text") and text.endswith("# EOF\n")
    names = {family.name for family in open_metrics(text)}
    assert {"probe_up", "probe_training_steps", "probe_alerts"} <= names
    labels = {label for family in open_metrics(text) for one in family.samples for label in one.labels}
    allowed = {*metrics.LABELS, "phase", "quantile", "severity", "outcome", "version"}
    assert labels <= allowed, "nothing that grows with a run"
    writers[2].kill()

    def down() -> bool:
        ups = samples(beside.text("/metrics")[2])
        return ups["probe_up", "2"] == 0 and ups["probe_up", "1"] == 1

    until(down, "a process that has ended is down")
    for accept in ("", "application/openmetrics-text;version=abc", "text/plain;version=9.9;q=x", ",;=,"):
        assert beside.text("/metrics", accept)[0] == 200
