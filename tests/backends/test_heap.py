"""Memory that was freed behind something still in use goes back to the system."""

import ctypes
import platform

import pytest

from nlrl_jax.backends import heap

BLOCK, NUMBER = 100_000, 5_000  # below glibc's threshold for mappings of their own; 500 MB in all


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="trimming is glibc's")
def test_freed_blocks_below_a_used_one_are_given_back(monkeypatch):
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    before = heap.resident()
    monkeypatch.setattr(heap, "_size", before)
    blocks = [libc.malloc(BLOCK) for _ in range(NUMBER)]
    for block in blocks:
        ctypes.memset(block, 1, BLOCK)
    for block in blocks[:-1]:
        libc.free(block)
    assert heap.resident() > before + 0.8 * BLOCK * NUMBER  # glibc keeps them
    heap.trim()
    assert heap.resident() < before + 0.2 * BLOCK * NUMBER
    libc.free(blocks[-1])
