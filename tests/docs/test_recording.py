"""The recording of the terminal in README.md shows what the demo asks today."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

from docs.documents import ROOT


def of_bench() -> ModuleType:
    """bench/recording.py, which is a program."""
    spec = importlib.util.spec_from_file_location("recording_of_the_demo", ROOT / "bench" / "recording.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_the_recording_shows_what_the_demo_asks_and_the_picture_what_the_recording_does() -> None:
    """If this fails: `python bench/recording.py`, which runs the demo."""
    recording = of_bench()
    cast = recording.CAST.read_text(encoding="utf-8")
    demo = (ROOT / "bench" / "demo").read_text(encoding="utf-8")
    asked = re.findall(r'^ask ((?:[^"\n]|"[^"]*")*)', demo, re.MULTILINE)
    written = [" ".join(part.strip() for part in one.replace('"$job"', "PID").splitlines()) for one in asked]
    assert recording.commands(cast) == [f"$ probe {one}" for one in written]
    assert "(exit code" not in cast
    assert recording.PICTURE.read_text(encoding="utf-8") == recording.draw(cast)
    assert str(recording.PICTURE.relative_to(ROOT)) in (ROOT / "README.md").read_text(encoding="utf-8")
