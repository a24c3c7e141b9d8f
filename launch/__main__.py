"""`nlrl-jax NAME --options`: any script, from any folder; without a name the list of them.

The current folder comes last on the module path: your own games are found (`--game my_module:text_game`), and your own
folders `envs` or `launch` shadow nothing.
"""

from __future__ import annotations

import ast
import difflib
import importlib.metadata
import os
import pathlib
import runpy
import sys


def scripts() -> dict[str, str]:
    """Every script's name and the first sentence of its docstring."""
    files = sorted(path for path in pathlib.Path(__file__).parent.glob("*.py") if not path.name.startswith("_"))
    first = lambda path: (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n\n")[0]
    return {path.stem: " ".join(first(path).split()) for path in files}


def _versions() -> str:
    """What a report of a fault needs: our version, JAX's and Python's."""
    lines = [f"Python {sys.version.split()[0]}"]
    for package in ("transformers", "flax", "jaxlib", "jax", "nlrl_jax"):
        try:
            lines.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            lines.append(f"{package} is not installed")
    return "\n".join(reversed(lines))


def main() -> None:
    known = scripts()
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("--version", "-V", "version"):
        print(_versions())
        return
    if name in ("--help", "-h", "help"):
        print("nlrl-jax NAME --options; nlrl-jax NAME --help lists the options.\n")
        print("\n".join(f"  {script:30}{sentence}" for script, sentence in known.items()))
        return
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
        sys.exit(f"error: no script is named {name!r}; {hint}")
    sys.path.append(os.getcwd())
    del sys.argv[1]
    runpy.run_module(f"launch.{name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
