"""ALFWorld's own games, from a local download: `alfworld-download` leaves them in this layout.

    FOLDER/json_2.1.1/valid_unseen/pick_and_place_simple-Mug-None-Desk-308/trial_T2019.../game.tw-pddl

FOLDER may also be json_2.1.1 itself, or one split of it. Which kind of task a game is stands in its folder's name, as
for ReAct. Games with movable receptacles and sliced objects are left out, as ALFWorld does, and those that it has found
unsolvable.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
from typing import NamedTuple

from nlrl_jax.envs.alfworld.games import KINDS

_KIND_OF = {
    "pick_and_place_simple": "put",
    "pick_clean_then_place_in_recep": "clean",
    "pick_heat_then_place_in_recep": "heat",
    "pick_cool_then_place_in_recep": "cool",
    "look_at_obj_in_light": "examine",
    "pick_two_obj_and_place": "put two",
}
_SPLIT = "valid_unseen"  # 134 games, those that are evaluated
_GOAL = re.compile(r"Your task is to: (.+?)\.?(?:\\n|\n|\")")


class GameFile(NamedTuple):
    """A game of ALFWorld's data.

    Attributes:
      goal: in words.
      problem: PDDL.
    """

    goal: str
    problem: str


def game_files(folder: str) -> dict[str, list[pathlib.Path]]:
    """Lists the game files of a download by kind of task, sorted.

    Raises:
      ValueError: there is no such folder, or no game in it.
    """
    root = pathlib.Path(os.path.expanduser(folder))
    if not root.is_dir():
        raise ValueError(f"--data is {folder!r}, which is not a folder; give the one with json_2.1.1 in it")
    inner = [root, *sorted(root.glob("json_2*"))]
    split = next((release / _SPLIT for release in inner if (release / _SPLIT).is_dir()), root)
    paths_by_kind: dict[str, list[pathlib.Path]] = {kind: [] for kind in KINDS}
    for path in sorted(split.glob("*/trial_*/game.tw-pddl")):
        name = path.parent.parent.name
        kind = _KIND_OF.get(name.split("-")[0])
        if kind and "movable" not in name and "Sliced" not in name and _read(path).get("solvable", True):
            paths_by_kind[kind].append(path)
    if not any(paths_by_kind.values()):
        raise ValueError(
            f"--data is {folder!r}, but there is no game in it: {split}/*/trial_*/game.tw-pddl names no file "
            "of the six kinds of tasks. `alfworld-download` makes such a folder"
        )
    return paths_by_kind


def load(path: pathlib.Path) -> GameFile:
    """Reads a game's goal and PDDL problem.

    Raises:
      ValueError: the file is not a game.
    """
    content = _read(path)
    goal = _GOAL.search(str(content.get("grammar", "")))
    problem = content.get("pddl_problem")
    if not goal or not isinstance(problem, str):
        missing = "task in its grammar" if isinstance(problem, str) else "pddl_problem"
        raise ValueError(f"{path} is not a game of ALFWorld: it has no {missing}")
    return GameFile(goal[1], problem)


def _read(path: pathlib.Path) -> dict:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a game of ALFWorld: it holds no JSON object")
    return content
