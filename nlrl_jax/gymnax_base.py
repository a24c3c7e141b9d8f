"""Gymnax's base classes, imported without Matplotlib and seaborn.

Gymnax draws with these and imports them with all its games, which takes longer than the rest of a start; here they are
imported when Gymnax first draws.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any

from nlrl_jax.module_finder import ModuleFinder

DRAWING = ("matplotlib", "seaborn")


class _Deferred(types.ModuleType):
    """A module that is imported when something is first taken from it."""

    def __getattr__(self, name: str) -> Any:
        # While `deferred` is open, `from matplotlib import colors` must find no attribute, and then the next module.
        if name.startswith("__") or sys.modules.get(self.__name__) is self:
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def deferred(*libraries: str) -> Iterator[None]:
    """Within, imports of libraries that are not imported yet do nothing until something is taken from them later on.

    Afterwards they can be imported as ever.
    """
    finder = ModuleFinder([library for library in libraries if library not in sys.modules], _Deferred)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name, module in sys.modules.items() if isinstance(module, _Deferred)]:
            del sys.modules[name]


with deferred(*DRAWING):
    from gymnax.environments import environment, spaces
    from gymnax.environments.environment import EnvParams

__all__ = ["EnvParams", "environment", "spaces"]
