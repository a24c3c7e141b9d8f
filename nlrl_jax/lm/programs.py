"""Programs of many shapes: compiled once for all threads, and forgotten before a process can hold no more of them.

XLA:CPU maps the code of a program into memory piece by piece: that of a large model in 300 to 1,000 mappings. Linux
allows a process a limited number (`vm.max_map_count`, 65,530 by default), after which its allocations fail.

The programs of a small model take longer to compile than to run many times, most of it in LLVM: `compiler_options`.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax

from nlrl_jax.lm import products
from nlrl_jax.lm.acting import is_large
from nlrl_jax.lm.transformer import Transformer

_LEVEL = "xla_backend_optimization_level"
_MAPS, _LIMIT = pathlib.Path("/proc/self/maps"), pathlib.Path("/proc/sys/vm/max_map_count")


class Programs:
    """Which programs have been compiled, and the jitted functions that they belong to.

    Where a new one is due and half of the mappings are taken that were left before, all programs of these functions are
    forgotten. What is still needed is compiled again, or comes from the compilation cache on disk.
    """

    def __init__(self):
        self.functions: weakref.WeakSet[Any] = weakref.WeakSet()
        self.known: set[Any] = set()
        self.compiling = threading.Lock()
        self.most = limit() // 2

    def own(self, function: Any) -> Any:
        """The same function, a result of `jax.jit`, whose programs may be forgotten from now on."""
        self.functions.add(function)
        return function

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
        for function in list(self.functions):
            function.clear_cache()
        self.most = (mappings() + limit()) // 2


class OfModel:
    """A function of (model, ...) as a result of `jax.jit`, compiled with the `compiler_options` of its model.

    Args:
      static_argnums, donate_argnums: as for `jax.jit`; the model, argument 0, is static anyway.
    """

    def __init__(self, function: Callable[..., Any], static_argnums: tuple[int, ...] = (), **options: Any):
        self._function, self._options = function, {"static_argnums": (0, *static_argnums), **options}
        self._jitted: dict[tuple, Any] = {}

    def __call__(self, model: Transformer, *args: Any) -> Any:
        options = compiler_options(model)
        key = tuple(options.items())
        if key not in self._jitted:
            self._jitted[key] = jax.jit(self._function, compiler_options=options, **self._options)
        return self._jitted[key](model, *args)

    def clear_cache(self) -> None:
        """Forgets the programs."""
        for jitted in self._jitted.values():
            jitted.clear_cache()

    def _cache_size(self) -> int:
        return sum(jitted._cache_size() for jitted in self._jitted.values())


def compiler_options(model: Transformer) -> dict[str, Any]:
    """Options of `jax.jit` for a program of a small model on a CPU: a sixth to a third less time to compile.

    XLA's level 1 in place of 3. In FrozenLake with the built-in model an iteration takes as long within 2 %, and ten
    iterations printed the same returns and losses. LLVM also writes the products of large models
    (`products.few_rows`), which stay at 3. A level in $XLA_FLAGS holds.
    """
    if is_large(model.config) or not products.on_cpu(model.mesh) or _LEVEL in os.environ.get("XLA_FLAGS", ""):
        return {}
    return {_LEVEL: 1}


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


PROGRAMS = Programs()
