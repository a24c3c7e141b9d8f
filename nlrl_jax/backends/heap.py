"""Freed memory is kept for the next array (`hold`), and goes back to the system when it has become much (`trim`).

Compiling a program leaves some tens of megabytes of freed memory in the process, which glibc keeps as long as anything
behind them is in use: gigabytes after a hundred programs. Arrays above 32 MB, however, it takes from the system anew
each time, which then clears every page: a tenth to a fifth of the time of LAC's calls.
"""

from __future__ import annotations

import ctypes
import pathlib
import resource

_STATM = pathlib.Path("/proc/self/statm")
GROWTH = 300e6  # bytes
_HOLD = {-3: 1 << 30, -1: (1 << 31) - 1}  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD: bytes
_size = 0


def hold() -> None:
    """Keeps freed arrays of any size, for the whole process; does nothing without glibc."""
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option:
        for name, value in _HOLD.items():
            option(name, value)


def trim() -> None:
    """Trims the heap where the process has grown by `GROWTH` since the last time; does nothing without glibc."""
    global _size
    if not _STATM.is_file() or resident() < _size + GROWTH:
        return
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if release:
        release(0)
    _size = resident()


def resident() -> int:
    """Bytes of memory that the process holds."""
    return int(_STATM.read_text().split()[1]) * resource.getpagesize()
