"""Files that are there whole or not at all, and JSON that may be damaged."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any


def write_atomically(path: pathlib.Path, text: str) -> None:
    """Writes a file that is there whole or not at all, also if the process is killed meanwhile."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
      ValueError: the file is empty, not JSON, or another JSON value; the message names it.
    """
    text = path.read_bytes()
    try:
        contents = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error if text.strip() else 'it is empty'}") from None
    if not isinstance(contents, dict):
        raise ValueError(f"{path} holds a JSON {type(contents).__name__}, not an object")
    return contents
