"""The rows of parameters say what the optimizers hold, once for each model."""

from __future__ import annotations

import time

import pytest

from agent.asking import query
from harness import PATIENCE_S, Place, running

LOOKS, STEPS_A_LOOK = 3, 400
"""Looks at the models that a program gets, and steps of 25 ms in the time between two."""


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


@pytest.mark.campaign  # the models are looked at again every ten seconds
def test_weights_that_a_call_puts_in_place_are_no_parameters(place: Place) -> None:
    ours = {f"{layer}.{kind}" for layer in ("first", "last") for kind in ("weight", "bias")}
    with running(place, "adapted_weights") as job:
        ends_s = time.monotonic() + PATIENCE_S
        steps = 0
        while steps < LOOKS * STEPS_A_LOOK and time.monotonic() < ends_s:
            time.sleep(0.5)
            ((steps,),) = query(place, job.pid, "SELECT COALESCE(MAX(step), 0) FROM python.steps")
        known = query(place, job.pid, "SELECT param, requires_grad, optimizer FROM python.parameters")
    assert sorted(known) == [[name, True, "Adam"] for name in sorted(ours)]


def test_a_backbone_that_becomes_a_part_of_another_model_gets_its_names(place: Place) -> None:
    newest = "(SELECT MAX(step) FROM python.gradients)"
    ask = f"SELECT DISTINCT param FROM python.gradients WHERE step > {newest} - 200"
    ours = {f"backbone.{number}.{kind}" for number in (0, 2) for kind in ("weight", "bias")}
    ours |= {"head.weight", "head.bias"}
    with running(place, "backbone_fine_tuned") as job:
        sampled, listed = set[object](), set[object]()
        ends_s = time.monotonic() + PATIENCE_S
        while not (sampled and sampled <= ours <= listed) and time.monotonic() < ends_s:
            time.sleep(0.2)
            listed = {row[0] for row in query(place, job.pid, "SELECT param FROM python.parameters")}
            sampled = {row[0] for row in query(place, job.pid, ask)}
    assert listed >= ours
    assert sampled
    assert sampled <= ours


def test_what_a_second_training_released_early_is_known_to_have_been_frozen(place: Place) -> None:
    ask = "SELECT DISTINCT requires_grad FROM python.parameters WHERE param = 'backbone.2.weight'"
    with running(place, "backbone_fine_tuned") as job:
        known = set[object]()
        ends_s = time.monotonic() + PATIENCE_S
        while known != {True, False} and time.monotonic() < ends_s:
            time.sleep(0.2)
            known = {row[0] for row in query(place, job.pid, ask)}
    assert known == {True, False}
