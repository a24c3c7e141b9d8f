"""Freed memory goes back to the system when it has become much.

Compiling a program leaves some tens of megabytes of freed memory in the process, which glibc keeps as long as anything
behind them is in use: gigabytes after a hundred programs.
"""

from __future__ import annotations

import ctypes
import pathlib
import resource

_STATM = pathlib.Path("/proc/self/statm")
GROWTH = 300e6  # bytes
_size = 0


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
