"""What was paid for once, on disk: one small file an entry, safe for threads, processes and a kill at any moment."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import tempfile
import threading
from collections.abc import Iterator, Mapping
from typing import Any

_ENTRY = ".json"
_UNFINISHED = ".tmp"


def cache_key(parts: Mapping[str, Any]) -> str:
    """A sha256 in hex of everything that decides an answer. The order of the fields does not matter.

    Raises:
      TypeError: a part is not JSON-able.
    """
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class DiskCache:
    """A folder of entries, each a JSON object under a sha256.

    An entry is written beside its place and moved there, so it is there whole or not at all, whenever the process is
    killed. Nothing is flushed to the platter: after a power cut the last entries may be torn. A torn entry counts as
    absent.

    Attributes:
      folder: made if it is not there. Several caches, in several processes, may share it.
      damaged: how many torn entries `get` met so far.

    Raises:
      ValueError: the folder cannot be made or written.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = pathlib.Path(folder).expanduser().absolute()
        self.damaged = 0
        self._lock = threading.Lock()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise ValueError(f"the cache folder {self.folder} cannot be written: {error.strerror}") from None

    def __repr__(self) -> str:
        return f"DiskCache({str(self.folder)!r})"

    def get(self, key: str) -> dict[str, Any] | None:
        """The entry, or None where there is none or a torn one."""
        try:
            entry = json.loads(self._path(key).read_text())
            if isinstance(entry, dict):
                return entry
        except FileNotFoundError:
            return None
        except ValueError:
            pass
        with self._lock:
            self.damaged += 1
        return None

    def put(self, key: str, entry: Mapping[str, Any]) -> None:
        """Writes an entry; one that is there already is replaced."""
        path = self._path(key)
        path.parent.mkdir(exist_ok=True)
        descriptor, unfinished = tempfile.mkstemp(dir=path.parent, suffix=_UNFINISHED)
        try:
            with open(descriptor, "w", encoding="ascii") as file:
                json.dump(dict(entry), file)
            os.replace(unfinished, path)
        except BaseException:
            pathlib.Path(unfinished).unlink(missing_ok=True)
            raise

    def __len__(self) -> int:
        """How many entries there are, torn ones included."""
        return sum(path.suffix == _ENTRY for path in self._files())

    def clear(self) -> None:
        """Deletes all entries, and what killed processes left unfinished. Other files in the folder stay."""
        for path in list(self._files()):
            path.unlink(missing_ok=True)

    def _path(self, key: str) -> pathlib.Path:
        return self.folder / key[:2] / (key + _ENTRY)

    def _files(self) -> Iterator[pathlib.Path]:
        for folder in self.folder.glob("[0-9a-f][0-9a-f]"):
            yield from (path for path in folder.iterdir() if path.suffix in (_ENTRY, _UNFINISHED))
