"""What must be equal in all processes of a run, compared before they compute: how they were started, the code, and the
files that their options name."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import re
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from nlrl_jax import multihost
from nlrl_jax.run.directory import CONFIG
from nlrl_jax.weights import hub

_ROOMS = ("nlrl_jax", "nlrl_jax.envs", "nlrl_jax.launch")
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
# These may differ: where a process runs, and how it reports errors.
_PLACES = ("coordinator_address", "num_processes", "process_id", "initialization_timeout", "run_dir")
_VARIABLES = re.compile(
    r"NLRL_(?!TRACEBACK$)|XLA_FLAGS|JAX_(?!COORDINATOR|LOCAL|PROCESS|NUM_CPU_DEVICES$|COMPILATION_CACHE_DIR$)"
)
_SAMPLES, _SAMPLE = 16, 1 << 16  # a file of more bytes than all samples is read in so many pieces
_PATIENCE = 5.0  # seconds for a shared disk to show what another process wrote
_SHOWN = 5  # differences in a message


def at_start() -> dict[str, Any]:
    """The options, environment variables, package versions and code of this process."""
    facts: dict[str, Any] = {"the script": pathlib.Path(sys.argv[0]).stem}
    for module, group in flags.FLAGS.flags_by_module_dict().items():
        for flag in group:
            if flag.present and not module.startswith("absl") and flag.name not in _PLACES:
                facts[f"--{flag.name}"] = flag.value
    facts |= {f"${name}": os.environ[name] for name in sorted(os.environ) if _VARIABLES.match(name)}
    facts["Python"] = platform.python_version()
    facts |= {package: importlib.metadata.version(package) for package in _PACKAGES}
    for room in _ROOMS:
        facts[f"the code of {room}"] = fingerprint(pathlib.Path(importlib.util.find_spec(room).origin).parent)
    return facts


def differing(facts: Sequence[Mapping[str, Any]]) -> str:
    """How the processes differ: "--seed is 0 in process 0 and 8 in process 1; ...", or "".

    Args:
      facts: one mapping for each process, in order of their numbers.
    """
    differences = []
    for name in dict.fromkeys(name for row in facts for name in row):
        values = [json.dumps(row[name]) if name in row else "not given" for row in facts]
        process = next((n for n, value in enumerate(values) if value != values[0]), None)
        if process is not None:
            differences.append(f"{name} is {values[0]} in process 0 and {values[process]} in process {process}")
    rest = f"; and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    return "; ".join(differences[:_SHOWN]) + rest


def check(config: Mapping[str, Any], run_dir: pathlib.Path) -> None:
    """Compares the configs of all processes, the files and folders that they name, modules of the user's own, and the
    folder at --run_dir. All processes must call it after the first one has opened the run's folder.

    Raises:
      ValueError: the processes differ; the message is the same in all of them.
    """
    if not multihost.several():
        return
    facts = {}
    for name, value in config.items():
        if name not in _PLACES:
            facts[f"--{name}"] = value
            if path := _path(name, value, config.get("revision", "")):
                facts[f"what lies at --{name} {value}"] = fingerprint(path)
    rows, modules = multihost.every(facts), multihost.every(_user_modules())
    for name in sorted(set(modules[0]).intersection(*modules[1:])):  # some modules are needed by one process alone
        for row, hashes in zip(rows, modules, strict=True):
            row[f"the code of {name}"] = hashes[name]
    if difference := differing(rows):
        raise ValueError(f"the processes of a run must be alike, but {difference}. Give all of them the same")
    stamp = multihost.every(_stamp(run_dir) if multihost.first() else "")[0]
    deadline = time.monotonic() + _PATIENCE
    while _stamp(run_dir) != stamp and time.monotonic() < deadline:
        time.sleep(0.2)
    matches = multihost.every(_stamp(run_dir) == stamp)
    if not all(matches):
        raise ValueError(
            f"process {matches.index(False)} does not see the run's folder {run_dir} of process 0; all processes need "
            "the same --run_dir, on a disk that they share"
        )


def fingerprint(path: pathlib.Path) -> str:
    """A hash of a file, or of all files in a folder and their names, without hidden and compiled ones. Of a large file
    it covers the size and pieces spread over the content."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        name = file.relative_to(path)
        if not file.is_file() or any(part.startswith((".", "__pycache__")) for part in name.parts):
            continue
        size = file.stat().st_size
        digest.update(f"{name}\0{size}\0".encode())
        with file.open("rb") as content:
            if size <= _SAMPLES * _SAMPLE:
                digest.update(content.read())
                continue
            for n in range(_SAMPLES):  # the first at the beginning, the last at the end
                content.seek((size - _SAMPLE) * n // (_SAMPLES - 1))
                digest.update(content.read(_SAMPLE))
    return digest.hexdigest()[:12]


def _path(name: str, value: Any, revision: str) -> pathlib.Path | None:
    """The file or folder that an option names, a model of the Hub included; None where it names none."""
    if not isinstance(value, str) or not value:
        return None
    path = pathlib.Path(os.path.expanduser(value))
    if name == "model" and hub.is_id(value) and not path.exists():
        path = hub.snapshot(value, revision)  # already loaded: nothing is downloaded
    return path if path.exists() else None


def _user_modules() -> dict[str, str]:
    """Imported modules that belong to no installed package, such as the user's own game: name -> hash."""
    paths = sysconfig.get_paths()
    installed = tuple({paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})
    hashes = {}
    for name, module in list(sys.modules.items()):
        file = os.path.abspath(getattr(module, "__file__", None) or "")
        is_ours = name == "__main__" or name.split(".")[0] == "nlrl_jax"
        if file.endswith(".py") and not is_ours and not file.startswith(installed):
            hashes[name] = fingerprint(pathlib.Path(file))
    return hashes


def _stamp(run_dir: pathlib.Path) -> str:
    """Distinguishes this folder from any other: each start writes its config anew."""
    try:
        return f"{(run_dir / CONFIG).stat().st_mtime_ns} {fingerprint(run_dir / CONFIG)}"
    except OSError:
        return ""
