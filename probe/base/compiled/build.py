"""Compiles the hot path into `_hot.abi3.so` beside its sources: `python -m probe.base.compiled.build`.

One library for all versions of Python (stable ABI), so an attached job of another version loads it too. The
build hook (hatch_build.py) and `bench/environment.sh` call this; without a compiler or Python's headers there
is no library, and the plain source runs. Standard library only.
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

from probe.base.c_compiler import compile_to

HERE = Path(__file__).parent
LIBRARY = HERE / "_hot.abi3.so"
FLAGS = ("-shared", "-fPIC", "-O2", "-std=gnu11", "-fvisibility=hidden", "-Wl,-z,noexecstack")


def digest() -> str:
    """Checksum of the C sources: a library compiled from other sources is not used."""
    found = 0
    for path in sorted(HERE.glob("*.[ch]")):
        found = zlib.crc32(path.read_bytes(), found)
    return f"{found:08x}"


def build(library: Path = LIBRARY, headers: Path | None = None) -> str:
    """Compile the library with this Python's headers, or those in another folder. Returns the problem, empty
    if there is none."""
    import sysconfig  # not in the job, which only needs the digest

    headers = headers or Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").is_file():
        return f"Python's headers are not installed ({headers}/Python.h)"
    flags = (*FLAGS, f'-DPROBE_SOURCES="{digest()}"', f"-I{headers}")
    problem = compile_to(library, flags, sorted(HERE.glob("*.c")))
    if not problem:
        library.chmod(0o755)  # other users may import it
    return problem


if __name__ == "__main__":
    problem = build()
    if problem:
        sys.stderr.write(f"the hot path is not compiled, so its Python version runs: {problem}\n")
