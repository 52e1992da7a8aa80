"""The boot library (boot.c): compiled once, and placed where a job can load it.

Hatchling's build hook calls `compile_library` if there is a compiler (hatch_build.py), so wheels contain the
library; without it the first attach compiles it. The copy in the private folder PROBE_DIR/boot has one path
per content: attaching to a job again maps nothing new. Standard library only and no imports of probe, so that
the build hook can load this file alone.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("boot.c")
PACKAGED = Path(__file__).with_name("boot.so")
FLAGS = (
    "-shared", "-fPIC", "-O2", "-std=gnu11", "-fvisibility=hidden", "-fno-stack-protector",
    # Symbols without versions and no library by name: whatever libc the job has is the right one.
    "-nostdlib", "-U_FORTIFY_SOURCE", "-Wl,--hash-style=both", "-Wl,-z,noexecstack", "-Wl,--build-id=none",
)
_COMPILING_S = 60.0


def compiler() -> str | None:
    """The C compiler: $CC when it is one word, else cc, gcc or clang."""
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        found = shutil.which(name) if name and " " not in name else None
        if found:
            return found
    return None


def compile_library(into: Path) -> str:
    """Compile boot.c to `into`, whole or not at all. Returns the problem, empty if there is none."""
    program = compiler()
    if program is None:
        return "there is no C compiler (cc)"
    descriptor, made = tempfile.mkstemp(dir=into.parent, prefix=f".{into.name}.")
    os.close(descriptor)
    try:
        done = subprocess.run(
            [program, *FLAGS, "-o", made, str(SOURCE)], stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=_COMPILING_S, check=False,
        )
        if done.returncode:
            return f"{program} could not compile {SOURCE.name}: {done.stderr.strip()[-400:]}"
        os.chmod(made, 0o700)
        os.replace(made, into)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program}: {error}"
    finally:
        if os.path.exists(made):
            os.unlink(made)
    return ""


def place_library(folder: Path) -> tuple[Path | None, str]:
    """The boot library in `folder` (private): a copy of the packaged one, else compiled here.

    None, with the reason, when there is neither a packaged one nor a compiler.
    """
    # In a checkout the packaged one may be older than boot.c.
    if PACKAGED.is_file() and PACKAGED.stat().st_mtime >= SOURCE.stat().st_mtime:
        content = PACKAGED.read_bytes()
        path = folder / f"boot-{_digest(content)}.so"
        # A job may have mapped it: a whole copy is never written to again.
        if not path.is_file() or path.read_bytes() != content:
            _write(path, content)
        return path, ""
    path = folder / f"boot-{_digest(SOURCE.read_bytes() + ' '.join(FLAGS).encode())}.so"
    if path.is_file():
        return path, ""
    problem = compile_library(path)
    return (None, problem) if problem else (path, "")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content + os.uname().machine.encode()).hexdigest()[:16]


def _write(path: Path, content: bytes) -> None:
    descriptor, made = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    os.chmod(made, 0o700)
    os.replace(made, path)
