"""Checkpoints of a run, exact to the bit, by Orbax. Never a pickle.

    checkpoints = Checkpoints(run_dir / "checkpoints")
    checkpoints.save(25, {"lora": lora, "opt_state": opt_state, "iteration": iteration}, {"note": "..."})
    step, tree, metadata = checkpoints.restore(template)

A save runs in the background and becomes visible in one rename: a killed save leaves the one before it.
Every leaf is stored with its checksum, and a checkpoint is used only if all of them agree.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import pathlib
import shutil
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, TypeVar

import jax
import numpy as np

from nlrl_jax import multihost
from nlrl_jax.files import check_storable
from nlrl_jax.weights.checksum import checksums

T = TypeVar("T")
_FORMAT = "nlrl_jax checkpoint 1"
_REMAINS = ".orbax-checkpoint-tmp"
_CONTENTS = {"index", "tree", "_CHECKPOINT_METADATA"}


class Checkpoints:
    """The last `keep` checkpoints in a folder; other files there are left alone. One process writes; any number may
    read. The processes of one run call `save` and `restore` together, and decide alike.

    A tree is a pytree of arrays (typed PRNG keys are not arrays of numbers: store their seed in the metadata).
    Arrays come back where the template's are: on the same sharding, or on the host for numpy.

    Args:
      folder: made by the first `save`.
      keep: how many checkpoints stay.
    """

    def __init__(self, folder: str | os.PathLike, keep: int = 3):
        if keep < 1:
            raise ValueError(f"keep is {keep}; at least one checkpoint must stay")
        self.folder, self.keep = check_storable(pathlib.Path(os.path.expanduser(folder)).absolute()), keep
        self._manager: Any = None

    def save(self, step: int, tree: Any, metadata: dict[str, Any] | None = None) -> None:
        """Saves in the background; waits first for the save before it. The arrays may be donated on return.

        Checkpoints of this step or later ones are replaced: they belong to a run that was abandoned.

        Args:
          step: iterations done; the checkpoint's name.
          tree: at least one leaf; the same structure every time.
          metadata: JSON-able.

        Raises:
          ValueError: a leaf is not an array of numbers, or `metadata` is not JSON.
          OSError and others: the disk is full, or cannot be written, for this save or the one before it (raised here,
            in `wait` or in `close`), or something else has the checkpoint's name. The checkpoints before it stay.
        """
        ocp = _orbax()
        leaves = {name: _host(name, leaf) for name, leaf in _flatten(tree).items()}
        index = {"format": _FORMAT, "step": int(step), "leaves": _described(leaves)}
        try:
            index["metadata"] = json.loads(json.dumps(metadata or {}))
        except TypeError as error:
            raise ValueError(f"the metadata of checkpoint {step} is not JSON: {error}") from None
        self.wait()
        manager = self._writer(step)
        if shutil.disk_usage(self.folder).free < sum(leaf.nbytes for leaf in leaves.values()):
            raise self._disk_full()
        items = ocp.args.Composite(tree=ocp.args.PyTreeSave(leaves), index=ocp.args.JsonSave(index))
        manager.save(int(step), args=items, force=True)

    def restore(self, template: Any, step: int | None = None, of_run: str = "") -> tuple[int, Any, dict[str, Any]]:
        """The newest good checkpoint, or that of `step`: (step, tree, metadata).

        Without `step`, one that is damaged or does not fit is refused with a warning and the one before it is used.

        Args:
          template: a tree with the structure, shapes, dtypes and places wanted (arrays or `jax.ShapeDtypeStruct`s).
          of_run: refuse a checkpoint whose metadata name another "run"; "" takes any.

        Raises:
          FileNotFoundError: there is no checkpoint (of this step).
          ValueError: none is good; the message says for each what is wrong, with the first leaf that differs.
        """
        return self._restore(template, step, "", whole=True, of_run=of_run)

    def restore_part(self, name: str, template: Any, step: int | None = None) -> tuple[int, Any]:
        """`restore` for the subtree `tree[name]` alone: (step, subtree)."""
        return self._restore(template, step, name, whole=False)[:2]

    def steps(self) -> list[int]:
        """Steps of all finished checkpoints, ascending, good or not."""
        if not self.folder.is_dir():
            return []
        return sorted(int(path.name) for path in self.folder.iterdir() if _is_checkpoint(path))

    def latest_step(self) -> int | None:
        """The newest finished checkpoint, None if there is none. It may still be refused by `restore`."""
        return max(self.steps(), default=None)

    def wait(self) -> None:
        """Returns once the last save is on disk."""
        if self._manager is not None:
            with self._clear_errors():
                self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for the last save and stops the background threads."""
        manager, self._manager = self._manager, None
        if manager is not None:
            with self._clear_errors():
                manager.close()

    @contextlib.contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if "RESOURCE_EXHAUSTED" in str(error) or "No space left" in str(error):
                raise self._disk_full() from error
            raise

    def _disk_full(self) -> OSError:
        latest = f"checkpoint {self.latest_step()} is kept" if self.steps() else "there is no checkpoint yet"
        return OSError(f"disk full at {self.folder}; {latest}; free space, then continue with --resume")

    def _writer(self, step: int) -> Any:
        """Orbax's manager, over a folder without checkpoints of this step or later ones."""
        stale = multihost.from_first(lambda: [old for old in self.steps() if old >= step])
        if self._manager is not None and not stale:
            return self._manager
        self.close()
        if multihost.first():
            self.folder.mkdir(parents=True, exist_ok=True)
            for old in stale:  # gone at once, also if a kill comes while it is deleted
                (self.folder / str(old)).rename(self.folder / f"{old}{_REMAINS}-replaced")
            for remains in self.folder.glob(f"*{_REMAINS}*"):  # also of a save that was killed
                shutil.rmtree(remains, ignore_errors=True)
        multihost.wait()  # now all find the same
        if (path := self.folder / str(step)).exists():
            raise OSError(f"{path} is not a checkpoint but has the name of one; move it away")
        options = _orbax().CheckpointManagerOptions(max_to_keep=self.keep, step_name_format=_names())
        self._manager = _orbax().CheckpointManager(self.folder, options=options)
        multihost.wait()  # none writes before all have looked
        return self._manager

    def _restore(self, template, step, name, whole, of_run=""):
        self.wait()
        steps = multihost.from_first(self.steps)
        candidates = steps[::-1] if step is None else [step]
        if not candidates or candidates[0] not in steps:
            missing = "no checkpoint" if step is None else f"no checkpoint {step}"
            raise FileNotFoundError(f"{self.folder} holds {missing}; it holds {steps or 'none'}")
        refused = []
        for candidate in candidates:
            try:
                return (candidate, *_read(self.folder / str(candidate), template, name, whole, of_run))
            except _Refused as error:
                refused.append(f"checkpoint {self.folder / str(candidate)} is refused: {error}")
                if candidate != candidates[-1]:
                    warnings.warn(f"{refused[-1]}; trying the one before it", stacklevel=3)
        raise ValueError("; ".join(refused))


class _Refused(Exception):
    """Why a checkpoint cannot be used."""


def _in_all(make: Callable[[], T]) -> T:
    """What `make` returns. Where it refuses in one of several processes, all do."""
    result, problem = None, ""
    try:
        result = make()
    except _Refused as error:
        problem = str(error)
    if refused := next(filter(None, multihost.every(problem)), ""):
        raise _Refused(refused)
    return result


def _is_checkpoint(path: pathlib.Path) -> bool:
    """Whether this is the folder of a finished checkpoint, as far as its name and its contents' names say."""
    if not path.is_dir() or not path.name.isdecimal() or path.name != str(int(path.name)):
        return False
    contents = {child.name for child in path.iterdir()}
    return not contents or bool(contents & _CONTENTS)


@functools.cache
def _names() -> Any:
    """Orbax's names of checkpoints, other people's folders passed over: it deletes old checkpoints."""
    names = _orbax().path.step.standard_name_format()

    class CheckpointNames(type(names)):
        def find_all(self, base_path):
            return (step for step in super().find_all(base_path) if _is_checkpoint(pathlib.Path(step.path)))

    return CheckpointNames()


@functools.cache
def _orbax() -> ModuleType:
    """Orbax without its noise: it raises each error that it also logs, and closes event loops that are still in use."""
    import orbax.checkpoint

    logging.getLogger("absl").addFilter(lambda record: f"{os.sep}orbax{os.sep}" not in record.pathname)
    hook = sys.unraisablehook

    def report(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            hook(unraisable)

    sys.unraisablehook = report
    return orbax.checkpoint


def _flatten(tree: Any, part: str = "") -> dict[str, Any]:
    """Leaves by dotted path below `part`, such as "lora.layers.q.a"."""
    keystr = functools.partial(jax.tree_util.keystr, simple=True, separator=".")
    leaves = jax.tree.leaves_with_path(tree)
    return {".".join(filter(None, (part, keystr(path)))) or "tree": leaf for path, leaf in leaves}


def _host(name: str, leaf: Any) -> Any:
    """A copy of the leaf that no caller can change or donate; arrays of several hosts are left to Orbax."""
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        raise ValueError(f"leaf {name} is a typed PRNG key; keep the seed in the metadata instead")
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return leaf
    array = np.array(leaf)
    if array.dtype.hasobject or array.dtype.kind in "USMm":
        raise ValueError(f"leaf {name} is not an array of numbers: {leaf!r:.80}")
    return array


def _described(leaves: dict[str, Any]) -> dict[str, Any]:
    sums = checksums(leaves)
    return {name: {"shape": list(x.shape), "dtype": str(x.dtype), "sum": sums[name]} for name, x in leaves.items()}


def _read(folder: pathlib.Path, template: Any, name: str, whole: bool, of_run: str) -> tuple[Any, dict[str, Any]]:
    """(tree, metadata) of one checkpoint.

    Raises:
      _Refused: it is damaged, its leaves are not the template's, or it is of another run.
    """
    index = _in_all(lambda: _index(folder, of_run))
    stored = index["leaves"]
    leaves_here = _flatten(template, name)
    _check_same(stored, leaves_here, name, whole)
    leaves = _in_all(lambda: _arrays(folder, stored, leaves_here))
    sums = checksums({key: array for key, array in leaves.items() if "sum" in stored[key]})
    damaged = [key for key, checksum in sums.items() if checksum != stored[key]["sum"]]
    damaged += [key for key, array in leaves.items() if _differs_in_crc(array, stored[key])]
    if damaged := next(filter(None, multihost.every(damaged)), []):
        raise _Refused(f"the bytes of leaf {damaged[0]} are not those that were saved: it is damaged")
    values = [_as_template(leaves[key], leaf) for key, leaf in leaves_here.items()]
    return jax.tree.unflatten(jax.tree.structure(template), values), index["metadata"]


def _index(folder: pathlib.Path, of_run: str) -> dict[str, Any]:
    """{"leaves", "metadata"} of a checkpoint. Errors: see `_read`."""
    try:
        index = _handled("JsonCheckpointHandler", folder / "index")
        if index["format"] != _FORMAT:
            raise ValueError(index["format"])
        run = index["metadata"].get("run")
        dict(index["leaves"])
    except Exception as error:
        raise _Refused(f"its index cannot be read ({_brief(error)}): damaged, or written by another program") from error
    if of_run and run and run != of_run:
        raise _Refused("it was written by a run with another configuration, or in another part of this run")
    return index


def _arrays(folder: pathlib.Path, stored: dict[str, Any], template: dict[str, Any]) -> dict[str, Any]:
    """The leaves of a checkpoint where the template's are. Errors: see `_read`."""
    structs = {key: jax.ShapeDtypeStruct(np.shape(leaf), stored[key]["dtype"]) for key, leaf in template.items()}
    places = {key: _place(leaf) for key, leaf in template.items()}
    args = _orbax().args.PyTreeRestore(structs, restore_args=places, partial_restore=True)
    try:
        return _handled("PyTreeCheckpointHandler", folder / "tree", args=args)
    except Exception as error:
        raise _Refused(f"its arrays cannot be read ({_brief(error)}): it is damaged") from error


def _handled(handler: str, folder: pathlib.Path, **args: Any) -> Any:
    """What one of Orbax's handlers restores. Its `Checkpointer` would wait for the others, though one may refuse."""
    ocp = _orbax()
    alone = ocp.options.MultiprocessingOptions(primary_host=None, active_processes={jax.process_index()})
    with ocp.Checkpointer(getattr(ocp, handler)(), multiprocessing_options=alone) as reader:
        return reader.restore(folder, **args)


def _differs_in_crc(array: Any, stored: dict[str, Any]) -> bool:
    """Whether a leaf, if it is whole here, differs from the CRC of an older checkpoint."""
    if "crc32" not in stored or isinstance(array, jax.Array) and not array.is_fully_addressable:
        return False
    return zlib.crc32(np.ascontiguousarray(np.asarray(array)).reshape(-1).view(np.uint8).data) != stored["crc32"]


def _check_same(stored: dict, template: dict, name: str, whole: bool) -> None:
    compared = {key for key in stored if whole or key == name or key.startswith(f"{name}.")}
    if not compared:
        parts = sorted({key.partition(".")[0] for key in stored})
        raise ValueError(f"the checkpoint has no part {name!r}; its parts are {', '.join(parts)}")
    for key, leaf in template.items():
        if key not in stored:
            raise _Refused(f"it has no leaf {key}: it belongs to another model or optimizer")
        stored_type = f"{stored[key]['dtype']}{list(stored[key]['shape'])}"
        type_here = f"{getattr(leaf, 'dtype', None) or np.asarray(leaf).dtype}{list(np.shape(leaf))}"
        if stored_type != type_here:
            types = f"{stored_type} in it and {type_here} here"
            raise _Refused(f"leaf {key} is {types}: it belongs to another model or optimizer")
    if surplus := sorted(compared - template.keys()):
        raise _Refused(f"its leaf {surplus[0]} has no place here: it belongs to another model or optimizer")


def _place(leaf: Any) -> Any:
    """Where Orbax puts a leaf: on the template's devices, or on the host."""
    if not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return _orbax().RestoreArgs(restore_type=np.ndarray)
    sharding = leaf.sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return _orbax().ArrayRestoreArgs(sharding=sharding)


def _as_template(value: Any, leaf: Any) -> Any:
    return type(leaf)(value.item()) if isinstance(leaf, bool | int | float) else value


def _brief(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160] if lines else ''}"
