"""The boot library (boot.c): compiled once, and placed where a job can load it.

Hatchling's build hook calls `compile_library` where a compiler is (hatch_build.py), so wheels carry the
file; without it the first attach compiles it. Its copy lies at one path per content in the private folder
PROBE_DIR/boot: a job that is attached to again maps nothing new. Standard library only, nothing of probe
at the top, so that the build hook can load this file by itself.
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
    """Compile boot.c to `into` (whole or not at all); empty, or why it could not be."""
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
    """The boot library in `folder` (private): the packaged one's copy, else compiled here.

    None, with the reason, when there is neither a packaged one nor a compiler.
    """
    # In a checkout the packaged one may be of an older boot.c.
    if PACKAGED.is_file() and PACKAGED.stat().st_mtime >= SOURCE.stat().st_mtime:
        content = PACKAGED.read_bytes()
        path = folder / f"boot-{_digest(content)}.so"
        if not _holds(path, content):
            _write(path, content)
        return path, ""
    path = folder / f"boot-{_digest(SOURCE.read_bytes() + ' '.join(FLAGS).encode())}.so"
    if path.is_file():
        return path, ""
    problem = compile_library(path)
    return (None, problem) if problem else (path, "")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content + os.uname().machine.encode()).hexdigest()[:16]


def _holds(path: Path, content: bytes) -> bool:
    """Whether a whole copy is there. A job may have it mapped: it is never written to again."""
    return path.is_file() and path.read_bytes() == content


def _write(path: Path, content: bytes) -> None:
    descriptor, made = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    os.chmod(made, 0o700)
    os.replace(made, path)
