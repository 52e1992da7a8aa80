"""Where probe's own files lie: frames of ours are told from the job's by it. Standard library only."""

from __future__ import annotations

import os

FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""The folder of the package `probe`, with a separator at its end."""
