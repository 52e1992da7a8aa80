"""The rows of parameters say what the optimizers hold, once for each model."""

from __future__ import annotations

import time

from agent.asking import query
from harness import PATIENCE_S, Place, running


def test_one_parameter_in_two_models_is_not_two_in_one_memory(place: Place) -> None:
    with running(place, "weight_in_two_models") as job:
        known: dict[str, object] = {}
        ends_s = time.monotonic() + PATIENCE_S
        while len(known) < 7 and time.monotonic() < ends_s:
            known = {
                row[0]: row[1]
                for row in query(place, job.pid, "SELECT param, same_memory FROM python.parameters")
            }
            time.sleep(0.2)
    assert {name for name in known if "decoder" in name or "tokens" in name} == {
        "Head.decoder.weight", "Head.decoder.bias", "tokens.weight"
    }
    assert set(known.values()) == {None}
