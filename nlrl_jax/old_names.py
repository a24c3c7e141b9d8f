"""In a checkout, `envs` and `launch` are other names of `nlrl_jax.envs` and `nlrl_jax.launch`: the same modules."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads `envs.snake` as `nlrl_jax.envs.snake`, once for both names."""

    def __init__(self, package: str):
        self.package = package

    def find_spec(self, name, path=None, target=None):
        if not name.startswith(self.package + "."):
            return None
        spec = importlib.util.find_spec(f"nlrl_jax.{name}")
        is_package = spec and bool(spec.submodule_search_locations)
        # `python -m` makes the origin sys.argv[0], from which absl takes the program's name
        return spec and importlib.util.spec_from_loader(name, self, origin=spec.origin, is_package=is_package)

    def create_module(self, spec):
        module = importlib.import_module(f"nlrl_jax.{spec.name}")
        self.spec = module.__spec__
        return module

    def exec_module(self, module):
        module.__spec__ = self.spec  # the import system has written the other name's

    def get_code(self, name):  # for `python -m launch.NAME`
        spec = importlib.util.find_spec(f"nlrl_jax.{name}")
        return spec.loader.get_code(spec.name)


def alias(package: str) -> None:
    """Makes `package` and its modules those of nlrl_jax. Called where a package is imported by its old name."""
    sys.meta_path.insert(0, _Finder(package))
    sys.modules[package] = importlib.import_module(f"nlrl_jax.{package}")
