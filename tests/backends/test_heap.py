"""Memory that was freed behind something still in use goes back to the system."""

import platform
import subprocess
import sys

import pytest

# In a process of its own: in one whose heap has free pages, the blocks would not make it grow.
PROGRAM = """
import ctypes
from nlrl_jax.backends import heap

BLOCK, NUMBER = 100_000, 5_000  # below glibc's threshold for mappings of their own; 500 MB in all
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
before = heap._size = heap.resident()
blocks = [libc.malloc(BLOCK) for _ in range(NUMBER)]
for block in blocks:
    ctypes.memset(block, 1, BLOCK)
for block in blocks[:-1]:
    libc.free(block)
freed = heap.resident()
heap.trim()
print((freed - before) / (BLOCK * NUMBER), (heap.resident() - before) / (BLOCK * NUMBER))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="trimming is glibc's")
def test_freed_blocks_below_a_used_one_are_given_back():
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    freed, trimmed = map(float, run.stdout.split())
    assert freed > 0.8  # glibc keeps them
    assert trimmed < 0.2
