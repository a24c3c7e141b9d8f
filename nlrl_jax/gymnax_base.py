"""Gymnax's base classes, imported without Matplotlib and seaborn.

Gymnax draws with these and imports them with all its games, which takes longer than the rest of a start; here they are
imported when Gymnax first draws.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

DRAWING = ("matplotlib", "seaborn")


class _Deferred(types.ModuleType):
    """A module that is imported when something is first taken from it."""

    def __getattr__(self, name: str) -> Any:
        # While `deferred` is open, `from matplotlib import colors` must find no attribute, and then the next module.
        if name.startswith("__") or sys.modules.get(self.__name__) is self:
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, libraries: Sequence[str]):
        self.libraries = libraries

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        is_deferred = name.partition(".")[0] in self.libraries
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_deferred else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Deferred(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        del module


@contextlib.contextmanager
def deferred(*libraries: str) -> Iterator[None]:
    """Within, imports of libraries that are not imported yet do nothing until something is taken from them later on.

    Afterwards they can be imported as ever.
    """
    finder = _Finder([library for library in libraries if library not in sys.modules])
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
