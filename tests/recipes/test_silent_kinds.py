"""The declared silent errors: every edit applies, and no program says what is wrong with it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from programs.silent import plant

FIELDS = {"name", "source", "mechanism", "knowable", "right", "symptom", "place", "programs"}
OF_A_PROGRAM = {"edits", "mark", "prepare", "right", "place"}


def test_every_edit_applies_once_and_compiles() -> None:
    assert plant.check() == []


@pytest.mark.parametrize("kind", plant.kinds().values(), ids=list(plant.kinds()))
def test_a_kind_is_declared_in_full(kind: dict[str, Any]) -> None:
    assert kind.keys() <= FIELDS
    assert kind["source"] and kind["mechanism"].endswith(".") and kind["right"]
    assert set(kind["programs"]) <= set(plant.PROGRAMS) and len(kind["programs"]) >= 2
    for program, planted in kind["programs"].items():
        assert planted.keys() <= OF_A_PROGRAM
        for field in ("right", "symptom", "place"):
            for pattern in kind.get(field, []) + planted.get(field, []):
                re.compile(pattern)
        assert kind["name"] not in plant.edited(program, planted["edits"]), "the text says what is wrong"


def test_every_healthy_program_is_there_and_no_other() -> None:
    assert sorted(path.stem for path in plant.HEALTHY_FOLDER.glob("*.py")) == sorted(plant.HEALTHY)
