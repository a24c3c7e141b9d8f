"""Gymnasium's environments as `gymnasium:FrozenLake-v1`, `gymnasium:Taxi-v3`, `gymnasium:BabyAI-GoToLocal-v0`.

Actions and observations have words here for the environments in `_KNOWN`; other discrete actions are their numbers,
other observations are drawn (`render_mode="ansi"`) or printed. Two functions of your own replace both:
`?describe=my_module:describe` (observation, environment -> text) and `?act=my_module:act` (text -> action, or None).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator

from nlrl_jax.envs import outside
from nlrl_jax.envs.outside.episodes import Beginning, LiveEpisode
from nlrl_jax.envs.outside.episodes import host_game as of_episodes
from nlrl_jax.roles.json_reply import folded
from nlrl_jax.types import HostGame, Outcome

_HORIZON = 100  # steps where an environment names no limit
_COLOURED = re.compile(r"\x1b\[([\d;]*)m(.*?)\x1b\[0m", re.DOTALL)
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
    walls = re.sub(_COLOURED, r"\2", env.unwrapped.render() or "").strip()
    return (
        f"{walls}\nThe taxi is in row {row}, column {column}. The passenger {waits} and wants to {places[destination]}."
    )


def _minigrid(observation: Mapping[str, Any], env: gymnasium.Env) -> str:
    """Describes a view [7, 7, 3] of MiniGrid: what each cell holds, its colour and a door's state."""
    from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT, STATE_TO_IDX

    states = {number: name for name, number in STATE_TO_IDX.items()}
    view = np.asarray(observation["image"])
    middle, last = view.shape[0] // 2, view.shape[1] - 1  # the agent's own cell, which shows what it carries

    def steps(number: int, where: str) -> str:
        return f"{number} step{'s' * (number > 1)} {where}"

    seen = []
    for column, row in np.ndindex(view.shape[:2]):
        kind, colour, state = map(int, view[column, row])
        sideward, forward = column - middle, last - row
        name = IDX_TO_OBJECT[kind]
        parts = [steps(abs(sideward), "left" if sideward < 0 else "right")] if sideward else []
        parts += [steps(forward, "forward")] if forward else []
        beside = view[min(column, middle) + 1 : max(column, middle), row, 0]
        between = view[column, row + 1 : last, 0] if forward else beside
        is_first_wall = name == "wall" and len(parts) == 1 and (between != kind).all()  # straight ahead or to a side
        if name in ("unseen", "empty", "floor", "agent", "wall") and not is_first_wall:
            continue
        name = name if name == "wall" else f"{IDX_TO_COLOR[colour]} {name}"
        name = f"{states[state]} {name}" if name.endswith("door") else name
        seen.append(f"see a {name} {' and '.join(parts)}" if parts else f"carry a {name}")
    return "\n".join(f"You {each.replace('a open', 'an open')}." for each in seen) or "You see nothing."


_KNOWN = {
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


def host_game(name: str, max_steps: int = 0, describe: str = "", act: str = "", **options) -> HostGame:
    """Makes one of Gymnasium's environments.

    Args:
      describe, act: your own functions, `my_module:function`.
      **options: of `gymnasium.make`.

    Raises:
      ValueError: there is no such environment; its actions have no words; what it raises.
    """
    words = next((words for prefix, words in _KNOWN.items() if name.startswith(prefix)), Words())
    if name.startswith(("BabyAI", "MiniGrid")):
        import minigrid  # noqa: F401  registers them
    try:
        name = _current(name)
        creator = load_env_creator(gymnasium.spec(name).entry_point)
        drawn = "ansi" in getattr(creator, "metadata", {}).get("render_modes", ())
        options |= {"render_mode": "ansi"} if drawn else {}
        env = gymnasium.make(name, **options)
    except (gymnasium.error.Error, TypeError) as error:
        raise ValueError(f"gymnasium.make({name!r}) fails: {error}") from None
    space = env.action_space
    own = outside.function_named(act, "act") if act else None
    actions = () if own else _actions(name, space, words)
    by_word = {folded(word): i for i, word in enumerate(actions)}
    tell = outside.function_named(describe, "describe") if describe else words.describe

    def read(action: str) -> Any:
        if own:
            return own(action)
        if isinstance(space, gymnasium.spaces.Text):
            return action
        return by_word.get(folded(action))

    def text(env: gymnasium.Env, observation: Any) -> str:
        if tell:
            return tell(observation, env)
        return _drawn(env) if drawn else _printed(observation)

    def begin(kind: str, seed: int) -> Beginning:
        env = gymnasium.make(name, **options)
        observation, _ = env.reset(seed=seed)
        mission = observation.get("mission") if isinstance(observation, Mapping) else None
        return Beginning(env, mission or words.rules or f"Earn as much as you can in {name}.", text(env, observation))

    def move(episode: LiveEpisode, action: str) -> Outcome:
        chosen = read(action)
        if chosen is None:
            listed = f" Actions are: {', '.join(actions)}." if actions else ""
            return Outcome(None, f"There is no action {action!r}.{listed}", valid=False)
        observation, reward, terminated, truncated, _ = episode.env.step(chosen)
        success = words.won_above is not None and bool(terminated) and reward > words.won_above
        return Outcome(None, text(episode.env, observation), reward, bool(terminated or truncated), success)

    env = begin("", 0).env  # some have their limit after a reset
    listed = f"Actions: {', '.join(actions)}." if actions else ""
    return of_episodes(
        f"gymnasium:{name}",
        begin,
        move,
        rules=" ".join(filter(None, (words.rules, listed))),
        actions=actions,
        max_steps=max_steps or env.spec.max_episode_steps or getattr(env.unwrapped, "max_steps", 0) or _HORIZON,
        score="return",
        has_success=words.won_above is not None,
    )


def _current(name: str) -> str:
    """The name itself, or of the version that has taken its place, which is said."""
    try:
        gymnasium.spec(name)
    except gymnasium.error.DeprecatedEnv as error:
        base, _, _ = name.rpartition("-v")
        versions = [spec.version for spec in gymnasium.registry.values() if spec.id.startswith(f"{base}-v")]
        if not versions:
            raise
        print(f"note: {error} It is taken.", file=sys.stderr)
        return f"{base}-v{max(versions)}"
    return name


def _actions(name: str, space: gymnasium.Space, words: Words) -> tuple[str, ...]:
    if isinstance(space, gymnasium.spaces.Text):
        return ()
    if not isinstance(space, gymnasium.spaces.Discrete):
        raise ValueError(f"{name} has the actions {space}, for which there are no words; give ?act=my_module:function")
    numbers = tuple(str(int(space.start) + i) for i in range(int(space.n)))
    return words.actions if len(words.actions) == space.n else numbers


def _drawn(env: gymnasium.Env) -> str:
    """Draws the environment's text; what has a coloured ground, where the player is, stands in brackets."""

    def mark(match: re.Match[str]) -> str:
        is_ground = any(40 <= int(code or 0) < 48 for code in match[1].split(";"))
        return f"[{match[2]}]" if is_ground else match[2]

    return _COLOURED.sub(mark, env.render()).strip("\n")


def _printed(observation: Any) -> str:
    """Prints an observation: text as it is, numbers rounded, collections as JSON."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(key): plain(each) for key, each in value.items()}
        if isinstance(value, tuple | list):
            return [plain(each) for each in value]
        if isinstance(value, str):
            return value
        return np.round(np.asarray(value, float), 3).tolist() if not isinstance(value, int | np.integer) else int(value)

    return observation if isinstance(observation, str) else json.dumps(plain(observation))
