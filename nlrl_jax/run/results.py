"""results.json: how a run, or one part of it, ended. Every script writes this format and `nlrl-jax compare` reads it.

    {"script": "train_ms_grpo",
     "before": {"success": 0.224, "env_return": 0.224},
     "after": {"success": [0.82, 0.79], "env_return": [0.82, 0.79]},
     "seeds": 2,
     "transcripts": {"before": [...], "after": [...]},
     ...}

"before" and "after" are the same evaluation before and after training: a number for each metric, or a list with one
number per seed. A metric that metrics.jsonl calls "eval/NAME" is NAME here. "after" is {} until the run has finished,
and "before" is {} if nothing was trained. "seeds" is how many, or a list of them. "transcripts" holds records of
`transcript.transcripts`, and "legend" is the game's. A script may add keys of its own. Numbers that JSON
cannot express are the strings "nan", "inf" and "-inf", as in metrics.jsonl.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from nlrl_jax.files import write_json
from nlrl_jax.run import processes
from nlrl_jax.run.transcript import check_episode

RESULTS = "results.json"

# Metric -> a number, or one number per seed. numpy and jax arrays will do.
Evaluation = Mapping[str, Any]


def write(
    run_dir: str | os.PathLike,
    *,
    script: str,
    before: Evaluation,
    after: Evaluation,
    seeds: int | Sequence[int] = 1,
    **entries: Any,
) -> pathlib.Path:
    """Writes RUN_DIR/results.json, whole or not at all, and returns its path. All processes of a run
    must call this; the first writes.

    Args:
      script: the module's name, e.g. "train_ms_grpo".
      before, after: evaluations; `after={}` while the run is still training.
      entries: others, such as "transcripts" ({"before": [...], "after": [...]}).

    Raises:
      ValueError: an evaluation holds something other than numbers.
    """
    stored = {"script": script, "before": before, "after": after, "seeds": seeds, **entries}
    stored = _plain(stored)
    for name in ("before", "after"):
        _numbers(name, stored[name])
    path = pathlib.Path(run_dir) / RESULTS
    if processes.first():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, stored, indent=1)
    processes.wait()  # then all can read it
    return path


def read(run_dir: str | os.PathLike) -> dict[str, Any]:
    """What `write` stored, with "transcripts" {"before": [], "after": []} if there are none.

    Raises:
      FileNotFoundError: the run has no results.json.
      ValueError: the file is damaged.
    """
    path = pathlib.Path(run_dir) / RESULTS
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        stored |= {name: _numbers(name, stored[name]) for name in ("before", "after")}
        if type(stored["script"]) is not str or type(stored["seeds"]) not in (int, list):
            raise ValueError("script is not a name or seeds are not numbers")
        stored["transcripts"] = {"before": [], "after": []} | stored.get("transcripts", {})
        for episode in [*stored["transcripts"]["before"], *stored["transcripts"]["after"]]:
            check_episode(episode)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error!r:.80}); delete it; the run's --resume writes it again") from None
    return stored


def is_finished(run_dir: str | os.PathLike, iterations: int) -> bool:
    """Whether a run has results after that many iterations; what does not learn has no iterations."""
    return (pathlib.Path(run_dir) / RESULTS).exists() and read(run_dir).get("iterations", iterations) >= iterations


def _numbers(name: str, evaluation: Mapping[str, Any]) -> dict[str, float | list[float]]:
    try:
        return {
            metric: [_number(number) for number in value] if isinstance(value, list) and value else _number(value)
            for metric, value in evaluation.items()
        }
    except (TypeError, ValueError, AttributeError):
        raise ValueError(f'"{name}" must hold a number per metric or one per seed; it is {evaluation!r:.60}') from None


def _number(value: Any) -> float:
    """A number unchanged, so that it is written as it was; the strings "nan" and "inf" as numbers."""
    if not isinstance(value, int | float | str):
        raise TypeError(f"{value!r:.60} is not a number")
    return float(value) if isinstance(value, str) else value


def _plain(value: Any) -> Any:
    """The same in JSON's types: arrays as lists, "nan" and "inf" as strings."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
