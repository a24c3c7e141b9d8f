"""`nlrl-jax NAME --options`: any script, from any folder; without a name the list of them.

The current folder comes last on the module path: your own games are found (`--game my_module:text_game`), and your own
folders `envs` or `launch` shadow nothing.
"""

from __future__ import annotations

import ast
import difflib
import os
import pathlib
import runpy
import sys
from collections.abc import Sequence

from nlrl_jax.run import stand_ins

# A file inspect.py would hide Python's own module from scripts that are started by their paths.
FILES = {"inspect": "inspect_model"}  # command -> its file, where the names differ


def scripts() -> dict[str, str]:
    """Every script's name and the first sentence of its docstring."""
    files = sorted(path for path in pathlib.Path(__file__).parent.glob("*.py") if not path.name.startswith("_"))
    names = {file: name for name, file in FILES.items()}
    sentences = {}
    for path in files:
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        sentences[names.get(path.stem, path.stem)] = " ".join(docstring.partition("\n\n")[0].split())
    return sentences


def _versions() -> str:
    """What a report of a fault needs: our version, JAX's and Python's."""
    import importlib.metadata  # takes a fifth of the time of `nlrl-jax --help`

    lines = [f"Python {sys.version.split()[0]}"]
    for package in ("transformers", "flax", "jaxlib", "jax", "nlrl_jax"):
        try:
            lines.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            lines.append(f"{package} is not installed")
    return "\n".join(reversed(lines))


def nearest(name: str, names: Sequence[str]) -> str:
    """Which of the scripts could be meant, as a sentence."""
    plain = name.lower().replace("-", "_").removesuffix(".py").rpartition("/")[2]
    plain = {"sft": "warm_start", "chat": "generate", "infer": "generate"}.get(plain, plain)
    close = [script for script in names if f"_{plain}" in f"_{script}"] or difflib.get_close_matches(plain, names, n=1)
    return f"did you mean {', '.join(close)}?" if close else f"there are {', '.join(names)}"


def main() -> None:
    sentences = scripts()
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("--version", "-V", "version"):
        print(_versions())
        return
    if name in ("--help", "-h", "help", "list"):
        print("nlrl-jax NAME --options; nlrl-jax NAME --help lists the options.\n")
        print("\n".join(f"  {script:30}{sentence}" for script, sentence in sentences.items()))
        return
    if name not in sentences:
        sys.exit(f"error: no script is named {name!r}; {nearest(name, list(sentences))}")
    sys.path.append(os.getcwd())
    del sys.argv[1]
    if stand_ins.HELP & set(sys.argv[1:]):
        stand_ins.install()
    runpy.run_module(f"nlrl_jax.launch.{FILES.get(name, name)}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
