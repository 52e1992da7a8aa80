"""Compiles the boot library (boot.c) once, and places it where a job can load it.

Hatchling's build hook calls `compile_library` if there is a compiler (hatch_build.py), so wheels contain the
library; without it the first attach compiles it. The copy in the private folder PROBE_DIR/boot has one path
per content, so attaching to a job again maps nothing new. Standard library only.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from probe.base.c_compiler import compile_to

SOURCE = Path(__file__).with_name("boot.c")
PACKAGED = Path(__file__).with_name("boot.so")
FLAGS = (
    "-shared", "-fPIC", "-O2", "-std=gnu11", "-fvisibility=hidden", "-fno-stack-protector",
    # Symbols without versions and no library by name: it must work with any libc that the job has.
    "-nostdlib", "-U_FORTIFY_SOURCE", "-Wl,--hash-style=both", "-Wl,-z,noexecstack", "-Wl,--build-id=none",
)


def compile_library(into: Path) -> str:
    """Compile boot.c to `into`, whole or not at all. Returns the problem, empty if there is none."""
    return compile_to(into, FLAGS, (SOURCE,))


def place_library(folder: Path) -> tuple[Path | None, str]:
    """The boot library in `folder` (private): a copy of the packaged one, else compiled here.

    None, with the reason, when there is neither a packaged one nor a compiler.
    """
    # In a checkout the packaged one may be older than boot.c.
    if PACKAGED.is_file() and PACKAGED.stat().st_mtime >= SOURCE.stat().st_mtime:
        content = PACKAGED.read_bytes()
        path = folder / f"boot-{_digest(content)}.so"
        # A job may have mapped it: a complete copy is never written again.
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
