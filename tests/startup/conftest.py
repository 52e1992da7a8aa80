"""Fixtures of the start-up tests; what they make is in `pythons.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from startup.pythons import Python, install_hook, make_python


@pytest.fixture
def bare(tmp_path: Path) -> Python:
    """A Python without probe."""
    return make_python(tmp_path)


@pytest.fixture
def hooked(bare: Python) -> Python:
    """A Python with probe installed as by a wheel."""
    install_hook(bare)
    return bare
