"""A process on its way out: its recording is closed, and it still exists."""

from __future__ import annotations

import json
import time

from harness import PATIENCE_S, Place, run_probe, running


def test_what_the_checks_find_is_answered_while_a_process_ends(place: Place) -> None:
    with running(place, "slow_to_exit") as job:
        place.start_server()
        job.go_on()
        ends_s = time.monotonic() + PATIENCE_S
        while True:
            done = run_probe(place, str(job.pid), "diagnose", "--format", "json")
            answer = json.loads(done.stdout)
            if any("without an agent" in note for note in answer["notes"]):
                break
            assert time.monotonic() < ends_s, answer
            time.sleep(0.2)
        assert answer["judged"] and isinstance(answer["findings"], list)
        assert job.let_go() == 0
