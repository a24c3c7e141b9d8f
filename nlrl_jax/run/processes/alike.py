"""What must be equal in all processes of a run, compared before they compute: how they were started, the code, and the
files that their options name."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import sys
import sysconfig
import time
from collections.abc import Mapping
from typing import Any

from absl import flags

from nlrl_jax import multihost
from nlrl_jax.run.directory import CONFIG
from nlrl_jax.run.processes.meeting import differing
from nlrl_jax.weights import hub

_OURS = ("nlrl_jax", "nlrl_jax.envs", "nlrl_jax.launch")
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
# These may differ: where a process runs, and how it reports errors.
_PLACES = ("coordinator_address", "num_processes", "process_id", "initialization_timeout", "run_dir")
_OWN_VARIABLES = ("NLRL_TRACEBACK", "JAX_NUM_CPU_DEVICES", "JAX_COMPILATION_CACHE_DIR")
_OWN_PREFIXES = ("JAX_COORDINATOR", "JAX_LOCAL", "JAX_PROCESS")
_WHOLE = 1 << 20  # bytes of a file that are read; of a larger file as many, in pieces
_PIECES = 16
_PATIENCE = 5.0  # seconds for a shared disk to show what another process wrote


def at_start() -> dict[str, Any]:
    """The options, environment variables, package versions and code of this process."""
    options = {
        f"--{flag.name}": flag.value
        for place, found in flags.FLAGS.flags_by_module_dict().items()
        for flag in found
        if flag.present and not place.startswith("absl") and flag.name not in _PLACES
    }
    variables = {
        f"${name}": value
        for name, value in sorted(os.environ.items())
        if name.startswith(("NLRL_", "JAX_", "XLA_FLAGS")) and not name.startswith(_OWN_PREFIXES)
        if name not in _OWN_VARIABLES
    }
    versions = {package: importlib.metadata.version(package) for package in _PACKAGES}
    folders = {name: pathlib.Path(importlib.util.find_spec(name).origin).parent for name in _OURS}
    code = {f"the code of {name}": fingerprint(folder) for name, folder in folders.items()}
    script = {"the script": pathlib.Path(sys.argv[0]).stem}
    return {**script, **options, **variables, "Python": platform.python_version(), **versions, **code}


def check(config: Mapping[str, Any], run_dir: pathlib.Path) -> None:
    """Compares the configs of all processes, the files and folders that they name, modules of the user's own, and the
    folder at --run_dir. All processes must call it after the first one has opened the run's folder.

    Raises:
      ValueError: the processes differ; the message is the same in all of them.
    """
    if not multihost.several():
        return
    named = {f"what lies at --{name} {value}": fingerprint(path) for name, value, path in _paths(config)}
    config = {f"--{name}": value for name, value in config.items() if name not in _PLACES}
    found = differing([dict(one) for one in multihost.every({**config, **named})])
    modules = multihost.every(_own_modules())
    common = set(modules[0]).intersection(*modules[1:])  # some modules are needed by one process alone
    found = found or differing([{f"the code of {name}": one[name] for name in sorted(common)} for one in modules])
    if found:
        raise ValueError(f"the processes of a run must be alike, but {found}. Give all of them the same")
    stamps = multihost.every(_stamp(run_dir) if multihost.first() else "")
    seen = multihost.every(_sees(run_dir, stamps[0]))
    if not all(seen):
        raise ValueError(
            f"process {seen.index(False)} does not see the run's folder {run_dir} of process 0; all processes need the "
            "same --run_dir, on a disk that they share"
        )


def fingerprint(path: pathlib.Path) -> str:
    """A hash of a file, or of all files in a folder and their names, without hidden and compiled ones. Of a large file
    it covers the size and pieces spread over the content."""
    files = [path]
    if path.is_dir():
        names = [one.relative_to(path) for one in path.rglob("*")]
        kept = [one for one in names if not any(part.startswith((".", "__pycache__")) for part in one.parts)]
        files = [path / one for one in sorted(kept) if (path / one).is_file()]
    total = hashlib.sha256()
    for file in files:
        total.update(f"{file.relative_to(path)}\0".encode())
        _add(total, file)
    return total.hexdigest()[:12]


def _add(total: Any, file: pathlib.Path) -> None:
    with file.open("rb") as content:
        size = content.seek(0, os.SEEK_END)
        total.update(f"{size}\0".encode())
        pieces = 1 if size <= _WHOLE else _PIECES
        length = min(size, _WHOLE) // pieces
        for n in range(pieces):
            content.seek((size - length) * n // max(pieces - 1, 1))
            total.update(content.read(length))


def _paths(config: Mapping[str, Any]) -> list[tuple[str, str, pathlib.Path]]:
    """(option, value, path) of the options that name a file, a folder or a model of the Hub."""
    found = []
    for name, value in config.items():
        if name in _PLACES or not isinstance(value, str) or not value:
            continue
        path = pathlib.Path(os.path.expanduser(value))
        if name == "model" and hub.is_id(value) and not path.exists():
            path = hub.snapshot(value, config.get("revision", ""))  # already loaded: nothing is downloaded
        if path.exists():
            found.append((name, value, path))
    return found


def _own_modules() -> dict[str, str]:
    """Imported modules that belong to no installed package, such as the user's own game: name -> hash."""
    paths = sysconfig.get_paths()
    installed = tuple({paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})
    files = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    own = {name: file for name, file in files.items() if file and file.endswith(".py") and name != "__main__"}
    kept = {name: file for name, file in own.items() if not os.path.abspath(file).startswith(installed)}
    ours = lambda name: name.split(".")[0] in _OURS
    return {name: fingerprint(pathlib.Path(file)) for name, file in kept.items() if not ours(name)}


def _stamp(run_dir: pathlib.Path) -> str:
    """Distinguishes this folder from any other: each start writes its config anew."""
    try:
        return f"{(run_dir / CONFIG).stat().st_mtime_ns} {fingerprint(run_dir / CONFIG)}"
    except OSError:
        return ""


def _sees(run_dir: pathlib.Path, stamp: str) -> bool:
    deadline = time.monotonic() + _PATIENCE
    while (same := _stamp(run_dir) == stamp) is False and time.monotonic() < deadline:
        time.sleep(0.2)
    return same
