"""Gymnasium's environments as `gymnasium:FrozenLake-v1`, `gymnasium:Taxi-v3`, `gymnasium:BabyAI-GoToLocal-v0`.

Actions and observations have words for the environments in `gymnasium_words.KNOWN`; other discrete actions are their
numbers, other observations are drawn (`render_mode="ansi"`) or printed. Two functions of your own replace both:
`?describe=my_module:describe` (observation, environment -> text) and `?act=my_module:act` (text -> action, or None).
"""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator

from nlrl_jax.envs import outside
from nlrl_jax.envs.outside.episodes import Beginning, LiveEpisode
from nlrl_jax.envs.outside.episodes import host_game as of_episodes
from nlrl_jax.envs.outside.gymnasium_words import COLOURED, KNOWN, Words
from nlrl_jax.roles.json_reply import folded
from nlrl_jax.types import HostGame, Outcome

_HORIZON = 100  # steps where an environment names no limit


def host_game(name: str, max_steps: int = 0, describe: str = "", act: str = "", **options) -> HostGame:
    """Makes one of Gymnasium's environments.

    Args:
      describe, act: your own functions, `my_module:function`.
      **options: of `gymnasium.make`.

    Raises:
      ValueError: there is no such environment; its actions have no words; what it raises.
    """
    words = next((words for prefix, words in KNOWN.items() if name.startswith(prefix)), Words())
    if name.startswith(("BabyAI", "MiniGrid")):
        import minigrid  # noqa: F401  registers them
    try:
        name = _current(name)
        creator = load_env_creator(gymnasium.spec(name).entry_point)
        drawn = "ansi" in getattr(creator, "metadata", {}).get("render_modes", ())
        options |= {"render_mode": "ansi"} if drawn else {}
        env = gymnasium.make(name, **options)
    except (gymnasium.error.Error, TypeError) as error:
        close = difflib.get_close_matches(name, gymnasium.registry, n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close and name not in gymnasium.registry else ""
        raise ValueError(f"gymnasium.make({name!r}) fails: {error}{hint}") from None
    space = env.action_space
    to_action = outside.function_named(act, "act") if act else None
    actions = () if to_action else _actions(name, space, words)
    by_word = {folded(word): i for i, word in enumerate(actions)}
    tell = outside.function_named(describe, "describe") if describe else words.describe

    def parsed(action: str) -> Any:
        if to_action:
            return to_action(action)
        if isinstance(space, gymnasium.spaces.Text):
            return action
        return by_word.get(folded(action))

    def text(env: gymnasium.Env, observation: Any) -> str:
        if tell:
            return tell(observation, env)
        return _drawn(env) if drawn else _printed(observation)

    def new_episode(kind: str, seed: int) -> Beginning:
        env = gymnasium.make(name, **options)
        observation, _ = env.reset(seed=seed)
        mission = observation.get("mission") if isinstance(observation, Mapping) else None
        return Beginning(env, mission or words.rules or f"Earn as much as you can in {name}.", text(env, observation))

    def move(episode: LiveEpisode, action: str) -> Outcome:
        chosen = parsed(action)
        if chosen is None:
            listed = f" Actions are: {', '.join(actions)}." if actions else ""
            return Outcome(None, f"There is no action {action!r}.{listed}", valid=False)
        observation, reward, terminated, truncated, _ = episode.env.step(chosen)
        success = words.won_above is not None and bool(terminated) and reward > words.won_above
        return Outcome(None, text(episode.env, observation), reward, bool(terminated or truncated), success)

    env = new_episode("", 0).env  # some have their limit after a reset
    listed = f"Actions: {', '.join(actions)}." if actions else ""
    return of_episodes(
        f"gymnasium:{name}",
        new_episode,
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

    return COLOURED.sub(mark, env.render()).strip("\n")


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
