"""`%load_ext probe`: the line magic `%probe` and the cell magic `%%probe_sql`.

    %probe JOB diagnose         runs the command and shows what it prints
    %%probe_sql JOB             runs the cell as SQL; the answer is displayed and is in `_`

Runs in the notebook's kernel, on its main thread; IPython in functions.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from typing import Any

from probe.base.errors import ProbeError
from probe.client.answer import Answer
from probe.client.job import connect


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext probe`."""
    shell.register_magic_function(run_command, "line", "probe")
    shell.register_magic_function(run_sql, "cell", "probe_sql")


def unload_ipython_extension(shell: Any) -> None:
    """Called by `%unload_ext probe`."""
    for kind, name in (("line", "probe"), ("cell", "probe_sql")):
        shell.magics_manager.magics[kind].pop(name, None)


def run_command(line: str) -> None:
    """Run the command `probe` with these arguments, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "probe_cli", *shlex.split(line)], capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL,
    )
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)


def run_sql(line: str, cell: str) -> Answer | None:
    """Run the SQL in the cell on the job named in the line; an error is one line on stderr."""
    try:
        return connect(line.strip()).query(cell)
    except ProbeError as error:
        sys.stderr.write(f"probe: {error.message}\n" + (f"  next: {error.hint}\n" if error.hint else ""))
        return None
