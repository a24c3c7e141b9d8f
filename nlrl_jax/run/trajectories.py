"""Trajectories for fine-tuning, as a file: one JSON object per line (LAC, appendix B.2).

    {"goal": "go to the green key",
     "observation": "You see a wall 2 steps right",
     "note": "",
     "steps": [["turn left", "You see a green key 1 step forward", "I have seen the key. This step is GOOD."], ...],
     "success": true}

"observation" is the first one. A step is an action, the observation after it, and a note on it: a reflection, or ""
for none. A reflection is one line and ends "This step is GOOD.", "... BAD." or "... UNKNOWN."; an action is one line
too. "note" follows the first observation; it may be left out, as may a step's. "success" says whether the goal is
reached at the end.
"""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Iterable
from typing import Any

from nlrl_jax.algorithms.offline import Trajectory
from nlrl_jax.files import dump_json, write_atomically
from nlrl_jax.roles.dialogues import BAD, GOOD, UNKNOWN, VERDICT, History, Step

_ENDS = re.compile(rf"{VERDICT} ({GOOD}|{BAD}|{UNKNOWN})\.?$")
_NOTE = f'must be one line that ends "{VERDICT} {GOOD}.", "{VERDICT} {BAD}." or "{VERDICT} {UNKNOWN}.", or ""'


def write(path: pathlib.Path, trajectories: Iterable[Any]) -> None:
    """Writes anything with `history` and `success`, in the format above."""
    rows = []
    for trajectory in trajectories:
        history = trajectory.history
        row = {"goal": history.goal, "observation": history.observation, "note": history.note, "steps": history.steps}
        rows.append(row | {"success": trajectory.success})
    write_atomically(path, "".join(dump_json(row, path, ensure_ascii=False) + "\n" for row in rows))


def read(path: pathlib.Path) -> list[Trajectory]:
    """The trajectories in a file.

    Raises:
      ValueError: there is no such file or nothing in it, or a line is not of the format; the message names the line,
        the field and what would be right.
    """
    try:
        # `splitlines` would also cut at U+2028, which JSON allows.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"trajectories cannot be read from {path}: {error}") from None
    trajectories = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                trajectories.append(_trajectory(line))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
    if not trajectories:
        raise ValueError(f"{path} holds no trajectory; it must hold a JSON object on each line")
    return trajectories


def _trajectory(line: str) -> Trajectory:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"it is not JSON ({error}); a trajectory is a JSON object on one line") from None
    fields = ("goal", "observation", "note", "steps", "success")
    if not isinstance(row, dict):
        raise ValueError(f"it is {_shown(row)}; a trajectory is a JSON object with {', '.join(fields)}")
    row = {"note": "", **row}
    for name in fields:
        if name not in row:
            raise ValueError(f'"{name}" is missing; a trajectory has {", ".join(fields)}')
    if type(row["success"]) is not bool:
        raise ValueError(f'"success" is {_shown(row["success"])}; it must be true or false')
    if not isinstance(row["steps"], list) or not row["steps"]:
        raise ValueError(f'"steps" is {_shown(row["steps"])}; it must be a list of [action, observation, note]')
    goal, observation = _line("goal", row["goal"]), _text("observation", row["observation"])
    steps = tuple(_step(f"steps[{i}]", step) for i, step in enumerate(row["steps"]))
    return Trajectory(History(goal, observation, steps, _note("note", row["note"])), row["success"])


def _step(name: str, step: Any) -> Step:
    if not isinstance(step, list) or len(step) not in (2, 3):
        raise ValueError(f'"{name}" is {_shown(step)}; it must be [action, observation, note]')
    action, observation, note = (*step, "")[:3]
    observed = _text(f"{name}, observation", observation)
    return Step(_line(f"{name}, action", action), observed, _note(f"{name}, note", note))


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f'"{name}" is {_shown(value)}; it must be non-empty text')
    _check_whole(name, value)
    return value.strip()


def _check_whole(name: str, value: str) -> None:
    """JSON can hold halves of characters, which no file and no tokenizer takes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f'"{name}" is {_shown(value)}, with half of a character (a lone surrogate)') from None


def _line(name: str, value: Any) -> str:
    if len(_text(name, value).splitlines()) > 1:
        raise ValueError(f'"{name}" is {_shown(value)}; it must be one line')
    return value.strip()


def _note(name: str, value: Any) -> str:
    if value == "":
        return value
    if not isinstance(value, str) or len(value.strip().splitlines()) != 1 or not _ENDS.search(value.strip()):
        raise ValueError(f'"{name}" is {_shown(value)}; it {_NOTE}')
    _check_whole(name, value)
    return value.strip()


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace").decode()
    return text if len(text) <= 80 else f"{text[:77]}..."
