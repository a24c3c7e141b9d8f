"""Safetensors files, read slice by slice and written tensor by tensor: the host never holds a whole one.

file = SafetensorsFile("model.safetensors")
rows = file.read("model.norm.weight", (slice(0, 8),))
write("copy.safetensors", {"x": jax.ShapeDtypeStruct((2,), "float32")}, [np.zeros(2, "float32")], together=False)
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open

DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_METADATA = "__metadata__"
_NAMES = {name: code for code, name in DTYPES.items()}


class SafetensorsFile:
    """The tensors of one file by name. Only the header is read until a tensor is read.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it is no safetensors file, or a damaged one.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = pathlib.Path(path)
        try:
            with safe_open(self.path, "numpy"):  # checks lengths, offsets and shapes
                pass
        except SafetensorError as error:
            raise ValueError(
                f"{path} is not a whole safetensors file ({error}); it may be cut off, an error page or a Git LFS "
                "pointer: download it again"
            ) from None
        with self.path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        header.pop(_METADATA, None)
        self._header, self._start = header, 8 + length

    def __iter__(self) -> Iterator[str]:
        return iter(self._header)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._header[name]["shape"])

    def dtype(self, name: str) -> str:
        """The format's own code, such as BF16; `DTYPES` has those that `read` accepts."""
        return self._header[name]["dtype"]

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """A read-only view of the part of a tensor that `index` cuts out, one slice a dimension.

        The file's pages are mapped while the view lives; copy what shall outlast the file.
        """
        offset = self._start + self._header[name]["data_offsets"][0]
        dtype = jnp.dtype(DTYPES[self.dtype(name)])
        return np.memmap(self.path, dtype, "r", offset, self.shape(name)).view(np.ndarray)[index]


def check_dtypes(source: pathlib.Path, tensors: Any, names: Iterable[str]) -> None:
    """Raises ValueError where a tensor, of anything with `dtype(name)`, has a dtype that `read` does not accept."""
    for name in names:
        if tensors.dtype(name) not in DTYPES:
            raise ValueError(f"{source}: {name} has dtype {tensors.dtype(name)}; one of {', '.join(DTYPES)} is needed")


def temporary(path: pathlib.Path) -> pathlib.Path:
    """Where a file is written before it gets its name."""
    return path.with_name(f".{path.name}.tmp")


def write(path: str | os.PathLike, structs: dict[str, Any], tensors: Iterable[np.ndarray], together: bool) -> None:
    """The first process writes a file through to the disk, one tensor in memory. Not atomic: give a temporary name.

    Args:
      structs: name -> anything with the `shape` and `dtype` (float32, float16, bfloat16) of the tensor.
      tensors: in the order of `structs`. Tensors of one file must have one size of number, or come the widest first.
      together: making `tensors` takes all processes, so that the others make them too.

    Raises:
      ValueError: a tensor is not what its struct says, or there are not as many.
      OSError: the disk is full, or cannot be written.
    """
    if jax.process_index():
        for _ in tensors if together else ():
            pass
        return
    header, end = {_METADATA: {"format": "pt"}}, 0
    for name, struct in structs.items():
        dtype = jnp.dtype(struct.dtype)
        start, end = end, end + int(np.prod(struct.shape)) * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype.name], "shape": list(struct.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for (name, struct), tensor in zip(structs.items(), tensors, strict=True):
            if (tensor.shape, tensor.dtype) != (tuple(struct.shape), struct.dtype):
                raise ValueError(f"{name} is {tensor.dtype}{tensor.shape}, not {struct.dtype}{tuple(struct.shape)}")
            file.write(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())
