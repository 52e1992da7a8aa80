"""A page that is served: `probe JOB web` as its user runs it, and requests as a browser sends them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx

from harness import PATIENCE_S, ROOT, Place


class Served:
    """A running `probe web`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.link = self.next_link()
        self._client = httpx.Client(trust_env=False, verify=False, timeout=PATIENCE_S)
        parts = urlsplit(self.link)
        self.origin = f"{parts.scheme}://{parts.netloc}"

    def next_link(self) -> str:
        """The next line of its stdout."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line.startswith("http://127.0.0.1:"), f"{line!r}\n{self.process.poll()}"
        return line

    @property
    def key(self) -> str:
        """The key in the link."""
        [found] = parse_qs(urlsplit(self.link).fragment.partition("?")[2])["key"]
        return found

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        """One request; `sec_fetch_site` is the header of that name."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        content = None if body is None else json.dumps(body).encode()
        if body is not None:
            given.setdefault("content-type", "application/json")
        return self._client.request(method, self.origin + path, content=content, headers=given)

    def session(self) -> dict[str, str]:
        """The header of a session that the link was traded for."""
        answer = self.ask("POST", "/session", {"key": self.key})
        assert answer.status_code == 200, answer.text
        return {"authorization": f"Bearer {answer.json()['session']}"}

    def end(self) -> int:
        """Ctrl-C; returns the exit status."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE_S)


@contextlib.contextmanager
def served(place: Place, *words: str, **more: str) -> Iterator[Served]:
    """`probe … web …` until the end of the block."""
    environ = place.environ(**more)
    paths = [str(ROOT), str(ROOT / "cli"), environ.get("PYTHONPATH", "")]
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    place.start_server(**more)
    process = subprocess.Popen(
        [sys.executable, "-m", "probe_cli", *words], env=environ, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )
    try:
        yield Served(process)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(PATIENCE_S)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
