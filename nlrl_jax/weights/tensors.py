"""The weights in a Hugging Face folder: model.safetensors, or several files and the index that names them.

    tensors = Tensors("Qwen2.5-0.5B-Instruct")
    rows = tensors.read("model.norm.weight", (slice(0, 8),))

An index is not trusted: it may name .safetensors files inside its folder and nothing more.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import numpy as np

from nlrl_jax.files import read_json
from nlrl_jax.weights.safetensors_file import DTYPES, SafetensorsFile

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_ROWS = 4096  # compared at a time


class Tensors:
    """The tensors of a folder by name, read slice by slice.

    Raises:
      FileNotFoundError: there are no safetensors, or a file that the index names is missing.
      ValueError: a damaged file, or an index that names a file outside the folder or the wrong one.
    """

    def __init__(self, folder: pathlib.Path):
        files = {path: SafetensorsFile(path) for path in _weight_files(folder)}
        self._places = {name: (file, name) for file in files.values() for name in file}
        if not (folder / SINGLE).exists():
            for name, path in weight_map(folder).items():
                if name not in files[path]:
                    raise ValueError(f"{folder / INDEX} places tensor {name!r} in {path.name}, which does not hold it")
                self._places[name] = (files[path], name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        file, stored = self._places[name]
        return file.shape(stored)

    def dtype(self, name: str) -> str:
        file, stored = self._places[name]
        return file.dtype(stored)

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        file, stored = self._places[name]
        return file.read(stored, index)

    def rename(self, name: str, new_name: str) -> None:
        """The tensor `name` is known as `new_name` from now on, and replaces one of that name."""
        self._places[new_name] = self._places.pop(name)

    def drop(self, name: str) -> None:
        """The tensor `name` is not there from now on."""
        del self._places[name]

    def equal(self, name: str, second: str) -> bool:
        """Whether two matrices hold the same numbers."""
        if self.shape(name) != self.shape(second) or not {self.dtype(name), self.dtype(second)} <= DTYPES.keys():
            return False
        for start in range(0, self.shape(name)[0], _ROWS):
            rows = (slice(start, start + _ROWS),)
            if not np.array_equal(*(self.read(n, rows).astype(np.float32) for n in (name, second))):
                return False
        return True


def weight_map(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """The index's table: tensor -> file.

    Raises:
      ValueError: it is damaged, or names anything but a .safetensors file inside the folder.
    """
    index = folder / INDEX
    listed = read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise ValueError(f"{index} lacks 'weight_map'")
    inside = {name: _inside(folder, name) for name in set(map(str, listed.values()))}
    for tensor, name in listed.items():
        if not isinstance(name, str) or not inside[name]:
            raise ValueError(
                f"{index} places tensor {tensor!r} in {name!r}; only .safetensors files inside the folder may be named"
            )
    return {tensor: folder / name for tensor, name in listed.items()}


def _inside(folder: pathlib.Path, name: str) -> bool:
    """Whether `name` is a .safetensors file in the folder or below. The file itself may be a link, as in the Hub's
    cache; a folder on the way to it may not lead out."""
    path = pathlib.PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or path.suffix != ".safetensors" or {"\\", "\0"} & set(name):
        return False
    return (folder / path).parent.resolve().is_relative_to(folder.resolve())


def _weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
    if (folder / SINGLE).exists():
        return [folder / SINGLE]
    if (folder / INDEX).exists():
        files = sorted(set(weight_map(folder).values()))
        missing = [file.name for file in files if not file.is_file()]
        if missing:
            raise FileNotFoundError(f"{folder / INDEX} names {', '.join(missing)}, not in the folder")
        return files
    pickles = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".ckpt"))
    if pickles:
        raise FileNotFoundError(
            f"{folder} holds pickled weights only ({', '.join(pickles)}), which are never opened because a pickle runs "
            f"code; convert them with transformers' save_pretrained, which writes {SINGLE}"
        )
    raise FileNotFoundError(f"{folder} holds no {SINGLE} and no {INDEX}; it holds {listing(folder)}")


def remove_weights(folder: pathlib.Path) -> None:
    """Deletes the weights of an earlier save, so that no stale shard or index is read. Errors: see `weight_map`."""
    if (folder / INDEX).exists():
        for file in set(weight_map(folder).values()):
            file.unlink(missing_ok=True)
    for name in (INDEX, SINGLE):
        (folder / name).unlink(missing_ok=True)


def listing(folder: pathlib.Path) -> str:
    """What a folder holds, for a message."""
    return ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing"
