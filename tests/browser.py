"""The browser that draws pages in tests and benchmarks."""

from __future__ import annotations

import shutil

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
"""Its path; None if there is none."""
NEEDED = "needs a browser: apt-get install chromium"
