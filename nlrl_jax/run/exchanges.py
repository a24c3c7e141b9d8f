"""Exchanges with language models on disk: for the report (RUN_DIR/records/<iteration>.json), and as training data."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from nlrl_jax.files import dump_json, write_atomically, write_json
from nlrl_jax.run import processes
from nlrl_jax.types import Chat, Pairs, Piece

# {"title", "board" or "", "parts": [(label, text), ...]}, as `report.write_report` takes it.
Exchange = Mapping[str, Any]


def exchange(title: str, board: str, *parts: tuple[str, str]) -> Exchange:
    return {"title": title, "board": board, "parts": parts}


def write(run_dir: pathlib.Path, iteration: int, exchanges: Sequence[Exchange]) -> None:
    """Stores an iteration's exchanges. Of several processes the first writes."""
    if not processes.first():
        return
    path = run_dir / "records" / f"{iteration:05d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, exchanges, ensure_ascii=False, indent=1)


def first_and_last(run_dir: pathlib.Path) -> list[Exchange]:
    """The exchanges of a run's first and last iteration."""
    files = sorted((run_dir / "records").glob("*.json"))
    exchanges: list[Exchange] = []
    for path in dict.fromkeys([*files[:1], *files[-1:]]):
        exchanges += json.loads(path.read_text(encoding="utf-8"))
    return exchanges


def write_pairs(path: pathlib.Path, pairs: Pairs) -> None:
    """Chats with replies, one JSON object per line. Of several processes the first writes."""
    if not processes.first():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"messages": list(chat.messages), "reply": reply} for chat, reply in pairs]
    write_atomically(path, "".join(dump_json(row, path, ensure_ascii=False) + "\n" for row in rows))


def read_pairs(path: pathlib.Path) -> Pairs:
    """The pairs that `write_pairs` wrote.

    Raises:
      ValueError: there is no such file, or it is damaged.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # `splitlines` would also cut at U+2028, which JSON allows
        rows = [json.loads(line) for line in lines if line]
        pairs = []
        for row in rows:
            reply = row["reply"] if isinstance(row["reply"], str) else [Piece(*piece) for piece in row["reply"]]
            pairs.append((Chat(tuple(row["messages"])), reply))
        return pairs
    except (OSError, ValueError, KeyError, RecursionError) as error:
        raise ValueError(
            f"{path} is needed to resume and cannot be read ({error}); start again in another --run_dir, and copy the "
            "folder cache there, if this run has one: cached replies cost nothing"
        ) from error
