"""Stand-ins for JAX and other libraries, for a process that prints a script's options and ends.

Importing the libraries takes most of the time of `--help`, which calls none of their functions. As with Sphinx's
`autodoc_mock_imports`, modules are imported without them: what is taken from a stand-in, subscripted or called is a
stand-in again, as a base class it is none, and as a decorator it leaves a class as it is.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

from nlrl_jax.module_finder import ModuleFinder

HELP = {"--help", "-help", "-h", "--helpshort"}  # what asks for the options of a script
LIBRARIES = {
    "asyncio", "chex", "etils", "flax", "gymnax", "httpx", "importlib.metadata", "jax", "jaxlib", "jinja2", "optax",
    "orbax", "rapidfuzz", "safetensors", "scipy", "tokenizers", "transformers",
}  # fmt: skip


class StandIn(types.ModuleType):
    """A module, or anything taken from one."""

    def __getattr__(self, name: str) -> StandIn:
        if name.startswith("__"):  # which Python looks for, and takes for promises
            raise AttributeError(name)
        return StandIn(name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        is_decorator = len(args) == 1 and isinstance(args[0], type)
        return args[0] if is_decorator else self

    def __getitem__(self, key: Any) -> StandIn:
        return self

    def __iter__(self) -> Iterator[Any]:  # without it, `__getitem__` would make this a sequence without an end
        return iter(())

    def __or__(self, other: Any) -> StandIn:  # of types: `jax.Array | None`
        return self

    __ror__ = __or__

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()


def install() -> None:
    """From here on, imports of `LIBRARIES` are stand-ins; only for a process that computes nothing."""
    sys.meta_path.insert(0, ModuleFinder(LIBRARIES, StandIn))
