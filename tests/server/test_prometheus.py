"""The real Prometheus of the distribution scrapes `/metrics`, over TCP, with the viewer's token."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import ROOT
from server.beside import Beside, Writer
from server.test_grafana import expressions
from server.test_tcp import Tcp, free_port

FILES = ROOT / "docs" / "deploy" / "prometheus"
PATIENCE_S = 60.0


def program(folder: Path) -> Path:
    """The `prometheus` of this machine, or that of its package, unpacked; skips with the reason."""
    found = shutil.which("prometheus")
    if found:
        return Path(found)
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        pytest.skip("prometheus is not installed, and this distribution has no apt-get")
    folder.mkdir()
    folder.chmod(0o777)
    done = subprocess.run(
        ["apt-get", "download", "prometheus"], cwd=folder, capture_output=True, text=True, timeout=180,
        check=False,
    )
    packages = list(folder.glob("prometheus_*.deb"))
    if done.returncode != 0 or not packages:
        pytest.skip(f"the package of prometheus cannot be had: {done.stderr.strip()[-200:]}")
    subprocess.run(["dpkg-deb", "-x", str(packages[0]), str(folder / "root")], check=True)
    return folder / "root" / "usr" / "bin" / "prometheus"


@contextlib.contextmanager
def prometheus(folder: Path, token: Path, listens: int) -> Iterator[Callable[[str], Any]]:
    """Runs it with the files of the documentation; asks its API: `ask("query?query=up")`."""
    given = (FILES / "prometheus.yml").read_text()
    for shown, meant in (
        ("/etc/prometheus/probe.token", str(token)), ("7130", str(listens)), ("5s", "1s"),
    ):
        assert shown in given
        given = given.replace(shown, meant)
    (folder / "prometheus.yml").write_text(given)
    shutil.copy(FILES / "alerts.yml", folder)
    port = free_port()
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [
                program(folder / "package"), f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log, stderr=log,
        )

    def ask(path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=10) as answer:
            return json.loads(answer.read())["data"]

    try:
        yield ask
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@pytest.mark.campaign
def test_prometheus_scrapes_what_was_recorded(
    beside: Beside, record: Callable[..., Writer], tmp_path: Path
) -> None:
    writer = record(job="gpt")
    writer.tell("write 12")
    tcp = Tcp(beside)
    token = beside.directory / "token.viewer"
    with prometheus(tmp_path, token, tcp.port) as ask:
        deadline = time.monotonic() + PATIENCE_S
        found: list[Any] = []
        while not found and time.monotonic() < deadline:
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                found = ask("query?query=probe_training_steps_total")["result"]
            time.sleep(0.2)
        [target] = ask("targets")["activeTargets"]
        assert target["health"] == "up", target["lastError"]
        [steps] = found
        assert steps["metric"]["job"] == "gpt", "the label is probe's own"
        assert float(steps["value"][1]) == 12
        [median] = ask('query?query=probe_step_duration_seconds%7Bquantile="0.5"%7D')["result"]
        assert float(median["value"][1]) == 0.01
        [group] = ask("rules")["groups"]
        assert len(group["rules"]) == 4 and not [one for one in group["rules"] if one.get("lastError")]
        for expression in expressions():
            if not expression.startswith("label_values"):
                asked = expression.replace("$job", "gpt")
                assert ask(f"query?query={urllib.parse.quote(asked)}")["resultType"] == "vector", asked
