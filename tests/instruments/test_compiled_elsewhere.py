"""The compiled hot path in a Python that is older than the headers it was compiled with."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from control.pythons import found_interpreter
from probe.base import c_compiler
from probe.base.compiled import build

IMMORTAL_SINCE = 12
"""From 3.12 on None is immortal, and the headers may count references to it less carefully."""
CALLS = 300
EDGES = f"""
import importlib.machinery, importlib.util, sys
loader = importlib.machinery.ExtensionFileLoader("_hot", sys.argv[1])
hot = importlib.util.module_from_spec(importlib.util.spec_from_loader("_hot", loader))
recorder = hot.Recorder()
before = sys.getrefcount(None)
for now in range({CALLS}):
    recorder.data_begins(now)
    recorder.data_ends(now, now)
    hot.begin(now)
print(sys.getrefcount(None) - before)
"""


def test_a_library_made_by_a_newer_python_loses_no_reference_to_none_in_an_older_one(tmp_path: Path) -> None:
    newer = next(filter(None, map(found_interpreter, range(14, IMMORTAL_SINCE - 1, -1))), None)
    older = next(filter(None, map(found_interpreter, range(IMMORTAL_SINCE - 1, 9, -1))), None)
    if newer is None or older is None or c_compiler.compiler() is None:
        pytest.skip("needs a compiler, and a Python before and after 3.12")
    headers = _answer(newer, "import sysconfig; print(sysconfig.get_path('include'))")
    library = tmp_path / "_hot.abi3.so"
    if problem := build.build(library, Path(headers)):
        pytest.skip(problem)
    assert abs(int(_answer(older, EDGES, str(library)))) < CALLS / 10


def _answer(python: str, program: str, *words: str) -> str:
    done = subprocess.run([python, "-I", "-c", program, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()
