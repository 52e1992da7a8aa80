"""Watches a job like a user: `probe top` on a terminal, or the page in Chromium.

    python bench/watcher.py top|page PID

Reads 1 (watch) or 0 (pause) from stdin and answers `done`. Ends with stdin. It stays open:
while it pauses, top is stopped and the page believes that its tab is hidden. For
`bench/overhead.py --switch`; the page needs playwright and a Chromium.
"""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from browser import CHROMIUM  # noqa: E402


def environ() -> dict[str, str]:
    """This environment, with the probe of this checkout."""
    paths = [str(ROOT), str(ROOT / "cli"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TERM": "xterm", "LINES": "24"}


def answered(on: bool) -> None:
    """Tell the job that it may continue."""
    sys.stdout.write("done\n")
    sys.stdout.flush()


def wishes() -> Iterator[bool]:
    """The requests of the job, until it ends."""
    for line in sys.stdin:
        yield line.strip() == "1"


def top(pid: str) -> None:
    """Run `probe PID top`, stopped while paused."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "probe_cli", pid, "top"], stdin=theirs, stdout=theirs, stderr=theirs,
        env=environ(), start_new_session=True,
    )
    os.close(theirs)
    shown = threading.Event()

    def read() -> None:
        while True:
            try:
                if not os.read(ours, 1 << 16):
                    return
            except OSError:  # it has ended
                return
            shown.set()

    threading.Thread(target=read, daemon=True).start()
    try:
        for on in wishes():
            os.kill(process.pid, signal.SIGCONT if on else signal.SIGSTOP)
            shown.clear()
            if (on and not shown.wait(60)) or process.poll() is not None:
                raise SystemExit("`probe top` shows nothing")
            answered(on)
    finally:
        process.kill()
        process.wait()


@contextmanager
def page_of(pid: str) -> Iterator[str]:
    """Run `probe PID web`; yields the address of its page."""
    process = subprocess.Popen(
        [sys.executable, "-m", "probe_cli", pid, "web"], env=environ(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )
    try:
        assert process.stdout is not None
        found = next(filter(None, (re.search(r"http://\S+", line) for line in process.stdout)), None)
        if found is None:
            raise SystemExit("`probe web` printed no address")
        yield found[0]
    finally:
        process.terminate()
        process.wait()


def page(pid: str) -> None:
    """Open the page in a browser, hidden while paused."""
    from playwright.sync_api import sync_playwright

    with page_of(pid) as url, sync_playwright() as engine:
        browser = engine.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        tab = browser.new_page()
        tab.goto(url)
        tab.wait_for_selector("canvas")
        tab.evaluate("Object.defineProperty(document, 'hidden', { get: () => window.unseen === true })")
        for on in wishes():
            tab.evaluate(
                "on => { window.unseen = !on; document.dispatchEvent(new Event('visibilitychange')); }", on
            )
            answered(on)
        browser.close()


if __name__ == "__main__":
    {"top": top, "page": page}[sys.argv[1]](sys.argv[2])
