"""Naming the server as tracer: only where Yama asks for it, and never a failure of the job."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from probe.base import wire
from probe.job.agent import tracing
from probe.recording import places


@pytest.mark.parametrize("scope", ["0\n", "2\n", "3\n", "", None])
def test_nobody_is_named_where_yama_does_not_ask_for_it(
    scope: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ptrace_scope"
    if scope is not None:
        path.write_text(scope)
    monkeypatch.setattr(tracing, "SCOPE", path)
    with wire.listen_unix(places.server_socket(tmp_path)):
        assert tracing.name_tracer(tmp_path, 0) == 0


def test_what_the_kernel_says_decides_who_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ptrace_scope"
    path.write_text("1\n")
    there_is_yama = tracing.SCOPE.exists()
    monkeypatch.setattr(tracing, "SCOPE", path)
    (tmp_path / "server.json").write_text(json.dumps({"pid": 1}))  # of a server that was killed
    assert tracing.name_tracer(tmp_path, 0) == 0, "no server runs"
    assert tracing.name_tracer(tmp_path, 1) == 0, "and a pid that is in a file is nobody's word"
    with wire.listen_unix(places.server_socket(tmp_path)):
        assert tracing.name_tracer(tmp_path, 0) == (os.getpid() if there_is_yama else 0)
        assert tracing.name_tracer(tmp_path, os.getpid()) == os.getpid()
