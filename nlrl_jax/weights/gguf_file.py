"""A GGUF file (ggml, docs/gguf.md): its metadata and its tensors, dequantised as they are read.

    file = GGUFFile("model.gguf")
    file.metadata["general.architecture"], file.read("output_norm.weight", (slice(None),))

The package `gguf` dequantises. Its own reader takes 20 s for a vocabulary of 150,000 tokens and checks no lengths.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import pathlib
import struct
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

_NUMBERS = dict(enumerate("u1 i1 u2 i2 u4 i4 f4 ?".split())) | {10: "u8", 11: "i8", 12: "f8"}
_STRING, _ARRAY = 8, 9  # the other types of values
_ALIGNMENT = 32  # where a file does not say
_ROW = 4096  # numbers
_MOST_AXES = 4  # of a tensor (ggml.h)


class _Tensor(NamedTuple):
    shape: tuple[int, ...]
    kind: int
    begin: int  # in the file


class GGUFFile:
    """The metadata and the tensors of one file by name. No tensor is in memory before it is read.

    Raises:
      FileNotFoundError: no such file.
      ValueError: it is no GGUF file that can be read, a damaged one, or one of several that make up a model; the
        package `gguf` is not installed, or lacks a tensor's quantisation.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = pathlib.Path(path)
        _check_head(self.path)
        self.metadata: dict[str, Any] = {}
        self._tensors: dict[str, _Tensor] = {}
        self._kinds = _package().GGMLQuantizationType
        with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as bytes_:
            try:
                self._read_head(_Cursor(bytes_))
                whole = all(t.begin + self._row_bytes(t) * _rows(t) <= len(bytes_) for t in self._tensors.values())
            except (struct.error, UnicodeDecodeError, LookupError, ArithmeticError, TypeError, RecursionError):
                whole = False
        if not whole:
            raise ValueError(f"{path} is damaged or cut off; download it again")
        part, parts = (self._number(f"split.{name}", default=0) for name in ("no", "count"))
        if parts > 1:
            raise ValueError(
                f"{path} is file {part + 1} of {parts} of one model; give the whole: llama.cpp's `llama-gguf-split "
                "--merge` makes one file of them"
            )

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Rows first, as in Hugging Face's files."""
        return self._tensors[name].shape

    def read(self, name: str, index: tuple[slice, ...], order: np.ndarray | None = None) -> np.ndarray:
        """The part of a tensor that `index` cuts out, one slice a dimension, in float32; only its rows are read.

        Args:
          order: the tensor's rows in another order, which `index` then cuts.
        """
        tensor, size = self._tensors[name], self._row_bytes(self._tensors[name])
        row_indices = np.arange(_rows(tensor)) if order is None else order
        row_indices, index = (row_indices, index) if len(tensor.shape) == 1 else (row_indices[index[0]], index[1:])
        first, last = int(row_indices.min()), int(row_indices.max())
        stored = np.fromfile(self.path, np.uint8, (last + 1 - first) * size, offset=tensor.begin + first * size)
        rows = stored.reshape(-1, size)[row_indices - first] if order is not None else stored
        values = self._dequantised(rows, tensor.kind).reshape(len(row_indices), tensor.shape[-1])
        return values[0][index] if len(tensor.shape) == 1 else values[:, *index]

    def _dequantised(self, stored: np.ndarray, kind: int) -> np.ndarray:
        """Float32 [-1]. The package works on 16 rows at a time, of any length: these stay in the processor's cache."""
        block, size = _package().GGML_QUANT_SIZES[self._kinds(kind)]
        blocks = math.gcd(stored.size // size, max(1, _ROW // block))
        return _package().dequantize(stored.reshape(-1, blocks * size), self._kinds(kind)).reshape(-1)

    def check_readable(self) -> None:
        """Raises ValueError where a tensor's numbers are stored in a way that the package does not dequantise."""
        for kind, name in {tensor.kind: name for name, tensor in self._tensors.items()}.items():
            try:
                self._dequantised(np.zeros(self._row_bytes(self._tensors[name]), np.uint8), kind)
            except NotImplementedError:
                raise ValueError(
                    f"{self.path}: {name} is stored as {self._kinds(kind).name}, which is not read; F32, F16, BF16 "
                    "and the quantisations of the package gguf are"
                ) from None

    def _row_bytes(self, tensor: _Tensor) -> int:
        block, size = _package().GGML_QUANT_SIZES[self._kinds(tensor.kind)]
        return tensor.shape[-1] // block * size

    def _read_head(self, cursor: _Cursor) -> None:
        cursor.at = 8  # after the magic and the version
        tensors, keys = cursor.number("u8"), cursor.number("u8")
        for _ in range(keys):
            name = cursor.string()
            self.metadata[name] = cursor.value(cursor.number("u4"))
        places = []
        for _ in range(tensors):
            name = cursor.string()
            shape = cursor.numbers("u8", cursor.number("u4"))[::-1]
            if not 1 <= len(shape) <= _MOST_AXES or not all(shape):
                raise struct.error
            kind, offset = cursor.number("u4"), cursor.number("u8")
            self._check_kind(name, kind)
            places.append((name, tuple(shape), kind, offset))
        alignment = self._number("general.alignment", default=_ALIGNMENT)
        start = -(-cursor.at // alignment) * alignment
        self._tensors = {name: _Tensor(shape, kind, start + offset) for name, shape, kind, offset in places}

    def _number(self, name: str, default: int) -> int:
        """A whole number of the metadata."""
        value = self.metadata.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ValueError(f"{self.path} has {name} = {value!r:.60}; it must be a whole number")
        return value

    def _check_kind(self, name: str, kind: int) -> None:
        with contextlib.suppress(ValueError):
            self._kinds(kind)
            return
        raise ValueError(
            f"{self.path}: {name} has quantisation {kind}, which the package gguf lacks; a newer gguf may have it, or "
            "give a file in one of the usual quantisations (Q4_K_M, Q8_0, F16)"
        )


class _Cursor:
    """Reads values one after another. struct.error: the bytes end before a value does."""

    def __init__(self, source: Any):
        self.source, self.at = source, 0

    def take(self, size: int) -> bytes:
        data = self.source[self.at : self.at + size]
        if len(data) < size:
            raise struct.error
        self.at += size
        return data

    def numbers(self, dtype: str, count: int) -> list:
        dtype = np.dtype(dtype).newbyteorder("<")
        return np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()

    def number(self, dtype: str) -> Any:
        return self.numbers(dtype, 1)[0]

    def string(self) -> str:
        (size,) = struct.unpack_from("<Q", self.source, self.at)
        self.at += 8
        return self.take(size).decode()

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.number(_NUMBERS[kind])
        kind, count = self.number("u4"), self.number("u8")
        return self.numbers(_NUMBERS[kind], count) if kind in _NUMBERS else [self.value(kind) for _ in range(count)]


def _rows(tensor: _Tensor) -> int:
    return math.prod(tensor.shape[:-1])


def _check_head(path: pathlib.Path) -> None:
    """Refuses what is no GGUF file of a version that is read. Errors: see `GGUFFile`."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file; give the path of a .gguf file")
    with path.open("rb") as file:
        magic, version = file.read(4), file.read(4)
    if magic != b"GGUF":
        raise ValueError(f"{path} is not a GGUF file (it does not start with the letters GGUF)")
    if len(version) == 4 and version[:2] == b"\0\0":
        raise ValueError(f"{path} is a big-endian GGUF file, which is not read; give the little-endian one")
    if len(version) == 4 and version[0] not in (2, 3):
        raise ValueError(f"{path} is of version {version[0]} of the GGUF format; versions 2 and 3 are read")


def _package() -> ModuleType:
    try:
        import gguf
    except ImportError:
        raise ValueError("GGUF files are dequantised by the package gguf; run pip install 'nlrl_jax[gguf]'") from None
    return gguf
