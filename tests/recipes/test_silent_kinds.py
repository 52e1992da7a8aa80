"""The declared silent errors: every edit applies, and no program says what is wrong with it."""

from __future__ import annotations

import re
from typing import Any

from programs.silent import plant

FIELDS = {"name", "source", "mechanism", "knowable", "right", "symptom", "place", "programs"}
OF_A_PROGRAM = {"edits", "mark", "prepare", "right", "place"}


def test_every_edit_applies_once_and_compiles() -> None:
    assert plant.check() == []


def test_each_kind_is_declared_in_full() -> None:
    for name, kind in plant.kinds().items():
        assert kind.keys() <= FIELDS, name
        assert kind["source"] and kind["mechanism"].endswith(".") and kind["right"], name
        assert set(kind["programs"]) <= set(plant.PROGRAMS) and len(kind["programs"]) >= 2, name
        in_its_programs(kind)


def in_its_programs(kind: dict[str, Any]) -> None:
    """Their patterns are ones, and their text does not give it away."""
    for program, planted in kind["programs"].items():
        assert planted.keys() <= OF_A_PROGRAM, f"{kind['name']} in {program}"
        for field in ("right", "symptom", "place"):
            for pattern in kind.get(field, []) + planted.get(field, []):
                re.compile(pattern)
        assert kind["name"] not in plant.edited(program, planted["edits"]), "the text says what is wrong"


def test_every_healthy_program_is_there_and_no_other() -> None:
    assert sorted(path.stem for path in plant.HEALTHY_FOLDER.glob("*.py")) == sorted(plant.HEALTHY)
