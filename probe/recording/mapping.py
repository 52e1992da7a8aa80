"""Maps a file into memory without keeping a descriptor.

Before Python 3.13 `mmap.mmap` keeps a duplicate of the descriptor and closes that number with the map; by
then it may be a file of the job. So the file is mapped over an anonymous map of the same size, which has no
descriptor. Standard library only; used when a recording is made, never on the hot path.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import sys
from typing import Any

_MAP_FIXED = 0x10
"""Linux's value on every architecture that torch supports."""


def map_file(descriptor: int, size: int) -> mmap.mmap:
    """Map `size` bytes of a file, shared and writable; its descriptor may be closed. Raises `OSError`."""
    if sys.version_info >= (3, 13):
        return mmap.mmap(descriptor, size, trackfd=False)
    found = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    first = ctypes.c_char.from_buffer(found)
    address = ctypes.addressof(first)
    del first  # it would keep the map open
    laid = _mmap()(
        address, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED, descriptor, 0
    )
    if laid != address:
        code = ctypes.get_errno()
        found.close()
        raise OSError(code, os.strerror(code))
    return found


@functools.cache
def _mmap() -> Any:
    try:
        call = ctypes.CDLL(None, use_errno=True).mmap
    except (OSError, AttributeError, TypeError) as error:
        raise OSError(f"this Python cannot call the C library: {error}") from None
    call.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    )
    call.restype = ctypes.c_void_p
    return call
