"""Puts modules of ours in place of libraries while something is imported that needs no more of them."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import types
from collections.abc import Collection, Sequence


class ModuleFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """For `sys.meta_path`: libraries, and all modules within them, are empty modules of a class.

    Args:
      libraries: dotted names. module: its class.
    """

    def __init__(self, libraries: Collection[str], module: type[types.ModuleType]):
        self.libraries, self.module = libraries, module

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name in self.libraries or name.partition(".")[0] in self.libraries:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return self.module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        del module
