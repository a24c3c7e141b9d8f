"""Replies and scores on disk, each whole or absent, also across a kill."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

from nlrl_jax.files import dump_json
from nlrl_jax.types import Reply


def cache_key(parts: Mapping[str, Any]) -> str:
    """A sha256 in hex of everything that decides an entry. The order of the fields does not matter.

    Raises:
      TypeError: a part is not JSON-able.
    """
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class DiskCache:
    """A folder of entries, each a JSON object under a sha256.

    An entry is written beside its place and moved there, so it is whole or absent whenever the process is killed.
    Nothing is flushed to the disk: a power cut may tear the last entries. A torn entry counts as absent.

    Attributes:
      folder: made if missing. Several caches, in several processes, may share it.

    Raises:
      ValueError: the folder cannot be made or written.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = pathlib.Path(os.path.expanduser(folder)).absolute()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):  # the folder may exist on a disk that is read only
                pass
        except OSError as error:
            raise ValueError(f"the cache folder {self.folder} cannot be written: {error.strerror}") from None

    def __repr__(self) -> str:
        return f"DiskCache({str(self.folder)!r})"

    def get(self, key: str) -> dict[str, Any] | None:
        """The entry; None where it is absent or torn, or has a number that is not finite."""
        try:
            entry = json.loads(self._path(key).read_text(), parse_constant=_refuse)
        except (FileNotFoundError, ValueError):
            return None
        return entry if isinstance(entry, dict) else None

    def put(self, key: str, entry: Mapping[str, Any]) -> None:
        """Writes an entry, in place of an earlier one.

        Raises:
          ValueError: a number in it is not finite.
        """
        path, text = self._path(key), dump_json(entry, "a reply in the cache")
        path.parent.mkdir(exist_ok=True)  # 256 folders at most, by the key's first two digits
        descriptor, unfinished = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with open(descriptor, "w", encoding="ascii") as file:
                file.write(text)
            os.replace(unfinished, path)  # at once, so that no reader meets half an entry
        except BaseException:
            pathlib.Path(unfinished).unlink(missing_ok=True)
            raise

    def get_reply(self, key: str) -> Reply | None:
        """An entry as a reply that cost nothing."""
        entry = self.get(key)
        if entry is None:
            return None
        return Reply(**{**entry, "log_probs": tuple(entry.get("log_probs", ()))}, cached=True)

    def put_reply(self, key: str, reply: Reply) -> None:
        """Writes a reply without its token counts."""
        entry = {name: getattr(reply, name) for name in ("text", "ended", "refused")}
        # Left out where they say nothing: entries from before there were such fields read alike.
        rare = {name: getattr(reply, name) for name in ("log_probs", "more") if getattr(reply, name)}
        self.put(key, {**entry, **rare})

    def _path(self, key: str) -> pathlib.Path:
        return self.folder / key[:2] / (key + ".json")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
