"""Words for the actions and observations of Gymnasium's and MiniGrid's environments."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np

COLOURED = re.compile(r"\x1b\[([\d;]*)m(.*?)\x1b\[0m", re.DOTALL)
_STEPS = ("left", "down", "right", "up")
_TURNS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle", "done")
_TAXI = ("south", "north", "east", "west", "pick up", "drop off")


class Words(NamedTuple):
    """What is said about an environment.

    actions: words by the environment's action. rules: in a sentence or two. describe: (observation, environment) ->
    text; None: drawn or printed. won_above: an episode is won where it ends with a reward above this; None: there is no
    notion of success.
    """

    actions: tuple[str, ...] = ()
    rules: str = ""
    describe: Callable[[Any, gymnasium.Env], str] | None = None
    won_above: float | None = None


def _taxi(observation: Any, env: gymnasium.Env) -> str:
    row, column, passenger, destination = env.unwrapped.decode(int(observation))
    places = [f"{name} (row {r}, column {c})" for name, (r, c) in zip("RGYB", env.unwrapped.locs, strict=True)]
    waits = "sits in the taxi" if passenger == 4 else f"waits at {places[passenger]}"
    walls = re.sub(COLOURED, r"\2", env.unwrapped.render() or "").strip()
    return (
        f"{walls}\nThe taxi is in row {row}, column {column}. The passenger {waits} and wants to {places[destination]}."
    )


def _minigrid(observation: Mapping[str, Any], env: gymnasium.Env) -> str:
    """Describes a view [7, 7, 3] of MiniGrid: what each cell holds, its colour and a door's state."""
    from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT, STATE_TO_IDX

    states = {number: name for name, number in STATE_TO_IDX.items()}
    view = np.asarray(observation["image"])
    middle, last = view.shape[0] // 2, view.shape[1] - 1  # the agent's own cell, which shows what it carries

    def steps(number: int, direction: str) -> str:
        return f"{number} step{'s' * (number > 1)} {direction}"

    sentences = []
    for column, row in np.ndindex(view.shape[:2]):
        kind, colour, state = map(int, view[column, row])
        sideward, forward = column - middle, last - row
        name = IDX_TO_OBJECT[kind]
        parts = [steps(abs(sideward), "left" if sideward < 0 else "right")] if sideward else []
        parts += [steps(forward, "forward")] if forward else []
        along_row = view[min(column, middle) + 1 : max(column, middle), row, 0]
        between = view[column, row + 1 : last, 0] if forward else along_row
        is_first_wall = name == "wall" and len(parts) == 1 and (between != kind).all()  # straight ahead or to a side
        if name in ("unseen", "empty", "floor", "agent", "wall") and not is_first_wall:
            continue
        name = name if name == "wall" else f"{IDX_TO_COLOR[colour]} {name}"
        name = f"{states[state]} {name}" if name.endswith("door") else name
        sentences.append(f"see a {name} {' and '.join(parts)}" if parts else f"carry a {name}")
    return "\n".join(f"You {each.replace('a open', 'an open')}." for each in sentences) or "You see nothing."


KNOWN = {
    "FrozenLake": Words(
        _STEPS, "S is the start, F ice, H a hole, G the goal; brackets show where you are. Reach G.", None, 0.0
    ),
    "CliffWalking": Words(("up", "right", "down", "left"), "x is you, T the goal, C a cliff. Reach T.", None, -2.0),
    "Taxi": Words(_TAXI, "Drive to the passenger, pick up, drive to the destination, drop off.", _taxi, 0.0),
    "Blackjack": Words(("stick", "hit"), "Your sum, the dealer's card, whether an ace counts 11.", None, 0.0),
    "CartPole": Words(("push left", "push right"), "Keep the pole upright: (position, speed, angle, angular speed)."),
    "MountainCar": Words(("push left", "wait", "push right"), "Drive up the right hill: (position, speed)."),
    "Acrobot": Words(("turn back", "wait", "turn on"), "Swing the tip above the bar."),
    "BabyAI": Words(_TURNS, "You see a part of a world of rooms. Do what the goal says.", _minigrid, 0.0),
    "MiniGrid": Words(_TURNS, "You see a part of a world of rooms. Do what the goal says.", _minigrid, 0.0),
}  # fmt: skip
