"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import pathlib


def write_atomically(path: pathlib.Path, text: str) -> None:
    """Writes a file that is there whole or not at all, also if the process is killed meanwhile."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
