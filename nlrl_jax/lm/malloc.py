"""What glibc does with freed memory on a CPU: it is kept in huge pages, and given back once there is much of it.

A training step takes gigabytes and frees them. By default each step maps them anew, page by page. Compiling a program,
on the other hand, leaves some tens of megabytes of freed memory in the process, which glibc keeps as long as anything
after them is in use: gigabytes after a hundred programs.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import resource
import sys

_STATM = pathlib.Path("/proc/self/statm")
GROWTH = 300e6  # bytes
_HUGE, _MADV_HUGEPAGE = 2 << 20, 14
_size = 0


def keep() -> None:
    """Lets glibc reuse freed memory instead of handing it back to the system between two calls of a program, and asks
    for huge pages where the system leaves that to programs. For the whole process, once, before arrays are made;
    elsewhere than on Linux with glibc it does nothing.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if not hasattr(libc, "mallopt"):
        return
    arena_max, mmap_max, trim_threshold = -8, -4, -1  # names in malloc.h
    libc.mallopt(arena_max, 1)
    libc.mallopt(mmap_max, 0)
    libc.mallopt(trim_threshold, -1)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    # The heap grows over addresses that carry the wish for huge pages; no memory is taken before it is written to.
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    block = libc.malloc(size)
    if block:
        first = -(-block // _HUGE) * _HUGE
        libc.madvise(first, (block + size - first) // _HUGE * _HUGE, _MADV_HUGEPAGE)
        libc.free(block)


def trim() -> None:
    """`release` where the process has grown by `GROWTH` since the last time."""
    if _STATM.is_file() and resident() >= _size + GROWTH:
        release()


def release() -> None:
    """Gives freed memory back to the system; does nothing without glibc."""
    global _size
    release_all = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if release_all and _STATM.is_file():
        release_all(0)
        _size = resident()


def resident() -> int:
    """Bytes of memory that the process holds."""
    return int(_STATM.read_text().split()[1]) * resource.getpagesize()
