"""Folder of probe's own files, by which its frames are recognized. Standard library only."""

from __future__ import annotations

import os

FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""The folder of the package `probe`, with a trailing separator."""

DETOUR = f"importlib_bootstrap{os.sep}{os.pardir}{os.sep}"
"""Within `FOLDER`: what the file names of our wrappers go through (`importlib_bootstrap/__init__.py`)."""


def without_detour(text: str) -> str:
    """The same file, or a text with files in it, as people know it: where frames are read to be shown."""
    return text.replace(DETOUR, "")
