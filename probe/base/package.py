"""Folder of probe's own files, by which its frames are recognized. Standard library only."""

from __future__ import annotations

import os

FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""The folder of the package `probe`, with a trailing separator."""
