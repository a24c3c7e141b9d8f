"""Makes docs/api.md out of the docstrings: `make docs`, or `python docs/make_api.py`. Imports nothing of ours.

A public name is a function or class at the top of a module without an underscore. Listed is one that another file uses;
of the engine rooms (`ENGINES`), one that a file outside the room uses.
"""

from __future__ import annotations

import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "api.md"

ROOMS = {  # as a reader meets them
    "losses": "The objectives, token by token.",
    "returns": "From rewards to advantages and improved policies.",
    "types": "The games, episodes and models that everything else passes around.",
    "algorithms": "One file per algorithm. `make_update` gives a pure function: (state, key) -> (state, metrics).",
    "text": "Templates that compile to token ids, the action parser, and policies over both.",
    "rollouts": "Vectorised episodes.",
    "lm": "The decoder, generation, scoring, tokenizers, LoRA and sharding.",
    "weights": "Checkpoints in and out: Hugging Face, GGUF, PEFT, Orbax.",
    "roles": "What a language model is asked, and how its reply is read.",
    "backends": "Who answers: a model in this process, an endpoint, rules, an expert.",
}
ENGINES = ("text", "lm", "weights", "backends")
HEAD = """# API

Generated from the docstrings by `make docs`; do not edit. The page lists public functions and classes that other files
use; for `text`, `lm`, `weights` and `backends`, those that other packages use. In Python,
`help(nlrl_jax.algorithms.lac)` gives shapes, units, errors and sources; `nlrl-jax NAME --help` lists options.
"""
WIDTH = 56  # of a signature; longer ones are cut


def modules() -> dict[str, ast.Module]:
    """Every module that may define or use a public name, by its dotted name."""
    paths = [
        path for top in ("nlrl_jax", "envs", "launch", "benchmarks") for path in sorted((ROOT / top).rglob("*.py"))
    ]
    trees = {}
    for path in paths:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        trees[name] = ast.parse(path.read_text())
    return trees


def room(module: str) -> str:
    """nlrl_jax.lm.score -> lm."""
    return module.split(".")[1] if module.startswith("nlrl_jax.") else module.partition(".")[0]


def uses(tree: ast.Module, known: dict[str, ast.Module]) -> set[tuple[str, str]]:
    """(module, name) of what a module imports from others, or reads as `module.name`."""
    modules_by_alias, names = {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if f"{node.module}.{alias.name}" in known:
                    modules_by_alias[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                else:
                    names.add((node.module, alias.name))
        elif isinstance(node, ast.Import):
            modules_by_alias |= {alias.asname: alias.name for alias in node.names if alias.asname}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules_by_alias:
            names.add((modules_by_alias[node.value.id], node.attr))
    return names


def public(known: dict[str, ast.Module]) -> dict[str, list[ast.FunctionDef | ast.ClassDef]]:
    """The listed names of each module, in the order of the file."""

    def unit(module: str) -> str:
        """An engine room is used as a whole; elsewhere each module by itself."""
        return room(module) if room(module) in ENGINES else module

    used = set()
    for user, tree in known.items():
        used |= {(module, name) for module, name in uses(tree, known) if unit(module) != unit(user)}
    listed = {}
    for module, tree in known.items():
        if module.startswith("nlrl_jax.") and room(module) in ROOMS:
            nodes = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
            listed[module] = [node for node in nodes if node.name[0] != "_" and (module, node.name) in used]
    return listed


def sentence(node: ast.Module | ast.FunctionDef | ast.ClassDef) -> str:
    """The first sentence of a docstring, on one line."""
    first = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
    return re.split(r"(?<!et al)\. ", first)[0].rstrip(".") + "." if first else ""


def signature(node: ast.FunctionDef | ast.ClassDef) -> str:
    """`name(parameters)` of a function, cut where it is long; the name of a class."""
    if isinstance(node, ast.ClassDef):
        return node.name
    names = [argument.arg for argument in node.args.posonlyargs + node.args.args + node.args.kwonlyargs]
    while len(f"{node.name}({', '.join(names)})") > WIDTH:
        names = [*names[: -2 if names[-1] == "..." else -1], "..."]
    return f"{node.name}({', '.join(names)})"


def page() -> str:
    """The whole page."""
    contents = " | ".join(f"[{name}](#{name})" for name in ROOMS)
    listed, lines = public(known := modules()), [HEAD, contents, ""]
    for name, about in ROOMS.items():
        lines += [f"## {name}", "", about, ""]
        for module, nodes in listed.items():
            if room(module) != name or not nodes:
                continue
            file = module.replace(".", "/")
            file += ".py" if (ROOT / f"{file}.py").exists() else "/__init__.py"
            lines += [f"**[`{module}`](../{file})**: {sentence(known[module])}", ""]
            lines += [f"- `{signature(node)}`: {sentence(node)}" for node in nodes] + [""]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"{PAGE}: {page().count('- `')} names")
