"""A server whose query workers keep everything: what the control of the campaign `sql` plants.

Run as a module it is that server; its workers come from here too, with no sandbox and no lock.
"""

from __future__ import annotations

from pathlib import Path

SECRET = "CAMPAIGN_SECRET"
"""The variable of the environment that such a worker is given."""


TESTS = Path(__file__).resolve().parents[1]
_WORKER = (
    "import sys; sys.path.append({tests!r}); from campaigns.sql_loosened import worker; worker(sys.argv[1:])"
)


def server() -> None:
    """The server, with workers of this file and with the secret in their environment."""
    import os
    import subprocess

    from probe.confined import worker_frames
    from probe.server import __main__
    from probe.server.sql import pool

    class Loosened(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, words: list[str], **options: object) -> None:
            if words[1:3] == ["-m", "probe.server.sql.worker"]:
                words = [words[0], "-c", _WORKER.format(tests=os.fspath(TESTS)), *words[3:]]
            super().__init__(words, **options)  # type: ignore[call-overload]

    pool.subprocess.Popen = Loosened  # type: ignore[attr-defined]
    quiet = worker_frames.environment
    pool.environment = lambda: {**quiet(), SECRET: os.environ[SECRET]}  # type: ignore[attr-defined]
    __main__.main()


def worker(arguments: list[str]) -> None:
    """A worker that gives up nothing and locks nothing."""
    from probe.confined import sandbox
    from probe.server.sql import statements
    from probe.server.sql import worker as true_worker

    sandbox.enter = lambda *_: []
    statements.lock = lambda *_: None  # type: ignore[attr-defined]
    true_worker.main(arguments)


if __name__ == "__main__":
    server()
