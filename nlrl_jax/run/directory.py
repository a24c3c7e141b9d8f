"""The folder of one run: made and checked before work starts, owned by one process at a time."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping
from typing import Any

from nlrl_jax.backends.endpoint_options import MAY_CHANGE
from nlrl_jax.files import check_storable, write_json

CONFIG = "config.json"
LOCK = ".lock"
_MARK = "nlrl_jax_run"  # the key in our config.json that no other program writes; its value identifies the run
_PROBE_BYTES = 1 << 20  # written once, to find a full disk before an hour of work is lost
_ABSENT = "(absent)"
_WORDS = {str(number): number for number in (math.inf, -math.inf)}  # JSON has no word for these: strings stand for them

# The file descriptors of the locks this process holds. The kernel drops a lock when its process dies.
_held: dict[pathlib.Path, int] = {}


def open_run(
    run_dir: str | os.PathLike,
    config: dict[str, Any],
    resume: bool = False,
    *,
    overwrite: bool = False,
    may_change: Collection[str] = ("iterations",),
    defaults: Mapping[str, Any] | None = None,
    translate: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> pathlib.Path:
    """Takes a folder for a run: creates it, checks that it can be written, locks it and stores the config.

    The lock is held until `close_run` or the end of the process, however it ends.

    Args:
      run_dir: the folder; created if needed.
      config: JSON-able; written to config.json.
      resume: continue the run in the folder.
      overwrite: delete the run in the folder first. Not with `resume`.
      may_change: fields of the config that may differ from the stored ones on resume. So may the way an endpoint is
        reached (`endpoint_options.MAY_CHANGE`), folders (`*_dir`, `*_path`), and a path that leads to the same place or
        to where it was moved. Changes are printed.
      defaults: values of options that an earlier version may not have had. A stored config that lacks one of them may
        be resumed with this value.
      translate: a stored config -> the same in today's values.

    Returns:
      The folder as an absolute path.

    Raises:
      ValueError: the folder cannot be made or written; another process writes to it; it already holds the work of a run
        (without `resume` or `overwrite`) or files that are not of a run; there is no run to resume; or the stored
        config differs in a field that may not change.
    """
    run_dir = pathlib.Path(os.path.expanduser(run_dir)).absolute()
    _lock(run_dir)
    try:
        _check_writable(run_dir)
        if overwrite and not resume:
            _empty(run_dir)
        config = json.loads(json.dumps(config))
        number = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]
        if resume:
            stored = translate(read_config(run_dir))
            allowed = {*may_change, *MAY_CHANGE}
            allowed |= {name for name, value in (defaults or {}).items() if config.get(name) == value} - stored.keys()
            _compare(run_dir, stored, config, allowed)
            number = _number(run_dir) or number
        else:
            _check_free(run_dir)
        write_json(run_dir / CONFIG, {_MARK: number, **_in_words(config)}, indent=2)
    except BaseException:
        close_run(run_dir)
        raise
    return run_dir


def check_done(folder: pathlib.Path, iterations: int) -> None:
    """Refuses to continue a run that has already done more iterations.

    Args:
      folder: the run's; it may have no checkpoints yet.

    Raises:
      ValueError: says how many iterations it has done.
    """
    done = max((int(path.name) for path in folder.glob("checkpoints/*") if path.name.isdecimal()), default=0)
    if done > iterations:
        raise ValueError(f"--iterations is {iterations}, but {folder} has done {done} already; give {done} or more")


def check_inputs(run_dir: pathlib.Path, values: dict[str, Any]) -> None:
    """Refuses to delete files that the new run is to read.

    Args:
      values: the new run's options; some may be paths, or several paths separated by commas.

    Raises:
      ValueError: names the option.
    """
    for name, value in values.items():
        for text in {value, *value.split(",")} if isinstance(value, str) else ():
            path = pathlib.Path(os.path.expanduser(text.strip())).absolute()
            named = os.sep in text or path != run_dir  # the folder may be called like a built-in model
            if named and os.path.exists(path) and path.resolve().is_relative_to(run_dir.resolve()):
                raise ValueError(f"--overwrite would delete --{name} {text}; choose another --run_dir")


def output_folder(flag: str, out: str, mark: str = "") -> pathlib.Path:
    """The output folder that an option names, checked before work starts: new, empty, or an earlier output.

    Args:
      mark: a file by which our own output is recognised; "" accepts only new and empty folders.

    Raises:
      ValueError: no folder is named, it holds something else, or it cannot be written.
    """
    if not out:
        raise ValueError(f"say where the model goes: --{flag} models/NAME")
    folder = pathlib.Path(os.path.expanduser(out))
    is_earlier = bool(mark) and (folder / mark).is_file()
    if folder.exists() and not (folder.is_dir() and (is_earlier or not any(folder.iterdir()))):
        raise ValueError(f"--{flag} {folder} is not an empty folder; choose another one")
    _check_writable(folder, flag)
    return folder


def output_file(flag: str, path: pathlib.Path) -> None:
    """Checks before work starts that a file can be written.

    Raises:
      ValueError: it is a folder, or cannot be written.
    """
    if path.is_dir():
        raise ValueError(f"--{flag} {path} is a folder; give a file in it")
    _check_writable(path.parent, flag)


def close_run(run_dir: str | os.PathLike) -> None:
    """Releases the folder's lock."""
    descriptor = _held.pop(pathlib.Path(os.path.expanduser(run_dir)).absolute(), None)
    if descriptor is not None:
        os.close(descriptor)


def holds_run(run_dir: str | os.PathLike) -> bool:
    """Whether `open_run` started a run in this folder; a config.json of another program does not count."""
    return bool(_number(run_dir))


def part_of(folder: str | os.PathLike) -> str:
    """Identifies a folder within its run, wherever the run lies: "number:path"; "" outside of any run.

    The number is a hash of the config that the run was started with.
    """
    folder = pathlib.Path(os.path.expanduser(folder)).absolute()
    root = next((path for path in (folder, *folder.parents) if holds_run(path)), None)
    return f"{_number(root)}:{folder.relative_to(root).as_posix()}" if root else ""


def _number(run_dir: str | os.PathLike) -> str:
    try:
        return json.loads((pathlib.Path(run_dir) / CONFIG).read_text()).get(_MARK, "")
    except (OSError, ValueError, AttributeError, RecursionError):
        return ""


def _in_words(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: str(value) if value in _WORDS.values() else value for name, value in config.items()}


def read_config(run_dir: str | os.PathLike) -> dict[str, Any]:
    """The config of a run.

    Raises:
      ValueError: there is none, or it is not a JSON object.
    """
    path = pathlib.Path(run_dir) / CONFIG
    try:
        config = json.loads(path.read_text())
        if not isinstance(config, dict):
            raise ValueError("it is not a JSON object")
        config = {name: value for name, value in config.items() if name != _MARK}
        words = {name: value for name, value in config.items() if isinstance(value, str) and value in _WORDS}
        return config | {name: _WORDS[word] for name, word in words.items()}
    except (FileNotFoundError, NotADirectoryError):
        problem = "is a file, not a run's folder" if pathlib.Path(run_dir).is_file() else "holds no run"
        raise ValueError(f"{run_dir} {problem}: there is no {CONFIG} in it") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); start again in another --run_dir") from None


def read_run(run_dir: str | os.PathLike, script: str = "") -> dict[str, Any]:
    """The config of a run of one of our scripts, recognised by the script's name in it.

    Raises:
      ValueError: there is none, or it belongs to another script than `script`.
    """
    config = read_config(run_dir)
    owner = config.get("script")
    if not owner and not holds_run(run_dir):
        raise ValueError(f"{run_dir} holds no run: its {CONFIG} belongs to another program")
    if script and owner and owner != script:
        raise ValueError(f"the run in {run_dir} was started by {owner}, which can continue it; {script} cannot")
    return config


def _compare(run_dir, stored, config, may_change) -> None:
    pairs = {name: (stored.get(name, _ABSENT), config.get(name, _ABSENT)) for name in {**stored, **config}}
    changed = {name: (old, new) for name, (old, new) in pairs.items() if old != new}
    lines = {name: f"{name}: {_show(old)} -> {_show(new)}" for name, (old, new) in changed.items()}
    wrong = [name for name, pair in changed.items() if name not in may_change and not _is_path(name, *pair)]
    if wrong:
        raise ValueError(
            f"the run in {run_dir} was started with other options and cannot continue with these:\n  "
            + "\n  ".join(lines[name] for name in wrong)
            + "\nGive the old values, or start a new run in another --run_dir"
        )
    for line in lines.values():
        print(f"resuming with a changed {line}")


def _show(value) -> str:
    return value if value is _ABSENT else json.dumps(value)


def _is_path(name: str, old: Any, new: Any) -> bool:
    """Whether a field only says where something lies, and does not change what is computed."""
    if not (isinstance(old, str) and isinstance(new, str)):
        return False
    if name.endswith(("_dir", "_path")):
        return True
    if os.sep not in old or os.sep not in new or "://" in old + new:
        return False
    before, after = pathlib.Path(os.path.expanduser(old)), pathlib.Path(os.path.expanduser(new))
    return before.resolve() == after.resolve() if before.exists() else before.name == after.name  # moved


def _lock(run_dir: pathlib.Path) -> None:
    check_storable(run_dir)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(run_dir / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        reason = "it is a file" if os.path.isfile(run_dir) else error.strerror
        raise ValueError(f"--run_dir {run_dir} cannot be written: {reason}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(descriptor, 64, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise ValueError(
            f"another run is writing to {run_dir} (process {owner or 'unknown'}); "
            "wait for it or choose another --run_dir"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    _held[run_dir] = descriptor


def _check_writable(folder: pathlib.Path, flag: str = "run_dir") -> None:
    """Probes the folder, or the nearest parent that exists."""
    try:
        there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        with tempfile.TemporaryFile(dir=there) as probe:
            probe.write(bytes(_PROBE_BYTES))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        raise ValueError(f"--{flag} {folder} cannot be written: {error.strerror}") from None


def _found(run_dir: pathlib.Path) -> list[pathlib.Path]:
    """The content of a folder, without the files that `open_run` itself writes before a run starts."""
    return [path for path in run_dir.iterdir() if path.name not in (LOCK, f".{CONFIG}.tmp")]


def _holds_work(path: pathlib.Path) -> bool:
    """Whether a file or folder in a run's folder was computed or paid for."""
    if path.is_dir():
        return any(map(_holds_work, path.iterdir()))
    return path.name != CONFIG and not path.name.startswith(".")


def _check_free(run_dir: pathlib.Path) -> None:
    """Refuses to start a run where it could damage something."""
    content = _found(run_dir)
    if holds_run(run_dir):
        if any(map(_holds_work, content)):  # else the command was refused or stopped before it did anything
            raise ValueError(f"{run_dir} already holds a run; pass --resume to continue it, or another --run_dir")
    elif content:
        there = content[0].name
        raise ValueError(f"{run_dir} is not empty and holds no run (it contains {there}); choose another --run_dir")


def _empty(run_dir: pathlib.Path) -> None:
    """Deletes the content of a folder that holds a run; refuses any other folder."""
    content = _found(run_dir)
    if content and not holds_run(run_dir):
        raise ValueError(
            f"--overwrite: {run_dir} is not empty and holds no run ({CONFIG} with {_MARK!r} in it); nothing was deleted"
        )
    for path in sorted(content, key=lambda path: path.name == CONFIG):  # the file that marks it as a run goes last
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
