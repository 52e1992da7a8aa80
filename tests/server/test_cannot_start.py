"""Where no server can start, the command says the cause, and sends nobody to a log that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.test_refusals import fill, tmpfs
from harness import Place, probe_process


def refusal(place: Place, folder: Path, **environ: str) -> str:
    """What the command says on stderr; `folder` is private already."""
    folder.mkdir(mode=0o700, exist_ok=True)
    done = probe_process(place, "query", "SELECT 1", PROBE_DIR=str(folder), **environ)
    assert done.returncode == 3, done.stderr
    return done.stderr


@pytest.mark.parametrize(("options", "cause"), [
    ("size=8m,nr_inodes=2", "has no inodes left"), ("size=8m,nr_inodes=3", "has no inodes left"),
    ("size=64k", "KiB free"),
])
def test_a_folder_without_inodes_or_room_is_named_as_the_cause(
    place: Place, tmp_path: Path, options: str, cause: str
) -> None:
    with tmpfs(tmp_path / "small", options) as small:
        folder = small / "probe"
        folder.mkdir(mode=0o700)
        if options == "size=64k":
            fill(small / "filler")
        words = refusal(place, folder)
        assert cause in words and str(folder) in words and "server.log" not in words
        assert cause in probe_process(place, "doctor", PROBE_DIR=str(folder)).stdout


def test_what_the_server_said_before_it_ended_is_in_the_error(place: Place, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"no module of ours here\" >&2\nexit 1\n")
    python.chmod(0o755)
    (tmp_path / "probe").mkdir(mode=0o700)
    (tmp_path / "probe" / "server.log").write_text("an older complaint\n")
    words = refusal(place, tmp_path / "probe", PROBE_SERVER_PYTHON=str(python))
    assert "its log: no module of ours here" in words and "older" not in words


def test_a_server_that_ends_without_a_word_is_said_to_have_said_nothing(place: Place, tmp_path: Path) -> None:
    words = refusal(place, tmp_path / "probe", PROBE_SERVER_PYTHON="/bin/true")
    assert "its log has no reason" in words and "server.log" not in words
