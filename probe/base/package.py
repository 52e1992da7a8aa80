"""The folder of probe's own files: frames from it are probe's. Standard library only."""

from __future__ import annotations

import os

FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""The folder of the package `probe`, with a trailing separator."""

DETOUR = f"importlib_bootstrap{os.sep}{os.pardir}{os.sep}"
"""Path segment within `FOLDER` in the file names of our wrappers (`importlib_bootstrap/__init__.py`)."""


def without_detour(text: str) -> str:
    """A file name, or a text with file names, without `DETOUR`; used where frames are shown to people."""
    return text.replace(DETOUR, "")
