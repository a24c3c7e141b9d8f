"""Memory that was freed below something still in use goes back to the system, and large arrays lie in huge pages."""

import pathlib
import platform
import subprocess
import sys

import pytest

# In a process of its own: in one whose heap has free pages, the blocks would not make it grow.
PROGRAM = """
import ctypes
from nlrl_jax.lm import malloc

BLOCK, NUMBER = 100_000, 5_000  # below glibc's threshold for mappings of their own; 500 MB in all
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
before = malloc._size = malloc.resident()
blocks = [libc.malloc(BLOCK) for _ in range(NUMBER)]
for block in blocks:
    ctypes.memset(block, 1, BLOCK)
for block in blocks[:-1]:
    libc.free(block)
freed = malloc.resident()
malloc.trim()
print((freed - before) / (BLOCK * NUMBER), (malloc.resident() - before) / (BLOCK * NUMBER))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="trimming is glibc's")
def test_freed_blocks_below_a_used_one_are_given_back():
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    freed, trimmed = map(float, run.stdout.split())
    assert freed > 0.8  # glibc keeps them
    assert trimmed < 0.2


KEPT = """
from nlrl_jax.lm import malloc
import numpy as np

malloc.keep()
def pages(name):
    return int(open("/proc/self/smaps_rollup").read().split(name + ":")[1].split()[0]) / 1024
for _ in range(2):
    x = np.ones(25_000_000)
    print(pages("AnonHugePages"), malloc.resident() / 2**20)
    del x
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the policy is glibc's")
def test_large_arrays_are_kept_and_lie_in_huge_pages():
    run = subprocess.run([sys.executable, "-c", KEPT], capture_output=True, text=True, check=True)
    (huge, resident), (_, again) = (map(float, line.split()) for line in run.stdout.splitlines())
    enabled = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if enabled.is_file() and "[never]" not in enabled.read_text():
        assert huge > 150  # of 191 MB
    assert again < resident + 50  # the second array has taken the first one's place
