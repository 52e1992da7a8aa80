"""Commit, branch and local changes of the code that runs, without running anything of the repository.

Git runs as a child process with a deadline. A repository's configuration may name programs (file system
monitor, hooks, diff drivers, filters, pagers): all of them are disabled, nothing is fetched, and nothing is
written, not even the index. Git itself decides whether a repository may be read (`safe.directory`). Blocks;
thread `probe-facts`. Standard library only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import time
from pathlib import Path
from typing import IO

DEADLINE_S = 8.0
"""For all git commands about one run."""
MOST_LINES = 100
LARGEST_BYTES = 32 << 20
"""Size of a diff; a longer one is not hashed."""
_OFF = (
    "core.fsmonitor=false", "core.hooksPath=/dev/null", "core.pager=cat", "core.attributesFile=/dev/null",
    "diff.external=", "diff.ignoreSubmodules=dirty", "protocol.allow=never", "core.sshCommand=false",
    "core.untrackedCache=false", "core.askPass=", "credential.helper=", "submodule.recurse=false",
)
_DIFF = ("--no-ext-diff", "--no-textconv", "--ignore-submodules=dirty", "--no-color")


class _Failed(Exception):
    """Git failed or took too long."""


class Git:
    """Runs git in one working tree."""

    def __init__(self, folder: Path, deadline: float) -> None:
        self._folder = folder
        self._deadline = deadline
        self._options = list(_OFF)

    def switch_off_filters(self) -> None:
        """Disable filters, which are programs that run for each file; their names are in the
        configuration."""
        with contextlib.suppress(_Failed):
            named = r"^(filter|diff|merge)\..*\..*"
            keys = self.text("config", "--null", "--name-only", "--get-regexp", named)
            for key in set(keys.split("\0")):
                section, _, rest = key.partition(".")
                name, _, variable = rest.rpartition(".")
                if section == "filter" and variable in ("clean", "smudge", "process"):
                    self._options += [f"{key}=", f"filter.{name}.required=false"]
                elif variable in ("command", "textconv", "driver"):
                    self._options.append(f"{key}=")

    def text(self, *words: str) -> str:
        """Git's output without its last line end; raises `_Failed`."""
        return self.run(*words).decode("utf-8", "replace").removesuffix("\n")

    def run(self, *words: str) -> bytes:
        """Git's output; raises `_Failed`, also when it is more than `LARGEST_BYTES`."""
        options = [word for option in self._options for word in ("-c", option)]
        command = ["git", "--no-pager", "-C", str(self._folder), *options, *words]
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env=_environment(), start_new_session=True,
            )
        except OSError:
            raise _Failed from None
        assert process.stdout is not None
        try:
            found = _read(process.stdout, LARGEST_BYTES, self._deadline)
            code = process.wait(max(0.05, self._deadline - time.monotonic()))
        except (subprocess.TimeoutExpired, TimeoutError):
            raise _Failed from None
        finally:
            process.stdout.close()
            if process.poll() is None:
                process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):  # on a file system that hangs
                    process.wait(1.0)
        if code != 0 or len(found) > LARGEST_BYTES:
            raise _Failed
        return found


def _read(stream: IO[bytes], most: int, deadline: float) -> bytes:
    import select

    parts: list[bytes] = []
    size = 0
    while size <= most:
        ready, _, _ = select.select([stream], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError
        part = os.read(stream.fileno(), 1 << 16)
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _environment() -> dict[str, str]:
    """An environment in which git uses no settings of this one, asks nothing, writes and fetches nothing."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "XDG_CONFIG_HOME") if name in os.environ}
    return {
        **kept, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1", "GIT_ATTR_NOSYSTEM": "1",
    }


def git_facts(folder: Path, script: Path | None) -> list[tuple[str, str]]:
    """Names and values of facts about the working tree that contains `folder`; none if there is no such tree.

    `diff_hash` is the SHA-256 of the difference from the commit: two runs with the same commit and hash ran
    the same tracked files."""
    git = Git(folder, time.monotonic() + DEADLINE_S)
    try:
        root = git.text("rev-parse", "--show-toplevel")
    except _Failed:
        return []
    git.switch_off_filters()
    found = [("root", root)]
    with contextlib.suppress(_Failed):
        found.append(("commit", git.text("rev-parse", "--verify", "HEAD")))
    with contextlib.suppress(_Failed):
        found.append(("branch", git.text("symbolic-ref", "--short", "--quiet", "HEAD")))
    with contextlib.suppress(_Failed):
        found.append(("commit_summary", git.text("show", "--no-patch", "--no-show-signature", "--format=%s")))
    found += _difference(git)
    if script is not None:
        found.append(("script_tracked", _tracked(git, script)))
    return found


def _difference(git: Git) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    with contextlib.suppress(_Failed):
        summary = git.text("diff", *_DIFF, "--stat=100", f"--stat-count={MOST_LINES}", "HEAD")
        found.append(("dirty", "true" if summary else "false"))
        if summary:
            found.append(("diff_summary", "\n".join(summary.splitlines()[: MOST_LINES + 2])))
            whole = git.run("diff", *_DIFF, "--full-index", "--binary", "HEAD")
            found.append(("diff_hash", hashlib.sha256(whole).hexdigest()))
    return found


def _tracked(git: Git, script: Path) -> str:
    try:
        git.text("ls-files", "--error-unmatch", "--", str(script))
    except _Failed:
        return "false"
    return "true"
