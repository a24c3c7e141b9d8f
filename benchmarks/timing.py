"""What the benchmarks share: the machine in a line, subjects that take turns, and Markdown tables.

Imports no JAX before it is needed, so that a peer's Python can use it too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Hashable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent  # where processes of a benchmark start


def parser_of(doc: str, **defaults: Any) -> argparse.ArgumentParser:
    """A parser that shows a script's docstring; `repeats=3` adds --repeats with that default, in its own type."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        kind = {"nargs": "+", "type": type(default[0])} if isinstance(default, list) else {"type": type(default)}
        parser.add_argument(f"--{name}", default=default, **kind)
    return parser


def host(*packages: str) -> str:
    """Versions, the machine and its load, in one line."""
    versions = ", ".join(f"{name} {version(name)}" for name in (*packages, "jax"))
    cores = f"{os.cpu_count()} cores ({platform.machine()})"
    return f"{versions}, Python {platform.python_version()}, {cores}, load {os.getloadavg()[0]:.1f}"


def machine(*packages: str) -> str:
    """The same with the device."""
    import jax

    return f"{host(*packages)}, {jax.devices()[0].device_kind}"


def timed(run: Callable[..., Any], *args: Any) -> tuple[float, Any]:
    """(seconds until the result of a call is there, the result)."""
    import jax

    start = time.perf_counter()
    out = jax.block_until_ready(run(*args))
    return time.perf_counter() - start, out


def both_clocks(run: Callable[..., Any], *args: Any) -> tuple[float, float, Any]:
    """(seconds of a call, of this process on all cores meanwhile, the result)."""
    before = time.process_time()
    seconds, out = timed(run, *args)
    return seconds, time.process_time() - before, out


def in_turns(subjects: Mapping[Hashable, Callable[[int], Any]], repeats: int) -> dict[Hashable, list[Any]]:
    """What each subject returns for each repeat; within a repeat they take turns."""
    results: dict[Hashable, list[Any]] = {name: [] for name in subjects}
    for repeat in range(repeats):
        for name, subject in subjects.items():
            results[name].append(subject(repeat))
    return results


def medians(values: Mapping[Hashable, list[float]]) -> dict[Hashable, float]:
    return {name: statistics.median(column) for name, column in values.items()}


def last_json(process: subprocess.Popen) -> Any:
    """The JSON in the last line that a process prints, once it has ended."""
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(process.args)} failed")
    return json.loads(output.splitlines()[-1])


def print_row(*cells: Any) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def print_head(*titles: str) -> None:
    print_row(*titles)
    print("|---" * len(titles) + "|", flush=True)
