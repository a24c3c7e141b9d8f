"""Files that are there whole or not at all, and JSON that may be damaged."""

from __future__ import annotations

import json
import math
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

# With these in a path Orbax and TensorStore do not find again what they wrote: patterns to them, or another scheme.
_UNSTORABLE = re.compile(r"\\|\[.*\]|gs:(?:/|$)", re.DOTALL)


def check_storable(path: pathlib.Path) -> pathlib.Path:
    """The absolute path of a folder for checkpoints, as it is.

    Raises:
      ValueError: checkpoints in it could not be read again, because of its name or that of a folder above it.
    """
    text = str(path)
    if _UNSTORABLE.search(text) or text.encode(errors="replace").decode() != text:
        raise ValueError(
            f"{text!r} has a backslash, brackets [ ], a folder that ends in gs: or bytes of no text in its path, "
            "where Orbax does not find checkpoints again; choose another name"
        )
    return path


def write_atomically(path: pathlib.Path, text: str) -> None:
    """Writes a file that is there whole or not at all, also if the process is killed meanwhile."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_json(path: pathlib.Path, value: Any, **options: Any) -> None:
    """Writes a JSON file that is there whole or not at all; options: of `dump_json`."""
    write_atomically(path, dump_json(value, path, **options) + "\n")


def dump_json(value: Any, what: object, **options: Any) -> str:
    """A value as JSON, in the words of any language's reader.

    Args:
      what: where it goes, for the error. options: of `json.dumps`.

    Raises:
      ValueError: a number in it is NaN or infinite, for which JSON has no word; the message says where.
    """
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        place = _not_finite(value)
        if place is None:
            raise
        raise ValueError(f"{what} cannot be written: {place}, and JSON holds finite numbers only") from None


def _not_finite(value: Any, name: str = "it") -> str | None:
    """The first number that is not finite, with its place."""
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{name} is {value}"
    if isinstance(value, Mapping):
        rows = [(f"{name}.{key}" if name != "it" else str(key), item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        rows = [(f"{name}[{i}]", item) for i, item in enumerate(value)]
    else:
        return None
    return next((place for key, item in rows if (place := _not_finite(item, key))), None)


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
      ValueError: the file is empty, not JSON, or another JSON value; the message names it.
    """
    text = path.read_bytes()
    try:
        contents = json.loads(text)
    except (ValueError, RecursionError) as error:  # nested too deeply
        raise ValueError(f"{path} is not valid JSON: {error if text.strip() else 'it is empty'}") from None
    if not isinstance(contents, dict):
        raise ValueError(f"{path} holds a JSON {type(contents).__name__}, not an object")
    return contents
