"""A server whose query workers run without sandbox and DuckDB lock: the fault that `sql --control` plants.

Running this module starts that server; its workers run `worker` of this file.
"""

from __future__ import annotations

from pathlib import Path

SECRET = "CAMPAIGN_SECRET"
"""Environment variable with a secret that these workers inherit."""


TESTS = Path(__file__).resolve().parents[1]
_WORKER = (
    "import sys; sys.path.append({tests!r}); from campaigns.sql_loosened import worker; worker(sys.argv[1:])"
)


def server() -> None:
    """Run the server; its workers come from this file and have the secret in their environment."""
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
    """Run a query worker that enters no sandbox and does not lock DuckDB."""
    from probe.confined import sandbox
    from probe.server.sql import statements
    from probe.server.sql import worker as true_worker

    sandbox.enter = lambda *_: []
    statements.lock = lambda *_: None  # type: ignore[attr-defined]
    true_worker.main(arguments)


if __name__ == "__main__":
    server()
