"""Exchanges with language models that a run keeps for its report: RUN_DIR/records/<iteration>.json."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from nlrl_jax.files import write_atomically

# {"title", "board" or "", "parts": [(label, text), ...]}, as `report.write_report` takes it.
Exchange = Mapping[str, Any]


def exchange(title: str, board: str, *parts: tuple[str, str]) -> Exchange:
    return {"title": title, "board": board, "parts": parts}


def write(run_dir: pathlib.Path, iteration: int, exchanges: Sequence[Exchange]) -> None:
    """Keeps an iteration's exchanges."""
    path = run_dir / "records" / f"{iteration:05d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(exchanges, ensure_ascii=False, indent=1))


def first_and_last(run_dir: pathlib.Path) -> list[Exchange]:
    """The exchanges of a run's first and last iteration."""
    files = sorted((run_dir / "records").glob("*.json"))
    ends = dict.fromkeys([*files[:1], *files[-1:]])
    return [one for path in ends for one in json.loads(path.read_text(encoding="utf-8"))]
