"""Programs of many shapes: compiled once for all threads, and forgotten before a process can hold no more of them.

XLA:CPU maps the code of a program into memory piece by piece, that of a large model in some five hundred mappings.
Linux allows a process a limited number (`vm.max_map_count`, 65,530 by default), after which every allocation fails.
"""

from __future__ import annotations

import contextlib
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

_MAPS, _LIMIT = pathlib.Path("/proc/self/maps"), pathlib.Path("/proc/sys/vm/max_map_count")


class Programs:
    """Which programs of some jitted functions have been compiled.

    Where a new one is due and half of the mappings are taken that were left before, all of them are forgotten. What is
    still needed is compiled again, or comes from the compilation cache on disk.

    Args:
      functions: results of `jax.jit`.
    """

    def __init__(self, *functions: Any):
        self.functions = functions
        self.known: set[Any] = set()
        self.compiling = threading.Lock()
        self.most = limit() // 2

    @contextlib.contextmanager
    def once(self, *program: Any) -> Iterator[None]:
        """Calls a program: where several threads need a new one at once, one compiles it and the others wait.

        Args:
          program: what names it, hashable.
        """
        if program in self.known:
            yield
            return
        with self.compiling:
            if program not in self.known and mappings() > self.most:
                self.forget()
            yield
            self.known.add(program)

    def forget(self) -> None:
        """Drops all programs; those that still run end first."""
        self.known.clear()
        for function in self.functions:
            function.clear_cache()
        self.most = (mappings() + limit()) // 2


def mappings() -> int:
    """How many parts of its address space this process has mapped; 0 where the system does not say."""
    with contextlib.suppress(OSError):
        with _MAPS.open("rb") as lines:
            return sum(1 for _ in lines)
    return 0


def limit() -> int:
    """How many a process may have; where the system does not say, more than it will."""
    with contextlib.suppress(OSError, ValueError):
        return int(_LIMIT.read_text())
    return 2**62
