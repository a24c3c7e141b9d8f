"""The folder of one run: made and checked before work starts, owned by one process at a time."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Collection
from typing import Any

CONFIG = "config.json"
LOCK = ".lock"
_PROBE_BYTES = 1 << 20  # written once to find a full disk before it is an hour's work too late
_ABSENT = "(absent)"

# The file descriptors of the locks this process holds. The kernel drops a lock when its process dies.
_held: dict[pathlib.Path, int] = {}


def open_run(
    run_dir: str | os.PathLike,
    config: dict[str, Any],
    resume: bool = False,
    *,
    overwrite: bool = False,
    may_change: Collection[str] = ("iterations",),
) -> pathlib.Path:
    """Takes a folder for a run: creates it, checks that it can be written, locks it and stores the config.

    The lock is held until `close_run` or the end of the process, however it ends.

    Args:
      run_dir: the folder; made if it is not there.
      config: JSON-able; written to config.json.
      resume: go on with the run in the folder. Without a run there, a new one starts.
      overwrite: delete the run in the folder first. Not with `resume`.
      may_change: fields of the config that may differ from the stored ones on resume. So may folders
        (`*_dir`, `*_path`, or two paths with the same last name); what changed is printed.

    Returns:
      The folder as an absolute path.

    Raises:
      ValueError: the folder cannot be made or written, another process writes to it, it holds a run already
        (neither `resume` nor `overwrite`), it holds other things (`overwrite`), or the stored config
        differs in other fields than those that may.
    """
    run_dir = pathlib.Path(run_dir).expanduser().absolute()
    _lock(run_dir)
    try:
        _check_writable(run_dir)
        if overwrite and not resume:
            _empty(run_dir)
        config = json.loads(json.dumps(config))
        if holds_run(run_dir):
            if not resume:
                raise ValueError(f"{run_dir} already holds a run; pass --resume to go on with it, or another --run_dir")
            _compare(run_dir, read_config(run_dir), config, may_change)
        elif resume:
            print(f"{run_dir} holds no run yet: starting one")
        write_atomically(run_dir / CONFIG, json.dumps(config, indent=2) + "\n")
    except BaseException:
        close_run(run_dir)
        raise
    return run_dir


def close_run(run_dir: str | os.PathLike) -> None:
    """Gives the folder's lock back."""
    descriptor = _held.pop(pathlib.Path(run_dir).expanduser().absolute(), None)
    if descriptor is not None:
        os.close(descriptor)


def holds_run(run_dir: str | os.PathLike) -> bool:
    """Whether a run was started in this folder."""
    return (pathlib.Path(run_dir) / CONFIG).exists()


def read_config(run_dir: str | os.PathLike) -> dict[str, Any]:
    """The config of a run.

    Raises:
      ValueError: there is none, or it is not JSON.
    """
    path = pathlib.Path(run_dir) / CONFIG
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"{run_dir} holds no run: there is no {CONFIG} in it") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged ({error}); start again in another --run_dir") from None


def write_atomically(path: pathlib.Path, text: str) -> None:
    """Writes a file that is there whole or not at all, also if the process is killed meanwhile."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def differences(stored: dict[str, Any], config: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Fields that differ: name -> (old, new)."""
    names = [*stored, *(name for name in config if name not in stored)]
    pairs = {name: (stored.get(name, _ABSENT), config.get(name, _ABSENT)) for name in names}
    return {name: (old, new) for name, (old, new) in pairs.items() if old != new}


def _compare(run_dir, stored, config, may_change) -> None:
    changed = differences(stored, config)
    lines = {name: f"{name}: {_show(old)} -> {_show(new)}" for name, (old, new) in changed.items()}
    wrong = [name for name, pair in changed.items() if name not in may_change and not _is_path(name, *pair)]
    if wrong:
        raise ValueError(
            f"the run in {run_dir} was started with another configuration and cannot go on with this one:\n  "
            + "\n  ".join(lines[name] for name in wrong)
            + "\nGive the old values, or start a new run in another --run_dir"
        )
    for line in lines.values():
        print(f"resuming with a changed {line}")


def _show(value) -> str:
    return value if value is _ABSENT else json.dumps(value)


def _is_path(name: str, old: Any, new: Any) -> bool:
    """Whether the field says where something lies, not what is computed."""
    if not (isinstance(old, str) and isinstance(new, str)):
        return False
    moved = os.sep in old and os.sep in new and pathlib.PurePath(old).name == pathlib.PurePath(new).name
    return name.endswith(("_dir", "_path")) or moved


def _lock(run_dir: pathlib.Path) -> None:
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(run_dir / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ValueError(f"--run_dir {run_dir} cannot be written: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(descriptor, 64, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise ValueError(
            f"another run writes to {run_dir} now (process {owner or 'unknown'}); "
            "wait for it or choose another --run_dir"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    _held[run_dir] = descriptor


def _check_writable(run_dir: pathlib.Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=run_dir) as probe:
            probe.write(bytes(_PROBE_BYTES))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        raise ValueError(f"--run_dir {run_dir} cannot be written: {error.strerror}") from None


def _empty(run_dir: pathlib.Path) -> None:
    """Deletes what lies in a run's folder, and only in such a folder."""
    found = [path for path in run_dir.iterdir() if path.name != LOCK]
    if found and not holds_run(run_dir):
        raise ValueError(f"--overwrite: {run_dir} is not empty and holds no run (no {CONFIG}); nothing was deleted")
    for path in found:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
