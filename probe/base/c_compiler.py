"""Calls the C compiler, for the optional parts of probe that are written in C.

Used by the build hook (hatch_build.py), by `bench/environment.sh` and by the first attach. Standard library
only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

_COMPILING_S = 120.0


def compiler() -> str | None:
    """The C compiler: $CC when it is one word, else cc, gcc or clang."""
    import shutil

    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        found = shutil.which(name) if name and " " not in name else None
        if found:
            return found
    return None


def compile_to(into: Path, flags: Sequence[str], sources: Sequence[Path]) -> str:
    """Compile `sources` to the library `into`, whole or not at all. Returns the problem, empty if there is
    none."""
    import subprocess
    import tempfile

    program = compiler()
    if program is None:
        return "there is no C compiler (cc)"
    descriptor, made = tempfile.mkstemp(dir=into.parent, prefix=f".{into.name}.")
    os.close(descriptor)
    try:
        done = subprocess.run(
            [program, *flags, "-o", made, *map(str, sources)], stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=_COMPILING_S, check=False,
        )
        if done.returncode:
            names = ", ".join(source.name for source in sources)
            return f"{program} could not compile {names}: {done.stderr.strip()[-400:]}"
        os.chmod(made, 0o700)
        os.replace(made, into)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program}: {error}"
    finally:
        if os.path.exists(made):
            os.unlink(made)
    return ""
